"""Shapes that real results have and the shortest example of a format does not: figures are made up, the form is what programs write."""

from __future__ import annotations

import gzip
import json
import math
from typing import Any

import pytest

from mansard.core.errors import InputError
from mansard.history.compare import compare
from mansard.history.documents import read_bytes
from mansard.history.records import Measurement


def figures(content: Any) -> dict[str, Measurement]:
    raw = content if isinstance(content, str) else json.dumps(content)
    return {m.name: m for m in read_bytes(raw.encode(), source="x").measurements}


# --- nccl-tests ----------------------------------------------------------------------------------------------------------

OLD = """\
[1,0]<stdout>:$ ./build/all_gather_perf -b 8 -e 1K -g 2
[1,0]<stdout>:#   Rank  0 Pid 11 on host-a device  0 [0x00] A100-SXM4-40GB
[1,0]<stdout>:#   Rank  1 Pid 12 on host-b device  0 [0x00] A100-SXM4-40GB
[1,0]<stdout>:#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error
[1,0]<stdout>:#        (B)    (elements)                     (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
[1,0]<stdout>:          16             4   float            10.00    0.00    0.00  0e+00     9.00    0.00    0.00  0e+00
[1,0]<stdout>:        1024           256   float            20.00    0.05    0.03  4e-07    21.00    0.05    0.02  4e-07
[1,0]<stdout>:# Out of bounds values : 0 OK
"""


def test_tags_of_a_launcher_blank_operations_and_errors_that_are_deviations() -> None:
    found = figures(OLD)
    time = found["all_gather 1024 B float out-of-place/time_s"]
    assert (time.value, time.flaw) == (pytest.approx(20e-6), "")
    assert time.fingerprint.parts["device_count"] == {"ranks": "2", "nodes": "2"}
    # 16 B in 10 us is 0.0016 GB/s, which two digits do not show: said, and not left out.
    assert found["all_gather 16 B float out-of-place/algbw_bytes_per_s"].absent
    assert len(found) == 2 * 2 * 3


def test_an_older_test_that_was_wrong_somewhere_is_not_believed_anywhere() -> None:
    found = figures(OLD.replace("values : 0 OK", "values : 7 FAILED"))
    assert {m.flaw for m in found.values()} == {"7 results of the test were out of bounds"}


def test_many_wrong_results_are_printed_as_a_power_of_ten() -> None:
    header = "#  size count type redop root time algbw busbw #wrong time algbw busbw #wrong\n"
    found = figures(header + "8 2 float sum -1 5.0 1.0 1.0 1e+06 6.0 1.0 1.0 0\n")
    assert found["nccl 8 B float sum -1 out-of-place/time_s"].flaw == "1000000 results were wrong"
    assert not found["nccl 8 B float sum -1 in-place/time_s"].flaw


def test_rccl_tests_tell_the_version_of_their_library() -> None:
    # The form of ROCm 7, as its tests print it (figures of a parser's example in public).
    found = figures("""\
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 1 minBytes 1048576 maxBytes 1048576 step: 2(factor) warmup iters: 5 iters: 20
#
rccl-tests: Version develop:6405c76
# Using devices
#  Rank  0 Group  0 Pid 3252337 on node-a device  0 [0000:05:00] AMD Instinct MI350X
#  Rank  1 Group  0 Pid 3252338 on node-a device  1 [0000:15:00] AMD Instinct MI350X
RCCL version : 2.27.7-develop:29e1567
HIP version  : 7.0.51831-a3e329ad8
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
     1048576        262144     float     sum      -1    76.26   13.75   13.75      0    76.43   13.72   13.72      0
""")
    m = found["all_reduce 1048576 B float sum -1 in-place/busbw_bytes_per_s"]
    assert m.value == pytest.approx(13.72e9)
    assert m.fingerprint.parts["runtime"] == {"nccl": "2.27.7-develop:29e1567"}
    assert m.fingerprint.parts["device"] == {"name": "AMD Instinct MI350X"}


