"""Results of other programs: what each writes, read into measurements. Units are SI afterwards; what is not told stays out."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mansard.core.errors import InputError
from mansard.history import imports_nvidia as nvidia
from mansard.history import imports_suite as suite
from mansard.history.fingerprint import fingerprint_of
from mansard.history.imports_nvidia import number
from mansard.history.records import Fingerprint, Measurement, finite

_UNIT_S = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
_NORMAL_975 = 1.959964


def form_of(text: str, content: Any, source: str) -> str:
    """Return which program wrote a result.

    Args:
        text: The file.
        content: The same parsed as JSON; None where it is not JSON.
        source: Its name.

    Raises:
        InputError: none that is known.
    """
    if isinstance(content, Mapping):
        if "nvbandwidth" in content:
            return "nvbandwidth"
        if nvidia.is_nccl_json(content):
            return "nccl-tests"
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
    ) or (content is None and (suite.lines(text) or suite.table(text))):
        return "accelerator-microbenchmarks"
    elif content is None and nvidia.is_nccl_text(text):
        return "nccl-tests"
    elif content is None and nvidia.is_nvbandwidth_text(text):
        return "nvbandwidth"
    known = ", ".join(FORMS)
    raise InputError(
        f"{source} is neither a document of mansard nor a result of a known program", hint=f"known: {known}"
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
    return FORMS[form](text, content)


def _stated(mean: float, deviation: float, count: int) -> tuple[float, float, float]:
    """Return a mean with the 95 % interval of its standard error.

    Nine samples around 10 with a deviation of 3: 10 +- 1.96 x 3 / 3.

    >>> [round(x, 2) for x in _stated(10.0, 3.0, 9)]
    [10.0, 8.04, 11.96]
    """
    reach = _NORMAL_975 * deviation / math.sqrt(count) if count > 1 else 0.0
    return mean, max(mean - reach, mean * 1e-3), mean + reach


# --- nvbench ---------------------------------------------------------------------------------------------------------


def _nvbench(_text: str, content: Mapping[str, Any]) -> list[Measurement]:
    """Read nvbench's JSON: cold GPU time of each state as mean, relative deviation and number of samples."""
    devices = {d["id"]: d for d in content["devices"]}
    used = {s.get("device") for b in content["benchmarks"] for s in b["states"] or ()}
    found = []
    for benchmark in content["benchmarks"]:
        for state in benchmark["states"] or ():
            device = devices.get(state.get("device"), {})
            base = fingerprint_of({"gpu": device.get("name"), "devices": 1})
            axes = " ".join(
                f"{a['name']}={a.get('input_string') or a['value']}" for a in state.get("axis_values") or ()
            )
            # Several devices of one file measure the same states.
            axes += f" device {state.get('device')}" if len(used) > 1 else ""
            common: dict[str, Any] = {
                "benchmark": f"{benchmark['name']} {axes.strip()}".strip(),
                "metric": "time_s",
                "fingerprint": base,
            }
            values = {s["tag"]: number(_data(s)) for s in state.get("summaries") or ()}
            mean, noise = values.get("nv/cold/time/gpu/mean"), values.get("nv/cold/time/gpu/stdev/relative")
            count = int(values.get("nv/cold/sample_size") or 1)
            if state.get("is_skipped") or mean is None or mean <= 0:
                why = str(state.get("skip_reason") or "skipped or without a cold time")
                found.append(Measurement(absent=why, **common))
                continue
            stated = _stated(mean, mean * (noise or 0.0), count)
            found.append(Measurement(stated=stated, count=count, single=True, **common))
    return _repeated(found)


def _repeated(found: Sequence[Measurement]) -> list[Measurement]:
    """Return measurements of which each name is one: a state that was measured several times (`-a X=[8,8,8]`) has its means as samples."""
    by: dict[str, list[Measurement]] = {}
    for m in found:
        by.setdefault(m.name, []).append(m)
    result = []
    for several in by.values():
        means = tuple(m.stated[0] for m in several if m.stated is not None)
        again = len(several) > 1 and means
        result.append(
            replace(several[0], groups=(means,), stated=None, count=0, absent="", single=True) if again else several[0]
        )
    return result


