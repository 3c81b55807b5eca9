"""The documents of `mansard trace`: plain JSON types with seconds, bytes and FLOP, every figure with its definition."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from mansard.core.document import header
from mansard.core.unknown import Unknown
from mansard.diagnose.intensity import Intensity
from mansard.diagnose.peaks import Chip, receipt
from mansard.diagnose.utilisation import RegionUse
from mansard.report.trace_copies import copies_by_memory, copies_document, fills_document, hidden_copies
from mansard.report.trace_launches import memory_document
from mansard.report.trace_metrics import metrics_document
from mansard.report.trace_work import collectives_document, demand_by_name, demand_document, operators_document
from mansard.trace.collectives_of import CollectiveCall
from mansard.trace.kernels import Graphs, KernelRow, graph_findings, unclassified_share
from mansard.trace.occupancy import CAUSES, KINDS, DeviceTime, gap_figures
from mansard.trace.operators_of import OperatorWork
from mansard.trace.profile_steps import ProfileSteps
from mansard.trace.regions import RangeRow
from mansard.trace.run import Finding
from mansard.trace.timeline import DEVICE_WORK, Device, Kind, Timeline
from mansard.trace.window import extent, origin_ns

RECORD_NSYS = "nsys profile --trace=cuda,nvtx --output profile PROGRAM, then nsys export --type sqlite profile.nsys-rep"
RECORD_JAX = "with jax.profiler.trace(FOLDER): around some steps"
RECORD_TORCH = "torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])"

DEFINITIONS = {
    "kernel_sum_s": "sum of kernel durations; may exceed the time that passed",
    "busy_s": "union of kernels of one device (whole graphs count as kernels)",
    "span_s": "first kernel start to last kernel end",
    "idle_s": "span_s - busy_s: no kernel runs; `idle` splits it into causes that add up to it",
    "gpu_busy_s": "union of kernels, copies and fills of one device",
    "gpu_idle_s": "first start to last end of that work, minus gpu_busy_s",
    "exposed_communication_s": "union of collectives minus its overlap with other kernels",
    "copies.exposed_s": "union of the copies of one direction minus its overlap with kernels of the same device",
}  # fmt: skip


def head(schema: str, timeline: Timeline, findings: Sequence[Finding] = ()) -> dict[str, Any]:
    """Return what every document of a profile begins with.

    Args:
        schema: Name and major version.
        timeline: The profile.
        findings: Further findings.
    """
    found = extent(timeline)
    zero = origin_ns(timeline)
    window = None if found is None else {"start_s": (found[0] - zero) / 1e9, "end_s": (found[1] - zero) / 1e9}
    every = [*timeline.findings, *findings]
    damage = [{"code": d.code, "text": d.text, "count": d.count, "incomplete": d.incomplete} for d in timeline.damage]
    return {
        **header(schema, timeline.environment),
        "source": timeline.source,
        "format": timeline.format,
        "version": timeline.version,
        "status": "incomplete" if timeline.incomplete else "complete",
        "events_between": window,
        "clock": clock_document(timeline),
        "damage": damage,
        "findings": [{"code": f.code, "text": f.text} for f in every],
    }


def clock_document(timeline: Timeline) -> dict[str, Any]:
    """Return what the times of a document count from: 0 s is the start of the capture where the file has one, else the first event."""
    offset = timeline.clock.epoch_offset_ns
    zero = offset if isinstance(offset, Unknown) else offset + origin_ns(timeline)
    return {"domain": timeline.clock.domain, "zero_epoch_ns": zero, "note": timeline.clock.note}


def describe_device(device: Device, chip: Chip | None = None) -> dict[str, Any]:
    """Return what is known of a device, and which product that is."""
    known = {
        "device": device.number, "label": device.shown, "name": device.name, "chip": device.chip or None,
        "multiprocessors": device.multiprocessors, "memory_bytes": device.memory_bytes,
        "memory_bytes_per_s": device.memory_bytes_per_s, "clock_hz": device.clock_hz,
        "compute_capability": device.compute_capability or None, "certainty": device.certainty,
    }  # fmt: skip
    if chip is not None:
        known["hardware"] = chip.match.to_json()
    return known


def no_kernel_findings(timeline: Timeline) -> list[Finding]:
    """Return what to say where no kernel was recorded: why, what the profiler itself said, and how to record again."""
    if len(timeline.of(Kind.KERNEL)) or len(timeline.of(Kind.GRAPH)):
        return []
    why = timeline.why_absent(Kind.KERNEL).reason if not timeline.has(Kind.KERNEL) else "the kernel table is empty"
    again = "Record again: " + (RECORD_NSYS if timeline.format == "nsys" else RECORD_TORCH)
    if timeline.format == "rocprofv3":
        again = "Record again: rocprofv3 --kernel-trace --output-format json -- PROGRAM"
    if timeline.format in ("xplane", "xla_trace"):
        again = (
            f"Record again on a device: {RECORD_JAX}. A program that runs on the CPU is judged by mansard run itself"
        )
    if timeline.format == "ncu":
        again = "Record again with their durations: ncu --set basic, or --metrics gpu__time_duration.sum, ..."
    if timeline.format == "recording":
        again = "A program that runs on the CPU is judged by mansard run itself"
    text = f"no GPU kernels were recorded ({why}): busy and idle time are unknown, not 0 and not 100 %. {again}"
    said = [Finding(code="profiler_said", text=f"the profiler said: {d}") for d in timeline.diagnostics[:8]]
    return [Finding(code="no_kernels", text=text), *said]


def device_document(found: DeviceTime) -> dict[str, Any]:
    """Return busy and idle time of one device [s]."""
    kernels: dict[str, Any] = {}
    if found.kernel_count or len(found.kinds["graph"]):
        gaps = gap_figures(found)
        kernels = {
            "kernel_sum_s": found.kernel_sum_ns / 1e9,
            "kernel_union_s": found.busy_ns / 1e9,
            "concurrent_excess_s": max(0, found.kernel_sum_ns - found.busy_ns) / 1e9,
            "busy_s": found.busy_ns / 1e9,
            "span_s": found.span_ns / 1e9,
            "idle_s": (found.span_ns - found.busy_ns) / 1e9,
            "busy_ratio": found.busy_ns / found.span_ns if found.span_ns else Unknown("the span has no length"),
            "idle": {cause: found.idle_ns[cause] / 1e9 for cause in CAUSES},
            "launch_gap_host_late_s": found.late_ns / 1e9,
            "gaps": gaps if isinstance(gaps, Unknown) else {
                "count": gaps.count, "total_s": gaps.total_ns / 1e9, "median_s": gaps.median_ns / 1e9, "p95_s": gaps.p95_ns / 1e9,
                "max_s": gaps.max_ns / 1e9, "over_10us": gaps.over_10us, "over_1ms": gaps.over_1ms,
            },
        }  # fmt: skip
    else:
        missing = Unknown("no kernels were recorded on this device")
        kernels = dict.fromkeys(
            ("kernel_sum_s", "kernel_union_s", "busy_s", "span_s", "idle_s", "busy_ratio", "idle"), missing
        )
    return {
        "device": found.facts.number, "label": found.facts.shown, "name": found.facts.name, "kernel_count": found.kernel_count,
        **kernels,
        "gpu_busy_s": found.gpu_busy_ns / 1e9,
        "gpu_span_s": found.gpu_span_ns / 1e9,
        "gpu_idle_s": (found.gpu_span_ns - found.gpu_busy_ns) / 1e9,
        "streams": found.streams,
        "kinds": kinds_document([found]),
        "overlap": overlap_document(found),
        "exposed_communication_s": found.exposed_ns / 1e9,
        "buckets": {k: v / 1e9 for k, v in found.buckets().items()},
    }  # fmt: skip


def kinds_document(found: Sequence[DeviceTime]) -> dict[str, float]:
    """Return the union of each kind of device time, summed over devices [s]."""
    total = {f"{k}_s": sum(d.kinds[k].length_ns for d in found) / 1e9 for k in KINDS}
    return {**total, "not_communication_s": sum(d.not_communication.length_ns for d in found) / 1e9}


def overlap_document(found: DeviceTime) -> dict[str, Any]:
    """Return how long kinds run at once on one device [s]."""
    comm = found.kinds["communication"].length_ns
    return {
        "communication_and_compute_s": found.overlap_ns / 1e9,
        "overlap_ratio_of_communication": found.overlap_ns / comm if comm else Unknown("no communication kernels ran"),
        "matrix_s": {a: {b: v / 1e9 for b, v in row.items()} for a, row in found.overlap_matrix().items()},
    }


class _Totals:
    """Device documents, and sums over devices in whole nanoseconds; no interval is kept."""

    def __init__(self, timeline: Timeline, devices: Iterable[DeviceTime]) -> None:
        self.documents: list[dict[str, Any]] = []
        self.kinds_ns = dict.fromkeys((*KINDS, "not_communication"), 0)
        self.overlap_ns = self.exposed_ns = 0
        self.any_work = False
        self.hidden: dict[tuple[int, int], dict[str, float]] = {}
        for device in devices:
            self.documents.append(device_document(device))
            self.hidden |= hidden_copies(timeline, device.device, device.kernels)
            for kind in KINDS:
                self.kinds_ns[kind] += device.kinds[kind].length_ns
            self.kinds_ns["not_communication"] += device.not_communication.length_ns
            self.overlap_ns += device.overlap_ns
            self.exposed_ns += device.exposed_ns
            self.any_work |= bool(device.kernel_count or len(device.kinds["graph"]))


def summary_document(
    timeline: Timeline, devices: Iterable[DeviceTime], rows: Sequence[KernelRow], graphs: Graphs, steps: ProfileSteps,
    chips: Mapping[int, Chip], *, launched: tuple[int, int], top: int = 10,
) -> dict[str, Any]:  # fmt: skip
    """Return the document of `trace summary`.

    Args:
        timeline: The profile or a window of it.
        devices: Busy and idle time of each device that worked; taken one after the other.
        rows: Kernels by name.
        graphs: What is known of graphs.
        steps: Its steps.
        chips: What each device index is.
        launched: Kernels with a launching call, and their summed time [ns].
        top: How many kernels to list.
    """
    totals = _Totals(timeline, devices)
    findings = [*no_kernel_findings(timeline), *graph_findings(graphs)]
    total = sum(r.total_ns for r in rows)
    count = sum(r.calls for r in rows)
    if rows and unclassified_share(list(rows)) > 0:
        share = unclassified_share(list(rows))
        names = ", ".join(r.short[:40] for r in rows if r.category == "unclassified")[:160]
        findings.append(
            Finding(
                code="unclassified", text=f"{share:.1%} of summed kernel time has names that no rule knows: {names}"
            )
        )
    if timeline.has(Kind.RUNTIME) and count and launched[0] < count:
        text = f"{launched[0]} of {count} kernels ({launched[1] / total:.1%} of kernel time) have the call that launched them; the capture is clipped or calls were lost"
        findings.append(Finding(code="launches_missing", text=text))
    document = head("trace_summary/1", timeline, findings)
    if graphs.kernels_missing:
        document["status"] = "unreliable"
    if not totals.any_work:
        document["status"] = "no_kernels" if not timeline.incomplete else "incomplete"
    used = len(totals.documents)
    return {
        **document,
        "gpus": [describe_device(d, chips.get(i)) for i, d in enumerate(timeline.devices)],
        "devices": totals.documents,
        "kernel_count": count if timeline.has(Kind.KERNEL) else timeline.why_absent(Kind.KERNEL),
        "sums_over": f"{used} device{'s' if used != 1 else ''}; devices are never merged",
        "kinds": {f"{k}_s": v / 1e9 for k, v in totals.kinds_ns.items()},
        "overlap": {
            "communication_and_compute_s": totals.overlap_ns / 1e9,
            "communication_s": totals.kinds_ns["communication"] / 1e9,
        },
        "exposed_communication_s": totals.exposed_ns / 1e9,
        "launched": {"kernels": launched[0], "share_of_kernels": launched[0] / count if count else None,
                     "share_of_kernel_time": launched[1] / total if total else None},
        "copies": copies_document(timeline, totals.hidden),
        "copies_by_memory": copies_by_memory(timeline),
        "fills": fills_document(timeline),
        "memory": memory_document(timeline),
        "metrics": metrics_document(timeline),
        "steps": steps_summary(steps),
        "graphs": {"launches": graphs.launches, "kernels": graphs.kernels, "opaque": graphs.opaque, "opaque_s": graphs.opaque_ns / 1e9},
        "top_kernels": [kernel_document(r, timeline) for r in rows[:top]],
        "definitions": DEFINITIONS,
    }  # fmt: skip


def kernel_document(row: KernelRow, timeline: Timeline) -> dict[str, Any]:
    """Return one row of the kernel table."""
    found: dict[str, Any] = {
        "name": row.name, "short_name": row.short, "category": row.category, "calls": row.calls, "total_s": row.total_ns / 1e9,
        "median_s": row.median_ns / 1e9, "min_s": row.min_ns / 1e9, "max_s": row.max_ns / 1e9,
        "devices": {timeline.devices[d].shown if d >= 0 else "unknown": {"calls": c, "total_s": t / 1e9} for d, (c, t) in row.per_device.items()},
        "launched": row.launched, "operators": dict(list(row.operators.items())[:5]),
    }  # fmt: skip
    if row.collective is not None:
        found["collective"] = row.collective
    return found


def kernels_document(
    timeline: Timeline,
    rows: Sequence[KernelRow],
    graphs: Graphs,
    rules: str,
    *,
    work: Sequence[OperatorWork] = (),
    collectives: Sequence[CollectiveCall] = (),
) -> dict[str, Any]:
    """Return the document of `trace kernels`.

    Args:
        timeline: The profile or a window, with demand columns where they are known.
        rows: Kernels by name.
        graphs: What is known of graphs.
        rules: Where categories come from.
        work: Operators with recorded inputs and their kernels.
        collectives: Communication kernels with message sizes.
    """
    total = sum(r.total_ns for r in rows)
    categories: dict[str, dict[str, Any]] = {}
    for row in rows:
        entry = categories.setdefault(row.category, {"calls": 0, "total_s": 0.0})
        entry["calls"] += row.calls
        entry["total_s"] += row.total_ns / 1e9
    for entry in categories.values():
        entry["share"] = entry["total_s"] * 1e9 / total if total else None
    known = demand_by_name(timeline)
    return {
        **head("trace_kernels/1", timeline, [*no_kernel_findings(timeline), *graph_findings(graphs)]),
        "kernels": [{**kernel_document(r, timeline), **known.get(r.name, {})} for r in rows],
        "kernel_count": sum(r.calls for r in rows),
        "kernel_sum_s": total / 1e9,
        "categories": dict(sorted(categories.items(), key=lambda item: -item[1]["total_s"])),
        "unclassified_share": unclassified_share(list(rows)) if rows else None,
        "demand": demand_document(timeline),
        "operators": operators_document(work),
        "collectives": collectives_document(collectives),
        "rules": rules,
    }


def regions_document(
    timeline: Timeline, rows: Sequence[RangeRow], linked: tuple[int, int], findings: Sequence[Finding] = ()
) -> dict[str, Any]:
    """Return the document of `trace regions`.

    Args:
        timeline: The profile.
        rows: Ranges by name.
        linked: Kernels that lie in some range, and all kernels.
        findings: Further findings.
    """
    note = "projected: first start to last end of the device work that calls inside the range launched on its thread; names nest, so rows do not add up"
    absent: dict[str, Any] = {}
    if not any(timeline.has(k) for k in DEVICE_WORK):  # no work was recorded, which is not that none was done
        why = timeline.why_absent(Kind.KERNEL)
        absent = dict.fromkeys(
            ("with_device_work", "projected_total_s", "projected_cpu_total_s", "gpu_ops", "gpu_sum_s"), why
        )
    return {
        **head("trace_regions/1", timeline, findings),
        "regions": [
            {
                "region": r.name, "style": r.style, "instances": r.instances, "cpu_total_s": r.cpu_total_ns / 1e9,
                "cpu_median_s": r.cpu_median_ns / 1e9, "with_device_work": r.with_work, "projected_total_s": r.projected_total_ns / 1e9,
                "projected_cpu_total_s": r.projected_cpu_total_ns / 1e9, "gpu_ops": r.ops, "gpu_sum_s": r.work_sum_ns / 1e9,
                "depth": r.depth, **absent,
            }
            for r in rows
        ],
        "kernels_in_regions": linked[0],
        "kernels": linked[1],
        "note": note,
    }  # fmt: skip


def steps_summary(steps: ProfileSteps) -> dict[str, Any]:
    """Return the figures of the steps [s]; none found is an answer."""
    found: dict[str, Any] = {"count": steps.count, "found_by": steps.source, "name": steps.name or None, "note": steps.note,
                             "confidence": steps.confidence}  # fmt: skip
    if not steps.count:
        return {**found, "median_s": Unknown(steps.note, ("--marker NAME",))}
    length = steps.host_ns / 1e9
    skip = steps.warm_up
    return {
        **found, "median_s": float(np.median(length)), "p90_s": float(np.percentile(length, 90)), "first_s": float(length[0]),
        "warm_up_steps": skip, "steady_median_s": float(np.median(length[skip:])),
    }  # fmt: skip


def steps_document(timeline: Timeline, steps: ProfileSteps) -> dict[str, Any]:
    """Return the document of `trace steps`."""
    zero = origin_ns(timeline)
    rows = []
    for index in range(steps.count):
        busy = {timeline.devices[d].shown: float(b[index]) / 1e9 for d, b in steps.busy_ns.items()}
        rows.append({
            "step": index + 1, "name": steps.labels[index] if steps.labels else None, "start_s": (int(steps.start_ns[index]) - zero) / 1e9,
            "length_s": float(steps.host_ns[index]) / 1e9, "until_next_s": float(steps.end_ns[index] - steps.start_ns[index]) / 1e9,
            "kernel_union_s": busy,
        })  # fmt: skip
    note = "lengths are host time; kernels of a step may run in the next one; kernels busy: from its start to the next start"
    return {
        **head("trace_steps/1", timeline),
        "steps_detected": steps.count,
        **steps_summary(steps),
        "steps": rows,
        "about": note,
    }


def mfu_document(timeline: Timeline, use: RegionUse, chip: Chip) -> dict[str, Any]:
    """Return the document of `trace mfu`."""
    found = use.region
    zero = origin_ns(timeline)
    return {
        **head("trace_mfu/1", timeline, use.findings),
        "region": found.name,
        "occurrence": found.occurrence,
        "occurrences": found.occurrences,
        "start_s": (found.start_ns - zero) / 1e9,
        "wall_time_s": use.wall_s,
        "wall_time_is": use.wall_is,
        "cpu_span_s": use.cpu_span_s,
        "device_span_s": use.device_span_s,
        "until_last_end_s": (max(found.end_ns, found.device_end_ns) - found.start_ns) / 1e9,
        "device_ends_after_range_s": max(0, found.device_end_ns - found.end_ns) / 1e9,
        "gpu_kernel_sum_s": use.kernel_sum_s,
        "gpu_kernel_union_s": use.kernel_union_s,
        "gpu_kernel_union_is": use.union_is,
        "per_device_union_s": use.per_device_s,
        "kernel_count": use.kernels,
        "flop": use.work.flop,
        "executed_flop": use.work.executed_flop,
        "flop_source": use.work.source,
        "recorded_flop": use.recorded if isinstance(use.recorded, Unknown) else use.recorded.any_flop,
        "recorded_coverage_ratio": None if isinstance(use.recorded, Unknown) else use.recorded.flop_coverage_ratio,
        "tokens": use.work.tokens,
        "mfu_ratio": use.mfu,
        "hfu_ratio": use.hfu,
        "kernel_union_ratio": use.kernel_union,
        "achieved_flop_per_s": use.work.flop / use.wall_s,
        "tokens_per_s": use.tokens_per_s,
        "devices": use.devices,
        "peak_flop_per_s": use.peak if isinstance(use.peak, Unknown) else use.peak.value,
        "peak": receipt(use.peak),
        "hardware": chip.match.to_json(),
        "steps_in_region": use.steps,
        "missing_before_quoting": list(use.missing),
        "definitions": {
            "mfu_ratio": "model FLOP / (wall time x devices x dense peak)",
            "hfu_ratio": "executed FLOP, recomputation counted / (wall time x devices x dense peak)",
            "kernel_union_ratio": "model FLOP / (union of its kernels x devices x dense peak); a diagnostic, no MFU",
            "until_last_end_s": "start of the range on the host to its end or the end of its device work, whichever is later",
        },
    }


def intensity_document(
    timeline: Timeline, found: Intensity, device: Device, chip: Chip, scope: str, evidence: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the document of `trace intensity`; `evidence` says where FLOP and bytes come from and how much they cover."""
    return {
        **head("trace_intensity/1", timeline, found.findings),
        "device": device.number,
        "scope": scope,
        "flop": found.flop,
        "bytes": found.bytes,
        "flop_per_byte": found.flop_per_byte,
        "ridge_flop_per_byte": found.ridge_flop_per_byte,
        "bound": found.bound.value,
        "limiting_ceiling": found.limiting or None,
        "achieved_flop_per_s": found.achieved_flop_per_s,
        "share_of_ceiling": found.share_of_ceiling,
        "compute_ratio": found.compute_share,
        "gpu_kernel_union_s": found.union_s,
        "kernel_count": found.kernels,
        "reason": found.reason,
        **evidence,
        "peak": receipt(found.peak),
        "bandwidth": receipt(found.bandwidth),
        "hardware": chip.match.to_json(),
    }
