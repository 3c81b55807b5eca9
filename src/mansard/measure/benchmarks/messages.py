"""Messages between two devices: one pair, or the matrix of all pairs; one way or both ways at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mansard.core import Demand
from mansard.core.collectives import SIZE_MEANS
from mansard.core.dtypes import dtype_bytes, short_dtype
from mansard.core.errors import UsageError
from mansard.measure.benchmarks.entry import chosen, missing_memory, missing_package
from mansard.measure.benchmarks.link_points import (
    MOST_RANKS,
    RANKS_VARIABLE,
    both_ways,
    devices_there,
    host_facts,
    in_one_memory,
    job_ranks,
    link_of,
    local_devices,
    missing_whole_bytes,
    not_of_this_job,
)
from mansard.measure.links.mesh import pairs_of
from mansard.measure.links.shapes import Shapes
from mansard.measure.points.benchmark import Parameter, Params, Prepared, Transfer, Waived, Where, Work

ALL = -1
COPIES = 3.0
_COMMON = (
    Parameter(
        name="direction", kind="str", default="uni", choices=("uni", "bi"),
        text="uni: the source sends; bi: both send at the same time, and the rate is that of both together",
    ),
    Parameter(name="source_id", kind="int", default=ALL, minimum=ALL, aliases=("src_device_index",),
              text="device that sends; -1 for all pairs, which take turns"),
    Parameter(name="target_id", kind="int", default=ALL, minimum=ALL, aliases=("dst_device_index",),
              text="device that receives; -1 for all pairs"),
    Parameter(name="devices", kind="int", default=0, minimum=0,
              text="devices among which all pairs are taken; 0 for all, on a CPU one for each core and at least 2"),
    Parameter(name="seed", kind="int", default=0, minimum=0, text="seed of the data"),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Messages:
    """Messages between devices; see `points.benchmark.Benchmark` for the attributes."""

    name: str
    summary: str
    parameters: tuple[Parameter, ...]
    aliases: tuple[str, ...] = ()
    area: str = "collectives"

    @property
    def implementations(self) -> Mapping[str, str]:
        """A compiled permutation over two devices, a copy by the runtime, or send and receive between processes."""
        return {"jax": "jax", "jax_copy": "jax", "torch": "torch"}

    def pairs(self, params: Params, devices: int) -> list[tuple[int, int]]:
        """Return source and target of each message; both ways at once each pair is taken once."""
        source, target = int(params["source_id"]), int(params["target_id"])
        both = params["direction"] == "bi"
        if (source == ALL) != (target == ALL):
            raise UsageError("give both source_id and target_id, or neither for all pairs")
        if source == ALL:
            return [(a, b) for a, b in pairs_of(devices) if not both or a < b]
        if source == target:
            raise UsageError(f"source_id and target_id are both {source}: nothing moves")
        return [(source, target)]

    def needed(self, params: Params, there: int) -> int:
        """Return how many devices a point needs."""
        asked = int(params["devices"])
        return max(
            asked or (there if params["source_id"] == ALL else 0),
            int(params["source_id"]) + 1,
            int(params["target_id"]) + 1,
            2,
        )

    def shapes(self, params: Params) -> Shapes:
        """Return the message."""
        dtype = short_dtype(str(params["dtype"]))
        if "num_elements" in params:
            elements = int(params["num_elements"])
        else:
            elements = max(1, round(float(params["data_size_mib"]) * 2**20 / dtype_bytes(dtype)))
        return Shapes(operation="send_recv", local=(elements,), ranks=2, dtype=dtype, layout="message")

    def flags(self, params: Params, impl: str) -> Mapping[str, str]:
        """Return what makes several devices out of one CPU; on an accelerator it changes nothing."""
        needed = self.needed(params, local_devices())
        if self.implementations[impl] == "torch":
            return {RANKS_VARIABLE: str(needed)}
        return {"XLA_FLAGS": f"--xla_force_host_platform_device_count={needed}"}

    def work(self, params: Params, where: Where) -> Work:
        """Return what one message moves."""
        size = self.shapes(params).local_bytes
        link, both = link_of(where, chosen(params, self.implementations)), params["direction"] == "bi"
        total = size * (2.0 if both else 1.0)
        means = "bytes both devices send together, both directions" if both else SIZE_MEANS[self.name]
        convention = (
            "all pairs take turns: the rate is S over the mean time" if params["source_id"] == ALL else "one pair"
        )
        demand = Demand(link_bytes={link: size}, working_set_bytes=2.0 * size)
        if in_one_memory(where):
            demand = Demand(read_bytes=total, write_bytes=total, working_set_bytes=2.0 * total)
            convention += "; both devices share one memory: each message is read there once and written once"
        return Work(
            demand=demand,
            transfer=Transfer(
                operation=self.name,
                size_bytes=total,
                size_means=means,
                bus_factor=1.0,
                participants=2,
                link=both_ways(link) if both else link,
            ),
            headline="transfer",
            convention=convention,
        )

    def waived(self, params: Params, impl: str, where: Where) -> Waived | None:
        """Return why this point cannot run here, or None."""
        backend = self.implementations[impl]
        missing = missing_package(backend) or missing_whole_bytes(params)
        if missing is not None:
            return missing
        needed = self.needed(params, devices_there(where))
        elsewhere = not_of_this_job(needed, backend)
        if elsewhere is not None:
            return elsewhere
        if where.platform != "cpu" and needed > devices_there(where):
            return Waived(reason=f"{needed} devices are needed; there are {where.devices}", missing="device")
        if where.platform == "cpu" and needed > MOST_RANKS and not job_ranks():
            return Waived(
                reason=f"{needed} devices on one host are more than the {MOST_RANKS} that are started", missing="device"
            )
        held = COPIES * self.shapes(params).local_bytes * (needed if where.platform == "cpu" else 1)
        return missing_memory(held, f"messages of {self.shapes(params).local_bytes / 2**20:g} MiB", where)

    def prepare(self, params: Params, impl: str, where: Where) -> Prepared:
        """Make the data and compile, or start the ranks."""
        needed = self.needed(params, devices_there(where))
        both, shapes, seed = params["direction"] == "bi", self.shapes(params), int(params["seed"])
        pairs = self.pairs(params, needed)
        facts = host_facts(where, self.implementations[impl], needed)
        if self.implementations[impl] == "torch":
            from mansard.measure.links import pairs_torch

            device_type = "cpu" if where.platform == "cpu" else "cuda"
            return pairs_torch.prepared(
                pairs_torch.pairs_on_ranks(pairs, shapes, ranks=needed, device_type=device_type, both=both, seed=seed),
                facts,
            )
        from mansard.measure.links import pairs_jax

        if impl == "jax" and not both:
            facts["idle_side"] = "the permutation fills what the source does not receive with zeros"
        point = pairs_jax.pairs_on_devices(pairs, shapes, both=both, copies=impl == "jax_copy", seed=seed)
        return pairs_jax.prepared(point, facts)

    def columns(self, params: Params, where: Where, seconds: Mapping[str, float]) -> Mapping[str, Any]:  # noqa: ARG002
        """Return the columns of the published suite."""
        size = self.shapes(params).local_bytes
        if self.name == "send_recv":
            # v1 divides by the longest of its repeats.
            return {"data_transfer_gbyte_sec": size / seconds["max"] / 1e9, "source_id": params["source_id"], "target_id": params["target_id"]}  # fmt: skip
        one = params["source_id"] != ALL
        return {
            "total_bytes_mb": size / 1e6, "direction": params["direction"],
            "src_device_index": params["source_id"] if one else "all", "dst_device_index": params["target_id"] if one else "all",
        }  # fmt: skip


BENCHMARKS = (
    Messages(
        name="device_to_device", summary="point-to-point matrix: a message between each pair of devices",
        parameters=(
            Parameter(name="data_size_mib", kind="float", default=1024, minimum=0, text="size of one message [MiB]"),
            Parameter(name="dtype", kind="dtype", default="f32", text="element type"),
            *_COMMON,
        ),
    ),
    Messages(
        name="send_recv", summary="a message from one device to another", aliases=("sendrecv",),
        parameters=(
            Parameter(name="num_elements", kind="int", default=2**20, minimum=1, text="elements of one message"),
            Parameter(name="dtype", kind="dtype", default="f32", text="element type"),
            *_COMMON,
        ),
    ),
)  # fmt: skip
