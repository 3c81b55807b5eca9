"""Facts about the recorded process itself."""

from __future__ import annotations

import resource
import signal
import threading
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
