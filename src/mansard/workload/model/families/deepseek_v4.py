"""DeepSeek V4: counted block by block; its phases are left open.

Attention reads a window, and keys compressed by 4 or by 128; several residual streams are mixed around every block. All of its
tensors follow from the configuration. What its attention reads per token does not follow from them alone, so no phase is computed.
"""

from __future__ import annotations

from mansard.core.unknown import Unknown
from mansard.workload.model.decoder import Parts, Traits, activation, grouped
from mansard.workload.model.families.dense import finish
from mansard.workload.model.reader import Reader
from mansard.workload.records import Block, Embedding, Layer, Linear, Moe, Norm, Parameters, Stack

SOURCE = "transformers 5.24 DeepseekV4Config"
# compress_ratios: 0 reads the window alone, 4 adds compressed keys that an indexer picks, 128 all heavily compressed keys.
RATIOS = (0, 4, 128)
WORDS = {"sliding_attention": 0, "compressed_sparse_attention": 4, "heavily_compressed_attention": 128}


def build(reader: Reader, architecture: str, _family: str, outer: Reader | None = None) -> Parts:
    """Return the parts of DeepSeek V4.

    Source: transformers 5.24 modeling_deepseek_v4.py.
    """
    traits = Traits(source=SOURCE)
    hidden, depth, vocab = (
        reader.integer("hidden_size"),
        reader.integer("num_hidden_layers"),
        reader.integer("vocab_size"),
    )
    if reader.raw("mlp_bias") is True:
        raise reader.unsupported("DeepSeek V4 with biases in its experts", "mlp_bias false")
    ratios = _ratios(reader, depth)
    streams = reader.integer("hc_mult")
    experts, top_k = reader.integer("num_experts"), reader.integer("num_experts_per_tok")
    width = reader.integer("moe_intermediate_size")
    shared = reader.integer("n_shared_experts", least=0) * width
    if shared != width:
        raise reader.unsupported("several shared experts in DeepSeek V4", "n_shared_experts of 1")
    reader.derive("shared_expert_width", shared, ("n_shared_experts", "moe_intermediate_size"))
    hashed = reader.integer("num_hash_layers", 3, SOURCE, least=0)
    act = activation(reader, traits)

    def moe(learned: bool) -> Moe:
        return Moe(
            hidden=hidden, experts=experts, top_k=top_k, width=width, gated=True, activation=act, shared_width=shared,
            correction_bias=experts if learned else 0,
        )  # fmt: skip

    layers = [
        Layer(
            blocks=(
                *_streams(hidden, streams, "attn_hc"), Norm(width=hidden, path="input_layernorm"), *_attention(reader, hidden, ratio),
                *_streams(hidden, streams, "ffn_hc"), Norm(width=hidden, path="post_attention_layernorm"), moe(i >= hashed),
            )
        )
        for i, ratio in enumerate(ratios)
    ]  # fmt: skip
    head = (
        Norm(width=hidden, path="norm"),
        Parameters(path="hc_head.hc_fn", shape=(streams, streams * hidden), block="streams", role="matmul"),
        Parameters(path="hc_head.hc_base", shape=(streams,), block="streams"),
        Parameters(path="hc_head.hc_scale", shape=(1,), block="streams"),
    )
    stack = Stack(
        name="text", hidden=hidden, path="model.layers.{}", groups=grouped(layers), inputs=(Embedding(rows=vocab, width=hidden),),
        outputs=head,
    )  # fmt: skip
    parts = finish(reader, architecture, traits, stack, vocab, outer)
    parts.phase_gap = Unknown(
        "what compressed attention reads per token is not modelled for DeepSeek V4; its parameters are counted",
        ("the compressed keys that a token reads in each layer",),
    )
    if reader.optional("num_nextn_predict_layers", least=0, absent="no MTP layers"):
        reader.note("the configuration announces MTP layers but not how they are joined: they are not counted")
    return parts


