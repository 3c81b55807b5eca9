"""From a floor to an expectation: the band in which real runs lay, with where it comes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mansard.core import Grade, Unknown
from mansard.predict.bound import PhaseBound
from mansard.predict.estimate import Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """A time as a range.

    Args:
        low_s: The bound: no run is faster [s].
        expected_s, high_s: Median and slow end of what comparable runs reached [s].
        grade: How sure.
        basis: Which runs.
    """

    low_s: float | Unknown
    expected_s: float | Unknown
    high_s: float | Unknown
    grade: Grade
    basis: str

    def to_json(self) -> dict[str, Any]:
        """Return the keys of `prediction`."""
        return {
            "low_s": self.low_s, "expected_s": self.expected_s, "high_s": self.high_s, "grade": self.grade, "basis": self.basis,
        }  # fmt: skip


def prediction_of(result: Estimate) -> Prediction:
    """Return the range of an estimate: the bound, and an expectation where comparable runs are on record."""
    bound = result.bound
    if not isinstance(bound, PhaseBound):
        return Prediction(low_s=bound, expected_s=bound, high_s=bound, grade=Grade.ASSUMED, basis="no machine")
    none = Unknown("no measured runs like this one are on record", ("mansard validate",))
    return Prediction(low_s=bound.time_s, expected_s=none, high_s=none, grade=Grade.ASSUMED, basis="the bound alone")
