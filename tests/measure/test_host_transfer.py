"""Copies between host and device where the device is the host: they are real copies, and pointers are refused."""

import math

import numpy as np
import pytest

from mansard.core.errors import UndecidedError
from mansard.measure.links.host_copies import Wanted, both_at_once, host_data
from mansard.measure.links.host_jax import JaxCopies
from mansard.measure.links.host_torch import TorchCopies
from mansard.measure.points.benchmark import Where
from mansard.measure.points.registry import benchmark_named

CPU = Where(backend="jax", platform="cpu", devices=1, cpus=(0,), memory_bytes=8e9)
H200 = Where(backend="jax", platform="gpu", devices=1, memory_bytes=140e9, device_name="NVIDIA H200")
WAYS = ("h2d", "d2h", "round_trip", "both")


def params(benchmark, **given):
    return {**{p.name: p.default for p in benchmark.parameters}, **given}


def wanted(direction="h2d", elements=100_000, **kw):
    return Wanted(direction=direction, elements=elements, dtype=kw.pop("dtype", "f32"), pinned=False, **kw)


def test_bytes_are_one_direction_and_a_gb_is_1e9():
    b = benchmark_named("host_to_device")
    work = b.work(params(b, data_size_mib=64), H200)
    assert work.transfer.size_bytes == 67_108_864
    assert work.demand.link_bytes == {"pcie": 67_108_864}
    # the suite's 64 MiB in 1 ms is 62.5 of its "GB/s", which are GiB/s
    assert b.columns(params(b), H200, {"median": 1e-3})["H2D_bw (GiB/s)"] == pytest.approx(62.5)
    both = benchmark_named("host_device")
    there_and_back = both.work(params(both), H200)
    at_once = both.work(params(both, direction="both"), H200)
    assert there_and_back.transfer.size_bytes == at_once.transfer.size_bytes == 2 * 67_108_864
    assert (there_and_back.transfer.link, at_once.transfer.link) == ("pcie", "pcie_both_ways")
    # one after the other the link carries both; at once each direction carries its own
    assert there_and_back.demand.link_bytes == {"pcie": 2 * 67_108_864}
    assert at_once.demand.link_bytes == {"pcie": 67_108_864}


def test_on_a_cpu_a_transfer_is_memory_traffic():
    b = benchmark_named("device_to_host")
    work = b.work(params(b, data_size_mib=1), CPU)
    assert work.transfer.link == "host_memory"
    assert work.demand.link_bytes == {}
    assert (work.demand.read_bytes, work.demand.write_bytes) == (2**20, 2**20)


def test_pinned_memory_and_missing_devices_are_waived_by_name():
    b = benchmark_named("host_to_device")
    for impl in ("jax", "torch"):
        assert b.waived(params(b, memory="pinned"), impl, CPU).missing == "device"
        assert b.waived(params(b, memory="pinned"), impl, H200) is None
        assert b.waived(params(b), impl, CPU) is None
    assert b.waived(params(b, device_id=3), "jax", H200).missing == "device"
    assert b.waived(params(b, data_size_mib=32768), "jax", CPU).missing == "memory"
    assert b.waived(params(b, dtype="i4"), "jax", CPU).missing == "dtype"


def test_pieces_cover_the_data_once():
    w = wanted(elements=100, chunk_elements=30)
    assert [(p.start, p.stop) for p in w.pieces] == [(0, 30), (30, 60), (60, 90), (90, 100)]
    assert len(wanted(elements=100).pieces) == 1
    assert wanted(elements=100, dtype="bf16").bytes == 200


def test_host_data_are_placed_as_asked():
    for aligned in (True, False):
        data = host_data(wanted(), aligned=aligned)
        assert (data.ctypes.data % 64 == 0) is aligned
        assert data.ctypes.data % 4 == 0
        assert np.unique(data).size > 90_000


@pytest.mark.parametrize("direction", WAYS)
@pytest.mark.parametrize("chunk", [0, 30_000])
@pytest.mark.parametrize(
    ("copies", "dtype"), [(JaxCopies, "f32"), (JaxCopies, "bf16"), (TorchCopies, "f32"), (TorchCopies, "bf16")]
)
def test_copies_arrive(copies, dtype, direction, chunk):
    point = copies(wanted(direction, dtype=dtype, chunk_elements=chunk), host_device=True)
    made = point.prepared("copy")
    assert made.timed is not None
    assert made.timed(2) > 0.0
    assert made.verify().error_ratio == 0.0
    assert made.facts["device_is_host_memory"]
    assert "no link" in made.facts["measures"]
    after = made.facts_after()
    assert ("h2d_s" in after and "d2h_s" in after) is (direction == "round_trip")


def test_the_usual_calls_of_jax_hand_on_pointers_and_it_is_said():
    facts = JaxCopies(wanted(), host_device=True).prepared("copy").facts
    assert "numpy_asarray" in facts["pointers_handed_on"]
    assert TorchCopies(wanted(), host_device=True).prepared("copy").facts["pointers_handed_on"] == ["Tensor.to"]


def test_a_pointer_is_never_called_a_bandwidth():
    point = JaxCopies(wanted(), host_device=True)
    aligned = host_data(wanted(), aligned=True)
    point._pieces = [aligned]
    if "device_put_of_aligned_data" not in point.facts()["pointers_handed_on"]:
        pytest.skip("this JAX copies aligned data")
    with pytest.raises(UndecidedError, match="nothing moved"):
        point.timed(1)
    same = TorchCopies(wanted("d2h"), host_device=True)
    same._target = same._own
    with pytest.raises(UndecidedError, match="nothing moved"):
        same.timed(1)


def test_a_copy_that_did_not_happen_is_found():
    for copies in (JaxCopies, TorchCopies):
        point = copies(wanted("d2h"), host_device=True)
        point._copied_once = True  # nothing was copied back: there are zeros
        assert point.verify().error_ratio == math.inf


def test_both_at_once_tells_of_failures():
    def broken():
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        both_at_once(lambda: 0.0, broken)
    assert both_at_once(lambda: 0.0, lambda: 0.0) >= 0.0
