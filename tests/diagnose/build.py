"""Hand-made runs and machines whose truth is known by construction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mansard.core import Area, Ceiling, Ceilings, Demand, Kind, MemoryLevel, Resource, Unknown
from mansard.trace.run import Finding, Operator, Part, RunTrace, Steps, WaitCause


def measured(resource: Resource, value: float, unit: str, scope: str = "node") -> Ceiling:
    return Ceiling(resource=resource, value=value, unit=unit, kind=Kind.MEASURED, scope=scope, source="made by hand")


def two_core_machine() -> Ceilings:
    """200 GFLOP/s f32, 400 bf16, 220 GFLOP/s vector, 50 GB/s DRAM, 400 GB/s L2, 1 us per torch call, 5 us per jax call."""
    return Ceilings(
        ceilings=(
            measured(Resource(area=Area.COMPUTE, dtype="f32", accumulate="f32", engine="matrix"), 200e9, "FLOP/s"),
            measured(Resource(area=Area.COMPUTE, dtype="bf16", accumulate="f32", engine="matrix"), 400e9, "FLOP/s"),
            measured(Resource(area=Area.COMPUTE, dtype="f32", engine="vector"), 220e9, "FLOP/s"),
            measured(Resource(area=Area.COMPUTE, dtype="f32", engine="special"), 2e9, "1/s"),
            measured(Resource(area=Area.MEMORY, level="l2", mix="triad"), 400e9, "B/s"),
            measured(Resource(area=Area.MEMORY, level="dram", mix="triad"), 50e9, "B/s"),
            measured(Resource(area=Area.MEMORY, level="dram", mix="read"), 50e9, "B/s"),
            measured(Resource(area=Area.MEMORY, level="dram", mix="copy"), 50e9, "B/s"),
            measured(Resource(area=Area.LATENCY, backend="torch"), 1e-6, "s"),
            measured(Resource(area=Area.LATENCY, backend="jax"), 5e-6, "s"),
        ),
        levels=(
            MemoryLevel(level="l2", capacity_bytes=2**20, instances=2),
            MemoryLevel(level="dram", capacity_bytes=24e9),
        ),
        source="made by hand",
    )


GEMM = Operator(
    name="aten::mm", category="gemm", part=Part.FORWARD, shapes="f32[1024,1024] f32[1024,1024]",
    # 2 * 1024^3 = 2.147 GFLOP: 10.737 ms at 200 GFLOP/s
    demand=Demand(flop={("f32", "f32"): 2.0 * 1024**3}, read_bytes=2 * 4.0 * 1024**2, write_bytes=4.0 * 1024**2),
)  # fmt: skip
ADD = Operator(
    name="aten::add", category="elementwise", part=Part.FORWARD, shapes="f32[16000000] f32[16000000]",
    # 128 MB read, 64 MB written: 3.84 ms at 50 GB/s
    demand=Demand(vector_flop={"f32": 16e6}, read_bytes=128e6, write_bytes=64e6),
)  # fmt: skip
TINY = Operator(
    name="aten::add", category="elementwise", part=Part.FORWARD, shapes="f32[1] f32[1]",
    demand=Demand(vector_flop={"f32": 1.0}, read_bytes=8.0, write_bytes=4.0), scope="node",
)  # fmt: skip
MYSTERY = Operator(
    name="custom::op", category="other", part=Part.OTHER, shapes="", demand=Unknown("custom::op is not in the table")
)


@dataclass(frozen=True)
class Ran:
    """One thing that happened in a step: an operator or a wait, its length, and the pause after it [ms]."""

    what: Operator | WaitCause
    length_ms: float
    pause_ms: float = 0.0


def run_of(
    step: Sequence[Ran],
    *,
    steps: int = 10,
    unprofiled_ms: float | None = None,
    overhead_us: float = 0.0,
    floor_us: float = 1.0,
    framework: str = "torch",
    minor_faults: float | None = None,
    findings: tuple[Finding, ...] = (),
) -> RunTrace:
    """Return a run that repeats `step`."""
    operators: list[Operator] = []
    op, start, end, wait_start, wait_end, causes, edges = [], [], [], [], [], [], []
    now = 1_000_000_000
    for _ in range(steps):
        edges.append(now)
        for ran in step:
            finish = now + round(ran.length_ms * 1e6)
            if isinstance(ran.what, WaitCause):
                wait_start.append(now)
                wait_end.append(finish)
                causes.append(ran.what)
            else:
                if ran.what not in operators:
                    operators.append(ran.what)
                op.append(operators.index(ran.what))
                start.append(now)
                end.append(finish)
            now = finish + round(ran.pause_ms * 1e6)
    edges.append(now)

    def whole(values: Sequence[int]) -> np.ndarray:
        return np.array(values, dtype=np.int64)

    return RunTrace(
        framework=framework,
        operators=tuple(operators),
        op=np.array(op, dtype=np.int32),
        start_ns=whole(start),
        end_ns=whole(end),
        lane=np.zeros(len(op), dtype=np.int32),
        wait_start_ns=whole(wait_start),
        wait_end_ns=whole(wait_end),
        wait_cause=tuple(causes),
        steps=Steps(start_ns=whole(edges[:-1]), end_ns=whole(edges[1:]), source="loop", note="one pass of the loop"),
        window_ns=(edges[0], edges[-1]),
        unprofiled_step_s=(unprofiled_ms * 1e-3,) * 5 if unprofiled_ms is not None else (),
        op_overhead_s=overhead_us * 1e-6,
        op_floor_s=floor_us * 1e-6,
        minor_faults_per_step=minor_faults,
        threads=2,
        findings=findings,
    )
