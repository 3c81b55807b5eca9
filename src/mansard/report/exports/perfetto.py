"""A drawing as a Perfetto trace in its own protobuf format, written with the classes of the `perfetto` package.

A trace is a row of packets. Slices are pairs of begin and end in nanoseconds; their names and receipts are written once (interned)
and referred to by number. All packets of a process are one sequence, which its numbers belong to. Threads have numbers of their own
in the whole trace, never 0: Perfetto takes thread 0 for the idle thread of the system.
Source: TrackEvent, Perfetto, https://perfetto.dev/docs/reference/synthetic-track-event
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from typing import Any

from mansard.core.document import TOOL_VERSION
from mansard.core.errors import InputError
from mansard.report.exports.tracks import CounterTrack, Drawing, Kind, Process, Thread
from mansard.report.frames import needs

#: Bytes that are handed on at once, about [B].
_PIECE_BYTES = 1 << 20
_SHARE = "share_of_ceiling_ratio"


def writer() -> Callable[[Drawing], Iterator[bytes]]:
    """Return what writes a drawing, in pieces that follow each other in a file.

    Raises:
        InputError: the `perfetto` package is missing or cannot be loaded; known before anything is read.
    """
    return partial(_pieces, schema=_schema())


def _schema() -> Any:
    try:
        from perfetto.protos.perfetto.trace import perfetto_trace_pb2
    except ImportError as error:
        if error.name == "perfetto":
            raise needs("perfetto", "perfetto") from None
        raise _broken(error) from None
    except Exception as error:  # protobuf refuses classes that are newer than itself, with an error of its own
        raise _broken(error) from None
    return perfetto_trace_pb2


def _broken(error: Exception) -> InputError:
    return InputError(
        f"the package perfetto cannot be loaded: {error}",
        hint="pip install --upgrade 'mansard[perfetto]'",
        code="missing_package",
    )


def _pieces(drawing: Drawing, *, schema: Any) -> Iterator[bytes]:
    uuids, tids = count(1), count(len(drawing.processes) + 1)
    piece = bytearray()
    for i, process in enumerate(drawing.processes):
        writer = _Writer(process, schema, uuids, tids)
        for packet in writer.packets(drawing if i == 0 else None):
            raw = packet.SerializeToString()
            piece += _PACKET + _varint(len(raw))
            piece += raw
            if len(piece) >= _PIECE_BYTES:
                yield bytes(piece)
                piece.clear()
    yield bytes(piece)


#: A packet is field 1 of a trace, bytes with their length before them.
_PACKET = b"\x0a"


def _varint(number: int) -> bytes:
    """Return a count as protobuf writes it: seven bits a byte, the lowest first.

    >>> _varint(300).hex()  # 300 = 2 * 128 + 44
    'ac02'
    """
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


class _Writer:
    """The packets of one process. A packet that is yielded is used again for the next of its kind."""

    def __init__(self, process: Process, schema: Any, uuids: Iterator[int], tids: Iterator[int]) -> None:
        self.process, self.pb, self.uuids, self.tids = process, schema, uuids, tids
        self.uuid = next(uuids)
        self.numbers: dict[tuple[str, str], int] = {}
        self.begins: dict[tuple[int, bool], tuple[Any, Any]] = {}
        self.groups: dict[str, int] = {}

    def packets(self, drawing: Drawing | None) -> Iterator[Any]:
        """Yield the packets.

        Args:
            drawing: The whole, for the facts about the trace; None where another process has said them.
        """
        yield self._first()
        if drawing is not None:
            yield self._about(drawing)
        for rank, thread in enumerate(self.process.threads):
            yield from self._thread(thread, rank)
        for rank, counter in enumerate(self.process.counters, len(self.process.threads)):
            if counter.group and counter.group not in self.groups:
                yield self._group(counter.group, rank)
            yield from self._counter(counter, rank)

    def _packet(self) -> Any:
        return self.pb.TracePacket(trusted_packet_sequence_id=self.process.pid)

    def _first(self) -> Any:
        packet = self._packet()
        packet.first_packet_on_sequence = True
        packet.sequence_flags = self.pb.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
        track = packet.track_descriptor
        track.uuid, track.description = self.uuid, self.process.verdict
        track.child_ordering = self.pb.TrackDescriptor.EXPLICIT
        track.process.pid, track.process.process_name = self.process.pid, self.process.name
        track.process.legacy_sort_index = self.process.pid
        return packet

    def _about(self, drawing: Drawing) -> Any:
        packet = self._packet()
        facts = [("mansard", TOOL_VERSION), ("origin_ns", str(drawing.origin_ns))]
        facts += [(f"verdict: {p.name}", p.verdict) for p in drawing.processes]
        facts += [(f"note {i}", note) for i, note in enumerate(drawing.notes, 1)]
        for key, text in facts:
            packet.trace_attributes.attribute.add(key=key, string_value=text)
        return packet

    def _child(self, rank: int) -> tuple[Any, int]:
        packet, uuid = self._packet(), next(self.uuids)
        track = packet.track_descriptor
        track.uuid, track.parent_uuid, track.sibling_order_rank = uuid, self.uuid, rank
        return packet, uuid

    def _thread(self, thread: Thread, rank: int) -> Iterator[Any]:
        packet, uuid = self._child(rank)
        about = packet.track_descriptor.thread
        about.pid, about.tid, about.thread_name = self.process.pid, next(self.tids), thread.name
        about.legacy_sort_index = rank
        yield packet
        finish = self._packet()
        finish.track_event.type, finish.track_event.track_uuid = self.pb.TrackEvent.TYPE_SLICE_END, uuid
        open_: list[int] = []
        columns = (thread.kind, thread.start_ns, thread.end_ns, thread.share_ratio)
        for i, start, end, share in zip(*(c.tolist() for c in columns), strict=True):
            while open_ and open_[-1] <= start:
                finish.timestamp = open_.pop()
                yield finish
            known = share == share
            if (i, known) not in self.begins:
                yield from self._kind(i, known)
            begin, annotation = self.begins[i, known]
            begin.timestamp = start
            begin.track_event.track_uuid = uuid
            if known:
                annotation.double_value = share
            yield begin
            open_.append(end)
        while open_:
            finish.timestamp = open_.pop()
            yield finish

    def _kind(self, i: int, known: bool) -> Iterator[Any]:
        """Yield the texts that a kind of slice is the first to use, and keep how it begins."""
        kind: Kind = self.process.kinds[i]
        texts, begin = self._packet(), self._packet()
        texts.sequence_flags = begin.sequence_flags = self.pb.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
        event, data = begin.track_event, texts.interned_data
        event.type = self.pb.TrackEvent.TYPE_SLICE_BEGIN
        event.name_iid = self._number(data, "event_names", kind.name)
        event.category_iids.append(self._number(data, "event_categories", kind.category))
        for name, text in kind.about.items():
            event.debug_annotations.add(
                name_iid=self._number(data, "debug_annotation_names", name),
                string_value_iid=self._number(data, "debug_annotation_string_values", text),
            )
        annotation = None
        if known:
            annotation = event.debug_annotations.add(name_iid=self._number(data, "debug_annotation_names", _SHARE))
        self.begins[i, known] = begin, annotation
        if data.ByteSize():
            yield texts

    def _number(self, data: Any, table: str, text: str) -> int:
        """Return the number of a text in a table of the sequence; a new one is added to `data`."""
        number = self.numbers.get((table, text))
        if number is None:
            number = self.numbers[table, text] = len(self.numbers) + 1
            entry = getattr(data, table).add(iid=number)
            if table == "debug_annotation_string_values":
                entry.str = text.encode()
            else:
                entry.name = text
        return number

    def _group(self, name: str, rank: int) -> Any:
        """Return the track that others hang below: viewers show it folded, as one row."""
        packet, self.groups[name] = self._child(rank)
        packet.track_descriptor.name = name
        packet.track_descriptor.child_ordering = self.pb.TrackDescriptor.EXPLICIT
        return packet

    def _counter(self, track: CounterTrack, rank: int) -> Iterator[Any]:
        packet, uuid = self._child(rank)
        packet.track_descriptor.parent_uuid = self.groups.get(track.group, self.uuid)
        packet.track_descriptor.name = track.name
        packet.track_descriptor.counter.unit_name = track.unit
        yield packet
        sample = self._packet()
        event = sample.track_event
        event.type, event.track_uuid = self.pb.TrackEvent.TYPE_COUNTER, uuid
        for ns, value in zip(track.at_ns.tolist(), track.value.tolist(), strict=True):
            sample.timestamp = ns
            event.double_counter_value = value
            yield sample
