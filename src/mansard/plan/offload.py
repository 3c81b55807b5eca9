"""Experts or layers that stay on the host: what a miss costs, how often it happens, and how many tokens per second are left.

The step without any miss is the bound of `predict`; what misses add is bytes over the effective bandwidth of the link.
Two ends are given: misses hide behind the rest of the step (layers can be fetched ahead), or each waits (which expert is
needed is known only when its layer starts).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from mansard.core import Unknown, is_known, least_time_s
from mansard.core.errors import UsageError
from mansard.core.units import format_bytes
from mansard.plan.expert_cache import (
    Floats,
    Replay,
    draw,
    layers_hit_ratio,
    lru_hit_ratio,
    replay,
    static_hit_ratio,
    together,
)
from mansard.plan.link_use import CpuOrLink, cpu_or_link
from mansard.plan.size import floor_of
from mansard.predict.bound import Machine
from mansard.predict.estimate import Request, estimate, setting_of
from mansard.workload.blocks.weight import Weight
from mansard.workload.phases import Setting
from mansard.workload.records import Model, Moe

POLICIES = ("lru", "static")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bank:
    """Units that can be left on the host: the experts of each layer, or the layers.

    Args:
        unit: `expert` or `layer`.
        unit_bytes: Bytes of one, the mean where they differ [B].
        unit_params: Weights in one.
        items: Units that one cache chooses among: experts of a layer, or layers.
        per_token: Units of them that one token uses.
        layers: Caches of that kind: layers with experts; 1 for layers.
    """

    unit: str
    unit_bytes: float
    unit_params: float | Unknown
    items: int
    per_token: int
    layers: int

    def __post_init__(self) -> None:
        if not 0.0 < self.unit_bytes < math.inf:
            raise UsageError(f"a unit has {self.unit_bytes} bytes, expected a positive number")
        if self.items < 1 or self.layers < 1 or not 1 <= self.per_token <= self.items:
            raise UsageError(
                f"{self.per_token} of {self.items} {self.unit}s per token in {self.layers} layers",
                hint="at least one, and no more per token than there are",
            )

    @property
    def total_bytes(self) -> float:
        """All units [B]."""
        return self.unit_bytes * self.items * self.layers


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """What the device does and holds beside the units; unknown for a bank without a model.

    Args:
        step_s: Floor of a decode step with everything in device memory [s].
        resident_bytes: What must stay on the device beside the units: other weights, cache, activations [B].
        budget_bytes: What the device may hold [B].
        assumed: What was taken for granted.
    """

    step_s: float | Unknown
    resident_bytes: float | Unknown
    budget_bytes: float | Unknown
    assumed: tuple[str, ...] = ()


def bank_of(model: Model, request: Request, unit: str) -> Bank:
    """Return the units of a model as they are stored.

    Raises:
        UsageError: experts are asked for and the model has none, or its layers differ in them.
    """
    setting, _ = setting_of(model, request)
    if unit == "layer":
        return _layers(model, setting)
    blocks = [(b, g.count) for g in model.text.groups for b in g.layer.blocks if isinstance(b, Moe)]
    if not blocks:
        raise UsageError(f"{model.name} has no experts", hint="--unit layer leaves whole layers on the host")
    shapes = {(b.experts, b.top_k) for b, _ in blocks}
    if len(shapes) > 1:
        raise UsageError(f"{model.name} has layers with different numbers of experts: {sorted(shapes)}")
    experts, top_k = shapes.pop()
    layers = sum(count for _, count in blocks)
    size, params = _sizes(setting, lambda _path, weight: weight.active is not None)
    return Bank(
        unit="expert", unit_bytes=size / (experts * layers), unit_params=params / (experts * layers), items=experts,
        per_token=top_k, layers=layers,
    )  # fmt: skip


def _layers(model: Model, setting: Setting) -> Bank:
    depth = model.text.depth
    size, params = _sizes(setting, lambda path, _weight: path == model.text.path)
    return Bank(
        unit="layer", unit_bytes=size / depth, unit_params=params / depth, items=depth, per_token=depth, layers=1
    )


def _sizes(setting: Setting, chosen: Callable[[str, Weight], bool]) -> tuple[float, float]:
    """Bytes and weights of the stored tensors of the text model that are chosen."""
    size = params = 0.0
    for stack, path, weight, copies, stored in setting.storage.store.every(mtp=False):
        if stack == setting.model.text.name and chosen(path, weight):
            size += stored.total * copies
            params += float(weight.elements) * copies
    return size, params


def rest_of(model: Model, request: Request, machine: Machine, bank: Bank) -> Rest:
    """Return what one device does and holds beside the units, from the estimate of the decode step."""
    result = estimate(model, request, machine)
    return Rest(
        step_s=floor_of(result),
        resident_bytes=result.memory.total_bytes - bank.total_bytes,
        budget_bytes=machine.memory_bytes * request.memory_fraction,
        assumed=result.assumed,
    )


NO_MODEL = Unknown("no model was given, so what the device does beside the units is not known", ("MODEL",))
ALONE = Rest(step_s=NO_MODEL, resident_bytes=NO_MODEL, budget_bytes=NO_MODEL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """How units are asked for.

    Args:
        name: `uniform`, `zipf 1.1`, `trace FILE`, or `in order` for layers.
        token: Probability of each unit to be asked for by a token; None for a trace and for layers.
        replays: A recorded sequence, one for each layer that was recorded, already in steps of the batch.
    """

    name: str
    token: Floats | None = None
    replays: tuple[Replay, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosts:
    """What the host offers.

    Args:
        link_bytes_per_s: Effective bandwidth of the link to it [B/s].
        cpu_bytes_per_s, cpu_flop_per_s: Its memory bandwidth and peak [B/s, FLOP/s].
    """

    link_bytes_per_s: float
    cpu_bytes_per_s: float | Unknown
    cpu_flop_per_s: float | Unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload:
    """One size of the cache under one policy.

    Args:
        policy: `lru` or `static`.
        capacity: Units of each layer that are kept on the device.
        hit_ratio: Share of requests that it answers.
        simulated_hit_ratio: The same by replaying a drawn sequence; None where it was not drawn, or the trace is exact.
        requests_per_step, misses_per_step: Units of all layers.
        miss_bytes_per_step: [B].
        link_s: Fetching them [s].
        floor_s: Floor of a step where fetching hides behind the rest [s]; `Unknown` rest counts as `link_s`, said in notes.
        serial_s: Where each miss waits [s].
        cpu_serial_s: Where the host computes what is missed, one unit after the other [s].
        memory_bytes: What the device holds [B].
        fits: Whether it does.
        why_not: Why not.
    """

    policy: str
    capacity: int
    hit_ratio: float
    simulated_hit_ratio: float | None
    requests_per_step: float
    misses_per_step: float
    miss_bytes_per_step: float
    link_s: float
    floor_s: float
    serial_s: float | Unknown
    cpu_serial_s: float | Unknown
    memory_bytes: float | Unknown
    fits: bool | Unknown
    why_not: str | None


def hit_ratio(bank: Bank, routing: Routing, policy: str, capacity: int, batch: int) -> float:
    """Return the share of requests that the cache of one layer answers.

    Args:
        bank: The units.
        routing: How they are asked for.
        policy: `lru` (Che's approximation for a distribution, exact for a trace) or `static`.
        capacity: Units it holds.
        batch: Tokens of a step.
    """
    if bank.unit == "layer":
        return layers_hit_ratio(policy, layers=bank.items, capacity=capacity)
    if routing.replays:
        total = sum(r.requests for r in routing.replays)
        found = [
            r.lru_hit_ratio(capacity) if policy == "lru" else r.static_hit_ratio(capacity) for r in routing.replays
        ]
        return sum(f * r.requests for f, r in zip(found, routing.replays, strict=True)) / total
    if routing.token is None:
        raise UsageError("no routing was given", hint="uniform, zipf:EXPONENT or trace:FILE")
    asked = together(routing.token, batch)
    return lru_hit_ratio(asked, capacity) if policy == "lru" else static_hit_ratio(asked, capacity)


def requests_per_step(bank: Bank, routing: Routing, batch: int) -> float:
    """Return how many different units of all layers a step of `batch` tokens asks for."""
    if bank.unit == "layer":
        return float(bank.items)
    if routing.replays:
        return bank.layers * sum(r.requests for r in routing.replays) / sum(r.steps for r in routing.replays)
    if routing.token is None:
        raise UsageError("no routing was given", hint="uniform, zipf:EXPONENT or trace:FILE")
    return bank.layers * float(together(routing.token, batch).sum())


def offload(
    bank: Bank, routing: Routing, host: Hosts, rest: Rest, *, policy: str, capacity: int, batch: int = 1,
    simulated: Replay | None = None,
) -> Offload:  # fmt: skip
    """Return what a cache of a size leaves of a decode step.

    Args:
        bank: The units.
        routing: How they are asked for.
        host: The link and the host.
        rest: What the device does beside.
        policy: `lru` or `static`.
        capacity: Units of each layer that are kept.
        batch: Tokens of a step.
        simulated: A drawn sequence, to set beside the formula.

    Raises:
        UsageError: an unknown policy, or more units kept than there are.
    """
    if policy not in POLICIES or not 0 <= capacity <= bank.items:
        raise UsageError(f"a {policy} cache of {capacity} of {bank.items} units", hint=f"{' or '.join(POLICIES)}")
    hits = hit_ratio(bank, routing, policy, capacity, batch)
    asked = requests_per_step(bank, routing, batch)
    misses = asked * (1.0 - hits)
    size = misses * bank.unit_bytes
    link_s = size / host.link_bytes_per_s
    step = rest.step_s
    cpu = choice(bank, host, tokens_of_unit(bank, asked, batch)).cpu_s
    # What is fetched needs a place; an LRU cache gives it one of its own.
    place = bank.unit_bytes if capacity < bank.items and (policy == "static" or capacity == 0) else 0.0
    memory = rest.resident_bytes + bank.unit_bytes * capacity * bank.layers + place
    fits: bool | Unknown = memory <= rest.budget_bytes if is_known(memory) and is_known(rest.budget_bytes) else NO_MODEL
    why = None
    if fits is False and is_known(memory) and is_known(rest.budget_bytes):
        why = f"one device needs {format_bytes(memory)} and may hold {format_bytes(rest.budget_bytes)}"
    seen = None
    if simulated is not None:
        seen = simulated.lru_hit_ratio(capacity) if policy == "lru" else simulated.static_hit_ratio(capacity)
    return Offload(
        policy=policy, capacity=capacity, hit_ratio=hits, simulated_hit_ratio=seen, requests_per_step=asked,
        misses_per_step=misses, miss_bytes_per_step=size, link_s=link_s,
        floor_s=float(least_time_s([link_s, step])) if is_known(step) else link_s, serial_s=step + link_s,
        cpu_serial_s=step + cpu * misses, memory_bytes=memory, fits=fits, why_not=why,
    )  # fmt: skip


def tokens_of_unit(bank: Bank, asked: float, batch: int) -> float:
    """Return the mean tokens of a step that need one of the units it asks for."""
    return batch * bank.per_token * bank.layers / asked


def choice(bank: Bank, host: Hosts, tokens: float) -> CpuOrLink:
    """Return whether the host computes a missed unit sooner than the link brings it."""
    return cpu_or_link(
        unit_bytes=bank.unit_bytes, unit_params=bank.unit_params, tokens=tokens, link_bytes_per_s=host.link_bytes_per_s,
        cpu_bytes_per_s=host.cpu_bytes_per_s, cpu_flop_per_s=host.cpu_flop_per_s,
    )  # fmt: skip


def simulate(bank: Bank, token: Floats, *, steps: int, seed: int, batch: int = 1) -> Replay:
    """Return the hits of a drawn sequence, the first fifth of which only fills the cache."""
    warmup = steps // 5
    drawn = draw(token, steps=steps + warmup, seed=seed, tokens=batch)
    order = np.argsort(-token, kind="stable").tolist()
    return replay(drawn, items=bank.items, warmup=warmup, order=order)


def sizes(bank: Bank, rest: Rest, asked: Sequence[int] = ()) -> tuple[int, ...]:
    """Return the cache sizes to look at: those asked for, or eighths of all units and the largest that fits."""
    if asked:
        return tuple(dict.fromkeys(asked))
    found = {round(bank.items * k / 8) for k in range(9)}
    if is_known(rest.resident_bytes) and is_known(rest.budget_bytes):
        room = (rest.budget_bytes - rest.resident_bytes - bank.unit_bytes) / (bank.unit_bytes * bank.layers)
        if 0.0 <= room < bank.items:
            found.add(math.floor(room))
    return tuple(sorted(found))
