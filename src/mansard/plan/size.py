"""How many devices hold a model, how fast they can then be, and what that costs.

The count is found by memory first: for each way to divide the model the fewest devices that hold it, then the fewest of
all, and of those the fastest. Where these are pipeline stages, serving takes tensor parallelism within a node instead if that
holds it, and says what the fewest are. Times are those of `predict`: a bound, and a range where comparable runs are on record.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mansard.core import Bound, Unknown, is_known
from mansard.core.errors import UsageError
from mansard.core.units import format_bytes, format_s
from mansard.diagnose.economics import DevicePrice, cost_of
from mansard.diagnose.economics import Plan as Priced
from mansard.plan.divisions import divisions_of
from mansard.plan.params import NO_CONFIG, Params, weights_floor
from mansard.plan.site import Site
from mansard.predict.bound import PhaseBound
from mansard.predict.calibration import prediction_of
from mansard.predict.estimate import Estimate, Request, estimate, setting_of
from mansard.workload.cache import CacheLayout
from mansard.workload.memory import Memory
from mansard.workload.parallel import InfeasibleError, Plan
from mansard.workload.records import Model
from mansard.workload.stages import Parts, group_caches, parts_of, stage_caches
from mansard.workload.training import Recipe

#: Tensor-parallel ranks tried where the node of a product is on no record.
TP_MOST = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What the devices must do.

    Args:
        phase: `serve` (a prompt, then decode), `decode`, `prefill` or `train`.
        context: Tokens of a sequence: the keys of a decode step, and the prompt of a prefill.
        concurrency: Sequences served at once.
        seq, batch: Tokens per sequence and sequences per step of a training run.
        run_tokens: Tokens of the whole training run; None: unknown.
        dtype, weights, kv: As in `predict.estimate.Request`.
        recipe: Optimizer and recomputation of a training run.
        memory_fraction: Share of the memory that may be used.
        devices: Devices to use; None searches for the fewest.
        most: Devices at which the search gives up.
        tp_most: Largest tensor-parallel group; None takes the node, or 8 where it is on no record.
        tower_tokens: Tokens per sequence of each tower or encoder.
    """

    phase: str = "serve"
    context: int | None = None
    concurrency: int = 1
    seq: int | None = None
    batch: int | None = None
    run_tokens: float | None = None
    dtype: str | None = None
    weights: str | None = None
    kv: str | None = None
    recipe: Recipe = field(default_factory=Recipe)
    memory_fraction: float = 1.0
    devices: int | None = None
    most: int = 4096
    tp_most: int | None = None
    tower_tokens: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0.0 < self.memory_fraction <= 1.0:
            raise UsageError(f"the memory fraction is {self.memory_fraction}, expected a share above 0 and up to 1")
        for name in ("context", "concurrency", "seq", "batch", "devices", "most", "tp_most"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{name} is {value}, expected a positive number")
        if self.run_tokens is not None and not 0.0 < self.run_tokens < math.inf:
            raise UsageError(f"the tokens of the run are {self.run_tokens}, expected a positive number")


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """A time: its bound, and an expectation where comparable runs are on record [s]."""

    low_s: float | Unknown
    expected_s: float | Unknown
    high_s: float | Unknown
    basis: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """A model on one kind of device.

    Args:
        model, device: Names.
        devices: Devices used; `Unknown` where no count holds it.
        plan: How the work is divided; None for a size without a configuration.
        fits: Whether they hold it.
        memory_bytes: What the fullest device holds [B].
        budget_bytes: What it may hold [B].
        parts: The memory by what it holds [B].
        one_device_bytes: What a single device would have to hold [B].
        short_bytes: By how much that exceeds its memory [B]; 0 where it does not.
        time_s: Floor of a decode step, of a prefill, or of a training step [s].
        tpot, ttft, step: The ranges of what was asked.
        tokens_per_s: Ceiling of all devices [token/s].
        one_device_weights_s: One device reading the weights a token multiplies with, were it large enough [s].
        all_weights_s: The devices reading all weights once [s].
        usd: Of a million tokens, or of the training run, at the ceiling: no less [USD].
        usd_expected: The same at the expected time [USD].
        price: Of one device.
        bound: What the floor is bound by.
        why_not: Why it does not fit, or what is not known.
        notes: What was taken for granted.
    """

    model: str
    device: str
    devices: int | Unknown
    plan: Plan | None
    fits: bool | Unknown
    memory_bytes: float | Unknown
    budget_bytes: float | Unknown
    parts: dict[str, float | Unknown]
    one_device_bytes: float
    short_bytes: float | Unknown
    time_s: float | Unknown
    tpot: Range | None
    ttft: Range | None
    step: Range | None
    tokens_per_s: float | Unknown
    one_device_weights_s: float | Unknown
    all_weights_s: float | Unknown
    usd: float | Unknown
    usd_expected: float | Unknown
    price: DevicePrice | Unknown
    bound: str
    why_not: str | None
    notes: tuple[str, ...] = ()


def size_params(params: Params, site: Site, job: Job) -> Sizing:
    """Return what is known of a model by its size alone: the weights.

    Raises:
        UsageError: a phase that needs layers.
    """
    if job.phase not in ("serve", "decode"):
        raise UsageError(
            f"the phase {job.phase} needs the model's layers", hint="give its config.json, or a shipped name"
        )
    machine = site.machine
    budget = machine.memory_bytes * job.memory_fraction
    floor = weights_floor(
        params, machine, concurrency=job.concurrency, devices=job.devices, fraction=job.memory_fraction
    )
    unknown = floor if isinstance(floor, Unknown) else None
    found = None if isinstance(floor, Unknown) else floor
    fits: bool | Unknown = budget if isinstance(budget, Unknown) else True
    why = None if unknown is None else unknown.reason
    if found is not None and is_known(budget):
        fits = found.device_bytes <= budget
        why = None if fits else _too_much(found.devices, found.device_bytes, budget, params.weight_bytes)
    time_s = found.time_s if found else unknown or NO_CONFIG
    if fits is False:
        time_s = Unknown(f"it does not fit: {why}", ("--devices",))
    tokens = time_s if isinstance(time_s, Unknown) else job.concurrency / time_s
    usd = _usd(site.price, found.devices, time_s, float(job.concurrency)) if found else unknown or NO_CONFIG
    none = Unknown("a size without layers has no comparable runs", NO_CONFIG.needs)
    batch = job.concurrency > 1 and params.active < params.total
    return Sizing(
        model=params.name, device=machine.name, devices=found.devices if found else unknown or NO_CONFIG, plan=None,
        fits=fits, memory_bytes=found.device_bytes if found else unknown or NO_CONFIG, budget_bytes=budget,
        parts={
            "weight_bytes": found.device_bytes if found else unknown or NO_CONFIG, "kv_cache_bytes": NO_CONFIG,
            "activation_bytes": NO_CONFIG,
        },
        one_device_bytes=params.weight_bytes, short_bytes=_short_of(params.weight_bytes, budget), time_s=time_s,
        tpot=Range(low_s=time_s, expected_s=none, high_s=none, basis="the weights alone"), ttft=None, step=None,
        tokens_per_s=tokens, one_device_weights_s=found.one_device_s if found else unknown or NO_CONFIG,
        all_weights_s=found.all_s if found else unknown or NO_CONFIG, usd=usd, usd_expected=none, price=site.price,
        bound=found.bound if found else "undetermined", why_not=why,
        notes=(
            "weights alone: cache, activations and messages are not known without a configuration",
            *(("a batch of a mixture reads at least the weights of one token",) if batch else ()), *params.storage_notes,
            *site.notes,
        ),
    )  # fmt: skip


def size_model(model: Model, site: Site, job: Job) -> Sizing:
    """Return the devices that hold a model for a job, and what they do: the fewest, in the node by tensor parallelism.

    Args:
        model: The model.
        site: The kind of device.
        job: What is asked.

    Raises:
        UsageError: a dimension that the phase needs is missing.
    """
    _check(job)
    machine = site.machine
    budget = machine.memory_bytes * job.memory_fraction
    one = _memory(model, job, Plan(zero=3 if job.phase == "train" else 0), 1)
    short = _short_of(one.total_bytes, budget)
    if isinstance(budget, Unknown) and job.devices is None:
        return _without(model, site, one, budget, short, budget.reason)
    tp_most = job.tp_most or (site.node_devices if isinstance(site.node_devices, int) else TP_MOST)
    chosen, refused = _fewest(model, job, divisions_of(model, job, tp_most), budget)
    if not chosen:
        why = f"not within {job.most} devices: {refused}" if job.devices is None else refused
        return _without(model, site, one, budget, short, why)
    notes = list(site.notes)
    if isinstance(site.node_devices, Unknown) and job.tp_most is None:
        notes.append(f"{site.node_devices.reason}: tensor parallelism up to {TP_MOST}")

    def fastest(ways: list[tuple[Plan, Memory]], *more: str) -> Sizing:
        told = (*notes, *more)
        return min((_timed(model, site, job, *way, budget, one.total_bytes, told) for way in ways), key=_speed)

    found = fastest(chosen)
    staged = found.plan is not None and found.plan.pp > 1
    if not staged or job.devices is not None or job.phase == "train":
        return found
    several = job.tp_most is not None or isinstance(site.node_devices, int)
    served = _tensor_first(model, job, tp_most, budget, several=several)
    better = fastest(served, _fewer(found)) if served else found
    # Where the link is on no record, messages of tensor ranks have no time: then the fewest devices it is.
    return better if is_known(better.time_s) else found


def _speed(s: Sizing) -> tuple[bool, float, float]:
    return (
        s.fits is not True,
        s.time_s if is_known(s.time_s) else math.inf,
        s.memory_bytes if is_known(s.memory_bytes) else math.inf,
    )


def _fewer(s: Sizing) -> str:
    """What the fewest devices are, where another division is shown."""
    split = " ".join(f"{k}{v}" for k, v in (("tp", s.plan.tp), ("pp", s.plan.pp)) if v > 1) if s.plan else ""
    took = f", {format_s(s.time_s)} at least" if is_known(s.time_s) else ""
    each = f", {format_bytes(s.memory_bytes)} each" if is_known(s.memory_bytes) else ""
    return f"the fewest {s.device} that hold it are {s.devices} in pipeline stages ({split}{each}{took})"


def _check(job: Job) -> None:
    if job.phase == "train":
        if job.seq is None or job.batch is None:
            raise UsageError(
                "training needs the tokens of a sequence and the sequences of a step", hint="add --seq N --batch N"
            )
        return
    if job.phase not in ("serve", "decode", "prefill"):
        raise UsageError(f"unknown phase {job.phase!r}", hint="one of serve, decode, prefill, train")
    if job.context is None:
        raise UsageError("serving needs the length of a sequence", hint="add --context N")


def _requests(job: Job, plan: Plan, sequences: int) -> list[Request]:
    """The phases that the devices must do, the one that `time_s` belongs to first."""
    common = Request(
        phase="decode", plan=plan, dtype=job.dtype, weights=job.weights, kv=job.kv, memory_fraction=job.memory_fraction,
        tower_tokens=job.tower_tokens,
    )  # fmt: skip
    if job.phase == "train":
        steps = (job.batch or 1) // plan.dp
        return [
            replace(common, phase="train", seq=job.seq, batch=job.batch or 1, accumulation=steps, recipe=job.recipe)
        ]
    decode = replace(common, context=job.context, batch=sequences)
    # A prompt is read by one replica; its time is that of a single request.
    prefill = replace(common, phase="prefill", seq=job.context, batch=plan.dp)
    return {"serve": [decode, prefill], "decode": [decode], "prefill": [prefill]}[job.phase]


def _memory(model: Model, job: Job, plan: Plan, stages: int) -> Memory:
    """What the fullest device holds when `plan` is divided further into pipeline stages."""
    found = [_memory_of(model, request) for request in _requests(job, plan, job.concurrency)]
    first = replace(found[0], activation_bytes=max(m.activation_bytes for m in found))
    if stages == 1:
        return first
    weights, cache = _static_of(model, _requests(job, plan, job.concurrency)[0], stages)
    return replace(first, weight_bytes=weights, kv_cache_bytes=cache)


_PARTS: dict[tuple[int, str], tuple[Model, Parts, tuple[CacheLayout, ...]]] = {}


def _static_of(model: Model, request: Request, stages: int) -> tuple[float, float]:
    """Weights and cache of the fullest of some pipeline stages, from parts that are remembered [B]."""
    key = (id(model), repr(request))
    if key not in _PARTS:
        if len(_PARTS) > 256:
            _PARTS.clear()
        setting, _ = setting_of(model, request)
        types = setting.types
        caches = group_caches(model, dtype=types.cache, state_dtype=types.state, tp=request.plan.tp)
        _PARTS[key] = (model, parts_of(setting), caches)
    _, parts, caches = _PARTS[key]
    length = float(request.context or request.seq or 0)
    sequences = request.batch / request.plan.dp
    pairs = [
        (weights.bytes, cache.bytes_for(length, float(request.tower_tokens.get("encoder", 0))) * sequences)
        for weights, cache in zip(parts.by_stage(stages), stage_caches(model.text, caches, stages), strict=True)
    ]
    return max(pairs, key=sum)


_KNOWN: dict[tuple[int, str], tuple[Model, Memory]] = {}


def _memory_of(model: Model, request: Request) -> Memory:
    """The memory of a request, remembered: it is the same on every machine."""
    key = (id(model), repr(request))
    if key not in _KNOWN:
        if len(_KNOWN) > 4096:
            _KNOWN.clear()
        _KNOWN[key] = (model, estimate(model, request).memory)
    return _KNOWN[key][1]


def _tensor_first(
    model: Model, job: Job, tp_most: int, budget: float | Unknown, *, several: bool
) -> list[tuple[Plan, Memory]]:
    """Divisions as they are served: tensor parallel within a node, and stages only over `several` nodes that are full."""
    divisions = list(divisions_of(model, job, tp_most))
    found, _ = _fewest(model, job, [(base, (1,)) for base, _ in divisions], budget)
    for tp in range(tp_most, 1, -1) if several else ():
        if found:
            break
        found, _ = _fewest(model, job, [d for d in divisions if d[0].tp == tp], budget)
    return found


def _fewest(
    model: Model, job: Job, divisions: Iterable[tuple[Plan, Sequence[int]]], budget: float | Unknown
) -> tuple[list[tuple[Plan, Memory]], str]:
    """The ways to divide the work over the fewest devices that hold it, or over the devices that were asked for."""
    found: list[tuple[Plan, Memory]] = []
    refused = "no division is possible"
    least = math.inf
    fewest = job.most if job.devices is None else job.devices
    for base, ways in divisions:
        for stages in ways:
            devices = base.tp * base.dp * stages
            if devices > fewest or (job.devices is not None and devices != job.devices):
                continue
            try:
                memory = _memory(model, job, base, stages)
                plan = replace(base, pp=stages)
            except InfeasibleError as error:
                refused = error.message if least == math.inf else refused
                break
            need = memory.total_bytes
            if is_known(budget) and need > budget:
                if need < least:
                    least, refused = need, _too_much(devices, need, budget, need * devices)
                if job.devices is None:
                    continue
            found.append((plan, memory))
            if job.devices is None:
                fewest = devices
                break
    if job.devices is None:
        return [f for f in found if f[0].devices == fewest], refused
    holds = [f for f in found if isinstance(budget, Unknown) or f[1].total_bytes <= budget]
    # Where none holds it, the one that comes nearest says by how much.
    return holds or sorted(found, key=lambda f: f[1].total_bytes)[:1], refused


def _timed(
    model: Model, site: Site, job: Job, plan: Plan, memory: Memory, budget: float | Unknown, one: float,
    notes: tuple[str, ...],
) -> Sizing:  # fmt: skip
    """The times and costs of one division."""
    # Pipeline stages each work on a part of the sequences. All sequences have their token when the fullest part has it, as in
    # `plan.shard.serving`.
    sequences = -(-job.concurrency // (plan.pp * plan.dp)) * plan.dp
    results = [estimate(model, request, site.machine) for request in _requests(job, plan, sequences)]
    need = memory.total_bytes
    fits: bool | Unknown = budget if isinstance(budget, Unknown) else need <= budget
    why = _too_much(plan.devices, need, budget, need * plan.devices) if is_known(budget) and need > budget else None
    ranges = {r.phase.name: _range(r) if why is None else _no_range(why) for r in results}
    first = ranges[results[0].phase.name]
    tokens = float(results[0].phase.tokens)
    if results[0].phase.name == "decode":
        tokens = float(job.concurrency)
    elif results[0].phase.name == "prefill":
        # Stages read different prompts at once, as many as there are.
        tokens *= min(plan.pp, job.concurrency)
    bandwidth = site.machine.ceilings.bandwidth(site.machine.memory_level, read_ratio=1.0, scope=site.machine.scope)
    rate = bandwidth if isinstance(bandwidth, Unknown) else bandwidth.value
    bound = results[0].bound
    run = job.run_tokens if job.phase == "train" else 1e6
    work = Unknown("the tokens of the training run are not known", ("--run-tokens",)) if run is None else run
    return Sizing(
        model=model.name, device=site.machine.name, devices=plan.devices, plan=plan, fits=fits, memory_bytes=need,
        budget_bytes=budget, parts=_parts(memory), one_device_bytes=one, short_bytes=_short_of(one, budget),
        time_s=first.low_s, tpot=ranges.get("decode"), ttft=ranges.get("prefill"), step=ranges.get("train"),
        tokens_per_s=tokens / first.low_s if is_known(first.low_s) else first.low_s,
        one_device_weights_s=_token_bytes(model, results[0].request) / rate,
        all_weights_s=memory.whole_weight_bytes / rate / (plan.tp * plan.pp),
        usd=_usd(site.price, plan.devices, first.low_s, tokens, work),
        usd_expected=_usd(site.price, plan.devices, first.expected_s, tokens, work), price=site.price,
        bound=bound.bound.value if isinstance(bound, PhaseBound) else "undetermined",
        why_not=why if why is not None else first.low_s.reason if isinstance(first.low_s, Unknown) else None,
        notes=(*notes, *results[0].assumed),
    )  # fmt: skip


def _token_bytes(model: Model, request: Request) -> float:
    """Weights that one token of the text model multiplies with: no rows of tables, no towers [B]."""
    storage = setting_of(model, request)[0].storage
    size = 0.0
    for stack, _, weight, copies, stored in storage.store.every(mtp=False):
        if weight.role == "matmul" and stack in (model.text.name, "head"):
            share = 1.0 if weight.active is None else weight.active / weight.copies
            size += storage.bytes_of(weight, "") if weight.tied else stored.total * copies * share
    return size


def floor_of(result: Estimate) -> float | Unknown:
    """Return the bound of an estimate [s]; unknown where a resource that could decide it has no ceiling."""
    bound = result.bound
    if isinstance(bound, Unknown):
        return bound
    for row in bound.kernels:
        # Vector work alone, such as a rotation on the chip, does not decide a step; a floor may leave it out.
        matters = row.demand.flop or row.demand.link_bytes or float(row.demand.bytes) > 0
        if row.bound is Bound.UNDETERMINED and matters:
            return _first_unknown(row.least.unknown)
    return bound.time_s


def _range(result: Estimate) -> Range:
    """The range of a phase."""
    floor = floor_of(result)
    if isinstance(floor, Unknown):
        return Range(low_s=floor, expected_s=floor, high_s=floor, basis="a ceiling is missing")
    prediction = prediction_of(result)
    return Range(
        low_s=prediction.low_s, expected_s=prediction.expected_s, high_s=prediction.high_s, basis=prediction.basis
    )


def _no_range(why: str) -> Range:
    none = Unknown(f"it does not fit: {why}", ("--devices",))
    return Range(low_s=none, expected_s=none, high_s=none, basis="does not fit")


def _first_unknown(missing: Sequence[Unknown]) -> Unknown:
    return missing[0] if missing else Unknown("a ceiling that could decide the time is on no record", ("--on FILE",))


def _usd(
    price: DevicePrice | Unknown, devices: int, time_s: float | Unknown, tokens: float, work: float | Unknown = 1e6
) -> float | Unknown:
    """Cost of `work` tokens where `devices` make `tokens` in `time_s` [USD]."""
    if isinstance(time_s, Unknown):
        return time_s
    cost = cost_of(Priced(name="plan", step_s=time_s, devices=devices, tokens_per_step=tokens, price=price))
    return cost.usd_per_token * work


def _parts(memory: Memory) -> dict[str, float | Unknown]:
    names = ("weight_bytes", "kv_cache_bytes", "activation_bytes", "gradient_bytes", "optimizer_bytes")
    return {name: getattr(memory, name) for name in names}


def _short_of(need: float, budget: float | Unknown) -> float | Unknown:
    return budget if isinstance(budget, Unknown) else max(0.0, need - budget)


def _too_much(devices: int, need: float, budget: float, whole: float) -> str:
    each = "one device needs" if devices == 1 else f"each of {devices} devices needs"
    return (
        f"{each} {format_bytes(need)} and may hold {format_bytes(budget)}: {format_bytes(need - budget)} short "
        f"({math.ceil(whole / budget)} devices if it divided evenly)"
    )


def _without(
    model: Model, site: Site, one: Memory, budget: float | Unknown, short: float | Unknown, why: str
) -> Sizing:
    """The answer where no number of devices was found."""
    none = Unknown(why, ("--devices",))
    return Sizing(
        model=model.name, device=site.machine.name, devices=none, plan=None,
        fits=budget if isinstance(budget, Unknown) else False, memory_bytes=one.total_bytes, budget_bytes=budget,
        parts=_parts(one), one_device_bytes=one.total_bytes, short_bytes=short, time_s=none, tpot=None, ttft=None,
        step=None, tokens_per_s=none, one_device_weights_s=none, all_weights_s=none, usd=none, usd_expected=none,
        price=site.price, bound="undetermined", why_not=why, notes=site.notes,
    )  # fmt: skip
