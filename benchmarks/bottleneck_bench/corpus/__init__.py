"""A generated corpus of profiles whose bottleneck is known because it was put there."""

from __future__ import annotations

from corpus.alone import compute_cases, host_cases, latency_cases, memory_cases, mixed_cases, network_cases
from corpus.cases import Case
from corpus.decoys import decoy_cases
from corpus.held_out import held_out_cases
from corpus.held_out2 import held_out2_cases

__all__ = ["Case", "all_cases"]


def all_cases() -> list[Case]:
    """Return every case, in a fixed order."""
    return [
        *compute_cases(),
        *memory_cases(),
        *network_cases(),
        *host_cases(),
        *latency_cases(),
        *mixed_cases(),
        *decoy_cases(),
        *held_out_cases(),
        *held_out2_cases(),
    ]
