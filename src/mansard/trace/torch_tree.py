"""From the recorded events of host threads to operations, dispatch and waits: each nanosecond of a thread has one owner."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from mansard.core import Unknown
from mansard.trace.aten import AtenCall, AtenCost, cost, needs_inner, takes_lists
from mansard.trace.aten.collective_ops import NOT_RECORDED, ProcessGroup, exchange, is_backend_range, only_issues
from mansard.trace.readers.kineto import NONE, KinetoTrace
from mansard.trace.recorders.torch_recompute import RECOMPUTE, STOPPED
from mansard.trace.run import Part, WaitCause
from mansard.trace.torch_recompute import NOT, given_up, recompute_state

HOST_CATEGORIES = ("cpu_op", "user_annotation", "cuda_runtime", "cuda_driver", "runtime")

#: Frames of the autograd engine and of Python autograd functions: they call operators and have no work of their own.
_AUTOGRAD = re.compile(r"^(autograd::engine::|torch::autograd::)|^\w*Backward\d*$")
_OPTIMIZER = re.compile(r"^Optimizer\.(step|zero_grad)#")
_COMPILED_REGION = re.compile(r"^(## Call CompiledFxGraph|CompiledFxGraph)")
_COMPILE = re.compile(
    r"dynamo_timed|_compile\.compile_inner|entire_frame_compile|backend_compile|inductor_compile|aot_module_simplified"
    r"|create_aot_dispatcher_function|fx_codegen_and_compile|compile_file"
)
_SYNC = re.compile(r"^(cuda|hip|cu)\w*Synchronize|^cudaEventSynchronize|^cuStreamSynchronize", re.IGNORECASE)

# What an event is to its time: it owns all of it, or what its children leave over goes somewhere.
WORK, DISPATCH, FREE, REST_UNKNOWN, RANGE, INPUT, COMPILE, SYNC, RUNTIME = range(9)
_OWNS = (WORK, FREE, COMPILE, SYNC)

_ENGINE = "autograd::engine::evaluate_function"
_FIRST_GRADIENT = "aten::ones_like"
#: The engine takes about 2 us from node to node. A longer pause is something else: memory given back, another backward pass.
_LONGEST_BETWEEN_NODES_NS = 20_000


_INPUT_RANGE = ("enumerate(DataLoader)#", "enumerate(DataPipe)#")


def part_of_name(name: str) -> Part | None:
    """Return the part of a step that a recorded event names, for itself and everything it calls; None where it does not.

    >>> part_of_name("autograd::engine::evaluate_function: MmBackward0"), part_of_name("aten::mm")
    (<Part.BACKWARD: 'backward'>, None)
    """
    if _OPTIMIZER.match(name):
        return Part.OPTIMIZER
    if name.startswith(_INPUT_RANGE):
        return Part.INPUT
    return Part.BACKWARD if name == RECOMPUTE or _AUTOGRAD.match(name) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What one kind of event (name and recorded inputs) is."""

    role: int
    name: str
    cost: AtenCost | None
    part: Part | None
    shapes: str = ""


@dataclass(slots=True)
class Emitted:
    """Operations and the rest of the time of host threads; parallel lists.

    Args:
        event: Row of the trace of each operation, in order of the threads and times.
        kind: Number of its kind.
        part: Part of the step; None where the order of the operations has yet to tell.
        zeroing: Whether it belongs to `zero_grad`.
        recompute: Whether it is executed again to save memory.
        thread: Its thread.
        start_ns, end_ns: Its interval; a thread's intervals do not overlap.
        events: Recorded events inside it, itself included.
        frames: Starts of recorded events that belong to no operation.
        dispatch: Intervals of dispatch, with their thread.
        waits: Intervals of waiting, their cause and thread.
    """

    event: list[int] = field(default_factory=list)
    kind: list[int] = field(default_factory=list)
    part: list[Part | None] = field(default_factory=list)
    zeroing: list[bool] = field(default_factory=list)
    recompute: list[bool] = field(default_factory=list)
    thread: list[int] = field(default_factory=list)
    start_ns: list[int] = field(default_factory=list)
    end_ns: list[int] = field(default_factory=list)
    events: list[int] = field(default_factory=list)
    frames: list[int] = field(default_factory=list)
    dispatch: list[tuple[int, int, int]] = field(default_factory=list)
    waits: list[tuple[int, int, WaitCause, int]] = field(default_factory=list)


