"""Scaling laws: worked numbers, fits that find what was put in, and where more devices stop paying."""

import json
import math

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from mansard.cli.main import cli
from mansard.core.errors import InputError, UsageError
from mansard.core.unknown import Unknown
from mansard.plan.scale import ScaleModel, amdahl_ratio, gustafson_ratio
from mansard.plan.scale_document import fit_document
from mansard.plan.scale_fit import fit_scaling
from mansard.plan.scale_points import parse_points, read_points


def test_amdahl_and_gustafson_by_hand():
    # 1 / (0.05 + 0.95/8) = 5.926; / 8 = 74 %; limit 1/0.05 = 20
    model = ScaleModel(serial_s=0.05, parallel_s=0.95)
    assert model.speedup_ratio(8) == pytest.approx(5.926, abs=1e-3)
    assert amdahl_ratio(0.05, 8) == pytest.approx(model.speedup_ratio(8))
    assert model.strong_efficiency_ratio(8) == pytest.approx(0.7407, abs=1e-4)
    assert model.limit_ratio == pytest.approx(20)
    # 0.05 + 0.95 x 8 = 7.65
    assert gustafson_ratio(0.05, 8) == pytest.approx(7.65)
    # efficiency 1/(0.05 N + 0.95) >= 1/2 up to N = 21
    assert model.last_above(0.5) == 21
    assert ScaleModel(serial_s=0, parallel_s=1).last_above(0.5) is None
    assert ScaleModel(serial_s=0, parallel_s=1).limit_ratio == math.inf


def test_communication_of_a_step_by_hand():
    # D = 16 GB over 50 GB/s, alpha 10 us, 8 devices: 14 x 10 us + 2 x 16/50 x 7/8 = 0.56014 s
    model = ScaleModel(serial_s=0.02, parallel_s=4.0, message_bytes=16e9, link_bytes_per_s=50e9, alpha_s=10e-6)
    assert model.comm_s(8) == pytest.approx(0.56014)
    assert model.strong_s(8) == pytest.approx(0.02 + 0.5 + 0.56014)
    assert model.weak_s(8) == pytest.approx(0.02 + 4.0 + 0.56014)
    assert model.weak_efficiency_ratio(8) == pytest.approx(4.02 / 4.58014)
    assert model.scaled_speedup_ratio(8) == pytest.approx(32.02 / 4.58014)
    assert model.comm_s(1) == 0.0
    # N* = sqrt((4 - 0.64) / 20 us) = 409.9
    assert model.stops_paying().n == 410
    assert model.strong_s(410) <= min(model.strong_s(n) for n in range(1, 2000))


def test_without_a_latency_term_there_is_no_best_n():
    model = ScaleModel(serial_s=0.02, parallel_s=4.0, message_bytes=16e9, link_bytes_per_s=50e9)
    assert model.stops_paying().n is None
    assert model.stops_paying().text.startswith("none without a latency term")
    # 4.02 / (0.02 + 0.64)
    assert model.limit_ratio == pytest.approx(4.02 / 0.66)
    # A message that takes longer than the work: two devices are slower than one.
    heavy = ScaleModel(serial_s=0.0, parallel_s=0.5, message_bytes=16e9, link_bytes_per_s=50e9)
    assert heavy.stops_paying().n == 1
    assert heavy.strong_s(2) > heavy.strong_s(1)
    assert heavy.limit_ratio == 1.0


MODELS = st.builds(
    ScaleModel, serial_s=st.floats(0, 1), parallel_s=st.floats(1e-3, 1e3), message_bytes=st.floats(0, 1e11),
    link_bytes_per_s=st.floats(1e9, 1e12), alpha_s=st.floats(0, 1e-3),
)  # fmt: skip


