"""The checks of an operation and of a step, area by area: several may be bounds, none hides another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mansard.core import BOUND_SHARE, Area, Bound, Ceiling, Ceilings, Implausible, Term, Unknown, is_known, share_of
from mansard.core.ceilings import Kind
from mansard.diagnose.judge_operators import JudgedOperator
from mansard.diagnose.partial import unchecked
from mansard.diagnose.records import A_BOUND_SHARE, SHARE_KINDS, AreaShare, Check
from mansard.diagnose.rules import Case

#: Copies up to this share of the host's time leave its headroom known within as much.
_FEW_COPIES = 0.1
WAITING = Unknown("waiting has no ceiling; see the headroom")


def checks_of(row: JudgedOperator) -> tuple[Check, ...]:
    """Return the separate checks of one kind of operation, the nearest to its ceiling first."""
    time_s: dict[Area, float] = {}
    label: dict[Area, str] = {}
    for term in (*row.least.terms, *((row.least.fixed,) if row.least.fixed else ())):
        time_s[term.area] = time_s.get(term.area, 0.0) + term.time_s
        label.setdefault(term.area, term.ceiling.resource.label)
    bound = row.judgement.bound
    found = []
    for area, seconds in time_s.items():
        share = share_of(seconds, row.call_s) if row.call_s > 0 else 0.0
        near = is_known(share) and share >= BOUND_SHARE
        found.append(
            Check(
                area=area.value, share_of_ceiling=share, is_bound=near or bound.value == area.value, ceiling=label[area]
            )
        )
    seen = {c.area for c in found}
    for lost in unchecked(row.operator.demand):
        if lost not in seen:
            demand = row.operator.demand
            why = demand if isinstance(demand, Unknown) else Unknown(f"{lost} cannot be checked: {demand.uncounted[0]}")
            found.append(Check(area=lost, share_of_ceiling=why, is_bound=False))
    if bound is not Bound.UNDETERMINED and bound.value not in {c.area for c in found}:
        found.insert(0, Check(area=bound.value, share_of_ceiling=Unknown(row.judgement.reason), is_bound=True))
    return tuple(sorted(found, key=lambda c: -c.share_of_ceiling if is_known(c.share_of_ceiling) else 0.0))


def same_of_kind(term: Term, ceilings: Ceilings) -> dict[Kind, Ceiling]:
    """Return the ceilings that stand for the resource of a term, one of each kind: measured, derived, declared."""
    want = term.ceiling.resource
    out: dict[Kind, Ceiling] = {}
    for kind in Kind:
        hits = [
            c for c in ceilings.ceilings
            if c.kind is kind and c.scope == term.ceiling.scope
            and all(getattr(c.resource, n) == getattr(want, n) for n in ("area", "dtype", "engine", "level", "link", "backend"))
        ]  # fmt: skip
        if term.ceiling.kind is kind:
            out[kind] = term.ceiling
        elif hits:
            same = [c for c in hits if c.resource.accumulate == want.accumulate] or hits
            mixed = [c for c in same if c.resource.mix in (want.mix, None)] or same
            out[kind] = max(mixed, key=lambda c: c.value) if want.area is not Area.LATENCY else mixed[0]
    return out


def shares_by_kind(rows: Sequence[JudgedOperator], ceilings: Ceilings) -> dict[str, float]:
    """Return the share of `rows` of measured, derived and declared ceilings, where every row has one of that kind.

    Args:
        rows: Kinds of operation; those without a least time make no share known.
        ceilings: The machine.
    """
    least: dict[Kind, float] = dict.fromkeys(Kind, 0.0)
    observed = 0.0
    alive = set(Kind)
    for row in rows:
        term = row.judgement.limiting
        if term is None or not isinstance(row.least.time_s, float):
            return {}
        found = same_of_kind(term, ceilings)
        alive &= set(found)
        observed += row.total_s
        for kind, ceiling in found.items():
            ratio = (
                ceiling.value / term.ceiling.value if term.area is Area.LATENCY else term.ceiling.value / ceiling.value
            )
            least[kind] += row.least.time_s * row.calls * ratio
    return {k.value: least[k] / observed for k in Kind if k in alive and observed > 0}


def areas_of(case: Case) -> tuple[AreaShare, ...]:
    """Return what each area has of the step, the largest first; what has nothing is left out."""
    shares = case.account.shares
    found = [_area(case, kind, shares[kind]) for kind in SHARE_KINDS if shares[kind] > 0]
    return tuple(sorted(found, key=lambda a: -a.time_s))


def _area(case: Case, kind: str, share: float) -> AreaShare:
    seconds = case.account.by_kind[kind]
    area = AreaShare(
        area=kind, time_s=seconds, time_share=share, is_bound=share >= A_BOUND_SHARE and kind != "unattributed",
        share_of_ceiling=WAITING, headroom_s=seconds,
    )  # fmt: skip
    if kind == "unattributed":
        unknown = Unknown("nothing tells what limits this time", needs_of(case))
        return replace(area, share_of_ceiling=unknown, headroom_s=unknown)
    rows = sorted(case.of_bound(Bound(kind)), key=lambda j: -j.total_s)
    if kind == "latency" or not rows:
        return area
    total, least = share_and_least(rows)
    limiting = rows[0].judgement.limiting
    moves = kind in ("network", "host")
    headroom: float | Unknown = left_over(seconds, total, whole_s=case.per_step_s(rows) if moves else None)
    if kind == "host":
        headroom = host_headroom(case, total, case.per_step_s(rows))
    return replace(
        area,
        share_of_ceiling=total,
        headroom_s=headroom,
        limiting_ceiling=limiting.ceiling.resource.label if limiting else "",
        shares_by_kind=shares_by_kind(rows, case.ceilings) if least > 0 else {},
        link=link_of(rows) if kind == "network" else "",
    )


def left_over(seconds: float, share: float | Unknown | Implausible, *, whole_s: float | None = None) -> float | Unknown:
    """Return what reaching the ceiling would save of some time [s]; not known where the share is not.

    Args:
        seconds: The time that counts.
        share: Least over observed time of the operations.
        whole_s: All their time, where a part of it is hidden behind other work [s]. What is hidden goes on being hidden, so at
            the ceiling the exposed part gets shorter by all that the operations get shorter by.

    >>> left_over(4.0, 0.75), left_over(4.0, Unknown("no bytes")), left_over(0.0, Unknown("no bytes"))
    (1.0, Unknown(reason='no bytes', needs=()), 0.0)

    Exchanges of 10 s at 0.8 of the link, 6 s of them hidden: at the ceiling they take 8 s, of which 2 s are exposed:

    >>> round(left_over(4.0, 0.8, whole_s=10.0), 9), left_over(1.0, 0.8, whole_s=10.0)
    (2.0, 1.0)
    """
    if isinstance(share, Implausible) or seconds <= 0:
        return 0.0
    if isinstance(share, Unknown):
        return share
    return min(seconds, max(seconds, whole_s or 0.0) * max(0.0, 1.0 - share))


def host_headroom(case: Case, share: float | Unknown | Implausible, copies_s: float) -> float | Unknown:
    """Return what waiting less, and copies at the rate of their link, would save of the host's time [s per step].

    Args:
        case: The case.
        share: What the copies reach of their link; where that is not known, neither is the headroom, unless copies are few.
        copies_s: All time of the copies, the hidden part included [s per step].
    """
    seconds, copying = case.account.by_kind["host"], copy_seconds(case)
    if isinstance(share, Unknown):
        return share if copying > _FEW_COPIES * seconds else seconds
    return seconds - copying + left_over(copying, share, whole_s=copies_s)


def copy_seconds(case: Case) -> float:
    """Return the time of a step in which only copies between host and device run [s]."""
    return max(0.0, case.account.by_kind["host"] - sum(case.account.host.values()))


def share_and_least(rows: Sequence[JudgedOperator]) -> tuple[float | Unknown | Implausible, float]:
    """Return the share of the ceiling that rows reached together, and their least time [s].

    Rows without a least time (bytes not known) say nothing: the share is that of the others where they have most of the time.
    """
    known = [r for r in rows if isinstance(r.least.time_s, float)]
    observed = sum(r.total_s for r in known)
    least = sum(r.least.time_s * r.calls for r in known if isinstance(r.least.time_s, float))
    total = sum(r.total_s for r in rows)
    if observed <= 0 or observed < 0.5 * total:
        lost = next((r.least.time_s for r in rows if isinstance(r.least.time_s, Unknown)), Unknown("no least time"))
        return lost, least
    limiting = rows[0].judgement.limiting
    uncertainty = limiting.ceiling.uncertainty_ratio if limiting is not None else 0.0
    return share_of(least, observed, uncertainty_ratio=uncertainty), least


def link_of(rows: Sequence[JudgedOperator]) -> str:
    """Return the link that most of the communication goes over, or why it is not known."""
    seconds: dict[str, float] = {}
    for row in rows:
        limiting = row.judgement.limiting
        link = row.operator.link
        if limiting is not None and limiting.ceiling.resource.link:
            name = limiting.ceiling.resource.link
        elif isinstance(link, str):
            name = link
        else:
            name = f"not known: {link.reason}" if isinstance(link, Unknown) else "not known: it is not recorded"
        seconds[name] = seconds.get(name, 0.0) + row.total_s
    return max(seconds, key=lambda n: seconds[n]) if seconds else ""


def needs_of(case: Case) -> tuple[str, ...]:
    """Return what would make the verdict-less operations known, by the time it would settle."""
    seconds: dict[str, float] = {}
    for row in case.of_bound(Bound.UNDETERMINED):
        demand = row.operator.demand
        needs = demand.needs if isinstance(demand, Unknown) else ()
        if not needs and isinstance(row.least.time_s, Unknown):
            needs = row.least.time_s.needs
        for need in needs[:3]:
            seconds[need] = seconds.get(need, 0.0) + row.total_s
    return tuple(sorted(seconds, key=lambda n: -seconds[n])[:3])


def shares_by_category(rows: Sequence[JudgedOperator]) -> dict[str, float]:
    """Return the time of rows by the category of their names: a heuristic, and never a verdict."""
    seconds: dict[str, float] = {}
    for row in rows:
        seconds[row.operator.category] = seconds.get(row.operator.category, 0.0) + row.total_s
    total = sum(seconds.values()) or 1.0
    return {k: v / total for k, v in sorted(seconds.items(), key=lambda kv: -kv[1])}
