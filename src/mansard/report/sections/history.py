"""Sections of the history: what a comparison or a gate found, and each figure over the results that a store keeps."""

from __future__ import annotations

import base64
import binascii
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mansard.core.errors import InputError
from mansard.core.unknown import Unknown
from mansard.history.compare import compare
from mansard.history.documents import read_bytes
from mansard.history.records import METRICS, Measurement
from mansard.report.history_text import amount
from mansard.report.sections.blocks import Cell, Chart, Prose, Section, Series, Table, number, words
from mansard.report.text import shorten

#: Most figures that have a chart of their own; most rows of one forest of ratios.
CHARTS, BARS = 12, 40
_STATES = ("accepted", "pending", "retired", "recorded")
_COLOURS = {"accepted": "host", "pending": "memory", "retired": "undetermined", "recorded": "compute"}
#: Colours of verdicts: the same as those of the page's kinds of bound, with words beside them everywhere.
_VERDICTS = {"slower": "latency", "faster": "host", "same": "compute", "inconclusive": "undetermined", "not_comparable": "network",
             "implausible": "memory", "fail": "latency", "pass": "host", "undecided": "undetermined"}  # fmt: skip


def comparison(document: Mapping[str, Any], *, key: str, name: str) -> Section:
    """Return the results of a `compare` or `check` document: each figure with its verdict, change, interval and reason."""
    rows: list[tuple[str | Cell, ...]] = []
    counts: dict[str, int] = {}
    drawn: dict[str, list[tuple[str, float, float, float]]] = {}
    for r in document["results"]:
        verdict, ratio, ends = str(r["verdict"]), number(r.get("ratio")), r.get("ci95")
        counts[verdict] = counts.get(verdict, 0) + 1
        low, high = (number(e) for e in ends) if isinstance(ends, list | tuple) and len(ends) == 2 else (None, None)
        known = ratio is not None and low is not None and high is not None
        if ratio is not None and low is not None and high is not None:
            drawn.setdefault(verdict, []).append((str(r["name"]), ratio, low, high))
        unit = str(r.get("unit") or "1")
        rows.append((
            str(r["name"]), verdict, _figure(r.get("baseline"), unit), _figure(r.get("candidate"), unit),
            Cell("?") if ratio is None else Cell(f"{ratio:.4g}", ratio),
            Cell(f"{low:.4g} to {high:.4g}", low) if known else Cell("?"), str(r.get("reason") or ""),
        ))  # fmt: skip
    told = words(f"{n} {verdict.replace('_', ' ')}" for verdict, n in sorted(counts.items(), key=lambda c: -c[1]))
    table = Table(
        label="Results of the comparison", rows=rows, texts=frozenset({0, 1, 6}), filter_by=1,
        columns=("figure", "verdict", "baseline", "candidate", "ratio", "95 %", "why"),
        notes=["Ratio: candidate over baseline. Of a time, above 1 is slower; of a rate, above 1 is faster."],
    )  # fmt: skip
    total = document.get("verdict", document.get("outcome"))
    small = (
        f"{name}: {str(total).replace('_', ' ') if isinstance(total, str) else 'no verdict'}; {told or 'no results'}"
    )
    return Section(key=key, title="Did it change", small=small, blocks=[*_forest(drawn), table])


def _figure(value: Any, unit: str) -> Cell:
    known = number(value)
    return Cell("?" if value is not None else "\u2013") if known is None else Cell(amount(known, unit), known)


def _forest(drawn: Mapping[str, Sequence[tuple[str, float, float, float]]]) -> list[Chart]:
    """Return ratios with their intervals, the largest changes first."""
    every = [(verdict, *r) for verdict, rows in drawn.items() for r in rows]
    if not every:
        return []
    kept = sorted(every, key=lambda r: -abs(math.log(max(r[2], 1e-9))))[:BARS]
    series = [
        Series(
            name=verdict.replace("_", " "), colour=_VERDICTS.get(verdict, ""), mode="markers", x=[r[1] for r in mine], y=[r[2] for r in mine],
            low=[r[3] for r in mine], high=[r[4] for r in mine],
            text=[f"{r[1]}: {r[2]:.4g}, 95 % in {r[3]:.4g} to {r[4]:.4g}; {verdict.replace('_', ' ')}" for r in mine],
        )
        for verdict in drawn if (mine := [r for r in kept if r[0] == verdict])
    ]  # fmt: skip
    more = [f"The {len(kept)} largest changes of {len(every)}; all are in the table."] if len(every) > len(kept) else []
    return [
        Chart(
            label="Candidate over baseline, with 95 % intervals", x_title="candidate over baseline, ratio", y_title="", sideways=True, series=series,
            uprights=((1.0, "no change"),), notes=more,
        )
    ]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """One result of a store.

    Args:
        baseline: The baseline it belongs to, empty for none.
        state, reason: Its state there, and why.
        when: When it was made, or came in.
        source: Its file.
        figures: Value, lower and upper end of each figure by name; the ends are None where none is known.
        units: Unit of each figure.
    """

    baseline: str
    state: str
    reason: str
    when: str
    source: str
    figures: Mapping[str, tuple[float, float | None, float | None]]
    units: Mapping[str, str]


