"""The published suite's transformer layer: its own graph, counted product by product.

The graph is a normalisation, products of widths 3 d, d, 2 d and d, and two residual sums: 20 s d^2 FLOP. It has neither an
attention core nor experts, although its name says so; the suite claims 24 s d^2 for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.core import Demand
from mansard.core.dtypes import dtype_bytes, short_dtype
from mansard.measure.benchmarks.entry import Entry, chosen, missing_memory, prepared_jax, prepared_torch
from mansard.measure.points.benchmark import Check, Parameter, Params, Prepared, Waived, Where, Work
from mansard.measure.points.inputs import checked, rounded, spots
from mansard.operators.elementwise import elementwise
from mansard.operators.matmul import matmul
from mansard.operators.normalisation import layer_norm

IMPLEMENTATIONS: Mapping[str, str] = {"xla": "jax", "torch": "torch"}
WIDTHS = ((1, 3), (3, 1), (1, 2), (2, 1))  # of the four products, in units of the model's width
EPSILON = 1e-5
CHECKED = 4  # rows that are compared
BLOCK = 2048  # columns of a weight that are widened at a time

_PARAMETERS = (
    Parameter(name="model_dim", kind="int", default=7168, minimum=1, text="width d of the model"),
    Parameter(name="mslen", kind="int", default=1024, minimum=1, text="tokens s on this device"),
    Parameter(name="dtype", kind="dtype", default="bf16", text="element type"),
)


def demand_of(tokens: int, width: int, dtype: str) -> Demand:
    """Return the demand of one layer: its four products, the normalisation and two sums.

    4 tokens of width 8: 20 * 4 * 8 * 8 FLOP.

    >>> demand_of(4, 8, "bf16").total_flop
    5120.0
    """
    total = layer_norm(rows=tokens, columns=width, dtype=dtype, weight=False, bias=False)
    for inner, outer in WIDTHS:
        total = total + matmul(m=tokens, n=outer * width, k=inner * width, dtype=dtype)
    size = tokens * width
    plus = elementwise(elements=size, inputs=[(size, dtype), (size, dtype)], dtype=dtype, output=dtype)
    held = (10.0 * width * width + 5.0 * size) * dtype_bytes(dtype)
    return replace(total + plus + plus, working_set_bytes=held)


def _work(params: Params, _where: Where) -> Work:
    dtype = short_dtype(params["dtype"])
    demand = demand_of(int(params["mslen"]), int(params["model_dim"]), dtype)
    if chosen(params, IMPLEMENTATIONS) == "xla":
        demand = replace(demand, launches=1.0)
    return Work(
        demand=demand, headline="flop", peak=(dtype, next(iter(demand.flop))[1], "matrix"),
        convention="20 s d^2: the products of the graph; each product reads and writes its operands once",
    )  # fmt: skip


def _excuse(params: Params, _impl: str, where: Where) -> Waived | None:
    width, tokens = float(params["model_dim"]), float(params["mslen"])
    arrays = 10.0 * width * width + 10.0 * tokens * width
    # Weights, their copies for the loop, and the largest of them in f32 while it is made.
    needed = 2.0 * arrays * dtype_bytes(short_dtype(params["dtype"])) + 2.0 * 3.0 * width * width * 4.0
    return missing_memory(needed, f"a layer of width {params['model_dim']}", where)


def reference(x: npt.NDArray[Any], weights: list[Any], dtype: str) -> npt.NDArray[Any]:
    """Return the layer of some rows in f64, rounded to `dtype` where the graph holds a value of that type."""

    def kept(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return rounded(values, dtype).astype(np.float64)

    def times(rows: npt.NDArray[Any], weight: Any) -> npt.NDArray[Any]:
        parts = [
            rows @ np.asarray(weight[:, i : i + BLOCK]).astype(np.float64) for i in range(0, weight.shape[1], BLOCK)
        ]
        return kept(np.concatenate(parts, axis=1))

    centred = x - x.mean(axis=1, keepdims=True)
    normed = kept(centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + EPSILON))
    middle = kept(x + times(times(normed, weights[0]), weights[1]))
    return kept(middle + times(times(middle, weights[2]), weights[3]))


def _verify(rows: Any, host: Callable[[Any], Any], x: Any, weights: list[Any], result: Any, dtype: str) -> Check:
    want = reference(host(x[rows]), weights, dtype)
    against = "the graph in f64 with its roundings, sampled rows"
    return checked(host(result[rows]), want, dtype=dtype, against=against, products=3 * x.shape[1])


def _shapes(params: Params) -> list[tuple[tuple[int, int], float]]:
    """Return the shapes of x and of the weights, with the standard deviation that keeps values near 1."""
    width, tokens = int(params["model_dim"]), int(params["mslen"])
    return [
        ((tokens, width), 1.0),
        *(((inner * width, outer * width), (inner * width) ** -0.5) for inner, outer in WIDTHS),
    ]


def _prepare(params: Params, impl: str, where: Where) -> Prepared:
    return _in_torch(params, where) if IMPLEMENTATIONS[impl] == "torch" else _in_jax(params)


def _in_jax(params: Params) -> Prepared:
    import jax

    from mansard.measure.points import with_jax

    dtype = short_dtype(params["dtype"])
    inputs = [with_jax.array(s, dtype, seed=i, scale=scale) for i, (s, scale) in enumerate(_shapes(params))]

    def layer(x: Any, w0: Any, w1: Any, w2: Any, w3: Any) -> Any:
        middle = x + (jax.nn.standardize(x, axis=-1, epsilon=EPSILON).astype(x.dtype) @ w0) @ w1
        return middle + (middle @ w2) @ w3

    call = with_jax.compiled(layer, inputs, expected=("dot", "custom-call", "fusion", "convolution"))
    rows = spots(inputs[0].shape[0], CHECKED)
    names = ("x", "w0", "w1", "w2", "w3")
    facts = {"implementation": "one XLA program"}
    return prepared_jax(
        call,
        lambda: _verify(rows, with_jax.values, inputs[0], inputs[1:], call.result, dtype),
        params, names=names, facts=facts,
    )  # fmt: skip


def _in_torch(params: Params, where: Where) -> Prepared:
    import torch

    from mansard.measure.points import with_torch

    dtype, device = short_dtype(params["dtype"]), with_torch.device_of(where.platform)
    inputs = [
        with_torch.tensor(s, dtype, seed=i, scale=scale, device=device) for i, (s, scale) in enumerate(_shapes(params))
    ]

    def layer(x: Any, w0: Any, w1: Any, w2: Any, w3: Any) -> Any:
        middle = x + torch.nn.functional.layer_norm(x, x.shape[-1:], eps=EPSILON) @ w0 @ w1
        return middle + middle @ w2 @ w3

    call = with_torch.prepared(layer, inputs, device=device)
    rows = spots(inputs[0].shape[0], CHECKED)
    return prepared_torch(
        call,
        lambda: _verify(
            rows, with_torch.values, inputs[0], [with_torch.values(w) for w in inputs[1:]], call.result, dtype
        ),
        params,
        shown=dict(zip(("x", "w0", "w1", "w2", "w3"), inputs, strict=True)),
        facts={"implementation": "PyTorch operators one after the other"},
    )


BENCHMARKS = (
    Entry(
        name="transformer_layer_moe", area="operators", parameters=_PARAMETERS, implementations=IMPLEMENTATIONS,
        summary="the suite's layer of four products, without an attention core or experts", count=_work, make=_prepare,
        excuse=_excuse,
    ),
)  # fmt: skip
