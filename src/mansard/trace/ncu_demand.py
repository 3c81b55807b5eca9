"""Measured FLOP and bytes of kernels: from an Nsight Compute report itself, or joined to another profile by kernel name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from mansard.core.evidence import Grade
from mansard.core.unknown import Unknown
from mansard.trace.categories import short_name
from mansard.trace.kernel_demand import KernelDemand
from mansard.trace.readers.ncu import ProfiledKernel, Report
from mansard.trace.readers.ncu_metrics import Measured
from mansard.trace.timeline import NONE, Kind, Timeline

SAME = 1.02  # launches of one kernel whose counters differ by less are taken as one
_FLOP = "measured by Nsight Compute: adds + multiplies + 2 x fused multiply-adds of the scalar pipes"
_BYTES = "measured by Nsight Compute: bytes read from and written to DRAM"

#: Why a kernel of another profile has no counters.
NOT_IN_REPORT = "the report has no kernel of this name"


def demand_of_own_report(timeline: Timeline) -> KernelDemand:
    """Return the counters of each kernel of a report opened as a profile.

    Args:
        timeline: What `readers.ncu` made of the report.
    """
    report: Report = timeline.extras["report"]
    rows = timeline.of(Kind.KERNEL).extras["report_row"].tolist()
    return _demand([[report.kernels[r]] for r in rows])


def demand_of_report(timeline: Timeline, report: Report) -> KernelDemand:
    """Return counters for the kernels of another profile of the same program, joined by name.

    Where profile and report hold a kernel equally often, they are joined one by one, in order of start. Else launches whose
    counters agree stand for all, and kernels whose counters differ from launch to launch stay unknown.

    Args:
        timeline: The profile.
        report: Kernels with counters.
    """
    table = timeline.of(Kind.KERNEL)
    by_name = _by_name(report.kernels, timeline, table.name)
    found: list[list[ProfiledKernel]] = [[] for _ in range(len(table))]
    for code in np.unique(table.name).tolist():
        members = by_name.get(code, [])
        rows = np.flatnonzero(table.name == code)
        rows = rows[np.argsort(table.start_ns[rows], kind="stable")]
        if len(members) == rows.size:
            for row, kernel in zip(rows.tolist(), members, strict=True):
                found[row] = [kernel]
        else:
            for row in rows.tolist():
                found[row] = members
    return _demand(found)


def _by_name(
    kernels: Sequence[ProfiledKernel], timeline: Timeline, used: np.ndarray[tuple[int], np.dtype[np.int32]]
) -> dict[int, list[ProfiledKernel]]:
    """Return the kernels of the report by the name codes of the profile: full names first, then short ones that are unique."""
    grouped: dict[str, list[ProfiledKernel]] = defaultdict(list)
    for kernel in kernels:
        grouped[kernel.name].append(kernel)
    codes = np.unique(used).tolist()
    shorts: dict[str, list[int]] = defaultdict(list)
    report_shorts: dict[str, set[str]] = defaultdict(set)
    for code in codes:
        shorts[short_name(timeline.names[code])].append(code)
    for name in grouped:
        report_shorts[short_name(name)].add(name)
    found = {code: grouped[timeline.names[code]] for code in codes if timeline.names[code] in grouped}
    for short, of_profile in shorts.items():
        names = report_shorts.get(short, set())
        if len(of_profile) == 1 and len(names) == 1 and of_profile[0] not in found:
            found[of_profile[0]] = grouped[next(iter(names))]
    return found


def _demand(kernels: Sequence[Sequence[ProfiledKernel]]) -> KernelDemand:
    """Return the counters of each kernel from the launches that stand for it."""
    reasons: dict[str, int] = {}
    dtypes: dict[str, int] = {}
    known: dict[tuple[int, ...], tuple[float, float, int, int]] = {}
    out = []
    for group in kernels:
        key = tuple(id(k) for k in group)
        if key not in known:
            known[key] = _figures(group, reasons, dtypes)
        out.append(known[key])
    columns = np.array([r[:2] for r in out], dtype=np.float64).reshape(-1, 2)
    used = {id(k): k for group in kernels for k in group}.values()
    uncounted = sorted({t for k in used for t, v in k.measured.flop.items() if isinstance(v, Unknown)} - {"f32"})
    source = _FLOP + (f"; the report does not count {', '.join(uncounted)}, which is left out" if uncounted else "")
    return KernelDemand(
        flop=columns[:, 0], other_flop=np.where(np.isnan(columns[:, 0]), np.nan, 0.0), bytes=columns[:, 1],
        reason=np.array([r[2] for r in out], dtype=np.int32), reasons=tuple(reasons),
        dtype=np.array([r[3] for r in out], dtype=np.int32), dtypes=tuple(dtypes), flop_source=source, bytes_source=_BYTES,
        flop_grade=Grade.MEASURED, bytes_grade=Grade.MEASURED,
    )  # fmt: skip


def _figures(
    group: Sequence[ProfiledKernel], reasons: dict[str, int], dtypes: dict[str, int]
) -> tuple[float, float, int, int]:
    if not group:
        return np.nan, np.nan, reasons.setdefault(NOT_IN_REPORT, len(reasons)), NONE
    measured = [k.measured for k in group]
    said = ""
    flops: list[float] = []
    sizes: list[float] = []
    types: set[str] = set()
    for m in measured:
        flop, why, used = _flop(m)
        size = m.dram_bytes
        flops.append(flop)
        sizes.append(float("nan") if isinstance(size, Unknown) else float(size))
        types |= used
        said = said or why or (size.reason if isinstance(size, Unknown) else "")
    flop, moved = _agreed(flops), _agreed(sizes)
    if (np.isnan(flop) and not np.isnan(flops).any()) or (np.isnan(moved) and not np.isnan(sizes).any()):
        said = "its counters differ from launch to launch, and profile and report hold it a different number of times"
    code = dtypes.setdefault(next(iter(types)), len(dtypes)) if len(types) == 1 else NONE
    return flop, moved, reasons.setdefault(said, len(reasons)) if said else NONE, code


def _flop(measured: Measured) -> tuple[float, str, set[str]]:
    """Return FLOP, why they are not known, and the element types that were counted above zero."""
    tensor = measured.tensor_operations
    if isinstance(tensor, Unknown):
        return float("nan"), tensor.reason, set()
    if any(tensor.values()):
        return float("nan"), "it used tensor cores, whose counted operations are not settled as FLOP", set()
    counts = {t: float(v) for t, v in measured.flop.items() if not isinstance(v, Unknown)}
    single = measured.flop["f32"]
    if isinstance(single, Unknown):
        return float("nan"), single.reason, set()
    return sum(counts.values()), "", {t for t, v in counts.items() if v > 0}


def _agreed(values: Sequence[float]) -> float:
    """Return the mean of values that agree, else NaN."""
    if any(np.isnan(values)) or max(values) > SAME * min(values):
        return float("nan")
    return float(np.mean(values))
