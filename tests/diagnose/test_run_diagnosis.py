from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mansard.core import Area, Bound, Demand, Implausible, Resource, Unknown
from mansard.diagnose.analyse import diagnose_run
from mansard.diagnose.records import SHARE_KINDS
from mansard.diagnose.sweep import Layer, sweep, union_ns
from mansard.trace.run import Part, WaitCause

_spec = importlib.util.spec_from_file_location("build", Path(__file__).with_name("build.py"))
assert _spec is not None
assert _spec.loader is not None
build = importlib.util.module_from_spec(_spec)
import sys  # noqa: E402

sys.modules["build"] = build
_spec.loader.exec_module(build)
Ran, run_of, GEMM, ADD, TINY, MYSTERY = build.Ran, build.run_of, build.GEMM, build.ADD, build.TINY, build.MYSTERY


def diagnose(trace):
    return diagnose_run(trace, build.two_core_machine(), program="train.py")


def test_large_products_are_compute_bound() -> None:
    found = diagnose(run_of([Ran(GEMM, 12.0)] * 4))
    assert found.verdict.bound is Bound.COMPUTE
    assert found.verdict.share_of_ceiling == pytest.approx(10.737 / 12, rel=1e-3)
    assert found.time_shares["compute"] == pytest.approx(1.0)
    assert found.flop_per_step == 4 * 2 * 1024**3
    # 8.59 GFLOP in 48 ms on 200 GFLOP/s
    assert found.mfu_ratio == pytest.approx(4 * 2 * 1024**3 / 0.048 / 200e9, rel=1e-6)
    assert found.step.median_s == pytest.approx(0.048)
    assert found.advice[0].rule == "lower_precision"
    assert found.advice[0].gain_s == pytest.approx(0.048 * (1 - 200 / 400), rel=1e-6)


def test_another_frameworks_rate_is_no_promise() -> None:
    # 400 GFLOP/s in bf16 was reached by another framework: nothing to gain here.
    ceilings = build.two_core_machine()
    moved = tuple(
        replace(c, conditions={"backend": "jax"}) if c.resource.dtype == "bf16" else c for c in ceilings.ceilings
    )
    found = diagnose_run(run_of([Ran(GEMM, 12.0)]), replace(ceilings, ceilings=moved), program="train.py")
    assert "lower_precision" not in [a.rule for a in found.advice]


def test_large_elementwise_chain_is_memory_bound_and_fusion_is_advised() -> None:
    found = diagnose(run_of([Ran(ADD, 5.0)] * 6))
    assert found.verdict.bound is Bound.MEMORY
    assert found.verdict.level == "dram"
    assert found.verdict.share_of_ceiling == pytest.approx(3.84 / 5, rel=1e-3)
    rules = [a.rule for a in found.advice]
    assert "fusion" in rules
    gain = next(a.gain_s for a in found.advice if a.rule == "fusion")
    # Each of the 5 joints of a step saves 64 MB written and 64 MB read of 192 MB; steps follow each other, so 6 joints less one in ten.
    assert gain == pytest.approx(5.9 * 5e-3 * 2 / 3, rel=0.01)
    assert gain <= 0.030


def test_tiny_operations_are_latency_bound() -> None:
    found = diagnose(run_of([Ran(TINY, 0.0012, pause_ms=0.0008)] * 1000, overhead_us=0.5))
    assert found.verdict.bound is Bound.LATENCY
    assert found.time_shares["latency"] > 0.95
    assert found.advice[0].rule == "dispatch"


def test_waiting_for_input_is_host_bound() -> None:
    found = diagnose(run_of([Ran(WaitCause.INPUT, 60.0), Ran(GEMM, 12.0)]))
    assert found.verdict.bound is Bound.HOST
    assert found.time_shares["host"] == pytest.approx(60 / 72, rel=1e-6)
    assert "input" in found.verdict.limiting_ceiling
    assert found.advice[0].rule == "input_pipeline"
    assert found.advice[0].gain_s == pytest.approx(0.060)
    parts = {p.kind: p.time_s for p in found.parts}
    assert parts[Part.INPUT.value] == pytest.approx(0.060)