def unnamed(factor: float, ranks: int, operation: str = "sum") -> str:
    """Return what an older version prints: no word of which collective it was."""
    lines = [f"#   Rank  {i} Pid 1 on host device  {i} [0x00] A100-SXM4-40GB" for i in range(ranks)]
    lines.append(
        "#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error"
    )
    lines.append(
        f"  1024  256 float {operation} 20.0 0.05 {0.05 * factor:.2f} 0e+00 20.0 0.05 {0.05 * factor:.2f} 0e+00"
    )
    rate = f"{200 * factor:.2f}"
    lines.append(f"  8388608  2097152 float {operation} 41.9 200.00 {rate} 0e+00 41.9 200.00 {rate} 0e+00")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("factor", "ranks", "called"),
    # 8 ranks: 2 x 7 / 8 = 1.75 is an all-reduce, 7 / 8 a reduce-scatter, 1 a reduce. Of 0.5 nothing is known.
    [(1.75, 8, "nccl[busbw 1.75 algbw]"), (0.875, 8, "nccl[busbw 0.875 algbw]"), (1.0, 8, "nccl[busbw 1 algbw]"), (0.5, 8, "nccl")],
)  # fmt: skip
def test_tests_without_a_name_are_told_apart_by_their_bus_bandwidth(factor: float, ranks: int, called: str) -> None:
    found = figures(unnamed(factor, ranks))
    time = found[f"{called} 1024 B float sum in-place/time_s"]
    assert (time.value, time.single) == (pytest.approx(20e-6), True)
    assert len(found) == 2 * 2 * 3


def test_two_tests_of_one_file_are_of_as_many_ranks_as_each_of_them() -> None:
    found = figures(unnamed(1.75, 8) + unnamed(0.875, 8))
    # Eight ranks listed twice are eight; 1024 B of both tests are two benchmarks, and not two samples of one.
    assert len(found) == 2 * 2 * 2 * 3
    assert {m.fingerprint.parts["device_count"]["ranks"] for m in found.values()} == {"8"}
    assert {m.sample_count for m in found.values() if m.metric == "time_s"} == {1}


def test_columns_of_single_iterations_and_a_time_stamp_are_not_taken_for_others() -> None:
    one = "time algbw busbw #wrong i_min i_max i_p99 i_cv%"
    header = f"#  size count type redop root {one} {one} timestamp\n"
    row = "1024 256 float sum -1 50.0 2.0 3.0 0 40 60 59 7.0 51.0 2.1 3.1 0 41 61 60 8.0 2026-01-02 03:04:05\n"
    found = figures(header + row)
    assert found["nccl 1024 B float sum -1 out-of-place/time_s"].value == pytest.approx(50e-6)
    assert found["nccl 1024 B float sum -1 in-place/busbw_bytes_per_s"].value == pytest.approx(3.1e9)


def test_two_tests_in_one_file_and_a_replay_in_place_alone() -> None:
    header = "#  size count type redop root time algbw busbw #wrong time algbw busbw #wrong\n"
    row = "8 2 float sum -1 {} 1.0 1.0 0 6.0 1.0 1.0 0\n"
    text = "# Collective test starting: all_reduce_perf\n" + header + row.format("5.0")
    text += (
        "# Collective test starting: broadcast_perf\n"
        + header
        + row.format("9.0")
        + "16 4 float sum -1 7.0 1.0 1.0 0\n"
    )
    found = figures(text)
    assert found["all_reduce 8 B float sum -1 out-of-place/time_s"].samples == pytest.approx((5e-6,))
    assert found["broadcast 8 B float sum -1 out-of-place/time_s"].samples == pytest.approx((9e-6,))
    assert found["broadcast 16 B float sum -1 in-place/time_s"].samples == pytest.approx((7e-6,))
    assert "broadcast 16 B float sum -1 out-of-place/time_s" not in found


def test_the_json_of_nccl_tests() -> None:
    body = {"time": 50.0, "alg_bw": 20.0, "bus_bw": 35.0, "nwrong": 0.0}
    found = figures({
        "version": 3, "args": ["./build/all_reduce_perf", "-J", "x.json"], "env": ["HOME=/home/x", "NCCL_ALGO=Ring"], "nccl_version": 22807,
        "config": {"devices": [{"rank": r, "hostname": "a", "device": r, "device_info": "NVIDIA H100"} for r in range(2)]},
        "results": [{
            "size": 1024, "count": 256, "type": "float", "redop": "sum", "root": "    -1", "out_of_place": body,
            "in_place": {**body, "nwrong": 2.0}, "out_of_place_per_iter": {"times_us": [60.0, 62.0, 61.0]},
        }, {"size": 8, "count": 2, "type": "float", "redop": "sum", "root": "-1", "out_of_place": None, "in_place": {**body, "nwrong": None}}],
    })  # fmt: skip
    time = found["all_reduce 1024 B float sum -1 out-of-place/time_s"]
    assert time.value == pytest.approx(50e-6)
    # The variables of the library are conditions; the rest of the environment is nobody's business.
    assert time.fingerprint.parts["config"] == {"NCCL_ALGO": "Ring"}
    assert time.fingerprint.parts["device_count"] == {"ranks": "2", "nodes": "1"}
    assert found["all_reduce 1024 B float sum -1 out-of-place/latency_s"].samples == pytest.approx(
        (60e-6, 62e-6, 61e-6)
    )
    assert found["all_reduce 1024 B float sum -1 in-place/time_s"].flaw == "2 results were wrong"
    assert "all_reduce 8 B float sum -1 out-of-place/time_s" not in found


