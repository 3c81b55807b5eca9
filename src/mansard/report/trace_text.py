"""The documents of `mansard trace` as text for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mansard.core.units import format_bytes, format_bytes_per_s, format_flop, format_flop_per_s, format_ratio, format_s
from mansard.report.trace_copies import copy_lines
from mansard.report.trace_host import selected_lines as selected_kernel_lines
from mansard.report.trace_launches import launches_lines, memory_lines
from mansard.report.trace_layout import table as table
from mansard.report.trace_metrics import metrics_lines
from mansard.report.trace_names import apart, labels
from mansard.report.trace_regions import occurrences_lines, selected_lines
from mansard.report.trace_speeds import speeds_lines

Document = Mapping[str, Any]
_NAME, _OPERATOR = 60, 72  # columns of a name where there is room


def shown(value: Any, form: Any) -> str:
    """Return a figure for reading; what is not known says so, what cannot be true too."""
    if isinstance(value, Mapping) and "unknown" in value:
        return "unknown"
    if isinstance(value, Mapping) and "implausible" in value:
        return f"implausible ({form(value['implausible'])})"
    return "-" if value is None else str(form(value))


def percent(ratio: float) -> str:
    """Return a utilisation with two decimals, as such figures are quoted.

    >>> percent(0.12852)
    '12.85 %'
    """
    return f"{100 * ratio:.2f} %"


def why(value: Any) -> str:
    """Return why a figure is not known, or nothing."""
    if isinstance(value, Mapping) and "unknown" in value:
        needs = f"; give {' or '.join(value['needs'])}" if value.get("needs") else ""
        return f"{value['unknown']}{needs}"
    if isinstance(value, Mapping) and "implausible" in value:
        return "above 1; suspects: " + "; ".join(value["suspects"])
    return ""


def _cut(text: str, width: int = 60) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."


def _top(document: Document) -> list[str]:
    state = "" if document["status"] == "complete" else f"  [{document['status']}]"
    return [f"{document['source']}: {document['version'] or document['format']}{state}"]


def notes(document: Document) -> list[str]:
    """Return damage and findings, one a line."""
    lines = [f"  damaged: {d['text']}" for d in document["damage"]]
    return lines + [f"  note: {f['text']}" for f in document["findings"]]


def summary_lines(document: Document) -> list[str]:
    """Return the text of `trace summary`."""
    lines = _top(document)
    gpus: dict[str, int] = {}
    for gpu in document["gpus"]:
        match = gpu.get("hardware") or {}
        name = "not named in the file" if isinstance(gpu["name"], Mapping) else gpu["name"]
        label = f"{name} ({match.get('matched') or 'product ' + match.get('status', 'unknown')})"
        gpus[label] = gpus.get(label, 0) + 1
    lines += [f"  {count} x GPU {label}" for label, count in gpus.items()]
    rows = []
    for d in document["devices"]:
        rows.append([
            f"GPU {d['label']}", str(d["kernel_count"]), shown(d["kernel_sum_s"], format_s), shown(d["busy_s"], format_s),
            shown(d["span_s"], format_s), shown(d["idle_s"], format_s), shown(d["busy_ratio"], format_ratio),
            format_s(d["gpu_busy_s"]), format_s(d["gpu_idle_s"]),
        ])  # fmt: skip
    head = ["device", "kernels", "sum", "busy", "span", "idle", "busy", "busy with copies", "idle with copies"]
    lines += ["", *table(head, rows)] if rows else []
    if rows:
        lines.append(
            "  busy: union of kernels; with copies: union of kernels, copies and fills; devices are never merged"
        )
    lines += _idle_lines(document["devices"]) + _kind_lines(document["devices"]) + copy_lines(document)
    lines += memory_lines(document["memory"]) + metrics_lines(document["metrics"])
    lines += _step_lines(document["steps"])
    lines += _kernel_lines(document["top_kernels"], "longest kernels, summed")
    return lines + ([""] if document["findings"] or document["damage"] else []) + notes(document)


def _idle_lines(devices: Sequence[Document]) -> list[str]:
    known = [d for d in devices if isinstance(d["idle"], Mapping) and "unknown" not in d["idle"] and d["idle_s"] > 0]
    if not known:
        return []
    head = ["idle by cause", *(c.replace("_", " ") for c in known[0]["idle"])]
    rows = [
        [f"GPU {d['label']}", *(f"{format_s(v)} ({format_ratio(v / d['idle_s'])})" for v in d["idle"].values())]
        for d in known
    ]
    return ["", *table(head, rows)]


def _kind_lines(devices: Sequence[Document]) -> list[str]:
    rows = []
    for d in devices:
        k = d["kinds"]
        rows.append([
            f"GPU {d['label']}", format_s(k["compute_s"]), format_s(k["unclassified_s"]), format_s(k["communication_s"]),
            format_s(d["overlap"]["communication_and_compute_s"]), format_s(d["exposed_communication_s"]), format_s(k["copy_s"]),
        ])  # fmt: skip
    head = ["union by kind", "compute", "unclassified", "communication", "overlapped", "exposed", "copies"]
    return ["", *table(head, rows)] if rows else []


def _step_lines(steps: Document) -> list[str]:
    if not steps["count"]:
        return ["", f"steps: none found: {steps['note']}"]
    return [
        "",
        f"steps: {steps['count']}, median {format_s(steps['median_s'])}, p90 {format_s(steps['p90_s'])}, first "
        f"{format_s(steps['first_s'])} ({steps['note']})",
    ]


def _kernel_lines(kernels: Sequence[Document], title: str) -> list[str]:
    names = apart(labels([k["name"] for k in kernels]), _NAME)
    rows = [
        [name, k["category"], str(k["calls"]), format_s(k["total_s"]), format_s(k["median_s"]),
         _cut(next(iter(k["operators"]), "-"), 36)]
        for name, k in zip(names, kernels, strict=True)
    ]  # fmt: skip
    return ["", *table([title, "category", "calls", "total", "median", "launched from"], rows)] if rows else []


def kernels_lines(document: Document, limit: int) -> list[str]:
    """Return the text of `trace kernels`."""
    lines = _top(document) + _kernel_lines(document["kernels"][:limit], "kernel")
    rest = len(document["kernels"]) - limit
    if rest > 0:
        lines.append(f"  ... and {rest} more names (--limit)")
    rows = [
        [c, str(v["calls"]), format_s(v["total_s"]), shown(v["share"], format_ratio)]
        for c, v in document["categories"].items()
    ]
    lines += ["", *table(["category", "calls", "total", f"share of {_whose_time(document)}"], rows)] if rows else []
    if "selected" in document:
        lines += selected_kernel_lines(document["selected"])
    if "speed_of_light" in document:
        lines += speeds_lines(document["speed_of_light"], limit)
    if "launches" in document:
        lines += launches_lines(document["launches"], limit)
    return lines + _work_lines(document, limit) + _collective_lines(document["collectives"][:limit]) + notes(document)


def _whose_time(document: Document) -> str:
    """Return what shares are of: with a choice of kernels it is their time, and not that of all."""
    return "the time of these kernels" if "selected" in document else "kernel time"


def _work_lines(document: Document, limit: int) -> list[str]:
    """Return operators with shapes and rates, and what of the kernel time they cover."""
    demand = document["demand"]
    if not demand["flop_from"] and not demand["bytes_from"]:
        return []
    operators = document["operators"][:limit]
    titles = apart([f"{w['operator']} {w['shapes']}" for w in operators], _OPERATOR)
    rows = [
        [title, str(w["calls"]), str(w["kernels"]), format_s(w["kernel_sum_s"]),
         shown(w["flop"], format_flop), shown(w["bytes"], format_bytes), shown(w["flop_per_s"], format_flop_per_s),
         shown(w["bytes_per_s"], format_bytes_per_s)]
        for title, w in zip(titles, operators, strict=True)
    ]  # fmt: skip
    head = ["operator", "calls", "kernels", "time", "FLOP", "bytes", "FLOP/s", "B/s"]
    if not rows:
        kernels = [k for k in document["kernels"][:limit] if "flop" in k]
        titles = apart(labels([k["name"] for k in kernels]), _OPERATOR)
        rows = [
            [title, str(k["calls"]), str(k["calls"]), format_s(k["total_s"]), shown(k["flop"], format_flop),
             shown(k["bytes"], format_bytes), shown(k["flop_per_s"], format_flop_per_s), shown(k["bytes_per_s"], format_bytes_per_s)]
            for title, k in zip(titles, kernels, strict=True)
        ]  # fmt: skip
        head[0] = "work of kernels"
    lines = ["", *table(head, rows)] if rows else []
    if "selected" in document and head[0] == "operator":
        lines.append(
            "  operators that launched these kernels, with all kernels that they launched: their work is that of all of them"
        )
    lines.append(f"  both FLOP and bytes are known for {percent(demand['coverage_ratio'])} of {_whose_time(document)}")
    said = dict.fromkeys((row["grade"], row["source"]) for row in [*demand["flop_from"], *demand["bytes_from"]])
    lines += [f"  {grade}: {source}" for grade, source in said]
    return lines + [
        f"    {percent(r['share_of_kernel_time'])} unknown: {_cut(r['reason'], 110)}" for r in demand["not_covered"][:6]
    ]


def _collective_lines(collectives: Sequence[Document]) -> list[str]:
    rows = [
        [f"{c['operation']}" + (f" over {c['group_size']}" if not isinstance(c["group_size"], Mapping) else ""), str(c["calls"]),
         shown(c["message_bytes"], format_bytes), format_s(c["total_s"]), format_s(c["min_s"]),
         shown(c["algbw_bytes_per_s"], format_bytes_per_s), shown(c["busbw_bytes_per_s"], format_bytes_per_s)]
        for c in collectives
    ]  # fmt: skip
    if not rows:
        return []
    head = ["collective", "calls", "message", "total", "shortest", "algbw", "busbw"]
    return ["", *table(head, rows), "  rates are of the shortest call: its kernel waits for the slowest peer"]


def regions_lines(document: Document, limit: int) -> list[str]:
    """Return the text of `trace regions`."""
    chosen = document["regions"][:limit]
    names = apart([r["region"] for r in chosen], _NAME)
    rows = [
        [name, str(r["instances"]), format_s(r["cpu_total_s"]), shown(r["with_device_work"], str), shown(r["projected_total_s"], format_s),
         shown(r["gpu_sum_s"], format_s), shown(r["gpu_ops"], str)]
        for name, r in zip(names, chosen, strict=True)
    ]  # fmt: skip
    head = ["region", "count", "CPU total", "with GPU work", "GPU projected", "GPU sum", "launches"]
    lines = [*_top(document), "", *table(head, rows)]
    if "selected" in document:
        lines += selected_lines(document["selected"])
    if "occurrences" in document:
        lines += occurrences_lines(document["occurrences"], limit)
    rest = len(document["regions"]) - limit
    if rest > 0:
        lines.append(f"  ... and {rest} more names (--limit)")
    if document["kernels"]:
        share = document["kernels_in_regions"] / document["kernels"]
        lines.append(
            f"  {document['kernels_in_regions']} of {document['kernels']} kernels ({format_ratio(share)}) lie in some region"
        )
    return [*lines, f"  {document['note']}", *notes(document)]


def steps_lines(document: Document) -> list[str]:
    """Return the text of `trace steps`."""
    lines = _top(document) + _step_lines({**document, "count": document["steps_detected"]})
    rows = [
        [str(s["step"]), _cut(s["name"] or "", 32), format_s(s["length_s"]), format_s(s["until_next_s"]),
         ", ".join(f"GPU {d} {format_s(v)}" for d, v in s["kernel_union_s"].items()) or "-"]
        for s in document["steps"][:40]
    ]  # fmt: skip
    lines += ["", *table(["step", "name", "length", "to next", "kernels busy"], rows)] if rows else []
    return [*lines, f"  {document['about']}", *notes(document)]


def overlap_lines(document: Document) -> list[str]:
    """Return the text of `trace overlap`."""
    lines = _top(document)
    for d in document["devices"]:
        kinds = list(d["overlap"]["matrix_s"])
        rows = [[a, *(format_s(d["overlap"]["matrix_s"][a][b]) for b in kinds)] for a in kinds]
        lines += ["", *table([f"GPU {d['label']}: both at once", *kinds], rows)]
        buckets = ", ".join(f"{k.replace('_', ' ')} {format_s(v)}" for k, v in d["buckets"].items())
        lines.append(f"  {buckets}; these add up to the span of {format_s(d['gpu_span_s'])}")
        lines.append(f"  exposed communication {format_s(d['exposed_communication_s'])}")
    return lines + notes(document)


def _work_of_region(document: Document) -> str:
    """Model FLOP; where those are not known and the executed ones are, both words, since the source counted the latter."""
    model, executed = document["flop"], document["executed_flop"]
    if isinstance(model, Mapping) and not isinstance(executed, Mapping) and executed is not None:
        return f"{format_flop(executed)} executed, model FLOP unknown"
    return shown(model, format_flop)


def _ends_later(document: Document) -> list[str]:
    """Say by how much device work outlasts its range: neither of the two spans then is the whole time from start to end."""
    if not document["device_ends_after_range_s"]:
        return []
    later = format_s(document["device_ends_after_range_s"])
    return [f"  start to last end  {format_s(document['until_last_end_s'])} (device work ends {later} after the range)"]


def mfu_lines(document: Document) -> list[str]:
    """Return the text of `trace mfu`."""
    d = document
    peak = d["peak"]
    scope = [f["text"] for f in d["findings"] if f["code"] in ("scope_of_flop", "recorded_flop_differ")]
    lines = [
        *_top(d),
        *(f"  {text}" for text in scope),
        f"{d['region']}, occurrence {d['occurrence']} of {d['occurrences']}: {d['kernel_count']} kernels on {d['devices']} "
        f"device{'s' if d['devices'] != 1 else ''}",
        f"  range on the host  {format_s(d['cpu_span_s'])}",
        f"  device span        {shown(d['device_span_s'], format_s)}",
        *_ends_later(d),
        f"  wall time used     {format_s(d['wall_time_s'])} ({d['wall_time_is']})",
        f"  kernels            sum {format_s(d['gpu_kernel_sum_s'])}, union {format_s(d['gpu_kernel_union_s'])} ({d['gpu_kernel_union_is']})",
        f"  work               {_work_of_region(d)}" + (f" ({d['flop_source']})" if d["flop_source"] else ""),
        f"  peak               {shown(d['peak_flop_per_s'], format_flop_per_s)}"
        + (f", {peak['kind']}, dense, {peak['source']}" if "value" in peak else f": {why(peak)}"),
        f"  achieved           {shown(d['achieved_flop_per_s'], format_flop_per_s)}",
        f"  MFU                {shown(d['mfu_ratio'], percent)}",
        f"  HFU                {shown(d['hfu_ratio'], percent)}",
        f"  kernel-union ratio {shown(d['kernel_union_ratio'], percent)} (a diagnostic, no MFU)",
    ]
    if not isinstance(d["tokens_per_s"], Mapping):
        lines.append(f"  tokens             {d['tokens_per_s']:.4g} token/s")
    for name in ("mfu_ratio", "hfu_ratio"):
        if why(d[name]):
            lines.append(f"  {name}: {why(d[name])}")
    if d["missing_before_quoting"]:
        lines += ["", "before this may be quoted as an MFU, state:"]
        lines += [f"  - {m}" for m in d["missing_before_quoting"]]
    return lines + notes(d)


def intensity_lines(document: Document) -> list[str]:
    """Return the text of `trace intensity`."""
    d = document
    per_byte = lambda x: f"{x:.4g} FLOP/B"  # noqa: E731
    lines = [
        *_top(d),
        f"GPU {d['device']}, {d['scope']}: {d['kernel_count']} kernels, union {format_s(d['gpu_kernel_union_s'])}",
        f"  work       {shown(d['flop'], format_flop)}, traffic {shown(d['bytes'], format_bytes)}",
        f"  intensity  {shown(d['flop_per_byte'], per_byte)}, ridge point {shown(d['ridge_flop_per_byte'], per_byte)}",
        f"  achieved   {shown(d['achieved_flop_per_s'], format_flop_per_s)} ({shown(d['compute_ratio'], format_ratio)} of the peak)",
        f"  bound      {d['bound']}" + (f", limiting ceiling {d['limiting_ceiling']}" if d["limiting_ceiling"] else ""),
        f"  share      {shown(d['share_of_ceiling'], format_ratio)} of that ceiling",
        f"  {d['reason']}",
    ]
    for word, key in (("FLOP", "flop_from"), ("bytes", "bytes_from")):
        lines += [f"  {word}: {row['grade']}, {row['source']}" for row in d[key]]
    if d["coverage_ratio"] is not None and d["coverage_ratio"] < 1:
        lines.append(f"  coverage: {percent(d['coverage_ratio'])} of kernel time has both; not covered:")
        lines += [f"    {percent(r['share_of_kernel_time'])}  {_cut(r['reason'], 110)}" for r in d["not_covered"]]
    for name in ("peak", "bandwidth"):
        row = d[name]
        lines.append(
            f"  {name}: {row['value']:.4g} {row['unit']}, {row['kind']}, {row['source']}"
            if "value" in row
            else f"  {name}: {why(row)}"
        )
    return lines + notes(d)
