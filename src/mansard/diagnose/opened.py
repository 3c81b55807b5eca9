"""Profiles opened for a diagnosis, in whatever process: with the demand of their kernels, cut to the window asked for."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from mansard.core.units import parse_quantity
from mansard.trace.open import open_trace
from mansard.trace.prepare import cut, with_counters
from mansard.trace.timeline import Timeline

Progress = Callable[[str, float], None]


def _silent() -> AbstractContextManager[Progress | None]:
    return nullcontext()


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """Opens a profile.

    Args:
        ncu: Nsight Compute report of the same program.
        trim: Start and end of the window, as `trace.prepare.cut` takes them.
        memory_limit: What reading one file may hold, such as "8 GB"; a number is in bytes [B].
        watched: Makes what is told the progress of reading one file; it is pickled by its name.
    """

    ncu: Path | None = None
    trim: tuple[str | float, str | float] | None = None
    memory_limit: str | float | None = None
    watched: Callable[[], AbstractContextManager[Progress | None]] = _silent

    def __call__(self, path: str | Path) -> Timeline:
        """Return the profile in a file."""
        limit = self.memory_limit
        most = None if limit is None else int(parse_quantity(limit, "bytes") if isinstance(limit, str) else limit)
        with self.watched() as progress:
            timeline = open_trace(Path(path), memory_limit=most, progress=progress, launch_shapes=True)
        return self.prepared(timeline)

    def prepared(self, timeline: Timeline) -> Timeline:
        """Return a profile that was opened already, as those that are opened here; demand that it has already is kept."""
        counted = timeline if self.ncu is None and "demand" in timeline.extras else with_counters(timeline, self.ncu)
        return cut(counted, self.trim)
