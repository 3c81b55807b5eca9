"""Read Kineto / Chrome trace JSON, as PyTorch's profiler writes it, into columns.

The format: an object with `traceEvents`, or a bare list of events; plain or gzip by content. Times are microseconds with
up to three decimals and become integer nanoseconds from their text, never through a float. Damage is named, not fatal.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from mansard.trace.readers.kineto_text import ABSENT, Event, bytes_of, decode, raw_json

Int64Array = npt.NDArray[np.int64]
Int32Array = npt.NDArray[np.int32]

NONE = -1  # in the integer columns: not recorded
_LONGEST_NS = 7 * 24 * 3600 * 10**9  # longer durations are damage


class _Args(msgspec.Struct, gc=False):
    dims: msgspec.Raw = msgspec.field(default=ABSENT, name="Input Dims")
    types: msgspec.Raw = msgspec.field(default=ABSENT, name="Input type")
    strides: msgspec.Raw = msgspec.field(default=ABSENT, name="Input Strides")
    values: msgspec.Raw = msgspec.field(default=ABSENT, name="Concrete Inputs")
    sequence: Any = msgspec.field(default=NONE, name="Sequence number")
    forward_thread: Any = msgspec.field(default=NONE, name="Fwd thread id")
    external: Any = msgspec.field(default=NONE, name="External id")
    correlation: Any = NONE
    device: Any = NONE
    stream: Any = NONE
    bytes: Any = NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """Recorded inputs of one kind of call, as the profiler wrote them; empty where shapes were not recorded."""

    dims: tuple[Any, ...] = ()
    types: tuple[str, ...] = ()
    strides: tuple[Any, ...] = ()
    values: tuple[Any, ...] = ()

    def args(self) -> dict[str, Any]:
        """Return the inputs under their names in the file."""
        return {
            "Input Dims": self.dims,
            "Input type": self.types,
            "Input Strides": self.strides,
            "Concrete Inputs": self.values,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class KinetoTrace:
    """Complete events of one file, ordered by start, longest first where starts tie.

    Args:
        names, categories: Tables that `name` and `category` point into; categories are lower case.
        name, category: Index per event.
        start_ns, end_ns: Interval [ns]; the epoch's clock where the file has `baseTimeNanoseconds` or absolute times.
        processes, threads: Tables that `process` and `thread` point into: the file's pid and (pid, tid).
        process, thread: Index per event.
        signatures: Table of recorded inputs.
        signature: Index per event, -1 where none was recorded.
        correlation, external_id, sequence, forward_thread, device, stream, nbytes: The arguments of these names, -1
            where not recorded; `stream` and `device` of kernels and copies.
        thread_names, process_names: Names from metadata events, by (pid, tid) and pid.
        device_properties: The file's `deviceProperties`.
        distributed: The file's `distributedInfo`.
        damage: What was wrong with the file, in words; empty for a sound file.
    """

    names: tuple[str, ...]
    categories: tuple[str, ...]
    name: Int32Array
    category: Int32Array
    start_ns: Int64Array
    end_ns: Int64Array
    processes: tuple[Any, ...]
    threads: tuple[tuple[Any, Any], ...]
    process: Int32Array
    thread: Int32Array
    signatures: tuple[Signature, ...]
    signature: Int32Array
    correlation: Int64Array
    external_id: Int64Array
    sequence: Int64Array
    forward_thread: Int64Array
    device: Int64Array
    stream: Int64Array
    nbytes: Int64Array
    thread_names: Mapping[tuple[Any, Any], str] = field(default_factory=dict)
    process_names: Mapping[Any, str] = field(default_factory=dict)
    device_properties: tuple[Mapping[str, Any], ...] = ()
    distributed: Mapping[str, Any] = field(default_factory=dict)
    damage: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """How many complete events there are."""
        return int(self.start_ns.size)

    def of_category(self, *wanted: str) -> npt.NDArray[np.bool_]:
        """Return a mask of the events in these categories (lower case)."""
        codes = [i for i, c in enumerate(self.categories) if c in wanted]
        return np.isin(self.category, np.array(codes, dtype=np.int32))


def read_kineto(path: Path) -> KinetoTrace:
    """Read one file.

    Args:
        path: A `.json` or gzipped `.json` file; the content decides.

    Raises:
        InputError: The file cannot be opened, or is no trace.
    """
    damage: list[str] = []
    data = bytes_of(Path(path), damage)
    head, events = decode(Path(path), data, damage)
    return _columns(head, events, damage)


def to_ns(text: bytes) -> int | None:
    """Return a number of microseconds, written as JSON number or string, in nanoseconds; None if it is none.

    >>> to_ns(b"5130755193960.656"), to_ns(b'"12.5"'), to_ns(b"3"), to_ns(b"1.5e3"), to_ns(b"null")
    (5130755193960656, 12500, 3000, 1500000, None)
    """
    if text[:1] == b'"':
        text = text[1:-1]
    whole, _, part = text.partition(b".")
    if whole.isdigit() and (part.isdigit() or not part):
        return int(whole) * 1000 + int((part + b"000")[:3])
    try:
        value = Decimal(text.decode()) * 1000
        return int(value.to_integral_value()) if value.is_finite() else None
    except (InvalidOperation, UnicodeDecodeError):
        return None


def _whole(value: Any) -> int:
    if isinstance(value, int):
        return value if -(2**63) <= value < 2**63 else NONE
    if isinstance(value, float):
        return int(value) if np.isfinite(value) else NONE
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            return NONE
    return NONE


class _Table:
    """Numbers for values in the order they come."""

    def __init__(self) -> None:
        self.codes: dict[Any, int] = {}

    def code(self, value: Any) -> int:
        number = self.codes.get(value)
        if number is None:
            number = self.codes[value] = len(self.codes)
        return number

    def values(self) -> tuple[Any, ...]:
        return tuple(self.codes)


_WIDE = 2**63


class _Builder:
    """Collects the columns of complete events, and of begin / end pairs."""

    def __init__(self, base_ns: int) -> None:
        self.base_ns = base_ns
        self.rows: list[tuple[int, ...]] = []
        self.names, self.categories, self.processes, self.threads = _Table(), _Table(), _Table(), _Table()
        self.signatures: dict[tuple[bytes, ...], int] = {}
        self.open: dict[int, list[tuple[Event, int]]] = {}
        self.lost: dict[str, int] = {}
        self.places: dict[tuple[Any, Any], tuple[int, int]] = {}
        self.args = msgspec.json.Decoder(_Args)

    def lose(self, why: str) -> None:
        self.lost[why] = self.lost.get(why, 0) + 1

    def add(self, event: Event, start: int, duration: int) -> None:
        if duration < 0 or duration > _LONGEST_NS:
            self.lose("of negative or absurd length")
            return
        args = _NO_ARGS
        raw = bytes(event.args)
        if raw:
            try:
                args = self.args.decode(raw)
            except msgspec.MsgspecError:
                args = _loose_args(raw)
        signature = NONE
        key = (bytes(args.dims), bytes(args.types), bytes(args.strides), bytes(args.values))
        if key[0] or key[1]:
            signature = self.signatures.setdefault(key, len(self.signatures))
        place = self.places.get((event.pid, event.tid)) or self.place(event)
        start += self.base_ns
        numbers = (
            args.correlation,
            args.external,
            args.sequence,
            args.forward_thread,
            args.device,
            args.stream,
            args.bytes,
        )
        self.rows.append(
            (
                start,
                start + duration,
                self.names.code(event.name),
                self.categories.code(event.cat),
                *place,
                signature,
                *[n if type(n) is int and -_WIDE <= n < _WIDE else _whole(n) for n in numbers],
            )
        )

    def place(self, event: Event) -> tuple[int, int]:
        """Return the numbers of an event's process and thread."""
        pid, tid = _key(event.pid), _key(event.tid)
        place = (self.processes.code(pid), self.threads.code((pid, tid)))
        if isinstance(event.pid, int | str) and isinstance(event.tid, int | str):
            self.places[(event.pid, event.tid)] = place
        return place