class Kinds:
    """Numbers the kinds of events of all windows, and asks the cost table once for each.

    Args:
        group: The processes that collectives go between.
        exchanges: Whether the threads that carry collectives out are recorded; who issues one then only hands it over.
    """

    def __init__(self, group: ProcessGroup = NOT_RECORDED, *, exchanges: bool = False) -> None:
        self.table: list[Kind] = []
        self.group = group
        self.exchanges = exchanges
        self._codes: dict[tuple[str, object], int] = {}

    def codes(self, trace: KinetoTrace, rows: np.ndarray[tuple[int], np.dtype[np.int64]]) -> list[int]:
        """Return the kind of each row."""
        pairs = trace.name[rows].astype(np.int64) * (len(trace.signatures) + 1) + trace.signature[rows] + 1
        pairs = pairs * len(trace.categories) + trace.category[rows]
        unique, inverse = np.unique(pairs, return_inverse=True)
        first = np.full(unique.size, -1, dtype=np.int64)
        first[inverse[::-1]] = rows[::-1]
        numbers = [self._code(trace, int(row)) for row in first]
        return [numbers[i] for i in inverse.tolist()]

    def _code(self, trace: KinetoTrace, row: int) -> int:
        name = trace.names[trace.name[row]]
        category = trace.categories[trace.category[row]]
        at = int(trace.signature[row])
        signature = trace.signatures[at] if at != NONE else None
        key = (name + "\0" + category, repr(signature))
        number = self._codes.get(key)
        if number is None:
            number = self._codes[key] = len(self.table)
            call = AtenCall.from_record(name, signature.args() if signature is not None else {})
            self.table.append(self._collective(call) or _kind(name, category, call))
        return number

    def _collective(self, call: AtenCall) -> Kind | None:
        """Return the kind of an exchange between processes on its own thread, or of its issue; None for all else."""
        if not self.exchanges:
            return None
        if is_backend_range(call.name):
            known = exchange(call, self.group)
            # Its own thread tells nothing of the part of the step; what comes before it in time is no forward pass.
            return Kind(role=WORK, name=call.name, cost=known, part=Part.OTHER, shapes=shapes_text(call))
        return Kind(role=DISPATCH, name=call.name, cost=None, part=None) if only_issues(call.name) else None

    def completed(self, code: int, call: AtenCall, inner: Sequence[AtenCall]) -> int:
        """Return the kind of one event whose record is only complete with its lists and the calls beneath it."""
        before = self.table[code]
        key = (before.name, (repr(call), repr(inner)))
        number = self._codes.get(key)
        if number is None:
            known = cost(call, inner)
            number = self._codes[key] = len(self.table)
            self.table.append(replace(before, role=_ROLES[known.kind], cost=known, shapes=shapes_text(call)))
        return number


_ROLES = {"work": WORK, "wrapper": DISPATCH, "free": FREE, "unknown": REST_UNKNOWN}
_MOST_INNER = 256  # calls beneath one operator that its cost may depend on


def _call(trace: KinetoTrace, row: int, lists: Mapping[str, Any]) -> AtenCall:
    at = int(trace.signature[row])
    args = trace.signatures[at].args() if at != NONE else {}
    return AtenCall.from_record(trace.names[trace.name[row]], args, lists.get(str(int(trace.external_id[row]))))


def _complete(
    trace: KinetoTrace,
    rows: Sequence[int],
    codes: list[int],
    ends: Sequence[int],
    kinds: Kinds,
    lists: Mapping[str, Any],
) -> None:
    """Replace the kinds of events that the shapes in the file alone do not describe, in place."""
    names = {code: kinds.table[code].name for code in set(codes)}
    wanted = {c for c, n in names.items() if n.startswith("aten::") and (needs_inner(n) or takes_lists(n))}
    if not wanted:
        return
    starts = trace.start_ns
    for i, code in enumerate(codes):
        if code not in wanted:
            continue
        inner: list[AtenCall] = []
        if needs_inner(names[code]):
            j = i + 1
            while j < len(rows) and starts[rows[j]] < ends[i] and len(inner) < _MOST_INNER:
                inner.append(_call(trace, rows[j], lists))
                j += 1
        codes[i] = kinds.completed(code, _call(trace, rows[i], lists), inner)


