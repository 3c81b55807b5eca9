"""The median of a point with an interval that another run of the same point would fall into.

Samples of one process share its memory placement, its clock regime and the minute they were taken in. An interval from
them alone is honest about that process and nothing else: repeated runs fall outside of it far more often than one time
in twenty. So a point is measured by several processes, and the interval is made of how much their medians differ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mansard.core.stats import median_interval

#: 97.5 % quantile of Student's t by degrees of freedom. Source: Student, Biometrika 6, 1908; tables in any textbook.
_T975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
         2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045,
         2.042)  # fmt: skip
LEAST_PROCESSES = 3
LEAST_SPREAD = 9  # processes, from which on the bootstrap of their medians holds (docs/measuring.md)
#: Medians of runs of one point, minutes apart on a shared virtual machine that stays in one regime, lie this far apart
#: (benchmarks/measure_a_a.py, docs/measuring.md); a stated floor, since no run can see it in itself.
POINT_RATIO = 0.0175
#: The same for histories, which look at many runs of both sides and see most of the spread themselves (docs/history.md).
RUN_RATIO = 0.01
RUN_WEIGHT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A median with its 95 % interval.

    Args:
        median: Median of all samples.
        low, high: The interval.
        holds: What spread it includes, in words.
    """

    median: float
    low: float
    high: float
    holds: str

    @property
    def half_ratio(self) -> float:
        """Half of its width over the median."""
        return (self.high - self.low) / 2.0 / self.median if self.median > 0 else math.inf


def t975(degrees: int) -> float:
    """Return the 97.5 % quantile of Student's t.

    >>> t975(4), t975(100)
    (2.776, 1.984)
    """
    if degrees < 1:
        return math.inf
    if degrees <= len(_T975):
        return _T975[degrees - 1]
    return round(1.959964 + 2.3722 / degrees + 2.8226 / degrees**2, 3)  # Fisher and Cornish, Technometrics 2, 1960


def interval_of(
    groups: Sequence[Sequence[float]], *, run_ratio: float = POINT_RATIO, run_weight: int = RUN_WEIGHT, seed: int = 0
) -> Interval:
    """Return the median of all samples and an interval that another run of the same point falls into.

    Args:
        groups: Samples of each process, at least one sample in all.
        run_ratio: What is known of the spread between runs on such a machine, as a relative standard deviation.
        run_weight: How many degrees of freedom that knowledge is worth.
        seed: Seed of the bootstrap.

    The processes of one run follow each other within seconds, and a shared machine drifts over minutes: their medians
    agree better with each other than with those of the next run. So the spread s of their logarithms is pooled with
    `run_ratio`, and the interval is that of one more process, not of the mean of them:
    centre +- t(w + P - 1) x sqrt((w r^2 + (P - 1) s^2) / (w + P - 1)) x sqrt(1 + 1/P), joined with the bootstrap interval of the
    median of all samples. With less than three processes there is only the latter, and `holds` says so.

    Assumes: the machine stays in one regime; a change of regime shows as a wide interval or, between runs, not at all.
    Source: Hahn and Meeker, Statistical Intervals, 1991, section 4.7 (prediction); the pooling is that of a normal model with
    a conjugate prior of the variance, Gelman et al., Bayesian Data Analysis, section 2.6.

    Three processes that agree, r = 1.75 % worth three degrees: 2.571 x sqrt(3/5) x 1.75 % x sqrt(4/3) = 4.02 %.

    >>> i = interval_of([[1.0, 1.0, 1.0], [1.0, 1.0, 1.0], [1.0, 1.0, 1.0]])
    >>> i.median, round(i.low, 4), round(i.high, 4)
    (1.0, 0.9606, 1.0411)
    """
    kept = [np.asarray(g, dtype=np.float64) for g in groups if len(g)]
    whole = np.concatenate(kept)
    inside = median_interval(whole, seed=seed)
    if len(kept) < LEAST_PROCESSES:
        word = "one process" if len(kept) == 1 else f"{len(kept)} processes"
        return Interval(
            median=inside.median, low=inside.low, high=inside.high,
            holds=f"bootstrap within {word}; the spread between processes is not in it",
        )  # fmt: skip
    logs = np.log([float(np.median(g)) for g in kept])
    degrees = run_weight + len(kept) - 1
    variance = (run_weight * run_ratio**2 + (len(kept) - 1) * float(logs.var(ddof=1))) / degrees
    reach = t975(degrees) * math.sqrt(variance * (1.0 + 1.0 / len(kept)))
    centre = float(logs.mean())
    known = f", with {run_ratio:.2%} known between runs" if run_weight and run_ratio else ""
    return Interval(
        median=inside.median,
        low=min(inside.low, math.exp(centre - reach)),
        high=max(inside.high, math.exp(centre + reach)),
        holds=f"another process: spread between {len(kept)} processes{known}, joined with the bootstrap within them; "
        "of the regime the machine was in",
    )


def interval_over(groups: Sequence[Sequence[float]], spread_s: float, *, seed: int = 0) -> Interval:
    """Return the middle of processes that were spread over a time, and its interval over that time.

    Each process saw another moment, so nothing need be assumed of what lies between runs: the spread is in the samples. The
    figure is the median of the medians of the processes, so that each moment counts alike however many samples it
    gave, and the interval is the bootstrap of it. With fewer than nine processes it is that of `interval_of`.

    Args:
        groups: Samples of each process, at least one sample in all.
        spread_s: The time they were spread over [s].
        seed: Seed of the bootstrap.

    Assumes: the time is as long as the machine's drift; what changes more slowly is not in it.
    Source: Efron and Tibshirani, An Introduction to the Bootstrap, 1993, section 13.3, with processes as the units.

    >>> i = interval_over([[1.0, 1.0], [1.1, 1.1, 1.1]] * 5, 60.0)
    >>> round(i.median, 2), i.low, i.high
    (1.05, 1.0, 1.1)
    """
    middles = [float(np.median(g)) for g in groups if len(g)]
    if len(middles) < LEAST_SPREAD:
        return interval_of(groups, seed=seed)
    found = median_interval(middles, seed=seed)
    return Interval(
        median=found.median, low=found.low, high=found.high,
        holds=f"the middle over {spread_s:g} s: bootstrap of the medians of {len(middles)} processes spread over them",
    )  # fmt: skip
