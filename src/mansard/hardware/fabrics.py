"""Networks of products of the catalogue: tori of TPUs, islands of GPUs, PCIe trees, rails and data-centre networks."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

from mansard.core.collective_times import HOP_S, Axis, wraps
from mansard.core.errors import UsageError
from mansard.core.unknown import MaybeFloat, Unknown
from mansard.hardware.records import Link, Sku
from mansard.hardware.topology import Fabric, Level

#: Between the two dies of a chip, one way [B/s]: about six times the two directions of one ICI axis.
DIE_BYTES_PER_S = {"tpu-v7x": 600e9}
_DIE_SOURCE = "jax issue 39340: 1.2 TB/s between the dies beside about 200 GB/s of an ICI axis, both directions each"
#: Chips of one host of a slice over several hosts, for v4, v5e, v5p, v6e and v7x (Cloud TPU documentation, machine types).
TPU_CHIPS_PER_HOST = 4
_REDUCES = ("Hopper", "Blackwell")
_SHAPE = re.compile(r"(?:(?P<outer>\d{1,6}):)?(?P<axes>\d{1,6}(?:x\d{1,6}){0,3})")


class ShapeError(UsageError):
    """A product cannot be built in that shape."""

    default_code = "shape"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A shape as people write it: `4x4x8` chips, `8` GPUs, `2:4x4` two slices, `4:8` four nodes.

    Args:
        axes: Units along each axis of one slice or island.
        outer: Slices or nodes.
    """

    axes: tuple[int, ...]
    outer: int = 1

    @property
    def text(self) -> str:
        """The shape as it is written."""
        return (f"{self.outer}:" if self.outer > 1 else "") + "x".join(str(a) for a in self.axes)


def parse_shape(text: str) -> Shape:
    """Return a shape from its text.

    Raises:
        UsageError: no such shape.

    >>> parse_shape("2:4x4x8")
    Shape(axes=(4, 4, 8), outer=2)
    """
    found = _SHAPE.fullmatch(text.strip().lower())
    if found is None:
        raise UsageError(
            f"cannot read the shape {text!r}", hint="4x4x8 chips, 8 GPUs, 2:4x4 two slices, 4:8 four nodes"
        )
    axes = tuple(int(a) for a in found["axes"].split("x"))
    outer = int(found["outer"] or 1)
    if 0 in axes or outer == 0 or math.prod(axes) * outer > 10**7:
        raise UsageError(f"the shape {text!r} has no devices, or more than ten million")
    return Shape(axes=axes, outer=outer)


def fabric_of(
    sku: Sku,
    shape: Shape,
    *,
    wrap: bool | None = None,
    link_bytes_per_s: float | None = None,
    hop_s: float | None = None,
    die_bytes_per_s: float | None = None,
    network_bytes_per_s: float | None = None,
    network_hop_s: float | None = None,
    adapters: int | None = None,
    per_leaf: int | None = None,
    oversubscription_ratio: float = 1.0,
    network_reduces: bool = False,
    per_pcie_switch: int | None = None,
) -> Fabric:
    """Return the network of one shape of a product.

    Args:
        sku: From the catalogue.
        shape: See `parse_shape`.
        wrap: Whether ends of torus axes are linked; None takes the rule of the product.
        link_bytes_per_s: One link of a torus or mesh, or one device into a switch, one way [B/s]; None takes the sheet.
        hop_s: Time of one hop [s]; None takes what is on record.
        die_bytes_per_s: Between the devices of one package, one way [B/s].
        network_bytes_per_s: Of one package into the network between slices or nodes, one way [B/s].
        network_hop_s: Time of one crossing of that network [s].
        adapters: Network adapters of one slice or node; None takes one for each GPU, and one for each host of a TPU slice.
        per_leaf: Slices or nodes under one leaf switch or in one group of a dragonfly; None for all.
        oversubscription_ratio: Rate into a leaf or group over the rate out of it.
        network_reduces: Whether the switches between nodes reduce (SHARP).
        per_pcie_switch: Devices behind one PCIe switch, which share one uplink.

    Raises:
        ShapeError: the product cannot be built like that.
        UsageError: a rate that is needed and on no record.
    """
    link = next((item for item in sku.links if item.role == "peer"), None)
    if link is not None and "torus" in link.topology and re.match(r"\dD", link.topology):
        fabric = torus_fabric(
            sku, link, shape.axes, wrap=wrap, link_bytes_per_s=link_bytes_per_s, hop_s=hop_s,
            die_bytes_per_s=die_bytes_per_s,
        )  # fmt: skip
    else:
        if len(shape.axes) != 1:
            raise ShapeError(
                f"{sku.slug} is no torus: {shape.text} has {len(shape.axes)} axes", hint="8, or 4:8 for nodes"
            )
        if link is None or _bridge_lacks(sku, link, shape.axes[0]):
            joined = 1 if link is None else _joined_by_bridges(link, shape.axes[0])
            bridge = (
                None if link is None or joined == 1 else island_fabric(sku, link, joined, bytes_per_s=None, hop_s=hop_s)
            )
            fabric = pcie_fabric(
                sku, shape.axes[0], per_switch=per_pcie_switch, bytes_per_s=link_bytes_per_s, hop_s=hop_s, bridge=bridge
            )
        else:
            fabric = island_fabric(sku, link, shape.axes[0], bytes_per_s=link_bytes_per_s, hop_s=hop_s)
    fabric = replace(fabric, name=f"{sku.slug} {shape.text}")
    if shape.outer == 1:
        return fabric
    if network_bytes_per_s is None:
        raise UsageError(
            f"{shape.text}: the rate of the network between the {shape.outer} parts is not known",
            hint='add --network "50 GB/s": one way, of one chip or GPU',
        )
    packages = fabric.devices // sku.package.devices
    torus = any(level.kind == "torus" for level in fabric.levels)
    usual = math.ceil(packages / TPU_CHIPS_PER_HOST) if torus else packages
    return networked(
        fabric, units=shape.outer, bytes_per_s=network_bytes_per_s * packages, hop_s=network_hop_s, per_leaf=per_leaf,
        oversubscription_ratio=oversubscription_ratio, reduces=network_reduces,
        adapters=usual if adapters is None else adapters,
    )  # fmt: skip


