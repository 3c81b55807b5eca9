"""The one equation: how long work must take at least, which ceiling decides it, and what share was reached.

Roofline, MFU, share of speed of light, bandwidth use and token-rate ceilings are all views of these functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

import numpy as np

from mansard.core.ceilings import Area, Ceiling, Ceilings, Kind
from mansard.core.demand import Demand, Number
from mansard.core.evidence import Grade, worst_grade
from mansard.core.units import format_s
from mansard.core.unknown import Implausible, Unknown, is_known

Overlap = Literal["full", "none"]

#: A limiting ceiling is called the bound when at least this share of it was reached.
BOUND_SHARE = 0.3

#: Up to this share a measured ceiling that was beaten still names the limit; beyond it the inputs are in doubt.
LOW_CEILING = 1.25

#: What a share above 1 usually means, the most likely first.
SUSPECTS = (
    "work that was optimised away (dead code)",
    "time taken without waiting for the result (missing synchronisation)",
    "data that stayed in a nearer cache than assumed",
    "a sparse peak or the peak of another element type",
    "another scope: one die, core or device against several",
    "a clock above the one the ceiling was taken at",
    "a wrong FLOP or byte count",
)


class Bound(StrEnum):
    """The verdict on a piece of work."""

    COMPUTE = "compute"
    MEMORY = "memory"
    NETWORK = "network"
    HOST = "host"
    LATENCY = "latency"
    UNDETERMINED = "undetermined"


def least_time_s(parts_s: Sequence[Number], *, fixed_s: Number = 0.0, overlap: Overlap = "full") -> Number:
    """Return the least time of work whose resources take `parts_s` each.

    Args:
        parts_s: Demand over ceiling of every resource [s]; floats or arrays of one shape.
        fixed_s: Cost that nothing hides, such as launches [s].
        overlap: `full` if the resources work at the same time, `none` if one after the other.

    Returns:
        max(parts) + fixed, or sum(parts) + fixed [s].

    Assumes: with full overlap no real run is faster.
    Source: Williams, Waterman, Patterson, Roofline, CACM 52(4), 2009; docs/design, one equation.

    A 4096^3 bf16 GEMM on 989 TFLOP/s and 3.35 TB/s: compute 138.97 us, memory 30.05 us.

    >>> parts = [2 * 4096**3 / 989e12, 3 * 2 * 4096**2 / 3.35e12]
    >>> round(least_time_s(parts) * 1e6, 2), round(least_time_s(parts, overlap="none") * 1e6, 2)
    (138.97, 169.02)
    """
    if not parts_s:
        return fixed_s
    if overlap == "none":
        total: Number = 0.0
        for part in parts_s:
            total = total + part
        return total + fixed_s
    longest = parts_s[0]
    for part in parts_s[1:]:
        longest = np.maximum(longest, part) if isinstance(part, np.ndarray) or isinstance(longest, np.ndarray) else max(
            longest, part
        )  # fmt: skip
    return longest + fixed_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One resource's part in a bound.

    Args:
        area: Compute, memory, network, host or latency.
        ceiling: The ceiling that was used.
        amount: What is consumed of it [FLOP, B, evaluations or launches].
        time_s: amount over ceiling [s].
    """

    area: Area
    ceiling: Ceiling
    amount: float
    time_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastTime:
    """The least time of a demand on a machine, and what decides it.

    Args:
        time_s: The bound [s], or `Unknown` where nothing could be bounded, or matrix work could not: what bounds the rest
            is then no bound of the whole.
        terms: Every resource that could be bounded, the largest first.
        fixed: The launch term, if its cost is known.
        unknown: Resources that are consumed but have no ceiling.
        level: The memory level that the work was judged against.
        no_peak: Why matrix work that the demand has could not be bounded.
        needed: Those of `unknown` that could decide the time: matrix work, and memory or links of which nothing is bounded.
        partial_s: What the bounded resources take [s], where that is not the whole: no run is faster, and no share is of it.
    """

    time_s: float | Unknown
    terms: tuple[Term, ...] = ()
    fixed: Term | None = None
    unknown: tuple[Unknown, ...] = ()
    level: str | None = None
    no_peak: Unknown | None = None
    needed: tuple[Unknown, ...] = ()
    partial_s: float | None = None

    @property
    def floor_s(self) -> float | Unknown:
        """A time that no run is faster than [s]: the bound, or that of the resources which could be bounded."""
        return self.time_s if self.partial_s is None else self.partial_s

    @property
    def limiting(self) -> Term | None:
        """The term that decides the time; the launch cost where it is larger than all others."""
        longest = self.terms[0] if self.terms else None
        if self.fixed is not None and (longest is None or self.fixed.time_s > longest.time_s):
            return self.fixed
        return longest

    @property
    def grade(self) -> Grade:
        """The grade of the limiting ceiling; a modelled demand is never better than `modelled`."""
        used = [t.ceiling.kind.grade for t in (self.limiting,) if t is not None]
        return worst_grade([*used, Grade.MODELLED])


