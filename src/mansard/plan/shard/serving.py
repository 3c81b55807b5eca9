"""Serving plans as arrays: what each holds, time per output token and time to first token, part by part.

A decode step is a sum of kernels and of messages that are waited for. Pipeline stages each work on their part of the
sequences, one part after the other, so a token takes one way through all stages. Nothing of an engine is in these times:
no queue, no scheduler, no sampling on the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from mansard.core import Unknown
from mansard.core.errors import UndecidedError, UsageError
from mansard.plan.shard.job import AS_IS, Scale, Where, Work
from mansard.plan.shard.network import Network, parts_of
from mansard.plan.shard.space import Ranks, Refusals, Space, Stages, ranks_of, stages_of
from mansard.plan.shard.work import Message, Packed, messages_of, pack, passes, plan_for, rates_of, summed_s
from mansard.predict.estimate import Request, setting_of
from mansard.workload.batch import Batch, Group
from mansard.workload.cache import cache_layout
from mansard.workload.forward import is_causal
from mansard.workload.kernel import Kernel
from mansard.workload.parallel import InfeasibleError
from mansard.workload.phases import Setting, weight_kernels
from mansard.workload.records import Model

Array = npt.NDArray[np.float64]
Index = npt.NDArray[np.int64]

PARTS = ("compute_s", "tensor_s", "expert_s", "pipeline_s")
HELD = ("weight_bytes", "kv_cache_bytes", "activation_bytes")
#: As the checkpoint stores it.
CHECKPOINT = "checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Serving plans, one element of each array for each.

    Args:
        combo: Which division of the devices.
        sequences: Served at once, of all devices.
        part: Index of the sequences of one step of one stage.
    """

    combo: Index
    sequences: Index
    part: Index

    def __len__(self) -> int:
        return len(self.combo)

    def take(self, chosen: npt.NDArray[np.bool_] | Index) -> Rows:
        """Return some of them."""
        return Rows(combo=self.combo[chosen], sequences=self.sequences[chosen], part=self.part[chosen])


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """The kernels of one way to divide matrices and experts.

    Args:
        tp, ep: Ranks.
        setting: Model, types and plan.
        kernels: Of a decode step for each number of sequences, and of a prefill of one prompt.
        messages: Collectives of both.
        dense_bytes, expert_bytes, table_bytes, head_bytes: Weights of one device without pipeline stages [B].
        cache_bytes: Cache of one sequence on one device without pipeline stages [B].
        largest: Activations of the largest kernel, for each number of sequences [B].
        boundary: What a stage hands to the next, for one token [B].
    """

    tp: int
    ep: int
    setting: Setting
    kernels: tuple[tuple[Kernel, ...], tuple[Kernel, ...]]
    messages: tuple[tuple[Message, ...], tuple[Message, ...]]
    dense_bytes: float
    expert_bytes: float
    table_bytes: float
    head_bytes: float
    cache_bytes: float
    largest: Array
    boundary: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Combo:
    """One division of the devices, in one precision."""

    ranks: Ranks
    devices: int
    precision: str
    division: int
    layers: Stages


@dataclass(slots=True, kw_only=True)
class ServingGrid:
    """All serving plans of a space; fields as in `training.TrainingGrid`."""

    model: Model
    work: Work
    where: Where
    space: Space
    sizes: Array
    combos: list[Combo]
    divisions: list[Division]
    packed: Packed
    rows: Rows
    refusals: Refusals
    assumed: tuple[str, ...] = ()
    _messages: dict[tuple[float, float], dict[str, Array]] = field(default_factory=dict)


def serving_setting(model: Model, work: Work, precision: str) -> tuple[Setting, tuple[str, ...]]:
    """Return a model in the types of one precision: as its checkpoint, or with its matrices in another type."""
    weights: str | None = work.weights
    activations: str | None = None
    if precision != CHECKPOINT:
        weights = precision
        # Types that hold weights alone are multiplied in the type of the activations.
        activations = precision if precision in ("fp8", "fp4", "int8") else None
    request = Request(phase="decode", dtype=work.dtype, weights=weights, activations=activations, kv=work.kv)
    return setting_of(model, request)


