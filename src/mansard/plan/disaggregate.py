"""Prefill and decode on workers of their own (xPyD), beside one engine that does both: goodput per device under an SLO."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from mansard.core import Unknown
from mansard.core.errors import UndecidedError, UsageError
from mansard.plan.queueing import mean_wait_s
from mansard.plan.workers import Bench, Decoder, Engine, Job, Prefiller, decoder, engine, prefiller, transfer_s
from mansard.predict.bound import Machine
from mansard.workload.parallel import InfeasibleError, Plan
from mansard.workload.records import Model, Moe

#: Workers of one kind in a split that is searched for its ratio alone.
RATIO_MOST = 16
W = TypeVar("W")
NEVER_IDLE = Unknown("prefill workers are never idle, so prompts queue without end", ("--ttft", "--rate"))
#: A gain below this is within what the model of a worker leaves out.
PAYS = 1.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Workers of two kinds.

    Args:
        prefillers, decoders: How many of each.
        prefiller, decoder: What they are.
        rate_per_s: Requests they serve within the limits [1/s].
        ttft_s: Mean, at that rate or at the rate that was asked for: waiting and reading [s]; `Unknown` where
            prefill workers are never idle, since a queue then has no mean.
        tpot_s: Mean over the tokens after the first, the transfer of the cache among them [s].
        transfer_s: Cache of one prompt from one worker to the other [s].
        kv_bytes: Cache of one prompt, each part once [B].
        limited_by: `prefill` or `decode`.
        owned: Devices there are, idle ones too; None: those that are used.
    """

    prefillers: int
    decoders: int
    prefiller: Prefiller
    decoder: Decoder
    rate_per_s: float
    ttft_s: float | Unknown
    tpot_s: float
    transfer_s: float
    kv_bytes: float
    limited_by: str
    owned: int | None = None

    @property
    def devices(self) -> int:
        """Devices of all workers."""
        return self.prefillers * self.prefiller.plan.devices + self.decoders * self.decoder.plan.devices

    @property
    def goodput(self) -> float:
        """Requests per second and device [1/s]."""
        return self.rate_per_s / (self.owned or self.devices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Together:
    """Engines that do both, side by side.

    Args:
        engines: How many.
        engine: What each is.
        rate_per_s: Requests they serve within the limits [1/s].
        owned: Devices there are, idle ones too; None: those that are used.
    """

    engines: int
    engine: Engine
    rate_per_s: float
    owned: int | None = None

    @property
    def devices(self) -> int:
        """Devices of all engines."""
        return self.engines * self.engine.plan.devices

    @property
    def goodput(self) -> float:
        """Requests per second and device [1/s]."""
        return self.rate_per_s / (self.owned or self.devices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Both ways to serve.

    Args:
        splits: The best splits, by what was asked; empty where none meets the limits.
        together: The best engines; `Unknown` where none meets them.
        refused: Why workers were left out: kind of worker -> reason -> how many divisions.
        fastest_prompt_s, fastest_step_s: The least TTFT and TPOT that any worker reaches [s]; infinite where none fits.
    """

    splits: tuple[Split, ...]
    together: Together | Unknown
    refused: dict[str, dict[str, int]]
    fastest_prompt_s: float
    fastest_step_s: float

    @property
    def gain(self) -> float | Unknown:
        """Goodput per device of the best split over that of the best engines."""
        if not self.splits:
            return Unknown("no split meets the limits", ("--ttft", "--tpot"))
        if isinstance(self.together, Unknown):
            return self.together
        return self.splits[0].goodput / self.together.goodput


def divisions(model: Model, most: int) -> tuple[Plan, ...]:
    """Return the ways to divide a model within one worker: powers of two, tensor ranks or data ranks that share experts.

    Args:
        model: The model.
        most: Devices of a worker.
    """
    experts = any(isinstance(b, Moe) for g in model.text.groups for b in g.layer.blocks)
    sizes = [2**k for k in range(most.bit_length()) if 2**k <= most]
    out = [Plan(tp=n) for n in sizes]
    if experts:
        out += [Plan(tp=n, ep=n) for n in sizes if n > 1]
        out += [Plan(dp=n, ep=n) for n in sizes if n > 1]
    return tuple(out)


def compare(
    model: Model, machine: Machine, job: Job, *, most: int, rate_per_s: float | None = None, devices: int | None = None,
    keep: int = 5,
) -> Comparison:  # fmt: skip
    """Return the best splits and the best engines.

    Args:
        model, machine: What is served, and on what.
        job: Prompts, answers and limits.
        most: Devices of one worker at most.
        rate_per_s: Requests to serve: the fewest devices are wanted [1/s].
        devices: Devices there are: the most requests are wanted. Without either, the ratio with the best goodput.
        keep: Splits to return.

    Raises:
        UndecidedError: no division of the model fits a worker, or the link between workers is not known.
        UsageError: a rate and devices together.
    """
    if rate_per_s is not None and devices is not None:
        raise UsageError("a rate asks for devices, and devices for a rate", hint="give --rate or --devices")
    if isinstance(job.kv_bytes_per_s, Unknown):
        raise UndecidedError(f"the link between workers: {job.kv_bytes_per_s.reason}", hint="add --kv-rate RATE")
    benches = []
    refused: dict[str, dict[str, int]] = {"prefill": {}, "decode": {}, "engine": {}}
    why = "no division is possible"
    for plan in divisions(model, most):
        bench = Bench(model, machine, job, plan)
        try:
            fits = bench.memory_bytes(1) <= bench.budget_bytes
        except InfeasibleError as error:
            why = error.message
            continue
        if fits:
            benches.append(bench)
        else:
            why = f"one sequence does not fit {plan.devices} devices"
    if not benches:
        raise UndecidedError(
            f"{model.name} fits no worker of up to {most} x {machine.name}: {why}",
            hint="--worker-most allows larger ones, --weights fp8 or int4:128 smaller weights; plan size counts devices",
        )
    first: list[Prefiller] = _workers(benches, prefiller, refused["prefill"])
    second: list[Decoder] = _workers(benches, decoder, refused["decode"])
    whole: list[Engine] = _workers(benches, engine, refused["engine"])
    splits = [s for p in first for d in second for s in _splits(p, d, job, rate_per_s, devices)]
    kv = benches[0].whole_prompt_bytes
    return Comparison(
        splits=_best(splits, rate_per_s, keep, kv), together=_together(whole, rate_per_s, devices), refused=refused,
        fastest_prompt_s=min(b.prefill_s for b in benches), fastest_step_s=min(b.decode_s(1) for b in benches),
    )  # fmt: skip


def _workers(benches: Sequence[Bench], make: Callable[[Bench], W | str], refused: dict[str, int]) -> list[W]:
    """The workers of a kind that can be; the others are counted by what stops them."""
    out: list[W] = []
    for bench in benches:
        found = make(bench)
        if isinstance(found, str):
            refused[found] = refused.get(found, 0) + 1
        else:
            out.append(found)
    return out


def _splits(p: Prefiller, d: Decoder, job: Job, rate: float | None, devices: int | None) -> list[Split]:
    """How many of both workers: the fewest for a rate, the best within a number of devices, or the best ratio."""
    moved = transfer_s(p, d, job.kv_bytes_per_s)
    assert not isinstance(moved, Unknown)
    tpot = d.tpot_s + moved / (job.output - 1.0)
    if job.tpot_s is not None and tpot > job.tpot_s:
        return []
    # Every device of a worker receives for each request, so the link bounds the rate of a worker too.
    ranks = d.plan.dp
    decode = min(d.rate_per_s, ranks / moved if moved > 0.0 else math.inf)
    prefill = min(p.rate_per_s, p.plan.dp / moved if moved > 0.0 else math.inf)
    size_p, size_d = p.plan.devices, d.plan.devices
    if rate is not None:
        counts = [(math.ceil(rate / prefill - 1e-9), math.ceil(rate / decode - 1e-9))]
    elif devices is not None:
        counts = _crossing(devices, (size_p, prefill), (size_d, decode))
    else:
        counts = [(x, y) for x in range(1, RATIO_MOST + 1) for y in range(1, RATIO_MOST + 1) if math.gcd(x, y) == 1]
    best: Split | None = None
    for x, y in counts:
        if x < 1 or y < 1:
            continue
        served = min(x * prefill, y * decode) if rate is None else rate
        wait = mean_wait_s(rate_per_s=served / x / p.plan.dp, service_s=p.service_s)
        split = Split(
            prefillers=x, decoders=y, prefiller=p, decoder=d, rate_per_s=served, ttft_s=NEVER_IDLE if math.isinf(wait) else p.service_s + wait, tpot_s=tpot,
            transfer_s=moved, kv_bytes=0.0, limited_by="prefill" if x * prefill <= y * decode else "decode", owned=devices,
        )  # fmt: skip
        if best is None or split.goodput > best.goodput * (1.0 + 1e-9):
            best = split
    return [] if best is None else [best]


def _crossing(devices: int, prefill: tuple[int, float], decode: tuple[int, float]) -> list[tuple[int, int]]:
    """Return the two counts among which the best is: prompts read grow with prefill workers, tokens made by the rest fall.

    Args:
        devices: Devices there are.
        prefill, decode: Devices of one worker of each kind, and requests that it serves [1/s].

    Two devices a worker, 10 requests/s against 5: of 12 devices, two read and four answer.

    >>> _crossing(12, (2, 10.0), (2, 5.0))[0]
    (2, 4)
    """

    def rest(x: int) -> int:
        return (devices - x * prefill[0]) // decode[0]

    low, high = 0, devices // prefill[0]  # the most prefill workers that the others keep up with
    while low < high:
        x = (low + high + 1) // 2
        low, high = (x, high) if x * prefill[1] <= rest(x) * decode[1] else (low, x - 1)
    return [(x, rest(x)) for x in (low, low + 1)]


def _best(splits: Sequence[Split], rate: float | None, keep: int, kv_bytes: float) -> tuple[Split, ...]:
    def order(s: Split) -> tuple[float, ...]:
        return (
            s.devices if rate is not None else -s.goodput,
            s.tpot_s,
            math.inf if isinstance(s.ttft_s, Unknown) else s.ttft_s,
            s.devices,
        )

    return tuple(replace(s, kv_bytes=kv_bytes) for s in sorted(splits, key=order)[:keep])


def _together(engines: Sequence[Engine], rate: float | None, devices: int | None) -> Together | Unknown:
    """The best engines for the same question."""
    found = []
    for one in engines:
        size = one.plan.devices
        if rate is not None:
            many = math.ceil(rate / one.rate_per_s - 1e-9)
            found.append(Together(engines=many, engine=one, rate_per_s=rate))
        elif devices is None:
            found.append(Together(engines=1, engine=one, rate_per_s=one.rate_per_s))
        elif devices >= size:
            many = devices // size
            found.append(Together(engines=many, engine=one, rate_per_s=many * one.rate_per_s, owned=devices))
    if not found:
        return Unknown("no engine that does both meets the limits", ("--ttft", "--tpot"))
    if rate is not None:
        return min(found, key=lambda t: (t.devices, t.engine.tpot_s))
    if devices is not None:
        return max(found, key=lambda t: t.rate_per_s)
    return max(found, key=lambda t: t.goodput)
