"""A million points at once: arrays of batch and context against arrays of machines, by the same formulas.

The kernels are built once for whole arrays, and `core.least_time_s` bounds them all; nothing here knows how long
anything takes by itself. Points are worked in blocks that fit a cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mansard.core import Unknown, least_time_s
from mansard.core.demand import Number
from mansard.core.errors import UndecidedError, UsageError
from mansard.predict.bound import Machine
from mansard.workload.batch import Batch, Group
from mansard.workload.kernel import Kernel
from mansard.workload.phases import Phase, Setting, decode, prefill

Array = npt.NDArray[np.float64]

#: Points that are worked at once: some tens of arrays of these fit a second-level cache.
BLOCK = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    """Bounds of many points, in the order they were given.

    Args:
        flop: Model FLOP of all devices [FLOP].
        bytes: Traffic of one device with its main memory [B].
        time_s: Bound by method 1 [s].
        tokens_per_s: Ceiling of all devices [token/s].
        compute_share: Share of the time that kernels bound by compute take.
    """

    flop: Array
    bytes: Array
    time_s: Array
    tokens_per_s: Array
    compute_share: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rates:
    """What the kernels need of the machines: one value each."""

    peaks: dict[tuple[str, str, str], Array]
    bandwidth: Array
    on_chip: Array


def _rate_table(machines: Sequence[Machine], kernels: Sequence[Kernel]) -> _Rates:
    """Return the rates of every machine; what has no ceiling is infinite for vector work and an error for the rest."""
    keys: dict[tuple[str, str, str], None] = {}
    for kernel in kernels:
        for dtype, accumulate in kernel.demand.flop:
            keys[(dtype, accumulate, "matrix")] = None
        for dtype in kernel.demand.vector_flop:
            keys[(dtype, "", "vector")] = None
        for dtype in kernel.demand.transcendental:
            keys[(dtype, "", "special")] = None
    peaks = {}
    for dtype, accumulate, engine in keys:
        column = []
        for machine in machines:
            ceiling = machine.ceilings.peak(dtype, accumulate=accumulate or None, engine=engine, scope=machine.scope)
            if isinstance(ceiling, Unknown):
                if engine == "matrix":
                    raise UndecidedError(f"{machine.name}: {ceiling.reason}", hint="; ".join(ceiling.needs))
                column.append(np.inf)
            else:
                column.append(ceiling.value)
        peaks[(dtype, accumulate, engine)] = np.array(column)
    bandwidth = []
    for machine in machines:
        ceiling = machine.ceilings.bandwidth(machine.memory_level, read_ratio=1.0, scope=machine.scope)
        if isinstance(ceiling, Unknown):
            raise UndecidedError(f"{machine.name}: {ceiling.reason}", hint="; ".join(ceiling.needs))
        bandwidth.append(ceiling.value)
    chips = [np.inf if isinstance(m.on_chip_bytes, Unknown) else m.on_chip_bytes for m in machines]
    return _Rates(peaks=peaks, bandwidth=np.array(bandwidth), on_chip=np.array(chips))


def _at(column: Array, index: npt.NDArray[np.intp] | None) -> Number:
    return float(column[0]) if index is None else column[index]


def _kernel_time(kernel: Kernel, rates: _Rates, index: npt.NDArray[np.intp] | None) -> tuple[Number, Number, Number]:
    """Return least time, compute part and bytes of one execution at every point."""
    demand = kernel.demand
    local = kernel.local_bytes
    spilt = local > _at(rates.on_chip, index)
    size = demand.bytes + np.where(spilt, local, 0.0)
    # Types that share an engine follow each other on it, as in `core.least_time`.
    engines: dict[str, list[Number]] = {"matrix": [], "vector": [], "special": []}
    for (dtype, accumulate), flop in demand.flop.items():
        engines["matrix"].append(flop / _at(rates.peaks[(dtype, accumulate, "matrix")], index))
    for dtype, flop in demand.vector_flop.items():
        engines["vector"].append(flop / _at(rates.peaks[(dtype, "", "vector")], index))
    for dtype, count in demand.transcendental.items():
        engines["special"].append(count / _at(rates.peaks[(dtype, "", "special")], index))
    slowest = least_time_s([least_time_s(parts, overlap="none") for parts in engines.values() if parts])
    return least_time_s([slowest, size / _at(rates.bandwidth, index)]), slowest, size


def _block(
    setting: Setting,
    phase: str,
    batch: Array,
    context: Array,
    machines: Sequence[Machine],
    index: npt.NDArray[np.intp] | None,
) -> tuple[Array, ...]:
    if phase == "decode":
        group = Group(sequences=batch, queries=1.0, keys=context)
        work: Phase = decode(setting, Batch(groups=(group,)))
    else:
        work = prefill(setting, Batch(groups=(Group(sequences=batch, queries=context, keys=context),)))
    rates = _rate_table(machines, work.kernels)
    total = np.zeros(batch.shape)
    size = np.zeros(batch.shape)
    by_compute = np.zeros(batch.shape)
    for kernel in work.kernels:
        time_s, slowest, moved = _kernel_time(kernel, rates, index)
        total += time_s * kernel.count
        size += moved * kernel.count
        by_compute += np.where(slowest >= time_s, time_s, 0.0) * kernel.count
    out = (
        work.model_flop,
        size,
        total,
        (work.emitted if phase == "decode" else work.tokens) / total,
        by_compute / total,
    )
    return tuple(np.broadcast_to(np.asarray(x, dtype=np.float64), batch.shape) for x in out)


def bound_points(
    setting: Setting,
    *,
    phase: str,
    batch: npt.ArrayLike,
    context: npt.ArrayLike,
    machines: Sequence[Machine],
    machine_index: npt.ArrayLike | None = None,
) -> Points:
    """Return the bound of many points of one model on one device each.

    Args:
        setting: The model; its plan has one device.
        phase: `decode` or `prefill`.
        batch: Sequences of each point.
        context: Keys each new token sees, or tokens of the prompt.
        machines: Machines.
        machine_index: Which of them each point is for; None where there is one.

    Returns:
        The same figures as `estimate` for each point, without messages and launches.

    Raises:
        UsageError: arrays of different length, values that are not positive, another phase.
        UndecidedError: a machine without a ceiling that the products need.
    """
    if phase not in ("decode", "prefill"):
        raise UsageError(f"points are bounded for decode and prefill, not for {phase!r}")
    if setting.plan.devices != 1:
        raise UsageError("points are bounded on one device each; use estimate for a plan")
    b, c = (np.atleast_1d(np.asarray(x, dtype=np.float64)) for x in (batch, context))
    b, c = np.broadcast_arrays(b, c)
    if not np.all(np.isfinite(b)) or not np.all(np.isfinite(c)) or np.any(b <= 0) or np.any(c < 0):
        raise UsageError("batches must be positive and contexts not negative")
    index = None if machine_index is None else np.asarray(machine_index, dtype=np.intp)
    if index is None and len(machines) != 1:
        raise UsageError("several machines need machine_index")
    if index is not None and (index.shape != b.shape or np.any(index < 0) or np.any(index >= len(machines))):
        raise UsageError("machine_index must name a machine for every point")
    columns = [np.empty(b.shape) for _ in range(5)]
    for start in range(0, len(b), BLOCK):
        part = slice(start, start + BLOCK)
        values = _block(setting, phase, b[part], c[part], machines, None if index is None else index[part])
        for column, value in zip(columns, values, strict=True):
            column[part] = value
    return Points(
        flop=columns[0], bytes=columns[1], time_s=columns[2], tokens_per_s=columns[3], compute_share=columns[4]
    )
