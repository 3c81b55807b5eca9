"""Figures for papers and slides: roofline, where a step's time goes, the longest operators against their ceiling.

One column wide (85 mm), text of 7 points, colours of Okabe and Ito that the colour-blind tell apart, each with a mark or hatch of
its own so that they also survive a black and white printer. PDF embeds its fonts (TrueType); SVG has its text as outlines and
looks the same everywhere. Text of a profile is drawn as it is: it is never mathematics.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mansard.core import is_known
from mansard.core.errors import UsageError
from mansard.core.units import format_bytes_per_s, format_flop_per_s, format_ratio, format_s
from mansard.diagnose.records import SHARE_KINDS, Diagnosis, OperatorRow
from mansard.report.chart import Line, roofline
from mansard.report.frames import needs
from mansard.report.text import clean, distinct_names, intensity, shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Forms that a figure can have.
FORMATS = ("svg", "png", "pdf")
#: Width of one column [in], and dots per inch of PNG.
WIDTH_IN, DPI = 3.35, 300
#: Operators of the bar chart, by time.
MOST_BARS = 12
#: Ceilings nearer than this ratio to each other are named together.
CLOSE = 2.2
# Source of the palette: Okabe and Ito, Color Universal Design, 2008.
_COLOURS = {"compute": "#0072b2", "memory": "#e69f00", "network": "#cc79a7", "host": "#009e73", "latency": "#d55e00",
            "undetermined": "#7b818a", "unattributed": "#b9bdc3"}  # fmt: skip
_MARKS = {"compute": "o", "memory": "s", "network": "D", "host": "^", "latency": "v", "undetermined": "X"}
_HATCHES = {"compute": "", "memory": "////", "network": "xxxx", "host": "....", "latency": "\\\\\\\\", "undetermined": "++",
            "unattributed": ""}  # fmt: skip
_DASHES = {"measured": "solid", "derived": (0, (5, 2)), "declared": (0, (1, 1.5))}
_STYLE = {
    "font.family": "DejaVu Sans", "font.size": 7.0, "axes.linewidth": 0.6, "axes.labelsize": 7.0, "axes.titlesize": 7.0,
    "xtick.labelsize": 6.0, "ytick.labelsize": 6.0, "legend.fontsize": 6.0, "xtick.major.width": 0.6, "ytick.major.width": 0.6,
    "lines.linewidth": 1.0, "hatch.linewidth": 0.4, "pdf.fonttype": 42, "svg.fonttype": "path", "svg.hashsalt": "mansard",
    "text.parse_math": False, "text.usetex": False, "savefig.dpi": DPI, "axes.spines.top": False, "axes.spines.right": False,
}  # fmt: skip


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
        UsageError: matplotlib is not installed, an unknown format, or a file exists or cannot be written.
    """
    unknown = [f for f in formats if f not in FORMATS]
    if unknown or not formats:
        raise UsageError(
            f"unknown figure format {', '.join(unknown) or '(none)'}", hint=f"expected some of {', '.join(FORMATS)}"
        )
    try:
        from matplotlib import rc_context
    except ImportError:
        raise needs("matplotlib", "figures") from None
    drawn: dict[str, Callable[[Diagnosis], Figure]] = {"roofline": _roofline, "time": _time, "operators": _operators}
    targets = {name: [directory / f"{name}.{form}" for form in formats] for name in drawn}
    existing = [p for paths in targets.values() for p in paths if p.exists()]
    if existing and not force:
        raise UsageError(f"{existing[0]} exists", hint="add --force to replace it, or choose another directory")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with rc_context(_STYLE):
            for name, paths in targets.items():
                figure = drawn[name](diagnosis)
                for path in paths:
                    figure.savefig(path, format=path.suffix[1:], metadata=_metadata(path.suffix[1:], name, diagnosis))
    except OSError as error:
        raise UsageError(
            f"cannot write {directory}: {error.strerror or error}", hint="choose another directory"
        ) from None
    return [p for paths in targets.values() for p in paths]


def _metadata(form: str, name: str, diagnosis: Diagnosis) -> dict[str, Any]:
    """Return what a file says of itself; no date, so that the same result gives the same file."""
    title = clean(f"{name} of {diagnosis.program}", ascii_only=True)
    if form == "pdf":
        return {"Title": title, "Creator": "mansard", "CreationDate": None}
    return {"Title": title, "Date": None} if form == "svg" else {"Title": title, "Software": "mansard"}


def _new(height_in: float) -> tuple[Figure, Axes]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH_IN, height_in), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.add_subplot()


