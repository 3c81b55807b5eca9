"""The kernels of one device as kinds of operation: the same kernel, launched by the same call in the same part of a step."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from mansard.core import Demand, Grade, Unknown
from mansard.core.grouping import groups
from mansard.diagnose.links import Links
from mansard.diagnose.partial import NO_BYTES, NO_FLOP
from mansard.trace.categories import Rules, short_name
from mansard.trace.collectives_of import CollectiveCall, CollectiveKinds
from mansard.trace.kernel_demand import SHAPES, DemandSources
from mansard.trace.ncu_demand import NOT_IN_REPORT
from mansard.trace.operators_of import Operators
from mansard.trace.run import Operator, Part
from mansard.trace.timeline import NONE, Events, Kind, Timeline
from mansard.trace.torch_parts import PARTS
from mansard.trace.torch_tree import shapes_text

Int64Array = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

NO_DEMAND = Unknown(
    "nothing tells what this kernel computes",
    ("a profile with recorded shapes (record_shapes=True)", "--ncu REPORT.csv", "--model config.json"),
)
#: Names of kernels that say nothing: the first argument of their template is what they are.
_EMPTY_NAMES = ("Kernel", "Kernel2", "kernel", "device_kernel")
#: Names of kernels that round f32 operands to tf32.
_TF32 = re.compile(r"tf32|tensorop_s1688", re.IGNORECASE)
_ACCUMULATE = {"f": "f32", "b": "f32", "t": "f32", "i": "i32", "u": "i32"}


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelKinds:
    """Kinds of operation, and the kernels of each.

    Args:
        rows: Rows of the kernel table.
        kind: Kind of each, an index into `operators`.
        operators: The kinds; amounts are those of one kernel.
    """

    rows: Int64Array
    kind: Int64Array
    operators: tuple[Operator, ...]


def kernel_name(name: str) -> str:
    """Return a kernel's name for reading.

    >>> kernel_name("void at::native::(anonymous namespace)::CatArrayBatchedCopy<at::native::OpaqueType<2u>, unsigned int>(int)")
    'CatArrayBatchedCopy'
    >>> kernel_name("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_64x64_16x6_tn_align4>(int)")
    'cutlass_80_tensorop_s1688gemm_64x64_16x6_tn_align4'
    """
    plain = short_name(name)
    if plain == "enable_if" and ">::type " in name:  # the result type, before the kernel itself
        return kernel_name(name.split(">::type ", 1)[1])
    if plain in _EMPTY_NAMES and "<" in name:
        inner = short_name(name[name.index("<") + 1 :].split(",")[0].rstrip(" >("))
        return inner or plain
    return plain


def kernel_kinds(
    timeline: Timeline,
    device: int,
    operators: Operators,
    collectives: CollectiveKinds,
    links: Links,
    rules: Rules,
    part_of_work: npt.NDArray[np.int8],
) -> KernelKinds:
    """Return the kernels of a device by kind.

    Args:
        timeline: The profile, with demand columns where anything tells.
        device: Index of the device.
        operators: The operators that launched them.
        collectives: Communication among the kernels.
        links: What collectives go over.
        rules: Categories of kernel names.
        part_of_work: Part of each piece of the joined work.
    """
    table = timeline.of(Kind.KERNEL)
    mine = np.flatnonzero((table.device == device) & (table.end_ns > table.start_ns))
    if not mine.size:
        return KernelKinds(rows=mine, kind=mine, operators=())
    in_work = np.flatnonzero(operators.launches.kind == int(Kind.KERNEL))[mine]
    owner = np.where(operators.in_graph[in_work], NONE, operators.owner_of_work[in_work])
    shape = np.where(owner >= 0, operators.code[owner] if operators.code.size else NONE, NONE)
    launcher = operators.launcher[in_work]
    named = np.where(launcher >= 0, operators.table.name[launcher] if len(operators.table) else NONE, NONE)
    names, plain = _plain_names(timeline, table.name[mine])
    talk, examples = _talks(mine, collectives, len(table))
    keys = (plain, shape, np.where(shape >= 0, NONE, named), part_of_work[in_work], talk, *_states(table, mine))
    first, kind = groups(keys)
    amounts = _amounts(table, mine, kind, first.size)
    out = []
    for index, place in enumerate(first.tolist()):
        name = timeline.names[int(table.name[mine[place]])]
        key = [int(column[place]) for column in keys]
        part = PARTS[key[3]]
        base = _Base(name=names[int(plain[place])], category=rules.category(name), part=part)
        if talk[place]:
            out.append(_collective(base, examples[int(talk[place]) - 1], links))
            continue
        launched_by = timeline.names[int(named[place])] if named[place] >= 0 else ""
        out.append(_computing(base, timeline, operators, key, amounts[index], launched_by, name))
    return KernelKinds(rows=mine, kind=kind, operators=tuple(out))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Base:
    name: str
    category: str
    part: Part

    def operator(self, demand: Demand | Unknown, *, formula: str = "", source: str = "", shapes: str = "") -> Operator:
        return Operator(
            name=self.name, category=self.category, part=self.part, shapes=shapes, demand=demand, scope="device",
            formula=formula, source=source,
        )  # fmt: skip


def _plain_names(timeline: Timeline, name: npt.NDArray[np.int32]) -> tuple[list[str], Int64Array]:
    """Return names for reading and which of them each kernel has: instances of one template are one kernel."""
    known: dict[str, int] = {}
    plain = np.full(len(timeline.names), NONE, dtype=np.int64)
    for code in np.flatnonzero(np.bincount(name, minlength=1)).tolist():
        plain[code] = known.setdefault(kernel_name(timeline.names[code]), len(known))
    return list(known), plain[name]


def _talks(mine: Int64Array, collectives: CollectiveKinds, rows: int) -> tuple[Int64Array, Sequence[CollectiveCall]]:
    """Return the number of each kernel's communication, 0 for none: same operation, ranks and size are one."""
    numbers: dict[tuple[object, ...], int] = {}
    examples: list[CollectiveCall] = []
    of_kind = np.zeros(len(collectives.examples) + 1, dtype=np.int64)
    for place, call in enumerate(collectives.examples):
        key = (call.operation, call.ranks, str(call.group_size), str(call.message_bytes))
        if key not in numbers:
            numbers[key] = len(numbers) + 1
            examples.append(call)
        of_kind[place] = numbers[key]
    talk = np.zeros(rows, dtype=np.int64)
    talk[collectives.rows] = of_kind[collectives.kind]
    return talk[mine], examples


