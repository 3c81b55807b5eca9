"""Measured points without a run: what bounds each, how far below its ceiling it is, and what several of them say together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mansard.core import (
    Area,
    Bound,
    Ceiling,
    Ceilings,
    Demand,
    Grade,
    Implausible,
    Kind,
    LeastTime,
    Resource,
    Term,
    Unknown,
    is_known,
    judge,
    least_time,
)
from mansard.core.units import format_ratio, format_s
from mansard.diagnose.areas import same_of_kind
from mansard.diagnose.facts import MeasuredPoint, points_of
from mansard.diagnose.fixed_cost import (
    FixedCost,
    SizeJudgement,
    backend_of,
    judge_work,
    known_fixed_cost,
    laws_of_sweep,
    product_name,
)
from mansard.diagnose.records import Note

Element = Mapping[str, Any]
#: Share of a point's time that an empty call takes, from which on calling it is what bounds it.
MOSTLY_CALL = 0.5
_NO_CEILING = Unknown(
    "the ceilings of this machine are not known", ("ceilings.json of mansard measure", "--hardware NAME")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedPoint:
    """The verdict on one measured point.

    Args:
        name: Its stable name.
        point: What was measured, with time and interval.
        worth: What the measurement is worth: normal, low, noisy, implausible, or empty where it was not judged.
        bound: What bounds it.
        limiting_ceiling: Label of the ceiling that decides its least time, with its kind.
        share_of_ceiling: Least over measured time.
        shares_by_kind: The same against measured, derived and declared ceilings, where they are on record.
        least_s: Least time of one operation [s].
        headroom_s: Measured less least time [s per operation].
        grade: Evidence grade.
        reason: The verdict in words.
        worth_reason: Why the measurement is worth that, as it was said when it was taken.
        evidence, counter_evidence: Short sentences; evidence ends in its grade.
        size: Whether it is large enough to judge a rate by, where a sweep tells the fixed cost; None elsewhere.
        foreign_ratio: Share of the processors that others used meanwhile; None where not known.
    """

    name: str
    point: MeasuredPoint
    worth: str
    bound: Bound
    limiting_ceiling: str
    share_of_ceiling: float | Unknown | Implausible
    shares_by_kind: Mapping[str, float] = field(default_factory=dict)
    least_s: float | Unknown
    headroom_s: float | Unknown
    grade: Grade
    reason: str
    worth_reason: str = ""
    evidence: tuple[str, ...] = ()
    counter_evidence: tuple[str, ...] = ()
    size: SizeJudgement | None = None
    foreign_ratio: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """The fixed cost of one kind of work on one backend, or why no sweep tells it.

    Args:
        backend, what: Whose, and of which work.
        cost: T0 and rate.
    """

    backend: str
    what: str
    cost: FixedCost | Unknown


def judged_points(
    elements: Sequence[Element], ceilings: Ceilings | None, laws: Sequence[Law]
) -> tuple[JudgedPoint, ...]:
    """Return the verdict on every point that was measured, the largest headroom first.

    Args:
        elements: Elements of `detailed.json`. A point keeps the ceiling that it was judged by when it was measured.
        ceilings: Ceilings beside it: for points that were judged by none, and for shares of the other kinds.
        laws: Fixed costs from sweeps over sizes.
    """
    found = [
        _judged(e, point, ceilings, laws)
        for e in elements if e["state"] == "done"
        for point in points_of([{**e, "verdict": None}])  # implausible points are listed, and named so
    ]  # fmt: skip
    return tuple(sorted(found, key=lambda p: -(p.headroom_s if is_known(p.headroom_s) else -1.0)))


def laws_of(elements: Sequence[Element], ceilings: Ceilings | None) -> tuple[Law, ...]:
    """Return the fixed costs: of sweeps over sizes, and of an empty call of each backend where its ceiling is at hand."""
    found = [Law(backend=b, what=w, cost=c) for b, w, c in laws_of_sweep(elements)]
    backends = (
        sorted({e["metadata"]["backend"] for e in elements if e["state"] == "done"}) if ceilings is not None else []
    )
    for backend in backends:
        assert ceilings is not None
        cost = known_fixed_cost(ceilings, backend)
        if isinstance(cost, FixedCost):
            found.append(Law(backend=backend, what=cost.what, cost=cost))
    return tuple(found)


def _judged(e: Element, point: MeasuredPoint, ceilings: Ceilings | None, laws: Sequence[Law]) -> JudgedPoint:
    metrics, audit = e["metrics"], e.get("audit") or {}
    least = _least(e, point, ceilings)
    low, high = point.ci95_s
    seen = judge(least, point.time_s, uncertainty_ratio=max(0.0, (high - low) / 2.0 / point.time_s))
    bound, share, reason = seen.bound, seen.share_of_ceiling, seen.reason
    kept = metrics.get("share_of_ceiling")
    if isinstance(kept, int | float) and is_known(share):
        share = float(
            kept
        )  # as it was said when it was measured: a ceiling that is a little too low is 1 at most there
    evidence = [f"one operation takes {format_s(point.time_s)} ({format_s(low)} to {format_s(high)}) [measured]"]
    size = _size(point, laws, least.limiting)
    called = _call_share(metrics, point, size)
    if called is not None and (bound is Bound.UNDETERMINED and not isinstance(share, Implausible)):
        bound, reason = Bound.LATENCY, called
        evidence.append(f"{called} [measured]")
    limiting = least.limiting
    if limiting is not None and is_known(least.time_s):
        evidence.append(
            f"its least time is {format_s(least.time_s)} by the {_ceiling_name(limiting.ceiling)} [{seen.grade.value}]"
        )
    if e.get("verdict") == "implausible":
        bound, reason = Bound.UNDETERMINED, str(e.get("verdict_reason") or "its figure cannot be true")
    against = [str(f["text"]) for f in audit.get("findings", ())]
    return JudgedPoint(
        name=point.name, point=point, worth=str(e.get("verdict") or ""), bound=bound,
        limiting_ceiling=_ceiling_name(limiting.ceiling) if limiting is not None else "", share_of_ceiling=share,
        shares_by_kind=_by_kind(least, limiting, point, ceilings) if is_known(share) else {}, least_s=least.time_s,
        headroom_s=Unknown("its figure cannot be used", ("measure again",)) if e.get("verdict") == "implausible" else seen.headroom_s,
        grade=seen.grade, reason=reason, worth_reason=str(e.get("verdict_reason") or ""), evidence=tuple(evidence), counter_evidence=tuple(against), size=size,
        foreign_ratio=_number((e.get("conditions") or {}).get("foreign_ratio")),
    )  # fmt: skip


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _ceiling_name(ceiling: Ceiling) -> str:
    return f"{ceiling.resource.label} ({ceiling.kind.value})"


def _least(e: Element, point: MeasuredPoint, ceilings: Ceilings | None) -> LeastTime:
    """Return the least time that a point was judged by, else that of its demand on the ceilings beside it."""
    metrics = e["metrics"]
    least_s = _number(metrics.get("least_s"))
    if metrics.get("ceiling") and _number(metrics.get("ceiling_value")) and least_s:
        ceiling = _recorded(e, ceilings)
        amount = least_s / ceiling.value if ceiling.unit == "s" else least_s * ceiling.value
        return LeastTime(
            time_s=least_s, terms=(Term(area=ceiling.resource.area, ceiling=ceiling, amount=amount, time_s=least_s),)
        )
    told = metrics.get("share_of_ceiling")
    if metrics.get("headline") == "time" or ceilings is None or not ceilings.ceilings:
        why = str(told["unknown"]) if isinstance(told, Mapping) and "unknown" in told else _NO_CEILING.reason
        return LeastTime(time_s=Unknown(why, _NO_CEILING.needs))
    if point.flop > 0 and not (e.get("audit") or {}).get("peak"):
        return LeastTime(time_s=Unknown("the element types of its arithmetic are not recorded", ("measure again",)))
    demand = _demand(e, point)
    if not any((demand.flop, demand.vector_flop, float(demand.bytes) > 0, demand.link_bytes)):
        return LeastTime(time_s=Unknown("its work is not counted, and calling it is not all of it"))
    return least_time(demand, ceilings, scope=_scope(e), backend=point.backend)


def _recorded(e: Element, ceilings: Ceilings | None) -> Ceiling:
    """Return the ceiling that a point names: that of the ceilings beside it, else as far as its name tells."""
    metrics, label = e["metrics"], str(e["metrics"]["ceiling"])
    kind, scope = Kind(metrics.get("ceiling_kind", "measured")), str(metrics.get("ceiling_scope") or _scope(e))
    beside = [
        c for c in (ceilings.ceilings if ceilings is not None else ())
        if c.resource.label == label and c.kind is kind and c.scope == scope
    ]  # fmt: skip
    resource = beside[0].resource if beside else _resource(e, label)
    return Ceiling(
        resource=resource, value=float(metrics["ceiling_value"]), unit=str(metrics["ceiling_unit"]), kind=kind, scope=scope,
        source="as the point was judged",
    )  # fmt: skip


def _resource(e: Element, label: str) -> Resource:
    unit, words = str(e["metrics"]["ceiling_unit"]), label.split(" ")
    if unit == "FLOP/s":
        dtype, accumulate, engine = (e["audit"].get("peak") or (words[0], None, words[1] if len(words) > 1 else None))[
            :3
        ]
        return Resource(area=Area.COMPUTE, dtype=dtype, accumulate=accumulate, engine=engine)
    if unit == "s":
        return Resource(area=Area.LATENCY, backend=words[0])
    if words[-1] == "link":
        area = Area.HOST if e["metrics"].get("area") == "host_transfer" else Area.NETWORK
        return Resource(area=area, link=" ".join(words[:-1]))
    if unit == "1/s":
        return Resource(area=Area.COMPUTE, dtype=words[0], engine="special")
    return Resource(area=Area.MEMORY, level=words[0].lower(), mix=words[1] if len(words) > 2 else None)


def _scope(e: Element) -> str:
    info, facts = e["metadata"].get("device_info") or {}, (e.get("audit") or {}).get("benchmark", {})
    if info.get("platform", "cpu") != "cpu":
        return "device"
    return "core" if facts.get("threads") == 1 and int(info.get("threads") or 1) > 1 else "node"


def _demand(e: Element, point: MeasuredPoint) -> Demand:
    """Return what a point consumes, as its metrics and its audit have it."""
    metrics, peak = e["metrics"], (e.get("audit") or {}).get("peak")
    flop = float(metrics.get("executed_flop") or point.flop)
    matrix = {(str(peak[0]), str(peak[1])): flop} if peak and peak[2] == "matrix" and flop > 0 else {}
    vector = {str(peak[0]): flop} if peak and peak[2] == "vector" and flop > 0 else {}
    link, moved = metrics.get("link"), _number(metrics.get("bus_bytes"))
    return Demand(
        flop=matrix, vector_flop=vector, read_bytes=float(metrics.get("bytes") or 0.0) if not link else 0.0, launches=1.0,
        working_set_bytes=_number(metrics.get("working_set_bytes")), link_bytes={str(link): moved} if link and moved else {},
    )  # fmt: skip


def _by_kind(
    least: LeastTime, limiting: Term | None, point: MeasuredPoint, ceilings: Ceilings | None
) -> dict[str, float]:
    if limiting is None or isinstance(least.time_s, Unknown):
        return {}
    shares = {}
    for kind, c in same_of_kind(limiting, ceilings if ceilings is not None else Ceilings(ceilings=())).items():
        faster = c.value / limiting.ceiling.value
        least_s = least.time_s * faster if limiting.area is Area.LATENCY else least.time_s / faster
        shares[kind.value] = least_s / point.time_s
    return shares


def _size(point: MeasuredPoint, laws: Sequence[Law], limiting: Term | None) -> SizeJudgement | None:
    """Return whether a matrix product is large enough to judge a rate by: by the sweep of its own kind, where there is one.

    Without one, what an empty call costs is a part of its fixed cost: it can show that a size is too small, and never
    that it is large enough.
    """
    if point.flop <= 0 or not point.benchmark.startswith("gemm"):
        return None
    sizes = {int(v) for k, v in point.params.items() if k in ("m", "k", "n", "size") and isinstance(v, int)}
    label = f"N = {sizes.pop()}" if len(sizes) == 1 else point.name
    backend, what = backend_of(point.impl, point.backend), product_name(point.dtype)
    cost = next((w.cost for w in laws if w.backend == backend and w.what == what), None)
    if isinstance(cost, FixedCost):
        return judge_work(cost, point.flop, label=label)
    called = next(
        (w.cost for w in laws if w.backend == point.backend and isinstance(w.cost, FixedCost) and not w.cost.unit), None
    )
    if not isinstance(called, FixedCost) or limiting is None or limiting.area is not Area.COMPUTE:
        return None
    found = judge_work(replace(called, rate_per_s=limiting.ceiling.value, unit="FLOP/s"), point.flop, label=label)
    return found if found.too_small is True else None


def _call_share(metrics: Mapping[str, Any], point: MeasuredPoint, size: SizeJudgement | None) -> str | None:
    """Return in words that calling it is most of a point's time; None where it is not."""
    floor = _number(metrics.get("floor_s"))
    if floor is not None and floor >= MOSTLY_CALL * point.time_s:
        return f"an empty call takes {format_s(floor)} of its {format_s(point.time_s)}"
    if size is not None and is_known(size.fixed_share_ratio) and size.fixed_share_ratio >= MOSTLY_CALL:
        return f"its fixed cost is {format_ratio(size.fixed_share_ratio)} of its time"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class PointAdvice:
    """One thing worth doing about measured points.

    Args:
        rule: Identifier.
        gain_s: Seconds of one operation that it saves at least, or at most where `at_most` [s]; `Unknown` where none is promised.
        text: What to do, in the imperative.
        evidence: What was seen.
        grade: How sure the gain is.
        at_most: Whether the gain is an upper bound: a headroom, not a difference of two measurements.
    """

    rule: str
    gain_s: float | Unknown
    text: str
    evidence: str
    grade: Grade = Grade.MEASURED
    at_most: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredDiagnosis:
    """The diagnosis of measured points alone.

    Args:
        source: Where they come from.
        points: Every measured point with its verdict, the largest headroom first.
        laws: Fixed costs by backend.
        together: What several points say, each with its `kind`: comparisons of implementations, padding, cliffs, regimes.
        advice: Ranked: what casts doubt on all of it first, then the largest gain.
        findings: What a reader should know.
        unmeasured: Name, state and reason of each point that failed or was left out.
        environment: What the numbers belong to.
    """

    source: str
    points: tuple[JudgedPoint, ...]
    laws: tuple[Law, ...]
    together: tuple[Mapping[str, Any], ...] = ()
    advice: tuple[PointAdvice, ...] = ()
    findings: tuple[Note, ...] = ()
    unmeasured: tuple[tuple[str, str, str], ...] = ()
    environment: Mapping[str, Any] = field(default_factory=dict)

    @property
    def share_of_ceiling(self) -> float | Unknown:
        """The lowest share among the points that can be used and whose ceiling is known."""
        shares = [
            float(p.share_of_ceiling) for p in self.points if p.worth != "implausible" and is_known(p.share_of_ceiling)
        ]
        return min(shares) if shares else Unknown("of no point is the share known", _NO_CEILING.needs)

    @property
    def undetermined(self) -> bool:
        """Whether of no point it can be said what bounds it."""
        return all(p.bound is Bound.UNDETERMINED for p in self.points)

    @property
    def sentence(self) -> str:
        """The outcome in one sentence."""
        counts = Counter(p.bound.value for p in self.points)
        named = [f"{n} {_WORDS.get(bound, bound)}" for bound, n in counts.most_common()]
        text = f"{len(self.points)} measured {'point' if len(self.points) == 1 else 'points'}: {', '.join(named)}"
        worst = next((p for p in self.points if is_known(p.headroom_s) and p.headroom_s > 0), None)
        if worst is None:
            return f"{text}; of none is the headroom known."
        share = (
            f", at {format_ratio(worst.share_of_ceiling)} of its ceiling" if is_known(worst.share_of_ceiling) else ""
        )
        assert is_known(worst.headroom_s)
        return f"{text}. The largest headroom is {format_s(worst.headroom_s)} of {worst.point.label}{share}."


_WORDS = {"compute": "compute-bound", "memory": "memory-bound", "network": "network-bound", "host": "host-bound",
          "latency": "latency-bound"}  # fmt: skip
