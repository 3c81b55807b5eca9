"""Copies and fills of a profile by device: parts of the document of `mansard trace summary`, and their text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.core.intervals import IntervalSet, merge, overlap_ns
from mansard.core.units import format_bytes, format_bytes_per_s, format_s
from mansard.core.unknown import Unknown
from mansard.report.trace_layout import table
from mansard.trace.device_facts import MANAGED, PAGEABLE, PINNED, host_memory
from mansard.trace.timeline import CopyKind, Events, Kind, Timeline

Document = Mapping[str, Any]
_HELD = {PAGEABLE: "pageable", PINNED: "pinned", MANAGED: "managed"}
_UNSIZED = Unknown("the profile does not record the size of these copies")


def hidden_copies(timeline: Timeline, device: int, kernels: IntervalSet) -> dict[tuple[int, int], dict[str, float]]:
    """Return for each direction of the copies of a device their union, and what of it kernels hide [s].

    Args:
        timeline: The profile, or a window of it.
        device: Index of the device.
        kernels: When its kernels run.
    """
    copies = timeline.of(Kind.COPY)
    mine = copies.device == device
    found = {}
    for kind in np.unique(copies.copy_kind[mine]).tolist():
        mask = mine & (copies.copy_kind == kind)
        merged = merge(copies.start_ns[mask], copies.end_ns[mask])
        both = overlap_ns(merged, kernels)
        found[device, kind] = {
            "union_s": merged.length_ns / 1e9, "with_kernels_s": both / 1e9, "exposed_s": (merged.length_ns - both) / 1e9,
        }  # fmt: skip
    return found


def copies_document(
    timeline: Timeline, hidden: Mapping[tuple[int, int], Mapping[str, float]] | None = None
) -> list[dict[str, Any]]:
    """Return copies by device and direction: count, bytes, summed time, mean rate, and what of their time kernels hide.

    Args:
        timeline: The profile, or a window of it.
        hidden: What `hidden_copies` tells of each device.
    """
    copies = timeline.of(Kind.COPY)
    return [
        {**_place(timeline, device, kind), **_amounts(copies, mask), **((hidden or {}).get((device, kind), {}))}
        for device, kind, mask in _by_direction(timeline, copies)
    ]


def copies_by_memory(timeline: Timeline) -> list[dict[str, Any]]:
    """Return copies by device, direction and how the host's side of them is held; empty where no copy tells that."""
    copies, held = timeline.of(Kind.COPY), host_memory(timeline)
    rows = []
    for device, kind, mask in _by_direction(timeline, copies):
        for code in np.unique(held[mask]).tolist() if (held[mask] >= 0).any() else ():
            word = _HELD.get(code, "not recorded")
            rows.append(
                {**_place(timeline, device, kind), "host_memory": word, **_amounts(copies, mask & (held == code))}
            )
    return rows


def fills_document(timeline: Timeline) -> list[dict[str, Any]]:
    """Return fills (memsets) by device: count, bytes, summed time, mean rate."""
    fills = timeline.of(Kind.MEMSET)
    return [
        {"device": _number(timeline, device), **_amounts(fills, fills.device == device)}
        for device in sorted(set(fills.device.tolist()), key=lambda d: _order(timeline, d))
    ]


def _by_direction(timeline: Timeline, copies: Events) -> list[tuple[int, int, npt.NDArray[np.bool_]]]:
    pairs = set(zip(copies.device.tolist(), copies.copy_kind.tolist(), strict=True))
    ordered = sorted(pairs, key=lambda p: (_order(timeline, p[0]), p))
    return [(d, k, (copies.device == d) & (copies.copy_kind == k)) for d, k in ordered]


def _order(timeline: Timeline, device: int) -> int:
    return timeline.devices[device].number if device >= 0 else -1


def _number(timeline: Timeline, device: int) -> int | None:
    return timeline.devices[device].number if device >= 0 else None


def _place(timeline: Timeline, device: int, kind: int) -> dict[str, Any]:
    word = CopyKind(kind).name.lower() if kind in CopyKind._value2member_map_ else f"kind {kind}"
    return {"device": _number(timeline, device), "direction": word}


def _amounts(events: Events, mask: npt.NDArray[np.bool_]) -> dict[str, Any]:
    known = mask & (events.nbytes >= 0)
    size, time, counted = int(events.nbytes[known].sum()), int(events.duration_ns[mask].sum()), int(known.sum())
    sized = int(events.duration_ns[known].sum())
    return {
        "count": int(mask.sum()), "bytes": size if counted else _UNSIZED, "time_s": time / 1e9, "without_size": int(mask.sum()) - counted,
        "bytes_per_s": size / sized * 1e9 if sized and size else Unknown("no bytes or no time were recorded"),
    }  # fmt: skip


def copy_lines(document: Document) -> list[str]:
    """Return the text of copies and fills."""
    copies, held, fills = document["copies"], document["copies_by_memory"], document["fills"]
    exposed = any("exposed_s" in c for c in copies)
    rows = [
        [f"GPU {c['device']} {_words(c['direction'])}", *_figures(c), *([_exposed(c)] if exposed else [])]
        for c in copies
    ]
    titles = ["count", "bytes", "time", "rate"]
    lines = ["", *table(["copies", *titles, *(["not hidden by kernels"] if exposed else [])], rows)] if rows else []
    rows = [[f"GPU {c['device']} {_words(c['direction'])}, {c['host_memory']}", *_figures(c)] for c in held]
    lines += ["", *table(["copies by host memory", *titles], rows)] if rows else []
    rows = [[f"GPU {f['device']}", *_figures(f)] for f in fills]
    return lines + (["", *table(["fills", *titles], rows)] if rows else [])


def _words(direction: str) -> str:
    return direction.replace("_", " ")


def _exposed(copy: Document) -> str:
    return format_s(copy["exposed_s"]) if "exposed_s" in copy else "unknown"


def _figures(row: Document) -> list[str]:
    unknown = isinstance(row["bytes"], Mapping)
    size = "unknown" if unknown else format_bytes(row["bytes"]) + (" or more" if row["without_size"] else "")
    rate = "unknown" if isinstance(row["bytes_per_s"], Mapping) else format_bytes_per_s(row["bytes_per_s"])
    return [str(row["count"]), size, format_s(row["time_s"]), rate]
