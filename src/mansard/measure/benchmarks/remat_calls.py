"""Forward and gradients of a stack of blocks under a checkpoint policy, in JAX and PyTorch, with their peak memory.

In JAX the stack is a loop over blocks (`lax.scan`): unrolled, XLA for the CPU starts what is made again before it is
needed, and no policy lowers the peak.

Frameworks are imported inside the functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mansard.core.unknown import Unknown
from mansard.measure.benchmarks.block_parts import EPSILON, jax_gated, jax_norm
from mansard.measure.benchmarks.entry import MATRIX_OPERATIONS, precision, prepared_jax, prepared_torch
from mansard.measure.benchmarks.remat_block import POLICIES, BlockShape, forward, inputs_of
from mansard.measure.points.benchmark import Check, CompilerCount, Params, Prepared, Where
from mansard.measure.points.inputs import PRODUCT_TOLERANCE, checked, spots

if TYPE_CHECKING:
    from mansard.measure.points.with_jax import JaxCall

Array = npt.NDArray[Any]
STEP = 1e-4  # of the central difference that gradients are compared with
ROUNDINGS = 3.0


def in_jax(s: BlockShape, params: Params) -> Prepared:
    """Return the stack compiled by XLA; peak memory is what the compiled program reserves."""
    import jax

    from mansard.measure.points import with_jax

    def make(size: tuple[int, ...], seed: int, scale: float) -> Any:
        return with_jax.array(size, s.dtype, seed=seed, scale=scale)

    blocks, x, g = inputs_of(s, make)
    names = list(blocks[0])
    stacked = {n: jax.numpy.stack([w[n] for w in blocks]) for n in names}
    block = _checkpointed(s, jax_block(s))

    def stack(weights: Any, x: Any) -> Any:
        return jax.lax.scan(lambda x, w: (block(w, x), None), x, weights)[0]

    with precision(s.dtype):
        call = with_jax.compiled(_with_gradients(stack), [stacked, x, g], expected=MATRIX_OPERATIONS)

    def verify() -> Check:
        out, d, dx = call.result
        apart = [{n: d[n][layer] for n in names} for layer in range(s.layers)]
        return check(s, blocks, x, g, (out, apart, dx), with_jax.values)

    facts = {"policy": s.policy, "kept": POLICIES[s.policy], **_reserved(call.compiled)}
    made = prepared_jax(call, verify, params, names=("weights", "x", "gradient"), facts=facts)
    made.count_by_compiler = lambda: _counted_unrolled(block, blocks, x, g, call)
    return made


def _with_gradients(stack: Callable[..., Any]) -> Callable[..., Any]:
    import jax

    def run(weights: Any, x: Any, g: Any) -> Any:
        out, pull = jax.vjp(stack, weights, x)
        return (out, *pull(g))

    return run


def _counted_unrolled(block: Callable[..., Any], blocks: Any, x: Any, g: Any, call: JaxCall) -> CompilerCount:
    """Count the same stack without its loop, whose body XLA would count once; the operations are those that run."""
    from mansard.measure.points import with_jax

    def stack(weights: Any, x: Any) -> Any:
        for w in weights:
            x = block(w, x)
        return x

    flat = with_jax.compiled(_with_gradients(stack), [blocks, x, g], expected=MATRIX_OPERATIONS, reuse=False).counts()
    timed = call.counts()
    return replace(timed, flop=flat.flop, source="XLA cost analysis of the same stack unrolled, optimised HLO")


def _reserved(compiled: Any) -> dict[str, Any]:
    """What XLA's memory analysis says: results are written into memory that is given, so they are counted once."""
    try:
        seen = compiled.memory_analysis()
        given, results = float(seen.argument_size_in_bytes), float(seen.output_size_in_bytes)
        shared, temporary = float(seen.alias_size_in_bytes), float(seen.temp_size_in_bytes)
    except Exception as error:  # a backend without one raises its own type
        reason = Unknown(f"XLA gives no memory analysis here: {error}").to_json()
        return {"peak_memory_bytes": reason, "temporary_bytes": reason, "memory_source": "none"}
    return {
        "peak_memory_bytes": given + results - shared + temporary,
        "temporary_bytes": temporary,
        "memory_source": "XLA memory analysis: arguments, results and temporary buffers of the compiled program",
    }


