"""`mansard.diagnose(...)`: the bottleneck of recorded profiles in one call."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mansard.core.errors import UsageError
from mansard.diagnose.job import JobDiagnosis, diagnose_job
from mansard.diagnose.profile import DeviceDiagnosis, Question, diagnose_profile
from mansard.trace.open import open_trace
from mansard.trace.timeline import Timeline


def _question(given: dict[str, Any]) -> Question:
    known = set(Question.__dataclass_fields__)
    if unknown := sorted(set(given) - known):
        raise UsageError(f"diagnose knows no {', '.join(unknown)}", hint="one of " + ", ".join(sorted(known)))
    return Question(**given)


def diagnose(profile: Timeline | str | Path, **question: Any) -> tuple[DeviceDiagnosis, ...]:
    """Return the diagnosis of each device of a profile, the busiest first.

    Args:
        profile: A profile that was opened, or its file.
        question: Fields of `diagnose.profile.Question`, such as `region`, `hardware`, `ceilings`.

    Raises:
        UsageError: An unknown field, region or marker.
        InputError: The file cannot be read.
        UndecidedError: There is nothing to diagnose.
    """
    asked = _question(question)
    timeline = profile if isinstance(profile, Timeline) else open_trace(profile)
    return diagnose_profile(timeline, asked)


def diagnose_ranks(profiles: Sequence[Timeline | str | Path], **question: Any) -> JobDiagnosis:
    """Return the diagnosis of several ranks of one job, and which of them makes the others wait.

    Args:
        profiles: One profile per rank, opened or as files.
        question: Fields of `diagnose.profile.Question`.

    Raises:
        UsageError, InputError, UndecidedError: As `diagnose`; two profiles that state the same rank.
    """
    asked = _question(question)
    return diagnose_job([p if isinstance(p, Timeline) else open_trace(p) for p in profiles], asked)
