"""Implementations beside each other and time against memory, from points as `detailed.json` keeps them, and as text."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from mansard.measure.points.conclusions import conclusions, in_words
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
    points = [remat("none", 10.6, 11.5, 4e6, 110.0), remat("dots", 11.5, 12.5, 3e6, 110.0),
              remat("bad", 15.5, 16.5, 4e6, 150.0), remat("nothing", 18.5, 19.5, 1e6, 140.0)]  # fmt: skip
    (found,) = of_kind("pareto", points)
    assert [(r["policy"], r["dominated_by"]) for r in found["rows"]] == [
        ("none", ["dots"]),  # their intervals touch, 11.5 and 11.5, so they are as fast, and dots needs less
        ("dots", []), ("bad", ["none", "dots"]), ("nothing", []),
    ]  # fmt: skip
    assert found["rows"][3]["executed_over_model"] == pytest.approx(1.4)
    # of the front, dots is the fastest: 12 ms and 3 MB; nothing needs 1 - 1/3 = 67 % less for 19 / 12 = 1.58 times the time
    assert found["sentence"].startswith("dots takes 12.0 ms")
    assert "nothing needs 67% less memory for 1.58x the time" in found["sentence"]
    assert found["sentence"].endswith("never the better choice: none, bad")


def test_a_policy_is_not_beaten_by_a_tie_that_is_all_noise():
    # dots lies anywhere from 40 to 260 ms: nothing, at 244 ms, is not as fast as it because that interval reaches so far
    (found,) = of_kind("pareto", [remat("dots", 40, 260, 3e6, 110.0), remat("nothing", 243, 245, 1e6, 140.0)])
    assert [r["dominated_by"] for r in found["rows"]] == [[], []]
    assert "never the better choice" not in found["sentence"]
    assert "nothing needs 67% less memory (times not compared: dots noisy)" in found["sentence"]
    assert (
        shown([remat("dots", 40, 260, 3e6, 110.0), remat("nothing", 243, 245, 1e6, 140.0)]).count("noisy: not told")
        == 1
    )


def shown(elements):
    console = Console(width=120, record=True, highlight=False)
    points_text.show(elements, console)
    return console.export_text()


def test_tables_are_shown_below_the_points():
    waived = element("splash", 0, 0, state=State.WAIVED, reason="needs a TPU: checked in interpret mode, not timed")
    text = shown([element("xla", 0.9, 1.1), element("torch", 1.9, 2.1), waived, remat("none", 9.8, 10.2, 4e6, 110.0),
                  remat("nothing", 18.5, 19.5, 2e6, 140.0)])  # fmt: skip
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


def runs_at(rng, *centres):
    """Runs of three processes with one window of five samples each, half a percent of noise around their centre."""
    return [[[list(c * (1.0 + 0.005 * rng.standard_normal(5)))] for _ in range(3)] for c in centres]


def test_runs_are_split_by_their_medians_and_each_regime_has_a_truth_of_its_own(a_a):
    runs = runs_at(np.random.default_rng(1), *[1.0] * 12, *[1.3] * 8)
    neither, fast, slow = a_a.by_regime(runs)
    assert neither["intervals"] == 0
    assert (fast["runs"], slow["runs"]) == (12, 8)
    assert fast["pooled_median_s"] == pytest.approx(1.0, rel=5e-3)
    assert slow["pooled_median_s"] == pytest.approx(1.3, rel=5e-3)
    assert fast["coverage"] == slow["coverage"] == 1.0  # 0.5 % of noise is far inside of 1.75 % between runs
    # half widths by hand where the processes agree: 4 %, and what little they differ on top
    assert 0.04 < fast["half_width"]["p50"] < 0.05
    assert fast["share_within_5_percent"] == 1.0


def test_a_run_that_saw_both_regimes_has_an_interval_in_each(a_a):
    rng = np.random.default_rng(2)
    (fast,), (slow,) = runs_at(rng, 1.0), runs_at(rng, 1.3)
    both = [[*one, *two] for one, two in zip(fast, slow, strict=True)]  # each process has a window of either
    runs = [*runs_at(rng, *[1.0] * 12, *[1.3] * 8), both]
    _, first, second = a_a.by_regime(runs)
    assert (first["intervals"], second["intervals"]) == (13, 9)
    assert first["coverage"] == second["coverage"] == 1.0


def test_an_interval_far_from_both_regimes_is_counted_apart(a_a):
    runs = runs_at(np.random.default_rng(3), *[1.0] * 20, 4.0)
    neither, only = a_a.by_regime(runs)
    assert neither["intervals"] == 1
    assert only["runs"] == 20


def test_what_must_be_known_between_runs_is_told_by_the_experiment(a_a):
    # runs 3 % apart whose processes agree: nothing known between runs covers few, 5 % covers all
    rng = np.random.default_rng(4)
    groups = [[[c] * 5 for _ in range(3)] for c in np.exp(0.03 * rng.standard_normal(60))]
    rows = {r["run_ratio"]: r["coverage"] for r in a_a.with_run_ratio(groups, 1.0)}
    assert rows[0.0] == 0.0
    assert 0.9 <= rows[0.03] <= 1.0
    assert rows[0.15] == 1.0
