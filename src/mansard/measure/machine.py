"""What this machine is, read from /proc and /sys: processor, caches, limits, page policy, versions.

Everything takes the root of the file system as an argument, so that any machine can be described by a folder.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mansard.core.ceilings import MemoryLevel

ROOT = Path("/")
FRAMEWORKS = ("numpy", "numba", "torch", "jax", "jaxlib")
# Variables that change how fast a backend runs; they belong to the conditions of every figure.
TUNING_PREFIXES = ("OPENBLAS_", "OMP_", "MKL_", "KMP_", "GOTO_", "BLIS_", "XLA_FLAGS", "GLIBC_TUNABLES", "DNNL_", "ONEDNN_",
                   "MALLOC_", "LD_PRELOAD", "NPROC")  # fmt: skip


def read_text(path: Path) -> str | None:
    """Return the stripped text of a file of /proc or /sys, or None where there is none."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """Return the CPU numbers of a kernel list.

    >>> parse_cpu_list("0-2,8")
    (0, 1, 2, 8)
    """
    numbers: list[int] = []
    for part in filter(None, (p.strip() for p in text.split(","))):
        low, _, high = part.partition("-")
        numbers.extend(range(int(low), int(high or low) + 1))
    return tuple(numbers)


def parse_size(text: str) -> int:
    """Return a cache size of sysfs in bytes.

    >>> parse_size("48K"), parse_size("32M")
    (49152, 33554432)
    """
    match = re.fullmatch(r"(\d+)([KMG]?)", text.strip())
    if match is None:
        raise ValueError(f"not a cache size: {text!r}")
    return int(match.group(1)) * {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}[match.group(2)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """One cache instance.

    Args:
        level: 1, 2, 3, ...
        size_bytes: Its capacity [B].
        cpus: The CPUs that share it.
    """

    level: int
    size_bytes: int
    cpus: tuple[int, ...]


def read_caches(cpus: Iterable[int], root: Path = ROOT) -> tuple[Cache, ...]:
    """Return the distinct data and unified caches that `cpus` can reach; empty where sysfs tells nothing.

    Args:
        cpus: CPU numbers; those without a cache folder (offline, or hidden by the hypervisor) contribute nothing.
        root: Root of the file system.
    """
    found: dict[tuple[int, tuple[int, ...]], Cache] = {}
    for cpu in cpus:
        folder = root / f"sys/devices/system/cpu/cpu{cpu}/cache"
        for index in sorted(folder.glob("index*")):
            kind, level = read_text(index / "type"), read_text(index / "level")
            size, shared = read_text(index / "size"), read_text(index / "shared_cpu_list")
            if kind not in ("Data", "Unified") or not (level and size):
                continue
            group = parse_cpu_list(shared) if shared else (cpu,)
            cache = Cache(level=int(level), size_bytes=parse_size(size), cpus=group)
            found[(cache.level, group)] = cache
    return tuple(sorted(found.values(), key=lambda c: (c.level, c.cpus)))


def memory_levels(caches: Sequence[Cache], dram_bytes: float | None) -> tuple[MemoryLevel, ...]:
    """Return the memory levels from the nearest to the farthest; instances are those within reach, summed.

    Where instances of one level differ in size (big and little cores), the smallest counts, so that no working set
    is said to fit where it does not.
    """
    levels: list[MemoryLevel] = []
    for number in sorted({c.level for c in caches}):
        mine = [c for c in caches if c.level == number]
        size = float(min(c.size_bytes for c in mine))
        levels.append(MemoryLevel(level=f"l{number}", capacity_bytes=size, instances=len(mine)))
    if dram_bytes:
        levels.append(MemoryLevel(level="dram", capacity_bytes=float(dram_bytes), instances=1))
    return tuple(levels)


def meminfo(key: str, root: Path = ROOT) -> float | None:
    """Return one line of /proc/meminfo in bytes, such as `MemTotal`."""
    match = re.search(rf"^{re.escape(key)}:\s+(\d+) kB", read_text(root / "proc/meminfo") or "", re.MULTILINE)
    return float(match.group(1)) * 1024.0 if match else None


def cgroup_cpus(root: Path = ROOT) -> float | None:
    """Return the CPU quota of this container in CPUs, or None where there is none (cgroup v2, then v1)."""
    own = read_text(root / "proc/self/cgroup") or ""
    best: float | None = None
    for line in own.splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers and "cpu" not in controllers.split(","):
            continue
        base = root / "sys/fs/cgroup" / ("cpu" if controllers else "")
        for folder in (base / path.lstrip("/"), base):
            quota = _quota(folder)
            if quota is not None:
                best = quota if best is None else min(best, quota)
    return best


def _quota(folder: Path) -> float | None:
    v2 = (read_text(folder / "cpu.max") or "").split()
    if len(v2) == 2 and v2[0] != "max":
        return int(v2[0]) / int(v2[1])
    quota, period = read_text(folder / "cpu.cfs_quota_us"), read_text(folder / "cpu.cfs_period_us")
    if quota and period and int(quota) > 0:
        return int(quota) / int(period)
    return None


def choose_cpus(threads: int | None = None, *, mask: Iterable[int] | None = None, root: Path = ROOT) -> tuple[int, ...]:
    """Return the CPUs that a team of `threads` is pinned to: one per physical core first, then their siblings.

    Args:
        threads: How many; None takes all of the affinity mask that the quota pays for.
        mask: Affinity mask; None asks the operating system.
        root: Root of the file system.
    """
    allowed = sorted(os.sched_getaffinity(0) if mask is None else mask)
    rank: dict[int, tuple[int, int]] = {}
    for cpu in allowed:
        text = read_text(root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        siblings = [c for c in (parse_cpu_list(text) if text else (cpu,)) if c in allowed]
        rank[cpu] = (siblings.index(cpu) if cpu in siblings else 0, cpu)
    ordered = sorted(allowed, key=lambda c: rank[c])
    if threads is None:
        quota = cgroup_cpus(root)
        threads = len(ordered) if quota is None else max(1, min(len(ordered), int(quota + 1e-9)))
    return tuple(sorted(ordered[:threads]))


def cpu_model(root: Path = ROOT) -> str:
    """Return the processor in the words of /proc/cpuinfo, with family, model and stepping where it has them.

    A virtual machine often says no more than "AMD EPYC"; family and model tell the generations apart.
    """
    text = read_text(root / "proc/cpuinfo") or ""
    fields = dict(re.findall(r"^([^\t:]+)\s*:\s*(.*)$", text.split("\n\n")[0], re.MULTILINE))
    name = fields.get("model name") or fields.get("CPU implementer") or platform.processor() or platform.machine()
    if "cpu family" in fields:
        parts = (fields["cpu family"], fields.get("model", "?"), fields.get("stepping", "?"))
        return f"{name} (family {parts[0]} model {parts[1]} stepping {parts[2]})"
    if "CPU part" in fields:
        return f"{name} part {fields['CPU part']} variant {fields.get('CPU variant', '?')}"
    return name


def versions(names: Iterable[str] = FRAMEWORKS) -> dict[str, str]:
    """Return the installed versions, without importing anything; what is not installed is left out."""
    found = {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def tuning_variables(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment variables that are known to change how fast a backend runs."""
    env = os.environ if environ is None else environ
    return {name: env[name] for name in sorted(env) if name.startswith(TUNING_PREFIXES)}


