"""Launch shapes, residency, filled places, memory in use and kinds of host memory, against figures worked out by hand."""

from __future__ import annotations

import gzip
import json
import sqlite3
from collections import Counter
from math import prod
from pathlib import Path

import numpy as np
import pytest

from mansard.core.unknown import Unknown
from mansard.trace.device_facts import host_memory, kernel_launches, launch_rows, memory_peak
from mansard.trace.launch_shape import LaunchShape, UnitLimits, blocks_per_unit
from mansard.trace.memory_record import ALLOCATOR, DRIVER
from mansard.trace.open import open_trace
from mansard.trace.timeline import Kind
from mansard.trace.window import trim

SHARED = Path(__file__).parents[3] / "shared" / "data" / "traces"
H100 = UnitLimits(capability="9.0", threads=2048, registers=65536, shared_bytes=233472)
T4 = UnitLimits(capability="7.5", threads=1024, registers=65536, shared_bytes=65536, blocks=16)


@pytest.mark.parametrize(
    ("shape", "limits", "expected"),
    [
        # threads: 2048 / 128 = 16
        (LaunchShape(blocks=1, threads=128, registers=32, shared_bytes=0), H100, 16),
        # registers: 168 x 32 = 5376 = 21 units of 256; 16384 // 5376 = 3 warps in each of 4 partitions, 12 warps; 12 // 8 = 1
        (LaunchShape(blocks=1, threads=256, registers=168, shared_bytes=0), H100, 1),
        # shared: 98304 + 1024 = 99328 = 776 x 128; 233472 // 99328 = 2, fewer than registers allow (100 x 32 = 3200 -> 3328; 4 x 4 / 4 = 4)
        (LaunchShape(blocks=1, threads=128, registers=100, shared_bytes=98304), H100, 2),
        # blocks: 32 threads are one warp; the file says 16, while 1024 / 32 = 32 would fit
        (LaunchShape(blocks=1, threads=32, registers=16, shared_bytes=0), T4, 16),
        # 7.5 reserves nothing and gives 256 B units: 8704 = 34 x 256; 65536 // 8704 = 7; registers 126 x 32 = 4032 -> 4096, 4 x 4 / 2 = 8
        (LaunchShape(blocks=1, threads=64, registers=126, shared_bytes=8704), T4, 7),
        # a block of 33 threads takes two warps: 32 warps / 2 = 16
        (LaunchShape(blocks=1, threads=33, registers=0, shared_bytes=0), T4, 16),
    ],
)
def test_blocks_per_unit(shape: LaunchShape, limits: UnitLimits, expected: int) -> None:
    assert blocks_per_unit(shape, limits) == expected


def test_blocks_per_unit_is_unknown_rather_than_guessed() -> None:
    shape = LaunchShape(blocks=1, threads=128, registers=32, shared_bytes=0)
    assert isinstance(blocks_per_unit(LaunchShape(blocks=1, threads=128), H100), Unknown)
    newer = UnitLimits(capability="99.0", threads=2048, registers=65536, shared_bytes=65536)
    assert isinstance(blocks_per_unit(shape, newer), Unknown)
    huge = LaunchShape(blocks=1, threads=1024, registers=255, shared_bytes=0)  # 255 x 1024 registers do not fit 65536
    assert isinstance(blocks_per_unit(huge, H100), Unknown)


@pytest.mark.parametrize(
    "name",
    ["h100_bert-small.json.gz", "b200x8_tp8_eager.json.gz", "v100_ns_resolution.json.gz", "rtx2080ti_linear_train.json.gz",
     "a100_alexnet_sync_events.json.gz"],
)  # fmt: skip
def test_residency_agrees_with_what_the_profiler_derived(name: str) -> None:
    path = SHARED / "kineto" / name
    if not path.is_file():
        pytest.skip("the shared profiles are not here")
    timeline = open_trace(path, launch_shapes=True)
    document = json.loads(gzip.decompress(path.read_bytes()), strict=False)
    found = kernel_launches(timeline)
    assert not isinstance(found, Unknown)
    table = timeline.of(Kind.KERNEL)
    device = timeline.devices[timeline.used_devices[0]]
    assert not isinstance(device.limits, Unknown)
    ours = Counter(
        zip(table.correlation.tolist(), np.round(found.blocks).tolist(), (found.occupancy_blocks * found.threads).tolist(), strict=True)
    )  # fmt: skip
    compared = 0
    by_key = {(c, b): threads for c, b, threads in ours}
    for e in document["traceEvents"]:
        args = e.get("args") or {}
        stated = args.get("est. achieved occupancy %")
        # Kineto writes 0 where a block takes more than 48 KiB of shared memory: no estimate, and no occupancy of zero.
        if str(e.get("cat")).lower() != "kernel" or stated is None or args["shared memory"] > 49152:
            continue
        threads = by_key[args["correlation"], float(prod(args["grid"]))]
        assert 100 * threads / device.limits.threads == pytest.approx(stated, abs=0.51)
        compared += 1
    assert compared > 40


