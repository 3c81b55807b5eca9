"""Rules about input, launches, copies, synchronisation and compilation."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rule_cases import Ran, build, case_of, device, device_case, gemm, host_copy, on_device, run_of, said

from mansard.diagnose.analyse import diagnose_run
from mansard.diagnose.facts import Facts, LaunchGaps, MeasuredPoint, TransferFacts
from mansard.trace.run import RunTrace, WaitCause

MS = 1e-3
WORK = gemm(4096, 4096, 4096)


@pytest.mark.parametrize(
    ("rule", "cause"),
    [
        ("input_pipeline", WaitCause.INPUT), ("synchronisation", WaitCause.SYNC), ("recompilation", WaitCause.COMPILE),
        ("host_python", WaitCause.PYTHON),
    ],
)  # fmt: skip
def test_a_wait_is_saved_by_the_rule_of_its_cause_alone(rule: str, cause: WaitCause) -> None:
    waiting = case_of(run_of([Ran(cause, 5.0), Ran(build.GEMM, 12.0)]))
    found = said(rule, waiting)
    assert found is not None
    assert found.gain_s == pytest.approx(5.0 * MS, rel=1e-6)
    others = {"input_pipeline", "synchronisation", "recompilation", "host_python"} - {rule}
    assert [said(other, waiting) for other in sorted(others)] == [None, None, None]
    assert said(rule, case_of(run_of([Ran(build.GEMM, 12.0)]))) is None


def gaps_of(facts: Facts) -> object:
    """2 ms of work in a step with 1 ms in which the next kernel is launched."""
    run = on_device(run_of([Ran(WORK, 2.0, pause_ms=1.0)], floor_us=0.0))
    end = run.end_ns
    return case_of(replace(run, dispatch_start_ns=end, dispatch_end_ns=end + 1_000_000), device(), facts)


def test_late_launches_are_launch_bound() -> None:
    found = said("launch_bound", gaps_of(Facts(gaps=LaunchGaps(late_s=0.8 * MS, queued_s=0.2 * MS, launches=900))))
    assert found is not None
    assert found.gain_s == pytest.approx(0.8 * MS, rel=1e-6)
    assert "graph" in found.text
    assert "waiting for kernels that were queued already takes 200 us" in found.evidence
    alone = said("launch_bound", gaps_of(Facts(gaps=LaunchGaps(late_s=1.0 * MS, queued_s=0.0, launches=900))))
    assert alone is not None
    assert alone.evidence == (
        "for 1.00 ms of a step the device is idle because the next of 900 launches had not been called yet; it never waits for "
        "a kernel that was queued already"
    )


def test_a_deep_queue_is_not_launch_bound() -> None:
    found = said("launch_bound", gaps_of(Facts(gaps=LaunchGaps(late_s=0.1 * MS, queued_s=0.9 * MS, launches=900))))
    assert found is not None
    assert found.gain_s == pytest.approx(0.9 * MS, rel=1e-6)
    assert "the host is early enough" in found.text
    assert "graph" not in found.text


def test_a_host_that_pauses_is_neither_early_nor_slow_to_launch() -> None:
    # 0.2 ms between queued kernels, but 0.7 ms of waiting for a host that does something else: another rule's matter.
    paused = LaunchGaps(late_s=0.1 * MS, queued_s=0.2 * MS, launches=900, paused_s=0.7 * MS)
    assert said("launch_bound", gaps_of(Facts(gaps=paused))) is None


def test_launch_bound_is_silent_where_the_gaps_are_not_told_apart() -> None:
    assert said("launch_bound", gaps_of(Facts())) is None
    assert said("launch_bound", gaps_of(Facts(gaps=LaunchGaps(late_s=0.0, queued_s=0.0, launches=2)))) is None


def test_dispatch_gives_way_to_launch_bound() -> None:
    tiny: RunTrace = run_of([Ran(build.TINY, 0.0012, pause_ms=0.0008)] * 500)
    assert said("dispatch", case_of(tiny)) is not None
    assert (
        said("dispatch", case_of(tiny, facts=Facts(gaps=LaunchGaps(late_s=0.4 * MS, queued_s=0.0, launches=500))))
        is None
    )


COPY = host_copy(50e6)  # 1 ms at 50 GB/s


def test_pinned_transfers_need_pageable_memory_on_record() -> None:
    pageable = Facts(transfers={1: TransferFacts(pinned=False)})
    step = [Ran(WORK, 2.0), Ran(COPY, 5.0)]
    found = said("pinned_transfers", device_case(step, pageable))
    # 50 MB at 50 GB/s are 1 ms: 4 ms of the 5.
    assert found is not None
    assert found.gain_s == pytest.approx(4.0 * MS, rel=1e-6)
    assert "ceiling of the link" in found.evidence
    assert said("pinned_transfers", device_case(step)) is None
    assert said("pinned_transfers", device_case(step, Facts(transfers={1: TransferFacts(pinned=True)}))) is None


def test_pinned_transfers_prefer_the_measured_rate() -> None:
    point = MeasuredPoint(
        benchmark="host_to_device", impl="torch", backend="torch", name="one", params={"memory": "pinned"}, time_s=2 * MS, ci95_s=(2 * MS, 2 * MS),
        flop=0.0, bytes=50e6, dtype="f32",
    )  # fmt: skip
    facts = Facts(transfers={1: TransferFacts(pinned=False)}, points=(point,))
    found = said("pinned_transfers", device_case([Ran(WORK, 2.0), Ran(COPY, 5.0)], facts))
    # 25 GB/s measured: 2 ms of 5.
    assert found is not None
    assert found.gain_s == pytest.approx(3.0 * MS, rel=1e-6)


def test_transfers_in_flight_by_littles_law() -> None:
    # 50 GB/s x 100 us = 5 MB would fill the link; 1 MB is in flight. 5 ms less 1 ms.
    few = Facts(transfers={1: TransferFacts(latency_s=100e-6, in_flight_bytes=1e6)})
    found = said("transfers_in_flight", device_case([Ran(WORK, 2.0), Ran(COPY, 5.0)], few))
    assert found is not None
    assert found.gain_s == pytest.approx(4.0 * MS, rel=1e-6)
    assert "5.0 times as many" in found.text
    many = Facts(transfers={1: TransferFacts(latency_s=100e-6, in_flight_bytes=6e6)})
    assert said("transfers_in_flight", device_case([Ran(WORK, 2.0), Ran(COPY, 5.0)], many)) is None
    assert said("transfers_in_flight", device_case([Ran(WORK, 2.0), Ran(COPY, 5.0)])) is None


def test_overlap_copies_as_far_as_work_hides_them() -> None:
    found = said("overlap_copies", device_case([Ran(WORK, 2.0), Ran(COPY, 1.5)]))
    assert found is not None
    assert found.gain_s == pytest.approx(1.5 * MS, rel=1e-6)
    short = said("overlap_copies", device_case([Ran(WORK, 1.5), Ran(COPY, 5.0)]))
    assert short is not None
    assert short.gain_s == pytest.approx(1.5 * MS, rel=1e-6)
    assert said("overlap_copies", device_case([Ran(WORK, 2.0)])) is None


def test_a_busy_machine_comes_before_every_other_cause() -> None:
    run = run_of([Ran(build.GEMM, 20.0)])
    found = said("idle_machine", case_of(run, facts=Facts(foreign_load_ratio=0.4)))
    # 40 % of 20 ms: what others can have taken of the step at most.
    assert found is not None
    assert found.gain_s == pytest.approx(8.0 * MS, rel=1e-6)
    assert said("idle_machine", case_of(run, facts=Facts(foreign_load_ratio=0.2))) is None
    assert said("idle_machine", case_of(run)) is None
    drift = {"before": {"foreign_load_ratio": 0.3}, "after": {"foreign_load_ratio": 0.1}, "typical": {}}
    advice = diagnose_run(run, build.two_core_machine(), program="train.py", drift=drift).advice
    # 30 % of 20 ms are 6 ms; others promise more, such as 9.26 ms of below_ceiling, and come after it all the same.
    assert advice[0].rule == "idle_machine"
    assert advice[0].gain_s == pytest.approx(6.0 * MS, rel=1e-6)
    assert advice[1].gain_s > advice[0].gain_s
