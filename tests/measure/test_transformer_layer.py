"""The suite's transformer layer: 20 s d^2, and the same result in JAX, PyTorch and numpy."""

from __future__ import annotations

import pytest

from mansard.measure.benchmarks.transformer_layer import BENCHMARKS, demand_of
from mansard.measure.points.benchmark import Where

(LAYER,) = BENCHMARKS


def test_the_graph_has_twenty_and_not_twenty_four() -> None:
    # 2 s d (3 d) + 2 s (3 d) d + 2 s d (2 d) + 2 s (2 d) d = 20 s d^2; the suite claims 24 s d^2.
    assert demand_of(1024, 7168, "bf16").total_flop == 20 * 1024 * 7168**2


def test_a_layer_beyond_the_memory_is_waived() -> None:
    params = {"model_dim": 16384, "mslen": 8192, "dtype": "bf16"}
    where = Where(backend="jax", platform="cpu", memory_bytes=8e9)
    waived = LAYER.waived(params, "xla", where)
    assert waived is not None
    assert waived.missing == "memory"
    assert LAYER.waived({**params, "model_dim": 512, "mslen": 64}, "xla", where) is None


@pytest.mark.parametrize("impl", ["xla", "torch"])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_the_result_is_the_reference(impl: str, dtype: str) -> None:
    params = {"model_dim": 64, "mslen": 24, "dtype": dtype, "impl": impl}
    where = Where(backend=LAYER.implementations[impl], platform="cpu", threads=1, memory_bytes=8e9)
    prepared = LAYER.prepare(params, impl, where)
    prepared.run(2)
    assert prepared.verify().error_ratio < 1.0
    counted = float(prepared.count_by_compiler().flop)
    work = LAYER.work(params, where)
    vector = sum(float(v) for v in work.demand.vector_flop.values())
    # The products are counted by both; XLA adds what is element-wise, and for bf16 on a CPU its conversions.
    assert work.demand.total_flop <= counted <= work.demand.total_flop + vector + float(work.demand.bytes)
