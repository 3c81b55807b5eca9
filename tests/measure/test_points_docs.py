"""The page on measuring names every column, every finding and every effort as they are."""

from __future__ import annotations

import re
from pathlib import Path

from mansard.measure.points import audit, verdict
from mansard.measure.points.effort import EFFORTS
from mansard.measure.points.output import COLUMNS

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "measuring.md").read_text(encoding="utf-8")


def test_every_column_is_on_the_page():
    named = set(re.findall(r"`(\w+)`", PAGE))
    assert [name for name in COLUMNS if name not in named] == []


def test_every_finding_is_on_the_page():
    source = "".join(Path(module.__file__).read_text(encoding="utf-8") for module in (audit, verdict))
    codes = set(re.findall(r'code="(\w+)"', source)) | set(re.findall(r'"(\w+_dtype)" if narrower', source))
    assert len(codes) > 20
    assert {code for code in codes if f"`{code}`" not in PAGE} == set()


def test_the_efforts_are_as_the_page_says():
    rows = {line.split("|")[1].strip(" `").split("`")[0]: line for line in PAGE.splitlines() if line.startswith("| `")}
    for effort in EFFORTS.values():
        cells = [c.strip() for c in rows[effort.name].strip("|").split("|")[1:]]
        assert cells[:2] == [str(effort.processes), str(effort.rounds)]
        assert cells[2] == f"{effort.budget_s:g} s"
        assert cells[3] == f"{effort.target_ratio * 100:g} %"
        assert cells[4] == f"{effort.point_limit_s:g} s"
