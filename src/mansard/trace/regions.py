"""Ranges the program marked, and the device work each of them launched.

A piece of work belongs to a range if the call that launched it lies inside the range on the same thread. That is how NVIDIA's
own projection counts. The calls of a thread are sorted once, so the work of any range is one slice of them.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from mansard.core.errors import UsageError
from mansard.core.intervals import IntervalSet, merge
from mansard.trace.launches import Launches, join_launches
from mansard.trace.matching import Match, base_name, matching
from mansard.trace.timeline import NONE, Events, Kind, Timeline

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Ranges:
    """All ranges of a profile with the work they launched.

    Args:
        timeline: The profile.
        launches: Its work joined to its calls.
        table: The ranges, by thread, start, and longest first.
        low, high: Slice of `launches.used_calls` that each range spans.
        straddlers: For ranges over whose end a call reaches, the calls of the slice that do not lie inside.
    """

    timeline: Timeline
    launches: Launches
    table: Events
    low: Int64Array
    high: Int64Array
    straddlers: dict[int, Int64Array]

    @cached_property
    def ops(self) -> Int64Array:
        """How many calls inside each range launched work."""
        counts: Int64Array = np.maximum(self.high - self.low, 0)
        for row, outside in self.straddlers.items():
            counts[row] -= outside.size
        return counts

    @cached_property
    def projected(self) -> tuple[Int64Array, Int64Array]:
        """First start and last end of the work of each range [ns]; 0, 0 where there is none."""
        first, last = np.zeros(len(self.table), dtype=np.int64), np.zeros(len(self.table), dtype=np.int64)
        start, end, _ = self.launches.call_extent
        rows = np.flatnonzero(self.ops > 0)
        plain = rows[~np.isin(rows, list(self.straddlers))] if self.straddlers else rows
        if plain.size:
            # reduceat over [low, high) of each range; the entries between two ranges are computed and dropped.
            edges = np.empty(2 * plain.size, dtype=np.int64)
            edges[0::2], edges[1::2] = self.low[plain], self.high[plain]
            start, end = np.append(start, start[-1]), np.append(end, end[-1])
            first[plain] = np.minimum.reduceat(start, edges)[0::2]
            last[plain] = np.maximum.reduceat(end, edges)[0::2]
        for row in self.straddlers:
            if self.ops[row] > 0:
                calls = self.calls_of(row)
                first[row], last[row] = start[calls].min(), end[calls].max()
        return first, last

    @cached_property
    def sum_ns(self) -> Int64Array:
        """Summed time of the work of each range [ns]."""
        passed = np.concatenate([[0], np.cumsum(self.launches.call_extent[2])])
        total: Int64Array = np.where(self.high > self.low, passed[self.high] - passed[self.low], 0)
        for row, outside in self.straddlers.items():
            total[row] -= int(self.launches.call_extent[2][outside].sum())
        return total

    @cached_property
    def depth(self) -> Int64Array:
        """How many ranges of the same thread are open when each range starts."""
        depth = np.zeros(len(self.table), dtype=np.int64)
        for rows in _runs(self.table.thread):
            ends = np.sort(self.table.end_ns[rows])
            start = self.table.start_ns[rows]
            depth[rows] = np.arange(start.size) - np.searchsorted(ends, start, side="right")
        return np.maximum(depth, 0)

    def calls_of(self, row: int) -> Int64Array:
        """Return the entries of `launches.used_calls` inside one range."""
        calls = np.arange(self.low[row], max(self.low[row], self.high[row]))
        outside = self.straddlers.get(row)
        return calls if outside is None else np.setdiff1d(calls, outside, assume_unique=True)

    def work_of(self, row: int, *, all_threads: bool = False) -> Int64Array:
        """Return the rows of `launches.work` that one range launched.

        Args:
            row: The range.
            all_threads: Count calls of every thread of its process that lie inside its time, such as those of autograd's
                backward thread.
        """
        rows, first = self.launches.by_call
        if all_threads:
            calls = self.launches.calls
            inside = (
                (calls.process == self.table.process[row])
                & (calls.start_ns >= self.table.start_ns[row])
                & (calls.end_ns <= self.table.end_ns[row])
            )
            launched = np.flatnonzero(self.launches.launched)
            found: Int64Array = launched[inside[self.launches.call[launched]]]
            return found
        chosen = self.calls_of(row)
        if not chosen.size:
            return np.zeros(0, dtype=np.int64)
        if row not in self.straddlers:
            return rows[first[chosen[0]] : first[chosen[-1] + 1]]
        return np.concatenate([rows[first[c] : first[c + 1]] for c in chosen.tolist()])


def _runs(values: npt.NDArray[np.int32]) -> list[slice]:
    """Return the slices of equal values of a sorted column, leaving out -1."""
    if not values.size:
        return []
    edges = np.concatenate([[0], np.flatnonzero(values[1:] != values[:-1]) + 1, [values.size]])
    return [slice(int(a), int(b)) for a, b in pairwise(edges.tolist()) if values[a] != NONE]


def attribute(
    timeline: Timeline, *, kinds: tuple[Kind, ...] = (Kind.ANNOTATION,), launches: Launches | None = None
) -> Ranges:
    """Return the ranges of a profile with the work each launched.

    Args:
        timeline: The profile.
        kinds: Which host events count as ranges; `Kind.CPU_OP` adds the framework's operations.
        launches: The joined launches, where they are at hand.
    """
    launches = launches or join_launches(timeline)
    table = timeline.of(*kinds)
    order = np.lexsort((-table.end_ns, table.start_ns, table.thread)) if len(table) else np.zeros(0, dtype=np.int64)
    table = table.take(order)
    low, high = np.zeros(len(table), dtype=np.int64), np.zeros(len(table), dtype=np.int64)
    straddlers: dict[int, Int64Array] = {}
    used = launches.used_calls
    call_thread = launches.calls.thread[used]
    starts, ends = launches.calls.start_ns[used], launches.calls.end_ns[used]
    of_thread = {int(call_thread[s.start]): s for s in _runs(call_thread)}
    for rows in _runs(table.thread):
        part = of_thread.get(int(table.thread[rows.start]))
        if part is None:
            continue
        first, last = table.start_ns[rows], table.end_ns[rows]
        low[rows] = part.start + np.searchsorted(starts[part], first, side="left")
        high[rows] = part.start + np.searchsorted(starts[part], last, side="right")
        # A call open at the end of a range starts inside it and does not lie inside it.
        still_open = high[rows] - part.start - np.searchsorted(np.sort(ends[part]), last, side="right")
        for row in (rows.start + np.flatnonzero(still_open > 0)).tolist():
            inside = np.arange(low[row], high[row])
            outside = inside[ends[inside] > table.end_ns[row]]
            if outside.size:
                straddlers[row] = outside
    return Ranges(timeline=timeline, launches=launches, table=table, low=low, high=high, straddlers=straddlers)


def innermost(ranges: Ranges) -> Int64Array:
    """Return for each of `launches.used_calls` the row of the innermost push/pop range it lies in, -1 where none."""
    launches, table = ranges.launches, ranges.table
    used = launches.used_calls
    found = np.full(used.size, NONE, dtype=np.int64)
    call_thread = launches.calls.thread[used]
    of_thread = {int(call_thread[s.start]): s for s in _runs(call_thread)}
    for rows in _runs(table.thread):
        part = of_thread.get(int(table.thread[rows.start]))
        if part is None:
            continue
        own = np.arange(rows.start, rows.stop)
        if "range_style" in table.extras:  # start/end ranges cross others and are no stack
            own = own[table.extras["range_style"][rows] != 1]
        start, end = table.start_ns[own], table.end_ns[own]
        call_start, call_end = launches.calls.start_ns[used[part]], launches.calls.end_ns[used[part]]
        found[part] = np.append(own, NONE)[_enclosing(start, end, parents(start, end), call_start, call_end)]
    return found


def parents(start_ns: Int64Array, end_ns: Int64Array) -> Int64Array:
    """Return the enclosing interval of each of a thread's nested intervals, -1 at the top.

    Args:
        start_ns, end_ns: Intervals by start, the longest first where starts tie.

    >>> parents(np.array([0, 1, 2, 5, 9]), np.array([8, 4, 3, 7, 12])).tolist()
    [-1, 0, 1, 0, -1]
    """
    count = start_ns.size
    found = np.full(count, NONE, dtype=np.int64)
    if not count:
        return found
    index = np.arange(count)
    depth = np.maximum(index - np.searchsorted(np.sort(end_ns), start_ns, side="right"), 0)
    order = np.argsort(depth, kind="stable")
    edges = np.searchsorted(depth[order], np.arange(int(depth.max()) + 2))
    for level in range(1, int(depth.max()) + 1):
        above, here = order[edges[level - 1] : edges[level]], order[edges[level] : edges[level + 1]]
        if above.size and here.size:
            place = np.searchsorted(above, here) - 1
            found[here] = np.where(place >= 0, above[np.maximum(place, 0)], NONE)
    # Where intervals cross instead of nesting, go on upwards to one that does enclose.
    while True:
        wrong = (found != NONE) & (end_ns[found] < end_ns)
        if not wrong.any():
            return found
        found[wrong] = found[found[wrong]]


def _enclosing(
    start: Int64Array, end: Int64Array, parent: Int64Array, call_start: Int64Array, call_end: Int64Array
) -> Int64Array:
    """Return the innermost interval around each call."""
    at = np.searchsorted(start, call_start, side="right") - 1
    while True:
        wrong = (at != NONE) & (end[at] < call_end) if at.size else np.zeros(0, dtype=np.bool_)
        if not wrong.any():
            return at
        at[wrong] = parent[at[wrong]]


def choose(ranges: Ranges, name: str, *, match: Match = "auto", device: int | None = None) -> Int64Array:
    """Return the rows of the ranges with a name, by start and then the longest first.

    Args:
        ranges: All ranges.
        name: What to look for.
        match: `exact`, `contains`, `startswith`, `glob` or `regex`; `auto` takes the exact name, else the name without PyTorch's numbers, else a
            glob where it has `*`, `?` or `[`.
        device: Index of a device; only ranges that launched work on it.

    Raises:
        UsageError: Nothing has that name; the nearest names are shown.
    """
    names = ranges.timeline.names
    used = np.unique(ranges.table.name)
    hit = matching(names, used.tolist(), name, match)
    rows = np.flatnonzero(np.isin(ranges.table.name, hit))
    if device is not None:
        rows = np.array([r for r in rows.tolist() if (ranges.launches.work.device[ranges.work_of(r)] == device).any()],
                        dtype=np.int64)  # fmt: skip
    if not rows.size:
        if not len(ranges.table):
            why = ranges.timeline.why_absent(Kind.ANNOTATION).reason
            raise UsageError(
                f"the profile has no ranges ({why})",
                hint="mark the region with nvtx.range or record_function",
                code="no_ranges",
            )
        bases = shown_names(ranges)
        near = difflib.get_close_matches(name, bases, n=5, cutoff=0.6) or bases[:5]
        where = "" if device is None else " with work on that device"
        raise UsageError(f"no range{where} has the name {name!r}", hint=f"such as {', '.join(map(repr, near))}; "
                         "mansard trace regions lists them", code="region_not_found")  # fmt: skip
    table = ranges.table
    return rows[np.lexsort((-table.end_ns[rows], table.start_ns[rows]))]


def shown_names(ranges: Ranges) -> list[str]:
    """Return the names of a profile's ranges without their numbers, operators of the framework last."""
    bases = {base_name(ranges.timeline.names[i]) for i in np.unique(ranges.table.name).tolist()}
    return sorted(bases, key=lambda base: ("::" in base, base))


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """One occurrence of a range and the work it launched.

    Args:
        name: Its name.
        occurrence: Which one, from 1.
        occurrences: How many there are.
        start_ns, end_ns: The range on the host [ns].
        work: Index into `Launches.work` of what it launched.
        device_start_ns, device_end_ns: From the first start to the last end of that work [ns]; equal where there is none.
        other_threads: Pieces of work that other threads of its process launched during it and that are not in it.
        other_threads_ns: Their summed time [ns].
    """

    name: str
    occurrence: int
    occurrences: int
    start_ns: int
    end_ns: int
    work: Int64Array
    device_start_ns: int
    device_end_ns: int
    other_threads: int
    other_threads_ns: int

    @property
    def wall_ns(self) -> tuple[int, int]:
        """Begin and end of the time that the work of this occurrence is divided by [ns].

        The range on the host counts where its device work ends inside it. Else, as a call returns before its kernels end, that time
        ends with the last of the work and is as long as the longer of range and device span: waiting in a queue behind earlier work is
        no time of this occurrence, and in a pipeline it would count once more in each.

        Assumes: the range launched work.
        """
        if self.device_end_ns <= self.end_ns:
            return self.start_ns, self.end_ns
        length = max(self.end_ns - self.start_ns, self.device_end_ns - self.device_start_ns)
        return self.device_end_ns - length, self.device_end_ns


