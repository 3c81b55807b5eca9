"""How far a job scales: T(N) = T_serial + T_parallel / N + T_comm(N), what it predicts, and where it stops paying.

Strong scaling keeps the work and adds devices; weak scaling gives each device the same work. Communication is a ring
all-reduce of D bytes a step: 2 (N - 1) alpha + 2 D (N - 1) / (N W). Its bandwidth part saturates at 2 D / W, so that
without a latency term more devices never make a step slower.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from mansard.core.collective_times import ring_time
from mansard.core.errors import UsageError

#: Larger jobs than this are not looked at.
MOST = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleModel:
    """The time of a step over N devices.

    Args:
        serial_s: What every device does alone or waits for [s].
        parallel_s: What N devices divide [s].
        message_bytes: D, the buffer that is reduced in a step [B].
        link_bytes_per_s: W, one way, of one device [B/s]; None where nothing is sent.
        alpha_s: Latency of one step of the ring [s].
        growth_s: What each further device adds, measured and not split into its causes [s].

    >>> model = ScaleModel(serial_s=0.05, parallel_s=0.95)
    >>> round(model.speedup_ratio(8), 2), round(model.strong_efficiency_ratio(8), 2), round(model.limit_ratio, 1)
    (5.93, 0.74, 20.0)
    """

    serial_s: float
    parallel_s: float
    message_bytes: float = 0.0
    link_bytes_per_s: float | None = None
    alpha_s: float = 0.0
    growth_s: float = 0.0

    def __post_init__(self) -> None:
        for name in ("serial_s", "parallel_s", "message_bytes", "alpha_s", "growth_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0.0):
                raise UsageError(f"{name} is {value}, expected a number from 0")
        if not self.serial_s + self.parallel_s > 0.0:
            raise UsageError("a job without serial and parallel time has nothing to scale")
        if self.link_bytes_per_s is not None and not self.link_bytes_per_s > 0.0:
            raise UsageError(f"the rate of the link must be positive, got {self.link_bytes_per_s} B/s")
        if self.message_bytes > 0.0 and self.link_bytes_per_s is None:
            raise UsageError("a message needs the rate of its link", hint='add --link-rate "50 GB/s"')

    @property
    def wire_s(self) -> float:
        """What the bandwidth term of the ring approaches, 2 D / W [s]."""
        return 2.0 * self.message_bytes / self.link_bytes_per_s if self.link_bytes_per_s else 0.0

    def comm_s(self, n: int) -> float:
        """Return the communication of a step over N devices [s].

        Source: Thakur, Rabenseifner and Gropp 2005, for the ring.

        >>> m = ScaleModel(serial_s=0, parallel_s=1, message_bytes=1e9, link_bytes_per_s=50e9, alpha_s=1e-5)
        >>> round(m.comm_s(8), 6)
        0.03514
        """
        _devices(n)
        rate = self.link_bytes_per_s or 1.0
        ring = ring_time("all_reduce", size_bytes=self.message_bytes, ranks=n, bytes_per_s=rate, alpha_s=self.alpha_s)
        return ring + self.growth_s * (n - 1)

    def strong_s(self, n: int) -> float:
        """Return the time with the same work over N devices [s]."""
        return self.serial_s + self.parallel_s / _devices(n) + self.comm_s(n)

    def weak_s(self, n: int) -> float:
        """Return the time with N times the parallel work over N devices [s]."""
        return self.serial_s + self.parallel_s + self.comm_s(n)

    def speedup_ratio(self, n: int) -> float:
        """Return T(1) / T(N) of the same work."""
        return self.strong_s(1) / self.strong_s(n)

    def strong_efficiency_ratio(self, n: int) -> float:
        """Return T(1) / (N T(N)) of the same work."""
        return self.speedup_ratio(n) / n

    def weak_efficiency_ratio(self, n: int) -> float:
        """Return T(1) / T(N) of work that grows with N."""
        return self.weak_s(1) / self.weak_s(n)

    def scaled_speedup_ratio(self, n: int) -> float:
        """Return the work that N devices do over that of one in the same time, where each has as much as one had.

        Source: Gustafson 1988; without communication it is s + (1 - s) N.

        >>> round(ScaleModel(serial_s=0.05, parallel_s=0.95).scaled_speedup_ratio(8), 2)
        7.65
        """
        return (self.serial_s + _devices(n) * self.parallel_s) / self.weak_s(n)

    @property
    def limit_ratio(self) -> float:
        """The speedup that no N exceeds: infinite where nothing is serial and nothing is sent.

        Source: Amdahl 1967; with a latency term the best N decides.
        """
        stop = self.stops_paying()
        if stop.n is not None:
            return self.speedup_ratio(stop.n)
        floor = self.serial_s + self.wire_s
        return math.inf if floor == 0.0 else max(1.0, self.strong_s(1) / floor)

    @property
    def rise_s(self) -> float:
        """What each further device adds for certain, 2 alpha and what was measured [s]."""
        return 2.0 * self.alpha_s + self.growth_s

    def stops_paying(self) -> Stop:
        """Return the N of the shortest step: sqrt((T_parallel - 2 D / W) / (2 alpha)), or that there is none.

        Source: the derivative of T(N), T_parallel / N^2 - 2 D / (W N^2) = 2 alpha.

        >>> ScaleModel(serial_s=0, parallel_s=1, alpha_s=50e-6).stops_paying().n
        100
        >>> ScaleModel(serial_s=0.05, parallel_s=0.95).stops_paying().text
        'none without a latency term: each further device makes the step shorter, by less and less'
        """
        left = self.parallel_s - self.wire_s
        if left <= 0.0 and (self.wire_s > 0.0 or self.rise_s > 0.0):
            return Stop(n=1, text="1: a second device sends for longer than it saves")
        if self.rise_s == 0.0:
            return Stop(
                n=None, text="none without a latency term: each further device makes the step shorter, by less and less"
            )
        exact = math.sqrt(left / self.rise_s)
        if exact > MOST:
            return Stop(n=None, text=f"beyond {MOST:,} devices")
        near = sorted({max(1, math.floor(exact)), max(1, math.ceil(exact))}, key=self.strong_s)
        return Stop(n=near[0], text=f"{near[0]}: beyond it latency grows faster than the work of a device shrinks")

    def last_above(self, efficiency_ratio: float) -> int | None:
        """Return the largest N with at least this strong-scaling efficiency; None where there is no end.

        >>> ScaleModel(serial_s=0.05, parallel_s=0.95).last_above(0.5)
        21
        """
        if not 0.0 < efficiency_ratio <= 1.0:
            raise UsageError(f"an efficiency is above 0 and at most 1, got {efficiency_ratio}")
        return _last(lambda n: self.strong_efficiency_ratio(n) >= efficiency_ratio * (1.0 - 1e-12))


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Where adding devices stops paying.

    Args:
        n: That N; None where there is none.
        text: It in words, with why.
    """

    n: int | None
    text: str


