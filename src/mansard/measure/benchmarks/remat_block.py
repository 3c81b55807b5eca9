"""The transformer block that rematerialisation is measured on: its work, its weights, and the block in f64.

Pre-norm, causal grouped-query attention as four steps (scores written to memory), gated feed-forward, residual sums.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.core import Demand
from mansard.core.dtypes import dtype_bytes, short_dtype
from mansard.core.errors import UsageError
from mansard.measure.benchmarks.block_parts import gated, norm
from mansard.measure.points.benchmark import Params
from mansard.operators.attention import attention, attention_backward, attention_flop
from mansard.operators.elementwise import fused_gate, fused_gate_backward
from mansard.operators.matmul import matmul, matmul_backward, matmul_flop
from mansard.operators.normalisation import rms_norm, rms_norm_backward

Array = npt.NDArray[Any]

#: What a policy keeps of a block for the gradients.
POLICIES: dict[str, str] = {
    "none": "no checkpoint: automatic differentiation keeps what it needs",
    "everything": "a checkpoint that keeps every intermediate result",
    "dots": "results of all matrix products are kept, the rest is made again",
    "dots_no_batch": "results of products of activations with weights are kept; scores and attention are made again",
    "nothing": "the input of the block alone is kept; its forward is made again",
    "offload": "results of products with weights are moved to host memory and back",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockShape:
    """Dimensions of a stack of equal blocks.

    Args:
        batch, length, width, heads, kv_heads, inner, layers: Dimensions.
        policy: A name of `POLICIES`.
        dtype: Element type.
    """

    batch: int
    length: int
    width: int
    heads: int
    kv_heads: int
    inner: int
    layers: int
    policy: str
    dtype: str

    def __post_init__(self) -> None:
        if self.width % self.heads or self.heads % self.kv_heads:
            raise UsageError(
                f"width {self.width}, {self.heads} query heads, {self.kv_heads} key heads do not divide each other"
            )

    @property
    def head_dim(self) -> int:
        """Length of a head."""
        return self.width // self.heads

    @property
    def kv_width(self) -> int:
        """Width of keys."""
        return self.kv_heads * self.head_dim

    @property
    def tokens(self) -> int:
        """Tokens of all sequences."""
        return self.batch * self.length

    def matrices(self) -> dict[str, tuple[int, int]]:
        """Return the weight matrices of one block, (in, out)."""
        d, kv, f = self.width, self.kv_width, self.inner
        return {"wq": (d, d), "wk": (d, kv), "wv": (d, kv), "wo": (d, d), "w1": (d, 2 * f), "w2": (f, d)}

    @property
    def weight_bytes(self) -> float:
        """Weights of all blocks [B]."""
        return self.layers * sum(float(a) * b for a, b in self.matrices().values()) * dtype_bytes(self.dtype)

    @property
    def score_bytes(self) -> float:
        """Scores of one block in f32 [B]."""
        return 4.0 * self.batch * self.heads * float(self.length) ** 2

    def memory_bytes(self) -> float:
        """What the most generous policy holds at once, roughly [B]."""
        token_bytes = self.tokens * (12.0 * self.width + 6.0 * self.inner) * 4.0
        return 3.0 * self.weight_bytes + self.layers * (token_bytes + 3.0 * self.score_bytes)


def block_shape(params: Params) -> BlockShape:
    """Return the shape that parameters describe."""
    return BlockShape(
        batch=int(params["batch"]),
        length=int(params["seq_len"]),
        width=int(params["model_dim"]),
        heads=int(params["num_q_heads"]),
        kv_heads=int(params["num_kv_heads"]),
        inner=int(params["ffn_dim"]),
        layers=int(params["layers"]),
        policy=str(params["policy"]),
        dtype=short_dtype(params["dtype"]),
    )


def block_demand(s: BlockShape) -> Demand:
    """Return the demand of forward and gradients of the stack in model FLOP, nothing made again.

    Three times the forward: products 2 tokens in out, attention over s(s+1)/2 pairs.

    >>> s = BlockShape(batch=1, length=4, width=8, heads=2, kv_heads=1, inner=16, layers=1, policy="none", dtype="f32")
    >>> block_demand(s).total_flop  # 3 * (2 * 4 * 576 weights + 2 * (4 + 4) * 10 pairs * 2 heads)
    14784.0
    """
    core: dict[str, Any] = {
        "batch": s.batch, "heads": s.heads, "kv_heads": s.kv_heads, "queries": s.length, "keys": s.length,
        "head_dim": s.head_dim, "dtype": s.dtype, "causal": True,
    }  # fmt: skip
    total = attention(**core, statistics=True) + attention_backward(**core)
    for k, n in s.matrices().values():
        total = (
            total + matmul(m=s.tokens, n=n, k=k, dtype=s.dtype) + matmul_backward(m=s.tokens, n=n, k=k, dtype=s.dtype)
        )
    inner = float(s.tokens) * s.inner
    total = total + fused_gate(elements=inner, dtype=s.dtype) + fused_gate_backward(elements=inner, dtype=s.dtype)
    for _ in range(2):
        total = total + rms_norm(rows=s.tokens, columns=s.width, dtype=s.dtype)
        total = total + rms_norm_backward(rows=s.tokens, columns=s.width, dtype=s.dtype)
    return total.scaled(s.layers)


def block_executed_flop(s: BlockShape) -> float:
    """Return the matrix FLOP that a policy executes, scores in full as the unfused block computes them.

    Forward and gradients are three forwards. What is made again comes on top: `nothing` makes the forward again except
    its last product, whose result no gradient needs; `dots_no_batch` makes both products of the attention core again.
    """
    core = float(
        attention_flop(
            pairs=float(s.length) ** 2, heads=s.heads, head_dim=s.head_dim, batch=s.batch,
        )
    )  # fmt: skip
    products = sum(float(matmul_flop(m=s.tokens, n=n, k=k)) for k, n in s.matrices().values())
    last = float(matmul_flop(m=s.tokens, n=s.width, k=s.inner))
    again = {"nothing": core + products - last, "dots_no_batch": core, "offload": core}.get(s.policy, 0.0)
    return s.layers * (3.0 * (core + products) + again)


def inputs_of(s: BlockShape, make: Any) -> tuple[list[dict[str, Any]], Any, Any]:
    """Return the weights of each block, the input and the gradient of the result, made by `make(shape, seed, scale)`.

    Norm weights are random around 1, so that a gradient that is wrong for them is seen.
    """
    blocks = []
    for layer in range(s.layers):
        seeds = range(20 * layer + 10, 20 * layer + 30)
        block = {
            name: make(size, seed, 1.0 / math.sqrt(size[0]))
            for (name, size), seed in zip(s.matrices().items(), seeds, strict=False)
        }
        block["n1"], block["n2"] = make((s.width,), seeds[8], 1.0), make((s.width,), seeds[9], 1.0)
        blocks.append(block)
    size = (s.batch, s.length, s.width)
    return blocks, make(size, 1, 1.0), make(size, 2, 1.0)


def forward(s: BlockShape, blocks: list[dict[str, Array]], x: Array) -> Array:
    """Return the stack in numpy, in the type of its operands [batch, length, width]."""
    hidden = np.triu(np.ones((s.length, s.length), bool), 1)
    group = s.heads // s.kv_heads
    for w in blocks:
        h = norm(x, w["n1"])
        q = (h @ w["wq"]).reshape(s.batch, s.length, s.heads, s.head_dim).transpose(0, 2, 1, 3)
        k, v = (
            np.repeat(
                (h @ w[n]).reshape(s.batch, s.length, s.kv_heads, s.head_dim).transpose(0, 2, 1, 3), group, axis=1
            )
            for n in ("wk", "wv")
        )
        scores = q @ k.transpose(0, 1, 3, 2) / math.sqrt(s.head_dim)
        scores[..., hidden] = -np.inf
        scores -= scores.max(axis=-1, keepdims=True)
        p = np.exp(scores)
        p /= p.sum(axis=-1, keepdims=True)
        x = x + (p @ v).transpose(0, 2, 1, 3).reshape(x.shape) @ w["wo"]
        x = x + gated(norm(x, w["n2"]) @ w["w1"]) @ w["w2"]
    return x
