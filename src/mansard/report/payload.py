"""What the page's scripts read: operators and chart coordinates, each figure with its text, as JSON that stays inside its tag."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from mansard.core import Ceiling, Implausible, Unknown, is_known
from mansard.core.units import format_bytes, format_bytes_per_s, format_flop, format_flop_per_s, format_ratio, format_s
from mansard.diagnose.records import Diagnosis, OperatorRow
from mansard.report import chart
from mansard.report.text import ceiling_text, ceiling_value, clean, count, figure, intensity, shorten, total_of

#: Most operators on a page, and the most bytes that they take in it; the smaller of the two decides.
ROW_CAP, ROW_BYTES = 2000, 560_000
_CELL_LENGTH = 160
#: Most ceilings in the chart; real machines have about two hundred.
LINE_CAP = 400
#: The fields of an operator that are text, in the order of its row; then figures to sort by, then the same to read.
TEXTS = ("name", "part", "bound", "category", "shapes", "source", "formula", "reason", "level", "grade", "limit", "ceiling",
         "work", "missing", "suspects", "full")  # fmt: skip
FIGURES = ("calls", "time", "flop", "bytes", "fpb", "share", "headroom")
SHOWN = (*FIGURES, "step")
POINT = ("i", "x", "y", "rate", "lane", "edge")


def as_json(value: Any) -> str:
    """Return JSON that cannot end the script tag it stands in.

    `<`, `>` and `&` become escapes, so neither `</script>` nor `<!--` occurs whatever a profile holds; so do the
    two line separators that older scripts take for line ends.

    >>> as_json({"name": "</script><!--"})
    '{"name":"\\\\u003c/script\\\\u003e\\\\u003c!--"}'
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text


def payload(diagnosis: Diagnosis, *, row_bytes: int = ROW_BYTES) -> dict[str, Any]:
    """Return the page's data: capped operator rows, a row that sums the rest up, and the chart.

    Args:
        diagnosis: What to show.
        row_bytes: Most bytes that the operators and their points may take [B].

    Rows are lists in the order of `fields`, and their texts are positions in `texts`: kernels repeat their formula and
    shape, so two thousand rows take a third of the space.
    """
    texts: dict[str, int] = {}
    rows = _capped(diagnosis, texts, row_bytes)
    kept, total = len(rows), len(diagnosis.operators)
    sums = []
    if kept < total:
        sums.append({"name": f"{total - kept} others", "t": _sums(diagnosis.operators[kept:], diagnosis)})
    if total:
        sums.append({"name": f"all {total} operators", "t": _sums(diagnosis.operators, diagnosis)})
    cap = f"This page lists the {kept} longest; the JSON document has all {total}." if kept < total else ""
    return {
        "fields": {"texts": TEXTS, "figures": FIGURES, "shown": SHOWN, "point": POINT},
        "texts": list(texts),
        "rows": rows,
        "sums": sums,
        "cap": cap,
        "total_count": total,
        "total_time": math.fsum(o.time_s for o in diagnosis.operators),
        "chart": _chart(diagnosis, kept),
    }


def _capped(diagnosis: Diagnosis, texts: dict[str, int], row_bytes: int) -> list[list[Any]]:
    """Return operator rows until their number or their size reaches its limit; `texts` collects what they say."""
    rows: list[list[Any]] = []
    size = 0
    for operator in diagnosis.operators[:ROW_CAP]:
        words, figures, shown = _row(operator, diagnosis.step.median_s)
        said = [*words, *shown]
        new = [text for text in dict.fromkeys(said) if text not in texts]
        # 50 B for the operator's point; a text costs its length in the page and its quotes.
        size += sum(len(as_json(text).encode()) + 1 for text in new) + 5 * len(said) + 9 * len(figures) + 50
        if size > row_bytes:
            break
        for text in new:
            texts[text] = len(texts)
        rows.append([*(texts[w] for w in words), *figures, *(texts[t] for t in shown)])
    return rows


def _short(text: object, limit: int = _CELL_LENGTH) -> str:
    return shorten(clean(text), limit)


def _sortable(value: float | Unknown | Implausible | None) -> float | None:
    if isinstance(value, Implausible):
        value = value.value
    return _six(value) if is_known(value) else None


def _six(value: float) -> float:
    """Return six significant digits: enough to sort and to place by, the texts beside them are exact."""
    return float(f"{value:.6g}")


