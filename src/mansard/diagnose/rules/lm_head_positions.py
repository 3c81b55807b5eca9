"""The output head is computed for positions whose logits nobody reads.

Needs: the phase (prefill or decode), the sequences of a step and the vocabulary; a matrix product with as many columns as the vocabulary
and more rows than sequences. In training all logits are needed, and without a phase it stays silent.
Promises: the time of that product less its share for one position of each sequence, at the rate it reached.
Source: docs/models.md; the head costs 2 h V FLOP for each position whose logits are needed: one at the end of a prefill.
"""

from __future__ import annotations

from mansard.core.units import format_s
from mansard.diagnose.case import Case, Change, Proposal
from mansard.diagnose.facts import product_of


def lm_head_positions(case: Case) -> Proposal | None:
    """Advise on computing the head for the last position of each sequence alone."""
    facts = case.facts.workload
    if facts.phase not in ("prefill", "decode") or facts.vocab is None or facts.sequences is None:
        return None
    for row in case.of_category("gemm"):
        product = product_of(row.operator)
        if product is None or product.n != facts.vocab or product.m <= facts.sequences:
            continue
        time_s = case.per_step_s([row])
        return Proposal(
            rule="lm_head_positions",
            change=Change.WORK,
            rows=(row.index,),
            gain_s=time_s * (1.0 - facts.sequences / product.m),
            text="Compute the output head for the last position of each sequence alone (slice the hidden state first).",
            evidence=f"{row.operator.name} computes {product.m} rows of {product.n} logits in {format_s(time_s)}; "
            f"{facts.sequences} are read",
        )
    return None


RULE = lm_head_positions
