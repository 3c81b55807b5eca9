"""Decoders with latent attention: DeepSeek V2, V3, V3.2, Kimi K2 and what is built on them."""

from __future__ import annotations

from dataclasses import replace

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
    layered = _indexed_layers(reader, block, depth, source)
    if routed is None:
        assert dense is not None
        stack, vocab = decoder(reader, base, attention=lambda i: layered[i])
    else:
        stack, vocab = decoder(reader, base, attention=lambda i: layered[i], feed=choose(routed, dense, sparse))
    parts = finish(reader, architecture, base, stack, vocab, outer)
    count = reader.optional("num_nextn_predict_layers", least=0, absent="no MTP layers") or 0
    if count and routed is not None:
        parts.mtp = mtp_stack(hidden, [_mtp_layer(hidden, block, routed)] * count, "model.layers.{}")
        parts.mtp_heads = count
        activation(reader, base)
    return parts


def _indexed_layers(reader: Reader, block: MlaAttention, depth: int, source: str) -> list[MlaAttention]:
    """Return the attention of each layer: some have no scorer of their own and reuse the keys an earlier one picked.

    Source: transformers 5.24 GlmMoeDsaConfig: `indexer_types`, else `index_topk_pattern`, else frequency and offset.
    """
    if block.indexer is None:
        return [block] * depth
    kinds = reader.per_layer("indexer_types", depth, ("full", "shared"))
    pattern = reader.raw("index_topk_pattern")
    every = reader.integer("index_topk_freq", 1, source)
    offset = reader.integer("index_skip_topk_offset", 2, source, least=0) if every > 1 else 0
    reader.raw("index_share_for_mtp_iteration")  # the MTP layer is run again with the keys it picked; no tensor differs
    if kinds is None and isinstance(pattern, str):
        if len(pattern) != depth or set(pattern) - set("FS"):
            raise reader.wrong("index_topk_pattern", pattern, f"{depth} letters F or S")
        kinds = ["full" if letter == "F" else "shared" for letter in pattern]
    elif kinds is None and pattern is not None:
        kinds = reader.per_layer("index_topk_pattern", depth, ("full", "shared"))
    if kinds is None:
        kinds = ["full" if max(i - offset + 1, 0) % every == 0 else "shared" for i in range(depth)]
        if every > 1:
            reader.derive(
                "indexer_types", f"{kinds.count('full')} of {depth} full", ("index_topk_freq", "index_skip_topk_offset")
            )
    if kinds[0] != "full":
        raise reader.wrong("indexer_types", kinds[0], "full in the first layer, there is none before it")
    shared = replace(block, indexer=None, shared_top_k=block.indexer.top_k)
    return [block if kind == "full" else shared for kind in kinds]


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
