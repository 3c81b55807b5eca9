"""Figures over a history: their levels, where a level changed and how sure that is, and what of the environment changed there."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from mansard.report.history_text import amount
from mansard.report.history_trend import last_text, late_text
from mansard.report.sections.blocks import Cell, Chart, Prose, Section, Series, Table, number, reason_of, words
from mansard.report.text import shorten

#: Most figures that have a chart of their own; those that changed come first.
CHARTS = 12
#: Results that the axis of a chart names with their dates.
DATES = 7
_ORDER = ("steps", "drift", "curve", "steady", "too_short")
_CAUTION = (
    "A change is a question, not a verdict on the program: where results that follow each other resemble each other, noise shows levels "
    "too. To answer it, run both sides in turn and let mansard compare judge them."
)


def trend(document: Mapping[str, Any], *, key: str, name: str) -> Section:
    """Return the series of a `trend` document, those that changed first: a chart each, and one table of what changed.

    Args:
        document: A `trend/1` document.
        key: Identifier of the section.
        name: Its file.
    """
    series = sorted(
        document["series"],
        key=_place_of,
    )
    drawn = [s for s in series if s["points"]][:CHARTS]
    blocks: list[Any] = [_chart(s, _title(s, series)) for s in drawn]
    if len(series) > len(drawn):
        rest = [_title(s, series) for s in series[len(drawn) :]]
        blocks.append(
            Prose(
                lines=[f"Drawn are {len(drawn)} of {len(series)} figures; the table has all. Not drawn: {words(rest)}."]
            )
        )
    blocks.insert(0, _table(series))
    if any(map(_changes, series)):
        blocks.insert(1, Prose(lines=[_CAUTION]))
    return Section(key=key, title="History", small=f"{name}: {document['source']}", blocks=blocks)


def _place_of(one: Mapping[str, Any]) -> tuple[bool, bool, bool, float, int]:
    """Return the order of the headline: what became worse first, levels before drifts and the largest first, then what became better."""
    every = _changes(one)
    worse = [c for c in every if not c["better"]]
    return (
        not worse,
        not every,
        not one["changes"],
        -max(map(_far, worse or every), default=0.0),
        _ORDER.index(one["model"]) - 4 * bool(one.get("late")),
    )


def _changes(one: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the changes of level of a series, or its drift."""
    return [*one["changes"], *([one["drift"]] if one["drift"] is not None else [])]


def headline(document: Mapping[str, Any]) -> str:
    """Return what changed: the largest change for the worse with its values, interval and date, then every other figure by name."""
    series = sorted(document["series"], key=_place_of)
    counts = {m: sum(s["model"] == m for s in series) for m in _ORDER}
    if not series:
        return f"{document['source']}: no figure has results over time."
    calm = words(
        [
            f"{counts[m]} {text}"
            for m, text in (
                ("steady", "steady"),
                ("curve", "along a curve"),
                ("too_short", "with too few results to tell"),
            )
            if counts[m]
        ]
    )
    told = [s for s in series if _changes(s)]
    if not told:
        late = [s for s in series if s.get("late")]
        if late:
            off = max(late, key=lambda s: (not s["late"]["better"], _far(s["late"])))
            return f"{_title(off, series)}: {late_text(off['late'])}. Before, no level changed: {calm}."
        return f"No level changed: {calm}."
    top, *rest = told
    parts = [f"{_title(top, series)}: {_told(top)}."]
    for word, mine in (
        ("Also worse", [s for s in rest if _is_worse(s)]),
        ("Better", [s for s in rest if not _is_worse(s)]),
    ):
        if mine:
            parts.append(f"{word}: {words((f'{_title(s, series)} {_brief(s)}' for s in mine), 3)}.")
    quiet = [_title(s, series) for s in series if s["model"] == "steady"]
    if quiet:
        parts.append(f"Steady: {words(quiet, 3)}.")
    curved = [_title(s, series) for s in series if s["model"] == "curve"]
    if curved:
        parts.append(f"Along a curve, for which no single result is to blame: {words(curved, 3)}.")
    if counts["too_short"]:
        parts.append(f"Too few results to tell: {counts['too_short']}.")
    return " ".join(parts)


def _is_worse(one: Mapping[str, Any]) -> bool:
    return any(not c["better"] for c in _changes(one))


