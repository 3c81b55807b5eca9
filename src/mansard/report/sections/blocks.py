"""What a section of the page is made of: charts, tables, bars over time and prose, as JSON for the page's scripts.

Python works out every coordinate and every text with a unit; the scripts place, sort and filter. Every text is cleaned here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mansard.core.unknown import Implausible, Unknown
from mansard.report.text import clean, shorten

#: Most points of one chart and rows of one table; what is left out is said beside it.
POINT_CAP, ROW_CAP = 3000, 1000
_TEXT, _CELL, _NAME = 400, 160, 60


def said(text: object, limit: int = _TEXT) -> str:
    """Return foreign text made safe to read and cut to a length."""
    return shorten(clean(text), limit)


def number(value: Any) -> float | None:
    """Return a finite number, or None for everything else, `Unknown` in JSON included.

    >>> number(2), number({"unknown": "no clock", "needs": []}), number(True), number({"implausible": 1.5})
    (2.0, None, None, 1.5)
    """
    if isinstance(value, Implausible):
        value = value.value
    if isinstance(value, Mapping) and "implausible" in value:
        value = value["implausible"]
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    return None


def reason_of(value: Any) -> str:
    """Return why a figure is not known, empty where it is known or says nothing.

    >>> reason_of({"unknown": "no clock", "needs": ["--clock"]}), reason_of(1.0)
    ('no clock (needs --clock)', '')
    """
    if isinstance(value, Unknown):
        value = value.to_json()
    if not isinstance(value, Mapping) or "unknown" not in value:
        return ""
    needs = value.get("needs") or ()
    return str(value["unknown"]) + (f" (needs {', '.join(map(str, needs))})" if needs else "")


def _six(value: float) -> float:
    return float(f"{value:.6g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One set of points or one line of a chart.

    Args:
        name: Its name in the key.
        x, y: Coordinates, in the units that the axes say.
        text: What is said of each point; empty where nothing is.
        mode: `markers`, `lines`, `lines+markers` or `bars` (x is then the text of a category).
        colour: A kind of bound or verdict that has a colour; empty takes the next of the palette.
        dash: `solid`, `dash` or `dot`.
        low, high: Ends of an interval around each y; empty where none is known.
        quiet: A reference line: thin, and without a name in the key.
    """

    name: str
    x: Sequence[float | str]
    y: Sequence[float]
    text: Sequence[str] = ()
    mode: str = "lines+markers"
    colour: str = ""
    dash: str = "solid"
    low: Sequence[float | None] = ()
    high: Sequence[float | None] = ()
    quiet: bool = False

    def to_json(self, categories: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Return the series for the page, with the names of the chart's categories where it has some."""
        known = categories or {}
        xs: list[float | str] = [known.get(x, said(x, _NAME)) if isinstance(x, str) else _six(x) for x in self.x]
        out: dict[str, Any] = {
            "name": said(self.name, _NAME), "x": xs, "y": [_six(v) for v in self.y], "mode": self.mode,
            "colour": self.colour, "dash": self.dash, "quiet": self.quiet, "text": [said(t) for t in self.text],
        }  # fmt: skip
        if any(v is not None for v in (*self.low, *self.high)):
            out["minus"] = [0 if v is None else _six(max(0.0, y - v)) for y, v in zip(self.y, self.low, strict=True)]
            out["plus"] = [0 if v is None else _six(max(0.0, v - y)) for y, v in zip(self.y, self.high, strict=True)]
        return out


def categories(texts: Iterable[str]) -> dict[str, str]:
    """Return how each category of a chart is written: cut, and numbered where two would look the same and share a bar.

    >>> categories(["a" * 80 + "1" + "b" * 80, "a" * 80 + "2" + "b" * 80])["a" * 80 + "2" + "b" * 80][-4:]
    'b #2'
    """
    shown: dict[str, str] = {}
    taken: set[str] = set()
    for text in dict.fromkeys(texts):
        base = name = said(text, _NAME)
        number_ = 1
        while name in taken:
            number_ += 1
            name = f"{base} #{number_}"
        taken.add(name)
        shown[text] = name
    return shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One chart.

    Args:
        label: What it shows, for those who do not see it.
        x_title, y_title: Titles of the axes with their units.
        series: What is drawn.
        x_log, y_log: Whether an axis is logarithmic.
        uprights: Vertical lines with a name each, such as the capacity of a cache.
        x_names: Places on the x axis that are named with a text below their number; empty leaves the ticks to the page.
        levels: Horizontal lines with a name each, such as a ceiling.
        bands: Upright bands from one x to another that are shaded in a colour of `Series.colour`, such as an interval of a place.
        notes: Sentences below it.
        sideways: Bars run to the right, one row for each.
        percent: The value axis is a share and is written in percent.
        stacked: Bars of one row follow each other, else they lie below each other.
    """

    label: str
    x_title: str
    y_title: str
    series: Sequence[Series]
    x_log: bool = False
    y_log: bool = False
    uprights: Sequence[tuple[float, str]] = ()
    x_names: Sequence[tuple[float, str]] = ()
    levels: Sequence[tuple[float, str]] = ()
    bands: Sequence[tuple[float, float, str]] = ()
    notes: Sequence[str] = ()
    sideways: bool = False
    percent: bool = False
    stacked: bool = True

    def to_json(self) -> dict[str, Any]:
        """Return the chart for the page; at most `POINT_CAP` points, and a note where some are left out."""
        left, kept, lost = POINT_CAP, [], 0
        names = categories(x for s in self.series for x in s.x if isinstance(x, str))
        for series in self.series:
            count = len(series.y)
            if count > left:
                lost += count
                continue
            left -= count
            kept.append(series.to_json(names))
        more = [f"{lost} points more than this chart holds ({POINT_CAP}) are left out."] if lost else []
        return {
            "kind": "chart", "label": said(self.label), "x": self.x_title, "y": self.y_title, "series": kept,
            "x_log": self.x_log, "y_log": self.y_log, "uprights": [[_six(v), said(t, _NAME)] for v, t in self.uprights],
            "levels": [[_six(v), said(t, _NAME)] for v, t in self.levels], "x_names": [[_six(v), said(t, _NAME)] for v, t in self.x_names],
            "bands": [[_six(a), _six(b), c] for a, b, c in self.bands], "notes": [said(n) for n in [*self.notes, *more]],
            "sideways": self.sideways, "percent": self.percent, "stacked": self.stacked,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cell:
    """One figure of a table: what is read, and what it is sorted by (None: not known, last in both directions)."""

    text: str
    value: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One table that can be sorted, searched and filtered.

    Args:
        label: What it lists.
        columns: Titles; those in `texts` hold text, the others figures.
        rows: Text or `Cell` for each column.
        texts: Positions of the columns that hold text.
        filter_by: Position of the column that can be filtered by its values; None where none is.
        total: Rows there are; more than are given where the rest is only in the document.
        notes: Sentences below it.
        swatch: Position of a column whose values have colours, None where none has.
    """

    label: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str | Cell]]
    texts: frozenset[int] = frozenset({0})
    filter_by: int | None = None
    total: int | None = None
    notes: Sequence[str] = ()
    swatch: int | None = None

    def to_json(self, cap: int = ROW_CAP) -> dict[str, Any]:
        """Return the table for the page, with at most `cap` rows and a sentence where there are more."""
        total = len(self.rows) if self.total is None else self.total
        kept = self.rows[:cap]
        more = f"Lists the first {len(kept)} of {total} rows; the others are in the files." if len(kept) < total else ""
        return {
            "kind": "table", "label": said(self.label), "columns": list(self.columns), "texts": sorted(self.texts),
            "rows": [[said(c.text if isinstance(c, Cell) else c, _CELL) for c in row] for row in kept],
            "values": [[_value(c) for c in row] for row in kept],
            "filter": self.filter_by, "swatch": self.swatch, "notes": [said(n) for n in [*self.notes, more] if n],
        }  # fmt: skip


