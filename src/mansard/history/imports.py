"""Results of other programs: what each writes, read into measurements. Units are SI afterwards; what is not told stays out."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from mansard.core.errors import InputError
from mansard.history.fingerprint import digest, fingerprint_of
from mansard.history.records import Fingerprint, Measurement, finite

_UNIT_S = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
_NORMAL_975 = 1.959964


def form_of(text: str, content: Any) -> str:
    """Return which program wrote a result.

    Raises:
        InputError: none that is known.
    """
    if isinstance(content, Mapping):
        if "nvbandwidth" in content:
            return "nvbandwidth"
        if "metrics" in content and "dimensions" in content:
            return "accelerator-microbenchmarks"
        benchmarks = content.get("benchmarks")
        first = benchmarks[0] if isinstance(benchmarks, list) and benchmarks else {}
        if "machine_info" in content and isinstance(benchmarks, list):
            return "pytest-benchmark"
        if "context" in content and isinstance(benchmarks, list):
            return "google-benchmark"
        if isinstance(first, Mapping) and "runs" in first:
            return "pyperf"
        if "devices" in content and isinstance(first, Mapping) and "states" in first:
            return "nvbench"
    elif (
        isinstance(content, list)
        and content
        and all(isinstance(r, Mapping) and "metadata" in r and "metrics" in r for r in content)
    ) or (content is None and _suite_lines(text)):
        return "accelerator-microbenchmarks"
    elif content is None and re.search(r"^#.*\balgbw\b.*\bbusbw\b", text, re.MULTILINE):
        return "nccl-tests"
    known = ", ".join(FORMS)
    raise InputError(
        "the file is neither a document of mansard nor a result of a known program", hint=f"known: {known}"
    )


def read(form: str, text: str, content: Any) -> list[Measurement]:
    """Return the measurements of a result.

    Args:
        form: A key of `FORMS`.
        text: The file.
        content: The same parsed as JSON; None where it is not JSON.

    Raises:
        InputError: an unknown form, or a file that is not of this form.
    """
    if form not in FORMS:
        raise InputError(f"unknown form {form!r}", hint=f"one of auto, mansard, {', '.join(FORMS)}")
    if form == "accelerator-microbenchmarks":
        content = content if isinstance(content, list) else [content] if content is not None else _suite_lines(text)
    return FORMS[form](text if form == "nccl-tests" else content)


def _stated(mean: float, deviation: float, count: int) -> tuple[float, float, float]:
    """Return a mean with the 95 % interval of its standard error.

    Nine samples around 10 with a deviation of 3: 10 +- 1.96 x 3 / 3.

    >>> [round(x, 2) for x in _stated(10.0, 3.0, 9)]
    [10.0, 8.04, 11.96]
    """
    reach = _NORMAL_975 * deviation / math.sqrt(count) if count > 1 else 0.0
    return mean, max(mean - reach, mean * 1e-3), mean + reach


# --- nccl-tests ------------------------------------------------------------------------------------------------------

_NCCL_TEST = re.compile(r"Collective test starting:\s*(\w+?)(?:_perf)?\s*$", re.MULTILINE)
_NCCL_RANK = re.compile(r"^#\s+Rank\s+\d+.*?\bon\s+(\S+)\s+device\s+\d+\s+\[[^\]]*\]\s+(.+?)\s*$", re.MULTILINE)
_NCCL_VERSION = re.compile(r"\bnccl-headers=\S+\s+nccl-library=(\d+)|NCCL version\s+(\S+)")


def _nccl(text: str) -> list[Measurement]:
    """Read the table of nccl-tests: sizes in B, times in us, bandwidths in GB/s (1e9)."""
    test = _NCCL_TEST.search(text)
    ranks = _NCCL_RANK.findall(text)
    version = _NCCL_VERSION.search(text)
    base = fingerprint_of({
        "gpu": ", ".join(sorted({name for _, name in ranks})), "ranks": len(ranks) or None, "nodes": len({h for h, _ in ranks}) or None,
        "nccl": next((g for g in version.groups() if g), None) if version else None,
    })  # fmt: skip
    by: dict[tuple[str, str], list[float]] = {}
    wrong: dict[str, int] = {}
    for line in text.splitlines():
        words = line.split()
        if line.lstrip().startswith("#") or len(words) < 9 or not words[0].isdigit():
            continue
        # The figures are the last eight columns, or four where only one placement was run; redop and root differ by test.
        numbers = words[-8:] if len(words) >= 11 else words[-4:]
        kind = " ".join(words[2 : len(words) - len(numbers)])
        for place, at in (("out-of-place", 0), ("in-place", 4)):
            if at + 4 > len(numbers):
                continue
            name = f"{test.group(1) if test else 'nccl'} {words[0]} B {kind} {place}"
            time_us, algbw, busbw, errors = numbers[at : at + 4]
            wrong[name] = wrong.get(name, 0) + (int(float(errors)) if errors.replace(".", "").isdigit() else 0)
            for metric, word, scale in (
                ("time_s", time_us, 1e-6),
                ("algbw_bytes_per_s", algbw, 1e9),
                ("busbw_bytes_per_s", busbw, 1e9),
            ):
                by.setdefault((name, metric), []).append(float(word) * scale)
    return [
        Measurement(
            benchmark=name, metric=metric, groups=(tuple(values),), primary=metric == "time_s", fingerprint=base,
            flaw=f"{wrong[name]} results were wrong" if wrong[name] else "",
        )
        for (name, metric), values in by.items() if all(v > 0 for v in values)
    ]  # fmt: skip


# --- nvbandwidth, nvbench --------------------------------------------------------------------------------------------


def _nvbandwidth(content: Mapping[str, Any]) -> list[Measurement]:
    """Read nvbandwidth's JSON: one figure per pair of row and column, GB/s (1e9)."""
    body = content["nvbandwidth"]
    gpus = [re.sub(r"^\d+:\s*", "", str(g)).split("(")[0].strip() for g in body.get("GPU Device list", ())]
    base = fingerprint_of({
        "gpu": ", ".join(sorted(set(gpus))) or None, "devices": len(gpus) or None, "driver": body.get("Driver Version"),
        "cuda": body.get("CUDA Runtime Version"),
    })  # fmt: skip
    found = []
    for case in body["testcases"]:
        passed = str(case.get("status", "")).lower() == "passed"
        if not passed or "bandwidth_matrix" not in case:
            absent = f"{case.get('status', 'no status')}: no bandwidth"
            found.append(Measurement(benchmark=case["name"], metric="bytes_per_s", absent=absent, fingerprint=base))
            continue
        for i, row in enumerate(case["bandwidth_matrix"]):
            for j, cell in enumerate(row):
                value = _number(cell)
                if value is not None and value > 0:
                    rate = value * 1e9
                    name = f"{case['name']} {i}->{j}"
                    found.append(
                        Measurement(
                            benchmark=name, metric="bytes_per_s", stated=(rate, rate, rate), count=1, fingerprint=base
                        )
                    )
    return found


