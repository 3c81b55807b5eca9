"""The arithmetic of collectives: what the size S is, algbw and busbw, ideal times, and the alpha-beta fit.

One home for all rooms: a benchmark, a model and a profile cannot disagree about what an all-reduce sends. Rates are
those of NCCL: `algbw = S / t` says how fast a buffer is done, `busbw = factor x algbw` is comparable with the one-way
rate of a link. Ideal times are in `core.collective_times`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mansard.core.errors import UsageError
from mansard.core.stats import FloatArray
from mansard.core.unknown import MaybeFloat, Unknown, is_known

#: Canonical name -> other names of it.
NAMES: dict[str, tuple[str, ...]] = {
    "all_reduce": ("psum", "pmean", "allreduce"), "all_gather": ("allgather",),
    "reduce_scatter": ("psum_scatter", "reducescatter"), "all_to_all": ("alltoall",), "broadcast": (), "reduce": (),
    "gather": (), "scatter": (), "ppermute": ("collective_permute",), "send_recv": ("sendrecv",),
    "device_to_device": (), "send": (), "recv": (),
}  # fmt: skip

#: What the size S means, in words.
SIZE_MEANS: dict[str, str] = {
    "all_reduce": "the buffer on one device", "all_gather": "the gathered result on one device (n x shard)",
    "reduce_scatter": "the input on one device (n x chunk)", "all_to_all": "the send buffer on one device (n x chunk)",
    "broadcast": "the buffer", "reduce": "the buffer", "gather": "the buffer of the root (n x chunk)",
    "scatter": "the buffer of the root (n x chunk)", "ppermute": "bytes one device sends",
    "send_recv": "bytes one device sends", "device_to_device": "bytes one device sends", "send": "bytes one device sends",
    "recv": "bytes one device receives",
}  # fmt: skip
_TWICE = ("all_reduce",)
_ONCE = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
_WHOLE = ("broadcast", "reduce", "ppermute", "send_recv", "device_to_device", "send", "recv")


def canonical(operation: str) -> str:
    """Return the canonical name of a collective.

    Raises:
        UsageError: none is called that.

    >>> canonical("psum"), canonical("all-gather"), canonical("psum_scatter")
    ('all_reduce', 'all_gather', 'reduce_scatter')
    """
    name = operation.strip().lower().replace("-", "_")
    for known, others in NAMES.items():
        if name == known or name in others:
            return known
    raise UsageError(f"no collective is called {operation!r}", hint="known: " + ", ".join(NAMES))


def sent_ratio(operation: str, ranks: int) -> float:
    """Return the bytes one device must send, over S; 0 where a group of one has nothing to send.

    Args:
        operation: Canonical name or an alias.
        ranks: Devices in one replica group.

    Returns: for a broadcast what the root sends, for gather and scatter what the root receives or sends.

    Raises:
        UsageError: no such collective, or a group of less than one.

    Source: Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms, 2009; nccl-tests, doc/PERFORMANCE.md.

    >>> sent_ratio("all_reduce", 32) * 2097152
    4063232.0
    >>> sent_ratio("all_gather", 1)
    0.0
    """
    name = canonical(operation)
    if ranks < 1:
        raise UsageError(f"a group of {ranks} devices is none")
    if name in _TWICE:
        return 2.0 * (ranks - 1) / ranks
    if name in _ONCE:
        return (ranks - 1) / ranks
    return 1.0 if ranks > 1 else 0.0


def bus_factor(operation: str, ranks: int | Unknown) -> MaybeFloat:
    """Return what relates algorithm bandwidth to bus bandwidth; `Unknown` for one device, which moves nothing.

    Args:
        operation: `all_reduce`, `all_gather`, ...
        ranks: How many take part in one group.

    Source: NVIDIA nccl-tests, doc/PERFORMANCE.md.

    >>> bus_factor("all_reduce", 8), bus_factor("all_gather", 8), bus_factor("broadcast", 8)
    (1.75, 0.875, 1.0)
    >>> bus_factor("all_reduce", 1).reason
    'a group of one device sends nothing, so it has no bus bandwidth'
    """
    if isinstance(ranks, Unknown):
        return ranks
    if ranks < 1:
        return Unknown(f"a group of {ranks} ranks is none")
    try:
        name = canonical(operation)
    except UsageError:
        return Unknown(f"the bus bandwidth of {operation} is not defined", ("which collective it is",))
    if ranks == 1:
        return Unknown("a group of one device sends nothing, so it has no bus bandwidth", ("two or more devices",))
    return sent_ratio(name, ranks)


def size_bytes(operation: str, *, local_bytes: float, ranks: int) -> float:
    """Return S from the buffer that one device brings [B].

    Args:
        operation: Which collective.
        local_bytes: Input of one device [B]: the shard of an all-gather or gather, the whole buffer of the others.
        ranks: Devices in one group.

    >>> size_bytes("all_gather", local_bytes=1024.0, ranks=8), size_bytes("all_reduce", local_bytes=1024.0, ranks=8)
    (8192.0, 1024.0)
    """
    return local_bytes * ranks if canonical(operation) in ("all_gather", "gather") else local_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Both rates of one collective, with what they belong to.

    Args:
        operation: Canonical name.
        size_bytes: S [B].
        size_means: S in words.
        ranks: n.
        algbw_bytes_per_s: S over the time [B/s].
        busbw_bytes_per_s: The factor times algbw [B/s]; `Unknown` for one device.
        effective: Whether the network may reduce on the way (NVLS, SHARP). Then the devices send about (n + 1)/n of S,
            busbw is what a ring would have needed, and it may exceed the rate of the link; it is never clipped.
    """

    operation: str
    size_bytes: float
    size_means: str
    ranks: int
    algbw_bytes_per_s: float
    busbw_bytes_per_s: MaybeFloat
    effective: bool = False


