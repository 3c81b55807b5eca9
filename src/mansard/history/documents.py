"""From any document to a `Record`: the files of `measure`, `run`, `diagnose`, `estimate`, `trace mfu`, and samples of others."""

from __future__ import annotations

import datetime
import hashlib
import json
import math
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mansard.core.document import damage_in_words
from mansard.core.errors import InputError
from mansard.history.fingerprint import digest, fingerprint_of
from mansard.history.records import METRICS, Fingerprint, Measurement, Record, finite

#: Parameters of a point that say how long it was measured, not what was measured.
_EFFORT = ("warmup_tries", "num_runs", "min_duration_s", "max_duration_s")
_SCHEMAS = ("run", "diagnose", "ceilings", "estimate", "trace_mfu", "trace_summary", "samples")
_MOST_BYTES = 256 << 20  # of a compressed document, once unpacked
_DAMAGE = (
    AttributeError,
    KeyError,
    TypeError,
    ValueError,
    IndexError,
    ArithmeticError,
)  # the last: no time, or a number without end


def read(path: Path, *, labels: Mapping[str, Mapping[str, str]] | None = None, form: str = "auto") -> Record:
    """Read a result.

    Args:
        path: The file.
        labels: What the document does not tell, such as `{"zone": {"zone": "a"}}`; it is added to every fingerprint.
        form: `auto`, `mansard`, or a key of `imports.FORMS`.

    Raises:
        InputError: it cannot be read, is damaged, or is of no known kind.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}", hint="check the path") from None
    return read_bytes(raw, source=path.name, labels=labels, form=form)


def read_bytes(
    raw: bytes, *, source: str, labels: Mapping[str, Mapping[str, str]] | None = None, form: str = "auto"
) -> Record:
    """Read a result from its bytes; see `read`."""
    from mansard.history import imports

    source = source.encode("utf-8", "backslashreplace").decode()  # a file may be called by bytes that are no text
    if not raw.strip():
        raise InputError(f"{source} is empty, expected a result document", hint="measure again")
    try:
        text = _unpacked(raw, source).decode("utf-8")
    except UnicodeDecodeError:
        raise InputError(
            f"{source} is not text, expected a result document", hint="give the JSON of a mansard verb"
        ) from None
    content = _json(text)
    asked = form
    if form == "auto":
        form = "mansard" if _is_ours(content) else imports.form_of(text, content, source)
    try:
        if form == "mansard":
            schema, created, found = _ours(content, source)
        else:
            schema, created, found = form, "", imports.read(form, text, content)
    except InputError as error:
        if re.search(rf"(?<!\w){re.escape(source)}(?!\w)", error.message):
            raise
        raise InputError(f"{source}: {error.message}", hint=error.hint, code=error.code) from None
    except _DAMAGE as error:
        if asked != "auto" and asked != (likely := _likely(text, content)):
            hint = (
                f"it looks like {likely}: leave the form out" if likely else "leave the form out to have it recognised"
            )
            raise InputError(f"{source} is no {form} document", hint=hint, code="other_kind") from None
        raise InputError(f"{source} is a damaged {form} document: {damage_in_words(error)}") from None
    found = [_finite_or_flawed(m) for m in found]
    if labels:
        found = [_labelled(m, labels) for m in found]
    for m in found:
        _must_be_text(m, source)
    twice = _twice(found)
    if twice:
        raise InputError(f"{source} names {twice!r} more than once", hint="one document is one run of each benchmark")
    return Record(
        source=source, schema=schema, created=created if _is_time(created) else "", sha256=hashlib.sha256(raw).hexdigest(),
        measurements=tuple(found), empty=_why_empty(found),
    )  # fmt: skip


def _must_be_text(m: Measurement, source: str) -> None:
    """Refuse names and conditions that no database keeps and no report shows: lone halves of a character, and NUL.

    Raises:
        InputError: there is such a one.
    """
    for words in (
        m.benchmark,
        m.flaw,
        m.absent,
        *(x for p in m.fingerprint.parts.values() for kv in p.items() for x in kv),
    ):
        if not isinstance(words, str):
            raise InputError(f"{source} is damaged: {words!r} stands where a text is expected")
        if "\0" in words or any("\ud800" <= c <= "\udfff" for c in words):
            raise InputError(
                f"{source} is damaged: {words[:60]!r} is no text", hint="write its names in Unicode, without NUL"
            )


def _is_time(text: str) -> bool:
    """Return whether a text is a time in ISO 8601; what is none does not tell when a document was made."""
    try:
        datetime.datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def _likely(text: str, content: Any) -> str:
    """Return the kind of document that a text looks like; empty where it looks like none."""
    from mansard.history import imports

    if _is_ours(content):
        return "mansard"
    try:
        return imports.form_of(text, content, "the file")
    except InputError:
        return ""


def _unpacked(raw: bytes, source: str) -> bytes:
    """Return a document that may be compressed by gzip, as pyperf writes it where the name ends in .gz."""
    if not raw.startswith(b"\x1f\x8b"):
        return raw
    import gzip
    import io
    import zlib

    try:
        with gzip.GzipFile(fileobj=io.BytesIO(raw)) as packed:
            text = packed.read(_MOST_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{source} is damaged: {error}", hint="gzip --test says what is wrong") from None
    if len(text) > _MOST_BYTES:
        raise InputError(f"{source} holds more than {_MOST_BYTES >> 20} MiB, expected a result document")
    return text


def read_samples(
    benchmark: str, samples: Sequence[float], *, metric: str = "time_s", environment: Mapping[str, Any] | None = None, one_process: bool = False,
) -> Record:  # fmt: skip
    """Return the record of samples at hand.

    Args:
        benchmark: Its name.
        samples: Samples in the SI unit of the metric.
        metric: A key of `METRICS`.
        environment: What they depend on.
        one_process: Whether one process took all of them.

    >>> read_samples("copy", [1.0, 3.0, 2.0]).measurements[0].value
    2.0
    """
    document = samples_document([samples_of(benchmark, [samples], metric, environment, one_process=one_process)])
    return read_bytes(json.dumps(document).encode(), source=benchmark)


def samples_of(
    benchmark: str, runs: Sequence[Sequence[float]], metric: str = "time_s", environment: Mapping[str, Any] | None = None, *,
    one_process: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Return one benchmark of a `samples/1` document; see `read_samples`."""
    told: dict[str, Any] = {"environment": dict(environment)} if environment else {}
    told |= {"one_process": True} if one_process else {}
    return {"name": benchmark, "metric": metric, **told, "runs": [[float(x) for x in run] for run in runs]}


