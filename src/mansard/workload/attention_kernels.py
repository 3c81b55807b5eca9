"""Kernels of attention blocks: grouped-query in all its masks, latent in both forms, the sparse scorer, cross."""

from __future__ import annotations

from dataclasses import replace

from mansard.core import Demand, dtype_bytes
from mansard.core.demand import Number
from mansard.operators.attention import attention_flop
from mansard.operators.counting import matrix_work, number, vector_work
from mansard.operators.elementwise import rope
from mansard.workload.batch import Mask
from mansard.workload.blocks.attention import CrossAttention, GqaAttention, MlaAttention, SparseIndexer
from mansard.workload.blocks.weight import Weight, named
from mansard.workload.cache import heads_per_rank
from mansard.workload.kernel import Context, Kernel, element_work, product
from mansard.workload.parallel import split


def mask_of(block: GqaAttention | MlaAttention) -> Mask:
    """Return which keys a query of the block sees."""
    if isinstance(block, MlaAttention):
        return Mask(top_k=block.top_k)
    return Mask(causal=block.causal, window=block.window, chunk=block.chunk)


def attention_kernels(context: Context, block: GqaAttention | MlaAttention | CrossAttention) -> list[Kernel]:
    """Return the kernels of an attention block, forward, on one device.

    Raises:
        InfeasibleError: its heads cannot be divided over the tensor-parallel ranks.
    """
    if isinstance(block, GqaAttention):
        return _grouped(context, block)
    if isinstance(block, MlaAttention):
        return _latent(context, block)
    return _cross(context, block)


def _core(
    context: Context,
    name: str,
    *,
    mask: Mask,
    heads: float,
    qk_dim: float,
    v_dim: float,
    cache_elements: Number,
    written: Number,
    model_dims: tuple[float, float] | None = None,
    keys_once: bool = True,
) -> Kernel:
    """The attention core: scores, softmax, values; the cache is read once and the new tokens are appended.

    Args:
        heads: Query heads on this device.
        qk_dim, v_dim: Widths that are multiplied.
        cache_elements: Elements read per key.
        written: Elements written to the cache.
        model_dims: Widths that model FLOP count, where the executed form is another.
    """
    types = context.types
    pairs = context.pairs(mask)
    flop = attention_flop(pairs=pairs, heads=heads, head_dim=qk_dim, value_dim=v_dim)
    d_qk, d_v = model_dims or (qk_dim, v_dim)
    model = attention_flop(pairs=pairs, heads=heads, head_dim=d_qk, value_dim=d_v)
    full = attention_flop(pairs=context.full_pairs(), heads=heads, head_dim=d_qk, value_dim=d_v)
    rows = context.tokens * heads
    scores = pairs * heads
    size = dtype_bytes(types.cache)
    activation = dtype_bytes(types.activation)
    read = context.keys_read(mask) * cache_elements * size if keys_once else 0.0
    return Kernel(
        name=name,
        kind="attention",
        demand=Demand(
            flop=matrix_work(flop / 2.0, types.activation),
            vector_flop=vector_work(scores * 4.0 + rows * v_dim, types.activation),
            transcendental=vector_work(scores, types.activation),
            read_bytes=0.0 if context.training else read,
            write_bytes=0.0 if context.training else written * size,
        ),
        # In training nothing is kept for later passes of the model: keys and values are activations like any other.
        local_read_bytes=rows * qk_dim * activation + (read if context.training else 0.0),
        local_write_bytes=rows * v_dim * activation,
        model_flop=model,
        full_flop=full,
        # A fused backward computes Q K^T once more: five products against two.
        backward_ratio=2.0 + qk_dim / (qk_dim + v_dim),
        area="attention",
    )


