"""A recorded profile of a device as a run: its kernels as operations with demands, its idle time as waits with causes.

So a profile of any format is diagnosed by the same code as a program that was run here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from mansard.core import Demand, Unknown
from mansard.core.intervals import IntervalSet, difference, intersection
from mansard.trace.categories import Rules, shipped_rules, short_name
from mansard.trace.collectives_of import CollectiveCall, bus_factor, collectives_of
from mansard.trace.idle import host_calls, idle_of
from mansard.trace.operators_of import Operators, operators_of
from mansard.trace.profile_steps import ProfileSteps
from mansard.trace.run import Finding, Operator, Part, RunTrace, Steps, WaitCause
from mansard.trace.timeline import CopyKind, Events, Kind, Timeline

Int64Array = npt.NDArray[np.int64]

FRAMEWORK = "profile"
NO_DEMAND = Unknown(
    "nothing tells what this kernel computes",
    ("a profile with recorded shapes (record_shapes=True), --ncu FILE, or --model config.json",),
)
_HOST_COPIES = (CopyKind.HOST_TO_DEVICE, CopyKind.DEVICE_TO_HOST, CopyKind.HOST_TO_ARRAY, CopyKind.ARRAY_TO_HOST,
                CopyKind.UNIFIED_HOST_TO_DEVICE, CopyKind.UNIFIED_DEVICE_TO_HOST)  # fmt: skip
_DEVICE_COPIES = (
    CopyKind.DEVICE_TO_DEVICE,
    CopyKind.ARRAY_TO_ARRAY,
    CopyKind.ARRAY_TO_DEVICE,
    CopyKind.DEVICE_TO_ARRAY,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """Names of the links that bytes of a profile go over; None where that is not known.

    Args:
        host: Between host and device.
        peer: Between devices of one node.
        network: Between nodes.
        node_devices: Devices of a node; None where not known.
    """

    host: str | None = None
    peer: str | None = None
    network: str | None = None
    node_devices: int | None = None

    def of_group(self, ranks: Sequence[int], size: int | Unknown) -> str | Unknown:
        """Return the slowest link that a group of ranks must use, if ranks are numbered node by node."""
        if isinstance(size, Unknown):
            return size
        if self.node_devices is None:
            return Unknown("how many devices a node has is not known", ("--node-devices N",))
        nodes = {r // self.node_devices for r in ranks}
        if size > self.node_devices or len(nodes) > 1:
            return self.network or Unknown("the rate of the network between nodes is not known", ("--network-rate",))
        if ranks or size == self.node_devices:
            return self.peer or Unknown("the link between devices is not known", ("--hardware",))
        return Unknown(
            "whether the ranks of this group share a node is not recorded",
            ("a profile with 'Process Group Ranks', or --network-rate",),
        )


#: Demand of kernels that a model or a counter tells: (category or kernel name, demand of one call, how it was counted).
Known = Mapping[str, tuple[Demand, str]]


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
    counted: Known | None = None,
    operators: Operators | None = None,
    collectives: Sequence[CollectiveCall] | None = None,
    rules: Rules | None = None,
) -> RunTrace:
    """Return what one device of a profile did as a run.

    Kernels of an operator with recorded inputs share its demand in proportion to their time, which conserves it. A
    collective's demand is the bytes that each device must send. What nothing tells is `Unknown`, and stays so.

    Args:
        timeline: The profile, or a window of it.
        device: Index of the device.
        steps: Its steps.
        links: What its copies and collectives go over.
        counted: Demand of one call by kernel name, from counters; it wins over shapes.
        operators, collectives: Where they are at hand.
        rules: Categories of kernel names.
    """
    rules = rules or shipped_rules()
    links = links or Links()
    operators = operators or operators_of(timeline)
    known = collectives if collectives is not None else collectives_of(timeline, operators=operators, rules=rules)
    rows = _Rows()
    _kernels(rows, timeline, device, operators, {c.row: c for c in known}, links, counted or {}, rules)
    _copies(rows, timeline, device, links)
    _fills(rows, timeline, device)
    _graphs(rows, timeline, device)
    empty = np.zeros(0, dtype=np.int64)
    start, end = (np.concatenate(c) if c else empty for c in (rows.start, rows.end))
    lanes = np.concatenate(rows.lane) if rows.lane else empty
    lane = np.unique(lanes, return_inverse=True)[1] if lanes.size else empty
    idle = idle_of(timeline, device, launches=operators.launches)
    calls = host_calls(timeline)
    late_in_calls = intersection(idle.late, calls)
    late_outside = difference(idle.late, calls)
    waits = [
        (WaitCause.SYNC, idle.host_sync),
        (WaitCause.INPUT, idle.input_wait),
        (WaitCause.PYTHON, late_outside),
        (WaitCause.UNEXPLAINED, idle.unexplained),
    ]
    skip = steps.warm_up if steps.count > steps.warm_up else 0
    return RunTrace(
        framework=FRAMEWORK,
        operators=tuple(rows.operators),
        op=np.concatenate(rows.code) if rows.code else np.zeros(0, dtype=np.int32),
        start_ns=start,
        end_ns=end,
        lane=lane.astype(np.int32),
        dispatch_start_ns=_joined(idle.queued, late_in_calls)[0],
        dispatch_end_ns=_joined(idle.queued, late_in_calls)[1],
        wait_start_ns=np.concatenate([s.start_ns for _, s in waits]),
        wait_end_ns=np.concatenate([s.end_ns for _, s in waits]),
        wait_cause=tuple(cause for cause, s in waits for _ in range(len(s))),
        steps=Steps(
            start_ns=steps.start_ns[skip:],
            end_ns=steps.end_ns[skip:],
            source=steps.source,
            skipped=skip,
            note=steps.note,
        ),
        window_ns=(int(start.min()), int(end.max())) if start.size else (0, 1),
        scope="device",
        threads=2,  # the scope of its operations is stated, whatever the host computes with
        devices=(str(timeline.devices[device].name) if not isinstance(timeline.devices[device].name, Unknown) else "",),
        environment={**timeline.environment, "format": timeline.format, "version": timeline.version},
        findings=(*timeline.findings, *(Finding(code=d.code, text=d.text) for d in timeline.damage)),
    )


def _joined(*sets: IntervalSet) -> tuple[Int64Array, Int64Array]:
    return np.concatenate([s.start_ns for s in sets]), np.concatenate([s.end_ns for s in sets])


def _kernels(
    rows: _Rows,
    timeline: Timeline,
    device: int,
    operators: Operators,
    collectives: Mapping[int, CollectiveCall],
    links: Links,
    counted: Known,
    rules: Rules,
) -> None:
    """Add the kernels: one kind for each name, launching operator with its inputs, and collective with its size."""
    table = timeline.of(Kind.KERNEL)
    mine = np.flatnonzero((table.device == device) & (table.end_ns > table.start_ns))
    if not mine.size:
        return
    in_work = np.flatnonzero(operators.launches.kind == int(Kind.KERNEL))
    owner = operators.owner_of_work[in_work][mine] if in_work.size else np.full(mine.size, -1)
    shape = np.where(owner >= 0, operators.code[owner] if operators.code.size else -1, -1)
    extra = np.zeros(mine.size, dtype=np.int64)
    talks: dict[tuple[object, ...], int] = {}
    examples: list[CollectiveCall] = []
    for place, row in enumerate(mine.tolist()):
        call = collectives.get(row) if collectives else None
        if call is not None:
            key = (call.operation, call.ranks, str(call.group_size), str(call.message_bytes))
            if key not in talks:
                talks[key] = len(talks) + 1
                examples.append(call)
            extra[place] = talks[key]
    wide = int(shape.max()) + 2
    joint = (table.name[mine].astype(np.int64) * wide + shape + 1) * (len(talks) + 1) + extra
    keys, first, inverse = np.unique(joint, return_index=True, return_inverse=True)
    inverse = inverse.reshape(-1)
    shares = _shares(operators, owner, shape, inverse, (table.end_ns - table.start_ns)[mine], keys.size)
    kinds = []
    for index, place in enumerate(first.tolist()):
        name = timeline.names[int(table.name[mine[place]])]
        if extra[place]:
            kinds.append(_collective(name, examples[int(extra[place]) - 1], links))
        elif name in counted:
            demand, how = counted[name]
            kinds.append(_operator(name, rules.category(name), "", demand, how))
        else:
            kinds.append(_computing(name, rules.category(name), operators, int(shape[place]), float(shares[index])))
    rows.add(table, mine, inverse, kinds)


def _shares(
    operators: Operators,
    owner: Int64Array,
    shape: Int64Array,
    kind: npt.NDArray[np.int64],
    length: Int64Array,
    kinds: int,
) -> npt.NDArray[np.float64]:
    """Return what part of one operator call's demand one kernel of each kind does.

    Kernels that an operator with the same inputs launched share its demand by their time: calls x (time of the kind /
    time of all of them) / kernels of the kind.
    """
    out = np.ones(kinds)
    known = owner >= 0
    if not known.any():
        return out
    time = np.bincount(kind, length, minlength=kinds)
    count = np.bincount(kind, minlength=kinds)
    calls = np.zeros(int(shape.max()) + 1)
    whole = np.zeros(int(shape.max()) + 1)
    seen = np.unique(owner[known])
    np.add.at(calls, operators.code[seen], 1)
    np.add.at(whole, shape[known], length[known])
    shape_of = np.full(kinds, -1, dtype=np.int64)
    shape_of[kind] = shape
    rows = np.flatnonzero((shape_of >= 0) & (count > 0))
    out[rows] = calls[shape_of[rows]] * time[rows] / np.maximum(whole[shape_of[rows]], 1) / count[rows]
    return out


def _computing(name: str, category: str, operators: Operators, shape: int, share: float) -> Operator:
    if shape < 0:
        return _operator(name, category, "", NO_DEMAND, "")
    call, cost = operators.kinds[shape]
    from mansard.trace.torch_tree import shapes_text

    demand = cost.demand if isinstance(cost.demand, Unknown) else cost.demand.scaled(share)
    how = cost.formula if share == 1.0 else f"{share:.3g} of {call.name}, by its part of the time: {cost.formula}"
    full = cost.full_square_flop * share if cost.full_square_flop is not None else None
    return replace(_operator(name, category, shapes_text(call), demand, how), source=call.name, full_square_flop=full)


def _collective(name: str, call: CollectiveCall, links: Links) -> Operator:
    link = links.of_group(call.ranks, call.group_size)
    sent = call.message_bytes * bus_factor(call.operation, call.group_size)
    demand: Demand | Unknown
    if isinstance(sent, Unknown):
        demand = sent
    elif isinstance(link, Unknown):
        demand = link
    else:
        demand = Demand(link_bytes={link: sent})
    ranks = "" if isinstance(call.group_size, Unknown) else f"{call.group_size} ranks"
    how = f"{call.operation}: S x bus factor, as NCCL defines them; {ranks}"
    size = "" if isinstance(call.message_bytes, Unknown) else f"{call.message_bytes:.0f} B, {ranks}"
    return replace(_operator(name, "collective", size, demand, how), source=call.operation)


def _operator(name: str, category: str, shapes: str, demand: Demand | Unknown, how: str) -> Operator:
    plain = name if category in ("copy", "fill", "graph") else short_name(name)
    return Operator(
        name=plain, category=category, part=Part.OTHER, shapes=shapes, demand=demand, scope="device", formula=how
    )  # fmt: skip


def _copies(rows: _Rows, timeline: Timeline, device: int, links: Links) -> None:
    table = timeline.of(Kind.COPY)
    mine = np.flatnonzero((table.device == device) & (table.end_ns > table.start_ns))
    if not mine.size:
        return
    pairs = np.stack([table.copy_kind[mine].astype(np.int64), table.nbytes[mine].astype(np.int64)], axis=1)
    keys, inverse = np.unique(pairs, axis=0, return_inverse=True)
    kinds = []
    for kind, size in keys.tolist():
        way = CopyKind(kind) if kind in CopyKind._value2member_map_ else CopyKind.UNKNOWN
        words = way.name.lower().replace("_", " ")
        kinds.append(
            _operator(f"copy {words}", "copy", f"{size} B" if size >= 0 else "", _copy_demand(way, size, links), words)
        )
    rows.add(table, mine, inverse.reshape(-1), kinds)


def _copy_demand(way: CopyKind, size: int, links: Links) -> Demand | Unknown:
    if size < 0:
        return Unknown("the size of this copy is not recorded")
    if way in _HOST_COPIES:
        if links.host is None:
            return Unknown("the link between host and device is not known", ("--hardware",))
        return Demand(link_bytes={links.host: float(size)})
    if way in _DEVICE_COPIES:
        return Demand(read_bytes=float(size), write_bytes=float(size))
    if way is CopyKind.PEER_TO_PEER and links.peer is not None:
        return Demand(link_bytes={links.peer: float(size)})
    return Unknown(f"what a copy {way.name.lower()} goes over is not known")


def _fills(rows: _Rows, timeline: Timeline, device: int) -> None:
    table = timeline.of(Kind.MEMSET)
    mine = np.flatnonzero((table.device == device) & (table.end_ns > table.start_ns))
    if not mine.size:
        return
    sizes, inverse = np.unique(table.nbytes[mine], return_inverse=True)
    kinds = [
        _operator("fill", "fill", f"{size} B" if size >= 0 else "",
                  Demand(write_bytes=float(size)) if size >= 0 else Unknown("the size of this fill is not recorded"), "written once")
        for size in sizes.tolist()
    ]  # fmt: skip
    rows.add(table, mine, inverse.reshape(-1), kinds)


def _graphs(rows: _Rows, timeline: Timeline, device: int) -> None:
    table = timeline.of(Kind.GRAPH)
    mine = np.flatnonzero((table.device == device) & (table.end_ns > table.start_ns))
    if not mine.size:
        return
    opaque = Unknown("the kernels of this graph were not recorded", ("a profile with --cuda-graph-trace=node",))
    rows.add(table, mine, np.zeros(mine.size, dtype=np.int64), [_operator("graph", "graph", "", opaque, "")])
