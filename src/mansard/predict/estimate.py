"""One estimate: a model, a phase, a plan and (if given) a machine become totals, bounds, memory and views."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from mansard.core import Area, Ceiling, Kind, Resource, Unknown, short_dtype
from mansard.core.dtypes import dtype_bytes, element_dtype
from mansard.core.errors import UsageError
from mansard.predict.bound import (
    LAUNCH,
    Machine,
    Overlap,
    PhaseBound,
    WeightsOnce,
    phase_bound,
    tokens_per_s,
    weights_once,
)
from mansard.predict.speculation import expected_tokens
from mansard.workload import phases
from mansard.workload.batch import (
    Batch,
    chunked_prefill_batches,
    decode_batch,
    mixed_batch,
    packed_batch,
    prefill_batch,
    training_batch,
    verify_batch,
)
from mansard.workload.counts import ParamCount, count_params
from mansard.workload.kernel import Types
from mansard.workload.memory import Fit, Memory, fit, memory_of
from mansard.workload.parallel import Plan
from mansard.workload.phases import Phase, Setting
from mansard.workload.records import Model, Moe
from mansard.workload.storage import Storage, storage_of
from mansard.workload.training import Recipe

PHASES = ("train", "prefill", "decode", "mixed", "verify")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is asked about a model; None is always `not given`.

    Args:
        phase: `train`, `prefill`, `decode`, `mixed` or `verify` (of a speculation).
        batch: Sequences of all devices; in a mixed pass those that decode.
        context: Keys each new token of a decode step sees, itself included.
        contexts: A distribution instead: pairs of (context, sequences).
        seq: Tokens per sequence of a training step, or of the prompt of a prefill.
        lengths: Lengths of packed sequences of one micro-batch, instead of `batch` and `seq`.
        cached: Prompt tokens that the prefix cache already holds.
        chunk: New tokens of each prompt per pass of a chunked prefill.
        prompts: Prompts beside the decode step of a mixed pass.
        drafted: Tokens that a speculation proposes per sequence.
        acceptance: Probability that a proposed token is accepted.
        plan: How the work is divided.
        dtype: Element type of activations and of what is not quantised; None takes the model's.
        weights: Type the matrices of the layers are stored in; None as the checkpoint stores them.
        activations: Type activations are cast to for products with such matrices.
        kv: Type of the cache; None takes the checkpoint's, else `dtype`.
        micro_batch: Sequences of one micro-batch of one rank.
        accumulation: Micro-batches per optimizer step.
        recipe: Optimizer, recomputation, adapters.
        mtp: Whether multi-token-prediction layers are trained.
        routing: Measured routing frequencies of the experts.
        tower_tokens: Tokens per sequence of each tower or encoder.
        launch_s: Fixed cost of one kernel [s].
        launches_per_layer: Kernels per layer that cost it; None counts those of the list.
        overlap: Whether messages hide behind kernels.
        memory_fraction: Share of the memory that may be used.
    """

    phase: str
    batch: int = 1
    context: int | None = None
    contexts: tuple[tuple[int, int], ...] | None = None
    seq: int | None = None
    lengths: tuple[int, ...] | None = None
    cached: int = 0
    chunk: int | None = None
    prompts: int = 1
    drafted: int | None = None
    acceptance: float | None = None
    plan: Plan = field(default_factory=Plan)
    dtype: str | None = None
    weights: str | None = None
    activations: str | None = None
    kv: str | None = None
    micro_batch: int | None = None
    accumulation: int | None = None
    recipe: Recipe = field(default_factory=Recipe)
    mtp: bool = False
    routing: Sequence[float] | None = None
    tower_tokens: Mapping[str, int] = field(default_factory=dict)
    launch_s: float | None = None
    launches_per_layer: int | None = None
    overlap: Overlap | None = None
    memory_fraction: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Everything that follows from a request.

    Args:
        model: The model.
        params: Its exact counts.
        request: What was asked.
        phase: The kernels of one device and the totals of all.
        memory: What one device holds.
        fit: Whether it fits the machine; `Unknown` without one.
        bound: Method 1; `Unknown` without a machine.
        once: Method 2; `Unknown` without a machine.
        tokens_per_s: Ceiling of all devices [token/s].
        types: Element types that were used.
        assumed: What was taken for granted, each in one sentence.
    """

    model: Model
    params: ParamCount
    request: Request
    phase: Phase
    memory: Memory
    fit: Fit | Unknown
    bound: PhaseBound | Unknown
    once: WeightsOnce | Unknown
    tokens_per_s: float | Unknown
    types: Types
    assumed: tuple[str, ...]


#: Larger counts than this are typing errors.
LARGEST = 10**12

#: Types an activation can be kept in between kernels.
_WIDE = ("bf16", "f16", "f32", "f64")


def setting_of(model: Model, request: Request) -> tuple[Setting, tuple[str, ...]]:
    """Return the model with its types and plan, and what was taken for granted.

    Raises:
        UsageError: a type that is needed and stated nowhere, or one that cannot be used that way.
    """
    assumed: list[str] = []
    activation, product = _activation(model, request)
    storage: Storage = storage_of(model, dtype=activation, weights=request.weights)
    product = product or storage.product_dtype
    kv = request.kv or storage.cache_dtype
    if kv is None:
        kv = activation
        if request.phase != "train":
            assumed.append(f"cache in {kv}, the type of the activations (--kv)")
    elif request.phase != "train" and dtype_bytes(kv) <= 1:
        assumed.append(f"cache in {short_dtype(kv)}, its elements alone: scales, where it has any, are not counted")
    types = Types(
        activation=activation,
        cache=short_dtype(kv),
        state=model.state_dtype or "f32",
        product=product,
        gradient=activation,
    )
    setting = Setting(
        model=model, storage=storage, types=types, plan=request.plan, routing=request.routing,
        tower_tokens=dict(request.tower_tokens),
    )  # fmt: skip
    return setting, tuple(assumed)


def _activation(model: Model, request: Request) -> tuple[str, str | None]:
    """Type of the residual stream, and the narrower one that products are fed with."""
    asked = element_dtype(request.activations) if request.activations else None
    wide = asked if asked in _WIDE else None
    base = request.dtype or wide
    if base is None:
        if isinstance(model.dtype, Unknown):
            raise UsageError(f"{model.name}: {model.dtype.reason}", hint="add --dtype bf16, or what the model runs in")
        base = model.dtype
    activation = short_dtype(base)
    if activation not in _WIDE:
        raise UsageError(
            f"activations cannot stay in {activation} between kernels",
            hint=f"--dtype is one of {', '.join(_WIDE)}; --weights and --activations may be narrower",
        )
    if wide is not None and wide != activation:
        return wide, None
    return activation, None if asked is None or asked in _WIDE else asked


def estimate(model: Model, request: Request, machine: Machine | None = None) -> Estimate:
    """Return what a model must consume in a phase, and how fast a machine can let it.

    Args:
        model: See `mansard.workload.model.load.load_model`.
        request: The phase and its dimensions.
        machine: See `bound.machine_of`; None gives FLOP, bytes and memory alone.

    Raises:
        UsageError: a dimension that the phase needs is missing or makes no sense.
        InfeasibleError: the model cannot be divided that way.
    """
    setting, taken = setting_of(model, request)
    phase, batch, notes = _phase(setting, request)
    training = request.phase == "train"
    recipe = _recipe(request) if training else None
    memory = memory_of(setting, phase, batch, recipe=recipe, mtp=request.mtp)
    params = count_params(model)
    no_machine = Unknown("no machine was given", ("--on NAME, a hardware file or a ceilings.json",))
    room: Fit | Unknown = no_machine
    bound: PhaseBound | Unknown = no_machine
    once: WeightsOnce | Unknown = no_machine
    rate: float | Unknown = no_machine
    if machine is not None:
        used, backend = _with_launch(machine, request)
        room = fit(
            memory.total_bytes, capacity_bytes=used.memory_bytes, fraction=request.memory_fraction,
            devices=request.plan.devices,
        )  # fmt: skip
        launches = None if request.launches_per_layer is None else request.launches_per_layer * model.text.depth
        bound = phase_bound(phase, used, overlap=request.overlap, backend=backend, launches=launches)
        active, multiplying = _active_bytes(setting)
        once = weights_once(
            active_bytes=active, matmul_bytes=multiplying, all_bytes=_read_bytes(setting), machine=used,
            devices=max(request.plan.tp, request.plan.ep) * request.plan.pp,
        )  # fmt: skip
        per_s = tokens_per_s(phase, bound.time_s)
        rate = per_s if isinstance(per_s, Unknown) else float(per_s)
    return Estimate(
        model=model,
        params=params,
        request=request,
        phase=phase,
        memory=memory,
        fit=room,
        bound=bound,
        once=once,
        tokens_per_s=rate,
        types=setting.types,
        assumed=(*taken, *notes, *phase.assumed, *_limits(model, request)),
    )


def _limits(model: Model, request: Request) -> tuple[str, ...]:
    """A note where a sequence is longer than the model says it can be."""
    asked = [request.context, request.seq, *(length for length, _ in request.contexts or ()), *(request.lengths or ())]
    longest = max((n for n in asked if n is not None), default=0)
    if isinstance(model.max_positions, Unknown) or longest <= model.max_positions:
        return ()
    return (f"{longest} tokens are more than the {model.max_positions} positions the configuration states",)


def _with_launch(machine: Machine, request: Request) -> tuple[Machine, str | None]:
    """The machine with the fixed cost that was asked for."""
    if request.launch_s is None:
        if request.launches_per_layer is not None:
            raise UsageError("launches per layer were given without their cost", hint='add --launch-cost "3 us"')
        return machine, None
    if request.launches_per_layer is not None and request.launches_per_layer < 1:
        raise UsageError(f"launches per layer are {request.launches_per_layer}, expected a positive number")
    if not 0.0 < request.launch_s < float("inf"):
        raise UsageError(f"the launch cost is {request.launch_s} s, expected a positive time")
    cost = Ceiling(
        resource=Resource(area=Area.LATENCY, backend=LAUNCH), value=request.launch_s, unit="s", kind=Kind.DECLARED,
        scope=machine.scope, source="given",
    )  # fmt: skip
    return replace(machine, ceilings=machine.ceilings.merged([cost])), LAUNCH


def _recipe(request: Request) -> Recipe:
    return replace(request.recipe, accumulation=request.accumulation or 1)


def _needs(request: Request, name: str, value: int | None) -> int:
    if value is None:
        raise UsageError(f"the phase {request.phase} needs --{name}, which was not given", hint=f"add --{name} N")
    return value


def _phase(setting: Setting, request: Request) -> tuple[Phase, Batch, tuple[str, ...]]:
    """The phase, the pass that memory is counted for, and notes."""
    if request.phase not in PHASES:
        raise UsageError(f"unknown phase {request.phase!r}", hint=f"one of {', '.join(PHASES)}")
    if request.batch < 1:
        raise UsageError(f"batch is {request.batch}, expected a positive number")
    for name in ("batch", "context", "seq", "cached", "chunk", "prompts", "drafted", "micro_batch", "accumulation"):
        value = getattr(request, name)
        if value is not None and value > LARGEST:
            raise UsageError(f"{name} is larger than {LARGEST:,}, which no run is")
    _check_stray(request)
    if request.routing is not None and not _has_experts(setting.model):
        raise UsageError(f"{setting.model.name} has no experts, so routing frequencies have no meaning")
    if request.phase == "train":
        return _train(setting, request)
    if request.phase == "prefill":
        return _prefill(setting, request)
    if request.phase == "verify":
        return _verify(setting, request)
    if request.contexts is not None:
        if request.context is not None or request.batch != 1:
            raise UsageError(
                "a distribution of contexts already says how long and how many", hint="leave --context and --batch out"
            )
        batch = decode_batch(context=list(request.contexts))
    else:
        batch = decode_batch(context=_needs(request, "context", request.context), sequences=request.batch)
    if request.phase == "decode":
        return phases.decode(setting, batch), batch, ()
    prompt = _needs(request, "seq", request.seq)
    read = prefill_batch(sequences=request.prompts, prompt=prompt, cached=request.cached)
    joined = mixed_batch(prefill=read, decode=batch)
    return (
        phases.mixed(setting, joined),
        joined,
        (f"{request.prompts} prompt(s) of {prompt} tokens beside the decode step",),
    )


def _has_experts(model: Model) -> bool:
    return any(isinstance(b, Moe) for g in model.text.groups for b in g.layer.blocks)


#: Which parts of a request mean something in which phase.
_FOR: dict[str, tuple[str, ...]] = {
    "context": ("decode", "mixed", "verify", "prefill"),
    "contexts": ("decode", "mixed"),
    "seq": ("train", "prefill", "mixed"),
    "lengths": ("train",),
    "chunk": ("prefill",),
    "drafted": ("verify",),
    "acceptance": ("verify",),
    "micro_batch": ("train",),
    "accumulation": ("train",),
}


def _check_stray(request: Request) -> None:
    """Refuse what has no meaning in the phase; nothing that was typed is dropped in silence."""
    for name, where in _FOR.items():
        if getattr(request, name) is not None and request.phase not in where:
            raise UsageError(
                f"{name} has no meaning in the phase {request.phase}", hint=f"it belongs to {', '.join(where)}"
            )
    if request.cached and request.phase not in ("prefill", "mixed"):
        raise UsageError(f"cached prompt tokens have no meaning in the phase {request.phase}")


def _prefill(setting: Setting, request: Request) -> tuple[Phase, Batch, tuple[str, ...]]:
    if request.seq is not None and request.context is not None:
        raise UsageError("a prefill has one length: give --seq or --context, not both")
    prompt = _needs(request, "seq", request.seq if request.seq is not None else request.context)
    if request.chunk is None:
        batch = prefill_batch(sequences=request.batch, prompt=prompt, cached=request.cached)
        return phases.prefill(setting, batch), batch, ()
    batches = chunked_prefill_batches(
        sequences=request.batch, prompt=prompt, chunk=request.chunk, cached=request.cached
    )
    return phases.prefill(setting, batches), batches[-1], (f"{len(batches)} passes of up to {request.chunk} tokens",)


def _verify(setting: Setting, request: Request) -> tuple[Phase, Batch, tuple[str, ...]]:
    if request.acceptance is None:
        raise UsageError("verification needs the acceptance probability", hint="add --acceptance 0.7")
    drafted = _needs(request, "drafted", request.drafted)
    batch = verify_batch(sequences=request.batch, context=_needs(request, "context", request.context), drafted=drafted)
    gained = expected_tokens(drafted=drafted, acceptance=request.acceptance)
    note = f"each pass gains {gained:.3g} tokens per sequence; the cost of drafting is not in it"
    return phases.verify(setting, batch, accepted_per_sequence=gained), batch, (note,)


def _train(setting: Setting, request: Request) -> tuple[Phase, Batch, tuple[str, ...]]:
    plan = request.plan
    accumulation = request.accumulation or 1
    notes: list[str] = []
    if request.lengths is not None:
        if request.seq is not None:
            raise UsageError("packed lengths already say how long sequences are: leave --seq out")
        batch = packed_batch(request.lengths)
        notes.append("packed sequences, each sees itself alone")
    else:
        seq = _needs(request, "seq", request.seq)
        micro = request.micro_batch
        if micro is None:
            if request.batch % (plan.dp * accumulation):
                raise UsageError(
                    f"a batch of {request.batch} does not divide over dp {plan.dp} x accumulation {accumulation}"
                )
            micro = request.batch // (plan.dp * accumulation)
        elif request.batch not in (1, micro * plan.dp * accumulation):
            raise UsageError(
                f"batch {request.batch} is not micro-batch {micro} x accumulation {accumulation} x dp {plan.dp}",
                hint="leave one of them out",
            )
        batch = training_batch(sequences=micro, seq=seq)
        notes.append(f"micro-batch {micro} x accumulation {accumulation} x dp {plan.dp}")
    return phases.train(setting, batch, _recipe(request), mtp=request.mtp), batch, tuple(notes)


def _active_bytes(setting: Setting) -> tuple[float, float]:
    """Bytes of the weights that one token uses, as active parameters are counted, and of those that multiply [B]."""
    store = setting.storage.store
    total = multiplying = 0.0
    for _stack, _path, weight, copies, stored in store.every(mtp=False):
        share = 1.0 if weight.active is None else weight.active / weight.copies
        size = stored.total * copies * share
        total += size
        if weight.role == "matmul":
            multiplying += setting.storage.bytes_of(weight, "") if weight.tied else size
    return total, multiplying


def _read_bytes(setting: Setting) -> float:
    """Bytes of all weights of the model, tables included, each once."""
    return float(phases.resident_weight_bytes(replace(setting, plan=Plan(), routing=None)))
