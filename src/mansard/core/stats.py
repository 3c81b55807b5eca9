"""Statistics of repeated measurements: medians and their intervals, never a mean of skewed data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Median of a sample with its 95 % interval.

    Args:
        median: The median, in the unit of the samples.
        low: Lower end of the 95 % interval of the median.
        high: Upper end of the 95 % interval of the median.
        best: The smallest sample.
        count: How many samples there were.
    """

    median: float
    low: float
    high: float
    best: float
    count: int


def median_interval(samples: Sequence[float] | FloatArray, *, resamples: int = 2000, seed: int = 0) -> Summary:
    """Return the median of `samples` with a percentile-bootstrap 95 % interval.

    Args:
        samples: Repeated measurements of one thing, at least one.
        resamples: Bootstrap resamples.
        seed: Seed of the resampling, so that a report can be reproduced.

    Raises:
        ValueError: `samples` is empty or not finite.

    Assumes: samples are exchangeable; a machine that moves between regimes needs separated windows.
    Source: Efron and Tibshirani, An Introduction to the Bootstrap, 1993, section 13.3.

    >>> s = median_interval([3.0, 1.0, 2.0])
    >>> s.median, s.best, s.count
    (2.0, 1.0, 3)
    """
    x = np.asarray(samples, dtype=np.float64)
    if x.size == 0 or not np.isfinite(x).all():
        raise ValueError(f"median_interval needs finite samples, got {x.size} of which some may be NaN or infinite")
    middle = float(np.median(x))
    if x.size == 1:
        return Summary(median=middle, low=middle, high=middle, best=middle, count=1)
    rng = np.random.default_rng(seed)
    step = max(1, int(2e6 // x.size))
    parts = [
        np.median(x[rng.integers(0, x.size, size=(min(step, resamples - i), x.size))], axis=1)
        for i in range(0, resamples, step)
    ]
    low, high = np.percentile(np.concatenate(parts), [2.5, 97.5])
    return Summary(median=middle, low=float(low), high=float(high), best=float(x.min()), count=int(x.size))
