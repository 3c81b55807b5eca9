from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mansard.history.compare import ComparisonVerdict, Limits, compare, compare_lists, compare_measurements
from mansard.history.documents import read_bytes, read_samples
from mansard.history.evidence import bursts_of
from mansard.history.records import Measurement, Record
from mansard.history.statistics import (
    Side,
    benjamini_hochberg,
    between_bursts,
    median_draws,
    ratio_of_medians,
    ratio_of_pairs,
)

QUIET = Limits(run_ratio=0.0, draws=4000)
STATED = Limits(unseen_ratio=0.01)  # who states the spread between runs needs none shown


def record(*benchmarks: dict[str, object], environment: dict[str, object] | None = None) -> Record:
    document = {"schema": "samples/1", "environment": environment or {}, "benchmarks": list(benchmarks)}
    return read_bytes(json.dumps(document).encode(), source="x.json")


def ms(*values: float) -> list[float]:
    return [v / 1e3 for v in values]


# --- the seven cases of regression noise (D40) ---------------------------------------------------------------------------


def test_identical_input_is_the_same() -> None:
    run = read_samples("step", ms(100, 104, 97))
    found = compare([run], [run])
    assert found.verdict is ComparisonVerdict.SAME
    assert (found.results[0].code, found.results[0].ratio, found.exit_code) == ("identical_input", 1.0, 0)


def test_two_percent_within_the_spread_is_the_same() -> None:
    found = compare_lists(ms(100, 104, 97, 101, 99), ms(103, 98, 102, 100, 105))
    assert found.verdict is ComparisonVerdict.SAME
    assert found.ratio == pytest.approx(1.02)  # medians 100 and 102


def test_twelve_percent_beyond_the_spread_is_slower() -> None:
    found = compare_lists(ms(100, 101, 99, 100, 100), ms(112, 113, 111, 112, 112))
    assert found.verdict is ComparisonVerdict.SLOWER
    assert found.ratio == pytest.approx(1.12)


@pytest.mark.parametrize(("a", "b"), [([0.0020], [0.0029]), ([100.0], [107.0])])
def test_one_sample_each_decides_nothing(a: list[float], b: list[float]) -> None:
    found = compare_lists(ms(*a), ms(*b))
    assert (found.verdict, found.code) == (ComparisonVerdict.INCONCLUSIVE, "single_sample")


def test_an_empty_candidate_is_no_improvement() -> None:
    baseline = record({"name": "step", "runs": [ms(100, 101, 99, 100, 100)]}, environment={"gpu": "H100"})
    found = compare([baseline], [record({"name": "step", "runs": []}, environment={"gpu": "H100"})])
    assert (found.verdict, found.results[0].code, found.exit_code) == (
        ComparisonVerdict.INCONCLUSIVE,
        "empty_candidate",
        3,
    )


def test_another_number_of_devices_is_not_comparable() -> None:
    sides = [record({"name": "step", "runs": [ms(1, 1, 1, 1, 1)]}, environment={"gpus": n}) for n in (8, 4)]
    found = compare([sides[0]], [sides[1]])
    assert (found.verdict, found.results[0].code) == (ComparisonVerdict.NOT_COMPARABLE, "different_device_count")
    assert "8 -> 4" in found.results[0].reason


def test_a_difference_below_the_clock_is_not_called() -> None:
    found = compare_lists([2.0e-6] * 9, [2.9e-6] * 9)  # +45 %, and 0.9 us of difference against a floor of 1 us
    assert (found.verdict, found.code) == (ComparisonVerdict.INCONCLUSIVE, "below_absolute_floor")
    assert compare_lists([2.0e-6] * 9, [3.1e-6] * 9).verdict is ComparisonVerdict.SLOWER


# --- other verdicts ------------------------------------------------------------------------------------------------------


def test_more_is_better_for_a_rate() -> None:
    assert compare_lists([100e9] * 9, [130e9] * 9, metric="bytes_per_s").verdict is ComparisonVerdict.FASTER
    assert compare_lists([130e9] * 9, [100e9] * 9, metric="bytes_per_s").verdict is ComparisonVerdict.SLOWER


