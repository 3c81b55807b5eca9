"""Where a figure changed over its history, by how much, and what of the environment changed there.

The logarithm of the figure is cut where its level changes (PELT of `ruptures`), unless a straight line explains it better: then it
drifts, and no single point is to blame. A lone value far from its neighbours is marked as an outlier and moves no level.

The test of a step takes the values around a level for independent. Where neighbours resemble each other it sees levels in noise: what
that does to it is measured by `benchmarks/history_trend` and told in docs/history.md.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.core.errors import InputError
from mansard.core.unknown import Unknown
from mansard.history.fingerprint import Difference, differences, digest
from mansard.history.records import METRICS, Fingerprint, Record
from mansard.history.rules import glob_matches
from mansard.measure.points.interval import t975

FloatArray = npt.NDArray[np.float64]

#: Fewer points than this show no level, and a level shorter than `LEAST_LEVEL` is no level yet.
LEAST_POINTS = 6
LEAST_LEVEL = 3
#: A point this many robust deviations from the median of its neighbours is an outlier.
FAR = 4.0
_NEIGHBOURS = 3
#: Change points cost this many times log(n), in units of the noise variance. Source: Yao, Statistics and Probability Letters 6, 1988:
#: log(n) never misses one in the long run; three times as much keeps short and heavy-tailed series quiet.
_PENALTY = 3.0
#: 95 % quantile of the place of a change, in (noise / shift)^2. Source: Bai, Review of Economics and Statistics 79, 1997, table 1.
_BAI_95 = 11.03
#: Normal: 1 / 0.6745. The difference of two values has sqrt(2) times their deviation.
_MAD = 1.4826
LEVEL = 0.02
#: A drift must exceed its 95 % interval by this: 3.09 / 1.96, two chances in a thousand.
_SURELY = 1.58
#: Conditions that make another series, rather than another time of the same one.
IDENTITY = ("device", "device_count", "topology", "dtype", "shapes", "data", "config")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrendPoint:
    """One result in a series.

    Args:
        when: When it was made, ISO 8601.
        source: Its file name.
        value: The figure in the SI unit of the series.
        outlier: Whether it stands alone, far from its neighbours.
    """

    when: str
    source: str
    value: float
    outlier: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change of level.

    Args:
        index: The first point of the new level.
        first, last: The 95 % interval of that index.
        ratio: New level over old one.
        ci95: Its interval.
        better: Whether the change is an improvement.
        environment: What of the environment changed between the point before `first` and `last`, what changed at `index` first.
    """

    index: int
    first: int
    last: int
    ratio: float
    ci95: tuple[float, float]
    better: bool
    environment: tuple[Difference, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """A steady change.

    Args:
        ratio: Last value of the line over its first.
        ci95: Its interval.
        per_point_ratio: Change from one result to the next.
        better: Whether it is an improvement.
    """

    ratio: float
    ci95: tuple[float, float]
    per_point_ratio: float
    better: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One figure over the history.

    Args:
        name: Benchmark and metric.
        metric, unit: What it is.
        conditions: Hash of the device, count, types, shapes and configuration: others are another series.
        points: Oldest first.
        noise_ratio: Deviation of the points around their level (relative).
        smallest_ratio: The smallest change of level that would show between two levels of half of the points.
        model: `steady`, `steps`, `drift` or `too_short`.
        changes: Changes of level.
        drift: The drift.
    """

    name: str
    metric: str
    unit: str
    conditions: str
    points: tuple[TrendPoint, ...]
    noise_ratio: float
    smallest_ratio: float | Unknown
    model: str
    changes: tuple[Change, ...] = ()
    drift: Drift | None = None


def trends(records: Sequence[tuple[str, Record]], *, metric: str = "*", tolerance_ratio: float = 0.02) -> list[Series]:
    """Return the series of figures that records hold.

    Args:
        records: When each was made or added, ISO 8601, and what it says; in any order.
        metric: Glob over `benchmark/metric`; without a slash over the metric alone. Only primary figures where it is `*`.
        tolerance_ratio: The smallest relative change that matters.

    Raises:
        InputError: `ruptures` is not installed.
    """
    glob = metric if "/" in metric or metric == "*" else f"*/{metric}"
    by: dict[tuple[str, str], list[tuple[TrendPoint, Fingerprint]]] = {}
    for when, record in sorted(records, key=lambda r: _moment(r[0])):
        for m in record.measurements:
            if not glob_matches(glob, m.name) or (metric == "*" and not m.primary):
                continue
            value = m.value
            if m.flaw or isinstance(value, Unknown) or value <= 0:
                continue
            identity = {c: dict(m.fingerprint.parts[c]) for c in IDENTITY if c in m.fingerprint.parts}
            point = TrendPoint(when=when, source=record.source, value=value, outlier=False)
            by.setdefault((m.name, digest(identity)), []).append((point, m.fingerprint))
    return [series_of(name, key, rows, tolerance_ratio=tolerance_ratio) for (name, key), rows in by.items()]


def _moment(when: str) -> tuple[float, str]:
    """Return what ISO 8601 texts of any zone are sorted by; one that is no time keeps its order of text, before the others."""
    try:
        moment = datetime.datetime.fromisoformat(when)
    except ValueError:
        return -math.inf, when
    return (moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)).timestamp(), when


def series_of(
    name: str, conditions: str, rows: Sequence[tuple[TrendPoint, Fingerprint]], *, tolerance_ratio: float = 0.02
) -> Series:
    """Return one series with its changes.

    Args:
        name: Benchmark and metric.
        conditions: Hash of what makes it another series.
        rows: Points with their fingerprints, the oldest first.
        tolerance_ratio: The smallest relative change that matters.
    """
    metric = name.rpartition("/")[2]
    unit, more_is_better = METRICS[metric]
    y = np.log([p.value for p, _ in rows])
    far = outliers(y)
    points = tuple(
        TrendPoint(when=p.when, source=p.source, value=p.value, outlier=bool(o))
        for (p, _), o in zip(rows, far, strict=True)
    )
    common: dict[str, Any] = {"name": name, "metric": metric, "unit": unit, "conditions": conditions, "points": points}
    if y.size < LEAST_POINTS:
        few = Unknown(f"{y.size} points", (f"at least {LEAST_POINTS}",))
        return Series(model="too_short", noise_ratio=_noise(y), smallest_ratio=few, **common)
    clean, noise = _without(y, far), _noise(_without(y, far))
    cuts = _cuts(clean, noise, math.log1p(tolerance_ratio))
    line = _line(clean)
    deviation = _deviation(clean, cuts)
    smallest = math.expm1(
        math.log1p(tolerance_ratio) + t975(y.size - 2) * max(noise, deviation) * 2.0 / math.sqrt(y.size)
    )
    common |= {"noise_ratio": math.expm1(deviation), "smallest_ratio": smallest}
    if _drifts(clean, cuts, line, math.log1p(tolerance_ratio)):
        slope, reach = line
        n = y.size - 1
        better = (slope > 0) == more_is_better
        drift = Drift(
            ratio=math.exp(slope * n), ci95=(math.exp((slope - reach) * n), math.exp((slope + reach) * n)),
            per_point_ratio=math.expm1(slope), better=better,
        )  # fmt: skip
        return Series(model="drift", drift=drift, **common)
    changes = tuple(_change(clean, cuts, i, deviation, more_is_better, [f for _, f in rows]) for i in range(len(cuts)))
    return Series(model="steps" if changes else "steady", changes=changes, **common)


def outliers(y: FloatArray) -> npt.NDArray[np.bool_]:
    """Return which values stand far from the median of their neighbours, three on either side.

    Args:
        y: The series, of logarithms.

    A change of level is no outlier: half of the neighbours are on its side, and at the end of the series there is none beyond.

    Source: Hampel, Journal of the American Statistical Association 69, 1974; `FAR` deviations by the median absolute one.

    >>> outliers(np.array([0.0, 0.01, 0.0, 0.5, 0.01, 0.0, 0.01])).tolist()
    [False, False, False, True, False, False, False]
    """
    far = np.zeros(y.size, dtype=np.bool_)
    if y.size < LEAST_POINTS:
        return far
    sigma = max(_noise(y), 1e-3)
    for i in range(1, y.size - 1):
        low, high = max(0, i - _NEIGHBOURS), min(y.size, i + _NEIGHBOURS + 1)
        left, right = np.median(y[low:i]), np.median(y[i + 1 : high])
        # Far from both sides: beyond the level before, and beyond the level after.
        far[i] = (
            min(abs(y[i] - left), abs(y[i] - right)) > FAR * sigma
            and not left <= y[i] <= right
            and not right <= y[i] <= left
        )
    return far


def _noise(y: FloatArray) -> float:
    """Return the deviation of a series from its differences, which a few steps or outliers do not move."""
    if y.size < 3:
        return 0.0
    d = np.abs(np.diff(y))
    return float(_MAD * np.median(d) / math.sqrt(2.0))


def _without(y: FloatArray, far: npt.NDArray[np.bool_]) -> FloatArray:
    """Return the series with outliers brought to the median of their neighbours."""
    clean = y.copy()
    for i in (int(k) for k in np.flatnonzero(far)):
        low, high = max(0, i - _NEIGHBOURS), min(y.size, i + _NEIGHBOURS + 1)
        near = [y[j] for j in range(low, high) if not far[j]]
        clean[i] = np.median(near) if near else y[i]
    return clean


def _cuts(y: FloatArray, noise: float, least: float) -> list[int]:
    """Return where the level changes: the first index of each level after the first, by at least `least`."""
    try:
        import ruptures
    except ImportError:
        raise InputError("change points need ruptures", hint="pip install 'mansard[history]'") from None
    sigma = max(noise, least / 4.0)  # below that a change would not matter anyway
    found = (
        ruptures.Pelt(model="l2", min_size=LEAST_LEVEL, jump=1).fit(y / sigma).predict(pen=_PENALTY * math.log(y.size))
    )
    cuts = [int(c) for c in found[:-1]]
    while (
        cuts
    ):  # neighbours that are the same within the tolerance, or may be, are one level: the least certain step goes first
        weak = [_doubt(y, cuts, i, least) for i in range(len(cuts))]
        if max(weak) <= LEVEL:
            break
        cuts.pop(int(np.argmax(weak)))
    return cuts


def _doubt(y: FloatArray, cuts: Sequence[int], i: int, least: float) -> float:
    """Return how probable such a step is where the level did not change, wherever it was looked for; 1 for one that does not matter."""
    from scipy.stats import t as student

    (a, b), (c, d) = _edges(y, cuts, i), _edges(y, cuts, i + 1)
    step = abs(_level(y, cuts, i + 1) - _level(y, cuts, i))
    if step <= least:
        return 1.0
    error = _deviation(y, cuts) * math.sqrt(1.0 / (b - a) + 1.0 / (d - c))
    degrees = max(1, y.size - len(cuts) - 1)
    return min(
        1.0, 2.0 * float(student.sf(step / max(error, 1e-12), degrees)) * (y.size - 1)
    )  # Bonferroni: n - 1 places


def _edges(y: FloatArray, cuts: Sequence[int], i: int) -> tuple[int, int]:
    edges = [0, *cuts, y.size]
    return edges[i], edges[i + 1]


def _level(y: FloatArray, cuts: Sequence[int], i: int) -> float:
    low, high = _edges(y, cuts, i)
    return float(y[low:high].mean())


def _residual(y: FloatArray, cuts: Sequence[int]) -> float:
    return sum(
        float(((y[a:b] - y[a:b].mean()) ** 2).sum()) for a, b in (_edges(y, cuts, i) for i in range(len(cuts) + 1))
    )


def _deviation(y: FloatArray, cuts: Sequence[int]) -> float:
    return math.sqrt(_residual(y, cuts) / max(1, y.size - len(cuts) - 1))


def _line(y: FloatArray) -> tuple[float, float]:
    """Return the slope of a straight line per point, and half of its 95 % interval."""
    x = np.arange(y.size) - (y.size - 1) / 2.0
    slope = float((x * y).sum() / (x * x).sum())
    left = float(((y - y.mean() - slope * x) ** 2).sum())
    return slope, t975(y.size - 2) * math.sqrt(left / (y.size - 2) / float((x * x).sum()))


def _drifts(y: FloatArray, cuts: Sequence[int], line: tuple[float, float], least: float) -> bool:
    """Return whether a straight line explains a series better than its levels do, for as many parameters.

    Bayesian information criterion: n log(RSS / n) + parameters x log(n); a change point has its place and its level.
    """
    slope, reach = line
    if abs(slope) * (y.size - 1) <= least or abs(slope) <= _SURELY * reach:
        return False
    n, x = y.size, np.arange(y.size) - (y.size - 1) / 2.0
    tiny = 1e-12 * n
    straight = n * math.log(max(tiny, float(((y - y.mean() - slope * x) ** 2).sum())) / n) + 2 * math.log(n)
    stepped = n * math.log(max(tiny, _residual(y, cuts)) / n) + (1 + 2 * len(cuts)) * math.log(n)
    return straight < stepped


def _change(
    y: FloatArray,
    cuts: Sequence[int],
    i: int,
    deviation: float,
    more_is_better: bool,
    fingerprints: Sequence[Fingerprint],
) -> Change:
    before, after = _edges(y, cuts, i), _edges(y, cuts, i + 1)
    step = _level(y, cuts, i + 1) - _level(y, cuts, i)
    counts = before[1] - before[0], after[1] - after[0]
    reach = t975(max(1, y.size - len(cuts) - 1)) * deviation * math.sqrt(1.0 / counts[0] + 1.0 / counts[1])
    # The place: (noise / shift)^2 points either way, never into the next change.
    wide = math.floor(_BAI_95 * (deviation / step) ** 2)
    at = cuts[i]
    first, last = max(before[0] + 1, at - wide), min(after[1] - 1, at + wide)
    return Change(
        index=at, first=first, last=last, ratio=math.exp(step), ci95=(math.exp(step - reach), math.exp(step + reach)),
        better=(step > 0) == more_is_better, environment=_changed(fingerprints, at, first, last),
    )  # fmt: skip


def _changed(fingerprints: Sequence[Fingerprint], at: int, first: int, last: int) -> tuple[Difference, ...]:
    """Return what changed from one point to the next within the interval of a change; what changed nearest to it comes first."""
    found: dict[tuple[str, str], Difference] = {}
    near = sorted((abs(j - at), j) for j in range(first, last + 1))
    for _, j in near:
        for d in differences(fingerprints[j - 1], fingerprints[j]):
            if d.component not in IDENTITY:
                found.setdefault((d.component, d.key), d)
    return tuple(found.values())
