"""Vision towers and their projectors: one function per family of tower, each returns a stack."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mansard.workload.model.decoder import grouped
from mansard.workload.model.reader import Reader
from mansard.workload.records import (
    Block,
    Convolution,
    Embedding,
    GqaAttention,
    Layer,
    Linear,
    Mlp,
    Norm,
    Parameters,
    Stack,
)

CLIP_SOURCE = "transformers 5.24 CLIPVisionConfig"
CLIP_DEFAULTS: Mapping[str, object] = {
    "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12, "num_channels": 3,
    "image_size": 224, "patch_size": 32, "hidden_act": "quick_gelu", "projection_dim": 512,
}  # fmt: skip
SIGLIP_SOURCE = "transformers 5.24 SiglipVisionConfig"
SIGLIP_DEFAULTS: Mapping[str, object] = {
    "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12, "num_channels": 3,
    "image_size": 224, "patch_size": 16, "hidden_act": "gelu_pytorch_tanh", "vision_use_head": True,
}  # fmt: skip
QWEN25_SOURCE = "transformers 5.24 Qwen2_5_VLVisionConfig"
QWEN25_DEFAULTS: Mapping[str, object] = {
    "depth": 32, "intermediate_size": 3420, "num_heads": 16, "in_channels": 3, "patch_size": 14, "spatial_merge_size": 2,
    "temporal_patch_size": 2, "out_hidden_size": 3584, "window_size": 112, "hidden_act": "silu", "hidden_size": 3584,
    "fullatt_block_indexes": (7, 15, 23, 31),
}  # fmt: skip
QWEN2_SOURCE = "transformers 5.24 Qwen2VLVisionConfig"
QWEN2_DEFAULTS: Mapping[str, object] = {
    "depth": 32, "embed_dim": 1280, "hidden_size": 3584, "mlp_ratio": 4, "num_heads": 16, "in_channels": 3, "patch_size": 14,
    "spatial_merge_size": 2, "temporal_patch_size": 2, "hidden_act": "quick_gelu",
}  # fmt: skip
QWEN3_SOURCE = "transformers 5.24 Qwen3VLVisionConfig"
QWEN3_DEFAULTS: Mapping[str, object] = {
    "depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "num_heads": 16, "in_channels": 3, "patch_size": 16,
    "spatial_merge_size": 2, "temporal_patch_size": 2, "out_hidden_size": 3584, "num_position_embeddings": 2304,
    "deepstack_visual_indexes": (8, 16, 24), "hidden_act": "gelu_pytorch_tanh",
}  # fmt: skip
PIXTRAL_SOURCE = "transformers 5.24 PixtralVisionConfig"
PIXTRAL_DEFAULTS: Mapping[str, object] = {
    "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16, "num_channels": 3,
    "image_size": 1024, "patch_size": 16, "hidden_act": "gelu",
}  # fmt: skip
GLM_SOURCE = "transformers 5.24 Glm4vMoeVisionConfig"
GLM_DEFAULTS: Mapping[str, object] = {
    "depth": 24, "hidden_size": 1536, "intermediate_size": 13696, "num_heads": 12, "in_channels": 3, "patch_size": 14,
    "image_size": 336, "spatial_merge_size": 2, "temporal_patch_size": 2, "out_hidden_size": 4096, "hidden_act": "silu",
    "attention_bias": False,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class VitTraits:
    """What the layers of a vision tower are made of."""

    norm: str = "layer"
    gated: bool = False
    qkv_bias: bool = True
    out_bias: bool = True
    mlp_bias: bool = True
    sandwich: bool = False
    qk_norm: bool = False


def vit_norm(traits: VitTraits, width: int, path: str) -> Norm:
    """Return a norm of the tower's kind; layer norms of towers add a bias."""
    layer = traits.norm == "layer"
    return Norm(width=width, path=path, kind="layer" if layer else "rms", bias=layer)


