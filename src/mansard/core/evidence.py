"""How sure a number is. The worst grade among the inputs is the grade of the result."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum


class Grade(StrEnum):
    """Where a number comes from, from the surest to the least sure."""

    MEASURED = "measured"
    MODELLED = "modelled"
    DECLARED = "declared"
    ASSUMED = "assumed"


_ORDER = (Grade.MEASURED, Grade.MODELLED, Grade.DECLARED, Grade.ASSUMED)


def worst_grade(grades: Iterable[Grade]) -> Grade:
    """Return the least sure of `grades`; nothing at all is `assumed`.

    >>> worst_grade([Grade.MEASURED, Grade.DECLARED, Grade.MODELLED])
    <Grade.DECLARED: 'declared'>
    """
    return max(grades, key=_ORDER.index, default=Grade.ASSUMED)
