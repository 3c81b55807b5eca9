"""The device waits for launches; or it starts queued work slowly, which is another matter.

Needs: gaps between pieces of device work, told apart by whether the next piece was already queued. A long queue means that the host is
early: it is no launch overhead, however long launches wait in it.
Promises: the time of the gaps of the larger kind.
Source: docs/traces.md, launch gaps, late and queued.
"""

from __future__ import annotations

from mansard.core.units import format_s
from mansard.diagnose.case import Case, Change, Proposal

_HOW = {
    "torch": "Launch less from Python: CUDA graphs (torch.compile(mode='reduce-overhead')), fused kernels, or a larger batch.",
    "jax": "Launch less from Python: one jax.jit around the step, lax.scan over inner loops, or a larger batch.",
}

#: Relative difference of two times that are shown as one.
_SAME = 0.01


def launch_bound(case: Case) -> Proposal | None:
    """Advise on late launches, or on the number of queued ones."""
    gaps = case.facts.gaps
    if gaps is None or max(gaps.late_s, gaps.queued_s) <= 0:
        return None
    if gaps.late_s >= gaps.queued_s:
        waits: tuple[str, ...] = ("latency", "python")
        gain = min(gaps.late_s, sum(case.wait_s(w) for w in waits))
        text = _HOW.get(
            case.trace.framework, "Launch less: record the step as a graph, fuse kernels, or use a larger batch."
        )
        cut = f", {format_s(gain)} of them with no other cause" if gain < (1.0 - _SAME) * gaps.late_s else ""
        rest = (
            f"waiting for kernels that were queued already takes {format_s(gaps.queued_s)}"
            if gaps.queued_s > 0
            else "it never waits for a kernel that was queued already"
        )
        why = (
            f"for {format_s(gaps.late_s)} of a step the device is idle because the next of {gaps.launches:.0f} launches had not been "
            f"called yet{cut}; {rest}"
        )
    elif gaps.queued_s < gaps.late_s + gaps.paused_s:
        return None  # the host is not early enough to say that launches cost nothing
    else:
        waits = ("latency",)
        gain = min(gaps.queued_s, case.wait_s("latency"))
        text = (
            "Start fewer, larger kernels (fusion, a larger batch): for most of the gaps the host is early enough, and faster launches "
            "would save nothing of them."
        )
        late = f"; the device waits {format_s(gaps.late_s)} more for launches that came late" if gaps.late_s > 0 else ""
        why = (
            f"of {gaps.launches:.0f} launches a step, those that were queued in time cost the device {format_s(gaps.queued_s)} between "
            f"kernels{late}"
        )
    if gain <= 0:
        return None
    return Proposal(rule="launch_bound", change=Change.WAIT, waits=waits, gain_s=gain, text=text, evidence=why)


RULE = launch_bound
