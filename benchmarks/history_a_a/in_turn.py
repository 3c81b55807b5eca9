"""How often is a benchmark called changed that did not change, and how often is a planted change found, by `measure --against`?

    python benchmarks/history_a_a/in_turn.py measure kept.jsonl --planted 0 0.05 0 0.10 0 --sets 17
    python benchmarks/history_a_a/in_turn.py score kept.jsonl [more.jsonl ...] [--join 3 | --draw 100]

A set is what one `measure --against` does with six points, with its default budget: twelve pairs of worker processes, thirty rounds in each, both
sides in turn, and up to sixty pairs for the points whose first pairs differ. The candidate's workers do a planted share of more work
(planted_worker.py). Sets are appended to a file as they end, so the experiment is made in slices, whatever else the machine does; its load is
kept beside. Printed is, by point and by what was planted, how often it was called; each point is judged by itself, which finds more and calls
more than the adjustment for six at once does.

The curve beside it takes the sets without a change and makes the candidate's figures longer by other shares: what would have been found. At the
shares that were planted as work, it can be compared with that. `--join N` takes the pairs of processes of N sets that follow each other and
have the same planted share for one comparison: how recordings with fewer pairs are judged. `--draw N` makes N comparisons of pairs that are
drawn at random, with replacement, from all sets of the same share, in the two stages of the default budget: they share pairs, so they are not N independent
trials, and pairs of different hours are in one comparison. Exit code 1 where more than 2 % of all comparisons
without a change are called.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import os
import random
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mansard.history.against import Budget, compared, measure_in_turn
from mansard.history.compare import ComparisonVerdict, Limits, Result, compare_measurements
from mansard.history.records import Measurement
from mansard.history.sides import Version
from mansard.history.signed_rank import differences_needed
from mansard.history.statistics import pair_centres
from mansard.measure.config.plan import plan_from_command_line
from mansard.measure.machine import choose_cpus
from mansard.measure.points.result import Point

CURVE = (0.0, 0.01, 0.02, 0.03, 0.05, 0.07, 0.10)
WORKER = Path(__file__).with_name("planted_worker.py")
_SWEEP = {"impl": "numpy", "dtype": "f32", "threads": "1"}
_GEMM = {"impl": "numpy", "in_dtype": "f32", "out_dtype": "f32"}
#: Small calls, products, passes through the caches, and copies through memory.
POINTS: dict[str, tuple[str, dict[str, str]]] = {
    "product of 16": ("gemm_generalized", {**_GEMM, "m": "16", "n": "16", "k": "16"}),
    "product of 64": ("gemm_generalized", {**_GEMM, "m": "64", "n": "64", "k": "64"}),
    "copy in first cache": ("memory_sweep", {**_SWEEP, "op_type": "copy", "working_set_bytes": "32768"}),
    "read in second cache": ("memory_sweep", {**_SWEEP, "op_type": "read", "working_set_bytes": "524288"}),
    "copy of 8 MiB": ("single_device_hbm_copy", {**_SWEEP, "num_elements": str(2**21)}),
    "copy of 64 MiB": ("single_device_hbm_copy", {**_SWEEP, "num_elements": str(2**24)}),
}  # fmt: skip


def points() -> list[Point]:
    """Return the points of a set, in the order of `POINTS`."""
    return [p for name, params in POINTS.values() for p in plan_from_command_line(name, params).points]


def version(share: float) -> Version:
    """Return a side whose workers do that share of more work."""
    return Version(name=f"{share:.0%} more work", command=(sys.executable, str(WORKER), repr(share)))


def one_set(share: float, seed: int) -> dict[str, Any]:
    """Return what one comparison of all points measured."""
    began, load = time.time(), os.getloadavg()[0]
    versions = version(0.0), version(share)
    found = measure_in_turn(points(), versions, cpus=choose_cpus(1), budget=Budget(), seed=seed)
    compared(
        found, versions, Limits(interleaved=True, seed=seed)
    )  # what the command does with them; judged again by `score`
    short = [[[[float(f"{x:.5g}") for x in g] for g in side] for side in p.groups] for p in found]
    return {
        "planted": share, "time": round(began, 1), "seconds": round(time.time() - began, 1), "load": [round(load, 1), round(os.getloadavg()[0], 1)],
        "failures": [p.failures for p in found if p.failed or p.waived], "points": dict(zip(POINTS, short, strict=True)),
    }  # fmt: skip


def judged(groups: Sequence[Sequence[Sequence[float]]], longer: float, seed: int, pairs: int | None = None) -> Result:
    """Return the verdict of one point, the candidate's figures made longer by a share."""
    sides = [
        Measurement(benchmark="point", metric="time_s", groups=tuple(tuple(x * scale for x in g) for g in side[:pairs]))
        for side, scale in zip(groups, (1.0, 1.0 + longer), strict=True)
    ]
    # The floor of 1 us is for whole calls; operations of these points take less, thousands of them make a sample.
    return compare_measurements([sides[0]], [sides[1]], Limits(interleaved=True, seed=seed, draws=4000, floor_s=0.0))


def cell(results: Sequence[tuple[Result, int]]) -> dict[str, Any]:
    """Return how often each verdict was given, and the medians of what was stated and of the pairs of processes."""
    counts = {v.value: sum(r.verdict is v for r, _ in results) for v in ComparisonVerdict}
    reach = [r.smallest_ratio for r, _ in results if r.smallest_ratio is not None]
    return {
        "comparisons": len(results), **counts, "smallest_ratio": statistics.median(reach) if reach else None,
        "pairs": statistics.median(n for _, n in results) if results else 0,
    }  # fmt: skip