# --- nvbandwidth ---------------------------------------------------------------------------------------------------------


def test_latencies_of_nvbandwidth_are_times_and_no_bandwidths() -> None:
    case = {"status": "Passed", "bandwidth_matrix": [["N/A", "649.9"], ["0", "N/A"]]}
    found = figures({"nvbandwidth": {"testcases": [
        {**case, "name": "device_to_device_latency_sm", "bandwidth_description": "memory latency SM GPU(row) <-> GPU(column) (ns) "},
        {"name": "one_to_all_read_sm", "status": "Running"}, {"name": "one_to_all_read_sm", "status": "Waived"},
    ]}})  # fmt: skip
    latency = found["device_to_device_latency_sm 0->1/latency_s"]
    assert (latency.value, latency.more_is_better) == (pytest.approx(649.9e-9), False)
    assert found["device_to_device_latency_sm 1->0/latency_s"].absent == "its figure is 0"
    assert found["one_to_all_read_sm/bytes_per_s"].absent == "Waived: no figure"
    assert len(found) == 3


def test_what_nvbandwidth_prints() -> None:
    found = figures("""\
nvbandwidth Version: v0.8

CUDA Runtime Version: 12080
Driver Version: 572.83

host-a
Device 0: NVIDIA H200 (00000000:01:00)
Device 1: NVIDIA H200 (00000000:02:00)

Running host_to_device_memcpy_ce.
memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)
           0         1
 0     50.00     51.00

SUM host_to_device_memcpy_ce 101.00

Waived:
Running host_device_latency_sm.
memory latency SM CPU(row) <-> GPU(column) (ns)
           0         1
 0    600.00       N/A

Running device_local_copy.
ERROR: out of memory
""")
    assert found["host_to_device_memcpy_ce 0->1/bytes_per_s"].value == pytest.approx(51e9)
    assert found["host_device_latency_sm 0->0/latency_s"].value == pytest.approx(600e-9)
    assert found["device_local_copy/bytes_per_s"].absent == "ERROR: out of memory"
    assert len(found) == 4
    parts = found["host_to_device_memcpy_ce 0->0/bytes_per_s"].fingerprint.parts
    assert (parts["device"], parts["device_count"]) == ({"name": "NVIDIA H200"}, {"devices": "2"})
    assert parts["driver"] == {"driver": "572.83"}


def test_nvbandwidth_on_several_nodes_tells_its_devices_by_process() -> None:
    # The form of version 0.7, as the guide to GB200 of oracle-quickstart/oci-hpc-oke shows it.
    found = figures("""\
nvbandwidth Version: v0.7

MPI version: Open MPI v4.1.4, package: Debian OpenMPI
CUDA Runtime Version: 12080
Driver Version: 570.124.06

Process 0 (worker-0): device 0: HGX GB200 (00000008:01:00)
Process 1 (worker-1): device 0: HGX GB200 (00000008:01:00)

Running multinode_device_to_device_memcpy_read_ce.
memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)
           0         1
 0       N/A    797.95
 1    798.10       N/A

SUM multinode_device_to_device_memcpy_read_ce 1596.05
""")
    assert len(found) == 2
    m = found["multinode_device_to_device_memcpy_read_ce 1->0/bytes_per_s"]
    assert m.value == pytest.approx(798.10e9)
    assert (m.fingerprint.parts["device"], m.fingerprint.parts["device_count"]) == (
        {"name": "HGX GB200"},
        {"devices": "2"},
    )


def test_a_unit_that_is_not_known_and_a_run_that_failed_are_errors() -> None:
    case = {"name": "x", "status": "Passed", "bandwidth_matrix": [["1"]], "bandwidth_description": "x (furlongs)"}
    with pytest.raises(InputError, match="furlongs"):
        figures({"nvbandwidth": {"testcases": [case]}})
    with pytest.raises(InputError, match="no device"):
        figures({"nvbandwidth": {"error": "no device"}})


# --- nvbench, google/benchmark, pyperf -----------------------------------------------------------------------------------


