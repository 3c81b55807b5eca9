"""Communication that nothing hides, while there is computation that could hide it.

Needs: time in which a collective runs and no computation does; computing kernels in the same step.
Promises: at most the exposed time that is no waiting for late peers, and at most the time of the computation that is not overlapped yet.
What is beyond that can only be saved by sending less (another sharding) or waiting less.
Source: docs/design.md, exposed communication; Li et al., PyTorch Distributed, VLDB 2020 (bucketed overlap).
"""

from __future__ import annotations

from mansard.core.units import format_ratio, format_s
from mansard.diagnose.case import Case, Change, Proposal
from mansard.diagnose.talks import waiting_s


def overlap_communication(case: Case) -> Proposal | None:
    """Advise on hiding exposed communication behind computation."""
    rows = case.of_category("collective")
    exposed = case.wait_s("network")
    if not rows or exposed <= 0:
        return None
    hideable = exposed - waiting_s(case)
    computing = case.computing_s()
    gain = min(hideable, computing)
    if gain <= 0:
        return None
    largest = sorted(rows, key=lambda r: -r.total_s)[:3]
    named = [r.operator.source if r.operator.source not in ("", "unknown") else r.operator.name for r in largest]
    names = ", ".join(dict.fromkeys(named))
    rest = hideable - gain
    more = (
        f"; {format_s(rest)} of it cannot be hidden: only less communication, or less waiting for peers, saves it"
        if rest > 0.02 * case.account.step_s
        else ""
    )
    return Proposal(
        rule="overlap_communication",
        change=Change.WAIT,
        waits=("network",),
        gain_s=gain,
        text=f"Overlap communication with computation, first {names}: prefetch gathers one layer ahead, start reductions as gradients "
        "become ready, and give collectives a stream of their own.",
        evidence=f"for {format_s(exposed)} of a step ({format_ratio(exposed / case.account.step_s)}) a collective runs and nothing "
        f"computes; {format_s(computing)} of other work could hide it{more}",
    )


RULE = overlap_communication
