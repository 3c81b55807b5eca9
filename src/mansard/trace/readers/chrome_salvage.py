"""Read trace JSON that a strict parser refuses, one event at a time: cut off, NaN, bad escapes, bytes that are not UTF-8."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import msgspec

from mansard.trace.readers.chrome_damage import Tally
from mansard.trace.readers.kineto_text import Event, raw_json

#: Where one event ends and the next begins. Inside a JSON text a quote is escaped, so a brace followed by a quote and one of
#: these keys never stands in a sound text; inside nested objects it may.
BOUNDARY = re.compile(rb'\}\s*,\s*\{\s*"(?:ph|name|cat|pid|tid|ts|args|id|s|bp|dur)"\s*:')
ANY_BOUNDARY = re.compile(rb"\}\s*,\s*\{")  # for events that start with a key of their own; only decoding tells
_NOT_A_NUMBER = re.compile(
    rb"(?<=[:,\[])(\s*)[-+]?(?:[Nn]a[Nn]|[Ii]nf(?:inity)?|INF|1\.#(?:INF|IND|QNAN)\d*)(?=\s*[,}\]])"
)
_ESCAPE = re.compile(rb'\\(?:(["\\/bfnrt]|u[0-9a-fA-F]{4})|)')
_TRAILING = re.compile(rb",(\s*[}\]])")
_CONTROL = bytes(range(32))
_TO_SPACE = bytes.maketrans(_CONTROL, b" " * 32)
_MOST_JOINED = 8  # pieces of one event whose arguments hold objects that look like events

_HEAD_KEYS = ("baseTimeNanoseconds", "deviceProperties", "distributedInfo", "schemaVersion", "displayTimeUnit", "record_shapes",
              "with_stack", "cupti_version", "roctracer_version", "hip_runtime_version", "cuda_runtime_version")  # fmt: skip
_ONE = msgspec.json.Decoder(Event)
_LOOSE = json.JSONDecoder(strict=False, parse_constant=lambda _: None, parse_float=str)


def is_utf8(text: bytes) -> bool:
    """Return whether bytes are valid UTF-8."""
    if text.isascii():
        return True
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Found:
    """Events of a damaged text.

    Args:
        events: What could be read.
        closed_at: Position after the bracket that ends the array of events, -1 if it does not end here.
    """

    events: list[Event]
    closed_at: int


def events(text: bytes, tally: Tally, *, last: bool) -> Found:
    """Return the events of a text that starts at an event, and count what is wrong with it.

    Args:
        text: Text from the start of an event on.
        tally: Where damage is counted.
        last: Whether the file ends with this text.
    """
    starts = [0, *(m.end() - len(m.group().lstrip(b"} \r\n\t,")) for m in BOUNDARY.finditer(text))]
    ends = [*starts[1:], len(text)]
    out: list[Event] = []
    at = 0
    while at < len(starts):
        begin = starts[at]
        piece = text[begin : ends[at]]
        final = at + 1 == len(starts)
        event, used, closed = _event(piece, tally, tail=final)
        joined = at + 1
        if event is None and not closed and not final and _depth(piece) > 0:
            event, used, joined = _joined(text, starts, ends, at, tally)
        at = joined
        if event is not None:
            out.append(event)
        if closed or (event is not None and _closes(text, begin + used)):
            return Found(out, text.index(b"]", begin + used) + 1 if not closed else begin + used)
        if event is None:
            final = at == len(starts)
            if not (final and last and _depth(piece) > 0):  # the last one may be cut off with the file
                tally.add("unreadable_events", 1 if piece.strip(b"{}[], \r\n\t") else 0)
    return Found(out, -1)


def _joined(text: bytes, starts: list[int], ends: list[int], at: int, tally: Tally) -> tuple[Event | None, int, int]:
    for more in range(at + 1, min(at + _MOST_JOINED, len(starts))):
        piece = text[starts[at] : ends[more]]
        if _object_end(piece.lstrip(b" \r\n\t,")) > 0:
            event, used, _ = _event(piece, tally, tail=more + 1 == len(starts))
            if event is not None:
                return event, used, more + 1
    return None, 0, at + 1


def _closes(text: bytes, at: int) -> bool:
    rest = text[at : at + 4096].lstrip(b" \r\n\t,")
    return rest[:1] == b"]" or bool(re.match(rb"\{\s*\}\s*,?\s*\]", rest))


def _event(piece: bytes, tally: Tally, *, tail: bool) -> tuple[Event | None, int, bool]:
    """Return one event, where it ends in the piece, and whether the array ended before it with nothing in between."""
    stripped = piece.lstrip(b" \r\n\t,")
    offset = len(piece) - len(stripped)
    if stripped[:1] == b"]":
        return None, offset + 1, True
    if not stripped.startswith(b"{"):
        return None, offset, False
    empty = re.match(rb"\{\s*\}", stripped)
    if empty:
        tally.add("empty_events", 1)
        inner, used, closed = _event(stripped[empty.end() :], tally, tail=tail)
        return inner, offset + empty.end() + used, closed
    end = _object_end(stripped)
    body = stripped[:end] if end > 0 else stripped.rstrip(b" \r\n\t,")
    event = _strict(body) if is_utf8(body) else None
    if event is None:
        event = _repaired(body, tally)
    return event, offset + (end if end > 0 else len(body)), False


_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}]', re.DOTALL)


def _object_end(text: bytes) -> int:
    """Return the position after the object that `text` starts with, -1 if it does not end."""
    depth = 0
    for token in _TOKEN.finditer(text):
        mark = token.group()
        if mark == b"{":
            depth += 1
        elif mark == b"}":
            depth -= 1
            if depth == 0:
                return token.end()
    return -1


def _depth(text: bytes) -> int:
    depth = 0
    for token in _TOKEN.finditer(text):
        mark = token.group()
        depth += (mark == b"{") - (mark == b"}")
    return depth


def _strict(text: bytes) -> Event | None:
    try:
        return _ONE.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _repaired(text: bytes, tally: Tally) -> Event | None:
    """Return the event after the repairs it needs; only repairs that made it readable are counted."""
    counts: dict[str, int] = {}
    if not is_utf8(text):
        text = text.decode("utf-8", "replace").encode()
        counts["bad_utf8"] = 1
    fixed, numbers = _NOT_A_NUMBER.subn(rb"\1null", text)
    counts["not_a_number"] = numbers
    bad = 0

    def escape(found: re.Match[bytes]) -> bytes:
        nonlocal bad
        if found.group(1) is not None:
            return found.group()
        bad += 1
        return b"\\\\"

    fixed = _ESCAPE.sub(escape, fixed)
    counts["bad_escape"] = bad
    event = _strict(fixed)
    if event is None:
        fixed, counts["trailing_comma"] = _TRAILING.subn(rb"\1", fixed)
        event = _strict(fixed)
    if event is None:
        spaced = fixed.translate(_TO_SPACE)
        if spaced != fixed:
            counts["control_character"] = 1
            event = _strict(spaced)
            fixed = spaced
    if event is None:
        event = _loose(fixed)
    if event is not None:
        for code, count in counts.items():
            tally.add(code, count)
    return event


def _loose(text: bytes) -> Event | None:
    try:
        value = _LOOSE.decode(text.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    known = {k: v for k, v in value.items() if k in Event.__struct_fields__} if isinstance(value, dict) else {}
    if not known:
        return None
    return Event(**{k: raw_json(v) if k in ("ts", "dur", "args") else v for k, v in known.items()})


def head(text: str) -> dict[str, Any]:
    """Return the keys beside the events that can still be read."""
    found: dict[str, Any] = {}
    for key in _HEAD_KEYS:
        place = re.search(rf'"{key}"\s*:\s*', text)
        if place:
            try:
                found[key] = json.JSONDecoder().raw_decode(text, place.end())[0]
            except (ValueError, RecursionError):
                continue
    return found
