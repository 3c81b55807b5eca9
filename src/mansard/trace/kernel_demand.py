"""FLOP and bytes of each kernel of a profile, from whatever the profile or a report beside it tells; nobody has to type them.

They become columns of the kernel table, as rates over the kernel's own time, so a window, a device, a region or a name takes
its part by the time that lies in it. What is not known stays unknown, with its reason and its share of kernel time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.core.evidence import Grade
from mansard.core.unknown import Unknown
from mansard.trace.aten import AtenCost
from mansard.trace.launches import Launches, join_launches
from mansard.trace.operators_of import Operators, operators_of
from mansard.trace.timeline import NONE, Events, Kind, Timeline

FloatArray = npt.NDArray[np.float64]
Int64Array = npt.NDArray[np.int64]

SHAPES = "counted from recorded shapes: matrix work with a multiply-add as 2 FLOP, each operand and result once"
#: Operators of these categories do no matrix work, whatever else about them was not recorded.
_NO_MATRIX = frozenset(
    {
        "elementwise",
        "reduction",
        "softmax",
        "norm",
        "copy",
        "gather",
        "scatter",
        "random",
        "sort",
        "optimizer",
        "collective",
    }
)
_COLUMNS = ("flop_per_ns", "other_flop_per_ns", "bytes_per_ns")


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelDemand:
    """What each kernel of a profile consumed.

    Args:
        flop: Matrix work of each kernel [FLOP]; NaN where it is not known.
        other_flop: Other arithmetic [FLOP].
        bytes: Traffic to and from main memory [B]; NaN where it is not known.
        reason: Why FLOP or bytes are not known, an index into `reasons`; -1 where both are.
        reasons: In words.
        dtype: Element type of the matrix work, an index into `dtypes`; -1 where there is none or several.
        dtypes: Names of element types.
        flop_source, bytes_source: Where they come from.
        flop_grade, bytes_grade: How sure they are.
    """

    flop: FloatArray
    other_flop: FloatArray
    bytes: FloatArray
    reason: npt.NDArray[np.int32]
    reasons: tuple[str, ...]
    dtype: npt.NDArray[np.int32]
    dtypes: tuple[str, ...] = ()
    flop_source: str = SHAPES
    bytes_source: str = SHAPES
    flop_grade: Grade = Grade.MODELLED
    bytes_grade: Grade = Grade.MODELLED


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandSources:
    """Where the demand columns of a profile come from; see `KernelDemand`.

    `each` names FLOP and bytes of every source in the order of the column `demand_source`, -1 in which means several.
    """

    reasons: tuple[str, ...]
    dtypes: tuple[str, ...]
    flop: tuple[tuple[str, Grade], ...]
    bytes: tuple[tuple[str, Grade], ...]
    each: tuple[tuple[str, str, Grade], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """FLOP and bytes of some kernels.

    Args:
        flop, other_flop, bytes: Of the kernels that have both [FLOP], [B]; Unknown where none has.
        any_flop: Matrix work of all kernels whose FLOP are known, whether or not their bytes are [FLOP].
        covered: Which of the kernels have both FLOP and bytes.
        coverage_ratio: Their share of the summed kernel time.
        flop_coverage_ratio, bytes_coverage_ratio: The same for each alone.
        dtype: Element type of at least 99 % of the matrix work; empty where there is none.
        sources: Where FLOP and bytes come from, with their grade.
        unknown: (reason, share of kernel time, kernels) of the rest, the largest first.
    """

    flop: float | Unknown
    other_flop: float | Unknown
    bytes: float | Unknown
    any_flop: float | Unknown
    covered: npt.NDArray[np.bool_]
    coverage_ratio: float
    flop_coverage_ratio: float
    bytes_coverage_ratio: float
    dtype: str
    sources: DemandSources
    unknown: tuple[tuple[str, float, int], ...] = field(default_factory=tuple)


def demand_of_shapes(operators: Operators) -> KernelDemand:
    """Return the demand of each kernel from the shapes of the operator that launched it.

    An operator's demand is spread over the kernels it launched by their time, so that it is counted once.

    Args:
        operators: Kernels joined to operators.
    """
    rows = np.flatnonzero(operators.launches.kind == int(Kind.KERNEL))
    owner = operators.owner_of_work[rows]
    length = operators.launches.work.duration_ns[rows].astype(np.float64)
    reasons: dict[str, int] = {}
    reason = np.full(rows.size, NONE, dtype=np.int32)
    dtypes: dict[str, int] = {}
    table = [_figures(known, dtypes, reasons) for _, known in operators.kinds]
    owned = (owner >= 0) & ~operators.in_graph[rows]
    kind = np.where(owned, operators.code[owner] if len(operators.table) else owner, NONE)
    share = _shares(np.where(owned, owner, NONE), length)
    columns = np.array([t[:3] for t in table] + [(np.nan,) * 3], dtype=np.float64)
    whole = columns[kind] * share[:, None]
    reason[:] = np.array([t[3] for t in table] + [NONE], dtype=np.int32)[kind]
    _explain(operators, rows, owned, reasons, reason)
    dtype = np.array([t[4] for t in table] + [NONE], dtype=np.int32)[kind]
    return KernelDemand(
        flop=whole[:, 0], other_flop=whole[:, 1], bytes=whole[:, 2], reason=reason, reasons=tuple(reasons), dtype=dtype,
        dtypes=tuple(dtypes),
    )  # fmt: skip


def _figures(known: AtenCost, dtypes: dict[str, int], reasons: dict[str, int]) -> tuple[float, float, float, int, int]:
    demand = known.demand
    if isinstance(demand, Unknown):
        flop = 0.0 if known.kind == "work" and known.category in _NO_MATRIX else np.nan
        return flop, np.nan, np.nan, reasons.setdefault(demand.reason, len(reasons)), NONE
    used = {dtype for (dtype, _), flop in demand.flop.items() if float(flop) > 0}
    code = dtypes.setdefault(used.pop(), len(dtypes)) if len(used) == 1 else NONE
    other = float(sum(float(v) for v in demand.vector_flop.values()))
    return float(demand.total_flop), other, float(demand.bytes), NONE, code


def _shares(owner: Int64Array, length: FloatArray) -> FloatArray:
    """Return which part of its owner's work each kernel did, by time; kernels without any length share it evenly."""
    share = np.zeros(owner.size, dtype=np.float64)
    owned = owner >= 0
    if not owned.any():
        return share
    _, code = np.unique(owner[owned], return_inverse=True)
    code = code.reshape(-1)
    total = np.bincount(code, weights=length[owned])
    count = np.bincount(code)
    safe = np.where(total > 0, total, 1.0)
    share[owned] = np.where(total[code] > 0, length[owned] / safe[code], 1.0 / count[code])
    return share


