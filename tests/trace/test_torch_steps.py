"""Steps of a recording: marks, traced and untraced loops, annotations, periodicity, warm-up, unprofiled times."""

import numpy as np
import pytest

from mansard.trace.steps import LaneOrder, find_steps

MS = 1_000_000


def window(kind, start, end, *, faults=0, at_mark=False):
    return {
        "kind": kind,
        "start_ns": start,
        "end_ns": end,
        "directory": "w",
        "files": {},
        "complete": True,
        "at_mark": at_mark,
        "rusage_start": {"minor_faults": 0},
        "rusage_end": {"minor_faults": faults},
    }


def recording(windows, marks=(), loops=(), tracing=(), rusage=()):
    return {
        "windows": list(windows),
        "marks": list(marks),
        "loops": list(loops),
        "tracing": list(tracing),
        "rusage": list(rusage),
    }


def lane(starts, keys=None, length=MS // 10):
    start = np.array(starts, dtype=np.int64)
    key = np.zeros(start.size, np.int64) if keys is None else np.array(keys, dtype=np.int64)
    return LaneOrder(start_ns=start, end_ns=start + length, key=key)


def optimizer(times, number=0):
    return [(t, f"optimizer#{number}", None, 0) for t in times]


LOOP = {"file": "/somewhere/train.py", "line": 31, "counted": True}


def test_optimizer_marks_make_steps_inside_profiled_windows_only():
    meta = recording(
        [window("profiled", 0, 45 * MS), window("unprofiled", 50 * MS, 90 * MS, at_mark=True)],
        optimizer([10 * MS, 20 * MS, 30 * MS, 40 * MS, 49 * MS, 58 * MS, 66 * MS, 90 * MS]),
    )
    found = find_steps(meta, [], lane([]))
    assert found.steps.start_ns.tolist() == [10 * MS, 20 * MS, 30 * MS]
    assert found.steps.end_ns.tolist() == [20 * MS, 30 * MS, 40 * MS]
    assert (found.steps.source, found.steps.skipped) == ("optimizer", 1)  # the first step ends at the first mark
    # The window opens at the mark of 49 ms, 1 ms late: 50 to 58, 58 to 66, 66 to 90.
    assert found.unprofiled_step_s == pytest.approx((0.008, 0.008, 0.024))


def test_two_optimizers_in_each_iteration_are_one_step():
    marks = sorted(optimizer([10 * MS, 20 * MS, 30 * MS, 40 * MS]) + optimizer([12 * MS, 22 * MS, 32 * MS, 42 * MS], 1))
    found = find_steps(recording([window("profiled", 0, 50 * MS)], marks), [], lane([]))
    assert found.steps.start_ns.tolist() == [12 * MS, 22 * MS, 32 * MS]


def test_warm_up_and_compiling_steps_are_left_out_and_counted():
    times = [0, 90, 100, 110, 120, 150, 160]  # 90 ms of warm-up, then 10 ms, one of 30 ms that compiles
    meta = recording([window("profiled", -1, 200 * MS)], optimizer([t * MS for t in times]))
    found = find_steps(meta, [], lane([]), [(130 * MS, 140 * MS)])
    assert [int(s) // MS for s in found.steps.start_ns] == [90, 100, 110, 150]
    assert found.steps.skipped == 3  # before the first mark, the long one, the one that compiles


def test_a_long_step_later_on_is_kept():
    times = [0, 10, 20, 30, 40, 140, 150]
    meta = recording([window("profiled", -1, 200 * MS)], optimizer([t * MS for t in times]))
    assert find_steps(meta, [], lane([])).steps.count == 6


def test_annotated_steps_win_over_the_optimizer():
    spans = [(f"ProfilerStep#{i}", i * 10 * MS, (i * 10 + 9) * MS) for i in range(4)]
    others = [("forward", i * 10 * MS, (i * 10 + 3) * MS) for i in range(4)]
    meta = recording([window("profiled", 0, 50 * MS)], optimizer([8 * MS, 18 * MS, 28 * MS]))
    found = find_steps(meta, spans + others, lane([]))
    assert found.steps.source == "marker"
    assert found.steps.start_ns.tolist() == [0, 10 * MS, 20 * MS, 30 * MS]
    assert found.steps.end_ns.tolist() == [10 * MS, 20 * MS, 30 * MS, 39 * MS]  # to the next, the last to its end


def test_names_of_parts_are_not_steps():
    spans = [
        (name, i * 10 * MS + k * MS, i * 10 * MS + (k + 1) * MS)
        for i in range(5)
        for k, name in enumerate(["forward", "backward", "Optimizer.step#SGD.step"])
    ]
    found = find_steps(recording([window("profiled", 0, 50 * MS)]), spans, lane([]))
    assert found.steps.source == "none"


def test_a_traced_loop_gives_its_passes():
    marks = [(t * MS, "loop#0", i, 1) for i, t in enumerate([10, 20, 30, 40])]
    meta = recording([window("profiled", 0, 45 * MS)], marks, [LOOP], [[5 * MS, 50 * MS]])
    found = find_steps(meta, [], lane([t * MS for t in (11, 21, 31, 41)]))
    assert [int(s) // MS for s in found.steps.start_ns] == [10, 20, 30]
    assert (found.steps.source, found.steps.note) == ("loop", "one pass of the loop at train.py:31")


def test_passes_of_an_untraced_loop_follow_from_their_operations():
    # Traced for three passes of operations 1 2 2; then untraced, with the same operations, faster: 6 ms a pass.
    starts = [11, 12, 13, 21, 22, 23, 31, 32, 33] + [t for p in range(5) for t in (41 + 6 * p, 42 + 6 * p, 43 + 6 * p)]
    keys = [1, 2, 2] * 8
    marks = [(t * MS, "loop#0", i, 1) for i, t in enumerate([10, 20, 30, 40])]
    meta = recording([window("profiled", 0, 75 * MS)], marks, [LOOP], [[5 * MS, 40 * MS + 1]])
    found = find_steps(meta, [], lane([t * MS for t in starts], keys))
    assert [int(s) // MS for s in found.steps.start_ns] == [41, 47, 53, 59]  # the traced passes are left out
    assert [int(e) // MS for e in found.steps.end_ns] == [47, 53, 59, 65]


def test_counted_rounds_divide_a_window_without_traced_passes():
    marks = [(0, "loop#0", -9, 1), (30 * MS, "loop#0", -4, 2)]  # five rounds in between
    starts = [t for p in range(5) for t in (1 + 6 * p, 2 + 6 * p)]
    meta = recording([window("profiled", 0, 31 * MS, at_mark=True)], marks, [LOOP], [[29 * MS, 30 * MS]])
    found = find_steps(meta, [], lane([t * MS for t in starts], [1, 2] * 5))
    assert [int(s) // MS for s in found.steps.start_ns] == [1, 7, 13, 19]


def test_rounds_with_the_profiler_off_are_counted_by_the_iterator():
    marks = [(t * MS, "loop#0", i, 1) for i, t in enumerate([10, 20, 30, 40])]
    marks += [(100 * MS, "loop#0", 10, 2), (140 * MS, "loop#0", 18, 3)]  # 8 rounds in 40 ms
    meta = recording(
        [window("profiled", 0, 45 * MS), window("unprofiled", 100 * MS, 141 * MS, at_mark=True)],
        marks,
        [LOOP],
        [[5 * MS, 50 * MS]],
        [(100 * MS, 1000, 0, 0), (140 * MS, 1016, 0, 0)],
    )
    found = find_steps(meta, [], lane([t * MS for t in (11, 21, 31, 41)]))
    assert found.unprofiled_step_s == pytest.approx((0.005,))
    assert found.minor_faults_per_step == pytest.approx(2.0)  # 16 faults over 8 rounds


def test_a_loop_without_operations_is_not_the_step():
    marks = [(t * MS, "loop#0", i, 1) for i, t in enumerate([10, 20, 30, 40])]
    meta = recording([window("profiled", 0, 100 * MS)], marks, [LOOP], [[5 * MS, 100 * MS]])
    found = find_steps(meta, [], lane([50 * MS]))
    assert found.steps.source == "none"
    assert [f.code for f in found.findings] == ["no_steps"]


def test_without_any_sign_the_period_of_the_operations_counts():
    starts = [10 * i * MS + k * MS for i in range(5) for k in range(3)]
    found = find_steps(recording([window("profiled", 0, 60 * MS)]), [], lane(starts, [4, 5, 6] * 5))
    assert found.steps.source == "periodicity"
    assert [int(s) // MS for s in found.steps.start_ns] == [0, 10, 20, 30]
    assert [f.code for f in found.findings] == ["steps_by_periodicity"]
