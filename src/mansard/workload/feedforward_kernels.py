"""Kernels of feed-forward blocks, mixtures of experts, and what stands alone: projections, tables, convolutions."""

from __future__ import annotations

from dataclasses import replace

from mansard.core import Demand, dtype_bytes
from mansard.core.demand import Number
from mansard.core.errors import UsageError
from mansard.operators.counting import Count, at_most, number
from mansard.operators.elementwise import ARITHMETIC
from mansard.workload.blocks.feedforward import Convolution, Embedding, Linear, Mlp, Moe, Parameters
from mansard.workload.blocks.weight import Norm, Weight
from mansard.workload.experts import expected_distinct, expected_distinct_measured
from mansard.workload.kernel import Context, Kernel, element_work, product
from mansard.workload.parallel import padded_vocab, split

#: Names that configurations use for an activation, as `operators.elementwise` knows them.
_ACTIVATIONS = {
    "swish": "silu", "gelu_new": "gelu_tanh", "gelu_fast": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh",
    "gated-gelu": "gelu_tanh", "quick_gelu": "silu", "geglu": "gelu", "swiglu": "silu", "gelu-approximate": "gelu_tanh",
}  # fmt: skip


def activation_cost(name: str) -> tuple[float, float]:
    """Return vector FLOP and special functions of one evaluation of an activation.

    Squared ReLU is a comparison and a product; an activation that is not known costs 1 FLOP and no special function, a
    lower bound.

    >>> activation_cost("silu"), activation_cost("relu2")
    ((3.0, 1.0), (2.0, 0.0))
    """
    key = _ACTIVATIONS.get(name, name)
    if key in ("relu2", "relu_squared", "squared_relu"):
        return (2.0, 0.0)
    return ARITHMETIC.get(key, (1.0, 0.0))


def mlp_kernels(context: Context, block: Mlp, *, prefix: str = "", area: str = "mlp") -> list[Kernel]:
    """Return the kernels of a feed-forward block: the matrices into the inner width at once, activation, the way back."""
    tp = context.plan.tp
    width = split("feed-forward columns", block.width, tp)
    first, last = _first_and_last(block.weights(), 1.0 / tp)
    return _feed_forward(
        context, first, last, rows=context.tokens, outer=block.hidden, width=width, gated=block.gated,
        activation=block.activation, prefix=prefix, area=area,
    )  # fmt: skip


def _first_and_last(
    weights: tuple[Weight, ...], share: float
) -> tuple[list[tuple[Weight, float]], list[tuple[Weight, float]]]:
    """Tensors of the way into the inner width and of the way back; the bias of the way back is added once."""
    down = [(w, share if w.role == "matmul" else 1.0) for w in weights if "down_proj" in w.name]
    return [(w, share) for w in weights if "down_proj" not in w.name], down


def _feed_forward(
    context: Context,
    first: list[tuple[Weight, float]],
    last: list[tuple[Weight, float]],
    *,
    rows: Count,
    outer: int,
    width: float,
    gated: bool,
    activation: str,
    prefix: str,
    area: str,
    copies: Count = 1.0,
) -> list[Kernel]:
    flop, special = activation_cost(activation)
    inner = number(rows) * width
    name = f"{prefix}gate_up_proj" if gated else f"{prefix}up_proj"
    columns = width * (2.0 if gated else 1.0)
    return [
        product(context, name, first, rows=rows, width_in=outer, width_out=columns, area=area, copies=copies),
        element_work(
            context, f"{prefix}activation", reads=number(rows) * columns, writes=inner, flop=inner * (flop + float(gated)),
            special=inner * special, area=area,
        ),
        product(context, f"{prefix}down_proj", last, rows=rows, width_in=width, width_out=outer, area=area, copies=copies),
    ]  # fmt: skip


def routed_rows(context: Context, block: Moe) -> Number:
    """Return the rows that the experts of this device work on, when routing is balanced over devices.

    With expert parallelism the tokens of several ranks meet at one set of experts, and each rank holds a part of it.
    """
    met = context.tokens * context.plan.expert_token_groups
    return met * block.top_k / context.plan.ep


def distinct_experts(context: Context, block: Moe) -> Number:
    """Return the experts of this device whose weights are read: expected for even or for measured routing."""
    met = context.tokens * context.plan.expert_token_groups
    if context.routing is not None:
        if len(context.routing) != block.experts:
            raise UsageError(
                f"{len(context.routing)} routing frequencies for {block.experts} experts",
                hint="one for each, unused ones too",
            )
        found = expected_distinct_measured(context.routing, per_token=block.top_k, tokens=met)
    else:
        found = expected_distinct(experts=block.experts, per_token=block.top_k, tokens=met)
    return found / context.plan.ep


