"""Kernels of blocks with a state of fixed size: Mamba 1, Mamba 2, gated delta networks.

The scan is counted as the recurrence itself, as Megatron-LM counts it; chunked forms that trade more matrix products for
parallelism execute more.
"""

from __future__ import annotations

from mansard.core import Demand, dtype_bytes
from mansard.core.demand import Number
from mansard.operators.counting import Count, matrix_work, number
from mansard.workload.blocks.recurrent import GatedDeltaNet, Mamba1, Mamba2
from mansard.workload.blocks.weight import Weight, named
from mansard.workload.kernel import Context, Kernel, element_work, product
from mansard.workload.parallel import split


def recurrent_kernels(context: Context, block: Mamba1 | Mamba2 | GatedDeltaNet) -> list[Kernel]:
    """Return the kernels of a recurrent block, forward, on one device.

    Raises:
        InfeasibleError: its heads or channels cannot be divided over the tensor-parallel ranks.
    """
    if isinstance(block, Mamba1):
        return _mamba1(context, block)
    if isinstance(block, Mamba2):
        return _mamba2(context, block)
    return _delta(context, block)


def _convolution(context: Context, weights: tuple[Weight, ...], channels: int, taps: int, share: float) -> Kernel:
    """The short depthwise convolution, with the taps - 1 positions of its state.

    Source: 2 taps per channel and token (workloads reference, section 2).
    """
    tokens = context.tokens
    own = channels * share
    state = context.batch.sequences * own * (taps - 1.0) * dtype_bytes(context.types.cache)
    tensors = [(w, share) for w in named(weights, "conv1d")]
    kernel = product(context, "conv", tensors, rows=tokens, width_in=own, width_out=own, area="recurrent")
    held = Demand(read_bytes=state, write_bytes=state, launches=0.0)
    return kernel if context.training else _with(kernel, held)


def _with(kernel: Kernel, more: Demand) -> Kernel:
    from dataclasses import replace

    return replace(kernel, demand=kernel.demand + more)


def _scan(
    context: Context,
    *,
    flop: Number,
    state_elements: float,
    reads: Count,
    writes: Count,
    weights: list[tuple[Weight, float]],
) -> Kernel:
    """The recurrence: its state of each sequence is read and written once per pass."""
    size = sum(context.stored_bytes(w, context.layer_path) * share for w, share in weights)
    state = context.batch.sequences * state_elements * dtype_bytes(context.types.state)
    activation = dtype_bytes(context.types.activation)
    kept = 0.0 if context.training else state
    return Kernel(
        name="scan",
        kind="attention",
        demand=Demand(
            flop=matrix_work(flop / 2.0, context.types.activation),
            read_bytes=size + kept,
            write_bytes=kept,
        ),
        local_read_bytes=number(reads) * activation,
        local_write_bytes=number(writes) * activation,
        model_flop=flop,
        full_flop=flop,
        weight_bytes=size,
        area="recurrent",
    )


def _mamba1(context: Context, block: Mamba1) -> list[Kernel]:
    tp = context.plan.tp
    inner = split("channels", block.inner, tp)
    share, weights, tokens = 1.0 / tp, block.weights(), context.tokens
    small = [(w, share) for w in named(weights, "x_proj")]
    norms = [(w, 1.0) for w in weights if "layernorm" in w.name]
    kernels = [
        product(
            context, "in_proj", [(w, share) for w in named(weights, "in_proj")], rows=tokens, width_in=block.hidden,
            width_out=2 * inner, area="recurrent",
        ),
        _convolution(context, weights, block.inner, block.conv, share),
        product(
            context, "x_proj", small, rows=tokens, width_in=inner, width_out=block.dt_rank + 2 * block.state, area="recurrent"
        ),
        product(
            context, "dt_proj", [(w, share) for w in named(weights, "dt_proj")], rows=tokens, width_in=block.dt_rank,
            width_out=inner, area="recurrent",
        ),
    ]  # fmt: skip
    if block.inner_norm != "none":
        width = tokens * (block.dt_rank + 2 * block.state)
        kernels.append(
            element_work(
                context, "inner_norm", reads=width, writes=width, flop=width * 4.0, weights=norms, area="recurrent"
            )
        )
    kernels.append(
        _scan(
            context,
            flop=tokens * 9.0 * inner * block.state,
            state_elements=inner * block.state,
            reads=tokens * (3.0 * inner + 2.0 * block.state),
            writes=tokens * inner,
            weights=[(w, share) for w in named(weights, "A_log", "D")],
        )
    )
    out = [(w, share if w.role == "matmul" else 1.0) for w in named(weights, "out_proj")]
    kernels.append(
        product(context, "out_proj", out, rows=tokens, width_in=inner, width_out=block.hidden, area="recurrent")
    )
    return kernels


