"""Pipeline stages: which layers each holds, and what the weights of each are.

Layers follow each other through the stages; the first stage also holds tables and towers, the last one the head. A head
that is tied to the token table needs its own copy of it where they are not on the same stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from mansard.workload.cache import CacheLayout, cache_layout
from mansard.workload.forward import block_kernels, head_kernels, stack_kernels
from mansard.workload.kernel import Kernel
from mansard.workload.parallel import InfeasibleError
from mansard.workload.phases import Setting, everything
from mansard.workload.records import LayerGroup, Model, Stack

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Weights of a part of a model on one device.

    Args:
        dense_bytes, routed_bytes: Bytes of all but routed experts, and of routed experts [B].
        dense, routed: The same as numbers of weights; a tied head that is stored a second time counts.
    """

    dense_bytes: float = 0.0
    routed_bytes: float = 0.0
    dense: float = 0.0
    routed: float = 0.0

    @property
    def bytes(self) -> float:
        """All of them [B]."""
        return self.dense_bytes + self.routed_bytes

    def __add__(self, other: Weights) -> Weights:
        """Add two parts."""
        return Weights(
            dense_bytes=self.dense_bytes + other.dense_bytes, routed_bytes=self.routed_bytes + other.routed_bytes,
            dense=self.dense + other.dense, routed=self.routed + other.routed,
        )  # fmt: skip

    def times(self, count: float) -> Weights:
        """Return so many of them."""
        return Weights(
            dense_bytes=self.dense_bytes * count, routed_bytes=self.routed_bytes * count, dense=self.dense * count,
            routed=self.routed * count,
        )  # fmt: skip


def stage_depths(depth: int, stages: int) -> tuple[int, ...]:
    """Return the layers of each pipeline stage.

    Args:
        depth: Layers of the model.
        stages: Pipeline stages.

    Raises:
        InfeasibleError: more stages than layers.

    Source: vLLM, `get_pp_indices`: what does not divide goes to the stages before the last one, which has the head.

    >>> stage_depths(61, 4), stage_depths(32, 4), stage_depths(5, 3)
    ((15, 15, 16, 15), (8, 8, 8, 8), (2, 2, 1))
    """
    if stages > depth:
        raise InfeasibleError(f"{depth} layers cannot be divided over {stages} pipeline ranks")
    each, rest = divmod(depth, stages)
    out = [each] * stages
    for i in range(2, rest + 2):
        out[-i] += 1
    return tuple(out)


def layers_by_stage(stack: Stack, stages: int) -> Array:
    """Return how many layers of each group each stage holds [stages, groups]."""
    order = sorted((index, g) for g, group in enumerate(stack.groups) for index in group.indices)
    one_hot = np.zeros((len(order), len(stack.groups)))
    one_hot[np.arange(len(order)), [g for _, g in order]] = 1.0
    starts = np.cumsum([0, *stage_depths(len(order), stages)[:-1]])
    counts: Array = np.add.reduceat(one_hot, starts, axis=0)
    return counts


