"""Collectives of a profile with their message sizes, and the rates NCCL defines from them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.core import collectives
from mansard.core.grouping import groups
from mansard.core.unknown import MaybeFloat, Unknown
from mansard.trace.categories import COLLECTIVE, Rules, shipped_rules
from mansard.trace.operators_of import Operators, operators_of
from mansard.trace.timeline import Kind, Timeline

RECORD = "record_param_comms"
_ELEMENT_BYTES = {
    "Float": 4, "Double": 8, "Half": 2, "BFloat16": 2, "Long": 8, "Int": 4, "Short": 2, "Char": 1, "Byte": 1, "Bool": 1,
    "ComplexFloat": 8, "ComplexDouble": 16, "Float8_e4m3fn": 1, "Float8_e5m2": 1, "Float8_e4m3fnuz": 1, "Float8_e5m2fnuz": 1,
    "UInt16": 2, "UInt32": 4, "UInt64": 8,
}  # fmt: skip

#: Names of PyTorch -> operation, and which side of it is the size S that NCCL's rates are defined with.
_OPERATIONS: dict[str, tuple[str, str]] = {
    "allreduce": ("all_reduce", "in"), "allreduce_coalesced": ("all_reduce", "in"), "_allgather_base": ("all_gather", "out"),
    "allgather": ("all_gather", "out"), "all_gather": ("all_gather", "out"), "allgather_into_tensor_coalesced": ("all_gather", "out"),
    "_reduce_scatter_base": ("reduce_scatter", "in"), "reduce_scatter": ("reduce_scatter", "in"),
    "reduce_scatter_tensor_coalesced": ("reduce_scatter", "in"), "all_to_all": ("all_to_all", "in"),
    "all_to_allv": ("all_to_all", "in"), "alltoall": ("all_to_all", "in"), "alltoall_base": ("all_to_all", "in"),
    "broadcast": ("broadcast", "in"), "reduce": ("reduce", "in"), "send": ("send", "in"), "recv": ("recv", "out"),
    "gather": ("gather", "out"), "scatter": ("scatter", "in"),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveCall:
    """One communication kernel.

    Args:
        row: Its row in the kernel table of the timeline.
        start_ns, end_ns: Its interval [ns].
        device: Index of its device.
        stream: Its stream.
        name: Name of the kernel.
        operation: `all_reduce`, `all_gather`, ..., or `unknown` where neither name nor record tells.
        group: Name of the process group; empty where it is not recorded.
        group_size: Ranks that take part.
        ranks: Their numbers, empty where they are not recorded.
        message_bytes: The size S of NCCL's definitions: bytes one rank holds before it, or after it for an all-gather [B].
        stated_by: `kernel`, `operator` or `name`: where operation and size come from.
    """

    row: int
    start_ns: int
    end_ns: int
    device: int
    stream: int
    name: str
    operation: str
    group: str
    group_size: int | Unknown
    ranks: tuple[int, ...]
    message_bytes: MaybeFloat
    stated_by: str

    @property
    def algbw_bytes_per_s(self) -> MaybeFloat:
        """S over the time of this kernel, which includes waiting for the slowest peer [B/s]."""
        if self.end_ns <= self.start_ns:
            return Unknown("the kernel has no length")
        return self.message_bytes / ((self.end_ns - self.start_ns) * 1e-9)

    @property
    def busbw_bytes_per_s(self) -> MaybeFloat:
        """The algorithm bandwidth times the factor of the operation: what each link must carry [B/s]."""
        return self.algbw_bytes_per_s * bus_factor(self.operation, self.group_size)


def bus_factor(operation: str, ranks: int | Unknown) -> MaybeFloat:
    """Return what relates algorithm bandwidth to bus bandwidth, by `core.collectives`.

    A kernel that sends and receives may belong to an all-to-all or to one message, so its name alone tells nothing.

    >>> bus_factor("all_reduce", 8), isinstance(bus_factor("send_recv", 8), Unknown)
    (1.75, True)
    """
    if operation == "send_recv":
        return Unknown(
            "a kernel that sends and receives does not say for which collective", ("which collective it is",)
        )
    return collectives.bus_factor(operation, ranks)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCall:
    """One `record_param_comms` of a host thread: what the program asked for.

    Args:
        collective: Name as PyTorch records it, such as `allreduce` or `wait`.
        start_ns: When it was called [ns].
        in_bytes, out_bytes: Bytes of its input and output [B].
        group_size: Ranks of its group.
        args: All recorded fields.
    """

    collective: str
    start_ns: int
    in_bytes: MaybeFloat
    out_bytes: MaybeFloat
    group_size: int | Unknown
    args: Mapping[str, Any]


def recorded_calls(timeline: Timeline) -> tuple[RecordedCall, ...]:
    """Return the collectives that the host asked for, in order of time; calls without recorded fields have the name `unknown`."""
    table = timeline.of(Kind.CPU_OP)
    wanted = [i for i, n in enumerate(timeline.names) if n == RECORD]
    rows = np.flatnonzero(np.isin(table.name, wanted))
    out = []
    for row in rows[np.argsort(table.start_ns[rows], kind="stable")].tolist():
        detail = int(table.detail[row])
        args = timeline.details[detail].args if detail >= 0 else {}
        out.append(
            RecordedCall(
                collective=str(args.get("Collective name", "unknown")), start_ns=int(table.start_ns[row]),
                in_bytes=_bytes(args, "In msg nelems"), out_bytes=_bytes(args, "Out msg nelems"),
                group_size=_group_size(args), args=args,
            )
        )  # fmt: skip
    return tuple(out)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveKinds:
    """The communication kernels of a profile, by what is recorded of them: a large profile has few kinds and many calls.

    Args:
        rows: Their rows in the kernel table, by start.
        kind: Kind of each, an index into `examples`.
        examples: One call of each kind, which differ from the others of its kind in place and time alone.
    """

    rows: npt.NDArray[np.int64]
    kind: npt.NDArray[np.int64]
    examples: tuple[CollectiveCall, ...]


def collectives_of(
    timeline: Timeline, *, operators: Operators | None = None, rules: Rules | None = None
) -> tuple[CollectiveCall, ...]:
    """Return the communication kernels with what is recorded of them, by start.

    Args:
        timeline: The profile.
        operators: Its operators, where they are at hand.
        rules: Which names are communication; the shipped ones by default.
    """
    found = collective_kinds(timeline, operators=operators, rules=rules)
    table = timeline.of(Kind.KERNEL)
    columns = (found.rows, table.start_ns[found.rows], table.end_ns[found.rows], table.device[found.rows],
               table.stream[found.rows], found.kind)  # fmt: skip
    return tuple(
        replace(found.examples[kind], row=row, start_ns=start, end_ns=end, device=device, stream=stream)
        for row, start, end, device, stream, kind in zip(*(c.tolist() for c in columns), strict=True)
    )


def collective_kinds(
    timeline: Timeline, *, operators: Operators | None = None, rules: Rules | None = None
) -> CollectiveKinds:
    """Return the communication kernels by what is recorded of them.

    Args:
        timeline, operators, rules: As in `collectives_of`.
    """
    rules = rules or shipped_rules()
    table = timeline.of(Kind.KERNEL)
    nothing = np.zeros(0, dtype=np.int64)
    used = np.flatnonzero(np.bincount(table.name[table.name >= 0], minlength=1)).tolist() if len(table) else []
    talks = np.zeros(len(timeline.names) + 1, dtype=np.bool_)
    talks[[c for c in used if rules.category(timeline.names[c]) == COLLECTIVE]] = True
    rows = np.flatnonzero(talks[table.name])
    if not rows.size:
        return CollectiveKinds(rows=nothing, kind=nothing, examples=())
    rows = rows[np.argsort(table.start_ns[rows], kind="stable")]
    operators = operators or operators_of(timeline)
    # Kernels come first in the joined work, in the order of their table.
    in_work = np.flatnonzero(operators.launches.kind == int(Kind.KERNEL))[rows]
    first, kind = groups([table.name[rows], table.detail[rows], operators.launcher[in_work]])
    examples = tuple(_example(timeline, int(rows[i]), int(in_work[i]), operators, rules) for i in first.tolist())
    return CollectiveKinds(rows=rows, kind=kind, examples=examples)


def _example(timeline: Timeline, row: int, in_work: int, operators: Operators, rules: Rules) -> CollectiveCall:
    """Return what is recorded of one communication kernel."""
    table = timeline.of(Kind.KERNEL)
    name = timeline.names[int(table.name[row])]
    args, stated = _args(timeline, int(table.detail[row]), operators, in_work)
    recorded = str(args.get("Collective name", ""))
    operation, side = _OPERATIONS.get(recorded, (rules.collective(name).operation, ""))
    size = _size(args, side, recorded)
    if not args:
        operation, size, stated = _from_shapes(timeline, operators, in_work, operation, size)
    return CollectiveCall(
        row=row, start_ns=int(table.start_ns[row]), end_ns=int(table.end_ns[row]), device=int(table.device[row]),
        stream=int(table.stream[row]), name=name, operation=operation, group=str(args.get("Process Group Name", "")),
        group_size=_group_size(args), ranks=_ranks(args), message_bytes=size,
        stated_by=stated if side or not args else "name",
    )  # fmt: skip


def _args(timeline: Timeline, detail: int, operators: Operators, row: int) -> tuple[Mapping[str, Any], str]:
    """Return the recorded fields of a collective: of the kernel itself, else of the operator that launched it."""
    if detail >= 0 and "Collective name" in timeline.details[detail].args:
        return timeline.details[detail].args, "kernel"
    at = int(operators.launcher[row])
    while at >= 0:
        inner = int(operators.table.detail[at])
        if inner >= 0 and "Collective name" in timeline.details[inner].args:
            return timeline.details[inner].args, "operator"
        at = int(operators.parent[at])
    return {}, "name"


#: Operators of older PyTorch -> operation, and which tensor holds the size S; -1 where its shape is not recorded.
_BY_SHAPE = {
    "c10d::_allgather_base_": ("all_gather", 0), "c10d::_reduce_scatter_base_": ("reduce_scatter", 1),
    "c10d::alltoall_base_": ("all_to_all", 1), "c10d::allreduce_": ("all_reduce", -1), "c10d::allgather_": ("all_gather", -1),
    "c10d::reduce_scatter_": ("reduce_scatter", -1), "c10d::alltoall_": ("all_to_all", -1), "c10d::broadcast_": ("broadcast", -1),
    "c10d::send": ("send", -1), "c10d::recv_": ("recv", -1), "c10d::reduce_": ("reduce", -1),
}  # fmt: skip
_TYPE_BYTES = {
    "float": 4, "double": 8, "c10::Half": 2, "c10::BFloat16": 2, "long": 8, "long int": 8, "int": 4, "short": 2, "short int": 2,
    "signed char": 1, "unsigned char": 1, "bool": 1,
}  # fmt: skip


def _from_shapes(
    timeline: Timeline, operators: Operators, row: int, operation: str, size: MaybeFloat
) -> tuple[str, MaybeFloat, str]:
    """Return operation and size from the operator that launched a collective, where its fields are not recorded."""
    at = int(operators.launcher[row])
    while at >= 0:
        known = _BY_SHAPE.get(timeline.names[int(operators.table.name[at])])
        if known is not None:
            call = operators.kinds[int(operators.code[at])][0]
            which = known[1]
            if 0 <= which < min(len(call.shapes), len(call.dtypes)) and call.dtypes[which] in _TYPE_BYTES:
                dims = call.shapes[which]
                if dims and not any(isinstance(d, tuple) for d in dims):
                    size = float(np.prod([int(d) for d in dims if not isinstance(d, tuple)], dtype=np.float64))
                    size *= _TYPE_BYTES[call.dtypes[which]]
            return known[0], size, "operator"
        at = int(operators.parent[at])
    return operation, size, "name"


def _size(args: Mapping[str, Any], side: str, recorded: str) -> MaybeFloat:
    if not side:
        reason = (
            f"the size of {recorded} is not defined"
            if recorded
            else "no message size is recorded with the kernel or its operator"
        )
        return Unknown(reason, ("a profile of PyTorch 2.3 or later with NCCL, which records it",))
    return _bytes(args, "In msg nelems" if side == "in" else "Out msg nelems")


def _bytes(args: Mapping[str, Any], field: str) -> MaybeFloat:
    count, dtype = args.get(field), str(args.get("dtype", ""))
    if not isinstance(count, int) or isinstance(count, bool) or count < 0:
        return Unknown(f"'{field}' is not recorded", ("a newer PyTorch",))
    if dtype not in _ELEMENT_BYTES:
        return Unknown(f"the size of an element of type '{dtype}' is not known", ("the element type",))
    return float(count * _ELEMENT_BYTES[dtype])


def _group_size(args: Mapping[str, Any]) -> int | Unknown:
    size = args.get("Group size")
    if isinstance(size, int) and not isinstance(size, bool) and size > 0:
        return size
    return Unknown("the size of the process group is not recorded", ("the number of ranks",))


def _ranks(args: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the ranks of a group; PyTorch shortens long lists with `...`, which names no ranks."""
    text = args.get("Process Group Ranks")
    try:
        ranks = json.loads(text) if isinstance(text, str) else text
    except ValueError:
        return ()
    return tuple(int(r) for r in ranks) if isinstance(ranks, list) and all(isinstance(r, int) for r in ranks) else ()
