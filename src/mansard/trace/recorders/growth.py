"""How much of the memory that the process takes on may be recorded events: what bounds an open window."""

from __future__ import annotations

from collections import deque

from mansard.trace.recorders.process import resident_bytes, spare_bytes

MAX_EVENTS = 250_000  # per window: stopping and writing costs 7 to 10 us per event (torch 2.13)
MAX_BYTES = 512 * MAX_EVENTS  # of resident memory while the profiler is on; 416 to 516 bytes per event
UNMARKED_BYTES = MAX_BYTES // 2
_LEAP_BYTES = 8 << 20  # memory that events cannot take between two looks
_SPARE_SHARE = 0.25  # of the free memory is the most that may go while a window is open, whatever takes it
_LATE_NS = 50_000_000  # a look may come this long after what it sees


class Growth:
    """Resident memory since a window was opened.

    Events make memory grow little by little, the program's tensors by leaps: leaps are not counted. A compiler also
    grows little by little; its time is known afterwards, and what was counted in it is taken back.
    """

    def __init__(self) -> None:
        self._start = self._last = self._most = 0
        self._looks: deque[tuple[int, int]] = deque(maxlen=4096)
        self.small_bytes = 0

    def begin(self) -> None:
        """A window opens."""
        self._start = self._last = resident_bytes()
        self._most = max(4 * MAX_BYTES, int(_SPARE_SHARE * spare_bytes()))
        self._looks.clear()
        self.small_bytes = 0

    def look(self, now_ns: int, resident: int | None = None) -> None:
        """Take note of what was added since the last look."""
        resident = resident_bytes() if resident is None else resident
        small = small_step(resident - self._last)
        self._last = resident
        if small:
            self._looks.append((now_ns, small))
            self.small_bytes += small

    def set_aside(self, start_ns: int, end_ns: int) -> None:
        """What was added in this interval was no event's."""
        kept = [(t, n) for t, n in self._looks if not start_ns <= t <= end_ns + _LATE_NS]
        self._looks = deque(kept, maxlen=4096)
        self.small_bytes = sum(n for _, n in kept)
        self._last = max(self._last, resident_bytes())

    @property
    def too_much(self) -> bool:
        """Whether so much memory went that the window must close, whatever took it."""
        return resident_bytes() - self._start > self._most

    @property
    def full(self) -> bool:
        """Whether a window opened at a mark has taken twice what its events may take."""
        return resident_bytes() - self._start > 2 * MAX_BYTES


def small_step(grown_bytes: int) -> int:
    """Return growth that events may have caused [B]; a leap or a decrease is the program's.

    >>> small_step(4096), small_step(64 << 20), small_step(-4096)
    (4096, 0, 0)
    """
    return grown_bytes if 0 < grown_bytes <= _LEAP_BYTES else 0
