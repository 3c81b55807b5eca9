"""Sweeps: one value form becomes a list of values, several become their product."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Number = int | float

#: A range longer than this was meant otherwise: 1..1e12 by 1 would fill the memory before it is measured.
LONGEST_RANGE = 1_000_000

RANGE_KEYS = ("start", "end", "multiplier", "increase_by")


class SweepError(ValueError):
    """A sweep that has no end, no step or no values."""


def range_values(
    start: Any, end: Any, *, multiplier: Any = None, increase_by: Any = None
) -> tuple[tuple[Number, ...], bool]:
    """Return the values from `start` to `end`, and whether `end` had to be added.

    `end` is always the last value and is there once; the published suite stops below it where no step meets it.

    Args:
        start, end: First and last value.
        multiplier: Factor from one value to the next, above 1.
        increase_by: Difference from one value to the next, above 0.

    Raises:
        SweepError: a bound is not a finite number, `end` is below `start`, or the steps never reach it.

    >>> range_values(1, 100, multiplier=3)
    ((1, 3, 9, 27, 81, 100), True)
    >>> range_values(1024, 4096, multiplier=2)
    ((1024, 2048, 4096), False)
    >>> range_values(1024, 4096, increase_by=2048)
    ((1024, 3072, 4096), True)
    """
    for name, value in (("start", start), ("end", end), ("multiplier", multiplier), ("increase_by", increase_by)):
        if value is None and name in ("multiplier", "increase_by"):
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise SweepError(f"{name} must be a finite number, got {value!r}")
    if (multiplier is None) == (increase_by is None):
        got = "neither" if multiplier is None else "both"
        raise SweepError(f"needs exactly one of multiplier and increase_by, got {got}")
    if end < start:
        raise SweepError(f"end {end} is below start {start}: no values")
    if multiplier is not None:
        if multiplier <= 1:
            raise SweepError(f"never ends: multiplier {multiplier} is not above 1")
        if start <= 0:
            raise SweepError(f"never ends: start {start} times {multiplier} does not grow; use increase_by")
    elif increase_by <= 0:
        raise SweepError(f"never ends: increase_by {increase_by} is not above 0")
    values: list[Number] = []
    for value in _steps(start, end, multiplier, increase_by):
        if len(values) >= LONGEST_RANGE:
            raise SweepError(f"has more than {LONGEST_RANGE} values; choose a larger step")
        values.append(value)
    added = values[-1] != end
    return (*values, end) if added else tuple(values), added


def _steps(start: Number, end: Number, multiplier: Number | None, increase_by: Number | None) -> Iterator[Number]:
    """Yield the values; a float step within rounding of `end` is `end` itself, so that it is not there twice."""
    exact = all(isinstance(x, int) for x in (start, end, multiplier or 1, increase_by or 1))
    tolerance = 0.0 if exact else 1e-9 * max(abs(end), abs(start))
    before: Number | None = None
    for index in itertools.count():
        value = start * multiplier**index if multiplier is not None else start + (increase_by or 0) * index
        if value >= end - tolerance:
            if value <= end + tolerance:
                yield end
            return
        if value == before:
            raise SweepError(f"never ends: the step is lost in the rounding of {value}")
        before = value
        yield value


def product_size(axes: Mapping[str, Sequence[Any]]) -> int:
    """Return how many points the product of `axes` has.

    >>> product_size({"m": [1, 2], "k": [4], "n": [1, 2, 3]})
    6
    """
    return math.prod(len(values) for values in axes.values())


def product(axes: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """Yield every combination, the last key fastest; none is left out.

    >>> list(product({"m": [1, 2], "n": ["a", "b"]}))
    [{'m': 1, 'n': 'a'}, {'m': 1, 'n': 'b'}, {'m': 2, 'n': 'a'}, {'m': 2, 'n': 'b'}]
    """
    for combination in itertools.product(*axes.values()):
        yield dict(zip(axes, combination, strict=True))
