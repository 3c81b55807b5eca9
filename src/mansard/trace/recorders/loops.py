"""Find the loop of the program that repeats its step, without a word from the program.

A daemon thread samples the main thread's stack. Frames that persist, and whose position lies inside a loop of their own
bytecode, hold candidate loops. A tracer local to those frames then records when each loop comes round; the outermost
one that has come round often enough is the step loop. Tracing ends as soon as it has told enough.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from mansard.trace.recorders import mainthread
from mansard.trace.recorders.bytecode import Loop, loops_of
from mansard.trace.recorders.progress import Progress, progress_of

_SAMPLE_S = 0.004
_PERSIST_S = 0.2  # a frame on the stack this long may hold the step loop
_MIN_ROUNDS = 5
_PATIENCE_S = 0.8  # an inner loop waits this long for an outer one to show its rounds
_LONGEST_PATIENCE_S = 8.0
_MAX_TIMES = 20_000
_BUDGET_S = 0.5  # what tracing may cost before it rests, while no loop is known
_PATIENT = 3  # budgets before it rests where a loop has come round
_MAX_OVERHEAD = 0.01  # share of the time that tracing may take, by estimate, to stay on
_LINE_S = 0.4e-6  # cost of one line event in our tracer (Python 3.11, measured)
_CALL_S = 1.0e-6  # cost of one call under a tracer, with the slower interpretation of the callee's lines

_HERE = os.path.dirname(os.path.abspath(__file__))


class LoopSeries:
    """One loop of one frame and the times at which it came round.

    Args:
        code: The code object that holds the loop.
        loop: The loop.
        frame_id: Identity of the frame.
        depth: Frames between the outermost frame and this one.
    """

    def __init__(self, code: CodeType, loop: Loop, frame_id: int, depth: int) -> None:
        self.code, self.loop, self.frame_id, self.depth = code, loop, frame_id, depth
        self.times: list[int] = []
        self.rounds = 0
        self.progress: Progress | None = None
        self.bridged = True
        self.ended = False
        self._total = self._seen = 0
        self._segment: int | None = None
        self._told: int | None = None

    def period_s(self) -> float:
        """Return the median time of a round while traced [s]; 0 before two rounds."""
        gaps = sorted(b - a for a, b in zip(self.times, self.times[1:], strict=False))
        return gaps[len(gaps) // 2] / 1e9 if gaps else 0.0

    def count(self, segment: int) -> int:
        """Return the rounds so far, at a round that is being traced in this stretch of tracing.

        While traced, every round is seen. Over a gap the loop's own iterator tells, if it is still the same one; where it
        is not (an inner loop that was entered anew), the gap is not bridged and counts hold within stretches alone.
        """
        told = self.progress.now() if self.progress is not None else None
        if segment == self._segment:
            self._total += self.rounds - self._seen
        elif self._segment is not None:
            passed = told - self._told if told is not None and self._told is not None else 0
            self.bridged = self.bridged and passed > 0
            self._total += max(1, passed)
        self._segment, self._seen, self._told = segment, self.rounds, told
        return self._total

    def seen_in(self, segment: int) -> bool:
        """Whether a round was seen in this stretch of tracing."""
        return segment == self._segment

    def renew(self, frame: FrameType) -> None:
        """Look at the iterator of the loop again, from the frame's tracer at the loop's head."""
        if frame.f_lasti not in self.loop.heads:
            return
        found = progress_of(frame, self.loop)
        if self.progress is None or not self.progress.same(found):
            self.progress = found
            self._told = found.now() if found is not None and self._segment is None else None

    def settle(self, frame: FrameType) -> None:
        """Look at the iterator a last time before tracing ends, so that the gap can be bridged from here."""
        self.renew(frame)
        self._told = self.progress.now() if self.progress is not None else None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "file": self.code.co_filename,
            "function": self.code.co_qualname,
            "line": self.loop.line,
            "depth": self.depth,
            "rounds": self.rounds,
            "counted": self.progress is not None and self.bridged,
            "first_times_ns": self.times[:64],
        }


class LoopFinder:
    """Finds and follows the step loop of the main thread.

    Args:
        mark: Called each time the chosen loop comes round while it is traced, on the main thread.
    """

    def __init__(self, mark: Callable[[LoopSeries], None]) -> None:
        self._mark = mark
        self._main = threading.main_thread().ident or 0
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._tick: Callable[[], None] = lambda: None
        self._since: list[tuple[int, int, float]] = []  # (frame id, code id, since when it is on the stack)
        self._tracer = _tracer(self)
        self._requested = False  # the main thread was asked to install the tracer and has not done so yet
        self._depths: dict[int, int] = {}
        self._series: dict[tuple[int, int], LoopSeries] = {}  # by (frame id, loop start)
        self._rejected: set[tuple[CodeType, int]] = set()
        self._spans: list[list[int]] = []
        self._once = False
        self._budget_s = _BUDGET_S
        self._not_before = 0.0
        self._yielded = False
        self._notes: list[dict[str, str]] = []
        self.stalls: list[tuple[int, int]] = []  # when the program stood still for our own work [ns]
        self.current: LoopSeries | None = None
        self.blind = False  # the chosen loop is known, and tracing it all the time would cost too much
        self.segment = 0  # rises with each gap in tracing

    # -- life -----------------------------------------------------------------------------------------------------------

    def start(self, tick: Callable[[], None]) -> None:
        """Start sampling; `tick` is called now and then on the sampling thread."""
        if self._thread is not None:
            return
        self._tick = tick
        self._thread = threading.Thread(target=self._watch, name="mansard-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop sampling and tracing; on the main thread."""
        self._stop.set()
        self._untrace()

    def abandon(self) -> None:
        """In a forked child: there is no sampling thread; take the tracer away."""
        self._stop.set()
        with contextlib.suppress(Exception):
            self._tracer.remove()

    def give_way(self) -> None:
        """A better sign of steps exists; on the main thread."""
        if not self._yielded:
            self._yielded = True
            self.current = None
            self.blind = False
            self._untrace()

    def tracing_ns(self) -> list[list[int]]:
        """Return the intervals in which the tracer was on [ns]."""
        now = time.time_ns()
        return [[start, end or now] for start, end in self._spans]

    def findings(self) -> list[dict[str, str]]:
        """Return what a reader should know."""
        return list(self._notes)

    def soon(self, function: Callable[[], object]) -> None:
        """Have `function` run on the main thread, in a way that is safe whether or not it is being traced."""
        mainthread.soon(function, tracing=self._tracer.on and self._tracer.runs_queue)

    # -- sampling thread ------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        last_tick = 0.0
        started = time.monotonic()
        while not self._stop.wait(self._pause_s(time.monotonic() - started)):
            now = time.monotonic()
            current = self.current
            if current is not None and not self.blind and current.times:
                quiet = time.time_ns() - current.times[-1]
                if quiet > 1e9 * max(1.0, 10 * current.period_s()) and len(current.times) < _MAX_TIMES:
                    self.soon(self.lose)
            elif current is None and self._tracer.on:
                # A loop that has come round is nearly found: slow rounds get as long again, and once more.
                begun = any(s.rounds for s in list(self._series.values()) if s.seen_in(self.segment))
                if self._cost_s() > self._budget_s * (_PATIENT if begun else 1) and not self._requested:
                    self._requested = True
                    self.soon(self._pause)
            elif current is None and not (self._yielded or self._requested) and now > self._not_before:
                self._sample(now)
            if now - last_tick > 0.02:
                last_tick = now
                self._tick()

    def _pause_s(self, age_s: float) -> float:
        if self._yielded or (self.current is not None and not self.blind):
            return 0.05
        return _SAMPLE_S if age_s < 20.0 else 0.02

    def _sample(self, now: float) -> None:
        frame = sys._current_frames().get(self._main)
        stack: list[tuple[int, CodeType, int]] = []
        while frame is not None:
            stack.append((id(frame), frame.f_code, frame.f_lasti))
            frame = frame.f_back
        stack.reverse()
        if any(code.co_filename.startswith("<frozen importlib") for _, code, _ in stack):
            self._since = []
            return
        kept: list[tuple[int, int, float]] = []
        for i, (ident, code, _) in enumerate(stack):
            if i < len(self._since) and self._since[i][:2] == (ident, id(code)):
                kept.append(self._since[i])
            else:
                kept.extend((j, id(c), now) for j, c, _ in stack[i:])
                break
        self._since = kept
        wanted: dict[int, CodeType] = {}
        for (ident, code, lasti), (_, _, since) in zip(stack, kept, strict=True):
            if now - since < _PERSIST_S:
                break
            if self._may_hold(code) and any(
                loop.holds(lasti) and (code, loop.start) not in self._rejected for loop in loops_of(code)
            ):
                wanted[ident] = code
        if wanted:
            self._requested = True
            self.soon(lambda: self._begin(wanted))

    def _may_hold(self, code: CodeType) -> bool:
        name = code.co_filename
        return not name.startswith((_HERE, "<frozen")) and not name.startswith(_framework_roots())

    # -- main thread ----------------------------------------------------------------------------------------------------

    def _begin(self, wanted: dict[int, CodeType]) -> None:
        self._trace(wanted)

    def _trace(self, wanted: dict[int, CodeType]) -> bool:
        """Install the tracer on the wanted frames that are on the stack; say whether it is on."""
        self._requested = False
        if self._stop.is_set() or self._yielded or self._tracer.on:
            return False
        chain: list[FrameType] = []
        frame: FrameType | None = sys._getframe()
        while frame is not None:
            chain.append(frame)
            frame = frame.f_back
        found = []
        for depth, frame in enumerate(reversed(chain)):
            if wanted.get(id(frame)) is frame.f_code:
                found.append(frame)
                self._depths[id(frame)] = depth
        if not found:
            return False
        if sys.gettrace() is not None:
            self.give_way()
            self._notes.append(
                {"code": "loop_not_traced", "text": "Another tracer is active, so the step loop was not searched."}
            )
            return False
        self.segment += 1
        self._spans.append([time.time_ns(), 0])
        # The last act: see `mainthread` for why nothing may follow it.
        return bool(self._tracer.install(found))

    def _cost_s(self) -> float:
        """Estimate what the tracer has cost since it was put on [s]."""
        return float(self._tracer.lines * _LINE_S + self._tracer.calls * _CALL_S)

    def _pause(self) -> None:
        """Tracing has cost enough without a loop (a compilation, a long set-up): rest, then try again."""
        self._requested = False
        if self.current is None:
            rest_s = 4 * self._budget_s
            self._budget_s = min(2 * self._budget_s, 4.0)
            self._not_before = time.monotonic() + rest_s
            # What was seen stays: with the loop's iterator the next stretch of tracing goes on counting from here.
            self._untrace()
            self._since = []

    def _untrace(self) -> None:
        if self._tracer.on:
            self._tracer.remove()
        if self._spans and not self._spans[-1][1]:
            self._spans[-1][1] = time.time_ns()

    def lose(self) -> None:
        """Forget the chosen loop and look again: it has ended, or it was the wrong one."""
        self._untrace()
        self.current = None
        self.blind = False
        self._once = False
        self._since = []

    def reject(self) -> None:
        """The chosen loop does no framework work: never choose it again."""
        if self.current is not None:
            self._rejected.add((self.current.code, self.current.loop.start))
        self.lose()

    def resume(self, *, once: bool) -> None:
        """Trace the chosen loop again: until it comes round once, or from now on."""
        current = self.current
        if current is None or self._tracer.on:
            return
        self._once = once
        if not self._trace({current.frame_id: current.code}):
            self.lose()

    def came_round(self, frame: FrameType, start: int) -> None:
        """A traced loop came round (called by the tracer)."""
        now = time.time_ns()
        key = (id(frame), start)
        series = self._series.get(key)
        if series is None or series.ended or series.code is not frame.f_code:
            loop = next(loop for loop in loops_of(frame.f_code) if loop.start == start)
            series = LoopSeries(frame.f_code, loop, id(frame), self._depths.get(id(frame), 0))
            self._series[key] = series
        if not series.seen_in(self.segment):
            series.renew(frame)
        series.rounds += 1
        rounds = series.count(self.segment)
        if len(series.times) < _MAX_TIMES:
            series.times.append(now)
        if series is self.current:
            if self._once:
                self._once = False
                self._mark(series)
                series.settle(frame)
                self._untrace()
                return
            self._mark(series)
            self._judge_cost(frame, now)
        elif self.current is None and rounds >= _MIN_ROUNDS - 1:
            self._choose(series, now)

    def left(self, frame: FrameType) -> None:
        """A traced frame returned (called by the tracer)."""
        for (ident, _), series in self._series.items():
            if ident == id(frame):
                series.ended = True
        if self.current is not None and self.current.ended:
            self.current = None
            self.blind = False
        if not self._tracer.frames():
            self.lose()

    def _choose(self, inner: LoopSeries, now: int) -> None:
        """Choose the outermost loop around here that has come round often enough, or wait for it."""
        # Waiting counts while tracing alone: only then could an outer loop have shown its rounds.
        first = inner.times[0]
        waited = sum(max(0, (end or now) - max(start, first)) for start, end in self._spans) / 1e9
        waited -= sum(max(0, min(end, now) - max(start, first)) for start, end in self.stalls) / 1e9
        for holder in sorted(self._tracer.frames(), key=lambda f: self._depths.get(id(f), 0)):
            for loop in loops_of(holder.f_code):
                if not loop.holds(holder.f_lasti) or (holder.f_code, loop.start) in self._rejected:
                    continue
                series = self._series.get((id(holder), loop.start))
                if series is None or series.count(self.segment) < _MIN_ROUNDS - 1:
                    if waited < _patience_s(series):
                        return
                    continue
                self.current = series
                return

    def _judge_cost(self, frame: FrameType, now: int) -> None:
        """Take the tracer away where, by estimate, it costs more than a small share of the time."""
        if not self._spans or now - self._spans[-1][0] < 2e8 or self.current is None:
            return
        elapsed_s = (now - self._spans[-1][0]) / 1e9
        if self._cost_s() > _MAX_OVERHEAD * elapsed_s and not self.keep:
            self.current.settle(frame)
            self.blind = True
            self._untrace()

    #: Set while steps are timed without any other way to count them.
    keep = False


def _patience_s(outer: LoopSeries | None) -> float:
    """Return how long an inner loop waits for one around it to show its rounds [s].

    One that has come round already is given the time for the rest of its rounds, however slow they are while traced.
    """
    if outer is None or len(outer.times) < 2:
        return _PATIENCE_S if outer is None or not outer.times else 2 * _PATIENCE_S
    return min(max(_PATIENCE_S, (_MIN_ROUNDS + 1) * outer.period_s()), _LONGEST_PATIENCE_S)


def _framework_roots() -> tuple[str, ...]:
    """Folders whose loops are never the program's step: the frameworks themselves."""
    roots = []
    for name in ("torch", "jax", "jaxlib", "numpy"):
        module = sys.modules.get(name)
        if module is not None and getattr(module, "__file__", None):
            roots.append(os.path.dirname(str(module.__file__)) + os.sep)
    roots.append(os.path.dirname(threading.__file__) + os.sep + "importlib")
    return tuple(roots)


def _tracer(finder: LoopFinder) -> Any:
    from mansard.trace.recorders.tracers import FrameTracer, MonitoringTracer

    return MonitoringTracer(finder) if sys.version_info >= (3, 12) else FrameTracer(finder)
