"""Read an Nsight Systems SQLite export of any version into a `Timeline`.

Columns are taken by name, tables whether or not a version stands in their name; an absent table is unknown, never zero. The
link from device work to the call that launched it is (process, correlation id): correlation ids start anew in each process.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.core.errors import InputError
from mansard.trace.memory_record import MemoryRecord
from mansard.trace.readers.nsys_devices import Devices, whole
from mansard.trace.readers.nsys_facts import (
    MEMORY_KINDS,
    SHAPE_COLUMNS,
    LaunchShapes,
    host_memory_column,
    memory_events,
    memory_records,
)
from mansard.trace.readers.nsys_file import NsysFile
from mansard.trace.readers.nsys_metrics import sampled_metrics
from mansard.trace.readers.nsys_ranges import read_ranges
from mansard.trace.readers.nsys_session import capture_clock, capture_facts, capture_window, diagnostics, other_work
from mansard.trace.readers.rocpd import is_rocpd, read_rocpd
from mansard.trace.run import Finding
from mansard.trace.timeline import (
    NONE,
    CopyKind,
    Damage,
    Events,
    Kind,
    Names,
    Process,
    Thread,
    Timeline,
    constant,
    events,
    sound,
)

_PROCESS_BITS = ~0xFFFFFF  # a global thread id without these bits is the process
_ACTIVITIES = {
    Kind.KERNEL: "CUPTI_ACTIVITY_KIND_KERNEL",
    Kind.COPY: "CUPTI_ACTIVITY_KIND_MEMCPY",
    Kind.MEMSET: "CUPTI_ACTIVITY_KIND_MEMSET",
    Kind.GRAPH: "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
    Kind.SYNC: "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
}
_WORDS = {Kind.KERNEL: "kernels", Kind.COPY: "copies", Kind.MEMSET: "fills", Kind.GRAPH: "graph launches",
          Kind.SYNC: "waits", Kind.RUNTIME: "API calls"}  # fmt: skip
_COPY_NAMES = {
    CopyKind.HOST_TO_DEVICE: "[CUDA memcpy Host-to-Device]",
    CopyKind.DEVICE_TO_HOST: "[CUDA memcpy Device-to-Host]",
    CopyKind.DEVICE_TO_DEVICE: "[CUDA memcpy Device-to-Device]",
    CopyKind.HOST_TO_HOST: "[CUDA memcpy Host-to-Host]",
    CopyKind.PEER_TO_PEER: "[CUDA memcpy Peer-to-Peer]",
    CopyKind.UNIFIED_HOST_TO_DEVICE: "[CUDA Unified Memory memcpy HtoD]",
    CopyKind.UNIFIED_DEVICE_TO_HOST: "[CUDA Unified Memory memcpy DtoH]",
    CopyKind.UNIFIED_DEVICE_TO_DEVICE: "[CUDA Unified Memory memcpy DtoD]",
}
_SYNC_NAMES = {1: "event synchronize", 2: "stream wait event", 3: "stream synchronize", 4: "context synchronize"}


def read(
    path: Path,
    *,
    kinds: frozenset[Kind] | None = None,
    memory_limit: int | None = None,
    progress: Callable[[str, float], None] | None = None,
    launch_shapes: bool = False,
) -> Timeline:
    """Read an export.

    Args:
        path: The `.sqlite` file, or that file packed with gzip.
        kinds: Kinds of event to read; None is all of them.
        memory_limit: Bytes that may be held at once [B].
        progress: Called with what is read and the share that is done.
        launch_shapes: Whether how kernels were launched is wanted.

    Raises:
        InputError: It cannot be read, or is another kind of database.
    """
    with NsysFile(path, memory_limit=memory_limit, progress=progress) as file:
        if is_rocpd(file):
            return read_rocpd(file, kinds, launch_shapes=launch_shapes)
        _check_is_nsys(file)
        return _Reader(file, kinds, launch_shapes=launch_shapes).timeline()


def _check_is_nsys(file: NsysFile) -> None:
    known = ("StringIds", "CUPTI_ACTIVITY_KIND_KERNEL", "NVTX_EVENTS", "TARGET_INFO_SYSTEM_ENV", "META_DATA_CAPTURE")
    if any(file.table(t) for t in known):
        return
    names = sorted(file.tables)
    if not names:
        raise InputError(
            f"{file.path} is an SQLite database without tables",
            hint="export it again with nsys export",
            code="empty_database",
        )
    shown = ", ".join(names[:6])
    if {"read_only_kernels", "op_nodes", "expert_systems_feedback"} & set(names):
        raise InputError(
            f"{file.path} is a DLProf database (tables {shown}), made from a profile but not one",
            hint="open the .sqlite that nsys export makes from the .nsys-rep or .qdrep",
            code="dlprof_database",
        )
    raise InputError(
        f"{file.path} is an SQLite database, but none of Nsight Systems: it has no StringIds; its tables are {shown}",
        hint="open the .sqlite that nsys export makes",
        code="not_a_profile",
    )


class _Reader:
    """Reads one file; keeps the tables that several kinds share."""

    def __init__(self, file: NsysFile, kinds: frozenset[Kind] | None, *, launch_shapes: bool = False) -> None:
        self.file = file
        self.kinds = kinds
        self.shapes = LaunchShapes() if launch_shapes else None
        self.names = Names()
        self.devices = Devices(file)
        self.findings: list[Finding] = []
        self.damage: list[Damage] = []
        self.absent: dict[Kind, str] = {}
        self.process_ids: dict[int, int] = {}
        self.thread_ids: dict[int, int] = {}

    def timeline(self) -> Timeline:
        """Read everything that is wanted."""
        tables: dict[Kind, Events] = {}
        marks = 0
        if self._wants(Kind.RUNTIME):
            self._put(tables, Kind.RUNTIME, self._runtime())
        for kind, table in _ACTIVITIES.items():
            if self._wants(kind):
                self._put(tables, kind, self._activity(kind, table))
        if self._wants(Kind.ANNOTATION):
            found = read_ranges(self.file, self.names, self._owners, self.findings, self.damage)
            marks = found[1] if found else 0
            self._put(tables, Kind.ANNOTATION, found[0] if found else None)
            if found is None:
                self.absent[Kind.ANNOTATION] = (
                    "the NVTX_EVENTS table lacks columns"
                    if self.file.table("NVTX_EVENTS")
                    else "the export has no NVTX_EVENTS table: the program marked no ranges, or NVTX was not traced"
                )
        if self._wants(Kind.OVERHEAD):
            self._put(tables, Kind.OVERHEAD, self._overhead())
        environment, version = capture_facts(self.file)
        memory = self._memory()  # may add devices
        work = tables.get(Kind.KERNEL)
        metrics = (
            ()
            if work is None and self.kinds is not None
            else sampled_metrics(self.file, self.devices, work, self.findings)
        )
        self.findings += [*self.file.several_tables(), *other_work(self.file)]
        return Timeline(
            source=str(self.file.path),
            format="nsys",
            version=version,
            tables=tables,
            names=self.names.table(),
            devices=tuple(self.devices.table),
            processes=self._processes(),
            threads=self._threads(),
            absent=self.absent,
            clock=capture_clock(self.file),
            damage=(*self.file.damage, *self.damage),
            findings=tuple(self.findings),
            diagnostics=diagnostics(self.file),
            environment=environment,
            extras={
                "marks": marks,
                "session": capture_window(self.file),
                "memory": memory,
                "gpu_metrics": metrics,
                **({} if self.shapes is None else {"launch_shapes": self.shapes.table()}),
            },
        )

    def _wants(self, kind: Kind) -> bool:
        return self.kinds is None or kind in self.kinds

    def _put(self, tables: dict[Kind, Events], kind: Kind, table: Events | None) -> None:
        if table is not None:
            tables[kind] = table

    # -- processes and threads -------------------------------------------------------------------------------------------

    def _codes(self, values: npt.NDArray[np.int64], known: dict[int, int]) -> npt.NDArray[np.int32]:
        """Return the index of each value in a table that grows; few distinct values among many rows."""
        if not values.size:
            return np.zeros(0, dtype=np.int32)
        if (values == values[0]).all():
            if values[0] == NONE:
                return constant(NONE, values.size)
            return constant(known.setdefault(int(values[0]), len(known)), values.size)
        distinct = _few_distinct(values)
        for value in distinct:
            if value != NONE:
                known.setdefault(value, len(known))
        return _recoded(values, {v: NONE if v == NONE else known[v] for v in distinct})

    def _owners(self, tid: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """Return process and thread of each global thread id."""
        thread = self._codes(tid, self.thread_ids)
        owner = np.full(len(self.thread_ids) + 1, NONE, dtype=np.int32)
        for value, index in self.thread_ids.items():
            key = value & _PROCESS_BITS
            owner[index] = self.process_ids.setdefault(key, len(self.process_ids))
        if thread.strides == (0,) and thread.size:
            return constant(int(owner[thread[0]]), thread.size), thread
        return owner[thread], thread

    def _pid(self, process: int) -> int:
        key = next(k for k, v in self.process_ids.items() if v == process)
        return key >> 24 & 0xFFFFFF

    def _processes(self) -> tuple[Process, ...]:
        table = self.file.table("PROCESSES")
        named = {r.get("globalPid"): str(r.get("name") or "") for r in self.file.rows(table)} if table else {}
        return tuple(Process(pid=key >> 24 & 0xFFFFFF, name=named.get(key, "")) for key in self.process_ids)

    def _threads(self) -> tuple[Thread, ...]:
        table = self.file.table("ThreadNames")
        rows = self.file.rows(table, ("nameId", "priority", "globalTid")) if table else []
        best: dict[int, tuple[int, int]] = {}
        for row in rows:
            if row.get("globalTid") in self.thread_ids and isinstance(row.get("nameId"), int):
                rank = (whole(row.get("priority"), 0), row["nameId"])
                best[row["globalTid"]] = max(best.get(row["globalTid"], rank), rank)
        strings = self.file.strings(np.array([n for _, n in best.values()], dtype=np.int64))
        return tuple(
            Thread(process=self.process_ids[key & _PROCESS_BITS], tid=key & 0xFFFFFF,
                   name=strings.get(best[key][1], "") if key in best else "")
            for key in self.thread_ids
        )  # fmt: skip

    # -- tables ----------------------------------------------------------------------------------------------------------

    def _runtime(self) -> Events | None:
        name = self.file.table("CUPTI_ACTIVITY_KIND_RUNTIME")
        if name is None:
            self.absent[Kind.RUNTIME] = "the export has no CUPTI_ACTIVITY_KIND_RUNTIME table"
            return None
        columns = (("start", np.int64), ("end", np.int64), ("globalTid", np.int64), ("correlationId", np.int64),
                   ("nameId", np.int64))  # fmt: skip
        arrays, _ = self.file.column_arrays(name, columns)
        if self._without_times(Kind.RUNTIME, name, arrays):
            return None
        process, thread = self._owners(arrays.pop("globalTid", np.full(arrays["start"].size, NONE, dtype=np.int64)))
        table = events(
            start_ns=arrays["start"], end_ns=arrays["end"], name=self._string_codes(arrays.pop("nameId", np.full(arrays["start"].size, NONE, dtype=np.int64))),
            process=process, thread=thread, correlation=arrays.get("correlationId", NONE),
        )  # fmt: skip
        return self._sound(table, Kind.RUNTIME)

    def _without_times(self, kind: Kind, table: str, arrays: dict[str, npt.NDArray[Any]]) -> bool:
        """Whether a table lacks start or end, which is said."""
        if "start" in arrays and "end" in arrays:
            return False
        self.absent[kind] = f"the table {table} has no start and end"
        self.damage.append(Damage(code="missing_columns", text=self.absent[kind], incomplete=True))
        return True

    def _activity(self, kind: Kind, wanted: str) -> Events | None:
        name = self.file.table(wanted)
        if name is None:
            self.absent[kind] = f"the export has no {wanted} table"
            return None
        columns: list[tuple[str, Any]] = [
            ("start", np.int64), ("end", np.int64), ("deviceId", np.int32), ("contextId", np.int32), ("streamId", np.int32),
            ("correlationId", np.int64), ("globalPid", np.int64),
        ]  # fmt: skip
        label = next((c for c in ("demangledName", "shortName", "mangledName") if self.file.has_column(name, c)), "")
        if not self._wants(Kind.RUNTIME):  # nothing to join it with
            columns = [c for c in columns if c[0] != "correlationId"]
        more: dict[Kind, list[tuple[str, Any]]] = {
            Kind.KERNEL: [(label, np.int64), ("graphNodeId", np.int64), *(SHAPE_COLUMNS if self.shapes else ())],
            Kind.COPY: [("bytes", np.int64), ("copyKind", np.int8), ("graphNodeId", np.int64), *MEMORY_KINDS],
            Kind.MEMSET: [("bytes", np.int64), ("graphNodeId", np.int64)],
            Kind.GRAPH: [("graphId", np.int64)],
            Kind.SYNC: [("syncType", np.int8)],
        }
        arrays, _ = self.file.column_arrays(name, [c for c in columns + more[kind] if c[0]])
        if self._without_times(kind, name, arrays):
            return None
        process = self._process_of(arrays, kind)
        extras: dict[str, npt.NDArray[Any]] = {}
        for column, extra in (("graphNodeId", "graph_node"), ("graphId", "graph"), ("syncType", "sync_kind")):
            if column in arrays and (arrays[column] > 0).any():
                extras[extra] = arrays[column]
        if kind is Kind.KERNEL and self.shapes is not None:
            extras |= self.shapes.column(arrays)
        if kind is Kind.COPY:
            extras |= host_memory_column(arrays)
        table = events(
            start_ns=arrays["start"],
            end_ns=arrays["end"],
            name=self._labels(kind, arrays, label),
            device=self._device_of(arrays, process),
            context=_plain(arrays.get("contextId")),
            stream=arrays.get("streamId", NONE),
            process=process,
            correlation=arrays.get("correlationId", NONE),
            nbytes=arrays.get("bytes", NONE),
            copy_kind=arrays.get("copyKind", NONE),
            extras=extras,
        )
        if kind is Kind.GRAPH:
            table = self._timed_graphs(table)
        return self._sound(table, kind)

    def _memory(self) -> tuple[MemoryRecord, ...]:
        """Return the use of device memory, where it was recorded (`--cuda-memory-usage=true`)."""
        arrays = memory_events(self.file)
        if arrays is None:
            return ()
        process = self._process_of(arrays, Kind.OTHER)
        return memory_records(arrays, np.broadcast_to(self._device_of(arrays, process), arrays["start"].shape), process)

    def _sound(self, table: Events, kind: Kind) -> Events:
        table, wrong = sound(table, what=_WORDS[kind])
        self.damage += [d for d in wrong if d.code != "zero_duration" or kind is Kind.KERNEL]
        return table

    def _timed_graphs(self, table: Events) -> Events:
        unknown = (table.start_ns == 0) & (table.end_ns == 0)
        if unknown.any():
            text = f"{int(unknown.sum())} graph launches have no times; the device work behind them is unknown"
            self.findings.append(Finding(code="graph_time_unknown", text=text))
            table = table.take(~unknown)
        return table

    def _process_of(self, arrays: dict[str, npt.NDArray[Any]], kind: Kind) -> npt.NDArray[np.int32]:
        """Return the process of each row; without globalPid only where the capture shows one process."""
        count = arrays["start"].size
        if "globalPid" in arrays:
            return self._codes(arrays.pop("globalPid"), self.process_ids)
        if kind is Kind.KERNEL:
            one = len(self.process_ids) == 1
            text = (
                "the export has no globalPid; its calls come from one process, so kernels are linked to them by correlation id alone"
                if one
                else "the export has no globalPid and shows several processes or none, so kernels cannot be linked to calls"
            )
            self.findings.append(Finding(code="no_global_pid", text=text))
        return constant(0 if len(self.process_ids) == 1 else NONE, count)

    def _device_of(
        self, arrays: dict[str, npt.NDArray[Any]], process: npt.NDArray[np.int32]
    ) -> npt.NDArray[np.int32] | int:
        """Return the device of each row from its process and the ordinal that process gives it."""
        if "deviceId" not in arrays:
            return self._only_device(arrays["start"].size)
        ordinal = arrays.pop("deviceId").astype(np.int64)
        if not ordinal.size:
            return NONE
        joint = ordinal + (process.astype(np.int64) + 1) * (1 << 32)
        distinct = _few_distinct(joint)
        indices = {}
        for value in distinct:
            owner, number = (value >> 32) - 1, value & 0xFFFFFFFF
            if number >= 1 << 31:  # -1: no device
                indices[value] = NONE
            else:
                indices[value] = self.devices.index(self._pid(owner) if owner >= 0 else -1, number)
        if len(distinct) == 1:
            return indices[distinct[0]]
        return _recoded(joint, indices)

    def _only_device(self, count: int) -> int:
        """Return the device of rows that do not name theirs: the only one of the file, else none, which is said."""
        known = len(self.devices.listed)
        if count and (known == 1 or (not known and len(self.process_ids) <= 1)):
            if not any(f.code == "no_device_column" for f in self.findings):
                text = "the export does not say on which device kernels ran; they are taken to be of one"
                self.findings.append(Finding(code="no_device_column", text=text))
            return self.devices.index(-1, 0)
        if count:
            text = (
                f"{count} kernels, copies or waits do not name their device and belong to none of the figures by device"
            )
            self.damage.append(Damage(code="no_device", text=text, count=count, incomplete=True))
        return NONE

    def _labels(self, kind: Kind, arrays: dict[str, npt.NDArray[Any]], label: str) -> npt.NDArray[np.int32] | int:
        count = arrays["start"].size
        if kind is Kind.KERNEL:
            return self._string_codes(arrays.pop(label)) if label else self.names.code("(unnamed kernel)")
        if kind is Kind.MEMSET:
            return self.names.code("[CUDA memset]")
        if kind is Kind.GRAPH:
            return self.names.code("(CUDA graph)")
        numbers = arrays.get("copyKind" if kind is Kind.COPY else "syncType", np.full(count, NONE, dtype=np.int8))
        words: dict[Any, str] = dict(_COPY_NAMES) if kind is Kind.COPY else dict(_SYNC_NAMES)
        other = "[CUDA memcpy kind {}]" if kind is Kind.COPY else "synchronization {}"
        known = {int(n): self.names.code(words.get(int(n), other.format(int(n)))) for n in np.unique(numbers)}
        table = np.array([known.get(n, NONE) for n in range(-128, 128)], dtype=np.int32)
        result: npt.NDArray[np.int32] = table[numbers.astype(np.int64) + 128]
        return result

    def _string_codes(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
        """Return the name index of each string id."""
        if not ids.size:
            return np.zeros(0, dtype=np.int32)
        low, high = int(ids.min()), int(ids.max())
        if high - low > 50_000_000:
            used, inverse = np.unique(ids, return_inverse=True)
        else:
            seen = np.zeros(high - low + 1, dtype=np.bool_)
            seen[ids - low] = True
            used = np.flatnonzero(seen) + low
            inverse = None
        strings = self.file.strings(used)
        lost = [i for i in used.tolist() if i not in strings]
        if lost:
            text = f"{len(lost)} names are not in the string table; they are shown as (string N)"
            self.damage.append(Damage(code="missing_strings", text=text, count=len(lost)))
        codes = np.array([self.names.code(strings.get(i, f"(string {i})")) for i in used.tolist()], dtype=np.int32)
        if inverse is not None:
            return codes[inverse]
        table = np.zeros(high - low + 1, dtype=np.int32)
        table[used - low] = codes
        return table[ids - low]

    def _overhead(self) -> Events | None:
        name = self.file.table("PROFILER_OVERHEAD")
        if name is None:
            self.absent[Kind.OVERHEAD] = "the export has no PROFILER_OVERHEAD table"
            return None
        columns = (("start", np.int64), ("end", np.int64), ("globalTid", np.int64), ("nameId", np.int64))
        arrays, _ = self.file.column_arrays(name, columns)
        if self._without_times(Kind.OVERHEAD, name, arrays) or "nameId" not in arrays:
            return None
        process, thread = self._owners(arrays.get("globalTid", np.full(arrays["start"].size, NONE, dtype=np.int64)))
        table = events(start_ns=arrays["start"], end_ns=arrays["end"], name=self._string_codes(arrays["nameId"]),
                       process=process, thread=thread)  # fmt: skip
        return sound(table, what="overheads")[0]


def _plain(column: npt.NDArray[Any] | None) -> npt.NDArray[Any] | int:
    """Return one number for a column that is absent or the same everywhere."""
    if column is None or not column.size:
        return NONE
    return int(column[0]) if (column == column[0]).all() else column


def _recoded(values: npt.NDArray[np.int64], codes: dict[int, int]) -> npt.NDArray[np.int32]:
    """Return the code of each value; every value has one."""
    if len(codes) <= 16:
        out = np.full(values.size, NONE, dtype=np.int32)
        for value, code in codes.items():
            out[values == value] = code
        return out
    order = np.array(sorted(codes), dtype=np.int64)
    table = np.array([codes[v] for v in order.tolist()], dtype=np.int32)
    result: npt.NDArray[np.int32] = table[np.searchsorted(order, values)]
    return result


def _few_distinct(values: npt.NDArray[np.int64]) -> list[int]:
    """Return the distinct values; quick where they are few."""
    found: list[int] = []
    rest = values
    while rest.size and len(found) < 32:
        value = int(rest[0])
        found.append(value)
        rest = rest[rest != value]
    return found + [int(v) for v in np.unique(rest)]