def _data(summary: Mapping[str, Any]) -> Any:
    return next((d.get("value") for d in summary.get("data", ()) if d.get("name") == "value"), None)


# --- google/benchmark, pyperf, pytest-benchmark ----------------------------------------------------------------------


def _google(_text: str, content: Mapping[str, Any]) -> list[Measurement]:
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
        kind, name = _aggregate(row, name)
        if kind in ("BigO", "RMS", "cv"):
            continue  # the coefficient of a fit, its error, and a relative deviation: no times
        seconds = float(row["real_time"]) * _UNIT_S[row.get("time_unit", "ns")]
        if not kind:
            repetitions.setdefault(name, []).append(seconds)
        else:
            aggregates.setdefault(name, {})[kind] = seconds
            aggregates[name]["repetitions"] = float(row.get("repetitions", 1))
    found = [
        Measurement(benchmark=n, metric="time_s", groups=(tuple(v),), fingerprint=base, single=True)
        for n, v in repetitions.items()
    ]
    for name, a in aggregates.items():
        if name not in repetitions and "median" in a:
            # The median of a normal sample is sqrt(pi / 2) = 1.253 times less certain than its mean.
            stated = _stated(a["median"], 1.2533 * a.get("stddev", 0.0), int(a["repetitions"]))
            found.append(
                Measurement(
                    benchmark=name,
                    metric="time_s",
                    stated=stated,
                    count=int(a["repetitions"]),
                    fingerprint=base,
                    single=True,
                )
            )
    lost = [n for n in failed if n not in repetitions]
    return found + [Measurement(benchmark=n, metric="time_s", absent=failed[n], fingerprint=base) for n in lost]


def _aggregate(row: Mapping[str, Any], name: str) -> tuple[str, str]:
    """Return which aggregate a row is, empty for a repetition, and the benchmark: before 1.5 only the end of its name tells."""
    if "run_type" in row:
        return (str(row.get("aggregate_name", "")) if row["run_type"] == "aggregate" else ""), name
    found = re.search(r"_(BigO|RMS|mean|median|stddev|cv)$", name)
    return (found.group(1), name[: found.start()]) if found else ("", name)


def _pyperf(_text: str, content: Mapping[str, Any]) -> list[Measurement]:
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
                absent="" if groups else "no run has values", single=len(groups) == 1,
            )
        )  # fmt: skip
    return found


def _governor(config: Any) -> str | None:
    match = re.search(r"governor:(\w+)", str(config or ""))
    return match.group(1) if match else None


def _pytest_benchmark(_text: str, content: Mapping[str, Any]) -> list[Measurement]:
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
            found.append(Measurement(groups=(data,), single=True, **common))
        elif median is not None and median > 0 and rounds:
            stated = _stated(median, 1.2533 * float(stats.get("stddev", 0.0)), rounds)
            found.append(Measurement(stated=stated, count=rounds, single=True, **common))
        else:
            found.append(Measurement(absent="no rounds", **common))
    return found


def _nccl(text: str, content: Any) -> list[Measurement]:
    return nvidia.nccl_text(text) if content is None else nvidia.nccl_json(content)


def _nvbandwidth(text: str, content: Any) -> list[Measurement]:
    return nvidia.nvbandwidth_text(text) if content is None else nvidia.nvbandwidth_json(content)


FORMS: Mapping[str, Callable[[str, Any], list[Measurement]]] = {
    "nccl-tests": _nccl, "nvbandwidth": _nvbandwidth, "nvbench": _nvbench, "google-benchmark": _google, "pyperf": _pyperf,
    "pytest-benchmark": _pytest_benchmark, "accelerator-microbenchmarks": suite.read,
}  # fmt: skip
