"""Documents and text of `mansard trace streams`, `gaps` and `calls`: streams, idle gaps one by one, and calls of the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mansard.core.intervals import merge
from mansard.core.units import format_moment, format_ratio, format_s
from mansard.core.unknown import Unknown
from mansard.report.trace_document import head, no_kernel_findings
from mansard.report.trace_layout import table
from mansard.report.trace_names import apart, labels
from mansard.trace.gaps import Gap, Gaps
from mansard.trace.launch_times import CallRow, LaunchTimes, Spread, spread
from mansard.trace.run import Finding
from mansard.trace.streams import StreamTime
from mansard.trace.timeline import NONE, Kind, Timeline
from mansard.trace.window import origin_ns

Document = Mapping[str, Any]
_NAME = 48


def streams_document(
    timeline: Timeline, rows: Sequence[StreamTime], at_once: Mapping[int, Mapping[int, int]], shared_ns: Mapping[int, int]
) -> dict[str, Any]:  # fmt: skip
    """Return the document of `trace streams`.

    Args:
        timeline: The profile, or a window of it.
        rows: The streams.
        at_once: By device, how long each number of kernels ran at once [ns].
        shared_ns: By device, how long work of several streams ran at once [ns].
    """
    document = head("trace_streams/1", timeline, no_kernel_findings(timeline))
    zero = origin_ns(timeline)
    devices = [
        {
            "device": timeline.devices[d].number, "label": timeline.devices[d].shown,
            "streams_with_work": sum(r.device == d for r in rows),
            "streams_with_kernels": sum(r.device == d and r.kernels > 0 for r in rows),
            "most_kernels_at_once": max(depth, default=0),
            "kernels_at_once_s": {str(n): ns / 1e9 for n, ns in sorted(depth.items())},
            "several_streams_s": shared_ns[d] / 1e9,
        }
        for d, depth in at_once.items()
    ]  # fmt: skip
    return {**document, "devices": devices, "streams": [_stream(r, timeline, zero) for r in rows]}


def _stream(row: StreamTime, timeline: Timeline, zero: int) -> dict[str, Any]:
    return {
        "device": timeline.devices[row.device].shown, "stream": row.stream if row.stream != NONE else Unknown("not recorded"),
        "context": row.context if row.context != NONE else None,
        "process": timeline.processes[row.process].pid if 0 <= row.process < len(timeline.processes) else None,
        "kernel_count": row.kernels, "copies": row.copies, "fills": row.fills, "graphs": row.graphs,
        "kernel_sum_s": row.kernel_sum_ns / 1e9, "kernel_union_s": row.kernel_union_ns / 1e9, "busy_s": row.busy_ns / 1e9,
        "start_s": (row.start_ns - zero) / 1e9, "end_s": (row.end_ns - zero) / 1e9, "span_s": (row.end_ns - row.start_ns) / 1e9,
        "kernels_before_the_last_ended": row.overlaps,
    }  # fmt: skip


def streams_lines(document: Document, limit: int) -> list[str]:
    """Return the text of `trace streams`."""
    rows = [
        [f"GPU {r['device']} stream {_plain(r['stream'])}" + (f", process {r['process']}" if several else ""), str(r["kernel_count"]),
         format_s(r["kernel_sum_s"]), format_s(r["kernel_union_s"]), str(r["copies"]), format_s(r["busy_s"]), format_s(r["span_s"])]
        for several in [len({r["process"] for r in document["streams"]}) > 1]
        for r in document["streams"][:limit]
    ]  # fmt: skip
    titles = ["stream", "kernels", "sum", "union", "copies", "busy with copies", "span"]
    lines = [*_top(document), "", *table(titles, rows)]
    rest = len(document["streams"]) - limit
    lines += [f"  ... and {rest} more streams (--limit)"] if rest > 0 else []
    for d in document["devices"]:
        depth = ", ".join(f"{n}: {format_s(s)}" for n, s in list(d["kernels_at_once_s"].items())[:8])
        lines.append(
            f"  GPU {d['label']}: {d['streams_with_kernels']} {'stream' if d['streams_with_kernels'] == 1 else 'streams'} with kernels; kernels at once (time): {depth or 'none'}; "
            f"work of several streams at once {format_s(d['several_streams_s'])}"
        )
    return lines + _notes(document)


def gaps_document(timeline: Timeline, found: Sequence[Gaps], over_ns: int, *, all_work: bool) -> dict[str, Any]:
    """Return the document of `trace gaps`.

    Args:
        timeline: The profile, or a window of it.
        found: By device.
        over_ns: What was asked for [ns].
        all_work: Whether copies and fills end a gap.
    """
    zero = origin_ns(timeline)
    what = "kernels, copies and fills" if all_work else "kernels"
    return {
        **head("trace_gaps/1", timeline, no_kernel_findings(timeline)),
        "between": what,
        "over_s": over_ns / 1e9,
        "devices": [
            {
                "device": timeline.devices[g.device].number, "label": timeline.devices[g.device].shown, "count": g.count,
                "total_s": g.total_ns / 1e9, "count_over": g.longer, "total_over_s": g.longer_ns / 1e9,
                "gaps": [_gap(x, zero) for x in g.longest],
            }
            for g in found
        ],
        "definitions": {"gap": f"time strictly between {what} of one device; causes add up to it, as in trace summary"},
    }  # fmt: skip


def _gap(gap: Gap, zero: int) -> dict[str, Any]:
    return {
        "start_s": (gap.start_ns - zero) / 1e9, "end_s": (gap.end_ns - zero) / 1e9, "length_s": gap.length_ns / 1e9,
        "causes_s": {c: v / 1e9 for c, v in gap.causes_ns.items()}, "before": gap.before, "after": gap.after,
        "launched_from": gap.launched_from or None,
    }  # fmt: skip


def gaps_lines(document: Document) -> list[str]:
    """Return the text of `trace gaps`."""
    lines = _top(document)
    for d in document["devices"]:
        over = f"longer than {format_s(document['over_s'])}: " if document["over_s"] else ""
        lines += ["", f"GPU {d['label']}: {d['count']} gaps between {document['between']}, {format_s(d['total_s'])} in all"
                  + (f"; {over}{d['count_over']}, {format_s(d['total_over_s'])}" if over else "")]  # fmt: skip
        names = [apart(labels([g[k] for g in d["gaps"]]), _NAME) for k in ("before", "after")]
        rows = [
            [format_moment(g["start_s"]), format_s(g["length_s"]), _cause(g), before, after, g["launched_from"] or "-"]
            for g, before, after in zip(d["gaps"], *names, strict=True)
        ]
        titles = ["begins at", "length", "mostly", "after kernel", "before kernel", "launched from"]
        lines += table([titles[3], *titles[:3], *titles[4:]], [[r[3], *r[:3], *r[4:]] for r in rows])
    return lines + _notes(document)


def _cause(gap: Document) -> str:
    causes: Mapping[str, float] = gap["causes_s"]
    cause, seconds = max(causes.items(), key=lambda item: item[1])
    share = seconds / gap["length_s"] if gap["length_s"] else 0.0
    return cause.replace("_", " ") + (f" {format_ratio(share)}" if share < 0.995 else "")


def calls_document(
    timeline: Timeline,
    calls: Sequence[CallRow],
    waits: Sequence[CallRow],
    launches: Mapping[int, LaunchTimes],
    graphs: int,
) -> dict[str, Any]:
    """Return the document of `trace calls`.

    Args:
        timeline: The profile, or a window of it.
        calls: Calls of the runtime by name.
        waits: Waits of the host by kind.
        launches: Launches by device.
        graphs: Calls that launched a graph.
    """
    findings = []
    if not timeline.has(Kind.RUNTIME):
        text = f"calls of the runtime were not recorded ({timeline.why_absent(Kind.RUNTIME).reason}): launch and queue times are unknown"
        findings.append(Finding(code="no_calls", text=text))
    total = sum(r.times.total_ns for r in calls)
    return {
        **head("trace_calls/1", timeline, findings),
        "calls": [{**_call(r), "share_of_calls": r.times.total_ns / total if total else None} for r in calls],
        "call_count": sum(r.times.count for r in calls) if timeline.has(Kind.RUNTIME) else timeline.why_absent(Kind.RUNTIME),
        "call_sum_s": total / 1e9 if timeline.has(Kind.RUNTIME) else timeline.why_absent(Kind.RUNTIME),
        "waits": [_call(r) for r in waits],
        "graph_launches": graphs,
        "launches": [
            {
                "device": timeline.devices[d].number, "label": timeline.devices[d].shown, "launches": t.launches, "kernels": t.kernels,
                "kernels_without_call": t.without_call, "call": _spread(t.call), "latency": _spread(t.latency), "queue": _spread(t.queue),
                "kernels_before_return": t.early, "kernels_before_call": t.impossible,
            }
            for d, t in launches.items()
        ],
        "definitions": {
            "call": "length of the calls that launched kernels, on the host",
            "latency": "start of the call to start of its kernel; of a graph its first kernel",
            "queue": "end of the call to start of its kernel, where the kernel starts after the call has returned",
            "waits": "synchronisations as the profiler records them apart from calls; the same time may be in calls",
            "p95_s": "the value at rank ceil(0.95 n)",
        },
    }  # fmt: skip


def _call(row: CallRow) -> dict[str, Any]:
    return {"name": row.name, **(_spread(row.times)), "launching": row.launching}


def _spread(times: Spread | Unknown) -> Any:
    if isinstance(times, Unknown):
        return times
    return {
        "count": times.count, "total_s": times.total_ns / 1e9, "mean_s": times.mean_ns / 1e9, "median_s": times.median_ns / 1e9,
        "p95_s": times.p95_ns / 1e9, "p99_s": times.p99_ns / 1e9, "min_s": times.min_ns / 1e9, "max_s": times.max_ns / 1e9,
        "deviation_s": times.deviation_ns / 1e9,
    }  # fmt: skip


def calls_lines(document: Document, limit: int) -> list[str]:
    """Return the text of `trace calls`."""
    lines = _top(document)
    for title, key in (("call", "calls"), ("wait", "waits")):
        rows = document[key][:limit]
        names = apart([r["name"] for r in rows], _NAME)
        cells = [[name, str(r["count"]), *_figures(r)] for name, r in zip(names, rows, strict=True)]
        lines += ["", *table([title, "count", "total", "mean", "median", "p95", "max"], cells)] if cells else []
        rest = len(document[key]) - limit
        lines += [f"  ... and {rest} more names (--limit)"] if rest > 0 else []
    for d in document["launches"]:
        cells = [[f"GPU {d['label']} {word}", str(d[key]["count"]), *_figures(d[key])]
                 for word, key in (("launch call", "call"), ("call to start", "latency"), ("return to start", "queue"))
                 if "unknown" not in d[key]]  # fmt: skip
        lines += ["", *table(["launches", "count", "total", "mean", "median", "p95", "max"], cells)] if cells else []
        lines.append(f"  {d['kernels']} kernels by {d['launches']} calls"
                     + (f"; {d['kernels_before_return']} start before their call returns" if d["kernels_before_return"] else "")
                     + (f"; {d['kernels_without_call']} have no call in the file" if d["kernels_without_call"] else "")
                     + (f"; {d['kernels_before_call']} start before their call, by clocks that differ: left out"
                        if d["kernels_before_call"] else ""))  # fmt: skip
    if document["graph_launches"]:
        lines.append(f"  {document['graph_launches']} calls launched a graph; its first kernel counts")
    return lines + _notes(document)


def selected_kernels(timeline: Timeline) -> dict[str, Any]:
    """Return all kernels of a profile taken together: how their times are spread, and by device their sum and union [s].

    Args:
        timeline: A profile that holds the chosen kernels alone.
    """
    kernels = timeline.of(Kind.KERNEL)
    devices = {}
    for device in sorted(
        np.unique(kernels.device).tolist(), key=lambda d: timeline.devices[d].number if d >= 0 else -1
    ):
        mine = kernels.take(kernels.device == device)
        start, end = int(mine.start_ns.min()), int(mine.end_ns.max())
        devices[timeline.devices[device].shown if device >= 0 else "unknown"] = {
            "kernel_count": len(mine), "kernel_sum_s": int(mine.duration_ns.sum()) / 1e9,
            "kernel_union_s": merge(mine.start_ns, mine.end_ns).length_ns / 1e9, "span_s": (end - start) / 1e9,
        }  # fmt: skip
    return {"kernel_count": len(kernels), "times": _spread(spread(kernels.duration_ns)), "devices": devices}


def selected_lines(selected: Document) -> list[str]:
    """Return the text of the chosen kernels taken together."""
    rows = [[f"GPU {d}", str(v["kernel_count"]), *(format_s(v[k]) for k in ("kernel_sum_s", "kernel_union_s", "span_s"))]
            for d, v in selected["devices"].items()]  # fmt: skip
    lines = ["", *table(["these kernels together", "count", "sum", "union", "span"], rows)]
    t = selected["times"]
    if "unknown" in t:
        return lines
    words = ", ".join(f"{w} {format_s(t[k])}" for w, k in (("mean", "mean_s"), ("median", "median_s"), ("p95", "p95_s"), (
        "p99", "p99_s"), ("least", "min_s"), ("most", "max_s")))  # fmt: skip
    return [*lines, f"  one kernel: {words}"]


def _figures(row: Document) -> list[str]:
    return [format_s(row[k]) for k in ("total_s", "mean_s", "median_s", "p95_s", "max_s")]


def _plain(value: Any, form: Any = str) -> str:
    return "unknown" if isinstance(value, Mapping) else str(form(value))


def _top(document: Document) -> list[str]:
    state = "" if document["status"] == "complete" else f"  [{document['status']}]"
    return [f"{document['source']}: {document['version'] or document['format']}{state}"]


def _notes(document: Document) -> list[str]:
    return [f"  damaged: {d['text']}" for d in document["damage"]] + [
        f"  note: {f['text']}" for f in document["findings"]
    ]
