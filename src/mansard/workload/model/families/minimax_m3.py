"""MiniMax M3: experts, and attention to blocks of keys that a small scorer picks; with its vision tower.

All of its tensors follow from the configuration. How many keys a query reads is a number of blocks, which no kernel here models, so
its phases are left open.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mansard.core.unknown import Unknown
from mansard.workload.model.decoder import Parts, Traits, activation, gqa, grouped, mlp
from mansard.workload.model.families import towers
from mansard.workload.model.families.dense import finish
from mansard.workload.model.families.moe import MoeTraits, choose, moe_block
from mansard.workload.model.reader import Reader
from mansard.workload.records import Block, Embedding, Layer, Linear, Norm, Stack

SOURCE = "transformers 5.24 MiniMaxM3VLTextConfig"
VISION = "transformers 5.24 MiniMaxM3VLVisionConfig"
GAP = Unknown(
    "how many keys the block-sparse attention of MiniMax M3 reads is not modelled; its parameters are counted",
    ("the keys that a token reads in each layer",),
)


def _flags(reader: Reader, value: Any, key: str, depth: int) -> list[bool]:
    if not isinstance(value, list) or len(value) < depth or any(entry not in (0, 1) for entry in value):
        raise reader.wrong(key, value, f"{depth} entries of 0 or 1")
    return [entry == 1 for entry in value[:depth]]


def _scored(reader: Reader, depth: int) -> tuple[list[bool], int, int]:
    """Return which layers have a scorer, its heads and their width."""
    kinds = reader.per_layer("layer_types", depth, ("full_attention", "minimax_m3_sparse"))
    nested = reader.raw("sparse_attention_config")
    if isinstance(nested, Mapping):
        level = reader.nested("sparse_attention_config")
        level.flag("use_sparse_attention", True, SOURCE)
        for key in (
            "sparse_topk_blocks",
            "sparse_block_size",
            "sparse_score_type",
            "sparse_init_block",
            "sparse_local_block",
        ):
            level.raw(key)
        value_path = level.raw("sparse_disable_index_value")
        which = _flags(level, level.raw("sparse_attention_freq"), "sparse_attention_freq", depth)
        if value_path is not None and any(
            used and not off
            for used, off in zip(which, _flags(level, value_path, "sparse_disable_index_value", depth), strict=True)
        ):
            raise level.unsupported(
                "a scorer with values of its own", "sparse_disable_index_value of 1 on every scored layer"
            )
        return which, level.integer("sparse_num_index_heads"), level.integer("sparse_index_dim")
    if kinds is None:
        raise reader.missing("sparse_attention_config")
    return (
        [kind != "full_attention" for kind in kinds],
        reader.integer("index_n_heads"),
        reader.integer("index_head_dim"),
    )


def _routed(reader: Reader, depth: int) -> list[bool]:
    words = reader.per_layer("mlp_layer_types", depth, ("dense", "sparse"))
    if words is not None:
        return [word == "sparse" for word in words]
    if reader.raw("moe_layer_freq") is None:
        raise reader.missing("mlp_layer_types")
    return _flags(reader, reader.raw("moe_layer_freq"), "moe_layer_freq", depth)


def text(reader: Reader, architecture: str, _family: str, outer: Reader | None = None) -> Parts:
    """Return the parts of the text decoder.

    Source: transformers 5.24 modeling_minimax_m3_vl.py.
    """
    base = Traits(source=SOURCE, qk_norm="head")
    hidden, depth, vocab = (
        reader.integer("hidden_size"),
        reader.integer("num_hidden_layers"),
        reader.integer("vocab_size"),
    )
    if reader.raw("attention_output_gate") is True or reader.raw("qk_norm_type") not in (None, "per_head"):
        raise reader.unsupported(
            "MiniMax M3 with an output gate or another norm of queries", "no gate, qk_norm_type per_head"
        )
    if reader.optional("n_shared_experts", least=0) not in (None, 1):
        raise reader.unsupported("several shared experts in MiniMax M3", "n_shared_experts of 1")
    attention = gqa(reader, base, hidden)
    scored, heads, width = _scored(reader, depth)
    scorer: tuple[Block, ...] = (
        Linear(out=heads * width, into=hidden, path="self_attn.index_q_proj", block="indexer"),
        Linear(out=width, into=hidden, path="self_attn.index_k_proj", block="indexer"),
        Norm(width=width, path="self_attn.index_q_norm"),
        Norm(width=width, path="self_attn.index_k_norm"),
    )
    traits = MoeTraits(
        base=base, width_key="intermediate_size", shared="width", shared_key="shared_intermediate_size", correction=True,
        path="block_sparse_moe",
    )  # fmt: skip
    sparse = _routed(reader, depth)
    dense = None if all(sparse) else mlp(reader, base, hidden, width=reader.integer("dense_intermediate_size"))
    feed = choose(moe_block(reader, traits, hidden), dense, sparse)
    activation(reader, base)
    layers = [
        Layer(
            blocks=(
                Norm(width=hidden, path="input_layernorm"), attention, *(scorer if scored[i] else ()),
                Norm(width=hidden, path="post_attention_layernorm"), feed(i),
            )
        )
        for i in range(depth)
    ]  # fmt: skip
    stack = Stack(
        name="text", hidden=hidden, path="model.layers.{}", groups=grouped(layers), inputs=(Embedding(rows=vocab, width=hidden),),
        outputs=(Norm(width=hidden, path="norm"),),
    )  # fmt: skip
    parts = finish(reader, architecture, base, stack, vocab, outer)
    parts.phase_gap = GAP
    if reader.optional("num_mtp_modules", least=0) or reader.optional("num_nextn_predict_layers", least=0):
        reader.note("the configuration announces MTP modules but does not describe their blocks: they are not counted")
    return parts


def vision(reader: Reader, outer: Reader, text_hidden: int) -> Stack:
    """Return the tower and its two projectors: of patches, then of patches merged over space."""
    hidden, depth = reader.integer("hidden_size"), reader.integer("num_hidden_layers")
    heads, width = reader.integer("num_attention_heads"), reader.integer("intermediate_size")
    if hidden % heads:
        raise reader.wrong("num_attention_heads", heads, f"a divisor of {hidden}")
    traits = towers.VitTraits()
    layer = towers.vit_layer(traits, hidden, heads, width, reader.text("hidden_act", "gelu", VISION))
    merging = reader.raw("img_token_compression_config")
    level = reader.nested("img_token_compression_config") if isinstance(merging, Mapping) else reader
    side, frames = level.integer("spatial_merge_size", 2, VISION), level.integer("temporal_patch_size", 2, VISION)
    patch, channels = reader.integer("patch_size"), reader.integer("num_channels", 3, VISION)
    middle, rows, path = outer.integer("projector_hidden_size", 6144, VISION), 1 / side**2, "multi_modal_projector"
    outputs: tuple[Block, ...] = (
        Linear(out=middle, into=hidden, path=f"{path}.linear_1", block="projector", bias=True),
        Linear(out=text_hidden, into=middle, path=f"{path}.linear_2", block="projector", bias=True),
        Linear(out=middle, into=text_hidden * side**2, path="patch_merge_mlp.linear_1", block="projector", bias=True, rows_per_token=rows),
        Linear(out=text_hidden, into=middle, path="patch_merge_mlp.linear_2", block="projector", bias=True, rows_per_token=rows),
    )  # fmt: skip
    return Stack(
        name="vision", hidden=hidden, path="vision_tower.layers.{}", groups=grouped([layer] * depth), outputs=outputs,
        inputs=(
            Linear(out=hidden, into=channels * frames * patch**2, path="patch_embedding", block="patch_embedding"),
            towers.vit_norm(traits, hidden, "pre_layrnorm"),
        ),
    )  # fmt: skip


def joined(reader: Reader, architecture: str, _family: str, _build: object) -> Parts:
    """Return text decoder and tower."""
    level = reader.nested("text_config")
    parts = text(level, architecture, "minimax_m3", reader)
    tower = reader.child("vision_config", required=False)
    parts.readers = (level,)
    if tower is None:
        reader.note("no vision_config: only the text decoder is counted")
        return parts
    parts.towers = (vision(tower, reader, parts.text.hidden),)
    parts.readers = (level, tower)
    return parts
