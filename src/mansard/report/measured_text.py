"""What `mansard diagnose` prints of measured points alone: at most forty lines unless everything is asked for."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from mansard.core import Implausible, Unknown, is_known
from mansard.core.units import format_bytes_per_s, format_flop_per_s, format_ratio, format_s
from mansard.diagnose.fixed_cost import FixedCost
from mansard.diagnose.measured import JudgedPoint, Law, MeasuredDiagnosis, PointAdvice
from mansard.measure.points.conclusions import in_words
from mansard.report.points_text import short_names
from mansard.report.sections.points_words import brief
from mansard.report.text import clean, shorten
from mansard.report.trace_text import table

_HEAD = ["point", "time", "bound", "of ceiling", "headroom", "worth"]
#: Lines of the page, and most entries of each part, unless everything is asked for.
_PAGE, _LAWS, _TOGETHER, _ADVICE, _FINDINGS = 40, 3, 2, 3, 1
_LEAST_POINTS = 4
_ALL = 10_000
#: What is said of several points, what helps to choose first.
_ORDER = ("comparison", "padding", "pareto", "working_set", "sustained", "two_regimes")


def measured_text(found: MeasuredDiagnosis, *, width: int = 80, verbose: bool = False) -> str:
    """Return the diagnosis of measured points as text.

    Args:
        found: The diagnosis.
        width: Columns of the page.
        verbose: Every point with its evidence, every law, conclusion and finding.
    """
    lines = [shorten(f"Mansard  {clean(found.source)}  measured points", width, ellipsis="..."), ""]
    lines += [*_wrapped(found.sentence, width, "", most=_ALL if verbose else 3), ""]
    said = sorted((c for c in found.together if c["kind"] in _ORDER), key=lambda c: _ORDER.index(c["kind"]))
    rest = _laws(found, width, verbose)
    rest += _part("Together", [in_words(c) for c in said], _TOGETHER, width, verbose, each=2)
    rest += _part(
        "Worth doing first", [_advice(a) for a in found.advice], _ADVICE, width, verbose, each=2, numbered=True
    )
    rest += _part("Findings", [f.text for f in found.findings], _FINDINGS, width, verbose, each=2)
    if found.unmeasured:
        states = [s for _, s, _ in found.unmeasured]
        counts = ", ".join(f"{states.count(s)} {s}" for s in dict.fromkeys(states))
        rest.append(f"not measured: {counts}; why with mansard report")
    room = max(_LEAST_POINTS, _PAGE - len(lines) - len(rest) - 2)
    lines += [*_points(found.points, width, verbose, room), *rest]
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _wrapped(text: str, width: int, indent: str, *, most: int, first: str | None = None) -> list[str]:
    return textwrap.wrap(
        clean(text), width, initial_indent=indent if first is None else first, subsequent_indent=indent, max_lines=most,
        placeholder=" ...", break_on_hyphens=False,
    )  # fmt: skip


def _part(
    title: str, said: Sequence[str], most: int, width: int, verbose: bool, *, each: int, numbered: bool = False
) -> list[str]:
    if not said:
        return []
    kept = said if verbose else said[:most]
    more = f"  {len(said) - len(kept)} more with -v" if len(said) > len(kept) else ""
    lines = ["", title + more]
    for number, text in enumerate(kept, 1):
        first = f"  {number}. " if numbered else "  "
        lines += _wrapped(text, width, " " * (5 if numbered else 4), most=_ALL if verbose else each, first=first)
    return lines


def _points(points: Sequence[JudgedPoint], width: int, verbose: bool, most: int) -> Iterator[str]:
    kept = points if verbose else points[:most]
    names = short_names([p.name for p in points])
    rows = [_cells(p) for p in kept]
    room = max(16, width - sum(max(len(r[i]) for r in [_HEAD[1:], *rows]) + 2 for i in range(len(_HEAD) - 1)) - 4)
    more = f"; {len(points) - len(kept)} more with -v" if len(points) > len(kept) else ""
    yield f"Points  by headroom of an operation; ? unknown, ! impossible{more}"
    yield from table(
        _HEAD, [[shorten(brief(clean(n), room), room, ellipsis="..."), *r] for n, r in zip(names, rows, strict=False)]
    )
    if not verbose:
        return
    for name, p in zip(names, points, strict=True):
        yield from _wrapped(f"{name}: {p.reason}", width, "      ", most=_ALL, first="  ")
        if p.shares_by_kind:
            shares = ", ".join(f"{format_ratio(v)} of {k}" for k, v in p.shares_by_kind.items())
            yield from _wrapped(f"share by kind of ceiling: {shares}", width, "      ", most=_ALL, first="    ")
        for text in (
            *p.evidence,
            *(f"against it: {t}" for t in p.counter_evidence),
            *((p.size.text,) if p.size else ()),
        ):
            yield from _wrapped(text, width, "      ", most=_ALL, first="    ")


def _cells(p: JudgedPoint) -> list[str]:
    share = p.share_of_ceiling
    if isinstance(share, Implausible):
        of = f"{format_ratio(share.value)}!"
    else:
        of = "?" if isinstance(share, Unknown) else format_ratio(share)
    headroom = format_s(p.headroom_s) if is_known(p.headroom_s) else "?"
    bound = {"undetermined": "undet."}.get(p.bound.value, p.bound.value)
    return [format_s(p.point.time_s), bound, of, headroom, p.worth or "not judged"]


def _laws(found: MeasuredDiagnosis, width: int, verbose: bool) -> list[str]:
    lines = _part("Fixed cost", [_law(w) for w in found.laws], _LAWS, width, verbose, each=2)
    small = [p.size.text for p in found.points if p.size is not None and p.size.too_small is True]
    if small and not verbose:
        longest = max(small, key=len) if len(small) == 1 else small[0]
        lines += _wrapped(
            longest + (f" ({len(small) - 1} more)" if len(small) > 1 else ""), width, "    ", most=2, first="  "
        )
    return lines


def _law(law: Law) -> str:
    name = f"{law.backend}, {law.what}"
    cost = law.cost
    if not isinstance(cost, FixedCost):
        return f"{name}: {cost.reason}"
    if isinstance(cost.fixed_s, Unknown):
        most = f"; at most {format_s(max(cost.ci95_s))}" if not isinstance(cost.ci95_s, Unknown) else ""
        text = f"{name}: {cost.fixed_s.reason}{most}"
    else:
        text = f"{name}: T0 {format_s(cost.fixed_s)}"
        if not isinstance(cost.ci95_s, Unknown):
            text += f" ({format_s(cost.ci95_s[0])} to {format_s(cost.ci95_s[1])})"
    if is_known(cost.rate_per_s):
        write = format_flop_per_s if cost.unit == "FLOP/s" else format_bytes_per_s
        text += f", then {write(cost.rate_per_s)}"
    size, ends = cost.hiding_gemm_size(), cost.hiding_gemm_interval()
    if is_known(size):
        text += f"; 80 % of it from N = {size:.0f}"
        text += f" ({ends[0]:.0f} to {ends[1]:.0f})" if not isinstance(ends, Unknown) else ""
    return text


def _advice(a: PointAdvice) -> str:
    gain = ""
    if is_known(a.gain_s):
        gain = f"{'up to' if a.at_most else 'at least'} {format_s(a.gain_s)} of an operation: "
    return f"{gain}{a.text} ({a.evidence})"
