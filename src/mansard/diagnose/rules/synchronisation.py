"""The device is idle while the host waits for it.

Needs: recorded synchronisations during which nothing runs. A synchronisation with a busy device is only where the host waits, and costs
nothing by itself.
Promises: at most the idle time.
Source: docs/traces.md, idle time by cause.
"""

from __future__ import annotations

from mansard.core.units import format_ratio, format_s
from mansard.diagnose.case import Case, Change, Proposal

_HOW = {
    "torch": "Synchronise less: read losses a step later instead of .item() in each, avoid .cpu(), nonzero() and synchronize() in the step.",
    "jax": "Synchronise less: read results a step later instead of float(loss) or block_until_ready() in each step.",
}


def synchronisation(case: Case) -> Proposal | None:
    """Advise on synchronisations that leave the device idle."""
    time_s = case.wait_s("sync")
    if time_s <= 0:
        return None
    return Proposal(
        rule="synchronisation",
        change=Change.WAIT,
        waits=("sync",),
        gain_s=time_s,
        text=_HOW.get(case.trace.framework, "Synchronise less: read results a step later."),
        evidence=f"for {format_s(time_s)} of a step ({format_ratio(time_s / case.account.step_s)}) the host waits in a synchronisation "
        "while nothing runs",
    )


RULE = synchronisation
