"""The document of `mansard plan scale`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from mansard.core.document import header
from mansard.core.unknown import Unknown
from mansard.plan.scale import ScaleModel, gustafson_ratio
from mansard.plan.scale_fit import ScaleFit


def _limit(model: ScaleModel) -> float | Unknown:
    if math.isfinite(model.limit_ratio):
        return model.limit_ratio
    return Unknown("nothing is serial and nothing is sent: no limit can be seen", ("larger N",))


def _parts(model: ScaleModel) -> dict[str, Any]:
    return {
        "serial_s": model.serial_s, "parallel_s": model.parallel_s, "message_bytes": model.message_bytes,
        "link_bytes_per_s": model.link_bytes_per_s, "alpha_s": model.alpha_s, "growth_s_per_device": model.growth_s,
    }  # fmt: skip


def _rows(model: ScaleModel, at: Sequence[int]) -> list[dict[str, Any]]:
    return [
        {"n": n, "time_s": model.strong_s(n), "comm_s": model.comm_s(n), "speedup": model.speedup_ratio(n),
         "strong_efficiency_ratio": model.strong_efficiency_ratio(n), "weak_time_s": model.weak_s(n),
         "weak_efficiency_ratio": model.weak_efficiency_ratio(n), "scaled_speedup": model.scaled_speedup_ratio(n)} for n in at
    ]  # fmt: skip


def model_document(
    model: ScaleModel, *, at: Sequence[int], efficiency_ratio: float, relative: bool = False
) -> dict[str, Any]:
    """Return what parts that were given predict.

    Args:
        model: The parts.
        at: The N of the table.
        efficiency_ratio: The last N above this is named.
        relative: Whether times are shares of T(1) rather than seconds.
    """
    stop = model.stops_paying()
    return {
        **header("plan-scale/1", {}), "from": "parts", "scaling": "strong", "relative": relative,
        "model": "T(N) = T_serial + T_parallel / N + 2 (N - 1) alpha + 2 D (N - 1) / (N W)", "parts": _parts(model),
        "limit": _limit(model), "best_n": stop.n, "stops_paying": stop.text, "efficiency_floor": efficiency_ratio,
        "last_n_above": model.last_above(efficiency_ratio), "rows": _rows(model, at), "measured": [], "fit": None,
        "notes": [
            "weak scaling: each device keeps the parallel time, the serial time and the message stay; scaled speedup: the work of N "
            "devices over that of one, each for its time (Gustafson)"
        ],
    }  # fmt: skip


def fit_document(fit: ScaleFit, *, at: Sequence[int], efficiency_ratio: float) -> dict[str, Any]:
    """Return what a fit of measured points says.

    Args:
        fit: The fit.
        at: The N of the table; measured ones are added.
        efficiency_ratio: The last N above this is named.
    """
    every = sorted({*at, *fit.points})
    model, stop = fit.model, fit.model.stops_paying()
    shown: dict[str, Any] = {
        "law": fit.law, "serial_ratio": fit.serial_ratio, "serial_ci95_ratio": fit.serial_ci95_ratio,
        "one_device_s": fit.one_device_s, "growth_ci95_s": fit.growth_ci95_s, "error_ratio": fit.error_ratio,
    }  # fmt: skip
    measured = [{"n": n, "time_s": t, "efficiency_ratio": fit.efficiency[n]} for n, t in fit.points.items()]
    common = {
        **header("plan-scale/1", {}), "from": "points", "scaling": fit.scaling, "relative": False, "fit": shown,
        "measured": measured, "efficiency_floor": efficiency_ratio,
    }  # fmt: skip
    smallest = min(fit.points)
    notes = [*fit.notes]
    if smallest != 1:
        notes.append(f"measured efficiencies are against N = {smallest}, since N = 1 was not measured")
    far = [n for n in at if n > 4 * max(fit.points)]
    if far:
        notes.append(f"N above {4 * max(fit.points)} is far beyond what was measured")
    if fit.scaling == "strong":
        return {
            **common, "model": "T(N) = a + b / N" + (" + c (N - 1)" if model.growth_s else ""), "parts": _parts(model),
            "limit": _limit(model), "best_n": stop.n, "stops_paying": stop.text,
            "last_n_above": model.last_above(efficiency_ratio), "rows": _rows(model, every), "notes": notes,
        }  # fmt: skip
    s, one = fit.serial_ratio, fit.one_device_s
    rows = [
        {"n": n, "time_s": one * n / gustafson_ratio(s, n), "comm_s": None, "speedup": gustafson_ratio(s, n),
         "weak_efficiency_ratio": gustafson_ratio(s, n) / n} for n in every
    ]  # fmt: skip
    return {
        **common, "model": "S(N) = s + (1 - s) N", "parts": None,
        "limit": Unknown("the work grows with N, so the scaled speedup has no limit", ()), "best_n": None,
        "stops_paying": f"none by Gustafson's law: each further device adds {1.0 - s:.3g} of a device's work",
        "last_n_above": _last_weak(s, efficiency_ratio), "rows": rows, "notes": notes,
    }  # fmt: skip


def _last_weak(s: float, efficiency_ratio: float) -> int | None:
    """The last N with s / N + 1 - s at least that; None where there is no end."""
    if 1.0 - s >= efficiency_ratio or s == 0.0:
        return None
    return max(1, math.floor(s / (efficiency_ratio - (1.0 - s)) + 1e-9))
