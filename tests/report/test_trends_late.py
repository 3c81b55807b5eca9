"""Last results that stand off and are no level yet, on the page of a history."""

from __future__ import annotations

from typing import Any

import pytest

from mansard.report.sections.blocks import Chart, Table
from mansard.report.sections.trends import headline, trend


def document(**told: Any) -> dict[str, Any]:
    points = [
        {"when": f"2026-01-{i + 1:02d}T08:00:00+00:00", "source": f"{i}.json", "value": v, "outlier": False}
        for i, v in enumerate([0.1] * 8 + [0.2])
    ]
    one = {
        "name": "train/step_time_s", "metric": "step_time_s", "unit": "s", "conditions": "abcdef0123", "model": "steady",
        "noise_ratio": 0.01, "smallest_ratio": 0.03, "drift": None, "changes": [], "points": points,
        "late": {"count": 1, "ratio": 2.0, "ci95": [1.9, 2.1], "better": False}, **told,
    }  # fmt: skip
    return {
        "schema": "trend/1",
        "tool_version": "0.1.0",
        "created": "",
        "environment": {},
        "source": "n",
        "series": [one],
    }


def test_a_last_result_that_stands_off_is_said_and_is_in_no_level() -> None:
    assert "the last result stands off, worse: +100 % (+90 to +110)" in headline(document())
    blocks = trend(document(), key="k", name="t.json").blocks
    (chart,) = [b for b in blocks if isinstance(b, Chart)]
    (level,) = [s for s in chart.series if s.name == "level"]
    assert level.y == pytest.approx([0.1, 0.1])  # with the last one it would be 0.1 x 2^(1/9) = 0.108
    assert level.x == pytest.approx([0.6, 8.4])
    (table,) = [b for b in blocks if isinstance(b, Table)]
    assert any("worse, or an outlier" in row and "the last result" in row for row in table.rows)
    assert headline(document(late=None)).startswith("No level changed")
