"""Ranges one by one: each occurrence of a name with its thread, and the device work it launched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mansard.core.intervals import IntervalSet, merge, union
from mansard.trace.regions import Ranges
from mansard.trace.timeline import Kind

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Occurrence:
    """One range.

    Args:
        name: Its name, with its domain.
        number: Which of the chosen ranges, from 1, as `region` counts them.
        process, thread: Ids as the file writes them; None where not recorded.
        start_ns, end_ns: On the host [ns].
        ops: Calls inside it that launched work.
        kernels: Kernels they launched.
        device_start_ns, device_end_ns: First start and last end of that work [ns]; 0 where there is none.
        work_sum_ns: Summed time of that work [ns].
        kernel_union_ns: By device index, the time in which one of its kernels runs [ns].
    """

    name: str
    number: int
    process: int | str | None
    thread: int | str | None
    start_ns: int
    end_ns: int
    ops: int
    kernels: int
    device_start_ns: int
    device_end_ns: int
    work_sum_ns: int
    kernel_union_ns: Mapping[int, int]


def occurrences(ranges: Ranges, rows: Sequence[int]) -> list[Occurrence]:
    """Return ranges one by one.

    Args:
        ranges: All ranges of the profile.
        rows: Which of them, by start, as `regions.choose` returns them.
    """
    timeline, table = ranges.timeline, ranges.table
    first, last = ranges.projected
    found = []
    for number, row in enumerate(rows, start=1):
        thread = int(table.thread[row])
        process = int(table.process[row])
        kernels = kernels_of(ranges, [row])
        found.append(
            Occurrence(
                name=timeline.names[int(table.name[row])], number=number,
                process=timeline.processes[process].pid if process >= 0 else None,
                thread=timeline.threads[thread].tid if thread >= 0 else None,
                start_ns=int(table.start_ns[row]), end_ns=int(table.end_ns[row]), ops=int(ranges.ops[row]), kernels=int(kernels.size),
                device_start_ns=int(first[row]), device_end_ns=int(last[row]), work_sum_ns=int(ranges.sum_ns[row]),
                kernel_union_ns={d: s.length_ns for d, s in busy_by_device(ranges, kernels).items()},
            )
        )  # fmt: skip
    return found


def kernels_of(ranges: Ranges, rows: Sequence[int]) -> Int64Array:
    """Return the rows of `launches.work` that are kernels, or whole graphs, of these ranges, each once however they nest."""
    work = [ranges.work_of(row) for row in rows]
    every = np.unique(np.concatenate(work)) if work else np.zeros(0, dtype=np.int64)
    chosen: Int64Array = every[np.isin(ranges.launches.kind[every], (int(Kind.KERNEL), int(Kind.GRAPH)))]
    return chosen


def busy_by_device(ranges: Ranges, work: Int64Array) -> dict[int, IntervalSet]:
    """Return by device index when one of these pieces of work runs."""
    table = ranges.launches.work
    device = table.device[work]
    return {
        int(d): union([merge(table.start_ns[work[device == d]], table.end_ns[work[device == d]])]) for d in np.unique(device)
    }  # fmt: skip
