"""What a sound file never has: kernels before their launch, slices of one queue over each other, rows out of order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.core.unknown import Unknown
from mansard.trace.run import Finding
from mansard.trace.timeline import DEVICE_WORK, NONE, Damage, Events, Kind, Timeline


def check(timeline: Timeline, head: Mapping[str, Any]) -> tuple[tuple[Damage, ...], tuple[Finding, ...]]:
    """Return damage and findings about the order and overlap of device events.

    Args:
        timeline: What was read.
        head: What the file says beside its events.
    """
    damage: list[Damage] = []
    findings: list[Finding] = []
    early = _before_launch(timeline)
    if early:
        text = f"{early} kernels, copies or fills start before the call that launched them: the clocks of host and device disagree"
        damage.append(Damage(code="before_launch", text=text, count=early))
    for kind in DEVICE_WORK:
        if kind not in timeline.tables:
            continue
        count, over = stream_overlap(timeline.tables[kind])
        if not count:
            continue
        word = {Kind.KERNEL: "kernels", Kind.COPY: "copies", Kind.MEMSET: "fills"}.get(kind, "graphs")
        if is_rocm(timeline, head):
            text = (
                f"{count} {word} run past the start of the next on the same queue, by {over} ns in all, as ROCm records them; "
                "they are not clipped, so their sum counts that time twice and their union once"
            )
            damage.append(Damage(code="overlapping_slices", text=text, count=count))
        else:
            text = (
                f"{count} {word} start before the previous one on the same stream has ended, by {over} ns in all "
                "(programmatic dependent launch, or times of whole microseconds): their sum exceeds the time they took."
            )
            findings.append(Finding(code="stream_overlap", text=text))
    return tuple(damage), tuple(findings)


def is_rocm(timeline: Timeline, head: Mapping[str, Any]) -> bool:
    """Return whether the file comes from an AMD device."""
    if any(k in head for k in ("roctracer_version", "hip_runtime_version", "rocprofiler_version")):
        return True
    return any(not isinstance(d.name, Unknown) and ("AMD" in d.name or "Instinct" in d.name) for d in timeline.devices)


def stream_overlap(table: Events) -> tuple[int, int]:
    """Return how many events start before an earlier one on their stream has ended, and by how much in all [ns].

    >>> from mansard.trace.timeline import events
    >>> two = events(start_ns=np.array([0, 8]), end_ns=np.array([10, 12]), device=0, stream=7)
    >>> stream_overlap(two), stream_overlap(two.take(np.array([0])))
    ((1, 2), (0, 0))
    """
    if len(table) < 2:
        return 0, 0
    order = np.lexsort((-table.end_ns, table.start_ns, table.stream, table.device))
    start, end = table.start_ns[order], table.end_ns[order]
    lane = _lanes(table.device[order], table.stream[order])
    reached = _running_end(end, lane)
    same = lane[1:] == lane[:-1]
    over = np.where(same, np.minimum(reached[:-1], end[1:]) - start[1:], 0)
    return int(np.count_nonzero(over > 0)), int(over[over > 0].sum())


def _lanes(device: npt.NDArray[Any], stream: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    new = np.ones(device.size, dtype=np.bool_)
    new[1:] = (device[1:] != device[:-1]) | (stream[1:] != stream[:-1])
    return np.cumsum(new)


def _running_end(end: npt.NDArray[np.int64], lane: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the latest end so far within each lane."""
    out = np.empty_like(end)
    edges = np.flatnonzero(np.diff(lane)) + 1
    for part, target in zip(np.split(end, edges), np.split(out, edges), strict=True):
        np.maximum.accumulate(part, out=target)
    return out


def _before_launch(timeline: Timeline) -> int:
    calls = timeline.tables.get(Kind.RUNTIME)
    if calls is None or not len(calls):
        return 0
    order = np.lexsort((calls.start_ns, calls.correlation, calls.process))
    key = _key(calls.process[order], calls.correlation[order])
    start = calls.start_ns[order]
    early = 0
    for kind in DEVICE_WORK:
        table = timeline.tables.get(kind)
        if table is None or not len(table):
            continue
        wanted = _key(table.process, table.correlation)
        at = np.minimum(np.searchsorted(key, wanted), key.size - 1)
        found = (key[at] == wanted) & (table.correlation != NONE) & (table.process != NONE)
        early += int(np.count_nonzero(found & (table.start_ns < start[at])))
    return early


def _key(process: npt.NDArray[Any], correlation: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return (process.astype(np.int64) << 44) ^ correlation