def vit_layer(
    traits: VitTraits,
    hidden: int,
    heads: int,
    width: int,
    act: str,
    *,
    head_dim: int | None = None,
    chunk: int | None = None,
) -> Layer:
    """Return one layer of a vision tower: bidirectional attention and a feed-forward block."""
    dim = hidden // heads if head_dim is None else head_dim
    attention = GqaAttention(
        hidden=hidden, heads=heads, kv_heads=heads, head_dim=dim, v_head_dim=dim, causal=False, path="attn", chunk=chunk,
        q_bias=traits.qkv_bias, k_bias=traits.qkv_bias, v_bias=traits.qkv_bias, out_bias=traits.out_bias,
        qk_norm="head" if traits.qk_norm else "none", v_norm=traits.qk_norm,
    )  # fmt: skip
    feed = Mlp(
        hidden=hidden, width=width, gated=traits.gated, activation=act, bias=traits.mlp_bias, out_bias=traits.mlp_bias
    )
    one, two = vit_norm(traits, hidden, "norm1"), vit_norm(traits, hidden, "norm2")
    if traits.sandwich:
        after = (vit_norm(traits, hidden, "norm3"), vit_norm(traits, hidden, "norm4"))
        return Layer(blocks=(one, attention, two, after[0], feed, after[1]))
    return Layer(blocks=(one, attention, two, feed))


def _heads(reader: Reader, hidden: int, key: str = "num_attention_heads") -> int:
    heads = reader.integer(key, only=key == "num_heads")
    if hidden % heads:
        raise reader.wrong("hidden_size", hidden, f"a multiple of the {heads} heads")
    return heads


def square(reader: Reader, key: str) -> tuple[int, int]:
    """Return a size given as one number or as two."""
    value = reader.raw(key)
    if value is None:
        number = reader.integer(key)
        return number, number
    if (
        isinstance(value, list)
        and len(value) == 2
        and all(isinstance(v, int) and not isinstance(v, bool) and v > 0 for v in value)
    ):
        return value[0], value[1]
    number = reader.integer(key)
    return number, number


