"""Diagnoses of profiles whose truth is known by construction: areas, parts, links, what is not known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mansard.core import Area, Bound, Ceiling, Ceilings, Grade, Kind, Resource, Unknown, is_known
from mansard.diagnose.calls import diagnose
from mansard.diagnose.document import to_document
from mansard.diagnose.links import Links
from mansard.diagnose.model_demand import _share_out
from mansard.diagnose.profile import DeviceDiagnosis
from mansard.diagnose.records import AreaShare, Diagnosis
from mansard.trace.open import open_trace

# 2 x 8192^3 = 1.0995 TFLOP; at 132 SM x 4096 FLOP x 1.83 GHz = 989.43 TFLOP/s it needs 1111.26 us.
SIDE = 8192
FLOP = 2.0 * SIDE**3
PEAK = 989.42976e12
MM = {"Input Dims": [[SIDE, SIDE], [SIDE, SIDE]], "Input type": ["c10::BFloat16", "c10::BFloat16"],
      "Input Strides": [[SIDE, 1], [SIDE, 1]], "Concrete Inputs": ["", ""]}  # fmt: skip
REDUCE = {"Collective name": "allreduce", "In msg nelems": 50_000_000, "Out msg nelems": 50_000_000, "dtype": "BFloat16",
          "Group size": 8, "Process Group Ranks": "[0, 1, 2, 3, 4, 5, 6, 7]"}  # fmt: skip
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"


class Recording:
    """A Kineto file in the making; times in us."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.calls = 0

    def host(self, cat: str, name: str, ts: float, dur: float, *, tid: int = 7, **args: Any) -> None:
        self.events.append(
            {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur, "args": args}
        )

    def step(self, number: int, ts: float, dur: float) -> None:
        self.host("user_annotation", f"ProfilerStep#{number}", ts, dur)

    def kernel(
        self, name: str, ts: float, dur: float, *, at: float | None = None, tid: int = 7, stream: int = 7, **args: Any
    ) -> None:
        """Add a kernel; `at` is when the host launched it."""
        self.calls += 1
        if at is not None:
            self.host("cuda_runtime", "cudaLaunchKernel", at, 1, tid=tid, correlation=self.calls)
        self.events.append(
            {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream, "ts": ts, "dur": dur,
             "args": {"device": 0, "stream": stream, "correlation": self.calls, **args}}
        )  # fmt: skip

    def copy(self, ts: float, dur: float, size: int) -> None:
        self.calls += 1
        self.events.append(
            {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD (Pageable -> Device)", "pid": 0, "tid": 7, "ts": ts, "dur": dur,
             "args": {"device": 0, "stream": 7, "correlation": self.calls, "bytes": size}}
        )  # fmt: skip

    def product(self, ts: float, dur: float, *, at: float) -> None:
        """Add a product with its operator, launched at `at`."""
        self.host("cpu_op", "aten::mm", at, 5, **MM)
        self.kernel("sm90_xmma_gemm_bf16bf16_bf16f32", ts, dur, at=at + 1)

    def write(self, path: Path, *, rank: int | None = None, world: int = 1) -> Path:
        document: dict[str, Any] = {
            "schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}], "traceEvents": self.events,
        }  # fmt: skip
        if rank is not None:
            document["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": world}
        path.write_text(json.dumps(document))
        return path


def of(path: Path, **question: Any) -> DeviceDiagnosis:
    return diagnose(path, hardware="h100-sxm", **question)[0]


def area(diagnosis: Diagnosis, name: str) -> AreaShare:
    return next(a for a in diagnosis.verdict.areas if a.area == name)


def products_and_messages(tmp_path: Path, *, product: float, message: float, **fields: Any) -> Path:
    """Four steps of a product and an all-reduce behind it, nothing beside them."""
    r = Recording()
    length = product + message
    for n in range(4):
        start = 1000 + n * length
        r.step(n, start, length)
        r.product(start, product, at=start - 20)
        r.kernel(ALL_REDUCE, start + product, message, stream=9, **fields)
    return r.write(tmp_path / "t.json")


