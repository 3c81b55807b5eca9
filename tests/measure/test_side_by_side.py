"""Implementations beside each other and time against memory, from points as `detailed.json` keeps them, and as text."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from mansard.measure.points.conclusions import conclusions, in_words
from mansard.measure.points.interval import Interval
from mansard.measure.points.output import element_of, result_of_element
from mansard.measure.points.result import Finding, Point, PointVerdict, Result, Samples, State
from mansard.report import points_text

ROOT = Path(__file__).resolve().parents[2]


def element(impl, low_ms, high_ms, *, benchmark="gemm", state=State.DONE, reason="", **more):
    """Return a point whose median lies between the ends of its interval."""
    middle = (low_ms + high_ms) / 2e3
    params = {"m": 512, "impl": impl, "num_runs": 10, **more.pop("params", {})}
    samples = None
    if state is State.DONE:
        samples = Samples(seconds=(middle,) * 3, median_s=middle, low_s=low_ms / 1e3, high_s=high_ms / 1e3)
    verdict = more.pop("verdict", PointVerdict.NORMAL if samples else None)
    metrics = {"median_s": middle, "half_interval_ratio": 0.01, "headline": "time", **more.pop("metrics", {})}
    result = Result(
        point=Point(
            benchmark=benchmark, impl=impl, backend=impl, params=params,
            name=f"{benchmark}[{impl}]" + "".join(f" {k}={v}" for k, v in params.items() if k not in ("impl", "num_runs")),
        ),
        state=state, reason=reason, samples=samples, metrics=metrics if samples else {}, verdict=verdict, **more,
    )  # fmt: skip
    return element_of(result, "plan", {})


def test_a_point_comes_back_from_its_file():
    made = element("jax", 1.0, 3.0, findings=(Finding(code="near_floor", text="short"),), verdict_reason="why")
    back = result_of_element(made)
    assert element_of(back, "plan", {})["metadata"] == {**made["metadata"]}
    assert back.samples.median_s == pytest.approx(2e-3)
    assert (back.samples.low_s, back.samples.high_s) == (1e-3, 3e-3)
    assert back.findings == (Finding(code="near_floor", text="short"),)
    assert back.verdict is PointVerdict.NORMAL


def of_kind(kind, elements):
    return [c for c in conclusions(elements) if c["kind"] == kind]


def test_overlapping_implementations_are_tied_and_a_third_is_twice_as_slow():
    waived = element("splash", 0, 0, state=State.WAIVED, reason="needs a TPU (missing: device)")
    points = [element("xla", 0.9, 1.1), element("torch", 1.0, 1.4), element("naive", 1.9, 2.1), waived]
    (found,) = of_kind("comparison", points)
    assert found["fastest"] is None
    assert found["tied"] == ["xla", "torch"]
    assert found["test_name"] == "gemm m=512"
    # medians 1.0, 1.2 and 2.0 ms over the first
    assert [r["times_fastest"] for r in found["rows"]] == [
        pytest.approx(1.0),
        pytest.approx(1.2),
        pytest.approx(2.0),
        None,
    ]
    assert found["rows"][3]["remark"] == "waived: needs a TPU (missing: device)"
    assert in_words(found) == "gemm m=512: xla, torch are tied: their intervals overlap"


def test_one_implementation_or_nothing_timed_is_no_comparison():
    assert of_kind("comparison", [element("xla", 1.0, 1.1)]) == []
    waived = [element(i, 0, 0, state=State.WAIVED, reason="why") for i in ("splash", "pallas")]
    assert of_kind("comparison", waived) == []
    other = [element("xla", 1.0, 1.1), element("torch", 1.0, 1.1, params={"m": 1024})]
    assert of_kind("comparison", other) == []  # two shapes


def test_a_point_that_is_there_twice_is_compared_once():
    twice = element("xla", 1.0, 1.1)
    twice["metadata"]["test_name"] += " #2"
    (found,) = of_kind("comparison", [element("xla", 1.0, 1.1), twice, element("torch", 2.0, 2.1)])
    assert found["fastest"] == "xla"


def test_hot_and_cold_are_not_compared():
    cold = element("torch", 5.0, 5.1, params={"cache": "cold"})
    assert of_kind("comparison", [element("xla", 1.0, 1.1, params={"cache": "hot"}), cold]) == []


def remat(policy, low_ms, high_ms, memory, executed):
    return element(
        "xla", low_ms, high_ms, benchmark="remat", params={"policy": policy},
        audit={"benchmark": {"peak_memory_bytes": memory}}, metrics={"flop": 100.0, "executed_flop": executed},
    )  # fmt: skip


def test_time_against_memory_names_what_nobody_would_choose():
    points = [remat("none", 9, 11, 4e6, 110.0), remat("dots", 11, 13, 3e6, 110.0), remat("bad", 15, 17, 4e6, 150.0),
              remat("nothing", 18, 20, 1e6, 140.0)]  # fmt: skip
    (found,) = of_kind("pareto", points)
    assert [(r["policy"], r["dominated_by"]) for r in found["rows"]] == [
        ("none", ["dots"]),  # their intervals touch, 11 and 11, so they are as fast, and dots needs less
        ("dots", []), ("bad", ["none", "dots"]), ("nothing", []),
    ]  # fmt: skip
    assert found["rows"][3]["executed_over_model"] == pytest.approx(1.4)
    # of the front, dots is the fastest: 12 ms and 3 MB; nothing needs 1 - 1/3 = 67 % less for 19 / 12 = 1.58 times the time
    assert found["sentence"].startswith("dots takes 12.0 ms")
    assert "nothing needs 67% less memory for 1.58x the time" in found["sentence"]
    assert found["sentence"].endswith("never the better choice: none, bad")


def shown(elements):
    console = Console(width=120, record=True, highlight=False)
    points_text.show(elements, console)
    return console.export_text()


def test_tables_are_shown_below_the_points():
    waived = element("splash", 0, 0, state=State.WAIVED, reason="needs a TPU: checked in interpret mode, not timed")
    text = shown([element("xla", 0.9, 1.1), element("torch", 1.9, 2.1), waived, remat("none", 9, 11, 4e6, 110.0),
                  remat("nothing", 18, 20, 2e6, 140.0)])  # fmt: skip
    assert "Side by side: gemm m=512" in text
    assert "2.00x" in text
    assert "waived, see below" in text
    assert "Time against peak memory: remat[xla]" in text
    assert text.count("on the front") == 2
    assert text.count("checked in interpret mode, not timed") == 1  # the reason stands once


# --- the A/A experiment -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def a_a():
    spec = importlib.util.spec_from_file_location("measure_a_a", ROOT / "benchmarks" / "measure_a_a.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_runs_are_split_by_their_medians_and_each_regime_has_a_truth_of_its_own(a_a):
    rng = np.random.default_rng(1)
    groups = [[centre * (1.0 + 0.005 * rng.standard_normal(5)) for _ in range(3)] for centre in [1.0] * 12 + [1.3] * 8]
    intervals = [Interval(median=c, low=0.98 * c, high=1.02 * c, holds="") for c in [1.0] * 12 + [1.3] * 8]
    fast, slow = a_a.by_regime(groups, intervals)
    assert (fast["runs"], slow["runs"]) == (12, 8)
    assert fast["coverage"] == slow["coverage"] == 1.0
    truth = float(np.median(np.concatenate([g for run in groups for g in run])))
    assert a_a.covered(intervals, truth) == 0.6  # over both: the 12 of the regime that holds the middle


def test_runs_of_one_regime_are_not_split_and_a_change_inside_a_run_is_apart(a_a):
    rng = np.random.default_rng(2)
    one = [[1.0 + 0.005 * rng.standard_normal(5) for _ in range(3)] for _ in range(12)]
    wide = [Interval(median=1.0, low=0.9, high=1.4, holds="")] * 21
    assert [r["runs"] for r in a_a.by_regime(one, wide[:12])] == [12]
    two = [[1.3 + 0.005 * rng.standard_normal(5) for _ in range(3)] for _ in range(8)]
    changed = [[1.0 + 0.005 * rng.standard_normal(5), 1.3 + 0.005 * rng.standard_normal(5), np.full(5, 1.3)]]
    rows = a_a.by_regime([*one, *two, *changed], wide)
    assert [r["runs"] for r in rows] == [12, 8, 1]
    assert rows[2]["regime"] == "changed inside the run"
    assert rows[2]["holds_both_middles"] == 1
