from __future__ import annotations

import json
import math
from dataclasses import replace
from datetime import date, timedelta

import numpy as np
import pytest
from click.testing import CliRunner

from mansard.cli.baseline import command
from mansard.history.documents import read_bytes
from mansard.history.records import Record
from mansard.history.store import open_store
from mansard.history.trend import Series, outliers, trends
from mansard.report.history_trend import plot, trend_document, trend_text


def result(day: int, value: float, **environment: object) -> Record:
    document = {
        "schema": "samples/1", "created": f"{date(2026, 1, 1) + timedelta(days=day)}T00:00:00+00:00", "environment": environment,
        "benchmarks": [{"name": "step", "metric": "step_time_s", "runs": [[value] * 5]}],
    }  # fmt: skip
    return read_bytes(json.dumps(document).encode(), source=f"{day}.json")


def series(values: object, environments: list[dict[str, object]] | None = None) -> Series:
    told = environments or [{}] * len(values)  # type: ignore[arg-type]
    records = [result(i, float(v), **told[i]) for i, v in enumerate(values)]  # type: ignore[arg-type, call-overload]
    (found,) = trends([(r.created, r) for r in records])
    return found


def noise(n: int, seed: int, sigma: float = 0.01) -> np.ndarray:
    return np.exp(np.random.default_rng(seed).normal(0.0, sigma, n))


def test_a_step_is_found_where_it_is_with_what_changed_there() -> None:
    values = 0.1 * noise(28, 1)
    values[17:] *= 1.10
    told: list[dict[str, object]] = [
        {"driver": "580" if i < 17 else "590", "torch": "2.9" if i < 5 else "2.10", "gpu": "H100"} for i in range(28)
    ]
    found = series(values, told)
    (change,) = found.changes
    assert found.model == "steps"
    # 10 % of step are ten deviations of the noise: the place is sure.
    assert (change.index, change.first, change.last) == (17, 17, 17)
    assert change.ci95[0] < 1.10 < change.ci95[1]
    assert not change.better
    # The framework changed at another point, and is not blamed.
    assert [(d.component, d.baseline, d.candidate) for d in change.environment] == [("driver", "580", "590")]
    assert "changed there: driver: 580 -> 590" in trend_text([found], "x")


def test_two_steps_and_an_improvement() -> None:
    values = 0.1 * noise(30, 2)
    values[10:] *= 1.2
    values[20:] /= 1.3
    found = series(values)
    assert [(c.index, c.better) for c in found.changes] == [(10, False), (20, True)]
    assert "nothing that the documents tell" in trend_text([found], "x")


def test_a_noisy_step_has_a_wide_place() -> None:
    values = 0.1 * noise(31, 5, 0.04)
    values[15:] *= 1.16
    (change,) = series(values).changes
    assert change.first <= 15 <= change.last
    assert change.last > change.first


def test_a_drift_is_a_drift_and_no_step() -> None:
    found = series(0.1 * noise(30, 3) * np.linspace(1.0, 1.2, 30))
    assert (found.model, found.changes) == ("drift", ())
    assert found.drift is not None
    assert found.drift.ratio == pytest.approx(1.2, rel=0.02)
    assert not found.drift.better
    assert "no single point is to blame" in trend_text([found], "x")


def test_outliers_are_marked_and_move_no_level() -> None:
    values = 0.1 * noise(30, 4)
    values[[7, 19]] *= (1.6, 0.7)
    found = series(values)
    assert [i for i, p in enumerate(found.points) if p.outlier] == [7, 19]
    assert found.model == "steady"
    assert "outliers" in trend_text([found], "x")
    # The first points of a new level are none.
    assert not outliers(np.log([1.0, 1.01, 0.99, 1.0, 1.0, 1.5, 1.51, 1.49, 1.5, 1.5])).any()


def test_noise_alone_is_steady() -> None:
    rng = np.random.default_rng(11)
    models = [series(0.1 * np.exp(rng.normal(0.0, 0.03, 20))).model for _ in range(40)]
    assert models.count("steady") >= 37  # at 2 % and a bit for drifts one of 40 is expected to be called


def correlated(n: int, seed: int, phi: float, sigma: float = 0.02) -> np.ndarray:
    """Noise in which a value keeps phi of the one before."""
    new, out = np.random.default_rng(seed).normal(size=n + 50), np.zeros(n + 50)
    for i in range(1, n + 50):
        out[i] = phi * out[i - 1] + math.sqrt(1 - phi * phi) * new[i]
    return np.exp(sigma * out[50:])