def test_python_between_operations_is_host_bound() -> None:
    found = diagnose(run_of([Ran(GEMM, 12.0, pause_ms=30.0)]))
    assert found.verdict.bound is Bound.HOST
    # 1 us of each pause is the dispatch of the next operation.
    assert found.time_shares["host"] == pytest.approx((30 - 0.001) / 42, rel=1e-6)
    assert "host_python" in [a.rule for a in found.advice]


def test_a_mix_adds_up_with_the_right_shares() -> None:
    found = diagnose(run_of([Ran(GEMM, 12.0), Ran(ADD, 5.0), Ran(WaitCause.INPUT, 3.0)]))
    assert found.time_shares["compute"] == pytest.approx(0.60)
    assert found.time_shares["memory"] == pytest.approx(0.25)
    assert found.time_shares["host"] == pytest.approx(0.15)
    assert sum(found.time_shares.values()) == pytest.approx(1.0)
    assert any("memory has 25 %" in text for text in found.verdict.counter_evidence)


def test_unknown_demand_is_unattributed_and_named() -> None:
    found = diagnose(run_of([Ran(MYSTERY, 20.0), Ran(GEMM, 12.0)]))
    assert found.verdict.bound is Bound.UNDETERMINED
    assert found.time_shares["unattributed"] == pytest.approx(20 / 32)
    assert found.attributed_ratio == pytest.approx(12 / 32)
    assert any(n.code == "unknown_demand" and "custom::op" in n.text for n in found.findings)


def test_faster_than_the_ceiling_is_implausible_not_good() -> None:
    found = diagnose(run_of([Ran(GEMM, 5.0)]))
    assert found.verdict.bound is Bound.UNDETERMINED
    row = found.operators[0]
    assert isinstance(row.share_of_ceiling, Implausible)
    assert isinstance(found.mfu_ratio, Implausible)
    assert any(n.code == "implausible_operator" for n in found.findings)


def test_profiler_overhead_is_taken_out() -> None:
    # 1000 tiny operations: 4 us each with the profiler, 2 us without.
    found = diagnose(run_of([Ran(TINY, 0.003, pause_ms=0.001)] * 1000, unprofiled_ms=2.0, overhead_us=2.0))
    assert found.step.median_s == pytest.approx(2e-3)
    assert found.step.profiler_overhead_ratio == pytest.approx(1.0, rel=1e-6)
    # Five steps were timed with the profiler off: they are what a document keeps one by one.
    assert found.step.steps_s == pytest.approx((2e-3,) * 5)
    assert not found.step.steps_profiled
    assert found.time_shares["latency"] == pytest.approx(1.0)
    assert sum(p.time_s for p in found.parts) == pytest.approx(2e-3)


def test_profiler_overhead_does_not_shrink_real_waits() -> None:
    # 10 ms wait plus 1000 operations; with the profiler 14 ms, without it 12 ms.
    step = [Ran(WaitCause.INPUT, 10.0)] + [Ran(TINY, 0.003, pause_ms=0.001)] * 1000
    found = diagnose(run_of(step, unprofiled_ms=12.0, overhead_us=2.0))
    assert found.time_shares["host"] == pytest.approx(10 / 12, rel=0.01)


def test_page_faults_make_a_slow_fresh_result_a_memory_verdict() -> None:
    fresh = replace(ADD, fresh_bytes=64e6)
    # 20 ms for 192 MB: 0.19 of the ceiling; 64 MB of new pages are 15625 faults of 4096 bytes.
    without = diagnose(run_of([Ran(fresh, 20.0)], minor_faults=10.0))
    assert without.verdict.bound is Bound.UNDETERMINED
    found = diagnose(run_of([Ran(fresh, 20.0)], minor_faults=15625.0))
    assert found.verdict.bound is Bound.MEMORY
    assert "page faults" in found.verdict.sentence
    advice = next(a for a in found.advice if a.rule == "page_faults")
    assert advice.gain_s == pytest.approx(0.020 - 0.00384 - 1e-6, rel=1e-3)


