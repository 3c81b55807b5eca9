"""The verdict on each kind of operation of a run: which ceiling, what share, and on what evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from mansard.core import (
    BOUND_SHARE,
    Area,
    Bound,
    Ceilings,
    Demand,
    Grade,
    Implausible,
    Judgement,
    LeastTime,
    Term,
    Unknown,
    is_known,
    judge,
    least_time,
)
from mansard.core.units import format_s
from mansard.diagnose.links import within_process
from mansard.diagnose.partial import unchecked
from mansard.trace.run import Operator, RunTrace

#: An operation this many times the dispatch cost or shorter, with less work than that cost, is dominated by it.
DISPATCH_DOMINATED = 10.0
#: Starting a kernel on a device and waiting for its last block takes a few microseconds: a shorter one is nothing else.
TINY_KERNEL_S = 5e-6
#: How copies between host and device are called in a profile.
HOST_COPY_NAMES = (
    "copy host to",
    "copy device to host",
    "copy array to host",
    "copy unified host",
    "copy unified device to host",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedOperator:
    """One kind of operation with its measured time and its verdict.

    Args:
        index: Its place in `RunTrace.operators`.
        operator: What it is.
        calls: Calls inside the steady steps.
        total_s: Their time, profiler overhead removed [s].
        call_s: Mean time of one call, profiler overhead removed [s]; share, time and headroom have one denominator.
        judgement: The verdict on one call.
        least: The least time of one call.
    """

    index: int
    operator: Operator
    calls: int
    total_s: float
    call_s: float
    judgement: Judgement
    least: LeastTime


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEvidence:
    """What is known about new memory in a run.

    Args:
        faulted_bytes_per_step: Memory that page faults mapped per step [B]; None where not known.
        fresh_bytes_per_step: Results that operations put into newly allocated memory per step [B].
    """

    faulted_bytes_per_step: float | None
    fresh_bytes_per_step: float

    @property
    def fresh_is_faulted(self) -> bool:
        """Whether at least half of the new results was served by page faults."""
        return (
            self.faulted_bytes_per_step is not None
            and self.fresh_bytes_per_step > 0
            and self.faulted_bytes_per_step >= 0.5 * self.fresh_bytes_per_step
        )


def corrected_durations_s(
    charged: npt.NDArray[np.float64], inside_s: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Return the time of each operation without the profiler's part in it [s].

    Args:
        charged: Time charged to each operation; operations that run at once share it [s].
        inside_s: What the profiler added inside the interval of each [s]; at least a quarter of the measured time is kept.

    >>> corrected_durations_s(np.array([10e-6, 1e-6]), np.array([1e-6, 1e-6])).round(8).tolist()
    [9e-06, 2.5e-07]
    """
    return np.maximum(charged - inside_s, 0.25 * charged)


def judge_operators(
    trace: RunTrace,
    ceilings: Ceilings,
    chosen: npt.NDArray[np.bool_],
    charged: npt.NDArray[np.float64],
    duration_s: npt.NDArray[np.float64],
    memory: MemoryEvidence,
) -> list[JudgedOperator]:
    """Return the verdict on every kind of operation that ran among `chosen`, in the order of `trace.operators`.

    Args:
        trace: The run.
        ceilings: The machine.
        chosen: Operations of the steady steps.
        charged: Time charged to each operation as recorded [s]. Where operations ran at once it is an equal split, which
            is exact for none of them: what was split widens the uncertainty of the share.
        duration_s: The same without the profiler's part [s].
        memory: Evidence on new memory.
    """
    op, time_s = trace.op[chosen], duration_s[chosen]
    order = np.argsort(op, kind="stable")
    op, time_s = op[order], time_s[order]
    count = len(trace.operators)
    whole = np.bincount(op, (trace.end_ns - trace.start_ns)[chosen][order] * 1e-9, minlength=count)
    mine_alone = np.bincount(op, charged[chosen][order], minlength=count)
    split = 1.0 - np.divide(mine_alone, whole, out=np.ones(count), where=whole > 0)
    starts = np.searchsorted(op, np.arange(len(trace.operators)), side="left")
    ends = np.searchsorted(op, np.arange(len(trace.operators)), side="right")
    judged = []
    for index, operator in enumerate(trace.operators):
        mine = time_s[starts[index] : ends[index]]
        if mine.size == 0:
            continue
        call_s = max(float(mine.mean()), 1e-9)
        least, judgement = judge_one(operator, call_s, trace, ceilings, memory, uncertainty_ratio=float(split[index]))
        judged.append(
            JudgedOperator(
                index=index,
                operator=operator,
                calls=int(mine.size),
                total_s=float(mine.sum()),
                call_s=call_s,
                judgement=judgement,
                least=least,
            )
        )
    return judged