def _number(cell: Any) -> float | None:
    try:
        value = float(cell)
    except (TypeError, ValueError):
        return None
    return value if math.isfinite(value) else None


def _nvbench(content: Mapping[str, Any]) -> list[Measurement]:
    """Read nvbench's JSON: cold GPU time of each state as mean, relative deviation and number of samples."""
    devices = {d["id"]: d for d in content["devices"]}
    found = []
    for benchmark in content["benchmarks"]:
        for state in benchmark["states"]:
            device = devices.get(state.get("device"), {})
            base = fingerprint_of({"gpu": device.get("name"), "devices": 1})
            axes = " ".join(
                f"{a['name']}={a.get('input_string') or a['value']}" for a in state.get("axis_values") or ()
            )
            common: dict[str, Any] = {
                "benchmark": f"{benchmark['name']} {axes}".strip(),
                "metric": "time_s",
                "fingerprint": base,
            }
            values = {s["tag"]: _number(_data(s)) for s in state.get("summaries") or ()}
            mean, noise = values.get("nv/cold/time/gpu/mean"), values.get("nv/cold/time/gpu/stdev/relative")
            count = int(values.get("nv/cold/sample_size") or 1)
            if state.get("is_skipped") or mean is None or mean <= 0:
                why = str(state.get("skip_reason") or "skipped or without a cold time")
                found.append(Measurement(absent=why, **common))
                continue
            found.append(Measurement(stated=_stated(mean, mean * (noise or 0.0), count), count=count, **common))
    return found


def _data(summary: Mapping[str, Any]) -> Any:
    return next((d.get("value") for d in summary.get("data", ()) if d.get("name") == "value"), None)


# --- google/benchmark, pyperf, pytest-benchmark ----------------------------------------------------------------------


