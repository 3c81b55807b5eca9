"""What one device must hold: weights, cache, activations, gradients, optimizer state; whether it fits, and on how many.

Weights are divided as the kernels are (so a replicated norm, router or latent projection is whole on every rank); the
cache has its own rules, see `cache`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from mansard.core.dtypes import dtype_bytes
from mansard.core.errors import UndecidedError, UsageError
from mansard.core.unknown import Unknown
from mansard.workload.batch import Batch
from mansard.workload.cache import CacheLayout, cache_layout
from mansard.workload.kernel import Kernel
from mansard.workload.parallel import Plan
from mansard.workload.phases import Phase, Setting, per_rank, trained_elements
from mansard.workload.stages import Weights, group_caches, stage_caches, stage_weights
from mansard.workload.training import Recipe, state_bytes_per_param

#: Kernels that change their input in place or whose output nobody needs again.
_IN_PLACE = ("rope", "qk_norm", "latent_norm", "routing", "combine")
#: Products whose output tensor-parallel ranks sum: in training each keeps its share of the tokens, as of the stream.
_SUMMED = ("o_proj", "down_proj", "shared_down_proj", "cross_o_proj", "out_proj")


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes of one device, the fullest one.

    Args:
        weight_bytes: Weights [B].
        kv_cache_bytes: Keys, values, latents and recurrent states of all its sequences [B].
        kv_cache_bytes_all_kept: The same where windowed layers keep every token, as engines without a cache manager for
            mixed layers do; larger only where a sequence exceeds a window [B].
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
    kv_cache_bytes_all_kept: float = 0.0
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
    devices_at_least = need_bytes * devices / budget if budget > 0 else math.inf
    if not math.isfinite(devices_at_least):
        raise UsageError(
            f"the memory fraction {fraction} of {capacity_bytes:.3g} B leaves no memory for {need_bytes:.3g} B"
        )
    return Fit(
        fits=need_bytes <= budget,
        need_bytes=need_bytes,
        budget_bytes=budget,
        devices_at_least=math.ceil(devices_at_least),
    )


def memory_of(
    setting: Setting, phase: Phase, batch: Batch, *, recipe: Recipe | None = None, mtp: bool = False
) -> Memory:
    """Return what the fullest device holds during a phase.

    Args:
        setting: Model, types and plan.
        phase: The phase.
        batch: Its pass: of all ranks in inference, of one micro-batch and rank in training.
        recipe: How it is trained; None in inference.
        mtp: Whether multi-token-prediction layers are held.
    """
    whole = stage_weights(replace(setting, plan=Plan()), mtp=mtp)[0].bytes
    if recipe is None:
        return _serving(setting, phase, batch, whole, mtp=mtp)
    return _training(setting, phase, recipe, whole, mtp=mtp)


def _serving(setting: Setting, phase: Phase, batch: Batch, whole: float, *, mtp: bool) -> Memory:
    held, layout, weights = held_for_serving(setting, batch, mtp=mtp)
    shards = setting.plan.cp
    dropped = sum(
        float(g.sequences) * max(float(g.keys) - window, 0.0) * size
        for g in per_rank(batch, setting.plan.dp).groups
        for window, size in layout.windows
    )
    return Memory(
        weight_bytes=weights,
        kv_cache_bytes=held,
        kv_cache_bytes_all_kept=held + dropped / shards,
        kv_bytes_per_token=layout.first_token_bytes / shards,
        kv_growing_bytes_per_token=layout.growing_bytes / shards,
        activation_bytes=_largest(phase),
        gradient_bytes=0.0,
        optimizer_bytes=0.0,
        whole_weight_bytes=whole,
        notes=("activations: the largest kernel's inputs and outputs", *layout.notes, *_stage_note(setting)),
    )


def held_for_serving(setting: Setting, batch: Batch, *, mtp: bool = False) -> tuple[float, CacheLayout, float]:
    """Return the cache of the fullest pipeline stage on one device [B], its layout, and its weights [B].

    Args:
        setting: Model, types and plan; context ranks hold a part of every sequence.
        batch: The pass of all ranks.
        mtp: Whether multi-token-prediction layers are held.

    Raises:
        UndecidedError: the cache is not known.
    """
    plan, types = setting.plan, setting.types
    layout = cache_layout(setting.model, dtype=types.cache, state_dtype=types.state, tp=plan.tp)
    if isinstance(layout, Unknown):
        raise UndecidedError(
            f"{setting.model.name}: the cache is not known: {layout.reason}",
            hint="needs " + "; ".join(layout.needs),
        )
    layouts: Sequence[CacheLayout] = [layout]
    if plan.pp > 1:
        each = group_caches(setting.model, dtype=types.cache, state_dtype=types.state, tp=plan.tp)
        layouts = stage_caches(setting.model.text, each, plan.pp)
    source = float(setting.tower_tokens.get("encoder", 0.0))
    groups = per_rank(batch, plan.dp).groups
    found = []
    for one, weights in zip(layouts, stage_weights(setting, mtp=mtp), strict=True):
        held = sum(float(g.sequences) * one.bytes_for(float(g.keys), source) for g in groups) / plan.cp
        found.append((held, one, weights.bytes))
    return max(found, key=lambda f: f[0] + f[2])


def _stage_note(setting: Setting) -> tuple[str, ...]:
    pp = setting.plan.pp
    return (f"the fullest of {pp} pipeline stages; tables lie on the first, the head on the last",) if pp > 1 else ()


def _largest(phase: Phase) -> float:
    return max((float(k.local_bytes) for k in phase.kernels), default=0.0)


def _training(setting: Setting, phase: Phase, recipe: Recipe, whole: float, *, mtp: bool) -> Memory:
    """Memory of a training step; gradients are as many as weights are trained."""
    states = state_bytes_per_param(recipe, setting.types.activation)
    weights, gradients, state = max(
        (_stage_state(setting, recipe, stage, states, mtp=mtp) for stage in stage_weights(setting, mtp=mtp)),
        key=sum,
    )
    return Memory(
        weight_bytes=weights,
        kv_cache_bytes=0.0,
        kv_bytes_per_token=0.0,
        kv_growing_bytes_per_token=0.0,
        activation_bytes=kept_activations(phase, recipe),
        gradient_bytes=gradients,
        optimizer_bytes=state,
        whole_weight_bytes=whole,
        notes=(
            "activations: what a backward pass without fusion across kernels keeps, of the micro-batches in flight",
            f"optimizer state: {recipe.optimizer}, {states:g} B per trained parameter",
            *_stage_note(setting),
        ),
    )


def _stage_state(
    setting: Setting, recipe: Recipe, held: Weights, state_bytes: float, *, mtp: bool
) -> tuple[float, float, float]:
    """Weights, gradients and optimizer state of one stage on one device, sharded over the ranks that hold the same [B].

    Routed experts have fewer replicas under expert parallelism, so fewer ranks share their state.

    Source: Rajbhandari et al., ZeRO, arXiv:1910.02054, section 5.
    """
    plan = setting.plan
    dense, routed = held.dense, held.routed
    if recipe.lora_rank is not None:
        # Adapters alone are trained; stages share them evenly.
        dense, routed = (float(n) for n in trained_elements(setting, recipe, mtp=mtp))

    def shared(dense: float, routed: float, sharded: bool) -> float:
        return dense / plan.replicas + routed / plan.expert_replicas if sharded else dense + routed

    return (
        shared(held.dense_bytes, held.routed_bytes, plan.zero >= 3),
        shared(dense, routed, plan.zero >= 2) * dtype_bytes(setting.types.gradient),
        shared(dense, routed, plan.zero >= 1) * state_bytes,
    )


def output_bytes(kernel: Kernel, tp: int) -> float:
    """Return what one device keeps of the output of a forward kernel of training [B].

    Args:
        kernel: The kernel.
        tp: Tensor-parallel ranks: outputs that they sum are scattered over the tokens, as sequence parallelism does.

    Source: Korthikanti et al., arXiv:2205.05198, section 4.2.2: with tensor and sequence parallelism everything that is
        kept is divided by the ranks.
    """
    return float(kernel.local_write_bytes) / (tp if kernel.name in _SUMMED else 1)


def kept_activations(phase: Phase, recipe: Recipe) -> float:
    """Return the activations that one device keeps for the backward pass [B].

    Args:
        phase: A training step.
        recipe: Its recomputation policy.

    Returns:
        Without full recomputation every output that is not changed in place; with it the input of each layer and the
        outputs of one layer. The first pipeline stage holds as many micro-batches as there are stages, the last one
        alone has logits, of one micro-batch: the larger of the two.

    Source: Korthikanti et al., arXiv:2205.05198, section 4 (what each operation keeps); Narayanan et al.,
        arXiv:2104.04473, section 2.2 (one forward, one backward: at most pp micro-batches in flight).
    """
    stages = phase.plan.pp
    in_flight = min(stages, phase.passes)
    forward = [k for k in phase.kernels if k.in_pass == "forward" and k.kind != "communication"]

    def once(kernels: list[Kernel]) -> float:
        return sum(output_bytes(k, phase.plan.tp) * k.count / phase.passes for k in kernels)

    layers = [k for k in forward if _is_layer(k) and k.name not in _IN_PLACE]
    # Kernels are those of an average stage; tables and head are whole on theirs.
    tables = once([k for k in forward if k.area == "embedding"]) * stages
    logits = once([k for k in forward if k.area == "head"]) * stages
    kept, working = once(layers), 0.0
    if recipe.recompute == "full":
        kept = once([k for k in layers if k.name == "input_layernorm" or k.area == "norm"]) / 2.0
        working = sum(output_bytes(k, phase.plan.tp) for k in {k.name: k for k in layers}.values())
    if stages == 1:
        return kept + working + tables + logits
    return max(kept * in_flight + tables, kept + logits) + working


def _is_layer(kernel: Kernel) -> bool:
    return kernel.area not in ("embedding", "head")
