"""The options of a network that several questions of `mansard plan` share, and the network they describe."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from mansard.hardware.topology import Fabric

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = (
    click.option("--wrap/--no-wrap", default=None, help="Ends of torus axes are linked.  [default: the rule of the product]"),
    click.option("--link-rate", metavar="RATE", help="One link of a torus or mesh, one device into a switch, one way."),
    click.option("--hop", metavar="TIME", help="Time of one hop.  [default: what is on record]"),
    click.option("--die-link", metavar="RATE", help="Between the devices of one package, one way."),
    click.option("--network", metavar="RATE", help="Of one chip or GPU into the network between slices or nodes, one way."),
    click.option("--network-hop", metavar="TIME", help="Time of one crossing of that network."),
    click.option("--adapters", type=click.IntRange(min=1), metavar="N",
                 help="Network adapters of a node or slice.  [default: one a GPU, one a TPU host]"),
    click.option("--leaf", type=click.IntRange(min=1), metavar="N",
                 help="Nodes under one leaf switch, or in one group of a dragonfly.  [default: all]"),
    click.option("--oversubscription", type=click.FloatRange(min=1.0), metavar="RATIO",
                 help="Rate into a leaf or group over the rate out of it.  [default: 1]"),
    click.option("--sharp", is_flag=True, help="The switches between nodes reduce (SHARP)."),
    click.option("--pcie-switch", type=click.IntRange(min=1), metavar="N", help="Devices behind one PCIe switch."),
)  # fmt: skip

#: Flags that are off unless they are given.
_OFF = {"sharp": False}


def fabric_options(command: F) -> F:
    """Add the options of a network to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def fabric_from(text: str, options: Mapping[str, Any]) -> Fabric:
    """Return the network of a shape by the options.

    Args:
        text: The shape, such as `4:8`.
        options: `on`, and the options of `fabric_options`.

    Raises:
        ShapeError: the product cannot be built in that shape.
        UsageError: a rate that is needed and not given, or a leaf without nodes.
    """
    from mansard.core.errors import UsageError
    from mansard.core.units import parse_quantity
    from mansard.hardware import load
    from mansard.hardware.fabrics import fabric_of, parse_shape

    def amount(name: str, dimension: str = "bytes_per_s") -> float | None:
        return None if options[name] is None else parse_quantity(options[name], dimension)

    shape = parse_shape(text)
    if options["oversubscription"] is not None and options["leaf"] is None:
        raise UsageError(
            "an oversubscription needs the leaves it is of", hint="add --leaf N, the nodes under one switch"
        )
    fabric = fabric_of(
        load(options["on"]), shape, wrap=options["wrap"], link_bytes_per_s=amount("link_rate"), hop_s=amount("hop", "s"),
        die_bytes_per_s=amount("die_link"), network_bytes_per_s=amount("network"), network_hop_s=amount("network_hop", "s"),
        adapters=options["adapters"], per_leaf=options["leaf"], oversubscription_ratio=options["oversubscription"] or 1.0,
        network_reduces=options["sharp"], per_pcie_switch=options["pcie_switch"],
    )  # fmt: skip
    return replace(fabric, notes=(*fabric.notes, *_without_meaning(fabric, options)))


def _without_meaning(fabric: Fabric, options: Mapping[str, Any]) -> list[str]:
    """Say which options were given that a network has no part for; of several shapes it may be that of another one."""
    names = [level.name for level in fabric.levels]
    parts = (
        ("no network between nodes", any(name.startswith("network") for name in names), ("adapters", "leaf", "oversubscription", "sharp")),
        ("no axes of a torus", any(level.kind == "torus" for level in fabric.levels), ("wrap",)),
        ("no link between dies on record", "die" in names, ("die_link",)),
        ("no PCIe between its devices", "pcie" in names, ("pcie_switch",)),
    )  # fmt: skip
    return [
        f"not used: {', '.join('--' + name.replace('_', '-') for name in given)}; {fabric.name} has {lack}"
        for lack, there, of_it in parts
        if not there
        and (given := [name for name in of_it if options[name] is not None and options[name] is not _OFF.get(name)])
    ]