def test_several_areas_are_bounds_of_one_step(tmp_path: Path) -> None:
    d = of(products_and_messages(tmp_path, product=1500, message=500)).diagnosis
    # 1500 of 2000 us compute, 500 us communication that nothing hides.
    assert d.time_shares["compute"] == pytest.approx(0.75)
    assert d.time_shares["network"] == pytest.approx(0.25)
    assert d.verdict.bound is Bound.COMPUTE
    assert [(a.area, a.is_bound) for a in d.verdict.areas] == [("compute", True), ("network", True)]
    # 1111.26 / 1500 = 0.741 of the derived peak; the declared one is 989.4 TFLOP/s, a hair lower.
    compute = area(d, "compute")
    assert compute.share_of_ceiling == pytest.approx(FLOP / PEAK / 1.5e-3, rel=1e-3)
    assert set(compute.shares_by_kind) == {"derived", "declared"}
    assert compute.shares_by_kind["declared"] == pytest.approx(FLOP / 989.4e12 / 1.5e-3, rel=1e-6)
    assert compute.headroom_s == pytest.approx(1.5e-3 - FLOP / PEAK, rel=1e-3)
    assert "tuning memory access or fewer bytes" in d.verdict.will_not_help


def test_communication_without_bytes_has_its_seconds_and_no_share(tmp_path: Path) -> None:
    d = of(products_and_messages(tmp_path, product=500, message=1500)).diagnosis
    assert d.verdict.bound is Bound.NETWORK
    assert d.verdict.time_s == pytest.approx(1.5e-3)
    # How far below the link's ceiling it is, nothing tells; what hiding it would save is its 1.5 ms.
    assert isinstance(d.verdict.share_of_ceiling, Unknown)
    assert isinstance(d.verdict.headroom_s, Unknown)
    assert isinstance(area(d, "network").headroom_s, Unknown)
    assert next(a for a in d.advice if a.rule == "overlap_communication").gain_s <= 1.5e-3
    assert d.verdict.link is None
    assert any("link: not known" in e for e in d.verdict.evidence)
    assert "another kernel for the computation" in d.verdict.will_not_help
    assert "without a verdict" not in d.verdict.sentence


def test_communication_with_bytes_names_its_link(tmp_path: Path) -> None:
    d = of(products_and_messages(tmp_path, product=300, message=500, **REDUCE), node_devices=8).diagnosis
    # S = 100 MB, x 2 x 7/8 = 175 MB over 450 GB/s one way: 388.9 of 500 us.
    assert d.verdict.bound is Bound.NETWORK
    assert d.verdict.link == "nvlink"
    assert d.verdict.share_of_ceiling == pytest.approx(175e6 / 450e9 / 500e-6, rel=1e-6)
    assert d.verdict.headroom_s == pytest.approx(500e-6 - 175e6 / 450e9, rel=1e-6)
    assert any("nvlink, inside a node" in e for e in d.verdict.evidence)


def test_a_group_larger_than_a_node_uses_the_network(tmp_path: Path) -> None:
    path = products_and_messages(tmp_path, product=300, message=5000, **REDUCE)
    d = of(path, node_devices=4, network_rate=50e9).diagnosis
    # Eight ranks on two nodes of four: 2 x 1/2 / 4 x 100 MB = 25 MB over 50 GB/s, 500 of 5000 us.
    assert d.verdict.link == "network"
    assert d.verdict.share_of_ceiling == pytest.approx(0.1)
    assert "between nodes" in d.verdict.sentence


