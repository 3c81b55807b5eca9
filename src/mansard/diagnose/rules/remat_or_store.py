"""Work is executed again to save memory, and memory is free.

Needs: operations recognised as recomputation, and how much memory the run left free.
Promises: the share of the recomputed time whose results fit into the free memory: all of it where every result can be kept.
Source: Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016; what is recomputed is what is not stored.
"""

from __future__ import annotations

from mansard.core import Demand
from mansard.core.units import format_binary_bytes, format_ratio, format_s
from mansard.diagnose.case import Case, Change, Proposal

_HOW = {
    "torch": "Keep more activations: checkpoint fewer layers, or use a selective policy (create_selective_checkpoint_contexts).",
    "jax": "Keep more activations: a looser jax.checkpoint policy, such as dots_with_no_batch_dims_saveable.",
}


def remat_or_store(case: Case) -> Proposal | None:
    """Advise on storing what is recomputed, as far as memory reaches."""
    free = case.facts.memory.free_bytes
    rows = [r for r in case.judged if r.operator.recompute]
    if free is None or free <= 0 or not rows:
        return None
    # Every result once: an upper bound of what would have to be kept.
    needed = sum(float(r.operator.demand.write_bytes) * r.calls for r in rows if isinstance(r.operator.demand, Demand))
    needed /= case.windows.count
    time_s = case.per_step_s(rows)
    if needed <= 0:
        return None
    kept = min(1.0, free / needed)
    return Proposal(
        rule="remat_or_store",
        change=Change.WORK,
        rows=tuple(r.index for r in rows),
        gain_s=time_s * kept,
        text=_HOW.get(case.trace.framework, "Keep more activations: recompute fewer layers."),
        evidence=f"{format_s(time_s)} a step ({format_ratio(time_s / case.account.step_s)}) recompute {format_binary_bytes(needed)} of "
        f"results; {format_binary_bytes(free)} of memory were never used, enough for {format_ratio(kept)} of them",
    )


RULE = remat_or_store
