"""Decoders that mix attention with blocks of fixed state: Mamba 1 and 2, Nemotron-H, Jamba, Qwen3-Next and 3.5; and Gemma 4."""

from __future__ import annotations

import math
from dataclasses import replace

from mansard.workload.blocks.weight import Weight
from mansard.workload.model.decoder import (
    Parts,
    Traits,
    decoder,
    gqa,
    grouped,
    head_for,
    heads_of,
    mlp,
    norm_of,
    rotary_dim,
    tie,
)
from mansard.workload.model.families.dense import finish, mtp_stack
from mansard.workload.model.families.moe import FAMILIES as MOE
from mansard.workload.model.families.moe import choose, moe_block, routed_layers
from mansard.workload.model.reader import Reader
from mansard.workload.records import (
    Block,
    Embedding,
    GatedDeltaNet,
    GqaAttention,
    Layer,
    Linear,
    Mamba1,
    Mamba2,
    Mlp,
    Moe,
    Norm,
    Stack,
)


def _mixers(
    reader: Reader, traits: Traits, blocks: list[Block], architecture: str, outer: Reader | None, embed: str
) -> Parts:
    """Return a stack whose layers are one norm and one block each."""
    hidden = reader.integer("hidden_size")
    vocab = reader.integer("vocab_size")
    layers = [Layer(blocks=(norm_of(traits, hidden, "norm"), block)) for block in blocks]
    stack = Stack(
        name="text", hidden=hidden, path=traits.path, groups=grouped(layers),
        inputs=(Embedding(rows=vocab, width=hidden, path=embed),), outputs=(norm_of(traits, hidden, "norm_f"),),
    )  # fmt: skip
    return finish(reader, architecture, traits, stack, vocab, outer)


def _rank(reader: Reader, key: str, hidden: int) -> int:
    """Return the rank of the step projection; `auto` is ceil(hidden / 16)."""
    value = reader.raw(key)
    if value is None or value == "auto":
        rank = math.ceil(hidden / 16)
        reader.derive(key, rank, ("hidden_size",), "auto or absent: ceil(hidden_size / 16)")
        return rank
    return reader.integer(key)


def mamba(reader: Reader, architecture: str, family: str, outer: Reader | None = None) -> Parts:
    """Return the parts of Mamba and Falcon Mamba; a declared `intermediate_size` wins over `expand`."""
    falcon = family == "falcon_mamba"
    source = "transformers 5.24 FalconMambaConfig" if falcon else "transformers 5.24 MambaConfig"
    traits = Traits(source=source, tied=True, path="backbone.layers.{}")
    hidden = reader.integer("hidden_size")
    inner = reader.optional("intermediate_size", only=True) or (reader.optional("d_inner"))
    expand = reader.optional("expand")
    if inner is None:
        if expand is None:
            raise reader.missing("intermediate_size")
        inner = expand * hidden
        reader.derive("intermediate_size", inner, ("expand", "hidden_size"))
    elif expand is not None and expand * hidden != inner:
        reader.note(f"expand {expand} x hidden_size {hidden} contradicts intermediate_size {inner}; the latter is used")
    block = Mamba1(
        hidden=hidden, inner=inner, state=reader.integer("state_size"), dt_rank=_rank(reader, "time_step_rank", hidden),
        conv=reader.integer("conv_kernel"), bias=reader.flag("use_bias", False, source),
        conv_bias=reader.flag("use_conv_bias", True, source), inner_norm="plain" if falcon else "none",
    )  # fmt: skip
    depth = reader.integer("num_hidden_layers")
    return _mixers(reader, traits, [block] * depth, architecture, outer, "backbone.embeddings")


def mamba2(reader: Reader, architecture: str, _family: str, outer: Reader | None = None) -> Parts:
    """Return the parts of Mamba 2."""
    source = "transformers 5.24 Mamba2Config"
    traits = Traits(source=source, tied=False, path="backbone.layers.{}")
    hidden = reader.integer("hidden_size")
    block = Mamba2(
        hidden=hidden, heads=reader.integer("num_heads", only=True), head_dim=reader.integer("head_dim", only=True),
        state=reader.integer("state_size"), groups=reader.integer("n_groups"), conv=reader.integer("conv_kernel"),
        bias=reader.flag("use_bias", False, source), conv_bias=reader.flag("use_conv_bias", True, source),
    )  # fmt: skip
    depth = reader.integer("num_hidden_layers")
    return _mixers(reader, traits, [block] * depth, architecture, outer, "backbone.embeddings")


