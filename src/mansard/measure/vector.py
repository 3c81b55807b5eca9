"""The vector peak by FMA chains, audited against the clock."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mansard.core.ceilings import Area, Ceiling, Kind, Resource
from mansard.measure import kernels
from mansard.measure.envelope import envelope
from mansard.measure.memory import as_node
from mansard.measure.team import Team

# The most any CPU core does per cycle: two 512-bit pipes (x86, A64FX) or four 128-bit ones, two FLOP per FMA.
MOST_FLOP_PER_CYCLE = {"f32": 64.0, "f64": 32.0}
TOLERANCE = 0.08  # of the clock estimate, which is itself a measurement under another load
FACTOR: dict[str, Any] = {"f32": np.float32(0.999), "f64": np.float64(0.999)}
TERM: dict[str, Any] = {"f32": np.float32(1e-6), "f64": np.float64(1e-6)}
SAMPLE_FLOP = 4e8  # per thread: about 2 ms at 200 GFLOP/s


@dataclass(slots=True)
class VectorResult:
    """What the vector group found.

    Args:
        ceilings: FMA peaks.
        clock_hz: The estimated clock of one core under load [Hz].
        findings: What was refused, and why.
    """

    ceilings: list[Ceiling] = field(default_factory=list)
    clock_hz: float | None = None
    findings: list[dict[str, str]] = field(default_factory=list)


def fma_flop(lanes: int, accumulators: int, steps: int) -> float:
    """Return the FLOP of one sample of one thread: 2 per lane, accumulator and step.

    >>> fma_flop(16, 12, 1000)
    384000.0
    """
    return 2.0 * lanes * accumulators * steps


def expected_sum(lanes: int, accumulators: int, steps: int, x: float, y: float) -> float:
    """Return what `fma_kernel` must return: the sum over lanes and accumulators k of x^n k + y (1 - x^n)/(1 - x).

    >>> expected_sum(1, 2, 1, 0.5, 3.0)
    6.5
    """
    power = math.pow(x, steps)
    geometric = y * (1.0 - power) / (1.0 - x)
    return lanes * sum(power * k + geometric for k in range(accumulators))


def audit_rate(flop_per_s: float, dtype: str, clock_hz: float | None, threads: int) -> str | None:
    """Return why a vector rate cannot be true, or None.

    Args:
        flop_per_s: The rate of all threads [FLOP/s].
        dtype: `f32` or `f64`.
        clock_hz: The estimated clock [Hz]; None where it is not known, and then nothing is refused.
        threads: How many cores worked.

    >>> audit_rate(470e9, "f32", 3.67e9, 1)
    '128 FLOP per cycle and core, at most 64 are possible: the loop was folded, or the clock is wrong'
    >>> audit_rate(117.7e9, "f32", 3.67e9, 1) is None
    True
    """
    if clock_hz is None:
        return None
    per_cycle = flop_per_s / threads / clock_hz
    most = MOST_FLOP_PER_CYCLE[dtype]
    if per_cycle <= most * (1.0 + TOLERANCE):
        return None
    return (
        f"{per_cycle:.0f} FLOP per cycle and core, at most {most:.0f} are possible: "
        "the loop was folded, or the clock is wrong"
    )


def low_rate(flop_per_s: float, dtype: str, clock_hz: float | None, threads: int) -> str | None:
    """Return why a vector rate is suspiciously low, or None: no usual pipe and width explains it.

    >>> low_rate(50e9, "f32", 3.67e9, 1)
    '13.6 FLOP per cycle and core lies between 8 and 16, which pipes x lanes x 2 give: spilled registers or a busy machine'
    """
    if clock_hz is None:
        return None
    per_cycle = flop_per_s / threads / clock_hz
    steps = [2.0 * lanes * pipes for lanes in (2, 4, 8, 16) for pipes in (1, 2, 4)]
    usual = sorted({s for s in steps if s <= MOST_FLOP_PER_CYCLE[dtype]})
    below = max((s for s in usual if s <= per_cycle * (1.0 + TOLERANCE)), default=0.0)
    above = min((s for s in usual if s > per_cycle), default=per_cycle)
    if below >= per_cycle * (1.0 - TOLERANCE):
        return None
    return (
        f"{per_cycle:.1f} FLOP per cycle and core lies between {below:.0f} and {above:.0f}, which pipes x lanes x 2 give: "
        "spilled registers or a busy machine"
    )


def clock_hz(team: Team, samples: int = 12) -> float:
    """Return the clock of the fastest core of the team [Hz], estimated: a dependent chain of one-cycle operations."""
    kernel = kernels.clock_kernel()
    steps = 40_000
    team.sample(kernel, lambda _i: (steps, 12345, 987_654_321), 2)
    wall_s, _ = team.sample(kernel, lambda _i: (steps, 12345, 987_654_321), samples)
    return float(kernels.CLOCK_STEPS * steps / wall_s.min())


def fma_rates(team: Team, dtype: str, lanes: int, accumulators: int, samples: int) -> Any:
    """Return `samples` rates of the FMA chain over the team [FLOP/s], checked against the value worked out by hand.

    Raises:
        ValueError: the chain returned another value than the recurrence gives.
    """
    kernel = kernels.fma_kernel(dtype, lanes, accumulators)
    steps = int(SAMPLE_FLOP / fma_flop(lanes, accumulators, 1))
    x, y = FACTOR[dtype], TERM[dtype]
    wall_s, results = team.sample(kernel, lambda _i: (steps, x, y), samples)
    wanted = expected_sum(lanes, accumulators, steps, float(x), float(y))
    for got in results:
        if not abs(float(got) - wanted) <= 1e-2 * abs(wanted):
            raise ValueError(f"the FMA chain of {dtype} x {lanes} returned {got}, expected {wanted}")
    return fma_flop(lanes, accumulators, steps) * len(team) / wall_s


def measure_vector(
    cpus: Sequence[int],
    *,
    dtypes: Sequence[str] = ("f32", "f64"),
    rounds: int = 4,
    samples: int = 8,
    progress: Callable[[float], None] = lambda _share: None,
) -> VectorResult:
    """Measure the FMA peak of one core and of the team; a rate the clock rules out is refused."""
    result = VectorResult()
    scopes = {"core": tuple(cpus[:1]), "node": tuple(cpus)} if len(cpus) > 1 else {"core": tuple(cpus)}
    teams = {scope: Team(chosen) for scope, chosen in scopes.items()}
    windows: dict[tuple[str, str, int, int], list[Any]] = {}
    try:
        clocks = []
        for turn in range(rounds):
            clocks.append(clock_hz(teams["core"]))
            for scope, team in teams.items():
                for dtype in dtypes:
                    for lanes, accumulators in kernels.vector_shapes(dtype):
                        rates = fma_rates(team, dtype, lanes, accumulators, samples)
                        windows.setdefault((scope, dtype, lanes, accumulators), []).append(rates)
            progress((turn + 1) / rounds)
        result.clock_hz = max(clocks)
    finally:
        for team in teams.values():
            team.__exit__(None, None, None)
    for scope, team in teams.items():
        for dtype in dtypes:
            _keep(result, scope, dtype, len(team), {k: v for k, v in windows.items() if k[:2] == (scope, dtype)})
    if len(cpus) == 1:
        result.ceilings += [as_node(c) for c in result.ceilings]
    return result


def _keep(
    result: VectorResult, scope: str, dtype: str, threads: int, windows: dict[tuple[str, str, int, int], list[Any]]
) -> None:
    found, key = max(((envelope(v), k) for k, v in windows.items()), key=lambda pair: pair[0].value)
    wrong = audit_rate(found.value, dtype, result.clock_hz, threads)
    if wrong:
        result.findings.append(
            {"code": "implausible_vector_peak", "text": f"{dtype} vector peak of one {scope}: {wrong}"}
        )
        return
    low = low_rate(found.value, dtype, result.clock_hz, threads)
    if low:
        result.findings.append({"code": "low_vector_peak", "text": f"{dtype} vector peak of one {scope}: {low}"})
    conditions: dict[str, Any] = {"threads": threads, "lanes": key[2], "accumulators": key[3], **found.conditions()}
    if result.clock_hz:
        conditions["flop_per_cycle_per_core"] = found.value / threads / result.clock_hz
        conditions["clock_hz_estimated"] = result.clock_hz
    result.ceilings.append(
        Ceiling(
            resource=Resource(area=Area.COMPUTE, dtype=dtype, accumulate=dtype, engine="vector"),
            value=found.value,
            unit="FLOP/s",
            kind=Kind.MEASURED,
            scope=scope,
            ci95=(found.low, found.high),
            conditions=conditions,
            source="Mansard FMA chains in LLVM vector code, audited against the clock",
        )
    )
