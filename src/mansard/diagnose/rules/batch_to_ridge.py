"""Matrix products with few rows read all weights for little work.

Needs: decoding (from the user or the model), memory-bound products with fewer rows than the ridge, and the ceilings of both resources.
Promises: time per token, written as seconds of this step: up to the ridge, m rows take about as long as one, so a step of the same
tokens costs m over the rows at the ridge. The step itself gets no shorter, and latency per token may grow.
Source: docs/design.md, ridge point = peak over bandwidth; with m rows a product does 2 m k n FLOP on b (k n + m (k + n)) bytes.
"""

from __future__ import annotations

from mansard.core import Area, Bound, Demand, Unknown
from mansard.core.dtypes import dtype_bytes
from mansard.core.units import format_s
from mansard.diagnose.case import Case, Change, Proposal
from mansard.diagnose.facts import product_of
from mansard.diagnose.judge_operators import JudgedOperator


def ridge_rows(case: Case, row: JudgedOperator) -> tuple[int, float] | None:
    """Return the rows of a product and those at which compute and memory take equally long; None where there are none."""
    product, demand, limiting = product_of(row.operator), row.operator.demand, row.judgement.limiting
    if (
        product is None
        or product.batch != 1
        or not isinstance(demand, Demand)
        or limiting is None
        or limiting.area is not Area.MEMORY
    ):
        return None
    (dtype, accumulate) = next(iter(demand.flop))
    peak = case.ceilings.peak(dtype, accumulate=accumulate, scope=row.operator.scope)
    if isinstance(peak, Unknown):
        return None
    width, rate = dtype_bytes(product.dtype), limiting.ceiling.value
    per_row = 2.0 * product.k * product.n / peak.value - width * (product.k + product.n) / rate
    if per_row <= 0:
        return None
    return product.m, width * product.k * product.n / rate / per_row


def batch_to_ridge(case: Case) -> Proposal | None:
    """Advise on more sequences at once where weights are read for few tokens."""
    if case.facts.workload.phase != "decode":
        return None
    rows, gain, few, at = [], 0.0, 0, 0.0
    for row in case.of_bound(Bound.MEMORY):
        found = ridge_rows(case, row)
        if found is None or found[0] >= found[1]:
            continue
        rows.append(row)
        gain += case.per_step_s([row]) * (1.0 - found[0] / found[1])
        few, at = max(few, found[0]), max(at, found[1])
    if not rows:
        return None
    return Proposal(
        rule="batch_to_ridge",
        change=Change.WORK,
        rows=tuple(r.index for r in rows),
        gain_s=gain,
        text=f"Decode more sequences at once, up to about {at:.0f}: the weights are read once for all of them.",
        evidence=f"products of {few} rows are memory-bound for {format_s(case.per_step_s(rows))} a step; the ridge lies at {at:.0f} rows; the "
        "gain is per token",
    )


RULE = batch_to_ridge
