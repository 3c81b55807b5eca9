"""One ceiling changed on an estimate: which part of the step moves and which does not."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mansard.core import Area, Ceiling, Unknown, short_dtype
from mansard.core.errors import UsageError
from mansard.core.units import parse_quantity
from mansard.plan.size import floor_of
from mansard.predict.bound import LAUNCH, KernelBound, Machine, PhaseBound, phase_bound
from mansard.predict.estimate import Estimate, Request, estimate
from mansard.workload.records import Model

#: A kernel whose time changes by less than this share does not move.
MOVES = 1e-3
#: A resource at `off` is so fast that it decides nothing.
_OFF = 1e15
_FACTOR = re.compile(r"(\d+\.?\d*|\.\d+)x")
_PERCENT = re.compile(r"([+-])(\d+\.?\d*|\.\d+)\s*%")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One ceiling, and what becomes of it.

    Args:
        resource: `hbm` (any memory level), an element type, `compute`, `network`, a link's name, `launch`.
        value: `2x`, `+50%`, `4.8 TB/s`, `off`, or for an element type another one whose peak it takes.
    """

    resource: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AreaTimes:
    """Kernels of one area before and after.

    Args:
        area: Such as `attention`, `mlp`, `communication`.
        before_s, after_s: Their least time [s].
        bound_before, bound_after: What most of it is bound by.
        moves: Whether it changes.
    """

    area: str
    before_s: float
    after_s: float
    bound_before: str
    bound_after: str
    moves: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """A step before and after a change.

    Args:
        before, after: The estimates' bounds.
        estimate: The estimate before.
        machine: The changed machine.
        changed: Ceilings that changed, each before and after.
        before_s, after_s: Floors of the step [s].
        areas: Kernels by area, the longest first.
        moving_s: Time before of kernels that move [s].
        fixed_s: Time before of those that do not [s].
        hidden_s: Messages that hide behind kernels before, and are in no total [s].
    """

    before: PhaseBound
    after: PhaseBound
    estimate: Estimate
    machine: Machine
    changed: tuple[tuple[Ceiling, Ceiling], ...]
    before_s: float | Unknown
    after_s: float | Unknown
    areas: tuple[AreaTimes, ...]
    moving_s: float
    fixed_s: float
    hidden_s: float

    @property
    def speedup(self) -> float | Unknown:
        """Time before over time after."""
        return self.before_s / self.after_s


def parse_change(text: str) -> Change:
    """Return a change as it is typed.

    >>> parse_change("hbm=2x")
    Change(resource='hbm', value='2x')
    """
    name, equals, value = text.partition("=")
    if not equals or not name.strip() or not value.strip():
        raise UsageError(f"cannot read --set {text!r}", hint="RESOURCE=VALUE, such as hbm=2x, bf16=+50% or network=off")
    return Change(resource=name.strip(), value=value.strip())


def _selector(name: str, machine: Machine) -> Callable[[Ceiling], bool]:
    """Which ceilings a name means."""
    low = name.lower()
    if low == "compute":
        return lambda c: c.resource.area is Area.COMPUTE
    if low == "network":
        return lambda c: c.resource.area is Area.NETWORK
    if low == "launch":
        return lambda c: c.resource.area is Area.LATENCY and c.resource.backend == LAUNCH
    if low == "memory":
        return lambda c: c.resource.area is Area.MEMORY and c.resource.level == machine.memory_level
    levels = {c.resource.level for c in machine.ceilings.ceilings if c.resource.level}
    if low in levels:
        if low != machine.memory_level:
            raise UsageError(
                f"no kernel of an estimate is served by {low}: weights and cache come from {machine.memory_level}",
                hint=f"--set {machine.memory_level}=2x",
            )
        return lambda c: c.resource.level == low
    if any(c.resource.link == name for c in machine.ceilings.ceilings):
        return lambda c: c.resource.link == name
    try:
        dtype = short_dtype(name)
    except UsageError:
        known = sorted(
            {*levels, *(c.resource.dtype or c.resource.link or "" for c in machine.ceilings.ceilings)} - {""}
        )
        raise UsageError(
            f"{machine.name} has no resource {name!r}",
            hint="compute, memory, network, launch, or one of " + ", ".join(known),
        ) from None
    return lambda c: c.resource.dtype == dtype and c.resource.engine == "matrix"


