"""The interval of a ratio of two medians, and many such ratios at once.

Three sources of spread are kept apart: samples within a run (bootstrap of the median), processes or runs that differ from each other
(estimated where there are several), and what is known of the machine between runs (a stated floor, because one run cannot see it).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mansard.measure.points.interval import RUN_RATIO, RUN_WEIGHT

FloatArray = npt.NDArray[np.float64]

DRAWS = 20_000
LEVEL = 0.05
_NORMAL_975 = 1.959964


def median_draws(samples: Sequence[float] | FloatArray, draws: int, rng: np.random.Generator) -> FloatArray:
    """Return bootstrap draws of the median without resampling: the rank of a resample's median has a known distribution.

    Args:
        samples: At least one sample, in any unit.
        draws: How many draws.
        rng: Source of randomness.

    A resample of n takes x_(floor(n U)) for n uniform U, so the order statistics of the resample are those of U, which are beta
    distributed: the median of n = 2m + 1 is x_(floor(n B)) with B ~ Beta(m + 1, m + 1). For even n the lower middle one is Beta(n/2,
    n/2 + 1), and the next one lies above it like the least of n/2 uniforms on what is left.

    Source: Efron, Annals of Statistics 7, 1979, section 3; David and Nagaraja, Order Statistics, 2003, section 2.3.

    >>> float(median_draws([3.0], 1, np.random.default_rng(0))[0])
    3.0
    """
    x = np.sort(np.asarray(samples, dtype=np.float64))
    n = x.size
    if n % 2:
        u = rng.beta((n + 1) / 2, (n + 1) / 2, draws)
        middle: FloatArray = x[np.minimum((u * n).astype(np.int64), n - 1)]
        return middle
    low = rng.beta(n / 2, n / 2 + 1, draws)
    high = low + (1.0 - low) * rng.beta(1.0, n / 2, draws)
    both = [x[np.minimum((u * n).astype(np.int64), n - 1)] for u in (low, high)]
    halfway: FloatArray = (both[0] + both[1]) / 2.0
    return halfway


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """What is known of one side of a comparison.

    Args:
        runs: Samples: runs, the processes of each, the samples of each process; all positive.
        stated: Value and 95 % interval of each run that has no samples.
        exact: A computed figure without spread.
    """

    runs: tuple[tuple[tuple[float, ...], ...], ...] = ()
    stated: tuple[tuple[float, float, float], ...] = ()
    exact: bool = False

    @property
    def samples(self) -> list[float]:
        """All samples."""
        return [x for run in self.runs for group in run for x in group]

    @property
    def median(self) -> float:
        """The figure: the median of all samples, or of what is stated."""
        return float(np.median(self.samples or [s[0] for s in self.stated]))

    @property
    def run_count(self) -> int:
        """Independent runs."""
        return len(self.runs) or len(self.stated)

    def group_logs(self) -> list[float]:
        """Return the logarithm of the median of each run, or of each process where there is one run."""
        if not self.runs:
            return [math.log(s[0]) for s in self.stated]
        if len(self.runs) == 1:
            return [math.log(float(np.median(g))) for g in self.runs[0] if g]
        return [math.log(float(np.median([x for g in run for x in g]))) for run in self.runs]


def between_runs(logs: Sequence[float], runs: int, run_ratio: float) -> tuple[float, int]:
    """Return the variance of a side from run to run, on a logarithmic scale, and its degrees of freedom.

    Args:
        logs: Logarithms of the medians of the runs, or of the processes of one run.
        runs: How many independent runs there are.
        run_ratio: What is known of the spread between runs on such a machine (relative standard deviation).

    Processes of one run share its minutes, so more of them do not average the drift of the machine away: only runs do.
    Source: the pooling of `measure.points.interval` (Gelman et al., Bayesian Data Analysis, section 2.6).

    One run with r = 1 %: variance 1e-4, three degrees of freedom.

    >>> v, degrees = between_runs([0.0], 1, 0.01)
    >>> round(v, 6), degrees
    (0.0001, 3)
    """
    k = len(logs)
    spread = float(np.var(logs, ddof=1)) if k > 1 else 0.0
    degrees = RUN_WEIGHT + k - 1
    return (RUN_WEIGHT * run_ratio**2 + (k - 1) * spread) / degrees / max(1, runs), degrees


def side_draws(side: Side, draws: int, rng: np.random.Generator, run_ratio: float) -> FloatArray:
    """Return draws of the logarithm of a side's figure, within and between runs together."""
    if side.exact:
        return np.full(draws, math.log(side.median))
    if side.runs:
        inside = np.log(median_draws(side.samples, draws, rng))
    else:
        widths = [math.log(high / low) / (2.0 * _NORMAL_975) if high > low > 0 else 0.0 for _, low, high in side.stated]
        scale = math.sqrt(sum(w * w for w in widths)) / len(widths)
        inside = math.log(side.median) + scale * rng.standard_normal(draws)
    variance, degrees = between_runs(side.group_logs(), side.run_count, run_ratio)
    if variance > 0.0:
        inside = inside + math.sqrt(variance) * rng.standard_t(degrees, draws)
    return np.asarray(inside, dtype=np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """Candidate over baseline.

    Args:
        value: Ratio of the medians.
        low, high: Its 95 % interval.
        p_above, p_below: How probable data like these are if the ratio were not above (below) the tolerance; one-sided.
        p_different: The same for no difference at all, two-sided.
    """

    value: float
    low: float
    high: float
    p_above: float
    p_below: float
    p_different: float

    @property
    def p_changed(self) -> float:
        """Two-sided probability of such data if the change were within the tolerance."""
        return min(1.0, 2.0 * min(self.p_above, self.p_below))


def ratio_of_medians(
    a: Side, b: Side, *, tolerance: float, run_ratio: float = RUN_RATIO, draws: int = DRAWS, seed: int = 0
) -> Ratio:
    """Return the ratio of the medians of two separate measurements.

    Args:
        a, b: Baseline and candidate.
        tolerance: The smallest change that matters, relative.
        run_ratio: Known spread between runs; 0 where both sides were taken in the same minutes.
        draws: Draws of the interval.
        seed: Seed, so that a verdict can be reproduced.

    >>> r = ratio_of_medians(Side(runs=(((1.0,) * 9,),)), Side(runs=(((1.2,) * 9,),)), tolerance=0.02)
    >>> round(r.value, 3), r.low > 1.1, r.p_changed < 0.01
    (1.2, True, True)
    """
    rng = np.random.default_rng(seed)
    change = side_draws(b, draws, rng, run_ratio) - side_draws(a, draws, rng, run_ratio)
    return _ratio(math.log(b.median / a.median), change, tolerance)


def ratio_of_pairs(
    a: Sequence[float], b: Sequence[float], *, tolerance: float, draws: int = DRAWS, seed: int = 0
) -> Ratio:
    """Return the median of the ratios of pairs that were measured right after each other.

    Args:
        a, b: Baseline and candidate of each round, the same number.
        tolerance: The smallest change that matters, relative.
        draws: Draws of the interval.
        seed: Seed.

    A machine that drifts from minute to minute moves both of a pair, so their ratio holds still: there is no spread between runs to add.

    >>> ratio_of_pairs([1.0, 2.0, 4.0] * 3, [1.1, 2.2, 4.4] * 3, tolerance=0.02).low > 1.09
    True
    """
    logs = np.log(np.asarray(b, dtype=np.float64)) - np.log(np.asarray(a, dtype=np.float64))
    return _ratio(float(np.median(logs)), median_draws(logs, draws, np.random.default_rng(seed)), tolerance)


def _ratio(centre: float, change: FloatArray, tolerance: float) -> Ratio:
    edge, count = math.log1p(tolerance), change.size + 1
    low, high = np.percentile(change, [2.5, 97.5])
    beyond = [(1 + int((change <= edge).sum())) / count, (1 + int((change >= -edge).sum())) / count]
    zero = [(1 + int((change <= 0).sum())) / count, (1 + int((change >= 0).sum())) / count]
    return Ratio(
        value=math.exp(centre), low=math.exp(min(low, centre)), high=math.exp(max(high, centre)),
        p_above=beyond[0], p_below=beyond[1], p_different=min(1.0, 2.0 * min(zero)),
    )  # fmt: skip


def benjamini_hochberg(p_values: Sequence[float]) -> list[float]:
    """Return p values adjusted for how many there are: the false share among those below a limit stays below it.

    Where nothing changed at all this bounds the probability of any alarm, as Holm does; where something did change it finds more of
    it, and at most that share of the alarms is false. A gate that already fails for a real change loses nothing by that.

    Source: Benjamini and Hochberg, Journal of the Royal Statistical Society B 57, 1995; it holds under positive dependence
    (Benjamini and Yekutieli, Annals of Statistics 29, 2001), which a drift that all benchmarks share is.

    Four values: 0.01 x 4/1, 0.02 x 4/2, 0.03 x 4/3, 0.5 x 4/4.

    >>> [round(p, 3) for p in benjamini_hochberg([0.01, 0.02, 0.03, 0.5])]
    [0.04, 0.04, 0.04, 0.5]
    """
    p = np.asarray(p_values, dtype=np.float64)
    if p.size == 0:
        return []
    order = np.argsort(p, kind="stable")
    scaled = p[order] * p.size / np.arange(1, p.size + 1)
    kept = np.minimum(1.0, np.minimum.accumulate(scaled[::-1])[::-1])
    result = np.empty_like(kept)
    result[order] = kept
    return [float(x) for x in result]
