"""A brief second look at the ceilings that drift, around a run."""

from __future__ import annotations

import time

import numpy as np

from mansard.core.ceilings import Area, Ceiling, Ceilings
from mansard.measure import kernels
from mansard.measure.load import LoadWindow
from mansard.measure.machine import choose_cpus
from mansard.measure.memory import ALIGN_BYTES, Arena, Probe
from mansard.measure.team import Team
from mansard.measure.vector import fma_rates


def probe(ceilings: Ceilings, *, threads: int | None = None, seconds: float = 0.5) -> dict[str, float]:
    """Measure DRAM bandwidth and the FMA peak again, briefly, on the same threads.

    Memory bandwidth can sit in one of two regimes for minutes; a probe before and after a program says which.

    Args:
        ceilings: What was measured; the best DRAM mix, page and store, and the FMA shape are taken from it.
        threads: Threads of the team; None takes those of `ceilings`.
        seconds: Time for the samples, half for each resource [s]; mapping the memory comes on top.

    Returns: medians `dram_bytes_per_s` and `vector_f32_flop_per_s`, and `foreign_load_ratio`. A figure that cannot be
    taken again (no numba, or nothing to compare with) is left out.
    """
    found: dict[str, float] = {}
    cpus = choose_cpus(threads if threads is not None else int(ceilings.machine.get("threads", 0)) or None)
    with LoadWindow() as load:
        if kernels.available():
            with Team(cpus) as team:
                found.update(_vector(ceilings, team, seconds / 2))
                found.update(_dram(ceilings, team, seconds / 2))
    found["foreign_load_ratio"] = load.foreign_ratio
    return found


def reference(ceilings: Ceilings) -> dict[str, float]:
    """Return what `probe` compares with: the typical (median) figures of the same resources at full threads."""
    found = {}
    dram = _best_dram(ceilings)
    if dram is not None:
        found["dram_bytes_per_s"] = float(dram.conditions.get("median", dram.value))
    for c in ceilings.find(scope="node", area=Area.COMPUTE, dtype="f32", engine="vector"):
        found.setdefault("vector_f32_flop_per_s", float(c.conditions.get("median", c.value)))
    return found


def _best_dram(ceilings: Ceilings) -> Ceiling | None:
    hits = [
        c
        for c in ceilings.find(scope="node", area=Area.MEMORY, level="dram")
        if c.resource.mix in kernels.MIXES and c.resource.page and c.resource.store
    ]
    return max(hits, key=lambda c: c.value, default=None)


def _dram(ceilings: Ceilings, team: Team, seconds: float) -> dict[str, float]:
    best = _best_dram(ceilings)
    if best is None:
        return {}
    size = int(best.conditions["working_set_bytes"]) // len(team) // ALIGN_BYTES * ALIGN_BYTES
    resource = best.resource
    one = Probe(
        level="dram", mix=str(resource.mix), page=str(resource.page), store=str(resource.store), scope="node",
        working_set_bytes=size, shape=_shape(best),
    )  # fmt: skip
    arena = Arena(team, one.page, size)
    rates = [*arena.run(one, 2)]
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        rates.extend(arena.run(one, 3))
    return {"dram_bytes_per_s": float(np.median(rates))}


def _shape(ceiling: Ceiling) -> tuple[int, int] | None:
    shape = ceiling.conditions.get("kernel_shape")
    return (int(shape[0]), int(shape[1])) if shape else None


def _vector(ceilings: Ceilings, team: Team, seconds: float) -> dict[str, float]:
    hits = ceilings.find(scope="node", area=Area.COMPUTE, dtype="f32", engine="vector")
    shapes = [(int(c.conditions["lanes"]), int(c.conditions["accumulators"])) for c in hits if "lanes" in c.conditions]
    if not shapes:
        return {}
    fma_rates(team, "f32", *shapes[0], 2)
    rates: list[float] = []
    end = time.perf_counter() + seconds
    while not rates or time.perf_counter() < end:
        rates.extend(fma_rates(team, "f32", *shapes[0], 10))
    return {"vector_f32_flop_per_s": float(np.median(rates))}
