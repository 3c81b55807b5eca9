"""How fast bounds are: a million (model, batch, context, machine) points, and one `mansard estimate` as a process.

    python benchmarks/estimate_speed/run.py

On two Zen 4 cores of a shared machine: 0.5 s of CPU for the million, 190 ms for one estimate.
Targets: 1e6 points in under 10 s on two cores, one estimate in under 300 ms of process time.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time

import numpy as np

from mansard.predict.grid import bound_points
from mansard.predict.machines import load_machine
from mansard.workload.kernel import Types
from mansard.workload.model.load import load_model
from mansard.workload.phases import Setting
from mansard.workload.storage import storage_of

MODELS = ("llama-3.1-8b", "qwen3-30b-a3b", "deepseek-v3", "gpt-oss-120b")
MACHINES = ("h100-sxm", "h200", "b200", "mi300x", "a100-sxm-80gb", "gb200", "h20", "l40s")
POINTS = 1_000_000


def million() -> None:
    """Bound a million random points, a share of them per model."""
    names = [m for m in MODELS if _shipped(m)]
    rng = np.random.default_rng(1)
    machines = [load_machine(name) for name in MACHINES]
    each = POINTS // len(names)
    begin, cpu = time.perf_counter(), time.process_time()
    total = 0
    for name in names:
        model = load_model(name)
        setting = Setting(
            model=model,
            storage=storage_of(model, dtype="bf16", weights="bf16"),
            types=Types(activation="bf16", cache="bf16"),
        )
        points = bound_points(
            setting,
            phase="decode",
            batch=rng.integers(1, 513, each),
            context=rng.integers(1, 131073, each),
            machines=machines,
            machine_index=rng.integers(0, len(machines), each),
        )
        total += len(points.time_s)
    wall, used = time.perf_counter() - begin, time.process_time() - cpu
    print(f"{total:,} points of {len(names)} models on {len(machines)} machines: {wall:.2f} s wall, {used:.2f} s CPU")


def _shipped(name: str) -> bool:
    from mansard.core.errors import MansardError

    try:
        load_model(name)
    except MansardError:
        return False
    return True


def one(runs: int = 5) -> None:
    """Run the verb as a process and report its CPU time."""
    command = [
        sys.executable,
        "-m",
        "mansard",
        "estimate",
        "llama-3.1-8b",
        "--on",
        "h100-sxm",
        "--context",
        "4096",
        "--json",
    ]
    walls, cpus = [], []
    for _ in range(runs):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        begin = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        walls.append(time.perf_counter() - begin)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpus.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    print(f"one estimate: {min(walls) * 1e3:.0f} ms wall, {min(cpus) * 1e3:.0f} ms process time, best of {runs}")


if __name__ == "__main__":
    million()
    one()
