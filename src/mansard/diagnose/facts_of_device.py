"""What a profile tells of one device beside times: how launches fill it, its memory, and how copies to and from the host go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from mansard.core import Unknown
from mansard.core.grouping import groups
from mansard.core.intervals import IntervalSet, intersection, merge, union
from mansard.diagnose.facts import Grid, MemoryUse, TransferFacts
from mansard.diagnose.judge_operators import HOST_COPY_NAMES
from mansard.trace.device_facts import PAGEABLE, PINNED, host_memory, kernel_launches, memory_peak
from mansard.trace.idle import Idle
from mansard.trace.run import RunTrace
from mansard.trace.timeline import CopyKind, Kind, Timeline

Int64Array = npt.NDArray[np.int64]

#: Calls that get device memory from the driver or give it back.
_ALLOCATING = (
    "cudaMalloc",
    "cudaFree",
    "cuMemAlloc",
    "cuMemFree",
    "cuMemCreate",
    "cuMemRelease",
    "hipMalloc",
    "hipFree",
)
#: Allocation from the driver's own pool, or of host memory, is another matter.
_NOT_ALLOCATING = ("Async", "Host", "Managed", "Array")
#: One way of launching with this share of a kernel's time stands for the kernel.
_MOST = 0.95
#: A copy of at most so many bytes takes what starting one takes [B].
_SMALL_COPY = 4096
_LEAST_COPIES = 3
#: From this share of its time on, starting a copy is what limits it.
_LATENCY_SHARE = 0.3
_S = 1e-9


def grids_of(timeline: Timeline, device: int, run: RunTrace) -> Mapping[int, Grid]:
    """Return how each kind of kernel is spread over a device, where one way of launching it has nearly all of its time.

    Args:
        timeline: The profile, read with launch shapes.
        device: Index of the device.
        run: The device as a run: its kernels come first in it, in the order of their table.
    """
    found = kernel_launches(timeline)
    if isinstance(found, Unknown):
        return {}
    rows = worked(timeline, Kind.KERNEL, device)
    kind = run.op[: rows.size]
    length = (run.end_ns - run.start_ns)[: rows.size].astype(np.float64)
    columns = np.stack([found.blocks[rows], found.per_unit[rows], found.units[rows]])
    known = ~np.isnan(columns).any(axis=0)
    whole = np.bincount(kind, weights=length, minlength=len(run.operators))
    first, group = groups([kind[known], *columns[:, known].astype(np.int64)])
    part = np.bincount(group, weights=length[known], minlength=first.size)
    out: dict[int, Grid] = {}
    for place, time_ns in zip(np.flatnonzero(known)[first].tolist(), part.tolist(), strict=True):
        if time_ns >= _MOST * whole[kind[place]]:
            blocks, each, units = columns[:, place].tolist()
            out[int(kind[place])] = Grid(blocks=blocks, per_unit=each, units=units)
    return out


def worked(timeline: Timeline, kind: Kind, device: int) -> Int64Array:
    """Return the rows of a table that are operations of a device's run: those with a length, in their order."""
    table = timeline.of(kind)
    return np.flatnonzero((table.device == device) & (table.end_ns > table.start_ns))


