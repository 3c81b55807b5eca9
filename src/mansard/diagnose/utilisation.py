"""MFU of a region of a profile and intensity of a window: the profile says when, the caller what, the hardware how fast.

Nothing is filled in: no FLOP, no MFU; no bytes, no class; no exact chip and no given peak, no ratio.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from mansard.core.bound import BOUND_SHARE, Bound, judge, least_time
from mansard.core.ceilings import Ceiling, Ceilings, MemoryLevel
from mansard.core.demand import Demand
from mansard.core.errors import UndecidedError, UsageError
from mansard.core.intervals import merge
from mansard.core.unknown import Implausible, Unknown, is_known
from mansard.predict.utilisation import utilisation
from mansard.trace.categories import short_name
from mansard.trace.profile_steps import ProfileSteps
from mansard.trace.regions import Match, Ranges, Region, region
from mansard.trace.run import Finding
from mansard.trace.timeline import Kind, Timeline

Int64Array = npt.NDArray[np.int64]

#: What must be stated before an MFU may be quoted, and the options that state it.
MUST_BE_KNOWN = (
    (
        "tokens",
        "tokens, micro-batch and accumulation per optimizer step",
        "--tokens, or --model with --batch and --seq",
    ),
    ("accumulation", "gradient accumulation per optimizer step", "--accumulation"),
    ("layers", "layers and active experts", "--model"),
    ("step", "one step's wall time: the region must be one optimizer step", "--region with the step's marker"),
    ("devices", "the devices in that step", "--gpus"),
    ("dtype", "element type of the matrix work", "--dtype"),
    ("peak", "dense peak of that type", "--peak, or --hardware"),
    ("checkpointing", "whether activations are recomputed", "--recompute"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The work of a region, as the caller states it.

    Args:
        flop: Model FLOP of the region on all devices in it [FLOP].
        executed_flop: FLOP executed, recomputation counted [FLOP].
        tokens: Tokens processed.
        source: Where these come from.
        stated: Names of `MUST_BE_KNOWN` that the caller stated.
    """

    flop: float | Unknown
    executed_flop: float | Unknown = field(
        default_factory=lambda: Unknown("the FLOP that were executed are not given", ("--executed-flops", "--model"))
    )
    tokens: float | Unknown = field(default_factory=lambda: Unknown("tokens are not given", ("--tokens",)))
    source: str = ""
    stated: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionUse:
    """How a region used the devices.

    Args:
        region: The range, and which occurrence.
        cpu_span_s: Its length on the host [s].
        device_span_s: From the first start to the last end of the device work it launched [s].
        wall_s: The time MFU is taken over [s], and `wall_is` says which of the two.
        kernel_sum_s: Summed kernel time [s].
        kernel_union_s: Time in which a kernel of it runs [s]; without a device: on any device.
        per_device_s: Union of its kernels per device number [s].
        kernels: Kernels in it.
        devices: Devices its work ran on.
        work: FLOP and tokens.
        peak: Dense peak of one device.
        mfu, hfu: Over wall time; `kernel_union`: over the union, a diagnostic and no MFU.
        steps: Steps that start inside it; `Unknown` where the profile shows none.
        tokens_per_s: Over wall time [token/s].
        missing: What is missing before an MFU may be quoted.
        findings: What a reader should know.
    """

    region: Region
    cpu_span_s: float
    device_span_s: float | Unknown
    wall_s: float
    wall_is: str
    kernel_sum_s: float
    kernel_union_s: float
    union_is: str
    per_device_s: dict[str, float]
    kernels: int
    devices: int
    work: Work
    peak: Ceiling | Unknown
    mfu: float | Unknown | Implausible
    hfu: float | Unknown | Implausible
    kernel_union: float | Unknown | Implausible
    steps: int | Unknown
    tokens_per_s: float | Unknown
    missing: tuple[str, ...]
    findings: tuple[Finding, ...]

    @property
    def refused(self) -> bool:
        """Whether a ratio is above 1, so that none may be used."""
        return isinstance(self.mfu, Implausible) or isinstance(self.hfu, Implausible)


def region_of_kernels(timeline: Timeline, name: str, *, device: int | None = None) -> Region:
    """Return the kernels whose short name contains `name` as one region, from the first start to the last end.

    Args:
        timeline: The profile.
        name: Part of a kernel's short name.
        device: Index of a device.

    Raises:
        UsageError: No kernel has that name.
    """
    table = timeline.of(Kind.KERNEL)
    used = np.unique(table.name) if len(table) else np.zeros(0, dtype=np.int32)
    hit = [int(i) for i in used if name in short_name(timeline.names[int(i)])]
    mask = np.isin(table.name, hit)
    if device is not None:
        mask &= table.device == device
    rows = np.flatnonzero(mask)
    if not rows.size:
        raise UsageError(
            f"no kernel has {name!r} in its short name",
            hint="mansard trace kernels lists them",
            code="kernel_not_found",
        )
    start, end = int(table.start_ns[rows].min()), int(table.end_ns[rows].max())
    return Region(
        name=name, occurrence=1, occurrences=1, start_ns=start, end_ns=end, work=rows, device_start_ns=start,
        device_end_ns=end, other_threads=0, other_threads_ns=0,
    )  # fmt: skip


