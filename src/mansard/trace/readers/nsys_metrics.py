"""Metrics that Nsight Systems sampled from the hardware (`--gpu-metrics-devices`): means and largest values by device.

A sample is of a whole GPU and of the time since the sample before, so that a mean over many is what the GPU did on average.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mansard.core.errors import InputError
from mansard.core.unknown import Unknown
from mansard.trace.readers.nsys_devices import Devices, whole
from mansard.trace.readers.nsys_file import NsysFile
from mansard.trace.run import Finding
from mansard.trace.timeline import Events

_TABLE, _NAMES = "GPU_METRICS", "TARGET_INFO_GPU_METRICS"
_GPU_BITS = 0xFF  # of a type id: the id of the GPU in TARGET_INFO_GPU


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledMetric:
    """One metric of one device.

    Args:
        device: Index into `Timeline.devices`; -1 where the export does not list the GPU.
        gpu_id: Id of the GPU in the export.
        name: As the export writes it, with its unit in brackets where it has one, such as `SMs Active [Throughput %]`.
        samples: How many.
        mean, largest: Over the whole capture, in the unit of the name.
        mean_while_working: Mean of the samples from the first to the last kernel of the device.
    """

    device: int
    gpu_id: int
    name: str
    samples: int
    mean: float
    largest: float
    mean_while_working: float | Unknown


def sampled_metrics(
    file: NsysFile, devices: Devices, kernels: Events | None, findings: list[Finding]
) -> tuple[SampledMetric, ...]:
    """Return the sampled metrics of an export; none where it has no such table.

    Args:
        file: The export.
        devices: Its devices.
        kernels: Its kernels, where they were read.
        findings: Extended by what could not be read.
    """
    table = file.table(_TABLE)
    if table is None or not file.last_rowid(table):
        return ()
    time = next((c for c in ("timestamp", "rawTimestamp", "start") if file.has_column(table, c)), "")
    if not time or not file.has_column(table, "metricId") or not file.has_column(table, "value"):
        findings.append(
            Finding(code="metrics_unread", text=f"the columns of {table} are not known here: its metrics are not shown")
        )
        return ()
    # Fractions, which few exports hold, are read as thousandths: the fast way reads whole numbers.
    fractions = file.holds_fractions(table, "value")
    columns = ((time, np.int64), ("typeId", np.int64), ("metricId", np.int32), ("value", np.int64))
    try:
        arrays, _ = file.column_arrays(table, columns, thousandths=("value",) if fractions else ())
    except InputError as error:
        if error.code != "memory_limit":
            raise
        findings.append(
            Finding(code="metrics_left_out", text="to stay within the memory limit, sampled metrics were left out")
        )
        return ()
    if not {time, "metricId", "value"} <= set(arrays):
        return ()
    value = arrays["value"] / 1000.0 if fractions else arrays["value"].astype(np.float64)
    kind = arrays.get("typeId", np.zeros(value.size, dtype=np.int64))
    return tuple(_metrics(file, devices, kernels, arrays[time], kind, arrays["metricId"], value))


def _metrics(
    file: NsysFile,
    devices: Devices,
    kernels: Events | None,
    time: npt.NDArray[np.int64],
    kind: npt.NDArray[np.int64],
    metric: npt.NDArray[np.int32],
    value: npt.NDArray[np.float64],
) -> list[SampledMetric]:
    names = _names(file)
    found = []
    for type_id in np.unique(kind).tolist():
        gpu = type_id & _GPU_BITS
        index = devices.listed_index(gpu)
        working = _working(time, kernels, index)
        of_type = kind == type_id
        for number in np.unique(metric[of_type]).tolist():
            rows = of_type & (metric == number)
            held = value[rows & working] if working is not None else value[:0]
            found.append(
                SampledMetric(
                    device=index,
                    gpu_id=gpu,
                    name=names.get((type_id, number), names.get((-1, number), f"metric {number}")),
                    samples=int(rows.sum()),
                    mean=float(value[rows].mean()),
                    largest=float(value[rows].max()),
                    mean_while_working=float(held.mean())
                    if held.size
                    else Unknown("no sample lies in the time of its kernels"),
                )
            )
    return found


def _working(time: npt.NDArray[np.int64], kernels: Events | None, device: int) -> npt.NDArray[np.bool_] | None:
    """Return which samples lie between the first and the last kernel of a device, None where it has none."""
    if kernels is None or device < 0:
        return None
    mine = kernels.device == device
    if not mine.any():
        return None
    begin, end = int(kernels.start_ns[mine].min()), int(kernels.end_ns[mine].max())
    inside: npt.NDArray[np.bool_] = (time >= begin) & (time <= end)
    return inside


def _names(file: NsysFile) -> dict[tuple[int, int], str]:
    """Return the names of metrics by type and number; type -1 stands for any, where all types agree."""
    table = file.table(_NAMES)
    found: dict[tuple[int, int], str] = {}
    of_number: dict[int, set[str]] = {}
    for row in file.rows(table, ("typeId", "metricId", "metricName")) if table is not None else []:
        number, name = whole(row.get("metricId")), row.get("metricName")
        if isinstance(name, str):
            found[whole(row.get("typeId")), number] = name
            of_number.setdefault(number, set()).add(name)
    return {(-1, number): min(names) for number, names in of_number.items() if len(names) == 1} | found
