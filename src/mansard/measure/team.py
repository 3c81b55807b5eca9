"""A team of pinned threads that run compiled kernels side by side."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.core.errors import UndecidedError

Times = npt.NDArray[np.int64]


def split_evenly(count: int, parts: int) -> list[tuple[int, int]]:
    """Return (start, length) of `parts` consecutive pieces that cover `count` items without overlap.

    >>> split_evenly(10, 3)
    [(0, 4), (4, 3), (7, 3)]
    """
    base, extra = divmod(count, parts)
    lengths = [base + (1 if i < extra else 0) for i in range(parts)]
    return [(sum(lengths[:i]), n) for i, n in enumerate(lengths)]


def spans_s(times: Sequence[Times]) -> npt.NDArray[np.float64]:
    """Return the wall time of each sample [s]: last end minus first start over the team.

    Args:
        times: Per thread an array of shape (samples, 2) with start and end [ns].
    """
    stacked = np.stack(times)
    wall: npt.NDArray[np.float64] = (stacked[:, :, 1].max(axis=0) - stacked[:, :, 0].min(axis=0)) * 1e-9
    return wall


class Team:
    """Threads pinned one to a CPU, kept for many runs. Use it as a context manager.

    Args:
        cpus: The CPUs, one thread each.
    """

    def __init__(self, cpus: Sequence[int]) -> None:
        self.cpus = tuple(cpus)
        self._work: list[queue.SimpleQueue[Callable[[], Any] | None]] = [queue.SimpleQueue() for _ in cpus]
        self._done: queue.SimpleQueue[tuple[int, Any, BaseException | None]] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._serve, args=(i,), daemon=True) for i in range(len(self.cpus))]
        for thread in self._threads:
            thread.start()

    def __len__(self) -> int:
        return len(self.cpus)

    def _serve(self, index: int) -> None:
        os.sched_setaffinity(0, {self.cpus[index]})  # of this thread alone
        while (job := self._work[index].get()) is not None:
            try:
                self._done.put((index, job(), None))
            except BaseException as error:  # handed to the caller of `each`
                self._done.put((index, None, error))

    def each(self, work: Callable[[int], Any]) -> list[Any]:
        """Run `work(index)` on every thread at once and return the results in order."""
        for index, inbox in enumerate(self._work):
            inbox.put(lambda i=index: work(i))  # type: ignore[misc]
        results: list[Any] = [None] * len(self)
        failure: BaseException | None = None
        for _ in self._work:
            index, result, error = self._done.get()
            results[index] = result
            failure = failure or error
        if failure is not None:
            raise failure
        return results

    def sample(
        self, kernel: Callable[..., Any], arguments: Callable[[int], tuple[Any, ...]], samples: int
    ) -> tuple[Any, Any]:
        """Run a kernel on every thread, `samples` times behind a barrier each.

        Args:
            kernel: `kernel(flag, threads, times, *arguments)`.
            arguments: The further arguments of a thread.
            samples: How many samples.

        Returns: the wall times [s] of shape (samples,), and what the kernels returned.

        Raises:
            UndecidedError: a thread waited at the barrier until its limit.
        """
        flag = np.zeros(16, dtype=np.int64)
        address = int(flag.ctypes.data)
        times = [np.zeros((samples, 2), dtype=np.int64) for _ in self.cpus]
        results = self.each(lambda i: kernel(address, len(self), times[i], *arguments(i)))
        if any(int(t.min()) <= 0 for t in times):
            raise UndecidedError(
                f"a team of {len(self)} threads did not come together within the limit of the barrier",
                hint="the machine is busy, or fewer CPUs are free than the affinity mask says; use --threads",
            )
        return spans_s(times), results

    def __enter__(self) -> Team:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for inbox in self._work:
            inbox.put(None)
        for thread in self._threads:
            thread.join(timeout=10.0)
