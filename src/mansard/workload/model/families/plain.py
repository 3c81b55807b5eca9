"""A decoder from its dimensions, where the configuration declares no architecture at all.

Such a file says how wide and deep a model is, not which blocks it has. What it leaves open is assumed in writing, and any
key that hints at another kind of block refuses the reading.
"""

from __future__ import annotations

from dataclasses import replace

from mansard.workload.model.decoder import Parts, Traits, decoder, gqa, mlp
from mansard.workload.model.families.dense import finish
from mansard.workload.model.reader import ALIASES, Reader, silent
from mansard.workload.records import Moe

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


def build(reader: Reader, architecture: str, _family: str, outer: Reader | None = None) -> Parts:
    """Return the parts of a plain decoder; everything that the dimensions leave open is recorded as assumed."""
    strange = sorted(key for key in reader.values if key not in UNDERSTOOD and not silent(key))
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
