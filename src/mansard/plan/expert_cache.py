"""Hit rates of a cache of experts: static and LRU, by formula for a distribution and exactly for a recorded sequence.

A step asks for a set of items at once (the experts of its tokens), so hits count against the cache as the step finds it.
Probabilities are those of an item being asked for by a step; they add up to the items a step asks for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mansard.core.errors import UsageError

Floats = npt.NDArray[np.float64]


def zipf(items: int, exponent: float) -> Floats:
    """Return the shares of a Zipf distribution, rank^-exponent, the most popular first; exponent 0 is uniform.

    1, 1/2, 1/3 of 11/6:

    >>> [round(float(p), 4) for p in zipf(3, 1.0)]
    [0.5455, 0.2727, 0.1818]
    """
    if items < 1 or not 0.0 <= exponent <= 100.0:
        raise UsageError(
            f"a Zipf distribution of {items} items with exponent {exponent}", hint="items >= 1, exponent >= 0"
        )
    weights = np.arange(1, items + 1, dtype=np.float64) ** -exponent
    shares: Floats = weights / weights.sum()
    return shares


def inclusion(popularity: Sequence[float] | Floats, per_token: int) -> Floats:
    """Return the probability of each item to be among the `per_token` different ones that a token asks for.

    Args:
        popularity: How often each item is asked for, counts or shares.
        per_token: Different items of one token.

    Returns:
        min(1, c x popularity), with c such that they add up to `per_token`: a token asks for no item twice.

    Raises:
        UsageError: fewer items than a token asks for, or frequencies that are none.

    Shares 0.7, 0.2, 0.1 and two per token: 1.4 is cut to 1, the other two share what is left as 2 to 1.

    >>> [round(float(q), 4) for q in inclusion([0.7, 0.2, 0.1], 2)]
    [1.0, 0.6667, 0.3333]
    """
    p = np.asarray(popularity, dtype=np.float64)
    if p.ndim != 1 or not np.all(np.isfinite(p)) or np.any(p < 0):
        raise UsageError("popularities must be a list of finite numbers that are not negative")
    if not 1 <= per_token <= int((p > 0).sum()):
        raise UsageError(
            f"a token cannot ask for {per_token} different ones of {int((p > 0).sum())} that are used at all"
        )
    q = np.zeros_like(p)
    sure = np.zeros(p.size, dtype=bool)
    while True:
        left = per_token - int(sure.sum())
        rest = float(p[~sure].sum())
        q[sure] = 1.0
        q[~sure] = p[~sure] * (left / rest) if rest > 0 else 0.0
        over = ~sure & (q > 1.0)
        if not over.any():
            return q
        sure |= over


def together(probability: Floats, tokens: float) -> Floats:
    """Return the probability of each item to be asked for by any of `tokens` tokens that are independent of each other."""
    asked: Floats = 1.0 - (1.0 - probability) ** tokens
    return asked


def static_hit_ratio(probability: Floats, capacity: int) -> float:
    """Return the share of requests that a cache of the `capacity` most popular items answers.

    >>> round(static_hit_ratio(zipf(3, 1.0), 1), 4)
    0.5455
    """
    ranked = np.sort(probability)[::-1]
    return float(min(1.0, ranked[: max(0, capacity)].sum() / probability.sum()))


def lru_hit_ratio(probability: Floats, capacity: int) -> float:
    """Return the share of requests that an LRU cache answers, by Che's approximation.

    Args:
        probability: Of each item to be asked for by a step.
        capacity: Items the cache holds.

    Formula: an item stays for the T steps that fill the cache, sum(1 - (1 - q)^T) = capacity; an item is found if it was
        asked for in the last T steps, so hits are sum(q (1 - (1 - q)^T)) / sum(q).

    Assumes: steps are independent; T is the same for all items, which is an approximation for few items, and a rough one
        where the cache holds fewer items than a step asks for.
    Source: Che, Tung, Wang, IEEE JSAC 20(7), 2002; its accuracy: Fricker, Robert, Roberts, arXiv:1202.3974.

    Even routing, 8 of 128 experts, 32 kept: a quarter.

    >>> round(lru_hit_ratio(inclusion([1.0] * 128, 8), 32), 6)
    0.25
    """
    q = probability[probability > 0]
    if capacity <= 0:
        return 0.0
    if capacity >= q.size:
        return 1.0
    # An item of every step fills one place from the first step on.
    log_missing = np.log1p(-np.minimum(q, 1.0 - 1e-15))

    def held(steps: float) -> Floats:
        inside: Floats = -np.expm1(steps * log_missing)
        return inside

    low, high = 0.0, 1.0
    while held(high).sum() < capacity and high < 1e18:
        high *= 2.0
    for _ in range(200):
        middle = (low + high) / 2.0
        low, high = (middle, high) if held(middle).sum() < capacity else (low, middle)
    return float(min(1.0, (q * held(high)).sum() / q.sum()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """Hits of a recorded or drawn sequence for every size of the cache at once.

    Args:
        hits: Requests an LRU cache of 0, 1, 2, ... items answers.
        static_hits: The same for a static cache.
        requests: Requests that were counted.
        first: Of these, requests for an item that was never asked for before: no LRU cache answers them.
        steps: Steps that were counted.
    """

    hits: tuple[int, ...]
    static_hits: tuple[int, ...]
    requests: int
    first: int
    steps: int

    def lru_hit_ratio(self, capacity: int) -> float:
        """Share of requests that an LRU cache of `capacity` items answers."""
        return self.hits[max(0, min(capacity, len(self.hits) - 1))] / self.requests

    def static_hit_ratio(self, capacity: int) -> float:
        """Share of requests that a static cache of `capacity` items answers."""
        return self.static_hits[max(0, min(capacity, len(self.static_hits) - 1))] / self.requests


def replay(
    steps: Sequence[Sequence[int]], *, items: int, warmup: int = 0, order: Sequence[int] | None = None
) -> Replay:
    """Return the hits of a sequence for every cache size, by the depth at which each request is found.

    Args:
        steps: The items each step asks for; one that is named twice in a step counts once.
        items: How many items there are.
        warmup: Steps at the start that fill the cache and are not counted.
        order: Items as a static cache takes them in, the most popular first; None takes those most asked for in the
            sequence, which only hindsight knows.

    Raises:
        UsageError: no request is left, or an item beyond `items`.

    Source: Mattson et al., IBM Systems Journal 9(2), 1970: an LRU cache of C items is the first C of the recency list.

    a b a c a with items 0, 1, 2: the second and third a are found behind one other item.

    >>> replay([[0], [1], [0], [2], [0]], items=3).hits
    (0, 0, 2, 2)
    """
    recency: list[int] = []
    found = np.zeros(items + 1, dtype=np.int64)
    counts = np.zeros(items, dtype=np.int64)
    requests = first = 0
    for number, step in enumerate(steps):
        wanted = list(dict.fromkeys(step))
        if wanted and not (min(wanted) >= 0 and max(wanted) < items):
            raise UsageError(f"step {number} asks for item {max(wanted)} or {min(wanted)}, expected 0 to {items - 1}")
        asked = set(wanted)
        if number >= warmup:
            depths = [d for d, item in enumerate(recency) if item in asked]
            np.add.at(found, np.asarray(depths, dtype=np.int64) + 1, 1)
            counts[wanted] += 1
            requests += len(wanted)
            first += len(wanted) - len(depths)
        recency = wanted[::-1] + [item for item in recency if item not in asked]
    if requests == 0:
        raise UsageError("the sequence asks for nothing", hint="each line names the experts of one token")
    ranked = np.sort(counts)[::-1] if order is None else counts[np.asarray(order, dtype=np.int64)]
    return Replay(
        hits=tuple(int(h) for h in np.cumsum(found)),
        static_hits=(0, *(int(h) for h in np.cumsum(ranked))),
        requests=requests,
        first=first,
        steps=max(0, len(steps) - warmup),
    )


def draw(probability: Floats, *, steps: int, seed: int, tokens: int = 1) -> list[list[int]]:
    """Return a sequence of steps in which each item is asked for with its probability, tokens independent of each other.

    Args:
        probability: Of each item to be asked for by one token; they add up to the items of a token.
        steps: Steps.
        seed: Of the generator.
        tokens: Tokens of one step.

    Source: systematic sampling in random order, Madow, Annals of Mathematical Statistics 20(3), 1949: exact
        probabilities, and always the same number of different items.
    """
    rng = np.random.default_rng(seed)
    size = round(float(probability.sum()))
    out: list[list[int]] = []
    for _ in range(steps):
        asked: list[int] = []
        for _ in range(tokens):
            order = rng.permutation(probability.size)
            edges = np.cumsum(probability[order])
            points = rng.random() + np.arange(size)
            hit = np.minimum(np.searchsorted(edges, points, side="right"), probability.size - 1)
            asked += order[hit].tolist()
        out.append(list(dict.fromkeys(asked)))
    return out


def layers_hit_ratio(policy: str, *, layers: int, capacity: int) -> float:
    """Return the share of layers found in a cache when every step walks through all of them in the same order.

    Args:
        policy: `lru` or `static`.
        layers: Layers of the model.
        capacity: Layers the cache holds.

    Formula: static capacity / layers; LRU nothing below all of them, since each layer was thrown out just before its turn.

    >>> layers_hit_ratio("static", layers=80, capacity=20), layers_hit_ratio("lru", layers=80, capacity=79)
    (0.25, 0.0)
    """
    if capacity >= layers:
        return 1.0
    return capacity / layers if policy == "static" else 0.0