def score(sets: Sequence[dict[str, Any]], pairs: int | None) -> dict[str, Any]:
    """Return counts by what was planted and point, and the curve."""

    def cells(mine: Sequence[dict[str, Any]], longer: float) -> dict[str, Any]:
        by = {
            n: [(judged(s["points"][n], longer, i, pairs), len(s["points"][n][0][:pairs])) for i, s in enumerate(mine) if s["points"][n][0]]
            for n in POINTS
        }  # fmt: skip
        return {n: cell(r) for n, r in by.items()} | {"all": cell([x for r in by.values() for x in r])}

    shares = sorted({s["planted"] for s in sets})
    found = {f"{share:.0%} more work": cells([s for s in sets if s["planted"] == share], 0.0) for share in shares}
    still = [s for s in sets if s["planted"] == 0.0]
    return found | {f"{share:.0%} longer": cells(still, share) for share in CURVE}


def joined(sets: Sequence[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """Return sets of so many that follow each other, by what was planted; what is left over at the end makes none."""
    found = []
    for share in sorted({s["planted"] for s in sets}):
        mine = sorted((s for s in sets if s["planted"] == share), key=lambda s: s["time"])
        for i in range(0, len(mine) - count + 1, count):
            part = mine[i : i + count]
            points = {n: [[g for s in part for g in s["points"][n][side]] for side in (0, 1)] for n in POINTS}
            found.append({**part[0], "points": points, "seconds": sum(s["seconds"] for s in part)})
    return found


def drawn(sets: Sequence[dict[str, Any]], count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Return so many comparisons of each planted share whose pairs of processes are drawn from all of its sets, as the default budget would.

    Without planted work either side may be called the baseline, which is drawn too.
    """
    budget, chance, found = Budget(), random.Random(seed), []
    for share in sorted({s["planted"] for s in sets}):
        mine = [s for s in sets if s["planted"] == share]
        pool = {
            n: [(a[: budget.rounds], b[: budget.rounds]) for s in mine for a, b in zip(*s["points"][n], strict=True)]
            for n in POINTS
        }
        for _ in range(count):
            points = {}
            for name, pairs in pool.items():
                chosen = chance.choices(pairs, k=budget.most_pairs)
                chosen = [p[::-1] if not share and chance.random() < 0.5 else p for p in chosen]
                first = pair_centres(*zip(*chosen[: budget.pairs], strict=True))
                number = differences_needed(first, math.log1p(budget.half_width_ratio), budget.most_pairs)
                points[name] = [list(side) for side in zip(*chosen[:number], strict=True)]
            found.append({**mine[0], "points": points})
    return found


def upper(called: int, count: int) -> float:
    """Return the one-sided 95 % upper limit of a share (Clopper and Pearson 1934); none of 300: 1 - 0.05 ** (1 / 300) = 1 %."""
    low, high = called / count, 1.0
    for _ in range(60):
        p = (low + high) / 2.0
        below = sum(math.comb(count, k) * p**k * (1.0 - p) ** (count - k) for k in range(called + 1))
        low, high = (p, high) if below > 0.05 else (low, p)
    return high


def kept(path: Path) -> list[dict[str, Any]]:
    """Return the sets of a file."""
    data = path.read_bytes()
    text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=("measure", "score"))
    parser.add_argument("kept", type=Path, nargs="+")
    parser.add_argument(
        "--planted", type=float, nargs="+", default=[0.0], help="shares of more work, one set of each after the other"
    )
    parser.add_argument("--sets", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no set after so long")
    parser.add_argument("--pairs", type=int, help="score as if so many pairs of processes had been measured")
    parser.add_argument("--join", type=int, default=1, help="score so many sets that follow each other as one")
    parser.add_argument("--draw", type=int, default=0, help="score so many comparisons of pairs drawn from all sets")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    if options.mode == "measure":
        began = time.monotonic()
        for i in range(options.sets):
            for share in options.planted:
                if time.monotonic() - began > options.seconds:
                    return 0
                taken = one_set(share, seed=round(time.time()) + i)
                with options.kept[0].open("a", encoding="utf-8") as stream:
                    stream.write(json.dumps(taken, separators=(",", ":")) + "\n")
        return 0
    sets = joined([s for path in options.kept for s in kept(path)], options.join)
    sets = drawn(sets, options.draw) if options.draw else sets
    loads = [x for s in sets for x in s["load"]]
    print(
        f"{len(sets)} sets of {len(POINTS)} points, {statistics.median(s['seconds'] for s in sets):.0f} s each, load {min(loads)} to {max(loads)}"
    )
    results = score(sets, options.pairs)
    for kind, by in results.items():
        print(kind)
        for name, c in by.items():
            n = c["comparisons"]
            if not n:
                continue
            shares = "  ".join(f"{v} {c[v] / n:6.1%}" for v in ("slower", "faster", "same", "inconclusive"))
            print(f"  {name:<22} {n:4d}: {shares}  smallest change {c['smallest_ratio']:.1%}  pairs {c['pairs']:g}")
    still = results.get("0% more work", {}).get("all")
    if still and still["comparisons"]:
        called, count = still["slower"] + still["faster"], still["comparisons"]
        print(f"without a change {called} of {count} called: at most {upper(called, count):.1%} (95 %, one-sided)")
    if options.output:
        options.output.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 0 if still is None or still["slower"] + still["faster"] <= 0.02 * still["comparisons"] else 1


if __name__ == "__main__":
    sys.exit(main())
