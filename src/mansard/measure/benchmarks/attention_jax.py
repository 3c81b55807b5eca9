"""Dense attention in JAX: XLA's own, by its definition, flax, and the kernels of accelerators.

JAX is imported inside the functions. Layout is (batch, length, heads, head_dim), which `jax.nn.dot_product_attention`
takes; kernels that want heads first get their operands in that order, so that no transpose is timed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from mansard.core.errors import UsageError
from mansard.measure.benchmarks.attention_reference import Operands, check_attention, heads_of
from mansard.measure.benchmarks.attention_shape import AttentionShape
from mansard.measure.benchmarks.entry import MATRIX_OPERATIONS, precision, prepared_jax
from mansard.measure.points import with_jax
from mansard.measure.points.benchmark import Check, Params, Prepared

#: Kernels that only an accelerator runs, and how a CPU can still check them.
KERNELS = ("pallas", "splash", "cudnn", "tokamax")
INTERPRETED = ("pallas", "splash")
HEADS_FIRST = ("pallas", "splash")

KERNEL_BLOCK = 128  # least block of the TPU kernels along both lengths


def prepare_attention(shape: AttentionShape, impl: str, params: Params) -> Prepared:
    """Return one implementation compiled, with its check against f64."""
    q, k, v, g = operands(shape, impl)
    with precision(shape.dtype):
        call = _compiled(shape, impl, attention_function(shape, impl), q, k, v, g)
    facts: dict[str, Any] = {
        "implementation": impl,
        "layout": "batch, heads, length, head_dim" if impl in HEADS_FIRST else "batch, length, heads, head_dim",
        "mode": shape.mode,
        "visible_pairs": shape.pairs,
        "scores": "kept on the chip" if impl in KERNELS else "written to memory",
    }
    return prepared_jax(call, lambda: _check(shape, impl, (q, k, v, g), call.result), params, names="qkvg", facts=facts)


def operands(shape: AttentionShape, impl: str) -> tuple[Any, Any, Any, Any]:
    """Return random Q, K, V and the gradient of the result in the layout of an implementation."""

    def made(heads: int, length: int, width: int, seed: int) -> Any:
        order = (heads, length) if impl in HEADS_FIRST else (length, heads)
        return with_jax.array((shape.batch, *order, width), shape.dtype, seed=seed)

    q = made(shape.heads, shape.queries, shape.head_dim, 1)
    k = made(shape.kv_heads, shape.keys, shape.head_dim, 2)
    v = made(shape.kv_heads, shape.keys, shape.value_dim, 3)
    return q, k, v, made(shape.heads, shape.queries, shape.value_dim, 4)


def attention_function(shape: AttentionShape, impl: str, *, interpret: bool = False) -> Callable[..., Any]:
    """Return softmax(scale Q K^T) V as a function of Q, K and V.

    Raises:
        UsageError: there is no such implementation.
    """
    makers: dict[str, Callable[[AttentionShape], Callable[..., Any]]] = {
        "xla": lambda s: _library(s, "xla"),
        "cudnn": lambda s: _library(s, "cudnn"),
        "naive": _naive,
        "flax-nnx": lambda s: _flax(s, "nnx"),
        "flax-linen": lambda s: _flax(s, "linen"),
        "pallas": _pallas,
        "splash": lambda s: _splash(s, interpret),
        "tokamax": _tokamax,
        "keras": _keras,
    }
    if impl not in makers:
        raise UsageError(f"attention has no implementation {impl!r} in JAX", hint=", ".join(makers))
    return makers[impl](shape)


def check_interpreted(shape: AttentionShape, impl: str) -> Check:
    """Run an accelerator's kernel in interpret mode on this CPU and compare it with f64; it is never timed there.

    Args:
        shape: A small attention; both lengths multiples of 128.
        impl: `pallas` or `splash`.
    """
    import jax

    if impl not in INTERPRETED:
        raise UsageError(f"{impl!r} has no interpret mode", hint=", ".join(INTERPRETED))
    q, k, v, g = operands(shape, impl)
    function = attention_function(shape, impl, interpret=True)
    with _interpreting(impl), precision(shape.dtype):
        if shape.mode == "fwd":
            return _check(shape, impl, (q, k, v, g), function(q, k, v))
        out, pull = jax.vjp(function, q, k, v)
        gradients = pull(g)
        return _check(shape, impl, (q, k, v, g), gradients if shape.mode == "bwd" else (out, *gradients))


def _interpreting(impl: str) -> Any:
    if impl == "splash":  # it takes a flag of its own
        return contextlib.nullcontext()
    from jax.experimental.pallas import tpu

    return tpu.force_tpu_interpret_mode()


def _compiled(
    shape: AttentionShape, impl: str, function: Callable[..., Any], q: Any, k: Any, v: Any, g: Any
) -> with_jax.JaxCall:
    import jax

    if shape.mode == "fwd":
        return with_jax.compiled(function, [q, k, v], expected=MATRIX_OPERATIONS)
    if shape.mode == "fwd_bwd":

        def both(q: Any, k: Any, v: Any, g: Any) -> Any:
            out, pull = jax.vjp(function, q, k, v)
            return (out, *pull(g))

        return with_jax.compiled(both, [q, k, v, g], expected=MATRIX_OPERATIONS)
    if impl in KERNELS:
        # A kernel cannot be cut in half by the compiler: what it keeps for the gradients is made beforehand.
        pull = jax.block_until_ready(jax.jit(lambda q, k, v: jax.vjp(function, q, k, v)[1])(q, k, v))
        return with_jax.compiled(lambda pull, g: pull(g), [pull, g], expected=MATRIX_OPERATIONS)

    def gradients(q: Any, k: Any, v: Any, g: Any) -> Any:
        return jax.vjp(function, q, k, v)[1](g)

    return with_jax.compiled(gradients, [q, k, v, g], expected=MATRIX_OPERATIONS)


def _check(shape: AttentionShape, impl: str, inputs: tuple[Any, Any, Any, Any], result: Any) -> Check:
    first = impl in HEADS_FIRST
    q, k, v, g, *results = (
        heads_of(x, with_jax.values, heads_first=first)
        for x in (*inputs, *(result if isinstance(result, tuple | list) else (result,)))
    )
    out = None if shape.mode == "bwd" else results[0]
    gradients = None if shape.mode == "fwd" else (results[-3], results[-2], results[-1])
    return check_attention(shape, Operands(q=q, k=k, v=v, g=g), out, gradients)


def _library(shape: AttentionShape, implementation: Any) -> Callable[..., Any]:
    import jax

    return lambda q, k, v: jax.nn.dot_product_attention(
        q, k, v, scale=shape.scale, is_causal=shape.causal, implementation=implementation
    )


def _naive(shape: AttentionShape) -> Callable[..., Any]:
    """Scores, mask, softmax and sum as four steps; scores in f32."""
    import jax

    jnp: Any = jax.numpy
    group = shape.heads // shape.kv_heads
    wide = jnp.float64 if shape.dtype == "f64" else jnp.float32

    def attend(q: Any, k: Any, v: Any) -> Any:
        batch, queries = q.shape[:2]
        grouped = q.reshape(batch, queries, shape.kv_heads, group, shape.head_dim)
        scores = jnp.einsum("bqhgd,bkhd->bhgqk", grouped, k, preferred_element_type=wide) * shape.scale
        if shape.causal:
            seen = jnp.tril(jnp.ones((shape.queries, shape.keys), bool))
            scores = jnp.where(seen, scores, -jnp.inf)
        weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
        out = jnp.einsum("bhgqk,bkhd->bqhgd", weights, v, preferred_element_type=wide)
        return out.reshape(batch, queries, shape.heads, shape.value_dim).astype(q.dtype)

    return attend


def _flax(shape: AttentionShape, module: str) -> Callable[..., Any]:
    import jax

    if module == "nnx":
        from flax.nnx import dot_product_attention
    else:
        from flax.linen import dot_product_attention  # type: ignore[assignment]
    jnp: Any = jax.numpy

    def attend(q: Any, k: Any, v: Any) -> Any:
        seen = jnp.tril(jnp.ones((1, 1, shape.queries, shape.keys), bool)) if shape.causal else None
        # flax divides by the root of the head width itself
        return dot_product_attention(q * (shape.scale * shape.head_dim**0.5), k, v, mask=seen)

    return attend


def _pallas(shape: AttentionShape) -> Callable[..., Any]:
    from jax.experimental.pallas.ops.tpu.flash_attention import flash_attention

    return lambda q, k, v: flash_attention(q, k, v, causal=shape.causal, sm_scale=shape.scale)


def _splash(shape: AttentionShape, interpret: bool) -> Callable[..., Any]:
    """TPU kernel that skips hidden blocks; with fewer key heads, one kernel per key head and its query heads."""
    import jax
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernels
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    group = shape.heads // shape.kv_heads
    grouped = group > 1
    size = (shape.queries, shape.keys)
    mask = masks.CausalMask(shape=size) if shape.causal else masks.FullMask(size)
    block_q, block_kv = min(512, shape.queries), min(512, shape.keys)
    blocks = kernels.BlockSizes(
        block_q=block_q, block_kv=block_kv, block_kv_compute=block_kv, block_q_dkv=block_q, block_kv_dkv=block_kv,
        block_kv_dkv_compute=block_kv, block_q_dq=block_q, block_kv_dq=block_kv,
    )  # fmt: skip
    many = masks.MultiHeadMask(masks=(mask,) * (group if grouped else shape.heads))
    make = kernels.make_splash_mqa if grouped else kernels.make_splash_mha
    kernel = make(mask=many, head_shards=1, q_seq_shards=1, block_sizes=blocks, interpret=interpret)

    def attend(q: Any, k: Any, v: Any) -> Any:
        scaled = q * shape.scale
        if not grouped:
            return jax.vmap(kernel)(scaled, k, v)
        split = scaled.reshape(shape.batch, shape.kv_heads, group, shape.queries, shape.head_dim)
        out = jax.vmap(jax.vmap(kernel))(split, k, v)
        return out.reshape(shape.batch, shape.heads, shape.queries, shape.value_dim)

    return attend


def _tokamax(shape: AttentionShape) -> Callable[..., Any]:
    import importlib

    tokamax: Any = importlib.import_module("tokamax")
    return lambda q, k, v: tokamax.dot_product_attention(q, k, v, scale=shape.scale, is_causal=shape.causal)


def _keras(shape: AttentionShape) -> Callable[..., Any]:
    import importlib
    import os

    os.environ.setdefault("KERAS_BACKEND", "jax")
    keras: Any = importlib.import_module("keras")
    return lambda q, k, v: keras.ops.dot_product_attention(q, k, v, scale=shape.scale, is_causal=shape.causal)
