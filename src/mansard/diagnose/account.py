"""Where the time of a step goes: by bound and by part, each adding up to the step.

The profiled timeline gives the proportions, the time with the profiler off gives the total. What the profiler added is taken
out where its events are (`overhead.ProfilerCost`): inside operations, and out of the dispatch around them. What then still
differs from the total within the noise of step times hits every part alike; what is more than noise is dispatch, which a
profiler inflates and which Python and known waits are not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from mansard.core import Bound
from mansard.diagnose.alike import alike
from mansard.diagnose.judge_operators import JudgedOperator, MemoryEvidence
from mansard.diagnose.overhead import STEP_NOISE
from mansard.diagnose.records import SHARE_KINDS
from mansard.diagnose.sweep import BoolArray, Grid, Int64Array, Segments
from mansard.trace.run import Part, RunTrace, WaitCause

#: An unprofiled step this much slower than the profiled ones is more than noise.
NOISE_RATIO = 0.25
#: A gap of up to so many calls of the smallest operation is that of calling the next one.
CALLING = 3.0
#: At least this share of the recorded dispatch is kept, whatever the profiler is thought to have added to it.
LEAST_DISPATCH = 0.2
#: Precedence where several run at once: computing before communicating before waiting.
_OPERATION_LAYERS = ("compute", "memory", "unattributed", "latency", "network", "host")


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """The steady steps as disjoint windows [ns], and whether they are real steps.

    Args:
        start_ns, end_ns: Where they are [ns].
        repeated: Whether they are real steps.
        alike: Whether they do about the same work. Calls, FLOP and bytes are means over the windows; where the work differs,
            time has to be the mean as well, or the work of one step is divided by the time of another.
    """

    start_ns: Int64Array
    end_ns: Int64Array
    repeated: bool
    alike: bool = True

    @property
    def median_s(self) -> float:
        """Median length of a window [s]."""
        return float(np.median(self.end_ns - self.start_ns)) * 1e-9

    @property
    def mean_s(self) -> float:
        """Mean length of a window [s]."""
        return float((self.end_ns - self.start_ns).mean()) * 1e-9

    @property
    def typical_s(self) -> float:
        """Length of a typical window [s]: the median of windows that do the same, else the mean."""
        return self.median_s if self.alike else self.mean_s

    @property
    def typical_ratio(self) -> float:
        """Typical over mean length: what turns sums over all windows into those of a typical one."""
        return self.typical_s / self.mean_s

    @property
    def count(self) -> int:
        """How many windows there are."""
        return int(self.start_ns.size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Seconds of one step by kind; the kinds of each mapping add up to the step.

    Args:
        step_s: Time of one step with the profiler's part removed [s].
        by_kind: compute, memory, network, host, latency, unattributed [s].
        host: Host time by cause: input, sync, compile, python [s].
        parts: Time by part [s].
        unrecorded_s: What a step took longer with the profiler off than any record of it; part of unattributed [s].
        by_part: Each part by kind; rows add up to `parts` and columns to `by_kind` [s].
    """

    step_s: float
    by_kind: Mapping[str, float]
    host: Mapping[str, float]
    parts: Mapping[Part, float]
    unrecorded_s: float = 0.0
    by_part: Mapping[Part, Mapping[str, float]] = field(default_factory=dict)

    @property
    def shares(self) -> dict[str, float]:
        """Shares of the step, keys `SHARE_KINDS`, sum 1."""
        total = sum(self.by_kind.values()) or 1.0
        return {kind: self.by_kind.get(kind, 0.0) / total for kind in SHARE_KINDS}


def windows_of(trace: RunTrace) -> Windows:
    """Return the steady steps; where there are none, everything that was recorded as one window."""
    if trace.steps.count > 0:
        windows = Windows(start_ns=trace.steps.start_ns, end_ns=trace.steps.end_ns, repeated=True)
        return replace(windows, alike=alike(trace, windows.start_ns, windows.end_ns))
    first, last = trace.window_ns
    if trace.op.size:
        first, last = max(first, int(trace.start_ns.min())), min(last, int(trace.end_ns.max()))
    return Windows(
        start_ns=np.array([first], dtype=np.int64),
        end_ns=np.array([max(last, first + 1)], dtype=np.int64),
        repeated=False,
    )


