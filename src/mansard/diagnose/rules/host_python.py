"""Nothing runs because the program's own Python runs.

Needs: time between operations in which nothing is dispatched and no wait was recorded.
Promises: at most that time.
Source: docs/design.md, time shares of a step.
"""

from __future__ import annotations

from mansard.core.units import format_ratio, format_s
from mansard.diagnose.case import Case, Change, Proposal

_HOW = {
    "torch": "Move Python work out of the step (logging, .item(), conversions), or run it beside the step: data preparation in "
    "DataLoader workers, results read a step later.",
    "jax": "Move Python work out of the step (logging, float(loss), NumPy), or run it beside the step: launches return at once, "
    "so prepare the next batch in a prefetch thread and read results a step later.",
}


def host_python(case: Case) -> Proposal | None:
    """Advise where the time between operations is the program's own code."""
    python = case.account.host.get("python", 0.0)
    if python <= 0:
        return None
    return Proposal(
        rule="host_python",
        change=Change.WAIT,
        waits=("python",),
        gain_s=python,
        text=_HOW.get(case.trace.framework, "Move Python work out of the step, or run it beside the step."),
        evidence=f"for {format_s(python)} of a step ({format_ratio(python / case.account.step_s)}) no operation runs "
        "and none is being dispatched",
    )


RULE = host_python
