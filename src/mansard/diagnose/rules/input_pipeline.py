"""The program waits for its data."""

from __future__ import annotations

from mansard.core.units import format_ratio, format_s
from mansard.diagnose.records import Advice
from mansard.diagnose.rules import Case


def input_pipeline(case: Case) -> Advice | None:
    """Advise on the input pipeline where the step waits for data."""
    wait = case.account.host.get("input", 0.0)
    if wait <= 0:
        return None
    return Advice(
        rule="input_pipeline",
        gain_s=wait,
        text="Load data beside the step: worker processes and prefetching, or do the preparation once, ahead of training.",
        evidence=f"the step waits {format_s(wait)} ({format_ratio(wait / case.account.step_s)}) for its next batch",
    )


RULE = input_pipeline