def region_use(
    ranges: Ranges,
    name: str,
    work: Work,
    peak: Ceiling | Unknown,
    *,
    occurrence: int = 1,
    match: Match = "auto",
    device: int | None = None,
    gpus: int | None = None,
    all_threads: bool = False,
    of_kernels: bool = False,
    steps: ProfileSteps | None = None,
) -> RegionUse:
    """Return how one occurrence of a region used its devices.

    Args:
        ranges: Ranges of the profile with their work.
        name: The region.
        work: Its FLOP and tokens.
        peak: Dense peak of one device.
        occurrence: Which one, from 1; one range, never a sum of several.
        match: How the name is compared.
        device: Index of a device; work on others is left out.
        gpus: How many devices the caller believes take part; must be what the profile shows.
        all_threads: Count work that other threads launched during it.
        of_kernels: `name` is part of kernel names instead of a range.
        steps: Steps of the profile.

    Raises:
        UsageError: No such region, or another number of devices.
        UndecidedError: The region launched no device work.
    """
    timeline, table = ranges.timeline, ranges.launches.work
    if of_kernels:
        found = region_of_kernels(timeline, name, device=device)
    else:
        found = region(ranges, name, occurrence=occurrence, match=match, device=device, all_threads=all_threads)
    if not found.work.size:
        raise UndecidedError(
            f"the range {found.name!r} (occurrence {found.occurrence} of {found.occurrences}) launched no device work that was recorded",
            hint=_no_work_hint(found), code="no_device_work",
        )  # fmt: skip
    kernels = found.work[np.isin(ranges.launches.kind[found.work], (int(Kind.KERNEL), int(Kind.GRAPH)))]
    used = sorted({int(d) for d in np.unique(table.device[found.work])})
    _check_devices(len(used), gpus, device)
    start, end = table.start_ns[kernels], table.end_ns[kernels]
    union = merge(start, end).length_ns / 1e9
    cpu_span = (found.end_ns - found.start_ns) / 1e9
    device_span = (found.device_end_ns - found.device_start_ns) / 1e9
    wall, wall_is = _wall(found, cpu_span, device_span, of_kernels=of_kernels)
    findings = _findings(ranges, found, cpu_span, len(used), union, wall)
    ratios = _ratios(work, wall, union, peak, len(used))
    inside = _steps_inside(found, steps)
    return RegionUse(
        region=found, cpu_span_s=cpu_span, device_span_s=device_span, wall_s=wall, wall_is=wall_is,
        kernel_sum_s=int((end - start).sum()) / 1e9, kernel_union_s=union,
        union_is="of the device that was chosen" if device is not None else "the device" if len(used) == 1 else "any device busy",
        per_device_s={
            timeline.devices[d].shown: merge(start[table.device[kernels] == d], end[table.device[kernels] == d]).length_ns / 1e9
            for d in used
        },
        kernels=int(kernels.size), devices=len(used), work=work, peak=peak, mfu=ratios[0], hfu=ratios[1],
        kernel_union=ratios[2], steps=inside,
        tokens_per_s=work.tokens / wall if is_known(work.tokens) and wall > 0 else work.tokens,
        missing=_missing(work, peak, inside, gpus), findings=tuple(findings),
    )  # fmt: skip


def _no_work_hint(found: Region) -> str:
    if found.other_threads:
        return f"other threads of its process launched {found.other_threads} pieces of work meanwhile: --all-threads counts them"
    return "choose another --occurrence, or a longer capture"


def _check_devices(used: int, gpus: int | None, device: int | None) -> None:
    """Refuse a device count that is not the profile's: it would scale the peak alone and not the work."""
    if gpus is not None and gpus < 1:
        raise UsageError(f"--gpus is {gpus}, expected at least 1")
    expected = 1 if device is not None else used
    if gpus is not None and gpus != expected:
        raise UsageError(
            f"--gpus {gpus} does not fit: the work of this region ran on {expected} device{'s' if expected != 1 else ''} of this profile",
            hint="give the FLOP of the devices in this profile, and leave out --gpus; a job of several ranks has several profiles",
            code="device_count",
        )


