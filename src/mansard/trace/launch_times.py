"""Calls of the runtime by name, and how long launches take and wait: from the call to the work it launched."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mansard.core.unknown import Unknown
from mansard.trace.launches import Launches
from mansard.trace.timeline import Events, Kind, Timeline

Int64Array = npt.NDArray[np.int64]

_VERSION = re.compile(r"_v\d{4}$")  # of the interface, such as cudaLaunchKernel_v7000


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How some times are spread.

    Args:
        count: How many.
        total_ns: Their sum [ns].
        mean_ns, median_ns: [ns].
        p95_ns, p99_ns: The values at rank ceil(0.95 n) and ceil(0.99 n) [ns].
        min_ns, max_ns: [ns].
        deviation_ns: Sample standard deviation [ns]; 0 of a single one.
    """

    count: int
    total_ns: int
    mean_ns: float
    median_ns: float
    p95_ns: int
    p99_ns: int
    min_ns: int
    max_ns: int
    deviation_ns: float


def spread(values: Int64Array) -> Spread | Unknown:
    """Return how times are spread; `Unknown` where there are none.

    >>> s = spread(np.array([4, 1, 3, 2]))
    >>> s.total_ns, s.median_ns, s.p95_ns, round(s.deviation_ns, 4)
    (10, 2.5, 4, 1.291)
    """
    if not values.size:
        return Unknown("there are none")
    order = np.sort(values)
    rank = [int(order[-(-order.size * share // 100) - 1]) for share in (95, 99)]
    return Spread(
        count=int(order.size), total_ns=int(order.sum()), mean_ns=float(order.mean()), median_ns=float(np.median(order)),
        p95_ns=rank[0], p99_ns=rank[1], min_ns=int(order[0]), max_ns=int(order[-1]),
        deviation_ns=float(order.std(ddof=1)) if order.size > 1 else 0.0,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRow:
    """All calls of one name.

    Args:
        name: Its name without the version of the interface.
        times: How long they took.
        launching: How many of them launched work that was recorded.
    """

    name: str
    times: Spread
    launching: int


def call_name(name: str) -> str:
    """Return a call without the version of its interface.

    >>> call_name("cudaLaunchKernel_v7000"), call_name("cudaStreamGetCaptureInfo_v2_v11030")
    ('cudaLaunchKernel', 'cudaStreamGetCaptureInfo_v2_v11030')
    """
    return _VERSION.sub("", name)


def call_rows(timeline: Timeline, launches: Launches) -> list[CallRow]:
    """Return calls of the runtime by name, the longest summed time first.

    Args:
        timeline: The profile, or a window of it.
        launches: Its joined launches.
    """
    return _by_name(timeline.names, launches.calls, launches.used_calls)


def wait_rows(timeline: Timeline) -> list[CallRow]:
    """Return the waits of the host that the profile records apart from calls, by kind, the longest summed time first.

    Args:
        timeline: The profile, or a window of it.
    """
    return _by_name(timeline.names, timeline.of(Kind.SYNC), np.zeros(0, dtype=np.int64))


def _by_name(names: Sequence[str], table: Events, launching: Int64Array) -> list[CallRow]:
    if not len(table):
        return []
    shown: dict[str, int] = {}
    code = np.array([shown.setdefault(call_name(n), len(shown)) for n in names] + [0], dtype=np.int64)
    group = code[table.name]
    length = table.duration_ns
    launched = (
        np.bincount(group[launching], minlength=len(shown)) if launching.size else np.zeros(len(shown), dtype=int)
    )
    order = np.argsort(group, kind="stable")
    edges = np.searchsorted(group[order], np.arange(len(shown) + 1))
    rows = []
    for name, index in shown.items():
        times = spread(length[order[edges[index] : edges[index + 1]]])
        if isinstance(times, Spread):
            rows.append(CallRow(name=name, times=times, launching=int(launched[index])))
    return sorted(rows, key=lambda r: (-r.times.total_ns, r.name))


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchTimes:
    """How long launches of kernels took and waited; of a graph, whose kernels share a call, its first kernel counts.

    Args:
        launches: Calls that launched a kernel.
        kernels: Kernels they launched.
        without_call: Kernels whose call is not in the profile.
        call: How long the calls took.
        latency: From the start of the call to the start of the kernel.
        queue: From the end of the call to the start of the kernel, of those that start after it.
        early: Kernels that start before their call has returned.
        impossible: Kernels that start before their call does, by clocks that do not agree; they are in none of the figures.
    """

    launches: int
    kernels: int
    without_call: int
    call: Spread | Unknown
    latency: Spread | Unknown
    queue: Spread | Unknown
    early: int
    impossible: int


def launch_times(launches: Launches, *, device: int | None = None) -> LaunchTimes:
    """Return how long launches of kernels took and waited.

    Args:
        launches: Joined launches.
        device: Index of a device; None takes all.

    Source: NVIDIA, `nsys stats` report cuda_kern_exec_sum: API, queue and kernel time.
    """
    mine = launches.kind == int(Kind.KERNEL)
    if device is not None:
        mine = mine & (launches.work.device == device)
    linked = np.flatnonzero(mine & launches.launched)
    order = linked[np.lexsort((launches.work.start_ns[linked], launches.call[linked]))]
    call = launches.call[order]
    first = np.ones(call.size, dtype=np.bool_)
    first[1:] = call[1:] != call[:-1]
    kernel, call = order[first], call[first]
    begin, end = launches.calls.start_ns[call], launches.calls.end_ns[call]
    start = launches.work.start_ns[kernel]
    possible = start >= begin
    latency, queue = (start - begin)[possible], (start - end)[possible]
    return LaunchTimes(
        launches=int(call.size), kernels=int(linked.size), without_call=int(mine.sum()) - int(linked.size), call=spread(end - begin),
        latency=spread(latency), queue=spread(queue[queue >= 0]), early=int((queue < 0).sum()), impossible=int((~possible).sum()),
    )  # fmt: skip