def test_a_measurement_that_collapsed_is_implausible_and_not_faster() -> None:
    assert compare_lists([1.0] * 9, [0.02] * 9).code == "collapsed"
    assert compare_lists([1.0] * 9, [0.02] * 9).verdict is ComparisonVerdict.IMPLAUSIBLE
    assert compare_lists([0.02] * 9, [1.0] * 9).verdict is ComparisonVerdict.SLOWER


@pytest.mark.parametrize("bad", [0.0, -1.0])
def test_a_sample_that_is_not_positive_is_implausible(bad: float) -> None:
    assert compare_lists([1.0] * 9, [1.0] * 8 + [bad]).code == "impossible_value"


def test_a_share_above_its_ceiling_is_implausible() -> None:
    assert compare_lists([0.9] * 9, [1.3] * 9, metric="mfu_ratio").code == "impossible_value"


def test_noise_is_said_and_not_called_same() -> None:
    rng = np.random.default_rng(3)
    a, b = (list(np.exp(rng.normal(0, 0.5, 9))) for _ in range(2))
    found = compare_lists(a, b)
    assert (found.verdict, found.code) == (ComparisonVerdict.INCONCLUSIVE, "noisy")


def test_ties_are_ties() -> None:
    found = compare_lists([0.001] * 9, [0.001] * 8 + [0.002], limits=QUIET)
    assert (found.verdict, found.ratio) == (ComparisonVerdict.SAME, 1.0)


def test_a_benchmark_that_vanished_is_not_ok_and_a_new_one_is_not_judged() -> None:
    a = record({"name": "x", "runs": [[1.0] * 9]}, {"name": "y", "runs": [[1.0] * 9]})
    b = record({"name": "x", "runs": [[1.0] * 9]}, {"name": "z", "runs": [[1.0] * 9]})
    found = compare([a], [b])
    assert [(r.name, r.code) for r in found.results] == [
        ("x/time_s", "no_change"),
        ("y/time_s", "missing_in_candidate"),
    ]
    assert (found.added, found.exit_code) == (("z/time_s",), 3)


def test_what_neither_side_measured_does_not_spoil_the_rest() -> None:
    a = record({"name": "x", "runs": [[1.0] * 9]}, {"name": "tpu", "runs": []})
    b = record({"name": "x", "runs": [[1.001] * 9]}, {"name": "tpu", "runs": []})
    found = compare([a], [b])
    assert (found.verdict, found.skipped) == (ComparisonVerdict.SAME, ("tpu/time_s",))


def test_nothing_at_all_is_inconclusive() -> None:
    found = compare([record()], [record({"name": "x", "runs": [[1.0] * 9]})])
    assert (found.verdict, found.exit_code) == (ComparisonVerdict.INCONCLUSIVE, 3)
    assert found.empty


def point(times_ms: list[float], clock_hz: float, verdict: str = "normal") -> Record:
    element = {
        "schema": "detailed/1", "tool_version": "0", "created": "", "environment": {}, "state": "done", "metrics": {},
        "metadata": {"benchmark_name": "gemm", "test_name": "gemm m=1", "backend": "jax", "params": {"num_runs": 5}},
        "raw_times_ms": times_ms, "conditions": {"clock_hz": clock_hz}, "verdict": verdict, "verdict_reason": "above its ceiling",
    }  # fmt: skip
    return read_bytes(json.dumps([element]).encode(), source="detailed.json")


def test_a_change_that_is_only_the_clock_is_not_called() -> None:
    # 20 % slower at a clock that is 20 % lower: as many cycles as before.
    slower = compare([point([10.0] * 9, 4.0e9)], [point([12.0] * 9, 4.0e9 / 1.2)], STATED)
    assert (slower.results[0].verdict, slower.results[0].code) == (ComparisonVerdict.INCONCLUSIVE, "clock_moved")
    # 40 % slower at that clock: 1.4 / 1.2 = 17 % more cycles.
    both = compare([point([10.0] * 9, 4.0e9)], [point([14.0] * 9, 4.0e9 / 1.2)], STATED)
    assert both.verdict is ComparisonVerdict.SLOWER


