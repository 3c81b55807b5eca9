"""From an XPlane profile to executed HLO operations, program launches and the runtime's own events, on one clock."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mansard.trace.readers.xplane import XLine, XPlane, XSpace

Int64Array = npt.NDArray[np.int64]

#: An operation whose completion is noted this long after the continuation it triggered ended before that.
_ADJACENT_NS = 5_000
_EXECUTE = "ThunkExecutor::Execute"
_REGIONS = ("ThreadpoolListener::StartRegion", "ThreadpoolListener::StopRegion")
_HELPERS = ("ExecuteHelper", "PjRtCpuExecutable::Execute", "PjRtStreamExecutorLoadedExecutable::Execute", "TfrtCpuExecutable::Execute",
            "PjRtCpuLoadedExecutable::Execute")  # fmt: skip
_LAUNCH = ("PjitFunction(", "PjRtCApiLoadedExecutable::Execute", "ExecuteReplicated.__call__", "ParseArguments", "shard_args",
           "BatchedDevicePut", "DevicePut", "batched_copy_array", "BatchedCopyToDevice", "apply_primitive", *_HELPERS)  # fmt: skip
_COMPILE = ("backend_compile", "PjRtCpuClient::Compile", "lower_sharding_computation", "trace_to_jaxpr", "PjRtClient::Compile",
            "lower_jaxpr_to_module", "XlaCompile", "pjit_lower")  # fmt: skip
_WAIT = ("np.asarray(jax.Array)", "block_until_ready", "PjRtBuffer::BlockHostUntilReady", "jax.Array.block_until_ready",
         "PyArray::BlockUntilReady", "BlockUntilReady", "ThunkExecutor::Execute (wait for completion)")  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Executions:
    """Executed HLO operations, one row each, in order of start.

    Args:
        start_ns, end_ns: Interval from its start to its completion on whichever thread [ns].
        kind: Index into `kinds`.
        kinds: Distinct (module name, program id, operation name).
        run: Number of the program run, dense from 0 in order of first start; a run is one launch on one device.
        device: Device ordinal.
        stream: Line of a device plane, -1 on a host.
    """

    start_ns: Int64Array
    end_ns: Int64Array
    kind: Int64Array
    kinds: tuple[tuple[str, int, str], ...]
    run: Int64Array
    device: Int64Array
    stream: Int64Array

    @property
    def count(self) -> int:
        """Number of executions."""
        return int(self.start_ns.size)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostEvents:
    """What the runtime did on the threads of the program.

    Args:
        launch: Intervals of calls into the runtime [ns], shape (n, 2).
        compile: Intervals of tracing, lowering and compilation [ns].
        wait: Intervals in which the program waited for a result [ns].
        execute: Intervals in which the executor of compiled programs was active, its operations included [ns].
        calls: Start of each launch of a program [ns] and its function's name.
        annotations: Marked steps: (start, end, step number) [ns].
    """

    launch: Int64Array
    compile: Int64Array
    wait: Int64Array
    execute: Int64Array
    calls: tuple[tuple[int, str], ...]
    annotations: Int64Array


def executions_of(space: XSpace, *, origin_ns: int) -> Executions:
    """Return every executed HLO operation of a profile.

    On a CPU an operation shows up on the thread that started it; one that is split over a pool notes its completion apart, on
    the thread that finished last. It is counted once, from its start to its completion.

    Args:
        space: A profile.
        origin_ns: Added to all times [ns].
    """
    columns: list[dict[str, npt.NDArray[np.int64]]] = []
    kinds: dict[tuple[str, int, str], int] = {}
    for plane in space.planes:
        if re.match(r"/device:(GPU|TPU):\d+", plane.name):
            columns += _device_operations(plane, kinds)
    host = space.plane("/host:CPU")
    # Beside a device the host lines only say when operations were launched.
    if host is not None and not columns:
        columns += _host_operations(host, kinds)
    names = ("start", "end", "kind", "run", "device", "stream")
    joined = {n: np.concatenate([c[n] for c in columns]) if columns else np.zeros(0, np.int64) for n in names}
    order = np.lexsort((-joined["end"], joined["start"]))
    joined = {n: v[order] for n, v in joined.items()}
    table = tuple(kinds)
    program = np.array([_program_code(k, table) for k in table], dtype=np.int64)
    return Executions(
        start_ns=joined["start"] + origin_ns,
        end_ns=joined["end"] + origin_ns,
        kind=joined["kind"],
        kinds=table,
        run=_runs(joined, program),
        device=joined["device"],
        stream=joined["stream"],
    )


def _program_code(kind: tuple[str, int, str], table: tuple[tuple[str, int, str], ...]) -> int:
    return next(i for i, other in enumerate(table) if other[:2] == kind[:2])


def _runs(columns: dict[str, Int64Array], program: Int64Array) -> Int64Array:
    """Number the runs densely in order of their first operation."""
    if not columns["kind"].size:
        return np.zeros(0, np.int64)
    keys = np.stack([program[columns["kind"]], columns["run"], columns["device"]])
    _, first, inverse = np.unique(keys, axis=1, return_index=True, return_inverse=True)
    rank = np.empty(first.size, dtype=np.int64)
    rank[np.argsort(first, kind="stable")] = np.arange(first.size)
    return rank[inverse.reshape(-1)]


def _coded(plane: XPlane, line: XLine, kinds: dict[tuple[str, int, str], int]) -> tuple[Int64Array, Int64Array]:
    """Indices of the events that are operations, and the code of each."""
    op, ops = plane.texts(line, "hlo_op")
    at = np.flatnonzero(op >= 0)
    if not at.size:
        return at, at
    module, modules = plane.texts(line, "hlo_module")
    program = plane.integers(line, "program_id")
    keys = np.stack([op[at], module[at], program[at]])
    distinct, inverse = np.unique(keys, axis=1, return_inverse=True)
    codes = np.empty(distinct.shape[1], dtype=np.int64)
    for n, (o, m, p) in enumerate(distinct.T.tolist()):
        codes[n] = kinds.setdefault((modules[m] if m >= 0 else "", p, ops[o]), len(kinds))
    return at, codes[inverse.reshape(-1)]


def _host_operations(plane: XPlane, kinds: dict[tuple[str, int, str], int]) -> list[dict[str, Int64Array]]:
    found = []
    ends: list[tuple[Int64Array, Int64Array, int]] = []
    end_ids = np.array([i for i, n in plane.event_names.items() if n.startswith("end: ")], dtype=np.int64)
    for number, line in enumerate(plane.lines):
        at, code = _coded(plane, line, kinds)
        if not at.size and not np.isin(line.metadata, end_ids).any():
            continue
        is_end = np.isin(line.metadata, end_ids)
        ends.append((plane.integers(line, "_c")[is_end], line.start_ns[is_end], number))
        if at.size:
            found.append(
                {
                    "start": line.start_ns[at], "end": line.end_ns[at], "kind": code,
                    "run": plane.integers(line, "run_id")[at], "device": plane.integers(line, "device_ordinal", missing=0)[at],
                    "stream": np.full(at.size, -1, np.int64), "id": plane.integers(line, "_p")[at],
                    "line": np.full(at.size, number, np.int64),
                }
            )  # fmt: skip
    if not found:
        return []
    columns = {n: np.concatenate([f[n] for f in found]) for n in found[0]}
    columns["end"] = _completions(plane, columns, ends)
    return [columns]


def _completions(
    plane: XPlane, ops: dict[str, Int64Array], ends: list[tuple[Int64Array, Int64Array, int]]
) -> Int64Array:
    """Return when each operation was complete.

    The note `end: NAME` carries the identity of the start. It is written after the continuation that the completion triggered has
    run, so where a continuation ends right before the note on that thread, the operation was complete when that began.
    """
    note_id = np.concatenate([e[0] for e in ends])
    note_time = np.concatenate([e[1] for e in ends])
    note_line = np.concatenate([np.full(e[0].size, e[2], np.int64) for e in ends])
    own_end = ops["end"].copy()
    result = own_end.copy()
    if not note_id.size:
        return own_end
    order = np.argsort(note_id, kind="stable")
    note_id, note_time, note_line = note_id[order], note_time[order], note_line[order]
    at = np.minimum(np.searchsorted(note_id, ops["id"]), note_id.size - 1)
    late = (note_id[at] == ops["id"]) & (ops["id"] >= 0) & (note_time[at] > own_end)
    for number, line in enumerate(plane.lines):
        chosen = np.flatnonzero(late & (note_line[at] == number))
        if not chosen.size:
            continue
        when = note_time[at[chosen]]
        result[chosen] = np.maximum(own_end[chosen], _before_continuation(plane, line, when, ops["start"][chosen]))
    return np.minimum(result, np.maximum(own_end, _next_start(ops, own_end)))


def _next_start(ops: dict[str, Int64Array], after: Int64Array) -> Int64Array:
    """Return when the next operation of the same run began at or after `after`; a very late time where there is none.

    A note may be written long after its operation: when a whole chain of continuations has run, on whatever thread. What
    the run started next either waited for the operation or has the processors beside it.
    """
    _, run = np.unique(np.stack([ops["run"], ops["device"]]), axis=1, return_inverse=True)
    run = run.reshape(-1)
    origin = ops["start"].min()
    span = int(max(ops["end"].max(), after.max()) - origin) + 1
    starts = np.sort(run * span + (ops["start"] - origin))
    at = np.searchsorted(starts, run * span + np.minimum(after - origin, span - 1))
    found = starts[np.minimum(at, starts.size - 1)]
    same = (at < starts.size) & (found // span == run)
    return np.where(same, found % span + origin, np.iinfo(np.int64).max)


def _before_continuation(plane: XPlane, line: XLine, when: Int64Array, start: Int64Array) -> Int64Array:
    executes = np.isin(line.metadata, [i for i, n in plane.event_names.items() if n == _EXECUTE])
    if not executes.any():
        return when
    begin, stop = line.start_ns[executes], line.end_ns[executes]
    order = np.lexsort((-begin, stop))  # of equal ends the outermost last
    begin, stop = begin[order], stop[order]
    before = np.searchsorted(stop, when, side="right") - 1
    known = before >= 0
    before = np.maximum(before, 0)
    borders = np.sort(line.start_ns[np.isin(line.metadata, [i for i, n in plane.event_names.items() if n in _REGIONS])])
    crossed = np.searchsorted(borders, when) - np.searchsorted(borders, stop[before], side="right") > 0
    usable = known & ~crossed & (when - stop[before] < _ADJACENT_NS) & (begin[before] >= start)
    return np.where(usable, begin[before], when)


def _device_operations(plane: XPlane, kinds: dict[tuple[str, int, str], int]) -> list[dict[str, Int64Array]]:
    found = []
    device = int(plane.name.rsplit(":", 1)[1])
    derived = {
        "XLA Modules",
        "Steps",
        "Framework Name Scope",
        "Framework Ops",
        "Source code",
        "XLA TraceMe",
        "Async XLA Ops",
    }
    lines = [line for line in plane.lines if line.name not in derived]
    if any(line.name.startswith("Stream") for line in lines):
        lines = [line for line in lines if line.name.startswith("Stream")]
    for number, line in enumerate(lines):
        at, code = _coded(plane, line, kinds)
        if line.count > at.size and (line.name == "XLA Ops" or line.name.startswith("Stream")):
            at, code = _with_unlinked(plane, line, at, code, kinds)
        if at.size:
            order = np.argsort(line.start_ns[at], kind="stable")
            at, code = at[order], code[order]
            first, last = _joined(code, line.metadata[at])
            found.append(
                {
                    "start": line.start_ns[at[first]],
                    "end": np.maximum(line.end_ns[at[last]], line.start_ns[at[first]]),
                    "kind": code[first],
                    "run": plane.integers(line, "run_id")[at[first]],
                    "device": np.full(first.size, device, np.int64),
                    "stream": np.full(first.size, number, np.int64),
                }
            )
    return found


def _with_unlinked(
    plane: XPlane, line: XLine, at: Int64Array, code: Int64Array, kinds: dict[tuple[str, int, str], int]
) -> tuple[Int64Array, Int64Array]:
    """Add what ran on a device without a word of the operation it belongs to, under its own name."""
    rest = np.setdiff1d(np.arange(line.count), at)
    names, inverse = np.unique(line.metadata[rest], return_inverse=True)
    codes = [kinds.setdefault(("", -1, _op_of(plane.event_names.get(int(m), ""))), len(kinds)) for m in names]
    return np.concatenate([at, rest]), np.concatenate([code, np.array(codes, dtype=np.int64)[inverse]])


def _joined(code: Int64Array, kernel: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return first and last event of each execution of an operation on a stream.

    A library call may launch several kernels for one operation: neighbours of one operation are one execution until a kernel comes
    again.
    """
    first: list[int] = []
    last: list[int] = []
    seen: set[int] = set()
    before = -1
    for i, (c, k) in enumerate(zip(code.tolist(), kernel.tolist(), strict=True)):
        if c == before and k not in seen:
            last[-1] = i
        else:
            first.append(i)
            last.append(i)
            seen = set()
        seen.add(k)
        before = c
    return np.array(first, dtype=np.int64), np.array(last, dtype=np.int64)