def _grouped(context: Context, block: GqaAttention) -> list[Kernel]:
    tp = context.plan.tp
    heads = split("query heads", block.heads, tp)
    kv_heads = heads_per_rank(block.kv_heads, tp)
    share_q, share_kv = 1.0 / tp, kv_heads / block.kv_heads
    weights = block.weights()
    tokens = context.tokens
    kv_width = 0 if block.shares_kv else kv_heads * (block.head_dim + (0 if block.k_eq_v else block.v_head_dim))
    gate = heads * block.v_head_dim if block.output_gate else 0
    q_width = heads * block.head_dim + gate
    qkv = [(w, share_q) for w in named(weights, "q_proj")]
    qkv += [(w, share_kv) for w in named(weights, "k_proj", "v_proj")]
    kernels = [
        product(
            context, "qkv_proj", qkv, rows=tokens, width_in=block.hidden, width_out=q_width + kv_width, area="attention"
        )
    ]
    kernels += _head_norms(context, block, weights, heads, kv_heads)
    if block.rotary_dim:
        kernels.append(_rope(context, heads, 0 if block.shares_kv else kv_heads, block.head_dim, block.rotary_dim))
    # A cache that is shared with an earlier layer is read again, but not written. Keys and values from one projection
    # are stored apart: keys are rotated, values are not.
    stored = kv_heads * (block.head_dim + block.v_head_dim)
    core = _core(
        context, "attention", mask=mask_of(block), heads=heads, qk_dim=block.head_dim, v_dim=block.v_head_dim,
        cache_elements=float(stored), written=0.0 if block.shares_kv or not block.causal else tokens * stored,
    )  # fmt: skip
    small = [(w, share_q) for w in (*named(weights, "sinks", "relative_attention_bias"), *block.extra)]
    if small:
        size = sum(context.stored_bytes(w, context.layer_path) * share for w, share in small)
        core = replace(core, demand=core.demand + Demand(read_bytes=size, launches=0.0), weight_bytes=size)
    kernels.append(core)
    out = [(w, share_q if w.role == "matmul" else 1.0) for w in named(weights, "o_proj")]
    target = block.hidden if block.out_hidden is None else block.out_hidden
    kernels.append(
        product(
            context, "o_proj", out, rows=tokens, width_in=heads * block.v_head_dim, width_out=target, area="attention"
        )
    )
    return kernels


def _head_norms(
    context: Context, block: GqaAttention, weights: tuple[Weight, ...], heads: int, kv_heads: int
) -> list[Kernel]:
    """Norms of queries and keys (and of values), in place."""
    if block.qk_norm == "none" and not block.v_norm:
        return []
    width = heads * block.head_dim if block.qk_norm != "none" else 0
    width += kv_heads * block.head_dim if block.qk_norm != "none" and not block.shares_kv else 0
    width += kv_heads * block.v_head_dim if block.v_norm and not block.shares_kv else 0
    elements = context.tokens * width
    norms = [(w, 1.0) for w in named(weights, "q_norm", "k_norm")]
    return [
        element_work(
            context, "qk_norm", reads=elements, writes=elements, flop=elements * 4.0, weights=norms, area="attention"
        )
    ]


def _rope(context: Context, heads: int, kv_heads: int, head_dim: int, rotary_dim: int) -> Kernel:
    """Rotary position embedding on queries and keys, in place."""
    cost = rope(
        tokens=context.tokens, heads=heads, kv_heads=kv_heads, head_dim=head_dim, dtype=context.types.activation,
        rotary_ratio=rotary_dim / head_dim,
    )  # fmt: skip
    return Kernel(
        name="rope",
        kind="vector",
        demand=Demand(vector_flop=cost.vector_flop),
        local_read_bytes=cost.read_bytes,
        local_write_bytes=cost.write_bytes,
        area="attention",
    )


