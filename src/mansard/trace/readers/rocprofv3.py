"""Read rocprofv3 traces, JSON or CSV, into a Timeline. Times are nanoseconds of the ROCm clock."""

from __future__ import annotations

import csv
import io
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from mansard.core.errors import InputError
from mansard.core.unknown import Unknown
from mansard.trace.readers.chrome_checks import stream_overlap
from mansard.trace.readers.numbers import int64s, natural
from mansard.trace.readers.planes import copy_kind
from mansard.trace.run import Finding
from mansard.trace.timeline import (
    DEVICE_WORK,
    NONE,
    Clock,
    Damage,
    Device,
    Events,
    Kind,
    Names,
    Process,
    Thread,
    Timeline,
    events,
    joined,
    sound,
)

_HINT = "record with: rocprofv3 --kernel-trace --memory-copy-trace --hip-trace --output-format json -- PROGRAM"
_WORDS = {Kind.KERNEL: "kernels", Kind.COPY: "copies", Kind.RUNTIME: "runtime calls", Kind.ANNOTATION: "ranges"}


class _Handle(msgspec.Struct, gc=False):
    handle: int = NONE


class _Correlation(msgspec.Struct, gc=False):
    internal: int = NONE
    external: Any = NONE


class _Dispatch(msgspec.Struct, gc=False):
    agent_id: _Handle = msgspec.field(default_factory=_Handle)
    queue_id: _Handle = msgspec.field(default_factory=_Handle)
    kernel_id: int = NONE
    dispatch_id: int = NONE


class _Record(msgspec.Struct, gc=False):
    start_timestamp: int = 0
    end_timestamp: int = 0
    thread_id: int = NONE
    kind: Any = None
    operation: Any = None
    correlation_id: _Correlation = msgspec.field(default_factory=_Correlation)
    stream_id: _Handle = msgspec.field(default_factory=_Handle)
    dispatch_info: _Dispatch | None = None
    src_agent_id: _Handle | None = None
    dst_agent_id: _Handle | None = None
    bytes: int = NONE


class _Buffers(msgspec.Struct, gc=False):
    kernel_dispatch: list[_Record] = []
    memory_copy: list[_Record] = []
    hip_api: list[_Record] = []
    hsa_api: list[_Record] = []
    rccl_api: list[_Record] = []
    marker_api: list[_Record] = []


class _Symbol(msgspec.Struct, gc=False):
    kernel_id: int = NONE
    formatted_kernel_name: str = ""
    demangled_kernel_name: str = ""
    kernel_name: str = ""


class _Names(msgspec.Struct, gc=False):
    kind: Any = None
    operations: list[str] = []


class _Strings(msgspec.Struct, gc=False):
    buffer_records: list[_Names] = []
    marker_api: list[Any] = []


class _Tool(msgspec.Struct, gc=False):
    metadata: dict[str, Any] = {}
    agents: list[dict[str, Any]] = []
    kernel_symbols: list[_Symbol] = []
    strings: _Strings = msgspec.field(default_factory=_Strings)
    buffer_records: _Buffers = msgspec.field(default_factory=_Buffers)


class _Document(msgspec.Struct, gc=False):
    tools: list[_Tool] = msgspec.field(name="rocprofiler-sdk-tool")


def read(
    path: Path,
    *,
    kinds: frozenset[Kind] | None = None,
    memory_limit: int | None = None,
    progress: Callable[[str, float], None] | None = None,
) -> Timeline:
    """Read a trace.

    Args:
        path: A `_results.json` or `_kernel_trace.csv` file, gzip or not; the content decides.
        kinds: Kinds of event that are wanted; None takes all.
        memory_limit: Bytes the reader may hold [B]; the file is decoded as a whole.
        progress: Called with what is read and the share that is done.

    Raises:
        InputError: The file cannot be read, is damaged, or needs more memory than allowed.
    """
    path = Path(path)
    data, cut = _bytes(path, memory_limit)
    if progress is not None:
        progress(f"reading {path.name}", 0.5)
    timeline = _from_json(path, data, cut=cut) if data.lstrip()[:1] == b"{" else _from_csv(path, data)
    if cut and not timeline.incomplete:
        text = "the gzip file is cut short; what could be unpacked was read"
        timeline = replace(timeline, damage=(*timeline.damage, Damage(code="truncated", text=text, incomplete=True)))
    if kinds is None:
        return timeline
    absent = {k: f"{k.name.lower()} events were not asked for" for k in Kind if k not in kinds}
    tables = {k: t for k, t in timeline.tables.items() if k in kinds}
    return replace(timeline, tables=tables, absent={**timeline.absent, **absent})


