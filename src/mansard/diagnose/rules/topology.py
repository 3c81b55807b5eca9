"""A group that would fit into one node talks over the slower link between nodes.

Needs: ranks of the group, devices of a node, and the ceilings of both links.
Promises: the time of these collectives times one less the ratio of the two rates: the same share of the faster link.
Source: docs/design.md, one equation; bytes that each device must send do not depend on the placement.
"""

from __future__ import annotations

from dataclasses import replace

from mansard.core import Area, Bound
from mansard.core.units import format_bytes_per_s, format_s
from mansard.diagnose.case import Case, Change, Proposal
from mansard.diagnose.talks import talks_of


def topology(case: Case) -> Proposal | None:
    """Advise on placing groups inside a node."""
    node = case.facts.node_devices
    if node is None:
        return None
    rates = {
        c.resource.link: c.value
        for c in reversed(case.ceilings.find(scope="device", area=Area.NETWORK))
        if c.resource.link
    }
    rows, gain, text = [], 0.0, ""
    for talk in talks_of(case):
        faster = {name: rate for name, rate in rates.items() if rate > rates.get(talk.link, float("inf"))}
        if (
            talk.ranks is None
            or not 1 < talk.ranks <= node
            or not faster
            or talk.row.judgement.bound is not Bound.NETWORK
        ):
            continue
        name = max(faster, key=lambda n: faster[n])
        rows.append(talk.row)
        gain += case.per_step_s([talk.row]) * (1.0 - rates[talk.link] / faster[name])
        text = text or (
            f"{talk.operation} of {talk.ranks} ranks goes over {talk.link} ({format_bytes_per_s(rates[talk.link])}) although a node has "
            f"{node} devices on {name} ({format_bytes_per_s(faster[name])})"
        )
    if not rows:
        return None
    proposal = Proposal(
        rule="topology",
        change=Change.WORK,
        rows=tuple(r.index for r in rows),
        gain_s=gain,
        text="Place the ranks of small groups inside one node: tensor- and expert-parallel ranks innermost, data-parallel outermost.",
        evidence=f"{text}; {format_s(case.per_step_s(rows))} a step",
    )
    # What other work hides goes on being hidden, and saves nothing.
    return replace(proposal, gain_s=min(gain, case.limit_s(proposal)))


RULE = topology