def _latent(context: Context, block: MlaAttention) -> list[Kernel]:
    tp = context.plan.tp
    heads = split("query heads", block.heads, tp)
    weights = block.weights()
    tokens, h = context.tokens, block.hidden
    whole = 1.0  # The latent and everything that makes it is on every tensor-parallel rank.
    mine = 1.0 / tp
    kernels: list[Kernel] = []
    if block.q_rank is None:
        q = [(w, mine) for w in named(weights, "q_proj")]
        kernels.append(
            product(context, "q_proj", q, rows=tokens, width_in=h, width_out=heads * block.qk_dim, area="attention")
        )
        down = [(w, whole) for w in named(weights, "kv_a_proj_with_mqa")]
        down_width = block.cache_width
    else:
        down = [(w, whole) for w in named(weights, "q_a_proj", "kv_a_proj_with_mqa")]
        down_width = block.q_rank + block.cache_width
    kernels.append(product(context, "qkv_down", down, rows=tokens, width_in=h, width_out=down_width, area="attention"))
    norm_width = tokens * ((block.q_rank or 0) + block.kv_rank)
    norms = [(w, whole) for w in named(weights, "q_a_layernorm", "kv_a_layernorm")]
    kernels.append(
        element_work(
            context, "latent_norm", reads=norm_width, writes=norm_width, flop=norm_width * 4.0, weights=norms,
            area="attention",
        )
    )  # fmt: skip
    if block.q_rank is not None:
        q = [(w, mine) for w in named(weights, "q_b_proj")]
        kernels.append(
            product(
                context, "q_up", q, rows=tokens, width_in=block.q_rank, width_out=heads * block.qk_dim, area="attention"
            )
        )
    kernels.append(_rope(context, heads, 1, block.qk_dim, block.rope_dim))
    if block.indexer is not None:
        kernels += _indexer(context, block.indexer)
    kernels += _absorbed(context, block, heads) if context.absorbed else _expanded(context, block, heads)
    out = [(w, mine if w.role == "matmul" else whole) for w in named(weights, "o_proj")]
    kernels.append(
        product(context, "o_proj", out, rows=tokens, width_in=heads * block.v_dim, width_out=h, area="attention")
    )
    return kernels


def _expanded(context: Context, block: MlaAttention, heads: int) -> list[Kernel]:
    """Keys and values of every head are expanded from the latent, as training and prefill do."""
    up = [(w, heads / block.heads) for w in named(block.weights(), "kv_b_proj")]
    # The latents of tokens that are already cached are expanded again; model FLOP count each token once.
    rows = context.batch.cached_tokens / context.token_shards
    kv_width = heads * (block.nope_dim + block.v_dim)
    expand = product(
        context, "kv_up", up, rows=rows, width_in=block.kv_rank, width_out=kv_width, area="attention"
    )  # fmt: skip
    model = expand.model_flop * (context.tokens / rows)
    expand = replace(expand, model_flop=model, full_flop=model)
    if not context.training:
        cache = context.batch.keys_read(Mask(causal=False)) * block.cache_width * dtype_bytes(context.types.cache)
        added = context.tokens * block.cache_width * dtype_bytes(context.types.cache)
        expand = replace(
            expand,
            demand=expand.demand + Demand(read_bytes=cache, write_bytes=added, launches=0.0),
            local_read_bytes=0.0,
        )
    core = _core(
        context, "attention", mask=mask_of(block), heads=heads, qk_dim=block.qk_dim, v_dim=block.v_dim,
        cache_elements=0.0, written=0.0,
    )  # fmt: skip
    keys = rows * heads * (block.qk_dim + block.v_dim) * dtype_bytes(context.types.activation)
    return [expand, replace(core, local_read_bytes=core.local_read_bytes + keys)]


def _absorbed(context: Context, block: MlaAttention, heads: int) -> list[Kernel]:
    """Queries are carried into the latent space and the latent serves all heads, as decode does."""
    tokens, rank = context.tokens, block.kv_rank
    up = named(block.weights(), "kv_b_proj")
    total = block.nope_dim + block.v_dim
    keys_part = [(w, block.nope_dim / total / context.plan.tp) for w in up]
    values_part = [(w, block.v_dim / total / context.plan.tp) for w in up]
    q_in = product(
        context, "q_absorb", keys_part, rows=tokens, width_in=heads * block.nope_dim, width_out=heads * rank,
        area="attention",
    )  # fmt: skip
    core = _core(
        context, "attention", mask=mask_of(block), heads=heads, qk_dim=block.cache_width, v_dim=rank,
        cache_elements=float(block.cache_width), written=number(tokens) * block.cache_width,
    )  # fmt: skip
    v_out = product(
        context, "v_absorb", values_part, rows=tokens, width_in=heads * rank, width_out=heads * block.v_dim,
        area="attention",
    )  # fmt: skip
    return [q_in, core, v_out]


