"""Measured points (N, T) from the command line and from CSV files."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path

from mansard.core.errors import InputError, UsageError
from mansard.core.units import parse_quantity

_DEVICES = ("n", "devices", "ranks", "gpus", "chips", "processes", "world_size")
_TIMES = {"time_s": 1.0, "t": 1.0, "t_s": 1.0, "seconds": 1.0, "step_s": 1.0, "step_time_s": 1.0, "time_ms": 1e-3,
          "step_ms": 1e-3, "ms": 1e-3}  # fmt: skip


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return parse_quantity(text.strip().strip("\"'"), "s")


def parse_points(texts: Iterable[str]) -> list[tuple[int, float]]:
    """Return points from texts such as `8:17` (seconds) or `8:17 ms`.

    Raises:
        UsageError: a text that is none.

    >>> parse_points(["1:100", "8:17 ms"])
    [(1, 100.0), (8, 0.017)]
    """
    out = []
    for text in texts:
        n, colon, time = text.partition(":")
        if not colon or not n.strip().isdigit():
            raise UsageError(f"cannot read the point {text!r}", hint='N:T, such as 8:17 (seconds) or 8:"17 ms"')
        out.append((int(n), _seconds(time)))
    return out


def _shown(names: Iterable[str], most: int = 6, long: int = 24) -> str:
    """Return the first names of columns, each cut to a length.

    >>> _shown(["a", "b" * 99, "c"], most=2, long=4)
    'a, bbbb..., and 1 more'
    """
    all_names = list(names)
    cut = [name if len(name) <= long else f"{name[:long]}..." for name in all_names[:most]]
    rest = [f"and {len(all_names) - most} more"] if len(all_names) > most else []
    return ", ".join([*cut, *rest]) or "none"


def read_points(path: Path) -> list[tuple[int, float]]:
    """Return the points of a CSV file with a column of devices and one of times.

    Raises:
        InputError: no such file, columns that are missing, or a row that is no point; rows are named.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {getattr(error, 'strerror', None) or 'it is not text'}") from None
    if text.lstrip()[:1] in ("{", "["):
        raise InputError(
            f"{path} is JSON, expected a CSV of measured points", hint="columns n and time_s, a row for each"
        )
    reader = csv.DictReader(text.splitlines())
    names = {(name or "").strip().lower(): name for name in reader.fieldnames or ()}
    devices = next((names[d] for d in _DEVICES if d in names), None)
    time = next(((names[t], factor) for t, factor in _TIMES.items() if t in names), None)
    if devices is None or time is None:
        raise InputError(
            f"{path} has the columns {_shown(names)}, expected one of devices and one of times",
            hint=f"one of {', '.join(_DEVICES)}; one of {', '.join(_TIMES)}",
        )
    out = []
    for row in reader:
        try:
            out.append((int(row[devices]), float(row[time[0]]) * time[1]))
        except (TypeError, ValueError):
            raise InputError(
                f"{path}, line {reader.line_num}: {_shown([repr(row[devices]), repr(row[time[0]])])} are no devices and time"
            ) from None
    return out