def test_two_devices_of_nvbench_are_two_benchmarks() -> None:
    summaries = [{"tag": "nv/cold/time/gpu/mean", "data": [{"name": "value", "type": "float64", "value": "1e-3"}]}]
    states = [{"name": f"Device={i}", "device": i, "axis_values": None, "summaries": summaries} for i in (0, 1)]
    content = {
        "devices": [{"id": 0, "name": "A"}, {"id": 1, "name": "B"}],
        "benchmarks": [{"name": "copy", "states": states}],
    }
    found = figures(content)
    assert set(found) == {"copy device 0/time_s", "copy device 1/time_s"}
    assert found["copy device 1/time_s"].fingerprint.parts["device"] == {"name": "B"}


def test_a_state_of_nvbench_that_was_measured_again_is_one_benchmark() -> None:
    states = [
        {"device": 0, "axis_values": [{"name": "X", "type": "int64", "value": "8"}],
         "summaries": [{"tag": "nv/cold/time/gpu/mean", "data": [{"name": "value", "type": "float64", "value": f"{t}e-3"}]}]}
        for t in (1, 3, 2)
    ]  # fmt: skip
    found = figures({"devices": [{"id": 0, "name": "A"}], "benchmarks": [{"name": "copy", "states": states}]})
    assert list(found) == ["copy X=8/time_s"]
    assert found["copy X=8/time_s"].groups == ((1e-3, 3e-3, 2e-3),)


def test_fits_and_deviations_of_google_benchmark_are_no_times() -> None:
    row = {"run_name": "BM", "time_unit": "us", "repetitions": 4}
    fit = {
        **row,
        "name": "BM_BigO",
        "run_type": "aggregate",
        "aggregate_name": "BigO",
        "real_coefficient": 2.0,
        "big_o": "N",
    }
    rms = {"name": "BM_RMS", "run_name": "BM", "run_type": "aggregate", "aggregate_name": "RMS", "rms": 0.1}
    cv = {**row, "name": "BM_cv", "run_type": "aggregate", "aggregate_name": "cv", "real_time": 0.02}
    median = {**row, "name": "BM_median", "run_type": "aggregate", "aggregate_name": "median", "real_time": 3.0}
    older = [
        {"name": f"OLD/8{end}", "real_time": x, "time_unit": "ns"}
        for end, x in (("", 5.0), ("", 7.0), ("_mean", 6.0), ("_stddev", 1.0))
    ]
    found = figures({"context": {"num_cpus": 8}, "benchmarks": [fit, rms, cv, median, *older]})
    assert found["BM/time_s"].value == pytest.approx(3e-6)
    assert found["OLD/8/time_s"].samples == pytest.approx((5e-9, 7e-9))
    assert len(found) == 2


def test_a_compressed_result_is_read_and_a_damaged_one_refused() -> None:
    raw = gzip.compress(
        json.dumps({"benchmarks": [{"metadata": {"name": "sort"}, "runs": [{"values": [0.1]}]}]}).encode()
    )
    (found,) = read_bytes(raw, source="x.json.gz").measurements
    assert found.samples == (0.1,)
    with pytest.raises(InputError, match="damaged"):
        read_bytes(raw[:-12], source="x.json.gz")


# --- the published suite -------------------------------------------------------------------------------------------------


def suite(second: int, benchmark: str = "GemmBenchmark", **metrics: float) -> list[dict[str, Any]]:
    meta = {
        "benchmark_name": benchmark, "test_name": f"{benchmark}_{second}", "params": {"m": 4096, "num_runs": second % 7},
        "device_info": {"platform": "tpu", "device_count": 4, "chip_version": "TPU v6e", "jax_version": "0.10.2"},
    }  # fmt: skip
    return [{"metadata": meta, "metrics": metrics, "raw_times_ms": []}]


def test_names_of_the_suite_are_those_of_its_next_run() -> None:
    first, second = (figures(suite(s, p50_ms=2.0)) for s in (1767225600, 1767312003))
    assert set(first) == set(second) == {"GemmBenchmark m=4096/time_s"}
    parts = first["GemmBenchmark m=4096/time_s"].fingerprint.parts
    assert parts == second["GemmBenchmark m=4096/time_s"].fingerprint.parts
    assert (parts["device"], parts["framework"]) == ({"name": "TPU v6e"}, {"jax": "0.10.2"})


