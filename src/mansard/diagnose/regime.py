"""Ceilings drift: memory bandwidth of a shared machine can sit in one of several regimes for minutes.

A brief probe before and after a program says which regime the program met, and verdicts are about that one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from mansard.core import Area, Ceilings, Kind, Resource, Unknown, least_time
from mansard.diagnose.judge_operators import JudgedOperator

#: A probe this much below (or, inverted, above) the typical figure is another regime, not noise.
ANOTHER_REGIME = 0.9
#: Other load above which a probe says nothing about the machine.
FOREIGN_LOAD = 0.08
#: Operands this many times the last cache leave nothing of worth in it for the next operation.
BEYOND_CACHE = 2.0
#: No machine on record has regimes further apart; what is faster than this was not in that memory.
FARTHEST_REGIME = 2.5
#: Share of a step below which one kind of operation is no witness.
WITNESS_SHARE = 0.02


def seen_regime(
    ceilings: Ceilings, before: Mapping[str, float], after: Mapping[str, float], typical: Mapping[str, float]
) -> tuple[Ceilings, dict[str, Any]]:
    """Return the ceilings of the regime that the probes saw, and what changed.

    Args:
        ceilings: The stored ceilings.
        before, after: Results of `mansard.measure.probe`; either may be empty.
        typical: What a probe gives when the machine is as it was measured (`mansard.measure.reference`).

    The better of the quiet probes counts. A resource that even the better one clearly misses is lowered, every access
    mix of that level alike; one that it clearly exceeds is raised; a probe taken under other load changes nothing, since load belongs to a sample and not to a
    ceiling.
    """
    notes: dict[str, Any] = {"before": dict(before), "after": dict(after), "typical": dict(typical)}
    quiet = [p for p in (before, after) if p and p.get("foreign_load_ratio", 0.0) <= FOREIGN_LOAD]
    result = ceilings
    for key, area, match in (
        ("dram_bytes_per_s", Area.MEMORY, {"level": "dram"}),
        ("vector_f32_flop_per_s", Area.COMPUTE, {"engine": "vector", "dtype": "f32"}),
    ):
        seen = max((p[key] for p in quiet if p.get(key)), default=0.0)
        if seen <= 0 or not typical.get(key):
            continue
        ratio = seen / typical[key]
        if ratio < ANOTHER_REGIME or ratio > 1.0 / ANOTHER_REGIME:
            notes[f"{key}_ratio"] = ratio
            result = _scaled(result, area, match, ratio)
    return result, notes


def regime_of_operations(judged: Sequence[JudgedOperator], ceilings: Ceilings, *, steps: int, step_s: float) -> float:
    """Return how much faster than its measured ceiling memory was while the program ran; 1 where nothing shows it.

    An operation on operands far larger than the last cache that moves its compulsory bytes faster than the memory ceiling
    is itself a measurement of that memory: the ceiling was taken in a slower regime.

    Args:
        judged: Operations of the steady steps with their times.
        ceilings: The machine.
        steps: How many steps they are of.
        step_s: Time of one step [s].
    """
    if len(ceilings.levels) < 2:
        return 1.0
    last, cache = ceilings.levels[-1], ceilings.levels[-2]
    best = 1.0
    for row in judged:
        demand = row.operator.demand
        if isinstance(demand, Unknown) or row.operator.scope != "node":
            continue
        if demand.working_set < BEYOND_CACHE * cache.capacity("node") or row.total_s < WITNESS_SHARE * step_s * steps:
            continue
        limiting = least_time(demand, ceilings, scope="node").limiting
        if (
            limiting is None
            or limiting.ceiling.resource.level != last.level
            or limiting.ceiling.kind is not Kind.MEASURED
        ):
            continue
        ratio = limiting.time_s / row.call_s
        if 1.0 / ANOTHER_REGIME < ratio <= FARTHEST_REGIME:
            best = max(best, ratio)
    return best


def in_regime(ceilings: Ceilings, ratio: float) -> Ceilings:
    """Return the ceilings with those of the farthest memory level of a node in a regime `ratio` times as fast."""
    return _scaled(ceilings, Area.MEMORY, {"level": ceilings.levels[-1].level}, ratio)


def _scaled(ceilings: Ceilings, area: Area, match: Mapping[str, str], ratio: float) -> Ceilings:
    # Writing into new pages is limited by the kernel that maps them, whatever the regime of the memory.
    def fits(resource: Resource) -> bool:
        return (
            resource.area is area
            and resource.mix != "fresh"
            and all(getattr(resource, k) == v for k, v in match.items())
        )

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