def least_time(
    demand: Demand,
    ceilings: Ceilings,
    *,
    scope: str = "node",
    backend: str | None = None,
    overlap: Overlap = "full",
) -> LeastTime:
    """Return the least time that `demand` can take under `ceilings`, and which ceiling decides it.

    Args:
        demand: What the work consumes; scalar numbers.
        ceilings: The machine.
        scope: The scope of the ceilings to use; the demand must describe the same scope.
        backend: Whose dispatch cost applies to the launches; None for none.
        overlap: Stated policy, see `least_time_s`.

    Source: docs/design, one equation; bytes are compulsory traffic at the nearest level that holds the working set.
    """
    terms: list[Term] = []
    lost: list[tuple[Area, Unknown]] = []

    def add(area: Area, amount: float, ceiling: Ceiling | Unknown) -> None:
        if amount <= 0:
            return
        if isinstance(ceiling, Unknown):
            lost.append((area, ceiling))
        else:
            terms.append(Term(area=area, ceiling=ceiling, amount=amount, time_s=amount / ceiling.value))

    for (dtype, accumulate), flop in demand.flop.items():
        add(Area.COMPUTE, float(flop), ceilings.peak(dtype, accumulate=accumulate, engine="matrix", scope=scope))
    no_peak = lost[0][1] if lost else None
    needed = [u for _, u in lost]
    for dtype, flop in demand.vector_flop.items():
        add(Area.COMPUTE, float(flop), ceilings.peak(dtype, engine="vector", scope=scope))
    for dtype, count in demand.transcendental.items():
        add(Area.COMPUTE, float(count), ceilings.peak(dtype, engine="special", scope=scope))
    level = _memory_terms(demand, ceilings, scope, add)
    for name, size in demand.link_bytes.items():
        add(Area.NETWORK, float(size), ceilings.link(name))
    for area in (Area.MEMORY, Area.NETWORK):
        if not any(t.area is area for t in terms):
            needed += [u for a, u in lost if a is area]
    missing = [u for _, u in lost]

    fixed = None
    if backend is not None and float(demand.launches) > 0:
        cost = ceilings.fixed_cost(backend)
        if isinstance(cost, Unknown):
            missing.append(cost)
        else:
            launches = float(demand.launches)
            fixed = Term(area=Area.LATENCY, ceiling=cost, amount=launches, time_s=launches * cost.value)
    terms.sort(key=lambda t: -t.time_s)
    parts = _by_unit(terms)
    if parts:
        # The resource that decides comes first, whatever its largest single term is.
        terms.sort(key=lambda t: (-parts[_unit(t)], -t.time_s))
    if not terms and fixed is None:
        reason = missing[0] if missing else Unknown("the demand consumes nothing that has a ceiling", ("a known cost",))
        return LeastTime(time_s=reason, unknown=tuple(missing), level=level, no_peak=no_peak, needed=tuple(needed))
    time_s = float(least_time_s(list(parts.values()), fixed_s=fixed.time_s if fixed else 0.0, overlap=overlap))
    return LeastTime(
        time_s=time_s if no_peak is None else no_peak, terms=tuple(terms), fixed=fixed, unknown=tuple(missing), level=level,
        no_peak=no_peak, needed=tuple(needed), partial_s=None if no_peak is None else time_s,
    )  # fmt: skip


def _unit(term: Term) -> tuple[str, str | None, str | None]:
    """Return what a term keeps busy: an engine, a memory level or a link."""
    resource = term.ceiling.resource
    return term.area.value, resource.engine or resource.level, resource.link


def _by_unit(terms: Sequence[Term]) -> dict[tuple[str, str | None, str | None], float]:
    """Return the time of each unit [s]: element types that share an engine follow each other on it."""
    total: dict[tuple[str, str | None, str | None], float] = {}
    for term in terms:
        total[_unit(term)] = total.get(_unit(term), 0.0) + term.time_s
    return total


