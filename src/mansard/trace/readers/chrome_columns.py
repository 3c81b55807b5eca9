"""Decoded trace events into columns, one table per kind, batch by batch."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from mansard.trace.readers.chrome_args import (
    ARGS,
    HOST_KINDS,
    CallArgs,
    DetailTable,
    PlainArgs,
    ShapedArgs,
    ShapeTable,
    loose,
)
from mansard.trace.readers.chrome_damage import Tally
from mansard.trace.readers.chrome_memory import MEMORY_EVENT, MemoryEvents
from mansard.trace.readers.chrome_times import to_ns
from mansard.trace.readers.kineto_text import ABSENT, Event
from mansard.trace.readers.memory_need import refuse, room
from mansard.trace.timeline import NONE, Events, Kind, Names, constant, events

Int64Array = npt.NDArray[np.int64]

#: Category, lower case -> kind. Categories that are not here are kept as OTHER and counted.
KINDS: dict[str, Kind] = {
    "kernel": Kind.KERNEL, "concurrent_kernel": Kind.KERNEL, "mtia_ccp_events": Kind.KERNEL, "cuda": Kind.KERNEL,
    "gpu_memcpy": Kind.COPY, "memcpy": Kind.COPY, "gpu_memset": Kind.MEMSET, "memset": Kind.MEMSET,
    "cuda_runtime": Kind.RUNTIME, "cuda_driver": Kind.RUNTIME, "runtime": Kind.RUNTIME, "hip_runtime": Kind.RUNTIME,
    "xpu_runtime": Kind.RUNTIME, "xpu_driver": Kind.RUNTIME, "mtia_runtime": Kind.RUNTIME, "glow_runtime": Kind.RUNTIME,
    "privateuse1_runtime": Kind.RUNTIME, "privateuse1_driver": Kind.RUNTIME, "cuda_api": Kind.RUNTIME,
    "cpu_op": Kind.CPU_OP, "operator": Kind.CPU_OP,
    "user_annotation": Kind.ANNOTATION, "nvtx": Kind.ANNOTATION,
    "gpu_user_annotation": Kind.DEVICE_ANNOTATION, "nvtx-kernel": Kind.DEVICE_ANNOTATION,
    "cuda_sync": Kind.SYNC, "xpu_sync": Kind.SYNC, "python_function": Kind.PYTHON, "overhead": Kind.OVERHEAD,
}  # fmt: skip

#: Integer columns, and other spellings that are read where the first is absent from a whole batch.
_INTEGERS: dict[str, tuple[str, ...]] = {
    "correlation": ("correlation_long", "correlation_xla"), "external_id": ("external_old",), "device": (), "stream": (),
    "context": (), "nbytes": (), "sequence": (), "forward_thread": (), "graph_node": (),
    "step_number": (), "model_flop": ("flop",), "accessed": ("accessed_raw",),
}  # fmt: skip
_WIDE = 2**63
_WORK_PER_BYTE = 3.75  # columns are joined, sorted and merged; measured on a summary of 3.2 million events
_UNSIGNED_MINUS_ONE = b"18446744073709551615"  # -1 as some profilers write it
Key = tuple[Any, Any]


def hashable(value: Any) -> Any:
    """Return a pid, tid or category that can be a key of a table."""
    return value if isinstance(value, int | str) else str(value)


class _Codes(dict[Any, int]):
    """Numbers for values in the order they come."""

    def __missing__(self, key: Any) -> int:
        number = self[key] = len(self)
        return number


@dataclass(slots=True)
class Rows:
    """What was collected of one kind: a list of arrays per column."""

    parts: dict[str, list[npt.NDArray[Any]]]

    def column(self, name: str, count: int, dtype: Any = np.int64) -> npt.NDArray[Any]:
        """Return a column; one that holds nothing takes no memory."""
        parts = self.parts.get(name, [])
        if not parts or all(p.strides == (0,) for p in parts):
            return constant(NONE, count, dtype)
        return np.concatenate(parts).astype(dtype, copy=False)

    @property
    def count(self) -> int:
        """Number of events."""
        return sum(p.size for p in self.parts.get("start", []))


class Columns:
    """Collects complete events, begin / end pairs and names.

    Args:
        tally: What is damaged is counted here.
        kinds: Kinds that are wanted; None for all but Python functions.
        memory_limit: Bytes the columns may take [B].
        name: Of the file, for messages.
        shapes: Whether how kernels were launched is wanted.
    """

    def __init__(
        self, tally: Tally, kinds: frozenset[Kind] | None, memory_limit: int | None, name: str, *, shapes: bool = False
    ) -> None:
        self.tally, self.kinds, self.memory_limit, self.name = tally, kinds, memory_limit, name
        self.rows: dict[Kind, Rows] = {}
        self.plain = Rows({})  # events without a category
        self.names = Names()
        self.places: dict[Key, int] = _Codes()
        self.details = DetailTable()
        self.shapes = ShapeTable() if shapes else None
        self.memory = MemoryEvents()
        self.category_counts: dict[str, int] = {}
        self.phase_counts: dict[str, int] = {}
        self.process_names: dict[Any, str] = {}
        self.thread_names: dict[Key, str] = {}
        self.begun: list[tuple[Event, bool]] = []
        self.kept_bytes = 0
        self.total = 0

    def add(self, batch: Sequence[Event]) -> None:
        """Take the events of one batch."""
        complete: defaultdict[Any, list[Event]] = defaultdict(list)
        for event in batch:
            if event.ph == "X":
                try:
                    complete[event.cat].append(event)
                except TypeError:
                    complete[str(event.cat)].append(event)
            else:
                self._other(event)
        self.total += len(batch)
        for category, group in complete.items():
            self._complete(category, group)
        if complete:
            self.phase_counts["X"] = self.phase_counts.get("X", 0) + sum(map(len, complete.values()))

    def finish(self) -> None:
        """Join what began with what ended."""
        if not self.begun:
            return
        times = to_ns([e.ts for e, _ in self.begun])
        order = np.argsort(times.ns, kind="stable")
        stacks: defaultdict[Key, list[int]] = defaultdict(list)
        pairs: defaultdict[Any, list[tuple[Event, int, int]]] = defaultdict(list)
        for i in order.tolist():
            event, begins = self.begun[i]
            if times.missing[i] or times.wrong[i]:
                self.tally.add("missing_start" if times.missing[i] else "bad_time", 1)
                continue
            stack = stacks[hashable(event.pid), hashable(event.tid)]
            if begins:
                stack.append(i)
            elif stack:
                first = stack.pop()
                opened = self.begun[first][0]
                pairs[hashable(opened.cat)].append((opened, int(times.ns[first]), int(times.ns[i])))
            else:
                self.tally.add("unpaired_end", 1)
        self.tally.add("unpaired_begin", sum(map(len, stacks.values())))
        for category, found in pairs.items():
            start = np.array([p[1] for p in found], dtype=np.int64)
            end = np.array([p[2] for p in found], dtype=np.int64)
            self._keep(None if category == "None" else category, [p[0] for p in found], start, end)
        self.begun = []

    def _other(self, event: Event) -> None:
        phase = event.ph
        word = phase if isinstance(phase, str) else ""
        self.phase_counts[word] = self.phase_counts.get(word, 0) + 1
        if phase in ("B", "E"):
            self.begun.append((event, phase == "B"))
        elif phase == "M" and event.name in ("process_name", "thread_name"):
            try:
                name = json.loads(bytes(event.args)).get("name")
            except (ValueError, AttributeError, RecursionError):
                return
            if event.name == "process_name":
                self.process_names[hashable(event.pid)] = str(name)
            else:
                self.thread_names[hashable(event.pid), hashable(event.tid)] = str(name)
        elif phase == "i" and event.name == MEMORY_EVENT:
            self.memory.add(event)
        elif not phase and all(getattr(event, f) in (None, ABSENT) for f in ("cat", "name", "pid", "tid")):
            self.tally.add("empty_events", 1)

    def _complete(self, category: Any, group: list[Event]) -> None:
        start, length = to_ns([e.ts for e in group]), to_ns([e.dur for e in group])
        self.tally.add("text_numbers", start.as_text + length.as_text)
        self.tally.add("missing_start", int(np.count_nonzero(start.missing)))
        self.tally.add("missing_duration", int(np.count_nonzero(length.missing & ~start.missing)))
        wrong = (start.wrong | length.wrong) & ~(start.missing | length.missing)
        self.tally.add("bad_time", int(np.count_nonzero(wrong)))
        lost = start.missing | length.missing | wrong
        if lost.any():
            sound = np.flatnonzero(~lost)
            group = [group[i] for i in sound.tolist()]
            self._keep(category, group, start.ns[sound], start.ns[sound] + length.ns[sound])
        else:
            self._keep(category, group, start.ns, start.ns + length.ns)

    def _keep(self, category: Any, group: list[Event], start: Int64Array, end: Int64Array) -> None:
        word = "" if category is None else str(category).lower().replace(" ", "_")
        self.category_counts[word] = self.category_counts.get(word, 0) + len(group)
        kind = KINDS.get(word, Kind.OTHER) if word else None
        if not group or (kind is Kind.PYTHON and (self.kinds is None or kind not in self.kinds)):
            return
        if self.kinds is not None and kind is not None and kind not in self.kinds:
            return
        rows = self.plain if kind is None else self.rows.setdefault(kind, Rows({}))
        columns: dict[str, npt.NDArray[Any]] = {"start": start, "end": end}
        columns["name"] = self.names.codes([e.name if type(e.name) is str else str(e.name) for e in group])
        columns["place"] = self._places(group)
        columns |= self._arguments(kind, group)
        for name, column in columns.items():
            rows.parts.setdefault(name, []).append(column)
            self.kept_bytes += column.nbytes if column.strides != (0,) else 0

    def _places(self, group: list[Event]) -> npt.NDArray[np.int32]:
        places = self.places
        try:
            return np.array([places[e.pid, e.tid] for e in group], dtype=np.int32)
        except TypeError:
            return np.array([places[hashable(e.pid), hashable(e.tid)] for e in group], dtype=np.int32)

    def _arguments(self, kind: Kind | None, group: list[Event]) -> dict[str, npt.NDArray[Any]]:
        shape = ARGS.get(kind, CallArgs) if kind is not None else PlainArgs
        if kind is Kind.KERNEL and self.shapes is not None:
            shape = ShapedArgs
        blob = b"[" + b",".join([e.args for e in group]) + b"]"
        unsigned, counted = blob.count(_UNSIGNED_MINUS_ONE), self.tally.count("big_integer")
        try:
            decoded = _decoder(shape).decode(blob)
            if len(decoded) != len(group):
                raise msgspec.ValidationError("an event without arguments")
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, TypeError):
            decoded = [loose(shape, bytes(e.args), self.tally) for e in group]
        known = shape.__struct_fields__
        out: dict[str, npt.NDArray[Any]] = {}
        for name, others in _INTEGERS.items():
            for spelling in (name, *others):
                if spelling in known and (name not in out or out[name].strides == (0,)):
                    out[name] = self._whole([getattr(a, spelling) for a in decoded])
        if unsigned:  # in fields that nothing reads too
            self.tally.add("big_integer", max(0, unsigned - (self.tally.count("big_integer") - counted)))
        if kind in HOST_KINDS or kind is Kind.KERNEL:
            codes = self.details.codes(decoded, host=kind in HOST_KINDS)
            out["detail"] = codes if codes is not None else constant(NONE, len(group))
        if shape is ShapedArgs and self.shapes is not None:
            out["launch_shape"] = self.shapes.codes(decoded)
        if "sync_kind" in known:
            out["sync_kind"] = self.names.codes([str(a.sync_kind) for a in decoded])
        return out

    def _whole(self, values: list[Any]) -> npt.NDArray[np.int64]:
        first = values[0]
        if first is NONE and all(v is NONE for v in values):
            return constant(NONE, len(values), np.int64)
        if type(first) is int:
            try:
                return np.fromiter(values, dtype=np.int64, count=len(values))
            except (TypeError, ValueError, OverflowError):
                pass
        return np.array([self._one(v) for v in values], dtype=np.int64)

    def _one(self, value: Any) -> int:
        if isinstance(value, str):
            try:
                value = int(value, 0)
            except ValueError:
                return NONE
        if isinstance(value, float):
            value = int(value) if np.isfinite(value) and abs(value) < _WIDE else NONE
        if not isinstance(value, int):
            return NONE
        if not -_WIDE <= value < _WIDE:
            self.tally.add("big_integer", 1)
            return NONE
        return int(value)

    def _narrow(self, column: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return a column whose values fit 32 bits; what does not is not recorded."""
        if column.strides == (0,) or not column.size:
            return column
        wide = (column < -1) | (column >= 2**31)
        if not wide.any():
            return column
        self.tally.add("big_integer", int(np.count_nonzero(wide)))
        return np.where(wide, NONE, column)

    def check_limit(self, share: float) -> None:
        """Refuse as soon as it is clear that the events need more memory than there may be.

        Args:
            share: Of the file that was read.

        Raises:
            InputError: What is read needs more, or the whole will: after a tenth of the file, by a quarter.
        """
        if self.memory_limit is None:
            return
        now = _WORK_PER_BYTE * self.kept_bytes
        whole = now / share if share > 0 else now
        allowed = room(self.memory_limit)
        if now > allowed or (share >= 0.1 and whole > 1.25 * allowed):
            raise refuse(
                self.name, whole, self.memory_limit, "raise --memory-limit, or ask for fewer kinds of event", read=share
            )

    def table(self, rows: Rows, place: Callable[[npt.NDArray[np.int32]], dict[str, npt.NDArray[Any]]]) -> Events:
        """Return the events of one kind.

        Args:
            rows: What was collected.
            place: From the place of each event to its `process` and `thread`, and `device` and `stream` where they are there.
        """
        count = rows.count
        extras = {n: rows.column(n, count) for n in _EXTRAS if n in rows.parts}
        extras = {n: c for n, c in extras.items() if c.strides != (0,)}
        given: dict[str, Any] = {
            n: rows.column(n, count, t)
            for n, t in (("name", np.int32), ("correlation", np.int64), ("stream", np.int64), ("device", np.int64),
                         ("context", np.int64), ("nbytes", np.int64), ("detail", np.int32))
        }  # fmt: skip
        for name in ("device", "context"):
            given[name] = self._narrow(given[name])
        for name, column in place(rows.column("place", count, np.int32)).items():
            mine = given.get(name)
            given[name] = column if mine is None or mine.strides == (0,) else np.where(mine == NONE, column, mine)
        return events(start_ns=rows.column("start", count), end_ns=rows.column("end", count), extras=extras, **given)


_EXTRAS = (
    "external_id",
    "sequence",
    "forward_thread",
    "graph_node",
    "sync_kind",
    "step_number",
    "model_flop",
    "accessed",
    "launch_shape",
)
_DECODERS: dict[Any, msgspec.json.Decoder[Any]] = {}


def _decoder(shape: Any) -> msgspec.json.Decoder[Any]:
    if shape not in _DECODERS:
        _DECODERS[shape] = msgspec.json.Decoder(list[shape])
    return _DECODERS[shape]
