"""A small log-log roofline in characters: braille for lines, letters for operators."""

from __future__ import annotations

import math

from mansard.core.units import format_flop_per_s
from mansard.report.chart import Line, Point, Roofline
from mansard.report.text import ceiling_value, clean, distinct_names, intensity, shorten

_BRAILLE = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
_MARKS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_GUTTER = 12
_MOST_ROOFS = 3


class _Canvas:
    """Character cells; with braille each cell holds two by four dots."""

    def __init__(self, columns: int, rows: int, *, ascii_only: bool) -> None:
        self.columns, self.rows, self.ascii_only = columns, rows, ascii_only
        self.fine = (1, 1) if ascii_only else (2, 4)
        self.dots = [[0] * columns for _ in range(rows)]
        self.text: dict[tuple[int, int], str] = {}

    def dot(self, across: float, up: float, *, sparse: bool) -> None:
        """Set the dot at a position given in 0..1 from the lower left corner."""
        wide, high = self.columns * self.fine[0], self.rows * self.fine[1]
        x, y = round(across * (wide - 1)), round((1.0 - up) * (high - 1))
        if not (0 <= x < wide and 0 <= y < high) or (sparse and x % 3):
            return
        column, row = x // self.fine[0], y // self.fine[1]
        self.dots[row][column] |= 1 if self.ascii_only else _BRAILLE[y % 4][x % 2]

    def put(self, column: int, row: int, text: str) -> bool:
        """Write text over the dots if all its cells are free of other text."""
        cells = [(column + i, row) for i in range(len(text))]
        if any(c in self.text or not 0 <= c[0] < self.columns for c in cells) or not 0 <= row < self.rows:
            return False
        self.text.update(zip(cells, text, strict=True))
        return True

    def line(self, row: int) -> str:
        """Return one row of characters."""
        out = []
        for column, dots in enumerate(self.dots[row]):
            plain = " " if not dots else "." if self.ascii_only else chr(0x2800 + dots)
            out.append(self.text.get((column, row), plain))
        return "".join(out).rstrip()


def _across(value: float, low: float, high: float) -> float:
    return (math.log10(value) - math.log10(low)) / (math.log10(high) - math.log10(low))


def draw(chart: Roofline, *, width: int, height: int = 12, ascii_only: bool = False, points: int = 8) -> list[str]:
    """Return the chart as lines of at most `width` characters.

    Args:
        chart: The coordinates.
        width: Columns.
        height: Rows of the plot itself.
        ascii_only: Draw with dots and letters of ASCII alone.
        points: How many operators get a letter; the others are left to the table.
    """
    canvas = _Canvas(max(20, width - _GUTTER - 1), height, ascii_only=ascii_only)
    named = _named(chart, points)
    _roof_labels(canvas, chart)
    for line in chart.lines:
        if line.slanted and line.main:
            _slope_label(canvas, chart, line)
    for point, mark in zip(named, _MARKS, strict=False):
        column = round(_across(point.flop_per_byte, *chart.x_range) * (canvas.columns - 1))
        up = min(1.0, max(0.0, _across(max(point.flop_per_s, 1e-30), *chart.y_range)))
        row = round((1.0 - up) * (height - 1))
        shifts = sorted(range(-canvas.columns, canvas.columns), key=lambda s: (abs(s), -s))
        any(canvas.put(column + shift, row, mark) for shift in shifts)
    for line in _drawn(chart):
        _trace(canvas, chart, line)
    return [*_framed(canvas, chart), *_legend(chart, named, width, ascii_only=ascii_only)]


def _trace(canvas: _Canvas, chart: Roofline, line: Line) -> None:
    """Draw one ceiling; a memory line ends at the highest roof, a roof starts at its leftmost ridge."""
    steps = canvas.columns * canvas.fine[0] * 2
    slopes = [other.ceiling.value for other in _drawn(chart) if other.slanted]
    roof = max((other.ceiling.value for other in _drawn(chart) if not other.slanted), default=0.0)
    for step in range(steps + 1):
        across = step / steps
        x = 10 ** (math.log10(chart.x_range[0]) + across * (math.log10(chart.x_range[1] / chart.x_range[0])))
        y = line.flop_per_s(x)
        hidden = y > roof > 0 if line.slanted else bool(slopes) and y > max(slopes) * x
        if not hidden:
            canvas.dot(across, _across(y, *chart.y_range), sparse=not line.used)