def _indexer(context: Context, block: SparseIndexer) -> list[Kernel]:
    """The scorer of sparse attention: projections, then a score for every visible key."""
    weights = block.weights()
    tokens = context.tokens
    small = [(w, 1.0) for w in weights if w.role == "matmul"]
    width = block.heads * block.head_dim + block.head_dim + block.heads
    proj = product(
        context,
        "indexer_proj",
        small,
        rows=tokens,
        width_in=block.query_in + block.hidden,
        width_out=width,
        area="indexer",
    )
    pairs, full = context.pairs(Mask()), context.full_pairs()
    # Per pair: one product of index heads, then their weighted sum.
    per_pair = 2.0 * (block.heads * block.head_dim + block.heads)
    size = dtype_bytes(context.types.cache)
    read = context.keys_read(Mask()) * block.head_dim * size
    score = Kernel(
        name="indexer_score",
        kind="attention",
        demand=Demand(
            flop=matrix_work(pairs * per_pair / 2.0, context.types.activation),
            vector_flop=vector_work(pairs * block.heads, context.types.activation),
            read_bytes=0.0 if context.training else read,
            write_bytes=0.0 if context.training else number(tokens) * block.head_dim * size,
        ),
        local_read_bytes=tokens * width * dtype_bytes(context.types.activation) + (read if context.training else 0.0),
        local_write_bytes=number(tokens) * block.top_k * 4.0,
        model_flop=pairs * per_pair,
        full_flop=full * per_pair,
        area="indexer",
    )
    return [proj, score]


def _cross(context: Context, block: CrossAttention) -> list[Kernel]:
    """Queries against the output of an encoder, whose keys and values are computed once per sequence, not per step."""
    tp = context.plan.tp
    heads = split("query heads", block.heads, tp)
    kv_heads = heads_per_rank(block.kv_heads, tp)
    weights = block.weights()
    tokens = context.tokens
    q = [(w, 1.0 / tp) for w in named(weights, "q_proj")]
    out = [(w, 1.0 / tp if w.role == "matmul" else 1.0) for w in named(weights, "o_proj")]
    width = heads * block.head_dim
    source = number(context.batch.source_tokens)
    pairs = tokens * source
    flop = attention_flop(pairs=pairs, heads=heads, head_dim=block.head_dim)
    activation = dtype_bytes(context.types.activation)
    keys = context.batch.sequences * source * 2.0 * kv_heads * block.head_dim
    read = keys * dtype_bytes(context.types.cache)
    core = Kernel(
        name="cross_attention",
        kind="attention",
        demand=Demand(
            flop=matrix_work(flop / 2.0, context.types.activation),
            vector_flop=vector_work(pairs * heads * 4.0, context.types.activation),
            transcendental=vector_work(pairs * heads, context.types.activation),
            read_bytes=0.0 if context.training else read,
        ),
        local_read_bytes=tokens * width * activation + (read if context.training else 0.0),
        local_write_bytes=tokens * width * activation,
        model_flop=flop,
        full_flop=flop,
        area="cross_attention",
    )
    first = product(
        context, "cross_q_proj", q, rows=tokens, width_in=block.hidden, width_out=width, area="cross_attention"
    )
    last = product(
        context, "cross_o_proj", out, rows=tokens, width_in=width, width_out=block.hidden, area="cross_attention"
    )
    kernels = [first, core, last]
    if not context.decoding:
        kv = [(w, kv_heads / block.kv_heads) for w in named(weights, "k_proj", "v_proj")]
        rows = context.batch.sequences * source
        kernels.insert(1, product(
            context, "cross_kv_proj", kv, rows=rows, width_in=block.source_hidden, width_out=2 * kv_heads * block.head_dim,
            area="cross_attention",
        ))  # fmt: skip
    return kernels
