"""Kineto / Chrome trace JSON of any size as batches of decoded events, holding one block of text at a time.

The text is cut where one event ends and the next begins. A cut is only a guess until the piece before it decodes as a list of
events: since JSON is read from the left, a piece that does is cut at an event. What does not decode goes to `chrome_salvage`.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from mansard.core.errors import InputError
from mansard.trace.readers import chrome_salvage as salvage
from mansard.trace.readers.chrome_damage import Tally
from mansard.trace.readers.kineto_text import Event

BLOCK_BYTES = 8 << 20
_MOST_HEAD_BYTES = 256 << 20
_WINDOW = 1 << 18  # where, at the end of a block, a cut is looked for
_TRIES = 4
_END = re.compile(rb"\}\s*\](?=\s*(?:[,}]|$))")
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_HINT = "give the JSON file that torch.profiler's export_chrome_trace, or the JAX profiler, wrote"

Progress = Callable[[str, float], None]


def _not_a_trace(path: Path, why: str) -> InputError:
    return InputError(f"{path} is not a Kineto or Chrome trace: {why}", hint=_HINT, code="not_a_trace")


class Stream:
    """The events of one file.

    Args:
        path: A JSON file, gzip or not by content.
        tally: What is damaged is counted here.
        progress: Called with the share of the file that is read.

    After iterating, `head` holds what stands beside the events.
    """

    def __init__(self, path: Path, tally: Tally, progress: Progress | None = None) -> None:
        self.path, self.tally, self.progress = path, tally, progress
        self.head: dict[str, Any] = {}
        self.bare_list = False
        self.share = 0.0  # of the file that is read
        self._decoder = msgspec.json.Decoder(list[Event])

    def __iter__(self) -> Iterator[list[Event]]:
        """Yield the events in batches, in the order of the file."""
        blocks = _blocks(self.path, self.tally, self._at)
        text = self._start(blocks)
        for block in blocks:
            text = text + block if text else block
            while len(text) >= BLOCK_BYTES:
                events, text, closed = self._piece(text)
                yield events
                if closed:
                    self._tail(text + b"".join(blocks))
                    return
                if not events:
                    break  # one event longer than a block: take more text
        yield from self._rest(text)

    def _at(self, what: str, share: float) -> None:
        self.share = share
        if self.progress is not None:
            self.progress(what, share)

    def _start(self, blocks: Iterator[bytes]) -> bytes:
        """Read up to the first event; return the text from there on."""
        text = b""
        for block in blocks:
            seen = max(len(text) - 64, 0)
            text += block
            if not text[:4].strip(b"\xef\xbb\xbf"):
                continue
            if not seen:
                text = self._without_mark(text)
            if text.lstrip()[:1] == b"[":
                self.bare_list = True
                return text.lstrip()[1:]
            found = _EVENTS.search(text, seen)
            if found:
                self._head_of(text[: found.start()])
                return text[found.end() :]
            if len(text) > _MOST_HEAD_BYTES:
                break
        raise _not_a_trace(self.path, self._what_instead(text))

    def _without_mark(self, text: bytes) -> bytes:
        if text[:3] == b"\xef\xbb\xbf":
            self.tally.add("byte_order_mark", 1)
            return text[3:]
        return text

    def _what_instead(self, text: bytes) -> str:
        if not text.strip():
            return "it is empty" if not self.tally.has("truncated") else "nothing of it could be unpacked"
        if b'"nodes"' in text and b'"schema"' in text[:4096]:
            return "it is a PyTorch execution trace (`nodes`), which has no times of kernels"
        return "it has no traceEvents"

    def _head_of(self, text: bytes) -> None:
        self._beside(text.rstrip().rstrip(b",") + b"}", text)

    def _tail(self, text: bytes) -> None:
        """Read what follows the array of events."""
        rest = text.strip()
        if self.bare_list:
            if rest:
                self.tally.add("text_after_end", 1)
            return
        if not rest.endswith(b"}"):
            self.tally.add("truncated_after_events", 1)
        self._beside(b"{" + rest.lstrip(b", \r\n\t"), rest)

    def _beside(self, whole: bytes, text: bytes) -> None:
        try:
            pairs = json.loads(whole.decode("utf-8", "replace"), object_pairs_hook=_Pairs, strict=False)
        except (ValueError, RecursionError):
            found = salvage.head(text.decode("utf-8", "replace"))
            if found or text.strip(b"{}, \r\n\t"):
                self.tally.add("damaged_metadata", 1)
            self.head.update(found)
            return
        if not isinstance(pairs, _Pairs):
            return
        names = [key for key, _ in pairs.items]
        repeated = len(names) - len(set(names)) + sum(1 for n in set(names) if n in self.head)
        if repeated:
            self.tally.add("duplicate_keys", repeated)
        self.head.update({key: _plain(value) for key, value in pairs.items})

    def _piece(self, text: bytes) -> tuple[list[Event], bytes, bool]:
        """Decode as much of `text` as ends at an event; return events, the remaining text, and whether the array ended."""
        window = max(len(text) - _WINDOW, 0)
        cuts = [m.start() + 1 for m in salvage.BOUNDARY.finditer(text, window)]
        guesses = cuts or [m.start() + 1 for m in salvage.ANY_BOUNDARY.finditer(text, window)]
        for cut in reversed(guesses[-_TRIES:]):
            events = self._decoded(text[:cut])
            if events is not None:
                return events, text[cut:].lstrip().removeprefix(b","), False
        if not cuts:
            cuts = [m.start() + 1 for m in salvage.BOUNDARY.finditer(text)]
        if not cuts:
            return [], text, False
        found = salvage.events(text[: cuts[-1]], self.tally, last=False)
        if found.closed_at >= 0:
            return found.events, text[found.closed_at :], True
        return found.events, text[cuts[-1] :].lstrip().removeprefix(b","), False

    def _decoded(self, piece: bytes) -> list[Event] | None:
        if not salvage.is_utf8(piece):
            return None
        try:
            return self._decoder.decode(b"[" + piece + b"]")
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None

    def _rest(self, text: bytes) -> Iterator[list[Event]]:
        """Decode the last events, and find where the array ends."""
        for end in _array_ends(text):
            events = self._decoded(text[:end])
            if events is not None:
                yield events
                self._tail(text[end + 1 :])
                return
        found = salvage.events(text, self.tally, last=True)
        yield found.events
        if found.closed_at >= 0:
            self._tail(text[found.closed_at :])
        else:
            self.tally.add("truncated", 1)


class _Pairs:
    """A JSON object that keeps repeated keys."""

    def __init__(self, items: list[tuple[str, Any]]) -> None:
        self.items = items


def _plain(value: Any) -> Any:
    if isinstance(value, _Pairs):
        return {key: _plain(inner) for key, inner in value.items}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return value


def _array_ends(text: bytes) -> Iterator[int]:
    """Yield where the array of events may end, the likeliest first; decoding the text before it is the proof."""
    if text.lstrip()[:1] == b"]":
        yield len(text) - len(text.lstrip())
        return
    for found in islice(_END.finditer(text, max(text.rfind(b'"ph"'), 0)), _TRIES):
        yield found.end() - 1


def _blocks(path: Path, tally: Tally, progress: Progress | None) -> Iterator[bytes]:
    """Yield the text of a file in blocks, unpacked where it is gzip by content."""
    try:
        size = max(path.stat().st_size, 1)
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            engine = zlib.decompressobj(wbits=31) if packed else None
            while raw := file.read(BLOCK_BYTES if engine is None else BLOCK_BYTES // 8):
                if progress is not None:
                    progress(path.name, file.tell() / size)
                if engine is None:
                    yield raw
                    continue
                try:
                    out, engine = _unpacked(engine, raw)
                except zlib.error:
                    tally.add("truncated", 1)
                    return
                if out:
                    yield out
            if engine is not None and not engine.eof:
                tally.add("truncated", 1)
    except OSError as error:
        raise InputError(
            f"cannot read {path}: {error.strerror or error}", hint="check the path", code="unreadable"
        ) from None


def _unpacked(engine: Any, raw: bytes) -> tuple[bytes, Any]:
    """Unpack one block; a gzip file may hold several members one after the other."""
    parts = [engine.decompress(raw)]
    while engine.eof and engine.unused_data:
        rest = engine.unused_data
        if rest[:2] != b"\x1f\x8b":
            break  # padding after the last member
        engine = zlib.decompressobj(wbits=31)
        parts.append(engine.decompress(rest))
    return b"".join(parts), engine


def looks_like_head(head: Mapping[str, Any]) -> bool:
    """Return whether the keys beside the events are those Kineto writes."""
    return any(k in head for k in ("schemaVersion", "deviceProperties", "distributedInfo", "baseTimeNanoseconds"))
