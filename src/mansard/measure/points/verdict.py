"""What a number is worth: normal, low with its likely reason, implausible, or too noisy to say."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from mansard.core.bound import LOW_CEILING, LeastTime, least_time, share_of
from mansard.core.ceilings import Area, Ceiling, Ceilings, Kind
from mansard.core.units import format_bytes_per_s, format_hz, format_ratio, format_s
from mansard.core.unknown import Implausible, Unknown
from mansard.measure.points.evidence import Evidence
from mansard.measure.points.link_least import by_fit
from mansard.measure.points.result import NOISY_MOST_RATIO, NOISY_RATIO, Finding, PointVerdict

NORMAL_SHARE = 0.7  # 70 to 90 % of a declared peak is what good kernels reach
LEAST_LEFT = 0.3  # of the processors: what a ceiling of a busy machine is taken to have had at least
QUIET_RATIO = 0.08  # foreign load up to which the clock is believed
CLOCK_SLACK = 0.95
CORES_SLACK = 0.75
FLOOR_SHARE = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A verdict with what it rests on.

    Args:
        verdict: None where there is nothing to judge against.
        reason: Why, in words.
        share: Least over observed time; `Unknown` or `Implausible` where it is none.
        ceiling: The ceiling that decides the least time.
        least_s: The least time [s]; None where it is not known.
        clock_factor: Seen clock over that of the ceilings, by which those that follow it were taken; 1 where not known.
        factors: What the shortfall is made of, as ratios whose product is the share.
        findings: More findings, such as a measured ceiling that was beaten.
    """

    verdict: PointVerdict | None
    reason: str
    share: float | Unknown | Implausible
    ceiling: Ceiling | None = None
    least_s: float | None = None
    clock_factor: float = 1.0
    factors: dict[str, float] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()


def at_clock(ceilings: Ceilings, factor: float) -> Ceilings:
    """Return ceilings with those that follow the core's clock multiplied: compute and the caches inside a core."""

    def follows(c: Ceiling) -> bool:
        r = c.resource
        return c.kind is not Kind.DECLARED and (
            r.area is Area.COMPUTE or (r.area is Area.MEMORY and r.level in ("l1", "l2"))
        )

    moved = [dataclasses.replace(c, value=c.value * factor) if follows(c) else c for c in ceilings.ceilings]
    return dataclasses.replace(ceilings, ceilings=tuple(moved))


def clock_factor(e: Evidence) -> float:
    """Return the clock that was seen over the clock of the ceilings; 1 where either is unknown or cannot be believed.

    A busy machine makes the clock look lower than it is, so then it is not used.
    """
    seen = e.conditions.clock_hz
    known = (e.ceilings.machine if e.ceilings is not None else {}).get("clock_hz_estimated")
    foreign = e.conditions.foreign_ratio
    if not seen or not known or foreign is None or foreign > QUIET_RATIO or e.where.platform != "cpu":
        return 1.0
    factor = float(seen) / float(known)
    return factor if 0.3 < factor < 1.3 else 1.0


def judge_point(e: Evidence, findings: Sequence[Finding]) -> Judged:
    """Return what a measured point is worth.

    Args:
        e: The point.
        findings: Of the audit; a fatal one makes the point implausible whatever its share.
    """
    if not e.time_s > 0.0:
        return _no_time()
    factor = clock_factor(e)
    least = _least(e, factor)
    share: float | Unknown | Implausible
    limiting = None
    least_s: float | None = None
    if isinstance(least, Unknown):
        share = least
    elif isinstance(least.floor_s, Unknown):
        share = least.floor_s
    else:
        limiting = least.limiting
        slack = limiting.ceiling.uncertainty_ratio if limiting else 0.0
        share, least_s = share_of(least.floor_s, e.time_s, uncertainty_ratio=slack + half_ratio(e)), least.floor_s
        if not isinstance(share, Implausible):
            share = least.floor_s / e.time_s  # above 1 within the uncertainty: said, never cut to a round 100 %
        if least.no_peak is not None and not isinstance(share, Implausible):
            # Only what the rest of the work forbids can be said: what is missing could make the least time longer.
            share, limiting, least_s = least.no_peak, None, None
    found = Judged(
        verdict=None,
        reason="",
        share=share,
        ceiling=limiting.ceiling if limiting else None,
        least_s=least_s,
        clock_factor=factor,
    )
    fatal = [f for f in findings if f.fatal]
    if fatal:
        return dataclasses.replace(found, verdict=PointVerdict.IMPLAUSIBLE, reason=fatal[0].text)
    if isinstance(share, Implausible):
        return _beaten(found, e, share)
    return _graded(found, e, findings, share)


