"""Kernels that only an accelerator runs are checked here all the same: in interpret mode, at a small shape, untimed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

from mansard.measure.points.benchmark import Benchmark, Interpretable, Waived
from mansard.measure.points.process import OrderFailedError, Worker, WorkerLostError
from mansard.measure.points.result import Point, Result, State, parameters_of, unmeasured

LIMIT_S = 120.0  # for one check; interpretation is slow


def can_be_interpreted(point: Point, benchmark: Benchmark, waived: Waived) -> bool:
    """Return whether a point that lacks a device can be checked without it."""
    return (
        waived.missing == "device"
        and isinstance(benchmark, Interpretable)
        and benchmark.interpret is not None
        and point.impl in benchmark.interpreted
    )


def interpreted(
    points: Sequence[tuple[Point, Waived]], start: Callable[[], Worker], spent: Callable[[], bool] = lambda: False
) -> Iterator[Result]:
    """Yield the result of each point: waived and checked, or failed where its kernel is wrong.

    Args:
        points: Points with why they cannot be timed.
        start: Starts the worker that checks them; it is called when there is anything to check, and again after a
            check took the process down.
        spent: Tells whether the budget of the run is over; what is left is then waived unchecked, and says so.
    """
    worker: Worker | None = None
    for point, waived in points:
        if spent():
            text = f"{waived.reason}; the budget ended before its result was checked (missing: {waived.missing})"
            yield unmeasured(point, State.WAIVED, text)
            continue
        try:
            worker = worker or start()
            answer = worker.ask(
                "interpret", limit_s=LIMIT_S, benchmark=point.benchmark, impl=point.impl, params=parameters_of(point)
            )
        except (OrderFailedError, WorkerLostError) as error:
            worker = None if isinstance(error, WorkerLostError) else worker
            yield unmeasured(point, State.FAILED, f"its check in interpret mode ended with: {error}")
            continue
        ratio, against = answer["check"]["error_ratio"], answer["check"]["against"]
        if ratio is None or ratio > 1.0:
            how = "is not finite" if ratio is None else f"is {ratio:.3g} times its tolerance away from {against}"
            yield unmeasured(point, State.FAILED, f"its result in interpret mode ({answer['shape']}) {how}")
            continue
        text = (
            f"{waived.reason}: checked in interpret mode, not timed ({answer['shape']}: error {ratio:.2g} of its "
            f"tolerance against {against}) (missing: {waived.missing})"
        )
        yield dataclasses.replace(unmeasured(point, State.WAIVED, text), audit={"interpreted": answer})