def _kind(name: str, category: str, call: AtenCall) -> Kind:
    if category in ("cuda_runtime", "cuda_driver", "runtime"):
        return Kind(role=SYNC if _SYNC.match(name) else RUNTIME, name=name, cost=None, part=None)
    if _COMPILE.search(name):
        return Kind(role=COMPILE, name=name, cost=None, part=None)
    if _OPTIMIZER.match(name):
        return Kind(role=DISPATCH, name=name, cost=None, part=Part.OPTIMIZER)
    if name.startswith(_INPUT_RANGE):
        return Kind(role=INPUT, name=name, cost=None, part=Part.INPUT)
    if _COMPILED_REGION.match(name):
        return Kind(role=REST_UNKNOWN, name=name, cost=None, part=None)
    if name == RECOMPUTE:
        return Kind(role=DISPATCH, name=name, cost=None, part=Part.BACKWARD)
    if name == STOPPED:
        return Kind(role=DISPATCH, name=name, cost=None, part=None)
    if _AUTOGRAD.match(name):
        return Kind(role=DISPATCH, name=name, cost=None, part=Part.BACKWARD)
    if category == "user_annotation":
        return Kind(role=RANGE, name=name, cost=None, part=None)
    known = cost(call)
    return Kind(role=_ROLES[known.kind], name=name, cost=known, part=None, shapes=shapes_text(call))


_SHORT = {
    "float": "f32",
    "double": "f64",
    "c10::BFloat16": "bf16",
    "c10::Half": "f16",
    "long int": "i64",
    "long": "i64",
    "int": "i32",
    "short int": "i16",
    "signed char": "i8",
    "unsigned char": "u8",
    "bool": "bool",
    "c10::complex<float>": "c64",
    "c10::complex<double>": "c128",
}


def shapes_text(call: AtenCall) -> str:
    """Return the tensor operands for reading.

    >>> shapes_text(AtenCall("aten::mm", ((2, 3), (3, 4), ()), ("float", "float", "Scalar")))
    'f32[2,3] f32[3,4]'
    """
    out = []
    for dims, kind in zip(call.shapes, call.dtypes, strict=False):
        if dims and isinstance(dims[0], tuple):
            out.append(f"{len(dims)} tensors")
        elif kind in _SHORT:
            out.append(f"{_SHORT[kind]}[{','.join(str(d) for d in dims)}]")
    return " ".join(out)


def emit(
    trace: KinetoTrace,
    rows: np.ndarray[tuple[int], np.dtype[np.int64]],
    kinds: Kinds,
    out: Emitted,
    lists: Mapping[str, Any] | None = None,
) -> None:
    """Walk the events of one thread and append what they come to.

    Args:
        trace: The file.
        rows: Rows of one thread, by start, longest first.
        kinds: Kinds of events.
        out: What is appended to.
        lists: Lists of tensors by `External id`, which the file leaves incomplete, see `aten.tensor_lists`.
    """
    if not rows.size:
        return
    codes = kinds.codes(trace, rows)
    starts, ends = trace.start_ns[rows].tolist(), trace.end_ns[rows].tolist()
    parents = _parents(starts, ends)
    _complete(trace, rows.tolist(), codes, ends, kinds, lists or {})
    roles = [kinds.table[c].role for c in codes]
    _settle_unknown(roles, parents)
    for i in given_up([kinds.table[c].name for c in codes], parents):
        roles[i] = DISPATCH
    forward_threads = trace.forward_thread[rows].tolist()
    _Walk(rows.tolist(), codes, starts, ends, parents, roles, forward_threads, kinds, out).run(
        int(trace.thread[rows[0]])
    )


def _parents(starts: Sequence[int], ends: list[int]) -> list[int]:
    """Return the row that encloses each row, -1 for none; a child that outlasts its parent is clipped to it."""
    parents: list[int] = []
    stack: list[int] = []
    for i, start in enumerate(starts):
        while stack and ends[stack[-1]] <= start:
            stack.pop()
        parents.append(stack[-1] if stack else -1)
        if stack and ends[i] > ends[stack[-1]]:
            ends[i] = ends[stack[-1]]
        stack.append(i)
    return parents


def _settle_unknown(roles: list[int], parents: Sequence[int]) -> None:
    """An operator that the table does not know owns its time, unless something known to work is inside it."""
    holds = [False] * len(roles)
    for i in range(len(roles) - 1, -1, -1):
        if roles[i] == REST_UNKNOWN and not holds[i]:
            roles[i] = WORK
        if parents[i] >= 0 and (holds[i] or roles[i] == WORK):
            holds[parents[i]] = True


