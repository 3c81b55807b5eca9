"""Shapes of dense attention as the benchmarks name them, and the work of one point."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from mansard.core import Demand
from mansard.core.dtypes import dtype_bytes, short_dtype
from mansard.core.errors import UsageError
from mansard.measure.benchmarks.entry import matrix_peak
from mansard.measure.points.benchmark import Params, Where, Work
from mansard.operators.attention import (
    attention,
    attention_backward,
    attention_backward_executed_flop,
    attention_flop,
    visible_pairs,
)

MODES = ("fwd", "bwd", "fwd_bwd")

#: Implementations that write the score matrix to memory and compute what the mask hides.
UNFUSED = ("xla", "naive", "flax-nnx", "flax-linen", "torch-naive")


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShape:
    """One dense attention.

    Args:
        batch, heads, kv_heads, queries, keys, head_dim, value_dim: Dimensions, as in `operators.attention`.
        causal: Query i sees keys up to i.
        scale: Factor of the scores.
        mode: `fwd`, `bwd` (gradients alone) or `fwd_bwd`.
        dtype: Element type.
    """

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    head_dim: int
    value_dim: int
    causal: bool
    scale: float
    mode: str
    dtype: str

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise UsageError(
                f"{self.heads} query heads cannot share {self.kv_heads} key heads",
                hint="query heads must be a multiple of key heads",
            )

    @property
    def pairs(self) -> float:
        """Visible (query, key) pairs of one head."""
        return float(visible_pairs(queries=self.queries, keys=self.keys, causal=self.causal))

    @property
    def score_bytes(self) -> float:
        """The score matrix of all heads in f32 (f64 for f64) [B]."""
        return self.batch * self.heads * float(self.queries) * self.keys * (8.0 if self.dtype == "f64" else 4.0)

    @property
    def operand_bytes(self) -> float:
        """Q, K, V and the result [B]."""
        width = self.head_dim + self.value_dim
        elements = self.batch * width * (self.heads * float(self.queries) + self.kv_heads * float(self.keys))
        return elements * dtype_bytes(self.dtype)

    def memory_bytes(self, impl: str) -> float:
        """What an implementation holds at once, roughly [B]."""
        backward = self.mode != "fwd"
        scores = (4.0 if backward else 2.5) * self.score_bytes if impl in UNFUSED else 0.0
        return self.operand_bytes * (3.0 if backward else 1.5) + scores


def flashed_shape(params: Params) -> AttentionShape:
    """Return the shape of `attention_flashed`: lengths and heads are given."""
    head_dim, queries = int(params["head_dim"]), int(params["seq_len"])
    return AttentionShape(
        batch=int(params["batch"]),
        heads=int(params["num_q_heads"]),
        kv_heads=int(params["num_kv_heads"]),
        queries=queries,
        keys=int(params.get("kv_seq_len") or queries),
        head_dim=head_dim,
        value_dim=int(params.get("v_head_dim") or head_dim),
        causal=bool(params["causal"]),
        scale=1.0 / math.sqrt(head_dim),
        mode=str(params["mode"]),
        dtype=short_dtype(params["dtype"]),
    )


def model_width_shape(params: Params) -> AttentionShape:
    """Return the shape of the older names: a model width that is divided among the heads.

    Raises:
        UsageError: the width is not a multiple of the heads.
    """
    width, heads, length = int(params["d_model"]), int(params["num_heads"]), int(params["seq_len"])
    if width % heads:
        raise UsageError(f"d_model {width} is not a multiple of num_heads {heads}")
    head_dim = width // heads
    return AttentionShape(
        batch=int(params["batch"]),
        heads=heads,
        kv_heads=heads,
        queries=length,
        keys=length,
        head_dim=head_dim,
        value_dim=head_dim,
        causal=bool(params.get("causal", False)),
        scale=1.0 / math.sqrt(head_dim) if params.get("scale", True) else 1.0,
        mode=str(params.get("mode", "fwd")),
        dtype=short_dtype(params["dtype"]),
    )


def tokamax_shape(params: Params) -> AttentionShape:
    """Return the shape of `tokamax_splash_attention`: every length, width and number of heads is given."""
    head_dim = int(params["qk_head_dim"])
    mode = str(params["mode"])
    return AttentionShape(
        batch=int(params["batch_size"]),
        heads=int(params["q_heads"]),
        kv_heads=int(params["kv_heads"]),
        queries=int(params["q_seq_len"]),
        keys=int(params["kv_seq_len"]),
        head_dim=head_dim,
        value_dim=int(params["v_head_dim"]),
        causal=bool(params["causal"]),
        scale=1.0 / math.sqrt(head_dim),
        mode="fwd_bwd" if mode == "combined" else mode,
        dtype=short_dtype(params["dtype"]),
    )


def attention_demand(shape: AttentionShape) -> Demand:
    """Return the demand of a fused kernel in model FLOP: forward 1, backward 2, both 3 times the forward.

    >>> both = AttentionShape(batch=1, heads=1, kv_heads=1, queries=4, keys=4, head_dim=8, value_dim=8, causal=True,
    ...                       scale=1.0, mode="fwd_bwd", dtype="f32")
    >>> attention_demand(both).total_flop
    960.0
    """

    def core(function: Callable[..., Demand], **more: bool) -> Demand:
        return function(
            batch=shape.batch, heads=shape.heads, kv_heads=shape.kv_heads, queries=shape.queries, keys=shape.keys,
            head_dim=shape.head_dim, value_dim=shape.value_dim, dtype=shape.dtype, causal=shape.causal, **more,
        )  # fmt: skip

    if shape.mode == "fwd":
        return core(attention)
    if shape.mode == "bwd":
        return core(attention_backward)
    if shape.mode == "fwd_bwd":
        return core(attention, statistics=True) + core(attention_backward)
    raise UsageError(f"attention has no mode {shape.mode!r}", hint=f"one of {', '.join(MODES)}")


def executed_flop(shape: AttentionShape, impl: str) -> float:
    """Return the matrix FLOP that an implementation executes.

    Args:
        shape: The attention.
        impl: `UNFUSED` ones compute what the mask hides; the others skip it. Gradients alone need Q K^T once more, so
            they are 2.5 times the forward where both widths are equal; forward and gradients in one program are 3
            times it unfused (the scores are kept) and 3.5 times it in a fused kernel (they are not).

    Source: `operators.attention.attention_backward_executed_flop`; XLA's cost analysis agrees, see the tests.
    """
    pairs = float(shape.queries) * shape.keys if impl in UNFUSED else shape.pairs
    size = {
        "pairs": pairs, "heads": shape.heads, "head_dim": shape.head_dim, "value_dim": shape.value_dim,
        "batch": shape.batch,
    }  # fmt: skip
    forward = float(attention_flop(**size))
    if shape.mode == "fwd":
        return forward
    if impl == "torch-naive":  # eager: the scores of the forward are kept
        return (2.0 if shape.mode == "bwd" else 3.0) * forward
    backward = float(attention_backward_executed_flop(**size))
    if shape.mode == "bwd":
        return backward
    return 3.0 * forward if impl in UNFUSED else forward + backward


def compiler_flop(shape: AttentionShape, impl: str) -> float:
    """Return what a compiler's counter says of the same program: PyTorch's counts a causal mask in full."""
    return executed_flop(replace(shape, causal=False) if impl == "torch-sdpa" else shape, impl)


def attention_work(shape: AttentionShape, impl: str) -> Work:
    """Return the work of one point."""
    return Work(
        demand=attention_demand(shape),
        executed_flop=executed_flop(shape, impl),
        compiler_flop=compiler_flop(shape, impl),
        headline="flop",
        composite=shape.mode != "fwd",  # the result of the forward is read by the gradients
        peak=matrix_peak(shape.dtype),
        convention=(
            "model FLOP: 2 (d_qk + d_v) per visible pair and head, s(s+1)/2 pairs where causal; backward twice that. "
            "Bytes of a fused kernel: scores never leave the chip. PyTorch's counter ignores a causal mask"
        ),
    )


def shapes_by_name() -> Mapping[str, Callable[[Params], AttentionShape]]:
    """Return how the parameters of each dense benchmark are read."""
    older = (
        "naive_attention", "pallas_flash_attention", "splash_attention", "flax_nnx_attention", "flax_linen_attention",
        "keras_attention",
    )  # fmt: skip
    return {
        "attention_flashed": flashed_shape,
        "tokamax_splash_attention": tokamax_shape,
        **dict.fromkeys(older, model_width_shape),
    }


def count_by(
    shape: Callable[[Params], AttentionShape], choose: Callable[[Params], str]
) -> Callable[[Params, Where], Work]:
    """Return the `work` of a benchmark from how its parameters are read and how its implementation is chosen."""
    return lambda params, _where: attention_work(shape(params), choose(params))
