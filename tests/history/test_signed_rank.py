"""Signed ranks against a count of all arrangements, and the plan that a pilot makes."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from mansard.history.signed_rank import at_least, centre_of, differences_needed
from mansard.history.statistics import ratio_of_pairs


@pytest.mark.parametrize("n", [1, 4, 9])
def test_the_distribution_is_that_of_all_arrangements(n: int) -> None:
    sums = [sum(r + 1 for r in range(n) if signs[r]) for signs in itertools.product((0, 1), repeat=n)]
    for total in range(n * (n + 1) // 2 + 1):
        assert at_least(total, n) * 2**n == pytest.approx(sum(s >= total for s in sums))


def test_many_differences_are_taken_as_normal() -> None:
    # 101: mean 101 x 102 / 4 = 2575.5, variance 101 x 102 x 203 / 24 = 87137.75, so 3000 is (2999.5 - 2575.5) / 295.19 = 1.4364 away.
    assert at_least(3000, 101) == pytest.approx(0.0754, abs=2e-4)


def test_the_interval_of_ten_by_hand() -> None:
    # Of the 1024 arrangements of ten ranks 25 have a sum of 8 or less (the table of Wilcoxon: 8 at 2.5 %), and 33 one of 9 or less: eight
    # of the 55 means are left out on either side, and 1 - 2 x 25 / 1024 = 95.1 % is the confidence.
    assert at_least(55 - 8, 10) * 1024 == pytest.approx(25)
    assert at_least(55 - 9, 10) * 1024 == pytest.approx(33)
    x = [0.0, 1.0, 3.0, 6.0, 10.0, 15.0, 21.0, 28.0, 36.0, 45.0]
    means = sorted((a + b) / 2 for a, b in itertools.combinations_with_replacement(x, 2))
    c = centre_of(x)
    assert (c.low, c.high, c.value) == (means[8], means[-9], means[27])
    # A sum of ranks counts the means above: above 0.25 are all but 0, so all ranks but that of the least are positive: 55 - 1.
    assert c.p_above(0.25) == pytest.approx(2 / 1024)
    assert c.p_below(44.0) == pytest.approx(2 / 1024)
    assert c.p_above(0.0) == pytest.approx(2 / 1024)  # the tie with 0 counts against it
    with pytest.raises(ValueError, match="at least 6"):
        centre_of(x[:5])


def test_one_pair_of_processes_far_out_decides_nothing() -> None:
    # Eleven pairs within 1 %, one in which the machine stood still: it is in 12 of the 78 means, and 13 are left out on either side
    # (Wilcoxon's table: 13 for twelve at 2.5 %). The mean would be 12 %, its interval from -14 to +37 %.
    logs = [0.0, 0.002, -0.003, 0.005, -0.005, 0.001, -0.002, 0.004, -0.001, 1.4, 0.003, -0.004]
    c = centre_of(logs)
    assert -0.005 < c.low < c.high < 0.005
    r = ratio_of_pairs([[1.0] * 4] * 12, [[math.exp(x)] * 4 for x in logs], tolerance=0.02)
    assert (r.low, r.high) == (pytest.approx(math.exp(c.low)), pytest.approx(math.exp(c.high)))
    assert r.p_changed == 1.0


def test_what_wanders_within_pairs_is_counted_once() -> None:
    # Six pairs whose medians agree: the rounds differ by 30 %, and nothing of that is left in the centres.
    a, b = [[1.0] * 5] * 6, [[0.7, 0.8, 1.05, 1.3, 1.4]] * 6
    r = ratio_of_pairs(a, b, tolerance=0.02)
    assert (r.low, r.value, r.high) == (pytest.approx(1.05), pytest.approx(1.05), pytest.approx(1.05))


def test_equal_sides_are_called_no_more_often_than_said() -> None:
    # Heavy tails (Cauchy), ten differences each: 2 x 25 / 1024 = 4.9 % of 4000 intervals miss 0, and 4.9 +- 1.4 % are four deviations.
    rng = np.random.default_rng(11)
    missed = 0
    for x in rng.standard_cauchy((4000, 10)):
        c = centre_of(x)
        missed += not c.low <= 0.0 <= c.high
    assert missed / 4000 == pytest.approx(0.0488, abs=0.014)


def test_the_plan_depends_on_the_spread_alone() -> None:
    pilot = np.array([-3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    assert differences_needed(pilot, 1.25, 100) == differences_needed(pilot + 0.5, 1.25, 100) == 63
    assert differences_needed(pilot, 1.25, 40) == 40
    assert differences_needed(pilot / 100, 1.25, 40) == 10  # narrow enough: those that are there
    assert differences_needed(pilot[:5], 1.25, 40) == 5  # too few to tell


def test_two_stages_miss_no_more_often_than_one() -> None:
    # A pilot of ten, then what it asks for, up to forty; as above, but the number of differences follows the spread of the first.
    rng = np.random.default_rng(12)
    missed, sizes = 0, set()
    for x in rng.standard_t(3, (1500, 40)):
        n = differences_needed(x[:10], 0.6, 40)
        sizes.add(n)
        c = centre_of(x[:n])
        missed += not c.low <= 0.0 <= c.high
    assert len(sizes) > 10
    assert missed / 1500 <= 0.05 + 0.017  # three deviations of 5 % of 1500
