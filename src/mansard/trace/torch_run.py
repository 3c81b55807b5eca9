"""From a recorded PyTorch program to a `RunTrace`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.core import Unknown
from mansard.core.errors import UndecidedError
from mansard.trace.aten import AtenCost
from mansard.trace.aten.collective_ops import group_of, is_backend_range
from mansard.trace.readers.kineto import KinetoTrace, read_kineto
from mansard.trace.recorders.torch_lists import LISTS_FILE
from mansard.trace.run import Finding, Operator, Part, RunTrace, WaitCause
from mansard.trace.steps import Found, LaneOrder, Window, find_steps, windows_of
from mansard.trace.torch_device import DeviceWork, device_work, has_device_work
from mansard.trace.torch_parts import settle_parts
from mansard.trace.torch_tree import HOST_CATEGORIES, Emitted, Kinds, emit, unknown_cost

Int64Array = npt.NDArray[np.int64]

_UNMARKED = Finding(
    code="recompute_unmarked",
    text="This build of PyTorch does not let recomputation be marked: what non-reentrant checkpointing executes again counts as "
    "model FLOP.",
)


def load_torch_run(directory: Path, meta: Mapping[str, Any]) -> RunTrace:
    """Load the profiled windows of a recording.

    Args:
        directory: The recording.
        meta: Its facts.

    Raises:
        InputError: A file cannot be read.
        UndecidedError: No window was profiled.
    """
    windows = [w for w in windows_of(meta) if w.kind == "profiled" and w.files.get("torch")]
    if not windows:
        raise UndecidedError("The recording holds no profiled window of PyTorch.", code="nothing_profiled")
    parts = [_read_window(directory, window) for window in windows]
    return run_of(parts, meta)


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One profiled window, its file's events, and the lists of tensors that the file leaves incomplete."""

    trace: KinetoTrace
    window_ns: tuple[int, int]
    lists: Mapping[str, Any] = field(default_factory=dict)


def _read_window(directory: Path, window: Window) -> Piece:
    name = window.files["torch"][0]
    folder = directory / window.directory / "torch"
    lists = folder / LISTS_FILE
    return Piece(
        trace=read_kineto(folder / name),
        window_ns=(window.start_ns, window.end_ns),
        lists=json.loads(lists.read_text(encoding="utf-8")) if lists.is_file() else {},
    )


@dataclass(slots=True)
class _Columns:
    """Operations of all windows; parallel lists."""

    operator: list[int] = field(default_factory=list)
    start_ns: list[int] = field(default_factory=list)
    end_ns: list[int] = field(default_factory=list)
    lane: list[int] = field(default_factory=list)
    events: list[int] = field(default_factory=list)
    frames: list[int] = field(default_factory=list)
    dispatch: list[tuple[int, int]] = field(default_factory=list)
    waits: list[tuple[int, int, WaitCause]] = field(default_factory=list)


class _Operators:
    """Numbers distinct operators."""

    def __init__(self) -> None:
        self.table: list[Operator] = []
        self._codes: dict[tuple[int, Part, bool, bool], int] = {}
        self._by_value: dict[tuple[str, str, Part, str], int] = {}

    def of_kind(self, kinds: Kinds, kind: int, part: Part, *, device: bool, recompute: bool) -> int:
        """Return the operator of a kind of event in a part of the step."""
        key = (kind, part, device, recompute)
        number = self._codes.get(key)
        if number is None:
            one = kinds.table[kind]
            cost = one.cost if one.cost is not None else unknown_cost(one.name)
            operator = Operator(
                name=one.name,
                category=cost.category,
                part=part,
                shapes=one.shapes,
                demand=cost.demand,
                scope="device" if device else cost.scope,
                fresh_bytes=cost.fresh_bytes,
                formula=cost.formula,
                full_square_flop=cost.full_square_flop,
                recompute=recompute,
                link=_link_of(cost),
            )
            number = self._codes[key] = self._add(operator)
        return number

    def add(self, operator: Operator) -> int:
        """Return the number of an operator made elsewhere, one number for equal name, shapes, part and scope."""
        key = (operator.name, operator.shapes, operator.part, operator.scope)
        if key not in self._by_value:
            self._by_value[key] = self._add(operator)
        return self._by_value[key]

    def _add(self, operator: Operator) -> int:
        self.table.append(operator)
        return len(self.table) - 1


