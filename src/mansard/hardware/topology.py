"""Networks as nested levels, and the least time of a collective on them, with the formula and its source.

A fabric is a list of levels from the innermost outwards: dies of a chip, chips of a torus, GPUs of an island, nodes of a
rail, slices of a data centre. A unit of one level is a child of the next. Every byte that a group of devices must take
in has to cross the boundary of each unit around them; the slowest boundary is the ceiling. No algorithm beats it, unless
the network itself reduces, and then that is a ceiling of its own with its own name.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from mansard.core.collective_times import Axis, ring_time, tree_time
from mansard.core.collectives import bus_factor, canonical, sent_ratio
from mansard.core.errors import UsageError
from mansard.core.units import format_ratio
from mansard.core.unknown import MaybeFloat, Unknown, is_known

Kind = Literal["torus", "mesh", "switch"]
#: Lengths of a group along each axis of each level, innermost level first; 1 where it does not extend.
Group = tuple[tuple[int, ...], ...]

OPERATIONS = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "ppermute")
_CUT = {
    "all_gather": "S (n - u)/n / B", "reduce_scatter": "S (n - u)/n / B", "all_reduce": "2 S (n - u)/n / B",
    "all_to_all": "u S (n - u)/n / B", "ppermute": "S / B of one link or adapter",
}  # fmt: skip
#: Algorithm -> how it is called in sentences.
ALGORITHM_WORDS = {
    "ring": "ring", "direct": "direct exchange", "tree": "two trees", "one-shot": "one-shot", "torus": "torus",
    "levels": "level by level", "in-network": "in-network reduction",
}  # fmt: skip
_CUT_SOURCE = (
    "what must enter a unit of u of n devices over its links; Patarasuk and Yuan 2009 for one device, "
    "Austin et al., How to Scale Your Model, 2025, for tori"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One level of a network.

    Args:
        name: How the link is called: `ici`, `nvlink`, `die`, `rail`, `dcn`.
        kind: `torus` (axes with or without wrap), `mesh` (each pair has its own link) or `switch` (any to any).
        axes: Units along each axis; one axis for a switch or a full mesh.
        bytes_per_s: One way [B/s]: of one link of a torus or mesh, of one unit into a switch.
        hop_s: Time of one hop [s]; `Unknown` where it is on no record.
        reduces: Whether the network can reduce on the way (NVLS, SHARP).
        sends_sums: Whether its switches send the sums to all by themselves, so that a unit sends S once (SHARP between nodes).
            Otherwise each device reads its share of the sums and sends it to all, (n + 1)/n of S (NVLS).
        port_bytes_per_s: One way, of one adapter of a unit [B/s]: the most that a message from one device to one other
            gets, however many adapters the unit has; None where it gets `bytes_per_s`.
        only_way_in: Whether all that a unit takes in comes over this link, what the levels outside bring as well: a card on
            PCIe, a node behind a leaf switch. A GPU on NVLink has its network adapter beside it.
        source: Where the rate comes from.
    """

    name: str
    kind: Kind
    axes: tuple[Axis, ...]
    bytes_per_s: float
    hop_s: MaybeFloat
    reduces: bool = False
    sends_sums: bool = False
    port_bytes_per_s: float | None = None
    only_way_in: bool = False
    source: str

    def __post_init__(self) -> None:
        if not self.bytes_per_s > 0.0 or not math.isfinite(self.bytes_per_s):
            raise UsageError(f"the rate of {self.name} must be positive, got {self.bytes_per_s} B/s")
        if self.port_bytes_per_s is not None and not 0.0 < self.port_bytes_per_s <= self.bytes_per_s * (1.0 + 1e-9):
            raise UsageError(
                f"an adapter of {self.name} has {self.port_bytes_per_s} B/s of the {self.bytes_per_s} B/s of a unit"
            )
        if not self.axes or (self.kind != "torus" and len(self.axes) != 1):
            raise UsageError(f"{self.name}: a {self.kind} has one axis, a torus one or more; got {len(self.axes)}")

    @property
    def units(self) -> int:
        """Units of this level in one unit of the next."""
        return math.prod(a.length for a in self.axes)

    def rate_bytes_per_s(self, members: Sequence[int]) -> float:
        """Return what the unit with the fewest links takes in from the other members [B/s].

        >>> two = Axis(length=2, wraps=False)
        >>> Level(name="ici", kind="torus", axes=(two, two), bytes_per_s=45e9, hop_s=1e-6, source="").rate_bytes_per_s((2, 2))
        90000000000.0
        """
        if self.kind == "switch":
            return self.bytes_per_s
        if self.kind == "mesh":
            return (math.prod(members) - 1) * self.bytes_per_s
        return sum(axis.links for axis, m in zip(self.axes, members, strict=True) if m > 1) * self.bytes_per_s

    def hops(self, members: Sequence[int]) -> int:
        """Return the hops to the farthest member."""
        if self.kind != "torus":
            return 1 if math.prod(members) > 1 else 0
        return sum(axis.hops for axis, m in zip(self.axes, members, strict=True) if m > 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """A network.

    Args:
        name: Such as `tpu-v5e 4x4`.
        levels: From the innermost outwards.
        notes: What was taken for granted.
    """

    name: str
    levels: tuple[Level, ...]
    notes: tuple[str, ...] = ()

    @property
    def devices(self) -> int:
        """Devices of the whole network."""
        return math.prod(level.units for level in self.levels)

    @property
    def everyone(self) -> Group:
        """The group of all devices."""
        return tuple(tuple(a.length for a in level.axes) for level in self.levels)

    def check(self, group: Group) -> None:
        """Refuse a group that does not lie in this network.

        Raises:
            UsageError: other levels or axes, more members than units, or a part of a torus axis.
        """
        if [len(m) for m in group] != [len(level.axes) for level in self.levels]:
            raise UsageError(f"the group {group} does not have the levels and axes of {self.name}: {self.everyone}")
        for level, members in zip(self.levels, group, strict=True):
            for axis, m in zip(level.axes, members, strict=True):
                whole = m in (1, axis.length) if level.kind == "torus" else m >= 1 and axis.length % m == 0
                if not whole:
                    what = "1 or the whole axis" if level.kind == "torus" else "a divisor"
                    raise UsageError(f"{m} of {axis.length} units of {level.name}, expected {what}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveCeiling:
    """The least time of one collective by one algorithm.

    Args:
        operation: Canonical name.
        algorithm: `ring`, `direct`, `tree`, `one-shot`, `torus`, `levels` or `in-network`.
        size_bytes: S as `core.collectives.SIZE_MEANS` says [B].
        ranks: Devices in the group.
        time_s: Least time [s]; without latency where that is unknown.
        bandwidth_s: What the bytes need [s].
        latency_s: What the hops need [s].
        busbw_bytes_per_s: The most that busbw can show for messages without end [B/s].
        limiting: The level, or the cut, that decides.
        formula: How it was computed.
        source: Where the formula is from.
        effective: Whether busbw may exceed the rate of the link, since the network reduces.
    """

    operation: str
    algorithm: str
    size_bytes: float
    ranks: int
    time_s: float
    bandwidth_s: float
    latency_s: MaybeFloat
    busbw_bytes_per_s: MaybeFloat
    limiting: str
    formula: str
    source: str
    effective: bool = False

    def share_ratio(self, seconds: float) -> float:
        """Return the ceiling's time over a measured one; above 1 the measurement or the model is wrong."""
        if not seconds > 0.0:
            raise UsageError(f"the time of a collective must be positive, got {seconds}")
        return self.time_s / seconds

    def to_json(self) -> dict[str, Any]:
        """Return it for documents."""
        return {name: getattr(self, name) for name in self.__slots__}


def collective_ceilings(
    fabric: Fabric, operation: str, *, size_bytes: float, group: Group | None = None
) -> tuple[CollectiveCeiling, ...]:
    """Return the ceilings of one collective, the fastest without in-network reduction first, in-network ones last.

    Args:
        fabric: The network.
        operation: `all_gather`, `reduce_scatter`, `all_reduce`, `all_to_all` or `ppermute` (to the next neighbour).
        size_bytes: S [B].
        group: The devices that take part; None for all. All other devices work in such groups at the same time.

    Raises:
        UsageError: another operation, or a group that does not fit.

    Assumes: one algorithm per level, pipelined over the levels; each link carries the traffic of every group over it.

    Four TPU v5e in a row, 34 MB: 3/4 x 34e6 / 45e9 = 567 us.

    >>> row = Level(name="ici", kind="torus", axes=(Axis(length=4, wraps=False),), bytes_per_s=45e9, hop_s=1e-6, source="")
    >>> found = collective_ceilings(Fabric(name="row", levels=(row,)), "all_gather", size_bytes=34e6)
    >>> found[0].algorithm, round(found[0].time_s * 1e6)
    ('torus', 567)
    """
    name = canonical(operation)
    if name not in OPERATIONS:
        raise UsageError(f"no ceiling of {operation} on a network is known", hint="known: " + ", ".join(OPERATIONS))
    if not size_bytes >= 0.0 or not math.isfinite(size_bytes):
        raise UsageError(f"the size of a collective must be a number of bytes, got {size_bytes}")
    members = fabric.everyone if group is None else group
    fabric.check(members)
    used = [i for i, m in enumerate(members) if math.prod(m) > 1]
    if not used:
        return ()
    bound = _boundary(fabric, name, size_bytes, members, used)
    if len(used) > 1:
        return (bound, *_flat_ring(fabric, bound, members, used), *_in_network(fabric, name, bound, members, used))
    level = fabric.levels[used[0]]
    if level.kind == "torus":
        return (replace(bound, algorithm="torus"),)
    plain = _on_a_switch(bound, level, size_bytes)
    return (*sorted(plain, key=lambda c: c.time_s), *_in_network(fabric, name, bound, members, used))


def _boundary(fabric: Fabric, name: str, size: float, members: Group, used: Sequence[int]) -> CollectiveCeiling:
    """The slowest boundary of any unit, and the longest way."""
    ranks = math.prod(math.prod(m) for m in members)
    cuts = [cut for i in _crossed(fabric, used) for cut in _cuts(fabric, name, size, members, i)]
    bandwidth, limiting = max(cuts, key=lambda c: c[0])
    passes = 2.0 if name == "all_reduce" else 1.0
    latency: MaybeFloat = 0.0
    for i in used:
        hops = 1 if name == "ppermute" else fabric.levels[i].hops(members[i])
        latency = latency + passes * hops * fabric.levels[i].hop_s
    factor = bus_factor(name, ranks)
    return CollectiveCeiling(
        operation=name, algorithm="levels", size_bytes=size, ranks=ranks,
        time_s=max(bandwidth, latency) if is_known(latency) else bandwidth,
        bandwidth_s=bandwidth, latency_s=latency,
        busbw_bytes_per_s=factor * size * (1.0 / bandwidth) if bandwidth > 0.0
        else Unknown("a message of no bytes has no bandwidth", ("a size",)),
        limiting=limiting, formula=f"max(hops x T_hop, {_CUT[name]})", source=_CUT_SOURCE,
    )  # fmt: skip


def _crossed(fabric: Fabric, used: Sequence[int]) -> list[int]:
    """The levels that bytes of a group cross: those it extends over, and every only way in inside of them."""
    return [i for i, level in enumerate(fabric.levels) if i in used or (level.only_way_in and i < max(used))]


def _cuts(
    fabric: Fabric, name: str, size: float, members: Group, i: int, *, reducing: bool = False
) -> list[tuple[float, str]]:
    """Times that the boundaries of the units of one level need [s], with their names.

    Where levels reduce on the way, one of c units sends (c + 1)/c of S over them (NVLS), or S (SHARP), and not 2 (c - 1)/c:
    a byte of theirs counts for more.
    """
    level = fabric.levels[i]
    ranks = math.prod(math.prod(m) for m in members)
    inside = math.prod(math.prod(m) for m in members[:i])
    present = math.prod(x.units for x in fabric.levels[:i])
    if name == "ppermute":
        shared = size * present / inside / level.bytes_per_s
        alone = 0.0 if level.port_bytes_per_s is None else size / level.port_bytes_per_s
        which = "link" if level.port_bytes_per_s is None or level.name == "pcie" else "adapter"
        return [(max(shared, alone), f"one {which} of {level.name}")]
    # A byte for a unit may also come in over the levels outside of it, as far as they serve this unit.
    capacity, units, behind = 0.0, ranks // inside, False
    for k in range(i, len(members)):
        if k == i or math.prod(members[k]) > 1:
            here = math.prod(x.units for x in fabric.levels[:k])
            sent = units if fabric.levels[k].sends_sums else units + 1
            counts = max(1.0, 2.0 * (units - 1) / sent) if reducing and fabric.levels[k].reduces else 1.0
            capacity += counts * fabric.levels[k].rate_bytes_per_s(members[k]) * inside / here
            if behind or fabric.levels[k].only_way_in:
                break
        behind = behind or fabric.levels[k].only_way_in
    outside = (ranks - inside) / ranks
    share = {"all_reduce": 2.0, "all_to_all": float(inside)}.get(name, 1.0)
    out = [(share * size * outside / capacity, level.name)]
    if name == "all_to_all" and level.kind == "torus":
        out += _middles(level, size, members, i, ranks, inside / present)
    return out


def _middles(level: Level, size: float, members: Group, i: int, ranks: int, share: float) -> list[tuple[float, str]]:
    """Cuts through the middle of each axis of a torus: half of the devices send S/2 each to the other half."""
    beyond = math.prod(math.prod(m) for m in members[i + 1 :])
    out = []
    for place, (axis, m) in enumerate(zip(level.axes, members[i], strict=True)):
        if m == 1:
            continue
        near, far = m // 2, m - m // 2
        links = math.prod(members[i]) // m * axis.links * beyond * share
        crossing = size * ranks * (near / m) * (far / m)
        out.append((crossing / (links * level.bytes_per_s), f"the middle of axis {'xyzw'[place]} of {level.name}"))
    return out


def _on_a_switch(bound: CollectiveCeiling, level: Level, size: float) -> list[CollectiveCeiling]:
    """Ring, direct exchange and trees where each member reaches each other; of equals the ring is first."""
    n, name = bound.ranks, bound.operation
    if name in ("all_to_all", "ppermute"):
        alpha = level.hop_s
        time_s = bound.bandwidth_s + (alpha if is_known(alpha) else 0.0)
        formula = "alpha + S (n - 1)/n / B" if name == "all_to_all" else "alpha + S / B"
        return [replace(bound, algorithm="direct", time_s=time_s, formula=formula)]
    # The share of the unit that this group may use is in the bandwidth of the boundary already.
    rate = sent_ratio(name, n) * size / bound.bandwidth_s if bound.bandwidth_s > 0.0 else level.bytes_per_s
    alpha_s = level.hop_s if is_known(level.hop_s) else 0.0
    passes = 2 if name == "all_reduce" else 1
    out = [
        replace(
            bound, algorithm="ring", latency_s=passes * (n - 1) * level.hop_s,
            time_s=ring_time(name, size_bytes=size, ranks=n, bytes_per_s=rate, alpha_s=alpha_s),
            formula=f"{'2 ' if passes == 2 else ''}((n - 1) alpha + S (n - 1)/n / B)",
            source="Thakur, Rabenseifner and Gropp 2005; Patarasuk and Yuan 2009",
        )
    ]  # fmt: skip
    out.append(
        replace(
            bound, algorithm="direct", latency_s=passes * level.hop_s, time_s=bound.bandwidth_s + passes * alpha_s,
            formula=f"{'2 ' if passes == 2 else ''}(alpha + S (n - 1)/n / B)",
            source="each member sends its part to each other at once; Thakur, Rabenseifner and Gropp 2005",
        )
    )  # fmt: skip
    if name == "all_reduce":
        out += _trees(bound, level, size, rate, alpha_s)
    return out


def _trees(bound: CollectiveCeiling, level: Level, size: float, rate: float, alpha_s: float) -> list[CollectiveCeiling]:
    """All-reduces that trade bandwidth for latency: two trees, and each member sending all it has to each other."""
    n, factor = bound.ranks, sent_ratio("all_reduce", bound.ranks)
    once = (n - 1) * size / rate
    return [
        replace(
            bound, algorithm="tree", latency_s=2 * math.ceil(math.log2(n)) * level.hop_s,
            time_s=tree_time("all_reduce", size_bytes=size, ranks=n, bytes_per_s=rate, alpha_s=alpha_s),
            bandwidth_s=2.0 * size / rate, busbw_bytes_per_s=rate * factor / 2.0,
            formula="2 (log2(n) alpha + S / B)", source="Sanders, Speck and Traeff 2009",
        ),
        replace(
            bound, algorithm="one-shot", latency_s=level.hop_s, time_s=once + alpha_s, bandwidth_s=once,
            busbw_bytes_per_s=rate * factor / (n - 1), formula="alpha + (n - 1) S / B",
            source="each member sends its buffer to each other at once and adds what it receives",
        ),
    ]  # fmt: skip


def _flat_ring(
    fabric: Fabric, bound: CollectiveCeiling, members: Group, used: Sequence[int]
) -> tuple[CollectiveCeiling, ...]:
    """One ring through all devices of several switches: every boundary is passed by (n - 1)/n of S, twice in an all-reduce."""
    name, n = bound.operation, bound.ranks
    if name in ("all_to_all", "ppermute") or any(fabric.levels[i].kind == "torus" for i in used):
        return ()
    passes = 2 if name == "all_reduce" else 1
    cuts = []
    hop_s: MaybeFloat = 0.0  # each step of the ring waits for its slowest hop
    for i in _crossed(fabric, used):
        level = fabric.levels[i]
        inside = math.prod(math.prod(m) for m in members[:i])
        here = math.prod(x.units for x in fabric.levels[:i])
        rate = level.rate_bytes_per_s(members[i]) * inside / here
        cuts.append((passes * bound.size_bytes * (n - 1) / n / rate, level.name))
        if is_known(hop_s):
            hop_s = max(hop_s, level.hop_s) if is_known(level.hop_s) else level.hop_s
    bandwidth, limiting = max(cuts, key=lambda c: c[0])
    latency = passes * (n - 1) * hop_s
    return (
        replace(
            bound, algorithm="ring", bandwidth_s=bandwidth, latency_s=latency, limiting=limiting,
            time_s=bandwidth + (latency if is_known(latency) else 0.0),
            busbw_bytes_per_s=bus_factor(name, n) * bound.size_bytes / bandwidth if bandwidth > 0.0
            else bound.busbw_bytes_per_s,
            formula=f"{'2 ' if passes == 2 else ''}((n - 1) alpha + S (n - 1)/n / B)",
            source="Thakur, Rabenseifner and Gropp 2005; Patarasuk and Yuan 2009",
        ),
    )  # fmt: skip


def _in_network(
    fabric: Fabric, name: str, bound: CollectiveCeiling, members: Group, used: Sequence[int]
) -> tuple[CollectiveCeiling, ...]:
    """All-reduce where some levels in use reduce on the way: NVSwitch inside of nodes, switches between them, or both."""
    if name != "all_reduce" or not any(fabric.levels[i].reduces for i in used):
        return ()
    cuts = [
        cut for i in _crossed(fabric, used) for cut in _cuts(fabric, name, bound.size_bytes, members, i, reducing=True)
    ]
    bandwidth, limiting = max(cuts, key=lambda c: c[0])
    if not bandwidth < bound.bandwidth_s:
        return ()
    latency: MaybeFloat = 0.0
    for i in used:
        hops = 1 if fabric.levels[i].reduces else fabric.levels[i].hops(members[i])
        latency = latency + 2.0 * hops * fabric.levels[i].hop_s
    slowest = next(level for level in fabric.levels if level.name == limiting)
    formula = "S / B" if slowest.sends_sums else "S (n + 1)/n / B" if slowest.reduces else _CUT[name]
    source = (
        "Graham et al., SHArP, COMHPC 2016" if slowest.sends_sums
        else "nccl-tests pull request 239 (NVLS)" if slowest.reduces else _CUT_SOURCE
    )  # fmt: skip
    return (
        replace(
            bound, algorithm="in-network", bandwidth_s=bandwidth, latency_s=latency, limiting=limiting,
            time_s=max(bandwidth, latency) if is_known(latency) else bandwidth,
            busbw_bytes_per_s=sent_ratio(name, bound.ranks) * bound.size_bytes / bandwidth, effective=True,
            formula=formula, source=source,
        ),
    )  # fmt: skip


def best_ceiling(
    fabric: Fabric, operation: str, *, size_bytes: float, group: Group | None = None, in_network: bool = False
) -> CollectiveCeiling | None:
    """Return the fastest ceiling; None for a group of one device, which sends nothing.

    Args:
        fabric, operation, size_bytes, group: As for `collective_ceilings`.
        in_network: Whether reduction inside the network counts.
    """
    found = collective_ceilings(fabric, operation, size_bytes=size_bytes, group=group)
    allowed = [c for c in found if in_network or not c.effective]
    return min(allowed, key=lambda c: c.time_s) if allowed else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A measured collective beside its ceiling.

    Args:
        ceiling: The ceiling that applies.
        share_ratio: Its time over the measured one.
        verdict: In words, with what it means.
        suspects: Where the measurement beats the ceiling: why that may be.
    """

    ceiling: CollectiveCeiling
    share_ratio: float
    verdict: str
    suspects: tuple[str, ...] = ()


def compare_to_ceiling(ceilings: Sequence[CollectiveCeiling], seconds: float) -> Comparison:
    """Hold a measured time against the ceilings of the collective; a faster one is only explained by the network reducing.

    Args:
        ceilings: From `collective_ceilings`.
        seconds: Measured [s].

    Raises:
        UsageError: no ceilings, or no time.
    """
    if not ceilings:
        raise UsageError("a group of one device has no collective to compare")
    plain = min((c for c in ceilings if not c.effective), key=lambda c: c.time_s)
    share = plain.share_ratio(seconds)
    if share <= 1.0:
        text = f"{format_ratio(share)} of the ceiling, {ALGORITHM_WORDS[plain.algorithm]}"
        return Comparison(ceiling=plain, share_ratio=share, verdict=text)
    reducing = [c for c in ceilings if c.effective]
    if reducing:
        best = min(reducing, key=lambda c: c.time_s)
        inside = best.share_ratio(seconds)
        if inside <= 1.0:
            text = f"{format_ratio(inside)} of the ceiling with in-network reduction; nothing is that fast without"
            return Comparison(ceiling=best, share_ratio=inside, verdict=text)
        plain, share = best, inside
    suspects = ("the size S or the number of ranks", "another topology than assumed", "data that never left the device")
    return Comparison(ceiling=plain, share_ratio=share, verdict="faster than any algorithm can be", suspects=suspects)