def test_noise_whose_neighbours_resemble_each_other_has_no_steps() -> None:
    # Where draws were taken for independent, most of these series were called at 60 results.
    models = [series(0.1 * correlated(60, seed, 0.8)).model for seed in range(12)]
    assert models.count("steady") >= 11


def test_a_step_in_correlated_noise_is_found_and_its_correlation_told() -> None:
    values = 0.1 * correlated(40, 3, 0.6)
    values[22:] *= 1.15
    found = series(values)
    assert [(c.index, c.better) for c in found.changes] == [(22, False)]
    assert found.correlation > 0.0
    assert "neighbours share" in trend_text([series(0.1 * correlated(40, 3, 0.6))], "x")


def test_a_refused_result_is_shown_and_moves_nothing() -> None:
    records = [result(i, 0.1 + 1e-4 * (i % 3)) for i in range(8)]
    flawed = [replace(m, flaw="beyond the ceiling") for m in result(8, 0.001).measurements]
    records.append(replace(result(8, 0.001), measurements=tuple(flawed)))
    records.append(result(9, -1.0))
    (found,) = trends([(r.created, r) for r in records])
    assert (found.model, len(found.points)) == ("steady", 8)
    assert [(r.source, r.why[:10]) for r in found.refused] == [("8.json", "beyond the"), ("9.json", "a sample o")]
    assert "refused, counts for nothing: 2026-01-09T00:00:00 1.00 ms: beyond the ceiling" in trend_text([found], "x")
    assert trend_document([found], "x")["series"][0]["refused"][0]["why"] == "beyond the ceiling"
    # One of which nothing is left is shown too.
    (only,) = trends([(r.created, r) for r in records[8:9]])
    assert (only.model, only.points, len(only.refused)) == ("too_short", (), 1)
    assert "beyond the ceiling" in trend_text([only], "x")


def test_few_points_and_other_machines_are_no_series() -> None:
    assert series([0.1, 0.2, 0.1]).model == "too_short"
    machines: list[dict[str, object]] = [{"gpu": "H100" if i % 2 else "A100"} for i in range(16)]
    records = [result(i, 0.1 if i % 2 else 0.3, **machines[i]) for i in range(16)]
    found = trends([(r.created, r) for r in records])
    assert [s.model for s in found] == ["steady", "steady"]  # and not one that jumps to and fro
    assert len({s.conditions for s in found}) == 2


def test_what_is_no_figure_is_left_out_and_order_is_that_of_time() -> None:
    records = [result(i, 0.1) for i in (3, 1, 2)]
    records.append(result(4, -1.0))
    (found,) = trends([(r.created, r) for r in records], metric="step_time_s")
    assert [p.source for p in found.points] == ["1.json", "2.json", "3.json"]
    assert trends([(r.created, r) for r in records], metric="other*/time_s") == []


def test_a_plot_of_many_points_fits() -> None:
    assert plot([1.0]) == "▁"
    assert len(plot(list(range(1000)))) == 72
    assert plot([5.0, 5.0]) == "▁▁"


def test_the_verb_shows_the_store_and_a_baseline(store_url: str) -> None:
    with open_store(store_url) as store:
        for i in range(12):
            raw = {
                "schema": "samples/1", "created": f"2026-01-{i + 1:02d}T00:00:00+00:00", "environment": {"image": "a" if i < 6 else "b"},
                "benchmarks": [{"name": "step", "metric": "step_time_s", "runs": [[0.1 * (1.3 if i >= 6 else 1.0) + 1e-4 * (i % 3)] * 5]}],
            }  # fmt: skip
            store.add(json.dumps(raw).encode(), source=f"{i}.json")
        store.put("main", json.dumps(raw).encode(), source="11.json", state="accepted", reason="first")
    run = CliRunner().invoke(
        command, ["trend", "--metric", "step_time_s", "--store", store_url, "--json"], standalone_mode=False
    )
    document = json.loads(run.stdout)
    assert (document["schema"], run.return_value) == ("trend/1", 0)
    (change,) = document["series"][0]["changes"]
    assert (change["index"], change["when"][:10]) == (6, "2026-01-07")
    assert [(d["component"], d["candidate"]) for d in change["environment"]] == [("image", "b")]
    # One result of the baseline is no series.
    short = CliRunner().invoke(command, ["trend", "main", "--store", store_url], standalone_mode=False)
    assert short.return_value == 3
    assert "too few" in short.stdout


def test_a_document_holds_no_nan() -> None:
    document = trend_document([series([0.1] * 8)], "x")
    assert json.loads(json.dumps(document, allow_nan=False))["series"][0]["model"] == "steady"
    assert math.isfinite(document["series"][0]["noise_ratio"])


