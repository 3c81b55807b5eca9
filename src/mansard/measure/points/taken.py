"""A point on its way from the plan to its result."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mansard.measure.points.benchmark import Benchmark, Where, Work
from mansard.measure.points.result import Point

HEAVY_S = 1.0  # a call longer than this is named where it keeps a point from further processes


@dataclass(slots=True)
class Taken:
    """A point on its way: what was measured of it so far.

    Args:
        point, benchmark, work, where: What is measured, and on what.
        groups: Samples per process, as windows [s].
        seen: Conditions of every window.
        prepared, finished: What the workers said, per process.
        slopes: (time of one operation, fixed cost) per process [s].
        failure: Why it failed.
        too_long: Why it was let go before it had all of a process; empty where it was not.
        in_one_go: Why it was not interleaved or not repeated in more processes; empty where it was.
        stopped_by: Why the last window ended.
        started, ended: ISO 8601.
        work_s: Time spent on it, without what this process was stopped for [s].
        in_process_s: The same, in the process under way [s].
        share: Share of its windows that is done.
        resumed: Processes that an earlier run measured it in.
        spread_s: Time over which its processes are spread; 0 where they follow each other [s].
    """

    point: Point
    benchmark: Benchmark
    work: Work | None = None
    where: Where | None = None
    groups: list[list[list[float]]] = field(default_factory=list)
    seen: list[dict[str, Any]] = field(default_factory=list)
    prepared: list[dict[str, Any]] = field(default_factory=list)
    finished: list[dict[str, Any]] = field(default_factory=list)
    slopes: list[tuple[float, float]] = field(default_factory=list)
    rewarm_s: list[float] = field(default_factory=list)
    failure: str = ""
    too_long: str = ""
    in_one_go: str = ""
    stopped_by: str = "count"
    started: str = ""
    ended: str = ""
    work_s: float = 0.0
    in_process_s: float = 0.0
    share: float = 0.0
    resumed: int = 0
    spread_s: float = 0.0

    @property
    def samples(self) -> list[list[float]]:
        """Samples of each process, its windows joined [s]."""
        return [[s for window in group for s in window] for group in self.groups]

    @property
    def heavy(self) -> bool:
        """Whether one call is long."""
        return any(p["call_s"] > HEAVY_S for p in self.prepared)
