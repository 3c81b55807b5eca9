"""Measured over theory, kernel by kernel: what each took, what it needs at least, and the seconds between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mansard.core import Unknown, is_known
from mansard.diagnose.model_demand import ModelGroup
from mansard.diagnose.records import Diagnosis, OperatorRow

#: A kernel this short is small: what starting it costs is of the order of its own time.
SMALL_S = 10e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """One kernel, or one group of the model; times are per step of one device.

    Args:
        name: What it is.
        calls: Executions.
        modelled_s: Least time [s].
        measured_s: Time it took [s].
        ratio: Measured over modelled.
        recoverable_s: Measured minus modelled [s], not below 0.
        rank: 1 for the most recoverable seconds; 0 where they are not known.
    """

    name: str
    calls: float
    modelled_s: float | Unknown
    measured_s: float
    ratio: float | Unknown
    recoverable_s: float | Unknown
    rank: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTable:
    """The table and what it leaves out.

    Args:
        rows: Kernels by recoverable seconds, then those whose theory is not known, by time.
        groups: The same by group of the model; empty without a model.
        in_no_model: Time of kernels that neither a record nor the model explains [s].
        never_ran: Kernels of the model in whose group no kernel ran.
        small_count, small_s: Kernels shorter than `SMALL_S` on average: executions and time [s].
        kernel_sum_s: Time of all kernels, each instant counted once [s].
        gap_s: Step minus that [s].
    """

    rows: tuple[TableRow, ...]
    groups: tuple[TableRow, ...]
    in_no_model: tuple[tuple[str, float], ...]
    never_ran: tuple[str, ...]
    small_count: float
    small_s: float
    kernel_sum_s: float
    gap_s: float
    assumed: tuple[str, ...] = field(default=())


def kernel_table(diagnosis: Diagnosis, groups: Sequence[ModelGroup] = ()) -> KernelTable:
    """Return the table of a diagnosis.

    Args:
        diagnosis: With its operators per step.
        groups: The model's groups, for one device and one step.
    """
    rows = [_row(f"{o.label} {o.shapes}".rstrip(), o.calls, _least(o), o.time_s) for o in diagnosis.operators]
    small = [o for o in diagnosis.operators if o.calls > 0 and o.time_s / o.calls < SMALL_S]
    total = sum(o.time_s for o in diagnosis.operators)
    by_category: dict[str, tuple[float, float]] = {}
    for o in diagnosis.operators:
        time_s, calls = by_category.get(o.category, (0.0, 0.0))
        by_category[o.category] = (time_s + o.time_s, calls + o.calls)
    return KernelTable(
        rows=_ranked(rows),
        groups=_ranked([_of_group(g, by_category) for g in groups]),
        in_no_model=tuple((o.label, o.time_s) for o in diagnosis.operators if isinstance(_least(o), Unknown)),
        never_ran=tuple(
            k for g in groups if not any(by_category.get(c, (0, 0))[1] for c in g.categories) for k in g.kernels
        ),
        small_count=sum(o.calls for o in small),
        small_s=sum(o.time_s for o in small),
        kernel_sum_s=total,
        gap_s=max(0.0, diagnosis.step.median_s - total),
    )


def _least(row: OperatorRow) -> float | Unknown:
    if isinstance(row.headroom_s, Unknown):
        return row.headroom_s
    if is_known(row.share_of_ceiling):
        return row.time_s * row.share_of_ceiling if row.bound.value == "latency" else row.time_s - row.headroom_s
    return row.time_s - row.headroom_s


def _row(name: str, calls: float, modelled: float | Unknown, measured: float) -> TableRow:
    if isinstance(modelled, Unknown):
        return TableRow(
            name=name, calls=calls, modelled_s=modelled, measured_s=measured, ratio=modelled, recoverable_s=modelled
        )
    none = Unknown("it needs no time of its own")
    return TableRow(
        name=name, calls=calls, modelled_s=modelled, measured_s=measured,
        ratio=measured / modelled if modelled > 0 else none, recoverable_s=max(0.0, measured - modelled),
    )  # fmt: skip


def _of_group(group: ModelGroup, by_category: Mapping[str, tuple[float, float]]) -> TableRow:
    measured = sum(by_category.get(c, (0.0, 0.0))[0] for c in group.categories)
    calls = sum(by_category.get(c, (0.0, 0.0))[1] for c in group.categories)
    if not calls:
        return TableRow(
            name=group.name, calls=0.0, modelled_s=group.time_s, measured_s=0.0, ratio=Unknown("no kernel of it ran"),
            recoverable_s=Unknown("no kernel of it ran"),
        )  # fmt: skip
    return _row(group.name, calls, group.time_s, measured)


def _ranked(rows: Sequence[TableRow]) -> tuple[TableRow, ...]:
    def order(row: TableRow) -> tuple[bool, float]:
        known = is_known(row.recoverable_s)
        return not known, -row.recoverable_s if is_known(row.recoverable_s) else -row.measured_s

    out = []
    for place, row in enumerate(sorted(rows, key=order), 1):
        rank = place if is_known(row.recoverable_s) else 0
        out.append(TableRow(
            name=row.name, calls=row.calls, modelled_s=row.modelled_s, measured_s=row.measured_s, ratio=row.ratio,
            recoverable_s=row.recoverable_s, rank=rank,
        ))  # fmt: skip
    return tuple(out)
