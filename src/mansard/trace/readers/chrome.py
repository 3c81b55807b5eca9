"""Read Kineto JSON of PyTorch, `trace.json` of the XLA profiler, and other Chrome traces into a Timeline."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from mansard.core.errors import InputError
from mansard.core.unknown import Unknown
from mansard.trace.readers import chrome_xla
from mansard.trace.readers.chrome_checks import check
from mansard.trace.readers.chrome_columns import KINDS, Columns
from mansard.trace.readers.chrome_damage import Tally
from mansard.trace.readers.chrome_places import Places, devices_of
from mansard.trace.readers.chrome_stream import Stream, looks_like_head
from mansard.trace.readers.planes import copy_kind, host_memory
from mansard.trace.run import Finding
from mansard.trace.timeline import (
    DEVICE_WORK,
    Clock,
    Damage,
    Events,
    Kind,
    Timeline,
    sound,
)

_PLURAL = {
    Kind.KERNEL: "kernels", Kind.COPY: "copies", Kind.MEMSET: "fills", Kind.RUNTIME: "runtime calls", Kind.CPU_OP: "operators",
    Kind.ANNOTATION: "ranges", Kind.DEVICE_ANNOTATION: "ranges on the device", Kind.SYNC: "waits", Kind.PYTHON: "Python frames",
    Kind.OVERHEAD: "profiler overheads", Kind.OTHER: "other events",
}  # fmt: skip
_VERSIONS = ("cupti_version", "roctracer_version", "cuda_runtime_version", "cuda_driver_version", "hip_runtime_version",
             "hip_driver_version", "record_shapes", "with_stack", "profile_memory", "trace_id", "host_name", "traceName")  # fmt: skip
EVENT_CAP = 1_000_000  # the JSON of the XLA profiler stops at so many events
_EPOCH_NS = 10**17  # 1973: smaller times count from somewhere else


def read(
    path: Path,
    *,
    kinds: frozenset[Kind] | None = None,
    memory_limit: int | None = None,
    progress: Callable[[str, float], None] | None = None,
    launch_shapes: bool = False,
) -> Timeline:
    """Read a trace.

    Args:
        path: A `.json` file, plain or gzip by content.
        kinds: Kinds of event that are wanted; None takes all but Python functions, which cost much and are rarely asked for.
        memory_limit: Bytes the events may take [B].
        progress: Called with what is read and the share that is done.
        launch_shapes: Whether how kernels were launched is wanted.

    Raises:
        InputError: The file cannot be read, is no trace, or needs more memory than allowed.
    """
    path = Path(path)
    tally = Tally()
    columns = Columns(tally, kinds, memory_limit, path.name, shapes=launch_shapes)
    stream = Stream(path, tally, progress)
    for batch in stream:
        columns.add(batch)
        columns.check_limit(stream.share)
    columns.finish()
    columns.check_limit(1.0)
    if columns.phase_counts.get("X") == EVENT_CAP:
        tally.add("event_cap", EVENT_CAP)
    _must_be_a_trace(path, stream, columns)
    xla = chrome_xla.applies(columns)
    if xla:
        chrome_xla.sort_out(columns)
    form = "xla_trace" if xla and not chrome_xla.before_kineto(columns) else _format(stream.head, columns)
    return _timeline(path, stream.head, columns, tally, form, kinds)


def _must_be_a_trace(path: Path, stream: Stream, columns: Columns) -> None:
    if any(columns.phase_counts.get(p) for p in ("X", "B", "E", "M", "i", "I", "C", "s", "f")):
        return
    if columns.total == 0 and not columns.tally.found() and (not stream.bare_list or looks_like_head(stream.head)):
        return  # an intact trace in which nothing was recorded
    phases = ", ".join(sorted(str(p) for p in columns.phase_counts if p))
    holds = f"{columns.total} objects without a phase (`ph`)" if columns.total else "no event that can be read"
    if phases:
        holds = f"{columns.total} events of the phases {phases} alone, which have no duration of their own"
    raise InputError(
        f"{path} is not a Kineto or Chrome trace: it holds {holds}",
        hint="give the JSON file that torch.profiler's export_chrome_trace, or the JAX profiler, wrote",
        code="not_a_trace",
    )


def _format(head: Mapping[str, Any], columns: Columns) -> str:
    known = {"cpu_op", "kernel", "cuda_runtime", "user_annotation", "runtime", "mtia_ccp_events", "python_function"}
    return "kineto" if looks_like_head(head) or known & set(columns.category_counts) else "chrome"


def _timeline(
    path: Path, head: Mapping[str, Any], columns: Columns, tally: Tally, form: str, kinds: frozenset[Kind] | None
) -> Timeline:
    places = Places(columns)
    names = columns.names.table()
    tables: dict[Kind, Events] = {}
    more: list[Damage] = []
    for kind in columns.rows:
        table, damage = sound(_placed(columns, kind, places), what=_PLURAL[kind])
        more += [d for d in damage if d.code != "zero_duration" or kind in DEVICE_WORK]
        tables[kind] = table.sorted() if kind in DEVICE_WORK else table
    if Kind.COPY in tables:
        tables[Kind.COPY] = _with_directions(tables[Kind.COPY], names)
    tables, process_findings = places.owners(tables)
    devices, device_findings = devices_of(head, tables, places)
    tables = {k: places.numbered(t, devices) for k, t in tables.items()}
    timeline = Timeline(
        source=str(path),
        format=form,
        version=_version(head),
        tables=tables,
        names=names,
        devices=devices,
        processes=places.processes(head),
        threads=places.threads(),
        details=columns.details.table(),
        absent=_absent(columns, tables, kinds),
        clock=_clock(head, tables, form),
        damage=(*tally.found(), *more),
        findings=(*process_findings, *device_findings, *_unfamiliar(columns)),
        diagnostics=_diagnostics(head),
        distributed=_distributed(head),
        environment={k: head[k] for k in _VERSIONS if k in head},
        extras={
            "events": columns.total,
            "category_counts": dict(columns.category_counts),
            "phase_counts": dict(columns.phase_counts),
            "memory": columns.memory.records(devices),
            **({} if columns.shapes is None else {"launch_shapes": columns.shapes.table()}),
        },
    )
    damage_found, findings = check(timeline, head)
    return replace(timeline, damage=timeline.damage + damage_found, findings=timeline.findings + findings)


def _placed(columns: Columns, kind: Kind, places: Places) -> Events:
    return columns.table(columns.rows[kind], places.on_device if kind in _ON_DEVICE else places.on_host)


_ON_DEVICE = (*DEVICE_WORK, Kind.DEVICE_ANNOTATION, Kind.SYNC)


def _with_directions(table: Events, names: tuple[str, ...]) -> Events:
    used = np.unique(table.name)
    by_name = np.zeros(len(names) + 1, dtype=np.int8)
    for code in used.tolist():
        by_name[code] = copy_kind(names[code])
    return replace(table, copy_kind=by_name[table.name], extras={**table.extras, **_host_memory(table, names, used)})


def _host_memory(table: Events, names: tuple[str, ...], used: Any) -> dict[str, Any]:
    """Return how the host's side of each copy is held, where the names of the copies tell."""
    told = np.full(len(names) + 1, -1, dtype=np.int8)
    for code in used.tolist():
        told[code] = host_memory(names[code])
    return {"host_memory": told[table.name]} if (told >= 0).any() else {}