def _states(table: Events, mine: Int64Array) -> tuple[Int64Array, ...]:
    """Return what is known of each kernel's demand (1 FLOP, 2 bytes), its source, why something is not, and its type."""
    if "flop_per_ns" not in table.extras:
        return tuple(np.full(mine.size, v, dtype=np.int64) for v in (0, NONE, NONE, NONE))
    flop, size = (~np.isnan(table.extras[n][mine]) for n in ("flop_per_ns", "bytes_per_ns"))
    state = flop.astype(np.int64) + 2 * size.astype(np.int64)
    source = np.where(state > 0, table.extras["demand_source"][mine].astype(np.int64), NONE)
    reason = np.where(state < 3, table.extras["demand_reason"][mine].astype(np.int64), NONE)
    return state, source, reason, table.extras["demand_dtype"][mine].astype(np.int64)


def _amounts(table: Events, mine: Int64Array, kind: Int64Array, kinds: int) -> FloatArray:
    """Return mean FLOP, other FLOP and bytes of one kernel of each kind; NaN where not known."""
    out = np.full((kinds, 3), np.nan)
    if "flop_per_ns" in table.extras:
        length = (table.end_ns - table.start_ns)[mine].astype(np.float64)
        count = np.maximum(np.bincount(kind, minlength=kinds), 1)
        for column, name in enumerate(("flop_per_ns", "other_flop_per_ns", "bytes_per_ns")):
            out[:, column] = np.bincount(kind, table.extras[name][mine] * length, minlength=kinds) / count
    return out


def _needs(why: str, timeline: Timeline) -> tuple[str, ...]:
    """Return what would tell the demand of a kernel: shapes help only where an operator could have recorded them."""
    counters, model = "--ncu REPORT.csv", "--model config.json"
    if why == NOT_IN_REPORT:
        return ("an --ncu report of the same program that holds this kernel", model)
    if "trace of the capture" in why:
        return (f"{counters}, the counters of these kernels", model)
    if "call that launched it" in why:
        return ("a profile that starts before the launch calls (a whole step or more)", counters, model)
    if "not in the table" in why or timeline.format != "kineto":
        return (f"{counters}, the counters of these kernels", model)
    return NO_DEMAND.needs


