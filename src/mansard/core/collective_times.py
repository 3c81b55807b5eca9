"""Ideal times of collectives by algorithm and topology: rings, trees, full meshes and tori.

They are lower bounds to hold a measured time against: alpha is the time of one step [s], the bandwidth is one way, of
one device into the network. More bandwidth or less latency never makes any of them longer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mansard.core.collectives import canonical, sent_ratio
from mansard.core.errors import UsageError
from mansard.core.unknown import Unknown

HOP_S = 1e-6  # one hop between neighbours of a TPU torus, about (Austin et al., How to Scale Your Model, 2025)


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One axis of a torus or mesh.

    Args:
        length: Devices along it.
        wraps: Whether its ends are linked.
    """

    length: int
    wraps: bool

    def __post_init__(self) -> None:
        if self.length < 1:
            raise UsageError(f"an axis of {self.length} devices is none")

    @property
    def links(self) -> int:
        """Links that the device with the fewest has along this axis."""
        return 0 if self.length == 1 else 2 if self.wraps else 1

    @property
    def hops(self) -> int:
        """Steps to the farthest device."""
        return self.length // 2 if self.wraps else self.length - 1


def wraps(slug: str, length: int, shape: Sequence[int] = ()) -> bool | Unknown:
    """Return whether an axis of a TPU slice has links between its ends.

    Args:
        slug: Catalogue name of the chip, such as `tpu-v5e`.
        length: Chips along the axis.
        shape: The whole slice [chips]; v7x is only treated as wrapped where all three axes are.

    Source: Austin et al., How to Scale Your Model, 2025: v5e and v6e wrap at 16, cubes of v4, v5p and v7x at multiples
    of 4, so that 2x2x2 and 4x2x1 have no wrap at all on their short axes.

    >>> wraps("tpu-v5e", 4), wraps("tpu-v5e", 16), wraps("tpu-v5p", 8), wraps("tpu-v5p", 2)
    (False, True, True, False)
    """
    if slug in ("tpu-v5e", "tpu-v6e"):
        return length % 16 == 0
    if slug in ("tpu-v4", "tpu-v5p"):
        return length % 4 == 0
    if slug == "tpu-v7x":
        return length % 4 == 0 and all(a >= 4 for a in shape)
    return Unknown(f"the topology of {slug} is not on record", ("whether the ends of each axis are linked",))


def ring_time(operation: str, *, size_bytes: float, ranks: int, bytes_per_s: float, alpha_s: float = 0.0) -> float:
    """Return the time on a ring [s].

    Args:
        operation: `all_reduce`, `all_gather`, `reduce_scatter`, `broadcast` or `reduce`.
        size_bytes: S [B].
        ranks: Devices on the ring.
        bytes_per_s: One way, of one device [B/s].
        alpha_s: Time of one step [s].

    Source: Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in MPICH, 2005.

    >>> round(ring_time("all_reduce", size_bytes=8e9, ranks=8, bytes_per_s=400e9, alpha_s=1e-6), 6)
    0.035014
    """
    name = canonical(operation)
    steps = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "broadcast": 1, "reduce": 1}
    if name not in steps:
        raise UsageError(f"{operation} is not done on a ring", hint="known: " + ", ".join(steps))
    _positive(bytes_per_s)
    return steps[name] * (ranks - 1) * alpha_s + sent_ratio(name, ranks) * size_bytes / bytes_per_s


def tree_time(operation: str, *, size_bytes: float, ranks: int, bytes_per_s: float, alpha_s: float = 0.0) -> float:
    """Return the time with two binary trees that share the work, pipelined [s].

    Args: as `ring_time`.

    Returns: an all-reduce goes up and down, each at the full rate of a device: 2 log2(n) steps and 2 S. Against a ring
    it wins on latency and loses (n - 1)/n on bandwidth.

    Source: Sanders, Speck and Traeff, Two-tree algorithms for full bandwidth broadcast, reduction and scan, 2009.

    >>> round(tree_time("all_reduce", size_bytes=8e9, ranks=8, bytes_per_s=400e9, alpha_s=1e-6), 6)
    0.040006
    """
    name = canonical(operation)
    passes = {"all_reduce": 2, "broadcast": 1, "reduce": 1}
    if name not in passes:
        raise UsageError(f"{operation} is not done on a tree", hint="known: " + ", ".join(passes))
    _positive(bytes_per_s)
    if ranks == 1:
        return 0.0
    return passes[name] * (math.ceil(math.log2(ranks)) * alpha_s + size_bytes / bytes_per_s)


def mesh_all_to_all_time(*, size_bytes: float, ranks: int, bytes_per_s: float, alpha_s: float = 0.0) -> float:
    """Return the time of an all-to-all where each device reaches each other at once, through a switch or a full mesh [s].

    >>> mesh_all_to_all_time(size_bytes=8e6, ranks=8, bytes_per_s=350e9) * 1e6
    20.0
    """
    _positive(bytes_per_s)
    return (alpha_s if ranks > 1 else 0.0) + sent_ratio("all_to_all", ranks) * size_bytes / bytes_per_s