def baselines(document: Mapping[str, Any], *, key: str, name: str) -> Section:
    """Return the baselines of a store, and each figure of its results over time where the document lists them."""
    rows = [
        {"baseline": b["name"], **{s: Cell(str(n), float(n)) for s, n in b["states"].items()}, "last": str(b["last"])[:19].replace("T", " ")}
        for b in document["baselines"]
    ]  # fmt: skip
    columns = list(dict.fromkeys(k for r in rows for k in r)) or ["baseline"]
    texts = frozenset(i for i, c in enumerate(columns) if c in ("baseline", "last"))
    table = Table(label="Baselines", columns=columns, texts=texts, rows=[[r.get(c, "") for c in columns] for r in rows])
    kept = [_of_record(r, baseline="", state="recorded", reason="") for r in document.get("records") or ()]
    hint = [] if kept else [Prose(lines=["The results themselves: mansard baseline list --records --json."])]
    return Section(key=key, title="History", small=name, blocks=[table, *_trend(kept), *hint])


def baseline(document: Mapping[str, Any], *, key: str, name: str) -> Section:
    """Return the results of a baseline: each figure over time, its state and why it has it."""
    kept = [
        _of_record(e["record"], baseline=str(document["name"]), state=str(e["state"]), reason=str(e["reason"]), added=str(e["added"]))
        for e in document["entries"]
    ]  # fmt: skip
    return Section(
        key=key, title="History", small=f"{name}: baseline {document['name']}", blocks=[*_trend(kept), _entries(kept)]
    )


def archive(document: Mapping[str, Any], *, key: str, name: str) -> Section:
    """Return the results of an archive: every benchmark over time, and the newest result judged against those that were accepted before it.

    Raises:
        InputError: a document in it is not what its digest says.
    """
    kept, records = [], []
    for e in document["entries"]:
        try:
            raw = base64.b64decode(e["document_base64"], validate=True)
        except binascii.Error as error:
            raise InputError(f"{name}: a document is not base64: {error}") from None
        if hashlib.sha256(raw).hexdigest() != e["sha256"]:
            raise InputError(
                f"{name}: the document {str(e['sha256'])[:12]} was changed", hint="export the baseline again"
            )
        record = read_bytes(raw, source=str(e["source"]), labels=e.get("labels"))
        figures = {m.name: f for m in record.measurements if (f := _measured(m)) is not None}
        units = {m.name: m.unit for m in record.measurements}
        kept.append(_Kept(baseline=str(document["name"]), state=str(e["state"]), reason=str(e["reason"]), when=record.created or str(e["added"]),
                          source=str(e["source"]), figures=figures, units=units))  # fmt: skip
        records.append((str(e["state"]), record))
    blocks: list[Any] = [*_trend(kept), _entries(kept)]
    before = [r for state, r in records[:-1] if state == "accepted"]
    if before and len(records) > 1:
        found = compare(before, [records[-1][1]])
        results = [r.to_json() for r in found.results]
        said = comparison({"results": results, "verdict": found.verdict.value}, key=key, name="")
        lines = [
            f"The newest, {records[-1][1].source}, against the {len(before)} accepted before it: {found.verdict.value.replace('_', ' ')}."
        ]
        blocks += [Prose(lines=lines), *said.blocks]
    return Section(key=key, title="History", small=f"{name}: baseline {document['name']}", blocks=blocks)


