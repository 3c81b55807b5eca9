"""Encoder-decoder models: T5, BART and Whisper. `num_hidden_layers` of such files means the encoder alone."""

from __future__ import annotations

from mansard.workload.model.decoder import Parts, grouped
from mansard.workload.model.reader import Reader
from mansard.workload.records import (
    Block,
    Convolution,
    CrossAttention,
    Embedding,
    GqaAttention,
    Layer,
    Linear,
    Mlp,
    Norm,
    Stack,
)

T5_SOURCES = {"t5": "transformers T5Config", "mt5": "transformers MT5Config", "umt5": "transformers UMT5Config"}
BART_SOURCE = "transformers 5.24 BartConfig"
WHISPER_SOURCE = "transformers 5.24 WhisperConfig"


def t5(reader: Reader, architecture: str, family: str, _outer: Reader | None = None) -> Parts:
    """Return T5: norms without bias, a relative position bias in the first layer (in every layer of UMT5)."""
    source = T5_SOURCES[family]
    hidden, dim = reader.integer("d_model", only=True), reader.integer("d_kv")
    heads, width = reader.integer("num_heads", only=True), reader.integer("d_ff", only=True)
    vocab = reader.integer("vocab_size", only=True)
    deep = reader.integer("num_layers", only=True)
    decoder_deep = reader.optional("num_decoder_layers")
    if decoder_deep is None:
        decoder_deep = deep
        reader.derive("num_decoder_layers", deep, ("num_layers",), "absent: as deep as the encoder")
    buckets = reader.integer("relative_attention_num_buckets", 32, source)
    projection = reader.text("feed_forward_proj", "relu", source)
    gated, act = projection.startswith("gated-"), projection.removeprefix("gated-")
    every = family == "umt5"

    def attention(*, causal: bool, first: bool) -> GqaAttention:
        return GqaAttention(
            hidden=hidden, heads=heads, kv_heads=heads, head_dim=dim, v_head_dim=dim, causal=causal, path="SelfAttention",
            bias_buckets=buckets if first or every else 0,
        )  # fmt: skip

    feed = Mlp(hidden=hidden, width=width, gated=gated, activation=act, path="DenseReluDense")
    cross = CrossAttention(
        hidden=hidden, source_hidden=hidden, heads=heads, kv_heads=heads, head_dim=dim, path="EncDecAttention"
    )
    n = [Norm(width=hidden, path=f"layer_norm_{i}") for i in range(3)]
    encoder = [Layer(blocks=(n[0], attention(causal=False, first=i == 0), n[1], feed)) for i in range(deep)]
    decoder = [
        Layer(blocks=(n[0], attention(causal=True, first=i == 0), n[1], cross, n[2], feed)) for i in range(decoder_deep)
    ]
    final = (Norm(width=hidden, path="final_layer_norm"),)
    towers = (Stack(name="encoder", hidden=hidden, path="encoder.block.{}", groups=grouped(encoder), outputs=final),)
    text = Stack(
        name="text", hidden=hidden, path="decoder.block.{}", groups=grouped(decoder), outputs=final,
        inputs=(Embedding(rows=vocab, width=hidden, path="shared"),),
    )  # fmt: skip
    tied = reader.flag("tie_word_embeddings", family != "umt5", source)
    if not tied:
        reader.note(
            "tie_word_embeddings is false: the head is a matrix of its own, as in the published T5 1.1 checkpoints"
        )
    if architecture.endswith("EncoderModel"):
        encoder_only = Stack(
            name="text",
            hidden=hidden,
            path="encoder.block.{}",
            groups=grouped(encoder),
            outputs=final,
            inputs=text.inputs,
        )
        return Parts(text=encoder_only, head=(), tied=False, vocab=vocab)
    head = _lm_head(reader, architecture, hidden, vocab, tied=tied)
    return Parts(text=text, head=head, tied=tied, vocab=vocab, towers=towers)


def _lm_head(reader: Reader, architecture: str, hidden: int, vocab: int, *, tied: bool) -> tuple[Block, ...]:
    if architecture.endswith("ForConditionalGeneration"):
        return (Linear(out=vocab, into=hidden, path="lm_head", block="head", tied=tied),)
    if architecture.endswith("Model"):
        return ()
    raise reader.unsupported(
        f"the head of class {architecture!r} is not known", "a class ending in ForConditionalGeneration or Model"
    )


def _layer_norm(width: int, path: str) -> Norm:
    return Norm(width=width, path=path, kind="layer", bias=True)


def _attention(reader: Reader, hidden: int, key: str, *, causal: bool, k_bias: bool) -> GqaAttention:
    heads = reader.integer(key)
    if hidden % heads:
        raise reader.wrong(key, heads, f"a divisor of d_model {hidden}")
    dim = hidden // heads
    return GqaAttention(
        hidden=hidden, heads=heads, kv_heads=heads, head_dim=dim, v_head_dim=dim, causal=causal, q_bias=True, k_bias=k_bias,
        v_bias=True, out_bias=True,
    )  # fmt: skip