def test_copies_between_host_and_device_are_in_binary_units() -> None:
    found = figures(suite(1767225600, "HostToDeviceBenchmark", p50_ms=2.0, bandwidth_gb_s=10.0))
    # The suite divides MiB by 1024: 10 x 2^30 B/s. Its other rates are in 10^9.
    assert found["HostToDeviceBenchmark m=4096/bytes_per_s"].value == pytest.approx(10 * 2**30)
    other = figures(suite(1767225600, "HbmBenchmark", p50_ms=2.0, bandwidth_gb_s=10.0))
    assert other["HbmBenchmark m=4096/bytes_per_s"].value == pytest.approx(10e9)


@pytest.mark.parametrize("mark", [",", "\t"])
def test_the_summary_of_the_suite(mark: str) -> None:
    head = "m,num_runs,p50_ms,avg_ms,tflops_per_sec,bandwidth_gb_s,intensity,platform,device_count,chip_version,benchmark,test_name,KET_ms,throughput,start"
    rows = [
        "4096.0,10,2.0,2.1,500.0,,12.5,tpu,4,TPU v6e,GemmBenchmark,GemmBenchmark_1767225600,2.1,500.0,2026-01-01T00:00:00+00:00",
        ",10,,,,,,tpu,4,TPU v6e,Dead,Dead_1767225601,0.0,0.0,2026-01-01T00:00:00+00:00",
    ]
    found = figures("\n".join([head, *rows]).replace(",", mark) + "\n")
    time = found["GemmBenchmark m=4096/time_s"]
    assert (time.value, time.fingerprint.parts["config"]) == (pytest.approx(2e-3), {"m": "4096"})
    assert time.fingerprint.parts["device"] == {"name": "TPU v6e"}
    assert found["GemmBenchmark m=4096/flop_per_s"].value == pytest.approx(5e14)
    assert found["Dead/time_s"].absent == "no times"
    assert len(found) == 3


@pytest.mark.parametrize("runs", [[1.0, 2.0], [["1", "2"]], [[True, 1.0]], [None]])
def test_samples_by_hand_are_lists_of_numbers(runs: list[Any]) -> None:
    with pytest.raises(InputError, match=r"x: a run of 'b' holds .*, expected a list of numbers"):
        figures({"schema": "samples/1", "benchmarks": [{"name": "b", "runs": runs}]})


def test_a_file_that_is_nothing_known_is_named() -> None:
    with pytest.raises(InputError, match="x is empty"):
        figures(" \n")
    with pytest.raises(InputError, match="x is neither a document"):
        figures("what\n")
    with pytest.raises(InputError, match="5 stands where a text is expected"):
        figures({"schema": "samples/1", "benchmarks": [{"name": 5, "runs": [[1.0]]}]})


def test_a_compressed_document_that_is_damaged_inside_says_so() -> None:
    packed = bytearray(
        gzip.compress(json.dumps({"schema": "samples/1", "benchmarks": [{"name": "b", "runs": [[1.0]]}]}).encode())
    )
    packed[12:20] = b"\xff" * 8  # the data, behind a header that is whole
    with pytest.raises(InputError, match="x is damaged"):
        read_bytes(bytes(packed), source="x")


@pytest.mark.parametrize(
    "content",
    [
        {"schema": "samples/1", "benchmarks": [{"name": "b", "runs": [[10**400]]}]},
        {"schema": "run/1", "step": {"count": 5, "median_s": 0.1, "ci95_s": [0.09, 10**400]}},
        {"schema": "run/1", "step": {"count": math.inf, "median_s": 0.1, "ci95_s": [0.09, 0.1]}},
        {"machine_info": {}, "benchmarks": [{"name": "b", "stats": {"median": 1.0, "rounds": math.inf}}]},
        [{"schema": "detailed/1", "metadata": {"benchmark_name": "b", "params": {}}, "metrics": {"median_s": 1.0, "flop_per_s": 1.0},
          "raw_times_ms": [0.0]}],
    ],
)  # fmt: skip
def test_numbers_without_end_and_times_of_nothing_are_damage(content: Any) -> None:
    with pytest.raises(InputError, match=r"x is a damaged .* document"):
        figures(content)


def test_a_figure_beyond_all_measures_is_implausible() -> None:
    sides = [read_bytes(json.dumps({"schema": "samples/1", "benchmarks": [{"name": "b", "runs": [[v] * 5]}]}).encode(), source="x")
             for v in (1.0, 1e308, 1e-308)]  # fmt: skip
    for other in sides[1:]:
        (found,) = compare(sides[:1], [other]).results
        assert (found.verdict.value, found.code) == ("implausible", "impossible_value")
        assert "which is no measure" in found.reason