def _no_time() -> Judged:
    """Return the verdict on a point whose clock did not move: no measurement, and no rate."""
    text = (
        "no measurement: the clock showed no time for an operation (several per sample, or a finer clock, are needed)"
    )
    return Judged(
        verdict=PointVerdict.IMPLAUSIBLE, reason=text, share=Unknown(text, ("more operations per sample",)),
        findings=(Finding(code="no_measurement", text=text, fatal=True),),
    )  # fmt: skip


def half_ratio(e: Evidence) -> float:
    """Return half of the interval over the median."""
    s = e.samples
    return (s.high_s - s.low_s) / 2.0 / s.median_s if s.median_s > 0 else 0.0


def too_noisy(e: Evidence, share: float) -> bool:
    """Return whether the interval of a point leaves its verdict open, or is too wide for any.

    Up to `NOISY_RATIO` the median decides. Up to `NOISY_MOST_RATIO` both ends of the interval must say the same: a product
    at 8 % of its ceiling, give or take a tenth of that, is low on any machine.
    """
    noise, s = half_ratio(e), e.samples
    if noise <= NOISY_RATIO:
        return False
    if noise > NOISY_MOST_RATIO:
        return True
    return share * s.median_s / s.high_s < NORMAL_SHARE <= share * s.median_s / s.low_s


def threads_of(e: Evidence) -> int:
    """Return how many cores the ceilings of the point's scope belong to."""
    return 1 if e.scope == "core" else e.where.threads


def _least(e: Evidence, factor: float) -> LeastTime | Unknown:
    if e.work.headline == "time":
        return Unknown("it is quoted as a time, with no ceiling of its own")
    if e.ceilings is None or not e.ceilings.ceilings:
        link = next(iter(e.work.demand.link_bytes), None)
        if link is not None:  # those of the machine itself would tell nothing of it either
            return by_fit(e) or no_link(link)
        return Unknown("the ceilings of this machine are not known", ("mansard measure",))
    known = of_its_mix(at_clock(e.ceilings, factor), e)
    missing = _missing_peak(e, known)
    if missing is not None:
        return missing
    least = least_time(e.demand(), known, scope=e.scope, backend=e.where.backend)
    if least.no_peak is not None:
        return least
    fitted = by_fit(e)
    if fitted is None or isinstance(fitted.time_s, Unknown):
        # An exchange is judged against its link alone: the cost of the call bounds nothing of what it sends.
        return no_link(e.work.transfer.link) if e.work.transfer is not None and least.needed else least
    # Both are bounds, so the longer one is the tighter one.
    return fitted if isinstance(least.time_s, Unknown) or fitted.time_s > least.time_s else least


def no_link(link: str) -> Unknown:
    """Return that nothing is known of a link, and what would make it known."""
    return Unknown(
        f"no ceiling for the link {link!r}",
        ("--ceilings FILE of an earlier measurement over several sizes", "its rate declared in the configuration"),
    )


def _missing_peak(e: Evidence, ceilings: Ceilings) -> Unknown | None:
    """Return that the ceiling of a point quoted in vector FLOP is not known: its bytes alone would bound nothing of it."""
    demand = e.demand()
    if e.work.headline != "flop" or any(float(flop) > 0.0 for flop in demand.flop.values()):
        return None  # of matrix work, the least time tells
    vector = [t for t, flop in demand.vector_flop.items() if float(flop) > 0.0]
    peaks = [ceilings.peak(t, engine="vector", scope=e.scope) for t in vector]
    return next((p for p in peaks if isinstance(p, Unknown)), None)


def of_its_mix(ceilings: Ceilings, e: Evidence) -> Ceilings:
    """Return ceilings of memory of the access mix that a point states as its own, where there are any of its level.

    An envelope over all mixes is right for work whose mix nobody knows. A copy that is one is compared with copies: an
    update in place needs no line read before it is written, and is half as fast again or more.
    """
    mix, level = e.prepared.get("facts", {}).get("mix"), e.level()
    if e.work.headline != "bytes" or not mix or isinstance(level, Unknown):
        return ceilings
    if not ceilings.find(scope=e.scope, area=Area.MEMORY, level=level, mix=mix):
        return ceilings

    def fits(c: Ceiling) -> bool:
        return c.resource.area is not Area.MEMORY or c.resource.level != level or c.resource.mix == mix

    return dataclasses.replace(ceilings, ceilings=tuple(c for c in ceilings.ceilings if fits(c)))


