"""A/A experiment: the same points measured again and again; how often does an interval hold the truth?

    python benchmarks/measure_a_a.py --runs 200 --seconds 290
    python benchmarks/measure_a_a.py --effort quick --points small copy --keep runs.jsonl   # again later: runs are joined
    python benchmarks/measure_a_a.py --turns 11 --keep turns.jsonl                          # runs that are spread over a time

Each run is what `mansard measure` does to one point: several processes, several windows in each, the interval made of
the spread between the processes. The truth is the median of the samples of all runs. An honest 95 % interval holds it in
about 95 of 100 runs; for comparison the same is said of the interval that one process alone gives.

A machine may be in one of two regimes for minutes, and the median over both is the speed of neither. Whether it was is
decided from the medians of the runs alone, before any interval is looked at: two normal groups must describe them much
better than one (BIC difference above 10), lie 5 % apart, and each hold a tenth of the runs. Then intervals are matched by
regime: a run in one regime has one interval; a run that saw both has two, as `mansard measure` reports them. Each belongs to
the regime whose median is nearer on a logarithmic scale, and its truth is the median of all samples that were matched to
that regime; an interval farther than a quarter from either is of neither, and counted apart. Runs in which others used the
machine (8 % and more, which `mansard measure` says beside the point) are counted apart too.

A machine may also drift without two regimes: a shared memory controller gets slower and faster over minutes. `with_run_ratio`
says how often the interval would hold, and how wide it would be, if more were known between runs than what is built in.

With `--turns P` every run is what `mansard measure --spread` does, and all runs are spread over the whole experiment:
processes are taken one after the other; their sequence is cut into P turns, and each turn is dealt at random to the runs, one
process for each. So all runs see the same minutes and none shares a sample with another. The truth is the median of the
medians of all processes (that of all samples stands beside it). `dealt_again` is the same over many other deals of the same
processes, whose runs do share samples: it says how far the coverage of a few runs is chance. No run is set apart as disturbed, and no regimes are told
apart. The same is said of runs of fewer and of more processes.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from pathlib import Path

import numpy as np

from mansard.measure.config.plan import plan_from_command_line
from mansard.measure.machine import choose_cpus
from mansard.measure.points.conditions import joined
from mansard.measure.points.effort import EFFORTS, spread
from mansard.measure.points.interval import Interval, interval_of, interval_over
from mansard.measure.points.regimes import intervals_by_regime, two_regimes
from mansard.measure.points.registry import benchmark_named
from mansard.measure.points.result import Result, State
from mansard.measure.points.runner import Job, Runner
from mansard.measure.points.setting import Setting
from mansard.measure.points.taken import Taken

POINTS = {
    "small": ("gemm_simple", {"m": "256", "k": "256", "n": "256", "in_dtype": "f32", "out_dtype": "f32", "impl": "numpy"}),
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


def matched(windows, middles) -> list[tuple[int, object, list[float]]]:
    """Return the intervals of one run as (regime, interval, its samples): one, or two where the run saw both regimes.

    Args:
        windows: Samples of each process, as windows [s].
        middles: Median of each regime, of all runs [s].
    """
    border = (middles[0] * middles[-1]) ** 0.5
    flat = [[s for w in group for s in w] for group in windows]
    both = intervals_by_regime(windows) if len(middles) > 1 else ()
    if not both:
        whole = interval_of(flat)
        regime = int(whole.median > border) if len(middles) > 1 else 0
        return [(regime, whole, [s for g in flat for s in g])]
    own = (both[0].median_s * both[1].median_s) ** 0.5
    found = []
    for slow, part in enumerate(both):
        interval = Interval(median=part.median_s, low=part.low_s, high=part.high_s, holds=part.interval)
        found.append(
            (int(part.median_s > border), interval, [s for g in flat for s in g if bool(s > own) == bool(slow)])
        )
    return found


RUN_RATIOS = (0.0, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15)
NEAR = 1.25


def with_run_ratio(groups, truth: float) -> list[dict]:
    """Return coverage of one truth and the median half width for several ratios known between runs."""
    rows = []
    for ratio in RUN_RATIOS:
        found = [interval_of(run, run_ratio=ratio) for run in groups]
        rows.append({"run_ratio": ratio, "coverage": covered(found, truth),
                     "half_width_median": float(np.median([i.half_ratio for i in found]))})  # fmt: skip
    return rows


def by_regime(runs) -> list[dict]:
    """Return coverage of each regime's own median by the intervals that belong to it, and how wide they are."""
    medians = [float(np.median([s for g in run for w in g for s in w])) for run in runs]
    _, middles = regime_of_each(medians)
    parts = [(number, *part) for number, run in enumerate(runs) for part in matched(run, middles)]
    near = [max(p[2].median / middles[p[1]], middles[p[1]] / p[2].median) <= NEAR for p in parts]
    rows = [{"regime": "neither", "intervals": len(near) - sum(near)}]
    parts = [p for p, is_near in zip(parts, near, strict=True) if is_near]
    for regime, middle in enumerate(middles):
        mine = [(number, i, samples) for number, r, i, samples in parts if r == regime]
        if not mine:
            continue
        truth = float(np.median(np.concatenate([samples for _, _, samples in mine])))
        own = [i for _, i, _ in mine]
        widths = [i.half_ratio for i in own]
        rows.append({
            "regime": regime, "runs": len({number for number, _, _ in mine}), "intervals": len(own), "middle_s": middle,
            "pooled_median_s": truth, "coverage": covered(own, truth),
            "half_width": {f"p{q}": float(np.percentile(widths, q)) for q in (5, 25, 50, 75, 95)},
            "share_within_5_percent": sum(w <= 0.05 for w in widths) / len(widths),
            "medians_cv": float(np.std([i.median for i in own]) / truth),
        })  # fmt: skip
    return rows


