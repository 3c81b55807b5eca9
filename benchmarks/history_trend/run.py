"""How often does a trend see a change in a series that has none, and how often does it find one that is there?

    python benchmarks/history_trend/run.py --series 200

The noise is of other kinds than the independent draws that the limits of `history/trend.py` were chosen on: neighbours that resemble each
other (autoregressive), tails without a variance, a machine that switches between two states, bursts of slow runs, a rhythm, and a
noise that grows. All but `independent` break what the test of a step assumes. Each kind has the same deviation (of the two states, of the burst and of the
tails: the scale) and no change, or one step of 10 % at a random place that leaves at least three points on either side.

Printed for each kind and length: the share of unchanged series that were called at all (a step, or a drift), the share of stepped ones in which exactly one step
was found, its true place inside the stated interval, and in how many of all that were called steps the interval of some step holds it. It scores; it passes or fails nothing.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mansard.history.records import Fingerprint
from mansard.history.trend import Series, TrendPoint, series_of

FloatArray = npt.NDArray[np.float64]
LENGTHS = (8, 20, 60)
SIGMAS = (0.02, 0.05)
STEP = 0.10


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


KINDS: dict[str, Callable[[np.random.Generator, int], FloatArray]] = {
    "independent": autoregressive(0.0),
    "autoregressive 0.3": autoregressive(0.3),
    "autoregressive 0.6": autoregressive(0.6),
    "autoregressive 0.9": autoregressive(0.9),
    "autoregressive 0.3, t of 2.5": autoregressive(0.3, 2.5),
    "Cauchy": cauchy,
    "two states, stay 0.5": two_states(0.5),
    "two states, stay 0.9": two_states(0.9),
    "bursts": bursts,
    "rhythm of 7": rhythm,
    "growing": growing,
}


def trend(y: FloatArray) -> Series:
    """Return what is said of a series of logarithms."""
    rows = [
        (TrendPoint(when=str(i), source="", value=0.1 * math.exp(x), outlier=False), Fingerprint())
        for i, x in enumerate(y)
    ]
    return series_of("x/time_s", "", rows)


def score(kind: str, n: int, sigma: float, series: int, seed: int) -> dict[str, float]:
    """Return the shares of one kind, length and deviation."""
    rng = np.random.default_rng([seed, list(KINDS).index(kind), n, round(1000 * sigma)])
    called = one = held = steps = 0
    for _ in range(series):
        called += trend(sigma * KINDS[kind](rng, n)).model != "steady"
        at = int(rng.integers(3, n - 2))
        found = trend(sigma * KINDS[kind](rng, n) + np.where(np.arange(n) >= at, math.log1p(STEP), 0.0))
        inside = [c.first <= at <= c.last for c in found.changes]
        one += inside == [True]
        steps += bool(inside)
        held += any(inside)
    return {"called": called / series, "found": one / series, "held": held / steps if steps else math.nan}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--series", type=int, default=200, help="of each kind, with and without a step")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    results = {}
    for kind in KINDS:
        for sigma in SIGMAS:
            cells = {n: score(kind, n, sigma, options.series, options.seed) for n in LENGTHS}
            results[f"{kind}, {sigma:.0%}"] = cells
            told = (
                f"n={n}: called {c['called']:4.0%} found {c['found']:4.0%} held {c['held']:4.0%}"
                for n, c in cells.items()
            )
            print(f"{kind + f', {sigma:.0%}':<34}", "  ".join(told), flush=True)
    if options.output:
        options.output.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
