"""Encoder-only models: BERT and its relatives, ViT, and CLIP with its two encoders."""

from __future__ import annotations

from dataclasses import replace

from mansard.workload.model.decoder import Parts, grouped, labels_of
from mansard.workload.model.families import towers
from mansard.workload.model.reader import Reader
from mansard.workload.records import Block, Embedding, GqaAttention, Layer, Linear, Mlp, Norm, Parameters, Stack

SOURCES = {
    "bert": "transformers 5.24 BertConfig", "roberta": "transformers 5.24 RobertaConfig",
    "xlm-roberta": "transformers 5.24 XLMRobertaConfig", "camembert": "transformers 5.24 CamembertConfig",
    "ernie": "transformers 5.24 ErnieConfig", "megatron-bert": "transformers 5.24 MegatronBertConfig",
    "distilbert": "transformers 5.24 DistilBertConfig", "vit": "transformers 5.24 ViTConfig",
    "vit_msn": "transformers 5.24 ViTMSNConfig",
}  # fmt: skip


def _layer_norm(width: int, path: str) -> Norm:
    return Norm(width=width, path=path, kind="layer", bias=True)


def encoder_layer(hidden: int, heads: int, width: int, act: str, *, post: bool, causal: bool = False) -> Layer:
    """Return one encoder layer with biases everywhere, norms after (BERT) or before (ViT, CLIP) its blocks."""
    dim = hidden // heads
    attention = GqaAttention(
        hidden=hidden, heads=heads, kv_heads=heads, head_dim=dim, v_head_dim=dim, causal=causal, path="attention",
        q_bias=True, k_bias=True, v_bias=True, out_bias=True,
    )  # fmt: skip
    feed = Mlp(hidden=hidden, width=width, gated=False, activation=act, bias=True, out_bias=True)
    one, two = _layer_norm(hidden, "attention.output.LayerNorm"), _layer_norm(hidden, "output.LayerNorm")
    return Layer(blocks=(attention, one, feed, two) if post else (one, attention, two, feed))