def judge_one(
    operator: Operator,
    call_s: float,
    trace: RunTrace,
    ceilings: Ceilings,
    memory: MemoryEvidence,
    *,
    uncertainty_ratio: float = 0.0,
) -> tuple[LeastTime, Judgement]:
    """Return the least time of one call of `operator` and the verdict on its time `call_s` [s]."""
    demand = operator.demand
    what = _only_moves(operator)
    if isinstance(demand, Unknown):
        unknown = LeastTime(time_s=demand)
        return unknown, _moving(judge(unknown, call_s), what)
    if operator.category == "collective":
        least = _exchange(demand, ceilings, operator.scope, within_process(trace.environment))
    else:
        least = least_time(demand, ceilings, scope=operator.scope)
    judgement = judge(least, call_s, uncertainty_ratio=uncertainty_ratio, evidence=what[1] if what else "")
    if lost := unchecked(demand):
        judgement = replace(
            judgement, grade=Grade.ASSUMED, reason=f"{judgement.reason}; not checked: {' and '.join(lost)}"
        )
    if what is not None:
        return least, _moving(judgement, what)
    if judgement.bound is not Bound.UNDETERMINED or least.no_peak is not None:
        return least, judgement
    if isinstance(judgement.share_of_ceiling, Implausible):
        return _within_nearer_level(operator, demand, call_s, ceilings) or (least, judgement)
    return (
        _dispatch_dominated(least, judgement, call_s, trace, ceilings, operator_scope=operator.scope)
        or _at_farther_level(operator, demand, call_s, ceilings, judgement)
        or _page_faults(operator, least, call_s, memory, ceilings)
        or (least, judgement)
    )


def _exchange(demand: Demand, ceilings: Ceilings, scope: str, within: Unknown | None) -> LeastTime:
    """Return the least time of an exchange: that of its links alone, for a cache or an engine says nothing of waiting for peers.

    Args:
        demand: What the exchange consumes.
        ceilings: The machine.
        scope: Of the ceilings.
        within: Why no link is used, where that is known.
    """
    if within is not None:
        return LeastTime(time_s=within, unknown=(within,), needed=(within,))
    sent = {name: size for name, size in demand.link_bytes.items() if float(size) > 0}
    if not sent:
        nothing = Unknown("it sends nothing to others", ("an exchange of more than one rank",))
        return LeastTime(time_s=nothing, unknown=(nothing,))
    return least_time(Demand(link_bytes=sent), ceilings, scope=scope)


def _only_moves(operator: Operator) -> tuple[Bound, str] | None:
    """Return the bound of an operation that does nothing but send or copy: the stall itself is in the trace."""
    if operator.category == "collective":
        return Bound.NETWORK, "it only communicates, and waits for its peers"
    if operator.category == "copy" and operator.name.startswith(HOST_COPY_NAMES):
        return Bound.HOST, "a copy between host and device that nothing else hides"
    return None


def _moving(judgement: Judgement, what: tuple[Bound, str] | None) -> Judgement:
    """Return the verdict on an operation that only moves data: its time is that area's, whatever is known of its bytes."""
    if what is None:
        return judgement
    if judgement.limiting is None:
        return replace(judgement, bound=what[0], grade=Grade.MEASURED, reason=f"{what[1]}; {judgement.reason}")
    return replace(judgement, bound=what[0])


def _tiny_kernel(least: LeastTime, judgement: Judgement, call_s: float) -> tuple[LeastTime, Judgement] | None:
    """Judge a kernel of a device as short as starting and draining one takes, whatever it computes."""
    work_s = least.terms[0].time_s if least.terms else 0.0
    if not least.terms or call_s > TINY_KERNEL_S or work_s > BOUND_SHARE * call_s:
        return None
    reason = f"its own work needs {format_s(work_s)} of {format_s(call_s)}, which is of the order of starting a kernel"
    return least, replace(judgement, bound=Bound.LATENCY, grade=Grade.ASSUMED, reason=reason)


