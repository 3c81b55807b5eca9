"""Where a cache really ends: the drops of bandwidth over the working set, beside what the kernel says of the caches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mansard.core.ceilings import MemoryLevel

DROP = 0.15  # a level is confirmed when twice its capacity is read this much slower than half of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Labelled:
    """One point of a sweep over the working set.

    Args:
        working_set_bytes: Bytes it walks through [B].
        bytes_per_s: Its rate [B/s].
        level: The nearest level that holds it, by what the kernel says; None beyond all that is known.
        confirmed: Whether the bandwidth shows the end of that level: True, False, or None where it cannot tell.
    """

    working_set_bytes: float
    bytes_per_s: float
    level: str | None
    confirmed: bool | None


def labelled(
    points: Sequence[tuple[float, float]],
    levels: Sequence[MemoryLevel],
    scope: str = "core",
    clear: Sequence[tuple[float, float]] | None = None,
) -> tuple[Labelled, ...]:
    """Return the points of a sweep with their levels, each confirmed or not by the cliff behind it.

    Args:
        points: (working set [B], rate [B/s]).
        levels: Memory levels, nearest first, as the kernel tells them.
        scope: Scope of their capacities.
        clear: Those of the points that levels are confirmed by; None takes all.

    A level whose end is not visible is not thereby wrong: where the next level is as fast, None is said.
    """
    ordered = sorted(points)
    sure = ordered if clear is None else sorted(clear)
    seen = {level.level: confirmed(sure, level.capacity(scope), _next(levels, level, scope)) for level in levels}
    rows = []
    for size, rate in ordered:
        name = next((v.level for v in levels if size <= v.capacity(scope)), None)
        rows.append(
            Labelled(
                working_set_bytes=size,
                bytes_per_s=rate,
                level=name,
                confirmed=seen.get(name) if name is not None else None,
            )
        )
    return tuple(rows)


def _next(levels: Sequence[MemoryLevel], level: MemoryLevel, scope: str) -> float:
    farther = [v.capacity(scope) for v in levels if v.capacity(scope) > level.capacity(scope)]
    return min(farther, default=float("inf"))


def confirmed(points: Sequence[tuple[float, float]], capacity_bytes: float, next_bytes: float) -> bool | None:
    """Return whether reading half a capacity is clearly faster than reading two or more times as much.

    Args:
        points: (working set [B], rate [B/s]), smallest first.
        capacity_bytes: What the kernel says the level holds [B].
        next_bytes: What the next level holds [B]; sizes beyond half of it are another cliff.

    >>> confirmed([(16e3, 100.0), (64e3, 50.0)], 32e3, 1e6)
    True
    >>> confirmed([(16e3, 100.0), (64e3, 99.0)], 32e3, 1e6) is None
    True
    """
    if not np.isfinite(capacity_bytes):
        return None
    inside = [rate for size, rate in points if 0.2 * capacity_bytes <= size <= 0.6 * capacity_bytes]
    beyond = [
        rate for size, rate in points if 1.8 * capacity_bytes <= size <= max(4.0 * capacity_bytes, 0.5 * next_bytes)
    ]
    if not inside or not beyond:
        return None
    near, far = max(inside), float(np.median(beyond))
    if near >= (1.0 + DROP) * far:
        return True
    earlier = [rate for size, rate in points if size <= 0.1 * capacity_bytes]
    # It drops long before the capacity the kernel states, and not at it: the share that can be used is smaller.
    return False if earlier and max(earlier) >= (1.0 + DROP) * near and near < (1.0 + DROP / 3) * far else None


def cliffs(points: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """Return where the rate drops by 15 % or more within a doubling of the working set: (size before it [B], ratio).

    >>> cliffs([(1e3, 100.0), (2e3, 98.0), (4e3, 50.0), (8e3, 49.0)])
    ((2000.0, 0.5102040816326531),)
    """
    found: list[tuple[float, float]] = []
    ordered = sorted(points)
    index = 0
    while index + 1 < len(ordered):
        size, rate = ordered[index]
        within = [(s, r) for s, r in ordered[index + 1 :] if s <= 2.05 * size] or [ordered[index + 1]]
        lowest = min(r for _, r in within)
        if lowest <= (1.0 - DROP) * rate and ordered[index + 1][1] < 0.97 * rate:
            found.append((size, lowest / rate))
            index += max(1, [r for _, r in within].index(lowest) + 1)
        else:
            index += 1
    return tuple(found)


def to_json(rows: Sequence[Labelled]) -> list[dict[str, Any]]:
    """Return labelled points as plain JSON."""
    return [
        {
            "working_set_bytes": r.working_set_bytes,
            "bytes_per_s": r.bytes_per_s,
            "level": r.level,
            "confirmed": r.confirmed,
        }
        for r in rows
    ]
