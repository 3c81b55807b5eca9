"""What one device does for a micro-batch, by how matrices, sequences and experts are divided; micro-batches as an array.

The kernels are those of the workload room, built once for each division and all micro-batches at once. Here they only
become seconds, at given rates, and are summed by what hides behind what.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from mansard.core import Unknown, least_time_s
from mansard.core.collectives import sent_ratio
from mansard.core.demand import Number
from mansard.core.errors import UndecidedError
from mansard.plan.shard.efficiency import Efficiency
from mansard.plan.topology import MESSAGES
from mansard.predict.bound import Machine
from mansard.workload.batch import training_batch
from mansard.workload.forward import block_kernels, head_kernels, layer_kernels
from mansard.workload.kernel import Context, Kernel
from mansard.workload.memory import kept_activations
from mansard.workload.parallel import Plan
from mansard.workload.phases import Phase, Setting, weight_kernels
from mansard.workload.training import Recipe, backward_kernels, recomputed

Array = npt.NDArray[np.float64]
Where = Literal["layers", "first", "last"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What one device reaches.

    Args:
        peaks: (dtype, accumulate, engine) -> [FLOP/s], at the best rate that is reached.
        bytes_per_s: Main memory, at the best rate that is reached [B/s].
        on_chip_bytes: Activations of a kernel that fit never reach main memory [B].
        efficiency: How short kernels fall below that.
    """

    peaks: Mapping[tuple[str, str, str], float]
    bytes_per_s: float
    on_chip_bytes: float
    efficiency: Efficiency

    def scaled(self, *, compute: float = 1.0, memory: float = 1.0) -> Rates:
        """Return the rates with other ceilings."""
        return replace(
            self, peaks={k: v * compute for k, v in self.peaks.items()}, bytes_per_s=self.bytes_per_s * memory
        )


