"""Causal attention is computed over the full square.

Needs: that the mask is causal (from the model or the user), and attention as separate products around a softmax: products know no mask.
Promises: half of the time of these products, less the diagonal: of s keys a query needs (s + 1) / 2 on average. Tiles on the
diagonal are computed in full, so it is an upper bound.
Source: docs/conventions.md, causal and full attention; mean number of keys (s + 1) / 2.
"""

from __future__ import annotations

from mansard.core.units import format_ratio, format_s
from mansard.diagnose.attention_chain import attention_chains
from mansard.diagnose.case import Case, Change, Proposal
from mansard.diagnose.facts import product_of

_HOW = {
    "torch": "Use scaled_dot_product_attention(is_causal=True): it leaves out the keys that the mask hides.",
    "jax": "Use a causal fused attention (jax.nn.dot_product_attention with is_causal=True, or splash attention).",
}


def causal_full(case: Case) -> Proposal | None:
    """Advise on a causal kernel where the whole square is computed."""
    if case.facts.workload.causal is not True:
        return None
    chain = attention_chains(case)
    if chain is None:
        return None
    sizes = [p for i in chain.products if (p := product_of(case.trace.operators[i])) is not None]
    keys = max((p.n for p in sizes), default=0)
    # At decode one query sees all keys: there is nothing to leave out.
    square = [p for p in sizes if p.m == p.n or p.m == p.k]
    if not square or keys < 2:
        return None
    length = min(p.m for p in square)
    saved = 1.0 - (length + 1) / (2.0 * length)
    return Proposal(
        rule="causal_full",
        change=Change.WORK,
        rows=chain.products,
        gain_s=chain.product_s * saved,
        text=_HOW.get(
            case.trace.framework, "Use a causal attention kernel: it leaves out the keys that the mask hides."
        ),
        evidence=f"the products around the softmax take {format_s(chain.product_s)} over {length} x {length} scores, of which the mask "
        f"hides {format_ratio(saved)}",
    )


RULE = causal_full
