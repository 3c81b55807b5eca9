"""The CSV output of rocprofv3: one file a kind of record, which are read together. Times are nanoseconds of the ROCm clock."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mansard.core.errors import InputError
from mansard.trace.readers.numbers import natural
from mansard.trace.readers.rocprofv3_build import HINT, TO_HOST, Build, device, direction, registers_of
from mansard.trace.run import Finding
from mansard.trace.timeline import NONE, Damage, Kind, Process, Timeline, events

Row = Mapping[str, str]

#: Ends of the names of the files that hold events, and of the one that describes the devices.
EVENT_FILES = (
    "kernel_trace", "memory_copy_trace", "hip_api_trace", "hip_runtime_trace", "hip_runtime_api_trace", "hip_compiler_trace",
    "hip_compile_trace", "hip_compiler_api_trace", "hsa_api_trace", "hsa_core_trace", "hsa_amd_trace", "rccl_api_trace",
    "marker_api_trace",
)  # fmt: skip
_COUNTERS = "counter_collection"
_AGENTS = "agent_info"
_NAME = re.compile(rf"^(.*?)({'|'.join((*EVENT_FILES, _COUNTERS, _AGENTS))})\.csv$")
#: Columns that are used; of these, those that hardly repeat.
_COLUMNS = frozenset((
    "guid", "kind", "domain", "function", "process_id", "pid", "thread_id", "tid", "agent_id", "gpu_id", "queue_id", "stream_id",
    "dispatch_id", "kernel_name", "correlation_id", "start_timestamp", "end_timestamp", "direction", "source_agent_id",
    "destination_agent_id", "counter_name", "lds_block_size", "group_segment_size", "vgpr_count", "accum_vgpr_count",
    "workgroup_size_x", "workgroup_size_y", "workgroup_size_z", "grid_size_x", "grid_size_y", "grid_size_z",
))  # fmt: skip
_UNLIKE = frozenset(("start_timestamp", "end_timestamp", "correlation_id", "dispatch_id"))
_NUMBER = re.compile(r"(\d+)\s*$")
_STARTS = (b'"Kind",', b'"Guid",', b'"Domain",', b"Kind,", b"Guid,", b"Domain,", b'"Node_Id",', b"Node_Id,", b'"Correlation_Id",',
           b"Correlation_Id,", b'"Name","Calls",', b"Name,Calls,")  # fmt: skip


def looks_like(text: bytes) -> bool:
    """Return whether the beginning of a file is the title line of one of these files."""
    line = text[:4096].split(b"\n", 1)[0].lower()
    if b"kernel_name" in line and (b"start_timestamp" in line or b"dispatch_id" in line):
        return True
    if not line.startswith(tuple(s.lower() for s in _STARTS)):
        return False
    return b"timestamp" in line or b"totaldurationns" in line or b"agent_type" in line


@dataclass(frozen=True, slots=True)
class _File:
    """One file: its rows by the names of its columns in small letters."""

    path: Path
    rows: Sequence[Row]
    columns: frozenset[str]


@dataclass(slots=True)
class _Owners:
    """Processes by what the rows say of them."""

    known: dict[tuple[str, str], int] = field(default_factory=dict)

    def of(self, row: Row) -> int:
        """Return the process of a row, -1 where it does not say."""
        guid, pid = row.get("guid", ""), row.get("process_id", "") or row.get("pid", "")
        if not guid and not pid:
            return NONE
        return self.known.setdefault((guid, "" if guid else pid), len(self.known))


def siblings(path: Path) -> list[Path]:
    """Return the files of the recording that a file belongs to, itself among them: the same name but for the kind."""
    match = _NAME.match(path.name)
    if match is None or not match[1]:  # rocprofv3 always writes a process id or a name before the kind
        return [path]
    # Counters are collected in runs of their own, whose times are not those of the other files.
    events_of = EVENT_FILES if match[2] != _COUNTERS else ()
    found = [path.with_name(f"{match[1]}{kind}.csv") for kind in (_AGENTS, *events_of)]
    return [p for p in found if p != path and p.is_file()] + [path]


def in_folder(folder: Path) -> Path | None:
    """Return the file to open a folder by: its kernels, else another kind; None where it holds no such recording.

    Raises:
        InputError: It holds several recordings.
    """
    names = {p.name: p for p in sorted(folder.glob("*.csv"))}
    matches = {n: m for n in names if (m := _NAME.match(n)) and m[2] != _AGENTS}
    stems = sorted({m[1] for m in matches.values()})
    if not stems:
        return None
    if len(stems) > 1:
        raise InputError(
            f"{folder} holds {len(stems)} recordings of rocprofv3: {', '.join(s.rstrip('_') or '(no name)' for s in stems[:6])}",
            hint="name one of their kernel_trace.csv; several ranks go to `mansard trace ranks`",
            code="several_recordings",
        )
    return min((names[n] for n in matches), key=lambda p: (not p.name.endswith("kernel_trace.csv"), p.name))


def from_csv(path: Path, data: bytes, load: Callable[[Path], bytes], *, launch_shapes: bool = False) -> Timeline:
    """Read a file and the others of its recording.

    Args:
        path: The file.
        data: Its text.
        load: Reads another file of the recording.
        launch_shapes: Whether how kernels were launched is wanted.

    Raises:
        InputError: It holds no events.
    """
    build = Build(launch_shapes=launch_shapes)
    files = [_parsed(p, data if p == path else load(p), build) for p in siblings(path)]
    own = next(f for f in files if f.path == path)
    _check(own)
    _agents(build, files)
    owners = _Owners()
    for file in files:
        for row in file.rows:
            owners.of(row)
    read = []
    for file in files:
        if {"start_timestamp", "end_timestamp"} <= file.columns:
            _table(build, file, owners)
            read.append(file.path.name)
    build.processes += [Process(pid=int(p) if p.isdigit() else p or g) for g, p in owners.known] or [
        Process(pid="unknown")
    ]
    if len(read) > 1:
        text = f"read together, as the files of one recording: {', '.join(read)}"
        build.findings.append(Finding(code="read_together", text=text))
    return build.timeline(path, {})


def _parsed(path: Path, data: bytes, build: Build) -> _File:
    text = data.decode("utf-8", "replace").replace("\0", "")
    try:
        lines = csv.reader(io.StringIO(text, newline=""))
        head = [c.strip().lower() for c in next(lines, [])]
        wanted = [i for i, c in enumerate(head) if c in _COLUMNS or "agent_type" in head]
        seen: dict[str, str] = {}  # the same text is held once
        rows = [
            {head[i]: seen.setdefault(line[i], line[i]) if head[i] not in _UNLIKE else line[i] for i in wanted if i < len(line)}
            for line in lines if line
        ]  # fmt: skip
    except csv.Error as error:
        raise InputError(f"{path} is a damaged CSV: {error}", hint=HINT, code="damaged_csv") from None
    if text and not text.endswith("\n"):
        whole = bool(rows) and len(rows[-1]) == len(wanted)
        words = f"{path.name} ends " + (
            "without a line end, so it may be cut there" if whole else "in the middle of a line"
        )
        build.damage.append(Damage(code="no_line_end" if whole else "truncated", text=words, incomplete=not whole))
    return _File(path, rows, frozenset(head))


def _check(file: _File) -> None:
    """Refuse, by name, a file that holds no events."""
    if {"start_timestamp", "end_timestamp"} <= file.columns:
        return
    hint = "open the kernel_trace.csv of the same recording"
    if "counter_name" in file.columns:
        what = "holds counters of kernels without their times"
    elif "totaldurationns" in file.columns:
        what = "is a summary by name (rocprofv3 --stats), without events"
    elif "agent_type" in file.columns:
        what = "describes the devices of a recording and holds no events"
    else:
        what, hint = "has no columns Start_Timestamp and End_Timestamp", HINT
    raise InputError(f"{file.path} {what}", hint=hint, code="not_a_profile")


def _agents(build: Build, files: list[_File]) -> None:
    """Describe the GPUs of agent_info.csv, then those that only the events name, in the order of their numbers."""
    for row in (r for f in files if "agent_type" in f.columns for r in f.rows):
        if row.get("agent_type", "").upper() == "GPU":
            facts: dict[str, Any] = {k: int(v) if v.isdigit() else v for k, v in row.items()}
            build.describe(_int(row.get("node_id", "")), device(facts, len(build.described)))
    named = {_agent(r, f.columns) for f in files if f.columns & {"kernel_name", "direction"} for r in f.rows}
    for number in sorted(n for n in named if n != NONE):
        build.device_of(number)


def _agent(row: Row, columns: frozenset[str]) -> int:
    """Return the number of the agent whose time a row is: of a copy to the host the source, else the destination."""
    if "direction" in columns:
        back = direction(row.get("direction", "")) in TO_HOST
        return _int(row.get("source_agent_id" if back else "destination_agent_id", ""))
    return _int(row.get("agent_id", "") or row.get("gpu_id", ""))


def _table(build: Build, file: _File, owners: _Owners) -> None:
    kind = _kind(file)
    label = {Kind.KERNEL: "kernel_name", Kind.COPY: "direction"}.get(kind, "function")
    kept = []
    shapes = []
    rows, counted = _dispatches(file)
    sole = 0 if len(owners.known) <= 1 else NONE
    short = 0
    for row in rows:
        start, end = natural(row.get("start_timestamp", "")), natural(row.get("end_timestamp", ""))
        if start is None or end is None:
            short += 1
            continue
        agent = NONE if kind in (Kind.RUNTIME, Kind.ANNOTATION) else _agent(row, file.columns)
        process = owners.of(row)
        process = sole if process == NONE else process
        tid = _int(row.get("thread_id", "") or row.get("tid", ""))
        kept.append((
            start, end, build.names.code(row.get(label, "")), NONE if agent == NONE else build.device_of(agent),
            _int(row.get("queue_id", "") or row.get("stream_id", "")), _int(row.get("correlation_id", "")), process,
            build.thread(process, tid) if agent == NONE and kind is not Kind.COPY else NONE,
        ))  # fmt: skip
        if kind is Kind.KERNEL:
            shapes.append(_shape(build, row))
    if short:
        text = f"{short} lines of {file.path.name} have no start or end and are left out"
        build.damage.append(Damage(code="short_rows", text=text, count=short, incomplete=True))
    if counted:
        text = (
            f"{file.path.name} holds a line for each counter of a kernel; each kernel is taken once, its counters are not read. "
            "Kernels run one after the other while counters are collected: the gaps between them are not those of a free run"
        )
        build.findings.append(Finding(code="counter_collection", text=text))
    table = np.array(kept, dtype=np.int64).reshape(-1, 8)
    extras = {"launch_shape": np.array(shapes, dtype=np.int32)} if shapes and build.shapes is not None else None
    columns: dict[str, Any] = dict(
        zip(("name", "device", "stream", "correlation", "process", "thread"), table.T[2:], strict=True)
    )
    if kind is Kind.COPY:
        names = build.names.table()
        columns["copy_kind"] = np.array([direction(names[int(i)]) for i in table[:, 2]], dtype=np.int8)
    build.add(kind, events(start_ns=table[:, 0], end_ns=table[:, 1], extras=extras, **columns))


def _kind(file: _File) -> Kind:
    if "kernel_name" in file.columns:
        return Kind.KERNEL
    if "direction" in file.columns:
        return Kind.COPY
    marked = any(r.get("domain", r.get("kind", "")).upper().startswith("MARKER") for r in file.rows[:1])
    return Kind.ANNOTATION if marked else Kind.RUNTIME


def _dispatches(file: _File) -> tuple[Sequence[Row], bool]:
    """Return the rows of a file, each kernel once, and whether there were several rows a kernel."""
    if "counter_name" not in file.columns:
        return file.rows, False
    first: dict[tuple[str | None, ...], Row] = {}
    for row in file.rows:
        first.setdefault(
            tuple(row.get(c) for c in ("guid", "process_id", "agent_id", "dispatch_id", "start_timestamp")), row
        )
    return list(first.values()), True


_AXES = ("x", "y", "z")


def _shape(build: Build, row: Row) -> int:
    if build.shapes is None:
        return NONE
    grid, group = ([_int(row.get(f"{word}_size_{axis}", "")) for axis in _AXES] for word in ("grid", "workgroup"))
    registers = registers_of(_int(row.get("vgpr_count", "")), _int(row.get("accum_vgpr_count", "")))
    shared = _int(row.get("lds_block_size", "") or row.get("group_segment_size", ""))
    return build.shape(grid, group, registers, shared)


def _int(text: str) -> int:
    found = _NUMBER.search(text)
    return int(found.group(1)) if found and len(found.group(1)) < 19 else NONE
