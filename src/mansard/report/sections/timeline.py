"""One step of a profile or run over time: lanes of work, exposed communication, idle time; bounded whatever the profile holds.

Pieces shorter than a slot of the picture are joined with those of their kind in the same slot; the page says how many were joined.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.core.intervals import IntervalSet, difference, merge, union
from mansard.core.units import format_s
from mansard.report.sections.blocks import number, said
from mansard.trace.categories import COLLECTIVE, UNCLASSIFIED, Rules, shipped_rules
from mansard.trace.profile_steps import ProfileSteps
from mansard.trace.run import RunTrace
from mansard.trace.timeline import Events, Kind, Timeline
from mansard.trace.window import extent

Int64Array = npt.NDArray[np.int64]

#: Kinds of a piece of time; the page has a colour and a name for each.
KINDS = ("compute", "communication", "unclassified", "copy", "memset", "graph", "operation", "idle", "exposed", "wait")
#: Most pieces and lanes of a picture, and most of one that is kept in a document.
PIECES, LANES, KEPT = 4000, 24, 600
_SLOTS = (1500, 800, 400, 200, 100, 50)
_NAME = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineBlock:
    """A picture of one stretch of time.

    Args:
        title: What is shown: which step of which device.
        window_s: How long it is [s].
        lanes: Names of the lanes, the first on top.
        pieces: Lane, start [s], length [s], position in `KINDS`, position in `names`, how many events were joined.
        names: Names of events.
        notes: Sentences below it.
    """

    title: str
    window_s: float
    lanes: tuple[str, ...]
    pieces: tuple[tuple[int, float, float, int, int, int], ...]
    names: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """Return it as a document keeps it, in seconds."""
        keys = ("lane", "start_s", "length_s", "kind", "name", "events")
        pieces = [
            dict(zip(keys, (p[0], float(f"{p[1]:.7g}"), float(f"{p[2]:.4g}"), KINDS[p[3]], self.names[p[4]], p[5]), strict=True))
            for p in self.pieces
        ]  # fmt: skip
        return {
            "title": self.title, "window_s": self.window_s, "lanes": list(self.lanes), "pieces": pieces,
            "notes": list(self.notes),
        }  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """Return it for the page, with a text for each piece."""
        shown = [
            f"{format_s(p[2])} from {format_s(p[1])}" + (f", {p[5]} events together" if p[5] > 1 else "")
            for p in self.pieces
        ]
        return {
            "kind": "timeline", "title": said(self.title), "window": self.window_s,
            "lanes": [said(name, 60) for name in self.lanes],
            "kinds": list(KINDS), "names": [said(n, _NAME) for n in self.names], "notes": [said(n) for n in self.notes],
            "pieces": [[p[0], float(f"{p[1]:.7g}"), float(f"{p[2]:.4g}"), *p[3:5]] for p in self.pieces], "shown": shown,
        }  # fmt: skip


def from_document(item: Mapping[str, Any]) -> TimelineBlock:
    """Return the picture that a document holds.

    Raises:
        KeyError, TypeError, ValueError: it is damaged.
    """
    lanes = tuple(str(x) for x in item["lanes"][:LANES])
    names: dict[str, int] = {}
    pieces = []
    for p in item["pieces"][:PIECES]:
        start, length = number(p["start_s"]), number(p["length_s"])
        if start is None or length is None or not 0 <= int(p["lane"]) < len(lanes):
            raise ValueError("a piece of the timeline has no place")
        name = names.setdefault(str(p["name"])[:400], len(names))
        pieces.append((int(p["lane"]), start, length, KINDS.index(p["kind"]), name, int(p["events"])))
    window = number(item["window_s"])
    if window is None or window <= 0:
        raise ValueError("the timeline has no length")
    return TimelineBlock(
        title=str(item["title"]), window_s=window, lanes=lanes, pieces=tuple(pieces), names=tuple(names),
        notes=tuple(str(n) for n in item["notes"][:20]),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Lane:
    """What runs on one lane: intervals with a kind and a name each, by start."""

    title: str
    start_ns: Int64Array
    end_ns: Int64Array
    kind: npt.NDArray[np.int64]
    name: npt.NDArray[np.int64]

    @property
    def busy_ns(self) -> int:
        return int((self.end_ns - self.start_ns).sum())


def of_profile(
    timeline: Timeline, steps: ProfileSteps, *, rules: Rules | None = None, most: int = PIECES
) -> TimelineBlock | None:
    """Return the picture of one step of a profile, or of all of it where no step was found; None without device work.

    Args:
        timeline: The profile.
        steps: Its steps; the one nearest to the median length is shown.
        rules: Which kernels communicate.
        most: Most pieces.
    """
    whole = extent(timeline, kinds=(Kind.KERNEL, Kind.COPY, Kind.MEMSET, Kind.GRAPH))
    if whole is None or whole[1] <= whole[0]:
        return None
    start, end, title = _window(whole, steps)
    lanes, dropped = _device_lanes(timeline, rules or shipped_rules(), start, end)
    if not lanes:
        return None
    notes = [
        "Lanes are streams. Exposed: a collective runs and no other kernel of that device does. Idle: no kernel, graph, copy or fill runs.",
        *_dropped(dropped),
    ]
    return _picture(title, lanes, (start, end), timeline.names, notes, most)


def _dropped(count: int) -> list[str]:
    return [f"{count} more lanes with less work are not drawn (at most {LANES} are)."] if count else []


def _window(whole: tuple[int, int], steps: ProfileSteps) -> tuple[int, int, str]:
    """Return start and end [ns] of what is shown, and what it is."""
    if not steps.count:
        return (
            *whole,
            f"all of the profile, {format_s((whole[1] - whole[0]) / 1e9)}: {steps.note or 'no step was found'}",
        )
    length = steps.end_ns - steps.start_ns
    first = min(steps.warm_up, steps.count - 1)
    steady = length[first:]
    chosen = first + int(np.argmin(np.abs(steady - np.median(steady))))
    start, end = int(steps.start_ns[chosen]), int(steps.end_ns[chosen])
    if end <= start:
        return *whole, "all of the profile"
    kind = "the one nearest to the median" if steps.count > 1 else "the only one"
    return start, end, f"step {chosen + 1} of {steps.count}, {format_s((end - start) / 1e9)}, {kind}"


def _kernel_kinds(timeline: Timeline, rules: Rules, table: Events) -> npt.NDArray[np.int64]:
    """Return for each name of the profile the kind of a kernel of that name; only names in `table` are looked at."""
    codes = np.full(len(timeline.names) + 1, KINDS.index("unclassified"), dtype=np.int64)
    for index in np.unique(table.name).tolist():
        if index < 0:
            continue
        category = rules.category(timeline.names[index])
        word = "communication" if category == COLLECTIVE else "unclassified" if category == UNCLASSIFIED else "compute"
        codes[index] = KINDS.index(word)
    return codes


def _device_lanes(timeline: Timeline, rules: Rules, start: int, end: int) -> tuple[list[_Lane], int]:
    """Return the lanes of every device inside a window, and how many were left out: its streams, then exposed and idle."""
    tables = {}
    for kind in (Kind.KERNEL, Kind.COPY, Kind.MEMSET, Kind.GRAPH):
        table = timeline.of(kind)
        tables[kind] = table.take(np.flatnonzero((table.end_ns > start) & (table.start_ns < end)))
    codes = _kernel_kinds(timeline, rules, tables[Kind.KERNEL])
    lanes: list[list[_Lane | None]] = []
    for device in timeline.used_devices:
        label = timeline.devices[device].shown
        lanes.append(_one_device(tables, codes, device, f"device {label}", (start, end)))
    budget = max(3, LANES // max(1, len(lanes)))
    kept, dropped = [], 0
    for of_device in lanes:
        *every, exposed, idle = of_device or [None, None]
        streams = sorted((s for s in every if s is not None), key=lambda s: -s.busy_ns)
        dropped += max(0, len(streams) - (budget - 2))
        kept += [lane for lane in (*streams[: budget - 2], exposed, idle) if lane is not None and lane.start_ns.size]
    return kept[:LANES], dropped + max(0, len(kept) - LANES)


def _one_device(
    tables: Mapping[Kind, Events], codes: npt.NDArray[np.int64], device: int, label: str,
    window: tuple[int, int],
) -> list[_Lane | None]:  # fmt: skip
    """Return the streams of one device, then what is exposed and what is idle."""
    streams: dict[int, list[_Lane]] = {}
    sets: dict[str, list[IntervalSet]] = {"communication": [], "other": [], "copies": []}
    for kind, table in tables.items():
        mine = table.take(np.flatnonzero(table.device == device))
        if not len(mine):
            continue
        if kind is Kind.KERNEL:
            kinds = codes[mine.name]
        else:
            kinds = np.full(len(mine), KINDS.index(kind.name.lower()), dtype=np.int64)
        comm = kinds == KINDS.index("communication")
        sets["communication"].append(merge(mine.start_ns[comm], mine.end_ns[comm]))
        sets["other" if kind in (Kind.KERNEL, Kind.GRAPH) else "copies"].append(
            merge(mine.start_ns[~comm], mine.end_ns[~comm])
        )
        for stream in np.unique(mine.stream).tolist():
            chosen = mine.stream == stream
            title = f"{label}, stream {stream}" if stream >= 0 else label
            lane = _Lane(
                title, mine.start_ns[chosen], mine.end_ns[chosen], kinds[chosen], mine.name[chosen].astype(np.int64)
            )
            streams.setdefault(stream, []).append(lane)
    comm, other = union(sets["communication"]), union(sets["other"])
    busy = union([comm, other, *sets["copies"]])
    if not len(busy):
        return []
    all_time = merge(np.array([window[0]]), np.array([window[1]]))
    return [
        *(_joined(parts) for parts in streams.values()),
        _of_set(f"{label}, exposed", difference(comm, other), "exposed"),
        _of_set(f"{label}, idle", difference(all_time, busy), "idle"),
    ]


def _joined(parts: Sequence[_Lane]) -> _Lane:
    columns = [np.concatenate([getattr(p, key) for p in parts]) for key in ("start_ns", "end_ns", "kind", "name")]
    order = np.argsort(columns[0], kind="stable")
    return _Lane(parts[0].title, *(c[order] for c in columns))


def _of_set(title: str, found: IntervalSet, kind: str) -> _Lane | None:
    if not len(found):
        return None
    ones = np.ones(len(found), dtype=np.int64)
    return _Lane(title, found.start_ns, found.end_ns, ones * KINDS.index(kind), -ones)


def _picture(
    title: str, lanes: Sequence[_Lane], window: tuple[int, int], names: Sequence[str], notes: Sequence[str], most: int
) -> TimelineBlock | None:
    """Return the picture with the finest slots whose pieces are few enough."""
    drawn: list[tuple[int, Int64Array]] = []
    slots, events = 0, sum(lane.start_ns.size for lane in lanes)
    # Millions of events fill every slot of every lane: sizes that cannot hold them are not tried.
    sizes = [s for s in _SLOTS if events <= 20 * most or len(lanes) * s <= 2 * most] or [_SLOTS[-1]]
    for slots in sizes:
        drawn = [(i, _pieces(lane, window, slots)) for i, lane in enumerate(lanes)]
        if sum(len(p) for _, p in drawn) <= most:
            break
    rows: list[tuple[int, float, float, int, int, int]] = []
    texts: dict[str, int] = {}
    joined = cut = 0
    for index, pieces in drawn:
        for start, end, kind, name, count in pieces.tolist():
            if len(rows) >= most:
                cut += count
                continue
            word = said(names[name], _NAME) if 0 <= name < len(names) else KINDS[kind]
            joined += count if count > 1 and KINDS[kind] not in ("idle", "exposed") else 0
            rows.append(
                (index, (start - window[0]) / 1e9, (end - start) / 1e9, kind, texts.setdefault(word, len(texts)), count)
            )
    slot = format_s((window[1] - window[0]) / slots / 1e9)
    more = (
        [
            f"Drawn in slots of {slot}: {joined} shorter events are joined with their neighbours of the same kind; a joined piece is as long as they are together."
        ]
        if joined
        else []
    )
    more += [f"{cut} events at the end of the last lanes are not drawn (at most {most} pieces are)."] if cut else []
    if not rows:
        return None
    return TimelineBlock(
        title=title, window_s=(window[1] - window[0]) / 1e9, lanes=tuple(lane.title for lane in lanes), pieces=tuple(rows),
        names=tuple(texts), notes=(*notes, *more),
    )  # fmt: skip


def _pieces(lane: _Lane, window: tuple[int, int], slots: int) -> Int64Array:
    """Return start, end, kind, name and count of what is drawn of a lane: long events, and short ones joined by slot and kind.

    A joined piece begins at the first start in its slot and is as long as its events together, so that the picture shows neither more
    nor less time than there was; it carries the name of its longest event.
    """
    start, end = np.maximum(lane.start_ns, window[0]), np.minimum(lane.end_ns, window[1])
    kept = end > start
    start, end, kind, name = start[kept], end[kept], lane.kind[kept], lane.name[kept]
    slot = max(1, (window[1] - window[0]) // slots)
    long = end - start >= slot
    alone = np.column_stack([start[long], end[long], kind[long], name[long], np.ones(int(long.sum()), dtype=np.int64)])
    start, end, kind, name = start[~long], end[~long], kind[~long], name[~long]
    if not start.size:
        return alone
    key = (start - window[0]) // slot * len(KINDS) + kind
    order = np.argsort(key, kind="stable")
    key, start, end, kind, name = key[order], start[order], end[order], kind[order], name[order]
    heads = np.flatnonzero(np.append(True, key[1:] != key[:-1]))
    counts = np.diff(np.append(heads, key.size))
    first, last = np.minimum.reduceat(start, heads), np.maximum.reduceat(end, heads)
    length = end - start
    last = np.minimum(last, first + np.add.reduceat(length, heads))
    longest = np.flatnonzero(length == np.repeat(np.maximum.reduceat(length, heads), counts))
    named = longest[np.searchsorted(longest, heads)]  # the first of the longest in each group
    groups = np.column_stack([first, last, kind[heads], name[named], counts])
    return np.concatenate([alone, groups])


def of_run(trace: RunTrace, *, most: int = KEPT) -> TimelineBlock | None:
    """Return the picture of one step of a recorded run: its threads or streams, and the waits; None where nothing ran.

    Args:
        trace: The run.
        most: Most pieces.
    """
    if not trace.start_ns.size:
        return None
    whole = (int(trace.start_ns.min()), int(trace.end_ns.max()))
    steps = ProfileSteps(
        source=trace.steps.source, start_ns=trace.steps.start_ns, end_ns=trace.steps.end_ns,
        host_ns=trace.steps.end_ns - trace.steps.start_ns, note=trace.steps.note,
    )  # fmt: skip
    start, end, title = _window(whole, steps)
    inside = (trace.end_ns > start) & (trace.start_ns < end)
    kinds = np.array(
        [KINDS.index("communication" if o.category == "collective" else "copy" if o.category == "copy" else "operation") for o in trace.operators]
        or [0]
    )  # fmt: skip
    lanes = []
    for lane in np.unique(trace.lane[inside]).tolist():
        rows = np.flatnonzero(inside & (trace.lane == lane))
        rows = rows[np.argsort(trace.start_ns[rows], kind="stable")]
        op = trace.op[rows].astype(np.int64)
        lanes.append(_Lane(f"lane {lane}", trace.start_ns[rows], trace.end_ns[rows], kinds[op], op))
    lanes = sorted(lanes, key=lambda x: -x.busy_ns)
    dropped = max(0, len(lanes) - (LANES - 1))
    lanes = lanes[: LANES - 1]
    wait = np.flatnonzero((trace.wait_end_ns > start) & (trace.wait_start_ns < end))
    names = [o.name for o in trace.operators]
    if wait.size:
        causes: dict[str, int] = {}
        for i in wait.tolist():
            causes.setdefault(f"waiting: {trace.wait_cause[i]}", len(names) + len(causes))
        code = np.array([causes[f"waiting: {trace.wait_cause[i]}"] for i in wait.tolist()], dtype=np.int64)
        one = np.full(wait.size, KINDS.index("wait"), dtype=np.int64)
        lanes.append(_Lane("waits", trace.wait_start_ns[wait], trace.wait_end_ns[wait], one, code))
        names += list(causes)
    note = "Lanes are threads or streams; an operation covers everything it calls."
    if trace.unprofiled_step_s:
        note += " Times are those with the profiler on."
    return _picture(title, lanes, (start, end), names, [note, *_dropped(dropped)], most)
