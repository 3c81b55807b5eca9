"""Memory-bound operations in a row write results that the next one reads back.

Needs: the bytes of memory-bound element-wise operations that follow each other on one lane.
Promises: the bytes that pass through memory between them, written and read, at the rate that the chain reached. In a chain of n
operations over tensors of one size every result but the last is written and read again.
Source: docs/design.md, bytes are compulsory traffic; a fused chain reads its inputs and writes its result once.
"""

from __future__ import annotations

import numpy as np

from mansard.core import Bound
from mansard.core.demand import Demand
from mansard.core.units import format_bytes, format_bytes_per_s, format_s
from mansard.diagnose.case import Case, Change, Proposal

_FUSABLE = ("elementwise", "copy", "random", "reduction", "softmax", "norm")
_HOW = {
    "torch": "Fuse the chains of element-wise operations: torch.compile, or one fused kernel.",
    "jax": "Put the chain under one jax.jit so that XLA fuses it; it runs as programs of its own now.",
}


def fusion(case: Case) -> Proposal | None:
    """Advise on fusing chains of memory-bound element-wise operations."""
    memory_bound = {j.index for j in case.of_bound(Bound.MEMORY) if j.operator.category in _FUSABLE}
    if not memory_bound:
        return None
    programs = case.programs()
    order = np.flatnonzero(case.chosen)
    order = order[np.lexsort((case.trace.start_ns[order], case.trace.lane[order]))]
    saved_s = saved_bytes = 0.0
    length = longest = 0
    previous = -1
    for position in order:
        kind = int(case.trace.op[position])
        if case.trace.operators[kind].category in ("view", "allocation"):
            continue
        before = int(case.trace.op[previous]) if previous >= 0 else -1
        chained = kind in memory_bound and before in memory_bound
        # What XLA left apart inside one program, no other jit will fuse.
        chained = chained and not (programs[kind] and programs[kind] == programs[before])
        if chained:
            write, read = case.trace.operators[before].demand, case.trace.operators[kind].demand
            assert isinstance(write, Demand)  # a memory bound has a demand
            assert isinstance(read, Demand)
            passed = min(float(write.write_bytes), float(read.read_bytes))
            saved_bytes += 2 * passed
            saved_s += float(case.duration_s[previous]) * passed / float(write.bytes)
            saved_s += float(case.duration_s[position]) * passed / float(read.bytes)
        length = length + 1 if chained else 1
        longest = max(longest, length)
        previous = int(position)
    rows = [j for j in case.judged if j.index in memory_bound]
    gain = min(saved_s / case.windows.count, case.per_step_s(rows))
    if gain <= 0:
        return None
    rate = format_bytes_per_s(saved_bytes / case.windows.count / gain)
    return Proposal(
        rule="fusion",
        change=Change.WORK,
        rows=tuple(sorted(memory_bound)),
        gain_s=gain,
        text=_HOW.get(case.trace.framework, "Fuse the chains of element-wise operations."),
        evidence=f"chains of up to {longest} memory-bound operations pass {format_bytes(saved_bytes / case.windows.count)} "
        f"a step through memory between them, {format_s(gain)} at the rate that they reached ({rate}); they take "
        f"{format_s(case.per_step_s(rows))}. Traffic that is gone saves more than the same traffic at its ceiling",
    )


RULE = fusion