def _bytes(path: Path, memory_limit: int | None) -> tuple[bytes, bool]:
    """Return the text of a file, and whether its gzip packing is cut short."""
    cut = False
    try:
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            unpacking = zlib.decompressobj(wbits=31)
            data = unpacking.decompress(data)
            cut = not unpacking.eof
    except (OSError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            f"cannot read {path}: {reason}", hint="check the path, or copy the file again", code="unreadable"
        ) from None
    if memory_limit is not None and 3 * len(data) > memory_limit:
        raise InputError(
            f"{path} holds {len(data)} bytes of text; reading it needs about {3 * len(data)}, the memory limit is {memory_limit}",
            hint="raise --memory-limit, or use the CSV output of rocprofv3",
            code="memory_limit",
        )
    return data.removeprefix(b"\xef\xbb\xbf"), cut


_AT_BYTE = re.compile(r"\(byte (\d+)\)")
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)


def _from_json(path: Path, data: bytes, *, cut: bool = False) -> Timeline:
    damage: list[Damage] = []
    try:
        document = msgspec.json.decode(data, type=_Document)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        place = _AT_BYTE.search(str(error))
        whole = "truncated" in str(error)
        end = len(data) if whole or place is None else int(place[1])
        kept, lost = _salvaged(data[:end]) if whole or place is not None else (None, 0)
        if kept is None:
            raise InputError(
                f"{path} is no intact rocprofv3 JSON: {error}",
                hint=_HINT + " (or copy the file again)",
                code="damaged_rocprofv3",
            ) from None
        document = kept
        what = "the file ends in the middle" if whole or cut else f"the file is damaged at byte {end}"
        text = f"{what}: what stands before is read, {lost} bytes of an unfinished record are not; later records are missing"
        damage.append(Damage(code="truncated", text=text, incomplete=True))
    if not document.tools:
        raise InputError(f"{path} holds no process: 'rocprofiler-sdk-tool' is empty", hint=_HINT, code="not_a_profile")
    build = _Build()
    build.damage += damage
    for index, tool in enumerate(document.tools):
        build.tool(tool, index)
    return build.timeline(path, document.tools[0])


def _salvaged(data: bytes) -> tuple[_Document | None, int]:
    """Return what a cut file holds: everything up to its last complete record, with the open brackets closed."""
    stack: list[bytes] = []
    best = (0, b"")
    for token in _TOKEN.finditer(data):
        sign = token.group()
        if sign in (b"{", b"["):
            stack.append(b"}" if sign == b"{" else b"]")
        elif sign in (b"}", b"]"):
            if not stack or stack.pop() != sign:
                break
            if stack and (sign == b"]" or stack[-1] == b"]"):  # between two records, never inside one
                best = (token.end(), b"".join(reversed(stack)))
    end, closing = best
    try:
        return msgspec.json.decode(data[:end] + closing, type=_Document), len(data) - end
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None, 0


