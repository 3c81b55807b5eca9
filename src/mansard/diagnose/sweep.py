"""One pass over a timeline: every instant of the steady steps is given to exactly one owner.

Several things may run at once. An owner is chosen by a stated order, so the parts are disjoint and add up to the span.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mansard.core.grouping import distinct
from mansard.core.intervals import union_ns as union_ns

Int64Array = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """Intervals of one owner.

    Args:
        owner: Whose time it is.
        start_ns, end_ns: Half-open intervals [ns]; they may overlap each other.
    """

    owner: str
    start_ns: Int64Array
    end_ns: Int64Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Segments:
    """Disjoint pieces of the windows, in time order.

    Args:
        start_ns, end_ns: Half-open pieces [ns].
        owner: Index into `owners` of each piece; -1 where no layer covers it.
        window: Index of the window each piece lies in.
        owners: Names of the layers, in their order.
    """

    start_ns: Int64Array
    end_ns: Int64Array
    owner: npt.NDArray[np.int64]
    window: npt.NDArray[np.int64]
    owners: tuple[str, ...]

    def total_ns(self, owner: str | None) -> int:
        """Time of one owner [ns]; None asks for the time that nothing covers."""
        index = -1 if owner is None else self.owners.index(owner)
        chosen = self.owner == index
        return int((self.end_ns[chosen] - self.start_ns[chosen]).sum())


class Grid:
    """The instants at which anything begins or ends in the windows, and who owns each piece of time between two of them.

    Several questions about the same intervals share one grid: sorting their edges is what takes time.

    Args:
        window_start_ns, window_end_ns: Disjoint windows in time order [ns].
        edges: Starts and ends of everything that may own a piece [ns].
    """

    def __init__(self, window_start_ns: Int64Array, window_end_ns: Int64Array, edges: Sequence[Int64Array]) -> None:
        times = distinct(window_start_ns, window_end_ns, *edges)
        self._times = times
        self._window_start_ns = window_start_ns
        self._inside = self.covered(window_start_ns, window_end_ns)

    def place(self, moment_ns: Int64Array) -> Int64Array:
        """Return the number of each edge among all of them."""
        return np.searchsorted(self._times, moment_ns).astype(np.int64)

    def covered(self, start_ns: Int64Array, end_ns: Int64Array) -> BoolArray:
        """Return which pieces between consecutive edges some interval covers."""
        return self.covered_between(self.place(start_ns), self.place(end_ns))

    def covered_between(self, first: Int64Array, last: Int64Array) -> BoolArray:
        """Return the same for intervals whose edges are given by their places."""
        pieces = max(0, self._times.size - 1)
        valid = last > first
        delta = np.bincount(first[valid], minlength=pieces + 1)
        delta -= np.bincount(last[valid], minlength=pieces + 1)
        covered: BoolArray = np.cumsum(delta)[:-1] > 0 if pieces else np.zeros(0, dtype=np.bool_)
        return covered

    def segments(self, layers: Sequence[tuple[str, BoolArray]]) -> Segments:
        """Return who owns each piece inside the windows, the first layer that covers it winning.

        Args:
            layers: Names of owners in order of precedence, and which pieces each of them covers.
        """
        owner = np.full(self._inside.size, -1, dtype=np.int64)
        for index in range(len(layers) - 1, -1, -1):
            owner[layers[index][1]] = index
        start, end = self._times[:-1][self._inside], self._times[1:][self._inside]
        window = np.searchsorted(self._window_start_ns, start, side="right") - 1
        return Segments(
            start_ns=start, end_ns=end, owner=owner[self._inside], window=window, owners=tuple(name for name, _ in layers)
        )  # fmt: skip


def sweep(layers: Sequence[Layer], window_start_ns: Int64Array, window_end_ns: Int64Array) -> Segments:
    """Return who owns each instant of the windows, the first layer of `layers` that covers it winning.

    Args:
        layers: Owners in order of precedence.
        window_start_ns, window_end_ns: Disjoint windows in time order [ns].

    Two operations, one wait; the operation wins where both cover:

    >>> a = Layer(owner="op", start_ns=np.array([2]), end_ns=np.array([6]))
    >>> b = Layer(owner="wait", start_ns=np.array([4]), end_ns=np.array([8]))
    >>> s = sweep([a, b], np.array([0]), np.array([10]))
    >>> s.total_ns("op"), s.total_ns("wait"), s.total_ns(None)
    (4, 2, 4)
    """
    grid = Grid(window_start_ns, window_end_ns, [edge for x in layers for edge in (x.start_ns, x.end_ns)])
    return grid.segments([(x.owner, grid.covered(x.start_ns, x.end_ns)) for x in layers])


def charged_s(start_ns: Int64Array, end_ns: Int64Array) -> FloatArray:
    """Return the seconds each interval is charged when k intervals that run at once share the time equally.

    The charges add up to the length of the union, so operations on several lanes are never counted twice.

    Two operations of 10 ns that overlap by 4 ns are charged 6 + 4/2 each:

    >>> [round(float(x) * 1e9, 3) for x in charged_s(np.array([0, 6]), np.array([10, 16]))]
    [8.0, 8.0]
    """
    if start_ns.size == 0:
        return np.zeros(0, dtype=np.float64)
    times = distinct(start_ns, end_ns)
    first, last = np.searchsorted(times, start_ns), np.searchsorted(times, end_ns)
    delta = np.bincount(first, minlength=times.size) - np.bincount(last, minlength=times.size)
    running = np.maximum(np.cumsum(delta)[:-1], 1)
    passed = np.concatenate([[0.0], np.cumsum(np.diff(times) / running)])
    charge: FloatArray = (passed[last] - passed[first]) * 1e-9
    return charge
