"""Rules about products, kernels and what limits them: where they speak, how much they promise, where they are silent."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rule_cases import Ran, build, case_of, cpu, device_case, gemm, operator, run_of, said

from mansard.core import Demand
from mansard.diagnose.facts import (
    ClockFacts,
    ExpertFacts,
    Facts,
    Grid,
    MeasuredPoint,
    WorkloadFacts,
    clock_of_probes,
    points_of,
)
from mansard.trace.run import Part

MS = 1e-3


def point(
    impl: str, ms: float, *, backend: str = "torch", benchmark: str = "gemm_generalized", **params: object
) -> MeasuredPoint:
    return MeasuredPoint(
        benchmark=benchmark, impl=impl, backend=backend, name="one", params=params, time_s=ms * MS, ci95_s=(0.98 * ms * MS, 1.02 * ms * MS),
        flop=2.0 * 1024**3, bytes=12e6, dtype=str(params.get("in_dtype", "f32")),
    )  # fmt: skip


SIZES = {"m": 1024, "k": 1024, "n": 1024, "in_dtype": "f32"}


def test_kernel_choice_takes_the_measured_candidate_of_the_same_product() -> None:
    points = (point("torch", 19.0, **SIZES), point("torch-compile", 15.0, **SIZES), point("naive", 1.0, **SIZES))
    found = said("kernel_choice", case_of(run_of([Ran(build.GEMM, 20.0)]), facts=Facts(points=points)))
    # 20 ms in the run, the upper end of the candidate is 15 * 1.02 = 15.3 ms: 4.7 ms; the naive one is no candidate.
    assert found is not None
    assert found.gain_s == pytest.approx(4.7 * MS, rel=1e-6)
    assert "gemm_generalized[torch-compile]" in found.text
    assert "torch 19.0 ms" in found.evidence


def test_kernel_choice_never_promises_more_than_the_least_time_leaves() -> None:
    # A candidate of 1 ms would be above the ceiling of 10.737 ms: 20 - 10.737 = 9.263 ms.
    found = said(
        "kernel_choice", case_of(run_of([Ran(build.GEMM, 20.0)]), facts=Facts(points=(point("torch", 1.0, **SIZES),)))
    )
    assert found is not None
    assert found.gain_s == pytest.approx(9.263 * MS, rel=1e-3)


@pytest.mark.parametrize(
    "points",
    [
        (),
        (point("torch", 15.0, **{**SIZES, "n": 1023}),),
        (point("torch", 15.0, **{**SIZES, "in_dtype": "bf16"}),),
        (point("jax", 15.0, backend="jax", **SIZES),),
        (point("torch", 25.0, **SIZES),),
    ],
    ids=["none", "another size", "another type", "another framework", "slower"],
)
def test_kernel_choice_is_silent_without_a_faster_candidate(points: tuple[MeasuredPoint, ...]) -> None:
    assert said("kernel_choice", case_of(run_of([Ran(build.GEMM, 20.0)]), facts=Facts(points=points))) is None


def test_points_that_failed_or_cannot_be_true_are_no_candidates() -> None:
    sound = {
        "state": "done", "verdict": "low", "metrics": {"median_s": 0.015, "ci95_low_s": 0.0147, "ci95_high_s": 0.0153, "flop": 2.0},
        "metadata": {"benchmark_name": "gemm", "impl": "torch", "backend": "torch", "test_name": "a", "params": SIZES},
    }  # fmt: skip
    found = points_of(
        [sound, {**sound, "state": "failed"}, {**sound, "verdict": "implausible"}, {**sound, "metrics": {}}]
    )
    assert [(p.time_s, p.dtype, p.flop) for p in found] == [(0.015, "f32", 2.0)]


def test_shape_alignment_from_a_measured_pair() -> None:
    odd = gemm(1000, 1000, 1000, "f32", size=4.0, scope="node")  # 64 B hold 16 f32: 1000 is no multiple of 16, 1008 is
    own = point("torch", 20.0, benchmark="gemm_alignment", base=1000, size=1000, in_dtype="f32")
    padded = point("torch", 15.0, benchmark="gemm_alignment", base=1000, size=1008, in_dtype="f32")
    case = case_of(run_of([Ran(odd, 20.0)]), facts=Facts(points=(own, padded)))
    found = said("shape_alignment", case)
    # Upper end of the padded over lower end of its own: 15.3 / 19.6 = 0.78061; 20 ms * 0.21939 = 4.3878 ms.
    assert found is not None
    assert found.gain_s == pytest.approx(20 * MS * (1 - 15.3 / 19.6), rel=1e-6)
    assert "measured" in found.evidence


def test_shape_alignment_from_the_aligned_products_of_the_run() -> None:
    # 16 bytes are 8 bf16: 4100 is no multiple of 8. 2 * 4100 * 4096^2 = 137.573 GFLOP: 1.37573 ms at 100 TFLOP/s.
    odd, even = gemm(4100, 4096, 4096), gemm(4096, 4096, 4096)
    # even: 137.439 GFLOP in 1.5 ms: share 0.916260; odd in 2.5 ms: share 0.550291. Padded to 4160: 1.014634 of the work.
    found = said("shape_alignment", device_case([Ran(odd, 2.5), Ran(even, 1.5)]))
    after = 4160 / 4100 * 0.550291 / 0.916260
    assert found is not None
    assert found.gain_s == pytest.approx(2.5 * MS * (1 - after), rel=1e-4)
    assert "modelled" in found.evidence


def test_shape_alignment_is_silent_where_nothing_shows_that_padding_helps() -> None:
    assert said("shape_alignment", device_case([Ran(gemm(4100, 4096, 4096), 2.5)])) is None
    assert (
        said("shape_alignment", device_case([Ran(gemm(4096, 4096, 4096), 2.5), Ran(gemm(8192, 4096, 4096), 3.0)]))
        is None
    )


def test_lm_head_positions() -> None:
    # 512 positions of 4 sequences, vocabulary 32000: 508 of 512 rows are not read. 3.2 ms * 508 / 512 = 3.175 ms.
    head = gemm(512, 4096, 32000)
    facts = WorkloadFacts(phase="prefill", sequences=4, vocab=32000)
    found = said("lm_head_positions", device_case([Ran(head, 3.2)], Facts(workload=facts)))
    assert found is not None
    assert found.gain_s == pytest.approx(3.175 * MS, rel=1e-9)
    training = replace(facts, phase="training")
    assert said("lm_head_positions", device_case([Ran(head, 3.2)], Facts(workload=training))) is None
    assert said("lm_head_positions", device_case([Ran(gemm(4, 4096, 32000), 3.2)], Facts(workload=facts))) is None


def test_padding_counts_the_products_over_the_tokens_alone() -> None:
    # 1024 of 4096 tokens are padding: a quarter of the 2 ms product; the other product has no tokens in it.
    facts = Facts(workload=WorkloadFacts(tokens=4096, real_tokens=3072))
    found = said("padding", device_case([Ran(gemm(4096, 1024, 1024), 2.0), Ran(gemm(512, 1024, 1024), 2.0)], facts))
    assert found is not None
    assert found.gain_s == pytest.approx(0.5 * MS, rel=1e-9)
    full = Facts(workload=WorkloadFacts(tokens=4096, real_tokens=4096))
    assert said("padding", device_case([Ran(gemm(4096, 1024, 1024), 2.0)], full)) is None


def scores_of(keys: int, heads: int = 8) -> list[object]:
    """QK^T, scale, softmax, PV of one layer over keys x keys scores in bf16."""
    size = 2.0 * heads * keys * keys
    first = operator(
        "aten::bmm", "gemm", f"bf16[{heads},{keys},64] bf16[{heads},64,{keys}]", flop={("bf16", "f32"): 2.0 * heads * keys * keys * 64},
        read_bytes=2.0 * 2 * heads * keys * 64, write_bytes=size,
    )  # fmt: skip
    second = operator(
        "aten::bmm", "gemm", f"bf16[{heads},{keys},{keys}] bf16[{heads},{keys},64]", flop={("bf16", "f32"): 2.0 * heads * keys * keys * 64},
        read_bytes=size + 2.0 * heads * keys * 64, write_bytes=2.0 * heads * keys * 64,
    )  # fmt: skip
    scale = operator("aten::mul", "elementwise", f"bf16[{heads},{keys},{keys}]", read_bytes=size, write_bytes=size)
    softmax = operator(
        "aten::_softmax", "softmax", f"bf16[{heads},{keys},{keys}]", vector_flop={"f32": 5.0 * heads * keys * keys}, read_bytes=size,
        write_bytes=size,
    )  # fmt: skip
    return [Ran(first, 1.0), Ran(scale, 0.5), Ran(softmax, 0.6), Ran(second, 1.2)]


def test_attention_implementation_saves_what_handles_scores_but_its_arithmetic() -> None:
    # 0.5 + 0.6 ms handle scores; the softmax must still do 5 * 8 * 4096^2 = 671 MFLOP: 13.42 us at 50 TFLOP/s.
    found = said("attention_implementation", device_case(scores_of(4096)))
    assert found is not None
    assert found.gain_s == pytest.approx(1.1 * MS - 5 * 8 * 4096**2 / 50e12, rel=1e-6)
    # Four passes over 2 * 8 * 4096^2 B: 1.07 GB.
    assert "1.07 GB" in found.evidence


def test_attention_implementation_needs_products_on_both_sides() -> None:
    assert said("attention_implementation", device_case(scores_of(4096)[1:3])) is None
    norm = operator("aten::layer_norm", "norm", read_bytes=1e6, write_bytes=1e6)
    step = scores_of(4096)
    assert said("attention_implementation", device_case([step[0], Ran(norm, 1.0), *step[1:]])) is None


def test_the_softmax_of_a_loss_is_no_attention() -> None:
    # logits of 64 x 1000, log_softmax, and the first product of the backward pass: the same sizes as scores
    size = 4.0 * 64 * 1000
    head = operator("aten::addmm", "gemm", "f32[64,512] f32[512,1000]", read_bytes=size, write_bytes=size)
    loss = operator("aten::_log_softmax", "softmax", "f32[64,1000]", read_bytes=size, write_bytes=size)
    first = operator("aten::mm", "gemm", "f32[512,64] f32[64,1000]", read_bytes=size, write_bytes=size)
    assert said("attention_implementation", device_case([Ran(head, 1.0), Ran(loss, 0.6), Ran(first, 1.2)])) is None
    plain, backward = replace(loss, name="aten::_softmax"), replace(first, part=Part.BACKWARD)
    assert said("attention_implementation", device_case([Ran(head, 1.0), Ran(plain, 0.6), Ran(first, 1.2)])) is not None
    assert said("attention_implementation", device_case([Ran(head, 1.0), Ran(plain, 0.6), Ran(backward, 1.2)])) is None


def test_causal_full_halves_the_products_less_the_diagonal() -> None:
    # 1.0 + 1.2 ms of products over 4096 keys: 1 - 4097 / 8192 = 0.499878 are hidden.
    facts = Facts(workload=WorkloadFacts(causal=True))
    found = said("causal_full", device_case(scores_of(4096), facts))
    assert found is not None
    assert found.gain_s == pytest.approx(2.2 * MS * (1 - 4097 / 8192), rel=1e-9)
    assert said("causal_full", device_case(scores_of(4096))) is None
    assert said("causal_full", device_case(scores_of(4096), Facts(workload=WorkloadFacts(causal=False)))) is None


def test_clock_drop_is_of_compute_alone_and_within_the_headroom() -> None:
    # 10.737 ms of work in 12 ms: headroom 1.263 ms. A tenth less clock would explain 1.2 ms.
    facts = Facts(clock=ClockFacts(observed_hz=3.6e9, ceiling_hz=4.0e9, reason="power cap"))
    found = said("clock_drop", case_of(run_of([Ran(build.GEMM, 12.0), Ran(build.ADD, 5.0)]), facts=facts))
    assert found is not None
    assert found.gain_s == pytest.approx(1.2 * MS, rel=1e-9)
    assert "power cap" in found.evidence
    assert said("clock_drop", case_of(run_of([Ran(build.ADD, 5.0)]), facts=facts)) is None
    same = Facts(clock=ClockFacts(observed_hz=3.95e9, ceiling_hz=4.0e9))
    assert said("clock_drop", case_of(run_of([Ran(build.GEMM, 12.0)]), facts=same)) is None


def test_batch_to_ridge_is_a_gain_per_token() -> None:
    # 8 rows of 4096 x 4096 bf16: 33.55 MB of weights at 1 TB/s. Ridge: per row 2 * 4096^2 / 100e12 - 2 * 8192 / 1e12 = 0.33554 us
    # - 0.016384 us = 0.31916 us of compute not paid by bytes; 33.554 us / 0.31916 us = 105.13 rows. 0.05 ms * (1 - 8 / 105.13).
    facts = Facts(workload=WorkloadFacts(phase="decode"))
    found = said("batch_to_ridge", device_case([Ran(gemm(8, 4096, 4096), 0.05)], facts))
    ridge = (2 * 4096**2 / 1e12) / (2 * 4096**2 / 100e12 - 2 * 8192 / 1e12)
    assert ridge == pytest.approx(105.13, rel=1e-3)
    assert found is not None
    assert found.gain_s == pytest.approx(0.05 * MS * (1 - 8 / ridge), rel=1e-9)
    assert said("batch_to_ridge", device_case([Ran(gemm(8, 4096, 4096), 0.05)])) is None
    assert said("batch_to_ridge", device_case([Ran(gemm(512, 4096, 4096), 0.2)], facts)) is None


def test_expert_imbalance_of_the_fullest_rank() -> None:
    moe = operator("grouped_gemm", "moe", flop={("bf16", "f32"): 1e11}, read_bytes=1e8, write_bytes=1e8)
    # 150 against a mean of 100: a third of the 3 ms.
    facts = Facts(experts=ExpertFacts(tokens_by_rank=(150.0, 50.0, 100.0, 100.0), rank=0))
    found = said("expert_imbalance", device_case([Ran(moe, 3.0)], facts))
    assert found is not None
    assert found.gain_s == pytest.approx(1.0 * MS, rel=1e-9)
    even = Facts(experts=ExpertFacts(tokens_by_rank=(100.0, 100.0), rank=0))
    assert said("expert_imbalance", device_case([Ran(moe, 3.0)], even)) is None
    # Another rank waits, and no collective of it is exposed: nothing to save here.
    other = Facts(experts=ExpertFacts(tokens_by_rank=(150.0, 50.0), rank=1))
    assert said("expert_imbalance", device_case([Ran(moe, 3.0)], other)) is None


def test_filled_units_by_waves() -> None:
    # 133 blocks on 132 units: two waves, 133 / 264 = 0.5038 filled. 2 ms * 0.4962 = 0.9924 ms, but the least time is 1.374 ms.
    kernel = gemm(4096, 4096, 4096)
    facts = Facts(grids={0: Grid(blocks=133, per_unit=1, units=132)})
    found = said("filled_units", device_case([Ran(kernel, 2.0)], facts))
    assert found is not None
    assert found.gain_s == pytest.approx(2.0 * MS - 2 * 4096**3 / 100e12, rel=1e-6)
    long = said("filled_units", device_case([Ran(kernel, 4.0)], facts))
    assert long is not None
    assert long.gain_s == pytest.approx(4.0 * MS * (1 - 133 / 264), rel=1e-6)
    full = Facts(grids={0: Grid(blocks=264, per_unit=1, units=132)})
    assert said("filled_units", device_case([Ran(kernel, 4.0)], full)) is None


def test_filled_units_by_cores() -> None:
    # One of two cores busy: half of 20 ms is 10 ms, the headroom 9.263 ms.
    found = said("filled_units", case_of(run_of([Ran(build.GEMM, 20.0)]), facts=Facts(cores_busy=1.0)))
    assert found is not None
    assert found.gain_s == pytest.approx(20 * MS - 2 * 1024**3 / 200e9, rel=1e-6)
    assert said("filled_units", case_of(run_of([Ran(build.GEMM, 20.0)]), facts=Facts(cores_busy=1.95))) is None


def test_a_shortfall_is_factored_where_the_factors_are_known() -> None:
    facts = Facts(clock=ClockFacts(observed_hz=3.6e9, ceiling_hz=4.0e9), cores_busy=1.0)
    found = said("below_ceiling", case_of(run_of([Ran(build.GEMM, 30.0)]), facts=facts))
    # 10.737 / 30 = 0.3579 = 0.9 * 0.5 * 0.795
    assert found is not None
    assert "clock 0.90 x filled units 0.50 x rest 0.80" in found.evidence
    plain = said("below_ceiling", case_of(run_of([Ran(build.GEMM, 30.0)])))
    assert plain is not None
    assert "filled" not in plain.evidence


def test_recomputed_work_is_stored_as_far_as_memory_reaches() -> None:
    from mansard.diagnose.facts import MemoryUse

    again = replace(
        build.GEMM,
        recompute=True,
        part=Part.BACKWARD,
        demand=Demand(flop={("f32", "f32"): 2.0 * 1024**3}, write_bytes=4e9),
    )
    run = run_of([Ran(again, 12.0), Ran(build.GEMM, 12.0)])
    # 4 GB of results, 1 GB free: a quarter of the 12 ms.
    some = Facts(memory=MemoryUse(peak_bytes=23e9, capacity_bytes=24e9))
    found = said("remat_or_store", case_of(run, facts=some))
    assert found is not None
    assert found.gain_s == pytest.approx(3.0 * MS, rel=1e-9)
    assert said("remat_or_store", case_of(run)) is None
    none = Facts(memory=MemoryUse(peak_bytes=24e9, capacity_bytes=24e9))
    assert said("remat_or_store", case_of(run, facts=none)) is None
    assert said("remat_or_store", case_of(run_of([Ran(build.GEMM, 12.0)]), facts=some)) is None


def test_a_product_is_read_only_if_shapes_and_flop_agree() -> None:
    from mansard.diagnose.facts import product_of

    linear = replace(gemm(8, 16, 32), shapes="bf16[2,4,16] bf16[32,16] bf16[32]")
    found = product_of(linear)
    assert found is not None
    assert (found.m, found.k, found.n, found.batch) == (8, 16, 32, 1)
    assert product_of(replace(linear, shapes="bf16[2,4,17] bf16[32,16]")) is None
    assert product_of(replace(linear, shapes="")) is None


def test_lower_precision_speaks_of_a_device_too() -> None:
    from rule_cases import declared, device, on_device

    from mansard.core import Area, Resource
    from mansard.core.ceilings import Ceilings

    base = device()
    f32 = declared(Resource(area=Area.COMPUTE, dtype="f32", accumulate="f32", engine="matrix"), 50e12, "FLOP/s")
    machine = Ceilings(ceilings=(*base.ceilings, f32), levels=base.levels, source="made by hand")
    # Half of the rate: half of the time at twice the rate.
    found = said(
        "lower_precision", case_of(on_device(run_of([Ran(gemm(4096, 4096, 4096, "f32", size=4.0), 4.0)])), machine)
    )
    assert found is not None
    assert found.gain_s == pytest.approx(2.0 * MS, rel=1e-9)
    assert "the device reaches" in found.evidence
    assert cpu().ceilings


@pytest.mark.parametrize(
    ("before", "after", "known"),
    [
        (
            {"vector_f32_flop_per_s": 80e9, "foreign_load_ratio": 0.0},
            {"vector_f32_flop_per_s": 70e9, "foreign_load_ratio": 0.0},
            True,
        ),
        (
            {"vector_f32_flop_per_s": 80e9, "foreign_load_ratio": 0.0},
            {"vector_f32_flop_per_s": 99e9, "foreign_load_ratio": 0.0},
            False,
        ),
        ({"vector_f32_flop_per_s": 80e9, "foreign_load_ratio": 0.5}, {}, False),
        ({}, {}, False),
    ],
    ids=["both lower", "one as usual", "under other load", "no probe"],
)
def test_the_clock_is_seen_by_quiet_probes_alone(before: dict, after: dict, known: bool) -> None:
    drift = {"before": before, "after": after, "typical": {"vector_f32_flop_per_s": 100e9}}
    found = clock_of_probes(drift, {"clock_hz_estimated": 4e9})
    # The better of two quiet probes: 80 of 100 GFLOP/s at 4 GHz is 3.2 GHz.
    assert (found is not None) is known
    assert found is None or found.observed_hz == pytest.approx(3.2e9)
