"""Sweeps: `end` once and last, growing, never cut; endless ones refused."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mansard.measure.config.sweeps import SweepError, product, product_size, range_values

WHOLE = st.integers(min_value=1, max_value=10_000)


@given(start=WHOLE, more=st.integers(0, 100_000), step=st.integers(2, 10))
def test_multiplied_ranges_grow_and_end_once(start: int, more: int, step: int) -> None:
    end = start + more
    values, added = range_values(start, end, multiplier=step)
    assert values[0] == start
    assert values[-1] == end
    assert values.count(end) == 1
    assert all(a < b for a, b in itertools.pairwise(values))
    assert all(b == a * step for a, b in itertools.pairwise(values[:-1]))
    # The number of steps that fit: the largest e with start * step**e <= end, worked out by dividing.
    fit, left = 0, end // start
    while left >= step:
        left //= step
        fit += 1
    assert added == (start * step**fit != end)
    assert len(values) == fit + 1 + added


@given(start=st.integers(-1000, 1000), more=st.integers(0, 5000), step=st.integers(1, 700))
def test_added_ranges_grow_and_end_once(start: int, more: int, step: int) -> None:
    values, added = range_values(start, start + more, increase_by=step)
    assert values == (*range(start, start + more + 1, step), *([start + more] if more % step else []))
    assert added == bool(more % step)


@given(count=st.integers(1, 200), step=st.floats(1e-3, 1e3), start=st.floats(-1e3, 1e3))
def test_float_steps_do_not_meet_end_twice(count: int, step: float, start: float) -> None:
    end = start + count * step
    values, _ = range_values(start, end, increase_by=step)
    assert values[-1] == end
    assert len(values) == count + 1
    assert all(a < b for a, b in itertools.pairwise(values))


@given(sizes=st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_the_product_is_whole_and_its_last_key_fastest(sizes: list[int]) -> None:
    axes = {f"p{i}": list(range(n)) for i, n in enumerate(sizes)}
    rows = list(product(axes))
    assert len(rows) == product_size(axes) == math.prod(sizes)
    assert len({tuple(r.values()) for r in rows}) == len(rows)
    assert [tuple(r.values()) for r in rows] == sorted(tuple(r.values()) for r in rows)
    if sizes[-1] > 1:
        assert rows[1][f"p{len(sizes) - 1}"] == 1


def test_a_product_beyond_a_thousand_is_not_cut() -> None:
    # The published suite stops at 1000 combinations; 11 * 101 = 1111.
    assert len(list(product({"m": range(11), "n": range(101)}))) == 1111


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"multiplier": 1}, "never ends"),
        ({"multiplier": 0.5}, "never ends"),
        ({"increase_by": 0}, "never ends"),
        ({"increase_by": -1}, "never ends"),
        ({}, "exactly one"),
        ({"multiplier": 2, "increase_by": 1}, "exactly one"),
        ({"multiplier": float("nan")}, "finite"),
        ({"multiplier": True}, "finite"),
        ({"increase_by": "1"}, "finite"),
    ],
)
def test_endless_steps_are_refused(parts: dict[str, object], says: str) -> None:
    with pytest.raises(SweepError, match=says):
        range_values(1, 8, **parts)


def test_a_zero_start_does_not_grow_by_a_factor() -> None:
    with pytest.raises(SweepError, match="does not grow"):
        range_values(0, 8, multiplier=2)


def test_an_end_below_the_start_has_no_values() -> None:
    with pytest.raises(SweepError, match="below start"):
        range_values(8, 1, multiplier=2)


def test_a_step_lost_in_rounding_and_a_range_too_long_are_refused() -> None:
    with pytest.raises(SweepError, match="rounding"):
        range_values(1e17, 2e17, increase_by=1.0)
    with pytest.raises(SweepError, match="more than"):
        range_values(1, 10**12, increase_by=1)
