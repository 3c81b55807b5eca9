"""Dense attention under the names of the published suite, every implementation checked against f64 before it is timed."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from mansard.measure.benchmarks.attention_shape import (
    MODES,
    AttentionShape,
    count_by,
    flashed_shape,
    model_width_shape,
    tokamax_shape,
)
from mansard.measure.benchmarks.entry import Entry, chosen, integer, missing_memory, missing_package, missing_platform
from mansard.measure.points.benchmark import Check, Parameter, Params, Prepared, Waived, Where

IMPLEMENTATIONS: Mapping[str, str] = {
    "xla": "jax", "naive": "jax", "pallas": "jax", "splash": "jax", "cudnn": "jax", "tokamax": "jax", "flax-nnx": "jax",
    "flax-linen": "jax", "keras": "jax", "torch-sdpa": "torch", "torch-flex": "torch", "torch-naive": "torch",
}  # fmt: skip
_PLATFORMS = {"pallas": ("tpu",), "splash": ("tpu",), "cudnn": ("gpu",)}
_PACKAGES = {"tokamax": "tokamax", "keras": "keras", "flax-nnx": "flax", "flax-linen": "flax"}
_INTERPRETED = ("pallas", "splash")
_TPU_BLOCK = 128
_CHECKED = 2 * _TPU_BLOCK  # queries and keys of a check in interpret mode, which is slow: two blocks of each


def _mode(*more: str) -> Parameter:
    return Parameter(
        name="mode", kind="str", default="fwd", choices=(*MODES, *more), text="forward, gradients alone, or both"
    )


_CAUSAL = Parameter(name="causal", kind="bool", default=True, text="whether query i sees keys up to i alone")
_F32 = Parameter(name="dtype", kind="dtype", default="f32", text="element type; f32 as in the published suite")

_FLASHED = (
    _mode(),
    _CAUSAL,
    integer("batch", 1, "sequences"),
    integer("seq_len", 8192, "queries, and keys unless kv_seq_len says otherwise"),
    integer("num_q_heads", 56, "query heads"),
    integer("num_kv_heads", 56, "key and value heads; fewer than query heads is grouped-query attention"),
    integer("head_dim", 128, "length of a query and a key"),
    integer("kv_seq_len", 0, "keys; 0 for seq_len", minimum=0),
    integer("v_head_dim", 0, "length of a value; 0 for head_dim", minimum=0),
    Parameter(name="dtype", kind="dtype", default="bf16", text="element type"),
)
_MODEL_WIDTH = (
    integer("batch", 2, "sequences"),
    integer("seq_len", 512, "queries and keys"),
    integer("d_model", 1024, "heads times their length"),
    integer("num_heads", 1, "heads"),
    _CAUSAL,
    Parameter(
        name="scale", kind="bool", default=True, text="whether scores are divided by the root of the head length"
    ),
    _mode(),
    _F32,
)
_TOKAMAX = (
    integer("batch_size", 1, "sequences"),
    integer("q_seq_len", 4096, "queries"),
    integer("kv_seq_len", 4096, "keys"),
    integer("q_heads", 128, "query heads"),
    integer("kv_heads", 8, "key and value heads"),
    integer("qk_head_dim", 256, "length of a query and a key"),
    integer("v_head_dim", 256, "length of a value"),
    _mode("combined"),
    _CAUSAL,
    integer("num_samples", 3500, "configurations a tile search may try; accepted, no search is made", minimum=0),
    Parameter(
        name="tune_pallas_only",
        kind="bool",
        default=True,
        text="which part a tile search covers; accepted, no search is made",
    ),
    _F32,
)


def _excuse(shape_of: Callable[[Params], AttentionShape], params: Params, impl: str, where: Where) -> Waived | None:
    shape = shape_of(params)
    package = _PACKAGES.get(impl)
    return (
        (missing_package(package) if package else None)
        or (_limits(shape, impl, where) if impl in _INTERPRETED else None)  # what it lacks, no check can show
        or _device_excuse(impl, where)
        or _limits(shape, impl, where)
        or missing_memory(shape.memory_bytes(impl), f"{impl} attention of this size", where)
    )


def _device_excuse(impl: str, where: Where) -> Waived | None:
    wanted = _PLATFORMS.get(impl)
    return missing_platform(f"the {impl} attention kernel", where, *wanted) if wanted else None


def _limits(shape: AttentionShape, impl: str, where: Where) -> Waived | None:
    """What an implementation does not have."""
    grouped, unequal = shape.heads != shape.kv_heads, shape.head_dim != shape.value_dim
    lacks: str | None = None
    if impl in ("pallas", "flax-nnx", "flax-linen") and grouped:
        lacks = "grouped-query attention"
    elif impl in ("xla", "cudnn", "pallas", "flax-nnx", "flax-linen") and unequal:
        lacks = "values of another length than keys"
    elif impl == "cudnn" and shape.dtype not in ("bf16", "f16"):
        return Waived(reason=f"cuDNN attention takes bf16 and f16, not {shape.dtype}", missing="dtype")
    elif impl in _INTERPRETED and (shape.queries % _TPU_BLOCK or shape.keys % _TPU_BLOCK):
        lacks = f"lengths that are not multiples of {_TPU_BLOCK}"
    elif impl == "torch-flex" and where.platform == "cpu":
        if shape.mode != "fwd":
            lacks = "gradients on a CPU"
        elif shutil.which("c++") is None and shutil.which("g++") is None:
            return Waived(
                reason="torch-flex is compiled and needs a C++ compiler; none was found", missing="implementation"
            )
    return Waived(reason=f"{impl} attention has no {lacks}", missing="implementation") if lacks else None


def _prepare(shape_of: Callable[[Params], AttentionShape], params: Params, impl: str, where: Where) -> Prepared:
    shape = shape_of(params)
    if IMPLEMENTATIONS[impl] == "torch":
        from mansard.measure.benchmarks import attention_torch

        return attention_torch.prepare_attention(shape, impl, params, where)
    from mansard.measure.benchmarks import attention_jax

    return attention_jax.prepare_attention(shape, impl, params)


def check_without_device(params: Params, impl: str) -> Check:
    """Check a kernel that needs an accelerator in interpret mode on this CPU; nothing is timed.

    Args:
        params: Parameters of `attention_flashed`; keep it small, interpretation is slow.
        impl: `pallas` or `splash`.
    """
    from mansard.measure.benchmarks import attention_jax

    return attention_jax.check_interpreted(flashed_shape(params), impl)


def _interpret(
    shape_of: Callable[[Params], AttentionShape], params: Params, impl: str
) -> tuple[str, Callable[[], Check]]:
    """Return a small attention of the same kind in words, and its check in interpret mode."""
    whole = shape_of(params)
    heads, kv_heads = (2, 2) if whole.heads == whole.kv_heads else (2, 1)
    small = replace(
        whole, batch=1, queries=min(whole.queries, _CHECKED), keys=min(whole.keys, _CHECKED),
        heads=min(heads, whole.heads), kv_heads=min(kv_heads, whole.kv_heads),
    )  # fmt: skip
    text = (
        f"{small.queries} x {small.keys}, {small.heads} heads over {small.kv_heads}, {small.head_dim} wide, "
        f"{small.dtype}, {small.mode}" + (", causal" if small.causal else "")
    )

    def check() -> Check:
        from mansard.measure.benchmarks import attention_jax

        return attention_jax.check_interpreted(small, impl)

    return text, check


def _dense(
    name: str,
    shape_of: Callable[[Params], AttentionShape],
    parameters: tuple[Parameter, ...],
    first: str,
    summary: str,
) -> Entry:
    implementations = {first: IMPLEMENTATIONS[first], **IMPLEMENTATIONS}
    return Entry(
        name=name,
        area="attention",
        parameters=parameters,
        implementations=implementations,
        summary=summary,
        count=count_by(shape_of, lambda params: chosen(params, implementations)),
        make=partial(_prepare, shape_of),
        excuse=partial(_excuse, shape_of),
        interpreted=_INTERPRETED,
        interpret=partial(_interpret, shape_of),
    )


BENCHMARKS = (
    _dense(
        "attention_flashed",
        flashed_shape,
        _FLASHED,
        "xla",
        "softmax(Q K^T) V over lengths and heads, forward and gradients",
    ),
    _dense(
        "naive_attention", model_width_shape, _MODEL_WIDTH, "naive", "attention as four steps, scores written to memory"
    ),
    _dense("pallas_flash_attention", model_width_shape, _MODEL_WIDTH, "pallas", "the flash kernel for TPU in Pallas"),
    _dense("splash_attention", model_width_shape, _MODEL_WIDTH, "splash", "the TPU kernel that skips hidden blocks"),
    _dense("tokamax_splash_attention", tokamax_shape, _TOKAMAX, "tokamax", "attention by the tokamax library"),
    _dense("flax_nnx_attention", model_width_shape, _MODEL_WIDTH, "flax-nnx", "flax.nnx.dot_product_attention"),
    _dense("flax_linen_attention", model_width_shape, _MODEL_WIDTH, "flax-linen", "flax.linen.dot_product_attention"),
    _dense("keras_attention", model_width_shape, _MODEL_WIDTH, "keras", "keras.ops.dot_product_attention on JAX"),
)
