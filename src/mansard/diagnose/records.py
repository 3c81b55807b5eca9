"""The answer: verdict, steps, shares, operators, advice, receipt. These records are what every view shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mansard.core import Bound, Ceiling, Grade, Implausible, Unknown

#: An area is a bound of a piece of time if it has at least this share of it; several areas may be.
A_BOUND_SHARE = 0.10


@dataclass(frozen=True, slots=True, kw_only=True)
class AreaShare:
    """What one area has of a step: the areas are checked one by one, and several may be bounds of it.

    Args:
        area: compute, memory, network, host, latency or unattributed.
        time_s: Time of the step that this area limits [s].
        time_share: The same over the step.
        is_bound: Whether it is a bound of the step: its share is at least `A_BOUND_SHARE`, and it has a cause.
        share_of_ceiling: Least over observed time of its operations, against the preferred ceiling.
        shares_by_kind: The same against measured, derived and declared ceilings, where they are on record.
        headroom_s: What it could save at most [s per step].
        limiting_ceiling: Label of the ceiling that limits most of it, empty where there is none.
        link: For the network: the link, or why it is not known.
    """

    area: str
    time_s: float
    time_share: float
    is_bound: bool
    share_of_ceiling: float | Unknown | Implausible
    headroom_s: float | Unknown
    limiting_ceiling: str = ""
    shares_by_kind: Mapping[str, float] = field(default_factory=dict)
    link: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One of the separate checks of an operation: how near it came to the ceiling of one area.

    Args:
        area: compute, memory, network, host or latency.
        share_of_ceiling: Time that this area needs at least over observed time; `Unknown` where it cannot be checked.
        is_bound: Whether this area limits it: the share is high enough to say so.
        ceiling: Label of the ceiling.
    """

    area: str
    share_of_ceiling: float | Unknown | Implausible
    is_bound: bool
    ceiling: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Which ceiling, how far below it, and why one may believe it.

    Args:
        bound: compute, memory, network, host, latency or undetermined: the largest share of the step.
        limiting_ceiling: Label of the ceiling that decides the least time of that part.
        level: Memory level, for a memory verdict.
        link: Link, for a network verdict.
        share_of_ceiling: Least time over observed time of the part that the verdict is about.
        headroom_s: Seconds per step that reaching the ceiling would save in that part.
        time_share: Share of the step that has this bound.
        grade: Evidence grade.
        sentence: The verdict in one sentence.
        evidence, counter_evidence, will_not_help: Short sentences; evidence ends in its grade.
        time_s: Time of a step that has this bound [s].
        shares_by_kind: share_of_ceiling against measured, derived and declared ceilings, where they are on record.
        areas: Every area by itself, the largest first.
        needs: What to supply where the verdict is undetermined.
    """

    bound: Bound
    limiting_ceiling: str
    level: str | None
    link: str | None
    share_of_ceiling: float | Unknown | Implausible
    headroom_s: float | Unknown
    time_share: float
    grade: Grade
    sentence: str
    evidence: tuple[str, ...] = ()
    counter_evidence: tuple[str, ...] = ()
    will_not_help: tuple[str, ...] = ()
    time_s: float = 0.0
    shares_by_kind: Mapping[str, float] = field(default_factory=dict)
    areas: tuple[AreaShare, ...] = ()
    needs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Time of one step.

    Args:
        median_s: Median step time with the profiler off where that was measured, else with it on [s]; the mean where
            `statistic` says so.
        count: Steps the median is over.
        ci95_s: 95 % interval of the median; of steps that do different work the shortest and the longest [s].
        profiled_median_s: The same with the profiler on [s].
        profiler_overhead_ratio: profiled over unprofiled, minus 1; None where not measured.
        source: How the steps were found.
        note: What a step is here.
        statistic: `median`, or `mean` where steps do different work, so that work and time are those of the same step.
        steps_s: The steps one by one, as they were measured [s]; of very many an even choice, so `count` may be larger.
        steps_profiled: Whether `steps_s` were taken with the profiler on, so that their median is `profiled_median_s`.
    """

    median_s: float
    count: int
    ci95_s: tuple[float, float]
    profiled_median_s: float
    profiler_overhead_ratio: float | None
    source: str
    note: str
    statistic: str = "median"
    steps_s: tuple[float, ...] = ()
    steps_profiled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PartTime:
    """Time of one part of the step: forward, backward, optimizer, input, other [s per step].

    Args:
        kind: Which part.
        time_s: Its time [s per step].
        bound: The area with most of it.
        areas: Seconds of it by area; they add up to `time_s`.
    """

    kind: str
    time_s: float
    bound: Bound
    areas: Mapping[str, float] = field(default_factory=dict)

    @property
    def bounds(self) -> tuple[str, ...]:
        """Every area that is a bound of this part, the largest first."""
        least = A_BOUND_SHARE * self.time_s
        kept = [a for a, t in self.areas.items() if a != "unattributed" and t >= least > 0]
        return tuple(sorted(kept, key=lambda a: -self.areas[a]))


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorRow:
    """One row of the operator table; amounts are per step.

    Args:
        name, category, part, shapes, source: What it is.
        calls: Calls per step.
        time_s: Time per step, profiler overhead removed [s].
        flop: Matrix FLOP per step.
        bytes: Compulsory bytes of memory per step [B].
        flop_per_byte: Arithmetic intensity at `level`; None without bytes.
        bound: Verdict on the operator.
        limiting_ceiling: Label of the ceiling that limits it.
        level: Memory level it was judged against.
        ceiling_value, ceiling_unit: The ceiling that limits it.
        share_of_ceiling: Least time over observed time.
        headroom_s: Seconds per step above the least time.
        grade: Evidence grade.
        reason: The verdict in words.
        formula: How FLOP and bytes were counted.
        full_square_flop: FLOP per step if a causal attention were counted in full.
        recompute: Executed again to save memory: its FLOP are hardware FLOP and no model FLOP.
        checks: The separate checks of each area.
        shares_by_kind: share_of_ceiling against measured, derived and declared ceilings, where they are on record.
        link_bytes: Bytes per step over each link, for exchanges and copies between host and device [B].
    """

    name: str
    category: str
    part: str
    shapes: str
    source: str
    calls: float
    time_s: float
    flop: float | Unknown
    bytes: float | Unknown
    flop_per_byte: float | None
    bound: Bound
    limiting_ceiling: str
    level: str | None
    ceiling_value: float | None
    ceiling_unit: str
    share_of_ceiling: float | Unknown | Implausible
    headroom_s: float | Unknown
    grade: Grade
    reason: str
    formula: str
    full_square_flop: float | None = None
    recompute: bool = False
    checks: tuple[Check, ...] = ()
    shares_by_kind: Mapping[str, float] = field(default_factory=dict)
    link_bytes: Mapping[str, float] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The name for reading: what is executed again says so."""
        return f"{self.name} (recompute)" if self.recompute else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """One thing worth doing.

    Args:
        rule: Identifier of the rule.
        gain_s: Seconds per step it could save at most [s].
        text: What to do, in the imperative.
        evidence: What was seen.
        grade: How sure the gain is.
        headroom_s: Seconds of a step that it is about: the gain is never above it [s]; None where not stated.
        overlaps: Rules whose gain counts some of the same seconds: their gains do not add up.
        instead_of: Rules that contradict it, or spend the same seconds in another way, and were left out for it.
    """

    rule: str
    gain_s: float
    text: str
    evidence: str
    grade: Grade = Grade.MODELLED
    headroom_s: float | None = None
    overlaps: tuple[str, ...] = ()
    instead_of: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A finding about the data or the run: `code` is stable, `text` is for reading."""

    code: str
    text: str


