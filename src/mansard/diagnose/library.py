"""`mansard.diagnose(...)`: the bottleneck of a recorded profile in one call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mansard.core.errors import UsageError
from mansard.diagnose.profile import DeviceDiagnosis, Question, diagnose_profile
from mansard.trace.open import open_trace
from mansard.trace.timeline import Timeline


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
    known = set(Question.__dataclass_fields__)
    if unknown := sorted(set(question) - known):
        raise UsageError(f"diagnose knows no {', '.join(unknown)}", hint="one of " + ", ".join(sorted(known)))
    timeline = profile if isinstance(profile, Timeline) else open_trace(profile)
    return diagnose_profile(timeline, Question(**question))
