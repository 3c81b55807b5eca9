"""How long one operation takes: first call, warm-up, repeats inside a sample, samples, slope, interval."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mansard.core.stats import median_interval
from mansard.measure.points.benchmark import Prepared

Now = Callable[[], float]

MIN_SAMPLE_S = 1e-3  # a sample is never planned shorter: the clock and the wake-up of threads are far below it
FLOOR_MULTIPLE = 10.0  # and at least this many times the cost of an empty call, where repeats can reach it
MOST_PER_SAMPLE = 100_000
STEADY_RATIO = 0.02  # two blocks of warm-up samples agree within this
STEADY_BLOCK = 4
WARMUP_MOST_S = 2.0
WARMUP_MOST = 200
OUTLIER_IQR = 1.5
CHAIN_LENGTHS = (1, 5)
SLOPE_LEAST_PAIRS = 3
LEAST_FOR_INTERVAL = 5
LEAST_LAG_S = 2e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUp:
    """The samples before the ones that count.

    Args:
        seconds: Time of each call [s].
        steady: Whether the last two blocks of them agree.
    """

    seconds: tuple[float, ...]
    steady: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Samples taken one after the other.

    Args:
        seconds: Time of one operation in each [s].
        stopped_by: `interval`, `time` or `count`.
    """

    seconds: tuple[float, ...]
    stopped_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When to stop.

    Args:
        least_samples: Never fewer.
        least_s: Samples are taken for at least this long [s].
        most_samples: Never more.
        budget_s: No new sample after this, once `least_samples` are there [s].
        target_ratio: Half of the interval of the median over the median that is narrow enough.
    """

    least_samples: int = 10
    least_s: float = 0.0
    most_samples: int = 2000
    budget_s: float = 1.0
    target_ratio: float = 0.01


def one_sample(prepared: Prepared, count: int, now: Now = time.perf_counter) -> float:
    """Return the time of one operation, the mean over `count` back to back [s].

    The mean inside one sample hides nothing: all samples are kept, and `count` stands beside them.
    """
    if prepared.timed is not None:
        return prepared.timed(count) / count
    start = now()
    prepared.run(count)
    return (now() - start) / count


def timer_floor(now: Now = time.perf_counter, tries: int = 200) -> float:
    """Return the smallest step the clock shows between two readings [s], or 0 where it shows none."""
    steps = []
    for _ in range(tries):
        first = now()
        second = now()
        if second > first:
            steps.append(second - first)
    return min(steps, default=0.0)


def warm_up(
    prepared: Prepared, *, least: int = 10, least_s: float = 0.0, most_s: float = WARMUP_MOST_S,
    now: Now = time.perf_counter,
) -> WarmUp:  # fmt: skip
    """Call until two blocks of samples agree, at least `least` times and `least_s` long, and never beyond the bound.

    Args:
        prepared: What to call.
        least: Least calls; one call that is longer than the bound ends it all the same.
        least_s: Least time [s].
        most_s: Most time [s]; the bound on calls is `WARMUP_MOST` or `least`.
    """
    seconds: list[float] = []
    begin = now()
    spent = 0.0
    while True:
        seconds.append(one_sample(prepared, 1, now))
        spent = max(now() - begin, math.fsum(seconds))
        steady = is_steady(seconds)
        enough = len(seconds) >= least and spent >= least_s
        if (steady and enough) or spent >= max(most_s, least_s) or len(seconds) >= max(WARMUP_MOST, least):
            return WarmUp(seconds=tuple(seconds), steady=steady)


def is_steady(seconds: Sequence[float], block: int = STEADY_BLOCK, ratio: float = STEADY_RATIO) -> bool:
    """Return whether the medians of the last two blocks agree, or both are within the spread of the blocks.

    >>> is_steady([9.0, 5.0, 3.0, 2.0, 1.0, 1.01, 1.0, 0.99, 1.0, 1.0, 1.01, 1.0])
    True
    >>> is_steady([8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0])
    False
    """
    if len(seconds) < 2 * block:
        return False
    last, before = np.asarray(seconds[-block:]), np.asarray(seconds[-2 * block : -block])
    change = abs(float(np.median(last)) - float(np.median(before)))
    if change <= ratio * float(np.median(last)):
        return True
    # Noise is not drift: blocks that overlap in the middle halves are as steady as this machine gets.
    return bool(
        np.percentile(last, 25) <= np.percentile(before, 75)
        and np.percentile(before, 25) <= np.percentile(last, 75)
        and len(seconds) >= 4 * block
    )


def calibrate(call_s: float, floor_s: float, clock_step_s: float = 0.0) -> int:
    """Return how many operations one sample holds, so that it is well above the clock's step and the empty call.

    Args:
        call_s: Expected time of one operation [s].
        floor_s: Cost of an empty call [s].
        clock_step_s: Smallest step of the clock [s].

    >>> calibrate(call_s=0.02, floor_s=5e-6), calibrate(call_s=1e-5, floor_s=5e-6), calibrate(call_s=1e-4, floor_s=1e-3)
    (1, 100, 100)
    """
    wanted = max(MIN_SAMPLE_S, FLOOR_MULTIPLE * floor_s, 1000.0 * clock_step_s)
    if call_s <= 0.0:
        return MOST_PER_SAMPLE
    return int(min(MOST_PER_SAMPLE, max(1, math.ceil(wanted / call_s - 1e-9))))


def take_window(
    prepared: Prepared, per_sample: int, limits: Limits, *, before: Sequence[float] = (), now: Now = time.perf_counter,
    flush: Callable[[], None] | None = None,
) -> Window:  # fmt: skip
    """Take samples until the interval of the median is narrow, the budget is spent, or the most samples are there.

    Args:
        prepared: What to call.
        per_sample: Operations in one sample.
        limits: When to stop; `least_samples` and `least_s` count this window alone.
        before: Samples of earlier windows of the same point; the interval is that of all.
        flush: Called before each sample, outside of what is timed; it counts for the budget.
    """
    seconds: list[float] = []
    begin = now()
    spent = 0.0
    next_look = max(LEAST_FOR_INTERVAL, limits.least_samples)
    while True:
        if flush is not None:
            flush()
        seconds.append(one_sample(prepared, per_sample, now))
        spent = max(now() - begin, math.fsum(seconds) * per_sample)
        if len(seconds) < limits.least_samples or spent < limits.least_s:
            if len(seconds) >= max(limits.most_samples, limits.least_samples):
                return Window(seconds=tuple(seconds), stopped_by="count")
            continue
        if len(seconds) >= max(limits.most_samples, limits.least_samples):
            return Window(seconds=tuple(seconds), stopped_by="count")
        if spent >= limits.budget_s:
            return Window(seconds=tuple(seconds), stopped_by="time")
        if len(seconds) >= next_look:
            next_look = math.ceil(len(seconds) * 1.25)
            found = median_interval([*before, *seconds], resamples=300)
            if (found.high - found.low) / 2.0 <= limits.target_ratio * found.median:
                return Window(seconds=tuple(seconds), stopped_by="interval")


def slope(
    chain: Callable[[int], None],
    *,
    lengths: tuple[int, int] = CHAIN_LENGTHS,
    pairs: int = 7,
    least_s: float = MIN_SAMPLE_S,
    most_s: float = math.inf,
    now: Now = time.perf_counter,
) -> tuple[float, float] | None:
    """Return (time of one operation, fixed cost of one dispatch) from chains of two lengths [s].

    One dispatch of k operations takes fixed + k * operation; two lengths, interleaved, give both. The longer chain is
    stretched until it is `least_s` longer than the shorter one, as far as there is time. None where the longer chain is not
    slower, or its operations are so long that `SLOPE_LEAST_PAIRS` pairs do not fit.

    Args:
        chain: Does `count` operations inside one dispatch; a length may be compiled on its first call, which is not
            timed.
        lengths: Operations of the shorter and the longer chain.
        pairs: How often both are timed.
        least_s: Least difference of the two [s].
        most_s: About the time all of it may take, without compilation [s].
    """
    short, long = lengths

    def timed(count: int) -> float:
        start = now()
        chain(count)
        return now() - start

    chain(short)  # may compile
    first = timed(short)
    if SLOPE_LEAST_PAIRS * (short + long) * first / short > most_s:
        return None
    chain(long)
    begin = now()
    for _ in range(6):
        looks = 3 if 3.0 * (short + long) * first / short < most_s / 4.0 else 1
        quick = min(timed(short) for _ in range(looks))
        slow = min(timed(long) for _ in range(looks))
        # What a longer one takes is known from this one: a difference that drowns in the noise must not stretch it to minutes.
        room = long * most_s / ((pairs + 4) * max(slow, 1e-9))
        if slow - quick >= least_s or room < 2 * long or now() - begin > most_s:
            break
        step = max((slow - quick) / (long - short), 1e-9)
        longer = short + math.ceil(1.2 * least_s / step)
        long = int(min(max(2 * long, longer), 64 * long, MOST_PER_SAMPLE, room))
        chain(long)
    both: list[tuple[float, float]] = []
    while len(both) < pairs and (len(both) < SLOPE_LEAST_PAIRS or now() - begin < most_s):
        both.append((timed(short), timed(long)))
    step = float(np.median([b - a for a, b in both])) / (long - short)
    if step <= 0.0:
        return None
    fixed = float(np.median([a for a, _ in both])) - short * step
    return step, max(0.0, fixed)


def returns_early(seen: Mapping[str, float]) -> bool:
    """Return whether reading the result right after a call takes so much longer than at rest that the call did not wait.

    Args:
        seen: `run_s` of the call, `check_s` right after it, `check_at_rest_s` [s].

    >>> returns_early({"run_s": 1e-4, "check_s": 0.5, "check_at_rest_s": 0.01})
    True
    >>> returns_early({"run_s": 8.0, "check_s": 3.0, "check_at_rest_s": 0.5})
    False
    """
    lag = seen["check_s"] - seen["check_at_rest_s"]
    return lag > max(LEAST_LAG_S, 2.0 * seen["run_s"], 0.5 * seen["check_at_rest_s"])


def outliers(seconds: Sequence[float]) -> tuple[int, ...]:
    """Return the indices of samples beyond 1.5 interquartile ranges; they are marked and stay.

    Source: Tukey, Exploratory Data Analysis, 1977.

    >>> outliers([1.0, 1.1, 0.9, 1.0, 5.0])
    (4,)
    """
    if len(seconds) < 4:
        return ()
    x = np.asarray(seconds, dtype=np.float64)
    low, high = np.percentile(x, [25, 75])
    reach = OUTLIER_IQR * (high - low)
    return tuple(int(i) for i in np.flatnonzero((x < low - reach) | (x > high + reach)))