def rates_of(machine: Machine, keys: Sequence[tuple[str, str, str]], efficiency: Efficiency) -> Rates:
    """Return the rates that kernels need.

    Args:
        machine: One device.
        keys: (dtype, accumulate, engine) of the work; engine is `matrix`, `vector` or `special`.
        efficiency: What is reached of the ceilings.

    Raises:
        UndecidedError: a machine without a peak or a bandwidth that they need.
    """
    peaks: dict[tuple[str, str, str], float] = {}
    for dtype, acc, engine in keys:
        found = machine.ceilings.peak(dtype, accumulate=acc or None, engine=engine, scope=machine.scope)
        if not isinstance(found, Unknown):
            ratio = efficiency.matmul_ratio(dtype) if engine == "matrix" else 1.0
            peaks[(dtype, acc, engine)] = found.value * ratio
        elif engine == "matrix":
            raise UndecidedError(f"{machine.name}: {found.reason}", hint="; ".join(found.needs))
        else:
            # Vector work without a peak on record is left out, as in every bound.
            peaks[(dtype, acc, engine)] = np.inf
    bandwidth = machine.ceilings.bandwidth(machine.memory_level, read_ratio=1.0, scope=machine.scope)
    if isinstance(bandwidth, Unknown):
        raise UndecidedError(f"{machine.name}: {bandwidth.reason}", hint="; ".join(bandwidth.needs))
    chip = machine.on_chip_bytes
    return Rates(
        peaks=peaks, bytes_per_s=bandwidth.value * efficiency.memory_ratio,
        on_chip_bytes=np.inf if isinstance(chip, Unknown) else chip, efficiency=efficiency,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A collective of the forward pass.

    Args:
        kind: Ranks that take part, one of `network.MEMBERS`.
        operation: Canonical name.
        size_bytes: S for each micro-batch [B].
        calls: In one forward pass.
        where: In the layers, or beside them on the first stage.
    """

    kind: str
    operation: str
    size_bytes: Array
    calls: float
    where: Where


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What one device would hold without pipeline stages, by division.

    Args:
        dense, expert: Parameters of all layers on one device [count].
        dense_bytes, expert_bytes: Their weights [B].
        table, head: Parameters before and after the layers; a tied head is the table again [count].
        table_bytes, head_bytes: [B].
        kept: Activations kept of all layers for one sequence, without recomputation [B].
        inputs: Those of a full recomputation: the input of each layer [B].
        working: Activations of one layer that are rebuilt at a time [B].
        first, last: Activations before and after the layers for one sequence [B].
        boundary: What a stage hands to the next for one sequence [B].
    """

    dense: float
    expert: float
    dense_bytes: float
    expert_bytes: float
    table: float
    head: float
    table_bytes: float
    head_bytes: float
    kept: float
    inputs: float
    working: float
    first: float
    last: float
    boundary: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """The kernels of one way to divide matrices, sequences and experts.

    Args:
        tp, cp, ep: Ranks.
        layers: Forward kernels of the layers, `count` counting all of them.
        first, last: Forward kernels before and after them.
        held: What one device holds.
        messages: Collectives of a forward pass.
        setting: What they were built from.
    """

    tp: int
    cp: int
    ep: int
    layers: tuple[Kernel, ...]
    first: tuple[Kernel, ...]
    last: tuple[Kernel, ...]
    held: Held
    messages: tuple[Message, ...]
    setting: Setting


def plan_for(tp: int, cp: int, ep: int) -> Plan:
    """Return the smallest plan with these ranks: experts take data ranks where tensor and context ranks are too few."""
    groups = max(1, ep // tp) if ep > 1 else 1
    dp = groups // int(np.gcd(groups, cp))
    return Plan(tp=tp, cp=cp, ep=ep, dp=dp)


def passes(context: Context, setting: Setting) -> tuple[list[Kernel], list[Kernel], list[Kernel]]:
    """Return the forward kernels of the layers, before them, and after them."""
    model = setting.model
    whole, inside = replace(context, layer_path=""), replace(context, layer_path=model.text.path)
    layers = [k.times(g.count) for g in model.text.groups for k in layer_kernels(inside, g.layer)]
    first = [k for block in model.text.inputs for k in block_kernels(whole, block)]
    last = [k for block in model.text.outputs for k in block_kernels(whole, block)]
    return layers, first, [*last, *head_kernels(context, model)]


def divide(setting: Setting, *, tp: int, cp: int, ep: int, micro: Array, seq: int) -> Division:
    """Return the kernels of a training micro-batch of each size.

    Args:
        setting: Model and types; its plan is replaced.
        tp, cp, ep: Ranks.
        micro: Sequences of a micro-batch.
        seq: Tokens of a sequence.

    Raises:
        InfeasibleError: the model cannot be divided like that.
    """
    own = replace(setting, plan=plan_for(tp, cp, ep))
    layers, first, last = passes(own.context(training_batch(sequences=micro, seq=seq), training=True), own)
    found = messages_of(layers, own.plan, "layers") + messages_of(first, own.plan, "first")
    return Division(
        tp=tp, cp=cp, ep=ep, layers=tuple(layers), first=tuple(first), last=tuple(last), messages=tuple(found),
        held=_held(own, seq), setting=own,
    )  # fmt: skip


def messages_of(kernels: Sequence[Kernel], plan: Plan, where: Where) -> list[Message]:
    """Return the collectives among kernels, by the size that collectives are priced by."""
    ranks = {"tensor": plan.tp, "context": plan.cp, "expert": plan.ep}
    out = []
    for k in kernels:
        if k.kind != "communication":
            continue
        kind, operation = MESSAGES[k.name]
        sent = np.asarray(sum(k.demand.link_bytes.values()), dtype=np.float64)
        calls = float(k.count)
        if operation == "ppermute":
            steps = float(np.asarray(k.demand.launches))
            size, calls = sent / steps, calls * steps
        else:
            size = sent / sent_ratio(operation, ranks[kind])
        out.append(Message(kind=kind, operation=operation, size_bytes=np.atleast_1d(size), calls=calls, where=where))
    return out


def _held(setting: Setting, seq: int) -> Held:
    """Parameters and activations of one device; activations grow with the sequences of a micro-batch."""
    params = {"expert": 0.0, "table": 0.0, "head": 0.0, "dense": 0.0}
    size = dict(params)
    names = {"experts": "expert", "embedding": "table", "head": "head"}
    for k in weight_kernels(setting):
        name = names.get(k.area, "dense")
        params[name] += float(k.weight_elements * k.count)
        size[name] += float(k.weight_bytes * k.count)
    layers, first, last = passes(setting.context(training_batch(sequences=1, seq=seq), training=True), setting)
    none = _kept(setting, layers, Recipe())
    full = _kept(setting, layers, Recipe(recompute="full"))
    # Inputs grow with the layers, the one that is rebuilt does not.
    inputs = _kept(setting, [k.times(2.0) for k in layers], Recipe(recompute="full")) - full
    hidden = [k for k in first if k.kind == "gather"]
    boundary = sum(float(k.local_write_bytes) for k in hidden[:1]) / setting.plan.tp
    tied = 0.0 if size["head"] else size["table"]
    return Held(
        dense=params["dense"], expert=params["expert"], dense_bytes=size["dense"], expert_bytes=size["expert"],
        table=params["table"], head=params["head"], table_bytes=size["table"], head_bytes=size["head"] or tied,
        kept=none, inputs=inputs, working=full - inputs, first=_kept(setting, first, Recipe()),
        last=_kept(setting, last, Recipe()), boundary=boundary,
    )  # fmt: skip


def _kept(setting: Setting, kernels: Sequence[Kernel], recipe: Recipe) -> float:
    phase = Phase(
        name="train", kernels=tuple(kernels), tokens=0.0, emitted=0.0, sequences=1.0, model_flop=0.0, full_flop=0.0,
        plan=replace(setting.plan, pp=1),
    )  # fmt: skip
    return kept_activations(phase, recipe)


#: What kernels are summed by: all of the forward and backward pass, the attention core of each, what the selective policy
#: computes again, and the kernels before and after the layers in both passes.
SUMS = ("forward", "backward", "core_forward", "core_backward", "selective", "first", "last")


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """The kernels of many divisions as arrays: one row for each kernel, one column for each size of a micro-batch.

    Args:
        matrix, vector, special: Work by rate [FLOP or evaluations].
        demand_bytes, local_bytes: Traffic that is certain, and activations [B].
        count: Executions.
        place: Division and sum of each row, as an index into `(divisions, SUMS)`.
        expert: Whether it is the work of routed experts, which the busiest rank has more of.
        divisions: How many.
    """

    matrix: Mapping[tuple[str, str, str], Array]
    vector: Mapping[tuple[str, str, str], Array]
    special: Mapping[tuple[str, str, str], Array]
    demand_bytes: Array
    local_bytes: Array
    count: Array
    place: npt.NDArray[np.intp]
    expert: npt.NDArray[np.bool_]
    divisions: int

    @property
    def keys(self) -> tuple[tuple[str, str, str], ...]:
        """Rates that are needed."""
        return (*self.matrix, *self.vector, *self.special)


def summands(division: Division, *, accumulating: bool) -> list[tuple[str, Kernel]]:
    """Return the kernels of a training micro-batch with the sum that each belongs to; the core is listed twice."""

    def back(kernels: Sequence[Kernel]) -> list[Kernel]:
        return [b for k in kernels for b in backward_kernels(k, division.setting.types, accumulating=accumulating)]

    core = [k for k in division.layers if k.kind == "attention"]
    groups: list[tuple[str, Sequence[Kernel]]] = [
        ("forward", division.layers), ("backward", back(division.layers)), ("core_forward", core),
        ("core_backward", back(core)), ("selective", recomputed(division.layers, "selective")),
        ("first", [*division.first, *back(division.first)]), ("last", [*division.last, *back(division.last)]),
    ]  # fmt: skip
    return [(name, k) for name, kernels in groups for k in kernels if k.kind != "communication"]


def pack(rows: Sequence[tuple[int, int, Kernel]], *, divisions: int, sums: int, sizes: int) -> Packed:
    """Return kernels as arrays.

    Args:
        rows: Division, sum and kernel.
        divisions, sums: How many of each.
        sizes: Micro-batches.
    """
    n = len(rows)

    def table() -> Array:
        return np.zeros((n, sizes))

    matrix: dict[tuple[str, str, str], Array] = {}
    vector: dict[tuple[str, str, str], Array] = {}
    special: dict[tuple[str, str, str], Array] = {}
    demand, local = table(), table()
    for i, (_, _, k) in enumerate(rows):
        for (dtype, acc), flop in k.demand.flop.items():
            matrix.setdefault((dtype, acc, "matrix"), table())[i] += flop
        for dtype, flop in k.demand.vector_flop.items():
            vector.setdefault((dtype, "", "vector"), table())[i] += flop
        for dtype, many in k.demand.transcendental.items():
            special.setdefault((dtype, "", "special"), table())[i] += many
        demand[i], local[i] = k.demand.bytes, k.local_bytes
    return Packed(
        matrix=matrix, vector=vector, special=special, demand_bytes=demand, local_bytes=local,
        count=np.array([float(k.count) for _, _, k in rows])[:, None],
        place=np.array([d * sums + s for d, s, _ in rows], dtype=np.intp),
        expert=np.array([k.routed for _, _, k in rows], dtype=np.bool_), divisions=divisions,
    )  # fmt: skip


def summed_s(packed: Packed, rates: Rates, *, sums: int, imbalance: float) -> Array:
    """Return the time of the kernels of each division and sum, for each size [s]: shape (divisions, sums, sizes).

    Args:
        packed: The kernels.
        rates: Of the device.
        sums: How many sums there are.
        imbalance: Busiest over mean expert rank: expert kernels take so many times as long.
    """

    def engine(work: Mapping[tuple[str, str, str], Array]) -> Number:
        return least_time_s([w / rates.peaks[key] for key, w in work.items()] or [0.0], overlap="none")

    local = np.where(packed.local_bytes > rates.on_chip_bytes, packed.local_bytes, 0.0)
    moved = (packed.demand_bytes + local) / rates.bytes_per_s
    each = least_time_s(
        [rates.efficiency.product_s(engine(packed.matrix)), rates.efficiency.copy_s(moved), engine(packed.vector),
         engine(packed.special)]
    )  # fmt: skip
    total = each * packed.count * np.where(packed.expert, imbalance, 1.0)[:, None]
    out = np.zeros((packed.divisions * sums, moved.shape[1]))
    np.add.at(out, packed.place, total)
    return out.reshape(packed.divisions, sums, -1)