def _explain(
    operators: Operators,
    rows: Int64Array,
    owned: npt.NDArray[np.bool_],
    reasons: dict[str, int],
    reason: npt.NDArray[np.int32],
) -> None:
    """Set the reason of each kernel that no operator's demand covers."""

    def code(text: str) -> int:
        return reasons.setdefault(text, len(reasons))

    launcher = operators.launcher[rows]
    in_graph = operators.in_graph[rows]
    launched = operators.launches.launched[rows]
    free = ~owned
    reason[free & in_graph] = code("replayed by a graph: its operators are in the trace of the capture")
    lost = free & ~in_graph & (launcher < 0)
    reason[lost & ~launched] = code("the call that launched it is not in the file")
    reason[lost & launched] = code("no recorded operator was open when it was launched")
    for row in np.flatnonzero(free & ~in_graph & (launcher >= 0)).tolist():
        name = operators.timeline.names[int(operators.table.name[int(launcher[row])])]
        reason[row] = code(f"{name} is not in the table of operators")


def with_demand(timeline: Timeline, found: Sequence[KernelDemand]) -> Timeline:
    """Return the profile with demand columns on its kernels; an earlier source wins over a later one.

    Args:
        timeline: The whole profile: take windows of it afterwards.
        found: Demands of its kernels, the surest first.
    """
    table = timeline.of(Kind.KERNEL)
    if not len(table) or not found:
        return timeline
    length = table.duration_ns.astype(np.float64)
    length[length <= 0] = np.nan
    columns: dict[str, npt.NDArray[Any]] = {n: np.full(len(table), np.nan) for n in _COLUMNS}
    reasons: dict[str, int] = {}
    dtypes: dict[str, int] = {}
    reason = np.full(len(table), NONE, dtype=np.int32)
    dtype = np.full(len(table), NONE, dtype=np.int32)
    source = np.full(len(table), NONE, dtype=np.int8)
    for number, one in enumerate(found):
        new = np.isnan(columns["flop_per_ns"]) & ~np.isnan(one.flop)
        source[new] = number
        columns["flop_per_ns"][new] = one.flop[new] / length[new]
        columns["other_flop_per_ns"][new] = one.other_flop[new] / length[new]
        names = np.array([dtypes.setdefault(d, len(dtypes)) for d in one.dtypes] + [NONE], dtype=np.int32)
        dtype[new] = names[one.dtype[new]]
        new = np.isnan(columns["bytes_per_ns"]) & ~np.isnan(one.bytes)
        source[new & (source != number)] = NONE  # FLOP of one source, bytes of another
        columns["bytes_per_ns"][new] = one.bytes[new] / length[new]
        codes = np.array([reasons.setdefault(r, len(reasons)) for r in one.reasons] + [NONE], dtype=np.int32)
        said = one.reason >= 0
        reason[said] = codes[one.reason[said]]
    complete = ~(np.isnan(columns["flop_per_ns"]) | np.isnan(columns["bytes_per_ns"]))
    reason[complete] = NONE
    extras = {**table.extras, **columns, "demand_reason": reason, "demand_dtype": dtype, "demand_source": source}
    sources = DemandSources(
        reasons=tuple(reasons), dtypes=tuple(dtypes),
        flop=tuple((d.flop_source, d.flop_grade) for d in found if not np.isnan(d.flop).all()),
        bytes=tuple((d.bytes_source, d.bytes_grade) for d in found if not np.isnan(d.bytes).all()),
        each=tuple((d.flop_source, d.bytes_source, max(d.flop_grade, d.bytes_grade, key=list(Grade).index)) for d in found),
    )  # fmt: skip
    tables = {**timeline.tables, Kind.KERNEL: replace(table, extras=extras)}
    return replace(timeline, tables=tables, extras={**timeline.extras, "demand": sources})


