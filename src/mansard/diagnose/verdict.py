"""The main verdict of a run: the bound with the largest share of the step, and why one may believe it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mansard.core import (
    BOUND_SHARE,
    Area,
    Bound,
    Ceiling,
    Grade,
    Implausible,
    Term,
    Unknown,
    is_known,
    share_of,
    worst_grade,
)
from mansard.core.bound import LOW_CEILING
from mansard.core.units import format_bytes_per_s, format_flop_per_s, format_ratio, format_s
from mansard.diagnose.areas import (
    WAITING,
    areas_of,
    copy_seconds,
    host_headroom,
    left_over,
    link_of,
    needs_of,
    share_and_least,
    shares_by_category,
)
from mansard.diagnose.host_copies import copy_evidence
from mansard.diagnose.judge_operators import JudgedOperator
from mansard.diagnose.links import place_of
from mansard.diagnose.records import A_BOUND_SHARE, Verdict
from mansard.diagnose.rules import Case
from mansard.diagnose.rules.idle_machine import HEAVY
from mansard.diagnose.undecided import (
    LEAST_TOLD,
    evidence_of,
    first_of,
    parts_in_words,
    short,
    stretched_s,
    time_in_words,
    undecided_of,
)

_WILL_NOT_HELP = {
    Bound.COMPUTE: ("tuning memory access or fewer bytes", "faster memory", "a faster input pipeline"),
    Bound.MEMORY: ("more FLOP/s or tensor units", "a faster matrix library", "more devices with the same work on each"),
    Bound.NETWORK: ("another kernel for the computation", "faster memory", "more FLOP/s"),
    Bound.HOST: ("more devices",),
    Bound.LATENCY: ("more FLOP/s", "more memory bandwidth"),
    Bound.UNDETERMINED: (),
}
#: Another kind within this of the largest share is named as counter-evidence.
CLOSE = 0.10
_CAUSES = {"input": "waiting for input data", "python": "Python between operations", "sync": "waiting in synchronisation",
           "compile": "compiling", "call": "long calls of the runtime (first use, allocation, loading)", "copy": "copies between host and device"}  # fmt: skip

#: From this share of a time on, a ceiling or a reason is that of all of it.
ALL_OF_IT = 0.99

#: What runs on the host between two launches is not in every profile.
_BETWEEN = "the host between launches (Python, or other code)"


def main_verdict(case: Case) -> Verdict:
    """Return the verdict on the step as a whole."""
    shares = case.account.shares
    top = max(shares, key=lambda kind: shares[kind])
    bound = Bound.UNDETERMINED if top == "unattributed" else Bound(top)
    rows = sorted(case.of_bound(bound), key=lambda j: -j.total_s)
    account = case.account
    if bound is Bound.UNDETERMINED and account.unrecorded_s > 0.5 * account.by_kind["unattributed"]:
        verdict = _unrecorded(case, shares[top])
    elif bound in (Bound.HOST, Bound.LATENCY):
        verdict = _between_operations(case, bound, rows, shares[top])
    elif bound is Bound.NETWORK:
        verdict = _communication(case, rows, shares[top])
    else:
        verdict = _in_operations(case, bound, rows, shares[top])
    areas = areas_of(case)
    mine = next((a for a in areas if a.area == top), None)
    return replace(
        verdict, time_s=account.by_kind[top], areas=areas, shares_by_kind=mine.shares_by_kind if mine else {},
        sentence=_fairly(case, verdict.sentence),
    )  # fmt: skip


def _fairly(case: Case, sentence: str) -> str:
    """Return the sentence behind what makes it doubtful: a machine that others used is said before any bound."""
    load = case.facts.foreign_load_ratio
    if load is None or load < HEAVY:
        return sentence
    return f"Not a fair run: other programs used {format_ratio(load)} of the processors. {sentence}"


def _counter(case: Case, bound: Bound) -> tuple[str, ...]:
    shares = case.account.shares
    mine = shares["unattributed" if bound is Bound.UNDETERMINED else bound.value]
    others = sorted(((s, k) for k, s in shares.items() if k != bound.value and s > 0.05 and s < mine), reverse=True)
    close = [f"{k} has {format_ratio(s)}, close to it" for s, k in others if mine - s < CLOSE]
    rest = [f"{k} has {format_ratio(s)}" for s, k in others if mine - s >= CLOSE]
    return (*close, *rest)


def _unrecorded(case: Case, share_of_step: float) -> Verdict:
    """Return the verdict where steps took much longer with the profiler off than while they were recorded."""
    recorded_s = case.account.step_s - case.account.unrecorded_s
    unknown = Unknown("the steps that were recorded were not like the ones timed", ("a run on an idle machine",))
    return Verdict(
        bound=Bound.UNDETERMINED, limiting_ceiling="", level=None, link=None, share_of_ceiling=unknown,
        headroom_s=unknown, time_share=share_of_step, grade=Grade.ASSUMED,
        counter_evidence=_counter(case, Bound.UNDETERMINED),
        sentence=f"Undetermined: steps timed with the profiler off took {format_s(case.account.step_s)}, recorded ones "
        f"{format_s(recorded_s)}; what made the difference is not in the record. Run it again on an idle machine.",
    )  # fmt: skip


def _why_above(share: float, area: Area) -> str:
    """Say what most likely lets operations run above a ceiling: arithmetic gains nothing from a cache."""
    if area is Area.COMPUTE:
        return (
            "The clock was above the one the peak is stated for"
            if share <= LOW_CEILING
            else "More FLOP are counted than ran"
        )
    return "Their data came from a nearer cache" if area is Area.MEMORY else "Fewer bytes crossed it than are counted"


def _in_operations(case: Case, bound: Bound, rows: Sequence[JudgedOperator], share_of_step: float) -> Verdict:
    counter = _counter(case, bound)
    judged = [r for r in rows if r.judgement.limiting is not None]
    if not judged or (
        bound is Bound.UNDETERMINED and sum(j.total_s for j in judged) < 0.5 * sum(r.total_s for r in rows)
    ):
        return _nothing_known(case, rows, share_of_step)
    rows = judged
    limiting = _most_of(rows)
    ceiling = limiting.ceiling
    least = sum(r.least.time_s * r.calls for r in rows if isinstance(r.least.time_s, float))
    observed = sum(r.total_s for r in rows)
    share = share_of(least, observed, uncertainty_ratio=ceiling.uncertainty_ratio)
    headroom = max(0.0, observed - least) / case.windows.count
    rate = format_flop_per_s(ceiling.value) if limiting.area is Area.COMPUTE else format_bytes_per_s(ceiling.value)
    label = f"{ceiling.resource.label}, {rate}, {ceiling.kind.value}"
    mixed = _on_it(rows, ceiling) < ALL_OF_IT * observed
    that = "their own ceilings" if mixed else "that ceiling"
    reached = f"at {share:.2f} of {that}" if is_known(share) else f"above {that}, which cannot be"
    if bound is Bound.UNDETERMINED and isinstance(share, Implausible):
        sentence = (
            f"Undetermined: {format_ratio(share_of_step)} of a step is in operations that run at {share.value:.2f} of a ceiling, "
            f"first {short(rows[0].operator.name)}: {label}. {_why_above(share.value, limiting.area)}, or an input is wrong."
        )
    elif bound is Bound.UNDETERMINED:
        sentence = _far_below(
            case, share, label, f"{format_s(_on_it(rows, ceiling) / case.windows.count)} of it " if mixed else ""
        )
    elif bound is Bound.MEMORY and is_known(share) and share < BOUND_SHARE and case.memory.fresh_is_faulted:
        sentence = (
            f"Memory-bound: {format_ratio(share_of_step)} of a step goes into operations whose results need new memory from "
            f"the kernel (page faults); they run {reached}: {label}."
        )
    else:
        sentence = f"{bound.value.capitalize()}-bound: {format_ratio(share_of_step)} of a step is limited by {label}, and runs {reached}."
    names = ", ".join(dict.fromkeys(r.operator.name for r in rows[:3]))
    kinds = (
        f"{time_in_words(case, rows, share_of_step)} is in {len(rows)} kinds of operation with this bound, "
        f"first {names} [measured]",
    )
    evidence = (
        *(evidence_of(case, undecided_of(case)) if bound is Bound.UNDETERMINED else kinds),
        f"{rows[0].operator.name}: {rows[0].judgement.reason} [{rows[0].judgement.grade.value}]",
    )
    return Verdict(
        bound=bound,
        limiting_ceiling=ceiling.resource.label,
        level=ceiling.resource.level,
        link=ceiling.resource.link,
        share_of_ceiling=share,
        headroom_s=headroom,
        time_share=share_of_step,
        grade=worst_grade(r.judgement.grade for r in rows[:5]),
        sentence=sentence,
        evidence=evidence,
        counter_evidence=counter,
        will_not_help=_WILL_NOT_HELP[bound],
    )


def _most_of(rows: Sequence[JudgedOperator]) -> Term:
    """Return the term whose ceiling limits most of the time of `rows`, all of which were judged."""
    terms = [r.judgement.limiting for r in rows if r.judgement.limiting is not None]
    seconds: dict[tuple[str, float], float] = {}
    for row, term in zip(rows, terms, strict=True):
        key = (term.ceiling.resource.label, term.ceiling.value)
        seconds[key] = seconds.get(key, 0.0) + row.total_s
    most = max(seconds, key=lambda key: seconds[key])
    return next(t for t in terms if (t.ceiling.resource.label, t.ceiling.value) == most)


def _on_it(rows: Sequence[JudgedOperator], ceiling: Ceiling) -> float:
    """Return the time of those rows that were judged against this ceiling [s]."""
    want = (ceiling.resource.label, ceiling.value)
    limits = [(r.total_s, r.judgement.limiting) for r in rows]
    return sum(s for s, t in limits if t is not None and (t.ceiling.resource.label, t.ceiling.value) == want)


def _far_below(case: Case, share: float | Unknown | Implausible, label: str, some: str) -> str:
    """Return the sentence on operations whose known need explains little of their time."""
    found = undecided_of(case)
    rows = found.far_below
    reached = f"at {format_ratio(share)} of them together" if is_known(share) else "above them, which cannot be"
    more = []
    not_known = stretched_s(case, found.unknown) / case.account.step_s
    if not_known >= LEAST_TOLD:
        more.append(f"of {format_ratio(not_known)} the limit is not known ({first_of(found.unknown)})")
    if found.idle_s >= LEAST_TOLD * case.account.step_s:
        more.append(f"in {format_ratio(found.idle_s / case.account.step_s)} nothing runs and nothing tells why")
    rest = f" Besides, {', and '.join(more)}." if more else ""
    kinds = "1 kind of operation runs" if len(rows) == 1 else f"{len(rows)} kinds of operation run"
    return (
        f"Undetermined: {kinds} far below their ceilings for "
        f"{time_in_words(case, rows, stretched_s(case, rows) / case.account.step_s)}, {first_of(rows)}; {reached}, {some}judged against {label}.{rest}"
    )


def _nothing_known(case: Case, rows: Sequence[JudgedOperator], share_of_step: float) -> Verdict:
    """Return the verdict where most of the step is time whose limit nothing tells; what names suggest is called a heuristic."""
    total = sum(r.total_s for r in rows)
    idle = case.account.by_kind["unattributed"] - total / case.windows.count
    needs = needs_of(case)
    counter = _counter(case, Bound.UNDETERMINED)
    if idle > total / case.windows.count:
        reason, need = _why_idle(case, idle)
        needs = (need, *needs)
    else:
        first = max(rows, key=lambda r: r.total_s)
        reason = _why_not_known(first)
        kinds = [f"{k} {format_ratio(v)}" for k, v in shares_by_category(rows).items() if v >= 0.05]
        counter = (*counter, f"heuristic, by kernel names alone: {', '.join(kinds[:5])} [assumed]")
    unknown = Unknown(reason, needs)
    supply = f" Supply {needs[0]}." if needs else ""
    if idle > total / case.windows.count:
        sentence = f"Undetermined: {format_ratio(share_of_step)} of a step is idle: {reason}.{supply}"
    else:
        sentence = _limits_not_known(case, share_of_step, reason) + supply
    return Verdict(
        bound=Bound.UNDETERMINED, limiting_ceiling="", level=None, link=None, share_of_ceiling=unknown, headroom_s=unknown,
        time_share=share_of_step, grade=Grade.ASSUMED, counter_evidence=counter, needs=needs,
        evidence=evidence_of(case, undecided_of(case)), sentence=sentence,
    )  # fmt: skip


def _why_not_known(row: JudgedOperator) -> str:
    return row.least.time_s.reason if isinstance(row.least.time_s, Unknown) else row.judgement.reason


def _limits_not_known(case: Case, share_of_step: float, reason: str) -> str:
    """Return the sentence on a step most of whose undecided time has no known need; what is known far below comes apart."""
    found = undecided_of(case)
    rows = found.unknown
    if not rows:
        return f"Undetermined: {format_ratio(share_of_step)} of a step is in operations whose limit is not known: {reason}."
    same = sum(r.total_s for r in rows if _why_not_known(r) == reason)
    mostly = "" if same >= ALL_OF_IT * sum(r.total_s for r in rows) else "mostly "
    others_in_it = parts_in_words(case, found)
    not_known = f"is not known ({first_of(rows)}): {mostly}{reason}."
    shares = case.account.shares
    others = [
        f"{kind} ({format_ratio(s)})" for s, kind in sorted(((s, k) for k, s in shares.items()), reverse=True)
        if kind != "unattributed" and s >= A_BOUND_SHARE
    ]  # fmt: skip
    beside = f", ahead of {' and '.join(others)}" if others else ""
    if not others_in_it:
        return f"Undetermined: the limit of {format_ratio(share_of_step)} of a step{beside}{',' if beside else ''} {not_known}"
    of_it = format_ratio(stretched_s(case, rows) / case.account.step_s)
    return f"Undetermined: {format_ratio(share_of_step)} of a step is open{beside}: {'; '.join(others_in_it)}; the limit of {of_it} {not_known}"


def _why_idle(case: Case, idle_s: float) -> tuple[str, str]:
    """Return what is known of idle time without a cause, and what would tell more."""
    blocked = case.facts.blocked_s or 0.0
    if blocked > 0.5 * idle_s:
        text = (
            f"nothing runs although the next work had been queued before ({format_s(blocked)}): the device waited for "
            "something that is not in the file, such as another stream, a peer or a copy of another process"
        )
        return text, "the profiles of the other ranks, or one that records the waits of streams"
    if case.facts.host_unseen:
        text = (
            f"the file holds {len(case.trace.op)} piece{'s' if len(case.trace.op) != 1 else ''} of device work, and next to nothing "
            "of what the host did meanwhile: whether the host was late, or events are missing, it does not tell"
        )
        return (
            text,
            "a whole profile of some steps, with operators and Python functions of the host (with_stack=True, or nsys --trace=osrt)",
        )
    return "nothing runs, and nothing recorded tells why", "a profile with runtime calls and operators of the host"


def _communication(case: Case, rows: Sequence[JudgedOperator], share_of_step: float) -> Verdict:
    """Return the verdict where communication that no computation hides has most of the step.

    Its seconds are measured whatever is known of its bytes. The headroom is what the link at its ceiling would save; hiding the
    communication would save all of its seconds.
    """
    seconds = case.account.by_kind["network"]
    share, _ = share_and_least(rows)
    link = link_of(rows)
    known = not link.startswith("not known")
    limiting = next((r.judgement.limiting for r in rows if r.judgement.limiting is not None), None)
    place = next((p for r in rows if (p := place_of(r.operator.link))), "")
    where = f"{link}, {place}" if known and place else link
    over = f" over {where}" if known else ""
    if is_known(share) and limiting is not None:
        rate = format_bytes_per_s(limiting.ceiling.value)
        reached = f"; it reaches {share:.2f} of that link ({rate}, {limiting.ceiling.kind.value})"
    else:
        why = share.reason if isinstance(share, Unknown) else "it is faster than the link allows, which cannot be"
        reached = f"; its share of the link is not known: {why}"
    names = ", ".join(dict.fromkeys(r.operator.name for r in rows[:3]))
    evidence = [
        f"{format_s(seconds)} of a step run {names} and nothing else: what hiding all of it would save [measured]",
        f"link: {where} [{'declared' if known else 'assumed'}]",
    ]
    if limiting is not None:
        evidence.append(f"{rows[0].operator.name}: {rows[0].judgement.reason} [{rows[0].judgement.grade.value}]")
    return Verdict(
        bound=Bound.NETWORK,
        limiting_ceiling=limiting.ceiling.resource.label if limiting is not None else "",
        level=None,
        link=link if known else None,
        share_of_ceiling=share,
        headroom_s=left_over(seconds, share, whole_s=case.per_step_s(rows)),
        time_share=share_of_step,
        grade=Grade.MEASURED,
        sentence=f"Network-bound: {format_ratio(share_of_step)} of a step is communication{over} that nothing hides{reached}.",
        evidence=tuple(evidence),
        counter_evidence=(*_counter(case, Bound.NETWORK), "communication kernels also wait for the slowest rank"),
        will_not_help=_WILL_NOT_HELP[Bound.NETWORK],
    )


def _beyond_work(case: Case) -> tuple[str, ...]:
    """Return what will not help a step that waits for its host: a better kernel saves no more than kernels take."""
    most = format_s(min(case.per_step_s(case.judged), case.account.step_s))
    return (
        f"a faster device or a better kernel, beyond the {most} of a step in which operations run",
        *_WILL_NOT_HELP[Bound.HOST],
    )


def _launch_calls_s(case: Case) -> float:
    """Return the time of a step in which a device waits while the host is inside a launch call [s]; 0 where not known."""
    if case.facts.gaps is None:
        return 0.0
    latency = case.account.by_kind["latency"] - case.per_step_s(case.of_bound(Bound.LATENCY))
    return max(0.0, latency - case.facts.gaps.queued_s)


def _between_launches(case: Case, share_of_step: float, label: str) -> str:
    """Return what a device does that waits for the host between launches, with all of its time in one account."""
    step, busy, calls = case.account.step_s, case.per_step_s(case.judged), _launch_calls_s(case)
    inside = (
        f", and {format_s(calls)} ({format_ratio(calls / step)}) inside launch calls"
        if calls > LEAST_TOLD * step
        else ""
    )
    return (
        f"the device works for {format_s(busy)} of {format_s(step)} ({format_ratio(busy / step)}); it waits "
        f"{format_s(share_of_step * step)} ({format_ratio(share_of_step)}) for {label}{inside}"
    )


def _between_operations(case: Case, bound: Bound, rows: Sequence[JudgedOperator], share_of_step: float) -> Verdict:
    seconds = case.account.by_kind[bound.value]
    bounded = [j for j in case.judged if j.least.terms and j.least.no_peak is None]
    least = sum(j.least.terms[0].time_s * j.calls for j in bounded) / case.windows.count
    # Without the demand of most operations their least time is no share of anything.
    all_known = sum(j.total_s for j in bounded) >= 0.5 * sum(j.total_s for j in case.judged)
    cost = case.ceilings.fixed_cost(case.trace.framework)
    calls = sum(r.calls for r in rows) / case.windows.count
    profile, by_launches = case.trace.framework == "profile", False
    if bound is Bound.LATENCY:
        label = "launch cost" if profile else f"{case.trace.framework} fixed cost"
        programs = case.programs()
        inside = sum(r.total_s for r in rows if programs[r.index]) > 0.5 * sum(r.total_s for r in rows)
        if inside:  # what starts them is the executor of the compiled program, not a call from Python
            each = f" inside compiled programs ({calls:.0f} a step, {format_s(seconds / calls)} each)" if calls else ""
        else:
            each = f" ({format_s(cost.value)} each, {cost.kind.value})" if not isinstance(cost, Unknown) else ""
        sentence = f"Latency-bound: {format_ratio(share_of_step)} of a step is the cost of starting operations{each}."
        evidence = [f"{calls:.0f} operations a step are dominated by the cost of calling them [modelled]"]
        if profile:
            total = sum(j.calls for j in case.judged) / case.windows.count
            evidence = [
                f"{format_s(seconds)} of a step the device waits for work that is being launched, for {total:.0f} operations [measured]"
            ]
        if rows:
            evidence.append(f"{rows[0].operator.name}: {rows[0].judgement.reason} [{rows[0].judgement.grade.value}]")
    else:
        times = dict(case.account.host)
        times["copy"] = copy_seconds(case)
        causes = sorted(((t, c) for c, t in times.items() if t > 1e-9 * seconds), reverse=True)
        words = {**_CAUSES, "python": _BETWEEN} if case.trace.framework == "profile" else _CAUSES
        label = words[causes[0][1]] if causes else "host"
        doing = f"for {format_ratio(share_of_step)} of a step nothing runs; mostly {label}"
        by_launches = profile and bool(causes) and causes[0][1] == "python" and causes[0][0] >= ALL_OF_IT * seconds
        if by_launches:
            doing = _between_launches(case, share_of_step, label)
        if causes and causes[0][1] == "copy":
            doing = f"{format_ratio(share_of_step)} of a step is {label} that nothing hides"
        sentence = f"Host-bound: {doing}."
        evidence = [f"{words[c]}: {format_s(t)} a step [measured]" for t, c in causes]
    counter = _counter(case, bound)
    if by_launches:
        evidence.append(
            f"launch calls in which the device waits: {format_s(_launch_calls_s(case))} a step, counted as latency [measured]"
        )
        counter = tuple(f"{c}; launching less shortens both" if c.startswith("latency") else c for c in counter)
    headroom: float | Unknown = seconds
    share: float | Unknown | Implausible = WAITING
    if bound is Bound.LATENCY and all_known:
        share = share_of(least, case.account.step_s)
    if bound is Bound.HOST and rows:
        copying = copy_seconds(case)
        headroom = host_headroom(case, share_and_least(rows)[0], case.per_step_s(rows))
        if copying > 0.1 * seconds:
            evidence += copy_evidence(case)
        if copying > 0.5 * seconds:
            share = share_and_least(rows)[0]
            limiting = rows[0].judgement.limiting
            label = limiting.ceiling.resource.label if limiting is not None else label
    return Verdict(
        bound=bound,
        limiting_ceiling=label,
        level=None,
        link=None,
        share_of_ceiling=share,
        headroom_s=headroom,
        time_share=share_of_step,
        grade=Grade.MEASURED if bound is Bound.HOST else Grade.MODELLED,
        sentence=sentence,
        evidence=tuple(evidence),
        counter_evidence=counter,
        will_not_help=_beyond_work(case) if bound is Bound.HOST else _WILL_NOT_HELP[bound],
    )
