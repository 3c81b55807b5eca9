"""The repeated steps of a JAX run: from annotations, from loop marks, or from the sequence of program launches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mansard.trace.jax_events import Executions, HostEvents
from mansard.trace.jax_marks import Marks

Int64Array = npt.NDArray[np.int64]
_LONGEST = 20_000  # launches that the search for a period looks at
_OPENING_NS = 50_000_000  # the mark that opens a window lies this much before it at most
_SMALL_SHARE = 0.02  # a program with less of the time than this does not make a step


def smallest_period(sequence: Sequence[int], *, repeats: int = 3) -> tuple[int, int] | None:
    """Return (period, first index) of the longest periodic tail of a sequence; None where nothing repeats `repeats` times.

    Args:
        sequence: What happened, in order, such as which program was launched.
        repeats: Full periods that the tail must hold at least.

    Returns:
        The smallest period whose tail covers at least half of the sequence, else the one whose tail is longest; and where
        the tail starts.

    >>> smallest_period([9, 8, 1, 2, 1, 2, 1, 2])
    (2, 2)
    >>> smallest_period([1, 2, 3, 4]) is None
    True
    """
    s = np.asarray(sequence[-_LONGEST:])
    skipped = len(sequence) - s.size
    n = s.size
    best: tuple[int, int] | None = None
    # Only distances at which the last element came before can be periods.
    for period in (n - 1 - np.flatnonzero(s[:-1] == s[-1])[::-1]).tolist() if n else ():
        if period > n // repeats:
            break
        if (s[-min(period, 16) :] != s[-min(period, 16) - period : -period]).any():
            continue
        differs = np.flatnonzero(s[period:] != s[:-period])
        start = int(differs[-1]) + 1 if differs.size else 0
        if n - start < repeats * period:
            continue
        if best is None or start + skipped < best[1]:
            best = (period, start + skipped)
        if n - start >= n / 2:
            break
    return best


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """Runs of programs, in order of their first operation.

    Args:
        start_ns, end_ns: First start and last end of its operations [ns].
        program: Code of the program.
        names: Module name by code.
        launched_ns: When the program asked for it [ns]; its start where that is not recorded.
        device: Device ordinal.
    """

    start_ns: Int64Array
    end_ns: Int64Array
    program: Int64Array
    names: tuple[str, ...]
    launched_ns: Int64Array
    device: Int64Array


def runs_of(executions: Executions, events: HostEvents) -> Runs:
    """Return the runs of programs, each with the time of its launch.

    The n-th launch of a function is the n-th run of its program; on several devices, of each device.
    """
    count = int(executions.run.max()) + 1 if executions.count else 0
    start = np.full(count, np.iinfo(np.int64).max)
    end = np.zeros(count, dtype=np.int64)
    np.minimum.at(start, executions.run, executions.start_ns)
    np.maximum.at(end, executions.run, executions.end_ns)
    programs = {key: i for i, key in enumerate(dict.fromkeys(k[:2] for k in executions.kinds))}
    of_kind = np.array([programs[k[:2]] for k in executions.kinds], dtype=np.int64)
    program, device = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    program[executions.run] = of_kind[executions.kind] if executions.count else 0
    device[executions.run] = executions.device
    names = tuple(key[0] for key in programs)
    launched = start.copy()
    calls: dict[str, list[int]] = {}
    for when, function in events.calls:
        calls.setdefault(function, []).append(when)
    for name in set(names):
        times = calls.get(name.removeprefix("jit_"), [])
        chosen = np.isin(program, [i for i, n in enumerate(names) if n == name])
        for one in np.unique(device[chosen]):
            mine = np.flatnonzero(chosen & (device == one))
            # A launch before the window or a helper per device breaks the count; then the start has to do.
            if len(times) == mine.size:
                launched[mine] = np.minimum(start[mine], np.array(times))
            elif len(times) == mine.size * int(np.unique(device[chosen]).size):
                launched[mine] = np.minimum(start[mine], np.array(times[:: len(np.unique(device[chosen]))]))
    return Runs(start_ns=start, end_ns=end, program=program, names=names, launched_ns=launched, device=device)


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundSteps:
    """Steps of one window.

    Args:
        start_ns, end_ns: Steady steps [ns].
        skipped: Steps left out.
        source, note: As in `mansard.trace.run.Steps`.
    """

    start_ns: Int64Array
    end_ns: Int64Array
    skipped: int
    source: str
    note: str


def steps_between(boundaries: Int64Array, runs: Runs) -> tuple[Int64Array, Int64Array, bool]:
    """Translate boundaries on the host into steps of the work that was launched between them.

    A step begins with the first operation of the first program launched in it and ends where the next begins; a pass that
    launches nothing is joined to the one before. Where nothing follows, the last step ends at its boundary on the host.

    Args:
        boundaries: Times on the host, increasing [ns]; step i lies between i and i + 1.
        runs: Runs of programs.

    Returns:
        Starts, ends, and whether something follows the last step, so that its end is like that of the others.
    """
    order = np.argsort(runs.launched_ns, kind="stable")
    launched, start = runs.launched_ns[order], runs.start_ns[order]
    edges = np.searchsorted(launched, boundaries)
    starts, ends = [], []
    for i in range(boundaries.size - 1):
        if edges[i] < edges[i + 1]:
            starts.append(int(start[edges[i] : edges[i + 1]].min()))
    if not starts:
        return np.zeros(0, np.int64), np.zeros(0, np.int64), False
    last = int(boundaries[-1])
    followed = bool(edges[-1] < launched.size)
    if followed:
        last = int(start[edges[-1] :].min())
    ends = [*starts[1:], max(last, starts[-1] + 1)]
    return np.array(starts, dtype=np.int64), np.array(ends, dtype=np.int64), followed


def find_steps(
    runs: Runs, events: HostEvents, marks: Sequence[Marks], window: tuple[int, int], *, first: bool
) -> FoundSteps | None:
    """Find the steps of one profiled window.

    Annotated steps count most, then the recorder's marks; see `steps_by_period` for what is left.

    Args:
        runs: Program runs of the window.
        events: Host events of the window.
        marks: Times at which a step ended, by source, the most trusted first.
        window: Start and end of the window [ns].
        first: Whether this is the first window, whose first step is warm-up.
    """
    if runs.start_ns.size == 0:
        return None
    if events.annotations.shape[0] >= 2:
        boundaries = np.append(events.annotations[:, 0], events.annotations[-1, 1])
        return _kept([boundaries], runs, events, "marker", "one annotated step", first)
    for mark in marks:
        stretches = _stretches(mark, window, runs)
        passes = sum(s.size - 1 for s in stretches)
        if passes >= 2 and sum(_launching(s, runs) for s in stretches) >= 0.5 * passes:
            found = _kept(stretches, runs, events, mark.source, mark.note, first)
            if found is not None:
                return found
    return None


def _stretches(mark: Marks, window: tuple[int, int], runs: Runs) -> list[Int64Array]:
    """Runs of consecutive step boundaries inside a window.

    The mark that opened the window lies just before it. Where several steps went by between two marks, the launches
    between them are divided by the sequence of programs that each step launches.
    """
    low = int(np.searchsorted(mark.times_ns, window[0]))
    if low and window[0] - mark.times_ns[low - 1] < _OPENING_NS:
        low -= 1
    high = int(np.searchsorted(mark.times_ns, window[1], side="right"))
    times, steps = mark.times_ns[low:high], mark.steps[low : max(low, high - 1)]
    order = np.argsort(runs.launched_ns, kind="stable")
    launched, program = runs.launched_ns[order], runs.program[order]
    out: list[list[int]] = [[int(times[0])]] if times.size else []
    for time, count, before in zip(times[1:].tolist(), steps.tolist(), times[:-1].tolist(), strict=False):
        if count > 1:
            inside = slice(np.searchsorted(launched, before), np.searchsorted(launched, time))
            starts = rounds_of(program[inside], count)
            if starts.size == count:
                out[-1] += launched[inside][starts[1:]].tolist()
                out[-1].append(time)
                continue
        if count == 1 or out[-1][-1] != before:
            out[-1].append(time)
        else:
            out.append([time])
    return [np.array(s, dtype=np.int64) for s in out if len(s) > 1]


def rounds_of(sequence: npt.NDArray[np.int64], rounds: int) -> Int64Array:
    """Return where each round begins in a sequence of launches that holds a known number of rounds.

    Every round launches the same programs; some rounds launch a few more at their end (a loss that is printed).

    Args:
        sequence: Program of each launch, from the start of a round on.
        rounds: How many rounds there are.

    Returns:
        Index of the first launch of each round; empty where no such division exists.

    >>> rounds_of(np.array([1, 2, 1, 2, 7, 1, 2]), 3).tolist()
    [0, 2, 5]
    """
    size = sequence.size
    for length in range(size // rounds, max(0, int(0.8 * size / rounds) - 1), -1):
        pattern, spare = sequence[:length], size - rounds * length
        starts, position = [0], length
        while position + length <= size and len(starts) < rounds:
            extra = 0
            while extra <= spare and position + extra + length <= size:
                if np.array_equal(sequence[position + extra : position + extra + length], pattern):
                    break
                extra += 1
            else:
                break
            spare -= extra
            starts.append(position + extra)
            position += extra + length
        if len(starts) == rounds:
            return np.array(starts, dtype=np.int64)
    return np.zeros(0, dtype=np.int64)


def _launching(boundaries: Int64Array, runs: Runs) -> int:
    """Passes that launch something."""
    edges = np.searchsorted(np.sort(runs.launched_ns), boundaries)
    return int((np.diff(edges) > 0).sum())


def steps_by_period(runs: Runs, events: HostEvents, *, first: bool) -> FoundSteps | None:
    """Find steps in the sequence of launches: its smallest period, programs of little time left out.

    Args:
        runs, events, first: As in `find_steps`.
    """
    if runs.start_ns.size == 0:
        return None
    one = np.flatnonzero(runs.device == runs.device.min())
    order = one[np.argsort(runs.launched_ns[one], kind="stable")]
    time = np.bincount(runs.program[order], weights=(runs.end_ns - runs.start_ns)[order])
    order = order[(time >= _SMALL_SHARE * time.sum())[runs.program[order]]]
    found = smallest_period(runs.program[order].tolist())
    if found is None:
        return None
    period, start = found
    tail = order[start:]
    shift = _phase(runs, tail, period)
    boundaries = runs.launched_ns[tail[shift::period]]
    names = Counter(runs.names[p] for p in runs.program[tail[shift : shift + period]].tolist())
    note = "one repetition of " + ", ".join(f"{n} x{c}" if c > 1 else n for n, c in names.items())
    return _kept([boundaries], runs, events, "periodicity", note, first)


def _phase(runs: Runs, tail: Int64Array, period: int) -> int:
    """Where in the period a step begins: after the longest pause between launches."""
    if period == 1:
        return 0
    pauses = np.diff(runs.launched_ns[tail], prepend=runs.launched_ns[tail[0]])
    medians = [float(np.median(pauses[p if p else period :: period])) for p in range(period)]
    return int(np.argmax(medians))


def _kept(
    stretches: Sequence[Int64Array], runs: Runs, events: HostEvents, source: str, note: str, first: bool
) -> FoundSteps | None:
    """Steps of all stretches without those that compiled, and without the first one of the program."""
    found = [steps_between(np.asarray(s, dtype=np.int64), runs) for s in stretches]
    none = np.zeros(0, dtype=np.int64)
    starts, ends = np.concatenate([f[0] for f in found] or [none]), np.concatenate([f[1] for f in found] or [none])
    steady = np.ones(starts.size, dtype=bool)
    if found and not found[-1][2] and starts.size > 2:
        steady[-1] = False  # what the host does between steps is missing from it
    for begin, stop in events.compile.tolist():
        steady &= (starts >= stop) | (ends <= begin)
    if first and starts.size > 3:
        steady[0] = False
    if not steady.any():
        return None
    return FoundSteps(
        start_ns=starts[steady], end_ns=ends[steady], skipped=int((~steady).sum()), source=source, note=note
    )
