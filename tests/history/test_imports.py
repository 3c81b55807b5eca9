"""Small results written by hand after the format that each program documents."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mansard.core.errors import InputError
from mansard.core.unknown import Unknown
from mansard.history.documents import read_bytes
from mansard.history.records import Measurement

NCCL = """\
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 2 minBytes 8388608 maxBytes 16777216 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0
#
# Using devices
#  Rank  0 Group  0 Pid  4711 on   node-a device  0 [0000:07:00] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid  4711 on   node-a device  1 [0000:08:00] NVIDIA H100 80GB HBM3
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
     8388608       2097152     float     sum      -1    80.00  104.86  104.86      0    82.00  102.30  102.30      0
    16777216       4194304     float     sum      -1   150.00  111.85  111.85      3   151.00  111.11  111.11    N/A
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 107.53
"""


def figures(content: Any) -> dict[str, Measurement]:
    raw = content if isinstance(content, str) else json.dumps(content)
    return {m.name: m for m in read_bytes(raw.encode(), source="x").measurements}


def test_nccl_tests() -> None:
    found = figures(NCCL)
    first = found["all_reduce 8388608 B float sum -1 out-of-place/time_s"]
    assert first.value == pytest.approx(80e-6)
    assert found["all_reduce 8388608 B float sum -1 in-place/busbw_bytes_per_s"].value == pytest.approx(102.3e9)
    assert first.fingerprint.parts["device_count"] == {"ranks": "2", "nodes": "1"}
    assert first.fingerprint.parts["device"] == {"name": "NVIDIA H100 80GB HBM3"}
    assert found["all_reduce 16777216 B float sum -1 out-of-place/time_s"].flaw == "3 results were wrong"
    assert not found["all_reduce 16777216 B float sum -1 in-place/time_s"].flaw
    assert len(found) == 2 * 2 * 3


def test_nvbandwidth() -> None:
    found = figures({"nvbandwidth": {
        "CUDA Runtime Version": 12080, "Driver Version": "570.86", "GPU Device list": ["0: NVIDIA H200 (00000000:07:00.0)"],
        "testcases": [
            {"name": "host_to_device_memcpy_ce", "status": "Passed", "bandwidth_matrix": [["55.43"]], "sum": 55.43},
            {"name": "device_to_device_memcpy_read_ce", "status": "Waived"},
        ],
    }})  # fmt: skip
    copy = found["host_to_device_memcpy_ce 0->0/bytes_per_s"]
    assert copy.value == pytest.approx(55.43e9)
    assert copy.fingerprint.parts["driver"] == {"driver": "570.86"}
    assert isinstance(found["device_to_device_memcpy_read_ce/bytes_per_s"].value, Unknown)


def test_nvbench() -> None:
    def summary(tag: str, value: str) -> dict[str, Any]:
        return {"tag": tag, "name": tag, "data": [{"name": "value", "type": "float64", "value": value}]}

    axes = [{"name": "Size", "type": "int64", "value": "1024", "input_string": "2^10"}]
    states = [
        {"name": "Device=0 Size=2^10", "device": 0, "axis_values": axes, "is_skipped": False, "summaries": [
            summary("nv/cold/time/gpu/mean", "1.0e-4"), summary("nv/cold/time/gpu/stdev/relative", "0.05"), summary("nv/cold/sample_size", "100"),
        ]},
        {"name": "Device=0 Size=2^60", "device": 0, "axis_values": [{"name": "Size", "type": "int64", "value": "1"}],
         "is_skipped": True, "skip_reason": "too large", "summaries": []},
    ]  # fmt: skip
    content = {
        "meta": {},
        "devices": [{"id": 0, "name": "NVIDIA H200"}],
        "benchmarks": [{"name": "copy", "states": states}],
    }
    found = figures(content)
    copy = found["copy Size=2^10/time_s"]
    # 100 us, 5 % deviation, 100 samples: +- 1.96 x 5 us / 10 = 0.98 us.
    assert copy.stated == pytest.approx((100e-6, 99.02e-6, 100.98e-6), rel=1e-5)
    assert copy.count == 100
    assert found["copy Size=1/time_s"].absent == "too large"


def test_google_benchmark() -> None:
    def row(name: str, kind: str, **more: Any) -> dict[str, Any]:
        return {"name": name, "run_name": "BM_copy/8", "run_type": kind, "time_unit": "us", "iterations": 10, **more}

    content = {"context": {"host_name": "h", "num_cpus": 8, "cpu_scaling_enabled": True, "library_build_type": "release"},
               "benchmarks": [row("BM_copy/8", "iteration", real_time=2.0, cpu_time=1.9), row("BM_copy/8", "iteration", real_time=4.0),
                              row("BM_copy/8_mean", "aggregate", aggregate_name="mean", real_time=3.0),
                              {"name": "BM_bad", "run_name": "BM_bad", "run_type": "iteration", "error_occurred": True, "error_message": "no",
                               "real_time": 0.0}]}  # fmt: skip
    found = figures(content)
    assert found["BM_copy/8/time_s"].samples == pytest.approx((2e-6, 4e-6))
    assert found["BM_copy/8/time_s"].fingerprint.parts["clock_policy"] == {"policy": "scaling"}
    assert found["BM_bad/time_s"].absent == "no"


def test_pyperf() -> None:
    content = {"version": "1.0", "metadata": {"unit": "second", "python_version": "3.13.0", "cpu_config": "0=driver:intel_pstate, governor:performance"},
               "benchmarks": [{"metadata": {"name": "sort"}, "runs": [
                   {"metadata": {"calibrate_loops": 4}, "warmups": [[4, 0.1]]}, {"values": [0.10, 0.11, 0.12], "warmups": [[1, 0.2]]},
                   {"values": [0.13, 0.14, 0.15]}]}]}  # fmt: skip
    found = figures(content)["sort/time_s"]
    assert found.groups == ((0.10, 0.11, 0.12), (0.13, 0.14, 0.15))
    assert found.fingerprint.parts["clock_policy"] == {"governor": "performance"}


def test_pytest_benchmark() -> None:
    stats = {"min": 0.9, "max": 1.1, "mean": 1.0, "stddev": 0.1, "rounds": 4, "median": 1.0}
    content = {
        "machine_info": {"python_version": "3.13.0", "release": "6.1", "cpu": {"brand_raw": "EPYC"}}, "commit_info": {"id": "abc"},
        "benchmarks": [{"name": "test_a", "fullname": "t.py::test_a", "stats": {**stats, "data": [0.9, 1.0, 1.0, 1.1]}},
                       {"name": "test_b", "fullname": "t.py::test_b", "stats": stats}],
    }  # fmt: skip
    found = figures(content)
    assert found["t.py::test_a/time_s"].samples == (0.9, 1.0, 1.0, 1.1)
    # The median of four rounds: 1.96 x 1.2533 x 0.1 / 2 = 0.1228.
    assert found["t.py::test_b/time_s"].stated == pytest.approx((1.0, 0.8772, 1.1228), rel=1e-4)
    assert found["t.py::test_a/time_s"].fingerprint.parts["revision"] == {"commit": "abc"}


@pytest.mark.parametrize("raw", [b"", b"{}", b"[]", b"\xff\xfe", b"hello", b'{"schema": "doctor/1"}', b'{"context": {}, "benchmarks": [{}]}',
                                 b'{"schema": "run/1"}', b'[{"schema": "detailed/1"}, 3]', b'{"nvbandwidth": {}}'])  # fmt: skip
def test_what_is_no_result_is_an_input_error(raw: bytes) -> None:
    with pytest.raises(InputError):
        read_bytes(raw, source="x")


def test_a_point_spread_over_a_time_has_the_figure_that_it_states() -> None:
    # Two fast processes gave five samples of 1 ms each, three slow ones one of 2 ms: the median of all is 1 ms, that of the moments 2 ms.
    element = {
        "schema": "detailed/1", "environment": {"cpu_model": "c"}, "state": "done", "verdict": "normal",
        "metrics": {"median_s": 0.002, "flop_per_s": 1e9},
        "metadata": {"benchmark_name": "gemm", "test_name": "gemm m=1", "backend": "jax", "params": {"dtype": "f32"}},
        "raw_times_ms": [1.0] * 5 + [2.0] + [1.0] * 5 + [2.0, 2.0],
        "samples": {"windows": [[0, 5], [1, 1], [2, 5], [3, 1], [4, 1]]},
    }  # fmt: skip
    found = figures([element])
    assert found["gemm m=1/time_s"].value == pytest.approx(0.002)
    assert found["gemm m=1/flop_per_s"].value == pytest.approx(1e9)
    assert len(found["gemm m=1/time_s"].groups) == 5


def test_samples_of_a_point_are_told_apart_by_process() -> None:
    element = {
        "schema": "detailed/1", "environment": {"cpu_model": "c"}, "state": "done", "verdict": "normal",
        "metrics": {"median_s": 0.003, "flop_per_s": 1e9, "share_of_ceiling": {"unknown": "no ceilings", "needs": []}},
        "metadata": {"benchmark_name": "gemm", "test_name": "gemm m=1", "backend": "jax", "params": {"dtype": "f32", "num_runs": 5}},
        "raw_times_ms": [1.0, 2.0, 3.0, 4.0, 5.0], "samples": {"windows": [[0, 2], [1, 1], [0, 2]]},
    }  # fmt: skip
    found = figures([element])
    assert found["gemm m=1/time_s"].groups == ((0.001, 0.002, 0.004, 0.005), (0.003,))
    # 1 GFLOP/s at the median of 3 ms is 3 MFLOP: at 1 ms that is 3 GFLOP/s.
    assert found["gemm m=1/flop_per_s"].groups[0][0] == pytest.approx(3e9)
    assert not found["gemm m=1/flop_per_s"].primary
    assert set(found) == {"gemm m=1/time_s", "gemm m=1/flop_per_s"}
    assert found["gemm m=1/time_s"].fingerprint.parts["dtype"] == {"dtype": "f32"}


def test_a_run_tells_its_step_and_its_shares() -> None:
    document = {
        "schema": "run/1", "created": "2026-01-01", "environment": {"torch": "2.13", "threads": 2}, "program": "train.py --x 1",
        "receipt": {"machine": {"cpu_model": "EPYC"}, "mfu_peak": {"resource": {"dtype": "f32"}}}, "flop_per_step": 1e9,
        "step": {"median_s": 0.2, "count": 12, "ci95_s": [0.19, 0.21]}, "mfu_ratio": 0.42, "verdict": {"share_of_ceiling": {"implausible": 1.4, "suspects": ["a"]}},
        "operators": [{"name": "mm", "part": "forward", "shapes": "f32[2,2]", "share_of_ceiling": 0.5}] * 2,
    }  # fmt: skip
    found = figures(document)
    assert found["step/step_time_s"].stated == (0.2, 0.19, 0.21)
    # A share falls as the time rises: 0.42 x 0.2 / 0.21 = 0.4.
    assert found["step/mfu_ratio"].stated == pytest.approx((0.42, 0.4, 0.42 * 0.2 / 0.19))
    assert found["step/share_of_ceiling"].flaw
    assert "mm forward f32[2,2]/share_of_ceiling" in found
    assert "mm forward f32[2,2] #2/share_of_ceiling" in found
    assert found["step/step_time_s"].fingerprint.parts["config"] == {"program": "train.py --x 1"}


def test_no_steady_steps_is_an_empty_result() -> None:
    document = {
        "schema": "run/1",
        "environment": {},
        "program": "x",
        "step": {"median_s": 0.0, "count": 0, "ci95_s": [0, 0]},
    }
    record = read_bytes(json.dumps(document).encode(), source="x")
    assert record.empty == "nothing was measured: the run has no steady steps"


def test_a_name_twice_is_refused() -> None:
    row = {"name": "a", "runs": [[1.0]]}
    with pytest.raises(InputError, match="more than once"):
        read_bytes(json.dumps({"schema": "samples/1", "benchmarks": [row, row]}).encode(), source="x")


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_sample_that_is_no_number_is_a_flaw_and_not_a_figure(word: str) -> None:
    raw = '{"schema": "samples/1", "benchmarks": [{"name": "a", "runs": [[1.0, WORD, 1.0]]}]}'.replace("WORD", word)
    (found,) = read_bytes(raw.encode(), source="x").measurements
    assert found.flaw.startswith("a sample is ")
    assert isinstance(found.value, Unknown)


def test_a_document_nested_without_end_is_an_input_error() -> None:
    with pytest.raises(InputError):
        read_bytes(b"[" * 100_000, source="x")


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        # Timed without the profiler: as they are.
        ({"steps_s": [0.1, 0.1, 0.11, 0.09, 0.1], "steps_profiled": False}, [0.1, 0.1, 0.11, 0.09, 0.1]),
        # With it, where a step of 0.1 s took 0.125 s: times 0.1 / 0.125 = 0.8.
        ({"steps_s": [0.125, 0.150], "steps_profiled": True, "profiled_median_s": 0.125}, [0.1, 0.12]),
        # Steps of different work: their spread is no noise, so the figure stays what the document states.
        ({"steps_s": [0.05, 0.15], "statistic": "mean"}, []),
        ({"steps_s": [0.125, 0.150], "steps_profiled": True}, []),
        ({}, []),
    ],
)
def test_steps_of_a_run_are_its_samples(more: dict[str, object], expected: list[float]) -> None:
    document = {
        "schema": "run/1", "created": "2026-01-01", "environment": {}, "program": "train.py", "operators": [],
        "step": {"median_s": 0.1, "count": 5, "ci95_s": [0.09, 0.11], **more},
    }  # fmt: skip
    found = read_bytes(json.dumps(document).encode(), source="run.json").measurements[0]
    assert list(found.samples) == pytest.approx(expected)
    assert (found.stated is None) == bool(expected)


def test_the_published_suite() -> None:
    meta = {
        "benchmark_name": "gemm",
        "test_name": "gemm_m4096",
        "params": {"m": 4096},
        "device_info": {"device_name": "TPU v6e"},
    }
    row = {"metadata": meta, "metrics": {"p50_ms": 2.0, "tflops_per_sec": 500.0}, "raw_times_ms": [2.0, 1.9, 2.1]}
    record = read_bytes(json.dumps([row]).encode(), source="detailed.json")
    found = {m.name: m for m in record.measurements}
    assert found["gemm_m4096/time_s"].samples == pytest.approx((2e-3, 1.9e-3, 2.1e-3))
    assert found["gemm_m4096/flop_per_s"].value == pytest.approx(5e14)
    assert found["gemm_m4096/time_s"].fingerprint.parts["device"] == {"name": "TPU v6e"}
    # Its earlier versions append a line a run; the same benchmark twice is two runs.
    line = {
        "metrics": {"step_time_ms_p50": 4.0, "step_time_ms_p90": 9.0},
        "dimensions": {"test_name": "t_gemm", "m": "8", "test_start_timestamp": "x"},
    }
    other = {**line, "metrics": {"step_time_ms_p50": 5.0}}
    text = "\n".join(json.dumps(x) for x in (line, other))
    (time,) = read_bytes(text.encode(), source="metrics_report.jsonl").measurements
    assert (time.name, time.samples) == ("t_gemm m=8/time_s", pytest.approx((4e-3, 5e-3)))
    assert not read_bytes(json.dumps([{**row, "raw_times_ms": []}]).encode(), source="d").measurements[0].groups


def test_a_document_of_another_kind_is_not_called_damaged() -> None:
    samples = b'{"schema": "samples/1", "benchmarks": [{"name": "x", "runs": [[1.0]]}]}'
    with pytest.raises(InputError, match="is no pyperf document") as caught:
        read_bytes(samples, source="x.json", form="pyperf")
    assert "looks like mansard" in caught.value.hint
