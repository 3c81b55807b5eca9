"""Text that every view shares: names from a profile made safe, figures for reading, shares that add up."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mansard.core import Ceiling, Implausible, Unknown, is_known
from mansard.core.units import (
    format_bytes,
    format_bytes_per_s,
    format_flop,
    format_flop_per_s,
    format_hz,
    format_ratio,
    format_s,
)
from mansard.diagnose.lower_limits import whole_work
from mansard.diagnose.records import SHARE_KINDS, Diagnosis, OperatorRow

#: Control, invisible, direction-changing, surrogate and private characters, and those that XML forbids: they could hide or reorder what is seen.
_HIDDEN = frozenset(
    [*range(0x20), *range(0x7F, 0xA0), 0xAD, 0x061C, 0x180E, *range(0x200B, 0x2010), *range(0x2028, 0x202F),
     *range(0x2060, 0x2070), 0xFEFF, *range(0xFFF9, 0xFFFC), 0xFFFE, 0xFFFF, *range(0xD800, 0xF900), *range(0xE0000, 0xE0080)]
)  # fmt: skip
#: Longer foreign text is cut before it is looked at character by character.
_LONGEST = 20_000


def clean(text: object, *, ascii_only: bool = False) -> str:
    r"""Return foreign text with control, direction and invisible characters written as escapes.

    Args:
        text: Anything; its `str()` is used.
        ascii_only: Write everything beyond ASCII as an escape too.

    >>> clean("a\x1b[31mb\u202e"), clean("\u03bc", ascii_only=True)
    ('a\\x1b[31mb\\u202e', '\\u03bc')
    """
    raw = str(text)
    raw = raw if len(raw) <= _LONGEST else raw[:_LONGEST] + f" ... ({len(raw)} characters)"
    if raw.isascii() and raw.isprintable():
        return raw
    return "".join(_shown(char, ascii_only) for char in raw)


def _shown(char: str, ascii_only: bool) -> str:
    code = ord(char)
    if code in _HIDDEN or (ascii_only and code > 0x7E):
        return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    return char


def shorten(text: str, limit: int, *, ellipsis: str = "\u2026") -> str:
    """Return `text` in at most `limit` characters; the middle is left out, since both ends of a kernel name tell.

    >>> shorten("aten::convolution_backward", 15, ellipsis="...")
    'aten::co...ward'
    """
    if len(text) <= limit:
        return text
    room = limit - len(ellipsis)
    if room < 2:
        return text[:limit]
    head = (2 * room + 2) // 3
    return text[:head] + ellipsis + text[len(text) - (room - head) :]


def compact(text: str, unit: str) -> str:
    """Return a formatted figure for a narrow column: no space and no base unit, since the header has it.

    >>> compact("5.51 TFLOP", "FLOP"), compact("0 B", "B"), compact("118 MB", "B")
    ('5.51T', '0', '118M')
    """
    return text.removesuffix(unit).replace(" ", "")


def figure(value: float | Unknown | Implausible | None, write: Any, *, missing: str = "\u2013") -> str:
    """Return a number for reading: `?` where it is not known, `!` behind one that cannot be true.

    >>> figure(0.5, format_ratio), figure(Unknown("no clock"), format_ratio), figure(Implausible(3.0, ()), format_ratio)
    ('50 %', '?', '300 %!')
    """
    if value is None:
        return missing
    if isinstance(value, Unknown):
        return "?"
    if isinstance(value, Implausible):
        return f"{write(value.value)}!"
    return str(write(value))


def distinct_names(rows: Sequence[OperatorRow]) -> list[str]:
    """Return a name for each row; rows of one name get what tells them apart: result, operands, else a number.

    The result of a compiled operation is behind the arrow of its shapes.
    """
    names = [row.label for row in rows]
    for write in (lambda r: _result(r.shapes), lambda r: r.shapes, lambda r: f"{r.shapes} {r.part}".lstrip()):
        times = Counter(names)
        told = [f"{row.label} {write(row)}" if write(row) else row.label for row in rows]
        again = Counter(told)
        # A longer name only where it helps: where rows share their name, and no other row has the longer one.
        names = [
            new if times[old] > 1 and (again[new] == 1 or old == row.label) else old
            for row, old, new in zip(rows, names, told, strict=True)
        ]
    times, seen = Counter(names), Counter[str]()
    for i, name in enumerate(names):
        if times[name] > 1:
            seen[name] += 1
            names[i] = f"{name} #{seen[name]}"
    return names


def _result(shapes: str) -> str:
    """Return the result's shape without its element type: `[64,32]` of `f32[64,16] f32[16,32] -> f32[64,32]`."""
    _, arrow, result = shapes.rpartition("-> ")
    return result[result.index("[") :] if arrow and result.count("[") == 1 else ""