def _export(path: Path) -> None:
    db = sqlite3.connect(path)
    db.executescript("""
        CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
        INSERT INTO StringIds VALUES (1, 'gemm'), (2, 'add');
        CREATE TABLE TARGET_INFO_GPU (id INT, name TEXT, smCount INT, maxWarpsPerSm INT, threadsPerWarp INT, maxRegistersPerSm INT,
            maxShmemPerSm INT, maxBlocksPerSm INT, computeMajor INT, computeMinor INT, totalMemory INT);
        INSERT INTO TARGET_INFO_GPU VALUES (0, 'Tesla T4', 40, 32, 32, 65536, 65536, 16, 7, 5, 15642329088);
        CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT, end INT, deviceId INT, contextId INT, streamId INT, correlationId INT,
            globalPid INT, demangledName INT, registersPerThread INT, gridX INT, gridY INT, gridZ INT, blockX INT, blockY INT,
            blockZ INT, staticSharedMemory INT, dynamicSharedMemory INT);
        INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES
            (0, 100, 0, 1, 7, 1, 16777216, 1, 126, 16, 8, 2, 8, 8, 1, 8192, 512),
            (100, 150, 0, 1, 7, 2, 16777216, 2, 16, 1024, 1, 1, 256, 1, 1, 0, 0),
            (150, 210, 0, 1, 7, 3, 16777216, 2, 16, 1024, 1, 1, 256, 1, 1, 0, 0),
            (210, 220, 0, 1, 7, 4, 16777216, 2, 16, 0, 1, 1, 256, 1, 1, 0, 0);
        CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INT, end INT, deviceId INT, contextId INT, streamId INT, correlationId INT,
            globalPid INT, bytes INT, copyKind INT, srcKind INT, dstKind INT);
        INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES
            (300, 310, 0, 1, 7, 5, 16777216, 64, 1, 0, 2), (310, 320, 0, 1, 7, 6, 16777216, 64, 1, 1, 2),
            (320, 330, 0, 1, 7, 7, 16777216, 64, 2, 2, 1), (330, 340, 0, 1, 7, 8, 16777216, 64, 8, 2, 2),
            (340, 350, 0, 1, 7, 9, 16777216, 64, 1, 4, 2), (350, 360, 0, 1, 7, 10, 16777216, 64, 1, 7, 2);
        CREATE TABLE CUDA_GPU_MEMORY_USAGE_EVENTS (start INT, globalPid INT, deviceId INT, address INT, bytes INT, memKind INT,
            memoryOperationType INT);
        INSERT INTO CUDA_GPU_MEMORY_USAGE_EVENTS VALUES
            (10, 16777216, 0, 4096, 1000, 2, 0), (20, 16777216, 0, 8192, 500, 2, 0), (25, 16777216, 0, 99, 7000, 1, 0),
            (30, 16777216, 0, 4096, 1000, 2, 1), (40, 16777216, 0, 12288, 700, 2, 0);
    """)
    db.commit()
    db.close()


