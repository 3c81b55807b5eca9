"""Where a figure changed over its history, by how much, and what of the environment changed there.

The logarithm of the figure is cut where its level changes, unless a straight line or a smooth curve explains it better: then no single
point is to blame. The last one or two results make no level yet; where they stand off, that is said beside it. Neighbours may resemble each other (`history.levels`). A lone value far from its neighbours is marked as an outlier
and moves no level. A result that its own audit refused stands in the list and counts for nothing.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.core.unknown import Unknown
from mansard.history.compare import Limits, Result, compare_pairs, impossible
from mansard.history.fingerprint import Difference, differences, digest
from mansard.history.levels import (
    LEAST_LEVEL,
    Fit,
    curve_of,
    cuts_of,
    drift_limit,
    fitted,
    information,
    line_of,
    noise_of,
    place_of,
    smoothest,
    step_limit,
    steps_of,
)
from mansard.history.records import METRICS, Fingerprint, Measurement, Record
from mansard.history.rules import glob_matches
from mansard.measure.points.interval import t975

FloatArray = npt.NDArray[np.float64]

#: Fewer points than this show no level.
LEAST_POINTS = 6
#: A point this many robust deviations from the median of its neighbours is an outlier.
FAR = 4.0
_NEIGHBOURS = 3
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
class Refused:
    """A result that is shown and counts for nothing.

    Args:
        when: When it was made, ISO 8601.
        source: Its file name.
        value: The figure in the SI unit of the series, where it has one.
        why: Why it must not be believed.
    """

    when: str
    source: str
    value: float | Unknown
    why: str


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
class Curve:
    """A smooth change that levels explain worse than a curve does, for as many parameters.

    Args:
        degree: Of its polynomial.
        values: The curve at each point, in the unit of the series.
    """

    degree: int
    values: tuple[float, ...]

    @property
    def lowest(self) -> int:
        """The point at which it is lowest."""
        return min(range(len(self.values)), key=self.values.__getitem__)

    @property
    def highest(self) -> int:
        """The point at which it is highest."""
        return max(range(len(self.values)), key=self.values.__getitem__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Late:
    """The last results, where they are far from what came before and too few to be a level.

    Args:
        count: How many, fewer than `levels.LEAST_LEVEL`.
        ratio: Over what came before.
        ci95: Its 95 % interval.
        better: Whether it is for the better.
    """

    count: int
    ratio: float
    ci95: tuple[float, float]
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
        correlation: How much of its distance from the level a result shares with the one before; 0 for independent ones.
        smallest_ratio: The change of level half way that would be called one time in two.
        model: `steady`, `steps`, `drift`, `curve` or `too_short`.
        changes: Changes of level.
        drift: The drift.
        curve: The curve.
        late: The last results, where they stand off; noise, model, changes and drift are then those of the results before them.
        refused: Results that count for nothing.
        last: Where there are too few to tell a level: the last one compared with those before it, as `compare` does.
    """

    name: str
    metric: str
    unit: str
    conditions: str
    points: tuple[TrendPoint, ...]
    noise_ratio: float
    smallest_ratio: float | Unknown
    model: str
    correlation: float = 0.0
    changes: tuple[Change, ...] = ()
    drift: Drift | None = None
    curve: Curve | None = None
    late: Late | None = None
    refused: tuple[Refused, ...] = ()
    last: Result | None = None


def trends(records: Sequence[tuple[str, Record]], *, metric: str = "*", tolerance_ratio: float = 0.02) -> list[Series]:
    """Return the series of figures that records hold.

    Args:
        records: When each was made or added, ISO 8601, and what it says; in any order.
        metric: Glob over `benchmark/metric`; without a slash over the metric alone. Only primary figures where it is `*`.
        tolerance_ratio: The smallest relative change that matters.

    Raises:
        InputError: `ruptures` is not installed.

    A figure that its own audit refused, or that cannot be, is in `refused` and moves no level.
    """
    glob = metric if "/" in metric or metric == "*" else f"*/{metric}"
    by: dict[tuple[str, str], list[tuple[TrendPoint, Measurement]]] = {}
    refused: dict[tuple[str, str], list[Refused]] = {}
    for when, record in sorted(records, key=lambda r: _moment(r[0])):
        for m in record.measurements:
            if not glob_matches(glob, m.name) or (metric == "*" and not m.primary):
                continue
            value = m.value
            why = m.flaw or ("" if isinstance(value, Unknown) else impossible([m]))
            if not why and isinstance(value, Unknown):
                continue
            identity = {c: dict(m.fingerprint.parts[c]) for c in IDENTITY if c in m.fingerprint.parts}
            key = m.name, digest(identity)
            rows = by.setdefault(key, [])
            if why:
                refused.setdefault(key, []).append(Refused(when=when, source=record.source, value=value, why=why))
            elif not isinstance(value, Unknown):
                point = TrendPoint(when=when, source=record.source, value=value, outlier=False)
                rows.append((point, replace(m, taken=m.taken or when)))
    found = [
        replace(
            series_of(*key, [(p, m.fingerprint) for p, m in rows], tolerance_ratio=tolerance_ratio),
            refused=tuple(refused.get(key, ())),
        )
        for key, rows in by.items()
    ]
    return _with_last(found, [[m for _, m in rows] for rows in by.values()], tolerance_ratio)


