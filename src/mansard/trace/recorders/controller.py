"""In the program's process: decide when to profile, note the steps, and write the recording.

The plan: profile from the moment a framework is there; once enough steady steps are recorded, stop at the end of a step,
time as many steps with the profiler off, do both once more, then leave the program alone. What ends earlier yields
what it holds. All profiling starts and stops on the main thread.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from mansard.trace.recorders.growth import MAX_BYTES, MAX_EVENTS, UNMARKED_BYTES, Growth
from mansard.trace.recorders.loops import LoopFinder, LoopSeries
from mansard.trace.recorders.port import Port
from mansard.trace.recorders.process import DefaultWhileForking, replace_handler
from mansard.trace.recorders.session import Session
from mansard.trace.recorders.stepcount import Mark, closing, steps_between
from mansard.trace.recorders.written import (
    closed_window,
    facts_of_process,
    facts_of_sessions,
    opened_window,
    write_meta,
)

SCHEMA = "recording/1"
#: Enough steady steps for a window: (steps, seconds), any of these. The first pair of windows is short, so that a
#: program of a second or two has steps with the profiler off as well.
_ENOUGH_FIRST = ((10, 0.5), (5, 2.0), (3, 12.0))
_ENOUGH_SECOND = ((20, 1.0), (5, 3.0), (3, 20.0))
_NO_STEPS_S = 5.0  # profiled this long without a sign of a step: wait for one with the profiler off ...
_QUIET_S = 20.0  # ... or this long, where little is recorded
_QUIET_BYTES = 64 << 20
_WINDOW_S = 60.0  # no window is longer, steps or not
_FILE_BYTES_PER_EVENT = 440
_MAX_MARKS = 200_000
_MAX_WINDOWS = 8
_UNMARKED_WINDOWS = 3  # so many are opened without a sign of a step; the launches in them may still tell
_REST = 2.0  # lengths of such a window, at least one second, before the next


class Controller:
    """Profiling of one process.

    Args:
        directory: Where the recording is written; it exists.
        argv: The program and its arguments.
        module: Whether the program was started with `-m`.
    """

    def __init__(self, directory: Path, *, argv: list[str], module: bool) -> None:
        self._directory = directory
        self._argv, self._module = argv, module
        self._pid = os.getpid()
        self._thread = threading.get_ident()
        self._sessions: dict[str, Session] = {}
        self._ready: set[str] = set()
        self._running: set[str] = set()
        self._state = "waiting"  # waiting, profiling, resting (skip one step), timing, done
        self._pair = 0
        self._windows: list[dict[str, Any]] = []
        self._marks: list[Mark] = []
        self._loops: list[LoopSeries] = []
        self._rusage: list[tuple[int, int, float, float]] = []
        self._findings: list[dict[str, str]] = []
        self._first_mark = 0  # index of the first mark of the present window
        self._wanted_steps = 0
        self._finished = False
        self._gave_way = False
        self._own_marks = False
        self._elsewhere = False  # profiling was started by another thread than the main one
        self._work = threading.RLock()
        self._inside = False
        self._growth = Growth()
        self._marked_window = False
        self._events_per_s = 0.0
        self._finder = LoopFinder(self._loop_mark)
        self._sigterm: Any = None

    # -- set-up -----------------------------------------------------------------------------------------------------

    def install(self) -> None:
        """Put the process-wide hooks in place: fork, SIGTERM, `os._exit`."""
        os.register_at_fork(after_in_child=self._forked)
        with contextlib.suppress(ValueError):
            if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
                self._sigterm = self._terminated
                signal.signal(signal.SIGTERM, self._sigterm)
                DefaultWhileForking(signal.SIGTERM, self._sigterm).install()
        leave = os._exit

        def _exit(status: int) -> None:
            if os.getpid() == self._pid and threading.get_ident() == self._thread:
                self.finish({"kind": "os._exit", "code": status & 0xFF})
            leave(status)

        os._exit = _exit  # type: ignore[assignment]
        self._write("running", None)

    def framework_imported(self, name: str) -> None:
        """Install the session of a framework that the program has just imported."""
        if self._finished or os.getpid() != self._pid or threading.get_ident() != self._thread:
            return
        try:
            module = importlib.import_module(f"mansard.trace.recorders.{name}_session")
            session: Session = module.make_session()
            self._sessions[name] = session
            session.install(Port(self, name))
        except Exception as error:  # the program must run whatever becomes of us
            self._sessions.pop(name, None)
            self._finding(
                "recorder_failed", f"The {name} profiler could not be set up: {type(error).__name__}: {error}"
            )

    # -- what sessions and the loop finder tell -----------------------------------------------------------------------

    def ready(self, framework: str) -> None:
        """A session can profile from now on."""
        self._ready.add(framework)
        if not self._mine():
            self._ready_elsewhere(framework)
            return
        if self._state == "waiting" and not self._windows:
            with self._quietly():
                self._start_profiling()
            self._finder.start(self._tick)
        elif self._state == "profiling" and not self._inside:  # another framework, or devices have come up
            with self._quietly():
                self._stop_window(complete=True)
                self._start_profiling()

    def _ready_elsewhere(self, framework: str) -> None:
        """The program uses the framework in a thread of its own, and its main thread may well wait for that one.

        A profiler that records all threads alike is started here. Nothing else will come from the main thread: no loop is
        seen, and the window is closed by whoever watches it.
        """
        if os.getpid() != self._pid or self._windows or not getattr(self._sessions[framework], "all_threads", False):
            return
        with self._quietly():
            if self._state != "waiting" or self._windows:
                return
            self._elsewhere = True
            self._start_profiling()
            text = f"The program uses {framework} outside its main thread: its loops are not followed there."
            self._finding("other_thread", text)
        self._finder.give_way()  # a main thread that polls has a loop as well, and it is no step
        self._finder.start(self._tick)

    def mark(self, source: str) -> None:
        """A step ended here."""
        self._note(source, None, 0)

    def _loop_mark(self, series: LoopSeries) -> None:
        if series not in self._loops:
            self._loops.append(series)
        self._note(f"loop#{self._loops.index(series)}", series.count(self._finder.segment), self._finder.segment)

    def _note(self, source: str, count: int | None, segment: int) -> None:
        if self._finished or len(self._marks) >= _MAX_MARKS or not self._mine():
            return
        now = time.time_ns()
        self._marks.append((now, source, count, segment))
        if not source.startswith("loop"):
            self._prefer_own_marks()
        self._sample_rusage(now)
        if self._state != "done" and not self._inside:
            with self._quietly():
                self._advance(now)

    def _prefer_own_marks(self) -> None:
        """The program tells its steps itself: what was recorded of a loop before (data, evaluation) was not the step."""
        self._finder.give_way()
        if self._loops and not self._own_marks:
            self._pair = 0
            self._first_mark = len(self._marks) - 1
            if self._state in ("done", "resting") and not self._gave_way:
                self._state = "waiting"
        self._own_marks = True

    def set_aside(self, seconds: float) -> None:
        """For so long, until now, a compiler took memory: that was not the record's."""
        now = time.time_ns()
        self._growth.set_aside(now - int(seconds * 1e9), now)

    def yield_profiler(self, framework: str) -> None:
        """The program uses the profiler itself."""
        if self._state == "done" or not self._mine():
            return
        self._finding("program_profiles", f"The program uses the {framework} profiler itself; ours gave way to it.")
        with self._quietly():
            if self._state == "profiling":
                self._stop_window(complete=True)
            self._state = "done"
            self._gave_way = True

    # -- the plan -----------------------------------------------------------------------------------------------------

    def _advance(self, now: int) -> None:
        """Move on at a mark, where the present window has what it needs."""
        preferred = self._preferred()
        marks = [m for m in self._marks[self._first_mark :] if m[1].split("#")[0] == preferred]
        ends = closing([m[1] for m in marks])
        if not ends or ends[-1] != len(marks) - 1:
            return
        closed = [marks[i] for i in ends]
        if self._state == "profiling":
            self._advance_profiling(closed)
        elif self._state == "resting":
            self._begin_timing()
        elif self._state == "timing":
            steps, seconds = self._steps(closed), (now - self._windows[-1]["start_ns"]) / 1e9
            if steps >= self._wanted_steps or (steps >= 3 and seconds >= 2.0):
                self._end_timing()
        elif self._state == "waiting" and self._ready:
            self._start_profiling(at_mark=True)

    def _advance_profiling(self, marks: list[Mark]) -> None:
        if len(marks) < 2:
            return
        steps = self._steps(marks)
        full = self._marked_window and self._growth.full
        if self._enough(steps, (marks[-1][0] - marks[0][0]) / 1e9) or (full and steps >= 3):
            self._wanted_steps = steps
            self._stop_window(complete=True)
            window = self._windows[-1]
            events = self._events_per_s * (window["end_ns"] - window["start_ns"]) / 1e9
            if not self._own_marks and events < steps:  # the loop does no framework work: it is not the step
                self._finder.reject()
                return
            self._state = "resting"
            self._first_mark = len(self._marks)

    def _enough(self, steps: float, seconds: float) -> bool:
        enough = _ENOUGH_FIRST if self._pair == 0 else _ENOUGH_SECOND
        full = MAX_EVENTS / self._events_per_s if self._events_per_s > 0 else float("inf")
        return any(steps >= n and seconds >= s for n, s in enough) or (steps >= 3 and seconds >= full)

    def _steps(self, marks: list[Mark]) -> int:
        current = self._finder.current
        known = [
            steps_between(a, b, current is not None and current.progress is not None and current.bridged)
            for a, b in pairwise(marks)
        ]
        if None not in known:
            return sum(n for n in known if n is not None)
        period = current.period_s() if current is not None else 0.0
        return int((marks[-1][0] - marks[0][0]) / 1e9 / period) if period > 0 else sum(n or 0 for n in known)

    def _preferred(self) -> str:
        kinds = {m[1].split("#")[0] for m in self._marks[-64:]}
        return next((k for k in ("marker", "optimizer", "loop") if k in kinds), "loop")

    def _start_profiling(self, *, at_mark: bool = False) -> None:
        where = self._directory / f"window-{len(self._windows)}"
        started = []
        for name in sorted(self._ready):
            target = where / name
            target.mkdir(parents=True, exist_ok=True)
            try:
                self._sessions[name].start(target)
                started.append(name)
            except Exception as error:
                self._ready.discard(name)
                self._finding("recorder_failed", f"The {name} profiler did not start: {type(error).__name__}: {error}")
        self._running = set(started)
        if not started:
            self._state = "done"
            return
        self._state = "profiling"
        self._first_mark = max(0, len(self._marks) - 1) if self._marks else 0
        self._growth.begin()
        self._marked_window = at_mark
        self._open_window("profiled", where.name, at_mark)

    def _stop_window(self, *, complete: bool) -> None:
        stopped = time.time_ns()
        for name in sorted(self._running):
            self._sessions[name].synchronize()
        window = self._close_window(complete)
        for name in sorted(self._running):
            try:
                window["files"][name] = self._sessions[name].stop()
            except Exception as error:
                self._finding("recorder_failed", f"The {name} profiler did not stop: {type(error).__name__}: {error}")
        size = sum(f.stat().st_size for f in (self._directory / window["directory"]).rglob("*") if f.is_file())
        seconds = (window["end_ns"] - window["start_ns"]) / 1e9
        self._events_per_s = size / _FILE_BYTES_PER_EVENT / max(seconds, 1e-3)
        self._running = set()
        self._state = "waiting"
        self._write("running", None)
        self._finder.stalls.append((stopped, time.time_ns()))

    def _begin_timing(self) -> None:
        for session in self._sessions.values():
            session.synchronize()
        self._state = "timing"
        self._first_mark = len(self._marks) - 1
        self._open_window("unprofiled", "", True)

    def _end_timing(self) -> None:
        for session in self._sessions.values():
            session.synchronize()
        self._close_window(True)
        self._pair += 1
        if self._pair < 2:
            self._start_profiling(at_mark=True)
            return
        self._retire()

    def _retire(self) -> None:
        """Enough is recorded: leave the program alone."""
        self._state = "done"
        self._finder.give_way()
        for session in self._sessions.values() if self._own_marks else ():
            release = getattr(session, "release", None)
            if release is not None:
                release()
        self._write("running", None)

    def _tick(self) -> None:
        """On the finder's thread, now and then: keep windows within bounds, ask for marks where none come."""
        if self._inside or not self._windows or self._state == "done":
            return
        now = time.time_ns()
        seconds = (now - self._windows[-1]["start_ns"]) / 1e9
        if self._finder.blind:
            self._ask(now)
        if self._state != "profiling":
            if self._state == "waiting" and self._may_look_again(now):
                self._finder.soon(self._look_again)
            return
        marked = len(self._marks) - self._first_mark > 1
        self._growth.look(now)
        grown = self._growth.small_bytes
        # In later windows the rate of the window before tells.
        full = seconds * self._events_per_s > 2 * MAX_EVENTS or self._growth.too_much
        # Without a sign of a step what is recorded may be of no use: do not let its writing stop the program for long.
        full = full or (len(self._windows) == 1 and grown > (MAX_BYTES if marked else UNMARKED_BYTES))
        idle = not marked and (seconds > _QUIET_S or (seconds > _NO_STEPS_S and grown > _QUIET_BYTES))
        if seconds > _WINDOW_S or idle or (full and seconds > 0.5):
            if self._elsewhere:
                self._cap()
            else:
                self._finder.soon(self._cap)

    def _may_look_again(self, now: int) -> bool:
        """Whether a window closed without a sign of a step, none has come since, and another window may show more."""
        if self._marks or len(self._windows) >= _UNMARKED_WINDOWS or not self._ready:
            return False
        last = self._windows[-1]
        return bool(now - last["end_ns"] > max(1e9, _REST * (last["end_ns"] - last["start_ns"])))

    def _look_again(self) -> None:
        if self._state == "waiting" and not self._inside and self._mine() and self._may_look_again(time.time_ns()):
            with self._quietly():
                self._start_profiling()

    def _ask(self, now: int) -> None:
        """The loop is known but not traced all the time: have it traced where a mark is due."""
        current = self._finder.current
        if current is None or not self._marks:
            return
        period = max(current.period_s(), 1e-6)
        if self._state == "profiling":
            start, end = self._finder.tracing_ns()[-1]
            begun, blind = max(self._windows[-1]["start_ns"], start), max(self._windows[-1]["start_ns"], end)
            since, untraced = (now - begun) / 1e9, (now - blind) / 1e9
            # the traced rounds tell what a round is; the steps that count are those after them
            due = self._enough(since / period, since) and untraced > max(0.1, 3 * period)
        elif self._state == "timing":
            due = now - self._marks[-1][0] > 1e9 * max(0.1, 2 * period)
        else:
            due = True
        if due:
            once = self._state != "timing" or current.progress is not None
            self._finder.keep = not once
            self._finder.soon(lambda: self._finder.resume(once=once))

    def _cap(self) -> None:
        if self._state != "profiling" or self._inside or not (self._mine() or self._elsewhere):
            return
        with self._quietly():
            self._stop_window(complete=False)
            if self._pair or self._elsewhere or len(self._windows) >= _MAX_WINDOWS:
                self._retire()

    # -- windows --------------------------------------------------------------------------------------------------------

    def _open_window(self, kind: str, directory: str, at_mark: bool) -> None:
        self._windows.append(opened_window(kind, directory, at_mark=at_mark, start_ns=time.time_ns()))

    def _close_window(self, complete: bool) -> dict[str, Any]:
        return closed_window(self._windows[-1], complete=complete, end_ns=time.time_ns())

    def _sample_rusage(self, now: int) -> None:
        if len(self._rusage) < 20_000 and (not self._rusage or now - self._rusage[-1][0] > 1_000_000):
            counted = resource.getrusage(resource.RUSAGE_SELF)
            self._rusage.append((now, counted.ru_minflt, counted.ru_utime, counted.ru_stime))

    # -- the end ----------------------------------------------------------------------------------------------------------

    def finish(self, status: dict[str, Any]) -> None:
        """Stop, calibrate, and write the recording; nothing the program sees depends on it."""
        if self._finished or os.getpid() != self._pid:
            return
        self._finished = True
        with self._quietly():
            self._finder.stop()
            if self._state == "profiling":
                self._stop_window(complete=True)
            elif self._state == "timing":
                self._close_window(False)
            self._state = "done"
            profiled = [w for w in self._windows if w["kind"] == "profiled"]
            if profiled and not any(w.get("complete") for w in profiled):
                text = "Profiling was ended at its limit of time and events before enough steps were seen."
                self._finding("profile_capped", text)
            self._write("finished", status, calibrate=status["kind"] in ("ended", "exit", "exception"))

    def _write(self, state: str, status: dict[str, Any] | None, *, calibrate: bool = False) -> None:
        wanted = state == "finished" or bool(self._windows)
        document = {
            "schema": SCHEMA,
            "state": state,
            "argv": self._argv,
            "module": self._module,
            "pid": self._pid,
            "frameworks": facts_of_sessions(self._sessions, self._finding, wanted=wanted, calibrate=calibrate),
            **facts_of_process(calibrate=calibrate),
            "windows": self._windows,
            "marks": self._marks,
            "loops": [series.to_dict() for series in self._loops],
            "tracing": self._finder.tracing_ns(),
            "rusage": self._rusage,
            "exit": status,
            "findings": self._findings + self._finder.findings(),
        }
        write_meta(self._directory, document)

    def _finding(self, code: str, text: str) -> None:
        if not any(f["code"] == code and f["text"] == text for f in self._findings):
            self._findings.append({"code": code, "text": text})

    # -- being a guest ------------------------------------------------------------------------------------------------------

    def _mine(self) -> bool:
        return os.getpid() == self._pid and threading.get_ident() == self._thread

    @contextlib.contextmanager
    def _quietly(self) -> Iterator[None]:
        """Our own work: not re-entered, never an error for the program; an interrupt is passed on when done."""
        caught: list[int] = []
        before = replace_handler(signal.SIGINT, lambda *_: caught.append(1))
        self._work.acquire()
        self._inside = True
        try:
            yield
        except Exception as error:
            self._finding("recorder_failed", f"{type(error).__name__}: {error}")
        finally:
            self._inside = False
            self._work.release()
            if before is not None:
                signal.signal(signal.SIGINT, before)
            if caught:
                signal.raise_signal(signal.SIGINT)

    def _terminated(self, number: int, _frame: object) -> None:
        self.finish({"kind": "signal", "code": 128 + number})
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)

    def _forked(self) -> None:
        """In a forked child: record nothing, write nothing."""
        self._finished = True
        self._state = "done"
        with contextlib.suppress(Exception):
            if self._sigterm is not None and signal.getsignal(signal.SIGTERM) is self._sigterm:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
        for session in self._sessions.values():
            abandon: Callable[[], None] | None = getattr(session, "abandon", None)
            if abandon is not None:
                with contextlib.suppress(Exception):
                    abandon()
        self._finder.abandon()
