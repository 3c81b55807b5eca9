"""Reader of XPlane profiles (`.xplane.pb`), the format of the JAX and XLA profilers.

The protobuf wire format is decoded here, without a dependency: the messages that hold one event each are found by their lengths,
then the fields of all events are decoded together, one array operation per byte of a varint.

XSpace{planes=1, errors=2, warnings=3, hostnames=4}; XPlane{name=2, lines=3, event_metadata=4, stat_metadata=5, stats=6};
XLine{name=2, timestamp_ns=3, events=4, display_name=11}; XEvent{metadata_id=1, offset_ps=2, duration_ps=3, stats=4};
XStat{metadata_id=1, double=2, uint64=3, int64=4, str=5, bytes=6, ref=7}. Source: tsl/profiler/protobuf/xplane.proto.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.core import InputError

Int64Array = npt.NDArray[np.int64]
_DOUBLE, _UINT, _INT, _STR, _BYTES, _REF = 2, 3, 4, 5, 6, 7


@dataclass(frozen=True, slots=True, kw_only=True)
class XLine:
    """One timeline: a host thread, a stream, or a derived row.

    Args:
        name: Name; `display_name` where there is one.
        number: Its identifier in the file.
        timestamp_ns: Origin of its events [ns].
        metadata: Event metadata id of each event; the plane's `event_names` translates it.
        start_ns: Start of each event [ns]: `timestamp_ns` plus the offset, rounded down to whole nanoseconds.
        end_ns: End of each event [ns], rounded down from picoseconds as well.
        stat_event, stat_name, stat_kind, stat_value, stat_size: All stats of all events, flat: index of the event, stat metadata
            id, field number of the value, the value (a position in the file for text and bytes), length of text and bytes.
    """

    name: str
    number: int
    timestamp_ns: int
    metadata: Int64Array
    start_ns: Int64Array
    end_ns: Int64Array
    stat_event: Int64Array
    stat_name: Int64Array
    stat_kind: Int64Array
    stat_value: Int64Array
    stat_size: Int64Array

    @property
    def count(self) -> int:
        """Number of events."""
        return int(self.metadata.size)


@dataclass(frozen=True, slots=True, kw_only=True)
class XPlane:
    """One device or host.

    Args:
        name: Such as `/host:CPU` or `/device:GPU:0`.
        lines: Its timelines.
        event_names: Event name by metadata id.
        event_stats: Stats that belong to an event kind, by metadata id.
        stat_names: Stat name by metadata id.
        stats: Stats of the plane.
        data: The whole file, for text values.
    """

    name: str
    lines: tuple[XLine, ...]
    event_names: Mapping[int, str]
    event_stats: Mapping[int, Mapping[str, Any]]
    stat_names: Mapping[int, str]
    stats: Mapping[str, Any]
    data: bytes = field(repr=False)

    def stat_ids(self, name: str) -> list[int]:
        """Metadata ids of the stat called `name`."""
        return [i for i, n in self.stat_names.items() if n == name]

    def integers(self, line: XLine, name: str, *, missing: int = -1) -> Int64Array:
        """Return an integer stat for every event of `line`; `missing` where an event does not have it."""
        out = np.full(line.count, missing, dtype=np.int64)
        chosen = np.isin(line.stat_name, self.stat_ids(name)) & np.isin(line.stat_kind, (_UINT, _INT))
        out[line.stat_event[chosen]] = line.stat_value[chosen]
        return out

    def texts(self, line: XLine, name: str) -> tuple[Int64Array, list[str]]:
        """Return a text stat as indices into a list of distinct texts; -1 where an event does not have it."""
        out = np.full(line.count, -1, dtype=np.int64)
        chosen = np.isin(line.stat_name, self.stat_ids(name)) & np.isin(line.stat_kind, (_STR, _REF, _BYTES))
        events, kinds = line.stat_event[chosen], line.stat_kind[chosen]
        values, sizes = line.stat_value[chosen], line.stat_size[chosen]
        index: dict[str, int] = {}
        known: dict[tuple[int, bytes | int], int] = {}
        codes = np.empty(events.size, dtype=np.int64)
        data = self.data
        for n, (kind, value, size) in enumerate(zip(kinds.tolist(), values.tolist(), sizes.tolist(), strict=True)):
            key = (kind, value if kind == _REF else data[value : value + size])
            code = known.get(key)
            if code is None:
                raw = key[1]
                text = self.stat_names.get(raw, "") if isinstance(raw, int) else raw.decode("utf-8", "replace")
                code = known[key] = index.setdefault(text, len(index))
            codes[n] = code
        out[events] = codes
        return out, list(index)

    def stats_of(self, line: XLine, event: int) -> dict[str, Any]:
        """Return all stats of one event."""
        out = {}
        for at in np.flatnonzero(line.stat_event == event).tolist():
            name = self.stat_names.get(int(line.stat_name[at]), str(int(line.stat_name[at])))
            out[name] = self._value(int(line.stat_kind[at]), int(line.stat_value[at]), int(line.stat_size[at]))
        return out

    def _value(self, kind: int, value: int, size: int) -> Any:
        if kind == _DOUBLE:
            return struct.unpack("<d", struct.pack("<q", value))[0]
        if kind == _UINT:
            return value & 0xFFFFFFFFFFFFFFFF
        if kind == _STR:
            return self.data[value : value + size].decode("utf-8", "replace")
        if kind == _BYTES:
            return self.data[value : value + size]
        return self.stat_names.get(value, "") if kind == _REF else value


@dataclass(frozen=True, slots=True, kw_only=True)
class XSpace:
    """A whole profile.

    Args:
        planes: Devices and hosts.
        errors, warnings, hostnames: What the profiler wrote about itself.
        epoch_ns: Nanoseconds since 1970 of time 0 of the events [ns]; 0 where the events carry absolute times, None if unknown.
    """

    planes: tuple[XPlane, ...]
    errors: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    hostnames: tuple[str, ...] = ()
    epoch_ns: int | None = None

    def plane(self, name: str) -> XPlane | None:
        """Return the plane called `name`, if there is one."""
        return next((p for p in self.planes if p.name == name), None)


def read_xspace(path: Path) -> XSpace:
    """Read a profile.

    Raises:
        InputError: the file cannot be read or is not an intact XPlane profile; position and reason are named.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}", hint="check the path") from None
    try:
        return parse_xspace(data)
    except InputError as error:
        raise InputError(f"{path.name}: {error.message}", hint=error.hint, code=error.code) from None


