"""Measures the points of one backend in a process of its own, on orders that come one by one.

Called as `python -m mansard.measure.points.worker`. An order is one line of JSON on standard input, its answer one line
on standard output; whatever a framework prints goes to standard error. The parent sets affinity, thread variables and
flags before this process starts, owns the time limits, and ends it by closing its input.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mansard.core.document import to_jsonable
from mansard.core.errors import MansardError
from mansard.core.unknown import Unknown
from mansard.measure.points import timing
from mansard.measure.points.benchmark import Check, CompilerCount, Interpretable, Operand, Prepared, Where
from mansard.measure.points.conditions import Watch
from mansard.measure.points.flush import flush_for
from mansard.measure.points.registry import benchmark_named

FLOOR_SAMPLES = 40
FLOOR_CALLS = 20
FLOOR_LEAST = 5  # samples, however long an empty call takes
FLOOR_MOST_S = 0.5  # of looking at it: one to a hundred devices takes milliseconds
SYNC_TRIES = 3
COLD_LOOK = timing.Limits(least_samples=5, most_samples=5)


@dataclass(slots=True)
class Held:
    """One prepared point with what is known of it."""

    prepared: Prepared
    per_sample: int = 1
    flush: Callable[[], None] | None = None
    taken: list[float] = field(default_factory=list)


def where_of(backend: str, threads: int, cpus: tuple[int, ...]) -> Where:
    """Return what this process runs on, as the backend says; its framework is imported here."""
    platform, devices, name, memory = "cpu", 1, "", None
    if backend == "jax":
        import jax

        found = jax.devices()
        platform, devices, name = found[0].platform, len(found), str(found[0].device_kind)
        platform = {"cuda": "gpu", "rocm": "gpu"}.get(platform, platform)
        stats = getattr(found[0], "memory_stats", lambda: None)()
        memory = float(stats["bytes_limit"]) if stats and "bytes_limit" in stats else None
    elif backend == "torch":
        import torch

        torch.set_num_threads(threads)
        if torch.cuda.is_available():
            platform, devices, name = "gpu", torch.cuda.device_count(), torch.cuda.get_device_name(0)
            memory = float(torch.cuda.get_device_properties(0).total_memory)
    if platform == "cpu":
        from mansard.hardware.host import cpu_model, meminfo

        name, memory = cpu_model(), meminfo("MemAvailable")
    return Where(
        backend=backend, platform=platform, devices=devices, threads=threads, cpus=cpus, memory_bytes=memory,
        device_name=name,
    )  # fmt: skip


def empty_call(backend: str, threads: int, cpus: tuple[int, ...]) -> Any:
    """Return a call that does what a dispatch of the backend does, and no work, until it has finished."""
    if backend in ("jax", "torch", "numpy"):
        from mansard.measure.worker import load

        if backend == "jax":
            import jax

            x, y = jax.numpy.float32(1.0), jax.numpy.float32(2.0)
            add = jax.jit(lambda a, b: a + b)
            return lambda: jax.block_until_ready(add(x, y))
        if backend == "torch":
            import torch

            if torch.cuda.is_available():
                one = torch.ones(1, device="cuda")

                def waited() -> None:
                    torch.add(one, one)
                    torch.cuda.synchronize()

                return waited
        case = load(backend, threads).dispatch()["back_to_back"]
        return lambda: case.run(1)
    from mansard.measure.team import Team

    team = Team(cpus)
    return lambda: team.each(lambda _i: None)


def floor_of(call: Any, now: Any = time.perf_counter) -> float:
    """Return the median time of an empty call, each waited for [s]; of a long one fewer are made."""
    begin = last = now()
    call_s = 0.0
    for _ in range(FLOOR_CALLS):
        call()
        call_s, last = now() - last, now()
        if last - begin > FLOOR_MOST_S / 4.0:
            break
    room = FLOOR_MOST_S / FLOOR_SAMPLES / max(call_s, 1e-9)
    calls = int(min(FLOOR_CALLS, max(1.0, room)))
    times: list[float] = []
    begin = now()
    while len(times) < FLOOR_SAMPLES and (len(times) < FLOOR_LEAST or now() - begin < FLOOR_MOST_S):
        start = now()
        for _ in range(calls):
            call()
        times.append((now() - start) / calls)
    return float(np.median(times))


def count_to_json(count: CompilerCount | Unknown) -> dict[str, Any]:
    """Return what a compiler said as JSON."""
    if isinstance(count, Unknown):
        return count.to_json()
    plain: dict[str, Any] = to_jsonable(count)
    return plain


def operand_facts(operand: Operand) -> dict[str, Any]:
    """Return what the audit needs of one array: size, place, and how its elements are distributed."""
    facts: dict[str, Any] = {
        "name": operand.name, "role": operand.role, "bytes": float(operand.bytes), "address": operand.address,
    }  # fmt: skip
    if operand.values is None:
        return facts
    x = np.asarray(operand.values)
    x = np.abs(x) if np.iscomplexobj(x) else x
    x = x.astype(np.float64).ravel()
    finite = x[np.isfinite(x)]
    facts.update(
        looked_at=int(x.size),
        not_finite=int(x.size - finite.size),
        zeros=int(np.count_nonzero(finite == 0.0)),
        distinct=int(np.unique(finite).size),
        denormal=int(np.count_nonzero((finite != 0.0) & (np.abs(finite) < np.finfo(np.float32).tiny))),
    )
    return facts


class Server:
    """Answers orders; every answer is plain JSON."""

    def __init__(self) -> None:
        self._held: dict[str, Held] = {}
        self._where: Where | None = None
        self._floor_s = 0.0
        self._interpreted: dict[tuple[str, str], dict[str, Any]] = {}
        self._flush: tuple[Callable[[], None], dict[str, Any]] | None = None

    def open(self, backend: str, threads: int, cpus: list[int], with_floor: bool = True) -> dict[str, Any]:
        """Import the backend and return what it runs on and what an empty call costs."""
        self._where = where_of(backend, threads, tuple(cpus))
        if with_floor:
            self._floor_s = floor_of(empty_call(backend, threads, tuple(cpus)))
        if backend == "torch":  # the empty call needs no gradients and switched them off for the whole process
            import torch

            torch.set_grad_enabled(True)
        return {"where": to_jsonable(self._where), "floor_s": self._floor_s, "pid": os.getpid()}

    def prepare(
        self, key: str, benchmark: str, impl: str, params: Mapping[str, Any], warmup_tries: int, warmup_s: float,
        warmup_most_s: float, per_sample: int | None = None, cold: bool = False,
    ) -> dict[str, Any]:  # fmt: skip
        """Make, compile, call once, verify, warm up and calibrate a point; it stays ready."""
        assert self._where is not None
        begin = time.perf_counter()
        prepared = benchmark_named(benchmark).prepare(params, impl, self._where)
        prepare_s = time.perf_counter() - begin
        held = Held(prepared=prepared)
        self._held[key] = held
        cold_s = timing.one_sample(prepared, 1)
        check = prepared.verify()
        count = prepared.count_by_compiler()
        warm = timing.warm_up(prepared, least=warmup_tries, least_s=warmup_s, most_s=warmup_most_s)
        call_s = float(np.median(warm.seconds[-timing.STEADY_BLOCK :]))
        facts = dict(prepared.facts)
        if cold:
            held.flush, more = self._flush_once()
            facts |= {"cache": "cold", **more}
            call_s = float(np.median(timing.take_window(prepared, 1, COLD_LOOK, flush=held.flush).seconds))
            per_sample = 1  # a second call in the same sample would find what the first one left
        floor_s = self._floor_s
        if prepared.empty is not None:
            floor_s = floor_of(prepared.empty)
        held.per_sample = per_sample or timing.calibrate(call_s, floor_s, timing.timer_floor())
        if prepared.facts.get("repeats_inside"):  # one dispatch holds all operations of a sample
            floor_s /= held.per_sample
        return {
            "prepare_s": prepare_s, "compile_s": prepared.compile_s, "cold_s": cold_s, "check": _check(check),
            "count": count_to_json(count), "facts": to_jsonable(facts),
            "inputs_are_constant": prepared.inputs_are_constant, "output_is_fresh": prepared.output_is_fresh,
            "warmup_s": list(warm.seconds), "steady": warm.steady, "call_s": call_s, "floor_s": floor_s,
            "per_sample": held.per_sample, "has_chain": prepared.chain is not None and not cold,
        }  # fmt: skip

    def interpret(self, benchmark: str, impl: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Check a kernel for an accelerator in interpret mode, once for each shape it is checked at."""
        known = benchmark_named(benchmark)
        assert isinstance(known, Interpretable)
        assert known.interpret is not None
        text, check = known.interpret(params, impl)
        if (impl, text) not in self._interpreted:
            self._interpreted[impl, text] = _check(check())
        return {"shape": text, "check": self._interpreted[impl, text]}

    def _flush_once(self) -> tuple[Callable[[], None], dict[str, Any]]:
        """Return what empties the caches; its memory is shared by all cold points of this process."""
        assert self._where is not None
        if self._flush is None:
            self._flush = flush_for(self._where)
        return self._flush

    def window(self, key: str, limits: Mapping[str, Any], before: list[float] | None = None) -> dict[str, Any]:
        """Take one window of samples, and say what the machine did meanwhile."""
        held = self._held[key]
        rewarm_s = timing.one_sample(held.prepared, 1)  # other points came in between: caches and clocks are theirs
        with Watch() as watch:
            found = timing.take_window(
                held.prepared, held.per_sample, timing.Limits(**limits), before=[*(before or []), *held.taken],
                flush=held.flush,
            )  # fmt: skip
        held.taken += found.seconds
        return {
            "seconds": list(found.seconds), "per_sample": held.per_sample, "stopped_by": found.stopped_by,
            "rewarm_s": rewarm_s, "seen": watch.seen,
        }  # fmt: skip

    def slope(self, key: str, most_s: float = math.inf) -> dict[str, Any]:
        """Return time per operation and fixed cost from chains inside one dispatch, where the point has one and they fit."""
        chain = self._held[key].prepared.chain
        found = timing.slope(chain, most_s=most_s) if chain is not None else None
        return {"slope_s": found[0] if found else None, "fixed_s": found[1] if found else None}

    def drop(self, key: str) -> dict[str, Any]:
        """Release a point that is not measured."""
        prepared = self._held.pop(key).prepared
        if prepared.close is not None:
            prepared.close()
        return {}

    def finish(self, key: str, sync: bool = True) -> dict[str, Any]:
        """Verify the result again, look at the arrays, ask whether `run` waits for its work, and release the point."""
        held = self._held.pop(key)
        prepared = held.prepared
        try:
            check = _check(prepared.verify())
            after = dict(prepared.facts_after()) if prepared.facts_after is not None else {}
            operands = [operand_facts(o) for o in prepared.operands()] if prepared.operands is not None else None
            lag = unwaited_s(prepared) if sync else None
            return {
                "check": check, "operands": operands, "unwaited": lag,
                "facts_after": to_jsonable(after),
            }  # fmt: skip
        finally:
            if prepared.close is not None:
                prepared.close()


