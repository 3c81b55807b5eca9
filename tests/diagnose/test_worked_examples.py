"""Worked examples that people check a tool by: each through public functions, the command line where it is a matter of it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from mansard.cli.main import main
from mansard.core import Bound, Demand, Implausible, Unknown, judge, least_time
from mansard.diagnose.fixed_cost import fixed_cost_of_rows, judge_gemm
from mansard.hardware import ceilings, load
from mansard.hardware.views import (
    gemm_ridge_size,
    in_flight_bytes_per_s,
    ridge_flop_per_byte,
    ridge_points,
    square_gemm_flop_per_byte,
    transfers_in_flight,
)
from mansard.operators.elementwise import elementwise
from mansard.operators.matmul import matmul
from mansard.predict.utilisation import utilisation

# -- one forward, five steps -------------------------------------------------------------------------------------------------


def event(cat: str, name: str, ts: float, dur: float, pid: int = 7, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": 7, "ts": ts, "dur": dur, "args": args}


def profile(path: Path, *, name: str, marks: str, steps: int, step_us: float, busy_us: float, devices: int = 1) -> Path:
    """A range around `steps` marked steps, each of four products that keep every device busy for `busy_us`."""
    events = [event("user_annotation", name, 0, steps * step_us)]
    correlation = 0
    for step in range(steps):
        start = step * step_us
        events.append(event("user_annotation", f"{marks}#{step + 3}", start, step_us))
        for device in range(devices):
            for index in range(4):
                correlation += 1
                link = {"correlation": correlation, "device": device, "stream": 7}
                events.append(
                    event("cuda_runtime", "cudaLaunchKernel", start + 1 + index, 0.5, correlation=correlation)
                )
                events.append(
                    event("kernel", "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn", start + 100 + index * busy_us / 4, busy_us / 4, pid=device, **link)
                )  # fmt: skip
    chips = [
        {"id": d, "name": "NVIDIA H100 80GB HBM3", "numSms": 132, "totalGlobalMem": 85027979264} for d in range(devices)
    ]
    path.write_text(
        json.dumps({"schemaVersion": 1, "deviceProperties": chips, "traceEvents": events}), encoding="utf-8"
    )
    return path


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    with pytest.raises(SystemExit) as ended:
        main([*words, "--json"])
    return int(ended.value.code or 0), json.loads(capsys.readouterr().out)


@pytest.fixture
def five_steps(tmp_path: Path) -> Path:
    """Five steps whose kernels have a union of 2.628 s, on one device."""
    return profile(
        tmp_path / "five.json", name="train", marks="ProfilerStep", steps=5, step_us=530_000, busy_us=525_600
    )


FORWARD = ("--region", "train", "--flops", "131.94 TFLOP", "--peak", "989 TFLOP/s")


def test_one_forward_over_five_steps_is_no_mfu(five_steps: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # 131.94e12 / (2.628 x 989e12) = 5.08 %: one forward over five steps. It must be refused, with the factor named.
    assert pytest.approx(0.0508, abs=1e-4) == 131.94e12 / (2.628 * 989e12)
    code, found = run(capsys, "trace", "mfu", str(five_steps), *FORWARD)
    assert found["gpu_kernel_union_s"] == pytest.approx(2.628)
    assert (code, found["steps_in_region"]) == (3, 5)
    for ratio in ("mfu_ratio", "hfu_ratio", "kernel_union_ratio"):
        assert "one forward, five steps" in found[ratio]["unknown"]
    (scope,) = [f for f in found["findings"] if f["code"] == "scope_of_flop"]
    assert "factor of 5" in scope["text"]


def test_said_to_be_one_step_it_is_five_times_as_much(five_steps: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # 5 x 131.94e12 / (2.628 x 989e12) = 25.4 % of the union, / (2.65 x 989e12) = 25.2 % of the wall time
    _, found = run(capsys, "trace", "mfu", str(five_steps), *FORWARD, "--flops-of", "step")
    assert found["kernel_union_ratio"] == pytest.approx(0.2538, abs=1e-4)
    assert found["mfu_ratio"] == pytest.approx(0.2517, abs=1e-4)
    # MFU = kernel-union ratio x union / wall
    wall = found["wall_time_s"]
    assert found["mfu_ratio"] == pytest.approx(found["kernel_union_ratio"] * found["gpu_kernel_union_s"] / wall)


def test_mfu_without_a_region_names_those_of_the_file(five_steps: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = run(capsys, "trace", "mfu", str(five_steps), "--flops", "131.94 TFLOP", "--peak", "989 TFLOP/s")
    assert (code, found["error"]["code"]) == (2, "region_missing")
    assert found["error"]["hint"].startswith("--region 'ProfilerStep")
    assert "(of 5 steps), or 'train'" in found["error"]["hint"]


def test_diagnose_refuses_it_too(five_steps: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = run(capsys, "diagnose", str(five_steps), *FORWARD, "--flops-are", "forward")
    assert code == 3
    for figure in ("mfu_ratio", "flop_per_step"):
        assert "one forward, five steps" in found[figure]["unknown"]
    assert any("one forward, five steps" in f["text"] and "factor of 5" in f["text"] for f in found["findings"])


def test_forty_percent_on_eight_devices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # 3.9e15 / (1.232 x 8 x 989e12) = 3.9e15 / 9.7476e15 = 40.0 %
    exact = utilisation(model_flop=3.9e15, wall_s=1.232, devices=8, peak_flop_per_s=989e12)
    assert exact.mfu_ratio == pytest.approx(0.400, abs=5e-4)
    path = profile(
        tmp_path / "eight.json", name="step", marks="ProfilerStep", steps=1, step_us=1_232_000, busy_us=1_100_000, devices=8
    )  # fmt: skip
    words = ("--region", "step", "--match", "exact", "--flops", "3.9 PFLOP", "--peak", "989 TFLOP/s", "--gpus", "8")
    _, found = run(capsys, "trace", "mfu", str(path), *words)
    assert (found["devices"], found["wall_time_s"]) == (8, pytest.approx(1.232))
    assert found["mfu_ratio"] == pytest.approx(0.400, abs=5e-4)
    # over the union of 1.1 s: 44.8 %, and that is called something else
    assert found["kernel_union_ratio"] == pytest.approx(0.448, abs=5e-4)
    _, found = run(capsys, "diagnose", str(path), *words[:-2], "--flops-scope", "job", "--flops-of", "step")
    assert found["mfu_ratio"] == pytest.approx(0.400, abs=5e-4)


def test_global_flop_over_one_devices_peak_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # the same 3.9 PFLOP over one device: 3.2 times its peak
    path = profile(
        tmp_path / "one.json", name="step", marks="ProfilerStep", steps=1, step_us=1_232_000, busy_us=1_100_000
    )
    words = ("--region", "step", "--match", "exact", "--flops", "3.9 PFLOP", "--peak", "989 TFLOP/s")
    code, found = run(capsys, "trace", "mfu", str(path), *words)
    assert code == 3
    assert found["mfu_ratio"]["implausible"] == pytest.approx(3.2, abs=0.01)
    assert any("wrong device count" in s for s in found["mfu_ratio"]["suspects"])
    with pytest.raises(SystemExit) as ended:  # eight devices that the profile does not hold
        main(["trace", "mfu", str(path), *words, "--gpus", "8"])
    assert ended.value.code == 2


# -- ridge and intensity ------------------------------------------------------------------------------------------------------


def h200():
    return ceilings(load("h200"))


def peak(machine, dtype, engine="matrix") -> float:
    found = machine.peak(dtype, engine=engine, scope="device")
    assert not isinstance(found, Unknown)
    return found.value


def bandwidth(machine, level) -> float:
    found = machine.bandwidth(level, scope="device")
    assert not isinstance(found, Unknown)
    return found.value


def test_ridge_of_h200() -> None:
    # 989e12 / 4.8e12 = 206, not the 295 of an H100 (989e12 / 3.35e12); the silicon is called GH100, and an H100 has 3.35e12: 295
    assert ridge_flop_per_byte(peak(h200(), "bf16"), bandwidth(h200(), "hbm")) == pytest.approx(206, abs=0.5)
    h100 = ceilings(load("h100-sxm"))
    assert ridge_flop_per_byte(peak(h100, "bf16"), bandwidth(h100, "hbm")) == pytest.approx(295, abs=0.5)
    assert [
        round(r.flop_per_byte)
        for r in ridge_points(h200())
        if r.compute.resource.dtype == "bf16"
        and r.compute.resource.engine == "matrix"
        and r.memory.resource.level == "hbm"
    ] == [206]


def test_elementwise_addition_in_bf16() -> None:
    # two numbers read and one written, 2 B each, for one addition: 1 / 6 FLOP/B; x 4.8e12 B/s = 0.8 TFLOP/s
    n = 1e9
    add = elementwise(elements=n, inputs=[(n, "bf16"), (n, "bf16")], dtype="bf16", output="bf16")
    work = float(sum(float(f) for f in add.vector_flop.values()))
    intensity = work / float(add.bytes)
    assert intensity == pytest.approx(0.167, abs=5e-4)
    assert intensity * bandwidth(h200(), "hbm") == pytest.approx(0.8e12)
    least = least_time(add, h200(), scope="device")
    assert work / least.time_s == pytest.approx(0.8e12)  # type: ignore[operator]
    assert least.limiting is not None
    assert least.limiting.area == "memory"
    # at the roof it is memory-bound whatever its FLOP/s are of the peak
    assert judge(least, 1.1 * least.time_s).bound is Bound.MEMORY  # type: ignore[operator]


def test_square_products_in_bf16() -> None:
    # 2 N^3 FLOP over 3 N^2 x 2 B: N / 3
    for n in (512, 600, 4096):
        one = matmul(m=n, n=n, k=n, dtype="bf16")
        assert float(one.total_flop) / float(one.bytes) == pytest.approx(n / 3)
        assert square_gemm_flop_per_byte(n, element_bytes=2) == pytest.approx(n / 3)
    assert square_gemm_flop_per_byte(4096, element_bytes=2) == pytest.approx(1365, abs=0.5)


# -- GH200 and Grace at N = 512 -------------------------------------------------------------------------------------------------

WORK = 2.0 * 512**3  # 268.4 MFLOP


def test_bounds_at_512() -> None:
    # f32 and TF32 kept in 4 bytes: 2 x 512 / 12 = 85.3 FLOP/B. min(peak, 85.3 x bandwidth): Grace 7.1 (memory would allow 43.7),
    # f32 on the CUDA cores 67 (341), TF32 341 (its peak is 494).
    intensity = square_gemm_flop_per_byte(512, element_bytes=4)
    assert intensity == pytest.approx(85.3, abs=0.05)
    gpu, cpu = ceilings(load("gh200-96gb")), ceilings(load("grace"))
    bounds = [
        min(peak(cpu, "f32", "vector"), intensity * bandwidth(cpu, "dram")),
        min(peak(gpu, "f32", "vector"), intensity * bandwidth(gpu, "hbm")),
        min(peak(gpu, "tf32"), intensity * bandwidth(gpu, "hbm")),
    ]
    assert [b / 1e12 for b in bounds] == pytest.approx([7.1, 67.0, 341.0], rel=6e-3)
    # 494e12 / 4e12 = 123.5 FLOP/B, x 6 = 741
    assert gemm_ridge_size(494e12 / 4e12, element_bytes=4) == pytest.approx(741)


def rows():
    """Observed and least time of each: f32 at 23 % of 67, TF32 at 4.2 % of 494 (bound by 341), NumPy at 24 % of 7.1 TFLOP/s."""
    f32 = (WORK / 67e12 / 0.23, WORK / 67e12)
    tf32 = (WORK / 494e12 / 0.042, WORK / 341.3e12)
    numpy = (WORK / 7.1e12 / 0.24, WORK / 7.1e12)
    return f32, tf32, numpy


def test_fixed_cost_of_the_two_gpu_rows_and_of_numpy() -> None:
    # f32: 17.42 us - 4.01 = 13.4; TF32: 12.94 us - 0.79 = 12.1; NumPy: 157.5 us - 37.8 = 119.7
    f32, tf32, numpy = rows()
    gpu = fixed_cost_of_rows([f32, tf32], backend="gpu", what="products", rate=67e12)
    assert isinstance(gpu.ci95_s, tuple)
    assert [t * 1e6 for t in gpu.ci95_s] == pytest.approx([12.1, 13.4], abs=0.1)
    host = fixed_cost_of_rows([numpy], backend="numpy", what="products", rate=7.1e12)
    assert host.fixed_s == pytest.approx(120e-6, rel=0.01)


def test_sizes_that_hide_it() -> None:
    # 80 %: W / P = 4 T0, N = (2 T0 P)^(1/3): (2 x 119.7e-6 x 7.1e12)^(1/3) = 1193, (2 x 13.4e-6 x 67e12)^(1/3) = 1216,
    # (2 x 12.1e-6 x 494e12)^(1/3) = 2290
    f32, tf32, numpy = rows()
    sizes = [
        fixed_cost_of_rows([row], backend="b", what="w", rate=rate).hiding_gemm_size()
        for row, rate in ((numpy, 7.1e12), (f32, 67e12), (tf32, 494e12))
    ]
    assert sizes == pytest.approx([1200, 1200, 2300], rel=0.015)


def test_512_is_too_small_to_judge() -> None:
    f32, tf32, numpy = rows()
    for row, rate, reached in ((f32, 67e12, 0.23), (tf32, 494e12, 0.043), (numpy, 7.1e12, 0.24)):
        found = judge_gemm(fixed_cost_of_rows([row], backend="b", what="w", rate=rate), 512)
        assert found.too_small is True
        assert found.share_ratio == pytest.approx(reached, abs=5e-3)
        assert found.text.startswith("N = 512 is too small to judge")
    large = judge_gemm(fixed_cost_of_rows([f32], backend="b", what="w", rate=67e12), 4096)
    assert large.too_small is False


def test_512_as_a_measured_point(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # The two rows of the GPU as `mansard measure` would write them, and what `diagnose` says of them by the product's sheet.
    def row(impl: str, dtype: str, engine: str, seconds: float) -> dict[str, Any]:
        params = {"m": 512, "k": 512, "n": 512, "in_dtype": dtype}
        times = {"median_s": seconds, "ci95_low_s": seconds, "ci95_high_s": seconds}
        return {
            "schema": "detailed/1", "state": "done", "verdict": None, "conditions": {}, "raw_times_ms": [seconds * 1e3],
            "environment": {}, "audit": {"findings": [], "peak": [dtype, "f32", engine]},
            "metadata": {"benchmark_name": "gemm", "test_name": f"gemm[{impl}] {dtype}", "impl": impl, "backend": "torch",
                         "params": params, "device_info": {"platform": "gpu"}},
            "metrics": {**times, "headline": "flop", "flop": WORK, "bytes": 12.0 * 512**2, "working_set_bytes": 12.0 * 512**2},
        }  # fmt: skip

    f32, tf32, _ = rows()
    path = tmp_path / "detailed.json"
    path.write_text(json.dumps([row("cublas", "f32", "vector", f32[0]), row("cublas-tf32", "tf32", "matrix", tf32[0])]))
    code, found = run(capsys, "diagnose", str(path), "--hardware", "gh200-96gb")
    at = {p["dtype"]: p for p in found["points"]}
    assert at["f32"]["shares_by_kind"]["declared"] == pytest.approx(0.23, abs=1e-3)
    # TF32 at N = 512 is bound by memory: 341 of its 494 TFLOP/s, so 4.2 % of the peak are 6.1 % of what it can reach.
    assert at["tf32"]["limiting_ceiling"] == "HBM bandwidth (declared)"
    assert at["tf32"]["share_of_ceiling"] == pytest.approx(0.0607, abs=2e-4)
    # Far below any ceiling, and nothing measured says why: no bound is named, and 12.1 us and 13.4 us are the headroom.
    assert (code, {p["bound"] for p in found["points"]}) == (3, {"undetermined"})
    assert [at[t]["headroom_s"] * 1e6 for t in ("f32", "tf32")] == pytest.approx([13.4, 12.1], abs=0.1)


# -- what memory and links allow ------------------------------------------------------------------------------------------------


def test_four_gigabytes_from_512_gigabytes_per_second() -> None:
    # 4e9 / 512e9 = 7.81 ms; a claim of 5 ms would be 1.56 times the bandwidth
    cpu = ceilings(load("grace"))
    least = least_time(Demand(read_bytes=4e9), cpu, scope="device")
    assert least.time_s == pytest.approx(7.8e-3, abs=2e-5)
    claimed = judge(least, 5e-3)
    assert isinstance(claimed.share_of_ceiling, Implausible)
    assert claimed.share_of_ceiling.value == pytest.approx(1.5625)
    assert claimed.bound is Bound.UNDETERMINED
    assert any("nearer cache" in s for s in claimed.share_of_ceiling.suspects)
    honest = judge(least, 9e-3)
    assert honest.bound is Bound.MEMORY
    assert honest.share_of_ceiling == pytest.approx(7.8125 / 9)


def test_offload_of_experts() -> None:
    # 9.4 MB per expert at 220 GB/s take 42.7 us: 53 % of the measured 418, 49 % of the declared 450 GB/s.
    # To fill 418 GB/s, 418e9 x 42.7e-6 = 17.9 MB = 1.9 experts must be under way: two.
    link = ceilings(load("gh200-96gb")).link("c2c")
    assert not isinstance(link, Unknown)
    assert link.value == 450e9
    assert pytest.approx(0.526, abs=1e-3) == 220e9 / 418e9
    assert 220e9 / link.value == pytest.approx(0.489, abs=1e-3)
    one = {"transfer_bytes": 9.4e6, "bytes_per_s_of_one": 220e9}
    assert transfers_in_flight(**one, limit_bytes_per_s=418e9) == 2
    assert transfers_in_flight(**one, limit_bytes_per_s=link.value) == 3  # 2.05
    latency = 9.4e6 / 220e9
    rates = [
        in_flight_bytes_per_s(bytes_in_flight=k * 9.4e6, latency_s=latency, limit_bytes_per_s=418e9) for k in (1, 2, 3)
    ]
    assert rates == pytest.approx([220e9, 418e9, 418e9])
    # judged as work on that link: bound by it, half of it unused
    least = least_time(Demand(link_bytes={"c2c": 9.4e6}), ceilings(load("gh200-96gb")), scope="device")
    found = judge(least, latency)
    assert found.bound is Bound.NETWORK
    assert found.share_of_ceiling == pytest.approx(0.489, abs=1e-3)
    assert found.headroom_s == pytest.approx(latency - 9.4e6 / 450e9)


def test_the_measured_link_is_preferred() -> None:
    declared = ceilings(load("gh200-96gb"))
    link = declared.link("c2c")
    assert not isinstance(link, Unknown)
    measured = dataclasses.replace(link, value=418e9, kind=type(link.kind)("measured"))
    least = least_time(Demand(link_bytes={"c2c": 9.4e6}), declared.merged([measured]), scope="device")
    assert judge(least, 9.4e6 / 220e9).share_of_ceiling == pytest.approx(0.526, abs=1e-3)


def test_the_metrics_are_in_the_document_and_fit_each_other(
    five_steps: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (*FORWARD, "--flops-are", "forward", "--flops-of", "step")
    _, found = run(capsys, "diagnose", str(five_steps), *words)
    metrics = {m["name"]: m for m in found["metrics"]}
    assert all(m["definition"] and m["unit"] for m in found["metrics"])
    # five steps of 0.53 s (the region is 2.65 s), 0.5256 s of kernels each: 99.2 % busy
    assert metrics["busy_ratio"]["value"] == pytest.approx(0.5256 / 0.53, rel=1e-3)
    mfu, union = found["mfu_ratio"], metrics["kernel_union_ratio"]["value"]
    assert mfu == metrics["mfu_ratio"]["value"]
    assert mfu == pytest.approx(0.2517, abs=1e-4)
    assert union == pytest.approx(0.2538, abs=1e-4)
    assert mfu == pytest.approx(union * metrics["busy_ratio"]["value"])
    assert "unknown" in metrics["tokens_per_s"]["value"]