@pytest.mark.parametrize(("rate", "bound"), [(8e9, Bound.MEMORY), (16e9, Bound.UNDETERMINED)])
def test_page_faults_must_explain_the_time(rate: float, bound: Bound) -> None:
    # 64 MB into new small pages take 8 ms at 8 GB/s, 0.4 of the 20 ms; at 16 GB/s 4 ms, 0.2 of them.
    resource = Resource(area=Area.MEMORY, level="dram", mix="fresh", page="4k", store="regular")
    machine = build.two_core_machine()
    machine = replace(machine, ceilings=(*machine.ceilings, build.measured(resource, rate, "B/s")))
    trace = run_of([Ran(replace(ADD, fresh_bytes=64e6), 20.0)], minor_faults=15625.0)
    assert diagnose_run(trace, machine, program="train.py").verdict.bound is bound


def test_operations_that_ran_at_once_are_not_implausible_for_the_split() -> None:
    # Two products on two lanes over the same 20 ms are charged 10 ms each, below the 10.737 ms of the ceiling: the split
    # cannot be that exact. Alone in 10 ms, a product would be implausible.
    trace = run_of([Ran(GEMM, 20.0), Ran(GEMM, 20.0)])
    start = trace.start_ns.copy()
    start[1::2] = start[::2]
    both = replace(trace, start_ns=start, end_ns=start + 20_000_000, lane=np.arange(start.size, dtype=np.int32) % 2)
    assert diagnose(both).operators[0].bound is Bound.COMPUTE
    assert isinstance(diagnose(run_of([Ran(GEMM, 10.0)])).operators[0].share_of_ceiling, Implausible)


def test_giving_memory_back_is_memory_time_not_python() -> None:
    # 64 MB of new pages a step, 0.1 ns/B to unmap: 6.4 ms of the 10 ms pause; the rest is Python (less 1 us of dispatch).
    fresh = replace(ADD, fresh_bytes=64e6)
    trace = run_of([Ran(fresh, 20.0, pause_ms=10.0)], minor_faults=15625.0)
    found = diagnose(replace(trace, unmapping_s_per_byte=1e-10))
    assert found.time_shares["memory"] == pytest.approx(26.4 / 30, rel=1e-3)
    assert found.time_shares["host"] == pytest.approx(3.6 / 30, rel=1e-3)


def test_operands_that_would_fit_a_cache_but_come_from_memory() -> None:
    # 1.2 MB: 3 us at the L2 ceiling; 30 us is 0.1 of that but 0.8 of DRAM.
    small = replace(ADD, demand=Demand(read_bytes=0.8e6, write_bytes=0.4e6))
    found = diagnose(run_of([Ran(small, 0.030)] * 100))
    assert found.verdict.bound is Bound.MEMORY
    assert found.verdict.level == "dram"
    assert "would fit L2" in found.operators[0].reason


def test_without_steps_everything_is_one_window() -> None:
    trace = run_of([Ran(GEMM, 12.0)], steps=3)
    none = replace(trace, steps=replace(trace.steps, start_ns=trace.steps.start_ns[:0], end_ns=trace.steps.end_ns[:0]))
    found = diagnose(none)
    assert found.step.count == 1
    assert any(n.code == "no_steps" for n in found.findings)
    assert found.flop_per_step == 3 * 2 * 1024**3


def test_nothing_recorded_is_undetermined() -> None:
    trace = run_of([Ran(WaitCause.PYTHON, 1.0)])
    found = diagnose(trace)
    assert isinstance(found.flop_per_step, Unknown)
    assert sum(found.time_shares.values()) == pytest.approx(1.0)