def _new_value(change: Change, ceiling: Ceiling, machine: Machine) -> float:
    """The changed value of one ceiling."""
    text = change.value.replace(" ", "")
    cost = ceiling.resource.area is Area.LATENCY
    if text.lower() == "off":
        return ceiling.value / _OFF if cost else ceiling.value * _OFF
    if match := _FACTOR.fullmatch(text):
        factor = float(match[1])
    elif match := _PERCENT.fullmatch(text):
        factor = 1.0 + float(match[1] + match[2]) / 100.0
    else:
        return _absolute(change, ceiling, machine)
    if not 0.0 < factor < 1e6:
        raise UsageError(
            f"--set {change.resource}={change.value} leaves nothing, or too much", hint="such as 2x, 0.5x, +50%"
        )
    return ceiling.value * factor


def _absolute(change: Change, ceiling: Ceiling, machine: Machine) -> float:
    """A value with a unit, or the peak of another element type."""
    if ceiling.resource.area is Area.COMPUTE:
        try:
            dtype = short_dtype(change.value)
        except UsageError:
            dtype = None
        if dtype is not None:
            other = machine.ceilings.peak(dtype, scope=machine.scope)
            if isinstance(other, Unknown):
                raise UsageError(f"{machine.name}: {other.reason}", hint="give the peak itself, such as 2 PFLOP/s")
            return other.value
    area = ceiling.resource.area
    dimension = "flop_per_s" if area is Area.COMPUTE else "s" if area is Area.LATENCY else "bytes_per_s"
    value = parse_quantity(change.value, dimension)
    if value <= 0:
        raise UsageError(
            f"--set {change.resource}={change.value} leaves nothing", hint="off means that it costs nothing"
        )
    return value


def changed_machine(machine: Machine, changes: Sequence[Change]) -> tuple[Machine, tuple[tuple[Ceiling, Ceiling], ...]]:
    """Return the machine with ceilings changed, and which.

    Raises:
        UsageError: a resource the machine does not have, or a value that cannot be read.
    """
    pairs: list[tuple[Ceiling, Ceiling]] = []
    rows = list(machine.ceilings.ceilings)
    for change in changes:
        chosen = _selector(change.resource, machine)
        found = [i for i, c in enumerate(rows) if c.scope == machine.scope and chosen(c)]
        if not found:
            raise UsageError(
                f"{machine.name} has no ceiling for {change.resource}",
                hint="--launch-cost gives launches a cost"
                if change.resource == "launch"
                else "see mansard hardware show",
            )
        for i in found:
            value = _new_value(change, rows[i], machine)
            conditions = dict(rows[i].conditions)
            if change.value.lower() == "off" and "latency_s" in conditions:
                conditions["latency_s"] = 0.0
            new = replace(
                rows[i], value=value, ci95=None, conditions=conditions, source=f"{change.resource}={change.value}"
            )
            pairs.append((rows[i], new))
            rows[i] = new
    return replace(machine, ceilings=replace(machine.ceilings, ceilings=tuple(rows))), tuple(pairs)


def whatif(model: Model, request: Request, machine: Machine, changes: Sequence[Change]) -> WhatIf:
    """Return a step before and after some ceilings change.

    Args:
        model, request: What is estimated.
        machine: The machine as it is.
        changes: One or more changes.

    Assumes: the kernels stay the same; a change of a peak by another element type does not change the bytes.
    """
    if not changes:
        raise UsageError("nothing was changed", hint='add --set "hbm=2x"')
    before = estimate(model, request, machine)
    # A launch cost that was asked for is a ceiling too, and can be changed.
    known = _with_launch(machine, request)
    other, pairs = changed_machine(known, changes)
    one = _bound(before, known, request)
    two = _bound(before, other, request)
    rows = tuple(_areas(one, two))
    known_rows = [(x, y) for a, b in zip(one.kernels, two.kernels, strict=True) if (x := _work(a)) and (y := _work(b))]
    pairs_s = [(x[0], y[0]) for x, y in known_rows] + [(one.fixed_s, two.fixed_s)]
    moving = sum(x for x, y in pairs_s if _moves(x, y))
    total = sum(x for x, _ in pairs_s)
    whole = floor_of(before)
    return WhatIf(
        before=one, after=two, estimate=before, machine=other, changed=pairs, before_s=whole,
        after_s=whole if isinstance(whole, Unknown) else two.time_s, areas=rows, moving_s=moving,
        fixed_s=total - moving,
        hidden_s=max(0.0, total - one.time_s) if not isinstance(one.time_s, Unknown) else 0.0,
    )  # fmt: skip


def _with_launch(machine: Machine, request: Request) -> Machine:
    from mansard.core import Kind, Resource

    if request.launch_s is None:
        return machine
    cost = Ceiling(
        resource=Resource(area=Area.LATENCY, backend=LAUNCH), value=request.launch_s, unit="s", kind=Kind.DECLARED,
        scope=machine.scope, source="given",
    )  # fmt: skip
    return replace(machine, ceilings=machine.ceilings.merged([cost]))


