"""Counted traffic is much larger than the data that is needed: strided or scattered access, or operands read again and again.

Needs: traffic of a memory level from hardware counters beside the compulsory bytes of the same operation. A low bandwidth alone is
no evidence.
Promises: the share of the traffic that is not compulsory, of the time of memory-bound operations.
Source: docs/design.md, bytes are compulsory traffic, each operand once; NVIDIA CUDA C++ Best Practices Guide, coalesced access.
"""

from __future__ import annotations

from mansard.core import Area, Bound, Demand
from mansard.core.units import format_bytes, format_s
from mansard.diagnose.case import Case, Change, Proposal
from mansard.diagnose.judge_operators import JudgedOperator

#: Less excess than this is what caches and sectors cost everybody.
WORTH = 1.3


def _traffic(row: JudgedOperator) -> tuple[float, float] | None:
    """Return counted and compulsory bytes of one call at the level that limits it [B]."""
    demand, limiting = row.operator.demand, row.judgement.limiting
    if not isinstance(demand, Demand) or limiting is None or limiting.area is not Area.MEMORY:
        return None
    counted = demand.level_bytes.get(limiting.ceiling.resource.level or "")
    if counted is None or float(demand.bytes) <= 0:
        return None
    return float(counted), float(demand.bytes)


def strided_access(case: Case) -> Proposal | None:
    """Advise on the access pattern where counters see more traffic than the data has bytes."""
    rows, gain, counted, needed = [], 0.0, 0.0, 0.0
    for row in case.of_bound(Bound.MEMORY):
        found = _traffic(row)
        if found is None or found[0] < WORTH * found[1]:
            continue
        rows.append(row)
        gain += case.per_step_s([row]) * (1.0 - found[1] / found[0])
        counted += found[0] * case.calls([row])
        needed += found[1] * case.calls([row])
    if not rows:
        return None
    first = max(rows, key=lambda r: r.total_s)
    return Proposal(
        rule="strided_access",
        change=Change.WORK,
        rows=tuple(r.index for r in rows),
        gain_s=gain,
        text=f"Make neighbouring threads read neighbouring data, first in {first.operator.name}: change the order of loops or the layout, "
        "or tile it so that operands are read once.",
        evidence=f"counters see {format_bytes(counted)} a step where the data has {format_bytes(needed)}; these operations take "
        f"{format_s(case.per_step_s(rows))}",
    )


RULE = strided_access
