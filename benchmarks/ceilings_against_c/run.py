"""Mansard's ceilings against C, torch and JAX on this machine, interleaved in random order, paired and repeated.

    python benchmarks/ceilings_against_c/run.py [--rounds 7] [--only vector,memory,matrix] [--match REGEX] [--output FILE.json]

Needs gcc, numba, torch, jax. A ratio above 0.97 means: within 3 % of the best of them, or better.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from mansard.core.stats import median_interval
from mansard.measure import kernels, machine
from mansard.measure.frameworks import Request, ask
from mansard.measure.load import LoadWindow
from mansard.measure.memory import CACHE_SAMPLE_BYTES, Arena, Probe, cache_working_sets, dram_bytes
from mansard.measure.team import Team
from mansard.measure.vector import SAMPLE_FLOP, fma_flop, fma_rates

HERE = Path(__file__).resolve().parent
TARGET = 0.97
SAMPLES = 4
PLACES = 3  # of the arrays in their buffers, per round and side: the same 16 MiB run 20 % apart in two places of one L3


@dataclass
class Item:
    """One figure: the best sample of each round, of ours and of the best of theirs."""

    name: str
    unit: str
    places: int = 1
    ours: list[float] = field(default_factory=list)
    theirs: list[float] = field(default_factory=list)

    def row(self) -> dict:
        ratios = np.array(self.ours) / np.array(self.theirs)
        middle = median_interval(ratios)
        return {
            "name": self.name, "unit": self.unit, "ours_best": max(self.ours), "theirs_best": max(self.theirs),
            "ratio_of_best": max(self.ours) / max(self.theirs), "ratio_median": middle.median,
            "ratio_low": middle.low, "ratio_high": middle.high, "rounds": len(self.ours),
        }  # fmt: skip


def compiled(folder: str) -> Path:
    """Return the C program, built for this machine."""
    binary = Path(folder) / "stream"
    flags = ["-O3", "-march=native", "-fopenmp-simd", "-pthread"]
    subprocess.run(["gcc", *flags, str(HERE / "stream.c"), "-o", str(binary)], check=True)
    return binary


class Yardstick:
    """The C program, kept running and asked one line at a time."""

    def __init__(self, binary: Path) -> None:
        self.child = subprocess.Popen([str(binary)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, line: str) -> float:
        self.child.stdin.write(line + "\n")
        self.child.stdin.flush()
        rates = [float(x) for x in self.child.stdout.readline().split()]
        if not rates:
            raise RuntimeError(f"the C program did not answer {line!r}")
        return max(rates)

    def close(self) -> None:
        self.child.stdin.close()
        self.child.wait(timeout=10)


def memory_items(teams, caches, yardstick):
    """Return (item, ours, theirs) for every level, mix, page, store and thread count."""
    size = dram_bytes(caches, machine.meminfo("MemAvailable"))
    jobs = []
    for count, team in teams.items():
        each = size // count // 1024 * 1024
        arenas = {page: Arena(team, page, each) for page in ("4k", "huge")}
        wanted = []
        for mix in kernels.MIXES:
            for level in sorted({c.level for c in caches}):
                sets = cache_working_sets(caches, team.cpus, level)
                if sets:
                    wanted.append((f"l{level}", mix, "huge", "regular", sets[len(sets) // 2]))
            for page in ("4k", "huge"):
                wanted.append(("dram", mix, page, "regular", each))
                if mix in kernels.STREAMING_MIXES:
                    wanted.append(("dram", mix, page, "streaming", each))
        for level, mix, page, store, bytes_ in wanted:
            repeats = 1
            if level != "dram":
                repeats = max(
                    1, round(CACHE_SAMPLE_BYTES / kernels.counted_bytes(mix, bytes_ / kernels.arrays_of(mix)))
                )
            one = Probe(
                level=level, mix=mix, page=page, store=store, scope="node", working_set_bytes=bytes_, repeats=repeats
            )
            # What `measure` tries, no more: every shape for ordinary stores, the first one for streaming stores.
            shapes = kernels.SHAPES[mix] if store == "regular" else kernels.SHAPES[mix][:1]
            variants = ("vector",) if store == "streaming" else ("vector", "plain")
            lines = [f"mem {v} {mix} {store} {page} {count} {bytes_} {repeats} {SAMPLES} {each}" for v in variants]
            name = f"{count}T {level} {mix} {page} {store}"
            jobs.append(
                (
                    Item(name, "B/s", places=1 if level == "dram" else PLACES),
                    [
                        lambda place, a=arenas[page], p=probe: float(a.run(p, SAMPLES, place=place).max())
                        for probe in (replace(one, shape=shape) for shape in shapes)
                    ],
                    [lambda place, text=line: yardstick.ask(f"{text} {place}") for line in lines],
                )
            )
    return jobs


def vector_items(teams, yardstick):
    """Return the FMA peak per type and thread count."""
    jobs = []
    for count, team in teams.items():
        for dtype in ("f32", "f64"):
            shapes = kernels.vector_shapes(dtype)
            steps = int(SAMPLE_FLOP / fma_flop(512 // kernels.ELEMENT_BITS[dtype], 12, 1))
            jobs.append(
                (
                    Item(f"{count}T {dtype} vector", "FLOP/s"),
                    [
                        lambda _place, t=team, d=dtype, s=shape: float(fma_rates(t, d, *s, SAMPLES).max())
                        for shape in shapes
                    ],
                    [lambda _place, c=count, d=dtype, n=steps: yardstick.ask(f"fma {d} {c} {n} {SAMPLES}")],
                )
            )
    return jobs


def interleave(fresh_jobs, rounds):
    """Run every job `rounds` times, jobs and sides in random order; the best of each side counts per round.

    Every round starts with new buffers on both sides, and the round is also the place of the arrays in them: which lines
    collide in a physically indexed cache, and how far 4 KiB pages lie apart, is a matter of pages, not of kernels.
    """
    order = random.Random(3)
    items = {}
    for number in range(rounds + 1):  # the first round warms up and is not kept
        with fresh_jobs() as jobs:
            order.shuffle(jobs)
            for named, ours, theirs in jobs:
                calls = [(0, f) for f in ours] + [(1, f) for f in theirs]
                order.shuffle(calls)
                best = [0.0, 0.0]
                for side, call in calls:
                    best[side] = max(best[side], *(call(named.places * number + k) for k in range(named.places)))
                if number:
                    item = items.setdefault(named.name, named)
                    item.ours.append(best[0])
                    item.theirs.append(best[1])
        print(f"round {number} of {rounds}", file=sys.stderr)
    return list(items.values())


def matrix_items(cpus, rounds):
    """Return the product rates: our worker against the plain loop, best backend on each side."""
    items = {}
    order = random.Random(5)
    for count, chosen in {1: cpus[:1], len(cpus): cpus}.items():
        for _ in range(rounds):
            best = [{}, {}]
            calls = [(side, backend) for side in (0, 1) for backend in ("torch", "jax")]
            order.shuffle(calls)
            for side, backend in calls:
                for dtype, rate in (_ours if side == 0 else _reference)(backend, tuple(chosen)).items():
                    best[side][dtype] = max(best[side].get(dtype, 0.0), rate)
            for dtype in ("f32", "f64", "bf16"):
                item = items.setdefault((count, dtype), Item(f"{count}T {dtype} matrix", "FLOP/s"))
                item.ours.append(best[0][dtype])
                item.theirs.append(best[1][dtype])
    return list(items.values())


def _ours(backend, cpus):
    answer = ask(Request(backend=backend, scope="node", cpus=cpus, groups=("matrix",)))
    if "failed" in answer:
        raise RuntimeError(answer["failed"])
    rates = {}
    for point in answer["points"]:
        rates[point["dtype"]] = max(rates.get(point["dtype"], 0.0), max(map(max, point["windows"])))
    return rates


def _reference(backend, cpus):
    count = str(len(cpus))
    env = {**os.environ, "OMP_NUM_THREADS": count, "MKL_NUM_THREADS": count, "JAX_PLATFORMS": "cpu"}
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, set(cpus))
    try:
        done = subprocess.run(
            [sys.executable, str(HERE / "gemm_reference.py"), backend, count], env=env, capture_output=True, check=True
        )
    finally:
        os.sched_setaffinity(0, before)
    return json.loads(done.stdout)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default="vector,memory,matrix")
    parser.add_argument("--match", default="", help="regular expression on the items of vector and memory")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    only = options.only.split(",")
    cpus = machine.choose_cpus()
    caches = machine.read_caches(cpus)
    items = []
    with LoadWindow() as load:
        if "vector" in only or "memory" in only:
            teams = {count: Team(cpus[:count]) for count in sorted({1, len(cpus)})}
            with tempfile.TemporaryDirectory() as folder:
                binary = compiled(folder)

                @contextmanager
                def fresh_jobs():
                    yardstick = Yardstick(binary)
                    jobs = vector_items(teams, yardstick) if "vector" in only else []
                    jobs += memory_items(teams, caches, yardstick) if "memory" in only else []
                    yield [job for job in jobs if re.search(options.match, job[0].name)]
                    yardstick.close()

                items += interleave(fresh_jobs, options.rounds)
            for team in teams.values():
                team.__exit__(None, None, None)
        if "matrix" in only:
            items += matrix_items(cpus, max(2, options.rounds // 3))
    rows = sorted((item.row() for item in items), key=lambda r: r["name"])
    print(f"{'item':34s} {'ours':>9s} {'best of':>9s} {'best/best':>9s} {'median ratio [95 %]':>24s}")
    for r in rows:
        mark = "" if r["ratio_high"] >= TARGET and max(r["ratio_median"], r["ratio_of_best"]) >= TARGET else "  BELOW"
        interval = f"{r['ratio_median']:.3f} [{r['ratio_low']:.3f}, {r['ratio_high']:.3f}]"
        print(
            f"{r['name']:34s} {r['ours_best'] / 1e9:9.1f} {r['theirs_best'] / 1e9:9.1f} "
            f"{r['ratio_of_best']:9.3f} {interval:>24s}{mark}"
        )
    below = [r["name"] for r in rows if max(r["ratio_median"], r["ratio_of_best"]) < TARGET]
    print(f"{len(rows) - len(below)} of {len(rows)} within 3 % or better; foreign load {load.foreign_ratio:.1%}")
    if options.output:
        body = {"machine": machine.describe(cpus), "foreign_load_ratio": load.foreign_ratio, "items": rows}
        options.output.write_text(json.dumps(body, indent=2) + "\n", encoding="utf-8")
    return 1 if below else 0


if __name__ == "__main__":
    sys.exit(main())
