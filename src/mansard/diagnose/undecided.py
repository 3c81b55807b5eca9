"""What no bound was found for, told apart: the need is not known, the need explains little of the time, or nothing runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mansard.core import Bound, Implausible, Unknown
from mansard.core.units import format_ratio, format_s
from mansard.diagnose.case import Case
from mansard.diagnose.judge_operators import JudgedOperator

#: Parts below this share of a step are not worth a clause.
LEAST_TOLD = 0.005
#: Steps timed with the profiler off that are longer than the recorded ones by no more than this are not told apart.
_SAME = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Undecided:
    """Unattributed time of a step by why it is so.

    Args:
        unknown: Kinds of operation whose need, or whose ceiling, is not known; the longest first.
        far_below: Kinds whose need is known and explains little of their time.
        above: Kinds that ran above a ceiling, which cannot be.
        idle_s: Time without a cause in which no operation runs [s per step].
    """

    unknown: tuple[JudgedOperator, ...]
    far_below: tuple[JudgedOperator, ...]
    above: tuple[JudgedOperator, ...]
    idle_s: float


def undecided_of(case: Case) -> Undecided:
    """Return the unattributed time of a step by why it is so."""
    rows = sorted(case.of_bound(Bound.UNDETERMINED), key=lambda j: -j.total_s)
    above = tuple(j for j in rows if isinstance(j.judgement.share_of_ceiling, Implausible))
    below = [j for j in rows if not isinstance(j.judgement.share_of_ceiling, Implausible)]
    unknown = tuple(j for j in below if not _is_known(j))
    idle = case.account.by_kind["unattributed"] - case.account.unrecorded_s - stretched_s(case, rows)
    return Undecided(
        unknown=unknown,
        far_below=tuple(j for j in below if _is_known(j)),
        above=above,
        idle_s=max(0.0, idle),
    )


def _is_known(row: JudgedOperator) -> bool:
    return row.judgement.limiting is not None and not isinstance(row.least.time_s, Unknown)


def stretched_s(case: Case, rows: Sequence[JudgedOperator]) -> float:
    """Return the time of `rows` in one step of the account [s].

    Operations are timed in recorded steps. Where steps with the profiler off were longer, the account stretches all parts alike, and
    where all parts together are longer than a step, it shrinks them.
    """
    steps = case.account.step_s - case.account.unrecorded_s
    scale = max(1.0, steps / case.windows.typical_s)
    whole = case.per_step_s(case.of_bound(Bound.UNDETERMINED))
    most = max(0.0, case.account.by_kind["unattributed"] - case.account.unrecorded_s)
    return case.per_step_s(rows) * (min(scale, most / whole) if whole > 0 else scale)


def time_in_words(case: Case, rows: Sequence[JudgedOperator], share_of_step: float) -> str:
    """Return what rows have of a step: `4.60 s of the 4.66 s recorded a step (99 %)`, or the share alone where seconds are fitted.

    Args:
        case: The case.
        rows: Kinds of operation.
        share_of_step: Their share in the account.
    """
    seconds = case.per_step_s(rows)
    recorded, step = case.windows.typical_s, case.account.step_s
    whole = recorded if step > (1.0 + _SAME) * recorded else step
    if abs(seconds / whole - share_of_step) > _SAME * share_of_step:
        return f"{format_ratio(share_of_step)} of a step"
    return f"{format_s(seconds)} of {of_recorded(case)} a step ({format_ratio(share_of_step)})"


def of_recorded(case: Case) -> str:
    """Return the step that times of operations are a part of: `5.26 s`, or `4.66 s recorded` where the two differ."""
    recorded, step = case.windows.typical_s, case.account.step_s
    return f"the {format_s(recorded)} recorded" if step > (1.0 + _SAME) * recorded else format_s(step)


def first_of(rows: Sequence[JudgedOperator]) -> str:
    """Return the name of the longest of some kinds of operation, as a clause."""
    return f"first {short(rows[0].operator.name)}"


def short(name: str, limit: int = 36) -> str:
    """Return a name for a sentence; of a longer one both ends.

    >>> short("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_cublas")
    'sm90_xmma_gemm_bf16bf16...n_n_cublas'
    """
    return name if len(name) <= limit else f"{name[: limit - 13]}...{name[-10:]}"


def parts_in_words(case: Case, found: Undecided) -> list[str]:
    """Return a clause for each part that is worth one, apart from what is not known: `5.6 % runs far below every ceiling (...)`."""
    step = case.account.step_s
    parts = []
    for rows, doing in ((found.far_below, "runs far below its ceilings"), (found.above, "runs above a ceiling")):
        share = stretched_s(case, rows) / step
        if share >= LEAST_TOLD:
            parts.append(f"{format_ratio(share)} {doing} ({first_of(rows)})")
    if found.idle_s >= LEAST_TOLD * step:
        parts.append(f"in {format_ratio(found.idle_s / step)} nothing runs and nothing tells why")
    return parts


def evidence_of(case: Case, found: Undecided) -> tuple[str, ...]:
    """Return a line of evidence for each part of the unattributed time, with how sure it is."""
    step = case.account.step_s
    lines = []
    for rows, doing, grade in (
        (found.unknown, "whose limit is not known", "measured"),
        (found.far_below, "far below their ceilings", "modelled"),
        (found.above, "above a ceiling", "modelled"),
    ):
        if rows and stretched_s(case, rows) >= LEAST_TOLD * step:
            kinds = "1 kind" if len(rows) == 1 else f"{len(rows)} kinds"
            lines.append(
                f"{time_in_words(case, rows, stretched_s(case, rows) / step)} in {kinds} of operation {doing}, {first_of(rows)} [{grade}]"
            )
    if found.idle_s >= LEAST_TOLD * step:
        lines.append(f"{format_s(found.idle_s)} a step in which nothing runs, without a recorded cause [measured]")
    decided = sum(s for kind, s in case.account.shares.items() if kind != "unattributed")
    if decided >= LEAST_TOLD:
        lines.append(f"the other {format_ratio(decided)} of the step is decided, each operation by its own evidence")
    return tuple(lines)
