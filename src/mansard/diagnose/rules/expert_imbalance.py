"""Some experts get more tokens than others, and their device is waited for.

Needs: routed tokens by rank, for experts that are spread over several; operations of experts in the trace.
Promises: on the fullest rank, the time of its experts times what it has above the mean; on any other, its exposed wait for it, at most
as long. Tokens of one device's experts add up, so balance inside a device is not counted.
Source: Fedus et al., Switch Transformers, JMLR 2022: load balancing over experts.
"""

from __future__ import annotations

from mansard.core.units import format_ratio, format_s
from mansard.diagnose.case import Case, Change, Proposal


def expert_imbalance(case: Case) -> Proposal | None:
    """Advise on balancing experts over ranks."""
    experts = case.facts.experts
    rows = case.of_category("moe")
    if experts is None or len(experts.tokens_by_rank) < 2 or not rows:
        return None
    loads = experts.tokens_by_rank
    fullest, mean, mine = max(loads), sum(loads) / len(loads), loads[experts.rank]
    if mean <= 0 or fullest <= mean or mine <= 0:
        return None
    time_s = case.per_step_s(rows)
    waits: tuple[str, ...]
    if mine >= fullest:
        change, waits, gain = Change.WORK, (), time_s * (1.0 - mean / fullest)
    else:
        # The fullest rank computes this much longer than this one, and longer than an even load by a part of it.
        longest = time_s * fullest / mine
        change, waits = Change.WAIT, ("network",)
        gain = min(longest * (1.0 - mean / fullest), case.wait_s("network"))
    if gain <= 0:
        return None
    return Proposal(
        rule="expert_imbalance",
        change=change,
        rows=tuple(r.index for r in rows) if change is Change.WORK else (),
        waits=waits,
        gain_s=gain,
        text="Balance the experts over ranks: an auxiliary loss or bias, capacity limits, or copies of the busiest experts.",
        evidence=f"the fullest of {len(loads)} ranks has {format_ratio(fullest / mean - 1.0)} more tokens than the mean; the experts of this "
        f"rank take {format_s(time_s)}",
    )


RULE = expert_imbalance
