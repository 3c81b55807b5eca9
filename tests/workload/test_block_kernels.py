"""Kernels of single blocks against the closed forms of the workloads reference, section 2, worked by hand."""

from __future__ import annotations

import pytest

from mansard.workload.batch import Batch, Group, decode_batch, prefill_batch, training_batch
from mansard.workload.forward import block_kernels
from mansard.workload.kernel import Context, Types
from mansard.workload.parallel import Plan
from mansard.workload.records import (
    CrossAttention,
    GatedDeltaNet,
    GqaAttention,
    Mamba1,
    Mamba2,
    MlaAttention,
    Mlp,
    Moe,
    SparseIndexer,
)


def build(block, batch, *, plan=None, **more):
    """Kernels of a block with every element stored in 2 B."""
    context = Context(
        batch=batch, plan=plan or Plan(), types=Types(activation="bf16", cache="bf16", state="f32"),
        stored_bytes=lambda w, _path: 2.0 * w.elements, quantised=lambda _w, _path: False, **more,
    )  # fmt: skip
    return {k.name: k for k in block_kernels(context, block)}


def flop(kernels, *, without=()):
    return sum(k.demand.total_flop for name, k in kernels.items() if name not in without)


ONE = decode_batch(sequences=1, context=100)
PROMPT = prefill_batch(sequences=1, prompt=10)
#: Keys per query of a causal prompt of 10: 5.5.
PAIRS = 55

GQA = GqaAttention(hidden=64, heads=8, kv_heads=2, head_dim=16, v_head_dim=16)


def test_grouped_query_attention():
    k = build(GQA, PROMPT)
    # 2 h (q + 2 kv) + 2 q h per token with q = 128, kv = 32; core 4 q a
    assert flop(k, without=("attention",)) == 10 * (2 * 64 * (128 + 64) + 2 * 128 * 64)
    assert k["attention"].demand.total_flop == 4 * 128 * PAIRS
    # 2 n_kv d b per token: all keys read, all new ones written
    assert k["attention"].demand.read_bytes == k["attention"].demand.write_bytes == 10 * 2 * 2 * 16 * 2


def test_output_gate_makes_the_query_projection_twice_as_wide():
    from dataclasses import replace

    gated = build(replace(GQA, output_gate=True), ONE)
    plain = build(GQA, ONE)
    assert flop(gated) - flop(plain) == 2 * 64 * 128


def test_keys_of_an_earlier_layer_are_read_and_not_written():
    from dataclasses import replace

    k = build(replace(GQA, shares_kv=True), ONE)
    assert k["qkv_proj"].demand.total_flop == 2 * 64 * 128
    assert k["attention"].demand.read_bytes == 100 * 2 * 2 * 16 * 2
    assert k["attention"].demand.write_bytes == 0


MLA = MlaAttention(hidden=64, heads=4, q_rank=24, kv_rank=32, nope_dim=8, rope_dim=4, v_dim=8)


def test_latent_attention_expanded():
    k = build(MLA, training_batch(sequences=1, seq=10), training=True)
    # h r_q + r_q n (d_n + d_r) + h (r_kv + d_r) + r_kv n (d_n + d_v) + n d_v h, twice
    linear = 64 * 24 + 24 * 4 * 12 + 64 * 36 + 32 * 4 * 16 + 4 * 8 * 64
    assert flop(k, without=("attention",)) == 10 * 2 * linear
    # 2 n (d_n + d_r + d_v) a
    assert k["attention"].demand.total_flop == 2 * 4 * (8 + 4 + 8) * PAIRS