NEMOTRON = "transformers 5.24 NemotronHConfig"
_NEMOTRON_WORDS = {
    "mamba": "M", "linear_attention": "M", "attention": "*", "full_attention": "*", "mlp": "-", "moe": "E",
}  # fmt: skip


def nemotron_pattern(reader: Reader, depth: int | None) -> str:
    """Return one letter per layer: M state space, * attention, - feed-forward, E experts."""
    words = reader.array("layers_block_type") or reader.array("layer_types")
    if words is not None:
        for word in words:
            if word not in _NEMOTRON_WORDS:
                raise reader.unsupported(f"a layer of kind {word!r}", f"known here: {', '.join(_NEMOTRON_WORDS)}")
        pattern = "".join(_NEMOTRON_WORDS[word] for word in words)
    else:
        pattern = reader.text("hybrid_override_pattern")
    unknown = set(pattern) - set("M*-E")
    if unknown or not pattern:
        raise reader.unsupported(f"hybrid_override_pattern has {sorted(unknown)}", "letters M, *, - and E")
    if depth is not None and len(pattern) != depth:
        raise reader.wrong("num_hidden_layers", depth, f"{len(pattern)}, the length of the layer pattern")
    return pattern


def nemotron_h(reader: Reader, architecture: str, _family: str, outer: Reader | None = None) -> Parts:
    """Return the parts of Nemotron-H: one block per layer, by a pattern; experts may work in a narrower latent."""
    pattern = nemotron_pattern(reader, reader.optional("num_hidden_layers"))
    traits = Traits(source=NEMOTRON, gated=False, mlp_bias="mlp_bias", activation="relu2", head_dim=128)
    hidden = reader.integer("hidden_size")
    made = {letter: _nemotron_block(reader, traits, hidden, letter) for letter in sorted(set(pattern))}
    parts = _mixers(reader, traits, [made[letter] for letter in pattern], architecture, outer, "model.embeddings")
    if reader.raw("mamba_ssm_cache_dtype") is not None:
        parts.state_dtype = reader.text("mamba_ssm_cache_dtype")
    if reader.optional("num_nextn_predict_layers", least=0):
        reader.raw("mtp_hybrid_override_pattern")
        reader.note("the configuration announces MTP layers but not how they are joined: they are not counted")
    return parts


def _nemotron_block(reader: Reader, traits: Traits, hidden: int, letter: str) -> Block:
    if letter == "M":
        return Mamba2(
            hidden=hidden, heads=reader.integer("mamba_num_heads"), head_dim=reader.integer("mamba_head_dim"),
            state=reader.integer("ssm_state_size"), groups=reader.integer("n_groups"), conv=reader.integer("conv_kernel"),
            bias=reader.flag("use_bias", False, NEMOTRON), conv_bias=reader.flag("use_conv_bias", True, NEMOTRON),
        )  # fmt: skip
    if letter == "*":
        heads, kv, width = heads_of(reader, traits, hidden)
        return GqaAttention(
            hidden=hidden, heads=heads, kv_heads=kv, head_dim=width, v_head_dim=width, path="mixer", rotary_dim=0,
            window=reader.optional("sliding_window"),
        )  # fmt: skip
    act = reader.text("mlp_hidden_act", "relu2", NEMOTRON)
    bias = reader.flag("mlp_bias", False, NEMOTRON)
    if letter == "-":
        width = reader.integer("intermediate_size")
        return Mlp(hidden=hidden, width=width, gated=False, activation=act, bias=bias, out_bias=bias, path="mixer")
    if bias:
        raise reader.unsupported("Nemotron-H with biases in its experts", "mlp_bias false")
    experts, top_k = reader.integer("num_experts"), reader.integer("num_experts_per_tok")
    if reader.optional("n_shared_experts", least=0) not in (None, 1):
        raise reader.unsupported("several shared experts in Nemotron-H", "n_shared_experts of 1")
    return Moe(
        hidden=hidden, experts=experts, top_k=top_k, width=reader.integer("moe_intermediate_size"), gated=False,
        activation=act, path="mixer", shared_width=reader.integer("moe_shared_expert_intermediate_size"), shared_gated=False,
        correction_bias=experts, latent=reader.optional("moe_latent_size", absent="experts as wide as the model"),
    )  # fmt: skip


