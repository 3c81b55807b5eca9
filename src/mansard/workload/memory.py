"""What one device must hold: weights, cache, activations, gradients, optimizer state; whether it fits, and on how many.

Weights are divided as the kernels are (so a replicated norm, router or latent projection is whole on every rank); the
cache has its own rules, see `cache`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from mansard.core.dtypes import dtype_bytes
from mansard.core.errors import UndecidedError, UsageError
from mansard.core.unknown import Unknown
from mansard.workload.batch import Batch
from mansard.workload.cache import cache_layout
from mansard.workload.kernel import Kernel
from mansard.workload.phases import Phase, Setting, per_rank, resident_weight_bytes
from mansard.workload.training import MOMENTS, Recipe

#: Kernels that change their input in place or whose output nobody needs again.
_IN_PLACE = ("rope", "qk_norm", "latent_norm", "routing", "combine")


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes of one device, the fullest one.

    Args:
        weight_bytes: Weights [B].
        kv_cache_bytes: Keys, values, latents and recurrent states of all its sequences [B].
        kv_bytes_per_token: What one more token of one sequence adds while no window is full [B/token].
        kv_growing_bytes_per_token: What it adds once every window is full [B/token].
        activation_bytes: Activations: kept for the backward pass in training, the largest kernel's otherwise [B].
        gradient_bytes, optimizer_bytes: Gradients, and optimizer state with the master copy [B]; 0 in inference.
        whole_weight_bytes: Weights of the whole model, each once [B].
        notes: How parts were counted.
    """

    weight_bytes: float
    kv_cache_bytes: float
    kv_bytes_per_token: float
    kv_growing_bytes_per_token: float
    activation_bytes: float
    gradient_bytes: float
    optimizer_bytes: float
    whole_weight_bytes: float
    notes: tuple[str, ...] = field(default=())

    @property
    def total_bytes(self) -> float:
        """Everything one device holds [B]."""
        return (
            self.weight_bytes + self.kv_cache_bytes + self.activation_bytes + self.gradient_bytes + self.optimizer_bytes
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Whether a demand for memory fits a device.

    Args:
        fits: Whether it does.
        need_bytes, budget_bytes: What one device needs, and may use [B].
        devices_at_least: Devices that the need of the whole plan would fill, if it divided evenly.
    """

    fits: bool
    need_bytes: float
    budget_bytes: float
    devices_at_least: int


def fit(
    need_bytes: float, *, capacity_bytes: float | Unknown, fraction: float = 1.0, devices: int = 1
) -> Fit | Unknown:
    """Return whether `need_bytes` of each device fit into the share of it that may be used.

    Args:
        need_bytes: What one device needs [B].
        capacity_bytes: What the driver leaves of its memory [B].
        fraction: Share of it that the framework may use.
        devices: Devices of the plan.

    Raises:
        UsageError: a fraction outside 0 to 1.

    0.92 of 180 GiB are 165.6 GiB; 179.7 do not fit:

    >>> f = fit(179.7 * 2**30, capacity_bytes=180 * 2**30, fraction=0.92)
    >>> f.fits, round(f.budget_bytes / 2**30, 1), f.devices_at_least
    (False, 165.6, 2)
    """
    if not 0.0 < fraction <= 1.0:
        raise UsageError(f"the memory fraction is {fraction}, expected a share above 0 and up to 1")
    if isinstance(capacity_bytes, Unknown):
        return capacity_bytes
    budget = capacity_bytes * fraction
    return Fit(
        fits=need_bytes <= budget,
        need_bytes=need_bytes,
        budget_bytes=budget,
        devices_at_least=math.ceil(need_bytes * devices / budget),
    )


def memory_of(
    setting: Setting, phase: Phase, batch: Batch, *, recipe: Recipe | None = None, mtp: bool = False
) -> Memory:
    """Return what one device holds during a phase.

    Args:
        setting: Model, types and plan.
        phase: The phase.
        batch: Its pass: of all ranks in inference, of one micro-batch and rank in training.
        recipe: How it is trained; None in inference.
        mtp: Whether multi-token-prediction layers are held.
    """
    plan = setting.plan
    weights = float(resident_weight_bytes(setting, mtp=mtp))
    whole = float(resident_weight_bytes(_undivided(setting), mtp=mtp))
    if recipe is None:
        layout = cache_layout(setting.model, dtype=setting.types.cache, state_dtype=setting.types.state, tp=plan.tp)
        if isinstance(layout, Unknown):
            raise UndecidedError(
                f"{setting.model.name}: the cache is not known: {layout.reason}",
                hint="needs " + "; ".join(layout.needs),
            )
        # Pipeline ranks hold the cache of their layers, context ranks a part of every sequence.
        shards = plan.pp * plan.cp
        source = float(setting.tower_tokens.get("encoder", 0.0))
        groups = per_rank(batch, plan.dp).groups
        held = sum(float(g.sequences) * layout.bytes_for(float(g.keys), source) for g in groups)
        return Memory(
            weight_bytes=weights,
            kv_cache_bytes=held / shards,
            kv_bytes_per_token=layout.first_token_bytes / shards,
            kv_growing_bytes_per_token=layout.growing_bytes / shards,
            activation_bytes=_largest(phase),
            gradient_bytes=0.0,
            optimizer_bytes=0.0,
            whole_weight_bytes=whole,
            notes=("activations: the largest kernel's inputs and outputs", *layout.notes),
        )
    return _training(setting, phase, recipe, weights, whole)


def _undivided(setting: Setting) -> Setting:
    from dataclasses import replace

    from mansard.workload.parallel import Plan

    return replace(setting, plan=Plan())


def _largest(phase: Phase) -> float:
    return max((float(k.local_bytes) for k in phase.kernels), default=0.0)


def _training(setting: Setting, phase: Phase, recipe: Recipe, weights: float, whole: float) -> Memory:
    """Memory of a training step; gradients are as many as weights are trained."""
    plan, types = setting.plan, setting.types
    trained = _trained(phase, recipe)
    ranks = plan.dp * plan.cp
    states = MOMENTS[recipe.optimizer] * dtype_bytes(recipe.state_dtype)
    states += dtype_bytes(recipe.master_dtype) if recipe.master_dtype is not None else 0.0
    return Memory(
        weight_bytes=weights / (ranks if plan.zero >= 3 else 1),
        kv_cache_bytes=0.0,
        kv_bytes_per_token=0.0,
        kv_growing_bytes_per_token=0.0,
        activation_bytes=kept_activations(phase, recipe),
        gradient_bytes=trained * dtype_bytes(types.gradient) / (ranks if plan.zero >= 2 else 1),
        optimizer_bytes=trained * states / (ranks if plan.zero >= 1 else 1),
        whole_weight_bytes=whole,
        notes=(
            "activations: what a backward pass without fusion across kernels keeps, of the micro-batches in flight",
            f"optimizer state: {recipe.optimizer}, {states:g} B per trained parameter",
        ),
    )


def _trained(phase: Phase, recipe: Recipe) -> float:
    """Weights that get a gradient on one device: those of forward kernels that are not frozen, each once."""
    per_step = recipe.accumulation
    return float(
        sum(k.weight_elements * k.count / per_step for k in phase.kernels if k.in_pass == "forward" and not k.frozen)
    )


def kept_activations(phase: Phase, recipe: Recipe) -> float:
    """Return the activations that one device keeps for the backward pass [B].

    Args:
        phase: A training step.
        recipe: Its recomputation policy.

    Returns:
        Without full recomputation every output that is not changed in place; with it the input of each layer and the
        outputs of one layer. Pipeline stages hold as many micro-batches as there are stages.

    Source: Korthikanti et al., arXiv:2205.05198, section 4 (what each operation keeps).
    """
    stages = phase.plan.pp
    in_flight = min(stages, phase.passes)
    forward = [k for k in phase.kernels if k.in_pass == "forward" and k.kind != "communication"]
    layers = [k for k in forward if _is_layer(k) and k.name not in _IN_PLACE]
    outer = sum(float(k.local_write_bytes) * k.count / phase.passes for k in forward if not _is_layer(k))
    kept = sum(float(k.local_write_bytes) * k.count / phase.passes for k in layers)
    if recipe.recompute != "full":
        return kept * in_flight + outer
    norms = [k for k in layers if k.name == "input_layernorm" or k.area == "norm"]
    inputs = sum(float(k.local_write_bytes) * k.count / phase.passes for k in norms) / 2.0
    one = sum(float(k.local_write_bytes) for k in {k.name: k for k in layers}.values())
    return inputs * in_flight + one + outer


def _is_layer(kernel: Kernel) -> bool:
    return kernel.area not in ("embedding", "head")