def _of_ceiling(share: float, ceiling: Ceiling) -> str:
    """Return a share in words; a fixed cost is no rate that is reached.

    >>> from mansard.core.ceilings import Resource
    >>> cost = Ceiling(resource=Resource(area=Area.LATENCY, backend="jax"), value=4e-6, unit="s", kind=Kind.MEASURED)
    >>> _of_ceiling(0.27, cost)
    'its least time, most of it the jax fixed cost (measured), is 27 % of what it took'
    """
    name = f"{ceiling.resource.label}"
    if ceiling.resource.area is Area.LATENCY:
        return f"its least time, most of it the {name} ({ceiling.kind.value}), is {format_ratio(share)} of what it took"
    return f"{format_ratio(share)} of the {name} ceiling ({ceiling.kind.value})"


def _beaten(found: Judged, e: Evidence, share: Implausible) -> Judged:
    """Return the verdict on a point above its ceiling: a measured ceiling beaten by a little is too low."""
    assert found.ceiling is not None
    name = f"{found.ceiling.resource.label} ceiling ({found.ceiling.kind.value})"
    cached = _partly_cached(found.ceiling, e, share.value)
    if cached:
        text = f"{share.value:.2f} of the {name}: {cached}"
        verdict = PointVerdict.NOISY if too_noisy(e, share.value) else PointVerdict.NORMAL
        finding = Finding(code="partly_cached", text=text)
        return dataclasses.replace(found, verdict=verdict, reason=text, share=share.value, findings=(finding,))
    load = float(found.ceiling.conditions.get("foreign_load_ratio") or 0.0)
    busy = load > QUIET_RATIO
    # What others took while a ceiling was measured is missing from it: what it may be too low by grows with that.
    if found.ceiling.kind is Kind.MEASURED and share.value <= LOW_CEILING / (
        max(LEAST_LEFT, 1.0 - load) if busy else 1.0
    ):
        text = f"{share.value:.2f} of the {name}: the ceiling is too low, measure it again"
        if busy:
            text += f" on an idle machine (others used {format_ratio(load)} of the processors while it was measured)"
        finding = Finding(code="ceiling_too_low", text=text)
        verdict = PointVerdict.NOISY if too_noisy(e, share.value) else PointVerdict.NORMAL
        return dataclasses.replace(found, verdict=verdict, reason=text, share=share.value, findings=(finding,))
    text = f"{share.value:.3g} times what the {name} allows; suspects: {'; '.join(share.suspects[:3])}"
    finding = Finding(code="above_ceiling", text=text, fatal=True)
    return dataclasses.replace(found, verdict=PointVerdict.IMPLAUSIBLE, reason=text, findings=(finding,))


def _partly_cached(ceiling: Ceiling, e: Evidence, share: float) -> str:
    """Return that a rate above a memory level is one of the cache before it, where the working set is hardly larger."""
    cache = e.partly_in(ceiling.resource.level or "")
    if cache is None or e.ceilings is None:
        return ""
    nearer = e.ceilings.bandwidth(cache.level, scope=e.scope)
    if isinstance(nearer, Unknown) or share * ceiling.value > LOW_CEILING * nearer.value:
        return ""
    times = float(e.work.demand.working_set) / cache.capacity(e.scope)
    return f"its working set is only {times:.3g} times {cache.level.upper()}, part of it is found there"


def _graded(found: Judged, e: Evidence, findings: Sequence[Finding], share: float | Unknown) -> Judged:
    noise = half_ratio(e)
    width = f"+-{format_ratio(noise)}" if noise <= 1.0 else "more than +-100 %"
    wide = f"the 95 % interval of the median is {width} wide"
    if isinstance(share, Unknown):
        text = f"not judged: {share.reason}"
        if noise > NOISY_RATIO:
            wide = f"{_regimes_in_words(e, found)}; together {wide}" if e.samples.regimes else wide
            return dataclasses.replace(found, verdict=PointVerdict.NOISY, reason=f"{wide}; {text}")
        return dataclasses.replace(found, reason=text)
    assert found.ceiling is not None
    text = _of_ceiling(share, found.ceiling)
    if share >= 1.005:
        text += ", above it by less than the uncertainty of the two"
    factors = shortfall(found, e, share)
    found = dataclasses.replace(found, factors=factors)
    if too_noisy(e, share):
        found = dataclasses.replace(found, verdict=PointVerdict.NOISY)
        if e.samples.regimes:
            return dataclasses.replace(found, reason=f"{_regimes_in_words(e, found)}; together {wide}")
        codes = {f.code: f.text for f in findings}
        why = next((f": {codes[code]}" for code in ("foreign_load", "steal", "page_faults") if code in codes), "")
        return dataclasses.replace(found, reason=f"{wide}{why}; {text}")
    but = f"; {wide}" if noise > NOISY_RATIO else ""
    if share >= NORMAL_SHARE:
        return dataclasses.replace(found, verdict=PointVerdict.NORMAL, reason=text + but)
    why = next(likely_reasons(found, e, findings), "")
    rest = why or "nothing that was looked at explains it"
    return dataclasses.replace(found, verdict=PointVerdict.LOW, reason=f"{text}: {rest}{but}")


