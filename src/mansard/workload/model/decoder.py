"""What the decoders of most families share: attention and feed-forward blocks, norms, windows, the head.

A family says in `Traits` what its code fixes, and passes functions for what differs by layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from mansard.core.unknown import Unknown
from mansard.workload.model.reader import Reader
from mansard.workload.records import (
    Block,
    Embedding,
    GqaAttention,
    Layer,
    LayerGroup,
    Linear,
    Mlp,
    Norm,
    Stack,
)

BiasRule = bool | str
"""True or False where the family's code fixes it; else the key, whose documented default is False."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What the code of a family fixes, where its configuration has no key for it.

    Args:
        source: Where the class defaults are documented.
        norm: Kind of norm, `norm_bias` whether it adds a bias, `norm_scale` whether it has a scale.
        layout: `pre`: a norm before attention and feed-forward; `sandwich`: before and after both; `post`: after both;
            `parallel`: one norm for both; `parallel2`: a norm each, side by side.
        gated: Three feed-forward matrices instead of two.
        qkv_bias, out_bias, mlp_bias: See BiasRule.
        qk_norm: See GqaAttention.
        head_dim: Class default where the key is absent; None: hidden / heads.
        tied: Class default of `tie_word_embeddings`; None: the key has to be there.
        head_bias: The head adds a bias.
        activation: Class default of `hidden_act`.
        window: How windows are laid out, see `windows`.
        pattern: One full layer in this many, for window layouts by period.
        positions: Extra rows of a learned position table (0: as many as positions); None: no table.
        kv_default: `heads` (absent means multi-head) or `required`.
    """

    source: str
    norm: Literal["rms", "layer"] = "rms"
    norm_bias: bool = False
    norm_scale: bool = True
    layout: Literal["pre", "sandwich", "post", "parallel", "parallel2"] = "pre"
    gated: bool = True
    qkv_bias: BiasRule = False
    out_bias: BiasRule = False
    mlp_bias: BiasRule = False
    qk_norm: Literal["none", "head", "full", "plain"] = "none"
    head_dim: int | None = None
    tied: bool = False
    head_bias: bool = False
    activation: str = "silu"
    window: Literal["none", "all", "upper", "types"] = "none"
    pattern: int = 0
    positions: int | None = None
    final_norm: bool = True
    path: str = "model.layers.{}"
    rotary: float = 1.0


@dataclass(slots=True, kw_only=True)
class Parts:
    """What a family's builder returns; the loader adds what all models share."""

    text: Stack
    head: tuple[Block, ...]
    tied: bool
    vocab: int | None
    towers: tuple[Stack, ...] = ()
    mtp: Stack | None = None
    mtp_heads: int = 0
    state_dtype: str | None = None
    phase_gap: Unknown | None = None
    readers: tuple[Reader, ...] = field(default=())


def bias(reader: Reader, rule: BiasRule, source: str) -> bool:
    """Return whether a projection has a bias, by the rule of its family."""
    return rule if isinstance(rule, bool) else reader.flag(rule, False, source)


def grouped(layers: list[Layer]) -> tuple[LayerGroup, ...]:
    """Return like layers together, in order of first appearance."""
    places: dict[Layer, list[int]] = {}
    for index, layer in enumerate(layers):
        places.setdefault(layer, []).append(index)
    return tuple(LayerGroup(layer=layer, indices=tuple(indices)) for layer, indices in places.items())


def norm_of(traits: Traits, width: int, path: str) -> Norm:
    """Return a norm of the family's kind."""
    return Norm(width=width, path=path, kind=traits.norm, bias=traits.norm_bias, scale=traits.norm_scale)


def heads_of(reader: Reader, traits: Traits, hidden: int) -> tuple[int, int, int]:
    """Return query heads, key heads and head width, noting what was derived."""
    heads = reader.integer("num_attention_heads")
    kv = reader.optional("num_key_value_heads")
    if kv is None:
        kv = heads
        reader.derive("num_key_value_heads", kv, ("num_attention_heads",), "absent or null: multi-head attention")
    if heads % kv:
        raise reader.wrong("num_key_value_heads", kv, f"a divisor of the {heads} query heads")
    return heads, kv, head_width(reader, traits, hidden, heads)


