"""A training step as kernels: forward, backward, recomputation, messages between data-parallel ranks, optimizer.

Model FLOP are those of the mathematics: a matrix product costs twice its forward in the backward pass, attention too,
and a frozen matrix costs once (its input gradient). What recomputation and fused attention execute beyond that is in
the demand of the kernels, and counts for HFU alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from mansard.core import Demand, dtype_bytes
from mansard.core.demand import Number
from mansard.core.errors import UsageError
from mansard.operators.optimizer import adam_step, sgd_step
from mansard.workload.kernel import Context, Kernel, Types, message
from mansard.workload.parallel import Plan, all_gather_bytes, ring_all_reduce_bytes

Recompute = Literal["none", "selective", "full"]
Optimizer = Literal["adamw", "sgd", "sgd_momentum"]

#: Values of each parameter that the optimizer keeps in `state_dtype`, the master copy apart.
MOMENTS: dict[str, int] = {"adamw": 2, "sgd": 0, "sgd_momentum": 1}

#: What each recomputation policy runs a second time.
RECOMPUTE: dict[str, str] = {
    "none": "nothing is computed twice, beyond what fused attention does",
    "selective": "the attention core is computed twice",
    "full": "the forward pass of every layer is computed twice; tables and heads are not",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a model is trained.

    Args:
        optimizer: `adamw`, `sgd` or `sgd_momentum`.
        master_dtype: Type of the master copy of the weights; None where weights are updated in place.
        state_dtype: Type of the moments.
        recompute: What is computed again instead of being kept.
        accumulation: Micro-batches per optimizer step.
        lora_rank: Rank of adapters beside frozen matrices; None: every weight is trained.
        lora_targets: Ends of module names that get an adapter.
        frozen: Every original weight is frozen, as under LoRA.
    """

    optimizer: Optimizer = "adamw"
    master_dtype: str | None = "f32"
    state_dtype: str = "f32"
    recompute: Recompute = "none"
    accumulation: int = 1
    lora_rank: int | None = None
    lora_targets: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")

    def __post_init__(self) -> None:
        if self.optimizer not in MOMENTS:
            raise UsageError(f"unknown optimizer {self.optimizer!r}", hint=f"one of {', '.join(MOMENTS)}")
        if self.recompute not in RECOMPUTE:
            raise UsageError(f"unknown recompute policy {self.recompute!r}", hint=f"one of {', '.join(RECOMPUTE)}")
        if self.accumulation < 1:
            raise UsageError(f"accumulation is {self.accumulation}, expected a positive number")
        if self.lora_rank is not None and self.lora_rank < 1:
            raise UsageError(f"lora_rank is {self.lora_rank}, expected a positive number")


def matmul_train_flop_per_token(*, trained: float, frozen: float = 0.0) -> float:
    """Return the training FLOP per token of matrix parameters, attention apart.

    Args:
        trained: Matrix parameters that get a gradient.
        frozen: Matrix parameters that only pass one on.

    Returns:
        6 per trained and 4 per frozen parameter [FLOP/token].

    Source: Kaplan et al., arXiv:2001.08361, section 2.1; Automodel#786 for adapters.

    >>> matmul_train_flop_per_token(frozen=70553706496, trained=175636480)
    283268644864.0
    """
    return 6.0 * trained + 4.0 * frozen


