"""Dense and paged attention: hand-counted work, the compiler's count, f64 checks, and the published suite's defects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from mansard.core.errors import UsageError
from mansard.measure.benchmarks import attention, attention_reference, paged
from mansard.measure.benchmarks.attention_shape import AttentionShape, executed_flop, model_width_shape
from mansard.measure.benchmarks.paged_shape import drawn_lengths, paged_shape
from mansard.measure.points.benchmark import Benchmark, Where

NAMED: dict[str, Benchmark] = {b.name: b for b in (*attention.BENCHMARKS, *paged.BENCHMARKS)}
FLASHED = NAMED["attention_flashed"]


def where(backend: str = "jax", platform: str = "cpu", memory_bytes: float | None = 8e9) -> Where:
    return Where(backend=backend, platform=platform, threads=1, memory_bytes=memory_bytes)


def params(benchmark: Benchmark, **given: Any) -> dict[str, Any]:
    return {p.name: p.default for p in benchmark.parameters} | given


def suite_example(**given: Any) -> dict[str, Any]:
    size = {"batch": 2, "num_q_heads": 8, "num_kv_heads": 8, "seq_len": 512, "head_dim": 64, "dtype": "f32"}
    return params(FLASHED, **{**size, "causal": False, "mode": "fwd", "impl": "xla", **given})


def shape(**given: Any) -> AttentionShape:
    size: dict[str, Any] = {
        "batch": 2, "heads": 8, "kv_heads": 8, "queries": 512, "keys": 512, "head_dim": 64, "value_dim": 64,
        "causal": False, "scale": 0.125, "mode": "fwd", "dtype": "f32",
    }  # fmt: skip
    return AttentionShape(**{**size, **given})


def test_forward_flop_include_the_batch_and_agree_with_the_compiler() -> None:
    # 2 products * 2 FLOP * 2 sequences * 8 heads * 512 * 512 pairs * 64 = 1,073,741,824; the suite claims half of it.
    p = suite_example()
    work = FLASHED.work(p, where())
    assert work.demand.total_flop == 1_073_741_824
    assert work.executed_flop == 1_073_741_824
    counted = FLASHED.prepare(p, "xla", where()).count_by_compiler()
    # On top of the products: 5 operations per score (scale, maximum, subtraction, sum, quotient).
    scores = 2 * 8 * 512 * 512
    assert 1_073_741_824 <= counted.flop <= 1_073_741_824 + 6 * scores
    assert "dot" in counted.operations or "__ynn_fusion" in counted.operations


def test_heads_first_operands_would_be_17_mflop_which_is_the_suites_defect() -> None:
    import jax

    from mansard.measure.points import with_jax

    # (batch, heads, length, width) read as (batch, length, heads, width): 8 positions, 512 heads.
    # 4 * 2 * 512 heads * 8 * 8 pairs * 64 = 16,777,216 FLOP in products, 63 times fewer than asked for.
    x = [with_jax.array((2, 8, 512, 64), "f32", seed=i) for i in range(3)]
    counted = with_jax.compiled(lambda q, k, v: jax.nn.dot_product_attention(q, k, v), x).counts()
    assert 16.7e6 < counted.flop < 17.5e6
    assert FLASHED.work(suite_example(), where()).demand.total_flop / counted.flop > 60


@pytest.mark.parametrize(
    ("mode", "model", "executed"),
    [
        ("fwd", 1.0, 1.0),
        ("bwd", 2.0, 2.5),  # dV, dP, dQ, dK, and Q K^T once more; P V is not needed
        ("fwd_bwd", 3.0, 3.0),  # scores are kept: 2 + 4 products
    ],
)
def test_model_and_executed_flop_of_each_mode(mode: str, model: float, executed: float) -> None:
    p = suite_example(mode=mode, batch=1, seq_len=128)
    forward = 4 * 8 * 128 * 128 * 64
    work = FLASHED.work(p, where())
    assert work.demand.total_flop == model * forward
    assert work.executed_flop == executed * forward
    counted = FLASHED.prepare(p, "xla", where()).count_by_compiler()
    assert executed * forward <= counted.flop <= executed * forward * 1.05


def test_fused_kernels_skip_what_is_hidden_and_make_scores_again() -> None:
    # Causal, 4 positions: 10 pairs of 16. 4 * 10 * 8 = 320 FLOP forward, five products backward: 800.
    one = {
        "batch": 1,
        "heads": 1,
        "kv_heads": 1,
        "queries": 4,
        "keys": 4,
        "head_dim": 8,
        "value_dim": 8,
        "causal": True,
    }
    assert executed_flop(shape(**one), "splash") == 320
    assert executed_flop(shape(**one, mode="bwd"), "torch-sdpa") == 800
    assert executed_flop(shape(**one, mode="fwd_bwd"), "pallas") == 1120  # 3.5 times
    assert executed_flop(shape(**one), "xla") == 4 * 16 * 8  # computed and masked
    assert executed_flop(shape(**one, mode="bwd"), "torch-naive") == 2 * 4 * 16 * 8  # scores are kept by autograd


def test_grouped_queries_change_bytes_and_not_flop() -> None:
    full, grouped = (FLASHED.work(suite_example(num_kv_heads=n, batch=1, dtype="bf16"), where()).demand for n in (8, 2))
    assert full.total_flop == grouped.total_flop
    # Q and result: 2 * 8 * 512 * 64; K and V: 2 * heads * 512 * 64; 2 B each.
    assert full.bytes == 2 * (2 * 8 + 2 * 8) * 512 * 64
    assert grouped.bytes == 2 * (2 * 8 + 2 * 2) * 512 * 64


@pytest.mark.parametrize("impl", ["xla", "naive", "torch-sdpa", "torch-naive"])
@pytest.mark.parametrize("mode", ["fwd", "fwd_bwd", "bwd"])
def test_implementations_agree_with_f64(impl: str, mode: str) -> None:
    p = suite_example(
        mode=mode,
        causal=True,
        batch=2,
        seq_len=48,
        num_q_heads=4,
        num_kv_heads=2,
        head_dim=16,
        impl=impl,
        kv_seq_len=64,
    )
    here = where(FLASHED.implementations[impl])
    assert FLASHED.waived(p, impl, here) is None
    prepared = FLASHED.prepare(p, impl, here)
    prepared.run(1)
    assert prepared.verify().error_ratio < 1.0
    assert prepared.facts["implementation"] == impl
    assert prepared.facts["visible_pairs"] == 48 * 49 / 2


@pytest.mark.parametrize("change", ["result", "dq", "dk", "dv"])
def test_a_wrong_result_is_seen(change: str) -> None:
    rng = np.random.default_rng(0)
    s = shape(batch=1, heads=1, kv_heads=1, queries=8, keys=8, head_dim=4, value_dim=4, mode="fwd_bwd", causal=True)
    q, k, v, g = (rng.standard_normal((8, 4)) for _ in range(4))
    rows = np.arange(8)
    made: dict[str, Any] = {
        "result": attention_reference.forward_rows(q, k, v, rows, causal=True, scale=s.scale),
        "dq": attention_reference.query_gradient_rows(q, k, v, g, rows, causal=True, scale=s.scale),
    }
    held = attention_reference.Operands(q=lambda *_: q, k=lambda *_: k, v=lambda *_: v, g=lambda *_: g)
    made["dk"], made["dv"] = attention_reference.key_value_gradient_rows(s, held, 0, 0, rows)

    def check(results: Mapping[str, Any]) -> float:
        out, *gradients = (lambda *_, x=results[n]: x for n in ("result", "dq", "dk", "dv"))
        return attention_reference.check_attention(s, held, out, tuple(gradients)).error_ratio

    assert check(made) < 1e-3
    wrong = {name: x + (1e-2 if name == change else 0.0) for name, x in made.items()}
    assert check(wrong) > 1.0


def test_reference_gradients_are_those_of_the_forward() -> None:
    rng = np.random.default_rng(1)
    q, k, v, g = (rng.standard_normal((6, 4)) for _ in range(4))
    rows, step = np.arange(6), 1e-6

    def loss(q: Any) -> float:
        return float(np.sum(g * attention_reference.forward_rows(q, k, v, rows, causal=True, scale=0.5)))

    dq = attention_reference.query_gradient_rows(q, k, v, g, rows, causal=True, scale=0.5)
    way = rng.standard_normal(q.shape)
    assert (loss(q + step * way) - loss(q - step * way)) / (2 * step) == pytest.approx(
        float(np.sum(dq * way)), abs=1e-7
    )


@pytest.mark.parametrize("impl", ["pallas", "splash"])
def test_kernels_of_accelerators_are_checked_in_interpret_mode_and_waived(impl: str) -> None:
    p = suite_example(seq_len=128, head_dim=128, num_q_heads=1, num_kv_heads=1, batch=1, causal=True, impl=impl)
    waived = FLASHED.waived(p, impl, where())
    assert waived is not None
    assert waived.missing == "device"
    assert "TPU" in waived.reason
    assert attention.check_without_device(p, impl).error_ratio < 1.0


def test_what_is_missing_is_named() -> None:
    waived = FLASHED.waived(suite_example(), "cudnn", where())
    assert waived is not None
    assert waived.missing == "device"
    # 32,768^2 scores of 128 heads in f32 are 550 GB.
    big = suite_example(seq_len=32768, num_q_heads=128, batch=1)
    memory = FLASHED.waived(big, "xla", where(memory_bytes=16e9))
    assert memory is not None
    assert memory.missing == "memory"
    assert FLASHED.waived(big, "torch-sdpa", where("torch", memory_bytes=64e9)) is None  # no scores in memory
    grouped = FLASHED.waived(suite_example(num_kv_heads=2), "flax-nnx", where())
    assert grouped is not None
    assert "grouped-query" in grouped.reason


def test_scores_that_are_not_scaled_are_right_and_a_scale_that_is_missing_is_seen() -> None:
    # d_model 1024 in one head: scores are 32 times as large, and so is what their rounding does to the result
    older = NAMED["naive_attention"]
    p = params(older, d_model=1024, num_heads=1, seq_len=128, batch=1, causal=False, scale=False, dtype="f32")
    prepared = older.prepare(p, "naive", where())
    prepared.run(1)
    assert prepared.verify().error_ratio < 1.0
    shape = model_width_shape(p)
    q, k, v = (np.random.default_rng(i).standard_normal((128, 1024)) for i in range(3))
    wrong = attention_reference.forward_rows(q, k, v, np.arange(128), causal=False, scale=1.0 / 32.0)
    operands = attention_reference.Operands(q=lambda *_: q, k=lambda *_: k, v=lambda *_: v)
    assert attention_reference.check_attention(shape, operands, lambda *_: wrong, None).error_ratio > 100.0


def test_older_names_divide_the_model_width_among_heads() -> None:
    older = NAMED["naive_attention"]
    p = params(older, d_model=64, num_heads=4, seq_len=8, batch=3, causal=False)
    # 4 * 3 sequences * 4 heads * 64 pairs * 16 = 49,152
    assert older.work(p, where()).demand.total_flop == 49_152
    with pytest.raises(UsageError, match="not a multiple"):
        older.work(params(older, d_model=65, num_heads=4), where())


def test_tokamax_name_has_its_own_widths() -> None:
    named = NAMED["tokamax_splash_attention"]
    p = params(named, q_seq_len=4, kv_seq_len=4, q_heads=2, kv_heads=1, qk_head_dim=8, v_head_dim=4, causal=True)
    # 10 pairs * 2 heads * 2 * (8 + 4) = 480
    assert named.work(p, where()).demand.total_flop == 480


def test_lengths_are_drawn_once_for_a_seed() -> None:
    one = drawn_lengths(64, "lognormal", 1000, 1.0, 1, 4096, 3)
    assert one == drawn_lengths(64, "lognormal", 1000, 1.0, 1, 4096, 3)
    assert one != drawn_lengths(64, "lognormal", 1000, 1.0, 1, 4096, 4)
    assert min(one) >= 1
    assert max(one) <= 4096
    assert 700 < float(np.median(one)) < 1400
    with pytest.raises(UsageError, match="not understood"):
        drawn_lengths(4, "normal", 10, 1.0, 1, 0, 0)


def paged_params(**given: Any) -> dict[str, Any]:
    small = {"num_seqs": 2, "num_q_heads": 4, "num_kv_heads": 2, "head_dim": 8, "page_size": 4, "dtype": "f32"}
    return params(NAMED["ragged_paged_attention"], **{**small, "lengths": "5,9", **given})


def test_paged_decode_by_hand() -> None:
    work = NAMED["ragged_paged_attention"].work(paged_params(mode="decode"), where())
    # 4 * 8 * 4 heads * (5 + 9) pairs = 1,792 FLOP
    assert work.demand.total_flop == 1792
    # Pages: ceil(5/4) + ceil(9/4) = 5 of 4 tokens; keys and values: 2 * 20 * 2 * 8 * 4 B = 2,560. Queries 2 * 4 * 8 * 4 B.
    assert work.demand.read_bytes == 2560 + 256
    # Results 256 B; new keys and values 2 * 2 * 2 * 8 * 4 B.
    assert work.demand.write_bytes == 256 + 256
    assert work.headline == "bytes"
    # XLA pads both sequences to 3 pages: 2 * 12 pairs.
    assert work.executed_flop == 4 * 8 * 4 * 24


def test_paged_prefill_and_mixed_by_hand() -> None:
    prefill = NAMED["ragged_paged_attention"].work(paged_params(mode="prefill"), where())
    assert prefill.demand.total_flop == 4 * 8 * 4 * (15 + 45)
    mixed = paged_shape(paged_params(mode="mixed", prefill_share=0.5))
    assert (mixed.new_tokens, mixed.contexts) == ((1, 9), (5, 9))
    chunked = paged_shape(paged_params(mode="prefill", chunk=3))
    assert chunked.new_tokens == (3, 3)
    # The last of 3 new tokens sees all: 3 + 4 + 5, and 7 + 8 + 9.
    assert paged.pairs_of(chunked) == 12 + 24


@pytest.mark.parametrize("impl", ["xla-gather", "torch-sdpa"])
@pytest.mark.parametrize("mode", ["decode", "prefill", "mixed"])
def test_paged_attention_agrees_with_f64_and_writes_its_pages(impl: str, mode: str) -> None:
    benchmark = NAMED["ragged_paged_attention"]
    p = paged_params(mode=mode, num_seqs=5, lengths="5,9,1,17,4", prefill_share=0.4, impl=impl)
    prepared = benchmark.prepare(p, impl, where(benchmark.implementations[impl]))
    prepared.run(2)
    assert prepared.verify().error_ratio < 1.0


def test_pages_lie_in_random_order_and_no_page_has_two_owners() -> None:
    s = paged_shape(paged_params(num_seqs=6, lengths="5,9,13"))
    table = s.table()
    owned = [int(page) for i, n in enumerate(s.pages()) for page in table[i, :n]]
    assert sorted(owned) == list(range(len(owned)))
    assert owned != sorted(owned)
    assert len(set(s.places().tolist())) == s.tokens