def moe_kernels(context: Context, block: Moe) -> list[Kernel]:
    """Return the kernels of a mixture of experts: router, routed experts, shared experts, and the weighted sum."""
    plan = context.plan
    split("experts", block.experts, plan.ep)
    width = split("columns of an expert", block.width, plan.expert_tp)
    weights = block.weights()
    tokens = context.tokens
    router = [(w, 1.0) for w in weights if w.block == "router" and "shared" not in w.name]
    kernels = [
        product(context, "router", router, rows=tokens, width_in=block.hidden, width_out=block.experts, area="router")
    ]
    scores = tokens * block.experts
    kernels.append(
        element_work(
            context, "routing", reads=scores, writes=tokens * block.top_k * 2.0, flop=scores * 4.0, special=scores,
            area="router",
        )
    )  # fmt: skip
    rows, distinct = routed_rows(context, block), distinct_experts(context, block)
    latent = [w for w in weights if w.block == "latent"]
    if latent:
        down, up = latent[: len(latent) // 2], latent[len(latent) // 2 :]
        kernels.append(product(
            context, "latent_down_proj", [(w, 1.0) for w in down], rows=tokens, width_in=block.hidden,
            width_out=block.expert_hidden, area="experts",
        ))  # fmt: skip
    routed = tuple(w for w in weights if w.block == "experts")
    first, last = _first_and_last(routed, 1.0 / plan.expert_tp)
    experts = _feed_forward(
        context, first, last, rows=rows, outer=block.expert_hidden, width=width, gated=block.gated,
        activation=block.activation, prefix="experts_", area="experts", copies=distinct,
    )  # fmt: skip
    kernels += [replace(k, routed=True) for k in experts]
    combined = tokens * block.expert_hidden
    kernels.append(
        element_work(
            context, "combine", reads=combined * block.top_k, writes=combined, flop=combined * 2.0 * block.top_k,
            area="experts",
        )
    )  # fmt: skip
    if latent:
        kernels.append(product(
            context, "latent_up_proj", [(w, 1.0) for w in up], rows=tokens, width_in=block.expert_hidden,
            width_out=block.hidden, area="experts",
        ))  # fmt: skip
    return kernels + _shared_kernels(context, block, weights)


def _shared_kernels(context: Context, block: Moe, weights: tuple[Weight, ...]) -> list[Kernel]:
    """The experts that every token passes."""
    if not block.shared_width:
        return []
    tp = context.plan.tp
    shared = tuple(w for w in weights if w.block == "shared_experts")
    first, last = _first_and_last(shared, 1.0 / tp)
    out = _feed_forward(
        context, first, last, rows=context.tokens, outer=block.hidden, width=split("shared expert columns", block.shared_width, tp),
        gated=block.shared_gated, activation=block.activation, prefix="shared_", area="shared_experts",
    )  # fmt: skip
    gate = [(w, 1.0) for w in weights if "shared_expert_gate" in w.name]
    if gate:
        out.append(product(
            context, "shared_gate", gate, rows=context.tokens, width_in=block.hidden, width_out=1, area="router"
        ))  # fmt: skip
    return out


def norm_kernel(context: Context, block: Norm) -> Kernel:
    """Return the kernel of a norm with the residual addition before it, in one pass over the stream."""
    elements = context.stream_tokens * block.width
    per_element = (5.0 if block.kind == "rms" else 8.0) + float(block.bias)
    name = block.path.rsplit(".", 1)[-1]
    weights = [(w, 1.0) for w in block.weights()]
    return element_work(
        context, name, reads=elements * 2.0, writes=elements, flop=elements * per_element, weights=weights, area="norm"
    )


def linear_kernel(context: Context, block: Linear, rows: Count, *, column_parallel: bool = False) -> Kernel:
    """Return the kernel of an affine map that stands alone; column-parallel over tp for a head."""
    tp = context.plan.tp if column_parallel else 1
    share = padded_vocab(block.out, tp) / block.out
    weights = [(w, share) for w in block.weights()]
    many = number(rows) * block.rows_per_token
    name = block.path.rsplit(".", 1)[-1]
    return product(
        context, name, weights, rows=many, width_in=block.into, width_out=block.out * share, area=block.block
    )


def embedding_kernel(context: Context, block: Embedding, rows: Count) -> Kernel:
    """Return the look-up of `rows` rows: no FLOP, one row of bytes each, never more than the table.

    Tensor-parallel ranks divide the rows of a token table; tables of positions are whole on each.
    """
    (table,) = block.weights()
    per_row = context.stored_bytes(table, context.layer_path) / block.rows
    own = padded_vocab(block.rows, context.plan.tp) / block.rows if block.block == "embedding" else 1.0
    touched = at_most(number(rows), float(block.rows)) * own
    return Kernel(
        name=block.path.rsplit(".", 1)[-1],
        kind="gather",
        demand=Demand(read_bytes=touched * per_row),
        local_write_bytes=number(rows) * block.width * dtype_bytes(context.types.activation),
        weight_bytes=touched * per_row,
        weight_elements=float(block.rows * block.width) * own,
        area="embedding",
    )


def convolution_kernel(context: Context, block: Convolution, rows: Count) -> Kernel:
    """Return a convolution that gives `rows` output positions."""
    weights = [(w, 1.0) for w in block.weights()]
    window = block.into
    for length in block.stride:
        window *= length
    return product(
        context,
        block.path.rsplit(".", 1)[-1],
        weights,
        rows=rows,
        width_in=window,
        width_out=block.out,
        area=block.block,
    )


def parameters_kernel(context: Context, block: Parameters) -> Kernel | None:
    """Return the reading of learned tensors that other kernels use on the way; None for buffers."""
    if block.role == "buffer":
        return None
    weights = [(w, 1.0) for w in block.weights()]
    return element_work(context, block.path.rsplit(".", 1)[-1], reads=0.0, writes=0.0, weights=weights, area="other")