def serving_grid(model: Model, work: Work, where: Where, space: Space) -> ServingGrid:
    """Return every serving plan of a space.

    Raises:
        UsageError: a model that generates no tokens, or no concurrency to try.
    """
    if not is_causal(model):
        raise UsageError(f"{model.name} is not a decoder: it serves no tokens")
    if not space.concurrency:
        raise UsageError("serving needs the sequences served at once", hint="add --concurrency N")
    refusals = Refusals()
    found: list[tuple[Ranks, int, str, Stages]] = []
    for precision in space.precision:
        for ranks in ranks_of(model, space, refusals, seq=None):
            devices = ranks.tp * ranks.pp * ranks.dp
            stages = stages_of(model.text.depth, ranks.pp, 1, uneven=space.uneven)
            assert not isinstance(stages, str)
            reason = _no_place(where, devices, ranks)
            if reason is None:
                found.append((ranks, devices, precision, stages))
            else:
                refusals.add(reason)
    parts = sorted({_part(b, r) for r, *_ in found for b in space.concurrency if b % r.dp == 0} or {1})
    sizes = np.array(parts, dtype=np.float64)
    divisions: list[Division] = []
    places: dict[tuple[str, int, int], int | str] = {}
    combos, assumed = [], []
    for ranks, devices, precision, stages in found:
        key = (precision, ranks.tp, ranks.ep)
        if key not in places:
            setting, notes = serving_setting(model, work, precision)
            assumed += [*notes, *setting.storage.assumed]
            places[key] = _divided(setting, ranks, sizes, work, divisions)
        place = places[key]
        if isinstance(place, str):
            refusals.add(place)
        else:
            combos.append(Combo(ranks=ranks, devices=devices, precision=precision, division=place, layers=stages))
    packed = pack(
        [(d, phase, k) for d, x in enumerate(divisions) for phase in (0, 1) for k in x.kernels[phase]],
        divisions=len(divisions), sums=2, sizes=len(sizes),
    )  # fmt: skip
    return ServingGrid(
        model=model, work=work, where=where, space=space, sizes=sizes, combos=combos, divisions=divisions, packed=packed,
        rows=_rows(combos, space, parts, refusals), refusals=refusals, assumed=tuple(dict.fromkeys(assumed)),
    )  # fmt: skip


