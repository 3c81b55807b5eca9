"""Amdahl and Gustafson fits of measured (N, T), with bootstrap intervals, for the kind of scaling that was measured."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from mansard.core.errors import UsageError
from mansard.core.stats import FloatArray
from mansard.core.unknown import Unknown
from mansard.plan.scale import ScaleModel

Scaling = Literal["strong", "weak"]
Interval = tuple[float, float] | Unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleFit:
    """What measured times say about scaling.

    Args:
        scaling: `strong` (same work) or `weak` (work grows with N).
        law: `Amdahl` or `Gustafson`.
        serial_ratio: Serial share: of one device's time (Amdahl), of the parallel run (Gustafson).
        serial_ci95_ratio: Its 95 % interval; `Unknown` where there is nothing to take it from.
        one_device_s: T(1) of the fit [s].
        model: The times behind it.
        growth_ci95_s: Interval of what each further device adds [s]; `Unknown` where it was not fitted.
        error_ratio: Largest relative distance of a point from the fit.
        points: Median time by N [s].
        efficiency: Measured efficiency by N, where N = 1 was measured, else of the smallest N.
        notes: What the numbers alone do not say.
    """

    scaling: Scaling
    law: str
    serial_ratio: float
    serial_ci95_ratio: Interval
    one_device_s: float
    model: ScaleModel
    growth_ci95_s: Interval
    error_ratio: float
    points: Mapping[int, float]
    efficiency: Mapping[int, float]
    notes: tuple[str, ...]


def measured(points: Iterable[tuple[int, float]]) -> dict[int, list[float]]:
    """Return the repeats of each N.

    Raises:
        UsageError: an N below 1, a time that is none, or fewer than two different N.
    """
    found: dict[int, list[float]] = {}
    for n, seconds in points:
        if n < 1 or not (math.isfinite(seconds) and seconds > 0.0):
            raise UsageError(f"the point {n}:{seconds} is no number of devices with a positive time")
        found.setdefault(n, []).append(seconds)
    if len(found) < 2:
        raise UsageError(
            f"a fit needs two different numbers of devices, got {len(found)}", hint="add --point 1:100 --point 8:17"
        )
    return dict(sorted(found.items()))


def fit_scaling(
    points: Iterable[tuple[int, float]], scaling: Scaling, *, resamples: int = 1000, seed: int = 0
) -> ScaleFit:
    """Fit Amdahl's law to strong, Gustafson's to weak scaling.

    Args:
        points: (N, seconds), repeats included.
        scaling: Which of the two was measured; times alone do not tell.
        resamples: Bootstrap resamples: repeats are drawn anew, and points are moved by the distances of the fit.
        seed: Seed of the resampling.

    Assumes: relative distances count, since times span decades. A bandwidth term of a ring, 2 D (N - 1)/(N W), has the
    shape of serial and parallel time and cannot be told from them; only latency, which grows with N, can.
    Source: Amdahl 1967; Gustafson 1988; Efron and Tibshirani 1993 for the intervals.

    >>> fit = fit_scaling([(1, 100.0), (2, 52.5), (4, 28.75), (8, 16.875)], "strong")
    >>> round(fit.serial_ratio, 3), fit.law
    (0.05, 'Amdahl')
    """
    found = measured(points)
    n = np.asarray(list(found), dtype=np.float64)
    repeats = [np.asarray(times, dtype=np.float64) for times in found.values()]
    t = np.asarray([np.median(r) for r in repeats])
    if scaling == "strong":
        return _amdahl(n, t, repeats, found, resamples, seed)
    if scaling == "weak":
        return _gustafson(n, t, repeats, found, resamples, seed)
    raise UsageError(f"scaling is {scaling!r}, expected strong or weak")


def _amdahl(
    n: FloatArray,
    t: FloatArray,
    repeats: Sequence[FloatArray],
    found: Mapping[int, list[float]],
    resamples: int,
    seed: int,
) -> ScaleFit:
    """T = a + b/N, and + c (N - 1) where four N or more allow it and the interval of c excludes zero."""
    terms = np.stack([np.ones_like(n), 1.0 / n], axis=1)
    growth: Interval = Unknown("four different N are needed to tell growth with N", ("more numbers of devices",))
    notes = []
    extra = 0.0
    if n.size >= 4:
        wide = np.column_stack([terms, n - 1.0])
        whole = _least(wide, t)
        drawn = _drawn(wide, t, repeats, whole, resamples, seed)
        if drawn is not None:
            growth = _interval(drawn[:, 2])
        if (
            not isinstance(growth, Unknown)
            and growth[0] * float(n[-1]) > 1e-6 * float(t.min())
            and _error(wide, t, whole) < _error(terms, t, _least(terms, t))
        ):
            terms, extra = wide, float(whole[2])
            notes.append("time grows with N beyond Amdahl's law: a latency term was fitted beside it")
    best = _least(terms, t)
    drawn = _drawn(terms, t, repeats, best, resamples, seed)
    serial, parallel = float(best[0]), float(best[1])
    if parallel == 0.0:
        notes.append("nothing gets shorter with N: is this strong scaling?")
    if serial == 0.0:
        notes.append("no serial part can be seen: faster than linear, or the points are too noisy")
    notes.append("a serial share here also holds what a ring's bandwidth term adds, 2 D / W")
    return ScaleFit(
        scaling="strong", law="Amdahl", serial_ratio=serial / (serial + parallel),
        serial_ci95_ratio=_NO_SPREAD if drawn is None else _interval(drawn[:, 0] / (drawn[:, 0] + drawn[:, 1])),
        one_device_s=serial + parallel, model=ScaleModel(serial_s=serial, parallel_s=parallel, growth_s=extra),
        growth_ci95_s=growth, error_ratio=_error(terms, t, best),
        points={k: float(v) for k, v in zip(found, t, strict=True)},
        efficiency={k: float(t[0] * n[0] / (v * k)) for k, v in zip(found, t, strict=True)}, notes=tuple(notes),
    )  # fmt: skip


def _gustafson(
    n: FloatArray,
    t: FloatArray,
    repeats: Sequence[FloatArray],
    found: Mapping[int, list[float]],
    resamples: int,
    seed: int,
) -> ScaleFit:
    """N / T = u N + v: the throughput of N devices; s = v / (u + v)."""
    terms = np.stack([n, np.ones_like(n)], axis=1)
    best = _least(terms, n / t)
    turned = [n[i] / r for i, r in enumerate(repeats)]
    drawn = _drawn(terms, n / t, turned, best, resamples, seed)
    u, v = float(best[0]), float(best[1])
    one = 1.0 / (u + v)
    notes = ["work grows with N: the speedup is that of the larger work, not of a shorter wait"]
    if v == 0.0:
        notes.append("no serial part can be seen: the time does not grow with N")
    return ScaleFit(
        scaling="weak", law="Gustafson", serial_ratio=v / (u + v),
        serial_ci95_ratio=_NO_SPREAD if drawn is None else _interval(drawn[:, 1] / (drawn[:, 0] + drawn[:, 1])),
        one_device_s=one, model=ScaleModel(serial_s=one * v / (u + v), parallel_s=one * u / (u + v)),
        growth_ci95_s=Unknown("growth with N is not fitted to weak scaling", ()), error_ratio=_error(terms, n / t, best),
        points={k: float(x) for k, x in zip(found, t, strict=True)},
        efficiency={k: float(t[0] / x) for k, x in zip(found, t, strict=True)}, notes=tuple(notes),
    )  # fmt: skip


_NO_SPREAD = Unknown("two points without repeats leave nothing to take an interval from", ("a third N", "repeats"))


def _least(terms: FloatArray, y: FloatArray) -> FloatArray:
    """Coefficients from zero up that minimise the relative distances; few terms, so every choice of them is tried."""
    scaled = terms / y[:, None]
    best, least = np.zeros(terms.shape[1]), math.inf
    for size in range(1, terms.shape[1] + 1):
        for chosen in itertools.combinations(range(terms.shape[1]), size):
            found, *_ = np.linalg.lstsq(scaled[:, chosen], np.ones_like(y), rcond=None)
            if (found < 0.0).any():
                continue
            off = float(np.sum((scaled[:, chosen] @ found - 1.0) ** 2))
            if off < least * (1.0 - 1e-12) - 1e-24:
                best, least = np.zeros(terms.shape[1]), off
                best[list(chosen)] = found
    return best


def _error(terms: FloatArray, y: FloatArray, best: FloatArray) -> float:
    return float(np.abs(terms @ best / y - 1.0).max())


def _drawn(
    terms: FloatArray, y: FloatArray, repeats: Sequence[FloatArray], best: FloatArray, resamples: int, seed: int
) -> FloatArray | None:
    """Coefficients of each resample; None where neither repeats nor spare points show any spread."""
    spare = y.size - terms.shape[1]
    if spare < 1 and all(r.size < 2 for r in repeats):
        return None
    rng = np.random.default_rng(seed)
    fitted = terms @ best
    off = (y / fitted - 1.0) * (math.sqrt(y.size / spare) if spare > 0 else 0.0)
    out = np.empty((resamples, terms.shape[1]))
    for row in range(resamples):
        noise = np.asarray([np.median(r[rng.integers(0, r.size, r.size)]) / np.median(r) for r in repeats])
        moved = fitted * (1.0 + off[rng.integers(0, y.size, y.size)]) if spare > 0 else y
        out[row] = _least(terms, np.maximum(moved * noise, 1e-3 * y))
    return out


def _interval(values: FloatArray) -> tuple[float, float]:
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)
