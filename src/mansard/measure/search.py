"""Which shape of a product is fastest? A search that narrows instead of measuring everything for long.

All candidates get a little time; the slower half is dropped, what is left gets twice as much, and so on (successive
halving). The finalists are then measured again in a new process: the best of many noisy numbers is too good by
selection alone, and a winner is only named if its interval does not overlap the next one's.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from mansard.core.errors import UndecidedError, UsageError
from mansard.core.stats import Summary, median_interval
from mansard.measure.points.benchmark import Where
from mansard.measure.points.result import Point

FINALISTS = 4
KEEP = 0.5
FIRST_S = 0.05  # of samples for each candidate in the first round
FINAL_WINDOWS = 5
LIMIT_S = 120.0  # for one order; a worker that is silent longer is ended, and its candidate has failed

Candidate = Mapping[str, Any]
Progress = Callable[[float, str], None]


class Meter(Protocol):
    """Takes samples of candidates. One is opened for the search and a new one for the finalists."""

    def sample(self, candidate: Candidate, seconds: float) -> Sequence[float]:
        """Return times of one operation, taken for about `seconds` [s]; none where the candidate cannot run."""

    def drop(self, candidate: Candidate) -> None:
        """Release one candidate that is out of the running."""

    def close(self) -> None:
        """Release what it holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finalist:
    """One candidate that was measured again.

    Args:
        params: Its parameters.
        flop: FLOP of one call.
        again: Times of the new measurement [s].
        searched_s: Best time that the search saw [s].
        tied: Whether its rate cannot be told from the first one's.
    """

    params: Candidate
    flop: float
    again: Summary
    searched_s: float
    tied: bool = False

    @property
    def flop_per_s(self) -> float:
        """Rate by the median of the new measurement [FLOP/s]."""
        return self.flop / self.again.median

    @property
    def interval(self) -> tuple[float, float]:
        """Its 95 % interval [FLOP/s]."""
        return self.flop / self.again.high, self.flop / self.again.low

    @property
    def optimism_ratio(self) -> float:
        """How much better the search's best sample looked than what was measured again, the winner's curse."""
        return self.again.median / self.searched_s - 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """What a search found, best first.

    Args:
        finalists: Measured again, best first; those tied with the first say so.
        rounds: How many candidates each round measured.
        sampled_s: Time of all samples of the search together [s].
        brute_force_s: What giving every candidate the finalists' time would have taken [s].
        failed: Candidates that could not run, with the reason.
    """

    finalists: tuple[Finalist, ...]
    rounds: tuple[int, ...]
    sampled_s: float
    brute_force_s: float
    failed: tuple[tuple[Candidate, str], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain JSON."""
        return {
            "kind": "search", "rounds": list(self.rounds), "sampled_s": self.sampled_s, "brute_force_s": self.brute_force_s,
            "failed": [{"params": dict(p), "reason": reason} for p, reason in self.failed],
            "finalists": [
                {"params": dict(f.params), "flop_per_s": f.flop_per_s, "ci95_flop_per_s": list(f.interval),
                 "tied_with_best": f.tied, "searched_flop_per_s": f.flop / f.searched_s, "optimism_ratio": f.optimism_ratio}
                for f in self.finalists
            ],
        }  # fmt: skip


@dataclass(slots=True)
class _State:
    times: dict[int, list[float]] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    rounds: list[int] = field(default_factory=list)
    sampled_s: float = 0.0


def search(
    candidates: Sequence[Candidate],
    flop_of: Callable[[Candidate], float],
    open_meter: Callable[[], Meter],
    *,
    finalists: int = FINALISTS,
    first_s: float = FIRST_S,
    seed: int = 0,
    progress: Progress = lambda _share, _text: None,
) -> SearchResult:
    """Return the fastest candidates by FLOP/s.

    Args:
        candidates: Parameters of each.
        flop_of: FLOP of one call of a candidate.
        open_meter: Starts what takes samples.
        finalists: How many are measured again.
        first_s: Time for each candidate in the first round [s]; every round doubles it.
        seed: Seed of the order within a round.
        progress: Is told the share done and what is measured.

    Raises:
        UndecidedError: no candidate could run.

    Source: Karnin, Koren and Somekh, ICML 2013 (sequential halving). The rate of a candidate is taken from the smallest
    sample while it narrows, since disturbance only makes a sample slower; the finalists are judged by medians.
    """
    state, order = _State(), random.Random(seed)
    alive = list(range(len(candidates)))
    whole_s = planned_s(len(candidates), finalists, first_s)
    told_s = 0.0
    meter = open_meter()
    spend_s = first_s
    try:
        while True:
            order.shuffle(alive)
            for index in alive:
                told_s += spend_s
                progress(min(0.99, told_s / whole_s), f"round {len(state.rounds) + 1}: {dict(candidates[index])}")
                _take(state, meter, candidates, index, spend_s)
            alive = [i for i in alive if i not in state.failed]
            state.rounds.append(len(alive))
            if len(alive) <= finalists:
                break
            alive.sort(key=lambda i: min(state.times[i]) / flop_of(candidates[i]))
            kept = max(finalists, int(len(alive) * KEEP))
            for index in alive[kept:]:
                meter.drop(candidates[index])
            alive = alive[:kept]
            spend_s *= 2.0
    finally:
        meter.close()
    if not alive:
        reasons = "; ".join(sorted(set(state.failed.values()))[:3])
        raise UndecidedError(f"none of the {len(candidates)} candidates could run: {reasons}")
    progress(min(0.99, told_s / whole_s), f"the {len(alive)} finalists again, in a new process")
    again = _measure_again(alive, candidates, open_meter, spend_s, order)
    ranked = sorted(
        (
            Finalist(params=candidates[i], flop=flop_of(candidates[i]), again=s, searched_s=min(state.times[i]))
            for i, s in again.items()
        ),
        key=lambda f: -f.flop_per_s,
    )
    return SearchResult(
        finalists=tuple(_with_ties(ranked)), rounds=tuple(state.rounds), sampled_s=state.sampled_s,
        brute_force_s=spend_s * FINAL_WINDOWS * len(candidates),
        failed=tuple((candidates[i], reason) for i, reason in state.failed.items()),
    )  # fmt: skip


def planned_s(count: int, finalists: int = FINALISTS, first_s: float = FIRST_S) -> float:
    """Return how long the samples of a search take [s], without compilation.

    Six candidates: 6 x 0.05, then the 4 finalists x 0.1, then these in 5 windows of 0.1 each: 0.3 + 0.4 + 2.0.

    >>> round(planned_s(6), 9)
    2.7
    """
    total, spend_s = 0.0, first_s
    while True:
        total += count * spend_s
        if count <= finalists:
            return total + count * FINAL_WINDOWS * spend_s
        count, spend_s = max(finalists, int(count * KEEP)), 2.0 * spend_s


def _take(state: _State, meter: Meter, candidates: Sequence[Candidate], index: int, seconds: float) -> None:
    try:
        taken = list(meter.sample(candidates[index], seconds))
    except Exception as error:  # a shape that fails must not lose the others
        state.failed[index] = str(error).splitlines()[0] if str(error) else type(error).__name__
        return
    if not taken:
        state.failed[index] = "it gave no samples"
        return
    state.times.setdefault(index, []).extend(taken)
    state.sampled_s += sum(taken)


def _measure_again(
    alive: Sequence[int], candidates: Sequence[Candidate], open_meter: Callable[[], Meter], seconds: float,
    order: random.Random,
) -> dict[int, Summary]:  # fmt: skip
    """Return new medians of the finalists: in a new process, interleaved over several windows, in random order."""
    times: dict[int, list[float]] = {i: [] for i in alive}
    meter = open_meter()
    try:
        for _ in range(FINAL_WINDOWS):
            turn = list(alive)
            order.shuffle(turn)
            for index in turn:
                times[index] += meter.sample(candidates[index], seconds)
    finally:
        meter.close()
    return {i: median_interval(t) for i, t in times.items() if t}


def _with_ties(ranked: Sequence[Finalist]) -> list[Finalist]:
    best = ranked[0]
    return [
        Finalist(
            params=f.params, flop=f.flop, again=f.again, searched_s=f.searched_s,
            tied=f is not best and f.interval[1] >= best.interval[0],
        )
        for f in ranked
    ]  # fmt: skip


def grid(sizes_m: Sequence[int], sizes_k: Sequence[int], sizes_n: Sequence[int]) -> list[dict[str, int]]:
    """Return all shapes of a product.

    >>> len(grid([1, 2], [1], [1, 2, 3]))
    6
    """
    return [{"m": m, "k": k, "n": n} for m in sizes_m for k in sizes_k for n in sizes_n]


def _key(candidate: Candidate) -> str:
    return repr(sorted(candidate.items()))


@dataclass(slots=True)
class WorkerMeter:
    """Samples of one benchmark through a worker process; candidates that were prepared stay ready.

    Args:
        benchmark, impl: What is measured.
        common: Parameters that all candidates share.
        backend: Backend of the implementation.
        cpus: The CPUs of the worker.
        flags: Environment variables that must be set before the runtime starts.
    """

    benchmark: str
    impl: str
    common: Mapping[str, Any]
    backend: str
    cpus: tuple[int, ...]
    flags: Mapping[str, str] = field(default_factory=dict)
    _worker: Any = None
    _ready: dict[str, int] = field(default_factory=dict)
    _where: Where | None = None

    def __post_init__(self) -> None:
        self._open()

    def _open(self) -> None:
        from mansard.measure.points.process import Worker

        self._ready.clear()
        self._worker = Worker(self.cpus, self.flags)
        opened = self._ask("open", backend=self.backend, threads=len(self.cpus), cpus=list(self.cpus), with_floor=False)
        self._where = Where(**{**opened["where"], "cpus": tuple(opened["where"]["cpus"])})

    def _ask(self, op: str, **arguments: Any) -> dict[str, Any]:
        answer: dict[str, Any] = self._worker.ask(op, limit_s=LIMIT_S, **arguments)
        return answer

    def sample(self, candidate: Candidate, seconds: float) -> Sequence[float]:
        """Return times of one operation [s]."""
        from mansard.measure.points.process import WorkerLostError

        try:
            return self._sample(candidate, seconds)
        except WorkerLostError:  # the candidate took its process along; the others get a new one
            self._open()
            raise

    def _sample(self, candidate: Candidate, seconds: float) -> Sequence[float]:
        from mansard.measure.points.registry import benchmark_named

        key, params = _key(candidate), {**self.common, **candidate}
        if key not in self._ready:
            assert self._where is not None
            waived = benchmark_named(self.benchmark).waived(params, self.impl, self._where)
            if waived is not None:
                raise UndecidedError(waived.reason)
            answer = self._ask(
                "prepare", key=key, benchmark=self.benchmark, impl=self.impl, params=params,
                warmup_tries=2, warmup_s=0.0, warmup_most_s=seconds,
            )  # fmt: skip
            error = answer["check"]["error_ratio"]
            if error is None or error > 1.0:
                raise UndecidedError(f"the result of {dict(candidate)} is wrong")
            self._ready[key] = int(answer["per_sample"])
        limits = {"least_samples": 3, "budget_s": seconds, "least_s": 0.0, "most_samples": 200, "target_ratio": 0.0}
        return [float(t) for t in self._ask("window", key=key, limits=limits)["seconds"]]

    def drop(self, candidate: Candidate) -> None:
        """Release a candidate in the worker."""
        if self._ready.pop(_key(candidate), None) is not None:
            self._ask("finish", key=_key(candidate), sync=False)

    def close(self) -> None:
        """End the worker."""
        self._worker.close()


def best_point(
    points: Sequence[Point],
    *,
    cpus: Sequence[int] | None = None,
    finalists: int = FINALISTS,
    first_s: float = FIRST_S,
    seed: int = 0,
    progress: Progress = lambda _share, _text: None,
) -> SearchResult:
    """Return the fastest of the points of a plan by FLOP/s, which differ in parameters alone.

    Args:
        points: Points of one benchmark, implementation and set of flags.
        cpus: The CPUs to use; None takes all this process may use.
        finalists: How many are measured again.
        first_s: Time for each candidate in the first round [s].
        seed: Seed of the order.
        progress: Is told the share done and what is measured.

    Raises:
        UsageError: the points are of several benchmarks or implementations, or do no FLOP that a rate could be made of.
        UndecidedError: none could run.
    """
    from mansard.measure.machine import choose_cpus
    from mansard.measure.points.registry import benchmark_named

    kinds = {(p.benchmark, p.impl, p.backend, tuple(sorted(p.flags.items()))) for p in points}
    if len(kinds) != 1:
        named = ", ".join(sorted({f"{b}[{i}]" for b, i, _, _ in kinds})) or "nothing"
        raise UsageError(f"a search needs points of one benchmark and implementation, got {named}", hint="--run NAME")
    name, impl, backend, flags = next(iter(kinds))
    benchmark = benchmark_named(name)
    chosen = tuple(cpus) if cpus is not None else choose_cpus(None)
    swept = [k for k in points[0].params if len({repr(p.params.get(k)) for p in points}) > 1]
    common = {k: v for k, v in points[0].params.items() if k not in swept} | {"impl": impl}
    where = Where(backend=backend, platform="cpu", threads=len(chosen), cpus=chosen)  # FLOP are those of any device

    def flop_of(candidate: Candidate) -> float:
        return float(benchmark.work({**common, **candidate}, where).demand.total_flop)

    candidates = [{k: p.params[k] for k in swept} for p in points]
    idle = next((c for c in candidates if not flop_of(c) > 0.0), None)
    if idle is not None:
        raise UsageError(
            f"{name} does no matrix FLOP, so its points have no FLOP/s to search by",
            hint="measure them all: leave out --search",
        )
    return search(
        candidates, flop_of, lambda: WorkerMeter(name, impl, common, backend, chosen, dict(flags)),
        finalists=finalists, first_s=first_s, seed=seed, progress=progress,
    )  # fmt: skip


def best_shape(
    shapes: Sequence[Mapping[str, int]],
    *,
    dtype: str,
    impl: str = "jax",
    out_dtype: str | None = None,
    cpus: Sequence[int] | None = None,
    finalists: int = FINALISTS,
    first_s: float = FIRST_S,
) -> SearchResult:
    """Return the fastest shapes of a matrix product on this machine.

    Args:
        shapes: m, k, n of each candidate, as `grid` makes them.
        dtype: Type of A and B.
        impl: Implementation of `gemm_generalized`.
        out_dtype: Type of the result; None for that of A.
        cpus: The CPUs to use; None takes all this process may use.
        finalists: How many are measured again.
        first_s: Time for each candidate in the first round [s].
    """
    from mansard.measure.points.registry import benchmark_named

    benchmark = benchmark_named("gemm_generalized")
    common = {p.name: p.default for p in benchmark.parameters}
    common |= {"in_dtype": dtype, "out_dtype": out_dtype, "impl": impl}
    points = [
        Point(
            benchmark=benchmark.name,
            impl=impl,
            backend=benchmark.implementations[impl],
            params={**common, **s},
            name="",
        )
        for s in shapes
    ]
    return best_point(points, cpus=cpus, finalists=finalists, first_s=first_s)
