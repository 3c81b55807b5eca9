"""The gaps between kernels of a device one by one: where they lie, why, and what ran before and after."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mansard.core.intervals import IntervalSet, merge, union
from mansard.trace.launches import Launches, join_launches
from mansard.trace.occupancy import CAUSES, COPY_ONLY, DEVICE_KINDS, HostView, WorkPart, work_part
from mansard.trace.regions import attribute, innermost
from mansard.trace.timeline import NONE, Kind, Timeline

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """One gap of a device.

    Args:
        device: Index of the device.
        start_ns, end_ns: When [ns].
        causes_ns: Its time by cause; they add up to its length [ns].
        before: Name of the work that ended last before it.
        after: Name of the work that ends it.
        launched_from: Innermost range or operation of the host that the work after it was launched from; empty where none is known.
    """

    device: int
    start_ns: int
    end_ns: int
    causes_ns: Mapping[str, int]
    before: str
    after: str
    launched_from: str

    @property
    def length_ns(self) -> int:
        """How long it is [ns]."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Gaps:
    """The gaps of a device that are longer than asked for.

    Args:
        device: Index of the device.
        count: Gaps of any length.
        total_ns: Their time [ns].
        longer: How many are longer than asked for.
        longer_ns: Their time [ns].
        longest: The longest of them, the longest first.
    """

    device: int
    count: int
    total_ns: int
    longer: int
    longer_ns: int
    longest: tuple[Gap, ...]


def gaps_of(
    timeline: Timeline,
    device: int,
    *,
    over_ns: int = 0,
    most: int = 20,
    all_work: bool = False,
    launches: Launches | None = None,
) -> Gaps:
    """Return the gaps between kernels of one device.

    Args:
        timeline: The profile, or a window of it.
        device: Index of the device.
        over_ns: Only those that are longer [ns].
        most: How many to return one by one.
        all_work: Copies and fills end a gap as kernels do.
        launches: Joined launches, where they are at hand.
    """
    launches = launches or join_launches(timeline)
    parts = {k: work_part(timeline.of(k), device) for k in DEVICE_KINDS}
    wanted = DEVICE_KINDS if all_work else (Kind.KERNEL, Kind.GRAPH)
    gaps = union([merge(parts[k].start_ns, parts[k].end_ns) for k in wanted]).gaps()
    length = gaps.end_ns - gaps.start_ns
    longer = np.flatnonzero(length > over_ns)
    chosen = longer[np.lexsort((gaps.start_ns[longer], -length[longer]))][:most]
    start, end = gaps.start_ns[chosen], gaps.end_ns[chosen]
    host = HostView(timeline, launches)
    causes = _causes(host, parts, start, end)
    ending = {k: parts[k] for k in wanted}
    before, after = _names(timeline, ending, start, ends=True), _names(timeline, ending, end)
    origin = _origins(timeline, launches, host.next_call(ending, end))
    return Gaps(
        device=device, count=len(gaps), total_ns=int(length.sum()), longer=int(longer.size), longer_ns=int(length[longer].sum()),
        longest=tuple(
            Gap(device=device, start_ns=int(start[i]), end_ns=int(end[i]), causes_ns={c: int(causes[c][i]) for c in CAUSES},
                before=before[i], after=after[i], launched_from=origin[i])
            for i in range(chosen.size)
        ),
    )  # fmt: skip


def _causes(
    host: HostView, parts: Mapping[Kind, WorkPart], start: Int64Array, end: Int64Array
) -> dict[str, Int64Array]:
    """Return the time of each gap between kernels by cause; the parts of it in which a copy or a fill runs are one."""
    work = union([merge(p.start_ns, p.end_ns) for p in parts.values()])
    order = np.argsort(start, kind="stable")
    outer = IntervalSet(start_ns=start[order], end_ns=end[order])
    inner = work.gaps()
    place = np.searchsorted(outer.start_ns, inner.start_ns, side="right") - 1
    inside = (place >= 0) & (inner.end_ns <= outer.end_ns[np.maximum(place, 0)]) if len(outer) else place > 0
    place = place[inside]
    found, _ = host.gap_causes(parts, inner.start_ns[inside], inner.end_ns[inside], host.waits(parts))
    back = np.empty(order.size, dtype=np.int64)
    back[order] = np.arange(order.size)
    causes: dict[str, Int64Array] = {}
    for cause, lengths in found.items():
        total = np.zeros(start.size, dtype=np.int64)
        np.add.at(total, place, lengths)
        causes[cause] = total[back]
    known = sum(causes.values(), np.zeros(start.size, dtype=np.int64))
    return {COPY_ONLY: end - start - known, **causes}


def _names(
    timeline: Timeline, parts: Mapping[Kind, WorkPart], times: Int64Array, *, ends: bool = False
) -> tuple[str, ...]:
    """Return the name of the work that starts, or ends, at each of these times; of several the first of the table."""
    found = [""] * times.size
    for kind, part in parts.items():
        if not part.rows.size or not times.size:
            continue
        edge = part.end_ns if ends else part.start_ns
        order = np.argsort(edge, kind="stable")
        place = np.minimum(np.searchsorted(edge[order], times), part.rows.size - 1)
        hit = edge[order[place]] == times
        names = timeline.of(kind).name[part.rows[order[place]]]
        for i in np.flatnonzero(hit).tolist():
            found[i] = found[i] or timeline.names[int(names[i])]
    return tuple(found)


def _origins(timeline: Timeline, launches: Launches, calls: Int64Array) -> list[str]:
    """Return the innermost range or operation that each call lies in."""
    kinds = tuple(k for k in (Kind.ANNOTATION, Kind.CPU_OP) if k in timeline.tables)
    if not kinds or not (calls != NONE).any():
        return [""] * calls.size
    ranges = attribute(timeline, kinds=kinds, launches=launches)
    inner = innermost(ranges)
    rank = np.full(len(launches.calls), NONE, dtype=np.int64)
    rank[launches.used_calls] = np.arange(launches.used_calls.size)
    names = []
    for call in calls.tolist():
        place = int(inner[rank[call]]) if call != NONE else NONE
        names.append(timeline.names[int(ranges.table.name[place])] if place != NONE else "")
    return names
