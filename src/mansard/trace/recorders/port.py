"""What one session sees of the controller: the same calls, with its framework's name added."""

from __future__ import annotations

from typing import Protocol


class Receiver(Protocol):
    """Who is told."""

    def ready(self, framework: str) -> None:
        """A session can profile from now on."""

    def mark(self, source: str) -> None:
        """A step ended here."""

    def set_aside(self, seconds: float) -> None:
        """For so long [s], until now, a compiler took memory."""

    def yield_profiler(self, framework: str) -> None:
        """The program uses the profiler itself."""


class Port:
    """What one session sees of the controller."""

    def __init__(self, controller: Receiver, framework: str) -> None:
        self._controller = controller
        self._framework = framework

    def ready(self) -> None:
        """The session can profile from now on."""
        self._controller.ready(self._framework)

    def mark(self, source: str) -> None:
        """A step ended here."""
        self._controller.mark(source)

    def set_aside(self, seconds: float) -> None:
        """For so long [s], until now, a compiler took memory."""
        self._controller.set_aside(seconds)

    def yield_profiler(self) -> None:
        """The program uses the session's profiler itself."""
        self._controller.yield_profiler(self._framework)
