"""Busy and idle time of each device, by one set of definitions.

`busy` is the union of kernels, `gpu_busy` that of kernels, copies and fills; they are two different numbers. Idle time is
split into causes that add up to it exactly. Devices are never merged.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.core.intervals import EMPTY, IntervalSet, merge, overlap_ns, union
from mansard.core.unknown import Unknown
from mansard.trace.categories import COLLECTIVE, UNCLASSIFIED, Rules, shipped_rules
from mansard.trace.launches import Launches, join_launches
from mansard.trace.timeline import NONE, Device, Events, Kind, Timeline

Int64Array = npt.NDArray[np.int64]

# Idle causes, in order of precedence.
COPY_ONLY = "copy_only"
HOST_SYNC = "host_sync"
INPUT_WAIT = "input_wait"
LAUNCH_GAP = "launch_gap"
UNEXPLAINED = "unexplained"
CAUSES = (COPY_ONLY, HOST_SYNC, INPUT_WAIT, LAUNCH_GAP, UNEXPLAINED)

#: Kinds of device time, in the order in which an instant with several of them is shown.
KINDS = ("compute", "communication", "unclassified", "copy", "memset", "graph")

_GAPS_AT_ONCE = 1 << 17  # what fits the cache of a core
QUEUED_GAP_NS = 10_000  # between two kernels that were both queued: what starting one costs the device
_SYNC_CALL = re.compile(
    r"(Stream|Device|Event|Ctx|Context|Thread)Synchronize|cuMemcpy(DtoH|HtoD)_v\d|EventWait|hsa_signal_wait", re.I
)
_INPUT_RANGE = re.compile(
    r"dataloader|data_?load|__next__|next_batch|get_batch|fetch_batch|input_pipeline|\bdata\b(?=.*(wait|next|time))",
    re.I,
)
DEVICE_KINDS = (Kind.KERNEL, Kind.COPY, Kind.MEMSET, Kind.GRAPH)
_STREAM_WAIT = 2  # CUPTI's number of a wait on the device, in which no host thread waits


@dataclass(frozen=True)
class DeviceTime:
    """What one device did.

    Args:
        device: Index in `Timeline.devices`.
        facts: The device.
        kernel_count: Kernels, those of zero length too.
        kernel_sum_ns: Summed time [ns]; may exceed the union, since kernels overlap.
        kernels: Merged kernels (and whole graphs, whose kernels are not known).
        gpu_busy_ns: Time in which a kernel, a graph, a copy or a fill runs [ns].
        gpu_span_ns: From the first to the last piece of any work [ns].
        kinds: Merged time by kind, see `KINDS`.
        idle_ns: Idle time of the kernel definition by cause [ns]; the causes add up to span minus busy.
        late_ns: Part of the launch gaps in which the host had not yet called for the next work [ns].
        streams: Streams with kernels.
    """

    device: int
    facts: Device
    kernel_count: int
    kernel_sum_ns: int
    kernels: IntervalSet
    gpu_busy_ns: int
    gpu_span_ns: int
    kinds: Mapping[str, IntervalSet]
    idle_ns: Mapping[str, int]
    late_ns: int
    streams: int

    @property
    def busy_ns(self) -> int:
        """Time in which a kernel runs [ns]."""
        return self.kernels.length_ns

    @property
    def span_ns(self) -> int:
        """From the first kernel's start to the last kernel's end [ns]."""
        return self.kernels.span_ns

    @property
    def gaps(self) -> IntervalSet:
        """Idle intervals strictly between kernels."""
        return self.kernels.gaps()

    @cached_property
    def not_communication(self) -> IntervalSet:
        """Every kernel that is no collective, whether or not its name is known."""
        return union([self.kinds[k] for k in ("compute", "unclassified", "graph")])

    @property
    def overlap_ns(self) -> int:
        """Time in which a collective and another kernel run at once [ns]."""
        return overlap_ns(self.kinds["communication"], self.not_communication)

    @property
    def exposed_ns(self) -> int:
        """Time in which a collective runs and no other kernel does [ns]."""
        return self.kinds["communication"].length_ns - self.overlap_ns

    def buckets(self) -> dict[str, int]:
        """Return disjoint parts of the whole span [ns]: compute only, both, communication only, copies only, idle."""
        compute, comm = self.not_communication, self.kinds["communication"]
        both = overlap_ns(compute, comm)
        return {
            "compute_only": compute.length_ns - both,
            "compute_and_communication": both,
            "communication_only": comm.length_ns - both,
            "copy_only": self.gpu_busy_ns - union([compute, comm]).length_ns,
            "idle": self.gpu_span_ns - self.gpu_busy_ns,
        }

    def overlap_matrix(self) -> dict[str, dict[str, int]]:
        """Return for each two kinds how long both run at once [ns]; on the diagonal the union of one."""
        present = [k for k in KINDS if len(self.kinds[k])]
        return {
            a: {b: self.kinds[a].length_ns if a == b else overlap_ns(self.kinds[a], self.kinds[b]) for b in present}
            for a in present
        }


@dataclass(frozen=True)
class GapFigures:
    """Gaps between kernels of one device, kernels only.

    Args:
        count: How many.
        total_ns, median_ns, p95_ns, max_ns: Their lengths [ns]; p95 is the value at rank ceil(0.95 n).
        over_10us, over_1ms: How many are longer.
    """

    count: int
    total_ns: int
    median_ns: float
    p95_ns: int
    max_ns: int
    over_10us: int
    over_1ms: int


def gap_figures(device: DeviceTime) -> GapFigures | Unknown:
    """Return the figures of the gaps between kernels, `Unknown` where there are fewer than two kernels apart."""
    length = device.gaps.end_ns - device.gaps.start_ns
    if not length.size:
        return Unknown("there is no gap between kernels")
    rank = -(-length.size * 95 // 100) - 1
    low, high = (length.size - 1) // 2, length.size // 2
    length.partition(sorted({low, high, rank}))  # a sort would be slower, and only these are asked for
    return GapFigures(
        count=int(length.size), total_ns=int(length.sum()), median_ns=(int(length[low]) + int(length[high])) / 2,
        p95_ns=int(length[rank]), max_ns=int(length.max()), over_10us=int((length > 10_000).sum()),
        over_1ms=int((length > 1_000_000).sum()),
    )  # fmt: skip


def device_times(
    timeline: Timeline,
    *,
    rules: Rules | None = None,
    launches: Launches | None = None,
    devices: Sequence[int] | None = None,
) -> list[DeviceTime]:
    """Return busy and idle time of each device that did any work.

    Args:
        timeline: The profile, or a window of it.
        rules: Rules of kernel categories; None takes the shipped ones.
        launches: Joined launches, where they are at hand.
        devices: Indices; None takes every device that did work.
    """
    return list(each_device_time(timeline, rules=rules, launches=launches, devices=devices))


def each_device_time(
    timeline: Timeline,
    *,
    rules: Rules | None = None,
    launches: Launches | None = None,
    devices: Sequence[int] | None = None,
) -> Iterator[DeviceTime]:
    """Yield what `device_times` returns, one after the other, so that the intervals of one device are held at a time.

    Args:
        timeline, rules, launches, devices: As there.
    """
    host = HostView(timeline, launches or join_launches(timeline))
    kinds = _kind_codes(timeline, rules or shipped_rules())
    chosen = timeline.used_devices if devices is None else devices
    for device in sorted(chosen, key=lambda d: (timeline.devices[d].number, d)):
        yield _one(timeline, device, kinds, host)


def _kind_codes(timeline: Timeline, rules: Rules) -> npt.NDArray[np.int8]:
    """Return for each name of the table which of `KINDS` a kernel of that name is."""
    kernels = timeline.of(Kind.KERNEL)
    codes = np.full(len(timeline.names) + 1, KINDS.index("unclassified"), dtype=np.int8)
    used = np.flatnonzero(np.bincount(kernels.name[kernels.name >= 0], minlength=1)).tolist() if len(kernels) else []
    for index in used:
        category = rules.category(timeline.names[int(index)])
        word = "communication" if category == COLLECTIVE else "unclassified" if category == UNCLASSIFIED else "compute"
        codes[index] = KINDS.index(word)
    return codes


@dataclass(frozen=True)
class WorkPart:
    """The work of one kind on one device, by start; `rows` are its rows in the table of its kind."""

    rows: Int64Array
    start_ns: Int64Array
    end_ns: Int64Array


def work_part(table: Events, device: int) -> WorkPart:
    """Return the rows of a device, by start. Only the columns that are needed are copied: profiles are large."""
    if table.device.strides == (0,) and len(table):
        rows = np.arange(len(table) if table.device[0] == device else 0)
        start, end = table.start_ns[: rows.size], table.end_ns[: rows.size]
    else:
        rows = np.flatnonzero(table.device == device)
        start, end = table.start_ns[rows], table.end_ns[rows]
    if (start[1:] < start[:-1]).any():
        order = np.argsort(start, kind="stable")
        rows, start, end = rows[order], start[order], end[order]
    return WorkPart(rows=rows, start_ns=start, end_ns=end)


def _one(timeline: Timeline, device: int, codes: npt.NDArray[np.int8], host: HostView) -> DeviceTime:
    parts = {k: work_part(timeline.of(k), device) for k in DEVICE_KINDS}
    table, part = timeline.of(Kind.KERNEL), parts[Kind.KERNEL]
    kinds = {
        "copy": _merged(parts[Kind.COPY]),
        "memset": _merged(parts[Kind.MEMSET]),
        "graph": _merged(parts[Kind.GRAPH]),
    }
    code = codes[table.name[part.rows]]
    present = np.bincount(code, minlength=len(KINDS))
    for word in ("compute", "communication", "unclassified"):
        which = KINDS.index(word)
        if present[which] == code.size:
            kinds[word] = _merged(part)
        else:
            mask = code == which
            kinds[word] = merge(part.start_ns[mask], part.end_ns[mask]) if present[which] else EMPTY
    kernels = _merged(part) if not len(kinds["graph"]) else union([_merged(part), kinds["graph"]])
    work = union([kernels, kinds["copy"], kinds["memset"]])
    idle, late = host.idle_causes(parts, kernels, work)
    return DeviceTime(
        device=device, facts=timeline.devices[device], kernel_count=int(part.rows.size),
        kernel_sum_ns=int((part.end_ns - part.start_ns).sum()), kernels=kernels, gpu_busy_ns=work.length_ns, gpu_span_ns=work.span_ns, kinds=kinds,
        idle_ns=idle, late_ns=late, streams=len(_distinct(table.stream[part.rows])),
    )  # fmt: skip


def _distinct(values: npt.NDArray[Any]) -> list[int]:
    """Return the distinct values of a column that has few."""
    found: list[int] = []
    while values.size and len(found) < 64:
        found.append(int(values[0]))
        values = values[values != values[0]]
    return found + [int(v) for v in np.unique(values)]


def _merged(part: WorkPart) -> IntervalSet:
    return merge(part.start_ns, part.end_ns)


class HostView:
    """What the host did while a device was idle."""

    def __init__(self, timeline: Timeline, launches: Launches) -> None:
        self.timeline = timeline
        self.launches = launches
        self._offsets = {}
        place = 0
        for kind in DEVICE_KINDS:
            self._offsets[kind] = place
            place += len(timeline.of(kind))
        self._rows: dict[re.Pattern[str], Int64Array] = {}
        self._waits: dict[tuple[int, ...], tuple[IntervalSet, IntervalSet]] = {}

    def idle_causes(
        self, parts: Mapping[Kind, WorkPart], kernels: IntervalSet, work: IntervalSet
    ) -> tuple[dict[str, int], int]:
        """Return the idle time by cause, and how much of the launch gaps the host was late for [ns]."""
        causes = dict.fromkeys(CAUSES, 0)
        if not len(kernels):
            return causes, 0
        inside = work.clipped(int(kernels.start_ns[0]), int(kernels.end_ns[-1]))
        causes[COPY_ONLY] = inside.length_ns - kernels.length_ns
        gaps = inside.gaps()
        if not len(gaps):
            return causes, 0
        waits = self.waits(parts)  # once: to find it takes a look at every piece of work
        late_ns = 0
        for first in range(0, len(gaps), _GAPS_AT_ONCE):
            part = slice(first, first + _GAPS_AT_ONCE)
            found, late = self.gap_causes(parts, gaps.start_ns[part], gaps.end_ns[part], waits)
            for cause, lengths in found.items():
                causes[cause] += int(lengths.sum())
            late_ns += int(late.sum())
        return causes, late_ns

    def gap_causes(
        self,
        parts: Mapping[Kind, WorkPart],
        start_ns: Int64Array,
        end_ns: Int64Array,
        waits: tuple[IntervalSet, IntervalSet],
    ) -> tuple[dict[str, Int64Array], Int64Array]:
        """Return each gap by cause, and what of it is a launch gap that the host was late for [ns].

        Args:
            parts: The work of the device.
            start_ns, end_ns: Gaps in which nothing runs, by start [ns].
            waits: What `waits` returns.
        """
        sync, inputs = waits
        launch, late = self.launch_gaps(parts, start_ns, end_ns)
        hosts = ~self.queued_gaps(parts, start_ns, end_ns)
        in_sync = np.where(hosts, sync.covered_ns(start_ns, end_ns), 0)
        in_input = np.zeros(start_ns.size, dtype=np.int64)
        if len(inputs):
            in_input = np.where(hosts, union([sync, inputs]).covered_ns(start_ns, end_ns) - in_sync, 0)
        rest = end_ns - start_ns - in_sync - in_input
        causes = {
            HOST_SYNC: in_sync, INPUT_WAIT: in_input, LAUNCH_GAP: np.where(launch, rest, 0),
            UNEXPLAINED: np.where(launch, 0, rest),
        }  # fmt: skip
        return causes, np.where(launch & late, rest, 0)

    def launch_gaps(
        self, parts: Mapping[Kind, WorkPart], start_ns: Int64Array, end_ns: Int64Array
    ) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """Return which gaps are launch gaps, and in which the host had not yet called for the work after them."""
        call = self.next_call(parts, end_ns)
        known = call != NONE
        late = np.zeros(call.size, dtype=bool)
        late[known] = self.launches.calls.start_ns[call[known]] >= start_ns[known]
        return known & (late | (end_ns - start_ns <= QUEUED_GAP_NS)), late

    def queued_gaps(
        self, parts: Mapping[Kind, WorkPart], start_ns: Int64Array, end_ns: Int64Array
    ) -> npt.NDArray[np.bool_]:
        """Return in which gaps the call for the work after them had returned before they began.

        What the host does in such a gap, waiting included, keeps nothing from the device: it waits with the device.
        """
        call = self.next_call(parts, end_ns)
        known = call != NONE
        queued = np.zeros(call.size, dtype=bool)
        queued[known] = self.launches.calls.end_ns[call[known]] <= start_ns[known]
        return queued

    def next_call(self, parts: Mapping[Kind, WorkPart], start_ns: Int64Array) -> Int64Array:
        """Return the row of the call for the work that starts at each of these times, -1 where not known."""
        found = np.full(start_ns.size, NONE, dtype=np.int64)
        if not len(self.launches.calls):
            return found
        for kind, part in parts.items():
            if not part.rows.size:
                continue
            place = np.minimum(np.searchsorted(part.start_ns, start_ns), part.rows.size - 1)
            call = self.launches.call[self._offsets[kind] + part.rows[place]]
            hit = (part.start_ns[place] == start_ns) & (call >= 0) & (found == NONE)
            found[hit] = call[hit]
        return found

    def waits(self, parts: Mapping[Kind, WorkPart]) -> tuple[IntervalSet, IntervalSet]:
        """Return when a host thread of the processes that use the device waits in a synchronisation, and for input."""
        processes: set[int] = set()
        for kind, part in parts.items():
            column = self.timeline.of(kind).process
            if part.rows.size:
                processes |= {int(column[0])} if column.strides == (0,) else set(_distinct(column[part.rows]))
        key = tuple(sorted(processes))
        if key not in self._waits:
            self._waits[key] = (union([self._sync_rows(key), self._calls(key)]), self._input_ranges(key))
        return self._waits[key]

    def _sync_rows(self, processes: tuple[int, ...]) -> IntervalSet:
        table = self.timeline.of(Kind.SYNC)
        if not len(table):
            return EMPTY
        mask = _among(table.process, processes)
        if "sync_kind" in table.extras:
            mask &= table.extras["sync_kind"] != _STREAM_WAIT
        return merge(table.start_ns[mask], table.end_ns[mask])

    def _calls(self, processes: tuple[int, ...]) -> IntervalSet:
        return self._named(self.launches.calls, processes, _SYNC_CALL)

    def _input_ranges(self, processes: tuple[int, ...]) -> IntervalSet:
        return self._named(self.timeline.of(Kind.ANNOTATION), processes, _INPUT_RANGE)

    def _named(self, table: Events, processes: tuple[int, ...], pattern: re.Pattern[str]) -> IntervalSet:
        if not len(table):
            return EMPTY
        rows = self._rows_named(table, pattern)
        rows = rows[_among(table.process[rows], processes)]
        return merge(table.start_ns[rows], table.end_ns[rows])

    def _rows_named(self, table: Events, pattern: re.Pattern[str]) -> Int64Array:
        """Return the rows whose name has the pattern; the same for every device, so found once."""
        if pattern not in self._rows:
            counts = (
                np.bincount(table.name, minlength=1) if int(table.name.min()) >= 0 else np.bincount(table.name + 1)[1:]
            )
            flags = np.zeros(len(self.timeline.names) + 1, dtype=np.bool_)
            flags[[int(i) for i in np.flatnonzero(counts) if pattern.search(self.timeline.names[int(i)])]] = True
            self._rows[pattern] = np.flatnonzero(flags[table.name]) if flags.any() else np.zeros(0, dtype=np.int64)
        return self._rows[pattern]


def _among(process: npt.NDArray[np.int32], wanted: tuple[int, ...]) -> npt.NDArray[np.bool_]:
    """Which rows belong to these processes; a row of unknown process may belong to any."""
    mask: npt.NDArray[np.bool_] = process == NONE
    for value in wanted:
        mask |= (process == value) if value != NONE else np.ones(process.size, dtype=np.bool_)
    return mask