def _mamba2(context: Context, block: Mamba2) -> list[Kernel]:
    tp = context.plan.tp
    heads = split("heads", block.heads, tp)
    inner = heads * block.head_dim
    share, weights, tokens = 1.0 / tp, block.weights(), context.tokens
    projected = block.inner + block.conv_channels + block.heads
    kernels = [
        product(
            context, "in_proj", [(w, share) for w in named(weights, "in_proj")], rows=tokens, width_in=block.hidden,
            width_out=projected * share, area="recurrent",
        ),
        _convolution(context, weights, block.conv_channels, block.conv, share),
        _scan(
            context,
            flop=tokens * 7.0 * inner * block.state,
            state_elements=heads * block.head_dim * block.state,
            reads=tokens * (block.conv_channels + block.heads) * share,
            writes=tokens * inner,
            weights=[(w, share) for w in named(weights, "A_log", "D", "dt_bias")],
        ),
    ]  # fmt: skip
    if block.gated_norm:
        norm = [(w, share) for w in named(weights, "norm")]
        width = tokens * inner
        kernels.append(
            element_work(
                context, "gated_norm", reads=2.0 * width, writes=width, flop=width * 8.0, special=width, weights=norm,
                area="recurrent",
            )
        )  # fmt: skip
    out = [(w, share if w.role == "matmul" else 1.0) for w in named(weights, "out_proj")]
    kernels.append(
        product(context, "out_proj", out, rows=tokens, width_in=inner, width_out=block.hidden, area="recurrent")
    )
    return kernels


def _delta(context: Context, block: GatedDeltaNet) -> list[Kernel]:
    tp = context.plan.tp
    heads = split("value heads", block.v_heads, tp)
    split("key heads", block.k_heads, tp)
    share, weights, tokens = 1.0 / tp, block.weights(), context.tokens
    v_width = heads * block.v_dim
    first = named(weights, "in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a")
    projected = block.conv_channels + block.v_width + 2 * block.v_heads
    width = tokens * v_width
    return [
        product(
            context, "in_proj", [(w, share) for w in first], rows=tokens, width_in=block.hidden,
            width_out=projected * share, area="recurrent",
        ),
        _convolution(context, weights, block.conv_channels, block.conv, share),
        _scan(
            context,
            flop=tokens * 8.0 * heads * block.k_dim * block.v_dim,
            state_elements=heads * block.k_dim * block.v_dim,
            reads=tokens * (block.conv_channels + 2 * block.v_heads) * share,
            writes=width,
            weights=[(w, share) for w in named(weights, "A_log", "dt_bias")],
        ),
        element_work(
            context, "gated_norm", reads=2.0 * width, writes=width, flop=width * 8.0, special=width,
            weights=[(w, 1.0) for w in named(weights, "norm")], area="recurrent",
        ),
        product(
            context, "out_proj", [(w, share) for w in named(weights, "out_proj")], rows=tokens, width_in=v_width,
            width_out=block.hidden, area="recurrent",
        ),
    ]  # fmt: skip
