"""The suite `quick`: everything a CPU-only machine can be asked in about a minute."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable, Sequence
from typing import Any

from mansard.core.ceilings import Area, Ceiling, Ceilings, Resource
from mansard.core.errors import UsageError, install
from mansard.measure import kernels
from mansard.measure.frameworks import BACKENDS, installed, measure_frameworks
from mansard.measure.load import LoadWindow
from mansard.measure.machine import choose_cpus, describe, huge_page_policy, meminfo, memory_levels, read_caches
from mansard.measure.memory import dram_bytes, measure_memory
from mansard.measure.plain import measure_plain_memory
from mansard.measure.store import BUSY_RATIO
from mansard.measure.vector import measure_vector

SUITES = ("quick",)
GROUPS = ("vector", "memory", "matrix", "special", "latency")
# Share of the whole time each group takes, for the progress line.
SHARES = {"vector": 0.06, "memory": 0.34, "matrix": 0.4, "special": 0.15, "latency": 0.05}

Progress = Callable[[str, float], None]


def measure(
    suite: str = "quick",
    *,
    threads: int | None = None,
    backends: tuple[str, ...] | None = None,
    only: tuple[str, ...] | None = None,
    progress: Progress | None = None,
) -> Ceilings:
    """Measure the ceilings of this machine.

    Args:
        suite: `quick`.
        threads: Threads of scope `node`; None takes all that the affinity mask and the quota allow.
        backends: Of `numpy`, `torch`, `jax`; None takes what is installed.
        only: Groups to measure, of `vector`, `memory`, `matrix`, `special`, `latency`; None takes all.
        progress: Called with a line and the share done (0..1).

    Returns: the ceilings; `machine` carries the environment, what was left out and the findings, `curves` the
    bandwidth over the working set.

    Raises:
        UsageError: an unknown suite, group or backend, or an impossible thread count.
    """
    groups = _chosen(suite, only, backends)
    cpus = choose_cpus(threads)
    if threads is not None and threads != len(cpus):
        raise UsageError(f"cannot use {threads} threads: the affinity mask holds {len(choose_cpus(None))} CPUs")
    environment = describe(cpus)
    wanted = backends or BACKENDS
    names = installed(wanted)
    run = _Run(cpus=cpus, environment=environment, say=progress or (lambda _text, _share: None))
    run.levels = memory_levels(read_caches(cpus), environment["memory_bytes"])
    for name in wanted:
        if name not in names and any(g in groups for g in ("matrix", "special", "latency")):
            run.find("backend_missing", f"{name} is not installed: what it reaches was not measured")
    if "vector" in groups:
        run.vector()
    if "memory" in groups:
        run.memory()
    framework_groups = tuple(g for g in ("matrix", "special", "latency") if g in groups)
    if framework_groups:
        run.frameworks(names, framework_groups)
    run.say("done", 1.0)
    return run.result(suite, groups)


def lift_to_node(ceilings: Sequence[Ceiling]) -> list[Ceiling]:
    """Return node ceilings taken from one core, for resources where the team did not reach what one core did.

    A node can do at least what one of its cores does; where a busy machine made the team slower than its first member,
    the core's figure is the better lower bound, and its conditions say where it comes from.
    """
    best: dict[str, dict[Resource, Ceiling]] = {"core": {}, "node": {}}
    for c in ceilings:
        if c.resource.area is not Area.LATENCY and c.scope in best:
            held = best[c.scope].get(c.resource)
            if held is None or c.value > held.value:
                best[c.scope][c.resource] = c
    return [
        dataclasses.replace(c, scope="node", conditions={**c.conditions, "from_scope": "core"})
        for resource, c in best["core"].items()
        if resource in best["node"] and c.value > best["node"][resource].value
    ]


def _chosen(suite: str, only: Sequence[str] | None, backends: Sequence[str] | None) -> tuple[str, ...]:
    if suite not in SUITES:
        raise UsageError(f"unknown suite {suite!r}", hint=f"one of {', '.join(SUITES)}")
    for group in only or ():
        if group not in GROUPS:
            raise UsageError(f"unknown group {group!r}", hint=f"any of {', '.join(GROUPS)}")
    for name in backends or ():
        if name not in BACKENDS:
            raise UsageError(f"unknown backend {name!r}", hint=f"any of {', '.join(BACKENDS)}")
    return tuple(g for g in GROUPS if not only or g in only)


@dataclasses.dataclass(slots=True)
class _Run:
    """One measurement in the making."""

    cpus: tuple[int, ...]
    environment: dict[str, Any]
    say: Progress
    levels: tuple[Any, ...] = ()
    ceilings: list[Ceiling] = dataclasses.field(default_factory=list)
    curves: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    findings: list[dict[str, str]] = dataclasses.field(default_factory=list)
    skipped: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    foreign: dict[str, float] = dataclasses.field(default_factory=dict)
    clock_hz: float | None = None

    def find(self, code: str, text: str) -> None:
        """Add a finding."""
        self.findings.append({"code": code, "text": text})

    def keep(self, group: str, found: Sequence[Ceiling], load: LoadWindow) -> None:
        """Add the ceilings of a group with the foreign load of its window."""
        self.foreign[group] = load.foreign_ratio
        for c in found:
            conditions = {"foreign_load_ratio": load.foreign_ratio, **c.conditions}
            self.ceilings.append(dataclasses.replace(c, conditions=conditions))
        if load.foreign_ratio > BUSY_RATIO:
            text = f"others used {load.foreign_ratio:.0%} of the CPUs while {group} was measured"
            self.find("foreign_load", text + ": its ceilings are lower bounds; measure again on an idle machine")

    def vector(self) -> None:
        """Measure the FMA peak."""
        self.say("vector peak", 0.0)
        if not kernels.available():
            self.find(
                "numba_missing",
                f"numba is not installed: no vector peak, no cache bandwidth; {install('cpu')} brings both",
            )
            return
        with LoadWindow() as load:
            result = measure_vector(self.cpus)
        self.findings += result.findings
        self.clock_hz = result.clock_hz
        self.keep("vector", result.ceilings, load)

    def memory(self) -> None:
        """Measure the memory levels."""
        start, share = SHARES["vector"], SHARES["memory"]
        self.say("memory bandwidth", start)
        pages = ("4k",) if huge_page_policy() in ("never", "unsupported") else ("4k", "huge")
        if pages == ("4k",):
            self.find("no_huge_pages", "transparent huge pages are off: DRAM figures for them were not measured")
        caches = read_caches(self.cpus)
        if not caches:
            self.find("no_caches", "sysfs tells no caches: only DRAM was measured, with a working set of a fixed size")
        with LoadWindow() as load:
            if kernels.available():
                result = measure_memory(
                    self.cpus, caches, self.levels, pages=pages,
                    progress=lambda done: self.say("memory bandwidth", start + share * done),
                )  # fmt: skip
                found, self.curves = result.ceilings, result.curves
                self.findings += result.findings
            else:
                found = measure_plain_memory(self.cpus, dram_bytes(caches, meminfo("MemAvailable")), pages[-1])
                self.find(
                    "numba_missing", "numba is not installed: DRAM bandwidth comes from NumPy calls, which reach less"
                )
        self.keep("memory", found, load)

    def frameworks(self, names: Sequence[str], groups: Sequence[str]) -> None:
        """Measure the backends."""
        start = SHARES["vector"] + SHARES["memory"]
        with LoadWindow() as load:
            result = measure_frameworks(
                names, self.cpus, groups,
                progress=lambda done, name: self.say(f"{', '.join(groups)} through {name}", start + (1 - start) * done),
            )  # fmt: skip
        self.findings += result.findings
        self.skipped += result.skipped
        self.keep("frameworks", result.ceilings, load)

    def result(self, suite: str, groups: Sequence[str]) -> Ceilings:
        """Return the finished record."""
        lifted = lift_to_node(self.ceilings)
        if lifted:
            names = sorted({c.resource.label for c in lifted})
            shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
            self.find(
                "team_below_core",
                f"{len(self.cpus)} threads did not reach what one core did for {shown}: the figure of one core stands",
            )
        machine = {
            **self.environment,
            "suite": suite,
            "groups": list(groups),
            "measured": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "clock_hz_estimated": self.clock_hz,
            "foreign_load": self.foreign,
            "skipped": self.skipped,
            "findings": self.findings,
        }
        return Ceilings(
            ceilings=(*self.ceilings, *lifted), levels=self.levels, machine=machine, fits=[], curves=self.curves
        )  # fmt: skip
