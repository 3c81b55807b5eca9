"""What the bytes of a profile go over: the names of its links, by who talks to whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mansard.core import Unknown

#: Name of the link between nodes, where its rate was given.
BETWEEN_NODES = "network"


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """Names of the links that bytes of a profile go over; None where that is not known.

    Args:
        host: Between host and device.
        peer: Between devices of one node.
        network: Between nodes.
        node_devices: Devices of a node; None where not known.
    """

    host: str | None = None
    peer: str | None = None
    network: str | None = None
    node_devices: int | None = None

    def of_group(self, ranks: Sequence[int], size: int | Unknown) -> str | Unknown:
        """Return the slowest link that a group of ranks must use, if ranks are numbered node by node."""
        if isinstance(size, Unknown):
            return size
        if self.node_devices is None:
            return Unknown("how many devices a node has is not known", ("--node-devices N",))
        nodes = {r // self.node_devices for r in ranks}
        if size > self.node_devices or len(nodes) > 1:
            return self.network or Unknown("the rate of the network between nodes is not known", ("--network-rate",))
        if ranks or size == self.node_devices:
            return self.peer or Unknown("the link between devices is not known", ("--hardware",))
        return Unknown(
            "whether the ranks of this group share a node is not recorded",
            ("a profile with 'Process Group Ranks', or --network-rate",),
        )


def place_of(link: str | Unknown | None) -> str:
    """Return where the link of a collective is, for reading; empty where it is not known.

    >>> place_of("nvlink"), place_of(BETWEEN_NODES), place_of(None)
    ('inside a node', 'between nodes', '')
    """
    if not isinstance(link, str):
        return ""
    return "between nodes" if link == BETWEEN_NODES else "inside a node"
