"""A mixture of experts in JAX and PyTorch, and in f64. Frameworks are imported inside the functions.

Operands: x (tokens, width); experts and their weights (tokens, active); first (experts, width, 2 inner) with gate and up
side by side; second (experts, inner, width).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.core.unknown import Unknown
from mansard.measure.benchmarks.block_parts import jax_gated
from mansard.measure.benchmarks.entry import MATRIX_OPERATIONS, precision, prepared_jax, prepared_torch
from mansard.measure.benchmarks.moe_routing import MoeShape
from mansard.measure.points.benchmark import Check, Params, Prepared, Where
from mansard.measure.points.inputs import checked, spots

Array = npt.NDArray[Any]
ROUNDINGS = 3.0  # a result is rounded after each product, after the activation and after the sum
NAMES = ("x", "", "weights", "first", "second")


def shares(shape: MoeShape) -> Array:
    """Return the weight of each chosen expert; those of a token sum to 1 [tokens, active]."""
    drawn = np.random.default_rng([17, shape.seed]).uniform(0.5, 1.5, (shape.tokens, shape.active))
    out: Array = (drawn / drawn.sum(axis=1, keepdims=True)).astype(np.float32)
    return out


def facts_of(shape: MoeShape, impl: str, factor: float) -> dict[str, Any]:
    """Return what a reader must know of a mixture: how rows are spread and what is done for nothing."""
    sizes = shape.sizes()
    return {
        "implementation": impl,
        "routing": shape.routing,
        "experts_touched": int((sizes > 0).sum()),
        "rows_of_fullest_over_mean": float(sizes.max() / sizes.mean()),
        "executed_over_model": factor,
    }


def in_jax(shape: MoeShape, impl: str, params: Params, factor: float) -> Prepared:
    """Return the mixture compiled by XLA."""
    import jax

    from mansard.measure.points import with_jax

    d, f = shape.width, shape.inner
    jnp: Any = jax.numpy
    x = with_jax.array((shape.tokens, d), shape.dtype, seed=1)
    experts, weights = jnp.asarray(shape.chosen()), jnp.asarray(shares(shape))
    first = with_jax.array((shape.experts, d, 2 * f), shape.dtype, seed=2, scale=1.0 / math.sqrt(d))
    second = with_jax.array((shape.experts, f, d), shape.dtype, seed=3, scale=1.0 / math.sqrt(f))
    g = with_jax.array((shape.tokens, d), shape.dtype, seed=4)
    forward = jax_function(shape.experts, int(shape.sizes().max()), impl)
    inputs, run = [x, experts, weights, first, second], forward
    if shape.mode == "fwd_bwd":
        inputs.append(g)

        def run(x: Any, experts: Any, weights: Any, first: Any, second: Any, g: Any) -> Any:
            out, pull = jax.vjp(lambda x, a, b: forward(x, experts, weights, a, b), x, first, second)
            return (out, *pull(g))

    with precision(shape.dtype):
        call = with_jax.compiled(run, inputs, expected=MATRIX_OPERATIONS)
    operands = (x, first, second, g)
    return prepared_jax(
        call,
        lambda: check(shape, operands, call.result, with_jax.values),
        params,
        names=(*NAMES, "gradient"),
        facts=facts_of(shape, impl, factor),
    )


def jax_function(experts: int, largest: int, impl: str) -> Callable[..., Any]:
    """Return the mixture as a function of x, experts, weights, first, second.

    Args:
        experts: How many there are.
        largest: The most rows of one expert, for `padded`.
        impl: `ragged` (jax.lax.ragged_dot) or `padded` (a batched product over equally long blocks).
    """
    import jax

    jnp: Any = jax.numpy

    def run(x: Any, chosen: Any, weights: Any, first: Any, second: Any) -> Any:
        active = chosen.shape[1]
        flat = chosen.reshape(-1)
        order = jnp.argsort(flat, stable=True)
        token = order // active
        sizes = jnp.bincount(flat, length=experts).astype(jnp.int32)
        rows = x[token]
        if impl == "ragged":
            hidden = jax.lax.ragged_dot(rows, first, sizes)
            out = jax.lax.ragged_dot(jax_gated(hidden, x.dtype), second, sizes)
        else:
            owner = flat[order]
            place = jnp.arange(flat.shape[0]) - (jnp.cumsum(sizes) - sizes)[owner]
            blocks = jnp.zeros((experts, largest, x.shape[1]), x.dtype).at[owner, place].set(rows)
            hidden = jnp.einsum("ecd,edf->ecf", blocks, first)
            out = jnp.einsum("ecf,efd->ecd", jax_gated(hidden, x.dtype), second)[owner, place]
        weighed = out.astype(jnp.float32) * weights.reshape(-1)[order][:, None]
        return jnp.zeros(x.shape, jnp.float32).at[token].add(weighed).astype(x.dtype)

    return run


def in_torch(shape: MoeShape, impl: str, params: Params, where: Where, factor: float) -> Prepared:
    """Return the mixture in PyTorch: `torch-loop` over experts, or `torch-grouped` with its grouped product."""
    import torch

    from mansard.measure.points import with_torch

    device = with_torch.device_of(where.platform)
    d, f = shape.width, shape.inner

    def made(size: tuple[int, ...], seed: int, scale: float = 1.0) -> Any:
        return with_torch.tensor(size, shape.dtype, seed=seed, scale=scale, device=device)

    x, g = made((shape.tokens, d), 1), made((shape.tokens, d), 4)
    first = made((shape.experts, d, 2 * f), 2, 1.0 / math.sqrt(d))
    second = made((shape.experts, f, d), 3, 1.0 / math.sqrt(f))
    experts = torch.from_numpy(shape.chosen().astype(np.int64)).to(device)
    weights = torch.from_numpy(shares(shape)).to(device)
    forward = torch_function(shape.experts, impl)
    args, run = [x, experts, weights, first, second], forward
    backward = shape.mode == "fwd_bwd"
    if backward:
        for leaf in (x, first, second):
            leaf.requires_grad_(True)
        args.append(g)

        def run(x: Any, experts: Any, weights: Any, first: Any, second: Any, g: Any) -> Any:
            out = forward(x, experts, weights, first, second)
            return (out, *torch.autograd.grad(out, (x, first, second), g))

    call = with_torch.prepared(run, args, device=device, grad=backward)
    operands = (x, first, second, g)
    prepared = prepared_torch(
        call,
        lambda: check(shape, operands, call.result, with_torch.values),
        params,
        shown={"x": x, "weights": weights, "first": first, "second": second},
        facts=facts_of(shape, impl, factor),
    )
    if impl == "torch-grouped":
        silent = Unknown("PyTorch's counter has no formula for its grouped product and counts 0")
        prepared.count_by_compiler = lambda: replace(call.counts(), flop=silent)
    return prepared


def torch_function(experts: int, impl: str) -> Callable[..., Any]:
    """Return the mixture as a function of x, experts, weights, first, second."""
    import torch

    grouped: Any = getattr(torch, "_grouped_mm", None)

    def products(rows: Any, matrices: Any, sizes: Any) -> Any:
        if impl == "torch-grouped":
            return grouped(rows, matrices, offs=torch.cumsum(sizes, 0, dtype=torch.int32))
        parts = torch.split(rows, sizes.tolist())
        return torch.cat([part @ matrices[e] for e, part in enumerate(parts) if len(part)])

    def run(x: Any, chosen: Any, weights: Any, first: Any, second: Any) -> Any:
        flat = chosen.reshape(-1)
        order = torch.argsort(flat, stable=True)
        token = order // chosen.shape[1]
        sizes = torch.bincount(flat, minlength=experts)
        gate, up = products(x[token], first, sizes).chunk(2, dim=-1)
        out = products(torch.nn.functional.silu(gate) * up, second, sizes)
        weighed = out * weights.reshape(-1)[order][:, None].to(out.dtype)
        return torch.zeros_like(x).index_add(0, token, weighed)

    return run


def check(shape: MoeShape, operands: tuple[Any, ...], result: Any, values: Callable[[Any], Array]) -> Check:
    """Compare some tokens, and with gradients those of the same tokens, with the mixture in f64."""
    against = "the mixture in f64, sampled tokens"
    chosen, weights = shape.chosen(), shares(shape).astype(np.float64)
    tokens = spots(shape.tokens)
    x, first, second, g = operands
    results = result if isinstance(result, tuple | list) else (result,)
    needed = sorted(set(chosen[tokens].reshape(-1).tolist()))
    held = {e: (values(first[e]), values(second[e])) for e in needed}
    rows, incoming = values(x[tokens]), values(g[tokens])
    out, dx = np.zeros_like(rows), np.zeros_like(rows)
    for i, token in enumerate(tokens):
        for expert, weight in zip(chosen[token], weights[token], strict=True):
            y, gradient = _one(rows[i], incoming[i] * weight, *held[int(expert)])
            out[i] += weight * y
            dx[i] += gradient
    worst = checked(values(results[0][tokens]), out, dtype=shape.dtype, against=against, products=shape.inner)
    if shape.mode == "fwd":
        return Check(error_ratio=worst.error_ratio / ROUNDINGS, against=against)
    other = checked(values(results[1][tokens]), dx, dtype=shape.dtype, against=against, products=shape.inner)
    third = _second_gradient(shape, operands, results[3], values)
    return Check(
        error_ratio=max(worst.error_ratio, other.error_ratio, third.error_ratio) / ROUNDINGS,
        against=against + " and one expert's second matrix",
    )


def _one(x: Array, g: Array, first: Array, second: Array) -> tuple[Array, Array]:
    """One token through one expert, and the gradient of the token."""
    inner = second.shape[0]
    hidden = x @ first
    gate, up = hidden[:inner], hidden[inner:]
    s = 1.0 / (1.0 + np.exp(-gate))
    dh = second @ g
    dgate, dup = dh * up * s * (1.0 + gate * (1.0 - s)), dh * gate * s
    return (gate * s * up) @ second, first @ np.concatenate([dgate, dup])


def _second_gradient(shape: MoeShape, operands: tuple[Any, ...], got: Any, values: Callable[[Any], Array]) -> Check:
    """Rows of the gradient of the fullest expert's second matrix: hidden rows times incoming gradients, summed."""
    x, first, _second, g = operands
    chosen, weights = shape.chosen(), shares(shape).astype(np.float64)
    expert = int(shape.sizes().argmax())
    token, slot = np.nonzero(chosen == expert)
    hidden = values(x)[token] @ values(first[expert])
    gate, up = hidden[:, : shape.inner], hidden[:, shape.inner :]
    kept = spots(shape.inner)
    act = (gate * up / (1.0 + np.exp(-gate)))[:, kept]
    want = act.T @ (values(g)[token] * weights[token, slot][:, None])
    return checked(values(got[expert])[kept], want, dtype=shape.dtype, against="f64", products=len(token))
