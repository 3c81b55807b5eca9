"""Models of several towers: which nested level is the text decoder, which tower reads images, what joins them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from mansard.workload.model.decoder import Parts, grouped
from mansard.workload.model.families import minimax_m3, towers
from mansard.workload.model.reader import Reader
from mansard.workload.records import Block, Embedding, Linear, Norm, Parameters, Stack

LLAMA_DEFAULTS: Mapping[str, object] = {
    "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32,
    "hidden_act": "silu", "max_position_embeddings": 2048, "attention_bias": False, "mlp_bias": False,
}  # fmt: skip
GEMMA3_DEFAULTS: Mapping[str, object] = {
    "vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 256, "hidden_act": "gelu_pytorch_tanh", "max_position_embeddings": 131072,
    "attention_bias": False, "sliding_window": 4096,
}  # fmt: skip
MISTRAL_DEFAULTS: Mapping[str, object] = {
    "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "hidden_act": "silu", "max_position_embeddings": 131072, "sliding_window": 4096,
}  # fmt: skip
NESTED_DEFAULTS: dict[str, tuple[Mapping[str, object], str]] = {
    "llama": (LLAMA_DEFAULTS, "transformers 5.24 LlamaConfig"),
    "gemma3_text": (GEMMA3_DEFAULTS, "transformers 5.24 Gemma3TextConfig"),
    "mistral": (MISTRAL_DEFAULTS, "transformers 5.24 MistralConfig"),
}

BuildText = Callable[[Reader, str, str, Reader | None], Parts]


def text_level(reader: Reader, build: BuildText, architecture: str, family: str) -> tuple[Parts, Reader]:
    """Return the text decoder of a nested configuration, and its level.

    Keys that are missing at the nested level take the documented class default, since writers leave those out; each one
    is recorded as assumed.
    """
    bare = reader.nested("text_config")
    declared = bare.values.get("model_type")
    kind = declared if isinstance(declared, str) and declared else family
    if kind != declared:
        bare.assume("model_type", family, f"the text decoder of {architecture}")
    defaults, source = NESTED_DEFAULTS.get(kind, ({}, ""))
    level = Reader(bare.values, reader.where, reader.log, bare.path, defaults, source)
    parts = build(level, architecture, kind, reader)
    return parts, level


def _projected(tower: Stack, blocks: tuple[Block, ...]) -> Stack:
    return replace(tower, outputs=tower.outputs + blocks)


def llava(reader: Reader, architecture: str, family: str, build: BuildText) -> Parts:
    """Return LLaVA: a CLIP or SigLIP tower, a projector of two layers, any text decoder."""
    parts, level = text_level(reader, build, architecture, "llama")
    vision = reader.nested("vision_config")
    kind = vision.text("model_type", "clip_vision_model", "transformers 5.24 LlavaConfig")
    if kind == "clip_vision_model":
        vision = reader.nested("vision_config", towers.CLIP_DEFAULTS, towers.CLIP_SOURCE)
        tower = towers.clip_vision(vision)
    elif kind == "siglip_vision_model":
        vision = reader.nested("vision_config", towers.SIGLIP_DEFAULTS, towers.SIGLIP_SOURCE)
        tower = towers.siglip_vision(vision)
    else:
        raise reader.unsupported(f"a LLaVA tower of type {kind!r}", "clip_vision_model or siglip_vision_model")
    act = reader.text("projector_hidden_act", "gelu", "transformers 5.24 LlavaConfig")
    layers = reader.raw("vision_feature_layer")
    count = len(layers) if isinstance(layers, list) else 1
    bias = reader.flag("multimodal_projector_bias", True, "transformers 5.24 LlavaConfig")
    reader.note(f"projector with {act}; the tower is counted whole, though its last layers may not be used")
    hidden = parts.text.hidden
    parts.towers = (
        _projected(
            tower,
            (
                Linear(
                    out=hidden,
                    into=tower.hidden * count,
                    path="multi_modal_projector.linear_1",
                    block="projector",
                    bias=bias,
                ),
                Linear(out=hidden, into=hidden, path="multi_modal_projector.linear_2", block="projector", bias=bias),
            ),
        ),
    )
    parts.readers = (level, vision)
    if family == "llava_next":
        raise reader.unsupported("llava_next adds learned image separators", "the llava form, or an added family")
    return parts


def mistral3(reader: Reader, architecture: str, _family: str, build: BuildText) -> Parts:
    """Return Mistral 3: a Pixtral tower, a merger of 2 x 2 patches, a projector of two layers."""
    source = "transformers 5.24 Mistral3Config"
    parts, level = text_level(reader, build, architecture, "mistral")
    vision = reader.nested("vision_config", towers.PIXTRAL_DEFAULTS, towers.PIXTRAL_SOURCE)
    tower = towers.pixtral_vision(vision)
    side = reader.integer("spatial_merge_size", 2, source)
    bias = reader.flag("multimodal_projector_bias", False, source)
    hidden, inner, rows = parts.text.hidden, tower.hidden, 1 / side**2
    path = "multi_modal_projector"
    blocks: tuple[Block, ...] = (
        Norm(width=inner, path=f"{path}.norm"),
        Linear(
            out=inner,
            into=inner * side**2,
            path=f"{path}.patch_merger.merging_layer",
            block="projector",
            rows_per_token=rows,
        ),
        Linear(out=hidden, into=inner, path=f"{path}.linear_1", block="projector", bias=bias, rows_per_token=rows),
        Linear(out=hidden, into=hidden, path=f"{path}.linear_2", block="projector", bias=bias, rows_per_token=rows),
    )
    reader.raw("projector_hidden_act")
    parts.towers = (_projected(tower, blocks),)
    parts.readers = (level, vision)
    return parts


def gemma3(reader: Reader, architecture: str, _family: str, build: BuildText) -> Parts:
    """Return Gemma 3: a SigLIP tower without head, a norm and one projection of pooled patches."""
    parts, level = text_level(reader, build, architecture, "gemma3_text")
    vision = reader.nested("vision_config", towers.SIGLIP_DEFAULTS, towers.SIGLIP_SOURCE)
    tower = towers.siglip_vision(vision)
    tokens = reader.integer("mm_tokens_per_image", 256, "transformers 5.24 Gemma3Config")
    patches = next(b.rows for b in tower.inputs if hasattr(b, "rows"))
    rows = tokens / patches
    parts.towers = (
        _projected(
            tower,
            (
                Norm(width=tower.hidden, path="multi_modal_projector.mm_soft_emb_norm"),
                Linear(
                    out=parts.text.hidden,
                    into=tower.hidden,
                    path="multi_modal_projector.mm_input_projection",
                    block="projector",
                    rows_per_token=rows,
                ),
            ),
        ),
    )
    parts.readers = (level, vision)
    return parts


def qwen_vl_flat(reader: Reader, architecture: str, family: str, build: BuildText) -> Parts:
    """Return Qwen2-VL and Qwen2.5-VL: text keys beside `vision_config`, or in `text_config` in newer files."""
    if reader.has("text_config"):
        parts, level = text_level(reader, build, architecture, "qwen2")
        readers: tuple[Reader, ...] = (level,)
    else:
        parts = build(reader, architecture, "qwen2", None)
        readers = ()
    if family == "qwen2_vl":
        vision = reader.nested("vision_config", towers.QWEN2_DEFAULTS, towers.QWEN2_SOURCE)
        tower = towers.qwen2_vision(vision, parts.text.hidden)
    else:
        vision = reader.nested("vision_config", towers.QWEN25_DEFAULTS, towers.QWEN25_SOURCE)
        tower = towers.qwen25_vision(vision, parts.text.hidden)
    parts.towers = (tower,)
    parts.readers = (*readers, vision)
    return parts


def qwen3_vl(reader: Reader, architecture: str, family: str, build: BuildText) -> Parts:
    """Return Qwen3-VL and Qwen3.5: a nested decoder and a tower with learned positions."""
    text = {"qwen3_vl": "qwen3_vl_text", "qwen3_vl_moe": "qwen3_vl_moe_text", "qwen3_5": "qwen3_5_text"}
    parts, level = text_level(reader, build, architecture, text.get(family, "qwen3_5_moe_text"))
    vision = reader.child("vision_config", towers.QWEN3_DEFAULTS, towers.QWEN3_SOURCE, required=False)
    if vision is None:
        reader.note("no vision_config: only the text decoder is counted")
        parts.readers = (level,)
        return parts
    parts.towers = (towers.qwen3_vision(vision, parts.text.hidden),)
    parts.readers = (level, vision)
    return parts


def glm4v_moe(reader: Reader, architecture: str, _family: str, build: BuildText) -> Parts:
    """Return GLM-4.5V: a nested decoder with experts and its own tower."""
    parts, level = text_level(reader, build, architecture, "glm4v_moe_text")
    vision = reader.nested("vision_config", towers.GLM_DEFAULTS, towers.GLM_SOURCE)
    parts.towers = (towers.glm_vision(vision, parts.text.hidden),)
    parts.readers = (level, vision)
    return parts


def kimi_k25(reader: Reader, architecture: str, _family: str, build: BuildText) -> Parts:
    """Return Kimi K2.5: a decoder with latent attention and a MoonViT tower."""
    parts, level = text_level(reader, build, architecture, "kimi_k2")
    vision = reader.nested("vision_config")
    parts.towers = (towers.kimi_vision(vision, parts.text.hidden),)
    parts.readers = (level, vision)
    return parts


def gemma4(reader: Reader, architecture: str, _family: str, build: BuildText) -> Parts:
    """Return Gemma 4: a nested decoder and a vision tower; an audio tower is refused, its blocks are not known."""
    parts, level = text_level(reader, build, architecture, "gemma4_text")
    if reader.raw("audio_config") is not None:
        raise reader.unsupported(
            "the audio tower of Gemma 4 is not described here", "a configuration with audio_config null"
        )
    vision = reader.child("vision_config", required=False)
    if vision is None:
        reader.note("no vision_config: only the text decoder is counted")
        parts.readers = (level,)
        return parts
    parts.towers = (towers.gemma4_vision(vision, parts.text.hidden),)
    parts.readers = (level, vision)
    return parts


def llama4(reader: Reader, architecture: str, _family: str, build: BuildText) -> Parts:
    """Return Llama 4; without `vision_config` the text decoder alone."""
    parts, level = text_level(reader, build, architecture, "llama4_text")
    vision = reader.child("vision_config", required=False)
    parts.readers = (level,)
    if vision is None:
        reader.note("no vision_config: only the text decoder is counted")
        return parts
    parts.towers = (llama4_vision(vision, parts.text.hidden),)
    parts.readers = (level, vision)
    return parts


def llama4_vision(reader: Reader, text_hidden: int) -> Stack:
    """Return the tower of Llama 4: class token, learned positions, pixel shuffle, an adapter of two layers."""
    hidden = reader.integer("hidden_size")
    depth = reader.integer("num_hidden_layers")
    heads = reader.integer("num_attention_heads")
    if hidden % heads:
        raise reader.wrong("hidden_size", hidden, f"a multiple of the {heads} heads")
    width = reader.integer("intermediate_size")
    traits = towers.VitTraits()
    act = reader.text("hidden_act", "gelu", "transformers 5.24 Llama4VisionConfig")
    layer = towers.vit_layer(traits, hidden, heads, width, act)
    ratio = reader.number("pixel_shuffle_ratio", 0.5, "transformers 5.24 Llama4VisionConfig")
    (ih, iw), (ph, pw) = towers.square(reader, "image_size"), towers.square(reader, "patch_size")
    patches = (ih // ph) * (iw // pw)
    reader.derive("patches", patches, ("image_size", "patch_size"), "(image_size // patch_size)^2")
    channels = reader.integer("num_channels", 3, "transformers 5.24 Llama4VisionConfig")
    into, out = reader.integer("projector_input_dim"), reader.integer("projector_output_dim")
    last = reader.integer("vision_output_dim")
    rows = ratio**2
    norm = towers.vit_norm
    inputs: tuple[Block, ...] = (
        Parameters(path="class_embedding", shape=(hidden,), block="patch_embedding"),
        Linear(out=hidden, into=channels * ph * pw, path="patch_embedding.linear", block="patch_embedding"),
        Embedding(rows=patches + 1, width=hidden, path="positional_embedding_vlm", block="position_embedding"),
        norm(traits, hidden, "layernorm_pre"),
    )
    outputs: tuple[Block, ...] = (
        norm(traits, hidden, "layernorm_post"),
        Linear(out=into, into=width, path="vision_adapter.mlp.fc1", block="projector", rows_per_token=rows),
        Linear(out=out, into=out, path="vision_adapter.mlp.fc2", block="projector", rows_per_token=rows),
        Linear(
            out=text_hidden, into=last, path="multi_modal_projector.linear_1", block="projector", rows_per_token=rows
        ),
    )
    return Stack(
        name="vision",
        hidden=hidden,
        path="vision_model.model.layers.{}",
        groups=grouped([layer] * depth),
        inputs=inputs,
        outputs=outputs,
    )


FAMILIES: dict[str, Callable[[Reader, str, str, BuildText], Parts]] = {
    "llava": llava, "mistral3": mistral3, "gemma3": gemma3, "gemma4": gemma4, "qwen2_vl": qwen_vl_flat, "qwen2_5_vl": qwen_vl_flat,
    "qwen3_vl": qwen3_vl, "qwen3_vl_moe": qwen3_vl, "qwen3_5": qwen3_vl, "qwen3_5_moe": qwen3_vl, "glm4v_moe": glm4v_moe,
    "kimi_k25": kimi_k25, "llama4": llama4, "minimax_m3_vl": minimax_m3.joined,
}  # fmt: skip
