"""Metrics of inference: from the time stamps of served requests, or from the steps of a profile.

The definitions of TTFT, TPOT and ITL are those of `predict.serving`; here are medians, tails and throughput over requests.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mansard.core import Unknown, is_known
from mansard.core.errors import UndecidedError, UsageError
from mansard.diagnose.metrics import Metric, metric
from mansard.predict.serving import RequestLatency, request_latency

#: Below this many samples the 99th percentile would be the largest sample, and is not given.
LEAST_FOR_P99 = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """One request that was answered.

    Args:
        arrival_s: When it was sent, on the clock of the run [s].
        latency: What its chunks say.
    """

    arrival_s: float
    latency: RequestLatency

    @property
    def end_s(self) -> float:
        """When its last token came [s]."""
        return self.arrival_s + self.latency.latency_s


def served(arrival_s: float, chunks: Sequence[tuple[float, int]]) -> Served:
    """Return a request from the absolute times of its chunks.

    Args:
        arrival_s: When it was sent [s].
        chunks: Time [s] on the same clock, and new tokens, of each chunk in order.

    >>> served(10.0, [(10.5, 1), (10.6, 1)]).latency.ttft_s
    0.5
    """
    if not math.isfinite(arrival_s):
        raise UsageError(f"a request arrived at {arrival_s} s, expected a finite time")
    return Served(arrival_s=arrival_s, latency=request_latency([(t - arrival_s, n) for t, n in chunks]))


def rank_value(values: Sequence[float], share: float) -> float:
    """Return the value at rank ceil(share x n) of the sorted values: one that was seen, not interpolated.

    >>> rank_value([3.0, 1.0, 2.0, 4.0], 0.5)
    2.0
    """
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered) - 1e-9) - 1)]


def serving_metrics(requests: Sequence[Served], *, devices: int = 1) -> tuple[Metric, ...]:
    """Return latency and throughput over served requests, in the order of `metrics.DEFINITIONS`.

    Args:
        requests: All requests of the run that ended; those that did not must be said apart, they bias the latencies down.
        devices: Devices that served them.

    Raises:
        UndecidedError: no request.
        UsageError: fewer than one device.

    Source: MLPerf inference rules for TTFT and TPOT; Little, Operations Research 9(3), 1961, for the requests under way.
    """
    if not requests:
        raise UndecidedError("no request ended, so there is no latency to report")
    if devices < 1:
        raise UsageError(f"devices is {devices}, expected at least 1")
    wall = max(r.end_s for r in requests) - min(r.arrival_s for r in requests)
    tokens = float(sum(r.latency.tokens for r in requests))
    count = float(len(requests))
    ttft = [r.latency.ttft_s for r in requests]
    tpot = [r.latency.tpot_s for r in requests if is_known(r.latency.tpot_s)]
    itl = [gap for r in requests for gap in r.latency.itl_s]
    latency = [r.latency.latency_s for r in requests]
    over: float | Unknown = wall if wall > 0.0 else Unknown("all requests arrived and ended at one instant")
    return (
        metric("tokens_per_s_per_device", tokens / over / devices, tokens=tokens, wall_s=wall, devices=float(devices)),
        metric("requests_per_s", count / over, requests=count, wall_s=wall),
        metric("output_tokens_per_s", tokens / over, tokens=tokens, wall_s=wall),
        *_tail("ttft", ttft), *_tail("tpot", tpot), *_tail("itl", itl),
        metric("latency_s", rank_value(latency, 0.5), requests=count),
        metric("concurrent_requests", sum(latency) / over, latencies_s=sum(latency), wall_s=wall),
    )  # fmt: skip


def _tail(name: str, values: Sequence[float]) -> tuple[Metric, Metric]:
    """Return the median and the 99th percentile of a latency."""
    samples = float(len(values))
    if not values:
        none = Unknown("no request has more than one token", ("longer answers",))
        return metric(f"{name}_s", none, samples=samples), metric(f"{name}_p99_s", none, samples=samples)
    few = Unknown(f"{len(values)} samples, a 99th percentile needs {LEAST_FOR_P99}", ("more requests",))
    high = rank_value(values, 0.99) if len(values) >= LEAST_FOR_P99 else few
    return metric(f"{name}_s", rank_value(values, 0.5), samples=samples), metric(f"{name}_p99_s", high, samples=samples)


def decode_metrics(
    *,
    step_s: float,
    sequences: float | Unknown,
    prefill_s: float | Unknown | None = None,
    tokens_per_sequence: float = 1.0,
    devices: int = 1,
) -> tuple[Metric, ...]:
    """Return the metrics that the steps of a profile of decoding tell.

    Args:
        step_s: Median time of one decode step [s].
        sequences: Sequences that get tokens in a step.
        prefill_s: Time of the step that made the first token [s]; None where the profile has none.
        tokens_per_sequence: Tokens a sequence gets per step; more than 1 with speculation.
        devices: Devices that share the step.

    Assumes: every step serves the same sequences, so TPOT and ITL are the step time over the tokens of a sequence.
        Queueing, scheduling between steps and the network to the client are in no profile.

    64 sequences, 20 ms per step: 3200 token/s.

    >>> {m.name: m.value for m in decode_metrics(step_s=0.02, sequences=64.0)}["output_tokens_per_s"]
    3200.0
    """
    if not (0.0 < step_s < math.inf and tokens_per_sequence > 0.0 and devices >= 1):
        raise UsageError("step time, tokens per sequence and devices must be positive")
    if prefill_s is None:
        prefill_s = Unknown("the profile holds no prefill step", ("time stamps of requests",))
    each = step_s / tokens_per_sequence
    rate = sequences * tokens_per_sequence / step_s
    basis = "steps of a profile; queueing and scheduling are not in it"
    return (
        metric("tokens_per_s_per_device", rate / devices, step_s=step_s, devices=float(devices)),
        metric("output_tokens_per_s", rate, sequences=sequences, step_s=step_s),
        metric("ttft_s", prefill_s, basis=basis),
        metric("tpot_s", each, step_s=step_s, tokens_per_sequence=tokens_per_sequence, basis=basis),
        metric("itl_s", each, step_s=step_s, tokens_per_sequence=tokens_per_sequence, basis=basis),
    )  # fmt: skip
