"""A recorded JAX run as a `RunTrace`: profiled windows joined with the programs that ran in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.core import InputError, Unknown
from mansard.trace.hlo.cost import InstructionCost, ModuleCosts
from mansard.trace.hlo.programs import Programs, load_programs
from mansard.trace.jax_events import Executions, HostEvents, executions_of, host_events
from mansard.trace.jax_marks import Marks, marks_of, unprofiled
from mansard.trace.jax_steps import FoundSteps, Runs, find_steps, runs_of, steps_by_period
from mansard.trace.readers.xplane import read_xspace
from mansard.trace.run import Finding, Operator, Part, RunTrace, Steps, WaitCause

Int64Array = npt.NDArray[np.int64]
_TRACE, _INDEX = "trace.xplane.pb", "programs.json"
_Costs = list[tuple[InstructionCost | Unknown, list[ModuleCosts]]]


@dataclass(slots=True)
class _Collected:
    """What the windows yield together."""

    operators: list[Operator] = field(default_factory=list)
    numbers: dict[tuple[str, ...], int] = field(default_factory=dict)
    fresh: list[list[float]] = field(default_factory=list)
    op: list[Int64Array] = field(default_factory=list)
    start: list[Int64Array] = field(default_factory=list)
    end: list[Int64Array] = field(default_factory=list)
    lane: list[Int64Array] = field(default_factory=list)
    dispatch: list[Int64Array] = field(default_factory=list)
    waits: list[tuple[Int64Array, WaitCause]] = field(default_factory=list)
    steps: list[FoundSteps] = field(default_factory=list)
    launches: list[tuple[Runs, HostEvents]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    def number(self, operator: Operator) -> int:
        """Number of an operator, the same for equal kinds of operation."""
        key = (operator.name, operator.category, operator.part.value, operator.shapes, operator.formula,
               str(operator.recompute), repr(operator.demand))  # fmt: skip
        if key not in self.numbers:
            self.numbers[key] = len(self.operators)
            self.operators.append(operator)
            self.fresh.append([])
        self.fresh[self.numbers[key]].append(operator.fresh_bytes)
        return self.numbers[key]

    def averaged(self) -> tuple[Operator, ...]:
        """The operators, each with the mean of the new memory that its places in the programs touch."""
        return tuple(
            replace(operator, fresh_bytes=sum(fresh) / len(fresh))
            for operator, fresh in zip(self.operators, self.fresh, strict=True)
        )


def load(directory: Path, meta: Mapping[str, Any]) -> RunTrace:
    """Return the run that was recorded into `directory`.

    Args:
        directory: A recording.
        meta: Its `meta.json`.

    Raises:
        InputError: no profiled window can be read.
    """
    facts = meta.get("frameworks", {}).get("jax", {})
    windows = [w for w in meta.get("windows", ()) if w.get("kind") == "profiled" and w.get("files", {}).get("jax")]
    marks = marks_of(meta)
    known: dict[str, ModuleCosts] = {}
    out = _Collected()
    spans: list[tuple[int, int]] = []
    problem: InputError | None = None
    for window in windows:
        try:
            spans.append(_window(out, directory, window, facts, known, marks, first=not spans))
        except InputError as error:
            problem = error
            text = f"A profiled window cannot be read: {error.message}."
            out.findings.append(Finding(code="profile_unreadable", text=text))
    if not spans:
        raise problem or InputError(
            "the recording holds no JAX profile", hint="the program may have compiled nothing", code="no_profile"
        )
    return _assembled(out, spans, meta, facts, marks)


def _window(
    out: _Collected,
    directory: Path,
    window: Mapping[str, Any],
    facts: Mapping[str, Any],
    known: dict[str, ModuleCosts],
    marks: tuple[Marks, ...],
    *,
    first: bool,
) -> tuple[int, int]:
    """Add one profiled window; return its start and end [ns]."""
    where = directory / str(window["directory"]) / "jax"
    space = read_xspace(where / _TRACE)
    span = (int(window["start_ns"]), int(window.get("end_ns") or window["start_ns"]))
    origin = space.epoch_ns
    if origin is None:
        origin = span[0]
        text = "The profile names no clock: its start is taken as the window's."
        out.findings.append(Finding(code="clock_assumed", text=text))
    out.findings += [Finding(code="profiler_error", text=f"The profiler reports: {e}") for e in space.errors]
    programs, problems = load_programs(where, _INDEX, known)
    out.findings += [Finding(code="program_unreadable", text=p) for p in problems]
    executions = executions_of(space, origin_ns=origin)
    events = host_events(space, origin_ns=origin)
    costs = _costs(executions, programs)
    leaf, loops = _leaves(executions, costs)
    _add_operations(out, executions, costs, leaf, facts)
    out.dispatch += [loops, events.launch, events.execute]
    out.waits += [(events.compile, WaitCause.COMPILE), (events.wait, WaitCause.SYNC)]
    runs = runs_of(executions, events)
    out.launches.append((runs, events))
    found = find_steps(runs, events, marks, span, first=first)
    if found is not None:
        out.steps.append(found)
    return span


def _costs(executions: Executions, programs: Programs) -> _Costs:
    """The cost of each kind of operation, and the programs that it can belong to."""
    ops: dict[tuple[str, int], set[str]] = {}
    for module, program, op in executions.kinds:
        ops.setdefault((module, program), set()).add(op)
    candidates = {key: programs.candidates(key[0], key[1], frozenset(names)) for key, names in ops.items()}
    return [
        (programs.cost(candidates[(module, program)], op, module), candidates[(module, program)])
        for module, program, op in executions.kinds
    ]


def _leaves(executions: Executions, costs: _Costs) -> tuple[npt.NDArray[np.bool_], Int64Array]:
    """Say which executions are operations of their own, and return the intervals of loops and calls that are not.

    A loop whose inside shows up as operations is not one itself: what they do not cover of it is the executor's time.
    """
    leaf = np.ones(executions.count, dtype=bool)
    intervals = [np.zeros((0, 2), dtype=np.int64)]
    base = int(executions.start_ns.min()) if executions.count else 0
    span = int(executions.end_ns.max()) - base + 1 if executions.count else 1
    place = executions.run * span + (executions.start_ns - base)
    for number, (cost, candidates) in enumerate(costs):
        if isinstance(cost, Unknown) or not cost.control:
            continue
        module, program, op = executions.kinds[number]
        inside = candidates[0].inside(op)
        kinds = [i for i, k in enumerate(executions.kinds) if k[:2] == (module, program) and k[2] in inside]
        inner = np.sort(place[np.isin(executions.kind, kinds)])
        mine = np.flatnonzero(executions.kind == number)
        length = executions.end_ns[mine] - executions.start_ns[mine]
        shown = np.searchsorted(inner, place[mine] + length, side="right") > np.searchsorted(inner, place[mine])
        # A branch that runs nothing shows nothing.
        shown |= cost.may_be_idle
        leaf[mine[shown]] = False
        intervals.append(np.stack([executions.start_ns[mine[shown]], executions.end_ns[mine[shown]]], axis=1))
    return leaf, np.concatenate(intervals)


def _add_operations(
    out: _Collected,
    executions: Executions,
    costs: _Costs,
    leaf: npt.NDArray[np.bool_],
    facts: Mapping[str, Any],
) -> None:
    scope = "node" if facts.get("platform", "cpu") in ("cpu", "") else "device"
    numbers = [
        out.number(_operator(module, op, cost, scope))
        for (module, _, op), (cost, _) in zip(executions.kinds, costs, strict=True)
    ]
    codes = np.array(numbers or [0], dtype=np.int64)
    chosen = np.flatnonzero(leaf & (executions.end_ns > executions.start_ns))
    out.op.append(codes[executions.kind[chosen]])
    out.start.append(executions.start_ns[chosen])
    out.end.append(executions.end_ns[chosen])
    out.lane.append(_lanes(executions, chosen))


def _operator(module: str, op: str, cost: InstructionCost | Unknown, scope: str) -> Operator:
    if isinstance(cost, Unknown):
        return Operator(
            name=op, category="other", part=Part.OTHER, shapes="", demand=cost, scope=scope, source=f"{module} {op}"
        )
    return Operator(
        name=cost.label,
        category="optimizer" if cost.part is Part.OPTIMIZER and cost.category == "elementwise" else cost.category,
        part=cost.part,
        shapes=cost.shapes,
        demand=cost.demand,
        scope=scope,
        fresh_bytes=cost.fresh_bytes,
        source=f"{module} {op} {cost.source}".strip(),
        formula=cost.formula,
        recompute=cost.recompute,
    )


def _lanes(executions: Executions, chosen: Int64Array) -> Int64Array:
    """Give each operation a lane of its device in which nothing overlaps: the first that is free."""
    lanes = np.zeros(chosen.size, dtype=np.int64)
    keys = executions.device[chosen] * 4096 + executions.stream[chosen]
    used = 0
    for key in np.unique(keys):
        mine = np.flatnonzero(keys == key)
        start, end = executions.start_ns[chosen[mine]], executions.end_ns[chosen[mine]]
        if (start[1:] >= np.maximum.accumulate(end)[:-1]).all():
            lanes[mine] = used
            used += 1
            continue
        free: list[int] = []
        local = np.zeros(mine.size, dtype=np.int64)
        for i, (s, e) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
            lane = next((n for n, until in enumerate(free) if until <= s), len(free))
            if lane == len(free):
                free.append(e)
            else:
                free[lane] = e
            local[i] = lane
        lanes[mine] = used + local
        used += len(free)
    return lanes


def _assembled(
    out: _Collected,
    spans: list[tuple[int, int]],
    meta: Mapping[str, Any],
    facts: Mapping[str, Any],
    marks: tuple[Marks, ...],
) -> RunTrace:
    op, start, end, lane = (np.concatenate(c) for c in (out.op, out.start, out.end, out.lane))
    order = np.argsort(start, kind="stable")
    steps, findings = _steps(out)
    used = next((m for m in marks if m.source == steps.source and m.note == steps.note), None)
    timed = unprofiled(meta, used)
    calibration = facts.get("calibration", {})
    dispatch = np.concatenate(out.dispatch)
    waits = np.concatenate([w for w, _ in out.waits])
    return RunTrace(
        framework="jax",
        operators=out.averaged(),
        op=op[order].astype(np.int32),
        start_ns=start[order],
        end_ns=end[order],
        lane=lane[order].astype(np.int32),
        dispatch_start_ns=dispatch[:, 0],
        dispatch_end_ns=dispatch[:, 1],
        wait_start_ns=waits[:, 0],
        wait_end_ns=waits[:, 1],
        wait_cause=tuple(cause for w, cause in out.waits for _ in range(w.shape[0])),
        steps=steps,
        window_ns=(min(s for s, _ in spans), max(e for _, e in spans)),
        unprofiled_step_s=timed.step_s,
        op_overhead_s=float(calibration.get("op_overhead_s", 0.0)),
        op_floor_s=float(calibration.get("op_floor_s", 0.0)),
        minor_faults_per_step=_faults(timed.minor_faults_per_step, meta, steps),
        page_bytes=float(meta.get("page_bytes", 4096)),
        unmapping_s_per_byte=float(meta.get("unmapping_s_per_byte", 0.0)),
        threads=int(facts.get("threads", 1)),
        scope="node" if facts.get("platform", "cpu") in ("cpu", "") else "device",
        devices=tuple(facts.get("devices", ())),
        environment={k: v for k, v in facts.items() if k not in ("calibration", "devices")},
        findings=(*out.findings, *findings, *_recorded_findings(meta)),
    )


def _faults(unprofiled: float | None, meta: Mapping[str, Any], steps: Steps) -> float | None:
    """Return page faults per step: from windows with the profiler off, else at the rate of the profiled windows."""
    if unprofiled is not None or not steps.count:
        return unprofiled
    faults = seconds = 0.0
    for window in meta.get("windows", ()):
        before, after = window.get("rusage_start", {}), window.get("rusage_end", {})
        if (
            window.get("kind") == "profiled"
            and window.get("end_ns")
            and "minor_faults" in before
            and "minor_faults" in after
        ):
            faults += float(after["minor_faults"]) - float(before["minor_faults"])
            seconds += (int(window["end_ns"]) - int(window["start_ns"])) * 1e-9
    step_s = float(np.median(steps.end_ns - steps.start_ns)) * 1e-9
    return faults / seconds * step_s if seconds > 0 else None


def _recorded_findings(meta: Mapping[str, Any]) -> list[Finding]:
    return [Finding(code=str(f["code"]), text=str(f["text"])) for f in meta.get("findings", ())]


def _steps(out: _Collected) -> tuple[Steps, list[Finding]]:
    """Join the steps of the windows; only one way of finding them counts, the one that most steps have."""
    findings = []
    empty = np.zeros(0, dtype=np.int64)
    if not out.op or not sum(o.size for o in out.op):
        findings.append(
            Finding(code="no_operations", text="The profile holds no executed operation of a compiled program.")
        )
    if not out.steps:
        periodic = [steps_by_period(r, e, first=n == 0) for n, (r, e) in enumerate(out.launches)]
        out.steps += [p for p in periodic if p is not None]
    if not out.steps:
        findings.append(
            Finding(code="no_steps", text="No repeated step was found: everything that was recorded is shown.")
        )
        return Steps(start_ns=empty, end_ns=empty, source="none", note="the whole recording"), findings
    votes: dict[tuple[str, str], int] = {}
    for found in out.steps:
        votes[(found.source, found.note)] = votes.get((found.source, found.note), 0) + found.start_ns.size
    source, note = max(votes, key=lambda k: votes[k])
    kept = [f for f in out.steps if (f.source, f.note) == (source, note)]
    return (
        Steps(
            start_ns=np.concatenate([f.start_ns for f in kept]),
            end_ns=np.concatenate([f.end_ns for f in kept]),
            source=source,
            skipped=sum(f.skipped for f in kept),
            note=note,
        ),
        findings,
    )