@pytest.mark.parametrize(("count", "n"), [(1, 6), (1, 20), (2, 20), (2, 40)])
def test_last_results_that_stand_off_are_said_although_they_are_no_level(count: int, n: int) -> None:
    values = 0.1 * noise(n, 4, 0.005)
    values[-count:] *= 1.2
    found = series(values)
    assert found.model == "steady"
    assert found.late is not None
    assert found.late.count == count
    assert found.late.ratio == pytest.approx(1.2, abs=0.02)
    assert not found.late.better
    assert found.noise_ratio < 0.012  # that of the results before, 0.5 %: with the last ones it would be 5 % or more
    assert f"the last {'result stands' if count == 1 else '2 results stand'} off, worse: +" in trend_text([found], "x")
    assert trend_document([found], "x")["series"][0]["late"]["count"] == count


def test_last_results_within_the_noise_are_not_said_and_three_of_them_are_a_level() -> None:
    assert all(series(0.1 * noise(20, seed)).late is None for seed in range(20))
    values = 0.1 * noise(20, 4, 0.005)
    values[-3:] *= 1.2
    assert series(values).late is None
    assert [c.index for c in series(values).changes] == [17]
    rising = 0.1 * np.exp(0.01 * np.arange(20)) * noise(20, 2, 0.002)
    assert series(rising).late is None
    rising[-1] *= 1.1
    off = series(rising)
    assert off.model == "drift"
    assert off.late is not None
    assert off.late.ratio == pytest.approx(1.1, abs=0.01)


def of_few(values: list[float], verdicts: str) -> tuple[Series, str]:
    found = series(values)
    assert found.model == "too_short"
    assert found.last is not None
    assert found.last.verdict.value == verdicts, found.last.reason
    return found, trend_text([found], "x")


def test_the_last_of_too_few_results_is_compared_with_those_before_it() -> None:
    alone = series([0.1])
    assert (alone.model, alone.last) == ("too_short", None)
    assert "1 result, too few to tell a level: 5 more make a series" in trend_text([alone], "x")
    found, text = of_few([0.1, 0.1003, 0.0998, 0.1001, 0.15], "slower")
    assert "5 results, too few to tell a level: 1 more makes a series" in text
    # Of five results of which nothing changed the last is the largest one time in five, so its place alone says little.
    assert "the last lies above the 4 before it (99.8 ms to 100 ms), where one of 5 lies by chance; compared" in text
    document = trend_document([found], "x")["series"][0]["last"]
    assert (document["verdict"], round(document["ratio"], 2)) == ("slower", 1.5)
    _, text = of_few([0.1, 0.1003, 0.1001], "same")
    assert "the last lies within the 2 before it (100 ms to 100 ms); compared with them it is same: " in text
    # Four results that differ by as much as the last one differs from them decide nothing.
    of_few([0.1, 0.12, 0.09, 0.11, 0.13], "inconclusive")


def test_enough_results_are_not_compared_with_the_last() -> None:
    assert series(0.1 * noise(6, 1)).last is None


def test_a_smooth_change_is_a_curve_and_no_row_of_steps() -> None:
    # Half a wave of 10 %, five deviations of the noise: cut into levels before, at a place that nothing happened at.
    wave = 0.1 * noise(60, 3, 0.02) * np.exp(0.1 * np.sin(np.pi * np.linspace(0.0, 1.0, 60)))
    found = series(wave)
    assert (found.model, found.changes, found.drift, found.late) == ("curve", (), None, None)
    assert found.curve is not None
    assert 20 <= found.curve.highest <= 40
    assert found.curve.values[found.curve.highest] == pytest.approx(0.1105, rel=0.02)
    text = trend_text([found], "x")
    assert "changes along a curve over 60 results, from " in text
    document = trend_document([found], "x")["series"][0]["curve"]
    assert (document["degree"], len(document["values"])) == (found.curve.degree, 60)
    assert document["ratio"] == pytest.approx(1.105, rel=0.03)
    # A step stays a step, and two of them, there and back, stay two.
    step = 0.1 * noise(60, 4, 0.02)
    step[20:40] *= 1.1
    assert [c.index for c in series(step).changes] == [20, 40]


def test_a_series_that_wanders_is_not_called_steady() -> None:
    calm = series(0.1 * noise(20, 1))
    assert trend_text([calm], "x").startswith("step/step_time_s: steady over 20 results")
    told = trend_text([replace(calm, correlation=0.95)], "x")
    assert "wanders over 20 results" in told
    assert "no level can be told" in told