def _main(one: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the change that a sentence is about: the largest for the worse, else the largest."""
    return max(_changes(one), key=lambda c: (not c["better"], _far(c)))


def _told(one: Mapping[str, Any]) -> str:
    """Return the main change of a series with its values, interval, date and what changed beside it."""
    change, values = _main(one), _values(one, _main(one))
    if "when" not in change:
        return f"drifts{values}, {_direction(change)} from the first to the last of {len(one['points'])} results"
    return (
        f"{values.strip()}{', ' if values else ''}{_direction(change)} since {_day(change['when'])}; {_because(change)}"
    )


def _brief(one: Mapping[str, Any]) -> str:
    change = _main(one)
    more = len(one["changes"]) - 1
    return (
        ("drifts " if "when" not in change else "") + _percent(change["ratio"]) + (f" since {_day(change['when'])[:10]}" if "when" in change else "")
        + (f" (and {more} other change{'s' if more > 1 else ''})" if more > 0 else "")
    )  # fmt: skip


def _values(one: Mapping[str, Any], change: Mapping[str, Any]) -> str:
    """Return the level before and after a change, or both ends of a drift; empty where they are not known."""
    unit, levels = str(one["unit"]), _levels(one)
    if "when" not in change:
        if not levels or not change["ratio"] > 0.0:
            return ""
        centre, half = levels[0][2], math.sqrt(change["ratio"])
        return f" {amount(centre / half, unit)} to {amount(centre * half, unit)}"
    before = next((v for _, high, v in levels if high == change["index"]), None)
    after = next((v for low, _, v in levels if low == change["index"]), None)
    return f" {amount(before, unit)} to {amount(after, unit)}" if before is not None and after is not None else ""


def first(document: Mapping[str, Any]) -> list[str]:
    """Return what to do first about a change, and how sure it is; nothing where none was found."""
    told = sorted((s for s in document["series"] if _changes(s)), key=_place_of)
    if not told:
        return []
    change = _main(told[0])
    differ = words(map(_difference, change.get("environment") or ()), 2)
    sides = (
        f" that differ in {differ} alone"
        if differ
        else " of before and after"
        if "when" in change
        else ", the first version and the last,"
    )
    return [
        f"Try first: run two sides{sides} in turn on one machine, and let mansard compare judge them.",
        "How sure: the 95\u00a0% is of the size of the change, given that there is one.",
    ]


def _far(change: Mapping[str, Any]) -> float:
    return abs(math.log(max(1e-300, number(change["ratio"]) or 1.0)))


def _title(one: Mapping[str, Any], series: Sequence[Mapping[str, Any]]) -> str:
    """Return the name of a series; of several of that name, with the conditions that tell it apart."""
    several = sum(s["name"] == one["name"] for s in series) > 1
    return f"{one['name']} ({str(one['conditions'])[:8]})" if several else str(one["name"])


def _day(when: object) -> str:
    return str(when)[:16].replace("T", " ")


def _percent(ratio: float) -> str:
    return f"{100.0 * (ratio - 1.0):+.3g}\u00a0%"


def _direction(change: Mapping[str, Any]) -> str:
    """Return a change in words with its interval.

    >>> _direction({"better": False, "ratio": 1.1, "ci95": [1.05, 1.15]}).replace(chr(160), " ")
    'worse: +10 % (95 % in +5 % to +15 %)'
    """
    low, high = change["ci95"]
    word = "better" if change["better"] else "worse"
    return f"{word}: {_percent(change['ratio'])} (95\u00a0% in {_percent(low)} to {_percent(high)})"


def _because(change: Mapping[str, Any]) -> str:
    told = [_difference(d) for d in change["environment"]]
    return (
        f"{words(told, 4)} at the same result (not proof)"
        if told
        else "nothing that the documents tell of the environment changed there"
    )


def _difference(d: Mapping[str, Any]) -> str:
    """Return one difference of the environment in words.

    >>> _difference({"component": "driver", "key": "name", "baseline": "580", "candidate": "590"})
    'driver 580 -> 590'
    """
    where = d["component"] if d["key"] in (d["component"], "name") else f"{d['component']} {d['key']}"
    return f"{where} {shorten(str(d['baseline']), 40) or '?'} -> {shorten(str(d['candidate']), 40) or '?'}"


def _levels(one: Mapping[str, Any]) -> list[tuple[int, int, float]]:
    """Return first index, end and value of each level: the geometric mean of its points without outliers."""
    late = one.get("late")  # last results that are no level yet belong to none
    edges = [0, *(int(c["index"]) for c in one["changes"]), len(one["points"]) - (int(late["count"]) if late else 0)]
    out = []
    for low, high in itertools.pairwise(edges):
        held = [p["value"] for p in one["points"][low:high] if not p["outlier"]]
        if held:
            out.append((low, high, math.exp(math.fsum(math.log(v) for v in held) / len(held))))
    return out


def _lines(one: Mapping[str, Any]) -> list[Series]:
    """Return the levels of a series, or its drift, as thin lines; too few points have neither."""
    if one["model"] == "too_short":
        return []
    if one.get("curve"):
        ys = [float(v) for v in one["curve"]["values"]]
        xs = [i + 1.0 for i in range(len(ys))]
        return [Series(name="curve", x=xs, y=ys, mode="lines", colour="undetermined", quiet=True)]
    if one["drift"] is not None:
        (_, count, centre), ratio = _levels(one)[0], one["drift"]["ratio"]
        xs = [1.0, float(count)]
        ys = [centre * ratio**-0.5, centre * ratio**0.5]  # a straight line of logarithms through their mean
        return [Series(name="drift", x=xs, y=ys, mode="lines", colour="undetermined", quiet=True)]
    return [
        Series(
            name="level", x=[low + 0.6, high + 0.4], y=[value, value], mode="lines", colour="undetermined", quiet=True
        )
        for low, high, value in _levels(one)
    ]


def _chart(one: Mapping[str, Any], title: str) -> Chart:
    """Return a series over its results: points, outliers, levels; an upright where a level begins, shaded over its interval."""
    unit = str(one["unit"])

    def of(outlier: bool) -> list[int]:
        return [i for i, p in enumerate(one["points"]) if bool(p["outlier"]) is outlier]

    series = [
        Series(
            name=name, mode=mode, colour=colour, x=[i + 1 for i in mine], y=[one["points"][i]["value"] for i in mine],
            text=[_point(one["points"][i], i, unit) for i in mine],
        )
        for name, mode, colour, mine in (("result", "markers", "compute", of(False)), ("outlier, moves no level", "markers", "latency", of(True)))
        if mine
    ]  # fmt: skip
    notes = [
        f"From result {c['index'] + 1} on, {_day(c['when'])}{_place(c)}: {_direction(c)}; {_because(c)}."
        for c in one["changes"]
    ]
    if one["drift"] is not None:
        notes.append(f"It drifts, {_direction(one['drift'])} from the first to the last; no single result is to blame.")
    if one.get("curve"):
        notes.append(
            f"It changes along a curve, {_percent(one['curve']['ratio'])} from its lowest to its highest; no single result is to blame."
        )
    if one.get("late"):
        notes.append(f"{late_text(one['late']).capitalize()}.")
    if one.get("last"):
        said = last_text([p["value"] for p in one["points"]], unit, one["last"]["verdict"], one["last"]["reason"])
        notes.append(f"T{said[1:]}.")
    return Chart(
        label=f"{title} over {len(one['points'])} results, oldest first: {_model(one)}", x_title="result, oldest first, with its date", x_names=_dates(one["points"]),
        y_title=f"{shorten(str(one['metric']), 60)}, {'ratio' if unit == '1' else unit}", series=[*series, *_lines(one)],
        uprights=[(c["index"] + 0.5, _short(c)) for c in one["changes"]],
        bands=[(c["first"] + 0.5, c["last"] + 0.5, "host" if c["better"] else "latency") for c in one["changes"] if c["last"] > c["first"]],
        notes=notes,
    )  # fmt: skip


def _dates(points: Sequence[Mapping[str, Any]]) -> list[tuple[float, str]]:
    """Return some results, evenly spread, with the days they were made.

    >>> _dates([{"when": "2026-01-01T08:00"}, {"when": "2026-01-03T08:00"}])
    [(1.0, '2026-01-01'), (2.0, '2026-01-03')]
    """
    last = len(points) - 1
    chosen = sorted({round(i * last / (DATES - 1)) for i in range(DATES)}) if last > 0 else range(len(points))
    return [(i + 1.0, str(points[i]["when"])[:10]) for i in chosen]


def _point(p: Mapping[str, Any], index: int, unit: str) -> str:
    return f"result {index + 1}, {_day(p['when'])}, {p['source']}: {amount(p['value'], unit)}" + (
        "; an outlier" if p["outlier"] else ""
    )


def _short(change: Mapping[str, Any]) -> str:
    told = list(dict.fromkeys(str(d["component"]) for d in change["environment"]))
    return f"{_percent(change['ratio'])}{', ' + words(told, 2) if told else ''}"


def _place(change: Mapping[str, Any]) -> str:
    """Return how sure the place of a change is."""
    if change["first"] == change["last"]:
        return ""
    return f" (95\u00a0% between result {change['first'] + 1} and {change['last'] + 1}, shaded)"


def _span(change: Mapping[str, Any]) -> str:
    first, last = change["first"] + 1, change["last"] + 1
    return f"result {first}" if first == last else f"result {first} to {last}"


def _model(one: Mapping[str, Any]) -> str:
    """Return what a series does, in a few words."""
    count = len(one["changes"])
    return {
        "steps": f"{count} change{'s' if count != 1 else ''} of level",
        "drift": "a drift",
        "curve": "a curve",
        "steady": "steady",
        "too_short": "too few to tell a level",
    }[str(one["model"])]


def _table(series: Sequence[Mapping[str, Any]]) -> Table:
    """Return a row for each change, and one for each figure without any."""
    rows: list[list[str | Cell]] = []
    for one in series:
        title, noise = _title(one, series), number(one["noise_ratio"])
        count = Cell(str(len(one["points"])), float(len(one["points"])))
        spread = Cell(f"{100.0 * noise:.2g}\u00a0%", noise) if noise is not None else Cell("?")
        for c in _changes(one):
            low, high = c["ci95"]
            step = "when" in c
            rows.append([
                title, "worse" if not c["better"] else "better", _values(one, c).strip(), Cell(_percent(c["ratio"]), c["ratio"] - 1.0),
                Cell(f"{_percent(low)} to {_percent(high)}", low - 1.0),
                _day(c["when"]) if step else "all along", _span(c) if step else "", words(map(_difference, c["environment"])) if step else "",
                spread, count,
            ])  # fmt: skip
        if one.get("late"):
            late = one["late"]
            low, high = late["ci95"]
            rows.append([
                title, f"{'better' if late['better'] else 'worse'}, or an outlier", "", Cell(_percent(late["ratio"]), late["ratio"] - 1.0),
                Cell(f"{_percent(low)} to {_percent(high)}", low - 1.0), _day(one["points"][-late["count"]]["when"]),
                "the last result" if late["count"] == 1 else f"the last {late['count']} results", "", spread, count,
            ])  # fmt: skip
        if one["model"] == "curve":
            ratio = float(one["curve"]["ratio"])
            rows.append([
                title, "along a curve", "", Cell(_percent(ratio), ratio - 1.0), Cell("\u2013"), "all along", "", "", spread, count,
            ])  # fmt: skip
        if one["model"] in ("steady", "too_short"):
            smallest = number(one["smallest_ratio"])
            shows = f"{100.0 * smallest:.2g}\u00a0% half way would show" if smallest is not None else ""
            steady, levels = one["model"] == "steady", _levels(one)
            rows.append([
                title, "steady" if steady else "not known", amount(levels[0][2], str(one["unit"])) if steady and levels else "",
                Cell("\u2013"), Cell("\u2013"), "", "", shows or reason_of(one["smallest_ratio"]), spread, count,
            ])  # fmt: skip
    return Table(
        label="What changed", rows=rows, texts=frozenset({0, 1, 2, 5, 6, 7}), filter_by=1,
        columns=("figure", "change", "value", "by", "95 %", "since", "place, 95 %", "changed with it", "noise", "results"),
        notes=["By: new level over old, of a drift last over first, of a curve highest over lowest. Changed with it: what the documents tell of the environment of the same result, which is no "
               "proof; of a steady figure, what would have shown. Noise: standard deviation of the results around their level. Other devices, types, shapes or configurations "
               "are other figures."],
    )  # fmt: skip
