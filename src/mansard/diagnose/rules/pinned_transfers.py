"""Copies to the device from pageable memory, slower than from pinned memory.

Needs: that the host memory is recorded as pageable, and the rate from pinned memory, measured (`host_to_device`, memory pinned) or the
ceiling of the link.
Promises: the time of these copies less their bytes at that rate.
Source: NVIDIA CUDA C++ Best Practices Guide, pinned memory: the driver copies pageable memory to a pinned buffer first.
"""

from __future__ import annotations

from mansard.core import Demand, Grade, Unknown
from mansard.core.units import format_bytes_per_s, format_s
from mansard.diagnose.case import Case, Change, Proposal

_HOW = {
    "torch": "Copy from pinned memory: DataLoader(pin_memory=True), and .to(device, non_blocking=True).",
    "jax": "Copy from pinned memory: put batches with a pinned_host memory kind, ahead of their use.",
}


def pinned_transfers(case: Case) -> Proposal | None:
    """Advise on pinned memory where pageable memory is copied slowly."""
    rows, gain, seconds, size, best = [], 0.0, 0.0, 0.0, 0.0
    measured = True
    for row in case.host_copies():
        facts, demand = case.facts.transfers.get(row.index), row.operator.demand
        if facts is None or facts.pinned is not False or not isinstance(demand, Demand) or len(demand.link_bytes) != 1:
            continue
        link, each = next(iter(demand.link_bytes.items()))
        points = [
            p.bytes / p.time_s for p in case.facts.points
            if p.params.get("memory") == "pinned" and p.bytes > 0
            and (p.benchmark == "host_to_device" or (p.benchmark == "host_device" and p.params.get("direction") == "h2d"))
        ]  # fmt: skip
        ceiling = case.ceilings.link(link)
        if not points and isinstance(ceiling, Unknown):
            continue
        rate = max(points) if points else (0.0 if isinstance(ceiling, Unknown) else ceiling.value)
        measured &= bool(points)
        amount = float(each) * case.calls([row])
        time_s = case.per_step_s([row])
        if time_s <= amount / rate:
            continue
        rows.append(row)
        gain += min(
            time_s - amount / rate, case.headroom_s([row]) if not isinstance(row.least.time_s, Unknown) else time_s
        )
        seconds, size, best = seconds + time_s, size + amount, rate
    if not rows or gain <= 0:
        return None
    return Proposal(
        rule="pinned_transfers",
        change=Change.RATE,
        rows=tuple(r.index for r in rows),
        gain_s=gain,
        grade=Grade.MEASURED if measured else Grade.MODELLED,
        text=_HOW.get(case.trace.framework, "Copy from pinned memory, asynchronously and ahead of use."),
        evidence=f"copies from pageable memory take {format_s(seconds)} a step at {format_bytes_per_s(size / seconds)}; pinned memory "
        f"reaches {format_bytes_per_s(best)} ({'measured' if measured else 'ceiling of the link'})",
    )


RULE = pinned_transfers
