"""A recorded profile of a device as a run: its kernels as operations with demands, its idle time as waits with causes.

So a profile of any format is diagnosed by the same code as a program that was run here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from mansard.core import Demand, Unknown
from mansard.core.grouping import groups
from mansard.core.intervals import EMPTY, IntervalSet, difference, intersection, merge, union
from mansard.diagnose.links import UNKNOWN_HOST, Links
from mansard.diagnose.profile_kernels import kernel_kinds
from mansard.diagnose.profile_parts import parts_of_work
from mansard.trace.categories import Rules, shipped_rules
from mansard.trace.collectives_of import CollectiveKinds, collective_kinds
from mansard.trace.idle import Idle, host_calls, idle_of
from mansard.trace.kernels import graph_findings, graphs
from mansard.trace.operators_of import Operators, operators_of
from mansard.trace.profile_steps import ProfileSteps
from mansard.trace.run import Finding, Operator, Part, RunTrace, Steps, WaitCause
from mansard.trace.timeline import CopyKind, Events, Kind, Timeline
from mansard.trace.torch_parts import PARTS

Int64Array = npt.NDArray[np.int64]

FRAMEWORK = "profile"
#: A device that waits longer than this for one call of the host does not wait for a launch.
LONGEST_DISPATCH_NS = 1_000_000
#: Up to so many pieces of work in all, which fill less than this share of the time, and calls and operators in less than this share of
#: the idle time before them: such a file may hold a part of the events alone, and does not tell what the device waited for.
FEW_PIECES = 8
LITTLE_SEEN = 0.01
_HOST_COPIES = (CopyKind.HOST_TO_DEVICE, CopyKind.DEVICE_TO_HOST, CopyKind.HOST_TO_ARRAY, CopyKind.ARRAY_TO_HOST,
                CopyKind.UNIFIED_HOST_TO_DEVICE, CopyKind.UNIFIED_DEVICE_TO_HOST)  # fmt: skip
_DEVICE_COPIES = (
    CopyKind.DEVICE_TO_DEVICE,
    CopyKind.ARRAY_TO_ARRAY,
    CopyKind.ARRAY_TO_DEVICE,
    CopyKind.DEVICE_TO_ARRAY,
)


@dataclass(slots=True)
class _Rows:
    """Operations in the making; columns of one table each."""

    code: list[npt.NDArray[np.int32]] = field(default_factory=list)
    start: list[Int64Array] = field(default_factory=list)
    end: list[Int64Array] = field(default_factory=list)
    lane: list[Int64Array] = field(default_factory=list)
    operators: list[Operator] = field(default_factory=list)

    def add(self, events: Events, rows: Int64Array, inverse: npt.NDArray[np.int64], kinds: Sequence[Operator]) -> None:
        self.code.append((inverse + len(self.operators)).astype(np.int32))
        self.start.append(events.start_ns[rows].astype(np.int64))
        self.end.append(events.end_ns[rows].astype(np.int64))
        self.lane.append(events.stream[rows].astype(np.int64))
        self.operators += kinds


def run_of_profile(
    timeline: Timeline,
    device: int,
    *,
    steps: ProfileSteps,
    links: Links | None = None,
    operators: Operators | None = None,
    collectives: CollectiveKinds | None = None,
    parts: npt.NDArray[np.int8] | None = None,
    idle: Idle | None = None,
    calls: IntervalSet | None = None,
    rules: Rules | None = None,
) -> RunTrace:
    """Return what one device of a profile did as a run.

    Kernels have the demand that `trace.kernel_demand` gave them. A collective's demand is the bytes that each device must
    send. What nothing tells is `Unknown`, and stays so.

    Args:
        timeline: The profile, or a window of it, with demand columns where anything tells.
        device: Index of the device.
        steps: Its steps.
        links: What its copies and collectives go over.
        operators, collectives, parts: Where they are at hand.
        idle, calls: Its idle intervals by cause between these steps, and when the host was in a call; where they are at hand.
        rules: Categories of kernel names.
    """
    rules = rules or shipped_rules()
    links = links or Links()
    operators = operators or operators_of(timeline)
    known = collectives if collectives is not None else collective_kinds(timeline, operators=operators, rules=rules)
    part = parts if parts is not None else parts_of_work(timeline, operators)
    rows = _Rows()
    found = kernel_kinds(timeline, device, operators, known, links, rules, part)
    rows.add(timeline.of(Kind.KERNEL), found.rows, found.kind, found.operators)
    _copies(rows, timeline, device, links, _part_of(operators, part, Kind.COPY))
    _fills(rows, timeline, device, _part_of(operators, part, Kind.MEMSET))
    _graphs(rows, timeline, device)
    start, end = (np.concatenate(c) if c else np.zeros(0, dtype=np.int64) for c in (rows.start, rows.end))
    lanes = np.concatenate(rows.lane) if rows.lane else np.zeros(0, dtype=np.int64)
    kept = steady(steps)
    hidden = graphs(timeline, operators.launches)
    if idle is None:
        idle = idle_of(timeline, device, launches=operators.launches, window_ns=span_of(kept))
    calls = host_calls(timeline) if calls is None else calls
    busy = merge(start, end)
    unreliable = hidden.kernels_missing or host_unseen(idle, calls, kept, start, end)
    waits, dispatch = _idle_time(idle, calls, kept, busy, unreliable=unreliable)
    name = timeline.devices[device].name
    return RunTrace(
        framework=FRAMEWORK,
        operators=tuple(rows.operators),
        op=np.concatenate(rows.code) if rows.code else np.zeros(0, dtype=np.int32),
        start_ns=start,
        end_ns=end,
        lane=groups([lanes])[1].astype(np.int32),
        dispatch_start_ns=dispatch.start_ns,
        dispatch_end_ns=dispatch.end_ns,
        wait_start_ns=np.concatenate([s.start_ns for _, s in waits]),
        wait_end_ns=np.concatenate([s.end_ns for _, s in waits]),
        wait_cause=tuple(cause for cause, s in waits for _ in range(len(s))),
        steps=kept,
        window_ns=(int(start.min()), int(end.max())) if start.size else (0, 1),
        scope="device",
        threads=2,  # the scope of its operations is stated, whatever the host computes with
        devices=("" if isinstance(name, Unknown) else str(name),),
        environment={**timeline.environment, "format": timeline.format, "version": timeline.version},
        findings=(
            *timeline.findings,
            *graph_findings(hidden),
            *(Finding(code=d.code, text=d.text) for d in timeline.damage),
        ),
    )


def steady(steps: ProfileSteps) -> Steps:
    """Return the steps of a profile without those that warm up."""
    skip = steps.warm_up if steps.count > steps.warm_up else 0
    return Steps(
        start_ns=steps.start_ns[skip:], end_ns=steps.end_ns[skip:], source=steps.source, skipped=skip, note=steps.note
    )


def span_of(steps: Steps) -> tuple[int, int] | None:
    """Return the time from the first start of the steps to their last end [ns]; None where there are none."""
    return (int(steps.start_ns[0]), int(steps.end_ns[-1])) if steps.count else None


def _part_of(operators: Operators, part: npt.NDArray[np.int8], kind: Kind) -> npt.NDArray[np.int8]:
    """Return the parts of the work of one kind, in the order of its table."""
    found: npt.NDArray[np.int8] = part[operators.launches.kind == int(kind)]
    return found


def host_unseen(idle: Idle, calls: IntervalSet, steps: Steps, start_ns: Int64Array, end_ns: Int64Array) -> bool:
    """Return whether too little of the host was recorded to say that a device waited for it.

    Args:
        idle: Idle intervals of the device by cause.
        calls: When the host was in a call or an operator.
        steps: The steps; without any, all of the profile counts.
        start_ns, end_ns: When each piece of work of the device ran [ns].
    """
    late, busy, pieces = idle.late, merge(start_ns, end_ns), int(start_ns.size)
    span_ns = busy.span_ns
    if steps.count:
        inside = merge(steps.start_ns, steps.end_ns)
        late, busy, span_ns = intersection(late, inside), intersection(busy, inside), inside.length_ns
        pieces = int(inside.covered_ns(start_ns, start_ns + 1).sum())
    few = pieces <= FEW_PIECES and busy.length_ns < LITTLE_SEEN * span_ns
    return few and intersection(late, calls).length_ns < LITTLE_SEEN * late.length_ns


def _idle_time(
    idle: Idle, calls: IntervalSet, steps: Steps, busy: IntervalSet, *, unreliable: bool
) -> tuple[list[tuple[WaitCause, IntervalSet]], IntervalSet]:
    """Return the waits of a device by cause, and what starting queued work cost.

    Time inside the steps that no work and no recorded idle time covers, such as what lies before the first kernel of the
    capture, has no known cause. Where kernels of graphs are missing, or next to nothing of the host was recorded, no idle time has one.
    """
    busy_host = intersection(idle.late, calls)
    long = busy_host.end_ns - busy_host.start_ns > LONGEST_DISPATCH_NS
    in_call = IntervalSet(start_ns=busy_host.start_ns[long], end_ns=busy_host.end_ns[long])
    dispatch = union([idle.queued, difference(busy_host, in_call)])
    sets = {
        WaitCause.CALL: in_call,
        WaitCause.SYNC: idle.host_sync,
        WaitCause.INPUT: idle.input_wait,
        WaitCause.PYTHON: difference(idle.late, calls),
        WaitCause.UNEXPLAINED: idle.unexplained,
    }
    if unreliable:
        sets = {**dict.fromkeys(sets, EMPTY), WaitCause.UNEXPLAINED: union([dispatch, *sets.values()])}
        dispatch = EMPTY
    if steps.count:
        covered = union([busy, dispatch, *sets.values()])
        rest = difference(merge(steps.start_ns, steps.end_ns), covered)
        sets[WaitCause.UNEXPLAINED] = union([sets[WaitCause.UNEXPLAINED], rest])
    return list(sets.items()), dispatch


def _operator(name: str, category: str, part: int, shapes: str, demand: Demand | Unknown, how: str) -> Operator:
    return Operator(
        name=name, category=category, part=PARTS[part], shapes=shapes, demand=demand, scope="device", formula=how
    )


def _copies(rows: _Rows, timeline: Timeline, device: int, links: Links, part: npt.NDArray[np.int8]) -> None:
    table = timeline.of(Kind.COPY)
    mine = np.flatnonzero((table.device == device) & (table.end_ns > table.start_ns))
    if not mine.size:
        return
    paged = np.array(["pageable" in n.lower() for n in timeline.names] + [False], dtype=np.int64)[table.name[mine]]
    columns = (table.copy_kind[mine], table.nbytes[mine], part[mine], paged)
    first, inverse = groups(columns)
    kinds = []
    for kind, size, of, pageable in zip(*(c[first].tolist() for c in columns), strict=True):
        way = CopyKind(kind) if kind in CopyKind._value2member_map_ else CopyKind.UNKNOWN
        words = way.name.lower().replace("_", " ")
        demand = _copy_demand(way, size, links)
        how = f"{words}, pageable memory" if pageable else words
        kinds.append(_operator(f"copy {words}", "copy", of, f"{size} B" if size >= 0 else "", demand, how))
    rows.add(table, mine, inverse, kinds)


def _copy_demand(way: CopyKind, size: int, links: Links) -> Demand | Unknown:
    if size < 0:
        return Unknown("the size of this copy is not recorded")
    if way in _HOST_COPIES:
        # Its bytes are known whatever is known of the link: a rate can be shown, and a share asks for the ceiling.
        return Demand(link_bytes={links.host or UNKNOWN_HOST: float(size)})
    if way in _DEVICE_COPIES:
        return Demand(read_bytes=float(size), write_bytes=float(size))
    if way is CopyKind.PEER_TO_PEER and links.peer is not None:
        return Demand(link_bytes={links.peer: float(size)})
    return Unknown(f"what a copy {way.name.lower()} goes over is not known")


def _fills(rows: _Rows, timeline: Timeline, device: int, part: npt.NDArray[np.int8]) -> None:
    table = timeline.of(Kind.MEMSET)
    mine = np.flatnonzero((table.device == device) & (table.end_ns > table.start_ns))
    if not mine.size:
        return
    columns = (table.nbytes[mine], part[mine])
    first, inverse = groups(columns)
    kinds = []
    for size, of in zip(*(c[first].tolist() for c in columns), strict=True):
        demand = Demand(write_bytes=float(size)) if size >= 0 else Unknown("the size of this fill is not recorded")
        kinds.append(_operator("fill", "fill", of, f"{size} B" if size >= 0 else "", demand, "written once"))
    rows.add(table, mine, inverse, kinds)


def _graphs(rows: _Rows, timeline: Timeline, device: int) -> None:
    table = timeline.of(Kind.GRAPH)
    mine = np.flatnonzero((table.device == device) & (table.end_ns > table.start_ns))
    if not mine.size:
        return
    opaque = Unknown("the kernels of this graph were not recorded", ("a profile with --cuda-graph-trace=node",))
    kind = _operator("graph", "graph", PARTS.index(Part.OTHER), "", opaque, "")
    rows.add(table, mine, np.zeros(mine.size, dtype=np.int64), [kind])
