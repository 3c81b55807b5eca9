"""Whole numbers from text and from JSON, kept within the integers of a column."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from mansard.trace.timeline import NONE

LARGEST = 2**62  # room for a sum or a difference


def natural(text: str, *, below: int = LARGEST) -> int | None:
    """Return a number without sign written in ASCII digits, None where it is none or too large.

    >>> natural("42"), natural(""), natural("-1"), natural("9" * 30), natural("\\u00b2")
    (42, None, None, None, None)
    """
    if not text.isascii() or not text.isdigit() or len(text) > 19:
        return None
    value = int(text)
    return value if value < below else None


def int64s(values: Iterable[int], *, below: int = LARGEST) -> npt.NDArray[np.int64]:
    """Return numbers as a column; what does not fit is -1, not recorded.

    >>> int64s([1, 2**70, -5]).tolist()
    [1, -1, -5]
    """
    return np.array([v if -below < v < below else NONE for v in values], dtype=np.int64)
