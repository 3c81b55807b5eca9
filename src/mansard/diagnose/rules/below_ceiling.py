"""Operations with known work that stay below the ceiling that limits them."""

from __future__ import annotations

from mansard.core import Area, Bound, is_known
from mansard.core.units import format_s
from mansard.diagnose.records import Advice
from mansard.diagnose.rules import Case

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


def below_ceiling(case: Case) -> Advice | None:
    """Advise on the kind of operation with the most recoverable seconds."""
    best, best_gain = None, 0.0
    for row in case.judged:
        limiting = row.judgement.limiting
        how = None if limiting is None else _HOW.get((limiting.area, case.trace.framework))
        if how is None or row.judgement.bound in (Bound.LATENCY, Bound.UNDETERMINED):
            continue
        gain = case.headroom_s([row])
        if gain > best_gain:
            best, best_gain = row, gain
    if best is None or best.judgement.limiting is None or not is_known(best.judgement.share_of_ceiling):
        return None
    return Advice(
        rule="below_ceiling",
        gain_s=best_gain,
        text=f"Look at {best.operator.name} {best.operator.shapes}: {_HOW[best.judgement.limiting.area, case.trace.framework]}.",
        evidence=f"{format_s(case.per_step_s([best]))} a step at {best.judgement.share_of_ceiling:.2f} of its "
        f"{best.judgement.limiting.ceiling.resource.label} ceiling",
    )


RULE = below_ceiling
