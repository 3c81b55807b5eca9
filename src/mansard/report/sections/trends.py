"""Figures over a history: their levels, where a level changed and how sure that is, and what of the environment changed there."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from mansard.report.history_text import amount
from mansard.report.history_trend import late_text
from mansard.report.sections.blocks import Cell, Chart, Prose, Section, Series, Table, number, reason_of, words
from mansard.report.text import shorten

#: Most figures that have a chart of their own; those that changed come first.
CHARTS = 12
_ORDER = ("steps", "drift", "steady", "too_short")
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
        key=lambda s: (_ORDER.index(s["model"]), not s.get("late"), -max(map(_far, s["changes"]), default=0.0)),
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
    changed = any(s["changes"] or s["drift"] is not None for s in series)
    blocks.insert(1 if drawn else 0, _table(series))
    if changed:
        blocks.insert(0, Prose(lines=[_CAUTION]))
    return Section(key=key, title="History", small=f"{name}: {document['source']}", blocks=blocks)


def headline(document: Mapping[str, Any]) -> str:
    """Return what changed in one sentence: the largest change for the worse, else the largest for the better, with its interval."""
    series = document["series"]
    counts = {m: sum(s["model"] == m for s in series) for m in _ORDER}
    if not series:
        return f"{document['source']}: no figure has results over time."
    calm = words(
        [
            f"{counts[m]} {text}"
            for m, text in (("drift", "drifting"), ("steady", "steady"), ("too_short", "with too few results to tell"))
            if counts[m]
        ]
    )
    steps = [(s, c) for s in series for c in s["changes"]]
    late = [s for s in series if s.get("late")]
    if not steps and not counts["drift"]:
        if late:
            off = max(late, key=lambda s: (not s["late"]["better"], _far(s["late"])))
            return f"{_title(off, series)}: {late_text(off['late'])}. Before, no level changed: {calm}."
        return f"No level changed: {calm}."
    if not steps:
        worst = max(
            (s for s in series if s["drift"] is not None), key=lambda s: (not s["drift"]["better"], _far(s["drift"]))
        )
        d = worst["drift"]
        return f"{_title(worst, series)} drifts: {_direction(d)} over {len(worst['points'])} results. Of {len(series)} figures: {calm}."
    told, change = max(steps, key=lambda t: (not t[1]["better"], _far(t[1])))
    others = f" {counts['steps']} of {len(series)} figures changed" + (f", {calm}." if calm else ".")
    return f"{_title(told, series)} is {_direction(change)} since {_day(change['when'])}; {_because(change)}.{others}"


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
        f"there changed {words(told, 4)}"
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
    if one.get("late"):
        notes.append(f"{late_text(one['late']).capitalize()}.")
    return Chart(
        label=f"{title} over {len(one['points'])} results, oldest first: {_model(one)}", x_title="result, oldest first",
        y_title=f"{shorten(str(one['metric']), 60)}, {'ratio' if unit == '1' else unit}", series=[*series, *_lines(one)],
        uprights=[(c["index"] + 0.5, _short(c)) for c in one["changes"]],
        bands=[(c["first"] + 0.5, c["last"] + 0.5, "host" if c["better"] else "latency") for c in one["changes"] if c["last"] > c["first"]],
        notes=notes,
    )  # fmt: skip


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
        for c in [*one["changes"], *([one["drift"]] if one["drift"] is not None else [])]:
            low, high = c["ci95"]
            step = "when" in c
            rows.append([
                title, "worse" if not c["better"] else "better", Cell(_percent(c["ratio"]), c["ratio"] - 1.0),
                Cell(f"{_percent(low)} to {_percent(high)}", low - 1.0), _day(c["when"]) if step else "all along",
                _span(c) if step else "", words(map(_difference, c["environment"])) if step else "",
                spread, count, "",
            ])  # fmt: skip
        if one.get("late"):
            late = one["late"]
            low, high = late["ci95"]
            rows.append([
                title, f"{'better' if late['better'] else 'worse'}, or an outlier", Cell(_percent(late["ratio"]), late["ratio"] - 1.0),
                Cell(f"{_percent(low)} to {_percent(high)}", low - 1.0), _day(one["points"][-late["count"]]["when"]),
                "the last result" if late["count"] == 1 else f"the last {late['count']} results", "", spread, count, "",
            ])  # fmt: skip
        if one["model"] in ("steady", "too_short"):
            smallest = number(one["smallest_ratio"])
            shows = f"a change of {100.0 * smallest:.2g}\u00a0% half way would show" if smallest is not None else ""
            rows.append([
                title, "steady" if one["model"] == "steady" else "not known", Cell("\u2013"), Cell("\u2013"), "", "", "", spread, count,
                shows or reason_of(one["smallest_ratio"]),
            ])  # fmt: skip
    return Table(
        label="What changed", rows=rows, texts=frozenset({0, 1, 4, 5, 6, 9}), filter_by=1,
        columns=("figure", "change", "level", "95 %", "since", "place, 95 %", "changed in the environment there", "noise", "results", "what would show"),
        notes=["Level: new over old. Noise: deviation of the results around their level. Other devices, types, shapes or configurations are other figures."],
    )  # fmt: skip
