"""Measurements of the documents of `run`, `diagnose`, `ceilings`, `estimate` and `trace`: figures that carry their interval."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mansard.history.fingerprint import fingerprint_of
from mansard.history.records import METRICS, Measurement, finite, implausible


def _run(d: Mapping[str, Any]) -> list[Measurement]:
    receipt = d.get("receipt") or {}
    told = receipt.get("machine")
    machine: Mapping[str, Any] = told if isinstance(told, Mapping) else {}
    known = {
        k: v
        for k, v in machine.items()
        if k in ("cpu_model", "memory_bytes", "huge_pages", "kernel", "tuning_variables")
    }
    environment = {**known, **d.get("environment", {})}
    base = fingerprint_of({**environment, "program": d.get("program") or environment.get("program")})
    resource = (receipt.get("mfu_peak") or {}).get("resource") or {}
    parts: dict[str, dict[str, str]] = {}
    if resource.get("dtype"):
        parts["dtype"] = {"dtype": str(resource["dtype"])}
    flop = finite(d.get("flop_per_step"))
    if flop is not None:
        parts["revision"] = {"flop_per_step": f"{flop:.6g}"}  # other work is a change of the program, and is said
    common: dict[str, Any] = {"benchmark": "step", "fingerprint": base.merged(parts)}
    step = d["step"]
    median = finite(step.get("median_s"))
    samples = _step_samples(step)
    if not step.get("count") or not median or median <= 0:
        return [Measurement(metric="step_time_s", absent="the run has no steady steps", **common)]
    low, high = (float(x) for x in step["ci95_s"])
    found = [
        Measurement(metric="step_time_s", groups=(samples,), single=True, **common) if samples
        else Measurement(metric="step_time_s", stated=(median, low, high), count=int(step["count"]), single=True, **common)
    ]  # fmt: skip
    shares = (("mfu_ratio", d.get("mfu_ratio")), ("share_of_ceiling", (d.get("verdict") or {}).get("share_of_ceiling")))
    for metric, share in shares:
        found += _share(metric, share, (median, low, high), int(step["count"]), common)
    for row in d.get("operators", ()):
        found += _share(
            "share_of_ceiling", row.get("share_of_ceiling"), None, 0, {**common, "benchmark": _operator_name(row)}
        )
    return _numbered(found)


def _step_samples(step: Mapping[str, Any]) -> tuple[float, ...]:
    """Return the steps one by one [s]; without samples where steps do different work, whose spread is no noise.

    Steps that were timed with the profiler on are brought to the median without it, as their interval is.
    """
    steps = tuple(float(x) for x in step.get("steps_s", ()))
    if step.get("statistic", "median") != "median" or len(steps) < 2:
        return ()
    profiled = finite(step.get("profiled_median_s"))
    if not step.get("steps_profiled"):
        return steps
    return tuple(t * float(step["median_s"]) / profiled for t in steps) if profiled else ()


def _operator_name(row: Mapping[str, Any]) -> str:
    again = " (recompute)" if row.get("recompute") else ""
    shapes = f" {row['shapes']}" if row.get("shapes") else ""
    return f"{row['name']}{again} {row.get('part', 'other')}{shapes}"


def _ceilings(d: Mapping[str, Any]) -> list[Measurement]:
    from mansard.core.ceilings import Area, ceiling_from_json

    base = fingerprint_of(d.get("environment", {}))
    found = []
    for raw in d["ceilings"]:
        c = ceiling_from_json(raw)
        detail = " ".join(f"{k}={v}" for k, v in sorted(c.resource.to_json().items()) if k != "area")
        metric = {Area.COMPUTE: "flop_per_s", Area.LATENCY: "latency_s"}.get(c.resource.area, "bytes_per_s")
        if c.unit != METRICS[metric][0]:
            metric = "operations_per_s" if c.resource.area is Area.COMPUTE else metric
        low, high = c.ci95 or (c.value, c.value)
        found.append(
            Measurement(
                benchmark=f"ceiling {c.resource.area.value} {c.scope} {detail}", metric=metric,
                stated=(c.value, float(low), float(high)), count=int(c.conditions.get("samples", 1) or 1),
                exact=str(c.kind) != "measured", fingerprint=base,
            )
        )  # fmt: skip
    return _numbered(found)


def _estimate(d: Mapping[str, Any]) -> list[Measurement]:
    plan = {k: str(v) for k, v in d.get("plan", {}).items()}
    base = fingerprint_of({**d.get("environment", {}), "phase": d.get("phase")}).merged(
        {"topology": plan, "dtype": {k: str(v) for k, v in d.get("types", {}).items()}}
    )
    common: dict[str, Any] = {"benchmark": f"estimate {d['phase']}", "exact": True, "count": 1, "fingerprint": base}
    totals, views = d["totals"], d.get("views", {})
    ttft, tpot = ((views.get(k) or {}).get("expected_s") for k in ("ttft", "tpot"))
    figures = {
        "time_s": totals.get("time_bound_s"),
        "tokens_per_s": totals.get("tokens_per_s"),
        "ttft_s": ttft,
        "tpot_s": tpot,
    }
    found = [
        Measurement(metric=metric, stated=(value, value, value), primary=metric != "tokens_per_s", **common)
        for metric, value in ((k, finite(v)) for k, v in figures.items()) if value is not None and value > 0
    ]  # fmt: skip
    return found or [Measurement(metric="time_s", absent="no machine was given", **common)]


def _trace_mfu(d: Mapping[str, Any]) -> list[Measurement]:
    base = fingerprint_of({**d.get("environment", {}), "device_count": d.get("devices")})
    common: dict[str, Any] = {
        "benchmark": f"region {d.get('region')} {d.get('occurrence')}",
        "count": 1,
        "fingerprint": base,
    }
    wall = finite(d.get("wall_time_s"))
    if not d.get("kernel_count"):
        return [Measurement(metric="wall_time_s", absent="no kernels were recorded", **common)]
    found = [] if wall is None else [Measurement(metric="wall_time_s", stated=(wall, wall, wall), **common)]
    return found + _share("mfu_ratio", d.get("mfu_ratio"), None, 1, {k: v for k, v in common.items() if k != "count"})


def _trace_summary(d: Mapping[str, Any]) -> list[Measurement]:
    base = fingerprint_of({**d.get("environment", {}), "device_count": len(d["devices"])})
    found = []
    for device in d["devices"]:
        own = base.merged({"device": {"name": str(device["name"])}} if device.get("name") else {})
        common: dict[str, Any] = {"benchmark": f"device {device['device']}", "count": 1, "fingerprint": own}
        span = finite(device.get("gpu_span_s"))
        if not device.get("kernel_count") or span is None:
            found.append(Measurement(metric="gpu_span_s", absent="no kernels were recorded", **common))
        else:
            found.append(Measurement(metric="gpu_span_s", stated=(span, span, span), **common))
    return found


def _numbered(found: Sequence[Measurement]) -> list[Measurement]:
    """Return measurements with a number behind names that occur again, in the order of the document."""
    import dataclasses

    seen: dict[str, int] = {}
    result = []
    for m in found:
        seen[m.name] = seen.get(m.name, 0) + 1
        again = seen[m.name]
        result.append(m if again == 1 else dataclasses.replace(m, benchmark=f"{m.benchmark} #{again}"))
    return result


def _share(
    metric: str, share: Any, step: tuple[float, float, float] | None, count: int, common: Mapping[str, Any]
) -> list[Measurement]:
    flaw = implausible(share)
    if flaw:
        return [Measurement(metric=metric, flaw=flaw, absent="implausible", primary=False, **common)]
    value = finite(share)
    if value is None:
        return []
    # A share moves like one over the step time, so its interval is that of the step time, turned over.
    stated = (value, value, value) if step is None else (value, value * step[0] / step[2], value * step[0] / step[1])
    return [Measurement(metric=metric, stated=stated, count=max(1, count), primary=False, **common)]


#: What reads a document, by the name of its schema.
READERS: Mapping[str, Callable[[Mapping[str, Any]], list[Measurement]]] = {
    "run": _run, "diagnose": _run, "ceilings": _ceilings, "estimate": _estimate, "trace_mfu": _trace_mfu,
    "trace_summary": _trace_summary,
}  # fmt: skip
