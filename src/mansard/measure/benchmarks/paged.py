"""Ragged paged attention: decoding, prefill and both together, over fixed, drawn or given context lengths."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from mansard.measure.benchmarks.entry import Entry, chosen, integer, matrix_peak, missing_memory
from mansard.measure.benchmarks.paged_shape import MODES, PagedShape, paged_shape
from mansard.measure.points.benchmark import Parameter, Params, Prepared, Waived, Where, Work
from mansard.operators.attention import attention_flop
from mansard.operators.paged_attention import paged_attention, ragged_pairs

IMPLEMENTATIONS: Mapping[str, str] = {"xla-gather": "jax", "torch-sdpa": "torch"}


PARAMETERS = (
    Parameter(
        name="mode", kind="str", default="decode", choices=MODES, text="one new token each, whole prompts, or both"
    ),
    integer("num_seqs", 16, "sequences of the step", aliases=("batch",)),
    Parameter(
        name="lengths",
        kind="str",
        default="lognormal",
        text="fixed, lognormal, or context lengths with commas, repeated",
    ),
    integer("context", 1024, "median context, new tokens included", aliases=("seq_len",)),
    Parameter(name="sigma", kind="float", default=1.0, minimum=0.0, text="of the logarithm of drawn contexts"),
    integer("max_context", 8192, "longest context; 0 for no bound", minimum=0),
    integer("chunk", 0, "most new tokens of one prefill; 0 for the whole context", minimum=0),
    Parameter(name="prefill_share", kind="float", default=0.25, minimum=0.0, text="of the sequences, in mixed"),
    integer("page_size", 16, "tokens in a page"),
    integer("num_q_heads", 32, "query heads"),
    integer("num_kv_heads", 8, "key and value heads"),
    integer("head_dim", 128, "length of a head"),
    integer("seed", 0, "of lengths and of the order of pages", minimum=0),
    Parameter(name="dtype", kind="dtype", default="bf16", text="element type of queries and cache"),
)


def pairs_of(shape: PagedShape) -> float:
    """Return the visible pairs of a step."""
    return float(ragged_pairs(new_tokens=np.asarray(shape.new_tokens), contexts=np.asarray(shape.contexts)))


def _count(params: Params, _where: Where) -> Work:
    shape = paged_shape(params)
    demand = paged_attention(
        new_tokens=np.asarray(shape.new_tokens),
        contexts=np.asarray(shape.contexts),
        page_size=shape.page_size,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        dtype=shape.dtype,
    )
    # Padded to the longest of a group by XLA; the others compute a prompt's own square, masked.
    own = float(np.dot(shape.new_tokens, shape.contexts))
    pairs = shape.padded_pairs() if chosen(params, IMPLEMENTATIONS) == "xla-gather" else own
    decoding = shape.decoding == shape.sequences
    return Work(
        demand=demand,
        executed_flop=float(attention_flop(pairs=pairs, heads=shape.heads, head_dim=shape.head_dim)),
        headline="bytes" if decoding else "flop",
        peak=None if decoding else matrix_peak(shape.dtype),
        convention=(
            "model FLOP: 4 head_dim per visible pair and query head. Bytes: queries, results, every page of a context once, "
            "new keys and values written once"
        ),
    )


def _excuse(params: Params, impl: str, where: Where) -> Waived | None:
    shape = paged_shape(params)
    return missing_memory(shape.memory_bytes(), f"{impl} paged attention of this step", where)


def _prepare(params: Params, impl: str, where: Where) -> Prepared:
    from mansard.measure.benchmarks import paged_calls

    shape = paged_shape(params)
    if IMPLEMENTATIONS[impl] == "torch":
        return paged_calls.in_torch(shape, impl, params, where, pairs_of(shape))
    return paged_calls.in_jax(shape, impl, params, pairs_of(shape))


BENCHMARKS = (
    Entry(
        name="ragged_paged_attention",
        area="attention",
        parameters=PARAMETERS,
        implementations=IMPLEMENTATIONS,
        summary="attention of sequences of different lengths over a paged cache: decode, prefill, mixed",
        count=_count,
        make=_prepare,
        excuse=_excuse,
        aliases=("paged_attention",),
    ),
)