def huge_page_policy(root: Path = ROOT) -> str:
    """Return the policy for transparent huge pages: `always`, `madvise`, `never`, or `unsupported`."""
    text = read_text(root / "sys/kernel/mm/transparent_hugepage/enabled") or ""
    match = re.search(r"\[(\w+)\]", text)
    return match.group(1) if match else "unsupported"


def describe(cpus: Sequence[int], root: Path = ROOT) -> dict[str, Any]:
    """Return the environment that belongs to every figure measured here, as plain JSON types."""
    allowed = sorted(os.sched_getaffinity(0)) if root == ROOT else sorted(cpus)
    return {
        "cpu_model": cpu_model(root),
        "architecture": platform.machine(),
        "cpus_allowed": allowed,
        "cpus_used": list(cpus),
        "threads": len(cpus),
        "cgroup_cpus": cgroup_cpus(root),
        "memory_bytes": meminfo("MemTotal", root),
        "huge_pages": huge_page_policy(root),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "versions": versions(),
        "tuning_variables": tuning_variables(),
        "caches": [
            {"level": c.level, "size_bytes": c.size_bytes, "cpus": list(c.cpus)} for c in read_caches(allowed, root)
        ],
    }


# What a cached measurement depends on. Foreign load does not belong to it.
_KEYS = ("cpu_model", "architecture", "cpus_allowed", "cpus_used", "cgroup_cpus", "memory_bytes", "huge_pages", "kernel",
         "python", "versions", "tuning_variables", "caches")  # fmt: skip


def fingerprint(environment: Mapping[str, Any]) -> str:
    """Return a short name for a machine in a state: equal for equal processor, limits, software and settings."""
    text = json.dumps({key: environment.get(key) for key in _KEYS}, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
