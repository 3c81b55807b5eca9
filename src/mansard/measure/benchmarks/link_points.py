"""What collectives, messages and host transfers have in common: the link, the devices made out of one CPU, the words."""

from __future__ import annotations

import functools
import os
from typing import Any

from mansard.core.dtypes import dtype_bytes
from mansard.measure.links.hub import LINK_VARIABLE, WORLD_VARIABLE
from mansard.measure.points.benchmark import Params, Waived, Where

RANKS_VARIABLE = "MANSARD_RANKS"  # points of different numbers of ranks go to different processes
MOST_RANKS = 32
MOST_LOCAL = 256
LOCAL_DEVICES = "local_devices"
LOOPBACK = "loopback"
HOST_MEMORY = "host_memory"


def in_one_memory(where: Where) -> bool:
    """Return whether the devices of a point are made out of this host, so that what moves between them is memory traffic."""
    return where.platform == "cpu" and not job_ranks()


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