def intensity(value: float) -> str:
    """Return FLOP per byte with about three digits.

    >>> intensity(122.85), intensity(5.66), intensity(0.0), intensity(0.0123)
    ('123', '5.7', '0', '0.012')
    """
    if value == 0:
        return "0"
    return f"{value:.0f}" if value >= 99.5 else f"{value:.1f}" if value >= 0.95 else f"{value:.2g}"


def count(value: float) -> str:
    """Return calls per step; whole where they are whole.

    >>> count(12.0), count(0.25), count(15234.0)
    ('12', '0.25', '15234')
    """
    return f"{value:.0f}" if value == int(value) else f"{value:.3g}"


def ceiling_value(value: float, unit: str) -> str:
    """Return a ceiling's figure for reading.

    >>> ceiling_value(205e9, "FLOP/s"), ceiling_value(1.3e-6, "s"), ceiling_value(1.9e9, "evaluations/s")
    ('205 GFLOP/s', '1.30 us', '1.90 G evaluations/s')
    """
    if unit == "FLOP/s":
        return format_flop_per_s(value)
    if unit == "B/s":
        return format_bytes_per_s(value)
    if unit == "s":
        return format_s(value)
    number, _, prefixed = format_flop_per_s(value).partition(" ")
    return f"{number} {prefixed.removesuffix('FLOP/s')} {unit}".replace("  ", " ")


def ceiling_text(ceiling: Ceiling) -> str:
    """Return one ceiling as a receipt names it: what, how fast, of which kind and scope."""
    dense = "dense, " if ceiling.resource.engine == "matrix" else ""
    value = ceiling_value(ceiling.value, ceiling.unit)
    return f"{ceiling.resource.label} {value} ({ceiling.kind.value}, {dense}{ceiling.scope})"


def percent_shares(shares: Mapping[str, float]) -> dict[str, float]:
    """Return shares in percent with one decimal, rounded so that what is printed adds to exactly 100.0.

    Shares that do not add to 1 are rounded one by one: a wrong sum is shown, not repaired.

    >>> percent_shares({"a": 1 / 3, "b": 1 / 3, "c": 1 / 3})
    {'a': 33.4, 'b': 33.3, 'c': 33.3}
    """
    total = math.fsum(shares.values())
    if abs(total - 1.0) > 5e-4 or any(v < 0 for v in shares.values()):
        return {kind: round(share * 100.0, 1) for kind, share in shares.items()}
    units = {kind: math.floor(share * 1000.0 + 1e-9) for kind, share in shares.items()}
    rest = sorted(shares, key=lambda kind: units[kind] - shares[kind] * 1000.0)
    for index in range(1000 - sum(units.values())):
        units[rest[index % len(rest)]] += 1
    return {kind: n / 10.0 for kind, n in units.items()}


def share_kinds(shares: Mapping[str, float]) -> tuple[str, ...]:
    """Return the kinds of time in their fixed order, then any others."""
    return (*(k for k in SHARE_KINDS if k in shares), *(k for k in shares if k not in SHARE_KINDS))


def receipt_rows(receipt: Mapping[str, Any], *, limit: int = 200) -> list[tuple[str, str]]:
    """Return a nested receipt as rows of name and text, in its own order.

    Args:
        receipt: Mappings, sequences and plain values.
        limit: Most rows; a last row counts the ones left out.
    """
    rows: list[tuple[str, str]] = []
    for key, value in receipt.items():
        _flatten(clean(key), value, rows, 1)
    if len(rows) > limit:
        rows = [*rows[:limit], ("more", f"{len(rows) - limit} rows are in the JSON document")]
    return rows


