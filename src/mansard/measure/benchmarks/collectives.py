"""Collectives: over the devices of a JAX mesh, or over the ranks of `torch.distributed`.

On a CPU the devices are made: JAX is told to show several local ones, and PyTorch gets one process for each rank. What
is measured then is a meeting of threads or processes inside one memory, and every result says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mansard.core import Demand
from mansard.core.collectives import SIZE_MEANS, bus_factor, ironwood_bytes, sent_ratio
from mansard.core.errors import UsageError
from mansard.measure.benchmarks.entry import chosen, missing_memory, missing_package
from mansard.measure.benchmarks.link_points import (
    MOST_LOCAL,
    MOST_RANKS,
    RANKS_VARIABLE,
    devices_there,
    host_facts,
    in_one_memory,
    job_ranks,
    link_of,
    local_devices,
    missing_whole_bytes,
    not_of_this_job,
    planned_in_one_memory,
)
from mansard.measure.links.mesh import Mesh, mesh_of
from mansard.measure.links.shapes import LAYOUTS, REDUCTIONS, Shapes, shapes_of
from mansard.measure.points.benchmark import Parameter, Params, Planned, Prepared, Transfer, Waived, Where, Work

COPIES = 3.0  # of input and result that a point holds: for the loop, and for types that are converted

MESH = (
    Parameter(
        name="mesh_shape", kind="str", default="",
        text="devices along each axis, such as 4x2x2; empty for all devices in a row",
    ),
    Parameter(
        name="sharding_strategy", kind="str", default="",
        text="one number for each axis of the mesh: above 1 it takes part, 1 it does not; empty for all",
    ),
    Parameter(
        name="devices", kind="int", default=0, minimum=0,
        text="devices in a row where no mesh is given; 0 for all, on a CPU one for each core and at least 2",
    ),
    Parameter(name="matrix_dim", kind="int", default=1024, minimum=1, text="rows of (matrix_dim, 8, 128) elements"),
    Parameter(name="dtype", kind="dtype", default="bf16", text="element type"),
    Parameter(
        name="layout", kind="str", default="auto", choices=LAYOUTS,
        text="what matrix_dim says of the size: rows (v2), buffer (v1 for TPU7x), square (v1), even (buffer, rows that divide); auto by the parameters given",
    ),
    Parameter(name="seed", kind="int", default=0, minimum=0, text="seed of the data"),
    Parameter(name="ici_size", kind="int", default=0, minimum=0, text="devices inside one slice (v1); 0 where not given"),
    Parameter(name="dcn_size", kind="int", default=1, minimum=0, text="slices (v1)"),
)  # fmt: skip
REDUCE_OP = Parameter(name="reduce_op", kind="str", default="sum", choices=REDUCTIONS, text="reduction")


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """One collective; see `points.benchmark.Benchmark` for the attributes."""

    name: str
    aliases: tuple[str, ...]
    summary: str
    parameters: tuple[Parameter, ...]
    implementations: Mapping[str, str]
    area: str = "collectives"

    def mesh(self, params: Params, where_devices: int) -> Mesh:
        """Return the mesh of a point."""
        shape = str(params["mesh_shape"])
        ici = int(params["ici_size"])
        made = mesh_of(shape, str(params["sharding_strategy"]), int(params["devices"]) or ici or where_devices)
        if shape and ici and ici != made.devices:
            raise UsageError(f"ici_size is {ici}, but the mesh {shape} has {made.devices} devices")
        return made

    def flags(self, params: Params, impl: str) -> Mapping[str, str]:
        """Return what makes several devices out of one CPU; on an accelerator it changes nothing."""
        needed = self.mesh(params, local_devices()).devices
        if self.implementations[impl] == "torch":
            return {RANKS_VARIABLE: str(needed)}
        return {"XLA_FLAGS": f"--xla_force_host_platform_device_count={needed}"}

    def _seen(self, params: Params, where: Where) -> Mesh:
        return self.mesh(params, devices_there(where))

    def shapes(self, params: Params, mesh: Mesh) -> Shapes:
        """Return the arrays of a point."""
        return shapes_of(self.name, params, mesh.participants)

    def work(self, params: Params, where: Where) -> Work:
        """Return what one collective moves."""
        mesh = self._seen(params, where)
        shapes, n = self.shapes(params, mesh), mesh.participants
        backend = chosen(params, self.implementations)
        link, size = link_of(where, backend), shapes.size_bytes
        held = (shapes.local_bytes + shapes.result_bytes) * (mesh.devices if where.platform == "cpu" else 1)
        convention = f"NCCL's algbw and busbw; layout {shapes.layout}: {' x '.join(map(str, shapes.local))} per device"
        planned: Planned | None = None
        if in_one_memory(where):  # at least every input is read once and every result is written once
            senders = len(mesh.groups) if self.name == "broadcast" else mesh.devices
            demand = Demand(
                read_bytes=senders * shapes.local_bytes, write_bytes=mesh.devices * shapes.result_bytes,
                working_set_bytes=held,
            )  # fmt: skip
            convention += "; all devices share one memory: each input is read there once, each result written once"
            if backend == "jax":
                planned = planned_in_one_memory(shapes, mesh.devices, len(where.cpus) or local_devices())
        else:
            demand = Demand(link_bytes={link: sent_ratio(self.name, n) * size}, working_set_bytes=held)
        return Work(
            demand=demand,
            transfer=Transfer(
                operation=self.name, size_bytes=size, size_means=SIZE_MEANS[self.name],
                bus_factor=bus_factor(self.name, n), participants=n, link=link,
            ),
            headline="transfer",
            convention=convention,
            planned=planned,
        )  # fmt: skip

    def waived(self, params: Params, impl: str, where: Where) -> Waived | None:
        """Return why this point cannot run here, or None."""
        backend = self.implementations[impl]
        missing = missing_package(backend) or missing_whole_bytes(params)
        if missing is not None:
            return missing
        if int(params["dcn_size"]) > 1:
            text = f"{params['dcn_size']} slices joined by a data centre network are needed; this is one host"
            return Waived(reason=text, missing="device")
        mesh = self._seen(params, where)
        if mesh.participants == 1:
            text = f"the mesh {'x'.join(map(str, mesh.shape))} has groups of one device, in which nothing moves"
            return Waived(reason=text, missing="device")
        elsewhere = not_of_this_job(mesh.devices, backend)
        if elsewhere is not None:
            return elsewhere
        if where.platform != "cpu" and mesh.devices > devices_there(where):
            text = f"{mesh.devices} devices are needed; there are {where.devices}"
            return Waived(reason=text, missing="device")
        most = MOST_RANKS if backend == "torch" else MOST_LOCAL
        if where.platform == "cpu" and mesh.devices > most and not job_ranks():
            what = "processes" if backend == "torch" else "local devices"
            text = f"{mesh.devices} {what} on one host are more than the {most} that are started"
            return Waived(reason=text, missing="device")
        if self.name == "broadcast" and backend == "jax" and where.platform == "cpu":
            text = "XLA has no broadcast between CPU devices; --impl torch has one"
            return Waived(reason=text, missing="implementation")
        try:
            shapes = self.shapes(params, mesh)
        except UsageError as error:  # one size of a sweep; the others of it can run
            return Waived(reason=error.message, missing="device")
        held = COPIES * (shapes.local_bytes + shapes.result_bytes) * (mesh.devices if where.platform == "cpu" else 1)
        return missing_memory(
            held, f"{self.name} with matrix_dim {params['matrix_dim']} on {mesh.devices} devices", where
        )

    def prepare(self, params: Params, impl: str, where: Where) -> Prepared:
        """Make the inputs and compile, or start the ranks."""
        mesh = self._seen(params, where)
        shapes = self.shapes(params, mesh)
        reduce_op, seed = str(params.get("reduce_op", "sum")), int(params["seed"])
        from mansard.measure.links.with_jax_mesh import in_network

        facts: dict[str, Any] = {
            "mesh": "x".join(map(str, mesh.shape)), "layout": shapes.layout, "in_network_reduction": in_network(where.platform, self.name),
            **host_facts(where, self.implementations[impl], mesh.devices),
        }  # fmt: skip
        if any(part not in (1, size) for part, size in zip(mesh.strategy, mesh.shape, strict=True)):
            facts["strategy"] = (
                f"{'x'.join(map(str, mesh.strategy))} on {facts['mesh']}: an axis takes part as a whole, so n is {mesh.participants}"
            )
        if facts["in_network_reduction"] != "no":
            facts["busbw_kind"] = "effective: it may exceed the rate of the link, and is not clipped"
        if any(p.name == "reduce_op" for p in self.parameters):
            facts["reduce_op"] = reduce_op
        if self.implementations[impl] == "torch":
            from mansard.measure.links import with_torch_ranks

            if reduce_op == "mean" and where.platform == "cpu":
                facts["mean"] = "gloo has none: a sum, then a division on each rank, both timed"
            ranks = with_torch_ranks.on_ranks(
                mesh.groups, shapes, ranks=mesh.devices, device_type="cpu" if where.platform == "cpu" else "cuda",
                reduce_op=reduce_op, seed=seed,
            )  # fmt: skip
            return with_torch_ranks.prepared(ranks, facts)
        from mansard.measure.links import with_jax_mesh

        return with_jax_mesh.prepared(with_jax_mesh.on_mesh(mesh, shapes, reduce_op=reduce_op, seed=seed), facts)

    def columns(self, params: Params, where: Where, seconds: Mapping[str, float]) -> Mapping[str, Any]:
        """Return the columns of the published suite: those of v2, and of v1 where the point is one of its files."""
        mesh = self._seen(params, where)
        shapes, time_s = self.shapes(params, mesh), seconds["median"]
        name = "local_size_mb" if self.name == "all_to_all" else "shard_size_mb"
        found: dict[str, Any] = {name: shapes.local_bytes / 1e6}
        if shapes.layout == "square":
            moved = shapes.size_bytes * sent_ratio(self.name, mesh.participants)
            found.update(ici_bandwidth_gbyte_s=moved / time_s / 1e9, ici_time_ms=time_s * 1e3)
        elif shapes.layout == "buffer" and self.name != "ppermute":
            moved = ironwood_bytes(
                self.name, local_bytes=shapes.local_bytes, ranks=mesh.participants, parallel=mesh.parallel
            )
            found["transferred_data (GB)"] = moved / 1e9
            found["achieved_bw (GB/s)"] = moved / time_s / 1e9
            found["replica_group_type"] = "parallel" if mesh.parallel else "non-parallel"
        return found


def _made(name: str, summary: str, *aliases: str, reduces: bool = False, first: str = "jax") -> Collective:
    other = "torch" if first == "jax" else "jax"
    return Collective(
        name=name, aliases=aliases, summary=summary, parameters=(*MESH, *((REDUCE_OP,) if reduces else ())),
        implementations={first: first, other: other},
    )  # fmt: skip


BENCHMARKS = (
    _made("all_reduce", "all devices get the sum (mean, max, min) of all buffers", "psum", reduces=True),
    _made("all_gather", "all devices get the shards of all"),
    _made("reduce_scatter", "each device gets its chunk of the sum of all buffers", "psum_scatter", reduces=True),
    _made("all_to_all", "each device sends a chunk to each other"),
    _made("ppermute", "each device sends its buffer to the next one", "collective_permute"),
    _made("broadcast", "all devices get the buffer of the first", first="torch"),
)
