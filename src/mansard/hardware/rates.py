"""Which share of a memory or link a rate of bytes is: the same question as a share of a peak, for bandwidths."""

from __future__ import annotations

from typing import Any

from mansard.core.bound import share_of
from mansard.core.ceilings import Area
from mansard.core.errors import UsageError
from mansard.core.unknown import Implausible, Unknown
from mansard.hardware.on_paper import ceilings
from mansard.hardware.records import Sku

#: What else makes a rate over a link exceed it; the direction is the commonest.
_OF_LINKS = (
    "both directions counted together, and the link taken one way",
    "a bus bandwidth of a collective that switches reduce on the way (NVLS, SHARP)",
    "several links, devices or nodes counted together",
)
#: And over a memory: data that a cache holds never reaches it (Source: McCalpin, STREAM run rules, 4 times the cache).
_OF_MEMORIES = (
    "data that a cache holds (STREAM asks for arrays of 4 times the last level)",
    "bytes counted that never move, or counted twice",
    "GiB taken for GB, or bits for bytes",
)
#: What `core.bound.SUSPECTS` say of arithmetic, or twice.
_OF_ARITHMETIC = ("sparse peak", "nearer cache", "FLOP or byte count")


def bandwidth_share(
    achieved_bytes_per_s: float,
    *,
    sku: Sku | None,
    of: str | None = None,
    scope: str = "device",
    ceiling_bytes_per_s: float | None = None,
    missing: str = "",
) -> dict[str, Any]:
    """Return the share of a memory level or link that a rate is; the rate stays valid without any ceiling.

    Args:
        achieved_bytes_per_s: The rate [B/s].
        sku: The product; None where it is not known.
        of: A memory level or link by its name; None for the main memory.
        scope: Scope of the rate.
        ceiling_bytes_per_s: A ceiling that the user named [B/s]; wins.
        missing: Why the product is not known.

    Raises:
        UsageError: the product has no such level or link.

    Assumes: links are one way.
    """
    found: dict[str, Any] = {"achieved_bytes_per_s": achieved_bytes_per_s, "of": of}
    if ceiling_bytes_per_s is not None:
        share = share_of(achieved_bytes_per_s, ceiling_bytes_per_s)
        return {**found, "ceiling_bytes_per_s": ceiling_bytes_per_s, "ceiling_from": "named by the user", "one_way": None,
                "share": share, "status": _status(share)}  # fmt: skip
    if sku is None:
        needs = ('--peak "3.35 TB/s"', "a hardware file (docs/hardware.md)")
        return {**found, "status": "unknown_ceiling", "share": Unknown(missing, needs)}
    paper = ceilings(sku, scope=scope)
    rows = {
        str(c.resource.level or c.resource.link): c
        for c in paper.ceilings
        if c.resource.area in (Area.MEMORY, Area.NETWORK, Area.HOST) and c.scope == scope
    }
    names = [m.level for m in sku.memory] + [link.name for link in sku.links]
    name = of if of is not None else sku.outer_memory.level if sku.outer_memory else ""
    if name not in names:
        raise UsageError(f"{sku.slug} has no memory level or link {name!r}", hint=f"--of one of {', '.join(names)}")
    found["of"] = name
    if name not in rows:
        reason = Unknown(
            f"the bandwidth of {name} of {sku.slug} is not published", ('--peak "20 TB/s"', "mansard measure")
        )
        return {**found, "status": "no_published_bandwidth", "share": reason}
    row = rows[name]
    link = row.resource.area is not Area.MEMORY
    share = share_of(achieved_bytes_per_s, row.value)
    if isinstance(share, Implausible):
        own = _OF_LINKS if link else _OF_MEMORIES
        share = Implausible(
            share.value, (*own, *(s for s in share.suspects if not any(w in s for w in _OF_ARITHMETIC)))
        )
    return {**found, "ceiling_bytes_per_s": row.value, "ceiling_from": row.source, "one_way": link, "share": share,
            "status": _status(share)}  # fmt: skip


def _status(share: float | Implausible) -> str:
    return "implausible" if isinstance(share, Implausible) else "ok"