def test_bytes_between_nodes_are_those_that_must_cross() -> None:
    links = Links(peer="nvlink", network="network", node_devices=8)
    # One rank per node: the factor of the whole group. 2 x 3/4 x 100 MB.
    assert links.sent("all_reduce", 100e6, (0, 8, 16, 24), 4) == {"network": pytest.approx(150e6)}
    # Two whole nodes: 2 x 1/2 / 8 x 100 MB between them, and 2 x 7/8 x 100 MB inside each.
    two = links.sent("all_reduce", 100e6, tuple(range(16)), 16)
    assert two == {"network": pytest.approx(12.5e6), "nvlink": pytest.approx(175e6)}
    # All-gather of 100 MB over four nodes of 8: 3/4 / 8; all-to-all keeps 8 of 32 parts inside.
    gathered = links.sent("all_gather", 100e6, (), 32)
    assert gathered == {"network": pytest.approx(100e6 * 0.75 / 8), "nvlink": pytest.approx(87.5e6)}
    assert links.sent("all_to_all", 100e6, (), 32) == {"network": pytest.approx(75e6), "nvlink": pytest.approx(87.5e6)}
    uneven = links.sent("all_reduce", 100e6, (0, 1, 2, 8), 4)
    assert isinstance(uneven, Unknown)
    assert isinstance(Links(peer="nvlink").sent("all_reduce", 1e6, (0, 1), 2), Unknown)


def test_without_bytes_there_is_no_memory_verdict_and_names_are_a_heuristic(tmp_path: Path) -> None:
    r = Recording()
    for n in range(4):
        r.step(n, 1000 + n * 100, 100)
        r.kernel(
            "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)",
            1000 + n * 100,
            100,
        )
    d = of(r.write(tmp_path / "t.json")).diagnosis
    assert d.verdict.bound is Bound.UNDETERMINED
    assert d.verdict.needs
    assert d.time_shares["memory"] == 0
    assert d.operators[0].flop_per_byte is None
    assert isinstance(d.operators[0].bytes, Unknown)
    assert any("heuristic" in c and "elementwise" in c for c in d.verdict.counter_evidence)
    checks = {c.area: c for c in d.operators[0].checks}
    assert isinstance(checks["memory"].share_of_ceiling, Unknown)
    assert not checks["memory"].is_bound


def test_the_checks_of_an_operation_are_separate(tmp_path: Path) -> None:
    d = of(products_and_messages(tmp_path, product=1500, message=500)).diagnosis
    row = next(o for o in d.operators if o.category == "gemm")
    checks = {c.area: c.share_of_ceiling for c in row.checks}
    # 3 x 8192^2 x 2 B = 402.65 MB over 3.35 TB/s: 120.2 of 1500 us; compute 1111.3 of 1500.
    assert checks["memory"] == pytest.approx(402.653184e6 / 3.35e12 / 1.5e-3, rel=1e-6)
    assert checks["compute"] == pytest.approx(0.741, abs=1e-3)
    assert row.bound is Bound.COMPUTE
    assert row.shares_by_kind["declared"] > row.shares_by_kind["derived"] - 1e-3


def test_parts_come_from_what_encloses_the_launch(tmp_path: Path) -> None:
    r = Recording()
    for n in range(3):
        t = 1000 + n * 1000
        r.step(n, t, 1000)
        r.product(t, 300, at=t + 1)  # nothing around it, before a backward pass: forward
        r.host("cpu_op", "autograd::engine::evaluate_function: MmBackward0", t + 10, 20, tid=8)
        r.kernel("gemm_backward", t + 300, 600, at=t + 12, tid=8)
        r.host("user_annotation", "Optimizer.step#AdamW.step", t + 40, 20)
        r.kernel("multi_tensor_apply_kernel", t + 900, 100, at=t + 42)
    d = of(r.write(tmp_path / "t.json")).diagnosis
    assert {p.kind: round(p.time_s * 1e6) for p in d.parts} == {"forward": 300, "backward": 600, "optimizer": 100}
    parts = {p.kind: p for p in d.parts}
    # The last step ends with its kernels; all of forward is the product, at 1111 us least time: it cannot be.
    assert sum(parts["backward"].areas.values()) == pytest.approx(600e-6, rel=1e-3)


def test_each_part_has_its_own_bounds(tmp_path: Path) -> None:
    r = Recording()
    for n in range(3):
        t = 10_000 + n * 3000
        r.step(n, t, 3000)
        r.product(t, 1500, at=t + 1)
        r.host("cpu_op", "autograd::engine::evaluate_function: MmBackward0", t + 10, 20, tid=8)
        r.kernel(ALL_REDUCE, t + 1500, 1500, at=t + 12, tid=8)
    d = of(r.write(tmp_path / "t.json")).diagnosis
    assert {p.kind: p.bounds for p in d.parts} == {"forward": ("compute",), "backward": ("network",)}
    by_area = {a: sum(p.areas.get(a, 0.0) for p in d.parts) for a in ("compute", "network")}
    assert by_area == pytest.approx({"compute": 1.5e-3, "network": 1.5e-3}, rel=1e-6)


