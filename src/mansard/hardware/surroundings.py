"""What surrounds a program on this machine: software, launchers, clocks, counters, limits; read, never changed."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mansard.core.errors import install
from mansard.hardware.host import (
    ROOT,
    cgroup_cpus,
    cpu_identity,
    cpu_model,
    huge_page_policy,
    meminfo,
    parse_cpu_list,
    read_caches,
    read_text,
)

#: Distributions by what they are for.
BACKENDS = ("numpy", "numba", "torch", "jax", "jaxlib")
PLUGINS = ("nvidia-ml-py", "libtpu", "jax-cuda12-plugin", "jax-cuda13-plugin", "jax-rocm7-plugin", "triton", "mpi4py")
# Launcher, the variables it sets (rank, world size), the commands that start it; asked in this order.
_LAUNCHERS = (
    ("torchrun", ("RANK", "WORLD_SIZE"), ("torchrun",)),
    ("Slurm", ("SLURM_PROCID", "SLURM_NTASKS"), ("srun",)),
    ("Open MPI", ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("mpirun", "mpiexec")),
    ("PMI", ("PMI_RANK", "PMI_SIZE"), ()),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ability:
    """One thing that can or cannot be done here.

    Args:
        what: The thing.
        can: Whether it can.
        why: The reason, either way.
        needs: What would make it possible.
    """

    what: str
    can: bool
    why: str
    needs: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the record as plain JSON types."""
        return {"what": self.what, "can": self.can, "why": self.why, "needs": list(self.needs)}


def installed(names: Iterable[str]) -> dict[str, str]:
    """Return the versions of the distributions that are installed, without importing any."""
    found = {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def launchers(environ: Mapping[str, str], which: Any = shutil.which) -> list[dict[str, Any]]:
    """Return the launchers: which one started this process, and which commands are there."""
    found = []
    for name, (rank, size), commands in _LAUNCHERS:
        active = rank in environ and size in environ
        found.append({
            "name": name, "active": active, "rank": environ[rank] if active else None,
            "world_size": environ[size] if active else None, "commands": [c for c in commands if which(c)],
        })  # fmt: skip
    return found


def clocks(root: Path = ROOT) -> dict[str, Any]:
    """Return what the kernel tells of the processor's clock: governor and frequencies [Hz], or why not."""
    folder = root / "sys/devices/system/cpu/cpu0/cpufreq"
    governor = read_text(folder / "scaling_governor")
    if governor is None:
        return {
            "readable": False,
            "why": "the kernel shows no frequency of the processor (cpufreq); a guest often cannot",
        }

    def hz(name: str) -> float | None:
        text = read_text(folder / name)
        return float(text) * 1e3 if text and text.isdigit() else None

    return {"readable": True, "governor": governor, "max_hz": hz("cpuinfo_max_freq"), "now_hz": hz("scaling_cur_freq")}


def surroundings(root: Path = ROOT, environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return processor, limits, caches, memory, clocks, software and launchers as plain JSON types."""
    env = os.environ if environ is None else environ
    identity = cpu_identity(root)
    allowed = sorted(os.sched_getaffinity(0)) if root == ROOT else list(_online(root))
    nodes = sorted((root / "sys/devices/system/node").glob("node[0-9]*"))
    return {
        "cpu_model": cpu_model(root),
        "architecture": platform.machine(),
        "guest": "hypervisor" in identity.flags if identity else None,
        "cpus_allowed": allowed,
        "cgroup_cpus": cgroup_cpus(root),
        "numa_nodes": len(nodes) or None,
        "memory_bytes": meminfo("MemTotal", root),
        "memory_available_bytes": meminfo("MemAvailable", root),
        "huge_pages": huge_page_policy(root),
        "caches": _caches(allowed, root),
        "clocks": clocks(root),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "backends": installed(BACKENDS),
        "plugins": installed(PLUGINS),
        "launchers": launchers(env),
    }


def _online(root: Path) -> tuple[int, ...]:
    return parse_cpu_list(read_text(root / "sys/devices/system/cpu/online") or "0")


def _caches(cpus: Iterable[int], root: Path) -> list[dict[str, Any]]:
    """Return the caches, like ones counted together."""
    counted: dict[tuple[int, int, int], int] = {}
    for cache in read_caches(cpus, root):
        key = (cache.level, cache.size_bytes, len(cache.cpus))
        counted[key] = counted.get(key, 0) + 1
    return [
        {"level": level, "size_bytes": size, "cpus_each": cpus_each, "count": count}
        for (level, size, cpus_each), count in counted.items()
    ]


def abilities(facts: Mapping[str, Any], root: Path = ROOT) -> list[Ability]:
    """Return what can and cannot be measured here, and why.

    Args:
        facts: Of `surroundings`.
        root: Root of the file system.
    """
    backends, plugins = facts["backends"], facts["plugins"]
    counters = (root / "sys/bus/event_source/devices/cpu").exists()
    energy = any((root / "sys/class/powercap").glob("intel-rapl*"))
    clock = facts["clocks"]
    found = [
        Ability(what="vector and memory ceilings of the processor", can=True, why="own kernels, compiled by numba")
        if "numba" in backends
        else Ability(what="vector and memory ceilings of the processor", can="numpy" in backends, needs=(install("cpu"),),
                     why="numba is not installed: memory through numpy alone, no FMA peak"),
        *(
            Ability(what=f"matrix ceilings and profiles through {name}", can=True, why=f"{name} {backends[name]} is installed")
            if name in backends
            else Ability(what=f"matrix ceilings and profiles through {name}", can=False, why=f"{name} is not installed",
                         needs=(install(name),))
            for name in ("torch", "jax")
        ),
        Ability(what="clock of the processor", can=True, why="read from cpufreq")
        if clock["readable"]
        else Ability(what="clock of the processor", can="numba" in backends, why=f"{clock['why']}; estimated from a chain of additions",
                     needs=() if "numba" in backends else (install("cpu"),)),
        Ability(what="hardware counters (cycles, FLOP, memory traffic)", can=counters,
                why="the kernel offers the processor's event source" if counters
                else "the kernel offers no event source of the processor; a guest often has none",
                needs=() if counters else ("bare metal, or a guest with a virtual PMU",)),
        Ability(what="energy", can=energy, why="RAPL is readable" if energy else "no RAPL in /sys/class/powercap",
                needs=() if energy else ("bare metal, or an external meter",)),
        Ability(what="NVIDIA devices by NVML", can="nvidia-ml-py" in plugins,
                why="nvidia-ml-py is installed" if "nvidia-ml-py" in plugins else "nvidia-ml-py is not installed",
                needs=() if "nvidia-ml-py" in plugins else (install("nvml"),)),
    ]  # fmt: skip
    started = [x["name"] for x in facts["launchers"] if x["active"]]
    commands = [c for x in facts["launchers"] for c in x["commands"]]
    found.append(
        Ability(what="programs of several processes", can=bool(started or commands),
                why=f"started by {started[0]}" if started else f"on the path: {', '.join(commands)}" if commands
                else "no launcher on the path (torchrun, srun, mpirun)",
                needs=() if started or commands else ("torchrun comes with torch",))
    )  # fmt: skip
    return found