def torus_time(
    operation: str, *, size_bytes: float, axes: Sequence[Axis], link_bytes_per_s: float, hop_s: float = HOP_S
) -> float:
    """Return the least time on a torus or mesh [s].

    Args:
        operation: `all_gather`, `reduce_scatter`, `all_reduce` or `all_to_all`.
        size_bytes: S [B].
        axes: The axes that take part.
        link_bytes_per_s: One link, one way [B/s].
        hop_s: Time of one hop [s].

    Returns: the larger of latency and bandwidth. Each device must take in (n - 1)/n of S through its own links; a device
    in a corner of a mesh has half of them. An all-to-all is bound by the cut through its longest axis as well.

    Source: Austin et al., How to Scale Your Model, 2025, Sharded matrices; for the all-to-all the published suite's
    pull request 127.

    Four TPU v5e in a row (no wrap), 34 MB: 3/4 x 34e6 / 45e9.

    >>> round(torus_time("all_gather", size_bytes=34e6, axes=[Axis(length=4, wraps=False)], link_bytes_per_s=45e9) * 1e6)
    567
    >>> round(torus_time("all_gather", size_bytes=128e3, axes=[Axis(length=4, wraps=False)], link_bytes_per_s=45e9) * 1e6)
    3
    """
    name = canonical(operation)
    _positive(link_bytes_per_s)
    ranks = math.prod(a.length for a in axes)
    links = sum(a.links for a in axes)
    if ranks == 1 or links == 0:
        return 0.0
    hops = sum(a.hops for a in axes) * hop_s
    through = size_bytes * (ranks - 1) / ranks / (links * link_bytes_per_s)
    if name in ("all_gather", "reduce_scatter"):
        return max(hops, through)
    if name == "all_reduce":
        return 2.0 * max(hops, through)
    if name == "all_to_all":
        cut = size_bytes * ranks / (4.0 * torus_cut_links(axes) * link_bytes_per_s)
        return max(hops, through, cut)
    raise UsageError(f"no ideal time of {operation} on a torus is known")


def torus_cut_links(axes: Sequence[Axis]) -> int:
    """Return the links that a cut through the middle of the longest axis goes through.

    >>> torus_cut_links([Axis(length=2, wraps=False), Axis(length=2, wraps=False), Axis(length=4, wraps=False)])
    4
    """
    longest = max(axes, key=lambda a: (a.length, a.wraps))
    return math.prod(a.length for a in axes) // longest.length * (2 if longest.wraps else 1)


def torus_all_to_all_busbw(
    *, axes: Sequence[Axis], link_bytes_per_s: float, devices: int, counted: int | None = None
) -> float:
    """Return the most that one device's busbw of an all-to-all can be [B/s].

    Args:
        axes: The axes of the slice in chips.
        link_bytes_per_s: One link, one way [B/s].
        devices: Devices in the group; more than chips where a chip has several.
        counted: Chunks the suite counts per device; None for n - 1.

    Source: the published suite's pull request 127: 4 W A r / n^2. Half of all data crosses the middle: n/2 devices send
    S/2 each over A links.

    32 cores on 2x2x4 chips, 30 chunks counted, 100 GB/s per link:

    >>> two, four = Axis(length=2, wraps=False), Axis(length=4, wraps=False)
    >>> round(torus_all_to_all_busbw(axes=[two, two, four], link_bytes_per_s=100e9, devices=32, counted=30) / 1e9, 1)
    46.9
    """
    _positive(link_bytes_per_s)
    chunks = devices - 1 if counted is None else counted
    return 4.0 * link_bytes_per_s * torus_cut_links(axes) * chunks / devices**2


def scaling_book_all_gather_time(
    *, size_bytes: float, axes: Sequence[Axis], both_ways_bytes_per_s: float, hop_s: float = HOP_S
) -> float:
    """Return the time of an all-gather by the rule of thumb of the scaling book [s].

    Args:
        size_bytes: The gathered result on one device [B].
        axes: The axes; one without wrap counts double, in latency and in bandwidth.
        both_ways_bytes_per_s: Both directions of one axis together [B/s].
        hop_s: Time of one hop [s].

    Returns: `max(hop sum(length) / 2, S / (W axes))`; it leaves (n - 1)/n out, so `torus_time` is below it.

    Source: Austin et al., How to Scale Your Model, 2025, Sharded matrices.

    >>> ring = [Axis(length=4, wraps=True)]
    >>> round(scaling_book_all_gather_time(size_bytes=34e6, axes=ring, both_ways_bytes_per_s=90e9) * 1e6)
    378
    """
    _positive(both_ways_bytes_per_s)
    used = [a for a in axes if a.length > 1]
    if not used:
        return 0.0
    hops = sum(a.length / 2.0 * (1.0 if a.wraps else 2.0) for a in used) * hop_s
    rate = sum(both_ways_bytes_per_s * (1.0 if a.wraps else 0.5) for a in used)
    return max(hops, size_bytes / rate)


def _positive(bytes_per_s: float) -> None:
    if not bytes_per_s > 0.0:
        raise UsageError(f"a bandwidth must be positive, got {bytes_per_s}")
