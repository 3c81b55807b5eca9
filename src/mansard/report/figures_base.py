"""What every figure for a paper shares: its width, its text of 7 points, its colours and hatches, its axes, and how it is written.

One column wide (85 mm), colours of Okabe and Ito that the colour-blind tell apart, each with a mark or hatch of its own so that
they also survive a black and white printer. PDF embeds its fonts (TrueType); SVG has its text as outlines and looks the same
everywhere. Text of a profile is drawn as it is: it is never mathematics.
"""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mansard.core.errors import UsageError
from mansard.core.outputs import write_whole
from mansard.report.frames import needs
from mansard.report.text import clean

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Forms that a figure can have.
FORMATS = ("svg", "png", "pdf")
#: Width of one column [in], dots per inch of PNG, size of every text [pt].
WIDTH_IN, DPI, POINTS = 3.35, 300, 7.0
#: Characters of a line below a figure, and its height [in].
_LINE_LENGTH, LINE_IN = 56, 0.115
# Source of the palette: Okabe and Ito, Color Universal Design, 2008.
COLOURS = {"compute": "#0072b2", "memory": "#e69f00", "network": "#cc79a7", "host": "#009e73", "latency": "#d55e00",
           "undetermined": "#5b616a", "unattributed": "#c3c6cb"}  # fmt: skip
HATCHES = {"compute": "", "memory": "////", "network": "xxxx", "host": "....", "latency": "\\\\\\\\", "undetermined": "+++",
           "unattributed": ""}  # fmt: skip
_STYLE = {
    "font.family": "DejaVu Sans", "font.size": POINTS, "axes.linewidth": 0.6, "axes.labelsize": POINTS, "axes.titlesize": POINTS,
    "xtick.labelsize": POINTS, "ytick.labelsize": POINTS, "legend.fontsize": POINTS, "xtick.major.width": 0.6,
    "ytick.major.width": 0.6, "lines.linewidth": 1.0, "hatch.linewidth": 0.6, "pdf.fonttype": 42, "svg.fonttype": "path",
    "svg.hashsalt": "mansard", "text.parse_math": False, "text.usetex": False, "savefig.dpi": DPI, "axes.spines.top": False,
    "axes.spines.right": False,
}  # fmt: skip


@cache
def _glyphs() -> frozenset[int]:
    """Return the characters that the font of the figures has."""
    from matplotlib.font_manager import findfont
    from matplotlib.ft2font import FT2Font

    return frozenset(FT2Font(findfont("DejaVu Sans")).get_charmap())


def drawable(text: object, *, ascii_only: bool = False) -> str:
    """Return foreign text made safe to read, with an escape for each character that the font does not have.

    Args:
        text: Any text.
        ascii_only: Whether everything beyond ASCII becomes an escape.
    """
    safe = clean(text, ascii_only=ascii_only)
    if safe.isascii():
        return safe
    known = _glyphs()
    return "".join(c if ord(c) in known else ascii(c)[1:-1] for c in safe)


def write_figures(
    drawn: Mapping[str, tuple[str, Callable[[], Figure]]], directory: Path, formats: Sequence[str], *, force: bool
) -> list[Path]:
    """Draw figures and write each in every form; return the files in the order they were written.

    Args:
        drawn: Title and drawing by the name of the file without its ending.
        directory: Where; it is made where it is missing.
        formats: Some of `FORMATS`.
        force: Replace files that exist.

    Raises:
        InputError: matplotlib is not installed.
        UsageError: an unknown format, a file exists, or the directory cannot be made.
        InputError: a file cannot be written.
    """
    targets = targets_of(drawn, directory, formats, force=force)
    try:
        from matplotlib import rc_context
    except ImportError:
        raise needs("matplotlib", "figures") from None
    contents: dict[Path, bytes] = {}
    with rc_context(_STYLE):
        for name, paths in targets.items():
            title, draw = drawn[name]
            figure = draw()
            for path in paths:
                held = io.BytesIO()
                figure.savefig(held, format=path.suffix[1:], metadata=_metadata(path.suffix[1:], title))
                contents[path] = held.getvalue()
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"cannot write {directory}: {error.strerror or error}", hint="choose another directory"
        ) from None
    for path, content in contents.items():
        write_whole(path, content, force=force)
    return list(contents)


