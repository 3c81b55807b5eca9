"""Two versions of a program measured in turn: the same points, one worker each, and in each round first the one or the other.

Whatever the machine does meanwhile happens to both, so the ratio of a round holds still where the times themselves wander. What it
does not cancel is what a process has for as long as it lives, such as the placement of its memory; so several pairs of processes are
started, each is one observation, and a point whose first pairs differ gets more of them.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from mansard.core.errors import MansardError
from mansard.history.compare import Comparison, Limits, compare_figures
from mansard.history.fingerprint import digest, fingerprint_of
from mansard.history.records import Measurement
from mansard.history.sides import Version
from mansard.history.signed_rank import LEAST_DIFFERENCES, differences_needed
from mansard.history.statistics import LEVEL, pair_centres
from mansard.measure.points.benchmark import Waived, Where
from mansard.measure.points.process import OrderFailedError, Worker, WorkerLostError
from mansard.measure.points.registry import benchmark_named
from mansard.measure.points.result import Point, parameters_of

TURN_S = 3e-3  # a turn has as many samples as this takes: of three the middle one is free of one interruption
MOST_IN_TURN = 20
WARMUP_S = 0.3
LEAST_ROUNDS = 4
_START_LIMIT_S = 180.0
_EFFORT = ("warmup_tries", "num_runs", "min_duration_s", "max_duration_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What a point is worth.

    Args:
        pairs: Pairs of processes, one of each version, that every point gets: of twelve, one that is far out does not decide. More where a
            comparison of very many points needs them to call one; see `pairs_of`.
        most_pairs: So many at most, where the first ones differ: as many as `half_width_ratio` takes.
        half_width_ratio: Half of the interval that is aimed at. With 1.75 % a change of 5 % is called in nine of ten comparisons:
            its distance from the tolerance of 2 %, log 1.05 - log 1.02 = 2.90 %, is 1.96 + 1.28 standard errors of 0.89 %.
        rounds: Rounds of each pair: both versions in turn, in random order.
        point_s: Wall time of the rounds of one point, an equal share for each of the `most_pairs`, with fewer rounds where it is spent. No
            pair beyond the first `pairs` begins once so long a time for each point has passed [s].
        limit_s: After this without an answer a worker is ended [s].
    """

    pairs: int = 12
    most_pairs: int = 60
    half_width_ratio: float = 0.0175
    rounds: int = 30
    point_s: float = 60.0
    limit_s: float = 120.0

    def pairs_of(self, points: int) -> int:
        """Return how many pairs every point gets.

        Of n pairs the least probability of signed ranks is 2 / 2^n, and one change among m points has to come below level / m. Of six
        points that is eight pairs, of 500 it is 15: 2 / 2^15 = 6.1e-5 < 0.05 / 500 = 1e-4.

        >>> Budget().pairs_of(6), Budget().pairs_of(500), Budget(pairs=3).pairs_of(500)
        (12, 15, 3)
        """
        if self.pairs < LEAST_DIFFERENCES:
            return self.pairs
        return max(self.pairs, 1 + math.ceil(math.log2(max(1, points) / LEVEL)))


class Orders(Protocol):
    """A worker that takes orders; see `measure.points.process.Worker`."""

    def ask(self, op: str, *, limit_s: float, **arguments: Any) -> dict[str, Any]:
        """Send an order and return its answer."""


@dataclass(slots=True)
class Paired:
    """One point with what both sides took.

    Args:
        point: What was measured.
        groups: Of the baseline and of the candidate: for each pair of processes the figures of its rounds [s].
        orders: Which side went first in each round, 0 the baseline.
        failures: Of each side why it has no figures.
        flaws: Of each side why its figures must not be believed.
        waived: Why the point was not run at all.
        asked: Which side was asked last.
        planned: How many pairs of processes it is to get, once the first ones are there.
    """

    point: Point
    groups: tuple[list[list[float]], list[list[float]]] = field(default_factory=lambda: ([], []))
    orders: list[int] = field(default_factory=list)
    failures: list[str] = field(default_factory=lambda: ["", ""])
    flaws: list[str] = field(default_factory=lambda: ["", ""])
    waived: str = ""
    asked: int = 0
    planned: int | None = None

    @property
    def failed(self) -> bool:
        """Whether a side failed."""
        return any(self.failures)


