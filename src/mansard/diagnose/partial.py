"""Demands of which a part is not known: what is missing is named in `Demand.uncounted`, never counted as zero."""

from __future__ import annotations

from mansard.core import Demand, Unknown

NO_FLOP = "matrix work is not known"
NO_BYTES = "bytes are not known"
_NEEDS = ("--ncu REPORT.csv", "a profile with record_shapes=True", "--model config.json")


def flop_of(demand: Demand | Unknown) -> float | Unknown:
    """Return the matrix work of a demand [FLOP].

    >>> isinstance(flop_of(Demand(read_bytes=8.0, uncounted=(NO_FLOP,))), Unknown)
    True
    """
    if isinstance(demand, Unknown):
        return demand
    return Unknown(NO_FLOP, _NEEDS) if NO_FLOP in demand.uncounted else float(demand.total_flop)


def bytes_of(demand: Demand | Unknown) -> float | Unknown:
    """Return the traffic of a demand [B]."""
    if isinstance(demand, Unknown):
        return demand
    return Unknown(NO_BYTES, _NEEDS) if NO_BYTES in demand.uncounted else float(demand.bytes)


def intensity_of(demand: Demand | Unknown) -> float | None:
    """Return FLOP per byte; None unless both are known and bytes move."""
    flop, size = flop_of(demand), bytes_of(demand)
    if isinstance(flop, Unknown) or isinstance(size, Unknown) or size <= 0:
        return None
    return flop / size


def unchecked(demand: Demand | Unknown) -> tuple[str, ...]:
    """Return which of the compute and memory checks a demand does not allow."""
    if isinstance(demand, Unknown):
        return ("compute", "memory")
    return tuple(area for area, lost in (("compute", NO_FLOP), ("memory", NO_BYTES)) if lost in demand.uncounted)