def _of(kernels: list[Kernel]) -> Weights:
    total = Weights()
    for k in kernels:
        if k.kind == "communication":
            continue
        size, many = float(k.weight_bytes), float(k.weight_elements)
        one = Weights(routed_bytes=size, routed=many) if k.routed else Weights(dense_bytes=size, dense=many)
        total = total + one.times(k.count)
    return total


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The weights of a model by what can lie on a stage, on one device; made once for any number of stages.

    Args:
        text: The layers.
        groups: Weights of one layer of each group.
        first: Tables and towers.
        last: Final norm, head, and multi-token-prediction layers where they are held.
        tied: A head that needs a copy of the token table where that is on another stage.
    """

    text: Stack
    groups: tuple[Weights, ...]
    first: Weights
    last: Weights
    tied: Weights

    def by_stage(self, stages: int) -> tuple[Weights, ...]:
        """Return the weights of one device of each of so many stages.

        Raises:
            InfeasibleError: more stages than layers.
        """
        out = []
        for i, row in enumerate(layers_by_stage(self.text, stages)):
            held = Weights()
            for many, group in zip(row.tolist(), self.groups, strict=True):
                held = held + group.times(many)
            if i == 0:
                held = held + self.first
            if i == stages - 1:
                held = held + self.last + (self.tied if stages > 1 else Weights())
            out.append(held)
        return tuple(out)


def parts_of(setting: Setting, *, mtp: bool = False) -> Parts:
    """Return the weights of a model by what can lie on a stage, divided by tp and ep as its kernels are.

    Args:
        setting: Model, storage and plan; pipeline ranks have no say.
        mtp: Whether multi-token-prediction layers are held, by the last stage.

    Raises:
        InfeasibleError: the model cannot be divided the way the plan says.
    """
    model, context = setting.model, everything(setting)
    context = replace(context, plan=replace(context.plan, pp=1))
    text = model.text

    def heads(*, tied: bool) -> Weights:
        chosen = tuple(b for b in model.head if any(w.tied for w in b.weights()) is tied)
        return _of(head_kernels(context, replace(model, head=chosen)))

    first = _of([k for block in text.inputs for k in block_kernels(context, block)])
    for tower in model.towers:
        first = first + _of(stack_kernels(context, tower))
    last = _of([k for block in text.outputs for k in block_kernels(context, block)]) + heads(tied=False)
    if mtp and model.mtp is not None:
        last = last + _of(stack_kernels(context, model.mtp))
    groups = tuple(
        _of(stack_kernels(context, replace(text, groups=(_one(g),), inputs=(), outputs=()))) for g in text.groups
    )
    return Parts(text=text, groups=groups, first=first, last=last, tied=heads(tied=True))


def stage_weights(setting: Setting, *, mtp: bool = False) -> tuple[Weights, ...]:
    """Return the weights of one device of each pipeline stage of the plan; see `parts_of`."""
    return parts_of(setting, mtp=mtp).by_stage(setting.plan.pp)


def group_caches(model: Model, *, dtype: str, state_dtype: str, tp: int) -> tuple[CacheLayout, ...]:
    """Return what one device holds for one sequence in one layer of each group.

    Args:
        model: A model whose cache is known as a whole.
        dtype, state_dtype: Types of the cache and of recurrent states.
        tp: Tensor-parallel ranks.
    """
    layouts: list[CacheLayout] = []
    for group in model.text.groups:
        one = replace(model, text=replace(model.text, groups=(_one(group),)))
        found = cache_layout(one, dtype=dtype, state_dtype=state_dtype, tp=tp)
        assert isinstance(found, CacheLayout)
        layouts.append(found)
    return tuple(layouts)


def stage_caches(text: Stack, layouts: Sequence[CacheLayout], stages: int) -> tuple[CacheLayout, ...]:
    """Return what one device of each stage holds for one sequence, from the layers of each group."""
    return tuple(_joined(layouts, row.tolist()) for row in layers_by_stage(text, stages))


def _one(group: LayerGroup) -> LayerGroup:
    return replace(group, indices=group.indices[:1])


def _joined(layouts: Sequence[CacheLayout], counts: list[float]) -> CacheLayout:
    pairs = list(zip(layouts, counts, strict=True))
    return CacheLayout(
        growing_bytes=sum(x.growing_bytes * n for x, n in pairs),
        windows=tuple((w, size * n) for x, n in pairs for w, size in x.windows if n),
        fixed_bytes=sum(x.fixed_bytes * n for x, n in pairs),
        source_bytes=sum(x.source_bytes * n for x, n in pairs),
        attention_layers=int(sum(x.attention_layers * n for x, n in pairs)),
        notes=tuple(dict.fromkeys(note for x, n in pairs for note in x.notes if n)),
    )
