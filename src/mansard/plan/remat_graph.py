"""What a layer makes in its forward pass, what its backward pass needs of it, and what making it again costs.

The nodes are the kernels of the workload room in their order. A block starts at the norm before it; the sum with the
residual stream belongs to the last product of the block. Work in place (rotation, norms of heads) belongs to the kernel
before it, and so do the messages that follow a block.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mansard.core import Unknown, is_known
from mansard.core.errors import UndecidedError
from mansard.plan.size import floor_of
from mansard.predict.bound import Machine, kernel_bound
from mansard.predict.estimate import Estimate, Request, estimate, setting_of
from mansard.workload.batch import training_batch
from mansard.workload.forward import block_kernels, layer_kernels
from mansard.workload.kernel import Context, Kernel
from mansard.workload.memory import output_bytes
from mansard.workload.records import Layer, Model

#: Kernels that change their input in place, so that they make nothing of their own.
IN_PLACE = ("rope", "qk_norm", "latent_norm", "routing")
#: What a kernel is made from, where that is not the kernel before it; `norm` is the norm before the block.
_FROM: dict[str, tuple[str, ...]] = {
    "qkv_proj": ("norm",), "q_proj": ("norm",), "qkv_down": ("norm",), "q_up": ("qkv_down",), "kv_up": ("qkv_down",),
    "indexer_proj": ("norm", "qkv_down"), "indexer_score": ("indexer_proj",),
    "attention": ("qkv_proj", "q_proj", "q_up", "kv_up", "indexer_score"), "up_proj": ("norm",), "gate_up_proj": ("norm",),
    "router": ("norm",), "latent_down_proj": ("norm",), "experts_gate_up_proj": ("latent_down_proj", "norm", "router"),
    "experts_up_proj": ("latent_down_proj", "norm", "router"), "shared_gate_up_proj": ("norm",),
    "shared_up_proj": ("norm",), "shared_gate": ("norm",), "cross_q_proj": ("norm",), "cross_kv_proj": (),
    "cross_attention": ("cross_q_proj", "cross_kv_proj"),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One activation of a layer.

    Args:
        name: Kernel that makes it; also its name in code.
        kind: Kind of that kernel, such as `linear`.
        size_bytes: Of one layer, on one device [B].
        compute_s, message_s: Making it again: kernels, and messages they need [s].
        parents: Nodes it is made from, by place; the input of the layer is none of them.
        needed: Whether the backward pass of some kernel needs it.
    """

    name: str
    kind: str
    size_bytes: float
    compute_s: float
    message_s: float
    parents: tuple[int, ...]
    needed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerKind:
    """Layers that are alike.

    Args:
        count: How many a device runs.
        nodes: What each makes, in order.
    """

    count: float
    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A training step without any rematerialisation, and the parts a policy is chosen for.

    Args:
        kinds: The layers.
        input_bytes: Input of one layer [B].
        fixed_bytes: Everything that no policy changes: weights, gradients, optimizer state, tables, logits [B].
        forward_s, backward_s: Kernels of one micro-batch [s].
        forward_messages_s, backward_messages_s: Its messages [s].
        once_s: What is done once a step: the optimizer [s].
        passes: Micro-batches of a step.
        tokens: Tokens of a step, all devices.
        devices: How many.
        budget_bytes: What one device may hold [B].
        assumed: What was taken for granted.
    """

    kinds: tuple[LayerKind, ...]
    input_bytes: float
    fixed_bytes: float
    forward_s: float
    backward_s: float
    forward_messages_s: float
    backward_messages_s: float
    once_s: float
    passes: int
    tokens: float
    devices: int
    budget_bytes: float | Unknown
    assumed: tuple[str, ...] = ()

    @property
    def layers(self) -> float:
        """Layers of a device."""
        return sum(kind.count for kind in self.kinds)


def layer_nodes(kernels: Sequence[Kernel], seconds: Mapping[int, float], *, tp: int = 1) -> tuple[Node, ...]:
    """Return the activations of one layer.

    Args:
        kernels: Forward kernels of the layer in order, messages among them.
        seconds: Time of each by its place [s].
        tp: Tensor-parallel ranks, see `workload.memory.output_bytes`.

    Source: Chen et al., arXiv:1604.06174, section 3 (recomputation as a choice for each node); Korthikanti et al.,
        arXiv:2205.05198, section 4 (what each operation keeps): products and norms need their inputs, fused attention
        its inputs and its output.
    """
    found: list[dict[str, object]] = []
    places: dict[str, int] = {}
    stream: int | None = None  # the node that holds the residual stream; None is the input of the layer
    norm: int | None = None
    for place, kernel in enumerate(kernels):
        if kernel.kind == "communication" or kernel.name in IN_PLACE:
            if found:
                key = "message_s" if kernel.kind == "communication" else "compute_s"
                found[-1][key] = float(found[-1][key]) + seconds[place]  # type: ignore[arg-type]
            continue
        is_norm = kernel.area == "norm"
        parents = _parents(kernel, places, stream if is_norm else norm, len(found) - 1, is_norm=is_norm)
        name = kernel.name if kernel.name not in places else f"{kernel.name}_{len(found)}"
        places[kernel.name] = len(found)
        found.append(
            {"name": name, "kind": kernel.kind, "size_bytes": output_bytes(kernel, tp), "compute_s": seconds[place],
             "message_s": 0.0, "parents": parents}
        )  # fmt: skip
        if is_norm:
            norm = len(found) - 1
        stream = len(found) - 1
    used = {p for node in found for p in node["parents"]}  # type: ignore[attr-defined]
    return tuple(
        Node(**node, needed=i in used or node["kind"] == "attention")  # type: ignore[arg-type]
        for i, node in enumerate(found)
    )


def _parents(
    kernel: Kernel, places: Mapping[str, int], norm: int | None, before: int, *, is_norm: bool
) -> tuple[int, ...]:
    """Places of what a kernel is made from."""
    start = () if norm is None else (norm,)
    if is_norm:
        return start
    names = _FROM.get(kernel.name)
    if names is None:
        return (before,) if before >= 0 else ()
    out: list[int] = []
    for name in names:
        if name == "norm":
            # What was narrowed before takes the place of the norm.
            out += start if not out else ()
        elif name in places:
            out.append(places[name])
    return tuple(dict.fromkeys(out))


def step_of(model: Model, request: Request, machine: Machine) -> Step:
    """Return the step of a training request, whose own recomputation policy must be `none`.

    Raises:
        UndecidedError: a kernel whose time is not known on this machine.
        UsageError: as `predict.estimate.estimate`.
    """
    result = estimate(model, request, machine)
    floor = floor_of(result)
    if isinstance(floor, Unknown):
        raise UndecidedError(f"{machine.name}: {floor.reason}", hint="; ".join(floor.needs))
    setting, _ = setting_of(model, request)
    passes = result.phase.passes
    batch = training_batch(sequences=float(result.phase.sequences) / passes / request.plan.dp, seq=request.seq or 1)
    context = replace(setting.context(batch, training=True), plan=replace(setting.plan, pp=1))
    kinds = tuple(
        LayerKind(count=float(group.count), nodes=_nodes(context, group.layer, model, machine))
        for group in model.text.groups
    )
    memory = result.memory
    static = memory.weight_bytes + memory.gradient_bytes + memory.optimizer_bytes
    hidden = float(context.stream_tokens) * model.hidden * _activation_bytes(context)
    times = _times(result)
    return Step(
        kinds=kinds, input_bytes=hidden, fixed_bytes=static + _outer_bytes(context, model, result), passes=passes,
        tokens=float(result.phase.tokens), devices=request.plan.devices,
        budget_bytes=machine.memory_bytes * request.memory_fraction, assumed=result.assumed, **times,
    )  # fmt: skip


def _activation_bytes(context: Context) -> float:
    from mansard.core import dtype_bytes

    return float(dtype_bytes(context.types.activation))


def _nodes(context: Context, layer: Layer, model: Model, machine: Machine) -> tuple[Node, ...]:
    kernels = layer_kernels(replace(context, layer_path=model.text.path), layer)
    seconds = {}
    for place, kernel in enumerate(kernels):
        time_s = kernel_bound(kernel, machine).time_s
        # Vector work without a ceiling does not decide a step, see `floor_of`.
        seconds[place] = time_s if is_known(time_s) else 0.0
    return layer_nodes(kernels, seconds, tp=context.plan.tp)


def _outer_bytes(context: Context, model: Model, result: Estimate) -> float:
    """Activations beside the layers, which no policy of the layers changes [B]."""
    outer = [k for block in model.text.outputs for k in block_kernels(context, block)]
    size = sum(float(k.local_write_bytes) for k in outer if k.kind != "communication")
    names = ("embedding", "head")
    passes = result.phase.passes
    forward = [k for k in result.phase.kernels if k.in_pass == "forward" and k.area in names]
    return size + sum(float(k.local_write_bytes) * k.count / passes for k in forward)


def _times(result: Estimate) -> dict[str, float]:
    """Kernels and messages of one micro-batch by pass, and what is done once [s]."""
    bound = result.bound
    assert not isinstance(bound, Unknown)
    out = dict.fromkeys(("forward_s", "backward_s", "forward_messages_s", "backward_messages_s", "once_s"), 0.0)
    passes = result.phase.passes
    for row in bound.kernels:
        if isinstance(row.time_s, Unknown):
            continue
        k = row.kernel
        if k.kind == "optimizer":
            out["once_s"] += row.time_s
        elif k.kind != "communication":
            out["forward_s" if k.in_pass == "forward" else "backward_s"] += row.time_s / passes
        elif "weights" in k.name and result.request.plan.zero == 3:
            # Sharded weights are gathered in both passes.
            out["forward_messages_s"] += row.time_s / passes / 2.0
            out["backward_messages_s"] += row.time_s / passes / 2.0
        elif any(part in k.name for part in ("gradients", "weights", "tied_table")) or k.in_pass == "backward":
            out["backward_messages_s"] += row.time_s / passes
        else:
            out["forward_messages_s"] += row.time_s / passes
    return out
