"""A part of the tokens is padding, and is computed like the others.

Needs: tokens of a step with and without padding; products whose rows are these tokens.
Promises: the padded share of the time of these products, at the rate they reached. Attention is left out: its padding goes with the
square of the length of each sequence, which is not known.
Source: docs/conventions.md, useful and padded tokens are two numbers.
"""

from __future__ import annotations

from mansard.core.units import format_ratio, format_s
from mansard.diagnose.case import Case, Change, Proposal
from mansard.diagnose.facts import product_of


def padding(case: Case) -> Proposal | None:
    """Advise on packing sequences where padding is computed."""
    facts = case.facts.workload
    if facts.tokens is None or facts.real_tokens is None or not 0 < facts.real_tokens < facts.tokens:
        return None
    rows = [r for r in case.of_category("gemm") if (p := product_of(r.operator)) and facts.tokens in (p.m, p.k)]
    if not rows:
        return None
    wasted = 1.0 - facts.real_tokens / facts.tokens
    time_s = case.per_step_s(rows)
    return Proposal(
        rule="padding",
        change=Change.WORK,
        rows=tuple(r.index for r in rows),
        gain_s=time_s * wasted,
        text="Pack sequences, or sort them by length: padding is computed like everything else.",
        evidence=f"{format_ratio(wasted)} of {facts.tokens} tokens are padding; the products over all of them take {format_s(time_s)}",
    )


RULE = padding
