"""One call of JAX or PyTorch ready to be timed: counts, memory, chains; and random inputs with their checks."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mansard.core.errors import UsageError
from mansard.core.unknown import Unknown
from mansard.measure.points import inputs


def test_inputs_are_random_and_the_same_each_time():
    one, two, other = (inputs.random_input((64,), "bf16", seed=s) for s in (1, 1, 2))
    assert np.array_equal(one, two)
    assert not np.array_equal(one, other)
    assert one.dtype == np.float32
    assert inputs.random_input((4,), "f64").dtype == np.float64
    assert inputs.data_kind("i8") != inputs.data_kind("f32")


@pytest.mark.parametrize(("dtype", "low", "high"), [("i8", -64, 63), ("u8", 0, 63), ("i4", -8, 7), ("u4", 0, 15)])
def test_whole_numbers_stay_in_their_range(dtype, low, high):
    x = inputs.random_input((4096,), dtype)
    assert (x.min(), x.max()) == (low, high)


def test_distinct_indices_are_a_permutation():
    assert sorted(inputs.random_indices(100, 100).tolist()) == list(range(100))
    with pytest.raises(UsageError):
        inputs.random_indices(5, 4)


def test_checks_by_hand():
    # a sum of products: error 0.2 at a root mean square of 5 over 2e-2 of bf16 = 2
    found = inputs.checked([5.2, 5.0], [5.0, 5.0], dtype="bf16", products=4, against="x")
    assert found.error_ratio == pytest.approx(0.2 / (5.0 * 2e-2))
    # an element: relative to itself, at least to 1; 0.001 of 10 over 4e-6
    assert inputs.checked([10.001], [10.0], dtype="f32", against="x").error_ratio == pytest.approx(
        1e-4 / 4e-6, rel=1e-6
    )
    assert inputs.checked([3], [4], dtype="i8", against="x").error_ratio == 10
    assert inputs.checked([math.nan], [1.0], dtype="f32", against="x").error_ratio == math.inf
    assert inputs.checked([1.0, 2.0], [1.0], dtype="f32", against="x").error_ratio == math.inf


HLO = """
HloModule jit_f
%fused (p0: f32[4,4]) -> f32[4,4] {
  %p0 = f32[4,4]{1,0} parameter(0)
  %big = bf16[64,64]{1,0} constant({...})
  ROOT %m = f32[4,4]{1,0} multiply(%p0, %p0)
}
ENTRY %main (a: bf16[4,4], b: bf16[4,4], out: f32[4,4]) -> f32[4,4] {
  %a = bf16[4,4]{1,0} parameter(0)
  %b = bf16[4,4]{1,0} parameter(1)
  %out = f32[4,4]{1,0} parameter(2)
  %d = f32[4,4]{1,0} dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %c = (f32[4,4]{1,0}, s8[32]{0}) custom-call(%d), custom_call_target="__cublas$gemm"
  %e = (bf16[8]{0}, bf16[8]{0}, bf16[8]{0}, bf16[8]{0}, bf16[8]{0}, /*index=5*/bf16[8]{0}) all-to-all(%s), channel_id=1
  ROOT %r = f32[4,4]{1,0} fusion(%d), kind=kLoop, calls=%fused
}
"""


def test_hlo_is_read():
    from mansard.measure.points.with_jax import largest_constant_bytes, matrix_dtypes, operation_names, parameter_count

    assert set(operation_names(HLO)) == {"multiply", "dot", "custom-call", "fusion", "__cublas$gemm", "all-to-all"}
    assert parameter_count(HLO) == 2  # `out` is memory to write into and used by nothing
    assert largest_constant_bytes(HLO) == 64 * 64 * 2
    assert matrix_dtypes(HLO) == ("bf16",)
    assert parameter_count("no program") is None


def jax_matmul(n=48, **more):
    pytest.importorskip("jax")
    import jax

    from mansard.measure.points import with_jax

    a, b = (with_jax.array((n, n), "f32", seed=s) for s in (1, 2))
    return with_jax.compiled(lambda x, y: jax.lax.dot(x, y), [a, b], expected=("dot",), **more), a, b


def test_jax_counts_one_call():
    call, _, _ = jax_matmul()
    found = call.counts()
    assert found.flop == 2 * 48**3
    assert found.parameters == 2
    assert found.dtypes == ("f32",)
    assert "dot" in found.operations
    assert call.lower_s > 0.0
    assert call.compile_s > 0.0


def test_a_captured_input_is_no_parameter():
    call, _, b = jax_matmul()
    from mansard.measure.points import with_jax

    folded = with_jax.compiled(lambda x: x @ b, [b])
    assert folded.counts().parameters == 1
    assert folded.counts().constant_bytes == 48 * 48 * 4
    del call


@pytest.mark.parametrize("reuse", [True, False])
def test_run_and_chain_agree(reuse):
    call, a, b = jax_matmul(reuse=reuse)
    want = np.asarray(a, np.float64) @ np.asarray(b, np.float64)
    for step in (lambda: call.run(3), lambda: call.chain(5), lambda: call.run(1), lambda: call.chain(1)):
        step()
        assert inputs.checked(call.result, want, dtype="f32", products=48, against="f64").error_ratio < 1.0
    assert np.array_equal(np.asarray(a), np.asarray(call.inputs[0]))


def test_the_chain_multiplies_every_time():
    call, _, _ = jax_matmul()
    call.chain(2)
    text = call.chain_text()
    body = text[: text.index("ENTRY ")]
    assert " dot(" in body  # inside the loop's computation and not hoisted out of it
    assert " dot(" not in text[text.index("ENTRY ") :]


def test_in_place_passes_its_result_on():
    pytest.importorskip("jax")
    import jax.numpy as jnp

    from mansard.measure.points import with_jax

    call = with_jax.compiled(lambda x, s: x * s, [with_jax.zeros((8,), "f32") + 1.0, jnp.float32(2.0)], donate=(0,))
    call.run(3)
    assert np.asarray(call.result).tolist() == [8.0] * 8
    call.chain(2)
    assert np.asarray(call.result).tolist() == [32.0] * 8
    call.run(1)
    assert np.asarray(call.result).tolist() == [64.0] * 8
    assert {o.role for o in call.operands("a")} == {"in_place"}


def test_results_must_fit_what_they_replace():
    pytest.importorskip("jax")
    from mansard.measure.points import with_jax

    with pytest.raises(UsageError, match="cannot replace"):
        with_jax.compiled(lambda x: x[:4], [with_jax.zeros((8,), "f32")], donate=(0,))


def test_a_loop_is_not_counted():
    pytest.importorskip("jax")
    import jax

    from mansard.measure.points import with_jax

    x = with_jax.array((16, 16), "f32")
    call = with_jax.compiled(lambda y: jax.lax.fori_loop(0, 10, lambda _, c: c @ y, y), [x])
    found = call.counts()
    assert isinstance(found.flop, Unknown)
    assert "loop" in found.flop.reason


def test_torch_counts_one_call():
    pytest.importorskip("torch")
    import torch

    from mansard.measure.points import with_torch

    a, b = (with_torch.tensor((32, 32), "bf16", seed=s) for s in (1, 2))
    out = torch.empty(32, 32, dtype=torch.bfloat16)
    call = with_torch.prepared(lambda x, y: torch.mm(x, y, out=out), [a, b], expected=("aten::mm",))
    call.run(2)
    found = call.counts()
    assert found.flop == 2 * 32**3
    assert "aten::mm" in found.operations
    want = with_torch.values(a) @ with_torch.values(b)
    assert (
        inputs.checked(with_torch.values(call.result), want, dtype="bf16", products=32, against="f64").error_ratio < 1.0
    )
    assert call.result.data_ptr() == out.data_ptr()


def test_torch_attention_on_a_cpu_is_counted():
    pytest.importorskip("torch")
    import torch

    from mansard.measure.points import with_torch

    q, k, v = (with_torch.tensor((1, 2, 16, 8), "f32", seed=s) for s in (1, 2, 3))
    call = with_torch.prepared(torch.nn.functional.scaled_dot_product_attention, [q, k, v])
    # two products of 16 x 16 x 8 per head: 2 * 2 * (2 * 16 * 16 * 8)
    assert call.counts().flop == 2 * 2 * 2 * 16 * 16 * 8


def test_what_torch_cannot_count_is_unknown():
    pytest.importorskip("torch")
    import torch

    from mansard.measure.points import with_torch

    call = with_torch.prepared(torch.sin, [with_torch.tensor((8,), "f32")])
    assert isinstance(call.counts().flop, Unknown)
