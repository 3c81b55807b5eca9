"""What a profile tells of a device beside times: how full its units are, how much memory is in use, how copies are held.

Read the profile with `open_trace(path, launch_shapes=True)` for the first; the others cost nothing and are always there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.core.unknown import Unknown
from mansard.trace.launch_shape import LaunchShape, UnitLimits, WavefrontLimits, blocks_per_unit
from mansard.trace.memory_record import MemoryRecord
from mansard.trace.timeline import Kind, Timeline

FloatArray = npt.NDArray[np.float64]
PAGEABLE, PINNED, MANAGED = 0, 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Launches:
    """How each kernel of a profile was launched, in the order of its table; NaN is not known.

    Args:
        blocks: Blocks of the launch.
        threads: Threads of a block.
        per_unit: Blocks that one multiprocessor holds at once.
        units: Multiprocessors of its device.
    """

    blocks: FloatArray
    threads: FloatArray
    per_unit: FloatArray
    units: FloatArray

    @property
    def filled_ratio(self) -> FloatArray:
        """Share of the places that are filled, over all waves.

        Source: NVIDIA, Matrix Multiplication Background User's Guide, wave quantisation.
        """
        places = self.per_unit * self.units
        result: FloatArray = self.blocks / (np.ceil(self.blocks / places) * places)
        return result

    @property
    def occupancy_blocks(self) -> FloatArray:
        """Blocks on one multiprocessor, at most what it holds, on average over the device."""
        result: FloatArray = np.minimum(self.blocks / self.units, self.per_unit)
        return result


def kernel_launches(timeline: Timeline) -> Launches | Unknown:
    """Return how each kernel was launched.

    Args:
        timeline: A profile that was opened with `launch_shapes=True`, or a window of it.
    """
    table = timeline.of(Kind.KERNEL)
    shapes: tuple[LaunchShape, ...] = timeline.extras.get("launch_shapes", ())
    codes = table.extras.get("launch_shape")
    if codes is None or not shapes:
        asked = "launch_shapes" in timeline.extras
        return Unknown(
            "the profile does not record how kernels were launched" if asked else "launch shapes were not read"
        )
    known = codes >= 0
    joint = np.where(known, codes.astype(np.int64) * (len(timeline.devices) + 1) + table.device + 1, -1)
    distinct, inverse = np.unique(joint, return_inverse=True)
    rows = np.full((distinct.size, 4), np.nan)
    for i, value in enumerate(distinct.tolist()):
        if value >= 0:
            code, device = divmod(value, len(timeline.devices) + 1)
            rows[i] = _figures(shapes[code], timeline, device - 1)
    columns = rows[inverse.reshape(-1)]
    return Launches(blocks=columns[:, 0], threads=columns[:, 1], per_unit=columns[:, 2], units=columns[:, 3])


def _figures(shape: LaunchShape, timeline: Timeline, device: int) -> list[float]:
    limits: UnitLimits | WavefrontLimits | Unknown = Unknown("no device")
    units: int | Unknown = Unknown("no device")
    if device >= 0:
        limits, units = timeline.devices[device].limits, timeline.devices[device].multiprocessors
    each = limits if isinstance(limits, Unknown) else blocks_per_unit(shape, limits)
    return [
        float(v) if not isinstance(v, Unknown) and v > 0 else np.nan for v in (shape.blocks, shape.threads, each, units)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPeak:
    """The most memory of a device that was in use.

    Args:
        allocated_bytes: In use by the program [B].
        reserved_bytes: Taken from the driver by the allocator [B].
        source: Who counted.
        at_least: Whether memory that was taken before the recording began is missing.
        note: What was assumed; empty where nothing was.
    """

    allocated_bytes: float
    reserved_bytes: float | Unknown
    source: str
    at_least: bool
    note: str = ""


def memory_peak(timeline: Timeline, device: int, *, window_ns: tuple[int, int] | None = None) -> MemoryPeak | Unknown:
    """Return the most memory of a device that was in use.

    Args:
        timeline: The profile.
        device: Index of the device.
        window_ns: This part alone; what was in use when it began counts.
    """
    records: tuple[MemoryRecord, ...] = timeline.extras.get("memory", ())
    if not records:
        needs = ("torch.profiler.profile(profile_memory=True)", "nsys profile --cuda-memory-usage=true")
        return Unknown("the profile does not record the use of memory", needs)
    mine = [r for r in records if r.device == device]
    note = ""
    if (
        not mine
        and len(records) == 1
        and timeline.used_devices == (device,)
        and records[0].device not in timeline.used_devices
    ):
        mine = [records[0]]
        note = "the allocator and the kernels number their only device differently; they are taken for the same"
    if not mine:
        return Unknown("the profile records the use of memory of other devices alone")
    record = mine[0]
    rows = _in_window(record.time_ns, window_ns)
    allocated = record.allocated_bytes[rows]
    if not allocated.size:
        return Unknown("the profile records no use of memory up to this window")
    reserved = record.reserved_bytes[rows] if record.reserved_bytes.size else record.reserved_bytes
    return MemoryPeak(
        allocated_bytes=float(allocated.max()),
        reserved_bytes=float(reserved.max()) if reserved.size and reserved.max() >= 0 else Unknown("not recorded"),
        source=record.source, at_least=record.at_least, note=note,
    )  # fmt: skip


def _in_window(time_ns: npt.NDArray[np.int64], window_ns: tuple[int, int] | None) -> slice:
    if window_ns is None:
        return slice(None)
    first = max(int(np.searchsorted(time_ns, window_ns[0], side="right")) - 1, 0)
    return slice(first, int(np.searchsorted(time_ns, window_ns[1], side="left")))


def host_memory(timeline: Timeline) -> npt.NDArray[Any]:
    """Return how the host's side of each copy is held: `PAGEABLE`, `PINNED`, `MANAGED`, -1 where it is not recorded.

    Args:
        timeline: The profile; the values are in the order of its table of copies.
    """
    table = timeline.of(Kind.COPY)
    told = table.extras.get("host_memory")
    return np.full(len(table), -1, dtype=np.int8) if told is None else told


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRow:
    """All kernels of one name that were launched alike on one kind of device.

    Args:
        name: Full name.
        shape: How they were launched.
        device: Index of the device.
        calls: How many.
        total_ns: Summed time [ns].
        per_unit: Blocks that one multiprocessor holds at once.
        units: Multiprocessors.
    """

    name: str
    shape: LaunchShape
    device: int
    calls: int
    total_ns: int
    per_unit: int | Unknown
    units: int | Unknown

    @property
    def filled_ratio(self) -> float | Unknown:
        """Share of the places that are filled, over all waves; `Unknown` where a part of it is."""
        if isinstance(self.per_unit, Unknown):
            return self.per_unit
        if isinstance(self.units, Unknown):
            return self.units
        if self.shape.blocks <= 0:
            return Unknown("the number of blocks is not recorded")
        places = self.per_unit * self.units
        return self.shape.blocks / (-(-self.shape.blocks // places) * places)


def launch_rows(timeline: Timeline) -> list[LaunchRow]:
    """Return kernels by name and launch shape, the longest summed time first; those without a recorded shape are not in it.

    Args:
        timeline: A profile that was opened with `launch_shapes=True`, or a window of it.
    """
    table = timeline.of(Kind.KERNEL)
    shapes: tuple[LaunchShape, ...] = timeline.extras.get("launch_shapes", ())
    codes = table.extras.get("launch_shape")
    if codes is None or not shapes:
        return []
    known = np.flatnonzero(codes >= 0)
    devices = len(timeline.devices) + 1
    joint = (table.name[known].astype(np.int64) * len(shapes) + codes[known]) * devices + table.device[known] + 1
    distinct, inverse = np.unique(joint, return_inverse=True)
    calls = np.bincount(inverse.reshape(-1), minlength=distinct.size)
    total = np.zeros(distinct.size, dtype=np.int64)
    np.add.at(total, inverse.reshape(-1), table.duration_ns[known])
    found = []
    for i, value in enumerate(distinct.tolist()):
        rest, device = divmod(value, devices)
        name, code = divmod(rest, len(shapes))
        limits: UnitLimits | WavefrontLimits | Unknown = Unknown("which device it ran on is not recorded")
        units: int | Unknown = Unknown("which device it ran on is not recorded")
        if device:
            limits, units = timeline.devices[device - 1].limits, timeline.devices[device - 1].multiprocessors
        found.append(
            LaunchRow(
                name=timeline.names[name], shape=shapes[code], device=device - 1, calls=int(calls[i]), total_ns=int(total[i]),
                per_unit=limits if isinstance(limits, Unknown) else blocks_per_unit(shapes[code], limits), units=units,
            )
        )  # fmt: skip
    return sorted(found, key=lambda r: (-r.total_ns, r.name, r.device, r.shape.blocks))
