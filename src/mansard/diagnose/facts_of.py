"""What a profile, a model and several ranks tell beside the operations: the facts that rules ask for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from mansard.core import Unknown
from mansard.core.intervals import IntervalSet, intersection, merge
from mansard.diagnose.facts import Facts, LaunchGaps, MeasuredPoint, MemoryUse, RankFacts, TransferFacts, WorkloadFacts
from mansard.diagnose.judge_operators import HOST_COPY_NAMES
from mansard.diagnose.profile_run import LONGEST_DISPATCH_NS
from mansard.predict.estimate import Estimate
from mansard.trace.idle import Idle, host_calls
from mansard.trace.ranks import JobRanks
from mansard.trace.run import RunTrace
from mansard.trace.timeline import Kind, Timeline
from mansard.workload.records import GqaAttention, Linear

#: Calls that get device memory from the driver or give it back.
_ALLOCATING = (
    "cudaMalloc",
    "cudaFree",
    "cuMemAlloc",
    "cuMemFree",
    "cuMemCreate",
    "cuMemRelease",
    "hipMalloc",
    "hipFree",
)
#: Allocation from the driver's own pool, or of host memory, is another matter.
_NOT_ALLOCATING = ("Async", "Host", "Managed", "Array")
_PHASES = {"train": "training", "prefill": "prefill", "decode": "decode"}
_S = 1e-9


def facts_of_profile(
    timeline: Timeline,
    device: int,
    run: RunTrace,
    idle: Idle,
    *,
    calls: IntervalSet | None = None,
    kernels_missing: bool = False,
    points: Sequence[MeasuredPoint] = (),
    estimate: Estimate | None = None,
    node_devices: int | None = None,
) -> Facts:
    """Return what a profile tells of one device beside its operations.

    Args:
        timeline: The profile.
        device: Index of the device.
        run: The device as a run.
        idle: Its idle intervals by cause.
        calls: When the host was in a call, where that is at hand.
        kernels_missing: Whether kernels of graphs were not recorded; then no gap has a known cause.
        points: Measured points.
        estimate: A model in its phase.
        node_devices: Devices of one node.
    """
    if not run.steps.count:
        gaps, memory, blocked = None, MemoryUse(), None
    else:
        steps = merge(run.steps.start_ns, run.steps.end_ns)
        gaps = (
            None if kernels_missing else _gaps(calls if calls is not None else host_calls(timeline), run, idle, steps)
        )
        memory = _memory(timeline, device, idle, steps, run.steps.count)
        waited = intersection(idle.blocked, steps).length_ns * _S / run.steps.count
        blocked = None if kernels_missing else waited
    return Facts(
        points=tuple(points), gaps=gaps, memory=memory, transfers=_transfers(timeline, device, run), node_devices=node_devices,
        workload=WorkloadFacts() if estimate is None else workload_of(estimate), blocked_s=blocked,
    )  # fmt: skip


def _gaps(calls: IntervalSet, run: RunTrace, idle: Idle, steps: IntervalSet) -> LaunchGaps:
    """Return the launch gaps of a step; what the host does in one piece for long is a pause, and no launch."""
    late = intersection(idle.late, steps)
    length = late.end_ns - late.start_ns
    called = calls.covered_ns(late.start_ns, late.end_ns)
    # In each gap the time in calls and the time out of them are one piece each, which is the longer reading.
    short = np.where(called <= LONGEST_DISPATCH_NS, called, 0) + np.where(
        length - called <= LONGEST_DISPATCH_NS, length - called, 0
    )
    count = run.steps.count
    inside = steps.covered_ns(run.start_ns, run.start_ns + 1)
    return LaunchGaps(
        late_s=float(short.sum()) * _S / count, queued_s=intersection(idle.queued, steps).length_ns * _S / count,
        launches=float(inside.sum()) / count, paused_s=float((length - short).sum()) * _S / count,
    )  # fmt: skip


def _memory(timeline: Timeline, device: int, idle: Idle, steps: IntervalSet, count: int) -> MemoryUse:
    """Return the calls for device memory in steps, and the part of their time in which the device is idle."""
    size = timeline.devices[device].memory_bytes
    capacity = None if isinstance(size, Unknown) else float(size)
    table = timeline.of(Kind.RUNTIME)
    if not len(table):
        return MemoryUse(capacity_bytes=capacity)
    named = np.array(
        [n.startswith(_ALLOCATING) and not any(w in n for w in _NOT_ALLOCATING) for n in timeline.names] + [False]
    )
    rows = named[table.name]
    rows = rows & (steps.covered_ns(table.start_ns, table.start_ns + 1) > 0)
    nothing = merge(
        *(np.concatenate([getattr(s, side) for s in (idle.host_sync, idle.input_wait, idle.late, idle.queued, idle.unexplained)])
          for side in ("start_ns", "end_ns"))
    )  # fmt: skip
    waiting = intersection(nothing, merge(table.start_ns[rows], table.end_ns[rows]))
    return MemoryUse(
        capacity_bytes=capacity,
        allocations=float(np.count_nonzero(rows)) / count,
        allocation_s=waiting.length_ns * _S / count,
    )


def _transfers(timeline: Timeline, device: int, run: RunTrace) -> Mapping[int, TransferFacts]:
    """Return whether the host memory of each kind of copy was pinned, where the names of all its copies tell."""
    kinds = [i for i, o in enumerate(run.operators) if o.category == "copy" and o.name.startswith(HOST_COPY_NAMES)]
    table = timeline.of(Kind.COPY)
    if not kinds or not len(table):
        return {}
    mine = np.flatnonzero(table.device == device)
    place = mine[np.lexsort((table.end_ns[mine], table.start_ns[mine]))]
    told = np.array([_pinned(n) for n in timeline.names] + [-1], dtype=np.int8)
    starts = table.start_ns[place]
    found: dict[int, TransferFacts] = {}
    for kind in kinds:
        start: npt.NDArray[np.int64] = run.start_ns[run.op == kind]
        at = np.minimum(np.searchsorted(starts, start), starts.size - 1)
        state = set(told[table.name[place[at]]].tolist())
        if len(state) == 1 and -1 not in state:
            found[kind] = TransferFacts(pinned=state == {1})
    return found


def _pinned(name: str) -> int:
    """Return 1 for pinned, 0 for pageable, -1 where a name does not tell.

    >>> _pinned("Memcpy HtoD (Pinned -> Device)"), _pinned("Memcpy HtoD (Pageable -> Device)"), _pinned("MemcpyD2H")
    (1, 0, -1)
    """
    return 0 if "Pageable" in name else 1 if "Pinned" in name else -1


def workload_of(estimate: Estimate) -> WorkloadFacts:
    """Return what a model in its phase tells of a step of one device; None where its devices share it in an unknown way."""
    phase, plan, model = estimate.phase, estimate.request.plan, estimate.model
    alone = plan.devices == 1
    head = [b for b in model.head if isinstance(b, Linear)]
    attention = [b for g in model.text.groups for b in g.layer.blocks if isinstance(b, GqaAttention)]
    return WorkloadFacts(
        phase=_PHASES.get(estimate.request.phase, ""),
        sequences=int(float(phase.sequences)) if alone else None,
        tokens=int(float(phase.tokens)) if alone else None,
        vocab=model.vocab if head and alone else None,
        causal=True
        if attention and estimate.request.phase in ("train", "prefill") and _decoder(model.architecture)
        else None,
        cache_dtype=estimate.types.cache,
    )


def _decoder(architecture: str) -> bool:
    """Return whether a model generates text: each token sees earlier ones alone."""
    return architecture.endswith(("ForCausalLM", "LMHeadModel"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Peers:
    """What the profiles of several ranks say of one of them, over the whole of its profile.

    Args:
        rank: This rank, or its place where the file does not state it.
        waiting_ns: Time of its collectives beyond that of the shortest peer [ns].
        straggler: Rank that makes the others wait most; None where none stands out.
        straggler_share: Its part of all lateness.
        ranks: Ranks compared.
    """

    rank: int
    waiting_ns: int
    straggler: int | None
    straggler_share: float
    ranks: int


def peers_of(compared: JobRanks) -> list[Peers | None]:
    """Return what several ranks say of each of them; None of one whose waiting is not known.

    Args:
        compared: All ranks.
    """
    late = [0 if isinstance(r.late_ns, Unknown) else r.late_ns for r in compared.ranks]
    first, total = compared.straggler, sum(late)
    named = None if isinstance(first, Unknown) else compared.ranks[first].identity.rank
    found: list[Peers | None] = []
    for place, me in enumerate(compared.ranks):
        own = me.identity.rank
        found.append(
            None if isinstance(me.waiting_ns, Unknown) else
            Peers(
                rank=place if isinstance(own, Unknown) else own, waiting_ns=me.waiting_ns,
                straggler=None if isinstance(first, Unknown) else first if isinstance(named, Unknown) else named,
                straggler_share=0.0 if isinstance(first, Unknown) or not total else late[first] / total, ranks=len(late),
            )
        )  # fmt: skip
    return found


def with_ranks(facts: Facts, peers: Peers, steps: int) -> Facts:
    """Return facts with what several ranks say of one.

    Args:
        facts: Of that rank.
        peers: What they say of it.
        steps: Steps that its profile holds.
    """
    if steps < 1:
        return facts
    return replace(
        facts,
        ranks=RankFacts(
            rank=peers.rank, waiting_s=peers.waiting_ns * _S / steps, straggler=peers.straggler,
            straggler_share=peers.straggler_share, ranks=peers.ranks,
        ),
    )  # fmt: skip
