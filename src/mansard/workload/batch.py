"""What one forward pass is given: groups of sequences that do the same, and the masks they see.

A prefill, a decode step, a mixed batch, the verification of a speculation and a training micro-batch differ only in their
groups: how many sequences, how many new tokens each, how many keys the last of them sees. Every number may be an
array, so one pass can describe a million candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mansard.core.demand import Number
from mansard.core.errors import UsageError
from mansard.operators.attention import visible_pairs
from mansard.operators.counting import Count, at_most, number


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Sequences of a pass that do the same.

    Args:
        sequences: How many.
        queries: New tokens of each in this pass.
        keys: Keys that the last new token sees, itself included: cached tokens + queries.
        logits: Positions of each whose logits are needed; all in training, 1 at the end of a prefill and in decode.
        distinct_keys: Keys of each that are read; None for `keys`. Less where sequences share a prefix that is read once.
    """

    sequences: Count
    queries: Count
    keys: Count
    logits: Count = 1.0
    distinct_keys: Count | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mask:
    """Which keys a query sees.

    Args:
        causal: Only those up to itself.
        window: Only the last `window` of them, itself included.
        chunk: Only those of its own chunk of this length.
        top_k: Only the `top_k` that a scorer picks.
    """

    causal: bool = True
    window: int | None = None
    chunk: int | None = None
    top_k: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One forward pass of one data-parallel rank.

    Args:
        groups: The sequences.
        source_tokens: Tokens of each sequence's encoder, for cross attention.
    """

    groups: tuple[Group, ...]
    source_tokens: Count = 0.0

    @property
    def tokens(self) -> Number:
        """New tokens of all sequences."""
        return total([number(g.sequences) * number(g.queries) for g in self.groups])

    @property
    def sequences(self) -> Number:
        """Sequences of all groups."""
        return total([number(g.sequences) for g in self.groups])

    @property
    def logits(self) -> Number:
        """Positions whose logits are needed."""
        return total([number(g.sequences) * number(g.logits) for g in self.groups])

    @property
    def cached_tokens(self) -> Number:
        """Tokens of all sequences that the cache holds after the pass."""
        return total([number(g.sequences) * number(g.keys) for g in self.groups])

    def pairs(self, mask: Mask) -> Number:
        """Return the visible (query, key) pairs of all sequences, for one head, exactly."""
        return total([number(g.sequences) * pairs_of(g, mask) for g in self.groups])

    def full_pairs(self) -> Number:
        """Return the pairs of the full square, every query against every key, whatever the mask."""
        return total([number(g.sequences) * number(g.queries) * number(g.keys) for g in self.groups])

    def keys_read(self, mask: Mask) -> Number:
        """Return the keys of all sequences that at least one query sees, each once."""
        return total([number(g.sequences) * keys_of(g, mask) for g in self.groups])


def pairs_of(group: Group, mask: Mask) -> Number:
    """Return the visible pairs of one sequence of `group`.

    Source: the sums of workloads reference section 1: causal (s+1)/2 keys per query, window W - W(W-1)/(2s), chunks of
    c(c+1)/2, top-K K - K(K-1)/(2s).

    512 of 2048 keys: 448.1 per query against 1024.5 causal.

    >>> g = Group(sequences=1, queries=2048, keys=2048)
    >>> pairs_of(g, Mask(window=512)) / 2048, pairs_of(g, Mask()) / 2048
    (448.125, 1024.5)
    >>> pairs_of(Group(sequences=1, queries=5, keys=5), Mask(chunk=2))
    7.0
    >>> pairs_of(Group(sequences=1, queries=5, keys=5), Mask(chunk=2, causal=False))
    9.0
    """
    q, s = number(group.queries), number(group.keys)
    if mask.chunk is not None:
        return _chunked(s, mask.chunk, causal=mask.causal) - _chunked(s - q, mask.chunk, causal=mask.causal)
    limits = [w for w in (mask.window, mask.top_k) if w is not None]
    return visible_pairs(
        queries=q, keys=s, causal=mask.causal, window=min(limits) if limits and mask.causal else None,
        alignment="bottom_right",
    )  # fmt: skip


def _chunked(tokens: Number, chunk: int, *, causal: bool) -> Number:
    """Pairs of the first `tokens` tokens when each sees its own chunk: 1 + 2 + ... + c per chunk if causal, else c^2."""
    whole = np.floor(tokens / chunk) if isinstance(tokens, np.ndarray) else float(tokens // chunk)
    rest = tokens - whole * chunk
    if not causal:
        return whole * float(chunk) ** 2 + rest * rest
    return whole * (chunk * (chunk + 1) / 2.0) + rest * (rest + 1.0) / 2.0


def keys_of(group: Group, mask: Mask) -> Number:
    """Return how many keys of one sequence are seen by any of its queries.

    >>> keys_of(Group(sequences=1, queries=1, keys=4096), Mask(window=128))
    128.0
    """
    s = number(group.keys if group.distinct_keys is None else group.distinct_keys)
    q = number(group.queries)
    if mask.chunk is not None:
        before = number(group.keys) - q
        first = np.floor(before / mask.chunk) if isinstance(before, np.ndarray) else float(before // mask.chunk)
        return at_most(s, number(group.keys) - first * mask.chunk)
    if mask.window is not None and mask.causal:
        s = at_most(s, mask.window + q - 1.0)
    if mask.top_k is not None:
        s = at_most(s, mask.top_k * q)
    return s


def total(values: Sequence[Number]) -> Number:
    """Return the sum of numbers or arrays."""
    found: Number = 0.0
    for value in values:
        found = found + value
    return found


def prefill_batch(*, sequences: Count, prompt: Count, cached: Count = 0.0) -> Batch:
    """Return the pass that reads a prompt at once.

    Args:
        sequences: Prompts.
        prompt: Tokens of each prompt.
        cached: Tokens of each prompt that the prefix cache already holds.

    >>> prefill_batch(sequences=2, prompt=100, cached=60).tokens
    80.0
    """
    _check("prompt", prompt)
    _check("sequences", sequences)
    if np.any(np.asarray(cached) < 0) or np.any(np.asarray(cached) >= np.asarray(prompt)):
        raise UsageError(f"{cached} cached tokens of a prompt of {prompt}: at least one token must be left to compute")
    return Batch(groups=(Group(sequences=sequences, queries=number(prompt) - number(cached), keys=prompt),))


def chunked_prefill_batches(*, sequences: int, prompt: int, chunk: int, cached: int = 0) -> tuple[Batch, ...]:
    """Return the passes that read prompts in chunks of `chunk` tokens.

    Args:
        sequences: Prompts that are read side by side.
        prompt, cached: As in `prefill_batch`.
        chunk: New tokens of each prompt per pass.

    Returns:
        One pass per chunk; logits are needed in the last one only. Every pass reads the cache so far and every weight.

    >>> [b.tokens for b in chunked_prefill_batches(sequences=1, prompt=10, chunk=4)]
    [4.0, 4.0, 2.0]
    """
    prefill_batch(sequences=sequences, prompt=prompt, cached=cached)
    _check("chunk", chunk)
    out = []
    done = cached
    while done < prompt:
        step = min(chunk, prompt - done)
        done += step
        last = 1.0 if done == prompt else 0.0
        out.append(Batch(groups=(Group(sequences=sequences, queries=step, keys=done, logits=last),)))
    return tuple(out)


def decode_batch(*, context: Count | Sequence[tuple[int, int]], sequences: Count | None = None) -> Batch:
    """Return one decode step.

    Args:
        context: Keys each new token sees, itself included; or a distribution as pairs of (context, sequences).
        sequences: Sequences in the batch; left out with a distribution.

    A step of four sequences of different length:

    >>> decode_batch(context=[(100, 3), (1000, 1)]).cached_tokens
    1300.0
    """
    if isinstance(context, Sequence):
        if sequences is not None:
            raise UsageError("a context distribution already says how many sequences there are")
        if not context:
            raise UsageError("the context distribution is empty")
        for length, many in context:
            _check("context", length, zero=True)
            _check("sequences", many)
        return Batch(groups=tuple(Group(sequences=many, queries=1.0, keys=length) for length, many in context))
    if sequences is None:
        raise UsageError("a decode step needs the number of sequences")
    _check("context", context, zero=True)
    _check("batch", sequences)
    return Batch(groups=(Group(sequences=sequences, queries=1.0, keys=context),))


def mixed_batch(*, prefill: Batch, decode: Batch) -> Batch:
    """Return a pass that holds a (chunk of a) prefill and a decode step together.

    >>> mixed_batch(prefill=prefill_batch(sequences=1, prompt=8), decode=decode_batch(context=100, sequences=4)).tokens
    12.0
    """
    return Batch(groups=(*prefill.groups, *decode.groups))


def training_batch(*, sequences: Count, seq: Count) -> Batch:
    """Return a micro-batch of equally long sequences; padding counts like any token, for it is computed."""
    _check("sequences", sequences)
    _check("seq", seq)
    return Batch(groups=(Group(sequences=sequences, queries=seq, keys=seq, logits=seq),))


def packed_batch(lengths: Sequence[int]) -> Batch:
    """Return a micro-batch of sequences packed one after the other, each seeing itself alone.

    Args:
        lengths: Tokens of each sequence.

    2 and 3 tokens: 3 + 6 visible pairs, not the 15 of one sequence of 5.

    >>> packed_batch([2, 3]).pairs(Mask()), training_batch(sequences=1, seq=5).pairs(Mask())
    (9.0, 15.0)
    """
    if not len(lengths):
        raise UsageError("no sequence lengths were given")
    values, counts = np.unique(np.asarray(lengths), return_counts=True)
    for value in values:
        _check("sequence length", int(value))
    pairs = zip(values.tolist(), counts.tolist(), strict=True)
    return Batch(groups=tuple(Group(sequences=n, queries=s, keys=s, logits=s) for s, n in pairs))


def verify_batch(*, sequences: Count, context: Count, drafted: int) -> Batch:
    """Return the verification pass of a speculation: `drafted` tokens and the one before them at once.

    Args:
        sequences: Sequences.
        context: Keys that the last verified token sees.
        drafted: Tokens proposed per sequence; the pass is one wider.

    >>> verify_batch(sequences=2, context=100, drafted=4).tokens
    10.0
    """
    _check("drafted", drafted)
    width = drafted + 1.0
    return Batch(groups=(Group(sequences=sequences, queries=width, keys=context, logits=width),))


def _check(name: str, value: Count, *, zero: bool = False) -> None:
    x = np.asarray(value, dtype=np.float64)
    if not np.all(np.isfinite(x)) or np.any(x < 0) or (not zero and np.any(x == 0)):
        raise UsageError(f"{name} is {value}, expected {'zero or more' if zero else 'a positive number'}")