def test_time_before_the_first_kernel_has_a_cause_only_where_its_launch_is_recorded(tmp_path: Path) -> None:
    def recorded(*, launched: bool) -> Diagnosis:
        r = Recording()
        for n in range(2):
            t = n * 3000
            r.step(n, t, 3000)
            r.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", t + 1500, 1500, at=t + 1400 if launched else None)
        return of(r.write(tmp_path / "t.json")).diagnosis

    # Of 6000 us 3000 are communication. The device is idle for 1500 us twice: the host called for the kernels 1400 us into each.
    with_calls = recorded(launched=True)
    assert with_calls.time_shares["host"] + with_calls.time_shares["latency"] == pytest.approx(0.5)
    assert with_calls.time_shares["host"] > 0.45
    # Without calls nothing tells why.
    assert recorded(launched=False).time_shares["unattributed"] == pytest.approx(0.5)


def test_a_copy_at_the_same_time_takes_nothing_from_a_kernel(tmp_path: Path) -> None:
    r = Recording()
    for n in range(3):
        t = 1000 + n * 1500
        r.step(n, t, 1500)
        r.product(t, 1500, at=t - 20)
        r.copy(t + 100, 1000, 32_000_000)
    d = of(r.write(tmp_path / "t.json")).diagnosis
    # All of the step is computing, at 1111.26 of 1500 us; the copy is hidden.
    assert d.verdict.bound is Bound.COMPUTE
    assert d.verdict.share_of_ceiling == pytest.approx(FLOP / PEAK / 1.5e-3, rel=1e-3)
    assert d.time_shares["host"] == pytest.approx(0.0, abs=1e-9)


def test_a_kernel_named_after_tf32_is_judged_by_that_peak(tmp_path: Path) -> None:
    r = Recording()
    inputs = {**MM, "Input type": ["float", "float"]}
    for n in range(3):
        t = 1000 + n * 4000
        r.step(n, t, 4000)
        r.host("cpu_op", "aten::mm", t - 20, 5, **inputs)
        r.kernel("sm80_xmma_gemm_f32f32_tf32f32_f32_nn_n", t, 4000, at=t - 19)
    row = of(r.write(tmp_path / "t.json")).diagnosis.operators[0]
    # 1.0995 TFLOP at the derived 494.71 TFLOP/s of tf32: 2222.5 of 4000 us.
    assert row.limiting_ceiling.startswith("tf32")
    assert row.share_of_ceiling == pytest.approx(FLOP / 494.71488e12 / 4e-3, rel=1e-3)


def test_kernels_as_short_as_their_start_are_latency(tmp_path: Path) -> None:
    r = Recording()
    inputs = {"Input Dims": [[1024], [1024]], "Input type": ["float", "float"], "Input Strides": [[1], [1]],
              "Concrete Inputs": ["", ""]}  # fmt: skip
    for n in range(300):
        t = 1000 + n * 10
        r.host("cpu_op", "aten::mul", t, 4, **inputs)
        r.kernel("vectorized_elementwise_kernel", t + 5, 2, at=t + 1)
    d = of(r.write(tmp_path / "t.json")).diagnosis
    # 12 KB at 3.35 TB/s are 3.7 ns of 2 us.
    assert d.verdict.bound is Bound.LATENCY
    assert d.operators[0].bound is Bound.LATENCY
    assert d.time_shares["memory"] == 0