def in_turn(
    turns: tuple[Callable[[], float], Callable[[], float]], rounds: int, order: random.Random, *, spent: Callable[[], bool] = lambda: False
) -> tuple[list[float], list[float], list[int]]:  # fmt: skip
    """Take both sides in turn and return their figures, round by round, and which went first.

    Args:
        turns: What takes one figure of the baseline, and of the candidate [s].
        rounds: How many of each.
        order: Source of the order: of each two rounds one begins with either side, so that going first favours neither.
        spent: Whether to stop, once `LEAST_ROUNDS` are done.
    """
    taken: tuple[list[float], list[float]] = ([], [])
    first: list[int] = []
    while len(first) < rounds and not (len(first) >= LEAST_ROUNDS and spent()):
        lead = order.randrange(2) if len(first) % 2 == 0 else 1 - first[-1]
        for side in (lead, 1 - lead):
            taken[side].append(turns[side]())
        first.append(lead)
    return *taken, first


def measure_in_turn(
    points: Sequence[Point], versions: tuple[Version, Version], *, cpus: Sequence[int], budget: Budget | None = None, seed: int = 0,
    progress: Callable[[float, str], None] = lambda _share, _text: None,
) -> list[Paired]:  # fmt: skip
    """Measure points with two versions in turn.

    Args:
        points: What to measure.
        versions: Baseline and candidate.
        cpus: The CPUs of both teams; only one of them works at a time.
        budget: What a point is worth.
        seed: Of the order of points and sides.
        progress: Told the share done and the point.
    """
    chosen, order, began = budget or Budget(), random.Random(seed), time.monotonic()
    found = [Paired(point=p) for p in points]
    groups: dict[tuple[Any, ...], list[Paired]] = {}
    for item in found:
        groups.setdefault((item.point.backend, tuple(sorted(item.point.flags.items()))), []).append(item)
    least = chosen.pairs_of(len(found))
    most, done, due = max(least, chosen.most_pairs), 0, 0.0
    for (backend, flags), members in groups.items():
        due += chosen.point_s * len(members)
        for number in range(most):
            left = [m for m in members if m.planned is None or number < m.planned]
            if not left or (number >= least and time.monotonic() - began > due):
                break
            for item in _one_pair(backend, dict(flags), left, versions, cpus, chosen, order):
                done += 1
                steps = sum(most if m.planned is None else m.planned for m in found)
                progress(min(0.999, done / max(1, steps)), item.point.name)
            if number + 1 == least:
                for m in members:
                    m.planned = _planned(m, chosen, most)
    return found


def _planned(item: Paired, budget: Budget, most: int) -> int:
    """Return how many pairs a point is to get, by how far its first ones lie from each other."""
    impossible = any(not x > 0.0 for side in item.groups for g in side for x in g)
    if item.failed or item.waived or any(item.flaws) or impossible:
        return len(item.groups[0])
    centres = pair_centres(*item.groups)
    return differences_needed(centres, math.log1p(budget.half_width_ratio), most)


def _one_pair(
    backend: str, flags: dict[str, str], members: Sequence[Paired], versions: tuple[Version, Version], cpus: Sequence[int],
    budget: Budget, order: random.Random,
) -> Iterator[Paired]:  # fmt: skip
    """Measure the points of a backend in one process of each version; where a point takes one down, both start again."""
    left = [m for m in members if not (m.failed or m.waived)]
    order.shuffle(left)
    while left:
        item = left[-1]
        try:
            with Worker(cpus, flags, versions[0].command) as a, Worker(cpus, flags, versions[1].command) as b:
                where = _open((a, b), backend, cpus, left)
                while where is not None and left:
                    item = left.pop()
                    _point(item, (a, b), where, budget, order)
                    yield item
            if where is None:
                return
        except WorkerLostError as lost:
            item.failures[item.asked] = lost.reason
            yield item


def _open(workers: tuple[Orders, Orders], backend: str, cpus: Sequence[int], members: Sequence[Paired]) -> Where | None:
    """Start the backend on both sides; None where one does not start, which is then the failure of all points."""
    where = None
    for side, worker in enumerate(workers):
        try:
            answer = worker.ask(
                "open", limit_s=_START_LIMIT_S, backend=backend, threads=len(cpus), cpus=list(cpus), with_floor=True
            )
        except (OrderFailedError, WorkerLostError) as error:
            for m in members:
                m.failures[side] = f"{backend} did not start: {error}"
            return None
        told = dict(answer["where"])
        where = Where(**{**told, "cpus": tuple(told["cpus"])})
    return where


