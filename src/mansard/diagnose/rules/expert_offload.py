"""Experts are fetched from a farther memory below what the link can do.

Needs: size and number of the pieces, the rate reached, the measured ceiling of the link, and the time in which the step waits for them.
Promises: the exposed time times one less the ratio of the rates; the number of pieces in flight that fills the link is named.
Source: Little, Operations Research 9(3), 1961: in flight = rate x time of a piece.
"""

from __future__ import annotations

from math import ceil

from mansard.core.units import format_bytes, format_bytes_per_s, format_s
from mansard.diagnose.case import Case, Change, Proposal
from mansard.diagnose.facts import OffloadFacts


def pieces_in_flight(offload: OffloadFacts) -> int:
    """Return how many pieces must be under way at once to fill the link, if each takes as long as now.

    One piece of 9.4 MB takes 42.7 us at 220 GB/s; at 418 GB/s 17.86 MB must be under way: 1.9 pieces.

    >>> pieces_in_flight(OffloadFacts(bytes_each=9.4e6, pieces=1.0, rate_bytes_per_s=220e9, ceiling_bytes_per_s=418e9, exposed_s=1.0))
    2
    """
    piece_s = offload.in_flight * offload.bytes_each / offload.rate_bytes_per_s
    return ceil(offload.ceiling_bytes_per_s * piece_s / offload.bytes_each - 1e-9)


def expert_offload(case: Case) -> Proposal | None:
    """Advise on filling the link that experts come over."""
    offload = case.facts.offload
    if offload is None or offload.exposed_s <= 0 or offload.rate_bytes_per_s >= offload.ceiling_bytes_per_s:
        return None
    waits = ("network", "host", "unattributed")
    exposed = min(offload.exposed_s, sum(case.wait_s(w) for w in waits))
    declared = (
        f", {format_bytes_per_s(offload.declared_bytes_per_s)} declared"
        if offload.declared_bytes_per_s is not None
        else ""
    )
    return Proposal(
        rule="expert_offload",
        change=Change.WAIT,
        waits=waits,
        gain_s=exposed * (1.0 - offload.rate_bytes_per_s / offload.ceiling_bytes_per_s),
        text=f"Fetch {pieces_in_flight(offload)} experts at once instead of {offload.in_flight:.0f}, before they are needed, and keep the "
        "busiest on the device.",
        evidence=f"{offload.pieces:.0f} pieces of {format_bytes(offload.bytes_each)} a step at "
        f"{format_bytes_per_s(offload.rate_bytes_per_s)} of {format_bytes_per_s(offload.ceiling_bytes_per_s)} measured{declared}; the step "
        f"waits {format_s(exposed)} for them",
    )


RULE = expert_offload