def head_width(reader: Reader, traits: Traits, hidden: int, heads: int) -> int:
    """Return the declared head width, the family's default, or hidden / heads where the family derives it."""
    declared = reader.optional("head_dim")
    if declared is not None:
        return declared
    if traits.head_dim is not None:
        return reader.integer("head_dim", traits.head_dim, traits.source)
    if hidden % heads:
        raise reader.wrong("hidden_size", hidden, f"a multiple of the {heads} heads, or a head_dim")
    reader.derive(
        "head_dim", hidden // heads, ("hidden_size", "num_attention_heads"), "hidden_size / num_attention_heads"
    )
    return hidden // heads


def rotary_dim(reader: Reader, head_dim: int, default: float = 1.0) -> int:
    """Return how many elements of a head RoPE rotates."""
    rope = reader.raw("rope_parameters") or reader.raw("rope_scaling")
    factor = reader.raw("partial_rotary_factor")
    if factor is None and isinstance(rope, Mapping):
        factor = rope.get("partial_rotary_factor")
    if factor is None:
        factor = reader.raw("rotary_pct")
    explicit = reader.raw("rotary_dim")
    if isinstance(explicit, int) and not isinstance(explicit, bool):
        return explicit
    if factor is None:
        factor = default
    if isinstance(factor, bool) or not isinstance(factor, int | float):
        raise reader.wrong("partial_rotary_factor", factor, "a number")
    return int(head_dim * factor)


def windows(reader: Reader, traits: Traits, depth: int) -> list[int | None]:
    """Return the window of each layer, None for full attention.

    `all`: every layer, where `sliding_window` is set. `upper`: layers from `max_window_layers` on, if
    `use_sliding_window`. `types`: by `layer_types`, or by the family's period where that list is absent.
    """
    if traits.window == "none":
        return [None] * depth
    if traits.window == "upper" and not reader.flag("use_sliding_window", False, traits.source):
        return [None] * depth
    window = reader.optional("sliding_window", absent="no window")
    kinds = reader.per_layer("layer_types", depth, ("sliding_attention", "full_attention"))
    if window is None and kinds is None and not traits.pattern:
        return [None] * depth
    if kinds is None and traits.window == "all":
        return [window] * depth
    if kinds is None and traits.window == "upper":
        first = reader.integer("max_window_layers", least=0)
        return [window if i >= first else None for i in range(depth)]
    if kinds is None:
        period = reader.optional("sliding_window_pattern") or traits.pattern
        if not period:
            raise reader.missing("layer_types")
        text = f"every {period}th layer is full, the others are windowed"
        reader.derive("layer_types", text, ("num_hidden_layers",), f"absent; rule of {traits.source}")
        kinds = ["full_attention" if (i + 1) % period == 0 else "sliding_attention" for i in range(depth)]
    if window is None and "sliding_attention" in kinds:
        window = reader.integer("sliding_window")
    return [window if kind == "sliding_attention" else None for kind in kinds]


def gqa(reader: Reader, traits: Traits, hidden: int) -> GqaAttention:
    """Return the attention block of a family without its window."""
    heads, kv, width = heads_of(reader, traits, hidden)
    qkv = bias(reader, traits.qkv_bias, traits.source)
    return GqaAttention(
        hidden=hidden, heads=heads, kv_heads=kv, head_dim=width, v_head_dim=width, qk_norm=traits.qk_norm,
        q_bias=qkv, k_bias=qkv, v_bias=qkv, out_bias=bias(reader, traits.out_bias, traits.source),
        rotary_dim=rotary_dim(reader, width, traits.rotary),
    )  # fmt: skip


def mlp(reader: Reader, traits: Traits, hidden: int, *, width: int | None = None, path: str = "mlp") -> Mlp:
    """Return the feed-forward block of a family."""
    both = bias(reader, traits.mlp_bias, traits.source)
    return Mlp(
        hidden=hidden,
        width=reader.integer("intermediate_size") if width is None else width,
        gated=traits.gated,
        activation=activation(reader, traits),
        bias=both,
        out_bias=both,
        path=path,
    )


def activation(reader: Reader, traits: Traits) -> str:
    """Return the name of the non-linearity."""
    return reader.text("hidden_act", traits.activation, traits.source)