class _Build:
    """Tables of all processes of one file."""

    def __init__(self) -> None:
        self.names = Names()
        self.parts: dict[Kind, list[Events]] = {}
        self.devices: dict[int, int] = {}
        self.described: list[Device] = []
        self.processes: list[Process] = []
        self.threads: dict[tuple[int, int], int] = {}
        self.damage: list[Damage] = []

    def tool(self, tool: _Tool, process: int) -> None:
        """Add one process."""
        pid = tool.metadata.get("pid")
        command = tool.metadata.get("command")
        words = [str(w) for w in command] if isinstance(command, list) else []
        name = words[0] if words else ""
        self.processes.append(Process(pid=pid if isinstance(pid, int) else process, name=name))
        self._agents(tool.agents)
        symbols = {
            s.kernel_id: s.formatted_kernel_name or s.demangled_kernel_name or s.kernel_name
            for s in tool.kernel_symbols
        }
        records = tool.buffer_records
        self._kernels(records.kernel_dispatch, symbols, process)
        self._copies(records.memory_copy, process, tool.strings)
        for kind, group in ((Kind.RUNTIME, records.hip_api), (Kind.RUNTIME, records.hsa_api), (Kind.RUNTIME, records.rccl_api),
                            (Kind.ANNOTATION, records.marker_api)):  # fmt: skip
            self._host(kind, group, process, tool.strings)

    def _agents(self, agents: Sequence[Mapping[str, Any]]) -> None:
        gpus = [a for a in agents if a.get("type") == 2 and isinstance(a.get("id"), dict)]
        for agent in gpus:
            handle = agent["id"].get("handle", NONE)
            if handle not in self.devices:
                self.devices[handle] = len(self.described)
                self.described.append(_device(agent, len(self.described)))

    def _device_of(self, handle: int) -> int:
        if handle not in self.devices:
            self.devices[handle] = len(self.described)
            name = Unknown(f"agent {handle} is not described in the file", ("the product name",))
            self.described.append(Device(number=len(self.described), name=name))
        return self.devices[handle]

    def _thread(self, process: int, tid: int) -> int:
        return self.threads.setdefault((process, tid), len(self.threads))

    def _kernels(self, records: Sequence[_Record], symbols: Mapping[int, str], process: int) -> None:
        if not records:
            return
        infos = [r.dispatch_info or _Dispatch() for r in records]
        unnamed = 0
        codes = []
        for info in infos:
            name = symbols.get(info.kernel_id, "")
            unnamed += not name
            codes.append(self.names.code(name or f"kernel {info.kernel_id}"))
        if unnamed:
            self.damage.append(
                Damage(code="unnamed_kernels", text=f"{unnamed} kernels have no name in the file", count=unnamed)
            )
        columns: dict[str, Any] = {
            "name": np.array(codes), "process": process, "device": np.array([self._device_of(i.agent_id.handle) for i in infos]),
            "stream": int64s([i.queue_id.handle for i in infos]),
        }  # fmt: skip
        extras = {"hip_stream": int64s([r.stream_id.handle for r in records])}
        self._add(Kind.KERNEL, records, columns, extras)

    def _copies(self, records: Sequence[_Record], process: int, strings: _Strings) -> None:
        if not records:
            return
        names = [_operation(strings, r) or "MEMORY_COPY" for r in records]
        known = {d: self.devices.get(d, NONE) for r in records for d in _ends(r)}
        device = [next((known[d] for d in reversed(_ends(r)) if known[d] != NONE), NONE) for r in records]
        columns: dict[str, Any] = {
            "name": self.names.codes(names), "process": process, "device": np.array(device),
            "stream": int64s([r.stream_id.handle for r in records]),
            "nbytes": int64s([r.bytes for r in records]),
            "copy_kind": np.array([_direction(n) for n in names], dtype=np.int8),
        }  # fmt: skip
        self._add(Kind.COPY, records, columns, None)

    def _host(self, kind: Kind, records: Sequence[_Record], process: int, strings: _Strings) -> None:
        if not records:
            return
        columns: dict[str, Any] = {
            "name": self.names.codes([_operation(strings, r) or str(r.operation) for r in records]), "process": process,
            "thread": np.array([self._thread(process, r.thread_id) for r in records]),
        }  # fmt: skip
        self._add(kind, records, columns, None)

    def _add(
        self, kind: Kind, records: Sequence[_Record], columns: dict[str, Any], extras: dict[str, Any] | None
    ) -> None:
        start = int64s([r.start_timestamp for r in records])
        end = int64s([r.end_timestamp for r in records])
        columns["correlation"] = int64s([r.correlation_id.internal for r in records])
        table = events(start_ns=start, end_ns=end, extras=extras, **columns)
        missing = (start == 0) | (end == 0)
        if missing.any():
            count = int(np.count_nonzero(missing))
            text = f"{count} {_WORDS[kind]} have no start or no end (0) and are left out"
            self.damage.append(Damage(code="time_zero", text=text, count=count, incomplete=True))
            table = table.take(~missing)
        self.parts.setdefault(kind, []).append(table)

    def timeline(self, path: Path, first: _Tool | None) -> Timeline:
        """Return what was collected."""
        tables: dict[Kind, Events] = {}
        for kind, parts in self.parts.items():
            table, damage = sound(joined(parts), what=_WORDS[kind])
            self.damage += [d for d in damage if kind in DEVICE_WORK or d.code != "zero_duration"]
            tables[kind] = table.sorted() if kind in DEVICE_WORK else table
        node = first.metadata.get("node", {}) if first is not None else {}
        return Timeline(
            source=str(path),
            format="rocprofv3",
            version="",
            tables=tables,
            names=self.names.table(),
            devices=tuple(self.described),
            processes=tuple(self.processes),
            threads=tuple(Thread(process=p, tid=t) for p, t in self.threads),
            absent=_absent(tables),
            clock=Clock(
                domain="device",
                epoch_offset_ns=Unknown("the ROCm clock counts from an unknown moment"),
                note="nanoseconds of the ROCm clock, the same for host and device records",
            ),
            damage=(*self.damage, *_overlaps(tables)),
            findings=_findings(self.described),
            environment={"hostname": node["hostname"]} if isinstance(node, dict) and node.get("hostname") else {},
        )


