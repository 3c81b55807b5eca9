"""A part of a profile between two times; events are clipped, never left whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from mansard.core.errors import UsageError
from mansard.trace.launches import match
from mansard.trace.matching import Match, kernels_matching
from mansard.trace.run import Finding
from mansard.trace.timeline import DEVICE_WORK, Events, Kind, Timeline


def extent(timeline: Timeline, *, kinds: tuple[Kind, ...] = ()) -> tuple[int, int] | None:
    """Return the first start and the last end of the events [ns], or None where there are none.

    Args:
        timeline: The profile.
        kinds: Of these kinds; empty takes all.
    """
    tables = [t for k, t in timeline.tables.items() if len(t) and (not kinds or k in kinds)]
    if not tables:
        return None
    return min(int(t.start_ns.min()) for t in tables), max(int(t.end_ns.max()) for t in tables)


def origin_ns(timeline: Timeline) -> int:
    """Return the time that a window counts from [ns]: the start of the capture where the file has one, else the first event."""
    if timeline.clock.domain == "capture":
        return 0
    found = extent(timeline)
    return found[0] if found else 0


def trim(timeline: Timeline, start_ns: int, end_ns: int) -> Timeline:
    """Return the part of a profile inside [start, end).

    Device work and waits are clipped to the window. Calls and ranges that reach into it stay whole, since they are what
    work is linked by.

    Args:
        timeline: The profile.
        start_ns, end_ns: The window [ns], in the times of the profile.

    Raises:
        UsageError: It is empty, or lies outside the profile.
    """
    found = extent(timeline)
    if found is None:
        raise UsageError("the profile has no events to trim")
    shown = _shown(found, timeline)
    if end_ns <= start_ns:
        raise UsageError("the window is empty: its end is not after its start", hint=shown, code="empty_window")
    first, last = found
    if start_ns < min(first, origin_ns(timeline)) or end_ns > last or start_ns >= last or end_ns <= first:
        raise UsageError("the window reaches outside the profile", hint=shown, code="window_out_of_range")
    clipped_kinds = {*DEVICE_WORK, Kind.SYNC, Kind.DEVICE_ANNOTATION}
    tables = {
        kind: _inside(table, start_ns, end_ns, clip=kind in clipped_kinds) for kind, table in timeline.tables.items()
    }
    cut = sum(_crossing(timeline.tables[k], start_ns, end_ns) for k in DEVICE_WORK if k in timeline.tables)
    findings = list(timeline.findings)
    if cut:
        text = f"{cut} pieces of device work cross an edge of the window and count with the part inside"
        findings.append(Finding(code="clipped", text=text))
    findings += _launched_before(timeline, tables)
    extras = {**timeline.extras, "window_ns": (start_ns, end_ns)}
    return replace(timeline, tables=tables, findings=tuple(findings), extras=extras)


def _launched_before(timeline: Timeline, tables: Mapping[Kind, Events]) -> list[Finding]:
    """Return what to say of kernels inside the window whose call lies before it: their launch and their range are not in it."""
    kernels, kept = tables.get(Kind.KERNEL), tables.get(Kind.RUNTIME)
    if kernels is None or kept is None or not len(kernels):
        return []
    calls = timeline.of(Kind.RUNTIME)
    whole, inside = (
        int(np.count_nonzero(match(c.process, c.correlation, kernels.process, kernels.correlation)[0] >= 0))
        for c in (calls, kept)
    )
    if whole <= inside:
        return []
    text = (
        f"{whole - inside} of {len(kernels)} kernels in the window were launched before it: they count as busy time, and in no range and "
        "no launch of the window"
    )
    return [Finding(code="launched_before", text=text)]


def whole_ranges(timeline: Timeline, kinds: tuple[Kind, ...]) -> list[Finding]:
    """Return what to say of ranges on the host that reach over an edge of the window: their lengths there are whole.

    Args:
        timeline: A window of a profile, as `trim` returns it; of a whole profile there is nothing to say.
        kinds: Which host events are shown.
    """
    window = timeline.extras.get("window_ns")
    if window is None:
        return []
    start, end = window
    count = sum(int(np.count_nonzero((t.start_ns < start) | (t.end_ns > end))) for t in (timeline.of(k) for k in kinds))
    text = f"{count} ranges reach over an edge of the window: their time on the CPU is whole, that of device work the part inside"
    return [Finding(code="whole_ranges", text=text)] if count else []


def _inside(table: Events, start_ns: int, end_ns: int, *, clip: bool) -> Events:
    reaches = (table.start_ns < end_ns) & (table.end_ns > start_ns)
    reaches |= (table.start_ns == table.end_ns) & (table.start_ns >= start_ns) & (table.start_ns < end_ns)
    chosen = table.take(reaches)
    if not clip:
        return chosen
    return replace(chosen, start_ns=np.maximum(chosen.start_ns, start_ns), end_ns=np.minimum(chosen.end_ns, end_ns))


def _crossing(table: Events, start_ns: int, end_ns: int) -> int:
    left = (table.start_ns < start_ns) & (table.end_ns > start_ns)
    right = (table.start_ns < end_ns) & (table.end_ns > end_ns)
    return int(np.count_nonzero(left | right))


def _shown(found: tuple[int, int], timeline: Timeline) -> str:
    zero = origin_ns(timeline)
    return f"the events lie between {(found[0] - zero) / 1e9:.6f} s and {(found[1] - zero) / 1e9:.6f} s"


def only_device(timeline: Timeline, device: int) -> Timeline:
    """Return a profile with the work of one device alone; calls and ranges stay.

    Args:
        timeline: The profile.
        device: Index of the device.
    """
    tables = {
        kind: table.take(table.device == device) if kind in DEVICE_WORK and len(table) else table
        for kind, table in timeline.tables.items()
    }
    return replace(timeline, tables=tables)


def only_thread(timeline: Timeline, tid: str, *, kinds: tuple[Kind, ...]) -> Timeline:
    """Return a profile with the host events of one thread alone; everything else stays.

    Args:
        timeline: The profile.
        tid: Id of the thread as the file writes it.
        kinds: The events that are meant.

    Raises:
        UsageError: No such thread has events of these kinds.
    """
    chosen = np.array([str(t.tid) == tid for t in timeline.threads] + [False], dtype=np.bool_)
    tables = {k: t.take(chosen[t.thread]) if k in kinds and len(t) else t for k, t in timeline.tables.items()}
    if not any(len(tables[k]) for k in kinds if k in tables):
        used = {
            int(i)
            for k in kinds
            if k in timeline.tables
            for i in np.unique(timeline.tables[k].thread).tolist()
            if i >= 0
        }
        shown = ", ".join(sorted({str(timeline.threads[i].tid) for i in used})[:12])
        raise UsageError(
            f"no thread {tid} has ranges", hint=f"threads with ranges: {shown or 'none'}", code="no_such_thread"
        )
    return replace(timeline, tables=tables)


def only_kernels(timeline: Timeline, name: str, *, match: Match = "auto") -> Timeline:
    """Return a profile with the kernels of a name alone; everything else stays.

    Args:
        timeline: The profile.
        name: What to look for.
        match: As in `matching.kernels_matching`.

    Raises:
        UsageError: No kernel has that name.
    """
    table = timeline.of(Kind.KERNEL)
    hit = kernels_matching(timeline.names, np.unique(table.name).tolist(), name, match) if len(table) else []
    if not hit:
        raise UsageError(
            f"no kernel has the name {name!r} ({match})",
            hint="mansard trace kernels lists them",
            code="kernel_not_found",
        )
    return replace(timeline, tables={**timeline.tables, Kind.KERNEL: table.take(np.isin(table.name, hit))})
