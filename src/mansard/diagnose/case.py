"""What a rule may look at, and what it answers with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from mansard.core import Bound, Ceilings, Unknown
from mansard.diagnose.account import Account, Windows
from mansard.diagnose.facts import Facts
from mansard.diagnose.judge_operators import HOST_COPY_NAMES, JudgedOperator, MemoryEvidence
from mansard.diagnose.records import Advice
from mansard.trace.run import RunTrace


class Change(StrEnum):
    """What following a piece of advice would change, which decides what it can save at most."""

    RATE = "rate"  # the same work nearer to its ceiling: at most the headroom of the operations
    WORK = "work"  # less work, or work done elsewhere or in another way: at most the time of the operations
    WAIT = "wait"  # less waiting: at most the time of the waits


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal(Advice):
    """The advice of one rule with the seconds it is about.

    Args:
        change: What it would change.
        rows: Kinds of operation it is about, indices into `RunTrace.operators`.
        waits: Times of the account it is about: causes of host time, or `latency`, `network`, `host`, `unattributed`.
    """

    change: Change
    rows: tuple[int, ...] = ()
    waits: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Everything a rule may look at.

    Args:
        trace: The run.
        ceilings: The machine.
        windows: Steady steps.
        judged: Verdict of each kind of operation.
        account: Where the time of a step goes.
        memory: Page-fault and allocation evidence.
        chosen: Which executed operations lie in the steady steps.
        duration_s: Duration of each executed operation, profiler overhead removed [s].
        facts: What is known beside the recording.
    """

    trace: RunTrace
    ceilings: Ceilings
    windows: Windows
    judged: Sequence[JudgedOperator]
    account: Account
    memory: MemoryEvidence
    chosen: npt.NDArray[np.bool_]
    duration_s: npt.NDArray[np.float64]
    facts: Facts = field(default_factory=Facts)

    def programs(self) -> list[str]:
        """Return the compiled program that each kind of operation is part of; empty text outside of jax.

        A program of one or two kinds of operation is an eager call, not a program that someone compiled.
        """
        if self.trace.framework != "jax":
            return [""] * len(self.trace.operators)
        names = [o.source.split(" ")[0] for o in self.trace.operators]
        sizes = Counter(names)
        return [name if sizes[name] > 2 else "" for name in names]

    def of_bound(self, bound: Bound) -> list[JudgedOperator]:
        """Return the kinds of operation with this verdict."""
        return [j for j in self.judged if j.judgement.bound is bound]

    def of_category(self, *categories: str) -> list[JudgedOperator]:
        """Return the kinds of operation of these categories."""
        return [j for j in self.judged if j.operator.category in categories]

    def host_copies(self, *, to_device: bool | None = None) -> list[JudgedOperator]:
        """Return the copies between host and device.

        Args:
            to_device: Only those to the device, or only those from it; None for both.
        """
        rows = [j for j in self.of_category("copy") if j.operator.name.startswith(HOST_COPY_NAMES)]
        if to_device is None:
            return rows
        return [j for j in rows if ("host to" in j.operator.name or "host device" in j.operator.name) is to_device]

    def per_step_s(self, rows: Sequence[JudgedOperator]) -> float:
        """Return the time of `rows` in one step [s]."""
        return sum(r.total_s for r in rows) / self.windows.count

    def computing_s(self) -> float:
        """Return the time of a step in which something computes: what communication and copies can hide behind [s].

        Idle time without a known cause is in `unattributed` too, and hides nothing.
        """
        rows = [r for r in self.of_bound(Bound.UNDETERMINED) if r.operator.category != "collective"]
        unknown = min(self.wait_s("unattributed"), self.per_step_s(rows))
        return self.wait_s("compute") + self.wait_s("memory") + unknown

    def calls(self, rows: Sequence[JudgedOperator]) -> float:
        """Return the calls of `rows` in one step."""
        return sum(r.calls for r in rows) / self.windows.count

    def headroom_s(self, rows: Sequence[JudgedOperator]) -> float:
        """Return what reaching the ceiling would save in one step over `rows` [s].

        Of exchanges and copies that other work hides no more than what is exposed: no step waits for the rest.
        """
        return self._exposed(rows, self._headroom)

    def _headroom(self, rows: Sequence[JudgedOperator]) -> float:
        gain = 0.0
        for row in rows:
            if isinstance(row.least.time_s, float):
                gain += max(0.0, row.total_s - row.least.time_s * row.calls)
        return gain / self.windows.count

    def _exposed(self, rows: Sequence[JudgedOperator], seconds: Callable[[Sequence[JudgedOperator]], float]) -> float:
        """Return the seconds of rows, those of each other engine at most as many as the step has of it."""
        waiting = sum(self.account.host.values())
        most = {
            Bound.NETWORK: self.account.by_kind.get("network", 0.0),
            Bound.HOST: max(0.0, self.account.by_kind.get("host", 0.0) - waiting),
        }
        total = seconds([r for r in rows if r.judgement.bound not in most])
        for bound, limit in most.items():
            total += min(limit, seconds([r for r in rows if r.judgement.bound is bound]))
        return total

    def wait_s(self, name: str) -> float:
        """Return a time of the account by its name [s per step]."""
        return self.account.host.get(name, 0.0) if name in self.account.host else self.account.by_kind.get(name, 0.0)

    def order(self) -> list[tuple[int, int]]:
        """Return the executed operations of the steady steps, lane by lane in time, as (place in the run, kind).

        Views and allocations move nothing and are left out.
        """
        order = np.flatnonzero(self.chosen)
        order = order[np.lexsort((self.trace.start_ns[order], self.trace.lane[order]))]
        kinds = self.trace.op[order]
        nothing = np.array([o.category in ("view", "allocation") for o in self.trace.operators] or [False])
        kept = ~nothing[kinds] if kinds.size else np.zeros(0, dtype=bool)
        return list(zip(order[kept].tolist(), kinds[kept].tolist(), strict=True))

    def limit_s(self, proposal: Proposal) -> float:
        """Return what a proposal can save at most [s per step]: the headroom of what it addresses.

        Operations whose ceiling is not known can at most save their time; nothing can save more than the step.
        """
        by_index = {j.index: j for j in self.judged}
        rows = [by_index[i] for i in dict.fromkeys(proposal.rows) if i in by_index]
        # A wait holds the operations of its area already.
        rows = [r for r in rows if r.judgement.bound.value not in proposal.waits]
        total = sum(self.wait_s(w) for w in dict.fromkeys(proposal.waits))
        if proposal.change is Change.RATE:
            unknown = [r for r in rows if isinstance(r.least.time_s, Unknown)]
            total += self.headroom_s(rows) + self._exposed(unknown, self.per_step_s)
        else:
            total += self._exposed(rows, self.per_step_s)
        return min(total, self.account.step_s)


Rule = Callable[[Case], Proposal | None]
