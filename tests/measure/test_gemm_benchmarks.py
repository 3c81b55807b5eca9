"""Matrix products: counts worked out by hand, results of every implementation, and what is waived."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mansard.measure.benchmarks import gemm_calls
from mansard.measure.benchmarks.gemm_fp8 import SCHEMES, Scheme, factors_of, in_blocks, reference_quantised
from mansard.measure.benchmarks.gemm_product import Product, compiler_flop, demand_of, product_of
from mansard.measure.points.benchmark import Where
from mansard.measure.points.registry import benchmark_named

needs_jax = pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="JAX is not installed")
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
needs_numba = pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="numba is not installed")

LIBRARIES = [
    pytest.param("jax", marks=needs_jax),
    pytest.param("torch", marks=needs_torch),
    "numpy",
]
OWN = [pytest.param("native", marks=needs_numba), pytest.param("naive", marks=needs_numba)]


def where(backend: str = "numpy", **more: Any) -> Where:
    return Where(**{"backend": backend, "platform": "cpu", "threads": 1, "cpus": (0,), "memory_bytes": 8e9, **more})


def defaults(name: str, **params: Any) -> dict[str, Any]:
    return {**{p.name: p.default for p in benchmark_named(name).parameters}, **params}


def test_the_general_product_by_hand():
    # A 4x6, B 6x5 in bf16, C 4x5 in f32 with beta = 0.5, alpha = 2, scales
    p = Product(m=4, k=6, n=5, dtype="bf16", out="f32", alpha=2.0, beta=0.5, scales=True)
    d = demand_of(p)
    assert d.total_flop == 240  # 2*4*6*5
    assert dict(d.flop) == {("bf16", "f32"): 240.0}
    # mn (alpha) + 2 mn (beta) + 2 mn (scales) = 5 * 20
    assert d.vector_flop == {"f32": 100.0}
    assert d.read_bytes == (24 + 30) * 2 + 20 * 4 + (4 + 5) * 4  # A, B, C, scales
    assert d.write_bytes == 80


@pytest.mark.parametrize(("beta", "vector"), [(0.0, 0), (1.0, 20), (0.5, 40)])
def test_beta_costs_nothing_one_or_two_per_element(beta, vector):
    p = Product(m=4, k=6, n=5, beta=beta)
    assert sum(demand_of(p).vector_flop.values()) == vector
    assert demand_of(p).read_bytes == (24 + 30 + (20 if beta else 0)) * 4


def test_a_batch_is_that_many_products():
    d = demand_of(Product(m=4, k=6, n=5, batch=3))
    assert (d.total_flop, d.read_bytes, d.write_bytes) == (720, 3 * 54 * 4, 3 * 20 * 4)


def test_what_a_compiler_counts():
    p = Product(m=4, k=6, n=5, dtype="f8_e4m3", out="bf16", accumulate="f32", scales=True)
    # 240 + 2*20 of scales + conversions: 24 + 30 operands widened, 20 results narrowed
    assert compiler_flop(p, "jax", "f32") == 240 + 40 + 54 + 20
    assert compiler_flop(p, "torch", "f8_e4m3") == 240


@pytest.mark.parametrize(
    ("name", "read", "write"),
    [
        ("gemm_simple", 32 * 16 + 16 * 8, 32 * 8 * 2),  # f8 in, bf16 out
        ("gemm", 32 * 16 + 16 * 8 + 4 * 40, 32 * 8 * 2),  # and f32 scales of 32 rows and 8 columns
        ("gemm_accum", 32 * 16 + 16 * 8 + 4 * 40 + 32 * 8 * 4, 32 * 8 * 4),  # and an f32 matrix that is added to
        ("naive_matmul", (32 * 16 + 16 * 8) * 2, 32 * 8 * 2),  # all bf16
    ],
)
def test_named_products_by_hand(name, read, write):
    work = benchmark_named(name).work(defaults(name, m=32, k=16, n=8), where("jax"))
    assert work.demand.total_flop == 2 * 32 * 16 * 8
    assert (work.demand.read_bytes, work.demand.write_bytes) == (read, write)


def test_bmm_is_found_by_all_its_names():
    assert benchmark_named("bmm") is benchmark_named("multi_host_bmm") is benchmark_named("single_device_bmm")
    work = benchmark_named("bmm").work(defaults("bmm", m=2, k=3, n=4, batch=5), where("jax"))
    assert work.demand.total_flop == 5 * 48


SHAPE = {"m": 37, "k": 65, "n": 43}  # no multiple of any tile


def run_and_check(p: Product, impl: str) -> Any:
    backend = {"native": "native", "naive": "native"}.get(impl, impl)
    prepared = gemm_calls.prepare(p, impl, where(backend))
    try:
        prepared.run(2)
        return prepared.verify()
    finally:
        if prepared.close is not None:
            prepared.close()


@pytest.mark.parametrize("impl", LIBRARIES)
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"transpose_a": True, "transpose_b": True},
        {"alpha": 2.0},
        {"beta": 1.0},
        {"alpha": 0.5, "beta": -0.5, "scales": True, "transpose_b": True},
        {"batch": 3, "beta": 0.5},
        {"batch": 2, "scales": True},
    ],
)
def test_every_library_gives_the_right_product(impl, more):
    for dtype in ("f32", "f64") if more in ({}, {"beta": 1.0}) else ("f32",):
        p = Product(**SHAPE, dtype=dtype, out=dtype, accumulate=dtype, **more)
        assert run_and_check(p, impl).error_ratio < 1.0


@pytest.mark.parametrize("impl", OWN)
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_our_own_products_are_right_off_the_tile(impl, dtype):
    assert run_and_check(Product(**SHAPE, dtype=dtype, out=dtype, accumulate=dtype), impl).error_ratio < 1.0


@needs_jax
@pytest.mark.parametrize("dtype", ["bf16", "f16", "i8", "f8_e4m3"])
def test_narrow_types_through_jax(dtype):
    p = product_of({**SHAPE, "in_dtype": dtype}, out="i32" if dtype == "i8" else "bf16")
    prepared = gemm_calls.prepare(p, "jax", where("jax"))
    prepared.run(1)
    assert prepared.verify().error_ratio < 1.0
    assert prepared.count_by_compiler().flop == pytest.approx(
        compiler_flop(p, "jax", "f32" if dtype in ("f16", "f8_e4m3") else dtype), rel=0.05
    )


def test_a_wrong_element_is_noticed():
    p = Product(**SHAPE)
    prepared = gemm_calls.prepare(p, "numpy", where())
    prepared.run(1)
    result = next(o for o in prepared.operands() if o.name == "result")
    assert prepared.verify().error_ratio < 1.0
    # the corner is among the checked crossings; the values are views of the result
    result.values[0] += 1.0
    assert prepared.verify().error_ratio > 100


@needs_jax
def test_the_chain_gives_the_same_product():
    p = Product(**SHAPE, beta=0.5, scales=True)
    prepared = gemm_calls.prepare(p, "jax", where("jax"))
    prepared.chain(4)
    assert prepared.verify().error_ratio < 1.0
    prepared.run(1)
    assert prepared.verify().error_ratio < 1.0


@pytest.mark.parametrize(
    ("impl", "params", "missing"),
    [
        ("numpy", {"in_dtype": "bf16"}, "dtype"),
        ("torch", {"in_dtype": "f8_e4m3"}, "dtype"),
        ("torch", {"in_dtype": "bf16", "out_dtype": "f32"}, "dtype"),
        ("jax", {"in_dtype": "f4_e2m1"}, "dtype"),
        ("naive", {"in_dtype": "f32", "out_dtype": "f32", "transpose_a": True}, "dtype"),
        ("naive", {"in_dtype": "f32", "out_dtype": "f32", "m": 8192, "k": 8192, "n": 8192}, "time"),
        ("numpy", {"in_dtype": "f32", "out_dtype": "f32", "m": 65536, "k": 65536, "n": 65536}, "memory"),
    ],
)
def test_what_cannot_run_is_waived_with_its_reason(impl, params, missing):
    found = benchmark_named("gemm_generalized").waived(defaults("gemm_generalized", **params), impl, where(impl))
    assert found is not None
    assert found.missing == missing
    assert found.reason


# --- quantised on the way --------------------------------------------------------------------------------------------


def test_scales_by_hand():
    # 2 rows and 3 columns, k = 256: one f32 each; two blocks of 128 each; eight bytes for blocks of 32
    assert Scheme().scale_bytes(2, 256, 3) == 5 * 4
    assert Scheme(block=128).scale_bytes(2, 256, 3) == 5 * 2 * 4
    assert Scheme(block=32, power_of_two=True).scale_bytes(2, 256, 3) == 5 * 8
    assert Scheme(static=True).scale_bytes(2, 256, 3) == 0


def test_quantised_work_reads_bf16_and_the_scales():
    work = benchmark_named("gemm_fp8_rowwise").work(defaults("gemm_fp8_rowwise", m=4, k=6, n=5), where("jax"))
    assert work.demand.total_flop == 240
    assert work.demand.read_bytes == (24 + 30) * 2 + (4 + 5) * 4
    assert work.demand.write_bytes == 40


def test_factors_by_hand():
    x = np.array([[1.0, -7.0, 2.0, 3.5]], np.float32)
    # 448 / 7 = 64
    assert factors_of(np, in_blocks(x, 0), Scheme()).item() == 64
    # MX: the power of two below 7 is 4 = 2^2; the largest of f8 is 2^8: 2^6
    assert factors_of(np, in_blocks(x, 0), Scheme(power_of_two=True)).item() == 64
    # blocks of two: 448/7 and 448/3.5
    assert factors_of(np, in_blocks(x, 2), Scheme(block=2)).ravel().tolist() == [64, 128]


def test_values_beyond_f8_are_clipped_and_not_lost():
    pytest.importorskip("ml_dtypes")
    x = np.array([[511.0, 1.0]])  # MX: 2^8 is the power below, factor 1; 511 is beyond 448
    values, _ = reference_quantised(x, Scheme(block=2, power_of_two=True))
    assert values.tolist() == [[448.0, 1.0]]


@needs_jax
@pytest.mark.parametrize("name", sorted(SCHEMES))
def test_quantised_products_agree_with_numpy(name):
    benchmark = benchmark_named(name)
    prepared = benchmark.prepare(defaults(name, m=24, k=256, n=40), "jax", where("jax"))
    prepared.run(1)
    assert prepared.verify().error_ratio < 1.0


def test_blocks_must_divide_k():
    found = benchmark_named("gemm_mxfp8_b32").waived(defaults("gemm_mxfp8_b32", m=8, k=40, n=8), "jax", where("jax"))
    assert found is not None
    assert "32" in found.reason


# --- studies ---------------------------------------------------------------------------------------------------------


def test_a_sweep_is_one_point_for_each_size():
    sweep = benchmark_named("gemm_sweep")
    points = sweep.expand(defaults("gemm_sweep", start=64, end=500))
    assert [p["size"] for p in points] == [64, 128, 256, 500]
    assert sweep.work(points[-1], where()).demand.total_flop == 2 * 500**3
    assert sweep.expand(points[0]) == [points[0]]


def test_alignment_goes_up_to_whole_tiles():
    points = benchmark_named("gemm_alignment").expand(defaults("gemm_alignment", base=4000))
    # 63 * 64 = 4032, 32 * 128 = 16 * 256 = 4096
    assert [p["size"] for p in points] == [4000, 4032, 4096]


@pytest.mark.parametrize("impl", LIBRARIES)
def test_new_data_is_really_used(impl):
    params = defaults(
        "gemm_throttling", dtype="f32", m=24, k=16, n=20, gap_strategy="data_gen_every_iter_block_every_iter"
    )
    prepared = benchmark_named("gemm_throttling").prepare(params, impl, where(impl))
    prepared.timed(1)
    first = np.array([o.values for o in prepared.operands() if o.name == "a"])
    assert prepared.verify().error_ratio < 1.0
    prepared.timed(1)
    assert prepared.verify().error_ratio < 1.0
    if impl != "numpy":  # there the operands are views of the same memory
        assert not np.array_equal(first, np.array([o.values for o in prepared.operands() if o.name == "a"]))


def test_the_type_of_a_result_that_is_not_said_is_told(tmp_path: Path) -> None:
    from mansard.core.errors import UsageError
    from mansard.measure.config.plan import load_plan

    path = tmp_path / "c.yaml"

    def notes(types: str) -> str:
        path.write_text(f"benchmarks:\n  - {{name: gemm, m: 64, n: 64, k: 64, {types}}}\n")
        return " ".join(load_plan(path).notes)

    assert "in_dtype f32 and its default out_dtype bf16" in notes("in_dtype: f32")
    for said in ("in_dtype: f32, out_dtype: f32", "in_dtype: bf16"):
        assert "default out_dtype" not in notes(said)
    with pytest.raises(UsageError, match="gemm has no parameter 'dtype'") as refused:
        notes("dtype: f32")
    assert refused.value.hint.startswith("say in_dtype, out_dtype, accumulate")
