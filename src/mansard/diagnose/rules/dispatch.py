"""Most of the time goes into starting operations, not into their work."""

from __future__ import annotations

from mansard.core import Bound
from mansard.core.units import format_ratio, format_s
from mansard.diagnose.records import Advice
from mansard.diagnose.rules import Case

_HOW = {
    "torch": "Start fewer operations: torch.compile the step, batch small tensors together, use the fused or foreach optimizer.",
    "jax": "Start fewer computations: put the whole loop body under one jax.jit, and inner loops into lax.scan or lax.fori_loop.",
}


def dispatch(case: Case) -> Advice | None:
    """Advise where launch and dispatch cost fills the step."""
    latency = case.account.by_kind.get("latency", 0.0)
    rows = case.of_bound(Bound.LATENCY)
    calls = sum(r.calls for r in rows) / case.windows.count
    if latency <= 0 or calls < 1:
        return None
    work = sum(r.least.terms[0].time_s * r.calls for r in rows if r.least.terms) / case.windows.count
    return Advice(
        rule="dispatch",
        gain_s=max(0.0, latency - work),
        text=_HOW.get(case.trace.framework, "Start fewer, larger operations."),
        evidence=f"{calls:.0f} operations a step are so small that calling them is their cost: {format_s(latency)}, "
        f"{format_ratio(latency / case.account.step_s)} of the step",
    )


RULE = dispatch