def jamba(reader: Reader, architecture: str, _family: str, outer: Reader | None = None) -> Parts:
    """Return the parts of Jamba: attention every `attn_layer_period` layers, experts every `expert_layer_period`."""
    source = "transformers 5.24 JambaConfig"
    traits = Traits(source=source, rotary=0.0)
    hidden, depth = reader.integer("hidden_size"), reader.integer("num_hidden_layers")
    inner = reader.integer("mamba_expand") * hidden
    reader.derive("mamba_inner", inner, ("mamba_expand", "hidden_size"))
    ssm = Mamba1(
        hidden=hidden, inner=inner, state=reader.integer("mamba_d_state"), dt_rank=_rank(reader, "mamba_dt_rank", hidden),
        conv=reader.integer("mamba_d_conv"), bias=reader.flag("mamba_proj_bias", False, source),
        conv_bias=reader.flag("mamba_conv_bias", True, source), inner_norm="scaled", path="mamba",
    )  # fmt: skip
    attention = gqa(reader, traits, hidden)
    period, offset = reader.integer("attn_layer_period"), reader.integer("attn_layer_offset", least=0)
    every, first = reader.integer("expert_layer_period"), reader.integer("expert_layer_offset", least=0)
    dense = mlp(reader, traits, hidden, path="feed_forward")
    experts, top_k = reader.integer("num_experts"), reader.integer("num_experts_per_tok")
    routed = Moe(
        hidden=hidden, experts=experts, top_k=top_k, width=reader.integer("intermediate_size"), gated=True,
        activation=dense.activation, path="feed_forward",
    )  # fmt: skip
    sparse = [i % every == first and experts > 1 for i in range(depth)]
    stack, vocab = decoder(
        reader,
        traits,
        attention=lambda i: attention if i % period == offset else ssm,
        feed=choose(routed, dense, sparse),
    )
    return finish(reader, architecture, traits, stack, vocab, outer)


def qwen_linear(reader: Reader, architecture: str, family: str, outer: Reader | None = None) -> Parts:
    """Return the parts of Qwen3-Next and Qwen3.5: three gated delta layers, then gated full attention."""
    source = {
        "qwen3_next": "transformers 5.24 Qwen3NextConfig", "qwen3_5_text": "transformers 5.24 Qwen3_5TextConfig",
    }.get(family, "transformers 5.24 Qwen3_5MoeTextConfig")  # fmt: skip
    traits = Traits(
        source=source, qk_norm="head", qkv_bias="attention_bias", out_bias="attention_bias", head_dim=256, rotary=0.25
    )
    hidden, depth = reader.integer("hidden_size"), reader.integer("num_hidden_layers")
    full = replace(gqa(reader, traits, hidden), output_gate=_gate(reader, family, source))
    linear_block = GatedDeltaNet(
        hidden=hidden, k_heads=reader.integer("linear_num_key_heads"), v_heads=reader.integer("linear_num_value_heads"),
        k_dim=reader.integer("linear_key_head_dim"), v_dim=reader.integer("linear_value_head_dim"),
        conv=reader.integer("linear_conv_kernel_dim"),
    )  # fmt: skip
    kinds = _linear_layers(reader, depth, source)
    attention = lambda i: full if kinds[i] == "full_attention" else linear_block  # noqa: E731
    if family == "qwen3_5_text":
        dense = mlp(reader, traits, hidden)
        feeds: list[Moe | Mlp] = [dense] * depth
    else:
        moe_traits = replace(MOE["qwen2_moe"], base=traits, dense="sparse_step" if family == "qwen3_next" else "none")
        routed = moe_block(reader, moe_traits, hidden)
        sparse = routed_layers(reader, moe_traits, depth)
        dense_or_none = None if all(sparse) else mlp(reader, traits, hidden)
        pick = choose(routed, dense_or_none, sparse)
        feeds = [pick(i) for i in range(depth)]
    stack, vocab = decoder(reader, traits, attention=attention, feed=lambda i: feeds[i])
    parts = finish(reader, architecture, traits, stack, vocab, outer)
    _qwen_mtp(reader, parts, full, feeds[-1], hidden)
    parts.state_dtype = reader.text("mamba_ssm_dtype") if reader.has("mamba_ssm_dtype") else None
    return parts


