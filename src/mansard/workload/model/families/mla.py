"""Decoders with latent attention: DeepSeek V2, V3, V3.2, Kimi K2 and what is built on them."""

from __future__ import annotations

from mansard.workload.model.decoder import Parts, Traits, activation, decoder, mlp
from mansard.workload.model.families.dense import finish, mtp_stack
from mansard.workload.model.families.moe import MoeTraits, choose, moe_block, routed_layers
from mansard.workload.model.reader import Reader
from mansard.workload.records import Block, Linear, MlaAttention, Moe, Norm, SparseIndexer

SOURCES = {
    "deepseek_v2": "transformers 5.24 DeepseekV2Config",
    "deepseek_v3": "transformers 5.24 DeepseekV3Config",
    "deepseek_v32": "transformers 5.24 DeepseekV32Config",
    "kimi_k2": "moonshotai/Kimi-K2-Instruct configuration_deepseek.py",
    "glm_moe_dsa": "transformers 5.24 GlmMoeDsaConfig",
    "glm4_moe_lite": "transformers 5.24 Glm4MoeLiteConfig",
}
WITH_INDEXER = frozenset({"deepseek_v32", "glm_moe_dsa"})


def attention(reader: Reader, source: str, hidden: int, *, indexed: bool) -> MlaAttention:
    """Return latent attention; a null `q_lora_rank` projects queries directly, a missing one is an error."""
    heads = reader.integer("num_attention_heads")
    if "q_lora_rank" not in reader.values:
        raise reader.missing("q_lora_rank")
    q_rank = reader.optional("q_lora_rank", least=0) or None
    indexer = None
    if indexed:
        if q_rank is None:
            raise reader.missing("q_lora_rank")
        indexer = SparseIndexer(
            hidden=hidden, query_in=q_rank, heads=reader.integer("index_n_heads"), head_dim=reader.integer("index_head_dim"),
            top_k=reader.integer("index_topk"),
        )  # fmt: skip
    kv = reader.optional("num_key_value_heads")
    if kv is not None and kv != heads:
        reader.note(f"num_key_value_heads is {kv}; latent attention expands {heads} key heads from one latent")
    return MlaAttention(
        hidden=hidden, heads=heads, q_rank=q_rank, kv_rank=reader.integer("kv_lora_rank"),
        nope_dim=reader.integer("qk_nope_head_dim"), rope_dim=reader.integer("qk_rope_head_dim"),
        v_dim=reader.integer("v_head_dim"), bias=reader.flag("attention_bias", False, source), indexer=indexer,
    )  # fmt: skip


def build(reader: Reader, architecture: str, family: str, outer: Reader | None = None) -> Parts:
    """Return the parts of a decoder with latent attention, its MTP layers included."""
    source = SOURCES[family]
    base = Traits(source=source)
    hidden = reader.integer("hidden_size")
    depth = reader.integer("num_hidden_layers")
    block = attention(reader, source, hidden, indexed=family in WITH_INDEXER)
    learned_choice = family != "deepseek_v2" and reader.text("topk_method", "noaux_tc", source) == "noaux_tc"
    traits = MoeTraits(base=base, dense="first_k_freq", shared="count", correction=learned_choice)
    if family == "deepseek_v2" and reader.raw("n_routed_experts") is None:
        raise reader.missing("n_routed_experts")
    sparse = routed_layers(reader, traits, depth)
    routed = moe_block(reader, traits, hidden) if any(sparse) else None
    dense = mlp(reader, base, hidden) if not all(sparse) else None
    if routed is None:
        assert dense is not None
        stack, vocab = decoder(reader, base, attention=lambda _i: block)
    else:
        stack, vocab = decoder(reader, base, attention=lambda _i: block, feed=choose(routed, dense, sparse))
    parts = finish(reader, architecture, base, stack, vocab, outer)
    count = reader.optional("num_nextn_predict_layers", least=0, absent="no MTP layers") or 0
    if count and routed is not None:
        parts.mtp = mtp_stack(hidden, [_mtp_layer(hidden, block, routed)] * count, "model.layers.{}")
        parts.mtp_heads = count
        activation(reader, base)
    return parts


def _mtp_layer(hidden: int, attention_block: MlaAttention, routed: Moe) -> tuple[Block, ...]:
    """One layer of DeepSeek's multi-token prediction: two norms, a projection of both inputs, a decoder layer, a norm.

    Source: DeepSeek-V3 README_WEIGHTS, section MTP modules; the table and the head are shared with the main model.
    """
    return (
        Norm(width=hidden, path="enorm"),
        Norm(width=hidden, path="hnorm"),
        Linear(out=hidden, into=2 * hidden, path="eh_proj", block="mtp"),
        Norm(width=hidden, path="input_layernorm"),
        attention_block,
        Norm(width=hidden, path="post_attention_layernorm"),
        routed,
        Norm(width=hidden, path="shared_head.norm"),
    )
