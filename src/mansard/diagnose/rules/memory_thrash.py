"""Memory is full, and steps ask the driver for it again and again.

Needs: calls per step that get memory from the driver or give it back, and their time. One that never stops in steady steps means that
the caching allocator cannot keep what it needs.
Promises: at most the time of these calls, as far as the device or the program waits.
Source: PyTorch documentation, CUDA memory management: the allocator frees cached blocks and retries when an allocation fails.
"""

from __future__ import annotations

from mansard.core.units import format_ratio, format_s
from mansard.diagnose.case import Case, Change, Proposal

_HOW = {
    "torch": "Use less memory: a smaller batch or activation checkpointing; or expandable_segments:True against fragmentation.",
    "jax": "Use less memory: a smaller batch, donated arguments, or jax.checkpoint; keep preallocation on.",
}


def memory_thrash(case: Case) -> Proposal | None:
    """Advise on using less memory where steady steps allocate."""
    use = case.facts.memory
    if use.allocation_s is None or use.allocations is None or use.allocations < 1:
        return None
    waits = ("latency", "host", "unattributed")
    gain = min(use.allocation_s, sum(case.wait_s(w) for w in waits))
    if gain <= 0:
        return None
    full = (
        f"; {format_ratio(use.peak_bytes / use.capacity_bytes)} of the memory is in use"
        if use.peak_bytes is not None and use.capacity_bytes
        else ""
    )
    return Proposal(
        rule="memory_thrash",
        change=Change.WAIT,
        waits=waits,
        gain_s=gain,
        text=_HOW.get(case.trace.framework, "Use less memory: a smaller batch, or recompute activations."),
        evidence=f"{use.allocations:.0f} calls a step get or return memory and take {format_s(use.allocation_s)}{full}",
    )


RULE = memory_thrash
