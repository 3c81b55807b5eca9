"""The diagnosis as text: the story in forty lines, for a terminal, a pipe or a log."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from mansard.core import Bound, Implausible, Unknown, is_known
from mansard.core.units import format_bytes, format_flop, format_ratio, format_s
from mansard.diagnose.records import Diagnosis, OperatorRow
from mansard.report import chart
from mansard.report.text import (
    ceiling_text,
    clean,
    compact,
    count,
    distinct_names,
    figure,
    intensity,
    percent_shares,
    reasons,
    receipt_rows,
    share_kinds,
    shorten,
    total_of,
    work_of_step,
)
from mansard.report.textplot import draw

_STYLES = {
    "compute": "blue", "memory": "yellow", "network": "magenta", "host": "green", "latency": "red",
    "undetermined": "bright_black", "unattributed": "bright_black",
}  # fmt: skip
_FILLS = {"compute": "\u2588", "memory": "\u2593", "network": "\u259a", "host": "\u2592", "latency": "\u2591",
          "unattributed": "\u00b7"}  # fmt: skip
_LETTERS = {"compute": "C", "memory": "M", "network": "N", "host": "H", "latency": "L", "unattributed": "."}
_SHORT_BOUND = {Bound.UNDETERMINED: "undet."}
#: Stands for a space at which a line must not break; no text holds it, since `clean` escapes private characters.
_GLUE = "\ue000"
_VERBOSE_ROWS = 40
_LONGEST_WORD = 32
#: Lines of the brief page, without its roofline.
LINES = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class _Limits:
    """How much of each part a brief page shows; the headings say what is left out.

    Args:
        rows: Operators.
        advice: Pieces of advice.
        findings: Findings.
        ceilings: Ceilings that operators were judged against.
        facts: Facts of the receipt.
        notes: Lines of a reason why a headline figure is not known; 0 for all.
    """

    rows: int
    advice: int
    findings: int
    ceilings: int
    facts: int
    notes: int


#: Tried in this order until a brief page has at most `LINES` lines: no sentence is cut for room while a further item can wait.
_LIMITS = (
    _Limits(rows=7, advice=3, findings=3, ceilings=3, facts=3, notes=3),
    _Limits(rows=7, advice=3, findings=3, ceilings=3, facts=1, notes=3),
    _Limits(rows=6, advice=3, findings=2, ceilings=2, facts=1, notes=3),
    _Limits(rows=5, advice=3, findings=2, ceilings=2, facts=0, notes=2),
    _Limits(rows=5, advice=2, findings=2, ceilings=1, facts=0, notes=2),
    _Limits(rows=4, advice=2, findings=1, ceilings=1, facts=0, notes=2),
    _Limits(rows=3, advice=2, findings=1, ceilings=1, facts=0, notes=2),
    _Limits(rows=2, advice=1, findings=1, ceilings=1, facts=0, notes=1),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Page:
    """Where the text goes, and with what means.

    Args:
        console: Collects the lines.
        ascii_only: Whether the reader's encoding is not UTF-8.
        verbose: Whether to show more rows and the whole receipt.
        brief: Whether to keep to forty lines of 80 columns; what is cut is with -v, in --json and in the report.
        limits: How much of each part a brief page shows.
    """

    console: Console
    ascii_only: bool
    verbose: bool
    brief: bool = False
    limits: _Limits = _LIMITS[0]

    @property
    def width(self) -> int:
        return self.console.width

    def clean(self, text: object) -> str:
        return clean(text, ascii_only=self.ascii_only)

    def tokens(self, text: str) -> str:
        """Return a text on a brief page with its long names cut in the middle."""
        if not self.brief:
            return text
        return " ".join(self.short(word, _LONGEST_WORD) for word in text.split(" "))

    def short(self, text: object, limit: int) -> str:
        """Return foreign text in at most `limit` columns of the terminal."""
        plain = self.clean(text)
        if cell_len(plain) <= limit:
            return plain
        cut = shorten(plain, limit, ellipsis="..." if self.ascii_only else "\u2026")
        return cut if cell_len(cut) <= limit else set_cell_size(plain, limit).rstrip()

    def heading(self, title: str, aside: str = "", *, close: bool = False) -> None:
        if not (close and self.brief):
            self.console.print()
        self.console.print(Text.assemble((title, "bold"), (f"  {aside}" if aside else "", "dim")))

    def wrapped(self, text: str, *, first: str = "  ", rest: str = "", style: str = "", lines: int = 0) -> None:
        """Print a paragraph with a hanging indent; more than `lines` lines are cut with a mark."""
        label = first.lstrip(" ") if rest else ""
        lead = first[: len(first) - len(first.lstrip(" "))] if rest else first
        hang = rest or " " * cell_len(first)
        room = max(10, self.width - max(cell_len(hang), cell_len(lead)))
        body = Text.assemble(label, (text, style)).wrap(self.console, room)
        shown = list(body)[: lines or None]
        if len(shown) < len(body):
            shown[-1] = _cut_at_a_word(shown[-1], max(4, room - 6))
        for index, line in enumerate(shown):
            line.rstrip()
            self.console.print(Text.assemble(lead if index == 0 else hang, line), soft_wrap=True)


def _cut_at_a_word(line: Text, room: int) -> Text:
    """Return a line that ends in a mark for what was left out, behind a whole word where there is one."""
    line.rstrip()
    if cell_len(line.plain) > room:
        kept = set_cell_size(line.plain, room)
        whole = kept if line.plain[len(kept.rstrip()) :].startswith(" ") else kept.rpartition(" ")[0]
        line.truncate(cell_len((whole if whole.strip() else kept).rstrip(" ,;:(")))
    line.append(" [...]")
    return line


def render(
    diagnosis: Diagnosis,
    *,
    width: int = 80,
    color: bool = False,
    verbose: bool = False,
    roofline: bool = True,
    encoding: str = "utf-8",
) -> str:
    """Return the diagnosis as text whose lines have at most `width` columns.

    Args:
        diagnosis: What to show.
        width: Columns, at least 40.
        color: Write ANSI colour; the caller decides (terminal, NO_COLOR, --no-color).
        verbose: More operators, all findings and advice, the whole receipt, the roofline at any width.
        roofline: Draw a roofline in characters where there is room for it.
        encoding: What the reader's stream writes; anything but UTF-8 gets ASCII alone.
    """
    ascii_only = encoding.lower().replace("-", "").replace("_", "") not in ("utf8", "utf8sig")
    wide = max(40, width)
    chart_lines: list[str] = []
    if roofline and diagnosis.ceilings and (verbose or wide >= 100) and wide >= 60:
        chart_lines = list(draw(chart.roofline(diagnosis), width=min(wide, 120), ascii_only=ascii_only))
    text = ""
    for limits in _LIMITS[:1] if verbose else _LIMITS:
        text = _text(diagnosis, wide, color, chart_lines, ascii_only=ascii_only, verbose=verbose, limits=limits)
        spent = len(chart_lines) + 2 if chart_lines else 0
        if len(text.splitlines()) - spent <= LINES:
            break
    text = text.replace(_GLUE, " ")
    return text.translate(_TO_ASCII) if ascii_only else text


_TO_ASCII = {0x2013: "-", 0x2026: ".", 0x2265: ">", 0x00B7: ".", 0x00D7: "x"}


def _text(
    diagnosis: Diagnosis,
    width: int,
    color: bool,
    drawn: Sequence[str],
    *,
    ascii_only: bool,
    verbose: bool,
    limits: _Limits,
) -> str:
    """Return the whole page within the limits."""
    sink = io.StringIO()
    console = Console(
        file=sink, width=width, height=100, force_terminal=color, no_color=not color,
        color_system="standard" if color else None, highlight=False, emoji=False, markup=False, soft_wrap=False,
        legacy_windows=False, _environ={},
    )  # fmt: skip
    page = _Page(console=console, ascii_only=ascii_only, verbose=verbose, brief=not verbose, limits=limits)
    _headline(page, diagnosis)
    _step(page, diagnosis)
    _time(page, diagnosis)
    _operators(page, diagnosis)
    if drawn:
        page.heading("Roofline", "log-log; dense lines: what operators were judged against")
        for line in drawn:
            console.print(Text(line), soft_wrap=True)
    _advice(page, diagnosis)
    _findings(page, diagnosis)
    _receipt(page, diagnosis)
    return "\n".join(line.rstrip() for line in sink.getvalue().splitlines()) + "\n"


def _headline(page: _Page, d: Diagnosis) -> None:
    head = Text.assemble(("Mansard", "bold"), "  ", page.short(d.program, max(12, page.width - 19)))
    head.append(f"  {page.short(d.framework, 8)}", style="dim")
    page.console.print(head, soft_wrap=True)
    page.console.print()
    page.wrapped(page.clean(d.verdict.sentence), first="", style="bold", lines=0 if page.verbose else 7)
    share = figure(d.verdict.share_of_ceiling, format_ratio)
    limit = f", limit {page.short(d.verdict.limiting_ceiling, 30)}" if d.verdict.limiting_ceiling else ""
    facts = f"{limit}, share {share}, headroom {figure(d.verdict.headroom_s, format_s)}{_per_step(d)}"
    style = f"bold {_STYLES[d.verdict.bound.value]}"
    line = Text.assemble((d.verdict.bound.value, style), f"{facts}, {d.verdict.grade.value}")
    for piece in line.wrap(page.console, page.width):
        page.console.print(piece, soft_wrap=True)
    for name, why in reasons(d):
        page.wrapped(page.clean(f"{name}: {why}"), style="dim", lines=0 if page.verbose else page.limits.notes)
    if not page.verbose:
        _areas(page, d)
    if page.verbose:
        for title, sentences in (
            ("because", d.verdict.evidence),
            ("but", d.verdict.counter_evidence),
            ("will not help", d.verdict.will_not_help),
        ):
            for sentence in sentences:
                page.wrapped(page.clean(sentence), first=f"  {title}: ")


def _per_step(d: Diagnosis) -> str:
    """Return what follows a time of a step; a recording without steps has only times of its whole."""
    return "" if d.step.source == "none" else "/step"


def _areas(page: _Page, d: Diagnosis) -> None:
    """Print the other areas that are bounds of the step: one verdict never hides another."""
    others = [a for a in d.verdict.areas if a.is_bound and a.area != d.verdict.bound.value]
    words = [f"{a.area} {format_ratio(a.time_share)} ({format_s(a.time_s)})".replace(" ", _GLUE) for a in others]
    if words:
        page.wrapped(", ".join(words), first="also bound by: ", rest="  ", style="dim")


def _all_areas(page: _Page, d: Diagnosis) -> None:
    """Print every area by itself: time, share of each kind of ceiling, headroom."""
    for a in d.verdict.areas:
        kinds = ", ".join(f"{format_ratio(v)} of {k}" for k, v in a.shares_by_kind.items())
        share = kinds or figure(a.share_of_ceiling, format_ratio)
        link = f", link {page.clean(a.link)}" if a.link else ""
        ceiling = f" ({page.clean(a.limiting_ceiling)})" if a.limiting_ceiling else ""
        mark = "a bound" if a.is_bound else "no bound"
        page.wrapped(
            f"{format_s(a.time_s)}, {format_ratio(a.time_share)} of the step, {mark}; share of ceiling {share}{ceiling}{link}; "
            f"headroom {figure(a.headroom_s, format_s)}",
            first=f"  {a.area}: ",
        )


def _step(page: _Page, d: Diagnosis) -> None:
    s = d.step
    low, high = (format_s(v) for v in s.ci95_s)
    note = page.clean(s.note)
    fits = cell_len(note) <= page.width - 6
    page.heading("Step", note if fits else "")
    if not fits:  # what a step is here decides every figure below: it is never cut
        page.wrapped(note, style="dim")
    if s.source == "none":
        spread = f"{format_s(s.median_s)} in all: set-up, compilation and warm-up are in it"
    elif s.count == 1:  # one step has no spread; so says its interval of no width
        spread = f"{format_s(s.median_s)} median of 1 step, its spread is not known and warm-up may be in it"
    elif s.statistic == "mean":
        spread = f"{format_s(s.median_s)} mean of {s.count} steps that do different work, {low} to {high}"
    else:
        spread = f"{format_s(s.median_s)} median of {s.count} steps, 95 % of the median in {low} to {high}"
    found = "" if s.source == "none" or page.brief else f"; steps found by {page.clean(s.source)}"
    overhead = s.profiler_overhead_ratio
    if d.framework == "profile":
        profiler = ""
    elif overhead is None:
        profiler = f"profiler overhead not measured ({format_s(s.profiled_median_s)} with it on)"
    else:
        with_it = f"({format_s(s.profiled_median_s)} with it on)"
        profiler = (
            f"profiler +{format_ratio(overhead)} {with_it}"
            if overhead >= 0
            else f"profiler cost within noise {with_it}"
        )
    page.wrapped("; ".join(x for x in (f"{spread}{found}", profiler) if x), lines=0 if page.verbose else 4)
    work = work_of_step(d)
    units = ["matrix FLOP" if work[0] == "?" else "of matrix work", "bytes" if work[1] == "?" else "compulsory traffic"]
    mfu = figure(d.mfu_ratio, format_ratio)
    if d.recomputes:
        mfu += (
            f", HFU {figure(d.hfu_ratio, format_ratio)} with {figure(d.hardware_flop_per_step, format_flop)} executed"
        )
    page.wrapped(
        f"{work[0]} {units[0]}, {work[1]} {units[1]}, MFU{_GLUE}{mfu}; cost known for "
        f"{format_ratio(d.attributed_ratio)} of operator time"
    )


def _time(page: _Page, d: Diagnosis) -> None:
    page.heading("Where the time goes")
    kinds, percent = share_kinds(d.time_shares), percent_shares(d.time_shares)
    bar, used = Text("  "), 0
    room = page.width - 4
    shown = math.fsum(percent.values()) or 1.0
    edge = 0.0
    for kind in kinds:
        edge += percent[kind]
        cells = max(0, min(room, round(edge / shown * room)) - used)
        fill = _LETTERS.get(kind, "?") if page.ascii_only else _FILLS.get(kind, "?")
        bar.append(fill * cells, style=_STYLES.get(kind, ""))
        used += cells
    page.console.print(bar, soft_wrap=True)
    legend = Text()
    for kind in kinds:
        if percent[kind] == 0 and d.time_shares[kind] == 0:
            continue
        fill = _LETTERS.get(kind, "?") if page.ascii_only else _FILLS.get(kind, "?")
        legend.append("   " if legend else "")
        legend.append(fill, style=_STYLES.get(kind, ""))
        legend.append(f"{_GLUE}{page.short(kind, 16)}{_GLUE}{percent[kind]:.1f}{_GLUE}%")
    for line in legend.wrap(page.console, page.width - 4):
        line.rstrip()
        page.console.print(Text.assemble("  ", line), soft_wrap=True)
    parts = [
        f"{page.short(p.kind, 16)} {format_s(p.time_s)} ({', '.join(p.bounds[:2]) or p.bound.value})" for p in d.parts if p.time_s > 0
    ]  # fmt: skip
    if parts and (len(parts) > 1 or page.verbose):  # a single part is the step itself
        page.wrapped(", ".join(p.replace(" ", _GLUE) for p in parts), first="  by part: ", rest="    ")
    if page.verbose:
        _all_areas(page, d)


#: Columns after the name, with the width of page from which on each is shown.
_COLUMNS = {
    "calls": 70, "time": 0, "step": 0, "FLOP": 70, "bytes": 70, "FLOP/B": 76, "bound": 0, "share": 0, "headroom": 50,
    "part": 110, "ceiling": 120,
}  # fmt: skip
#: What is left out first where the figures are too wide for the page; the report and --json have everything.
_EXPENDABLE = ("ceiling", "part", "calls", "FLOP/B", "bytes", "FLOP", "bound", "headroom")
_LEFT = ("bound", "part", "ceiling")
_FOR_A_NAME = ("calls", "part", "ceiling")
_LEAST_NAME, _MOST_NAME, _BRIEF_NAME = 13, 60, 24


def _moved(row: OperatorRow) -> float | Unknown:
    """Return the bytes of a row: those of memory, or where they are not counted those that cross its link."""
    return max(row.link_bytes.values()) if row.link_bytes and not is_known(row.bytes) else row.bytes


def _cells(page: _Page, row: OperatorRow, step_s: float) -> dict[str, str]:
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


def _sum_cells(rows: tuple[OperatorRow, ...], step_s: float) -> dict[str, str]:
    """Return the cells of a summary row; a sum over figures of which some are not known is a lower limit."""
    time_s = math.fsum(r.time_s for r in rows)
    sums = [total_of([getattr(r, name) for r in rows]) for name in ("flop", "bytes", "headroom_s")]
    flop, size, headroom = (
        "?" if missing and not value else ("\u2265" if missing else "") + compact(write(value), unit)
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


def _operators(page: _Page, d: Diagnosis) -> None:
    limit = _VERBOSE_ROWS if page.verbose else page.limits.rows
    # One row more than the limit takes no more lines than a row that sums a single operator up.
    shown = d.operators if len(d.operators) <= limit + 1 else d.operators[:limit]
    others = d.operators[len(shown) :]
    cells = [_cells(page, row, d.step.median_s) for row in shown]
    sums = [(f"{len(others)} others", others), ("all operators", d.operators)]
    summed = [(title, _sum_cells(rows, d.step.median_s)) for title, rows in sums if rows]
    gap = 2 if page.width >= 100 else 1
    names = [page.clean(name) for name in distinct_names(shown)]
    longest = max((cell_len(n) for n in names), default=0)
    least = min(longest, _BRIEF_NAME) if page.brief else _LEAST_NAME
    widths = _widths(page.width, gap, [*cells, *(c for _, c in summed)], [cell_len(n) for n in names], least)
    room = page.width - sum(w + gap for w in widths.values())
    width = min(_MOST_NAME, room, max(longest, _LEAST_NAME))
    kernels = d.framework == "profile"
    per = "per step" if d.step.source != "none" else "over the whole recording"
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
        line(name, texts, bound=_STYLES[row.bound.value])
    for title, texts in summed:
        line(title, texts, style="dim")
    if any(isinstance(r.share_of_ceiling, Implausible) for r in d.operators) and page.verbose:
        for row in d.operators:
            if isinstance(row.share_of_ceiling, Implausible):
                suspects = "; ".join(row.share_of_ceiling.suspects)
                page.wrapped(page.clean(f"{page.short(row.name, 40)}: suspects: {suspects}"), first="  ! ")


def _advice(page: _Page, d: Diagnosis) -> None:
    limit = len(d.advice) if page.verbose else page.limits.advice
    more = f"{len(d.advice) - limit} more in --json and the report" if len(d.advice) > limit else ""
    overlap = "gains overlap" if len(d.advice) > 1 else ""
    page.heading("Worth doing first", "; ".join(x for x in (overlap, more) if x))
    if not d.advice:
        page.wrapped("no rule found anything worth doing")
    for index, item in enumerate(d.advice[:limit], 1):
        share = f" ({format_ratio(item.gain_s / d.step.median_s)})" if d.step.median_s > 0 else ""
        gain = f"up to {format_s(item.gain_s)}{_per_step(d)}{share}:".replace(" ", _GLUE)
        most = 0 if page.verbose else 4
        page.wrapped(f"{gain} {page.tokens(page.clean(item.text))}", first=f"  {index}. ", lines=most)
        if page.verbose:
            page.wrapped(f"{page.clean(item.evidence)} [{page.clean(item.rule)}]", first="     ", style="dim")
            same = f"same seconds as {', '.join(item.overlaps)}" if item.overlaps else ""
            left = f"instead of {', '.join(item.instead_of)}" if item.instead_of else ""
            if same or left:
                page.wrapped(page.clean("; ".join(t for t in (same, left) if t)), first="     ", style="dim")


def _findings(page: _Page, d: Diagnosis) -> None:
    if not d.findings:
        return
    limit = len(d.findings) if page.verbose else page.limits.findings
    more = f"{len(d.findings) - limit} more in --json and the report" if len(d.findings) > limit else ""
    page.heading("Findings", more, close=True)
    for note in d.findings[:limit]:
        scope = note.code.startswith("scope")  # what makes a ratio wrong is said in full
        most = 0 if page.verbose else 4 if scope else 2
        page.wrapped(page.tokens(page.clean(note.text)), first="  - ", lines=most)


def _receipt(page: _Page, d: Diagnosis) -> None:
    rows = receipt_rows(d.receipt, limit=200 if page.verbose else 1000)
    page.heading("Receipt", "" if page.verbose or not rows else "machine, versions and settings with -v", close=True)
    unknown = any(n.code == "unknown_hardware" for n in d.findings)  # the finding says what to give
    times = chart.used_ceilings(d)
    used = [d.ceilings[i] for i in sorted(times, key=lambda i: -times[i])]
    limit = len(used) if page.verbose else page.limits.ceilings
    if used:
        more = f"; {len(used) - limit} more in --json and the report" if len(used) > limit else ""
        words = "; ".join(ceiling_text(c) for c in used[:limit])
        page.wrapped(page.clean(words + more), first="  judged against: ", rest="    ", lines=0 if page.verbose else 4)
    if page.verbose:
        for name, value in rows:
            page.wrapped(page.clean(value), first=f"  {page.short(name, 40)}: ", rest="      ", lines=6)
    elif page.brief:
        names = ("mfu_peak.label", "flop_convention") if unknown else ("mfu_peak.label", "hardware", "flop_convention")
        for name in names[: page.limits.facts]:
            text = dict(rows).get(name)
            if text:
                title = name.removesuffix(".label").replace("_", " ")
                told = text.split(";")[0]  # the first clause is the definition, what follows refines it
                page.wrapped(page.clean(told), first=f"  {title}: ", rest="    ", lines=2)
    elif not used:
        page.wrapped("none was kept: no figure here says what it was judged against")
    if not is_known(d.verdict.headroom_s) and not d.ceilings and not unknown:
        of_profile = "no ceilings: name the product with --hardware, or give --ceilings measured on it"
        page.wrapped(of_profile if d.framework == "profile" else "no ceilings: run `mansard measure` first")
