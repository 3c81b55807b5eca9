"""Ceilings drift: memory bandwidth of a shared machine can sit in one of several regimes for minutes.

A brief probe before and after a program says which regime the program met, and verdicts are about that one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mansard.core import Area, Ceilings

#: A probe this much below the stored ceiling is another regime, not noise.
ANOTHER_REGIME = 0.9


def seen_regime(
    ceilings: Ceilings, before: Mapping[str, float], after: Mapping[str, float]
) -> tuple[Ceilings, dict[str, Any]]:
    """Return the ceilings of the regime that both probes saw, and what changed.

    Args:
        ceilings: The stored ceilings.
        before, after: Results of `mansard.measure.probe`: `dram_bytes_per_s`, `vector_f32_flop_per_s`; either may be empty.

    The better of the two probes counts, since other load can only lower a probe. A ceiling that was exceeded is raised
    to what was seen; one that was clearly missed by both probes is lowered, with every access mix of that level alike.
    """
    notes: dict[str, Any] = {"before": dict(before), "after": dict(after)}
    result = ceilings
    for key, area, match in (
        ("dram_bytes_per_s", Area.MEMORY, {"level": "dram"}),
        ("vector_f32_flop_per_s", Area.COMPUTE, {"engine": "vector", "dtype": "f32"}),
    ):
        seen = max((p[key] for p in (before, after) if p.get(key)), default=0.0)
        known = [c for c in ceilings.find(scope="node", area=area, **match) if c.resource.mix != "fresh"]
        if seen <= 0 or not known:
            continue
        ratio = seen / max(c.value for c in known)
        if ratio < ANOTHER_REGIME or ratio > 1.0:
            notes[f"{key}_ratio"] = ratio
            result = _scaled(result, area, match, ratio)
    return result, notes


def _scaled(ceilings: Ceilings, area: Area, match: Mapping[str, str], ratio: float) -> Ceilings:
    def fits(resource: object) -> bool:
        return getattr(resource, "area", None) is area and all(getattr(resource, k) == v for k, v in match.items())

    moved = tuple(
        replace(
            c,
            value=c.value * ratio,
            ci95=(c.ci95[0] * ratio, c.ci95[1] * ratio) if c.ci95 else None,
            conditions={**c.conditions, "regime_ratio": ratio},
        )
        if c.scope == "node" and fits(c.resource)
        else c
        for c in ceilings.ceilings
    )
    return replace(ceilings, ceilings=moved)
