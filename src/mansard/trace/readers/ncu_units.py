"""Units of Nsight Compute: each column and each file has its own, so every number passes through here."""

from __future__ import annotations

import math

_PREFIX = {"": 1.0, "n": 1e-9, "u": 1e-6, "m": 1e-3, "K": 1e3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_TIME = {"second": 1.0, "s": 1.0, "msecond": 1e-3, "ms": 1e-3, "usecond": 1e-6, "us": 1e-6, "nsecond": 1e-9, "ns": 1e-9}  # fmt: skip
_COUNTED = ("byte", "cycle", "inst", "sector", "thread", "warp", "request", "block", "register", "wavefront", "hz", "op", "flop", "bit",
            "tag", "page", "group", "instruction", "slot", "pixel")  # fmt: skip


def number(text: str) -> float | None:
    """Return a number with or without thousands separators, None if it is none or not finite.

    >>> number("21,058,944"), number("0.5"), number("(16, 16, 1)"), number("nan")
    (21058944.0, 0.5, None, None)
    """
    text = text.strip()
    if "," in text and not _grouped(text):
        return None
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _grouped(text: str) -> bool:
    """Whether commas stand where thousands separators do: a decimal comma is refused, not read as a hundredfold."""
    head, *groups = text.partition(".")[0].lstrip("+-").split(",")
    return 1 <= len(head) <= 3 and all(len(g) == 3 and g.isdigit() for g in groups)


def to_base(value: float, unit: str) -> float | None:
    """Return a value in seconds, bytes, cycles, hertz, ... per second; None where the unit is not known.

    Percentages stay percentages: what they are shares of differs by metric.

    >>> to_base(52.576, "usecond"), to_base(262.5, "Gbyte/second"), to_base(540.5, "cycle/usecond"), to_base(3.0, "furlong")
    (5.2576e-05, 262500000000.0, 540500000.0, None)
    """
    unit = unit.strip()
    if unit in ("", "%", "pct"):
        return value
    if unit.lower() in _TIME:
        return _exact(value, _TIME[unit.lower()])
    over, slash, under = unit.partition("/")
    top = _counted(over) if over else 1.0
    if top is None:
        return None
    if not slash:
        return value * top
    if under.lower() in _TIME:
        bottom = _TIME[under.lower()]
        return value * top * round(1 / bottom)
    below = _counted(under)
    return value * top / below if below is not None else None


def _exact(value: float, factor: float) -> float:
    """Multiply by a power of ten below 1 as a division, which rounds once where the product rounds twice."""
    return value / round(1 / factor)


def _counted(unit: str) -> float | None:
    for word in _COUNTED:
        for spelling in (word, word + "s"):
            if unit.lower() == spelling:
                return 1.0
            if unit.lower().endswith(spelling) and unit[: -len(spelling)] in _PREFIX:
                return _PREFIX[unit[: -len(spelling)]]
    return None
