"""Implementations of one point side by side; where intervals overlap it is a tie and nobody is named the winner."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mansard.core.errors import UsageError
from mansard.core.stats import median_interval
from mansard.core.units import format_ratio
from mansard.measure.points.conditions import BUSY_RATIO
from mansard.measure.points.result import PointVerdict, Result, State

_TIMING = ("impl", "warmup_tries", "num_runs", "min_duration_s", "max_duration_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonRow:
    """One implementation.

    Args:
        impl: Its name.
        time_s, low_s, high_s: Median and its 95 % interval [s]; None where it was not timed.
        times_fastest: Its median over that of the fastest; None where it was not timed.
        tied_with: Implementations whose intervals overlap with its own.
        remark: Why it was not timed, or that its result is not to be used.
    """

    impl: str
    time_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    times_fastest: float | None = None
    tied_with: tuple[str, ...] = ()
    remark: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Implementations of one point.

    Args:
        benchmark: Its name.
        params: What all of them did.
        rows: Timed ones by time, then the others.
        fastest: The fastest; None where it is tied with another, was disturbed, or nothing was timed.
        tied: Those that nobody was clearly faster than; one name where there is a winner.
        disturbed: Why times that differ name no winner: other programs used the processors meanwhile; empty where they did not.
    """

    benchmark: str
    params: Mapping[str, Any]
    rows: tuple[ComparisonRow, ...]
    fastest: str | None
    tied: tuple[str, ...]
    disturbed: str = ""

    def sentence(self) -> str:
        """Return the outcome in one sentence."""
        if not self.tied:
            return f"no implementation of {self.benchmark} was timed"
        if len(self.tied) > 1:
            return f"{', '.join(self.tied)} are tied: their intervals overlap"
        others = [r for r in self.rows if r.times_fastest is not None and r.impl != self.tied[0]]
        if not others:
            rest = "; ".join(f"{r.impl}: {r.remark.partition(': ')[0]}" for r in self.rows if r.time_s is None)
            return f"no other time than that of {self.tied[0]}" + (f" ({rest})" if rest else "")
        if self.disturbed:
            return f"which is the fastest is not said: {self.disturbed}"
        return f"{self.fastest} is the fastest; {others[0].impl} takes {others[0].times_fastest:.2f} times as long"


def compare_implementations(results: Iterable[Result]) -> tuple[Comparison, ...]:
    """Return one comparison for each set of points that differ in their implementation alone.

    Args:
        results: Results of any points. A point whose number must not be used (a fatal finding of the audit) is listed
            with the reason and takes no part; so are those that failed or were waived.

    Raises:
        UsageError: one implementation is there twice for the same parameters.
    """
    sets: dict[tuple[Any, ...], list[Result]] = {}
    for r in results:
        shared = {k: v for k, v in r.point.params.items() if k not in _TIMING}
        sets.setdefault((r.point.benchmark, tuple(sorted((k, repr(v)) for k, v in shared.items()))), []).append(r)
    return tuple(_compared(found) for found in sets.values())


def _compared(results: Sequence[Result]) -> Comparison:
    benchmark = results[0].point.benchmark
    names = [r.point.impl for r in results]
    if len(set(names)) < len(names):
        twice = next(n for n in names if names.count(n) > 1)
        raise UsageError(
            f"{benchmark} has two results of {twice} for the same parameters", hint="compare one run at a time"
        )
    timed = sorted((row for r in results if (row := _timed(r)) is not None), key=lambda r: (r.time_s or 0.0, r.impl))
    rows = tuple(
        ComparisonRow(
            impl=a.impl,
            time_s=a.time_s,
            low_s=a.low_s,
            high_s=a.high_s,
            times_fastest=(a.time_s or 0.0) / (timed[0].time_s or 1.0),
            tied_with=tuple(b.impl for b in timed if b is not a and overlap(a, b)),
        )
        for a in timed
    )
    tied = (rows[0].impl, *rows[0].tied_with) if rows else ()
    disturbed = _disturbed([r for r in results if _timed(r) is not None])
    others = tuple(ComparisonRow(impl=r.point.impl, remark=_remark(r)) for r in results if _timed(r) is None)
    params = {k: v for k, v in results[0].point.params.items() if k not in _TIMING}
    return Comparison(
        benchmark=benchmark,
        params=params,
        rows=rows + others,
        fastest=tied[0] if len(tied) == 1 and not disturbed else None,
        tied=tied,
        disturbed=disturbed,
    )


def _disturbed(results: Sequence[Result]) -> str:
    """Return what other programs used while each was timed, where it is more than a quiet machine has at any of them."""
    loads = {
        r.point.impl: float(r.conditions.foreign_ratio)
        for r in results
        if r.conditions is not None and r.conditions.foreign_ratio is not None
    }
    if len(loads) < 2 or max(loads.values()) <= BUSY_RATIO:
        return ""
    told = ", ".join(f"{format_ratio(load)} during {impl}" for impl, load in loads.items())
    return f"other programs used the processors, {told}"


def overlap(a: ComparisonRow, b: ComparisonRow) -> bool:
    """Return whether the intervals of two implementations overlap; one that was not timed overlaps with none."""
    if a.low_s is None or a.high_s is None or b.low_s is None or b.high_s is None:
        return False
    return a.low_s <= b.high_s and b.low_s <= a.high_s


def _timed(r: Result) -> ComparisonRow | None:
    if r.state is not State.DONE or r.samples is None or _must_not_be_used(r):
        return None
    low, high, middle = r.samples.low_s, r.samples.high_s, r.samples.median_s
    if not middle > 0.0:
        found = median_interval(r.samples.seconds)
        low, high, middle = found.low, found.high, found.median
    return ComparisonRow(impl=r.point.impl, time_s=middle, low_s=low, high_s=high)


def _must_not_be_used(r: Result) -> bool:
    return r.verdict is PointVerdict.IMPLAUSIBLE or any(f.fatal for f in r.findings)


def _remark(r: Result) -> str:
    if r.state is not State.DONE:
        checked = ", checked in interpret mode" if "interpreted" in r.audit else ""
        return f"{r.state.value}{checked}: {r.reason}"
    fatal = next((f.text for f in r.findings if f.fatal), r.verdict_reason)
    return f"not to be used: {fatal}"
