"""The numbers of a point: in SI units with the unit in the name, and the columns of the published suite."""

from __future__ import annotations

from typing import Any

import numpy as np

from mansard.core.ceilings import Ceiling
from mansard.core.unknown import Implausible, Unknown, is_known
from mansard.measure.points.benchmark import HasColumns
from mansard.measure.points.evidence import Evidence
from mansard.measure.points.verdict import Judged, half_ratio

P99_LEAST = 100  # below this many samples the 99th percentile is the largest sample
P95_LEAST = 20


def metrics_of(e: Evidence, judged: Judged, benchmark: Any = None) -> dict[str, Any]:
    """Return the metrics of a point; what is not known is left out, or `Unknown` where the reason matters.

    Args:
        e: The point.
        judged: Its verdict.
        benchmark: Where it has columns of its own (`HasColumns`), they are added.

    All rates come from the median of all samples. Statistics of the published suite's columns (`avg_ms`, `std_ms`,
    `p50_ms`, `p90_ms`) are of all samples too, none filtered.
    """
    found = _times(e)
    if e.time_s > 0.0:  # without a time there is no rate
        found.update({**_rates(e), **_transfer(e), **_shares(e, judged)})
    if isinstance(benchmark, HasColumns) and e.time_s > 0.0:
        found = {**benchmark.columns(e.params, e.where, seconds_of(e)), **found}
    found["area"] = getattr(benchmark, "area", None)
    return {k: v for k, v in found.items() if v is not None}


def seconds_of(e: Evidence) -> dict[str, float]:
    """Return the statistics of the time of one operation by name [s]."""
    x = np.asarray(e.samples.seconds, dtype=np.float64)
    p50, p90, p95, p99 = (float(v) for v in np.percentile(x, [50, 90, 95, 99]))
    return {
        "median": p50, "mean": float(x.mean()), "min": float(x.min()), "max": float(x.max()), "std": float(x.std()),
        "p50": p50, "p90": p90, "p95": p95, "p99": p99, "count": float(x.size),
    }  # fmt: skip


def _times(e: Evidence) -> dict[str, Any]:
    s = e.samples
    ms = np.asarray(s.seconds, dtype=np.float64) * 1e3
    p50, p90 = (float(x) for x in np.percentile(ms, [50, 90]))
    average = float(ms.mean())
    return {
        "median_s": s.median_s, "ci95_low_s": s.low_s, "ci95_high_s": s.high_s, "half_interval_ratio": half_ratio(e),
        "slope_s": s.slope_s, "fixed_s": s.fixed_s, "floor_s": s.floor_s, "cold_s": s.cold_s,
        "compile_s": float(e.prepared.get("compile_s") or 0.0),
        "p50_ms": p50, "p90_ms": p90, "avg_ms": average, "std_ms": float(ms.std()), "min_ms": float(ms.min()),
        "max_ms": float(ms.max()), "KET_ms": average,
        "p95_ms": float(np.percentile(ms, 95)) if ms.size >= P95_LEAST else None,
        "p99_ms": float(np.percentile(ms, 99)) if ms.size >= P99_LEAST else None,
        "actual_runs": int(ms.size), "per_sample": s.per_sample,
        "processes": len({process for process, _ in s.windows}) or 1,
        "total_duration_s": float(ms.sum()) * 1e-3 * s.per_sample, "outliers": len(s.outliers),
        "interval": s.interval,
        "regimes": [
            {"median_s": r.median_s, "ci95_low_s": r.low_s, "ci95_high_s": r.high_s,
             "half_interval_ratio": r.half_ratio, "share_ratio": r.share_ratio, "processes": r.processes,
             "interval": r.interval}
            for r in s.regimes
        ] or None,
    }  # fmt: skip


