"""Views of ceilings: ridge points, where a product crosses them, what a cache allows, what a link needs, what T0 hides.

Each is a plain function of numbers in SI units. None has a ceiling of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mansard.core.ceilings import Area, Ceiling, Ceilings
from mansard.core.dtypes import dtype_bytes
from mansard.core.errors import UsageError


def _positive(**numbers: float) -> None:
    for name, value in numbers.items():
        if not (math.isfinite(value) and value > 0):
            raise UsageError(f"{name} must be positive and finite, got {value!r}")


def ridge_flop_per_byte(flop_per_s: float, bytes_per_s: float) -> float:
    """Return the arithmetic intensity at which compute and memory take the same time [FLOP/B].

    Args:
        flop_per_s: Compute ceiling [FLOP/s].
        bytes_per_s: Bandwidth of the memory level [B/s].

    Source: Williams, Waterman, Patterson, Roofline, CACM 52(4), 2009.

    H200 in bf16: 989e12 / 4.8e12.

    >>> round(ridge_flop_per_byte(989e12, 4.8e12), 2)
    206.04
    """
    _positive(flop_per_s=flop_per_s, bytes_per_s=bytes_per_s)
    return flop_per_s / bytes_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Ridge:
    """The ridge point of one peak and one memory level.

    Args:
        compute, memory: The two ceilings.
        flop_per_byte: Their ratio [FLOP/B].
        gemm_size: N of a square product of that element type that has this intensity.
    """

    compute: Ceiling
    memory: Ceiling
    flop_per_byte: float
    gemm_size: float

    def to_json(self) -> dict[str, Any]:
        """Return the element of `ridge_points`."""
        c, m = self.compute, self.memory
        return {
            "dtype": c.resource.dtype, "accumulate": c.resource.accumulate, "engine": c.resource.engine,
            "level": m.resource.level, "flop_per_byte": self.flop_per_byte, "gemm_size": self.gemm_size,
            "flop_per_s": c.value, "bytes_per_s": m.value, "compute_kind": c.kind.value, "memory_kind": m.kind.value,
            "scope": c.scope,
        }  # fmt: skip


def ridge_points(ceilings: Ceilings, *, scope: str = "device") -> tuple[Ridge, ...]:
    """Return the ridge point of every peak with every memory level of one scope, by the preferred kind of each."""
    computes: dict[tuple[str | None, ...], Ceiling] = {}
    for c in ceilings.find(scope=scope, area=Area.COMPUTE):
        r = c.resource
        if r.engine in ("matrix", "vector") and r.dtype is not None:
            computes.setdefault((r.dtype, r.accumulate, r.engine), c)
    memories: dict[str | None, Ceiling] = {}
    for m in ceilings.find(scope=scope, area=Area.MEMORY):
        memories.setdefault(m.resource.level, m)
    found = []
    for c in computes.values():
        for m in memories.values():
            ridge = ridge_flop_per_byte(c.value, m.value)
            size = gemm_ridge_size(ridge, element_bytes=dtype_bytes(c.resource.dtype or ""))
            found.append(Ridge(compute=c, memory=m, flop_per_byte=ridge, gemm_size=size))
    return tuple(found)


def square_gemm_flop_per_byte(size: float, *, element_bytes: float) -> float:
    """Return the arithmetic intensity of a square matrix product [FLOP/B]: 2N^3 / (3 N^2 b) = 2N / 3b.

    Args:
        size: N.
        element_bytes: b, of all three matrices [B].

    Assumes: each matrix crosses the memory boundary once.
    Source: Williams, Waterman, Patterson, Roofline, CACM 52(4), 2009.

    bf16: N/3; f32: N/6.

    >>> round(square_gemm_flop_per_byte(4096, element_bytes=2)), round(square_gemm_flop_per_byte(512, element_bytes=4), 1)
    (1365, 85.3)
    """
    _positive(size=size, element_bytes=element_bytes)
    return 2.0 * size / (3.0 * element_bytes)


def gemm_ridge_size(flop_per_byte: float, *, element_bytes: float) -> float:
    """Return the size N* at which a square matrix product reaches an intensity: N* = 1.5 b I*, in f32 6 I*.

    Args:
        flop_per_byte: I*, the ridge point [FLOP/B].
        element_bytes: b [B].

    Source: 2N / 3b = I solved for N; see `square_gemm_flop_per_byte`.

    GH200, TF32 kept in 4 bytes: 494 TFLOP/s over 4 TB/s is 123.5 FLOP/B, 6 x 123.5 = 741.

    >>> gemm_ridge_size(494e12 / 4e12, element_bytes=4)
    741.0
    """
    _positive(flop_per_byte=flop_per_byte, element_bytes=element_bytes)
    return 1.5 * element_bytes * flop_per_byte


def pebble_flop_per_byte(fast_memory_bytes: float, *, element_bytes: float) -> float:
    """Return the most FLOP per byte a matrix product can have with a fast memory of that size [FLOP/B].

    Any order of the operations moves at least 2N^3 / sqrt(S) words, S words being the fast memory, so
    I <= sqrt(M/b) / b.

    Args:
        fast_memory_bytes: M [B]; say whether megabytes are decimal or binary, it moves the figure by 2.4 %.
        element_bytes: b [B].

    Source: Hong and Kung, I/O complexity: the red-blue pebble game, STOC 1981; constant 2 (leading term): Smith et al.,
    arXiv:1702.02017; Kwasniewski et al., SC 2019.

    f32 with 50 decimal megabytes, 50 binary ones, and 117 decimal ones:

    >>> [round(pebble_flop_per_byte(m, element_bytes=4)) for m in (50e6, 50 * 2**20, 117e6)]
    [884, 905, 1352]
    """
    _positive(fast_memory_bytes=fast_memory_bytes, element_bytes=element_bytes)
    return math.sqrt(fast_memory_bytes / element_bytes) / element_bytes


def bytes_in_flight(*, bytes_per_s: float, latency_s: float) -> float:
    """Return the bytes that must be under way to fill a link or memory [B]: bandwidth x latency.

    Source: Little, Operations Research 9(3), 1961.

    >>> round(bytes_in_flight(bytes_per_s=450e9, latency_s=1e-6))
    450000
    """
    _positive(bytes_per_s=bytes_per_s, latency_s=latency_s)
    return bytes_per_s * latency_s


def in_flight_bytes_per_s(*, bytes_in_flight: float, latency_s: float, limit_bytes_per_s: float) -> float:
    """Return the bandwidth that a number of bytes under way gives [B/s], at most the limit of the link.

    Args:
        bytes_in_flight: Bytes under way at any time [B].
        latency_s: Time each of them is under way [s].
        limit_bytes_per_s: What the link does when full [B/s].

    Source: Little, Operations Research 9(3), 1961.

    >>> round(in_flight_bytes_per_s(bytes_in_flight=9.4e6, latency_s=42.7e-6, limit_bytes_per_s=418e9) / 1e9)
    220
    """
    _positive(bytes_in_flight=bytes_in_flight, latency_s=latency_s, limit_bytes_per_s=limit_bytes_per_s)
    return min(bytes_in_flight / latency_s, limit_bytes_per_s)


def transfers_in_flight(*, transfer_bytes: float, bytes_per_s_of_one: float, limit_bytes_per_s: float) -> int:
    """Return how many transfers must be under way at once to fill a link.

    One transfer at a time reaches `bytes_per_s_of_one`, so each is under way for transfer / rate; Little's law with that
    time gives the count.

    Args:
        transfer_bytes: Size of one transfer [B].
        bytes_per_s_of_one: Bandwidth with one under way [B/s].
        limit_bytes_per_s: Bandwidth of the full link [B/s].

    Assumes: transfers do not slow each other down before the link is full.
    Source: Little, Operations Research 9(3), 1961.

    9.4 MB at 220 GB/s take 42.7 us; 418 GB/s x 42.7 us = 17.9 MB = 1.9 transfers.

    >>> transfers_in_flight(transfer_bytes=9.4e6, bytes_per_s_of_one=220e9, limit_bytes_per_s=418e9)
    2
    """
    _positive(transfer_bytes=transfer_bytes, bytes_per_s_of_one=bytes_per_s_of_one, limit_bytes_per_s=limit_bytes_per_s)
    latency = transfer_bytes / bytes_per_s_of_one
    needed = bytes_in_flight(bytes_per_s=limit_bytes_per_s, latency_s=latency) / transfer_bytes
    return max(1, math.ceil(needed - 1e-9))


def fixed_cost_s(observed_s: float, least_s: float) -> float:
    """Return T0, what an operation took beyond its bound [s].

    Args:
        observed_s: The measured time [s].
        least_s: Work over ceiling [s]; not above the observed time.

    Source: T = T0 + W/P, a straight line in the work.

    f32 product of 512 at 23 % of 67 TFLOP/s: 4.006 us / 0.23 - 4.006 us.

    >>> least = 2 * 512**3 / 67e12
    >>> round(fixed_cost_s(least / 0.23, least) * 1e6, 1)
    13.4
    """
    _positive(observed_s=observed_s, least_s=least_s)
    if observed_s < least_s:
        raise UsageError(f"the observed time {observed_s!r} s is below the bound {least_s!r} s", hint="check both")
    return observed_s - least_s


def hiding_work(*, fixed_s: float, rate_per_s: float, share: float = 0.8) -> float:
    """Return the work at which a fixed cost is hidden up to a share of the ceiling [FLOP or B].

    share = (W/P) / (T0 + W/P), so W = P T0 share / (1 - share); for 80 % W/P >= 4 T0.

    Args:
        fixed_s: T0 [s].
        rate_per_s: P, the ceiling [FLOP/s or B/s].
        share: Wanted share of the ceiling, below 1.

    Source: Hockney, half-performance length (n_1/2), 1982: the same with share 0.5.

    >>> hiding_work(fixed_s=1e-6, rate_per_s=1e12)
    4000000.0
    """
    _positive(fixed_s=fixed_s, rate_per_s=rate_per_s, share=share)
    if share >= 1.0:
        raise UsageError(f"a fixed cost never hides completely: share must be below 1, got {share!r}")
    # Rounded so that 0.8 gives 4 and not 4.000000000000001.
    return round(share / (1.0 - share), 12) * fixed_s * rate_per_s


def hiding_gemm_size(*, fixed_s: float, flop_per_s: float, share: float = 0.8) -> float:
    """Return the size N of a square product at which a fixed cost is hidden up to a share: 2 N^3 = W.

    Args:
        fixed_s: T0 [s].
        flop_per_s: P [FLOP/s].
        share: Wanted share of the ceiling.

    Assumes: the product is bound by compute at that size.
    Source: `hiding_work`.

    NumPy on Grace: (4 x 120e-6 x 7.1e12 / 2)^(1/3).

    >>> round(hiding_gemm_size(fixed_s=120e-6, flop_per_s=7.1e12))
    1194
    """
    return float((hiding_work(fixed_s=fixed_s, rate_per_s=flop_per_s, share=share) / 2.0) ** (1.0 / 3.0))


def mixed_peak_flop_per_s(
    flop: Mapping[str, float] | Sequence[float], peaks: Mapping[str, float] | Sequence[float]
) -> float:
    """Return the peak of work in several element types that share one engine [FLOP/s].

    Each part takes its own time at its own peak, one after the other, so the peak of the mix is the harmonic mean weighted
    by FLOP: sum(F) / sum(F_i / P_i). Neither the highest nor the lowest peak is the denominator.

    Args:
        flop: Work by element type [FLOP].
        peaks: Dense peak by the same keys [FLOP/s].

    Raises:
        UsageError: a part without a peak, or no work.

    Source: Amdahl, AFIPS 1967, with rates.

    Half in bf16 at 989.4, half in fp8 at 1978.9 TFLOP/s: 2 / (1/989.4 + 1/1978.9).

    >>> round(mixed_peak_flop_per_s({"bf16": 1.0, "fp8": 1.0}, {"bf16": 989.4, "fp8": 1978.9}), 1)
    1319.2
    """
    parts = dict(flop) if isinstance(flop, Mapping) else dict(zip(map(str, range(len(flop))), flop, strict=True))
    rates = dict(peaks) if isinstance(peaks, Mapping) else dict(zip(map(str, range(len(peaks))), peaks, strict=True))
    missing = [k for k in parts if k not in rates]
    if missing:
        raise UsageError(f"no peak for {', '.join(missing)}", hint="give the peak of every element type that does work")
    _positive(total_flop=sum(parts.values()))
    time = 0.0
    for key, work in parts.items():
        if not (math.isfinite(work) and work >= 0):
            raise UsageError(f"the work in {key} must be finite and not negative, got {work!r}")
        _positive(**{f"peak of {key}": rates[key]})
        time += work / rates[key]
    return sum(parts.values()) / time
