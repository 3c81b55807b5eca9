"""Every training plan of a space as arrays: the divisions of the devices, their kernels, and what varies within each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from mansard.core import short_dtype
from mansard.core.errors import UsageError
from mansard.plan.shard.job import Where, Work
from mansard.plan.shard.network import Network, parts_of
from mansard.plan.shard.space import Ranks, Refusals, Space, Stages, ranks_of, stages_of
from mansard.plan.shard.work import SUMS, Division, Packed, divide, pack, passes, summands
from mansard.predict.estimate import Request, setting_of
from mansard.workload.batch import training_batch
from mansard.workload.parallel import InfeasibleError
from mansard.workload.phases import Setting
from mansard.workload.records import Model

Array = npt.NDArray[np.float64]
Index = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Training plans, one element of each array for each.

    Args:
        combo: Which division of the devices.
        micro: Index of the micro-batch size.
        chunks: Interleaved chunks of a stage.
        zero: What data ranks shard.
        policy: Index of the recomputation policy.
    """

    combo: Index
    micro: Index
    chunks: Index
    zero: Index
    policy: Index

    def __len__(self) -> int:
        return len(self.combo)

    def take(self, chosen: npt.NDArray[np.bool_] | Index) -> Rows:
        """Return some of them."""
        return Rows(
            combo=self.combo[chosen], micro=self.micro[chosen], chunks=self.chunks[chosen], zero=self.zero[chosen],
            policy=self.policy[chosen],
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Combo:
    """One division of the devices, in one precision.

    Args:
        ranks: The ranks.
        devices: Their number.
        precision: Element type of the products.
        division: Index of the kernels.
        layers: Chunks of a stage -> its layers.
    """

    ranks: Ranks
    devices: int
    precision: str
    division: int
    layers: dict[int, Stages]


@dataclass(slots=True, kw_only=True)
class TrainingGrid:
    """All training plans of a space.

    Args:
        model, work, where, space: What was asked.
        sizes: Sequences of a micro-batch that are tried.
        combos: Divisions of the devices.
        divisions: Kernels of each way to divide matrices, sequences and experts.
        packed: The same as arrays.
        rows: Every plan.
        refusals: Why others are none.
        assumed: What was taken for granted.
    """

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
    _messages: dict[tuple[float, float], Messages] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Messages:
    """Times of messages [s].

    Args:
        tensor, context, expert: In one forward pass of all layers: (divisions, sizes).
        table: Tensor messages beside the layers, both passes: (divisions, sizes).
        gather, scatter, reduce: Weights gathered, gradients scattered or reduced, of one layer: (combos,).
        ends: The same three of the token table and of the head, which lie beside the layers: (2, combos) each.
        hand_over: From a stage to the next, once: (combos, sizes).
    """

    tensor: Array
    context: Array
    expert: Array
    table: Array
    gather: Array
    scatter: Array
    reduce: Array
    ends: dict[str, Array]
    hand_over: Array


def precision_setting(model: Model, precision: str, dtype: str | None) -> tuple[Setting, tuple[str, ...]]:
    """Return a model in the types of one precision: bf16 throughout, or products in a narrower type."""
    wide = short_dtype(precision) in ("bf16", "f16", "f32")
    base = precision if wide else (dtype or "bf16")
    request = Request(
        phase="train", dtype=base, weights=base if wide else precision, activations=None if wide else precision
    )
    return setting_of(model, request)


def training_grid(model: Model, work: Work, where: Where, space: Space) -> TrainingGrid:
    """Return every training plan of a space.

    Raises:
        UsageError: a model that cannot be trained like that.
    """
    assert work.seq is not None
    assert work.batch is not None
    refusals = Refusals()
    sizes = np.array([m for m in space.micro if m <= work.batch], dtype=np.float64)
    if not len(sizes):
        raise UsageError(f"every micro-batch is larger than the batch of {work.batch}")
    divisions: list[Division] = []
    places: dict[tuple[str, int, int, int], int | str] = {}
    combos: list[Combo] = []
    assumed: list[str] = []
    for precision in space.precision:
        setting, notes = precision_setting(model, precision, work.dtype)
        assumed += [*notes, *setting.storage.assumed]
        for ranks in ranks_of(model, space, refusals, seq=work.seq):
            devices = ranks.tp * ranks.pp * ranks.dp * ranks.cp
            reason = _no_place(where, devices, ranks)
            if reason is not None:
                refusals.add(reason)
                continue
            key = (precision, ranks.tp, ranks.cp, ranks.ep)
            if key not in places:
                places[key] = _divided(setting, ranks, sizes, work.seq, divisions)
            place = places[key]
            if isinstance(place, str):
                refusals.add(place)
                continue
            layers = _layers(model.text.depth, ranks.pp, space)
            combos.append(Combo(ranks=ranks, devices=devices, precision=precision, division=place, layers=layers))
    packed = pack(
        [
            (d, SUMS.index(name), k) for d, division in enumerate(divisions)
            for name, k in summands(division, accumulating=True)
        ], divisions=len(divisions), sums=len(SUMS), sizes=len(sizes),
    )  # fmt: skip
    rows = _rows(combos, work, space, sizes, refusals)
    return TrainingGrid(
        model=model, work=work, where=where, space=space, sizes=sizes, combos=combos, divisions=divisions, packed=packed,
        rows=rows, refusals=refusals, assumed=tuple(dict.fromkeys(assumed)),
    )  # fmt: skip


def _divided(setting: Setting, ranks: Ranks, sizes: Array, seq: int, out: list[Division]) -> int | str:
    try:
        out.append(divide(setting, tp=ranks.tp, cp=ranks.cp, ep=ranks.ep, micro=sizes, seq=seq))
    except InfeasibleError as error:
        return error.message
    return len(out) - 1


def _no_place(where: Where, devices: int, ranks: Ranks) -> str | None:
    """Why the ranks cannot be laid out on the network; None where they can."""
    try:
        parts = parts_of(ranks.tp, ranks.pp, ranks.dp, ranks.cp, ranks.ep)
        Network(fabric=where.fabrics[devices]).place(parts)
    except InfeasibleError as error:
        return error.message
    return None


def _layers(depth: int, pp: int, space: Space) -> dict[int, Stages]:
    found = {}
    for v in space.virtual:
        if v == 1 or pp > 1:
            stages = stages_of(depth, pp, v, uneven=space.uneven)
            if not isinstance(stages, str):
                found[v] = stages
    return found


def _rows(combos: Sequence[Combo], work: Work, space: Space, sizes: Array, refusals: Refusals) -> Rows:
    """Every plan of every division."""
    columns: list[list[Index]] = [[] for _ in range(5)]
    batch = work.batch or 1
    policies = np.array([("none", "selective", "full").index(p) for p in space.recompute], dtype=np.int64)
    for c, combo in enumerate(combos):
        r = combo.ranks
        if batch % r.dp:
            refusals.add(f"dp {r.dp} does not divide {batch:,} sequences of a step")
            continue
        mine = batch // r.dp
        micro = np.array([j for j, m in enumerate(sizes) if mine % m == 0], dtype=np.int64)
        if not len(micro):
            refusals.add(f"no micro-batch of {', '.join(f'{m:g}' for m in sizes)} divides {mine} sequences of a rank")
            continue
        zeros = np.array(space.zero if r.dp * r.cp > 1 else (min(space.zero),), dtype=np.int64)
        chunks = np.array(list(combo.layers), dtype=np.int64)
        if not len(chunks):
            refusals.add(f"pp {r.pp} has none of the asked chunks: {', '.join(map(str, space.virtual))}")
            continue
        grid = np.meshgrid(micro, chunks, zeros, policies, indexing="ij")
        j, v, z, p = (g.ravel() for g in grid)
        # Interleaved stages take micro-batches in turns of as many as there are stages (Megatron-LM).
        whole = (v == 1) | ((mine / sizes[j]) % r.pp == 0)
        for column, values in zip(columns, (np.full(j.shape, c), j, v, z, p), strict=True):
            column.append(values[whole].astype(np.int64))
    joined = [np.concatenate(x) if x else np.zeros(0, dtype=np.int64) for x in columns]
    return Rows(combo=joined[0], micro=joined[1], chunks=joined[2], zero=joined[3], policy=joined[4])


def model_flop(grid: TrainingGrid, precision: str) -> float:
    """Return the model FLOP of an optimizer step: three times the forward pass, without recomputation [FLOP]."""
    setting, _ = precision_setting(grid.model, precision, grid.work.dtype)
    batch = training_batch(sequences=1, seq=grid.work.seq or 1)
    groups = passes(setting.context(batch, training=True), setting)
    forward = sum(float(k.model_flop * k.count) for kernels in groups for k in kernels)
    return 3.0 * forward * float(grid.work.batch or 0)