def _dispatch_dominated(
    least: LeastTime, judgement: Judgement, call_s: float, trace: RunTrace, ceilings: Ceilings, *, operator_scope: str
) -> tuple[LeastTime, Judgement] | None:
    """Judge an operation whose own work is a small part of a time that is of the order of one call.

    In torch every operation is dispatched by itself; in jax a whole computation is, so an operation inside one must be
    shorter than a dispatch. A call's cost lies partly outside the operation's interval, hence no share above 1.
    """
    cost = ceilings.fixed_cost(trace.framework)
    if isinstance(cost, Unknown):
        return _tiny_kernel(least, judgement, call_s) if operator_scope == "device" else None
    work_s = least.terms[0].time_s if least.terms else 0.0
    limit_s = cost.value * (DISPATCH_DOMINATED if trace.framework == "torch" else 1.0)
    if call_s > limit_s or work_s > min(cost.value, BOUND_SHARE * call_s):
        return None
    fixed = Term(area=Area.LATENCY, ceiling=cost, amount=1.0, time_s=cost.value)
    reason = f"its own work needs {format_s(work_s)} of {format_s(call_s)}; the rest is the cost of a call"
    bounded = replace(least, time_s=work_s, fixed=fixed)
    return bounded, replace(
        judgement,
        bound=Bound.LATENCY,
        limiting=fixed,
        share_of_ceiling=min(1.0, (work_s + cost.value) / call_s),
        headroom_s=call_s - work_s,
        grade=Grade.MODELLED,
        reason=reason,
    )


def _at_farther_level(
    operator: Operator,
    demand: Demand,
    call_s: float,
    ceilings: Ceilings,
    judgement: Judgement,
) -> tuple[LeastTime, Judgement] | None:
    """Judge against the levels behind the one that could hold the operands: they may have come from there."""
    if judgement.limiting is None or judgement.limiting.area is not Area.MEMORY:
        return None
    near = judgement.limiting.ceiling.resource.level
    names = [level.level for level in ceilings.levels]
    if near not in names:
        return None
    for level in ceilings.levels[names.index(near) + 1 :]:
        moved = replace(demand, working_set_bytes=level.capacity(operator.scope))
        least = least_time(moved, ceilings, scope=operator.scope)
        verdict = judge(least, call_s)
        if verdict.bound is Bound.MEMORY:
            text = (
                f"{verdict.reason}; the operands would fit {near.upper()} but the rate is that of {level.level.upper()}"
            )
            return least, replace(verdict, reason=text)
    return None


def _within_nearer_level(
    operator: Operator, demand: Demand, call_s: float, ceilings: Ceilings
) -> tuple[LeastTime, Judgement] | None:
    """Judge against nearer levels where the rate is above the level that the working set asks for.

    A call that reuses a part of its operands from a nearer cache is faster than the far level alone allows.
    """
    names = [level.level for level in ceilings.levels]
    least = least_time(demand, ceilings, scope=operator.scope)
    limiting = least.limiting
    if limiting is None or limiting.area is not Area.MEMORY or limiting.ceiling.resource.level not in names:
        return None
    for level in reversed(ceilings.levels[: names.index(limiting.ceiling.resource.level)]):
        moved = replace(demand, working_set_bytes=level.capacity(operator.scope))
        nearer = least_time(moved, ceilings, scope=operator.scope)
        verdict = judge(nearer, call_s)
        if is_known(verdict.share_of_ceiling):
            text = f"{verdict.reason}; faster than {limiting.ceiling.resource.level} alone allows, so partly cached"
            return nearer, replace(verdict, reason=text, grade=Grade.ASSUMED)
    return None


def _page_faults(
    operator: Operator,
    least: LeastTime,
    call_s: float,
    memory: MemoryEvidence,
    ceilings: Ceilings,
) -> tuple[LeastTime, Judgement] | None:
    """Judge an operation whose results need new memory, where mapping that memory takes a good part of its time."""
    limiting = least.limiting
    if limiting is None or limiting.area is not Area.MEMORY:
        return None
    if operator.fresh_bytes <= 0 or not memory.fresh_is_faulted:
        return None
    # Counted faults are of small pages; the rate at which this machine writes into them was measured, or is not known.
    rates = ceilings.find(scope=operator.scope, area=Area.MEMORY, mix="fresh", page="4k")
    if rates and operator.fresh_bytes / rates[0].value < BOUND_SHARE * call_s:
        return None
    return least, judge(least, call_s, evidence="its result goes into new memory, which the kernel maps by page faults")


def memory_evidence(trace: RunTrace, chosen: npt.NDArray[np.bool_], steps: int) -> MemoryEvidence:
    """Return what the page faults and the allocations of the steady steps say."""
    calls = np.bincount(trace.op[chosen], minlength=len(trace.operators))
    fresh = float(sum(o.fresh_bytes * int(n) for o, n in zip(trace.operators, calls, strict=True)))
    faults = trace.minor_faults_per_step
    return MemoryEvidence(
        faulted_bytes_per_step=None if faults is None else faults * trace.page_bytes,
        fresh_bytes_per_step=fresh / max(1, steps),
    )


def total_least_s(rows: Sequence[JudgedOperator]) -> float:
    """Return the least time of all calls of `rows` whose least time is known [s]."""
    return sum(r.least.time_s * r.calls for r in rows if is_known(r.least.time_s))
