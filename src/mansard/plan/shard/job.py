"""What a search is for, and on what: the work, the policies that are stated, and the machine with its network."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from mansard.core import Unknown
from mansard.core.errors import UsageError
from mansard.diagnose.economics import NO_PRICE, DevicePrice
from mansard.hardware.topology import Fabric
from mansard.plan.shard.efficiency import BOUND, Efficiency
from mansard.plan.shard.network import Network, reached
from mansard.predict.bound import Machine
from mansard.workload.training import Recipe

Overlap = Literal["framework", "none", "full"]
OVERLAP: dict[str, str] = {
    "framework": "gradients and sharded weights travel behind the kernels of other layers, a ring of keys behind the attention "
    "core, hand-overs of interleaved stages behind other chunks; tensor and expert messages and other hand-overs are waited for",
    "none": "every message is waited for",
    "full": "messages hide behind kernels as far as there are any",
}

#: Share of the memory that plans may use: the rest is the context, the buffers of collectives, and fragments.
MEMORY_FRACTION = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What is to be done.

    Args:
        phase: `train` or `serve`.
        seq, batch: Training: tokens of a sequence, sequences of an optimizer step.
        prompt, context: Serving: tokens of a prompt, and keys a token of the answer sees.
        recipe: Optimizer and its types.
        overlap: See `OVERLAP`.
        imbalance: Busiest over mean expert rank.
        memory_fraction: Share of the memory that may be used.
        kv: Type of the cache.
        dtype: Type of activations and of what is not quantised.
        weights: Serving: type the matrices are stored in; None as the checkpoint.
    """

    phase: Literal["train", "serve"]
    seq: int | None = None
    batch: int | None = None
    prompt: int | None = None
    context: int | None = None
    recipe: Recipe = field(default_factory=Recipe)
    overlap: Overlap = "framework"
    imbalance: float = 1.0
    memory_fraction: float = MEMORY_FRACTION
    kv: str | None = None
    dtype: str | None = None
    weights: str | None = None

    def __post_init__(self) -> None:
        needed = ("seq", "batch") if self.phase == "train" else ("prompt", "context")
        for name in needed:
            value = getattr(self, name)
            if value is None or value < 1:
                raise UsageError(f"{self.phase} needs {name}, got {value}", hint=f"add --{name} N")
        if self.overlap not in OVERLAP:
            raise UsageError(f"unknown overlap policy {self.overlap!r}", hint=f"one of {', '.join(OVERLAP)}")
        if not self.imbalance >= 1.0:
            raise UsageError(f"the imbalance is {self.imbalance}, expected busiest over mean rank, 1 or more")
        if not 0.0 < self.memory_fraction <= 1.0:
            raise UsageError(f"the memory fraction is {self.memory_fraction}, expected a share above 0 and up to 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """On what: one kind of device, and the network of each number of devices.

    Args:
        machine: One device.
        fabrics: Number of devices -> their network, at its ceilings.
        efficiency: What is reached of the ceilings.
        price: Of one device.
        in_network: Whether the network may reduce.
    """

    machine: Machine
    fabrics: dict[int, Fabric]
    efficiency: Efficiency = BOUND
    price: DevicePrice | Unknown = NO_PRICE
    in_network: bool = False

    def network(self, devices: int, scale: Scale) -> Network:
        """Return the network of a number of devices at the rates that messages reach."""
        fabric = reached(
            self.fabrics[devices], link_ratio=self.efficiency.link_ratio * scale.link,
            network_ratio=self.efficiency.network_ratio * scale.network, alpha_s=self.efficiency.alpha_s,
        )  # fmt: skip
        return Network(fabric=fabric, in_network=self.in_network)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Ceilings multiplied, to see what they decide.

    Args:
        compute, memory, link, network, capacity: Peaks, bandwidth of main memory, links within and between nodes, and the
            bytes a device may hold.
    """

    compute: float = 1.0
    memory: float = 1.0
    link: float = 1.0
    network: float = 1.0
    capacity: float = 1.0


AS_IS = Scale()
CEILINGS = ("compute", "memory", "link", "network", "capacity")


def scaled(name: str, ratio: float) -> Scale:
    """Return one ceiling multiplied.

    >>> scaled("link", 1.2).link
    1.2
    """
    return replace(AS_IS, **{name: ratio})
