"""Steps of ragged paged attention: sequences, their lengths, and the pages that hold their keys and values."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mansard.core.dtypes import dtype_bytes, short_dtype
from mansard.core.errors import UsageError
from mansard.measure.points.benchmark import Params

Lengths = npt.NDArray[np.int64]
MODES = ("decode", "prefill", "mixed")


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedShape:
    """One step over a batch of sequences.

    Args:
        new_tokens: Query tokens of each sequence, those that decode (1) first.
        contexts: Context of each sequence, its new tokens included.
        heads, kv_heads, head_dim: Dimensions.
        page_size: Tokens in a page.
        dtype: Element type.
        seed: Of the order of the pages in memory.
    """

    new_tokens: tuple[int, ...]
    contexts: tuple[int, ...]
    heads: int
    kv_heads: int
    head_dim: int
    page_size: int
    dtype: str
    seed: int

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise UsageError(f"{self.heads} query heads cannot share {self.kv_heads} key heads")

    @property
    def sequences(self) -> int:
        """How many there are."""
        return len(self.contexts)

    @property
    def tokens(self) -> int:
        """Query tokens of the step."""
        return sum(self.new_tokens)

    @property
    def decoding(self) -> int:
        """Sequences with one query token; they come first."""
        return sum(1 for q in self.new_tokens if q == 1)

    @property
    def scale(self) -> float:
        """Factor of the scores."""
        return 1.0 / math.sqrt(self.head_dim)

    def pages(self) -> Lengths:
        """Return the pages of each sequence."""
        return np.asarray([-(-c // self.page_size) for c in self.contexts])

    def groups(self) -> tuple[tuple[int, int], ...]:
        """Return (first, last + 1) of the sequences that are padded to one shape: the decoding ones, and the others."""
        edge = self.decoding
        return tuple((a, b) for a, b in ((0, edge), (edge, self.sequences)) if b > a)

    def padded_pairs(self) -> float:
        """Return the (query, key) pairs when each group is padded to its longest query and context."""
        total, pages = 0.0, self.pages()
        for a, b in self.groups():
            total += float(b - a) * max(self.new_tokens[a:b]) * int(pages[a:b].max()) * self.page_size
        return total

    def table(self) -> npt.NDArray[np.int32]:
        """Return the page of each sequence's n-th page, filled up with the first page [sequences, most pages].

        Pages lie in random order: a cache that has been used for a while looks like that.
        """
        pages = self.pages()
        order = np.random.default_rng([19, self.seed]).permutation(int(pages.sum()))
        out = np.zeros((self.sequences, int(pages.max())), dtype=np.int32)
        start = 0
        for i, n in enumerate(pages):
            out[i, :n] = order[start : start + n]
            start += int(n)
        return out

    def places(self) -> npt.NDArray[np.int64]:
        """Return where the keys of each new token go: page times page size plus offset [tokens]."""
        table, out = self.table(), []
        for i, (q, c) in enumerate(zip(self.new_tokens, self.contexts, strict=True)):
            position = np.arange(c - q, c)
            out.append(
                table[i, position // self.page_size].astype(np.int64) * self.page_size + position % self.page_size
            )
        return np.concatenate(out)

    def memory_bytes(self) -> float:
        """What the padded implementations hold at once, roughly [B]."""
        cache = (
            2.0 * float(self.pages().sum()) * self.page_size * self.kv_heads * self.head_dim * dtype_bytes(self.dtype)
        )
        gathered = max((b - a) * float(self.pages()[a:b].max()) for a, b in self.groups()) * self.page_size
        wide = 2.0 * gathered * self.kv_heads * self.head_dim * dtype_bytes(self.dtype)
        return 2.0 * cache + 2.0 * wide + 2.5 * self.padded_pairs() * self.heads * 4.0


@functools.lru_cache(maxsize=16)
def drawn_lengths(
    count: int, kind: str, median: int, sigma: float, least: int, most: int, seed: int
) -> tuple[int, ...]:
    """Return `count` lengths.

    Args:
        count: How many.
        kind: `fixed` (all of them `median`), `lognormal`, or numbers with commas that are repeated in turn.
        median, sigma: Of the lognormal; sigma is that of the logarithm.
        least, most: Bounds; a draw outside is moved to the bound. `most` of 0 is no bound.
        seed: Of the draws.

    Raises:
        UsageError: another kind, or a length below `least`.

    >>> drawn_lengths(3, "5,9", 0, 0.0, 1, 0, 0), drawn_lengths(2, "fixed", 7, 0.0, 1, 0, 0)
    ((5, 9, 5), (7, 7))
    """
    if kind == "fixed":
        lengths = np.full(count, median)
    elif kind == "lognormal":
        draws = np.random.default_rng([23, seed]).lognormal(math.log(median), sigma, count)
        lengths = np.clip(np.rint(draws), least, most or None).astype(np.int64)
    else:
        try:
            given = [int(part) for part in kind.split(",")]
        except ValueError as error:
            hint = "fixed, lognormal, or numbers with commas"
            raise UsageError(f"lengths {kind!r} are not understood", hint=hint) from error
        lengths = np.asarray([given[i % len(given)] for i in range(count)])
    if int(lengths.min()) < least or (most and int(lengths.max()) > most):
        raise UsageError(
            f"lengths {lengths.min()} to {lengths.max()}; the least is {least}, the most {most or 'unbounded'}"
        )
    return tuple(int(x) for x in lengths)


def paged_shape(params: Params) -> PagedShape:
    """Return the step that parameters describe.

    In `decode` every sequence has one new token and a drawn context; in `prefill` the whole drawn context is new, up to
    `chunk` tokens where that is given; in `mixed` the last `prefill_share` of the sequences prefill and the others decode.
    """
    count, mode = int(params["num_seqs"]), str(params["mode"])
    chunk, most = int(params["chunk"]), int(params["max_context"])
    contexts = drawn_lengths(
        count, str(params["lengths"]), int(params["context"]), float(params["sigma"]), 1, most, int(params["seed"])
    )
    share = {"decode": 0.0, "prefill": 1.0}.get(mode, float(params["prefill_share"]))
    prefilling = round(share * count)
    new = [1 if i < count - prefilling else (min(c, chunk) if chunk else c) for i, c in enumerate(contexts)]
    order = sorted(range(count), key=lambda i: new[i] != 1)  # those with one token first, otherwise as drawn
    return PagedShape(
        new_tokens=tuple(new[i] for i in order),
        contexts=tuple(contexts[i] for i in order),
        heads=int(params["num_q_heads"]),
        kv_heads=int(params["num_kv_heads"]),
        head_dim=int(params["head_dim"]),
        page_size=int(params["page_size"]),
        dtype=short_dtype(params["dtype"]),
        seed=int(params["seed"]),
    )
