"""What the page's template shows: every figure as text, every foreign text cleaned and cut."""

from __future__ import annotations

from typing import Any

from mansard.core import Ceiling, is_known
from mansard.core.units import format_flop, format_ratio, format_s
from mansard.diagnose.records import SHARE_KINDS, Diagnosis
from mansard.report import chart
from mansard.report.text import (
    WHOLE_RATIO,
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

_LINE_LENGTH, _NAME_LENGTH = 240, 28
#: Kinds of time and of bound that have a colour of their own.
COLOURS = frozenset((*SHARE_KINDS, "undetermined"))

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
    ("unattributed", "Time of operations whose need is not known; it is nobody's."),
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
        view = {
            "program": self._prose(self.d.program),
            "framework": shorten(clean(self.d.framework), 20),
            "bound": self.d.verdict.bound.value,
            "grade": self.d.verdict.grade.value,
            "sentence": self._prose(self.d.verdict.sentence),
            "figures": self._figures(),
            "step_note": (
                f"A step is {self._line(self.d.step.note)} (found by: {self._line(self.d.step.source)}). The cost of "
                f"{format_ratio(self.d.attributed_ratio)} of operator time is known."
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
            "ceilings_on_paper": self._ceilings_on_paper(),
            "receipt": [
                (self._line(name), self._prose(text))
                for name, text in receipt_rows(self.d.receipt, limit=2 * self.items)
            ],
        }
        return {**view, **self._shares(), **self._parts()}

    def _first(self) -> tuple[str, str] | None:
        """Return what to try first, and what it saves at most; None where no rule found anything."""
        if not self.d.advice:
            return None
        best = self.d.advice[0]
        return self._prose(best.text), (
            f"saves at most {format_s(best.gain_s)} of {format_s(self.d.step.median_s)} per step ({self._of_step(best.gain_s)})"
        )

    def _sure(self, meaning: dict[str, str]) -> list[str]:
        """Return how sure the verdict is: what its grade means, and the findings that make every figure less sure."""
        grade = self.d.verdict.grade.value
        told = meaning.get(grade, "")
        said = f"{grade}: {told[0].lower()}{told[1:]}" if told else f"{grade}."
        doubts = [self._prose(n.text).rstrip(".") for n in self.d.findings if n.code in _DOUBTS]
        if self.d.step.count == 1 and self.d.step.source != "none":
            doubts.insert(0, "one step was recorded, so its spread is not known and warm-up may be in it")
        return [said, *(f"{d[0].upper()}{d[1:]}." for d in doubts[:3] if d)]

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
                else "per step, without that wait"
                if is_known(v.headroom_s)
                else "per step",
            ),
            ("MFU", figure(self.d.mfu_ratio, format_ratio), "of the matrix ceiling over the whole step"),
            *self._hfu(),
            ("Work", work, f"{causal}{part}"),
            ("Traffic", traffic, f"compulsory bytes per step{part}"),
        ]

    def _hfu(self) -> list[tuple[str, str, str]]:
        """Return the figure that counts recomputation, where there was any."""
        if not self.d.recomputes:
            return []
        executed = figure(self.d.hardware_flop_per_step, format_flop)
        return [("HFU", figure(self.d.hfu_ratio, format_ratio), f"with what is executed again: {executed}")]

    def _shares(self) -> dict[str, Any]:
        percent = percent_shares(self.d.time_shares)
        rows = [
            {
                "kind": shorten(clean(kind), _NAME_LENGTH),
                "css": kind if kind in COLOURS else "undetermined",
                "percent": f"{percent[kind]:.1f}\u00a0%",
                "width": round(max(0.0, self.d.time_shares[kind]) * 1000, 3),
            }
            for kind in share_kinds(self.d.time_shares)
        ]
        return {"shares": rows, "shares_text": ", ".join(f"{r['kind']} {r['percent']}" for r in rows)}

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
            notes.append(
                f"Ridge points against the highest roof that was used, in FLOP/byte: {ridges}. Left of its ridge an "
                "operator is limited by that memory level, right of it by the roof."
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
            "interval": interval,
            "kind": ceiling.kind.value,
            "scope": ceiling.scope,
            "used": format_s(spent) if spent else "verdict" if spent is not None else "\u2013",
            "conditions": self._prose(", ".join(words)) or "\u2013",
            "source": self._line(ceiling.source) or "\u2013",
        }
