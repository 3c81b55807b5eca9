"""A mesh of devices, which of its axes take part in a collective, and the replica groups that follow."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import dataclass

import numpy as np

from mansard.core.errors import UsageError

Groups = tuple[tuple[int, ...], ...]

_LISTED = re.compile(r"replica_groups=\{((?:\{[\d, ]*\},? ?)*)\}")
_IOTA = re.compile(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_PAIRS = re.compile(r"source_target_pairs=\{((?:\{\d+, ?\d+\},? ?)*)\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """Devices in a grid, numbered row by row.

    Args:
        shape: Devices along each axis.
        strategy: One number per axis; an axis whose number is above 1 takes part.

    >>> mesh = Mesh(shape=(4, 2), strategy=(4, 1))
    >>> mesh.participants, mesh.groups
    (4, ((0, 2, 4, 6), (1, 3, 5, 7)))
    """

    shape: tuple[int, ...]
    strategy: tuple[int, ...]

    @property
    def devices(self) -> int:
        """Devices in the mesh."""
        return math.prod(self.shape)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the axes."""
        return tuple(f"axis{i}" for i in range(len(self.shape)))

    @property
    def taking_part(self) -> tuple[int, ...]:
        """Indices of the axes that take part."""
        return tuple(i for i, used in enumerate(self.strategy) if used > 1)

    @property
    def participants(self) -> int:
        """Devices in one replica group."""
        return math.prod(self.shape[i] for i in self.taking_part)

    @property
    def groups(self) -> Groups:
        """Device numbers of each replica group."""
        numbers = np.arange(self.devices).reshape(self.shape)
        rest = [i for i in range(len(self.shape)) if i not in self.taking_part]
        rows = numbers.transpose([*rest, *self.taking_part]).reshape(-1, self.participants)
        return tuple(tuple(int(d) for d in row) for row in rows)

    def place(self, device: int) -> tuple[int, int]:
        """Return (group, index in it) of a device."""
        return next((g, group.index(device)) for g, group in enumerate(self.groups) if device in group)

    @property
    def parallel(self) -> bool:
        """Whether all devices of the first group have even numbers: one core of each chip of two."""
        return all(d % 2 == 0 for d in self.groups[0])


def mesh_of(shape: str, strategy: str, devices: int) -> Mesh:
    """Return the mesh of a configuration.

    Args:
        shape: `"4x2x2"`; empty for all devices in a row.
        strategy: `"4x2x1"`; empty for all axes. An entry above 1 lets its axis take part.
        devices: Devices there are, for an empty shape.

    Raises:
        UsageError: they cannot be read or do not belong together.
    """
    sizes = _numbers(shape, "mesh_shape") if shape else (devices,)
    used = _numbers(strategy, "sharding_strategy") if strategy else sizes
    if len(used) != len(sizes):
        raise UsageError(
            f"sharding_strategy {strategy!r} has {len(used)} axes, the mesh {shape or sizes[0]!r} has {len(sizes)}",
            hint="one number for each axis of the mesh, 1 for an axis that does not take part",
        )
    # An axis takes part as a whole: the published suite writes 1x1x4 on a mesh of 4x4x8 and means all 8 of the last one.
    return Mesh(shape=sizes, strategy=used)


def _numbers(text: str, what: str) -> tuple[int, ...]:
    parts = text.lower().replace(" ", "").split("x")
    if not all(p.isdigit() and int(p) > 0 for p in parts):
        raise UsageError(f"{what} {text!r} is not read", hint="positive numbers with an x between, such as 4x2x2")
    return tuple(int(p) for p in parts)


def replica_groups(hlo: str) -> Groups:
    """Return the groups of the collectives in HLO text; those of all of them where they agree.

    A permutation has pairs of source and target instead; devices that are joined by them are a group.

    Raises:
        UsageError: none is found, or two collectives have different ones.

    >>> replica_groups("%a = f32[4] all-reduce(%x), replica_groups={{0,2},{1,3}}, to_apply=%add")
    ((0, 2), (1, 3))
    >>> replica_groups("%a = f32[4] all-reduce(%x), replica_groups=[2,2]<=[2,2]T(1,0), to_apply=%add")
    ((0, 2), (1, 3))
    >>> replica_groups("%p = f32[4] collective-permute(%x), source_target_pairs={{0,1},{1,0},{2,3}}")
    ((0, 1), (2, 3))
    """
    found: set[Groups] = set()
    for match in _LISTED.finditer(hlo):
        rows = re.findall(r"\{([\d, ]*)\}", match.group(1))
        found.add(tuple(tuple(int(d) for d in row.split(",") if d.strip()) for row in rows))
    for match in _IOTA.finditer(hlo):
        found.add(_iota(*match.groups()))
    for match in _PAIRS.finditer(hlo):
        pairs = [tuple(int(d) for d in p) for p in re.findall(r"\{(\d+), ?(\d+)\}", match.group(1))]
        found.add(_joined([(a, b) for a, b in pairs]))
    found.discard(())
    if len(found) != 1:
        raise UsageError(f"the compiled program has {len(found)} different sets of replica groups, expected one")
    return found.pop()


def _iota(shape: str, reshaped: str, order: str | None) -> Groups:
    numbers = np.arange(math.prod(int(n) for n in reshaped.split(","))).reshape([int(n) for n in reshaped.split(",")])
    if order:
        numbers = numbers.transpose([int(n) for n in order.split(",")])
    rows = numbers.reshape([int(n) for n in shape.split(",")])
    return tuple(tuple(int(d) for d in row) for row in rows)


def _joined(pairs: list[tuple[int, int]]) -> Groups:
    groups: list[set[int]] = []
    for a, b in pairs:
        touching = [g for g in groups if a in g or b in g]
        groups = [g for g in groups if g not in touching] + [{a, b}.union(*touching)]
    return tuple(sorted(tuple(sorted(g)) for g in groups))


def same_groups(one: Groups, other: Groups) -> bool:
    """Return whether two sets of groups divide the devices in the same way, whatever their order."""
    return {frozenset(g) for g in one} == {frozenset(g) for g in other}


def pairs_of(devices: int) -> list[tuple[int, int]]:
    """Return all pairs of different devices, source and target."""
    return [(a, b) for a, b in itertools.product(range(devices), repeat=2) if a != b]
