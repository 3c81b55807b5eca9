"""From samples taken in separated windows to one ceiling: its value, its interval, and whether there were two regimes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

GAP_RATIO = 0.15
MINORITY_RATIO = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """The upper envelope of a rate over separated windows.

    Args:
        value: The best sample, as STREAM reports: what the machine can do. Disturbance only makes a sample slower.
        low, high: 95 % interval of `value`.
        median: Median of all samples: what is typical.
        samples, windows: How many.
        regimes: Medians of a slow and a fast cluster, where the samples fall into two.
    """

    value: float
    low: float
    high: float
    median: float
    samples: int
    windows: int
    regimes: tuple[float, float] | None

    def conditions(self) -> dict[str, Any]:
        """Return what a ceiling says about its samples."""
        found: dict[str, Any] = {"median": self.median, "samples": self.samples, "windows": self.windows}
        if self.regimes:
            found["regimes"] = list(self.regimes)
        return found


def envelope(windows: Sequence[Sequence[float] | npt.NDArray[np.float64]], *, seed: int = 0) -> Envelope:
    """Return the envelope of rates that were sampled in separated windows.

    The value is the best sample. The low end of its interval is the 2.5 % quantile of the best sample under
    resampling, the high end lies as far above the best sample as the second best lies below it.

    Args:
        windows: Rates, one sequence per window, at least one sample in all.
        seed: Seed of the resampling.

    Source: J. McCalpin, STREAM (best of N); D. S. Robson and J. H. Whitlock, Estimation of a truncation point,
    Biometrika 51, 1964 (the end point x(n) + (x(n) - x(n-1))).

    >>> e = envelope([[9.0, 10.0], [8.0, 9.5]])
    >>> e.value, e.high, e.median
    (10.0, 10.5, 9.25)
    """
    x = np.sort(np.concatenate([np.asarray(w, dtype=np.float64) for w in windows]))
    if x.size == 0 or not np.isfinite(x).all() or x[0] <= 0.0:
        raise ValueError(f"an envelope needs positive finite rates, got {x.size} samples")
    rng = np.random.default_rng(seed)
    best = x[rng.integers(0, x.size, size=(1000, x.size)).max(axis=1)]  # sorted, so the largest index is the best
    gap = float(x[-1] - x[-2]) if x.size > 1 else 0.0
    return Envelope(
        value=float(x[-1]),
        low=float(np.percentile(best, 2.5)),
        high=float(x[-1]) + gap,
        median=float(np.median(x)),
        samples=int(x.size),
        windows=len(windows),
        regimes=_two_regimes(x),
    )


def _two_regimes(x: npt.NDArray[np.float64]) -> tuple[float, float] | None:
    """Return the medians of two clusters of the sorted samples, if a gap of 15 % parts them and both hold a fifth."""
    if x.size < 10:
        return None
    gaps = x[1:] / x[:-1] - 1.0
    cut = int(np.argmax(gaps)) + 1
    smaller = min(cut, x.size - cut)
    if gaps[cut - 1] < GAP_RATIO or smaller < MINORITY_RATIO * x.size:
        return None
    return float(np.median(x[:cut])), float(np.median(x[cut:]))
