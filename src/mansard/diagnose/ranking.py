"""Ranking of advice: no promise above what it addresses, no contradiction, nothing said twice, shared seconds said to be shared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import isfinite

from mansard.core import Bound
from mansard.diagnose.case import Case, Change, Proposal
from mansard.diagnose.records import Advice

#: One of each pair can be followed: where the first speaks the second must not, whatever it could save.
BLOCKS = (
    ("memory_thrash", "remat_or_store"),  # memory is full: nothing more can be kept
    ("memory_thrash", "batch_to_ridge"),
    ("memory_thrash", "reshard"),
)
#: Of these only the larger gain is kept: they are two ways to spend or to save the same seconds.
EITHER = (
    ("attention_implementation", "fusion"),
    ("overlap_communication", "reshard"),
    ("overlap_communication", "pipeline_bubbles"),
    ("pinned_transfers", "transfers_in_flight"),
    ("pinned_transfers", "overlap_copies"),
    ("transfers_in_flight", "overlap_copies"),
    ("batch_to_ridge", "kv_cache_dtype"),
    ("dispatch", "launch_bound"),
    ("host_python", "launch_bound"),
)
#: Rules that name operations without naming a cause, and give way to one that does.
GENERAL = ("below_ceiling", "far_below")
#: Rules that come before all others: while they speak no other gain can be relied on.
FIRST = ("idle_machine",)
#: A general rule gives way where special ones explain this much of its gain on the same operations.
GIVES_WAY = 0.5


def ranked(case: Case, proposals: Sequence[Proposal], *, least_share: float = 0.02) -> tuple[Advice, ...]:
    """Return what is worth saying, the largest gain first; what casts doubt on all of it before.

    Args:
        case: What the proposals are about.
        proposals: One per rule that speaks.
        least_share: Gains below this share of the step are left out.
    """
    kept = [bounded for p in proposals if (bounded := bounded_by_headroom(case, p)) is not None]
    kept = [p for p in kept if p.gain_s >= least_share * case.account.step_s]
    kept.sort(key=lambda p: (p.rule not in FIRST, -p.gain_s, p.rule))
    kept = _without_contradictions(case, kept)
    kept = _without_general(kept)
    return tuple(_plain(case, p, kept) for p in kept)


def bounded_by_headroom(case: Case, proposal: Proposal) -> Proposal | None:
    """Return the proposal with a gain no larger than the headroom it addresses; None where nothing is left of it."""
    limit = case.limit_s(proposal)
    if not isfinite(proposal.gain_s) or proposal.gain_s <= 0 or limit <= 0:
        return None
    return replace(proposal, gain_s=min(proposal.gain_s, limit), headroom_s=limit)


def seconds_of(case: Case, proposal: Proposal) -> frozenset[str]:
    """Return names of the seconds that a proposal is about; two proposals with a common name save some seconds twice."""
    named = {f"operator {i}" for i in proposal.rows}
    area = {j.index: j.judgement.bound for j in case.judged}
    for wait in proposal.waits:
        named.add(f"wait {wait}")
        if wait in {b.value for b in Bound}:
            named |= {f"operator {i}" for i, bound in area.items() if bound.value == wait}
        if wait in ("host",):
            named |= {f"wait {cause}" for cause in case.account.host}
    return frozenset(named)


def _without_contradictions(case: Case, proposals: Sequence[Proposal]) -> list[Proposal]:
    said = {p.rule: p for p in proposals}
    out: dict[str, Proposal] = dict(said)
    for first, second in BLOCKS:
        if first in out and second in out:
            out[first] = replace(out[first], instead_of=(*out[first].instead_of, second))
            del out[second]
    for pair in EITHER:
        if pair[0] in out and pair[1] in out:
            a, b = (out[name] for name in pair)
            if not seconds_of(case, a) & seconds_of(case, b):
                continue
            better, worse = (a, b) if a.gain_s >= b.gain_s else (b, a)
            out[better.rule] = replace(better, instead_of=(*better.instead_of, worse.rule))
            del out[worse.rule]
    return [out[p.rule] for p in proposals if p.rule in out]


def _without_general(proposals: Sequence[Proposal]) -> list[Proposal]:
    special = [p for p in proposals if p.rule not in GENERAL and p.change is Change.RATE]
    kept = []
    for p in proposals:
        mine = set(p.rows)
        if p.rule in GENERAL and mine:
            covering = [s for s in special if mine & set(s.rows)]
            covered = {i for s in covering for i in s.rows}
            if mine <= covered and sum(s.gain_s for s in covering) >= GIVES_WAY * p.gain_s:
                continue
        kept.append(p)
    return kept


def _plain(case: Case, proposal: Proposal, kept: Sequence[Proposal]) -> Advice:
    mine = seconds_of(case, proposal)
    shared = tuple(p.rule for p in kept if p is not proposal and mine & seconds_of(case, p))
    return Advice(
        rule=proposal.rule, gain_s=proposal.gain_s, text=proposal.text, evidence=proposal.evidence, grade=proposal.grade,
        headroom_s=proposal.headroom_s, overlaps=shared, instead_of=proposal.instead_of,
    )  # fmt: skip