class _Walk:
    """One pass over the events of a thread, parents before children."""

    def __init__(
        self,
        rows: list[int],
        codes: list[int],
        starts: list[int],
        ends: list[int],
        parents: list[int],
        roles: list[int],
        forward_threads: list[int],
        kinds: Kinds,
        out: Emitted,
    ) -> None:
        self.rows, self.codes, self.starts, self.ends = rows, codes, starts, ends
        self.parents, self.roles, self.forward_threads = parents, roles, forward_threads
        self.kinds, self.out = kinds, out
        self.thread = 0
        self.parts: list[Part | None] = [None] * len(rows)
        self.owned = [False] * len(rows)
        self.zero = [False] * len(rows)
        self.again = [NOT] * len(rows)
        self.cursor = list(starts)
        self.holder = [-1] * len(rows)  # the operation that holds an event
        self.before = ("", 0)  # name and end of the event before, at the top

    def run(self, thread: int) -> None:
        self.thread = thread
        stack: list[int] = []
        for i in range(len(self.rows)):
            while stack and self.ends[stack[-1]] <= self.starts[i]:
                self._close(stack.pop(), stack)
            parent = self.parents[i]
            inherited = self.parts[parent] if parent >= 0 else None
            self.parts[i] = inherited or self.kinds.table[self.codes[i]].part or self._by_forward_thread(i)
            name = self.kinds.table[self.codes[i]].name
            self.zero[i] = (parent >= 0 and self.zero[parent]) or name.startswith("Optimizer.zero_grad#")
            self.again[i] = recompute_state(name, self.again[parent] if parent >= 0 else NOT)
            if parent >= 0:
                if self.owned[parent]:
                    self._held(i, parent)
                    continue
                self._rest(parent, self.starts[i])
            else:
                self._between_nodes(i, name)
            if self.roles[i] in _OWNS:
                self.owned[i] = True
                self._own(i)
            else:
                self.out.frames.append(self.starts[i])
            stack.append(i)
        while stack:
            self._close(stack.pop(), stack)

    def _by_forward_thread(self, i: int) -> Part | None:
        return Part.BACKWARD if self.forward_threads[i] > 0 else None

    def _own(self, i: int) -> None:
        start, end = self.starts[i], self.ends[i]
        role = self.roles[i]
        if role == COMPILE:
            self.out.waits.append((start, end, WaitCause.COMPILE, self.thread))
        elif role == SYNC:
            self.out.waits.append((start, end, WaitCause.SYNC, self.thread))
        else:
            self.holder[i] = len(self.out.event)
            self._operation(i, start, end)

    def _held(self, i: int, parent: int) -> None:
        """An event inside an operation is a part of it."""
        self.owned[i] = True
        self.holder[i] = self.holder[parent]
        if self.holder[i] >= 0:
            self.out.events[self.holder[i]] += 1

    def _between_nodes(self, i: int, name: str) -> None:
        """Between two nodes of one backward pass, and before the first, the autograd engine is at work, and no Python.

        `backward()` makes the gradient of the loss, then goes through the whole graph before the first node runs.
        """
        last, end = self.before
        start = self.starts[i]
        if name.startswith(_ENGINE) and start > end:
            next_node = last.startswith(_ENGINE) and start - end <= _LONGEST_BETWEEN_NODES_NS
            if next_node or last == _FIRST_GRADIENT:
                self.out.dispatch.append((end, start, self.thread))
        self.before = (name, max(end, self.ends[i]))

    def _operation(self, i: int, start: int, end: int) -> None:
        out = self.out
        out.event.append(self.rows[i])
        out.kind.append(self.codes[i])
        out.part.append(self.parts[i])
        out.zeroing.append(self.zero[i])
        out.recompute.append(self.again[i] != NOT)
        out.thread.append(self.thread)
        out.start_ns.append(start)
        out.end_ns.append(end)
        out.events.append(1)

    def _rest(self, i: int, until: int) -> None:
        """Give the time of an event that its children have left over, up to `until`, to its owner."""
        start = self.cursor[i]
        if until <= start:
            return
        role = self.roles[i]
        if role == INPUT:
            self.out.waits.append((start, until, WaitCause.INPUT, self.thread))
        elif role in (DISPATCH, REST_UNKNOWN, RUNTIME):
            if _COMPILED_REGION.match(self.kinds.table[self.codes[i]].name):
                self._operation(i, start, until)
            else:
                self.out.dispatch.append((start, until, self.thread))
        self.cursor[i] = until

    def _close(self, i: int, stack: Sequence[int]) -> None:
        if not self.owned[i]:
            self._rest(i, self.ends[i])
        parent = stack[-1] if stack else -1
        if parent >= 0:
            self.cursor[parent] = max(self.cursor[parent], self.ends[i])


def unknown_cost(name: str) -> AtenCost:
    """Return the cost of an event that no table knows."""
    reason = f"{name} is not an operator with recorded inputs"
    return AtenCost(kind="unknown", category="other", demand=Unknown(reason, ("the shapes of its operands",)))
