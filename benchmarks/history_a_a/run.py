"""How often is a benchmark called changed that did not change, and how often is a planted change found?

    python benchmarks/history_a_a/run.py record --seconds 1800 -o recorded.json.gz
    python benchmarks/history_a_a/run.py separate recorded.json.gz --comparisons 300

Three small benchmarks: additions in the first cache, a copy through memory, and a loop of Python. A planted slow-down of 5 % is 5 % more
work of the same kind.

- *record*: bursts of three processes that follow each other, the bursts some seconds apart, for as long as is asked; every process takes
  all benchmarks with and without the planted work. The recording is the data of the next one;
- *separate*: comparisons of bursts drawn from a recording, the sides from different ones: one of each, a history of several against one,
  several against several.

Both sides in turn are tried by in_turn.py.

Printed is the share of comparisons that were called faster or slower, for no change and for each planted one, and the smallest change
that a comparison says it would have called. The machine may be noisy: that is what is tested. Exit code 1 where more than 2 % of
the comparisons without a change are called.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PLANTED = (0.0, 0.05, 0.10)
BENCHMARKS = ("add", "copy", "python")
RUNS = 3
SAMPLES = 20
SCHEMES = ((1, 1), (2, 1), (4, 1), (8, 1), (2, 2), (4, 4))  # bursts of the baseline, of the candidate


def samplers() -> dict[str, Callable[[float], float]]:
    """Return functions that time a benchmark with a planted share of more work [s]."""
    import numpy as np

    a, b, out = (np.ones(2048) for _ in range(3))
    source = {p: np.ones(round(1_500_000 * (1 + p))) for p in PLANTED}
    target = {p: np.empty_like(source[p]) for p in PLANTED}

    def add(planted: float) -> float:
        began = time.perf_counter_ns()
        for _ in range(round(400 * (1 + planted))):
            np.add(a, b, out=out)
        return (time.perf_counter_ns() - began) / 1e9

    def copy(planted: float) -> float:
        began = time.perf_counter_ns()
        np.copyto(target[planted], source[planted])
        return (time.perf_counter_ns() - began) / 1e9

    def python(planted: float) -> float:
        count, total = round(12_000 * (1 + planted)), 0
        began = time.perf_counter_ns()
        for i in range(count):
            total += i * i
        return (time.perf_counter_ns() - began) / 1e9

    found = {"add": add, "copy": copy, "python": python}
    for sample in found.values():
        for planted in (*PLANTED, *PLANTED):
            sample(planted)
    return found


def worker() -> None:
    """Print the samples of a process of its own."""
    taken = {
        f"{name} {p:.2f}": [float(f"{sample(p):.4g}") for _ in range(SAMPLES)]
        for name, sample in samplers().items()
        for p in PLANTED
    }
    print(json.dumps(taken))


def record(seconds: float, period_s: float) -> list[dict[str, Any]]:
    """Return bursts that were taken for so long, about `period_s` apart."""
    found, end, chance = [], time.monotonic() + seconds, random.Random(0)
    command = [sys.executable, __file__, "worker"]
    while time.monotonic() < end:
        began = time.time()
        runs = [json.loads(subprocess.run(command, capture_output=True, check=True).stdout) for _ in range(RUNS)]
        found.append({"time": round(began, 1), "load": round(os.getloadavg()[0], 1), "runs": runs})
        time.sleep(max(0.0, period_s * (0.5 + chance.random()) - (time.time() - began)))
    return found


def separate(bursts: list[dict[str, Any]], comparisons: int, seed: int, runs: int) -> dict[str, Any]:
    """Return the verdicts of comparisons of bursts, by scheme and benchmark."""
    from datetime import UTC, datetime

    from mansard.history.compare import Limits, compare_measurements
    from mansard.history.records import Measurement

    def side(chosen: list[int], name: str, planted: float) -> list[Measurement]:
        return [
            Measurement(
                benchmark=name, metric="time_s", single=True, groups=tuple(tuple(r[f"{name} {planted:.2f}"]) for r in bursts[i]["runs"][:runs]),
                # Bursts of a recording are seconds apart; a history has them on other days, so each is told to be one of its own.
                taken=datetime.fromtimestamp(bursts[i]["time"] + 3600.0 * i, UTC).isoformat(),
            )
            for i in chosen
        ]  # fmt: skip

    found = {}
    for first, second in SCHEMES:
        for name in BENCHMARKS:
            chance = random.Random(seed)
            verdicts: dict[float, list[str]] = {p: [] for p in PLANTED}
            reach = []
            for i in range(comparisons):
                drawn = chance.sample(range(len(bursts)), first + second)
                for planted in PLANTED:
                    sides = side(drawn[:first], name, 0.0), side(drawn[first:], name, planted)
                    result = compare_measurements(*sides, Limits(seed=i, draws=4000))
                    verdicts[planted].append(result.verdict.value)
                    if not planted and result.smallest_ratio is not None:
                        reach.append(result.smallest_ratio)
            key = f"{first} + {second} bursts, {name}"
            found[key] = {"verdicts": counted(verdicts), "smallest_ratio": statistics.median(reach)}
    return found


def counted(verdicts: dict[float, list[str]]) -> dict[str, dict[str, int]]:
    """Return how often each verdict was given, by what was planted."""
    return {f"{p:.2f}": {v: verdicts[p].count(v) for v in sorted(set(verdicts[p]))} for p in PLANTED}


def called(verdicts: dict[str, int], *names: str) -> float:
    """Return the share of these verdicts."""
    return sum(verdicts.get(n, 0) for n in names) / sum(verdicts.values())


def read(path: Path) -> list[dict[str, Any]]:
    """Return the bursts of a recording."""
    found: list[dict[str, Any]] = json.loads(gzip.decompress(path.read_bytes()))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=("record", "separate", "worker"))
    parser.add_argument("recording", type=Path, nargs="*")
    parser.add_argument("--comparisons", type=int, default=300, help="of each kind; of each benchmark a third")
    parser.add_argument("--seconds", type=float, default=1800.0, help="how long to record")
    parser.add_argument("--period", type=float, default=7.0, help="seconds from burst to burst, about")
    parser.add_argument("--runs", type=int, default=RUNS, help="processes of a burst that a comparison sees")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
    if options.mode == "worker":
        worker()
        return 0
    if options.mode == "record":
        bursts = record(options.seconds, options.period)
        options.output.write_bytes(gzip.compress(json.dumps(bursts, separators=(",", ":")).encode(), 9, mtime=0))
        return 0
    bursts = [b for path in options.recording for b in read(path)]
    print(
        f"{len(bursts)} bursts of {options.runs} processes, load {min(b['load'] for b in bursts)} to {max(b['load'] for b in bursts)}"
    )
    results = separate(bursts, -(-options.comparisons // len(BENCHMARKS)), options.seed, options.runs)
    for kind, r in results.items():
        cells = [f"{kind:<24} smallest change {r['smallest_ratio']:6.1%}"]
        for planted, verdicts in r["verdicts"].items():
            wrong = "" if planted == "0.00" else f" (faster {called(verdicts, 'faster'):.1%})"
            names = ("slower", "faster") if planted == "0.00" else ("slower",)
            cells.append(f"{float(planted):.0%}: {called(verdicts, *names):6.1%}{wrong}")
        print("  ".join(cells))
    if options.output:
        options.output.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 0 if all(called(r["verdicts"]["0.00"], "slower", "faster") <= 0.02 for r in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
