"""Diffusion transformers of which the configuration describes every block: Flux."""

from __future__ import annotations

from mansard.core.unknown import Unknown
from mansard.workload.model.decoder import Parts, grouped
from mansard.workload.model.reader import Reader
from mansard.workload.records import Block, GqaAttention, Layer, Linear, Mlp, Norm, Stack

SOURCE = "diffusers FluxTransformer2DModel"


def _affine(path: str, out: int, into: int, block: str, *, once: bool = False) -> Linear:
    """Return a map with bias; `once`: it runs once per image and step, not per token."""
    return Linear(out=out, into=into, path=path, block=block, bias=True, rows_per_token=0.0 if once else 1.0)


def _attention(hidden: int, heads: int, dim: int, path: str, *, out: bool) -> tuple[Block, ...]:
    block = GqaAttention(
        hidden=hidden, heads=heads, kv_heads=heads, head_dim=dim, v_head_dim=dim, causal=False, path=path, qk_norm="head",
        q_bias=True, k_bias=True, v_bias=True, out_bias=out, rotary_dim=dim,
    )  # fmt: skip
    return (block,)


def flux(reader: Reader, _architecture: str, _family: str, _outer: Reader | None = None) -> Parts:
    """Return Flux: double blocks (image and text each with weights of their own), then single blocks.

    Attention of all blocks is joint over image and text tokens. Modulations, time and pooled-text embeddings run once per
    step.
    Source: diffusers transformer_flux.py; FLUX.1-dev holds 11,901,408,320 parameters.
    """
    heads, dim = reader.integer("num_attention_heads"), reader.integer("attention_head_dim", only=True)
    hidden = heads * dim
    reader.derive("hidden_size", hidden, ("num_attention_heads", "attention_head_dim"))
    channels, double = reader.integer("in_channels"), reader.integer("num_layers", only=True)
    single = reader.integer("num_single_layers", least=0)
    text, pooled = reader.integer("joint_attention_dim"), reader.integer("pooled_projection_dim")
    patch = reader.integer("patch_size", 1, SOURCE)
    out = reader.optional("out_channels") or channels
    wide = 4 * hidden
    both: list[Block] = []
    for name in ("", "_context"):
        both += [
            _affine(f"norm1{name}.linear", 6 * hidden, hidden, "modulation", once=True),
            *_attention(hidden, heads, dim, f"attn{name}", out=True),
            Mlp(
                hidden=hidden,
                width=wide,
                gated=False,
                activation="gelu_tanh",
                bias=True,
                out_bias=True,
                path=f"ff{name}",
            ),
        ]
    layers = [Layer(blocks=tuple(both))] * double + [Layer(blocks=_single(hidden, heads, dim, wide))] * single
    outer: tuple[Block, ...] = (
        _affine("x_embedder", hidden, channels, "patch_embedding"),
        _affine("context_embedder", hidden, text, "text_embedding"),
    )
    widths = [("timestep_embedder", 256), ("text_embedder", pooled)]
    if reader.flag("guidance_embeds", False, SOURCE):
        widths.append(("guidance_embedder", 256))
    for name, width in widths:
        outer += (
            _affine(f"time_text_embed.{name}.linear_1", hidden, width, "time_embedding", once=True),
            _affine(f"time_text_embed.{name}.linear_2", hidden, hidden, "time_embedding", once=True),
        )
    last: tuple[Block, ...] = (
        _affine("norm_out.linear", 2 * hidden, hidden, "modulation", once=True),
        _affine("proj_out", patch * patch * out, hidden, "head"),
    )
    stack = Stack(
        name="transformer",
        hidden=hidden,
        path="transformer_blocks.{}",
        groups=grouped(layers),
        inputs=outer,
        outputs=last,
    )
    gap = Unknown(
        "attention of Flux is joint over image and text tokens; phases of a language model do not apply",
        ("image and text tokens of one denoising step",),
    )
    return Parts(text=stack, head=(), tied=False, vocab=None, phase_gap=gap)


def _single(hidden: int, heads: int, dim: int, wide: int) -> tuple[Block, ...]:
    """A single block: attention without an output matrix beside a projection; both leave through one matrix."""
    blocks: list[Block] = [_affine("norm.linear", 3 * hidden, hidden, "modulation", once=True)]
    for name in ("to_q", "to_k", "to_v"):
        blocks.append(_affine(f"attn.{name}", heads * dim, hidden, "attention"))
    blocks += [Norm(width=dim, path="attn.norm_q"), Norm(width=dim, path="attn.norm_k")]
    blocks.append(_affine("proj_mlp", wide, hidden, "mlp"))
    blocks.append(_affine("proj_out", hidden, hidden + wide, "mlp"))
    return tuple(blocks)