def _memory_terms(demand: Demand, ceilings: Ceilings, scope: str, add: object) -> str | None:
    """Add the memory terms through `add`; return the level that compulsory traffic was judged against."""
    assert callable(add)
    for name, size in demand.level_bytes.items():
        add(Area.MEMORY, float(size), ceilings.bandwidth(name, scope=scope))
    total = float(demand.bytes)
    if total <= 0:
        return None
    level = ceilings.level_for(float(demand.working_set), scope=scope)
    if isinstance(level, Unknown):
        add(Area.MEMORY, total, level)
        return None
    if level.level in demand.level_bytes:
        return level.level
    ratio = float(demand.read_bytes) / total
    add(Area.MEMORY, total, ceilings.bandwidth(level.level, read_ratio=ratio, scope=scope))
    return level.level


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What an observed time says about work whose least time is known.

    Args:
        bound: The verdict.
        limiting: The term that decides the least time, always given where there is one.
        share_of_ceiling: Least time over observed time; `Implausible` above 1, `Unknown` without a least time.
        headroom_s: Observed minus least time [s], not below 0.
        grade: How sure.
        reason: Why the verdict is what it is, in one sentence.
    """

    bound: Bound
    limiting: Term | None
    share_of_ceiling: float | Unknown | Implausible
    headroom_s: float | Unknown
    grade: Grade
    reason: str


def share_of(least_s: float, observed_s: float, *, uncertainty_ratio: float = 0.0) -> float | Implausible:
    """Return least over observed time, or `Implausible` where that is above 1 beyond its uncertainty.

    Args:
        least_s: The bound [s].
        observed_s: The measured time [s], positive.
        uncertainty_ratio: Combined relative uncertainty of both; 3 % is always allowed.

    >>> share_of(0.5, 1.0), share_of(1.02, 1.0)
    (0.5, 1.0)
    >>> share_of(3.69, 1.0).value
    3.69
    """
    ratio = least_s / observed_s
    if ratio > 1.0 + max(0.03, uncertainty_ratio):
        return Implausible(ratio, SUSPECTS)
    return min(ratio, 1.0)


def judge(
    least: LeastTime,
    observed_s: float,
    *,
    evidence: str = "",
    uncertainty_ratio: float = 0.0,
) -> Judgement:
    """Return the verdict on work that took `observed_s` and must take `least`.

    Args:
        least: The least time and what decides it.
        observed_s: The time it took [s], positive.
        evidence: Other evidence for the limiting ceiling (counters, page faults, a stall); makes a low share a verdict.
        uncertainty_ratio: Relative uncertainty of the observed time.
    """
    limiting = least.limiting
    if isinstance(least.time_s, Unknown) or limiting is None:
        reason = least.time_s if isinstance(least.time_s, Unknown) else Unknown("nothing limits this work")
        text = reason.reason
        if least.partial_s is not None and limiting is not None:
            # The rest bounds the time from below, and is named so; a share of it would say nothing of the work.
            text += f"; its {limiting.ceiling.resource.label} alone takes {format_s(least.partial_s)}"
            error = limiting.ceiling.uncertainty_ratio + uncertainty_ratio
            beaten = share_of(least.partial_s, observed_s, uncertainty_ratio=error)
            if isinstance(beaten, Implausible):  # what is missing could only make the least time longer
                return Judgement(
                    bound=Bound.UNDETERMINED, limiting=limiting, share_of_ceiling=beaten, headroom_s=0.0,
                    grade=least.grade, reason=f"faster than its {limiting.ceiling.resource.label} ceiling allows",
                )  # fmt: skip
        return Judgement(
            bound=Bound.UNDETERMINED, limiting=None, share_of_ceiling=reason, headroom_s=reason,
            grade=Grade.ASSUMED, reason=text,
        )  # fmt: skip
    share = share_of(least.time_s, observed_s, uncertainty_ratio=limiting.ceiling.uncertainty_ratio + uncertainty_ratio)
    headroom = max(0.0, observed_s - least.time_s)
    name = limiting.ceiling.resource.label
    if isinstance(share, Implausible) and limiting.ceiling.kind is Kind.MEASURED and share.value <= LOW_CEILING:
        # A measured ceiling is what somebody reached so far: beaten by a little, it is too low, and it is still the limit.
        bound, reason_text = Bound(limiting.area.value), f"{share.value:.2f} of the {name} ceiling, which is too low"
    elif not is_known(share):
        bound, reason_text = Bound.UNDETERMINED, f"faster than its {name} ceiling allows"
    elif share >= BOUND_SHARE:
        bound, reason_text = Bound(limiting.area.value), f"{share:.2f} of the {name} ceiling"
    elif evidence:
        bound, reason_text = Bound(limiting.area.value), f"{share:.2f} of the {name} ceiling; {evidence}"
    else:
        bound, reason_text = Bound.UNDETERMINED, f"far below its ceiling: {share:.2f} of {name}"
    if least.unknown and bound is not Bound.UNDETERMINED and share is not None:
        reason_text += f"; not bounded: {least.unknown[0].reason}"
    return Judgement(
        bound=bound, limiting=limiting, share_of_ceiling=share, headroom_s=headroom, grade=least.grade,
        reason=reason_text,
    )  # fmt: skip
