"""The kernel: one dispatched operation of a phase, with what it consumes and how often it runs.

Bytes are kept apart by where they must come from. Weights, cache and recurrent state are far larger than any cache and
are used once per pass, so they come from main memory; they are in `demand`. Activations pass from one kernel to the
next; they are in `local_*` and reach main memory only where they do not fit on the chip, which the machine decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from mansard.core import Demand
from mansard.core.demand import Number
from mansard.operators.counting import Count, matrix_work, number, vector_work
from mansard.workload.batch import Batch, Mask
from mansard.workload.blocks.weight import Weight
from mansard.workload.parallel import Plan

Kind = Literal["linear", "attention", "vector", "gather", "communication", "optimizer"]
Pass = Literal["forward", "backward", "recompute", "optimizer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One operation of a phase on one device; all figures are of one execution.

    Args:
        name: What it is, such as `qkv_proj`.
        kind: How it behaves in the backward pass.
        demand: Executed FLOP, traffic with main memory (weights, cache, state), messages, launches.
        count: Executions.
        in_pass: Forward, backward, recompute or optimizer.
        local_read_bytes, local_write_bytes: Activations it reads and writes [B].
        model_flop: Matrix work that model FLOP count: without recomputation, attention as its mask shows it [FLOP].
        full_flop: The same with every query against every key, as the other convention counts it [FLOP].
        weight_bytes: Part of the reads that are weights [B].
        weight_elements: Weights that a gradient belongs to, on this device [count].
        frozen: The weights need no gradient.
        backward_ratio: Executed FLOP of the backward pass over those of the forward pass, for kinds but `linear`.
        area: Part of the model it belongs to, such as `attention`, `experts`, `head`.
        routed: Its weights are routed experts, which expert-parallel ranks divide.
    """

    name: str
    kind: Kind
    demand: Demand
    count: float = 1.0
    in_pass: Pass = "forward"
    local_read_bytes: Number = 0.0
    local_write_bytes: Number = 0.0
    model_flop: Number = 0.0
    full_flop: Number = 0.0
    weight_bytes: Number = 0.0
    weight_elements: Number = 0.0
    frozen: bool = False
    backward_ratio: float = 2.0
    area: str = "other"
    routed: bool = False

    @property
    def local_bytes(self) -> Number:
        """Activations of one execution [B]."""
        return self.local_read_bytes + self.local_write_bytes

    def times(self, count: float) -> Kernel:
        """Return the kernel run `count` times as often."""
        return replace(self, count=self.count * count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Types:
    """Element types of a phase.

    Args:
        activation: The residual stream, and every product whose weights are not quantised.
        cache: Keys and values in the cache.
        state: Recurrent states.
        product: What activations are cast to for products with quantised weights; None for `activation`.
        gradient: Gradients of weights.
    """

    activation: str
    cache: str
    state: str = "f32"
    product: str | None = None
    gradient: str = "f32"


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What the kernels of a pass are built from.

    Args:
        batch: The pass of one data-parallel rank.
        plan: How the model is divided.
        types: Element types.
        stored_bytes: Bytes of one copy of a tensor as it is stored, by tensor and module path of its layer.
        quantised: Whether a tensor is stored quantised.
        training: Gradients will be needed: statistics are kept, latent attention is not absorbed.
        absorbed: Latent attention in its decode form, on the latent itself.
        routing: Measured routing frequencies of the experts; None for even routing.
        layer_path: Module path of the layer that is being built.
        frozen: Whether a tensor needs no gradient.
    """

    batch: Batch
    plan: Plan
    types: Types
    stored_bytes: Callable[[Weight, str], float]
    quantised: Callable[[Weight, str], bool]
    training: bool = False
    absorbed: bool = False
    routing: Sequence[float] | None = None
    layer_path: str = ""
    frozen: Callable[[Weight], bool] = field(default=lambda _weight: False)

    @property
    def tokens(self) -> Number:
        """New tokens that one tensor-parallel group of this device works on."""
        return self.batch.tokens / self.token_shards

    @property
    def token_shards(self) -> int:
        """Context-parallel ranks that divide the tokens; in decode they divide the cache instead."""
        return self.plan.cp if self.training or not self.decoding else 1

    @property
    def decoding(self) -> bool:
        """Whether every sequence has one new token."""
        return all(not hasattr(g.queries, "shape") and g.queries == 1 for g in self.batch.groups)

    @property
    def stream_tokens(self) -> Number:
        """Tokens that element-wise work on the residual stream touches on this device; sequence-parallel in training."""
        return self.tokens / self.plan.tp if self.training else self.tokens

    def pairs(self, mask: Mask) -> Number:
        """Visible pairs of one head on this device."""
        return self.batch.pairs(mask) / self.plan.cp

    def full_pairs(self) -> Number:
        """Pairs of the full square of one head on this device."""
        return self.batch.full_pairs() / self.plan.cp

    def keys_read(self, mask: Mask) -> Number:
        """Keys of all sequences that this device reads."""
        keys = self.batch.keys_read(mask)
        return keys / self.plan.cp if self.decoding else keys


def product(
    context: Context,
    name: str,
    weights: Sequence[tuple[Weight, float]],
    *,
    rows: Count,
    width_in: Count,
    width_out: Count,
    area: str,
    copies: Count = 1.0,
    model: bool = True,
) -> Kernel:
    """Return the kernel that multiplies `rows` rows by matrices that are read side by side.

    Args:
        context: The pass.
        name: Name of the kernel.
        weights: Each tensor (biases too) and the share of it that this device holds.
        rows: Rows that each matrix multiplies.
        width_in, width_out: Elements of a row that are read and written on this device.
        area: Part of the model.
        copies: Copies of each tensor that are read, such as distinct experts; every row meets one of them.
        model: Whether the work counts as model FLOP.
    """
    macs: Number = 0.0
    size: Number = 0.0
    elements: Number = 0.0
    types = context.types
    dtype = types.activation
    for weight, share in weights:
        size = size + context.stored_bytes(weight, context.layer_path) * share * number(copies)
        elements = elements + weight.elements * share * number(copies)
        if weight.role in ("matmul", "conv"):
            macs = macs + weight.elements * share * number(rows)
            if types.product is not None and context.quantised(weight, context.layer_path):
                dtype = types.product
    flop = matrix_work(macs, dtype)
    total = 2.0 * macs
    activation = _size(types.activation)
    return Kernel(
        name=name,
        kind="linear",
        demand=Demand(flop=flop, read_bytes=size),
        local_read_bytes=number(rows) * number(width_in) * activation,
        local_write_bytes=number(rows) * number(width_out) * activation,
        model_flop=total if model else 0.0,
        full_flop=total if model else 0.0,
        weight_bytes=size,
        weight_elements=elements,
        frozen=all(context.frozen(weight) for weight, _ in weights),
        area=area,
    )


def element_work(
    context: Context,
    name: str,
    *,
    reads: Count,
    writes: Count,
    flop: Count = 0.0,
    special: Count = 0.0,
    weights: Sequence[tuple[Weight, float]] = (),
    area: str = "norm",
) -> Kernel:
    """Return an element-wise, norm or reduction kernel on activations.

    Args:
        context, name, area: As in `product`.
        reads, writes: Activation elements.
        flop, special: Vector FLOP and special functions.
        weights: Small tensors that are read.
    """
    types = context.types
    size: Number = 0.0
    elements: Number = 0.0
    for weight, share in weights:
        size = size + context.stored_bytes(weight, context.layer_path) * share
        elements = elements + weight.elements * share
    activation = _size(types.activation)
    return Kernel(
        name=name,
        kind="vector",
        demand=Demand(
            vector_flop=vector_work(flop, types.activation),
            transcendental=vector_work(special, types.activation),
            read_bytes=size,
        ),
        local_read_bytes=number(reads) * activation,
        local_write_bytes=number(writes) * activation,
        weight_bytes=size,
        weight_elements=elements,
        frozen=all(context.frozen(weight) for weight, _ in weights),
        area=area,
    )


def message(name: str, link: str, sent_bytes: Number, *, steps: Count = 1.0, area: str = "communication") -> Kernel:
    """Return a message of a collective or a pipeline.

    Args:
        name: Operation and what it is for.
        link: Name of the link in the ceilings.
        sent_bytes: Bytes this device sends [B].
        steps: Dependent steps, each of which costs the latency of the link.
        area: Part of the model.
    """
    return Kernel(
        name=name, kind="communication", demand=Demand(link_bytes={link: sent_bytes}, launches=number(steps)), area=area
    )


def _size(dtype: str) -> float:
    from mansard.core.dtypes import dtype_bytes

    return dtype_bytes(dtype)
