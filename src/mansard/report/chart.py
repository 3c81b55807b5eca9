"""Where ceilings and operators lie on a roofline; both the terminal and the page draw these coordinates."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mansard.core import Area, Ceiling, Kind, is_known
from mansard.diagnose.records import Diagnosis, OperatorRow

#: Width of the lane for operators without FLOP, as a ratio of intensities: half a decade.
LANE_WIDTH = 10**0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One ceiling of the chart.

    Args:
        ceiling: Whose line it is.
        slanted: Whether it is a memory line (FLOP/s = intensity x B/s), else a roof (FLOP/s).
        used: Whether the verdict or an operator was judged against it.
        main: Whether it stands for its memory level or its dtype and engine: the one most time was judged against,
            else the best figure. A machine has dozens of ceilings; a chart names one of each sort.
        time_on_it_s: Time of the operators that it limits [s per step].
        beside: Whether it is the best of its sort of another kind than the main one: a declared or derived figure beside a
            measured one.
        worked: Whether an operator did work of its sort, so that the roof was checked, whatever limited it.
    """

    ceiling: Ceiling
    slanted: bool
    used: bool
    main: bool
    time_on_it_s: float
    beside: bool = False
    worked: bool = False

    @property
    def shown(self) -> bool:
        """Whether the chart draws it at first; the others are drawn on request and stand in the table."""
        return self.main or self.used or self.beside

    def flop_per_s(self, flop_per_byte: float) -> float:
        """Height of the line at an intensity [FLOP/s]."""
        return self.ceiling.value * flop_per_byte if self.slanted else self.ceiling.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One operator of the chart.

    Args:
        index: Its position in the operator table.
        row: The operator.
        flop_per_byte: Position across.
        flop_per_s: Position up.
        in_lane: Whether it has no FLOP; it then stands in the lane at the left edge, where its height is its
            bandwidth times the lane's intensity, so that its distance to each memory line is true.
    """

    index: int
    row: OperatorRow
    flop_per_byte: float
    flop_per_s: float
    in_lane: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """The coordinates of one roofline chart.

    Args:
        lines: Memory lines and compute roofs, the lowest first.
        other: Ceilings that such a chart cannot hold (fixed costs, evaluations, links).
        points: Operators that have a place.
        unplaced: Positions in the table of the operators that have none: neither FLOP nor bytes are known, or both are 0.
        x_range, y_range: Extent of the axes [FLOP/B], [FLOP/s].
        lane: Intensity at which operators without FLOP stand, None where there is none of them.
    """

    lines: tuple[Line, ...]
    other: tuple[Ceiling, ...]
    points: tuple[Point, ...]
    unplaced: tuple[int, ...]
    x_range: tuple[float, float]
    y_range: tuple[float, float]
    lane: float | None

    @property
    def roof(self) -> float:
        """The highest compute roof [FLOP/s], 0 where there is none."""
        return max((line.ceiling.value for line in self.lines if line.shown and not line.slanted), default=0.0)

    @property
    def ridge_roof(self) -> Ceiling | None:
        """The roof that ridge points are stated of: the highest that an operator was judged against, else one whose work was done."""
        roofs = [line for line in self.lines if line.shown and not line.slanted]
        for mine in ([n for n in roofs if n.used], [n for n in roofs if n.main and n.worked]):
            if mine:
                return max(mine, key=lambda n: n.ceiling.value).ceiling
        return None

    @property
    def ridges(self) -> dict[str, float]:
        """Intensity at which each memory line meets `ridge_roof` [FLOP/B], by the line's label."""
        roof = self.ridge_roof
        if roof is None:
            return {}
        return {n.ceiling.resource.label: roof.value / n.ceiling.value for n in self.lines if n.main and n.slanted}


def judged_against(row: OperatorRow, ceiling: Ceiling) -> bool:
    """Return whether an operator was judged against exactly this ceiling."""
    return row.limiting_ceiling == ceiling.resource.label and (
        row.ceiling_value is None or math.isclose(row.ceiling_value, ceiling.value)
    )