def layer_of(traits: Traits, hidden: int, attention: Block, feed: Block) -> Layer:
    """Return a layer with its norms where the family puts them."""

    def n(path: str) -> Norm:
        return norm_of(traits, hidden, path)

    if traits.layout == "pre":
        return Layer(blocks=(n("input_layernorm"), attention, n("post_attention_layernorm"), feed))
    if traits.layout == "post":
        return Layer(blocks=(attention, n("post_attention_layernorm"), feed, n("post_feedforward_layernorm")))
    if traits.layout == "parallel":
        return Layer(blocks=(n("input_layernorm"), attention, feed))
    if traits.layout == "parallel2":
        return Layer(blocks=(n("input_layernorm"), n("post_attention_layernorm"), attention, feed))
    before, after = (n("input_layernorm"), n("post_attention_layernorm"))
    around = (n("pre_feedforward_layernorm"), n("post_feedforward_layernorm"))
    return Layer(blocks=(before, attention, after, around[0], feed, around[1]))


def decoder(
    reader: Reader,
    traits: Traits,
    *,
    attention: Callable[[int], Block] | None = None,
    feed: Callable[[int], Block] | None = None,
    inputs: tuple[Block, ...] = (),
) -> tuple[Stack, int]:
    """Return the text stack of a family and its vocabulary.

    Args:
        attention, feed: The blocks of layer i, where they differ from the family's plain ones.
        inputs: Blocks after the token table and before the first layer.
    """
    hidden = reader.integer("hidden_size")
    depth = reader.integer("num_hidden_layers")
    vocab = reader.integer("vocab_size")
    if attention is None:
        attention = windowed(gqa(reader, traits, hidden), windows(reader, traits, depth))
    if feed is None:
        plain = mlp(reader, traits, hidden)
        feed = lambda _i: plain  # noqa: E731 - one block for all layers
    layers = [layer_of(traits, hidden, attention(i), feed(i)) for i in range(depth)]
    first: tuple[Block, ...] = (Embedding(rows=vocab, width=hidden),)
    if traits.positions is not None:
        rows = reader.integer("max_position_embeddings") + traits.positions
        first += (Embedding(rows=rows, width=hidden, path="embed_positions", block="position_embedding"),)
    final: tuple[Block, ...] = (norm_of(traits, hidden, "norm"),) if traits.final_norm else ()
    stack = Stack(
        name="text", hidden=hidden, path=traits.path, groups=grouped(layers), inputs=first + inputs, outputs=final
    )
    return stack, vocab


def windowed(block: GqaAttention, layout: list[int | None]) -> Callable[[int], Block]:
    """Return attention by layer: one block, each layer with its own window."""
    made = {window: replace(block, window=window) for window in set(layout)}
    return lambda i: made[layout[i]]


def tie(reader: Reader, default: bool, source: str, outer: Reader | None = None) -> bool:
    """Return whether the head is the token table; the outer level of a nested configuration decides first."""
    for level in (outer, reader):
        if level is not None and level.raw("tie_word_embeddings") is not None:
            return level.flag("tie_word_embeddings")
    return (outer or reader).flag("tie_word_embeddings", default, source)


def head_for(
    reader: Reader, architecture: str, hidden: int, vocab: int, *, tied: bool, head_bias: bool = False
) -> tuple[Block, ...]:
    """Return the head that the class named in `architectures` puts on the last hidden state.

    Raises:
        UndecidedError: the class is none whose head is known.
    """
    if architecture == "undeclared":
        reader.assume("architectures", "a language-model head", "no class is named; the usual head of the family")
    if architecture == "undeclared" or architecture.endswith(
        ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
    ):
        return (Linear(out=vocab, into=hidden, path="lm_head", block="head", bias=head_bias, tied=tied),)
    if architecture.endswith(("ForSequenceClassification", "ForTokenClassification")):
        labels = labels_of(reader)
        with_bias = architecture.endswith("ForTokenClassification")
        return (Linear(out=labels, into=hidden, path="score", block="head", bias=with_bias),)
    if architecture.endswith("ForQuestionAnswering"):
        return (Linear(out=2, into=hidden, path="qa_outputs", block="head", bias=True),)
    if architecture.endswith("Model"):
        return ()
    raise reader.unsupported(
        f"the head of class {architecture!r} is not known",
        "a class ending in ForCausalLM, Model or ForSequenceClassification",
    )


def labels_of(reader: Reader) -> int:
    """Return how many labels a classification head tells apart."""
    names = reader.raw("id2label")
    if isinstance(names, Mapping) and names:
        reader.derive("num_labels", len(names), ("id2label",), "entries of id2label")
        return len(names)
    return reader.integer("num_labels", 2, "transformers PreTrainedConfig")