#: The longer suffixes first: `_bytes_per_s` also ends in `_s`.
_WRITERS: dict[str, Callable[[float], str]] = {
    "_bytes_per_s": format_bytes_per_s, "_flop_per_s": format_flop_per_s, "_bytes": format_bytes, "_flop": format_flop,
    "_hz": format_hz, "_ratio": format_ratio, "_per_s": lambda v: f"{v:.4g} 1/s", "_s": format_s,
}  # fmt: skip


def _flatten(name: str, value: Any, rows: list[tuple[str, str]], depth: int) -> None:
    if isinstance(value, Mapping) and value and depth < 6 and not set(value) <= {"unknown", "needs"}:
        for key, inner in value.items():
            _flatten(f"{name}.{clean(key)}", inner, rows, depth + 1)
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        if any(isinstance(inner, Mapping) for inner in value) and depth < 6:
            for index, inner in enumerate(value, 1):
                _flatten(f"{name} {index}", inner, rows, depth + 1)
        else:
            rows.append((name, "; ".join(_plain(inner) for inner in value) or "none"))
    else:
        rows.append((name, _plain(value, name)))


def _plain(value: Any, name: str = "") -> str:
    """Return one value in words; a number whose name ends in its unit, or is it, gets its prefix.

    >>> _plain(532e9, "points 1.bytes_per_s"), _plain(2.5, "step_s"), _plain(7.0, "tokens_per_s")
    ('532 GB/s', '2.50 s', '7 1/s')
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        own = f"_{name.rpartition('.')[2]}"
        for suffix, write in _WRITERS.items():
            if own.endswith(suffix):
                return str(write(value))
    if isinstance(value, Unknown):
        return f"not known: {clean(value.reason)}"
    if isinstance(value, Ceiling):
        return ceiling_text(value)
    if isinstance(value, Mapping) and not value:
        return "none"
    if isinstance(value, Mapping) and "unknown" in value:
        return f"not known: {clean(value['unknown'])}"
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, float):
        return f"{value:.6g}"
    return clean(value)


def reasons(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """Return why the headline figures that are missing or impossible are so, each with its name."""
    named = (
        ("share of ceiling", diagnosis.verdict.share_of_ceiling),
        ("headroom", diagnosis.verdict.headroom_s),
        ("FLOP per step", diagnosis.flop_per_step),
        ("bytes per step", diagnosis.bytes_per_step),
        ("MFU", diagnosis.mfu_ratio),
    )
    found: dict[str, list[str]] = {}
    for name, value in named:
        if isinstance(value, Unknown):
            needs = f"; needs {', '.join(value.needs)}" if value.needs else ""
            if value.reason in diagnosis.verdict.sentence:
                continue  # the verdict itself says so
            found.setdefault(clean(f"not known: {value.reason}{needs}"), []).append(name)
        elif isinstance(value, Implausible):
            suspects = "; ".join(value.suspects)
            text = clean(f"{format_ratio(value.value)} cannot be true; suspects: {suspects}")
            found.setdefault(text, []).append(name)
    return [(", ".join(names), why) for why, names in found.items()]


def total_of(values: Sequence[float | Unknown]) -> tuple[float, int]:
    """Return the sum of the known values and how many are not known."""
    known = [v for v in values if is_known(v)]
    return math.fsum(known), len(values) - len(known)


def work_of_step(diagnosis: Diagnosis) -> tuple[str, str]:
    """Return FLOP and bytes of a step as text: lower limits, or `?`, where the cost of a part of the step is not known."""
    flop = figure(diagnosis.flop_per_step, format_flop, missing="?")
    size = figure(diagnosis.bytes_per_step, format_bytes, missing="?")
    if not whole_work(diagnosis, flop=True):  # of the rest nobody knows what it needs
        flop = "?" if flop in ("?", format_flop(0.0)) else f"\u2265{flop}"
    if not whole_work(diagnosis, flop=False):
        size = "?" if size in ("?", format_bytes(0.0)) else f"\u2265{size}"
    return flop, size