def test_a_point_that_its_own_audit_refused_is_implausible() -> None:
    found = compare([point([10.0] * 9, 4e9)], [point([9.0] * 9, 4e9, verdict="implausible")])
    assert (found.verdict, found.exit_code) == (ComparisonVerdict.IMPLAUSIBLE, 3)


def test_computed_figures_need_no_samples() -> None:
    def estimate(seconds: float) -> Record:
        document = {
            "schema": "estimate/1", "environment": {"model": "m", "machine": "h100-sxm"}, "phase": "decode", "plan": {"tp": 1},
            "types": {"activations": "bf16"}, "totals": {"time_bound_s": seconds, "tokens_per_s": 8 / seconds}, "views": {},
        }  # fmt: skip
        return read_bytes(json.dumps(document).encode(), source="e.json")

    assert compare([estimate(0.010)], [estimate(0.011)]).verdict is ComparisonVerdict.SLOWER
    assert compare([estimate(0.010)], [estimate(0.0101)]).verdict is ComparisonVerdict.SAME


# --- the statistics ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 31])
def test_ranks_of_bootstrap_medians_are_those_of_resampling(n: int) -> None:
    rng = np.random.default_rng(7)
    x = np.arange(n, dtype=float)
    quick = median_draws(x, 40_000, rng)
    slow = np.median(x[rng.integers(0, n, size=(40_000, n))], axis=1)
    values = sorted({*quick.tolist(), *slow.tolist()})
    share = [np.array([(d <= v).mean() for v in values]) for d in (quick, slow)]
    assert np.abs(share[0] - share[1]).max() < 0.012  # Kolmogorov and Smirnov: 1.63 x sqrt(2 / 40 000) = 0.0115 at 1 %


def burst(*centres: float) -> Side:
    """Runs without spread inside, a burst each: their logarithms are the centres."""
    runs = tuple(((math.exp(c),) * 5,) for c in centres)
    return Side(runs=runs, bursts=tuple(range(len(centres))))


def test_variance_between_bursts_is_that_of_the_history_and_divided_by_bursts() -> None:
    # Two bursts 0.04 apart: s^2 = 0.0008 with one degree, above the floor of 1e-4; divided by two bursts, three degrees known.
    (left, degrees), (right, alone) = between_bursts([burst(0.0, 0.04), burst(0.0)], 0.01)
    assert left == pytest.approx(0.0008 / 2)
    assert degrees == 3 + 1
    # The side of one burst has the variance that the other one shows, not divided, and no more degrees for it.
    assert right == pytest.approx(0.0008)
    assert alone == 3
    # Both have a history: 0.0008 and 0.0002 with a degree each are 0.0005 with two.
    both = between_bursts([burst(0.0, 0.04), burst(0.0, 0.02)], 0.01)
    assert both == [(pytest.approx(0.0005 / 2), 5), (pytest.approx(0.0005 / 2), 5)]


def test_runs_of_one_burst_are_never_divided_by() -> None:
    # Four runs in a row that agree: the floor of 1 % stays, however many they are.
    many = Side(runs=(((1.0,) * 5,),) * 4)
    assert between_bursts([many, many], 0.01) == [(pytest.approx(1e-4), 3)] * 2
    # Two runs of a burst 0.04 apart: a spread of 0.04 / sqrt(2) among them, of which 1.5 times is taken between bursts.
    loud = Side(runs=(((1.0,) * 5,), ((math.exp(0.04),) * 5,)))
    assert between_bursts([loud], 0.01)[0] == (pytest.approx((1.5 * 0.04) ** 2 / 2), 3)


