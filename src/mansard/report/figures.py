"""Figures of one run for papers and slides: roofline, where a step's time goes, the longest operators against their ceiling."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mansard.core import is_known
from mansard.core.units import format_bytes_per_s, format_flop_per_s, format_ratio, format_s
from mansard.diagnose.records import SHARE_KINDS, Diagnosis, OperatorRow
from mansard.report.chart import LANE_WIDTH, Line, Roofline, roofline
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
from mansard.report.text import distinct_names, intensity, shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Operators of the bar chart, by time.
MOST_BARS = 12
#: Lines of a roofline that are drawn where nothing says which of them matter.
MOST_ROOFS = 4
#: Ceilings nearer than this ratio to each other are one line.
_SAME = 1.01
_MARKS = {"compute": "o", "memory": "s", "network": "D", "host": "^", "latency": "v", "undetermined": "X"}
_DASHES = {"measured": "solid", "derived": (0, (5, 2)), "declared": (0, (1, 1.5))}
_DASH_NAMES = {"measured": "solid", "derived": "dashed", "declared": "dotted"}


def figures(
    diagnosis: Diagnosis, directory: Path, formats: Sequence[str] = FORMATS, *, force: bool = False
) -> list[Path]:
    """Write the figures of a diagnosis; return the files in the order they were written.

    Args:
        diagnosis: The run.
        directory: Where; it is made where it is missing.
        formats: Some of `FORMATS`.
        force: Replace files that exist.

    Raises:
        InputError: matplotlib is not installed.
        UsageError: an unknown format, or a file exists or cannot be written.
    """
    return write_figures(figures_of_run(diagnosis), directory, formats, force=force)


def figures_of_run(diagnosis: Diagnosis, prefix: str = "") -> dict[str, tuple[str, Callable[[], Figure]]]:
    """Return title and drawing of each figure of a run by the name of its file, which begins with `prefix`."""
    drawn: dict[str, Callable[[Diagnosis], Figure]] = {"roofline": _roofline, "time": _time, "operators": _operators}
    return {
        f"{prefix}{name}": (f"{name} of {diagnosis.program}", lambda draw=draw: draw(diagnosis))  # type: ignore[misc]
        for name, draw in drawn.items()
    }


def _roofline(diagnosis: Diagnosis) -> Figure:
    chart = roofline(diagnosis)
    groups = _grouped(_drawn(chart.lines))
    figure, axes = new_figure(2.5, _below(diagnosis, chart, groups))
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(*chart.x_range)
    axes.set_ylim(*chart.y_range)
    slopes = [n.ceiling.value for n in chart.lines if n.slanted and n.main]
    roofs = [g[0].ceiling.value for g in groups if not g[0].slanted]
    ends = [_line(axes, g[0], chart.x_range, max(roofs, default=math.inf), max(slopes, default=0.0)) for g in groups]
    marks = _marks(figure, axes, chart)
    log_axis(axes.xaxis, intensity, *chart.x_range)
    log_axis(axes.yaxis, format_flop_per_s, *chart.y_range)
    if chart.lane is not None:
        _lane(axes, chart.lane, chart.x_range)
    axes.set_xlabel("arithmetic intensity [FLOP/B]")
    axes.set_ylabel("performance")
    if not groups:
        why = "no ceiling is known:\nname the product (--hardware)\nor give measured --ceilings"
        axes.annotate(why, (0.5, 0.97), xycoords="axes fraction", ha="center", va="top")
    places = [_places(g[0], begin, end, chart.y_range) for g, (begin, end) in zip(groups, ends, strict=True)]
    letters_on_lines(figure, axes, places, marks)
    return figure


def _marks(figure: Figure, axes: Axes, chart: Roofline) -> list[tuple[float, float]]:
    """Draw the operators, a mark for each bound, its area the time; return where they lie."""
    longest = max((p.row.time_s for p in chart.points), default=1.0)
    low, high = chart.y_range
    marks: list[tuple[float, float]] = []
    for bound, mark in _MARKS.items():
        mine = [p for p in chart.points if p.row.bound.value == bound]
        if mine:
            xs, ys = [p.flop_per_byte for p in mine], [min(max(p.flop_per_s, low), high) for p in mine]
            axes.scatter(
                xs, ys, s=[6 + 70 * p.row.time_s / longest for p in mine], marker=mark, c=COLOURS[bound], edgecolors="white",
                linewidths=0.4, alpha=0.9, label=bound, zorder=3, clip_on=False,
            )  # fmt: skip
            marks += zip(xs, ys, strict=True)
    if marks:
        legend = figure.legend(loc="outside upper left", ncols=3, frameon=False, handletextpad=0.2, columnspacing=1.0)
        for handle in legend.legend_handles:
            if handle is not None and hasattr(handle, "set_sizes"):
                handle.set_sizes([16])
    return marks


def _lane(axes: Axes, lane: float, x_range: tuple[float, float]) -> None:
    """Shade the lane of operators without FLOP; its place on the axis is no intensity, so it has no figures."""
    end = x_range[0] * LANE_WIDTH
    axes.axvspan(x_range[0], end, color="#eeeeee", zorder=0, linewidth=0)
    ticks = [t for t in axes.xaxis.get_majorticklocs() if end * 1.15 < t <= x_range[1]]
    axes.set_xticks([lane, *ticks], ["no\nFLOP", *(intensity(t) for t in ticks)])
    axes.xaxis.get_major_ticks()[0].tick1line.set_visible(False)
    axes.set_xticks([t for t in axes.xaxis.get_minorticklocs() if end < t <= x_range[1]], minor=True)


def _below(diagnosis: Diagnosis, chart: Roofline, groups: Sequence[Sequence[Line]]) -> list[str]:
    """Return the key of the lines, and what is not drawn."""
    notes = [keyed(_group_name(g) for g in groups)] if groups else []
    kinds = dict.fromkeys(n.ceiling.kind.value for g in groups for n in g[:1])
    if len(kinds) > 1:
        notes.append(", ".join(f"{_DASH_NAMES[k]}: {k}" for k in kinds))
    left_out = len(chart.unplaced)
    if left_out:
        notes.append(f"{left_out} of {len(diagnosis.operators)} operators have no known work and are not drawn")
    drawn = {id(n) for g in groups for n in g}
    hidden = sum(line.main and id(line) not in drawn for line in chart.lines)
    return notes + ([f"{hidden} roofs that nothing was judged against are not drawn"] if hidden else [])


def _drawn(lines: Sequence[Line]) -> list[Line]:
    """Return the lines of a figure: every memory level, and the roofs that something was judged against, of every kind.

    Where nothing was judged against any roof, the highest few stand for all.
    """
    roofs = [n for n in lines if not n.slanted]
    sorts = {(n.ceiling.resource.dtype, n.ceiling.resource.engine) for n in roofs if n.used}
    shown = [n for n in lines if n.main or n.beside]
    if sorts:
        return [n for n in shown if n.slanted or (n.ceiling.resource.dtype, n.ceiling.resource.engine) in sorts]
    highest = _grouped([n for n in shown if n.main and not n.slanted])[-MOST_ROOFS:]
    return [n for n in shown if n.slanted] + [n for g in highest for n in g]


def _grouped(lines: Sequence[Line]) -> list[list[Line]]:
    """Return lines that lie on each other together, memory first, the lowest first."""
    groups: list[list[Line]] = []
    for line in sorted(lines, key=lambda n: (not n.slanted, n.ceiling.value)):
        last = groups[-1][0] if groups else None
        if (
            last is not None
            and last.slanted is line.slanted
            and last.ceiling.kind is line.ceiling.kind
            and line.ceiling.value <= _SAME * last.ceiling.value
        ):
            groups[-1].append(line)
        else:
            groups.append([line])
    return groups


def _line(axes: Axes, line: Line, x_range: tuple[float, float], top: float, slope: float) -> tuple[float, float]:
    """Draw a ceiling: memory lines up to the highest roof, roofs from the steepest memory line on; return its ends."""
    value = line.ceiling.value
    dashes: Any = _DASHES[line.ceiling.kind.value]
    if line.slanted:
        begin, end = x_range[0], min(x_range[1], top / value)
        axes.plot([begin, end], [value * begin, value * end], color="#555555", linestyle=dashes, linewidth=0.8)
    else:
        begin, end = (max(x_range[0], value / slope) if slope > 0 else x_range[0]), x_range[1]
        axes.plot([begin, end], [value, value], color="#111111", linestyle=dashes, linewidth=0.9)
    return begin, end


def _places(line: Line, begin: float, end: float, y_range: tuple[float, float]) -> list[tuple[float, float]]:
    """Return where the letter of a line may stand: memory lines from their low end on, roofs from their right end on."""
    if line.slanted:
        begin = max(begin, y_range[0] / line.ceiling.value)
    if not 0 < begin < end:
        return []
    xs = [begin * (end / begin) ** (i / 24) for i in range(1, 24)]
    return [(x, line.flop_per_s(x)) for x in (xs if line.slanted else reversed(xs))]


def _group_name(group: Sequence[Line]) -> str:
    """Return the name of a line with its rate; ceilings that share it are named together."""
    first = group[0].ceiling
    kind = "" if first.kind.value == "measured" else f" ({first.kind.value})"
    write = format_bytes_per_s if group[0].slanted else format_flop_per_s
    labels = dict.fromkeys(shorten(drawable(n.ceiling.resource.label).removesuffix(" bandwidth"), 40) for n in group)
    return f"{', '.join(labels)} {write(first.value)}{kind}"


def _time(diagnosis: Diagnosis) -> Figure:
    """Draw the step and each of its parts as bars of the areas that bound them."""
    step = diagnosis.step.median_s
    rows = [("step", {k: diagnosis.time_shares.get(k, 0.0) * step for k in SHARE_KINDS})]
    for p in diagnosis.parts:
        bound = p.bound.value if p.bound.value in SHARE_KINDS else "unattributed"
        rows.append((p.kind, dict(p.areas) if p.areas else {str(bound): p.time_s}))
    figure, axes = new_figure(0.85 + 0.24 * len(rows))
    shown: set[str] = set()
    for y, (_, areas) in enumerate(rows):
        left = 0.0
        for kind in SHARE_KINDS:
            width = areas.get(kind, 0.0)
            if width > 0:
                label = kind if kind not in shown else None
                shown.add(kind)
                axes.barh(y, width, left=left, height=0.7, color=COLOURS[kind], hatch=HATCHES[kind], edgecolor="white", linewidth=0.4,
                          label=label)  # fmt: skip
                left += width
        axes.annotate(format_s(left), (left, y), xytext=(2, 0), textcoords="offset points", va="center")
    axes.set_yticks(range(len(rows)), [shorten(drawable(name), 30) for name, _ in rows])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.18 * max(step, *(sum(a.values()) for _, a in rows)) or 1.0)
    _time_axis(axes)
    axes.set_xlabel("time per step")
    figure.legend(loc="outside upper left", ncols=3, frameon=False, handlelength=1.6, columnspacing=1.0)
    return figure


def _time_axis(axes: Axes, most: int = 4) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(most))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_s(float(value)) if value else "0"))


def _operators(diagnosis: Diagnosis) -> Figure:
    """Draw the longest operators: a bar of their time, of it the least time dark, with the share of the ceiling in figures."""
    order = sorted(
        zip(diagnosis.operators, distinct_names(diagnosis.operators), strict=True), key=lambda pair: -pair[0].time_s
    )
    rows = order[:MOST_BARS]
    rest = math.fsum(o.time_s for o, _ in order[MOST_BARS:])
    below = ["figures: share of the ceiling, the dark part of a bar; ? not known, ! cannot be true"]
    below += [f"{len(order) - len(rows)} more operators take {format_s(rest)}"] if rest > 0 else []
    figure, axes = new_figure(0.75 + 0.165 * max(len(rows), 2), below)
    shown: set[str] = set()
    for y, (o, _) in enumerate(rows):
        bound = o.bound.value
        colour, label = COLOURS[bound], bound if bound not in shown else None
        shown.add(bound)
        axes.barh(y, o.time_s, height=0.72, color=[(colour, 0.25)], edgecolor=colour, linewidth=0.5)
        if is_known(o.share_of_ceiling):
            width = o.time_s * min(1.0, o.share_of_ceiling)
            axes.barh(
                y, width, height=0.72, color=colour, hatch=HATCHES[bound], edgecolor="white", linewidth=0, label=label
            )
        else:
            axes.barh(y, 0.0, color=colour, hatch=HATCHES[bound], edgecolor="white", linewidth=0, label=label)
        axes.annotate(_share(o), (o.time_s, y), xytext=(2, 0), textcoords="offset points", va="center")
    axes.set_yticks(range(len(rows)), [shorten(drawable(name), 30) for _, name in rows])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.3 * max((o.time_s for o, _ in rows), default=1.0))
    _time_axis(axes, 3)
    axes.set_xlabel("time per step")
    if rows:
        figure.legend(loc="outside upper left", ncols=3, frameon=False, handlelength=1.6, columnspacing=1.0)
    else:
        axes.annotate("no operators were recorded", (0.5, 0.5), xycoords="axes fraction", ha="center", va="center")
    return figure


def _share(o: OperatorRow) -> str:
    """Return the share of the ceiling: `?` where it is not known, `!` where it cannot be true."""
    share = o.share_of_ceiling
    if is_known(share):
        return format_ratio(share)
    return "!" if hasattr(share, "value") else "?"
