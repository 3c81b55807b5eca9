"""`mansard.diagnose(...)`: files of any kind, or records in their place, and a question -> one answer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mansard.core.errors import UsageError
from mansard.diagnose.answer import Answer, answers
from mansard.diagnose.asked import asked_of
from mansard.diagnose.inputs import Source, sort_inputs
from mansard.diagnose.target import parse_target


def diagnose(
    *files: Source, target: str | Iterable[str] = (), jobs: int | None = None, engine: str = "local", **options: Any
) -> Answer:
    """Return what bounds a run, or each of some measured points, how far below its ceiling it is, and what to change first.

    What it takes and what it refuses is what `mansard diagnose` takes and refuses; `mansard.report.diagnose_document` makes the
    verb's document of the answer, and `mansard.show` its text.

    Args:
        files: In any combination and order: profiles (several are ranks of one job), an Nsight Compute CSV beside one,
            `ceilings.json`, `detailed.json`, a folder of either, a model's `config.json`, a recording of `mansard run --keep`, a
            run or diagnose document. Opened profiles, `Ceilings` and a `Diagnosis` stand for their files.
        target: Limits for figures, such as "share >= 0.6".
        jobs: Profiles of ranks at a time; None takes one for each CPU.
        engine: Where many profiles are read: `local` or `ray`.
        options: Those of the verb by their long names (`--network-rate` is `network_rate`); `diagnose.asked.Asked` has them all.
            An amount is a plain number in the SI base unit, or text with a unit.

    Raises:
        UsageError: The files do not make one question, or there is no such option, region or marker.
        InputError: A file cannot be read.
        UndecidedError: There is nothing to diagnose.
    """
    if not files:
        raise UsageError("nothing to diagnose was given", hint="give a profile, a recording or a run document")
    asked = asked_of(options)
    targets = [parse_target(t) for t in ([target] if isinstance(target, str) else target)]
    found = answers(sort_inputs(files), asked, targets, jobs=jobs, engine=engine)
    if len(found) > 1:
        raise UsageError("one answer holds one diagnosis, several are given", hint="diagnose them one by one")
    return found[0]