def _with_last(
    found: Sequence[Series], results: Sequence[Sequence[Measurement]], tolerance_ratio: float
) -> list[Series]:
    """Return the series, those of too few results with a comparison of the last one; all of them are one question."""
    few = [i for i, s in enumerate(found) if s.model == "too_short" and len(results[i]) > 1]
    limits = Limits(tolerance_ratio=tolerance_ratio, resolution_ratio=max(Limits().resolution_ratio, tolerance_ratio))
    compared = dict(zip(few, compare_pairs([(results[i][:-1], results[i][-1:]) for i in few], limits), strict=True))
    return [replace(s, last=compared.get(i)) for i, s in enumerate(found)]


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
        return Series(model="too_short", noise_ratio=noise_of(y), smallest_ratio=few, **common)
    clean, least = _without(y, far), math.log1p(tolerance_ratio)
    environment = [f for _, f in rows]
    found, cuts = _described(clean, least, more_is_better, environment)
    beyond = -math.inf
    if cuts and cuts[-1] >= y.size - LEAST_LEVEL:  # the shortest level may be the last results and one of those before
        beyond, cuts = fitted(clean, steps_of(y.size, cuts), least / 10.0).log_likelihood, cuts[:-1]
    late = _late(clean, cuts, range(1, LEAST_LEVEL), least, more_is_better, beyond)
    if late is not None:  # what came before is described without them, and they are compared with that
        before, cuts = _described(clean[: -late.count], least, more_is_better, environment)
        late = _late(clean, cuts, (late.count,), least, more_is_better)
        found = found if late is None else before
    if late is None and found["model"] == "steps":
        found = _smooth(clean, [c.index for c in found["changes"]], least) or found
    return Series(late=late, **found, **common)


def _described(
    y: FloatArray, least: float, more_is_better: bool, fingerprints: Sequence[Fingerprint]
) -> tuple[dict[str, Any], list[int] | None]:
    """Return what a series does, and where its levels begin; None where it drifts."""
    cuts = cuts_of(y, least)
    steps = fitted(y, steps_of(y.size, cuts), least / 10.0)
    line = fitted(y, line_of(y.size), least / 10.0)
    if _drifts(y, line, steps, least):
        return {
            "model": "drift", "drift": _drift(line, y.size, more_is_better), **_noise_facts(line, y.size, least)
        }, None  # fmt: skip
    changes = tuple(_change(y, cuts, i, steps, least, more_is_better, fingerprints) for i in range(len(cuts)))
    facts = _noise_facts(steps, y.size, least)
    return {"model": "steps" if changes else "steady", "changes": changes, **facts}, cuts


def _smooth(y: FloatArray, cuts: Sequence[int], least: float) -> dict[str, Any] | None:
    """Return what a series does where a smooth curve explains it better than its levels do; else None.

    That something changed is known by the limit of the levels, so the curve, which is another way to tell it, needs none of its own.
    """
    n = y.size
    curve = smoothest(y, least / 10.0)
    steps = fitted(y, steps_of(n, cuts), least / 10.0)
    if curve is None or information(curve[0], curve[1] + 1, n) >= _of_levels(steps, n):
        return None
    values = tuple(float(x) for x in np.exp(curve_of(n, curve[1]) @ curve[0].values))
    return {"model": "curve", "curve": Curve(degree=curve[1], values=values), **_noise_facts(curve[0], n, least)}


