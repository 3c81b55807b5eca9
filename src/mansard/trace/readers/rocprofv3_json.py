"""The JSON output of rocprofv3. Times are nanoseconds of the ROCm clock."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from mansard.core.errors import InputError
from mansard.trace.readers.numbers import int64s
from mansard.trace.readers.rocprofv3_build import HINT, Build, device, direction, registers_of
from mansard.trace.timeline import NONE, Damage, Events, Kind, Process, Timeline, events


class _Handle(msgspec.Struct, gc=False):
    handle: int = NONE


class _Sizes(msgspec.Struct, gc=False):
    x: int = NONE
    y: int = NONE
    z: int = NONE


class _Correlation(msgspec.Struct, gc=False):
    internal: int = NONE
    external: Any = NONE


class _Dispatch(msgspec.Struct, gc=False):
    agent_id: _Handle = msgspec.field(default_factory=_Handle)
    queue_id: _Handle = msgspec.field(default_factory=_Handle)
    kernel_id: int = NONE
    dispatch_id: int = NONE
    group_segment_size: int = NONE
    workgroup_size: _Sizes | None = None
    grid_size: _Sizes | None = None


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
    arch_vgpr_count: int = NONE
    accum_vgpr_count: int = NONE


class _Names(msgspec.Struct, gc=False):
    kind: Any = None
    operations: list[str] = []


class _Message(msgspec.Struct, gc=False):
    key: int = NONE
    value: str = ""


class _Strings(msgspec.Struct, gc=False):
    buffer_records: list[_Names] = []
    marker_api: list[_Message] = []


class _Tool(msgspec.Struct, gc=False):
    metadata: dict[str, Any] = {}
    agents: list[dict[str, Any]] = []
    kernel_symbols: list[_Symbol] = []
    strings: _Strings = msgspec.field(default_factory=_Strings)
    buffer_records: _Buffers = msgspec.field(default_factory=_Buffers)


class _Document(msgspec.Struct, gc=False):
    tools: list[_Tool] = msgspec.field(name="rocprofiler-sdk-tool")


_AT_BYTE = re.compile(r"\(byte (\d+)\)")
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)


def from_json(path: Path, data: bytes, *, cut: bool = False, launch_shapes: bool = False) -> Timeline:
    """Read the JSON output.

    Args:
        path: For messages.
        data: The text.
        cut: Whether the packed file it came from is cut short.
        launch_shapes: Whether how kernels were launched is wanted.

    Raises:
        InputError: It is no such output, or nothing of it can be read.
    """
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
                hint=HINT + " (or copy the file again)",
                code="damaged_rocprofv3",
            ) from None
        document = kept
        what = "the file ends in the middle" if whole or cut else f"the file is damaged at byte {end}"
        text = f"{what}: what stands before is read, {lost} bytes of an unfinished record are not; later records are missing"
        damage.append(Damage(code="truncated", text=text, incomplete=True))
    if not document.tools:
        raise InputError(f"{path} holds no process: 'rocprofiler-sdk-tool' is empty", hint=HINT, code="not_a_profile")
    build = Build(launch_shapes=launch_shapes)
    build.damage += damage
    for index, tool in enumerate(document.tools):
        _tool(build, tool, index)
    node = document.tools[0].metadata.get("node", {})
    return build.timeline(
        path, {"hostname": node["hostname"]} if isinstance(node, dict) and node.get("hostname") else {}
    )


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


def _tool(build: Build, tool: _Tool, process: int) -> None:
    """Add one process."""
    pid = tool.metadata.get("pid")
    command = tool.metadata.get("command")
    words = [str(w) for w in command] if isinstance(command, list) else []
    name = words[0] if words else ""
    build.processes.append(Process(pid=pid if isinstance(pid, int) else process, name=name))
    for agent in tool.agents:
        if agent.get("type") == 2 and isinstance(agent.get("id"), dict):
            build.describe(agent["id"].get("handle", NONE), device(agent, len(build.described)))
    records = tool.buffer_records
    _kernels(build, records.kernel_dispatch, {s.kernel_id: s for s in tool.kernel_symbols}, process)
    _copies(build, records.memory_copy, process, tool.strings)
    for kind, group in ((Kind.RUNTIME, records.hip_api), (Kind.RUNTIME, records.hsa_api), (Kind.RUNTIME, records.rccl_api),
                        (Kind.ANNOTATION, records.marker_api)):  # fmt: skip
        _host(build, kind, group, process, tool.strings)


def _kernels(build: Build, records: Sequence[_Record], symbols: Mapping[int, _Symbol], process: int) -> None:
    if not records:
        return
    infos = [r.dispatch_info or _Dispatch() for r in records]
    unnamed = 0
    codes = []
    for info in infos:
        symbol = symbols.get(info.kernel_id, _Symbol())
        name = symbol.formatted_kernel_name or symbol.demangled_kernel_name or symbol.kernel_name
        unnamed += not name
        codes.append(build.names.code(name or f"kernel {info.kernel_id}"))
    if unnamed:
        build.unnamed(unnamed)
    columns: dict[str, Any] = {
        "name": np.array(codes), "process": process, "device": np.array([build.device_of(i.agent_id.handle) for i in infos]),
        "stream": int64s([i.queue_id.handle for i in infos]),
    }  # fmt: skip
    extras = {"hip_stream": int64s([r.stream_id.handle for r in records])}
    if build.shapes is not None:
        extras["launch_shape"] = np.array([_shape(build, i, symbols.get(i.kernel_id)) for i in infos], dtype=np.int32)
    build.add(Kind.KERNEL, _table(records, columns, extras))


def _shape(build: Build, info: _Dispatch, symbol: _Symbol | None) -> int:
    grid, group = info.grid_size, info.workgroup_size
    if grid is None or group is None:
        return NONE
    registers = NONE if symbol is None else registers_of(symbol.arch_vgpr_count, symbol.accum_vgpr_count)
    return build.shape((grid.x, grid.y, grid.z), (group.x, group.y, group.z), registers, info.group_segment_size)


def _copies(build: Build, records: Sequence[_Record], process: int, strings: _Strings) -> None:
    if not records:
        return
    names = [_operation(strings, r) or "MEMORY_COPY" for r in records]
    known = {d: build.devices.get(d, NONE) for r in records for d in _ends(r)}
    device_index = [next((known[d] for d in reversed(_ends(r)) if known[d] != NONE), NONE) for r in records]
    columns: dict[str, Any] = {
        "name": build.names.codes(names), "process": process, "device": np.array(device_index),
        "stream": int64s([r.stream_id.handle for r in records]),
        "nbytes": int64s([r.bytes for r in records]),
        "copy_kind": np.array([direction(n) for n in names], dtype=np.int8),
    }  # fmt: skip
    build.add(Kind.COPY, _table(records, columns, None))


def _host(build: Build, kind: Kind, records: Sequence[_Record], process: int, strings: _Strings) -> None:
    if not records:
        return
    # The text of a range stands apart, by correlation id; its operation is only the call that opened it.
    said = {m.key: m.value for m in strings.marker_api} if kind is Kind.ANNOTATION else {}
    names = [said.get(r.correlation_id.internal) or _operation(strings, r) or str(r.operation) for r in records]
    columns: dict[str, Any] = {
        "name": build.names.codes(names), "process": process,
        "thread": np.array([build.thread(process, r.thread_id) for r in records]),
    }  # fmt: skip
    build.add(kind, _table(records, columns, None))


def _table(records: Sequence[_Record], columns: dict[str, Any], extras: dict[str, Any] | None) -> Events:
    return events(
        start_ns=int64s([r.start_timestamp for r in records]), end_ns=int64s([r.end_timestamp for r in records]),
        correlation=int64s([r.correlation_id.internal for r in records]), extras=extras, **columns,
    )  # fmt: skip


def _ends(record: _Record) -> tuple[int, ...]:
    return tuple(a.handle for a in (record.src_agent_id, record.dst_agent_id) if a is not None)


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