def _heads(reader: Reader, hidden: int, key: str = "num_attention_heads") -> int:
    heads = reader.integer(key, only=True)
    if hidden % heads:
        raise reader.wrong(key, heads, f"a divisor of hidden size {hidden}")
    reader.derive("head_dim", hidden // heads, ("hidden_size", key))
    return heads


def bert(reader: Reader, architecture: str, family: str, _outer: Reader | None = None) -> Parts:
    """Return BERT, RoBERTa, XLM-R or CamemBERT with the head its class names; a bare model has a pooler."""
    source = SOURCES[family]
    hidden = reader.integer("hidden_size", only=True)
    depth = reader.integer("num_hidden_layers", only=True)
    vocab = reader.integer("vocab_size", only=True)
    heads = _heads(reader, hidden)
    act = reader.text("hidden_act", "gelu", source)
    width = reader.integer("intermediate_size", only=True)
    if reader.raw("add_cross_attention") is True:
        raise reader.unsupported("an encoder with cross attention", "add_cross_attention false")
    if reader.raw("use_task_id") is True:
        raise reader.unsupported("ERNIE with a table of tasks", "use_task_id false")
    kind = reader.raw("position_embedding_type")
    if kind not in (None, "absolute"):
        raise reader.unsupported(f"position_embedding_type {kind!r}", "absolute")
    layer = encoder_layer(hidden, heads, width, act, post=True, causal=reader.raw("is_decoder") is True)
    types = reader.integer("type_vocab_size", least=0)
    inputs: tuple[Block, ...] = (
        Embedding(rows=vocab, width=hidden, path="embeddings.word_embeddings"),
        Embedding(rows=reader.integer("max_position_embeddings"), width=hidden, path="embeddings.position_embeddings", block="position_embedding"),
        Embedding(rows=types, width=hidden, path="embeddings.token_type_embeddings", block="type_embedding"),
        _layer_norm(hidden, "embeddings.LayerNorm"),
    )  # fmt: skip
    stack = Stack(name="text", hidden=hidden, path="encoder.layer.{}", groups=grouped([layer] * depth), inputs=inputs)
    head, tied = bert_head(reader, architecture, hidden, vocab, source, pooled=family == "bert")
    return Parts(text=stack, head=head, tied=tied, vocab=vocab)


def bert_head(
    reader: Reader, architecture: str, hidden: int, vocab: int, source: str, *, pooled: bool
) -> tuple[tuple[Block, ...], bool]:
    """Return the head of a BERT-like class and whether its matrix is the token table."""
    pooler = Linear(out=hidden, into=hidden, path="pooler.dense", block="pooler", bias=True)
    if architecture.endswith(("ForMaskedLM", "LMHeadModel", "ForCausalLM", "ForPreTraining")):
        tied = reader.flag("tie_word_embeddings", True, source)
        blocks: tuple[Block, ...] = (
            Linear(out=hidden, into=hidden, path="cls.transform.dense", block="head", bias=True),
            _layer_norm(hidden, "cls.transform.LayerNorm"),
            Linear(out=vocab, into=hidden, path="cls.decoder", block="head", bias=True, tied=tied),
        )
        if (
            not tied and "DistilBert" not in source
        ):  # a bias beside the decoder's own, which is the same tensor where tied
            blocks += (Parameters(path="cls.bias", shape=(vocab,), block="head"),)
        if architecture.endswith("ForPreTraining"):
            blocks = (pooler, *blocks, Linear(out=2, into=hidden, path="cls.seq_relationship", block="head", bias=True))
        return blocks, tied
    if architecture.endswith("ForSequenceClassification"):
        first = pooler if pooled else Linear(out=hidden, into=hidden, path="classifier.dense", block="head", bias=True)
        return (first, Linear(out=labels_of(reader), into=hidden, path="classifier", block="head", bias=True)), False
    if architecture.endswith(("ForTokenClassification", "ForQuestionAnswering")):
        return (Linear(out=labels_of(reader), into=hidden, path="classifier", block="head", bias=True),), False
    if architecture.endswith("Model"):
        return (pooler,), False
    raise reader.unsupported(f"the head of class {architecture!r} is not known", "architectures with a known class")


def distilbert(reader: Reader, architecture: str, family: str, _outer: Reader | None = None) -> Parts:
    """Return DistilBERT: no token types, no pooler."""
    source = SOURCES[family]
    hidden, depth = reader.integer("dim"), reader.integer("n_layers", only=True)
    heads, vocab = _heads(reader, hidden, "n_heads"), reader.integer("vocab_size", only=True)
    act = reader.text("activation", "gelu", source)
    layer = encoder_layer(hidden, heads, reader.integer("hidden_dim"), act, post=True)
    inputs: tuple[Block, ...] = (
        Embedding(rows=vocab, width=hidden, path="embeddings.word_embeddings"),
        Embedding(rows=reader.integer("max_position_embeddings"), width=hidden, path="embeddings.position_embeddings", block="position_embedding"),
        _layer_norm(hidden, "embeddings.LayerNorm"),
    )  # fmt: skip
    stack = Stack(
        name="text", hidden=hidden, path="transformer.layer.{}", groups=grouped([layer] * depth), inputs=inputs
    )
    if architecture.endswith("Model"):
        return Parts(text=stack, head=(), tied=False, vocab=vocab)
    head, tied = bert_head(reader, architecture, hidden, vocab, source, pooled=False)
    return Parts(text=stack, head=head, tied=tied, vocab=vocab)


def vit(reader: Reader, architecture: str, family: str, _outer: Reader | None = None) -> Parts:
    """Return ViT: class token, learned positions, a final norm; a pooler or a classifier."""
    source = SOURCES[family]
    hidden, depth = reader.integer("hidden_size"), reader.integer("num_hidden_layers")
    act = reader.text("hidden_act", "gelu", source)
    bias = reader.flag("qkv_bias", True, source)
    layer = encoder_layer(hidden, _heads(reader, hidden), reader.integer("intermediate_size"), act, post=False)
    if not bias:
        blocks = tuple(
            replace(b, q_bias=False, k_bias=False, v_bias=False) if isinstance(b, GqaAttention) else b
            for b in layer.blocks
        )
        layer = Layer(blocks=blocks)
    rows = towers._patches(reader) + 1
    inputs: tuple[Block, ...] = (
        Parameters(path="embeddings.cls_token", shape=(1, 1, hidden), block="patch_embedding"),
        towers._patch_conv(reader, hidden, channels_key="num_channels", bias=True),
        Embedding(rows=rows, width=hidden, path="embeddings.position_embeddings", block="position_embedding"),
    )
    stack = Stack(
        name="text", hidden=hidden, path="vit.encoder.layer.{}", groups=grouped([layer] * depth), inputs=inputs,
        outputs=(_layer_norm(hidden, "layernorm"),),
    )  # fmt: skip
    if architecture.endswith("ForImageClassification"):
        head: tuple[Block, ...] = (
            Linear(out=labels_of(reader), into=hidden, path="classifier", block="head", bias=True),
        )
    elif family == "vit_msn" and architecture.endswith("Model"):
        head = ()
    elif architecture.endswith("Model"):
        width = reader.optional("pooler_output_size") or hidden
        head = (Linear(out=width, into=hidden, path="pooler.dense", block="pooler", bias=True),)
    else:
        raise reader.unsupported(
            f"the head of class {architecture!r} is not known", "ViTModel or ViTForImageClassification"
        )
    return Parts(text=stack, head=head, tied=False, vocab=None)


def vision_alone(reader: Reader, architecture: str, family: str, _outer: Reader | None = None) -> Parts:
    """Return the image tower of CLIP or SigLIP where it is the whole model."""
    if not architecture.endswith("VisionModel"):
        raise reader.unsupported(f"class {architecture!r} of {family}", "CLIPVisionModel or SiglipVisionModel")
    defaults, source = towers.CLIP_DEFAULTS, towers.CLIP_SOURCE
    if family == "siglip_vision_model":
        defaults, source = towers.SIGLIP_DEFAULTS, towers.SIGLIP_SOURCE
    # At the top level sizes have no default; switches have.
    switches = {key: defaults[key] for key in ("hidden_act", "num_channels", "vision_use_head") if key in defaults}
    level = Reader(reader.values, reader.where, reader.log, reader.path, switches, source)
    tower = towers.clip_vision(level) if family == "clip_vision_model" else towers.siglip_vision(level)
    reader.read |= level.read
    return Parts(text=tower, head=(), tied=False, vocab=None)


def clip(reader: Reader, architecture: str, _family: str, _outer: Reader | None = None) -> Parts:
    """Return CLIP: a causal text encoder and a vision tower, each with a projection, and one temperature."""
    if not architecture.endswith("CLIPModel"):
        raise reader.unsupported(f"class {architecture!r} of CLIP", "CLIPModel")
    text_defaults = {
        "vocab_size": 49408, "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 12, "num_attention_heads": 8,
        "max_position_embeddings": 77, "hidden_act": "quick_gelu",
    }  # fmt: skip
    level = reader.nested("text_config", text_defaults, "transformers 5.24 CLIPTextConfig")
    hidden, depth = level.integer("hidden_size"), level.integer("num_hidden_layers")
    vocab = level.integer("vocab_size")
    layer = encoder_layer(
        hidden,
        _heads(level, hidden),
        level.integer("intermediate_size"),
        level.text("hidden_act"),
        post=False,
        causal=True,
    )
    shared = reader.integer("projection_dim", 512, "transformers 5.24 CLIPConfig")
    inputs: tuple[Block, ...] = (
        Embedding(rows=vocab, width=hidden, path="text_model.embeddings.token_embedding"),
        Embedding(
            rows=level.integer("max_position_embeddings"), width=hidden, path="text_model.embeddings.position_embedding",
            block="position_embedding",
        ),
    )  # fmt: skip
    stack = Stack(
        name="text", hidden=hidden, path="text_model.encoder.layers.{}", groups=grouped([layer] * depth), inputs=inputs,
        outputs=(_layer_norm(hidden, "final_layer_norm"),),
    )  # fmt: skip
    vision = reader.nested("vision_config", towers.CLIP_DEFAULTS, towers.CLIP_SOURCE)
    tower = towers.clip_vision(vision)
    tower = replace(
        tower,
        outputs=(*tower.outputs, Linear(out=shared, into=tower.hidden, path="visual_projection", block="projector")),
    )
    head: tuple[Block, ...] = (
        Linear(out=shared, into=hidden, path="text_projection", block="projector"),
        Parameters(path="logit_scale", shape=(1,), block="head"),
    )
    return Parts(text=stack, head=head, tied=False, vocab=vocab, towers=(tower,), readers=(level, vision))
