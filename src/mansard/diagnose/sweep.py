"""One pass over a timeline: every instant of the steady steps is given to exactly one owner.

Several things may run at once. An owner is chosen by a stated order, so the parts are disjoint and add up to the span.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mansard.core.intervals import union_ns as union_ns

Int64Array = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]


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
    edges = [window_start_ns, window_end_ns]
    for layer in layers:
        edges += [layer.start_ns, layer.end_ns]
    times = np.unique(np.concatenate(edges)) if edges else np.zeros(0, dtype=np.int64)
    if times.size < 2:
        empty = np.zeros(0, dtype=np.int64)
        return Segments(start_ns=empty, end_ns=empty, owner=empty, window=empty, owners=tuple(x.owner for x in layers))
    owner = np.full(times.size - 1, -1, dtype=np.int64)
    for index in range(len(layers) - 1, -1, -1):
        owner[_covered(times, layers[index].start_ns, layers[index].end_ns)] = index
    inside = _covered(times, window_start_ns, window_end_ns)
    start, end = times[:-1][inside], times[1:][inside]
    window = np.searchsorted(window_start_ns, start, side="right") - 1
    return Segments(
        start_ns=start, end_ns=end, owner=owner[inside], window=window, owners=tuple(x.owner for x in layers)
    )


def _covered(times: Int64Array, start_ns: Int64Array, end_ns: Int64Array) -> npt.NDArray[np.bool_]:
    """Return for each gap between consecutive `times` whether some interval covers it."""
    valid = end_ns > start_ns
    delta = np.zeros(times.size, dtype=np.int64)
    np.add.at(delta, np.searchsorted(times, start_ns[valid]), 1)
    np.add.at(delta, np.searchsorted(times, end_ns[valid]), -1)
    covered: npt.NDArray[np.bool_] = np.cumsum(delta)[:-1] > 0
    return covered


def charged_s(start_ns: Int64Array, end_ns: Int64Array) -> FloatArray:
    """Return the seconds each interval is charged when k intervals that run at once share the time equally.

    The charges add up to the length of the union, so operations on several lanes are never counted twice.

    Two operations of 10 ns that overlap by 4 ns are charged 6 + 4/2 each:

    >>> [round(float(x) * 1e9, 3) for x in charged_s(np.array([0, 6]), np.array([10, 16]))]
    [8.0, 8.0]
    """
    if start_ns.size == 0:
        return np.zeros(0, dtype=np.float64)
    times = np.unique(np.concatenate([start_ns, end_ns]))
    delta = np.zeros(times.size, dtype=np.int64)
    np.add.at(delta, np.searchsorted(times, start_ns), 1)
    np.add.at(delta, np.searchsorted(times, end_ns), -1)
    running = np.maximum(np.cumsum(delta)[:-1], 1)
    passed = np.concatenate([[0.0], np.cumsum(np.diff(times) / running)])
    charge: FloatArray = (passed[np.searchsorted(times, end_ns)] - passed[np.searchsorted(times, start_ns)]) * 1e-9
    return charge
