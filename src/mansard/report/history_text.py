"""Comparisons, gates and baselines as text and markdown: what changed first, and every figure that was looked at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mansard.core.document import header, to_jsonable
from mansard.core.units import format_bytes, format_bytes_per_s, format_flop_per_s, format_ratio, format_s
from mansard.core.unknown import Unknown
from mansard.history.check import Check, CheckResult, Outcome
from mansard.history.compare import Comparison, Result
from mansard.history.store import Baseline, Stored, Summary
from mansard.report.text import clean, shorten
from mansard.report.trace_layout import fitted

_ORDER = ("slower", "implausible", "not_comparable", "inconclusive", "faster", "same")
_FORMATS = {"s": format_s, "B/s": format_bytes_per_s, "FLOP/s": format_flop_per_s, "B": format_bytes, "1": format_ratio}


def amount(value: float | Unknown, unit: str) -> str:
    """Return a figure with its unit; `?` where it is not known.

    >>> amount(0.0125, "s"), amount(Unknown("x"), "s"), amount(12.0, "token/s")
    ('12.5 ms', '?', '12 token/s')
    """
    if isinstance(value, Unknown):
        return "?"
    return _FORMATS[unit](value) if unit in _FORMATS else f"{value:.4g} {unit}"


def change(result: Result) -> str:
    """Return the change of the figure and its interval in percent."""
    if isinstance(result.ratio, Unknown) or isinstance(result.ci95, Unknown):
        return ""
    low, high = (100.0 * (x - 1.0) for x in result.ci95)
    return f"{100.0 * (result.ratio - 1.0):+.1f} % ({low:+.1f} to {high:+.1f})"


def _sorted(results: Sequence[Result]) -> list[Result]:
    return sorted(results, key=lambda r: _ORDER.index(r.verdict.value))


def _differences(found: Comparison) -> list[str]:
    seen = dict.fromkeys(d for r in found.results for d in r.differs if d.baseline and d.candidate)
    return [("not comparable: " if d.forbids else "changed: ") + clean(d.text) for d in seen]


def _untold(found: Comparison) -> str:
    names = dict.fromkeys(d.component for r in found.results for d in r.differs if not (d.baseline and d.candidate))
    return f"told by one side only: {', '.join(names)}" if names else ""


def _tail(found: Comparison) -> list[str]:
    lines = [*_differences(found), _untold(found)]
    if found.added:
        lines.append(f"only in the candidate, not judged: {_some(found.added)}")
    if found.skipped:
        lines.append(f"measured by neither side: {_some(found.skipped)}")
    return [line for line in lines if line]


def _some(names: Sequence[str], most: int = 5) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(clean(n) for n in names[:most]) + more


def comparison_document(found: Comparison, baseline: Sequence[str], candidate: Sequence[str]) -> dict[str, Any]:
    """Return the JSON document of a comparison.

    Args:
        found: The comparison.
        baseline, candidate: Names of their files.
    """
    limits = found.limits
    document: dict[str, Any] = to_jsonable({
        **header("compare/1", {}),
        "baseline": list(baseline), "candidate": list(candidate), "verdict": found.verdict.value,
        "results": [r.to_json() for r in found.results], "added": list(found.added), "skipped": list(found.skipped),
        "empty": found.empty,
        "limits": {
            "tolerance_ratio": limits.tolerance_ratio, "resolution_ratio": limits.resolution_ratio, "floor_s": limits.floor_s,
            "run_ratio": limits.run_ratio, "unseen_ratio": limits.unseen_ratio, "level": limits.level, "interleaved": limits.interleaved,
            "multiplicity": "Benjamini-Hochberg", "allow": list(limits.allow), "require": list(limits.require),
        },
    })  # fmt: skip
    return document


def comparison_text(found: Comparison, width: int = 100) -> str:
    """Return a comparison for a terminal: the verdict, every figure with its reason, what the sides do not share."""
    counts = ", ".join(f"{sum(r.verdict.value == v for r in found.results)} {v}" for v in _ORDER
                       if any(r.verdict.value == v for r in found.results))  # fmt: skip
    lines = [f"{found.verdict.value.replace('_', ' ')}: {counts or found.empty or 'nothing to compare'}"]
    for r in _sorted(found.results):
        figures = f"{amount(r.baseline, r.unit)} -> {amount(r.candidate, r.unit)}"
        lines.append(f"  {r.verdict.value:<14} {shorten(clean(r.name), max(20, width - 17))}")
        lines.append(f"      {figures}; {clean(r.reason)}")
    return "\n".join(fitted([*lines, *_tail(found)], width)) + "\n"


def comparison_markdown(found: Comparison) -> str:
    """Return a comparison as a markdown table."""
    lines = [f"### mansard compare: {found.verdict.value.replace('_', ' ')}", ""]
    if found.empty:
        lines += [cell(found.empty), ""]
    lines += ["| verdict | figure | baseline | candidate | change (95 %) | reason |", "|---|---|---|---|---|---|"]
    for r in _sorted(found.results):
        row = (
            r.verdict.value,
            cell(r.name),
            amount(r.baseline, r.unit),
            amount(r.candidate, r.unit),
            change(r),
            cell(r.reason),
        )
        lines.append("| " + " | ".join(row) + " |")
    return "\n".join([*lines, "", *(f"- {cell(t)}" for t in _tail(found))]).rstrip() + "\n"


def cell(text: str) -> str:
    """Return foreign text that a markdown table shows as it is.

    >>> cell("a|b* <img>")
    'a\\\\|b\\\\* &lt;img&gt;'
    """
    safe = clean(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    for mark in ("\\", "|", "`", "[", "]", "*", "~"):
        safe = safe.replace(mark, "\\" + mark)
    return safe


# --- the gate --------------------------------------------------------------------------------------------------------

_MARK = {Outcome.PASS: "pass", Outcome.FAIL: "FAIL", Outcome.UNDECIDED: "????"}
_FIRST = (Outcome.FAIL, Outcome.UNDECIDED, Outcome.PASS)


def ordered(results: Sequence[CheckResult]) -> list[CheckResult]:
    """Return results, what failed first."""
    return sorted(results, key=lambda r: _FIRST.index(r.outcome))


def check_document(found: Check) -> dict[str, Any]:
    """Return the JSON document of a gate."""
    document: dict[str, Any] = to_jsonable({
        **header("check/1", {}), "source": found.source, "baseline": found.baseline, "outcome": found.outcome.value,
        "verdict": found.verdict, "empty": found.empty, "results": [r.to_json() for r in found.results],
    })  # fmt: skip
    return document


def headline(found: Check) -> str:
    """Return what a gate came to in one line."""
    counts = ", ".join(f"{n} {o.value}" for o in _FIRST if (n := sum(r.outcome is o for r in found.results)))
    against = f" against baseline {found.baseline}" if found.baseline else ""
    return f"{found.outcome.value}: {found.source}{against}: {counts or 'nothing checked'}"


def check_text(found: Check, width: int = 100) -> str:
    """Return a gate for a terminal; every rule on every figure is listed."""
    lines = [clean(headline(found))]
    for r in ordered(found.results):
        lines.append(f"  {_MARK[r.outcome]}  {clean(r.name)}  [{clean(r.rule)}]")
        lines.append(f"        {r.verdict}: {clean(r.reason)}")
    return "\n".join(fitted(lines, width)) + "\n"


def check_markdown(found: Check) -> str:
    """Return a gate as the summary of a CI job."""
    lines = [
        f"### mansard check: {cell(headline(found))}",
        "",
        "| outcome | figure | value | rule | verdict | reason |",
    ]
    lines.append("|---|---|---|---|---|---|")
    for r in ordered(found.results):
        row = (r.outcome.value, cell(r.name), amount(r.value, r.unit), cell(r.rule), r.verdict, cell(r.reason))
        lines.append("| " + " | ".join(row) + " |")
    return "\n".join(lines) + "\n"


# --- the store -------------------------------------------------------------------------------------------------------


def baselines_text(found: Sequence[Summary]) -> str:
    """Return the baselines of a store as text."""
    if not found:
        return "no baselines; mansard baseline add NAME FILE makes one\n"
    width = max(len(clean(s.name)) for s in found)
    return "".join(
        f"{clean(s.name):<{width}}  {s.states['accepted']} accepted, {s.states['pending']} pending, {s.states['retired']} retired"
        f"  last {s.last[:19]}\n"
        for s in found
    )


def figures_text(stored: Stored) -> str:
    """Return the figures that a record knows, in one line."""
    from mansard.history.records import METRICS

    known = [f"{n} {amount(v, METRICS[n][0])}" for n, v in stored.figures.items() if not isinstance(v, Unknown)]
    return ", ".join(known) or "several benchmarks"


def baseline_text(found: Baseline) -> str:
    """Return a baseline with its results as text."""
    lines = [f"baseline {clean(found.name)}"]
    for e in found.entries:
        lines.append(
            f"  {e.state:<9} {e.stored.sha256[:12]}  {e.added[:19]}  {clean(e.stored.source)}  {e.stored.schema}"
        )
        lines.append(f"      {figures_text(e.stored)}; {clean(e.reason)}")
    return "\n".join(lines) + "\n"


def stored_json(stored: Stored) -> dict[str, Any]:
    """Return the JSON form of a record."""
    return {
        "number": stored.number, "sha256": stored.sha256, "source": stored.source, "schema": stored.schema, "created": stored.created,
        "added": stored.added, "labels": {k: dict(v) for k, v in stored.labels.items()}, "figures": dict(stored.figures),
    }  # fmt: skip


def baseline_document(found: Baseline) -> dict[str, Any]:
    """Return the JSON document of a baseline."""
    entries = [
        {"state": e.state, "reason": e.reason, "added": e.added, "record": stored_json(e.stored)} for e in found.entries
    ]
    document: dict[str, Any] = to_jsonable({**header("baseline/1", {}), "name": found.name, "entries": entries})
    return document
