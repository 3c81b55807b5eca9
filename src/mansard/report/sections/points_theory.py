"""The section of measured points over theory: the table, the chart of the shares, and higher ceilings given beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mansard.core.ceilings import Ceiling, Ceilings, Kind
from mansard.core.units import format_ratio, format_s
from mansard.measure.points.conclusions import Element, conclusions, in_words
from mansard.measure.points.result import NOISY_MOST_RATIO, NOISY_RATIO
from mansard.measure.points.verdict import NORMAL_SHARE, QUIET_RATIO
from mansard.report.points_text import rate_text, share_of, share_text, short_names
from mansard.report.sections.blocks import Cell, Chart, Prose, Section, Series, Table, number, reason_of
from mansard.report.sections.points_words import bar_names, headline
from mansard.report.text import ceiling_value

#: Most bars of the chart of shares.
BARS = 60
#: What the columns and the verdicts mean.
_NOTES = (
    "Of ceiling: least time over median time, and the ceiling that decides the least time as it was known when the point ran; that of compute "
    "and near caches is taken at the clock that was seen.",
    "Least: the least time of the work that is executed, with the cost of a dispatch. Where the rate counts less than that, rate over ceiling is less than the share.",
    f"Normal: a share of {format_ratio(NORMAL_SHARE)} or more. Low: less. Noisy: a 95\u00a0% interval of the median wider than "
    f"\u00b1{format_ratio(NOISY_RATIO)} that holds both or has no ceiling, or wider than \u00b1{format_ratio(NOISY_MOST_RATIO)}. Implausible: a wrong result, or above its ceiling by more than their uncertainty. Rates with "
    "\u201cbus\u201d are of bytes over the busiest link of the algorithm.",
)
#: Half of an interval over its median up to which one figure says it; wider ones are never even, and a time is not below 0.
_EVEN = 0.2


def measured_over_theory(
    done: Sequence[Element], every: Sequence[Element], ceilings: Ceilings | None, key: str, name: str
) -> Section | None:
    """Return the table of all points with their share of the ceiling, and the chart of the shares; None where there are none."""
    names = short_names([e["metadata"]["test_name"] for e in done])
    rows, bars, higher = [], [], _higher(done, ceilings)
    for e, title, bar in zip(done, names, bar_names(names), strict=True):
        m = e["metrics"]
        share, verdict, least = share_of(m), e.get("verdict") or "not judged", number(m.get("least_s"))
        rows.append((
            title, Cell(format_s(float(m["median_s"])), float(m["median_s"])), _interval(m), _rate_cell(m),
            Cell("?") if least is None else Cell(format_s(least), least), Cell(share_text(m, brief=True), share), verdict, _why(e) + _of_higher(m, higher),
        ))  # fmt: skip
        if share is not None:
            bars.append((bar, share, verdict, f"{title}: {share_text(m)}"))
    bars.sort(key=lambda b: -b[1])
    shown, blocks = bars[:BARS], []  # type: list[tuple[str, float, str, str]], list[Any]
    if shown:
        kinds = dict.fromkeys(b[2] for b in shown)
        blocks.append(
            Chart(
                label="Measured rate over the ceiling of each point", x_title="measured over ceiling", y_title="",
                sideways=True, percent=True, uprights=((1.0, "ceiling"),),
                series=[
                    Series(name=k, colour=k, mode="bars", x=[b[0] for b in shown if b[2] == k],
                           y=[b[1] for b in shown if b[2] == k], text=[f"{b[3]}, {k}" for b in shown if b[2] == k])
                    for k in kinds
                ],
                notes=[f"The best {BARS} of {len(bars)} points that have a ceiling; all are in the table."] if len(bars) > BARS else [],
            )
        )  # fmt: skip
    lost = [e for e in every if e["state"] != "done"]
    notes = [f"{e['metadata']['test_name']}: {e['state']}, {e['reason']}" for e in lost[:20]]
    notes += [f"{len(lost) - 20} more failed or could not run here."] if len(lost) > 20 else []
    notes = [*notes, *_other_values(done, ceilings), *_NOTES] if rows else notes
    blocks.append(
        Table(
            label="Points", rows=rows, texts=frozenset({0, 6, 7}), filter_by=6, swatch=6, notes=notes, total=len(rows),
            columns=("point", "median", "95 %", "rate", "least", "of ceiling", "verdict", "why"),
        )
    )  # fmt: skip
    together = [in_words(c) for c in conclusions(every, ceilings.levels if ceilings is not None else ())]
    if together:
        blocks.append(Prose(lines=[f"Together: {line}" for line in together]))
    return Section(key=f"{key}-theory", title="Measured over theory", small=f"{name}: {headline(every)}", blocks=blocks)


def _higher(done: Sequence[Element], ceilings: Ceilings | None) -> dict[tuple[str, str], tuple[Ceiling, float, float]]:
    """Return by label and scope the ceilings given beside the points that are higher than those the points were judged by.

    With each stand the highest value that points were judged by, and its factor of the clock.
    """
    judged: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for e in done:
        m, value = e["metrics"], number(e["metrics"].get("ceiling_value"))
        if value and m.get("ceiling_kind") == "measured" and m.get("ceiling_unit") != "s" and m.get("ceiling_scope"):
            judged.setdefault(_resource(m), []).append((value, number(m.get("clock_factor")) or 1.0))
    out = {}
    for key, values in judged.items():
        best = max(_alike(ceilings, key), key=lambda c: c.value, default=None)
        most, factor = max(values)
        if best is not None and best.value > 1.05 * most:
            out[key] = (best, most, factor)
    return out


def _resource(metrics: Mapping[str, Any]) -> tuple[str, str]:
    return str(metrics.get("ceiling")), str(metrics.get("ceiling_scope"))


def _alike(ceilings: Ceilings | None, key: tuple[str, str]) -> list[Ceiling]:
    return [
        c
        for c in (ceilings.ceilings if ceilings is not None else ())
        if (c.resource.label, c.scope) == key and c.kind is Kind.MEASURED
    ]


def _other_values(done: Sequence[Element], ceilings: Ceilings | None) -> list[str]:
    """Return where the ceilings given beside the points are higher than those that the points were judged by, and what set them."""
    names = {e["metadata"]["test_name"] for e in done}
    out = []
    for key, (best, most, factor) in _higher(done, ceilings).items():
        by = str(best.conditions.get("size"))
        # Those that follow the clock were judged by at the clock that was seen.
        own = [
            c
            for c in _alike(ceilings, key)
            if min(abs(c.value / most - 1.0), abs(c.value * factor / most - 1.0)) < 1e-6
        ]
        load = max((number(c.conditions.get("foreign_load_ratio")) or 0.0 for c in own), default=0.0)
        under = (
            f", measured while other programs used {format_ratio(load)} of the processors" if load > QUIET_RATIO else ""
        )
        out.append(
            f"{', '.join(key)}: judged by {ceiling_value(most, best.unit)}{under}; the ceilings given here have "
            f"{ceiling_value(best.value, best.unit)}" + (f", set by a point {by}" if by in names else "") + "."
        )
    return out


def _of_higher(metrics: Mapping[str, Any], higher: Mapping[tuple[str, str], tuple[Ceiling, float, float]]) -> str:
    """Return what the share of a point is of the higher ceiling that is given beside it; empty where none is."""
    found, share, value = higher.get(_resource(metrics)), share_of(metrics), number(metrics.get("ceiling_value"))
    if found is None or share is None or not value:
        return ""
    best = found[0]
    return f"; {format_ratio(share * value / best.value)} of the {ceiling_value(best.value, best.unit)} given here"


def _why(element: Element) -> str:
    """Return why a point has its verdict; of one that is noise under load the load alone, since the other columns have the rest."""
    reason = str(element.get("verdict_reason") or reason_of(element["metrics"].get("share_of_ceiling")))
    codes = {f["code"] for f in (element.get("audit") or {}).get("findings") or ()}
    load = number((element.get("conditions") or {}).get("foreign_ratio"))
    if (
        element.get("verdict") == "noisy"
        and "foreign_load" in codes
        and load is not None
        and "two regimes" not in reason
    ):
        return f"others used {format_ratio(load)} of the processors: a lower bound"
    return reason


def _interval(metrics: Mapping[str, Any]) -> Cell:
    """Return the interval of the median: one figure where it is narrow, else both ends."""
    half, low, high = (number(metrics.get(k)) for k in ("half_interval_ratio", "ci95_low_s", "ci95_high_s"))
    if half is None:
        return Cell("?")
    if half > _EVEN and low is not None and high is not None:
        ends = [format_s(low), format_s(high)]
        alike = len({end.rpartition(" ")[2] for end in ends}) == 1
        return Cell(f"{ends[0].rpartition(' ')[0] if alike else ends[0]} to {ends[1]}", half)
    return Cell(f"\u00b1{format_ratio(half)}" if half <= 1.0 else "> 100\u00a0%", half)


def _rate_cell(metrics: Mapping[str, Any]) -> Cell:
    value = (
        number(metrics.get("busbw_bytes_per_s"))
        or number(metrics.get("flop_per_s"))
        or number(metrics.get("bytes_per_s"))
    )
    return Cell(rate_text(metrics) or "\u2013", value)