def _link_of(cost: AtenCost) -> str | None:
    """Return the link that an operator sends over; None where it sends nothing, or its demand is not known."""
    return None if isinstance(cost.demand, Unknown) else next(iter(cost.demand.link_bytes), None)


def run_of(pieces: Sequence[Piece], meta: Mapping[str, Any]) -> RunTrace:
    """Return the run that the events of one or more profiled windows tell.

    Args:
        pieces: The windows.
        meta: The recording's facts.
    """
    group = group_of(meta["frameworks"].get("torch", {}).get("distributed", {}))
    exchanges = any(is_backend_range(name) for piece in pieces for name in piece.trace.names)
    kinds, operators, columns = Kinds(group, exchanges=exchanges), _Operators(), _Columns()
    lanes: dict[tuple[str, Any, Any], int] = {}
    annotations: list[tuple[str, int, int]] = []
    main: list[tuple[int, int, int]] = []
    keys: dict[str, int] = {}
    findings: list[Finding] = []
    on_device = any(has_device_work(piece.trace) for piece in pieces)
    for piece in pieces:
        emitted = _emit_threads(piece, kinds)
        settled = settle_parts(emitted)
        if on_device:
            work = device_work(piece.trace, emitted, kinds)
            _add_device(work, settled, emitted, kinds, operators, columns, lanes)
            findings += work.findings
        else:
            work = None
        _add_host(piece, emitted, settled, work, kinds, operators, columns, lanes)
        annotations += _annotations(piece)
        main += _main_lane(emitted, kinds, keys)
        findings += [Finding(code="trace_damaged", text=f"The profile is damaged: {d}.") for d in piece.trace.damage]
    order = np.array(sorted(main), dtype=np.int64).reshape(-1, 3)
    lane = LaneOrder(start_ns=order[:, 0], end_ns=order[:, 1], key=order[:, 2])
    if meta["frameworks"].get("torch", {}).get("recompute_marked") is False:
        findings.append(_UNMARKED)
    compiling = [(s, e) for s, e, cause in columns.waits if cause is WaitCause.COMPILE]
    found = find_steps(meta, annotations, lane, compiling)
    return _assemble(pieces, meta, operators, columns, found, findings, on_device)


def _emit_threads(piece: Piece, kinds: Kinds) -> Emitted:
    trace = piece.trace
    host = trace.of_category(*HOST_CATEGORIES)
    inside = (trace.end_ns > piece.window_ns[0]) & (trace.start_ns < piece.window_ns[1])
    rows = np.flatnonzero(host & inside & (trace.end_ns > trace.start_ns))
    out = Emitted()
    for thread in np.unique(trace.thread[rows]):
        emit(trace, rows[trace.thread[rows] == thread], kinds, out, piece.lists)
    return out


def _annotations(piece: Piece) -> Iterable[tuple[str, int, int]]:
    trace = piece.trace
    for row in np.flatnonzero(trace.of_category("user_annotation")).tolist():
        yield trace.names[trace.name[row]], int(trace.start_ns[row]), int(trace.end_ns[row])


def _main_lane(emitted: Emitted, kinds: Kinds, keys: dict[str, int]) -> Iterable[tuple[int, int, int]]:
    """Return the operations of the thread with the most of them: start, end, number of the name."""
    if not emitted.thread:
        return
    threads, counts = np.unique(np.array(emitted.thread), return_counts=True)
    main = int(threads[np.argmax(counts)])
    for kind, thread, start, end in zip(emitted.kind, emitted.thread, emitted.start_ns, emitted.end_ns, strict=True):
        if thread == main:
            name = kinds.table[kind].name
            yield start, end, keys.setdefault(name, len(keys))


def _add_host(
    piece: Piece,
    emitted: Emitted,
    parts: Sequence[Part],
    work: DeviceWork | None,
    kinds: Kinds,
    operators: _Operators,
    columns: _Columns,
    lanes: dict[tuple[str, Any, Any], int],
) -> None:
    """Add operations that ran on host threads; those whose work ran on a device count as dispatch."""
    for i, kind in enumerate(emitted.kind):
        start, end = emitted.start_ns[i], emitted.end_ns[i]
        if work is not None and not work.stays_on_host(i):
            columns.dispatch.append((start, end))
            columns.frames += [start] * emitted.events[i]
            continue
        thread = piece.trace.threads[emitted.thread[i]]
        again = emitted.recompute[i]
        columns.operator.append(operators.of_kind(kinds, kind, parts[i], device=False, recompute=again))
        columns.start_ns.append(start)
        columns.end_ns.append(end)
        columns.lane.append(lanes.setdefault(("host", *thread), len(lanes)))
        columns.events.append(emitted.events[i])
    columns.frames += emitted.frames
    columns.dispatch += [(start, end) for start, end, _ in emitted.dispatch]
    columns.waits += [(start, end, cause) for start, end, cause, _ in emitted.waits]


