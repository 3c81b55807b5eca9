"""Latency and bandwidth of links, fitted over the sizes that were measured, as `ceilings.json` keeps them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from mansard.core.collectives import AlphaBeta, fit_alpha_beta
from mansard.core.document import to_jsonable
from mansard.core.stats import median_interval

Element = Mapping[str, Any]

#: Parameters that say how much is moved, and those that say how it is timed; all others tell one fit from another.
SIZES = frozenset(("matrix_dim", "data_size_mib", "data_size_bytes", "num_elements", "size"))
TIMING = frozenset(
    ("warmup_tries", "num_runs", "min_duration_s", "max_duration_s", "impl", "system", "seed", "xprof_timing", "xprof_dir",
     "use_trace_roofline")
)  # fmt: skip
LEAST_SIZES = 3  # two sizes make a line that no point can disagree with


def fit_of(elements: Iterable[Element]) -> list[dict[str, Any]]:
    """Return the fit t = alpha + bus bytes / beta of each collective or transfer that was measured at several sizes.

    Args:
        elements: Elements of `detailed.json`; those that move nothing between devices or memories are passed over, and
            so are points that failed or are implausible.

    Returns: JSON objects with the keys of `AlphaBeta.to_json`, what was moved over which link by what, and each size
    with its latency share. Points of other numbers of participants, types or memories are never in one fit.
    """
    series: dict[tuple[Any, ...], dict[float, list[Element]]] = {}
    for element in elements:
        size = bus_bytes_of(element)
        if size is not None:
            series.setdefault(_key(element), {}).setdefault(size, []).append(element)
    found = []
    for points in series.values():
        samples = {size: [t * 1e-3 for e in group for t in e["raw_times_ms"]] for size, group in points.items()}
        fit = fit_alpha_beta(samples) if len(samples) >= LEAST_SIZES else None
        if isinstance(fit, AlphaBeta):
            found.append(_described(fit, points, samples))
    plain: list[dict[str, Any]] = to_jsonable(found)
    return plain


def bus_bytes_of(element: Element) -> float | None:
    """Return the bytes that busbw counts [B]; None for a point that has none or cannot be used."""
    if element["state"] != "done" or element["verdict"] == "implausible" or not element.get("raw_times_ms"):
        return None
    metrics = element["metrics"]
    bus, algorithm, size = (metrics.get(k) for k in ("busbw_bytes_per_s", "algbw_bytes_per_s", "size_bytes"))
    numbers = [float(v) for v in (bus, algorithm, size) if isinstance(v, float | int) and v > 0]
    return numbers[2] * numbers[0] / numbers[1] if len(numbers) == 3 else None


def _key(element: Element) -> tuple[Any, ...]:
    meta = element["metadata"]
    return (meta["benchmark_name"], meta["impl"], element["metrics"].get("participants"), _how(meta["params"]))


def _how(params: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((k, str(v)) for k, v in params.items() if k not in SIZES and k not in TIMING))


def _described(
    fit: AlphaBeta, points: Mapping[float, list[Element]], samples: Mapping[float, list[float]]
) -> dict[str, Any]:
    first = next(iter(points.values()))[0]
    m, meta, facts = first["metrics"], first["metadata"], first["audit"].get("benchmark", {})
    host = m.get("operation") in ("h2d", "d2h", "round_trip", "both")
    rows = []
    for size in sorted(points):
        middle = median_interval(samples[size]).median
        rows.append(
            {
                "size_bytes": points[size][0]["metrics"]["size_bytes"], "bus_bytes": size, "median_s": middle,
                "busbw_bytes_per_s": size / middle, "latency_share_ratio": fit.latency_share_ratio(size),
            }
        )  # fmt: skip
    return {
        "name": f"{meta['benchmark_name']}/{meta['impl']}", "operation": m.get("operation"), "link": m.get("link"),
        "resource": {"area": "host" if host else "network", "link": m.get("link")}, "kind": "measured",
        "participants": m.get("participants"), **fit.to_json(), "size_means": m.get("size_means"), "points": rows,
        "conditions": dict(_how(meta["params"])), "measures": facts.get("measures"),
        "busbw_kind": facts.get("busbw_kind", "bytes sent over the time"),
    }  # fmt: skip
