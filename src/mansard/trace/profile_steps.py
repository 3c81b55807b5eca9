"""Steps of a recorded profile: from markers, else from the period of its kernels, else none; never from gaps."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from mansard.core.intervals import merge
from mansard.core.unknown import Unknown
from mansard.trace.matching import Match, base_name
from mansard.trace.regions import Ranges, attribute, choose
from mansard.trace.timeline import Kind, Timeline

Int64Array = npt.NDArray[np.int64]

_PROFILER_STEP = re.compile(r"^ProfilerStep#?\d*$")
_NUMBERS = re.compile(r"\d+")
# Ranges that libraries open around their own calls: a program's steps are not among them.
_LIBRARY = re.compile(
    r"^(cub|thrust|aten|at|c10d?|nccl|cublas|cudnn|cusparse|cusolver|cufft|nvshmem|TensorRT|torch|autograd|libcudf|rmm|CCCL|flash_attn|"
    r"record_param_comms|Optimizer)\b|^(nccl|cudnn|cublas)[A-Z]|::",
)
_STEP_WORD = re.compile(r"\b(step|iter|iteration|batch|epoch|train|forward_backward)\b|step|iter", re.IGNORECASE)
_MIN_MARKS = 3
_MIN_UNNAMED = 5  # of a range whose name has no word for a step
_STEADY = 0.5  # interquartile range of the periods over their median, at most
_MIN_PERIOD_KERNELS = 8
_MIN_REPEATS = 3
_MIN_SHARE = 0.97


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileSteps:
    """The steps of a profile.

    Args:
        source: `given`, `profiler_step`, `marker`, `periodicity`, or `none`.
        name: Name of the marker, empty where there is none.
        start_ns, end_ns: Each step [ns]; a step ends where the next starts, the last at its own end.
        host_ns: Length of each marker on the host [ns]; of the period where there is no marker.
        busy_ns: Per device index, union of kernels inside each step [ns].
        confidence: Share of what the steps explain: of marked time for markers, of kernels for periodicity.
        note: In words, how they were found, or why none were.
    """

    source: str
    name: str = ""
    start_ns: Int64Array = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    end_ns: Int64Array = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    host_ns: Int64Array = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    busy_ns: dict[int, Int64Array] = field(default_factory=dict)
    confidence: float = 0.0
    note: str = ""
    labels: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """How many steps there are."""
        return int(self.start_ns.size)

    @property
    def warm_up(self) -> int:
        """How many first steps take more than 1.5 times the median of the rest; they are left out of it."""
        length = self.host_ns
        skip = 0
        while length.size - skip > 2 and length[skip] > 1.5 * np.median(length[skip + 1 :]):
            skip += 1
        return skip

    def median_s(self) -> float | Unknown:
        """Median length of all steps [s]."""
        return (
            float(np.median(self.host_ns)) / 1e9 if self.count else Unknown("no steps were found", ("--marker NAME",))
        )


def find_steps(
    timeline: Timeline,
    *,
    marker: str | None = None,
    match: Match = "auto",
    ranges: Ranges | None = None,
    busy: bool = True,
) -> ProfileSteps:
    """Return the steps of a profile.

    Args:
        timeline: The profile.
        marker: Name of the range that marks a step; None looks for one.
        match: How that name is compared.
        ranges: Attributed ranges, where they are at hand.
        busy: Whether the union of kernels inside each step is wanted.

    Raises:
        UsageError: The marker does not occur.
    """
    ranges = ranges or attribute(timeline)
    if marker is not None:
        rows = choose(ranges, marker, match=match)
        given = _from_rows(ranges, rows, "given", marker, 1.0, "the marker that was named")
        return _with_busy(timeline, given) if busy else given
    found = _profiler_steps(ranges) or _repeating_range(ranges) or _periodic(timeline)
    if found is None:
        why = "no range repeats with a steady period, and the kernels have no period"
        if not len(ranges.table):
            why = "the profile has no ranges, and its kernels have no period"
        return ProfileSteps(source="none", note=why)
    return _with_busy(timeline, found) if busy else found


def _from_rows(ranges: Ranges, rows: Int64Array, source: str, name: str, confidence: float, note: str) -> ProfileSteps:
    start, end = ranges.table.start_ns[rows], ranges.table.end_ns[rows]
    upto = np.append(np.maximum(start[1:], start[:-1]), end[-1])
    labels = tuple(ranges.timeline.names[int(i)] for i in ranges.table.name[rows])
    return ProfileSteps(
        source=source, name=name, start_ns=start, end_ns=upto, host_ns=end - start, confidence=confidence, note=note, labels=labels
    )  # fmt: skip


def _profiler_steps(ranges: Ranges) -> ProfileSteps | None:
    """Return ProfilerStep ranges of the thread that owns most of them."""
    names = ranges.timeline.names
    codes = [i for i in np.unique(ranges.table.name).tolist() if _PROFILER_STEP.match(names[i])]
    rows = np.flatnonzero(np.isin(ranges.table.name, codes)) if codes else np.zeros(0, dtype=np.int64)
    if not rows.size:
        return None
    threads, counts = np.unique(ranges.table.thread[rows], return_counts=True)
    rows = rows[ranges.table.thread[rows] == threads[np.argmax(counts)]]
    rows = rows[np.argsort(ranges.table.start_ns[rows], kind="stable")]
    return _from_rows(
        ranges, rows, "profiler_step", "ProfilerStep", 1.0, "ranges of the profiler's schedule, on the host"
    )


def _repeating_range(ranges: Ranges) -> ProfileSteps | None:
    """Return the shallowest range of the program that repeats with a steady period on one thread."""
    table, names = ranges.table, ranges.timeline.names
    if not len(table):
        return None
    groups: dict[tuple[int, str], list[int]] = {}
    own = {
        int(i): _NUMBERS.sub("#", base_name(names[int(i)]))
        for i in np.unique(table.name)
        if not _LIBRARY.search(names[int(i)])
    }
    shallow = np.flatnonzero((ranges.depth <= 3) & np.isin(table.name, list(own)))
    for row in shallow.tolist():
        groups.setdefault((int(table.thread[row]), own[int(table.name[row])]), []).append(row)
    best: tuple[tuple[float, ...], Int64Array, str, float] | None = None
    for (_, name), members in groups.items():
        if len(members) < _MIN_MARKS:
            continue
        rows = np.array(members, dtype=np.int64)
        start, end = table.start_ns[rows], table.end_ns[rows]
        if (start[1:] < end[:-1]).any():
            continue  # they nest or overlap: not one after the other
        period = np.diff(start)
        low, middle, high = np.percentile(period, [25, 50, 75])
        if middle <= 0 or (high - low) / middle > _STEADY:
            continue
        cover = float((end - start).sum() / max(1, int(end[-1] - start[0])))
        worked = float((ranges.ops[rows] > 0).mean()) if len(ranges.launches.work) else 1.0
        named = 0.0 if _STEP_WORD.search(name) else 1.0
        rank = (named, float(np.median(ranges.depth[rows])), -cover, float(rows.size))
        if cover < 0.3 or worked < 0.5 or (named and rows.size < _MIN_UNNAMED):
            continue
        if best is None or rank < best[0]:
            best = (rank, rows, name, cover)
    if best is None:
        return None
    _, rows, name, cover = best
    note = (
        f"the range {name!r} repeats {rows.size} times with a steady period; it covers {cover:.0%} of the time between"
    )
    return _from_rows(ranges, rows, "marker", name, cover, note)


def _periodic(timeline: Timeline) -> ProfileSteps | None:
    """Return the period of the sequence of kernel names on the busiest stream, where it has one."""
    table = timeline.of(Kind.KERNEL)
    if len(table) < _MIN_PERIOD_KERNELS * _MIN_REPEATS:
        return None
    joint = table.device.astype(np.int64) << 40 | (table.stream.astype(np.int64) & ((1 << 40) - 1))
    lanes, counts = np.unique(joint, return_counts=True)
    rows = np.flatnonzero(joint == lanes[np.argmax(counts)])
    rows = rows[np.argsort(table.start_ns[rows], kind="stable")][:400_000]
    name = table.name[rows]
    best: tuple[float, int] | None = None
    for period in _candidates(name):
        share = float((name[period:] == name[:-period]).mean())
        if best is None or share > best[0] + 0.005:
            best = (share, period)
    if best is None or best[0] < _MIN_SHARE:
        return None
    share, period = best
    anchor = _anchor(name, period)
    marks = np.flatnonzero(name == anchor)
    if marks.size < _MIN_REPEATS:
        return None
    start = table.start_ns[rows[marks]]
    length = np.diff(start)
    note = (
        f"no marker; the kernels repeat every {period} ({share:.1%} agree with the one a period earlier), which may be a "
        "layer rather than a step"
    )
    return ProfileSteps(
        source="periodicity", start_ns=start[:-1], end_ns=start[1:], host_ns=length, confidence=share, note=note
    )


def _candidates(name: npt.NDArray[np.int32]) -> list[int]:
    """Return possible periods, the shortest first: distances between kernels whose name occurs rarely."""
    counts = np.bincount(name)
    rare = [int(i) for i in np.argsort(counts, kind="stable") if counts[i] >= _MIN_REPEATS][:64]
    found = set()
    for code in rare:
        distance = int(np.median(np.diff(np.flatnonzero(name == code))))
        if _MIN_PERIOD_KERNELS <= distance <= name.size // _MIN_REPEATS:
            found.add(distance)
    return sorted(found)


def _anchor(name: npt.NDArray[np.int32], period: int) -> int:
    """Return the kernel name that occurs once a period, the first of them in the sequence."""
    counts = np.bincount(name)
    expected = name.size / period
    once = list(np.flatnonzero(np.abs(counts - expected) <= 1).tolist())
    if not once:
        return -1
    return int(min(once, key=lambda i: int(np.argmax(name == i))))


def _with_busy(timeline: Timeline, steps: ProfileSteps) -> ProfileSteps:
    """Return the steps with the union of kernels inside each, per device."""
    table = timeline.of(Kind.KERNEL)
    busy = {}
    for device in timeline.used_devices:
        mask = table.device == device
        if mask.any():
            merged = merge(table.start_ns[mask], table.end_ns[mask])
            busy[device] = merged.covered_ns(steps.start_ns, steps.end_ns)
    return ProfileSteps(
        source=steps.source, name=steps.name, start_ns=steps.start_ns, end_ns=steps.end_ns, host_ns=steps.host_ns, busy_ns=busy,
        confidence=steps.confidence, note=steps.note, labels=steps.labels,
    )  # fmt: skip