def _value(cell: str | Cell) -> float | None:
    return None if isinstance(cell, str) or cell.value is None else _six(cell.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prose:
    """Sentences, one paragraph each."""

    lines: Sequence[str]

    def to_json(self) -> dict[str, Any]:
        """Return the sentences for the page."""
        return {"kind": "prose", "lines": [said(line, 1200) for line in self.lines[:100]]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Names with what is known of each, such as an environment."""

    rows: Sequence[tuple[str, str]]

    def to_json(self) -> dict[str, Any]:
        """Return the facts for the page."""
        return {"kind": "facts", "rows": [[said(k, 120), said(v)] for k, v in self.rows[:200]]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One section of the page.

    Args:
        key: Identifier in the page, letters and dashes.
        title: Its heading.
        small: What belongs to the heading.
        blocks: What it shows, in order.
        folded: Closed at first; opened by a click.
    """

    key: str
    title: str
    small: str = ""
    blocks: Sequence[Any] = field(default_factory=tuple)
    folded: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the section for the page; a table that is the only one of its section needs no title of its own."""
        blocks = [b.to_json() for b in self.blocks]
        if sum(b["kind"] == "table" for b in blocks) == 1:
            blocks = [b | {"alone": True} if b["kind"] == "table" else b for b in blocks]
        return {"key": self.key, "blocks": blocks}


def facts_of(environment: Mapping[str, Any], limit: int = 60) -> Facts:
    """Return a nested environment as names and values."""
    from mansard.report.text import receipt_rows

    return Facts(rows=receipt_rows(environment, limit=limit))


def words(items: Iterable[object], most: int = 8) -> str:
    """Return a list as text, cut with a count.

    >>> words(["a", "b", "c"], most=2)
    'a, b and 1 more'
    """
    every = [str(i) for i in items]
    return ", ".join(every[:most]) + (f" and {len(every) - most} more" if len(every) > most else "")
