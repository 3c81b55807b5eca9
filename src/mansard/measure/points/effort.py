"""How much work a point is worth: processes, windows, time."""

from __future__ import annotations

from dataclasses import dataclass


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
    """

    name: str
    processes: int
    rounds: int
    budget_s: float
    target_ratio: float
    warmup_s: float
    most_s: float
    point_limit_s: float


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
