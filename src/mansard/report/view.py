"""What the page's template shows: every figure as text, every foreign text cleaned and cut."""

from __future__ import annotations

from typing import Any

from mansard.core import Bound, Ceiling, Grade, is_known
from mansard.core.units import format_flop, format_ratio, format_s
from mansard.diagnose.lower_limits import WHOLE_RATIO
from mansard.diagnose.records import SHARE_KINDS, Diagnosis
from mansard.report import chart
from mansard.report.text import (
    ceiling_value,
    clean,
    figure,
    percent_shares,
    reasons,
    receipt_rows,
    share_kinds,
    shorten,
    work_of_step,
)
from mansard.report.title import AGAIN, of_run

_LINE_LENGTH, _NAME_LENGTH = 240, 28
#: Kinds of time and of bound that have a colour of their own.
COLOURS = frozenset((*SHARE_KINDS, "undetermined"))

#: Operators that are printed; the style sheet hides the rest.
ON_PAPER = 40
#: A step that is longer than the recorded ones by this ratio is not theirs.
SAME_STEP = 1.02
#: Findings that make every figure of a run less sure; they stand beside the verdict.
_DOUBTS = frozenset({"foreign_load", "ceilings_under_load", "ceilings_of_another_machine", "no_steps", "memory_regime"})

#: The words of the page, each in one sentence.
GLOSSARY = (
    (
        "bound",
        "What a step would have to be given more of to become faster: compute, memory, network, host, or less fixed cost (latency).",
    ),
    (
        "ceiling",
        "The best rate that a machine can reach for one kind of work, such as f32 matrix FLOP/s or bytes/s of DRAM.",
    ),
    (
        "share of ceiling",
        "Least time at the ceiling over the time that was observed. 100 % cannot be beaten without doing other work.",
    ),
    (
        "headroom",
        "Observed time minus the least time at that ceiling: the most that a better implementation of the same work could save.",
    ),
    ("measured", "Found by running it on the machine, or recorded while the program ran."),
    ("derived", "Computed from units x width x clock of the hardware."),
    ("declared", "Stated by the vendor or the user, not checked here."),
    ("modelled", "Follows from a model of what an operation must do, together with measured ceilings."),
    ("assumed", "A heuristic, such as what a kernel's name suggests. Not evidence."),
    (
        "MFU",
        "Model FLOP utilisation: matrix FLOP that the model needs over (step time x matrix ceiling). Recomputation does not count.",
    ),
    ("HFU", "As MFU, with the FLOP that are executed again by recomputation."),
    ("FLOP", "Floating-point operations; a multiply-add is 2."),
    (
        "compulsory bytes",
        "Each operand read once and each result written once: the least traffic, not what the caches did.",
    ),
    (
        "arithmetic intensity",
        "FLOP per byte of traffic. Left of the ridge point memory limits an operator, right of it compute does.",
    ),
    ("part", "Forward, backward, optimizer, input: where in a step an operator runs."),
    ("latency", "Fixed cost of each operator call or kernel launch, which does not shrink with the work."),
    ("exposed", "Communication that no computation hides."),
    (
        "unattributed",
        "Time whose limit is not decided: what its operations need is not known, or it is known and explains little of their time "
        "(far below every ceiling), or nothing runs and nothing tells why.",
    ),
)


def _four(value: Any) -> Any:
    """Return a measured condition with four digits; what is no fraction stays as it is.

    >>> _four(0.9194487217081582), _four(8), _four("mm"), _four([64, 0.333333333])
    ('0.9194', 8, 'mm', '64, 0.3333')
    """
    if isinstance(value, float):
        return f"{value:.4g}"
    return ", ".join(str(_four(v)) for v in value) if isinstance(value, list | tuple) else value


