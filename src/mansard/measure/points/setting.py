"""What a run of points needs beside its points."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mansard.core.ceilings import Ceilings
from mansard.measure.points.effort import Effort
from mansard.measure.points.result import Result
from mansard.measure.points.taken import Taken

Progress = Callable[[float, str], None]
Finish = Callable[[Taken], Result]
Keep = Callable[[Result], None]
Note = Callable[[Sequence[Taken]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a run needs beside its points.

    Args:
        effort: How much a point is worth.
        cpus: The CPUs of the team.
        seed: Seed of the order.
        ceilings: Of this CPU, for the expected time of its points; None where nothing is known.
        device_ceilings: Of the accelerator, for that of its points.
        budget_s: Wall time of the whole run; points that no longer fit are waived [s].
        finish: Makes the result of a measured point.
        keep: Is given every result as soon as it is there.
        note: Is given the points under way after each of their processes.
        restore: Gives a point what an earlier run measured of it.
        progress: Is told the share done and what is measured.
        command: What starts a worker; None takes the worker module.
        wait: Waits that long [s], between processes that are spread over a time.
    """

    effort: Effort
    cpus: tuple[int, ...]
    finish: Finish
    keep: Keep
    note: Note = lambda _batch: None
    restore: Callable[[Taken], None] = lambda _taken: None
    seed: int = 0
    ceilings: Ceilings | None = None
    device_ceilings: Ceilings | None = None
    budget_s: float | None = None
    progress: Progress = lambda _share, _text: None
    command: tuple[str, ...] | None = None
    wait: Callable[[float], None] = time.sleep
