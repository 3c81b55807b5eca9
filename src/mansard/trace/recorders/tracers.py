"""Tell when the loops of given frames come round: by a frame-local line tracer, or by `sys.monitoring` from Python 3.12."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, Protocol

from mansard.trace.recorders.bytecode import loops_of
from mansard.trace.recorders.mainthread import ask, queue, run_queue


class Listener(Protocol):
    """Who is told."""

    def came_round(self, frame: FrameType, start: int) -> None:
        """The loop that starts at this offset came round."""

    def left(self, frame: FrameType) -> None:
        """The frame returned."""


class FrameTracer:
    """`sys.settrace` with local tracers on the wanted frames alone; other frames are told not to trace.

    Args:
        listener: Who is told.
    """

    runs_queue = True

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._frames: list[FrameType] = []
        self._global: Callable[..., None] | None = None
        self.on = False
        self.lines = 0
        self.calls = 0

    def install(self, frames: list[FrameType]) -> bool:
        """Trace the frames, which are on the stack of the calling thread; False where another tracer is active."""
        if sys.gettrace() is not None:
            return False

        def unwanted(_frame: FrameType, _event: str, _argument: object) -> None:
            self.calls += 1
            if queue:
                run_queue()

        self._global = unwanted
        self.lines = self.calls = 0
        for frame in frames:
            frame.f_trace = self._local(frame)
        self._frames = list(frames)
        self.on = True
        # The last act: no Python function may be called after it inside a pending call, see `mainthread`.
        sys.settrace(unwanted)
        return True

    def _local(self, traced: FrameType) -> Callable[[FrameType, str, object], Any]:
        starts = {head: loop.start for loop in loops_of(traced.f_code) for head in loop.heads}
        listener = self._listener

        def local(frame: FrameType, event: str, _argument: object) -> Any:
            if queue:
                run_queue()
            if event == "line":
                self.lines += 1
                start = starts.get(frame.f_lasti)
                if start is not None:
                    with contextlib.suppress(Exception):
                        listener.came_round(frame, start)
            elif event == "return":
                if frame in self._frames:
                    self._frames.remove(frame)
                with contextlib.suppress(Exception):
                    listener.left(frame)
            return local if self.on else None

        return local

    def frames(self) -> list[FrameType]:
        """Return the traced frames that have not returned."""
        return self._frames

    def remove(self) -> None:
        """Stop tracing, unless someone else has put their tracer in place of ours."""
        self.on = False
        if self._global is not None and sys.gettrace() is self._global:
            sys.settrace(None)
        for frame in self._frames:
            frame.f_trace = None
        self._frames = []
        ask()


class MonitoringTracer:
    """`sys.monitoring` jump events, local to the code objects of the wanted frames (Python 3.12 or newer).

    Args:
        listener: Who is told.
    """

    runs_queue = False

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._codes: dict[CodeType, set[int]] = {}
        self._frames: list[FrameType] = []
        self._tool: int | None = None
        self.on = False
        self.lines = 0
        self.calls = 0

    def install(self, frames: list[FrameType]) -> bool:
        """Listen to the jumps of the frames' code; False where no tool number is free."""
        monitoring: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
        if self._tool is None:
            self._tool = next((i for i in (4, 3) if monitoring.get_tool(i) is None), None)
            if self._tool is None:
                return False
            monitoring.use_tool_id(self._tool, "mansard")
        events = monitoring.events
        monitoring.register_callback(self._tool, events.JUMP, self._jumped)
        monitoring.register_callback(self._tool, events.PY_RETURN, self._returned)
        for frame in frames:
            self._codes[frame.f_code] = {loop.start for loop in loops_of(frame.f_code)}
            monitoring.set_local_events(self._tool, frame.f_code, events.JUMP | events.PY_RETURN)
        monitoring.restart_events()
        self._frames = list(frames)
        self.lines = 0
        self.on = True
        return True

    def _jumped(self, code: CodeType, _source: int, target: int) -> Any:
        if target not in self._codes.get(code, ()):
            return sys.monitoring.DISABLE  # type: ignore[attr-defined,unused-ignore]
        self.lines += 1
        frame = sys._getframe(1)
        if frame in self._frames:
            with contextlib.suppress(Exception):
                self._listener.came_round(frame, target)
        return None

    def _returned(self, _code: CodeType, _offset: int, _value: object) -> None:
        frame = sys._getframe(1)
        if frame in self._frames:
            self._frames.remove(frame)
            with contextlib.suppress(Exception):
                self._listener.left(frame)

    def frames(self) -> list[FrameType]:
        """Return the traced frames that have not returned."""
        return self._frames

    def remove(self) -> None:
        """Stop listening and give the tool number back."""
        self.on = False
        if self._tool is None:
            return
        monitoring: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
        for code in self._codes:
            monitoring.set_local_events(self._tool, code, 0)
        self._codes.clear()
        self._frames = []
        monitoring.free_tool_id(self._tool)
        self._tool = None