def _devices(n: int) -> int:
    if n < 1:
        raise UsageError(f"{n} devices are none")
    return n


def _last(holds: Callable[[int], bool]) -> int | None:
    """The last N for which something holds that ends once; None where it never ends."""
    high = 1
    while holds(high):
        high *= 2
        if high > MOST:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return max(low, 1)


def gustafson_ratio(serial_ratio: float, n: int) -> float:
    """Return the scaled speedup of work that grows with N, s + (1 - s) N.

    Args:
        serial_ratio: Share of the time of the parallel run that is serial.
        n: Devices.

    Source: Gustafson, Reevaluating Amdahl's law, 1988.

    >>> round(gustafson_ratio(0.05, 8), 2)
    7.65
    """
    if not 0.0 <= serial_ratio <= 1.0:
        raise UsageError(f"a serial share lies between 0 and 1, got {serial_ratio}")
    return serial_ratio + (1.0 - serial_ratio) * _devices(n)


def amdahl_ratio(serial_ratio: float, n: int) -> float:
    """Return the speedup of the same work over N devices, 1 / (s + (1 - s) / N).

    Args:
        serial_ratio: Share of the time of one device that is serial.
        n: Devices.

    Source: Amdahl, Validity of the single processor approach, 1967.

    >>> round(amdahl_ratio(0.05, 8), 1)
    5.9
    """
    if not 0.0 <= serial_ratio <= 1.0:
        raise UsageError(f"a serial share lies between 0 and 1, got {serial_ratio}")
    return 1.0 / (serial_ratio + (1.0 - serial_ratio) / _devices(n))