def _ratios(reader: Reader, depth: int) -> list[int]:
    words = reader.per_layer("layer_types", depth, tuple(WORDS))
    if words is not None:
        return [WORDS[word] for word in words]
    stated = reader.array("compress_ratios")
    if stated is None:
        raise reader.missing("compress_ratios")
    if len(stated) < depth:
        raise reader.wrong("compress_ratios", f"{len(stated)} entries", f"at least {depth}, one per layer")
    for entry in stated[:depth]:
        if isinstance(entry, bool) or entry not in RATIOS:
            raise reader.unsupported(f"a layer compressed by {entry!r}", "ratios 0, 4 and 128")
    if len(stated) > depth:
        reader.derive(
            "layer_types",
            f"{depth} of {len(stated)} compress_ratios",
            ("compress_ratios",),
            "the rest belong to MTP layers",
        )
    return [int(entry) for entry in stated[:depth]]


def _streams(hidden: int, streams: int, path: str) -> tuple[Block, ...]:
    """The mixing of residual streams before a block: (2 + n) n outputs from all n streams, and their offsets and scales."""
    outputs = (2 + streams) * streams
    return (
        Parameters(path=f"{path}.fn", shape=(outputs, streams * hidden), block="streams", role="matmul"),
        Parameters(path=f"{path}.base", shape=(outputs,), block="streams"),
        Parameters(path=f"{path}.scale", shape=(3,), block="streams"),
    )


def _attention(reader: Reader, hidden: int, ratio: int) -> tuple[Block, ...]:
    """One shared key-value head, queries through a latent, output through groups of low rank; and a compressor."""
    heads, dim, rank = reader.integer("num_attention_heads"), reader.integer("head_dim"), reader.integer("q_lora_rank")
    if reader.integer("num_key_value_heads") != 1:
        raise reader.unsupported("DeepSeek V4 with several key heads", "num_key_value_heads of 1")
    groups, o_rank = reader.integer("o_groups"), reader.integer("o_lora_rank")
    if heads * dim % groups:
        raise reader.wrong("o_groups", groups, f"a divisor of {heads * dim}")
    p, b = "self_attn", "attention"
    blocks: tuple[Block, ...] = (
        Linear(out=rank, into=hidden, path=f"{p}.q_a_proj", block=b),
        Norm(width=rank, path=f"{p}.q_a_norm"),
        Linear(out=heads * dim, into=rank, path=f"{p}.q_b_proj", block=b),
        Linear(out=dim, into=hidden, path=f"{p}.kv_proj", block=b),
        Norm(width=dim, path=f"{p}.kv_norm"),
        Linear(out=groups * o_rank, into=heads * dim // groups, path=f"{p}.o_a_proj", block=b),
        Linear(out=hidden, into=groups * o_rank, path=f"{p}.o_b_proj", block=b),
        Parameters(path=f"{p}.sinks", shape=(heads,), block=b),
    )
    if ratio == 0:
        return blocks
    # Overlapping windows of the light compressor need two sets of keys, the heavy one needs one.
    blocks += _compressor(hidden, dim, ratio, f"{p}.compressor", sets=2 if ratio == 4 else 1, block="compressor")
    if ratio == 4:
        index_heads, index_dim = reader.integer("index_n_heads"), reader.integer("index_head_dim")
        path = f"{p}.compressor.indexer"
        blocks += _compressor(hidden, index_dim, ratio, path, sets=2, block="indexer")
        blocks += (
            Linear(out=index_heads * index_dim, into=rank, path=f"{path}.q_b_proj", block="indexer"),
            Linear(out=index_heads, into=hidden, path=f"{path}.scorer.weights_proj", block="indexer"),
        )
    return blocks


def _compressor(hidden: int, dim: int, ratio: int, path: str, *, sets: int, block: str) -> tuple[Block, ...]:
    return (
        Linear(out=sets * dim, into=hidden, path=f"{path}.kv_proj", block=block),
        Linear(out=sets * dim, into=hidden, path=f"{path}.gate_proj", block=block),
        Parameters(path=f"{path}.position_bias", shape=(ratio, sets * dim), block=block),
        Norm(width=dim, path=f"{path}.kv_norm"),
    )
