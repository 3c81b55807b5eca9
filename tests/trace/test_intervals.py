"""Interval arithmetic against a brute-force bitmap."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from mansard.core.intervals import EMPTY, IntervalSet, in_flight, merge, overlap_ns, union, union_ns

LAST = 60
pairs = st.lists(st.tuples(st.integers(0, LAST), st.integers(-3, 25)), max_size=14)


def arrays(items: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    start = np.array([s for s, _ in items], dtype=np.int64)
    return start, np.minimum(start + np.array([n for _, n in items], dtype=np.int64), LAST)


def bitmap(items: list[tuple[int, int]]) -> np.ndarray:
    """How many intervals cover each nanosecond; empty and negative ones cover none."""
    cells = np.zeros(LAST, dtype=np.int64)
    for start, end in zip(*arrays(items), strict=True):
        cells[start : max(start, end)] += 1
    return cells


@given(pairs)
@settings(max_examples=300, deadline=None)
def test_union_is_the_bitmap(items: list[tuple[int, int]]) -> None:
    cells = bitmap(items)
    merged = merge(*arrays(items))
    assert merged.length_ns == int((cells > 0).sum()) == union_ns(*arrays(items))
    assert in_flight(*arrays(items)) == int(cells.max())
    covered = np.zeros(LAST, dtype=bool)
    for a, b in zip(merged.start_ns, merged.end_ns, strict=True):
        assert a < b
        covered[a:b] = True
    assert (covered == (cells > 0)).all()
    assert (merged.start_ns[1:] > merged.end_ns[:-1]).all(), "pieces neither overlap nor touch"


@given(pairs, pairs)
@settings(max_examples=300, deadline=None)
def test_overlap_and_union_of_two_sets(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    left, right = merge(*arrays(a)), merge(*arrays(b))
    both = (bitmap(a) > 0) & (bitmap(b) > 0)
    either = (bitmap(a) > 0) | (bitmap(b) > 0)
    assert overlap_ns(left, right) == overlap_ns(right, left) == int(both.sum())
    assert union([left, right]).length_ns == int(either.sum())
    assert left.length_ns + right.length_ns - overlap_ns(left, right) == union([left, right]).length_ns


@given(pairs, pairs)
@settings(max_examples=200, deadline=None)
def test_covered_part_of_each_interval(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    held = merge(*arrays(a))
    start, end = arrays(b)
    end = np.maximum(start, end)
    expected = [int((bitmap(a)[s:e] > 0).sum()) for s, e in zip(start, end, strict=True)]
    assert held.covered_ns(start, end).tolist() == expected


@given(pairs, st.integers(0, LAST), st.integers(0, LAST))
@settings(max_examples=200, deadline=None)
def test_clipping_to_a_window(items: list[tuple[int, int]], low: int, high: int) -> None:
    inside = (bitmap(items) > 0)[low:high]
    assert merge(*arrays(items)).clipped(low, high).length_ns == int(inside.sum())


@given(pairs)
@settings(max_examples=200, deadline=None)
def test_busy_and_gaps_are_the_span(items: list[tuple[int, int]]) -> None:
    merged = merge(*arrays(items))
    assert merged.length_ns + merged.gaps().length_ns == merged.span_ns


def test_nothing_is_nothing() -> None:
    assert EMPTY.length_ns == EMPTY.span_ns == len(EMPTY.gaps()) == union([]).length_ns == 0
    assert overlap_ns(EMPTY, merge(np.array([0]), np.array([5]))) == 0
    assert isinstance(EMPTY.clipped(0, 5), IntervalSet)


def test_zero_length_event_adds_nothing() -> None:
    # D36: kernels [0, 100), [0, 100), [50, 150) and an empty one at 150: busy 150 us of the two streams.
    start, end = np.array([0, 0, 50, 150]), np.array([100, 100, 150, 150])
    assert union_ns(start, end) == 150
