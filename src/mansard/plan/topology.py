"""Which axis of a machine should carry which kind of parallelism, and which of several shapes suits a model best.

Every way to give the axes of a network to data (FSDP), tensor, expert and context parallelism is tried. Its messages are
those the workload room counts, its times the ceilings of `hardware.topology`, so that the reason for an answer is bytes
per step over the rate that its axes give.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mansard.core.collectives import sent_ratio
from mansard.core.errors import UndecidedError, UsageError
from mansard.core.units import format_bytes, format_bytes_per_s, format_s
from mansard.core.unknown import Unknown
from mansard.hardware.topology import Fabric, Group, best_ceiling
from mansard.predict.bound import Machine
from mansard.predict.estimate import Estimate, Request, estimate
from mansard.workload.parallel import Plan
from mansard.workload.records import Model, Moe

KINDS = ("data", "tensor", "expert", "context")
#: Message of the workload room -> kind, collective. A ring of keys is cp - 1 permutes.
MESSAGES: dict[str, tuple[str, str]] = {
    "all_reduce_tp": ("tensor", "all_reduce"),
    "ring_cp": ("context", "ppermute"),
    "all_gather_cp": ("context", "all_gather"),
    "all_to_all_dispatch": ("expert", "all_to_all"),
    "all_to_all_combine": ("expert", "all_to_all"),
    "all_reduce_gradients": ("data", "all_reduce"),
    "reduce_scatter_gradients": ("data", "reduce_scatter"),
    "all_gather_weights": ("data", "all_gather"),
}
MOST_ASSIGNMENTS = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshAxis:
    """One axis of a fabric that can carry a kind of parallelism.

    Args:
        name: `x`, `y`, `z` of a torus, else the name of the level.
        level, place: Where it is in the fabric.
        length: Units along it.
        divisible: Whether parts of it can serve different kinds, as behind a switch.
        text: Its links in words.
    """

    name: str
    level: int
    place: int
    length: int
    divisible: bool
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What one kind of parallelism sends in a step, and how long that takes at the ceiling.

    Args:
        kind: `data`, `tensor`, `expert` or `context`.
        operations: Collectives of it.
        ranks: Devices of its largest group.
        calls: Collectives in a step.
        sent_bytes: What one device sends in a step [B].
        time_s: At the ceilings, one after the other [s].
        limiting: Level that decides most of that time.
    """

    kind: str
    operations: tuple[str, ...]
    ranks: int
    calls: float
    sent_bytes: float
    time_s: float
    limiting: str

    @property
    def bytes_per_s(self) -> float:
        """Bytes sent over their time, latency included [B/s]."""
        return self.sent_bytes / self.time_s if self.time_s > 0.0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """One way to use the axes of a shape.

    Args:
        degrees: For each axis, the ranks of each kind on it.
        plan: The ranks as the workload room counts them.
        traffic: Messages by kind.
        compute_s: Kernels of one device at its ceilings [s].
        messages_s: All messages [s].
        step_s: Least time of the step [s].
        memory_bytes: What one device holds [B].
        fits: Whether it does; None where the capacity is on no record.
        tokens: Tokens of a step.
    """

    degrees: tuple[Mapping[str, int], ...]
    plan: Plan
    traffic: tuple[Traffic, ...]
    compute_s: float
    messages_s: float
    step_s: float
    memory_bytes: float
    fits: bool | None
    tokens: float

    @property
    def order(self) -> tuple[bool, float, float, float]:
        """What fits first, then the shorter step, the fewer messages, the less memory."""
        return (self.fits is False, self.step_s, self.messages_s, self.memory_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapePlan:
    """The answer for one shape.

    Args:
        fabric: The network.
        axes: Its axes.
        best: The best assignment; `Unknown` where none can be.
        others: The next ones.
        tried: How many assignments could be built.
        refused: Reason -> how many could not for it.
        reasons: Why each axis carries what it does.
    """

    fabric: Fabric
    axes: tuple[MeshAxis, ...]
    best: Assignment | Unknown
    others: tuple[Assignment, ...] = ()
    tried: int = 0
    refused: Mapping[str, int] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()


def mesh_axes(fabric: Fabric) -> tuple[MeshAxis, ...]:
    """Return the axes of more than one unit, innermost first."""
    out = []
    for i, level in enumerate(fabric.levels):
        for place, axis in enumerate(level.axes):
            if axis.length == 1:
                continue
            rate = f"{level.bytes_per_s / 1e9:g} GB/s"
            if level.kind == "torus":
                how = "wraps" if axis.wraps else "does not wrap"
                text = f"{axis.length} {level.name} units, {how}, {axis.links} x {rate}"
            else:
                text = f"{axis.length} units on {level.name}, {rate} {'a pair' if level.kind == 'mesh' else 'each'}"
            name = "xyzw"[place] if level.kind == "torus" else level.name
            out.append(
                MeshAxis(
                    name=name, level=i, place=place, length=axis.length, divisible=level.kind != "torus", text=text
                )
            )
    return tuple(out)


def _divisions(length: int, kinds: Sequence[str]) -> Iterator[dict[str, int]]:
    """Every way to write a length as a product of ranks, one factor per kind."""
    if len(kinds) == 1:
        yield {kinds[0]: length}
        return
    for d in range(1, length + 1):
        if length % d == 0:
            for rest in _divisions(length // d, kinds[1:]):
                yield {kinds[0]: d, **rest}


def assignments(
    axes: Sequence[MeshAxis], kinds: Sequence[str], fixed: Mapping[str, int]
) -> Iterator[tuple[dict[str, int], ...]]:
    """Return every way to give axes to kinds, those with the asked ranks alone.

    Args:
        axes: Of the fabric.
        kinds: Kinds that may be used.
        fixed: Ranks that a kind must have.

    >>> two = MeshAxis(name="x", level=0, place=0, length=4, divisible=False, text="")
    >>> [a[0] for a in assignments([two], ["data", "tensor"], {})]
    [{'data': 4}, {'tensor': 4}]
    """
    options = [
        list(_divisions(axis.length, kinds)) if axis.divisible else [{k: axis.length} for k in kinds] for axis in axes
    ]
    if math.prod(len(o) for o in options) > MOST_ASSIGNMENTS:
        raise UsageError(
            f"more than {MOST_ASSIGNMENTS:,} ways to use {len(axes)} axes",
            hint="fix --tp, --cp or --ep, or name --kinds",
        )
    for chosen in itertools.product(*options):
        found = tuple({k: d for k, d in one.items() if d > 1} for one in chosen)
        if all(math.prod(one.get(kind, 1) for one in found) == n for kind, n in fixed.items()):
            yield found


def _group(
    fabric: Fabric, axes: Sequence[MeshAxis], degrees: Sequence[Mapping[str, int]], kinds: Sequence[str]
) -> Group:
    """The devices that differ in these kinds alone."""
    members = [[1] * len(level.axes) for level in fabric.levels]
    for axis, one in zip(axes, degrees, strict=True):
        members[axis.level][axis.place] = math.prod(one.get(kind, 1) for kind in kinds)
    return tuple(tuple(m) for m in members)


def _plan(degrees: Sequence[Mapping[str, int]], zero: int) -> Plan:
    """The ranks of each kind; experts are divided over their own axes and over the tensor ranks."""
    ranks = {kind: math.prod(one.get(kind, 1) for one in degrees) for kind in KINDS}
    ep = ranks["expert"] * ranks["tensor"] if ranks["expert"] > 1 else 1
    dp = ranks["data"] * ranks["expert"]
    return Plan(tp=ranks["tensor"], dp=dp, cp=ranks["context"], ep=ep, zero=zero if dp * ranks["context"] > 1 else 0)


def traffic_of(
    fabric: Fabric,
    axes: Sequence[MeshAxis],
    degrees: Sequence[Mapping[str, int]],
    found: Estimate,
    *,
    in_network: bool = False,
) -> tuple[Traffic, ...]:
    """Return what each kind of parallelism sends in a step, and how long its collectives take at their ceilings.

    Args:
        fabric: The network.
        axes: Its axes.
        degrees: Ranks of each kind on each axis.
        found: The estimate of the plan.
        in_network: Whether the network may reduce.
    """
    plan, rows = found.phase.plan, []
    ranks = {"tensor": plan.tp, "context": plan.cp, "expert": plan.ep, "data": plan.replicas}
    whole = {"tensor": ("tensor",), "context": ("context",), "expert": ("expert", "tensor"),
             "data": ("data", "expert", "context")}  # fmt: skip
    for kernel in found.phase.kernels:
        if kernel.kind != "communication":
            continue
        # Experts differ along the expert axes, so their weights meet over the other axes alone.
        name = kernel.name.removesuffix("_experts")
        if name not in MESSAGES:
            raise UndecidedError(f"no axis is known for the message {kernel.name}", hint="leave pipeline ranks out")
        kind, operation = MESSAGES[name]
        sent, calls = float(sum(float(v) for v in kernel.demand.link_bytes.values())), float(kernel.count)
        if operation == "ppermute":
            steps = float(kernel.demand.launches)
            rows.append((kind, operation, sent / steps, calls * steps, whole[kind]))
            continue
        if name != kernel.name:
            size = sent / sent_ratio(operation, plan.expert_replicas)
            rows.append((kind, operation, size, calls, ("data", "context")))
            continue
        rows.append((kind, operation, sent / sent_ratio(operation, ranks[kind]), calls, whole[kind]))
    return _by_kind(fabric, axes, degrees, rows, in_network=in_network)


def _by_kind(
    fabric: Fabric,
    axes: Sequence[MeshAxis],
    degrees: Sequence[Mapping[str, int]],
    rows: Sequence[tuple[str, str, float, float, tuple[str, ...]]],
    *,
    in_network: bool,
) -> tuple[Traffic, ...]:
    """Sum the rows of each kind."""
    out = []
    for kind in KINDS:
        time_s = sent_bytes = number = 0.0
        ranks, operations = 1, []
        where: dict[str, float] = {}
        for own, operation, size, calls, kinds in rows:
            if own != kind:
                continue
            group = _group(fabric, axes, degrees, kinds)
            ceiling = best_ceiling(fabric, operation, size_bytes=size, group=group, in_network=in_network)
            if ceiling is None:
                continue
            time_s += ceiling.time_s * calls
            sent_bytes += sent_ratio(operation, ceiling.ranks) * size * calls
            number += calls
            ranks = max(ranks, ceiling.ranks)
            operations.append(operation)
            where[ceiling.limiting] = where.get(ceiling.limiting, 0.0) + ceiling.time_s * calls
        if number:
            out.append(
                Traffic(
                    kind=kind, operations=tuple(dict.fromkeys(operations)), ranks=ranks, calls=number,
                    sent_bytes=sent_bytes, time_s=time_s, limiting=max(where, key=lambda name: where[name]),
                )
            )  # fmt: skip
    return tuple(out)


def allowed_kinds(model: Model, phase: str, asked: Sequence[str] | None = None) -> tuple[str, ...]:
    """Return the kinds of parallelism that make sense: experts where there are any, context where it is asked for.

    Raises:
        UsageError: a kind that does not exist, or experts of a model without.
    """
    has = any(isinstance(b, Moe) for g in model.text.groups for b in g.layer.blocks)
    if asked is None:
        return (
            "data",
            "tensor",
            *(("expert",) if has else ()),
            *(("context",) if phase in ("train", "prefill") else ()),
        )
    for kind in asked:
        if kind not in KINDS:
            raise UsageError(f"no kind of parallelism is called {kind!r}", hint="known: " + ", ".join(KINDS))
    if "expert" in asked and not has:
        raise UsageError(f"{model.name} has no experts to divide")
    return tuple(k for k in KINDS if k in asked)


def plan_shape(
    model: Model,
    request: Request,
    machine: Machine,
    fabric: Fabric,
    *,
    kinds: Sequence[str],
    fixed: Mapping[str, int],
    zero: int,
    in_network: bool = False,
) -> ShapePlan:
    """Return the best way to use one shape.

    Args:
        model: The model.
        request: Phase and sizes; its plan is replaced.
        machine: One device, for the compute time and the memory.
        fabric: The network of the shape.
        kinds: See `allowed_kinds`.
        fixed: Ranks that kinds must have.
        zero: What data-parallel ranks shard in training, see `Plan`.
        in_network: Whether the network may reduce.

    Raises:
        UndecidedError: the compute time of the machine is not known.
    """
    axes = mesh_axes(fabric)
    built: list[Assignment] = []
    refused: dict[str, int] = {}
    estimates: dict[Plan, Estimate] = {}
    for degrees in assignments(axes, kinds, fixed):
        try:
            plan = _plan(degrees, zero if request.phase == "train" else 0)
            if plan not in estimates:
                estimates[plan] = estimate(model, replace(request, plan=plan), machine)
        except UsageError as error:
            refused[error.message] = refused.get(error.message, 0) + 1
            continue
        built.append(_assignment(fabric, axes, degrees, estimates[plan], in_network=in_network))
    built.sort(key=lambda a: a.order)
    if not built:
        wanted = ", ".join(f"{kind} {n}" for kind, n in fixed.items())
        lengths = " x ".join(str(axis.length) for axis in axes) or "1"
        why = next(
            iter(refused), f"axes of {lengths} give no {wanted} with {', '.join(kinds)}: a torus axis goes to one kind"
        )
        return ShapePlan(
            fabric=fabric, axes=axes, best=Unknown(why, ("other ranks, or another shape",)), refused=refused
        )
    return ShapePlan(
        fabric=fabric, axes=axes, best=built[0], others=tuple(built[1:4]), tried=len(built), refused=refused,
        reasons=tuple(_reasons(axes, built)),
    )  # fmt: skip


def _assignment(
    fabric: Fabric, axes: Sequence[MeshAxis], degrees: tuple[dict[str, int], ...], found: Estimate, *, in_network: bool
) -> Assignment:
    bound = found.bound
    if isinstance(bound, Unknown):
        raise UndecidedError(bound.reason, hint="; ".join(bound.needs))
    traffic = traffic_of(fabric, axes, degrees, found, in_network=in_network)
    messages = sum(t.time_s for t in traffic)
    step = max(bound.compute_s, messages) if bound.overlap == "full" else bound.compute_s + messages
    room = found.fit
    return Assignment(
        degrees=degrees, plan=found.phase.plan, traffic=traffic, compute_s=bound.compute_s, messages_s=messages,
        step_s=step + bound.fixed_s, memory_bytes=float(found.memory.total_bytes),
        fits=None if isinstance(room, Unknown) else room.fits,
        tokens=float(found.phase.tokens),
    )  # fmt: skip


def _kinds_on(one: Mapping[str, int]) -> tuple[str, ...]:
    return tuple(sorted(one))


def _reasons(axes: Sequence[MeshAxis], built: Sequence[Assignment]) -> list[str]:
    """Why each axis carries what it does: what the same ranks cost elsewhere, or what other ranks cost."""
    best = built[0]
    out = []
    for place, axis in enumerate(axes):
        mine = best.degrees[place]
        here = " and ".join(f"{k} {n}" for k, n in sorted(mine.items()))
        text = f"{axis.name} ({axis.text}): {here}"
        parts = []
        for item in best.traffic:
            if item.kind in mine:
                parts.append(
                    f"{item.kind} sends {format_bytes(item.sent_bytes)} a step at {format_bytes_per_s(item.bytes_per_s)}: "
                    f"{format_s(item.time_s)}"
                )
        other = next((b for b in built[1:] if _kinds_on(b.degrees[place]) != _kinds_on(mine)), None)
        if other is not None:
            there = " and ".join(f"{k} {n}" for k, n in sorted(other.degrees[place].items()))
            if other.fits is False and best.fits is not False:
                parts.append(f"with {there} instead it does not fit")
            else:
                parts.append(
                    f"the best with {there} instead has {format_s(other.messages_s)} of messages against "
                    f"{format_s(best.messages_s)} and a step of {format_s(other.step_s)} against {format_s(best.step_s)}"
                )
        out.append("; ".join([text, *parts]))
    return out


def shape_json(found: ShapePlan) -> dict[str, Any]:
    """Return the answer for one shape as a document holds it."""
    return {
        "shape": found.fabric.name, "devices": found.fabric.devices, "notes": found.fabric.notes,
        "levels": [
            {"name": v.name, "kind": v.kind, "lengths": [a.length for a in v.axes], "wraps": [a.wraps for a in v.axes],
             "bytes_per_s": v.bytes_per_s, "hop_s": v.hop_s, "reduces": v.reduces, "source": v.source}
            for v in found.fabric.levels
        ],
        "axes": [{"name": a.name, "length": a.length, "text": a.text} for a in found.axes],
        "best": found.best if isinstance(found.best, Unknown) else _assignment_json(found, found.best),
        "others": [_assignment_json(found, o) for o in found.others],
        "without_latency": [v.name for v in found.fabric.levels if v.units > 1 and isinstance(v.hop_s, Unknown)],
        "tried": found.tried, "refused": found.refused, "reasons": found.reasons,
    }  # fmt: skip


def _assignment_json(found: ShapePlan, one: Assignment) -> dict[str, Any]:
    return {
        "axes": {a.name: dict(d) for a, d in zip(found.axes, one.degrees, strict=True)},
        "plan": one.plan, "compute_s": one.compute_s, "messages_s": one.messages_s, "step_s": one.step_s,
        "tokens_per_s": one.tokens / one.step_s, "tokens_per_s_and_device": one.tokens / one.step_s / found.fabric.devices,
        "memory_bytes": one.memory_bytes, "fits": one.fits,
        "traffic": [
            {"kind": t.kind, "operations": t.operations, "ranks": t.ranks, "calls": t.calls, "sent_bytes": t.sent_bytes,
             "time_s": t.time_s, "bytes_per_s": t.bytes_per_s, "limiting": t.limiting} for t in one.traffic
        ],
    }  # fmt: skip
