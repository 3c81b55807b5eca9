"""Sampled metrics of the hardware: their part of the document of `mansard trace summary`, and its text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from mansard.report.trace_layout import table
from mansard.trace.timeline import Timeline

Document = Mapping[str, Any]

#: What the text shows; the document has all of them.
_CHIEF = re.compile(
    r"^(?:GR|Compute|SMs?|Tensor) Active|^SM Issue|Tensor Active|^DRAM (?:Read|Write|Bandwidth|Throughput)|^Compute Warps in Flight|"
    r"(?:PCIe|NVLink) (?:RX|TX|Read|Write) (?:Throughput|Bandwidth)|^(?:SM|GPC|SYS) Clock Frequency",
    re.IGNORECASE,
)
_UNIT = re.compile(r"\s*\[(?:Throughput )?([^\]]*)\]$")


def metrics_document(timeline: Timeline) -> list[dict[str, Any]]:
    """Return the metrics that were sampled from the hardware; empty where none were."""
    return [
        {
            "device": timeline.devices[m.device].shown if m.device >= 0 else f"id {m.gpu_id}",
            "metric": m.name,
            "samples": m.samples,
            "mean": m.mean,
            "max": m.largest,
            "mean_while_working": m.mean_while_working,
        }
        for m in timeline.extras.get("gpu_metrics", ())
    ]


def metrics_lines(rows: Sequence[Document]) -> list[str]:
    """Return the text of sampled metrics."""
    if not rows:
        return []
    chosen = [r for r in rows if _CHIEF.search(r["metric"])] or list(rows[:12])
    cells = [
        [f"GPU {r['device']} {_UNIT.sub('', r['metric'])}", str(r["samples"]), *(_figure(r[k], r["metric"]) for k in (
            "mean", "mean_while_working", "max"))]
        for r in chosen
    ]  # fmt: skip
    lines = ["", *table(["sampled", "samples", "mean", "mean while it works", "max"], cells)]
    if len(chosen) < len(rows):
        lines.append(f"  ... and {len(rows) - len(chosen)} more metrics (--json)")
    return [
        *lines,
        "  of the whole capture, whatever the window; works: from the first to the last kernel of the device",
    ]


def _figure(value: Any, metric: str) -> str:
    if isinstance(value, Mapping):
        return "unknown"
    unit = _UNIT.search(metric)
    return f"{value:.4g}" + (f" {unit[1]}" if unit else "")
