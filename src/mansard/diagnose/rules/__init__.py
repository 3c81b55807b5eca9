"""Advice: one rule per module, each with its evidence and the seconds it could save at most.

A rule is a function from a `Case` to a `Proposal`, or to None where its evidence is missing. Its module's docstring says what
it needs, what it promises and where that comes from; the table in the documentation is made from these docstrings.
"""

from __future__ import annotations

import importlib
import pkgutil

from mansard.diagnose.case import Case, Change, Proposal, Rule
from mansard.diagnose.ranking import ranked
from mansard.diagnose.records import Advice

__all__ = ["Case", "Change", "Proposal", "Rule", "advise", "load_rules", "rule_names"]


def rule_names() -> list[str]:
    """Return the names of all rules, in order."""
    return sorted(info.name for info in pkgutil.iter_modules(__path__))


def load_rules() -> list[Rule]:
    """Return the `RULE` of every module of this package, in name order; a module without one is a defect."""
    return [importlib.import_module(f"{__name__}.{name}").RULE for name in rule_names()]


def advise(case: Case, *, least_share: float = 0.02) -> tuple[Advice, ...]:
    """Return the advice of all rules, the largest gain first; gains below `least_share` of the step are left out.

    No gain is above the headroom of what its advice addresses. Of advice that contradicts other advice one is kept, what a
    special rule says a general one does not repeat, and advice about the same seconds says that it is.
    """
    found = [advice for rule in load_rules() if (advice := rule(case)) is not None]
    return ranked(case, found, least_share=least_share)