def targets_of(names: Iterable[str], directory: Path, formats: Sequence[str], *, force: bool) -> dict[str, list[Path]]:
    """Return the files of each figure.

    Raises:
        UsageError: an unknown format, or a file exists.
    """
    unknown = [f for f in formats if f not in FORMATS]
    if unknown or not formats:
        raise UsageError(
            f"unknown figure format {', '.join(unknown) or '(none)'}", hint=f"expected some of {', '.join(FORMATS)}"
        )
    targets = {name: [directory / f"{name}.{form}" for form in formats] for name in names}
    existing = [p for paths in targets.values() for p in paths if p.exists()]
    if existing and not force:
        raise UsageError(f"{existing[0]} exists", hint="add --force to replace it, or choose another directory")
    return targets


def _metadata(form: str, title: str) -> dict[str, Any]:
    """Return what a file says of itself; no date, so that the same result gives the same file."""
    title = drawable(title, ascii_only=True)
    if form == "pdf":
        return {"Title": title, "Creator": "mansard", "CreationDate": None}
    return {"Title": title, "Date": None} if form == "svg" else {"Title": title, "Software": "mansard"}


def new_figure(height_in: float, below: Sequence[str] = ()) -> tuple[Figure, Axes]:
    """Return a figure of one column and its axes.

    Args:
        height_in: Height without the sentences below [in].
        below: Sentences below the axes, a paragraph each; they are broken into lines.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    lines = [line for text in below for line in textwrap.wrap(text, _LINE_LENGTH, subsequent_indent="  ")]
    figure = Figure(figsize=(WIDTH_IN, height_in + LINE_IN * len(lines)), layout="constrained")
    FigureCanvasAgg(figure)
    if lines:
        figure.supxlabel("\n".join(lines), x=0.01, ha="left", fontsize=POINTS, linespacing=1.1)
    return figure, figure.add_subplot()


def log_axis(axis: Any, write: Callable[[float], str], low: float, high: float) -> None:
    """Label a logarithmic axis in SI prefixes: decades, and 2 and 5 where there are few of them.

    Args:
        axis: The axis; matplotlib's own labels are mathematics.
        write: Text of a value.
        low, high: Its extent; an axis of less than two decades would show one label or none.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    decades = math.log10(high / low) if 0 < low < high else 1.0
    subs = (1.0,) if decades >= 3 else (1.0, 3.0) if decades >= 2 else (1.0, 2.0, 5.0)
    axis.set_major_locator(LogLocator(base=10.0, subs=subs, numticks=max(8, 12 - 2 * len(subs))))
    axis.set_major_formatter(FuncFormatter(lambda value, _: write(float(value))))
    axis.set_minor_formatter(NullFormatter())


def letters_on_lines(
    figure: Figure,
    axes: Axes,
    lines: Sequence[Sequence[tuple[float, float]]],
    marks: Sequence[tuple[float, float]] = (),
) -> None:
    """Write a, b, c on lines, each where no other letter and no mark is near.

    Args:
        figure: The figure.
        axes: Axes with their final limits.
        lines: Places along each line where its letter may stand, the best first, in data coordinates.
        marks: Where marks lie, in data coordinates.
    """
    figure.draw_without_rendering()  # distances on paper are known only once the axes have their place
    scale = figure.dpi / 72.0
    spots = [tuple(axes.transData.transform(m) / scale) for m in marks]
    taken: list[tuple[float, float]] = []
    for letter, places in zip(letters(), lines, strict=False):
        if not places:
            continue
        at = [tuple(axes.transData.transform(p) / scale) for p in places]

        def room(i: int, at: Sequence[tuple[float, ...]] = at) -> float:
            far = [math.dist(at[i], t) / 9.0 for t in taken] + [math.dist(at[i], s) / 7.0 for s in spots]
            return min([1.0, *far])

        best = max(range(len(at)), key=lambda i: (room(i), -i))
        taken.append((at[best][0], at[best][1]))
        note = axes.annotate(
            letter, places[best], ha="center", va="center", fontsize=POINTS, color="#111111", zorder=4,
            bbox={"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none"},
        )  # fmt: skip
        note.set_in_layout(False)


def letters() -> list[str]:
    """Return the letters that name lines."""
    return [chr(c) for c in range(ord("a"), ord("z") + 1)]


def keyed(names: Iterable[str]) -> str:
    """Return the key of lines that letters name; a line is broken between short names, not inside one.

    >>> keyed(["L1", "DRAM"])
    'a\\xa0L1; b\\xa0DRAM'
    """
    pairs = [f"{letter} {drawable(name)}" for letter, name in zip(letters(), names, strict=False)]
    return "; ".join(p.replace(" ", "\u00a0") if len(p) < _LINE_LENGTH else p for p in pairs)