def parse_xspace(data: bytes) -> XSpace:
    """Return the profile in `data`.

    Raises:
        InputError: not an intact XPlane profile.
    """
    planes: list[XPlane] = []
    texts: dict[int, list[str]] = {2: [], 3: [], 4: []}
    for number, wire, value, size in _fields(data, 0, len(data)):
        if number == 1 and wire == 2:
            planes.append(_plane(data, value, value + size))
        elif number in texts and wire == 2:
            texts[number].append(data[value : value + size].decode("utf-8", "replace"))
    if not planes:
        raise _damaged(0, "it holds no plane")
    return XSpace(
        planes=tuple(planes), errors=tuple(texts[2]), warnings=tuple(texts[3]), hostnames=tuple(texts[4]),
        epoch_ns=_epoch(planes),
    )  # fmt: skip


def _epoch(planes: list[XPlane]) -> int | None:
    """Event times are relative to `profile_start_time` of the plane `Task Environment`, or absolute in older files."""
    stamps = [line.timestamp_ns for plane in planes for line in plane.lines if line.count]
    if stamps and min(stamps) > 10**17:
        return 0
    for plane in planes:
        start = plane.stats.get("profile_start_time")
        if isinstance(start, int):
            return start
    return None


def _damaged(at: int, what: str) -> InputError:
    return InputError(
        f"not an intact XPlane profile: {what} (byte {at})",
        hint="record or copy the file again; a text conversion (UTF-8) destroys it",
        code="damaged_xplane",
    )


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise _damaged(at, "a number has more than ten bytes")
    raise _damaged(at, "a number runs past the end")


