"""How much work a point is worth: processes, windows, time."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much a point is worth.

    Args:
        name: `quick`, `standard` or `full`.
        processes: Processes that measure each point.
        rounds: Windows of each point in one process.
        budget_s: Time for the samples of one point, all processes together [s].
        target_ratio: Half of the interval over the median that is narrow enough.
        warmup_s: Bound on the warm-up in one process [s].
        most_s: No further process measures a point that has taken this long [s].
        point_limit_s: A point of which three calls are expected to take longer is waived, and no order of a point may
            take longer than twice this [s].
        spread_s: Time over which the processes of a point are spread evenly; 0 lets them follow each other [s].
    """

    name: str
    processes: int
    rounds: int
    budget_s: float
    target_ratio: float
    warmup_s: float
    most_s: float
    point_limit_s: float
    spread_s: float = 0.0


EFFORTS = {
    "quick": Effort(
        name="quick", processes=3, rounds=1, budget_s=0.6, target_ratio=0.02, warmup_s=0.3, most_s=5.0,
        point_limit_s=30.0,
    ),
    "standard": Effort(
        name="standard", processes=5, rounds=2, budget_s=2.0, target_ratio=0.01, warmup_s=0.5, most_s=15.0,
        point_limit_s=60.0,
    ),
    "full": Effort(
        name="full", processes=9, rounds=3, budget_s=9.0, target_ratio=0.005, warmup_s=2.0, most_s=120.0,
        point_limit_s=600.0,
    ),
}  # fmt: skip

SPREAD_EVERY_S = 10.0  # one process of each point in so much of the time that they are spread over
SPREAD_LEAST = 15  # processes: the interval of fewer is wide or too narrow (docs/measuring.md)
SPREAD_MOST = 61


def spread(effort: Effort, spread_s: float) -> Effort:
    """Return the same effort in many short processes, spread over a time in which a machine shows all its states.

    The time for samples stays that of the effort. A window ends by its time and not when it looks narrow: a restless minute
    would else be given more samples than a quiet one, and pull the figure towards itself.

    Args:
        effort: What a point is worth where its processes follow each other.
        spread_s: The time to spread them over [s].

    >>> e = spread(EFFORTS["standard"], 300.0)
    >>> e.processes, e.rounds, e.budget_s, e.target_ratio
    (30, 1, 2.0, 0.0)
    >>> spread(EFFORTS["quick"], 60.0).processes
    15
    """
    processes = min(SPREAD_MOST, max(SPREAD_LEAST, effort.processes, math.ceil(spread_s / SPREAD_EVERY_S)))
    return replace(
        effort, name=f"{effort.name}, spread over {spread_s:g} s", processes=processes, rounds=1, target_ratio=0.0,
        most_s=max(effort.most_s, spread_s), spread_s=spread_s,
    )  # fmt: skip