def _roofline(diagnosis: Diagnosis) -> Figure:
    chart = roofline(diagnosis)
    figure, axes = _new(2.6)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(*chart.x_range)
    axes.set_ylim(*chart.y_range)
    slopes = [n.ceiling.value for n in chart.lines if n.slanted and n.main]
    drawn = _drawn(chart.lines)
    roofs = [n.ceiling.value for n in drawn if not n.slanted]
    for line in drawn:
        _line(axes, line, chart.x_range, max(roofs, default=math.inf), max(slopes, default=0.0))
    longest = max((p.row.time_s for p in chart.points), default=1.0)
    for bound, mark in _MARKS.items():
        mine = [p for p in chart.points if p.row.bound.value == bound]
        if mine:
            low, high = chart.y_range
            axes.scatter(
                [p.flop_per_byte for p in mine], [min(max(p.flop_per_s, low), high) for p in mine],
                s=[6 + 70 * p.row.time_s / longest for p in mine], marker=mark, c=_COLOURS[bound], edgecolors="white", linewidths=0.4,
                alpha=0.9, label=bound, zorder=3, clip_on=False,
            )  # fmt: skip
    if chart.lane is not None:
        axes.axvspan(
            chart.x_range[0], chart.lane * (chart.lane / chart.x_range[0]), color="#eeeeee", zorder=0, linewidth=0
        )
        axes.annotate(
            "no FLOP",
            (chart.lane, chart.y_range[0]),
            xytext=(0, 2),
            textcoords="offset points",
            ha="center",
            fontsize=5,
        )
    _si_axis(axes.xaxis, intensity)
    _si_axis(axes.yaxis, format_flop_per_s)
    axes.set_xlabel("arithmetic intensity [FLOP/B]")
    axes.set_ylabel("performance")
    if chart.points:
        legend = axes.legend(loc="lower right", frameon=True, framealpha=0.9, handletextpad=0.2, borderpad=0.3)
        for handle in legend.legend_handles:
            if handle is not None and hasattr(handle, "set_sizes"):
                handle.set_sizes([14])
    _line_names(figure, axes, drawn, chart.x_range, chart.y_range)
    left_out = len(chart.unplaced)
    hidden = sum(line.main for line in chart.lines) - sum(line.main for line in drawn)
    notes = (
        [f"{left_out} of {len(diagnosis.operators)} operators have no known work and are not drawn"] if left_out else []
    )
    notes += [f"{hidden} roofs that nothing was judged against are not drawn"] if hidden else []
    axes.set_title("\n".join(notes), loc="left", fontsize=5)
    return figure


def _drawn(lines: Sequence[Line]) -> list[Line]:
    """Return the lines of a figure: every memory level, and the roofs that something was judged against, of every kind."""
    roofs = [n for n in lines if not n.slanted]
    sorts = {(n.ceiling.resource.dtype, n.ceiling.resource.engine) for n in roofs if n.used}
    sorts = sorts or {(n.ceiling.resource.dtype, n.ceiling.resource.engine) for n in roofs}
    return [
        n
        for n in lines
        if (n.main or n.beside) and (n.slanted or (n.ceiling.resource.dtype, n.ceiling.resource.engine) in sorts)
    ]


def _line(axes: Axes, line: Line, x_range: tuple[float, float], top: float, slope: float) -> None:
    """Draw a ceiling: memory lines up to the highest roof, roofs from the steepest memory line on."""
    value = line.ceiling.value
    dashes: Any = _DASHES[line.ceiling.kind.value]
    if line.slanted:
        end = min(x_range[1], top / value)
        axes.plot(
            [x_range[0], end], [value * x_range[0], value * end], color="#555555", linestyle=dashes, linewidth=0.8
        )
    else:
        begin = max(x_range[0], value / slope) if slope > 0 else x_range[0]
        axes.plot([begin, x_range[1]], [value, value], color="#111111", linestyle=dashes, linewidth=0.9)


def _line_names(
    figure: Figure, axes: Axes, lines: Sequence[Line], x_range: tuple[float, float], y_range: tuple[float, float]
) -> None:
    """Write the names of the ceilings along their lines; lines that lie close have theirs stacked on the highest of them."""
    figure.draw_without_rendering()  # the slope of a line on paper is known only once the axes have their place
    for slanted in (True, False):
        groups: list[list[Line]] = []
        for line in sorted((n for n in lines if n.slanted is slanted), key=lambda n: n.ceiling.value):
            if groups and line.ceiling.value < CLOSE * groups[-1][-1].ceiling.value:
                groups[-1].append(line)
            else:
                groups.append([line])
        for group in groups:
            value = group[-1].ceiling.value
            text = "\n".join(_line_name(line) for line in reversed(group))
            if slanted:
                x = max(x_range[0], y_range[0] / value) * 1.3 ** len(group)
                (x0, y0), (x1, y1) = (axes.transData.transform((v, value * v)) for v in (x, x * 10))
                note = axes.annotate(
                    text, (x, value * x), xytext=(-1.5, 2.5), textcoords="offset points", va="bottom", fontsize=4.5, color="#333333",
                    rotation=math.degrees(math.atan2(y1 - y0, x1 - x0)), rotation_mode="anchor", linespacing=0.95,
                )  # fmt: skip
            else:
                note = axes.annotate(
                    text, (x_range[1], value), xytext=(-2, 1.5), textcoords="offset points", ha="right", va="bottom", fontsize=4.5,
                    color="#111111", linespacing=0.95,
                )  # fmt: skip
            note.set_in_layout(False)


