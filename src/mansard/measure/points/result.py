"""What comes of one point: samples, conditions, audit and verdict, as `detailed.json` keeps them."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

NOISY_RATIO = (
    0.05  # half of the interval over the median, above which a point is noisy unless both its ends say the same
)
NOISY_MOST_RATIO = 0.2  # above which it is noisy whatever they say


class PointVerdict(StrEnum):
    """What a number is worth."""

    NORMAL = "normal"
    LOW = "low"
    IMPLAUSIBLE = "implausible"
    NOISY = "noisy"


class State(StrEnum):
    """How a point ended."""

    DONE = "done"
    FAILED = "failed"
    WAIVED = "waived"


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One point of a plan.

    Args:
        benchmark: Registered name.
        impl: Implementation.
        backend: Backend of it.
        params: All parameters, defaults filled in.
        name: Stable name: benchmark, implementation and the parameters that are swept; no time stamp.
        origin: Where it was written: file and line, or the command line.
        flags: Environment variables that must be set before the runtime starts.
    """

    benchmark: str
    impl: str
    backend: str
    params: Mapping[str, Any]
    name: str
    origin: str = ""
    flags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Regime:
    """One of two states that the machine was in while a point was measured.

    Args:
        median_s, low_s, high_s: Median of the samples in it and its 95 % interval [s].
        share_ratio: Share of all samples that are in it.
        processes: How many processes saw it.
        interval: What the interval holds, in words.
    """

    median_s: float
    low_s: float
    high_s: float
    share_ratio: float
    processes: int
    interval: str

    @property
    def half_ratio(self) -> float:
        """Half of the interval over the median."""
        return (self.high_s - self.low_s) / 2.0 / self.median_s if self.median_s > 0.0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """The times of one point, none left out.

    Args:
        seconds: Time of one operation in each sample, in the order they were taken [s].
        per_sample: Operations inside one sample.
        warmup_s: Samples of the warm-up [s].
        steady: Whether the warm-up settled within its bound.
        floor_s: What an empty call costs here [s]; it is inside `seconds`.
        slope_s: Time of one operation from the slope over operations per dispatch [s]; None where it was not taken.
        cold_s: The very first call after compilation [s].
        stopped_by: `interval`, `time` or `count`.
        outliers: Indices of samples beyond 1.5 IQR; they are marked, not removed.
        windows: The separated windows the samples were taken in, as (process, number of samples), in their order.
        median_s, low_s, high_s: Median of all samples and its 95 % interval; `interval` says what the interval holds [s].
        interval: In words.
        fixed_s: Fixed cost of one dispatch, from the slope [s].
        regimes: The fast and the slow state, where two describe the samples much better than one; else empty.
    """

    seconds: tuple[float, ...]
    per_sample: int = 1
    warmup_s: tuple[float, ...] = ()
    steady: bool = True
    floor_s: float | None = None
    slope_s: float | None = None
    cold_s: float | None = None
    stopped_by: str = "count"
    outliers: tuple[int, ...] = ()
    windows: tuple[tuple[int, int], ...] = ()
    median_s: float = 0.0
    low_s: float = 0.0
    high_s: float = 0.0
    interval: str = ""
    fixed_s: float | None = None
    regimes: tuple[Regime, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """The machine while a point was measured; None is what nothing tells.

    Args:
        clock_hz: Real frequency of the cores in use [Hz], and how it was found out in `clock_source`.
        temperature_c: Highest temperature [degree C].
        power_w: Power [W].
        steal_ratio, foreign_ratio: Share of the processors taken by the hypervisor and by other programs.
        load_average: One-minute load.
        minor_faults, major_faults: Page faults of this process while the samples were taken.
        throttled_s: Time the control group was throttled [s].
        cores_used: Cores' worth of CPU time this process used; threads that wait in a spin loop count too.
    """

    clock_hz: float | None = None
    clock_source: str = ""
    temperature_c: float | None = None
    power_w: float | None = None
    steal_ratio: float | None = None
    foreign_ratio: float | None = None
    load_average: float | None = None
    minor_faults: int | None = None
    major_faults: int | None = None
    throttled_s: float | None = None
    cores_used: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One finding of the audit.

    Args:
        code: `flop_mismatch`, `bytes_mismatch`, `operation_missing`, `constant_inputs`, `wrong_result`,
            `cache_resident`, `below_floor`, `above_ceiling`, `page_faults`, `aliased`, ...
        text: In words, with both numbers.
        fatal: Whether the number must not be used.
    """

    code: str
    text: str
    fatal: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One point with all that is known of it.

    Args:
        point: What was asked.
        state: Done, failed or waived.
        reason: Why it failed or was waived.
        samples, conditions: What was measured; None if it was not run.
        metrics: Named numbers in SI units with the unit in the name, and the columns of the published suite.
        audit: Facts and findings of the audit.
        findings: What was found.
        verdict: Verdict, `verdict_reason` says why in words.
        environment: What the numbers belong to.
        started: Time of the start, ISO 8601.
    """

    point: Point
    state: State
    reason: str = ""
    samples: Samples | None = None
    conditions: Conditions | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    audit: Mapping[str, Any] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    verdict: PointVerdict | None = None
    verdict_reason: str = ""
    environment: Mapping[str, Any] = field(default_factory=dict)
    started: str = ""


def now_iso() -> str:
    """Return the time with seconds, ISO 8601, UTC."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def parameters_of(point: Point) -> dict[str, Any]:
    """Return the parameters of a point as its benchmark takes them: with the implementation among them."""
    return {**point.params, "impl": point.impl}


def unmeasured(point: Point, state: State, reason: str) -> Result:
    """Return the result of a point that was not measured."""
    return Result(point=point, state=state, reason=reason, started=now_iso())