def _sides(reader: Reader, hidden: int, act: str, *, k_bias: bool) -> tuple[list[Layer], list[Layer], bool]:
    """Return encoder and decoder layers of BART and Whisper; the order of norms does not change what they need."""
    enc = _attention(reader, hidden, "encoder_attention_heads", causal=False, k_bias=k_bias)
    dec = _attention(reader, hidden, "decoder_attention_heads", causal=True, k_bias=k_bias)
    cross = CrossAttention(
        hidden=hidden, source_hidden=hidden, heads=dec.heads, kv_heads=dec.heads, head_dim=dec.head_dim, q_bias=True,
        k_bias=k_bias, v_bias=True, out_bias=True,
    )  # fmt: skip
    e_feed = Mlp(
        hidden=hidden, width=reader.integer("encoder_ffn_dim"), gated=False, activation=act, bias=True, out_bias=True
    )
    d_feed = Mlp(
        hidden=hidden, width=reader.integer("decoder_ffn_dim"), gated=False, activation=act, bias=True, out_bias=True
    )
    n = {
        name: _layer_norm(hidden, name)
        for name in ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm")
    }
    encoder = Layer(blocks=(enc, n["self_attn_layer_norm"], e_feed, n["final_layer_norm"]))
    decoder = Layer(
        blocks=(dec, n["self_attn_layer_norm"], cross, n["encoder_attn_layer_norm"], d_feed, n["final_layer_norm"])
    )
    e_deep, d_deep = reader.integer("encoder_layers"), reader.integer("decoder_layers")
    return [encoder] * e_deep, [decoder] * d_deep, True


def bart(reader: Reader, architecture: str, family: str, _outer: Reader | None = None) -> Parts:
    """Return BART or mBART: learned positions with two extra rows, a norm after the table; mBART adds a final norm."""
    hidden, vocab = reader.integer("d_model", only=True), reader.integer("vocab_size", only=True)
    act = reader.text("activation_function", "gelu", BART_SOURCE)
    encoder, decoder, _ = _sides(reader, hidden, act, k_bias=True)
    rows = reader.integer("max_position_embeddings") + 2
    reader.derive(
        "position_rows", rows, ("max_position_embeddings",), "two extra rows in BartLearnedPositionalEmbedding"
    )

    def around(name: str) -> tuple[Block, ...]:
        return (
            Embedding(rows=rows, width=hidden, path=f"{name}.embed_positions", block="position_embedding"),
            _layer_norm(hidden, f"{name}.layernorm_embedding"),
        )

    final: tuple[Block, ...] = (_layer_norm(hidden, "layer_norm"),) if family == "mbart" else ()
    towers = (
        Stack(
            name="encoder",
            hidden=hidden,
            path="encoder.layers.{}",
            groups=grouped(encoder),
            inputs=around("encoder"),
            outputs=final,
        ),
    )
    text = Stack(
        name="text", hidden=hidden, path="decoder.layers.{}", groups=grouped(decoder),
        inputs=(Embedding(rows=vocab, width=hidden, path="shared"), *around("decoder")), outputs=final,
    )  # fmt: skip
    tied = reader.flag("tie_word_embeddings", True, BART_SOURCE)
    head = _lm_head(reader, architecture, hidden, vocab, tied=tied)
    reader.derive("encoder_depth", len(encoder), ("encoder_layers",), "num_hidden_layers repeats it and is not read")
    reader.raw("num_hidden_layers", only=True)
    return Parts(text=text, head=head, tied=tied, vocab=vocab, towers=towers)


def whisper(reader: Reader, architecture: str, _family: str, _outer: Reader | None = None) -> Parts:
    """Return Whisper: two convolutions over mel frames, keys without bias, a tied head."""
    hidden, vocab = reader.integer("d_model", only=True), reader.integer("vocab_size", only=True)
    act = reader.text("activation_function", "gelu", WHISPER_SOURCE)
    encoder, decoder, _ = _sides(reader, hidden, act, k_bias=False)
    mel = reader.integer("num_mel_bins")
    inputs: tuple[Block, ...] = (
        Convolution(out=hidden, into=mel, kernel=(3,), stride=(1,), path="encoder.conv1", block="audio_embedding"),
        Convolution(out=hidden, into=hidden, kernel=(3,), stride=(2,), path="encoder.conv2", block="audio_embedding"),
        Embedding(rows=reader.integer("max_source_positions"), width=hidden, path="encoder.embed_positions", block="position_embedding"),
    )  # fmt: skip
    final = (_layer_norm(hidden, "layer_norm"),)
    towers = (
        Stack(
            name="encoder",
            hidden=hidden,
            path="encoder.layers.{}",
            groups=grouped(encoder),
            inputs=inputs,
            outputs=final,
        ),
    )
    rows = reader.integer("max_target_positions")
    text = Stack(
        name="text", hidden=hidden, path="decoder.layers.{}", groups=grouped(decoder), outputs=final,
        inputs=(
            Embedding(rows=vocab, width=hidden, path="decoder.embed_tokens"),
            Embedding(rows=rows, width=hidden, path="decoder.embed_positions", block="position_embedding"),
        ),
    )  # fmt: skip
    tied = reader.flag("tie_word_embeddings", True, WHISPER_SOURCE)
    head = _lm_head(reader, architecture, hidden, vocab, tied=tied)
    reader.raw("num_hidden_layers", only=True)
    return Parts(text=text, head=head, tied=tied, vocab=vocab, towers=towers)
