"""Collectives of a run as the rules about communication need them: operation, size, ranks, link, and the measured fit for them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mansard.core import Demand
from mansard.diagnose.case import Case
from mansard.diagnose.judge_operators import JudgedOperator

_RANKS = re.compile(r"(\d+) ranks")


@dataclass(frozen=True, slots=True, kw_only=True)
class Talk:
    """One kind of collective.

    Args:
        row: Its verdict.
        operation: Such as `all_gather`; the name where nothing tells.
        ranks: Ranks that take part; None where not known.
        link: The link it goes over; empty where not known.
        bus_bytes: Bytes that one device must send per call [B].
    """

    row: JudgedOperator
    operation: str
    ranks: int | None
    link: str
    bus_bytes: float


def talks_of(case: Case) -> list[Talk]:
    """Return the collectives whose bytes and link are known."""
    found = []
    for row in case.of_category("collective"):
        demand = row.operator.demand
        if not isinstance(demand, Demand) or len(demand.link_bytes) != 1:
            continue
        link, size = next(iter(demand.link_bytes.items()))
        ranks = _RANKS.search(row.operator.shapes)
        found.append(
            Talk(
                row=row, operation=row.operator.source or row.operator.name, ranks=int(ranks.group(1)) if ranks else None,
                link=link, bus_bytes=float(size),
            )
        )  # fmt: skip
    return found


def fit_for(case: Case, talk: Talk) -> Mapping[str, Any] | None:
    """Return the measured fit t = alpha + bus bytes / beta of the same operation, ranks and link; None where there is none."""
    for fit in case.ceilings.fits:
        same = (
            fit.get("operation") == talk.operation
            and fit.get("participants") == talk.ranks
            and fit.get("link") == talk.link
        )
        if same and all(
            isinstance(fit.get(k), int | float) and float(fit[k]) > 0 for k in ("alpha_s", "beta_bytes_per_s")
        ):
            return fit
    return None


def waiting_s(case: Case) -> float:
    """Return the part of exposed communication that is waiting for late peers, where profiles of several ranks tell [s per step]."""
    ranks = case.facts.ranks
    return 0.0 if ranks is None else min(ranks.waiting_s, case.wait_s("network"))