def test_latent_attention_absorbed():
    k = build(MLA, ONE, absorbed=True)
    # h r_q + r_q n (d_n + d_r) + h (r_kv + d_r) + n d_n r_kv + n r_kv d_v + n d_v h, twice
    linear = 64 * 24 + 24 * 4 * 12 + 64 * 36 + 4 * 8 * 32 + 4 * 32 * 8 + 4 * 8 * 64
    assert flop(k, without=("attention",)) == 2 * linear
    # 2 n ((r_kv + d_r) + r_kv) ctx; the latent of 36 elements is read once for all heads
    assert k["attention"].demand.total_flop == 2 * 4 * (36 + 32) * 100
    assert k["attention"].demand.read_bytes == 100 * 36 * 2
    assert k["attention"].demand.write_bytes == 36 * 2


def test_latent_is_whole_on_every_rank_and_heads_are_divided():
    one, half = build(MLA, ONE, absorbed=True), build(MLA, ONE, absorbed=True, plan=Plan(tp=2))
    assert half["attention"].demand.read_bytes == one["attention"].demand.read_bytes
    assert half["attention"].demand.total_flop == one["attention"].demand.total_flop / 2
    assert half["qkv_down"].demand == one["qkv_down"].demand
    assert half["q_up"].demand.total_flop == one["q_up"].demand.total_flop / 2


def test_sparse_attention_scores_all_keys_and_attends_to_some():
    from dataclasses import replace

    indexer = SparseIndexer(hidden=64, query_in=24, heads=3, head_dim=5, top_k=20)
    k = build(replace(MLA, indexer=indexer), ONE, absorbed=True)
    # 2 [r_q n_i d_i + h d_i + h n_i]; 2 (n_i d_i + n_i) for each of all 100 keys
    assert k["indexer_proj"].demand.total_flop == 2 * (24 * 3 * 5 + 64 * 5 + 64 * 3)
    assert k["indexer_score"].demand.total_flop == 2 * (3 * 5 + 3) * 100
    assert k["indexer_score"].demand.read_bytes == 100 * 5 * 2
    assert k["attention"].demand.total_flop == 2 * 4 * (36 + 32) * 20
    assert k["attention"].demand.read_bytes == 20 * 36 * 2


def test_mamba_1():
    block = Mamba1(hidden=16, inner=32, state=4, dt_rank=2, conv=4)
    k = build(block, PROMPT)
    # 2 h 2 d_i + 2 d_c d_i + 2 d_i (R + 2 N) + 2 R d_i + 2 d_i h; scan 9 d_i N
    linear = 2 * 16 * 64 + 2 * 4 * 32 + 2 * 32 * (2 + 8) + 2 * 2 * 32 + 2 * 32 * 16
    assert flop(k, without=("scan",)) == 10 * linear
    assert k["scan"].demand.total_flop == 10 * 9 * 32 * 4
    # state d_i N in f32 read and written once; A (d_i N) and D (d_i) read
    assert k["scan"].demand.write_bytes == 32 * 4 * 4
    assert k["scan"].demand.read_bytes == 32 * 4 * 4 + 2 * (32 * 4 + 32)
    # convolution tail: d_i (d_c - 1) elements each way
    assert k["conv"].demand.write_bytes == 32 * 3 * 2


def test_mamba_2():
    block = Mamba2(hidden=16, heads=4, head_dim=8, state=6, groups=2, conv=4)
    k = build(block, PROMPT)
    # 2 h (2 d_i + 2 G N + n_h) + 2 d_i h, the convolution over d_i + 2 G N; scan 7 d_i N
    linear = 2 * 16 * (64 + 24 + 4) + 2 * 32 * 16 + 2 * 4 * (32 + 24)
    assert flop(k, without=("scan",)) == 10 * linear
    assert k["scan"].demand.total_flop == 10 * 7 * 32 * 6
    assert k["scan"].demand.write_bytes == 4 * 8 * 6 * 4
    assert k["conv"].demand.write_bytes == (32 + 24) * 3 * 2


