"""What the recorder needs from a framework. One module per framework implements it.

The controller lives in the program's own process and decides when to profile; a session knows how.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol


class Controller(Protocol):
    """What a session may tell the controller. All calls come from the thread that runs the program."""

    def ready(self) -> None:
        """Profiling can start now without changing what the program does."""

    def mark(self, source: str) -> None:
        """One step ended here; `source` says which sign told so, such as `optimizer`."""

    def set_aside(self, seconds: float) -> None:
        """For so long [s], until now, a compiler took memory that no record of events took."""

    def yield_profiler(self) -> None:
        """The program is about to use the profiler itself: stop ours and leave it alone from now on."""


class Session(Protocol):
    """One framework's profiler."""

    framework: str

    def install(self, controller: Controller) -> None:
        """Put hooks in place; called once, right after the program has imported the framework."""

    def start(self, directory: Path) -> None:
        """Start profiling into `directory`, which exists and is empty."""

    def stop(self) -> list[str]:
        """Stop profiling, write everything into the directory and return the file names in it."""

    def synchronize(self) -> None:
        """Return when all work that the program has dispatched is done."""

    def metadata(self) -> dict[str, Any]:
        """Return versions, threads, devices, and whatever the analysis of the files needs; JSON types only."""

    def calibrate(self) -> dict[str, float]:
        """Return `op_floor_s` (smallest operation, profiler off) and `op_overhead_s` (what the profiler adds to it).

        Called once after the program has ended, in its process; takes at most half a second.
        """