def used_ceilings(diagnosis: Diagnosis) -> dict[int, float]:
    """Return the positions of the ceilings that something was judged against, with the operator time on each [s]."""
    named = {o.limiting_ceiling for o in diagnosis.operators} | {diagnosis.verdict.limiting_ceiling}
    found = {}
    for index, ceiling in enumerate(diagnosis.ceilings):
        if ceiling.resource.label in named:
            on_it = [o.time_s for o in diagnosis.operators if judged_against(o, ceiling)]
            if on_it:
                found[index] = math.fsum(on_it)
    covered = {diagnosis.ceilings[i].resource.label for i in found}
    if diagnosis.verdict.limiting_ceiling not in covered:
        # No operator tells which of several figures the verdict means; it then means all of that name.
        names = enumerate(diagnosis.ceilings)
        found |= {i: 0.0 for i, c in names if c.resource.label == diagnosis.verdict.limiting_ceiling}
    return found


def _sort(ceiling: Ceiling) -> tuple[str | None, ...]:
    """Return what a ceiling is one of: its memory level, or its dtype, accumulation and engine."""
    r = ceiling.resource
    return (r.area.value, r.level, r.dtype, r.accumulate, r.engine)


def _lines(diagnosis: Diagnosis) -> list[Line]:
    """Return every ceiling that has a place on the chart, the lowest first, one of each sort marked as the main one."""
    used = used_ceilings(diagnosis)
    scopes = {diagnosis.ceilings[i].scope for i in used} or {c.scope for c in diagnosis.ceilings}
    indices = [i for i, c in enumerate(diagnosis.ceilings) if drawable(c)]
    main: dict[tuple[str | None, ...], int] = {}
    of_kind: dict[tuple[str | None, ...], int] = {}
    for i in indices:
        ceiling = diagnosis.ceilings[i]
        if ceiling.scope not in scopes or (ceiling.resource.mix == "fresh" and i not in used):
            continue
        best = main.setdefault(_sort(ceiling), i)
        if _weight(diagnosis, used, i) > _weight(diagnosis, used, best):
            main[_sort(ceiling)] = i
        kind = (*_sort(ceiling), ceiling.kind.value)
        if ceiling.value > diagnosis.ceilings[of_kind.setdefault(kind, i)].value:
            of_kind[kind] = i
    beside = {i for (*sort, kind), i in of_kind.items() if diagnosis.ceilings[main[tuple(sort)]].kind.value != kind}
    checked = {c.ceiling for o in diagnosis.operators for c in o.checks if c.area == Area.COMPUTE.value}
    lines = [
        Line(
            ceiling=diagnosis.ceilings[i], slanted=diagnosis.ceilings[i].resource.area is Area.MEMORY, used=i in used,
            main=main.get(_sort(diagnosis.ceilings[i])) == i, time_on_it_s=used.get(i, 0.0),
            beside=i in beside, worked=diagnosis.ceilings[i].resource.label in checked,
        )
        for i in indices
    ]  # fmt: skip
    return sorted(lines, key=lambda n: (not n.slanted, n.ceiling.value))


def _weight(diagnosis: Diagnosis, used: dict[int, float], index: int) -> tuple[bool, float, int, float]:
    """Return how well a ceiling stands for its sort: judged against, the most time, the best kind, the highest."""
    ceiling = diagnosis.ceilings[index]
    return index in used, used.get(index, 0.0), -list(Kind).index(ceiling.kind), ceiling.value


def drawable(ceiling: Ceiling) -> bool:
    """Return whether a ceiling is a rate over the axes of a roofline: B/s or FLOP/s."""
    area = ceiling.resource.area
    return area is Area.MEMORY or (area is Area.COMPUTE and ceiling.unit == "FLOP/s")


def _place(row: OperatorRow) -> tuple[float, float] | None:
    """Return intensity and FLOP/s of an operator with work and traffic, else None."""
    if row.time_s <= 0:
        return None
    if is_known(row.flop) and row.flop > 0:
        if row.flop_per_byte is not None and row.flop_per_byte > 0:
            return row.flop_per_byte, row.flop / row.time_s
        return None
    if row.flop_per_byte is not None and row.flop_per_byte > 0 and is_known(row.bytes) and row.bytes > 0:
        return row.flop_per_byte, row.flop_per_byte * row.bytes / row.time_s
    return None


