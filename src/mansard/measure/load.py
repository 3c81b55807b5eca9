"""How much of the machine others used while a figure was taken."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path
from types import TracebackType

ROOT = Path("/")


def parse_busy_ticks(stat: str) -> tuple[int, int, int]:
    """Return (busy, steal, CPUs) of the text of /proc/stat; busy is everything but idle and iowait [ticks].

    >>> parse_busy_ticks("cpu  10 0 5 100 7 0 1 2 0 0\\ncpu0 10 0 5 100 7 0 1 2 0 0\\nintr 3")
    (18, 2, 1)
    """
    lines = stat.splitlines()
    fields = [int(x) for x in lines[0].split()[1:9]]
    fields += [0] * (8 - len(fields))
    cpus = sum(1 for line in lines[1:] if line.startswith("cpu"))
    return sum(fields) - fields[3] - fields[4], fields[7], max(1, cpus)


class LoadWindow:
    """Foreign load of a window of time, as a context manager.

    `foreign_ratio` is the CPU time that was neither idle nor ours, over all CPU time of the window; `steal_ratio` the
    part the hypervisor took. Ticks are 10 ms, so a window shorter than about a second says little, and a negative
    rounding is cut at 0.

    Source: proc(5), the first line of /proc/stat; getrusage(2) for the own part.
    """

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root
        self.foreign_ratio = 0.0
        self.steal_ratio = 0.0
        self.wall_s = 0.0

    def _look(self) -> tuple[int, int, int, float, float]:
        busy, steal, cpus = parse_busy_ticks((self._root / "proc/stat").read_text(encoding="utf-8"))
        own = 0.0
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
            usage = resource.getrusage(who)
            own += usage.ru_utime + usage.ru_stime
        return busy, steal, cpus, own, time.monotonic()

    def __enter__(self) -> LoadWindow:
        self._before = self._look()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        after = self._look()
        tick_s = 1.0 / os.sysconf("SC_CLK_TCK")
        self.wall_s = after[4] - self._before[4]
        if self.wall_s <= 0.0:
            return
        whole_s = self.wall_s * after[2]
        foreign_s = (after[0] - self._before[0]) * tick_s - (after[3] - self._before[3])
        self.foreign_ratio = min(1.0, max(0.0, foreign_s / whole_s))
        self.steal_ratio = min(1.0, max(0.0, (after[1] - self._before[1]) * tick_s / whole_s))
