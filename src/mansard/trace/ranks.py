"""Several profiles of one job: whose file is whose, on which clock, who arrives last at each collective, and how far apart they are.

The time of a communication kernel is waiting plus transfer. The rank that arrives last waits least, so the shortest kernel of a
collective is the nearest to its transfer; what the others take beyond their late peers is waiting, and it is never averaged away.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mansard.core.errors import UsageError
from mansard.core.unknown import MaybeFloat, Unknown
from mansard.trace.categories import Rules
from mansard.trace.rank_clocks import (
    ClockAlignment,
    MatchedCollective,
    RankIdentity,
    aligned,
    matched,
    possible,
    shifted,
)
from mansard.trace.rank_clocks import identity_of as identity_of
from mansard.trace.rank_facts import RankFacts, facts_of
from mansard.trace.run import Finding
from mansard.trace.timeline import Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSummary:
    """One rank's device time.

    Args:
        identity: Whose file it is.
        source: The file.
        shift_ns: What was added to its times [ns].
        kernels: Kernels of the file.
        compute_ns, communication_ns: Union of its compute and of its communication kernels [ns], devices apart and then added.
        overlap_ns: Time in which both ran [ns].
        span_ns: First start to last end of its kernels [ns].
        waiting_ns: Time its communication kernels took beyond the shortest peer's, over the matched collectives [ns].
        late_ns: Time it made the first arrived peer wait, over the collectives at which it was last [ns].
        last_count: Collectives at which it arrived last.
        steps_ns: Length of each marked step [ns] by its number.
    """

    identity: RankIdentity
    source: str
    shift_ns: int
    kernels: int
    compute_ns: int | Unknown
    communication_ns: int | Unknown
    overlap_ns: int | Unknown
    span_ns: int | Unknown
    waiting_ns: int | Unknown
    late_ns: int | Unknown
    last_count: int | Unknown
    steps_ns: Mapping[int, int]

    @property
    def exposed_ns(self) -> int | Unknown:
        """Communication that no compute hides [ns]."""
        if isinstance(self.communication_ns, Unknown) or isinstance(self.overlap_ns, Unknown):
            return Unknown("the communication of this rank is not known")
        return self.communication_ns - self.overlap_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedStep:
    """A step that every file marks.

    Args:
        number: Its number.
        length_ns: On each file [ns].
        start_skew_ns: Start on each file minus the earliest [ns]; Unknown without a common clock.
    """

    number: int
    length_ns: tuple[int, ...]
    start_skew_ns: tuple[int, ...] | Unknown

    @property
    def spread_ns(self) -> int:
        """Longest minus shortest [ns]."""
        return max(self.length_ns) - min(self.length_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRanks:
    """What several files of one job say together.

    Args:
        ranks: One summary per file, in the order of the ranks.
        clock: How their times were brought together.
        collectives: Those that could be matched.
        unmatched: Communication kernels that could not, per file.
        steps: Steps that every file marks.
        straggler: Index in `ranks` of the rank that makes the others wait most, or why none can be named.
        findings: What a reader should know.
    """

    ranks: tuple[RankSummary, ...]
    clock: ClockAlignment
    collectives: tuple[MatchedCollective, ...]
    unmatched: tuple[int, ...]
    steps: tuple[SharedStep, ...]
    straggler: int | Unknown
    findings: tuple[Finding, ...]

    def imbalance_ratio(self) -> MaybeFloat:
        """Longest compute of a rank over the mean, minus 1; 0 is even."""
        known = [r.compute_ns for r in self.ranks if not isinstance(r.compute_ns, Unknown)]
        if len(known) < max(2, len(self.ranks)):
            return Unknown("the compute time of some ranks is not known", ("a file of each rank with its kernels",))
        mean = sum(known) / len(known)
        return max(known) / mean - 1 if mean > 0 else Unknown("no compute kernels")


def compare_ranks(timelines: Sequence[Timeline], *, rules: Rules | None = None) -> JobRanks:
    """Compare the profiles of several ranks of one job.

    Args:
        timelines: One profile per rank.
        rules: Which kernels are communication; the shipped ones by default.

    Raises:
        UsageError: There are fewer than two, or two of them state the same rank.
    """
    return compare_facts([facts_of(t, rules=rules) for t in timelines])


def compare_facts(facts: Sequence[RankFacts]) -> JobRanks:
    """Compare the ranks of one job by what their profiles contribute.

    Args:
        facts: Of one profile per rank, see `trace.rank_facts`.

    Raises:
        UsageError: There are fewer than two, or two of them state the same rank.
    """
    if len(facts) < 2:
        raise UsageError(
            f"comparing ranks needs at least two files, got {len(facts)}", hint="give the profiles of several ranks"
        )
    _refuse_twice(facts)
    facts = sorted(facts, key=lambda f: (isinstance(r := f.identity.rank, Unknown), 0 if isinstance(r, Unknown) else r))
    identities = [f.identity for f in facts]
    pairs, left, why = matched([f.calls for f in facts])
    pairs, torn = possible(pairs, aligned(facts, identities, pairs))
    clock = aligned(facts, identities, pairs)
    torn_of = Counter(i for p in torn for i in p.files)
    unmatched = tuple(n + torn_of[i] for i, n in enumerate(left))
    together = shifted(pairs, clock.shift_ns)
    tally = _Tally.of(len(facts), pairs, together if clock.method != "none" else None)
    summaries = tuple(_summary(f, n, clock.shift_ns[n], tally) for n, f in enumerate(facts))
    findings = [*_identity_findings(identities), Finding(code="clock", text=clock.note)]
    if torn:
        text = (
            f"{len(torn)} collectives that stand at the same place in all files cannot be the same one: a rank leaves before another "
            "arrives. Files cut or sampled differently look like this; they are counted as unmatched."
        )
        findings.append(Finding(code="torn_collectives", text=text))
    if why:
        findings.append(Finding(code="unmatched_collectives", text=why))
    return JobRanks(
        ranks=summaries, clock=clock, collectives=together, unmatched=unmatched, steps=_shared_steps(facts, clock),
        straggler=_straggler(summaries, together, clock), findings=tuple(findings),
    )  # fmt: skip


@dataclass(slots=True)
class _Tally:
    """Waiting and lateness of each rank, summed over the collectives in one pass; None for late without a common clock."""

    matched: list[int]
    waiting_ns: list[int]
    late_ns: list[int] | None
    last: list[int]

    @classmethod
    def of(cls, ranks: int, pairs: Sequence[MatchedCollective], common: Sequence[MatchedCollective] | None) -> _Tally:
        tally = cls([0] * ranks, [0] * ranks, None if common is None else [0] * ranks, [0] * ranks)
        for pair in pairs:
            transfer = pair.transfer_ns
            for file, duration in zip(pair.files, pair.durations_ns, strict=True):
                tally.matched[file] += 1
                tally.waiting_ns[file] += duration - transfer
        for pair in common or ():
            skew = pair.arrival_skew_ns
            if skew > 0 and tally.late_ns is not None:
                tally.late_ns[pair.last] += skew
                tally.last[pair.last] += 1
        return tally


def _refuse_twice(facts: Sequence[RankFacts]) -> None:
    seen: dict[int, str] = {}
    for one in facts:
        if isinstance(one.identity.rank, Unknown) or one.identity.stated_by == "name":
            continue
        if one.identity.rank in seen:
            raise UsageError(
                f"{seen[one.identity.rank]} and {one.source} are both rank {one.identity.rank}",
                hint="give one file per rank of one run",
            )
        seen[one.identity.rank] = one.source


def _summary(facts: RankFacts, index: int, shift: int, tally: _Tally) -> RankSummary:
    unions = facts.unions_ns
    compute, communication, both, span = (unions,) * 4 if isinstance(unions, Unknown) else unions
    waiting: int | Unknown
    late: int | Unknown
    last: int | Unknown
    waiting = late = last = Unknown("no collective of this rank was matched", ("files whose collectives agree",))
    if tally.matched[index]:
        waiting = tally.waiting_ns[index]
        if tally.late_ns is not None:
            late, last = tally.late_ns[index], tally.last[index]
    if tally.late_ns is None:
        late = last = Unknown(
            "the files share no clock", ("profiles of one host", "collectives that all files hold")
        )  # fmt: skip
    return RankSummary(
        identity=facts.identity, source=facts.source, shift_ns=shift, kernels=facts.kernels, compute_ns=compute,
        communication_ns=communication, overlap_ns=both, span_ns=span, waiting_ns=waiting, late_ns=late, last_count=last,
        steps_ns={n: e - s for n, (s, e) in facts.steps_ns.items()},
    )  # fmt: skip


def _shared_steps(facts: Sequence[RankFacts], clock: ClockAlignment) -> tuple[SharedStep, ...]:
    marked = [f.steps_ns for f in facts]
    shared = sorted(set.intersection(*(set(m) for m in marked)))
    out = []
    for number in shared:
        starts = [m[number][0] + s for m, s in zip(marked, clock.shift_ns, strict=True)]
        skew: tuple[int, ...] | Unknown = tuple(s - min(starts) for s in starts)
        if clock.method == "none":
            skew = Unknown("the files share no clock")
        out.append(
            SharedStep(number=number, length_ns=tuple(m[number][1] - m[number][0] for m in marked), start_skew_ns=skew)
        )
    return tuple(out)


def _straggler(
    ranks: Sequence[RankSummary], matched: Sequence[MatchedCollective], clock: ClockAlignment
) -> int | Unknown:
    """Return the rank that makes the others wait most; with a fitted clock only where that exceeds the residual."""
    late = [r.late_ns for r in ranks]
    known = [x for x in late if not isinstance(x, Unknown)]
    if len(known) < len(ranks) or not matched:
        return Unknown(
            "arrivals at collectives cannot be compared", ("profiles with the same collectives on one clock",)
        )
    residual = max((abs(r) for r in clock.residual_ns if not isinstance(r, Unknown)), default=0)
    worst = max(range(len(known)), key=lambda i: known[i])
    count = ranks[worst].last_count
    if known[worst] <= 0 or (isinstance(count, int) and count and known[worst] / count <= residual):
        return Unknown(f"no rank is later than the clocks can tell ({residual} ns)", ("a finer clock",))
    return worst


def _identity_findings(identities: Sequence[RankIdentity]) -> list[Finding]:
    out = []
    weak = [str(i.rank) for i in identities if i.stated_by == "name"]
    if weak:
        out.append(
            Finding(
                code="rank_from_name", text=f"Ranks {', '.join(weak)} are taken from file names, which is a weak hint."
            )
        )
    unknown = sum(1 for i in identities if isinstance(i.rank, Unknown))
    if unknown:
        out.append(
            Finding(
                code="rank_unknown",
                text=f"{unknown} files do not say which rank they are; they are listed in the order given.",
            )
        )
    sizes = {i.world_size for i in identities if isinstance(i.world_size, int)}
    if len(sizes) > 1:
        out.append(
            Finding(
                code="world_size_differs",
                text=f"The files state different numbers of ranks: {sorted(sizes)}; they may be of different runs.",
            )
        )
    elif sizes and len(identities) < (size := sizes.pop()):
        out.append(
            Finding(
                code="ranks_missing",
                text=f"{len(identities)} of {size} ranks are given; the slowest may not be among them.",
            )
        )
    return out