def _ends(record: _Record) -> tuple[int, ...]:
    return tuple(a.handle for a in (record.src_agent_id, record.dst_agent_id) if a is not None)


def _direction(name: str) -> int:
    word = name.upper().replace("MEMORY_COPY_", "").replace("_", "")
    return int(
        copy_kind(
            {"HOSTTODEVICE": "HtoD", "DEVICETOHOST": "DtoH", "DEVICETODEVICE": "DtoD", "HOSTTOHOST": "HtoH"}.get(
                word, name
            )
        )
    )


def _operation(strings: _Strings, record: _Record) -> str:
    """Return the name of an operation; the file has one list of names per kind of record."""
    kind, operation = record.kind, record.operation
    if isinstance(kind, str) and isinstance(operation, str):
        return operation
    if isinstance(kind, int) and isinstance(operation, int) and 0 <= kind < len(strings.buffer_records):
        operations = strings.buffer_records[kind].operations
        if 0 <= operation < len(operations):
            return operations[operation]
    return ""


def _device(agent: Mapping[str, Any], number: int) -> Device:
    unknown = Unknown("not in the file")

    def whole(key: str, factor: int = 1) -> int | Unknown:
        value = agent.get(key)
        return value * factor if isinstance(value, int) and value > 0 else unknown

    name = str(agent.get("product_name") or "").strip()
    return Device(
        number=number,
        name=name or Unknown("the agent has no product name", ("the product name",)),
        chip=str(agent.get("name") or ""),
        multiprocessors=whole("cu_count"),
        memory_bytes=whole("vram_size"),
        clock_hz=whole("max_engine_clk_fcompute", 1_000_000),
        uuid=str(agent.get("gpu_id") or ""),
        certainty="assumed: devices are numbered in the order of the agents",
    )


def _overlaps(tables: Mapping[Kind, Events]) -> tuple[Damage, ...]:
    if Kind.KERNEL not in tables:
        return ()
    count, over = stream_overlap(tables[Kind.KERNEL])
    if not count:
        return ()
    text = (
        f"{count} kernels start before an earlier one on their queue has ended, by {over} ns in all; they are not clipped, so "
        "the sum counts that time twice and the union once"
    )
    return (Damage(code="overlapping_slices", text=text, count=count),)


