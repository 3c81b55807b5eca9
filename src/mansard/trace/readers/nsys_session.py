"""What an Nsight Systems export says of the capture itself: versions, options, clock, length, the profiler's own messages."""

from __future__ import annotations

from typing import Any

from mansard.core.unknown import Unknown
from mansard.trace.readers.nsys_devices import whole
from mansard.trace.readers.nsys_file import NsysFile
from mansard.trace.run import Finding
from mansard.trace.timeline import Clock

_HOST = ("Hostname", "OsVersion", "CudaVersion", "NvidiaDriverVersion")
_WARNING = 2  # severity of what a reader should know


def capture_facts(file: NsysFile) -> tuple[dict[str, Any], str]:
    """Return facts for the receipt, and the version of profiler and schema in words."""
    export = _facts(file, "EXPORT_META_DATA", "META_DATA_EXPORT")
    capture = _facts(file, "META_DATA_CAPTURE")
    product = export.get("EXPORT_PRODUCT_VERSION", "")
    schema = export.get("EXPORT_SCHEMA_VERSION", "")
    shown = f"nsys {product}, schema {schema}" if product else "nsys 2021 or earlier (the export states no version)"
    mode = next((v for k, v in capture.items() if k.endswith("CUDA_GRAPH_TRACE_OPTIONS:MODE")), "")
    facts = _facts(file, "TARGET_INFO_SYSTEM_ENV")
    host: dict[str, str] = {k: facts[k] for k in _HOST if k in facts}
    return {"profiler": shown, "cuda_graph_trace": mode, **host}, shown


def _facts(file: NsysFile, *tables: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for wanted in tables:
        name = file.table(wanted)
        if name is not None and {"name", "value"} <= set(file.tables[name]["columns"]):
            found |= {str(r["name"]): str(r["value"]) for r in file.rows(name, ("name", "value"))}
    return found


def capture_clock(file: NsysFile) -> Clock:
    """Return what the times of the export count."""
    name = file.table("TARGET_INFO_SESSION_START_TIME")
    rows = file.rows(name, ("utcEpochNs",)) if name else []
    offset: int | Unknown = Unknown("the export does not state when the capture began")
    if rows and isinstance(rows[0].get("utcEpochNs"), int):
        offset = rows[0]["utcEpochNs"]
    return Clock(domain="capture", epoch_offset_ns=offset)


def capture_window(file: NsysFile) -> tuple[int, int] | None:
    """Return start and end of the capture [ns], None where they are not stated."""
    name = file.table("ANALYSIS_DETAILS")
    rows = file.rows(name, ("startTime", "stopTime")) if name else []
    if rows and all(isinstance(rows[0].get(k), int) for k in ("startTime", "stopTime")):
        return rows[0]["startTime"], rows[0]["stopTime"]
    return None


def diagnostics(file: NsysFile) -> tuple[str, ...]:
    """Return the warnings and errors that the profiler itself wrote, each once."""
    name = file.table("DIAGNOSTIC_EVENT")
    rows = file.rows(name, ("severity", "text")) if name else []
    texts = [" ".join(str(r["text"]).split()) for r in rows if "text" in r and whole(r.get("severity"), 0) >= _WARNING]
    return tuple(dict.fromkeys(texts))


def other_work(file: NsysFile) -> list[Finding]:
    """Return what to say of work of the GPU that is not CUDA's, such as of Vulkan: it is not counted as busy."""
    tables = {t: file.last_rowid(t) for t in sorted(file.tables) if t.endswith("_WORKLOAD")}
    filled = [f"{t} ({n} rows)" for t, n in tables.items() if n]
    if not filled:
        return []
    text = f"the export also holds work of the GPU that is not CUDA's, in {', '.join(filled)}: it is not counted here"
    return [Finding(code="other_gpu_work", text=text)]
