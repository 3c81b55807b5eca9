"""Which part of a step each piece of device work belongs to: by what enclosed the call that launched it."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from mansard.core.intervals import merge
from mansard.trace.launches import Launches
from mansard.trace.operators_of import Operators
from mansard.trace.run import Part
from mansard.trace.timeline import NONE, Events, Kind, Timeline
from mansard.trace.torch_parts import PARTS, settled_codes
from mansard.trace.torch_tree import part_of_name

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

#: Ranges that a program names after a part: they cover the work of all threads of their process.
_NAMED = {
    Part.FORWARD: re.compile(r"^(fwd|forward)([_ -]?(pass|step))?$", re.IGNORECASE),
    Part.BACKWARD: re.compile(r"^(bwd|backward)([_ -]?(pass|step))?$", re.IGNORECASE),
    Part.OPTIMIZER: re.compile(r"^(opt(im)?(izer)?)([_ -]?(step|update))?$", re.IGNORECASE),
    Part.INPUT: re.compile(r"^(data[_ -]?load(ing|er)?|load[_ -]?batch|next[_ -]?batch|input)$", re.IGNORECASE),
}


def parts_of_work(timeline: Timeline, operators: Operators) -> npt.NDArray[np.int8]:
    """Return the part of each piece of the joined device work, an index into `PARTS`.

    Autograd's frames, optimizer steps and loaders own what they launch; of the rest, what comes before a backward pass is
    forward. Without any of these all of it is `other`: nothing tells.

    Args:
        timeline: The profile.
        operators: Its joined operators.
    """
    launches = operators.launches
    moment, thread, process = _launch_moments(launches, operators)
    found = np.full(moment.size, NONE, dtype=np.int8)
    zeroing = np.zeros(moment.size, dtype=np.bool_)
    for kind in (Kind.ANNOTATION, Kind.CPU_OP):
        table = timeline.of(kind)
        if not len(table):
            continue
        names = np.array([_code(part_of_name(n)) for n in timeline.names] + [NONE], dtype=np.int8)
        part = names[table.name].copy()
        forward = table.extras.get("forward_thread")
        if forward is not None and kind is Kind.CPU_OP:
            part[(part == NONE) & (forward > 0)] = _code(Part.BACKWARD)
        for number in np.unique(part[part >= 0]).tolist():
            inside = _covered(table, part == number, table.thread, moment, thread)
            found[inside & (found == NONE)] = number
        zero = [i for i, n in enumerate(timeline.names) if n.startswith("Optimizer.zero_grad#")]
        zeroing |= _covered(table, np.isin(table.name, zero), table.thread, moment, thread) if zero else False
    _by_named_ranges(timeline, found, moment, process)
    if not (found >= 0).any():
        return np.full(moment.size, _code(Part.OTHER), dtype=np.int8)
    return _settled(found, zeroing, moment)


def _code(part: Part | None) -> int:
    return NONE if part is None else PARTS.index(part)


def _launch_moments(launches: Launches, operators: Operators) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Return when, on which thread and in which process each piece of work was launched; -1 where that is not known."""
    size = len(launches.work)
    moment, thread, process = (np.full(size, NONE, dtype=np.int64) for _ in range(3))
    called = np.flatnonzero(launches.launched)
    calls = launches.call[called]
    if called.size:
        moment[called] = launches.calls.start_ns[calls]
        thread[called] = launches.calls.thread[calls]
        process[called] = launches.calls.process[calls]
    known = np.flatnonzero((operators.launcher >= 0) & (moment == NONE))
    if known.size:
        at = operators.launcher[known]
        moment[known] = operators.table.start_ns[at]
        thread[known] = operators.table.thread[at]
        process[known] = operators.table.process[at]
    return moment, thread, process


def _covered(
    table: Events, chosen: BoolArray, key: npt.NDArray[np.int32], moment: Int64Array, of: Int64Array
) -> BoolArray:
    """Return which moments lie inside a chosen event with the same key (thread or process)."""
    out = np.zeros(moment.size, dtype=np.bool_)
    for one in np.unique(key[chosen]).tolist():
        mine = np.flatnonzero((of == one) & (moment >= 0))
        if one == NONE or not mine.size:
            continue
        rows = chosen & (key == one)
        spans = merge(table.start_ns[rows], table.end_ns[rows])
        at = np.searchsorted(spans.start_ns, moment[mine], side="right") - 1
        out[mine] = (at >= 0) & (moment[mine] < spans.end_ns[np.maximum(at, 0)])
    return out


def _by_named_ranges(timeline: Timeline, found: npt.NDArray[np.int8], moment: Int64Array, process: Int64Array) -> None:
    """Fill in parts that the program itself named, where nothing surer tells."""
    table = timeline.of(Kind.ANNOTATION)
    for part, pattern in _NAMED.items():
        codes = [i for i, n in enumerate(timeline.names) if pattern.match(n.rpartition(":")[2] or n)]
        chosen = np.isin(table.name, codes)
        if codes and chosen.any():
            inside = _covered(table, chosen, table.process, moment, process)
            found[inside & (found == NONE)] = _code(part)


def _settled(found: npt.NDArray[np.int8], zeroing: BoolArray, moment: Int64Array) -> npt.NDArray[np.int8]:
    """Give the work without a part of its own the one that the order of the parts tells."""
    known = np.flatnonzero(moment >= 0)
    out = np.full(found.size, _code(Part.OTHER), dtype=np.int8)
    out[known] = settled_codes(found[known], moment[known], zeroing[known])
    return out
