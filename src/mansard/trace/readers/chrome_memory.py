"""What PyTorch's allocators report in a Kineto trace (`profile_memory=True`): an instant event per allocation and release."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from mansard.trace.memory_record import ALLOCATOR, MemoryRecord
from mansard.trace.readers.chrome_times import to_ns
from mansard.trace.readers.kineto_text import Event
from mansard.trace.timeline import Device

MEMORY_EVENT = "[memory]"
_HOST_TYPE = 0  # c10::DeviceType of the host; 1 CUDA, 6 HIP, 12 XPU, 15 MTIA, ...
_AT_ONCE = 1 << 14


class _Args(msgspec.Struct, gc=False):
    allocated: Any = msgspec.field(default=None, name="Total Allocated")
    reserved: Any = msgspec.field(default=None, name="Total Reserved")
    device: Any = msgspec.field(default=None, name="Device Id")
    kind: Any = msgspec.field(default=None, name="Device Type")


class MemoryEvents:
    """Collects the events of one file; of each it keeps four numbers."""

    def __init__(self) -> None:
        self._waiting: list[Event] = []
        self._blocks: list[np.ndarray[Any, np.dtype[np.int64]]] = []
        self._decoder = msgspec.json.Decoder(_Args)

    def add(self, event: Event) -> None:
        """Take one event."""
        self._waiting.append(event)
        if len(self._waiting) >= _AT_ONCE:
            self._pack()

    def _pack(self) -> None:
        events, self._waiting = self._waiting, []
        times = to_ns([e.ts for e in events])
        rows = []
        for i, event in enumerate(events):
            if times.missing[i] or times.wrong[i]:
                continue
            try:
                a = self._decoder.decode(event.args)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                continue
            numbers = [a.device, a.kind, a.allocated, a.reserved]
            if all(type(n) is int and -(2**62) < n < 2**62 for n in numbers[:3]):
                rows.append([int(times.ns[i]), *numbers[:3], numbers[3] if type(numbers[3]) is int else -1])
        if rows:
            self._blocks.append(np.array(rows, dtype=np.int64))

    def records(self, devices: Sequence[Device]) -> tuple[MemoryRecord, ...]:
        """Return the use of each device's memory over time, by its index; the host's own allocator is left out."""
        self._pack()
        if not self._blocks:
            return ()
        table = np.concatenate(self._blocks)
        table = table[table[:, 2] != _HOST_TYPE]
        index = {d.number: i for i, d in enumerate(devices)}
        found = []
        for number in np.unique(table[:, 1]).tolist():
            rows = table[table[:, 1] == number]
            rows = rows[np.argsort(rows[:, 0], kind="stable")]
            place = index.get(number)
            if place is not None:
                found.append(
                    MemoryRecord(device=place, time_ns=rows[:, 0], allocated_bytes=rows[:, 3], reserved_bytes=rows[:, 4], source=ALLOCATOR)
                )  # fmt: skip
        return tuple(found)