lengths = st.floats(min_value=0.001, max_value=50.0)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([GEMM, ADD, TINY, MYSTERY, WaitCause.INPUT, WaitCause.SYNC]), lengths, lengths),
        min_size=1,
        max_size=6,
    ),
    st.one_of(st.none(), st.floats(min_value=0.1, max_value=200.0)),
)
def test_shares_and_parts_always_add_up(step, unprofiled) -> None:
    found = diagnose(run_of([Ran(w, a, b) for w, a, b in step], steps=3, unprofiled_ms=unprofiled, overhead_us=0.7))
    assert set(found.time_shares) == set(SHARE_KINDS)
    assert sum(found.time_shares.values()) == pytest.approx(1.0)
    assert all(0.0 <= s <= 1.0 + 1e-9 for s in found.time_shares.values())
    assert sum(p.time_s for p in found.parts) == pytest.approx(found.step.median_s, rel=1e-6)
    assert all(a.gain_s <= found.step.median_s * (1 + 1e-9) for a in found.advice)


pieces = st.lists(st.tuples(st.integers(0, 200), st.integers(1, 40)), max_size=12)


@settings(max_examples=150, deadline=None)
@given(pieces, pieces, st.lists(st.integers(1, 50), min_size=1, max_size=4))
def test_sweep_agrees_with_a_bitmap(first, second, cuts) -> None:
    def intervals(spans: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
        start = np.array([s for s, _ in spans], dtype=np.int64)
        return start, start + np.array([n for _, n in spans], dtype=np.int64)

    edges = np.concatenate([[0], np.cumsum(cuts)]).astype(np.int64)
    a, b = intervals(first), intervals(second)
    found = sweep(
        [Layer(owner="a", start_ns=a[0], end_ns=a[1]), Layer(owner="b", start_ns=b[0], end_ns=b[1])],
        edges[:-1],
        edges[1:],
    )
    owner = np.full(300, -1)
    for index, (start, end) in ((1, b), (0, a)):
        for s, e in zip(start, end, strict=True):
            owner[s:e] = index
    owner = owner[: edges[-1]]
    assert found.total_ns("a") == int((owner == 0).sum())
    assert found.total_ns("b") == int((owner == 1).sum())
    assert found.total_ns(None) == int((owner == -1).sum())
    covered = np.zeros(300, dtype=bool)
    for s, e in zip(*a, strict=True):
        covered[s:e] = True
    assert union_ns(*a) == int(covered.sum())


def test_the_step_is_a_median_even_without_unprofiled_steps() -> None:
    # Nine steps of 12 ms and one of 120 ms: the median is 12 ms (the mean 22.8), and the rows add up to it.
    trace = run_of([Ran(GEMM, 12.0)], steps=10)
    end = trace.end_ns.copy()
    edges = np.append(trace.steps.start_ns, trace.steps.end_ns[-1])
    end[-1] += 108_000_000
    edges[-1] += 108_000_000
    steps = replace(trace.steps, start_ns=edges[:-1], end_ns=edges[1:])
    found = diagnose(replace(trace, end_ns=end, steps=steps, window_ns=(int(edges[0]), int(edges[-1]))))
    assert found.step.median_s == pytest.approx(0.012)
    assert sum(r.time_s for r in found.operators) == pytest.approx(0.012)
    assert sum(p.time_s for p in found.parts) == pytest.approx(0.012)
    assert found.verdict.bound is Bound.COMPUTE


def test_share_time_and_headroom_of_a_row_have_one_denominator() -> None:
    trace = run_of([Ran(GEMM, 12.0), Ran(GEMM, 24.0)])
    row = diagnose(trace).operators[0]
    # 10.737 ms of 18 ms a call
    assert row.share_of_ceiling == pytest.approx(10.737 / 18, rel=1e-3)
    assert row.headroom_s == pytest.approx(row.time_s * (1 - row.share_of_ceiling), rel=1e-6)