def rates(operation: str, *, size_bytes: float, ranks: int, seconds: float, effective: bool = False) -> Rates:
    """Return algbw and busbw of a collective.

    Args:
        operation: Canonical name or an alias.
        size_bytes: S as `SIZE_MEANS` says [B].
        ranks: Devices in one replica group, from the compiled program.
        seconds: Time of one operation [s].
        effective: Whether reduction inside the network is active or cannot be excluded.

    Source: nccl-tests, doc/PERFORMANCE.md; for the reduction inside the network nccl-tests pull request 239.

    >>> r = rates("all_reduce", size_bytes=8e9, ranks=8, seconds=0.02)
    >>> r.algbw_bytes_per_s / 1e9, r.busbw_bytes_per_s / 1e9
    (400.0, 700.0)
    """
    name = canonical(operation)
    if not seconds > 0.0:
        raise UsageError(f"the time of a collective must be positive, got {seconds}")
    algbw = size_bytes / seconds
    return Rates(
        operation=name, size_bytes=size_bytes, size_means=SIZE_MEANS[name], ranks=ranks, algbw_bytes_per_s=algbw,
        busbw_bytes_per_s=algbw * bus_factor(name, ranks), effective=effective,
    )  # fmt: skip


def ironwood_bytes(operation: str, *, local_bytes: float, ranks: int, parallel: bool) -> float:
    """Return the bytes that the published suite's TPU7x tree divides by the time, to reproduce its column [B].

    Args:
        operation: `all_gather`, `all_reduce`, `reduce_scatter` or `all_to_all`.
        local_bytes: Buffer of one device [B].
        ranks: Devices in the first replica group.
        parallel: Whether all device numbers of that group are even; the column then is per chip of two devices.

    Source: accelerator-microbenchmarks v1.1-legacy, Ironwood tree. It counts n - 2 where n - 1 is right.

    >>> ironwood_bytes("all_reduce", local_bytes=2097152.0, ranks=32, parallel=False)
    3932160.0
    """
    gathered = local_bytes * ((ranks - 1) * 2 if parallel else ranks - 2)
    share = {"all_gather": 1.0, "all_reduce": 2.0 / ranks, "reduce_scatter": 1.0 / ranks, "all_to_all": 1.0 / ranks}
    name = canonical(operation)
    if name not in share:
        raise UsageError(f"the suite's TPU7x tree has no {operation}")
    return gathered * share[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlphaBeta:
    """A fit t = alpha + bus bytes / beta over several sizes of one collective.

    Args:
        alpha_s: Time of a message of no length [s]; a fit may give a negative one, and then says nothing of latency.
        alpha_ci95_s: Its 95 % interval [s].
        beta_bytes_per_s: Marginal bus bandwidth [B/s]; `Unknown` where larger messages did not take longer.
        beta_ci95_bytes_per_s: Its 95 % interval [B/s].
        n_half_bytes: Bus bytes at which half of beta is reached, alpha x beta [B].
        error_ratio: Largest relative distance of a point from the fit.
        sizes: How many sizes.
        bus_bytes: The smallest and the largest [B].
    """

    alpha_s: float
    alpha_ci95_s: tuple[float, float]
    beta_bytes_per_s: MaybeFloat
    beta_ci95_bytes_per_s: tuple[float, float] | Unknown
    n_half_bytes: MaybeFloat
    error_ratio: float
    sizes: int
    bus_bytes: tuple[float, float]

    def seconds(self, bus_bytes: float) -> MaybeFloat:
        """Return the time of the fit [s]."""
        return self.alpha_s + bus_bytes * _inverse(self.beta_bytes_per_s)

    def latency_share_ratio(self, bus_bytes: float) -> MaybeFloat:
        """Return which share of the time at that size is alpha."""
        if self.alpha_s < 0.0:
            return Unknown("the fit has a negative latency", ("smaller messages",))
        return self.alpha_s * _inverse(self.seconds(bus_bytes))

    def to_json(self) -> dict[str, Any]:
        """Return the fit as `ceilings.json` keeps it."""
        beta_ci, n_half = self.beta_ci95_bytes_per_s, self.n_half_bytes
        return {
            "alpha_s": self.alpha_s, "alpha_ci95_s": list(self.alpha_ci95_s),
            "beta_bytes_per_s": self.beta_bytes_per_s,
            "beta_ci95_bytes_per_s": beta_ci if isinstance(beta_ci, Unknown) else list(beta_ci),
            "n_half_bytes": n_half, "error_ratio": self.error_ratio, "sizes": self.sizes,
            "bus_bytes_range": list(self.bus_bytes), "model": "t = alpha + bus_bytes / beta",
        }  # fmt: skip


def _inverse(value: MaybeFloat) -> MaybeFloat:
    return value if isinstance(value, Unknown) else 1.0 / value


def fit_alpha_beta(
    samples: Mapping[float, Sequence[float] | FloatArray], *, resamples: int = 1000, seed: int = 0
) -> AlphaBeta | Unknown:
    """Fit t(S) = alpha + S_bus / beta to the medians of several sizes.

    Args:
        samples: Times [s] by bus bytes [B], all repeats of each size.
        resamples: Bootstrap resamples: the repeats of each size are drawn anew, and the points are moved by the
            distances of the fit, so that both noise and misfit are in the intervals.
        seed: Seed of the resampling.

    Returns: the fit by relative least squares, since times of a sweep span decades; `Unknown` for less than two sizes.

    Assumes: one algorithm over all sizes; where a library switches, `error_ratio` is large.
    Source: Hockney, Parallel Computing 20(3), 1994, for the model and n_half; Efron and Tibshirani 1993 for the intervals.

    An all-reduce over 32 devices, 2 MiB in 123.76 us and 4 MiB in 129.91 us:

    >>> fit = fit_alpha_beta({4063232.0: [123.76e-6], 8126464.0: [129.91e-6]})
    >>> round(fit.alpha_s * 1e6, 2), round(fit.beta_bytes_per_s / 1e9), round(fit.latency_share_ratio(4063232.0), 2)
    (117.61, 661, 0.95)
    """
    kept = sorted(size for size, times in samples.items() if len(times))
    if len(kept) < 2:
        return Unknown(f"a fit needs two sizes, there is {len(kept)}", ("a sweep over sizes",))
    x = np.asarray(kept, dtype=np.float64)
    repeats = [np.asarray(samples[size], dtype=np.float64) for size in kept]
    if any(not bool(np.isfinite(r).all() and (r > 0.0).all()) for r in repeats):
        return Unknown("a time of the sweep is not a positive number", ("a new measurement",))
    y = np.asarray([np.median(r) for r in repeats])
    alpha, slope = _line(x, y)
    fitted = alpha + slope * x
    off = y / fitted - 1.0 if bool((fitted > 0).all()) else (y - fitted) / y
    drawn = _resampled(x, repeats, fitted, off, resamples, seed)
    low, high = np.percentile(drawn[:, 0], [2.5, 97.5])
    slope_low, slope_high = np.percentile(drawn[:, 1], [2.5, 97.5])
    flat = Unknown("larger messages did not take longer", ("larger messages", "more samples"))
    beta: MaybeFloat = 1.0 / slope if slope > 0.0 else flat
    return AlphaBeta(
        alpha_s=alpha, alpha_ci95_s=(float(low), float(high)), beta_bytes_per_s=beta,
        beta_ci95_bytes_per_s=(float(1.0 / slope_high), float(1.0 / slope_low)) if slope_low > 0.0 else flat,
        n_half_bytes=alpha * beta if alpha >= 0.0 else Unknown("the fit has a negative latency", ("smaller messages",)),
        error_ratio=float(np.abs(off).max()), sizes=len(kept), bus_bytes=(float(x[0]), float(x[-1])),
    )  # fmt: skip


def _line(x: FloatArray, y: FloatArray) -> tuple[float, float]:
    """Return intercept and slope that minimise the relative distances."""
    design = np.stack([1.0 / y, x / y], axis=1)
    scale = np.abs(design).max(axis=0)
    found, *_ = np.linalg.lstsq(design / scale, np.ones_like(y), rcond=None)
    alpha, slope = found / scale
    return float(alpha), float(slope)


def _resampled(
    x: FloatArray, repeats: Sequence[FloatArray], fitted: FloatArray, off: FloatArray, resamples: int, seed: int
) -> FloatArray:
    """Return (alpha, slope) of each bootstrap resample [resamples, 2]."""
    rng = np.random.default_rng(seed)
    medians = np.stack([np.median(r[rng.integers(0, r.size, (resamples, r.size))], axis=1) for r in repeats], axis=1)
    if x.size > 2 and bool((fitted > 0).all()):
        widened = off * np.sqrt(x.size / (x.size - 2.0))
        medians = medians / (1.0 + off) * (1.0 + widened[rng.integers(0, x.size, medians.shape)])
        medians = np.maximum(medians, 1e-3 * np.median(medians, axis=0))
    return np.asarray([_line(x, row) for row in medians])


def bus_bytes(operation: str, *, size_bytes: float, ranks: int) -> MaybeFloat:
    """Return the bytes that busbw counts, S times the factor [B]; `Unknown` for one device.

    >>> bus_bytes("all_reduce", size_bytes=2097152.0, ranks=32)
    4063232.0
    """
    factor = bus_factor(operation, ranks)
    return size_bytes * factor if is_known(factor) else factor
