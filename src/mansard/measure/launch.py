"""Which process of how many this is, by explicit flags or by what a launcher left in the environment.

Looked at in this order: explicit flags, torchrun, Slurm, Open MPI, MPICH, jax.distributed, SageMaker. Nothing is imported and
nobody is asked: the same environment always gives the same answer.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from mansard.core.errors import UsageError

PORTS = 4096  # a port by the number of a job lies in the last ones, as those of jax.distributed do
OWN_PORT_OFFSET = 1  # torchrun's own store holds the port it names; ours is looked for behind it


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """The place of this process in a job.

    Args:
        launcher: `flags`, `torchrun`, `slurm`, `openmpi`, `mpich`, `jax` or `sagemaker`.
        rank: From 0.
        world: Processes of the job.
        local_rank: Among the processes of this host; None where not told.
        local_world: Processes of this host; None where not told.
        host: Of rank 0.
        port: Where rank 0 listens for us; the next ones are tried where it is taken.
        job: What tells this job from another one on the same hosts.
    """

    launcher: str
    rank: int
    world: int
    local_rank: int | None
    local_world: int | None
    host: str
    port: int
    job: str

    @property
    def one_host(self) -> bool | None:
        """Whether all processes are on this host; None where the launcher does not tell."""
        return None if self.local_world is None else self.local_world == self.world


def detect_launch(
    *,
    coordinator: str | None = None,
    rank: int | None = None,
    world: int | None = None,
    environ: Mapping[str, str] | None = None,
) -> Launch | None:
    """Return the place of this process in a job; None where it is on its own.

    Args:
        coordinator: `host:port` of rank 0, by a flag; alone it replaces what the launcher says.
        rank: By a flag.
        world: By a flag.
        environ: The environment; None for that of this process.

    Raises:
        UsageError: flags or variables that do not fit together, or a launcher that does not tell where rank 0 is.

    >>> detect_launch(environ={"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "a", "MASTER_PORT": "29500"}).port
    29501
    >>> detect_launch(environ={}) is None
    True
    """
    env = os.environ if environ is None else environ
    found = _flags(coordinator, rank, world)
    if found is None:
        for look in (_torchrun, _slurm, _openmpi, _mpich, _jax, _sagemaker, _pmix):
            found = look(env, coordinator)
            if found is not None:
                break
    if found is None:
        if coordinator is not None:
            raise UsageError("--coordinator needs --rank and --world outside of a launcher", hint="--rank 0 --world 2")
        return None
    if not 0 <= found.rank < found.world:
        raise UsageError(f"rank {found.rank} is not one of {found.world} ({found.launcher})", hint="ranks count from 0")
    return found if found.world > 1 else None


def host_port(text: str) -> tuple[str, int]:
    """Return host and port of `host:port`; an IPv6 address stands in brackets.

    >>> host_port("[fe80::1]:1234")
    ('fe80::1', 1234)
    """
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise UsageError(f"{text!r} is no host:port", hint="such as 10.0.0.1:29500")
    return host.removeprefix("[").removesuffix("]"), int(port)


def first_host(nodes: str) -> str:
    """Return the first host of a Slurm node list.

    >>> first_host("gpu[007-015,020],login1"), first_host("a1,a2"), first_host("tpu-[3]-x")
    ('gpu007', 'a1', 'tpu-3-x')
    """
    first = re.match(r"([^,\[]*)(?:\[([^\],-]+)[^\]]*\])?([^,\[]*)", nodes.strip())
    assert first is not None
    return "".join(part or "" for part in first.groups())


def _flags(coordinator: str | None, rank: int | None, world: int | None) -> Launch | None:
    if rank is None and world is None:
        return None
    if rank is None or world is None or coordinator is None:
        raise UsageError("--rank, --world and --coordinator belong together", hint="--coordinator 10.0.0.1:29600")
    host, port = host_port(coordinator)
    return Launch(
        launcher="flags", rank=rank, world=world, local_rank=None, local_world=None, host=host, port=port, job="flags"
    )


def _torchrun(env: Mapping[str, str], coordinator: str | None) -> Launch | None:
    if "RANK" not in env or "WORLD_SIZE" not in env:
        return None
    if coordinator is None:
        if "MASTER_ADDR" not in env or "MASTER_PORT" not in env:
            raise UsageError("RANK and WORLD_SIZE are set, MASTER_ADDR and MASTER_PORT are not", hint="--coordinator")
        host, port = env["MASTER_ADDR"], _number(env, "MASTER_PORT") + OWN_PORT_OFFSET
    else:
        host, port = host_port(coordinator)
    return _made("torchrun", env, "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", host, port,
                 env.get("TORCHELASTIC_RUN_ID", ""))  # fmt: skip


def _slurm(env: Mapping[str, str], coordinator: str | None) -> Launch | None:
    if "SLURM_PROCID" not in env or not ("SLURM_NTASKS" in env or "SLURM_STEP_NUM_TASKS" in env):
        return None
    if "SLURM_STEP_ID" not in env:  # the batch script itself: one process, whatever the job may start later
        return None
    size = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in env else "SLURM_NTASKS"
    job = f"{env.get('SLURM_JOB_ID', '0')}.{env['SLURM_STEP_ID']}"
    if coordinator is not None:
        host, port = host_port(coordinator)
    else:
        nodes = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST") or ""
        if not nodes:
            raise UsageError("Slurm does not say which hosts the step has (SLURM_STEP_NODELIST)", hint="--coordinator")
        host, port = first_host(nodes), _port_of(int(re.sub(r"\D", "", env.get("SLURM_JOB_ID", "0")) or 0))
    per_node = re.fullmatch(r"(\d+)(\(x\d+\))?", env.get("SLURM_STEP_TASKS_PER_NODE", ""))
    with_local = {**env, "_LOCAL": per_node.group(1)} if per_node else env
    return _made("slurm", with_local, "SLURM_PROCID", size, "SLURM_LOCALID", "_LOCAL", host, port, job)


def _openmpi(env: Mapping[str, str], coordinator: str | None) -> Launch | None:
    if "OMPI_COMM_WORLD_RANK" not in env or "OMPI_COMM_WORLD_SIZE" not in env:
        return None
    uri = env.get("OMPI_MCA_orte_hnp_uri", "")
    name = re.match(r"(\d+)", uri or re.sub(r"\D", "", env.get("PMIX_NAMESPACE", "")) or "0")
    number = int(name.group(1)) if name else 0
    if coordinator is not None:
        host, port = host_port(coordinator)
    else:
        address = re.search(r"tcp://([^,:;]+)|tcp6://\[([^,\]]+)", uri)
        if env.get("OMPI_COMM_WORLD_LOCAL_SIZE") == env["OMPI_COMM_WORLD_SIZE"]:
            host = "127.0.0.1"
        elif address is not None:
            host = next(a for a in address.groups() if a)
        else:
            text = "this Open MPI does not say where rank 0 is"
            raise UsageError(text, hint="mansard measure --coordinator HOST_OF_RANK_0:29600")
        port = _port_of(number // PORTS if uri else number)
    return _made("openmpi", env, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                 "OMPI_COMM_WORLD_LOCAL_SIZE", host, port, env.get("PMIX_NAMESPACE", uri.split(";")[0]))  # fmt: skip


def _mpich(env: Mapping[str, str], coordinator: str | None) -> Launch | None:
    """MPICH and those made of it (Intel MPI, MVAPICH) say who is who, but neither where rank 0 is nor which job it is."""
    if "PMI_RANK" not in env or "PMI_SIZE" not in env:
        return None
    if coordinator is not None:
        host, port = host_port(coordinator)
    elif env["PMI_SIZE"] in ("1", env.get("MPI_LOCALNRANKS")):
        host, port = "127.0.0.1", _port_of(0)
    else:
        text = "this MPI does not say where rank 0 is"
        raise UsageError(text, hint="mansard measure --coordinator HOST_OF_RANK_0:29600")
    return _made("mpich", env, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", host, port, "mpich")


def _jax(env: Mapping[str, str], coordinator: str | None) -> Launch | None:
    """The address is jax's own variable; the numbers are those that its users pass to `initialize`, and Cloud TPU's.

    Over several slices each has workers of its own: they count on, slice by slice, as they do for `jax.distributed`.
    """
    listed = env.get("TPU_WORKER_HOSTNAMES") or env.get("TPU_PROCESS_ADDRESSES", "")
    hosts = [h.strip() for h in listed.split(",") if h.strip()]
    if "JAX_COORDINATOR_ADDRESS" in env and "JAX_PROCESS_ID" in env and "JAX_NUM_PROCESSES" in env:
        host, port = host_port(coordinator or env["JAX_COORDINATOR_ADDRESS"])
        port += 0 if coordinator else OWN_PORT_OFFSET
        return _made("jax", env, "JAX_PROCESS_ID", "JAX_NUM_PROCESSES", "", "", host, port, "jax")
    slices = _number(env, "MEGASCALE_NUM_SLICES") if env.get("MEGASCALE_NUM_SLICES") else 1
    if len(hosts) * slices > 1 and "TPU_WORKER_ID" in env:
        first = (env.get("MEGASCALE_COORDINATOR_ADDRESS") if slices > 1 else "") or hosts[0]
        host, port = host_port(coordinator) if coordinator else (_without_port(first), _port_of(0))
        place = _number(env, "TPU_WORKER_ID") + (len(hosts) * _number(env, "MEGASCALE_SLICE_ID") if slices > 1 else 0)
        told = {**env, "_N": str(len(hosts) * slices), "_R": str(place)}
        return _made("jax", told, "_R", "_N", "", "", host, port, "tpu")
    return None


def _sagemaker(env: Mapping[str, str], coordinator: str | None) -> Launch | None:
    """A container for each host, one process each; where it starts torchrun or mpirun, theirs are looked at before."""
    if "SM_HOSTS" not in env or "SM_CURRENT_HOST" not in env:
        return None
    try:
        hosts = sorted(str(h) for h in json.loads(env["SM_HOSTS"]))
        rank = hosts.index(env["SM_CURRENT_HOST"])
    except (ValueError, TypeError):
        text = f"SM_HOSTS is {env['SM_HOSTS'][:80]!r} and SM_CURRENT_HOST {env['SM_CURRENT_HOST'][:40]!r}, which is none of it"
        raise UsageError(text, hint="give --coordinator, --rank and --world") from None
    host, port = host_port(coordinator) if coordinator else (hosts[0], _port_of(0))
    told = {**env, "_R": str(rank), "_N": str(len(hosts))}
    return _made("sagemaker", told, "_R", "_N", "", "", host, port, env.get("TRAINING_JOB_NAME", "sagemaker"))


def _pmix(env: Mapping[str, str], _coordinator: str | None) -> Launch | None:
    """PMIx alone says which rank this is, but not of how many; that each measures for itself must not happen unsaid."""
    if "PMIX_RANK" not in env:
        return None
    text = f"this launcher says that this is rank {env['PMIX_RANK']} (PMIX_RANK), but not of how many"
    raise UsageError(text, hint='--coordinator HOST_OF_RANK_0:29600 --rank "$PMIX_RANK" --world N')


def _without_port(address: str) -> str:
    """Return the host of `host`, `host:port` or an IPv6 address in brackets.

    >>> _without_port("t1v-0:8471"), _without_port("t1v-0"), _without_port("[fe80::1]:8471"), _without_port("fe80::1")
    ('t1v-0', 't1v-0', 'fe80::1', 'fe80::1')
    """
    if address.startswith("["):
        return address[1:].partition("]")[0]
    return address.partition(":")[0] if address.count(":") == 1 else address


def _made(
    launcher: str, env: Mapping[str, str], rank: str, world: str, local: str, local_world: str, host: str, port: int,
    job: str,
) -> Launch:  # fmt: skip
    return Launch(
        launcher=launcher, rank=_number(env, rank), world=_number(env, world),
        local_rank=_number(env, local) if local in env else None,
        local_world=_number(env, local_world) if local_world in env else None, host=host, port=port, job=job or launcher,
    )  # fmt: skip


def _number(env: Mapping[str, str], name: str) -> int:
    text = env.get(name, "")
    if not text.isdigit():
        raise UsageError(f"{name} is {text!r}, expected a number", hint="give --coordinator, --rank and --world")
    return int(text)


def _port_of(job: int) -> int:
    """Return a port of the last 4096 by the number of a job, so that two jobs on one host rarely meet."""
    return 65535 - PORTS + 1 + job % PORTS
