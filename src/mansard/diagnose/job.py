"""Profiles of several ranks of one job: each diagnosed by itself, and the one that makes the others wait named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mansard.core import Unknown
from mansard.diagnose.profile import DeviceDiagnosis, Question, diagnose_profile
from mansard.trace.ranks import JobRanks, compare_ranks
from mansard.trace.timeline import Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDiagnosis:
    """The diagnosis of a job.

    Args:
        ranks: Rank as the files state it, or its place, and its devices; in the order of `compared.ranks`.
        compared: Waiting, arrival and shared steps of the ranks.
        shown: Index of the rank that is shown first: the straggler, else the one with the longest step.
    """

    ranks: tuple[tuple[str, tuple[DeviceDiagnosis, ...]], ...]
    compared: JobRanks
    shown: int

    @property
    def straggler(self) -> str | Unknown:
        """The rank that makes the others wait most, or why none can be named."""
        found = self.compared.straggler
        return found if isinstance(found, Unknown) else self.ranks[found][0]


def diagnose_job(timelines: Sequence[Timeline], question: Question) -> JobDiagnosis:
    """Return the diagnosis of each rank, and what they say together.

    Args:
        timelines: One profile per rank.
        question: What is asked of each.

    Raises:
        UsageError: Two of them state the same rank.
        UndecidedError: In one of them no device did any work.
    """
    compared = compare_ranks(timelines)
    by_source = {t.source: t for t in timelines}
    ranks = []
    for place, summary in enumerate(compared.ranks):
        rank = summary.identity.rank
        name = f"{place} (not stated)" if isinstance(rank, Unknown) else str(rank)
        ranks.append((name, diagnose_profile(by_source[summary.source], replace(question, peers=(compared, place)))))
    longest = max(range(len(ranks)), key=lambda i: ranks[i][1][0].diagnosis.step.median_s)
    shown = longest if isinstance(compared.straggler, Unknown) else compared.straggler
    return JobDiagnosis(ranks=tuple(ranks), compared=compared, shown=shown)
