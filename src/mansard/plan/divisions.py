"""The ways to divide a model that `plan size` tries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from mansard.workload.parallel import Plan
from mansard.workload.records import Model, Moe

if TYPE_CHECKING:
    from mansard.plan.size import Job


def divisions_of(model: Model, job: Job, tp_most: int) -> Iterator[tuple[Plan, Sequence[int]]]:
    """Plans without pipeline stages, each with the numbers of stages to try, the fewest devices first."""
    experts = any(isinstance(b, Moe) for g in model.text.groups for b in g.layer.blocks)
    for tp in range(1, tp_most + 1):
        if job.phase == "train":
            batch = job.batch or 1
            for dp in (d for d in range(1, batch + 1) if batch % d == 0):
                yield Plan(tp=tp, dp=dp, zero=3), (1,)
            continue
        stages = range(1, model.text.depth + 1)
        for ep in (1, tp) if experts and tp > 1 else (1,):
            if job.devices is None:
                yield Plan(tp=tp, ep=ep), stages
                continue
            for dp in (
                d for d in range(1, job.devices + 1) if job.devices % (tp * d) == 0 and job.concurrency % d == 0
            ):
                ranks = job.devices // tp // dp
                if ranks <= model.text.depth:
                    yield Plan(tp=tp, ep=ep, dp=dp), (ranks,)
