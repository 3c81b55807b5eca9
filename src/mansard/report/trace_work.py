"""What kernels, operators and collectives of a profile consumed, as parts of the document of `trace kernels`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.core.unknown import Unknown
from mansard.trace.collectives_of import CollectiveCall
from mansard.trace.kernel_demand import Counted, DemandSources, counted
from mansard.trace.operators_of import OperatorWork
from mansard.trace.timeline import Kind, Timeline

FloatArray = npt.NDArray[np.float64]
_NO_FLOP = Unknown("its FLOP are not known", ("a profile with record_shapes=True", "--ncu REPORT.csv"))
_NO_BYTES = Unknown("its bytes are not known", ("a profile with record_shapes=True", "--ncu REPORT.csv"))


def demand_by_name(timeline: Timeline) -> dict[str, dict[str, Any]]:
    """Return FLOP, bytes and rates of the kernels of each name, where any is known.

    Each figure is of the kernels it is known for; `flop_coverage_ratio` and `bytes_coverage_ratio` are their shares of the
    name's time, and the intensity is of the kernels that have both.

    Args:
        timeline: A profile with demand columns.
    """
    table = timeline.of(Kind.KERNEL)
    if not isinstance(timeline.extras.get("demand"), DemandSources) or not len(table):
        return {}
    size = len(timeline.names)
    length = table.duration_ns.astype(np.float64)
    flop, other, moved = (table.extras[f"{n}_per_ns"] * length for n in ("flop", "other_flop", "bytes"))
    has_flop, has_bytes = ~np.isnan(flop), ~np.isnan(moved)

    def by_name(values: FloatArray, mask: npt.NDArray[np.bool_]) -> FloatArray:
        sums: FloatArray = np.bincount(table.name[mask], weights=values[mask], minlength=size).astype(np.float64)
        return sums

    total = by_name(length, np.ones(len(table), dtype=np.bool_))
    flop_ns, bytes_ns = by_name(length, has_flop), by_name(length, has_bytes)
    sums = by_name(flop, has_flop), by_name(moved, has_bytes), by_name(np.nan_to_num(other), has_flop)
    both = has_flop & has_bytes
    paired = by_name(flop, both), by_name(moved, both)
    levels = _levels(timeline)
    found: dict[str, dict[str, Any]] = {}
    for index in np.flatnonzero(flop_ns + bytes_ns).tolist():
        known_flop, known_bytes = flop_ns[index] > 0, bytes_ns[index] > 0
        name = timeline.names[index]
        found[name] = {
            "flop": float(sums[0][index]) if known_flop else _NO_FLOP,
            "other_flop": float(sums[2][index]) if known_flop else _NO_FLOP,
            "bytes": float(sums[1][index]) if known_bytes else _NO_BYTES,
            "flop_per_s": float(sums[0][index] / (flop_ns[index] * 1e-9)) if known_flop else _NO_FLOP,
            "bytes_per_s": float(sums[1][index] / (bytes_ns[index] * 1e-9)) if known_bytes else _NO_BYTES,
            "flop_per_byte": float(paired[0][index] / paired[1][index]) if paired[1][index] > 0 else _NO_BYTES,
            "flop_coverage_ratio": float(flop_ns[index] / total[index]),
            "bytes_coverage_ratio": float(bytes_ns[index] / total[index]),
            **({"level_bytes": levels[name]} if name in levels else {}),
        }
    return found


def _levels(timeline: Timeline) -> dict[str, dict[str, float]]:
    """Return the measured traffic of each kernel name by memory level [B], where the profile is an Nsight Compute report."""
    report = timeline.extras.get("report")
    found: dict[str, dict[str, float]] = {}
    if timeline.format != "ncu" or report is None:
        return found
    for kernel in report.kernels:
        of_name = found.setdefault(kernel.name, {})
        for level, value in kernel.measured.level_bytes.items():
            if not isinstance(value, Unknown):
                of_name[level] = of_name.get(level, 0.0) + float(value)
    return found


def demand_document(timeline: Timeline) -> dict[str, Any]:
    """Return what is known of FLOP and bytes of all kernels, from where, and what is not covered."""
    found = counted(timeline)
    if not isinstance(found, Counted):
        return {
            "flop": found,
            "bytes": found,
            "coverage_ratio": 0.0,
            "flop_from": [],
            "bytes_from": [],
            "not_covered": [],
        }
    return {
        "flop": found.flop,
        "other_flop": found.other_flop,
        "bytes": found.bytes,
        "coverage_ratio": found.coverage_ratio,
        "flop_from": [{"source": s, "grade": str(g)} for s, g in found.sources.flop],
        "bytes_from": [{"source": s, "grade": str(g)} for s, g in found.sources.bytes],
        "not_covered": [{"reason": r, "share_of_kernel_time": s, "kernels": n} for r, s, n in found.unknown],
    }


def operators_document(work: Sequence[OperatorWork]) -> list[dict[str, Any]]:
    """Return one row per operator and recorded inputs that launched kernels, the longest kernel time first."""
    return [
        {
            "operator": w.name, "shapes": w.shapes, "category": w.category, "calls": w.calls,
            "calls_with_kernels": w.launching_calls, "kernels": w.kernels, "kernel_sum_s": w.kernel_sum_ns / 1e9,
            "flop": w.flop, "bytes": w.bytes, "flop_per_s": w.flop_per_s,
            "bytes_per_s": w.bytes if isinstance(w.bytes, Unknown) else _rate(w), "formula": w.formula,
            "full_square_flop": None if w.full_square_flop is None else w.full_square_flop * w.calls, "grade": "modelled",
        }
        for w in work
        if w.kernels
    ]  # fmt: skip


def _rate(work: OperatorWork) -> float | Unknown:
    known = work.flop_per_s
    if isinstance(known, Unknown) or work.kernel_sum_ns <= 0:
        return known if isinstance(known, Unknown) else Unknown("its kernels have no length")
    return work.bytes / (work.kernel_sum_ns * 1e-9)


def collectives_document(calls: Sequence[CollectiveCall]) -> list[dict[str, Any]]:
    """Return collectives by operation, size and group: count, times, and the rates NCCL defines.

    The kernel of a collective runs until its slowest peer has come, so the rates are those of the shortest call.
    """
    grouped: dict[tuple[Any, ...], list[CollectiveCall]] = {}
    for call in calls:
        size = None if isinstance(call.message_bytes, Unknown) else call.message_bytes
        ranks = None if isinstance(call.group_size, Unknown) else call.group_size
        grouped.setdefault((call.operation, size, ranks, call.group), []).append(call)
    rows = []
    for (operation, _, _, group), members in grouped.items():
        shortest = min(members, key=lambda c: c.end_ns - c.start_ns)
        rows.append({
            "operation": operation, "group": group or None, "group_size": shortest.group_size,
            "message_bytes": shortest.message_bytes, "calls": len(members),
            "total_s": sum(c.end_ns - c.start_ns for c in members) / 1e9,
            "min_s": (shortest.end_ns - shortest.start_ns) / 1e9,
            "max_s": max(c.end_ns - c.start_ns for c in members) / 1e9,
            "algbw_bytes_per_s": shortest.algbw_bytes_per_s, "busbw_bytes_per_s": shortest.busbw_bytes_per_s,
            "stated_by": shortest.stated_by,
        })  # fmt: skip
    return sorted(rows, key=lambda r: (-float(r["total_s"]), str(r["operation"])))