def test_gated_delta_network():
    block = GatedDeltaNet(hidden=16, k_heads=2, v_heads=4, k_dim=4, v_dim=6, conv=4)
    k = build(block, PROMPT)
    # K = 8, V = 24: 2 h (2 K + 2 V + 2 n_v) + 2 h V + 2 k_c (2 K + V); core 8 n_v d_k d_v
    linear = 2 * 16 * (16 + 48 + 8) + 2 * 16 * 24 + 2 * 4 * (16 + 24)
    assert flop(k, without=("scan",)) == 10 * linear
    assert k["scan"].demand.total_flop == 10 * 8 * 4 * 4 * 6
    # n_v d_k d_v in f32, (k_c - 1)(2 K + V) in 16 bits
    assert k["scan"].demand.write_bytes == 4 * 4 * 6 * 4
    assert k["conv"].demand.write_bytes == 3 * (16 + 24) * 2


@pytest.mark.parametrize(
    "block",
    [
        Mamba1(hidden=16, inner=32, state=4, dt_rank=2, conv=4),
        Mamba2(hidden=16, heads=4, head_dim=8, state=6, groups=2, conv=4),
        GatedDeltaNet(hidden=16, k_heads=2, v_heads=4, k_dim=4, v_dim=6, conv=4),
        GQA,
        MLA,
    ],
)
def test_nothing_is_kept_for_later_passes_in_training(block):
    kernels = build(block, training_batch(sequences=1, seq=10), training=True)
    assert all(k.demand.write_bytes == 0 for k in kernels.values())
    assert all(k.demand.read_bytes == k.weight_bytes for k in kernels.values())


def test_a_state_does_not_grow():
    block = Mamba2(hidden=16, heads=4, head_dim=8, state=6, groups=2, conv=4)
    near, far = build(block, ONE), build(block, decode_batch(sequences=1, context=100_000))
    assert {n: k.demand for n, k in near.items()} == {n: k.demand for n, k in far.items()}


def test_cross_attention():
    block = CrossAttention(hidden=64, source_hidden=48, heads=4, kv_heads=4, head_dim=16)
    first = Batch(groups=(Group(sequences=2, queries=10, keys=10),), source_tokens=30)
    k = build(block, first)
    # 2 h q + 2 q h per decoder token; K and V once per encoder token; 4 q s_enc
    assert k["cross_q_proj"].demand.total_flop + k["cross_o_proj"].demand.total_flop == 20 * (2 * 64 * 64 * 2)
    assert k["cross_kv_proj"].demand.total_flop == 60 * 2 * 48 * 128
    assert k["cross_attention"].demand.total_flop == 20 * 4 * 64 * 30
    later = Batch(groups=(Group(sequences=2, queries=1.0, keys=11),), source_tokens=30)
    assert "cross_kv_proj" not in build(block, later)


def test_feed_forward_blocks():
    two = Mlp(hidden=16, width=40, gated=False, activation="gelu")
    three = Mlp(hidden=16, width=40, gated=True, activation="silu")
    # 4 h f and 6 h f
    assert flop(build(two, PROMPT)) == 10 * 4 * 16 * 40
    assert flop(build(three, PROMPT)) == 10 * 6 * 16 * 40


def test_mixture_with_shared_experts_and_gate():
    block = Moe(
        hidden=16, experts=8, top_k=2, width=10, gated=True, activation="silu", shared_width=20, shared_gate=True
    )
    # 6 h f_e k + 6 h f_s + 2 h E + 2 h
    assert flop(build(block, ONE)) == 6 * 16 * 10 * 2 + 6 * 16 * 20 + 2 * 16 * 8 + 2 * 16


def test_mixture_in_a_latent_space():
    block = Moe(hidden=16, experts=8, top_k=2, width=10, gated=False, activation="relu2", latent=4)
    # two matrices per expert: 4 l f_e k, both shared projections 4 h l, router 2 h E
    k = build(block, ONE)
    assert flop(k) == 4 * 4 * 10 * 2 + 4 * 16 * 4 + 2 * 16 * 8
    # 2 experts of 2 * 4 * 10 elements are read for one token
    assert k["experts_up_proj"].weight_bytes + k["experts_down_proj"].weight_bytes == 2 * 2 * 4 * 10 * 2
