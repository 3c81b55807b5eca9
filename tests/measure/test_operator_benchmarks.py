"""Small operators, mixture of experts and one layer: work by hand, checks, counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mansard.core.errors import UsageError
from mansard.measure.benchmarks import layer, moe, operators
from mansard.measure.benchmarks.moe_routing import routed_experts
from mansard.measure.benchmarks.operators import check
from mansard.measure.benchmarks.operators_rows import norm, quantisation
from mansard.measure.points.benchmark import Benchmark, Where
from mansard.operators.paged_attention import ragged_pairs

NAMED: dict[str, Benchmark] = {b.name: b for b in (*operators.BENCHMARKS, *moe.BENCHMARKS, *layer.BENCHMARKS)}


def where(backend: str = "jax", memory_bytes: float | None = 8e9) -> Where:
    return Where(backend=backend, platform="cpu", threads=1, memory_bytes=memory_bytes)


def params(name: str, **given: Any) -> dict[str, Any]:
    known = {p.name: p.default for p in NAMED[name].parameters}
    assert set(given) <= set(known) | {"impl"}
    return known | given


def bytes_of(name: str, **given: Any) -> float:
    work = NAMED[name].work(params(name, **given), where())
    assert work.headline == "bytes"  # never TFLOP/s for these
    return float(work.demand.bytes)


def verified(name: str, impl: str, **given: Any) -> float:
    benchmark, p = NAMED[name], params(name, impl=impl, **given)
    here = where(benchmark.implementations[impl])
    assert benchmark.waived(p, impl, here) is None
    prepared = benchmark.prepare(p, impl, here)
    prepared.run(2)
    return prepared.verify().error_ratio


def test_bytes_by_hand() -> None:
    size = {"batch": 8, "dim": 16, "dtype": "bf16"}
    assert bytes_of("swiglu", **size) == 3 * 8 * 16 * 2  # a, b, result
    assert bytes_of("swiglu", mode="bwd", **size) == 5 * 8 * 16 * 2  # a, b, gradient, two gradients
    assert bytes_of("swiglu_fwd", m=8, n=32, dtype="bf16") == 3 * 8 * 16 * 2  # n is the double width
    assert bytes_of("rmsnorm", **size) == 2 * 8 * 16 * 2 + 16 * 2  # and the weight
    # x, gradient, its result; weight, its gradient, and an f32 statistic per row
    assert bytes_of("rmsnorm", mode="bwd", **size) == 3 * 8 * 16 * 2 + 2 * 16 * 2 + 8 * 4
    assert bytes_of("sigmoid", **size) == 2 * 8 * 16 * 2
    assert bytes_of("simple_add", size=100, dtype="f32") == 1200
    assert bytes_of("add", m=8, n=16, dtype="bf16") == 6 * 8 * 16
    assert bytes_of("inference_silu_mul", m=8, n=16, dtype="bf16") == 6 * 8 * 16
    # bf16 in, f8 out, one f32 scale per row: 2mn + mn + 4m
    assert bytes_of("quantization", m=8, n=16, dtype="bf16") == 3 * 8 * 16 + 4 * 8
    assert bytes_of("transpose_quantization", m=8, n=16, dtype="bf16") == 3 * 8 * 16 + 4 * 16
    assert bytes_of("quantization_static_scaling", m=8, n=16, dtype="bf16") == 3 * 8 * 16 + 4
    # complex64 pairs in and out, and one table for all sequences and heads
    rope = {"batch": 2, "heads": 3, "seq_len": 4, "head_dim": 8}
    assert bytes_of("rope", **rope) == 2 * (2 * 3 * 4 * 4 * 8) + 4 * 4 * 8
    assert bytes_of("rope", form="real", dtype="bf16", **rope) == 2 * (2 * 3 * 4 * 8 * 2) + 4 * 8 * 2


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("swiglu", {"batch": 16, "dim": 24}),
        ("swiglu", {"batch": 16, "dim": 24, "mode": "bwd"}),
        ("rmsnorm", {"batch": 16, "dim": 24, "mode": "bwd"}),
        ("sigmoid", {"batch": 16, "dim": 24, "mode": "bwd"}),
        ("rope", {"batch": 2, "heads": 2, "seq_len": 8, "head_dim": 8}),
        ("rope", {"batch": 2, "heads": 2, "seq_len": 8, "head_dim": 8, "form": "real"}),
        ("quantization", {"m": 16, "n": 24}),
        ("quantization", {"m": 16, "n": 24, "quant_dtype": "i8"}),
        ("transpose_quantization", {"m": 16, "n": 24, "quant_dtype": "f8_e5m2"}),
        ("transpose_quantization_static_scaling", {"m": 16, "n": 24}),
        ("simple_add", {"size": 100}),
        ("inference_silu_mul", {"m": 16, "n": 24}),
    ],
)
@pytest.mark.parametrize("impl", ["xla", "torch"])
def test_operators_agree_with_f64(name: str, given: dict[str, Any], impl: str) -> None:
    assert verified(name, impl, dtype="bf16", **given) < 1.0


def test_results_of_four_bits_are_measured_on_a_cpu() -> None:
    # given the memory of the result before, XLA:CPU refused its layout
    assert verified("quantization", "xla", dtype="bf16", m=1, n=128, quant_dtype="f4_e2m1") < 1.0


def test_compiler_counts_the_bytes_of_a_fused_operator() -> None:
    p = params("swiglu", batch=64, dim=32, dtype="f32")
    prepared = NAMED["swiglu"].prepare(p, "xla", where())
    assert prepared.count_by_compiler().bytes == 3 * 64 * 32 * 4


def test_a_wrong_operator_is_seen() -> None:
    operator = norm(8, 4, "f32")
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((8, 4)), rng.standard_normal(4)
    right = operator.reference(x, w)[0]
    assert check(operator, [x, w], right, np.asarray).error_ratio == 0.0
    assert check(operator, [x, w], right * 1.001, np.asarray).error_ratio > 1.0
    assert check(operator, [x, w], (right, right), np.asarray).error_ratio == np.inf
    narrow = quantisation(8, 4, "f32", "f8_e4m3", static=False, transposed=False)
    values, scale = narrow.reference(x)
    assert check(narrow, [x], (values, scale * 1.01), np.asarray).error_ratio > 1.0


def test_routing_gives_every_token_distinct_experts() -> None:
    for routing in ("balanced", "uniform", "zipf", "one"):
        chosen = routed_experts(64, 8, 3, routing=routing, exponent=1.5, seed=1)
        assert all(len(set(row)) == 3 for row in chosen.tolist())
    sizes = {
        r: np.bincount(routed_experts(64, 8, 2, routing=r).reshape(-1), minlength=8)
        for r in ("balanced", "zipf", "one")
    }
    assert sizes["balanced"].tolist() == [16] * 8
    assert sizes["one"].tolist() == [64, 64, 0, 0, 0, 0, 0, 0]
    assert sizes["zipf"][0] == sizes["zipf"].max() > 16


def test_mixture_of_experts_by_hand() -> None:
    size = {"tokens": 8, "model_dim": 4, "routed_ffn_dim": 6, "num_experts": 4, "experts_activated": 2, "dtype": "f32"}
    # 16 rows * 6 * 4 * 6 = 2,304 FLOP forward (gate, up, down: 2 each per weight)
    for impl, factor in (("ragged", 4.0), ("padded", 2.0), ("torch-loop", 1.0)):
        work = NAMED["moe"].work(params("moe", routing="one", impl=impl, **size), where())
        assert work.demand.total_flop == 2304
        assert (
            work.executed_flop == 2304 * factor
        )  # XLA on a CPU multiplies all experts; padding fills 4 experts with 8 rows
    both = NAMED["moe"].work(params("moe", routing="one", mode="fwd_bwd", **size), where())
    assert both.demand.total_flop == 3 * 2304
    one, even = (
        NAMED["moe"].work(params("moe", routing=r, **size), where()).demand.read_bytes for r in ("one", "balanced")
    )
    assert even - one == 2 * 3 * 4 * 6 * 4  # the weights of two more experts


@pytest.mark.parametrize("impl", ["ragged", "padded", "torch-loop", "torch-grouped"])
@pytest.mark.parametrize("mode", ["fwd", "fwd_bwd"])
def test_mixture_of_experts_agrees_with_f64(impl: str, mode: str) -> None:
    size = {
        "tokens": 24,
        "model_dim": 16,
        "routed_ffn_dim": 8,
        "num_experts": 4,
        "experts_activated": 2,
        "dtype": "f32",
    }
    assert verified("moe", impl, mode=mode, routing="zipf", **size) < 1.0


def test_layer_is_counted_from_its_operators_and_the_compiler_agrees() -> None:
    p = params("transformer_layer_moe", model_dim=32, mslen=16, dtype="f32")
    work = NAMED["transformer_layer_moe"].work(p, where())
    # 2 * 16 * (32*96 + 96*32 + 32*64 + 64*32) = 20 s d^2 = 327,680; the suite claims 24 s d^2
    assert work.demand.total_flop == 327_680
    prepared = NAMED["transformer_layer_moe"].prepare(p, "xla", where())
    assert 327_680 <= prepared.count_by_compiler().flop < 1.05 * 327_680
    assert prepared.verify().error_ratio < 1.0


def test_whole_layer_by_hand() -> None:
    given = {
        "model_dim": 8, "mslen": 4, "num_q_heads": 2, "num_kv_heads": 1, "head_dim": 4, "shared_ffn_dim": 6,
        "routed_ffn_dim": 5, "num_experts": 4, "experts_activated": 2, "dtype": "f32",
    }  # fmt: skip
    work = NAMED["transformer_layer_moe"].work(params("transformer_layer_moe", **given), where())
    weights = 8 * 8 + 2 * 8 * 4 + 8 * 8 + 8 * 4 + 8 * 12 + 6 * 8  # q, k and v, o, router, shared expert
    # 4 tokens; attention 4 * 4 * 2 heads * 10 pairs; 8 rows * 6 * 8 * 5
    assert work.demand.total_flop == 2 * 4 * weights + 320 + 1920
    assert work.executed_flop == 2 * 4 * weights + 4 * 4 * 2 * 16 + 1920  # scores in full; experts are evenly filled
    assert verified("transformer_layer_moe", "xla", **given) < 1.0
    with pytest.raises(UsageError, match="num_kv_heads"):
        NAMED["transformer_layer_moe"].work(params("transformer_layer_moe", **{**given, "num_kv_heads": 0}), where())


def test_ragged_pairs_by_hand() -> None:
    # 1 token on 7; 2 tokens that end at 5: 4 + 5
    assert ragged_pairs(new_tokens=np.array([1, 2]), contexts=np.array([7, 5])) == 16


def test_too_large_is_waived_for_memory() -> None:
    waived = NAMED["moe"].waived(
        params("moe", model_dim=16384, routed_ffn_dim=4096, num_experts=256, experts_activated=8),
        "torch-loop",
        where("torch"),
    )
    assert waived is not None
    assert waived.missing == "memory"
