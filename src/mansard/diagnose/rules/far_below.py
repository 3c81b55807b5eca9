"""Operations whose work is known and whose time it does not explain.

Needs: the demand of at least two kinds of operation far below every ceiling. No resource is named; a rule that knows a cause
replaces this one.
Promises: at most their observed time less their least time.
Source: docs/design.md, one equation; below a share of 0.3 no bound is claimed.
"""

from __future__ import annotations

from mansard.core import Bound, Unknown
from mansard.core.units import format_s
from mansard.diagnose.case import Case, Change, Proposal

_WHY = {
    "torch": "one thread, a slow kernel for these shapes, a layout that does not suit it",
    "jax": "a loop that XLA left on one thread or did not vectorise, a layout that does not suit it",
}


def far_below(case: Case) -> Proposal | None:
    """Advise where several kinds of operation take far longer than their bytes and FLOP need."""
    rows = [r for r in case.of_bound(Bound.UNDETERMINED) if not isinstance(r.least.time_s, Unknown)]
    rows.sort(key=lambda r: -case.headroom_s([r]))
    gain = case.headroom_s(rows)
    if len(rows) < 2 or gain <= 0:
        return None
    names = ", ".join(dict.fromkeys(r.operator.name for r in rows[:3]))
    time_s = case.per_step_s(rows)
    return Proposal(
        rule="far_below",
        change=Change.RATE,
        rows=tuple(r.index for r in rows),
        gain_s=gain,
        text=f"Find out why {len(rows)} kinds of operation run far below what their work needs, first {names}: "
        f"{_WHY.get(case.trace.framework, 'a slow kernel')}.",
        evidence=f"they take {format_s(time_s)} a step; their FLOP and bytes need {format_s(max(0.0, time_s - gain))}",
    )


RULE = far_below
