"""Dense decoders: one feed-forward block and one attention block per layer, all layers alike but for windows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from mansard.workload.model.decoder import Parts, Traits, decoder, gqa, grouped, head_for, heads_of, mlp, tie, windowed
from mansard.workload.model.reader import Reader
from mansard.workload.records import Block, Embedding, GqaAttention, Layer, Linear, Norm, Parameters, Stack


def _source(name: str) -> str:
    return f"transformers 5.24 {name}"


LLAMA = Traits(source=_source("LlamaConfig"), qkv_bias="attention_bias", out_bias="attention_bias", mlp_bias="mlp_bias")
QWEN2 = Traits(source=_source("Qwen2Config"), qkv_bias=True, window="upper")
QWEN3 = Traits(
    source=_source("Qwen3Config"), qkv_bias="attention_bias", out_bias="attention_bias", qk_norm="head", head_dim=128, window="upper"
)  # fmt: skip
GEMMA2 = Traits(
    source=_source("Gemma2Config"), layout="sandwich", head_dim=256, tied=True, window="types", pattern=2,
    qkv_bias="attention_bias", out_bias="attention_bias", activation="gelu_pytorch_tanh",
)  # fmt: skip
GEMMA3 = replace(GEMMA2, source=_source("Gemma3TextConfig"), qk_norm="head", pattern=6)

FAMILIES: dict[str, Traits] = {
    "llama": LLAMA,
    "mistral": Traits(source=_source("MistralConfig"), window="all"),
    "ministral": Traits(source=_source("MinistralConfig"), window="types"),
    "ministral3": Traits(source=_source("Ministral3Config"), window="all"),
    "qwen2": QWEN2,
    "qwen3": QWEN3,
    "phi3": Traits(source=_source("Phi3Config"), window="all"),
    "phi": Traits(
        source=_source("PhiConfig"), norm="layer", norm_bias=True, layout="parallel", gated=False, qkv_bias=True,
        out_bias=True, mlp_bias=True, head_bias=True, activation="gelu_new", rotary=0.5,
    ),
    "gemma": Traits(
        source=_source("GemmaConfig"), head_dim=256, tied=True, activation="gelu_pytorch_tanh",
        qkv_bias="attention_bias", out_bias="attention_bias",
    ),
    "gemma2": GEMMA2,
    "gemma3_text": GEMMA3,
    "granite": replace(LLAMA, source=_source("GraniteConfig")),
    "smollm3": replace(LLAMA, source=_source("SmolLM3Config"), tied=True),
    "seed_oss": Traits(source=_source("SeedOssConfig"), qkv_bias="attention_bias", out_bias="attention_out_bias", mlp_bias="mlp_bias", head_dim=128),
    "hunyuan_v1_dense": Traits(source=_source("HunYuanDenseV1Config"), qkv_bias="attention_bias", out_bias="attention_bias", qk_norm="head"),
    "arcee": Traits(
        source=_source("ArceeConfig"), gated=False, qkv_bias="attention_bias", out_bias="attention_bias", mlp_bias="mlp_bias", activation="relu2"
    ),
    "starcoder2": Traits(
        source=_source("Starcoder2Config"), norm="layer", norm_bias=True, gated=False, qkv_bias="use_bias", out_bias="use_bias",
        mlp_bias="use_bias", tied=True, window="all", activation="gelu_pytorch_tanh",
    ),
    "cohere": Traits(
        source=_source("CohereConfig"), norm="layer", layout="parallel", tied=True, qkv_bias="attention_bias", out_bias="attention_bias"
    ),
    "cohere2": Traits(
        source=_source("Cohere2Config"), norm="layer", layout="parallel", tied=True, qkv_bias="attention_bias",
        out_bias="attention_bias", window="types", pattern=4,
    ),
    "olmo": Traits(
        source=_source("OlmoConfig"), norm="layer", norm_scale=False, qkv_bias="attention_bias", out_bias="attention_bias"
    ),
    "olmo2": Traits(source=_source("Olmo2Config"), layout="post", qk_norm="full", qkv_bias="attention_bias", out_bias="attention_bias"),
    "olmo3": Traits(
        source=_source("Olmo3Config"), layout="post", qk_norm="full", qkv_bias="attention_bias", out_bias="attention_bias",
        window="types", pattern=4,
    ),
    "nemotron": Traits(
        source=_source("NemotronConfig"), norm="layer", norm_bias=True, gated=False, qkv_bias="attention_bias",
        out_bias="attention_bias", mlp_bias="mlp_bias", activation="relu2", rotary=0.5,
    ),
    "glm": Traits(source=_source("GlmConfig"), qkv_bias="attention_bias", head_dim=128, rotary=0.5),
    "glm4": Traits(source=_source("Glm4Config"), layout="sandwich", qkv_bias="attention_bias", head_dim=128, rotary=0.5),
    "ernie4_5": Traits(source=_source("Ernie4_5Config"), qkv_bias="use_bias", out_bias="use_bias", mlp_bias="use_bias", tied=True, head_dim=128),
    "helium": Traits(source=_source("HeliumConfig"), qkv_bias="attention_bias", mlp_bias="mlp_bias", head_dim=128),
    "exaone4": Traits(source=_source("Exaone4Config"), layout="post", qk_norm="head", window="types", pattern=4),
    "apertus": Traits(source=_source("ApertusConfig"), gated=False, qk_norm="head", qkv_bias="attention_bias", out_bias="attention_bias", mlp_bias="mlp_bias", activation="xielu"),
    "gpt_neox": Traits(
        source=_source("GPTNeoXConfig"), norm="layer", norm_bias=True, layout="parallel2", gated=False, qkv_bias="attention_bias",
        out_bias="attention_bias", mlp_bias=True, activation="gelu", rotary=0.25, path="gpt_neox.layers.{}",
    ),
    "gptj": Traits(
        source=_source("GPTJConfig"), norm="layer", norm_bias=True, layout="parallel", gated=False, mlp_bias=True,
        head_bias=True, activation="gelu_new", path="transformer.h.{}",
    ),
    "codegen": Traits(
        source=_source("CodeGenConfig"), norm="layer", norm_bias=True, layout="parallel", gated=False, mlp_bias=True,
        head_bias=True, activation="gelu_new", path="transformer.h.{}",
    ),
    "gpt2": Traits(
        source=_source("GPT2Config"), norm="layer", norm_bias=True, gated=False, qkv_bias=True, out_bias=True, mlp_bias=True,
        tied=True, positions=0, activation="gelu_new", rotary=0.0, path="transformer.h.{}",
    ),
    "gpt_neo": Traits(
        source=_source("GPTNeoConfig"), norm="layer", norm_bias=True, gated=False, out_bias=True, mlp_bias=True, tied=True,
        positions=0, activation="gelu_new", rotary=0.0, path="transformer.h.{}",
    ),
    "bloom": Traits(
        source=_source("BloomConfig"), norm="layer", norm_bias=True, gated=False, qkv_bias=True, out_bias=True, mlp_bias=True,
        tied=True, activation="gelu", rotary=0.0, path="transformer.h.{}",
    ),
    "cwm": Traits(source=_source("CwmConfig"), head_dim=128, mlp_bias="mlp_bias", window="types"),
    "vaultgemma": Traits(
        source=_source("VaultGemmaConfig"), head_dim=256, tied=True, window="types", pattern=2, qkv_bias="attention_bias",
        out_bias="attention_bias", activation="gelu_pytorch_tanh",
    ),
    "hyperclovax": Traits(
        source=_source("HyperCLOVAXConfig"), layout="sandwich", qkv_bias="attention_bias", out_bias="attention_bias", mlp_bias="mlp_bias"
    ),
    "jais2": Traits(
        source=_source("Jais2Config"), norm="layer", norm_bias=True, gated=False, qkv_bias="attention_bias", out_bias="attention_bias",
        mlp_bias="mlp_bias", activation="relu2",
    ),
    "mimo": Traits(source="XiaomiMiMo/MiMo-7B configuration_mimo.py", qkv_bias="attention_bias", window="upper"),
    "baichuan": Traits(source="baichuan-inc configuration_baichuan.py"),
    "internlm2": Traits(source="internlm configuration_internlm2.py", qkv_bias="bias", out_bias="bias"),
}  # fmt: skip


def build(reader: Reader, architecture: str, family: str, outer: Reader | None = None) -> Parts:
    """Return the parts of a dense decoder of a family in `FAMILIES`."""
    traits = FAMILIES[family]
    special = _SPECIAL.get(family)
    if special is not None:
        return special(reader, architecture, traits, outer)
    if family == "cohere" and reader.flag("use_qk_norm", False, traits.source):
        traits = replace(traits, qk_norm="full")
    if family == "hyperclovax" and not reader.flag("use_post_norm", True, traits.source):
        traits = replace(traits, layout="pre")
    if family == "helium":
        _square_output(reader, traits)
    stack, vocab = decoder(reader, traits)
    return finish(reader, architecture, traits, stack, vocab, outer)


def _square_output(reader: Reader, traits: Traits) -> None:
    """The output projection of this family is hidden x hidden whatever the heads say; files where that differs are refused."""
    heads, _, width = heads_of(reader, traits, reader.integer("hidden_size"))
    if heads * width != reader.integer("hidden_size"):
        raise reader.wrong("head_dim", width, f"hidden_size / {heads} heads")


def finish(
    reader: Reader, architecture: str, traits: Traits, stack: Stack, vocab: int, outer: Reader | None = None
) -> Parts:
    """Return the parts of a decoder whose stack is made: add the head."""
    tied = tie(reader, traits.tied, traits.source, outer)
    head = head_for(reader, architecture, stack.hidden, vocab, tied=tied, head_bias=traits.head_bias)
    return Parts(text=stack, head=head, tied=tied, vocab=vocab)


def _gpt(reader: Reader, architecture: str, traits: Traits, outer: Reader | None) -> Parts:
    """GPT-2, GPT-Neo, GPT-J, CodeGen: `n_inner` null means four times the width; attention differs in biases."""
    hidden = reader.integer("hidden_size")
    width = reader.optional("intermediate_size")
    if width is None:
        width = 4 * hidden
        reader.derive("n_inner", width, ("n_embd",), "null or absent: 4 x n_embd")
    depth = reader.integer("num_hidden_layers")
    feed = mlp(reader, traits, hidden, width=width)
    block = replace(gqa(reader, traits, hidden), head_dim=hidden // reader.integer("num_attention_heads"))
    layout: list[int | None] = [None for _ in range(depth)]
    if "GPTNeoConfig" in traits.source:
        layout = _neo_windows(reader, depth)
    if reader.raw("add_cross_attention") is True:
        raise reader.unsupported("add_cross_attention is true", "a plain decoder, or an encoder-decoder class")
    stack, vocab = decoder(reader, traits, attention=windowed(block, layout), feed=lambda _i: feed)
    return finish(reader, architecture, traits, stack, vocab, outer)


def _neo_windows(reader: Reader, depth: int) -> list[int | None]:
    """GPT-Neo alternates global and local layers by `attention_types`: [[kinds], repeats] pairs."""
    spec = reader.array("attention_types")
    if spec is None:
        raise reader.missing("attention_types")
    kinds: list[str] = []
    for entry in spec:
        if not (
            isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], list) and isinstance(entry[1], int)
        ):
            raise reader.wrong("attention_types", entry, "[[kinds], repeats]")
        kinds += [str(kind) for kind in entry[0]] * entry[1]
    if len(kinds) != depth:
        raise reader.wrong("attention_types", f"{len(kinds)} layers", f"{depth} layers")
    window = reader.integer("window_size") if "local" in kinds else None
    return [window if kind == "local" else None for kind in kinds]


def _bloom(reader: Reader, architecture: str, traits: Traits, outer: Reader | None) -> Parts:
    """BLOOM: four times the width, a norm after the token table, ALiBi instead of RoPE."""
    hidden = reader.integer("hidden_size")
    reader.derive("intermediate_size", 4 * hidden, ("hidden_size",), "4 x hidden_size in BloomMLP")
    feed = mlp(reader, replace(traits, activation="gelu"), hidden, width=4 * hidden)
    norm = Norm(width=hidden, path="word_embeddings_layernorm", kind="layer", bias=True)
    stack, vocab = decoder(reader, traits, feed=lambda _i: feed, inputs=(norm,))
    return finish(reader, architecture, traits, stack, vocab, outer)


def _phi(reader: Reader, architecture: str, traits: Traits, outer: Reader | None) -> Parts:
    """Phi: optional layer norms on queries and keys; the head width is always hidden / heads in its code."""
    hidden = reader.integer("hidden_size")
    block = gqa(reader, traits, hidden)
    if reader.flag("qk_layernorm", False, traits.source):
        block = replace(block, qk_norm="head", qk_norm_bias=True)
    stack, vocab = decoder(reader, traits, attention=lambda _i: block)
    return finish(reader, architecture, traits, stack, vocab, outer)


def _apertus(reader: Reader, architecture: str, traits: Traits, outer: Reader | None) -> Parts:
    """Apertus: the xIELU activation learns two scalars per layer."""
    stack, vocab = decoder(reader, traits)
    scalars = Parameters(path="mlp.act_fn", shape=(2,), block="mlp")
    groups = tuple(replace(g, layer=Layer(blocks=(*g.layer.blocks, scalars))) for g in stack.groups)
    return finish(reader, architecture, traits, replace(stack, groups=groups), vocab, outer)


def _mimo(reader: Reader, architecture: str, traits: Traits, outer: Reader | None) -> Parts:
    """MiMo: a Qwen2 decoder with layers that predict further tokens."""
    stack, vocab = decoder(reader, traits)
    parts = finish(reader, architecture, traits, stack, vocab, outer)
    count = reader.optional("num_nextn_predict_layers", least=0, absent="no MTP layers") or 0
    if count:
        hidden = stack.hidden
        layer = stack.groups[-1].layer
        blocks = (
            Norm(width=hidden, path="token_layernorm"), Norm(width=hidden, path="hidden_layernorm"),
            Linear(out=hidden, into=2 * hidden, path="input_proj", block="mtp"), *layer.blocks,
            Norm(width=hidden, path="final_layernorm"),
        )  # fmt: skip
        parts.mtp = mtp_stack(hidden, [blocks] * count, "model.mtp_layers.{}")
        parts.mtp_heads = count
    return parts


def mtp_stack(hidden: int, layers: list[tuple[Block, ...]], path: str) -> Stack:
    """Return the stack of layers that predict further tokens."""
    return Stack(name="mtp", hidden=hidden, path=path, groups=grouped([Layer(blocks=blocks) for blocks in layers]))


def opt(reader: Reader, architecture: str, _family: str, outer: Reader | None = None) -> Parts:
    """Return the parts of OPT: learned positions with two extra rows, projections where the table is narrower."""
    source = _source("OPTConfig")
    affine = reader.flag("layer_norm_elementwise_affine", True, source)
    with_bias = reader.flag("enable_bias", True, source)
    traits = Traits(
        source=source, norm="layer", norm_bias=affine, norm_scale=affine, gated=False, qkv_bias=with_bias, out_bias=with_bias,
        mlp_bias=with_bias, tied=True, activation="relu", rotary=0.0, path="model.decoder.layers.{}",
        final_norm=reader.flag("do_layer_norm_before", True, source) and reader.raw("_remove_final_layer_norm") is not True,
    )  # fmt: skip
    hidden = reader.integer("hidden_size")
    width = reader.integer("ffn_dim", only=True)
    vocab = reader.integer("vocab_size")
    table = reader.optional("word_embed_proj_dim") or hidden
    feed = mlp(reader, traits, hidden, width=width)
    stack, _ = decoder(reader, traits, feed=lambda _i: feed)
    inputs: tuple[Block, ...] = (
        Embedding(rows=vocab, width=table),
        Embedding(rows=reader.integer("max_position_embeddings") + 2, width=hidden, path="embed_positions", block="position_embedding"),
    )  # fmt: skip
    outputs: tuple[Block, ...] = stack.outputs
    if table != hidden:
        inputs += (Linear(out=hidden, into=table, path="project_in", block="projection"),)
        outputs += (Linear(out=table, into=hidden, path="project_out", block="projection"),)
    stack = replace(stack, inputs=inputs, outputs=outputs)
    tied = tie(reader, True, source, outer)
    return Parts(text=stack, head=head_for(reader, architecture, table, vocab, tied=tied), tied=tied, vocab=vocab)


def falcon(reader: Reader, architecture: str, _family: str, outer: Reader | None = None) -> Parts:
    """Return the parts of Falcon: multi-query, or grouped in the new decoder, with one or two norms side by side."""
    source = _source("FalconConfig")
    new = reader.flag("new_decoder_architecture", False, source)
    parallel = reader.flag("parallel_attn", True, source)
    multi_query = reader.flag("multi_query", True, source)
    with_bias = reader.flag("bias", False, source)
    hidden = reader.integer("hidden_size")
    heads = reader.integer("num_attention_heads")
    norms = reader.optional("num_ln_in_parallel_attn") or (2 if new else 1)
    kv = reader.integer("num_kv_heads", only=True) if new else 1 if multi_query else heads
    if not new:
        reader.derive("num_kv_heads", kv, ("multi_query", "num_attention_heads"))
    width = reader.optional("ffn_hidden_size", only=True)
    if width is None:
        width = 4 * hidden
        reader.derive("ffn_hidden_size", width, ("hidden_size",), "4 x hidden_size")
    layout: Literal["pre", "parallel", "parallel2"] = "pre"
    if parallel or new:
        layout = "parallel2" if norms == 2 else "parallel"
    traits = Traits(
        source=source, norm="layer", norm_bias=True, gated=False, layout=layout, qkv_bias=with_bias, out_bias=with_bias,
        mlp_bias=with_bias, tied=True, activation="gelu", path="transformer.h.{}",
    )  # fmt: skip
    if hidden % heads:
        raise reader.wrong("hidden_size", hidden, f"a multiple of the {heads} heads")
    reader.derive("head_dim", hidden // heads, ("hidden_size", "num_attention_heads"))
    alibi = reader.flag("alibi", False, source)
    dim = hidden // heads
    block = GqaAttention(
        hidden=hidden, heads=heads, kv_heads=kv, head_dim=dim, v_head_dim=dim, q_bias=with_bias, k_bias=with_bias,
        v_bias=with_bias, out_bias=with_bias, rotary_dim=0 if alibi else dim,
    )  # fmt: skip
    text = reader.text("activation", "gelu", source) if reader.has("activation") else "gelu"
    feed = replace(mlp(reader, replace(traits, activation=text), hidden, width=width))
    stack, vocab = decoder(reader, traits, attention=lambda _i: block, feed=lambda _i: feed)
    return finish(reader, architecture, traits, stack, vocab, outer)


_SPECIAL: dict[str, Callable[[Reader, str, Traits, Reader | None], Parts]] = {
    "gpt2": _gpt, "gptj": _gpt, "gpt_neo": _gpt, "codegen": _gpt, "bloom": _bloom, "phi": _phi, "mimo": _mimo, "apertus": _apertus,
}  # fmt: skip
