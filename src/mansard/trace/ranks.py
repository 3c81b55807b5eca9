"""Several profiles of one job: whose file is whose, on which clock, who arrives last at each collective, and how far apart they are.

The time of a communication kernel is waiting plus transfer. The rank that arrives last waits least, so the shortest kernel of a
collective is the nearest to its transfer; what the others take beyond their late peers is waiting, and it is never averaged away.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mansard.core.errors import UsageError
from mansard.core.intervals import merge, overlap_ns
from mansard.core.unknown import MaybeFloat, Unknown
from mansard.trace.categories import COLLECTIVE, Rules, shipped_rules
from mansard.trace.collectives_of import collectives_of
from mansard.trace.rank_clocks import (
    ClockAlignment,
    MatchedCollective,
    RankIdentity,
    aligned,
    identity_of,
    matched,
    possible,
    shifted,
)
from mansard.trace.run import Finding
from mansard.trace.timeline import Events, Kind, Timeline

_STEP = re.compile(r"^ProfilerStep#?\s*(\d+)$")


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
    if len(timelines) < 2:
        raise UsageError(
            f"comparing ranks needs at least two files, got {len(timelines)}", hint="give the profiles of several ranks"
        )
    rules = rules or shipped_rules()
    identities = [identity_of(t) for t in timelines]
    _refuse_twice(identities, timelines)
    order = sorted(
        range(len(timelines)),
        key=lambda i: (isinstance(r := identities[i].rank, Unknown), 0 if isinstance(r, Unknown) else r, i),
    )
    timelines, identities = [timelines[i] for i in order], [identities[i] for i in order]
    calls = [collectives_of(t, rules=rules) for t in timelines]
    pairs, left, why = matched(calls)
    pairs, torn = possible(pairs, aligned(timelines, identities, pairs))
    clock = aligned(timelines, identities, pairs)
    unmatched = tuple(n + sum(1 for p in torn if i in p.files) for i, n in enumerate(left))
    together = shifted(pairs, clock.shift_ns)
    summaries = tuple(
        _summary(t, i, n, clock.shift_ns[n], together if clock.method != "none" else None, pairs, rules)
        for n, (t, i) in enumerate(zip(timelines, identities, strict=True))
    )
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
        ranks=summaries, clock=clock, collectives=together, unmatched=unmatched, steps=_shared_steps(timelines, clock),
        straggler=_straggler(summaries, together, clock), findings=tuple(findings),
    )  # fmt: skip


def _refuse_twice(identities: Sequence[RankIdentity], timelines: Sequence[Timeline]) -> None:
    seen: dict[int, str] = {}
    for identity, timeline in zip(identities, timelines, strict=True):
        if isinstance(identity.rank, Unknown) or identity.stated_by == "name":
            continue
        if identity.rank in seen:
            raise UsageError(
                f"{seen[identity.rank]} and {timeline.source} are both rank {identity.rank}",
                hint="give one file per rank of one run",
            )
        seen[identity.rank] = timeline.source


def _summary(
    timeline: Timeline, identity: RankIdentity, index: int, shift: int, common: Sequence[MatchedCollective] | None,
    pairs: Sequence[MatchedCollective], rules: Rules,
) -> RankSummary:  # fmt: skip
    table = timeline.of(Kind.KERNEL)
    parts: tuple[int | Unknown, ...] = (timeline.why_absent(Kind.KERNEL),) * 4
    if timeline.has(Kind.KERNEL) and len(table):
        parts = _unions(timeline, table, rules)
    compute, communication, both, span = parts
    mine = [p for p in pairs if index in p.files]
    no_match = Unknown("no collective of this rank was matched", ("files whose collectives agree",))
    waiting: int | Unknown = (
        sum(p.durations_ns[p.files.index(index)] - p.transfer_ns for p in mine) if mine else no_match
    )
    if common is None:
        late: int | Unknown = Unknown(
            "the files share no clock", ("profiles of one host", "collectives that all files hold")
        )
        last: int | Unknown = late
    elif not mine:
        late = last = no_match
    else:
        ours = [p for p in common if index in p.files and p.last == index and p.arrival_skew_ns > 0]
        late, last = sum(p.arrival_skew_ns for p in ours), len(ours)
    return RankSummary(
        identity=identity, source=timeline.source, shift_ns=shift, kernels=len(table), compute_ns=compute,
        communication_ns=communication, overlap_ns=both, span_ns=span, waiting_ns=waiting, late_ns=late, last_count=last,
        steps_ns={n: e - s for n, (s, e) in _steps(timeline).items()},
    )  # fmt: skip


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


def _shared_steps(timelines: Sequence[Timeline], clock: ClockAlignment) -> tuple[SharedStep, ...]:
    marked = [_steps(t) for t in timelines]
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