def _point(item: Paired, workers: tuple[Orders, Orders], where: Where, budget: Budget, order: random.Random) -> None:
    """Measure one point with a pair of workers."""
    item.waived = _excuse(item.point, where)
    if item.waived:
        return
    key = digest({"name": item.point.name, **item.point.params})
    sides = [0, 1] if order.random() < 0.5 else [1, 0]
    try:
        ready = _prepared(item, workers, sides, key, budget)
        calls = [float(r["call_s"]) * float(r["per_sample"]) for r in ready.values()]
        count = max(1, min(MOST_IN_TURN, math.ceil(TURN_S / max(1e-9, *calls))))
        limits = {"least_samples": count, "most_samples": count, "budget_s": 1e9, "target_ratio": 0.0}

        def turn(side: int) -> float:
            seconds = _ask(item, side, workers, "window", budget, key=key, limits=limits)["seconds"]
            # Of an even number the lower middle: of two samples the upper is the one that was interrupted.
            return sorted(float(s) for s in seconds)[(len(seconds) - 1) // 2]

        end = time.monotonic() + budget.point_s / max(budget.pairs, budget.most_pairs)
        a, b, first = in_turn(
            (lambda: turn(0), lambda: turn(1)), budget.rounds, order, spent=lambda: time.monotonic() > end
        )
        for side in sides:
            after = _ask(item, side, workers, "finish", budget, key=key, sync=False)
            _look(item, side, (ready[side].get("check"), after.get("check")))
    except OrderFailedError as error:
        item.failures[item.asked] = str(error)
        return
    item.groups[0].append(a)
    item.groups[1].append(b)
    item.orders += first


def _prepared(
    item: Paired, workers: tuple[Orders, Orders], sides: Sequence[int], key: str, budget: Budget
) -> dict[int, dict[str, Any]]:
    """Make a point ready on both sides; they time the same number of operations in a sample."""
    ready: dict[int, dict[str, Any]] = {}
    per_sample: int | None = None
    for side in sides:
        ready[side] = _ask(
            item, side, workers, "prepare", budget, key=key, benchmark=item.point.benchmark, impl=item.point.impl,
            params=parameters_of(item.point), warmup_tries=5, warmup_s=0.0, warmup_most_s=WARMUP_S, per_sample=per_sample,
            cold=item.point.params.get("cache") == "cold",
        )  # fmt: skip
        per_sample = per_sample or int(ready[side]["per_sample"])
    return ready


def _look(item: Paired, side: int, checks: Sequence[dict[str, Any] | None]) -> None:
    for check in checks:
        if check is not None and (check["error_ratio"] is None or check["error_ratio"] > 1.0):
            item.flaws[side] = f"its result is wrong against {check['against']}"


def _ask(
    item: Paired, side: int, workers: tuple[Orders, Orders], op: str, budget: Budget, **arguments: Any
) -> dict[str, Any]:
    """Give an order to a side, and note who was asked last: who fails is then known."""
    item.asked = side
    return workers[side].ask(op, limit_s=budget.limit_s, **arguments)


def _excuse(point: Point, where: Where) -> str:
    """Return why a point is not run here; empty where it is."""
    try:
        excuse = benchmark_named(point.benchmark).waived(parameters_of(point), point.impl, where)
    except MansardError as error:
        return error.message
    except Exception as error:  # a defect of one benchmark must not end the others
        return f"it cannot be worked out: {type(error).__name__}: {error}"
    return f"{excuse.reason} (missing: {excuse.missing})" if isinstance(excuse, Waived) else str(excuse or "")


def compared(found: Sequence[Paired], versions: tuple[Version, Version], limits: Limits) -> Comparison:
    """Return the verdicts of what was measured in turn.

    Args:
        found: The points.
        versions: Baseline and candidate.
        limits: What counts as a change; they are taken as interleaved.
    """
    sides: tuple[list[Measurement], list[Measurement]] = ([], [])
    for item in found:
        for side, into in enumerate(sides):
            into.append(_measurement(item, side, versions[side]))
    return compare_figures(*sides, limits=replace(limits, interleaved=True))


def _measurement(item: Paired, side: int, version: Version) -> Measurement:
    params = {k: v for k, v in item.point.params.items() if k not in _EFFORT}
    base = fingerprint_of(version.environment).merged(
        {"config": {"params": digest(params), "backend": item.point.backend}}
    )
    groups = tuple(tuple(g) for g in item.groups[side])
    why = item.failures[side] or item.waived or ("" if groups else "it was not measured, because the other side failed")
    return Measurement(
        benchmark=item.point.name, metric="time_s", groups=() if why else groups, absent=why, flaw=item.flaws[side], fingerprint=base
    )  # fmt: skip
