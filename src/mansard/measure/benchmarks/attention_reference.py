"""Attention in f64 by its definition, for a few rows of a result: what every implementation is compared with."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.measure.benchmarks.attention_shape import AttentionShape
from mansard.measure.points.benchmark import Check
from mansard.measure.points.inputs import checked, spots

Array = npt.NDArray[np.float64]
#: Gives (length, width) of one sequence and head of an operand or a result, in f64.
Head = Callable[[int, int], Array]

ROW_BLOCK = 512
GRADIENT_ROUNDINGS = 3.0
MOST_CHECK_FLOP = (
    2e11  # gradients of keys and values need every query row; above this only those of queries are checked
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operands:
    """Operands of one attention, by sequence and head.

    Args:
        q, k, v: Queries, keys and values.
        g: Gradient of the result; None forward.
    """

    q: Head
    k: Head
    v: Head
    g: Head | None = None


def probabilities(q: Array, k: Array, rows: npt.NDArray[np.int64], *, causal: bool, scale: float) -> Array:
    """Return softmax(scale q k^T) of `rows` whose queries are `q` [rows, keys]; what the mask hides is 0."""
    scores = scale * (q @ k.T)
    if causal:
        scores[np.arange(k.shape[0])[None, :] > rows[:, None]] = -math.inf
    scores -= scores.max(axis=1, keepdims=True)
    out: Array = np.exp(scores)
    out /= out.sum(axis=1, keepdims=True)
    return out


def forward_rows(q: Array, k: Array, v: Array, rows: npt.NDArray[np.int64], *, causal: bool, scale: float) -> Array:
    """Return rows of softmax(scale Q K^T) V of one head [rows, value_dim]."""
    out: Array = probabilities(q[rows], k, rows, causal=causal, scale=scale) @ v
    return out


def query_gradient_rows(
    q: Array, k: Array, v: Array, g: Array, rows: npt.NDArray[np.int64], *, causal: bool, scale: float
) -> Array:
    """Return rows of the gradient of the queries of one head [rows, head_dim]."""
    out: Array = scale * (_score_gradient(q[rows], k, v, g[rows], rows, causal, scale)[1] @ k)
    return out


def _score_gradient(
    q: Array, k: Array, v: Array, g: Array, rows: npt.NDArray[np.int64], causal: bool, scale: float
) -> tuple[Array, Array]:
    """Probabilities of the rows, and the gradient of their scaled scores."""
    p = probabilities(q, k, rows, causal=causal, scale=scale)
    dp = g @ v.T
    return p, p * (dp - (p * dp).sum(axis=1, keepdims=True))


def key_value_gradient_rows(
    shape: AttentionShape, operands: Operands, sequence: int, kv_head: int, columns: npt.NDArray[np.int64]
) -> tuple[Array, Array]:
    """Return rows of the gradients of keys and values of one key head, summed over the query heads that share it."""
    assert operands.g is not None
    group = shape.heads // shape.kv_heads
    k, v = operands.k(sequence, kv_head), operands.v(sequence, kv_head)
    dk, dv = np.zeros((len(columns), k.shape[1])), np.zeros((len(columns), v.shape[1]))
    for head in range(kv_head * group, (kv_head + 1) * group):
        q, g = operands.q(sequence, head), operands.g(sequence, head)
        for start in range(0, shape.queries, ROW_BLOCK):
            rows = np.arange(start, min(start + ROW_BLOCK, shape.queries))
            p, ds = _score_gradient(q[rows], k, v, g[rows], rows, shape.causal, shape.scale)
            dk += shape.scale * (ds[:, columns].T @ q[rows])
            dv += p[:, columns].T @ g[rows]
    return dk, dv


def compared(got: Array, want: Array, *, dtype: str, against: str, gradient: bool = False) -> Check:
    """Compare rows, each in units of its own root mean square: rows of a causal result differ in size.

    A row of a result is never measured in less than a twentieth of the root mean square of all rows. A row of a gradient
    is never measured in less than all of it, because it is a difference of two sums that are as large as in other rows
    (in the first causal row they cancel), and is allowed three roundings (probabilities, their gradient, the result).
    """
    whole = float(np.sqrt(np.mean(want * want)))
    unit = np.sqrt(np.mean(want * want, axis=-1, keepdims=True))
    unit = np.maximum(unit, max(whole * (1.0 if gradient else 0.05), np.finfo(np.float64).tiny))
    check = checked(got / unit, want / unit, dtype=dtype, against=against, products=1)
    return Check(error_ratio=check.error_ratio / (GRADIENT_ROUNDINGS if gradient else 1.0), against=against)


def check_attention(
    shape: AttentionShape, operands: Operands, result: Head | None, gradients: tuple[Head, Head, Head] | None
) -> Check:
    """Compare a result and its gradients with attention in f64, in a few rows of the first and the last head.

    Args:
        shape: The attention.
        operands: What went in, as the implementation saw it (rounded to its type).
        result: The result; None where only gradients are returned.
        gradients: Gradients of queries, keys and values; None forward.
    """
    against = "attention in f64 by its definition, sampled rows"
    checks: list[Check] = []
    places = {(0, 0), (shape.batch - 1, shape.heads - 1)}
    group = shape.heads // shape.kv_heads
    rows = spots(shape.queries)
    for sequence, head in sorted(places):
        q, k, v = operands.q(sequence, head), operands.k(sequence, head // group), operands.v(sequence, head // group)
        mask: dict[str, Any] = {"causal": shape.causal, "scale": shape.scale}
        if result is not None:
            want = forward_rows(q, k, v, rows, **mask)
            checks.append(compared(result(sequence, head)[rows], want, dtype=shape.dtype, against=against))
        if gradients is not None and operands.g is not None:
            want = query_gradient_rows(q, k, v, operands.g(sequence, head), rows, **mask)
            checks.append(
                compared(gradients[0](sequence, head)[rows], want, dtype=shape.dtype, against=against, gradient=True)
            )
    if gradients is not None:
        cost = 4.0 * group * float(shape.queries) * shape.keys * (shape.head_dim + shape.value_dim)
        if cost > MOST_CHECK_FLOP:
            against += "; gradients of keys and values not checked at this size"
        else:
            checks.extend(_check_keys_and_values(shape, operands, gradients, against))
    return Check(error_ratio=max(c.error_ratio for c in checks) / score_size(shape), against=against)


def score_size(shape: AttentionShape) -> float:
    """Return how large scores are, at least 1: their rounding is absolute in the exponent, so relative in the result.

    A score is a sum of head_dim products of normal numbers, so its root mean square is scale * sqrt(head_dim).

    >>> from mansard.measure.benchmarks.attention_shape import model_width_shape
    >>> given = {"batch": 1, "seq_len": 8, "d_model": 1024, "num_heads": 1, "scale": False, "dtype": "f32"}
    >>> score_size(model_width_shape(given))
    32.0
    """
    return max(1.0, shape.scale * math.sqrt(shape.head_dim))


def _check_keys_and_values(
    shape: AttentionShape, operands: Operands, gradients: tuple[Head, Head, Head], against: str
) -> list[Check]:
    sequence, head = shape.batch - 1, shape.kv_heads - 1
    columns = spots(shape.keys)
    wanted = key_value_gradient_rows(shape, operands, sequence, head, columns)
    return [
        compared(got(sequence, head)[columns], want, dtype=shape.dtype, against=against, gradient=True)
        for got, want in zip(gradients[1:], wanted, strict=True)
    ]


def heads_of(x: Any, values: Callable[[Any], Any], *, heads_first: bool) -> Head:
    """Return the access to one head of a (batch, length, heads, width) or (batch, heads, length, width) array."""
    if heads_first:
        return lambda sequence, head: values(x[sequence, head])
    return lambda sequence, head: values(x[sequence, :, head])