def _bridge_joins(link: Link) -> int:
    """Return how many cards one bridge joins at most."""
    return 4 if "four" in link.topology else 2


def _bridge_lacks(sku: Sku, link: Link, devices: int) -> bool:
    """Return whether cards are more than a bridge joins; a collective of them all then goes over PCIe as well."""
    bridged = link.topology.startswith("bridge")
    return bridged and devices > _bridge_joins(link) and any(item.name == "pcie" for item in sku.links)


def _joined_by_bridges(link: Link, devices: int) -> int:
    """Return how many cards each bridge joins where all have one; a card that is left over has PCIe alone, and decides."""
    most = _bridge_joins(link)
    return most if devices % most == 0 else 2 if devices % 2 == 0 else 1


def torus_fabric(
    sku: Sku,
    link: Link,
    axes: tuple[int, ...],
    *,
    wrap: bool | None,
    link_bytes_per_s: float | None,
    hop_s: float | None,
    die_bytes_per_s: float | None,
) -> Fabric:
    """Return a slice of a torus; a package of several devices has them as an innermost level."""
    most = int(link.topology[0])
    lengths = list(axes)
    while len(lengths) > most and lengths[-1] == 1:
        lengths.pop()
    if len(lengths) > most:
        raise ShapeError(f"{sku.slug} is a {link.topology}: {'x'.join(map(str, axes))} has {len(lengths)} axes")
    lengths += [1] * (most - len(lengths))
    found = []
    for length in lengths:
        ends = wraps(sku.slug, length, lengths) if wrap is None else wrap and length > 2
        if isinstance(ends, Unknown):
            raise UsageError(ends.reason, hint="say it with --wrap or --no-wrap")
        found.append(Axis(length=length, wraps=bool(ends) and length > 1))
    if link_bytes_per_s is None and link.count is None:
        raise UsageError(f"{sku.slug}: the number of links is on no record", hint='add --link-rate "45 GB/s"')
    rate = link_bytes_per_s if link_bytes_per_s is not None else link.bytes_per_s / float(link.count or 1)
    source = "given" if link_bytes_per_s is not None else f"{link.receipt.source}, one of {link.count} links"
    torus = Level(
        name=link.name, kind="torus", axes=tuple(found), bytes_per_s=rate, hop_s=HOP_S if hop_s is None else hop_s,
        source=source,
    )  # fmt: skip
    levels: tuple[Level, ...] = (torus,)
    if sku.package.devices > 1:
        die = die_bytes_per_s if die_bytes_per_s is not None else DIE_BYTES_PER_S.get(sku.slug)
        if die is None:
            raise UsageError(
                f"the rate between the {sku.package.devices} devices of one {sku.slug} is on no record",
                hint='add --die-link "600 GB/s": one way',
            )
        inner = Level(
            name="die", kind="switch", axes=(Axis(length=sku.package.devices, wraps=False),), bytes_per_s=die,
            hop_s=Unknown("the latency between dies is on no record", ("a measured fit",)) if hop_s is None else hop_s,
            source="given" if die_bytes_per_s is not None else _DIE_SOURCE,
        )  # fmt: skip
        levels = (inner, torus)
    notes = [f"links of {sku.slug}: {rate / 1e9:g} GB/s one way ({source})"]
    open_axes = [str(a.length) for a in found if a.length > 2 and not a.wraps]
    if open_axes:
        notes.append(f"axes of {', '.join(open_axes)} do not wrap: their ends have one link")
    return Fabric(name=sku.slug, levels=levels, notes=tuple(notes))


