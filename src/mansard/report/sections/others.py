"""Sections of the other documents: further runs beside the first, estimates, comparisons of ranks, files, environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mansard.core.units import format_bytes, format_flop, format_ratio, format_s
from mansard.core.unknown import Implausible
from mansard.diagnose.records import Diagnosis
from mansard.report import chart
from mansard.report.sections.blocks import (
    Cell,
    Chart,
    Facts,
    Prose,
    Section,
    Series,
    Table,
    facts_of,
    number,
    reason_of,
    words,
)
from mansard.report.text import count, figure, intensity

_KINDS = ("measured", "derived", "declared")


def _cell(value: Any, write: Any) -> Cell:
    """Return a figure of a record; one that is not known sorts last."""
    plain = value if isinstance(value, int | float) else number(value)
    return Cell(figure(value, write), plain)


def runs(diagnoses: Sequence[tuple[str, Diagnosis]]) -> Section | None:
    """Return the runs of a page side by side; None for a single one.

    Args:
        diagnoses: Names of the files and what they hold, the one that heads the page first.
    """
    if len(diagnoses) < 2:
        return None
    rows = []
    for name, d in diagnoses:
        best = d.advice[0] if d.advice else None
        rows.append((
            name, d.verdict.bound.value, _cell(d.step.median_s, format_s), _cell(d.verdict.share_of_ceiling, format_ratio),
            _cell(d.verdict.headroom_s, format_s), _cell(d.mfu_ratio, format_ratio), d.verdict.grade.value,
            _cell(best.gain_s, format_s) if best else Cell("\u2013"), best.text if best else "", d.verdict.sentence,
        ))  # fmt: skip
    table = Table(
        label="Results of this page", rows=rows, texts=frozenset({0, 1, 6, 8, 9}), filter_by=1, swatch=1,
        columns=("result", "bound", "step", "of ceiling", "headroom", "MFU", "evidence", "first advice saves", "first advice", "verdict"),
        notes=["The first result heads this page; the operators of the others follow below, folded. Whether two of them differ is for mansard compare to say."],
    )  # fmt: skip
    return Section(key="runs", title="Results side by side", small=f"{len(rows)} diagnoses", blocks=(table,))


def run(diagnosis: Diagnosis, *, key: str, name: str) -> Section:
    """Return a further run: its verdict, roofline, operators and advice, folded."""
    d = diagnosis
    advice = [f"Saves at most {format_s(a.gain_s)} per step: {a.text} ({a.evidence})" for a in d.advice[:10]]
    blocks = [
        Prose(
            lines=[
                d.verdict.sentence,
                *d.verdict.evidence,
                *(f"Against it: {t}" for t in d.verdict.counter_evidence),
                *advice,
            ]
        ),
        *_small_roofline(d),
        _operators(d),
    ]
    return Section(
        key=key,
        title=name,
        small=f"{d.verdict.bound.value}, step {format_s(d.step.median_s)}",
        blocks=blocks,
        folded=True,
    )


def _small_roofline(d: Diagnosis) -> list[Chart]:
    found = chart.roofline(d)
    if not found.points:
        return []
    series = []
    for line in (n for n in found.lines if n.main):
        low, high = found.x_range
        xs = [low * (high / low) ** (i / 40) for i in range(41)]
        if line.slanted and found.roof:
            xs = [x for x in xs if line.flop_per_s(x) <= found.roof * 1.05] or xs[:2]
        dash = {"measured": "solid", "derived": "dash", "declared": "dot"}[line.ceiling.kind.value]
        name = line.ceiling.resource.label
        series.append(
            Series(
                name=name,
                x=xs,
                y=[line.flop_per_s(x) for x in xs],
                text=[name] * len(xs),
                mode="lines",
                dash=dash,
                quiet=not line.used,
            )
        )
    placed = [p for p in found.points if not p.in_lane][:600]
    for bound in dict.fromkeys(p.row.bound.value for p in placed):
        mine = [p for p in placed if p.row.bound.value == bound]
        series.append(
            Series(
                name=f"{bound} bound", x=[p.flop_per_byte for p in mine], y=[p.flop_per_s for p in mine], mode="markers", colour=bound,
                text=[f"{p.row.label}: {format_s(p.row.time_s)}, {figure(p.row.share_of_ceiling, format_ratio)} of {p.row.limiting_ceiling}" for p in mine],
            )
        )  # fmt: skip
    title = "arithmetic intensity, FLOP/byte"
    return [Chart(label="Roofline", x_title=title, y_title="FLOP/s", x_log=True, y_log=True, series=series)]


def _operators(d: Diagnosis) -> Table:
    rows = [
        (
            o.label, o.part, o.bound.value, Cell(count(o.calls), o.calls), Cell(format_s(o.time_s), o.time_s),
            _cell(o.flop, format_flop), _cell(o.bytes, format_bytes),
            Cell(figure(o.flop_per_byte, intensity), o.flop_per_byte), _cell(o.share_of_ceiling, format_ratio), _cell(o.headroom_s, format_s),
        )
        for o in d.operators[:400]
    ]  # fmt: skip
    return Table(
        label="Operators", rows=rows, texts=frozenset({0, 1, 2}), filter_by=2, swatch=2, total=len(d.operators),
        columns=("operator", "part", "bound", "calls", "time", "FLOP", "bytes", "FLOP/byte", "of ceiling", "headroom"),
    )  # fmt: skip


def shares(diagnosis: Diagnosis, *, most: int = 200) -> Section | None:
    """Return operators measured over theory: their share of measured, derived and declared ceilings side by side."""
    rows, bars = [], []
    for o in diagnosis.operators:
        share = number(o.share_of_ceiling)
        if share is None:
            continue
        bars.append((f"{o.label} {o.shapes}".strip(), share, o))
    present = [k for k in _KINDS if any(k in o.shares_by_kind for *_, o in bars)]
    for _, _, o in bars:
        kinds = [number(o.shares_by_kind.get(k)) for k in present]
        rows.append((
            o.label, o.bound.value, Cell(format_s(o.time_s), o.time_s), _cell(o.share_of_ceiling, format_ratio),
            *(Cell("\u2013") if v is None else Cell(format_ratio(v), v) for v in kinds), o.limiting_ceiling,
        ))  # fmt: skip
    if not rows:
        return None
    top = bars[:30]
    names: dict[str, int] = {}
    titles = []
    for title, *_ in top:
        names[title] = names.get(title, 0) + 1
        titles.append(title if names[title] == 1 else f"{title} #{names[title]}")
    chosen = dict.fromkeys(o.bound.value for *_, o in top)
    notes = [f"The {len(top)} longest of {len(rows)} operators whose ceiling is known."] if len(rows) > len(top) else []
    beyond = [o.label for _, s, o in bars if isinstance(o.share_of_ceiling, Implausible)]
    notes += (
        [f"Beyond its ceiling, which cannot be true: {words(beyond)}. The operator table names the suspects."]
        if beyond
        else []
    )
    picture = Chart(
        label="Share of its ceiling of each of the longest operators", x_title="least time over observed time", y_title="", sideways=True,
        percent=True, uprights=((1.0, "ceiling"),),
        series=[
            Series(
                name=bound, colour=bound, mode="bars", x=[t for t, (*_, o) in zip(titles, top, strict=True) if o.bound.value == bound],
                y=[s for _, s, o in top if o.bound.value == bound],
                text=[f"{o.label}: {figure(o.share_of_ceiling, format_ratio)} of {o.limiting_ceiling}, {format_s(o.time_s)} per step"
                      for *_, o in top if o.bound.value == bound],
            )
            for bound in chosen
        ],
        notes=notes,
    )  # fmt: skip
    table = Table(
        label="Shares by kind of ceiling", rows=rows[:most], texts=frozenset({0, 1, 4 + len(present)}), filter_by=1, swatch=1, total=len(rows),
        columns=("operator", "bound", "time", "of ceiling", *(f"of {k}" for k in present), "ceiling"),
    )  # fmt: skip
    return Section(
        key="shares",
        title="Measured over theory",
        small="operators, against each kind of ceiling",
        blocks=(picture, table),
    )


def areas(diagnosis: Diagnosis) -> Section | None:
    """Return every area of a step checked by itself, since several may be bounds of it; None where none was."""
    found = diagnosis.verdict.areas
    if not found:
        return None
    rows = [
        (
            a.area, "yes" if a.is_bound else "no", Cell(format_s(a.time_s), a.time_s), Cell(format_ratio(a.time_share), a.time_share),
            _cell(a.share_of_ceiling, format_ratio), _cell(a.headroom_s, format_s), a.limiting_ceiling or a.link,
        )
        for a in found
    ]  # fmt: skip
    table = Table(
        label="Areas", rows=rows, texts=frozenset({0, 1, 6}), swatch=0,
        columns=("area", "a bound", "time", "of step", "of ceiling", "saves at most", "ceiling"),
        notes=["Several areas may be bounds of one step. Time is that of the operations each area limits; it adds up to the step."],
    )  # fmt: skip
    return Section(key="areas", title="Bounds, each by itself", small="per step", blocks=(table,))


def estimate(document: Mapping[str, Any], *, key: str, name: str) -> Section:
    """Return the section of an `estimate` document: what a model must consume, and the least time of each kernel."""
    totals = document.get("totals") or {}
    rows: list[tuple[str | Cell, ...]] = []
    for k in document.get("kernels") or ():
        time = number(k.get("time_bound_s"))
        rows.append((
            str(k.get("name")), str(k.get("bound") if isinstance(k.get("bound"), str) else "undetermined"),
            *(_json_cell(k.get(c), w) for c, w in (("count", count), ("flop", format_flop), ("bytes", format_bytes))),
            Cell("?" if time is None else format_s(time), time),
        ))  # fmt: skip
    facts = [
        ("phase", str(document.get("phase"))), ("FLOP", _json_text(totals.get("flop"), format_flop)),
        ("bytes", _json_text(totals.get("bytes"), format_bytes)), ("least time", _json_text(totals.get("time_bound_s"), format_s)),
        ("bound", str(totals.get("bound")) if isinstance(totals.get("bound"), str) else reason_of(totals.get("bound"))),
        ("tokens per second, at most", _json_text(totals.get("tokens_per_s"), lambda v: f"{v:.4g}")),
        *((f"prediction, {k}", _json_text(v, format_s)) for k, v in (document.get("prediction") or {}).items() if k in ("low_s", "expected_s", "high_s")),
        *((k.removesuffix("_bytes").replace("_", " "), _json_text(v, format_bytes)) for k, v in (document.get("memory") or {}).items() if k.endswith("_bytes")),
    ]  # fmt: skip
    table = Table(
        label="Kernels of the estimate", rows=rows, texts=frozenset({0, 1}), filter_by=1, swatch=1,
        columns=("kernel", "bound", "count", "FLOP", "bytes", "least time"),
    )  # fmt: skip
    assumed = [str(a.get("text", a) if isinstance(a, Mapping) else a) for a in document.get("assumed") or ()]
    blocks = (Facts(rows=[f for f in facts if f[1]]), table, Prose(lines=[f"Assumed: {a}" for a in assumed]))
    return Section(key=key, title="Estimate", small=name, blocks=blocks)


def _json_text(value: Any, write: Any) -> str:
    known = number(value)
    if known is not None:
        return str(write(known))
    why = reason_of(value)
    return f"not known: {why}" if why else ""


def _json_cell(value: Any, write: Any) -> Cell:
    known = number(value)
    return Cell("?") if known is None else Cell(write(known), known)


def ranks(document: Mapping[str, Any], *, key: str, name: str) -> Section:
    """Return the view of ranks of a `trace ranks` document: who computes, who waits, who makes the others wait."""
    parts = (("compute_s", "compute", "compute"), ("exposed_communication_s", "exposed communication", "network"),
             ("waiting_s", "waiting in collectives", "latency"))  # fmt: skip
    found = list(document.get("ranks") or ())
    labels = [f"rank {r.get('rank') if number(r.get('rank')) is not None else '?'}" for r in found]
    series = [
        Series(
            name=title, colour=colour, mode="bars", x=[x for x, r in zip(labels, found, strict=True) if number(r.get(k)) is not None],
            y=[float(r[k]) for r in found if number(r.get(k)) is not None],
            text=[f"{x}: {title} {format_s(float(r[k]))}" for x, r in zip(labels, found, strict=True) if number(r.get(k)) is not None],
        )
        for k, title, colour in parts[:2]
    ]  # fmt: skip
    columns = ("compute_s", "communication_s", "exposed_communication_s", "waiting_s", "late_s")
    rows: list[tuple[str | Cell, ...]] = [
        (
            x,
            *(_json_cell(r.get(c), format_s) for c in columns),
            _json_cell(r.get("arrived_last"), count),
            str(r.get("source") or "").rsplit("/", 1)[-1],
        )
        for x, r in zip(labels, found, strict=True)
    ]
    straggler, clock = document.get("straggler_rank"), document.get("clock") or {}
    lines = [
        f"Straggler: rank {straggler}." if number(straggler) is not None else f"Straggler: not known, {reason_of(straggler)}.",
        f"Imbalance of compute, longest over mean minus 1: {_json_text(document.get('imbalance_ratio'), format_ratio)}.",
        f"Clocks: {clock.get('method')}, {clock.get('trust')}: {clock.get('note')}",
        *(str(f.get("text")) for f in document.get("findings") or ()),
    ]  # fmt: skip
    table = Table(
        label="Ranks", rows=rows, texts=frozenset({0, 7}),
        columns=("rank", "compute", "communication", "exposed", "waiting", "made others wait", "arrived last", "file"),
    )  # fmt: skip
    picture = Chart(
        label="Time of each rank", x_title="time, s", y_title="", sideways=True, series=[s for s in series if s.y]
    )
    return Section(key=key, title="Ranks", small=name, blocks=(picture, table, Prose(lines=lines)))


def devices(
    document: Mapping[str, Any], first: Diagnosis, others: Sequence[tuple[str, Diagnosis]], *, key: str, name: str
) -> Section | None:
    """Return the devices of a `diagnose` document beside each other; None where it has one."""
    if not others:
        return None
    every = [(str(document.get("device", "0")), first), *others]
    rows = [
        (f"device {label}", d.verdict.bound.value, _cell(d.step.median_s, format_s), _cell(d.verdict.share_of_ceiling, format_ratio),
         _cell(d.verdict.headroom_s, format_s), _cell(d.mfu_ratio, format_ratio), d.verdict.sentence)
        for label, d in every
    ]  # fmt: skip
    areas = dict.fromkeys(k for _, d in every for k in d.time_shares)
    series = [
        Series(
            name=area, colour=area, mode="bars", x=[f"device {label}" for label, _ in every],
            y=[d.time_shares.get(area, 0.0) * d.step.median_s for _, d in every],
            text=[f"device {label}: {area} {format_ratio(d.time_shares.get(area, 0.0))} of the step" for label, d in every],
        )
        for area in areas if any(d.time_shares.get(area, 0.0) > 0 for _, d in every)
    ]  # fmt: skip
    picture = Chart(
        label="Time of a step on each device by bound", x_title="time, s", y_title="", sideways=True, series=series
    )
    table = Table(
        label="Devices", rows=rows, texts=frozenset({0, 1, 6}), swatch=1,
        columns=("device", "bound", "step", "of ceiling", "headroom", "MFU", "verdict"),
    )  # fmt: skip
    return Section(key=key, title="Devices and ranks", small=name, blocks=(picture, table))


def environment(items: Sequence[tuple[str, str, Mapping[str, Any]]]) -> Section | None:
    """Return the environments of the results, each once.

    Args:
        items: Name of the file, kind of document, its environment.
    """
    blocks: list[Any] = []
    seen: dict[str, str] = {}
    for name, _, found in items:
        text = repr(sorted(found.items(), key=lambda kv: str(kv[0])))
        if not found or text in seen:
            continue
        seen[text] = name
        blocks += [Prose(lines=[f"{name}:"]), facts_of(found)]
    return (
        Section(key="environment", title="Environment", small="what the figures belong to", blocks=blocks[:20])
        if blocks
        else None
    )


def files(rows: Sequence[tuple[str, str, str]]) -> Section:
    """Return what this page was made of: file, kind, and what was left out of it."""
    table = Table(label="Files", rows=rows, texts=frozenset({0, 1, 2}), columns=("file", "kind", "what it holds"))
    return Section(key="files", title="Files of this page", blocks=(table,))
