"""Decoders whose layers are described one by one: Nemotron-NAS, MiMo-V2, Granite 4 and Bamba."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mansard.workload.model.decoder import Parts, Traits, activation, decoder, gqa, grouped, head_width, mlp, rotary_dim
from mansard.workload.model.families.dense import finish
from mansard.workload.model.families.moe import MoeTraits, choose, moe_block
from mansard.workload.model.reader import Reader
from mansard.workload.records import Block, Embedding, GqaAttention, Layer, Linear, Mamba2, Mlp, Moe, Norm, Stack

NAS = "nvidia configuration_decilm.py"
MIMO = "transformers 5.24 MiMoV2FlashConfig"


def nemotron_nas(reader: Reader, architecture: str, _family: str, outer: Reader | None = None) -> Parts:
    """Return a Nemotron-NAS decoder: each layer keeps, replaces by one matrix, or leaves out attention and feed-forward."""
    traits = Traits(source=NAS, qkv_bias="attention_bias", out_bias="attention_bias", mlp_bias="mlp_bias")
    hidden, heads, vocab = (
        reader.integer("hidden_size"),
        reader.integer("num_attention_heads"),
        reader.integer("vocab_size"),
    )
    depth = reader.integer("num_hidden_layers")
    width = head_width(reader, traits, hidden, heads)
    entries = reader.array("block_configs")
    if entries is None:
        raise reader.missing("block_configs")
    if len(entries) != depth:
        raise reader.wrong("block_configs", f"{len(entries)} entries", f"{depth}, one per layer")
    act = activation(reader, traits)
    layers = [
        Layer(
            blocks=(*_nas_attention(reader, entry, hidden, heads, width, i), *_nas_feed(reader, entry, hidden, act, i))
        )
        for i, entry in enumerate(entries)
    ]
    stack = Stack(
        name="text", hidden=hidden, path="model.layers.{}", groups=grouped(layers),
        inputs=(Embedding(rows=vocab, width=hidden),), outputs=(Norm(width=hidden, path="norm"),),
    )  # fmt: skip
    return finish(reader, architecture, traits, stack, vocab, outer)


def _part(reader: Reader, entry: Any, key: str, i: int) -> Mapping[str, Any]:
    part = entry.get(key) if isinstance(entry, Mapping) else None
    if not isinstance(part, Mapping):
        raise reader.wrong(f"block_configs[{i}].{key}", part, "an object")
    return part


def _whole(reader: Reader, value: Any, key: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise reader.wrong(key, value, "a whole number of at least 1")
    return value


def _nas_attention(reader: Reader, entry: Any, hidden: int, heads: int, width: int, i: int) -> tuple[Block, ...]:
    part = _part(reader, entry, "attention", i)
    if part.get("no_op"):
        return ()
    norm = Norm(width=hidden, path="input_layernorm")
    if part.get("replace_with_linear"):
        return norm, Linear(out=hidden, into=hidden, path="self_attn.linear_attn", block="attention")
    group = _whole(reader, part.get("n_heads_in_group"), f"block_configs[{i}].attention.n_heads_in_group")
    if heads % group:
        raise reader.wrong(
            f"block_configs[{i}].attention.n_heads_in_group", group, f"a divisor of the {heads} query heads"
        )
    window = part.get("window_length")
    return norm, GqaAttention(
        hidden=hidden, heads=heads, kv_heads=heads // group, head_dim=width, v_head_dim=width, rotary_dim=rotary_dim(reader, width),
        window=None if window is None else _whole(reader, window, f"block_configs[{i}].attention.window_length"),
    )  # fmt: skip


def _nas_feed(reader: Reader, entry: Any, hidden: int, act: str, i: int) -> tuple[Block, ...]:
    part = _part(reader, entry, "ffn", i)
    if part.get("no_op"):
        return ()
    norm = Norm(width=hidden, path="post_attention_layernorm")
    if part.get("replace_with_linear"):
        return norm, Linear(out=hidden, into=hidden, path="mlp.linear_mlp", block="mlp")
    stated = part.get("intermediate_size")
    if stated is not None:
        return norm, Mlp(
            hidden=hidden,
            width=_whole(reader, stated, f"block_configs[{i}].ffn.intermediate_size"),
            gated=True,
            activation=act,
        )
    ratio = part.get("ffn_mult")
    if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 0 < ratio < 1e6:
        raise reader.wrong(f"block_configs[{i}].ffn.ffn_mult", ratio, "a positive number")
    # The family rounds two thirds of the multiple up to the next 256.
    width = -(-int(2 * ratio * hidden / 3) // 256) * 256
    reader.derive(
        "ffn_width", width, ("block_configs", "hidden_size"), "2/3 ffn_mult x hidden_size, up to a multiple of 256"
    )
    return norm, Mlp(hidden=hidden, width=width, gated=True, activation=act)


def mimo_v2(reader: Reader, architecture: str, _family: str, outer: Reader | None = None) -> Parts:
    """Return MiMo-V2: values narrower than keys, windowed layers with key heads of their own and a sink per head."""
    base = Traits(source=MIMO)
    hidden, depth = reader.integer("hidden_size"), reader.integer("num_hidden_layers")
    kinds = _mimo_kinds(reader, depth)
    full = _mimo_attention(reader, hidden, prefix="", window=None)
    swa = None
    if any(kinds):
        swa = _mimo_attention(reader, hidden, prefix="swa_", window=_mimo_window(reader))
    sparse = _mimo_sparse(reader, depth)
    traits = MoeTraits(base=base, shared="none", correction=True)
    if reader.optional("n_shared_experts", least=0):
        raise reader.unsupported("MiMo-V2 with shared experts", "n_shared_experts null")
    routed = moe_block(reader, traits, hidden)
    dense = mlp(reader, base, hidden) if not all(sparse) else None
    stack, vocab = decoder(
        reader,
        base,
        attention=lambda i: swa if kinds[i] and swa is not None else full,
        feed=choose(routed, dense, sparse),
    )
    reader.note("MTP layers of MiMo-V2, where there are any, are not described by the configuration and not counted")
    return finish(reader, architecture, base, stack, vocab, outer)


def _mimo_kinds(reader: Reader, depth: int) -> list[bool]:
    """Return for each layer whether it is windowed."""
    words = reader.per_layer("layer_types", depth, ("sliding_attention", "full_attention"))
    if words is not None:
        return [word == "sliding_attention" for word in words]
    pattern = reader.array("hybrid_layer_pattern")
    if pattern is None:
        raise reader.missing("layer_types")
    if len(pattern) < depth or any(entry not in (0, 1) for entry in pattern):
        raise reader.wrong("hybrid_layer_pattern", pattern[:8], f"{depth} entries of 0 (full) or 1 (windowed)")
    return [entry == 1 for entry in pattern[:depth]]


def _mimo_window(reader: Reader) -> int:
    """The stated `sliding_window_size` counts previous tokens; the query itself is seen too."""
    stated = reader.optional("sliding_window_size")
    if stated is not None:
        reader.raw("sliding_window")
        reader.derive("sliding_window", stated + 1, ("sliding_window_size",), "previous tokens and the query itself")
        return stated + 1
    return reader.integer("sliding_window")


def _mimo_attention(reader: Reader, hidden: int, *, prefix: str, window: int | None) -> GqaAttention:
    heads, kv = reader.integer("num_attention_heads"), reader.integer("num_key_value_heads")
    dim, v_dim = reader.integer("head_dim"), reader.integer("v_head_dim")
    if prefix:
        heads = reader.optional("swa_num_attention_heads") or heads
        dim, v_dim = reader.optional("swa_head_dim") or dim, reader.optional("swa_v_head_dim") or v_dim
        stated = reader.optional("swa_num_key_value_heads")
        if stated is None:
            stated = 2 * kv
            reader.derive(
                "swa_num_key_value_heads", stated, ("num_key_value_heads",), f"absent: twice as many, rule of {MIMO}"
            )
        kv = stated
    if heads % kv:
        raise reader.wrong(f"{prefix}num_key_value_heads", kv, f"a divisor of the {heads} query heads")
    sinks = (
        bool(window)
        if reader.raw("add_swa_attention_sink_bias") is None
        else reader.flag("add_swa_attention_sink_bias")
    )
    biased = reader.flag("attention_bias", False, MIMO)
    if not prefix:
        sinks = reader.raw("add_full_attention_sink_bias") is True
    return GqaAttention(
        hidden=hidden, heads=heads, kv_heads=kv, head_dim=dim, v_head_dim=v_dim, window=window, sinks=sinks,
        q_bias=biased, k_bias=biased, v_bias=biased, rotary_dim=rotary_dim(reader, dim),
    )  # fmt: skip


def _mimo_sparse(reader: Reader, depth: int) -> list[bool]:
    words = reader.per_layer("mlp_layer_types", depth, ("dense", "sparse"))
    if words is not None:
        return [word == "sparse" for word in words]
    flags = reader.array("moe_layer_freq")
    if flags is None:
        raise reader.missing("mlp_layer_types")
    if len(flags) < depth or any(entry not in (0, 1) for entry in flags):
        raise reader.wrong("moe_layer_freq", flags[:8], f"{depth} entries of 0 (dense) or 1 (experts)")
    return [entry == 1 for entry in flags[:depth]]


def _mamba_block(reader: Reader, hidden: int, source: str) -> Mamba2:
    """Return the Mamba-2 block of Bamba and Granite; a head width of `auto` is expand x hidden / heads."""
    heads = reader.integer("mamba_n_heads")
    inner = reader.integer("mamba_expand") * hidden
    stated = reader.raw("mamba_d_head")
    if stated in (None, "auto"):
        if inner % heads:
            raise reader.wrong("mamba_n_heads", heads, f"a divisor of {inner}")
        reader.derive("mamba_d_head", inner // heads, ("mamba_expand", "hidden_size", "mamba_n_heads"))
        width = inner // heads
    else:
        width = reader.integer("mamba_d_head")
    if width * heads != inner:
        raise reader.wrong("mamba_d_head", width, f"{inner} / {heads} heads")
    return Mamba2(
        hidden=hidden, heads=heads, head_dim=width, state=reader.integer("mamba_d_state"), groups=reader.integer("mamba_n_groups"),
        conv=reader.integer("mamba_d_conv"), bias=reader.flag("mamba_proj_bias", False, source),
        conv_bias=reader.flag("mamba_conv_bias", True, source), path="mamba",
    )  # fmt: skip


def granite_hybrid(reader: Reader, architecture: str, _family: str, outer: Reader | None = None) -> Parts:
    """Return Granite 4: Mamba-2 and attention layers, experts (or none) beside a block that every token passes."""
    source = "transformers 5.24 GraniteMoeHybridConfig"
    rope = reader.raw("position_embedding_type") == "rope"
    traits = Traits(source=source, qkv_bias="attention_bias", out_bias="attention_bias", rotary=1.0 if rope else 0.0)
    hidden, depth = reader.integer("hidden_size"), reader.integer("num_hidden_layers")
    kinds = reader.per_layer("layer_types", depth, ("mamba", "attention", "linear_attention", "full_attention"))
    if kinds is None:
        raise reader.missing("layer_types")
    full = [kind in ("attention", "full_attention") for kind in kinds]
    attention = gqa(reader, traits, hidden) if any(full) else None
    ssm = _mamba_block(reader, hidden, source) if not all(full) else None
    experts = reader.integer("num_local_experts", least=0, only=True)
    shared = reader.integer("shared_intermediate_size")
    act = activation(reader, traits)
    feed: Moe | Mlp = Mlp(hidden=hidden, width=shared, gated=True, activation=act, path="shared_mlp")
    if experts:
        top_k = reader.integer("num_experts_per_tok")
        if top_k > experts:
            raise reader.wrong("num_experts_per_tok", top_k, f"at most the {experts} experts")
        feed = Moe(
            hidden=hidden, experts=experts, top_k=top_k, width=reader.integer("intermediate_size"), gated=True, activation=act,
            path="block_sparse_moe", shared_width=shared,
        )  # fmt: skip

    def mixer(i: int) -> Block:
        block: Block | None = attention if full[i] else ssm
        assert block is not None
        return block

    stack, vocab = decoder(reader, traits, attention=mixer, feed=lambda _i: feed)
    return finish(reader, architecture, traits, stack, vocab, outer)


def bamba(reader: Reader, architecture: str, _family: str, outer: Reader | None = None) -> Parts:
    """Return Bamba: Mamba-2 layers, attention at `attn_layer_indices`, a gated block everywhere."""
    source = "transformers 5.24 BambaConfig"
    traits = Traits(
        source=source, qkv_bias="attention_bias", out_bias="attention_bias", mlp_bias="mlp_bias", rotary=0.5
    )
    hidden = reader.integer("hidden_size")
    places = reader.array("attn_layer_indices")
    if places is None:
        places = []
        reader.assume("attn_layer_indices", "none", source)
    attention, ssm = gqa(reader, traits, hidden), _mamba_block(reader, hidden, source)
    stack, vocab = decoder(reader, traits, attention=lambda i: attention if i in places else ssm)
    return finish(reader, architecture, traits, stack, vocab, outer)
