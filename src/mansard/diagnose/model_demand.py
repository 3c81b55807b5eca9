"""A model's work spread over the kernels of a profile: kernels of a category share the model's demand of that category.

The total is conserved: what the profile records of a category is taken off what the model says, and the rest is shared by the
kernels without a record, in proportion to their time. So the figures of one kernel are modelled; those of a category are the model's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.core import Grade, Unknown, is_known
from mansard.predict.bound import Machine, kernel_bound, machine_demand
from mansard.predict.estimate import Estimate
from mansard.trace.categories import Rules, shipped_rules
from mansard.trace.kernel_demand import DemandSources
from mansard.trace.profile_steps import ProfileSteps
from mansard.trace.timeline import NONE, Kind, Timeline
from mansard.workload.kernel import Kernel

#: Group of the model -> categories of kernel names that do its work.
GROUPS: Mapping[str, tuple[str, ...]] = {
    "matrix products": ("gemm",),
    "experts": ("moe",),
    "attention": ("attention",),
    "vector work": ("elementwise", "norm", "softmax", "reduction", "fused"),
    "table look-ups": ("index",),
    "optimizer": ("optimizer",),
    "communication": ("collective",),
}
#: Kernels beside attention that their names put with it; they do none of its matrix work.
_BESIDE_ATTENTION = re.compile(r"rotary|rope|reshape_and_cache|kv_?cache|merge_state", re.IGNORECASE)
_OF_KIND = {"linear": "matrix products", "attention": "attention", "vector": "vector work", "gather": "table look-ups",
            "communication": "communication", "optimizer": "optimizer"}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelGroup:
    """What the model says of one group of kernels, for one device and one step.

    Args:
        name: A key of `GROUPS`.
        categories: Categories of kernel names that do this work.
        flop: Executed matrix work [FLOP].
        bytes: Traffic with main memory [B]; Unknown where it depends on caches that are on no record.
        time_s: Least time on the machine [s].
        dtype: Element type of most of its matrix work, empty where there is none.
        kernels: Names of its kernels in the model.
        launches: Executions of its kernels.
    """

    name: str
    categories: tuple[str, ...]
    flop: float
    bytes: float | Unknown
    time_s: float | Unknown
    dtype: str
    kernels: tuple[str, ...]
    launches: float


def groups_of(
    estimate: Estimate, machine: Machine | None, *, has_expert_kernels: bool = True
) -> tuple[ModelGroup, ...]:
    """Return the work of a phase by group.

    Args:
        estimate: The model in its phase; figures are those of one device of its plan.
        machine: The machine; without one no time is known and activations are left out.
        has_expert_kernels: Whether the profile has kernels of experts; else their products are among all others.
    """
    members: dict[str, list[Kernel]] = {}
    for kernel in estimate.phase.kernels:
        group = _OF_KIND.get(kernel.kind, "vector work")
        if group == "matrix products" and kernel.area == "experts" and has_expert_kernels:
            group = "experts"
        members.setdefault(group, []).append(kernel)
    return tuple(_group(name, kernels, machine) for name, kernels in members.items())


def _group(name: str, kernels: Sequence[Kernel], machine: Machine | None) -> ModelGroup:
    flop = size = 0.0
    time_s: float | Unknown = 0.0
    by_type: dict[str, float] = {}
    for kernel in kernels:
        demand = machine_demand(kernel, machine) if machine is not None else kernel.demand
        flop += float(demand.total_flop) * kernel.count
        size += float(demand.bytes) * kernel.count
        for (dtype, _), amount in demand.flop.items():
            by_type[dtype] = by_type.get(dtype, 0.0) + float(amount) * kernel.count
        if machine is None:
            time_s = Unknown("no machine is known", ("--hardware", "a ceilings.json"))
        elif is_known(time_s):
            least = kernel_bound(kernel, machine).time_s
            time_s = time_s + least if is_known(least) else least
    moved: float | Unknown = size
    if size <= 0:
        moved = Unknown(
            "its activations may stay in a cache that is on no record", ("a hardware file with the caches",)
        )
    return ModelGroup(
        name=name, categories=GROUPS[name], flop=flop, bytes=moved, time_s=time_s,
        dtype=max(by_type, key=lambda d: by_type[d]) if by_type else "", kernels=tuple(dict.fromkeys(k.name for k in kernels)),
        launches=sum(k.count for k in kernels),
    )  # fmt: skip


def with_model(
    timeline: Timeline, groups: Sequence[ModelGroup], steps: ProfileSteps, *, source: str, rules: Rules | None = None
) -> Timeline:
    """Return the profile with the model's demand on kernels of which nothing is recorded.

    Args:
        timeline: The profile, with demand columns where it records any.
        groups: The model's work of one device and one step.
        steps: The steps; every device of the profile does the work of one device in each.
        source: What the model is, for the receipt.
        rules: Categories of kernel names.
    """
    rules = rules or shipped_rules()
    table = timeline.of(Kind.KERNEL)
    if not len(table) or not steps.count:
        return timeline
    columns, sources = _columns(timeline)
    flop, size = columns["flop_per_ns"], columns["bytes_per_ns"]
    length = table.duration_ns.astype(np.float64)
    inside = (table.start_ns >= steps.start_ns[0]) & (table.start_ns < steps.end_ns[-1]) & (length > 0)
    names, codes = rules.codes([timeline.names[c] for c in range(len(timeline.names))])
    beside = np.array([bool(_BESIDE_ATTENTION.search(n)) for n in timeline.names], dtype=np.bool_)
    category = np.where(beside[table.name], NONE, codes[table.name])
    text = f"{source}: kernels of a category share the model's demand of it by their time"
    number = len(sources.each)
    dtypes = list(sources.dtypes)
    for group in groups:
        if group.name == "communication":
            continue
        wanted = [names.index(c) for c in group.categories if c in names]
        mine = inside & np.isin(category, wanted)
        for device in np.unique(table.device[mine]).tolist():
            rows = np.flatnonzero(mine & (table.device == device))
            got = _share_out(flop, rows, length, group.flop * steps.count)
            columns["demand_source"][got] = number
            columns["other_flop_per_ns"][got] = 0.0
            if got.size and group.flop > 0:
                if group.dtype not in dtypes:
                    dtypes.append(group.dtype)
                columns["demand_dtype"][got] = dtypes.index(group.dtype)
            if is_known(group.bytes):
                _share_out(size, rows, length, group.bytes * steps.count)
    reason = columns["demand_reason"]
    reason[~(np.isnan(flop) | np.isnan(size))] = NONE
    sources = replace(
        sources, dtypes=tuple(dtypes), flop=(*sources.flop, (text, Grade.MODELLED)), bytes=(*sources.bytes, (text, Grade.MODELLED)),
        each=(*sources.each, (text, text, Grade.MODELLED)),
    )  # fmt: skip
    tables = {**timeline.tables, Kind.KERNEL: replace(table, extras={**table.extras, **columns})}
    return replace(timeline, tables=tables, extras={**timeline.extras, "demand": sources})


def _columns(timeline: Timeline) -> tuple[dict[str, npt.NDArray[Any]], DemandSources]:
    """Return copies of the demand columns, empty ones where the profile has none."""
    table = timeline.of(Kind.KERNEL)
    sources = timeline.extras.get("demand")
    rows = len(table)
    if isinstance(sources, DemandSources):
        names = ("flop_per_ns", "other_flop_per_ns", "bytes_per_ns", "demand_reason", "demand_dtype", "demand_source")
        return {n: np.array(table.extras[n]) for n in names}, sources
    columns: dict[str, npt.NDArray[Any]] = {
        n: np.full(rows, np.nan) for n in ("flop_per_ns", "other_flop_per_ns", "bytes_per_ns")
    }
    columns["demand_reason"] = np.zeros(rows, dtype=np.int32)
    columns["demand_dtype"] = np.full(rows, NONE, dtype=np.int32)
    columns["demand_source"] = np.full(rows, NONE, dtype=np.int8)
    return columns, DemandSources(reasons=("in no group of the model, and not recorded",), dtypes=(), flop=(), bytes=())


def _share_out(
    rate: npt.NDArray[np.float64], rows: npt.NDArray[np.int64], length: npt.NDArray[np.float64], total: float
) -> npt.NDArray[np.int64]:
    """Give what the record leaves of `total` to the rows without one, by their time; return those rows.

    Where the recorded rows alone do more than the model counts, the program is not the model's (its operations are not fused,
    say): what the others do is not known then, and is not nothing.
    """
    lost = rows[np.isnan(rate[rows])]
    if not lost.size:
        return lost
    known = rows[~np.isnan(rate[rows])]
    rest = total - float((rate[known] * length[known]).sum())
    if known.size and total > 0 and rest <= 0:
        return lost[:0]
    rate[lost] = max(0.0, rest) / float(length[lost].sum())
    return lost
