"""How long a call will take, from the ceilings of what it runs on."""

from __future__ import annotations

import pytest

from mansard.core import Demand
from mansard.core.ceilings import Area, Ceiling, Ceilings, Kind, MemoryLevel, Resource
from mansard.measure.points import expect
from mansard.measure.points.benchmark import Transfer, Where, Work
from mansard.measure.points.effort import EFFORTS
from mansard.measure.points.result import Point
from mansard.measure.points.runner import Runner
from mansard.measure.points.setting import Setting
from mansard.measure.points.taken import Taken

GEMM = Work(demand=Demand(flop={("f32", "f32"): 1e12}, read_bytes=1.0), peak=("f32", "f32", "matrix"))


def machine(scope, flop_per_s, level="dram", bytes_per_s=1e10):
    def one(value, unit, **fields):
        return Ceiling(resource=Resource(**fields), value=value, unit=unit, kind=Kind.DECLARED, scope=scope)

    return Ceilings(
        ceilings=(
            one(flop_per_s, "FLOP/s", area=Area.COMPUTE, dtype="f32", accumulate="f32", engine="matrix"),
            one(bytes_per_s, "B/s", area=Area.MEMORY, level=level, mix="read"),
        ),
        levels=(MemoryLevel(level=level, capacity_bytes=1e10),),
    )


def test_half_of_the_ceiling_is_expected():
    # 10^12 FLOP at 10^11 FLOP/s take 10 s at best
    assert expect.call_s(GEMM, machine("node", 1e11), "native") == pytest.approx(20.0)


def test_a_type_without_a_ceiling_is_planned_with_that_of_f32():
    work = Work(demand=Demand(flop={("f16", "f32"): 1e12}, read_bytes=1.0))
    assert expect.call_s(work, machine("node", 1e11), "native") == pytest.approx(20.0)


def test_a_transfer_is_planned_with_memory():
    moved = Transfer(
        operation="host_to_device", size_bytes=1e10, size_means="the buffer", bus_factor=1.0, participants=1, link="x"
    )
    # 10^10 bytes at 10^10 B/s
    assert expect.call_s(Work(demand=Demand(), transfer=moved), machine("node", 1e11), "native") == pytest.approx(2.0)


def test_nothing_is_expected_of_a_machine_that_is_not_known():
    assert expect.call_s(GEMM, None, "native") is None
    assert expect.call_s(Work(demand=Demand()), machine("node", 1e11), "native") is None


def test_a_point_on_a_device_is_expected_from_the_device():
    runner = Runner(
        Setting(
            effort=EFFORTS["quick"], cpus=(0,), finish=lambda taken: None, keep=lambda result: None,
            ceilings=machine("node", 1e11), device_ceilings=machine("device", 1e15, "hbm", 1e12),
        )
    )  # fmt: skip

    def call_s(platform):
        taken = Taken(
            point=Point(benchmark="x", impl="x", backend="native", params={}, name="x"),
            benchmark=None,
            work=GEMM,
            where=Where(backend="jax", platform=platform),
        )
        return runner._call_s(taken)

    assert call_s("cpu") == pytest.approx(20.0)
    assert call_s("gpu") == pytest.approx(0.002)  # 1 ms at the ceiling