def test_a_loud_burst_is_less_sure_than_a_quiet_one() -> None:
    # Logarithms -0.1, 0, 0.1 ...: the median of their absolute values is 0.1, half of 1.4826 times that is the floor.
    samples = tuple(math.exp(x) for x in (-0.1, -0.1, 0.0, 0.1, 0.1))
    assert between_bursts([Side(runs=((samples,),))], 0.01)[0][0] == pytest.approx((0.5 * 1.4826 * 0.1) ** 2)


def timed(moment: str, *values: float) -> Record:
    document = {"schema": "samples/1", "created": moment, "benchmarks": [{"name": "x", "runs": [list(values)]}]}
    return read_bytes(json.dumps(document).encode(), source=moment)


def test_runs_a_minute_apart_are_bursts_of_their_own() -> None:
    times = [
        "2026-01-01T10:00:00+00:00",
        "2026-01-01T10:00:30Z",
        "2026-01-01T10:01:25",
        "2026-01-01T10:02:30",
        "",
        "what",
    ]
    # 30 s and 55 s after the one before, then 65 s: a new one. What tells no time is one burst together.
    assert bursts_of(times) == (1, 1, 1, 2, 0, 0)
    assert bursts_of(times[::-1]) == (0, 0, 2, 1, 1, 1)


def test_runs_apart_in_time_tell_more_than_runs_in_a_row() -> None:
    apart = [timed(f"2026-01-0{i + 1}T10:00:00", *[1.0 + 0.001 * i] * 9) for i in range(6)]
    in_a_row = [timed(f"2026-01-01T10:00:0{i}", *[1.0 + 0.001 * i] * 9) for i in range(6)]
    later = [timed(f"2026-02-0{i + 1}T10:00:00", *[1.001 + 0.001 * i] * 9) for i in range(6)]
    reach = [compare([*side], later).results[0].smallest_ratio for side in (apart, in_a_row)]
    assert reach[0] < reach[1]  # type: ignore[operator]


def test_memory_regimes_are_compared_like_with_like() -> None:
    slow, fast = [2.0, 2.01, 1.99, 2.0, 2.02], [1.0, 1.01, 0.99, 1.0, 1.02]
    history = [timed(f"2026-01-0{i + 1}T10:00:00", *(slow if i % 2 else fast)) for i in range(6)]
    same = compare(history, [timed("2026-01-09T10:00:00", *slow)]).results[0]
    assert (same.verdict, same.ratio) == (ComparisonVerdict.SAME, pytest.approx(1.0))
    assert "3 of 6 runs" in same.reason
    # 25 % slower than the slow regime is slower, and not taken for a mix of both.
    slower = compare(history, [timed("2026-01-09T10:00:00", *(1.25 * x for x in slow))]).results[0]
    assert (slower.verdict, slower.ratio) == (ComparisonVerdict.SLOWER, pytest.approx(1.25))
    # A history of one regime alone says nothing of the other.
    assert compare(history[::2], [timed("2026-01-09T10:00:00", *slow)]).verdict is ComparisonVerdict.SLOWER


def test_the_interval_of_two_single_runs_is_that_of_two_spreads() -> None:
    # Without noise inside: the difference of two t variables with 3 degrees, of 1 % each. Its quantile by convolution of the density
    # 6 sqrt(3) / (pi (3 + x^2)^2) with itself, on a grid.
    x = np.arange(-400.0, 400.0, 0.05)
    density = 6 * math.sqrt(3) / (math.pi * (3 + x**2) ** 2)
    both = np.convolve(density, density) * 0.05
    quantile = float((2 * x[0] + 0.05 * np.arange(both.size))[np.searchsorted(np.cumsum(both) * 0.05, 0.975)])
    assert quantile == pytest.approx(4.6, abs=0.1)
    r = ratio_of_medians(Side(runs=(((1.0,) * 9,),)), Side(runs=(((1.0,) * 9,),)), tolerance=0.02, draws=200_000)
    assert math.log(r.high) == pytest.approx(quantile / 100, rel=0.03)
    assert math.log(r.low) == pytest.approx(-quantile / 100, rel=0.03)


