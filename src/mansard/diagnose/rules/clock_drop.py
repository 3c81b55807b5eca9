"""The clock was lower than when the ceilings were measured.

Needs: the clock during the run and that of the ceilings.
Promises: the time of compute-bound operations times the drop, and not more than their headroom. Memory has a clock of its own.
Source: docs/hardware.md, a derived peak is units x width x clock.
"""

from __future__ import annotations

from mansard.core import Bound, Grade
from mansard.core.units import format_hz, format_ratio, format_s
from mansard.diagnose.case import Case, Change, Proposal

#: Clocks are read, not exact: less is noise.
_WORTH = 0.03


def clock_drop(case: Case) -> Proposal | None:
    """Advise on power and heat where the clock fell."""
    clock = case.facts.clock
    rows = case.of_bound(Bound.COMPUTE)
    if clock is None or clock.ceiling_hz <= 0 or not rows:
        return None
    drop = 1.0 - clock.observed_hz / clock.ceiling_hz
    if drop < _WORTH:
        return None
    time_s = case.per_step_s(rows)
    return Proposal(
        rule="clock_drop",
        change=Change.RATE,
        rows=tuple(r.index for r in rows),
        gain_s=min(time_s * drop, case.headroom_s(rows)),
        grade=Grade.MEASURED,
        text="Keep the clock up: raise the power cap, cool better, or state the lower clock with every figure.",
        evidence=f"the clock was {format_hz(clock.observed_hz)}, {format_ratio(drop)} below the {format_hz(clock.ceiling_hz)} of the ceilings"
        f"{f' ({clock.reason})' if clock.reason else ''}; compute-bound operations take {format_s(time_s)}",
    )


RULE = clock_drop
