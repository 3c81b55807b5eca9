"""Results of every kind with figures worked out by hand: points, ceilings, a profile of two devices, ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

US = 1e-6


def point(benchmark: str, params: dict[str, Any], metrics: dict[str, Any], *, seconds: float, verdict: str | None = "normal",
          state: str = "done", impl: str = "jax") -> dict[str, Any]:  # fmt: skip
    """Return an element of `detailed.json`."""
    swept = " ".join(f"{k}={v}" for k, v in params.items())
    return {
        "schema": "detailed/1", "tool_version": "0.1.0", "created": "2026-11-30T00:00:00+00:00",
        "environment": {"cpu_model": "two cores"},
        "metadata": {"benchmark_name": benchmark, "test_name": f"{benchmark}[{impl}] {swept}", "impl": impl, "backend": impl,
                     "params": {**params, "impl": impl}, "device_info": {}, "key": swept, "plan": "p"},
        "state": state, "reason": "" if state == "done" else "needs a device",
        "metrics": {"median_s": seconds, "ci95_low_s": seconds * 0.9, "ci95_high_s": seconds * 1.25,
                    "half_interval_ratio": 0.1, **metrics} if state == "done" else {},
        "raw_times_ms": [seconds * 1e3] * 3, "samples": {"windows": [[0, 3]]}, "conditions": {},
        "audit": {"findings": [], "benchmark": {"mix": "read"}}, "verdict": verdict, "verdict_reason": "",
    }  # fmt: skip


def sweep_of_memory() -> list[dict[str, Any]]:
    """Return a sweep: 16 kB at 1 TB/s, 16 MB at 100 GB/s."""
    out = []
    for size, rate, level in ((16_000, 1e12, "l1"), (16_000_000, 1e11, "dram")):
        metrics = {"headline": "bytes", "bytes": float(size), "working_set_bytes": float(size), "bytes_per_s": rate, "level": level,
                   "flop": 0.0, "share_of_ceiling": 0.5, "ceiling": f"{level.upper()} read bandwidth", "ceiling_kind": "measured",
                   "ceiling_value": 2 * rate, "ceiling_unit": "B/s", "ceiling_scope": "core"}  # fmt: skip
        out.append(point("memory_sweep", {"working_set_bytes": size}, metrics, seconds=size / rate, verdict="low"))
    return out


def sweep_of_gemm(rate: float = 1e11, fixed_s: float = 10 * US) -> list[dict[str, Any]]:
    """Return a sweep that follows t = 10 us + 2 N^3 / 100 GFLOP/s exactly."""
    out = []
    for n in (64, 128, 256, 512):
        flop = 2.0 * n**3
        seconds = fixed_s + flop / rate
        metrics = {"headline": "flop", "flop": flop, "flop_per_s": flop / seconds, "bytes": 12.0 * n * n, "bytes_per_s": 1e9,
                   "share_of_ceiling": flop / seconds / rate, "ceiling": "f32 matrix", "ceiling_kind": "measured",
                   "ceiling_value": rate, "ceiling_unit": "FLOP/s"}  # fmt: skip
        out.append(point("gemm_sweep", {"size": n}, metrics, seconds=seconds))
    return out


def all_reduces(alpha_s: float = 20 * US, beta: float = 5e10) -> list[dict[str, Any]]:
    """Return all-reduces over 4 ranks that follow t = 20 us + bus bytes / 50 GB/s; bus bytes are 1.5 S."""
    out = []
    for size in (1 << 16, 1 << 20, 1 << 24):
        bus = 1.5 * size
        seconds = alpha_s + bus / beta
        metrics = {"headline": "transfer", "operation": "all_reduce", "size_bytes": size, "bus_bytes": bus, "participants": 4,
                   "link": "ring", "busbw_bytes_per_s": bus / seconds, "algbw_bytes_per_s": size / seconds, "flop": 0.0, "bytes": 0.0,
                   "share_of_ceiling": {"unknown": "no ceiling", "needs": []}}  # fmt: skip
        out.append(point("all_reduce", {"size": size}, metrics, seconds=seconds, verdict=None))
    return out


def ceilings() -> dict[str, Any]:
    """Return a machine: f32 matrix 200 GFLOP/s measured, 250 derived, 300 declared; DRAM 50 GB/s; L1 of 32 KiB."""

    def one(resource: dict[str, str], value: float, unit: str, kind: str) -> dict[str, Any]:
        return {"resource": resource, "value": value, "unit": unit, "kind": kind, "scope": "node", "ci95": None, "conditions": {},
                "source": f"a {kind} figure"}  # fmt: skip

    matrix = {"area": "compute", "dtype": "f32", "accumulate": "f32", "engine": "matrix"}
    return {
        "schema": "ceilings/1", "tool_version": "0.1.0", "created": "2026-11-30T00:00:00+00:00", "environment": {"cpu_model": "two cores"},
        "ceilings": [
            one(matrix, 2.0e11, "FLOP/s", "measured"), one(matrix, 2.5e11, "FLOP/s", "derived"), one(matrix, 3e11, "FLOP/s", "declared"),
            one({"area": "memory", "level": "dram", "mix": "read"}, 5e10, "B/s", "measured"),
            one({"area": "memory", "level": "l1", "mix": "read"}, 1e12, "B/s", "measured"),
            one({"area": "network", "link": "ring"}, 6e10, "B/s", "measured"),
        ],
        "levels": [{"level": "l1", "capacity_bytes": 32768.0, "instances": 2}, {"level": "dram", "capacity_bytes": 1e9, "instances": 1}],
        "fits": [], "curves": [],
    }  # fmt: skip


def kernel(name: str, ts: float, dur: float, *, device: int = 0, stream: int = 7, **args: Any) -> dict[str, Any]:
    """Return a kernel of a Kineto trace [us]."""
    return {"ph": "X", "cat": "kernel", "name": name, "pid": device, "tid": stream, "ts": ts, "dur": dur,
            "args": {"device": device, "stream": stream, **args}}  # fmt: skip


def reduce(ts: float, dur: float, elements: int, *, device: int = 0) -> dict[str, Any]:
    """Return an all-reduce of float elements over 2 ranks."""
    return kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", ts, dur, device=device, stream=20, dtype="Float",
                  **{"Collective name": "allreduce", "In msg nelems": elements, "Out msg nelems": elements, "Group size": 2,
                     "Process Group Name": "0", "Process Group Ranks": "[0, 1]"})  # fmt: skip


def trace(path: Path, names: tuple[str, ...] = ("gemm_kernel",)) -> Path:
    """Write a profile of two devices, 1000 us long.

    Device 0: compute 0 to 400 and 600 to 1000 us, all-reduce 300 to 550 us: 150 us of it are exposed, 50 us are idle.
    Device 1: compute 0 to 1000 us.
    """
    events = [
        kernel(names[0], 0, 400), reduce(300, 250, 1 << 20), kernel(names[-1], 600, 400), kernel("elementwise_kernel", 0, 1000, device=1),
        *(kernel(n, 601 + 10 * i, 5, stream=9) for i, n in enumerate(names)),
        reduce(700, 60, 1 << 16), reduce(800, 90, 1 << 18),
    ]  # fmt: skip
    path.write_text(json.dumps({"traceEvents": events, "deviceProperties": []}))
    return path
