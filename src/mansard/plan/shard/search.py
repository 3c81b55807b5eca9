"""The best plan of a space, what no other plan beats, how far ahead it is, and which ceilings that hangs on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from mansard.core import Unknown, is_known, short_dtype
from mansard.core.errors import UsageError
from mansard.diagnose.economics import SAME_COST
from mansard.plan.choice import pareto
from mansard.plan.shard import serving, training, training_step
from mansard.plan.shard.job import AS_IS, CEILINGS, Scale, Where, Work, scaled
from mansard.plan.shard.space import RECOMPUTE, Space
from mansard.workload.records import Model

Array = npt.NDArray[np.float64]
Index = npt.NDArray[np.int64]
Grid = training.TrainingGrid | serving.ServingGrid
Objective = Literal["time", "cost", "throughput"]
OBJECTIVES = ("time", "cost", "throughput")

#: Ceilings are known no better than this, where nothing says otherwise.
UNCERTAIN = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """What makes a plan good.

    Args:
        objective: `time` (of a step, or per output token), `cost` (of a token), or `throughput`.
        ttft_s, tpot_s: Serving: no plan may take longer [s].
        tie_ratio: Plans that differ by less are called a tie.
        uncertain_ratio: Each ceiling may be so much higher or lower.
    """

    objective: Objective = "time"
    ttft_s: float | None = None
    tpot_s: float | None = None
    tie_ratio: float = SAME_COST
    uncertain_ratio: float = UNCERTAIN

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise UsageError(f"unknown objective {self.objective!r}", hint=f"one of {', '.join(OBJECTIVES)}")
        if not 0.0 <= self.tie_ratio < 1.0 or not 0.0 <= self.uncertain_ratio < 1.0:
            raise UsageError("a tie and an uncertainty are shares from 0 to below 1")
        for name in ("ttft_s", "tpot_s"):
            value = getattr(self, name)
            if value is not None and not value > 0.0:
                raise UsageError(f"{name} is {value}, expected a time above zero")


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One plan with its figures.

    Args:
        devices, tp, pp, dp, cp, ep: Ranks.
        precision: Element type of products, or `checkpoint`.
        micro_batch, accumulation, chunks, zero, recompute: Training; None in serving.
        sequences: Serving: served at once; None in training.
        time_s: Of an optimizer step, or per output token [s].
        ttft_s: Serving: of one prompt [s].
        parts: The time, part by part [s].
        messages_s: All messages, hidden ones too [s].
        memory_bytes: Of the fullest device [B].
        held: The same, part by part [B].
        tokens_per_s: Of all devices.
        usd_per_mtoken: Of a million tokens [USD].
        mfu_ratio: Training: model FLOP over the time, the devices and the dense peak of the precision; None in serving.
    """

    devices: int
    tp: int
    pp: int
    dp: int
    cp: int
    ep: int
    precision: str
    micro_batch: int | None
    accumulation: int | None
    chunks: int | None
    zero: int | None
    recompute: str | None
    sequences: int | None
    time_s: float
    ttft_s: float | None
    parts: Mapping[str, float]
    messages_s: float
    memory_bytes: float
    held: Mapping[str, float]
    tokens_per_s: float
    usd_per_mtoken: float | Unknown
    mfu_ratio: float | Unknown | None = None

    @property
    def layout(self) -> str:
        """The ranks in words: what is not divided is left out."""
        names = [f"{k}{getattr(self, k)}" for k in ("tp", "cp", "ep", "pp", "dp") if getattr(self, k) > 1]
        return " ".join(names) or "one device"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """What another ceiling does to the choice.

    Args:
        ceiling: Which, see `job.CEILINGS`.
        ratio: What it was multiplied by.
        best: The best plan then; None where none fits.
        time_s: Time of the plan that was best before [s]; None where it does not fit then.
        regret_ratio: How much worse that plan is than the best, by the objective; None where it does not fit then.
        stays: Whether it is still the best, or tied with it.
    """

    ceiling: str
    ratio: float
    best: Candidate | None
    time_s: float | None
    regret_ratio: float | None
    stays: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The answer.

    Args:
        model, work, where, space, aim: What was asked.
        plans: Plans of the space.
        fitting: Of them, those that fit.
        eligible: Of those, the ones within every limit.
        best: The best; `Unknown` where none is.
        runner_up: The best one with other ranks; None where there is none.
        margin_ratio: How much worse that is.
        tied: Plans that are worse by less than a tie.
        tied_layouts: Different ranks among them, the best one's included.
        top: The best plans of different ranks, in order.
        front: Plans that no other one beats in time, memory and cost.
        shifts: What other ceilings do.
        refusals: Reason -> divisions it ruled out.
        budget_bytes: What a device may hold [B].
        assumed: What was taken for granted.
    """

    model: Model
    work: Work
    where: Where
    space: Space
    aim: Aim
    plans: int
    fitting: int
    eligible: int
    best: Candidate | Unknown
    runner_up: Candidate | None
    margin_ratio: float | None
    tied: int
    tied_layouts: int
    top: tuple[Candidate, ...]
    front: tuple[Candidate, ...]
    shifts: tuple[Shift, ...]
    refusals: Mapping[str, int]
    budget_bytes: float | None
    assumed: tuple[str, ...] = field(default=())

    @property
    def verdict(self) -> Literal["none", "only", "tie", "depends", "clear"]:
        """`tie` where other ranks are as good, `depends` where an uncertain ceiling decides, else `clear`."""
        if isinstance(self.best, Unknown):
            return "none"
        if self.tied_layouts > 1:
            return "tie"
        # How much fits is no rate: it is told apart.
        if any(not s.stays for s in self.shifts if s.ceiling != "capacity"):
            return "depends"
        return "only" if self.runner_up is None else "clear"


def grid_of(model: Model, work: Work, where: Where, space: Space) -> Grid:
    """Return every plan of a space."""
    build = training.training_grid if work.phase == "train" else serving.serving_grid
    return build(model, work, where, space)


def search(model: Model, work: Work, where: Where, space: Space, aim: Aim | None = None, *, top: int = 5) -> Found:
    """Return the best plan of a space, exactly: every plan that fits is timed.

    Args:
        model: The model.
        work: What is to be done.
        where: On what.
        space: What may vary.
        aim: What makes a plan good.
        top: Plans of different ranks to return.

    Raises:
        UsageError: nothing to choose from.
        UndecidedError: a ceiling that the kernels need is on no record.
    """
    return choose(grid_of(model, work, where, space), aim or Aim(), top=top)


def choose(grid: Grid, aim: Aim, *, top: int = 5) -> Found:
    """Return the best plan of a grid, see `search`."""
    if not len(grid.rows):
        none = np.zeros(0, dtype=np.int64)
        reasons = sorted(grid.refusals.counts.items(), key=lambda item: (-item[1], item[0]))
        why = Unknown("no division is possible: " + "; ".join(r for r, _ in reasons[:3]), ("other ranks or devices",))
        return _found(grid, aim, why, none, none, (), None, None, (0, 0), (), ())
    held = _memory(grid)
    total = sum(held.values(), start=np.zeros(len(grid.rows)))
    fits = _fits(grid, total, AS_IS)
    kept = np.flatnonzero(fits)
    table = _Table.of(grid, kept, aim, AS_IS)
    order = table.order(total[kept])
    eligible = order[table.allowed[order]]
    best: Candidate | Unknown
    if not len(eligible):
        best = Unknown(_why_none(grid, total, fits, table, aim), ("more devices, or another limit",))
        return _found(grid, aim, best, kept, eligible, (), None, None, (0, 0), (), ())
    layouts = _layouts(grid, kept[eligible])
    value = table.value[eligible]
    _, firsts = np.unique(layouts, return_index=True)
    leaders = eligible[np.sort(firsts)]
    ties = value <= value[0] * (1.0 + aim.tie_ratio)

    def one(i: int) -> Candidate:
        return _candidate(grid, int(kept[i]), {k: v[kept[i]] for k, v in held.items()}, table.times, i)

    best = one(int(eligible[0]))
    runner = one(int(leaders[1])) if len(leaders) > 1 else None
    margin = float(table.value[leaders[1]] / value[0] - 1.0) if runner else None
    front = tuple(one(i) for i in _front(grid, table, eligible, total[kept], kept))
    shifts = _shifts(grid, held, total, int(kept[eligible[0]]), aim)
    return _found(
        grid, aim, best, kept, eligible, tuple(one(int(i)) for i in leaders[:top]), runner, margin,
        (int(ties.sum()), len(np.unique(layouts[ties]))), front, shifts,
    )  # fmt: skip


def _found(
    grid: Grid, aim: Aim, best: Candidate | Unknown, kept: Index, eligible: Index, top: tuple[Candidate, ...],
    runner: Candidate | None, margin: float | None, ties: tuple[int, int], front: tuple[Candidate, ...],
    shifts: tuple[Shift, ...],
) -> Found:  # fmt: skip
    return Found(
        model=grid.model, work=grid.work, where=grid.where, space=grid.space, aim=aim, plans=len(grid.rows),
        fitting=len(kept), eligible=len(eligible), best=best, runner_up=runner, margin_ratio=margin, tied=ties[0],
        tied_layouts=ties[1], top=top, front=front, shifts=shifts, refusals=dict(grid.refusals.counts),
        budget_bytes=_budget(grid, AS_IS), assumed=(*grid.assumed, *grid.where.efficiency.missing),
    )  # fmt: skip


def _memory(grid: Grid) -> dict[str, Array]:
    if isinstance(grid, training.TrainingGrid):
        return training_step.memory_of(grid, grid.rows)
    return serving.memory_of(grid, grid.rows)


def _budget(grid: Grid, scale: Scale) -> float | None:
    """Return what a device may hold [B]; None where it is on no record."""
    capacity = grid.where.machine.memory_bytes
    return capacity * grid.work.memory_fraction * scale.capacity if is_known(capacity) else None


def _fits(grid: Grid, total: Array, scale: Scale) -> npt.NDArray[np.bool_]:
    budget = _budget(grid, scale)
    return np.ones(len(total), dtype=np.bool_) if budget is None else total <= budget


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    """Figures of some plans.

    Args:
        times: Parts and sums [s].
        value: What the objective makes small.
        cost: Device seconds per token, which money is proportional to.
        allowed: Whether every limit is kept.
    """

    times: dict[str, Array]
    value: Array
    cost: Array
    allowed: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, grid: Grid, kept: Index, aim: Aim, scale: Scale) -> _Table:
        rows = grid.rows.take(kept)
        devices = np.array([c.devices for c in grid.combos], dtype=np.float64)[rows.combo]
        allowed = np.ones(len(kept), dtype=np.bool_)
        if isinstance(grid, training.TrainingGrid):
            times = training_step.step_of(grid, rows, scale)  # type: ignore[arg-type]
            tokens = np.full(len(kept), float((grid.work.batch or 0) * (grid.work.seq or 0)))
        else:
            times = serving.step_of(grid, rows, scale)  # type: ignore[arg-type]
            tokens = rows.sequences.astype(np.float64)  # type: ignore[union-attr]
            if aim.ttft_s is not None:
                allowed &= times["ttft_s"] <= aim.ttft_s
            if aim.tpot_s is not None:
                allowed &= times["step_s"] <= aim.tpot_s
        cost = times["step_s"] * devices / tokens
        value = {"time": times["step_s"], "cost": cost, "throughput": times["step_s"] / tokens}[aim.objective]
        return cls(times=times, value=value, cost=cost, allowed=allowed)

    def order(self, memory: Array) -> Index:
        """Best first; plans that are equal to nine digits by time, then by memory, then as they were listed."""
        with np.errstate(divide="ignore"):
            digits = 10.0 ** (9 - np.ceil(np.log10(np.maximum(self.value, 1e-300))))
        rounded = np.round(self.value * digits) / digits
        index = np.arange(len(memory))
        return np.lexsort((index, memory, self.times["step_s"], rounded))


def _layouts(grid: Grid, rows: Index) -> Index:
    """A number for each set of ranks, precision and number of devices."""
    return grid.rows.combo[rows]


def _front(grid: Grid, table: _Table, eligible: Index, memory: Array, kept: Index) -> list[int]:
    """Plans that no other beats in time, memory and cost; where several are equal the first."""
    if not len(eligible):
        return []
    # By time; within one number of devices a plan must have less memory than all quicker ones.
    devices = np.array([c.devices for c in grid.combos])[grid.rows.combo[kept[eligible]]]
    candidates: list[int] = []
    for n in np.unique(devices):
        for s in np.unique(_scale_of(grid, kept[eligible])[devices == n]):
            mine = eligible[(devices == n) & (_scale_of(grid, kept[eligible]) == s)]
            mine = mine[np.lexsort((memory[mine], table.times["step_s"][mine]))]
            lowest = np.minimum.accumulate(memory[mine])
            new = np.concatenate(([True], lowest[1:] < lowest[:-1]))
            candidates += [int(i) for i in mine[new]]
    rows = [
        {"t": float(table.times["step_s"][i]), "m": float(memory[i]), "c": float(table.cost[i])} for i in candidates
    ]
    chosen = [candidates[i] for i in pareto(rows, ("t", "m", "c"))]
    return sorted(chosen, key=lambda i: (table.times["step_s"][i], memory[i], i))


def _scale_of(grid: Grid, rows: Index) -> Index:
    """What else changes the cost of a plan beside its devices: the sequences served at once."""
    if isinstance(grid, training.TrainingGrid):
        return np.zeros(len(rows), dtype=np.int64)
    return grid.rows.sequences[rows]


def _shifts(grid: Grid, held: dict[str, Array], total: Array, winner: int, aim: Aim) -> tuple[Shift, ...]:
    """The choice under every ceiling, a little higher and a little lower."""
    if aim.uncertain_ratio == 0.0:
        return ()
    out = []
    for name in CEILINGS:
        if name == "network" and all(
            not any(v.name.startswith("network") for v in f.levels) for f in grid.where.fabrics.values()
        ):
            continue
        for ratio in (1.0 - aim.uncertain_ratio, 1.0 + aim.uncertain_ratio):
            out.append(_shift(grid, held, total, winner, aim, name, ratio))
    return tuple(out)


def _shift(
    grid: Grid, held: dict[str, Array], total: Array, winner: int, aim: Aim, name: str, ratio: float
) -> Shift:  # fmt: skip
    scale = scaled(name, ratio)
    kept = np.flatnonzero(_fits(grid, total, scale))
    table = _Table.of(grid, kept, aim, scale)
    order = table.order(total[kept])
    eligible = order[table.allowed[order]]
    where = np.flatnonzero(kept[eligible] == winner)
    if not len(eligible):
        return Shift(ceiling=name, ratio=ratio, best=None, time_s=None, regret_ratio=None, stays=False)
    first = int(eligible[0])
    best = _candidate(grid, int(kept[first]), {k: v[kept[first]] for k, v in held.items()}, table.times, first)
    if not len(where):
        return Shift(ceiling=name, ratio=ratio, best=best, time_s=None, regret_ratio=None, stays=False)
    own = int(eligible[where[0]])
    regret = float(table.value[own] / table.value[first] - 1.0)
    return Shift(
        ceiling=name, ratio=ratio, best=best, time_s=float(table.times["step_s"][own]), regret_ratio=regret,
        stays=regret <= aim.tie_ratio,
    )  # fmt: skip


def _candidate(grid: Grid, row: int, held: Mapping[str, float], times: Mapping[str, Array], at: int) -> Candidate:
    """The figures of one plan."""
    combo = grid.combos[int(grid.rows.combo[row])]
    r = combo.ranks
    step = float(times["step_s"][at])
    if isinstance(grid, training.TrainingGrid):
        micro = int(grid.sizes[grid.rows.micro[row]])
        own = {
            "micro_batch": micro, "accumulation": (grid.work.batch or 0) // (r.dp * micro),
            "chunks": int(grid.rows.chunks[row]), "zero": int(grid.rows.zero[row]),
            "recompute": RECOMPUTE[int(grid.rows.policy[row])], "sequences": None, "ttft_s": None,
        }  # fmt: skip
        tokens = float((grid.work.batch or 0) * (grid.work.seq or 0))
        names: tuple[str, ...] = training_step.PARTS
        own["mfu_ratio"] = _mfu(grid, combo.precision, combo.devices, step)
    else:
        many = int(grid.rows.sequences[row])
        own = {
            "micro_batch": None, "accumulation": None, "chunks": None, "zero": None, "recompute": None,
            "sequences": many, "ttft_s": float(times["ttft_s"][at]),
        }  # fmt: skip
        tokens, names = float(many), serving.PARTS
    price = grid.where.price
    usd = price if isinstance(price, Unknown) else price.usd_per_s * combo.devices * step / tokens * 1e6
    return Candidate(
        devices=combo.devices, tp=r.tp, pp=r.pp, dp=r.dp, cp=r.cp, ep=r.ep, precision=combo.precision, time_s=step,
        parts={p: float(times[p][at]) for p in names}, messages_s=float(times["messages_s"][at]),
        memory_bytes=float(sum(held.values())), held={k: float(v) for k, v in held.items()},
        tokens_per_s=tokens / step, usd_per_mtoken=usd, **own,  # type: ignore[arg-type]
    )  # fmt: skip


def _mfu(grid: training.TrainingGrid, precision: str, devices: int, step_s: float) -> float | Unknown:
    """Model FLOP of a step over what the devices could do meanwhile."""
    machine = grid.where.machine
    peak = machine.ceilings.peak(short_dtype(precision), engine="matrix", scope=machine.scope)
    if isinstance(peak, Unknown):
        return peak
    return training.model_flop(grid, precision) / (step_s * devices * peak.value)


def _why_none(grid: Grid, total: Array, fits: npt.NDArray[np.bool_], table: _Table, aim: Aim) -> str:
    """Why no plan is left."""
    from mansard.core.units import format_bytes, format_s

    if not fits.any():
        budget, least = _budget(grid, AS_IS) or math.nan, int(np.argmin(total))
        combo = grid.combos[int(grid.rows.combo[least])]
        r = combo.ranks
        return (
            f"none of {len(total):,} plans fits: the leanest (tp{r.tp} pp{r.pp} dp{r.dp} cp{r.cp} ep{r.ep}) needs "
            f"{format_bytes(float(total[least]))} a device and may hold {format_bytes(budget)}"
        )
    if aim.ttft_s is not None and not (table.times["ttft_s"] <= aim.ttft_s).any():
        return f"no plan reads a prompt in {format_s(aim.ttft_s)}: the quickest takes {format_s(float(table.times['ttft_s'].min()))}"
    if aim.tpot_s is not None and not (table.times["step_s"] <= aim.tpot_s).any():
        return f"no plan gives a token in {format_s(aim.tpot_s)}: the quickest takes {format_s(float(table.times['step_s'].min()))}"
    return "no plan keeps both limits, though each is kept by some"
