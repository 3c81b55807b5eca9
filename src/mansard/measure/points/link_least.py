"""The least time of a transfer by what links were measured to do: alpha + bus bytes / beta of the same operation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mansard.core.bound import LeastTime, Term
from mansard.core.ceilings import Area, Ceiling, Kind, Resource
from mansard.core.unknown import Unknown, is_known
from mansard.measure.points.evidence import Evidence

FIT_SLACK = 0.5  # a fit whose worst point is farther off than this describes no link


def by_fit(e: Evidence) -> LeastTime | None:
    """Return the least time of a transfer from the fits that stand beside its ceilings, or None where none fits.

    Args:
        e: The point; its ceilings hold the fits of an earlier run (`--ceilings FILE`, or the network suite).

    The fit of the same operation over the same link by as many participants counts, and of it what is best within its 95 %
    intervals: the lowest alpha (not below 0) and the highest beta. So it is a bound, where the fit itself runs through the
    middle of its points.

    Source: Hockney, Parallel Computing 20(3), 1994.
    """
    moved = e.work.transfer
    if moved is None or e.ceilings is None or not is_known(moved.bus_factor):
        return None
    size = moved.size_bytes * moved.bus_factor
    found = [
        least
        for fit in e.ceilings.fits
        if (fit.get("operation"), fit.get("link"), fit.get("participants"))
        == (moved.operation, moved.link, moved.participants)
        and (least := _of_fit(fit, size)) is not None
    ]
    return min(found, key=lambda least: _seconds(least)) if found else None


def _seconds(least: LeastTime) -> float:
    assert not isinstance(least.time_s, Unknown)
    return float(least.time_s)


def _of_fit(fit: Mapping[str, Any], size: float) -> LeastTime | None:
    alpha, beta = fit.get("alpha_ci95_s"), fit.get("beta_ci95_bytes_per_s")
    if not isinstance(alpha, list | tuple) or not isinstance(beta, list | tuple) or not beta[1] > 0.0:
        return None
    low, high = (float(x) for x in fit["bus_bytes_range"])
    if float(fit.get("error_ratio", 0.0)) > FIT_SLACK or not low / 2.0 <= size <= high * 2.0:
        return None
    time_s = max(0.0, float(alpha[0])) + size / float(beta[1])
    ceiling = Ceiling(
        resource=Resource(area=Area.NETWORK, link=str(fit["link"])), value=size / time_s, unit="B/s", kind=Kind.MEASURED,
        scope="device",
        conditions={"alpha_s": max(0.0, float(alpha[0])), "beta_bytes_per_s": float(beta[1]), "fit": fit.get("name")},
        source="alpha + bytes / beta of the same operation, the best within its intervals",
    )  # fmt: skip
    term = Term(area=Area.NETWORK, ceiling=ceiling, amount=size, time_s=time_s)
    return LeastTime(time_s=time_s, terms=(term,))
