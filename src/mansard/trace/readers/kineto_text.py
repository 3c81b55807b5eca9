"""Decode Kineto / Chrome trace JSON into events: strictly where the file is sound, event by event where it is damaged."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from mansard.core.errors import InputError

ABSENT = msgspec.Raw()


class Event(msgspec.Struct, gc=False):
    """One event; times and arguments are kept as their JSON text."""

    ph: Any = None
    cat: Any = None
    name: Any = None
    pid: Any = None
    tid: Any = None
    ts: msgspec.Raw = ABSENT
    dur: msgspec.Raw = ABSENT
    args: msgspec.Raw = ABSENT


class _Trace(msgspec.Struct, gc=False):
    traceEvents: list[Event]  # noqa: N815
    baseTimeNanoseconds: Any = None  # noqa: N815
    deviceProperties: Any = None  # noqa: N815
    distributedInfo: Any = None  # noqa: N815
    schemaVersion: Any = None  # noqa: N815


def bytes_of(path: Path, damage: list[str]) -> bytes:
    """Return the text of a file, unpacked if it is gzip by content.

    Raises:
        InputError: It cannot be opened.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise InputError(f"Cannot read {path}: {error.strerror}.", code="unreadable") from error
    if raw[:2] != b"\x1f\x8b":
        data = raw
    else:
        try:
            data = gzip.decompress(raw)
        except (OSError, EOFError, zlib.error):
            data = _decompress_what_is_there(raw)
            damage.append("the compressed file is cut short or damaged")
    return data[3:] if data[:3] == b"\xef\xbb\xbf" else data


def _decompress_what_is_there(raw: bytes) -> bytes:
    out = b""
    engine = zlib.decompressobj(wbits=31)
    try:
        for start in range(0, len(raw), 1 << 16):
            out += engine.decompress(raw[start : start + (1 << 16)])
    except zlib.error:
        pass
    return out


def decode(path: Path, data: bytes, damage: list[str]) -> tuple[Mapping[str, Any], list[Event]]:
    """Return what stands beside the events, and the events.

    Args:
        path: For messages.
        data: Text of the file.
        damage: What is wrong is appended in words.

    Raises:
        InputError: This is no trace.
    """
    kind: Any = list[Event] if data.lstrip()[:1] == b"[" else _Trace
    try:
        trace = msgspec.json.decode(data, type=kind)
        if isinstance(trace, list):
            return {}, trace
        head = {name: getattr(trace, name) for name in trace.__struct_fields__ if name != "traceEvents"}
        return head, trace.traceEvents
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        reason = str(error)
    return _salvage(path, data, damage, reason)


_HEAD_KEYS = ("baseTimeNanoseconds", "deviceProperties", "distributedInfo", "schemaVersion")
_ARRAY = re.compile(r'"traceEvents"\s*:\s*\[')
_BRACES = re.compile(r'"(?:[^"\\]|\\.)*"|[{}]', re.DOTALL)


def _salvage(path: Path, data: bytes, damage: list[str], reason: str) -> tuple[Mapping[str, Any], list[Event]]:
    """Read event by event what a strict parser refuses: cut off, NaN, bad escapes, bytes that are not UTF-8."""
    text = data.decode("utf-8", errors="replace")
    found = _ARRAY.search(text)
    start = found.end() if found else (text.index("[") + 1 if text.lstrip()[:1] == "[" else -1)
    if start < 0:
        raise InputError(
            f"{path} is not a Kineto or Chrome trace: it has no traceEvents ({reason}).",
            hint="Give the JSON file that torch.profiler's export_chrome_trace wrote.",
            code="not_a_trace",
        )
    damage.append(f"not valid JSON as it should be ({reason}); read event by event")
    if "\ufffd" in text and b"\xef\xbf\xbd" not in data:
        damage.append("some bytes are not UTF-8; they are shown as \ufffd")
    head = _salvage_head(text)
    events: list[Event] = []
    lost = 0
    for one in _objects(text, start):
        event = _salvaged_event(one)
        if event is None:
            lost += 1
        else:
            events.append(event)
    if lost:
        damage.append(f"{lost} events could not be read and are left out")
    if not events:
        raise InputError(f"{path} holds no readable event ({reason}).", code="not_a_trace")
    return head, events


def _salvage_head(text: str) -> dict[str, Any]:
    head: dict[str, Any] = {}
    decoder = json.JSONDecoder()
    for key in _HEAD_KEYS:
        found = re.search(rf'"{key}"\s*:\s*', text)
        if found:
            try:
                head[key] = decoder.raw_decode(text, found.end())[0]
            except ValueError:
                continue
    return head


def _objects(text: str, start: int) -> Iterator[str]:
    """Yield the text of each object of an array, whole or not, until the array ends."""
    depth, begin = 0, start
    for token in _BRACES.finditer(text, start):
        mark = token.group()
        if mark == "{":
            if depth == 0:
                if "]" in text[begin : token.start()]:
                    return
                begin = token.start()
            depth += 1
        elif mark == "}":
            depth -= 1
            if depth == 0:
                yield text[begin : token.end()]
                begin = token.end()
            elif depth < 0:
                return
    if depth > 0:
        yield text[begin:]


def _salvaged_event(text: str) -> Event | None:
    try:
        return msgspec.json.decode(text.encode(), type=Event)
    except (msgspec.MsgspecError, UnicodeEncodeError):
        pass
    try:
        loose = json.loads(text, strict=False, parse_constant=lambda _: None, parse_float=str)
    except ValueError:
        return None
    known = {k: v for k, v in loose.items() if k in Event.__struct_fields__} if isinstance(loose, dict) else {}
    if not known:
        return None
    return Event(**{k: raw_json(v) if k in ("ts", "dur", "args") else v for k, v in known.items()})


def raw_json(value: Any) -> msgspec.Raw:
    """Return a value as undecoded JSON."""
    return msgspec.Raw(json.dumps(value).encode())