class View:
    """What the template shows, as text.

    Args:
        diagnosis: What to show.
        text_length: Most characters of one text.
        items: Most items of one list; the page says how many were left out.
    """

    def __init__(self, diagnosis: Diagnosis, text_length: int, items: int) -> None:
        self.d, self.text_length, self.items = diagnosis, text_length, items

    def _line(self, text: object) -> str:
        return shorten(clean(text), min(_LINE_LENGTH, self.text_length))

    def _prose(self, text: object) -> str:
        return shorten(clean(text), self.text_length)

    def values(self) -> dict[str, Any]:
        """Return everything the template names."""
        meaning = dict(GLOSSARY)
        title, line = of_run(self.d)
        view = {
            "program": self._prose(self.d.program),
            "framework": shorten(clean(self.d.framework), 20),
            "bound": self.d.verdict.bound.value,
            "grade": self.d.verdict.grade.value,
            "grade_of": "" if self._is_open() else "of measured, modelled, declared, assumed",
            "title": self._prose(title.replace(" %", "\u00a0%")),
            "line": self._prose(line),
            "figures": self._figures(),
            "step_note": (
                f"Steps: {self._line(self.d.step.note)} (found by: {self._line(self.d.step.source)}). The cost of "
                f"{format_ratio(self.d.attributed_ratio)} of operator time is known.{self._as_recorded()}"
            ),
            "reasons": [(name, self._prose(text)) for name, text in reasons(self.d)],
            "chart_notes": self._chart_notes(),
            "evidence": self._sentences(self.d.verdict.evidence),
            "counter": self._sentences(self.d.verdict.counter_evidence),
            "needs": [self._line(n) for n in self.d.verdict.needs[: self.items]],
            "first": self._first(),
            "sure": self._sure(meaning),
            "words": GLOSSARY,
            "meaning": meaning,
            "terms": {
                "Share of ceiling": meaning["share of ceiling"],
                "Headroom": meaning["headroom"],
                "MFU": meaning["MFU"],
                "HFU": meaning["HFU"],
                "Work": meaning["FLOP"],
                "Traffic": meaning["compulsory bytes"],
            },
            "useless": self._sentences(self.d.verdict.will_not_help),
            "advice": [
                {
                    "gain": format_s(a.gain_s),
                    "percent": self._of_step(a.gain_s),
                    "text": self._prose(a.text),
                    "evidence": self._prose(a.evidence),
                    "rule": self._line(a.rule),
                }
                for a in self.d.advice[: self.items]
            ],
            "advice_more": self._more(len(self.d.advice)),
            "findings": [
                {"code": self._line(n.code), "text": self._prose(n.text)} for n in self.d.findings[: self.items]
            ],
            "findings_more": self._more(len(self.d.findings)),
            "ceilings": self._ceilings(),
            "ceilings_more": self._more(len(self.d.ceilings), "ceilings.json"),
            "operators_on_paper": f"On paper: {ON_PAPER} of {many} operators, in the order of the page. The page and the document have all."
            if (many := len(self.d.operators)) > ON_PAPER
            else "",
            "ceilings_on_paper": self._ceilings_on_paper(),
            "receipt": [
                (self._line(name), self._prose(text))
                for name, text in receipt_rows(self.d.receipt, limit=2 * self.items)
            ],
        }
        return {**view, **self._shares(), **self._parts()}

    def _as_recorded(self) -> str:
        """Return in which steps operators were timed, where those are shorter than the step that is stated."""
        s = self.d.step
        if s.source == "none" or s.median_s <= SAME_STEP * s.profiled_median_s:
            return ""
        return (
            f" Operators were timed in recorded steps of {format_s(s.profiled_median_s)}; steps with the profiler off took "
            f"{format_s(s.median_s)}, so operators cannot add up to them."
        )

    def _first(self) -> tuple[str, str] | None:
        """Return what to try first, and what it saves at most; None where no rule found anything."""
        if not self.d.advice:
            return None
        best = self.d.advice[0]
        if best.rule == AGAIN:  # what others took is no gain of a change; what else is worth doing comes after it
            after = self.d.advice[1:2]
            then = "".join(
                f" If it is still slow: {self._prose(a.text)} At most {format_s(a.gain_s)}, part of which may be the other programs'."
                for a in after
            )
            taken = f"others took up to {format_s(best.gain_s)} of {format_s(self.d.step.median_s)} per step"
            return f"{self._prose(best.text)}{then}", taken
        return self._prose(best.text), (
            f"saves at most {format_s(best.gain_s)} of {format_s(self.d.step.median_s)} per step ({self._of_step(best.gain_s)})"
        )

    def _sure(self, meaning: dict[str, str]) -> list[str]:
        """Return how sure the verdict is: what its grade means, and the findings that make every figure less sure."""
        grade = self.d.verdict.grade.value
        told = meaning.get(grade, "")
        said = f"{grade}: {told[0].lower()}{told[1:]}" if told else f"{grade}."
        if self._is_open():
            said = self._sure_of_the_rest()
        doubts = [self._prose(n.text).rstrip(".") for n in self.d.findings if n.code in _DOUBTS]
        if self.d.step.count == 1 and self.d.step.source != "none":
            doubts.insert(0, "one step was recorded, so its spread is not known and warm-up may be in it")
        return [said, *(f"{d[0].upper()}{d[1:]}." for d in doubts[:3] if d)]

    def _is_open(self) -> bool:
        """Whether the verdict is that the limit of most of some time is not known, which says nothing of the rest."""
        return self.d.verdict.bound is Bound.UNDETERMINED and self.d.verdict.grade is Grade.ASSUMED

    def _sure_of_the_rest(self) -> str:
        """Return how sure the decided time is, where the verdict itself is that most of the rest is not decided."""
        seconds: dict[str, float] = {}
        for o in self.d.operators:
            if o.bound is not Bound.UNDETERMINED:
                seconds[o.grade.value] = seconds.get(o.grade.value, 0.0) + o.time_s
        kinds = [
            f"{g} for {self._of_step(t)}{'' if i else ' of the step'}"
            for i, (g, t) in enumerate(sorted(seconds.items(), key=lambda x: -x[1]))
            if t >= 0.005 * self.d.step.median_s
        ]
        undecided = format_ratio(self.d.time_shares.get("unattributed", self.d.verdict.time_share))
        names = "; names of kernels alone are no evidence" if self.d.framework == "profile" else ""
        if not kinds:
            return f"nothing decides the limit of {undecided} of the step{names}."
        return f"the evidence is {', '.join(kinds)}; of {undecided} nothing decides the limit{names}."

    def _more(self, count: int, where: str = "the JSON document") -> str:
        return (
            f"{count - self.items} more are in {where}; this page shows at most {self.items}."
            if count > self.items
            else ""
        )

    def _sentences(self, texts: tuple[str, ...]) -> list[str]:
        shown = [self._prose(t) for t in texts[: self.items]]
        return [*shown, *filter(None, [self._more(len(texts))])]

    def _of_step(self, seconds: float) -> str:
        return format_ratio(seconds / self.d.step.median_s) if self.d.step.median_s > 0 else "?"

    def _figures(self) -> list[tuple[str, str, str]]:
        """Return the headline figures as name, value and what belongs to it."""
        s, v = self.d.step, self.d.verdict
        low, high = (format_s(x) for x in s.ci95_s)
        if s.profiler_overhead_ratio is None:
            overhead = f"with the profiler on {format_s(s.profiled_median_s)}, its overhead was not measured"
        else:
            costs = s.profiler_overhead_ratio >= 0
            overhead = f"profiler +{format_ratio(s.profiler_overhead_ratio)}" if costs else "profiler cost within noise"
        spread = f"median of {s.count} steps, 95 % in {low} to {high}"
        if s.source == "none":
            spread = "everything that was recorded: set-up, compilation and warm-up are in it"
        elif s.count == 1:  # one step has no spread; so says its interval of no width
            spread = "one step: its spread is not known, and warm-up may be in it"
        elif s.statistic == "mean":
            spread = f"mean of {s.count} steps that do different work, {low} to {high}"
        full = self.d.full_square_flop_per_step
        causal = "matrix work"
        if is_known(full) and is_known(self.d.flop_per_step) and full > self.d.flop_per_step * 1.0005:
            causal = f"matrix work, causal attention halved; {format_flop(full)} counted in full"
        named = any(c.resource.label == v.limiting_ceiling for c in self.d.ceilings)
        share_note = f"{'of' if named else 'limit:'} {self._line(v.limiting_ceiling)}"
        on_it, of_bound = self._on_ceiling()
        if named and on_it < 0.99 * of_bound:
            share_note = f"of each operator's own ceiling; {format_s(on_it)} of {format_s(of_bound)} {share_note}"
        else:
            share_note += f", for {format_ratio(v.time_share)} of the step"
        if not v.limiting_ceiling:
            share_note = f"no ceiling is known for {format_ratio(v.time_share)} of the step"
        work, traffic = work_of_step(self.d)
        part = (
            f"; of the {format_ratio(self.d.attributed_ratio)} whose cost is known"
            if self.d.attributed_ratio < WHOLE_RATIO
            else ""
        )
        return [
            ("Step", format_s(s.median_s), f"{spread}; {overhead}"),
            ("Share of ceiling", figure(v.share_of_ceiling, format_ratio), share_note),
            (
                "Headroom",
                figure(v.headroom_s, format_s),
                "per step, to that ceiling"
                if named
                else "per step, without that wait; launch calls, under latency, apart"
                if self.d.framework == "profile"
                and v.bound is Bound.HOST
                and is_known(v.headroom_s)
                and self.d.time_shares.get("latency", 0.0) >= 0.05
                else "per step, without that wait"
                if is_known(v.headroom_s)
                else self._least_headroom(),
            ),
            ("MFU", figure(self.d.mfu_ratio, format_ratio), "of the matrix ceiling over the whole step"),
            *self._hfu(),
            ("Work", work, f"{causal}{part}"),
            ("Traffic", traffic, f"compulsory bytes per step{part}"),
        ]

    def _least_headroom(self) -> str:
        """Return what is known of a headroom that as a whole is not."""
        known = sum(o.headroom_s for o in self.d.operators if is_known(o.headroom_s))
        return f"per step; at least {format_s(known)} of the operators whose need is known" if known > 0 else "per step"

    def _on_ceiling(self) -> tuple[float, float]:
        """Return the time of operators with the verdict's bound that its ceiling limits, and of all that have one [s]."""
        mine = [o for o in self.d.operators if o.bound is self.d.verdict.bound and o.limiting_ceiling]
        label = self.d.verdict.limiting_ceiling
        return sum(o.time_s for o in mine if o.limiting_ceiling == label), sum(o.time_s for o in mine)

    def _hfu(self) -> list[tuple[str, str, str]]:
        """Return the figure that counts recomputation, where there was any."""
        if not self.d.recomputes:
            return []
        executed = figure(self.d.hardware_flop_per_step, format_flop)
        return [("HFU", figure(self.d.hfu_ratio, format_ratio), f"with what is executed again: {executed}")]

    def _shares(self) -> dict[str, Any]:
        shares, names = self._split_shares()
        percent = percent_shares(shares)
        rows = [
            {
                "kind": names.get(kind, shorten(clean(kind), _NAME_LENGTH)),
                "css": "unattributed" if kind in names else kind if kind in COLOURS else "undetermined",
                "percent": f"{percent[kind]:.1f}\u00a0%",
                "width": round(max(0.0, shares[kind]) * 1000, 3),
            }
            for kind in share_kinds(shares)
        ]
        return {"shares": rows, "shares_text": ", ".join(f"{r['kind']} {r['percent']}" for r in rows)}

    def _split_shares(self) -> tuple[dict[str, float], dict[str, str]]:
        """Return the shares with unattributed time in its parts, by names that stand for them; as they are where it has one part.

        Operators are timed in recorded steps; their parts are scaled with those steps, as the shares are.
        """
        shares, step = dict(self.d.time_shares), self.d.step
        whole = shares.get("unattributed", 0.0)
        scale = max(1.0, step.median_s / step.profiled_median_s) if step.profiled_median_s > 0 else 1.0
        open_ = [o for o in self.d.operators if o.bound is Bound.UNDETERMINED]
        far = sum(o.time_s for o in open_ if is_known(o.headroom_s) and is_known(o.share_of_ceiling))
        unknown = sum(o.time_s for o in open_ if not is_known(o.headroom_s))
        if whole <= 0 or step.median_s <= 0:
            return shares, {}
        far_ratio, unknown_ratio = (min(whole, t * scale / step.median_s) for t in (far, unknown))
        rest = whole - far_ratio - unknown_ratio
        if rest < -0.005 * whole:
            return shares, {}
        parts = {"need not known": unknown_ratio, "far below ceilings": far_ratio, "without a cause": max(0.0, rest)}
        kept = {n: v for n, v in parts.items() if v >= 0.0005}
        if len(kept) < 2:
            return shares, {}
        total, out = sum(kept.values()), {k: v for k, v in shares.items() if k != "unattributed"}
        out |= {n: v * whole / total for n, v in kept.items()}
        return out, {n: f"unattributed, {n}" for n in kept}

    def _parts(self) -> dict[str, Any]:
        longest = max((p.time_s for p in self.d.parts), default=0.0) or 1.0
        rows = [
            {
                "kind": shorten(clean(p.kind), _NAME_LENGTH),
                "css": p.bound.value,
                "width": round(max(0.0, p.time_s) / longest * 100, 2),
                "time": format_s(p.time_s),
                "percent": self._of_step(p.time_s),
                "bound": p.bound.value,
            }
            for p in self.d.parts
        ]
        total = sum(p.time_s for p in self.d.parts)
        gap = self.d.step.median_s - total
        note = ""
        if self.d.parts and abs(gap) > 0.005 * self.d.step.median_s:
            kind = "is in no part" if gap > 0 else "is counted in more than one part"
            note = f"{format_s(abs(gap))} of the step {kind}."
        return {"parts": rows, "parts_note": note}

    def _chart_notes(self) -> list[str]:
        """Return what a reader of the chart must know, and everything that it does not show."""
        roofline = chart.roofline(self.d)
        notes = []
        if not roofline.lines:
            notes.append("No compute or memory ceiling is known for this machine: run mansard measure first.")
        elif roofline.ridges:
            levels = {
                line.ceiling.resource.label: (line.ceiling.resource.level or "").upper() for line in roofline.lines
            }
            ridges = ", ".join(f"{levels[label]} {x:.3g}" for label, x in roofline.ridges.items())
            roof = roofline.ridge_roof
            assert roof is not None  # ridges are of one
            notes.append(
                f"Ridge points of {self._line(roof.resource.label)} ({ceiling_value(roof.value, roof.unit)}), in FLOP/byte: {ridges}. "
                "Left of its ridge an operator is limited by that memory level, right of it by the roof."
            )
        if roofline.lane is not None:
            notes.append(
                "Operators in the shaded lane do no matrix FLOP, so they have no intensity. Their height is their bytes/s on "
                "the memory lines: read them against those lines only."
            )
        if roofline.unplaced:
            names = ", ".join(self._line(self.d.operators[i].name) for i in roofline.unplaced[:8])
            more = f" and {len(roofline.unplaced) - 8} more" if len(roofline.unplaced) > 8 else ""
            spent = sum(self.d.operators[i].time_s for i in roofline.unplaced)
            notes.append(
                f"Not on the chart, since FLOP and bytes are not known or both 0: {names}{more} "
                f"({format_s(spent)}, {self._of_step(spent)} of the step). They are in the table."
            )
        roofs = [line for line in roofline.lines if line.shown and not line.slanted and line.ceiling.resource.dtype]
        mine = {line.ceiling.resource.dtype for line in roofs if line.used or line.worked}
        if others := dict.fromkeys(
            str(n.ceiling.resource.dtype) for n in roofs if mine and n.ceiling.resource.dtype not in mine
        ):
            notes.append(
                f"Roofs of types that no operator works in ({', '.join(map(self._line, others))}) are drawn on request."
            )
        extra = sum(not line.shown for line in roofline.lines)
        if extra:
            notes.append(
                f"Drawn: the ceilings that were used and one of each memory level and of each dtype and engine. {extra} more (other "
                "access mixes, page sizes, stores, scopes and calls) appear with the button above."
            )
        if roofline.other:
            used = {id(self.d.ceilings[i]) for i in chart.used_ceilings(self.d)}
            first = sorted(roofline.other, key=lambda c: id(c) not in used)[:6]
            names = "; ".join(f"{self._line(c.resource.label)} {ceiling_value(c.value, c.unit)}" for c in first)
            more = f" and {len(roofline.other) - 6} more, see the table" if len(roofline.other) > 6 else ""
            notes.append(f"Ceilings that are neither FLOP/s nor B/s have no line: {names}{more}.")
        return notes

    def _ceilings(self) -> list[dict[str, str]]:
        """Return the ceilings, those that something was judged against first."""
        used = chart.used_ceilings(self.d)
        order = sorted(range(len(self.d.ceilings)), key=lambda i: (i not in used, -used.get(i, 0.0), i))
        rows = [self._ceiling_row(self.d.ceilings[i], used.get(i)) for i in order[: self.items]]
        return [
            {**row, "spare": "spare" if used and i not in used else ""} for row, i in zip(rows, order, strict=False)
        ]

    def _ceilings_on_paper(self) -> str:
        """Return what the printed table of ceilings leaves out."""
        spare = sum(bool(row["spare"]) for row in self._ceilings())
        more = f"{spare} ceilings that nothing was judged against" if spare else ""
        return f"Not on paper: {' and '.join(x for x in (more, 'the conditions of each') if x)}. The page and the document have them."

    @staticmethod
    def _all_trials(ceiling: Ceiling) -> str:
        """Return the median of all trials where the interval does not hold it: the ceiling is then of the best state alone."""
        median = ceiling.conditions.get("median")
        if not isinstance(median, int | float) or ceiling.ci95 is None or ceiling.ci95[0] <= median <= ceiling.ci95[1]:
            return ""
        return f", of the best state; median of all trials {ceiling_value(float(median), ceiling.unit)}"

    def _ceiling_row(self, ceiling: Ceiling, spent: float | None) -> dict[str, str]:
        label = ceiling.resource.label
        low_high = ceiling.ci95
        interval = " to ".join(ceiling_value(v, ceiling.unit) for v in low_high) if low_high else "not known"
        words = [f"{self._line(k)} {self._line(_four(v))}" for k, v in ceiling.conditions.items()]
        extra = (ceiling.resource.page, ceiling.resource.store)
        words += [f"{self._line(w)} {kind}" for w, kind in zip(extra, ("pages", "stores"), strict=True) if w]
        return {
            "label": self._line(label) + (", dense" if ceiling.resource.engine == "matrix" else ""),
            "value": ceiling_value(ceiling.value, ceiling.unit),
            "interval": f"{interval}{self._all_trials(ceiling)}",
            "kind": ceiling.kind.value,
            "scope": ceiling.scope,
            "used": format_s(spent) if spent else "verdict" if spent is not None else "\u2013",
            "conditions": self._prose(", ".join(words)) or "\u2013",
            "source": self._line(ceiling.source) or "\u2013",
        }
