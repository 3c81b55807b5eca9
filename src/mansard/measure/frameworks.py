"""Runs the backends in processes of their own and turns their points into ceilings."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mansard.core.ceilings import Area, Ceiling, Kind, Resource
from mansard.core.stats import median_interval
from mansard.measure.envelope import envelope
from mansard.measure.load import LoadWindow
from mansard.measure.store import BUSY_RATIO

BACKENDS = ("numpy", "torch", "jax")
MATRIX_DTYPES = ("f32", "f64", "bf16", "f16", "i8")
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
SLOWING_PREFIXES = ("OPENBLAS_", "GOTO_")  # settings that pick another kernel or blocking for NumPy's BLAS
TIME_LIMIT_S = 90.0


@dataclass(slots=True)
class FrameworkResult:
    """What the backends found."""

    ceilings: list[Ceiling] = field(default_factory=list)
    findings: list[dict[str, str]] = field(default_factory=list)
    skipped: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One process to run.

    Args:
        backend: `numpy`, `torch` or `jax`.
        scope: `core` or `node`.
        cpus: The CPUs it may use; one thread each.
        groups: `matrix`, `special`, `latency`.
        rounds: Separated windows of each point.
        without: Environment variables taken away.
    """

    backend: str
    scope: str
    cpus: tuple[int, ...]
    groups: tuple[str, ...]
    rounds: int = 3
    without: tuple[str, ...] = ()


def installed(names: Iterable[str] = BACKENDS) -> tuple[str, ...]:
    """Return which backends can be imported, without importing them."""
    return tuple(name for name in names if importlib.util.find_spec(name) is not None)