def _add_device(
    work: DeviceWork,
    parts: Sequence[Part],
    emitted: Emitted,
    kinds: Kinds,
    operators: _Operators,
    columns: _Columns,
    lanes: dict[tuple[str, Any, Any], int],
) -> None:
    for item in work.launched:
        part, again = parts[item.operation], emitted.recompute[item.operation]
        kind = emitted.kind[item.operation]
        columns.operator.append(operators.of_kind(kinds, kind, part, device=True, recompute=again))
        columns.start_ns.append(item.start_ns)
        columns.end_ns.append(item.end_ns)
        columns.lane.append(lanes.setdefault(("device", item.device, item.stream), len(lanes)))
        columns.events.append(0)
    for start, end, device, stream, operator in work.others:
        columns.operator.append(operators.add(operator))
        columns.start_ns.append(start)
        columns.end_ns.append(end)
        columns.lane.append(lanes.setdefault(("device", device, stream), len(lanes)))
        columns.events.append(0)


def _assemble(
    pieces: Sequence[Piece],
    meta: Mapping[str, Any],
    operators: _Operators,
    columns: _Columns,
    found: Found,
    findings: Sequence[Finding],
    on_device: bool,
) -> RunTrace:
    facts: Mapping[str, Any] = meta["frameworks"].get("torch", {})
    calibration: Mapping[str, float] = facts.get("calibration", {})
    start = np.array(columns.start_ns, dtype=np.int64)
    order = np.argsort(start, kind="stable")
    dispatch = np.array(sorted(columns.dispatch), dtype=np.int64).reshape(-1, 2)
    waits = sorted(columns.waits, key=lambda w: w[:2])
    times = np.array([w[:2] for w in waits], dtype=np.int64).reshape(-1, 2)
    devices = tuple(str(d) for d in facts.get("devices", ())) or _device_names(pieces)
    return RunTrace(
        framework="torch",
        operators=tuple(operators.table),
        op=np.array(columns.operator, dtype=np.int32)[order],
        start_ns=start[order],
        end_ns=np.array(columns.end_ns, dtype=np.int64)[order],
        lane=np.array(columns.lane, dtype=np.int32)[order],
        op_events=np.array(columns.events, dtype=np.int32)[order],
        frame_ns=np.sort(np.array(columns.frames, dtype=np.int64)),
        dispatch_start_ns=dispatch[:, 0],
        dispatch_end_ns=dispatch[:, 1],
        wait_start_ns=times[:, 0],
        wait_end_ns=times[:, 1],
        wait_cause=tuple(w[2] for w in waits),
        steps=found.steps,
        window_ns=(pieces[0].window_ns[0], pieces[-1].window_ns[1]),
        unprofiled_step_s=found.unprofiled_step_s,
        op_overhead_s=float(calibration.get("op_overhead_s", 0.0)),
        op_floor_s=float(calibration.get("op_floor_s", 0.0)),
        minor_faults_per_step=found.minor_faults_per_step,
        page_bytes=float(meta.get("page_bytes", 4096)),
        unmapping_s_per_byte=float(meta.get("unmapping_s_per_byte", 0.0)),
        threads=int(facts.get("threads", 1)),
        scope="device" if on_device else "node",
        devices=devices,
        environment=_environment(meta, facts),
        findings=(*findings, *found.findings),
    )


def _device_names(pieces: Sequence[Piece]) -> tuple[str, ...]:
    names = [str(d.get("name", "")) for d in pieces[0].trace.device_properties]
    return tuple(n for n in names if n)


def _environment(meta: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "program": " ".join([*(["-m"] if meta.get("module") else []), *meta.get("argv", ())]),
        "python": meta.get("python"),
        "torch": facts.get("version"),
        **{k: v for k, v in facts.items() if k not in ("version", "devices", "recompute_marked")},
    }
