"""Ranges one by one, and a choice of ranges taken together: parts of the document of `mansard trace regions`, and their text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mansard.core.units import format_moment, format_s
from mansard.report.trace_layout import table
from mansard.report.trace_names import apart
from mansard.trace.occurrences import busy_by_device, kernels_of, occurrences
from mansard.trace.regions import Ranges
from mansard.trace.window import origin_ns

Document = Mapping[str, Any]
_NAME = 40


def selected_document(ranges: Ranges, rows: Sequence[int]) -> dict[str, Any]:
    """Return what the chosen ranges launched, taken together: work of several of them, or of nested ones, counts once.

    Args:
        ranges: All ranges.
        rows: The chosen ones.
    """
    timeline = ranges.timeline
    kernels = kernels_of(ranges, rows)
    length = ranges.launches.work.duration_ns[kernels]
    return {
        "ranges": len(rows),
        "cpu_total_s": int(ranges.table.duration_ns[list(rows)].sum()) / 1e9,
        "kernel_count": int(kernels.size),
        "kernel_sum_s": int(length.sum()) / 1e9,
        "kernel_union_s": {timeline.devices[d].shown: s.length_ns / 1e9 for d, s in busy_by_device(ranges, kernels).items()},
    }  # fmt: skip


def occurrences_document(ranges: Ranges, rows: Sequence[int]) -> list[dict[str, Any]]:
    """Return the chosen ranges one by one.

    Args:
        ranges: All ranges.
        rows: The chosen ones, by start.
    """
    timeline, zero = ranges.timeline, origin_ns(ranges.timeline)
    return [
        {
            "region": o.name, "occurrence": o.number, "process": o.process, "thread": o.thread,
            "start_s": (o.start_ns - zero) / 1e9, "cpu_s": (o.end_ns - o.start_ns) / 1e9, "gpu_ops": o.ops,
            "kernel_count": o.kernels, "projected_s": (o.device_end_ns - o.device_start_ns) / 1e9, "gpu_sum_s": o.work_sum_ns / 1e9,
            "device_start_s": (o.device_start_ns - zero) / 1e9 if o.ops else None,
            "device_end_s": (o.device_end_ns - zero) / 1e9 if o.ops else None,
            "kernel_union_s": {timeline.devices[d].shown: ns / 1e9 for d, ns in o.kernel_union_ns.items()},
        }
        for o in occurrences(ranges, rows)
    ]  # fmt: skip


def selected_lines(selected: Document) -> list[str]:
    """Return the text of a choice of ranges."""
    union = ", ".join(f"GPU {d} {format_s(s)}" for d, s in selected["kernel_union_s"].items()) or "none"
    return [
        f"  these {selected['ranges']} ranges together: {selected['kernel_count']} kernels, sum {format_s(selected['kernel_sum_s'])}, "
        f"union {union}; work of nested ranges counts once"
    ]


def occurrences_lines(rows: Sequence[Document], limit: int) -> list[str]:
    """Return the text of ranges one by one."""
    names = apart([r["region"] for r in rows[:limit]], _NAME)
    cells = [
        [f"{r['occurrence']}: {name}", "-" if r["thread"] is None else str(r["thread"]), format_moment(r["start_s"]), format_s(r["cpu_s"]),
         str(r["kernel_count"]), format_s(r["projected_s"]), ", ".join(f"GPU {d} {format_s(s)}" for d, s in r["kernel_union_s"].items()) or "-"]
        for name, r in zip(names, rows, strict=False)
    ]  # fmt: skip
    lines = [
        "",
        *table(["occurrence", "thread", "begins at", "CPU", "kernels", "GPU projected", "kernel union"], cells),
    ]
    rest = len(rows) - limit
    return lines + ([f"  ... and {rest} more ranges (--limit)"] if rest > 0 else [])
