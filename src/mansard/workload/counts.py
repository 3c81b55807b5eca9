"""Exact parameter counts of a model: total, active, by block, and the part that multiplies.

Conventions, printed with every count:

- `total` is what the main model stores, towers included, multi-token-prediction layers apart (`mtp`). A tied head is
  stored once. Buffers (a routing bias adjusted outside the gradient) are `buffers`, not parameters.
- `active` is the total without the experts that a token does not use; tables and norms count.
- `matmul` are elements that multiply: 2 FLOP per token each. A head always multiplies, tied or not; a look-up never.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from mansard.workload.records import Model, Stack, Weight


@dataclass(frozen=True, slots=True, kw_only=True)
class ParamCount:
    """Parameter counts of a model or of one of its stacks.

    Args:
        total: Stored parameters.
        active: Stored parameters that one token uses.
        matmul: Elements that multiply, a tied head included.
        matmul_active: The same for what one token uses.
        embedding: Entries of look-up tables.
        conv: Elements of convolution kernels (part of `total`, not of `matmul`).
        buffers: Stored elements that are not parameters.
        mtp: Parameters of multi-token-prediction layers, which `total` leaves out.
        by_block: Parameters by block; the sum is `total`.
    """

    total: int
    active: int
    matmul: int
    matmul_active: int
    embedding: int = 0
    conv: int = 0
    buffers: int = 0
    mtp: int = 0
    by_block: dict[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        """Return the keys of the `estimate` document: `params`, `active_params`, `matmul_params`, ..."""
        return {
            "params": self.total,
            "active_params": self.active,
            "matmul_params": self.matmul,
            "matmul_params_active": self.matmul_active,
            "embedding_params": self.embedding,
            "convolution_params": self.conv,
            "mtp_params": self.mtp,
            "buffer_elements": self.buffers,
            "by_block": dict(self.by_block),
        }


def stack_weights(stack: Stack) -> Iterator[tuple[Weight, int]]:
    """Yield each tensor of a stack and how many layers hold one like it."""
    for block in (*stack.inputs, *stack.outputs):
        for weight in block.weights():
            yield weight, 1
    for group in stack.groups:
        for weight in group.layer.weights():
            yield weight, group.count


def model_weights(model: Model) -> Iterator[tuple[str, Weight, int]]:
    """Yield stack name, tensor and layers that hold one like it: text, towers and head, without MTP."""
    for stack in model.stacks:
        for weight, count in stack_weights(stack):
            yield stack.name, weight, count
    for block in model.head:
        for weight in block.weights():
            yield "head", weight, 1


def _count(weights: Iterator[tuple[str, Weight, int]], mtp: int) -> ParamCount:
    total = active = matmul = matmul_active = embedding = conv = buffers = 0
    by_block: dict[str, int] = {}
    for group, weight, count in weights:
        params = weight.params * count
        total += params
        active += weight.active_params * count
        matmul += weight.matmul_params * count
        matmul_active += weight.active_matmul_params * count
        embedding += params if weight.role == "embedding" else 0
        conv += params if weight.role == "conv" else 0
        buffers += weight.elements * weight.copies * count if weight.role == "buffer" else 0
        if params:
            block = weight.block if group in ("text", "head") else f"{group}.{weight.block}"
            by_block[block] = by_block.get(block, 0) + params
    return ParamCount(
        total=total, active=active, matmul=matmul, matmul_active=matmul_active, embedding=embedding, conv=conv,
        buffers=buffers, mtp=mtp, by_block=by_block,
    )  # fmt: skip


def count_params(model: Model) -> ParamCount:
    """Return the exact parameter counts of a model.

    Assumes: the conventions at the top of this module.
    """
    mtp = sum(weight.params * count for weight, count in stack_weights(model.mtp)) if model.mtp else 0
    return _count(model_weights(model), mtp)


def count_stack(stack: Stack) -> ParamCount:
    """Return the exact parameter counts of one stack, its inputs and outputs included."""
    return _count(((stack.name if stack.name != "mtp" else "text", w, c) for w, c in stack_weights(stack)), 0)
