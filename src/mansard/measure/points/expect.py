"""How long a point will take, before it is run."""

from __future__ import annotations

from mansard.core.bound import least_time
from mansard.core.ceilings import Area, Ceilings
from mansard.core.unknown import is_known
from mansard.measure.points.benchmark import Waived, Work

USUAL_SHARE = 0.5  # of its ceiling that a call reaches, for planning
START_S = {"jax": 1.2, "torch": 1.8, "numpy": 0.3, "native": 1.0}  # of a worker process of the backend, on two cores


def call_s(work: Work, ceilings: Ceilings | None, backend: str, *, scope: str = "node") -> float | None:
    """Return about how long one call takes [s], or None where nothing tells.

    Where a ceiling of the element type is missing, that of f32 is taken: this is a plan, not a verdict.

    Args:
        work: What the call must consume.
        ceilings: The machine; None for an unknown one.
        backend: Whose dispatch it is.
        scope: Scope of the ceilings.
    """
    demand = work.demand
    flop = float(work.executed_flop or demand.total_flop)
    size = float(demand.bytes)
    if ceilings is None or not ceilings.ceilings:
        return None
    found = least_time(demand, ceilings, scope=scope, backend=backend)
    least = float(found.floor_s) if is_known(found.floor_s) else 0.0
    peaks = [c.value for c in ceilings.find(scope=scope, area=Area.COMPUTE, dtype="f32")]
    if flop and any(u.reason for u in found.unknown) and peaks:
        least = max(least, flop / max(peaks))
    if work.transfer is not None and size == 0:
        size = work.transfer.size_bytes
        rates = [
            c.value for level in ("dram", "hbm") for c in ceilings.find(scope=scope, area=Area.MEMORY, level=level)
        ]
        least = max(least, size / max(rates) if rates else 0.0)
    return least / USUAL_SHARE if least > 0.0 else None


def calls_exceed(took: str, call_s: float, limit_s: float) -> str:
    """Return in words that three calls are more than the limit of a point.

    >>> calls_exceed("took", 15.04, 30.0)
    'one call took 15 s, three of them exceed the limit of 30 s for one point'
    """
    return f"one call {took} {call_s:.3g} s, three of them exceed the limit of {limit_s:.0f} s for one point"


def too_long(work: Work, call_s: float | None, limit_s: float) -> Waived | None:
    """Return that a point would take longer than its limit, or None: to be made ready, and for three calls.

    Args:
        work: What is known of its time beside the calls.
        call_s: About what one call takes [s]; None where nothing tells.
        limit_s: The limit of one point [s].

    >>> from mansard.core import Demand
    >>> too_long(Work(demand=Demand()), 12.0, 30.0).reason
    'one call would take about 12 s, three of them exceed the limit of 30 s for one point'
    >>> too_long(Work(demand=Demand()), 10.0, 30.0) is None
    True
    """
    planned = work.planned
    ready_s = planned.prepare_s if planned is not None else 0.0
    if call_s is None or ready_s + 3.0 * call_s <= limit_s:
        return None
    if planned is None:
        text = calls_exceed("would take about", call_s, limit_s)
    else:
        text = (
            f"it would take about {ready_s:.3g} s to make its arrays and {call_s:.3g} s for each call, with three calls more "
            f"than the limit of {limit_s:.0f} s for one point: {planned.why}"
        )
    return Waived(reason=text, missing="time")
