"""Memory bandwidth: bytes in STREAM's counting by hand, results of every implementation, labels of levels."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest

from mansard.core.ceilings import MemoryLevel
from mansard.measure.benchmarks.memory import sweep_sizes
from mansard.measure.benchmarks.memory_mixes import MIXES, elements_of
from mansard.measure.benchmarks.memory_native import numa_nodes
from mansard.measure.points.benchmark import Where
from mansard.measure.points.cliffs import cliffs, labelled
from mansard.measure.points.registry import benchmark_named

needs_jax = pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="JAX is not installed")
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
needs_numba = pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="numba is not installed")
IMPLS = [
    pytest.param("jax", marks=needs_jax),
    pytest.param("torch", marks=needs_torch),
    "numpy",
    pytest.param("native", marks=needs_numba),
]
HBM = benchmark_named("hbm_bandwidth")


def where(backend: str, **more: Any) -> Where:
    return Where(**{"backend": backend, "platform": "cpu", "threads": 1, "cpus": (0,), "memory_bytes": 8e9, **more})


def params(**given: Any) -> dict[str, Any]:
    return {**{p.name: p.default for p in HBM.parameters}, "impl": "jax", **given}


@pytest.mark.parametrize(
    ("op", "arrays", "flop", "allocated"),
    [
        ("copy", 2, 0, 3),  # 3/2 with lines read before they are written
        ("scale", 2, 1, 3),
        ("add", 3, 1, 4),
        ("triad", 3, 2, 4),  # 4/3
        ("read", 1, 1, None),
        ("write", 1, 0, None),  # overwritten below: a written array alone is read first, too
        ("in_place", 2, 1, None),
        ("dot", 2, 2, None),
    ],
)
def test_stream_counting_by_hand(op, arrays, flop, allocated):
    work = HBM.work(params(op_type=op, size=1000, dtype="bf16"), where("jax"))
    assert work.demand.bytes == arrays * 2000
    assert sum(work.demand.vector_flop.values()) == flop * 1000
    if allocated is not None:
        assert work.write_allocate_bytes == allocated * 2000


def test_a_fill_reads_what_it_writes():
    work = HBM.work(params(op_type="write", size=1000, dtype="f32"), where("jax"))
    assert (work.demand.bytes, work.write_allocate_bytes) == (4000, 8000)


def test_streaming_stores_and_accelerators_read_nothing_first():
    on_gpu = where("jax", platform="gpu")
    assert HBM.work(params(op_type="copy", size=1024), on_gpu).write_allocate_bytes is None
    streaming = params(op_type="copy", size=1024, dtype="f32", impl="native", store="streaming")
    assert HBM.work(streaming, where("native")).write_allocate_bytes is None


def test_random_access_counts_its_indices_once():
    # 1000 f32 read, 1000 written, 1000 indices of 4 bytes; PyTorch and NumPy want 8 for some
    assert HBM.work(params(op_type="gather", size=1000, dtype="f32"), where("jax")).demand.bytes == 12000
    assert (
        HBM.work(params(op_type="gather", size=1000, dtype="f32", impl="numpy"), where("numpy")).demand.bytes == 16000
    )


def test_one_array_is_one_working_set():
    assert HBM.work(params(op_type="in_place", size=1000, dtype="f32"), where("jax")).demand.working_set == 4000
    assert HBM.work(params(op_type="triad", size=1000, dtype="f32"), where("jax")).demand.working_set == 12000


def test_our_kernels_count_whole_blocks():
    # two threads, 1 KiB blocks of 256 f32: 300 elements become 2 x 256
    given = params(size=300, dtype="f32", impl="native")
    on = where("native", cpus=(0, 1), threads=2)
    assert elements_of(given, "native", on) == 512
    assert HBM.work(given, on).demand.bytes == 2 * 512 * 4


def test_other_names_of_mixes():
    one, two = (HBM.work(params(op_type=name, size=64), where("jax")) for name in ("mul", "scale"))
    assert one.demand == two.demand


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("op", sorted(MIXES))
def test_every_mix_gives_the_right_result(op, impl):
    given = params(op_type=op, size=3000, dtype="f32", impl=impl)
    if HBM.waived(given, impl, where(impl)) is not None:
        assert (impl, op) in {("numpy", "triad"), ("native", "dot")}
        return
    prepared = HBM.prepare(given, impl, where(impl))
    try:
        prepared.run(3)
        assert prepared.verify().error_ratio < 1.0
        prepared.run(1)
        assert prepared.verify().error_ratio < 1.0
        shown = sum(o.bytes * (2 if o.role == "in_place" else 1) for o in prepared.operands() if o.name != "p")
        work = HBM.work(given, where(impl))
        assert shown <= 1.4 * float(work.demand.bytes) + 4096  # scatter's target is shown as read and written
    finally:
        if prepared.close is not None:
            prepared.close()


@needs_numba
@pytest.mark.parametrize(("store", "page"), [("regular", "4k"), ("streaming", "huge")])
def test_page_and_store_are_part_of_what_is_said(store, page):
    given = params(op_type="triad", size=4096, dtype="f32", impl="native", store=store, page=page, threads=1)
    prepared = HBM.prepare(given, "native", where("native"))
    try:
        assert prepared.timed(2) > 0
        assert prepared.verify().error_ratio < 1.0
        assert (prepared.facts["store"], prepared.facts["page"], prepared.facts["threads"]) == (store, page, 1)
    finally:
        prepared.close()


def test_wrong_values_are_noticed():
    given = params(op_type="add", size=1000, dtype="f32", impl="numpy")
    prepared = HBM.prepare(given, "numpy", where("numpy"))
    prepared.run(1)
    out = next(o for o in prepared.operands() if o.role == "output")
    out.values[0] += 1.0  # the first element is among those that are checked
    assert prepared.verify().error_ratio > 100


@pytest.mark.parametrize(
    ("impl", "given", "missing"),
    [
        ("native", {"dtype": "bf16"}, "dtype"),
        ("numpy", {"dtype": "bf16"}, "dtype"),
        ("jax", {"device_id": 4}, "device"),
        ("jax", {"size": 2**33, "dtype": "f32"}, "memory"),
        ("native", {"dtype": "f32", "size": 1024, "op_type": "read", "store": "streaming"}, "implementation"),
    ],
)
def test_what_cannot_run_is_waived(impl, given, missing):
    found = HBM.waived(params(**given), impl, where(impl))
    assert found is not None
    assert found.missing == missing


def test_the_old_names_copy():
    copy = benchmark_named("single_chip_hbm_copy")
    assert copy is benchmark_named("single_device_hbm_copy")
    given = {**{p.name: p.default for p in copy.parameters}, "num_elements": 1024}
    assert copy.work(given, where("jax")).demand.bytes == 2 * 2048


# --- levels ----------------------------------------------------------------------------------------------------------

LEVELS = (
    MemoryLevel(level="l1", capacity_bytes=32e3),
    MemoryLevel(level="l2", capacity_bytes=1e6),
    MemoryLevel(level="dram", capacity_bytes=1e10),
)


def test_sizes_of_a_sweep_end_with_the_last():
    assert sweep_sizes(8192, 40000, 1) == [8192, 16384, 32768, 40000]


def curve(l1_ends: float, l2_ends: float) -> list[tuple[float, float]]:
    sizes = [4e3 * 2**k for k in range(14)]
    return [(s, 200e9 if s <= l1_ends else 100e9 if s <= l2_ends else 30e9) for s in sizes]


def test_cliffs_confirm_the_stated_levels():
    rows = labelled(curve(32e3, 1.024e6), LEVELS)
    assert [(r.level, r.confirmed) for r in rows if r.working_set_bytes in (16e3, 128e3, 8.192e6)] == [
        ("l1", True), ("l2", True), ("dram", None),
    ]  # fmt: skip
    # 4 k x 2^3 = 32 k is the last in L1; 4 k x 2^8 = 1.024 M the last in L2
    assert cliffs(curve(32e3, 1.024e6)) == ((32e3, 0.5), (1.024e6, 0.3))


def test_a_cache_that_ends_early_is_not_confirmed():
    # a machine that may use 64 kB of what is said to be 1 MB: no drop at 1 MB, one long before
    found = {r.level: r.confirmed for r in labelled(curve(32e3, 64e3), LEVELS)}
    assert found["l2"] is False


def test_a_flat_curve_cannot_tell():
    assert {r.confirmed for r in labelled([(s, 50e9) for s, _ in curve(1, 1)], LEVELS)} == {None}


def test_numa_nodes_from_sysfs(tmp_path):
    for node, cpus in (("node0", "0-3"), ("node1", "4-7")):
        folder = tmp_path / "sys/devices/system/node" / node
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(cpus + "\n")
    assert numa_nodes((2, 5), tmp_path) == (0, 1)
    assert numa_nodes((6,), tmp_path) == (1,)
    assert numa_nodes((0,), tmp_path / "nowhere") == ()


@needs_jax
def test_results_take_memory_that_exists():
    given = params(op_type="triad", size=1 << 16, dtype="f32")
    prepared = HBM.prepare(given, "jax", where("jax"))
    assert prepared.output_is_fresh is False
    seen = set()
    for _ in range(6):
        prepared.run(1)
        seen.add(next(o for o in prepared.operands() if o.role == "output").address)
    assert len(seen) == 1
    inputs = {o.address for o in prepared.operands() if o.role == "input"}
    assert not inputs & seen
    assert np.isfinite(prepared.verify().error_ratio)
