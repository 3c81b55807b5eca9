"""`detailed.json` and `summary.csv`: written at once as points finish, read again by a run that resumes."""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mansard.core.document import header, to_jsonable
from mansard.core.errors import InputError, UsageError
from mansard.measure.points.identity import key_of
from mansard.measure.points.result import Conditions, Finding, Point, PointVerdict, Result, Samples, State
from mansard.measure.store import write_text

SCHEMA = "detailed/1"
DETAILED = "detailed.json"
SUMMARY = "summary.csv"
DIGITS = 9
WRITE_SHARE = 0.05  # of the time that writing the growing file may take

#: The columns of `summary.csv` in their order; parameters follow, by name. What is not known is blank.
COLUMNS = (
    "benchmark", "test_name", "impl", "backend", "state", "verdict", "verdict_reason", "findings",
    "p50_ms", "p90_ms", "avg_ms", "std_ms", "min_ms", "max_ms", "p95_ms", "p99_ms", "KET_ms", "ci95_low_ms",
    "ci95_high_ms", "slope_ms", "floor_ms", "cold_ms", "compile_ms", "throughput", "tflops_per_sec", "bandwidth_gb_s",
    "algbw_gb_s", "busbw_gb_s", "size_bytes", "participants", "write_allocate_gb_s", "total_flops", "executed_flop",
    "total_bytes_mib", "total_bytes_mb", "intensity", "level", "working_set_bytes", "ceiling", "ceiling_kind",
    "ceiling_value", "ceiling_unit", "share_of_ceiling", "roofline_efficiency", "mfu_ratio", "actual_runs", "processes",
    "per_sample", "outliers", "total_duration_s", "clock_hz", "temperature_c", "power_w", "steal_ratio",
    "foreign_ratio", "load_average", "minor_faults", "major_faults", "throttled_s", "platform", "device_count",
    "local_device_count", "device_name", "jax_version", "torch_version", "numpy_version", "tool_version", "start",
    "reason",
)  # fmt: skip
_MS = {
    "ci95_low_ms": "ci95_low_s", "ci95_high_ms": "ci95_high_s", "slope_ms": "slope_s", "floor_ms": "floor_s",
    "cold_ms": "cold_s", "compile_ms": "compile_s",
}  # fmt: skip


def rounded(value: Any) -> Any:
    """Return JSON with floats of nine significant digits: more than any clock has, and half the size.

    >>> rounded({"a": [0.1234567891234, 1]})
    {'a': [0.123456789, 1]}
    """
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {k: rounded(v) for k, v in value.items()}
    if isinstance(value, list):
        return [rounded(v) for v in value]
    return value


def element_of(result: Result, plan: str, environment: Mapping[str, Any]) -> dict[str, Any]:
    """Return the element of `detailed.json` of one result.

    Args:
        result: The result.
        plan: Hash of the plan it belongs to.
        environment: The environment, for results that carry none.
    """
    point, samples = result.point, result.samples
    env = dict(result.environment or environment)
    where = env.pop("where", None)
    body = header(SCHEMA, env)
    body["metadata"] = {
        "benchmark_name": point.benchmark,
        "test_name": point.name,
        "impl": point.impl,
        "backend": point.backend,
        "params": dict(point.params),
        "flags": dict(point.flags),
        "origin": point.origin,
        "start_time": result.started,
        "device_info": _device_info(where, env),
        "key": key_of(point),
        "plan": plan,
    }
    body["state"] = result.state
    body["reason"] = result.reason
    body["metrics"] = dict(result.metrics)
    body["raw_times_ms"] = [s * 1e3 for s in samples.seconds] if samples is not None else []
    body["samples"] = _samples(result)
    body["conditions"] = result.conditions
    body["audit"] = {**result.audit, "findings": list(result.findings)}
    body["verdict"] = result.verdict
    body["verdict_reason"] = result.verdict_reason
    plain: dict[str, Any] = rounded(to_jsonable(body))
    return plain


