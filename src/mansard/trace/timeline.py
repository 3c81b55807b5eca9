"""What a recorded profile holds, whatever profiler wrote it: one columnar `Timeline`.

Times are integer nanoseconds. Events are kept in one table per kind, so that a question about kernels never touches the
rows of the host. A column that says the same for every row, or nothing at all, is an array of stride zero and costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.core.unknown import Unknown
from mansard.trace.launch_shape import UnitLimits, WavefrontLimits
from mansard.trace.run import Finding

Int64Array = npt.NDArray[np.int64]
Int32Array = npt.NDArray[np.int32]
BoolArray = npt.NDArray[np.bool_]

NONE = -1  # in integer columns: not recorded


class Kind(IntEnum):
    """What an event is."""

    KERNEL = 0  # work on a device's compute units
    COPY = 1  # a copy by or to a device
    MEMSET = 2  # a fill of device memory
    GRAPH = 3  # a whole graph as one row: its time is known, its kernels are not
    RUNTIME = 4  # a call of the runtime or driver interface on the host
    CPU_OP = 5  # an operation of the framework on the host
    ANNOTATION = 6  # a range the program marked on the host: NVTX, record_function, ProfilerStep
    DEVICE_ANNOTATION = 7  # such a range as the profiler projects it on the device
    SYNC = 8  # the host waits for a device
    PYTHON = 9  # a Python function
    OVERHEAD = 10  # time the profiler took for itself
    OTHER = 11  # everything else that has a duration


DEVICE_WORK = (Kind.KERNEL, Kind.COPY, Kind.MEMSET, Kind.GRAPH)


class CopyKind(IntEnum):
    """Direction of a copy, numbered as CUPTI numbers them.

    Source: NVIDIA CUPTI, CUpti_ActivityMemcpyKind; 11 to 13 as Nsight Systems adds them for unified memory.
    """

    UNKNOWN = 0
    HOST_TO_DEVICE = 1
    DEVICE_TO_HOST = 2
    HOST_TO_ARRAY = 3
    ARRAY_TO_HOST = 4
    ARRAY_TO_ARRAY = 5
    ARRAY_TO_DEVICE = 6
    DEVICE_TO_ARRAY = 7
    DEVICE_TO_DEVICE = 8
    HOST_TO_HOST = 9
    PEER_TO_PEER = 10
    UNIFIED_HOST_TO_DEVICE = 11
    UNIFIED_DEVICE_TO_HOST = 12
    UNIFIED_DEVICE_TO_DEVICE = 13


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One device of the profile.

    Args:
        number: The number users know it by: CUDA or HIP ordinal, or the number in the plane's name.
        name: Product name as the file states it.
        chip: Chip code name, empty where not stated; it never decides which product this is.
        multiprocessors: SMs or compute units.
        memory_bytes: Memory size [B].
        memory_bytes_per_s: Memory bandwidth the file states, where that figure can be trusted [B/s].
        clock_hz: Highest clock the file states [Hz].
        compute_capability: Such as `9.0`; empty where not stated.
        uuid: UUID or bus location, empty where not stated.
        limits: What one multiprocessor holds at once.
        certainty: How sure the link from the events to this device is: `stated`, or why it is `assumed: ...`.
        label: How it is printed; the number, or rank and number where several files or ranks meet.
    """

    number: int
    name: str | Unknown
    chip: str = ""
    multiprocessors: int | Unknown = field(default_factory=lambda: Unknown("not in the file"))
    memory_bytes: int | Unknown = field(default_factory=lambda: Unknown("not in the file"))
    memory_bytes_per_s: float | Unknown = field(default_factory=lambda: Unknown("not in the file"))
    clock_hz: float | Unknown = field(default_factory=lambda: Unknown("not in the file"))
    compute_capability: str = ""
    uuid: str = ""
    limits: UnitLimits | WavefrontLimits | Unknown = field(default_factory=lambda: Unknown("not in the file"))
    certainty: str = "stated"
    label: str = ""

    @property
    def shown(self) -> str:
        """The label, or the number where there is none."""
        return self.label or str(self.number)


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process of the profile.

    Args:
        pid: Its id as the file writes it.
        name: Its name, empty where not recorded.
        rank: Rank in the job; None where nothing states it.
    """

    pid: int | str
    name: str = ""
    rank: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Thread:
    """One host thread.

    Args:
        process: Index into `Timeline.processes`.
        tid: Its id as the file writes it.
        name: Its name, empty where not recorded.
    """

    process: int
    tid: int | str
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Detail:
    """What was recorded of the inputs of an event; many events share one.

    Args:
        dims, types, strides, values: Shapes, element types, strides and plain values of the inputs, in order.
        args: Other fields by their name in the file, such as those of a collective.
    """

    dims: tuple[Any, ...] = ()
    types: tuple[str, ...] = ()
    strides: tuple[Any, ...] = ()
    values: tuple[Any, ...] = ()
    args: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """Something wrong with the file, named and counted.

    Args:
        code: Stable identifier, such as `truncated`, `negative_duration`, `event_cap`.
        text: One sentence.
        count: How many rows or places.
        incomplete: Whether events are missing because of it; then figures are lower bounds and the exit code says so.
    """

    code: str
    text: str
    count: int = 1
    incomplete: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """What the times count.

    Args:
        domain: `capture` (ns since its start), `epoch` (since 1970, or since a moment that `epoch_offset_ns` tells), `boot`, `device`,
            or `unknown`. Of all but `capture` a window counts from the first event.
        epoch_offset_ns: What to add to a time to get ns since 1970.
        note: What else is known, such as a resolution of whole microseconds.
    """

    domain: str
    epoch_offset_ns: int | Unknown
    note: str = ""


def constant(value: int, count: int, dtype: Any = np.int32) -> npt.NDArray[Any]:
    """Return a read-only column of `count` equal values that takes no memory.

    >>> constant(7, 3).tolist(), constant(7, 3).strides
    ([7, 7, 7], (0,))
    """
    return np.broadcast_to(np.asarray(value, dtype=dtype), (count,))


_DTYPES = {
    "start_ns": np.int64, "end_ns": np.int64, "name": np.int32, "device": np.int32, "context": np.int32,
    "stream": np.int64, "process": np.int32, "thread": np.int32, "correlation": np.int64, "nbytes": np.int64,
    "copy_kind": np.int8, "detail": np.int32,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Events:
    """The events of one kind, in the order of the file unless said otherwise.

    Every column has one value per event; -1 means not recorded.

    Args:
        start_ns, end_ns: Half-open interval [ns]; readers leave out what is longer than seven days or negative, and say so.
        name: Index into `Timeline.names`.
        device: Index into `Timeline.devices`.
        context, stream: As the file numbers them; streams of different devices or processes may share a number.
        process, thread: Index into `Timeline.processes` and `Timeline.threads`.
        correlation: Joins device work to the call that launched it, within one process.
        nbytes: Bytes of a copy or fill [B].
        copy_kind: A `CopyKind`.
        detail: Index into `Timeline.details`.
        extras: Further columns that only some kinds or formats have, each as long as the others: `short_name` (index
            into names), `domain` (index into names), `end_thread`, `range_style` (0 push/pop, 1 start/end), `graph_node`,
            `graph`, `external_id`, `sequence`, `forward_thread`, `sync_kind`, `annotation_kind`, `launch_shape` (of kernels,
            index into `Timeline.extras["launch_shapes"]`, where it was asked for), `host_memory` (of copies: 0 pageable,
            1 pinned, 2 managed), ...
    """

    start_ns: Int64Array
    end_ns: Int64Array
    name: Int32Array
    device: Int32Array
    context: Int32Array
    stream: Int64Array
    process: Int32Array
    thread: Int32Array
    correlation: Int64Array
    nbytes: Int64Array
    copy_kind: npt.NDArray[np.int8]
    detail: Int32Array
    extras: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)

    def __len__(self) -> int:
        return int(self.start_ns.size)

    @property
    def duration_ns(self) -> Int64Array:
        """Length of each event [ns]."""
        return self.end_ns - self.start_ns

    def take(self, chosen: npt.NDArray[Any]) -> Events:
        """Return the events of a mask or of an index array, in its order; constant columns stay free of cost."""
        rows = int(np.count_nonzero(chosen)) if chosen.dtype == np.bool_ else int(chosen.size)

        def column(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
            return np.broadcast_to(x[:1].reshape(()), (rows,)) if x.size and x.strides == (0,) else x[chosen]

        columns = {name: column(getattr(self, name)) for name in _DTYPES}
        return Events(**columns, extras={k: column(v) for k, v in self.extras.items()})

    def sorted(self) -> Events:
        """Return the events by start, the longest first where starts tie."""
        start = self.start_ns
        if start.size < 2 or bool((start[1:] > start[:-1]).all()):
            return self
        return self.take(np.lexsort((-self.end_ns, start)))


def events(*, start_ns: npt.NDArray[Any], end_ns: npt.NDArray[Any], extras: Mapping[str, npt.NDArray[Any]] | None = None,
           **columns: npt.NDArray[Any] | int) -> Events:  # fmt: skip
    """Return a table of events from the columns that are known.

    Args:
        start_ns, end_ns: Interval of each event [ns].
        extras: Further columns.
        columns: The other columns of `Events`, as arrays or as one value for all rows; absent ones are -1.

    >>> e = events(start_ns=np.array([0, 5]), end_ns=np.array([3, 9]), stream=7)
    >>> len(e), e.stream.tolist(), e.device.tolist(), e.duration_ns.tolist()
    (2, [7, 7], [-1, -1], [3, 4])
    """
    count = int(np.asarray(start_ns).size)
    given: dict[str, Any] = {"start_ns": start_ns, "end_ns": end_ns, **columns}
    unknown = set(given) - set(_DTYPES)
    if unknown:
        raise ValueError(f"no such columns: {', '.join(sorted(unknown))}")
    built: dict[str, npt.NDArray[Any]] = {}
    for name, dtype in _DTYPES.items():
        value = given.get(name, NONE)
        if isinstance(value, int | np.integer):
            built[name] = constant(int(value), count, dtype)
        else:
            array = np.asarray(value)
            # A narrower integer is as good, and large profiles need the memory.
            built[name] = array if np.can_cast(array.dtype, dtype) and array.dtype.kind == "i" else array.astype(dtype)
        if built[name].shape != (count,):
            raise ValueError(f"column {name} has shape {built[name].shape}, expected ({count},)")
    return Events(**built, extras=dict(extras or {}))


def joined(tables: Sequence[Events]) -> Events:
    """Return several tables as one, in their order; extras that not all of them have are -1 where missing."""
    tables = [t for t in tables if len(t)] or list(tables[:1])
    if not tables:
        return events(start_ns=np.zeros(0, dtype=np.int64), end_ns=np.zeros(0, dtype=np.int64))
    if len(tables) == 1:
        return tables[0]
    columns: dict[str, npt.NDArray[Any]] = {}
    total = sum(len(t) for t in tables)
    for name, dtype in _DTYPES.items():
        parts = [getattr(t, name) for t in tables]
        first = parts[0]
        same = all(p.strides == (0,) and p[0] == first[0] for p in parts)
        columns[name] = constant(int(first[0]), total, dtype) if same else np.concatenate(parts)
    names = sorted({n for t in tables for n in t.extras})
    extras = {
        n: np.concatenate([t.extras[n] if n in t.extras else constant(NONE, len(t), np.int64) for t in tables])
        for n in names
    }
    return Events(**columns, extras=extras)


_EMPTY = events(start_ns=np.zeros(0, dtype=np.int64), end_ns=np.zeros(0, dtype=np.int64))


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """One recorded profile.

    Args:
        source: Where it was read from, for printing.
        format: `nsys`, `kineto`, `xplane`, `xla_trace`, `rocprofv3`, `ncu`, `recording`.
        version: Version of the profiler or schema, as far as known.
        tables: Events by kind. A kind that is not a key was not recorded or not asked for: see `absent`.
        names: Table the name columns point into.
        devices, processes, threads, details: Tables the columns of these names point into.
        absent: Why a kind has no table, in words; a kind that was recorded and is empty has an empty table.
        clock: What the times count.
        damage: What is wrong with the file.
        findings: What else a reader should know, such as what was assumed.
        diagnostics: What the profiler itself reported, quoted.
        distributed: Rank, world_size, backend, groups, as far as the file states them.
        environment: Versions, host, capture options, for the receipt.
        extras: What one format has and others have not.
    """

    source: str
    format: str
    version: str
    tables: Mapping[Kind, Events]
    names: tuple[str, ...]
    devices: tuple[Device, ...] = ()
    processes: tuple[Process, ...] = ()
    threads: tuple[Thread, ...] = ()
    details: tuple[Detail, ...] = ()
    absent: Mapping[Kind, str] = field(default_factory=dict)
    clock: Clock = field(default_factory=lambda: Clock(domain="unknown", epoch_offset_ns=Unknown("not in the file")))
    damage: tuple[Damage, ...] = ()
    findings: tuple[Finding, ...] = ()
    diagnostics: tuple[str, ...] = ()
    distributed: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    extras: Mapping[str, Any] = field(default_factory=dict)

    def of(self, *kinds: Kind) -> Events:
        """Return the events of these kinds as one table; empty where nothing was recorded (`why_absent` tells)."""
        return joined([self.tables[k] for k in kinds if k in self.tables] or [_EMPTY])

    def has(self, kind: Kind) -> bool:
        """Return whether the file recorded events of a kind, were there any."""
        return kind in self.tables

    def why_absent(self, kind: Kind) -> Unknown:
        """Return why there are no events of a kind, as the unknown that figures from them are."""
        word = kind.name.lower()
        return Unknown(self.absent.get(kind, f"the file records no {word} events"), (f"a profile with {word} events",))

    @property
    def device_work(self) -> Events:
        """Kernels, copies, fills and whole graphs."""
        return self.of(*DEVICE_WORK)

    @property
    def used_devices(self) -> tuple[int, ...]:
        """Indices of the devices that did any work, by the number that people know them by."""
        seen: set[int] = set()
        for kind in DEVICE_WORK:
            if kind in self.tables and len(self.tables[kind]):
                column = self.tables[kind].device
                seen |= {int(column[0])} if column.strides == (0,) else {int(d) for d in np.unique(column)}
        return tuple(sorted((d for d in seen if d >= 0), key=lambda d: (self.devices[d].number, d)))

    @property
    def incomplete(self) -> bool:
        """Whether events are missing because the file is damaged."""
        return any(d.incomplete for d in self.damage)

    def rank(self, table: Events) -> Int32Array:
        """Return the rank of each event's process, -1 where nothing states it."""
        ranks = np.array([NONE if p.rank is None else p.rank for p in self.processes] + [NONE], dtype=np.int32)
        return ranks[table.process]

    def with_findings(self, more: Iterable[Finding]) -> Timeline:
        """Return this timeline with further findings."""
        return replace(self, findings=(*self.findings, *more))


