"""Profiles of several ranks of one job: each diagnosed by itself, and the one that makes the others wait named.

A few are held at once. Thousands are read twice, some at a time in processes of their own: once for what the ranks say
together, and once for the diagnosis of each, of which only its verdict and its times are kept.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from mansard.core import Unknown
from mansard.core.errors import InputError, UndecidedError
from mansard.diagnose.facts_of import Peers, peers_of
from mansard.diagnose.profile import DeviceDiagnosis, Question, diagnose_profile
from mansard.diagnose.records import StepTime, Verdict
from mansard.trace.many import FailedFile, Progress, cluster, map_files
from mansard.trace.rank_facts import RankFacts, facts_of
from mansard.trace.ranks import JobRanks, RankSummary, compare_facts, compare_ranks
from mansard.trace.timeline import Timeline

FEW = 8  # fewer files are held at once and read a single time, without processes of their own
Opener = Callable[[str], Timeline]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankVerdict:
    """What is kept of the diagnosis of a rank: that of its busiest device.

    Args:
        rank: As the file states it, or its place.
        source: The file.
        verdict: What bounds it.
        step: Time of its step.
        time_shares: Share of the step by bound.
    """

    rank: str
    source: str
    verdict: Verdict
    step: StepTime
    time_shares: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDiagnosis:
    """The diagnosis of a job.

    Args:
        verdicts: What is kept of each rank, in the order of `compared.ranks`; None where its diagnosis failed.
        compared: Waiting, arrival and shared steps of the ranks.
        shown: Index of the rank that is shown first: the straggler, else the one with the longest step.
        devices: The devices of that rank.
        failed: Files that could not be read or diagnosed, and why.
        ranks: Name and devices of each rank, where the profiles were given opened; empty where they were files, of which
            only `verdicts` is kept.
    """

    verdicts: tuple[RankVerdict | None, ...]
    compared: JobRanks
    shown: int
    devices: tuple[DeviceDiagnosis, ...]
    failed: tuple[FailedFile, ...] = ()
    ranks: tuple[tuple[str, tuple[DeviceDiagnosis, ...]], ...] = ()

    @property
    def straggler(self) -> str | Unknown:
        """The rank that makes the others wait most, or why none can be named."""
        found = self.compared.straggler
        return found if isinstance(found, Unknown) else rank_name(self.compared.ranks[found], found)

    @property
    def shown_rank(self) -> str:
        """The rank that is shown first."""
        return rank_name(self.compared.ranks[self.shown], self.shown)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """Arrival against transfer over the matched collectives of a job.

    Args:
        collectives: How many could be matched.
        skew_s: Median time from the first to the last arrival [s].
        longest_skew_s: The longest [s].
        transfer_s: Median time of the shortest kernel, which the transfer takes at most [s].
    """

    collectives: int
    skew_s: float
    longest_skew_s: float
    transfer_s: float


def arrival_of(compared: JobRanks) -> Arrival | None:
    """Return arrival against transfer; None where no collective could be matched.

    Args:
        compared: The ranks of a job.
    """
    found = compared.collectives
    if not found:
        return None
    skews = [c.arrival_skew_ns for c in found]
    return Arrival(
        collectives=len(found), skew_s=statistics.median(skews) / 1e9, longest_skew_s=max(skews) / 1e9,
        transfer_s=statistics.median(c.transfer_ns for c in found) / 1e9,
    )  # fmt: skip


def rank_name(summary: RankSummary, place: int) -> str:
    """Return a rank as its file states it, or its place."""
    rank = summary.identity.rank
    return f"{place} (not stated)" if isinstance(rank, Unknown) else str(rank)


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
    found, verdicts = [], []
    for place, (summary, peers) in enumerate(zip(compared.ranks, peers_of(compared), strict=True)):
        name = rank_name(summary, place)
        devices = diagnose_profile(by_source[summary.source], replace(question, peers=peers))
        found.append((name, devices))
        verdicts.append(_kept(name, summary.source, devices))
    shown = _shown(compared, verdicts)
    return JobDiagnosis(
        verdicts=tuple(verdicts), compared=compared, shown=shown, devices=found[shown][1], ranks=tuple(found)
    )


def diagnose_files(
    paths: Sequence[Path],
    question: Question,
    opened: Opener,
    *,
    jobs: int | None = None,
    engine: str = "local",
    progress: Callable[[str], Progress] = lambda _what: lambda _done, _all, _name: None,
) -> JobDiagnosis:
    """Return the diagnosis of the ranks in many files, some of which may fail.

    The answer does not depend on `jobs` and `engine`, and what one process holds does not grow with the number of files.

    Args:
        paths: One profile per rank.
        question: What is asked of each.
        opened: Opens a file, cut and prepared as it is wanted; can be pickled.
        jobs: Files at a time; None takes one for each CPU, and none but this process for a few files.
        engine: `local` or `ray`.
        progress: Returns what is told the progress of reading, and of diagnosing.

    Raises:
        UsageError: Two of them state the same rank.
        InputError: Fewer than two could be read.
        UndecidedError: In none of them a device did any work, or none could be diagnosed.
    """
    with cluster(engine):
        return _diagnosed(paths, question, opened, jobs, engine, progress)


def _diagnosed(
    paths: Sequence[Path], question: Question, opened: Opener, jobs: int | None, engine: str,
    progress: Callable[[str], Progress],
) -> JobDiagnosis:  # fmt: skip
    few = len(paths) < FEW and jobs is None and engine == "local"
    opener = _Holding(opened) if few else opened
    count = 1 if few else jobs
    facts, failed = map_files(partial(_facts, opener), paths, jobs=count, engine=engine, progress=progress("reading"))
    if len(facts) < 2:
        if failed and all(f.code == "no_device_work" for f in failed):
            raise UndecidedError(failed[0].error, hint="record kernels as well", code="no_device_work")
        why = f"; first {failed[0].source}: {failed[0].error}" if failed else ""
        raise InputError(
            f"{len(facts)} of {len(paths)} files could be read{why}", hint="give the profiles of several ranks"
        )
    compared = compare_facts(facts)
    del facts
    sources = [Path(r.source) for r in compared.ranks]
    orders = [(rank_name(r, i), p) for i, (r, p) in enumerate(zip(compared.ranks, peers_of(compared), strict=True))]
    kept, undecided = map_files(
        partial(_judged, opener, question), sources, arguments=orders, jobs=count, engine=engine,
        progress=progress("diagnosing"),
    )  # fmt: skip
    if not kept:
        raise UndecidedError(f"none of {len(sources)} ranks could be diagnosed; first {undecided[0].error}")
    by_source = {k.source: k for k in kept}
    verdicts = tuple(by_source.get(r.source) for r in compared.ranks)
    shown = _shown(compared, verdicts)
    devices = diagnose_profile(opener(str(sources[shown])), replace(question, peers=orders[shown][1]))
    return JobDiagnosis(
        verdicts=verdicts, compared=compared, shown=shown, devices=devices, failed=(*failed, *undecided)
    )


class _Holding:
    """Opens each file once and holds it."""

    def __init__(self, opened: Opener) -> None:
        self._opened = opened
        self._held: dict[str, Timeline] = {}

    def __call__(self, path: str) -> Timeline:
        if path not in self._held:
            self._held[path] = self._opened(path)
        return self._held[path]


def _facts(opened: Opener, path: str) -> RankFacts:
    """Return what a profile contributes; one without kernels would leave the clocks of all others without an anchor."""
    found = facts_of(opened(path))
    if not found.kernels:
        raise UndecidedError("no kernel is recorded in this profile", code="no_device_work")
    return found


def _judged(opened: Opener, question: Question, path: str, order: tuple[str, Peers | None]) -> RankVerdict:
    name, peers = order
    return _kept(name, path, diagnose_profile(opened(path), replace(question, peers=peers)))


def _kept(name: str, source: str, devices: Sequence[DeviceDiagnosis]) -> RankVerdict:
    first = devices[0].diagnosis
    return RankVerdict(
        rank=name, source=source, verdict=first.verdict, step=first.step, time_shares=dict(first.time_shares)
    )


def _shown(compared: JobRanks, verdicts: Sequence[RankVerdict | None]) -> int:
    """Return the straggler where one is named and was diagnosed, else the rank with the longest step."""
    straggler = compared.straggler
    if not isinstance(straggler, Unknown) and verdicts[straggler] is not None:
        return straggler
    steps = {i: v.step.median_s for i, v in enumerate(verdicts) if v is not None}
    return max(steps, key=lambda i: steps[i])
