"""What the bytes of a profile go over: the names of its links, by who talks to whom."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mansard.core import Unknown
from mansard.trace.collectives_of import bus_factor

#: Name of the link between nodes, where its rate was given.
BETWEEN_NODES = "network"
#: Name of the link between host and device where nothing tells what it is; no ceiling has it.
UNKNOWN_HOST = "host"


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

    def sent(
        self, operation: str, size_bytes: float | Unknown, ranks: Sequence[int], size: int | Unknown
    ) -> dict[str, float] | Unknown:
        """Return the bytes that one device must send over each link for a collective [B].

        Inside a node, and for groups with one rank per node, these are S times the bus factor. Where whole parts of a group
        share their nodes, only what must cross between nodes goes over the network, spread over the links of all devices of a
        node: S x 2 (N - 1) / N / g for an all-reduce of N nodes with g ranks each. No algorithm sends less.

        Args:
            operation: As `core.collectives` names it.
            size_bytes: The size S of NCCL's definitions [B].
            ranks: Ranks of the group, where they are recorded.
            size: How many they are.

        Source: NCCL tests, PERFORMANCE.md, for the factors; what crosses nodes is what a node must send, over its g links.

        >>> eight = Links(peer="nvlink", network="network", node_devices=8)
        >>> eight.sent("all_reduce", 100e6, range(8), 8)
        {'nvlink': 175000000.0}
        >>> eight.sent("all_reduce", 100e6, range(16), 16)
        {'network': 12500000.0, 'nvlink': 175000000.0}
        """
        link = self.of_group(ranks, size)
        whole = size_bytes * bus_factor(operation, size)
        if isinstance(whole, Unknown):
            return whole
        if isinstance(link, Unknown):
            return link
        local = self._ranks_per_node(ranks, size)
        if isinstance(size, Unknown) or isinstance(size_bytes, Unknown) or link != self.network or local == 1:
            return {link: whole}
        if local is None:
            return Unknown(f"the {size} ranks are not spread evenly over nodes", ("one rank per node, or whole nodes",))
        across = self._across(operation, size, local)
        if isinstance(across, Unknown):
            return across
        inside = size_bytes * bus_factor(operation, local)
        out = {link: size_bytes * across}
        if self.peer is not None and not isinstance(inside, Unknown):
            out[self.peer] = inside
        return out

    def _ranks_per_node(self, ranks: Sequence[int], size: int | Unknown) -> int | None:
        """Return the ranks of a group in each of its nodes; None where that is not one number."""
        if self.node_devices is None or isinstance(size, Unknown):
            return None
        if len(ranks) == size:
            counts = set(Counter(r // self.node_devices for r in ranks).values())
            return counts.pop() if len(counts) == 1 else None
        return self.node_devices if size % self.node_devices == 0 else None

    @staticmethod
    def _across(operation: str, size: int, local: int) -> float | Unknown:
        """Return the bytes over S that one device's link to other nodes must carry."""
        nodes = size // local
        if operation == "all_reduce":
            return 2 * (nodes - 1) / nodes / local
        if operation in ("all_gather", "reduce_scatter"):
            return (nodes - 1) / nodes / local
        if operation in ("broadcast", "reduce"):
            return 1.0 / local
        if operation == "all_to_all":
            return (size - local) / size
        return Unknown(f"how {operation} crosses nodes is not known", ("which collective it is",))


def place_of(link: str | Unknown | None) -> str:
    """Return where the link of a collective is, for reading; empty where it is not known.

    >>> place_of("nvlink"), place_of(BETWEEN_NODES), place_of(None)
    ('inside a node', 'between nodes', '')
    """
    if not isinstance(link, str):
        return ""
    return "between nodes" if link == BETWEEN_NODES else "inside a node"


def within_process(environment: Mapping[str, Any]) -> Unknown | None:
    """Return why the exchanges of a run go over no link: its devices are made of the processors of one process.

    Args:
        environment: Facts of the recorded process, as `RunTrace.environment` has them; a JAX program's say its platform.

    >>> within_process({"platform": "cpu", "process_count": 1, "num_devices": 2}).reason
    'the 2 devices are made of the processors of one process, and no link joins them'
    >>> within_process({"platform": "gpu", "process_count": 1, "num_devices": 2}) is None
    True
    """
    devices = environment.get("num_devices")
    if environment.get("platform") != "cpu" or environment.get("process_count") != 1 or not isinstance(devices, int):
        return None
    if devices < 2:
        return None
    return Unknown(
        f"the {devices} devices are made of the processors of one process, and no link joins them",
        ("a run over several processes or real devices",),
    )
