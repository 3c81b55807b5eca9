"""The gate: rules against a result and its baseline. It passes, fails, or says that it cannot tell; it never passes on nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from mansard.core.unknown import Unknown
from mansard.history.compare import Comparison, ComparisonVerdict, Result, compare, impossible
from mansard.history.records import Measurement, Record
from mansard.history.rules import Rule, Rules


class Outcome(StrEnum):
    """What a rule, or a gate, came to."""

    PASS = "pass"
    FAIL = "fail"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """One rule on one figure.

    Args:
        name: The figure.
        rule: Name of the rule.
        outcome: What came of it.
        verdict: That of the comparison, or `met`, `missed`, `inconclusive` of an absolute rule.
        reason: Why.
        value: The figure, in `unit`.
        limit: What it was held against, in words.
        unit: SI unit.
        comparison: The comparison, for a relative rule.
        interval: 95 % interval of the figure, where it is known.
    """

    name: str
    rule: str
    outcome: Outcome
    verdict: str
    reason: str
    value: float | Unknown
    limit: str
    unit: str
    comparison: Result | None = None
    interval: tuple[float, float] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the element of `results`."""
        c = self.comparison
        missing = Unknown("an absolute rule has no baseline")
        return {
            "name": self.name, "verdict": self.verdict, "ratio": missing if c is None else c.ratio,
            "ci95": (self.interval if self.interval is not None else missing) if c is None else c.ci95, "reason": self.reason,
            "rule": self.rule, "outcome": self.outcome.value, "value": self.value, "unit": self.unit, "limit": self.limit,
            "code": None if c is None else c.code, "baseline": missing if c is None else c.baseline,
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """What a gate came to.

    Args:
        results: Every rule on every figure it is about, passed ones included.
        source: The result that was checked.
        baseline: Name of the baseline; empty where there is none.
        empty: Why the result holds nothing.
    """

    results: tuple[CheckResult, ...]
    source: str
    baseline: str = ""
    empty: str = ""

    @property
    def outcome(self) -> Outcome:
        """Fail if any rule failed, undecided if any could not be decided or nothing was checked, else pass."""
        found = {r.outcome for r in self.results}
        if Outcome.FAIL in found:
            return Outcome.FAIL
        return Outcome.PASS if found == {Outcome.PASS} else Outcome.UNDECIDED

    @property
    def exit_code(self) -> int:
        """0 pass, 1 fail, 3 undecided."""
        return {Outcome.PASS: 0, Outcome.FAIL: 1, Outcome.UNDECIDED: 3}[self.outcome]

    @property
    def verdict(self) -> str:
        """The verdict that weighs most: that of a failed rule, then that of an undecided one."""
        for outcome in (Outcome.FAIL, Outcome.UNDECIDED, Outcome.PASS):
            for r in self.results:
                if r.outcome is outcome:
                    return r.verdict
        return "inconclusive"


def check(
    record: Record,
    rules: Rules,
    *,
    baseline: Sequence[Record] = (),
    baseline_name: str = "",
    more: Sequence[Record] = (),
) -> Check:
    """Hold a result against rules.

    Args:
        record: The result.
        rules: What is asked of it.
        baseline: Accepted runs, for relative rules.
        baseline_name: How they are called.
        more: Further runs of the same candidate: they tell more of the noise.
    """
    runs = [record, *more]
    relative = [r for r in rules.rules if r.condition == "max_regression"]
    # One comparison per figure, for all rules together: the false alarms are counted over everything that is asked.
    compared = _compared(runs, relative, rules, list(baseline))
    results: list[CheckResult] = []
    for rule in rules.rules:
        found = _relative(rule, compared, bool(baseline)) if rule in relative else _absolute(rule, runs)
        if not found and rule.required:
            found = [_nothing(rule, record)]
        results += found
    return Check(results=tuple(results), source=record.source, baseline=baseline_name, empty=record.empty)


def _nothing(rule: Rule, record: Record) -> CheckResult:
    why = record.empty or "no figure of the result has such a name"
    if any(rule.matches(m.name) for m in record.measurements):
        why = "the baseline has no such figure"
    return CheckResult(
        name=rule.metric, rule=rule.name, outcome=Outcome.UNDECIDED, verdict="inconclusive", reason=f"nothing to check: {why}",
        value=Unknown(why), limit=rule.condition, unit="",
    )  # fmt: skip


def _compared(
    runs: list[Record], relative: Sequence[Rule], rules: Rules, baseline: list[Record]
) -> dict[tuple[float, float], dict[str, Result]]:
    """Return the comparisons by tolerance and floor: rules with the same limits share one, with one count of false alarms."""
    found: dict[tuple[float, float], dict[str, Result]] = {}
    for rule in relative if baseline else ():
        key = _key(rule, rules)
        if key in found:
            continue
        same = [r for r in relative if _key(r, rules) == key]
        limits = dataclasses.replace(
            rules.limits,
            tolerance_ratio=key[0],
            floor_s=key[1],
            resolution_ratio=max(rules.limits.resolution_ratio, 2 * key[0]),
        )
        sides = [[_only(r, same) for r in side] for side in (baseline, runs)]
        c: Comparison = compare(sides[0], sides[1], limits)
        found[key] = {r.name: r for r in c.results}
    return found


def _key(rule: Rule, rules: Rules) -> tuple[float, float]:
    assert rule.regression_ratio is not None
    return rule.regression_ratio, rules.limits.floor_s if rule.floor_s is None else rule.floor_s


def _only(record: Record, rules: Sequence[Rule]) -> Record:
    """Return a record with the figures that rules are about, each of them compared, be it primary or not."""
    kept = tuple(
        dataclasses.replace(m, primary=True)
        for m in record.measurements
        if any(r.matches(m.name) and (m.primary or not r.primary) for r in rules)
    )
    return dataclasses.replace(record, measurements=kept)


def _relative(
    rule: Rule, compared: dict[tuple[float, float], dict[str, Result]], has_baseline: bool
) -> list[CheckResult]:
    limit = f"at most {rule.regression_ratio:.3g} worse than the baseline"
    if not has_baseline:
        reason = "there is no baseline to compare with"
        return [
            CheckResult(
                name=rule.metric, rule=rule.name, outcome=Outcome.UNDECIDED, verdict="inconclusive", reason=reason,
                value=Unknown(reason), limit=limit, unit="",
            )
        ]  # fmt: skip
    found: list[CheckResult] = []
    results = next(
        (v for k, v in compared.items() if k[0] == rule.regression_ratio and rule.floor_s in (None, k[1])), {}
    )
    for name, r in results.items():
        if not rule.matches(name):
            continue
        outcome = {
            ComparisonVerdict.SLOWER: Outcome.FAIL, ComparisonVerdict.SAME: Outcome.PASS, ComparisonVerdict.FASTER: Outcome.PASS,
        }.get(r.verdict, Outcome.UNDECIDED)  # fmt: skip
        found.append(
            CheckResult(
                name=name, rule=rule.name, outcome=outcome, verdict=r.verdict.value, reason=r.reason, value=r.candidate, limit=limit,
                unit=r.unit, comparison=r,
            )
        )  # fmt: skip
    return found


def _absolute(rule: Rule, runs: Sequence[Record]) -> list[CheckResult]:
    by: dict[str, list[Measurement]] = {}
    for m in (m for record in runs for m in record.measurements if rule.matches(m.name)):
        by.setdefault(m.name, []).append(m)
    return [_target(rule, found) for found in by.values()]


def _target(rule: Rule, found: Sequence[Measurement]) -> CheckResult:
    """Return whether a figure meets a target: its value decides, and its interval says whether a miss is sure."""
    m = found[-1]
    low, high = rule.bounds(m.metric)
    limit = " and ".join(
        w for w in ("" if low is None else f"at least {low:.6g}", "" if high is None else f"at most {high:.6g}") if w
    )
    value = m.value if len(found) == 1 else _joint(found)
    common: dict[str, Any] = {"name": m.name, "rule": rule.name, "value": value, "limit": limit, "unit": m.unit}
    flaw = next((x.flaw for x in found if x.flaw), "") or impossible(found)
    if flaw or isinstance(value, Unknown):
        verdict = "implausible" if flaw else "inconclusive"
        reason = flaw or f"nothing was measured: {value.reason}" if isinstance(value, Unknown) else flaw
        return CheckResult(outcome=Outcome.UNDECIDED, verdict=verdict, reason=reason, **common)
    interval = _interval(found)
    beyond = _beyond(value, low, high)
    if not beyond:
        edge = (
            ""
            if interval is None or not any(_beyond(x, low, high) for x in interval)
            else "; its interval reaches beyond the limit"
        )
        reason = f"{value:.4g} is {limit}{edge}"
        return CheckResult(outcome=Outcome.PASS, verdict="met", reason=reason, interval=interval, **common)
    if interval is not None and not all(_beyond(x, low, high) == beyond for x in interval):
        reason = (
            f"{value:.4g} misses {limit}, but its interval {interval[0]:.4g} to {interval[1]:.4g} does not exclude it"
        )
        return CheckResult(
            outcome=Outcome.UNDECIDED, verdict="inconclusive", reason=reason, interval=interval, **common
        )
    reason = f"{value:.4g} is not {limit}"
    return CheckResult(outcome=Outcome.FAIL, verdict="missed", reason=reason, interval=interval, **common)


def _joint(found: Sequence[Measurement]) -> float | Unknown:
    import numpy as np

    values = [m.value for m in found]
    numbers = [v for v in values if not isinstance(v, Unknown)]
    return (
        float(np.median(numbers)) if len(numbers) == len(values) else next(v for v in values if isinstance(v, Unknown))
    )


def _beyond(value: float, low: float | None, high: float | None) -> int:
    """Return -1 below the lower limit, 1 above the upper one, else 0."""
    return -1 if low is not None and value < low else 1 if high is not None and value > high else 0


def _interval(found: Sequence[Measurement]) -> tuple[float, float] | None:
    from mansard.core.stats import median_interval

    samples = [x for m in found for x in m.samples]
    if len(samples) > 1:
        s = median_interval(samples)
        return s.low, s.high
    stated = [m.stated for m in found if m.stated is not None]
    return (min(s[1] for s in stated), max(s[2] for s in stated)) if stated and stated[0][1] < stated[0][2] else None
