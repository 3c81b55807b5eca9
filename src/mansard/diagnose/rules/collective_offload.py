"""Collectives take compute units from the kernels that they overlap with.

Needs: calls of the same kernel with and without a collective beside them, at least three of each, the former slower.
Promises: what the overlapped calls take longer than the median of the others.
Source: NVIDIA Collective Communications Library documentation, NCCL_MAX_CTAS and copy-engine or in-switch collectives.
"""

from __future__ import annotations

import numpy as np

from mansard.core import Grade
from mansard.core.intervals import merge
from mansard.core.units import format_ratio, format_s
from mansard.diagnose.case import Case, Change, Proposal

_LEAST_CALLS = 3
#: A call is overlapped if a collective runs for this part of it, and alone if one runs for less than the rest.
_OVERLAPPED = 0.9
_WORTH = 1.05


def collective_offload(case: Case) -> Proposal | None:
    """Advise on moving collectives to another engine where they slow what they overlap with."""
    trace = case.trace
    talking = np.array([o.category == "collective" for o in trace.operators] or [False])
    if not talking.any() or not trace.op.size:
        return None
    during = merge(trace.start_ns[talking[trace.op]], trace.end_ns[talking[trace.op]])
    length = (trace.end_ns - trace.start_ns).astype(np.float64)
    covered = during.covered_ns(trace.start_ns, trace.end_ns).astype(np.float64)
    share = np.divide(covered, length, out=np.zeros_like(length), where=length > 0)
    rows, gain, slowest = [], 0.0, 1.0
    for row in case.of_category("gemm", "attention", "convolution", "moe", "fused"):
        mine = case.chosen & (trace.op == row.index)
        beside, alone = length[mine & (share >= _OVERLAPPED)], length[mine & (share <= 1.0 - _OVERLAPPED)]
        if min(beside.size, alone.size) < _LEAST_CALLS:
            continue
        normal = float(np.median(alone))
        if float(np.median(beside)) < _WORTH * normal:
            continue
        lost = float(np.clip(beside - normal, 0.0, None).sum()) * 1e-9 / case.windows.count
        rows.append(row)
        gain += min(lost, case.per_step_s([row]))
        slowest = max(slowest, float(np.median(beside)) / normal)
    if not rows:
        return None
    return Proposal(
        rule="collective_offload",
        change=Change.WORK,
        rows=tuple(r.index for r in rows),
        gain_s=gain,
        grade=Grade.MEASURED,
        text="Let collectives use fewer compute units: fewer channels (NCCL_MAX_CTAS), copy engines, or reduction in the switch (SHARP).",
        evidence=f"{len(rows)} kinds of kernel take up to {format_ratio(slowest - 1.0)} longer beside a collective than alone, "
        f"{format_s(gain)} a step in all",
    )


RULE = collective_offload
