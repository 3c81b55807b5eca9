"""What `mansard diagnose` prints beside the diagnosis: ranks, devices, the kernel table, candidates."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from mansard.core import Unknown, is_known
from mansard.core.units import format_ratio, format_s
from mansard.diagnose.answer import Answer
from mansard.diagnose.candidates import Candidate
from mansard.diagnose.job import JobDiagnosis, arrival_of, rank_name
from mansard.diagnose.kernel_table import SMALL_S, KernelTable, TableRow
from mansard.diagnose.profile import DeviceDiagnosis
from mansard.report.measured_text import measured_text
from mansard.report.metrics_text import number_lines
from mansard.report.terminal import render
from mansard.report.text import clean, shorten
from mansard.report.trace_text import table

_ROWS = 25
_RANKS = 32  # in the text; the document has all
_FAILED = 5


def answer_text(
    answer: Answer, *, width: int = 80, color: bool = False, verbose: bool = False, encoding: str = "utf-8"
) -> str:
    """Return an answer as text: ranks, the diagnosis, other devices, measured implementations, targets.

    Args:
        answer: What `mansard.diagnose(...)` returns.
        width: Columns of the page.
        color: Write ANSI colour.
        verbose: Every device, its kernel table, all its metrics and findings.
        encoding: What the reader's stream writes.
    """
    if answer.measured is not None:
        said = "".join(f"{r.line}\n" for r in answer.targets)
        return measured_text(answer.measured, width=width, verbose=verbose) + said
    out = job_lines(answer.job, width=width) if answer.job is not None else []
    pages: list[DeviceDiagnosis | None] = [*(answer.devices if verbose else answer.devices[:1])] or [None]
    text = "".join(f"{line}\n" for line in out)
    for one in pages:
        shown = answer.diagnosis if one is None else one.diagnosis
        if one is not None and answer.job is None and len(answer.devices) > 1:
            first = f", the busiest of {len(answer.devices)}" if one is answer.devices[0] else ""
            text += f"device {clean(one.label)}{first}:\n"
        text += render(shown, width=width, color=color, verbose=verbose, encoding=encoding)
        if one is not None and verbose:
            more = [*table_lines(one.table, width=width), *number_lines(one.metrics, one.fixed_costs, width=width)]
            text += "".join(f"{line}\n" for line in more)
    rest = [] if verbose else device_lines(answer.devices[1:], width=width, limit=3)
    rest += candidate_lines(answer.candidates, limit=20 if verbose else 3)
    rest += [r.line for r in answer.targets]
    return text + "".join(f"{line}\n" for line in rest)


def job_lines(job: JobDiagnosis, *, width: int) -> list[str]:
    """Return the ranks with their verdicts, and which of them makes the others wait.

    Args:
        job: The ranks.
        width: Columns of the page.
    """
    rows, late = [], []
    for place, (d, seen) in enumerate(zip(job.verdicts, job.compared.ranks, strict=True)):
        waits = "?" if isinstance(seen.waiting_ns, Unknown) else format_s(seen.waiting_ns / 1e9)
        made_wait = "?" if isinstance(seen.late_ns, Unknown) else format_s(seen.late_ns / 1e9)
        top = d.verdict.areas[0] if d is not None and d.verdict.areas else None
        share = f"{format_ratio(top.time_share)}" if top is not None else "?"
        bound, step = ("failed", "?") if d is None else (d.verdict.bound.value, format_s(d.step.median_s))
        rows.append([rank_name(seen, place), bound, share, step, waits, made_wait])
        late.append(0 if isinstance(seen.late_ns, Unknown) else seen.late_ns)
    hidden = len(rows) - _RANKS
    if hidden > 0:  # of thousands, those that make others wait are what is looked for
        first = sorted(range(len(rows)), key=lambda i: -late[i])[:_RANKS]
        rows = [rows[i] for i in sorted({*first, job.shown})]
    lines = ["Ranks", *table(["rank", "bound", "of step", "step", "waits for peers", "makes peers wait"], rows)]
    lines += [f"  {hidden} more ranks, which made others wait less"] if hidden > 0 else []
    arrival = arrival_of(job.compared)
    if arrival is not None:
        lines += [
            f"  {arrival.collectives} collectives, first to last arrival {format_s(arrival.skew_s)} (median), "
            f"{format_s(arrival.longest_skew_s)} (longest)",
            f"  transfer at most {format_s(arrival.transfer_s)} (median): what the last to arrive takes",
        ]
    straggler = job.straggler
    if isinstance(straggler, Unknown):
        lines.append(f"  straggler: none can be named: {straggler.reason}")
    else:
        shown = "it is the one shown" if job.shown == job.compared.straggler else f"shown is rank {job.shown_rank}"
        lines.append(f"  straggler: rank {straggler} makes the others wait most; {shown}")
    for one in job.failed[:_FAILED]:
        lines.append(f"  left out: {clean(one.source)}: {clean(one.error)}")
    if len(job.failed) > _FAILED:
        lines.append(f"  {len(job.failed) - _FAILED} more files left out, named in --json")
    return [*[line[:width] for line in lines], ""]


def device_lines(found: Sequence[DeviceDiagnosis], *, width: int, limit: int) -> list[str]:
    """Return the verdicts of the devices that are not shown whole."""
    lines: list[str] = []
    for d in found[:limit]:
        text = f"device {clean(d.label)}: {clean(d.diagnosis.verdict.sentence)}"
        lines += textwrap.wrap(text, width, subsequent_indent="  ", break_on_hyphens=False)
    if len(found) > limit:
        lines.append(f"{len(found) - limit} more devices with -v")
    return lines


def candidate_lines(groups: Sequence[Sequence[Candidate]], *, limit: int) -> list[str]:
    """Return measured implementations of one operation side by side, the fastest first."""
    if not groups:
        return []
    lines = ["", "Measured side by side"]
    for group in groups[:limit]:
        what = ", ".join(
            f"{k} {v}" for k, v in group[0].params.items() if isinstance(v, int | str) and v not in ("", 0)
        )
        times = ", ".join(f"{c.impl} {format_s(c.time_s)}" for c in group)
        lines.append(f"  {clean(group[0].benchmark)}: {clean(times)}")
        lines.append(f"    {shorten(clean(what), 74, ellipsis='...')}")
    return lines


def table_lines(found: KernelTable, *, width: int, limit: int = _ROWS) -> list[str]:
    """Return the kernel table: measured over theory, by recoverable seconds.

    Args:
        found: The table.
        width: Columns of the page.
        limit: Most rows.
    """
    room = max(16, width - 62)
    lines = ["", "Measured over theory, per step"]
    if found.groups:
        lines += table(_HEAD, [_cells(r, room) for r in found.groups])
        lines.append("")
    known = [r for r in found.rows if r.rank]
    lines += (
        table(_HEAD, [_cells(r, room) for r in known[:limit]]) if known else ["  of no kernel is a least time known"]
    )
    if len(known) > limit:
        lines.append(f"  {len(known) - limit} more in --json")
    if found.in_no_model:
        total = sum(t for _, t in found.in_no_model)
        names = ", ".join(dict.fromkeys(shorten(clean(n), 40, ellipsis="...") for n, _ in found.in_no_model[:4]))
        lines.append(f"  in no model: {format_s(total)} in {len(found.in_no_model)} kinds of kernel, first {names}")
    if found.never_ran:
        lines.append(f"  in the model, but no kernel of their kind ran: {', '.join(found.never_ran[:8])}")
    lines.append(f"  shorter than {format_s(SMALL_S)} each: {found.small_count:.0f} kernels, {format_s(found.small_s)}")
    lines.append(f"  all kernels {format_s(found.kernel_sum_s)}; the rest of the step {format_s(found.gap_s)}")
    return [line if len(line) <= width else shorten(line, width, ellipsis="...") for line in lines]


_HEAD = ["kernel", "rank", "calls", "needs", "took", "took/needs", "recoverable"]


def _cells(row: TableRow, room: int) -> list[str]:
    def text(value: float | Unknown, write: object = format_s) -> str:
        return write(value) if is_known(value) and callable(write) else "?"

    ratio = f"{row.ratio:.2f}" if is_known(row.ratio) else "?"
    name = shorten(clean(row.name), room, ellipsis="...")
    return [name, str(row.rank or ""), f"{row.calls:.4g}", text(row.modelled_s), format_s(row.measured_s), ratio,
            text(row.recoverable_s)]  # fmt: skip