def _op_of(text: str) -> str:
    """Instruction name in an event name such as `%fusion.3 = f32[...] fusion(...)`."""
    return text.split(" = ", 1)[0].strip().lstrip("%")


def host_events(space: XSpace, *, origin_ns: int) -> HostEvents:
    """Return what the runtime did on the program's own threads."""
    plane = space.plane("/host:CPU")
    spans: dict[str, list[Int64Array]] = {"launch": [], "compile": [], "wait": [], "execute": []}
    calls: list[tuple[int, str]] = []
    steps: list[tuple[int, int, int]] = []
    for line in plane.lines if plane is not None else ():
        assert plane is not None
        pool = line.name.startswith("tf_")
        names = {int(m): plane.event_names.get(int(m), "") for m in np.unique(line.metadata)}

        def of(words: tuple[str, ...], line: XLine = line, names: dict[int, str] = names) -> Int64Array:
            chosen = np.isin(line.metadata, [m for m, n in names.items() if n.startswith(words)])
            return np.stack([line.start_ns[chosen], line.end_ns[chosen]], axis=1) + origin_ns

        spans["execute"].append(of((_EXECUTE,)))
        spans["compile"].append(of(_COMPILE))
        if pool:
            continue
        spans["launch"].append(of(_LAUNCH))
        spans["wait"].append(of(_WAIT))
        calls += _calls(line, names, origin_ns)
        number = plane.integers(line, "step_num")
        for i in np.flatnonzero(number >= 0).tolist():
            steps.append((int(line.start_ns[i]) + origin_ns, int(line.end_ns[i]) + origin_ns, int(number[i])))
    empty = np.zeros((0, 2), dtype=np.int64)
    joined = {n: np.concatenate(v) if v else empty for n, v in spans.items()}
    annotations = np.array(sorted(steps), dtype=np.int64).reshape(-1, 3)
    return HostEvents(**joined, calls=tuple(sorted(calls)), annotations=annotations)


def _calls(line: XLine, names: dict[int, str], origin_ns: int) -> list[tuple[int, str]]:
    """Launches of programs on one thread, each with the function that was called."""
    helpers = np.isin(line.metadata, [m for m, n in names.items() if any(h in n for h in _HELPERS)])
    if not helpers.any():
        return []
    starts = np.sort(line.start_ns[helpers])
    called = np.flatnonzero(np.isin(line.metadata, [m for m, n in names.items() if n.startswith("PjitFunction(")]))
    order = np.argsort(line.start_ns[called], kind="stable")
    called = called[order]
    begin, stop = line.start_ns[called], line.end_ns[called]
    inner = np.searchsorted(begin, starts, side="right") - 1
    out = []
    for start, i in zip(starts.tolist(), inner.tolist(), strict=True):
        name = names[int(line.metadata[called[i]])][len("PjitFunction(") : -1] if i >= 0 and stop[i] >= start else ""
        out.append((start + origin_ns, name))
    return out