@given(MODELS, st.integers(1, 4096), st.floats(1, 100))
def test_a_faster_link_never_makes_a_step_longer(model, n, more):
    faster = ScaleModel(
        serial_s=model.serial_s, parallel_s=model.parallel_s, message_bytes=model.message_bytes,
        link_bytes_per_s=model.link_bytes_per_s * more, alpha_s=model.alpha_s,
    )  # fmt: skip
    assert faster.strong_s(n) <= model.strong_s(n) * (1 + 1e-12)
    assert faster.weak_s(n) <= model.weak_s(n) * (1 + 1e-12)


@given(MODELS, st.integers(1, 100000))
def test_no_n_beats_the_best_one(model, n):
    stop = model.stops_paying()
    if stop.n is not None:
        assert model.strong_s(stop.n) <= model.strong_s(n) * (1 + 1e-9)
    assert model.speedup_ratio(n) <= model.limit_ratio * (1 + 1e-9)


@given(MODELS, st.integers(1, 1000))
def test_efficiency_falls_with_n(model, n):
    assert model.strong_efficiency_ratio(n + 1) <= model.strong_efficiency_ratio(n) * (1 + 1e-9)
    assert model.weak_efficiency_ratio(n + 1) <= model.weak_efficiency_ratio(n) * (1 + 1e-9)


def test_a_noisy_strong_scaling_fit_covers_the_truth():
    rng = np.random.default_rng(3)
    points = [(n, 100 * (0.05 + 0.95 / n) * (1 + 0.02 * rng.standard_normal())) for n in (1, 2, 4, 8, 16, 32)
              for _ in range(5)]  # fmt: skip
    fit = fit_scaling(points, "strong", resamples=300)
    low, high = fit.serial_ci95_ratio
    assert fit.law == "Amdahl"
    assert low < 0.05 < high
    assert high - low < 0.02
    assert fit.model.growth_s == 0.0
    assert fit.efficiency[1] == 1.0


def test_growth_with_n_is_found_and_gives_a_best_n():
    # 5 + 95/N + 0.05 (N - 1): the shortest at sqrt(95/0.05) = 43.6
    points = [(n, 5 + 95 / n + 0.05 * (n - 1)) for n in (1, 2, 4, 8, 16, 32, 64)]
    fit = fit_scaling(points, "strong", resamples=100)
    assert fit.model.growth_s == pytest.approx(0.05)
    assert fit.model.stops_paying().n == 44
    assert fit.serial_ratio == pytest.approx(0.05)


def test_weak_scaling_finds_gustafsons_share():
    # T(N) = 10 N / (N - 0.05 (N - 1)): at 8, 80/7.65 = 10.458 s
    points = [(n, 10 * n / (n - 0.05 * (n - 1))) for n in (1, 2, 4, 8)]
    assert points[3][1] == pytest.approx(10.458, abs=1e-3)
    fit = fit_scaling(points, "weak", resamples=100)
    assert fit.law == "Gustafson"
    assert fit.serial_ratio == pytest.approx(0.05)
    assert fit.one_device_s == pytest.approx(10)
    assert fit.efficiency[8] == pytest.approx(7.65 / 8)
    row = next(r for r in fit_document(fit, at=[8], efficiency_ratio=0.5)["rows"] if r["n"] == 8)
    assert row["speedup"] == pytest.approx(7.65)
    assert row["time_s"] == pytest.approx(10.458, abs=1e-3)


def test_what_points_cannot_say():
    two = fit_scaling([(1, 100.0), (8, 17.0)], "strong")
    assert isinstance(two.serial_ci95_ratio, Unknown)
    assert isinstance(two.growth_ci95_s, Unknown)
    # a + b = 100, a + b/8 = 17: b = 83 x 8/7 = 94.86
    assert two.serial_ratio == pytest.approx(0.0514, abs=1e-4)
    spread = fit_scaling([(1, 100.0), (1, 101.0), (8, 17.0), (8, 17.5)], "strong", resamples=100)
    assert not isinstance(spread.serial_ci95_ratio, Unknown)
    # faster than linear: no negative serial part
    assert fit_scaling([(1, 100.0), (2, 45.0), (4, 20.0)], "strong", resamples=50).serial_ratio == 0.0
    with pytest.raises(UsageError, match="two different"):
        fit_scaling([(4, 1.0), (4, 1.1)], "strong")
    with pytest.raises(UsageError, match="no number of devices"):
        fit_scaling([(0, 1.0), (4, 1.1)], "strong")


