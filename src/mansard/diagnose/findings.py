"""What a reader of a diagnosis should know: one function for each kind of doubt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mansard.core import Area, Bound, Ceilings, Implausible, is_known
from mansard.core.bound import LOW_CEILING
from mansard.core.units import format_ratio, format_s
from mansard.diagnose.account import Windows
from mansard.diagnose.facts import foreign_load_of
from mansard.diagnose.judge_operators import JudgedOperator
from mansard.diagnose.partial import is_counted
from mansard.diagnose.records import Note, StepTime
from mansard.trace.run import RunTrace

#: Other programs' share of the processors above which a run's shares are said to be lower bounds.
FOREIGN_LOAD = 0.08
#: A profiled step may differ this much from the unprofiled one before its overhead is a finding.
LARGE_OVERHEAD = 0.5
#: Unknown demand of less than this share of operator time is not worth a finding.
_LEAST_UNKNOWN = 0.005


def findings_of(
    trace: RunTrace,
    step: StepTime,
    judged: Sequence[JudgedOperator],
    windows: Windows,
    drift: Mapping[str, Any] | None,
    ceilings: Ceilings,
) -> tuple[Note, ...]:
    """Return the findings of a run, those of its recording first.

    Args:
        trace: What the run did.
        step: Its step time.
        judged: Verdict of each kind of operation.
        windows: Its steady steps.
        drift: Ceilings probed before and after the program.
        ceilings: The machine.
    """
    recorded = tuple(Note(code=f.code, text=f.text) for f in trace.findings)
    under = max((float(x) for x in (ceilings.machine.get("foreign_load") or {}).values()), default=0.0)
    return (
        *recorded,
        *_steps(recorded, step, windows),
        *_load(under, foreign_load_of(drift)),
        *_above(judged, under),
        *_not_counted(judged),
        *_overhead(trace, step, windows),
    )


def _steps(recorded: Sequence[Note], step: StepTime, windows: Windows) -> list[Note]:
    """Return what is to be said of the steps: none repeats, or the profiler made them much longer."""
    notes = []
    if not windows.repeated and all(n.code != "no_steps" for n in recorded):
        notes.append(Note(code="no_steps", text="no repeated step was found; the figures describe everything recorded"))
    if step.profiler_overhead_ratio is not None and step.profiler_overhead_ratio > LARGE_OVERHEAD:
        text = (
            f"the profiler made a step {format_ratio(step.profiler_overhead_ratio)} longer "
            f"({format_s(step.profiled_median_s)} against {format_s(step.median_s)}); its part was taken out"
        )
        notes.append(Note(code="profiler_overhead", text=text))
    return notes


def _load(under: float, around: float | None) -> list[Note]:
    """Return what other programs make doubtful.

    Args:
        under: Their share of the processors while the ceilings were measured, at most.
        around: The same around the run; None where no probe tells.
    """
    notes = []
    if under > FOREIGN_LOAD:
        text = (
            f"the ceilings were measured while other programs used up to {format_ratio(under)} of the processors: "
            "they may be too low and the shares too high; run mansard measure on an idle machine"
        )
        notes.append(Note(code="ceilings_under_load", text=text))
    if around is not None and around > FOREIGN_LOAD:
        both = "; with ceilings measured under load too, how far off the shares are, and to which side, is not known"
        text = (
            f"other programs used {format_ratio(around)} of the processors around this run: its times are upper "
            f"bounds and its shares lower bounds{both if under > FOREIGN_LOAD else ''}"
        )
        notes.append(Note(code="foreign_load", text=text))
    return notes


def _above(judged: Sequence[JudgedOperator], under: float) -> list[Note]:
    """Return the finding on operations that ran above their ceiling, with what may be wrong."""
    above = [(share, row) for row in judged if isinstance(share := row.judgement.share_of_ceiling, Implausible)]
    if not above:
        return []
    share, row = max(above, key=lambda pair: pair[1].total_s)
    many = f"{len(above)} kinds of operation ran above their ceiling, first " if len(above) > 1 else ""
    loaded = f"ceilings measured while other programs used {format_ratio(under)} of the processors (measure again)"
    suspects = ((loaded,) if under > FOREIGN_LOAD else ()) + _suspects(row, share)
    text = (
        f"{many}{row.operator.name} {row.operator.shapes}{', ' if many else ' ran '}at {share.value:.2f} of its "
        f"ceiling; first suspects: {'; '.join(suspects[:3])}"
    )
    return [Note(code="implausible_operator", text=text)]


def _suspects(row: JudgedOperator, share: Implausible) -> tuple[str, ...]:
    """Return what may be wrong, the likeliest first: a little above a compute peak it is the clock, and never a cache."""
    limiting = row.judgement.limiting
    if limiting is None or limiting.area is not Area.COMPUTE:
        return share.suspects
    own = tuple(s for s in share.suspects if "cache" not in s)
    clock = "clock" if share.value <= LOW_CEILING else ""
    return tuple(sorted(own, key=lambda s: not (clock and clock in s)))


def _not_counted(judged: Sequence[JudgedOperator]) -> list[Note]:
    """Return the finding on operations whose demand is not known."""
    unknown = [j for j in judged if not is_counted(j.operator.demand) and j.judgement.bound is Bound.UNDETERMINED]
    total, missing = sum(j.total_s for j in judged), sum(j.total_s for j in unknown)
    if not unknown or total <= 0 or missing / total <= _LEAST_UNKNOWN:
        return []
    names = ", ".join(dict.fromkeys(j.operator.name for j in sorted(unknown, key=lambda j: -j.total_s)[:3]))
    text = f"the demand of {format_ratio(missing / total)} of operator time is not known: {names}"
    return [Note(code="unknown_demand", text=text)]


def _overhead(trace: RunTrace, step: StepTime, windows: Windows) -> list[Note]:
    """Return the finding on a run that ended before the profiler's own cost could be seen."""
    if is_known(step.profiler_overhead_ratio) or not windows.repeated or trace.framework == "profile":
        return []
    text = "the run ended before a step could be timed with the profiler off; its cost was calibrated per operation"
    return [Note(code="overhead_not_measured", text=text)]
