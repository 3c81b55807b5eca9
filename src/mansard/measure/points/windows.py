"""Measures points in one process: makes them ready, takes their windows in turns, and lets them go."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from mansard.measure.points import expect
from mansard.measure.points.conditions import Accelerators, Clock
from mansard.measure.points.identity import key_of
from mansard.measure.points.process import DOING, OrderFailedError, Worker, load_beside
from mansard.measure.points.result import now_iso, parameters_of
from mansard.measure.points.setting import Setting
from mansard.measure.points.taken import Taken

FLOOR_SEEN = 1e-3  # of a call, from which on its dispatch is worth telling apart by a slope


class Windows:
    """Takes the windows of points, process after process.

    Args:
        setting: What the run needs.
        begin: When it began, on the monotonic clock [s].
        order: What shuffles the points.
        spent: Returns whether the budget of the run is spent.
        tell: Is told a point of which a window was taken, and the number of the process.
    """

    def __init__(
        self, setting: Setting, begin: float, order: random.Random, spent: Callable[[], bool],
        tell: Callable[[Taken, int], None],
    ) -> None:  # fmt: skip
        self._set, self._begin, self._order, self._spent, self._tell = setting, begin, order, spent, tell
        self._clock: Clock | None = None
        self._devices = Accelerators()
        #: What the last order was about, for the reason of a failure.
        self.doing = ""

    def close(self) -> None:
        """Let go of what reads the clock."""
        if self._clock is not None:
            self._clock.close()

    def measure(self, worker: Worker, states: list[Taken], current: list[Taken], number: int) -> None:
        """Prepare, take the windows of every point in random order, round by round, and release the points.

        Where the budget ends meanwhile, no further point is made ready, and those that are get one window.
        """
        effort = self._set.effort
        ready: list[Taken] = []
        for state in states:
            state.in_process_s = 0.0
        for state in self._shuffled(states):
            if not self._spent():
                current[:] = [state]
                self._prepare(worker, state)
                if self._fits(worker, state):
                    ready.append(state)
        for _ in range(effort.rounds):
            for state in self._shuffled(ready):
                if not state.groups[-1] or (len(state.groups[-1]) < effort.rounds and not self._spent()):
                    current[:] = [state]
                    self._window(worker, state)
                    self._tell(state, number)
        for state in self._shuffled(ready):
            if state.groups[-1]:
                current[:] = [state]
                self._finish(worker, state, last=number == 0)
        current.clear()

    def _fits(self, worker: Worker, state: Taken) -> bool:
        """Return whether calls are short enough to be sampled, now that some were seen; else the point is let go."""
        if state.failure or any(state.groups):
            return not state.failure
        call_s, limit_s = float(state.prepared[-1]["call_s"]), self._set.effort.point_limit_s
        if 3.0 * call_s <= limit_s:
            return True
        state.too_long = f"{expect.calls_exceed('took', call_s, limit_s)}{load_beside(len(self._set.cpus))}"
        self.ask(worker, state, "drop")
        return False

    def _shuffled(self, states: Sequence[Taken]) -> Iterator[Taken]:
        order = [s for s in states if not s.failure]
        self._order.shuffle(order)
        return iter(order)

    def ask(self, worker: Worker, state: Taken, op: str, **arguments: Any) -> dict[str, Any] | None:
        """Give an order for a point; a failed order is the failure of the point, and None comes back."""
        before_s = worker.waited_s
        if not state.started:
            state.started = now_iso()
        # Twice its limit, less what this process spent on it before: a late hang takes no longer than an early one.
        limit_s = self._set.effort.point_limit_s
        left_s = max(limit_s, 2.0 * limit_s - state.in_process_s)
        kill_s = math.inf
        if self._set.budget_s is not None:  # what is under way when the budget ends has the limit of one point to end
            kill_s = limit_s + max(0.0, self._begin + self._set.budget_s - time.monotonic())
        self.doing = DOING[op]
        try:
            return worker.ask(op, limit_s=left_s, kill_s=kill_s, key=key_of(state.point), **arguments)
        except OrderFailedError as error:
            place = f" ({error.error['where']})" if error.error.get("where") else ""
            hint = f"; {error.error['hint']}" if error.error.get("hint") else ""
            state.failure = f"{error.error['message']}{place}{hint}"
            return None
        finally:
            spent_s = worker.waited_s - before_s
            state.work_s += spent_s
            state.in_process_s += spent_s

    def _prepare(self, worker: Worker, state: Taken) -> None:
        params = state.point.params
        answer = self.ask(
            worker, state, "prepare", benchmark=state.point.benchmark, impl=state.point.impl,
            params=parameters_of(state.point),
            warmup_tries=int(params.get("warmup_tries") or 0) or 5,
            warmup_s=min(1.0, float(params.get("min_duration_s") or 0.0) / 5.0),
            warmup_most_s=self._set.effort.warmup_s,
            per_sample=state.prepared[0]["per_sample"] if state.prepared else None, cold=params.get("cache") == "cold",
        )  # fmt: skip
        if answer is not None:
            state.prepared.append(answer)

    def _window(self, worker: Worker, state: Taken) -> None:
        effort, params = self._set.effort, state.point.params
        parts = effort.processes * effort.rounds
        call_s = max(1e-9, float(state.prepared[-1]["call_s"]) * float(state.prepared[-1]["per_sample"]))
        least = -(-int(params.get("num_runs") or 10) // parts)
        allowed = max(1, int(effort.point_limit_s / 2.0 / parts / call_s))
        limits = {
            "least_samples": min(max(3, least), allowed),
            "least_s": min(float(params.get("min_duration_s") or 0.0) / parts, effort.point_limit_s / parts),
            "budget_s": float(params.get("max_duration_s") or effort.budget_s) / parts,
            "target_ratio": effort.target_ratio,
        }
        answer = self.ask(worker, state, "window", limits=limits)
        if answer is None:
            return
        state.groups[-1].append(list(answer["seconds"]))
        state.rewarm_s.append(float(answer["rewarm_s"]))
        state.stopped_by = str(answer["stopped_by"])
        state.seen.append({**answer["seen"], **self._clock_now(state)})

    def _clock_now(self, state: Taken) -> dict[str, Any]:
        if state.where is not None and state.where.platform == "gpu":
            found: dict[str, Any] = dict(self._devices.seen())
            return {**found, "clock_source": "NVML, right after the samples"} if found else {}
        if self._clock is None:
            self._clock = Clock(self._set.cpus)
        clock_hz, source = self._clock.now()
        return {"clock_hz": clock_hz, "clock_source": source}

    def _finish(self, worker: Worker, state: Taken, *, last: bool) -> None:
        ready = state.prepared[-1]
        # Where an empty call is no part of the time, a slope says nothing new and costs many calls; a chain compiles as long as
        # the point did, and once more in each process.
        worth = float(ready["floor_s"]) > FLOOR_SEEN * float(ready["call_s"])
        fits = float(ready["compile_s"]) <= self._set.effort.most_s and not self._spent()
        if ready["has_chain"] and worth and fits:
            answer = self.ask(worker, state, "slope", most_s=max(1.0, self._set.effort.budget_s))
            if answer is None:
                return
            if answer["slope_s"] is not None:
                state.slopes.append((float(answer["slope_s"]), float(answer["fixed_s"])))
        answer = self.ask(worker, state, "finish", sync=last)
        if answer is not None:
            state.finished.append(answer)