def inside(windows: Windows, start_ns: Int64Array) -> npt.NDArray[np.bool_]:
    """Return for each start whether it lies in a window."""
    index = np.searchsorted(windows.start_ns, start_ns, side="right") - 1
    chosen: npt.NDArray[np.bool_] = (index >= 0) & (start_ns < windows.end_ns[np.maximum(index, 0)])
    return chosen


def kind_of_bound(bound: Bound) -> str:
    """Return the share that an operation's whole time goes to."""
    return "unattributed" if bound is Bound.UNDETERMINED else bound.value


def account(
    trace: RunTrace,
    windows: Windows,
    judged: Sequence[JudgedOperator],
    charged: npt.NDArray[np.float64],
    duration_s: npt.NDArray[np.float64],
    unprofiled_s: float,
    memory: MemoryEvidence,
    *,
    around_s: float = 0.0,
) -> Account:
    """Return where the time of one step goes.

    Args:
        trace: The run.
        windows: Its steady steps.
        judged: Verdict of each kind of operation that ran in them.
        charged: Time charged to each operation as recorded; operations that run at once share it [s].
        duration_s: Duration of each operation in a typical step, without the profiler's part [s].
        unprofiled_s: Step time with the profiler off, measured or estimated [s].
        memory: What page faults say; memory that they mapped is unmapped between operations, and that is memory time.
        around_s: What the profiler added around the operations of one step [s].
    """
    kind_of = np.full(max(1, len(trace.operators)), _OPERATION_LAYERS.index("unattributed"), dtype=np.int8)
    for j in judged:
        kind_of[j.index] = _OPERATION_LAYERS.index(kind_of_bound(j.judgement.bound))
    of_op = kind_of[trace.op] if trace.op.size else np.zeros(0, dtype=np.int8)
    grid = Grid(
        windows.start_ns, windows.end_ns,
        [trace.start_ns, trace.end_ns, trace.wait_start_ns, trace.wait_end_ns, trace.dispatch_start_ns, trace.dispatch_end_ns],
    )  # fmt: skip
    first, last = grid.place(trace.start_ns), grid.place(trace.end_ns)
    waiting = _waiting(trace, grid)
    layers = [
        (kind, grid.covered_between(first[of_op == i], last[of_op == i])) for i, kind in enumerate(_OPERATION_LAYERS)
    ]
    layers += [(f"wait {cause.value}", covered) for cause, covered in waiting.items()]
    layers.append(("dispatch", grid.covered(trace.dispatch_start_ns, trace.dispatch_end_ns)))
    pieces = grid.segments(layers)
    part_pieces = _part_pieces(trace, grid, first, last, waiting[WaitCause.INPUT])

    per_step = 1e-9 / windows.count * windows.typical_ratio
    work: dict[str, float] = {}
    steady = inside(windows, trace.start_ns)
    for i, kind in enumerate(_OPERATION_LAYERS):
        mine = (of_op == i) & steady
        raw = float(charged[mine].sum())
        kept = float(duration_s[mine].sum()) / (raw * windows.typical_ratio) if raw > 0 else 1.0
        work[kind] = pieces.total_ns(kind) * per_step * kept
    waits = {cause.value: pieces.total_ns(f"wait {cause.value}") * per_step for cause in WaitCause}
    work["unattributed"] += waits.pop(WaitCause.UNEXPLAINED.value)
    dispatch, python = _between(trace, pieces, per_step)
    dispatch = max(dispatch - around_s, LEAST_DISPATCH * dispatch)
    unmapping = min(python, _unmapping_s(trace, memory))
    work["memory"] += unmapping
    # The profiler only adds time. A step that was a little slower without it is noise, and its parts are stretched
    # alike; one that was much slower met something that was recorded nowhere (another program had the processors, say),
    # and to call that dispatch or Python would be to make it up.
    slower = max(0.0, unprofiled_s - windows.typical_s)
    unrecorded = slower if slower > NOISE_RATIO * windows.typical_s else 0.0
    target = min(unprofiled_s, windows.typical_s)
    by_kind, host, step_s = _fit_to_step(work, waits, dispatch, python - unmapping, target)
    stretch = 1.0 + (slower - unrecorded) / step_s if step_s > 0 else 1.0
    by_kind = {kind: seconds * stretch for kind, seconds in by_kind.items()}
    host = {cause: seconds * stretch for cause, seconds in host.items()}
    by_kind["unattributed"] += unrecorded
    parts = _part_seconds(part_pieces, windows)
    scale = step_s * stretch / (sum(parts.values()) or 1.0)
    parts = {part: seconds * scale for part, seconds in parts.items()}
    parts[Part.OTHER] += unrecorded
    return Account(
        step_s=step_s * stretch + unrecorded, by_kind=by_kind, host=host, parts=parts, unrecorded_s=unrecorded,
        by_part=_by_part(pieces, part_pieces, parts, by_kind),
    )  # fmt: skip


