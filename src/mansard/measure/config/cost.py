"""How long a plan takes and how much memory its points need, before anything runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from mansard.core.bound import least_time
from mansard.core.ceilings import Area, Ceilings
from mansard.core.units import format_binary_bytes, format_s
from mansard.core.unknown import Unknown, is_known
from mansard.measure.config.plan import Plan
from mansard.measure.points.benchmark import Waived, Where, Work
from mansard.measure.points.registry import benchmark_named
from mansard.measure.points.result import Point

# Round figures for planning; no result depends on them.
USUAL_SHARE = 0.6  # of its ceiling that a point reaches
SAMPLE_S = 1e-3  # a shorter operation is repeated inside one sample
WARMUP_MOST_S = 2.0  # warm-up ends here, after one call at least
SAMPLING_S = 1.0  # samples are taken for about as long where neither a count nor a time asks for more
RANDOM_BYTES_PER_S = 4e8  # how fast inputs are made
COMPILE_S = {"jax": 0.6, "torch": 0.1, "native": 0.3, "numpy": 0.02}
MEMORY_SHARE = 0.8  # of a device's memory that a point may need


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What one point is expected to take.

    Args:
        operation_s: One operation [s].
        total_s: The point with inputs, compilation, warm-up and samples [s].
        memory_bytes: Bytes it must hold [B].
        assumed: What was assumed beside the ceilings.
    """

    operation_s: float
    total_s: float
    memory_bytes: float
    assumed: tuple[str, ...] = ()


def expected_time(
    plan: Plan, ceilings: Ceilings, *, where: Callable[[str], Where | Waived]
) -> dict[str, Expected | Unknown]:
    """Return what each point of a plan is expected to take, by its name.

    The work over its ceilings at a usual share of them, plus the dispatch, as often as warm-up and samples ask for,
    plus inputs and compilation. It is for the plan and its budget; no result is judged by it.

    Args:
        plan: The plan.
        ceilings: What the machine can do; without a needed one a point is `Unknown`.
        where: What each backend runs on.
    """
    out: dict[str, Expected | Unknown] = {}
    for point in plan.points:
        found = where(point.backend)
        if isinstance(found, Waived):
            out[point.name] = Unknown(found.reason, (found.missing,))
        else:
            out[point.name] = expected_of(point, ceilings, found)
    return out


def expected_of(point: Point, ceilings: Ceilings, where: Where) -> Expected | Unknown:
    """Return what one point is expected to take on `where`."""
    work = benchmark_named(point.benchmark).work(point.params, where)
    scope = "node" if where.platform == "cpu" else "device"
    least, assumed = _least_s(work, ceilings, scope, where.backend)
    if isinstance(least, Unknown):
        return least
    operation = least / USUAL_SHARE
    memory = float(work.demand.working_set)
    warmup_tries, num_runs = int(point.params["warmup_tries"]), int(point.params["num_runs"])
    warm = min(warmup_tries * operation, max(WARMUP_MOST_S, operation))
    asked = max(num_runs * max(operation, SAMPLE_S), float(point.params["min_duration_s"]))
    most = point.params.get("max_duration_s")
    sampling = max(asked, SAMPLING_S if most is None else min(SAMPLING_S, float(most)))
    setup = COMPILE_S.get(where.backend, 0.1) + memory / RANDOM_BYTES_PER_S
    # The first call and the check of the result are one operation each.
    return Expected(
        operation_s=operation, total_s=setup + 2 * operation + warm + sampling, memory_bytes=memory,
        assumed=(f"{USUAL_SHARE:.0%} of the ceiling", *assumed),
    )  # fmt: skip


def _least_s(work: Work, ceilings: Ceilings, scope: str, backend: str) -> tuple[float | Unknown, tuple[str, ...]]:
    """Return the least time of one operation [s]; a type whose rate was not measured takes the slowest that was."""
    demand = work.demand
    assumed: list[str] = []
    rates = {
        dtype: ceilings.peak(dtype, accumulate=accumulate, engine="matrix", scope=scope)
        for dtype, accumulate in demand.flop
    }
    extra = 0.0
    unknown = [dtype for dtype, rate in rates.items() if isinstance(rate, Unknown)]
    if unknown:
        slowest = min(
            ceilings.find(scope=scope, area=Area.COMPUTE, engine="matrix"), key=lambda c: c.value, default=None
        )
        if slowest is None:
            return Unknown(f"no matrix ceiling for one {scope}", ("mansard measure",)), ()
        flop = sum(float(f) for (dtype, _), f in demand.flop.items() if dtype in unknown)
        extra = flop / slowest.value
        assumed.append(
            f"{' and '.join(unknown)} at the rate of {slowest.resource.label}, the slowest that was measured"
        )
    known = {key: f for key, f in demand.flop.items() if key[0] not in unknown}
    bound = least_time(replace(demand, flop=known), ceilings, scope=scope, backend=backend)
    if not is_known(bound.time_s):
        # Nothing but the unmeasured part: it is the whole time.
        return (extra, tuple(assumed)) if extra else (_unknown(bound.time_s), ())
    assumed += [f"{u.reason}: left out" for u in bound.unknown]
    return max(float(bound.time_s), extra), tuple(assumed)


def _unknown(time: object) -> Unknown:
    return time if isinstance(time, Unknown) else Unknown("the time cannot be bounded", ("a known cost",))


def fitted(
    plan: Plan, expected: Mapping[str, Expected | Unknown], *, where: Callable[[str], Where | Waived],
    point_budget_s: float | None = None,
) -> Plan:  # fmt: skip
    """Return the plan with the points waived that need more memory than there is, or more time than `point_budget_s`.

    Args:
        plan: The plan.
        expected: What `expected_time` says of it.
        where: What each backend runs on.
        point_budget_s: Longest time of one point [s]; None for no limit.
    """
    reasons: dict[str, Waived] = {}
    for point in plan.points:
        known = expected.get(point.name)
        found = where(point.backend)
        if not isinstance(known, Expected) or not isinstance(found, Where):
            continue
        reason = _memory(known, found) or _time(known, point_budget_s)
        if reason is not None:
            reasons[point.name] = reason
    return plan.waiving(reasons)


def _memory(expected: Expected, where: Where) -> Waived | None:
    if where.memory_bytes is None or expected.memory_bytes <= MEMORY_SHARE * where.memory_bytes:
        return None
    return Waived(
        reason=f"it must hold {format_binary_bytes(expected.memory_bytes)}; there are "
        f"{format_binary_bytes(where.memory_bytes)}, of which {MEMORY_SHARE:.0%} may be used",
        missing="memory",
    )


def _time(expected: Expected, budget_s: float | None) -> Waived | None:
    if budget_s is None or expected.total_s <= budget_s:
        return None
    return Waived(
        reason=f"it takes about {format_s(expected.total_s)} ({format_s(expected.operation_s)} for one operation); "
        f"the budget of one point is {format_s(budget_s)}",
        missing="time",
    )


def total_s(expected: Mapping[str, Expected | Unknown]) -> tuple[float, int]:
    """Return the time of all points that are known [s], and how many are not."""
    known = [e.total_s for e in expected.values() if isinstance(e, Expected)]
    return sum(known), len(expected) - len(known)