def _line_name(line: Line) -> str:
    c = line.ceiling
    kind = "" if c.kind.value == "measured" else f" ({c.kind.value})"
    rate = format_bytes_per_s(c.value) if line.slanted else format_flop_per_s(c.value)
    return f"{shorten(clean(c.resource.label).removesuffix(' bandwidth'), 40)}{kind} {rate}"


def _si_axis(axis: Any, write: Callable[[float], str]) -> None:
    """Label the decades in SI prefixes; matplotlib's own labels are mathematics."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(base=10.0, numticks=12))
    axis.set_major_formatter(FuncFormatter(lambda value, _: write(float(value))))
    axis.set_minor_formatter(NullFormatter())


def _time(diagnosis: Diagnosis) -> Figure:
    """Draw the step and each of its parts as bars of the areas that bound them."""
    step = diagnosis.step.median_s
    rows = [("step", {k: diagnosis.time_shares.get(k, 0.0) * step for k in SHARE_KINDS})]
    for p in diagnosis.parts:
        bound = p.bound.value if p.bound.value in SHARE_KINDS else "unattributed"
        rows.append((p.kind, dict(p.areas) if p.areas else {str(bound): p.time_s}))
    figure, axes = _new(0.75 + 0.24 * len(rows))
    shown: set[str] = set()
    for y, (_, areas) in enumerate(rows):
        left = 0.0
        for kind in SHARE_KINDS:
            width = areas.get(kind, 0.0)
            if width > 0:
                label = kind if kind not in shown else None
                shown.add(kind)
                axes.barh(y, width, left=left, height=0.7, color=_COLOURS[kind], hatch=_HATCHES[kind], edgecolor="white", linewidth=0.4,
                          label=label)  # fmt: skip
                left += width
        axes.annotate(format_s(left), (left, y), xytext=(2, 0), textcoords="offset points", va="center", fontsize=5.5)
    axes.set_yticks(range(len(rows)), [clean(name) for name, _ in rows])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.18 * max(step, *(sum(a.values()) for _, a in rows)) or 1.0)
    _time_axis(axes)
    axes.set_xlabel("time per step")
    figure.legend(
        loc="outside upper left", ncols=min(len(shown), 4) or 1, frameon=False, handlelength=1.4, columnspacing=1.0
    )
    return figure


def _time_axis(axes: Axes, most: int = 5) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(most))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_s(float(value)) if value else "0"))


def _operators(diagnosis: Diagnosis) -> Figure:
    """Draw the longest operators: a bar of their time, of it the least time dark, with the share of the ceiling in figures."""
    order = sorted(
        zip(diagnosis.operators, distinct_names(diagnosis.operators), strict=True), key=lambda pair: -pair[0].time_s
    )
    rows = order[:MOST_BARS]
    figure, axes = _new(0.6 + 0.17 * max(len(rows), 2))
    for y, (o, _) in enumerate(rows):
        colour = _COLOURS[o.bound.value]
        axes.barh(y, o.time_s, height=0.72, color=colour, alpha=0.35, linewidth=0)
        if is_known(o.share_of_ceiling):
            axes.barh(
                y,
                o.time_s * min(1.0, o.share_of_ceiling),
                height=0.72,
                color=colour,
                hatch=_HATCHES[o.bound.value],
                edgecolor="white",
                linewidth=0,
            )
        axes.annotate(_share(o), (o.time_s, y), xytext=(2, 0), textcoords="offset points", va="center", fontsize=5)
    axes.set_yticks(range(len(rows)), [shorten(clean(name), 34) for _, name in rows], fontsize=5)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.35 * max((o.time_s for o, _ in rows), default=1.0))
    _time_axis(axes, 3)
    rest = math.fsum(o.time_s for o, _ in order[MOST_BARS:])
    more = f"\n{len(order) - len(rows)} more take {format_s(rest)}" if rest > 0 else ""
    axes.set_xlabel(f"time per step (dark: at the ceiling){more}", fontsize=6)
    return figure


def _share(o: OperatorRow) -> str:
    """Return the share of the ceiling with the bound: `?` where it is not known, `!` where it cannot be true."""
    share = o.share_of_ceiling
    if is_known(share):
        return f"{format_ratio(share)} {o.bound.value}"
    return "! implausible" if hasattr(share, "value") else "? not known"
