"""A/A experiment: the same point measured again and again; how often does its interval hold the truth?

    python benchmarks/measure_a_a.py --runs 200 --seconds 290

Each run is what `mansard measure --suite standard` does to one point: several processes, several windows in each, the
interval made of the spread between the processes. The truth is the median of the samples of all runs. An honest 95 %
interval holds it in about 95 of 100 runs; for comparison the same is said of the interval that one process alone gives.

A machine may be in one of two regimes for minutes, and the median over both is the speed of neither. Whether it was is
decided from the medians of the runs alone, before any interval is looked at: two normal groups must describe them much
better than one (BIC difference above 10), lie 5 % apart, and each hold a tenth of the runs. Then a run belongs to the
regime whose median is nearer on a logarithmic scale, the truth of a run is the median of the samples of its regime, and
a run in which the machine changed its regime, by the same test inside the run, is counted apart.
Other load makes the machine another one from run to run: hold it off, and look at the foreign load in the result.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

import numpy as np

from mansard.measure.config.plan import plan_from_command_line
from mansard.measure.machine import choose_cpus
from mansard.measure.points.assemble import samples_of
from mansard.measure.points.conditions import joined
from mansard.measure.points.interval import interval_of
from mansard.measure.points.regimes import two_regimes
from mansard.measure.points.result import Result, State
from mansard.measure.points.runner import EFFORTS, Runner, Setting, Taken

POINTS = {
    "gemm": ("gemm_simple", {"m": "512", "k": "512", "n": "512", "in_dtype": "f32", "out_dtype": "f32", "impl": "numpy"}),
    "copy": ("hbm_bandwidth", {"size": "16777216", "dtype": "f32", "impl": "numpy"}),
}  # fmt: skip


def one_run(points, setting) -> list[Taken]:
    """Measure the points once and return what was taken."""
    kept: list[Taken] = []

    def finish(taken: Taken) -> Result:
        kept.append(taken)
        return Result(point=taken.point, state=State.DONE)

    failed = [r for r in Runner(setting(finish)).run(points) if r.state is not State.DONE]
    if failed:
        sys.exit(f"{failed[0].point.name}: {failed[0].reason}")
    return kept


def covered(intervals, truth: float) -> float:
    return sum(i.low <= truth <= i.high for i in intervals) / len(intervals)


LEAST_GAP = 0.05


def regime_of_each(medians) -> tuple[list[int], list[float]]:
    """Return to which regime each run belongs, 0 for the fastest, and the middle of each regime [s].

    >>> regime_of_each([1.0] * 6 + [1.3] * 6)[0]
    [0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1]
    >>> regime_of_each([1.0, 1.01] * 6)[0] == [0] * 12
    True
    """
    found = two_regimes([[m] for m in medians], least_gap=LEAST_GAP)
    if found is None:
        return [0] * len(medians), [float(np.median(medians))]
    border = (found.fast_s * found.slow_s) ** 0.5
    return [int(m > border) for m in medians], [found.fast_s, found.slow_s]


def by_regime(groups, intervals) -> list[dict]:
    """Return coverage of each regime's own median by the runs in it; runs that changed regime are counted apart."""
    regimes, middles = regime_of_each([float(np.median(np.concatenate(run))) for run in groups])
    changed = [len(middles) > 1 and two_regimes(run, least_gap=LEAST_GAP) is not None for run in groups]
    rows = []
    for regime, middle in enumerate(middles):
        mine = [i for i, r in enumerate(regimes) if r == regime and not changed[i]]
        if not mine:
            continue
        truth = float(np.median(np.concatenate([s for i in mine for s in groups[i]])))
        own = [intervals[i] for i in mine]
        rows.append({
            "regime": regime, "runs": len(mine), "middle_s": middle, "pooled_median_s": truth, "coverage": covered(own, truth),
            "half_width_median": float(np.median([i.half_ratio for i in own])),
            "runs_wider_than_5_percent": sum(i.half_ratio > 0.05 for i in own),
        })  # fmt: skip
    if any(changed):
        ends = [middles[0], middles[-1]]
        own = [intervals[i] for i, c in enumerate(changed) if c]
        rows.append({"regime": "changed inside the run", "runs": len(own),
                     "holds_both_middles": sum(all(i.low <= m <= i.high for m in ends) for i in own)})  # fmt: skip
    return rows


def summary(name: str, taken: list[Taken]) -> dict:
    """Return coverage and width of one point over its runs."""
    groups = [t.samples for t in taken]
    truth = float(np.median([s for run in groups for g in run for s in g]))
    whole = [interval_of(run) for run in groups]
    alone = [interval_of([run[0]]) for run in groups]
    widths = [i.half_ratio for i in whole]
    seen = [joined(t.seen) for t in taken]
    return {
        "point": taken[0].point.name, "name": name, "runs": len(taken),
        "pooled_median_s": truth, "coverage": covered(whole, truth), "coverage_one_process": covered(alone, truth),
        "by_regime": by_regime(groups, whole),
        "half_width_median": float(np.median(widths)), "half_width_p95": float(np.percentile(widths, 95)),
        "runs_wider_than_5_percent": sum(w > 0.05 for w in widths),
        "median_spread_cv": float(np.std([i.median for i in whole]) / truth),
        "samples_per_run": float(np.median([len(samples_of(t).seconds) for t in taken])),
        "processes_per_run": float(np.median([len(t.samples) for t in taken])),
        "foreign_load_median": float(np.median([c.foreign_ratio or 0.0 for c in seen])),
        "steal_median": float(np.median([c.steal_ratio or 0.0 for c in seen])),
        "process_medians_s": [[float(f"{np.median(g):.6g}") for g in run] for run in groups],
        "clock_hz": [float(np.percentile([c.clock_hz or 0.0 for c in seen], q)) for q in (5, 50, 95)],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=290.0, help="no new run after this")
    parser.add_argument("--points", nargs="+", choices=POINTS, default=["gemm"])
    parser.add_argument("--effort", choices=EFFORTS, default="standard")
    given = parser.parse_args()
    points = [p for name in given.points for p in plan_from_command_line(*POINTS[name]).points]
    cpus = choose_cpus(None)
    everything: dict[str, list[Taken]] = {}
    begin = time.monotonic()
    for number in range(given.runs):
        if time.monotonic() - begin > given.seconds:
            break

        def setting(finish, seed=number):
            return Setting(effort=EFFORTS[given.effort], cpus=cpus, seed=seed, finish=finish, keep=lambda _result: None)

        for taken in one_run(points, setting):
            everything.setdefault(taken.point.name, []).append(taken)
    found = [summary(name, taken) for name, taken in everything.items()]
    print(json.dumps({"effort": given.effort, "wall_s": time.monotonic() - begin, "points": found}))


if __name__ == "__main__":
    main()
