from __future__ import annotations

import dataclasses
import importlib.util
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

from mansard.core import Unknown
from mansard.diagnose.records import Advice, Diagnosis, Note, PartTime

EVIL = (
    "</script><script>document.documentElement.dataset.pwned='a'</script>",
    "<!--<script>document.documentElement.dataset.pwned='b'",
    "<img src=x onerror=\"document.documentElement.dataset.pwned='c'\">",
    "<a href=\"javascript:document.documentElement.dataset.pwned='d'\">click</a>",
    "' onmouseover='document.documentElement.dataset.pwned=1' \" x=\"",
    "\x1b[31mred\x1b]0;title\x07\r\n\x00\x08",
    "{{ 7 * 7 }}{% raw %}%{x}&lt;b&gt;",
    "\u202egnp.exe\u2066\u200b\ud800",
    "K" * 10_000,
    "\u5f20\u91cf" * 60,
)


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("report_sample", Path(__file__).with_name("sample.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def sample() -> Diagnosis:
    return _load().sample()


@pytest.fixture(scope="session")
def hostile(sample: Diagnosis) -> Diagnosis:
    """The sample with hostile text in every text field that a profile or a machine can fill."""
    rows = [
        dataclasses.replace(
            row, name=EVIL[i % len(EVIL)], category=EVIL[(i + 1) % len(EVIL)], part=EVIL[(i + 2) % len(EVIL)],
            shapes=EVIL[(i + 3) % len(EVIL)], source=EVIL[(i + 4) % len(EVIL)], reason=EVIL[(i + 5) % len(EVIL)],
            formula=EVIL[(i + 6) % len(EVIL)], level=EVIL[(i + 7) % len(EVIL)],
        )
        for i, row in enumerate(sample.operators)
    ]  # fmt: skip
    joined = " ".join(e for e in EVIL if len(e) < 1000)
    ceilings = [
        dataclasses.replace(c, source=EVIL[i % len(EVIL)], conditions={EVIL[0]: EVIL[1]})
        for i, c in enumerate(sample.ceilings)
    ]
    return dataclasses.replace(
        sample,
        program=joined,
        framework=EVIL[0],
        verdict=dataclasses.replace(
            sample.verdict, sentence=joined, limiting_ceiling=EVIL[2], evidence=EVIL, counter_evidence=EVIL, will_not_help=EVIL
        ),
        step=dataclasses.replace(sample.step, note=EVIL[0], source=EVIL[2]),
        parts=tuple(PartTime(kind=e, time_s=0.1, bound=sample.verdict.bound) for e in EVIL),
        operators=tuple(rows),
        mfu_ratio=Unknown(EVIL[0], EVIL),
        advice=tuple(Advice(rule=e, gain_s=0.1, text=e, evidence=e) for e in EVIL),
        ceilings=tuple(ceilings),
        receipt={e: {e: [e, {e: e}]} for e in EVIL},
        findings=tuple(Note(code=e, text=e) for e in EVIL),
    )  # fmt: skip


class Opened:
    """A page in a browser with everything that was requested by it and went wrong in it."""

    def __init__(self, browser, path: Path, *, width: int = 1280, height: int = 900, scheme: str = "light") -> None:
        self.requests: list[str] = []
        self.errors: list[str] = []
        self.context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, reduced_motion="reduce"
        )
        self.page = self.context.new_page()
        self.page.on("request", lambda r: self.requests.append(r.url))
        self.page.on("console", lambda m: self.errors.append(m.text) if m.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda e: self.errors.append(str(e)))
        self.page.goto(path.as_uri())
        self.page.wait_for_selector("html[data-ready][data-sections], html[data-sections]:not(:has(#payload))")

    def plot(self, key: str, index: int = 0):
        """Return a plot after it is drawn."""
        host = self.page.locator(f"#s-{key} .plot").nth(index)
        host.scroll_into_view_if_needed()
        host.locator(".main-svg").first.wait_for(state="attached")
        return host

    def hover_mark(self, name: str) -> str:
        """Move the mouse to the first operator of the roofline whose escaped name begins so; return what is said of it."""
        point = self.page.evaluate(
            """(name) => {
              const gd = document.getElementById('roofline'), f = gd._fullLayout;
              gd.scrollIntoView({ block: 'center' });
              const box = gd.getBoundingClientRect();
              for (const t of gd.data.filter(t => t.meta === 'operators')) {
                const i = t.text.findIndex(s => s.startsWith(name));
                if (i >= 0) {
                  return { x: box.left + f.xaxis._offset + f.xaxis.d2p(t.x[i]), y: box.top + f.yaxis._offset + f.yaxis.d2p(t.y[i]) };
                }
              }
            }""",
            name,
        )
        self.page.mouse.move(point["x"], point["y"])
        self.page.wait_for_selector("#roofline .hoverlayer .hovertext")
        return self.page.locator("#roofline .hoverlayer").text_content()


@pytest.fixture(scope="module")
def chromium():
    """One browser for a module: an open driver would leave an event loop running for the tests of other rooms."""
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        pytest.skip("no chromium on this machine: the page cannot be opened")
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: the page cannot be driven"
    )
    with playwright.sync_playwright() as driver:
        try:
            browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        except playwright.Error as error:
            pytest.skip(f"chromium does not start on this machine: {str(error).splitlines()[0]}")
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium):
    """Open a page; it is closed after the test."""
    opened: list[Opened] = []

    def opener(path: Path, **how) -> Opened:
        opened.append(Opened(chromium, path, **how))
        return opened[-1]

    yield opener
    for one in opened:
        one.context.close()


@pytest.fixture(scope="module")
def keep_open(chromium):
    """Open a page that several tests of a module look at."""
    opened: list[Opened] = []

    def opener(path: Path, **how) -> Opened:
        opened.append(Opened(chromium, path, **how))
        return opened[-1]

    yield opener
    for one in opened:
        one.context.close()
