"""The attention core: softmax(Q K^T) V with its masks, forward and backward.

Shapes: Q is (batch, heads, queries, head_dim), K is (batch, kv_heads, keys, head_dim), V is (batch, kv_heads, keys,
value_dim). `kv_heads` equal to `heads` is multi-head attention, 1 is multi-query, anything between is grouped-query;
it changes bytes, never FLOP.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from mansard.core import Demand
from mansard.core.demand import Number
from mansard.operators.counting import Count, Elements, at_least, at_most, demand, matrix_work, number

Alignment = Literal["top_left", "bottom_right"]


def visible_pairs(
    *,
    queries: Count,
    keys: Count,
    causal: bool,
    window: Count | None = None,
    alignment: Alignment = "top_left",
) -> Number:
    """Return how many (query, key) pairs a mask lets through, exactly.

    Args:
        queries, keys: Length of the two sequences.
        causal: Query i sees keys up to i; False for every key.
        window: With `causal`, only the last `window` of these keys; None for all of them.
        alignment: `top_left`: query i sees keys up to i, as in PyTorch's `is_causal`; `bottom_right`: the last query sees
            every key, as in FlashAttention from version 2.1 on and in decoding with a cache.

    Returns:
        The sum over queries of the visible keys; s(s+1)/2 for a square causal mask, (s+1)/2 per query.

    Source: PyTorch documentation of scaled_dot_product_attention, `is_causal`; FlashAttention README, version 2.1.

    Four queries see 1 + 2 + 3 + 4 keys; with a window of 2, 1 + 2 + 2 + 2:

    >>> visible_pairs(queries=4, keys=4, causal=True), visible_pairs(queries=4, keys=4, causal=True, window=2)
    (10.0, 7.0)
    """
    if not causal:
        return number(queries) * number(keys)
    offset = number(keys) - number(queries) if alignment == "bottom_right" else 0.0
    pairs = _sum_of_clamped(number(queries), offset + 1.0, number(keys))
    if window is None:
        return pairs
    return pairs - _sum_of_clamped(number(queries), offset + 1.0 - number(window), number(keys))


def _sum_of_clamped(count: Number, first: Number, ceiling: Number) -> Number:
    """Sum of min(max(first + i, 0), ceiling) for i below `count`."""

    def up_to(t: Number) -> Number:
        inside = at_least(at_most(t, ceiling), 0.0)
        return inside * (inside + 1.0) / 2.0 + ceiling * at_least(t - ceiling, 0.0)

    return up_to(first + count - 1.0) - up_to(first - 1.0)


def attention_flop(
    *, pairs: Count, heads: Count, head_dim: Count, batch: Count = 1.0, value_dim: Count | None = None
) -> Number:
    """Return the FLOP of Q K^T and P V over `pairs` visible pairs per head.

    Args:
        pairs: Visible (query, key) pairs of one head, see `visible_pairs`.
        heads: Query heads.
        head_dim: Length of a query and a key.
        batch: Sequences.
        value_dim: Length of a value; None for `head_dim`.

    Returns:
        2 (head_dim + value_dim) pairs heads batch [FLOP].

    Source: Dao, FlashAttention-2, arXiv:2307.08691, section 4.1 (4 s^2 d heads, halved when causal).

    >>> attention_flop(pairs=10, heads=1, head_dim=8)
    320.0
    """
    width = number(head_dim) + number(head_dim if value_dim is None else value_dim)
    return 2.0 * width * number(pairs) * number(heads) * number(batch)


def attention(
    *,
    batch: Count,
    heads: Count,
    kv_heads: Count,
    queries: Count,
    keys: Count,
    head_dim: Count,
    dtype: str,
    causal: bool,
    value_dim: Count | None = None,
    window: Count | None = None,
    alignment: Alignment = "top_left",
    mask: Elements | None = None,
    statistics: bool = False,
    pairs: Count | None = None,
    stored: tuple[Elements, Elements, Elements] | None = None,
) -> Demand:
    """Return the demand of a fused attention core, forward.

    Args:
        batch, heads, kv_heads, queries, keys, head_dim: Dimensions, see the top of this module.
        dtype: Element type.
        causal, window, alignment: The mask, see `visible_pairs`.
        value_dim: Length of a value; None for `head_dim`.
        mask: Elements and type of a mask given as a tensor. What it hides is not known, so its pairs are counted in full.
        statistics: The log-sum-exp of each row is written (f32, or f64 for f64), as training needs.
        pairs: Visible pairs per head where they are known otherwise, such as of packed sequences.
        stored: Distinct elements and type of Q, K and V where they are shared or broadcast.

    Returns:
        2 (head_dim + value_dim) FLOP per visible pair and head; Q, K, V and the mask read once, the result written once;
        scores never leave the chip. Per pair: scale, maximum, subtraction and sum (4 vector FLOP) and one exponential.

    Assumes: a fused kernel. Unfused attention also writes and reads the scores, as its separate operations show.
    Source: Dao, FlashAttention-2, arXiv:2307.08691, sections 3.1 and 4.1; Ainslie et al., GQA, arXiv:2305.13245.

    4 queries, causal: 10 pairs; 2 * (8 + 8) * 10 = 320 FLOP; Q, K, V of 4 * 8 f32 are 384 B, the result 128 B.

    >>> d = attention(batch=1, heads=1, kv_heads=1, queries=4, keys=4, head_dim=8, dtype="f32", causal=True)
    >>> d.total_flop, d.read_bytes, d.write_bytes, d.transcendental
    (320.0, 384.0, 128.0, {'f32': 10.0})
    """
    dv = head_dim if value_dim is None else value_dim
    if pairs is None:
        pairs = visible_pairs(queries=queries, keys=keys, causal=causal, window=window, alignment=alignment)
    rows = number(batch) * number(heads) * number(queries)
    scores = number(pairs) * number(batch) * number(heads)
    reads = list(_operands(batch, heads, kv_heads, queries, keys, head_dim, dv, dtype) if stored is None else stored)
    if mask is not None:
        reads.append(mask)
    writes: list[Elements] = [(rows * number(dv), dtype)]
    if statistics:
        writes.append((rows, "f64" if dtype == "f64" else "f32"))
    width = number(head_dim) + number(dv)
    extra = 1.0 if mask is not None else 0.0
    return demand(
        reads=reads,
        writes=writes,
        flop=matrix_work(scores * width, dtype),
        vector=(scores * (4.0 + extra) + rows * number(dv), dtype),
        transcendental=(scores, dtype),
    )


def attention_backward(
    *,
    batch: Count,
    heads: Count,
    kv_heads: Count,
    queries: Count,
    keys: Count,
    head_dim: Count,
    dtype: str,
    causal: bool,
    value_dim: Count | None = None,
    window: Count | None = None,
    alignment: Alignment = "top_left",
    mask: Elements | None = None,
    pairs: Count | None = None,
    stored: tuple[Elements, Elements, Elements] | None = None,
) -> Demand:
    """Return the demand of the gradients of a fused attention core, in model FLOP.

    Args:
        batch, heads, kv_heads, queries, keys, head_dim, dtype, causal, value_dim, window, alignment, mask, pairs, stored: As in `attention`.

    Returns:
        Four products per pair (dV, dP, dQ, dK): twice the forward FLOP. A fused kernel also recomputes Q K^T, so it
        executes 2.5 times the forward where head_dim = value_dim; see `attention_backward_executed_flop`.
        Reads Q, K, V, the result, its gradient and the row statistics; writes dQ, dK and dV.

    Source: Dao et al., FlashAttention, arXiv:2205.14135, algorithm 4; FlashAttention-2, arXiv:2307.08691, section 4.1.

    >>> d = attention_backward(batch=1, heads=1, kv_heads=1, queries=4, keys=4, head_dim=8, dtype="f32", causal=True)
    >>> d.total_flop, d.read_bytes, d.write_bytes
    (640.0, 656.0, 384.0)
    """
    dv = head_dim if value_dim is None else value_dim
    if pairs is None:
        pairs = visible_pairs(queries=queries, keys=keys, causal=causal, window=window, alignment=alignment)
    rows = number(batch) * number(heads) * number(queries)
    scores = number(pairs) * number(batch) * number(heads)
    operands = _operands(batch, heads, kv_heads, queries, keys, head_dim, dv, dtype)
    statistics: Elements = (rows, "f64" if dtype == "f64" else "f32")
    reads = [*(operands if stored is None else stored), (2.0 * rows * number(dv), dtype), statistics]
    if mask is not None:
        reads.append(mask)
    return demand(
        reads=reads,
        writes=operands,
        flop=matrix_work(2.0 * scores * (number(head_dim) + number(dv)), dtype),
        vector=(scores * 5.0 + 2.0 * rows * number(dv), dtype),
        transcendental=(scores, dtype),
    )


def attention_backward_executed_flop(
    *, pairs: Count, heads: Count, head_dim: Count, batch: Count = 1.0, value_dim: Count | None = None
) -> Number:
    """Return the FLOP that a fused backward executes, with the recomputed Q K^T.

    Args:
        pairs, heads, head_dim, batch, value_dim: As in `attention_flop`.

    Returns:
        Five products per pair; 2.5 times the forward where head_dim = value_dim [FLOP].

    Source: Dao, FlashAttention-2, arXiv:2307.08691, section 4.1 (2.5 times the forward).

    >>> attention_backward_executed_flop(pairs=10, heads=1, head_dim=8)
    800.0
    """
    forward = attention_flop(pairs=pairs, heads=heads, head_dim=head_dim, batch=batch, value_dim=value_dim)
    recomputed = 2.0 * number(head_dim) * number(pairs) * number(heads) * number(batch)
    return 2.0 * forward + recomputed


def packed_pairs(lengths: Count, *, causal: bool) -> Number:
    """Return the visible pairs of sequences packed one after the other, each seeing itself alone.

    Args:
        lengths: Length of each sequence, an array or one number.
        causal: Whether a query sees later keys.

    Source: FlashAttention README, variable-length functions (`cu_seqlens`).

    Lengths 2 and 3: 3 + 6 pairs causal, 4 + 9 in full.

    >>> packed_pairs(np.array([2, 3]), causal=True), packed_pairs(np.array([2, 3]), causal=False)
    (9.0, 13.0)
    """
    s = np.atleast_1d(number(lengths))
    return float(np.sum(s * (s + 1.0) / 2.0 if causal else s * s))


def _operands(
    batch: Count,
    heads: Count,
    kv_heads: Count,
    queries: Count,
    keys: Count,
    head_dim: Count,
    value_dim: Count,
    dtype: str,
) -> tuple[Elements, Elements, Elements]:
    """Elements of Q, K and V."""
    cached = number(batch) * number(kv_heads) * number(keys)
    return (
        (number(batch) * number(heads) * number(queries) * number(head_dim), dtype),
        (cached * number(head_dim), dtype),
        (cached * number(value_dim), dtype),
    )
