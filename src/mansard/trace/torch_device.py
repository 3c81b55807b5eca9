"""Device work of a recording: which operation launched which kernels, copies and fills."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.core import Demand, Unknown
from mansard.trace.readers.kineto import NONE, KinetoTrace
from mansard.trace.run import Finding, Operator, Part
from mansard.trace.torch_tree import DISPATCH, WORK, Emitted, Kinds

DEVICE_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset", "mtia_ccp_events")
_RUNTIME_CATEGORIES = ("cuda_runtime", "cuda_driver", "runtime", "mtia_runtime")
_COLLECTIVE = re.compile(r"nccl|rccl|multimem_all_reduce|cross_device_reduce", re.IGNORECASE)


def has_device_work(trace: KinetoTrace) -> bool:
    """Whether the file holds kernels, copies or fills of a device."""
    return bool(trace.of_category(*DEVICE_CATEGORIES).any())


@dataclass(frozen=True, slots=True)
class Launched:
    """Device work of one operation on one stream."""

    operation: int
    start_ns: int
    end_ns: int
    device: int
    stream: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceWork:
    """Device work, by operation and beside them.

    Args:
        launched: Intervals of operations on devices.
        others: Start, end, device, stream and operator of work that no operation launched, or that an operation has
            on a second stream.
        launchers: Operations that launched something.
        host_kinds: For each operation, whether it may be host work where it launched nothing.
        findings: What a reader should know.
    """

    launched: tuple[Launched, ...]
    others: tuple[tuple[int, int, int, int, Operator], ...]
    launchers: frozenset[int]
    host_kinds: Sequence[bool]
    findings: tuple[Finding, ...]

    def stays_on_host(self, operation: int) -> bool:
        """Whether an operation did its work on the host."""
        return operation not in self.launchers and self.host_kinds[operation]


def device_work(trace: KinetoTrace, emitted: Emitted, kinds: Kinds) -> DeviceWork:
    """Join device work to the operations that launched it.

    A kernel carries the correlation of its runtime call; the operation whose interval on the same thread holds that
    call launched it. Where the runtime call is missing, the external id names the recorded operator.

    Args:
        trace: The file.
        emitted: Operations of its host threads.
        kinds: Their kinds.
    """
    rows = np.flatnonzero(trace.of_category(*DEVICE_CATEGORIES) & (trace.end_ns > trace.start_ns))
    operators = np.flatnonzero(trace.of_category("cpu_op"))
    by_external = dict(zip(trace.external_id[operators].tolist(), operators.tolist(), strict=True))
    by_external.pop(0, None)
    by_external.pop(NONE, None)
    owners = _owners(trace, rows, emitted, by_external)
    groups: dict[tuple[int, int, int], list[int]] = {}
    others: list[tuple[int, int, int, int, Operator]] = []
    for row, owner in zip(rows.tolist(), owners, strict=True):
        if owner < 0:
            others.append((*_place(trace, row), _bare(trace, row, by_external.get(int(trace.external_id[row])))))
        else:
            groups.setdefault((owner, int(trace.device[row]), int(trace.stream[row])), []).append(row)
    launched, second = _per_operation(trace, groups)
    others += second
    missing = sum(1 for o in owners if o < 0)
    findings = []
    if missing:
        text = f"{missing} of {len(owners)} device activities were launched outside any recorded operator."
        findings.append(Finding(code="unattributed_kernels", text=text))
    cpu_only = [kinds.table[k].role == WORK or kinds.table[k].role != DISPATCH for k in emitted.kind]
    return DeviceWork(
        launched=tuple(launched),
        others=tuple(others),
        launchers=frozenset(key[0] for key in groups),
        host_kinds=cpu_only,
        findings=tuple(findings),
    )


def _place(trace: KinetoTrace, row: int) -> tuple[int, int, int, int]:
    return (int(trace.start_ns[row]), int(trace.end_ns[row]), int(trace.device[row]), int(trace.stream[row]))


def _owners(
    trace: KinetoTrace, rows: npt.NDArray[np.int64], emitted: Emitted, by_external: dict[int, int]
) -> list[int]:
    """Return the operation that launched each device activity, -1 for none."""
    runtime = np.flatnonzero(trace.of_category(*_RUNTIME_CATEGORIES))
    call_of: dict[int, int] = {}
    for row, correlation in zip(runtime.tolist(), trace.correlation[runtime].tolist(), strict=True):
        if correlation != NONE:
            call_of.setdefault(correlation, row)
    holder = _Holder(emitted)
    out = []
    for row in rows.tolist():
        call = call_of.get(int(trace.correlation[row]))
        owner = -1
        if call is not None:
            owner = holder.at(int(trace.thread[call]), int(trace.start_ns[call]))
        if owner < 0:
            recorded = by_external.get(int(trace.external_id[row]))
            if recorded is not None:
                owner = holder.at(int(trace.thread[recorded]), int(trace.start_ns[recorded]))
        out.append(owner)
    return out


class _Holder:
    """Finds the operation whose interval holds a moment of a thread."""

    def __init__(self, emitted: Emitted) -> None:
        thread = np.array(emitted.thread, dtype=np.int64)
        start = np.array(emitted.start_ns, dtype=np.int64)
        end = np.array(emitted.end_ns, dtype=np.int64)
        self._by_thread: dict[int, tuple[Any, Any, Any]] = {}
        for one in np.unique(thread).tolist():
            mine = np.flatnonzero(thread == one)
            mine = mine[np.argsort(start[mine], kind="stable")]
            self._by_thread[one] = (start[mine], end[mine], mine)

    def at(self, thread: int, moment: int) -> int:
        found = self._by_thread.get(thread)
        if found is None:
            return -1
        start, end, mine = found
        i = int(np.searchsorted(start, moment, side="right")) - 1
        return int(mine[i]) if i >= 0 and moment < end[i] else -1


def _per_operation(
    trace: KinetoTrace, groups: dict[tuple[int, int, int], list[int]]
) -> tuple[list[Launched], list[tuple[int, int, int, int, Operator]]]:
    """Return one interval per operation, on the stream where it worked longest; the rest is listed beside."""
    streams: dict[int, list[tuple[int, int, int]]] = {}
    for (operation, device, stream), rows in groups.items():
        busy = int((trace.end_ns[rows] - trace.start_ns[rows]).sum())
        streams.setdefault(operation, []).append((busy, device, stream))
    launched: list[Launched] = []
    others: list[tuple[int, int, int, int, Operator]] = []
    for operation, places in streams.items():
        _, device, stream = max(places)
        for _, d, s in places:
            rows = groups[(operation, d, s)]
            if (d, s) == (device, stream):
                launched.append(
                    Launched(operation, int(trace.start_ns[rows].min()), int(trace.end_ns[rows].max()), d, s)
                )
            else:
                others += [(*_place(trace, row), _bare(trace, row, None)) for row in rows]
    return _disjoint(launched), others


def _disjoint(launched: list[Launched]) -> list[Launched]:
    """Clip an operation where the next one on its stream starts: intervals of a lane do not overlap."""
    out = []
    by_lane: dict[tuple[int, int], list[Launched]] = {}
    for one in launched:
        by_lane.setdefault((one.device, one.stream), []).append(one)
    for lane in by_lane.values():
        lane.sort(key=lambda one: (one.start_ns, one.end_ns))
        for i, one in enumerate(lane):
            end = one.end_ns if i + 1 == len(lane) else min(one.end_ns, max(lane[i + 1].start_ns, one.start_ns))
            out.append(Launched(one.operation, one.start_ns, end, one.device, one.stream))
    return out


def _bare(trace: KinetoTrace, row: int, launcher: int | None) -> Operator:
    """Return the operator of device work that no known operation owns, named after its launcher where there is one."""
    name = trace.names[trace.name[row]]
    category = trace.categories[trace.category[row]]
    size = int(trace.nbytes[row])
    demand: Demand | Unknown
    if category == "gpu_memset" and size > 0:
        kind, demand = "copy", Demand(write_bytes=float(size))
    elif category == "gpu_memcpy" and size > 0 and "DtoD" in name.replace(" ", ""):
        kind, demand = "copy", Demand(read_bytes=float(size), write_bytes=float(size))
    elif category == "gpu_memcpy":
        kind, demand = "copy", Unknown("a copy between host and device", ("a ceiling of the host link",))
    else:
        kind = "collective" if _COLLECTIVE.search(name) else "other"
        demand = Unknown("a kernel without a recorded operator", ("shapes of its operands",))
        if launcher is not None:
            name = trace.names[trace.name[launcher]]
            demand = Unknown(f"{name} is not in the table of operators", ("a cost function for it",))
    return Operator(name=name, category=kind, part=Part.OTHER, shapes="", demand=demand, scope="device")
