"""What is true of a simulated program, by sweeping its own intervals: shares of the step by area, headroom by area.

Rules, from the definitions of the design: where several pieces of work run at once, the time counts as compute before
communication before copies; the time of a piece of work goes to the area it was built for; time in which the device has
nothing to do goes to what the host was doing instead of launching (waiting for input, waiting in a synchronisation,
Python: host; inside an operator or a launch call: latency), and to latency from the end of the launch call on.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from typing import Any

from corpus.program import Program, Run

AREAS = ("compute", "memory", "network", "host", "latency")
_IDLE = {"input": "host", "sync": "host", "python": "host", "launch": "latency"}


def _rank(run: Run) -> int:
    """Return which of several running pieces of work counts: kernels, collectives, then copies."""
    if run.work.area == "network":
        return 1
    return 2 if run.work.kind == "copy" else 0


def window_of(program: Program, skip: int = 0) -> tuple[int, int]:
    """Return the steady steps' window [ns]."""
    steps = program.steps[skip:]
    return steps[0][0], steps[-1][1]


def area_times(program: Program, device: int = 0, skip: int = 0) -> dict[str, int]:
    """Return the time of each area inside the steady window [ns]; they add up to its length."""
    low, high = window_of(program, skip)
    runs = sorted((r for r in program.runs if r.device == device), key=lambda r: r.start_ns)
    inside = [r for r in runs if r.end_ns > low and r.start_ns < high]
    edges = sorted({low, high, *(max(low, min(high, t)) for r in inside for t in (r.start_ns, r.end_ns))})
    times = dict.fromkeys(AREAS, 0)
    active: list[Run] = []
    at = 0
    for left, right in pairwise(edges):
        while at < len(inside) and inside[at].start_ns <= left:
            active.append(inside[at])
            at += 1
        active = [r for r in active if r.end_ns > left]
        if active:
            times[min(active, key=_rank).work.area] += right - left
        else:
            following = next((r for r in inside[at:] if r.start_ns >= right), None)
            for area, spent in _idle(program, left, right, following).items():
                times[area] += spent
    assert sum(times.values()) == high - low
    return times


def _idle(program: Program, left: int, right: int, following: Run | None) -> dict[str, int]:
    """Return the causes of one idle interval [ns]."""
    called = right if following is None else max(left, min(right, following.called_ns))
    out = {"latency": right - called, "host": 0}
    covered = 0
    for start, end, what in _activity(program, left, called):
        spent = min(end, called) - max(start, left)
        out[_IDLE[what]] += spent
        covered += spent
    out["host"] += called - left - covered
    return out


def _activity(program: Program, left: int, right: int) -> list[tuple[int, int, str]]:
    """Return what the host did in an interval; its activities follow one another in order."""
    starts = getattr(program, "_starts", None)
    if starts is None or len(starts) != len(program.activity):
        starts = [a[0] for a in program.activity]
        program._starts = starts  # type: ignore[attr-defined]
    first = max(0, bisect_right(starts, left) - 1)
    out = []
    for item in program.activity[first:]:
        if item[0] >= right:
            break
        if item[1] > left:
            out.append(item)
    return out


def headrooms(program: Program, times: dict[str, int], device: int = 0, skip: int = 0) -> dict[str, float]:
    """Return the headroom of each area per step [s]: time that counts for it, less the least time of its work.

    Work hidden under other work has nothing to give, and goes on being hidden when it gets faster: of a message or copy of
    10 ms, 6 ms of them hidden, a least time of 8 ms leaves 2 ms exposed. So the least time less what is hidden counts.
    """
    low, high = window_of(program, skip)
    steps = len(program.steps) - skip
    least = dict.fromkeys(AREAS, 0.0)
    for run in program.runs:
        if run.device != device or run.end_ns <= low or run.start_ns >= high:
            continue
        least[run.work.area] += max(0.0, run.work.least_s - _hidden_s(program, run))
    return {area: max(0.0, times[area] * 1e-9 - least[area]) / steps for area in AREAS}


def _hidden_s(program: Program, run: Run) -> float:
    """Return for how long something that goes before a piece of work runs beside it [s]."""
    mine = _rank(run)
    if mine == 0:
        return 0.0
    before = sorted(
        (max(r.start_ns, run.start_ns), min(r.end_ns, run.end_ns))
        for r in program.runs
        if r.device == run.device and r.end_ns > run.start_ns and r.start_ns < run.end_ns and _rank(r) < mine
    )
    hidden, until = 0, run.start_ns
    for start, end in before:
        hidden += max(0, end - max(start, until))
        until = max(until, end)
    return hidden * 1e-9


def truth_of(program: Program, *, device: int = 0, skip: int = 0) -> dict[str, Any]:
    """Return shares, headrooms and step time of a program."""
    times = area_times(program, device, skip)
    low, high = window_of(program, skip)
    steps = len(program.steps) - skip
    return {
        "step_s": (high - low) * 1e-9 / steps,
        "steps": steps,
        "window_ns": [low, high],
        "shares": {area: times[area] / (high - low) for area in AREAS},
        "headroom_by_area_s": headrooms(program, times, device, skip),
    }
