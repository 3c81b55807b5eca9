"""Join a run, its operations' demand and the machine's ceilings into a diagnosis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.core import Bound, Ceilings, Implausible, Unknown, median_interval, share_of
from mansard.core.units import format_flop_per_s, format_ratio
from mansard.diagnose.account import Account, Windows, account, inside, windows_of
from mansard.diagnose.areas import checks_of, shares_by_kind
from mansard.diagnose.facts import Facts, foreign_load_of
from mansard.diagnose.findings import findings_of
from mansard.diagnose.judge_operators import (
    HOST_COPY_NAMES,
    JudgedOperator,
    corrected_durations_s,
    judge_operators,
    memory_evidence,
)
from mansard.diagnose.network import collective_ops, network_notes, network_use
from mansard.diagnose.overhead import ProfilerCost, profiler_cost
from mansard.diagnose.partial import NO_BYTES, NO_FLOP, bytes_of, flop_of, intensity_of, is_counted
from mansard.diagnose.records import Diagnosis, Note, OperatorRow, PartTime, StepTime
from mansard.diagnose.regime import in_regime, regime_of_operations
from mansard.diagnose.rules import Case, advise
from mansard.diagnose.sweep import charged_s
from mansard.diagnose.verdict import main_verdict
from mansard.trace.run import Part, RunTrace

#: What a receipt says of the machine; the rest is in the ceilings document.
_MACHINE = ("cpu_model", "clock_hz_estimated", "threads", "memory_bytes", "huge_pages", "kernel", "measured", "foreign_load",
            "tuning_variables")  # fmt: skip
#: From this many unprofiled step times on, their own spread is the interval.
MANY_STEPS = 5
MOST_STEPS_KEPT = 4096  # in a document


def diagnose_run(
    trace: RunTrace,
    ceilings: Ceilings,
    *,
    program: str,
    drift: Mapping[str, Any] | None = None,
    facts: Facts | None = None,
    windows: Windows | None = None,
) -> Diagnosis:
    """Return the diagnosis of one run.

    Args:
        trace: What the run did.
        ceilings: The machine, at the number of threads of the run.
        program: The command line, for the receipt.
        drift: Ceilings probed before and after the program, for the receipt.
        facts: What is known beside the recording, for the rules.
        windows: Its steady steps, where they are at hand.
    """
    trace = _at_its_scope(trace)
    windows = windows or windows_of(trace)
    chosen = inside(windows, trace.start_ns)
    frames = int(inside(windows, trace.frame_ns).sum())
    cost = profiler_cost(trace, chosen, frames, windows.count, windows.typical_s)
    step = _step_time(trace, windows, cost)
    groups = _engines(trace)
    charged = _charged_apart(trace, groups)
    duration = corrected_durations_s(charged, cost.inside_s()) * windows.typical_ratio
    for mine in groups:
        duration = _within_step(windows, chosen & mine, duration, step.median_s)
    memory = memory_evidence(trace, chosen, windows.count)
    judged = judge_operators(trace, ceilings, chosen, charged, duration, memory)
    regime = regime_of_operations(judged, ceilings, steps=windows.count, step_s=step.median_s)
    if regime > 1.0:
        ceilings = in_regime(ceilings, regime)
        judged = judge_operators(trace, ceilings, chosen, charged, duration, memory)
    where = account(trace, windows, judged, charged, duration, step.median_s, memory, around_s=cost.around_s)
    case = Case(
        trace=trace, ceilings=ceilings, windows=windows, judged=judged, account=where, memory=memory,
        chosen=chosen, duration_s=duration, facts=replace(facts or Facts(), foreign_load_ratio=foreign_load_of(drift)),
    )  # fmt: skip
    rows = tuple(sorted((_row(j, windows, ceilings) for j in judged), key=lambda r: -r.time_s))
    totals = _totals(judged, windows)
    network = network_use(trace, windows, where, ceilings)
    return Diagnosis(
        program=program,
        framework=trace.framework,
        verdict=main_verdict(case),
        step=step,
        time_shares=where.shares,
        parts=tuple(_part(part, seconds, where) for part, seconds in where.parts.items() if seconds > 0),
        operators=rows,
        flop_per_step=totals.model_flop,
        full_square_flop_per_step=totals.full_square_flop,
        hardware_flop_per_step=totals.hardware_flop,
        bytes_per_step=totals.bytes,
        mfu_ratio=_of_peak(judged, _whole(trace, judged, totals.model_flop), where.step_s, ceilings),
        hfu_ratio=_of_peak(judged, _whole(trace, judged, totals.hardware_flop), where.step_s, ceilings),
        advice=advise(case),
        ceilings=ceilings.ceilings,
        receipt={
            **_receipt(trace, ceilings, judged, drift),
            **({"network": network.to_json()} if network is not None else {}),
        },
        findings=(
            *network_notes(network),
            *findings_of(trace, step, judged, windows, drift, ceilings),
            *_regime_note(regime),
        ),
        attributed_ratio=_attributed(judged),
    )


def _regime_note(ratio: float) -> tuple[Note, ...]:
    if ratio <= 1.0:
        return ()
    return (
        Note(
            code="memory_regime",
            text=f"operations on operands far beyond the caches ran at {ratio:.2f} of the memory ceiling: memory was in a faster "
            "regime than when it was measured, and its ceilings are raised to what was seen",
        ),
    )


def _at_its_scope(trace: RunTrace) -> RunTrace:
    """Return the run with every operation judged at what it could use: one thread can use one core."""
    if trace.threads > 1:
        return trace
    return replace(
        trace, operators=tuple(replace(o, scope="core") if o.scope == "node" else o for o in trace.operators)
    )


def _engines(trace: RunTrace) -> tuple[npt.NDArray[np.bool_], ...]:
    """Return which executed operations use which resource: exchanges, copies to and from the host, and all others."""
    exchanges = collective_ops(trace)
    copying = np.array(
        [o.category == "copy" and o.name.startswith(HOST_COPY_NAMES) for o in trace.operators] or [False]
    )
    copies = copying[trace.op] & ~exchanges if trace.op.size else np.zeros(0, dtype=np.bool_)
    return exchanges, copies, ~(exchanges | copies)


def _charged_apart(trace: RunTrace, groups: Sequence[npt.NDArray[np.bool_]]) -> npt.NDArray[np.float64]:
    """Return the time charged to each operation: work on different resources runs at once and does not share its time."""
    charged = np.zeros(trace.op.size, dtype=np.float64)
    for mine in groups:
        charged[mine] = charged_s(trace.start_ns[mine], trace.end_ns[mine])
    return charged


def _within_step(
    windows: Windows,
    chosen: npt.NDArray[np.bool_],
    duration_s: npt.NDArray[np.float64],
    unprofiled_s: float,
) -> npt.NDArray[np.float64]:
    """Return durations that fit into the unprofiled step: what is longer than the step was slowed by the profiler."""
    kept = float(duration_s[chosen].sum()) / windows.count
    if kept <= unprofiled_s:
        return duration_s
    return np.where(chosen, duration_s * (unprofiled_s / kept), duration_s)


def _step_time(trace: RunTrace, windows: Windows, cost: ProfilerCost) -> StepTime:
    """Return the step time: measured with the profiler off, else without what the profiler adds to operations."""
    lengths = (windows.end_ns - windows.start_ns).astype(np.float64) * 1e-9
    profiled = windows.typical_s
    recorded = median_interval(lengths)
    low, high, count = recorded.low, recorded.high, recorded.count
    median, overhead = max(profiled - cost.step_s, 0.25 * profiled), None
    if trace.unprofiled_step_s:
        alone = median_interval(trace.unprofiled_step_s)
        median = alone.median if windows.alike else float(np.mean(trace.unprofiled_step_s))
        overhead = profiled / median - 1.0
    with_profiler = len(trace.unprofiled_step_s) < MANY_STEPS
    if not windows.alike:
        low, high = float(lengths.min()), float(lengths.max())
    elif not with_profiler:
        low, high, count = alone.low, alone.high, alone.count
    else:
        # A few group means, or none, say nothing of the spread of steps: take the relative spread that was recorded.
        low, high = low * median / profiled, high * median / profiled
    return StepTime(
        median_s=median,
        count=count if windows.repeated else 1,
        ci95_s=(low, high),
        profiled_median_s=profiled,
        profiler_overhead_ratio=overhead,
        statistic="median" if windows.alike else "mean",
        source=trace.steps.source if windows.repeated else "none",
        note=trace.steps.note if windows.repeated else "everything that was recorded; no repeated step was found",
        steps_s=_even_choice(lengths.tolist() if with_profiler else trace.unprofiled_step_s)
        if windows.repeated
        else (),
        steps_profiled=with_profiler and windows.repeated,
    )


def _even_choice(steps_s: Sequence[float]) -> tuple[float, ...]:
    """Return the steps, or of more than a document should hold as many at even distances."""
    if len(steps_s) <= MOST_STEPS_KEPT:
        return tuple(float(t) for t in steps_s)
    at = np.linspace(0, len(steps_s) - 1, MOST_STEPS_KEPT).round().astype(np.int64)
    return tuple(float(steps_s[i]) for i in at)


def _row(judged: JudgedOperator, windows: Windows, ceilings: Ceilings) -> OperatorRow:
    operator, verdict = judged.operator, judged.judgement
    per_step = judged.calls / windows.count
    demand = operator.demand
    known = not isinstance(demand, Unknown)
    limiting = verdict.limiting
    flop, size = (amount * per_step for amount in (flop_of(demand), bytes_of(demand)))
    headroom: float | Unknown = (
        max(0.0, judged.total_s - judged.least.time_s * judged.calls) / windows.count
        if isinstance(judged.least.time_s, float)
        else judged.least.time_s
    )
    return OperatorRow(
        name=operator.name,
        category=operator.category,
        part=operator.part.value,
        shapes=operator.shapes,
        source=operator.source,
        calls=per_step,
        time_s=judged.total_s / windows.count,
        flop=flop,
        bytes=size,
        flop_per_byte=intensity_of(demand),
        bound=verdict.bound,
        limiting_ceiling=limiting.ceiling.resource.label if limiting else "",
        level=limiting.ceiling.resource.level if limiting and limiting.ceiling.resource.level else judged.least.level,
        ceiling_value=limiting.ceiling.value if limiting else None,
        ceiling_unit=limiting.ceiling.unit if limiting else "",
        share_of_ceiling=verdict.share_of_ceiling,
        headroom_s=headroom,
        grade=verdict.grade,
        reason=verdict.reason,
        formula=operator.formula,
        full_square_flop=operator.full_square_flop * per_step if operator.full_square_flop and known else None,
        recompute=operator.recompute,
        checks=checks_of(judged),
        shares_by_kind=shares_by_kind([judged], ceilings),
        link_bytes={}
        if isinstance(demand, Unknown)
        else {n: float(b) * per_step for n, b in demand.link_bytes.items()},
    )


def _part(part: Part, seconds: float, where: Account) -> PartTime:
    """Return a part with its seconds by area; the largest is its bound."""
    areas = {kind: time_s for kind, time_s in where.by_part[part].items() if time_s > 1e-6 * seconds}
    top = max(areas, key=lambda kind: areas[kind], default="unattributed")
    bound = Bound.UNDETERMINED if top == "unattributed" else Bound(top)
    return PartTime(kind=part.value, time_s=seconds, bound=Bound.HOST if part is Part.INPUT else bound, areas=areas)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Totals:
    """Work of one step over the operations whose demand is known; hardware FLOP alone counts what is executed again."""

    model_flop: float | Unknown
    full_square_flop: float | Unknown
    hardware_flop: float | Unknown
    bytes: float | Unknown


def _totals(judged: Sequence[JudgedOperator], windows: Windows) -> _Totals:
    """Return the work of one step."""
    model = full = hardware = size = 0.0
    counted = unknown = False
    unmoved: float | Unknown = 0.0
    lost: dict[str, float] = {}
    for row in judged:
        demand = row.operator.demand
        if isinstance(demand, Unknown):
            unknown = unknown or row.total_s > 0
            continue
        counted = True
        for text in (NO_FLOP, NO_BYTES):
            lost[text] = lost.get(text, 0.0) + (row.total_s if text in demand.uncounted else 0.0)
        each = float(demand.total_flop)
        hardware += each * row.calls
        if not row.operator.recompute:
            model += each * row.calls
            full += (row.operator.full_square_flop or each) * row.calls
        moved = bytes_of(demand)
        size += 0.0 if isinstance(moved, Unknown) else moved * row.calls
        unmoved = moved if isinstance(moved, Unknown) and row.total_s > 0 else unmoved
    if not counted:
        nothing = Unknown("no operation with a known demand was recorded", ("record shapes",))
        return _Totals(model_flop=nothing, full_square_flop=nothing, hardware_flop=nothing, bytes=nothing)
    count = windows.count
    flops: list[float | Unknown] = [model / count, full / count, hardware / count]
    if model == 0 and (lost.get(NO_FLOP, 0.0) > 0 or unknown):  # nothing counted is not nothing done
        flops = [Unknown(NO_FLOP, ("--flops", "--model config.json"))] * 3
    nothing_moved = size == 0 and (unknown or not isinstance(unmoved, float))
    moved_bytes = (unmoved if isinstance(unmoved, Unknown) else Unknown(NO_BYTES)) if nothing_moved else size / count
    return _Totals(model_flop=flops[0], full_square_flop=flops[1], hardware_flop=flops[2], bytes=moved_bytes)


def _dominant_matrix_key(judged: Sequence[JudgedOperator]) -> tuple[str, str, str] | None:
    totals: dict[tuple[str, str, str], float] = {}
    for row in judged:
        if isinstance(row.operator.demand, Unknown):
            continue
        for (dtype, accumulate), flop in row.operator.demand.flop.items():
            key = (dtype, accumulate, row.operator.scope)
            totals[key] = totals.get(key, 0.0) + float(flop) * row.calls
    return max(totals, key=lambda k: totals[k]) if totals else None


def _of_peak(
    judged: Sequence[JudgedOperator], flop: float | Unknown, step_s: float, ceilings: Ceilings
) -> float | Unknown | Implausible:
    if isinstance(flop, Unknown):
        return flop
    key = _dominant_matrix_key(judged)
    if key is None:
        return Unknown("the step has no matrix work", ())
    peak = ceilings.peak(key[0], accumulate=key[1], scope=key[2])
    if isinstance(peak, Unknown):
        return peak
    return share_of(flop / peak.value, step_s)


#: Kernels of these categories do no matrix work; the FLOP of all others must be known before an MFU is.
_NO_MATRIX = ("elementwise", "reduction", "softmax", "norm", "copy", "fill", "index", "sort", "random", "optimizer", "collective",
              "pooling", "gather", "scatter")  # fmt: skip
_MOST_UNCOUNTED = 0.01


def _whole(trace: RunTrace, judged: Sequence[JudgedOperator], flop: float | Unknown) -> float | Unknown:
    """Return the FLOP of a profile's step, unknown where kernels that may do matrix work are not counted: a sum over the
    others is a lower bound, and no MFU."""
    total = sum(j.total_s for j in judged)
    lost = [
        j for j in judged if isinstance(flop_of(j.operator.demand), Unknown) and j.operator.category not in _NO_MATRIX
    ]
    missing = sum(j.total_s for j in lost)
    if trace.framework != "profile" or isinstance(flop, Unknown) or missing <= _MOST_UNCOUNTED * total:
        return flop
    text = f"the FLOP of kernels with {format_ratio(missing / total)} of the time are not known, so the sum is a lower bound"
    return Unknown(text, ("--flops", "--model config.json", "--ncu REPORT.csv"))


def _attributed(judged: Sequence[JudgedOperator]) -> float:
    total = sum(j.total_s for j in judged)
    known = sum(j.total_s for j in judged if is_counted(j.operator.demand))
    return known / total if total > 0 else 0.0


def _receipt(
    trace: RunTrace, ceilings: Ceilings, judged: Sequence[JudgedOperator], drift: Mapping[str, Any] | None
) -> dict[str, Any]:
    key = _dominant_matrix_key(judged)
    peak = ceilings.peak(key[0], accumulate=key[1], scope=key[2]) if key else None
    receipt: dict[str, Any] = {
        "flop_convention": "model FLOP, 1 MAC = 2 FLOP, matrix work only; causal attention counted exactly causal; what is executed "
        "again to save memory counts in hardware FLOP and HFU alone",
        "bytes_convention": "compulsory traffic, each operand once, at the nearest memory level that holds the operands",
        "overlap": "full: the longest resource decides the least time of an operation",
        "threads": trace.threads,
        "scope": trace.scope,
        "ceilings_source": ceilings.source,
        "machine": {key: ceilings.machine[key] for key in _MACHINE if key in ceilings.machine},
        "environment": dict(trace.environment),
    }
    if peak is not None and not isinstance(peak, Unknown):
        receipt["mfu_peak"] = {
            "label": f"{peak.resource.label}, dense, {format_flop_per_s(peak.value)}, {peak.kind.value}, one {peak.scope}",
            **peak.to_json(),
        }
    if drift:
        receipt["drift"] = dict(drift)
    return receipt


__all__ = ["Account", "diagnose_run"]
