"""The diagnosis as one self-contained page: it opens offline and runs nothing that a profile brought."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from importlib.resources import files

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from mansard.core.document import TOOL_VERSION
from mansard.diagnose.records import Diagnosis
from mansard.report.payload import ROW_BYTES, as_json, payload
from mansard.report.text import clean, shorten
from mansard.report.view import COLOURS, View

#: The most bytes of a page. What it holds is cut, step by step, until it fits; real runs fit at the first step.
PAGE_BYTES = 1_990_000
#: Most characters of one text, most items of one list, most bytes of operators.
_STEPS = ((1200, 100, ROW_BYTES), (400, 100, ROW_BYTES), (120, 40, ROW_BYTES // 2), (120, 15, ROW_BYTES // 4))


def render(diagnosis: Diagnosis) -> str:
    """Return the page as HTML text, under 2 MB whatever the diagnosis holds.

    Args:
        diagnosis: What to show. Every text in it may be hostile: it is escaped and shortened, and a content security
            policy lets the browser run this module's scripts alone and load nothing.
    """
    page = ""
    for text_length, items, row_bytes in _STEPS:
        page = _page(diagnosis, text_length, items, row_bytes)
        if len(page.encode("utf-8")) <= PAGE_BYTES:
            break
    return page


def _page(diagnosis: Diagnosis, text_length: int, items: int, row_bytes: int) -> str:
    scripts = {name: _asset(name) for name in ("theme.js", "plotly-basic.min.js", "chart.js", "report.js")}
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    template = environment.from_string(_asset("report.html.j2"))
    return template.render(
        d=View(diagnosis, text_length, items).values(),
        title=shorten(f"Mansard: {clean(diagnosis.program)}", 120),
        kinds=COLOURS,
        version=TOOL_VERSION,
        policy=_policy(scripts.values()),
        css=Markup(_asset("report.css")),
        theme_js=Markup(scripts["theme.js"]),
        plotly_js=Markup(scripts["plotly-basic.min.js"]),
        chart_js=Markup(scripts["chart.js"]),
        report_js=Markup(scripts["report.js"]),
        payload=Markup(as_json(payload(diagnosis, row_bytes=row_bytes))),
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