NOT_RECORDED = Unknown("not recorded", ("mansard run",))
SHARE_KINDS = ("compute", "memory", "network", "host", "latency", "unattributed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The diagnosis of one run.

    Args:
        program: The command line that ran.
        framework: `torch` or `jax`.
        verdict: The main verdict.
        step: Step time.
        time_shares: Share of the step by bound, keys `SHARE_KINDS`, sum 1.
        parts: Forward, backward, optimizer, input, other.
        operators: The operator table, the longest first; times sum to the time in operations.
        flop_per_step: Model matrix FLOP of one step: what is executed again to save memory is not counted.
        full_square_flop_per_step: The same with causal attention counted in full.
        hardware_flop_per_step: Matrix FLOP that one step executed, recomputation included.
        bytes_per_step: Compulsory bytes of one step [B].
        mfu_ratio: flop_per_step over step time times the matrix ceiling of the dominant type.
        hfu_ratio: The same of hardware_flop_per_step.
        advice: Ranked, the largest gain first.
        ceilings: The ceilings that a roofline of this run shows.
        receipt: Peak rows, conventions, assumptions, machine, versions.
        findings: What a reader should know.
        attributed_ratio: Share of operator time whose demand is known.
    """

    program: str
    framework: str
    verdict: Verdict
    step: StepTime
    time_shares: Mapping[str, float]
    parts: tuple[PartTime, ...]
    operators: tuple[OperatorRow, ...]
    flop_per_step: float | Unknown
    full_square_flop_per_step: float | Unknown
    bytes_per_step: float | Unknown
    mfu_ratio: float | Unknown | Implausible
    advice: tuple[Advice, ...]
    ceilings: tuple[Ceiling, ...]
    receipt: Mapping[str, Any] = field(default_factory=dict)
    findings: tuple[Note, ...] = ()
    attributed_ratio: float = 0.0
    hardware_flop_per_step: float | Unknown = NOT_RECORDED
    hfu_ratio: float | Unknown | Implausible = NOT_RECORDED

    @property
    def recomputes(self) -> bool:
        """Whether something was executed again to save memory."""
        return any(row.recompute for row in self.operators)
