"""How often does a trend see a change in a series that has none, and how often does it find one that is there?

    python benchmarks/history_trend/run.py --series 200

The noise is of many kinds: independent draws; neighbours that resemble each other (autoregressive, which `history/levels.py` assumes, with several
correlations); and kinds that it does not assume: tails without a variance, a machine that switches between two states, bursts of slow runs, a rhythm, noise
that grows, a process sampled at irregular times, and figures that drift along a line or a wave. Each kind has the same deviation (of the two states, of the
bursts and of the tails: the scale) and no step, or one of 5, 10 or 20 % at a random place that leaves at least three points on either side.

Printed for each kind and length: the share of series without a step that were called to have one, to drift, and to follow a curve; for each step the share in which exactly one
was found, its true place inside the stated interval; and in how many of all that were called steps the interval of some step holds it.

With `--limits` it prints the quantiles that the limits of `history/levels.py` were chosen from: twice the log-likelihood ratio of the best step, and of a line, in
series without either. Exit code 1 where more than 5 % of independent, autoregressive up to 0.8, or drifting series are called to have a step.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mansard.history.records import Fingerprint
from mansard.history.trend import Series, TrendPoint, series_of

FloatArray = npt.NDArray[np.float64]
LENGTHS = (8, 20, 60)
STEPS = (0.05, 0.10, 0.20)
BOUNDED = ("independent", "autoregressive 0.3", "autoregressive 0.6", "autoregressive 0.8", "irregular times", "line of 10 %", "wave of 10 %")
SIGMA = 0.02


def autoregressive(phi: float, tails: float | None = None) -> Callable[[np.random.Generator, int], FloatArray]:
    """Return noise of deviation 1 in which a value keeps `phi` of the one before; innovations are t with `tails` degrees where given."""

    def draw(rng: np.random.Generator, n: int) -> FloatArray:
        new = (
            rng.normal(size=n + 50) if tails is None else rng.standard_t(tails, n + 50) / math.sqrt(tails / (tails - 2))
        )
        out = np.zeros(n + 50)
        for i in range(1, n + 50):
            out[i] = phi * out[i - 1] + math.sqrt(1 - phi * phi) * new[i]
        return out[50:]

    return draw


def cauchy(rng: np.random.Generator, n: int) -> FloatArray:
    """Return draws without a variance; half of them are within 0.6745, as of a normal of deviation 1."""
    return np.clip(0.6745 * rng.standard_cauchy(n), -40, 40)


def two_states(stay: float) -> Callable[[np.random.Generator, int], FloatArray]:
    """Return a machine in one of two states two deviations apart, which it keeps with probability `stay`, and some noise in each."""

    def draw(rng: np.random.Generator, n: int) -> FloatArray:
        states = np.empty(n)
        states[0] = rng.integers(2)
        for i in range(1, n):
            states[i] = states[i - 1] if rng.random() < stay else 1 - states[i - 1]
        return 2.0 * (states - 0.5) + 0.3 * rng.normal(size=n)

    return draw


def bursts(rng: np.random.Generator, n: int) -> FloatArray:
    """Return quiet draws with one to three slow ones in a row now and then, four deviations up."""
    out, i = 0.5 * rng.normal(size=n), 0
    while (i := i + 1 + int(rng.geometric(0.1))) < n:
        out[i : i + int(rng.integers(1, 4))] += 4.0
    return out


def rhythm(rng: np.random.Generator, n: int) -> FloatArray:
    """Return a week of seven points on top of draws."""
    return np.sin(2 * np.pi * (np.arange(n) + rng.random() * 7) / 7) + 0.7 * rng.normal(size=n)


def growing(rng: np.random.Generator, n: int) -> FloatArray:
    """Return draws whose deviation grows fourfold, one on average."""
    scale = np.geomspace(0.5, 2.0, n)
    return scale / math.sqrt(float((scale**2).mean())) * rng.normal(size=n)


def irregular(rng: np.random.Generator, n: int) -> FloatArray:
    """Return a process that forgets with time, seen after random gaps: e^-0.5 of it is left after a mean gap; innovations are t of 5."""
    out = np.zeros(n + 20)
    for i in range(1, n + 20):
        kept = math.exp(-0.5 * rng.exponential())
        out[i] = kept * out[i - 1] + math.sqrt(1 - kept * kept) * rng.standard_t(5) / math.sqrt(5 / 3)
    return out[20:]


def line(rng: np.random.Generator, n: int) -> FloatArray:
    """Return draws around a line that changes by five deviations from end to end."""
    return 5.0 * float(rng.choice([-1.0, 1.0])) * np.linspace(0.0, 1.0, n) + rng.normal(size=n)


def wave(rng: np.random.Generator, n: int) -> FloatArray:
    """Return draws around half a wave, five deviations high."""
    return 5.0 * np.sin(np.pi * np.linspace(0.0, 1.0, n)) + rng.normal(size=n)


def waves(many: float) -> Callable[[np.random.Generator, int], FloatArray]:
    """Return draws around waves of any phase, five deviations from trough to crest."""

    def draw(rng: np.random.Generator, n: int) -> FloatArray:
        return 2.5 * np.sin(2 * np.pi * (many * np.linspace(0.0, 1.0, n) + rng.random())) + rng.normal(size=n)

    return draw


def settling(rng: np.random.Generator, n: int) -> FloatArray:
    """Return draws around what comes down by six deviations, first fast and then slowly."""
    return 6.0 * np.exp(-np.linspace(0.0, 5.0, n)) + rng.normal(size=n)


KINDS: dict[str, Callable[[np.random.Generator, int], FloatArray]] = {
    "independent": autoregressive(0.0),
    "autoregressive 0.3": autoregressive(0.3),
    "autoregressive 0.6": autoregressive(0.6),
    "autoregressive 0.8": autoregressive(0.8),
    "autoregressive 0.9": autoregressive(0.9),
    "autoregressive 0.3, t of 2.5": autoregressive(0.3, 2.5),
    "Cauchy": cauchy,
    "two states, stay 0.5": two_states(0.5),
    "two states, stay 0.9": two_states(0.9),
    "bursts": bursts,
    "rhythm of 7": rhythm,
    "growing": growing,
    "irregular times": irregular,
    "line of 10 %": line,
    "wave of 10 %": wave,
    "whole wave of 10 %": waves(1.0),
    "one and a half waves of 10 %": waves(1.5),
    "settling by 12 %": settling,
    "independent, 5 %": lambda rng, n: 2.5 * rng.normal(size=n),
}


def trend(y: FloatArray) -> Series:
    """Return what is said of a series of logarithms."""
    rows = [
        (TrendPoint(when=str(i), source="", value=0.1 * math.exp(x), outlier=False), Fingerprint())
        for i, x in enumerate(y)
    ]
    return series_of("x/time_s", "", rows)


def score(kind: str, n: int, series: int, seed: int) -> dict[str, float]:
    """Return the shares of one kind and length."""
    rng = np.random.default_rng([seed, list(KINDS).index(kind), n])
    models = [trend(SIGMA * KINDS[kind](rng, n)).model for _ in range(series)]
    shares = {m: models.count(m + "s" * (m == "step")) / series for m in ("step", "drift", "curve")}
    held = steps = 0
    for size in STEPS:
        one = 0
        for _ in range(series):
            at = int(rng.integers(3, n - 2))
            found = trend(SIGMA * KINDS[kind](rng, n) + np.where(np.arange(n) >= at, math.log1p(size), 0.0))
            inside = [c.first <= at <= c.last for c in found.changes]
            one += inside == [True]
            steps += bool(inside)
            held += any(inside)
        shares[f"found {size:.0%}"] = one / series
    return {**shares, "held": held / steps if steps else math.nan}


def limits(series: int, seed: int) -> None:
    """Print quantiles of twice the log-likelihood ratios in autoregressive series without a step or a line."""
    from mansard.history.levels import _one_more, fitted, line_of, steps_of

    for n in (8, 10, 14, 20, 30, 60, 120):
        for phi in (0.0, 0.3, 0.6, 0.8, 0.9, 0.95):
            rng = np.random.default_rng([seed, n, round(100 * phi)])
            gains = []
            for _ in range(series):
                y = autoregressive(phi)(rng, n)
                cut = _one_more(y, [], 0.0)
                assert cut is not None
                gains.append([float(fitted(y, c, 0.0).gains[1]) for c in (steps_of(n, [cut]), line_of(n))])
            step, straight = np.quantile(np.array(gains), 0.98, axis=0)
            print(f"n={n:3d} phi={phi:.2f}: step {step:5.1f} line {straight:5.1f}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--series", type=int, default=200, help="of each kind, without a step and with each")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limits", action="store_true")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    if options.limits:
        limits(options.series, options.seed)
        return 0
    results = {}
    for kind in KINDS:
        results[kind] = {n: score(kind, n, options.series, options.seed) for n in LENGTHS}
        for n, c in results[kind].items():
            told = "  ".join(f"{k} {x:4.0%}" for k, x in c.items())
            print(f"{kind:<30} n={n:<3d} {told}", flush=True)
    if options.output:
        options.output.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return int(any(c["step"] > 0.05 for kind in BOUNDED for c in results[kind].values()))


if __name__ == "__main__":
    sys.exit(main())