def _unmapping_s(trace: RunTrace, memory: MemoryEvidence) -> float:
    """Return what giving the faulted memory of one step back to the system takes [s], at the calibrated rate."""
    if not memory.fresh_is_faulted or memory.faulted_bytes_per_step is None:
        return 0.0
    return memory.faulted_bytes_per_step * trace.unmapping_s_per_byte


def _between(trace: RunTrace, pieces: Segments, per_step: float) -> tuple[float, float]:
    """Return dispatch and Python time per step.

    Between two operations that follow at once lies the cost of calling them, the interpreter's part included. A longer gap
    holds one such call, and Python for the rest.
    """
    gap = (pieces.end_ns - pieces.start_ns)[pieces.owner == -1].astype(np.float64)
    allowance_ns = (trace.op_floor_s + trace.op_overhead_s) * 1e9
    dispatch = np.where(gap <= CALLING * allowance_ns, gap, np.minimum(gap, allowance_ns)).sum()
    return pieces.total_ns("dispatch") * per_step + dispatch * per_step, float(gap.sum() - dispatch) * per_step


def _fit_to_step(
    work: Mapping[str, float],
    waits: Mapping[str, float],
    dispatch: float,
    python: float,
    unprofiled_s: float,
) -> tuple[dict[str, float], dict[str, float], float]:
    """Take the profiler's part out so that the kinds add up to the unprofiled step."""
    fixed = sum(work.values()) + sum(waits.values()) + python
    surplus = fixed + dispatch - unprofiled_s
    dispatch -= min(max(0.0, surplus - STEP_NOISE * unprofiled_s), (1.0 - LEAST_DISPATCH) * dispatch)
    total, waiting = fixed + dispatch, sum(waits.values())
    # A known wait is a clock's time: noise may lengthen it, a profiler never does.
    kept = waiting if total > unprofiled_s > waiting else 0.0
    scale = (unprofiled_s - kept) / (total - kept) if total > kept else 1.0
    host = {cause: seconds * (1.0 if kept else scale) for cause, seconds in waits.items()}
    host["python"] = host.get("python", 0.0) + python * scale
    by_kind = {kind: work.get(kind, 0.0) * scale for kind in SHARE_KINDS}
    by_kind["latency"] += dispatch * scale
    by_kind["host"] += sum(host.values())
    return by_kind, host, sum(by_kind.values())


def _waiting(trace: RunTrace, grid: Grid) -> dict[WaitCause, BoolArray]:
    """Return which pieces of the grid lie in a wait of each cause."""
    causes = list(WaitCause)
    code = np.array([causes.index(c) for c in trace.wait_cause], dtype=np.int8)
    if not code.size:  # nobody told the causes apart
        code = np.full(trace.wait_start_ns.size, -1, dtype=np.int8)
    first, last = grid.place(trace.wait_start_ns), grid.place(trace.wait_end_ns)
    return {c: grid.covered_between(first[code == i], last[code == i]) for i, c in enumerate(causes)}


