"""`trace.json` of the XLA profiler: events without a category, sorted out by the plane and line they stand on."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.trace.readers.chrome_columns import Columns, Rows, hashable
from mansard.trace.readers.planes import device_event_kind, device_of, line_kind, only_copies, stream_of
from mansard.trace.timeline import Kind


def applies(columns: Columns) -> bool:
    """Return whether the file comes from the XLA profiler: its processes are planes, its events have no category."""
    named = any(n.startswith(("/host:", "/device:")) for n in columns.process_names.values())
    return columns.plain.count > 0 and (named or not columns.rows)


#: Processes in the files of PyTorch's profiler before Kineto (to 1.8); the thread of device work is the device.
_BEFORE_KINETO = {"CPU functions": Kind.CPU_OP, "CUDA functions": Kind.KERNEL}


def before_kineto(columns: Columns) -> bool:
    """Return whether the file comes from PyTorch's profiler before Kineto."""
    return any(pid in _BEFORE_KINETO for pid, _ in columns.places if isinstance(pid, str))


def sort_out(columns: Columns) -> None:
    """Move the events without a category to tables of their kind."""
    rows = columns.plain
    count = rows.count
    taken = {n: rows.column(n, count) for n in rows.parts}
    place, name = taken["place"].astype(np.int64), taken["name"].astype(np.int64)
    pairs, inverse = np.unique(place * (2**31) + name, return_inverse=True)
    keys = [(hashable(p), hashable(t)) for p, t in columns.places]
    names = columns.names.table()
    kind_of = np.array([_kind(columns, keys[int(p) >> 31], names[int(p) & (2**31 - 1)]) for p in pairs], dtype=np.int64)
    kinds = kind_of[inverse.reshape(-1)]
    step = taken.get("step_number")
    if step is not None:  # a StepTraceAnnotation of the program
        kinds[(kinds == int(Kind.OTHER)) & (step >= 0)] = int(Kind.ANNOTATION)
    device, stream = _places(columns, keys)
    on_device = device[place] >= 0
    taken["device"] = np.where(on_device, device[place], taken.get("device", device[place]))
    taken["stream"] = np.where(on_device, stream[place], -1)
    parts: dict[Kind, dict[str, list[npt.NDArray[Any]]]] = defaultdict(dict)
    for code in np.unique(kinds).tolist():
        kind = Kind(code)
        if columns.kinds is not None and kind not in columns.kinds:
            continue
        if kind is Kind.PYTHON and columns.kinds is None:
            columns.category_counts["python_function"] = int(np.count_nonzero(kinds == code))
            continue
        chosen = np.flatnonzero(kinds == code)
        for column, values in taken.items():
            parts[kind][column] = [values[chosen]]
        columns.rows[kind] = Rows(parts[kind])
    columns.plain = Rows({})


def _kind(columns: Columns, key: tuple[Any, Any], name: str) -> int:
    if key[0] in _BEFORE_KINETO:
        kind = _BEFORE_KINETO[key[0]]
        return int(device_event_kind(name)) if kind is Kind.KERNEL else int(kind)
    plane = columns.process_names.get(key[0], "")
    if device_of(plane) is not None:
        line = columns.thread_names.get(key, "")
        kind = line_kind(plane, line)
        if kind is Kind.KERNEL:
            kind = Kind.COPY if only_copies(line) else device_event_kind(name)
        return int(kind)
    if name.startswith("$"):
        return int(Kind.PYTHON)
    return int(Kind.OTHER)


def _places(columns: Columns, keys: list[tuple[Any, Any]]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    device = np.full(len(keys), -1, dtype=np.int64)
    stream = np.full(len(keys), -1, dtype=np.int64)
    for i, (pid, tid) in enumerate(keys):
        found = device_of(columns.process_names.get(pid, ""))
        if _BEFORE_KINETO.get(pid) is Kind.KERNEL and isinstance(tid, int):
            device[i], stream[i] = tid, 0
        elif found is not None:
            device[i] = found[1]
            stream[i] = stream_of(columns.thread_names.get((pid, tid), ""), tid if isinstance(tid, int) else -1)
    return device, stream
