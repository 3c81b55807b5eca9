"""What a link to the host does: bandwidth from observed misses, bytes in flight it needs, and when the CPU is quicker."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mansard.core import Unknown, is_known, least_time_s
from mansard.core.errors import UsageError
from mansard.hardware.views import bytes_in_flight, in_flight_bytes_per_s

#: A link at this share of its ceiling is called full.
FULL = 0.97


def observed_bytes_per_s(*, misses: float, unit_bytes: float, time_s: float) -> float:
    """Return the effective bandwidth that observed misses show [B/s]: misses x bytes / time.

    Args:
        misses: Units fetched.
        unit_bytes: Bytes of one [B].
        time_s: In this time [s].

    1000 misses of 9.4 MB in 50 ms:

    >>> observed_bytes_per_s(misses=1000, unit_bytes=9.4e6, time_s=0.05) / 1e9
    188.0
    """
    for name, value in (("misses", misses), ("unit_bytes", unit_bytes), ("time_s", time_s)):
        if not 0.0 < value < math.inf:
            raise UsageError(f"{name} is {value}, expected a positive number")
    return misses * unit_bytes / time_s


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkUse:
    """A link, what it was seen to do, and what would fill it.

    Args:
        limit_bytes_per_s: What it does when full [B/s].
        observed_bytes_per_s: What it did [B/s].
        in_flight_bytes: Bytes under way meanwhile [B].
        share_ratio: Observed over limit.
        full: Whether that is all it can do.
        latency_s: Time each byte was under way [s]; on a full link at most this, since bytes queue.
        needed_bytes: Bytes under way that fill it at that latency [B].
        more_ratio: How many times as many bytes that is; 1 where the link is full.
    """

    limit_bytes_per_s: float
    observed_bytes_per_s: float
    in_flight_bytes: float
    share_ratio: float
    full: bool
    latency_s: float
    needed_bytes: float
    more_ratio: float

    def at(self, factor: float) -> float:
        """Return the bandwidth with `factor` times the bytes under way, at the same latency [B/s]."""
        return in_flight_bytes_per_s(
            bytes_in_flight=self.in_flight_bytes * factor, latency_s=self.latency_s,
            limit_bytes_per_s=self.limit_bytes_per_s,
        )  # fmt: skip


def link_use(*, in_flight_bytes: float, observed_bytes_per_s: float, limit_bytes_per_s: float) -> LinkUse:
    """Return what would fill a link that was seen at some bandwidth with some bytes under way.

    Args:
        in_flight_bytes: Bytes under way, such as threads x bytes that each has asked for [B].
        observed_bytes_per_s: What that gave [B/s].
        limit_bytes_per_s: What the link copies when full [B/s].

    Raises:
        UsageError: not positive, or more observed than the link can do.

    Formula: Little's law, latency = bytes in flight / observed; needed = limit x latency.
    Assumes: the latency stays as it is until the link is full.
    Source: Little, Operations Research 9(3), 1961.

    8192 threads x 16 B give 220 GB/s on a link that copies at 418: 1.9 times as many bytes fill it, 4 times is ample.

    >>> u = link_use(in_flight_bytes=8192 * 16, observed_bytes_per_s=220e9, limit_bytes_per_s=418e9)
    >>> round(u.latency_s * 1e9), round(u.more_ratio, 2), u.at(4.0) / 1e9
    (596, 1.9, 418.0)
    """
    for name, value in (
        ("the bytes in flight", in_flight_bytes), ("the observed bandwidth", observed_bytes_per_s),
        ("the bandwidth of the link", limit_bytes_per_s),
    ):  # fmt: skip
        if not 0.0 < value < math.inf:
            raise UsageError(f"{name} is {value}, expected a positive number")
    share = observed_bytes_per_s / limit_bytes_per_s
    if share > 1.0 / FULL:
        raise UsageError(
            f"{observed_bytes_per_s / 1e9:.3g} GB/s were observed on a link of {limit_bytes_per_s / 1e9:.3g} GB/s",
            hint="check misses, bytes of one unit and time; hits do not cross the link",
        )
    full = share >= FULL
    latency = in_flight_bytes / observed_bytes_per_s
    needed = bytes_in_flight(bytes_per_s=limit_bytes_per_s, latency_s=latency)
    return LinkUse(
        limit_bytes_per_s=limit_bytes_per_s, observed_bytes_per_s=observed_bytes_per_s, in_flight_bytes=in_flight_bytes,
        share_ratio=share, full=full, latency_s=latency, needed_bytes=in_flight_bytes if full else needed,
        more_ratio=1.0 if full else needed / in_flight_bytes,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuOrLink:
    """Whether to fetch a missed unit, or to compute it where it lies.

    Args:
        transfer_s: Fetching it [s].
        cpu_s: Computing it on the host for `tokens` tokens: reading it, or multiplying, whichever is longer [s].
        cpu_is_faster: Whether the host is.
        tokens: Tokens that need the unit.
        tokens_at_most: Up to so many tokens the host is faster; 0 where it never is, `Unknown` without its peak.
    """

    transfer_s: float
    cpu_s: float | Unknown
    cpu_is_faster: bool | Unknown
    tokens: float
    tokens_at_most: float | Unknown


def cpu_or_link(
    *, unit_bytes: float, unit_params: float | Unknown, tokens: float, link_bytes_per_s: float,
    cpu_bytes_per_s: float | Unknown, cpu_flop_per_s: float | Unknown,
) -> CpuOrLink:  # fmt: skip
    """Return whether the host computes a unit sooner than the link brings it.

    Args:
        unit_bytes: Bytes of the unit [B].
        unit_params: Weights in it, 2 FLOP each and token.
        tokens: Tokens that need it.
        link_bytes_per_s: Effective bandwidth of the link [B/s].
        cpu_bytes_per_s, cpu_flop_per_s: Memory bandwidth and peak of the host [B/s, FLOP/s].

    Formula: host max(bytes / memory bandwidth, 2 x weights x tokens / peak) against bytes / link bandwidth.
    Assumes: activations are small beside weights; what the device does meanwhile is not counted on either side.

    9.4 MB, 4.7e6 weights in 16 bits, over PCIe at 31 GB/s, a host with 400 GB/s and 3 TFLOP/s: up to 96 tokens.

    >>> c = cpu_or_link(unit_bytes=9.4e6, unit_params=4.7e6, tokens=1.0, link_bytes_per_s=31e9, cpu_bytes_per_s=400e9, cpu_flop_per_s=3e12)
    >>> round(c.transfer_s * 1e6), round(c.cpu_s * 1e6, 1), c.cpu_is_faster, int(c.tokens_at_most)
    (303, 23.5, True, 96)
    """
    transfer = unit_bytes / link_bytes_per_s
    if isinstance(cpu_bytes_per_s, Unknown):
        return CpuOrLink(
            transfer_s=transfer, cpu_s=cpu_bytes_per_s, cpu_is_faster=cpu_bytes_per_s, tokens=tokens,
            tokens_at_most=cpu_bytes_per_s,
        )  # fmt: skip
    read = unit_bytes / cpu_bytes_per_s
    if read >= transfer:
        # The host cannot even read it sooner, whatever its peak.
        return CpuOrLink(transfer_s=transfer, cpu_s=read, cpu_is_faster=False, tokens=tokens, tokens_at_most=0.0)
    per_token = 2.0 * unit_params / cpu_flop_per_s if is_known(unit_params) else unit_params
    if isinstance(per_token, Unknown):
        return CpuOrLink(
            transfer_s=transfer, cpu_s=per_token, cpu_is_faster=per_token, tokens=tokens, tokens_at_most=per_token
        )
    cpu = float(least_time_s([read, per_token * tokens]))
    return CpuOrLink(
        transfer_s=transfer, cpu_s=cpu, cpu_is_faster=cpu < transfer, tokens=tokens, tokens_at_most=transfer / per_token
    )
