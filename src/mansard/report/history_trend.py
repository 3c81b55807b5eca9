"""Figures over a history as text and JSON: a small plot, the changes of level, and what of the environment changed there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mansard.core.document import header, to_jsonable
from mansard.core.unknown import Unknown
from mansard.history.levels import LEAST_LEVEL
from mansard.history.trend import LEAST_POINTS, Change, Curve, Series
from mansard.report.history_text import amount
from mansard.report.text import clean

_MARKS = "▁▂▃▄▅▆▇█"
_WIDTH = 72
#: Neighbours that share so much make a series that goes anywhere in time: that no level changed says little of it.
WANDERS = 0.9


def trend_document(found: Sequence[Series], source: str) -> dict[str, Any]:
    """Return the JSON document `trend/1`.

    Args:
        found: The series.
        source: The baseline, or the whole history.
    """
    series = [
        {
            "name": s.name, "metric": s.metric, "unit": s.unit, "conditions": s.conditions, "model": s.model,
            "points": [{"when": p.when, "source": p.source, "value": p.value, "outlier": p.outlier} for p in s.points],
            "noise_ratio": s.noise_ratio, "correlation": s.correlation, "smallest_ratio": s.smallest_ratio, "drift": s.drift, "late": s.late,
            "curve": None if s.curve is None else {"degree": s.curve.degree, "lowest": s.curve.lowest, "highest": s.curve.highest,
                                                   "ratio": _span(s.curve), "values": s.curve.values},
            "refused": s.refused, "last": None if s.last is None else s.last.to_json(),
            "changes": [
                {
                    "index": c.index, "first": c.first, "last": c.last, "when": s.points[c.index].when, "ratio": c.ratio, "ci95": c.ci95,
                    "better": c.better, "environment": c.environment,
                }
                for c in s.changes
            ],
        }
        for s in found
    ]  # fmt: skip
    document: dict[str, Any] = to_jsonable({**header("trend/1", {}), "source": source, "series": series})
    return document


def trend_text(found: Sequence[Series], source: str) -> str:
    """Return the series for a terminal, those that changed first."""
    if not found:
        return f"{clean(source)}: no figure of such a name\n"
    order = ("steps", "drift", "curve", "steady", "too_short")
    lines = []
    for s in sorted(found, key=lambda s: (order.index(s.model), s.late is None)):
        values = [p.value for p in s.points]
        lines.append(f"{clean(s.name)}: {_headline(s)}")
        if values:
            lines.append(f"  {plot(values)}  {amount(min(values), s.unit)} to {amount(max(values), s.unit)}")
        under = _under(s)
        if under.strip():
            lines.append(f"  {under}")
        for c in s.changes:
            lines += [f"  {line}" for line in _change(s, c)]
        if s.late is not None:
            lines.append(f"  {late_text(to_jsonable(s.late))}")
        if s.last is not None:
            lines.append(f"  {last_text(values, s.unit, s.last.verdict, s.last.reason)}")
        far = [p for p in s.points if p.outlier]
        if far:
            lines.append(
                f"  outliers, which move no level: {', '.join(f'{p.when[:19]} {amount(p.value, s.unit)}' for p in far[:5])}"
            )
        lines += [
            f"  refused, counts for nothing: {r.when[:19]} {amount(r.value, s.unit)}: {clean(r.why)}"
            for r in s.refused[:5]
        ]
        if len(s.refused) > 5:
            lines.append(f"  and {len(s.refused) - 5} more that were refused")
    return "\n".join(lines) + "\n"


def plot(values: Sequence[float], width: int = _WIDTH) -> str:
    """Return values as blocks of eight heights; of more than fit, neighbours share a column by their median.

    >>> plot([1.0, 2.0, 8.0])
    '▁▂█'
    """
    columns = [float(np.median(part)) for part in np.array_split(np.asarray(values), min(width, len(values)))]
    low, high = min(columns), max(columns)
    scale = (len(_MARKS) - 1) / (high - low) if high > low else 0.0
    return "".join(_MARKS[round((c - low) * scale)] for c in columns)


def late_text(late: Mapping[str, Any]) -> str:
    """Return what the last results say, which are too few to be a level.

    >>> late_text({"count": 1, "ratio": 1.2, "ci95": [1.1, 1.31], "better": False})
    'the last result stands off, worse: +20 % (+10 to +31); a level has 3, so this is one or an outlier: more results decide'
    """
    low, high = (100.0 * (x - 1.0) for x in late["ci95"])
    what = "result stands" if late["count"] == 1 else f"{late['count']} results stand"
    return (
        f"the last {what} off, {'better' if late['better'] else 'worse'}: {100.0 * (late['ratio'] - 1.0):+.3g} % ({low:+.3g} to {high:+.3g}); "
        f"a level has {LEAST_LEVEL}, so this is one or an outlier: more results decide"
    )


def last_text(values: Sequence[float], unit: str, verdict: str, reason: str) -> str:
    """Return where the last of too few results lies, what that place alone is worth, and what a comparison with the others says.

    Of n results of which nothing changed each is the largest one time in n, whatever their distribution, if they are independent.

    >>> last_text([1.0, 1.2, 1.3], "s", "inconclusive", "too noisy")
    'the last lies above the 2 before it (1.00 s to 1.20 s), where one of 3 lies by chance; compared with them it is inconclusive: too noisy'
    """
    *before, value = values
    low, high = min(before), max(before)
    whole = f"{amount(low, unit)} to {amount(high, unit)}" if high > low else amount(low, unit)
    seen = f"the {len(before)} before it ({whole})" if len(before) > 1 else f"the one before it ({whole})"
    beyond = "above" if value > high else "below" if value < low else ""
    where = f"lies {beyond} {seen}, where one of {len(values)} lies by chance" if beyond else f"lies within {seen}"
    return f"the last {where}; compared with them it is {verdict.replace('_', ' ')}: {clean(reason)}"


def _column(s: Series, index: int) -> int:
    edges = np.array_split(np.arange(len(s.points)), min(_WIDTH, len(s.points)))
    return next(i for i, part in enumerate(edges) if index <= part[-1])


def _under(s: Series) -> str:
    """Return the line under a plot: `^` where a level begins, `-` its interval, `x` an outlier."""
    line = [" "] * min(_WIDTH, len(s.points))
    for i, p in enumerate(s.points):
        if p.outlier:
            line[_column(s, i)] = "x"
    for c in s.changes:
        for i in range(c.first, c.last + 1):
            line[_column(s, i)] = "-"
        line[_column(s, c.index)] = "^"
    return "".join(line)


def _headline(s: Series) -> str:
    count = f"{len(s.points)} result{'' if len(s.points) == 1 else 's'}"
    if s.model == "too_short":
        missing = LEAST_POINTS - len(s.points)
        return f"{count}, too few to tell a level: {missing} more make{'s' if missing == 1 else ''} a series"
    noise = f"noise {100 * s.noise_ratio:.2g} %"
    if s.correlation > 0.0:
        noise += f", of which neighbours share {s.correlation:.2g}"
    if s.drift is not None:
        d = s.drift
        low, high = (100.0 * (x - 1.0) for x in d.ci95)
        return (
            f"drifts {'to the better' if d.better else 'to the worse'} by {100 * (d.ratio - 1):+.3g} % ({low:+.3g} to {high:+.3g}) over "
            f"{count}, no single point is to blame"
        )
    if s.curve is not None:
        ends = [f"{amount(s.curve.values[i], s.unit)} at result {i + 1}" for i in (s.curve.lowest, s.curve.highest)]
        return f"changes along a curve over {count}, from {ends[0]} to {ends[1]}, {100 * (_span(s.curve) - 1):+.3g} %; no single point is to blame"
    smallest = (
        ""
        if isinstance(s.smallest_ratio, Unknown)
        else f"; a change of {100 * s.smallest_ratio:.2g} % half way would show"
    )
    if s.model == "steady" and s.correlation >= WANDERS:
        return f"wanders over {count}, {noise}: no level can be told from that{smallest}"
    if s.model == "steady":
        return f"steady over {count}, {noise}{smallest}"
    return f"{len(s.changes)} change{'s' if len(s.changes) > 1 else ''} over {count}, {noise}"


def _span(curve: Curve) -> float:
    """Return the highest value of a curve over its lowest."""
    return curve.values[curve.highest] / curve.values[curve.lowest]


def _change(s: Series, c: Change) -> list[str]:
    low, high = (100.0 * (x - 1.0) for x in c.ci95)
    at = s.points[c.index]
    between = "" if c.first == c.last else f" (between {s.points[c.first].when[:19]} and {s.points[c.last].when[:19]})"
    lines = [
        f"{'better' if c.better else 'worse'}: {100 * (c.ratio - 1):+.3g} % ({low:+.3g} to {high:+.3g}) from {at.when[:19]}{between}"
    ]
    told = [clean(d.text) for d in c.environment]
    lines.append(
        "  changed there: " + "; ".join(told)
        if told
        else "  nothing that the documents tell of the environment changed there"
    )
    return lines