def _bound(result: Estimate, machine: Machine, request: Request) -> PhaseBound:
    backend = None if request.launch_s is None else LAUNCH
    depth = result.model.text.depth
    launches = None if request.launches_per_layer is None else request.launches_per_layer * depth
    return phase_bound(result.phase, machine, overlap=request.overlap, backend=backend, launches=launches)


def _work(row: KernelBound) -> tuple[float, str] | None:
    """Least time of all executions without their launches [s], and what bounds it; None where it is not known."""
    if isinstance(row.time_s, Unknown):
        return None
    launch = row.least.fixed.time_s * row.kernel.count if row.least.fixed else 0.0
    limiting = row.least.limiting
    # A launch can outweigh the work; the work is bound by what it would be bound by alone.
    bound = row.bound.value if limiting is None or not launch else limiting.area.value
    return row.time_s - launch, bound


def _moves(before_s: float, after_s: float) -> bool:
    return abs(after_s - before_s) > MOVES * max(before_s, after_s)


def _areas(one: PhaseBound, two: PhaseBound) -> list[AreaTimes]:
    """Sum the kernels by area; launches are a row of their own."""
    times: dict[str, list[float]] = {}
    bounds: dict[str, tuple[dict[str, float], dict[str, float]]] = {}
    for a, b in zip(one.kernels, two.kernels, strict=True):
        was, now = _work(a), _work(b)
        if was is None or now is None:
            continue
        area = (
            a.kernel.area if a.kernel.in_pass in ("forward", a.kernel.area) else f"{a.kernel.area} ({a.kernel.in_pass})"
        )
        row = times.setdefault(area, [0.0, 0.0])
        row[0] += was[0]
        row[1] += now[0]
        for shares, (time_s, bound) in zip(bounds.setdefault(area, ({}, {})), (was, now), strict=True):
            shares[bound] = shares.get(bound, 0.0) + time_s
    if one.fixed_s or two.fixed_s:
        times["launches"] = [one.fixed_s, two.fixed_s]
        bounds["launches"] = ({Area.LATENCY.value: one.fixed_s}, {Area.LATENCY.value: two.fixed_s})
    rows = [
        AreaTimes(
            area=area, before_s=t[0], after_s=t[1], bound_before=_most(bounds[area][0]), bound_after=_most(bounds[area][1]),
            moves=_moves(t[0], t[1]),
        )
        for area, t in times.items()
    ]  # fmt: skip
    return sorted(rows, key=lambda r: -r.before_s)


def _most(shares: dict[str, float]) -> str:
    return max(shares, key=lambda k: shares[k])


def whatif_document(result: WhatIf, changes: Sequence[Change], source: str) -> dict[str, Any]:
    """Return the `plan whatif` document."""
    from mansard.core import is_known
    from mansard.core.document import header
    from mansard.workload.memory import Fit

    fit = result.estimate.fit
    fits: Any = fit.fits if isinstance(fit, Fit) else fit
    none = Unknown("a change of a ceiling has no price", ("plan size",))
    times = (result.before_s, result.after_s)

    def row(name: str, bound: PhaseBound, time_s: float | Unknown) -> dict[str, Any]:
        return {
            "name": name, "fits": fits, "time_s": time_s, "cost": none,
            "memory_bytes": result.estimate.memory.total_bytes,
            "why_not": None if fits is not False else "one device holds more than its memory",
            "bound": bound.bound.value, "time_by_bound_s": dict(bound.shares), "kernels_s": bound.compute_s,
            "messages_s": bound.messages_s, "launches_s": bound.fixed_s,
        }  # fmt: skip

    faster = is_known(times[0]) and is_known(times[1]) and times[1] < times[0]
    return {
        **header("plan-whatif/1", {"model": source, "machine": result.machine.name}),
        "phase": result.estimate.phase.name,
        "changes": [{"resource": c.resource, "value": c.value} for c in changes],
        "ceilings": [
            {"resource": a.resource.label, "unit": a.unit, "before": a.value, "after": b.value, "off": b.source.endswith("=off")}
            for a, b in result.changed
        ],
        "candidates": [row("before", result.before, times[0]), row("after", result.after, times[1])],
        "best": 1 if faster else 0,
        "pareto": [1 if faster else 0],
        "speedup_ratio": result.speedup,
        "areas": [
            {
                "area": r.area, "before_s": r.before_s, "after_s": r.after_s, "bound_before": r.bound_before,
                "bound_after": r.bound_after, "moves": r.moves,
            }
            for r in result.areas
        ],
        "moving_s": result.moving_s,
        "not_moving_s": result.fixed_s,
        "hidden_s": result.hidden_s,
        "overlap": result.before.overlap,
        "notes": list(result.estimate.assumed),
    }  # fmt: skip
