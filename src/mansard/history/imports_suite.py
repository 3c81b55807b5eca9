"""Results of the published accelerator-microbenchmarks: `detailed.json`, `summary.csv` (or `.tsv`), and the older `metrics_report.jsonl`."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from mansard.history.fingerprint import digest, fingerprint_of
from mansard.history.records import Measurement, finite

#: Names of its metrics without the statistic -> ours, and the factor to SI. Rates whose name does not tell bits from bytes are left out.
_METRICS = {
    "time_ms": ("time_s", 1e-3), "step_time_ms": ("time_s", 1e-3), "average_time_ms": ("time_s", 1e-3),
    "tflops_per_sec": ("flop_per_s", 1e12), "bandwidth_gb_s": ("bytes_per_s", 1e9), "achieved_bw (GB/s)": ("bytes_per_s", 1e9),
}  # fmt: skip
_RATES = ("tflops_per_sec", "bandwidth_gb_s")
#: These divide MiB by 1024 and by seconds and call it GB/s, while the others divide bytes by 1e9.
#: Source: accelerator-microbenchmarks, benchmarks/host_device.py at 6a306a8.
_GIB = ("HostToDeviceBenchmark", "DeviceToHostBenchmark")
#: Parameters that say how a benchmark was measured, not which.
_EFFORT = ("warmup_tries", "num_runs", "min_duration_s", "xprof_dir", "xprof_timing", "use_trace_roofline", "system")
_HEAD = ("benchmark", "test_name", "KET_ms", "throughput", "start")
_DEVICE = ("platform", "device_count", "local_device_count", "jax_version", "libtpu_version", "chip_version")
_FIGURE = re.compile(
    r"_ms$|_gb_s$|tflops|flops$|^throughput|intensity|^total_|actual_runs|roofline|^trace_|xprof|efficiency|bound|peak|hbm_bytes|^op_type$"
)


def lines(text: str) -> list[Any]:
    """Return the objects of a `metrics_report.jsonl`; none where a line is anything else."""
    try:
        rows = [json.loads(line) for line in text.splitlines() if line.strip()]
    except (ValueError, RecursionError):
        return []
    return rows if all(isinstance(r, Mapping) and "metrics" in r and "dimensions" in r for r in rows) else []


def table(text: str) -> list[dict[str, str]]:
    """Return the rows of a `summary.csv`, or of the same with tabs; none where its columns are others."""
    head = text.lstrip("\ufeff").splitlines()[:1]
    if not head or not all(name in re.split(r"[,\t]", head[0]) for name in _HEAD):
        return []
    mark = "\t" if "\t" in head[0] else ","
    return [dict(row) for row in csv.DictReader(text.lstrip("\ufeff").splitlines(), delimiter=mark)]


def read(text: str, content: Any) -> list[Measurement]:
    """Read any of its files: medians, or the raw times where they are kept.

    Args:
        text: The file.
        content: The same parsed as JSON; None where it is not JSON.
    """
    rows: Sequence[Any] = content if isinstance(content, list) else [content] if content is not None else lines(text)
    by: dict[tuple[str, str], list[Measurement]] = {}
    for row in rows or table(text):
        for m in _detailed(row) if "metadata" in row else _line(row) if "dimensions" in row else _summary(row):
            by.setdefault((m.benchmark, m.metric), []).append(m)
    # A file that was appended to holds a benchmark several times: each is a run of it.
    return [found[0] if len(found) == 1 else _several(found) for found in by.values()]


def _several(found: list[Measurement]) -> Measurement:
    values = [float(m.stated[0]) for m in found if m.stated is not None]
    groups = tuple(g for m in found for g in m.groups) or ((tuple(values),) if values else ())
    return replace(found[0], groups=groups, stated=None, count=0, absent="" if groups else found[0].absent)


def _name(benchmark: str, test: Any, params: Mapping[str, Any]) -> str:
    """Return a name that a second run has too: the suite's own is the class and the second it ended in."""
    given = str(test or "")
    if given and not re.fullmatch(rf"{re.escape(benchmark)}_\d{{9,11}}", given):
        return given
    words = [f"{k}={v}" for k, v in sorted(params.items()) if k not in _EFFORT and v not in (None, "")]
    return " ".join([benchmark, *words])


