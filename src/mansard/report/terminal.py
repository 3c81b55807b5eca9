"""The diagnosis as text: the story in forty lines, for a terminal, a pipe or a log."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from mansard.core import is_known
from mansard.core.units import format_flop, format_ratio, format_s
from mansard.diagnose.records import Diagnosis
from mansard.report import chart
from mansard.report.terminal_operators import operators
from mansard.report.terminal_page import GLUE, LIMITS, LINES, STYLES, Limits, Page
from mansard.report.text import (
    ceiling_text,
    figure,
    percent_shares,
    reasons,
    receipt_rows,
    share_kinds,
    work_of_step,
)
from mansard.report.textplot import draw
from mansard.report.title import AGAIN

_FILLS = {"compute": "\u2588", "memory": "\u2593", "network": "\u259a", "host": "\u2592", "latency": "\u2591",
          "unattributed": "\u00b7"}  # fmt: skip
_LETTERS = {"compute": "C", "memory": "M", "network": "N", "host": "H", "latency": "L", "unattributed": "."}


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
    for limits in LIMITS[:1] if verbose else LIMITS:
        text = _text(diagnosis, wide, color, chart_lines, ascii_only=ascii_only, verbose=verbose, limits=limits)
        spent = len(chart_lines) + 2 if chart_lines else 0
        if len(text.splitlines()) - spent <= LINES:
            break
    text = text.replace(GLUE, " ")
    return text.translate(_TO_ASCII) if ascii_only else text


#: Signs of one column; the wider `>=` is written before lines are laid out.
_TO_ASCII = {0x2013: "-", 0x2026: ".", 0x00B7: ".", 0x00D7: "x"}


def _text(
    diagnosis: Diagnosis,
    width: int,
    color: bool,
    drawn: Sequence[str],
    *,
    ascii_only: bool,
    verbose: bool,
    limits: Limits,
) -> str:
    """Return the whole page within the limits."""
    sink = io.StringIO()
    console = Console(
        file=sink, width=width, height=100, force_terminal=color, no_color=not color,
        color_system="standard" if color else None, highlight=False, emoji=False, markup=False, soft_wrap=False,
        legacy_windows=False, _environ={},
    )  # fmt: skip
    page = Page(console=console, ascii_only=ascii_only, verbose=verbose, brief=not verbose, limits=limits)
    _headline(page, diagnosis)
    _step(page, diagnosis)
    _time(page, diagnosis)
    operators(page, diagnosis)
    if drawn:
        page.heading("Roofline", "log-log; dense lines: what operators were judged against")
        for line in drawn:
            console.print(Text(line), soft_wrap=True)
    _advice(page, diagnosis)
    _findings(page, diagnosis)
    _receipt(page, diagnosis)
    return "\n".join(line.rstrip() for line in sink.getvalue().splitlines()) + "\n"


def _headline(page: Page, d: Diagnosis) -> None:
    head = Text.assemble(("Mansard", "bold"), "  ", page.short(d.program, max(12, page.width - 19)))
    head.append(f"  {page.short(d.framework, 8)}", style="dim")
    page.console.print(head, soft_wrap=True)
    page.console.print()
    page.wrapped(page.clean(d.verdict.sentence), first="", style="bold", lines=0 if page.verbose else 7)
    share = figure(d.verdict.share_of_ceiling, format_ratio)
    limit = f", limit {page.short(d.verdict.limiting_ceiling, 30)}" if d.verdict.limiting_ceiling else ""
    facts = f"{limit}, share {share}, headroom {figure(d.verdict.headroom_s, format_s)}{_per_step(d)}"
    style = f"bold {STYLES[d.verdict.bound.value]}"
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


def _areas(page: Page, d: Diagnosis) -> None:
    """Print the other areas that are bounds of the step: one verdict never hides another."""
    others = [a for a in d.verdict.areas if a.is_bound and a.area != d.verdict.bound.value]
    words = [f"{a.area} {format_ratio(a.time_share)} ({format_s(a.time_s)})".replace(" ", GLUE) for a in others]
    if words:
        page.wrapped(", ".join(words), first="also bound by: ", rest="  ", style="dim")


def _all_areas(page: Page, d: Diagnosis) -> None:
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


def _step(page: Page, d: Diagnosis) -> None:
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
        f"{work[0]} {units[0]}, {work[1]} {units[1]}, MFU{GLUE}{mfu}; cost known for "
        f"{format_ratio(d.attributed_ratio)} of operator time"
    )


def _time(page: Page, d: Diagnosis) -> None:
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
        bar.append(fill * cells, style=STYLES.get(kind, ""))
        used += cells
    page.console.print(bar, soft_wrap=True)
    legend = Text()
    for kind in kinds:
        if percent[kind] == 0 and d.time_shares[kind] == 0:
            continue
        fill = _LETTERS.get(kind, "?") if page.ascii_only else _FILLS.get(kind, "?")
        legend.append("   " if legend else "")
        legend.append(fill, style=STYLES.get(kind, ""))
        legend.append(f"{GLUE}{page.short(kind, 16)}{GLUE}{percent[kind]:.1f}{GLUE}%")
    for line in legend.wrap(page.console, page.width - 4):
        line.rstrip()
        page.console.print(Text.assemble("  ", line), soft_wrap=True)
    parts = [
        f"{page.short(p.kind, 16)} {format_s(p.time_s)} ({', '.join(p.bounds[:2]) or p.bound.value})" for p in d.parts if p.time_s > 0
    ]  # fmt: skip
    if parts and (len(parts) > 1 or page.verbose):  # a single part is the step itself
        page.wrapped(", ".join(p.replace(" ", GLUE) for p in parts), first="  by part: ", rest="    ")
    if page.verbose:
        _all_areas(page, d)


def _advice(page: Page, d: Diagnosis) -> None:
    # What others took is no gain of a change: what is worth doing beside it stands there too.
    again = any(a.rule == AGAIN for a in d.advice[:1])
    limit = len(d.advice) if page.verbose else page.limits.advice + again
    more = f"{len(d.advice) - limit} more in --json and the report" if len(d.advice) > limit else ""
    overlap = "gains overlap" if len(d.advice) > 1 else ""
    page.heading("Worth doing first", "; ".join(x for x in (overlap, more) if x))
    if not d.advice:
        page.wrapped("no rule found anything worth doing")
    for index, item in enumerate(d.advice[:limit], 1):
        share = f" ({format_ratio(item.gain_s / d.step.median_s)})" if d.step.median_s > 0 else ""
        gain = f"up to {format_s(item.gain_s)}{_per_step(d)}{share}:".replace(" ", GLUE)
        most = 0 if page.verbose else 4
        page.wrapped(f"{gain} {page.tokens(page.clean(item.text))}", first=f"  {index}. ", lines=most)
        if page.verbose:
            page.wrapped(f"{page.clean(item.evidence)} [{page.clean(item.rule)}]", first="     ", style="dim")
            same = f"same seconds as {', '.join(item.overlaps)}" if item.overlaps else ""
            left = f"instead of {', '.join(item.instead_of)}" if item.instead_of else ""
            if same or left:
                page.wrapped(page.clean("; ".join(t for t in (same, left) if t)), first="     ", style="dim")


def _findings(page: Page, d: Diagnosis) -> None:
    if not d.findings:
        return
    limit = len(d.findings) if page.verbose else page.limits.findings
    more = f"{len(d.findings) - limit} more in --json and the report" if len(d.findings) > limit else ""
    page.heading("Findings", more, close=True)
    for note in d.findings[:limit]:
        scope = note.code.startswith("scope")  # what makes a ratio wrong is said in full
        most = 0 if page.verbose else 4 if scope else 2
        page.wrapped(page.tokens(page.clean(note.text)), first="  - ", lines=most)


def _receipt(page: Page, d: Diagnosis) -> None:
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
