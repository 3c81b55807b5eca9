"""Files told apart by content, a model spread over kernels, measured points, and the real profiles through the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mansard.cli.main import main
from mansard.core.errors import InputError, UsageError
from mansard.core.unknown import Unknown
from mansard.diagnose.candidates import side_by_side
from mansard.diagnose.facts import points_of
from mansard.diagnose.inputs import kind_of, sort_inputs
from mansard.diagnose.kernel_table import kernel_table
from mansard.diagnose.model_demand import ModelGroup, with_model
from mansard.diagnose.profile import Question, diagnose_profile
from mansard.predict.estimate import Request, estimate
from mansard.trace.kernel_demand import counted, with_demand
from mansard.trace.ncu_demand import demand_of_report
from mansard.trace.open import open_trace
from mansard.trace.profile_steps import find_steps
from mansard.trace.readers.ncu import Report
from mansard.trace.timeline import Timeline
from mansard.workload.model.load import load_model


def exit_code(*args: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["diagnose", *args])
    return int(ended.value.code or 0)


def profile(path: Path, kernels: list[tuple[str, float]], *, steps: int = 2) -> Path:
    """Steps of the same kernels one behind the other; lengths in us."""
    events: list[dict[str, Any]] = []
    length = sum(d for _, d in kernels)
    for n in range(steps):
        now = 1000.0 + n * length
        events.append({"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{n}", "pid": 1, "tid": 7, "ts": now, "dur": length,
                       "args": {}})  # fmt: skip
        for name, duration in kernels:
            events.append({"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": now, "dur": duration,
                           "args": {"device": 0, "stream": 7, "correlation": len(events)}})  # fmt: skip
            now += duration
    device = [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}]
    path.write_text(json.dumps({"schemaVersion": 1, "deviceProperties": device, "traceEvents": events}))
    return path


def group(name: str, *categories: str, flop: float, size: float, time_s: float = 1e-3) -> ModelGroup:
    return ModelGroup(
        name=name,
        categories=categories,
        flop=flop,
        bytes=size,
        time_s=time_s,
        dtype="bf16",
        kernels=(name,),
        launches=1.0,
    )


def of_kernels(timeline: Timeline, part: str) -> Any:
    rows = np.array([part in timeline.names[c] for c in timeline.device_work.name.tolist()])
    return counted(timeline, rows)


def test_kernels_of_a_category_share_the_model_by_their_time(tmp_path: Path) -> None:
    timeline = open_trace(
        profile(tmp_path / "p.json", [("a_gemm", 30), ("b_gemm", 10), ("flash_fwd", 5), ("mystery", 5)])
    )
    groups = (
        group("matrix products", "gemm", flop=4e12, size=8e9),
        group("attention", "attention", flop=1e12, size=2e9),
    )
    filled = with_model(timeline, groups, find_steps(timeline), source="a model")
    # Two steps: 8 TFLOP over 2 x 40 us of products, 3 : 1.
    a, b, flash = (of_kernels(filled, n) for n in ("a_gemm", "b_gemm", "flash_fwd"))
    assert (a.flop, b.flop, flash.flop) == (pytest.approx(6e12), pytest.approx(2e12), pytest.approx(2e12))
    assert a.flop + b.flop == pytest.approx(2 * 4e12)
    assert a.bytes + b.bytes == pytest.approx(2 * 8e9)
    assert isinstance(of_kernels(filled, "mystery"), Unknown) or not of_kernels(filled, "mystery").covered.any()


def test_what_is_recorded_is_taken_off_what_the_model_says(tmp_path: Path) -> None:
    timeline = open_trace(profile(tmp_path / "p.json", [("a_gemm", 30), ("b_gemm", 10)], steps=1))
    steps = find_steps(timeline)
    first = with_model(timeline, (group("matrix products", "gemm", flop=4e12, size=8e9),), steps, source="a record")
    again = with_model(first, (group("matrix products", "gemm", flop=9e12, size=9e9),), steps, source="a model")
    assert of_kernels(again, "gemm").flop == pytest.approx(4e12)  # all of it was recorded: nothing is left to share


def test_the_model_is_not_spread_where_no_step_is_marked(tmp_path: Path) -> None:
    path = profile(tmp_path / "p.json", [("a_gemm", 30), ("b_gemm", 10)])
    text = path.read_text().replace("ProfilerStep#", "no_step_")
    path.write_text(text)
    found = estimate(load_model("llama-3.1-8b"), Request(phase="decode", context=1024, batch=8))
    d = diagnose_profile(open_trace(path), Question(hardware="h100-sxm", estimate=found))[0]
    assert d.refused
    assert isinstance(d.diagnosis.mfu_ratio, Unknown)
    assert any(n.code == "model_not_used" for n in d.diagnosis.findings)


def test_a_model_makes_the_table_and_the_mfu(tmp_path: Path) -> None:
    found = estimate(load_model("llama-3.1-8b"), Request(phase="prefill", seq=2048, batch=1))
    timeline = open_trace(
        profile(tmp_path / "p.json", [("a_gemm", 60_000), ("flash_fwd_kernel", 10_000), ("mystery", 30_000)])
    )
    d = diagnose_profile(timeline, Question(hardware="h100-sxm", estimate=found))[0]
    assert not d.refused
    # Model FLOP over 100 ms at the derived dense bf16 peak of 989.43 TFLOP/s.
    assert d.diagnosis.mfu_ratio == pytest.approx(float(found.phase.model_flop) / (0.1 * 989.42976e12), rel=1e-6)
    products = next(g for g in d.table.groups if g.name == "matrix products")
    assert products.measured_s == pytest.approx(0.060)
    row = next(o for o in d.diagnosis.operators if o.name == "a_gemm")
    linear = sum(float(k.demand.total_flop) * k.count for k in found.phase.kernels if k.kind == "linear")
    assert row.flop == pytest.approx(linear)
    assert row.bound.value == "compute"
    assert [n for n, _ in d.table.in_no_model] == ["mystery"]
    assert "embedding" in " ".join(d.table.never_ran) or d.table.never_ran
    assert kernel_table(d.diagnosis).groups == ()


def test_counters_of_another_program_are_not_asked_for_again(tmp_path: Path) -> None:
    timeline = open_trace(profile(tmp_path / "p.json", [("a_gemm", 30), ("b_gemm", 10)]))
    foreign = Report(page="raw", kernels=(), units={})
    filled = with_demand(timeline, [demand_of_report(timeline, foreign)])
    verdict = diagnose_profile(filled, Question(hardware="h100-sxm"))[0].diagnosis.verdict
    assert verdict.sentence.endswith(
        "the report has no kernel of this name. Supply an --ncu report of the same program that holds this kernel."
    )
    assert "--model config.json" in verdict.needs


def test_files_are_told_apart_by_content(tmp_path: Path) -> None:
    def put(name: str, content: Any) -> Path:
        path = tmp_path / name
        path.write_text(json.dumps(content))
        return path

    assert kind_of(put("a", {"schema": "ceilings/1", "ceilings": []})) == "ceilings"
    assert kind_of(put("b", [{"schema": "detailed/1", "metadata": {}}])) == "detailed"
    assert kind_of(put("c", {"schema": "run/1"})) == "run"
    assert kind_of(put("d", {"model_type": "llama", "hidden_size": 8})) == "model"
    assert kind_of(put("e.json", {"traceEvents": []})) == "profile"
    assert kind_of(put("f", [{"ph": "X", "name": "a"}])) == "profile"
    assert kind_of(tmp_path / "absent") == "profile"
    with pytest.raises(UsageError, match="estimate document"):
        sort_inputs([put("g", {"schema": "estimate/1"})])
    with pytest.raises(UsageError, match="second"):
        sort_inputs([tmp_path / "a", tmp_path / "a"])
    with pytest.raises(InputError, match="damaged"):
        sort_inputs([put("h", {"schema": "ceilings/1", "ceilings": [{"resource": 1}]})])


def test_ceilings_alone_are_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "ceilings.json"
    path.write_text(json.dumps({"schema": "ceilings/1", "ceilings": []}))
    assert exit_code(str(path)) == 2
    assert "no run among the files" in capsys.readouterr().err


def point(impl: str, ms: float, **changes: Any) -> dict[str, Any]:
    meta = {"benchmark_name": "gemm", "test_name": "gemm-64", "impl": impl, "backend": "torch", "params": {"m": 64, "impl": impl, "num_runs": 3},
            "device_info": {"device_name": "X"}}  # fmt: skip
    return {"state": "done", "verdict": "normal", "metadata": meta, "metrics": {"median_s": ms * 1e-3}, **changes}


def test_measured_implementations_stand_side_by_side() -> None:
    points = [point("a", 3.0), point("b", 1.0), point("c", 0.1, verdict="implausible"), point("d", 9.0, state="failed")]
    (found,) = side_by_side(points_of(points))
    assert [(c.impl, c.time_s) for c in found] == [("b", pytest.approx(1e-3)), ("a", pytest.approx(3e-3))]


def test_a_written_diagnosis_is_an_input_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = profile(tmp_path / "p.json", [("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 100)])
    written = tmp_path / "d.json"
    assert exit_code(str(source), "--hardware", "h100-sxm", "-o", str(written)) == 0
    before = json.loads(written.read_text())
    assert exit_code(str(source), "--hardware", "h100-sxm", "-o", str(written)) == 2  # nothing is overwritten unasked
    capsys.readouterr()
    assert exit_code(str(written), "--json") == 0
    after = json.loads(capsys.readouterr().out)
    assert after["verdict"] == before["verdict"]
    assert before["verdict"]["bound"] == "network"
    assert {a["area"] for a in before["verdict"]["areas"]} == {"network"}
    assert [(p["kind"], p["length_s"]) for p in before["timeline"]["pieces"] if p["kind"] == "communication"] == [
        ("communication", pytest.approx(100e-6))
    ]


def test_host_operators_alone_need_ceilings(shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(shared / "data" / "traces" / "kineto" / "cpu_only_small.json")
    assert exit_code(path) == 3
    assert "ceilings" in capsys.readouterr().err


@pytest.mark.parametrize(
    "file",
    ["kineto/h100_bert-small.json.gz", "kineto/a100_small.json", "kineto/mi300x_torch_compile_triton.json.gz",
     "kineto/mtia_inference_rank0.json.gz", "kineto/old_capital_categories_rank1.json.gz", "nsys/2022.1_rtx2070s_pytorch.sqlite",
     "nsys/2022.4_t4_4streams.sqlite", "nsys/2025.5_rtx4060_memsetonly.sqlite", "nsys/2026.1_h100_synthetic_healthy.sqlite",
     "ncu/t4_mlp_full_set.raw.csv", "xplane/mi300x_conv_jax0.8.xplane.pb"],
)  # fmt: skip
def test_real_profiles_give_a_verdict_in_forty_lines(
    shared: Path, capsys: pytest.CaptureFixture[str], file: str
) -> None:
    path = str(shared / "data" / "traces" / file)
    code = exit_code(path)
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert code in (0, 3)
    assert len(lines) <= 52
    assert max(len(line) for line in lines) <= 80
    assert exit_code(path, "--json") == code
    document = json.loads(capsys.readouterr().out)
    assert sum(document["time_shares"].values()) == pytest.approx(1.0)
    if document["verdict"]["bound"] == "memory":
        assert any("unknown" not in str(o["bytes"]) for o in document["operators"])
    for row in document["operators"]:
        assert not (row["bound"] == "memory" and isinstance(row["bytes"], dict))
        assert not (row["flop_per_byte"] is not None and isinstance(row["bytes"], dict))


def test_two_ranks_are_shown_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = []
    for rank in range(2):
        path = profile(
            tmp_path / f"rank{rank}.json",
            [("a_gemm", 50 + 20 * rank), ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 50 - 20 * rank)],
        )
        document = json.loads(path.read_text())
        document["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": 2}
        path.write_text(json.dumps(document))
        paths.append(str(path))
    exit_code(*paths, "--hardware", "h100-sxm")
    out = capsys.readouterr().out
    assert out.startswith("Ranks")
    assert "straggler: rank 1" in out
    exit_code(*paths, "--hardware", "h100-sxm", "--json")
    document = json.loads(capsys.readouterr().out)
    assert document["straggler_rank"] == "1"
    # Communication has 50 of 100 us on rank 0, 30 of 100 us on rank 1.
    assert [r["time_shares"]["network"] for r in document["ranks"]] == [pytest.approx(0.5), pytest.approx(0.3)]
    assert exit_code(*paths, "--device", "0") == 2