def result_of_element(element: Mapping[str, Any]) -> Result:
    """Return a point as `detailed.json` keeps it as a result again: what comparisons of points need of it."""
    meta, kept, audit = element["metadata"], element.get("samples") or {}, element.get("audit") or {}
    seconds = tuple(float(t) * 1e-3 for t in element["raw_times_ms"])
    known = ("per_sample", "median_s", "low_s", "high_s", "interval", "stopped_by")
    return Result(
        point=Point(
            benchmark=meta["benchmark_name"], impl=meta["impl"], backend=meta.get("backend", ""),
            params=dict(meta["params"]), name=meta["test_name"], origin=meta.get("origin", ""), flags=dict(meta.get("flags") or {}),
        ),
        state=State(element["state"]),
        reason=element.get("reason", ""),
        samples=Samples(seconds=seconds, **{k: kept[k] for k in known if k in kept}) if seconds else None,
        conditions=Conditions(foreign_ratio=(element.get("conditions") or {}).get("foreign_ratio")),
        metrics=dict(element["metrics"]),
        audit=dict(audit),
        findings=tuple(
            Finding(code=f["code"], text=f["text"], fatal=bool(f.get("fatal")))
            for f in audit.get("findings", ())
        ),
        verdict=PointVerdict(element["verdict"]) if element.get("verdict") else None,
        verdict_reason=element.get("verdict_reason", ""),
        started=meta.get("start_time", ""),
    )  # fmt: skip


def _samples(result: Result) -> dict[str, Any] | None:
    """Return the samples without the times, which are in `raw_times_ms`."""
    if result.samples is None:
        return None
    plain: dict[str, Any] = to_jsonable(result.samples)
    return {k: v for k, v in plain.items() if k != "seconds"}


def _device_info(where: Mapping[str, Any] | None, env: Mapping[str, Any]) -> dict[str, Any]:
    versions = env.get("versions", {})
    found: dict[str, Any] = {f"{name}_version": versions.get(name) for name in ("jax", "torch", "numpy")}
    if where is not None:
        found.update(
            platform=where["platform"], device_count=where["devices"], local_device_count=where["devices"],
            device_name=where["device_name"], chip_version=where["device_name"], threads=where["threads"],
        )  # fmt: skip
    return found


def row_of(element: Mapping[str, Any], parameters: Sequence[str]) -> dict[str, Any]:
    """Return the row of `summary.csv` of one element of `detailed.json`.

    Args:
        element: The element.
        parameters: Names of the parameter columns.
    """
    meta, metrics = element["metadata"], element["metrics"]
    info, conditions = meta["device_info"], element.get("conditions") or {}
    row: dict[str, Any] = {name: metrics.get(name) for name in COLUMNS if name in metrics}
    for name, source in _MS.items():
        seconds = metrics.get(source)
        row[name] = float(f"{seconds * 1e3:.{DIGITS}g}") if isinstance(seconds, int | float) else None
    for name in COLUMNS:
        if name in conditions:
            row[name] = conditions[name]
        elif name in info:
            row[name] = info[name]
    row.update(
        benchmark=meta["benchmark_name"], test_name=meta["test_name"], impl=meta["impl"], backend=meta["backend"],
        state=element["state"], verdict=element["verdict"], verdict_reason=element["verdict_reason"],
        findings=" ".join(dict.fromkeys(f["code"] for f in element["audit"].get("findings", ()))),
        tool_version=element["tool_version"], start=meta["start_time"], reason=element["reason"],
    )  # fmt: skip
    for name in parameters:
        row[name] = meta["params"].get(name)
    return {k: _cell(v) for k, v in row.items()}


def _cell(value: Any) -> Any:
    if isinstance(value, Mapping):  # Unknown has no number; Implausible has one that cannot be true
        return value.get("implausible", "")
    if isinstance(value, list):
        return " ".join(str(v) for v in value)
    return "" if value is None else value