def unwaited_s(prepared: Prepared, now: Any = time.perf_counter) -> dict[str, float]:
    """Return how much longer the check takes right after a call than when nothing is under way [s].

    A benchmark that does not wait for its result hands the wait to whoever reads it next. The check reads it: after a
    call that waited, it takes as long as it takes at rest. The result has been checked once before, which ended whatever the
    samples had left under way.
    """

    def checked() -> float:
        start = now()
        prepared.verify()
        return float(now() - start)

    def pair() -> dict[str, float]:
        rest = checked()
        start = now()
        prepared.run(1)
        ran = float(now() - start)
        return {"run_s": ran, "check_s": checked(), "check_at_rest_s": rest}

    def lag(seen: dict[str, float]) -> float:
        return seen["check_s"] - seen["check_at_rest_s"]

    best = pair()
    for _ in range(SYNC_TRIES - 1):
        # A call that does not wait lags in every pair; another program that takes the processor does so in some.
        if not timing.returns_early(best):
            break
        best = min(best, pair(), key=lag)
    return best


def _check(check: Check) -> dict[str, Any]:
    ratio = float(check.error_ratio)
    return {"error_ratio": ratio if math.isfinite(ratio) else None, "against": check.against}


def reply_to(server: Server, order: Mapping[str, Any]) -> dict[str, Any]:
    """Carry out one order; what goes wrong becomes part of the answer."""
    try:
        arguments = {k: v for k, v in order.items() if k != "op"}
        return {"ok": getattr(server, str(order["op"]))(**arguments)}
    except MansardError as error:
        return {"error": {"message": error.message, "hint": error.hint, "code": error.code, "where": ""}}
    except Exception as error:  # whatever a framework raises belongs to its point, not to the run
        last = traceback.extract_tb(error.__traceback__)[-1]
        lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        where = f"{os.path.basename(last.filename)}:{last.lineno}"
        message = f"{type(error).__name__}: {lines[0][:400]}"
        return {"error": {"message": message, "hint": "", "code": "benchmark_failed", "where": where}}


def _die_with_parent() -> None:
    """Ask Linux to end this process when its parent ends, so that a killed run leaves nothing behind."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL)  # 1 = PR_SET_PDEATHSIG


def main() -> int:
    """Serve until the input ends."""
    _die_with_parent()
    own = os.dup(1)
    os.dup2(2, 1)  # whatever a framework prints on standard output must not break an answer
    server = Server()
    with os.fdopen(own, "w", encoding="utf-8") as stream:
        for line in sys.stdin:
            answer = reply_to(server, json.loads(line))
            stream.write(json.dumps(to_jsonable(answer), allow_nan=False) + "\n")
            stream.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
