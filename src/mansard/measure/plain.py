"""DRAM bandwidth through NumPy alone, for machines without numba: fewer mixes, no streaming stores, and it says so."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mansard.core.ceilings import Area, Ceiling, Kind, Resource
from mansard.measure import kernels
from mansard.measure.buffers import Buffer
from mansard.measure.envelope import envelope
from mansard.measure.team import Team, spans_s

Arrays = tuple[Any, Any, Any]
CALLS: dict[str, tuple[str, Callable[[Arrays], Any]]] = {
    "copy": ("numpy.copyto(c, a)", lambda x: np.copyto(x[0], x[1])),
    "scale": ("numpy.multiply(a, s, out=c)", lambda x: np.multiply(x[1], np.float32(0.5), out=x[0])),
    "add": ("numpy.add(a, b, out=c)", lambda x: np.add(x[1], x[2], out=x[0])),
    "in_place": ("numpy.multiply(c, s, out=c)", lambda x: np.multiply(x[0], np.float32(1.0), out=x[0])),
    "write": ("c.fill(s)", lambda x: x[0].fill(np.float32(0.5))),
}


def measure_plain_memory(
    cpus: Sequence[int], size_bytes: int, page: str, *, rounds: int = 3, samples: int = 4
) -> list[Ceiling]:
    """Return DRAM ceilings of one core and of the team through NumPy calls.

    Args:
        cpus: The CPUs of the team.
        size_bytes: Working set of the whole team, three arrays [B].
        page: `4k` or `huge`.
    """
    ceilings = []
    for scope, chosen in (("core", tuple(cpus[:1])), ("node", tuple(cpus))):
        with Team(chosen) as team:
            each = size_bytes // len(team) // 3 // 64 * 64

            def make(_index: int, array_bytes: int = each) -> tuple[Buffer, Arrays]:
                buffer = Buffer(3 * array_bytes, page)
                count = array_bytes // 4
                parts = tuple(buffer.floats(k * array_bytes, count) for k in range(3))
                for part in parts:
                    part[:] = np.float32(1.0)
                return buffer, parts  # type: ignore[return-value]

            held = team.each(make)
            windows: dict[str, list[Any]] = {mix: [] for mix in CALLS}
            for _ in range(rounds):
                for mix, (_, call) in CALLS.items():
                    moved = kernels.counted_bytes(mix, each) * len(team)
                    windows[mix].append(moved / _sample(team, call, [arrays for _, arrays in held], samples))
        for mix, found in windows.items():
            e = envelope(found)
            ceilings.append(
                Ceiling(
                    resource=Resource(area=Area.MEMORY, level="dram", mix=mix, page=page, store="regular"),
                    value=e.value,
                    unit="B/s",
                    kind=Kind.MEASURED,
                    scope=scope,
                    ci95=(e.low, e.high),
                    conditions={
                        "threads": len(chosen),
                        "call": CALLS[mix][0],
                        "working_set_bytes": float(3 * each * len(chosen)),
                        **e.conditions(),
                    },
                    source="timed NumPy calls, STREAM counting, write-allocate not counted",
                )
            )
    return ceilings


def _sample(team: Team, call: Callable[[Arrays], Any], arrays: Sequence[Arrays], samples: int) -> Any:
    barrier = threading.Barrier(len(team))

    def work(index: int) -> Any:
        times = np.zeros((samples, 2), dtype=np.int64)
        for k in range(samples):
            barrier.wait()
            times[k, 0] = time.perf_counter_ns()
            call(arrays[index])
            times[k, 1] = time.perf_counter_ns()
        return times

    return spans_s(team.each(work))
