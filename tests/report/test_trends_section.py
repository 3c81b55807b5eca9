"""A history with its changes on the page and in figures: levels, intervals, what changed in the environment."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from mansard.report.figures_charts import page_figures
from mansard.report.html import render_page
from mansard.report.material import read
from mansard.report.sections.blocks import Chart, Table
from mansard.report.sections.trends import first, headline, trend


def series(name: str, values: list[float], **told: Any) -> dict[str, Any]:
    far = told.pop("outliers", ())
    return {
        "name": name, "metric": "step_time_s", "unit": "s", "conditions": "abcdef0123", "model": "steady", "noise_ratio": 0.01,
        "smallest_ratio": 0.03, "drift": None, "changes": [],
        "points": [{"when": f"2026-01-{i + 1:02d}T08:00:00+00:00", "source": f"{i}.json", "value": v, "outlier": i in far} for i, v in enumerate(values)],
        **told,
    }  # fmt: skip


def change(index: int, ratio: float, *, first: int | None = None, last: int | None = None, **told: Any) -> dict[str, Any]:  # fmt: skip
    return {"index": index, "first": index if first is None else first, "last": index if last is None else last,
            "when": f"2026-01-{index + 1:02d}T08:00:00+00:00", "ratio": ratio, "ci95": [ratio - 0.02, ratio + 0.02],
            "better": ratio < 1, "environment": [], **told}  # fmt: skip


@pytest.fixture
def document() -> dict[str, Any]:
    driver = {"component": "driver", "key": "name", "baseline": "580", "candidate": "590", "forbids": False}
    return {
        "schema": "trend/1", "tool_version": "0.1.0", "created": "2026-02-01T00:00:00+00:00", "environment": {}, "source": "nightly",
        "series": [
            series("calm/step_time_s", [0.2] * 8),
            series("short/step_time_s", [0.2] * 3, model="too_short", smallest_ratio={"unknown": "3 points", "needs": ["at least 6"]}),
            series("train/step_time_s", [0.1, 0.1, 0.5, 0.1, 0.11, 0.11, 0.11, 0.11], model="steps", outliers=(2,),
                   changes=[change(4, 1.1, first=3, last=5, environment=[driver])]),
            series("slope/step_time_s", [0.1, 0.101, 0.102, 0.103, 0.104, 0.105], model="drift",
                   drift={"ratio": 1.05, "ci95": [1.04, 1.06], "per_point_ratio": 0.0098, "better": False}),
        ],
    }  # fmt: skip


def test_the_headline_says_what_changed_how_sure_and_what_with_it(document) -> None:
    text = headline(document).replace("\u00a0", " ")
    assert text.startswith(
        "train/step_time_s: 100 ms to 110 ms, worse: +10 % (95 % in +8 % to +12 %) since 2026-01-05 08:00; "
        "driver 580 -> 590 at the same result (not proof)."
    )
    assert text.endswith(
        "Also worse: slope/step_time_s drifts +5 %. Steady: calm/step_time_s. Too few results to tell: 1."
    )
    document["series"] = document["series"][:2]
    assert headline(document) == "No level changed: 1 steady, 1 with too few results to tell."
    document["series"] = []
    assert headline(document) == "nightly: no figure has results over time."


def test_a_worse_change_goes_before_a_larger_better_one(document) -> None:
    faster = series("fast/step_time_s", [0.1] * 4 + [0.05] * 4, model="steps", changes=[change(4, 0.5)])
    document["series"].insert(0, faster)
    assert headline(document).startswith("train/step_time_s: 100 ms to 110 ms, worse")
    assert "Better: fast/step_time_s -50" in headline(document)
    document["series"] = [faster]
    text = headline(document).replace("\u00a0", " ")
    assert "fast/step_time_s: 100 ms to 50.0 ms, better: -50 %" in text
    assert "nothing that the documents tell of the environment changed there" in text


def test_levels_intervals_and_outliers_are_drawn(document) -> None:
    found = trend(document, key="f", name="t.json")
    charts = [b for b in found.blocks if isinstance(b, Chart)]
    assert [c.label.partition("/")[0] for c in charts] == ["train", "slope", "calm", "short"]  # changes first
    train = charts[0]
    assert train.uprights[0][0] == 4.5  # between the fourth and the fifth result
    assert train.uprights[0][1].replace("\u00a0", " ") == "+10 %, driver"
    assert train.bands == [(3.5, 5.5, "latency")]
    levels = {s.y[0]: list(s.x) for s in train.series if s.quiet}
    # Geometric means without the outlier of 0.5 s: 0.1 s of results 1 to 4, 0.11 s of 5 to 8.
    assert list(levels) == pytest.approx([0.1, 0.11])
    assert list(levels.values()) == [[0.6, 4.4], [4.6, 8.4]]
    assert {s.name: list(s.x) for s in train.series}["outlier, moves no level"] == [3]
    (line,) = [s for s in charts[1].series if s.quiet]
    assert line.y[1] / line.y[0] == pytest.approx(1.05)
    assert not [s for s in charts[3].series if s.quiet]  # three points show no level


def test_the_table_has_every_figure(document) -> None:
    (table,) = [b for b in trend(document, key="f", name="t.json").blocks if isinstance(b, Table)]
    rows = [[getattr(c, "text", c).replace("\u00a0", " ") for c in r] for r in table.rows]
    assert [r[1] for r in rows] == ["worse", "worse", "steady", "not known"]
    assert rows[0][2:5] == ["100 ms to 110 ms", "+10 %", "+8 % to +12 %"]
    assert rows[0][5:8] == ["2026-01-05 08:00", "result 4 to 6", "driver 580 -> 590"]
    # The drift of 5 % around the geometric mean of 100 to 105 ms, which is 102.5 ms: 102.5 / 1.05^0.5 = 100, times 1.05^0.5 = 105.
    assert rows[1][2] == "100 ms to 105 ms"
    assert rows[2][2] == "200 ms"
    assert rows[2][7] == "3 % half way would show"
    assert rows[3][7] == "3 points (needs at least 6)"


def test_what_to_do_first_names_the_sides_and_the_axis_the_dates(document) -> None:
    text = first(document)
    assert (
        text[0]
        == "Try first: run two sides that differ in driver 580 -> 590 alone in turn on one machine, and let mansard compare judge them."
    )
    charts = [b.to_json() for b in trend(document, key="f", name="t.json").blocks if isinstance(b, Chart)]
    assert charts[0]["x_names"][0] == [1.0, "2026-01-01"]
    assert charts[0]["x_names"][-1] == [8.0, "2026-01-08"]
    document["series"] = document["series"][:2]
    assert first(document) == []


def test_the_page_and_the_figures(document, tmp_path) -> None:
    again = copy.deepcopy(document["series"][2])
    document["series"].append(again | {"conditions": "ffffffff99"})
    path = tmp_path / "trend.json"
    path.write_text(json.dumps(document))
    made = read([path])
    text = render_page(made)
    assert (
        "<h1>train/step_time_s (abcdef01): 100 ms to 110 ms, worse: +10" in text
    )  # another device is another series, and is told apart
    assert "A trend document." not in text
    written = page_figures(made, tmp_path / "figures", ("svg",))
    assert len(written) == 5
    document["series"] = [series(f"s{i}/step_time_s", [0.1] * 6) for i in range(20)]
    path.write_text(json.dumps(document))
    blocks = read([path]).sections[0].blocks
    assert sum(isinstance(b, Chart) for b in blocks) == 12
    assert "Drawn are 12 of 20 figures" in blocks[-1].lines[0]
