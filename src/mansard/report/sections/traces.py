"""Sections of the `trace` documents: where the time of each device goes, kernels, marked regions, steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mansard.core.units import format_s
from mansard.report.sections.blocks import Chart, Facts, Section, Series, number, reason_of, words
from mansard.report.sections.plain import facts, prose, table, value_text

#: Which colour each stretch of device time has: the page's own for what it resembles.
_BUCKETS = {"compute_only": "compute", "compute_and_communication": "host", "communication_only": "network", "copy_only": "memory",
            "idle": "unattributed"}  # fmt: skip
_WORDS = {"copy_only": "copies alone", "compute_only": "kernels alone", "communication_only": "collectives alone (exposed)",
          "compute_and_communication": "kernels and collectives"}  # fmt: skip


def _small(document: Mapping[str, Any], name: str) -> str:
    return f"{name}: {document['format']}, {document['status']}"


def _notes(document: Mapping[str, Any]) -> list[Any]:
    lines = [f"{k}: {v}." for k, v in (document.get("definitions") or {}).items()]
    lines += [str(document[k]) for k in ("note", "about", "sums_over") if document.get(k)]
    found = prose(document)
    return [type(found)(lines=[*found.lines, *lines])]


def _buckets(devices: Sequence[Mapping[str, Any]]) -> list[Chart]:
    """Return what each device does over its span, as stretches that add up to it."""
    kinds = dict.fromkeys(k for d in devices for k in d.get("buckets") or ())
    series = [
        Series(
            name=_WORDS.get(kind, kind.replace("_", " ")), colour=_BUCKETS.get(kind, "undetermined"), mode="bars",
            x=[f"device {d['label']}" for d in devices], y=[float(d["buckets"].get(kind, 0.0)) for d in devices],
            text=[f"device {d['label']}: {_WORDS.get(kind, kind.replace('_', ' '))} {format_s(float(d['buckets'].get(kind, 0.0)))}" for d in devices],
        )
        for kind in kinds if any(d["buckets"].get(kind, 0.0) > 0 for d in devices)
    ]  # fmt: skip
    if not series:
        return []
    return [
        Chart(
            label="What each device does over the profile", x_title="time, s", y_title="", sideways=True, series=series
        )
    ]


def devices(document: Mapping[str, Any], *, key: str, name: str) -> Section:
    """Return `trace summary` or `trace overlap`: busy, idle and exposed time of each device, and the longest kernels."""
    found = list(document["devices"])
    columns = ("label", "name", "kernel_count", "streams", "gpu_span_s", "kernel_union_s", "busy_ratio", "gpu_busy_s", "gpu_idle_s",
               "exposed_communication_s")  # fmt: skip
    rows = [{**d, "label": f"device {d['label']}"} for d in found]
    blocks: list[Any] = [*_buckets(found), table("Devices", rows, columns)]
    for part, words_ in (("kinds", "Time by kind of work"), ("idle", "Time without a kernel, by cause")):
        split = [
            {"device": r["label"], **_seconds(d[part])}
            for r, d in zip(rows, found, strict=True)
            if isinstance(d.get(part), Mapping) and not reason_of(d[part])
        ]
        blocks += [table(words_, split)] if split else []
    if document.get("top_kernels"):
        blocks.append(_kernels("Longest kernels", document["top_kernels"]))
    if document.get("copies"):
        blocks.append(table("Copies", document["copies"]))
    for part in ("steps", "graphs", "launched"):
        if document.get(part):
            blocks.append(Facts(rows=[(f"{part}: {k}", v) for k, v in facts(document[part]).rows]))
    title = "Profile summary" if "top_kernels" in document else "What runs at once"
    return Section(key=key, title=title, small=_small(document, name), blocks=[*blocks, *_notes(document)])


def _seconds(part: Mapping[str, Any]) -> dict[str, Any]:
    return {k if k.endswith("_s") else f"{k}_s": v for k, v in part.items()}


def _kernels(label: str, rows: Sequence[Mapping[str, Any]]) -> Any:
    columns = (
        "short_name",
        "category",
        "calls",
        "total_s",
        "median_s",
        "min_s",
        "max_s",
        "flop",
        "bytes",
        "flop_per_s",
        "bytes_per_s",
        "launched",
    )
    return table(
        label, [{**r, "short_name": r.get("short_name") or r["name"]} for r in rows], columns, filter_by="category"
    )


def kernels(document: Mapping[str, Any], *, key: str, name: str) -> Section:
    """Return `trace kernels`: every kernel by name, and the time of each category."""
    categories = document["categories"]
    series = [
        Series(
            name="kernel time", colour="compute", mode="bars", x=list(categories), y=[float(c["total_s"]) for c in categories.values()],
            text=[f"{k}: {format_s(float(c['total_s']))} in {c['calls']} calls, {value_text('_share', c.get('share'))} of kernel time" for k, c in categories.items()],
        )
    ]  # fmt: skip
    blocks: list[Any] = []
    if categories:
        blocks.append(
            Chart(
                label="Kernel time by category",
                x_title="summed kernel time, s",
                y_title="",
                sideways=True,
                series=series,
            )
        )
    blocks.append(_kernels("Kernels", document["kernels"]))
    for part in ("operators", "collectives"):
        if document.get(part):
            blocks.append(table(part.capitalize(), document[part]))
    blocks.append(
        Facts(
            rows=[
                ("FLOP and bytes", value_text("", document.get("demand"))),
                ("rules for categories", str(document["rules"])),
            ]
        )
    )
    return Section(key=key, title="Kernels by name", small=_small(document, name), blocks=[*blocks, *_notes(document)])


def regions(document: Mapping[str, Any], *, key: str, name: str) -> Section:
    """Return `trace regions`: time of marked ranges on the host and on the device."""
    told = Facts(rows=[("kernels inside some range", f"{document['kernels_in_regions']} of {document['kernels']}")])
    return Section(
        key=key, title="Marked regions", small=_small(document, name), blocks=[table("Regions", document["regions"], filter_by="style"), told, *_notes(document)],
    )  # fmt: skip


def steps(document: Mapping[str, Any], *, key: str, name: str) -> Section:
    """Return `trace steps`: length of each step on the host, and how long kernels ran in it."""
    rows = list(document["steps"])
    union = dict.fromkeys(d for r in rows for d in r["kernel_union_s"])
    series = [
        Series(name="length on the host", colour="host", x=[r["step"] for r in rows], y=[r["length_s"] for r in rows],
               text=[f"step {r['step']}{' ' + str(r['name']) if r['name'] else ''}: {format_s(r['length_s'])}" for r in rows]),
        *(
            Series(name=f"kernels, device {d}", x=[r["step"] for r in rows], y=[r["kernel_union_s"].get(d, 0.0) for r in rows],
                   text=[f"step {r['step']}: kernels of device {d} ran {format_s(r['kernel_union_s'].get(d, 0.0))}" for r in rows])
            for d in list(union)[:8]
        ),
    ]  # fmt: skip
    more = [f"Drawn are the first 8 of {len(union)} devices."] if len(union) > 8 else []
    blocks: list[Any] = (
        [Chart(label="Length of each step", x_title="step", y_title="time, s", series=series, notes=more)]
        if rows
        else []
    )
    shown = [
        {
            **{k: v for k, v in r.items() if k != "kernel_union_s"},
            **{f"kernels_of_device_{d}_s": v for d, v in r["kernel_union_s"].items()},
        }
        for r in rows
    ]
    found = facts(
        document,
        (
            "steps_detected",
            "found_by",
            "name",
            "note",
            "confidence",
            "median_s",
            "p90_s",
            "first_s",
            "warm_up_steps",
            "steady_median_s",
        ),
    )
    return Section(
        key=key,
        title="Steps",
        small=_small(document, name),
        blocks=[found, *blocks, *([table("Steps", shown)] if rows else []), *_notes(document)],
    )


def headline(document: Mapping[str, Any]) -> str:
    """Return what a profile says in one sentence, by kind of document."""
    kind = str(document["schema"]).partition("/")[0]
    if kind in ("trace_summary", "trace_overlap"):
        told = words(
            f"device {d['label']} runs kernels for {value_text('busy_ratio', d['busy_ratio'])} of its span"
            for d in document["devices"] if number(d.get("busy_ratio")) is not None
        )  # fmt: skip
        return (
            f"{told[0].upper()}{told[1:]}." if told else "No kernels were recorded: busy and idle time are not known."
        )
    if kind == "trace_kernels":
        first = next(iter(document["categories"].items()), None)
        more = f"; most of it is {first[0]} ({value_text('_share', first[1].get('share'))})" if first else ""
        return f"{document['kernel_count']} kernels take {format_s(float(document['kernel_sum_s']))}{more}."
    if kind == "trace_steps":
        if number(document["median_s"]) is None:
            return f"No steps were found: {reason_of(document['median_s'])}."
        return f"{document['steps_detected']} steps, median {value_text('median_s', document['median_s'])}."
    return f"{len(document['regions'])} marked regions."