def island_fabric(sku: Sku, link: Link, devices: int, *, bytes_per_s: float | None, hop_s: float | None) -> Fabric:
    """Return devices joined by a switch or by a link for each pair.

    Raises:
        ShapeError: more devices than the product joins.
        UsageError: how they are joined is on no record.
    """
    said = re.search(r"between (?:two or )?(\w+) ", link.topology)
    words = {"two": 2, "four": 4}
    most = words.get(said[1], int(said[1]) if said[1].isdigit() else 0) if said else 0
    if link.topology.startswith("switched") and most:
        kind = "switch"
    elif link.topology.startswith(("all-to-all", "bridge")) and most:
        kind = "mesh"
    else:
        raise UsageError(
            f"how {sku.slug} devices are joined is on no record ({link.name}: {link.topology or 'nothing'})",
            hint="write a hardware file with the topology `switched between N` or `all-to-all between N`",
        )
    if devices > most:
        raise ShapeError(
            f"{link.name} joins at most {most} {sku.slug}, {devices} were asked for",
            hint=f"{math.ceil(devices / most)}:{most} is that many nodes of {most}",
        )
    rate = bytes_per_s
    if rate is None:
        # Soldered links go to each of the others, present or not; a bridge divides all links among the cards it joins.
        pairs = (devices if link.topology.startswith("bridge") else most) - 1
        rate = link.bytes_per_s / max(1, pairs) if kind == "mesh" else link.bytes_per_s
    latency: MaybeFloat = hop_s if hop_s is not None else link.latency_s if link.latency_s is not None else Unknown(
        f"the latency of {link.name} of {sku.slug} is on no record", ("a measured fit of a collective", "--hop")
    )  # fmt: skip
    level = Level(
        name=link.name, kind="switch" if kind == "switch" else "mesh", axes=(Axis(length=devices, wraps=False),),
        bytes_per_s=rate, hop_s=latency,
        reduces=kind == "switch" and link.name == "nvlink" and sku.architecture.startswith(_REDUCES),
        source="given" if bytes_per_s is not None else link.receipt.source,
    )  # fmt: skip
    return Fabric(name=sku.slug, levels=(level,), notes=(f"{link.name}: {rate / 1e9:g} GB/s one way, {kind}",))