def _gate(reader: Reader, family: str, source: str) -> bool:
    """The query projection of these families always carries a gate; a file that says otherwise is not this family."""
    if reader.raw("attn_output_gate") is False:
        raise reader.unsupported(f"{family} without an attention output gate", "attn_output_gate true")
    if reader.raw("attn_output_gate") is None:
        reader.assume("attn_output_gate", True, source)
    return True


def _linear_layers(reader: Reader, depth: int, source: str) -> list[str]:
    kinds = reader.per_layer("layer_types", depth, ("linear_attention", "full_attention"))
    interval = reader.optional("full_attention_interval")
    if kinds is None:
        if interval is None:
            raise reader.missing("layer_types")
        reader.derive("layer_types", f"every {interval}th is full", ("full_attention_interval",), f"rule of {source}")
        kinds = ["full_attention" if (i + 1) % interval == 0 else "linear_attention" for i in range(depth)]
    return kinds


def _qwen_mtp(reader: Reader, parts: Parts, full: GqaAttention, feed: Block, hidden: int) -> None:
    """Multi-token prediction of Qwen3-Next and 3.5: two norms, a projection of both inputs, full layers, a norm."""
    count = (
        reader.optional("mtp_num_hidden_layers", least=0, absent="no MTP layers")
        or reader.optional("num_nextn_predict_layers", least=0)
        or 0
    )
    if not count:
        return
    if reader.raw("mtp_use_dedicated_embeddings") is True:
        raise reader.unsupported("MTP layers with their own token table", "mtp_use_dedicated_embeddings false")
    layer: tuple[Block, ...] = (
        Norm(width=hidden, path="input_layernorm"), full, Norm(width=hidden, path="post_attention_layernorm"), feed,
    )  # fmt: skip
    first: tuple[Block, ...] = (
        Norm(width=hidden, path="pre_fc_norm_hidden"), Norm(width=hidden, path="pre_fc_norm_embedding"),
        Linear(out=hidden, into=2 * hidden, path="fc", block="mtp"),
    )  # fmt: skip
    stack = mtp_stack(hidden, [layer] * count, "mtp.layers.{}")
    parts.mtp = replace(stack, inputs=first, outputs=(Norm(width=hidden, path="norm"),))
    parts.mtp_heads = 1


def gemma4_text(reader: Reader, architecture: str, _family: str, outer: Reader | None = None) -> Parts:
    """Return the parts of Gemma 4: full layers with wider heads and, where stated, one projection for keys and values."""
    source = "transformers 5.24 Gemma4TextConfig"
    traits = Traits(
        source=source, layout="sandwich", qk_norm="head", tied=True, qkv_bias="attention_bias", out_bias="attention_bias",
        activation="gelu_pytorch_tanh",
    )  # fmt: skip
    hidden, depth = reader.integer("hidden_size"), reader.integer("num_hidden_layers")
    kinds = reader.per_layer("layer_types", depth, ("sliding_attention", "full_attention"))
    if kinds is None:
        raise reader.missing("layer_types")
    local = replace(gqa(reader, traits, hidden), v_norm=True, window=reader.integer("sliding_window"))
    wide = _gemma4_full(reader, local, source)
    shared = reader.integer("num_kv_shared_layers", 0, source, least=0)
    double = reader.flag("use_double_wide_mlp", False, source)
    first = depth - shared
    block = mlp(reader, traits, hidden)
    bigger = replace(block, width=2 * block.width) if double else block

    def attention(i: int) -> GqaAttention:
        made = wide if kinds[i] == "full_attention" else local
        return replace(made, shares_kv=True) if i >= first else made

    extra = _per_layer_inputs(reader, hidden, depth, source)
    stack, vocab = decoder(
        reader, traits, attention=attention, feed=lambda i: bigger if i >= first else block, inputs=extra[0]
    )
    if reader.flag("enable_moe_block", False, source):
        stack = _gemma4_experts(reader, stack, block)
    if extra[1]:
        groups = tuple(replace(group, layer=Layer(blocks=group.layer.blocks + extra[1])) for group in stack.groups)
        stack = replace(stack, groups=groups)
    tied = tie(reader, True, source, outer)
    head = head_for(reader, architecture, hidden, vocab, tied=tied)
    return Parts(text=stack, head=head, tied=tied, vocab=vocab)