def _checkpointed(s: BlockShape, block: Callable[..., Any]) -> Callable[..., Any]:
    import jax

    if s.policy == "none":
        return block
    known = jax.checkpoint_policies
    policies: dict[str, Any] = {
        "everything": known.everything_saveable,
        "dots": known.dots_saveable,
        "dots_no_batch": known.dots_with_no_batch_dims_saveable,
        "nothing": known.nothing_saveable,
    }
    if s.policy == "offload":
        policies["offload"] = known.offload_dot_with_no_batch_dims("device", "pinned_host")
    wrapped: Callable[..., Any] = jax.checkpoint(block, policy=policies[s.policy])
    return wrapped


def jax_block(s: BlockShape) -> Callable[..., Any]:
    """Return one block as a function of its weights and input."""
    import jax

    jnp: Any = jax.numpy
    group = s.heads // s.kv_heads

    def block(w: Any, x: Any) -> Any:
        h = jax_norm(x, w["n1"])
        q = (h @ w["wq"]).reshape(s.batch, s.length, s.kv_heads, group, s.head_dim)
        k, v = ((h @ w[n]).reshape(s.batch, s.length, s.kv_heads, s.head_dim) for n in ("wk", "wv"))
        scores = jnp.einsum("bqhgd,bkhd->bhgqk", q, k, preferred_element_type=jnp.float32) / math.sqrt(s.head_dim)
        scores = jnp.where(jnp.tril(jnp.ones((s.length, s.length), bool)), scores, -jnp.inf)
        weights = jax.nn.softmax(scores, axis=-1).astype(x.dtype)
        x = x + jnp.einsum("bhgqk,bkhd->bqhgd", weights, v).reshape(x.shape) @ w["wo"]
        return x + jax_gated(jax_norm(x, w["n2"]) @ w["w1"], x.dtype) @ w["w2"]

    return block


def in_torch(s: BlockShape, params: Params, where: Where) -> Prepared:
    """Return the stack in eager PyTorch; peak memory is measured over one call."""
    import torch

    from mansard.measure.points import with_torch

    device = with_torch.device_of(where.platform)

    def make(size: tuple[int, ...], seed: int, scale: float) -> Any:
        made = with_torch.tensor(size, s.dtype, seed=seed, scale=scale, device=device)
        return made.requires_grad_(True)

    blocks, x, g = inputs_of(s, make)
    g = g.detach()
    block = torch_block(s)
    wrapped = _torch_checkpointed(s, block)
    leaves = [x, *(t for w in blocks for t in w.values())]

    def run() -> Any:
        out = x
        for weights in blocks:
            out = wrapped(weights, out)
        grads = torch.autograd.grad(out, leaves, g)
        return (out.detach(), *grads)

    call = with_torch.prepared(run, (), device=device, grad=True)
    call.run(1)  # what is made once for the process is not part of the peak

    def result() -> Any:
        out, dx, *rest = call.result
        names = list(blocks[0])
        split = [dict(zip(names, rest[i : i + len(names)], strict=True)) for i in range(0, len(rest), len(names))]
        return out, split, dx

    peak = _torch_peak(run, device)
    held = float(sum(t.numel() * t.element_size() for t in (*leaves, g)))
    facts = {
        "policy": s.policy,
        "kept": POLICIES[s.policy],
        "peak_memory_bytes": held + peak,
        "temporary_bytes": peak,
        "memory_source": "allocations over one call, on top of weights, input and incoming gradient",
    }
    return prepared_torch(
        call,
        lambda: check(s, blocks, x, g, result(), with_torch.values),
        params,
        shown={"x": x, "gradient": g},
        facts=facts,
    )


