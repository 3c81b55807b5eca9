"""Demands of which a part is not known: what is missing is named in `Demand.uncounted`, never counted as zero."""

from __future__ import annotations

from mansard.core import Demand, Unknown

NO_FLOP = "matrix work is not known"
NO_BYTES = "bytes are not known"
#: Of an exchange or a copy to or from the host the bytes over the link are counted, and no others.
LINK_ALONE = "what it moves in memory is not counted, only what crosses its link"
#: Names of the memory that everything comes from at first, as ceilings have them.
_FAR = ("hbm", "gddr", "dram")
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
    """Return the traffic of a demand [B]; where counters alone tell, that of the farthest level they name.

    >>> bytes_of(Demand(level_bytes={"l2": 96.0, "hbm": 32.0}))
    32.0
    >>> bytes_of(Demand(link_bytes={"pcie": 64.0})).reason
    'what it moves in memory is not counted, only what crosses its link'
    """
    if isinstance(demand, Unknown):
        return demand
    if NO_BYTES in demand.uncounted:
        return Unknown(NO_BYTES, _NEEDS)
    if float(demand.bytes) <= 0 and demand.level_bytes:
        by_name = {name.lower(): float(size) for name, size in demand.level_bytes.items()}
        return next((by_name[name] for name in _FAR if name in by_name), max(by_name.values()))
    if float(demand.bytes) <= 0 and any(float(b) > 0 for b in demand.link_bytes.values()):
        return Unknown(LINK_ALONE)
    return float(demand.bytes)


def is_counted(demand: Demand | Unknown) -> bool:
    """Return whether anything of a demand is known that takes time; that it does no matrix work alone says nothing.

    >>> is_counted(Demand(uncounted=(NO_BYTES,))), is_counted(Demand(read_bytes=8.0, uncounted=(NO_FLOP,)))
    (False, True)
    """
    if isinstance(demand, Unknown):
        return False
    amounts = (
        demand.total_flop,
        demand.bytes,
        *demand.level_bytes.values(),
        *demand.link_bytes.values(),
        *demand.vector_flop.values(),
    )
    return not demand.uncounted or any(float(a) > 0 for a in amounts)


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
