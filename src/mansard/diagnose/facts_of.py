"""What a profile, a model and several ranks tell beside the operations: the facts that rules ask for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from mansard.core import Unknown
from mansard.core.intervals import EMPTY, IntervalSet, difference, intersection, merge
from mansard.diagnose.facts import Facts, LaunchGaps, MeasuredPoint, PipelineFacts, RankFacts, WorkloadFacts
from mansard.diagnose.facts_of_device import grids_of, memory_of, transfers_of
from mansard.diagnose.profile_run import LONGEST_DISPATCH_NS, host_unseen
from mansard.predict.estimate import Estimate
from mansard.trace.idle import Idle, host_calls
from mansard.trace.ranks import JobRanks
from mansard.trace.run import RunTrace
from mansard.trace.timeline import Timeline
from mansard.workload.records import GqaAttention, Linear

#: Exchanges of two neighbours, as stages of a pipeline have them.
_PEER = ("send", "recv", "send_recv")
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
    micro_batches: int | None = None,
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
        micro_batches: Backward passes of a step, as the profile shows them.
    """
    calls = calls if calls is not None else host_calls(timeline)
    unseen = host_unseen(idle, calls, run.steps, run.start_ns, run.end_ns)
    if not run.steps.count:
        gaps, blocked = None, None
        memory = memory_of(timeline, device, None, EMPTY, 0)
    else:
        steps = merge(run.steps.start_ns, run.steps.end_ns)
        gaps = None if kernels_missing or unseen else _gaps(calls, run, idle, steps)
        memory = memory_of(timeline, device, idle, steps, run.steps.count)
        waited = intersection(idle.blocked, steps).length_ns * _S / run.steps.count
        blocked = None if kernels_missing else waited
    return Facts(
        points=tuple(points), gaps=gaps, memory=memory, transfers=transfers_of(timeline, device, run), grids=grids_of(timeline, device, run),
        pipeline=_pipeline(estimate, micro_batches, run, blocked), node_devices=node_devices,
        workload=WorkloadFacts() if estimate is None else workload_of(estimate), blocked_s=blocked,
        host_unseen=unseen,
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


def _pipeline(
    estimate: Estimate | None, micro_batches: int | None, run: RunTrace, blocked_s: float | None
) -> PipelineFacts | None:
    """Return the bubble of a stage where the plan that was given has a pipeline.

    A stage waits with work queued, or inside a receive while nothing else runs: both are idle time of the stage.
    """
    stages = 1 if estimate is None else estimate.request.plan.pp
    parts = micro_batches or (estimate.request.accumulation if estimate is not None else None)
    if stages < 2 or not parts or not run.steps.count:
        return None
    talks = np.array([o.category == "collective" and o.source in _PEER for o in run.operators] or [False])[run.op]
    steps = merge(run.steps.start_ns, run.steps.end_ns)
    alone = difference(merge(run.start_ns[talks], run.end_ns[talks]), merge(run.start_ns[~talks], run.end_ns[~talks]))
    waiting_s = intersection(alone, steps).length_ns * _S / run.steps.count
    return PipelineFacts(stages=stages, microbatches=parts, bubble_s=waiting_s + (blocked_s or 0.0))


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
