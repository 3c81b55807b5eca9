"""A drawing as Chrome trace JSON, which Perfetto and most other viewers open.

Source: Trace Event Format, Google, https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from mansard.core.document import TOOL_VERSION
from mansard.report.exports.tracks import CounterTrack, Drawing, Process, Thread

#: Bytes of text that are handed on at once, about [B].
_PIECE_BYTES = 1 << 20


def to_chrome(drawing: Drawing) -> Iterator[bytes]:
    """Yield the JSON document in pieces.

    Args:
        drawing: What is shown.
    """
    head = {
        "displayTimeUnit": "ns",
        "otherData": {"mansard": TOOL_VERSION, "origin_ns": str(drawing.origin_ns), "notes": list(drawing.notes),
                      "verdicts": {p.name: p.verdict for p in drawing.processes}},
    }  # fmt: skip
    parts, size = [json.dumps(head, allow_nan=False)[:-1] + ', "traceEvents": ['], 0
    comma = "\n"
    for process in drawing.processes:
        for event in _events(process):
            text = comma + json.dumps(event, allow_nan=False)
            comma = ",\n"
            parts.append(text)
            size += len(text)
            if size >= _PIECE_BYTES:
                yield "".join(parts).encode()
                parts, size = [], 0
    yield ("".join(parts) + "\n]}\n").encode()


def _events(process: Process) -> Iterator[dict[str, Any]]:
    yield from _names(process)
    for thread in process.threads:
        yield from _slices(process, thread)
    for counter in process.counters:
        yield from _samples(process.pid, counter)


def _us(ns: int) -> float:
    """Return microseconds, exact to the nanosecond."""
    return round(ns / 1000, 3)


def _names(process: Process) -> Iterator[dict[str, Any]]:
    def said(what: str, tid: int, **args: Any) -> dict[str, Any]:
        return {"ph": "M", "name": what, "pid": process.pid, "tid": tid, "ts": 0, "args": args}

    yield said("process_name", 0, name=process.name)
    yield said("process_sort_index", 0, sort_index=process.pid)
    for thread in process.threads:
        yield said("thread_name", thread.tid, name=thread.name)


def _slices(process: Process, thread: Thread) -> Iterator[dict[str, Any]]:
    columns = (thread.kind, thread.start_ns, thread.end_ns, thread.share_ratio)
    for i, start, end, share in zip(*(c.tolist() for c in columns), strict=True):
        kind = process.kinds[i]
        args: dict[str, Any] = dict(kind.about)
        if share == share:
            args["share_of_ceiling_ratio"] = float(f"{share:.6g}")
        yield {"ph": "X", "cat": kind.category, "name": kind.name, "pid": process.pid, "tid": thread.tid,
               "ts": _us(start), "dur": _us(end - start), "args": args}  # fmt: skip


def _samples(pid: int, track: CounterTrack) -> Iterator[dict[str, Any]]:
    for ns, value in zip(track.at_ns.tolist(), track.value.tolist(), strict=True):
        yield {"ph": "C", "name": track.name, "pid": pid, "ts": _us(ns), "args": {track.unit: float(f"{value:.6g}")}}
