"""From a kernel to the operator that launched it, its recorded shapes, and so to FLOP and bytes that nobody has to type."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from mansard.core.demand import Demand
from mansard.core.unknown import MaybeFloat, Unknown
from mansard.trace.aten import AtenCall, AtenCost, cost, needs_inner
from mansard.trace.launches import Launches, join_launches
from mansard.trace.timeline import NONE, Detail, Events, Kind, Timeline
from mansard.trace.torch_tree import shapes_text

Int64Array = npt.NDArray[np.int64]
Int32Array = npt.NDArray[np.int32]

_MOST_INNER = 256  # operators beneath one whose cost may depend on them
_NO_PART = Unknown("not every kernel of it in the window has a known demand", ("the whole profile",))
_GRAPH_LAUNCH = ("cudaGraphLaunch", "hipGraphLaunch", "cuGraphLaunch")


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorWork:
    """All calls of one operator with the same recorded inputs.

    Args:
        name: The operator, such as `aten::mm`.
        shapes: Its tensor operands for reading.
        category: As the table of operators has it: gemm, attention, elementwise, ...
        calls: How often it was called where no operator around it already counts its work.
        launching_calls: How many of these launched device work that the file has.
        kernels: Kernels they launched.
        kernel_sum_ns: Their summed time [ns].
        demand: What one call must consume, or why that is not known.
        formula: How it was counted.
        full_square_flop: FLOP per call if a causal attention were counted in full; None where that does not apply.
        in_window: FLOP and bytes of the parts of its kernels that lie in a window; None in a whole profile. Its calls on the host and
            the kernels there are not the same ones, so calls times demand would be the work of other kernels.
    """

    name: str
    shapes: str
    category: str
    calls: int
    launching_calls: int
    kernels: int
    kernel_sum_ns: int
    demand: Demand | Unknown
    formula: str
    full_square_flop: float | None
    in_window: tuple[MaybeFloat, MaybeFloat] | None = None

    @property
    def flop(self) -> MaybeFloat:
        """Matrix work of all calls, in a window of the parts of their kernels inside it [FLOP]."""
        if self.in_window is not None:
            return self.in_window[0]
        return self.demand if isinstance(self.demand, Unknown) else float(self.demand.total_flop) * self.calls

    @property
    def bytes(self) -> MaybeFloat:
        """Compulsory traffic of all calls, in a window of the parts of their kernels inside it [B]."""
        if self.in_window is not None:
            return self.in_window[1]
        return self.demand if isinstance(self.demand, Unknown) else float(self.demand.bytes) * self.calls

    @property
    def flop_per_s(self) -> MaybeFloat:
        """Matrix work over the summed time of the kernels [FLOP/s]; Unknown unless every call has its kernels."""
        if self.in_window is not None and self.kernel_sum_ns > 0:
            flop = self.in_window[0]
            return flop if isinstance(flop, Unknown) else flop / (self.kernel_sum_ns * 1e-9)
        if self.launching_calls < self.calls or self.kernel_sum_ns <= 0:
            missing = self.calls - self.launching_calls
            return Unknown(f"{missing} of {self.calls} calls have no kernel in the file", ("a complete profile",))
        return self.flop / (self.kernel_sum_ns * 1e-9)


@dataclass(frozen=True)
class Operators:
    """Device work of a profile with the operators that launched it.

    Args:
        timeline: The profile.
        launches: Its work joined to its calls.
        table: Recorded operators, by thread, start, longest first.
        parent: Operator that encloses each, -1 for none.
        owner: For each operator the one whose cost covers its work: the outermost that does work itself; -1 for none.
        code: Kind of each operator; index into `kinds`.
        kinds: Recorded call and its cost, one for each distinct name and inputs.
        launcher: For each piece of work the innermost operator that launched it, -1 for none.
        by_external: Which work was joined by its external id, since its launch is not in the file.
        in_graph: Which work a graph launch started: its operators are only in the trace of the capture.
    """

    timeline: Timeline
    launches: Launches
    table: Events
    parent: Int64Array
    owner: Int64Array
    code: Int64Array
    kinds: tuple[tuple[AtenCall, AtenCost], ...]
    launcher: Int64Array
    by_external: npt.NDArray[np.bool_]
    in_graph: npt.NDArray[np.bool_]

    @cached_property
    def owner_of_work(self) -> Int64Array:
        """For each piece of work the operator whose cost covers it, -1 where none does."""
        if not len(self.table):
            return np.full(self.launcher.size, NONE, dtype=np.int64)
        found: Int64Array = np.where(self.launcher >= 0, self.owner[self.launcher], NONE)
        return found

    def name_of_launcher(self, row: int) -> str:
        """Return the name of the operator that launched one piece of work, empty where none is known."""
        at = int(self.launcher[row])
        return self.timeline.names[int(self.table.name[at])] if at >= 0 else ""

    def demand_of(self, operator: int) -> Demand | Unknown:
        """Return what one call of an operator must consume."""
        return self.kinds[int(self.code[operator])][1].demand

    @property
    def attributed_ratio(self) -> MaybeFloat:
        """Share of the summed kernel time whose operator has a known demand (0..1)."""
        kernels = self.launches.kind == int(Kind.KERNEL)
        total = int(self.launches.work.duration_ns[kernels].sum())
        if total <= 0:
            return self.timeline.why_absent(Kind.KERNEL)
        known = np.array([not isinstance(c.demand, Unknown) for _, c in self.kinds] + [False], dtype=np.bool_)
        owner = self.owner_of_work
        counted = np.where(owner >= 0, known[self.code[owner] if len(self.table) else owner], False)
        return float(self.launches.work.duration_ns[kernels & counted].sum()) / total


def operators_of(timeline: Timeline, *, launches: Launches | None = None) -> Operators:
    """Join device work to the recorded operators that launched it.

    A kernel carries the correlation id of its runtime call, and the innermost operator open on that thread when the call
    starts launched it. Where the call is missing, the external id names the operator.

    Args:
        timeline: A profile with runtime calls and operators.
        launches: The joined launches, where they are at hand.
    """
    launches = launches or join_launches(timeline)
    table = timeline.of(Kind.CPU_OP)
    order = np.lexsort((-table.end_ns, table.start_ns, table.thread)) if len(table) else np.zeros(0, np.int64)
    table = table.take(order)
    parent = _parents(table)
    code, kinds = _kinds(timeline, table)
    code, kinds = _completed(table, parent, code, kinds)
    roles = [kinds[c][1].kind for c in code.tolist()]
    owner = _owners(parent, roles)
    launcher, by_external = _launchers(launches, table, parent)
    return Operators(
        timeline=timeline,
        launches=launches,
        table=table,
        parent=parent,
        owner=owner,
        code=code,
        kinds=kinds,
        launcher=launcher,
        by_external=by_external,
        in_graph=_in_graph(timeline, launches),
    )


def work_by_operator(operators: Operators, *, chosen: Operators | None = None) -> tuple[OperatorWork, ...]:
    """Return the operators that do work, grouped by name and recorded inputs, by kernel time and then by calls.

    Args:
        operators: Kernels joined to operators.
        chosen: The same with a choice of kernels: only groups that launched one of those, and with all that they launched, since the
            work of an operator is that of all its kernels.
    """
    table, owner = operators.table, operators.owner
    own = np.flatnonzero(owner == np.arange(len(table))) if len(table) else np.zeros(0, dtype=np.int64)
    calls = np.bincount(operators.code[own], minlength=len(operators.kinds))
    kernels: dict[int, int] = defaultdict(int)
    time: dict[int, int] = defaultdict(int)
    launching: dict[int, set[int]] = defaultdict(set)
    rows = np.flatnonzero((operators.owner_of_work >= 0) & (operators.launches.kind == int(Kind.KERNEL)))
    work_owner = operators.owner_of_work[rows]
    parts = _in_window(operators, rows)
    for at, length in zip(work_owner.tolist(), operators.launches.work.duration_ns[rows].tolist(), strict=True):
        kind = int(operators.code[at])
        kernels[kind] += 1
        time[kind] += length
        launching[kind].add(at)
    out = []
    for kind in np.flatnonzero(calls).tolist() if chosen is None else sorted(_launching_kinds(chosen)):
        call, known = operators.kinds[kind]
        out.append(
            OperatorWork(
                name=call.name, shapes=shapes_text(call), category=known.category, calls=int(calls[kind]),
                launching_calls=len(launching[kind]), kernels=kernels[kind], kernel_sum_ns=time[kind],
                demand=known.demand, formula=known.formula, full_square_flop=known.full_square_flop,
                in_window=None if parts is None or isinstance(known.demand, Unknown) else parts.get(kind, (_NO_PART, _NO_PART)),
            )
        )  # fmt: skip
    return tuple(sorted(out, key=lambda w: (-w.kernel_sum_ns, -w.calls, w.name, w.shapes)))


def _in_window(operators: Operators, rows: Int64Array) -> dict[int, tuple[MaybeFloat, MaybeFloat]] | None:
    """Return FLOP and bytes of each kind of operator by what of its kernels lies in the window; None in a whole profile.

    Args:
        operators: Kernels joined to operators.
        rows: Kernels whose operator is known, as rows of the joined work, in which kernels are the first.
    """
    timeline = operators.timeline
    if "window_ns" not in timeline.extras:
        return None
    table = timeline.of(Kind.KERNEL)
    if "flop_per_ns" not in table.extras:
        return {}
    kind = operators.code[operators.owner_of_work[rows]]
    out: dict[int, tuple[MaybeFloat, MaybeFloat]] = {}
    length = table.duration_ns[rows].astype(np.float64)
    amounts = [table.extras[name][rows] * length for name in ("flop_per_ns", "bytes_per_ns")]
    for one in np.unique(kind).tolist():
        flop, size = (float(a[kind == one].sum()) for a in amounts)
        out[one] = (_NO_PART if np.isnan(flop) else flop, _NO_PART if np.isnan(size) else size)
    return out


def _launching_kinds(operators: Operators) -> set[int]:
    """Return the kinds of operators whose work some kernel did."""
    owner = operators.owner_of_work[operators.launches.kind == int(Kind.KERNEL)]
    return {int(k) for k in np.unique(operators.code[owner[owner >= 0]])}


def _parents(table: Events) -> Int64Array:
    """Return the operator that encloses each one on its thread, -1 for none."""
    parents = np.full(len(table), NONE, dtype=np.int64)
    stack: list[int] = []
    thread = None
    ends = table.end_ns.tolist()
    out: list[int] = []
    for i, (start, of) in enumerate(zip(table.start_ns.tolist(), table.thread.tolist(), strict=True)):
        if of != thread:
            stack, thread = [], of
        while stack and ends[stack[-1]] <= start:
            stack.pop()
        out.append(stack[-1] if stack else NONE)
        if stack and ends[i] > ends[stack[-1]]:
            ends[i] = ends[stack[-1]]  # one that outlasts what encloses it is cut to it
        stack.append(i)
    parents[:] = out
    return parents


def _owners(parent: Int64Array, roles: Sequence[str]) -> Int64Array:
    """Return for each operator the outermost one around it, itself included, that does work."""
    owner = [NONE] * len(roles)
    for i, up in enumerate(parent.tolist()):
        if up >= 0 and owner[up] >= 0:
            owner[i] = owner[up]
        elif roles[i] == "work":
            owner[i] = i
    return np.array(owner, dtype=np.int64)


def _detail(timeline: Timeline, code: int) -> Detail:
    return timeline.details[code] if code >= 0 else Detail()


def _call(timeline: Timeline, name: int, detail: int) -> AtenCall:
    known = _detail(timeline, detail)
    args = {
        "Input Dims": known.dims,
        "Input type": known.types,
        "Input Strides": known.strides,
        "Concrete Inputs": known.values,
    }
    return AtenCall.from_record(timeline.names[name], args)


def _cost(call: AtenCall, inner: Sequence[AtenCall] | None = None) -> AtenCost:
    try:
        return cost(call, inner)
    except (TypeError, ValueError, ArithmeticError) as misfit:  # a record that no operator can have
        reason = f"{call.name}: the record does not fit the operator ({misfit})"
        return AtenCost(kind="work", category="other", demand=Unknown(reason, ("a complete record",)))


def _kinds(timeline: Timeline, table: Events) -> tuple[Int64Array, tuple[tuple[AtenCall, AtenCost], ...]]:
    if not len(table):
        return np.zeros(0, dtype=np.int64), ()
    wide = len(timeline.details) + 1
    pairs, inverse = np.unique(table.name.astype(np.int64) * wide + table.detail + 1, return_inverse=True)
    kinds = []
    for pair in pairs.tolist():
        try:
            call = _call(timeline, pair // wide, pair % wide - 1)
        except (TypeError, ValueError, ArithmeticError):
            call = AtenCall(timeline.names[pair // wide])
        kinds.append((call, _cost(call)))
    return inverse.reshape(-1).astype(np.int64), tuple(kinds)


def _completed(
    table: Events,
    parent: Int64Array,
    code: Int64Array,
    kinds: tuple[tuple[AtenCall, AtenCost], ...],
) -> tuple[Int64Array, tuple[tuple[AtenCall, AtenCost], ...]]:
    """Ask again about operators whose record is only complete with the calls beneath them."""
    wanted = {
        c for c, (call, known) in enumerate(kinds) if needs_inner(call.name) and isinstance(known.demand, Unknown)
    }
    if not wanted:
        return code, kinds
    out, more = code.copy(), list(kinds)
    known_before: dict[tuple[int, tuple[int, ...]], int] = {}
    rows = np.flatnonzero(np.isin(code, list(wanted))).tolist()
    for row in rows:
        beneath: list[int] = []
        at = row + 1
        while at < len(table) and len(beneath) < _MOST_INNER and _is_beneath(parent, at, row):
            beneath.append(int(code[at]))
            at += 1
        key = (int(code[row]), tuple(beneath))
        if key not in known_before:
            call = kinds[key[0]][0]
            known_before[key] = len(more)
            more.append((call, _cost(call, [kinds[c][0] for c in beneath])))
        out[row] = known_before[key]
    return out, tuple(more)


def _is_beneath(parent: Int64Array, at: int, top: int) -> bool:
    while at > top:
        at = int(parent[at])
    return at == top


def _launchers(launches: Launches, table: Events, parent: Int64Array) -> tuple[Int64Array, npt.NDArray[np.bool_]]:
    """Return the innermost operator that launched each piece of work, and which were found by their external id."""
    work = launches.work
    out = np.full(len(work), NONE, dtype=np.int64)
    if not len(table) or not len(work):
        return out, np.zeros(len(work), dtype=np.bool_)
    launched = np.flatnonzero(launches.launched)
    calls = launches.call[launched]
    out[launched] = _innermost(table, parent, launches.calls.thread[calls], launches.calls.start_ns[calls])
    external = np.zeros(len(work), dtype=np.bool_)
    if "external_id" in work.extras and "external_id" in table.extras:
        ids = table.extras["external_id"]
        order = np.argsort(ids, kind="stable")
        wanted = work.extras["external_id"]
        at = np.minimum(np.searchsorted(ids[order], wanted), ids.size - 1)
        rows = order[at]
        # Old files repeat the correlation id in this place: it names no operator there.
        external = (
            (out == NONE) & (wanted > 0) & (ids[rows] == wanted) & (wanted != work.correlation) & ~launches.launched
        )
        out[external] = rows[external]
    return out, external


def _innermost(table: Events, parent: Int64Array, thread: Int32Array, moment: Int64Array) -> Int64Array:
    """Return the innermost operator open on a thread at each moment, -1 where none is."""
    out = np.full(moment.size, NONE, dtype=np.int64)
    for one in np.unique(thread).tolist():
        if one == NONE:
            continue
        first, last = np.searchsorted(table.thread, [one, one + 1])
        mine = np.flatnonzero(thread == one)
        if first == last:
            continue
        at = first + np.searchsorted(table.start_ns[first:last], moment[mine], side="right") - 1
        at[at < first] = NONE
        waiting = np.flatnonzero(at >= 0)
        while waiting.size:  # climb where the operator found has already ended
            ended = table.end_ns[at[waiting]] <= moment[mine[waiting]]
            waiting = waiting[ended]
            at[waiting] = parent[at[waiting]]
            waiting = waiting[at[waiting] >= 0]
        out[mine] = at
    return out


def _in_graph(timeline: Timeline, launches: Launches) -> npt.NDArray[np.bool_]:
    names = [i for i, n in enumerate(timeline.names) if n.startswith(_GRAPH_LAUNCH)]
    if not names or not len(launches.calls):
        return np.zeros(len(launches.work), dtype=np.bool_)
    graph = np.isin(launches.calls.name, names)
    found: npt.NDArray[np.bool_] = launches.launched & graph[launches.call]
    return found
