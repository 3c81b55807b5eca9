"""The program waits for its data.

Needs: recorded waits for input.
Promises: at most the time of these waits.
Source: docs/design.md, time shares of a step.
"""

from __future__ import annotations

from mansard.core.units import format_ratio, format_s
from mansard.diagnose.case import Case, Change, Proposal

_HOW = {
    "torch": "Load data beside the step: DataLoader(num_workers=..., persistent_workers=True, prefetch_factor=...), or do the "
    "preparation once, ahead of training.",
    "jax": "Load data beside the step: a prefetch thread, or worker processes (Grain, tf.data with prefetch), or do the "
    "preparation once, ahead of training.",
}


def input_pipeline(case: Case) -> Proposal | None:
    """Advise on the input pipeline where the step waits for data."""
    wait = case.account.host.get("input", 0.0)
    if wait <= 0:
        return None
    return Proposal(
        rule="input_pipeline",
        change=Change.WAIT,
        waits=("input",),
        gain_s=wait,
        text=_HOW.get(case.trace.framework, "Load data beside the step, or prepare it once, ahead of training."),
        evidence=f"the step waits {format_s(wait)} ({format_ratio(wait / case.account.step_s)}) for its next batch",
    )


RULE = input_pipeline