def record_of(taken: Taken) -> dict:
    """Return what the summary needs of one run of a point."""
    seen = joined(taken.seen)
    return {
        "point": taken.point.name, "windows": taken.groups, "foreign": seen.foreign_ratio, "steal": seen.steal_ratio,
        "clock_hz": seen.clock_hz, "at": taken.started,
    }  # fmt: skip


def summary(records: list[dict]) -> dict:
    """Return coverage and width of one point over its runs."""
    everything, records = records, [r for r in records if (r["foreign"] or 0.0) <= 0.08 and (r["steal"] or 0.0) <= 0.02]
    if not records:
        return {"point": everything[0]["point"], "runs": 0, "disturbed_runs": len(everything)}
    runs = [r["windows"] for r in records]
    groups = [[[s for w in g for s in w] for g in run] for run in runs]
    truth = float(np.median([s for run in groups for g in run for s in g]))
    whole = [interval_of(run) for run in groups]
    alone = [interval_of([run[0]]) for run in groups]
    return {
        "point": records[0]["point"], "runs": len(records), "disturbed_runs": len(everything) - len(records), "from": records[0]["at"], "to": records[-1]["at"],
        "pooled_median_s": truth, "coverage_of_all_together": covered(whole, truth),
        "coverage_one_process": covered(alone, truth), "by_regime": by_regime(runs),
        "run_medians_cv": float(np.std([i.median for i in whole]) / truth), "with_run_ratio": with_run_ratio(groups, truth),
        "runs_that_saw_two_regimes": sum(bool(intervals_by_regime(run)) for run in runs),
        "samples_per_run": float(np.median([sum(map(len, run)) for run in groups])),
        "processes_per_run": float(np.median([len(run) for run in groups])),
        "foreign_load": [float(np.percentile([r["foreign"] or 0.0 for r in records], q)) for q in (50, 95)],
        "steal_median": float(np.median([r["steal"] or 0.0 for r in records])),
        "clock_hz": [float(np.percentile([r["clock_hz"] or 0.0 for r in records], q)) for q in (5, 50, 95)],
    }  # fmt: skip


def one_process(runner: Runner, job: Job) -> list[Taken]:
    """Measure the points of a job in one process and return what was taken; the job stays as it was."""
    states = [Taken(point=s.point, benchmark=s.benchmark, work=s.work, where=s.where) for s in job.batch]
    runner._turn(Job(job.backend, job.flags, states), 0)
    failed = [s for s in states if s.failure]
    if failed:
        sys.exit(f"{failed[0].point.name}: {failed[0].failure}")
    return states


def take_processes(points, seconds: float, setting, keep) -> None:
    """Take one process after the other until the time is over."""
    begin = time.monotonic()
    runner = Runner(setting(lambda taken: Result(point=taken.point, state=State.DONE)))
    (job,) = runner._group("numpy", {}, [Taken(point=p, benchmark=benchmark_named(p.benchmark)) for p in points])
    while time.monotonic() - begin < seconds:
        for state in one_process(runner, job):
            keep(record_of(state))


DEALS = 20


