"""Burst against sustained: what the first seconds promise and what is left after minutes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mansard.core.stats import median_interval

LEAST_SAMPLES = 12
LEAST_S = 2.0  # shorter runs say nothing of heat
PART = 1.0 / 6.0  # of the time, for the burst; the sustained part is the last third


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """How the time of one operation went over a run.

    Args:
        burst_s, sustained_s: Median time in the first sixth and the last third of the run [s].
        ratio: sustained over burst, above 1 where it became slower.
        low, high: 95 % interval of `ratio`.
        throttles: Whether the whole interval lies above 1.02.
        duration_s: How long it ran [s].
    """

    burst_s: float
    sustained_s: float
    ratio: float
    low: float
    high: float
    throttles: bool
    duration_s: float

    def to_json(self) -> dict[str, Any]:
        """Return the drift as a result keeps it."""
        return {
            "burst_s": self.burst_s, "sustained_s": self.sustained_s, "sustained_over_burst_ratio": self.ratio,
            "ci95": [self.low, self.high], "throttles": self.throttles, "duration_s": self.duration_s,
        }  # fmt: skip


def drift(seconds: Sequence[float], per_sample: int = 1) -> Drift | None:
    """Return the drift of samples in the order they were taken; None where the run is too short to say.

    Args:
        seconds: Time of one operation in each sample [s].
        per_sample: Operations in one sample.

    Source: the burst of stas00/ml-engineering's advice to warm up 30 s, and nvbench's throttle check, as a ratio.

    >>> drift([1.0] * 6 + [1.2] * 30).ratio
    1.2
    """
    x = np.asarray(seconds, dtype=np.float64)
    ends = np.cumsum(x) * per_sample
    if x.size < LEAST_SAMPLES or ends[-1] < LEAST_S:
        return None
    first, last = x[ends <= PART * ends[-1]], x[ends >= (2.0 / 3.0) * ends[-1]]
    if first.size < 2 or last.size < 2:
        return None
    burst, sustained = median_interval(first), median_interval(last)
    low, high = sustained.low / burst.high, sustained.high / burst.low
    return Drift(
        burst_s=burst.median, sustained_s=sustained.median, ratio=sustained.median / burst.median, low=low, high=high,
        throttles=low > 1.02, duration_s=float(ends[-1]),
    )  # fmt: skip
