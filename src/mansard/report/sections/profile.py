"""Sections of one recorded profile: a step over time, its kernels, its collectives, its devices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from mansard.core.collectives import bus_bytes
from mansard.core.units import format_bytes, format_bytes_per_s, format_ratio, format_s
from mansard.core.unknown import Unknown, is_known
from mansard.diagnose.profile import DeviceDiagnosis
from mansard.report.sections import timeline as pictures
from mansard.report.sections.blocks import ROW_CAP, Cell, Chart, Prose, Section, Series, Table
from mansard.report.sections.fits import fitted
from mansard.report.text import figure
from mansard.trace.collectives_of import CollectiveKinds, collective_kinds
from mansard.trace.kernels import KernelRow, graph_findings, graphs, kernel_table, unclassified_share
from mansard.trace.launches import join_launches
from mansard.trace.occupancy import DeviceTime, device_times
from mansard.trace.operators_of import operators_of
from mansard.trace.profile_steps import find_steps
from mansard.trace.timeline import Kind, Timeline

#: Most collectives of one operation in a chart; more are thinned evenly over their sizes.
CALLS = 400
#: Most times of one size that a fit is made of.
TIMES = 2000
#: Two rows: message sizes [B] and times [s].
_Points = npt.NDArray[np.float64]
#: Disjoint parts of a device's time, each with its colour.
_BUCKETS = {
    "compute_only": "compute", "compute_and_communication": "host", "communication_only": "network", "copy_only": "memory",
    "idle": "unattributed",
}  # fmt: skip


def sections(timeline: Timeline, found: Sequence[DeviceDiagnosis], *, key: str, name: str) -> list[Section]:
    """Return the sections of a profile.

    Args:
        timeline: The profile.
        found: The diagnosis of each of its devices, the busiest first.
        key: Prefix of the identifiers in the page.
        name: Name of the file.
    """
    launches = join_launches(timeline)
    devices = device_times(timeline, launches=launches)
    rows = kernel_table(timeline, launches=launches)
    calls = collective_kinds(timeline, operators=operators_of(timeline, launches=launches))
    hidden = [f.text for f in graph_findings(graphs(timeline, launches))]
    out = [
        _timeline(timeline, key, name),
        _kernels(rows, key, name, hidden),
        _collectives(timeline, calls, key, name),
        _devices(devices, found, key, name),
    ]
    return [s for s in out if s is not None]


def _timeline(timeline: Timeline, key: str, name: str) -> Section | None:
    picture = pictures.of_profile(timeline, find_steps(timeline))
    if picture is None:
        return None
    return Section(key=f"{key}-time", title="Timeline", small=f"{name}: {picture.title}", blocks=(picture,))


def _kernels(rows: Sequence[KernelRow], key: str, name: str, hidden: Sequence[str]) -> Section | None:
    if not rows:
        return None
    total = sum(r.total_ns for r in rows)
    cells = [
        (
            r.short, r.category, Cell(f"{r.calls}", r.calls), Cell(format_s(r.total_ns / 1e9), r.total_ns),
            Cell(format_ratio(r.total_ns / total) if total else "?", r.total_ns), Cell(format_s(r.median_ns / 1e9), r.median_ns),
            Cell(format_s(r.max_ns / 1e9), r.max_ns), next(iter(r.operators), ""), r.name,
        )
        for r in rows[:ROW_CAP]
    ]  # fmt: skip
    share = unclassified_share(list(rows))
    notes = [f"{format_ratio(share)} of kernel time has names that no rule knows."] if share else []
    table = Table(
        label="Kernels", rows=cells, texts=frozenset({0, 1, 7, 8}), filter_by=1, total=len(rows), notes=[*notes, *hidden],
        columns=("kernel", "category", "calls", "total", "of kernels", "median", "longest", "launched from", "full name"),
    )  # fmt: skip
    calls = sum(r.calls for r in rows)
    small = f"{name}: {calls} calls of {len(rows)} kernels, {format_s(total / 1e9)} summed over streams and devices"
    return Section(key=f"{key}-kernels", title="Kernels", small=small, blocks=(table,))


def _collectives(timeline: Timeline, found: CollectiveKinds, key: str, name: str) -> Section | None:
    if not found.rows.size:
        return None
    groups, unsized = _by_operation(timeline, found)
    series, rows, notes = [], [], []
    for (operation, ranks), points in sorted(groups.items(), key=lambda g: -float(g[1][1].sum())):
        title = f"{operation}, {ranks} ranks"
        count = points.shape[1]
        shown = _thinned(points)
        series.append(
            Series(
                name=title, x=[s for s, _ in shown], y=[t for _, t in shown], mode="markers",
                text=[f"{title}: {format_bytes(s)} in {format_s(t)}, algbw {format_bytes_per_s(s / t)}" for s, t in shown],
            )
        )  # fmt: skip
        if len(shown) < count:
            notes.append(f"{title}: {len(shown)} of {count} calls are drawn, evenly over their sizes.")
        fit, words = _fit(operation, ranks, points)
        if fit is not None:
            series.append(fit)
        notes.append(f"{title}: {words}")
        rows.append(_row(operation, ranks, points))
    if unsized:
        notes.append(
            f"{unsized} of {found.rows.size} communication kernels have no recorded message size and are not drawn."
        )
    notes.append(
        "The time of a kernel includes waiting for the slowest peer, so rates here are lower bounds of the link's."
    )
    chart = Chart(
        label="Time of each collective against its message size", x_title="message size S, bytes", y_title="time, s",
        series=series, x_log=True, y_log=True, notes=notes,
    )  # fmt: skip
    table = Table(
        label="Collectives", rows=rows,
        columns=("collective", "ranks", "calls", "total", "median time", "median size", "best algbw", "best busbw"),
    )  # fmt: skip
    blocks = (chart, table) if series else (Prose(lines=notes),)
    return Section(key=f"{key}-collectives", title="Collectives against size", small=name, blocks=blocks)


def _by_operation(timeline: Timeline, found: CollectiveKinds) -> tuple[dict[tuple[str, int | str], _Points], int]:
    """Return sizes [B] and times [s] of the calls by operation and ranks, and how many have no size or no length.

    A profile has hundreds of thousands of calls and few kinds of them, so nothing here is done call by call.
    """
    table = timeline.of(Kind.KERNEL)
    length = (table.end_ns[found.rows] - table.start_ns[found.rows]).astype(np.float64) / 1e9
    columns: dict[tuple[str, int | str], list[_Points]] = {}
    unsized = 0
    for kind, one in enumerate(found.examples):
        times = length[found.kind == kind]
        size = one.message_bytes
        if not is_known(size) or size <= 0:
            unsized += times.size
            continue
        unsized += int((times <= 0).sum())
        times = times[times > 0]
        ranks = one.group_size if isinstance(one.group_size, int) else "?"
        columns.setdefault((one.operation, ranks), []).append(np.stack([np.full(times.size, float(size)), times]))
    groups = {k: np.concatenate(v, axis=1) for k, v in columns.items()}
    return {k: v for k, v in groups.items() if v.size}, unsized


def _thinned(points: _Points) -> list[tuple[float, float]]:
    ordered = points[:, np.lexsort((points[1], points[0]))]
    if ordered.shape[1] > CALLS:
        ordered = ordered[:, np.linspace(0, ordered.shape[1] - 1, CALLS).astype(int)]
    return [(float(s), float(t)) for s, t in ordered.T]


def _bus_ratio(operation: str, ranks: int | str) -> float | None:
    if not isinstance(ranks, int) or operation in ("unknown", "send_recv"):
        return None
    found = bus_bytes(operation, size_bytes=1.0, ranks=ranks)
    return found if is_known(found) and found > 0 else None


def _row(operation: str, ranks: int | str, points: _Points) -> tuple[str | Cell, ...]:
    sizes, times = points
    count, total, best = times.size, float(times.sum()), float((sizes / times).max())
    ratio = _bus_ratio(operation, ranks)
    time, size = float(np.median(times)), float(np.median(sizes))
    bus = Cell("?") if ratio is None else Cell(format_bytes_per_s(best * ratio), best * ratio)
    return (
        operation, Cell(str(ranks), ranks if isinstance(ranks, int) else None), Cell(str(count), count),
        Cell(format_s(total), total), Cell(format_s(time), time), Cell(format_bytes(size), size),
        Cell(format_bytes_per_s(best), best), bus,
    )  # fmt: skip


def _fit(operation: str, ranks: int | str, points: _Points) -> tuple[Series | None, str]:
    """Return the line t = alpha + bus bytes / beta over the sizes that were seen, and the fit in words."""
    ratio = _bus_ratio(operation, ranks)
    if ratio is None:
        return None, "no fit, since the group or the operation is not known."
    samples = {float(size) * ratio: _spread(points[1][points[0] == size]) for size in np.unique(points[0])}
    return fitted(samples, name=f"{operation}, {ranks} ranks", per_size=ratio)


def _spread(times: npt.NDArray[np.float64]) -> list[float]:
    """Return the times of one size; of very many, quantiles that stand evenly for them."""
    if times.size <= TIMES:
        return [float(t) for t in times]
    return [float(t) for t in np.quantile(times, (np.arange(TIMES) + 0.5) / TIMES)]


def _devices(devices: Sequence[DeviceTime], found: Sequence[DeviceDiagnosis], key: str, name: str) -> Section | None:
    """Return what each device of the profile did: the view of ranks where a file holds several."""
    if len(devices) < 2:
        return None
    said = {d.device: d.diagnosis for d in found}
    rows: list[tuple[str | Cell, ...]] = []
    parts: dict[str, list[float]] = {k: [] for k in _BUCKETS}
    labels: list[str] = []
    for d in devices:
        diagnosis = said.get(d.device)
        labels.append(f"device {d.facts.shown}")
        buckets = d.buckets()
        for k, values in parts.items():
            values.append(buckets[k] / 1e9)
        verdict = diagnosis.verdict if diagnosis is not None else None
        rows.append((
            labels[-1], str(d.facts.name) if not isinstance(d.facts.name, Unknown) else "?",
            Cell(format_s(d.busy_ns / 1e9), d.busy_ns), Cell(format_s((d.gpu_span_ns - d.gpu_busy_ns) / 1e9), d.gpu_span_ns - d.gpu_busy_ns),
            Cell(format_s(d.exposed_ns / 1e9), d.exposed_ns), Cell(str(d.kernel_count), d.kernel_count),
            verdict.bound.value if verdict else "not asked",
            Cell(figure(verdict.share_of_ceiling, format_ratio)) if verdict else Cell("?"),
        ))  # fmt: skip
    chart = Chart(
        label="Time of each device by what ran", x_title="time, s", y_title="", sideways=True,
        series=[
            Series(name=k.replace("_", " "), x=labels, y=v, mode="bars", colour=_BUCKETS[k],
                   text=[f"{label}: {k.replace('_', ' ')} {format_s(t)}" for label, t in zip(labels, v, strict=True)])
            for k, v in parts.items() if any(v)
        ],
    )  # fmt: skip
    table = Table(
        label="Devices", rows=rows, texts=frozenset({0, 1, 6}), swatch=6,
        columns=("device", "product", "kernels busy", "idle", "exposed communication", "kernels", "bound", "of ceiling"),
    )  # fmt: skip
    return Section(key=f"{key}-devices", title="Devices and ranks", small=name, blocks=(chart, table))