def _gemma4_experts(reader: Reader, stack: Stack, dense: Mlp) -> Stack:
    """Add the experts of Gemma 4, which work beside the dense block, with three norms of their own in each layer."""
    hidden = stack.hidden
    experts, top_k = reader.integer("num_experts"), reader.integer("top_k_experts")
    if top_k > experts:
        raise reader.wrong("top_k_experts", top_k, f"at most the {experts} experts")
    scales = tuple(
        Weight(name=f"router.{name}", shape=(size,), role="other", block="router")
        for name, size in (("scale", hidden), ("per_expert_scale", experts))
    )
    routed = Moe(
        hidden=hidden, experts=experts, top_k=top_k, width=reader.integer("moe_intermediate_size"), gated=True,
        activation=dense.activation, path="experts", extra=scales,
    )  # fmt: skip
    beside: tuple[Block, ...] = (
        Norm(width=hidden, path="post_feedforward_layernorm_1"),
        Norm(width=hidden, path="pre_feedforward_layernorm_2"),
        routed,
        Norm(width=hidden, path="post_feedforward_layernorm_2"),
    )

    def with_experts(layer: Layer) -> Layer:
        place = next(i for i, b in enumerate(layer.blocks) if isinstance(b, Mlp)) + 1
        return Layer(blocks=(*layer.blocks[:place], *beside, *layer.blocks[place:]))

    return replace(stack, groups=tuple(replace(group, layer=with_experts(group.layer)) for group in stack.groups))


def _gemma4_full(reader: Reader, local: GqaAttention, source: str) -> GqaAttention:
    dim = reader.integer("global_head_dim", 512, source)
    k_eq_v = reader.flag("attention_k_eq_v", False, source)
    kv = local.kv_heads
    stated = reader.optional("num_global_key_value_heads", absent="as many key heads as on windowed layers")
    if k_eq_v and stated is not None:
        kv = stated
    if local.heads % kv:
        raise reader.wrong("num_global_key_value_heads", kv, f"a divisor of the {local.heads} query heads")
    rope = reader.raw("rope_parameters")
    inner = rope.get("full_attention") if isinstance(rope, dict) else None
    factor = inner.get("partial_rotary_factor", 1.0) if isinstance(inner, dict) else 1.0
    turned = int(dim * factor) if isinstance(factor, int | float) else rotary_dim(reader, dim)
    return replace(local, head_dim=dim, v_head_dim=dim, kv_heads=kv, window=None, k_eq_v=k_eq_v, rotary_dim=turned)


def _per_layer_inputs(
    reader: Reader, hidden: int, depth: int, source: str
) -> tuple[tuple[Block, ...], tuple[Block, ...]]:
    """Per-layer inputs of small Gemma models: a table and a projection before, a gated projection in every layer."""
    width = reader.integer("hidden_size_per_layer_input", 256, source, least=0)
    if not width:
        return (), ()
    rows = reader.integer("vocab_size_per_layer_input")
    before: tuple[Block, ...] = (
        Embedding(rows=rows, width=depth * width, path="embed_tokens_per_layer", block="per_layer_embedding"),
        Linear(out=depth * width, into=hidden, path="per_layer_model_projection", block="per_layer_input"),
        Norm(width=width, path="per_layer_projection_norm"),
    )
    inside: tuple[Block, ...] = (
        Linear(out=width, into=hidden, path="per_layer_input_gate", block="per_layer_input"),
        Linear(out=hidden, into=width, path="per_layer_projection", block="per_layer_input"),
        Norm(width=hidden, path="post_per_layer_input_norm"),
    )
    return before, inside
