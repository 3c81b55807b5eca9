"""Advice: one rule per module, each with its evidence and the seconds it could save at most."""

from __future__ import annotations

import importlib
import pkgutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mansard.core import Bound, Ceilings
from mansard.diagnose.account import Account, Windows
from mansard.diagnose.judge_operators import JudgedOperator, MemoryEvidence
from mansard.diagnose.records import Advice
from mansard.trace.run import RunTrace


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
    """

    trace: RunTrace
    ceilings: Ceilings
    windows: Windows
    judged: Sequence[JudgedOperator]
    account: Account
    memory: MemoryEvidence
    chosen: npt.NDArray[np.bool_]
    duration_s: npt.NDArray[np.float64]

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

    def per_step_s(self, rows: Sequence[JudgedOperator]) -> float:
        """Return the time of `rows` in one step [s]."""
        return sum(r.total_s for r in rows) / self.windows.count

    def headroom_s(self, rows: Sequence[JudgedOperator]) -> float:
        """Return what reaching the ceiling would save in one step over `rows` [s]."""
        gain = 0.0
        for row in rows:
            if isinstance(row.least.time_s, float):
                gain += max(0.0, row.total_s - row.least.time_s * row.calls)
        return gain / self.windows.count


Rule = Callable[[Case], Advice | None]


def load_rules() -> list[Rule]:
    """Return the `RULE` of every module of this package, in name order; a module without one is a defect."""
    modules = sorted(info.name for info in pkgutil.iter_modules(__path__))
    return [importlib.import_module(f"{__name__}.{name}").RULE for name in modules]


def advise(case: Case, *, least_share: float = 0.02) -> tuple[Advice, ...]:
    """Return the advice of all rules, the largest gain first; gains below `least_share` of the step are left out.

    No gain is above the step itself: the answer to "how much could this save" is bounded by what is there.
    """
    found = [advice for rule in load_rules() if (advice := rule(case)) is not None]
    kept = [a for a in found if a.gain_s >= least_share * case.account.step_s]
    return tuple(sorted(kept, key=lambda a: (-a.gain_s, a.rule)))