def backward_kernels(kernel: Kernel, types: Types, *, accumulating: bool) -> list[Kernel]:
    """Return the kernels that give the gradients of one forward kernel.

    Args:
        kernel: The forward kernel.
        types: Element types.
        accumulating: Gradients are added to what earlier micro-batches left.
    """
    if kernel.kind == "communication":
        return [replace(kernel, in_pass="backward")]
    gradient = kernel.weight_elements * dtype_bytes(types.gradient)
    written = Demand(write_bytes=gradient, read_bytes=gradient if accumulating else 0.0, launches=0.0)
    if kernel.kind == "linear":
        return _linear_backward(kernel, written)
    if kernel.kind == "gather":
        if kernel.frozen:
            return []
        # Only the rows that were looked up get a gradient.
        touched = Demand(read_bytes=kernel.demand.read_bytes, write_bytes=kernel.demand.read_bytes)
        return [
            replace(
                kernel, in_pass="backward", demand=touched, local_read_bytes=kernel.local_write_bytes, local_write_bytes=0.0
            )
        ]  # fmt: skip
    ratio = kernel.backward_ratio
    work = Demand(
        flop={k: v * ratio for k, v in kernel.demand.flop.items()},
        vector_flop={k: v * 2.0 for k, v in kernel.demand.vector_flop.items()},
        transcendental=kernel.demand.transcendental,
        read_bytes=kernel.demand.read_bytes,
    )
    if not kernel.frozen:
        work = work + written
    return [
        replace(
            kernel,
            in_pass="backward",
            demand=work,
            local_read_bytes=kernel.local_read_bytes + 2.0 * kernel.local_write_bytes,
            local_write_bytes=kernel.local_read_bytes,
            model_flop=2.0 * kernel.model_flop,
            full_flop=2.0 * kernel.full_flop,
        )
    ]


def _linear_backward(kernel: Kernel, gradient: Demand) -> list[Kernel]:
    """Input gradient dA = dC W^T, and weight gradient dW = A^T dC where the weights are trained."""
    flop = kernel.demand.flop
    inward = replace(
        kernel,
        name=f"{kernel.name}.input_gradient",
        in_pass="backward",
        demand=Demand(flop=flop, read_bytes=kernel.weight_bytes),
        local_read_bytes=kernel.local_write_bytes,
        local_write_bytes=kernel.local_read_bytes,
    )
    if kernel.frozen:
        return [inward]
    weight = replace(
        kernel,
        name=f"{kernel.name}.weight_gradient",
        in_pass="backward",
        demand=Demand(flop=flop) + gradient,
        local_read_bytes=kernel.local_read_bytes + kernel.local_write_bytes,
        local_write_bytes=0.0,
        weight_bytes=0.0,
    )
    return [inward, weight]


def recomputed(layers: Sequence[Kernel], policy: Recompute) -> list[Kernel]:
    """Return the forward kernels that run once more; they are executed, and no model FLOP.

    Args:
        layers: Forward kernels of the layers.
        policy: `none`, `selective` (attention core) or `full`.
    """
    if policy == "none":
        return []
    again = [
        k for k in layers if policy == "full" or (k.kind == "attention" and k.area in ("attention", "cross_attention"))
    ]
    return [replace(k, in_pass="recompute", model_flop=0.0, full_flop=0.0) for k in again]


def gradient_messages(
    context: Context, plan: Plan, elements: Number, recipe: Recipe, *, routed: Number = 0.0
) -> list[Kernel]:
    """Return what one device sends for the gradients, and for sharded weights, of one optimizer step.

    Args:
        context: The pass; its types give the bytes.
        plan: Data- and context-parallel ranks replicate weights; `zero` says what they shard.
        elements: Trained weights this device computes gradients of, routed experts apart.
        recipe: Sharded weights are gathered, and sharded gradients scattered, in every micro-batch.
        routed: Trained weights of the routed experts this device holds; they have fewer replicas under expert parallelism.

    Assumes: with sharded gradients (stages 2 and 3) no rank can wait for the last micro-batch, since it has no room for
        all of its gradients.
    Source: Rajbhandari et al., ZeRO, arXiv:1910.02054, section 7: stages 1 and 2 send as much as an all-reduce, stage 3
        half as much again. Megatron-Core: gradients of experts are summed over the expert data-parallel ranks alone.
    """
    if plan.ep == 1:
        elements, routed = elements + routed, 0.0
    out = _messages_over(context, plan.replicas, elements, plan.zero, recipe.accumulation)
    if plan.ep == 1:
        return out
    experts = _messages_over(context, plan.expert_replicas, routed, plan.zero, recipe.accumulation)
    return out + [replace(k, name=f"{k.name}_experts") for k in experts]