def region(
    ranges: Ranges, name: str, *, occurrence: int = 1, match: Match = "auto", device: int | None = None,
    all_threads: bool = False,
) -> Region:  # fmt: skip
    """Return one occurrence of a range; never several together.

    Args:
        ranges: All ranges.
        name: What to look for, see `choose`.
        occurrence: From 1.
        match: How names are compared.
        device: Index of a device; work on others is left out.
        all_threads: Count work that other threads of the process launched during it.

    Raises:
        UsageError: No such range, or fewer occurrences.
    """
    rows = choose(ranges, name, match=match, device=device)
    if not 1 <= occurrence <= rows.size:
        raise UsageError(f"occurrence {occurrence} of {name!r} was asked for, there are {rows.size}",
                         hint=f"occurrences count from 1 to {rows.size}", code="no_such_occurrence")  # fmt: skip
    row = int(rows[occurrence - 1])
    table, work = ranges.table, ranges.launches.work
    chosen = ranges.work_of(row, all_threads=all_threads)
    around = np.setdiff1d(ranges.work_of(row, all_threads=True), ranges.work_of(row)) if not all_threads else chosen[:0]
    if device is not None:
        chosen, around = chosen[work.device[chosen] == device], around[work.device[around] == device]
    first = int(work.start_ns[chosen].min()) if chosen.size else 0
    last = int(work.end_ns[chosen].max()) if chosen.size else 0
    return Region(
        name=ranges.timeline.names[int(table.name[row])],
        occurrence=occurrence,
        occurrences=int(rows.size),
        start_ns=int(table.start_ns[row]),
        end_ns=int(table.end_ns[row]),
        work=chosen,
        device_start_ns=first,
        device_end_ns=last,
        other_threads=int(around.size),
        other_threads_ns=int(work.duration_ns[around].sum()),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeRow:
    """All ranges of one name together; a table for finding one's way, not a measurement of any of them.

    Args:
        name: The name, with its domain.
        instances: How many ranges.
        cpu_total_ns: Their summed length on the host [ns]; nested ranges are counted in each level.
        cpu_median_ns: Median length [ns].
        with_work: How many of them launched device work.
        projected_total_ns: Sum over those of last end minus first start of their work [ns]; holds idle time between.
        projected_cpu_total_ns: Their length on the host [ns].
        ops: Calls inside them that launched work.
        work_sum_ns: Summed time of that work [ns].
        depth: Median nesting depth.
        style: `PushPop` or `StartEnd`.
    """

    name: str
    instances: int
    cpu_total_ns: int
    cpu_median_ns: float
    with_work: int
    projected_total_ns: int
    projected_cpu_total_ns: int
    ops: int
    work_sum_ns: int
    depth: float
    style: str


def range_table(ranges: Ranges, *, grouped: bool = True, chosen: npt.NDArray[np.int64] | None = None) -> list[RangeRow]:
    """Return one row per name, the longest projected first.

    Args:
        ranges: All ranges.
        grouped: Take names without PyTorch's numbers together.
        chosen: Only these ranges; None for all.
    """
    rows_of = np.arange(len(ranges.table)) if chosen is None else np.asarray(chosen, dtype=np.int64)
    table, names = ranges.table.take(rows_of), ranges.timeline.names
    if not len(table):
        return []
    style = table.extras.get("range_style")
    group, labels = _groups(table.name, names, style, grouped=grouped)
    count = len(labels)
    length = table.duration_ns
    first, last = (ends[rows_of] for ends in ranges.projected)
    launched, work_sum, depth = ranges.ops[rows_of], ranges.sum_ns[rows_of], ranges.depth[rows_of]
    busy = launched > 0

    def total(values: npt.NDArray[np.int64], mask: npt.NDArray[np.bool_] | None = None) -> list[int]:
        chosen, by = (values, group) if mask is None else (values[mask], group[mask])
        out = np.zeros(count, dtype=np.int64)
        np.add.at(out, by, chosen)
        return out.tolist()

    order = np.argsort(group, kind="stable")
    edges = np.searchsorted(group[order], np.arange(count + 1))
    columns = zip(
        labels, np.bincount(group, minlength=count).tolist(), total(length), np.bincount(group[busy], minlength=count).tolist(),
        total(last - first, busy), total(length, busy), total(launched), total(work_sum), strict=True,
    )  # fmt: skip
    rows = []
    for index, (label, instances, cpu, with_work, projected, cpu_busy, ops, sums) in enumerate(columns):
        members = order[edges[index] : edges[index + 1]]
        rows.append(RangeRow(
            name=label[0], instances=instances, cpu_total_ns=cpu, cpu_median_ns=float(np.median(length[members])),
            with_work=with_work, projected_total_ns=projected, projected_cpu_total_ns=cpu_busy, ops=ops, work_sum_ns=sums,
            depth=float(np.median(depth[members])), style="StartEnd" if label[1] == 1 else "PushPop",
        ))  # fmt: skip
    return sorted(rows, key=lambda r: (-r.projected_total_ns, -r.cpu_total_ns, r.name))


def _groups(
    name: npt.NDArray[np.int32], names: tuple[str, ...], style: npt.NDArray[np.int8] | None, *, grouped: bool
) -> tuple[Int64Array, list[tuple[str, int]]]:
    """Return the group of each range and the (name, style) of each group."""
    styles = style.astype(np.int64) if style is not None else np.zeros(name.size, dtype=np.int64)
    joint = name.astype(np.int64) * 2 + (styles == 1)
    present = np.flatnonzero(np.bincount(joint))
    labels: dict[tuple[str, int], int] = {}
    code = np.zeros(int(present[-1]) + 1, dtype=np.int64)
    for value in present.tolist():
        word = names[value // 2]
        code[value] = labels.setdefault((base_name(word) if grouped else word, value % 2), len(labels))
    return code[joint], list(labels)


def union_of(work: Events, rows: Int64Array) -> IntervalSet:
    """Return the merged intervals of some pieces of work."""
    return merge(work.start_ns[rows], work.end_ns[rows])
