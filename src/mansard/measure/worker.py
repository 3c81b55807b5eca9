"""Measures one backend in a process of its own, so that its threads and settings touch nothing else.

Called as `python -m mansard.measure.worker REQUEST` with a JSON request; the answer is one JSON object on standard
output. Whatever a framework prints goes to standard error. The parent sets affinity and thread variables before this
process starts, and owns the time limit.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from mansard.measure.backends.case import ACCUMULATE, SPECIAL, Backend, Case

MATRIX_SIZES = (512, 1024, 2048)
SMALL_SIZES = (128, 256)  # never reported: they predict the time of the others and warm up
SPECIAL_COUNTS = (2**13, 2**16)  # elements per thread: in L1, and in L2
LONGEST_CALL_S = 0.16  # a call predicted to take longer is not made
LIMIT_S = 8.0  # no new round after this
TRIES = 4  # a busy machine makes a first call look long; the best of a few predicts
SAMPLE_S = 4e-3
WINDOW_S = 0.03
DISPATCH_BATCH_S = 2e-3
DISPATCH_BATCHES = 60

Point = dict[str, Any]


def load(backend: str, threads: int) -> Backend:
    """Return a backend by name; importing its framework happens here."""
    if backend == "numpy":
        from mansard.measure.backends.with_numpy import NumpyBackend

        return NumpyBackend(threads)
    if backend == "torch":
        from mansard.measure.backends.with_torch import TorchBackend

        return TorchBackend(threads)
    if backend == "jax":
        from mansard.measure.backends.with_jax import JaxBackend

        return JaxBackend(threads)
    raise ValueError(f"unknown backend {backend!r}")


def timed(case: Case, count: int) -> float:
    """Return the wall time of one call, the mean over `count` of them back to back [s]."""
    start = time.perf_counter()
    case.run(count)
    return (time.perf_counter() - start) / count


def quickest(case: Case) -> float:
    """Return the shortest of a few calls [s]; long ones are tried less often."""
    best = timed(case, 1)
    for _ in range(TRIES - 1):
        if best < LONGEST_CALL_S / 2:
            best = min(best, timed(case, 1))
    return best


def predict(seconds: float, size: int, next_size: int) -> float:
    """Return the time a square product of `next_size` should take, from one of `size` [s]: it grows with the cube.

    >>> predict(0.001, 512, 1024)
    0.008
    """
    return seconds * (next_size / size) ** 3


def window(case: Case, work: float, call_s: float) -> list[float]:
    """Return the rates of one window of samples [work/s]; each sample is long enough for the clock.

    Args:
        case: What to call.
        work: FLOP or evaluations of one call.
        call_s: Expected time of one call [s].
    """
    count = max(1, round(SAMPLE_S / max(call_s, 1e-7)))
    rates: list[float] = []
    end = time.perf_counter() + WINDOW_S
    while len(rates) < 2 or time.perf_counter() < end:
        rates.append(work / timed(case, count))
    return rates


def prepare_gemm(
    backend: Backend, dtypes: Sequence[str], sizes: Sequence[int] = MATRIX_SIZES
) -> tuple[list[tuple[Point, Case, float]], list[Point]]:
    """Return the products worth timing with their expected time, and those that were left out with the reason."""
    ready: list[tuple[Point, Case, float]] = []
    skipped: list[Point] = []
    for dtype in dtypes:
        size, seconds = SMALL_SIZES[0], 0.0
        point: Point = {"group": "matrix", "dtype": dtype, "accumulate": ACCUMULATE[dtype]}
        for next_size in (*SMALL_SIZES, *sizes):
            expected = predict(seconds, size, next_size)
            if expected > LONGEST_CALL_S:
                text = f"one call of {next_size} would take about {expected:.2g} s"
                skipped.append({**point, "size": next_size, "reason": text})
                break
            try:
                case = backend.gemm(dtype, next_size)
                if case is None:
                    skipped.append({**point, "size": next_size, "reason": "no such call"})
                    break
                case.run(1)
                size, seconds = next_size, quickest(case)
                error = case.error()
            except (RuntimeError, TypeError, ValueError, NotImplementedError) as problem:
                skipped.append({**point, "size": next_size, "reason": str(problem).splitlines()[0][:200]})
                break
            if not error <= 1.0:
                text = f"wrong result: the error is {error:.3g} times the tolerance"
                skipped.append({**point, "size": next_size, "reason": text, "wrong": True})
                break
            if next_size in sizes:
                ready.append(({**point, "size": size, "work": 2.0 * size**3, "call": case.call}, case, seconds))
    return ready, skipped


def prepare_special(backend: Backend, threads: int) -> tuple[list[tuple[Point, Case, float]], list[Point]]:
    """Return the special functions of a backend on cache-resident arrays, and those it lacks."""
    ready: list[tuple[Point, Case, float]] = []
    skipped: list[Point] = []
    for function in SPECIAL:
        for dtype in ("f32", "f64"):
            for count in SPECIAL_COUNTS:
                point: Point = {"group": "special", "dtype": dtype, "function": function, "size": count * threads}
                try:
                    case = backend.special(function, dtype, count * threads)
                    if case is None:
                        break
                    case.run(2)
                    seconds = timed(case, 2)
                    error = case.error()
                except (RuntimeError, TypeError, ValueError, NotImplementedError) as problem:
                    skipped.append({**point, "reason": str(problem).splitlines()[0][:200]})
                    break
                if not error <= 1.0:
                    text = f"wrong result: the error is {error:.3g} times the tolerance"
                    skipped.append({**point, "reason": text, "wrong": True})
                    break
                ready.append(({**point, "work": float(count * threads), "call": case.call}, case, seconds))
    return ready, skipped


def measure_dispatch(backend: Backend) -> list[Point]:
    """Return the wall time per call of the smallest operation [s], one value per batch."""
    points = []
    for how, case in backend.dispatch().items():
        case.run(200)
        seconds = timed(case, 200)
        count = max(10, round(DISPATCH_BATCH_S / max(seconds, 1e-8)))
        times = [timed(case, count) for _ in range(DISPATCH_BATCHES)]
        if case.error() > 0.0:
            raise RuntimeError(f"{backend.name}: the smallest operation gave a wrong result")
        points.append({"group": "latency", "how": how, "call": case.call, "times_s": times, "calls_per_batch": count})
    return points


def answer(request: dict[str, Any], make: Callable[[str, int], Backend] = load) -> dict[str, Any]:
    """Return the points of a request.

    Args:
        request: `backend`, `threads`, `groups`, `dtypes` of the matrix group, `rounds`.
        make: Makes the backend.

    Every window of a round follows every other one, so that the windows of one point lie apart.
    """
    backend = make(request["backend"], request["threads"])
    groups = request["groups"]
    ready: list[tuple[Point, Case, float]] = []
    skipped: list[Point] = []
    if "matrix" in groups:
        ready, skipped = prepare_gemm(backend, request["dtypes"])
    if "special" in groups:
        more, less = prepare_special(backend, request["threads"])
        ready, skipped = ready + more, skipped + less
    windows: list[list[list[float]]] = [[] for _ in ready]
    begin = time.perf_counter()
    for turn in range(request["rounds"]):
        if turn and time.perf_counter() - begin > LIMIT_S:
            break
        for found, (point, case, seconds) in zip(windows, ready, strict=True):
            found.append(window(case, point["work"], seconds))
    points = [{**point, "windows": found} for found, (point, _, _) in zip(windows, ready, strict=True)]
    if "latency" in groups:
        points += measure_dispatch(backend)
    return {"backend": backend.name, "points": points, "skipped": skipped}


def main(arguments: Sequence[str]) -> int:
    """Answer the request of the command line on standard output."""
    own = os.dup(1)
    os.dup2(2, 1)  # whatever a framework prints on stdout must not break the answer
    result = answer(json.loads(arguments[0]))
    with os.fdopen(own, "w", encoding="utf-8") as stream:
        json.dump(result, stream)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
