"""A stage of a pipeline is idle while the others fill and drain it.

Needs: stages, micro-batches and the idle time that the trace shows for them.
Promises: the idle time times what twice as many micro-batches leave out of the ideal bubble (p - 1) / (v m + p - 1).
Source: Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters, SC 2021, interleaved schedule.
"""

from __future__ import annotations

from mansard.core.units import format_ratio, format_s
from mansard.diagnose.case import Case, Change, Proposal


def bubble_ratio(stages: int, microbatches: int, virtual_stages: int = 1) -> float:
    """Return the share of a step that an ideal pipeline is idle.

    >>> bubble_ratio(4, 8), round(bubble_ratio(4, 8, 2), 4)
    (0.2727272727272727, 0.1579)
    """
    return (stages - 1) / (virtual_stages * microbatches + stages - 1)


def pipeline_bubbles(case: Case) -> Proposal | None:
    """Advise on more micro-batches where a stage is idle."""
    pipeline = case.facts.pipeline
    if pipeline is None or pipeline.stages < 2 or pipeline.bubble_s <= 0:
        return None
    waits = ("network", "sync", "unattributed")
    seen = min(pipeline.bubble_s, sum(case.wait_s(w) for w in waits))
    before = bubble_ratio(pipeline.stages, pipeline.microbatches, pipeline.virtual_stages)
    after = bubble_ratio(pipeline.stages, 2 * pipeline.microbatches, pipeline.virtual_stages)
    # Idle time per unit of work: bubble / (1 - bubble).
    left = after * (1.0 - before) / (before * (1.0 - after))
    if seen <= 0:
        return None
    return Proposal(
        rule="pipeline_bubbles",
        change=Change.WAIT,
        waits=waits,
        gain_s=seen * (1.0 - left),
        text=f"Use {2 * pipeline.microbatches} micro-batches instead of {pipeline.microbatches}, or an interleaved schedule.",
        evidence=f"this stage is idle for {format_s(seen)} a step ({format_ratio(seen / case.account.step_s)}); {pipeline.stages} stages and "
        f"{pipeline.microbatches} micro-batches leave {format_ratio(before)} idle at best",
    )


RULE = pipeline_bubbles
