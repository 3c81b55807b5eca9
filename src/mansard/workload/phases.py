"""The phases of a model: prefill, decode, mixed, verification of a speculation, training step.

A phase is a list of kernels on one device with their counts, and the totals that views need: tokens, model FLOP under
both attention conventions, executed FLOP. Nothing here knows a machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mansard.core.demand import Number
from mansard.core.errors import UndecidedError, UsageError
from mansard.operators.counting import Count
from mansard.workload.batch import Batch, total
from mansard.workload.forward import forward_kernels, is_causal, merged, stack_kernels
from mansard.workload.kernel import Context, Kernel, Types
from mansard.workload.parallel import Plan, padded_vocab
from mansard.workload.records import MlaAttention, Model
from mansard.workload.storage import Storage
from mansard.workload.training import (
    RECOMPUTE,
    Recipe,
    backward_kernels,
    gradient_messages,
    optimizer_kernel,
    recomputed,
    tied_table_messages,
)

#: The attention convention of every count here, and the one that stands beside it.
CONVENTION = "causal"


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One phase of a model under a plan.

    Args:
        name: `prefill`, `decode`, `mixed`, `verify` or `train`.
        kernels: What one device runs, in order, like ones joined.
        tokens: Tokens processed by all devices.
        emitted: Tokens that come out: one per sequence in decode, the first of each in prefill, none in training.
        sequences: Sequences of all devices.
        model_flop: Model FLOP of all devices, attention counted as its mask lets through, exactly [FLOP].
        full_flop: The same with every query against every key [FLOP].
        plan: How the work is divided.
        passes: Forward passes, such as chunks of a prefill or micro-batches.
        resident_bytes: Weights and cache that one device holds [B]; they decide which memory level serves them.
        assumed: What was taken for granted.
    """

    name: str
    kernels: tuple[Kernel, ...]
    tokens: Number
    emitted: Number
    sequences: Number
    model_flop: Number
    full_flop: Number
    plan: Plan
    passes: int = 1
    resident_bytes: Number = 0.0
    assumed: tuple[str, ...] = field(default=())

    @property
    def device_flop(self) -> Number:
        """Matrix work that one device executes [FLOP]."""
        return total([k.demand.total_flop * k.count for k in self.kernels])

    @property
    def executed_flop(self) -> Number:
        """Matrix work that all devices execute, recomputation and replication counted [FLOP]."""
        return self.device_flop * self.plan.devices / self._chain

    @property
    def device_bytes(self) -> Number:
        """Traffic of one device with its main memory, activations apart [B]."""
        return total([k.demand.bytes * k.count for k in self.kernels])

    @property
    def device_local_bytes(self) -> Number:
        """Activations that kernels of one device read and write [B]."""
        return total([k.local_bytes * k.count for k in self.kernels])

    @property
    def _chain(self) -> int:
        """Pipeline stages that the kernel list walks through one after the other."""
        return 1 if self.name == "train" else self.plan.pp


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What all phases of a model share.

    Args:
        model: The model.
        storage: How its tensors are stored.
        types: Element types.
        plan: How it is divided.
        routing: Measured routing frequencies of the experts; None for even routing.
        tower_tokens: Tokens per sequence of each tower or encoder.
    """

    model: Model
    storage: Storage
    types: Types
    plan: Plan = field(default_factory=Plan)
    routing: Sequence[float] | None = None
    tower_tokens: Mapping[str, Count] = field(default_factory=dict)

    def context(
        self, batch: Batch, *, plan: Plan | None = None, training: bool = False, absorbed: bool = False
    ) -> Context:
        """Return what the kernels of a pass are built from."""
        if self.model.phase_gap is not None:
            raise UndecidedError(
                self.model.phase_gap.reason, hint="needed: " + "; ".join(self.model.phase_gap.needs), code="no_phases"
            )
        source = self.tower_tokens.get("encoder")
        return Context(
            batch=batch if source is None else replace(batch, source_tokens=source),
            plan=self.plan if plan is None else plan,
            types=self.types,
            stored_bytes=self.storage.bytes_of,
            quantised=self.storage.is_quantised,
            routing=self.routing,
            training=training,
            absorbed=absorbed,
        )


def per_rank(batch: Batch, dp: int) -> Batch:
    """Return the share of one data-parallel rank.

    Raises:
        UsageError: the sequences do not divide.
    """
    if dp == 1:
        return batch
    for group in batch.groups:
        if not hasattr(group.sequences, "shape") and group.sequences % dp:
            raise UsageError(
                f"{group.sequences:g} sequences do not divide over {dp} data-parallel ranks",
                hint="batches count the sequences of all devices",
            )
    return replace(batch, groups=tuple(replace(g, sequences=g.sequences / dp) for g in batch.groups))


def _infer(
    setting: Setting, name: str, batches: Sequence[Batch], *, absorbed: bool, emitted: Number, needs_decoder: bool
) -> Phase:
    """A phase of one or several forward passes."""
    model = setting.model
    if needs_decoder and not is_causal(model):
        raise UsageError(f"{model.name} is not a decoder: it has no {name} phase", hint="use --phase prefill")
    kernels: list[Kernel] = []
    whole_kernels: list[Kernel] = []
    for batch in batches:
        context = setting.context(per_rank(batch, setting.plan.dp), absorbed=absorbed)
        own = forward_kernels(context, model, tower_tokens=setting.tower_tokens)
        kernels += own
        if setting.plan.devices > 1:
            undivided = setting.context(batch, plan=Plan(), absorbed=absorbed)
            whole_kernels += forward_kernels(undivided, model, tower_tokens=setting.tower_tokens)
    whole = whole_kernels or kernels
    return Phase(
        name=name,
        kernels=tuple(merged(kernels)),
        tokens=total([b.tokens for b in batches]),
        emitted=emitted,
        sequences=batches[-1].sequences,
        model_flop=total([k.model_flop * k.count for k in whole]),
        full_flop=total([k.full_flop * k.count for k in whole]),
        plan=setting.plan,
        passes=len(batches),
        resident_bytes=resident_weight_bytes(setting),
        assumed=_notes(setting, absorbed=absorbed),
    )


def _notes(setting: Setting, *, absorbed: bool = False) -> tuple[str, ...]:
    """What the kernel list takes for granted."""
    model, plan = setting.model, setting.plan
    notes = [*setting.storage.assumed]
    blocks = [b for g in model.text.groups for b in g.layer.blocks]
    if any(isinstance(b, MlaAttention) for b in blocks):
        notes.append("latent attention " + ("absorbed: queries meet the latent itself" if absorbed else "expanded"))
    if any(hasattr(b, "top_k") and hasattr(b, "experts") for b in blocks):
        notes.append(
            "expected distinct experts for " + ("even routing" if setting.routing is None else "measured routing")
        )
        if plan.ep > 1:
            notes.append("tokens are spread evenly over expert-parallel ranks")
    left = [t.name for t in model.towers if t.name not in setting.tower_tokens]
    if left:
        notes.append(f"towers that do not run in this phase: {', '.join(left)} (--tower-tokens)")
    if plan.pp > 1:
        notes.append("one batch goes through all pipeline stages; other batches may follow it")
    return tuple(notes)


def prefill(setting: Setting, batches: Batch | Sequence[Batch]) -> Phase:
    """Return the phase that reads prompts, in one pass or in chunks.

    Args:
        setting: Model, types and plan.
        batches: See `batch.prefill_batch` and `batch.chunked_prefill_batches`.
    """
    passes = (batches,) if isinstance(batches, Batch) else tuple(batches)
    return _infer(setting, "prefill", passes, absorbed=False, emitted=passes[-1].logits, needs_decoder=False)


def decode(setting: Setting, batch: Batch) -> Phase:
    """Return one decode step: one new token for every sequence."""
    return _infer(setting, "decode", (batch,), absorbed=True, emitted=batch.sequences, needs_decoder=True)


def mixed(setting: Setting, batch: Batch) -> Phase:
    """Return one pass that holds prefill chunks and decode tokens, see `batch.mixed_batch`."""
    return _infer(setting, "mixed", (batch,), absorbed=True, emitted=batch.logits, needs_decoder=True)


def verify(setting: Setting, batch: Batch, *, accepted_per_sequence: float) -> Phase:
    """Return the verification pass of a speculation, see `batch.verify_batch` and `speculation.expected_tokens`.

    Args:
        setting: Model, types and plan.
        batch: The pass.
        accepted_per_sequence: Tokens that each sequence gains by it.
    """
    emitted = batch.sequences * accepted_per_sequence
    return _infer(setting, "verify", (batch,), absorbed=True, emitted=emitted, needs_decoder=True)


def train(setting: Setting, micro_batch: Batch, recipe: Recipe | None = None, *, mtp: bool = False) -> Phase:
    """Return one optimizer step.

    Args:
        setting: Model, types and plan.
        micro_batch: Sequences of one micro-batch of one data-parallel rank.
        recipe: Optimizer, recomputation, accumulation, adapters.
        mtp: Whether multi-token-prediction layers are trained too.

    Raises:
        UsageError: adapters that match nothing.
    """
    recipe = recipe or Recipe()
    frozen = _frozen_by(recipe)
    plan = setting.plan

    def one(division: Plan, batch: Batch) -> list[Kernel]:
        context = replace(setting.context(batch, plan=division, training=True), frozen=frozen)
        forward = forward_kernels(context, setting.model, tower_tokens=setting.tower_tokens, mtp=mtp)
        if recipe.lora_rank is not None:
            forward += _adapters(context, setting, recipe)
        back = [
            b
            for k in reversed(forward)
            for b in backward_kernels(k, setting.types, accumulating=recipe.accumulation > 1)
        ]
        again: list[Kernel] = []
        if recipe.recompute != "none":
            again = recomputed(
                stack_kernels(replace(context), replace(setting.model.text, inputs=(), outputs=())), recipe.recompute
            )
        return [k.times(recipe.accumulation) for k in (*forward, *again, *back)]

    micro = one(plan, micro_batch)
    # Each device runs the layers of its own stage, on average one of `pp`.
    kernels = [k if k.name == "send_pp" else k.times(1.0 / plan.pp) for k in micro]
    dense, routed = trained_elements(setting, recipe, mtp=mtp)
    context = setting.context(micro_batch, training=True)
    kernels += gradient_messages(context, plan, dense, recipe, routed=routed)
    if recipe.lora_rank is None and setting.model.tied:
        kernels += tied_table_messages(context, plan, _table_elements(setting))
    if plan.zero >= 1:
        dense, routed = dense / plan.replicas, routed / plan.expert_replicas
    kernels.append(optimizer_kernel(dense + routed, setting.types, recipe))
    per_step = recipe.accumulation * plan.dp
    whole = one(Plan(), micro_batch) if plan.devices > 1 else micro
    return Phase(
        name="train",
        kernels=tuple(merged(kernels)),
        tokens=micro_batch.tokens * per_step,
        emitted=0.0,
        sequences=micro_batch.sequences * per_step,
        model_flop=total([k.model_flop * k.count for k in whole]) * plan.dp,
        full_flop=total([k.full_flop * k.count for k in whole]) * plan.dp,
        plan=plan,
        passes=recipe.accumulation,
        resident_bytes=resident_weight_bytes(setting),
        assumed=(
            *_notes(setting),
            f"recompute {recipe.recompute}: {RECOMPUTE[recipe.recompute]}",
            *(("a pipeline without bubble",) if plan.pp > 1 else ()),
            *(("multi-token-prediction layers are left out",) if setting.model.mtp is not None and not mtp else ()),
        ),
    )


def _frozen_by(recipe: Recipe) -> Callable[[object], bool]:
    """Return whether a tensor is frozen: all but adapters, where there are adapters."""
    if recipe.lora_rank is None:
        return lambda _weight: False
    return lambda weight: not getattr(weight, "name", "").startswith("lora.")


def _adapters(context: Context, setting: Setting, recipe: Recipe) -> list[Kernel]:
    """Low-rank adapters beside the targeted matrices of every layer, two narrow products each."""
    from mansard.workload.blocks.weight import Weight
    from mansard.workload.kernel import product

    rank = recipe.lora_rank
    assert rank is not None
    out: list[Kernel] = []
    for group in setting.model.text.groups:
        targets = [
            w
            for w in group.layer.weights()
            if w.role == "matmul" and w.name.endswith(recipe.lora_targets) and w.block != "experts"
        ]
        for name, side in (("lora_down", 1), ("lora_up", 0)):
            pairs = []
            for w in targets:
                shape = (rank, w.shape[1]) if side else (w.shape[0], rank)
                pairs.append((Weight(name=f"lora.{w.name}.{name}", shape=shape, role="matmul", block="adapter"), 1.0))
            if pairs:
                width = sum(w.shape[1] for w, _ in pairs), sum(w.shape[0] for w, _ in pairs)
                kernel = product(
                    context,
                    name,
                    pairs,
                    rows=context.stream_tokens,
                    width_in=width[0],
                    width_out=width[1],
                    area="adapter",
                )
                out.append(kernel.times(group.count))
    if not out:
        raise UsageError(f"no matrix of {setting.model.name} ends in one of {', '.join(recipe.lora_targets)}")
    return out


#: Tokens so many that every expert and every row of a table is touched.
_EVERY_TOKEN = 1e15


def everything(setting: Setting) -> Context:
    """A pass that touches every weight."""
    from mansard.workload.batch import Group

    huge = Batch(groups=(Group(sequences=1.0, queries=_EVERY_TOKEN, keys=_EVERY_TOKEN, logits=1.0),), source_tokens=1.0)
    return replace(setting.context(huge, training=True), batch=huge, routing=None)


def weight_kernels(setting: Setting, *, mtp: bool = False) -> list[Kernel]:
    """Return kernels that touch every stored tensor once, towers included; their weights are what one device holds."""
    context = everything(setting)
    model = setting.model
    stacks = [*model.stacks, *([model.mtp] if mtp and model.mtp is not None else [])]
    single = replace(context, plan=replace(context.plan, pp=1))
    kernels = [k for stack in stacks for k in stack_kernels(single, stack)]
    head = [b for b in model.head if not any(w.tied for w in b.weights())]
    from mansard.workload.forward import head_kernels

    kernels += head_kernels(single, replace(model, head=tuple(head)))
    return [k for k in kernels if k.kind != "communication"]


def resident_weight_bytes(setting: Setting, *, mtp: bool = False) -> Number:
    """Return the bytes of weights that one device holds: divided by tp and ep as its kernels are, by pp evenly [B]."""
    return total([k.weight_bytes * k.count for k in weight_kernels(setting, mtp=mtp)]) / setting.plan.pp


def resident_parameters(setting: Setting, *, mtp: bool = False) -> Number:
    """Return the parameters that one device holds, divided as its kernels are [count]."""
    return total([k.weight_elements * k.count for k in weight_kernels(setting, mtp=mtp)]) / setting.plan.pp


def trained_elements(setting: Setting, recipe: Recipe, *, mtp: bool = False) -> tuple[Number, Number]:
    """Return the weights of one device that get a gradient: all but routed experts, and routed experts [count].

    Args:
        setting: Model, types and plan; pipeline stages share evenly, and a tied table counts once.
        recipe: Adapters alone are trained where it has some.
        mtp: Whether multi-token-prediction layers are trained.
    """
    if recipe.lora_rank is None:
        kernels = weight_kernels(setting, mtp=mtp)
    else:
        kernels = _adapters(replace(everything(setting), frozen=_frozen_by(recipe)), setting, recipe)
    parts = [
        total([k.weight_elements * k.count for k in kernels if k.routed is routed]) / setting.plan.pp
        for routed in (False, True)
    ]
    return parts[0], parts[1]


def _table_elements(setting: Setting) -> float:
    """Elements of the token table that a tied head multiplies with, on one tensor-parallel rank."""
    tied = [w for b in setting.model.head for w in b.weights() if w.tied and w.role == "matmul"]
    return sum(float(padded_vocab(w.shape[0], setting.plan.tp)) * w.shape[1] for w in tied)
