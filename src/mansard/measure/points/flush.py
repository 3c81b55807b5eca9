"""Empties the caches between samples, outside of what is timed: for points that are to be measured cold.

A call that follows an equal call finds its inputs in the cache. Where a program comes to it with other data in between,
that is the wrong figure. Before each sample of a cold point every core rewrites its part of memory that is larger than
all caches together, and one sample is one call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mansard.measure.points.benchmark import Where

OVER_CACHE = 2.0  # a cache that replaces at random still holds e^-2 = 14 % of the old lines after one such pass
PASSES = 2  # and 2 % after two
DEVICE_BYTES = 2**28  # above the last cache of every accelerator on record
HOST_LEAST_BYTES = 2**26  # where the size of the caches is not told


def cache_bytes(cpus: tuple[int, ...]) -> float:
    """Return the size of the last cache of this machine, all its parts together [B]; 0 where nothing tells."""
    from mansard.measure.machine import memory_levels, read_caches

    levels = [v for v in memory_levels(read_caches(cpus), None) if v.level != "dram"]
    return max((v.capacity("node") for v in levels), default=0.0)


def flush_for(where: Where) -> tuple[Callable[[], None], dict[str, Any]]:
    """Return what empties the caches where a point runs, and what a reader must know of it."""
    if where.platform == "cpu":
        return _on_host(where.cpus)
    make = _in_torch if where.backend == "torch" else _in_jax
    return make(), {"flushed_bytes": float(DEVICE_BYTES)}


def _on_host(cpus: tuple[int, ...]) -> tuple[Callable[[], None], dict[str, Any]]:
    from mansard.measure.team import Team, split_evenly

    known = cache_bytes(cpus)
    words = int(max(OVER_CACHE * known, HOST_LEAST_BYTES) // 8)
    store = np.ones(words, dtype=np.uint64)
    parts = [store[start : start + count] for start, count in split_evenly(words, len(cpus))]
    team = Team(cpus)  # every core must touch it: the near caches are private

    def rewrite(index: int) -> None:
        for _ in range(PASSES):
            np.add(parts[index], 1, out=parts[index])

    def flush() -> None:
        team.each(rewrite)

    return flush, {"flushed_bytes": float(store.nbytes), "last_cache_bytes": known}


def _in_torch() -> Callable[[], None]:
    import torch

    store = torch.empty(DEVICE_BYTES, dtype=torch.int8, device="cuda")

    def flush() -> None:
        for value in range(PASSES):
            store.fill_(value)
        torch.cuda.synchronize()

    return flush


def _in_jax() -> Callable[[], None]:
    import jax

    rewrite = jax.jit(lambda x: x + 1, donate_argnums=0)
    held = [jax.block_until_ready(jax.numpy.ones(DEVICE_BYTES // 4, jax.numpy.int32))]

    def flush() -> None:
        for _ in range(PASSES):
            held[0] = rewrite(held[0])
        jax.block_until_ready(held[0])

    return flush
