"""What is known of a run beside its recording: measured points, clocks, memory, ranks, experts, grids. None is `not known`.

A rule speaks only where the fact it needs is here or in the recording; nothing has a default value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from mansard.core import Unknown
from mansard.core.intervals import merge
from mansard.diagnose.regime import ANOTHER_REGIME, FOREIGN_LOAD
from mansard.trace.run import Operator, RunTrace

_FMA = "vector_f32_flop_per_s"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPoint:
    """One implementation of one operation as `mansard measure` timed it alone.

    Args:
        benchmark, impl, backend, name: What was measured.
        params: Its parameters.
        time_s: Median time of one operation [s].
        ci95_s: Its 95 % interval [s].
        flop: Matrix work [FLOP]; 0 where it has none.
        bytes: Compulsory traffic, or the data that is copied [B]; 0 where not counted.
        dtype: Element type of the operands, empty where the parameters have none.
        device: Name of the device that it ran on, as recorded; empty where it was not.
    """

    benchmark: str
    impl: str
    backend: str
    name: str
    params: Mapping[str, Any]
    time_s: float
    ci95_s: tuple[float, float]
    flop: float
    bytes: float
    dtype: str
    device: str = ""

    @property
    def label(self) -> str:
        """How it is named in a sentence."""
        return f"{self.benchmark}[{self.impl}]"


def points_of(elements: Iterable[Mapping[str, Any]]) -> tuple[MeasuredPoint, ...]:
    """Return the sound points of a `detailed.json`: what failed, was waived or is implausible is no evidence.

    Args:
        elements: Elements of `detailed.json`.
    """
    found = []
    for e in elements:
        metrics, meta = e.get("metrics") or {}, e["metadata"]
        if e["state"] != "done" or e.get("verdict") == "implausible" or not metrics.get("median_s"):
            continue
        params = meta["params"]
        median = float(metrics["median_s"])
        found.append(
            MeasuredPoint(
                benchmark=meta["benchmark_name"], impl=meta["impl"], backend=meta["backend"], name=meta["test_name"],
                params=dict(params), time_s=median,
                ci95_s=(float(metrics.get("ci95_low_s") or median), float(metrics.get("ci95_high_s") or median)),
                flop=_number(metrics.get("flop")), bytes=_number(metrics.get("bytes")) or _number(metrics.get("size_bytes")),
                dtype=str(params.get("in_dtype") or params.get("dtype") or ""),
                device=str((meta.get("device_info") or {}).get("device_name") or ""),
            )
        )  # fmt: skip
    return tuple(found)


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadFacts:
    """What the program computes, as far as its user or its model tells.

    Args:
        phase: `training`, `prefill` or `decode`; empty where not known.
        sequences: Sequences in one step.
        tokens: Tokens in one step, padding included.
        real_tokens: Those that are no padding.
        vocab: Rows of the output head.
        causal: Whether a query sees earlier keys alone.
        cache_dtype: Element type of the cache of keys and values.
        cache_bytes: Bytes of the cache that one step reads [B].
    """

    phase: str = ""
    sequences: int | None = None
    tokens: int | None = None
    real_tokens: int | None = None
    vocab: int | None = None
    causal: bool | None = None
    cache_dtype: str = ""
    cache_bytes: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchGaps:
    """Gaps between pieces of device work in one step, told apart by whether the next piece was already queued.

    Args:
        late_s: The host had not yet called for the next piece, and was on its way there: in short calls or short Python [s per step].
        queued_s: The next piece was queued: what starting it costs the device [s per step].
        launches: Pieces of device work per step.
        paused_s: The host had not yet called either, but did something longer: a long call or other Python [s per step].
    """

    late_s: float
    queued_s: float
    launches: float
    paused_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockFacts:
    """The clock during the run and the one that the compute ceilings were taken at.

    Args:
        observed_hz: During the run [Hz].
        ceiling_hz: Of the ceilings [Hz].
        reason: Why it is lower, where the system tells (power cap, heat); empty otherwise.
    """

    observed_hz: float
    ceiling_hz: float
    reason: str = ""


def clock_of_probes(drift: Mapping[str, Any], machine: Mapping[str, Any]) -> ClockFacts | None:
    """Return the clock that the probes around a run show, where it is clearly another; None where they show none.

    The rate of a chain of FMA follows the clock alone. A probe under other load says nothing, and what is nearer than a
    regime is noise.

    Args:
        drift: `before`, `after` and `typical` figures of the probes, as `regime.seen_regime` returns them.
        machine: What the ceilings say of the machine: `clock_hz_estimated` [Hz].

    >>> quiet = {"vector_f32_flop_per_s": 80e9, "foreign_load_ratio": 0.0}
    >>> clock_of_probes({"before": quiet, "after": {}, "typical": {"vector_f32_flop_per_s": 100e9}}, {"clock_hz_estimated": 4e9})
    ClockFacts(observed_hz=3200000000.0, ceiling_hz=4000000000.0, reason='by the FMA rate before and after the run')
    """
    typical, clock = drift.get("typical", {}).get(_FMA), machine.get("clock_hz_estimated")
    probes = [p for p in (drift.get("before"), drift.get("after")) if p]
    rates = [float(p[_FMA]) for p in probes if p.get(_FMA) and p.get("foreign_load_ratio", 0.0) <= FOREIGN_LOAD]
    if not typical or not clock or not rates:
        return None
    ratio = max(rates) / float(typical)
    if ratio >= ANOTHER_REGIME:
        return None
    return ClockFacts(
        observed_hz=float(clock) * ratio, ceiling_hz=float(clock), reason="by the FMA rate before and after the run"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """Capacity of the memory and what the run used of it.

    Args:
        peak_bytes: Highest use [B].
        capacity_bytes: What there is [B].
        allocations: Calls per step that ask the driver or the system for memory or give it back, such as cudaMalloc and cudaFree.
        allocation_s: Their time [s per step].
    """

    peak_bytes: float | None = None
    capacity_bytes: float | None = None
    allocations: float | None = None
    allocation_s: float | None = None

    @property
    def free_bytes(self) -> float | None:
        """Memory that was never used [B]; None where not known."""
        if self.peak_bytes is None or self.capacity_bytes is None:
            return None
        return max(0.0, self.capacity_bytes - self.peak_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFacts:
    """What the profiles of several ranks say of this one.

    Args:
        rank: This rank.
        waiting_s: Time of its collectives beyond that of the shortest peer [s per step].
        straggler: Rank that makes the others wait most; None where none stands out.
        straggler_share: Its part of all lateness.
        ranks: Ranks compared.
    """

    rank: int
    waiting_s: float
    straggler: int | None
    straggler_share: float
    ranks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferFacts:
    """How one kind of copy between host and device was done.

    Args:
        pinned: Whether the host memory was pinned; None where not recorded.
        latency_s: From the request of a piece to its end when nothing else is under way [s]; None where not known.
        in_flight_bytes: Bytes requested and not yet there, on average [B]; None where not known.
    """

    pinned: bool | None = None
    latency_s: float | None = None
    in_flight_bytes: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertFacts:
    """How routed tokens fall on the devices that share the experts.

    Args:
        tokens_by_rank: Tokens that the experts of each rank got in one step.
        rank: This rank.
    """

    tokens_by_rank: tuple[float, ...]
    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadFacts:
    """Fetching of experts, or other weights, from a farther memory.

    Args:
        bytes_each: Size of one piece [B].
        pieces: Pieces per step.
        rate_bytes_per_s: What was reached [B/s].
        ceiling_bytes_per_s: What the link reaches when measured [B/s].
        declared_bytes_per_s: What its sheet says [B/s]; None where not known.
        exposed_s: Time in which the step waits for them [s per step].
        in_flight: Pieces under way at once.
    """

    bytes_each: float
    pieces: float
    rate_bytes_per_s: float
    ceiling_bytes_per_s: float
    exposed_s: float
    declared_bytes_per_s: float | None = None
    in_flight: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineFacts:
    """A pipeline over devices and the idle time that was seen in it.

    Args:
        stages: Devices in a row.
        microbatches: Parts of a batch.
        bubble_s: Idle time of this stage while others work, from the trace [s per step].
        virtual_stages: Parts of the model that each device holds.
    """

    stages: int
    microbatches: int
    bubble_s: float
    virtual_stages: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """How a kernel is spread over a device.

    Args:
        blocks: Blocks or workgroups of one launch.
        per_unit: Blocks that one multiprocessor holds at once.
        units: Multiprocessors.
    """

    blocks: float
    per_unit: float
    units: float

    @property
    def filled_units_ratio(self) -> float:
        """Share of the units' time that has work, if a unit is as fast however many of its places are taken.

        The unit with the most blocks decides the time. What empty places of a busy unit cost is not in it: one block may well
        use all of it.

        Source: NVIDIA, Matrix Multiplication Background User's Guide, wave quantisation.

        >>> Grid(blocks=133.0, per_unit=1.0, units=132.0).filled_units_ratio  # a second block for one unit
        0.5037878787878788
        >>> Grid(blocks=132.0, per_unit=2.0, units=132.0).filled_units_ratio  # half of the places, and work for every unit
        1.0
        """
        return self.blocks / (-(-self.blocks // self.units) * self.units)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All of it; every field is empty where it is not known.

    Args:
        points: Measured points.
        workload: What the program computes.
        gaps: Launch gaps of the device.
        clock: Clocks.
        memory: Use of memory.
        ranks: What other ranks' profiles say.
        transfers: By kind of operation (index into `RunTrace.operators`).
        experts, offload, pipeline: As named.
        grids: By kind of operation.
        node_devices: Devices of one node.
        cores_busy: Cores that computed while operations ran, at most, for a run on a CPU.
        blocked_s: Idle time of the device in which its next work had been queued before [s per step]; None where not known.
        host_unseen: Whether next to nothing of the host was recorded while the device waited for its few pieces of work.
        foreign_load_ratio: Share of the processors that other programs used around the run, at most; None where not known.
    """

    points: tuple[MeasuredPoint, ...] = ()
    workload: WorkloadFacts = field(default_factory=WorkloadFacts)
    gaps: LaunchGaps | None = None
    clock: ClockFacts | None = None
    memory: MemoryUse = field(default_factory=MemoryUse)
    ranks: RankFacts | None = None
    transfers: Mapping[int, TransferFacts] = field(default_factory=dict)
    experts: ExpertFacts | None = None
    offload: OffloadFacts | None = None
    pipeline: PipelineFacts | None = None
    grids: Mapping[int, Grid] = field(default_factory=dict)
    node_devices: int | None = None
    cores_busy: float | None = None
    blocked_s: float | None = None
    host_unseen: bool = False
    foreign_load_ratio: float | None = None


