"""Other programs used much of the processors around the run: its times are theirs too, and so is every other piece of advice.

Needs: the load of other programs that the probes before and after a run saw, a quarter of the processors or more.
Promises: at most that share of a step, which is what others can have taken of it. It is said before all others, whatever they promise:
a remedy for a time that others caused saves nothing.
Source: docs/measured_runs.md, probes around a run; the share of processor time that was not the program's own.
"""

from __future__ import annotations

from mansard.core.units import format_ratio, format_s
from mansard.diagnose.case import Case, Change, Proposal
from mansard.diagnose.records import SHARE_KINDS

#: Share of the processors from which on the load of others comes before every other cause.
HEAVY = 0.25


def idle_machine(case: Case) -> Proposal | None:
    """Advise to record again where others used much of the machine."""
    load = case.facts.foreign_load_ratio
    if load is None or load < HEAVY:
        return None
    taken = min(1.0, load) * case.account.step_s
    return Proposal(
        rule="idle_machine",
        change=Change.WAIT,
        waits=SHARE_KINDS,
        gain_s=taken,
        text="Record again on an idle machine before anything else is changed: other programs are in every figure of this run.",
        evidence=f"other programs used {format_ratio(load)} of the processors around the run, up to {format_s(taken)} of a step",
    )


RULE = idle_machine
