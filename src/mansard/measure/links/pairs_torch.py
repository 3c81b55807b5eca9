"""Messages between ranks of `torch.distributed`: one pair, or all pairs in turns."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mansard.measure.links.shapes import Shapes, worst
from mansard.measure.links.with_torch_ranks import OnRanks, on_ranks
from mansard.measure.points.benchmark import Check, CompilerCount, Prepared
from mansard.measure.points.inputs import data_kind

Pair = tuple[int, int]


@dataclass(slots=True)
class PairsOnRanks:
    """One point of the ranks for each pair; the pairs take turns."""

    pairs: Sequence[Pair]
    both: bool
    shapes: Shapes
    points: list[OnRanks]
    seconds: dict[Pair, list[float]]

    def timed(self, count: int) -> float:
        """Do `count` messages between each pair; return the mean of the pairs [s]."""
        total = 0.0
        for pair, point in zip(self.pairs, self.points, strict=True):
            spent = point.timed(count, among=pair)
            self.seconds.setdefault(pair, []).append(spent / max(count, 1))
            total += spent
        return total / len(self.points)

    def run(self, count: int) -> None:
        """Do `count` messages between each pair."""
        self.timed(count)

    def verify(self) -> Check:
        """Compare what every rank received with what was sent."""
        found = [point.verify() for point in self.points]
        return worst({i: check.error_ratio for i, check in enumerate(found)}, "pairs")

    def counts(self) -> CompilerCount:
        """Return the operations that the profiler saw in a message of the first pair."""
        return self.points[0].counts()

    def after(self) -> dict[str, Any]:
        """Return the matrix of the pairs and the slowest of them."""
        size = self.shapes.local_bytes * (2.0 if self.both else 1.0)
        medians = {p: float(np.median(t)) for p, t in self.seconds.items()}
        if not medians:
            return {}
        slow = max(medians, key=lambda p: medians[p])
        rows = [
            {"source": a, "target": b, "seconds": t, "bytes_per_s": size / t} for (a, b), t in sorted(medians.items())
        ]
        return {
            "matrix": rows, "slowest_pair": list(slow), "slowest_pair_s": medians[slow],
            "fastest_pair_s": min(medians.values()),
            "matrix_means": "both directions together" if self.both else "one direction",
        }  # fmt: skip

    def close(self) -> None:
        """Release all points."""
        for point in self.points:
            point.close()
        self.points = []


def pairs_on_ranks(
    pairs: Sequence[Pair], shapes: Shapes, *, ranks: int, device_type: str, both: bool, seed: int = 0
) -> PairsOnRanks:
    """Make one point of the ranks for each pair."""
    whole = (tuple(range(ranks)),)
    made: list[OnRanks] = []
    world = dataclasses.replace(shapes, ranks=ranks)
    try:
        for a, b in pairs:
            moves = [(a, b), (b, a)] if both else [(a, b)]
            made.append(on_ranks(whole, world, ranks=ranks, device_type=device_type, seed=seed, pairs=moves))
    except BaseException:
        for point in made:
            point.close()
        raise
    return PairsOnRanks(pairs=pairs, both=both, shapes=shapes, points=made, seconds={})


def prepared(point: PairsOnRanks, facts: Mapping[str, Any]) -> Prepared:
    """Return messages between ranks as a point."""
    return Prepared(
        run=point.run, timed=point.timed, verify=point.verify, count_by_compiler=point.counts, close=point.close,
        facts_after=point.after, operands=point.points[0].operands,
        facts={"data": data_kind(point.shapes.dtype), "pairs": [list(p) for p in point.pairs],
               "direction": "bi" if point.both else "uni", "participants": 2,
               "sample": "mean over the pairs, which take turns" if len(point.pairs) > 1 else "the one pair", **facts},
    )  # fmt: skip