def test_d37_collective_moe_and_copy_are_told_apart(tmp_path: Path) -> None:
    r = Recording()
    r.kernel("ampere_bf16_s16816gemm_128x128", 0, 60_000)
    r.kernel(ALL_REDUCE, 40_000, 40_000, stream=9)
    r.kernel("ncclKernel_SendRecv", 80_000, 10_000, stream=9)
    r.kernel("fused_moe_kernel", 90_000, 30_000)
    r.host("cuda_sync", "Stream Sync", 0, 120_000)
    r.copy(120_000, 10_000, 100_000_000)
    d = of(r.write(tmp_path / "t.json")).diagnosis
    # Compute 90 of 130 ms (nothing tells what it computes), 30 ms of communication alone, 10 ms of a copy, no idle time.
    assert d.step.median_s == pytest.approx(0.130)
    assert area(d, "network").time_s == pytest.approx(0.030)
    assert area(d, "host").time_s == pytest.approx(0.010)
    assert area(d, "unattributed").time_s == pytest.approx(0.090)
    assert sum(d.time_shares.values()) == pytest.approx(1.0)


def test_d36_kernels_at_once_are_counted_once(tmp_path: Path) -> None:
    r = Recording()
    for name, start, length, stream in (("a", 0, 100, 1), ("b", 0, 100, 2), ("c", 50, 100, 3), ("d", 150, 0, 1)):
        r.kernel(name, start, length, stream=stream)
    d = of(r.write(tmp_path / "t.json")).diagnosis
    assert d.step.median_s == pytest.approx(150e-6)
    assert sum(o.time_s for o in d.operators) == pytest.approx(150e-6)


def test_d38_missing_kernels_of_graphs_make_no_host_bound(tmp_path: Path) -> None:
    r = Recording()
    for n in range(200):
        r.calls += 1
        r.host("cuda_runtime", "cudaGraphLaunch", n * 36_210, 10, correlation=r.calls)
        if n < 12:
            r.events.append({"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": n * 36_210 + 20, "dur": 5250,
                             "args": {"device": 0, "stream": 7, "correlation": r.calls}})  # fmt: skip
    r.kernel("last", 7_241_000, 1000)
    d = of(r.write(tmp_path / "t.json")).diagnosis
    assert d.verdict.bound is Bound.UNDETERMINED
    assert d.time_shares["host"] < 0.01
    assert any(f.code == "graph_kernels_missing" for f in d.findings)
    assert not [a for a in d.advice if "host" in a.rule]


def test_host_copies_are_the_hosts_and_said_so(tmp_path: Path) -> None:
    r = Recording()
    for n in range(10):
        r.copy(n * 1000, 1000, 32_000_000)
    d = of(r.write(tmp_path / "t.json")).diagnosis
    # 32 MB over 64 GB/s: 500 of 1000 us.
    assert d.verdict.bound is Bound.HOST
    assert "copies between host and device" in d.verdict.sentence
    assert area(d, "host").share_of_ceiling == pytest.approx(0.5)
    assert d.verdict.headroom_s == pytest.approx(0.5 * d.step.median_s)
    assert any("pageable" in e for e in d.verdict.evidence)


def test_ranks_are_diagnosed_one_by_one_and_the_straggler_is_named(tmp_path: Path) -> None:
    paths = []
    for rank in range(2):
        r = Recording()
        late = 600 if rank == 1 else 0
        for n in range(4):
            t = 1000 + n * 2000
            r.step(n, t, 2000)
            r.product(t, 1200 + late, at=t - 20)
            r.kernel(ALL_REDUCE, t + 1200 + late, 800 - late, stream=9, **REDUCE)
        paths.append(r.write(tmp_path / f"rank{rank}.json", rank=rank, world=2))
    job = diagnose(*map(open_trace, paths), hardware="h100-sxm", node_devices=8).job
    assert job is not None
    assert [name for name, _ in job.ranks] == ["0", "1"]
    assert job.straggler == "1"
    assert job.ranks[job.shown][0] == "1"
    # Rank 0 communicates 800 of 2000 us, rank 1 200: the time of the others is waiting for rank 1.
    shares = [devices[0].diagnosis.time_shares["network"] for _, devices in job.ranks]
    assert shares == pytest.approx([0.4, 0.1])


