"""Arithmetic on half-open integer intervals: one set of definitions for every figure that is a length of time.

A merged set is a pair of arrays, starts and ends, in order, disjoint and not touching. `sum` may exceed the time that passed;
`union` never does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalSet:
    """A merged set of half-open intervals, in order, disjoint and not touching.

    Args:
        start_ns, end_ns: The pieces [ns].
    """

    start_ns: Int64Array
    end_ns: Int64Array

    @property
    def length_ns(self) -> int:
        """How long it is [ns]."""
        return int((self.end_ns - self.start_ns).sum())

    @property
    def span_ns(self) -> int:
        """From its first start to its last end [ns]; 0 where it is empty."""
        return int(self.end_ns[-1] - self.start_ns[0]) if self.start_ns.size else 0

    def __len__(self) -> int:
        return int(self.start_ns.size)

    def gaps(self) -> IntervalSet:
        """Return the idle intervals strictly between its pieces."""
        return IntervalSet(start_ns=self.end_ns[:-1], end_ns=self.start_ns[1:])

    def clipped(self, start_ns: int, end_ns: int) -> IntervalSet:
        """Return the part inside a window."""
        first = int(np.searchsorted(self.end_ns, start_ns, side="right"))
        last = int(np.searchsorted(self.start_ns, end_ns, side="left"))
        if end_ns <= start_ns or first >= last:
            return EMPTY
        start, end = self.start_ns[first:last].copy(), self.end_ns[first:last].copy()
        start[0], end[-1] = max(int(start[0]), start_ns), min(int(end[-1]), end_ns)
        return IntervalSet(start_ns=start, end_ns=end)

    def covered_ns(self, start_ns: Int64Array, end_ns: Int64Array) -> Int64Array:
        """Return how much of each of the given intervals this set covers [ns]."""
        if not self.start_ns.size:
            return np.zeros(start_ns.size, dtype=np.int64)
        passed = np.concatenate([[0], np.cumsum(self.end_ns - self.start_ns)])

        def until(t: Int64Array) -> Int64Array:
            index = np.searchsorted(self.start_ns, t, side="right")
            over = np.where(index > 0, np.maximum(self.end_ns[np.maximum(index - 1, 0)] - t, 0), 0)
            result: Int64Array = passed[index] - over
            return result

        return until(end_ns) - until(start_ns)


EMPTY = IntervalSet(start_ns=np.zeros(0, dtype=np.int64), end_ns=np.zeros(0, dtype=np.int64))


def merge(start_ns: Int64Array, end_ns: Int64Array) -> IntervalSet:
    """Return the union of half-open intervals as a merged set; empty and negative ones add nothing.

    >>> m = merge(np.array([0, 5, 20, 30]), np.array([10, 12, 30, 30]))
    >>> m.start_ns.tolist(), m.end_ns.tolist(), m.length_ns
    ([0, 20], [12, 30], 22)
    """
    valid = end_ns > start_ns
    if not valid.all():
        start_ns, end_ns = start_ns[valid], end_ns[valid]
    if start_ns.size == 0:
        return EMPTY
    if not (start_ns[1:] >= start_ns[:-1]).all():
        order = np.argsort(start_ns, kind="stable")
        start_ns, end_ns = start_ns[order], end_ns[order]
    reach = np.maximum.accumulate(end_ns)
    first = np.empty(start_ns.size, dtype=np.bool_)
    first[0] = True
    np.greater(start_ns[1:], reach[:-1], out=first[1:])
    heads = np.flatnonzero(first)
    tails = np.append(heads[1:], start_ns.size) - 1
    return IntervalSet(start_ns=start_ns[heads], end_ns=reach[tails])


def union(sets: Sequence[IntervalSet]) -> IntervalSet:
    """Return the union of merged sets.

    >>> a, b = merge(np.array([0]), np.array([4])), merge(np.array([2]), np.array([9]))
    >>> union([a, b]).length_ns
    9
    """
    filled = [s for s in sets if len(s)]
    if len(filled) < 2:
        return filled[0] if filled else EMPTY
    return merge(np.concatenate([s.start_ns for s in filled]), np.concatenate([s.end_ns for s in filled]))


def intersection(a: IntervalSet, b: IntervalSet) -> IntervalSet:
    """Return the instants that both sets cover.

    >>> c = intersection(merge(np.array([0, 20]), np.array([10, 30])), merge(np.array([5]), np.array([25])))
    >>> c.start_ns.tolist(), c.end_ns.tolist()
    ([5, 20], [10, 25])
    """
    if not len(a) or not len(b):
        return EMPTY
    few, many = (a, b) if len(a) < len(b) else (b, a)
    first = np.searchsorted(many.end_ns, few.start_ns, side="right")
    last = np.searchsorted(many.start_ns, few.end_ns, side="left")
    counts = np.maximum(last - first, 0)
    owner = np.repeat(np.arange(len(few)), counts)
    place = np.arange(owner.size) - np.repeat(np.cumsum(counts) - counts, counts) + first[owner]
    return IntervalSet(
        start_ns=np.maximum(few.start_ns[owner], many.start_ns[place]),
        end_ns=np.minimum(few.end_ns[owner], many.end_ns[place]),
    )


def difference(a: IntervalSet, b: IntervalSet) -> IntervalSet:
    """Return the instants that `a` covers and `b` does not.

    >>> c = difference(merge(np.array([0]), np.array([10])), merge(np.array([2, 8]), np.array([4, 20])))
    >>> c.start_ns.tolist(), c.end_ns.tolist()
    ([0, 4], [2, 8])
    """
    if not len(a) or not len(b):
        return a
    first = min(int(a.start_ns[0]), int(b.start_ns[0])) - 1
    last = max(int(a.end_ns[-1]), int(b.end_ns[-1])) + 1
    outside = IntervalSet(start_ns=np.append(first, b.end_ns), end_ns=np.append(b.start_ns, last))
    return intersection(a, outside)


def overlap_ns(a: IntervalSet, b: IntervalSet) -> int:
    """Return how long both sets cover an instant at once [ns].

    Source: |A| + |B| - |A or B|.

    >>> overlap_ns(merge(np.array([0]), np.array([60])), merge(np.array([40]), np.array([90])))
    20
    """
    if not len(a) or not len(b):
        return 0
    few, many = (a, b) if len(a) < len(b) else (b, a)
    return int(many.covered_ns(few.start_ns, few.end_ns).sum())


def union_ns(start_ns: Int64Array, end_ns: Int64Array) -> int:
    """Return the length of the union of half-open intervals [ns].

    >>> union_ns(np.array([0, 5, 20]), np.array([10, 12, 30]))
    22
    """
    return merge(start_ns, end_ns).length_ns


def in_flight(start_ns: Int64Array, end_ns: Int64Array) -> int:
    """Return the largest number of half-open intervals that cover one instant.

    >>> in_flight(np.array([0, 1, 4]), np.array([4, 3, 6]))
    2
    """
    valid = end_ns > start_ns
    start, end = np.sort(start_ns[valid]), np.sort(end_ns[valid])
    if start.size == 0:
        return 0
    return int((np.arange(1, start.size + 1) - np.searchsorted(end, start, side="right")).max())
