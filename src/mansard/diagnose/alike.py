"""Whether the steps of a run do the same work, told by their work: a step that took longer for the same work is like the others.

Work is what was recorded of it: calls, FLOP and bytes of the kinds of operation, not how long the calls took. A call that
stalled says nothing of the work of its step.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
import numpy.typing as npt

from mansard.core import Unknown
from mansard.core.demand import Demand
from mansard.trace.run import Operator, RunTrace

FloatArray = npt.NDArray[np.float64]
Int64Array = npt.NDArray[np.int64]

#: From this difference of the median step's work from the mean one's on, steps do different work.
UNLIKE_RATIO = 0.03
#: From this share of steps on that end while an operation runs, work is not in time with the steps that asked for it.
OUT_OF_STEP_RATIO = 0.25
#: Work that runs behind the steps may lack that of so many of them at the start and at the end.
STEPS_BEHIND = 2


def alike(trace: RunTrace, start_ns: Int64Array, end_ns: Int64Array) -> bool:
    """Return whether the median window does the work of the mean one.

    Windows are unlike where what they are worth differs, and some amount of work with it. A window is worth what its calls take
    if each takes what the middle call of its kind does. The amounts are calls, FLOP, bytes, and that worth of the kinds that are
    seen in more than one window: what comes back, such as an exchange or a checkpoint every few steps, is no accident.

    Args:
        trace: The run.
        start_ns, end_ns: Its steady steps, disjoint and in order [ns].
    """
    window = np.searchsorted(start_ns, trace.start_ns, side="right") - 1
    mine = (window >= 0) & (trace.start_ns < end_ns[np.maximum(window, 0)])
    if not mine.any():
        return True
    window, length = window[mine], (trace.end_ns - trace.start_ns)[mine].astype(np.float64)
    kind_of, kinds = _kinds(trace.operators)
    kind = kind_of[trace.op[mine]]
    worth = _middle(kind, length, len(kinds))
    calls = np.zeros((len(kinds), start_ns.size))
    np.add.at(calls, (kind, window), 1.0)
    late = _in_flight(trace, end_ns[:-1])
    if late.mean() >= OUT_OF_STEP_RATIO if late.size else False:
        different = _not_in_every_step(calls)
    else:
        different = _evened(calls, late)
    amounts = _amounts(kinds, worth, calls)
    return not _differs(worth, different, worth) or not any(_differs(a, different, whole) for a, whole in amounts)


def _differs(each: FloatArray, calls: FloatArray, whole: FloatArray) -> bool:
    """Return whether the median window has another amount than the mean one.

    Args:
        each: Amount of one call of each kind.
        calls: Calls by kind and window.
        whole: Amount of one call that the mean window is taken from.
    """
    amount, mean = each @ calls, float((whole @ calls).mean())
    return mean > 0 and abs(float(np.median(amount)) - float(amount.mean())) > UNLIKE_RATIO * mean


def _kinds(operators: tuple[Operator, ...]) -> tuple[Int64Array, list[Operator]]:
    """Return the kind of each operator, and one operator of each kind: where in a tensor it works makes no other work of it."""
    place: dict[Hashable, int] = {}
    kinds: list[Operator] = []
    index = np.zeros(max(1, len(operators)), dtype=np.int64)
    for i, one in enumerate(operators):
        key = (one.name, one.part, one.shapes, one.recompute, _flop(one.demand), _bytes(one.demand))
        if key not in place:
            place[key] = len(kinds)
            kinds.append(one)
        index[i] = place[key]
    return index, kinds


def _flop(demand: Demand | Unknown) -> float:
    if isinstance(demand, Unknown):
        return 0.0
    return (
        float(demand.total_flop) + float(sum(demand.vector_flop.values())) + float(sum(demand.transcendental.values()))
    )


def _bytes(demand: Demand | Unknown) -> float:
    return 0.0 if isinstance(demand, Unknown) else float(demand.bytes)


def _middle(kind: Int64Array, length: FloatArray, count: int) -> FloatArray:
    """Return the length of the middle call of each kind, of two the shorter [ns]."""
    order = np.lexsort((length, kind))
    number = np.bincount(kind, minlength=count)
    first = np.cumsum(number) - number
    at = np.minimum(first + np.maximum(number - 1, 0) // 2, max(0, order.size - 1))
    return np.where(number > 0, length[order][at], 0.0)


def _in_flight(trace: RunTrace, edge_ns: Int64Array) -> npt.NDArray[np.bool_]:
    """Return for each edge whether an operation runs across it."""
    begun = np.searchsorted(np.sort(trace.start_ns), edge_ns, side="left")
    ended = np.searchsorted(np.sort(trace.end_ns), edge_ns, side="right")
    running: npt.NDArray[np.bool_] = begun > ended
    return running


def _evened(calls: FloatArray, late: npt.NDArray[np.bool_]) -> FloatArray:
    """Return calls with those of windows that share work in flight evened out among them."""
    group = np.concatenate([[0], np.cumsum(~late)]) if late.size else np.zeros(1, dtype=np.int64)
    size = np.bincount(group)
    total = np.zeros((calls.shape[0], size.size))
    np.add.at(total.T, group, calls.T)
    evened: FloatArray = (total / size)[:, group]
    return evened


def _not_in_every_step(calls: FloatArray) -> FloatArray:
    """Return calls of work that runs behind its steps: evenly where every step asked for them, else where they ran.

    Which step asked for a call is not recorded. What every step asks for runs a whole number of times for each of them, but for
    what was still to do at either end.
    """
    steps = calls.shape[1]
    total = calls.sum(axis=1)
    each = np.rint(total / steps)
    even = (each >= 1) & (np.abs(total - each * steps) <= STEPS_BEHIND * each)
    return np.where(even[:, None], (total / steps)[:, None], calls)


def _amounts(kinds: list[Operator], worth: FloatArray, calls: FloatArray) -> list[tuple[FloatArray, FloatArray]]:
    """Return the amounts of work of a call of each kind, each with what it is compared with."""
    flop = np.array([_flop(k.demand) for k in kinds])
    size = np.array([_bytes(k.demand) for k in kinds])
    one = np.ones(len(kinds))
    recurs = (calls > 0).sum(axis=1) > 1
    return [(one, one), (flop, flop), (size, size), (np.where(recurs, worth, 0.0), worth)]
