"""Is the candidate faster or slower than the baseline, and may one say so?

The order of the questions is fixed: is there anything to compare, are the two comparable, are there enough samples, is the figure
possible, and only then: does the interval of the ratio lie beyond what matters, after as many questions as were asked at once?
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from mansard.core.units import format_ratio
from mansard.core.unknown import Unknown
from mansard.history.evidence import Evidence, evidence_of, unseen
from mansard.history.fingerprint import Difference, differences
from mansard.history.records import SHARES, Measurement, Record
from mansard.history.statistics import DRAWS, LEVEL, RUN_RATIO, UNSEEN_RATIO, Ratio, benjamini_hochberg

#: Fewer samples than this on a side decide nothing: of four and four, one arrangement in 35 separates them by chance.
LEAST_SAMPLES = 5
#: An improvement beyond this factor is more often a measurement that collapsed than an achievement.
COLLAPSED_RATIO = 10.0
#: No time, rate or size of this world has so many digits, in SI units; their ratios would have no float.
BEYOND = 1e30


class ComparisonVerdict(StrEnum):
    """What may be said of a candidate."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"
    INCONCLUSIVE = "inconclusive"
    NOT_COMPARABLE = "not_comparable"
    IMPLAUSIBLE = "implausible"


#: From what weighs most to what weighs least in the verdict of many.
_WEIGHT = (
    ComparisonVerdict.SLOWER, ComparisonVerdict.IMPLAUSIBLE, ComparisonVerdict.NOT_COMPARABLE, ComparisonVerdict.INCONCLUSIVE,
    ComparisonVerdict.FASTER, ComparisonVerdict.SAME,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What counts as a change.

    Args:
        tolerance_ratio: The smallest relative change that matters.
        resolution_ratio: `same` is only said where a change beyond this would have been seen.
        floor_s: The smallest difference of a time that matters [s]: clocks and dispatch jitter below it.
        run_ratio: Known spread between runs of this machine (relative standard deviation).
        unseen_ratio: The same where one process a side and no history show nothing of it.
        level: The accepted share of false alarms.
        interleaved: Both sides were taken in turn, sample by sample.
        allow, require: Components that may differ, or must not; see `fingerprint.differences`.
        draws: Draws of an interval.
        seed: Seed of the draws.
    """

    tolerance_ratio: float = 0.02
    resolution_ratio: float = 0.10
    floor_s: float = 1e-6
    run_ratio: float = RUN_RATIO
    unseen_ratio: float = UNSEEN_RATIO
    level: float = LEVEL
    interleaved: bool = False
    allow: tuple[str, ...] = ()
    require: tuple[str, ...] = ()
    draws: int = DRAWS
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("tolerance_ratio", "resolution_ratio", "floor_s", "run_ratio", "unseen_ratio", "level"):
            value = getattr(self, name)
            if not math.isfinite(value) or value < 0:
                raise ValueError(f"{name} must be finite and not negative, got {value!r}")
        if self.level >= 1 or self.level == 0:
            raise ValueError(f"level must lie between 0 and 1, got {self.level!r}")
        if self.resolution_ratio < self.tolerance_ratio:
            raise ValueError(
                f"resolution_ratio {self.resolution_ratio} is below tolerance_ratio {self.tolerance_ratio}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The comparison of one figure.

    Args:
        name: Benchmark and metric.
        metric, unit: What is compared.
        verdict: What may be said.
        code: Stable identifier of the reason.
        reason: The reason in words.
        ratio: Candidate over baseline, of the figure as it is: of a time, above 1 is slower.
        ci95: Its interval.
        baseline, candidate: The figures, in `unit`.
        samples: How many on each side.
        p_adjusted: Probability of such data if the change were within the tolerance, adjusted for all comparisons made.
        smallest_ratio: The smallest change that this comparison would have called, relative.
        differs: What the two do not share.
    """

    name: str
    metric: str
    unit: str
    verdict: ComparisonVerdict
    code: str
    reason: str
    ratio: float | Unknown
    ci95: tuple[float, float] | Unknown
    baseline: float | Unknown
    candidate: float | Unknown
    samples: tuple[int, int]
    p_adjusted: float | None = None
    smallest_ratio: float | None = None
    differs: tuple[Difference, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the element of `results`."""
        return {
            "name": self.name, "verdict": self.verdict.value, "ratio": self.ratio, "ci95": self.ci95, "reason": self.reason,
            "code": self.code, "metric": self.metric, "unit": self.unit, "baseline": self.baseline, "candidate": self.candidate,
            "samples": list(self.samples), "p_adjusted": self.p_adjusted, "smallest_ratio": self.smallest_ratio,
            "differs": [
                {"component": d.component, "key": d.key, "baseline": d.baseline, "candidate": d.candidate, "forbids": d.forbids}
                for d in self.differs
            ],
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All results of one comparison.

    Args:
        results: Each figure that the baseline has.
        added: Figures that only the candidate has: not judged.
        skipped: Figures that neither side measured, such as points that need another device.
        limits: What counted as a change.
        empty: Why there was nothing to compare.
    """

    results: tuple[Result, ...]
    added: tuple[str, ...]
    limits: Limits
    skipped: tuple[str, ...] = ()
    empty: str = ""

    @property
    def verdict(self) -> ComparisonVerdict:
        """The verdict that weighs most; nothing to compare is inconclusive."""
        found = {r.verdict for r in self.results}
        return next((v for v in _WEIGHT if v in found), ComparisonVerdict.INCONCLUSIVE)

    @property
    def exit_code(self) -> int:
        """0 same or faster, 1 slower, 3 no judgement."""
        return exit_code(self.verdict)


def exit_code(verdict: ComparisonVerdict) -> int:
    """Return the exit code of a verdict.

    >>> exit_code(ComparisonVerdict.SLOWER), exit_code(ComparisonVerdict.SAME), exit_code(ComparisonVerdict.NOT_COMPARABLE)
    (1, 0, 3)
    """
    if verdict is ComparisonVerdict.SLOWER:
        return 1
    return 0 if verdict in (ComparisonVerdict.SAME, ComparisonVerdict.FASTER) else 3


@dataclass(frozen=True, slots=True, kw_only=True)
class _Open:
    """A comparison whose numbers are there and whose verdict waits for all the others."""

    a: Measurement
    sides: tuple[tuple[Measurement, ...], tuple[Measurement, ...]]
    evidence: Evidence
    samples: tuple[int, int]
    differs: tuple[Difference, ...]
    exact: bool

    @property
    def ratio(self) -> Ratio:
        """Candidate over baseline."""
        return self.evidence.ratio


def compare(baseline: Sequence[Record], candidate: Sequence[Record], limits: Limits | None = None) -> Comparison:
    """Compare the runs of a candidate with those of a baseline.

    Args:
        baseline, candidate: Runs of the same benchmarks, at least one of each.
        limits: What counts as a change.

    Returns: a result for each primary figure of the baseline. A figure that the candidate lacks is inconclusive, never "ok".
    """
    chosen = limits or Limits()
    if (
        {r.sha256 for r in baseline} == {r.sha256 for r in candidate}
        and baseline
        and not any(r.empty for r in baseline)
    ):
        results = tuple(_identical(m) for m in baseline[0].measurements if m.primary and not _unmeasured([m]))
        return Comparison(results=results, added=(), limits=chosen)
    left, right = _by_name(baseline), _by_name(candidate)
    skipped = tuple(n for n in left if n in right and _unmeasured(left[n]) and _unmeasured(right[n]))
    entries = [_entry(left[name], right.get(name, []), chosen) for name in left if name not in skipped]
    added = tuple(n for n in right if n not in left)
    empty = next((f"{r.source}: {r.empty}" for r in (*candidate, *baseline) if r.empty), "")
    if not left and not empty:
        empty = "the baseline holds no figure to compare"
    return Comparison(results=_decide(entries, chosen), added=added, skipped=skipped, limits=chosen, empty=empty)


def compare_measurements(
    baseline: Sequence[Measurement], candidate: Sequence[Measurement], limits: Limits | None = None
) -> Result:
    """Compare one figure by itself; see `compare`."""
    return compare_pairs([(baseline, candidate)], limits)[0]


def compare_pairs(
    pairs: Sequence[tuple[Sequence[Measurement], Sequence[Measurement]]], limits: Limits | None = None
) -> tuple[Result, ...]:
    """Compare figures pair by pair, each a baseline and its candidate, as one question; see `compare`."""
    chosen = limits or Limits()
    return _decide([_entry(list(a), list(b), chosen) for a, b in pairs], chosen)


def compare_figures(
    baseline: Sequence[Measurement], candidate: Sequence[Measurement], limits: Limits | None = None
) -> Comparison:
    """Compare figures of two sides by their names; see `compare`."""
    sides = [
        Record(source=n, schema="figures", created="", sha256=n, measurements=tuple(m))
        for n, m in (("baseline", baseline), ("candidate", candidate))
    ]
    return compare(sides[:1], sides[1:], limits)


def _by_name(records: Sequence[Record]) -> dict[str, list[Measurement]]:
    found: dict[str, list[Measurement]] = {}
    for record in records:
        for m in record.measurements:
            if m.primary:
                found.setdefault(m.name, []).append(replace(m, taken=m.taken or record.created))
    return found


def _unmeasured(side: Sequence[Measurement]) -> bool:
    return all(m.absent and not m.flaw for m in side)


def _identical(m: Measurement) -> Result:
    value = m.value
    if isinstance(value, Unknown) or m.flaw:
        return _closed(m, [m], [m], ComparisonVerdict.INCONCLUSIVE, "empty_candidate", m.flaw or m.absent)
    return Result(
        name=m.name, metric=m.metric, unit=m.unit, verdict=ComparisonVerdict.SAME, code="identical_input",
        reason="both sides are the same document", ratio=1.0, ci95=(1.0, 1.0), baseline=value, candidate=value,
        samples=(m.sample_count, m.sample_count),
    )  # fmt: skip


def _closed(
    m: Measurement, a: Sequence[Measurement], b: Sequence[Measurement], verdict: ComparisonVerdict, code: str, reason: str,
    differs: tuple[Difference, ...] = (),
) -> Result:  # fmt: skip
    """Return a result that was decided without statistics."""
    nothing = Unknown(reason)
    values = [next((m.value for m in side if not isinstance(m.value, Unknown)), nothing) for side in (a, b)]
    return Result(
        name=m.name, metric=m.metric, unit=m.unit, verdict=verdict, code=code, reason=reason, ratio=nothing, ci95=nothing,
        baseline=values[0], candidate=values[1], samples=(sum(x.sample_count for x in a), sum(x.sample_count for x in b)),
        differs=differs,
    )  # fmt: skip


def _entry(a: list[Measurement], b: list[Measurement], limits: Limits) -> Result | _Open:
    """Return what can be said of a figure before the others are known."""
    first = a[0]
    if not b:
        reason = "the candidate does not have it: a benchmark that vanished is no success"
        return _closed(first, a, [], ComparisonVerdict.INCONCLUSIVE, "missing_in_candidate", reason)
    differs = tuple(dict.fromkeys(d for m in b for d in _differs(first, m, limits)))
    forbidding = [d for d in differs if d.forbids]
    if forbidding:
        reason = "; ".join(d.text for d in forbidding)
        return _closed(
            first, a, b, ComparisonVerdict.NOT_COMPARABLE, f"different_{forbidding[0].component}", reason, differs
        )
    flaw = next((m.flaw for m in (*b, *a) if m.flaw), "")
    if flaw:
        return _closed(first, a, b, ComparisonVerdict.IMPLAUSIBLE, "implausible_point", flaw, differs)
    for side, code in ((b, "empty_candidate"), (a, "empty_baseline")):
        absent = next((m for m in side if isinstance(m.value, Unknown)), None)
        if absent is not None:
            why = absent.absent or "no samples"
            return _closed(first, a, b, ComparisonVerdict.INCONCLUSIVE, code, f"nothing was measured: {why}", differs)
    why = impossible([*a, *b])
    if why:
        return _closed(first, a, b, ComparisonVerdict.IMPLAUSIBLE, "impossible_value", why, differs)
    return _measured(first, a, b, limits, differs)


def _differs(a: Measurement, b: Measurement, limits: Limits) -> tuple[Difference, ...]:
    return differences(a.fingerprint, b.fingerprint, allow=limits.allow, require=limits.require)


def impossible(measurements: Sequence[Measurement]) -> str:
    """Return why a figure cannot be: it is not positive, beyond all that is measured, or a share of more than the ceiling; empty where none is so."""
    for m in measurements:
        for x in m.samples or (m.stated or ()):
            if not math.isfinite(x) or x <= 0:
                return f"a sample of {m.name} is {x!r}, expected a positive number"
            if not 1.0 / BEYOND < x < BEYOND:
                return f"a sample of {m.name} is {x!r} {m.unit}, which is no measure"
        value = m.value
        if m.metric in SHARES and not isinstance(value, Unknown) and value > 1.0 + 0.05:
            return f"{m.name} is {value:.3g}: more than the ceiling"
    return ""


def _measured(
    first: Measurement, a: list[Measurement], b: list[Measurement], limits: Limits, differs: tuple[Difference, ...]
) -> Result | _Open:
    counts = (sum(m.sample_count for m in a), sum(m.sample_count for m in b))
    exact = all(m.exact for m in (*a, *b))
    if not exact and min(counts) < LEAST_SAMPLES:
        code = "single_sample" if min(counts) == 1 else "too_few_samples"
        reason = f"{counts[0]} and {counts[1]} samples: at least {LEAST_SAMPLES} on each side are needed to tell a change from noise"
        return _closed(first, a, b, ComparisonVerdict.INCONCLUSIVE, code, reason, differs)
    return _Open(
        a=first, sides=(tuple(a), tuple(b)), evidence=evidence_of(a, b, limits), samples=counts, differs=differs, exact=exact
    )  # fmt: skip


# --- the verdicts ----------------------------------------------------------------------------------------------------


def _decide(entries: Sequence[Result | _Open], limits: Limits) -> tuple[Result, ...]:
    """Return the results, with the probabilities adjusted for how many figures were compared at once."""
    sharp = _sharpened(entries, limits)
    waiting = [e for e in sharp if isinstance(e, _Open) and not e.exact]
    adjusted = iter(benjamini_hochberg([e.ratio.p_changed for e in waiting]))
    return tuple(e if isinstance(e, Result) else _judge(e, None if e.exact else next(adjusted), limits) for e in sharp)


def _sharpened(entries: Sequence[Result | _Open], limits: Limits) -> list[Result | _Open]:
    """Return the comparisons, with more draws for those whose probability is too small for the draws that were made.

    One real change among m has to come below level / m, and n draws resolve 2 / n: 20,000 of them stop to do for 500 figures.
    """
    count = sum(isinstance(e, _Open) and not e.exact for e in entries)
    needed = math.ceil(8 * count / limits.level)
    if needed <= limits.draws:
        return list(entries)
    more = replace(limits, draws=needed)
    return [
        replace(e, evidence=evidence_of(*e.sides, more)) if isinstance(e, _Open) and not e.exact and e.ratio.p_changed < limits.level else e
        for e in entries
    ]  # fmt: skip


def _judge(e: _Open, p: float | None, limits: Limits) -> Result:
    r = e.ratio
    up = r.value > 1.0
    called = (p is None and abs(math.log(r.value)) > math.log1p(limits.tolerance_ratio)) or (
        p is not None
        and p <= limits.level
        and (r.low > 1.0 + limits.tolerance_ratio or r.high < 1.0 / (1.0 + limits.tolerance_ratio))
    )
    verdict, code, reason = _called(e, up, limits) if called else _not_called(e, p, limits)
    reason += f"; {e.evidence.note}" if e.evidence.note else ""
    return Result(
        name=e.a.name, metric=e.a.metric, unit=e.a.unit, verdict=verdict, code=code, reason=reason, ratio=r.value,
        ci95=(r.low, r.high), baseline=e.evidence.values[0], candidate=e.evidence.values[1], samples=e.samples, p_adjusted=p,
        smallest_ratio=smallest_change(r, limits), differs=e.differs,
    )  # fmt: skip


def smallest_change(r: Ratio, limits: Limits) -> float:
    """Return the change that a comparison with this much noise calls one time in two: the tolerance and half of the interval.

    An interval of +- 3 % and a tolerance of 2 %: 1.02 x 1.03 - 1 = 5.06 %.

    >>> r = Ratio(value=1.0, low=1 / 1.03, high=1.03, p_above=1.0, p_below=1.0, p_different=1.0)
    >>> round(smallest_change(r, Limits()), 4)
    0.0506
    """
    return (1.0 + limits.tolerance_ratio) * math.sqrt(r.high / r.low) - 1.0


def _called(e: _Open, up: bool, limits: Limits) -> tuple[ComparisonVerdict, str, str]:
    r, m = e.ratio, e.a
    better = up == m.more_is_better
    factor = r.value if up else 1.0 / r.value
    if better and factor >= COLLAPSED_RATIO:
        reason = f"{factor:.3g} times better: a measurement that collapsed is likelier (work left out, dead code, a missing sync)"
        return ComparisonVerdict.IMPLAUSIBLE, "collapsed", reason
    difference = abs(e.evidence.values[1] - e.evidence.values[0])
    if m.unit == "s" and difference < limits.floor_s:
        reason = f"the difference of {difference:.2g} s is below the floor of {limits.floor_s:.2g} s"
        return ComparisonVerdict.INCONCLUSIVE, "below_absolute_floor", reason
    c = e.evidence.cycles
    if c is not None:
        holds = c.low > 1.0 + limits.tolerance_ratio if up else c.high < 1.0 / (1.0 + limits.tolerance_ratio)
        if not holds:
            reason = (
                f"the clock moved: in time {_percent(r.value)}, in cycles {_percent(c.value)} "
                f"({_percent(c.low)} to {_percent(c.high)}); measure both at one clock"
            )
            return ComparisonVerdict.INCONCLUSIVE, "clock_moved", reason
    interval = "computed, no spread" if e.exact else f"95 % interval {_percent(r.low)} to {_percent(r.high)}"
    reason = f"{_percent(r.value)}, {interval}, beyond the tolerance of {format_ratio(limits.tolerance_ratio)}"
    return (ComparisonVerdict.FASTER if better else ComparisonVerdict.SLOWER), "changed", reason


def _not_called(e: _Open, p: float | None, limits: Limits) -> tuple[ComparisonVerdict, str, str]:
    r = e.ratio
    edge = 1.0 + limits.resolution_ratio
    shown = f"{_percent(r.value)}, 95 % interval {_percent(r.low)} to {_percent(r.high)}"
    if r.high > edge or r.low < 1.0 / edge:
        alone = unseen(e.sides, limits)
        if alone:
            return ComparisonVerdict.INCONCLUSIVE, "single_process", f"{shown}: {alone}"
        reason = f"{shown}: too noisy to exclude a change of {limits.resolution_ratio:.0%}; take more samples or a quieter machine"
        return ComparisonVerdict.INCONCLUSIVE, "noisy", reason
    beyond = abs(math.log(r.value)) > math.log1p(limits.tolerance_ratio)
    if beyond and p is not None and r.p_different <= limits.level:
        reason = f"{shown}: a change, but not surely beyond the tolerance of {format_ratio(limits.tolerance_ratio)}; take more samples"
        return ComparisonVerdict.INCONCLUSIVE, "between", reason
    code = "no_change" if r.low <= 1.0 <= r.high else "within_tolerance"
    return ComparisonVerdict.SAME, code, f"{shown}; a change of {_percent(1 + smallest_change(r, limits))} would show"


def _percent(ratio: float) -> str:
    """Return a ratio as a change in percent.

    >>> _percent(1.0712), _percent(0.5)
    ('+7.12 %', '-50 %')
    """
    return f"{100.0 * (ratio - 1.0):+.3g} %"


def compare_lists(
    baseline: Sequence[float], candidate: Sequence[float], *, metric: str = "time_s", limits: Limits | None = None
) -> Result:
    """Compare two lists of samples of one figure.

    Args:
        baseline, candidate: Samples in the SI unit of the metric.
        metric: A key of `records.METRICS`.
        limits: What counts as a change.

    >>> compare_lists([0.100, 0.101, 0.099, 0.100, 0.100], [0.112, 0.113, 0.111, 0.112, 0.112]).verdict.value
    'slower'
    """
    sides = [
        Measurement(benchmark="samples", metric=metric, groups=(tuple(float(x) for x in s),) if s else (), absent="" if s else "no samples")
        for s in (baseline, candidate)
    ]  # fmt: skip
    if list(baseline) == list(candidate) and len(baseline) > 0:
        return _identical(sides[0])
    return compare_measurements([sides[0]], [sides[1]], limits)