def _absent(tables: Mapping[Kind, Events]) -> dict[Kind, str]:
    how = {
        Kind.KERNEL: "--kernel-trace",
        Kind.COPY: "--memory-copy-trace",
        Kind.RUNTIME: "--hip-trace",
        Kind.ANNOTATION: "--marker-trace",
    }
    absent = {k: f"the file records no {_WORDS[k]}; rocprofv3 records them with {option}" for k, option in how.items()}
    return {k: absent.get(k, f"rocprofv3 records no {k.name.lower()} events") for k in Kind if k not in tables}


def _findings(devices: Sequence[Device]) -> tuple[Finding, ...]:
    text = "The number of a device is its place among the GPU agents of the file, which need not be the ordinal the program used."
    return (Finding(code="device_numbers", text=text),) if devices else ()


_NUMBER = re.compile(r"(\d+)\s*$")


def _from_csv(path: Path, data: bytes) -> Timeline:
    """Read `*_kernel_trace.csv`, `*_memory_copy_trace.csv`, or a `*_api_trace.csv`."""
    text = data.decode("utf-8", "replace").replace("\0", "")
    try:
        reader = csv.DictReader(io.StringIO(text, newline=""))
        columns = {str(c).lower(): c for c in reader.fieldnames or () if c}
        rows = list(reader)
    except csv.Error as error:
        raise InputError(f"{path} is a damaged CSV: {error}", hint=_HINT, code="damaged_csv") from None
    if not {"start_timestamp", "end_timestamp"} <= set(columns):
        raise InputError(f"{path} has no columns Start_Timestamp and End_Timestamp", hint=_HINT, code="not_a_profile")
    build = _Build()
    build.processes.append(Process(pid="unknown"))
    kind = Kind.KERNEL if "kernel_name" in columns else Kind.COPY if "direction" in columns else Kind.RUNTIME
    label = columns.get({Kind.KERNEL: "kernel_name", Kind.COPY: "direction"}.get(kind, "function"), "")

    def field(row: Mapping[str, Any], *names: str) -> str:
        return next((str(row.get(columns[n]) or "") for n in names if n in columns), "")

    kept: list[tuple[int, ...]] = []
    short = 0
    for row in rows:
        start, end = field(row, "start_timestamp"), field(row, "end_timestamp")
        if natural(start) is None or natural(end) is None:
            short += 1
            continue
        device = NONE
        if kind is not Kind.RUNTIME:
            device = _agent(build, field(row, "agent_id", "gpu_id", "destination_agent_id"))
        kept.append((int(start), int(end), build.names.code(str(row.get(label) or "")), device,
                     _int(field(row, "queue_id", "stream_id")), _int(field(row, "correlation_id")), _int(field(row, "thread_id", "tid"))))  # fmt: skip
    if short:
        text = f"{short} lines have no start or end and are left out"
        build.damage.append(Damage(code="short_rows", text=text, count=short, incomplete=True))
    if text and not text.endswith("\n"):
        build.damage.append(Damage(code="truncated", text="the file ends in the middle of a line", incomplete=True))
    table = np.array(kept, dtype=np.int64).reshape(-1, 7)
    given: dict[str, Any] = {
        "name": table[:, 2],
        "device": table[:, 3],
        "stream": table[:, 4],
        "correlation": table[:, 5],
        "process": 0,
    }
    if kind is Kind.RUNTIME:
        given["thread"] = np.array([build._thread(0, int(t)) for t in table[:, 6]], dtype=np.int64)
    if kind is Kind.COPY:
        names = build.names.table()
        given["copy_kind"] = np.array([_direction(names[int(i)]) for i in table[:, 2]], dtype=np.int8)
    build.parts[kind] = [events(start_ns=table[:, 0], end_ns=table[:, 1], **given)]
    return build.timeline(path, None)


def _agent(build: _Build, text: str) -> int:
    found = _NUMBER.search(text)
    return build._device_of(int(found.group(1))) if found else NONE


def _int(text: str) -> int:
    found = _NUMBER.search(text)
    return int(found.group(1)) if found and len(found.group(1)) < 19 else NONE