_NO_ARGS = _Args()


def _key(value: Any) -> Any:
    return value if isinstance(value, int | str) else str(value)


def _loose_args(raw: bytes) -> _Args:
    try:
        loose = json.loads(raw, parse_constant=lambda _: None)
    except ValueError:
        return _NO_ARGS
    if not isinstance(loose, dict):
        return _NO_ARGS
    known = {f.encode_name: f.name for f in msgspec.structs.fields(_Args)}
    values = {}
    for key, value in loose.items():
        if key in known:
            name = known[key]
            shaped = name in ("dims", "types", "strides", "values")
            values[name] = raw_json(value) if shaped else value
    return _Args(**values)


def _columns(head: Mapping[str, Any], events: list[Event], damage: list[str]) -> KinetoTrace:
    builder = _Builder(_whole(head.get("baseTimeNanoseconds")) if head.get("baseTimeNanoseconds") is not None else 0)
    names: dict[tuple[Any, Any], str] = {}
    process_names: dict[Any, str] = {}
    for event in events:
        phase = event.ph
        if phase == "X":
            start = to_ns(bytes(event.ts))
            length = to_ns(bytes(event.dur))
            if start is None or length is None:
                builder.lose("without a start or a duration")
            else:
                builder.add(event, start, length)
        elif phase == "B" or phase == "E":
            _pair(builder, event)
        elif phase == "M":
            _named(event, names, process_names)
    for stack in builder.open.values():
        for _ in stack:
            builder.lose("that begin and never end")
    damage.extend(f"{count} events {why} are left out" for why, count in builder.lost.items())
    return _frozen(builder, head, names, process_names, damage)


