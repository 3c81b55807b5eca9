"""Too few bytes are under way to fill the link between host and device.

Needs: bytes in flight and the latency of a piece, as recorded, and the ceiling of the link. In flight must be rate times latency.
Promises: the time of these copies less the time at the ceiling of the link.
Source: Little, Operations Research 9(3), 1961: mean number in a system = arrival rate x mean time in it.
"""

from __future__ import annotations

from mansard.core import Demand, Unknown
from mansard.core.units import format_binary_bytes, format_bytes_per_s, format_s
from mansard.diagnose.case import Case, Change, Proposal


def transfers_in_flight(case: Case) -> Proposal | None:
    """Advise on larger pieces, or more of them at once, where the link waits for requests."""
    best: Proposal | None = None
    for row in case.host_copies():
        facts, demand = case.facts.transfers.get(row.index), row.operator.demand
        if facts is None or facts.latency_s is None or facts.in_flight_bytes is None or not isinstance(demand, Demand):
            continue
        if len(demand.link_bytes) != 1 or isinstance(row.least.time_s, Unknown):
            continue
        link, each = next(iter(demand.link_bytes.items()))
        ceiling = case.ceilings.link(link)
        if isinstance(ceiling, Unknown):
            continue
        needed = ceiling.value * facts.latency_s
        gain = case.headroom_s([row])
        if facts.in_flight_bytes >= needed or gain <= 0 or (best is not None and gain <= best.gain_s):
            continue
        time_s = case.per_step_s([row])
        rate = float(each) * case.calls([row]) / time_s
        best = Proposal(
            rule="transfers_in_flight",
            change=Change.RATE,
            rows=(row.index,),
            gain_s=gain,
            text=f"Keep more bytes under way on {link}: larger pieces, or {needed / facts.in_flight_bytes:.1f} times as many at once "
            "on several streams.",
            evidence=f"{format_bytes_per_s(rate)} of {format_bytes_per_s(ceiling.value)}: {format_binary_bytes(facts.in_flight_bytes)} in "
            f"flight, {format_s(facts.latency_s)} each, and {format_binary_bytes(needed)} would fill the link",
        )
    return best


RULE = transfers_in_flight
