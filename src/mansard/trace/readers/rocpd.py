"""The `rocpd` database of rocprofv3 and rocprof-sys. Times are nanoseconds of the ROCm clock.

Each process of a recording has tables of its own, whose names end in an identifier. Two layouts are known: times and places stand
in the row of an event, or they are rows of `rocpd_timestamp` and `rocpd_track`.

Source: ROCm, rocprofiler-sdk, schema of rocpd, version 3.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.core.errors import InputError
from mansard.trace.readers.nsys_file import NsysFile
from mansard.trace.readers.rocprofv3_build import HINT, Build, device, direction, only, registers_of
from mansard.trace.run import Finding
from mansard.trace.timeline import NONE, Device, Kind, Process, Timeline, events

Int64Array = npt.NDArray[np.int64]

_PREFIX = "rocpd_"
_DISPATCH = "rocpd_kernel_dispatch"
#: Category of a region -> what it is; names of rocprofv3 and of rocprof-sys.
_KINDS = ((re.compile("marker|roctx", re.I), Kind.ANNOTATION), (re.compile("hip|hsa|rccl", re.I), Kind.RUNTIME))


def is_rocpd(file: NsysFile) -> bool:
    """Return whether a database is one of rocpd."""
    return any(n.startswith(_PREFIX) for n in file.tables)


def read_rocpd(file: NsysFile, kinds: frozenset[Kind] | None, *, launch_shapes: bool = False) -> Timeline:
    """Read a database.

    Args:
        file: The open database.
        kinds: Kinds of event to read; None is all of them.
        launch_shapes: Whether how kernels were launched is wanted.

    Raises:
        InputError: Its tables are not those that are known.
    """
    suffixes = sorted(n.removeprefix(_DISPATCH) for n in file.tables if n.startswith(_DISPATCH) and _is_table(file, n))
    if not suffixes:
        shown = ", ".join(sorted(file.tables)[:6])
        raise InputError(
            f"{file.path} has tables of rocpd, but none of them is {_DISPATCH}; they are {shown}",
            hint="rocpd databases of ROCm before 7.0 are another format; " + HINT,
            code="rocpd_database",
        )
    build = Build(launch_shapes=launch_shapes)
    hosts: dict[str, Any] = {}
    versions: dict[str, None] = {}
    for suffix in suffixes:
        part = _Part(file, suffix, build)
        hosts |= part.host()
        versions |= dict.fromkeys([part.version()])
        part.read(kinds)
    build.damage = [*file.damage, *build.damage]
    timeline = build.timeline(file.path, hosts)
    return only(replace(timeline, version=f"rocpd, schema {' and '.join(versions)}"), kinds)


def _is_table(file: NsysFile, name: str) -> bool:
    """Return whether it is a table and no view over all processes: those have a root page."""
    return bool(file.tables[name]["root"])


@dataclass(frozen=True, slots=True)
class _Source:
    """Where columns of events come from in one layout.

    Args:
        start, end: Times.
        place: Prefix of process, thread, agent, queue and stream.
        joins: What must be joined for them.
    """

    start: str
    end: str
    place: str
    joins: str


class _Part:
    """The tables of one process."""

    def __init__(self, file: NsysFile, suffix: str, build: Build) -> None:
        self.file = file
        self.suffix = suffix
        self.build = build
        self.processes: dict[int, int] = {}
        self.tids: dict[int, int] = {}
        self.agents: dict[int, int] = {}

    def _name(self, table: str) -> str:
        return f"{_PREFIX}{table}{self.suffix}"

    def _has(self, table: str) -> bool:
        return self._name(table) in self.file.tables

    def _rows(self, table: str, *columns: str) -> list[dict[str, Any]]:
        return self.file.rows(self._name(table), columns) if self._has(table) else []

    def version(self) -> str:
        """Return the version of the schema as the database states it."""
        return next(
            (str(r["value"]) for r in self._rows("metadata", "tag", "value") if r.get("tag") == "schema_version"),
            "not stated",
        )

    def host(self) -> dict[str, Any]:
        """Return what the database says of the machine, for the receipt."""
        found = next((r for r in self._rows("info_node", "hostname") if r.get("hostname")), {})
        return {"hostname": found["hostname"]} if found else {}

    def read(self, kinds: frozenset[Kind] | None) -> None:
        """Add everything that is wanted."""
        for row in self._rows("info_process", "id", "pid", "command"):
            self.processes[row["id"]] = len(self.build.processes)
            name = str(row.get("command") or "").split(" ")[0]
            self.build.processes.append(Process(pid=row.get("pid", row["id"]), name=name))
        self.tids = {r["id"]: r.get("tid", r["id"]) for r in self._rows("info_thread", "id", "tid")}
        self._devices()
        if kinds is None or Kind.KERNEL in kinds:
            self._kernels()
        if kinds is None or Kind.COPY in kinds:
            self._copies()
        if kinds is None or {Kind.RUNTIME, Kind.ANNOTATION, Kind.OTHER} & kinds:
            self._regions()
        counters = self.file.last_rowid(self._name("pmc_event")) if self._has("pmc_event") else 0
        if counters:
            text = f"the database also holds {counters} values of hardware counters, which are not read"
            self.build.findings.append(Finding(code="counters_not_read", text=text))

    def _devices(self) -> None:
        """Describe the GPUs; an agent of one node is the same device for all processes."""
        wanted = ("id", "nid", "type", "absolute_index", "type_index", "name", "product_name", "uuid", "extdata")
        for row in self._rows("info_agent", *wanted):
            if row.get("type") != "GPU":
                continue
            key = f"{row.get('nid')}/{row.get('absolute_index', row['id'])}"
            handle = self.build.handle(key)
            self.agents[row["id"]] = handle
            self.build.describe(handle, _device(row, len(self.build.described)))

    def _source(self, table: str) -> _Source:
        columns = self.file.tables[self._name(table)]["columns"]
        if "start" in columns and "end" in columns:
            return _Source("x.start", 'x."end"', "x.", "")
        missing = [n for n in ("track", "timestamp") if not self._has(n)]
        if missing or not {"start_id", "end_id", "track_id"} <= set(columns):
            raise InputError(
                f"{self.file.path}: {self._name(table)} has neither start and end nor what leads to them; its columns are "
                f"{', '.join(columns[:8])}",
                hint=HINT,
                code="rocpd_database",
            )
        joins = (
            f' LEFT JOIN "{self._name("track")}" t ON t.id = x.track_id'
            f' LEFT JOIN "{self._name("timestamp")}" b ON b.id = x.start_id'
            f' LEFT JOIN "{self._name("timestamp")}" f ON f.id = x.end_id'
        )
        return _Source("b.value", "f.value", "t.", joins)

    def _events(self, table: str, more: Sequence[str], *, place: Sequence[str]) -> dict[str, Int64Array] | None:
        """Return integer columns of the events of a table; None where it has no rows.

        Args:
            table: Its name without prefix and suffix.
            more: Columns of its own.
            place: Of process, thread, agent, queue and stream those that are wanted.
        """
        if not self._has(table) or not self.file.last_rowid(self._name(table)):
            return None
        source = self._source(table)
        own = [c for c in more if self.file.has_column(self._name(table), c)]
        terms = {"start": source.start, "end": source.end, "correlation": "e.stack_id", "category": "e.category_id"}
        terms |= {p: f"{source.place}{p}" for p in place} | {c: f"x.{c}" for c in own}
        found = self.file.integers(
            f'FROM "{self._name(table)}" x{source.joins} LEFT JOIN "{self._name("event")}" e ON e.id = x.event_id',
            list(terms.values()), table=self._name(table),
        )  # fmt: skip
        return dict(zip(terms, found, strict=True)) if found[0].size else None

    def _process(self, pid: Int64Array) -> Int64Array:
        return _looked_up(pid, self.processes)

    def _kernels(self) -> None:
        sizes = [f"{what}_size_{axis}" for what in ("workgroup", "grid") for axis in "xyz"]
        columns = self._events(
            "kernel_dispatch", ["kernel_id", "group_segment_size", *sizes], place=("pid", "agent_id", "queue_id", "stream_id")
        )  # fmt: skip
        if columns is None:
            return
        symbols = {r["id"]: r for r in self._rows("info_kernel_symbol", "id", "display_name", "kernel_name",
                                                  "arch_vgpr_count", "accum_vgpr_count")}  # fmt: skip
        names = {k: str(s.get("display_name") or s.get("kernel_name") or "") for k, s in symbols.items()}
        codes = {
            k: self.build.names.code(names.get(k) or f"kernel {k}") for k in np.unique(columns["kernel_id"]).tolist()
        }
        unnamed = int(sum((columns["kernel_id"] == k).sum() for k in codes if not names.get(k)))
        if unnamed:
            self.build.unnamed(unnamed)
        extras: dict[str, npt.NDArray[Any]] = {"hip_stream": columns["stream_id"]}
        if self.build.shapes is not None and all(s in columns for s in sizes):
            extras["launch_shape"] = self._shapes(columns, sizes, symbols)
        table = events(
            start_ns=columns["start"], end_ns=columns["end"], correlation=columns["correlation"],
            name=_looked_up(columns["kernel_id"], codes), process=self._process(columns["pid"]),
            device=self._device_column(columns["agent_id"]), stream=columns["queue_id"], extras=extras,
        )  # fmt: skip
        self.build.add(Kind.KERNEL, table)

    def _shapes(
        self, columns: Mapping[str, Int64Array], sizes: Sequence[str], symbols: Mapping[int, Mapping[str, Any]]
    ) -> npt.NDArray[np.int32]:
        shared = columns.get("group_segment_size", np.full(columns["start"].size, NONE))
        joint = np.stack([columns["kernel_id"], shared, *(columns[s] for s in sizes)], axis=1)
        distinct, inverse = np.unique(joint, axis=0, return_inverse=True)
        codes = []
        for kernel, lds, *six in distinct.tolist():
            symbol = symbols.get(kernel, {})
            plain, more = (symbol.get(k) for k in ("arch_vgpr_count", "accum_vgpr_count"))
            registers = registers_of(plain if isinstance(plain, int) else NONE, more if isinstance(more, int) else NONE)
            codes.append(self.build.shape(six[3:], six[:3], registers, lds))
        return np.array(codes, dtype=np.int32)[inverse.reshape(-1)]

    def _device_column(self, agents: Int64Array) -> Int64Array:
        known = {a: self.build.device_of(self.agents.get(a, self.build.handle(f"{self.suffix}/{a}")))
                 for a in np.unique(agents).tolist() if a != NONE}  # fmt: skip
        return _looked_up(agents, known)

    def _copies(self) -> None:
        own = ["name_id", "size", "dst_agent_id", "src_agent_id"]
        columns = self._events("memory_copy", own, place=("pid", "stream_id"))
        if columns is None:
            return
        words = self._strings(columns["name_id"])
        gpus = {a: self.build.devices[h] for a, h in self.agents.items()}
        target, source = (_looked_up(columns.get(c, np.full(columns["start"].size, NONE)), gpus) for c in own[2:])
        table = events(
            start_ns=columns["start"], end_ns=columns["end"], correlation=columns["correlation"],
            name=self._codes(columns["name_id"], words, "MEMORY_COPY"), process=self._process(columns["pid"]),
            device=np.where(target != NONE, target, source), stream=columns["stream_id"], nbytes=columns["size"],
            copy_kind=_looked_up(columns["name_id"], {k: direction(w) for k, w in words.items()}, otherwise=0).astype(np.int8),
        )  # fmt: skip
        self.build.add(Kind.COPY, table)

    def _regions(self) -> None:
        columns = self._events("region", ["name_id", "event_id"], place=("pid", "tid"))
        if columns is None:
            return
        words = self._strings(np.concatenate([columns["name_id"], columns["category"]]))
        kinds = {c: _kind_of(words.get(c, "")) for c in np.unique(columns["category"]).tolist()}
        kind = _looked_up(columns["category"], {c: int(k) for c, k in kinds.items()}, otherwise=int(Kind.OTHER))
        names = self._codes(columns["name_id"], words, "region")
        marked = kind == int(Kind.ANNOTATION)
        if marked.any():  # the text of a range stands with its event; its name is only the call that opened it
            said = self._messages()
            text = {
                e: self.build.names.code(said[e]) for e in np.unique(columns["event_id"][marked]).tolist() if e in said
            }
            own = _looked_up(columns["event_id"], text)
            names = np.where(marked & (own != NONE), own, names)
        process = self._process(columns["pid"])
        pairs, inverse = np.unique(np.stack([process, columns["tid"]], axis=1), axis=0, return_inverse=True)
        threads = np.array([self.build.thread(p, self.tids.get(t, t)) for p, t in pairs.tolist()])[inverse.reshape(-1)]
        for each in sorted({*kinds.values()}):
            mask = kind == int(each)
            table = events(
                start_ns=columns["start"][mask], end_ns=columns["end"][mask], correlation=columns["correlation"][mask],
                name=names[mask], process=process[mask], thread=threads[mask],
            )  # fmt: skip
            self.build.add(each, table)

    def _messages(self) -> dict[int, str]:
        """Return the text of marked ranges by event."""
        found = {}
        for row in self._rows("event", "id", "extdata"):
            text = row.get("extdata")
            if text and '"message"' in str(text):
                said = _json(text).get("message")
                if said:
                    found[row["id"]] = str(said)
        return found

    def _strings(self, used: Int64Array) -> dict[int, str]:
        wanted = set(np.unique(used).tolist())
        return {r["id"]: str(r["string"]) for r in self._rows("string", "id", "string") if r["id"] in wanted}

    def _codes(self, ids: Int64Array, words: Mapping[int, str], otherwise: str) -> Int64Array:
        return _looked_up(ids, {i: self.build.names.code(words.get(i) or otherwise) for i in np.unique(ids).tolist()})


def _looked_up(keys: Int64Array, values: Mapping[int, int], *, otherwise: int = NONE) -> Int64Array:
    """Return the value of each key.

    >>> _looked_up(np.array([7, 9, 7]), {7: 1}).tolist()
    [1, -1, 1]
    """
    distinct, inverse = np.unique(keys, return_inverse=True)
    found = np.array([values.get(k, otherwise) for k in distinct.tolist()], dtype=np.int64)
    result: Int64Array = found[inverse.reshape(-1)]
    return result


def _kind_of(category: str) -> Kind:
    """Return what regions of a category are.

    >>> _kind_of("HIP_RUNTIME_API_EXT").name, _kind_of("MARKER_CORE_API").name, _kind_of("host").name
    ('RUNTIME', 'ANNOTATION', 'OTHER')
    """
    return next((kind for pattern, kind in _KINDS if pattern.search(category)), Kind.OTHER)


def _json(text: Any) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (TypeError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _device(row: Mapping[str, Any], number: int) -> Device:
    """Return a device from the row of its agent; what the row lacks may stand in the text beside it."""
    more = _json(row.get("extdata"))
    told = {k: row[k] for k in ("name", "product_name") if row.get(k)}
    return device({**more, **told}, number)
