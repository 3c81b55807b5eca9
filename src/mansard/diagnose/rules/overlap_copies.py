"""Copies between host and device that nothing hides.

Needs: time in which such a copy runs and no kernel does.
Promises: at most that time, and at most the computation that could hide it.
Source: docs/design.md, computing counts before communicating before copying.
"""

from __future__ import annotations

from mansard.core.units import format_ratio, format_s
from mansard.diagnose.case import Case, Change, Proposal

_HOW = {
    "torch": "Prefetch: copy the next batch on a stream of its own while this one computes (pinned memory, non_blocking=True), and read "
    "results a step later.",
    "jax": "Prefetch: call jax.device_put for the next batch before this one is done, and read results a step later.",
}


def overlap_copies(case: Case) -> Proposal | None:
    """Advise on copying beside the computation."""
    rows = case.host_copies()
    exposed = case.wait_s("host") - sum(case.account.host.values())
    gain = min(exposed, case.computing_s(), case.per_step_s(rows))
    if not rows or gain <= 0:
        return None
    return Proposal(
        rule="overlap_copies",
        change=Change.WORK,
        rows=tuple(r.index for r in rows),
        gain_s=gain,
        text=_HOW.get(
            case.trace.framework, "Prefetch: copy the next batch on a stream of its own while this one computes."
        ),
        evidence=f"for {format_s(exposed)} of a step ({format_ratio(exposed / case.account.step_s)}) only copies between host and device "
        "run",
    )


RULE = overlap_copies