def roofline(diagnosis: Diagnosis) -> Roofline:
    """Return where everything of a diagnosis lies on its roofline.

    Assumes: intensity and FLOP/s count the same work, so an operator lies under the line of its ceiling.
    Source: Williams, Waterman, Patterson, Roofline, CACM 52(4), 2009.
    """
    lines = _lines(diagnosis)
    other = tuple(c for c in diagnosis.ceilings if not drawable(c))
    placed = {i: spot for i, row in enumerate(diagnosis.operators) if (spot := _place(row)) is not None}
    waiting = {
        i: row
        for i, row in enumerate(diagnosis.operators)
        if i not in placed and is_known(row.flop) and row.flop == 0 and is_known(row.bytes) and row.bytes > 0
        and row.time_s > 0
    }  # fmt: skip
    x_low, x_high = _x_range([n for n in lines if n.main], [x for x, _ in placed.values()])
    lane = None
    if waiting:
        lane = x_low / LANE_WIDTH**0.5
        x_low = x_low / LANE_WIDTH
    points = [
        Point(index=i, row=diagnosis.operators[i], flop_per_byte=x, flop_per_s=y, in_lane=False)
        for i, (x, y) in placed.items()
    ]
    if lane is not None:
        for i, row in waiting.items():
            assert is_known(row.bytes)
            height = row.bytes / row.time_s * lane
            points.append(Point(index=i, row=row, flop_per_byte=lane, flop_per_s=height, in_lane=True))
    unplaced = tuple(i for i in range(len(diagnosis.operators)) if i not in placed and i not in waiting)
    return Roofline(
        lines=tuple(lines),
        other=other,
        points=tuple(sorted(points, key=lambda p: p.index)),
        unplaced=unplaced,
        x_range=(x_low, x_high),
        y_range=_y_range([n for n in lines if n.shown], points, x_low),
        lane=lane,
    )


def _x_range(lines: Sequence[Line], xs: list[float]) -> tuple[float, float]:
    """Return a range that holds every point and the ridges of the roofs that were used, with room at both ends [FLOP/B]."""
    slopes = [line.ceiling.value for line in lines if line.slanted]
    roofs = [line for line in lines if not line.slanted]
    # The ridges of roofs that judged nothing do not stretch the chart.
    mine = [n for n in roofs if n.used] or [n for n in roofs if n.worked] or roofs
    tops = [line.ceiling.value for line in mine]
    spots = [x for x in xs if x > 0]
    if slopes and tops:
        spots += [min(tops) / max(slopes), max(tops) / min(slopes)]
    if not spots:
        return 0.1, 100.0
    return min(spots) / 2.5, max(spots) * 5.0


def _bulk(points: Iterable[Point]) -> list[float]:
    """Return the heights of the marks without the outermost ones that hold less than 1 % of the time at either end.

    A tiny call far from everything must not flatten the chart; it is drawn on the edge instead.
    """
    ordered = sorted((p for p in points if p.flop_per_s > 0), key=lambda p: p.flop_per_s)
    allowed = 0.01 * math.fsum(p.row.time_s for p in ordered)
    for _ in range(2):
        outside = 0.0
        while len(ordered) > 1 and outside + ordered[0].row.time_s <= allowed:
            outside += ordered.pop(0).row.time_s
        ordered.reverse()
    return [p.flop_per_s for p in ordered]


def _y_range(lines: Iterable[Line], points: Iterable[Point], x_low: float) -> tuple[float, float]:
    """Return decades that hold the roofs, the points and the slowest memory line at the left edge [FLOP/s]."""
    tops = [line.ceiling.value for line in lines if not line.slanted]
    slopes = [line.ceiling.value for line in lines if line.slanted]
    heights = _bulk(points)
    if not tops:
        tops = [s * 100.0 for s in slopes[-1:]]
    high = max([*tops, *heights], default=1e12)
    low = min([*heights, *(s * x_low for s in slopes[:1])], default=high / 1e3)
    low = max(low, high / 1e7)
    return low / 2.0, 10.0 ** (math.ceil(math.log10(high) * 2.0 + 0.3) / 2.0)
