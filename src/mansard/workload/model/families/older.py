"""Dense and routed decoders with key names of their own: ChatGLM, MPT, StarCoder, StableLM, DBRX."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from mansard.workload.model.decoder import Parts, Traits, decoder, gqa, head_width, mlp, rotary_dim
from mansard.workload.model.families.dense import finish
from mansard.workload.model.reader import Reader
from mansard.workload.records import GqaAttention, Mlp, Moe

CHATGLM = "THUDM configuration_chatglm.py"
MPT = "transformers 5.24 MptConfig"
DBRX = "transformers 5.24 DbrxConfig"


def chatglm(reader: Reader, architecture: str, _family: str, outer: Reader | None = None) -> Parts:
    """Return ChatGLM 2, 3 and GLM-4-9B: `num_layers`, `padded_vocab_size`, `kv_channels`, `multi_query_group_num`."""
    rms = reader.flag("rmsnorm", True, CHATGLM)
    both = reader.flag("add_bias_linear", False, CHATGLM)
    traits = Traits(
        source=CHATGLM, norm="rms" if rms else "layer", norm_bias=not rms, mlp_bias=both,
        final_norm=reader.flag("post_layer_norm", True, CHATGLM), path="transformer.encoder.layers.{}", rotary=0.5,
    )  # fmt: skip
    hidden = reader.integer("hidden_size")
    heads, width = reader.integer("num_attention_heads"), reader.integer("kv_channels", only=True)
    kv = heads
    if reader.flag("multi_query_attention", False, CHATGLM):
        kv = reader.integer("multi_query_group_num", only=True)
    if heads % kv:
        raise reader.wrong("multi_query_group_num", kv, f"a divisor of the {heads} query heads")
    qkv = reader.flag("add_qkv_bias", False, CHATGLM) or both
    block = GqaAttention(
        hidden=hidden, heads=heads, kv_heads=kv, head_dim=width, v_head_dim=width, path="self_attention", q_bias=qkv,
        k_bias=qkv, v_bias=qkv, out_bias=both, rotary_dim=width // 2,
    )  # fmt: skip
    feed = Mlp(
        hidden=hidden,
        width=reader.integer("ffn_hidden_size", only=True),
        gated=True,
        activation="silu",
        bias=both,
        out_bias=both,
    )
    reader.derive("hidden_act", "silu", ("model_type",), "SwiGLU is fixed in the family's code")
    stack, vocab = decoder(reader, traits, attention=lambda _i: block, feed=lambda _i: feed)
    return finish(
        reader, architecture if architecture != "ChatGLMModel" else "ChatGLMForCausalLM", traits, stack, vocab, outer
    )


def mpt(reader: Reader, architecture: str, _family: str, outer: Reader | None = None) -> Parts:
    """Return MPT: `d_model`, `expansion_ratio`, an `attn_config` of its own; ALiBi instead of positions."""
    plain = not reader.flag("no_bias", True, MPT)
    inner = reader.child(
        "attn_config", {"attn_type": "multihead_attention", "qk_ln": False, "alibi": True}, MPT, required=False
    )
    kind = inner.text("attn_type") if inner is not None else "multihead_attention"
    if inner is None:
        reader.assume("attn_config.attn_type", kind, MPT)
        reader.assume("attn_config.alibi", True, MPT)
    elif inner.flag("qk_ln"):
        raise reader.unsupported("MPT with normalised queries and keys", "attn_config.qk_ln false")
    hidden, heads = reader.integer("d_model", only=True), reader.integer("n_heads", only=True)
    if kind == "multihead_attention":
        kv = heads
    elif kind == "multiquery_attention":
        kv = 1
    elif kind == "grouped_query_attention" and inner is not None:
        kv = inner.integer("kv_n_heads")
    else:
        raise reader.unsupported(
            f"MPT attention of type {kind!r}", "multihead_attention, multiquery_attention or grouped_query_attention"
        )
    if hidden % heads or heads % kv:
        raise reader.wrong("n_heads", heads, f"a divisor of d_model {hidden} and a multiple of {kv}")
    ratio = reader.integer("expansion_ratio")
    reader.derive("intermediate_size", ratio * hidden, ("expansion_ratio", "d_model"))
    traits = Traits(
        source=MPT, norm="layer", norm_bias=plain, gated=False, tied=True, mlp_bias=plain, activation="gelu", rotary=0.0,
        path="transformer.blocks.{}",
    )  # fmt: skip
    dim = hidden // heads
    block = GqaAttention(
        hidden=hidden, heads=heads, kv_heads=kv, head_dim=dim, v_head_dim=dim, path="attn", q_bias=plain, k_bias=plain,
        v_bias=plain, out_bias=plain,
    )  # fmt: skip
    alibi = inner.flag("alibi") if inner is not None else True
    if not alibi:
        raise reader.unsupported("MPT with learned positions", "attn_config.alibi true")
    feed = Mlp(
        hidden=hidden, width=ratio * hidden, gated=False, activation="gelu", bias=plain, out_bias=plain, path="ffn"
    )
    stack, vocab = decoder(reader, traits, attention=lambda _i: block, feed=lambda _i: feed)
    return finish(reader, architecture, traits, stack, vocab, outer)


def gpt_bigcode(reader: Reader, architecture: str, _family: str, outer: Reader | None = None) -> Parts:
    """Return StarCoder: GPT-2 with one key head where `multi_query` is true."""
    source = "transformers 5.24 GPTBigCodeConfig"
    traits = Traits(
        source=source, norm="layer", norm_bias=True, gated=False, qkv_bias=True, out_bias=True, mlp_bias=True, tied=True,
        positions=0, activation="gelu_pytorch_tanh", rotary=0.0, path="transformer.h.{}",
    )  # fmt: skip
    hidden = reader.integer("hidden_size")
    width = reader.optional("intermediate_size")
    if width is None:
        width = 4 * hidden
        reader.derive("n_inner", width, ("n_embd",), "null or absent: 4 x n_embd")
    if reader.raw("add_cross_attention") is True:
        raise reader.unsupported("add_cross_attention is true", "a plain decoder")
    block = gqa(reader, traits, hidden)
    if reader.flag("multi_query", True, source):
        block = replace(block, kv_heads=1)
        reader.derive("num_key_value_heads", 1, ("multi_query",))
    feed = mlp(reader, traits, hidden, width=width)
    stack, vocab = decoder(reader, traits, attention=lambda _i: block, feed=lambda _i: feed)
    return finish(reader, architecture, traits, stack, vocab, outer)


def stablelm(reader: Reader, architecture: str, _family: str, outer: Reader | None = None) -> Parts:
    """Return StableLM: layer norms with bias, a gated block, one norm fewer where attention runs beside it."""
    source = "transformers 5.24 StableLmConfig"
    if reader.flag("qk_layernorm", False, source):
        raise reader.unsupported("StableLM with a norm per query head", "qk_layernorm false")
    layout: Literal["pre", "parallel"] = "parallel" if reader.flag("use_parallel_residual", False, source) else "pre"
    traits = Traits(source=source, norm="layer", norm_bias=True, layout=layout, qkv_bias="use_qkv_bias", rotary=0.25)
    stack, vocab = decoder(reader, traits)
    return finish(reader, architecture, traits, stack, vocab, outer)


def dbrx(reader: Reader, architecture: str, _family: str, outer: Reader | None = None) -> Parts:
    """Return DBRX: attention and experts described at levels of their own."""
    attention = reader.nested("attn_config", {"kv_n_heads": 1}, "transformers 5.24 DbrxAttentionConfig")
    ffn = reader.nested(
        "ffn_config", {"moe_num_experts": 4, "moe_top_k": 1, "ffn_hidden_size": 3584}, "transformers 5.24 DbrxFFNConfig"
    )
    traits = Traits(source=DBRX, norm="layer", path="transformer.blocks.{}")
    hidden, heads = reader.integer("hidden_size"), reader.integer("num_attention_heads")
    kv = attention.integer("kv_n_heads")
    width = head_width(reader, traits, hidden, heads)
    if heads % kv:
        raise attention.wrong("kv_n_heads", kv, f"a divisor of the {heads} query heads")
    block = GqaAttention(
        hidden=hidden, heads=heads, kv_heads=kv, head_dim=width, v_head_dim=width, rotary_dim=rotary_dim(reader, width),
        path="norm_attn_norm.attn",
    )  # fmt: skip
    act = ffn.raw("ffn_act_fn")
    name = act.get("name") if isinstance(act, Mapping) else None
    experts, top_k = ffn.integer("moe_num_experts"), ffn.integer("moe_top_k")
    if top_k > experts:
        raise ffn.wrong("moe_top_k", top_k, f"at most the {experts} experts")
    routed = Moe(
        hidden=hidden, experts=experts, top_k=top_k, width=ffn.integer("ffn_hidden_size", only=True), gated=True,
        activation=str(name or "silu"), path="ffn",
    )  # fmt: skip
    stack, vocab = decoder(reader, traits, attention=lambda _i: block, feed=lambda _i: routed)
    parts = finish(reader, architecture, traits, stack, vocab, outer)
    parts.readers = (attention, ffn)
    return parts