def _pair(builder: _Builder, event: Event) -> None:
    """Join a begin with the end that closes it on the same thread."""
    at = to_ns(bytes(event.ts))
    if at is None:
        builder.lose("without a start or a duration")
        return
    stack = builder.open.setdefault(builder.threads.code((_key(event.pid), _key(event.tid))), [])
    if event.ph == "B":
        stack.append((event, at))
    elif stack:
        begun, start = stack.pop()
        builder.add(begun, start, at - start)
    else:
        builder.lose("that end without a beginning")


def _named(event: Event, names: dict[tuple[Any, Any], str], process_names: dict[Any, str]) -> None:
    if event.name not in ("thread_name", "process_name"):
        return
    try:
        name = json.loads(bytes(event.args)).get("name")
    except (ValueError, AttributeError):
        return
    if event.name == "thread_name":
        names[(_key(event.pid), _key(event.tid))] = str(name)
    else:
        process_names[_key(event.pid)] = str(name)


def _signature(key: tuple[bytes, ...]) -> Signature:
    def values(raw: bytes) -> tuple[Any, ...]:
        try:
            decoded = json.loads(raw) if raw else ()
        except ValueError:
            return ()
        return tuple(decoded) if isinstance(decoded, list) else ()

    dims, types, strides, concrete = (values(raw) for raw in key)
    return Signature(dims=dims, types=tuple(str(t) for t in types), strides=strides, values=concrete)


def _lowered(categories: tuple[Any, ...]) -> tuple[tuple[str, ...], Int32Array]:
    """Return the categories in lower case, each once, and the new number of each old one."""
    names = _Table()
    numbers = [names.code(str(c or "").lower()) for c in categories]
    return names.values(), np.array(numbers, dtype=np.int32)


def _frozen(
    builder: _Builder,
    head: Mapping[str, Any],
    names: Mapping[tuple[Any, Any], str],
    process_names: Mapping[Any, str],
    damage: list[str],
) -> KinetoTrace:
    table = np.array(builder.rows, dtype=np.int64).reshape(-1, 14)
    table = table[np.lexsort((-table[:, 1], table[:, 0]))] if len(table) else table
    columns = [np.ascontiguousarray(table[:, i]) for i in range(14)]
    small = [column.astype(np.int32) for column in columns]
    devices = head.get("deviceProperties")
    distributed = head.get("distributedInfo")
    categories, lower = _lowered(builder.categories.values())
    return KinetoTrace(
        names=tuple(str(n) for n in builder.names.values()),
        categories=categories,
        start_ns=columns[0],
        end_ns=columns[1],
        name=small[2],
        category=lower[small[3]] if len(table) else small[3],
        processes=builder.processes.values(),
        process=small[4],
        threads=builder.threads.values(),
        thread=small[5],
        signatures=tuple(_signature(key) for key in builder.signatures),
        signature=small[6],
        correlation=columns[7],
        external_id=columns[8],
        sequence=columns[9],
        forward_thread=columns[10],
        device=columns[11],
        stream=columns[12],
        nbytes=columns[13],
        thread_names=names,
        process_names=process_names,
        device_properties=tuple(d for d in devices if isinstance(d, dict)) if isinstance(devices, list) else (),
        distributed=distributed if isinstance(distributed, dict) else {},
        damage=tuple(damage),
    )
