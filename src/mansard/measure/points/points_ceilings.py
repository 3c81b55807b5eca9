"""From finished points to ceilings: the best rate of each resource, alpha-beta fits, and curves over the size."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mansard.core.ceilings import Area, Ceiling, Ceilings, Kind, Resource
from mansard.measure.envelope import envelope
from mansard.measure.links.fits import fit_of

#: Parameters that say how big a point is; a curve runs over them, everything else names the curve.
TIMING_NAMES = ("warmup_tries", "num_runs", "min_duration_s", "max_duration_s")

Element = Mapping[str, Any]


def envelope_of(elements: Sequence[Element]) -> Ceilings:
    """Return the ceilings of points: those that failed, were waived or are implausible make none.

    Args:
        elements: Elements of `detailed.json`.
    """
    sound = [e for e in elements if e["state"] == "done" and e["verdict"] != "implausible"]
    best: dict[tuple[Resource, str], Ceiling] = {}
    for element in sound:
        for ceiling in _ceilings(element):
            key = (ceiling.resource, ceiling.scope)
            if key not in best or best[key].value < ceiling.value:
                best[key] = ceiling
    return Ceilings(
        ceilings=tuple(best.values()), fits=tuple(fit_of(sound)), curves=tuple(_curves(sound)), source="measured points"
    )


def _windows(element: Element) -> list[list[float]]:
    """Return the times of an element in its windows [s]."""
    seconds = [t * 1e-3 for t in element["raw_times_ms"]]
    sizes = [size for _, size in element["samples"]["windows"]] or [len(seconds)]
    parts, at = [], 0
    for size in sizes:
        parts.append(seconds[at : at + size])
        at += size
    return [p for p in parts if p]


def _ceilings(element: Element) -> Iterator[Ceiling]:
    metrics, audit = element["metrics"], element["audit"]
    facts = audit.get("benchmark", {})
    info = element["metadata"]["device_info"]
    alone = facts.get("threads") == 1 and int(info.get("threads") or 1) > 1
    scope = "device" if info.get("platform") != "cpu" else "core" if alone else "node"
    common: dict[str, Any] = {
        "benchmark": element["metadata"]["benchmark_name"], "impl": element["metadata"]["impl"],
        "backend": element["metadata"]["backend"], "threads": info.get("threads"),
        "call": facts.get("call") or facts.get("implementation") or element["metadata"]["impl"],
        "size": element["metadata"]["test_name"], "verdict": element["verdict"],
        "foreign_load_ratio": (element.get("conditions") or {}).get("foreign_ratio"),
        "clock_hz": (element.get("conditions") or {}).get("clock_hz"),
        "working_set_bytes": metrics.get("working_set_bytes"),
    }  # fmt: skip

    def one(resource: Resource, amount: float, unit: str) -> Ceiling:
        found = envelope([[amount / s for s in window] for window in _windows(element)])
        return Ceiling(
            resource=resource,
            value=found.value,
            unit=unit,
            kind=Kind.MEASURED,
            scope=scope,
            ci95=(found.low, found.high),
            conditions={**{k: v for k, v in common.items() if v is not None}, **found.conditions()},
            source="point of a microbenchmark, result checked",
        )

    moved, level = metrics.get("bus_bytes"), metrics.get("level")
    if metrics.get("link") and moved:
        host = metrics.get("area") == "host_transfer"
        area = Area.HOST if host else Area.NETWORK
        scope = "device"  # what one device moves over its link, whatever the device is made of
        yield one(Resource(area=area, link=str(metrics["link"])), float(moved), "B/s")
    elif audit.get("peak") and metrics.get("flop"):
        dtype, accumulate, engine = audit["peak"]
        flop = float(metrics.get("executed_flop") or metrics["flop"])
        yield one(Resource(area=Area.COMPUTE, dtype=dtype, accumulate=accumulate, engine=engine), flop, "FLOP/s")
    elif metrics.get("headline") == "bytes" and level and metrics.get("bytes") and facts.get("mix"):
        resource = Resource(
            area=Area.MEMORY, level=str(level), mix=str(facts["mix"]), page=facts.get("page"), store=facts.get("store")
        )
        yield one(resource, float(metrics["bytes"]), "B/s")


def _group(element: Element, without: Sequence[str]) -> str:
    meta = element["metadata"]
    kept = {k: v for k, v in meta["params"].items() if k not in without and k not in TIMING_NAMES}
    return json.dumps([meta["benchmark_name"], meta["impl"], kept], sort_keys=True, default=str)


def _families(elements: Sequence[Element]) -> Iterator[tuple[Element, list[Element]]]:
    """Yield groups of points that differ in their size alone, with the first of each."""
    groups: dict[str, list[Element]] = {}
    swept = _swept(elements)
    for element in elements:
        name = element["metadata"]["benchmark_name"]
        groups.setdefault(_group(element, swept.get(name, ())), []).append(element)
    for members in groups.values():
        if len({m["metrics"].get("working_set_bytes") for m in members}) > 1:
            yield members[0], members


def _swept(elements: Sequence[Element]) -> dict[str, tuple[str, ...]]:
    """Return the numeric parameters that differ between the points of each benchmark."""
    values: dict[tuple[str, str], set[float]] = {}
    for element in elements:
        for name, value in element["metadata"]["params"].items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                values.setdefault((element["metadata"]["benchmark_name"], name), set()).add(float(value))
    found: dict[str, tuple[str, ...]] = {}
    for (benchmark, name), seen in values.items():
        if len(seen) > 1:
            found[benchmark] = (*found.get(benchmark, ()), name)
    return found


def _curves(elements: Sequence[Element]) -> Iterator[dict[str, Any]]:
    """Yield a curve of rate over size for each family, with the interval of every point."""
    for first, members in _families(elements):
        points = []
        for m in members:
            metrics = m["metrics"]
            amount = metrics.get("flop") if metrics.get("headline") == "flop" else metrics.get("bytes")
            amount = metrics.get("size_bytes") or amount
            if not amount:
                continue
            share = metrics.get("share_of_ceiling")
            points.append(
                {
                    "flop": metrics.get("flop"), "bytes": metrics.get("bytes"), "size_bytes": metrics.get("size_bytes"),
                    "working_set_bytes": metrics.get("working_set_bytes"), "level": metrics.get("level"),
                    "time_s": metrics["median_s"], "time_ci95_s": [metrics["ci95_low_s"], metrics["ci95_high_s"]],
                    "rate": amount / metrics["median_s"],
                    "rate_ci95": [amount / metrics["ci95_high_s"], amount / metrics["ci95_low_s"]],
                    "share_of_ceiling": share if isinstance(share, int | float) else None,
                    "params": {k: v for k, v in m["metadata"]["params"].items() if k not in TIMING_NAMES},
                }
            )  # fmt: skip
        points.sort(key=lambda p: float(p["working_set_bytes"] or 0.0))
        if len(points) > 1:
            meta = first["metadata"]
            yield {
                "name": f"{meta['benchmark_name']}/{meta['impl']}", "x": "working_set_bytes",
                "unit": "FLOP/s" if first["metrics"].get("headline") == "flop" else "B/s",
                "peak": first["audit"].get("peak"), "points": points,
            }  # fmt: skip