def _wall(found: Region, cpu_span: float, device_span: float, *, of_kernels: bool) -> tuple[float, str]:
    """Return the time MFU is taken over, and which it is.

    The range on the host counts if the device work it launched ends inside it, else the longer of range and device span: a call
    returns before its kernels end, and FLOP over the call alone would be no share of anything.
    """
    if of_kernels:
        return device_span, "from the first to the last of these kernels"
    if found.device_end_ns <= found.end_ns:
        return cpu_span, "the range on the host; its device work ends inside it"
    if device_span >= cpu_span:
        return device_span, "the device span; the range returns before its device work ends"
    return cpu_span, "the range on the host, longer than its device span; its device work ends after it"


def _ratios(
    work: Work, wall: float, union: float, peak: Ceiling | Unknown, devices: int
) -> tuple[float | Unknown | Implausible, float | Unknown | Implausible, float | Unknown | Implausible]:
    if isinstance(work.flop, Unknown):
        return work.flop, work.flop, work.flop
    value = peak if isinstance(peak, Unknown) else peak.value
    over_wall = utilisation(
        model_flop=work.flop, executed_flop=work.executed_flop, wall_s=wall, peak_flop_per_s=value, devices=devices
    )
    if union <= 0:
        return over_wall.mfu_ratio, over_wall.hfu_ratio, Unknown("no kernel of the region has a length")
    over_union = utilisation(model_flop=work.flop, wall_s=union, peak_flop_per_s=value, devices=devices)
    return over_wall.mfu_ratio, over_wall.hfu_ratio, over_union.mfu_ratio


def _steps_inside(found: Region, steps: ProfileSteps | None) -> int | Unknown:
    if steps is None or not steps.count or steps.source == "periodicity":
        return Unknown("the profile marks no steps", ("ProfilerStep or NVTX ranges around each step", "--marker"))
    return int(((steps.start_ns >= found.start_ns) & (steps.start_ns < found.end_ns)).sum())


def _missing(work: Work, peak: Ceiling | Unknown, steps: int | Unknown, gpus: int | None) -> tuple[str, ...]:
    stated = set(work.stated)
    if not isinstance(peak, Unknown):
        stated.add("peak")
        if peak.resource.dtype not in (None, "unstated"):
            stated.add("dtype")
    if is_known(steps) and steps == 1:
        stated.add("step")
    if gpus is not None:
        stated.add("devices")
    return tuple(f"{text} ({how})" for key, text, how in MUST_BE_KNOWN if key not in stated)


def _findings(ranges: Ranges, found: Region, cpu_span: float, devices: int, union: float, wall: float) -> list[Finding]:
    findings = [
        Finding(
            code="one_occurrence",
            text=f"this is occurrence {found.occurrence} of {found.occurrences}; the FLOP must be those of one occurrence",
        )
    ]
    if found.device_end_ns > found.end_ns:
        text = f"the range lasts {cpu_span * 1e3:.3f} ms on the host and returns before its device work ends; FLOP over that time would be no share of anything"
        findings.append(Finding(code="asynchronous", text=text))
    if found.other_threads:
        text = (
            f"other threads of the process launched {found.other_threads} pieces of work ({found.other_threads_ns / 1e6:.3f} ms) "
            "during it, such as autograd's backward; they are not in it (--all-threads counts them)"
        )
        findings.append(Finding(code="other_threads", text=text))
    launches = ranges.launches
    kernels = launches.kind == int(Kind.KERNEL)
    total = int(kernels.sum())
    linked = int((kernels & launches.launched).sum())
    if linked < total:
        text = f"{total - linked} of {total} kernels of the profile have no call that launched them, so they can belong to no range"
        findings.append(Finding(code="unlinked_kernels", text=text))
    if devices > 1:
        text = f"the work ran on {devices} devices; the union is the time in which any of them is busy, not that of one"
        findings.append(Finding(code="several_devices", text=text))
    if wall > union > 0:
        text = (
            f"{(wall - union) * 1e3:.3f} ms of the wall time have no kernel of it; that is not communication by itself"
        )
        findings.append(Finding(code="rest_of_wall", text=text))
    return findings


@dataclass(frozen=True, slots=True, kw_only=True)
class Intensity:
    """Arithmetic intensity of one device in a window, against its ridge point.

    Args:
        flop, bytes: Work and traffic of the window on that device [FLOP], [B].
        flop_per_byte: Their quotient.
        ridge_flop_per_byte: Peak over bandwidth.
        achieved_flop_per_s: FLOP over the union of kernels [FLOP/s].
        union_s: Time in which a kernel runs [s].
        kernels: Kernels in the window.
        bound: The verdict; `undetermined` without bytes or ceilings, or far below the limiting ceiling.
        limiting: The ceiling that decides the least time, in words.
        share_of_ceiling: Least time over the union.
        compute_share: Achieved over peak.
        reason: Why.
        peak, bandwidth: The ceilings.
        findings: What a reader should know.
    """

    flop: float | Unknown
    bytes: float | Unknown
    flop_per_byte: float | Unknown
    ridge_flop_per_byte: float | Unknown
    achieved_flop_per_s: float | Unknown
    union_s: float
    kernels: int
    bound: Bound
    limiting: str
    share_of_ceiling: float | Unknown | Implausible
    compute_share: float | Unknown | Implausible
    reason: str
    peak: Ceiling | Unknown
    bandwidth: Ceiling | Unknown
    findings: tuple[Finding, ...] = ()


