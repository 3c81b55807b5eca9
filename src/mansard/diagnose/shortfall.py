"""Why an operation is below its ceiling, factored as far as can be known: clock, filled units, and what is left.

What is left holds the width of SIMD or the use of tensor units, the rate of issue, and waiting: without hardware counters these
cannot be told apart, and none of them is claimed.
"""

from __future__ import annotations

from mansard.core import Area, is_known
from mansard.diagnose.case import Case
from mansard.diagnose.judge_operators import JudgedOperator


def factors_of(case: Case, row: JudgedOperator) -> dict[str, float]:
    """Return factors whose product is the share of the ceiling; only those that something tells, and the rest.

    `clock` is the observed clock over that of the ceilings, `filled units` the share of the units' time that has work,
    or of cores that are kept busy, `rest` what remains.

    Args:
        case: The run.
        row: A kind of operation with a known share of a compute ceiling.
    """
    limiting = row.judgement.limiting
    share = row.judgement.share_of_ceiling
    if limiting is None or limiting.area is not Area.COMPUTE or not is_known(share) or share <= 0:
        return {}
    found: dict[str, float] = {}
    if case.facts.clock is not None:
        found["clock"] = min(1.0, case.facts.clock.observed_hz / case.facts.clock.ceiling_hz)
    if row.index in case.facts.grids:
        found["filled units"] = case.facts.grids[row.index].filled_units_ratio
    elif case.facts.cores_busy is not None and row.operator.scope == "node":
        found["filled units"] = min(1.0, case.facts.cores_busy / case.trace.threads)
    if not found:
        return {}
    rest = share
    for factor in found.values():
        rest /= factor
    return {**found, "rest": rest}


def shortfall_text(case: Case, row: JudgedOperator) -> str:
    """Return the factors as the end of a sentence; empty where nothing tells them apart."""
    found = factors_of(case, row)
    if not found:
        return ""
    words = " x ".join(f"{name} {value:.2f}" for name, value in found.items())
    return f" = {words} (the rest: tensor units, SIMD width, issue and waiting, which counters alone tell apart)"
