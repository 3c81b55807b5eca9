"""One kind of operation stays below the ceiling that limits it.

Needs: the demand of the operation and a ceiling for it. No cause is claimed beyond the factors that are on record (clock, filled
units); a rule that knows a cause replaces this one.
Promises: at most its observed time less its least time, over all its calls.
Source: docs/design.md, one equation (Williams, Waterman, Patterson, Roofline, CACM 52(4), 2009).
"""

from __future__ import annotations

from mansard.core import Area, Bound, is_known
from mansard.core.units import format_s
from mansard.diagnose.case import Case, Change, Proposal
from mansard.diagnose.host_copies import is_small
from mansard.diagnose.shortfall import shortfall_text

_HOW = {
    (
        Area.COMPUTE,
        "torch",
    ): "make its matrices larger or batch it (torch.bmm), pad odd sizes to a multiple of 16, or try torch.compile",
    (
        Area.MEMORY,
        "torch",
    ): "check strides and layout (.contiguous(), channels_last), reuse buffers (out=), or try torch.compile",
    (
        Area.COMPUTE,
        "jax",
    ): "make its matrices larger or batch it (jax.vmap), pad odd sizes to a multiple of 16, or write the "
    "product in another order",
    (
        Area.MEMORY,
        "jax",
    ): "check for transposes and copies around it, donate arguments (donate_argnums), or let jax.jit fuse it "
    "with its neighbours",
}
_OF_ANY = {
    Area.COMPUTE: "make its matrices larger or batch it, pad odd sizes to whole tiles, or use another kernel",
    Area.MEMORY: "check strides and layout, or fuse it with its neighbours",
    Area.NETWORK: "find out what keeps it from filling the link: pieces too small, a late peer, other traffic",
    Area.HOST: "find out what keeps it from filling the link: pieces too small, pageable memory, other traffic",
}


def below_ceiling(case: Case) -> Proposal | None:
    """Advise on the kind of operation with the most recoverable seconds."""
    best, best_gain, best_how = None, 0.0, ""
    for row in case.judged:
        limiting = row.judgement.limiting
        if limiting is None or row.judgement.bound in (Bound.LATENCY, Bound.UNDETERMINED):
            continue
        area = Area.HOST if row.judgement.bound is Bound.HOST else limiting.area
        how = _HOW.get((area, case.trace.framework)) or _OF_ANY.get(area)
        told = case.facts.transfers.get(row.index)
        if area is Area.HOST and told is not None and told.pinned:
            small = "pieces that are too small, " if is_small(case, row) else ""
            how = (
                f"its memory is pinned: look for {small}other traffic on the link, fewer lanes or an older generation than the "
                "ceiling's, or memory of a farther socket"
            )
        gain = case.headroom_s([row])
        if how is not None and gain > best_gain:
            best, best_gain, best_how = row, gain, how
    if best is None or best.judgement.limiting is None or not is_known(best.judgement.share_of_ceiling):
        return None
    return Proposal(
        rule="below_ceiling",
        change=Change.RATE,
        rows=(best.index,),
        gain_s=best_gain,
        text=f"Look at {best.operator.name}{f' {best.operator.shapes}' if best.operator.shapes else ''}: {best_how}.",
        evidence=f"{format_s(case.per_step_s([best]))} a step at {best.judgement.share_of_ceiling:.2f} of its "
        f"{best.judgement.limiting.ceiling.resource.label} ceiling{shortfall_text(case, best)}",
    )


RULE = below_ceiling