def samples_document(benchmarks: Sequence[Mapping[str, Any]], *, created: str = "") -> dict[str, Any]:
    """Return a `samples/1` document.

    Args:
        benchmarks: What `samples_of` returned.
        created: When they were taken, ISO 8601.
    """
    return {"schema": "samples/1", **({"created": created} if created else {}), "benchmarks": list(benchmarks)}


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # no JSON, a number of too many digits, or nested without end
        return None


def _is_ours(content: Any) -> bool:
    first = content[0] if isinstance(content, list) and content else content
    return isinstance(first, Mapping) and isinstance(first.get("schema"), str) and "/" in first["schema"]


def _ours(content: Any, source: str) -> tuple[str, str, list[Measurement]]:
    if isinstance(content, list):
        if not all(isinstance(e, Mapping) and e.get("schema") == "detailed/1" for e in content):
            raise InputError(f"{source} is a list, but not one of detailed/1 points")
        found = [m for element in content for m in _point(element)]
        return "detailed/1", str(content[0].get("created", "")), found
    schema = content["schema"]
    name, _, major = schema.partition("/")
    if name not in _SCHEMAS or major != "1":
        raise InputError(
            f"{source} has schema {schema!r}, which holds nothing that a history compares",
            hint=f"expected detailed.json or one of {', '.join(f'{s}/1' for s in _SCHEMAS)}",
        )
    reader = _READERS[name]
    return schema, str(content.get("created", "")), reader(content)


def _labelled(m: Measurement, labels: Mapping[str, Mapping[str, str]]) -> Measurement:
    import dataclasses

    return dataclasses.replace(m, fingerprint=m.fingerprint.merged(labels))


def _finite_or_flawed(m: Measurement) -> Measurement:
    """Return a measurement whose figures are numbers: one with NaN or infinity among them keeps its name and loses its figures."""
    import dataclasses

    wrong = [x for x in (*m.samples, *(m.stated or ())) if not math.isfinite(x)]
    if not wrong:
        return m
    text = f"a sample is {wrong[0]}, which no document may hold"
    return dataclasses.replace(m, groups=(), stated=None, flaw=text, absent=text)


