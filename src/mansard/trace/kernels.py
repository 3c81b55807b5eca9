"""Kernels grouped by name, with their category, what launched them, and what graphs hide."""

from __future__ import annotations

import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.trace.categories import COLLECTIVE, UNCLASSIFIED, Collective, Rules, shipped_rules, short_name
from mansard.trace.launches import Launches, join_launches
from mansard.trace.matching import base_name
from mansard.trace.regions import Ranges, attribute, innermost
from mansard.trace.run import Finding
from mansard.trace.timeline import NONE, Events, Kind, Timeline

_GRAPH_LAUNCH = re.compile(r"(cuda|cu|hip)GraphLaunch", re.IGNORECASE)
FEW_LAUNCHES = 0.5  # where a smaller share of graph launches has any kernel of its own, kernels are missing
RECORD_GRAPHS = "nsys profile --cuda-graph-trace=node"


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRow:
    """All kernels of one name.

    Args:
        name: Its full name.
        short: The name without template arguments and parameters.
        category: From the rule file; `unclassified` where no rule knows it.
        calls: How many ran.
        total_ns: Summed time [ns]; a sum, not time that passed.
        median_ns, min_ns, max_ns: Of one kernel [ns].
        per_device: Calls and summed time [ns] by device index.
        launched: How many were joined to the call that launched them.
        operators: Innermost ranges or operations they were launched from, with calls, the most frequent first.
        collective: What its name tells, for communication.
    """

    name: str
    short: str
    category: str
    calls: int
    total_ns: int
    median_ns: float
    min_ns: int
    max_ns: int
    per_device: Mapping[int, tuple[int, int]]
    launched: int
    operators: Mapping[str, int] = field(default_factory=dict)
    collective: Collective | None = None


def kernel_table(
    timeline: Timeline,
    *,
    rules: Rules | None = None,
    launches: Launches | None = None,
    operators: bool = True,
    ranges: Ranges | None = None,
) -> list[KernelRow]:
    """Return one row per kernel name, the longest summed time first, then by name.

    Args:
        timeline: The profile, or a window of it.
        rules: Rules of categories; None takes the shipped ones.
        launches: Joined launches, where they are at hand.
        operators: Whether to link kernels to the ranges and operations they were launched from.
        ranges: Attributed ranges, where they are at hand.
    """
    table = timeline.of(Kind.KERNEL)
    if not len(table):
        return []
    rules = rules or shipped_rules()
    launches = launches or join_launches(timeline)
    with ThreadPoolExecutor(1) as pool:  # array arithmetic leaves the interpreter free
        grouping = pool.submit(_grouped, table, len(timeline.names))
        origin = _origins(timeline, launches, len(table), ranges) if operators else {}
        groups = grouping.result()
    linked = launches.call[: len(table)] >= 0  # kernels come first in `launches.work`
    linked_counts = np.bincount(table.name if linked.all() else table.name[linked], minlength=len(timeline.names))
    rows = []
    for index, group in groups.items():
        name = timeline.names[index]
        category = rules.category(name)
        rows.append(
            KernelRow(
                name=name, short=short_name(name), category=category, calls=group.calls, total_ns=group.total_ns,
                median_ns=group.median_ns, min_ns=group.min_ns, max_ns=group.max_ns, per_device=group.per_device,
                launched=int(linked_counts[index]), operators=origin.get(index, {}),
                collective=rules.collective(name) if category == COLLECTIVE else None,
            )
        )  # fmt: skip
    return sorted(rows, key=lambda r: (-r.total_ns, r.name))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    calls: int
    total_ns: int
    median_ns: float
    min_ns: int
    max_ns: int
    per_device: Mapping[int, tuple[int, int]]


def _grouped(table: Events, names: int) -> dict[int, _Group]:
    """Return the lengths of the kernels of each name, from one sort by (name, device)."""
    length = table.end_ns - table.start_ns
    if int(length.max()) < 2**31:
        length = length.astype(np.int32)
    code, devices = _joint_codes(table, names)
    order = np.argsort(code, kind="stable")
    length, code = length[order], code[order]
    del order
    edges = np.concatenate([[0], np.flatnonzero(code[1:] != code[:-1]) + 1, [code.size]])
    totals = np.add.reduceat(length, edges[:-1], dtype=np.int64)
    parts: dict[int, list[tuple[int, int, int, int]]] = {}
    for at, (begin, end) in enumerate(pairwise(edges.tolist())):
        name, device = divmod(int(code[begin]), len(devices))
        parts.setdefault(name, []).append((begin, end, devices[device], int(totals[at])))
    found = {}
    for name, of_devices in parts.items():
        members = length[of_devices[0][0] : of_devices[-1][1]]  # the devices of one name lie side by side
        low, high = (members.size - 1) // 2, members.size // 2
        members.partition(sorted({low, high}))
        found[name] = _Group(
            calls=int(members.size), total_ns=sum(t for *_, t in of_devices),
            median_ns=(int(members[low]) + int(members[high])) / 2, min_ns=int(members.min()), max_ns=int(members.max()),
            per_device={d: (end - begin, total) for begin, end, d, total in of_devices},
        )  # fmt: skip
    return found