def memory_of(timeline: Timeline, device: int, idle: Idle | None, steps: IntervalSet, count: int) -> MemoryUse:
    """Return what is known of a device's memory: its size, the most in use, and calls for it in steps.

    Args:
        timeline: The profile.
        device: Index of the device.
        idle: Its idle intervals by cause; None where no steps are known.
        steps: The steps.
        count: How many.
    """
    size = timeline.devices[device].memory_bytes
    use = MemoryUse(capacity_bytes=None if isinstance(size, Unknown) else float(size))
    peak = memory_peak(timeline, device)
    if not isinstance(peak, Unknown) and not peak.at_least:  # what was taken before the recording may fill the memory
        taken = peak.allocated_bytes if isinstance(peak.reserved_bytes, Unknown) else peak.reserved_bytes
        use = replace(use, peak_bytes=taken)
    table = timeline.of(Kind.RUNTIME)
    if idle is None or not len(table):
        return use
    named = np.array(
        [n.startswith(_ALLOCATING) and not any(w in n for w in _NOT_ALLOCATING) for n in timeline.names] + [False]
    )
    rows = named[table.name]
    rows = rows & (steps.covered_ns(table.start_ns, table.start_ns + 1) > 0)
    nothing = union([idle.host_sync, idle.input_wait, idle.late, idle.queued, idle.unexplained])
    waiting = intersection(nothing, merge(table.start_ns[rows], table.end_ns[rows]))
    return replace(use, allocations=float(np.count_nonzero(rows)) / count, allocation_s=waiting.length_ns * _S / count)


def transfers_of(timeline: Timeline, device: int, run: RunTrace) -> Mapping[int, TransferFacts]:
    """Return how each kind of copy between host and device went.

    Whether the host's memory was pinned, where all of its copies tell. Where starting a copy, as the small ones of the same
    direction show, is a good part of its time: how long a piece takes, and how many bytes are under way meanwhile; what limits
    larger pieces is not in flight, and nothing is said of them.

    Args:
        timeline: The profile.
        device: Index of the device.
        run: The device as a run: its copies follow its kernels, in the order of their table.
    """
    kinds = [i for i, o in enumerate(run.operators) if o.category == "copy" and o.name.startswith(HOST_COPY_NAMES)]
    rows = worked(timeline, Kind.COPY, device)
    if not kinds or not rows.size:
        return {}
    table = timeline.of(Kind.COPY)
    skip = worked(timeline, Kind.KERNEL, device).size
    kind = run.op[skip : skip + rows.size]
    told = np.array([_pinned(n) for n in timeline.names] + [-1], dtype=np.int8)[table.name[rows]]
    recorded = host_memory(timeline)[rows]
    held = np.where(recorded == PINNED, 1, np.where(recorded == PAGEABLE, 0, np.where(recorded < 0, told, -1)))
    start_s = _start_times(table.copy_kind[rows], table.nbytes[rows], table.duration_ns[rows])
    found: dict[int, TransferFacts] = {}
    for one in kinds:
        mine = kind == one
        state = set(held[mine].tolist())
        facts = TransferFacts(pinned=None if len(state) != 1 or -1 in state else state == {1})
        way, size = int(table.copy_kind[rows][mine][0]), int(table.nbytes[rows][mine][0])
        length = table.duration_ns[rows][mine]
        piece_s = float(np.median(length)) * _S
        if size > 0 and start_s.get(way, 0.0) >= _LATENCY_SHARE * piece_s:
            at_once = float(length.sum()) / merge(table.start_ns[rows][mine], table.end_ns[rows][mine]).length_ns
            facts = replace(facts, latency_s=piece_s, in_flight_bytes=size * at_once)
        if facts != TransferFacts():
            found[one] = facts
    return found


def _start_times(
    way: npt.NDArray[np.int8], size: npt.NDArray[np.int64], length_ns: npt.NDArray[np.int64]
) -> dict[int, float]:
    """Return what starting a copy takes by direction [s], as the median of the small ones; left out where there are few."""
    small = (size >= 0) & (size <= _SMALL_COPY)
    out = {}
    for direction in CopyKind:
        mine = length_ns[small & (way == int(direction))]
        if mine.size >= _LEAST_COPIES:
            out[int(direction)] = float(np.median(mine)) * _S
    return out


def _pinned(name: str) -> int:
    """Return 1 for pinned, 0 for pageable, -1 where a name does not tell.

    >>> _pinned("Memcpy HtoD (Pinned -> Device)"), _pinned("Memcpy HtoD (Pageable -> Device)"), _pinned("MemcpyD2H")
    (1, 0, -1)
    """
    return 0 if "Pageable" in name else 1 if "Pinned" in name else -1
