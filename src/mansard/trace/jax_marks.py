"""Steps as the recorder saw them on the host: marks of optimizers and loops, and windows with the profiler off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.trace.recorders.stepcount import Mark, steps_between

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """Times at which a step ended, from one source.

    Args:
        source: Such as `loop#0`.
        note: What a step is here.
        times_ns: Times [ns].
        steps: Steps between each mark and the next; -1 where rounds went by uncounted.
    """

    source: str
    note: str
    times_ns: Int64Array
    steps: Int64Array


def marks_of(meta: Mapping[str, Any]) -> tuple[Marks, ...]:
    """Return the marks of a recording, one entry per source, explicit markers first, loops last."""
    by_source: dict[str, list[Mark]] = {}
    for time, source, *rest in meta.get("marks", ()):
        count, segment = (*rest, None, 0)[:2] if rest else (None, 0)
        by_source.setdefault(str(source), []).append((int(time), str(source), count, int(segment or 0)))
    loops: Sequence[Mapping[str, Any]] = meta.get("loops", ())
    out = []
    for source, marks in by_source.items():
        kind, _, number = source.partition("#")
        loop = loops[int(number)] if kind == "loop" and number.isdigit() and int(number) < len(loops) else {}
        between = [_between(a, b, bool(loop.get("counted"))) for a, b in pairwise(marks)]
        out.append(
            Marks(
                source=kind,
                note=_note(kind, loop),
                times_ns=np.array([m[0] for m in marks], dtype=np.int64),
                steps=np.array([-1 if n is None else n for n in between], dtype=np.int64),
            )
        )
    rank = {"marker": 0, "optimizer": 1}
    return tuple(sorted(out, key=lambda m: rank.get(m.source, 2)))


def _between(a: Mark, b: Mark, counted: bool) -> int | None:
    """Steps between two marks. While a loop is traced every round is marked, whatever its iterator tells."""
    steps = steps_between(a, b, counted)
    if steps is not None and steps < 1:
        return 1 if a[3] == b[3] else None
    return steps


def _note(kind: str, loop: Mapping[str, Any]) -> str:
    if kind == "loop" and loop:
        file = str(loop.get("file", "")).replace("\\", "/").rsplit("/", 1)[-1]
        return f"one pass of the loop at {file}:{loop.get('line')}"
    return {"marker": "one marked step", "optimizer": "one optimizer step"}.get(kind, "one pass of the loop")


@dataclass(frozen=True, slots=True, kw_only=True)
class Unprofiled:
    """What the windows with the profiler off say.

    Args:
        step_s: Time of a step, one mean per window [s].
        minor_faults_per_step: Page faults served without disk per step; None where unknown.
    """

    step_s: tuple[float, ...]
    minor_faults_per_step: float | None


def unprofiled(meta: Mapping[str, Any], marks: Marks | None) -> Unprofiled:
    """Return step times of the windows with the profiler off: synchronised edge to edge, over the steps in between.

    Args:
        meta: The recording's facts.
        marks: Marks of the steps that the run is judged by; without them the windows cannot be divided.
    """
    times, faults, steps_seen = [], 0.0, 0
    for window in meta.get("windows", ()) if marks is not None else ():
        if window.get("kind") != "unprofiled" or not window.get("end_ns"):
            continue
        assert marks is not None
        start, end = int(window["start_ns"]), int(window["end_ns"])
        first = int(np.searchsorted(marks.times_ns, start, side="right")) - 1
        last = int(np.searchsorted(marks.times_ns, end, side="right")) - 1
        between = marks.steps[max(first, 0) : last]
        if first < 0 or last <= first or (between < 0).any() or between.sum() <= 0:
            continue
        count = int(between.sum())
        if not window.get(
            "complete"
        ):  # the program ended inside it: up to its last mark, and no faults are known there
            times.append((int(marks.times_ns[last]) - start) * 1e-9 / count)
            continue
        times.append((end - start) * 1e-9 / count)
        before, after = window.get("rusage_start", {}), window.get("rusage_end", {})
        if "minor_faults" in before and "minor_faults" in after:
            faults += float(after["minor_faults"]) - float(before["minor_faults"])
            steps_seen += count
    return Unprofiled(step_s=tuple(times), minor_faults_per_step=faults / steps_seen if steps_seen else None)
