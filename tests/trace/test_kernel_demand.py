"""FLOP and bytes that nobody types: from recorded shapes, programs, and counters, with what they cover; the scope of FLOP."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mansard.cli.main import main
from mansard.core.unknown import Unknown
from mansard.trace.kernel_demand import Counted, counted, recorded_demand, with_demand
from mansard.trace.ncu_demand import demand_of_report
from mansard.trace.open import open_trace
from mansard.trace.readers.ncu import read_report
from mansard.trace.timeline import Timeline
from mansard.trace.window import trim

MM = {"Input Dims": [[4, 6], [6, 5]], "Input type": ["float", "float"], "Input Strides": [[6, 1], [5, 1]],
      "Concrete Inputs": ["", ""]}  # fmt: skip


def event(cat: str, name: str, ts: float, dur: float, *, tid: int = 7, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur, "args": args}


def kernel(name: str, ts: float, dur: float, correlation: int) -> dict[str, Any]:
    return {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": ts, "dur": dur,
            "args": {"device": 0, "stream": 7, "correlation": correlation}}  # fmt: skip


def launch(ts: float, correlation: int) -> dict[str, Any]:
    return event("cuda_runtime", "cudaLaunchKernel", ts, 1, correlation=correlation)


# One product that launches two kernels (30 and 10 us), one operator nobody knows (20 us), one kernel whose call is lost (40 us).
EVENTS = [
    event("user_annotation", "step", 0, 500),
    event("cpu_op", "aten::mm", 10, 20, **MM), launch(12, 1), launch(15, 2),
    event("cpu_op", "mine::fused", 40, 20, **MM), launch(42, 3),
    kernel("gemm", 100, 30, 1), kernel("splitk", 130, 10, 2), kernel("fused", 150, 20, 3), kernel("stray", 200, 40, 99),
]  # fmt: skip


def write(path: Path, events: list[dict[str, Any]]) -> Path:
    device = {"id": 0, "name": "NVIDIA A100-SXM4-40GB", "numSms": 108, "totalGlobalMem": 42505273344}
    path.write_text(json.dumps({"schemaVersion": 1, "deviceProperties": [device], "traceEvents": events}))
    return path


def demanded(path: Path) -> Timeline:
    timeline = open_trace(path)
    return with_demand(timeline, recorded_demand(timeline))


def exit_code(*args: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(args))
    return int(ended.value.code or 0)


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, dict[str, Any]]:
    code = exit_code("trace", *args, "--json")
    out = capsys.readouterr()
    return code, json.loads(out.out) if out.out.startswith("{") else {"error": out.err}


def test_work_of_an_operator_is_spread_over_its_kernels_and_counted_once(tmp_path: Path) -> None:
    timeline = demanded(write(tmp_path / "t.json", EVENTS))
    found = counted(timeline)
    assert isinstance(found, Counted)
    # mm: 2 x 4 x 6 x 5 = 240 FLOP; 4 B x (24 + 30 + 20) = 296 B; known for 40 of 100 us.
    assert (found.flop, found.bytes) == (pytest.approx(240), pytest.approx(296))
    assert found.coverage_ratio == pytest.approx(0.4)
    assert found.covered.tolist() == [True, True, False, False]
    assert found.dtype == "f32"
    one = counted(timeline, np.array([0]))
    assert isinstance(one, Counted)
    assert one.flop == pytest.approx(180), "30 of its 40 us"
    assert found.unknown[0] == ("the call that launched it is not in the file", pytest.approx(0.4), 1)
    assert found.unknown[1] == ("mine::fused is not in the table of operators", pytest.approx(0.2), 1)


def test_a_window_takes_the_part_that_lies_in_it(tmp_path: Path) -> None:
    timeline = demanded(write(tmp_path / "t.json", EVENTS))
    # [115, 135) us: 15 of 30 us of the first kernel, 5 of 10 us of the second: 90 + 30 = 120 FLOP.
    found = counted(trim(timeline, 115_000, 135_000))
    assert isinstance(found, Counted)
    assert (found.flop, found.bytes) == (pytest.approx(120), pytest.approx(148))


def test_without_shapes_nothing_is_known(tmp_path: Path) -> None:
    bare = [{**e, "args": {k: v for k, v in e["args"].items() if not k.startswith("Input")}} for e in EVENTS]
    found = counted(demanded(write(tmp_path / "t.json", bare)))
    assert isinstance(found, Unknown)
    assert "--ncu REPORT.csv" in found.needs


def test_graph_replays_are_not_given_the_demand_of_what_launched_the_graph(tmp_path: Path) -> None:
    events = [
        event("cpu_op", "aten::mm", 10, 20, **MM), event("cuda_runtime", "cudaGraphLaunch", 12, 1, correlation=1),
        kernel("gemm", 100, 30, 1), kernel("gemm", 140, 30, 1),
    ]  # fmt: skip
    found = counted(demanded(write(tmp_path / "t.json", events)))
    assert isinstance(found, Counted)
    assert found.coverage_ratio == 0
    assert found.unknown[0][0].startswith("replayed by a graph")


def test_intensity_without_typing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(write(tmp_path / "t.json", EVENTS))
    code, document = run(capsys, "intensity", file, "--peak", "12 TFLOP/s", "--bandwidth", "10 MB/s")
    # 240 FLOP / 296 B; the least time 296 B / 10 MB/s = 29.6 us of the 40 us in which the covered kernels run.
    assert code == 0
    assert document["flop_per_byte"] == pytest.approx(240 / 296)
    assert (document["bound"], document["kernel_count"]) == ("memory", 2)
    assert document["share_of_ceiling"] == pytest.approx(0.74)
    assert document["gpu_kernel_union_s"] == pytest.approx(40e-6)
    assert document["coverage_ratio"] == pytest.approx(0.4)
    assert document["flop_from"][0]["grade"] == "modelled"
    assert [r["kernels"] for r in document["not_covered"]] == [1, 1]
    # Bytes of a part of the kernels are no bytes for FLOP of all of them: no class.
    code, document = run(capsys, "intensity", file, "--flops", "1000", "--peak", "12 TFLOP/s", "--bandwidth", "10 MB/s")
    assert (code, document["bound"]) == (3, "undetermined")
    assert "40.0% of the kernel time only" in document["reason"]


def test_kernels_show_operators_with_shapes_and_rates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(write(tmp_path / "t.json", EVENTS))
    code, document = run(capsys, "kernels", file)
    assert code == 0
    mm = next(o for o in document["operators"] if o["operator"] == "aten::mm")
    assert (mm["shapes"], mm["calls"], mm["kernels"], mm["flop"], mm["bytes"]) == ("f32[4,6] f32[6,5]", 1, 2, 240, 296)
    assert mm["flop_per_s"] == pytest.approx(240 / 40e-6)
    rows = {k["name"]: k for k in document["kernels"]}
    assert rows["gemm"]["flop"] == pytest.approx(180)
    assert rows["gemm"]["flop_per_byte"] == pytest.approx(240 / 296)
    assert "flop" not in rows["stray"]
    assert document["demand"]["coverage_ratio"] == pytest.approx(0.4)


# Counters of Nsight Compute, joined by name

COLUMNS = ("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size", "Grid Size", "Device", "CC",
           "gpu__time_duration.sum", "dram__bytes_read.sum", "dram__bytes_write.sum", "sm__inst_executed_pipe_tensor.sum",
           "sm__sass_thread_inst_executed_op_fadd_pred_on.sum", "sm__sass_thread_inst_executed_op_fmul_pred_on.sum",
           "sm__sass_thread_inst_executed_op_ffma_pred_on.sum")  # fmt: skip
UNITS = ("",) * 11 + ("us", "Kbyte", "Kbyte", "inst", "inst", "inst", "inst")


def report(path: Path, rows: list[tuple[str, float, float, int]]) -> Path:
    """Write kernels: name, KB read, KB written, fused multiply-adds."""
    with path.open("w", newline="") as file:
        out = csv.writer(file, quoting=csv.QUOTE_ALL)
        out.writerow(COLUMNS)
        out.writerow(UNITS)
        for number, (name, read, write_, ffma) in enumerate(rows):
            out.writerow(
                [number, 1, "p", "h", name, 1, 7, "(1,1,1)", "(1,1,1)", 0, "8.0", 10, read, write_, 0, 5, 0, ffma]
            )
    return path


def test_counters_join_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    timeline = open_trace(write(tmp_path / "t.json", EVENTS))
    csv_file = report(tmp_path / "r.csv", [("gemm", 2, 1, 100), ("fused", 4, 4, 0), ("fused", 4, 4, 0), ("stray", 1, 1, 10),
                                           ("stray", 9, 9, 10)])  # fmt: skip
    found = demand_of_report(timeline, read_report(csv_file))
    # gemm: 5 adds + 2 x 100 = 205 FLOP, 3000 B; fused: both launches agree: 8000 B; stray: they differ: bytes unknown.
    assert found.flop.tolist()[0] == 205
    assert (found.bytes.tolist()[0], found.bytes.tolist()[2]) == (3000, 8000)
    assert np.isnan(found.bytes[3])
    assert found.reasons[found.reason[3]].startswith("its counters differ from launch to launch")
    assert found.reasons[found.reason[1]] == "the report has no kernel of this name"
    # Measured figures win over counted ones; what the report lacks comes from shapes.
    both = counted(with_demand(timeline, [found, *recorded_demand(timeline)]))
    assert isinstance(both, Counted)
    assert both.any_flop == pytest.approx(205 + 60 + 5 + 25)  # splitk: 240 x 10 / 40; stray: FLOP agree: 5 + 2 x 10
    code, document = run(capsys, "kernels", str(tmp_path / "t.json"), "--ncu", str(csv_file))
    assert code == 0
    assert [d["grade"] for d in document["demand"]["bytes_from"]] == ["measured", "modelled"]


def test_equal_counts_join_one_by_one(tmp_path: Path) -> None:
    events = [kernel("k", 10, 5, 1), kernel("k", 30, 5, 2)]
    timeline = open_trace(write(tmp_path / "t.json", events))
    found = demand_of_report(timeline, read_report(report(tmp_path / "r.csv", [("k", 1, 0, 0), ("k", 3, 0, 0)])))
    assert found.bytes.tolist() == [1000, 3000]


def test_a_report_is_judged_at_its_own_clocks(shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Case N01: 1e6 FLOP over 13,801,632 B = 0.0725 FLOP/B, far below the ridge of 9.3191: memory.
    code, document = run(capsys, "intensity", str(shared / "data/traces/ncu/t4_mlp_full_set.raw.csv"))
    assert (code, document["bound"]) == (0, "memory")
    assert document["flop_per_byte"] == pytest.approx(0.072455, rel=1e-4)
    assert document["ridge_flop_per_byte"] == pytest.approx(9.3191, rel=1e-4)
    assert document["bytes"] == 13801632
    assert document["flop_from"][0]["grade"] == "measured"


def test_products_of_a_real_profile(shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Case K04: 48 products [8944, 1024] x [1024, 2816] of 51,581,550,592 FLOP in 4,015,501 ns: 616.589 TFLOP/s.
    code, document = run(capsys, "kernels", str(shared / "data/traces/kineto/h100_qwen1.5-0.5b.json.gz"))
    assert code == 0
    row = next(o for o in document["operators"] if o["shapes"] == "bf16[8944,1024] bf16[1024,2816]")
    assert (row["calls"], row["kernels"], row["flop"]) == (48, 48, 48 * 51581550592)
    assert row["flop_per_s"] == pytest.approx(616.589e12, rel=1e-4)
    # Case K02 and the causal count of attention: 24 x 4 x 16 x 16 x 64 x (559 x 560 / 2).
    assert document["demand"]["flop"] == pytest.approx(
        5514536717248 + 24 * 4 * 16 * 16 * 64 * (559 * 560 // 2), rel=1e-9
    )


def test_collective_with_its_size(shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Case K08: 402,176 B in 21,953 ns = 18.32 GB/s, x 7/8 = 16.03.
    _, document = run(capsys, "kernels", str(shared / "data/traces/kineto/b200x8_tp8_eager.json.gz"))
    row = next(c for c in document["collectives"] if c["operation"] == "all_gather")
    assert (row["message_bytes"], row["group_size"], row["calls"]) == (402176, 8, 1)
    assert row["algbw_bytes_per_s"] == pytest.approx(18.3199e9, rel=1e-4)
    assert row["busbw_bytes_per_s"] == pytest.approx(16.0299e9, rel=1e-4)


def test_programs_inside_an_xplane(shared: Path) -> None:
    pytest.importorskip("jaxlib")
    timeline = demanded(shared / "data/traces/xplane/mi300x_conv_jax0.8.xplane.pb")
    on_one = timeline.of(next(iter(timeline.tables))).device == 1
    found = counted(timeline, timeline.tables[next(iter(timeline.tables))].device == 1)
    assert on_one.any()
    assert isinstance(found, Counted)
    # One convolution: 34 x 31 x 53 places x 5120 channels x (16 x 1 x 2 x 2) products x 2 FLOP, run five times.
    assert found.flop == pytest.approx(5 * 34 * 31 * 53 * 5120 * 64 * 2)
    assert found.dtype == "bf16"
    assert found.coverage_ratio > 0.97


# MFU: FLOP of a model by hand, and their scope

CONFIG = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 128,
          "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1000,
          "max_position_embeddings": 512, "torch_dtype": "bfloat16", "tie_word_embeddings": False, "hidden_act": "silu"}  # fmt: skip


def steps(count: int) -> list[dict[str, Any]]:
    """One region that holds `count` steps of 100 us, each with a kernel of 50 us."""
    events = [event("user_annotation", "region", 0, 100 * count)]
    for i in range(count):
        events += [
            event("user_annotation", f"ProfilerStep#{i}", 100 * i, 100), launch(100 * i + 10, i + 1),
            kernel("gemm", 100 * i + 20, 50, i + 1),
        ]  # fmt: skip
    return events


def test_mfu_from_a_configuration_counted_by_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    file = str(write(tmp_path / "t.json", steps(3)))
    words = ["mfu", file, "--region", "ProfilerStep#1", "--model", str(tmp_path / "config.json"), "--batch", "2", "--seq", "16",
             "--dtype", "bf16", "--peak", "1 TFLOP/s"]  # fmt: skip
    code, document = run(capsys, *words)
    # Per token: q 64x64, k and v 64x32, o 64x64, gated MLP 3x64x128 = 36,864 MAC a layer; head 64,000 MAC.
    # Forward: 32 tokens x 2 x (2 x 36,864 + 64,000) + attention 2 x 2 sequences x 2 x 2 x 64 x (16 x 17 / 2) = 8,953,856.
    # Training: three times that, 26,861,568 FLOP in 100 us of 1 TFLOP/s: 26.86 %.
    assert code == 0
    assert document["flop"] == 26_861_568
    assert document["mfu_ratio"] == pytest.approx(0.26861568)
    assert document["kernel_union_ratio"] == pytest.approx(0.53723136)
    assert document["hfu_ratio"] >= document["mfu_ratio"]
    assert document["tokens_per_s"] == pytest.approx(32 / 100e-6)
    assert "3 x the forward pass" in document["flop_source"]
    missing = " ".join(document["missing_before_quoting"])
    assert "accumulation" in missing
    assert "tokens, micro-batch" not in missing
    _, forward = run(capsys, *words, "--phase", "prefill")
    assert forward["flop"] < 26_861_568 / 3 + 1


def test_one_forward_over_five_steps_is_named_before_any_percentage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(write(tmp_path / "t.json", steps(5)))
    words = ["trace", "mfu", file, "--region", "region", "--flops", "131.94 TFLOP", "--peak", "989e6 TFLOP/s"]
    assert exit_code(*words) == 3
    text = capsys.readouterr().out
    assert "one forward, five steps" in text
    assert "%" not in text.split("one forward, five steps")[0]
    assert "MFU                unknown" in text
    # Said to be those of a step: five times; said to be those of the region: as given. 131.94e12 / (500 us x 989e18) = 26.7 %.
    code, whole = run(capsys, *words[1:], "--flops-of", "region")
    assert code == 0
    assert whole["mfu_ratio"] == pytest.approx(131.94e12 / (500e-6 * 989e18))
    _, step = run(capsys, *words[1:-1], "9890e6 TFLOP/s", "--flops-of", "step")
    assert step["flop"] == pytest.approx(5 * 131.94e12)
    assert step["steps_in_region"] == 5


def test_recorded_flop_are_executed_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events = [e for e in EVENTS if e["name"] not in ("mine::fused", "fused", "stray")]
    file = str(write(tmp_path / "t.json", events))
    words = ["mfu", file, "--region", "step", "--peak", "1 MFLOP/s"]
    code, document = run(capsys, *words)
    # 240 FLOP in 500 us of 1 MFLOP/s: HFU 48 %; MFU only once it is said that nothing was recomputed.
    assert code == 3
    assert "unknown" in document["mfu_ratio"]
    assert document["hfu_ratio"] == pytest.approx(0.48)
    code, document = run(capsys, *words, "--recompute", "none")
    assert code == 0
    assert document["mfu_ratio"] == pytest.approx(0.48)
    # Given FLOP that are not what the operators recorded are named: forward only, or another region.
    _, document = run(capsys, *words, "--flops", "80")
    (said,) = [f["text"] for f in document["findings"] if f["code"] == "recorded_flop_differ"]
    assert "3.00 times" in said
    # More than 1.5 times, either way, is other work, as in diagnose: no utilisation of it. 180 FLOP may be without what was recomputed.
    for given, known in (("80", False), ("161", True), ("180", True), ("359", True), ("361", False)):
        code, document = run(capsys, *words, "--flops", given)
        assert code == (0 if known else 3)
        assert isinstance(document["mfu_ratio"], float) is known
    code, document = run(capsys, *words, "--flops", "160", "--executed-flops", "240")
    assert document["hfu_ratio"] == pytest.approx(0.48)


def test_xla_json_with_counted_costs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def named(pid: int, tid: int, what: str, name: str) -> dict[str, Any]:
        return {"ph": "M", "pid": pid, "tid": tid, "name": what, "args": {"name": name}}

    events = [
        named(3, 0, "process_name", "/device:TPU:0"), named(3, 1, "thread_name", "XLA Ops"),
        named(701, 0, "process_name", "/host:CPU"), named(701, 2, "thread_name", "python"),
        {"ph": "X", "pid": 701, "tid": 2, "ts": 0, "dur": 90, "name": "train", "args": {"step_num": "4"}},
        {"ph": "X", "pid": 3, "tid": 1, "ts": 10, "dur": 20, "name": "fusion.1",
         "args": {"model_flops": "4000", "bytes_accessed": "1000", "hlo_category": "convolution fusion"}},
        {"ph": "X", "pid": 3, "tid": 1, "ts": 40, "dur": 20, "name": "copy.2", "args": {}},
    ]  # fmt: skip
    path = tmp_path / "t.trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    code, document = run(capsys, "intensity", str(path), "--peak", "1 GFLOP/s", "--bandwidth", "60 MB/s")
    # 4000 FLOP / 1000 B; least time 1000 B / 60 MB/s = 16.7 us of 20 us; known for half of the kernel time.
    assert (code, document["flop_per_byte"], document["bound"]) == (0, 4.0, "memory")
    assert document["coverage_ratio"] == 0.5
    _, found = run(capsys, "regions", str(path))
    assert [r["region"] for r in found["regions"]] == ["train"]


def test_a_recording_opens_at_its_last_profiled_window(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    windows = [
        {"kind": "profiled", "files": {"torch": ["kineto.json"]}, "start_ns": 0, "end_ns": 1},
        {"kind": "unprofiled", "files": {}, "start_ns": 1, "end_ns": 2},
        {"kind": "profiled", "files": {"torch": ["kineto.json"]}, "start_ns": 2, "end_ns": 3},
    ]
    meta = {"schema": "recording/1", "state": "finished", "exit": {"kind": "normal", "code": 0}, "findings": [], "windows": windows,
            "frameworks": ["torch"]}  # fmt: skip
    (tmp_path / "meta.json").write_text(json.dumps(meta))
    for number, events in ((0, EVENTS), (2, steps(3))):
        (tmp_path / f"window-{number}" / "torch").mkdir(parents=True)
        write(tmp_path / f"window-{number}" / "torch" / "kineto.json", events)
    code, document = run(capsys, "summary", str(tmp_path))
    assert (code, document["format"], document["kernel_count"]) == (0, "recording", 3)
    assert any(f["code"] == "last_window" for f in document["findings"])
    (tmp_path / "meta.json").write_text(json.dumps({**meta, "windows": []}))
    assert run(capsys, "summary", str(tmp_path))[0] == 4