def dealt(processes: list[list[float]], turns: int, most: int, seed: int = 0) -> list[list[list[float]]]:
    """Return the runs: processes in the order of time are cut into turns, each turn is dealt to the runs, one for each.

    >>> sorted(sorted(run) for run in dealt([[1.0], [2.0], [3.0], [4.0], [5.0]], 2, 200))
    [[[1.0], [3.0]], [[2.0], [4.0]]]
    >>> [sorted(run) for run in dealt([[1.0], [2.0], [3.0], [4.0]], 2, 1)]
    [[[1.0], [3.0]]]
    """
    runs = len(processes) // turns
    order = random.Random(seed)
    cut = [[*processes[turn * runs : (turn + 1) * runs]] for turn in range(turns)]
    if runs > most:  # evenly over each turn
        cut = [[part[i * runs // most] for i in range(most)] for part in cut]
    for part in cut:
        order.shuffle(part)
    return [list(run) for run in zip(*cut, strict=True)]


def of_turns(processes: list[list[float]], turns: int, most: int) -> dict:
    """Return coverage and width of runs of so many processes."""
    middle, pooled = float(np.median([np.median(p) for p in processes])), float(np.median(np.concatenate(processes)))
    found = [interval_over(run, 1.0) for run in dealt(processes, turns, most)]
    again = [interval_over(run, 1.0) for seed in range(1, DEALS + 1) for run in dealt(processes, turns, most, seed)]
    widths = [i.half_ratio for i in found]
    return {
        "turns": turns, "runs": len(found), "middle_s": middle, "coverage": covered(found, middle),
        "pooled_median_s": pooled, "coverage_of_pooled": covered(found, pooled),
        "dealt_again": {"runs": len(again), "coverage": covered(again, middle), "coverage_of_pooled": covered(again, pooled)},
        "half_width": {f"p{q}": float(np.percentile(widths, q)) for q in (5, 50, 95)},
        "share_within_5_percent": sum(w <= 0.05 for w in widths) / len(widths),
        "run_medians_cv": float(np.std([i.median for i in found]) / middle),
    }  # fmt: skip


def summary_of_turns(records: list[dict], turns: int, most: int) -> dict:
    """Return the summary of runs that were spread over the experiment, and of runs of fewer and more processes."""
    processes = [[s for g in r["windows"] for w in g for s in w] for r in records]
    sizes = sorted({turns, 5, 9, 11, 15, 21, 31, 45, 61} & set(range(5, len(processes) // 10)))
    return {
        "point": records[0]["point"], "from": records[0]["at"], "to": records[-1]["at"], "processes": len(processes),
        "samples_per_process": float(np.median([len(p) for p in processes])),
        "process_medians_cv": float(np.std(np.log([np.median(p) for p in processes]))),
        "foreign_load": [float(np.percentile([r["foreign"] or 0.0 for r in records], q)) for q in (50, 95)],
        "by_turns": [of_turns(processes, n, most) for n in sizes],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=290.0, help="no new run after this")
    parser.add_argument("--points", nargs="+", choices=POINTS, default=["gemm"])
    parser.add_argument("--effort", choices=EFFORTS, default="standard")
    parser.add_argument("--keep", type=Path, help="add the runs to this file, and sum up all that it holds")
    parser.add_argument("--turns", type=int, help="spread every run over the whole experiment, in so many processes")
    given = parser.parse_args()
    points = [p for name in given.points for p in plan_from_command_line(*POINTS[name]).points]
    cpus = choose_cpus(None)
    everything: dict[str, list[dict]] = {}
    if given.keep is not None and given.keep.exists():
        for record in map(json.loads, given.keep.read_text(encoding="utf-8").splitlines()):
            everything.setdefault(record["point"], []).append(record)
    begin = time.monotonic()

    def keep(record: dict) -> None:
        everything.setdefault(record["point"], []).append(record)
        if given.keep is not None:
            with given.keep.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(record) + "\n")

    def setting(finish, seed=0):
        effort = EFFORTS[given.effort]
        if given.turns:  # SPREAD_EVERY_S for each, so that the number of processes is that of the turns
            effort = spread(effort, 10.0 * given.turns)
        return Setting(effort=effort, cpus=cpus, seed=seed, finish=finish, keep=lambda _result: None)

    if given.turns:
        take_processes(points, given.seconds, setting, keep)
    else:
        for number in range(max(map(len, everything.values()), default=0), given.runs):
            if time.monotonic() - begin > given.seconds:
                break
            for taken in one_run(points, lambda finish, seed=number: setting(finish, seed)):
                keep(record_of(taken))
    found = [
        summary_of_turns(records, given.turns, given.runs) if given.turns else summary(records)
        for records in everything.values()
    ]
    print(json.dumps({"effort": given.effort, "wall_s": time.monotonic() - begin, "points": found}, indent=1))


if __name__ == "__main__":
    main()
