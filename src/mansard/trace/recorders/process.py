"""Facts about the recorded process itself."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import resource
import signal
import threading
import time
from typing import Any


def replace_handler(number: int, handler: Any) -> Any:
    """Install a handler and return the one before; None where that is not possible or not ours to do."""
    if threading.current_thread() is not threading.main_thread():
        return None
    before = signal.getsignal(number)
    if before is None or before is signal.SIG_IGN:
        return None
    signal.signal(number, handler)
    return before


def usage() -> dict[str, float]:
    """Return what the kernel has counted for this process."""
    counted = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "minor_faults": counted.ru_minflt,
        "major_faults": counted.ru_majflt,
        "user_s": counted.ru_utime,
        "system_s": counted.ru_stime,
        "voluntary_switches": counted.ru_nvcsw,
        "involuntary_switches": counted.ru_nivcsw,
    }


def resident_bytes() -> int:
    """Return the resident memory of this process [B]; 0 where the system does not tell."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return 0


def spare_bytes() -> int:
    """Return the memory that is free for new allocations [B]; 0 where the system does not tell."""
    try:
        with open("/proc/meminfo", "rb") as file:
            line = next(line for line in file if line.startswith(b"MemAvailable:"))
        return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError, StopIteration):
        return 0


class DefaultWhileForking:
    """Gives a signal its default action while the process forks, for as long as our handler stands.

    A forked child inherits the handler, and Python clears signals that arrive before the child has set itself up: a
    worker that is terminated right after its start would never notice. With the default action it ends at once, as it
    would without us.

    Args:
        number: The signal.
        handler: Our Python handler; where the program has put its own in place, nothing is done.
    """

    _ROOM = 1024  # more than a `struct sigaction` takes on any system

    def __init__(self, number: int, handler: Any) -> None:
        self._number, self._handler = number, handler
        self._kept = ctypes.create_string_buffer(self._ROOM)
        self._changed = False
        self._libc = ctypes.CDLL(None)

    def install(self) -> None:
        """Hook into forks of this process."""
        os.register_at_fork(before=self._before, after_in_parent=self._after)

    def _before(self) -> None:
        with contextlib.suppress(Exception):
            if signal.getsignal(self._number) is self._handler:
                default = ctypes.create_string_buffer(self._ROOM)  # zeros: the default action, no flags
                self._changed = self._libc.sigaction(self._number, default, self._kept) == 0

    def _after(self) -> None:
        with contextlib.suppress(Exception):
            if self._changed:
                self._changed = False
                self._libc.sigaction(self._number, self._kept, None)


def leave_without_destructors() -> None:
    """In a forked child: end without the C++ destructors that were registered before the fork.

    Kineto keeps a thread that waits on a condition variable. The thread is gone in the child, its registration as a
    waiter is not, and the destructor of that variable waits for it for ever (torch 2.13, glibc). What Python and C do at
    exit (`atexit`, flushing) and what the child itself registers later is still done; the status is kept.

    Source: on_exit(3): functions run in reverse order and get the status, which is the argument of `_exit`.
    """
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "on_exit"):  # a C library that has no such function: nothing can be done
        return
    libc.on_exit.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
    for function in (libc._exit, libc.fcloseall):  # the last one runs first
        libc.on_exit(ctypes.cast(function, ctypes.c_void_p), None)


def unmapping_s_per_byte(size: int = 64 << 20) -> float:
    """Return what giving touched memory back to the system costs in this process [s/B].

    A large result that goes out of use is unmapped at once, in the program's own thread between two operations.
    """
    best = float("inf")
    for _ in range(3):
        area = mmap.mmap(-1, size)
        for offset in range(0, size, mmap.PAGESIZE):
            area[offset] = 1
        start = time.perf_counter()
        area.close()
        best = min(best, time.perf_counter() - start)
    return best / size