def _google(content: Mapping[str, Any]) -> list[Measurement]:
    """Read google/benchmark's JSON: real time of each repetition; aggregates only where there is nothing else."""
    context = content["context"]
    base = fingerprint_of({
        "device": f"host {context.get('host_name', '?')}, {context.get('num_cpus', '?')} CPUs",
        "clock_policy": {True: "scaling", False: "fixed"}.get(context.get("cpu_scaling_enabled")),
    }).merged({"config": {"build": str(context.get("library_build_type", "not told"))}})  # fmt: skip
    repetitions: dict[str, list[float]] = {}
    aggregates: dict[str, dict[str, float]] = {}
    failed: dict[str, str] = {}
    for row in content["benchmarks"]:
        name = row.get("run_name") or row["name"]
        if row.get("error_occurred") or row.get("skipped"):
            failed[name] = str(row.get("error_message") or row.get("skip_message") or "an error occurred")
            continue
        seconds = float(row["real_time"]) * _UNIT_S[row.get("time_unit", "ns")]
        if row.get("run_type", "iteration") == "iteration":
            repetitions.setdefault(name, []).append(seconds)
        else:
            aggregates.setdefault(name, {})[row.get("aggregate_name", "")] = seconds
            aggregates[name]["repetitions"] = float(row.get("repetitions", 1))
    found = [
        Measurement(benchmark=n, metric="time_s", groups=(tuple(v),), fingerprint=base) for n, v in repetitions.items()
    ]
    for name, a in aggregates.items():
        if name not in repetitions and "median" in a:
            # The median of a normal sample is sqrt(pi / 2) = 1.253 times less certain than its mean.
            stated = _stated(a["median"], 1.2533 * a.get("stddev", 0.0), int(a["repetitions"]))
            found.append(
                Measurement(
                    benchmark=name, metric="time_s", stated=stated, count=int(a["repetitions"]), fingerprint=base
                )
            )
    lost = [n for n in failed if n not in repetitions]
    return found + [Measurement(benchmark=n, metric="time_s", absent=failed[n], fingerprint=base) for n in lost]


def _pyperf(content: Mapping[str, Any]) -> list[Measurement]:
    """Read pyperf's JSON: the values of each worker process; warm-ups and calibration runs have none."""
    shared = content.get("metadata", {})
    found = []
    for benchmark in content["benchmarks"]:
        meta = {**shared, **benchmark.get("metadata", {})}
        # Metadata that all runs share is kept once, at the top; what one run says of the machine is the same for its neighbours.
        for run in benchmark["runs"]:
            meta = {**run.get("metadata", {}), **meta}
        metric = {"second": "time_s", "byte": "memory_bytes"}.get(meta.get("unit", "second"))
        if metric is None:
            raise InputError(f"{meta.get('name')!r} is in {meta.get('unit')!r}, expected second or byte")
        base = fingerprint_of({
            "cpu_model": meta.get("cpu_model_name"), "python": meta.get("python_version"), "kernel": meta.get("platform"),
            "governor": _governor(meta.get("cpu_config")),
        })  # fmt: skip
        groups = tuple(tuple(float(v) for v in run["values"]) for run in benchmark["runs"] if run.get("values"))
        found.append(
            Measurement(
                benchmark=str(meta.get("name", "benchmark")), metric=metric, groups=groups, fingerprint=base,
                absent="" if groups else "no run has values",
            )
        )  # fmt: skip
    return found


def _governor(config: Any) -> str | None:
    match = re.search(r"governor:(\w+)", str(config or ""))
    return match.group(1) if match else None


def _pytest_benchmark(content: Mapping[str, Any]) -> list[Measurement]:
    """Read pytest-benchmark's JSON: all rounds where they were saved, else the median with its deviation."""
    machine = content["machine_info"]
    cpu = machine.get("cpu") or {}
    base: Fingerprint = fingerprint_of({
        "cpu_model": cpu.get("brand_raw") or cpu.get("brand") or machine.get("processor") or None, "python": machine.get("python_version"),
        "kernel": machine.get("release"), "commit": (content.get("commit_info") or {}).get("id"),
    })  # fmt: skip
    found = []
    for benchmark in content["benchmarks"]:
        stats = benchmark["stats"]
        common: dict[str, Any] = {
            "benchmark": benchmark.get("fullname") or benchmark["name"], "metric": "time_s", "fingerprint": base,
        }  # fmt: skip
        data = tuple(float(x) for x in stats.get("data") or ())
        median, rounds = finite(stats.get("median")), int(stats.get("rounds", 0))
        if data:
            found.append(Measurement(groups=(data,), **common))
        elif median is not None and median > 0 and rounds:
            stated = _stated(median, 1.2533 * float(stats.get("stddev", 0.0)), rounds)
            found.append(Measurement(stated=stated, count=rounds, **common))
        else:
            found.append(Measurement(absent="no rounds", **common))
    return found


