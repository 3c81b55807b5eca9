"""Steps are of different work by what they do, never by how long it took."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mansard.diagnose.account import windows_of
from mansard.trace.run import Operator, RunTrace

_spec = importlib.util.spec_from_file_location("alike_build", Path(__file__).with_name("build.py"))
assert _spec is not None
assert _spec.loader is not None
build = importlib.util.module_from_spec(_spec)
sys.modules["alike_build"] = build
_spec.loader.exec_module(build)
ADD, GEMM, MYSTERY, TINY, Ran = build.ADD, build.GEMM, build.MYSTERY, build.TINY, build.Ran
EVALUATED = replace(GEMM, name="aten::addmm")


def each(steps: list[list[Ran]]) -> RunTrace:
    """Return a run whose steps are these, one after the other."""
    whole = build.run_of([ran for step in steps for ran in step], steps=1)
    lengths = [round(sum(r.length_ms + r.pause_ms for r in step) * 1e6) for step in steps]
    edges = whole.window_ns[0] + np.concatenate([[0], np.cumsum(lengths)])
    return replace(whole, steps=replace(whole.steps, start_ns=edges[:-1], end_ns=edges[1:]))


def alike(steps: list[list[Ran]]) -> bool:
    return windows_of(each(steps)).alike


def test_a_stalled_call_of_a_rare_kind_is_no_other_work() -> None:
    # One step of 20 makes one more call of 12 bytes, which stalls for 80 ms: as time it is 4 ms a step more, a quarter of it.
    usual = [Ran(GEMM, 12.0), *[Ran(ADD, 4.0 / 40)] * 40]
    assert alike([usual] * 10 + [[*usual, Ran(TINY, 80.0)]] + [usual] * 9)


def test_kinds_that_differ_in_place_alone_are_one_kind() -> None:
    # Each step cuts another piece out of one tensor: a name, shapes, FLOP and bytes; one of these calls stalls.
    cuts = [replace(ADD, formula=f"rows {i} on") for i in range(20)]
    assert alike([[Ran(GEMM, 12.0), Ran(cut, 60.0 if i == 7 else 4.0)] for i, cut in enumerate(cuts)])


def test_a_call_of_unknown_need_that_is_seen_once_proves_nothing() -> None:
    usual = [Ran(GEMM, 1.0)] * 50
    once = [*usual, Ran(MYSTERY, 500.0)]
    assert alike([usual] * 9 + [once])
    assert not alike(([usual] * 4 + [once]) * 3)


@pytest.mark.parametrize("kind", [GEMM, EVALUATED])
def test_steps_that_do_more_every_few_are_told(kind: Operator) -> None:
    # Every fifth step runs three products more: 8 in 5 steps, 1.6 a step, where the median step runs 1.
    assert not alike(([[Ran(GEMM, 12.0)]] * 4 + [[Ran(GEMM, 12.0), *[Ran(kind, 12.0)] * 3]]) * 4)


def test_many_small_calls_more_are_other_work() -> None:
    # The same bytes and FLOP to a millionth, and 100 calls more in every fourth step: 28.25 calls against a median of 4.
    small = [Ran(TINY, 0.01)]
    assert not alike(([[Ran(ADD, 4.0), *small * 3]] * 3 + [[Ran(ADD, 4.0), *small * 103]]) * 3)


def test_a_long_call_of_few_bytes_every_fourth_step_is_other_work() -> None:
    # 12 bytes more, one call in 50 more, but 8 ms beside 12 ms: 14 ms in the mean step; it comes back, so it is no stalled call.
    usual = [Ran(GEMM, 12.0 / 50)] * 50
    assert not alike(([usual] * 3 + [[*usual, Ran(TINY, 8.0)]]) * 3)


def behind(kinds: list[list[Operator]], late_ms: list[float]) -> RunTrace:
    """Return a run of steps of 10 ms, each asking for operations of 4 ms, the first of them running so much after its start."""
    op, start, operators = [], [], []
    for i, (asked, late) in enumerate(zip(kinds, late_ms, strict=True)):
        for j, kind in enumerate(asked):
            if kind not in operators:
                operators.append(kind)
            op.append(operators.index(kind))
            start.append(round((10.0 * i + late + 4.5 * j) * 1e6))
    begin = np.array(start, dtype=np.int64)
    edges = np.arange(len(kinds) + 1, dtype=np.int64) * 10_000_000
    plain = build.run_of([Ran(GEMM, 4.0)], steps=1)
    return replace(
        plain, operators=tuple(operators), op=np.array(op, dtype=np.int32), start_ns=begin, end_ns=begin + 4_000_000,
        lane=np.zeros(begin.size, dtype=np.int32), window_ns=(0, int(edges[-1])),
        steps=replace(plain.steps, start_ns=edges[:-1], end_ns=edges[1:]),
    )  # fmt: skip


#: How late the work of a step begins [ms]: in steps 4 to 20 its second product begins or ends after the step, in some both.
_LATE = [0.5, 0.5, 0.5, 3.0, 5.0, 8.0, 8.0, 3.0, 6.0, 9.0, 12.0, 12.0, 8.0, 3.0, 6.0, 9.0, 7.0, 8.0, 3.0, 3.0, 8.0]


def test_work_that_runs_behind_its_steps_is_that_of_every_step() -> None:
    run = behind([[GEMM, GEMM]] * len(_LATE), _LATE)
    index = np.searchsorted(run.steps.end_ns, run.start_ns, side="right")
    assert len(set(np.bincount(index).tolist())) > 2  # by where it ran, steps hold 0 to 3 products
    assert windows_of(run).alike


def test_work_behind_its_steps_that_not_every_step_asks_for_is_told() -> None:
    asked = [[GEMM, EVALUATED, EVALUATED] if i % 5 == 4 else [GEMM] for i in range(20)]
    assert not windows_of(behind(asked, [7.0] * 20)).alike


def test_work_that_crosses_a_single_edge_is_shared_out() -> None:
    # Of 10 steps one ends while its product runs, and the next holds the second product of both.
    late = [0.5] * 10
    late[4] = 7.0
    assert windows_of(behind([[GEMM, GEMM]] * 10, late)).alike
