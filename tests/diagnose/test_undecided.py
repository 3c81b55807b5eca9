"""What is undecided in its parts, and a run on a busy machine: the sentences for runs whose truth is known."""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
from pathlib import Path

from mansard.diagnose.analyse import diagnose_run
from mansard.report.view import View

_spec = importlib.util.spec_from_file_location("undecided_build", Path(__file__).with_name("build.py"))
build = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = build
_spec.loader.exec_module(build)

# Both need little of their time: 10.7 ms of 100 ms at 200 GFLOP/s, 3.84 ms of 50 ms at 50 GB/s.
FAR = [build.Ran(build.GEMM, 100.0), build.Ran(build.ADD, 50.0)]
BUSY = {"before": {"foreign_load_ratio": 0.8}, "after": {"foreign_load_ratio": 0.1}}


def shown(found) -> dict:
    return View(found, 2000, 50).values()


def test_operations_far_below_are_told_with_their_own_seconds() -> None:
    found = diagnose_run(build.run_of(FAR), build.two_core_machine(), program="train.py")
    # 150 ms of 150 ms; together (10.74 + 3.84) / 150 = 9.7 %, and two thirds of the time is judged against f32 matrix
    assert found.verdict.sentence.startswith(
        "Undetermined: 2 kinds of operation run far below their ceilings for 150 ms of 150 ms a step (100 %), first aten::mm; "
        "at 9.7 % of them together, 100 ms of it judged against f32 matrix, 200 GFLOP/s, measured."
    )
    note = next(text for name, _, text in shown(found)["figures"] if name == "Share of ceiling")
    assert note == "of each operator's own ceiling; 100 ms of 150 ms of f32 matrix"


def test_steps_that_were_longer_without_the_profiler_are_not_the_recorded_ones() -> None:
    # 165 ms is 10 % more than was recorded: noise that stretches all parts alike, and no operator ran in it
    found = diagnose_run(build.run_of(FAR, unprofiled_ms=165.0), build.two_core_machine(), program="train.py")
    assert "150 ms of the 150 ms recorded a step (100 %)" in found.verdict.sentence
    assert "recorded steps of 150 ms; steps with the profiler off took 165 ms" in shown(found)["step_note"]


def test_others_on_the_machine_come_before_any_bound() -> None:
    found = diagnose_run(build.run_of(FAR), build.two_core_machine(), program="train.py", drift=BUSY)
    assert found.verdict.sentence.startswith(
        "Not a fair run: other programs used 80 % of the processors. Undetermined: "
    )
    text, why = shown(found)["first"]
    assert text.startswith("Record again on an idle machine")
    assert "If it is still slow: Find out why 2 kinds" in text
    # 80 % of 150 ms
    assert why == "others took up to 120 ms of 150 ms per step"
    quiet = {"before": {"foreign_load_ratio": 0.2}, "after": {"foreign_load_ratio": 0.0}}
    calm = diagnose_run(build.run_of(FAR), build.two_core_machine(), program="train.py", drift=quiet)
    assert "fair" not in calm.verdict.sentence


def test_unknown_and_far_below_are_told_apart() -> None:
    # 60 ms whose need is not known, 20 ms far below; 10.8 ms of 11 ms near the matrix ceiling
    steps = [build.Ran(build.MYSTERY, 60.0), build.Ran(build.ADD, 20.0), build.Ran(build.GEMM, 11.0)]
    found = diagnose_run(build.run_of(steps), build.two_core_machine(), program="train.py")
    # of 91 ms: 80 are undecided (88 %), 20 far below (22 %), 60 not known (66 %), 11 compute (12 %)
    assert found.verdict.sentence == (
        "Undetermined: 88 % of a step is open, ahead of compute (12 %): 22 % runs far below its ceilings (first aten::add); the limit of 66 % "
        "is not known (first custom::op): custom::op is not in the table."
    )
    alone = diagnose_run(build.run_of([build.Ran(build.MYSTERY, 60.0)]), build.two_core_machine(), program="train.py")
    assert alone.verdict.sentence == (
        "Undetermined: the limit of 100 % of a step is not known (first custom::op): custom::op is not in the table."
    )
    page = shown(found)
    split = {r["kind"]: r["percent"] for r in page["shares"] if r["kind"].startswith("unattributed")}
    assert split == {"unattributed, need not known": "65.9\u00a0%", "unattributed, far below ceilings": "22.0\u00a0%"}
    assert page["grade_of"] == ""  # of the undecided part there is no evidence
    assert "assumed: a heuristic" not in " ".join(page["sure"])
    assert page["sure"][0] == "the evidence is modelled for 12 % of the step; of 88 % nothing decides the limit."


def test_an_interval_that_does_not_hold_the_median_says_of_what_it_is() -> None:
    machine = build.two_core_machine()
    best, *rest = machine.ceilings
    best = dataclasses.replace(best, ci95=(190e9, 205e9), conditions={"median": 120e9})
    found = diagnose_run(build.run_of(FAR), dataclasses.replace(machine, ceilings=(best, *rest)), program="train.py")
    row = next(c for c in shown(found)["ceilings"] if c["label"].startswith("f32 matrix"))
    assert row["interval"] == "190 GFLOP/s to 205 GFLOP/s, of the best state; median of all trials 120 GFLOP/s"
