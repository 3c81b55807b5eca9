"""Idle intervals by cause: they are disjoint, and as long as the figures of the summary say."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mansard.core.intervals import difference, intersection, merge
from mansard.trace.idle import idle_of
from mansard.trace.occupancy import device_times
from mansard.trace.open import open_trace

_spans = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9)), max_size=12)


def _set(spans):
    start = np.array([s for s, _ in spans], dtype=np.int64)
    return merge(start, start + np.array([n for _, n in spans], dtype=np.int64))


def _bits(intervals):
    return {t for a, b in zip(intervals.start_ns.tolist(), intervals.end_ns.tolist(), strict=True) for t in range(a, b)}


@given(_spans, _spans)
def test_intersection_and_difference_agree_with_sets_of_instants(one, other):
    a, b = _set(one), _set(other)
    both, only = intersection(a, b), difference(a, b)
    assert _bits(both) == _bits(a) & _bits(b)
    assert _bits(only) == _bits(a) - _bits(b)
    for found in (both, only):
        assert (found.end_ns > found.start_ns).all()
        assert (found.start_ns[1:] >= found.end_ns[:-1]).all()


def test_intervals_are_as_long_as_the_summary_says(shared):
    seen = 0
    for path in sorted((shared / "data/traces").rglob("*")):
        if path.suffix not in (".sqlite", ".gz", ".json") or path.stat().st_size > 30_000_000:
            continue
        try:
            timeline = open_trace(path)
        except Exception:
            continue  # damaged and foreign files have tests of their own
        for time in device_times(timeline):
            if time.gpu_busy_ns != time.busy_ns or not time.kernel_count:
                continue  # with copies at the edges the two spans differ, and the causes with them
            idle = idle_of(timeline, time.device)
            assert idle.host_sync.length_ns == time.idle_ns["host_sync"]
            assert idle.input_wait.length_ns == time.idle_ns["input_wait"]
            assert idle.late.length_ns == time.late_ns
            assert idle.late.length_ns + idle.queued.length_ns == time.idle_ns["launch_gap"]
            assert idle.unexplained.length_ns == time.idle_ns["unexplained"]
            seen += 1
    assert seen >= 3
