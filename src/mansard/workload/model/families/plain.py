"""A decoder from its dimensions, where the configuration declares no architecture at all.

Such a file says how wide and deep a model is, not which blocks it has. What it leaves open is assumed in writing, and any
key that hints at another kind of block refuses the reading.
"""

from __future__ import annotations

from dataclasses import replace

from mansard.workload.model.decoder import Parts, Traits, decoder, gqa, mlp
from mansard.workload.model.families.dense import finish
from mansard.workload.model.reader import ALIASES, Reader, silent
from mansard.workload.records import Mlp, Moe

SOURCE = "no architecture is declared: the usual decoder (norm, attention, norm, feed-forward) with RMS norms and RoPE"
GATED = frozenset({"silu", "swish", "swiglu", "geglu"})
UNDERSTOOD = frozenset(
    name
    for key in (
        "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size",
        "vocab_size", "max_position_embeddings", "hidden_act", "num_experts", "num_experts_per_tok", "dtype",
    )
    for name in ALIASES[key]
) | {"qk_norm", "gated_mlp", "tie_word_embeddings", "attention_bias", "mlp_bias"}  # fmt: skip


REFERENCE = (
    "params.json of the reference implementations: meta-llama/llama3 model.py, mistralai/mistral-inference args.py"
)
REFERENCE_KEYS = frozenset({
    "dim", "n_layers", "n_heads", "n_kv_heads", "head_dim", "hidden_dim", "multiple_of", "ffn_dim_multiplier", "vocab_size",
    "norm_eps", "rope_theta", "use_scaled_rope", "moe", "max_seq_len", "max_batch_size", "sliding_window", "tied_embeddings",
})  # fmt: skip


def _reference_width(reader: Reader, hidden: int) -> int:
    """Return the inner width: stated, or two thirds of 4 x dim, times a factor, up to a multiple (Llama)."""
    stated = reader.optional("hidden_dim", only=True)
    if stated is not None:
        return stated
    every = reader.integer("multiple_of")
    width = int(2 * 4 * hidden / 3)
    if reader.raw("ffn_dim_multiplier") is not None:
        width = int(reader.number("ffn_dim_multiplier", 1.0, REFERENCE) * width)
    width = -(-width // every) * every
    reader.derive("intermediate_size", width, ("dim", "multiple_of", "ffn_dim_multiplier"), f"rule of {REFERENCE}")
    return width


def reference(reader: Reader, architecture: str, outer: Reader | None) -> Parts:
    """Return the parts of a Llama, Mistral or Mixtral that its `params.json` describes."""
    strange = sorted(set(reader.values) - REFERENCE_KEYS)
    if strange:
        raise reader.unsupported(
            f"{', '.join(strange[:5])} in a params.json", "the config.json of the model, or a params.json without them"
        )
    traits = Traits(source=REFERENCE, window="all")
    hidden, depth, heads = (
        reader.integer("dim"),
        reader.integer("n_layers", only=True),
        reader.integer("n_heads", only=True),
    )
    for key, value in (("hidden_size", hidden), ("num_hidden_layers", depth), ("num_attention_heads", heads)):
        reader.values = {**reader.values, key: value}
    kv = reader.optional("n_kv_heads", only=True)
    tied = reader.flag("tied_embeddings", False, REFERENCE)
    reader.values = {**reader.values, "num_key_value_heads": heads if kv is None else kv, "tie_word_embeddings": tied}
    if kv is None:
        reader.derive("num_key_value_heads", heads, ("n_heads",), "absent: multi-head attention")
    width = _reference_width(reader, hidden)
    block = gqa(reader, traits, hidden)
    window = reader.optional("sliding_window", absent="no window")
    feed: Mlp | Moe = Mlp(hidden=hidden, width=width, gated=True, activation="silu", path="feed_forward")
    routed = reader.child("moe", required=False)
    if routed is not None:
        experts, top_k = routed.integer("num_experts"), routed.integer("num_experts_per_tok")
        if top_k > experts:
            raise routed.wrong("num_experts_per_tok", top_k, f"at most the {experts} experts")
        feed = Moe(
            hidden=hidden, experts=experts, top_k=top_k, width=width, gated=True, activation="silu", path="feed_forward"
        )
    reader.assume("hidden_act", "silu", REFERENCE)
    stack, vocab = decoder(reader, traits, attention=lambda _i: replace(block, window=window), feed=lambda _i: feed)
    return finish(reader, architecture, traits, stack, vocab, outer)


def build(reader: Reader, architecture: str, _family: str, outer: Reader | None = None) -> Parts:
    """Return the parts of a plain decoder; everything that the dimensions leave open is recorded as assumed."""
    if reader.has("dim") and reader.has("n_heads"):
        return reference(reader, architecture, outer)
    strange = sorted(key for key in reader.values if key not in UNDERSTOOD and not silent(key))
    if {"producer", "quantization"} <= set(strange) and not reader.has("hidden_size"):
        raise reader.unsupported(
            "this file tells how a checkpoint is quantised, not what the model is",
            "give the config.json of the same checkpoint, or the folder that holds both",
        )
    if strange:
        raise reader.unsupported(
            f"no model_type and no architectures, and {', '.join(strange[:5])} may mean other blocks",
            "add model_type; dimensions alone do not say which blocks a layer has",
        )
    reader.assume("architectures", "plain decoder", SOURCE)
    traits = Traits(
        source=SOURCE, qkv_bias="attention_bias", out_bias="attention_bias", mlp_bias="mlp_bias",
        qk_norm="head" if reader.flag("qk_norm", False, SOURCE) else "none", gated=_gated(reader),
    )  # fmt: skip
    hidden = reader.integer("hidden_size")
    depth = reader.integer("num_hidden_layers")
    block = gqa(reader, traits, hidden)
    if not reader.has("hidden_act"):
        traits = replace(traits, activation="silu")
    if reader.has("num_experts") or reader.has("num_experts_per_tok"):
        experts, top_k = reader.integer("num_experts"), reader.integer("num_experts_per_tok")
        if top_k > experts:
            raise reader.wrong("num_experts_per_tok", top_k, f"at most the {experts} experts")
        reader.assume("moe_layers", depth, "no key says which layers route: all")
        routed = Moe(
            hidden=hidden, experts=experts, top_k=top_k, width=reader.integer("intermediate_size"), gated=traits.gated,
            activation=reader.text("hidden_act", traits.activation, SOURCE),
        )  # fmt: skip
        stack, vocab = decoder(reader, traits, attention=lambda _i: block, feed=lambda _i: routed)
    else:
        dense = mlp(reader, traits, hidden)
        stack, vocab = decoder(reader, traits, attention=lambda _i: block, feed=lambda _i: dense)
    return finish(reader, architecture, traits, stack, vocab, outer)


def _gated(reader: Reader) -> bool:
    """Return whether the feed-forward block has three matrices: stated, or by its activation, or assumed."""
    if reader.raw("gated_mlp") is not None:
        return reader.flag("gated_mlp")
    act = reader.raw("hidden_act")
    if isinstance(act, str):
        gated = act.lower() in GATED
        reader.assume("gated_mlp", gated, f"hidden_act is {act!r}")
        return gated
    return reader.flag("gated_mlp", True, SOURCE)