def _detailed(row: Mapping[str, Any]) -> list[Measurement]:
    meta, metrics = row["metadata"], row["metrics"]
    params = meta.get("params") or {}
    info = meta.get("device_info") or {}
    told = {k: v for k, v in params.items() if k not in _EFFORT}
    base = _device(info).merged({"config": {"params": digest(told)}})
    benchmark = str(meta["benchmark_name"])
    common: dict[str, Any] = {"benchmark": _name(benchmark, meta.get("test_name"), params), "fingerprint": base}
    raw = tuple(float(t) / 1e3 for t in row.get("raw_times_ms") or ())
    time = (
        Measurement(metric="time_s", groups=(raw,), single=True, **common)
        if raw
        else _time(finite(metrics.get("p50_ms")), common)
    )
    return [time, *_rates(metrics, _RATES, common, "", gib=benchmark in _GIB)]


def _device(info: Mapping[str, Any]) -> Any:
    known = {k: v for k, v in info.items() if v not in (None, "")}
    return fingerprint_of({
        **known, "device": known.get("chip_version") or known.get("device_name") or known.get("device"),
        "jax": known.get("jax_version"), "libtpu": known.get("libtpu_version"),
    })  # fmt: skip


def _time(median_ms: float | None, common: Mapping[str, Any]) -> Measurement:
    if median_ms is None or median_ms <= 0:
        return Measurement(metric="time_s", absent="no times", **common)
    return Measurement(metric="time_s", stated=(median_ms / 1e3,) * 3, count=1, **common)


def _summary(row: Mapping[str, Any]) -> list[Measurement]:
    """Read a row of `summary.csv`, where parameters, metrics and the device share the columns."""
    benchmark = str(row["benchmark"])
    params = {k: _plain(v) for k, v in row.items() if k and not (k in (*_HEAD, *_DEVICE) or _FIGURE.search(k)) and v}
    base = _device({k: row.get(k) for k in _DEVICE})
    told = {k: v for k, v in params.items() if k not in _EFFORT}
    common: dict[str, Any] = {
        "benchmark": _name(benchmark, row.get("test_name"), params),
        "fingerprint": base.merged({"config": told}) if told else base,
    }
    numbers = {k: _float(row.get(k)) for k in ("p50_ms", *_RATES)}
    return [_time(numbers["p50_ms"], common), *_rates(numbers, _RATES, common, "", gib=benchmark in _GIB)]


def _plain(word: str) -> str:
    """Return a cell as the parameter was: a column with gaps turns whole numbers into ones with ".0".

    >>> _plain("4096.0"), _plain("0.5")
    ('4096', '0.5')
    """
    return re.sub(r"^(-?\d+)\.0$", r"\1", word)


def _float(word: Any) -> float | None:
    try:
        return finite(float(word))
    except (TypeError, ValueError):
        return None


def _line(row: Mapping[str, Any]) -> list[Measurement]:
    told = dict(row["dimensions"])
    name = str(told.pop("test_name", "benchmark"))
    base = fingerprint_of({"device": told.pop("device_kind", None)})
    shape = {k: v for k, v in told.items() if not k.startswith("test") and "timestamp" not in k}
    words = " ".join(f"{k}={v}" for k, v in sorted(shape.items()))
    return _rates(
        row["metrics"], tuple(_METRICS), {"benchmark": f"{name} {words}".strip(), "fingerprint": base}, "_p50"
    )


def _rates(
    metrics: Mapping[str, Any], names: Sequence[str], common: Mapping[str, Any], statistic: str, *, gib: bool = False
) -> list[Measurement]:
    found: list[Measurement] = []
    for name, (metric, scale) in _METRICS.items():
        value = finite(metrics.get(name + statistic)) if name in names else None
        if value is not None and value > 0 and all(m.metric != metric for m in found):
            x = value * (2.0**30 if gib and name == "bandwidth_gb_s" else scale)
            found.append(Measurement(metric=metric, stated=(x, x, x), count=1, primary=metric == "time_s", **common))
    return found