def _fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield (field number, wire type, value or position, length) of a message."""
    while at < end:
        tag, at = _varint(data, at, end)
        number, wire = tag >> 3, tag & 7
        if number == 0:
            raise _damaged(at, "field number 0")
        if wire == 0:
            value, at = _varint(data, at, end)
            yield number, wire, value, 0
        elif wire == 2:
            size, at = _varint(data, at, end)
            if at + size > end:
                raise _damaged(at, f"a length of {size} bytes runs past the end")
            yield number, wire, at, size
            at += size
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
            if at + size > end:
                raise _damaged(at, "a number runs past the end")
            yield number, wire, int.from_bytes(data[at : at + size], "little"), size
            at += size
        else:
            raise _damaged(at, f"wire type {wire}")


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _text(data: bytes, at: int, size: int) -> str:
    return data[at : at + size].decode("utf-8", "replace")


def _plane(data: bytes, at: int, end: int) -> XPlane:
    name, lines = "", []
    events: list[tuple[int, int]] = []
    stat_names: dict[int, str] = {}
    own: list[tuple[int, int]] = []
    for number, wire, value, size in _fields(data, at, end):
        if wire != 2:
            continue
        if number == 2:
            name = _text(data, value, size)
        elif number == 3:
            lines.append((value, value + size))
        elif number == 4:
            events.append((value, value + size))
        elif number == 5:
            key, inner = _map_entry(data, value, value + size)
            for n, w, v, s in _fields(data, *inner):
                if n == 2 and w == 2:
                    stat_names[key] = _text(data, v, s)
        elif number == 6:
            own.append((value, value + size))
    event_names, event_stats = {}, {}
    for start, stop in events:
        key, inner = _map_entry(data, start, stop)
        stats = []
        for n, w, v, s in _fields(data, *inner):
            if n == 2 and w == 2:
                event_names[key] = _text(data, v, s)
            elif n == 5 and w == 2:
                stats.append((v, v + s))
        if stats:
            event_stats[key] = _stats(data, stats, stat_names)
    return XPlane(
        name=name, lines=tuple(_line(data, *span) for span in lines), event_names=event_names, event_stats=event_stats,
        stat_names=stat_names, stats=_stats(data, own, stat_names), data=data,
    )  # fmt: skip


def _map_entry(data: bytes, at: int, end: int) -> tuple[int, tuple[int, int]]:
    key, inner = 0, (at, at)
    for number, wire, value, size in _fields(data, at, end):
        if number == 1 and wire == 0:
            key = _signed(value)
        elif number == 2 and wire == 2:
            inner = (value, value + size)
    return key, inner


def _stats(data: bytes, spans: list[tuple[int, int]], names: Mapping[int, str]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for start, end in spans:
        key, value = 0, None
        for number, wire, v, s in _fields(data, start, end):
            if number == 1:
                key = _signed(v)
            elif number == _DOUBLE and wire == 1:
                value = struct.unpack("<d", struct.pack("<Q", v))[0]
            elif number == _UINT:
                value = v
            elif number == _INT:
                value = _signed(v)
            elif number == _STR:
                value = _text(data, v, s)
            elif number == _BYTES:
                value = data[v : v + s]
            elif number == _REF:
                value = names.get(v, "")
        out[names.get(key, str(key))] = value
    return out


def _line(data: bytes, at: int, end: int) -> XLine:
    """Decode a line: a scan for the spans of its events, then all events at once."""
    name = display = ""
    number = timestamp = 0
    starts: list[int] = []
    ends: list[int] = []
    add_start, add_end = starts.append, ends.append
    while at < end:
        if data[at] == 0x22:  # field 4, an event: the hot path
            size = data[at + 1] if at + 1 < end else 0x80
            if size < 0x80:
                at += 2
            else:
                size, at = _varint(data, at + 1, end)
            if at + size > end:
                raise _damaged(at, f"an event of {size} bytes runs past the end of its line")
            add_start(at)
            at += size
            add_end(at)
            continue
        key, value, size, at = _one_field(data, at, end)
        if key == 2:
            name = _text(data, value, size)
        elif key == 11:
            display = _text(data, value, size)
        elif key == 1:
            number = value
        elif key == 3:
            timestamp = _signed(value)
    raw = np.frombuffer(data, dtype=np.uint8)
    begin, stop = np.array(starts, dtype=np.int64), np.array(ends, dtype=np.int64)
    columns, subs = _decode(raw, begin, stop, {1: 0, 2: 0, 3: 0}, nested=4)
    stat = _decode_stats(raw, subs)
    offset, duration = columns[2], columns[3]
    return XLine(
        name=display or name, number=number, timestamp_ns=timestamp, metadata=columns[1],
        start_ns=timestamp + offset // 1000, end_ns=timestamp + (offset + duration) // 1000, **stat,
    )  # fmt: skip


def _one_field(data: bytes, at: int, end: int) -> tuple[int, int, int, int]:
    tag, after = _varint(data, at, end)
    number, wire = tag >> 3, tag & 7
    if wire == 0:
        value, after = _varint(data, after, end)
        return number, value, 0, after
    if wire == 2:
        size, after = _varint(data, after, end)
        if after + size > end:
            raise _damaged(after, f"a length of {size} bytes runs past the end")
        return number, after, size, after + size
    if wire in (1, 5):
        return number, 0, 0, after + (8 if wire == 1 else 4)
    raise _damaged(at, f"wire type {wire}")


def _varints(raw: npt.NDArray[np.uint8], at: Int64Array, end: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Decode one varint at each of `at`; returns values (bit pattern of uint64 as int64) and positions after them."""
    value = np.zeros(at.size, dtype=np.uint64)
    after = at.copy()
    active = np.arange(at.size)
    last = raw.size - 1
    for byte_number in range(10):
        position = after[active]
        if (position >= end[active]).any():
            raise _damaged(int(position.max()), "a number runs past the end of its event")
        byte = raw[np.minimum(position, last)]
        value[active] |= (byte & 0x7F).astype(np.uint64) << np.uint64(7 * byte_number)
        after[active] += 1
        active = active[byte >= 0x80]
        if not active.size:
            return value.view(np.int64), after
    raise _damaged(int(after[active[0]]), "a number has more than ten bytes")