def test_pairs_do_not_see_a_drift_that_both_share() -> None:
    rng = np.random.default_rng(0)
    drift = np.exp(np.cumsum(rng.normal(0, 0.05, 40)))
    a, b = drift * np.exp(rng.normal(0, 0.01, 40)), 1.05 * drift * np.exp(rng.normal(0, 0.01, 40))
    paired = ratio_of_pairs([a], [b], tolerance=0.02)
    assert paired.low > 1.03
    assert paired.high < 1.07
    apart = ratio_of_medians(Side(runs=((tuple(a),),)), Side(runs=((tuple(b),),)), tolerance=0.02)
    assert math.log(apart.high / apart.low) > 3 * math.log(paired.high / paired.low)


def test_pairs_of_processes_that_differ_widen_the_interval() -> None:
    # Five pairs of processes whose ratios are 1.00, 1.02, 1.04, 1.06, 1.08 without noise inside: taken as rounds alone they are sure.
    a, b = [[1.0] * 20] * 5, [[1.0 + 0.02 * i] * 20 for i in range(5)]
    together = ratio_of_pairs(a, b, tolerance=0.02)
    flat = ratio_of_pairs([[x for g in a for x in g]], [[x for g in b for x in g]], tolerance=0.02)
    assert together.low < 1.02 < flat.low
    # s of the logarithms: about 0.0304, 4 degrees; floor 0.005, 3 degrees: sqrt((3 x 0.005^2 + 4 x 0.0304^2) / 7 / 5) = 0.0104,
    # and 2.365 of it on either side of 4 % (log 0.0392), with the bootstrap of the rounds in it.
    assert math.log(together.high) > 0.0392 + 2.0 * 0.0104


def test_adjusted_probabilities_by_hand() -> None:
    # Sorted: 0.001 x 3/1, 0.02 x 3/2, 0.03 x 3/3, each at most the one after it.
    assert benjamini_hochberg([0.03, 0.001, 0.02]) == pytest.approx([0.03, 0.003, 0.03])
    assert benjamini_hochberg([]) == []


def test_many_benchmarks_do_not_raise_false_alarms() -> None:
    rng = np.random.default_rng(1)
    alarms = 0
    limits = Limits(run_ratio=0.0, tolerance_ratio=0.0, draws=4000)
    for _ in range(40):
        sides = [
            record(*({"name": f"b{i}", "runs": [list(np.exp(rng.normal(0, 0.05, 15)))]} for i in range(20)))
            for _ in range(2)
        ]
        found = compare([sides[0]], [sides[1]], limits)
        alarms += any(r.verdict in (ComparisonVerdict.SLOWER, ComparisonVerdict.FASTER) for r in found.results)
    # At most 5 % of 40 rounds are expected to have any alarm; unadjusted, 1 - 0.95^20 = 64 % would.
    assert alarms <= 6


def test_a_real_change_among_many_is_still_found() -> None:
    rng = np.random.default_rng(2)
    sides = [
        record(*({"name": f"b{i}", "runs": [list((1.15 if s and i == 3 else 1.0) * np.exp(rng.normal(0, 0.02, 25)))]} for i in range(20)))
        for s in range(2)
    ]  # fmt: skip
    slower = [r.name for r in compare([sides[0]], [sides[1]]).results if r.verdict is ComparisonVerdict.SLOWER]
    assert slower == ["b3/time_s"]