def _version(head: Mapping[str, Any]) -> str:
    schema = head.get("schemaVersion")
    return f"schema {schema}" if schema is not None else ""


def _absent(columns: Columns, tables: Mapping[Kind, Events], kinds: frozenset[Kind] | None) -> dict[Kind, str]:
    """Say why kinds that questions are asked about are not there."""
    seen = ", ".join(sorted(c or "no category" for c in columns.category_counts)) or "none"
    absent: dict[Kind, str] = {}
    for kind in Kind:
        if kind in tables:
            continue
        if kinds is not None and kind not in kinds:
            absent[kind] = f"{kind.name.lower()} events were not asked for"
        elif kind is Kind.PYTHON and "python_function" in columns.category_counts:
            count = columns.category_counts["python_function"]
            absent[kind] = f"{count} Python frames are in the file and were left out, since nothing asked for them"
        else:
            absent[kind] = f"the file records no {kind.name.lower()} events; its categories are: {seen}"
    return absent


def _clock(head: Mapping[str, Any], tables: Mapping[Kind, Events], form: str) -> Clock:
    starts = [int(t.start_ns.min()) for t in tables.values() if len(t)]
    note = _resolution(tables)
    base = head.get("baseTimeNanoseconds")
    if isinstance(base, int) and not isinstance(base, bool) and base > 0:
        # A round moment that Kineto counts from, months before the capture: no time that a window could begin at.
        return Clock(domain="epoch", epoch_offset_ns=base, note=note)
    if starts and min(starts) > _EPOCH_NS:
        return Clock(domain="epoch", epoch_offset_ns=0, note=note)
    needs = ("a profile that states baseTimeNanoseconds",)
    domain = "capture" if form == "xla_trace" else "unknown"
    return Clock(domain=domain, epoch_offset_ns=Unknown("the file does not say what time 0 is", needs), note=note)


def _resolution(tables: Mapping[Kind, Events]) -> str:
    parts = [c for t in tables.values() if len(t) for c in (t.start_ns, t.end_ns)]
    if parts and all(not (p % 1000).any() for p in parts):
        return "times are whole microseconds: each length is known to 1 us at best"
    return ""


def _diagnostics(head: Mapping[str, Any]) -> tuple[str, ...]:
    out: list[str] = []
    for key in ("ERROR", "WARNING", "WARN"):
        said = head.get(key)
        lines = said if isinstance(said, list) else [said] if said else []
        out += [f"{key}: {line}" for line in lines]
    return tuple(out)


def _distributed(head: Mapping[str, Any]) -> dict[str, Any]:
    info = head.get("distributedInfo")
    return dict(info) if isinstance(info, dict) else {}


_HARMLESS = re.compile(r"^(trace|ac2g|fwdbwd|overhead|cpu_instant_event|cuda_profiler_range|cuda_event|mtia_insight|mtia_counters|"
                       r"mtia_workloadd|external_correlation|collective_comm|__metadata)$")  # fmt: skip


def _unfamiliar(columns: Columns) -> tuple[Finding, ...]:
    """Name categories that no table knows: a renamed category must not look like an idle device."""
    odd = {c: n for c, n in columns.category_counts.items() if c and c not in KINDS and not _HARMLESS.match(c)}
    if not odd:
        return ()
    text = ", ".join(f"{name} ({count})" for name, count in sorted(odd.items()))
    return (
        Finding(
            code="unfamiliar_categories",
            text=f"Categories that are not known as device or host work, kept as other events: {text}.",
        ),
    )
