"""Idle intervals by cause: they are disjoint, and as long as the figures of the summary say."""

import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mansard.core.intervals import difference, intersection, merge
from mansard.trace.idle import Idles, idle_of
from mansard.trace.occupancy import device_times
from mansard.trace.open import open_trace
from mansard.trace.timeline import Device, Kind, Timeline, events

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


def _profile(path, launched_us):
    """Two kernels of 10 us, at 100 us and 1,000 us, and a wait of the host from 50 us until 1,015 us on another thread."""

    def event(category, name, thread, start, length, **args):
        return {
            "ph": "X",
            "cat": category,
            "name": name,
            "pid": 1,
            "tid": thread,
            "ts": start,
            "dur": length,
            "args": args,
        }

    def kernel(start, correlation):
        return {**event("kernel", "k", 7, start, 10, device=0, stream=7, correlation=correlation), "pid": 0}

    events = [
        event("cuda_runtime", "cudaLaunchKernel", 1, 20, 5, correlation=1),
        event("cuda_runtime", "cudaLaunchKernel", 1, launched_us, 5, correlation=2),
        event("cuda_runtime", "cudaDeviceSynchronize", 2, 50, 965, correlation=3),
        kernel(100, 1),
        kernel(1000, 2),
    ]
    path.write_text(
        json.dumps({"deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}], "traceEvents": events})
    )
    return open_trace(path)


def test_a_wait_is_no_cause_of_idle_time_while_work_is_queued(tmp_path):
    # The second kernel is launched at 30 us and starts at 1,000 us: from 110 to 1,000 us the device is empty with work queued,
    # so that nothing the host waits for keeps it from working.
    queued = _profile(tmp_path / "queued.json", 30)
    assert idle_of(queued, 0).host_sync.length_ns == 0
    assert idle_of(queued, 0).unexplained.length_ns == 890_000
    assert device_times(queued)[0].idle_ns == {
        "copy_only": 0, "host_sync": 0, "input_wait": 0, "launch_gap": 0, "unexplained": 890_000,
    }  # fmt: skip


def test_a_wait_is_the_cause_of_idle_time_where_the_launch_comes_after_it(tmp_path):
    late = _profile(tmp_path / "late.json", 990)
    assert idle_of(late, 0).host_sync.length_ns == 890_000
    assert device_times(late)[0].idle_ns["host_sync"] == 890_000


def test_a_step_that_goes_on_after_its_last_work_waits_for_the_host(tmp_path):
    # The last kernel ends at 1,010 us and the step at 1,500 us; the wait ends at 1,015 us, and then nothing is queued.
    late = _profile(tmp_path / "late.json", 990)
    alone, marked = idle_of(late, 0), idle_of(late, 0, window_ns=(100_000, 1_500_000))
    assert (alone.late.length_ns, alone.unexplained.length_ns) == (0, 0)
    assert marked.late.length_ns == 485_000  # 1,015 to 1,500 us
    assert marked.host_sync.length_ns == 895_000  # 110 to 1,000 us and 1,010 to 1,015 us
    assert marked.unexplained.length_ns == 0
    # Before the first kernel, launched at 20 us and so queued from 25 us on, the step's start is a launch gap as before.
    early = idle_of(late, 0, window_ns=(0, 1_010_000))
    assert (
        early.unexplained.length_ns + early.late.length_ns + early.queued.length_ns + early.host_sync.length_ns
        == 990_000
    )


def test_what_is_asked_twice_is_worked_out_once() -> None:
    start = np.array([0, 100, 300], dtype=np.int64)
    table = events(start_ns=start, end_ns=start + 50, name=0, device=0, process=0)
    timeline = Timeline(source="t", format="nsys", version="", tables={Kind.KERNEL: table}, names=("k",),
                        devices=(Device(number=0, name="x"),))  # fmt: skip
    idles = Idles(timeline)
    first = idles.of(0)
    assert idles.of(0) is first
    # gaps 50..100 and 150..300; nothing tells why
    assert first.unexplained.length_ns == 50 + 150
    wider = idles.of(0, (-20, 400))
    assert wider.unexplained.length_ns == 20 + 50 + 150 + 50
    assert idle_of(timeline, 0, window_ns=(-20, 400)).unexplained.length_ns == wider.unexplained.length_ns
