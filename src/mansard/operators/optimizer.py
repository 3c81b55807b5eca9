"""Optimizer steps, fused: each parameter, gradient and state element is read once and written once."""

from __future__ import annotations

from mansard.core import Demand
from mansard.operators.counting import Count, Elements, demand, number


def sgd_step(
    *, elements: Count, dtype: str, momentum: bool = False, weight_decay: bool = False, nesterov: bool = False,
    first_step: bool = False, dampening: bool = False, gradient_dtype: str | None = None,
) -> Demand:  # fmt: skip
    """Return the demand of one step of stochastic gradient descent.

    Args:
        elements: Parameters.
        dtype: Type of parameters and momentum.
        momentum, weight_decay, nesterov, dampening: Which terms there are.
        first_step: Whether the momentum is only set, and not read.
        gradient_dtype: Type of the gradient; None for `dtype`.

    Returns:
        Update 2 vector FLOP; momentum 2 more, dampening 1, weight decay 2, Nesterov 2.

    Source: Sutskever et al. 2013; PyTorch documentation of SGD.

    >>> d = sgd_step(elements=10, dtype="f32", momentum=True)
    >>> d.bytes, d.vector_flop
    (200.0, {'f32': 40.0})
    """
    n = number(elements)
    reads: list[Elements] = [(n, dtype), (n, gradient_dtype or dtype)]
    writes: list[Elements] = [(n, dtype)]
    flop = 2.0 + 2.0 * weight_decay
    if momentum:
        writes.append((n, dtype))
        flop += 2.0 * nesterov
        if not first_step:
            reads.append((n, dtype))
            flop += 2.0 + 1.0 * dampening
    return demand(reads=reads, writes=writes, vector=(n * flop, dtype))


def adam_step(
    *, elements: Count, dtype: str, weight_decay: bool = False, decoupled: bool = True, amsgrad: bool = False,
    gradient_dtype: str | None = None, state_dtype: str | None = None,
) -> Demand:  # fmt: skip
    """Return the demand of one step of Adam or AdamW.

    Args:
        elements: Parameters.
        dtype: Type of the parameters.
        weight_decay: Whether there is weight decay.
        decoupled: AdamW: the parameter is scaled (1 vector FLOP); else the gradient gets a term (2).
        amsgrad: Whether the maximum of the second moment is kept.
        gradient_dtype, state_dtype: Types of the gradient and of the moments; None for `dtype`.

    Returns:
        First moment 3 vector FLOP, second moment 4, denominator 3, update 3 (13 in all); parameter, gradient and both
        moments read, parameter and moments written: 28 B per f32 parameter.

    Source: Kingma and Ba, arXiv:1412.6980, algorithm 1; Loshchilov and Hutter, arXiv:1711.05101, algorithm 2.

    >>> d = adam_step(elements=10, dtype="f32", weight_decay=True)
    >>> d.bytes, d.vector_flop
    (280.0, {'f32': 140.0})
    """
    n = number(elements)
    state = state_dtype or dtype
    moments = 2.0 + 1.0 * amsgrad
    flop = 13.0 + 1.0 * amsgrad + ((1.0 if decoupled else 2.0) if weight_decay else 0.0)
    return demand(
        reads=[(n, dtype), (n, gradient_dtype or dtype), (moments * n, state)],
        writes=[(n, dtype), (moments * n, state)],
        vector=(n * flop, dtype),
    )


def adagrad_step(*, elements: Count, dtype: str, weight_decay: bool = False) -> Demand:
    """Return the demand of one step of Adagrad.

    Args:
        elements: Parameters.
        dtype: Element type.
        weight_decay: Whether the gradient gets a weight decay term.

    Returns:
        State 2 vector FLOP, update 5, weight decay 2.

    Source: Duchi, Hazan, Singer, JMLR 12, 2011.

    >>> adagrad_step(elements=10, dtype="f32").bytes
    200.0
    """
    n = number(elements)
    return demand(reads=[(3.0 * n, dtype)], writes=[(2.0 * n, dtype)], vector=(n * (7.0 + 2.0 * weight_decay), dtype))