def _late(
    y: FloatArray, cuts: Sequence[int] | None, counts: Sequence[int], least: float, more_is_better: bool, beyond: float = -math.inf,
) -> Late | None:  # fmt: skip
    """Return the last results where they are off what came before by as much as a step of a level must be.

    Args:
        y: The whole series [n].
        cuts: Where levels begin; None for a drift, which goes on.
        counts: How many last results to try.
        least: The smallest step that matters.
        more_is_better: Of the figure.
        beyond: The log-likelihood of what else they may be.
    """
    n, found = y.size, []
    columns = line_of(n) if cuts is None else steps_of(n, cuts)
    for count in counts:
        before = n - count
        if before < LEAST_POINTS - 1 or (cuts and before - cuts[-1] < LEAST_LEVEL):
            continue  # nothing to compare them with
        fit = fitted(
            y, np.concatenate([columns, (np.arange(n) >= before)[:, None].astype(np.float64)], 1), least / 10.0
        )
        step, reach = float(fit.values[-1]), t975(fit.degrees) * float(fit.errors[-1])
        if abs(step) > least and float(fit.gains[-1]) > step_limit(n) and fit.log_likelihood > beyond:
            interval = math.exp(step - reach), math.exp(step + reach)
            late = Late(count=count, ratio=math.exp(step), ci95=interval, better=(step > 0) == more_is_better)
            found.append((fit.log_likelihood, late))
    return max(found, key=lambda f: f[0])[1] if found else None


def _noise_facts(fit: Fit, n: int, least: float) -> dict[str, Any]:
    """Return the noise of a series, its correlation, and the change half way that would be called one time in two."""
    columns = steps_of(n, [n // 2])
    whitened = columns.copy()
    whitened[1:] -= fit.phi * columns[:-1]
    whitened[0] *= math.sqrt(1.0 - fit.phi**2)
    unit = float(np.linalg.inv(whitened.T @ whitened)[1, 1])
    innovation = fit.deviation**2 * (1.0 - fit.phi**2)
    # Twice the log-likelihood ratio of a step d is (n - 3) log(1 + d^2 / (n variance unit)): solved for the limit.
    degrees = max(1, n - 3)
    step = math.sqrt(innovation * unit * n * math.expm1(step_limit(n) / degrees))
    return {
        "noise_ratio": math.expm1(fit.deviation),
        "correlation": fit.phi,
        "smallest_ratio": math.expm1(max(least, step)),
    }


def _drift(line: Fit, n: int, more_is_better: bool) -> Drift:
    slope, reach = float(line.values[1]), t975(line.degrees) * float(line.errors[1])
    return Drift(
        ratio=math.exp(slope * (n - 1)), ci95=(math.exp((slope - reach) * (n - 1)), math.exp((slope + reach) * (n - 1))),
        per_point_ratio=math.expm1(slope), better=(slope > 0) == more_is_better,
    )  # fmt: skip


def _drifts(y: FloatArray, line: Fit, steps: Fit, least: float) -> bool:
    """Return whether a straight line is there, and explains a series better than its levels do, for as many parameters."""
    if abs(float(line.values[1])) * (y.size - 1) <= least or float(line.gains[1]) <= drift_limit(y.size):
        return False
    return information(line, 2, y.size) < _of_levels(steps, y.size)


def _of_levels(steps: Fit, n: int) -> float:
    """Return the information criterion of levels: a change point has its place and its level."""
    return information(steps, 1 + 2 * (steps.values.size - 1), n)


def _change(
    y: FloatArray, cuts: Sequence[int], i: int, fit: Fit, least: float, more_is_better: bool, fingerprints: Sequence[Fingerprint],
) -> Change:  # fmt: skip
    step, reach = float(fit.values[i + 1]), t975(fit.degrees) * float(fit.errors[i + 1])
    _, first, last = place_of(y, cuts, i, fit.phi, least / 10.0)
    at = cuts[i]
    return Change(
        index=at, first=min(first, at), last=max(last, at), ratio=math.exp(step), ci95=(math.exp(step - reach), math.exp(step + reach)),
        better=(step > 0) == more_is_better, environment=_changed(fingerprints, at, min(first, at), max(last, at)),
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
    sigma = max(noise_of(y), 1e-3)
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


def _without(y: FloatArray, far: npt.NDArray[np.bool_]) -> FloatArray:
    """Return the series with outliers brought to the median of their neighbours."""
    clean = y.copy()
    for i in (int(k) for k in np.flatnonzero(far)):
        low, high = max(0, i - _NEIGHBOURS), min(y.size, i + _NEIGHBOURS + 1)
        near = [y[j] for j in range(low, high) if not far[j]]
        clean[i] = np.median(near) if near else y[i]
    return clean
