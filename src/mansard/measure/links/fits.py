"""Latency and bandwidth of links, fitted over the sizes that were measured, as `ceilings.json` keeps them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from mansard.core.collectives import AlphaBeta, fit_alpha_beta
from mansard.core.document import to_jsonable
from mansard.core.stats import median_interval
from mansard.core.unknown import is_known
from mansard.measure.points.result import PointVerdict, Result, State

#: Parameters that say how much is moved, and those that say how it is timed; all others tell one fit from another.
SIZES = frozenset(("matrix_dim", "data_size_mib", "data_size_bytes", "num_elements", "size"))
TIMING = frozenset(
    ("warmup_tries", "num_runs", "min_duration_s", "max_duration_s", "impl", "system", "seed", "xprof_timing", "xprof_dir",
     "use_trace_roofline")
)  # fmt: skip


def fit_of(results: Iterable[Result]) -> list[dict[str, Any]]:
    """Return the fit t = alpha + bus bytes / beta of each collective or transfer that was measured at two or more sizes.

    Args:
        results: Finished points; those that move nothing between devices or memories are passed over, and so are
            points that failed or are implausible.

    Returns: JSON objects with the keys of `AlphaBeta.to_json`, what was moved over which link by what, and each point
    with its latency share.
    """
    series: dict[tuple[Any, ...], dict[float, list[Result]]] = {}
    for result in results:
        size = _bus_bytes(result)
        if size is not None:
            series.setdefault(_key(result), {}).setdefault(size, []).append(result)
    found = []
    for points in series.values():
        samples = {size: [s for r in group if r.samples for s in r.samples.seconds] for size, group in points.items()}
        fit = fit_alpha_beta(samples)
        if isinstance(fit, AlphaBeta):
            found.append(_described(fit, points, samples))
    plain: list[dict[str, Any]] = to_jsonable(found)
    return plain


def _bus_bytes(result: Result) -> float | None:
    """Return the bytes that busbw counts [B]; None for a point that has none or cannot be used."""
    if result.state is not State.DONE or result.samples is None or result.verdict is PointVerdict.IMPLAUSIBLE:
        return None
    m = result.metrics
    bus, algorithm, size = (m.get(k) for k in ("busbw_bytes_per_s", "algbw_bytes_per_s", "size_bytes"))
    if not all(isinstance(v, float | int) and is_known(v) and v > 0 for v in (bus, algorithm, size)):
        return None
    return float(size) * float(bus) / float(algorithm)  # type: ignore[arg-type]


def _key(result: Result) -> tuple[Any, ...]:
    return (result.point.benchmark, result.point.impl, result.metrics.get("participants"), _how(result.point.params))


def _how(params: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((k, str(v)) for k, v in params.items() if k not in SIZES and k not in TIMING))


def _described(
    fit: AlphaBeta, points: Mapping[float, list[Result]], samples: Mapping[float, list[float]]
) -> dict[str, Any]:
    first = next(iter(points.values()))[0]
    m, facts = first.metrics, first.audit.get("benchmark", {})
    host = m.get("operation") in ("h2d", "d2h", "round_trip", "both")
    rows = []
    for size in sorted(points):
        middle = median_interval(samples[size]).median
        rows.append(
            {
                "size_bytes": points[size][0].metrics["size_bytes"], "bus_bytes": size, "median_s": middle,
                "busbw_bytes_per_s": size / middle, "latency_share_ratio": fit.latency_share_ratio(size),
            }
        )  # fmt: skip
    return {
        "resource": {"area": "host" if host else "network", "link": m.get("link")}, "kind": "measured",
        "operation": m.get("operation"), "participants": m.get("participants"), "benchmark": first.point.benchmark,
        "implementation": first.point.impl, **fit.to_json(), "size_means": m.get("size_means"), "points": rows,
        "conditions": dict(_how(first.point.params)), "measures": facts.get("measures"),
        "busbw_kind": facts.get("busbw_kind", "bytes sent over the time"),
    }  # fmt: skip
