"""What a recorded profile tells the rules, from files whose truth is known by construction to the advice that is shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mansard.diagnose.calls import diagnose
from mansard.diagnose.facts import Facts, MeasuredPoint
from mansard.diagnose.facts_of import facts_of_profile, workload_of
from mansard.diagnose.facts_of_device import transfers_of
from mansard.diagnose.profile import Question, diagnose_profile
from mansard.diagnose.profile_run import run_of_profile
from mansard.diagnose.records import Advice, Diagnosis
from mansard.predict.estimate import Request, estimate
from mansard.trace.idle import idle_of
from mansard.trace.open import open_trace
from mansard.trace.profile_steps import find_steps
from mansard.workload.model.load import load_model

SIDE = 8192  # 1.0995 TFLOP: 1111 us at 989.4 TFLOP/s
MM = {"Input Dims": [[SIDE, SIDE], [SIDE, SIDE]], "Input type": ["c10::BFloat16", "c10::BFloat16"],
      "Input Strides": [[SIDE, 1], [SIDE, 1]], "Concrete Inputs": ["", ""]}  # fmt: skip
REDUCE = {"Collective name": "allreduce", "In msg nelems": 50_000_000, "Out msg nelems": 50_000_000, "dtype": "BFloat16",
          "Group size": 2, "Process Group Ranks": "[0, 1]"}  # fmt: skip
US = 1e-6


class File:
    """A Kineto file in the making; times in us."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.calls = 0

    def host(self, cat: str, name: str, ts: float, dur: float, **args: Any) -> None:
        self.events.append(
            {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 7, "ts": ts, "dur": dur, "args": args}
        )

    def work(self, cat: str, name: str, ts: float, dur: float, *, at: float | None = None, **args: Any) -> None:
        self.calls += 1
        if at is not None:
            self.host("cuda_runtime", "cudaLaunchKernel", at, 2, correlation=self.calls)
        shared = {"device": 0, "stream": 7, "correlation": self.calls, **args}
        self.events.append(
            {"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": 7, "ts": ts, "dur": dur, "args": shared}
        )

    def product(self, ts: float, dur: float) -> None:
        self.host("cpu_op", "aten::mm", ts - 20, 5, **MM)
        self.work("kernel", "sm90_xmma_gemm_bf16bf16_bf16f32", ts, dur, at=ts - 19)

    def write(self, path: Path, rank: int | None = None) -> Path:
        document: dict[str, Any] = {
            "schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85_000_000_000}],
            "traceEvents": self.events,
        }  # fmt: skip
        if rank is not None:
            document["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": 2}
        path.write_text(json.dumps(document))
        return path


def facts(path: Path) -> Facts:
    timeline = open_trace(path)
    run = run_of_profile(timeline, 0, steps=find_steps(timeline))
    return facts_of_profile(timeline, 0, run, idle_of(timeline, 0))


def advice(path: Path, rule: str, **question: Any) -> Advice | None:
    (found,) = diagnose(path, hardware="h100-sxm", **question)
    return next((a for a in found.diagnosis.advice if a.rule == rule), None)


def launches(path: Path, *, late: bool) -> Path:
    """Four steps of 20 kernels of 20 us, 10 us apart; launched 2 us before their start, or all of them before the step."""
    f = File()
    for n in range(4):
        start = 10_000 + n * 600
        f.host("user_annotation", f"ProfilerStep#{n}", start, 600)
        for k in range(20):
            ts = start + k * 30
            f.work("kernel", "vectorized_elementwise_kernel", ts, 20, at=ts - 0.5 if late else start - 300 + k * 3)
    return f.write(path)


def test_gaps_before_late_launches_are_told_from_those_in_a_queue(tmp_path: Path) -> None:
    late, queued = (
        facts(launches(tmp_path / "a.json", late=True)).gaps,
        facts(launches(tmp_path / "b.json", late=False)).gaps,
    )
    assert late is not None
    assert queued is not None
    # 10 us after each of 80 kernels but the last: 790 us over four steps. The launch comes 0.5 us before the kernel, or long before.
    assert (late.launches, queued.launches) == (20.0, 20.0)
    assert (late.late_s, late.queued_s, late.paused_s) == pytest.approx((197.5 * US, 0.0, 0.0))
    assert (queued.late_s, queued.queued_s, queued.paused_s) == pytest.approx((0.0, 197.5 * US, 0.0))
    first = advice(tmp_path / "a.json", "launch_bound")
    assert first is not None
    assert first.gain_s == pytest.approx(197.5 * US)
    assert first.instead_of == ("host_python",)
    said = advice(tmp_path / "b.json", "launch_bound")
    assert said is not None
    assert "early enough" in said.text


