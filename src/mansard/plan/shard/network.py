"""Where the ranks of a plan sit in a network, and what a collective of them takes as a function of its size."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from mansard.core.demand import Number
from mansard.core.errors import UsageError
from mansard.core.unknown import is_known
from mansard.hardware.topology import Fabric, Group, collective_ceilings
from mansard.workload.parallel import InfeasibleError

#: Ranks from the innermost outwards. Tensor ranks come in two parts where experts divide only some of them, context and
#: data ranks where experts divide some of those.
PARTS = ("tensor_in", "tensor_out", "context_in", "context_out", "data_in", "data_out", "pipeline")

#: Which parts differ within one group of each kind.
MEMBERS: dict[str, tuple[str, ...]] = {
    "tensor": ("tensor_in", "tensor_out"),
    "context": ("context_in", "context_out"),
    "expert": ("tensor_in", "context_in", "data_in"),
    "data": ("context_in", "context_out", "data_in", "data_out"),
    "expert_data": ("context_out", "data_out"),
    "pipeline": ("pipeline",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Affine:
    """Time of a collective by size: the least over its algorithms.

    Args:
        terms: Of each algorithm: latency [s], seconds per byte, whether the two are added or the larger one counts.
    """

    terms: tuple[tuple[float, float, bool], ...]

    def time_s(self, size_bytes: Number) -> Number:
        """Return the time of one collective of this size [s]; 0 for a group of one."""
        best: Number = 0.0
        for i, (latency, per_byte, added) in enumerate(self.terms):
            by_size = per_byte * size_bytes
            own = latency + by_size if added else np.maximum(latency, by_size)
            best = own if i == 0 else np.minimum(best, own)
        return best


NOTHING = Affine(terms=())


def parts_of(tp: int, pp: int, dp: int, cp: int, ep: int) -> tuple[int, ...]:
    """Return the ranks of each of `PARTS`; experts take tensor ranks first, then context, then data ranks.

    Raises:
        InfeasibleError: experts that take a part of the context ranks that does not divide them.

    >>> parts_of(tp=2, pp=1, dp=8, cp=1, ep=8)
    (2, 1, 1, 1, 4, 2, 1)
    """
    inner = min(tp, ep) if ep > 1 else tp
    groups = max(1, ep // tp) if ep > 1 else 1
    context = math.gcd(groups, cp)
    data = groups // context
    if dp % data:
        raise InfeasibleError(f"ep {ep} takes {data} data ranks beside tp {tp} and cp {cp}, but there are {dp}")
    return inner, tp // inner, context, cp // context, data, dp // data, pp


@dataclass(slots=True, kw_only=True)
class Network:
    """A fabric with the times of its collectives.

    Args:
        fabric: The network, at the rates that messages reach.
        in_network: Whether the network may reduce.
    """

    fabric: Fabric
    in_network: bool = False
    _places: dict[tuple[int, ...], tuple[Group, ...]] = field(default_factory=dict)
    _times: dict[tuple[str, Group], Affine] = field(default_factory=dict)

    def place(self, parts: Sequence[int]) -> tuple[Group, ...]:
        """Return the group of each of `PARTS`, the innermost ranks on the innermost level.

        Raises:
            InfeasibleError: ranks that do not fill units or axes.
        """
        key = tuple(parts)
        if key not in self._places:
            self._places[key] = self._placed(key)
        return self._places[key]

    def _placed(self, parts: tuple[int, ...]) -> tuple[Group, ...]:
        levels = self.fabric.levels
        free: list[list[int]] = [[a.length for a in level.axes] for level in levels]
        out: list[Group] = []
        for name, ranks in zip(PARTS, parts, strict=True):
            members = [[1] * len(level.axes) for level in levels]
            left = ranks
            for i, level in enumerate(levels):
                if left == 1:
                    break
                take = _torus if level.kind == "torus" else _switch
                left = take(level.name, name, free[i], members[i], left)
            if left != 1:
                raise InfeasibleError(f"{self.fabric.name} has no room for {ranks} {name.split('_')[0]} ranks")
            out.append(tuple(tuple(m) for m in members))
        return tuple(out)

    def collective(self, operation: str, parts: Sequence[int], kind: str) -> Affine:
        """Return the time of a collective of one kind of ranks.

        Args:
            operation: As in `hardware.topology.OPERATIONS`.
            parts: Ranks of each of `PARTS`.
            kind: One of `MEMBERS`.
        """
        placed = self.place(parts)
        chosen = [placed[PARTS.index(name)] for name in MEMBERS[kind]]
        group = tuple(
            tuple(math.prod(g[i][j] for g in chosen) for j in range(len(level.axes)))
            for i, level in enumerate(self.fabric.levels)
        )
        key = (operation, group)
        if key not in self._times:
            self._times[key] = self._measured(operation, group)
        return self._times[key]

    def _measured(self, operation: str, group: Group) -> Affine:
        terms = []
        # Every ceiling is a latency and a time that is proportional to the size.
        for c in collective_ceilings(self.fabric, operation, size_bytes=1.0, group=group):
            if c.effective and not self.in_network:
                continue
            latency = c.latency_s if is_known(c.latency_s) else 0.0
            terms.append((latency, c.bandwidth_s, c.algorithm not in ("levels", "torus", "in-network")))
        return Affine(terms=tuple(terms)) if terms else NOTHING


def _switch(level: str, name: str, free: list[int], members: list[int], left: int) -> int:
    """Take ranks behind a switch or in a full mesh."""
    room = free[0]
    mine = min(left, room)
    if room % mine or left % mine:
        raise InfeasibleError(f"{left} {name.split('_')[0]} ranks do not divide the {room} places left on {level}")
    free[0], members[0] = room // mine, mine
    return left // mine


def _torus(level: str, name: str, free: list[int], members: list[int], left: int) -> int:
    """Take whole axes of a torus: the fewest that hold the ranks, the longest first; all of them where more are left."""
    places = [i for i, n in enumerate(free) if n > 1]
    whole = math.prod(free[i] for i in places)
    if left >= whole and left % whole == 0:
        chosen: tuple[int, ...] = tuple(places)
    else:
        fits = [
            c for k in range(1, len(places) + 1) for c in itertools.combinations(places, k)
            if math.prod(free[i] for i in c) == left
        ]  # fmt: skip
        if not fits:
            raise InfeasibleError(
                f"{left} {name.split('_')[0]} ranks are no whole axes of {level} ({'x'.join(map(str, free))} left)"
            )
        chosen = fits[0]
    for i in chosen:
        members[i], free[i] = free[i], 1
    return left // math.prod(members[i] for i in chosen)


def reached(fabric: Fabric, *, link_ratio: float, network_ratio: float, alpha_s: float | None) -> Fabric:
    """Return the fabric at the rates that messages reach, with a cost of the shortest message where none is on record.

    Args:
        fabric: At its ceilings.
        link_ratio: Of every level but those between nodes or slices.
        network_ratio: Of those.
        alpha_s: See `Efficiency`; None leaves unknown latencies out.

    Raises:
        UsageError: a share that is not above 0.
    """
    if min(link_ratio, network_ratio) <= 0.0:
        raise UsageError("a share of a link must be above 0")
    levels = []
    for level in fabric.levels:
        ratio = network_ratio if level.name.startswith("network") else link_ratio
        hop = level.hop_s if is_known(level.hop_s) or alpha_s is None else alpha_s
        port = None if level.port_bytes_per_s is None else level.port_bytes_per_s * ratio
        levels.append(replace(level, bytes_per_s=level.bytes_per_s * ratio, port_bytes_per_s=port, hop_s=hop))
    return replace(fabric, levels=tuple(levels))
