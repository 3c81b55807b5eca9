"""What bounds a window of a recording: memory that events may have taken, and no more."""

from __future__ import annotations

import pytest

from mansard.trace.recorders import growth
from mansard.trace.recorders.growth import Growth

MIB = 1 << 20


@pytest.fixture
def grown(monkeypatch: pytest.MonkeyPatch) -> Growth:
    monkeypatch.setattr(growth, "resident_bytes", lambda: 100 * MIB)
    monkeypatch.setattr(growth, "spare_bytes", lambda: 0)
    found = Growth()
    found.begin()
    return found


def test_small_steps_add_up_and_leaps_do_not_count(grown: Growth) -> None:
    for at, resident in enumerate([104, 105, 205, 208, 150, 151]):  # 4, 1, leap of 100, 3, back by 58, 1
        grown.look(at * 1_000_000_000, resident * MIB)
    assert grown.small_bytes == 9 * MIB


def test_what_a_compiler_took_is_taken_back(grown: Growth) -> None:
    for second, resident in enumerate([101, 103, 106, 110]):  # 1, 2, 3, 4 MiB in seconds 0 to 3
        grown.look(second * 1_000_000_000, resident * MIB)
    grown.set_aside(900_000_000, 2_000_000_000)  # the looks at 1 s and 2 s
    assert grown.small_bytes == 5 * MIB
    grown.look(4_000_000_000, 112 * MIB)
    assert grown.small_bytes == 7 * MIB


def test_a_look_that_came_just_after_the_compiler_belongs_to_it(grown: Growth) -> None:
    grown.look(2_020_000_000, 105 * MIB)
    grown.set_aside(1_000_000_000, 2_000_000_000)
    assert grown.small_bytes == 0


def test_too_much_is_four_times_what_events_may_take_where_little_is_free(
    grown: Growth, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 250 000 events of 512 B are 128 MB; four times that is 512 MB
    monkeypatch.setattr(growth, "resident_bytes", lambda: 100 * MIB + 512_000_000)
    assert not grown.too_much
    assert grown.full  # twice, 256 MB
    monkeypatch.setattr(growth, "resident_bytes", lambda: 100 * MIB + 512_000_001)
    assert grown.too_much