def _messages_over(context: Context, ranks: int, elements: Number, zero: int, accumulation: int) -> list[Kernel]:
    """Messages of weights that `ranks` ranks hold alike."""
    if ranks == 1:
        return []
    gradient = elements * dtype_bytes(context.types.gradient)
    weights = elements * dtype_bytes(context.types.activation)
    steps = ranks - 1.0
    if zero == 0:
        sent = ring_all_reduce_bytes(1.0, ranks) * gradient
        return [message("all_reduce_gradients", "peer", sent, steps=2.0 * steps)]
    scatter = message("reduce_scatter_gradients", "peer", all_gather_bytes(1.0, ranks) * gradient, steps=steps)
    gather = message("all_gather_weights", "peer", all_gather_bytes(1.0, ranks) * weights, steps=steps)
    return [
        scatter.times(float(accumulation) if zero >= 2 else 1.0),
        gather.times(2.0 * accumulation if zero == 3 else 1.0),
    ]


def tied_table_messages(context: Context, plan: Plan, elements: Number) -> list[Kernel]:
    """Return the sum of both gradients of a token table that the first and the last pipeline stage hold.

    Args:
        context: The pass; its types give the bytes.
        plan: With one stage there is one copy, and no message.
        elements: Elements of the table on one tensor-parallel rank.

    Returns:
        An all-reduce between two ranks, on two of the stages: on average 2/pp of it for each device.

    Source: Narayanan et al., arXiv:2104.04473, and Megatron-LM, `_allreduce_embedding_grads`.
    """
    if plan.pp == 1:
        return []
    sent = ring_all_reduce_bytes(1.0, 2) * elements * dtype_bytes(context.types.gradient)
    return [message("all_reduce_tied_table", "peer", sent, steps=2.0).times(2.0 / plan.pp)]


def state_bytes_per_param(recipe: Recipe, weight_dtype: str) -> float:
    """Return what the optimizer keeps of each trained parameter, its master copy included [B].

    Args:
        recipe: Optimizer and types of its state.
        weight_dtype: Type the model is trained in: weights that are already in the master type have no second copy.

    Source: Rajbhandari et al., ZeRO, arXiv:1910.02054, section 3.1: 12 B beside 2 + 2 B of fp16 weights and gradients. Adam
        in fp32 keeps 8 B beside 4 + 4 B.

    >>> state_bytes_per_param(Recipe(), "bf16"), state_bytes_per_param(Recipe(), "f32")
    (12.0, 8.0)
    """
    moments = float(MOMENTS[recipe.optimizer] * dtype_bytes(recipe.state_dtype))
    own = recipe.master_dtype is not None and recipe.master_dtype != weight_dtype
    return moments + (float(dtype_bytes(recipe.master_dtype)) if own and recipe.master_dtype else 0.0)


def optimizer_kernel(elements: Number, types: Types, recipe: Recipe) -> Kernel:
    """Return the optimizer step over the parameters that this device updates.

    Args:
        elements: Parameters it updates, after sharding.
        types: Element types.
        recipe: Optimizer and types of its state.
    """
    master = recipe.master_dtype or types.activation
    if recipe.optimizer == "adamw":
        cost = adam_step(
            elements=elements, dtype=master, weight_decay=True, gradient_dtype=types.gradient,
            state_dtype=recipe.state_dtype,
        )  # fmt: skip
    else:
        cost = sgd_step(
            elements=elements, dtype=master, momentum=recipe.optimizer == "sgd_momentum", gradient_dtype=types.gradient
        )
    if recipe.master_dtype is not None and recipe.master_dtype != types.activation:
        cost = cost + Demand(write_bytes=elements * dtype_bytes(types.activation), launches=0.0)
    return Kernel(name="optimizer_step", kind="optimizer", in_pass="optimizer", demand=cost, area="optimizer")