def _part(sequences: int, ranks: Ranks) -> int:
    """Sequences of one step of one stage: stages work on different ones."""
    return max(1, -(-sequences // ranks.dp // ranks.pp))


def _no_place(where: Where, devices: int, ranks: Ranks) -> str | None:
    try:
        parts = parts_of(ranks.tp, ranks.pp, ranks.dp, 1, ranks.ep)
        Network(fabric=where.fabrics[devices]).place(parts)
    except InfeasibleError as error:
        return error.message
    return None


def _rows(combos: Sequence[Combo], space: Space, parts: Sequence[int], refusals: Refusals) -> Rows:
    out = []
    at = {p: i for i, p in enumerate(parts)}
    for c, combo in enumerate(combos):
        for b in space.concurrency:
            if b % combo.ranks.dp:
                refusals.add(f"dp {combo.ranks.dp} does not divide {b:,} sequences")
                continue
            out.append((c, b, at[_part(b, combo.ranks)]))
    table = np.array(out, dtype=np.int64).reshape(-1, 3)
    return Rows(combo=table[:, 0], sequences=table[:, 1], part=table[:, 2])


def _divided(setting: Setting, ranks: Ranks, sizes: Array, work: Work, out: list[Division]) -> int | str:
    own = replace(setting, plan=plan_for(ranks.tp, 1, ranks.ep))
    assert work.context is not None
    assert work.prompt is not None
    decode = Batch(groups=(Group(sequences=sizes, queries=1.0, keys=float(work.context)),))
    prompt = Batch(groups=(Group(sequences=1.0, queries=float(work.prompt), keys=float(work.prompt)),))
    try:
        kernels, messages = [], []
        for batch, absorbed in ((decode, True), (prompt, False)):
            layers, first, last = passes(own.context(batch, absorbed=absorbed), own)
            every = [*layers, *first, *last]
            kernels.append(tuple(k for k in every if k.kind != "communication"))
            messages.append(tuple(messages_of(every, own.plan, "layers")))
    except InfeasibleError as error:
        return error.message
    size = {"expert": 0.0, "table": 0.0, "head": 0.0, "dense": 0.0}
    names = {"experts": "expert", "embedding": "table", "head": "head"}
    for k in weight_kernels(own):
        size[names.get(k.area, "dense")] += float(k.weight_bytes * k.count)
    layout = cache_layout(own.model, dtype=own.types.cache, state_dtype=own.types.state, tp=ranks.tp)
    if isinstance(layout, Unknown):
        raise UndecidedError(f"{own.model.name}: the cache is not known: {layout.reason}", hint="; ".join(layout.needs))
    largest = np.maximum.reduce(
        [np.broadcast_to(np.asarray(k.local_bytes, dtype=np.float64), sizes.shape) for k in (*kernels[0], *kernels[1])]
    )
    hidden = next(k for k in kernels[0] if k.kind == "gather")
    out.append(
        Division(
            tp=ranks.tp, ep=ranks.ep, setting=own, kernels=(kernels[0], kernels[1]), messages=(messages[0], messages[1]),
            dense_bytes=size["dense"], expert_bytes=size["expert"], table_bytes=size["table"],
            head_bytes=size["head"], cache_bytes=layout.bytes_for(float(work.context), 0.0), largest=largest,
            boundary=float(np.asarray(hidden.local_write_bytes).ravel()[0]) / float(sizes[0]) / ranks.tp,
        )
    )  # fmt: skip
    return len(out) - 1


def memory_of(grid: ServingGrid, rows: Rows) -> dict[str, Array]:
    """Return what the fullest device of each plan holds, by `HELD` [B].

    Every stage holds the cache of its layers for all sequences of its replica; the first one the token table, the last one the
    head. Tied, both hold the table.
    """
    d = np.array([c.division for c in grid.combos], dtype=np.int64)[rows.combo]
    ranks = np.array([(c.ranks.dp, c.ranks.pp) for c in grid.combos], dtype=np.float64).reshape(-1, 2)[rows.combo]
    layers = np.array([(c.layers.first, c.layers.middle, c.layers.last) for c in grid.combos], dtype=np.float64)
    share = layers.reshape(-1, 3)[rows.combo] / float(grid.model.text.depth)

    def held(name: str) -> Array:
        return np.array([getattr(x, name) for x in grid.divisions], dtype=np.float64)[d]

    inner, table, head = held("dense_bytes") + held("expert_bytes"), held("table_bytes"), held("head_bytes")
    one = ranks[:, 1] == 1
    last = np.where(one, table + head, np.where(head > 0.0, head, table))
    first = np.where(one, table + head, table)
    cache = held("cache_bytes") * rows.sequences / ranks[:, 0]
    stages = [(inner * share[:, i] + outer, cache * share[:, i]) for i, outer in enumerate((first, 0.0 * first, last))]
    totals = np.stack([w + c for w, c in stages])
    totals[1] = np.where(ranks[:, 1] > 2, totals[1], -1.0)
    fullest = np.argmax(totals, axis=0)
    largest = np.array([x.largest for x in grid.divisions])[d, rows.part]
    return {
        "weight_bytes": np.choose(fullest, [w for w, _ in stages]),
        "kv_cache_bytes": np.choose(fullest, [c for _, c in stages]), "activation_bytes": largest,
    }  # fmt: skip


def messages_s(grid: ServingGrid, scale: Scale = AS_IS) -> dict[str, Array]:
    """Return the times of messages at scaled rates [s]: of a decode step and of a prefill."""
    key = (scale.link, scale.network)
    if key in grid._messages:
        return grid._messages[key]
    networks = {n: grid.where.network(n, scale) for n in grid.where.fabrics}
    largest = networks[max(networks)]
    shape = (len(grid.divisions), len(grid.sizes))
    out = {f"{kind}_{phase}": np.zeros(shape) for kind in ("tensor", "expert") for phase in (0, 1)}
    for i, division in enumerate(grid.divisions):
        plan = division.setting.plan
        parts = parts_of(plan.tp, 1, plan.dp, 1, plan.ep)
        for phase in (0, 1):
            for m in division.messages[phase]:
                time_s = largest.collective(m.operation, parts, m.kind).time_s(m.size_bytes) * m.calls
                out[f"{m.kind}_{phase}"][i] += time_s * (grid.work.imbalance if m.kind == "expert" else 1.0)
    hand = np.zeros((len(grid.combos), len(grid.sizes), 2))
    for c, combo in enumerate(grid.combos):
        r = combo.ranks
        if r.pp > 1:
            affine = networks[combo.devices].collective("ppermute", parts_of(r.tp, r.pp, r.dp, 1, r.ep), "pipeline")
            boundary = grid.divisions[combo.division].boundary
            hand[c, :, 0] = affine.time_s(boundary * grid.sizes) * (r.pp - 1)
            hand[c, :, 1] = float(affine.time_s(boundary * float(grid.work.prompt or 0))) * (r.pp - 1)
    grid._messages[key] = {**out, "hand_0": hand[:, :, 0], "hand_1": hand[:, :, 1]}
    return grid._messages[key]


def step_of(grid: ServingGrid, rows: Rows, scale: Scale = AS_IS) -> dict[str, Array]:
    """Return the parts of each plan's decode step by `PARTS`, their sum `step_s`, and `ttft_s` of one prompt [s]."""
    rates = rates_of(grid.where.machine, grid.packed.keys, grid.where.efficiency)
    rates = rates.scaled(compute=scale.compute, memory=scale.memory)
    kernels = summed_s(grid.packed, rates, sums=2, imbalance=grid.work.imbalance)
    sent = messages_s(grid, scale)
    d = np.array([c.division for c in grid.combos], dtype=np.int64)[rows.combo]
    j = rows.part

    def parts(phase: int) -> dict[str, Array]:
        found = {
            "compute_s": kernels[d, phase, j], "tensor_s": sent[f"tensor_{phase}"][d, j],
            "expert_s": sent[f"expert_{phase}"][d, j], "pipeline_s": sent[f"hand_{phase}"][rows.combo, j],
        }  # fmt: skip
        if grid.work.overlap == "full":
            waited = found["tensor_s"] + found["expert_s"] + found["pipeline_s"]
            left = np.maximum(0.0, waited - found["compute_s"])
            ratio = np.divide(left, waited, out=np.zeros(len(rows)), where=waited > 0.0)
            found = {k: v if k == "compute_s" else v * ratio for k, v in found.items()}
        return found

    decode = parts(0)
    whole = sent["tensor_0"][d, j] + sent["expert_0"][d, j] + sent["hand_0"][rows.combo, j]
    return {
        **decode, "step_s": sum((decode[p] for p in PARTS), start=np.zeros(len(rows))),
        "ttft_s": sum(parts(1).values(), start=np.zeros(len(rows))), "messages_s": whole,
    }  # fmt: skip