def _twice(found: Iterable[Measurement]) -> str:
    seen: set[str] = set()
    for m in found:
        if m.name in seen:
            return m.name
        seen.add(m.name)
    return ""


def _why_empty(found: Sequence[Measurement]) -> str:
    if not found:
        return "the document holds no figure to compare"
    if all(m.absent for m in found):
        return f"nothing was measured: {found[0].absent}"
    return ""


def _implausible(value: Any) -> str:
    if isinstance(value, Mapping) and "implausible" in value:
        suspects = ", ".join(str(s) for s in value.get("suspects", ())[:2])
        return f"its share is {float(value['implausible']):.3g} of the ceiling" + (f" ({suspects})" if suspects else "")
    return ""


# --- detailed.json ---------------------------------------------------------------------------------------------------


def _point(element: Mapping[str, Any]) -> list[Measurement]:
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
        elif _implausible(metrics.get(metric)):
            found.append(
                Measurement(
                    metric=metric, flaw=_implausible(metrics[metric]), absent="implausible", primary=False, **common
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


# --- run, diagnose ---------------------------------------------------------------------------------------------------


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
    flaw = _implausible(share)
    if flaw:
        return [Measurement(metric=metric, flaw=flaw, absent="implausible", primary=False, **common)]
    value = finite(share)
    if value is None:
        return []
    # A share moves like one over the step time, so its interval is that of the step time, turned over.
    stated = (value, value, value) if step is None else (value, value * step[0] / step[2], value * step[0] / step[1])
    return [Measurement(metric=metric, stated=stated, count=max(1, count), primary=False, **common)]


# --- the others ------------------------------------------------------------------------------------------------------


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


def _samples(d: Mapping[str, Any]) -> list[Measurement]:
    """Read `samples/1`: benchmarks with a name, a metric and the samples of each run, in SI units.

    `one_process` says that one process took all of them, so that they show nothing of how processes differ.
    """
    base = fingerprint_of(d.get("environment", {}))
    found = []
    for b in d["benchmarks"]:
        metric = b.get("metric", "time_s")
        if metric not in METRICS:
            raise InputError(f"unknown metric {metric!r} of {b['name']!r}", hint=f"one of {', '.join(METRICS)}")
        own = base.merged(fingerprint_of(b.get("environment", {})).parts)
        wrong = [x for run in b["runs"] for x in (run if isinstance(run, list) else [run]) if _no_sample(x, run)]
        if wrong:
            raise InputError(
                f"a run of {b['name']!r} holds {wrong[0]!r}, expected a list of numbers", hint='"runs": [[0.101, 0.099, 0.100]]'
            )  # fmt: skip
        groups = tuple(tuple(float(x) for x in run) for run in b["runs"] if run)
        alone = b.get("one_process", False)
        if not isinstance(alone, bool):
            raise InputError(f"one_process of {b['name']!r} is {alone!r}, expected true or false")
        groups = (tuple(x for run in groups for x in run),) if groups and alone else groups
        found.append(
            Measurement(
                benchmark=b["name"], metric=metric, groups=groups, absent="" if groups else "no samples", fingerprint=own, single=alone
            )
        )  # fmt: skip
    return found


def _no_sample(x: Any, run: Any) -> bool:
    return not isinstance(run, list) or isinstance(x, bool) or not isinstance(x, int | float)


_READERS: Mapping[str, Callable[[Mapping[str, Any]], list[Measurement]]] = {
    "run": _run, "diagnose": _run, "ceilings": _ceilings, "estimate": _estimate, "trace_mfu": _trace_mfu,
    "trace_summary": _trace_summary, "samples": _samples,
}  # fmt: skip


def merged_fingerprint(measurements: Iterable[Measurement]) -> Fingerprint:
    """Return what all measurements of a record share."""
    parts: dict[str, dict[str, str]] | None = None
    for m in measurements:
        mine = {c: dict(p) for c, p in m.fingerprint.parts.items()}
        if parts is None:
            parts = mine
        else:
            parts = {
                c: kept
                for c, p in parts.items()
                if (kept := {k: v for k, v in p.items() if mine.get(c, {}).get(k) == v})
            }
    return Fingerprint(parts=parts or {})