def torch_block(s: BlockShape) -> Callable[..., Any]:
    """Return one block as a function of its weights and input."""
    import torch

    functional: Any = torch.nn.functional
    group = s.heads // s.kv_heads

    def block(w: Any, x: Any) -> Any:
        h = functional.rms_norm(x, (s.width,), w["n1"], EPSILON)
        q = (h @ w["wq"]).view(s.batch, s.length, s.kv_heads, group, s.head_dim).permute(0, 2, 3, 1, 4)
        q = q.reshape(s.batch, s.kv_heads, group * s.length, s.head_dim)
        k, v = ((h @ w[n]).view(s.batch, s.length, s.kv_heads, s.head_dim).transpose(1, 2) for n in ("wk", "wv"))
        scores = (q @ k.transpose(-1, -2)) / math.sqrt(s.head_dim)
        hidden = torch.ones((s.length, s.length), dtype=torch.bool, device=x.device).triu(1)
        scores = scores.unflatten(2, (group, s.length)).masked_fill(hidden, -torch.inf).flatten(2, 3)
        out = torch.softmax(scores, dim=-1) @ v
        out = out.view(s.batch, s.kv_heads, group, s.length, s.head_dim).permute(0, 3, 1, 2, 4).reshape(x.shape)
        x = x + out @ w["wo"]
        gate, up = (functional.rms_norm(x, (s.width,), w["n2"], EPSILON) @ w["w1"]).chunk(2, dim=-1)
        return x + (functional.silu(gate) * up) @ w["w2"]

    return block


def _torch_checkpointed(s: BlockShape, block: Callable[..., Any]) -> Callable[..., Any]:
    import functools

    import torch
    from torch.utils import checkpoint as ck

    if s.policy == "none":
        return block
    if s.policy == "nothing":
        return lambda w, x: ck.checkpoint(block, w, x, use_reentrant=False)
    aten: Any = torch.ops.aten
    kept = [aten.mm.default, aten.addmm.default]
    if s.policy == "dots":
        kept += [aten.bmm.default, aten.baddbmm.default]
    contexts = functools.partial(ck.create_selective_checkpoint_contexts, kept)
    return lambda w, x: ck.checkpoint(block, w, x, use_reentrant=False, context_fn=contexts)


def _torch_peak(run: Callable[[], Any], device: Any) -> float:
    """Return the most memory that one call holds beyond what was there before [B]."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        kept = run()
        torch.cuda.synchronize(device)
        del kept
        return float(torch.cuda.max_memory_allocated(device) - before)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen, torch.enable_grad():
        kept = run()
    del kept
    profiler: Any = seen.profiler
    changes = sorted((e.start_ns(), e.nbytes()) for e in profiler.kineto_results.events() if e.name() == "[memory]")
    return float(np.cumsum([0, *(size for _, size in changes)]).max())


def check(s: BlockShape, blocks: Any, x: Any, g: Any, result: Any, values: Callable[[Any], Array]) -> Check:
    """Compare the result with the stack in f64, and all gradients at once with a central difference of it.

    The difference is taken along one random direction of input and weights. Gradients of random sign give their norm
    there, so that is the unit of the error.
    """
    out, d_blocks, dx = result
    wide = [{name: values(w) for name, w in block.items()} for block in blocks]
    start, incoming = values(x), values(g)
    want = forward(s, wide, start)
    rows = spots(s.length)
    against = "the stack in f64, and a central difference of it"
    first = checked(values(out)[:, rows], want[:, rows], dtype=s.dtype, against=against, products=s.width)
    rng = np.random.default_rng(29)
    along, norm, slope = [], 0.0, 0.0
    for block, gradient in zip(wide, d_blocks, strict=True):
        way = {name: rng.standard_normal(w.shape) * np.sqrt(np.mean(w * w)) for name, w in block.items()}
        for name, w in way.items():
            d = values(gradient[name])
            slope, norm = slope + float(np.sum(d * w)), norm + float(np.sum(d * d) * np.mean(w * w))
        along.append(way)
    way_x = rng.standard_normal(start.shape)
    d = values(dx)
    slope, norm = slope + float(np.sum(d * way_x)), norm + float(np.sum(d * d))
    ends = [
        float(np.sum(incoming * forward(s, _moved(wide, along, step), start + step * way_x))) for step in (STEP, -STEP)
    ]
    error = abs((ends[0] - ends[1]) / (2.0 * STEP) - slope) / math.sqrt(norm)
    tolerance = max(PRODUCT_TOLERANCE[s.dtype], 1e-4)  # the difference itself is good to the square of its step
    ratio = max(first.error_ratio / ROUNDINGS, error / tolerance / ROUNDINGS)
    return Check(error_ratio=ratio if math.isfinite(ratio) else math.inf, against=against)


def _moved(blocks: list[dict[str, Array]], along: list[dict[str, Array]], step: float) -> list[dict[str, Array]]:
    return [{n: w + step * a[n] for n, w in b.items()} for b, a in zip(blocks, along, strict=True)]
