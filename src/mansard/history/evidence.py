"""The numbers of one comparison: which runs are independent, which of them are alike, and the interval of their ratio."""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from mansard.core.stats import median_interval
from mansard.history.records import Measurement
from mansard.history.statistics import Ratio, Side, hidden, ratio_of_medians, ratio_of_pairs
from mansard.measure.points.regimes import two_regimes

if TYPE_CHECKING:
    from mansard.history.compare import Limits

#: Runs that follow each other within this are taken to share the state of the machine: they are one burst, however many they are [s].
#: Assumed: how long a state lasts differs from machine to machine, and longer ones make bursts that are not independent.
BURST_S = 60.0
#: So many bursts in each of two regimes make a history of both.
LEAST_IN_REGIME = 2
#: A change of pairs and one of medians that differ by less are the same to a reader.
UNLIKE = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What the samples of both sides say.

    Args:
        ratio: Candidate over baseline.
        cycles: The same in clock cycles, where the clock moved.
        values: The figures of both sides.
        note: What the comparison was restricted to; empty where it was not.
    """

    ratio: Ratio
    cycles: Ratio | None
    values: tuple[float, float]
    note: str = ""


def evidence_of(a: Sequence[Measurement], b: Sequence[Measurement], limits: Limits) -> Evidence:
    """Return the ratio of two sides with its interval.

    Args:
        a, b: Runs of the baseline and of the candidate, all of them with a figure.
        limits: What counts as a change.
    """
    a, note = ([*a], "") if limits.interleaved else like_with_like(a, b)
    clocks = [m.clock_hz for m in (*a, *b)]
    cycles = None
    if a[0].unit == "s" and all(clocks) and _spread([c for c in clocks if c]) > 0.01:
        # In cycles: each time times the clock it ran at. Work of the core does not change with the clock, memory's does.
        cycles = ratio_of([_in_cycles(m) for m in a], [_in_cycles(m) for m in b], limits)
    ratio, values = ratio_of(a, b, limits), (side_of(a).median, side_of(b).median)
    if _in_pairs((side_of(a), side_of(b)), limits):
        note = pair_note(ratio.value, values[1] / values[0])
    return Evidence(ratio=ratio, cycles=cycles, values=values, note=note)


def unseen(sides: Sequence[Sequence[Measurement]], limits: Limits) -> str:
    """Return what to do where nothing shows how processes differ, so that it was assumed; empty where something does.

    Args:
        sides: Runs of the baseline and of the candidate.
        limits: What counts as a change.
    """
    both = side_of(sides[0]), side_of(sides[1])
    if _in_pairs(both, limits) or limits.unseen_ratio <= limits.run_ratio or not hidden([s.by_burst() for s in both]):
        return ""
    return (
        f"one process a side shows nothing of the spread between processes: {limits.unseen_ratio:.0%} are assumed; "
        "run each in three processes or more (a folder of documents a side), compare with a baseline, or state the spread "
        "(--run-spread 1%, run_spread in rules and in assert_no_regression)"
    )


def pair_note(ratio: float, of_medians: float) -> str:
    """Return why the change of pairs is not that of the two medians, where the two can be told apart.

    >>> pair_note(1.05, 1.0501)
    ''
    >>> pair_note(1.05, 0.98)
    'it is the change within rounds, in which both sides met the same machine; the medians of the sides alone differ by -2 %'
    """
    if abs(math.log(of_medians / ratio)) < UNLIKE:
        return ""
    return (
        "it is the change within rounds, in which both sides met the same machine; the medians of the sides alone differ by "
        f"{100.0 * (of_medians - 1.0):+.2g} %"
    )


def _spread(values: Sequence[float]) -> float:
    return max(values) / min(values) - 1.0


def _in_cycles(m: Measurement) -> Measurement:
    scale = m.clock_hz or 1.0
    stated = None if m.stated is None else (m.stated[0] * scale, m.stated[1] * scale, m.stated[2] * scale)
    return replace(m, groups=tuple(tuple(x * scale for x in g) for g in m.groups), stated=stated)


def side_of(side: Sequence[Measurement]) -> Side:
    """Return runs as one side: what both kinds have is the figure, where some have samples and some only state theirs."""
    exact, bursts, single = all(m.exact for m in side), bursts_of([m.taken for m in side]), all(m.single for m in side)
    if all(m.groups for m in side):
        return Side(runs=tuple(m.groups for m in side), exact=exact, bursts=bursts, single=single)
    stated = []
    for m in side:
        if m.stated is not None:
            stated.append(m.stated)
        else:
            s = median_interval(m.samples)
            stated.append((s.median, s.low, s.high))
    return Side(stated=tuple(stated), exact=exact, bursts=bursts, single=single)


def bursts_of(taken: Sequence[str]) -> tuple[int, ...]:
    """Return which burst each run belongs to: those within a minute of the one before share one, and those that tell no time do.

    Args:
        taken: When each was made, ISO 8601; empty where it is not known.

    >>> bursts_of(["2026-01-01T10:00:00", "2026-01-01T10:00:40", "2026-01-01T12:00:00", ""])
    (1, 1, 2, 0)
    """
    moments = [_seconds(t) for t in taken]
    found, last, number = [0] * len(moments), None, 0
    for i in sorted((i for i, m in enumerate(moments) if m is not None), key=lambda i: moments[i] or 0.0):
        moment = moments[i] or 0.0
        number += last is None or moment - last > BURST_S
        found[i], last = number, moment
    return tuple(found)


def _seconds(text: str) -> float | None:
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)).timestamp()


def like_with_like(a: Sequence[Measurement], b: Sequence[Measurement]) -> tuple[list[Measurement], str]:
    """Return the runs of a baseline that sat in the regime of the candidate, and a note where others were left out.

    Args:
        a, b: Runs of the baseline and of the candidate.

    Memory bandwidth can sit in one of two regimes for minutes. A baseline that was seen in both, at two times or more each, is
    compared in the one that the candidate is nearest to; one that was seen in a single regime is compared as it is.
    """
    sampled = [m for m in (*a, *b) if m.groups]
    if len(sampled) < len(a) + len(b) or a[0].unit not in ("s", "B/s"):
        return [*a], ""
    both = two_regimes([m.samples for m in a])
    if both is None:
        return [*a], ""
    edge = float(np.sqrt(both.fast_s * both.slow_s))
    above = [float(np.median(m.samples)) > edge for m in a]
    bursts = bursts_of([m.taken for m in a])
    seen = [len({n for n, x in zip(bursts, above, strict=True) if x is which}) for which in (False, True)]
    wanted = {float(np.median(m.samples)) > edge for m in b}
    if min(seen) < LEAST_IN_REGIME or len(wanted) > 1:
        return [*a], ""
    kept = [m for m, x in zip(a, above, strict=True) if x in wanted]
    low, high = (both.fast_s, both.slow_s)
    note = (
        f"the baseline was seen in two regimes ({low:.4g} and {high:.4g} {a[0].unit}): compared with the {len(kept)} of {len(a)} "
        "runs in that of the candidate"
    )
    return kept, note


def _in_pairs(sides: tuple[Side, Side], limits: Limits) -> bool:
    return limits.interleaved and len(sides[0].samples) == len(sides[1].samples) > 0


def ratio_of(a: Sequence[Measurement], b: Sequence[Measurement], limits: Limits) -> Ratio:
    """Return the ratio of two sides, of pairs where they were taken in turn."""
    sides = side_of(a), side_of(b)
    if _in_pairs(sides, limits):
        groups = [[g for run in s.runs for g in run] for s in sides]
        return ratio_of_pairs(*groups, tolerance=limits.tolerance_ratio, draws=limits.draws, seed=limits.seed)
    return ratio_of_medians(
        *sides, tolerance=limits.tolerance_ratio, run_ratio=limits.run_ratio, unseen_ratio=limits.unseen_ratio, draws=limits.draws, seed=limits.seed
    )  # fmt: skip