def test_pageable_copies_are_known_by_their_names(tmp_path: Path) -> None:
    f = File()
    for n in range(4):
        start = 10_000 + n * 4000
        f.host("user_annotation", f"ProfilerStep#{n}", start, 4000)
        f.product(start, 2000)
        f.work("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", start + 2000, 2000, bytes=32_000_000)
    path = f.write(tmp_path / "t.json")
    assert [t.pinned for t in facts(path).transfers.values()] == [False]
    found = advice(path, "pinned_transfers")
    # 32 MB at 64 GB/s are 500 us; copying beside the product would save all 2000 us, and that is what is said.
    hidden = advice(path, "overlap_copies")
    assert found is None
    assert hidden is not None
    assert hidden.gain_s == pytest.approx(2000 * US, rel=1e-3)
    assert hidden.instead_of == ("pinned_transfers",)


def test_calls_for_memory_count_while_the_device_waits(tmp_path: Path) -> None:
    f = File()
    for n in range(4):
        start = 10_000 + n * 3000
        f.host("user_annotation", f"ProfilerStep#{n}", start, 3000)
        f.product(start, 2000)
        # Half of the first call is beside the product; the second one is of the driver's pool.
        f.host("cuda_runtime", "cudaFree", start + 1600, 800)
        f.host("cuda_runtime", "cudaMallocAsync", start + 2500, 100)
    use = facts(f.write(tmp_path / "t.json")).memory
    assert use.capacity_bytes == 85e9
    assert use.allocations == 1.0
    # 2000 to 2400 us of each step but the last, which no later work ends.
    assert use.allocation_s == pytest.approx(400 * US * 3 / 4)


def test_measured_points_reach_the_advice(tmp_path: Path) -> None:
    f = File()
    for n in range(4):
        start = 10_000 + n * 3000
        f.host("user_annotation", f"ProfilerStep#{n}", start, 3000)
        f.product(start, 3000)
    path = f.write(tmp_path / "t.json")
    point = MeasuredPoint(
        benchmark="gemm_generalized", impl="torch", backend="torch", name="a", params={"m": SIDE, "k": SIDE, "n": SIDE, "in_dtype": "bf16"},
        time_s=1.4e-3, ci95_s=(1.38e-3, 1.42e-3), flop=2.0 * SIDE**3, bytes=4e8, dtype="bf16",
    )  # fmt: skip
    timeline = open_trace(path)
    with_points = diagnose_profile(timeline, Question(points=(point,)))[0].diagnosis.advice
    found = next(a for a in with_points if a.rule == "kernel_choice")
    assert found.gain_s == pytest.approx(3e-3 - 1.42e-3, rel=1e-6)
    assert advice(path, "kernel_choice") is None