def test_short_names_of_templates_are_one_kernel(tmp_path: Path) -> None:
    r = Recording()
    head = "void at::native::(anonymous namespace)::CatArrayBatchedCopy<at::native::(anonymous namespace)::OpaqueType"
    for n in range(4):
        r.kernel(f"{head}<{n}u>, unsigned int, 4, 64, 64>(int)", n * 100, 100)
    d = of(r.write(tmp_path / "t.json")).diagnosis
    assert [(o.name, o.calls) for o in d.operators] == [("CatArrayBatchedCopy", 4.0)]


def test_kernel_table_ranks_by_recoverable_seconds(tmp_path: Path) -> None:
    found = of(products_and_messages(tmp_path, product=1500, message=500))
    gemm = next(r for r in found.table.rows if r.name.startswith("sm90_xmma_gemm"))
    assert gemm.rank == 1
    assert gemm.modelled_s == pytest.approx(FLOP / PEAK, rel=1e-3)
    assert gemm.ratio == pytest.approx(1.5e-3 / (FLOP / PEAK), rel=1e-3)
    assert [name for name, _ in found.table.in_no_model] == [
        next(o.label for o in found.diagnosis.operators if o.category == "collective")
    ]
    assert found.table.kernel_sum_s == pytest.approx(2e-3)
    assert found.table.gap_s == pytest.approx(0.0, abs=1e-9)


def test_mfu_of_a_profile_is_unknown_where_matrix_kernels_are_not_counted(tmp_path: Path) -> None:
    whole = of(products_and_messages(tmp_path, product=1500, message=500)).diagnosis
    # 1.0995 TFLOP in 2 ms at 989.43 TFLOP/s: 55.6 %.
    assert is_known(whole.mfu_ratio)
    assert whole.mfu_ratio == pytest.approx(FLOP / PEAK / 2e-3, rel=1e-3)
    r = Recording()
    for n in range(4):
        start = 1000 + n * 2000
        r.step(n, start, 2000)
        r.product(start, 1500, at=start - 20)
        r.kernel("another_gemm_kernel", start + 1500, 500)
    part = of(r.write(tmp_path / "u.json")).diagnosis
    assert isinstance(part.mfu_ratio, Unknown)
    assert "lower bound" in part.mfu_ratio.reason


def test_evidence_carries_its_grade(tmp_path: Path) -> None:
    d = of(products_and_messages(tmp_path, product=1500, message=500)).diagnosis
    grades = {g.value for g in Grade}
    assert d.verdict.evidence
    assert all(e.rpartition("[")[2].rstrip("]") in grades for e in d.verdict.evidence)


def test_ceilings_of_a_host_do_not_bound_an_accelerator(tmp_path: Path) -> None:
    # One product of 1111.26 us at the peak takes 1389.08 us: 0.80 of the H100's 989.4 TFLOP/s. Over the 338 GFLOP/s that a
    # laptop reached it would be 2,342 times "the ceiling".
    made = Recording()
    for i in range(4):
        made.step(i, 2000 * i, 2000)
        made.product(2000 * i + 100, 1389.08, at=2000 * i + 10)
    path = made.write(tmp_path / "trace.json")
    laptop = Ceilings(
        ceilings=(
            Ceiling(
                resource=Resource(area=Area.COMPUTE, dtype="bf16", accumulate="f32", engine="matrix"),
                value=338e9, unit="FLOP/s", kind=Kind.MEASURED, scope="node", source="mansard measure",
            ),
        ),
        source="ceilings.json",
    )  # fmt: skip
    found = diagnose(path, ceilings=laptop)[0].diagnosis
    row = next(o for o in found.operators if "gemm" in o.name)
    assert row.ceiling_value == pytest.approx(PEAK, rel=1e-3)
    assert row.share_of_ceiling == pytest.approx(0.8, rel=1e-3)
    assert any(n.code == "ceilings_of_another_machine" for n in found.findings)
    assert not any(n.code == "ceilings_of_another_machine" for n in diagnose(path)[0].diagnosis.findings)