def _computing(
    base: _Base,
    timeline: Timeline,
    operators: Operators,
    key: Sequence[int],
    amounts: FloatArray,
    launched_by: str,
    raw: str,
) -> Operator:
    """Return a kernel that computes, with what is known of its demand."""
    _, shape, _, _, _, state, source, reason, kind = key
    sources = timeline.extras.get("demand")
    assert sources is None or isinstance(sources, DemandSources)
    call = operators.kinds[shape][0] if shape >= 0 else None
    name, shapes = (call.name, shapes_text(call)) if call is not None else (launched_by, "")
    flop, other, size = (float(a) for a in amounts)
    if state == 0 or sources is None:
        why = sources.reasons[reason] if sources is not None and reason >= 0 else NO_DEMAND.reason
        return base.operator(Unknown(why, _needs(why, timeline)), source=name, shapes=shapes)
    told = sources.each[source] if 0 <= source < len(sources.each) else None
    if told is not None and told[0] == SHAPES and shape >= 0 and state == 3:
        cost = operators.kinds[shape][1]
        if isinstance(cost.demand, Demand):
            whole = float(cost.demand.bytes) or float(cost.demand.total_flop)
            share = (size if float(cost.demand.bytes) else flop) / whole if whole > 0 else 1.0
            how = cost.formula if abs(share - 1.0) < 1e-6 else f"{share:.3g} of {name}, by its time: {cost.formula}"
            full = None if cost.full_square_flop is None else cost.full_square_flop * share
            found = base.operator(
                replace(_as_named(cost.demand, raw).scaled(share), launches=1.0),
                formula=how,
                source=name,
                shapes=shapes,
            )
            return replace(found, full_square_flop=full)
    dtype = sources.dtypes[kind] if kind >= 0 else "several types"
    scalar = told is not None and told[2] is Grade.MEASURED  # counters of the scalar pipes
    demand = _counted(state, flop, other, size, dtype, scalar=scalar)
    how = "; ".join(dict.fromkeys(told[:2])) if told is not None else "FLOP and bytes from several sources"
    return base.operator(demand, formula=how, source=name, shapes=shapes)


def _as_named(demand: Demand, raw: str) -> Demand:
    """Return a demand with f32 products on the tf32 units where the kernel's name says that it uses them."""
    if not _TF32.search(raw) or ("f32", "f32") not in demand.flop:
        return demand
    flop = {k: v for k, v in demand.flop.items() if k != ("f32", "f32")}
    return replace(demand, flop={**flop, ("tf32", "f32"): demand.flop["f32", "f32"]})


def _counted(state: int, flop: float, other: float, size: float, dtype: str, *, scalar: bool) -> Demand:
    """Return a demand from counted amounts; what was not counted is said."""
    lost = [text for bit, text in ((1, NO_FLOP), (2, NO_BYTES)) if not state & bit]
    if state & 1 and other > 0:
        lost.append("other arithmetic, whose element type is not known")
    accumulate = "f64" if dtype == "f64" else _ACCUMULATE.get(dtype[0], "f32")
    some = bool(state & 1) and flop > 0
    return Demand(
        flop={(dtype, accumulate): flop} if some and not scalar else {},
        vector_flop={dtype: flop} if some and scalar else {},
        read_bytes=size if state & 2 else 0.0,
        uncounted=tuple(lost),
    )


def _collective(base: _Base, call: CollectiveCall, links: Links) -> Operator:
    link = links.of_group(call.ranks, call.group_size)
    sent = links.sent(call.operation, call.message_bytes, call.ranks, call.group_size)
    demand: Demand | Unknown = sent if isinstance(sent, Unknown) else Demand(link_bytes=sent)
    ranks = "" if isinstance(call.group_size, Unknown) else f"{call.group_size} ranks"
    how = f"{call.operation}: least bytes of one device over each link, S as NCCL defines it{f'; {ranks}' if ranks else ''}"
    amount = "" if isinstance(call.message_bytes, Unknown) else f"{call.message_bytes:.0f} B"
    size = ", ".join(x for x in (amount, ranks) if x)
    talking = replace(base, category="collective")
    return replace(talking.operator(demand, formula=how, source=call.operation, shapes=size), link=link)
