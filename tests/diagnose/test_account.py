"""Time that was timed but not recorded stays unexplained."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from mansard.core import Bound, is_known
from mansard.diagnose.analyse import diagnose_run
from mansard.trace.run import WaitCause

_spec = importlib.util.spec_from_file_location("account_build", Path(__file__).with_name("build.py"))
assert _spec is not None
assert _spec.loader is not None
build = importlib.util.module_from_spec(_spec)
sys.modules["account_build"] = build
_spec.loader.exec_module(build)
ADD, GEMM, TINY, Ran = build.ADD, build.GEMM, build.TINY, build.Ran
run_of, two_core_machine = build.run_of, build.two_core_machine


def test_a_slow_moment_after_the_recording_is_not_called_dispatch() -> None:
    # Recorded: 11 ms of products, 1 ms of pauses, 12 ms a step. Timed with the profiler off: 120 ms. The 108 ms between
    # are in no record, so they are unattributed (90 %), and nobody may promise to save them.
    found = diagnose_run(
        run_of([Ran(GEMM, 11.0, pause_ms=1.0)], unprofiled_ms=120.0), two_core_machine(), program="train.py"
    )
    assert found.step.median_s == 0.120
    assert abs(found.time_shares["unattributed"] - 0.9) < 0.01
    assert abs(found.time_shares["compute"] - 11 / 120) < 0.01
    assert found.time_shares["latency"] + found.time_shares["host"] < 0.01 + 1 / 120
    assert found.verdict.bound is Bound.UNDETERMINED
    assert not is_known(found.verdict.headroom_s)
    assert "12.0 ms" in found.verdict.sentence
    assert "120 ms" in found.verdict.sentence
    assert sum(item.gain_s for item in found.advice) <= 0.012
    assert abs(sum(part.time_s for part in found.parts) - 0.120) < 1e-6


def test_a_slightly_slower_step_is_noise_and_keeps_its_shares() -> None:
    # 4 ms of additions at the rate of DRAM and 1 ms of waiting, recorded as 5 ms a step and timed as 5.5 ms.
    found = diagnose_run(
        run_of([Ran(ADD, 4.0), Ran(WaitCause.INPUT, 1.0)], unprofiled_ms=5.5), two_core_machine(), program="train.py"
    )
    assert found.verdict.bound is Bound.MEMORY
    assert abs(found.time_shares["memory"] - 0.8) < 1e-6
    assert abs(found.time_shares["host"] - 0.2) < 1e-6
    assert abs(sum(part.time_s for part in found.parts) - 5.5e-3) < 1e-9


def test_a_profiler_that_cost_time_leaves_nothing_unrecorded() -> None:
    found = diagnose_run(
        run_of([Ran(TINY, 0.003, pause_ms=0.001)] * 1000, unprofiled_ms=2.0, overhead_us=2.0),
        two_core_machine(),
        program="train.py",
    )
    assert found.time_shares["unattributed"] == 0.0
    assert found.verdict.bound is Bound.LATENCY


def test_the_profiler_is_taken_out_where_its_events_are() -> None:
    # With the profiler: 1000 operations of 2.9 us and 1.1 us after each, and 6 ms of Python: 10 ms. Each operation records 5
    # events of 0.4 us: 2 ms a step, hence 8 ms without. Inside each lie 4.5 * 0.4 = 1.8 us, around it 0.2 us.
    # Latency: 1000 * (2.9 - 1.8 + 1.1 - 0.2) us = 2 ms; Python keeps its 6 ms.
    tiny = [Ran(TINY, 0.0029, pause_ms=0.0011)] * 999 + [Ran(TINY, 0.0029, pause_ms=6.0011)]
    recorded = run_of(tiny, unprofiled_ms=8.0, overhead_us=0.4)
    recorded = replace(recorded, op_events=np.full(recorded.op.size, 5, dtype=np.int32))
    found = diagnose_run(recorded, two_core_machine(), program="train.py")
    assert abs(found.time_shares["host"] - 6 / 8) < 0.001
    assert abs(found.time_shares["latency"] - 2 / 8) < 0.001
    assert abs(found.operators[0].time_s - 1000 * 1.1e-6) < 1e-9


def test_noise_of_the_total_hits_every_part_alike() -> None:
    # 12 ms of products, 4 ms of Python after them: 16 ms recorded, 15.6 ms without the profiler, which recorded one event of
    # 0.3 us. The rest of the 0.4 ms is noise: nothing is to be taken from dispatch or Python for it.
    found = diagnose_run(
        run_of([Ran(GEMM, 12.0, pause_ms=4.0)], unprofiled_ms=15.6, overhead_us=0.3),
        two_core_machine(),
        program="train.py",
    )
    assert abs(found.time_shares["compute"] - 12 / 16) < 0.001
    assert abs(found.time_shares["host"] - 4 / 16) < 0.001
    assert abs(sum(part.time_s for part in found.parts) - 15.6e-3) < 1e-9


def test_what_is_executed_again_counts_in_hardware_flop_and_hfu_alone() -> None:
    # Three products of 2 * 1024^3 FLOP in 12 ms each at 200 GFLOP/s, one of them recomputation; 36 ms a step.
    again = replace(GEMM, recompute=True)
    found = diagnose_run(
        run_of([Ran(GEMM, 12.0), Ran(GEMM, 12.0), Ran(again, 12.0)]), two_core_machine(), program="train.py"
    )
    one = 2 * 1024**3
    assert found.flop_per_step == found.full_square_flop_per_step == 2 * one
    assert found.hardware_flop_per_step == 3 * one
    assert abs(found.mfu_ratio - 2 * one / 0.036 / 200e9) < 1e-9  # 0.597
    assert abs(found.hfu_ratio - 3 * one / 0.036 / 200e9) < 1e-9  # 0.895
    assert [(row.label, row.bound) for row in found.operators if row.recompute] == [
        ("aten::mm (recompute)", Bound.COMPUTE)
    ]
    assert found.recomputes


def test_steps_that_do_different_work_are_judged_by_their_mean() -> None:
    # Eight products of 12 ms; three steps hold one each, the fourth five. Per step: 8 / 4 = 2 products, 24 ms, 4.29 GFLOP.
    # Each needs 2 * 1024^3 / 200e9 = 10.737 ms: 10.737 / 12 = 0.895 of the ceiling, 2 * (12 - 10.737) = 2.526 ms of headroom.
    # Over the median step (12 ms) it would be 1.79 of the ceiling.
    run = run_of([Ran(GEMM, 12.0)], steps=8)
    start, end = run.steps.start_ns, run.steps.end_ns
    uneven = replace(run, steps=replace(run.steps, start_ns=start[:4], end_ns=np.concatenate([end[:3], end[7:]])))
    found = diagnose_run(replace(uneven, unprofiled_step_s=()), two_core_machine(), program="train.py")
    assert found.step.statistic == "mean"
    assert abs(found.step.median_s - 0.024) < 1e-9
    low, high = found.step.ci95_s
    assert abs(low - 0.012) + abs(high - 0.060) < 1e-9
    assert found.verdict.bound is Bound.COMPUTE
    assert abs(found.verdict.share_of_ceiling - 0.8948) < 1e-3
    assert abs(found.verdict.headroom_s - 2.526e-3) < 1e-5
    assert found.flop_per_step == 2 * 2.0 * 1024**3


def test_one_slow_step_of_the_same_work_leaves_the_median() -> None:
    # Ten steps of one product of 12 ms; the last one takes 60 ms for the same product: median 12 ms, mean 16.8 ms.
    run = run_of([Ran(GEMM, 12.0)], steps=10)
    end, edge = run.end_ns.copy(), run.steps.end_ns.copy()
    end[9] += 48_000_000
    edge[9] += 48_000_000
    slow = replace(run, end_ns=end, steps=replace(run.steps, end_ns=edge), unprofiled_step_s=())
    found = diagnose_run(slow, two_core_machine(), program="train.py")
    assert found.step.statistic == "median"
    assert abs(found.step.median_s - 0.012) < 1e-9