def test_one_change_among_hundreds_is_still_found() -> None:
    # 800 figures: the probability of the one has to come below 0.05 / 800 = 6e-5, which 2,000 draws cannot tell.
    sides = [
        record(*({"name": f"b{i}", "runs": [[(1.5 if s and i == 3 else 1.0)] * 9]} for i in range(800)))
        for s in range(2)
    ]
    found = compare([sides[0]], [sides[1]], Limits(draws=2000, run_ratio=0.001))
    assert [r.name for r in found.results if r.verdict is not ComparisonVerdict.SAME] == ["b3/time_s"]
    assert found.verdict is ComparisonVerdict.SLOWER


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), scale=st.floats(0.7, 1.4), sigma=st.floats(0.001, 0.2), n=st.integers(5, 40))
def test_swapping_the_sides_inverts_the_verdict(seed: int, scale: float, sigma: float, n: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = list(np.exp(rng.normal(0, sigma, n))), list(scale * np.exp(rng.normal(0, sigma, n)))
    there, back = compare_lists(a, b), compare_lists(b, a)
    assert there.ratio == pytest.approx(1 / back.ratio)  # type: ignore[operator]
    opposite = {"faster": "slower", "slower": "faster"}
    called = {there.verdict.value, back.verdict.value} & set(opposite)
    if called and there.p_adjusted is not None and back.p_adjusted is not None:
        # The draws of the two sides change places, so a verdict on the edge may be called one way alone; elsewhere it inverts.
        edge = max(there.p_adjusted, back.p_adjusted) > 0.03
        assert edge or opposite.get(there.verdict.value) == back.verdict.value


@settings(max_examples=40, deadline=None)
@given(values=st.lists(st.floats(1e-5, 1e3), min_size=1, max_size=40))
def test_a_result_against_itself_is_the_same(values: list[float]) -> None:
    assert compare_lists(values, values).verdict is ComparisonVerdict.SAME


def test_self_comparison_of_noise_is_never_called_beyond_its_rate() -> None:
    rng = np.random.default_rng(5)
    called = 0
    for i in range(300):
        a, b = (list(np.exp(rng.normal(0, 0.05, 20))) for _ in range(2))
        verdict = compare_lists(a, b, limits=Limits(draws=2000, seed=i)).verdict
        called += verdict in (ComparisonVerdict.FASTER, ComparisonVerdict.SLOWER)
    assert called <= 6  # 2 % of 300


def test_limits_refuse_what_is_no_limit() -> None:
    for wrong in (
        {"tolerance_ratio": math.nan},
        {"floor_s": math.inf},
        {"level": 0.0},
        {"tolerance_ratio": 0.2},
        {"run_ratio": -1.0},
    ):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Limits(**wrong)  # type: ignore[arg-type]


# --- one process a side ---------------------------------------------------------------------------------------------


def one_process(median_s: float, processes: int = 1) -> Measurement:
    groups = tuple(tuple(median_s * (1.0 + 1e-3 * i) for i in range(9)) for _ in range(processes))
    return Measurement(benchmark="step", metric="step_time_s", groups=groups, single=True)


def test_one_process_a_side_calls_only_what_processes_do_not_differ_by() -> None:
    found = compare_measurements([one_process(0.100)], [one_process(0.112)])
    assert (found.verdict, found.code) == (ComparisonVerdict.INCONCLUSIVE, "single_process")
    assert "three processes or more" in found.reason
    # 10 % between processes, t of three degrees on either side: about half as long again is beyond it, twice is.
    assert compare_measurements([one_process(0.100)], [one_process(0.250)]).verdict is ComparisonVerdict.SLOWER
    # Who states what the machine does is believed, and so is what several processes show.
    stated = Limits(run_ratio=0.01, unseen_ratio=0.01)
    assert compare_measurements([one_process(0.100)], [one_process(0.112)], stated).verdict is ComparisonVerdict.SLOWER
    assert compare_measurements([one_process(0.100, 3)], [one_process(0.112, 3)]).verdict is ComparisonVerdict.SLOWER


def test_pairs_say_why_their_change_is_not_that_of_the_medians() -> None:
    # The machine slows down threefold half way; the candidate is 5 % slower in each round, its slow half one round longer.
    a = [1.0, 1.0, 1.0, 3.0, 3.0, 3.0]
    b = [1.05, 1.05, 3.15, 3.15, 3.15, 3.15]
    found = compare_lists(a, b, limits=Limits(interleaved=True))
    # Ratios 1.05 five times, and 3.15 once; medians 2 and 3.15.
    assert found.ratio == pytest.approx(1.05)
    assert "medians of the sides alone differ by +57 %" in found.reason
