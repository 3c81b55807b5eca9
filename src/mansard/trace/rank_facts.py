"""What one profile of a job contributes to the comparison of its ranks: small, so that thousands fit into memory."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mansard.core.intervals import merge, overlap_ns
from mansard.core.unknown import Unknown
from mansard.trace.categories import COLLECTIVE, Rules, shipped_rules
from mansard.trace.collectives_of import collectives_of
from mansard.trace.open import open_trace
from mansard.trace.rank_calls import Calls
from mansard.trace.rank_clocks import RankIdentity, identity_of
from mansard.trace.timeline import Clock, Damage, Events, Kind, Timeline

_STEP = re.compile(r"^ProfilerStep#?\s*(\d+)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFacts:
    """One profile without its events.

    Args:
        source: The file.
        identity: Whose file it is.
        clock: What its times count.
        damage: What is wrong with it.
        incomplete: Whether something of it is missing.
        kernels: Kernels it holds.
        unions_ns: Compute, communication, both, and span [ns], or why they are not known.
        calls: Its communication kernels.
        steps_ns: Start and end of each marked step by its number [ns].
    """

    source: str
    identity: RankIdentity
    clock: Clock
    damage: tuple[Damage, ...]
    incomplete: bool
    kernels: int
    unions_ns: tuple[int, int, int, int] | Unknown
    calls: Calls
    steps_ns: Mapping[int, tuple[int, int]]


def facts_of(timeline: Timeline, *, rules: Rules | None = None) -> RankFacts:
    """Return what a profile contributes to the comparison of ranks.

    Args:
        timeline: The profile.
        rules: Which kernels are communication; the shipped ones by default.
    """
    rules = rules or shipped_rules()
    table = timeline.of(Kind.KERNEL)
    known = timeline.has(Kind.KERNEL) and len(table)
    return RankFacts(
        source=timeline.source, identity=identity_of(timeline), clock=timeline.clock, damage=tuple(timeline.damage),
        incomplete=timeline.incomplete, kernels=len(table),
        unions_ns=_unions(timeline, table, rules) if known else timeline.why_absent(Kind.KERNEL),
        calls=Calls.of(collectives_of(timeline, rules=rules)), steps_ns=_steps(timeline),
    )  # fmt: skip


def read_facts(path: str | Path, memory_limit: int | None = None) -> RankFacts:
    """Read one profile and return its facts; its events are let go.

    Args:
        path: The file.
        memory_limit: Bytes that reading may hold at once [B]; None has no limit.

    Raises:
        InputError: it cannot be read, is no profile, or needs more memory.
    """
    return facts_of(open_trace(path, memory_limit=memory_limit))


def _unions(timeline: Timeline, table: Events, rules: Rules) -> tuple[int, int, int, int]:
    """Return compute, communication, both and span, devices apart and then added [ns]."""
    names = np.unique(table.name)
    communication = np.isin(table.name, [c for c in names.tolist() if rules.category(timeline.names[c]) == COLLECTIVE])
    totals = np.zeros(4, dtype=np.int64)
    for device in np.unique(table.device).tolist():
        here = table.device == device
        compute, comm = (
            merge(table.start_ns[m], table.end_ns[m]) for m in (here & ~communication, here & communication)
        )
        span = int(table.end_ns[here].max() - table.start_ns[here].min())
        totals += (compute.length_ns, comm.length_ns, overlap_ns(compute, comm), span)
    return tuple(int(t) for t in totals)  # type: ignore[return-value]


def _steps(timeline: Timeline) -> dict[int, tuple[int, int]]:
    """Return start and end of the marked steps by number; a number marked twice is left out."""
    table = timeline.of(Kind.ANNOTATION)
    numbers = {i: int(m.group(1)) for i, n in enumerate(timeline.names) if (m := _STEP.match(n))}
    rows: npt.NDArray[np.int64] = np.flatnonzero(np.isin(table.name, list(numbers)))
    counted = Counter(numbers[int(table.name[r])] for r in rows.tolist())
    return {
        numbers[int(table.name[r])]: (int(table.start_ns[r]), int(table.end_ns[r]))
        for r in rows.tolist()
        if counted[numbers[int(table.name[r])]] == 1
    }