def _measured(m: Measurement) -> tuple[float, float | None, float | None] | None:
    """Return a figure with the spread of its samples (their quartiles), or with the interval that it states."""
    value = m.value
    if isinstance(value, Unknown) or m.flaw:
        return None
    samples = sorted(m.samples)
    if len(samples) >= 4:
        return value, samples[len(samples) // 4], samples[-1 - len(samples) // 4]
    return (value, m.stated[1], m.stated[2]) if m.stated is not None else (value, None, None)


def _of_record(record: Mapping[str, Any], *, baseline: str, state: str, reason: str, added: str = "") -> _Kept:
    figures = {m: v for m, f in record["figures"].items() if (v := number(f)) is not None}
    return _Kept(
        baseline=baseline, state=state, reason=reason, when=str(record.get("created") or added or record.get("added") or ""),
        source=str(record["source"]), figures={m: (v, None, None) for m, v in figures.items()},
        units={m: METRICS[m][0] for m in figures if m in METRICS},
    )  # fmt: skip


def _trend(kept: Sequence[_Kept]) -> list[Any]:
    """Return a chart for each figure that several results have, those of most results first."""
    order = sorted(range(len(kept)), key=lambda i: (kept[i].when, i))
    places = {i: n for n, i in enumerate(order, 1)}
    names: dict[str, int] = {}
    for k in kept:
        for m in k.figures:
            names[m] = names.get(m, 0) + 1
    several = sorted((m for m, n in names.items() if n > 1), key=lambda m: -names[m])
    blocks: list[Any] = [_trend_chart(m, kept, places) for m in several[:CHARTS]]
    if len(several) > CHARTS:
        blocks.append(
            Prose(
                lines=[
                    f"Drawn are {CHARTS} of {len(several)} figures that several results have: {words(several[CHARTS:])} are in the files."
                ]
            )
        )
    if not several and kept:
        blocks.append(Prose(lines=["No figure is in more than one of these results, so there is no trend to draw."]))
    return blocks


def _trend_chart(metric: str, kept: Sequence[_Kept], places: Mapping[int, int]) -> Chart:
    unit = next((k.units[metric] for k in kept if metric in k.units), "1")
    series = []
    for state in _STATES:
        mine = sorted(
            (i for i, k in enumerate(kept) if k.state == state and metric in k.figures), key=lambda i: places[i]
        )
        if not mine:
            continue
        triples = [kept[i].figures[metric] for i in mine]
        series.append(
            Series(
                name=state, colour=_COLOURS[state], mode="lines+markers" if state in ("accepted", "recorded") else "markers",
                x=[places[i] for i in mine], y=[t[0] for t in triples], low=[t[1] for t in triples], high=[t[2] for t in triples],
                text=[
                    f"{kept[i].when[:19].replace('T', ' ')} {kept[i].source}: {amount(kept[i].figures[metric][0], unit)}, {state}. {kept[i].reason}".strip()
                    for i in mine
                ],
            )
        )  # fmt: skip
    said = f"{shorten(metric, 60)}, {'ratio' if unit == '1' else unit}"
    return Chart(
        label=f"{metric} over the results, oldest first", x_title="result, oldest first", y_title=said, series=series
    )


def _entries(kept: Sequence[_Kept]) -> Table:
    rows = [
        (k.when[:19].replace("T", " "), k.state, k.source, words(f"{shorten(m, 40)} {amount(v[0], k.units.get(m, '1'))}" for m, v in k.figures.items()), k.reason)
        for k in sorted(kept, key=lambda k: k.when)
    ]  # fmt: skip
    return Table(
        label="Results of the baseline",
        columns=("made", "state", "file", "figures", "why"),
        rows=rows,
        texts=frozenset(range(5)),
        filter_by=1,
    )


def additions(document: Mapping[str, Any], *, key: str, name: str) -> Section:
    """Return what became of results that were offered to a baseline, with each comparison."""
    rows = [(str(a["source"]), str(a["action"]), str(a["text"])) for a in document["added"]]
    blocks: list[Any] = [
        Table(label="Offered", columns=("file", "what became of it", "why"), rows=rows, texts=frozenset(range(3)))
    ]
    for a in document["added"]:
        if a.get("comparison"):
            found = comparison(a["comparison"], key=key, name=str(a["source"]))
            blocks += [Prose(lines=[found.small]), *found.blocks]
    return Section(key=key, title="Offered to a baseline", small=f"{name}: {document['name']}", blocks=blocks)
