"""Streams that cannot write every sign write the nearest one they can: no character ends a command."""

from __future__ import annotations

import codecs
import io
from typing import TextIO

HANDLER = "mansard.nearest"
#: What is written for signs that texts of ours hold; anything else becomes an escape.
_NEAREST = {
    "\u2588": "#", "\u2593": "%", "\u2592": "=", "\u2591": "-", "\u259a": "/", "\u2500": "-", "\u2502": "|", "\u2514": "+",
    "\u2026": "...", "\u2013": "-", "\u2014": "-", "\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u2265": ">=",
    "\u2264": "<=", "\u2192": "->", "\u00d7": "x", "\u00b7": ".", "\u00b1": "+-", "\u00a0": " ", "\u00b5": "u", "\u03bc": "u",
}  # fmt: skip


def nearest(error: UnicodeError) -> tuple[str, int]:
    """Return what stands for the characters that an encoding lacks, and where to go on.

    >>> codecs.register_error(HANDLER, nearest)
    >>> "\u2588 \u2265 1 \u20ac \u0416".encode("latin-1", HANDLER)
    b'# >= 1 \\\\u20ac \\\\u0416'
    """
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lost = error.object[error.start : error.end]
    return "".join(_NEAREST.get(c) or c.encode("ascii", "backslashreplace").decode() for c in lost), error.end


def forgiving(*streams: TextIO | None) -> None:
    """Let text streams that do not write UTF-8 write the nearest signs they have.

    Args:
        streams: Such as stdout and stderr; what is none, or no stream of text with an encoding, stays as it is.
    """
    codecs.register_error(HANDLER, nearest)
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper) and "utf" not in stream.encoding.lower():
            stream.reconfigure(errors=HANDLER)
