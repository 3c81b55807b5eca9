"""The use of a device's memory over time, as a profiler recorded it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

ALLOCATOR = "PyTorch's allocator"
DRIVER = "the driver's allocations"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRecord:
    """Totals after each allocation and release, by time.

    Args:
        device: Index into `Timeline.devices`.
        time_ns: When [ns].
        allocated_bytes: In use by the program [B].
        reserved_bytes: Taken from the driver by the allocator [B]; -1 not recorded, empty where the source knows no such thing.
        source: Who counted: the allocator of the framework, or the driver.
        at_least: Whether memory that was taken before the recording began is missing, so that totals are lower bounds.
    """

    device: int
    time_ns: npt.NDArray[np.int64]
    allocated_bytes: npt.NDArray[np.int64]
    reserved_bytes: npt.NDArray[np.int64]
    source: str
    at_least: bool = False