def _drawn(chart: Roofline) -> list[Line]:
    """Return one line of each memory level, and the roofs: all of them where they are few, else those that were used."""
    main = [line for line in chart.lines if line.main]
    roofs = [line for line in main if not line.slanted]
    used = [line for line in roofs if line.used]
    shown = roofs if len(roofs) <= _MOST_ROOFS or not used else used
    return [line for line in main if line.slanted or line in shown]


def _named(chart: Roofline, points: int) -> tuple[Point, ...]:
    """Return the operators that get a letter: the longest, with a third of the letters kept for those without FLOP."""
    lane = [p for p in chart.points if p.in_lane]
    rest = [p for p in chart.points if not p.in_lane]
    kept = min(len(lane), max(points // 3, points - len(rest)))
    return (*rest[: points - kept], *lane[:kept])


def _roof_labels(canvas: _Canvas, chart: Roofline) -> None:
    """Write the names of the roofs at the right end, in the order of their height."""
    roofs = [line for line in reversed(_drawn(chart)) if not line.slanted]
    row = -1
    for line in roofs:
        text = f" {line.ceiling.resource.label} {ceiling_value(line.ceiling.value, line.ceiling.unit)}"
        row = max(row + 1, round((1.0 - _across(line.ceiling.value, *chart.y_range)) * (canvas.rows - 1)))
        canvas.put(canvas.columns - len(text), row, text)


def _slope_label(canvas: _Canvas, chart: Roofline, line: Line) -> None:
    """Write the name of a memory level beside its line, where there is room."""
    name = (line.ceiling.resource.level or "").upper()
    top = chart.roof or chart.y_range[1]
    y = 10 ** (0.45 * math.log10(top) + 0.55 * math.log10(chart.y_range[0]))
    x = y / line.ceiling.value
    if x <= chart.x_range[0]:
        x = chart.x_range[0] * 1.5
        y = x * line.ceiling.value
    column = round(_across(x, *chart.x_range) * (canvas.columns - 1)) + 1
    row = round((1.0 - _across(y, *chart.y_range)) * (canvas.rows - 1))
    any(canvas.put(column, row + shift, name) for shift in (0, 1, -1))


def _framed(canvas: _Canvas, chart: Roofline) -> list[str]:
    """Return the canvas with its axes."""
    bar, corner, dash = ("|", "+", "-") if canvas.ascii_only else ("\u2502", "\u2514", "\u2500")
    low, high = (math.log10(v) for v in chart.y_range)
    ticks: dict[int, str] = {}
    for decade in range(math.ceil(low), math.floor(high) + 1):
        row = round((1.0 - (decade - low) / (high - low)) * (canvas.rows - 1))
        ticks.setdefault(row, format_flop_per_s(10.0**decade).replace(".00", "").replace(".0", ""))
    out = []
    for row in range(canvas.rows):
        out.append(f"{ticks.get(row, ''):>{_GUTTER - 1}} {bar}{canvas.line(row)}".rstrip())
    out.append(" " * _GUTTER + corner + dash * canvas.columns)
    axis = [" "] * canvas.columns
    low, high = (math.log10(v) for v in chart.x_range)
    for decade in range(math.ceil(low), math.floor(high) + 1):
        label = intensity(10.0**decade)
        start = round((decade - low) / (high - low) * (canvas.columns - 1)) - len(label) // 2
        start = min(max(start, 0), canvas.columns - len(label))
        if all(c == " " for c in axis[start : start + len(label)]):
            axis[start : start + len(label)] = label
    return [*out, " " * (_GUTTER + 1) + "".join(axis).rstrip()]


def _legend(chart: Roofline, named: tuple[Point, ...], width: int, *, ascii_only: bool) -> list[str]:
    """Return which letter is which operator, and what the chart does not show."""
    names = distinct_names([p.row for p in named])
    words = [
        f"{mark} {shorten(clean(name, ascii_only=ascii_only), 38, ellipsis='...')}"
        for name, mark in zip(names, _MARKS, strict=False)
    ]
    words += ["across: FLOP/byte"]
    if any(p.in_lane for p in named):
        words += ["left edge: no FLOP, height is bytes/s on the lines"]
    left = len(chart.points) - len(named)
    if left > 0:
        words += [f"{left} more in the table"]
    if chart.unplaced:
        words += [f"{len(chart.unplaced)} without FLOP or bytes"]
    lines, current = [], ""
    for word in words:
        joined = f"{current};  {word}" if current else word
        if len(joined) > width and current:
            lines.append(current)
            joined = word
        current = joined
    return [*lines, current[:width]]
