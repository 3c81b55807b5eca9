"""Whose file each profile of a job is, which collectives are the same one, and how the clocks of the files are brought together."""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Protocol

import numpy as np

from mansard.core.units import format_s
from mansard.core.unknown import MaybeFloat, Unknown
from mansard.trace.rank_calls import Calls
from mansard.trace.timeline import Clock, Timeline

_IN_NAME = re.compile(r"rank[-_.]?(\d+)(?!\d)", re.IGNORECASE)
_LAUNCHERS = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")
#: Operations that no rank can leave before all have arrived; a broadcast's root and a sender may.
COMMON_END = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
_SAME_CLOCK_NS = 1_000_000  # offsets of collective ends beyond it are not those of one clock


@dataclass(frozen=True, slots=True, kw_only=True)
class RankIdentity:
    """Whose file one is.

    Args:
        rank: Its rank, or why it is not known.
        stated_by: `file` (distributedInfo), `launcher` (a launcher's variable in the capture), `name` (the name of the file, a weak
            hint), or `nothing`.
        world_size: Ranks of the job.
        host: Its host, empty where it is not stated.
    """

    rank: int | Unknown
    stated_by: str
    world_size: int | Unknown
    host: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedCollective:
    """One collective on all files that took part.

    Args:
        operation: `all_reduce`, ...
        group: Name of its process group, empty where not recorded.
        number: Its place among those of its operation and group.
        files: Files it was found in.
        start_ns, end_ns: Aligned times, in the order of `files` [ns].
        message_bytes: Its size S [B].
    """

    operation: str
    group: str
    number: int
    files: tuple[int, ...]
    start_ns: array[int]
    end_ns: array[int]
    message_bytes: MaybeFloat

    @property
    def arrival_skew_ns(self) -> int:
        """Last start minus first start [ns]."""
        return max(self.start_ns) - min(self.start_ns)

    @property
    def last(self) -> int:
        """File whose rank arrived last."""
        return self.files[self.start_ns.index(max(self.start_ns))]

    @property
    def durations_ns(self) -> tuple[int, ...]:
        """Length on each file [ns]."""
        return tuple(e - s for s, e in zip(self.start_ns, self.end_ns, strict=True))

    @property
    def transfer_ns(self) -> int:
        """The shortest length: the nearest there is to the transfer alone; an upper bound of it [ns]."""
        return min(self.durations_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockAlignment:
    """How the times of the files were brought together.

    Args:
        method: `epoch` (each file states what its time 0 is), `collectives` (shifted so that collectives end together), or `none`.
        trust: `one host` (stated), `assumed one clock`, `fitted`, or `none`.
        shift_ns: What was added to the times of each file [ns].
        residual_ns: Median distance of the ends of matched collectives after the shift, per file against the first [ns].
        note: What a reader must know.
    """

    method: str
    trust: str
    shift_ns: tuple[int, ...]
    residual_ns: tuple[int | Unknown, ...]
    note: str


def identity_of(timeline: Timeline) -> RankIdentity:
    """Return whose file a profile is: what it states, else what a launcher left in it, else what its name suggests."""
    info = timeline.distributed
    world = info.get("world_size")
    size: int | Unknown = (
        world if isinstance(world, int) and world > 0 else Unknown("the file does not state the number of ranks")
    )
    host = str(timeline.environment.get("host_name") or timeline.environment.get("hostname") or "")
    rank = info.get("rank")
    if isinstance(rank, int) and not isinstance(rank, bool) and rank >= 0:
        return RankIdentity(rank=rank, stated_by="file", world_size=size, host=host)
    for scope in (timeline.environment, timeline.environment.get("variables", {})):
        for name in _LAUNCHERS:
            value = str(scope.get(name, "")) if isinstance(scope, Mapping) else ""
            if value.isascii() and value.isdigit():
                return RankIdentity(rank=int(value), stated_by="launcher", world_size=size, host=host)
    stated = {p.rank for p in timeline.processes if p.rank is not None}
    if len(stated) == 1:
        return RankIdentity(rank=stated.pop(), stated_by="file", world_size=size, host=host)
    found = _IN_NAME.search(Path(timeline.source).name)
    if found:
        return RankIdentity(rank=int(found.group(1)), stated_by="name", world_size=size, host=host)
    unknown = Unknown(
        "neither the file nor its name says which rank it is",
        ("a profile with distributedInfo", "rankN in the file's name"),
    )
    return RankIdentity(rank=unknown, stated_by="nothing", world_size=size, host=host)


def matched(calls: Sequence[Calls]) -> tuple[list[MatchedCollective], tuple[int, ...], str]:
    """Match collectives by group, operation and order; a kind whose counts differ between files is left unmatched."""
    out: list[MatchedCollective] = []
    unmatched = [0] * len(calls)
    uneven: list[str] = []
    for kind in dict.fromkeys(k for one in calls for k in one.kinds):
        rows = {i: one.rows(kind) for i, one in enumerate(calls) if kind in one.kinds}
        files = tuple(rows)
        counts = {len(r) for r in rows.values()}
        group, _, operation = kind
        if operation in ("send", "recv", "unknown") or len(files) < 2 or len(counts) != 1:
            for i in files:
                unmatched[i] += len(rows[i])
            if len(counts) != 1:
                uneven.append(
                    f"{operation}{f' of group {group}' if group else ''} ({', '.join(str(len(rows[i])) for i in files)})"
                )
            continue
        times = [calls[i].times_ns(rows[i]) for i in files]
        start, end = (np.stack([t[side] for t in times], axis=1) for side in (0, 1))
        first = calls[files[0]]
        for number, row in enumerate(rows[files[0]].tolist()):
            out.append(
                MatchedCollective(
                    operation=operation, group=group, number=number, files=files, start_ns=array("q", start[number].tobytes()),
                    end_ns=array("q", end[number].tobytes()), message_bytes=first.sizes[first.size[row]],
                )
            )  # fmt: skip
    why = f"The files hold different numbers of {'; '.join(uneven)}: these are not matched." if uneven else ""
    return out, tuple(unmatched), why


class _HasClock(Protocol):
    @property
    def clock(self) -> Clock: ...


def aligned(
    timelines: Sequence[_HasClock], identities: Sequence[RankIdentity], pairs: Sequence[MatchedCollective]
) -> ClockAlignment:
    """Bring the files to one clock, or say that they are not on one."""
    stated = [t.clock.epoch_offset_ns for t in timelines]
    hosts = {i.host for i in identities}
    known = [o for o in stated if not isinstance(o, Unknown)]
    if len(known) == len(stated):
        shift = tuple(o - min(known) if len(set(known)) > 1 else 0 for o in known)
        residual = _residuals(pairs, shift, len(timelines))
        far = [r for r in residual[1:] if not isinstance(r, Unknown) and abs(r) > _SAME_CLOCK_NS]
        if len(hosts) == 1 and "" not in hosts:
            note = f"All files come from host {hosts.pop()} and share its clock; skews are as recorded."
            return ClockAlignment(method="epoch", trust="one host", shift_ns=shift, residual_ns=residual, note=note)
        several = "" not in hosts and len(hosts) > 1
        if not far and not several:
            note = (
                "The files do not name their hosts: one clock is assumed, and skews hold only if that is so"
                + _said(residual) + "."
            )  # fmt: skip
            return ClockAlignment(
                method="epoch", trust="assumed one clock", shift_ns=shift, residual_ns=residual, note=note
            )
        fitted = _fitted(pairs, shift, len(timelines))
        if fitted is not None:
            return _fit(pairs, fitted, len(timelines))
        if several:
            note = "The files come from several hosts and no collective ends on all of them: their clocks cannot be compared."
            return ClockAlignment(
                method="none", trust="none", shift_ns=(0,) * len(timelines), residual_ns=residual, note=note
            )
    fitted = _fitted(pairs, (0,) * len(timelines), len(timelines))
    if fitted is not None:
        return _fit(pairs, fitted, len(timelines))
    nothing = Unknown("no collective was matched", ("collectives that all files hold",))
    note = "The files are on clocks of their own and no matched collective ties them together: no skew between them can be told."
    return ClockAlignment(
        method="none", trust="none", shift_ns=(0,) * len(timelines), residual_ns=(nothing,) * len(timelines), note=note
    )


def _fit(pairs: Sequence[MatchedCollective], shift: tuple[int, ...], count: int) -> ClockAlignment:
    residual = _scatter(pairs, shift, count)
    note = (
        "Clocks are shifted so that matched collectives end together on all ranks; skews smaller than the residual"
        + _said(residual) + " say nothing."
    )  # fmt: skip
    return ClockAlignment(method="collectives", trust="fitted", shift_ns=shift, residual_ns=residual, note=note)


def _said(residual: Sequence[int | Unknown]) -> str:
    known = [abs(r) for r in residual[1:] if not isinstance(r, Unknown)]
    return f" (ends of matched collectives lie {format_s(max(known) * 1e-9)} apart at the median)" if known else ""


def _ends(pairs: Sequence[MatchedCollective], shift: Sequence[int], file: int) -> list[int]:
    """Return how much later matched collectives end on one file than on the first [ns]."""
    out = []
    for pair in pairs:
        first, other = _place(pair.files, 0), _place(pair.files, file)
        if pair.operation in COMMON_END and first is not None and other is not None:
            out.append(pair.end_ns[other] + shift[file] - pair.end_ns[first] - shift[0])
    return out


def _place(files: tuple[int, ...], file: int) -> int | None:
    """Return where a file stands among those of a collective; nearly always all of them take part, in their order."""
    if file < len(files) and files[file] == file:
        return file
    return files.index(file) if file in files else None


def _residuals(pairs: Sequence[MatchedCollective], shift: Sequence[int], count: int) -> tuple[int | Unknown, ...]:
    nothing = Unknown("no collective ends on both files", ("collectives that both files hold",))
    ends = [_ends(pairs, shift, i) for i in range(count)]
    return (0, *(round(median(e)) if e else nothing for e in ends[1:]))


def _scatter(pairs: Sequence[MatchedCollective], shift: Sequence[int], count: int) -> tuple[int | Unknown, ...]:
    nothing = Unknown("one collective alone: its fit leaves no residual", ("more collectives",))
    ends = [_ends(pairs, shift, i) for i in range(count)]
    return (0, *(round(median(abs(x) for x in e)) if len(e) > 1 else nothing for e in ends[1:]))


def _fitted(pairs: Sequence[MatchedCollective], shift: Sequence[int], count: int) -> tuple[int, ...] | None:
    out = [shift[0]]
    for i in range(1, count):
        ends = _ends(pairs, shift, i)
        if not ends:
            return None
        out.append(shift[i] - round(median(ends)))
    return tuple(out)


def shifted(pairs: Sequence[MatchedCollective], shift: Sequence[int]) -> tuple[MatchedCollective, ...]:
    """Return collectives in shifted times.

    Args:
        pairs: As matched, in the times of their files.
        shift: What to add to the times of each file [ns].
    """
    return tuple(
        MatchedCollective(
            operation=p.operation, group=p.group, number=p.number, files=p.files, message_bytes=p.message_bytes,
            start_ns=array("q", [s + shift[f] for s, f in zip(p.start_ns, p.files, strict=True)]),
            end_ns=array("q", [e + shift[f] for e, f in zip(p.end_ns, p.files, strict=True)]),
        )
        for p in pairs
    )  # fmt: skip


def possible(
    pairs: Sequence[MatchedCollective], clock: ClockAlignment
) -> tuple[list[MatchedCollective], list[MatchedCollective]]:
    """Split matched collectives into those that can be one and those that cannot.

    No rank leaves before all have arrived, and the transfer comes after the last arrival: ranks that are in it together for less
    than half of the shortest kernel are in two different collectives.

    Args:
        pairs: As matched, in the times of their files.
        clock: How the files are brought to one clock; without one, all are possible.
    """
    if clock.method == "none":
        return list(pairs), []
    slack = max((abs(r) for r in clock.residual_ns if not isinstance(r, Unknown)), default=0)
    slack = min(slack, _SAME_CLOCK_NS)
    good: list[MatchedCollective] = []
    bad: list[MatchedCollective] = []
    for pair, moved in zip(pairs, shifted(pairs, clock.shift_ns), strict=True):
        together = min(moved.end_ns) - max(moved.start_ns)
        torn = pair.operation in COMMON_END and together + slack < pair.transfer_ns / 2
        (bad if torn else good).append(pair)
    return good, bad