class Names:
    """Builds a table of names; each name is stored once.

    >>> n = Names()
    >>> n.code("a"), n.code("b"), n.code("a"), n.table()
    (0, 1, 0, ('a', 'b'))
    """

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}

    def code(self, name: str) -> int:
        """Return the index of a name, adding it where it is new."""
        return self._codes.setdefault(name, len(self._codes))

    def codes(self, names: Iterable[str]) -> Int32Array:
        """Return the indices of many names."""
        known = self._codes
        return np.fromiter((known.setdefault(n, len(known)) for n in names), dtype=np.int32)

    def table(self) -> tuple[str, ...]:
        """Return the table."""
        return tuple(self._codes)


LONGEST_NS = 7 * 24 * 3600 * 10**9  # a longer event is damage


def sound(table: Events, *, what: str) -> tuple[Events, list[Damage]]:
    """Return the events whose durations can be true, and what was left out.

    Negative and century-long durations are left out; a zero length stays, since the event happened, and is counted.

    Args:
        table: Events as read.
        what: What they are called in messages, such as `kernels`.
    """
    length = table.end_ns - table.start_ns
    if not length.size or (int(length.min()) > 0 and int(length.max()) <= LONGEST_NS):
        return table, []
    damage = []
    bad = length < 0
    long = length > LONGEST_NS
    for mask, code, text in (
        (bad, "negative_duration", f"{what} that end before they start, left out"),
        (long, "impossible_duration", f"{what} longer than seven days, left out"),
        (length == 0, "zero_duration", f"{what} of zero length, kept; they add no time"),
    ):
        count = int(np.count_nonzero(mask))
        if count:
            damage.append(Damage(code=code, text=f"{count} {text}", count=count))
    if damage and (bad | long).any():
        table = table.take(~(bad | long))
    return table, damage
