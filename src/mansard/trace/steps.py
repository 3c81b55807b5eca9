"""The repeated steps of a recorded PyTorch run: from annotations, marks, the loop of the program, or periodicity."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.trace.recorders.stepcount import Mark, closing, steps_between
from mansard.trace.run import Finding, Steps

Int64Array = npt.NDArray[np.int64]

#: Names by which programs mark a whole step; the number at the end differs from step to step.
_STEP_NAME = re.compile(
    r"^(ProfilerStep#|.*\b(train|training|eval|decode)?[ _]?(step|iteration|iter)\b)", re.IGNORECASE
)
_NUMBER = re.compile(r"[ #_:=]*\d+\s*$")
_MIN_STEPS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One window of a recording.

    Args:
        kind: `profiled` or `unprofiled`.
        start_ns, end_ns: Its edges [ns].
        directory: Folder of its files, relative to the recording.
        files: File names by framework.
        minor_faults: Page faults served without disk inside it.
        complete: Whether it ended where the recorder wanted, at the end of a step.
        at_mark: Whether it began at a mark, which then lies just before its start.
    """

    kind: str
    start_ns: int
    end_ns: int
    directory: str
    files: Mapping[str, Sequence[str]]
    minor_faults: int
    complete: bool
    at_mark: bool


def windows_of(meta: Mapping[str, Any]) -> tuple[Window, ...]:
    """Return the closed windows of a recording."""
    return tuple(
        Window(
            kind=w["kind"],
            start_ns=w["start_ns"],
            end_ns=w["end_ns"],
            directory=w["directory"],
            files=w["files"],
            minor_faults=int(w["rusage_end"]["minor_faults"] - w["rusage_start"]["minor_faults"]),
            complete=bool(w["complete"]),
            at_mark=bool(w.get("at_mark")),
        )
        for w in meta["windows"]
        if w["end_ns"] is not None
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneOrder:
    """What the main lane did, in order: what periodicity is looked for in.

    Args:
        start_ns, end_ns: Interval of each operation [ns].
        key: Number of its name.
    """

    start_ns: Int64Array
    end_ns: Int64Array
    key: Int64Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Steps and what is known beside them.

    Args:
        steps: The steady steps.
        unprofiled_step_s: Step times with the profiler off [s].
        minor_faults_per_step: From the windows with the profiler off where there are any, else from profiled steps.
        findings: What a reader should know.
    """

    steps: Steps
    unprofiled_step_s: tuple[float, ...]
    minor_faults_per_step: float | None
    findings: tuple[Finding, ...]


def find_steps(
    meta: Mapping[str, Any],
    annotations: Iterable[tuple[str, int, int]],
    lane: LaneOrder,
    compile_ns: Sequence[tuple[int, int]] = (),
) -> Found:
    """Find the steady steps of a recording.

    Args:
        meta: The recording's facts.
        annotations: Ranges that the program named itself: name, start, end [ns].
        lane: Operations of the lane that drives the program.
        compile_ns: Intervals of compilation [ns]; a step that touches one is left out.
    """
    windows = windows_of(meta)
    profiled = [w for w in windows if w.kind == "profiled"]
    by_kind = _marks(meta)
    spans = _annotated(annotations)
    if spans:
        return _finish(meta, windows, by_kind, spans, compile_ns, "marker", "one annotated step")
    for kind in ("marker", "optimizer"):
        marks = by_kind.get(kind, [])
        spans = _between(marks, profiled)
        if len(spans) >= 1:
            note = "one optimizer step" if kind == "optimizer" else "one step marked by the program"
            return _finish(meta, windows, by_kind, spans, compile_ns, kind, note)
    loops = sorted((k for k in by_kind if k.startswith("loop")), key=lambda k: -_covered(by_kind[k]))
    for kind in loops:
        spans = _loop_spans(meta, by_kind[kind], profiled, lane)
        if len(spans) >= 2:
            return _finish(meta, windows, by_kind, spans, compile_ns, kind, _loop_note(meta, kind))
    spans = _periodic(lane)
    if spans:
        note = "one period of the recorded sequence of operations"
        found = _finish(meta, windows, by_kind, spans, compile_ns, "periodicity", note)
        text = "No step was marked and no loop was seen; steps are the period of the recorded operations."
        return _with(found, Finding(code="steps_by_periodicity", text=text))
    none = Steps(start_ns=np.zeros(0, np.int64), end_ns=np.zeros(0, np.int64), source="none", note="no step was found")
    text = "No repeated step was found; figures are over the whole recording."
    return Found(
        steps=none,
        unprofiled_step_s=(),
        minor_faults_per_step=None,
        findings=(Finding(code="no_steps", text=text),),
    )


def _with(found: Found, finding: Finding) -> Found:
    return Found(
        steps=found.steps,
        unprofiled_step_s=found.unprofiled_step_s,
        minor_faults_per_step=found.minor_faults_per_step,
        findings=(*found.findings, finding),
    )


# -- marks --------------------------------------------------------------------------------------------------------------


def _marks(meta: Mapping[str, Any]) -> dict[str, list[Mark]]:
    """Return the marks that end steps: by kind, and each loop as a kind of its own."""
    raw: dict[str, list[Mark]] = {}
    for time, source, count, segment in meta["marks"]:
        kind = source if source.startswith("loop") else source.split("#")[0]
        raw.setdefault(kind, []).append((time, source, count, segment))
    return {kind: [marks[i] for i in closing([m[1] for m in marks])] for kind, marks in raw.items()}


def _covered(marks: Sequence[Mark]) -> int:
    return marks[-1][0] - marks[0][0] if marks else 0


def _counted(meta: Mapping[str, Any], kind: str) -> bool:
    return kind.startswith("loop") and bool(meta["loops"][int(kind.split("#")[1])]["counted"])


def _loop_note(meta: Mapping[str, Any], kind: str) -> str:
    loop = meta["loops"][int(kind.split("#")[1])]
    file = str(loop["file"]).replace("\\", "/").rsplit("/", 1)[-1]
    return f"one pass of the loop at {file}:{loop['line']}"


def _between(marks: Sequence[Mark], windows: Sequence[Window]) -> list[tuple[int, int]]:
    """Return the spans between neighbouring marks of one window."""
    out = []
    for window in windows:
        out += [(a[0], b[0]) for a, b in pairwise(_within(marks, window)) if b[0] > a[0]]
    return out


def _within(marks: Sequence[Mark], window: Window) -> list[Mark]:
    """Return the marks of a window, the one that opened it among them, moved to the window's start."""
    inside = [m for m in marks if window.start_ns < m[0] <= window.end_ns]
    before = [m for m in marks if m[0] <= window.start_ns]
    if window.at_mark and before:
        opening = before[-1]
        inside.insert(0, (window.start_ns, opening[1], opening[2], opening[3]))
    return inside


def _annotated(annotations: Iterable[tuple[str, int, int]]) -> list[tuple[int, int]]:
    """Return the ranges that the program named as its steps, each to the start of the next where that follows closely."""
    groups: dict[str, list[tuple[int, int]]] = {}
    for name, start, end in annotations:
        if _STEP_NAME.match(name) and not name.startswith("Optimizer."):
            groups.setdefault(_NUMBER.sub("", name), []).append((start, end))
    best: list[tuple[int, int]] = []
    sure = False  # the profiler's own name for a step counts even once
    for name, ranges in groups.items():
        ranges.sort()
        if any(b[0] < a[1] for a, b in pairwise(ranges)):
            continue  # nested or overlapping: not steps
        if sum(e - s for s, e in ranges) > sum(e - s for s, e in best):
            best, sure = ranges, name.startswith("ProfilerStep")
    if not best or (len(best) < _MIN_STEPS and not sure):
        return []
    median = sorted(e - s for s, e in best)[len(best) // 2]
    out = [(a[0], b[0] if b[0] - a[1] < median else a[1]) for a, b in pairwise(best)]
    return [*out, best[-1]]


# -- loops ------------------------------------------------------------------------------------------------------------


def _loop_spans(
    meta: Mapping[str, Any], marks: Sequence[Mark], windows: Sequence[Window], lane: LaneOrder
) -> list[tuple[int, int]]:
    """Return the passes of a loop: between marks where it was traced, else by the operations of one pass."""
    traced: list[tuple[int, int]] = []
    for window in windows:
        inside = _within(marks, window)
        traced += [(a[0], b[0]) for a, b in pairwise(inside) if steps_between(a, b, False) == 1 and a[3] == b[3]]
    working = [s for s in traced if _operations(lane, s)]
    if traced and len(working) < len(traced) / 2:
        return []
    if _traced_ratio(meta, traced, windows) > 0.9:
        return traced
    untraced = _untraced(meta, marks, traced, windows, lane)
    return untraced if len(untraced) >= _MIN_STEPS else traced


def _inside(span: tuple[int, int], window: Window) -> bool:
    return window.start_ns <= span[0] and span[1] <= window.end_ns


def _operations(lane: LaneOrder, span: tuple[int, int]) -> int:
    return int(np.searchsorted(lane.start_ns, span[1]) - np.searchsorted(lane.start_ns, span[0]))


def _traced_ratio(meta: Mapping[str, Any], traced: Sequence[tuple[int, int]], windows: Sequence[Window]) -> float:
    """Return the share of the windows, from their first traced pass on, in which the tracer was on."""
    on, total = 0, 0
    for window in windows:
        first = min((s[0] for s in traced if _inside(s, window)), default=None)
        start = window.start_ns if first is None else max(first, window.start_ns)
        total += max(0, window.end_ns - start)
        on += sum(max(0, min(end, window.end_ns) - max(begin, start)) for begin, end in meta["tracing"])
    return on / total if total else 1.0


def _untraced(
    meta: Mapping[str, Any],
    marks: Sequence[Mark],
    traced: Sequence[tuple[int, int]],
    windows: Sequence[Window],
    lane: LaneOrder,
) -> list[tuple[int, int]]:
    """Continue the passes seen by the tracer over the rest of each window, where the same operations come again."""
    pattern = _pattern(traced, lane)
    if pattern is None:
        pattern = _counted_pattern(marks, windows, lane)
    if pattern is None:
        return []
    out: list[tuple[int, int]] = []
    for window in windows:
        anchors = [m[0] for m in _within(marks, window)]
        done = 0
        for anchor in anchors:
            first = int(np.searchsorted(lane.start_ns, max(anchor, window.start_ns)))
            if first < done:
                continue
            last = int(np.searchsorted(lane.start_ns, window.end_ns))
            spans, done = _repeats(lane, pattern, first, last)
            out += spans
    tracing = meta["tracing"]
    return [s for s in out if not any(start < s[1] and end > s[0] for start, end in tracing)]


def _pattern(traced: Sequence[tuple[int, int]], lane: LaneOrder) -> Int64Array | None:
    """Return the operations of one pass, if the last passes that were traced agree on them."""
    seen = []
    for start, end in traced[-3:]:
        low, high = np.searchsorted(lane.start_ns, [start, end])
        seen.append(lane.key[low:high])
    if len(seen) < 2 or not seen[-1].size or any(not np.array_equal(seen[-1], other) for other in seen[:-1]):
        return None
    return seen[-1]


def _counted_pattern(marks: Sequence[Mark], windows: Sequence[Window], lane: LaneOrder) -> Int64Array | None:
    """Return the operations of one pass from two marks with a known number of passes between them."""
    for window in windows:
        inside = _within(marks, window)
        for a, b in pairwise(inside):
            passes = steps_between(a, b, True)
            low, high = np.searchsorted(lane.start_ns, [max(a[0], window.start_ns), b[0]])
            if not passes or passes < 2 or high <= low or (high - low) % passes:
                continue
            table = lane.key[low:high].reshape(passes, -1)
            if (table == table[0]).all():
                return np.asarray(table[0])
    return None


def _repeats(lane: LaneOrder, pattern: Int64Array, first: int, last: int) -> tuple[list[tuple[int, int]], int]:
    """Return spans from the start of each repetition to the start of the next, and where the repetitions end."""
    size = pattern.size
    rounds = (last - first) // size
    if rounds < 1:
        return [], first
    table = lane.key[first : first + rounds * size].reshape(rounds, size)
    equal = (table == pattern).all(axis=1)
    good = rounds if equal.all() else int(np.argmin(equal))
    starts = lane.start_ns[first : first + good * size : size].tolist()
    end = first + good * size
    return list(pairwise(starts)), end


def _periodic(lane: LaneOrder) -> list[tuple[int, int]]:
    """Return the periods of the tail of the recorded operations; empty where nothing repeats three times."""
    from mansard.trace.jax_steps import smallest_period

    keys = lane.key[-20_000:]
    found = smallest_period(keys.tolist()) if keys.size else None
    if found is None:
        return []
    period, start = found
    starts = lane.start_ns[-keys.size :][start::period].tolist()
    return list(pairwise(starts))


# -- what is steady ---------------------------------------------------------------------------------------------------


def _finish(
    meta: Mapping[str, Any],
    windows: Sequence[Window],
    by_kind: Mapping[str, Sequence[Mark]],
    spans: Sequence[tuple[int, int]],
    compile_ns: Sequence[tuple[int, int]],
    kind: str,
    note: str,
) -> Found:
    steady, skipped = _steady(spans, compile_ns)
    before_first = 1 if kind == "optimizer" else 0  # the first optimizer step ends the warm-up step
    source = kind.split("#")[0]
    steps = Steps(
        start_ns=np.array([s[0] for s in steady], dtype=np.int64),
        end_ns=np.array([s[1] for s in steady], dtype=np.int64),
        source=source,
        skipped=skipped + before_first,
        note=note,
    )
    marks = by_kind.get(kind) or next((by_kind[k] for k in by_kind), ())
    values, faults = _unprofiled(meta, windows, marks, _counted(meta, kind))
    if faults is None:
        faults = _profiled_faults(meta, steps)
    return Found(steps=steps, unprofiled_step_s=values, minor_faults_per_step=faults, findings=())


def _steady(
    spans: Sequence[tuple[int, int]], compile_ns: Sequence[tuple[int, int]]
) -> tuple[list[tuple[int, int]], int]:
    """Leave out steps that compile, and leading steps much longer than the rest."""
    kept = [s for s in spans if not any(start < s[1] and end > s[0] for start, end in compile_ns)]
    if not kept:
        kept = list(spans)
    lengths = [e - s for s, e in kept]
    median = float(np.median(lengths)) if lengths else 0.0
    lead = 0
    while lead < min(3, len(kept) - _MIN_STEPS) and lengths[lead] > 1.5 * median:
        lead += 1
    return kept[lead:], len(spans) - len(kept) + lead


def _unprofiled(
    meta: Mapping[str, Any], windows: Sequence[Window], marks: Sequence[Mark], counted: bool
) -> tuple[tuple[float, ...], float | None]:
    """Return step times and page faults per step of the windows with the profiler off."""
    seen: dict[int, int | None] = {r[0]: r[1] for r in meta["rusage"]}
    values: list[float] = []
    faults, total = 0, 0
    for window in windows:
        if window.kind != "unprofiled":
            continue
        inside = _within(marks, window)
        if window.at_mark and inside:
            before = [m[0] for m in marks if m[0] <= window.start_ns]
            seen.setdefault(window.start_ns, seen.get(before[-1]) if before else None)
        steps, sampled = 0, None
        for a, b in pairwise(inside):
            n = steps_between(a, b, counted)
            if n is None or n <= 0:
                sampled = None
                continue
            values.append((b[0] - a[0]) / 1e9 / n)
            if sampled is None:
                steps, sampled = 0, seen.get(a[0])
            steps += n
            now = seen.get(b[0])
            if sampled is not None and now is not None:
                faults, total = faults + now - sampled, total + steps
                steps, sampled = 0, now
    return tuple(values), faults / total if total else None


def _profiled_faults(meta: Mapping[str, Any], steps: Steps) -> float | None:
    if steps.count == 0 or len(meta["rusage"]) < 2:
        return None
    low, high = int(steps.start_ns[0]), int(steps.end_ns[-1])
    inside = [r for r in meta["rusage"] if low <= r[0] <= high]
    if len(inside) < 2:
        return None
    passed = int(np.searchsorted(steps.end_ns, inside[-1][0], side="right"))
    before = int(np.searchsorted(steps.end_ns, inside[0][0], side="right"))
    return (inside[-1][1] - inside[0][1]) / (passed - before) if passed > before else None
