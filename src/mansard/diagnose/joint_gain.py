"""A gain that was measured for several changes together: what it says, and what it does not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mansard.core import Implausible, Unknown
from mansard.core.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class JointGain:
    """One step before and after several changes, and nothing in between.

    Args:
        reduction_ratio: 1 - step after / step before; below 0 where it became slower.
        changes: The changes, in words.
        of: What the step is the step of: model, machine, settings.

    >>> gain = JointGain(reduction_ratio=0.2, changes=("fused routing", "another attention kernel"), of="one model")
    >>> round(gain.speedup_ratio, 6), gain.of_change("fused routing").reason
    (1.25, 'only the sum of 2 changes was measured')
    """

    reduction_ratio: float
    changes: tuple[str, ...]
    of: str

    def __post_init__(self) -> None:
        if not self.reduction_ratio < 1.0:
            raise UsageError(f"a step cannot become {self.reduction_ratio} shorter, expected less than 1")
        if not self.changes:
            raise UsageError("a gain belongs to at least one change")

    @property
    def speedup_ratio(self) -> float:
        """Step before over step after, of this step."""
        return 1.0 / (1.0 - self.reduction_ratio)

    def of_change(self, change: str) -> float | Unknown:
        """Return the part of one change: all of it where it is the only one, else `Unknown`.

        Changes overlap and depend on each other, so a sum cannot be split by counting heads or by guessing.

        Raises:
            UsageError: it is none of the changes.
        """
        if change not in self.changes:
            raise UsageError(f"{change!r} is none of the changes", hint="; ".join(self.changes))
        if len(self.changes) == 1:
            return self.reduction_ratio
        return Unknown(
            f"only the sum of {len(self.changes)} changes was measured",
            ("the step with each change alone", "the step with each change taken back"),
        )

    def elsewhere(self, what: str) -> Unknown:
        """Return what the gain would be of another step: not known. It is no multiplier.

        Args:
            what: The other model, machine or setting.
        """
        return Unknown(
            f"measured on {self.of}; another step has other shares of its time in what was changed, so it says nothing of {what}",
            (f"a diagnosis of {what}",),
        )

    def least_part_ratio(self, share_of_ceiling: float) -> float | Implausible:
        """Return which part of the step what was changed had at least, if it ran at that share of its ceiling before.

        At most the part can shrink to its ceiling: reduction <= part x (1 - share).

        Args:
            share_of_ceiling: Of the changed part before the changes, below 1.

        Returns: `Implausible` where more than the whole step would have to shrink to its ceiling.

        Assumes: the changes left the work as it is. One that reduces work can gain more from a smaller part.
        Source: Amdahl, AFIPS 1967.

        21.2 % of a step, from what ran at 30 % of its ceiling: 0.212 / 0.7.

        >>> round(JointGain(reduction_ratio=0.212, changes=("a",), of="one model").least_part_ratio(0.3), 4)
        0.3029
        """
        if not 0.0 <= share_of_ceiling < 1.0:
            raise UsageError(f"the share of the ceiling is {share_of_ceiling}, expected 0 up to below 1")
        part = self.reduction_ratio / (1.0 - share_of_ceiling)
        if part > 1.0:
            return Implausible(part, ("the changes reduced the work", "the share was taken after the changes"))
        return max(part, 0.0)

    def text(self) -> str:
        """Return the gain in one sentence."""
        word = "shorter" if self.reduction_ratio >= 0 else "longer"
        text = f"the step is {abs(self.reduction_ratio) * 100.0:.3g} % {word}"
        if len(self.changes) == 1:
            return f"{text}; that is no multiplier for another step"
        together = f"all {len(self.changes)} changes together; the part of each is not known"
        return f"{text}, {together}, and it is no multiplier for another step"

    def to_json(self) -> dict[str, Any]:
        """Return the gain with what is not known of it."""
        return {
            "reduction_ratio": self.reduction_ratio, "speedup_ratio": self.speedup_ratio, "of": self.of, "text": self.text(),
            "changes": [{"change": c, "reduction_ratio": self.of_change(c)} for c in self.changes],
        }  # fmt: skip
