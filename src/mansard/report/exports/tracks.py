"""What a trace of a run over time shows: calls by lane, steps, and counter tracks of their share of the ceiling.

Every trace format is written from this one description. The share of one call is the least time of a call of its kind over the
time of this call. The diagnosis states the least time of the mean call; a call that took twice as long as the mean of its kind
therefore has half of the kind's share. Single calls can be faster than the ceiling allows (their operands lay in a cache), so
single shares above 1 are shown as they are.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from mansard.core import Implausible, Unknown, is_known
from mansard.diagnose.account import inside, windows_of
from mansard.diagnose.records import Diagnosis, OperatorRow
from mansard.report.frames import why
from mansard.report.text import clean, shorten
from mansard.trace.run import Operator, RunTrace

#: Most calls that are written, and most operators with a counter track of their own.
MOST_CALLS, MOST_TRACKS = 200_000, 40
#: The heading of the tracks of single operators.
BY_OPERATOR = "share of ceiling by operator"
_NAME = 300
_NO_LENGTH = "not known: the call has no length by the clock of the profile"

Int64Array = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One device, or the host, of a run.

    Args:
        name: How the process of the trace is called.
        run: What it did.
        diagnosis: What was found.
    """

    name: str
    run: RunTrace
    diagnosis: Diagnosis


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What slices of one kind say alike.

    Args:
        name: The name that is drawn.
        category: Its category.
        about: Further facts by name, the receipt of the operator.
    """

    name: str
    category: str
    about: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Thread:
    """A row of slices, by start and the longer first; two of them nest, or do not overlap.

    Args:
        tid: Its number in the process, from 0.
        name: What it is called.
        kind: Index into the kinds of the process.
        start_ns, end_ns: Interval of each slice since the start of the drawing [ns].
        share_ratio: Share of the ceiling [1]; NaN where it has none, then its kind says why.
    """

    tid: int
    name: str
    kind: npt.NDArray[np.int64]
    start_ns: Int64Array
    end_ns: Int64Array
    share_ratio: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterTrack:
    """A step function: each value holds until the next.

    Args:
        name: What it is called, once in a process.
        unit: Unit of the values.
        at_ns: Since when a value holds, since the start of the drawing, in order [ns].
        value: The values; all are numbers, since what is not known has a track of its own.
        group: Under which heading it is folded away, where the format can; empty for one that is always seen.
    """

    name: str
    unit: str
    at_ns: Int64Array
    value: FloatArray
    group: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One scene, drawn.

    Args:
        pid: Its number in the drawing, from 1.
        name: What it is called.
        verdict: What the diagnosis says in one sentence.
        kinds: Kinds of slices.
        threads: The steps, then the lanes.
        counters: Its counter tracks.
    """

    pid: int
    name: str
    verdict: str
    kinds: tuple[Kind, ...]
    threads: tuple[Thread, ...]
    counters: tuple[CounterTrack, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """What a trace shows.

    Args:
        origin_ns: Where its time begins, by the clock of the profile [ns].
        processes: One of each scene.
        notes: What was left out, and what a reader should know; each format has them inside too.
    """

    origin_ns: int
    processes: tuple[Process, ...]
    notes: tuple[str, ...]


def draw(scenes: Sequence[Scene], *, most_calls: int = MOST_CALLS) -> Drawing:
    """Return what a trace of the scenes shows.

    Args:
        scenes: Devices; each is a process of the trace, its lanes are threads.
        most_calls: Calls of each scene that are drawn: those from the first steady step on.
    """
    starts = [s.run.window_ns[0] for s in scenes]
    starts += [int(a.min()) for s in scenes for a in (s.run.start_ns, s.run.steps.start_ns) if a.size]
    origin = min(starts, default=0)
    notes: list[str] = []
    processes = []
    for pid, scene in enumerate(scenes, 1):
        painter = _Painter(scene, pid, origin, most_calls)
        processes.append(painter.process())
        notes += painter.notes
    return Drawing(origin_ns=origin, processes=tuple(processes), notes=tuple(notes))


def _key(o: Operator | OperatorRow) -> tuple[str, ...]:
    part = o.part if isinstance(o, OperatorRow) else o.part.value
    return (o.name, o.category, str(part), o.shapes, o.source, str(o.recompute), o.formula)


def rows_of(run: RunTrace, diagnosis: Diagnosis) -> list[OperatorRow | Unknown]:
    """Return the row of the diagnosis for each operator of a run; `Unknown` where none, or more than one, has its name."""
    found: dict[tuple[str, ...], list[OperatorRow]] = {}
    for row in diagnosis.operators:
        found.setdefault(_key(row), []).append(row)
    keys = [_key(o) for o in run.operators]
    times = Counter(keys)
    out: list[OperatorRow | Unknown] = []
    for key in keys:
        rows = found.get(key, [])
        if len(rows) == 1 and times[key] == 1:
            out.append(rows[0])
        elif rows:
            out.append(Unknown("several operators have this name, shapes and part"))
        else:
            out.append(Unknown("it did not run in the steps that were diagnosed"))
    return out


def call_shares(run: RunTrace, diagnosis: Diagnosis) -> tuple[npt.NDArray[np.float64], list[str]]:
    """Return the share of the ceiling of each executed call, NaN where it is not known, and why by operator.

    Args:
        run: What ran.
        diagnosis: Its diagnosis; the mean over the steps that it is about has the share of the row.
    """
    seconds = (run.end_ns - run.start_ns).astype(np.float64) * 1e-9
    steady = inside(windows_of(run), run.start_ns) if run.op.size else np.zeros(0, dtype=np.bool_)
    count = len(run.operators)
    calls = np.bincount(run.op[steady], minlength=count)
    total = np.bincount(run.op[steady], weights=seconds[steady], minlength=count)
    least = np.full(count, np.nan)
    reasons = [""] * count
    for i, row in enumerate(rows_of(run, diagnosis)):
        share = row if isinstance(row, Unknown) else row.share_of_ceiling
        if is_known(share) and not (math.isfinite(share) and share >= 0):
            reasons[i] = f"implausible: a share of {share:g}"
        elif is_known(share) and calls[i]:
            least[i] = share * total[i] / calls[i]
        else:
            assert isinstance(share, Unknown | Implausible | float)
            reasons[i] = why(share) or "not known: it did not run in the steps that were diagnosed"
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = np.where(seconds > 0, least[run.op] / seconds, np.nan) if run.op.size else np.zeros(0)
    return shares, reasons


class _Painter:
    """Draws one scene."""

    def __init__(self, scene: Scene, pid: int, origin: int, most: int) -> None:
        self.scene, self.pid, self.origin = scene, pid, origin
        self.title = shorten(clean(scene.name), _NAME)
        self.notes: list[str] = []
        run = scene.run
        self.shares, self.reasons = call_shares(run, scene.diagnosis)
        self.end_ns = np.maximum(run.end_ns, run.start_ns)
        self.order = self._chosen(most)
        backward = int(np.count_nonzero((run.end_ns < run.start_ns)[self.order]))
        if backward:
            self._note(
                f"{backward} calls end before they start by the clock of the profile, they are drawn without length"
            )
        for finding in scene.diagnosis.findings:
            if finding.code == "unknown_hardware":
                self._note(clean(finding.text))
        missing = sum(1 for reason in self.reasons if reason)
        if missing:
            self._note(f"{missing} of {len(self.reasons)} operators have no share of a ceiling; each call says why")

    def _note(self, text: str) -> None:
        self.notes.append(f"{clean(self.scene.name)}: {text}")

    def _chosen(self, most: int) -> npt.NDArray[np.int64]:
        """Return the calls that are drawn, by start and the longer first."""
        run = self.scene.run
        order = np.lexsort((-self.end_ns, run.start_ns))
        if order.size <= most:
            return order
        first = int(run.steps.start_ns[0]) if run.steps.count else run.window_ns[0]
        place = min(int(np.searchsorted(run.start_ns[order], first)), order.size - most)
        self._note(f"{most} of {order.size} calls are written, those from the first steady step on")
        return order[place : place + most]

    def process(self) -> Process:
        """Return the scene, drawn."""
        steps, calls = self._step_kinds(), self._call_kinds()
        return Process(
            pid=self.pid,
            name=self.title,
            verdict=clean(self.scene.diagnosis.verdict.sentence),
            kinds=(*steps, *calls[0]),
            threads=(*self._threads(len(steps), calls[1]),),
            counters=(*self._lane_counters(), *self._operator_counters()),
        )

    def _step_kinds(self) -> list[Kind]:
        steps = self.scene.run.steps
        source = clean(steps.source)
        names = (f"step {i + steps.skipped}" for i in range(steps.count))
        return [Kind(name=name, category="step", about={"source": source}) for name in names]

    def _call_kinds(self) -> tuple[list[Kind], npt.NDArray[np.int64]]:
        """Return kinds of calls, one of each operator first, and the kind of each call that is drawn."""
        run = self.scene.run
        kinds = []
        rows = rows_of(run, self.scene.diagnosis)
        for o, row, reason in zip(run.operators, rows, self.reasons, strict=True):
            about = {"part": o.part.value, "shapes": shorten(clean(o.shapes), _NAME)}
            if isinstance(row, OperatorRow):
                about |= {
                    "bound": row.bound.value,
                    "ceiling": clean(row.limiting_ceiling),
                    "reason": shorten(clean(row.reason), _NAME),
                }
            if reason:
                about["share_of_ceiling_note"] = shorten(reason, _NAME)
            kinds.append(Kind(name=shorten(clean(o.name), _NAME), category=clean(o.category), about=about))
        kind = run.op[self.order].astype(np.int64)
        bare = ~np.isfinite(self.shares[self.order])
        other = np.arange(len(kinds))
        for op in np.unique(kind[bare]).tolist():
            if not self.reasons[op]:
                one = kinds[op]
                other[op] = len(kinds)
                about = {**one.about, "share_of_ceiling_note": _NO_LENGTH}
                kinds.append(Kind(name=one.name, category=one.category, about=about))
        kind[bare] = other[kind[bare]]
        return kinds, kind

    def _threads(self, offset: int, kind: npt.NDArray[np.int64]) -> list[Thread]:
        """Return the steps and each lane; slices that cross others of their row get rows of their own, as viewers need."""
        run = self.scene.run
        steps, lanes = run.steps, run.lane[self.order]
        out: list[Thread] = []
        if steps.count:
            end = np.maximum(steps.end_ns, steps.start_ns)
            order = np.lexsort((-end, steps.start_ns))
            nothing = np.full(steps.count, np.nan)
            out += self._rows(0, "steps", order.astype(np.int64), steps.start_ns[order], end[order], nothing)
        extra = []
        for lane in np.unique(run.lane).tolist():
            mine = self.order[lanes == lane]
            about = (kind[lanes == lane] + offset, run.start_ns[mine], self.end_ns[mine], self.shares[mine])
            first, *others = self._rows(lane + 1, f"lane {lane}", *about)
            out.append(first)
            extra += others
        return _numbered(out, extra)

    def _rows(
        self, tid: int, name: str, kind: npt.NDArray[np.int64], start: Int64Array, end: Int64Array, share: FloatArray
    ) -> list[Thread]:
        rows = rows_that_nest(start, end)
        out = []
        for row in range(int(rows.max(initial=0)) + 1):
            at = rows == row
            title = name if row == 0 else f"{name}, overlapping {row}"
            out.append(
                Thread(
                    tid=tid,
                    name=title,
                    kind=kind[at],
                    start_ns=start[at] - self.origin,
                    end_ns=end[at] - self.origin,
                    share_ratio=share[at],
                )
            )
        return out

    def _lane_counters(self) -> Iterator[CounterTrack]:
        """Yield for each lane the share of what runs, 0 between calls; and 1 while something without a known share runs."""
        run = self.scene.run
        for lane in np.unique(run.lane[self.order]).tolist():
            mine = self.order[run.lane[self.order] == lane]
            known = np.isfinite(self.shares[mine])
            if known.any():
                yield self._track(f"share of ceiling, lane {lane}", mine[known], self.shares[mine[known]])
            if not known.all():
                dark = mine[~known]
                yield self._track(f"share not known, lane {lane}", dark, np.ones(dark.size))

    def _operator_counters(self) -> Iterator[CounterTrack]:
        """Yield a track for each of the operators with the most time, calls of different lanes together."""
        run = self.scene.run
        seconds = (self.end_ns - run.start_ns).astype(np.float64)
        ops = run.op[self.order]
        total = np.bincount(ops, weights=seconds[self.order], minlength=len(run.operators))
        kinds = [int(i) for i in np.argsort(-total, kind="stable") if total[i] > 0 and not self.reasons[i]]
        if len(kinds) > MOST_TRACKS:
            self._note(
                f"{MOST_TRACKS} of {len(kinds)} operators with a share have a counter track of their own, those with the most time"
            )
        used: set[str] = set()
        for kind in kinds[:MOST_TRACKS]:
            o = run.operators[kind]
            name = shorten(clean(f"share of ceiling: {o.name} {o.shapes} {o.part.value}"), _NAME)
            name = f"{name} #{kind}" if name in used else name
            used.add(name)
            mine = self.order[ops == kind]
            mine = mine[np.isfinite(self.shares[mine])]
            yield replace(self._track(name, mine, self.shares[mine]), group=BY_OPERATOR)

    def _track(self, name: str, calls: npt.NDArray[np.int64], values: FloatArray) -> CounterTrack:
        """Return a step function: the value while a call runs, 0 where none does; a later call takes over from an earlier one."""
        start = self.scene.run.start_ns[calls] - self.origin
        last = np.maximum.accumulate(self.end_ns[calls] - self.origin)
        idle = np.flatnonzero(np.append(start[1:] > last[:-1], True)) if calls.size else np.zeros(0, dtype=np.int64)
        places = idle + 1  # a zero goes behind the last call before it
        at, value = np.insert(start, places, last[idle]), np.insert(values, places, 0.0)
        return CounterTrack(name=name, unit="ratio", at_ns=at, value=value)


def _numbered(threads: list[Thread], extra: Iterable[Thread]) -> list[Thread]:
    """Return all threads; those beyond the lanes get numbers that no lane has."""
    free = max((t.tid for t in threads), default=-1) + 1
    return threads + [replace(t, tid=free + i) for i, t in enumerate(extra)]


def rows_that_nest(start: Int64Array, end: Int64Array) -> npt.NDArray[np.int64]:
    """Return the row of each slice, such that slices of one row nest or do not overlap; 0 for as many as can be.

    Args:
        start, end: Intervals by start and the longer first [ns].

    >>> rows_that_nest(np.array([0, 2, 8, 9]), np.array([10, 5, 12, 10])).tolist()  # 8 to 12 leaves 0 to 10
    [0, 0, 1, 0]
    """
    rows = np.zeros(start.size, dtype=np.int64)
    if not (start[1:] < end[:-1]).any():
        return rows
    stacks: list[list[int]] = [[]]
    for i, (begin, finish) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        row = next((r for r, stack in enumerate(stacks) if _fits(stack, begin, finish)), len(stacks))
        if row == len(stacks):
            stacks.append([])
        stacks[row].append(finish)
        rows[i] = row
    return rows


def _fits(ends: list[int], begin: int, finish: int) -> bool:
    """Return whether a slice nests in what is open; slices that ended before it are taken off."""
    while ends and ends[-1] <= begin:
        ends.pop()
    return not ends or finish <= ends[-1]
