"""Arithmetic intensity of one device in a window of a profile. No bytes, no class; no exact chip and no given peak, no ridge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mansard.core.bound import BOUND_SHARE, Bound, judge, least_time
from mansard.core.ceilings import Ceiling, Ceilings, MemoryLevel
from mansard.core.demand import Demand
from mansard.core.errors import UndecidedError
from mansard.core.intervals import merge
from mansard.core.unknown import Implausible, Unknown, is_known
from mansard.predict.utilisation import utilisation
from mansard.trace.run import Finding
from mansard.trace.timeline import Kind, Timeline


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
    if flop == 0:  # copies and fills alone: nothing of the arithmetic is used
        return value if isinstance(value, Unknown) else 0.0
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
    if peak.resource.engine == "vector":
        demand = Demand(vector_flop={key[0]: flop}, level_bytes={level: moved_bytes}, launches=0.0)
    else:
        demand = Demand(flop={key: flop}, level_bytes={level: moved_bytes}, launches=0.0)
    machine = Ceilings(ceilings=(peak, bandwidth), levels=(MemoryLevel(level=level, capacity_bytes=float("inf")),))
    verdict = judge(least_time(demand, machine, scope="device"), union)
    label = verdict.limiting.ceiling.resource.label if verdict.limiting else ""
    share = verdict.share_of_ceiling
    reason = verdict.reason
    if is_known(share) and share < BOUND_SHARE:
        reason = f"far below its ceiling ({label}): {reason}"
    return verdict.bound, label.replace("unstated ", ""), share, reason
