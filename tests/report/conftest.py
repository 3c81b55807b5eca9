from __future__ import annotations

import base64
import dataclasses
import hashlib
import importlib.util
import re
import shutil
import subprocess
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


class Browser:
    """A headless browser that opens a page, runs a probe in it and gives the document back."""

    def __init__(self, program: str, folder: Path) -> None:
        self.program, self.folder = program, folder

    def dom(self, page: str, probe: str = "") -> str:
        """Return the document after its scripts and then `probe` have run; the probe may set attributes to report."""
        if probe:
            waiting = f"""(function wait() {{
              if (!document.documentElement.dataset.ready) {{ setTimeout(wait, 20); return; }}
              try {{ {probe} }} catch (e) {{ document.documentElement.dataset.failed = String(e); }}
            }})();"""
            allowed = base64.b64encode(hashlib.sha256(waiting.encode()).digest()).decode()
            page = page.replace("script-src ", f"script-src 'sha256-{allowed}' ", 1)
            page = page.replace("</body>", f"<script>{waiting}</script></body>")
        path = self.folder / "page.html"
        path.write_text(page, encoding="utf-8")
        done = subprocess.run(
            [self.program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
             f"--user-data-dir={self.folder / 'profile'}", "--window-size=1200,900", "--virtual-time-budget=5000",
             "--dump-dom", path.as_uri()],
            capture_output=True, timeout=120, check=True,
        )  # fmt: skip
        return done.stdout.decode("utf-8", "replace")


def attribute(dom: str, name: str) -> str | None:
    """Return a data attribute of the document's root."""
    root = re.search(r"<html[^>]*>", dom)
    assert root is not None
    found = re.search(rf'data-{name}="([^"]*)"', root.group(0))
    return found.group(1) if found else None


@pytest.fixture(scope="session")
def root_attribute():
    return attribute


@pytest.fixture
def browser(tmp_path: Path) -> Browser:
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        pytest.skip("no chromium on this machine: the page cannot be opened")
    return Browser(program, tmp_path)
