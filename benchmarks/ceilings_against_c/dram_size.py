"""How large must the arrays of a DRAM figure be? The same sweeps over several working sets, C and ours, interleaved.

    python benchmarks/ceilings_against_c/dram_size.py [--rounds 20] [--sizes 2,4,6,12,24] [--output FILE.json]

Every round has new buffers on both sides and goes through all (size, sweep, side) in random order, so that a change of the
machine's memory regime falls on all of them alike. Sizes are working sets of all threads together, in last-level caches as the
system states them. If the ratio to the largest size stays above 1 on both sides alike, part of the smaller one is found in
the cache; if one side alone differs, it is a kernel.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from pathlib import Path

import numpy as np
from run import SAMPLES, Yardstick, compiled

from mansard.core.stats import median_interval
from mansard.measure import kernels, machine
from mansard.measure.load import LoadWindow
from mansard.measure.memory import ALIGN_BYTES, Arena, Probe
from mansard.measure.team import Team

SWEEPS = (("read", "regular"), ("triad", "regular"), ("copy", "streaming"), ("triad", "streaming"))


def one_round(number: int, sizes: dict[float, int], team: Team, binary: Path, page: str) -> dict[tuple, float]:
    """Return the best rate of each (size, mix, store, side) with buffers of this round [B/s]."""
    count = len(team)
    room = max(sizes.values()) // count // ALIGN_BYTES * ALIGN_BYTES
    arena, yardstick = Arena(team, page, room), Yardstick(binary)
    jobs = [(times, mix, store, side) for times in sizes for mix, store in SWEEPS for side in ("ours", "c")]
    random.Random(number).shuffle(jobs)
    found = {}
    for times, mix, store, side in jobs:
        each = sizes[times] // count // ALIGN_BYTES * ALIGN_BYTES
        if side == "ours":
            probes = [
                Probe(level="dram", mix=mix, page=page, store=store, scope="node", working_set_bytes=each, shape=shape)
                for shape in (kernels.SHAPES[mix] if store == "regular" else kernels.SHAPES[mix][:1])
            ]
            rate = max(float(arena.run(p, SAMPLES, place=number).max()) for p in probes)
        else:
            variants = ("vector", "plain") if store == "regular" else ("vector",)
            ask = f"{mix} {store} {page} {count} {each} 1 {SAMPLES} {room} {number}"
            rate = max(yardstick.ask(f"mem {variant} {ask}") for variant in variants)
        found[times, mix, store, side] = rate
    yardstick.close()
    return found


def rows_of(rounds: list[dict[tuple, float]]) -> list[dict]:
    """Return every figure with its ratio to the largest size of the same round, sweep and side."""
    rows = []
    largest = max(key[0] for key in rounds[0])
    for key in sorted(rounds[0], key=lambda k: (k[1], k[2], k[3], k[0])):
        rates = np.array([r[key] for r in rounds])
        against = rates / np.array([r[largest, *key[1:]] for r in rounds])
        middle = median_interval(against)
        rows.append({
            "caches": key[0], "mix": key[1], "store": key[2], "side": key[3], "best": float(rates.max()),
            "median": float(np.median(rates)), "over_largest": middle.median, "low": middle.low, "high": middle.high,
        })  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--sizes", default="2,4,6,12,24")
    parser.add_argument("--page", default="huge", choices=("huge", "4k"))
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    cpus = machine.choose_cpus()
    caches = machine.read_caches(cpus)
    last = max(c.level for c in caches)
    cache = sum(c.size_bytes for c in caches if c.level == last)
    sizes = {float(x): int(float(x) * cache) for x in options.sizes.split(",")}
    rounds = []
    with LoadWindow() as load, tempfile.TemporaryDirectory() as folder, Team(cpus) as team:
        binary = compiled(folder)
        for number in range(options.rounds + 1):
            found = one_round(number, sizes, team, binary, options.page)
            rounds += [found] if number else []  # the first round warms up
            print(f"round {number} of {options.rounds}", file=sys.stderr)
    rows = rows_of(rounds)
    print(f"{'sweep':18s} {'side':5s} {'caches':>6s} {'best':>7s} {'median':>7s}   ratio to the largest [95 %]")
    for r in rows:
        print(
            f"{r['mix'] + ' ' + r['store']:18s} {r['side']:5s} {r['caches']:6.3g} {r['best'] / 1e9:7.1f} {r['median'] / 1e9:7.1f}"
            f"   {r['over_largest']:.3f} [{r['low']:.3f}, {r['high']:.3f}]"
        )
    print(f"foreign load {load.foreign_ratio:.1%}")
    if options.output:
        body = {"cache_bytes": cache, "foreign_load_ratio": load.foreign_ratio, "rows": rows}
        options.output.write_text(json.dumps(body, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
