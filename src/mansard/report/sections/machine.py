"""Sections of `ceilings.json`: the roofline of a machine, measured beside derived beside declared, and its curves over size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mansard.core.ceilings import SCOPES, Area, Ceiling, Ceilings, Kind
from mansard.core.units import format_binary_bytes, format_bytes_per_s, format_flop_per_s, format_ratio, format_s
from mansard.report.sections.blocks import Cell, Chart, Prose, Section, Series, Table, number, reason_of
from mansard.report.sections.points_sizes import capacities
from mansard.report.text import ceiling_value, intensity

_DASHES = {Kind.MEASURED: "solid", Kind.DERIVED: "dash", Kind.DECLARED: "dot"}
_DECADES = (-3.0, 4.0)
_NOTE = "Of each memory level and each engine the best figure of each kind is drawn; hover tells which access and call it is of."


def sections(ceilings: Ceilings, document: Mapping[str, Any], *, key: str, name: str) -> list[Section]:
    """Return the sections of a machine's ceilings.

    Args:
        ceilings: The ceilings.
        document: The document they were read from, for its curves and fits.
        key: Prefix of the identifiers in the page.
        name: Name of the file.
    """
    out = [
        kinds(ceilings.ceilings, key=key, name=name),
        _curves(ceilings, document, key, name),
    ]
    return [*_rooflines(ceilings, key, name), *(s for s in out if s is not None)]


def _best(ceilings: Sequence[Ceiling]) -> list[Ceiling]:
    """Return the highest ceiling of each level, dtype, engine, scope and kind."""
    best: dict[tuple[Any, ...], Ceiling] = {}
    for c in ceilings:
        r = c.resource
        sort = (r.area, r.level, r.dtype, r.accumulate, r.engine, c.scope, c.kind)
        if sort not in best or c.value > best[sort].value:
            best[sort] = c
    return list(best.values())


def _rooflines(ceilings: Ceilings, key: str, name: str) -> list[Section]:
    """Return the rooflines of each scope: one for each dtype, with the roofs of its engines and all memory levels up to them.

    The widest scope comes first; the others are folded.
    """
    out: list[Section] = []
    for scope in sorted({c.scope for c in ceilings.ceilings}, key=SCOPES.index, reverse=True):
        best = _best([c for c in ceilings.ceilings if c.scope == scope and c.resource.mix != "fresh"])
        memory = [c for c in best if c.resource.area is Area.MEMORY and c.unit == "B/s"]
        roofs = [c for c in best if c.resource.area is Area.COMPUTE and c.unit == "FLOP/s"]
        if not memory or not roofs:
            continue
        dtypes = dict.fromkeys(str(c.resource.dtype) for c in roofs)
        charts = [_chart(d, scope, [c for c in roofs if str(c.resource.dtype) == d], memory) for d in dtypes]
        note = Prose(lines=[_NOTE])
        small = f"{name}: solid measured, dashed derived, dotted declared"
        title = f"Roofline of the machine, scope {scope}, by dtype"
        out.append(
            Section(
                key=f"{key}-roofline-{scope}", title=title, small=small, blocks=(*charts[:12], note), folded=bool(out)
            )
        )
    return out


def _chart(dtype: str, scope: str, roofs: Sequence[Ceiling], memory: Sequence[Ceiling]) -> Chart:
    top = max(c.value for c in roofs)
    low, high = 10.0 ** _DECADES[0], 10.0 ** _DECADES[1]
    ridges = [top / c.value for c in memory]
    low, high = max(low, min(ridges) / 10), min(high, max(ridges) * 10)
    series, notes = [], []
    for c in sorted(memory, key=lambda c: -c.value):
        end = min(high, top / c.value)
        xs = np.geomspace(low, max(end, low * 1.001), 40).tolist()
        text = _said(c) + f"; meets the highest roof at {intensity(top / c.value)} FLOP/byte"
        series.append(
            Series(
                name=c.resource.label,
                x=xs,
                y=[x * c.value for x in xs],
                text=[text] * len(xs),
                mode="lines",
                dash=_DASHES[c.kind],
            )
        )
    for c in sorted(roofs, key=lambda c: -c.value):
        start = min(c.value / m.value for m in memory)
        xs = np.geomspace(max(low, min(start, high / 1.001)), high, 30).tolist()
        series.append(
            Series(
                name=c.resource.label,
                x=xs,
                y=[c.value] * len(xs),
                text=[_said(c)] * len(xs),
                mode="lines",
                dash=_DASHES[c.kind],
                colour="compute",
            )
        )
    best = {c.resource.level: c for c in sorted(memory, key=lambda c: (-list(Kind).index(c.kind), c.value))}
    said = ", ".join(f"{str(level).upper()} {intensity(top / c.value)}" for level, c in best.items())
    notes.append(f"{dtype}, scope {scope}. Ridge points against {format_flop_per_s(top)}, in FLOP/byte: {said}.")
    return Chart(
        label=f"Roofline of {dtype} at scope {scope}", x_title="arithmetic intensity, FLOP/byte", y_title=f"{dtype} FLOP/s",
        series=series, x_log=True, y_log=True, notes=notes,
    )  # fmt: skip


def _said(c: Ceiling) -> str:
    ends = f", 95 % {ceiling_value(c.ci95[0], c.unit)} to {ceiling_value(c.ci95[1], c.unit)}" if c.ci95 else ""
    return f"{c.resource.label} {ceiling_value(c.value, c.unit)} ({c.kind.value}, {c.scope}{ends}), {c.source or 'no source'}"


def kinds(ceilings: Sequence[Ceiling], *, key: str, name: str) -> Section | None:
    """Return measured, derived and declared figures of each resource side by side, with measured over theory."""
    rows = []
    groups: dict[tuple[Any, ...], dict[Kind, Ceiling]] = {}
    for c in _best(ceilings):
        r = c.resource
        label = r.label if r.area is not Area.MEMORY else f"{(r.level or 'memory').upper()} bandwidth"
        groups.setdefault((label, c.scope, c.unit), {})[c.kind] = c
    for (label, scope, unit), of_kind in groups.items():
        measured = of_kind.get(Kind.MEASURED)
        theory = of_kind.get(Kind.DERIVED) or of_kind.get(Kind.DECLARED)
        ratio = measured.value / theory.value if measured and theory and unit != "s" else None
        share = (
            Cell("?")
            if ratio is None or theory is None
            else Cell(f"{format_ratio(ratio)} of {theory.kind.value}", ratio)
        )
        figures = [
            Cell(ceiling_value(of_kind[k].value, unit), of_kind[k].value) if k in of_kind else Cell("\u2013")
            for k in Kind
        ]
        rows.append((label, scope, *figures, share))
    if not rows:
        return None
    table = Table(
        label="Measured, derived and declared ceilings", rows=rows, texts=frozenset({0, 1}), filter_by=1,
        columns=("resource", "scope", *(k.value for k in Kind), "measured over theory"),
        notes=["The best figure of each kind. A share is only said where a measured figure has a derived or declared one of the same scope beside it."],
    )  # fmt: skip
    return Section(key=f"{key}-kinds", title="Ceilings: measured over theory", small=name, blocks=(table,))


def _curves(ceilings: Ceilings, document: Mapping[str, Any], key: str, name: str) -> Section | None:
    series: dict[str, list[Series]] = {"memory": [], "flop": [], "transfer": []}
    for curve in document.get("curves") or ():
        kind, made = _curve(curve)
        if made is not None:
            series[kind].append(made)
    charts = []
    if series["memory"]:
        charts.append(
            Chart(label="Bandwidth against working set", x_title="working set, bytes", y_title="bandwidth, B/s", x_log=True, y_log=True,
                  series=series["memory"][:24], uprights=capacities(ceilings.levels))
        )  # fmt: skip
    if series["flop"]:
        charts.append(
            Chart(label="Achieved FLOP/s against size", x_title="working set, bytes", y_title="FLOP/s", x_log=True, y_log=True,
                  series=series["flop"][:24])
        )  # fmt: skip
    if series["transfer"]:
        charts.append(
            Chart(label="Bus bandwidth against size", x_title="message size S, bytes", y_title="bus bandwidth, B/s", x_log=True, y_log=True,
                  series=series["transfer"][:24], notes=_fits(document))
        )  # fmt: skip
    if not charts:
        return None
    return Section(key=f"{key}-curves", title="Curves over size", small=name, blocks=charts)


def _curve(curve: Mapping[str, Any]) -> tuple[str, Series | None]:
    unit = str(curve.get("unit") or "")
    found = []
    transfer = any("size_bytes" in p and not p.get("flop") and not p.get("bytes") for p in curve.get("points") or ())
    for p in curve.get("points") or ():
        x = number(p.get("size_bytes") if transfer else p.get("working_set_bytes"))
        y = number(p.get("rate")) or number(p.get("bytes_per_s")) or number(p.get("flop_per_s"))
        if x and y and x > 0 and y > 0:
            write = format_flop_per_s if unit == "FLOP/s" else format_bytes_per_s
            ends = p.get("rate_ci95") or (None, None)
            found.append((x, y, number(ends[0]), number(ends[1]), f"{write(y)} at {format_binary_bytes(x)}"))
    if not found:
        return "memory", None
    found.sort(key=lambda p: p[0])
    label = " ".join(str(curve[k]) for k in ("name", "scope", "mix", "page", "store") if curve.get(k))
    kind = "transfer" if transfer else "flop" if unit == "FLOP/s" else "memory"
    return kind, Series(
        name=label, x=[p[0] for p in found], y=[p[1] for p in found], low=[p[2] for p in found], high=[p[3] for p in found],
        text=[f"{label}: {p[4]}" for p in found],
    )  # fmt: skip


def _fits(document: Mapping[str, Any]) -> list[str]:
    out = []
    for fit in (document.get("fits") or ())[:20]:
        alpha, beta = number(fit.get("alpha_s")), number(fit.get("beta_bytes_per_s"))
        if alpha is None:
            continue
        rate = format_bytes_per_s(beta) if beta else f"an unknown rate ({reason_of(fit.get('beta_bytes_per_s'))})"
        error = number(fit.get("error_ratio"))
        off = "" if error is None else f", the farthest size is {format_ratio(error)} off"
        out.append(f"{fit.get('name')}: t = {format_s(alpha)} + bus bytes / {rate}{off}.")
    return out
