"""All that is known of one measured point, in the form that audit, verdict and metrics share."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mansard.core.ceilings import Ceilings, MemoryLevel
from mansard.core.demand import Demand
from mansard.core.unknown import Unknown
from mansard.measure.points.benchmark import Where, Work
from mansard.measure.points.result import Conditions, Samples

#: A working set of fewer caches than this is partly found in the cache before the level it needs, though it fits none of it.
#: Source: McCalpin, STREAM's run rules: each array at least four times the last-level cache.
CACHES_BELOW = 4.0
#: The same of a processor's last-level cache before its memory, where it was measured: sweeps of 4 caches in all ran at 1.2 to 1.4
#: times the rate of 24, of 6 at 1.1 to 1.2, of 12 at 1.05 or less, in C as in ours
#: (benchmarks/ceilings_against_c/dram_size.py, docs/pitfalls.md).
CPU_CACHES_BELOW_MEMORY = 12.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One point as it was measured.

    Args:
        work: What one call must consume.
        where: What it ran on.
        params: Its parameters.
        prepared: What the worker said when it was ready: `check`, `count`, `facts`, `floor_s`, ...
        finished: What it said at the end: `check`, `operands`, `unwaited`; empty where it did not get there.
        samples, conditions: What was measured.
        ceilings: The machine; None where nothing is known of it.
        levels: Memory levels, where the ceilings have none.
    """

    work: Work
    where: Where
    params: Mapping[str, Any]
    prepared: Mapping[str, Any]
    samples: Samples
    conditions: Conditions
    finished: Mapping[str, Any] = field(default_factory=dict)
    ceilings: Ceilings | None = None
    levels: tuple[MemoryLevel, ...] = ()

    @property
    def scope(self) -> str:
        """Scope of the ceilings that it is judged against: one core where the point uses one thread of several."""
        if self.where.platform != "cpu":
            return "device"
        return "core" if self.where.threads > 1 and self.prepared.get("facts", {}).get("threads") == 1 else "node"

    @property
    def calls(self) -> int:
        """How many operations the samples hold together."""
        return len(self.samples.seconds) * self.samples.per_sample

    @property
    def executed_flop(self) -> float:
        """Matrix FLOP that the implementation does [FLOP]."""
        flop = self.work.executed_flop
        return float(self.work.demand.total_flop if flop is None else flop)

    @property
    def time_s(self) -> float:
        """Median time of one operation [s]."""
        return self.samples.median_s

    @property
    def memory_levels(self) -> tuple[MemoryLevel, ...]:
        """The levels from the nearest to the farthest."""
        return tuple(self.ceilings.levels) if self.ceilings is not None and self.ceilings.levels else self.levels

    @property
    def cold(self) -> bool:
        """Whether the caches were emptied before each call."""
        return self.params.get("cache") == "cold"

    def level(self) -> str | Unknown:
        """Return the nearest memory level that holds the working set; of a cold point, the memory it comes from."""
        if self.cold and self.memory_levels:
            return self.memory_levels[-1].level
        known = Ceilings(ceilings=(), levels=self.memory_levels)
        found = known.level_for(float(self.work.demand.working_set), scope=self.scope)
        return found if isinstance(found, Unknown) else found.level

    def partly_in(self, level: str) -> MemoryLevel | None:
        """Return the cache before `level` where it still holds part of the working set, or None."""
        names = [v.level for v in self.memory_levels]
        if self.cold or level not in names[1:]:
            return None
        cache = self.memory_levels[names.index(level) - 1]
        processor = self.where.platform == "cpu" and level == names[-1]
        times = CPU_CACHES_BELOW_MEMORY if processor else CACHES_BELOW
        return cache if float(self.work.demand.working_set) < times * cache.capacity(self.scope) else None

    def demand(self) -> Demand:
        """Return the demand with the FLOP that the implementation executes."""
        demand = self.work.demand
        if self.cold and self.memory_levels:  # every byte comes from memory, however few they are
            demand = dataclasses.replace(demand, working_set_bytes=self.memory_levels[-1].capacity(self.scope))
        total = float(demand.total_flop)
        if self.work.executed_flop is None or total <= 0.0:
            return demand
        factor = self.work.executed_flop / total
        return dataclasses.replace(demand, flop={k: float(v) * factor for k, v in demand.flop.items()})
