"""Advice as a whole: bounded, ranked, without contradictions or repetitions; and bounded for every run that can be made."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rule_cases import Ran, build, case_of, device, device_case, gemm, host_copy, on_device, operator, run_of, talk

from mansard.diagnose.case import Case, Change, Proposal
from mansard.diagnose.facts import (
    ClockFacts,
    ExpertFacts,
    Facts,
    Grid,
    LaunchGaps,
    MeasuredPoint,
    MemoryUse,
    OffloadFacts,
    PipelineFacts,
    RankFacts,
    TransferFacts,
    WorkloadFacts,
)
from mansard.diagnose.ranking import BLOCKS, EITHER, GENERAL, ranked
from mansard.diagnose.rules import advise, load_rules, rule_names
from mansard.trace.run import Part, WaitCause

MS = 1e-3
SLOW = [Ran(build.GEMM, 20.0), Ran(WaitCause.INPUT, 5.0)]  # headroom of the product 9.263 ms


def proposal(
    rule: str,
    gain_ms: float,
    *,
    change: Change = Change.RATE,
    rows: tuple[int, ...] = (0,),
    waits: tuple[str, ...] = (),
) -> Proposal:
    return Proposal(
        rule=rule, gain_s=gain_ms * MS, text="do it", evidence="seen", change=change, rows=rows, waits=waits
    )


def test_a_promise_above_its_headroom_is_cut_to_it() -> None:
    case = case_of(run_of(SLOW))
    (rate,) = ranked(case, [proposal("a", 15.0)])
    (work,) = ranked(case, [proposal("a", 30.0, change=Change.WORK)])
    (wait,) = ranked(case, [proposal("a", 30.0, change=Change.WAIT, rows=(), waits=("input",))])
    assert rate.gain_s == rate.headroom_s == pytest.approx(20 * MS - 2 * 1024**3 / 200e9, rel=1e-6)
    assert work.gain_s == pytest.approx(20 * MS, rel=1e-6)
    assert wait.gain_s == pytest.approx(5 * MS, rel=1e-6)


def test_nothing_and_nonsense_are_not_shown() -> None:
    case = case_of(run_of(SLOW))
    bad = [
        proposal("a", 0.0),
        proposal("b", float("nan")),
        proposal("c", -1.0),
        proposal("d", 5.0, rows=()),
        proposal("e", 0.1),
    ]
    assert ranked(case, bad) == ()  # 0.1 ms is below 2 % of 25 ms


def test_the_largest_gain_comes_first_and_shared_seconds_are_said() -> None:
    case = case_of(run_of(SLOW))
    found = ranked(
        case,
        [
            proposal("small", 1.0),
            proposal("large", 2.0),
            proposal("input", 5.0, change=Change.WAIT, rows=(), waits=("input",)),
        ],
    )
    assert [a.rule for a in found] == ["input", "large", "small"]
    assert [a.overlaps for a in found] == [(), ("small",), ("large",)]


def test_a_general_rule_gives_way_to_a_cause_of_the_same_shortfall() -> None:
    case = case_of(run_of(SLOW))
    general = proposal("below_ceiling", 9.0)
    assert [a.rule for a in ranked(case, [general, proposal("clock_drop", 5.0)])] == ["clock_drop"]
    assert [a.rule for a in ranked(case, [general, proposal("clock_drop", 4.0)])] == ["below_ceiling", "clock_drop"]
    # Less work is no cause of a slow rate.
    assert [a.rule for a in ranked(case, [general, proposal("fusion", 8.0, change=Change.WORK)])] == [
        "below_ceiling",
        "fusion",
    ]


@pytest.mark.parametrize(("first", "second"), BLOCKS)
def test_what_is_impossible_is_left_out_whatever_it_would_save(first: str, second: str) -> None:
    case = case_of(run_of(SLOW))
    waiting = proposal(first, 1.0, change=Change.WAIT, rows=(), waits=("host",))
    (found,) = ranked(case, [waiting, proposal(second, 9.0)])
    assert (found.rule, found.instead_of) == (first, (second,))


@pytest.mark.parametrize(("one", "other"), EITHER)
def test_of_two_ways_for_the_same_seconds_the_larger_gain_stays(one: str, other: str) -> None:
    case = case_of(run_of(SLOW))
    (found,) = ranked(case, [proposal(one, 2.0), proposal(other, 3.0)])
    assert (found.rule, found.instead_of) == (other, (one,))
    apart = ranked(case, [proposal(one, 2.0), proposal(other, 3.0, change=Change.WAIT, rows=(), waits=("input",))])
    assert len(apart) == 2


def test_rules_that_exclude_each_other_exist() -> None:
    known = set(rule_names())
    assert {name for pair in (*BLOCKS, *EITHER) for name in pair} | set(GENERAL) <= known
    assert len(known) >= 37


def test_advice_of_a_run_is_bounded_and_graded() -> None:
    found = advise(case_of(run_of(SLOW)))
    assert [a.rule for a in found] == sorted(
        (a.rule for a in found), key=lambda r: -next(a.gain_s for a in found if a.rule == r)
    )
    assert all(a.headroom_s is not None and 0 < a.gain_s <= a.headroom_s for a in found)
    assert type(found[0]).__name__ == "Advice"


# -- every run that can be made ------------------------------------------------------------------------------------------------

_KINDS = [
    gemm(4096, 4096, 4096), gemm(4100, 4096, 4096), gemm(8, 4096, 4096), gemm(512, 4096, 32000),
    operator("aten::mul", "elementwise", read_bytes=1e9, write_bytes=1e9), operator("aten::clone", "copy", read_bytes=1e9, write_bytes=1e9),
    operator("aten::_softmax", "softmax", read_bytes=1e9, write_bytes=1e9),
    operator("gather_rows", "elementwise", read_bytes=0.5e9, write_bytes=0.5e9, level_bytes={"hbm": 4e9}),
    operator("paged_attention", "attention", flop={("bf16", "f32"): 1e9}, read_bytes=1.25e9),
    operator("grouped_gemm", "moe", flop={("bf16", "f32"): 1e11}, read_bytes=1e8, write_bytes=1e8),
    replace(gemm(2048, 4096, 4096), recompute=True), talk("all_reduce", 0.1e6, 8, "network"), talk("all_gather", 2e9, 8, "nvlink"),
    talk("all_gather", 2e9, 8, "nvlink", Part.BACKWARD), host_copy(50e6), replace(build.MYSTERY, scope="device"),
]  # fmt: skip
_STEPS = st.lists(
    st.tuples(st.one_of(st.sampled_from(_KINDS), st.sampled_from(list(WaitCause))), st.floats(0.01, 20.0), st.floats(0.0, 1.0)),
    min_size=1, max_size=12,
)  # fmt: skip
_SECONDS = st.floats(0.0, 0.05)


@st.composite
def _facts(draw: st.DrawFn) -> Facts:
    fast = draw(st.floats(1e9, 4e11))
    every = range(len(_KINDS))
    return Facts(
        points=(
            MeasuredPoint(
                benchmark="gemm_generalized", impl="torch", backend="torch", name="one", params={"m": 4096, "k": 4096, "n": 4096},
                time_s=draw(st.floats(1e-6, 0.01)), ci95_s=(1e-6, draw(st.floats(1e-6, 0.01))), flop=2.0 * 4096**3, bytes=1e8, dtype="bf16",
            ),
        ),
        workload=WorkloadFacts(
            phase=draw(st.sampled_from(["", "training", "prefill", "decode"])), sequences=4, tokens=4096,
            real_tokens=draw(st.integers(1, 4096)), vocab=32000, causal=True, cache_dtype="bf16", cache_bytes=draw(st.floats(1e6, 1e11)),
        ),
        gaps=LaunchGaps(late_s=draw(_SECONDS), queued_s=draw(_SECONDS), launches=10) if draw(st.booleans()) else None,
        clock=ClockFacts(observed_hz=draw(st.floats(1e9, 3e9)), ceiling_hz=2e9),
        memory=MemoryUse(
            peak_bytes=draw(st.floats(1e9, 80e9)), capacity_bytes=80e9, allocations=draw(st.floats(0, 50)), allocation_s=draw(_SECONDS)
        ),
        ranks=RankFacts(rank=0, waiting_s=draw(_SECONDS), straggler=3, straggler_share=draw(st.floats(0, 1)), ranks=8),
        transfers={
            i: TransferFacts(pinned=draw(st.booleans()), latency_s=draw(st.floats(1e-6, 1e-3)), in_flight_bytes=draw(st.floats(1.0, 1e8)))
            for i in every
        },
        experts=ExpertFacts(tokens_by_rank=(draw(st.floats(1, 1e6)), draw(st.floats(1, 1e6))), rank=draw(st.integers(0, 1))),
        offload=OffloadFacts(bytes_each=9.4e6, pieces=3, rate_bytes_per_s=fast, ceiling_bytes_per_s=418e9, exposed_s=draw(_SECONDS)),
        pipeline=PipelineFacts(stages=draw(st.integers(1, 16)), microbatches=draw(st.integers(1, 64)), bubble_s=draw(_SECONDS)),
        grids={i: Grid(blocks=draw(st.floats(1, 1000)), per_unit=2, units=132) for i in every},
        node_devices=8,
    )  # fmt: skip


_FIT = {"operation": "all_reduce", "participants": 8, "link": "network", "alpha_s": 2e-5, "beta_bytes_per_s": 4e10}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(step=_STEPS, facts=_facts(), shift=st.booleans())
def test_no_rule_promises_more_than_what_it_addresses(step: list, facts: Facts, shift: bool) -> None:
    run = on_device(run_of([Ran(what, length, pause_ms=pause) for what, length, pause in step], steps=3))
    if not run.op.size:
        return
    if shift:  # every other operation moves to a lane of its own, beside the one before
        odd = np.arange(run.op.size) % 2 == 1
        back = np.where(odd, (run.end_ns - run.start_ns) // 2, 0)
        run = replace(run, start_ns=run.start_ns - back, end_ns=run.end_ns - back, lane=odd.astype(np.int32))
    case = case_of(run, device([_FIT]), facts)
    for rule in load_rules():
        found = rule(case)
        if found is not None:
            assert found.gain_s <= case.limit_s(found) * (1 + 1e-6) + 1e-12, found
            assert found.gain_s <= case.account.step_s * (1 + 1e-6)
    said = advise(case)
    assert len({a.rule for a in said}) == len(said)
    names = {a.rule for a in said}
    assert not [pair for pair in BLOCKS if set(pair) <= names]


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(facts=_facts(), times=st.lists(st.floats(0.5, 5.0), min_size=6, max_size=6), many=st.integers(2, 60))
def test_chains_many_messages_and_small_calls_keep_to_it_too(facts: Facts, times: list[float], many: int) -> None:
    heads, keys = 8, 4096
    size = 2.0 * heads * keys * keys
    flop = {("bf16", "f32"): 2.0 * heads * keys * keys * 64}
    first = operator(
        "aten::bmm",
        "gemm",
        f"bf16[{heads},{keys},64] bf16[{heads},64,{keys}]",
        flop=flop,
        read_bytes=1e7,
        write_bytes=size,
    )
    scale = operator("aten::mul", "elementwise", read_bytes=size, write_bytes=size)
    softmax = operator("aten::_softmax", "softmax", vector_flop={"f32": 1e9}, read_bytes=size, write_bytes=size)
    second = operator(
        "aten::bmm", "gemm", f"bf16[{heads},{keys},{keys}] bf16[{heads},{keys},64]", flop=flop, read_bytes=size
    )
    small = talk("all_reduce", 0.1e6, 8, "network")
    gathers = [Ran(talk("all_gather", 2e9, 8, "nvlink", part), times[4]) for part in (Part.FORWARD, Part.BACKWARD)]
    chain = [Ran(what, ms) for what, ms in zip((first, scale, softmax, second), times, strict=False)]
    few = [Ran(gemm(8, 4096, 4096), times[5] / 20)]
    step = [*chain, *few, *gathers, *[Ran(small, times[4] / many)] * many]
    decode = replace(facts, workload=replace(facts.workload, phase="decode"))
    on_cpu = [Ran(build.TINY, 0.0012, pause_ms=0.0008)] * many + [
        Ran(replace(build.ADD, fresh_bytes=64e6), 4 + times[0]),
        Ran(build.GEMM, 11.0),
    ]
    cases = [
        case_of(on_device(run_of(step, steps=3)), device([_FIT]), facts), case_of(on_device(run_of(step, steps=3)), device([_FIT]), decode),
        case_of(run_of(on_cpu, minor_faults=15625.0), facts=replace(facts, gaps=None)),
    ]  # fmt: skip
    spoke = set()
    for case in cases:
        for rule in load_rules():
            found = rule(case)
            if found is not None:
                spoke.add(found.rule)
                assert found.gain_s <= case.limit_s(found) * (1 + 1e-6) + 1e-12, found
    assert {"attention_implementation", "causal_full", "dispatch", "lower_precision", "page_faults"} <= spoke


def test_a_case_without_facts_has_none() -> None:
    case: Case = device_case([Ran(gemm(4096, 4096, 4096), 2.0)])
    assert case.facts == Facts()
