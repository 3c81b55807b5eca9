"""Decoding reads its cache in a wide type.

Needs: the phase, the type of the cache and the bytes of it that one step reads; memory-bound attention.
Promises: the share of that attention's time that the cache bytes have, times the bytes an 8-bit cache saves. Scales, conversion and the
effect on quality are not counted: at most.
Source: docs/models.md, cache bytes per token are 2 n_kv d b.
"""

from __future__ import annotations

from mansard.core import Bound, Demand
from mansard.core.dtypes import dtype_bytes
from mansard.core.units import format_bytes, format_s
from mansard.diagnose.case import Case, Change, Proposal


def kv_cache_dtype(case: Case) -> Proposal | None:
    """Advise on an 8-bit cache where decoding is bound by reading it."""
    facts = case.facts.workload
    rows = [
        r
        for r in case.of_category("attention")
        if r.judgement.bound is Bound.MEMORY and isinstance(r.operator.demand, Demand)
    ]
    if facts.phase != "decode" or facts.cache_bytes is None or not facts.cache_dtype or not rows:
        return None
    width = dtype_bytes(facts.cache_dtype)
    moved = sum(float(r.operator.demand.bytes) * r.calls for r in rows if isinstance(r.operator.demand, Demand))
    moved /= case.windows.count
    if width <= 1 or moved <= 0:
        return None
    share = min(1.0, facts.cache_bytes / moved)
    time_s = case.per_step_s(rows)
    return Proposal(
        rule="kv_cache_dtype",
        change=Change.WORK,
        rows=tuple(r.index for r in rows),
        gain_s=time_s * share * (1.0 - 1.0 / width),
        text="Store the cache of keys and values in 8 bits (kv_cache_dtype=fp8), if the model allows it.",
        evidence=f"attention reads {format_bytes(facts.cache_bytes)} of {facts.cache_dtype} cache a step and is memory-bound for "
        f"{format_s(time_s)}",
    )


RULE = kv_cache_dtype