def environment_of(request: Request, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of a worker: threads stated, the variables of `without` gone."""
    env = dict(os.environ if environ is None else environ)
    for name in request.without:
        env.pop(name, None)
    for name in THREAD_VARIABLES:
        env[name] = str(len(request.cpus))
    env["JAX_PLATFORMS"] = "cpu"
    source = str(Path(__file__).resolve().parents[2])
    env["PYTHONPATH"] = os.pathsep.join(p for p in (source, env.get("PYTHONPATH", "")) if p)
    return env


def ask(request: Request, *, limit_s: float = TIME_LIMIT_S) -> dict[str, Any]:
    """Run one worker and return its answer, or `{"failed": reason}`.

    The affinity of this thread is narrowed while the child starts, so that the child is born with it.
    """
    body = {
        "backend": request.backend, "threads": len(request.cpus), "groups": list(request.groups),
        "dtypes": list(MATRIX_DTYPES), "rounds": request.rounds,
    }  # fmt: skip
    command = [sys.executable, "-m", "mansard.measure.worker", json.dumps(body)]
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, set(request.cpus))
    try:
        child = subprocess.Popen(
            command,
            env=environment_of(request),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    finally:
        os.sched_setaffinity(0, before)
    try:
        out, err = child.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        return {"failed": f"no answer within {limit_s:.0f} s"}
    finally:
        if child.poll() is None:
            child.kill()
            child.communicate()
    if child.returncode != 0:
        lines = [line for line in err.decode(errors="replace").splitlines() if line.strip()]
        return {"failed": lines[-1][:300] if lines else f"exit code {child.returncode}"}
    try:
        answer = json.loads(out)
    except json.JSONDecodeError:
        return {"failed": "the answer is not JSON"}
    return dict(answer)


def to_ceilings(answer: Mapping[str, Any], request: Request, foreign_ratio: float) -> list[Ceiling]:
    """Return the ceilings of one worker's answer: the best size per (dtype, call), the functions one by one."""
    best: dict[tuple[Any, ...], Ceiling] = {}
    common: dict[str, Any] = {
        "backend": request.backend,
        "threads": len(request.cpus),
        "foreign_load_ratio": foreign_ratio,
    }
    if request.without:
        common["environment_without"] = list(request.without)
    for point in answer["points"]:
        if point["group"] == "latency":
            continue
        found = envelope(point["windows"])
        special = point["group"] == "special"
        resource = Resource(
            area=Area.COMPUTE,
            dtype=point["dtype"],
            accumulate=None if special else point["accumulate"],
            engine="special" if special else "matrix",
        )
        what = {"function": point["function"]} if special else {}
        ceiling = Ceiling(
            resource=resource,
            value=found.value,
            unit="1/s" if special else "FLOP/s",
            kind=Kind.MEASURED,
            scope=request.scope,
            ci95=(found.low, found.high),
            conditions={"call": point["call"], "size": point["size"], **what, **common, **found.conditions()},
            source=f"timed {request.backend} call, result checked",
        )
        key = (resource, point["call"])
        if key not in best or best[key].value < ceiling.value:
            best[key] = ceiling
    return [*best.values(), *_latency(answer, request, common)]


def _latency(answer: Mapping[str, Any], request: Request, common: Mapping[str, Any]) -> list[Ceiling]:
    points = {p["how"]: p for p in answer["points"] if p["group"] == "latency"}
    if "back_to_back" not in points:
        return []
    point = points["back_to_back"]
    summary = median_interval(point["times_s"])
    conditions = {
        "call": point["call"], "median": summary.median, "best": summary.best, "samples": summary.count,
        "calls_per_sample": point["calls_per_batch"], **common,
    }  # fmt: skip
    if "blocking" in points:
        conditions["blocking_s"] = median_interval(points["blocking"]["times_s"]).median
    return [
        Ceiling(
            resource=Resource(area=Area.LATENCY, backend=request.backend),
            value=summary.median,
            unit="s",
            kind=Kind.MEASURED,
            scope=request.scope,
            ci95=(summary.low, summary.high),
            conditions=conditions,
            source="median wall time of one call among many back to back",
        )
    ]


def requests_for(
    backends: Sequence[str], cpus: Sequence[int], groups: Sequence[str], environ: Mapping[str, str] | None = None
) -> list[Request]:
    """Return the processes to run: each backend on one core and on all, NumPy also without slowing variables."""
    env = os.environ if environ is None else environ
    scopes = {"core": tuple(cpus[:1]), "node": tuple(cpus)}
    wanted: list[Request] = []
    for backend in backends:
        for scope, chosen in scopes.items():
            mine = tuple(g for g in groups if g != "latency" or scope == "node")
            if mine:
                wanted.append(Request(backend=backend, scope=scope, cpus=chosen, groups=mine))
    slowing = tuple(sorted(n for n in env if n.startswith(SLOWING_PREFIXES) and n not in THREAD_VARIABLES))
    if slowing and "numpy" in backends and "matrix" in groups:
        wanted += [
            Request(backend="numpy", scope=s, cpus=c, groups=("matrix",), rounds=2, without=slowing)
            for s, c in scopes.items()
        ]
    return wanted


def measure_frameworks(
    backends: Sequence[str],
    cpus: Sequence[int],
    groups: Sequence[str],
    *,
    progress: Callable[[float, str], None] = lambda _share, _name: None,
) -> FrameworkResult:
    """Measure matrix products, special functions and dispatch through every backend that is installed."""
    result = FrameworkResult()
    wanted = requests_for(backends, cpus, groups)
    for number, request in enumerate(wanted):
        progress(number / len(wanted), request.backend)
        with LoadWindow() as load:
            answer = ask(request)
        if "failed" in answer:
            text = f"{request.backend} ({request.scope}) was not measured: {answer['failed']}"
            result.findings.append({"code": "backend_failed", "text": text})
            continue
        result.ceilings += to_ceilings(answer, request, load.foreign_ratio)
        for item in answer["skipped"]:
            result.skipped.append({"backend": request.backend, "scope": request.scope, **item})
            if item.get("wrong"):
                name = f"{item['dtype']} {item.get('function', 'product')}"
                text = f"{request.backend} {name} refused: {item['reason']}"
                result.findings.append({"code": "wrong_result", "text": text})
    result.findings += slowed_findings(result.ceilings)
    return result


def slowed_findings(ceilings: Iterable[Ceiling]) -> list[dict[str, str]]:
    """Return what the environment costs NumPy's products, where both ways were measured while nobody else worked."""
    pairs: dict[tuple[str, str], dict[bool, Ceiling]] = {}
    for c in ceilings:
        if c.conditions.get("backend") == "numpy" and c.resource.engine == "matrix":
            clean = "environment_without" in c.conditions
            pairs.setdefault((c.scope, str(c.resource.dtype)), {})[clean] = c
    findings = []
    for (scope, dtype), both in pairs.items():
        if len(both) < 2:
            continue
        ratio = both[True].value / both[False].value
        names = ", ".join(both[True].conditions["environment_without"])
        if ratio > 1.05:
            load = max(float(c.conditions.get("foreign_load_ratio") or 0.0) for c in both.values())
            if load > BUSY_RATIO:  # two looks at a busy machine differ for that reason alone
                continue
            text = (
                f"{names} slow NumPy's {dtype} products on one {scope}: without them they run {ratio:.2f} times as fast"
            )
            findings.append({"code": "blas_slowed_by_environment", "text": text})
    return findings
