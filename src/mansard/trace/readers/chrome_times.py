"""Microseconds as JSON text to integer nanoseconds, many at once and never through a float."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Decimal, InvalidOperation

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]

_NEWLINE, _DOT, _ZERO = 10, 46, 48
_WHOLE_DIGITS = 15  # more digits before the point are read one by one
_LIMIT = 2**62  # leaves room to add a base or a duration


@dataclass(frozen=True, slots=True)
class Times:
    """Times read from text.

    Args:
        ns: Value of each text [ns]; 0 where there is none. Digits beyond the third decimal are cut off.
        missing: Where the text is empty or null.
        wrong: Where it is no finite number, or too large for 63 bits of nanoseconds.
        as_text: How many were written as JSON strings.
        finer: How many had digits beyond nanoseconds.
    """

    ns: Int64Array
    missing: npt.NDArray[np.bool_]
    wrong: npt.NDArray[np.bool_]
    as_text: int
    finer: int


def to_ns(texts: Sequence[bytes]) -> Times:
    """Return JSON numbers of microseconds in nanoseconds.

    Args:
        texts: Numbers as JSON writes them, or JSON strings of such numbers; anything that holds bytes.

    >>> t = to_ns([b"5130755193960.656", b'"12.5"', b"3", b"1.5e3", b"null", b"NaN", b"-0.001"])
    >>> t.ns.tolist(), t.missing.nonzero()[0].tolist(), t.wrong.nonzero()[0].tolist(), t.as_text
    ([5130755193960656, 12500, 3000, 1500000, 0, 0, -1], [4], [5], 1)
    """
    count = len(texts)
    joined = b"\n".join(texts) + b"\n" if count else b""
    as_text = joined.count(b'"') // 2
    if as_text:
        joined = joined.replace(b'"', b"")
    raw = np.frombuffer(joined, dtype=np.uint8)
    ends = np.flatnonzero(raw == _NEWLINE)
    if ends.size != count:  # a text holds a line break: nothing that may be trusted to the fast path
        return _one_by_one([bytes(t) for t in texts], as_text)
    starts = np.empty_like(ends)
    if count:
        starts[0] = 0
        starts[1:] = ends[:-1] + 1
    point, odd = _points(raw, ends)
    ns, finer = _digits(raw, starts, point, ends)
    missing = ends == starts
    wrong = np.zeros(count, dtype=np.bool_)
    odd |= (point - starts > _WHOLE_DIGITS) | (point == starts)
    for i in np.flatnonzero(odd & ~missing).tolist():
        value, state = _slow(joined[starts[i] : ends[i]])
        ns[i] = value
        missing[i] = state == "missing"
        wrong[i] = state == "wrong"
    ns[missing] = 0
    return Times(ns, missing, wrong, as_text, finer)


def _points(raw: npt.NDArray[np.uint8], ends: Int64Array) -> tuple[Int64Array, npt.NDArray[np.bool_]]:
    """Return where the whole part of each text ends, and which texts are more than digits and one point."""
    odd = np.zeros(ends.size, dtype=np.bool_)
    point = ends.copy()
    dots = np.flatnonzero(raw == _DOT)
    of = np.searchsorted(ends, dots)
    point[of[::-1]] = dots[::-1]
    if dots.size > 1:
        odd[of[1:][of[1:] == of[:-1]]] = True
    others = np.flatnonzero(((raw - _ZERO) > 9) & (raw != _DOT) & (raw != _NEWLINE))
    odd[np.searchsorted(ends, others)] = True
    odd |= (point < ends) & (point + 1 == ends)
    return point, odd


def _digits(
    raw: npt.NDArray[np.uint8], starts: Int64Array, point: Int64Array, ends: Int64Array
) -> tuple[Int64Array, int]:
    ns = np.zeros(ends.size, dtype=np.int64)
    if not ends.size:
        return ns, 0
    longest = min(int((point - starts).max()), _WHOLE_DIGITS)
    for k in range(longest):
        at = point - 1 - k
        inside = at >= starts
        ns += np.where(inside, (raw[np.maximum(at, 0)] - _ZERO).astype(np.int64) * 10 ** (k + 3), 0)
    for k in range(3):
        at = point + 1 + k
        inside = at < ends
        ns += np.where(inside, (raw[np.minimum(at, raw.size - 1)] - _ZERO).astype(np.int64) * 10 ** (2 - k), 0)
    return ns, int(np.count_nonzero(ends - point > 4))


def _slow(text: bytes) -> tuple[int, str]:
    text = text.strip()
    if text in (b"", b"null"):
        return 0, "missing"
    try:
        value = Decimal(text.decode()) * 1000
        if not value.is_finite() or abs(value) >= _LIMIT:
            return 0, "wrong"
        return int(value.to_integral_value(rounding=ROUND_FLOOR)), ""
    except (InvalidOperation, UnicodeDecodeError, ArithmeticError):
        return 0, "wrong"


def _one_by_one(texts: Sequence[bytes], as_text: int) -> Times:
    results = [_slow(t.strip(b'"')) for t in texts]
    return Times(
        np.array([r[0] for r in results], dtype=np.int64),
        np.array([r[1] == "missing" for r in results], dtype=np.bool_),
        np.array([r[1] == "wrong" for r in results], dtype=np.bool_),
        as_text,
        0,
    )
