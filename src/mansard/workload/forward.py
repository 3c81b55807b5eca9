"""The forward pass of a model as a list of kernels on one device: tables, layers, norms, heads, messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mansard.core import dtype_bytes
from mansard.core.demand import Number
from mansard.core.errors import UsageError
from mansard.operators.counting import Count, number
from mansard.workload.attention_kernels import attention_kernels
from mansard.workload.batch import Batch, Group
from mansard.workload.feedforward_kernels import (
    convolution_kernel,
    embedding_kernel,
    linear_kernel,
    mlp_kernels,
    moe_kernels,
    norm_kernel,
    parameters_kernel,
)
from mansard.workload.kernel import Context, Kernel, element_work, message
from mansard.workload.parallel import InfeasibleError, all_gather_bytes, padded_vocab, ring_all_reduce_bytes
from mansard.workload.records import (
    Block,
    Convolution,
    CrossAttention,
    Embedding,
    GatedDeltaNet,
    GqaAttention,
    Layer,
    Linear,
    Mamba1,
    Mamba2,
    MlaAttention,
    Mlp,
    Model,
    Moe,
    Norm,
    Stack,
)
from mansard.workload.recurrent_kernels import recurrent_kernels

#: Name of the link between the devices of a plan; the machine says which of its links that is.
PEER = "peer"


def block_kernels(context: Context, block: Block, rows: Count | None = None) -> list[Kernel]:
    """Return the kernels of one block.

    Args:
        context: The pass.
        block: The block.
        rows: Rows of a projection, table or convolution that stands alone; None for the tokens of the pass.
    """
    many = context.tokens if rows is None else rows
    if isinstance(block, GqaAttention | MlaAttention | CrossAttention):
        return attention_kernels(context, block)
    if isinstance(block, Mamba1 | Mamba2 | GatedDeltaNet):
        return recurrent_kernels(context, block)
    if isinstance(block, Mlp):
        return mlp_kernels(context, block)
    if isinstance(block, Moe):
        return moe_kernels(context, block)
    if isinstance(block, Norm):
        return [norm_kernel(context, block)]
    if isinstance(block, Linear):
        return [linear_kernel(context, block, many)]
    if isinstance(block, Embedding):
        look_up = embedding_kernel(context, block, many)
        if context.plan.tp == 1 or block.block != "embedding":
            return [look_up]
        # Each rank finds the rows it holds; the sum is the embedding.
        size = number(many) * block.width * dtype_bytes(context.types.activation)
        sent = ring_all_reduce_bytes(1.0, context.plan.tp) * size
        return [look_up, message("all_reduce_tp", PEER, sent, steps=2.0 * (context.plan.tp - 1))]
    if isinstance(block, Convolution):
        return [convolution_kernel(context, block, many)]
    kernel = parameters_kernel(context, block)
    return [] if kernel is None else [kernel]


def layer_kernels(context: Context, layer: Layer) -> list[Kernel]:
    """Return the kernels of one layer with the messages of its tensor, context and expert parallelism."""
    kernels: list[Kernel] = []
    for block in layer.blocks:
        kernels += block_kernels(context, block)
        kernels += _messages(context, block)
    return kernels


def _messages(context: Context, block: Block) -> list[Kernel]:
    """What one device must send after a block.

    Tensor parallelism sums the output of every divided block (all-reduce; with sequence parallelism a reduce-scatter and
    an all-gather, which send as much). Context parallelism passes keys and values around. Expert parallelism sends each
    token to the devices of its experts and back.
    """
    plan, size = context.plan, dtype_bytes(context.types.activation)
    divided = isinstance(
        block, GqaAttention | MlaAttention | CrossAttention | Mamba1 | Mamba2 | GatedDeltaNet | Mlp | Moe
    )
    if not divided:
        return []
    out: list[Kernel] = []
    hidden = _width(block)
    tokens = context.tokens
    if isinstance(block, GqaAttention | MlaAttention) and plan.cp > 1:
        out.append(_ring_of_keys(context, block))
    if plan.tp > 1 and not (isinstance(block, Moe) and plan.ep > 1 and not block.shared_width):
        sent = ring_all_reduce_bytes(1.0, plan.tp) * tokens * hidden * size
        out.append(message("all_reduce_tp", PEER, sent, steps=2.0 * (plan.tp - 1)))
    if isinstance(block, Moe) and plan.ep > 1:
        rows = tokens / (plan.tp if plan.ep >= plan.tp else plan.ep) * block.top_k
        sent = rows * block.expert_hidden * size * (plan.ep - 1) / plan.ep
        out.append(message("all_to_all_dispatch", PEER, sent, steps=plan.ep - 1.0))
        out.append(message("all_to_all_combine", PEER, sent, steps=plan.ep - 1.0))
    return out


def _width(block: Block) -> int:
    if isinstance(block, GqaAttention) and block.out_hidden is not None:
        return block.out_hidden
    hidden = getattr(block, "hidden", None)
    assert isinstance(hidden, int)
    return hidden


def _ring_of_keys(context: Context, block: GqaAttention | MlaAttention) -> Kernel:
    """Keys and values of every other context-parallel rank pass by; in decode the partial results are gathered."""
    plan = context.plan
    size = dtype_bytes(context.types.activation)
    if isinstance(block, MlaAttention):
        width, values = float(block.cache_width), float(block.heads / plan.tp * block.v_dim)
    else:
        width = max(1.0, block.kv_heads / plan.tp) * (block.head_dim + block.v_head_dim)
        values = block.heads / plan.tp * block.v_head_dim
    if context.decoding:
        sent = all_gather_bytes(1.0, plan.cp) * context.tokens * values * size * plan.cp
        return message("all_gather_cp", PEER, sent, steps=plan.cp - 1.0)
    sent = context.batch.cached_tokens / plan.cp * width * size * (plan.cp - 1.0)
    return message("ring_cp", PEER, sent, steps=plan.cp - 1.0)


def stack_kernels(context: Context, stack: Stack, *, lookups: Count | None = None) -> list[Kernel]:
    """Return the kernels of one stack: its inputs, every layer, its outputs.

    Args:
        context: The pass.
        stack: The stack.
        lookups: Rows that its tables look up; None for the tokens of the pass.

    Raises:
        InfeasibleError: its layers cannot be divided over the pipeline ranks.
    """
    whole = replace(context, layer_path="")
    kernels = [k for block in stack.inputs for k in block_kernels(whole, block, lookups)]
    if context.plan.pp > stack.depth:
        raise InfeasibleError(f"{stack.depth} layers cannot be divided over {context.plan.pp} pipeline ranks")
    for group in stack.groups:
        inside = replace(context, layer_path=stack.path)
        kernels += [k.times(group.count) for k in layer_kernels(inside, group.layer)]
    kernels += [k for block in stack.outputs for k in block_kernels(whole, block, None)]
    return kernels


def head_kernels(context: Context, model: Model) -> list[Kernel]:
    """Return the kernels that turn hidden states into logits, at the positions whose logits are needed."""
    rows = context.batch.logits / context.token_shards
    if not _positive(rows):
        # No chunk of a prompt but the last one needs logits.
        return []
    whole = replace(context, layer_path="")
    kernels: list[Kernel] = []
    for block in model.head:
        if isinstance(block, Linear):
            kernels.append(linear_kernel(whole, block, rows, column_parallel=block.out == model.vocab))
        else:
            # Norms of a head work on the positions it works on.
            at_rows = replace(whole, batch=Batch(groups=(Group(sequences=rows, queries=1.0, keys=1.0),)))
            kernels += block_kernels(at_rows, block, rows)
    if model.vocab is not None and any(isinstance(b, Linear) and b.out == model.vocab for b in model.head):
        kernels.append(_over_logits(whole, rows * padded_vocab(model.vocab, context.plan.tp), rows))
    return kernels


def _over_logits(context: Context, logits: Number, rows: Number) -> Kernel:
    """The loss in training, sampling otherwise: one pass of softmax over the logits.

    Source: Milakov and Gimelshein, arXiv:1805.02867: maximum, subtraction, sum and one exponential per logit.
    """
    name = "loss" if context.training else "sampling"
    return element_work(context, name, reads=logits, writes=rows, flop=logits * 3.0, special=logits, area="head")


def has_cross_attention(model: Model) -> bool:
    """Return whether the decoder attends to an encoder."""
    return any(isinstance(b, CrossAttention) for g in model.text.groups for b in g.layer.blocks)


def is_causal(model: Model) -> bool:
    """Return whether the model can generate token by token: no block of its main stack sees later tokens."""
    blocks = [b for g in model.text.groups for b in g.layer.blocks]
    return not any(isinstance(b, GqaAttention) and not b.causal for b in blocks)


def forward_kernels(
    context: Context, model: Model, *, tower_tokens: Mapping[str, Count] | None = None, mtp: bool = False
) -> list[Kernel]:
    """Return the kernels of one forward pass on one pipeline-merged device: every stage's layers, one after the other.

    Args:
        context: The pass; with pipeline ranks the list holds all layers, and the plan says how many devices share them.
        model: The model.
        tower_tokens: Tokens per sequence of each tower or encoder that runs in this pass; others do not run.
        mtp: Whether multi-token-prediction layers run.

    Raises:
        UsageError: a tower that the model does not have, or an encoder whose length is missing.
        InfeasibleError: the model cannot be divided the way the plan says.
    """
    towers = dict(tower_tokens or {})
    known = {tower.name: tower for tower in model.towers}
    for name in towers:
        if name not in known:
            have = ", ".join(sorted(known)) or "none"
            raise UsageError(f"{model.name} has no tower {name!r}", hint=f"its towers: {have}")
    needs_source = has_cross_attention(model)
    if needs_source and not _positive(context.batch.source_tokens):
        raise UsageError(
            f"{model.name} attends to an encoder, whose length was not given", hint="add --tower-tokens encoder=N"
        )
    kernels: list[Kernel] = []
    for name, tokens in towers.items():
        if name == "encoder" and context.decoding:
            continue
        kernels += _tower(context, known[name], tokens)
    kernels += stack_kernels(context, model.text)
    kernels += head_kernels(context, model)
    if mtp:
        if model.mtp is None:
            raise UsageError(f"{model.name} has no multi-token-prediction layers")
        kernels += stack_kernels(context, model.mtp)
        for _ in range(model.mtp_heads):
            kernels += head_kernels(context, model)
    if context.plan.pp > 1:
        size = dtype_bytes(context.types.activation)
        sent = context.tokens * model.hidden * size / context.plan.tp
        kernels.append(message("send_pp", PEER, sent).times(context.plan.pp - 1.0))
    return kernels


def _tower(context: Context, stack: Stack, tokens: Count) -> list[Kernel]:
    """Kernels of a tower over `tokens` tokens of each sequence; its mask is its own."""
    groups = tuple(
        Group(sequences=number(g.sequences), queries=tokens, keys=tokens, logits=0.0) for g in context.batch.groups
    )
    inner = replace(context, batch=Batch(groups=groups))
    return [replace(k, name=f"{stack.name}.{k.name}") for k in stack_kernels(inner, stack)]


def _positive(value: Number | Count) -> bool:
    import numpy as np

    return bool(np.all(np.asarray(value) > 0))


def merged(kernels: Sequence[Kernel]) -> list[Kernel]:
    """Return the kernels with like ones joined: same name, pass and demand, counts added."""
    out: list[Kernel] = []
    places: dict[tuple[str, str], list[int]] = {}
    for kernel in kernels:
        key = (kernel.name, kernel.in_pass)
        for place in places.get(key, []):
            if _alike(out[place], kernel):
                out[place] = replace(out[place], count=out[place].count + kernel.count)
                break
        else:
            places.setdefault(key, []).append(len(out))
            out.append(kernel)
    return out


def _alike(a: Kernel, b: Kernel) -> bool:
    if any(hasattr(x, "shape") for x in (a.demand.bytes, b.demand.bytes, a.local_bytes, a.demand.total_flop)):
        return False
    return replace(a, count=1.0) == replace(b, count=1.0)
