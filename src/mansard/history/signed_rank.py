"""The centre of a few differences with an exact interval: Wilcoxon's signed ranks.

It assumes that the differences are independent and lie symmetrically around their centre, and nothing of how far: of twelve or more, one that is
far out does not carry the interval away, of sixteen or more not two. Logarithms of the ratio of two equal programs are symmetric whatever their noise is,
because either may be called the baseline.

Source: Wilcoxon, Biometrics Bulletin 1, 1945; Hodges and Lehmann, Annals of Mathematical Statistics 34, 1963; the interval: Tukey's, in
Hollander, Wolfe and Chicken, Nonparametric Statistical Methods, 2014, section 3.3.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

#: Of five differences no interval reaches 95 %: all five lie on one side of their centre once in 16 times. Of six it is once in 32.
LEAST_DIFFERENCES = 6
#: Up to so many the distribution is counted out, and above it is taken as normal.
MOST_EXACT = 100
#: How many more differences a plan takes than the spread of twelve of them asks for. The variance of twelve normal values is less than 6.99 / 11 of
#: the true one in one case of five (chi-squared, eleven degrees), so with 11 / 6.99 as many the plan suffices in four of five.
PLAN_FACTOR = 1.57


@functools.lru_cache(maxsize=64)
def _below(n: int) -> FloatArray:
    """Return for each sum of positive ranks of n differences the probability of that sum or a smaller one.

    Each rank is positive or negative with equal chance. Of three: sums 0, 1, 2, 3, 3, 4, 5, 6 of eight arrangements.

    >>> [round(float(p) * 8) for p in _below(3)]
    [1, 2, 3, 5, 6, 7, 8]
    """
    counts = np.zeros(n * (n + 1) // 2 + 1)
    counts[0] = 1.0
    for rank in range(1, n + 1):
        counts[rank:] = (counts[rank:] + counts[:-rank]) / 2.0
        counts[:rank] /= 2.0
    return np.asarray(np.cumsum(counts), dtype=np.float64)


def at_least(total: int, n: int) -> float:
    """Return how probable it is that the positive ranks of n differences around 0 sum up to this or more.

    All six positive is one of 64 arrangements.

    >>> at_least(21, 6) * 64
    1.0
    """
    if total <= 0:
        return 1.0
    if n > MOST_EXACT:
        middle, variance = n * (n + 1) / 4.0, n * (n + 1) * (2 * n + 1) / 24.0
        return 0.5 * math.erfc((total - 0.5 - middle) / math.sqrt(2.0 * variance))
    below = _below(n)
    return float(
        below[-1 - total]
    )  # the sums lie symmetrically: total or more is as likely as the mirrored sum or less


@dataclass(frozen=True, slots=True, kw_only=True)
class Centre:
    """Where differences lie.

    Args:
        value: Median of the means of all pairs of differences, each with itself too (Hodges and Lehmann).
        low, high: Its interval, at least as sure as was asked for.
        means: Those means, sorted.
        count: How many differences.
    """

    value: float
    low: float
    high: float
    means: FloatArray
    count: int

    def p_above(self, edge: float) -> float:
        """Return how probable differences like these are if their centre were not above an edge; a tie counts against it."""
        return at_least(int((self.means > edge).sum()), self.count)

    def p_below(self, edge: float) -> float:
        """Return how probable differences like these are if their centre were not below an edge."""
        return at_least(int((self.means < edge).sum()), self.count)


def centre_of(differences: Sequence[float] | FloatArray, level: float = 0.05) -> Centre:
    """Return the centre of differences with its two-sided interval.

    Args:
        differences: At least `LEAST_DIFFERENCES`, independent of each other.
        level: How often the interval may miss the centre.

    Of six the interval is from the least to the largest: a centre beyond has all six on one side, 2 of 64 arrangements, and the next mean
    inside would miss 4 of 64 = 6.3 %. Their 21 means have the median 3.5.

    >>> c = centre_of([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    >>> c.value, c.low, c.high
    (3.5, 1.0, 6.0)
    """
    x = np.asarray(differences, dtype=np.float64)
    n = x.size
    if n < LEAST_DIFFERENCES:
        raise ValueError(f"at least {LEAST_DIFFERENCES} differences make an interval, got {n}")
    i, j = np.triu_indices(n)
    means = np.sort((x[i] + x[j]) / 2.0)
    # A centre below `out` means or fewer has a sum of ranks of `size - out` or more: means are left out while that is rare enough.
    size, out = means.size, 0
    while out + 1 < size // 2 and at_least(size - out - 1, n) <= level / 2.0:
        out += 1
    return Centre(
        value=float(np.median(means)), low=float(means[out]), high=float(means[-1 - out]), means=means, count=n
    )


def differences_needed(pilot: Sequence[float] | FloatArray, half_width: float, most: int) -> int:
    """Return how many differences make the interval narrow enough, by the spread of the first ones.

    Args:
        pilot: The first differences; fewer than `LEAST_DIFFERENCES` tell too little, and are then all.
        half_width: Half of the interval that is wanted.
        most: Never more.

    The number depends on how far the first ones lie from each other and not on where they lie, so choosing it does not favour a change: of
    symmetric differences, spread and centre are uncorrelated. The width falls with the square root of the number.

    Ten from -3 to 6: the interval is 1.5 +- 2.5; for half of that four times as many are needed, and 1.57 times that: 62.8.

    >>> differences_needed([-3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 1.25, 100)
    63

    Source: Stein, Annals of Mathematical Statistics 16, 1945 (two stages); Kalibera and Jones, Rigorous Benchmarking in Reasonable Time,
    ISMM 2013 (a pilot says at which level to repeat).
    """
    n = len(pilot)
    if n < LEAST_DIFFERENCES:
        return n
    c = centre_of(pilot)
    wanted = PLAN_FACTOR * n * ((c.high - c.low) / 2.0 / half_width) ** 2
    return max(n, min(most, math.ceil(wanted)))
