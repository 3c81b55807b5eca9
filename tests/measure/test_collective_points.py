"""Collectives and messages before they run: meshes, sizes, what is waived, columns, references, fits."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mansard.core.errors import UsageError
from mansard.core.unknown import Unknown
from mansard.measure.benchmarks.link_points import local_devices
from mansard.measure.links.fits import fit_of
from mansard.measure.links.mesh import mesh_of, replica_groups, same_groups
from mansard.measure.links.shapes import Shapes, error_ratio, expected, layout_of, local_input, local_inputs, shapes_of
from mansard.measure.links.with_jax_mesh import in_network, moved_dtypes, slowest
from mansard.measure.points.benchmark import HasColumns, NeedsFlags, Where
from mansard.measure.points.expect import too_long
from mansard.measure.points.registry import benchmark_named

CPU = Where(backend="jax", platform="cpu", devices=8, cpus=(0, 1), memory_bytes=8e9)
TPU = Where(backend="jax", platform="tpu", devices=16, memory_bytes=100e9, device_name="TPU7x")
H200 = Where(backend="torch", platform="gpu", devices=8, memory_bytes=140e9, device_name="NVIDIA H200")


def params(benchmark, **given):
    return {**{p.name: p.default for p in benchmark.parameters}, **given}


def seconds(t):
    return dict.fromkeys(("median", "mean", "min", "max", "p90"), t)


def test_groups_follow_from_the_axes_that_take_part():
    # 16 devices as 4x2x2, numbered row by row: device = 4 a + 2 b + c
    mesh = mesh_of("4x2x2", "4x1x2", 0)
    assert mesh.participants == 8
    assert mesh.groups == ((0, 1, 4, 5, 8, 9, 12, 13), (2, 3, 6, 7, 10, 11, 14, 15))
    assert mesh.place(6) == (1, 2)
    assert not mesh.parallel
    # one core of each chip of two
    assert mesh_of("4x4x2", "4x4x1", 0).parallel
    assert mesh_of("", "", 5).shape == (5,)
    assert mesh_of("4x2", "1x1", 0).participants == 1
    # the suite's 1x1x4 on a mesh of 4x4x8 takes the whole last axis
    assert mesh_of("4x4x8", "1x1x4", 0).participants == 8


@pytest.mark.parametrize(("shape", "strategy"), [("4x2", "4"), ("4x2", "ax1"), ("4xtwo", ""), ("4x0", "")])
def test_a_mesh_that_cannot_be_is_refused(shape, strategy):
    with pytest.raises(UsageError):
        mesh_of(shape, strategy, 8)


def test_groups_are_read_from_the_compiled_program():
    text = "%r = f32[8] all-reduce(%x), channel_id=1, replica_groups={{0,2,4,6},{1,3,5,7}}, use_global_device_ids=true"
    assert replica_groups(text) == ((0, 2, 4, 6), (1, 3, 5, 7))
    # iota form: 0..7 as 4x2, turned, in rows of four
    assert replica_groups("all-gather(%x), replica_groups=[2,4]<=[4,2]T(1,0), dimensions={0}") == (
        (0, 2, 4, 6),
        (1, 3, 5, 7),
    )
    assert replica_groups("all-gather(%x), replica_groups=[1,8]<=[8]") == (tuple(range(8)),)
    assert replica_groups("collective-permute(%x), source_target_pairs={{0,1},{1,2},{2,0},{3,4}}") == (
        (0, 1, 2),
        (3, 4),
    )
    assert same_groups(((0, 1), (2, 3)), ((3, 2), (1, 0)))
    with pytest.raises(UsageError):
        replica_groups("add(%x)")
    with pytest.raises(UsageError):
        replica_groups("a replica_groups={{0,1}} b replica_groups={{0,1,2,3}}")


def test_types_of_a_long_tuple_are_read_too():
    # XLA numbers the elements of a tuple of more than five inside its type
    text = "%a = (f32[8]{0}, f32[8]{0}, f32[8]{0}, f32[8]{0}, f32[8]{0}, /*index=5*/f32[8]{0}) all-to-all(%b), channel_id=1"
    assert moved_dtypes(text, ("all-to-all",)) == ("f32",)


def test_types_that_are_moved_are_read_from_the_compiled_program():
    text = (
        "  %all-to-all = (f32[1,4]{1,0}, f32[1,4]{1,0}) all-to-all(%a, %b), channel_id=1\n  %x = bf16[4]{0} convert(%y)"
    )
    assert moved_dtypes(text, ("all-to-all",)) == ("f32",)
    assert moved_dtypes(
        "  ROOT %p = bf16[1,64,8,128]{3,2,1,0} all-reduce(%param.2), channel_id=1", ("all-reduce",)
    ) == ("bf16",)


@pytest.mark.parametrize(
    ("operation", "local", "size_mib"),
    [
        ("all_reduce", (1024, 8, 128), 2),  # 1024 x 1024 x 2 B
        ("all_gather", (1024, 8, 128), 16),  # 8 shards
        ("reduce_scatter", (8, 1024, 256), 4),  # 8 chunks of 1024 x 256 x 2 B = 512 KiB
        ("all_to_all", (1024, 8, 128), 2),
        ("ppermute", (1024, 8, 128), 2),
        ("broadcast", (1024, 8, 128), 2),
    ],
)
def test_sizes_of_the_second_version(operation, local, size_mib):
    made = shapes_of(operation, {"matrix_dim": 1024, "dtype": "bf16"}, 8)
    assert made.local == local
    assert made.size_bytes == size_mib * 2**20


def test_sizes_of_the_first_version():
    # root tree: S is matrix_dim^2 x b for every operation; 1024^2 x 2 B = 2 MiB
    for operation in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "ppermute"):
        made = shapes_of(operation, {"matrix_dim": 1024, "dtype": "bf16", "ici_size": 4}, 4)
        assert made.layout == "square"
        assert made.size_bytes == 2 * 2**20
    # TPU7x tree: a buffer of matrix_dim x 1024 elements on each device, also for a reduce-scatter
    made = shapes_of("reduce_scatter", {"matrix_dim": 16, "dtype": "f32", "ici_size": 32, "mesh_shape": "4x4x2"}, 32)
    assert (made.layout, made.size_bytes) == ("buffer", 65536)
    assert layout_of({"layout": "rows", "ici_size": 4}) == "rows"
    with pytest.raises(UsageError):
        shapes_of("all_gather", {"matrix_dim": 10, "dtype": "f32", "ici_size": 4}, 4)


def test_work_of_an_all_reduce_over_16_cores():
    b = benchmark_named("psum")
    assert b is benchmark_named("all_reduce")
    work = b.work(params(b, mesh_shape="4x2x2", sharding_strategy="4x2x2"), TPU)
    moved = work.transfer
    # 2 MiB; 2 x 15/16 x 2 MiB = 3.75 MiB go out of each device
    assert (moved.size_bytes, moved.participants, moved.link) == (2**21, 16, "ici")
    assert moved.bus_factor == 1.875
    assert work.demand.link_bytes == {"ici": 3.75 * 2**20}
    gathered = benchmark_named("all_gather")
    assert gathered.work(params(gathered, mesh_shape="4x2x2"), TPU).transfer.size_bytes == 32 * 2**20


def test_made_devices_are_planned_with_what_xla_does_for_them():
    # 16 x 4 x 2 devices, each (128, 512, 256) bf16 in and (512, 256) out: 128 x (2^24 + 2^17) = 2.164e9 elements, 4.329e9 B.
    # At 1.25e8 of them per core and second two cores take 8.657 s, and 128 threads 40 us each; new memory of 1 GB/s for
    # 4.329e9 B and for f32 of 2.164e9 elements is 12.99 s, and 2^24 drawn numbers of 15 ns are 0.25 s.
    b, limit_s = benchmark_named("reduce_scatter"), 30.0
    given = params(b, mesh_shape="16x4x2", matrix_dim=512)
    work = b.work(given, CPU)
    assert work.planned.call_s == pytest.approx(8.657 + 0.005, rel=1e-3)
    assert work.planned.prepare_s == pytest.approx(12.99 + 0.25, rel=1e-3)
    waived = too_long(work, work.planned.call_s, limit_s)
    assert waived.missing == "time"
    assert "128 devices made out of 2 cores convert 2.16e+09 elements of bf16 to f32 and back" in waived.reason
    assert too_long(work, work.planned.call_s, 60.0) is None
    # f32 is moved as it is: 256 MiB in and out of 8 devices at 5 GB/s per core
    reduced = benchmark_named("all_reduce")
    plain = reduced.work(params(reduced, devices=8, matrix_dim=8192, dtype="f32"), CPU).planned
    assert plain.call_s == pytest.approx(8 * 40e-6 + 2 * 2**28 / 1e10)
    assert reduced.work(params(reduced), H200).planned is None
    assert reduced.work(params(reduced, devices=2, impl="torch"), CPU).planned is None


def test_large_inputs_are_another_one_for_each_device():
    for rows, shared in ((8, False), (64, True)):  # 8,192 and 65,536 elements
        made = shapes_of("all_reduce", {"matrix_dim": rows, "dtype": "bf16"}, 4)
        blocks = [local_inputs(made, 3)(d).astype(np.float32) for d in range(4)]
        assert all(x.shape == made.local for x in blocks)
        assert np.array_equal(blocks[2], local_input(made, 2, 3).astype(np.float32))
        assert (np.sort(blocks[0].ravel()).tolist() == np.sort(blocks[3].ravel()).tolist()) is shared
        for one in range(4):
            for other in range(one):
                assert np.mean(blocks[one] == blocks[other]) < 0.05
        assert abs(float(np.corrcoef(blocks[0].ravel(), blocks[1].ravel())[0, 1])) < 0.05


def test_devices_made_out_of_one_memory_move_memory():
    mib = 2.0**20
    # 2 devices with 2 MiB each: all inputs are read once, all results written once
    reduced = benchmark_named("all_reduce")
    demand = reduced.work(params(reduced, devices=2), CPU).demand
    assert (demand.read_bytes, demand.write_bytes, demand.link_bytes) == (4 * mib, 4 * mib, {})
    gathered = benchmark_named("all_gather")
    demand = gathered.work(params(gathered, devices=2), CPU).demand
    assert (demand.read_bytes, demand.write_bytes) == (4 * mib, 8 * mib)  # each result holds both shards
    cast = benchmark_named("broadcast")
    demand = cast.work(params(cast, devices=3), CPU).demand
    assert (demand.read_bytes, demand.write_bytes) == (2 * mib, 6 * mib)  # one device is read
    send = benchmark_named("send_recv")
    demand = send.work(params(send), CPU).demand
    assert (demand.read_bytes, demand.write_bytes, demand.link_bytes) == (4 * mib, 4 * mib, {})
    demand = send.work(params(send, direction="bi"), CPU).demand
    assert (demand.read_bytes, demand.write_bytes) == (8 * mib, 8 * mib)


def test_links_are_those_of_the_catalogue_and_never_a_guess():
    b = benchmark_named("all_gather")
    assert b.work(params(b), H200).transfer.link == "nvlink"
    assert b.work(params(b, devices=2), CPU).transfer.link == "local_devices"
    assert b.work(params(b, devices=2, impl="torch"), CPU).transfer.link == "loopback"
    unknown = Where(backend="torch", platform="gpu", devices=2, device_name="Some Card")
    assert b.work(params(b), unknown).transfer.link == "peer"


def test_flags_make_devices_out_of_a_cpu():
    b = benchmark_named("all_reduce")
    assert isinstance(b, NeedsFlags)
    assert isinstance(b, HasColumns)
    assert b.flags(params(b, mesh_shape="4x2x2"), "jax") == {"XLA_FLAGS": "--xla_force_host_platform_device_count=16"}
    assert b.flags(params(b, ici_size=4), "torch") == {"MANSARD_RANKS": "4"}
    assert str(local_devices()) in b.flags(params(b), "jax")["XLA_FLAGS"]
    assert local_devices() >= 2


def test_what_cannot_run_is_waived_with_what_is_missing():
    b = benchmark_named("all_gather")
    assert b.waived(params(b, mesh_shape="4x2"), "jax", CPU) is None
    assert b.waived(params(b, mesh_shape="4x4x8"), "jax", TPU).missing == "device"
    assert "16" in b.waived(params(b, mesh_shape="4x4x8"), "jax", TPU).reason
    assert b.waived(params(b, dcn_size=2, ici_size=4), "jax", CPU).missing == "device"
    assert b.waived(params(b, mesh_shape="4x2", sharding_strategy="1x1"), "jax", CPU).missing == "device"
    assert b.waived(params(b, mesh_shape="4x4x8"), "torch", CPU).missing == "device"
    # 128 devices with 128 x 16 MiB each do not fit into 8 GB
    assert b.waived(params(b, mesh_shape="4x4x8", matrix_dim=8192), "jax", CPU).missing == "memory"
    assert b.waived(params(b, devices=2, dtype="i4"), "jax", CPU).missing == "dtype"
    cast = benchmark_named("broadcast")
    assert cast.waived(params(cast, devices=2), "jax", CPU).missing == "implementation"
    assert cast.waived(params(cast, devices=2), "torch", CPU) is None
    with pytest.raises(UsageError, match="ici_size is 4"):
        b.waived(params(b, mesh_shape="4x2", ici_size=4), "jax", CPU)


def test_columns_of_the_published_suite():
    b = benchmark_named("all_reduce")
    # v2: 2 MiB on each device
    assert b.columns(params(b, mesh_shape="4x2x2"), TPU, seconds(1e-3)) == {"shard_size_mb": 2.097152}
    # v1 root: 2 x 3/4 x 2 MiB in 1 ms = 3.146 GB/s
    old = b.columns(params(b, ici_size=4), TPU, seconds(1e-3))
    assert old["ici_bandwidth_gbyte_s"] == pytest.approx(3.145728)
    assert old["ici_time_ms"] == pytest.approx(1.0)
    # TPU7x, 4x4x2 whole, not parallel: 2/32 x 30 x 16384 x 1024 x 4 B = 125.8 MB
    new = b.columns(params(b, ici_size=32, mesh_shape="4x4x2", dtype="f32", matrix_dim=16384), TPU, seconds(1e-3))
    assert new["transferred_data (GB)"] == pytest.approx(0.125829120)
    assert new["replica_group_type"] == "non-parallel"
    assert new["achieved_bw (GB/s)"] == pytest.approx(125.82912)


def test_messages_and_their_pairs():
    b = benchmark_named("device_to_device")
    assert b.pairs(params(b), 3) == [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]
    assert b.pairs(params(b, direction="bi"), 3) == [(0, 1), (0, 2), (1, 2)]
    assert b.pairs(params(b, source_id=2, target_id=5), 8) == [(2, 5)]
    assert b.needed(params(b, source_id=2, target_id=5), 2) == 6
    one = b.work(params(b, data_size_mib=4), H200)
    both = b.work(params(b, data_size_mib=4, direction="bi"), H200)
    # each device sends 4 MiB either way; both ways the rate is that of 8 MiB
    assert one.transfer.size_bytes == 4 * 2**20
    assert both.transfer.size_bytes == 8 * 2**20
    assert one.demand.link_bytes == both.demand.link_bytes == {"nvlink": 4.0 * 2**20}
    assert (one.transfer.link, both.transfer.link) == ("nvlink", "nvlink_both_ways")  # no one-way ceiling comes of it
    with pytest.raises(UsageError):
        b.pairs(params(b, source_id=1, target_id=1), 4)
    with pytest.raises(UsageError):
        b.pairs(params(b, source_id=1), 4)
    send = benchmark_named("send_recv")
    # v1 divides by the longest repeat: 2^20 x 4 B / 2 ms
    assert send.columns(params(send), CPU, {**seconds(1e-3), "max": 2e-3})["data_transfer_gbyte_sec"] == pytest.approx(
        2.097152
    )


def reference(operation, arrays, index, reduce_op="sum"):
    n, size = len(arrays), arrays[0].size
    made = Shapes(operation=operation, local=(size,), ranks=n, dtype="f32", layout="rows")
    at = np.arange(made.result_elements)
    return expected(made, index, at, lambda i, p: arrays[i][p], reduce_op=reduce_op).tolist()


def test_references_by_hand():
    a = [np.array([1.0, 2.0, 3.0, 4.0]), np.array([10.0, 20.0, 30.0, 40.0])]
    assert reference("all_reduce", a, 0) == [11, 22, 33, 44]
    assert reference("all_reduce", a, 1, "mean") == [5.5, 11, 16.5, 22]
    assert reference("all_reduce", a, 1, "max") == [10, 20, 30, 40]
    assert reference("all_reduce", a, 1, "min") == [1, 2, 3, 4]
    assert reference("all_gather", a, 1) == [1, 2, 3, 4, 10, 20, 30, 40]
    assert reference("reduce_scatter", a, 0) == [11, 22]
    assert reference("reduce_scatter", a, 1) == [33, 44]
    assert reference("all_to_all", a, 0) == [1, 2, 10, 20]
    assert reference("all_to_all", a, 1) == [3, 4, 30, 40]
    assert reference("ppermute", a, 0) == [10, 20, 30, 40]
    assert reference("broadcast", a, 1) == [1, 2, 3, 4]


@given(ranks=st.integers(2, 128), dtype=st.sampled_from(("f32", "bf16", "f16")))
def test_a_missing_contribution_is_found(ranks, dtype):
    rng = np.random.default_rng(ranks)
    parts = rng.standard_normal((ranks, 512))
    made = Shapes(operation="all_reduce", local=(512,), ranks=ranks, dtype=dtype, layout="rows")
    assert error_ratio(parts.sum(axis=0), parts.sum(axis=0), made) == 0.0
    assert error_ratio(parts[1:].sum(axis=0), parts.sum(axis=0), made) > 1.0
    moved = Shapes(operation="all_gather", local=(512,), ranks=ranks, dtype=dtype, layout="rows")
    assert error_ratio(parts[0] + np.eye(512)[3] * 1e-9, parts[0], moved) == np.inf
    assert error_ratio(np.full(512, np.nan), parts[0], moved) == np.inf


def test_reduction_in_the_network_is_said_unless_it_is_off():
    assert in_network("gpu", "all_reduce", {}) == "active or unknown"
    assert in_network("gpu", "all_reduce", {"NCCL_NVLS_ENABLE": "0"}) == "no"
    assert in_network("gpu", "all_to_all", {}) == "no"
    assert in_network("cpu", "all_reduce", {}) == "no"


def test_the_slowest_device_is_named():
    found = slowest({0: [1.0, 3.0], 1: [4.0, 5.0], 2: [2.0]}, "by hand")
    assert (found["slowest_device"], found["slowest_device_s"]) == (1, 4.5)
    assert (found["median_device_s"], found["fastest_device_s"]) == (2.0, 2.0)


def element(size, times, **kw):
    t = float(np.median(times))
    metrics = {"operation": "all_reduce", "size_bytes": float(size), "participants": 32, "link": "ici",
               "algbw_bytes_per_s": size / t, "busbw_bytes_per_s": size / t * 1.9375, "size_means": "the buffer"}  # fmt: skip
    return {
        "metadata": {"benchmark_name": "all_reduce", "impl": "jax",
                     "params": {"matrix_dim": size, "dtype": kw.get("dtype", "bf16"), "devices": kw.get("devices", 32)}},
        "state": kw.get("state", "done"), "verdict": kw.get("verdict", "normal"), "audit": {"benchmark": {}},
        "metrics": {**metrics, **kw.get("metrics", {})}, "raw_times_ms": [x * 1e3 for x in times],
    }  # fmt: skip


def test_fits_of_points():
    # 117.61 us and 660.7 GB/s of the published all-reduce; 4 MiB x 1.9375 = 8,126,464 B take 12.3 us
    sizes = (2**21, 2**22, 2**23)
    good = [element(s, [117.61e-6 + s * 1.9375 / 660.7e9] * 3) for s in sizes]
    bad = [
        element(2**24, [1.0], verdict="implausible"),
        element(2**24, [1.0], state="failed"),
        *(element(s, [1e-3], dtype="f32") for s in sizes[:2]),  # another series, too short
        *(element(s, [s * 1e-9], devices=8, metrics={"participants": 8}) for s in sizes[:2]),
        element(2**26, [1.0], metrics={"busbw_bytes_per_s": Unknown("one device").to_json()}),
    ]
    (fit,) = fit_of([*bad, *good])
    assert fit["alpha_s"] == pytest.approx(117.61e-6, rel=1e-6)
    assert fit["beta_bytes_per_s"] == pytest.approx(660.7e9, rel=1e-6)
    assert fit["resource"] == {"area": "network", "link": "ici"}
    assert [p["bus_bytes"] for p in fit["points"]] == [4_063_232, 8_126_464, 16_252_928]
    # 117.61 / (117.61 + 6.15)
    assert fit["points"][0]["latency_share_ratio"] == pytest.approx(0.9503, rel=1e-3)
    assert fit_of(good[:2]) == []
