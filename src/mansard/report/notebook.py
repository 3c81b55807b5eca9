"""Records in notebooks: a short page each, without scripts; names from a profile are text there."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from mansard.core import Ceilings, Implausible, Unknown
from mansard.core.units import format_bytes_per_s, format_flop_per_s, format_ratio, format_s
from mansard.diagnose.measured import MeasuredDiagnosis
from mansard.diagnose.records import Diagnosis
from mansard.report.frames import Table, table_of
from mansard.report.text import clean, distinct_names, figure, shorten

#: Rows of a table in a notebook; what is left out is said below it.
MOST_ROWS = 12
#: Module and name of the records that display themselves.
RECORDS = (
    ("mansard.diagnose.records", "Diagnosis"),
    ("mansard.diagnose.profile", "DeviceDiagnosis"),
    ("mansard.diagnose.answer", "Answer"),
    ("mansard.diagnose.measured", "MeasuredDiagnosis"),
    ("mansard.core.ceilings", "Ceilings"),
    ("mansard.report.frames", "Table"),
)
_WRITE = {"FLOP/s": format_flop_per_s, "B/s": format_bytes_per_s, "s": format_s}


def register(display_formatter: Any) -> None:
    """Teach IPython's display formatter the records; nothing is imported until one is shown.

    Args:
        display_formatter: The `display_formatter` of the running IPython.
    """
    rich = display_formatter.formatters["text/html"]
    for module, name in RECORDS:
        rich.for_type_by_name(module, name, as_html)


class Shown:
    """A record on display: as HTML in a notebook, as text in a terminal."""

    def __init__(self, record: Any) -> None:
        self.record = record

    def _repr_html_(self) -> str:
        return as_html(self.record)

    def __repr__(self) -> str:
        return as_text(self.record)


def show(record: Any) -> Shown:
    """Return a record for display: the last line of a cell, or `print(mansard.show(record))`.

    Args:
        record: A diagnosis (also of one device), ceilings, a table, or the elements of `detailed.json`.

    Raises:
        UsageError: something else.
    """
    if not isinstance(_inner(record), Diagnosis | MeasuredDiagnosis):
        table_of(record)
    return Shown(record)


def _inner(record: Any) -> Any:
    """Return the diagnosis that a record holds, else the record."""
    measured = getattr(record, "measured", None)
    return measured if measured is not None else getattr(record, "diagnosis", record)


def as_text(record: Any) -> str:
    """Return a record as text."""
    diagnosis = _inner(record)
    if isinstance(diagnosis, Diagnosis):
        from mansard.report.terminal import render

        return render(diagnosis, width=100, color=False)
    if isinstance(diagnosis, MeasuredDiagnosis):
        from mansard.report.measured_text import measured_text

        return measured_text(diagnosis, width=100)
    table = table_of(record)
    lines = [" | ".join(table.columns)]
    lines += [" | ".join("" if v is None else str(v) for v in row) for row in list(table.rows())[:MOST_ROWS]]
    more = len(table) - MOST_ROWS
    return "\n".join([*lines, *([f"... and {more} more rows"] if more > 0 else [])]) + "\n"


def as_html(record: Any) -> str:
    """Return a record as a fragment of HTML."""
    diagnosis = _inner(record)
    if isinstance(diagnosis, Diagnosis):
        return _diagnosis(diagnosis)
    if isinstance(diagnosis, MeasuredDiagnosis):
        return f"<pre>{html.escape(as_text(diagnosis))}</pre>"
    if isinstance(record, Ceilings):
        rows = [
            (c.resource.label, c.scope, _WRITE.get(c.unit, lambda v, u=c.unit: f"{v:.4g} {u}")(c.value), c.kind.value)
            for c in record.ceilings
        ]
        return _table(("ceiling", "scope", "value", "kind"), rows, numbers={2})
    table: Table = table_of(record)
    numbers = {i for i, kind in enumerate(table.kinds.values()) if kind in ("number", "whole")}
    cells = [["" if v is None else f"{v:.6g}" if isinstance(v, float) else v for v in row] for row in table.rows()]
    return _table(tuple(table.columns), cells, numbers=numbers)


def _text(value: object, limit: int = 200) -> str:
    return html.escape(shorten(clean(value), limit))


def _diagnosis(d: Diagnosis) -> str:
    names = distinct_names(d.operators)
    rows = [
        (name, o.part, figure(o.time_s, format_s), o.bound.value, figure(o.share_of_ceiling, format_ratio),
         o.limiting_ceiling, figure(o.headroom_s, format_s))
        for o, name in zip(d.operators, names, strict=True)
    ]  # fmt: skip
    facts = {
        "step": format_s(d.step.median_s), "of ceiling": figure(d.verdict.share_of_ceiling, format_ratio),
        "MFU": figure(d.mfu_ratio, format_ratio), "evidence": d.verdict.grade.value,
    }  # fmt: skip
    notes = [_reason("of ceiling", d.verdict.share_of_ceiling), _reason("MFU", d.mfu_ratio)]
    advice = "".join(
        f"<li>{_text(a.text, 400)} <small>(at most {html.escape(format_s(a.gain_s))} per step)</small></li>"
        for a in d.advice[:3]
    )
    return (
        f"<div><p><b>{_text(d.verdict.sentence, 2000)}</b></p><p>{_facts(facts)}</p>"
        + "".join(f"<p><small>{n}</small></p>" for n in notes if n)
        + (f"<ol>{advice}</ol>" if advice else "")
        + _table(("operator", "part", "time", "bound", "of ceiling", "ceiling", "headroom"), rows, numbers={2, 4, 6})
        + "</div>"
    )


def _reason(name: str, value: float | Unknown | Implausible) -> str:
    if isinstance(value, Unknown):
        return f"{name}: not known, {_text(value.reason)}"
    return f"{name}: cannot be true, {_text(', '.join(value.suspects))}" if isinstance(value, Implausible) else ""


def _facts(facts: Mapping[str, str]) -> str:
    return " &middot; ".join(f"{_text(name)} <b>{_text(value)}</b>" for name, value in facts.items())


def _table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, numbers: set[int]) -> str:
    def row(cells: Sequence[object], tag: str) -> str:
        styles = [
            ' style="text-align:right"' if i in numbers else ' style="text-align:left"' for i in range(len(cells))
        ]
        return "<tr>" + "".join(f"<{tag}{s}>{_text(c)}</{tag}>" for c, s in zip(cells, styles, strict=True)) + "</tr>"

    more = len(rows) - MOST_ROWS
    return (
        f"<table><thead>{row(columns, 'th')}</thead><tbody>{''.join(row(r, 'td') for r in rows[:MOST_ROWS])}</tbody></table>"
        + (f"<p><small>and {more} more rows</small></p>" if more > 0 else "")
    )
