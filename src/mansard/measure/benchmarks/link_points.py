"""What collectives, messages and host transfers have in common: the link, the devices made out of one CPU, the words."""

from __future__ import annotations

import functools
import os
from typing import Any

from mansard.core.dtypes import dtype_bytes
from mansard.measure.links.hub import LINK_VARIABLE, WORLD_VARIABLE
from mansard.measure.links.shapes import Shapes
from mansard.measure.points.benchmark import Params, Planned, Waived, Where

RANKS_VARIABLE = "MANSARD_RANKS"  # points of different numbers of ranks go to different processes
MOST_RANKS = 32
MOST_LOCAL = 256
LOCAL_DEVICES = "local_devices"
LOOPBACK = "loopback"
CONVERTED = ("bf16", "f16", "f8_e4m3", "f8_e5m2")  # by XLA for the CPU, before every collective
HOST_MEMORY = "host_memory"


def in_one_memory(where: Where) -> bool:
    """Return whether the devices of a point are made out of this host, so that what moves between them is memory traffic."""
    return where.platform == "cpu" and not job_ranks()


def planned_in_one_memory(shapes: Shapes, devices: int, cores: int) -> Planned:
    """Return about how long a collective of XLA between devices that are made out of one CPU takes.

    Args:
        shapes: Its arrays.
        devices: Devices of the mesh, groups that run beside each other included.
        cores: Cores that they share.

    XLA for the CPU converts narrow floating types to f32 and back, which takes many times what the compulsory bytes do; each
    call gets new memory for it, and each device is a thread to be woken.

    Source: seen with JAX 0.10.2 on two cores, meshes of 8 to 256 devices: f32 5 to 9 GB/s and core of inputs and
    results (1 to 2 for an all-to-all), bf16 1 to 5e8 elements/s and core, 40 us for each device, 15 ns for each element drawn, 0.5 to 1 GB/s of new memory.
    """
    moved = devices * (shapes.local_bytes + shapes.result_bytes)
    elements = devices * float(shapes.elements + shapes.result_elements)
    dispatch_s = 40e-6 * devices
    drawn_s, fresh_s = 15e-9 * shapes.elements, moved / 1e9
    made = f"{devices} devices made out of {cores} core{'' if cores == 1 else 's'}"
    if shapes.dtype not in CONVERTED:
        why = f"{made} move {moved / 1e9:.3g} GB"
        rate = 1.25e9 if shapes.operation == "all_to_all" else 5e9  # whose parts are cut and joined by copies
        return Planned(call_s=dispatch_s + moved / (rate * cores), prepare_s=drawn_s + fresh_s, why=why)
    return Planned(
        call_s=dispatch_s + elements / (1.25e8 * cores), prepare_s=drawn_s + fresh_s + 4.0 * elements / 1e9,
        why=f"{made} convert {elements:.3g} elements of {shapes.dtype} to f32 and back",
    )  # fmt: skip


def missing_whole_bytes(params: Params) -> Waived | None:
    """Return that elements of less than a byte are not moved here, or None."""
    dtype = str(params["dtype"])
    if dtype_bytes(dtype) >= 1:
        return None
    text = f"how {dtype} is packed on the way differs between runtimes, so its bytes are not known"
    return Waived(reason=text, missing="dtype")


def job_ranks() -> int:
    """Return the processes of the job that a launcher started; 0 where this process is on its own."""
    return int(os.environ.get(WORLD_VARIABLE, "0") or 0)


def not_of_this_job(devices: int, backend: str) -> Waived | None:
    """Return why a point cannot run between the processes of a job, or None; outside of a job there is no reason."""
    ranks = job_ranks()
    if not ranks:
        return None
    if backend != "torch":
        text = (
            "between processes of a job the links of XLA are ICI and DCN, of TPU devices; there are none here "
            "(--impl torch measures the network by gloo or NCCL)"
        )
        return Waived(reason=text, missing="device")
    if devices != ranks:
        return Waived(reason=f"{devices} ranks are needed; the job has {ranks}", missing="device")
    return None


def devices_there(where: Where) -> int:
    """Return the devices that a point can have: of the job, of this process, or made out of this host's CPUs."""
    return local_devices() if where.platform == "cpu" else job_ranks() or where.devices


def local_devices() -> int:
    """Return how many devices there are by default: the ranks of the job, else one for each CPU and at least 2."""
    return job_ranks() or max(2, len(os.sched_getaffinity(0)))


def link_of(where: Where, impl: str) -> str:
    """Return the name of the link between devices, as the catalogue has it."""
    if job_ranks() and (where.platform == "cpu" or os.environ.get(LINK_VARIABLE) != LOOPBACK):
        return os.environ.get(LINK_VARIABLE, "network")
    if where.platform == "cpu":
        return LOOPBACK if impl == "torch" else LOCAL_DEVICES
    return catalogue_link(where.device_name, "peer") or ("ici" if where.platform == "tpu" else "peer")


def both_ways(link: str) -> str:
    """Return the name of a link that carries data in both directions at once; its rate is no one-way ceiling.

    >>> both_ways("nvlink")
    'nvlink_both_ways'
    """
    return f"{link}_both_ways"


def host_link_of(where: Where) -> str:
    """Return the name of the link between a device and the host."""
    if where.platform == "cpu":
        return HOST_MEMORY
    return catalogue_link(where.device_name, "host") or "host"


@functools.cache
def catalogue_link(device_name: str, role: str) -> str:
    """Return the name of a link of a device that is matched exactly; nothing where it is not, or has none.

    >>> catalogue_link("NVIDIA H200", "peer"), catalogue_link("NVIDIA H200", "host"), catalogue_link("nobody's", "peer")
    ('nvlink', 'pcie', '')
    """
    from mansard.hardware import match

    sku = match(device_name).sku if device_name else None
    return next((link.name for link in sku.links if link.role == role), "") if sku is not None else ""


def host_facts(where: Where, backend: str, devices: int) -> dict[str, Any]:
    """Return what a reader must know of devices that are made out of one CPU; nothing on an accelerator."""
    if where.platform != "cpu":
        return {"device_name": where.device_name}
    if job_ranks():
        link = os.environ.get(LINK_VARIABLE, "network")
        return {"measures": f"{devices} processes of a job, joined by gloo over the {link}"}
    cores = len(where.cpus) or local_devices()
    if backend == "torch":
        means = f"{devices} processes of this host on {cores} cores, joined by gloo over the loopback: not a network"
    else:
        means = f"{devices} local devices on {cores} cores: a meeting of threads inside one memory, not a network"
    found: dict[str, Any] = {"measures": means}
    if devices > cores:
        found["oversubscribed"] = f"{devices} on {cores} cores: the time is that of taking turns"
    return found
