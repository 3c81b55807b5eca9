"""Attention is computed with matrices of scores in memory.

Needs: a softmax between two matrix products on one lane, over as many bytes as the first product writes, with the demand of all three.
Promises: the time of what handles scores between the products (scale, mask, softmax, dropout), less the arithmetic of it that a
fused kernel must still do. The products themselves are not promised to be faster.
Source: Dao et al., FlashAttention, 2022: tiles keep scores on the chip, exact results.
"""

from __future__ import annotations

from mansard.core.units import format_bytes, format_s
from mansard.diagnose.attention_chain import attention_chains
from mansard.diagnose.case import Case, Change, Proposal

_HOW = {
    "torch": "Compute attention with torch.nn.functional.scaled_dot_product_attention, which keeps scores out of memory.",
    "jax": "Compute attention with jax.nn.dot_product_attention, or a fused Pallas kernel, which keeps scores out of memory.",
}


def attention_implementation(case: Case) -> Proposal | None:
    """Advise on a fused attention where scores pass through memory."""
    chain = attention_chains(case)
    if chain is None:
        return None
    gain = min(chain.between_s - chain.arithmetic_s, chain.between_s)
    if gain <= 0:
        return None
    return Proposal(
        rule="attention_implementation",
        change=Change.WORK,
        rows=chain.between,
        gain_s=gain,
        text=_HOW.get(case.trace.framework, "Compute attention with a fused kernel, which keeps scores out of memory."),
        evidence=f"in {chain.count:.0f} place(s) of a step, {format_bytes(chain.score_bytes)} of scores pass through memory between two "
        f"products; what handles them takes {format_s(chain.between_s)}",
    )


RULE = attention_implementation
