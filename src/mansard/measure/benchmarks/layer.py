"""One transformer layer with a mixture of experts, its FLOP and bytes the sum of those of its operators."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.core import Demand
from mansard.core.dtypes import dtype_bytes, short_dtype
from mansard.core.errors import UsageError
from mansard.measure.benchmarks.attention_reference import forward_rows
from mansard.measure.benchmarks.block_parts import gated, jax_gated, jax_norm, norm
from mansard.measure.benchmarks.entry import (
    MATRIX_OPERATIONS,
    Entry,
    integer,
    matrix_peak,
    missing_memory,
    precision,
    prepared_jax,
)
from mansard.measure.benchmarks.moe_routing import MoeShape, moe_demand
from mansard.measure.points.benchmark import Check, Parameter, Params, Prepared, Waived, Where, Work
from mansard.measure.points.inputs import checked, spots
from mansard.operators.attention import attention, attention_flop
from mansard.operators.elementwise import elementwise, fused_gate
from mansard.operators.matmul import matmul
from mansard.operators.normalisation import rms_norm
from mansard.operators.reduction import softmax

Array = npt.NDArray[Any]
CHECKED_TOKENS = 32  # a causal layer needs no later token, so its first ones are checked whole
COLUMNS = 1024
ROUNDINGS = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """Dimensions of a layer; without experts it is the four products that the published suite stands in for one.

    Args:
        tokens, width: Tokens of one sequence and their width.
        heads, kv_heads, head_dim, shared, inner, experts, active: Of the whole layer; 0 without experts.
        dtype: Element type.
    """

    tokens: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    shared: int
    inner: int
    experts: int
    active: int
    dtype: str

    def __post_init__(self) -> None:
        needed = {"num_q_heads": self.heads, "num_kv_heads": self.kv_heads, "head_dim": self.head_dim,
                  "routed_ffn_dim": self.inner, "experts_activated": self.active}  # fmt: skip
        missing = [name for name, value in needed.items() if value <= 0]
        if self.experts and missing:
            raise UsageError(f"a layer with num_experts needs {', '.join(missing)} too", hint="or a `model:` preset")
        if self.experts and self.heads % self.kv_heads:
            raise UsageError(f"{self.heads} query heads cannot share {self.kv_heads} key heads")

    def matrices(self) -> dict[str, tuple[int, int]]:
        """Return the dense weight matrices (in, out) by name."""
        d = self.width
        if not self.experts:
            return {"w_in": (d, 3 * d), "w_out": (3 * d, d), "w1": (d, 2 * d), "w2": (2 * d, d)}
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        found = {"wq": (d, q), "wk": (d, kv), "wv": (d, kv), "wo": (q, d), "router": (d, self.experts)}
        if self.shared:
            found |= {"s1": (d, 2 * self.shared), "s2": (self.shared, d)}
        return found

    def mixture(self) -> MoeShape:
        """Return the routed experts; tokens are spread evenly."""
        return MoeShape(
            tokens=self.tokens, width=self.width, inner=self.inner, experts=self.experts, active=self.active,
            routing="balanced", exponent=0.0, seed=0, mode="fwd", dtype=self.dtype,
        )  # fmt: skip

    @property
    def weight_bytes(self) -> float:
        """All weights [B]."""
        dense = sum(float(a) * b for a, b in self.matrices().values()) * dtype_bytes(self.dtype)
        return dense + (self.mixture().weight_bytes if self.experts else 0.0)


def layer_of(params: Params) -> Layer:
    """Return the layer that parameters describe."""
    return Layer(
        tokens=int(params["mslen"]), width=int(params["model_dim"]), heads=int(params["num_q_heads"]),
        kv_heads=int(params["num_kv_heads"]), head_dim=int(params["head_dim"]), shared=int(params["shared_ffn_dim"]),
        inner=int(params["routed_ffn_dim"]), experts=int(params["num_experts"]), active=int(params["experts_activated"]),
        dtype=short_dtype(params["dtype"]),
    )  # fmt: skip


def layer_demand(s: Layer) -> Demand:
    """Return the demand of the layer, operator by operator.

    >>> four = Layer(tokens=2, width=4, heads=0, kv_heads=0, head_dim=0, shared=0, inner=0, experts=0, active=0, dtype="f32")
    >>> layer_demand(four).total_flop  # 20 tokens width^2
    640.0
    """
    rows, d, dtype = s.tokens, s.width, s.dtype
    wide = float(rows) * d
    total = rms_norm(rows=rows, columns=d, dtype=dtype, weight=False)
    for k, n in s.matrices().values():
        total = total + matmul(m=rows, n=n, k=k, dtype=dtype)
    residual = elementwise(elements=wide, inputs=[(wide, dtype)] * 2, dtype=dtype, output=dtype)
    total = total + residual.scaled(2.0)
    if not s.experts:
        return total
    sizes = s.mixture().sizes()
    total = (
        total
        + attention(
            batch=1,
            heads=s.heads,
            kv_heads=s.kv_heads,
            queries=rows,
            keys=rows,
            head_dim=s.head_dim,
            dtype=dtype,
            causal=True,
        )
        + rms_norm(rows=rows, columns=d, dtype=dtype, weight=False)
        + softmax(rows=rows, columns=s.experts, dtype=dtype)
        + moe_demand(s.mixture(), int((sizes > 0).sum()))
    )
    if s.shared:
        total = total + fused_gate(elements=float(rows) * s.shared, dtype=dtype) + residual
    return total


def layer_executed_flop(s: Layer) -> float:
    """Return what the XLA program executes: scores in full, and every expert filled up to the fullest one."""
    model = float(layer_demand(s).total_flop)
    if not s.experts:
        return model
    mixture = s.mixture()
    sizes = mixture.sizes()
    routed = float(moe_demand(mixture, int((sizes > 0).sum())).total_flop)
    size = {"heads": s.heads, "head_dim": s.head_dim}
    masked = float(attention_flop(pairs=s.tokens * (s.tokens + 1) / 2.0, **size))
    full = float(attention_flop(pairs=float(s.tokens) ** 2, **size))
    return model - masked + full - routed + routed * s.experts * float(sizes.max()) / mixture.rows


def _in_jax(s: Layer, params: Params) -> Prepared:
    from mansard.measure.points import with_jax

    weights = {
        name: with_jax.array(size, s.dtype, seed=seed, scale=1.0 / math.sqrt(size[0]))
        for seed, (name, size) in enumerate(s.matrices().items(), start=10)
    }
    if s.experts:
        scales = (1.0 / math.sqrt(s.width), 1.0 / math.sqrt(s.inner))
        weights["first"] = with_jax.array((s.experts, s.width, 2 * s.inner), s.dtype, seed=2, scale=scales[0])
        weights["second"] = with_jax.array((s.experts, s.inner, s.width), s.dtype, seed=3, scale=scales[1])
    x = with_jax.array((s.tokens, s.width), s.dtype, seed=1)
    with precision(s.dtype):
        call = with_jax.compiled(_jax_layer(s), [x, weights], expected=MATRIX_OPERATIONS)
    graph = "norm, attention, router, experts, residual sums" if s.experts else "norm, four products, residual sums"
    return prepared_jax(
        call,
        lambda: check(s, x, weights, call.result, with_jax.values),
        params,
        names=("x", "weights"),
        facts={"graph": graph, "routing": "tokens spread evenly over experts" if s.experts else "no experts"},
    )


def _jax_layer(s: Layer) -> Callable[..., Any]:
    import jax

    from mansard.measure.benchmarks.moe_calls import jax_function

    jnp: Any = jax.numpy

    def four(x: Any, w: Any) -> Any:
        x = x + (jax_norm(x) @ w["w_in"]) @ w["w_out"]
        return x + (x @ w["w1"]) @ w["w2"]

    if not s.experts:
        return four
    mixture = s.mixture()
    chosen = mixture.chosen()
    experts = jax_function(s.experts, int(mixture.sizes().max()), "padded")

    def whole(x: Any, w: Any) -> Any:
        h = jax_norm(x)
        q = (h @ w["wq"]).reshape(1, s.tokens, s.heads, s.head_dim)
        k, v = ((h @ w[n]).reshape(1, s.tokens, s.kv_heads, s.head_dim) for n in ("wk", "wv"))
        core = jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="xla")
        x = x + core.reshape(s.tokens, -1) @ w["wo"]
        h = jax_norm(x)
        scores = jax.nn.softmax((h @ w["router"]).astype(jnp.float32), axis=-1)
        picked = jnp.asarray(chosen)
        weights = jnp.take_along_axis(scores, picked, axis=1)
        weights = weights / weights.sum(axis=1, keepdims=True)
        out = experts(h, picked, weights, w["first"], w["second"])
        if s.shared:
            out = out + jax_gated(h @ w["s1"], x.dtype) @ w["s2"]
        return x + out

    return whole


def check(s: Layer, x: Any, weights: Mapping[str, Any], result: Any, values: Callable[[Any], Array]) -> Check:
    """Compare the first tokens with the layer in f64; a causal layer needs no later ones for them."""
    count = min(s.tokens, CHECKED_TOKENS)
    start = values(x[:count])

    def times(rows: Array, name: str) -> Array:
        w = weights[name]
        blocks = [rows @ values(w[:, a : a + COLUMNS]) for a in range(0, w.shape[1], COLUMNS)]
        return np.concatenate(blocks, axis=1)

    if s.experts:
        tokens = spots(count)
        want = _whole(s, start, weights, times, tokens, values)
    else:
        tokens = np.arange(count)
        middle = start + times(times(norm(start), "w_in"), "w_out")
        want = middle + times(times(middle, "w1"), "w2")
    found = checked(
        values(result[tokens]), want, dtype=s.dtype, against="the layer in f64, first tokens", products=s.width
    )
    return Check(error_ratio=found.error_ratio / ROUNDINGS, against=found.against)


def _whole(s: Layer, x: Array, weights: Mapping[str, Any], times: Any, tokens: Array, values: Any) -> Array:
    h = norm(x)
    q, k, v = times(h, "wq"), times(h, "wk"), times(h, "wv")
    core, rows, width = np.zeros_like(q), np.arange(len(x)), s.head_dim
    for head in range(s.heads):
        mine, kv = slice(head * width, (head + 1) * width), head // (s.heads // s.kv_heads)
        held = slice(kv * width, (kv + 1) * width)
        core[:, mine] = forward_rows(
            q[:, mine], k[:, held], v[:, held], rows, causal=True, scale=1.0 / math.sqrt(width)
        )
    x = (x + times(core, "wo"))[tokens]
    h = norm(x)
    scores = times(h, "router")
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    chosen = s.mixture().chosen()[tokens]
    picked = np.take_along_axis(scores, chosen.astype(np.int64), axis=1)
    picked /= picked.sum(axis=1, keepdims=True)
    out = gated(times(h, "s1")) @ values(weights["s2"]) if s.shared else np.zeros_like(x)
    for i, experts in enumerate(chosen):
        for expert, weight in zip(experts.tolist(), picked[i], strict=True):
            hidden = h[i] @ values(weights["first"][expert])
            out[i] += weight * (gated(hidden) @ values(weights["second"][expert]))
    total: Array = x + out
    return total


def _count(params: Params, _where: Where) -> Work:
    s = layer_of(params)
    return Work(
        demand=layer_demand(s),
        executed_flop=layer_executed_flop(s),
        headline="flop",
        composite=True,
        peak=matrix_peak(s.dtype),
        convention=(
            "the sum of its operators. Without experts: 20 tokens width^2, the products that are there (the published "
            "suite claims 24). With experts: projections, causal attention, router, routed and shared experts"
        ),
    )


def _excuse(params: Params, _impl: str, where: Where) -> Waived | None:
    s = layer_of(params)
    scores = 10.0 * s.heads * float(s.tokens) ** 2
    held = 8.0 * s.tokens * (s.width + s.active * (s.width + 3.0 * s.inner)) * dtype_bytes(s.dtype)
    return missing_memory(2.0 * s.weight_bytes + scores + held, "this layer", where)


BENCHMARKS = (
    Entry(
        name="transformer_layer_moe",
        area="operators",
        parameters=(
            integer("model_dim", 7168, "width"),
            integer("mslen", 1024, "tokens"),
            integer("num_q_heads", 0, "query heads; needed with experts"),
            integer("num_kv_heads", 0, "key and value heads; needed with experts"),
            integer("head_dim", 0, "length of a head; needed with experts"),
            integer("shared_ffn_dim", 0, "inner width of the shared expert; 0 for none"),
            integer("routed_ffn_dim", 0, "inner width of a routed expert; needed with experts"),
            integer("num_experts", 0, "routed experts; 0 for the four products of the published suite"),
            integer("experts_activated", 0, "experts that a token goes to; needed with experts"),
            Parameter(name="dtype", kind="dtype", default="bf16", text="element type"),
        ),
        implementations={"xla": "jax"},
        summary="one transformer layer with a mixture of experts, or the four products that stand in for it",
        count=_count,
        make=lambda params, _impl, _where: _in_jax(layer_of(params), params),
        excuse=_excuse,
    ),
)