def _part_pieces(trace: RunTrace, grid: Grid, first: Int64Array, last: Int64Array, input_wait: BoolArray) -> Segments:
    """Return the part of each instant; time between operations belongs to the part of the next operation."""
    parts = list(Part)
    part_of = np.array([parts.index(o.part) for o in trace.operators] or [0], dtype=np.int8)
    of_op = part_of[trace.op] if trace.op.size else np.zeros(0, dtype=np.int8)
    layers = [(p.value, grid.covered_between(first[of_op == i], last[of_op == i])) for i, p in enumerate(parts)]
    pieces = grid.segments([*layers, ("input wait", input_wait)])
    owner = pieces.owner.copy()
    owner[owner == len(parts)] = parts.index(Part.INPUT)
    known = np.flatnonzero(owner >= 0)
    if known.size:
        gap = np.flatnonzero(owner < 0)
        nearest = known[np.minimum(np.searchsorted(known, gap), known.size - 1)]
        same = pieces.window[nearest] == pieces.window[gap]
        owner[gap[same]] = owner[nearest[same]]
    owner[owner < 0] = parts.index(Part.OTHER)
    return Segments(
        start_ns=pieces.start_ns,
        end_ns=pieces.end_ns,
        owner=owner,
        window=pieces.window,
        owners=tuple(p.value for p in parts),
    )


def _part_seconds(pieces: Segments, windows: Windows) -> dict[Part, float]:
    """Return profiled seconds by part."""
    return {part: pieces.total_ns(part.value) * 1e-9 / windows.count for part in Part}


#: Rounds of fitting both margins; a table this small settles in a few.
_ROUNDS = 30


def _by_part(
    kinds: Segments, parts: Segments, part_s: Mapping[Part, float], kind_s: Mapping[str, float]
) -> dict[Part, dict[str, float]]:
    """Return each part by kind, fitted so that rows and columns add up to what is known of parts and kinds.

    Args:
        kinds, parts: The same pieces of time, by kind and by part.
        part_s, kind_s: What each must add up to [s].

    Source: iterative proportional fitting, Deming and Stephan, Annals of Mathematical Statistics 11(4), 1940.
    """
    length = (kinds.end_ns - kinds.start_ns).astype(np.float64)
    names = [_kind_of_owner(owner) for owner in kinds.owners]
    column = np.array([*(SHARE_KINDS.index(n) for n in names), SHARE_KINDS.index("host")], dtype=np.int64)
    cell = parts.owner * len(SHARE_KINDS) + column[kinds.owner]
    table = np.bincount(cell, weights=length, minlength=len(Part) * len(SHARE_KINDS)).reshape(len(Part), -1)
    rows = np.array([part_s[p] for p in Part])
    columns = np.array([kind_s.get(k, 0.0) for k in SHARE_KINDS])
    other = list(Part).index(Part.OTHER)
    table[other, (table.sum(axis=0) <= 0) & (columns > 0)] = 1.0
    for _ in range(_ROUNDS):
        for axis, wanted in ((0, columns), (1, rows)):
            have = table.sum(axis=axis)
            ratio = np.divide(wanted, have, out=np.zeros_like(have), where=have > 0)
            table = table * (ratio[None, :] if axis == 0 else ratio[:, None])
    return {p: dict(zip(SHARE_KINDS, table[i].tolist(), strict=True)) for i, p in enumerate(Part)}


def _kind_of_owner(owner: str) -> str:
    """Return the kind of time that a layer of the account is."""
    if owner.startswith("wait "):
        return "unattributed" if owner == f"wait {WaitCause.UNEXPLAINED.value}" else "host"
    return "latency" if owner == "dispatch" else owner
