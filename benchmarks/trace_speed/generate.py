"""Write a synthetic Nsight Systems export of any size, with a known answer.

Two devices of two processes whose correlation ids collide, calls that launch kernels, nested NVTX ranges (step, layer,
operation), collectives on a second stream that overlap compute, copies, and a synchronisation per step.

    python benchmarks/trace_speed/generate.py OUT.sqlite --kernels 5000000 --ranges 500000
"""

from __future__ import annotations

import argparse
import sqlite3
from collections.abc import Iterator
from pathlib import Path

BASE = 281474976710656
PIDS = (500, 501)
PER_LAYER = 10
LAYERS = 32

TABLES = {
    "StringIds": "id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL",
    "META_DATA_EXPORT": "name TEXT NOT NULL, value TEXT",
    "META_DATA_CAPTURE": "name TEXT NOT NULL, value TEXT",
    "TARGET_INFO_GPU": "vmId INTEGER, id INTEGER, name TEXT, totalMemory INTEGER, memoryBandwidth INTEGER, clockRate INTEGER, "
    "smCount INTEGER, chipName TEXT, cuDevice INTEGER, computeMajor INTEGER, computeMinor INTEGER, busLocation TEXT",
    "TARGET_INFO_CUDA_DEVICE": "gpuId INTEGER, cudaId INTEGER NOT NULL, pid INTEGER NOT NULL",
    "CUPTI_ACTIVITY_KIND_KERNEL": "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, "
    "greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, demangledName INTEGER NOT NULL, "
    "shortName INTEGER NOT NULL, mangledName INTEGER, launchType INTEGER, cacheConfig INTEGER, registersPerThread INTEGER NOT NULL, "
    "gridX INTEGER NOT NULL, gridY INTEGER NOT NULL, gridZ INTEGER NOT NULL, blockX INTEGER NOT NULL, blockY INTEGER NOT NULL, "
    "blockZ INTEGER NOT NULL, staticSharedMemory INTEGER NOT NULL, dynamicSharedMemory INTEGER NOT NULL, "
    "localMemoryPerThread INTEGER NOT NULL, localMemoryTotal INTEGER NOT NULL, gridId INTEGER NOT NULL, "
    "sharedMemoryExecuted INTEGER, graphNodeId INTEGER, sharedMemoryLimitConfig INTEGER",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL, globalTid INTEGER, "
    "correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL, callchainId INTEGER",
    "CUPTI_ACTIVITY_KIND_MEMCPY": "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, "
    "streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, "
    "streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, syncType INTEGER NOT NULL, eventId INTEGER NOT NULL",
    "NVTX_EVENTS": "start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER, category INTEGER, color INTEGER, "
    "text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER, domainId INTEGER, uint64Value INTEGER, int64Value INTEGER, "
    "doubleValue REAL, uint32Value INTEGER, int32Value INTEGER, floatValue REAL, jsonTextId INTEGER, jsonText TEXT, binaryData BLOB",
}
NAMES = (
    "nvjet_tst_192x192_64x4_2x1_v_bz_coopB_bias_TNN",
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int, T2, T3)",
    "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<(int)128>>(flash::Flash_fwd_params)",
    "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float>(int, T1)",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(T3)",
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)",
    "cudaLaunchKernel_v7000", "cudaMemcpyAsync_v3020", "cudaStreamSynchronize_v3020", "train_step", "layer",
)  # fmt: skip


class Clock:
    """Times of one process: the host runs ahead of its device and waits once a step."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.host = 1_000_000_000 + 1000 * rank
        self.device = self.host
        self.side = self.host
        self.correlation = 1


def _columns(table: str) -> int:
    return len(TABLES[table].split(","))


def _kernel(clock: Clock, index: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the rows of one kernel and its call."""
    process = BASE + (PIDS[clock.rank] << 24)
    name = index % 6
    length = (40_000, 3_000, 90_000, 4_500, 2_500, 60_000)[name] + 7 * (index % 331)
    call = (clock.host + 100, clock.host + 3_600, 0, process + PIDS[clock.rank], clock.correlation, 100 + 6, 0, None)
    clock.host += 5_000 + index % 400
    if name == 5:
        start = max(clock.side, call[1], clock.device - 40_000)
        clock.side = start + length
        stream = 20
    else:
        start = max(clock.device + 900, call[1])
        clock.device = start + length
        stream = 7
    row = (start, start + length, clock.rank, 1, None, stream, clock.correlation, process, 100 + name, 100 + name, None, 1, 1, 64,
           128, 1, 1, 256, 1, 1, 0, 4096, 0, 0, 0, 65536, None, 0)  # fmt: skip
    clock.correlation += 1
    return row, call


