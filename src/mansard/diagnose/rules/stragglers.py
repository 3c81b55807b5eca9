"""Collectives wait for a peer that arrives late.

Needs: profiles of several ranks: the time of this rank's collectives beyond that of the peer that arrives last. Without them a long
collective may be transfer or waiting, and nothing is said.
Promises: that waiting, as far as it is exposed.
Source: the last to arrive at a collective waits least, so the shortest kernel is nearest to the transfer (docs/traces.md).
"""

from __future__ import annotations

from mansard.core.units import format_ratio, format_s
from mansard.diagnose.case import Case, Change, Proposal

#: From this part of all lateness on, one rank is called the straggler.
_STANDS_OUT = 0.5


def stragglers(case: Case) -> Proposal | None:
    """Advise on the rank that others wait for, or on skew where none stands out."""
    ranks = case.facts.ranks
    exposed = case.wait_s("network")
    if ranks is None or ranks.waiting_s <= 0 or exposed <= 0:
        return None
    gain = min(ranks.waiting_s, exposed)
    if ranks.straggler is not None and ranks.straggler != ranks.rank and ranks.straggler_share >= _STANDS_OUT:
        text = f"Look at rank {ranks.straggler}: it arrives last (its input, its clock, its share of the work), and the others wait for it."
        who = f"rank {ranks.straggler} has {format_ratio(ranks.straggler_share)} of all lateness"
    else:
        text = "Even out the arrival of ranks: balance sequence lengths and experts, and keep garbage collection and logging out of step."
        who = f"no rank of {ranks.ranks} stands out: arrival is skewed"
    return Proposal(
        rule="stragglers",
        change=Change.WAIT,
        waits=("network",),
        gain_s=gain,
        text=text,
        evidence=f"collectives of rank {ranks.rank} take {format_s(ranks.waiting_s)} a step longer than those of the last to arrive; {who}",
    )


RULE = stragglers
