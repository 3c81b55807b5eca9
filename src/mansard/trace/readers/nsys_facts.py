"""What an Nsight Systems export tells beside times: launch shapes of kernels, memory kinds of copies, use of device memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.trace.launch_shape import LaunchShape
from mansard.trace.memory_record import DRIVER, MemoryRecord
from mansard.trace.readers.nsys_file import NsysFile
from mansard.trace.timeline import NONE

Int64Array = npt.NDArray[np.int64]
Columns = dict[str, npt.NDArray[Any]]

_GRID = ("gridX", "gridY", "gridZ")
_BLOCK = ("blockX", "blockY", "blockZ")
SHAPE_COLUMNS: tuple[tuple[str, Any], ...] = (
    *((c, np.int64) for c in (*_GRID, *_BLOCK)), ("registersPerThread", np.int32), ("staticSharedMemory", np.int64),
    ("dynamicSharedMemory", np.int64),
)  # fmt: skip
MEMORY_KINDS: tuple[tuple[str, Any], ...] = (("srcKind", np.int8), ("dstKind", np.int8))

#: CUPTI's kinds of memory, as ENUM_CUDA_MEM_KIND of newer exports names them.
_PAGEABLE, _PINNED, _DEVICE, _ARRAY, _MANAGED, _DEVICE_STATIC, _MANAGED_STATIC = range(7)
_ON_DEVICE = (_DEVICE, _ARRAY, _DEVICE_STATIC)
_ALLOCATION, _RELEASE = 0, 1


class LaunchShapes:
    """Numbers the launch shapes of kernels."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, ...], int] = {}

    def column(self, arrays: Columns) -> Columns:
        """Return the shape of each kernel, and take the columns it was made of out of `arrays`."""
        parts = {name: arrays.pop(name) for name, _ in SHAPE_COLUMNS if name in arrays}
        if not {*_GRID, *_BLOCK} <= set(parts) or not parts["gridX"].size:
            return {}
        count = parts["gridX"].size
        absent = np.broadcast_to(np.int64(NONE), (count,))
        shared = [parts.get(n, absent) for n in ("staticSharedMemory", "dynamicSharedMemory")]
        figures = (
            _product([parts[c] for c in _GRID]),
            _product([parts[c] for c in _BLOCK]),
            parts.get("registersPerThread", absent).astype(np.int64),
            np.where((shared[0] < 0) | (shared[1] < 0), NONE, shared[0] + shared[1]),
        )
        code = np.zeros(count, dtype=np.int64)
        for figure in figures:
            distinct, inverse = np.unique(figure, return_inverse=True)
            # Made dense after each figure, so that the product of two counts is all that must fit.
            _, code = np.unique(code * distinct.size + inverse.reshape(-1), return_inverse=True)
            code = code.reshape(-1)
        _, first = np.unique(code, return_index=True)
        numbers = np.array(
            [self._known.setdefault(tuple(int(f[i]) for f in figures), len(self._known)) for i in first.tolist()],
            dtype=np.int32,
        )
        return {"launch_shape": numbers[code]}

    def table(self) -> tuple[LaunchShape, ...]:
        """Return the shapes."""
        return tuple(LaunchShape(blocks=b, threads=t, registers=r, shared_bytes=s) for b, t, r, s in self._known)


def _product(sizes: list[Int64Array]) -> Int64Array:
    """Return the product of three sizes, -1 where one of them is none."""
    sound = np.ones(sizes[0].size, dtype=np.bool_)
    product = np.ones(sizes[0].size, dtype=np.int64)
    for size in sizes:
        sound &= (size > 0) & (size < 2**31) & (product < 2**31)
        product = product * np.where(sound, size, 1)
    return np.where(sound, product, NONE)


def host_memory_column(arrays: Columns) -> Columns:
    """Return how the host's side of each copy is held: 0 pageable, 1 pinned, 2 managed, -1 where there is none or it is not told."""
    if not {"srcKind", "dstKind"} <= set(arrays):
        return {}
    source, target = arrays.pop("srcKind"), arrays.pop("dstKind")
    told = np.full(source.size, NONE, dtype=np.int8)
    for code, kinds in ((0, (_PAGEABLE,)), (1, (_PINNED,)), (2, (_MANAGED, _MANAGED_STATIC))):
        one, other = np.isin(source, kinds), np.isin(target, kinds)
        told[(one & np.isin(target, _ON_DEVICE)) | (other & np.isin(source, _ON_DEVICE))] = code
    return {"host_memory": told} if (told >= 0).any() else {}


def memory_events(file: NsysFile) -> Columns | None:
    """Return the events of CUDA_GPU_MEMORY_USAGE_EVENTS that concern device memory; None where none were recorded."""
    table = file.table("CUDA_GPU_MEMORY_USAGE_EVENTS")
    if table is None:
        return None
    columns = (("start", np.int64), ("deviceId", np.int32), ("globalPid", np.int64), ("bytes", np.int64), ("memKind", np.int8),
               ("memoryOperationType", np.int8), ("address", np.int64))  # fmt: skip
    arrays, _ = file.column_arrays(table, columns)
    if not {"start", "deviceId", "bytes", "memoryOperationType"} <= set(arrays):
        return None
    wanted = np.isin(arrays["memoryOperationType"], (_ALLOCATION, _RELEASE)) & (arrays["bytes"] >= 0)
    if "memKind" in arrays:
        wanted &= np.isin(arrays["memKind"], _ON_DEVICE)
    if not wanted.any():
        return None
    return {name: array[wanted] for name, array in arrays.items()}


def memory_records(arrays: Columns, device: Int64Array, process: npt.NDArray[np.int32]) -> tuple[MemoryRecord, ...]:
    """Return the memory that each device has given out, from its allocations and releases.

    A release of what was given out before the recording began lowers nothing; that there was such is said.

    Args:
        arrays: What `memory_events` returned.
        device: Index of the device of each event.
        process: Process of each event; addresses are of one process.
    """
    found = []
    for index in sorted({int(d) for d in np.unique(device) if d >= 0}):
        rows = np.flatnonzero(device == index)
        rows = rows[np.argsort(arrays["start"][rows], kind="stable")]
        changes, unknown = _changes(arrays, rows, process)
        found.append(
            MemoryRecord(
                device=index, time_ns=arrays["start"][rows], allocated_bytes=np.cumsum(changes),
                reserved_bytes=np.zeros(0, dtype=np.int64), source=DRIVER, at_least=unknown,
            )
        )  # fmt: skip
    return tuple(found)


def _changes(arrays: Columns, rows: Int64Array, process: npt.NDArray[np.int32]) -> tuple[Int64Array, bool]:
    """Return by how much each event changes the total [B], and whether something was released that was never given out."""
    live: dict[tuple[int, int], int] = {}
    changes = np.zeros(rows.size, dtype=np.int64)
    addresses = arrays.get("address", np.full(arrays["start"].size, NONE, dtype=np.int64))
    unknown = False
    places = zip(
        rows.tolist(), addresses[rows].tolist(), arrays["bytes"][rows].tolist(), arrays["memoryOperationType"][rows].tolist(),
        process[rows].tolist(), strict=True,
    )  # fmt: skip
    for place, (_, address, size, operation, owner) in enumerate(places):
        if operation == _ALLOCATION:
            live[owner, address] = live.get((owner, address), 0) + size
            changes[place] = size
        else:
            held = live.get((owner, address), 0)
            unknown |= held < size
            changes[place] = -min(held, size)
            live[owner, address] = held - min(held, size)
    return changes, unknown
