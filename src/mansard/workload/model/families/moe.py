"""Decoders with routed experts and grouped-query attention: which layers route, what is shared, which biases exist."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from mansard.workload.model.decoder import Parts, Traits, activation, bias, decoder, gqa, mlp, windowed, windows
from mansard.workload.model.families.dense import finish
from mansard.workload.model.reader import Reader
from mansard.workload.records import GqaAttention, Mlp, Moe


def _source(name: str) -> str:
    return f"transformers 5.24 {name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeTraits:
    """What the code of a family of experts fixes.

    Args:
        base: Attention, norms and head.
        width_key: Key of the width of one expert.
        dense: Which layers do not route: `none`, `sparse_step` (decoder_sparse_step, mlp_only_layers), `first_k`
            (first_k_dense_replace), `first_k_freq` (the same with moe_layer_freq).
        shared: `none`, `width` (shared_expert_intermediate_size), `count` (n_shared_experts times the expert width).
        shared_gate: The shared expert has a sigmoid gate.
        router_bias: The router adds a bias.
        correction: A routing bias that is a buffer: a key that switches it, or True or False.
        expert_bias: Experts add biases.
    """

    base: Traits
    width_key: str = "moe_intermediate_size"
    dense: str = "none"
    shared: str = "none"
    shared_key: str = "shared_expert_intermediate_size"
    shared_gate: bool = False
    router_bias: bool = False
    correction: bool = False
    expert_bias: bool = False
    path: str = "mlp"
    sinks: bool = False


FAMILIES: dict[str, MoeTraits] = {
    "mixtral": MoeTraits(base=Traits(source=_source("MixtralConfig"), window="all"), width_key="intermediate_size", path="block_sparse_moe"),
    "qwen2_moe": MoeTraits(
        base=Traits(source=_source("Qwen2MoeConfig"), qkv_bias=True, window="upper"), dense="sparse_step", shared="width", shared_gate=True
    ),
    "qwen3_moe": MoeTraits(
        base=Traits(source=_source("Qwen3MoeConfig"), qk_norm="head", window="upper", qkv_bias="attention_bias", out_bias="attention_bias"),
        dense="sparse_step",
    ),
    "olmoe": MoeTraits(
        base=Traits(source=_source("OlmoeConfig"), qk_norm="full", qkv_bias="attention_bias", out_bias="attention_bias"),
        width_key="intermediate_size",
    ),
    "granitemoe": MoeTraits(
        base=Traits(source=_source("GraniteMoeConfig"), qkv_bias="attention_bias", out_bias="attention_bias"), width_key="intermediate_size"
    ),
    "granitemoeshared": MoeTraits(
        base=Traits(source=_source("GraniteMoeSharedConfig"), qkv_bias="attention_bias", out_bias="attention_bias"),
        width_key="intermediate_size", shared="width", shared_key="shared_intermediate_size",
    ),
    "phimoe": MoeTraits(
        base=Traits(
            source=_source("PhimoeConfig"), norm="layer", norm_bias=True, qkv_bias="attention_bias", out_bias="attention_bias", window="all"
        ),
        width_key="intermediate_size",
    ),
    "minimax_m2": MoeTraits(
        base=Traits(source=_source("MiniMaxM2Config"), qk_norm="full", head_dim=128), width_key="intermediate_size", correction=True
    ),
    "gpt_oss": MoeTraits(
        base=Traits(source=_source("GptOssConfig"), qkv_bias="attention_bias", out_bias="attention_bias", head_dim=64, window="types", pattern=2),
        width_key="intermediate_size", router_bias=True, expert_bias=True, sinks=True,
    ),
    "glm4_moe": MoeTraits(
        base=Traits(source=_source("Glm4MoeConfig"), qkv_bias="attention_bias", rotary=0.5), dense="first_k", shared="count", correction=True
    ),
    "glm4v_moe_text": MoeTraits(
        base=Traits(source=_source("Glm4vMoeTextConfig"), qkv_bias="attention_bias", rotary=0.5), dense="first_k", shared="count", correction=True
    ),
    "exaone_moe": MoeTraits(
        base=Traits(source=_source("ExaoneMoeConfig"), qk_norm="head", window="types", pattern=4), dense="first_k", shared="count", correction=True
    ),
    "hy_v3": MoeTraits(
        base=Traits(source=_source("HYV3Config"), qk_norm="head", qkv_bias="attention_bias", out_bias="attention_bias", mlp_bias="mlp_bias"),
        dense="first_k", shared="count", correction=True,
    ),
    "mellum": MoeTraits(
        base=Traits(source=_source("MellumConfig"), qk_norm="head", window="types", qkv_bias="attention_bias", out_bias="attention_bias"),
        dense="first_k",
    ),
    "flex_olmo": MoeTraits(
        base=Traits(source=_source("FlexOlmoConfig"), layout="post", qk_norm="full", qkv_bias="attention_bias", out_bias="attention_bias"),
        width_key="intermediate_size",
    ),
    "dots1": MoeTraits(
        base=Traits(source=_source("Dots1Config"), qk_norm="head", qkv_bias="attention_bias", out_bias="attention_bias", window="types"),
        dense="first_k", shared="count", correction=True,
    ),
}  # fmt: skip
FAMILIES["qwen3_vl_moe_text"] = replace(FAMILIES["qwen3_moe"], base=replace(FAMILIES["qwen3_moe"].base, window="none"))


def build(reader: Reader, architecture: str, family: str, outer: Reader | None = None) -> Parts:
    """Return the parts of a decoder with experts of a family in `FAMILIES`."""
    traits = FAMILIES[family]
    base = traits.base
    hidden = reader.integer("hidden_size")
    depth = reader.integer("num_hidden_layers")
    block = gqa(reader, base, hidden)
    if family == "glm4_moe" and reader.flag("use_qk_norm", False, base.source):
        block = replace(block, qk_norm="head")
    if family == "qwen2_moe" and not reader.flag("qkv_bias", True, base.source):
        block = replace(block, q_bias=False, k_bias=False, v_bias=False)
    if traits.sinks:
        block = replace(block, sinks=True)
    if reader.raw("mlp_bias") is True:
        raise reader.unsupported(f"{family} with biases in its experts", "mlp_bias false")
    if family == "minimax_m2":
        block, traits = _minimax(reader, block, traits)
    if family == "phimoe":
        base = replace(base, head_bias=reader.flag("lm_head_bias", False, base.source))
    routed = moe_block(reader, traits, hidden)
    sparse = routed_layers(reader, traits, depth)
    dense = mlp(reader, base, hidden) if not all(sparse) else None
    feed = choose(routed, dense, sparse)
    stack, vocab = decoder(reader, base, attention=windowed(block, windows(reader, base, depth)), feed=feed)
    if reader.raw("use_mtp") is True or reader.optional("num_mtp_modules", least=0):
        reader.note("the configuration announces MTP modules but does not describe their blocks: they are not counted")
        reader.raw("mtp_transformer_layers")
    return finish(reader, architecture, base, stack, vocab, outer)


def _minimax(reader: Reader, block: GqaAttention, traits: MoeTraits) -> tuple[GqaAttention, MoeTraits]:
    """MiniMax M2 says in its file whether queries and keys are normalised and whether routing is biased."""
    if reader.raw("qk_norm_type") not in (None, "per_layer"):
        raise reader.unsupported(f"qk_norm_type {reader.raw('qk_norm_type')!r}", "per_layer")
    if reader.optional("shared_intermediate_size", least=0):
        raise reader.unsupported("MiniMax M2 with shared experts", "shared_intermediate_size of 0")
    if not reader.flag("use_qk_norm", True, traits.base.source):
        block = replace(block, qk_norm="none")
    return block, replace(traits, correction=reader.flag("use_routing_bias", True, traits.base.source))


def choose(routed: Moe, dense: Mlp | None, sparse: list[bool]) -> Callable[[int], Moe | Mlp]:
    """Return the feed-forward block of layer i."""

    def feed(i: int) -> Moe | Mlp:
        if sparse[i] or dense is None:
            return routed
        return dense

    return feed


def routed_layers(reader: Reader, traits: MoeTraits, depth: int) -> list[bool]:
    """Return for each layer whether it routes.

    `sparse_step`: layer i routes if (i + 1) is a multiple of the step and it is not listed in `mlp_only_layers`, so a step of 1
    is every layer and 2 every second. `first_k`: the first k layers are dense.
    """
    source = traits.base.source
    if traits.dense == "none":
        return [True] * depth
    if traits.dense == "sparse_step":
        step = reader.integer("decoder_sparse_step", 1, source)
        only = reader.array("mlp_only_layers") or []
        for index in only:
            if isinstance(index, bool) or not isinstance(index, int):
                raise reader.wrong("mlp_only_layers", index, "layer numbers")
        return [(i + 1) % step == 0 and i not in only for i in range(depth)]
    words = reader.per_layer("mlp_layer_types", depth, ("dense", "sparse"))
    if words is not None:
        reader.raw("first_k_dense_replace")
        reader.raw("moe_layer_freq")
        return [word == "sparse" for word in words]
    first = reader.integer("first_k_dense_replace", least=0)
    every = reader.integer("moe_layer_freq", 1, source) if traits.dense == "first_k_freq" else 1
    return [i >= first and i % every == 0 for i in range(depth)]


def experts_of(reader: Reader) -> tuple[int, int]:
    """Return how many experts there are and how many a token uses."""
    experts = reader.integer("num_experts")
    top_k = reader.integer("num_experts_per_tok")
    if top_k > experts:
        raise reader.wrong("num_experts_per_tok", top_k, f"at most the {experts} experts")
    return experts, top_k


def moe_block(reader: Reader, traits: MoeTraits, hidden: int) -> Moe:
    """Return the routed feed-forward block of a family."""
    experts, top_k = experts_of(reader)
    width = reader.integer(traits.width_key)
    shared = shared_width(reader, traits, width)
    act = activation(reader, traits.base)
    expert_bias = bias(reader, traits.expert_bias, traits.base.source)
    return Moe(
        hidden=hidden, experts=experts, top_k=top_k, width=width, gated=traits.base.gated, activation=act, path=traits.path,
        shared_width=shared, shared_gate=traits.shared_gate and shared > 0, router_bias=traits.router_bias,
        correction_bias=experts if traits.correction else 0, expert_bias=expert_bias,
    )  # fmt: skip


def shared_width(reader: Reader, traits: MoeTraits, width: int) -> int:
    """Return the inner width of all shared experts together."""
    if traits.shared == "width":
        return reader.integer(traits.shared_key, least=0)
    if traits.shared == "count":
        count = reader.integer("n_shared_experts", least=0)
        reader.derive("shared_expert_width", count * width, ("n_shared_experts", traits.width_key))
        return count * width
    return 0


def llama4(reader: Reader, architecture: str, _family: str, outer: Reader | None = None) -> Parts:
    """Return the parts of Llama 4: experts every `interleave_moe_layer_step` layers, chunks on layers with RoPE."""
    base = Traits(
        source=_source("Llama4TextConfig"), head_dim=128, qkv_bias="attention_bias", out_bias="attention_bias"
    )
    hidden = reader.integer("hidden_size")
    depth = reader.integer("num_hidden_layers")
    step = reader.integer("interleave_moe_layer_step", 1, base.source)
    listed = reader.array("moe_layers")
    places = set(listed) if listed else set(range(step - 1, depth, step))
    if not listed:
        reader.derive(
            "moe_layers", len(places), ("interleave_moe_layer_step", "num_hidden_layers"), "range(step - 1, L, step)"
        )
    width = reader.integer("intermediate_size")
    traits = MoeTraits(base=base, width_key="intermediate_size", path="feed_forward")
    routed = replace(moe_block(reader, traits, hidden), shared_width=width)
    reader.derive("shared_expert_width", width, ("intermediate_size",), "one shared expert beside the routed ones")
    sparse = [i in places for i in range(depth)]
    dense = None
    if not all(sparse):
        dense = mlp(reader, base, hidden, width=reader.integer("intermediate_size_mlp"), path="feed_forward")
    attention = _llama4_attention(reader, base, hidden, depth)
    stack, vocab = decoder(reader, base, attention=attention, feed=choose(routed, dense, sparse))
    return finish(reader, architecture, base, stack, vocab, outer)


def _llama4_attention(reader: Reader, base: Traits, hidden: int, depth: int) -> Callable[[int], GqaAttention]:
    block = gqa(reader, base, hidden)
    interval = reader.integer("no_rope_layer_interval", 4, base.source)
    flags = reader.array("no_rope_layers") or [int((i + 1) % interval != 0) for i in range(depth)]
    if len(flags) != depth:
        raise reader.wrong("no_rope_layers", f"{len(flags)} entries", f"{depth}, one per layer")
    chunk = reader.optional("attention_chunk_size", absent="no chunks")
    plain = reader.flag("use_qk_norm", True, base.source)
    rope = replace(block, chunk=chunk, qk_norm="plain" if plain else "none")
    bare = replace(block, rotary_dim=0)
    kinds = reader.per_layer("layer_types", depth, ("chunked_attention", "full_attention"))
    if kinds is not None:
        made = [
            replace(rope if flags[i] else bare, chunk=chunk if kinds[i] == "chunked_attention" else None)
            for i in range(depth)
        ]
        return lambda i: made[i]
    return lambda i: rope if flags[i] else bare


def ernie(reader: Reader, architecture: str, _family: str, outer: Reader | None = None) -> Parts:
    """Return the parts of ERNIE 4.5 MoE: a range of layers routes, the routing bias is a learned parameter."""
    source = _source("Ernie4_5_MoeConfig")
    base = Traits(
        source=source,
        tied=True,
        qkv_bias="use_bias",
        out_bias="use_bias",
        mlp_bias="use_bias",
        head_bias=reader.raw("use_bias") is True,
    )
    if reader.raw("use_bias") is True:
        raise reader.unsupported("ERNIE 4.5 with biases in its experts", "use_bias false")
    hidden = reader.integer("hidden_size")
    depth = reader.integer("num_hidden_layers")
    experts, top_k = reader.integer("moe_num_experts"), reader.integer("moe_k")
    width = reader.integer("moe_intermediate_size")
    count = reader.integer("moe_num_shared_experts", least=0)
    first = reader.integer("moe_layer_start_index", 1, source, least=0)
    last = reader.integer("moe_layer_end_index", -1, source, least=-1)
    every = reader.integer("moe_layer_interval", 1, source)
    last = depth - 1 if last == -1 else last
    sparse = [(i + 1) % every == 0 and first <= i <= last for i in range(depth)]
    routed = Moe(
        hidden=hidden, experts=experts, top_k=top_k, width=width, gated=True, activation=activation(reader, base),
        shared_width=count * width, correction_bias=experts, correction_learned=True,
    )  # fmt: skip
    reader.derive("shared_expert_width", count * width, ("moe_num_shared_experts", "moe_intermediate_size"))
    dense = mlp(reader, base, hidden) if not all(sparse) else None
    stack, vocab = decoder(reader, base, feed=choose(routed, dense, sparse))
    return finish(reader, architecture, base, stack, vocab, outer)