_Subs = tuple[Int64Array, Int64Array, Int64Array]


def _decode(
    raw: npt.NDArray[np.uint8], at: Int64Array, end: Int64Array, defaults: Mapping[int, int], *, nested: int
) -> tuple[dict[int, Int64Array], _Subs]:
    """Decode the integer fields `defaults` of all messages; also return (owner, start, end) of submessages of field `nested`."""
    columns = {n: np.full(at.size, d, dtype=np.int64) for n, d in defaults.items()}
    owners: list[Int64Array] = []
    starts: list[Int64Array] = []
    ends: list[Int64Array] = []
    active = np.flatnonzero(at < end)
    position = at.copy()
    while active.size:
        tag, after = _varints(raw, position[active], end[active])
        number, wire = tag >> 3, tag & 7
        value, moved = _values(raw, wire, after, end[active])
        for n, column in columns.items():
            hit = (number == n) & (wire == 0)
            column[active[hit]] = value[hit]
        sub = (number == nested) & (wire == 2)
        if sub.any():
            owners.append(active[sub])
            starts.append(moved[sub] - value[sub])
            ends.append(moved[sub])
        position[active] = moved
        active = active[moved < end[active]]
    empty = np.zeros(0, dtype=np.int64)
    joined = [np.concatenate(p) if p else empty for p in (owners, starts, ends)]
    order = np.argsort(joined[0], kind="stable")
    return columns, (joined[0][order], joined[1][order], joined[2][order])


def _values(
    raw: npt.NDArray[np.uint8], wire: Int64Array, at: Int64Array, end: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Return the value of each field (length for text and messages, bits for fixed64) and the position after it."""
    value, moved = np.zeros(at.size, dtype=np.int64), at.copy()
    number = (wire == 0) | (wire == 2)
    if number.any():
        value[number], moved[number] = _varints(raw, at[number], end[number])
    text = wire == 2
    if (value[text] < 0).any():
        raise _damaged(int(at[text][0]), "a negative length")
    moved[text] += value[text]
    fixed = wire == 1
    if fixed.any():
        where = at[fixed]
        if (where + 8 > end[fixed]).any():
            raise _damaged(int(where[0]), "a number runs past the end of its event")
        value[fixed] = raw[where[:, None] + np.arange(8)].copy().view("<i8")[:, 0]
        moved[fixed] += 8
    moved[wire == 5] += 4
    if ((wire != 0) & (wire != 1) & (wire != 2) & (wire != 5)).any():
        raise _damaged(int(at[0]), "an unknown wire type inside an event")
    if (moved > end).any():
        raise _damaged(int(at[moved > end][0]), "a length runs past the end of its event")
    return value, moved


def _decode_stats(raw: npt.NDArray[np.uint8], subs: _Subs) -> dict[str, Int64Array]:
    owner, at, end = subs
    name = np.zeros(owner.size, dtype=np.int64)
    kind, value, size = (np.zeros(owner.size, dtype=np.int64) for _ in range(3))
    position = at.copy()
    active = np.flatnonzero(at < end)
    while active.size:
        tag, after = _varints(raw, position[active], end[active])
        number, wire = tag >> 3, tag & 7
        got, moved = _values(raw, wire, after, end[active])
        first = number == 1
        name[active[first]] = got[first]
        text = ~first & (wire == 2)
        kind[active[~first]] = number[~first]
        value[active[~first]] = got[~first]
        value[active[text]] = moved[text] - got[text]
        size[active[text]] = got[text]
        position[active] = moved
        active = active[moved < end[active]]
    return {"stat_event": owner, "stat_name": name, "stat_kind": kind, "stat_value": value, "stat_size": size}