def test_an_export_tells_launches_memory_and_kinds_of_host_memory(tmp_path: Path) -> None:
    path = tmp_path / "profile.sqlite"
    _export(path)
    timeline = open_trace(path, launch_shapes=True)
    found = kernel_launches(timeline)
    assert not isinstance(found, Unknown)
    # gemm: 16 x 8 x 2 = 256 blocks of 64 threads, 8704 B: 7 fit (see above); 40 x 7 = 280 places, one wave: 256 / 280
    # add: 1024 blocks of 256: 1024 threads / 256 = 4 fit; 160 places, 7 waves of 160 = 1120: 1024 / 1120
    assert found.blocks.tolist()[:3] == [256, 1024, 1024]
    assert found.per_unit.tolist()[:3] == [7, 4, 4]
    assert found.filled_ratio.tolist()[:3] == pytest.approx([256 / 280, 1024 / 1120, 1024 / 1120])
    assert np.isnan(found.blocks[3])  # a grid without blocks is no grid
    rows = launch_rows(timeline)
    assert [(r.name, r.calls, r.total_ns, r.shape.blocks) for r in rows] == [
        ("add", 2, 110, 1024), ("gemm", 1, 100, 256), ("add", 1, 10, -1),
    ]  # fmt: skip
    assert isinstance(rows[2].filled_ratio, Unknown)
    # pageable, pinned, to pinned, between devices, managed, unknown
    assert host_memory(timeline).tolist() == [0, 1, 1, -1, 2, -1]
    peak = memory_peak(timeline, 0)
    assert not isinstance(peak, Unknown)
    # 1000, 1500, 500, 1200; the 7000 are pinned host memory
    assert (peak.allocated_bytes, peak.source, peak.at_least) == (1500, DRIVER, False)
    late = memory_peak(timeline, 0, window_ns=(35, 100))
    assert not isinstance(late, Unknown)
    assert late.allocated_bytes == 1200
    held = memory_peak(timeline, 0, window_ns=(31, 39))  # what is in use when the window begins counts
    assert not isinstance(held, Unknown)
    assert held.allocated_bytes == 500


def test_a_window_keeps_the_launch_shapes_of_its_kernels(tmp_path: Path) -> None:
    path = tmp_path / "profile.sqlite"
    _export(path)
    inside = kernel_launches(trim(open_trace(path, launch_shapes=True), 100, 160))
    assert not isinstance(inside, Unknown)
    assert inside.blocks.tolist() == [1024, 1024]


def test_what_was_not_asked_for_costs_nothing_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "profile.sqlite"
    _export(path)
    timeline = open_trace(path)
    assert "launch_shape" not in timeline.of(Kind.KERNEL).extras
    assert isinstance(kernel_launches(timeline), Unknown)


def test_releases_of_older_memory_make_a_lower_bound(tmp_path: Path) -> None:
    path = tmp_path / "profile.sqlite"
    _export(path)
    with sqlite3.connect(path) as db:
        db.execute("INSERT INTO CUDA_GPU_MEMORY_USAGE_EVENTS VALUES (5, 16777216, 0, 77, 300, 2, 1)")
    db.close()
    peak = memory_peak(open_trace(path), 0)
    assert not isinstance(peak, Unknown)
    assert (peak.allocated_bytes, peak.at_least) == (1500, True)


def test_kineto_memory_events(tmp_path: Path) -> None:
    def memory(ts: float, allocated: int, kind: int = 1, device: int = 0) -> dict[str, object]:
        args = {
            "Total Allocated": allocated,
            "Total Reserved": 4096,
            "Bytes": 1,
            "Device Id": device,
            "Device Type": kind,
        }
        return {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 1, "ts": ts, "args": args}

    kernel = {
        "ph": "X",
        "cat": "kernel",
        "name": "k",
        "pid": 0,
        "tid": 7,
        "ts": 1,
        "dur": 9,
        "args": {"device": 0, "stream": 7},
    }
    path = tmp_path / "t.json"
    events = [
        kernel,
        memory(5, 300),
        memory(1, 100),
        memory(3, 900),
        memory(4, 99999, kind=0),
        {**memory(6, 1), "args": None},
    ]
    path.write_text(json.dumps({"schemaVersion": 1, "deviceProperties": [], "traceEvents": events}))
    peak = memory_peak(open_trace(path), 0)
    assert not isinstance(peak, Unknown)
    assert (peak.allocated_bytes, peak.reserved_bytes, peak.source) == (
        900,
        4096,
        ALLOCATOR,
    )  # the host's 99999 is not the device's
    after = memory_peak(open_trace(path), 0, window_ns=(4500, 9000))
    assert not isinstance(after, Unknown)
    assert after.allocated_bytes == 900  # in use when the window begins


@pytest.mark.parametrize(
    "name",
    ["xplane/mi300x_conv_jax0.8.xplane.pb", "ncu/t4_mlp_full_set.raw.csv"],
)
def test_a_format_without_launch_shapes_says_so(name: str) -> None:
    path = SHARED / name
    if not path.is_file():
        pytest.skip("the shared profiles are not here")
    assert isinstance(kernel_launches(open_trace(path, launch_shapes=True)), Unknown)