def summary_text(elements: Iterable[Mapping[str, Any]]) -> str:
    """Return `summary.csv`: the fixed columns, then the parameters of all points by name."""
    rows = list(elements)
    named = {name for e in rows for name in e["metadata"]["params"]}
    parameters = sorted(named - set(COLUMNS))
    out = io.StringIO()
    writer = csv.DictWriter(out, [*COLUMNS, *parameters], restval="", lineterminator="\n")
    writer.writeheader()
    for element in rows:
        writer.writerow(row_of(element, parameters))
    return out.getvalue()


def read_detailed(path: Path) -> list[dict[str, Any]]:
    """Return the elements of a `detailed.json` that this program wrote.

    Raises:
        InputError: it cannot be read, or is something else.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}", hint="check the folder") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(f"{path} is not valid JSON: {error}", hint="remove it, or give another folder") from None
    if not isinstance(found, list) or not all(
        isinstance(e, dict) and e.get("schema") == SCHEMA and "metadata" in e and "state" in e for e in found
    ):
        raise InputError(f"{path} is not a list of {SCHEMA} points", hint="give another folder")
    return found


@dataclass(slots=True)
class Writer:
    """Keeps the files of a run whole: after every finished point they hold all that is finished.

    Args:
        folder: Where they are written; None keeps the elements in memory alone.
        plan: Hash of the plan.
        environment: What the numbers belong to.
        order: Keys of the plan's points, the order of the rows.
    """

    folder: Path | None
    plan: str
    environment: Mapping[str, Any]
    order: Sequence[str]
    elements: list[dict[str, Any]] = field(default_factory=list)
    _texts: list[str] = field(default_factory=list)
    _written: float = -1e9
    _cost_s: float = 0.0

    def resume(self) -> set[str]:
        """Take over what an earlier run of the same plan finished, and return the keys of those points.

        A point that failed, or was left out for want of time, is measured again.

        Raises:
            UsageError: the file belongs to another plan.
        """
        if self.folder is None or not (self.folder / DETAILED).exists():
            return set()
        found = read_detailed(self.folder / DETAILED)
        others = {e["metadata"].get("plan") for e in found} - {self.plan}
        if others:
            raise UsageError(
                f"{self.folder / DETAILED} belongs to another plan than the one given",
                hint="resume with the same configuration and suite, or give another folder with -o",
            )
        for element in found:
            time_out = element["state"] == State.WAIVED and "(missing: time)" in element["reason"]
            if element["state"] != State.FAILED and not time_out and element["metadata"]["key"] in self.order:
                self._add(element)
        return {e["metadata"]["key"] for e in self.elements}

    def keep(self, result: Result) -> None:
        """Add a result and write the files, unless they were written a moment ago."""
        self._add(element_of(result, self.plan, self.environment))
        if time.monotonic() - self._written > self._cost_s / WRITE_SHARE:
            self.write()

    def _add(self, element: dict[str, Any]) -> None:
        self.elements.append(element)
        self._texts.append(json.dumps(element, allow_nan=False))

    def ordered(self) -> list[dict[str, Any]]:
        """Return the elements in the order of the plan."""
        rank = {key: i for i, key in enumerate(self.order)}
        return sorted(self.elements, key=lambda e: rank.get(e["metadata"]["key"], len(rank)))

    def write(self) -> None:
        """Write both files, each at once."""
        if self.folder is None:
            return
        start = time.monotonic()
        write_text(self.folder / DETAILED, "[\n" + ",\n".join(self._texts) + "\n]\n")
        write_text(self.folder / SUMMARY, summary_text(self.ordered()))
        self._written = time.monotonic()
        self._cost_s = self._written - start


def points_left(points: Sequence[Point], done: set[str]) -> list[Point]:
    """Return the points of a plan that are not finished, each once."""
    left, seen = [], set(done)
    for point in points:
        key = key_of(point)
        if key not in seen:
            seen.add(key)
            left.append(point)
    return left