def foreign_load_of(drift: Mapping[str, Any] | None) -> float | None:
    """Return what others used of the processors around a run, at most; None where no probe tells.

    Args:
        drift: `before` and `after` figures of the probes, as `regime.seen_regime` returns them.

    >>> foreign_load_of({"before": {"foreign_load_ratio": 0.1}, "after": {"foreign_load_ratio": 0.4}}), foreign_load_of(None)
    (0.4, None)
    """
    probes = [(drift or {}).get("before"), (drift or {}).get("after")]
    return max((float(p.get("foreign_load_ratio", 0.0)) for p in probes if p), default=None)


def cores_busy_of(trace: RunTrace) -> float | None:
    """Return how many cores computed while operations ran, at most; None where processor time was not recorded.

    All processor time of the process is given to its operations, that of waiting in a loop for work included: so it is an upper
    bound, and only what it lacks to the number of threads is evidence.

    Args:
        trace: A run on a processor.
    """
    if trace.cores_used is None or trace.scope == "device" or not trace.op.size:
        return None
    first, last = trace.window_ns
    busy = merge(trace.start_ns, trace.end_ns).clipped(first, last).length_ns
    if busy <= 0:
        return None
    return min(float(trace.threads), trace.cores_used * (last - first) / busy)


_SHAPE = re.compile(r"([a-z][a-z0-9_]*)\[([0-9,]*)\]")


