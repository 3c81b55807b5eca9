"""A benchmark measured in this process, through the same worker, audit and verdict as a real run.

The data, the compiler's count and the page faults are the benchmark's own; what the machine of the moment says (times, load,
warm-up, floor) is replaced by fixed figures, so that a test never depends on who else uses the processor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from mansard.core.ceilings import Area, Ceiling, Ceilings, Kind, MemoryLevel, Resource
from mansard.measure.points import worker
from mansard.measure.points.assemble import result_of
from mansard.measure.points.benchmark import Params, Prepared, Waived, Where, Work
from mansard.measure.points.result import Point, Result
from mansard.measure.points.taken import Taken

KIB, MIB, GIB = 2.0**10, 2.0**20, 2.0**30
SAMPLE_S = 1e-3


@dataclass(slots=True)
class Sample:
    """A benchmark made of two functions."""

    count: Callable[[Params, Where], Work]
    make: Callable[[Params, str, Where], Prepared]
    name: str = "sample"
    area: str = "compute"
    aliases: tuple[str, ...] = ()
    parameters: tuple[Any, ...] = ()
    implementations: Mapping[str, str] = field(default_factory=lambda: {"numpy": "numpy"})
    summary: str = "a benchmark of the tests"

    def work(self, params: Params, where: Where) -> Work:
        return self.count(params, where)

    def waived(self, params: Params, impl: str, where: Where) -> Waived | None:
        return None

    def prepare(self, params: Params, impl: str, where: Where) -> Prepared:
        return self.make(params, impl, where)


def some_machine() -> Ceilings:
    """Return a machine of round numbers that no real CPU of two cores beats."""

    def one(value: float, unit: str = "FLOP/s", **fields: Any) -> Ceiling:
        return Ceiling(resource=Resource(**fields), value=value, unit=unit, kind=Kind.MEASURED, scope="node")

    compute: dict[str, Any] = {"area": Area.COMPUTE, "engine": "matrix"}
    memory: dict[str, Any] = {"area": Area.MEMORY, "mix": "triad"}
    return Ceilings(
        ceilings=(
            one(1e13, dtype="f32", accumulate="f32", **compute),
            one(4e13, dtype="bf16", accumulate="f32", **compute),
            one(1e13, area=Area.COMPUTE, dtype="f32", accumulate="f32", engine="vector"),
            one(1e13, "B/s", level="l1", **memory),
            one(5e12, "B/s", level="l2", **memory),
            one(2e12, "B/s", level="l3", **memory),
            one(1e12, "B/s", level="dram", **memory),
        ),
        levels=(
            MemoryLevel(level="l1", capacity_bytes=48 * KIB, instances=2),
            MemoryLevel(level="l2", capacity_bytes=1 * MIB, instances=2),
            MemoryLevel(level="l3", capacity_bytes=16 * MIB),
            MemoryLevel(level="dram", capacity_bytes=16 * GIB),
        ),
    )


@pytest.fixture
def machine() -> Ceilings:
    """The machine of round numbers."""
    return some_machine()


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Measure a benchmark made of `count` and `make` here, and return its result."""

    def run(
        count: Callable[[Params, Where], Work] | Work,
        make: Callable[[Params, str, Where], Prepared],
        *,
        backend: str = "numpy",
        params: Params | None = None,
        ceilings: Ceilings | str | None = "the machine of round numbers",
        samples: int = 3,
        live: bool = False,
    ) -> Result:
        """Return the result; `live` keeps the times as they were taken."""
        work = (lambda _p, _w: count) if isinstance(count, Work) else count
        sample = Sample(count=work, make=make, implementations={backend: backend})
        monkeypatch.setattr(worker, "benchmark_named", lambda _name: sample)
        server = worker.Server()
        given = dict(params or {})
        where = Where(backend=backend, platform="cpu", threads=2, cpus=(0, 1), memory_bytes=16 * GIB)
        server._where = where
        server._floor_s = 1e-7
        taken = Taken(
            point=Point(benchmark="sample", impl=backend, backend=backend, params=given, name="sample"),
            benchmark=sample, work=work(given, where), where=where,
        )  # fmt: skip
        limits = {"least_samples": samples, "most_samples": samples, "budget_s": 0.0}
        taken.prepared.append(server.prepare("k", "sample", backend, given, 1, 0.0, 0.0))
        window = server.window("k", limits)
        seen = {**window["seen"], "clock_hz": 4e9, "clock_source": "test"}
        finished = server.finish("k")
        if not live:
            window["seconds"] = [SAMPLE_S] * len(window["seconds"])
            taken.prepared[-1]["steady"] = True
            seen = {**seen, "busy_s": 0.0, "own_s": 0.0, "steal_s": 0.0, "throttled_s": 0.0}
            finished["unwaited"] = {"run_s": SAMPLE_S, "check_s": SAMPLE_S, "check_at_rest_s": SAMPLE_S}
        taken.groups.append([window["seconds"]])
        taken.seen.append(seen)
        taken.finished.append(finished)
        known = some_machine() if isinstance(ceilings, str) else ceilings
        return result_of(taken, known, some_machine().levels, {})

    return run
