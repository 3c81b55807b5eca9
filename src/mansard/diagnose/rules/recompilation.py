"""Steady steps compile.

Needs: compilation recorded inside steps that are past the warm-up.
Promises: at most its time.
Source: docs/design.md, time shares of a step; PyTorch and JAX documentation: a new shape is a new compilation.
"""

from __future__ import annotations

from mansard.core.units import format_ratio, format_s
from mansard.diagnose.case import Case, Change, Proposal

_HOW = {
    "torch": "Stop recompiling: pad to few shapes, or mark_dynamic; TORCH_LOGS=recompiles names the guard that failed.",
    "jax": "Stop recompiling: pad to few shapes, keep static arguments constant; jax_explain_cache_misses says what changed.",
}


def recompilation(case: Case) -> Proposal | None:
    """Advise on shapes and static arguments where steady steps compile."""
    time_s = case.wait_s("compile")
    if time_s <= 0:
        return None
    return Proposal(
        rule="recompilation",
        change=Change.WAIT,
        waits=("compile",),
        gain_s=time_s,
        text=_HOW.get(case.trace.framework, "Stop recompiling: pad to few shapes."),
        evidence=f"steady steps compile for {format_s(time_s)} each ({format_ratio(time_s / case.account.step_s)})",
    )


RULE = recompilation
