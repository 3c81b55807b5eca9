"""Copies between host and device: one way, there and back, both ways at once, and the latency of small ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mansard.core import Demand
from mansard.core.dtypes import dtype_bytes, short_dtype
from mansard.measure.benchmarks.entry import missing_memory, missing_package
from mansard.measure.benchmarks.link_points import HOST_MEMORY, both_ways, host_link_of, missing_whole_bytes
from mansard.measure.links.host_copies import Wanted
from mansard.measure.points.benchmark import Parameter, Params, Prepared, Transfer, Waived, Where, Work

COPIES = 4.0  # of the data that a point holds on a host that is the device too
_SIZE = Parameter(name="data_size_mib", kind="float", default=64, minimum=0, text="data of one direction [MiB]")
_COMMON = (
    Parameter(name="data_size_bytes", kind="int", default=0, minimum=0, text="the same in bytes [B]; 0 takes data_size_mib"),
    Parameter(name="dtype", kind="dtype", default="f32", text="element type"),
    Parameter(
        name="memory", kind="str", default="pageable", choices=("pageable", "pinned"),
        text="host memory: pageable as numpy has it, or pinned for the device to reach",
    ),
    Parameter(name="chunk_mib", kind="float", default=0, minimum=0, text="copied in pieces of this size [MiB]; 0 for one piece"),
    Parameter(name="device_id", kind="int", default=0, minimum=0, text="number of the device"),
    Parameter(name="seed", kind="int", default=0, minimum=0, text="seed of the data"),
)  # fmt: skip
_WORDS = {
    "h2d": "bytes copied from host to device", "d2h": "bytes copied from device to host",
    "round_trip": "bytes copied there and back, one after the other", "both": "bytes of both directions together, at once",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTransfer:
    """Copies between host and device; see `points.benchmark.Benchmark` for the attributes.

    Args:
        fixed: The direction, where the name says it; else the parameter `direction`.
        headline: `transfer`, or `time` for latency.
    """

    name: str
    summary: str
    parameters: tuple[Parameter, ...]
    fixed: str = ""
    headline: str = "transfer"
    aliases: tuple[str, ...] = ()
    area: str = "host_transfer"

    @property
    def implementations(self) -> Mapping[str, str]:
        """`device_put` and `asarray` of JAX, or `copy_` of PyTorch."""
        return {"jax": "jax", "torch": "torch"}

    def wanted(self, params: Params) -> Wanted:
        """Return what is to be copied."""
        dtype = short_dtype(str(params["dtype"]))
        size = float(params["data_size_bytes"]) or float(params.get("data_size_mib", 0.0)) * 2**20
        chunk = float(params["chunk_mib"]) * 2**20
        return Wanted(
            direction=self.fixed or str(params["direction"]), elements=max(1, round(size / dtype_bytes(dtype))), dtype=dtype,
            pinned=params["memory"] == "pinned", device=int(params["device_id"]), seed=int(params["seed"]),
            chunk_elements=max(1, round(chunk / dtype_bytes(dtype))) if chunk else 0,
        )  # fmt: skip

    def work(self, params: Params, where: Where) -> Work:
        """Return what one copy, or pair of copies, moves."""
        wanted, link = self.wanted(params), host_link_of(where)
        ways = 2.0 if wanted.direction in ("round_trip", "both") else 1.0
        total = ways * wanted.bytes
        if link == HOST_MEMORY:
            demand = Demand(read_bytes=total, write_bytes=total, working_set_bytes=2.0 * wanted.bytes)
            convention = "the device is host memory: each copy reads and writes S there"
        else:
            # Both directions of the link carry data at once; one after the other they add up.
            one_way = wanted.bytes if wanted.direction == "both" else total
            demand = Demand(link_bytes={link: one_way}, working_set_bytes=2.0 * wanted.bytes)
            convention = "one way, in bytes; 1 GB/s is 1e9 B/s"
        return Work(
            demand=demand,
            transfer=Transfer(
                operation=wanted.direction, size_bytes=total, size_means=_WORDS[wanted.direction], bus_factor=1.0,
                participants=1, link=both_ways(link) if wanted.direction == "both" else link,
            ),
            headline=self.headline,
            convention=convention,
        )  # fmt: skip

    def waived(self, params: Params, impl: str, where: Where) -> Waived | None:
        """Return why this point cannot run here, or None."""
        missing = missing_package(self.implementations[impl])
        if missing is not None:
            return missing
        less = missing_whole_bytes(params)
        if less is not None:
            return less
        wanted = self.wanted(params)
        if wanted.pinned and where.platform == "cpu":
            text = "pinned memory is for a device that reaches into the host; here the device is host memory"
            return Waived(reason=text, missing="device")
        if wanted.device >= where.devices:
            return Waived(reason=f"there is no device {wanted.device}; there are {where.devices}", missing="device")
        copies = COPIES if where.platform == "cpu" else 2.0
        return missing_memory(copies * wanted.bytes, f"{self.name} of {wanted.bytes / 2**20:g} MiB", where)

    def prepare(self, params: Params, impl: str, where: Where) -> Prepared:
        """Make the data on both sides."""
        wanted, host_device = self.wanted(params), where.platform == "cpu"
        if impl == "torch":
            from mansard.measure.links.host_torch import TorchCopies

            return TorchCopies(wanted, host_device=host_device).prepared("Tensor.copy_")
        from mansard.measure.links.host_jax import JaxCopies

        return JaxCopies(wanted, host_device=host_device).prepared("jax.device_put, numpy.asarray")

    def columns(self, params: Params, where: Where, seconds: Mapping[str, float]) -> Mapping[str, Any]:  # noqa: ARG002
        """Return the columns of the published suite; its rates of v1 are in GiB/s."""
        wanted = self.wanted(params)
        rate = wanted.bytes / seconds["median"] / 2**30
        names = {"h2d": "H2D_bw (GiB/s)", "d2h": "D2H_bw (GiB/s)"}
        found: dict[str, Any] = {"data_size_mib": wanted.bytes / 2**20, "direction": wanted.direction}
        if wanted.direction in names:
            found[names[wanted.direction]] = rate
        return found


def _direction(*choices: str) -> Parameter:
    return Parameter(
        name="direction", kind="str", default=choices[0], choices=choices,
        text="h2d, d2h, round_trip (there, then back, each timed apart), or both (at the same time)",
    )  # fmt: skip


BENCHMARKS = (
    HostTransfer(name="host_to_device", summary="copy from host to device", fixed="h2d", parameters=(_SIZE, *_COMMON)),
    HostTransfer(name="device_to_host", summary="copy from device to host", fixed="d2h", parameters=(_SIZE, *_COMMON)),
    HostTransfer(
        name="host_device", summary="copies there and back, or both ways at once",
        parameters=(_SIZE, *_COMMON, _direction("round_trip", "both", "h2d", "d2h")),
    ),
    HostTransfer(
        name="host_device_latency", summary="time of a small copy between host and device", headline="time",
        parameters=(
            Parameter(name="data_size_bytes", kind="int", default=4, minimum=1, text="data of one copy [B]"),
            *_COMMON[1:], _direction("h2d", "d2h", "round_trip"),
        ),
    ),
)  # fmt: skip
