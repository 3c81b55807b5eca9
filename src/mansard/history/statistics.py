"""The interval of a ratio of two medians, and many such ratios at once.

Two sources of spread are kept apart: samples within a run (bootstrap of the median), and the state of the machine, which changes from
one burst of runs to the next. The latter is estimated from the history of both sides where there are several bursts, and is never
taken to be less than a stated floor, nor less than what the burst itself shows: runs made close together agree, and cannot see it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mansard.history.signed_rank import LEAST_DIFFERENCES, centre_of

FloatArray = npt.NDArray[np.float64]

DRAWS = 20_000
LEVEL = 0.05
#: What is known of the spread between runs where a burst shows less, and the degrees of freedom that this knowledge is worth.
RUN_RATIO = 0.01
RUN_WEIGHT = 3
#: What the spread inside a burst says of that between bursts, at least; see `Burst.floor`.
INSIDE_SHARE = 0.5
AMONG_SHARE = 1.5
#: The spread between runs where nothing shows it: one process a side, and no history. Chosen such that of recorded self-comparisons of one
#: process a side at most 2 % are called (docs/history.md).
UNSEEN_RATIO = 0.10
#: So many degrees of freedom of the spread between bursts are evidence of it.
LEAST_EVIDENCE = 3
#: Two processes of the same program are taken to differ by this much for as long as they live. Assumed, not measured: a floor where there are
#: fewer than six pairs, which cannot show it themselves (docs/history.md).
PAIR_RATIO = 0.005
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
        bursts: Which burst each run, or each stated figure, belongs to; empty is one burst for all.
        single: Each run is known to be one process.
    """

    runs: tuple[tuple[tuple[float, ...], ...], ...] = ()
    stated: tuple[tuple[float, float, float], ...] = ()
    exact: bool = False
    bursts: tuple[int, ...] = ()
    single: bool = False

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

    def by_burst(self) -> list[Burst]:
        """Return the runs in bursts: those that share the state of the machine."""
        numbers = self.bursts or (0,) * self.run_count
        found = []
        for number in dict.fromkeys(numbers):
            at = [i for i, n in enumerate(numbers) if n == number]
            if self.runs:
                groups = [np.log(np.asarray(g, dtype=np.float64)) for i in at for g in self.runs[i] if g]
                whole = float(np.median(np.concatenate(groups)))
                inside = float(np.median([_mad(g) for g in groups]))
            else:
                groups = [np.log([self.stated[i][0]]) for i in at]
                whole, inside = float(np.median(np.concatenate(groups))), 0.0
            medians = [float(np.median(g)) for g in groups]
            among = float(np.std(medians, ddof=1)) if len(medians) > 1 else 0.0
            found.append(
                Burst(
                    centre=whole,
                    inside=inside,
                    among=among,
                    processes=len(medians) if self.single or len(medians) > 1 else 0,
                )
            )
        return found


