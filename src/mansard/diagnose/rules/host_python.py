"""Nothing runs because the program's own Python runs."""

from __future__ import annotations

from mansard.core.units import format_ratio, format_s
from mansard.diagnose.records import Advice
from mansard.diagnose.rules import Case


def host_python(case: Case) -> Advice | None:
    """Advise where the time between operations is the program's own code."""
    python = case.account.host.get("python", 0.0)
    if python <= 0:
        return None
    return Advice(
        rule="host_python",
        gain_s=python,
        text="Move Python work out of the step (logging, conversions, waiting, data preparation), or run it beside the step.",
        evidence=f"for {format_s(python)} of a step ({format_ratio(python / case.account.step_s)}) no operation runs "
        "and none is being dispatched",
    )


RULE = host_python
