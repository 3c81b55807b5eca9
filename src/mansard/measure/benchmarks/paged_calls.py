"""Ragged paged attention in JAX and PyTorch, each step writing the new keys and values into their pages first.

Operands: q (tokens, heads, head_dim); new keys and values (tokens, kv_heads, head_dim); pages of keys and of values
(pages * page_size, kv_heads, head_dim), which a step changes in place. Frameworks are imported inside the functions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.core.unknown import Unknown
from mansard.measure.benchmarks.attention_reference import compared, forward_rows
from mansard.measure.benchmarks.entry import MATRIX_OPERATIONS, precision, prepared_jax, prepared_torch
from mansard.measure.benchmarks.paged_shape import PagedShape
from mansard.measure.points.benchmark import Check, Params, Prepared, Where
from mansard.measure.points.inputs import spots

Array = npt.NDArray[Any]
Values = Callable[[Any], Array]
SEQUENCES_CHECKED = 4


def facts_of(shape: PagedShape, impl: str, pairs: float) -> dict[str, Any]:
    """Return what a reader must know of a step."""
    contexts = np.asarray(shape.contexts)
    return {
        "implementation": impl,
        "sequences": shape.sequences,
        "new_tokens": shape.tokens,
        "context_median": float(np.median(contexts)),
        "context_largest": int(contexts.max()),
        "visible_pairs": pairs,
        "padded_pairs": shape.padded_pairs(),
    }


def in_jax(shape: PagedShape, impl: str, params: Params, pairs: float) -> Prepared:
    """Return a step compiled by XLA: pages gathered into one padded array per group, then masked attention."""
    import jax

    from mansard.measure.points import with_jax

    jnp: Any = jax.numpy
    slots = int(shape.pages().sum()) * shape.page_size
    cached, new = (slots, shape.kv_heads, shape.head_dim), (shape.tokens, shape.kv_heads, shape.head_dim)
    q = with_jax.array((shape.tokens, shape.heads, shape.head_dim), shape.dtype, seed=1)
    k_new, v_new = with_jax.array(new, shape.dtype, seed=2), with_jax.array(new, shape.dtype, seed=3)
    keys, values = with_jax.array(cached, shape.dtype, seed=4), with_jax.array(cached, shape.dtype, seed=5)
    kept = (with_jax.values(keys), with_jax.values(values))
    table, contexts = jnp.asarray(shape.table()), jnp.asarray(np.asarray(shape.contexts, np.int32))
    places = jnp.asarray(shape.places().astype(np.int32))
    held = with_jax.zeros(q.shape, shape.dtype)
    step = jax_step(shape)

    def run(
        q: Any, k_new: Any, v_new: Any, table: Any, contexts: Any, places: Any, _held: Any, keys: Any, values: Any
    ) -> Any:
        return step(q, k_new, v_new, table, contexts, places, keys, values)

    with precision(shape.dtype):
        call = with_jax.compiled(
            run,
            [q, k_new, v_new, table, contexts, places, held, keys, values],
            donate=(6, 7, 8),
            expected=MATRIX_OPERATIONS,
        )
    operands = (q, k_new, v_new, *kept)
    return prepared_jax(
        call,
        lambda: check(shape, operands, call.result, with_jax.values),
        params,
        names=("q", "new keys", "new values", "", "", "", "", "keys", "values"),
        facts=facts_of(shape, impl, pairs),
    )


def jax_step(shape: PagedShape) -> Callable[..., Any]:
    """Return a step as a function of q, new keys, new values, page table, contexts, places, pages of keys and values.

    Lengths come in as arrays; only the padded shape of each group is fixed when the function is compiled.
    """
    import jax

    jnp: Any = jax.numpy
    starts = np.concatenate([[0], np.cumsum(shape.new_tokens)])
    group_heads = shape.heads // shape.kv_heads
    pages = shape.pages()

    def attend(q: Any, rows: Any, context: Any, new: Any, keys: Any, values: Any) -> Any:
        """One group: q (sequences, queries, heads, d), rows (sequences, keys) of the cache."""
        count, queries = q.shape[:2]
        k, v = keys[rows], values[rows]
        grouped = q.reshape(count, queries, shape.kv_heads, group_heads, shape.head_dim)
        scores = jnp.einsum("sqhgd,skhd->shgqk", grouped, k, preferred_element_type=jnp.float32) * shape.scale
        position = (context - new)[:, None] + jnp.arange(queries)[None, :]
        seen = jnp.arange(rows.shape[1])[None, None, :] <= position[:, :, None]
        scores = jnp.where(seen[:, None, None], scores, -jnp.inf)
        weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
        out = jnp.einsum("shgqk,skhd->sqhgd", weights, v, preferred_element_type=jnp.float32)
        return out.reshape(count, queries, shape.heads, shape.head_dim).astype(q.dtype)

    def step(q: Any, k_new: Any, v_new: Any, table: Any, contexts: Any, places: Any, keys: Any, values: Any) -> Any:
        keys, values = keys.at[places].set(k_new), values.at[places].set(v_new)
        parts = []
        for a, b in shape.groups():
            new = np.asarray(shape.new_tokens[a:b])
            longest, held = int(new.max()), int(pages[a:b].max())
            index = np.minimum(starts[a:b, None] + np.arange(longest)[None, :], shape.tokens - 1)
            inside = np.arange(held * shape.page_size)
            rows = table[a:b][:, inside // shape.page_size] * shape.page_size + inside % shape.page_size
            out = attend(q[index], rows, contexts[a:b], jnp.asarray(new), keys, values)
            real = np.nonzero((np.arange(longest)[None, :] < new[:, None]).reshape(-1))[0]
            parts.append(out.reshape(-1, shape.heads, shape.head_dim)[real])
        return jnp.concatenate(parts), keys, values

    return step


def in_torch(shape: PagedShape, impl: str, params: Params, where: Where, pairs: float) -> Prepared:
    """Return a step in PyTorch: one sequence after the other, its pages gathered and handed to the fused attention."""
    import torch

    from mansard.measure.points import with_torch

    device = with_torch.device_of(where.platform)

    def made(size: tuple[int, ...], seed: int) -> Any:
        return with_torch.tensor(size, shape.dtype, seed=seed, device=device)

    slots = int(shape.pages().sum()) * shape.page_size
    cached, new = (slots, shape.kv_heads, shape.head_dim), (shape.tokens, shape.kv_heads, shape.head_dim)
    q, k_new, v_new = made((shape.tokens, shape.heads, shape.head_dim), 1), made(new, 2), made(new, 3)
    keys, values = made(cached, 4), made(cached, 5)
    kept = (with_torch.values(keys).copy(), with_torch.values(values).copy())
    places = torch.from_numpy(shape.places()).to(device)
    step = torch_step(shape, device)
    call = with_torch.prepared(step, (q, k_new, v_new, places, keys, values), device=device)
    operands = (q, k_new, v_new, *kept)
    prepared = prepared_torch(
        call,
        lambda: check(shape, operands, (call.result, keys, values), with_torch.values),
        params,
        shown={"q": q, "new keys": k_new, "new values": v_new},
        fresh=False,
        facts=facts_of(shape, impl, pairs),
    )
    silent = Unknown("PyTorch's counter does not know which keys a mask hides")
    prepared.count_by_compiler = lambda: replace(call.counts(), flop=silent)
    return prepared


def torch_step(shape: PagedShape, device: Any) -> Callable[..., Any]:
    """Return a step as a function of q, new keys, new values, places, pages of keys and of values."""
    import torch

    attend: Any = torch.nn.functional.scaled_dot_product_attention
    table, size = shape.table(), shape.page_size
    rows, masks = [], []
    for i, (new, context) in enumerate(zip(shape.new_tokens, shape.contexts, strict=True)):
        inside = np.arange(context)
        rows.append(torch.from_numpy(table[i, inside // size].astype(np.int64) * size + inside % size).to(device))
        seen = torch.arange(context)[None, :] <= torch.arange(context - new, context)[:, None]
        masks.append(None if new == 1 else seen.to(device))
    out = torch.zeros((shape.tokens, shape.heads, shape.head_dim), dtype=_kind(shape), device=device)
    starts = np.concatenate([[0], np.cumsum(shape.new_tokens)]).tolist()
    grouped = shape.heads != shape.kv_heads

    def step(q: Any, k_new: Any, v_new: Any, places: Any, keys: Any, values: Any) -> Any:
        keys.index_copy_(0, places, k_new)
        values.index_copy_(0, places, v_new)
        for i, row in enumerate(rows):
            a, b = starts[i], starts[i + 1]
            mine, k, v = (x.transpose(0, 1)[None] for x in (q[a:b], keys[row], values[row]))
            got = attend(mine, k, v, attn_mask=masks[i], scale=shape.scale, enable_gqa=grouped)
            out[a:b] = got[0].transpose(0, 1)
        return out

    return step


def _kind(shape: PagedShape) -> Any:
    from mansard.measure.points import with_torch

    return with_torch.torch_dtype(shape.dtype)


def check(shape: PagedShape, operands: tuple[Any, ...], result: Any, values: Values) -> Check:
    """Compare some sequences with attention in f64 over their context, and the pages with what must be in them."""
    against = "attention in f64 over each context, sampled sequences"
    q, k_new, v_new, keys, cached = operands
    out, got_keys, got_values = result
    table, places = shape.table(), shape.places()
    keys, cached = keys.copy(), cached.copy()
    keys[places], cached[places] = values(k_new), values(v_new)
    sample = spots(len(places))
    written = all(
        np.array_equal(values(got[places[sample]]), want[places[sample]])
        for got, want in ((got_keys, keys), (got_values, cached))
    )
    if not written:
        return Check(error_ratio=float("inf"), against="new keys and values in their pages")
    starts = np.concatenate([[0], np.cumsum(shape.new_tokens)])
    worst = 0.0
    for i in spots(shape.sequences, SEQUENCES_CHECKED):
        new, context = shape.new_tokens[i], shape.contexts[i]
        inside = np.arange(context)
        rows = table[i, inside // shape.page_size].astype(np.int64) * shape.page_size + inside % shape.page_size
        for head in (0, shape.heads - 1):
            kv = head // (shape.heads // shape.kv_heads)
            picked = spots(new)
            index = starts[i] + picked
            queries = np.zeros((context, shape.head_dim))
            queries[context - new + picked] = values(q[index, head])
            want = forward_rows(
                queries, keys[rows, kv], cached[rows, kv], context - new + picked, causal=True, scale=shape.scale
            )
            worst = max(worst, compared(values(out[index, head]), want, dtype=shape.dtype, against=against).error_ratio)
    return Check(error_ratio=worst, against=against)