def intensity(
    timeline: Timeline,
    *,
    device: int,
    flop: float | Unknown,
    moved_bytes: float | Unknown,
    peak: Ceiling | Unknown,
    bandwidth: Ceiling | Unknown,
    findings: Sequence[Finding] = (),
    rows: npt.NDArray[np.bool_] | None = None,
) -> Intensity:
    """Return the intensity of one device's work in a profile, or in a window of it.

    Args:
        timeline: The profile or the window; FLOP and bytes must be of the same.
        device: Index of the device.
        flop: FLOP on that device [FLOP].
        moved_bytes: Bytes between that device and its main memory [B].
        peak, bandwidth: Its ceilings.
        findings: Kept.
        rows: Which kernels FLOP and bytes are of, as a mask of the kernel table; None takes all of the device.

    Raises:
        UndecidedError: The device ran no kernel.
    """
    table = timeline.of(Kind.KERNEL) if rows is not None else timeline.of(Kind.KERNEL, Kind.GRAPH)
    mask = table.device == device
    if rows is not None:
        mask &= rows
    union = merge(table.start_ns[mask], table.end_ns[mask]).length_ns / 1e9
    if union <= 0:
        raise UndecidedError(
            "the device ran no kernel in this window", hint="choose another --device or --trim", code="no_kernels"
        )
    achieved = flop / union
    ratio = flop / moved_bytes
    ridge: float | Unknown = (
        peak
        if isinstance(peak, Unknown)
        else bandwidth
        if isinstance(bandwidth, Unknown)
        else peak.value / bandwidth.value
    )
    compute = _compute_share(flop, union, peak)
    judged = _judged(flop, moved_bytes, peak, bandwidth, union)
    return Intensity(
        flop=flop, bytes=moved_bytes, flop_per_byte=ratio, ridge_flop_per_byte=ridge, achieved_flop_per_s=achieved, union_s=union,
        kernels=int((mask & (np.arange(len(table)) < len(timeline.of(Kind.KERNEL)))).sum()), bound=judged[0], limiting=judged[1],
        share_of_ceiling=judged[2], compute_share=compute, reason=judged[3], peak=peak, bandwidth=bandwidth, findings=tuple(findings),
    )  # fmt: skip


def _compute_share(flop: float | Unknown, union: float, peak: Ceiling | Unknown) -> float | Unknown | Implausible:
    if isinstance(flop, Unknown):
        return flop
    value = peak if isinstance(peak, Unknown) else peak.value
    return utilisation(model_flop=flop, wall_s=union, peak_flop_per_s=value).mfu_ratio


def _judged(
    flop: float | Unknown,
    moved_bytes: float | Unknown,
    peak: Ceiling | Unknown,
    bandwidth: Ceiling | Unknown,
    union: float,
) -> tuple[Bound, str, float | Unknown | Implausible, str]:
    """Return verdict, limiting ceiling, share and reason; without bytes there is no class, however low the MFU."""
    for value, why in (
        (moved_bytes, "no bytes, no class: a low MFU alone never means memory-bound"),
        (flop, "no FLOP are known"),
        (peak, "the peak is not known"),
        (bandwidth, "the memory bandwidth is not known"),
    ):
        if isinstance(value, Unknown):
            return Bound.UNDETERMINED, "", value, f"{why} ({value.reason})"
    if isinstance(peak, Unknown) or isinstance(bandwidth, Unknown) or not is_known(flop) or not is_known(moved_bytes):
        raise AssertionError("every unknown was answered above")
    level = bandwidth.resource.level or "hbm"
    key = (peak.resource.dtype or "unstated", peak.resource.accumulate or "f32")
    demand = Demand(flop={key: flop}, level_bytes={level: moved_bytes}, launches=0.0)
    machine = Ceilings(ceilings=(peak, bandwidth), levels=(MemoryLevel(level=level, capacity_bytes=float("inf")),))
    verdict = judge(least_time(demand, machine, scope="device"), union)
    label = verdict.limiting.ceiling.resource.label if verdict.limiting else ""
    share = verdict.share_of_ceiling
    reason = verdict.reason
    if is_known(share) and share < BOUND_SHARE:
        reason = f"far below its ceiling ({label}): {reason}"
    return verdict.bound, label.replace("unstated ", ""), share, reason