def _regimes_in_words(e: Evidence, found: Judged) -> str:
    """Return the two regimes of a point, each with its interval and its share of the ceiling."""
    parts = []
    for r in e.samples.regimes:
        part = f"{format_s(r.median_s)} +-{format_ratio(r.half_ratio)} in {format_ratio(r.share_ratio)} of the samples"
        if found.least_s is not None and found.ceiling is not None:
            part += f" ({format_ratio(found.least_s / r.median_s)} of the {found.ceiling.resource.label} ceiling)"
        parts.append(part)
    return f"two regimes: {' and '.join(parts)}"


def shortfall(found: Judged, e: Evidence, share: float) -> dict[str, float]:
    """Return what the share is made of: cores filled, and what is left for units used, issue and waiting.

    The ceilings were already taken at the clock that was seen, so the clock stands beside the product and not in it.
    Without counters the width of the vectors and the rate of issue cannot be told apart; `units_ratio` is both.
    """
    factors: dict[str, float] = {"clock_ratio": found.clock_factor}
    used, threads = e.conditions.cores_used, threads_of(e)
    cores = min(1.0, used / threads) if used is not None and threads and e.where.platform == "cpu" else None
    if cores is not None and found.ceiling is not None and found.ceiling.resource.area is Area.COMPUTE and cores > 0.05:
        factors["cores_ratio"] = cores
        factors["units_ratio"] = share / cores
    clock, flop = e.conditions.clock_hz, e.executed_flop
    if clock and flop and threads and e.where.platform == "cpu":
        factors["flop_per_cycle_per_core"] = flop / e.time_s / threads / clock
    return factors


def likely_reasons(found: Judged, e: Evidence, findings: Sequence[Finding]) -> Iterator[str]:
    """Yield why a point may be low, the likeliest first."""
    codes = {f.code: f.text for f in findings}
    for code in ("page_faults", "throttled", "foreign_load", "steal"):
        if code in codes:
            yield codes[code]
    if found.clock_factor < CLOCK_SLACK:
        assert e.conditions.clock_hz is not None
        share = format_ratio(found.clock_factor)
        yield f"the clock was {format_hz(e.conditions.clock_hz)}, {share} of that of the ceilings"
    for code in ("wider_dtype", "flop_above_claim", "bytes_above_claim"):
        if code in codes:
            yield codes[code]
    floor = e.samples.floor_s
    if floor is not None and floor > FLOOR_SHARE * e.time_s:
        yield f"dispatch: an empty call takes {format_s(floor)} of its {format_s(e.time_s)}"
    cores = found.factors.get("cores_ratio")
    if cores is not None and cores < CORES_SLACK:
        yield f"it kept {e.conditions.cores_used:.1f} of {threads_of(e)} cores busy"
    yield from _regime(found, e)
    if e.work.write_allocate_bytes is not None and e.prepared.get("facts", {}).get("store") == "regular":
        rate = format_bytes_per_s(e.work.write_allocate_bytes / e.time_s)
        yield f"regular stores read each line before they write it: {rate} move with that counted"
    if "drift" in codes:
        yield codes["drift"]
    per_cycle = found.factors.get("flop_per_cycle_per_core")
    if (
        found.ceiling is not None
        and found.ceiling.resource.area is Area.COMPUTE
        and per_cycle
        and e.conditions.clock_hz
    ):
        most = found.ceiling.value / threads_of(e) / e.conditions.clock_hz
        yield (
            f"{per_cycle:.3g} FLOP per cycle and core, the ceiling has {most:.3g}: narrower vectors, fewer issued, "
            "or waiting for memory"
        )
    if e.prepared.get("output_is_fresh"):
        yield "each call allocates its result"
    if e.work.transfer is not None and e.work.transfer.participants > 1 and e.where.platform == "cpu":
        yield (
            f"{e.work.transfer.participants} devices made out of one processor meet and take turns, and the runtime copies "
            "more than each input once in and each result once out"
        )


def _regime(found: Judged, e: Evidence) -> Iterator[str]:
    """Yield that the memory sat in its slow regime, where the ceiling knows two."""
    regimes = (found.ceiling.conditions if found.ceiling is not None else {}).get("regimes")
    if not regimes or found.least_s is None or found.ceiling is None:
        return
    slow: Any = regimes[0]
    rate = found.ceiling.value * found.least_s / e.time_s
    if rate <= 1.1 * float(slow):
        yield f"the memory has two regimes here, and this is within the slower one ({format_bytes_per_s(float(slow))})"
