"""Parameters are gathered again in the backward pass, although memory could keep them.

Needs: all-gathers of equal size, ranks and number in forward and backward; how much memory was never used, at least what they gather.
Promises: the exposed time of the second gathers, at most.
Source: Rajbhandari et al., ZeRO, SC 2020: sharding parameters sends three times their bytes per step, keeping them two times.
"""

from __future__ import annotations

from mansard.core.units import format_binary_bytes, format_s
from mansard.diagnose.case import Case, Change, Proposal
from mansard.diagnose.talks import talks_of, waiting_s
from mansard.trace.run import Part

_HOW = {
    "torch": "Keep gathered parameters from forward to backward (fully_shard(reshard_after_forward=False)), or shard over fewer ranks.",
    "jax": "Keep gathered parameters from forward to backward (let the checkpoint policy save them), or shard over fewer devices.",
}


def reshard(case: Case) -> Proposal | None:
    """Advise against gathering parameters twice where memory is free."""
    free = case.facts.memory.free_bytes
    if free is None:
        return None
    gathers = [t for t in talks_of(case) if t.operation == "all_gather"]
    forward = {(t.bus_bytes, t.ranks): t.row.calls for t in gathers if t.row.operator.part is Part.FORWARD}
    again = [
        t for t in gathers
        if t.row.operator.part is Part.BACKWARD and forward.get((t.bus_bytes, t.ranks), 0) >= t.row.calls
    ]  # fmt: skip
    if not again:
        return None
    # Each rank receives what it would then have to keep.
    kept = sum(t.bus_bytes * case.calls([t.row]) for t in again)
    rows = [t.row for t in again]
    exposed = case.wait_s("network") - waiting_s(case)
    total = case.per_step_s(case.of_category("collective"))
    gain = min(case.per_step_s(rows), exposed * case.per_step_s(rows) / total if total > 0 else 0.0)
    if kept > free or gain <= 0:
        return None
    return Proposal(
        rule="reshard",
        change=Change.WORK,
        rows=tuple(r.index for r in rows),
        gain_s=gain,
        text=_HOW.get(
            case.trace.framework, "Keep gathered parameters from forward to backward, or shard over fewer devices."
        ),
        evidence=f"the backward pass gathers {format_binary_bytes(kept)} that the forward pass gathered before, {format_s(gain)} of it "
        f"exposed; {format_binary_bytes(free)} of memory were never used",
    )


RULE = reshard
