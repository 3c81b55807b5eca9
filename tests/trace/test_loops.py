"""Loops in bytecode, the order of marks, and progress of `for` loops."""

import io
import itertools
import sys
import time
from itertools import pairwise

import pytest

from mansard.trace.recorders.bytecode import loops_of
from mansard.trace.recorders.loops import LoopFinder, LoopSeries, _patience_s
from mansard.trace.recorders.progress import progress_of
from mansard.trace.recorders.stepcount import closing, steps_between


def lines(function):
    return [loop.line - function.__code__.co_firstlineno for loop in loops_of(function.__code__)]


def test_nested_for_and_while_loops_are_found_outer_first():
    def f(n):
        for _ in range(n):
            k = n
            while k:
                k -= 1
        while True:
            n -= 1
            if n < 0:
                break

    found = lines(f)
    assert found[0] == 1  # the for loop
    assert len(found) == 3
    outer, inner, last = loops_of(f.__code__)
    assert outer.start < inner.start <= inner.end <= outer.end < last.start


def test_a_loop_with_continue_is_one_loop():
    def f(n):
        for i in range(n):
            if i % 2:
                continue
            if i % 3:
                continue
            n += i

    assert lines(f) == [1]


def test_straight_code_and_await_have_no_loop():
    async def f(x):
        return await x

    assert lines(f) == []
    assert loops_of(compile("x = 1\ny = 2", "s", "exec")) == ()


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="frames are read on Python 3.11 alone")
@pytest.mark.parametrize(
    ("make", "step"),
    [
        (lambda: range(10), 1),
        (lambda: list(range(10)), 1),
        (lambda: tuple(range(10)), 1),
        (lambda: enumerate("abcdefghij"), 1),
        (lambda: {i: i for i in range(10)}.items(), 1),
        (lambda: zip(range(10), iter(lambda: 1, 0), strict=False), 1),
        (lambda: map(str, range(10)), 1),
        (lambda: zip(itertools.count(3), "abcdefghij", strict=False), 1),
        (lambda: (i for i in range(10)), 1),
        (lambda: bar(zip(range(10), "abcdefghij", strict=True)), 1),
    ],
)
def test_progress_counts_rounds_without_a_tracer(make, step):
    seen = []

    def run():
        for _ in make():
            if counter:
                seen.append(counter[0].now())

    loop = loops_of(run.__code__)[0]
    counter = []

    def local(frame, event, _):
        if event == "line" and frame.f_lasti in loop.heads and not counter:
            found = progress_of(frame, loop)
            assert found is not None
            counter.append(found)
        return local

    before = sys.gettrace()
    sys.settrace(lambda frame, *_: local if frame.f_code is run.__code__ else None)
    try:
        run()
    finally:
        sys.settrace(before)
    assert len(seen) == 9  # the counter exists from the second round on
    assert [b - a for a, b in pairwise(seen)] == [step] * 8


def bar(iterable):
    n = 0
    for thing in iterable:
        yield thing
        n = n + 1 if n < 100 else 0
        if n > 100:
            print(n)


def sometimes():
    for i in range(5):
        if i % 2:
            yield i


def twice():
    for i in range(5):
        yield i
        yield i


def again():
    for i in range(5):
        while i:
            i -= 1
            yield i


def skipping():
    for i in range(5):
        if i == 3:
            continue
        yield i


def text_lines():
    return io.StringIO("a\nb\nc")


@pytest.mark.parametrize("make", [sometimes, twice, again, skipping, text_lines])
def test_while_loops_and_iterators_that_do_not_tell_have_no_counter(make):
    found = []

    def run():
        for _ in make():
            pass
        k = 5
        while k:
            k -= 1

    def local(frame, event, _):
        for loop in loops_of(run.__code__):
            if event == "line" and frame.f_lasti in loop.heads:
                found.append(progress_of(frame, loop))
        return local

    before = sys.gettrace()
    sys.settrace(lambda frame, *_: local if frame.f_code is run.__code__ else None)
    try:
        run()
    finally:
        sys.settrace(before)
    assert found
    assert set(found) == {None}


def follow(program, rounds):
    """Run a program under the finder until it has marked enough; return (name, line in it) of each mark."""
    marks = []
    finder = LoopFinder(lambda series: marks.append((series.code.co_name, series.loop.line)))
    finder.start(lambda: None)
    try:
        program(lambda: len(marks) >= rounds)
    finally:
        finder.stop()
    return marks


def busy(seconds):
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def test_a_slow_outer_loop_is_given_the_time_for_its_rounds():
    def outer(times_s):
        code = follow.__code__
        series = LoopSeries(code, loops_of(program_of_two_loops.__code__)[0], 0, 0)
        series.times = [round(t * 1e9) for t in times_s]
        return series

    assert _patience_s(None) == 0.8
    assert _patience_s(outer([])) == 0.8  # it has not come round at all: it may hold epochs
    assert _patience_s(outer([0.5])) == 1.6
    assert _patience_s(outer([0.0, 0.1])) == 0.8
    assert _patience_s(outer([0.0, 0.3, 0.6])) == pytest.approx(6 * 0.3)  # five rounds, and one that was cut
    assert _patience_s(outer([0.0, 5.0])) == 8.0


def program_of_two_loops():
    for _ in range(2):
        for _ in range(3):
            pass


@pytest.mark.skipif(sys.gettrace() is not None, reason="another tracer is active")
def test_the_outer_of_two_loops_is_the_step():
    def program(done):
        for _ in range(400):
            for _ in range(20):
                busy(0.0005)
            if done():
                return

    marks = follow(program, 3)
    assert len(marks) >= 3
    assert set(marks) == {("program", program.__code__.co_firstlineno + 1)}
    assert sys.gettrace() is None  # the tracer is gone


@pytest.mark.skipif(sys.gettrace() is not None, reason="another tracer is active")
def test_a_loop_several_calls_deep_is_found():
    def inner(done):
        n = 0
        while not done() and n < 2000:
            busy(0.005)
            n += 1

    def middle(done):
        return inner(done)

    def program(done):
        middle(done)

    marks = follow(program, 3)
    assert len(marks) >= 3
    assert {name for name, _ in marks} == {"inner"}


def test_closing_marks_of_one_and_of_several_optimizers():
    assert closing([]) == []
    assert closing(["o#0"] * 4) == [0, 1, 2, 3]
    assert closing(["o#0", "o#1"] * 3) == [1, 3, 5]
    # five critic steps, then one of the generator: the step ends with the generator's
    assert closing((["c"] * 5 + ["g"]) * 2) == [5, 11]
    # nothing repeats: the rarest source with three marks decides
    assert closing(["a", "a", "b", "a", "b", "a", "a", "a", "b"]) == [2, 4, 8]


def test_steps_between_marks():
    assert steps_between((0, "loop#0", 3, 1), (5, "loop#0", 4, 1), False) == 1
    assert steps_between((0, "loop#0", 3, 1), (5, "loop#0", 9, 2), False) is None  # untraced rounds in between
    assert steps_between((0, "loop#0", -9, 1), (5, "loop#0", -2, 2), True) == 7  # the iterator tells
