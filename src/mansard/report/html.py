"""The diagnosis as one self-contained page: it opens offline and runs nothing that a profile brought."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Sequence
from importlib.resources import files

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape

from mansard.core.document import TOOL_VERSION
from mansard.diagnose.records import Diagnosis
from mansard.report.material import Page, page_of_run
from mansard.report.payload import ROW_BYTES, as_json, payload
from mansard.report.sections.blocks import Section
from mansard.report.sections.timeline import TimelineBlock
from mansard.report.text import clean, shorten
from mansard.report.title import of_headlines
from mansard.report.view import COLOURS, View

#: The most bytes of a page of one run, and of one of several results. What it holds is cut, step by step, until it fits; real
#: runs fit at the first step.
PAGE_BYTES, MIXED_BYTES = 1_990_000, 4_900_000
#: Most characters of one text, most items of one list, most bytes of operators.
_STEPS = ((1200, 100, ROW_BYTES), (400, 100, ROW_BYTES), (120, 40, ROW_BYTES // 2), (120, 15, ROW_BYTES // 4))
#: Room for the links to sections and for naming what was left out.
_SPARE = 20_000
_SCRIPTS = ("theme.js", "plotly-basic.min.js", "chart.js", "report.js", "sections.js", "timeline.js")


def render(diagnosis: Diagnosis, timeline: TimelineBlock | None = None) -> str:
    """Return the page of one run as HTML text, under 2 MB whatever the diagnosis holds.

    Args:
        diagnosis: What to show. Every text in it may be hostile: it is escaped and shortened, and a content security
            policy lets the browser run this module's scripts alone and load nothing.
        timeline: One step of it over time, where that is known.
    """
    return render_page(page_of_run(diagnosis, timeline))


def render_page(page: Page) -> str:
    """Return the page of any mix of results as HTML text: under 2 MB for one run, under 5 MB whatever they hold.

    Args:
        page: What to show; the first run heads it.
    """
    return _fitted(page, MIXED_BYTES if page.mixed else PAGE_BYTES)


def _fitted(page: Page, most: int) -> str:
    text = ""
    sections = [(section, as_json(section.to_json())) for section in page.sections]
    for text_length, items, row_bytes in _STEPS:
        text = _page(page, sections, (text_length, items, row_bytes), most)
        if len(text.encode("utf-8")) <= most:
            break
    return text


def _sections(sections: Iterable[tuple[Section, str]], most: int) -> tuple[list[Section], str, list[str]]:
    """Return the sections that fit into `most` bytes, their data as JSON, and the titles of those left out."""
    kept, texts, left_out, size = [], [], [], 0
    for section, text in sections:
        bytes_ = len(text.encode("utf-8")) + 200 * len(section.blocks) + 1000
        if size + bytes_ > most:
            left_out.append(f"{section.title} ({section.small})" if section.small else section.title)
            continue
        size += bytes_
        kept.append(section)
        texts.append(text)
    return kept, f"[{','.join(texts)}]", left_out


def _page(page: Page, sections: Iterable[tuple[Section, str]], limits: tuple[int, int, int], most: int) -> str:
    """Return the page with as many of its sections as fit into `most` bytes beside the first run."""
    text_length, items, row_bytes = limits
    diagnosis = page.diagnoses[0][1] if page.diagnoses else None
    scripts = {
        name: _asset(name) for name in _SCRIPTS if diagnosis is not None or name not in ("chart.js", "report.js")
    }
    policy = _policy(scripts.values())
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    environment.filters["flags"] = _flags
    template = environment.from_string(_asset("report.html.j2"))
    headline, below = of_headlines(page.headlines)
    fixed = {
        "d": View(diagnosis, text_length, items).values() if diagnosis is not None else None,
        "headline": shorten(clean(headline), text_length),
        "below": [shorten(clean(line), text_length) for line in below[:20]],
        "first": [shorten(clean(line), text_length) for line in page.first[:8]],
        "title": shorten(f"Mansard: {clean(page.title)}", 120),
        "kinds": COLOURS,
        "version": TOOL_VERSION,
        "policy": policy,
        "css": Markup(_asset("report.css")),
        "theme_js": Markup(scripts.pop("theme.js")),
        "scripts": [Markup(s) for s in scripts.values()],
        "payload": Markup(as_json(payload(diagnosis, row_bytes=row_bytes))) if diagnosis is not None else "",
        "licence": _asset("plotly-basic.LICENSE"),
    }
    alone = len(template.render(**fixed, sections=[], left_out=[], data="[]").encode("utf-8"))
    kept, data, left_out = _sections(sections, most - alone - _SPARE)
    shown = [_shown(s, kept) for s in kept]
    return template.render(**fixed, sections=shown, left_out=[_cut(t) for t in left_out[:20]], data=Markup(data))


def _flags(text: str) -> Markup:
    """Return text in which an option such as `--model FILE` is not broken at its hyphens; everything in it is escaped first.

    >>> str(_flags("give --ncu R.csv <b>"))
    'give <span class="flag">--ncu</span> R.csv &lt;b&gt;'
    """
    return Markup(re.sub(r"(?<!\S)(--[a-z][a-z-]*)", r'<span class="flag">\1</span>', str(escape(text))))


def _cut(text: str) -> str:
    return shorten(clean(text), 200)


def _shown(section: Section, every: Sequence[Section]) -> dict[str, object]:
    """Return what the template needs of a section; one of several of the same title is told apart by its file."""
    title, small = shorten(clean(section.title), 160), shorten(clean(section.small), 300)
    several = sum(s.title == section.title for s in every) > 1
    label = f"{title} ({shorten(small.partition(':')[0], 40)})" if several and small else title
    return {
        "label": label,
        "key": section.key,
        "title": title,
        "small": small,
        "count": len(section.blocks),
        "folded": section.folded,
    }


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
