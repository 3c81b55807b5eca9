"""The diagnosis as one self-contained page: it opens offline and runs nothing that a profile brought."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from mansard.core import Ceiling, is_known
from mansard.core.document import TOOL_VERSION
from mansard.core.units import format_bytes, format_flop, format_ratio, format_s
from mansard.diagnose.records import SHARE_KINDS, Diagnosis
from mansard.report import chart
from mansard.report.payload import LINE_LENGTH, TEXT_LENGTH, as_json, payload
from mansard.report.text import (
    ceiling_value,
    clean,
    figure,
    percent_shares,
    reasons,
    receipt_rows,
    share_kinds,
    shorten,
)

_ITEM_CAP = 100
_COLOURS = frozenset((*SHARE_KINDS, "undetermined"))


def render(diagnosis: Diagnosis) -> str:
    """Return the page as HTML text, under 2 MB whatever the diagnosis holds.

    Args:
        diagnosis: What to show. Every text in it may be hostile: it is escaped and shortened, and a content security
            policy lets the browser run this module's scripts alone and load nothing.
    """
    scripts = {name: _asset(name) for name in ("theme.js", "plotly-basic.min.js", "chart.js", "report.js")}
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=False)
    template = environment.from_string(_asset("report.html.j2"))
    return template.render(
        d=_view(diagnosis),
        title=shorten(f"Mansard: {clean(diagnosis.program)}", 120),
        kinds=_COLOURS,
        version=TOOL_VERSION,
        policy=_policy(scripts.values()),
        css=Markup(_asset("report.css")),
        theme_js=Markup(scripts["theme.js"]),
        plotly_js=Markup(scripts["plotly-basic.min.js"]),
        chart_js=Markup(scripts["chart.js"]),
        report_js=Markup(scripts["report.js"]),
        payload=Markup(as_json(payload(diagnosis))),
        licence=_asset("plotly-basic.LICENSE"),
    )


def _asset(name: str) -> str:
    return files("mansard.report").joinpath("assets", name).read_text(encoding="utf-8")


def _policy(scripts: Iterable[str]) -> str:
    """Return a policy under which only these scripts run and nothing is loaded."""
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in scripts
    )  # fmt: skip
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _line(text: object) -> str:
    return shorten(clean(text), LINE_LENGTH)


def _prose(text: object) -> str:
    return shorten(clean(text), TEXT_LENGTH)


def _view(d: Diagnosis) -> dict[str, Any]:
    """Return what the template shows, as text."""
    view = {
        "program": _prose(d.program),
        "framework": shorten(clean(d.framework), 20),
        "bound": d.verdict.bound.value,
        "grade": d.verdict.grade.value,
        "sentence": _prose(d.verdict.sentence),
        "figures": _figures(d),
        "step_note": (
            f"A step is {_line(d.step.note)} (found by: {_line(d.step.source)}). The cost of "
            f"{format_ratio(d.attributed_ratio)} of operator time is known."
        ),
        "reasons": [(name, _prose(text)) for name, text in reasons(d)],
        "chart_notes": _chart_notes(d),
        "evidence": _sentences(d.verdict.evidence),
        "counter": _sentences(d.verdict.counter_evidence),
        "useless": _sentences(d.verdict.will_not_help),
        "advice": [
            {
                "gain": format_s(a.gain_s),
                "percent": _of_step(a.gain_s, d),
                "text": _prose(a.text),
                "evidence": _prose(a.evidence),
                "rule": _line(a.rule),
            }
            for a in d.advice[:_ITEM_CAP]
        ],
        "advice_more": _more(len(d.advice)),
        "findings": [{"code": _line(n.code), "text": _prose(n.text)} for n in d.findings[:_ITEM_CAP]],
        "findings_more": _more(len(d.findings)),
        "ceilings": _ceilings(d),
        "ceilings_more": _more(len(d.ceilings), "ceilings.json"),
        "receipt": [(_line(name), _prose(text)) for name, text in receipt_rows(d.receipt)],
    }
    return {**view, **_shares(d), **_parts(d)}


def _more(count: int, where: str = "the JSON document") -> str:
    return f"{count - _ITEM_CAP} more are in {where}; this page shows at most {_ITEM_CAP}." if count > _ITEM_CAP else ""


def _sentences(texts: tuple[str, ...]) -> list[str]:
    shown = [_prose(t) for t in texts[:_ITEM_CAP]]
    return [*shown, *filter(None, [_more(len(texts))])]


def _of_step(seconds: float, d: Diagnosis) -> str:
    return format_ratio(seconds / d.step.median_s) if d.step.median_s > 0 else "?"


def _figures(d: Diagnosis) -> list[tuple[str, str, str]]:
    """Return the headline figures as name, value and what belongs to it."""
    s, v = d.step, d.verdict
    low, high = (format_s(x) for x in s.ci95_s)
    if s.profiler_overhead_ratio is None:
        overhead = f"with the profiler on {format_s(s.profiled_median_s)}, its overhead was not measured"
    else:
        sign = "\u2212" if s.profiler_overhead_ratio < 0 else "+"
        overhead = f"profiler {sign}{format_ratio(abs(s.profiler_overhead_ratio))}"
    plural = "" if s.count == 1 else "s"
    full = d.full_square_flop_per_step
    causal = "matrix work"
    if is_known(full) and is_known(d.flop_per_step) and full > d.flop_per_step * 1.0005:
        causal = f"matrix work, causal attention halved; {format_flop(full)} counted in full"
    share_note = f"of {_line(v.limiting_ceiling or 'no ceiling')}"
    share_note += f", for {format_ratio(v.time_share)} of the step"
    return [
        ("Step", format_s(s.median_s), f"median of {s.count} step{plural}, 95 % in {low} to {high}; {overhead}"),
        ("Share of ceiling", figure(v.share_of_ceiling, format_ratio), share_note),
        ("Headroom", figure(v.headroom_s, format_s), "per step, to that ceiling"),
        ("MFU", figure(d.mfu_ratio, format_ratio), "of the matrix ceiling over the whole step"),
        ("Work", figure(d.flop_per_step, format_flop), causal),
        ("Traffic", figure(d.bytes_per_step, format_bytes), "compulsory bytes per step"),
    ]


def _shares(d: Diagnosis) -> dict[str, Any]:
    percent = percent_shares(d.time_shares)
    rows = [
        {
            "kind": _line(kind),
            "css": kind if kind in _COLOURS else "undetermined",
            "percent": f"{percent[kind]:.1f}\u00a0%",
            "width": round(max(0.0, d.time_shares[kind]) * 1000, 3),
        }
        for kind in share_kinds(d.time_shares)
    ]
    return {"shares": rows, "shares_text": ", ".join(f"{r['kind']} {r['percent']}" for r in rows)}


def _parts(d: Diagnosis) -> dict[str, Any]:
    longest = max((p.time_s for p in d.parts), default=0.0) or 1.0
    rows = [
        {
            "kind": _line(p.kind),
            "css": p.bound.value,
            "width": round(max(0.0, p.time_s) / longest * 100, 2),
            "time": format_s(p.time_s),
            "percent": _of_step(p.time_s, d),
            "bound": p.bound.value,
        }
        for p in d.parts
    ]
    total = sum(p.time_s for p in d.parts)
    gap = d.step.median_s - total
    note = ""
    if d.parts and abs(gap) > 0.005 * d.step.median_s:
        kind = "is in no part" if gap > 0 else "is counted in more than one part"
        note = f"{format_s(abs(gap))} of the step {kind}."
    return {"parts": rows, "parts_note": note}


def _chart_notes(d: Diagnosis) -> list[str]:
    """Return what a reader of the chart must know, and everything that it does not show."""
    roofline = chart.roofline(d)
    notes = []
    if not roofline.lines:
        notes.append("No compute or memory ceiling is known for this machine: run mansard measure first.")
    elif roofline.ridges:
        levels = {line.ceiling.resource.label: (line.ceiling.resource.level or "").upper() for line in roofline.lines}
        ridges = ", ".join(f"{levels[label]} {x:.3g}" for label, x in roofline.ridges.items())
        notes.append(
            f"Ridge points against the highest roof that was used, in FLOP/byte: {ridges}. Left of its ridge an "
            "operator is limited by that memory level, right of it by the roof."
        )
    if roofline.lane is not None:
        notes.append(
            "Operators in the shaded lane do no matrix FLOP, so they have no intensity. Their height is their bytes/s on "
            "the memory lines: read them against those lines only."
        )
    if roofline.unplaced:
        names = ", ".join(_line(d.operators[i].name) for i in roofline.unplaced[:8])
        more = f" and {len(roofline.unplaced) - 8} more" if len(roofline.unplaced) > 8 else ""
        spent = sum(d.operators[i].time_s for i in roofline.unplaced)
        notes.append(
            f"Not on the chart, since FLOP and bytes are not known or both 0: {names}{more} "
            f"({format_s(spent)}, {_of_step(spent, d)} of the step). They are in the table."
        )
    if roofline.other:
        names = "; ".join(
            f"{_line(c.resource.label)} {ceiling_value(c.value, c.unit)}" for c in roofline.other[:_ITEM_CAP]
        )
        notes.append(f"Ceilings that are neither FLOP/s nor B/s have no line: {names}.")
    return notes


def _ceilings(d: Diagnosis) -> list[dict[str, str]]:
    return [_ceiling_row(c, d) for c in d.ceilings[:_ITEM_CAP]]


def _ceiling_row(ceiling: Ceiling, d: Diagnosis) -> dict[str, str]:
    label = ceiling.resource.label
    spent = sum(o.time_s for o in d.operators if chart.judged_against(o, ceiling))
    low_high = ceiling.ci95
    interval = " to ".join(ceiling_value(v, ceiling.unit) for v in low_high) if low_high else "not known"
    words = [f"{_line(k)} {_line(v)}" for k, v in ceiling.conditions.items()]
    extra = (ceiling.resource.page, ceiling.resource.store)
    words += [f"{_line(w)} {kind}" for w, kind in zip(extra, ("pages", "stores"), strict=True) if w]
    return {
        "label": _line(label) + (", dense" if ceiling.resource.engine == "matrix" else ""),
        "value": ceiling_value(ceiling.value, ceiling.unit),
        "interval": interval,
        "kind": ceiling.kind.value,
        "scope": ceiling.scope,
        "used": format_s(spent) if spent > 0 else "\u2013",
        "conditions": shorten(", ".join(words), TEXT_LENGTH) or "\u2013",
        "source": _line(ceiling.source) or "\u2013",
    }
