"""Phases against numbers worked by hand: FLOP, bytes, plans, training, memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mansard.core.errors import UsageError
from mansard.workload.batch import (
    Batch,
    Group,
    Mask,
    chunked_prefill_batches,
    decode_batch,
    keys_of,
    mixed_batch,
    packed_batch,
    pairs_of,
    prefill_batch,
    training_batch,
    verify_batch,
)
from mansard.workload.counts import count_params
from mansard.workload.memory import fit, memory_of
from mansard.workload.parallel import InfeasibleError, Plan
from mansard.workload.phases import decode, mixed, prefill, resident_parameters, resident_weight_bytes, train, verify
from mansard.workload.training import Recipe


def _row(phase, name, in_pass="forward"):
    return next(k for k in phase.kernels if k.name == name and k.in_pass == in_pass)


def test_qwen3_30b_a3b_decode_bytes(build, setting):
    # 2 B * (48 * (18.87M attention + 8 * 3 * 2048 * 768 experts + 2048 * 128 router) + 151936 * 2048 head)
    # + 2 * 48 * 4 * 128 * 2 B * 4096 of cache = 6.486 GB
    weights = 2 * (48 * (2048 * 5120 + 4096 * 2048 + 8 * 3 * 2048 * 768 + 2048 * 128) + 151936 * 2048)
    cache = 2 * 48 * 4 * 128 * 2 * 4096
    assert weights + cache == 6_485_966_848
    phase = decode(setting(build("qwen3-30b-a3b")), decode_batch(sequences=1, context=4096))
    # Beyond that: norms (48 * (2 * 2048 + 2 * 128) + 2048 weights), one row of the table, one new token in the cache.
    small = 2 * (48 * (2 * 2048 + 2 * 128) + 2048) + 2 * 2048 + 2 * 48 * 4 * 128 * 2
    assert phase.device_bytes == 6_485_966_848 + small
    head = _row(phase, "lm_head")
    assert head.demand.bytes == 2 * 151936 * 2048  # 622 MB
    assert phase.resident_bytes == pytest.approx(61.06e9, rel=1e-3)


def test_decode_weight_flop_and_attention(build, setting):
    phase = decode(setting(build("llama-3.1-8b")), decode_batch(sequences=4, context=1000))
    # 2 FLOP per matrix parameter and token; attention 4 * q * keys per token and layer
    assert phase.model_flop == 4 * (2 * 7_504_658_432 + 32 * 4 * 4096 * 1000)


@pytest.mark.parametrize(
    ("name", "seq", "causal", "full"),
    [
        # 6 * matrix parameters + 12 L q (s+1)/2, or 12 L q s [GFLOP per token]
        ("llama-3.1-8b", 8192, 51.471, 57.913),
        ("qwen3-30b-a3b", 4096, 23.083, 27.914),
    ],
)
def test_training_flop_per_token(build, setting, name, seq, causal, full):
    phase = train(setting(build(name)), training_batch(sequences=1, seq=seq))
    assert phase.model_flop / seq / 1e9 == pytest.approx(causal, abs=5e-4)
    assert phase.full_flop / seq / 1e9 == pytest.approx(full, abs=5e-4)


def test_llama_2_7b_conventions(build, setting):
    # D10, batch 4 of 8192: 6 N = 1299.00 TFLOP, attention 422.21 full; exactly (s+1)/2 of it 211.13
    phase = train(setting(build("llama-2-7b")), training_batch(sequences=4, seq=8192))
    assert phase.full_flop / 1e12 == pytest.approx(1721.22, rel=1e-4)
    assert phase.model_flop / 1e12 == pytest.approx(1510.11, rel=1e-4)
    linear = phase.model_flop - sum(k.model_flop * k.count for k in phase.kernels if k.kind == "attention")
    assert linear / 1e12 == pytest.approx(1299.00, rel=1e-5)
    assert (phase.model_flop - linear) / 1e12 == pytest.approx(211.13, rel=1e-4)


def test_tying_changes_no_flop_and_one_table_of_bytes(build, setting):
    # D09
    tied, untied = (build("qwen3-0.6b", tied=t) for t in (True, False))
    assert count_params(tied).total == 596_049_920
    assert count_params(untied).total == 751_632_384
    phases = [train(setting(m), training_batch(sequences=1, seq=128)) for m in (tied, untied)]
    assert phases[0].model_flop == phases[1].model_flop
    core = sum(k.model_flop * k.count for k in phases[0].kernels if k.kind == "attention")
    assert (phases[0].model_flop - core) / 128 == 3_575_906_304
    step = [decode(setting(m), decode_batch(sequences=1, context=0)) for m in (tied, untied)]
    assert step[0].device_bytes == step[1].device_bytes


def test_mixture_of_experts_counts_active_flop_and_distinct_bytes(build, setting):
    # D13: 6 * 12,748,587,008 per token without attention
    model = build("mixtral-8x7b")
    phase = train(setting(model), training_batch(sequences=1, seq=64))
    core = sum(k.model_flop * k.count for k in phase.kernels if k.kind == "attention")
    assert (phase.model_flop - core) / 64 == 76_491_522_048
    # 3 tokens of Mixtral touch 8 * (1 - 0.75^3) = 4.625 of 8 experts
    step = decode(setting(model), decode_batch(sequences=3, context=0))
    experts = sum(k.weight_bytes * k.count for k in step.kernels if k.area == "experts")
    assert experts == pytest.approx(32 * 4.625 * 3 * 4096 * 14336 * 2)
    # batch 64: all experts; 93.4 GB at 3.35 TB/s are 27.8 ms, not the 16.7 of k experts
    step = decode(setting(model), decode_batch(sequences=64, context=0))
    assert step.device_bytes / 3.35e12 == pytest.approx(27.8e-3, rel=5e-3)


def test_expert_weights_at_batch_16(build, setting):
    # Qwen3-30B-A3B, T = 16, 4.8 TB/s: expected 82.4 distinct 7.78 ms, all 128 12.08 ms
    step = decode(setting(build("qwen3-30b-a3b")), decode_batch(sequences=16, context=0))
    experts = sum(k.weight_bytes * k.count for k in step.kernels if k.area == "experts")
    assert experts / 4.8e12 == pytest.approx(7.78e-3, rel=1e-3)
    assert pytest.approx(12.08e-3, rel=1e-3) == 48 * 128 * 3 * 2048 * 768 * 2 / 4.8e12


def test_measured_routing_replaces_even_routing(build, setting):
    model = build("mixtral-8x7b")
    skewed = replace(setting(model), routing=[1.0, 1.0, 0, 0, 0, 0, 0, 0])
    step = decode(skewed, decode_batch(sequences=64, context=0))
    experts = sum(k.weight_bytes * k.count for k in step.kernels if k.area == "experts")
    assert experts == pytest.approx(32 * 2 * 3 * 4096 * 14336 * 2)
    with pytest.raises(UsageError, match="3 routing frequencies for 8 experts"):
        decode(replace(setting(model), routing=[1.0, 1.0, 1.0]), decode_batch(sequences=1, context=0))


# --- masks ---------------------------------------------------------------------------------------------------------


@settings(max_examples=200)
@given(
    st.integers(1, 60),
    st.integers(0, 60),
    st.one_of(st.none(), st.integers(1, 70)),
    st.one_of(st.none(), st.integers(1, 70)),
)
def test_pairs_and_keys_against_brute_force(queries, past, window, chunk):
    keys = queries + past
    mask = Mask(window=None if chunk else window, chunk=chunk)
    seen = np.zeros((queries, keys), dtype=bool)
    for i in range(queries):
        p = past + i
        for j in range(p + 1):
            inside = (mask.window is None or j > p - mask.window) and (chunk is None or j // chunk == p // chunk)
            seen[i, j] = inside
    group = Group(sequences=1, queries=queries, keys=keys)
    assert pairs_of(group, mask) == seen.sum()
    assert keys_of(group, mask) == seen.any(axis=0).sum()


def test_a_window_of_512_is_2_29_times_less_not_4(build, setting):
    # 512 - 512 * 511 / (2 * 2048) = 448.1 keys against 1024.5
    full, narrow = (
        train(setting(build("small", window=w)), training_batch(sequences=1, seq=2048)) for w in (None, 512)
    )
    core = [sum(k.model_flop * k.count for k in p.kernels if k.kind == "attention") for p in (full, narrow)]
    assert core[0] / core[1] == pytest.approx(1024.5 / 448.125)
    assert full.full_flop == narrow.full_flop


@given(st.integers(1, 300), st.integers(1, 4))
@settings(max_examples=30, deadline=None)
def test_decode_summed_over_a_sequence_is_a_causal_prefill(build, setting, length, sequences):
    s = setting(build("small"))
    prompt = prefill(s, prefill_batch(sequences=sequences, prompt=length))
    steps = [decode(s, decode_batch(sequences=sequences, context=c)) for c in range(1, length + 1)]

    def core(phase):
        return sum(k.model_flop * k.count for k in phase.kernels if k.kind == "attention")

    assert sum(core(p) for p in steps) == pytest.approx(core(prompt))


@given(st.integers(2, 200), st.integers(1, 64), st.integers(0, 50))
@settings(max_examples=30, deadline=None)
def test_chunks_of_a_prefill_add_up(build, setting, prompt, chunk, cached):
    cached = min(cached, prompt - 1)
    s = setting(build("small"))
    whole = prefill(s, prefill_batch(sequences=2, prompt=prompt, cached=cached))
    parts = prefill(s, chunked_prefill_batches(sequences=2, prompt=prompt, chunk=chunk, cached=cached))
    assert parts.model_flop == pytest.approx(whole.model_flop)
    assert parts.tokens == whole.tokens
    # Every further pass reads the layers again; the head runs in the last one alone.
    assert sum(k.count for k in parts.kernels if k.name == "lm_head") == 1
    assert parts.device_bytes >= whole.device_bytes


def test_packed_sequences_cost_the_sum_of_squares(build, setting):
    s = setting(build("small"))
    packed = train(s, packed_batch([100, 28]))
    alone = [train(s, training_batch(sequences=1, seq=n)) for n in (100, 28)]
    joined = train(s, training_batch(sequences=1, seq=128))
    assert packed.model_flop == pytest.approx(sum(p.model_flop for p in alone))
    assert packed.tokens == joined.tokens
    # Per head and layer: 100 * 101 / 2 + 28 * 29 / 2 = 5456 pairs against 128 * 129 / 2 = 8256.
    core = [sum(k.model_flop * k.count for k in p.kernels if k.kind == "attention") for p in (packed, joined)]
    assert core[0] / core[1] == pytest.approx(5456 / 8256)


def test_a_mixed_pass_reads_weights_once(build, setting):
    s = setting(build("small"))
    read, step = prefill_batch(sequences=1, prompt=64), decode_batch(sequences=8, context=128)
    both = mixed(s, mixed_batch(prefill=read, decode=step))
    apart = prefill(s, read), decode(s, step)
    assert both.model_flop == pytest.approx(sum(p.model_flop for p in apart))
    saved = sum(p.device_bytes for p in apart) - both.device_bytes
    weights = sum(k.weight_bytes * k.count for k in both.kernels if k.kind != "gather")
    assert saved == pytest.approx(weights)
    assert both.tokens == 72


def test_a_context_distribution_is_the_sum_of_its_groups(build, setting):
    s = setting(build("small"))
    spread = decode(s, decode_batch(context=[(100, 3), (1000, 1)]))
    even = decode(s, decode_batch(context=325, sequences=4))
    # 3 * 100 + 1000 = 4 * 325 keys
    assert spread.model_flop == even.model_flop
    assert spread.device_bytes == even.device_bytes
    assert spread.emitted == 4


def test_verification_is_one_wider_than_the_proposals(build, setting):
    s = setting(build("small"))
    phase = verify(s, verify_batch(sequences=2, context=100, drafted=3), accepted_per_sequence=1.875)
    assert phase.tokens == 8
    assert phase.emitted == 3.75
    # keys 97, 98, 99, 100 per sequence; 2 layers, q width 64
    core = sum(k.model_flop * k.count for k in phase.kernels if k.kind == "attention")
    assert core == 2 * 2 * 4 * 64 * (97 + 98 + 99 + 100)


# --- plans ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "plan", [Plan(tp=4), Plan(tp=2, dp=2), Plan(dp=4), Plan(pp=2), Plan(tp=2, pp=2, dp=2), Plan(cp=2)]
)
@pytest.mark.parametrize("phase", ["prefill", "decode", "train"])
def test_devices_times_their_share_is_the_whole(build, setting, plan, phase):
    make = {
        "prefill": lambda s: prefill(s, prefill_batch(sequences=4, prompt=64)),
        "decode": lambda s: decode(s, decode_batch(sequences=4, context=64)),
        "train": lambda s: train(s, training_batch(sequences=4 // s.plan.dp, seq=64)),
    }[phase]
    if phase == "decode" and plan.cp > 1:
        pytest.skip("in decode, context ranks divide the cache alone")
    model = build("small")
    one, many = make(setting(model)), make(setting(model, plan))
    assert many.model_flop == pytest.approx(one.model_flop)
    assert many.executed_flop == pytest.approx(one.executed_flop)
    assert many.tokens == one.tokens


def test_replicated_heads_are_executed_more_often(build, setting):
    # 4 heads on 8 ranks: K and V are projected twice in all. (104 rows of the table divide by 8.)
    model = build("small", vocab=104)
    one = decode(setting(model), decode_batch(sequences=1, context=64))
    many = decode(setting(model, Plan(tp=8)), decode_batch(sequences=1, context=64))
    kv = 2 * 2 * 64 * (4 * 8) * 2  # FLOP of K and V: two layers, 2 * 64 * 32 each
    assert many.model_flop == one.model_flop
    assert many.executed_flop - one.executed_flop == pytest.approx(kv)


def test_experts_are_divided_over_their_ranks(build, setting):
    model = build("qwen3-30b-a3b")
    one = decode(setting(model), decode_batch(sequences=64, context=64))
    spread = decode(setting(model, Plan(dp=8, ep=8)), decode_batch(sequences=64, context=64))

    def of(phase, area):
        return sum(k.weight_bytes * k.count for k in phase.kernels if k.area == area)

    # All 64 tokens meet at one set of experts, an eighth of which is here; attention weights are whole on every rank.
    assert of(spread, "experts") * 8 == pytest.approx(of(one, "experts"))
    assert of(spread, "attention") == of(one, "attention")
    assert spread.model_flop == pytest.approx(one.model_flop)
    assert resident_weight_bytes(setting(model, Plan(dp=8, ep=8))) < resident_weight_bytes(setting(model)) / 5
    sent = next(k for k in spread.kernels if k.name == "all_to_all_dispatch")
    # 8 tokens of this rank, 8 experts each, 2048 elements of 2 B, 7 of 8 leave
    assert sent.demand.link_bytes["peer"] == 8 * 8 * 2048 * 2 * 7 / 8


def test_tensor_parallel_messages(build, setting):
    phase = decode(setting(build("llama-3.1-8b"), Plan(tp=8)), decode_batch(sequences=4, context=64))
    reduce = next(k for k in phase.kernels if k.name == "all_reduce_tp")
    # two per layer and one for the divided table, 2 * 7/8 of 4 tokens * 4096 * 2 B
    assert reduce.count == 65
    assert reduce.demand.link_bytes["peer"] == 2 * 7 / 8 * 4 * 4096 * 2


@pytest.mark.parametrize("plan", [Plan(tp=3), Plan(tp=16), Plan(pp=3)])
def test_a_plan_that_cannot_be_is_refused(build, setting, plan):
    with pytest.raises(UsageError):
        decode(setting(build("small"), plan), decode_batch(sequences=1, context=8))


def test_ranks_that_cannot_be_are_refused():
    for bad in ({"tp": 0}, {"dp": -1}, {"zero": 4}):
        with pytest.raises(UsageError):
            Plan(**bad)
    with pytest.raises(InfeasibleError):
        Plan(ep=4, tp=3)
    with pytest.raises(InfeasibleError):
        Plan(ep=8, tp=2, dp=2)


def test_sequences_that_do_not_divide_are_refused(build, setting):
    with pytest.raises(UsageError, match="do not divide"):
        decode(setting(build("small"), Plan(dp=2)), decode_batch(sequences=3, context=8))


# --- training ------------------------------------------------------------------------------------------------------


def test_recomputation_changes_executed_flop_alone(build, setting):
    s = setting(build("llama-3.1-8b"))
    batch = training_batch(sequences=1, seq=8192)
    none, core, full = (train(s, batch, Recipe(recompute=r)) for r in ("none", "selective", "full"))
    assert none.model_flop == core.model_flop == full.model_flop
    forward_core = 32 * 4 * 4096 * 8192 * 8193 / 2
    # A fused backward computes Q K^T once more: 5 products for 4.
    assert none.executed_flop - none.model_flop == pytest.approx(forward_core / 2)
    assert core.executed_flop - none.executed_flop == pytest.approx(forward_core)
    layers = 2 * 6_979_321_856 * 8192 + forward_core
    assert full.executed_flop - none.executed_flop == pytest.approx(layers)


def test_accumulation_repeats_passes_and_one_optimizer_step(build, setting):
    s = setting(build("small"))
    once = train(s, training_batch(sequences=2, seq=32))
    twice = train(s, training_batch(sequences=2, seq=32), Recipe(accumulation=2))
    assert twice.model_flop == 2 * once.model_flop
    assert twice.tokens == 2 * once.tokens
    assert _row(twice, "optimizer_step", "optimizer").count == 1


def test_adapters_cost_three_and_frozen_weights_two(build, setting):
    model = build("llama-3.1-8b")
    batch = training_batch(sequences=1, seq=16)
    whole = train(setting(model), batch)
    light = train(setting(model), batch, Recipe(lora_rank=16))
    layer = 2 * (4096 + 4096) + 2 * (4096 + 1024) + 3 * (4096 + 14336)
    adapters = 32 * 16 * layer
    core = sum(k.model_flop * k.count for k in whole.kernels if k.kind == "attention")
    assert (whole.model_flop - core) / 16 == 6 * 7_504_658_432
    assert (light.model_flop - core) / 16 == pytest.approx(4 * 7_504_658_432 + 6 * adapters)
    step = _row(light, "optimizer_step", "optimizer")
    # master 4 + gradient 2 + moments 8 read, master 4 + moments 8 + weights 2 written
    assert step.demand.bytes == pytest.approx(28 * adapters)


def test_gradient_messages_by_stage(build, setting):
    model = build("small")
    batch = training_batch(sequences=1, seq=32)
    elements = resident_parameters(setting(model))

    def sent(zero, accumulation=1):
        s = setting(model, Plan(dp=4, zero=zero))
        phase = train(s, batch, Recipe(accumulation=accumulation))
        return sum(k.demand.link_bytes["peer"] * k.count for k in phase.kernels if k.demand.link_bytes)

    size = 2 * elements
    assert sent(0) == pytest.approx(2 * 3 / 4 * size)
    assert sent(1) == pytest.approx(2 * 3 / 4 * size)
    assert sent(3) == pytest.approx(3 * 3 / 4 * size)
    # every micro-batch: gathered in its forward and in its backward pass, gradients scattered
    assert sent(3, accumulation=4) == pytest.approx(4 * (1 + 2) * 3 / 4 * size)
    # stage 1 keeps whole gradients, and sends once
    assert sent(1, accumulation=4) == pytest.approx(2 * 3 / 4 * size)


# --- memory --------------------------------------------------------------------------------------------------------


def test_resident_parameters_are_the_models(build, setting):
    for name in ("llama-3.1-8b", "mixtral-8x7b", "qwen3-0.6b"):
        model = build(name)
        assert resident_parameters(setting(model)) == count_params(model).total
        assert resident_weight_bytes(setting(model)) == 2 * count_params(model).total


@pytest.mark.parametrize("plan", [Plan(tp=2), Plan(tp=4, pp=2), Plan(pp=2)])
def test_weights_are_divided_as_kernels_are(build, setting, plan):
    # Norms are whole on every tensor-parallel rank; the rest divides (100 rows of the table by 2 and 4).
    model = build("small")
    one, share = resident_parameters(setting(model)), resident_parameters(setting(model, plan))
    norms = (2 * 2 + 1) * 64
    assert share == pytest.approx(((one - norms) / plan.tp + norms) / plan.pp)


def test_training_memory_of_adam_in_mixed_precision(build, setting):
    model = build("llama-3.1-8b")
    params = 8_030_261_248
    batch = training_batch(sequences=1, seq=128)
    for zero, (w, g, o) in {0: (1, 1, 1), 1: (1, 1, 8), 2: (1, 8, 8), 3: (8, 8, 8)}.items():
        s = setting(model, Plan(dp=8, zero=zero))
        recipe = Recipe()
        held = memory_of(s, train(s, batch, recipe), batch, recipe=recipe)
        assert held.weight_bytes == 2 * params / w
        assert held.gradient_bytes == 2 * params / g
        # fp32 master and two fp32 moments: 12 B
        assert held.optimizer_bytes == 12 * params / o


def test_cache_under_tensor_parallelism(build, setting):
    # 2 * 8 heads * 128 * 2 B * 32 layers = 131072 B per token; an eighth each on 8 ranks
    batch = decode_batch(sequences=2, context=1000)
    for tp, share in ((1, 1), (8, 8), (16, 8)):
        s = setting(build("llama-3.1-8b"), Plan(tp=tp))
        held = memory_of(s, decode(s, batch), batch)
        assert held.kv_bytes_per_token == 131072 / share
        assert held.kv_cache_bytes == 2 * 1000 * 131072 / share


def test_full_recomputation_keeps_less(build, setting):
    s = setting(build("llama-3.1-8b"))
    batch = training_batch(sequences=1, seq=4096)
    held = {
        r: memory_of(s, train(s, batch, Recipe(recompute=r)), batch, recipe=Recipe(recompute=r)).activation_bytes
        for r in ("none", "full")
    }
    assert held["full"] < held["none"] / 4


def test_budget_before_weights():
    # X03: 0.92 * 180 GiB = 165.6 GiB
    room = fit(179.7 * 2**30, capacity_bytes=180 * 2**30, fraction=0.92)
    assert not room.fits
    assert room.budget_bytes == pytest.approx(165.6 * 2**30)
    assert fit(100.0, capacity_bytes=100.0).fits
    for bad in (0.0, 1.5, -1.0):
        with pytest.raises(UsageError):
            fit(1.0, capacity_bytes=2.0, fraction=bad)


def test_a_trillion_parameters_need_21_devices():
    # 2e12 B / 96e9 B = 20.8
    assert fit(2e12, capacity_bytes=96e9).devices_at_least == 21


# --- refusals and arrays -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda: decode_batch(sequences=0, context=8),
        lambda: decode_batch(sequences=1, context=-1),
        lambda: decode_batch(context=[]),
        lambda: decode_batch(context=[(8, 0)]),
        lambda: prefill_batch(sequences=1, prompt=8, cached=8),
        lambda: prefill_batch(sequences=1, prompt=0),
        lambda: training_batch(sequences=1, seq=float("nan")),
        lambda: packed_batch([]),
        lambda: verify_batch(sequences=1, context=10, drafted=0),
        lambda: chunked_prefill_batches(sequences=1, prompt=8, chunk=0),
    ],
)
def test_batches_that_cannot_be(make):
    with pytest.raises(UsageError):
        make()


def test_arrays_give_what_numbers_give(build, setting):
    s = setting(build("qwen3-30b-a3b"))
    batches, contexts = np.array([1.0, 7.0, 64.0]), np.array([10.0, 4096.0, 333.0])
    many = decode(s, Batch(groups=(Group(sequences=batches, queries=1.0, keys=contexts),)))
    for i, (b, c) in enumerate(zip(batches, contexts, strict=True)):
        one = decode(s, decode_batch(sequences=float(b), context=float(c)))
        assert many.model_flop[i] == pytest.approx(one.model_flop, rel=1e-12)
        assert many.device_bytes[i] == pytest.approx(one.device_bytes, rel=1e-12)


@given(st.integers(1, 10_000))
def test_more_rows_never_lower_the_intensity_of_a_product(rows):
    from mansard.operators.matmul import matmul

    once, twice = (matmul(m=m, n=512, k=256, dtype="bf16") for m in (rows, 2 * rows))
    assert twice.flop_per_byte >= once.flop_per_byte
