"""How often is a benchmark called changed that did not change, and how often is a planted change found?

    python benchmarks/history_a_a/run.py --comparisons 300 --rounds 200 -o a_a.json

The benchmark is a chain of additions on arrays in the first cache; a planted slow-down of 5 % is 5 % more of them, so it is real work.

- *interleaved*: both sides in one process, in turn, in the order AB BA AB ..., a stated number of rounds for each comparison;
- *separate*: each run is a process of its own; a side is some runs that follow each other, and the sides are apart in time.

Printed is the share of comparisons that were called faster or slower, for no change and for each planted one, and the smallest change
that a comparison says it would have called. The machine may be noisy: that is what is tested.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

UNITS = 400  # additions in one sample
PLANTED = (0.0, 0.05, 0.10)


def sampler():
    """Return a function that times a number of units [s]."""
    import numpy as np

    a, b, out = (np.ones(2048) for _ in range(3))

    def sample(units: int) -> float:
        began = time.perf_counter_ns()
        for _ in range(units):
            np.add(a, b, out=out)
        return (time.perf_counter_ns() - began) / 1e9

    for _ in range(20):
        sample(UNITS)
    return sample


def one_run(units: int, samples: int) -> list[float]:
    """Return the samples of a process of its own."""
    command = [sys.executable, __file__, "--worker", str(units), str(samples)]
    return json.loads(subprocess.run(command, capture_output=True, check=True).stdout)


def interleaved(comparisons: int, rounds: int) -> dict:
    """Return the verdicts of comparisons in turn."""
    from mansard.history.compare import Limits, compare_lists

    sample, found = sampler(), {}
    verdicts = {p: [] for p in PLANTED}
    reach = []
    began = time.monotonic()
    for i in range(comparisons):
        for planted in PLANTED:
            sides = (UNITS, round(UNITS * (1 + planted)))
            pairs: tuple[list[float], list[float]] = ([], [])
            for r in range(rounds):
                for side in (0, 1) if r % 2 else (1, 0):
                    pairs[side].append(sample(sides[side]))
            result = compare_lists(*pairs, limits=Limits(interleaved=True, seed=i, draws=4000))
            verdicts[planted].append(result.verdict.value)
            if not planted and result.smallest_ratio is not None:
                reach.append(result.smallest_ratio)
    found = {f"{p:.2f}": {v: verdicts[p].count(v) for v in sorted(set(verdicts[p]))} for p in PLANTED}
    return {"verdicts": found, "smallest_ratio": statistics.median(reach), "rounds": rounds,
            "seconds_per_comparison": (time.monotonic() - began) / comparisons / len(PLANTED)}  # fmt: skip


def separate(comparisons: int, runs: int, samples: int, pool: int, seed: int) -> dict:
    """Return the verdicts of comparisons of separate runs, drawn from a pool that was taken in random order."""
    from mansard.history.compare import Limits, compare_measurements
    from mansard.history.records import Measurement

    chance = random.Random(seed)
    order = [p for p in PLANTED for _ in range(pool * (2 if p == 0 else 1))]
    chance.shuffle(order)
    taken = [(p, one_run(round(UNITS * (1 + p)), samples)) for p in order]
    by = {p: [s for q, s in taken if q == p] for p in PLANTED}
    at = {p: [i for i, (q, _) in enumerate(taken) if q == p] for p in PLANTED}

    def side(planted: float, start: int) -> list[Measurement]:
        return [
            Measurement(benchmark="add", metric="time_s", groups=(tuple(s),)) for s in by[planted][start : start + runs]
        ]

    verdicts: dict[float, list[str]] = {p: [] for p in PLANTED}
    reach = []
    for i in range(comparisons):
        for planted in PLANTED:
            while True:  # two sides that share no run
                first, second = chance.randrange(len(by[0.0]) - runs), chance.randrange(len(by[planted]) - runs)
                if planted or abs(first - second) >= runs:
                    break
            result = compare_measurements(side(0.0, first), side(planted, second), Limits(seed=i, draws=4000))
            verdicts[planted].append(result.verdict.value)
            if not planted and result.smallest_ratio is not None:
                reach.append(result.smallest_ratio)
    found = {f"{p:.2f}": {v: verdicts[p].count(v) for v in sorted(set(verdicts[p]))} for p in PLANTED}
    return {
        "verdicts": found,
        "smallest_ratio": statistics.median(reach),
        "runs": runs,
        "samples": samples,
        "pool": len(at[0.0]),
    }


def called(verdicts: dict[str, int]) -> float:
    """Return the share that was called."""
    return (verdicts.get("slower", 0) + verdicts.get("faster", 0)) / sum(verdicts.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--comparisons", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=200, help="pairs of samples of an interleaved comparison")
    parser.add_argument("--runs", type=int, default=3, help="runs of a side of a separate comparison")
    parser.add_argument("--samples", type=int, default=25, help="samples of a run")
    parser.add_argument(
        "--pool", type=int, default=60, help="runs of each planted change, and half of those without one"
    )
    parser.add_argument("--mode", choices=("both", "interleaved", "separate"), default="both")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--worker", nargs=2, type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        units, count = options.worker
        sample = sampler()
        print(json.dumps([sample(units) for _ in range(count)]))
        return 0
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
    results = {}
    if options.mode != "separate":
        results["interleaved"] = interleaved(options.comparisons, options.rounds)
    if options.mode != "interleaved":
        results["separate"] = separate(options.comparisons, options.runs, options.samples, options.pool, options.seed)
    for mode, r in results.items():
        print(f"{mode}: smallest change {r['smallest_ratio']:.1%}")
        for planted, verdicts in r["verdicts"].items():
            print(f"  planted {float(planted):>4.0%}: called {called(verdicts):.1%}  {verdicts}")
    if options.output:
        options.output.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 0 if all(called(r["verdicts"]["0.00"]) <= 0.02 for r in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
