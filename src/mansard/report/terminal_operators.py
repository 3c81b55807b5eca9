"""The operator table of the terminal page: which columns fit, and no figure is ever cut."""

from __future__ import annotations

import math

from rich.cells import cell_len
from rich.text import Text

from mansard.core import Bound, Implausible, Unknown, is_known
from mansard.core.units import format_bytes, format_flop, format_ratio, format_s
from mansard.diagnose.records import Diagnosis, OperatorRow
from mansard.report.terminal_page import STYLES, Page
from mansard.report.text import compact, count, distinct_names, figure, intensity, total_of

_SHORT_BOUND = {Bound.UNDETERMINED: "undet."}
_VERBOSE_ROWS = 40
#: Columns after the name, with the width of page from which on each is shown.
_COLUMNS = {
    "calls": 70, "time": 0, "step": 0, "FLOP": 70, "bytes": 70, "FLOP/B": 76, "bound": 0, "share": 0, "headroom": 50,
    "part": 110, "ceiling": 120,
}  # fmt: skip
#: What is left out first where the figures are too wide for the page; the report and --json have everything.
_EXPENDABLE = ("ceiling", "part", "calls", "FLOP/B", "bytes", "FLOP", "bound", "headroom")
_LEFT = ("bound", "part", "ceiling")
_FOR_A_NAME = ("calls", "part", "ceiling")
#: Time of operators over that of the step from which on it is said why.
_MORE_THAN_A_STEP = 1.02
_LEAST_NAME, _MOST_NAME, _BRIEF_NAME = 13, 60, 24


def _moved(row: OperatorRow) -> float | Unknown:
    """Return the bytes of a row: those of memory, or where they are not counted those that cross its link."""
    return max(row.link_bytes.values()) if row.link_bytes and not is_known(row.bytes) else row.bytes


def _cells(page: Page, row: OperatorRow, step_s: float) -> dict[str, str]:
    return {
        "calls": count(row.calls),
        "time": compact(format_s(row.time_s), ""),
        "step": f"{row.time_s / step_s * 100:.1f}%" if step_s > 0 else "?",
        "FLOP": compact(figure(row.flop, format_flop), "FLOP"),
        "bytes": compact(figure(_moved(row), format_bytes), "B"),
        "FLOP/B": figure(row.flop_per_byte, intensity),
        "bound": _SHORT_BOUND.get(row.bound, row.bound.value),
        "share": figure(row.share_of_ceiling, format_ratio).replace(" ", ""),
        "headroom": compact(figure(row.headroom_s, format_s), ""),
        "part": page.short(row.part, 9),
        "ceiling": page.short(row.limiting_ceiling, 22),
    }


def _sum_cells(page: Page, rows: tuple[OperatorRow, ...], step_s: float) -> dict[str, str]:
    """Return the cells of a summary row; a sum over figures of which some are not known is a lower limit."""
    time_s = math.fsum(r.time_s for r in rows)
    sums = [total_of([getattr(r, name) for r in rows]) for name in ("flop", "bytes", "headroom_s")]
    flop, size, headroom = (
        "?" if missing and not value else (page.at_least if missing else "") + compact(write(value), unit)
        for (value, missing), write, unit in zip(
            sums, (format_flop, format_bytes, format_s), ("FLOP", "B", ""), strict=True
        )
    )
    return {
        "calls": count(math.fsum(r.calls for r in rows)),
        "time": compact(format_s(time_s), ""),
        "step": f"{time_s / step_s * 100:.1f}%" if step_s > 0 else "?",
        "FLOP": flop, "bytes": size, "headroom": headroom,
    }  # fmt: skip