def operand_shapes(text: str) -> list[tuple[str, tuple[int, ...]]]:
    """Return element type and dimensions of the operands that a text of shapes names; a result after `->` is left out.

    >>> operand_shapes("f32[2,3] f32[3,4] -> f32[2,4]")
    [('f32', (2, 3)), ('f32', (3, 4))]
    """
    before = text.split("->")[0]
    return [(t, tuple(int(d) for d in dims.split(",") if d)) for t, dims in _SHAPE.findall(before)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """One matrix product: m x k by k x n, `batch` times.

    Args:
        m, k, n, batch: Sizes.
        dtype: Element type of the operands.
    """

    m: int
    k: int
    n: int
    batch: int
    dtype: str


def product_of(operator: Operator) -> Product | None:
    """Return the sizes of a matrix product; None unless its operands and its FLOP agree on one reading.

    >>> from mansard.core import Demand
    >>> from mansard.trace.run import Part
    >>> op = Operator(name="aten::mm", category="gemm", part=Part.FORWARD, shapes="f32[2,3] f32[3,4]",
    ...               demand=Demand(flop={("f32", "f32"): 48.0}))
    >>> product_of(op)
    Product(m=2, k=3, n=4, batch=1, dtype='f32')
    """
    demand = operator.demand
    if operator.category != "gemm" or isinstance(demand, Unknown) or float(demand.total_flop) <= 0:
        return None
    wide = [(t, d) for t, d in operand_shapes(operator.shapes) if len(d) >= 2]
    readings = set()
    for (kind, a), (_, b) in _pairs(wide):
        for right, transposed in ((b[-2:], False), (b[-2:][::-1], True)):
            k, n = right
            if a[-1] != k:
                continue
            batch = prod(b[:-2])
            rows = prod(a[:-1])
            if batch > 1 and (prod(a[:-2]) != batch or transposed):
                continue
            m = rows // batch
            if abs(2.0 * m * k * n * batch / float(demand.total_flop) - 1.0) < 1e-6:
                readings.add(Product(m=m, k=k, n=n, batch=batch, dtype=kind))
    return readings.pop() if len(readings) == 1 else None


def _pairs(
    operands: Sequence[tuple[str, tuple[int, ...]]],
) -> Iterable[tuple[tuple[str, tuple[int, ...]], tuple[str, tuple[int, ...]]]]:
    return [(operands[i], operands[i + 1]) for i in range(len(operands) - 1)]