def test_the_rank_that_waits_is_told_for_whom(tmp_path: Path) -> None:
    paths = []
    for rank in range(2):
        f = File()
        late = 600 if rank == 1 else 0
        for n in range(4):
            start = 10_000 + n * 2000
            f.host("user_annotation", f"ProfilerStep#{n}", start, 2000)
            f.product(start, 1200 + late)
            f.work("kernel", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", start + 1200 + late, 800 - late, **REDUCE)
        paths.append(f.write(tmp_path / f"rank{rank}.json", rank))
    job = diagnose(*map(open_trace, paths), hardware="h100-sxm", node_devices=8).job
    assert job is not None
    said = {name: {a.rule: a for a in devices[0].diagnosis.advice} for name, devices in job.ranks}
    # Rank 0 takes 800 us where the last to arrive takes 200: 600 us of waiting, and 200 us that overlap could hide.
    assert said["0"]["stragglers"].gain_s == pytest.approx(600 * US, rel=1e-3)
    assert "rank 1" in said["0"]["stragglers"].text
    assert said["0"]["overlap_communication"].gain_s == pytest.approx(200 * US, rel=1e-3)
    assert "stragglers" not in said["1"]


def test_a_model_tells_phase_and_cache() -> None:
    decode = workload_of(
        estimate(load_model("llama-3.1-8b"), Request(phase="decode", batch=4, context=1024, dtype="bf16"))
    )
    assert (decode.phase, decode.sequences, decode.tokens, decode.vocab) == ("decode", 4, 4, 128256)
    assert (decode.cache_dtype, decode.causal) == ("bf16", None)
    prefill = workload_of(
        estimate(load_model("llama-3.1-8b"), Request(phase="prefill", batch=2, seq=512, dtype="bf16"))
    )
    assert (prefill.phase, prefill.sequences, prefill.tokens, prefill.causal) == ("prefill", 2, 1024, True)


def test_a_launch_shape_fills_units(tmp_path: Path) -> None:
    file = File()
    # 133 blocks on 132 multiprocessors: one has two, so all wait for it: 133 / (2 * 132) = 0.5038 of their time has work.
    for i in range(4):
        file.host("cpu_op", "aten::mm", 100 + 4000 * i, 5, **MM)
        shape = {"grid": [133, 1, 1], "block": [128, 1, 1], "registers per thread": 32, "shared memory": 0}
        file.work("kernel", "sm90_xmma_gemm_bf16bf16_bf16f32", 200 + 4000 * i, 3000, at=101 + 4000 * i, **shape)
    path = file.write(tmp_path / "p.json")
    document = json.loads(path.read_text())
    document["deviceProperties"][0] |= {
        "numSms": 132, "computeMajor": 9, "computeMinor": 0, "maxThreadsPerMultiprocessor": 2048, "regsPerMultiprocessor": 65536,
        "sharedMemPerMultiprocessor": 233472, "warpSize": 32,
    }  # fmt: skip
    path.write_text(json.dumps(document))
    timeline = open_trace(path, launch_shapes=True)
    run = run_of_profile(timeline, 0, steps=find_steps(timeline))
    found = facts_of_profile(timeline, 0, run, idle_of(timeline, 0))
    assert [g.filled_units_ratio for g in found.grids.values()] == [pytest.approx(133 / 264)]
    assert not facts(path).grids  # shapes that were not read are not made up
    one = diagnose_profile(timeline)[0].diagnosis
    (filled,) = [a for a in one.advice if a.rule == "filled_units"]
    # Each call: 3000 us, of which at most 1889 us are above the least time; 3000 * (1 - 0.5038) = 1489 us.
    assert filled.gain_s == pytest.approx(3000 * US * (1 - 133 / 264) * filled_calls(one), rel=1e-3)


def filled_calls(one: Diagnosis) -> float:
    return sum(o.calls for o in one.operators if o.category == "gemm")


def test_small_copies_tell_what_starting_one_takes(tmp_path: Path) -> None:
    file = File()
    for i in range(5):
        at = 1000.0 * i
        file.work("kernel", "k", at, 100, at=at - 5)
        # 1 KiB takes 4 us, which is what starting a copy takes; 64 KiB takes 6 us, most of it starting; 64 MiB does not.
        file.work("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", at + 110, 4, at=at + 101, bytes=1024)
        file.work("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", at + 120, 6, at=at + 111, bytes=65536)
        file.work("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", at + 130, 700, at=at + 121, bytes=2**26)
    path = file.write(tmp_path / "p.json")
    timeline = open_trace(path)
    run = run_of_profile(timeline, 0, steps=find_steps(timeline))
    found = transfers_of(timeline, 0, run)
    told = {run.operators[i].shapes: t for i, t in found.items()}
    assert all(t.pinned for t in told.values())
    assert told["65536 B"].latency_s == pytest.approx(6 * US)
    assert told["65536 B"].in_flight_bytes == pytest.approx(65536)
    assert told["67108864 B"].latency_s is None
    assert told["1024 B"].in_flight_bytes == pytest.approx(1024)


def test_copies_that_work_hides_promise_nothing(tmp_path: Path) -> None:
    # 64 MiB need 67.1e6 / 64e9 = 1049 us of PCIe and take 1500 us, beside a product of 2000 us: no step waits for them.
    hidden, exposed = File(), File()
    for i in range(4):
        at = 5000.0 * i + 100
        for file, after in ((hidden, 100), (exposed, 2000)):
            file.product(at, 2000)
            file.work(
                "gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", at + after, 1500, at=at - 10, bytes=2**26, stream=9
            )
    quiet = diagnose_profile(open_trace(hidden.write(tmp_path / "hidden.json")))[0].diagnosis
    loud = diagnose_profile(open_trace(exposed.write(tmp_path / "exposed.json")))[0].diagnosis
    assert not [a for a in quiet.advice if "copy host" in a.text]
    assert quiet.verdict.headroom_s <= quiet.verdict.time_s
    assert [a for a in loud.advice if "copy" in a.text.lower()]
    assert all(a.gain_s <= loud.step.median_s for a in loud.advice)
