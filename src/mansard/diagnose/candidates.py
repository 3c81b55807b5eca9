"""Measured implementations of one operation side by side: what a kernel could be replaced by."""

from __future__ import annotations

from collections.abc import Sequence

from mansard.diagnose.facts import MeasuredPoint

_TIMING = ("warmup_tries", "num_runs", "min_duration_s", "max_duration_s", "impl", "seed")

#: Implementations that exist to be compared with, not to be used.
REFERENCES = ("naive", "torch-naive", "native")

#: A measured point that others are held against.
Candidate = MeasuredPoint


def side_by_side(points: Sequence[MeasuredPoint]) -> tuple[tuple[MeasuredPoint, ...], ...]:
    """Return the operations that several implementations were measured for, the fastest implementation first.

    Only what ran with the same parameters on the same device is compared.

    Args:
        points: Sound points, from `facts.points_of`.
    """
    groups: dict[tuple[str, str, str], list[MeasuredPoint]] = {}
    for p in points:
        what = {name: value for name, value in p.params.items() if name not in _TIMING}
        groups.setdefault((p.benchmark, p.device, repr(sorted(what.items()))), []).append(p)
    several = [sorted(g, key=lambda p: p.time_s) for g in groups.values() if len({p.impl for p in g}) > 1]
    return tuple(tuple(g) for g in sorted(several, key=lambda g: -(g[-1].time_s - g[0].time_s)))
