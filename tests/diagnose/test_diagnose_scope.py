"""Numerator and denominator of one work: the scope guard, its factors, and what the command line does with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mansard.cli.main import main
from mansard.core import Implausible, Unknown
from mansard.core.errors import UsageError
from mansard.diagnose.scope_guard import Seen, StatedWork, check_scope, explained_by, utilisation_of
from mansard.diagnose.target import parse_target


def exit_code(*args: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["diagnose", *args])
    return int(ended.value.code or 0)


def five_steps(tmp_path: Path) -> Path:
    """One range of 3 s that holds five steps, each a kernel of 525.6 ms: a union of 2.628 s."""
    events: list[dict[str, Any]] = [
        {
            "ph": "X",
            "cat": "user_annotation",
            "name": "forward_region",
            "pid": 1,
            "tid": 7,
            "ts": 0,
            "dur": 3_000_000,
            "args": {},
        }
    ]
    for n in range(5):
        start = 600_000 * n
        events += [
            {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{n}", "pid": 1, "tid": 7, "ts": start, "dur": 600_000, "args": {}},
            {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 7, "ts": start + 1, "dur": 2,
             "args": {"correlation": n + 1}},
            {"ph": "X", "cat": "kernel", "name": "sm90_gemm", "pid": 0, "tid": 7, "ts": start + 10, "dur": 525_600,
             "args": {"device": 0, "stream": 7, "correlation": n + 1}},
        ]  # fmt: skip
    path = tmp_path / "five.json"
    path.write_text(json.dumps({"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}],
                                "traceEvents": events}))  # fmt: skip
    return path


BASE = ("--region", "forward_region", "--hardware", "h100-sxm", "--peak", "989 TFLOP/s", "--dtype", "bf16")


def test_one_forward_over_five_steps_is_refused_before_any_percentage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = exit_code(str(five_steps(tmp_path)), *BASE, "--flops", "131.94 TFLOP", "--flops-are", "forward")
    out = capsys.readouterr().out
    # 131.94 / (2.628 x 989) = 5.08 %: a figure of one forward over five, which must not be printed as an MFU.
    assert code == 3
    assert "one forward, five steps" in " ".join(out.split())
    assert "factor of 5" in " ".join(out.split())
    assert "5.1 %" not in out
    assert "MFU ?" in out


def test_the_factor_is_in_the_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = exit_code(str(five_steps(tmp_path)), *BASE, "--flops", "131.94 TFLOP", "--json")
    document = json.loads(capsys.readouterr().out)
    assert code == 3
    assert document["scope"]["refused"] is True
    assert [(m["what"], m["factor"]) for m in document["scope"]["mismatches"]] == [("steps", 5.0)]
    assert "unknown" in document["mfu_ratio"]


def test_flop_said_to_be_of_a_step_are_taken_times_the_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exit_code(str(five_steps(tmp_path)), *BASE, "--flops", "131.94 TFLOP", "--flops-of", "step", "--json")
    document = json.loads(capsys.readouterr().out)
    # 5 x 131.94 TFLOP over the range of 3 s at 989 TFLOP/s: 22.23 %.
    assert document["mfu_ratio"] == pytest.approx(5 * 131.94e12 / (3.0 * 989e12), rel=1e-6)


def test_d08_a_total_taken_for_a_rate_is_impossible(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = five_steps(tmp_path)
    text = path.read_text().replace("525600", "54172").replace("600000", "54172.4").replace("3000000", "270862")
    path.write_text(text)
    code = exit_code(str(path), *BASE, "--flops", "989 TFLOP", "--flops-of", "region", "--json")
    document = json.loads(capsys.readouterr().out)
    # 989e12 / 0.270862 s = 3651 TFLOP/s = 3.69 times the peak.
    assert code == 3
    assert document["mfu_ratio"]["implausible"] == pytest.approx(3.69, rel=0.01)
    assert "a total taken for a rate, or another region" in document["mfu_ratio"]["suspects"]


def test_whose_devices_flop_are_must_be_said() -> None:
    refused = check_scope(StatedWork(flop=8e15, span="step"), Seen(steps=1, devices=8))
    assert [(m.what, m.factor) for m in refused.mismatches] == [("devices", 8.0)]
    job = check_scope(StatedWork(flop=8e15, span="step", all_devices=True), Seen(steps=1, devices=8))
    assert job.flop_per_step == pytest.approx(1e15)
    # 3.9 PFLOP in 1.232 s on eight devices of 989 TFLOP/s: 40.0 %.
    work = check_scope(StatedWork(flop=3.9e15, span="step", all_devices=True), Seen(steps=1, devices=8))
    assert utilisation_of(work, Seen(steps=1, devices=8), step_s=1.232, peak_flop_per_s=989e12) == pytest.approx(
        0.400, abs=5e-4
    )


def test_a_plan_for_other_devices_is_named() -> None:
    found = check_scope(StatedWork(flop=1e15, span="step", devices=2), Seen(steps=1, devices=8))
    assert found.mismatches[0].what == "devices"
    assert found.mismatches[0].factor == 4.0


def test_forward_alone_against_forward_and_backward() -> None:
    forward = check_scope(StatedWork(flop=1e12, of="forward", span="step"), Seen(steps=1, devices=1, backward=True))
    assert [(m.what, m.factor) for m in forward.mismatches] == [("passes", 3.0)]
    train = check_scope(StatedWork(flop=1e12, of="train", span="step"), Seen(steps=1, devices=1, backward=False))
    assert train.mismatches[0].factor == pytest.approx(1 / 3)
    # Where the profile cannot tell parts, nothing is refused for them.
    assert not check_scope(StatedWork(flop=1e12, of="train", span="step"), Seen(steps=1, devices=1)).refused


def test_micro_batches_of_one_optimizer_step() -> None:
    seen = Seen(steps=1, devices=1, backward=True, micro_batches=4)
    found = check_scope(StatedWork(flop=1e12, of="train", span="step", accumulation=1), seen)
    assert [(m.what, m.factor) for m in found.mismatches] == [("accumulation", 4.0)]
    assert not check_scope(StatedWork(flop=1e12, of="train", span="step", accumulation=4), seen).refused


def test_recorded_flop_explain_a_wrong_scope() -> None:
    seen = Seen(steps=1, devices=8, recorded_flop=1e12)
    found = check_scope(StatedWork(flop=8e12, span="step", devices=1), seen)
    assert [m.what for m in found.mismatches] == ["record"]
    assert "one device against 8" in found.mismatches[0].text
    assert (
        explained_by(24.1, Seen(steps=1, devices=8)) == "forward against forward and backward and one device against 8"
    )
    # Five per cent apart is the same work, and 1.4 times may be: what is not counted, or attention in full.
    assert not check_scope(StatedWork(flop=1.05e12, span="step", devices=1), seen).refused
    assert not check_scope(StatedWork(flop=1.4e12, span="step", devices=1), seen).refused


def test_less_recorded_work_than_was_given_is_other_work_too() -> None:
    # All operators of a step recorded 1 TFLOP, and 1.7 were given: no known factor, and beyond what counting differs by.
    found = check_scope(StatedWork(flop=1.7e12, span="step", devices=1), Seen(steps=1, devices=1, recorded_flop=1e12))
    assert found.refused
    assert isinstance(found.flop_per_step, Unknown)
    assert found.mismatches[0].factor == pytest.approx(1 / 1.7)
    assert "1.7 times as much was given" in found.mismatches[0].text
    # Where only a part is recorded, less of it says nothing.
    part = Seen(steps=1, devices=1, least_flop=1e12)
    assert not check_scope(StatedWork(flop=1.7e12, span="step", devices=1), part).refused
    # A range of five steps recorded 5 TFLOP: 1 of each.
    five = Seen(steps=5, devices=1, recorded_flop=5e12, least_flop=5e12)
    assert not check_scope(StatedWork(flop=1e12, span="step", devices=1), five).refused
    assert check_scope(StatedWork(flop=8.5e12, span="region", devices=1), five).refused


def test_work_of_a_step_needs_marked_steps() -> None:
    unmarked = Unknown("the profile marks no steps")
    found = check_scope(StatedWork(flop=1e12, span="step"), Seen(steps=unmarked, devices=1, region=False))
    assert found.mismatches[0].what == "steps"
    assert isinstance(found.mismatches[0].factor, Unknown)
    assert not check_scope(StatedWork(flop=1e12, span="region"), Seen(steps=unmarked, devices=1, region=False)).refused


def test_a_share_above_one_names_the_scopes_first() -> None:
    seen = Seen(steps=1, devices=8)
    check = check_scope(StatedWork(flop=8e12, span="step", devices=1), seen)
    found = utilisation_of(check, seen, step_s=1e-3, peak_flop_per_s=1e15)
    assert isinstance(found, Implausible)
    assert any("one device against 8" in s for s in found.suspects[:4])


@pytest.mark.parametrize(
    ("text", "name", "op", "value"),
    [("share >= 0.6", "share", ">=", 0.6), ("mfu>40%", "mfu", ">", 0.4), ("step <= 12 ms", "step", "<=", 0.012),
     (" network < 10 % ", "network", "<", 0.1)],
)  # fmt: skip
def test_targets_are_read(text: str, name: str, op: str, value: float) -> None:
    found = parse_target(text)
    assert (found.name, found.op, found.value) == (name, op, pytest.approx(value))


@pytest.mark.parametrize(
    "text", ["share", "share >= ", "share => 0.6", "__import__('os') > 0", "share >= 60", "share >= nan", "share >= 0.6 or 1",
             "step <= fast", "mfu >= 1e999", "cost <= 3"],
)  # fmt: skip
def test_what_is_no_target_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_target(text)


def test_a_missed_target_is_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(five_steps(tmp_path))
    assert exit_code(path, "--hardware", "h100-sxm", "--target", "host <= 1 %", "--target", "step <= 1 s") == 1
    out = capsys.readouterr().out
    assert "target host <= 1 %: MISSED" in out
    assert "target step <= 1 s: met" in out
    assert exit_code(path, "--hardware", "h100-sxm", "--target", "step <= 1 s") == 0
    # The share of this profile's kernels is not known: no target about it can be judged.
    assert exit_code(path, "--hardware", "h100-sxm", "--target", "share >= 0.1") == 3


def test_recorded_work_beyond_what_was_given_is_other_work() -> None:
    # A part of the operators alone did 5.35 TFLOP in a step; 1.02 were given: 5.2 times, which no recomputation explains.
    given = StatedWork(flop=1.02e12, of="forward", span="step", devices=1)
    check = check_scope(given, Seen(steps=1, devices=1, backward=False, least_flop=5.35e12))
    assert check.refused
    assert "5.2 times what was given" in check.mismatches[0].text
    # Recomputation executes a third more than the model's work: that is the same step.
    fine = check_scope(given, Seen(steps=1, devices=1, backward=False, least_flop=1.02e12 * 4 / 3))
    assert not fine.refused


@pytest.mark.parametrize(
    ("host_us", "kernel_us", "wall_us"),
    [
        # Queued behind an earlier kernel [0,9000): called at 1002, it runs [9000,17000). 1000 to 17000 holds 8000 us of waiting for that.
        ((1000, 200), (9000, 8000), 8000),
        # Longer on the host than on the device, whose work ends later: 6000 us, not the 6500 from 1000 to 7500.
        ((1000, 6000), (7000, 500), 6000),
        # All of the work ends inside the range.
        ((1000, 6000), (2000, 500), 6000),
    ],
)
def test_one_occurrence_has_one_denominator(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    host_us: tuple[int, int],
    kernel_us: tuple[int, int],
    wall_us: int,
) -> None:
    def event(cat: str, name: str, ts: int, dur: int, **args: int) -> dict[str, Any]:
        return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 7, "ts": ts, "dur": dur, "args": args}

    earlier = kernel_us[0] if wall_us == 8000 else 500
    events = [
        event("cuda_runtime", "cudaLaunchKernel", 0, 1, correlation=1), event("kernel", "a", 0, earlier, device=0, stream=7, correlation=1),
        event("user_annotation", "part", *host_us), event("cuda_runtime", "cudaLaunchKernel", 1002, 2, correlation=2),
        event("kernel", "b", *kernel_us, device=0, stream=7, correlation=2),
    ]  # fmt: skip
    path = tmp_path / "one.json"
    path.write_text(json.dumps({"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "x"}], "traceEvents": events}))  # fmt: skip
    words = (str(path), "--region", "part", "--flops", "1e9", "--peak", "1 TFLOP/s", "--json")
    # 1e9 FLOP at 1e12 FLOP/s take 1000 us.
    exit_code(*words)
    diagnosed = json.loads(capsys.readouterr().out)
    with pytest.raises(SystemExit):
        main(["trace", "mfu", *words])
    asked = json.loads(capsys.readouterr().out)
    assert asked["wall_time_s"] == pytest.approx(wall_us / 1e6)
    assert diagnosed["step"]["median_s"] == pytest.approx(wall_us / 1e6)
    assert asked["mfu_ratio"] == diagnosed["mfu_ratio"] == pytest.approx(1000 / wall_us)
    later = sum(kernel_us) > sum(host_us)
    assert ("from its start on the host to the end of its device work" in diagnosed["step"]["note"]) == later
    if wall_us == 8000:  # what waits behind other work waits for no host
        assert diagnosed["time_shares"]["host"] == 0
