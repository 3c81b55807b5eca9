"""Runs a plan: one process at a time, points interleaved in random order, every finished point handed on at once."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mansard.core.errors import MansardError
from mansard.hardware.host import meminfo
from mansard.measure.points import expect
from mansard.measure.points.batching import batches
from mansard.measure.points.benchmark import Waived, Where
from mansard.measure.points.identity import key_of
from mansard.measure.points.interpret import can_be_interpreted, interpreted
from mansard.measure.points.interval import LEAST_PROCESSES
from mansard.measure.points.process import OrderFailedError, Reserve, Worker, WorkerLostError, load_beside
from mansard.measure.points.registry import benchmark_named
from mansard.measure.points.result import Point, Result, State, now_iso, parameters_of, unmeasured
from mansard.measure.points.setting import Setting
from mansard.measure.points.taken import Taken
from mansard.measure.points.windows import Windows

START_LIMIT_S = 120.0


@dataclass(frozen=True, slots=True)
class Job:
    """Points that one process after another measures together."""

    backend: str
    flags: Mapping[str, str]
    batch: list[Taken]


class Runner:
    """One run of a plan."""

    def __init__(self, setting: Setting) -> None:
        self._set = setting
        self._begin = time.monotonic()
        self._order = random.Random(setting.seed)
        self._done = 0.0
        self._whole = 1.0
        self._under_way: list[Taken] = []
        self._opened_on: dict[str, Where] = {}
        self._reserve = Reserve()
        self._windows = Windows(setting, self._begin, self._order, self._spent, self._tell)
        self.results: list[Result] = []

    def run(self, points: Sequence[Point]) -> list[Result]:
        """Measure the points and return their results in the order they were finished."""
        groups: dict[tuple[Any, ...], list[Taken]] = {}
        self._whole = max(1.0, float(len(points)))
        for point in points:
            try:
                benchmark = benchmark_named(point.benchmark)
            except MansardError as error:
                self._keep(unmeasured(point, State.FAILED, error.message))
                continue
            key = (point.backend, tuple(sorted(point.flags.items())))
            state = Taken(point=point, benchmark=benchmark, spread_s=self._set.effort.spread_s)
            groups.setdefault(key, []).append(state)
        jobs = (
            job
            for (backend, flags_set), states in groups.items()
            for job in self._group(backend, dict(flags_set), states)
        )
        try:
            if self._set.effort.spread_s:
                self._spread_out(list(jobs))
            else:
                for job in jobs:
                    self._in_succession(job)
        finally:
            self._reserve.close()
            self._windows.close()
        return self.results

    def survey(self, points: Sequence[Point]) -> list[tuple[Point, str, float | None]]:
        """Return what would happen to each point: why it would not run (empty if it would), and its expected time [s].

        The backends are started to see what they run on; nothing is compiled or measured.
        """
        found: dict[str, tuple[str, float | None]] = {}
        groups: dict[tuple[Any, ...], list[Taken]] = {}
        for point in points:
            state = Taken(point=point, benchmark=benchmark_named(point.benchmark))
            groups.setdefault((point.backend, tuple(sorted(point.flags.items()))), []).append(state)
        for (backend, flags), states in groups.items():
            try:
                with Worker(self._set.cpus, dict(flags), self._set.command) as worker:
                    where = self._open(worker, backend, with_floor=False)
            except (WorkerLostError, OrderFailedError) as error:
                found.update({key_of(s.point): (f"failed: {backend} did not start: {error}", None) for s in states})
                continue
            for state in states:
                excuse = self._excuse(state, where)
                if isinstance(excuse, Waived):
                    checked = can_be_interpreted(state.point, state.benchmark, excuse)
                    more = "; its result is checked in interpret mode, untimed" if checked else ""
                    found[key_of(state.point)] = (f"waived: {excuse.reason} (missing: {excuse.missing}){more}", None)
                elif excuse is not None:
                    found[key_of(state.point)] = (f"failed: {excuse}", None)
                else:
                    found[key_of(state.point)] = ("", self._expected_s(state))
        return [(p, *found[key_of(p)]) for p in points]

    def _call_s(self, state: Taken) -> float | None:
        """Return about how long one call takes where the point runs [s]; None where nothing tells."""
        assert state.work is not None
        assert state.where is not None
        if state.where.platform == "cpu":
            found = expect.call_s(state.work, self._set.ceilings, state.point.backend)
        else:
            found = expect.call_s(state.work, self._set.device_ceilings, state.point.backend, scope="device")
        planned = state.work.planned
        return found if planned is None else max(found or 0.0, planned.call_s)

    def _expected_s(self, state: Taken) -> float:
        """Return about how long a point will take [s]: its calls, its samples, its share of the processes' starts."""
        effort = self._set.effort
        one = self._call_s(state) or 0.0
        least = max(3 * effort.processes * effort.rounds, int(state.point.params.get("num_runs") or 0))
        calls = one * (least + 8 * effort.processes)
        ready = state.work.planned.prepare_s if state.work is not None and state.work.planned is not None else 0.0
        fixed = effort.processes * (expect.START_S.get(state.point.backend, 0.5) / 4.0 + effort.warmup_s / 2.0 + ready)
        return min(max(calls, effort.budget_s) + fixed, 2.0 * effort.point_limit_s)

    def _keep(self, result: Result) -> None:
        self.results.append(result)
        self._done += 1.0
        self._under_way = [s for s in self._under_way if s.point is not result.point]
        self._set.keep(result)
        self._set.progress(min(1.0, self._done / self._whole), result.point.name)

    def _spent(self) -> bool:
        return self._set.budget_s is not None and time.monotonic() - self._begin > self._set.budget_s

    def _group(self, backend: str, flags: Mapping[str, str], states: list[Taken]) -> Iterator[Job]:
        """Yield the points of one backend and flag set that can be measured, in batches; the others are kept at once."""
        try:
            where = self._place(backend, flags)
        except (WorkerLostError, OrderFailedError) as error:
            for state in states:
                self._keep(unmeasured(state.point, State.FAILED, f"{backend} did not start: {error}"))
            return
        if where is None:
            for state in states:
                self._keep(self._too_late(state))
            return
        ready, elsewhere = [], []
        for state in states:
            excuse = self._excuse(state, where)
            if isinstance(excuse, Waived) and can_be_interpreted(state.point, state.benchmark, excuse):
                elsewhere.append((state.point, excuse))
            elif isinstance(excuse, Waived):
                text = f"{excuse.reason} (missing: {excuse.missing})"
                self._keep(unmeasured(state.point, State.WAIVED, text))
            elif excuse is not None:
                self._keep(unmeasured(state.point, State.FAILED, excuse))
            else:
                self._set.restore(state)
                ready.append(state)
        self._order.shuffle(ready)
        ready.sort(key=lambda s: -s.resumed)  # what an earlier run began is finished first
        for batch in batches(ready, meminfo("MemAvailable")):
            if self._spent():
                for state in batch:
                    self._keep(self._too_late(state))
                continue
            yield Job(backend, flags, batch)
        # What is timed comes first: a budget is for it.
        with contextlib.ExitStack() as stack:
            for result in interpreted(
                elsewhere, lambda: stack.enter_context(self._opened(backend, flags)), self._spent
            ):
                self._keep(result)

    def _place(self, backend: str, flags: Mapping[str, str]) -> Where | None:
        """Return what a backend runs on here. A budget that is spent starts no process: what an earlier one saw must do.

        None where no earlier one of this run did.
        """
        if self._spent():
            return self._opened_on.get(backend)
        worker = Worker(self._set.cpus, flags, self._set.command)
        self._reserve.put((backend, *sorted(flags.items())), worker)
        where = self._opened_on[backend] = self._open(worker, backend, with_floor=False)
        return where

    def _excuse(self, state: Taken, where: Where) -> Waived | str | None:
        """Return why a point is not run here: waived, or failed with a text; None where it is run."""
        point = state.point
        try:
            params = parameters_of(point)
            excuse = state.benchmark.waived(params, point.impl, where)
            if excuse is not None:
                return excuse
            state.where, state.work = where, state.benchmark.work(params, where)
        except MansardError as error:
            return error.message
        except Exception as error:  # a defect of one benchmark must not end the run of the others
            return f"its work cannot be worked out: {type(error).__name__}: {error}"
        return expect.too_long(state.work, self._call_s(state), self._set.effort.point_limit_s)

    def _open(self, worker: Worker, backend: str, *, with_floor: bool = True) -> Where:
        answer = worker.ask(
            "open", limit_s=START_LIMIT_S, backend=backend, threads=len(self._set.cpus), cpus=list(self._set.cpus),
            with_floor=with_floor,
        )  # fmt: skip
        found = dict(answer["where"])
        found["cpus"] = tuple(found["cpus"])
        return Where(**found)

    @contextlib.contextmanager
    def _opened(self, backend: str, flags: Mapping[str, str]) -> Iterator[Worker]:
        with Worker(self._set.cpus, flags, self._set.command) as worker:
            self._open(worker, backend, with_floor=False)
            yield worker

    def _in_succession(self, job: Job) -> None:
        """Measure points that are kept ready together, process after process, until each is settled."""
        self._under_way = [*job.batch]
        for number in range(job.batch[0].resumed, self._set.effort.processes):
            if not self._turn(job, number):
                break
        self._conclude(job)

    def _spread_out(self, jobs: list[Job]) -> None:
        """Measure all points in turns, one process each, and wait between the turns, so that they fill the time."""
        effort = self._set.effort
        self._under_way = [state for job in jobs for state in job.batch]
        begin, first = time.monotonic(), min((job.batch[0].resumed for job in jobs), default=0)
        for number in range(first, effort.processes):
            due_s = begin + (number - first) * effort.spread_s / effort.processes - time.monotonic()
            if due_s > 0.0 and number > first and not self._spent():
                self._set.wait(due_s)
            turns = [self._turn(job, number) for job in jobs if job.batch[0].resumed <= number]
            if turns and not any(turns):
                break
        for job in jobs:
            self._conclude(job)

    def _turn(self, job: Job, number: int) -> bool:
        """Measure the points of a job in one more process; False where none of them needs it."""
        open_points = [s for s in job.batch if not (s.failure or s.too_long or self._settled(s, number))]
        if not open_points:
            return False
        for state in open_points:
            state.groups.append([])
        self._process(job.backend, job.flags, open_points, number)
        self._set.note(self._under_way)
        return True

    def _conclude(self, job: Job) -> None:
        """Keep what became of the points of a job."""
        for state in job.batch:
            state.ended = now_iso()
            state.groups = [g for g in state.groups if g]
            if state.failure:
                self._keep(self._failed(state))
                continue
            if state.too_long and not state.finished:
                self._keep(unmeasured(state.point, State.WAIVED, f"{state.too_long} (missing: time)"))
                continue
            if not state.groups and self._spent():
                self._keep(self._too_late(state))
                continue
            try:
                self._keep(self._set.finish(state))
            except MansardError as error:
                self._keep(unmeasured(state.point, State.FAILED, error.message))

    def _too_late(self, state: Taken) -> Result:
        text = f"the budget of {self._set.budget_s:.3g} s was spent (missing: time)"
        return unmeasured(state.point, State.WAIVED, text)

    def _failed(self, state: Taken) -> Result:
        return Result(
            point=state.point, state=State.FAILED, reason=state.failure, started=state.started or now_iso(),
            audit={"samples_before_s": [s for group in state.samples for s in group]},
        )  # fmt: skip

    def _settled(self, state: Taken, number: int) -> bool:
        """Return whether a point needs no further process."""
        taken = sum(1 for group in state.groups if group)
        if number == 0:
            return False
        if taken == 0:
            return self._spent()
        if taken < number:  # it was settled before
            return True
        effort, each = self._set.effort, state.work_s / taken
        # An interval needs three processes; a point gets them unless one alone takes all of its time.
        if each > effort.most_s or (taken >= LEAST_PROCESSES and each * (taken + 1) > effort.most_s):
            call = f", one call {state.prepared[0]['call_s']:.2g} s" if state.heavy else ""
            state.in_one_go = (
                f"measured in {taken} of {effort.processes} processes: each takes {each:.2g} s for it{call}"
            )
            return True
        if self._spent():
            state.in_one_go = f"the budget was spent after {taken} process(es)"
            return True
        return False

    def _process(self, backend: str, flags: Mapping[str, str], states: list[Taken], number: int) -> None:
        """Measure the points in one process; one that takes the process down is left out, the others go on."""
        left = [*states]
        while left:
            current: list[Taken] = []
            try:
                kept = self._reserve.take((backend, *sorted(flags.items())))
                with kept or Worker(self._set.cpus, flags, self._set.command) as worker:
                    self._open(worker, backend)
                    self._windows.measure(worker, left, current, number)
                return
            except OrderFailedError as error:
                for state in left:
                    state.failure = f"{backend} did not start again: {error}"
                return
            except WorkerLostError as lost:
                if not current:
                    for state in left:
                        state.failure = f"{backend} did not start again: {lost.reason}"
                    return
                if lost.silent and self._spent():
                    current[0].too_long = f"the budget of {self._set.budget_s:.3g} s was spent {self._windows.doing}"
                    return
                current[0].failure = f"{lost.reason} ({self._windows.doing}{load_beside(len(self._set.cpus))})"
                left = [s for s in left if not s.failure and not s.finished[number:]]

    def _tell(self, state: Taken, number: int) -> None:
        """Say how far the run is: finished points, and the windows of those under way."""
        effort = self._set.effort
        state.share = min(0.99, state.share + 1.0 / (effort.processes * effort.rounds))
        share = (self._done + sum(s.share for s in self._under_way)) / self._whole
        self._set.progress(min(0.999, share), f"{state.point.name} (process {number + 1} of {effort.processes})")
