"""MFU of a region of a profile: the profile says when, the caller or its records what, the hardware how fast.

Nothing is filled in: no FLOP, no MFU; no exact chip and no given peak, no ratio; FLOP and time of different scope, no ratio.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from mansard.core.ceilings import Ceiling
from mansard.core.errors import UndecidedError, UsageError
from mansard.core.intervals import merge
from mansard.core.unknown import Implausible, Unknown, is_known
from mansard.predict.utilisation import utilisation
from mansard.trace.categories import short_name
from mansard.trace.kernel_demand import Counted, counted
from mansard.trace.matching import Match
from mansard.trace.profile_steps import ProfileSteps
from mansard.trace.regions import Ranges, Region, region
from mansard.trace.run import Finding
from mansard.trace.timeline import Kind, Timeline

Int64Array = npt.NDArray[np.int64]

COVERED = 0.99  # FLOP counted from at least this share of kernel time are those of the region

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
        of: What they are the work of, in words, such as `one forward`.
        stated: Names of `MUST_BE_KNOWN` that the caller stated; `no_recompute` where nothing is recomputed.
        recorded: Whether they were counted from the profile, so that they are those of the region.
    """

    flop: float | Unknown
    executed_flop: float | Unknown = field(
        default_factory=lambda: Unknown("the FLOP that were executed are not given", ("--executed-flops", "--model"))
    )
    tokens: float | Unknown = field(default_factory=lambda: Unknown("tokens are not given", ("--tokens",)))
    source: str = ""
    of: str = ""
    stated: frozenset[str] = frozenset()
    recorded: bool = False


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
        recorded: FLOP and bytes of its kernels by what the profile recorded.
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
    recorded: Counted | Unknown

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
    flop_of: str | None = None,
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
        flop_of: `step` or `region`: what the FLOP count where the region holds several steps.

    Raises:
        UsageError: No such region, or another number of devices.
        UndecidedError: The region launched no device work.
    """
    table = ranges.launches.work
    if of_kernels:
        found = region_of_kernels(ranges.timeline, name, device=device)
    else:
        found = region(ranges, name, occurrence=occurrence, match=match, device=device, all_threads=all_threads)
    if not found.work.size:
        raise UndecidedError(
            f"the range {found.name!r} (occurrence {found.occurrence} of {found.occurrences}) launched no device work that was recorded",
            hint=_no_work_hint(found), code="no_device_work",
        )  # fmt: skip
    used = sorted({int(d) for d in np.unique(table.device[found.work])})
    _check_devices(len(used), gpus, device)
    time = _region_time(ranges, found, used, of_kernels=of_kernels)
    inside = _steps_inside(found, steps)
    recorded = counted(ranges.timeline, time.kernels[time.kernels < len(ranges.timeline.of(Kind.KERNEL))])
    launches = ranges.launches
    unlinked = bool(((launches.kind == int(Kind.KERNEL)) & ~launches.launched).any())
    alone = not found.other_threads and not unlinked
    work, findings = _scoped(_or_recorded(work, recorded), inside, flop_of, recorded, alone=alone)
    findings += _findings(ranges, found, time.cpu_span_s, len(used), time.union_s, time.wall_s)
    ratios = _ratios(work, time.wall_s, time.union_s, peak, len(used))
    return RegionUse(
        region=found, cpu_span_s=time.cpu_span_s, device_span_s=time.device_span_s, wall_s=time.wall_s, wall_is=time.wall_is,
        kernel_sum_s=time.sum_s, kernel_union_s=time.union_s,
        union_is="of the device that was chosen" if device is not None else "the device" if len(used) == 1 else "any device busy",
        per_device_s=time.per_device_s, kernels=int(time.kernels.size), devices=len(used), work=work, peak=peak, mfu=ratios[0],
        hfu=ratios[1], kernel_union=ratios[2], steps=inside,
        tokens_per_s=work.tokens / time.wall_s if is_known(work.tokens) and time.wall_s > 0 else work.tokens,
        missing=_missing(work, peak, inside, gpus), findings=tuple(findings), recorded=recorded,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Time:
    """Times of a region [s]; see `RegionUse`."""

    kernels: Int64Array
    cpu_span_s: float
    device_span_s: float
    wall_s: float
    wall_is: str
    sum_s: float
    union_s: float
    per_device_s: dict[str, float]


def _region_time(ranges: Ranges, found: Region, used: Sequence[int], *, of_kernels: bool) -> _Time:
    timeline, table = ranges.timeline, ranges.launches.work
    kernels = found.work[np.isin(ranges.launches.kind[found.work], (int(Kind.KERNEL), int(Kind.GRAPH)))]
    start, end, device = table.start_ns[kernels], table.end_ns[kernels], table.device[kernels]
    cpu_span = (found.end_ns - found.start_ns) / 1e9
    device_span = (found.device_end_ns - found.device_start_ns) / 1e9
    begin, done = found.wall_ns
    return _Time(
        kernels=kernels, cpu_span_s=cpu_span, device_span_s=device_span, wall_s=(done - begin) / 1e9,
        wall_is=_wall_is(found, cpu_span, device_span, of_kernels=of_kernels),
        sum_s=int((end - start).sum()) / 1e9, union_s=merge(start, end).length_ns / 1e9,
        per_device_s={
            timeline.devices[d].shown: merge(start[device == d], end[device == d]).length_ns / 1e9 for d in used
        },
    )  # fmt: skip


def _or_recorded(work: Work, recorded: Counted | Unknown) -> Work:
    """Return the work, with executed FLOP from what was recorded where none are given.

    Recorded operators are what was executed. Model FLOP leave recomputation out, so they are the same only where it is said
    that nothing is recomputed, and only if all kernel time is covered.
    """
    if not isinstance(work.flop, Unknown) or isinstance(recorded, Unknown) or isinstance(recorded.any_flop, Unknown):
        return work
    share = recorded.flop_coverage_ratio
    source = f"{recorded.sources.flop[0][0]}; known for {share:.1%} of the region's kernel time"
    if share < COVERED:
        text = (
            f"FLOP are known for {share:.1%} of the region's kernel time only, so their sum is a lower bound and no MFU"
        )
        unknown = Unknown(text, ("--flops", "--model"))
        return replace(work, flop=unknown, executed_flop=unknown, source=source, recorded=True)
    flop: float | Unknown = recorded.any_flop
    if "no_recompute" not in work.stated:
        flop = Unknown(
            "recorded FLOP are those executed; model FLOP leave out what was recomputed",
            ("--recompute none, if nothing is", "--flops", "--model"),
        )
    return replace(work, flop=flop, executed_flop=recorded.any_flop, source=source, recorded=True)


#: Recomputation executes at most 4/3 of the work of a step, and a full square twice its attention: more is other work.
OTHER_WORK = 1.5
_NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


def number_word(count: int) -> str:
    """Return a small number as a word.

    >>> number_word(5), number_word(40)
    ('five', '40')
    """
    return _NUMBERS[count] if count < len(_NUMBERS) else str(count)


def _scoped(
    work: Work, inside: int | Unknown, flop_of: str | None, recorded: Counted | Unknown, *, alone: bool
) -> tuple[Work, list[Finding]]:
    """Return the work of the region, whose FLOP must be those of the steps in it; unclear scope makes them unknown.

    Args:
        work: As given.
        inside: Steps that start in the region.
        flop_of: `region` or `step`: what the FLOP are said to count; None where it was not said.
        recorded: What the profile tells of its FLOP.
        alone: Whether all work of that time is the region's: no other thread launched any.
    """
    findings: list[Finding] = []
    given = work.of or "FLOP whose scope is not stated, such as one forward"
    counts = isinstance(inside, int) and inside > 1 and not work.recorded and not isinstance(work.flop, Unknown)
    if counts and isinstance(inside, int) and flop_of is None:
        words = f"{given}, {number_word(inside)} steps"
        text = (
            f"scope: {words}: the region holds {inside} steps, and it is not said whether the FLOP are those of one step or of "
            f"all; that is a factor of {inside}"
        )
        unknown = Unknown(text, ("--flops-of step", "--flops-of region"))
        work = replace(work, flop=unknown, executed_flop=unknown, tokens=unknown)
        findings.append(Finding(code="scope_of_flop", text=text))
    elif counts and isinstance(inside, int) and flop_of == "step":
        text = f"the region holds {inside} steps; FLOP and tokens are those of one step, times {inside}"
        findings.append(Finding(code="scaled_to_steps", text=text))
        work = replace(
            work, flop=work.flop * inside, executed_flop=work.executed_flop * inside, tokens=work.tokens * inside
        )
    if is_known(work.flop) and isinstance(recorded, Counted) and is_known(recorded.any_flop) and not work.recorded:
        return _against_record(work, recorded, findings, alone=alone)
    return work, findings


def _against_record(
    work: Work, recorded: Counted, findings: Sequence[Finding], *, alone: bool
) -> tuple[Work, list[Finding]]:
    """Say where the FLOP that were given may not be those of the region, by what its operators recorded, and refuse what cannot be."""
    told = work.executed_flop if is_known(work.executed_flop) else work.flop
    if not is_known(told) or not is_known(recorded.any_flop) or recorded.any_flop <= 0:
        return work, [*findings]
    ratio = float(recorded.any_flop) / float(told)
    share = recorded.flop_coverage_ratio
    whole = share >= COVERED
    if ratio > 1.1 or (whole and ratio < 0.9):
        text = (
            f"the operators in the region recorded {recorded.any_flop:.4g} FLOP{'' if whole else f' in {share:.0%} of its kernel time'}, "
            f"{ratio:.2f} times what was given: FLOP and region may not be the same work (forward against forward and backward, "
            "one step against several, one device against all)"
        )
        if ratio > OTHER_WORK or (alone and ratio * OTHER_WORK < 1.0):
            other = Unknown(text, ("--flops of this region", "--region", "--flops-of"))
            work = replace(work, flop=other, executed_flop=other)
        return work, [*findings, Finding(code="recorded_flop_differ", text=text)]
    return work, [*findings]


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


def _wall_is(found: Region, cpu_span: float, device_span: float, *, of_kernels: bool) -> str:
    """Return what the time is that MFU is taken over, `Region.wall_ns`."""
    if of_kernels:
        return "from the first to the last of these kernels"
    if found.device_end_ns <= found.end_ns:
        return "the range on the host; its device work ends inside it"
    if device_span >= cpu_span:
        return "the device span; the range returns before its device work ends"
    return "the range on the host, longer than its device span; its device work ends after it"


def _ratios(
    work: Work, wall: float, union: float, peak: Ceiling | Unknown, devices: int
) -> tuple[float | Unknown | Implausible, float | Unknown | Implausible, float | Unknown | Implausible]:
    value = peak if isinstance(peak, Unknown) else peak.value
    none = Unknown("what ran in the region does no arithmetic that counts as FLOP, so there is no utilisation of it")
    work = replace(
        work,
        flop=none if work.flop == 0 else work.flop,
        executed_flop=none if work.executed_flop == 0 else work.executed_flop,
    )
    if isinstance(work.flop, Unknown):
        if isinstance(work.executed_flop, Unknown):
            return work.flop, work.executed_flop, work.flop
        executed = utilisation(model_flop=work.executed_flop, wall_s=wall, peak_flop_per_s=value, devices=devices)
        return work.flop, executed.mfu_ratio, work.flop
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
        text = (
            f"the range lasts {cpu_span * 1e3:.3f} ms on the host and returns {(found.device_end_ns - found.end_ns) / 1e6:.3f} ms before its "
            "device work ends, which is not in the wall time used"
            if wall <= cpu_span
            else f"the range lasts {cpu_span * 1e3:.3f} ms on the host and returns before its device work ends; FLOP over that time would be "
            "no share of anything"
        )
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
