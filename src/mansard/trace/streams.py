"""The streams of a device: what each of them did, and how many pieces of work ran at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mansard.core.grouping import groups
from mansard.core.intervals import merge, union
from mansard.trace.timeline import DEVICE_WORK, Events, Kind, Timeline

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTime:
    """What one stream did.

    Args:
        device: Index of its device.
        process: Index of its process, -1 where not recorded.
        context: Its context as the file numbers it, -1 where not recorded.
        stream: Its number; streams of different processes and contexts may share one.
        kernels, copies, fills, graphs: Pieces of work.
        kernel_sum_ns: Summed time of its kernels [ns].
        kernel_union_ns: Time in which one of its kernels or graphs runs [ns].
        busy_ns: Time in which any of its work runs [ns].
        start_ns, end_ns: From its first to its last piece of work [ns].
        overlaps: Kernels that start before an earlier one of the same stream has ended.
    """

    device: int
    process: int
    context: int
    stream: int
    kernels: int
    copies: int
    fills: int
    graphs: int
    kernel_sum_ns: int
    kernel_union_ns: int
    busy_ns: int
    start_ns: int
    end_ns: int
    overlaps: int


def stream_times(timeline: Timeline, devices: Sequence[int] | None = None) -> list[StreamTime]:
    """Return what each stream did, by device and then by the time in which its kernels run, the longest first.

    Args:
        timeline: The profile, or a window of it.
        devices: Indices; None takes every device that did work.
    """
    chosen = timeline.used_devices if devices is None else tuple(devices)
    tables = [(k, timeline.tables[k]) for k in DEVICE_WORK if k in timeline.tables and len(timeline.tables[k])]
    if not tables:
        return []
    columns = [np.concatenate([getattr(t, n) for _, t in tables]) for n in ("device", "process", "context", "stream")]
    kind = np.concatenate([np.full(len(t), int(k), dtype=np.int8) for k, t in tables])
    start, end = (np.concatenate([getattr(t, n) for _, t in tables]) for n in ("start_ns", "end_ns"))
    first, group = groups(columns)
    order = np.argsort(group, kind="stable")
    edges = np.searchsorted(group[order], np.arange(first.size + 1))
    found = []
    for index, row in enumerate(first.tolist()):
        device, process, context, stream = (int(c[row]) for c in columns)
        if device in chosen:
            mine = order[edges[index] : edges[index + 1]]
            found.append(_stream((device, process, context, stream), kind[mine], start[mine], end[mine]))
    number = {d: timeline.devices[d].number for d in chosen}
    return sorted(found, key=lambda s: (number[s.device], s.device, -s.kernel_union_ns, -s.busy_ns, s.stream))


def _stream(
    key: tuple[int, int, int, int], kind: npt.NDArray[np.int8], start: Int64Array, end: Int64Array
) -> StreamTime:
    of = {k: kind == int(k) for k in DEVICE_WORK}
    counts = {k: int(np.count_nonzero(mask)) for k, mask in of.items()}
    kernels = of[Kind.KERNEL]
    running = merge(start[kernels | of[Kind.GRAPH]], end[kernels | of[Kind.GRAPH]])
    device, process, context, stream = key
    return StreamTime(
        device=device, process=process, context=context, stream=stream, kernels=counts[Kind.KERNEL], copies=counts[Kind.COPY],
        fills=counts[Kind.MEMSET], graphs=counts[Kind.GRAPH], kernel_sum_ns=int((end[kernels] - start[kernels]).sum()),
        kernel_union_ns=running.length_ns, busy_ns=merge(start, end).length_ns, start_ns=int(start.min()), end_ns=int(end.max()),
        overlaps=_overlaps(start[kernels], end[kernels]),
    )  # fmt: skip


def _overlaps(start: Int64Array, end: Int64Array) -> int:
    """Return how many start before an earlier one has ended."""
    if start.size < 2:
        return 0
    order = np.lexsort((end, start))
    return int(np.count_nonzero(start[order][1:] < np.maximum.accumulate(end[order])[:-1]))


def at_once(timeline: Timeline, device: int, *, kinds: Sequence[Kind] = (Kind.KERNEL, Kind.GRAPH)) -> dict[int, int]:
    """Return for how long each number of pieces of work ran at once on a device [ns]; time with none is not in it.

    Args:
        timeline: The profile, or a window of it.
        device: Index of the device.
        kinds: Which work counts.
    """
    parts = [timeline.tables[k] for k in kinds if k in timeline.tables]
    start, end = (
        np.concatenate([getattr(p, n)[p.device == device] for p in parts] or [np.zeros(0, dtype=np.int64)])
        for n in ("start_ns", "end_ns")
    )
    return depths(start, end)


def depths(start_ns: Int64Array, end_ns: Int64Array) -> dict[int, int]:
    """Return for how long each number of half-open intervals, from 1 on, covers the instants [ns].

    >>> depths(np.array([0, 1, 4]), np.array([4, 3, 6]))  # one over [0,1), [3,4), [4,6); two over [1,3)
    {1: 4, 2: 2}
    """
    times = np.concatenate([start_ns, end_ns])
    change = np.concatenate([np.ones(start_ns.size, dtype=np.int64), np.full(end_ns.size, -1, dtype=np.int64)])
    order = np.argsort(times, kind="stable")
    times, depth = times[order], np.cumsum(change[order])
    length = np.diff(times)
    found: dict[int, int] = {}
    for value in np.unique(depth[:-1][length > 0]).tolist():
        if value > 0:
            found[value] = int(length[depth[:-1] == value].sum())
    return found


def several_streams_ns(timeline: Timeline, device: int) -> int:
    """Return the time in which work of at least two streams of a device runs at once [ns].

    Args:
        timeline: The profile, or a window of it.
        device: Index of the device.
    """
    starts, ends = [], []
    for table in _by_stream(timeline, device):
        merged = union([merge(table.start_ns, table.end_ns)])
        starts.append(merged.start_ns)
        ends.append(merged.end_ns)
    if len(starts) < 2:
        return 0
    return sum(ns for count, ns in depths(np.concatenate(starts), np.concatenate(ends)).items() if count > 1)


def _by_stream(timeline: Timeline, device: int) -> list[Events]:
    table = timeline.device_work
    table = table.take(table.device == device)
    if not len(table):
        return []
    first, group = groups((table.process, table.context, table.stream))
    return [table.take(group == i) for i in range(first.size)]
