"""Text of a table or a command line as a value: number, truth value, list or range."""

from __future__ import annotations

import re
from typing import Any

from mansard.measure.config.sweeps import SweepError

_RANGE = re.compile(r"^\s*([^.\s]+(?:\.\d+)?)\s*\.\.\s*(.+?)\s*([x+])\s*([0-9.eE]+)\s*$")


def typed(text: str) -> Any:
    """Return a cell as int, float, bool or text, the first that fits.

    >>> typed("512"), typed("1e3"), typed("true"), typed("nan"), typed("bf16")
    (512, 1000.0, True, 'nan', 'bf16')
    """
    text = text.strip()
    if re.fullmatch(r"[+-]?\d+", text):
        return int(text)
    try:
        number = float(text)
    except ValueError:
        return {"true": True, "false": False}.get(text.lower(), text)
    return number if abs(number) < float("inf") and "_" not in text else text


def typed_option(raw: Any) -> Any:
    """Return an option's value: a scalar, a list for `a,b`, or the parts of a range.

    Raises:
        SweepError: a range without a step.

    >>> typed_option("1,2"), typed_option("4x2x2"), typed_option("1..8x2")
    ([1, 2], '4x2x2', {'start': 1, 'end': 8, 'multiplier': 2})
    """
    if isinstance(raw, list | tuple):
        return [typed(item) if isinstance(item, str) else item for item in raw]
    if not isinstance(raw, str):
        return raw
    if ".." in raw and re.match(r"\s*[0-9]", raw):
        match = _RANGE.match(raw)
        if match is None:
            raise SweepError(f"cannot read {raw!r} as a range")
        start, end, sign, step = match.groups()
        return {"start": typed(start), "end": typed(end), "multiplier" if sign == "x" else "increase_by": typed(step)}
    if "," in raw:
        return [typed(item) for item in raw.split(",") if item.strip()]
    return typed(raw)
