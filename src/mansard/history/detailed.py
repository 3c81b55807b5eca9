"""Measurements of `detailed.json`: the samples of each point by process, and its rates."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from mansard.history.fingerprint import digest, fingerprint_of
from mansard.history.records import Measurement, finite, implausible

#: Parameters of a point that say how long it was measured, not what was measured.
_EFFORT = ("warmup_tries", "num_runs", "min_duration_s", "max_duration_s")


def measurements_of_point(element: Mapping[str, Any]) -> list[Measurement]:
    """Return the time and the rates of one element of `detailed.json`."""
    meta, metrics = element["metadata"], element["metrics"]
    params = {k: v for k, v in meta.get("params", {}).items() if k not in _EFFORT}
    info = {k: v for k, v in (meta.get("device_info") or {}).items() if v is not None}
    base = fingerprint_of({**element.get("environment", {}), **info})
    parts: dict[str, dict[str, str]] = {
        "config": {
            "params": digest(params),
            "flags": digest(meta.get("flags", {})),
            "backend": str(meta.get("backend")),
        }
    }
    if params.get("dtype") or params.get("in_dtype"):
        parts["dtype"] = {"dtype": str(params.get("dtype") or params.get("in_dtype"))}
    name = meta.get("test_name") or f"{meta['benchmark_name']} {digest(params)}"
    common: dict[str, Any] = {
        "benchmark": name,
        "fingerprint": base.merged(parts),
        "clock_hz": finite((element.get("conditions") or {}).get("clock_hz")),
    }
    seconds = [float(t) / 1e3 for t in element.get("raw_times_ms", ())]
    if element.get("state", "done") != "done" or not seconds:
        why = f"{element.get('state', 'no samples')}: {element.get('reason') or 'no samples'}"
        return [Measurement(metric="time_s", absent=why, **common)]
    flaw = f"its point is implausible: {element.get('verdict_reason') or 'no reason given'}" if (
        element.get("verdict") == "implausible"
    ) else ""  # fmt: skip
    groups = _as_measured(
        _processes(seconds, (element.get("samples") or {}).get("windows")), finite(metrics.get("median_s"))
    )
    found = [Measurement(metric="time_s", groups=groups, flaw=flaw, single=len(groups) == 1, **common)]
    # A rate is an amount over the time of the sample; the amount is the document's own, so the definitions agree.
    median = finite(metrics.get("median_s"))
    for metric in ("bytes_per_s", "flop_per_s", "busbw_bytes_per_s", "algbw_bytes_per_s", "share_of_ceiling"):
        rate = finite(metrics.get(metric))
        if metric == "share_of_ceiling" and rate is not None and rate > 1.05 and not flaw:
            why = f"{rate:.3g} of its ceiling: what lies above it is no measure"
            found.append(Measurement(metric=metric, absent=why, primary=False, **common))
        elif rate is not None and rate > 0 and median:
            scaled = tuple(tuple(rate * median / t for t in g) for g in groups)
            found.append(Measurement(metric=metric, groups=scaled, primary=False, flaw=flaw, **common))
        elif implausible(metrics.get(metric)):
            found.append(
                Measurement(
                    metric=metric, flaw=implausible(metrics[metric]), absent="implausible", primary=False, **common
                )
            )
    return found


def _processes(seconds: Sequence[float], windows: Any) -> tuple[tuple[float, ...], ...]:
    """Return the samples by process; `windows` is a list of process and number of samples, in the order of the samples."""
    if not windows or sum(int(n) for _, n in windows) != len(seconds):
        return (tuple(seconds),)
    by: dict[int, list[float]] = {}
    at = 0
    for process, count in windows:
        by.setdefault(int(process), []).extend(seconds[at : at + int(count)])
        at += int(count)
    return tuple(tuple(g) for g in by.values() if g)


def _as_measured(groups: tuple[tuple[float, ...], ...], median_s: float | None) -> tuple[tuple[float, ...], ...]:
    """Return samples whose median is the figure of the point.

    Of processes that were spread over a time it is the median of their medians, however many samples each moment gave.

    >>> _as_measured(((1.0, 1.0, 1.0, 1.0), (1.2,), (1.4,)), 1.2)
    ((1.0,), (1.2,), (1.4,))
    >>> _as_measured(((1.0, 1.0), (1.2,)), 1.0)
    ((1.0, 1.0), (1.2,))
    """
    if median_s is None or math.isclose(statistics.median([x for g in groups for x in g]), median_s, rel_tol=1e-6):
        return groups
    middles = [statistics.median(g) for g in groups]
    same = math.isclose(statistics.median(middles), median_s, rel_tol=1e-6)
    return tuple((m,) for m in middles) if same else groups