def test_points_from_text_and_files(tmp_path):
    assert parse_points(["1:100", "8:17 ms", '2:"3 s"']) == [(1, 100.0), (8, 0.017), (2, 3.0)]
    with pytest.raises(UsageError, match="cannot read the point"):
        parse_points(["eight:17"])
    file = tmp_path / "steps.csv"
    file.write_text("GPUs,step_ms\n1,100\n8,17\n")
    assert read_points(file) == [(1, 0.1), (8, 0.017)]
    file.write_text("n,time_s\n1,100\n8,fast\n")
    with pytest.raises(InputError, match="line 3"):
        read_points(file)
    file.write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match="columns a, b"):
        read_points(file)
    file.write_text('{"rows": [{"n": 1, "time_s": 100}]}')
    with pytest.raises(InputError, match=r"steps\.csv is JSON, expected a CSV"):
        read_points(file)
    file.write_text(",".join(f"{'column' * 20}{i}" for i in range(100)))
    with pytest.raises(InputError, match="and 94 more") as wide:
        read_points(file)
    assert len(wide.value.message) - len(str(file)) < 300
    with pytest.raises(InputError, match="cannot read"):
        read_points(tmp_path / "none.csv")


def test_impossible_parts_are_refused():
    for bad in (
        {"serial_s": -1.0, "parallel_s": 1.0},
        {"serial_s": 0.0, "parallel_s": 0.0},
        {"serial_s": 0.0, "parallel_s": 1.0, "message_bytes": 1.0},
        {"serial_s": 0.0, "parallel_s": math.inf},
        {"serial_s": 0.0, "parallel_s": 1.0, "link_bytes_per_s": 0.0},
    ):
        with pytest.raises(UsageError):
            ScaleModel(**bad)
    with pytest.raises(UsageError):
        ScaleModel(serial_s=0, parallel_s=1).strong_s(0)
    with pytest.raises(UsageError):
        gustafson_ratio(1.5, 8)


def run(*args):
    return CliRunner().invoke(cli, ["plan", "scale", *args])


def test_the_verb_draws_and_states_what_was_measured():
    result = run("--scaling", "strong", "--point", "1:100", "--point", "2:53", "--point", "4:29", "--ascii")
    assert result.exit_code == 0, result.output
    assert "Measured: strong scaling" in result.output
    assert "none without a latency term" in result.output
    assert "* measured" in result.output
    assert result.output.isascii()
    document = json.loads(run("--parallel-share", "0.95", "--at", "8", "--json").stdout)
    assert document["schema"] == "plan-scale/1"
    assert document["limit"] == pytest.approx(20)
    assert document["rows"][0]["speedup"] == pytest.approx(5.926, abs=1e-3)
    parts = run("--serial", "20 ms", "--parallel", "4 s", "--message", "16 GB", "--link-rate", "50 GB/s",
                "--alpha", "10 us")  # fmt: skip
    assert "stops paying at N = 410" in parts.output


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--point", "1:100", "--point", "8:17"), "cannot be told from times"),
        (("--scaling", "weak"), "no point was given"),
        ((), "no points and no parts"),
        (("--parallel", "4 s"), "serial time was not given"),
        (("--parallel-share", "1.5"), "from 0 to 1"),
        (("--parallel-share", "0.9", "--alpha", "1 us"), "messages take seconds"),
        (("--point", "1:1", "--scaling", "strong", "--serial", "1 s"), "leave --serial out"),
        (("--parallel-share", "0.9", "--at", "none"), "cannot read --at"),
    ],
)
def test_the_verb_refuses(args, words):
    result = run(*args)
    assert isinstance(result.exception, UsageError)
    assert words in result.exception.message
