"""How kernels fill a device, and the use of its memory: parts of the documents of `mansard trace`, and their text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mansard.core.units import format_bytes, format_ratio, format_s
from mansard.core.unknown import Unknown
from mansard.report.trace_layout import table
from mansard.report.trace_names import apart, labels
from mansard.trace.categories import short_name
from mansard.trace.device_facts import LaunchRow, launch_rows, memory_peak
from mansard.trace.timeline import Timeline

Document = Mapping[str, Any]
_NAME = 60  # columns of a name where there is room
_NOT_RECORDED = Unknown("not recorded")


def launches_document(timeline: Timeline) -> list[dict[str, Any]]:
    """Return kernels by name and launch shape."""
    return [_row(row, timeline) for row in launch_rows(timeline)]


def _row(row: LaunchRow, timeline: Timeline) -> dict[str, Any]:
    s = row.shape
    figures = {
        "blocks": s.blocks,
        "threads_per_block": s.threads,
        "registers_per_thread": s.registers,
        "shared_bytes_per_block": s.shared_bytes,
    }
    return {
        "name": row.name,
        "short_name": short_name(row.name),
        "device": timeline.devices[row.device].shown if row.device >= 0 else "unknown",
        "calls": row.calls,
        "total_s": row.total_ns / 1e9,
        **{k: v if v >= 0 else _NOT_RECORDED for k, v in figures.items()},
        "blocks_per_unit": row.per_unit,
        "units": row.units,
        "filled_ratio": row.filled_ratio,
    }


def launches_lines(rows: Sequence[Document], limit: int) -> list[str]:
    """Return the text of launches."""
    if not rows:
        return ["", "launches: the profile does not record how kernels were launched"]
    several = len({r["device"] for r in rows}) > 1
    cells = [
        [name, *([str(r["device"])] if several else []), str(r["calls"]), format_s(r["total_s"]), *(_plain(r[k]) for k in (
            "blocks", "threads_per_block", "registers_per_thread")),
         _plain(r["shared_bytes_per_block"], format_bytes), _plain(r["blocks_per_unit"]), _plain(r["filled_ratio"], format_ratio)]
        for name, r in zip(apart(labels([r["name"] for r in rows[:limit]]), _NAME), rows, strict=False)
    ]  # fmt: skip
    head = [
        "launches",
        *(["GPU"] if several else []),
        "calls",
        "total",
        "blocks",
        "threads",
        "regs",
        "shared",
        "per unit",
        "filled",
    ]
    lines = ["", *table(head, cells)]
    if len(rows) > limit:
        lines.append(f"  ... and {len(rows) - limit} more ways (--limit)")
    lines.append(
        "  filled: blocks over the places of the device in all their waves; per unit: the most blocks that one multiprocessor holds"
    )
    why = dict.fromkeys(
        r["blocks_per_unit"]["unknown"] for r in rows[:limit] if isinstance(r["blocks_per_unit"], Mapping)
    )
    return lines + [f"  unknown: {reason}" for reason in why]


def _plain(value: Any, form: Any = str) -> str:
    return "unknown" if isinstance(value, Mapping) else str(form(value))


def memory_document(timeline: Timeline) -> list[dict[str, Any]]:
    """Return the most memory of each device that was in use; empty where the profile does not record it."""
    found = []
    for device in timeline.used_devices:
        peak = memory_peak(timeline, device)
        if isinstance(peak, Unknown):
            continue
        found.append(
            {
                "device": timeline.devices[device].shown,
                "peak_allocated_bytes": peak.allocated_bytes,
                "peak_reserved_bytes": peak.reserved_bytes,
                "capacity_bytes": timeline.devices[device].memory_bytes,
                "source": peak.source,
                "at_least": peak.at_least,
                "note": peak.note,
            }
        )
    return found


def memory_lines(rows: Sequence[Document]) -> list[str]:
    """Return the text of memory."""
    cells = [
        [f"GPU {r['device']}", ("at least " if r["at_least"] else "") + format_bytes(r["peak_allocated_bytes"]),
         _plain(r["peak_reserved_bytes"], format_bytes), _plain(r["capacity_bytes"], format_bytes), r["source"]]
        for r in rows
    ]  # fmt: skip
    if not cells:
        return []
    notes = dict.fromkeys(r["note"] for r in rows if r["note"])
    return [
        "",
        *table(["memory", "peak in use", "peak reserved", "of", "counted by"], cells),
        *(f"  {n}" for n in notes),
    ]
