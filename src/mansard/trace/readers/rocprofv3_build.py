"""Tables that the JSON and the CSV output of rocprofv3 are gathered in, and the Timeline they become."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from mansard.core.unknown import Unknown
from mansard.trace.launch_shape import LaunchShape, WavefrontLimits
from mansard.trace.readers.chrome_checks import stream_overlap
from mansard.trace.readers.numbers import LARGEST
from mansard.trace.readers.planes import copy_kind
from mansard.trace.run import Finding
from mansard.trace.timeline import (
    DEVICE_WORK,
    NONE,
    Clock,
    CopyKind,
    Damage,
    Device,
    Events,
    Kind,
    Names,
    Process,
    Thread,
    Timeline,
    joined,
    sound,
)

HINT = "record with: rocprofv3 --kernel-trace --memory-copy-trace --hip-trace --output-format json -- PROGRAM"
WORDS = {Kind.KERNEL: "kernels", Kind.COPY: "copies", Kind.RUNTIME: "runtime calls", Kind.ANNOTATION: "ranges",
         Kind.OTHER: "other regions"}  # fmt: skip
_COPY_WORDS = {"HOSTTODEVICE": "HtoD", "DEVICETOHOST": "DtoH", "DEVICETODEVICE": "DtoD", "HOSTTOHOST": "HtoH"}
TO_HOST = (CopyKind.DEVICE_TO_HOST, CopyKind.HOST_TO_HOST)


class Build:
    """Tables of all processes of one recording.

    Args:
        launch_shapes: Whether how kernels were launched is wanted.
    """

    def __init__(self, *, launch_shapes: bool = False) -> None:
        self.names = Names()
        self.parts: dict[Kind, list[Events]] = {}
        self.devices: dict[int, int] = {}
        self.described: list[Device] = []
        self.processes: list[Process] = []
        self.threads: dict[tuple[int, int], int] = {}
        self.damage: list[Damage] = []
        self.findings: list[Finding] = []
        self.shapes: dict[LaunchShape, int] | None = {} if launch_shapes else None
        self._handles: dict[str, int] = {}

    def handle(self, key: str) -> int:
        """Return the handle of an agent that the recording knows by a text; the same text is the same device."""
        return self._handles.setdefault(key, len(self._handles))

    def unnamed(self, count: int) -> None:
        """Say that so many kernels have no name."""
        text = f"{count} kernels have no name in the file"
        self.damage.append(Damage(code="unnamed_kernels", text=text, count=count))

    def describe(self, handle: int, device: Device) -> None:
        """Add a device that the recording describes; a handle is described once."""
        if handle not in self.devices:
            self.devices[handle] = len(self.described)
            self.described.append(device)

    def device_of(self, handle: int) -> int:
        """Return the index of the device of a handle, adding one without a name where the recording does not describe it."""
        if handle not in self.devices:
            name = Unknown(f"agent {handle} is not described in the file", ("the product name",))
            self.describe(handle, Device(number=len(self.described), name=name, certainty=_ORDER))
        return self.devices[handle]

    def thread(self, process: int, tid: int) -> int:
        """Return the index of a thread."""
        return self.threads.setdefault((process, tid), len(self.threads))

    def shape(self, grid: Sequence[int], group: Sequence[int], registers: int, shared_bytes: int) -> int:
        """Return the index of a launch shape, -1 where the recording does not tell it.

        Args:
            grid: Work-items of the launch in each dimension.
            group: Work-items of a workgroup in each dimension.
            registers: Vector registers of a work-item.
            shared_bytes: LDS of a workgroup [B].
        """
        if self.shapes is None or len(grid) != 3 or len(group) != 3 or min(*grid, *group) < 1:
            return NONE
        blocks, threads = math.prod(-(-a // b) for a, b in zip(grid, group, strict=True)), math.prod(group)
        if max(blocks, threads) >= LARGEST:
            return NONE
        found = LaunchShape(blocks=blocks, threads=threads, registers=registers, shared_bytes=shared_bytes)
        return self.shapes.setdefault(found, len(self.shapes))

    def add(self, kind: Kind, table: Events) -> None:
        """Add events; those without a start or an end are left out, and that is said."""
        # 0 as the tool writes it, -1 where a database has no row of the time
        missing = (table.start_ns <= 0) | (table.end_ns <= 0)
        if missing.any():
            count = int(np.count_nonzero(missing))
            text = f"{count} {WORDS[kind]} have no start or no end (0, or none at all) and are left out"
            self.damage.append(Damage(code="time_zero", text=text, count=count, incomplete=True))
            table = table.take(~missing)
        self.parts.setdefault(kind, []).append(table)

    def timeline(self, path: Path, environment: Mapping[str, Any]) -> Timeline:
        """Return what was collected."""
        tables: dict[Kind, Events] = {}
        for kind, parts in self.parts.items():
            table, damage = sound(joined(parts), what=WORDS[kind])
            self.damage += [d for d in damage if kind in DEVICE_WORK or d.code != "zero_duration"]
            tables[kind] = table.sorted() if kind in DEVICE_WORK else table
        return Timeline(
            source=str(path),
            format="rocprofv3",
            version="",
            tables=tables,
            names=self.names.table(),
            devices=tuple(self.described),
            processes=tuple(self.processes),
            threads=tuple(Thread(process=p, tid=t) for p, t in self.threads),
            absent=_absent(tables),
            clock=Clock(
                domain="device",
                epoch_offset_ns=Unknown("the ROCm clock counts from an unknown moment"),
                note="nanoseconds of the ROCm clock, the same for host and device records",
            ),
            damage=(*self.damage, *_overlaps(tables)),
            findings=(*_numbers(self.described), *self.findings),
            environment=dict(environment),
            extras={} if self.shapes is None else {"launch_shapes": tuple(self.shapes)},
        )


def only(timeline: Timeline, kinds: frozenset[Kind] | None) -> Timeline:
    """Return a profile with the kinds of event that are wanted."""
    if kinds is None:
        return timeline
    absent = {k: f"{k.name.lower()} events were not asked for" for k in Kind if k not in kinds}
    tables = {k: t for k, t in timeline.tables.items() if k in kinds}
    return replace(timeline, tables=tables, absent={**timeline.absent, **absent})


def direction(name: str) -> int:
    """Return the direction of a copy from the name of its operation.

    >>> direction("MEMORY_COPY_HOST_TO_DEVICE"), direction("DEVICE_TO_HOST"), direction("?")
    (1, 2, 0)
    """
    word = name.upper().replace("MEMORY_COPY_", "").replace("_", "")
    return int(copy_kind(_COPY_WORDS.get(word, name)))


_ORDER = "assumed: devices are numbered in the order of the agents"


def device(agent: Mapping[str, Any], number: int) -> Device:
    """Return a device from what is known of its agent, by the names that the JSON output uses."""
    unknown = Unknown("not in the file")

    def whole(key: str, factor: int = 1) -> int | Unknown:
        value = agent.get(key)
        return value * factor if isinstance(value, int) and value > 0 else unknown

    name = str(agent.get("product_name") or "").strip()
    chip = str(agent.get("name") or "")
    return Device(
        number=number,
        name=name or Unknown("the agent has no product name", ("the product name",)),
        chip=chip,
        multiprocessors=whole("cu_count"),
        memory_bytes=_memory(agent.get("mem_banks")),
        clock_hz=whole("max_engine_clk_fcompute", 1_000_000),
        uuid=str(agent.get("gpu_id") or ""),
        limits=_limits(agent, chip),
        certainty=_ORDER,
    )


_DEVICE_HEAPS = (1, 2)  # frame buffer, public and private


def registers_of(plain: int, accumulation: int) -> int:
    """Return the registers of a work-item: accumulation registers follow the others in one file, aligned to four.

    Source: LLVM, User Guide for AMDGPU Backend, accum_offset of the kernel descriptor of gfx90a and later.

    >>> registers_of(20, 4), registers_of(21, 4), registers_of(96, 0), registers_of(-1, 0)
    (24, 28, 96, -1)
    """
    if plain < 0:
        return NONE
    return -(-plain // 4) * 4 + accumulation if accumulation > 0 else plain


def _memory(banks: Any) -> int | Unknown:
    """Return the memory of an agent [B], from its banks."""
    sizes = [
        b.get("size_in_bytes", 0) for b in banks if isinstance(b, dict) and b.get("heap_type") in _DEVICE_HEAPS
    ] if isinstance(banks, list) else []  # fmt: skip
    found = sum(s for s in sizes if isinstance(s, int) and s > 0)
    return found or Unknown("the agent does not state its memory")


def _limits(agent: Mapping[str, Any], chip: str) -> WavefrontLimits | Unknown:
    """Return what a compute unit holds, as the agent states it."""
    keys = ("max_waves_per_simd", "simd_per_cu", "lds_size_in_kb", "wave_front_size")
    values = [agent.get(k) for k in keys]
    found = [v for v in values if isinstance(v, int) and v > 0]
    if len(found) < len(keys):
        return Unknown("the agent does not state what a compute unit holds")
    waves, simds, lds, lanes = found
    return WavefrontLimits(gfx=chip, waves=waves, simds=simds, shared_bytes=lds * 1024, lanes=lanes)


def _overlaps(tables: Mapping[Kind, Events]) -> tuple[Damage, ...]:
    if Kind.KERNEL not in tables:
        return ()
    count, over = stream_overlap(tables[Kind.KERNEL])
    if not count:
        return ()
    text = (
        f"{count} kernels start before an earlier one on their queue has ended, by {over} ns in all; they are not clipped, so "
        "the sum counts that time twice and the union once"
    )
    return (Damage(code="overlapping_slices", text=text, count=count),)


def _absent(tables: Mapping[Kind, Events]) -> dict[Kind, str]:
    how = {
        Kind.KERNEL: "--kernel-trace",
        Kind.COPY: "--memory-copy-trace",
        Kind.RUNTIME: "--hip-trace",
        Kind.ANNOTATION: "--marker-trace",
    }
    absent = {k: f"the file records no {WORDS[k]}; rocprofv3 records them with {option}" for k, option in how.items()}
    return {k: absent.get(k, f"rocprofv3 records no {k.name.lower()} events") for k in Kind if k not in tables}


def _numbers(devices: Iterable[Device]) -> tuple[Finding, ...]:
    text = "The number of a device is its place among the GPU agents of the file, which need not be the ordinal the program used."
    return (Finding(code="device_numbers", text=text),) if list(devices) else ()
