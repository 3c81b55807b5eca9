"""Steps of a JAX run from launches, marks and annotations; hand-made timelines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mansard.trace.jax_events import Executions, HostEvents
from mansard.trace.jax_marks import marks_of, unprofiled
from mansard.trace.jax_steps import (
    Runs,
    find_steps,
    rounds_of,
    runs_of,
    smallest_period,
    steps_between,
    steps_by_period,
)


@pytest.mark.parametrize(
    ("sequence", "expected"),
    [
        ([], None),
        ([1], None),
        ([1, 1], None),
        ([1, 1, 1], (1, 0)),
        ([1, 2, 1, 2], None),
        ([7, 8, 9, 1, 2, 3, 1, 2, 3, 1, 2, 3], (3, 3)),
        ([1, 1, 2, 1, 1, 2, 1, 1, 2], (3, 0)),
        ([1, 2, 3, 4, 5], None),
    ],
)
def test_smallest_period(sequence: list[int], expected: tuple[int, int] | None) -> None:
    assert smallest_period(sequence) == expected


@given(st.lists(st.integers(0, 3), min_size=1, max_size=5), st.integers(3, 8), st.lists(st.integers(5, 9), max_size=3))
def test_a_repeated_block_has_a_period_that_divides_it(block: list[int], times: int, head: list[int]) -> None:
    found = smallest_period(head + block * times)
    assert found is not None
    period, start = found
    assert len(block) % period == 0
    assert start <= len(head)


def host(calls: Sequence[tuple[int, str]] = (), compile_: Any = (), annotations: Any = ()) -> HostEvents:
    def pairs(rows: Any, width: int = 2) -> Any:
        return np.array(rows, dtype=np.int64).reshape(-1, width)

    return HostEvents(
        launch=pairs(()), compile=pairs(compile_), wait=pairs(()), execute=pairs(()), calls=tuple(calls),
        annotations=pairs(annotations, 3),
    )  # fmt: skip


def runs(
    start: list[int], launched: list[int] | None = None, program: list[int] | None = None, length: int = 5
) -> Runs:
    n = len(start)
    return Runs(
        start_ns=np.array(start),
        end_ns=np.array(start) + length,
        program=np.array(program or [0] * n),
        names=("jit_step", "jit_log"),
        launched_ns=np.array(launched or start),
        device=np.zeros(n, dtype=np.int64),
    )


def test_boundaries_on_the_host_follow_the_launches_to_the_device() -> None:
    # three passes, launched at 12, 22, 32 between marks at 10, 20, 30, 40; the device runs them late, at 100, 200, 300
    late = runs([100, 200, 300, 400], launched=[12, 22, 32, 42])
    start, end, followed = steps_between(np.array([10, 20, 30, 40]), late)
    assert followed
    assert start.tolist() == [100, 200, 300]
    assert end.tolist() == [200, 300, 400]


def test_a_pass_without_a_launch_joins_the_one_before() -> None:
    start, end, followed = steps_between(np.array([10, 20, 30, 40]), runs([12, 32], length=3))
    assert not followed
    assert start.tolist() == [12, 32]
    assert end.tolist() == [32, 40]


def test_launches_are_matched_to_runs_in_order() -> None:
    executions = Executions(
        start_ns=np.array([100, 105, 200, 300]),
        end_ns=np.array([104, 110, 250, 350]),
        kind=np.array([0, 1, 0, 2]),
        kinds=(("jit_f", 1, "a"), ("jit_f", 1, "b"), ("jit_g", 2, "a")),
        run=np.array([0, 0, 1, 2]),
        device=np.zeros(4, dtype=np.int64),
        stream=np.full(4, -1),
    )
    found = runs_of(executions, host(calls=[(10, "f"), (20, "f"), (30, "g")]))
    assert found.launched_ns.tolist() == [10, 20, 30]
    assert found.start_ns.tolist() == [100, 200, 300]
    assert found.end_ns.tolist() == [110, 250, 350]
    # one launch of f is missing: its runs count from their own start
    assert runs_of(executions, host(calls=[(20, "f"), (30, "g")])).launched_ns.tolist() == [100, 200, 30]


def meta(marks: list[list[Any]], windows: list[dict[str, Any]] | None = None, counted: bool = True) -> dict[str, Any]:
    return {"marks": marks, "windows": windows or [], "loops": [{"file": "a/train.py", "line": 31, "counted": counted}]}


def test_marks_of_a_loop() -> None:
    (marks,) = marks_of(meta([[10, "loop#0", 1, 1], [20, "loop#0", 2, 1], [90, "loop#0", 9, 2]]))
    assert (marks.source, marks.note) == ("loop", "one pass of the loop at train.py:31")
    assert marks.steps.tolist() == [1, 7]
    (blind,) = marks_of(meta([[10, "loop#0", 1, 1], [20, "loop#0", 2, 1], [90, "loop#0", 3, 2]], counted=False))
    assert blind.steps.tolist() == [1, -1]


def test_markers_come_before_optimizers_before_loops() -> None:
    found = marks_of({"marks": [[1, "loop#0", 1, 1], [2, "optimizer#0", None, 0], [3, "marker", None, 0]], "loops": []})
    assert [m.source for m in found] == ["marker", "optimizer", "loop"]


def test_steps_from_loop_marks_leave_out_compilation_and_the_first_pass() -> None:
    (marks,) = marks_of(meta([[t, "loop#0", t // 10, 1] for t in range(10, 80, 10)]))
    found = find_steps(runs([12, 22, 32, 42, 52, 62]), host(compile_=[(33, 36)]), [marks], (0, 100), first=True)
    assert found is not None
    assert found.source == "loop"
    # passes start at 12 22 32 42 52 62; the first is warm-up, the one at 32 compiles, nothing follows the last
    assert found.start_ns.tolist() == [22, 42, 52]
    assert found.end_ns.tolist() == [32, 52, 62]
    assert found.skipped == 3


def test_rounds_between_two_marks_are_divided_by_their_launches() -> None:
    (marks,) = marks_of(meta([[10, "loop#0", 1, 1], [20, "loop#0", 2, 1], [50, "loop#0", 5, 2]]))
    found = find_steps(runs([12, 22, 32, 42]), host(), [marks], (0, 100), first=False)
    assert found is not None
    assert found.start_ns.tolist() == [12, 22, 32]


def test_annotated_steps_win() -> None:
    (marks,) = marks_of(meta([[t, "loop#0", t // 10, 1] for t in range(10, 80, 10)]))
    found = find_steps(
        runs([12, 22, 32, 42]), host(annotations=[(11, 20, 0), (30, 39, 1)]), [marks], (0, 100), first=False
    )
    assert found is not None
    assert (found.source, found.start_ns.tolist(), found.end_ns.tolist()) == ("marker", [12, 32], [32, 42])


def test_periodicity_ignores_programs_of_little_time() -> None:
    # a small program after every fifth step must not make the step five times as long
    start, program = [], []
    for i in range(20):
        start.append(i * 1000)
        program.append(0)
        if i % 5 == 4:
            start.append(i * 1000 + 900)
            program.append(1)
    end = [s + (500 if p == 0 else 1) for s, p in zip(start, program, strict=True)]
    timeline = runs(start, program=program)
    timeline = Runs(
        start_ns=timeline.start_ns, end_ns=np.array(end), program=timeline.program, names=timeline.names,
        launched_ns=timeline.launched_ns, device=timeline.device,
    )  # fmt: skip
    found = steps_by_period(timeline, host(), first=False)
    assert found is not None
    assert found.note == "one repetition of jit_step"
    assert np.diff(found.start_ns).tolist() == [1000] * 18


def test_a_step_begins_after_the_longest_pause() -> None:
    start = [t for i in range(5) for t in (i * 100, i * 100 + 10)]
    found = steps_by_period(runs(start, program=[1, 0] * 5), host(), first=False)
    assert found is not None
    assert found.start_ns.tolist() == [0, 100, 200, 300]


def test_nothing_repeats() -> None:
    assert steps_by_period(runs([1, 2], program=[0, 1]), host(), first=False) is None
    assert find_steps(runs([1, 2]), host(), [], (0, 9), first=False) is None


def test_step_time_with_the_profiler_off() -> None:
    windows = [
        {"kind": "unprofiled", "complete": True, "start_ns": 21, "end_ns": 61,
         "rusage_start": {"minor_faults": 100}, "rusage_end": {"minor_faults": 140}},
        {"kind": "unprofiled", "complete": False, "start_ns": 61, "end_ns": 90},
    ]  # fmt: skip
    (marks,) = marks_of(meta([[t, "loop#0", t // 10, 1] for t in (10, 20, 30, 40, 50, 60)], windows))
    found = unprofiled(meta([], windows), marks)
    # from the mark at 20 to the mark at 60 lie 4 steps; the window is 40 ns long
    assert found.step_s == (pytest.approx(10e-9),)
    assert found.minor_faults_per_step == 10
    assert unprofiled(meta([], windows), None).step_s == ()


def test_rounds_between_sparse_marks_are_divided_by_their_launches() -> None:
    # Three rounds of programs 1, 2; the second also launches 7. Marks at 10 and 70 with 3 rounds between them.
    r = runs([12, 22, 32, 42, 52, 55, 62], program=[1, 2, 1, 2, 7, 1, 2])
    (marks,) = marks_of(meta([[10, "loop#0", 1, 1], [70, "loop#0", 4, 2]]))
    found = find_steps(r, host(), [marks], (11, 100), first=False)
    assert found is not None
    assert found.source == "loop"
    # the last round is left out: nothing follows it, so its end is not known
    assert found.start_ns.tolist() == [12, 32]
    assert found.end_ns.tolist() == [32, 55]


def test_launches_that_do_not_divide_give_no_rounds() -> None:
    assert rounds_of(np.array([1, 2, 3, 4]), 2).tolist() == []
    assert rounds_of(np.array([1, 2, 1, 2, 1, 2]), 3).tolist() == [0, 2, 4]