def _mad(x: FloatArray) -> float:
    """Return the median absolute deviation, scaled to the standard deviation of a normal sample."""
    return 1.4826 * float(np.median(np.abs(x - np.median(x))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Burst:
    """Runs that were made one after the other: the state of the machine counts once, whatever their number.

    Args:
        centre: Logarithm of the median of all samples.
        inside: Spread of the samples of a process (relative).
        among: Spread of the medians of its processes and runs (relative); 0 where there is one.
        processes: How many there are: one cannot show how processes differ. 0 where that is not told: what is given is then taken
            as it is, and shows nothing of those of the other side.
    """

    centre: float
    inside: float
    among: float
    processes: int = 2

    def floor(self, run_ratio: float) -> float:
        """Return the least spread between this burst and others: what is known of the machine, or what the burst itself shows.

        Args:
            run_ratio: Known spread between runs.

        A machine that is disturbed within a burst is disturbed between bursts. The shares were chosen on recorded runs of a loud
        machine and tried on others (docs/history.md).

        >>> round(Burst(centre=0.0, inside=0.04, among=0.02).floor(0.01), 3)
        0.03
        """
        return max(run_ratio, INSIDE_SHARE * self.inside, AMONG_SHARE * self.among)


def hidden(every: Sequence[Sequence[Burst]]) -> bool:
    """Return whether a burst is known to be one process, and nothing in those of the sides shows how one differs from another."""
    degrees = sum(len(b) - 1 for b in every)
    found = [b.processes for bursts in every for b in bursts]
    return degrees < LEAST_EVIDENCE and 1 in found and max(found) < 2


def between_bursts(
    sides: Sequence[Side], run_ratio: float, unseen_ratio: float = UNSEEN_RATIO
) -> list[tuple[float, int]]:
    """Return for each side the variance of its figure from burst to burst, on a logarithmic scale, and the degrees of freedom.

    Args:
        sides: The sides of a comparison: what either shows of the machine holds for both.
        run_ratio: What is known of the spread between runs on such a machine (relative standard deviation).
        unseen_ratio: What is taken for a burst of one process, where no other tells how they differ.

    Runs of one burst share a regime, so they are never divided by: only bursts are. The spread of the centres of bursts is pooled
    over both sides, and no burst is taken to be surer than its own floor. A side of one burst has the degrees of that knowledge
    alone, however much the other side tells: its burst may be the odd one.

    Two processes a side that agree, with r = 1 %: variance 1e-4, three degrees of freedom. One process a side: 10 % are assumed.

    >>> [(round(v, 6), d) for v, d in between_bursts([Side(runs=(((1.0,), (1.0,)),))] * 2, 0.01)]
    [(0.0001, 3), (0.0001, 3)]
    >>> [(round(v, 6), d) for v, d in between_bursts([Side(runs=(((1.0,),),), single=True)] * 2, 0.01)]
    [(0.01, 3), (0.01, 3)]
    """
    every = [s.by_burst() for s in sides]
    degrees = sum(len(b) - 1 for b in every)
    squares = sum(float(((c - c.mean()) ** 2).sum()) for c in (np.array([x.centre for x in b]) for b in every))
    pooled = squares / degrees if degrees else 0.0
    shown = [AMONG_SHARE * b.among for bursts in every for b in bursts if b.processes > 1]
    shown += [AMONG_SHARE * math.sqrt(pooled)] if degrees >= LEAST_EVIDENCE else []
    alone = unseen_ratio if hidden(every) else max(shown, default=0.0)  # what a single process is taken to hide
    found = []
    for bursts in every:
        floors = [max(b.floor(run_ratio), alone if b.processes == 1 else 0.0) for b in bursts]
        variance = float(np.mean([max(f**2, pooled) for f in floors])) / len(bursts)
        found.append((variance, RUN_WEIGHT + (degrees if len(bursts) > 1 else 0)))
    return found


def side_draws(side: Side, draws: int, rng: np.random.Generator, between: tuple[float, int]) -> FloatArray:
    """Return draws of the logarithm of a side's figure, within and between bursts together."""
    if side.exact:
        return np.full(draws, math.log(side.median))
    if side.runs:
        inside = np.log(median_draws(side.samples, draws, rng))
    else:
        widths = [math.log(high / low) / (2.0 * _NORMAL_975) if high > low > 0 else 0.0 for _, low, high in side.stated]
        scale = math.sqrt(sum(w * w for w in widths)) / len(widths)
        inside = math.log(side.median) + scale * rng.standard_normal(draws)
    variance, degrees = between
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
    a: Side, b: Side, *, tolerance: float, run_ratio: float = RUN_RATIO, unseen_ratio: float = UNSEEN_RATIO, draws: int = DRAWS, seed: int = 0,
) -> Ratio:  # fmt: skip
    """Return the ratio of the medians of two separate measurements.

    Args:
        a, b: Baseline and candidate.
        tolerance: The smallest change that matters, relative.
        run_ratio: Known spread between runs; 0 where both sides were taken in the same minutes.
        unseen_ratio: The spread that is assumed where one process a side shows none.
        draws: Draws of the interval.
        seed: Seed, so that a verdict can be reproduced.

    >>> r = ratio_of_medians(Side(runs=(((1.0,) * 9,) * 2,)), Side(runs=(((1.2,) * 9,) * 2,)), tolerance=0.02)
    >>> round(r.value, 3), r.low > 1.1, r.p_changed < 0.01
    (1.2, True, True)
    """
    rng = np.random.default_rng(seed)
    of_a, of_b = between_bursts([a, b], run_ratio, unseen_ratio)
    change = side_draws(b, draws, rng, of_b) - side_draws(a, draws, rng, of_a)
    return _ratio(math.log(b.median / a.median), change, tolerance)


def ratio_of_pairs(
    a: Sequence[Sequence[float]], b: Sequence[Sequence[float]], *, tolerance: float, draws: int = DRAWS, seed: int = 0
) -> Ratio:
    """Return the centre of the ratios of pairs that were measured right after each other.

    Args:
        a, b: Baseline and candidate of each round, by the pair of processes they were taken in; as many of each.
        tolerance: The smallest change that matters, relative.
        draws, seed: Draws of the interval, and their seed, where there are fewer than six pairs of processes.

    A machine that drifts from minute to minute moves both of a pair, so their ratio holds still: there is no spread between runs to
    add. What a process has for its life, such as the placement of its memory, is in all of its rounds. So six pairs of processes or more
    are each one observation, the median of its rounds, and their centre has the interval of signed ranks: how much the rounds of a pair
    wander is in the spread of the pairs, and is not counted again. Fewer pairs have no such interval: there the spread of their ratios,
    pooled with a floor of `PAIR_RATIO`, is added to that of all rounds.

    >>> ratio_of_pairs([[1.0, 2.0, 4.0] * 3], [[1.1, 2.2, 4.4] * 3], tolerance=0.02).low > 1.09
    True

    Six pairs, 5 to 10 % slower: from the least to the largest.

    >>> r = ratio_of_pairs([[1.0] * 3] * 6, [[1.05 + 0.01 * i] * 3 for i in range(6)], tolerance=0.02)
    >>> round(r.low, 3), round(r.high, 3), r.p_above * 64
    (1.05, 1.1, 1.0)
    """
    if len(a) >= LEAST_DIFFERENCES and [len(g) for g in a] == [len(g) for g in b] and all(len(g) for g in a):
        return _ratio_of_centre(pair_centres(a, b), tolerance)
    rng = np.random.default_rng(seed)
    left, right = (np.log(np.concatenate([np.asarray(g, dtype=np.float64) for g in side])) for side in (a, b))
    logs = right - left
    change = median_draws(logs, draws, rng)
    sizes = [len(g) for g in a]
    if len(sizes) > 1 and sizes == [len(g) for g in b] and max(sizes) > 1:
        medians = np.array([np.median(part) for part in np.split(logs, np.cumsum(sizes)[:-1])])
        k = len(sizes)
        degrees = RUN_WEIGHT + k - 1
        variance = (RUN_WEIGHT * PAIR_RATIO**2 + (k - 1) * float(medians.var(ddof=1))) / degrees / k
        change = change + math.sqrt(variance) * rng.standard_t(degrees, draws)
    return _ratio(float(np.median(logs)), change, tolerance)


def pair_centres(a: Sequence[Sequence[float]], b: Sequence[Sequence[float]]) -> list[float]:
    """Return of each pair of processes the median logarithm of candidate over baseline in the same round.

    >>> [round(math.exp(x), 3) for x in pair_centres([[1.0, 2.0, 4.0]], [[1.1, 2.2, 9.0]])]
    [1.1]
    """
    return [float(np.median(np.log(np.asarray(y) / np.asarray(x)))) for x, y in zip(a, b, strict=True)]


def _ratio_of_centre(logs: Sequence[float], tolerance: float) -> Ratio:
    edge, c = math.log1p(tolerance), centre_of(logs, LEVEL)
    return Ratio(
        value=math.exp(c.value), low=math.exp(c.low), high=math.exp(c.high), p_above=c.p_above(edge), p_below=c.p_below(-edge),
        p_different=min(1.0, 2.0 * min(c.p_above(0.0), c.p_below(0.0))),
    )  # fmt: skip


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
