"""Timing with a clock of our own: nothing here depends on how fast this machine is."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mansard.measure.points import timing
from mansard.measure.points.benchmark import Check, Prepared
from mansard.measure.points.interval import interval_of, interval_over, t975
from mansard.measure.points.worker import floor_of


class Machine:
    """A clock and a call whose costs are given."""

    def __init__(self, costs, fixed_s=0.0):
        self.time = 0.0
        self.costs = list(costs)
        self.fixed_s = fixed_s
        self.calls = 0

    def now(self):
        return self.time

    def run(self, count):
        self.time += self.fixed_s
        for _ in range(count):
            self.time += self.costs[min(self.calls, len(self.costs) - 1)]
            self.calls += 1

    def prepared(self, **more):
        return Prepared(
            run=self.run, verify=lambda: Check(error_ratio=0.0, against=""), count_by_compiler=lambda: None, **more
        )


def test_warm_up_ends_when_it_is_steady():
    # 1.0, 0.9, ... 0.1 s, then 0.1 s for ever: steady once two blocks of four agree, that is after 9 + 8 calls
    machine = Machine([1.0 - 0.1 * i for i in range(9)] + [0.1])
    warm = timing.warm_up(machine.prepared(), least=1, most_s=100.0, now=machine.now)
    assert warm.steady
    # calls 10 to 17 are all 0.1 s; the two blocks of four agree for the first time when the earlier one
    # has a median of 0.1 already: at call 16 (blocks 9-12 and 13-16, medians 0.1 and 0.1)
    assert len(warm.seconds) == 16


def test_warm_up_is_bounded_and_says_that_it_did_not_settle():
    machine = Machine([2.0 ** (10 - i) for i in range(30)])
    warm = timing.warm_up(machine.prepared(), least=1, most_s=1500.0, now=machine.now)
    assert not warm.steady
    assert warm.seconds == (1024.0, 512.0)  # 1536 s is above the bound


def test_warm_up_makes_the_least_calls_that_are_asked_for():
    machine = Machine([0.001])
    assert len(timing.warm_up(machine.prepared(), least=25, now=machine.now).seconds) == 25


def test_a_sample_is_a_multiple_of_the_clock_and_of_the_empty_call():
    # 5 us per call, floor 5 us: 1 ms needs 200 calls; a floor of 1 ms needs ten of them, 2000 calls
    assert timing.calibrate(5e-6, 5e-6) == 200
    assert timing.calibrate(5e-6, 1e-3) == 2000
    # a clock that steps by 10 us: a thousand steps, 10 ms
    assert timing.calibrate(5e-6, 0.0, clock_step_s=1e-5) == 2000
    assert timing.calibrate(0.5, 1e-6) == 1


def test_samples_are_times_of_one_operation():
    machine = Machine([0.002])
    window = timing.take_window(machine.prepared(), 5, timing.Limits(least_samples=3, budget_s=0.0), now=machine.now)
    assert window.seconds == pytest.approx((0.002, 0.002, 0.002))
    assert machine.calls == 15
    assert window.stopped_by == "time"


def test_a_window_stops_when_the_interval_is_narrow():
    machine = Machine([0.01])
    limits = timing.Limits(least_samples=4, budget_s=100.0, target_ratio=0.01)
    window = timing.take_window(machine.prepared(), 1, limits, now=machine.now)
    assert window.stopped_by == "interval"
    assert len(window.seconds) == 5  # the first look


def test_a_window_of_wild_samples_runs_until_its_budget():
    machine = Machine([0.01, 0.03] * 500)
    limits = timing.Limits(least_samples=4, budget_s=1.0, target_ratio=1e-9)
    window = timing.take_window(machine.prepared(), 1, limits, now=machine.now)
    assert window.stopped_by == "time"
    assert 1.0 <= sum(window.seconds) < 1.05


def test_least_duration_is_kept():
    machine = Machine([0.01])
    limits = timing.Limits(least_samples=3, least_s=0.5, budget_s=0.0)
    window = timing.take_window(machine.prepared(), 1, limits, now=machine.now)
    assert sum(window.seconds) == pytest.approx(0.5)


def test_its_own_clock_is_used_where_a_point_has_one():
    machine = Machine([0.002], fixed_s=1.0)  # a start of the threads that does not belong to the kernel
    prepared = machine.prepared(timed=lambda count: 0.002 * count)
    assert timing.one_sample(prepared, 4, machine.now) == pytest.approx(0.002)
    assert timing.one_sample(machine.prepared(), 4, machine.now) == pytest.approx(0.252)  # (1 + 4 x 0.002) / 4


def test_the_slope_leaves_out_what_a_dispatch_costs():
    # one dispatch of k operations takes 79 us + k x 40 us: 119 us by the wall for one, 40 us by the slope
    machine = Machine([40e-6], fixed_s=79e-6)
    found = timing.slope(machine.run, now=machine.now)
    assert found is not None
    assert found[0] == pytest.approx(40e-6, rel=1e-6)
    assert found[1] == pytest.approx(79e-6, rel=1e-4)


def test_a_chain_that_does_nothing_has_no_slope():
    machine = Machine([0.0], fixed_s=1e-4)
    assert timing.slope(machine.run, now=machine.now) is None


def test_a_chain_whose_operations_are_long_is_not_timed():
    machine = Machine([0.5])
    # three pairs of one and five operations are 18 of half a second, beyond 2 s: one call to compile, one to see
    assert timing.slope(machine.run, most_s=2.0, now=machine.now) is None
    assert machine.time == pytest.approx(1.0)


def test_a_difference_that_drowns_does_not_stretch_a_chain_to_minutes():
    # chains of 1 and of 5 take the same 50 ms, beyond 64 operations each takes 5 ms: 100,000 of them would be minutes
    at = [0.0]

    def chain(count):
        at[0] += 0.05 if count <= 64 else 0.005 * count

    timing.slope(chain, most_s=1.0, now=lambda: at[0])
    assert at[0] < 3.0


def test_an_empty_call_that_is_long_is_looked_at_a_few_times():
    at, calls = [0.0], []

    def empty():
        calls.append(1)
        at[0] += 0.05

    assert floor_of(empty, now=lambda: at[0]) == pytest.approx(0.05)
    assert at[0] < 1.0  # of 820 calls it would be 41 s
    at[0], calls[:] = 0.0, []

    def quick():
        calls.append(1)
        at[0] += 5e-6

    assert floor_of(quick, now=lambda: at[0]) == pytest.approx(5e-6)
    assert len(calls) == 20 + 40 * 20


def test_outliers_are_marked_and_stay():
    seconds = [1.0, 1.02, 0.98, 1.01, 0.99, 7.0]
    assert timing.outliers(seconds) == (5,)
    assert timing.outliers([1.0, 9.0]) == ()  # two say nothing


def test_the_interval_of_several_processes_holds_their_spread():
    # within each process the samples agree; the processes lie at 0.9, 1.0 and 1.1
    groups = [[0.9] * 5, [1.0] * 5, [1.1] * 5]
    found = interval_of(groups)
    logs = np.log([0.9, 1.0, 1.1])
    # 3 degrees of freedom for 1.75 % between runs, 2 from three processes; Student of 5; one more process than these three
    pooled = math.sqrt((3 * 0.0175**2 + 2 * logs.var(ddof=1)) / 5)
    reach = 2.571 * pooled * math.sqrt(1 + 1 / 3)
    assert found.median == 1.0
    assert found.low == pytest.approx(math.exp(logs.mean() - reach))
    assert found.high == pytest.approx(math.exp(logs.mean() + reach))
    assert "3 processes" in found.holds
    without = interval_of(groups, run_weight=0)
    assert without.high == pytest.approx(math.exp(logs.mean() + 4.303 * logs.std(ddof=1) * math.sqrt(1 + 1 / 3)))


def test_the_median_is_of_all_samples_however_far_away():
    # sorted: 1.0 1.1 1.2 5.0 6.0; without those beyond any filter it would be 1.1
    assert interval_of([[1.0, 5.0], [1.1, 6.0], [1.2]]).median == 1.2


def test_one_process_says_what_its_interval_lacks():
    found = interval_of([[1.0, 1.0, 1.1, 1.0]])
    assert "between processes is not in it" in found.holds


def test_the_interval_covers_the_middle_of_many_runs():
    # Each run: a drift of 1.75 %, five processes shifted by 1 % each, twenty samples with 1 % of noise. The truth is 1.
    rng = np.random.default_rng(5)
    covered = 0
    runs = 120
    for _ in range(runs):
        run = 0.0175 * rng.standard_normal()
        shifts = np.exp(run + 0.01 * rng.standard_normal(5))
        groups = [list(s * np.exp(0.01 * rng.standard_normal(20))) for s in shifts]
        found = interval_of(groups)
        covered += found.low <= 1.0 <= found.high
        assert found.half_ratio < 0.1
    assert 0.90 <= covered / runs <= 0.99
    # samples of one process alone would cover far less: the shift of a process is no noise of its samples
    alone = sum(
        (lambda i: i.low <= 1.0 <= i.high)(
            interval_of([list(np.exp(0.016 * rng.standard_normal()) * np.exp(0.01 * rng.standard_normal(100)))])
        )
        for _ in range(50)
    )
    assert alone / 50 < 0.5


def test_the_interval_over_a_time_covers_a_drift_that_its_processes_saw():
    # A machine at 1.0 in two thirds of its minutes and at 1.13 in the others, wherever it likes: each of 30 processes sees
    # another minute. The middle is that of two thirds: 1.0, shifted by noise of 1 %. All samples count for their process alone.
    rng = np.random.default_rng(7)
    found = []
    for _ in range(200):
        level = np.where(rng.random(30) < 1 / 3, 1.13, 1.0) * np.exp(0.01 * rng.standard_normal(30))
        found.append(interval_over([[x] * n for x, n in zip(level, rng.integers(1, 30, 30), strict=True)], 300.0))
    middle = float(
        np.median(np.where(rng.random(100_000) < 1 / 3, 1.13, 1.0) * np.exp(0.01 * rng.standard_normal(100_000)))
    )
    assert 0.90 <= sum(i.low <= middle <= i.high for i in found) / len(found) <= 0.99
    assert "30 processes" in found[0].holds
    # a restless minute that gave a hundred samples counts like any other
    assert interval_over([[1.0]] * 9 + [[2.0] * 100] * 2, 60.0).median == 1.0


def test_few_processes_are_not_called_a_spread():
    groups = [[1.0, 1.0], [1.1, 1.1], [0.9, 0.9]]
    assert interval_over(groups, 60.0) == interval_of(groups)


@pytest.mark.parametrize(("degrees", "quantile"), [(1, 12.706), (4, 2.776), (30, 2.042), (60, 2.000), (120, 1.980)])
def test_students_quantiles(degrees, quantile):
    assert t975(degrees) == pytest.approx(quantile, abs=2e-3)