def pcie_fabric(
    sku: Sku, devices: int, *, per_switch: int | None, bytes_per_s: float | None, hop_s: float | None,
    bridge: Fabric | None = None,
) -> Fabric:  # fmt: skip
    """Return devices on a PCIe tree: each has its own link to a switch, and a switch shares one link of the same width.

    Args:
        sku: The product.
        devices: How many cards.
        per_switch: Cards behind one switch; None for no shared uplinks.
        bytes_per_s: Of the PCIe link of one card, one way [B/s]; None for the catalogue's.
        hop_s: Time of one hop [s].
        bridge: Cards that a bridge joins; together they come in over the PCIe links of them all.

    Raises:
        ShapeError: switches that do not divide the devices, or bridges that do not divide those of a switch.
        UsageError: no PCIe link on record.
    """
    link = next((item for item in sku.links if item.name == "pcie"), None)
    if link is None:
        raise UsageError(f"{sku.slug} has no link to its like and no PCIe link on record", hint="write a hardware file")
    rate = link.bytes_per_s if bytes_per_s is None else bytes_per_s
    latency: MaybeFloat = hop_s if hop_s is not None else Unknown("the latency of PCIe is on no record", ("--hop",))
    group = devices if per_switch is None else per_switch
    if group < 1 or devices % group:
        raise ShapeError(f"{devices} devices do not divide over PCIe switches of {group}")
    inner, cards = ((), 1) if bridge is None else (bridge.levels, bridge.devices)
    if group % cards:
        raise ShapeError(f"bridges of {cards} {sku.slug} do not divide {group} behind a PCIe switch")

    def level(name: str, length: int) -> Level:
        # A card has no other way in; a switch may have network adapters behind it, beside its uplink.
        own = name == "pcie"
        return Level(
            name=name, kind="switch", axes=(Axis(length=length, wraps=False),), bytes_per_s=cards * rate if own else rate,
            hop_s=latency, port_bytes_per_s=rate if own and cards > 1 else None, only_way_in=own,
            source=link.receipt.source if bytes_per_s is None else "given",
        )  # fmt: skip

    notes: tuple[str, ...] = (f"PCIe: {rate / 1e9:g} GB/s one way per device",)
    if bridge is not None:
        notes = (
            *bridge.notes,
            f"a bridge joins {cards} cards each; without bridges there is PCIe alone, and less",
            *notes,
        )
    if per_switch is None:
        return Fabric(
            name=sku.slug, levels=(*inner, level("pcie", devices // cards)),
            notes=(*notes, "no shared uplinks were assumed: say --pcie-switch N where N devices share one"),
        )  # fmt: skip
    levels = (*inner, level("pcie", group // cards), level("pcie-uplink", devices // group))
    return Fabric(name=sku.slug, levels=levels, notes=notes)


def networked(
    fabric: Fabric,
    *,
    units: int,
    bytes_per_s: float,
    name: str = "network",
    hop_s: MaybeFloat | None = None,
    per_leaf: int | None = None,
    oversubscription_ratio: float = 1.0,
    reduces: bool = False,
    adapters: int = 1,
) -> Fabric:
    """Return several such fabrics joined by a data-centre network, a rail-optimised or plain fat tree.

    Args:
        fabric: One slice or node.
        units: How many.
        bytes_per_s: Of one slice or node into the network, one way, all its ports together [B/s].
        name: Name of the level.
        hop_s: Time of one crossing [s]; None where it is on no record.
        per_leaf: Slices or nodes under one leaf switch, or one set of rails; None for all.
        oversubscription_ratio: Downlinks over uplinks of a leaf; 1 is a full fat tree.
        reduces: Whether the switches reduce (SHARP).
        adapters: Network adapters of one slice or node. A message between two devices uses one of them: NCCL takes the nearest
            of each GPU, and an all-to-all or a neighbour exchange shows the rate of one (NVIDIA/nccl-tests issue 267,
            NVIDIA/nccl issue 1272).

    Assumes: device i of each node talks to device i of the others over its own rail, so that a group uses the ports of
    its own devices alone.

    Raises:
        ShapeError: leaves that do not divide the units, or an oversubscription below 1.
    """
    leaf = units if per_leaf is None else per_leaf
    if leaf < 1 or units % leaf or not 1.0 <= oversubscription_ratio < math.inf:
        raise ShapeError(
            f"{units} units under leaves of {leaf}, oversubscribed {oversubscription_ratio:g} to 1, make no fat tree"
        )
    if adapters < 1:
        raise ShapeError(f"{adapters} adapters of the {name} join nothing")
    latency: MaybeFloat = Unknown(f"the latency of the {name} is on no record", ("a measured fit",))
    latency = latency if hop_s is None else hop_s

    one = bytes_per_s / adapters

    def level(label: str, length: int, rate: float) -> Level:
        return Level(
            name=label, kind="switch", axes=(Axis(length=length, wraps=False),), bytes_per_s=rate, hop_s=latency,
            reduces=reduces, sends_sums=reduces, port_bytes_per_s=min(one, rate) if adapters > 1 else None, only_way_in=True, source="given",
        )  # fmt: skip

    levels = [*fabric.levels, level(name, leaf, bytes_per_s)]
    if leaf < units:
        levels.append(level(f"{name}-spine", units // leaf, leaf * bytes_per_s / oversubscription_ratio))
    notes = [*fabric.notes, f"{name}: {bytes_per_s / 1e9:g} GB/s one way per unit of {fabric.devices} devices"]
    if adapters > 1:
        notes[-1] += f" by {adapters} adapters; a message between two devices uses one of them, {one / 1e9:g} GB/s"
    if leaf < units:
        notes.append(
            f"{units // leaf} leaves of {leaf} units, {levels[-1].bytes_per_s / 1e9:g} GB/s up from each, "
            f"oversubscribed {oversubscription_ratio:g} to 1"
        )
    return replace(fabric, levels=tuple(levels), notes=tuple(notes))
