"""What is done with an opened profile before a question is asked: measured demand, a window, one device."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from pathlib import Path

from mansard.core.errors import UsageError
from mansard.core.units import parse_quantity
from mansard.trace.kernel_demand import KernelDemand, recorded_demand, with_demand
from mansard.trace.ncu_demand import demand_of_report
from mansard.trace.readers.ncu import read_report
from mansard.trace.timeline import Timeline
from mansard.trace.window import origin_ns, trim


def with_counters(timeline: Timeline, report: str | Path | None) -> Timeline:
    """Return a profile whose kernels have their FLOP and bytes: an Nsight Compute report first, then the profile itself.

    Args:
        timeline: The profile.
        report: The CSV of the same program; None where there is none.
    """
    found: list[KernelDemand] = []
    if report is not None:
        found.append(demand_of_report(timeline, read_report(Path(report))))
    return with_demand(timeline, [*found, *recorded_demand(timeline)])


def cut(timeline: Timeline, window: tuple[str | float, str | float] | None) -> Timeline:
    """Return the window of a profile that was asked for, or the whole of it.

    Args:
        timeline: The profile.
        window: Start and end from the start of the capture: seconds, or text with a unit such as "300 ms".
    """
    if not window:
        return timeline
    zero = origin_ns(timeline)
    start, end = (zero + _time_ns(text) for text in window)
    return trim(timeline, start, end)


def _time_ns(given: str | float) -> int:
    """Return a time of a window in ns: plain seconds, or a number with a unit."""
    try:
        value = Decimal(str(given))
        if value.is_finite() and value >= 0:
            return int((value * 10**9).to_integral_value())
        raise UsageError(f"--trim {given}: expected a time from 0 on")
    except InvalidOperation:
        return round(parse_quantity(str(given), "s") * 1e9)


def device_index(timeline: Timeline, number: int | None) -> int | None:
    """Return the index of the device that people know by a number.

    Raises:
        UsageError: The profile has none of that number, or several (of several ranks).
    """
    if number is None:
        return None
    hits = [i for i, d in enumerate(timeline.devices) if d.number == number and i in timeline.used_devices]
    whole = [i for i in hits if not timeline.devices[i].label]  # not a part of it, such as a SparseCore of a TPU
    if len(hits) == 1 or len(whole) == 1:
        return (whole or hits)[0]
    used = ", ".join(timeline.devices[i].shown for i in timeline.used_devices) or "none"
    if not hits:
        raise UsageError(
            f"no device {number} did any work in this profile", hint=f"devices with work: {used}", code="no_such_device"
        )
    raise UsageError(
        f"several devices have the number {number}: {used}", hint="open one rank's file alone", code="ambiguous_device"
    )
