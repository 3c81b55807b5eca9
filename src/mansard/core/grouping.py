"""Distinct values and groups of rows of large integer columns, in time linear in the rows wherever that is possible.

`numpy.unique` hashes single columns and sorts rows of several: for millions of values that hardly repeat, as times do, or rows
that hardly differ, as kernels do, both take many times as long as what is here.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]

#: A table of counts of up to so many numbers is made whatever the rows; a larger one needs as many rows.
_SMALL = 1 << 16


def distinct(*values: Int64Array) -> Int64Array:
    """Return the distinct values of several arrays in ascending order.

    >>> distinct(np.array([5, 1, 5]), np.array([1, 2])).tolist()
    [1, 2, 5]
    """
    ordered = np.sort(np.concatenate(values)) if values else np.zeros(0, dtype=np.int64)
    if ordered.size < 2:
        return ordered
    first = np.empty(ordered.size, dtype=np.bool_)
    first[0] = True
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    found: Int64Array = ordered[first]
    return found


def groups(columns: Sequence[npt.NDArray[np.integer]]) -> tuple[Int64Array, Int64Array]:
    """Return the groups of rows that are the same in every column, in ascending order of their values.

    Args:
        columns: Integer columns of one length, the most significant first.

    Returns:
        The first row of each group, and the group of each row.

    >>> first, group = groups([np.array([2, 0, 2, 0]), np.array([7, 9, 7, 8])])
    >>> first.tolist(), group.tolist()
    ([3, 1, 0], [2, 1, 2, 0])
    """
    size = columns[0].size
    group = np.zeros(size, dtype=np.int64)
    many = 1
    for column in columns:
        if size and not (column == column[0]).all():
            code, count = _codes(column)
            group, many = _compact(group * count + code, many * count)
    first = np.zeros(many if size else 0, dtype=np.int64)
    first[group[::-1]] = np.arange(size - 1, -1, -1)
    return first, group


def _codes(column: npt.NDArray[np.integer]) -> tuple[Int64Array, int]:
    """Return ranks of the values of a column, and how many there are."""
    low = int(column.min())
    return _compact(column.astype(np.int64) - low, int(column.max()) - low + 1)


def _compact(code: Int64Array, many: int) -> tuple[Int64Array, int]:
    """Return numbers below `many` as ranks without gaps, and how many ranks there are."""
    if many > max(_SMALL, 4 * code.size):
        values = distinct(code)
        return np.searchsorted(values, code).astype(np.int64), int(values.size)
    used = np.bincount(code, minlength=many) > 0
    rank = np.cumsum(used) - 1
    return rank[code], int(rank[-1]) + 1