def write(path: Path, *, kernels: int, ranges: int) -> None:
    """Write the file.

    Args:
        path: Where; replaced if it exists.
        kernels: How many kernels, and calls.
        ranges: How many NVTX ranges, at least.
    """
    path.unlink(missing_ok=True)
    db = sqlite3.connect(path)
    db.execute("PRAGMA journal_mode=OFF")
    db.execute("PRAGMA synchronous=OFF")
    for name, columns in TABLES.items():
        db.execute(f"CREATE TABLE {name} ({columns})")
    db.executemany("INSERT INTO StringIds VALUES (?, ?)", [(100 + i, n) for i, n in enumerate(NAMES)])
    db.executemany("INSERT INTO META_DATA_EXPORT VALUES (?, ?)",
                   [("EXPORT_PRODUCT_VERSION", "2025.3.1.90"), ("EXPORT_SCHEMA_VERSION", "3.20.2")])  # fmt: skip
    gpu = (0, "NVIDIA H100 80GB HBM3", 84929347584, 3352320000000, 1980000000, 132, "GH100")
    for rank in range(2):
        db.execute(
            "INSERT INTO TARGET_INFO_GPU VALUES (?,?,?,?,?,?,?,?,?,?,?,?)",
            (gpu[0], rank, *gpu[1:], rank, 9, 0, f"0000:{rank + 1:02x}:00.0"),
        )
        db.execute("INSERT INTO TARGET_INFO_CUDA_DEVICE VALUES (?,?,?)", (rank, rank, PIDS[rank]))
    clocks = [Clock(0), Clock(1)]
    per_step = PER_LAYER * LAYERS
    steps = max(1, kernels // (2 * per_step))
    inner = max(0, ranges // (2 * steps * LAYERS) - 1)  # operations marked in each layer
    marks = {n: ",".join("?" * _columns(n)) for n in TABLES}
    done = 0
    for step in range(steps):
        for clock in clocks:
            rows, calls, nvtx = [], [], []
            last = step == steps - 1 and clock.rank == 1
            count = per_step if not last else kernels - done
            tid = BASE + (PIDS[clock.rank] << 24) + PIDS[clock.rank]
            opened = clock.host
            for layer in range(LAYERS):
                layer_start = clock.host
                share = per_step // LAYERS if layer < LAYERS - 1 else count - (per_step // LAYERS) * (LAYERS - 1)
                for index in range(share):
                    begin = clock.host
                    row, call = _kernel(clock, index)
                    rows.append(row)
                    calls.append(call)
                    if index < inner:
                        nvtx += _nest(begin, clock.host - 100, tid, max(1, inner // PER_LAYER), step, layer, index)
                nvtx.append(_range(layer_start, clock.host - 50, tid, 110))
            done += count
            wait = (clock.host + 500, max(clock.device, clock.side, clock.host + 500) + 2_000)
            process = BASE + (PIDS[clock.rank] << 24)
            db.execute(f"INSERT INTO CUPTI_ACTIVITY_KIND_SYNCHRONIZATION VALUES ({marks['CUPTI_ACTIVITY_KIND_SYNCHRONIZATION']})",
                       (*wait, clock.rank, 1, 7, clock.correlation, process, 3, 0))  # fmt: skip
            calls.append((*wait, 0, tid, clock.correlation, 108, 0, None))
            clock.correlation += 1
            db.execute(f"INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES ({marks['CUPTI_ACTIVITY_KIND_MEMCPY']})",
                       (wait[1] + 4_000, wait[1] + 30_000, clock.rank, 1, 13, clock.correlation, process, 1 << 20, 1))  # fmt: skip
            calls.append((wait[1] + 500, wait[1] + 3_500, 0, tid, clock.correlation, 107, 0, None))
            clock.correlation += 1
            clock.host = wait[1] + 5_000
            nvtx.append(_range(opened, clock.host - 100, tid, 109))
            db.executemany(
                f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({marks['CUPTI_ACTIVITY_KIND_KERNEL']})", rows
            )
            db.executemany(
                f"INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES ({marks['CUPTI_ACTIVITY_KIND_RUNTIME']})", calls
            )
            db.executemany(f"INSERT INTO NVTX_EVENTS VALUES ({marks['NVTX_EVENTS']})", nvtx)
    db.commit()
    db.close()


def _range(start: int, end: int, tid: int, text_id: int | None, text: str | None = None) -> tuple[object, ...]:
    return (start, end, 59, None, None, None, text, tid, None, text_id, 0, *([None] * 9))


def _nest(
    start: int, end: int, tid: int, depth: int, step: int, layer: int, index: int
) -> Iterator[tuple[object, ...]]:
    """Yield ranges nested around one call, named with numbers as PyTorch names them."""
    for level in range(depth):
        text = f"aten::op{index}_{level}, seq = {step * LAYERS + layer}, op_id = {index}"
        yield _range(start + level, end - level - 1, tid, None, text)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--kernels", type=int, default=5_000_000)
    parser.add_argument("--ranges", type=int, default=500_000)
    given = parser.parse_args()
    write(given.out, kernels=given.kernels, ranges=given.ranges)
    print(f"{given.out}: {given.out.stat().st_size / 1e6:.0f} MB")