def test_work_that_nobody_counted_is_not_zero(tmp_path: Path) -> None:
    # A kernel launched by no operator: its FLOP are unknown, and a step of it has not 0 FLOP of matrix work.
    made = Recording()
    for i in range(4):
        made.step(i, 2000 * i, 2000)
        made.kernel("volta_sgemm_64x64_tn", 2000 * i + 100, 1500, at=2000 * i + 10)
        made.copy(2000 * i + 1700, 10, 4096)
    found = diagnose(made.write(tmp_path / "trace.json"))[0].diagnosis
    assert isinstance(found.flop_per_step, Unknown)


def test_what_is_missing_is_asked_for_where_it_can_help(tmp_path: Path) -> None:
    # Shapes were recorded; the second product was launched before the profile began. Shapes would not tell what it is.
    made = Recording()
    for i in range(4):
        made.step(i, 4000 * i, 4000)
        made.product(4000 * i + 100, 1000, at=4000 * i + 10)
        made.kernel("sm90_xmma_gemm_bf16bf16_bf16f32", 4000 * i + 1200, 2500)
    found = diagnose(made.write(tmp_path / "trace.json"))[0].diagnosis
    lost = next(o for o in found.operators if isinstance(o.flop, Unknown))
    assert "call that launched it is not in the file" in lost.flop.reason
    assert "starts before the launch" in lost.flop.needs[0]
    assert not any("record_shapes" in need for need in lost.flop.needs)


def test_a_model_whose_work_is_used_up_leaves_the_others_unknown() -> None:
    # Two kernels of a category: one moves 100 B by its record; the model counts 80 B for both. What the other moves is not
    # known then, and is not nothing. Where the model counts 150 B, it gets the 50 B that are left: 50 B in 10 ns.
    length = np.array([20.0, 10.0])
    rate = np.array([5.0, np.nan])  # 100 B in 20 ns
    assert _share_out(rate, np.array([0, 1]), length, 80.0).size == 0
    assert np.isnan(rate[1])
    assert _share_out(rate, np.array([0, 1]), length, 150.0).tolist() == [1]
    assert rate[1] == 5.0
    # A category for which the model counts nothing at all does nothing.
    none = np.array([0.0, np.nan])
    assert _share_out(none, np.array([0, 1]), length, 0.0).tolist() == [1]
    assert none[1] == 0.0


def test_a_file_with_next_to_nothing_of_the_host_makes_no_host_bound(tmp_path: Path) -> None:
    # One kernel of 1.2 ms (0.3 %) in a step of 413 ms; one operator of 145 us is all that was recorded of the host.
    rec = Recording()
    rec.step(1, 0, 413_000)
    rec.host("cpu_op", "aten::mm", 331_000, 145, **MM)
    rec.kernel("cutlass_gemm", 395_000, 1_200, at=331_010)
    verdict = of(rec.write(tmp_path / "one.json")).diagnosis.verdict
    assert verdict.bound is Bound.UNDETERMINED
    assert "1 piece of device work" in verdict.sentence
    assert "Python functions of the host" in verdict.needs[0]


def test_a_host_that_was_recorded_is_the_cause_however_few_kernels_there_are(tmp_path: Path) -> None:
    rec = Recording()
    rec.step(1, 0, 400_000)
    rec.host("cpu_op", "aten::prepare", 1_000, 300_000)  # most of the time before the kernel
    rec.kernel("cutlass_gemm", 331_050, 1_200, at=331_010)
    assert of(rec.write(tmp_path / "busy.json")).diagnosis.verdict.bound is Bound.HOST


def test_the_document_says_which_sums_are_lower_limits(tmp_path: Path) -> None:
    def limits(*, more: bool) -> tuple[list[str], float]:
        rec = Recording()
        rec.step(1, 0, 10_000)
        rec.product(100, 2_000, at=10)
        if more:  # a quarter of the kernel time of which nothing is known
            rec.kernel("mystery", 2_200, 700, at=20)
        document = to_document(of(rec.write(tmp_path / "l.json")).diagnosis, schema="diagnose/1")
        return document["lower_limits"], document["flop_per_step"]

    assert limits(more=False) == ([], FLOP)
    names, flop = limits(more=True)
    assert flop == FLOP, "the sum is of the product alone"
    assert {"flop_per_step", "bytes_per_step"} <= set(names)
