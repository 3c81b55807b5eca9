"""Attention of sequences of different lengths over a cache of keys and values that is kept in pages."""

from __future__ import annotations

import numpy as np

from mansard.core import Demand
from mansard.core.demand import Number
from mansard.operators.attention import attention
from mansard.operators.counting import Count, demand, number


def ragged_pairs(*, new_tokens: Count, contexts: Count) -> Number:
    """Return the visible (query, key) pairs of all sequences, the last new token of each seeing its whole context.

    Args:
        new_tokens: Query tokens of each sequence, an array or one number.
        contexts: Context of each sequence, its new tokens included.

    Source: Kwon et al., PagedAttention, arXiv:2309.06180; the causal sum of one sequence, q c - q (q - 1) / 2.

    One token on 5 keys, and 3 tokens that are all there is: 5 + (1 + 2 + 3).

    >>> ragged_pairs(new_tokens=np.array([1, 3]), contexts=np.array([5, 3]))
    11.0
    """
    q, c = np.atleast_1d(number(new_tokens)), np.atleast_1d(number(contexts))
    return float(np.sum(q * c - q * (q - 1.0) / 2.0))


def paged_attention(
    *, new_tokens: Count, contexts: Count, page_size: Count, heads: Count, kv_heads: Count, head_dim: Count, dtype: str
) -> Demand:
    """Return the demand of one step of ragged paged attention, the new keys and values written into their pages.

    Args:
        new_tokens: Query tokens of each sequence: 1 in decoding, the prompt (or a part of it) in prefill.
        contexts: Context of each sequence, its new tokens included.
        page_size: Tokens in one page; pages are read whole.
        heads, kv_heads, head_dim: Dimensions; keys and values have the same head_dim.
        dtype: Element type of queries and cache.

    Returns:
        4 head_dim FLOP per visible pair and query head. Queries are read and results written once, every page of a
        sequence is read once, the keys and values of the new tokens are written once.

    Assumes: no page is shared by sequences; page tables and lengths are not counted.
    Source: Kwon et al., PagedAttention, arXiv:2309.06180; Dao, FlashAttention-2, arXiv:2307.08691, section 4.1.

    One sequence, 1 new token, context 5 in pages of 4: 2 pages, 8 tokens. 4 * 8 * 5 * 2 heads = 320 FLOP; read
    2 * 8 * 4 B of queries and 2 * 8 * 8 * 4 B of pages; written 64 B of result and 2 * 8 * 4 B of new keys and values.

    >>> d = paged_attention(new_tokens=1, contexts=5, page_size=4, heads=2, kv_heads=1, head_dim=8, dtype="f32")
    >>> d.total_flop, d.read_bytes, d.write_bytes
    (320.0, 576.0, 128.0)
    """
    q, c = np.atleast_1d(number(new_tokens)), np.atleast_1d(number(contexts))
    tokens = float(np.sum(q))
    paged = float(np.sum(np.ceil(c / number(page_size)))) * number(page_size)
    cache = paged * number(kv_heads) * number(head_dim)
    core = attention(
        batch=1.0,
        heads=heads,
        kv_heads=kv_heads,
        queries=tokens,
        keys=float(np.sum(c)),
        head_dim=head_dim,
        dtype=dtype,
        causal=True,
        pairs=ragged_pairs(new_tokens=q, contexts=c),
        stored=((tokens * number(heads) * number(head_dim), dtype), (cache, dtype), (cache, dtype)),
    )
    written = demand(writes=[(2.0 * tokens * number(kv_heads) * number(head_dim), dtype)])
    return Demand(
        flop=core.flop,
        vector_flop=core.vector_flop,
        transcendental=core.transcendental,
        read_bytes=core.read_bytes,
        write_bytes=core.write_bytes + written.write_bytes,
    )
