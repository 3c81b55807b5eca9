"""Which candidates no other one beats, and which is the best by one measure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mansard.core import is_known


def pareto(rows: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> list[int]:
    """Return the rows that no other row beats, by index: at least as low in every key and lower in one.

    Args:
        rows: Candidates; one with a key that is not known, or that does not fit, is no candidate here.
        keys: What should be low.

    >>> pareto([{"a": 1, "b": 9}, {"a": 2, "b": 3}, {"a": 3, "b": 3}], ("a", "b"))
    [0, 1]
    """
    usable = [i for i, row in enumerate(rows) if row.get("fits", True) is True and all(_number(row[k]) for k in keys)]

    def beats(i: int, j: int) -> bool:
        pairs = [(rows[i][k], rows[j][k]) for k in keys]
        return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)

    return [j for j in usable if not any(beats(i, j) for i in usable)]


def best(rows: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> int | None:
    """Return the row that fits and is lowest in the first key, ties by the next ones; None where there is none.

    >>> best([{"a": 2, "b": 1}, {"a": 1, "b": 2}, {"a": 1, "b": 1}], ("a", "b"))
    2
    """
    usable = [i for i, row in enumerate(rows) if row.get("fits", True) is True and all(_number(row[k]) for k in keys)]
    return min(usable, key=lambda i: tuple(rows[i][k] for k in keys), default=None)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and is_known(float(value))
