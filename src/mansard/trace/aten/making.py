"""How a cost is put together, and where PyTorch uses one thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from mansard.core import NOTHING, Demand, Unknown
from mansard.operators.counting import Elements, bytes_of
from mansard.trace.aten.arguments import Arguments
from mansard.trace.aten.call import AtenCost

Handler = Callable[[Arguments], AtenCost]
Scope = Literal["core", "node"]

#: Elements up to which PyTorch's loops stay on one thread. Source: aten/src/ATen/TensorIterator.h, at::internal::GRAIN_SIZE.
GRAIN_SIZE = 32768


def names(text: str) -> tuple[str, ...]:
    """Return the words of `text`: a table of operator names without a quote around each."""
    return tuple(text.split())


def by_grain(elements: float, grain: float = GRAIN_SIZE) -> Scope:
    """Return `core` where a loop over `elements` is too short to be shared among threads.

    Source: aten/src/ATen/Parallel-inl.h, parallel_for: more than `grain_size` iterations are needed.

    >>> by_grain(32768), by_grain(32769)
    ('core', 'node')
    """
    return "core" if elements <= grain else "node"


def work(
    category: str,
    demand: Demand,
    *,
    fresh: tuple[Elements, ...] = (),
    scope: Scope = "node",
    formula: str = "",
    full_square_flop: float | None = None,
) -> AtenCost:
    """Return the cost of an operator that does its work itself; `fresh` are the results it allocates."""
    return AtenCost(
        kind="work",
        category=category,
        demand=demand,
        fresh_bytes=float(bytes_of(*fresh)),
        scope=scope,
        formula=formula,
        full_square_flop=full_square_flop,
    )


def not_known(category: str, reason: str, *needs: str) -> AtenCost:
    """Return the cost of an operator that does work of an amount nobody can tell from the record."""
    return AtenCost(kind="work", category=category, demand=Unknown(reason, needs))


def wrapper(category: str = "other") -> AtenCost:
    """Return the cost of an operator that only calls others."""
    return AtenCost(kind="wrapper", category=category, demand=NOTHING, formula="calls recorded operators")


def free(category: str = "view") -> AtenCost:
    """Return the cost of a view, metadata or an allocation."""
    return AtenCost(kind="free", category=category, demand=NOTHING, scope="core", formula="moves no data")