def _rates(e: Evidence) -> dict[str, Any]:
    demand, time_s = e.work.demand, e.time_s
    flop, size = float(demand.total_flop), float(demand.bytes)
    found: dict[str, Any] = {
        "headline": e.work.headline, "flop": flop, "bytes": size, "working_set_bytes": float(demand.working_set),
        "total_flops": flop,
        "total_bytes_mib": size / 2**20, "total_bytes_mb": size / 1e6,
    }  # fmt: skip
    if flop > 0:
        found.update(flop_per_s=flop / time_s, tflops_per_sec=flop / time_s / 1e12)
        found["intensity"] = flop / size if size > 0 else None
    if e.work.executed_flop is not None and e.work.executed_flop != flop:
        found.update(executed_flop=e.executed_flop, executed_flop_per_s=e.executed_flop / time_s)
    if size > 0:
        found.update(bytes_per_s=size / time_s, bandwidth_gb_s=size / time_s / 1e9)
    if e.work.write_allocate_bytes is not None:
        rate = e.work.write_allocate_bytes / time_s
        found.update(write_allocate_bytes_per_s=rate, write_allocate_gb_s=rate / 1e9)
    if e.samples.slope_s:
        found["slope_flop_per_s"] = flop / e.samples.slope_s if flop else None
        found["slope_bytes_per_s"] = size / e.samples.slope_s if size else None
    level = e.level()
    found["level"] = level if isinstance(level, str) else None
    found["throughput"] = found.get("tflops_per_sec" if e.work.headline == "flop" else "bandwidth_gb_s")
    return found


def _transfer(e: Evidence) -> dict[str, Any]:
    """Return algbw and busbw with S and n, which are the bandwidth of a collective or a copy between memories."""
    moved = e.work.transfer
    if moved is None:
        return {}
    algbw = moved.size_bytes / e.time_s
    found: dict[str, Any] = {
        "operation": moved.operation, "size_bytes": moved.size_bytes, "size_means": moved.size_means,
        "participants": moved.participants, "link": moved.link, "algbw_bytes_per_s": algbw, "algbw_gb_s": algbw / 1e9,
    }  # fmt: skip
    found.update(total_bytes_mib=moved.size_bytes / 2**20, total_bytes_mb=moved.size_bytes / 1e6)  # S, not the traffic
    if is_known(moved.bus_factor):
        busbw = algbw * moved.bus_factor
        found.update(
            busbw_bytes_per_s=busbw, busbw_gb_s=busbw / 1e9, bandwidth_gb_s=busbw / 1e9,
            bus_bytes=moved.size_bytes * moved.bus_factor,
        )  # fmt: skip
    else:
        found.update(busbw_bytes_per_s=moved.bus_factor, bandwidth_gb_s=None)
    found["throughput"] = found.get("bandwidth_gb_s")
    return found


def _shares(e: Evidence, judged: Judged) -> dict[str, Any]:
    """Return the share of the ceiling with the ceiling beside it, MFU, and the time bound."""
    share: Any = judged.share
    plain = _plain(judged.share)
    found: dict[str, Any] = {
        "share_of_ceiling": share,
        "least_s": judged.least_s,
        "roofline_efficiency": None if plain is None else 100.0 * plain,
        "clock_factor": judged.clock_factor,
        "shortfall": dict(judged.factors) or None,
    }
    if judged.ceiling is not None:
        found.update(_named(judged.ceiling))
    flop, peak = float(e.work.demand.total_flop), _matrix_peak(e)
    if flop > 0 and peak is not None:
        found.update(
            mfu_ratio=flop / e.time_s / peak.value, mfu_peak_flop_per_s=peak.value, mfu_peak_kind=peak.kind.value
        )
    return found


def _plain(share: float | Unknown | Implausible) -> float | None:
    if isinstance(share, Implausible):
        return share.value
    return share if is_known(share) else None


def _named(ceiling: Ceiling) -> dict[str, Any]:
    return {
        "ceiling": ceiling.resource.label, "ceiling_kind": ceiling.kind.value, "ceiling_value": ceiling.value,
        "ceiling_unit": ceiling.unit, "ceiling_scope": ceiling.scope,
    }  # fmt: skip


def _matrix_peak(e: Evidence) -> Ceiling | None:
    """Return the matrix peak of the point's own element type, never of another one."""
    if e.ceilings is None or not e.work.demand.flop:
        return None
    (dtype, accumulate), *others = e.work.demand.flop
    if others:
        return None
    found = e.ceilings.peak(dtype, accumulate=accumulate, scope=e.scope)
    return None if isinstance(found, Unknown) else found
