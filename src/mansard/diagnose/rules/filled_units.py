"""Kernels leave compute units empty: a last wave with few blocks, or cores without work.

Needs: blocks of a kernel and the units of the device; or the processor time that the process used while operations ran.
Promises: the time of these operations times the share in which units are empty, and not more than their headroom. A unit counts as
full with one block: empty places of a busy unit promise nothing.
Source: NVIDIA, Matrix Multiplication Background User's Guide, wave quantisation.
"""

from __future__ import annotations

from mansard.core import Bound
from mansard.core.units import format_ratio, format_s
from mansard.diagnose.case import Case, Change, Proposal
from mansard.diagnose.judge_operators import JudgedOperator

#: Fuller than this is as good as it gets.
_FULL = 0.9


def _filled(case: Case, row: JudgedOperator) -> float | None:
    grid = case.facts.grids.get(row.index)
    if grid is not None:
        return grid.filled_units_ratio
    compute = row.judgement.bound is Bound.COMPUTE and row.operator.scope == "node"
    if case.facts.cores_busy is not None and compute:
        return min(1.0, case.facts.cores_busy / case.trace.threads)
    return None


def filled_units(case: Case) -> Proposal | None:
    """Advise on the shape of launches that fill the device badly."""
    rows, gain, emptiest = [], 0.0, 1.0
    for row in case.judged:
        filled = _filled(case, row)
        if filled is None or filled >= _FULL or row.judgement.bound is Bound.LATENCY:
            continue
        saved = min(case.per_step_s([row]) * (1.0 - filled), case.headroom_s([row]))
        if saved <= 0:
            continue
        rows.append(row)
        gain += saved
        emptiest = min(emptiest, filled)
    if not rows:
        return None
    first = max(rows, key=lambda r: r.total_s)
    return Proposal(
        rule="filled_units",
        change=Change.RATE,
        rows=tuple(r.index for r in rows),
        gain_s=gain,
        text=f"Fill the compute units, first in {first.operator.name} {first.operator.shapes}: another tile size or split-K, sizes that "
        "make whole waves, or work for every core.",
        evidence=f"{len(rows)} kinds of operation have work for as little as {format_ratio(emptiest)} of the units' time; they take "
        f"{format_s(case.per_step_s(rows))}",
    )


RULE = filled_units
