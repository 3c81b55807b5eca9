"""Cases whose truth is known by construction, and machines for them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from dataclasses import replace

from mansard.core import Area, Ceiling, Ceilings, Demand, Kind, MemoryLevel, Resource
from mansard.diagnose.account import account, inside, windows_of
from mansard.diagnose.case import Case, Proposal
from mansard.diagnose.facts import Facts
from mansard.diagnose.judge_operators import judge_operators, memory_evidence
from mansard.diagnose.sweep import charged_s
from mansard.trace.run import Operator, Part, RunTrace

build = sys.modules["build"]
Ran, run_of = build.Ran, build.run_of
cpu = build.two_core_machine


def declared(resource: Resource, value: float, unit: str) -> Ceiling:
    return Ceiling(resource=resource, value=value, unit=unit, kind=Kind.DECLARED, scope="device", source="made by hand")


def device(fits: Sequence[dict] = ()) -> Ceilings:
    """One device: 100 TFLOP/s bf16, 1 TB/s HBM, 50 GB/s to the host, 400 GB/s inside a node, 50 GB/s between nodes."""
    return Ceilings(
        ceilings=(
            declared(Resource(area=Area.COMPUTE, dtype="bf16", accumulate="f32", engine="matrix"), 100e12, "FLOP/s"),
            declared(Resource(area=Area.COMPUTE, dtype="f32", engine="vector"), 50e12, "FLOP/s"),
            declared(Resource(area=Area.MEMORY, level="hbm"), 1e12, "B/s"),
            declared(Resource(area=Area.HOST, link="pcie"), 50e9, "B/s"),
            declared(Resource(area=Area.NETWORK, link="nvlink"), 400e9, "B/s"),
            declared(Resource(area=Area.NETWORK, link="network"), 50e9, "B/s"),
        ),
        levels=(MemoryLevel(level="hbm", capacity_bytes=80e9),),
        fits=tuple(fits),
        source="made by hand",
    )


def operator(name: str, category: str, shapes: str = "", *, part: Part = Part.FORWARD, **demand: object) -> Operator:
    return Operator(name=name, category=category, part=part, shapes=shapes, demand=Demand(**demand), scope="device")


def gemm(m: int, k: int, n: int, dtype: str = "bf16", *, size: float = 2.0, scope: str = "device") -> Operator:
    return Operator(
        name="aten::mm", category="gemm", part=Part.FORWARD, shapes=f"{dtype}[{m},{k}] {dtype}[{k},{n}]", scope=scope,
        demand=Demand(flop={(dtype, "f32"): 2.0 * m * k * n}, read_bytes=size * (m * k + k * n), write_bytes=size * m * n),
    )  # fmt: skip


def talk(operation: str, size: float, ranks: int, link: str, part: Part = Part.FORWARD) -> Operator:
    """A collective in which each device must send `size` bytes."""
    return replace(
        operator("ncclKernel", "collective", f"{size:.0f} B, {ranks} ranks", part=part, link_bytes={link: size}),
        source=operation,
    )


def host_copy(size: float, way: str = "copy host to device") -> Operator:
    return operator(way, "copy", f"{size:.0f} B", link_bytes={"pcie": size})


def on_device(trace: RunTrace, **changes: object) -> RunTrace:
    """The run as that of a device of a recorded profile."""
    return replace(trace, framework="profile", scope="device", devices=("made by hand",), **changes)


def case_of(trace: RunTrace, ceilings: Ceilings | None = None, facts: Facts | None = None) -> Case:
    """Return what the rules see of a run; the profiler costs nothing."""
    ceilings = cpu() if ceilings is None else ceilings
    windows = windows_of(trace)
    chosen = inside(windows, trace.start_ns)
    charged = charged_s(trace.start_ns, trace.end_ns)
    memory = memory_evidence(trace, chosen, windows.count)
    judged = judge_operators(trace, ceilings, chosen, charged, charged, memory)
    where = account(trace, windows, judged, charged, charged, windows.median_s, memory)
    return Case(
        trace=trace, ceilings=ceilings, windows=windows, judged=judged, account=where, memory=memory, chosen=chosen,
        duration_s=charged, facts=facts or Facts(),
    )  # fmt: skip


def device_case(step: Sequence[object], facts: Facts | None = None, fits: Sequence[dict] = ()) -> Case:
    """A step of operations on the device that `device` describes."""
    return case_of(on_device(run_of(step)), device(fits), facts)


def said(rule: str, case: Case) -> Proposal | None:
    """Return what one rule says, after checking that it promises no more than what it addresses."""
    found = importlib.import_module(f"mansard.diagnose.rules.{rule}").RULE(case)
    if found is not None:
        assert found.rule == rule
        assert found.text
        assert found.evidence
        assert 0 < found.gain_s <= case.limit_s(found) * (1 + 1e-9)
    return found
