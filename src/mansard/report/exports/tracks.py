"""A run over time as Chrome trace JSON, which Perfetto opens: calls, and counter tracks of their share of the ceiling.

The share of one call is the least time of a call of its kind over the time of this call. The diagnosis states the least time of
the mean call; a call that took twice as long as the mean of its kind therefore has half of the kind's share. Single calls can be
faster than the ceiling allows (their operands lay in a cache), so single shares above 1 are shown as they are.
Source: Trace Event Format, Google, https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.core import Implausible, Unknown, is_known
from mansard.core.document import TOOL_VERSION
from mansard.diagnose.account import inside, windows_of
from mansard.diagnose.records import Diagnosis, OperatorRow
from mansard.report.frames import why
from mansard.report.text import clean, shorten
from mansard.trace.run import Operator, RunTrace

#: Most calls that are written, and most operators with a counter track of their own.
MOST_CALLS, MOST_TRACKS = 200_000, 40
_NAME = 300


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
class Written:
    """An exported trace and what it left out.

    Args:
        text: The JSON document.
        notes: Sentences for a reader; they are in the document too.
    """

    text: str
    notes: tuple[str, ...]


def to_perfetto(scenes: Sequence[Scene], *, most_calls: int = MOST_CALLS) -> Written:
    """Return a Chrome trace of the scenes.

    Args:
        scenes: Devices; each is a process of the trace, its lanes are threads.
        most_calls: Calls of each scene that are written: those from the first steady step on.
    """
    origin = min((s.run.window_ns[0] for s in scenes), default=0)
    origin = min([origin, *(int(s.run.start_ns.min()) for s in scenes if s.run.start_ns.size)])
    notes: list[str] = []
    lines: list[str] = []
    for pid, scene in enumerate(scenes, 1):
        writer = _Writer(scene, pid, origin, most_calls)
        lines += [json.dumps(e, allow_nan=False) for e in writer.events()]
        notes += writer.notes
    head = {
        "displayTimeUnit": "ns",
        "otherData": {"mansard": TOOL_VERSION, "origin_ns": str(origin), "notes": notes,
                      "verdicts": {clean(s.name): clean(s.diagnosis.verdict.sentence) for s in scenes}},
    }  # fmt: skip
    start = json.dumps(head, allow_nan=False)[:-1]
    return Written(text=start + ', "traceEvents": [\n' + ",\n".join(lines) + "\n]}\n", notes=tuple(notes))


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
        if is_known(share) and calls[i]:
            least[i] = share * total[i] / calls[i]
        else:
            assert isinstance(share, Unknown | Implausible | float)
            reasons[i] = why(share) or "not known: it did not run in the steps that were diagnosed"
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = np.where(seconds > 0, least[run.op] / seconds, np.nan) if run.op.size else np.zeros(0)
    return shares, reasons


class _Writer:
    """The events of one scene."""

    def __init__(self, scene: Scene, pid: int, origin: int, most: int) -> None:
        self.scene, self.pid, self.origin = scene, pid, origin
        run = scene.run
        self.shares, self.reasons = call_shares(run, scene.diagnosis)
        self.notes: list[str] = []
        order = np.lexsort((-run.end_ns, run.start_ns))
        if order.size > most:
            first = int(run.steps.start_ns[0]) if run.steps.count else run.window_ns[0]
            place = int(np.searchsorted(run.start_ns[order], first))
            place = min(place, order.size - most)
            self.notes.append(
                f"{clean(scene.name)}: {most} of {order.size} calls are written, those from the first steady step on"
            )
            order = order[place : place + most]
        self.order = order
        for finding in scene.diagnosis.findings:
            if finding.code == "unknown_hardware":
                self.notes.append(f"{clean(scene.name)}: {clean(finding.text)}")
        missing = [i for i, reason in enumerate(self.reasons) if reason]
        if missing:
            self.notes.append(
                f"{clean(scene.name)}: {len(missing)} of {len(self.reasons)} operators have no share of a ceiling; each call says why"
            )

    def us(self, ns: int) -> float:
        """Return a time since the start in microseconds, exact to the nanosecond."""
        return round((ns - self.origin) / 1000, 3)

    def events(self) -> Iterator[dict[str, Any]]:
        yield from self._names()
        yield from self._steps()
        yield from self._calls()
        yield from self._lane_counters()
        yield from self._operator_counters()

    def _names(self) -> Iterator[dict[str, Any]]:
        run, pid = self.scene.run, self.pid
        yield {
            "ph": "M",
            "name": "process_name",
            "pid": pid,
            "tid": 0,
            "ts": 0,
            "args": {"name": shorten(clean(self.scene.name), _NAME)},
        }
        yield {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "ts": 0, "args": {"sort_index": pid}}
        for lane in np.unique(run.lane).tolist():
            yield {
                "ph": "M",
                "name": "thread_name",
                "pid": pid,
                "tid": lane + 1,
                "ts": 0,
                "args": {"name": f"lane {lane}"},
            }
        if run.steps.count:
            yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": 0, "ts": 0, "args": {"name": "steps"}}

    def _steps(self) -> Iterator[dict[str, Any]]:
        steps = self.scene.run.steps
        for i, (start, end) in enumerate(zip(steps.start_ns.tolist(), steps.end_ns.tolist(), strict=True)):
            yield {"ph": "X", "cat": "step", "name": f"step {i + steps.skipped}", "pid": self.pid, "tid": 0, "ts": self.us(start),
                   "dur": round((end - start) / 1000, 3), "args": {"source": clean(steps.source)}}  # fmt: skip

    def _about(self) -> list[dict[str, Any]]:
        """Return what each operator says of its calls."""
        out = []
        for o, row, reason in zip(
            self.scene.run.operators, rows_of(self.scene.run, self.scene.diagnosis), self.reasons, strict=True
        ):
            about: dict[str, Any] = {"part": o.part.value, "shapes": shorten(clean(o.shapes), _NAME)}
            if isinstance(row, OperatorRow):
                about |= {
                    "bound": row.bound.value,
                    "ceiling": clean(row.limiting_ceiling),
                    "reason": shorten(clean(row.reason), _NAME),
                }
            if reason:
                about["share_of_ceiling_note"] = shorten(reason, _NAME)
            out.append(about)
        return out

    def _calls(self) -> Iterator[dict[str, Any]]:
        run, about = self.scene.run, self._about()
        names = [shorten(clean(o.name), _NAME) for o in run.operators]
        categories = [clean(o.category) for o in run.operators]
        for i in self.order.tolist():
            op = int(run.op[i])
            share = float(self.shares[i])
            args = about[op] if share != share else {**about[op], "share_of_ceiling_ratio": float(f"{share:.6g}")}
            start, end = int(run.start_ns[i]), int(run.end_ns[i])
            yield {"ph": "X", "cat": categories[op], "name": names[op], "pid": self.pid, "tid": int(run.lane[i]) + 1,
                   "ts": self.us(start), "dur": round((end - start) / 1000, 3), "args": args}  # fmt: skip

    def _counter(self, name: str, ns: int, value: float) -> dict[str, Any]:
        return {"ph": "C", "name": name, "pid": self.pid, "ts": self.us(ns), "args": {"ratio": float(f"{value:.6g}")}}

    def _lane_counters(self) -> Iterator[dict[str, Any]]:
        """Yield for each lane the share of what runs, 0 between calls; and 1 while something without a known share runs."""
        run = self.scene.run
        for lane in np.unique(run.lane[self.order]).tolist():
            mine = self.order[run.lane[self.order] == lane]
            known = mine[np.isfinite(self.shares[mine])]
            yield from self._track(f"share of ceiling, lane {lane}", known, self.shares[known])
            unknown = mine[~np.isfinite(self.shares[mine])]
            if unknown.size:
                yield from self._track(f"share not known, lane {lane}", unknown, np.ones(unknown.size))

    def _operator_counters(self) -> Iterator[dict[str, Any]]:
        """Yield a track for each of the operators with the most time, calls of different lanes together."""
        run = self.scene.run
        seconds = (run.end_ns - run.start_ns).astype(np.float64)
        total = np.bincount(run.op[self.order], weights=seconds[self.order], minlength=len(run.operators))
        kinds = [int(i) for i in np.argsort(-total, kind="stable") if total[i] > 0 and not self.reasons[i]]
        if len(kinds) > MOST_TRACKS:
            text = f"{MOST_TRACKS} of {len(kinds)} operators with a share have a counter track of their own, those with the most time"
            self.notes.append(f"{clean(self.scene.name)}: {text}")
        used: set[str] = set()
        for kind in kinds[:MOST_TRACKS]:
            o = run.operators[kind]
            name = shorten(clean(f"share of ceiling: {o.name} {o.shapes} {o.part.value}"), _NAME)
            name = f"{name} #{kind}" if name in used else name
            used.add(name)
            mine = self.order[run.op[self.order] == kind]
            mine = mine[np.isfinite(self.shares[mine])]
            yield from self._track(name, mine, self.shares[mine])

    def _track(self, name: str, calls: npt.NDArray[Any], values: npt.NDArray[np.float64]) -> Iterator[dict[str, Any]]:
        """Yield a step function: the value while a call runs, 0 where none does; a later call takes over from an earlier one."""
        run = self.scene.run
        starts, ends = run.start_ns[calls].tolist(), run.end_ns[calls].tolist()
        last = -1
        for i, (start, end) in enumerate(zip(starts, ends, strict=True)):
            yield self._counter(name, start, float(values[i]))
            last = max(last, end)
            if i + 1 == len(starts) or starts[i + 1] > last:
                yield self._counter(name, last, 0.0)