# --- the published accelerator-microbenchmarks --------------------------------------------------------------------------

#: Names of its metrics without the statistic -> ours, and the factor to SI. Rates whose name does not tell bits from bytes are left out.
_SUITE_METRICS = {
    "time_ms": ("time_s", 1e-3), "step_time_ms": ("time_s", 1e-3), "average_time_ms": ("time_s", 1e-3),
    "tflops_per_sec": ("flop_per_s", 1e12), "bandwidth_gb_s": ("bytes_per_s", 1e9), "achieved_bw (GB/s)": ("bytes_per_s", 1e9),
}  # fmt: skip


def _suite_lines(text: str) -> list[Any]:
    """Return the objects of a `metrics_report.jsonl`; none where a line is anything else."""
    import json

    try:
        rows = [json.loads(line) for line in text.splitlines() if line.strip()]
    except (ValueError, RecursionError):
        return []
    return rows if all(isinstance(r, Mapping) and "metrics" in r and "dimensions" in r for r in rows) else []


def _suite(rows: Any) -> list[Measurement]:
    """Read the suite's `detailed.json`, or the `metrics_report.jsonl` of its earlier versions: medians, or the raw times where kept."""
    by: dict[tuple[str, str], list[Measurement]] = {}
    for row in rows:
        for m in _suite_detailed(row) if "metadata" in row else _suite_line(row):
            by.setdefault((m.benchmark, m.metric), []).append(m)
    # A file that was appended to holds a benchmark several times: each line is a run of it.
    return [found[0] if len(found) == 1 else _several(found) for found in by.values()]


def _several(found: list[Measurement]) -> Measurement:
    values = [float(m.stated[0]) for m in found if m.stated is not None]
    groups = tuple(g for m in found for g in m.groups) or ((tuple(values),) if values else ())
    return replace(found[0], groups=groups, stated=None, count=0, absent="" if groups else found[0].absent)


def _suite_detailed(row: Mapping[str, Any]) -> list[Measurement]:
    meta, metrics = row["metadata"], row["metrics"]
    params = meta.get("params") or {}
    base = fingerprint_of(meta.get("device_info") or {}).merged({"config": {"params": digest(params)}})
    common: dict[str, Any] = {
        "benchmark": str(meta.get("test_name") or f"{meta['benchmark_name']} {digest(params)}"),
        "fingerprint": base,
    }
    raw = tuple(float(t) / 1e3 for t in row.get("raw_times_ms") or ())
    median = finite(metrics.get("p50_ms"))
    if raw:
        found = [Measurement(metric="time_s", groups=(raw,), **common)]
    elif median is not None and median > 0:
        found = [Measurement(metric="time_s", stated=(median / 1e3,) * 3, count=1, **common)]
    else:
        found = [Measurement(metric="time_s", absent="no times", **common)]
    return found + _suite_rates(metrics, {"tflops_per_sec", "bandwidth_gb_s"}, common, "")


def _suite_line(row: Mapping[str, Any]) -> list[Measurement]:
    told = dict(row["dimensions"])
    name = str(told.pop("test_name", "benchmark"))
    base = fingerprint_of({"device": told.pop("device_kind", None)})
    shape = {k: v for k, v in told.items() if not k.startswith("test") and "timestamp" not in k}
    words = " ".join(f"{k}={v}" for k, v in sorted(shape.items()))
    return _suite_rates(
        row["metrics"], set(_SUITE_METRICS), {"benchmark": f"{name} {words}".strip(), "fingerprint": base}, "_p50"
    )


def _suite_rates(
    metrics: Mapping[str, Any], names: set[str], common: Mapping[str, Any], statistic: str
) -> list[Measurement]:
    found: list[Measurement] = []
    for name, (metric, scale) in _SUITE_METRICS.items():
        value = finite(metrics.get(name + statistic)) if name in names else None
        if value is not None and value > 0 and all(m.metric != metric for m in found):
            x = value * scale
            found.append(Measurement(metric=metric, stated=(x, x, x), count=1, primary=metric == "time_s", **common))
    return found


FORMS: Mapping[str, Callable[[Any], list[Measurement]]] = {
    "nccl-tests": _nccl, "nvbandwidth": _nvbandwidth, "nvbench": _nvbench, "google-benchmark": _google, "pyperf": _pyperf,
    "pytest-benchmark": _pytest_benchmark, "accelerator-microbenchmarks": _suite,
}  # fmt: skip