def _row(o: OperatorRow, step_s: float) -> tuple[list[str], list[float | None], list[str]]:
    """Return one operator as texts, figures to sort by and the same to read; a text that says nothing is empty."""
    unknown = [v for v in (o.flop, o.bytes, o.share_of_ceiling, o.headroom_s) if isinstance(v, Unknown)]
    missing = dict.fromkeys(u.reason + (f" (needs {', '.join(u.needs)})" if u.needs else "") for u in unknown)
    suspects = "; ".join(o.share_of_ceiling.suspects) if isinstance(o.share_of_ceiling, Implausible) else ""
    limit = _short(o.limiting_ceiling, 60)
    value = f" {ceiling_value(o.ceiling_value, o.ceiling_unit)}" if o.ceiling_value and o.ceiling_value > 0 else ""
    words = {
        "name": _short(o.label), "part": _short(o.part, 40), "bound": o.bound.value, "category": _short(o.category, 40),
        "shapes": _short(o.shapes), "source": _short(o.source, 80), "formula": _short(o.formula),
        "reason": _short(o.reason), "level": _short(o.level or "", 20).upper(), "grade": o.grade.value,
        "limit": limit or "\u2013", "ceiling": limit + value, "work": figure(o.flop, format_flop),
        "missing": _short("; ".join(missing), 240), "suspects": _short(suspects, 480),
        "full": format_flop(o.full_square_flop) if o.full_square_flop else "",
    }  # fmt: skip
    figures = {
        "calls": o.calls, "time": o.time_s, "flop": o.flop, "bytes": o.bytes, "fpb": o.flop_per_byte,
        "share": o.share_of_ceiling, "headroom": o.headroom_s,
    }  # fmt: skip
    shown = {
        "calls": count(o.calls), "time": format_s(o.time_s), "step": _percent(o.time_s, step_s),
        "flop": _amount(figure(o.flop, format_flop)), "bytes": figure(o.bytes, format_bytes),
        "fpb": figure(o.flop_per_byte, intensity), "share": figure(o.share_of_ceiling, format_ratio),
        "headroom": figure(o.headroom_s, format_s),
    }  # fmt: skip
    return [words[k] for k in TEXTS], [_sortable(figures[k]) for k in FIGURES], [shown[k] for k in SHOWN]


def _percent(seconds: float, step_s: float) -> str:
    return f"{seconds / step_s * 100:.1f} %" if step_s > 0 else "?"


def _amount(text: str) -> str:
    """Return a FLOP count without its unit, which the column's header has."""
    return text.removesuffix("FLOP").rstrip()


def _sums(rows: Sequence[OperatorRow], diagnosis: Diagnosis) -> dict[str, str]:
    """Return the sums of some operators; one over figures that are not all known is a lower limit."""
    time_s = math.fsum(r.time_s for r in rows)
    out = {
        "calls": count(math.fsum(r.calls for r in rows)),
        "time": format_s(time_s),
        "step": _percent(time_s, diagnosis.step.median_s),
    }
    for key, field, write in (("flop", "flop", format_flop), ("bytes", "bytes", format_bytes),
                              ("headroom", "headroom_s", format_s)):  # fmt: skip
        value, missing = total_of([getattr(r, field) for r in rows])
        out[key] = "?" if missing and not value else ("\u2265 " if missing else "") + _amount(write(value))
    return out


def _chart(diagnosis: Diagnosis, kept: int) -> dict[str, Any]:
    roofline = chart.roofline(diagnosis)
    return {
        "x_range": list(roofline.x_range),
        "y_range": list(roofline.y_range),
        "lane": roofline.lane,
        "lines": [
            {
                "label": _short(line.ceiling.resource.label, 60),
                "short": f"{_brief(line.ceiling)} {ceiling_value(line.ceiling.value, line.ceiling.unit)}",
                "text": _short(ceiling_text(line.ceiling)) + (f", {_short(line.ceiling.source, 60)}" if line.ceiling.source else ""),
                "value": line.ceiling.value,
                "kind": line.ceiling.kind.value,
                "slanted": line.slanted,
                "used": line.used,
                "main": line.main,
                "beside": line.beside,
                "dtype": line.ceiling.resource.dtype or "",
                "worked": line.used or line.worked,
            }
            for line in _kept(roofline.lines)
        ],
        "ridges": _ridges(roofline),
        "points": [_point(p, roofline) for p in roofline.points if p.index < kept],
    }  # fmt: skip


def _ridges(roofline: chart.Roofline) -> list[list[Any]]:
    """Return where each memory line that is named meets each roof that is named: intensity, FLOP/s, dtype, text."""
    named = [line for line in roofline.lines if line.main]
    out = []
    for memory in (n for n in named if n.slanted):
        for roof in (n for n in named if not n.slanted):
            x = roof.ceiling.value / memory.ceiling.value
            what = (
                f"{_brief(memory.ceiling)} meets {_short(roof.ceiling.resource.label, 40)} at {intensity(x)} FLOP/byte"
            )
            out.append([_six(x), _six(roof.ceiling.value), roof.ceiling.resource.dtype or "", what])
    return out[:60]


def _kept(lines: Sequence[chart.Line]) -> list[chart.Line]:
    """Return the lines in their order, without the last of those that are not shown at first where there are too many."""
    room = LINE_CAP - sum(line.shown for line in lines)
    kept = []
    for line in lines:
        if line.shown or room > 0:
            kept.append(line)
            room -= not line.shown
    return kept


def _brief(ceiling: Ceiling) -> str:
    if ceiling.resource.level is None:
        return _short(ceiling.resource.label, 40)
    return _short(" ".join(w for w in (ceiling.resource.level.upper(), ceiling.resource.mix) if w), 40)


def _point(point: chart.Point, roofline: chart.Roofline) -> list[Any]:
    """Return one mark in the order of `POINT`."""
    low, high = roofline.y_range
    row = point.row
    if point.in_lane and is_known(row.bytes):
        rate = format_bytes_per_s(row.bytes / row.time_s)
    else:
        rate = format_flop_per_s(point.flop_per_s)
    y = min(max(point.flop_per_s, low), high)
    return [point.index, _six(point.flop_per_byte), _six(y), rate, int(point.in_lane), int(y != point.flop_per_s)]
