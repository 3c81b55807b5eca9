from __future__ import annotations

import hashlib
from importlib.resources import files

import pytest

ASSETS = files("mansard.report").joinpath("assets")


def test_the_charting_library_is_the_published_file() -> None:
    data = ASSETS.joinpath("plotly-basic.min.js").read_bytes()
    digest = "99784e3abfb07b142a15e521a439e6d9addceadb3f79553fd24c72774f0649ba"
    assert hashlib.sha256(data).hexdigest() == digest
    assert digest in ASSETS.joinpath("README.md").read_text(encoding="utf-8")
    assert b"plotly.js (basic - minified) v4.1.1" in data[:200]
    assert "MIT License" in ASSETS.joinpath("plotly-basic.LICENSE").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "name", ["plotly-basic.min.js", "theme.js", "chart.js", "report.js", "sections.js", "timeline.js", "report.css"]
)
def test_assets_can_be_inlined(name) -> None:
    text = ASSETS.joinpath(name).read_text(encoding="utf-8")
    lowered = text.lower()
    assert "</script" not in lowered
    assert "</style" not in lowered
    assert "<!--" not in lowered
    assert "\r" not in text  # a browser would change it and the policy's hash would no longer fit


@pytest.mark.parametrize("name", ["chart.js", "report.js", "sections.js", "timeline.js", "theme.js"])
def test_own_scripts_stay_livable(name) -> None:
    text = ASSETS.joinpath(name).read_text(encoding="utf-8")
    assert len(text.splitlines()) < 300
    assert "eval(" not in text
    assert "document.write" not in text
