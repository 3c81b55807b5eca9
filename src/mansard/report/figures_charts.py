"""Figures of everything that a page charts: measured points over size, fits, scaling, plans, each as a paper shows it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mansard.core.units import format_bytes, format_bytes_per_s, format_flop_per_s, format_ratio, format_s
from mansard.report.figures import figures_of_run
from mansard.report.figures_base import (
    COLOURS,
    FORMATS,
    HATCHES,
    drawable,
    keyed,
    letters_on_lines,
    log_axis,
    new_figure,
    write_figures,
)
from mansard.report.sections.blocks import Chart, Series
from mansard.report.text import intensity, shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from mansard.report.material import Page

#: Series and bars that one column holds.
MOST_SERIES, MOST_ROWS = 8, 24
_PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#5b616a", "#000000")
_SHAPES = "osD^vXP*"
_BAR_HATCHES = ("", "////", "....", "xxxx", "\\\\\\\\", "+++")
_STROKES = {"solid": "solid", "dash": (0, (5, 2)), "dot": (0, (1, 1.5))}
#: Units by what the title of an axis ends in, so that its figures have prefixes.
_WRITERS: tuple[tuple[str, Callable[[float], str]], ...] = (
    ("FLOP/s", format_flop_per_s), ("B/s", format_bytes_per_s), ("bytes", format_bytes), (", s", format_s), ("seconds", format_s),
)  # fmt: skip


def page_figures(page: Page, directory: Path, formats: Sequence[str] = FORMATS, *, force: bool = False) -> list[Path]:
    """Write the figures of a page: three of each run, and every chart of its sections.

    Args:
        page: What `material.read` made of files.
        directory: Where; it is made where it is missing.
        formats: Some of `FORMATS`.
        force: Replace files that exist.

    Raises:
        InputError: matplotlib is not installed.
        UsageError: an unknown format, or a file exists or cannot be written.
    """
    drawn: dict[str, tuple[str, Callable[[], Figure]]] = {}
    several = len(page.diagnoses) > 1
    for name, diagnosis in page.diagnoses:
        prefix = f"{_unique(_slug(name), [k.rpartition('-')[0] for k in drawn])}-" if several else ""
        drawn |= figures_of_run(diagnosis, prefix)
    for section in page.sections:
        for block in section.blocks:
            if isinstance(block, Chart) and any(len(s.y) for s in block.series):
                title = f"{block.label}, {section.small}" if section.small else block.label
                drawn[_unique(_slug(block.label), drawn)] = (title, lambda chart=block: draw_chart(chart))  # type: ignore[misc]
    return write_figures(drawn, directory, formats, force=force)


def _slug(text: str) -> str:
    """Return a text as the name of a file.

    >>> _slug("Achieved FLOP/s against N")
    'achieved-flop-s-against-n'
    """
    return re.sub(r"[^a-z0-9]+", "-", drawable(text, ascii_only=True).lower()).strip("-")[:60] or "figure"


def _unique(name: str, taken: Iterable[str]) -> str:
    """Return a name that is not taken.

    >>> _unique("time", ["time", "time-2"])
    'time-3'
    """
    known, number = set(taken), 1
    while (name if number == 1 else f"{name}-{number}") in known:
        number += 1
    return name if number == 1 else f"{name}-{number}"


def draw_chart(chart: Chart) -> Figure:
    """Return a chart of a page as a figure of one column."""
    return _bars(chart) if any(s.mode == "bars" for s in chart.series) else _curves(chart)


def _bars(chart: Chart) -> Figure:
    """Draw bars to the right, a row for each category; several series of one row follow each other or lie below each other."""
    rows = list(dict.fromkeys(str(x) for s in chart.series for x in s.x))
    shown = rows[:MOST_ROWS]
    below = [f"{len(rows) - len(shown)} more rows are not drawn"] if len(rows) > len(shown) else []
    if chart.uprights:
        below.insert(0, "; ".join(f"upright line: {drawable(name)}" for _, name in chart.uprights))
    figure, axes = new_figure(0.75 + 0.165 * max(2, len(shown)), below)
    left = dict.fromkeys(rows, 0.0)
    series = [s for s in chart.series if s.mode == "bars"]
    height = 0.72 if chart.stacked else 0.72 / max(1, len(series))
    for number, s in enumerate(series):
        colour = COLOURS.get(s.colour, _PALETTE[number % len(_PALETTE)])
        pairs = [(str(x), y) for x, y in zip(s.x, s.y, strict=True) if str(x) in shown]
        if not pairs:
            continue
        shift = 0.0 if chart.stacked else (number - (len(series) - 1) / 2) * height
        axes.barh(
            [shown.index(x) + shift for x, _ in pairs], [y for _, y in pairs],
            left=[left[x] if chart.stacked else 0.0 for x, _ in pairs], height=height, color=colour, edgecolor="white",
            linewidth=0.3, hatch=HATCHES.get(s.colour, _BAR_HATCHES[number % len(_BAR_HATCHES)]), label=shorten(drawable(s.name), 24),
        )  # fmt: skip
        for x, y in pairs:
            left[x] += y
    for value, _ in chart.uprights:
        axes.axvline(value, color="#333333", linewidth=0.8, linestyle="dashed")
    axes.set_yticks(range(len(shown)), [shorten(drawable(x), 30) for x in shown])
    axes.invert_yaxis()
    title = drawable(chart.x_title or chart.y_title)
    axes.set_xlabel(_title(title))
    _linear(axes.xaxis, title, percent=chart.percent)
    if len(series) > 1 or (series and series[0].name):
        figure.legend(loc="outside upper left", ncols=3, frameon=False, handlelength=1.6, columnspacing=1.0)
    return figure


def _curves(chart: Chart) -> Figure:
    named = [s for s in chart.series if not s.quiet]
    kept, quiet = named[:MOST_SERIES], [s for s in chart.series if s.quiet]
    ys = sorted({v for v, _ in chart.levels})
    below = (
        [keyed([*(name for _, name in chart.levels), *(name for _, name in chart.uprights)])]
        if chart.levels or chart.uprights
        else []
    )
    if len(named) > len(kept):
        below.append(f"{len(named) - len(kept)} more series are not drawn")
    figure, axes = new_figure(2.2 + 0.13 * len(kept), below)
    for number, s in enumerate(kept):
        _series(axes, s, number)
    for s in quiet:
        axes.plot(s.x, s.y, color="#777777", linewidth=0.7, linestyle=_STROKES.get(s.dash, "solid"), zorder=1)
    if chart.x_log:
        axes.set_xscale("log")
    if chart.y_log:
        axes.set_yscale("log")
    for start, end, colour in chart.bands:
        axes.axvspan(start, end, color=COLOURS.get(colour, "#999999"), alpha=0.2, linewidth=0, zorder=0)
    for value in ys:
        axes.axhline(value, color="#333333", linewidth=0.7, linestyle="dashed", zorder=1)
    for value, _ in chart.uprights:
        axes.axvline(value, color="#999999", linewidth=0.6, linestyle="dotted", zorder=1)
    _axis(axes.xaxis, chart.x_title, axes.get_xlim(), log=chart.x_log, percent=False)
    _axis(axes.yaxis, chart.y_title, axes.get_ylim(), log=chart.y_log, percent=chart.percent)
    axes.set_xlabel(_title(chart.x_title))
    axes.set_ylabel(_title(chart.y_title))
    if kept:
        figure.legend(loc="outside upper left", ncols=1, frameon=False, handlelength=2.0, labelspacing=0.25)
    marks = [(float(x), y) for s in kept for x, y in zip(s.x, s.y, strict=True) if not isinstance(x, str)]
    letters_on_lines(figure, axes, _along(axes, chart), marks)
    return figure


def _series(axes: Axes, s: Series, number: int) -> None:
    colour = COLOURS.get(s.colour, _PALETTE[number % len(_PALETTE)])
    lines = "none" if s.mode == "markers" else _STROKES.get(s.dash, "solid")
    mark = "" if s.mode == "lines" else _SHAPES[number % len(_SHAPES)]
    style: dict[str, Any] = {
        "color": colour,
        "linestyle": lines,
        "marker": mark,
        "markersize": 3,
        "label": shorten(drawable(s.name), 46),
    }
    if any(v is not None for v in (*s.low, *s.high)):
        minus = [0.0 if v is None else max(0.0, y - v) for y, v in zip(s.y, s.low, strict=True)]
        plus = [0.0 if v is None else max(0.0, v - y) for y, v in zip(s.y, s.high, strict=True)]
        axes.errorbar(s.x, s.y, yerr=[minus, plus], elinewidth=0.6, capsize=1.2, **style)
    else:
        axes.plot(s.x, s.y, **style)


def _along(axes: Axes, chart: Chart) -> list[list[tuple[float, float]]]:
    """Return where the letters of level and upright lines may stand: levels from the right, uprights from the top."""

    def between(ends: tuple[float, float], log: bool) -> list[float]:
        low, high = ends
        steps = [i / 24 for i in range(23, 0, -1)]
        return [low * (high / low) ** t if log and low > 0 else low + (high - low) * t for t in steps]

    across, up = between(axes.get_xlim(), chart.x_log), between(axes.get_ylim(), chart.y_log)
    return [[(x, v) for x in across] for v, _ in chart.levels] + [[(v, y) for y in up] for v, _ in chart.uprights]


def _writer(title: str) -> Callable[[float], str] | None:
    """Return how the figures of an axis are written, None where its title names no unit that has prefixes."""
    return next((write for end, write in _WRITERS if drawable(title).endswith(end)), None)


def _title(title: str) -> str:
    """Return the title of an axis without the unit that its figures have."""
    plain = drawable(title)
    return re.sub(r", (bytes|s|seconds|B/s|FLOP/s)$", "", plain) if _writer(plain) else plain


def _axis(axis: Any, title: str, ends: tuple[float, float], *, log: bool, percent: bool) -> None:
    if log:
        log_axis(axis, format_ratio if percent else _writer(title) or intensity, *ends)
    else:
        _linear(axis, title, percent=percent)


def _linear(axis: Any, title: str, *, percent: bool) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    write = format_ratio if percent else _writer(title)
    axis.set_major_locator(MaxNLocator(4))
    if write is not None:
        axis.set_major_formatter(FuncFormatter(lambda v, _: write(float(v)) if v else "0"))
