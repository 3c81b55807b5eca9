"""Shares of the limits of a device that kernels of an Nsight Compute report reached: part of `mansard trace kernels`, and its text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mansard.core.units import format_bytes, format_ratio, format_s
from mansard.core.unknown import Unknown
from mansard.report.trace_layout import table
from mansard.report.trace_names import apart, labels
from mansard.trace.speed_of_light import speeds_of_light
from mansard.trace.timeline import Kind, Timeline

Document = Mapping[str, Any]
_NAME = 40
_TITLES = {
    "compute_throughput_ratio": "compute", "memory_throughput_ratio": "memory", "dram_throughput_ratio": "DRAM", "l2_throughput_ratio": "L2",
    "l2_hit_ratio": "L2 hits", "achieved_occupancy_ratio": "occupancy",
}  # fmt: skip


def speeds_document(timeline: Timeline) -> list[dict[str, Any]]:
    """Return each kernel of a report with its shares; of other profiles, and of kernels that were not chosen, there are none.

    Args:
        timeline: The profile, or a choice of its kernels.
    """
    rows = timeline.of(Kind.KERNEL).extras.get("report_row", np.zeros(0, dtype=np.int64)).tolist()
    every = speeds_of_light(timeline)
    return [
        {
            "id": s.number, "name": s.name, "duration_s": s.duration_s, "grid": s.grid, "block": s.block, **s.shares, **s.clocks_hz,
            "dram_bytes": s.dram_bytes,
            "dram_bytes_per_s": Unknown("its time is not known") if s.duration_s == 0 else s.dram_bytes / s.duration_s,
        }
        for s in (every[r] for r in (rows if every else ()))
    ]  # fmt: skip


def speeds_lines(rows: Sequence[Document], limit: int) -> list[str]:
    """Return the text of shares; a column that no kernel has is left out."""
    shown = rows[:limit]
    words = [w for w in _TITLES if any(not _unknown(r[w]) for r in shown)]
    moved = any(not _unknown(r["dram_bytes"]) for r in shown)
    if not words and not moved:
        return []
    names = apart(labels([r["name"] for r in shown]), _NAME)
    cells = [
        [f"{r['id']}: {name}", _plain(r["duration_s"], format_s), *(_plain(r[w], format_ratio) for w in words),
         *([_plain(r["dram_bytes"], format_bytes)] if moved else [])]
        for name, r in zip(names, shown, strict=True)
    ]  # fmt: skip
    lines = [
        "",
        *table(["share of its peak", "time", *(_TITLES[w] for w in words), *(["DRAM bytes"] if moved else [])], cells),
    ]
    lines += [f"  ... and {len(rows) - limit} more kernels (--limit)"] if len(rows) > limit else []
    return [*lines, "  as Nsight Compute measured and defines them; no share of a data sheet"]


def _unknown(value: Any) -> bool:
    return isinstance(value, Mapping)


def _plain(value: Any, form: Any) -> str:
    return "unknown" if _unknown(value) else str(form(value))