def _widths(page_width: int, gap: int, rows: list[dict[str, str]], names: list[int], least: int = 13) -> dict[str, int]:
    """Return the columns to show and their widths: a figure is never cut, a column that has no room is left out.

    Args:
        page_width: Columns of the page.
        gap: Columns between two columns of the table.
        rows: Texts of the rows by title.
        names: Widths of the names; where many more fit without it, a column is left out for them.
        least: Room that a name must have.
    """
    widths = {
        title: max([len(title), *(cell_len(r.get(title, "")) for r in rows)])
        for title, least_page in _COLUMNS.items()
        if page_width >= least_page
    }

    def room() -> int:
        return page_width - sum(w + gap for w in widths.values())

    for title in _EXPENDABLE:
        if room() >= least:
            break
        widths.pop(title, None)
    for title in _FOR_A_NAME:
        fitting = sum(n <= room() for n in names)
        more = sum(n <= room() + widths.get(title, -gap) + gap for n in names) - fitting
        if more >= max(1, len(names) / 4):
            widths.pop(title, None)
    return widths


def operators(page: Page, d: Diagnosis) -> None:
    """Print the table."""
    limit = _VERBOSE_ROWS if page.verbose else page.limits.rows
    # One row more than the limit takes no more lines than a row that sums a single operator up.
    shown = d.operators if len(d.operators) <= limit + 1 else d.operators[:limit]
    others = d.operators[len(shown) :]
    cells = [_cells(page, row, d.step.median_s) for row in shown]
    sums = [(f"{len(others)} others", others), ("all operators", d.operators)]
    summed = [(title, _sum_cells(page, rows, d.step.median_s)) for title, rows in sums if rows]
    gap = 2 if page.width >= 100 else 1
    names = [page.clean(name) for name in distinct_names(shown)]
    longest = max((cell_len(n) for n in names), default=0)
    least = min(longest, _BRIEF_NAME) if page.brief else _LEAST_NAME
    widths = _widths(page.width, gap, [*cells, *(c for _, c in summed)], [cell_len(n) for n in names], least)
    room = page.width - sum(w + gap for w in widths.values())
    width = min(_MOST_NAME, room, max(longest, _LEAST_NAME))
    kernels = d.framework == "profile"
    per = "per step" if d.step.source != "none" else "over the whole recording"
    if d.step.source != "none" and d.step.statistic == "mean":
        per = "per mean step"
    page.heading("Operators", f"{per}, {len(d.operators)} in all; ? not known, ! cannot be true")
    if not d.operators:
        page.wrapped("none were recorded")
        return

    def line(name: str, texts: dict[str, str], style: str = "", bound: str = "") -> None:
        out = Text(name + " " * (width - cell_len(name)), style=style)
        for title, room in widths.items():
            text = texts.get(title, "")
            space = " " * (room - cell_len(text))
            out.append(" " * gap)
            out.append(text + space if title in _LEFT else space + text, style=bound if title == "bound" else "")
        page.console.print(out, soft_wrap=True)

    line("name", {title: title for title in widths}, style="bold")
    for row, name, texts in zip(shown, names, cells, strict=True):
        if (
            cell_len(name) > width and kernels and not page.verbose
        ):  # a kernel's name is cut in the middle: both ends tell
            name = page.short(name, width)
        elif cell_len(name) > width:  # a line of its own: a name that is cut is of no use
            page.console.print(Text(page.short(name, page.width)), soft_wrap=True)
            name = ""
        line(name, texts, bound=STYLES[row.bound.value])
    for title, texts in summed:
        line(title, texts, style="dim")
    if sum(r.time_s for r in d.operators) > _MORE_THAN_A_STEP * d.step.median_s and d.step.source != "none":
        page.wrapped("operators that ran at the same time each count in full: together more than a step", style="dim")
    if any(isinstance(r.share_of_ceiling, Implausible) for r in d.operators) and page.verbose:
        for row in d.operators:
            if isinstance(row.share_of_ceiling, Implausible):
                suspects = "; ".join(row.share_of_ceiling.suspects)
                page.wrapped(page.clean(f"{page.short(row.name, 40)}: suspects: {suspects}"), first="  ! ")