def _joint_codes(table: Events, names: int) -> tuple[npt.NDArray[Any], list[int]]:
    """Return one number for the name and the device of each kernel, and the devices it counts."""
    if table.device.strides == (0,):
        devices = [int(table.device[0])]
        return (table.name.astype(np.int16) if names < 32000 else table.name), devices
    devices = [int(d) for d in np.flatnonzero(np.bincount(table.device + 1)) - 1]
    place = np.zeros(devices[-1] + 2, dtype=np.int32)
    place[np.array(devices) + 1] = np.arange(len(devices), dtype=np.int32)
    code: npt.NDArray[Any] = table.name * np.int32(len(devices)) + place[table.device + 1]
    # 16 bits are sorted by radix.
    return (code.astype(np.int16) if names * len(devices) < 32000 else code), devices


def _origins(timeline: Timeline, launches: Launches, kernels: int, ranges: Ranges | None) -> dict[int, dict[str, int]]:
    """Return for each kernel name how often each innermost range or operation launched it."""
    kinds = tuple(k for k in (Kind.ANNOTATION, Kind.CPU_OP) if k in timeline.tables)
    if not kinds or not launches.launched.any():
        return {}
    if ranges is None or Kind.CPU_OP in kinds:
        ranges = attribute(timeline, kinds=kinds, launches=launches)
    inner = innermost(ranges)
    rows, first = launches.by_call
    of_work = np.repeat(inner, np.diff(first))
    chosen = (rows < kernels) & (of_work != NONE)
    whole = bool(chosen.all())
    kernel_name = launches.work.name[rows if whole else rows[chosen]]
    range_name = ranges.table.name[of_work if whole else of_work[chosen]]
    del of_work, chosen
    bases: dict[str, int] = {}
    base_of = np.array([bases.setdefault(base_name(n), len(bases)) for n in timeline.names], dtype=np.int64)
    words = list(bases)
    own = np.flatnonzero(np.bincount(kernel_name, minlength=1))  # few kernel names among many names of ranges
    place = np.zeros(len(timeline.names), dtype=np.int64)
    place[own] = np.arange(own.size)
    joint = place[kernel_name]
    joint *= len(words)
    joint += base_of[range_name]
    if own.size * len(words) < 50_000_000:
        counted = np.bincount(joint, minlength=1)
        pairs = np.flatnonzero(counted)
        counts = counted[pairs]
    else:
        pairs, counts = np.unique(joint, return_counts=True)
    found: dict[int, dict[str, int]] = {}
    for pair, count in zip(pairs.tolist(), counts.tolist(), strict=True):
        kernel, owner = divmod(pair, len(words))
        found.setdefault(int(own[kernel]), {})[words[owner]] = count
    return {k: dict(sorted(v.items(), key=lambda item: (-item[1], item[0]))) for k, v in found.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Graphs:
    """Graph launches of a profile, and how much of what they ran was recorded.

    Args:
        launches: Calls that launched a graph.
        kernels: Kernels that share the correlation of one of them.
        with_kernels: Launches that have at least one such kernel.
        opaque: Whole graphs recorded as one row: their time is known, their kernels are not.
        opaque_ns: Summed time of those [ns].
    """

    launches: int
    kernels: int
    with_kernels: int
    opaque: int
    opaque_ns: int

    @property
    def kernels_missing(self) -> bool:
        """Whether graphs were launched of which neither kernels nor whole rows were recorded in a plausible number."""
        if not self.launches or self.opaque >= self.launches:
            return False
        return self.with_kernels < FEW_LAUNCHES * (self.launches - self.opaque)


def graphs(timeline: Timeline, launches: Launches) -> Graphs:
    """Return what a profile says about CUDA or HIP graphs.

    A launch counts once, however many kernels share its correlation id.
    """
    calls = launches.calls
    codes = [i for i, name in enumerate(timeline.names) if _GRAPH_LAUNCH.search(name)]
    launching = np.isin(calls.name, codes) if codes and len(calls) else np.zeros(len(calls), dtype=np.bool_)
    kernel_calls = launches.call[launches.kind == int(Kind.KERNEL)]
    replayed = kernel_calls[kernel_calls >= 0]
    replayed = replayed[launching[replayed]] if launching.any() else replayed[:0]
    table = timeline.of(Kind.GRAPH)
    opaque_ns = int((table.end_ns - table.start_ns).sum())
    return Graphs(
        launches=int(launching.sum()), kernels=int(replayed.size), with_kernels=int(np.unique(replayed).size), opaque=len(table),
        opaque_ns=opaque_ns,
    )  # fmt: skip


def graph_findings(found: Graphs) -> list[Finding]:
    """Return what a reader must know about graphs."""
    findings = []
    if found.opaque:
        text = (
            f"{found.opaque} graph launches were recorded as whole graphs ({found.opaque_ns / 1e6:.3f} ms in all): their time "
            f"is known, their kernels are not. Record again with {RECORD_GRAPHS}"
        )
        findings.append(Finding(code="opaque_graphs", text=text))
    if found.kernels_missing:
        text = (
            f"unreliable: {found.launches} graph launches, but only {found.with_kernels} of them have a kernel of their own ({found.kernels} in "
            f"all), so kernels are missing and idle time is not idle. Record again with {RECORD_GRAPHS}"
        )
        findings.append(Finding(code="graph_kernels_missing", text=text))
    if found.kernels and not found.kernels_missing:
        text = f"{found.kernels} kernels ran in {found.launches} graph launches; each launch is counted once, its kernels one by one"
        findings.append(Finding(code="graph_replay", text=text))
    return findings


def unclassified_share(rows: list[KernelRow]) -> float:
    """Return the share of summed kernel time whose names no rule knows."""
    total = sum(r.total_ns for r in rows)
    return sum(r.total_ns for r in rows if r.category == UNCLASSIFIED) / total if total else 0.0
