"""Most of the time goes into starting operations, not into their work.

Needs: operations whose own work is smaller than the measured cost of a call. Where a profile tells late launches from queued
ones, `launch_bound` speaks instead.
Promises: at most the time of launch and dispatch, less the work of the operations in it.
Source: docs/design.md, one equation: the fixed cost of a launch is a resource of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from mansard.core import Bound
from mansard.core.units import format_ratio, format_s
from mansard.diagnose.case import Case, Change, Proposal
from mansard.diagnose.judge_operators import JudgedOperator

_HOW = {
    "torch": "Start fewer operations: torch.compile the step, batch small tensors together, use the foreach or fused optimizer.",
    "jax": "Start fewer computations: put the whole step under one jax.jit, and inner loops into lax.scan or lax.fori_loop.",
}
_INSIDE = (
    "Give the compiled program larger operations: a larger batch, or more work in each pass of its loop (unroll=)."
)


def _inside_programs(case: Case, rows: Sequence[JudgedOperator]) -> bool:
    """Return whether most of these operations are small pieces of large compiled programs."""
    programs = case.programs()
    inside = sum(r.total_s for r in rows if programs[r.index])
    return inside > 0.5 * sum(r.total_s for r in rows)


def dispatch(case: Case) -> Proposal | None:
    """Advise where launch and dispatch cost fills the step."""
    latency = case.account.by_kind.get("latency", 0.0)
    rows = case.of_bound(Bound.LATENCY)
    calls = case.calls(rows)
    if latency <= 0 or calls < 1 or case.facts.gaps is not None:
        return None
    work = sum(r.least.terms[0].time_s * r.calls for r in rows if r.least.terms) / case.windows.count
    return Proposal(
        rule="dispatch",
        change=Change.WAIT,
        waits=("latency",),
        gain_s=max(0.0, latency - work),
        text=_INSIDE
        if _inside_programs(case, rows)
        else _HOW.get(case.trace.framework, "Start fewer, larger operations."),
        evidence=f"{calls:.0f} operations a step are so small that calling them is their cost: {format_s(latency)}, "
        f"{format_ratio(latency / case.account.step_s)} of the step",
    )


RULE = dispatch
