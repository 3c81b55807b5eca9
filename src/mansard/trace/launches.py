"""Which call launched which device work, and which range that call lies in: joins and one sweep, never an interval join."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.trace.timeline import DEVICE_WORK, NONE, Events, Kind, Timeline, constant, events, joined

Int64Array = npt.NDArray[np.int64]
Int32Array = npt.NDArray[np.int32]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Launches:
    """Device work joined to the calls that launched it, ordered so that the work of a range is one slice.

    Args:
        work: Kernels, copies, fills and whole graphs, in this order; times, names and devices, the other columns only where
            the profile holds external ids.
        kind: Kind of each.
        calls: Calls of the runtime.
        call: Index into `calls` of each piece of work, -1 where no call launched it.
        duplicates: Calls that share process and correlation id with another one; the join takes the first.
    """

    work: Events
    kind: npt.NDArray[np.int8]
    calls: Events
    call: Int32Array
    duplicates: int = 0

    @cached_property
    def launched(self) -> BoolArray:
        """Which work has a call."""
        found: BoolArray = self.call >= 0
        return found

    @cached_property
    def used_calls(self) -> Int64Array:
        """Calls that launched something, by thread and start."""
        seen = np.zeros(len(self.calls), dtype=np.bool_)
        seen[self.call[self.launched]] = True
        used = np.flatnonzero(seen)
        start = self.calls.start_ns[used]
        if start.size > 1 and (start[1:] < start[:-1]).any():
            used = used[np.argsort(start, kind="stable")]
        thread = self.calls.thread[used]
        if thread.size and not (thread == thread[0]).all():
            small = thread.astype(np.int16) if int(thread.max()) < 32000 else thread
            used = used[np.argsort(small, kind="stable")]
        return used

    @cached_property
    def by_call(self) -> tuple[Int64Array, Int64Array]:
        """The launched work in the order of `used_calls`, and where the work of each of them begins in it (one more at the end)."""
        rank = np.full(len(self.calls), NONE, dtype=np.int32)
        rank[self.used_calls] = np.arange(self.used_calls.size, dtype=np.int32)
        rows = np.flatnonzero(self.launched)
        place = rank[self.call[rows]]
        counts = np.bincount(place, minlength=self.used_calls.size)
        if (place[1:] < place[:-1]).any():
            rows = rows[np.argsort(place, kind="stable")]
        return rows, np.concatenate([[0], np.cumsum(counts)])

    @cached_property
    def call_extent(self) -> tuple[Int64Array, Int64Array, Int64Array]:
        """First start, last end and summed time of the work of each of `used_calls` [ns]."""
        rows, first = self.by_call
        if not rows.size:
            empty = np.zeros(0, dtype=np.int64)
            return empty, empty, empty
        start, end = self.work.start_ns[rows], self.work.end_ns[rows]
        heads = first[:-1]
        return np.minimum.reduceat(start, heads), np.maximum.reduceat(end, heads), np.add.reduceat(end - start, heads)


def join_launches(timeline: Timeline) -> Launches:
    """Join device work to calls by (process, correlation id).

    Args:
        timeline: A profile; without calls nothing is joined.
    """
    tables = [(k, timeline.tables[k]) for k in DEVICE_WORK if k in timeline.tables and len(timeline.tables[k])]
    calls = timeline.of(Kind.RUNTIME)
    found = [match(calls.process, calls.correlation, t.process, t.correlation) for _, t in tables]

    parts = [np.full(len(t), int(k), dtype=np.int8) for k, t in tables]
    return Launches(
        work=_work([t for _, t in tables]),
        kind=np.concatenate(parts) if parts else np.zeros(0, dtype=np.int8),
        calls=calls,
        call=np.concatenate([c for c, _ in found]) if found else np.zeros(0, dtype=np.int32),
        duplicates=max((d for _, d in found), default=0),
    )


def lean(timeline: Timeline, launches: Launches, *, drop: Iterable[str] = ("correlation",)) -> Timeline:
    """Return the profile without what nobody needs once work is joined to its calls: a large one should not be held twice.

    Args:
        timeline: The profile.
        launches: Its joined launches; times, names and devices of its work become views of theirs.
        drop: Columns that are left out: they read as not recorded.
    """
    tables = dict(timeline.tables)
    place = 0
    for kind in DEVICE_WORK:
        if kind not in tables or not len(tables[kind]):
            continue
        part = slice(place, place + len(tables[kind]))
        place = part.stop
        views: dict[str, Any] = {n: getattr(launches.work, n)[part] for n in ("start_ns", "end_ns", "name", "device")}
        tables[kind] = replace(tables[kind], **views)
    for kind, table in tables.items():
        tables[kind] = replace(table, **{n: constant(NONE, len(table)) for n in drop})  # type: ignore[arg-type]
    return replace(timeline, tables=tables)


def _work(tables: list[Events]) -> Events:
    """Return the tables as one: whole where they hold other links to the host, else the columns that ranges ask for.

    Profiles are too large to copy columns that nobody reads.
    """
    if len(tables) < 2 or any("external_id" in t.extras for t in tables):
        return joined(tables)
    start, end, name, device = (
        np.concatenate([getattr(t, n) for t in tables]) for n in ("start_ns", "end_ns", "name", "device")
    )
    return events(start_ns=start, end_ns=end, name=name, device=device)


def match(
    call_process: Int32Array, call_correlation: Int64Array, work_process: Int32Array, work_correlation: Int64Array
) -> tuple[Int32Array, int]:
    """Return for each piece of work the row of the call with its process and correlation id, -1 where there is none.

    Correlation ids start anew in each process, so they alone join work of one process to calls of another.

    Returns:
        The rows, and how many calls share their pair with an earlier one.

    >>> zero, one = np.zeros(2, dtype=np.int32), np.ones(2, dtype=np.int32)
    >>> match(np.array([0, 1], dtype=np.int32), np.array([5, 5]), np.array([1, 1, 0], dtype=np.int32), np.array([5, 6, 5]))
    (array([ 1, -1,  0], dtype=int32), 0)
    """
    out = np.full(work_process.size, NONE, dtype=np.int32)
    duplicates = 0
    for process in _present(work_process):
        calls = _rows_of(call_process, process)
        works = _rows_of(work_process, process)
        keys = call_correlation[calls]
        rows = np.arange(call_process.size, dtype=np.int32)[calls]
        wanted = work_correlation[works]
        valid = keys > 0
        if not valid.all():
            rows, keys = rows[valid], keys[valid]
        if not keys.size:
            continue
        low, high = int(keys.min()), int(keys.max())
        if high - low < max(1 << 20, 8 * keys.size):
            table = np.full(high - low + 1, NONE, dtype=np.int32)
            table[keys[::-1] - low] = rows[::-1]  # the first row of a pair stays
            duplicates += int(keys.size - np.count_nonzero(table >= 0))
            inside = (wanted >= low) & (wanted <= high)
            found = np.where(inside, table[np.where(inside, wanted - low, 0)], NONE)
        else:
            order = np.argsort(keys, kind="stable")
            keys, rows = keys[order], rows[order]
            duplicates += int(np.count_nonzero(keys[1:] == keys[:-1]))
            place = np.minimum(np.searchsorted(keys, wanted), keys.size - 1)
            found = np.where(keys[place] == wanted, rows[place], NONE)
        out[works] = found
    return out, duplicates


def _present(process: Int32Array) -> list[int]:
    if not process.size:
        return []
    if process.strides == (0,):
        return [int(process[0])] if process[0] >= 0 else []
    return [int(p) for p in np.flatnonzero(np.bincount(process[process >= 0])).tolist()]


def _rows_of(process: Int32Array, wanted: int) -> BoolArray | slice:
    if process.strides == (0,) and process.size:
        return slice(None) if process[0] == wanted else slice(0, 0)
    mask: BoolArray = process == wanted
    return mask
