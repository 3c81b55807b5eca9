"""What a measurement here depends on: which CPUs, which limits, which software and settings.

What Linux says of the machine itself is read by `hardware.host`.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mansard.hardware.host import ROOT as ROOT
from mansard.hardware.host import Cache as Cache
from mansard.hardware.host import cgroup_cpus as cgroup_cpus
from mansard.hardware.host import cpu_model as cpu_model
from mansard.hardware.host import huge_page_policy as huge_page_policy
from mansard.hardware.host import meminfo as meminfo
from mansard.hardware.host import memory_levels as memory_levels
from mansard.hardware.host import parse_cpu_list as parse_cpu_list
from mansard.hardware.host import parse_size as parse_size
from mansard.hardware.host import read_caches as read_caches
from mansard.hardware.host import read_text as read_text

FRAMEWORKS = ("numpy", "numba", "torch", "jax", "jaxlib")
# Variables that change how fast a backend runs; they belong to the conditions of every figure.
TUNING_PREFIXES = ("OPENBLAS_", "OMP_", "MKL_", "KMP_", "GOTO_", "BLIS_", "XLA_FLAGS", "GLIBC_TUNABLES", "DNNL_", "ONEDNN_",
                   "MALLOC_", "LD_PRELOAD", "NPROC")  # fmt: skip


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
FINGERPRINT_KEYS = ("cpu_model", "architecture", "cpus_allowed", "cpus_used", "cgroup_cpus", "memory_bytes", "huge_pages", "kernel",
                    "python", "versions", "tuning_variables", "caches")  # fmt: skip


def fingerprint(environment: Mapping[str, Any]) -> str:
    """Return a short name for a machine in a state: equal for equal processor, limits, software and settings."""
    text = json.dumps({key: environment.get(key) for key in FINGERPRINT_KEYS}, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