def _patches(reader: Reader) -> int:
    (ih, iw), (ph, pw) = square(reader, "image_size"), square(reader, "patch_size")
    count = (ih // ph) * (iw // pw)
    if count < 1:
        raise reader.wrong("patch_size", (ph, pw), f"at most the image ({ih} x {iw})")
    reader.derive("patches", count, ("image_size", "patch_size"), "(image_size // patch_size)^2")
    return count


def _patch_conv(reader: Reader, hidden: int, *, channels_key: str, bias: bool) -> Convolution:
    ph, pw = square(reader, "patch_size")
    channels = reader.integer(channels_key)
    return Convolution(
        out=hidden,
        into=channels,
        kernel=(ph, pw),
        stride=(ph, pw),
        path="patch_embed",
        block="patch_embedding",
        bias=bias,
    )


def _cube(reader: Reader, hidden: int, *, bias: bool) -> Convolution:
    """Return the patch convolution of towers that take two frames at once."""
    time = reader.integer("temporal_patch_size")
    ph, pw = square(reader, "patch_size")
    channels = reader.integer("in_chans" if reader.has("in_chans") else "in_channels")
    kernel = (time, ph, pw)
    return Convolution(
        out=hidden,
        into=channels,
        kernel=kernel,
        stride=kernel,
        path="patch_embed.proj",
        block="patch_embedding",
        bias=bias,
    )


def clip_vision(reader: Reader, *, keep_post_norm: bool = True) -> Stack:
    """Return a CLIP vision tower: class token, learned positions, a norm before and after."""
    hidden = reader.integer("hidden_size")
    depth = reader.integer("num_hidden_layers")
    traits = VitTraits()
    layer = vit_layer(
        traits, hidden, _heads(reader, hidden), reader.integer("intermediate_size"), reader.text("hidden_act")
    )
    inputs: tuple[Block, ...] = (
        Parameters(path="class_embedding", shape=(hidden,), block="patch_embedding"),
        _patch_conv(reader, hidden, channels_key="num_channels", bias=False),
        Embedding(rows=_patches(reader) + 1, width=hidden, path="position_embedding", block="position_embedding"),
        vit_norm(traits, hidden, "pre_layernorm"),
    )
    outputs = (vit_norm(traits, hidden, "post_layernorm"),) if keep_post_norm else ()
    return Stack(
        name="vision",
        hidden=hidden,
        path="vision_tower.encoder.layers.{}",
        groups=grouped([layer] * depth),
        inputs=inputs,
        outputs=outputs,
    )


def siglip_vision(reader: Reader) -> Stack:
    """Return a SigLIP vision tower; its pooling head only where `vision_use_head` says so."""
    hidden = reader.integer("hidden_size")
    depth = reader.integer("num_hidden_layers")
    traits = VitTraits()
    width, act = reader.integer("intermediate_size"), reader.text("hidden_act")
    heads = _heads(reader, hidden)
    layer = vit_layer(traits, hidden, heads, width, act)
    inputs: tuple[Block, ...] = (
        _patch_conv(reader, hidden, channels_key="num_channels", bias=True),
        Embedding(rows=_patches(reader), width=hidden, path="position_embedding", block="position_embedding"),
    )
    outputs: tuple[Block, ...] = (vit_norm(traits, hidden, "post_layernorm"),)
    if reader.flag("vision_use_head"):
        pool = vit_layer(traits, hidden, heads, width, act).blocks
        outputs += (Parameters(path="head.probe", shape=(1, 1, hidden), block="head"), pool[1], pool[2], pool[3])
    return Stack(
        name="vision",
        hidden=hidden,
        path="vision_tower.encoder.layers.{}",
        groups=grouped([layer] * depth),
        inputs=inputs,
        outputs=outputs,
    )


def pixtral_vision(reader: Reader) -> Stack:
    """Return a Pixtral tower: RoPE instead of position tables, gated blocks without biases."""
    hidden = reader.integer("hidden_size")
    depth = reader.integer("num_hidden_layers")
    traits = VitTraits(norm="rms", gated=True, qkv_bias=False, out_bias=False, mlp_bias=False)
    width, act = reader.integer("intermediate_size"), reader.text("hidden_act")
    layer = vit_layer(traits, hidden, _heads(reader, hidden), width, act, head_dim=reader.optional("head_dim"))
    inputs: tuple[Block, ...] = (
        _patch_conv(reader, hidden, channels_key="num_channels", bias=False), vit_norm(traits, hidden, "ln_pre"),
    )  # fmt: skip
    groups = grouped([layer] * depth)
    return Stack(name="vision", hidden=hidden, path="vision_tower.transformer.layers.{}", groups=groups, inputs=inputs)


def qwen2_vision(reader: Reader, text_hidden: int) -> Stack:
    """Return the tower of Qwen2-VL; `hidden_size` is the width it writes, `embed_dim` its own."""
    hidden = reader.integer("embed_dim")
    depth = reader.integer("depth")
    traits = VitTraits()
    width = int(hidden * reader.number("mlp_ratio", 4, QWEN2_SOURCE))
    layer = vit_layer(traits, hidden, _heads(reader, hidden, "num_heads"), width, reader.text("hidden_act"))
    out = reader.integer("hidden_size")
    outputs = (vit_norm(traits, hidden, "merger.ln_q"), *merger(reader, hidden, out))
    _check_width(reader, "hidden_size", out, text_hidden)
    return Stack(
        name="vision", hidden=hidden, path="visual.blocks.{}", groups=grouped([layer] * depth),
        inputs=(_cube(reader, hidden, bias=False),), outputs=outputs,
    )  # fmt: skip


def _check_width(reader: Reader, key: str, out: int, text_hidden: int) -> None:
    if out != text_hidden:
        raise reader.wrong(key, out, f"{text_hidden}, the width of the text decoder")


def merger(reader: Reader, hidden: int, out: int) -> tuple[Block, ...]:
    """Return the two projections that merge patches and write the text width."""
    side = reader.integer("spatial_merge_size")
    wide = hidden * side**2
    rows = 1 / side**2
    return (
        Linear(out=wide, into=wide, path="merger.mlp.0", block="projector", bias=True, rows_per_token=rows),
        Linear(out=out, into=wide, path="merger.mlp.2", block="projector", bias=True, rows_per_token=rows),
    )


def qwen25_vision(reader: Reader, text_hidden: int) -> Stack:
    """Return the tower of Qwen2.5-VL: gated blocks, windows on all layers but the listed ones."""
    hidden = reader.integer("hidden_size")
    depth = reader.integer("depth")
    out = reader.integer("out_hidden_size")
    _check_width(reader, "out_hidden_size", out, text_hidden)
    traits = VitTraits(norm="rms", gated=True)
    width, act, heads = (
        reader.integer("intermediate_size"),
        reader.text("hidden_act"),
        _heads(reader, hidden, "num_heads"),
    )
    full = reader.array("fullatt_block_indexes") or []
    patch, _ = square(reader, "patch_size")
    seen = (reader.integer("window_size") // patch) ** 2
    reader.derive(
        "window_patches", seen, ("window_size", "patch_size"), "(window_size // patch_size)^2 patches see each other"
    )
    layers = [vit_layer(traits, hidden, heads, width, act, chunk=None if i in full else seen) for i in range(depth)]
    outputs = (vit_norm(traits, hidden, "merger.ln_q"), *merger(reader, hidden, out))
    return Stack(
        name="vision", hidden=hidden, path="visual.blocks.{}", groups=grouped(layers),
        inputs=(_cube(reader, hidden, bias=False),), outputs=outputs,
    )  # fmt: skip


def qwen3_vision(reader: Reader, text_hidden: int) -> Stack:
    """Return the tower of Qwen3-VL and Qwen3.5: learned positions, one merger, and one more per deep-stack layer."""
    hidden = reader.integer("hidden_size")
    depth = reader.integer("depth")
    out = reader.integer("out_hidden_size")
    _check_width(reader, "out_hidden_size", out, text_hidden)
    traits = VitTraits()
    heads = _heads(reader, hidden, "num_heads")
    layer = vit_layer(traits, hidden, heads, reader.integer("intermediate_size"), reader.text("hidden_act"))
    positions = reader.integer("num_position_embeddings")
    inputs: tuple[Block, ...] = (
        _cube(reader, hidden, bias=True),
        Embedding(rows=positions, width=hidden, path="pos_embed", block="position_embedding"),
    )
    outputs: tuple[Block, ...] = (vit_norm(traits, hidden, "merger.norm"), *merger(reader, hidden, out))
    side = reader.integer("spatial_merge_size")
    for index in range(len(reader.array("deepstack_visual_indexes") or [])):
        outputs += (vit_norm(traits, hidden * side**2, f"deepstack.{index}.norm"), *merger(reader, hidden, out))
    return Stack(
        name="vision",
        hidden=hidden,
        path="visual.blocks.{}",
        groups=grouped([layer] * depth),
        inputs=inputs,
        outputs=outputs,
    )


def glm_vision(reader: Reader, text_hidden: int) -> Stack:
    """Return the tower of GLM-4.5V: feed-forward of the output width, a strided convolution, a gated merger."""
    hidden = reader.integer("hidden_size")
    depth = reader.integer("depth")
    out = reader.integer("out_hidden_size")
    _check_width(reader, "out_hidden_size", out, text_hidden)
    bias = reader.flag("attention_bias")
    traits = VitTraits(norm="rms", gated=True, qkv_bias=bias, out_bias=False, mlp_bias=False)
    act = reader.text("hidden_act")
    layer = vit_layer(traits, hidden, _heads(reader, hidden, "num_heads"), out, act)
    reader.derive("mlp_width", out, ("out_hidden_size",), "the tower's feed-forward is as wide as its output")
    side = reader.integer("spatial_merge_size")
    rows = 1 / side**2
    wide = reader.integer("intermediate_size")
    inputs: tuple[Block, ...] = (
        _cube(reader, hidden, bias=True),
        vit_norm(traits, hidden, "post_conv_layernorm"),
        Embedding(
            rows=_patches(reader), width=hidden, path="embeddings.position_embedding", block="position_embedding"
        ),
    )
    outputs: tuple[Block, ...] = (
        vit_norm(traits, hidden, "post_layernorm"),
        Convolution(
            out=out, into=hidden, kernel=(side, side), stride=(side, side), path="downsample", block="projector"
        ),
        Linear(out=out, into=out, path="merger.proj", block="projector", rows_per_token=rows),
        Norm(width=out, path="merger.post_projection_norm", kind="layer", bias=True),
        Linear(out=wide, into=out, path="merger.gate_proj", block="projector", rows_per_token=rows),
        Linear(out=wide, into=out, path="merger.up_proj", block="projector", rows_per_token=rows),
        Linear(out=out, into=wide, path="merger.down_proj", block="projector", rows_per_token=rows),
    )
    return Stack(
        name="vision",
        hidden=hidden,
        path="visual.blocks.{}",
        groups=grouped([layer] * depth),
        inputs=inputs,
        outputs=outputs,
    )


def kimi_vision(reader: Reader, text_hidden: int) -> Stack:
    """Return the tower of Kimi K2.5 (MoonViT): learned grid of positions, a merger of 2 x 2 patches."""
    hidden = reader.integer("vt_hidden_size")
    depth = reader.integer("vt_num_hidden_layers")
    heads = reader.integer("vt_num_attention_heads")
    out = reader.integer("text_hidden_size")
    _check_width(reader, "text_hidden_size", out, text_hidden)
    traits = VitTraits()
    if hidden % heads:
        raise reader.wrong("vt_hidden_size", hidden, f"a multiple of the {heads} heads")
    act = reader.text("projector_hidden_act")
    layer = vit_layer(traits, hidden, heads, reader.integer("vt_intermediate_size"), act)
    rows = reader.integer("init_pos_emb_height") * reader.integer("init_pos_emb_width")
    kernel = square(reader, "merge_kernel_size")
    wide = hidden * kernel[0] * kernel[1]
    reader.assume("in_channels", 3, "Kimi K2.5 MoonViT patch convolution, three colours")
    ph, pw = square(reader, "patch_size")
    inputs: tuple[Block, ...] = (
        Convolution(
            out=hidden, into=3, kernel=(ph, pw), stride=(ph, pw), path="patch_embed.proj", block="patch_embedding"
        ),
        Embedding(rows=rows, width=hidden, path="patch_embed.pos_emb", block="position_embedding"),
    )
    share = 1 / (kernel[0] * kernel[1])
    outputs: tuple[Block, ...] = (
        vit_norm(traits, hidden, "encoder.final_layernorm"),
        vit_norm(traits, reader.integer("mm_hidden_size"), "mm_projector.pre_norm"),
        Linear(out=wide, into=wide, path="mm_projector.proj.0", block="projector", bias=True, rows_per_token=share),
        Linear(out=out, into=wide, path="mm_projector.proj.2", block="projector", bias=True, rows_per_token=share),
    )
    return Stack(
        name="vision",
        hidden=hidden,
        path="vision_tower.encoder.blocks.{}",
        groups=grouped([layer] * depth),
        inputs=inputs,
        outputs=outputs,
    )


def gemma4_vision(reader: Reader, text_hidden: int) -> Stack:
    """Return the tower of Gemma 4: sandwich norms, gated blocks, two position tables, a pooled projection."""
    hidden = reader.integer("hidden_size")
    depth = reader.integer("num_hidden_layers")
    heads = reader.integer("num_attention_heads")
    kv = reader.optional("num_key_value_heads")
    if kv not in (None, heads):
        raise reader.unsupported(
            "a Gemma 4 vision tower with grouped keys", "num_key_value_heads equal to num_attention_heads"
        )
    if reader.raw("use_clipped_linears") is True:
        reader.note("the vision tower clips its linear layers; the clip bounds are buffers and not counted")
    traits = VitTraits(
        norm="rms", gated=True, qkv_bias=False, out_bias=False, mlp_bias=False, sandwich=True, qk_norm=True
    )
    layer = vit_layer(
        traits,
        hidden,
        heads,
        reader.integer("intermediate_size"),
        reader.text("hidden_activation"),
        head_dim=reader.integer("head_dim"),
    )
    ph, pw = square(reader, "patch_size")
    pool = reader.integer("pooling_kernel_size")
    rows = reader.integer("position_embedding_size")
    inputs: tuple[Block, ...] = (
        Linear(out=hidden, into=3 * ph * pw, path="patch_embedder.input_proj", block="patch_embedding"),
        Parameters(
            path="patch_embedder.position_embedding_table",
            shape=(2, rows, hidden),
            block="position_embedding",
            role="embedding",
        ),
    )
    reader.derive("patch_width", 3 * ph * pw, ("patch_size",), "three colours x patch_size^2")
    outputs: tuple[Block, ...] = (
        Norm(width=hidden, path="embed_vision.embedding_pre_projection_norm", scale=False),
        Linear(
            out=text_hidden,
            into=hidden,
            path="embed_vision.embedding_projection",
            block="projector",
            rows_per_token=1 / pool**2,
        ),
    )
    return Stack(
        name="vision",
        hidden=hidden,
        path="vision_tower.encoder.layers.{}",
        groups=grouped([layer] * depth),
        inputs=inputs,
        outputs=outputs,
    )