def counted(timeline: Timeline, rows: npt.NDArray[Any] | None = None) -> Counted | Unknown:
    """Return FLOP and bytes of some kernels, or why the profile has none.

    Args:
        timeline: A profile with demand columns, or a window of it.
        rows: Which of its kernels, a mask or indices; None takes all.
    """
    sources = timeline.extras.get("demand")
    table = timeline.of(Kind.KERNEL)
    needs = ("--flops and --bytes", "a profile with record_shapes=True", "--ncu REPORT.csv")
    if not isinstance(sources, DemandSources) or not len(table):
        return Unknown("nothing in the profile tells FLOP and bytes of its kernels", needs)
    chosen = table if rows is None else table.take(rows)
    length = chosen.duration_ns.astype(np.float64)
    total = float(length.sum())
    if total <= 0:
        return Unknown("the kernels have no length", ())
    flop, other, moved = (chosen.extras[n] * length for n in _COLUMNS)
    has_flop, has_bytes = ~np.isnan(flop), ~np.isnan(moved)
    both = has_flop & has_bytes
    none = Unknown("of no kernel are both FLOP and bytes known", needs)
    some = bool(both.any())
    return Counted(
        flop=float(flop[both].sum()) if some else none,
        other_flop=float(other[both].sum()) if some else none,
        bytes=float(moved[both].sum()) if some else none,
        any_flop=float(flop[has_flop].sum()) if has_flop.any() else Unknown("of no kernel are FLOP known", needs),
        covered=both,
        coverage_ratio=float(length[both].sum()) / total,
        flop_coverage_ratio=float(length[has_flop].sum()) / total,
        bytes_coverage_ratio=float(length[has_bytes].sum()) / total,
        dtype=_main_dtype(flop, has_flop, chosen, sources.dtypes),
        sources=sources,
        unknown=_unknown(chosen, both, length, total, sources.reasons),
    )


def _main_dtype(flop: FloatArray, known: npt.NDArray[np.bool_], table: Events, dtypes: tuple[str, ...]) -> str:
    work = np.where(known, flop, 0.0)
    code = table.extras["demand_dtype"]
    if not dtypes or work.sum() <= 0:
        return ""
    by_type = np.bincount(code[code >= 0], weights=work[code >= 0], minlength=len(dtypes))
    best = int(np.argmax(by_type))
    return dtypes[best] if by_type[best] >= 0.99 * work.sum() else ""


def _unknown(
    table: Events, known: npt.NDArray[np.bool_], length: FloatArray, total: float, reasons: tuple[str, ...]
) -> tuple[tuple[str, float, int], ...]:
    code = np.where(known, NONE, table.extras["demand_reason"])
    found = []
    for index in np.unique(code[~known]).tolist():
        mask = ~known & (code == index)
        text = reasons[index] if index >= 0 else "its length is zero, or a part of it is not recorded"
        found.append((text, float(length[mask].sum()) / total, int(mask.sum())))
    return tuple(sorted(found, key=lambda row: (-row[1], row[0])))


def recorded_demand(timeline: Timeline, *, launches: Launches | None = None) -> list[KernelDemand]:
    """Return what the profile itself tells of its kernels' demand: counters, programs, or shapes; empty where nothing does.

    Args:
        timeline: The whole profile.
        launches: Its joined launches, where they are at hand.
    """
    if not len(timeline.of(Kind.KERNEL)):
        return []
    found: list[KernelDemand] = []
    if timeline.format == "ncu":
        from mansard.trace.ncu_demand import demand_of_own_report

        found.append(demand_of_own_report(timeline))
    elif timeline.extras.get("programs") or {"model_flop", "accessed"} & set(timeline.of(Kind.KERNEL).extras):
        from mansard.trace.hlo_demand import demand_of_programs, demand_of_stats

        found += demand_of_stats(timeline)
        if timeline.extras.get("programs"):
            found += demand_of_programs(timeline, launches or join_launches(timeline))
    elif timeline.has(Kind.CPU_OP) and any(d.dims for d in timeline.details):
        found.append(demand_of_shapes(operators_of(timeline, launches=launches)))
    return found
