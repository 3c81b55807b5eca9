"""Recurrent layers: LSTM, GRU and plain cells over a sequence."""

from __future__ import annotations

from typing import Literal

from mansard.core import Demand
from mansard.operators.counting import Count, Elements, demand, matrix_work, number

Cell = Literal["lstm", "gru", "tanh", "relu"]

#: Per cell: gates, vector FLOP and special functions per hidden unit and step (biases apart).
#: LSTM: three sigmoids of 3 FLOP, c = f c + i g (3), h = o tanh(c) (1); GRU: two sigmoids, r * (...) (1), h = n + z (h - n) (3).
CELLS: dict[Cell, tuple[int, float, float]] = {
    "lstm": (4, 13.0, 5.0), "gru": (3, 11.0, 3.0), "tanh": (1, 1.0, 1.0), "relu": (1, 2.0, 0.0),
}  # fmt: skip


def recurrent_layer(
    *,
    cell: Cell,
    steps: Count,
    batch: Count,
    input_size: Count,
    hidden_size: Count,
    dtype: str,
    biases: Count = 2.0,
    directions: Count = 1.0,
) -> Demand:
    """Return the demand of one recurrent layer over a sequence, forward.

    Args:
        cell: `lstm`, `gru`, or a plain cell with `tanh` or `relu`.
        steps, batch, input_size, hidden_size: Dimensions.
        dtype: Element type.
        biases: Bias vectors per gate: 2 in PyTorch, 0 without.
        directions: 2 when bidirectional.

    Returns:
        2 gates hidden (input + hidden) FLOP per step and sequence; weights, input and initial state read once,
        outputs and final state written once.

    Assumes: weights stay near between steps; where they do not fit a cache, each step reads them again.
    Source: Hochreiter and Schmidhuber 1997; Cho et al., arXiv:1406.1078; PyTorch documentation of LSTM and GRU.

    LSTM, 5 steps, 2 sequences, 8 -> 16: 2 * 5 * 2 * 4 * 16 * (8 + 16) = 30720 FLOP.

    >>> recurrent_layer(cell="lstm", steps=5, batch=2, input_size=8, hidden_size=16, dtype="f32").total_flop
    30720.0
    """
    gates, arithmetic, special = CELLS[cell]
    h, i, d = number(hidden_size), number(input_size), number(directions)
    cells = number(steps) * number(batch) * h * d
    state = number(batch) * h * d * (2.0 if cell == "lstm" else 1.0)
    reads: list[Elements] = [
        (number(steps) * number(batch) * i, dtype),
        (d * gates * h * (i + h + number(biases)), dtype),
        (state, dtype),
    ]
    return demand(
        reads=reads,
        writes=[(cells, dtype), (state, dtype)],
        flop=matrix_work(cells * gates * (i + h), dtype),
        vector=(cells * (arithmetic + gates * number(biases)), dtype),
        transcendental=(cells * special, dtype),
    )


def recurrent_layer_backward(
    *, cell: Cell, steps: Count, batch: Count, input_size: Count, hidden_size: Count, dtype: str, biases: Count = 2.0
) -> Demand:
    """Return the demand of the gradients of one direction of a recurrent layer.

    Args:
        cell, steps, batch, input_size, hidden_size, dtype, biases: As in `recurrent_layer`.

    Returns:
        Twice the forward FLOP: gradients of the inputs and of the weights. Reads what the forward read, its gates,
        outputs and their gradient; writes the gradients of input, weights, biases and initial state.

    Source: Werbos 1990, Proc. IEEE 78(10), backpropagation through time; Kaplan et al., arXiv:2001.08361, section 2.1.

    >>> recurrent_layer_backward(cell="lstm", steps=5, batch=2, input_size=8, hidden_size=16, dtype="f32").total_flop
    61440.0
    """
    gates, arithmetic, _ = CELLS[cell]
    h, i = number(hidden_size), number(input_size)
    cells = number(steps) * number(batch) * h
    state = number(batch) * h * (2.0 if cell == "lstm" else 1.0)
    inputs = number(steps) * number(batch) * i
    weights = gates * h * (i + h + number(biases))
    return demand(
        reads=[(inputs, dtype), (weights, dtype), (2.0 * state, dtype), (cells * (gates + 2.0), dtype)],
        writes=[(inputs, dtype), (weights, dtype), (state, dtype)],
        flop=matrix_work(2.0 * cells * gates * (i + h), dtype),
        vector=(cells * (2.0 * arithmetic + gates), dtype),
    )
