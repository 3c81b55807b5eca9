"""The bound of a phase on a machine: kernel by kernel, and every weight once as its cross-check.

Method 1 sums over the kernels the least time of each, max(FLOP/peak, bytes/bandwidth), and adds the launches. Method 2
reads every weight that a token uses once and nothing else. Both are floors; the first is the higher one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from mansard.core import Area, Bound, Ceilings, Demand, LeastTime, MemoryLevel, Unknown, least_time, least_time_s
from mansard.core.demand import Number
from mansard.core.errors import InputError
from mansard.workload.forward import PEER
from mansard.workload.kernel import Kernel
from mansard.workload.phases import Phase

Overlap = Literal["full", "none"]

#: The name under which a fixed cost per kernel is looked up among the ceilings.
LAUNCH = "launch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A machine as the bounds of a model need it.

    Args:
        ceilings: What it can do.
        scope: Scope of the ceilings that describe one device of a plan.
        name: For people.
        memory_level: The level that holds weights and cache, and serves every kernel.
        memory_bytes: Its capacity, what the driver leaves where that is known [B]; `Unknown` where it is on no record.
        on_chip_bytes: What the largest level nearer than that holds [B]: activations that fit never reach main memory.
        peer_link: Name of the link between devices; that to the host where there is no other, since all that leaves the
            device passes it.
    """

    ceilings: Ceilings
    scope: str
    name: str
    memory_level: str
    memory_bytes: float | Unknown
    on_chip_bytes: float | Unknown
    peer_link: str | Unknown

    @property
    def link_latency_s(self) -> float | Unknown:
        """Latency of one step of a message [s]."""
        if isinstance(self.peer_link, Unknown):
            return self.peer_link
        rows = self.ceilings.find(scope=self.scope, link=self.peer_link)
        value = rows[0].conditions.get("latency_s") if rows else None
        if isinstance(value, int | float):
            return float(value)
        return Unknown(f"the latency of {self.peer_link} is on no record", ("a measured fit of the collective",))


def machine_of(
    ceilings: Ceilings, *, name: str, scope: str | None = None, on_chip_bytes: float | None = None
) -> Machine:
    """Return what bounds need to know of a machine.

    Args:
        ceilings: Its ceilings, declared or measured.
        name: For people.
        scope: The scope that is one device of a plan; None takes `device` where there are such ceilings, else `node`.
        on_chip_bytes: Capacity of the largest cache, where the ceilings do not tell [B].

    Raises:
        InputError: no memory bandwidth in that scope.
    """
    scopes = {c.scope for c in ceilings.ceilings}
    chosen = scope or next((s for s in ("device", "node", "die", "core") if s in scopes), "device")
    bandwidths = {c.resource.level for c in ceilings.find(scope=chosen, area=Area.MEMORY) if c.resource.level}
    if not bandwidths:
        raise InputError(
            f"{name} has no memory bandwidth for one {chosen}",
            hint="measure it, or give a hardware file that states one",
        )
    known = [level for level in ceilings.levels if level.level in bandwidths]
    if known:
        level = known[-1].level
        capacity: float | Unknown = known[-1].capacity(chosen)
        nearer = [item.capacity(chosen) for item in ceilings.levels if item.level != level]
    else:
        level = next(iter(sorted(bandwidths)))
        capacity, nearer = Unknown(f"the memory of {name} has no capacity on record", ("a hardware file",)), []
    cache = max([*nearer, *([on_chip_bytes] if on_chip_bytes else [])], default=None)
    links = [
        c.resource.link
        for area in (Area.NETWORK, Area.HOST)
        for c in ceilings.find(scope=chosen, area=area)
        if c.resource.link
    ]
    return Machine(
        ceilings=ceilings,
        scope=chosen,
        name=name,
        memory_level=level,
        memory_bytes=capacity,
        on_chip_bytes=Unknown(f"no cache of {name} is on record", ("a hardware file",)) if cache is None else cache,
        peer_link=links[0]
        if links
        else Unknown(f"{name} has no link to other devices on record", ("a hardware file",)),
    )


def machine_demand(kernel: Kernel, machine: Machine) -> Demand:
    """Return what one execution of a kernel consumes on this machine.

    Weights, cache and state come from main memory. Activations are added where they exceed the chip; where no cache is
    on record they are left out, which keeps the bound a floor.
    """
    demand = kernel.demand
    cache = machine.on_chip_bytes
    spilt = not isinstance(cache, Unknown) and bool(kernel.local_bytes > cache)
    read = demand.read_bytes + (kernel.local_read_bytes if spilt else 0.0)
    write = demand.write_bytes + (kernel.local_write_bytes if spilt else 0.0)
    links = {
        (machine.peer_link if name == PEER and isinstance(machine.peer_link, str) else name): size
        for name, size in demand.link_bytes.items()
    }
    return replace(demand, read_bytes=read, write_bytes=write, link_bytes=links)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelBound:
    """A kernel with its least time.

    Args:
        kernel: The kernel.
        demand: What one execution consumes on the machine.
        least: Its least time, launch included.
        bound: What decides it; `undetermined` where a resource it needs has no ceiling.
        time_s: Least time of all executions [s].
    """

    kernel: Kernel
    demand: Demand
    least: LeastTime
    bound: Bound
    time_s: float | Unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseBound:
    """The bound of a phase on a machine.

    Args:
        time_s: Least time of the phase by method 1 [s].
        kernels: Every kernel with its own.
        bound: What most of the time is bound by.
        shares: Time by what bounds it [s].
        compute_s, messages_s, fixed_s: Parts of the sum: kernels, messages between devices, launches [s].
        overlap: Whether messages hide behind kernels (`full`) or not (`none`).
        bytes: Traffic of one device with its main memory [B].
        unknown: Resources without a ceiling.
        open: Those of them that may decide the phase: most of its matrix work, or its messages.
    """

    time_s: float | Unknown
    kernels: tuple[KernelBound, ...]
    bound: Bound
    shares: Mapping[str, float]
    compute_s: float
    messages_s: float
    fixed_s: float
    overlap: Overlap
    bytes: float
    unknown: tuple[Unknown, ...] = field(default=())
    open: tuple[Unknown, ...] = field(default=())


def kernel_bound(kernel: Kernel, machine: Machine, *, backend: str | None = None) -> KernelBound:
    """Return the least time of one kernel, by `core.least_time`.

    Args:
        kernel: The kernel.
        machine: The machine.
        backend: Whose fixed cost each launch has; None for none.
    """
    demand = machine_demand(kernel, machine)
    least = least_time(demand, _served_by_memory(machine), scope=machine.scope, backend=backend)
    if kernel.kind == "communication":
        least = _with_latency(least, kernel, machine)
    floor_s = least.floor_s
    if isinstance(floor_s, Unknown):
        return KernelBound(kernel=kernel, demand=demand, least=least, bound=Bound.UNDETERMINED, time_s=floor_s)
    limiting = least.limiting
    verdict = Bound.UNDETERMINED if least.needed or limiting is None else Bound(limiting.area.value)
    return KernelBound(kernel=kernel, demand=demand, least=least, bound=verdict, time_s=floor_s * kernel.count)


def _served_by_memory(machine: Machine) -> Ceilings:
    """The ceilings with one level: however little a kernel reads, weights and cache as a whole live in main memory."""
    level = MemoryLevel(level=machine.memory_level, capacity_bytes=float("inf"))
    return replace(machine.ceilings, levels=(level,))


def _with_latency(least: LeastTime, kernel: Kernel, machine: Machine) -> LeastTime:
    """Add the latency of each dependent step of a message, where it is on record."""
    latency = machine.link_latency_s
    steps = float(kernel.demand.launches)
    if isinstance(latency, Unknown) or isinstance(least.time_s, Unknown):
        return least
    return replace(least, time_s=float(least_time_s([least.time_s], fixed_s=steps * latency)))


def phase_bound(
    phase: Phase,
    machine: Machine,
    *,
    overlap: Overlap | None = None,
    backend: str | None = None,
    launches: float | None = None,
) -> PhaseBound:
    """Return the bound of a phase by method 1.

    Args:
        phase: The phase.
        machine: The machine; each device of the plan is one.
        overlap: Whether messages between devices hide behind kernels; None: in training they do, in inference each waits
            for the kernel before it.
        backend: Whose fixed cost each launch has; None for none.
        launches: Launches of the phase, where they are known otherwise; None counts those of its kernels.

    Assumes: kernels run one after the other, each at its own ceiling; so the sum is a floor, not an estimate.
    """
    policy: Overlap = overlap or ("full" if phase.name == "train" else "none")
    rows = [kernel_bound(k, machine, backend=backend if launches is None else None) for k in phase.kernels]
    shares: dict[str, float] = {}
    compute = messages = fixed = 0.0
    missing: list[Unknown] = []
    for row in rows:
        for unknown in row.least.unknown:
            if unknown not in missing:
                missing.append(unknown)
        if isinstance(row.time_s, Unknown):
            continue
        launch = row.least.fixed.time_s * row.kernel.count if row.least.fixed else 0.0
        fixed += launch
        if row.kernel.kind == "communication":
            messages += row.time_s - launch
        else:
            compute += row.time_s - launch
        shares[row.bound.value] = shares.get(row.bound.value, 0.0) + row.time_s - launch
    if launches is not None and backend is not None:
        cost = machine.ceilings.fixed_cost(backend)
        if isinstance(cost, Unknown):
            missing.append(cost)
        else:
            fixed = launches * cost.value
    if fixed:
        shares[Bound.LATENCY.value] = shares.get(Bound.LATENCY.value, 0.0) + fixed
    known = compute + messages + fixed > 0
    time_s = float(least_time_s([compute, messages], fixed_s=fixed, overlap=policy))
    no_time = missing[0] if missing else Unknown("no kernel of the phase could be bounded", ("ceilings",))
    may_decide = _may_decide(rows)
    return PhaseBound(
        time_s=time_s if known else no_time,
        kernels=tuple(rows),
        bound=Bound.UNDETERMINED if may_decide or not shares else Bound(max(shares, key=lambda key: shares[key])),
        shares=shares,
        compute_s=compute,
        messages_s=messages,
        fixed_s=fixed,
        overlap=policy,
        bytes=float(sum(float(r.demand.bytes) * r.kernel.count for r in rows)),
        unknown=tuple(missing),
        open=may_decide,
    )


#: Matrix work without a ceiling that is less than this share of all of it decides no phase.
_LITTLE = 0.05


def _may_decide(rows: Sequence[KernelBound]) -> tuple[Unknown, ...]:
    """Return why the time of a phase is not told by the kernels that could be bounded."""
    flop = sum(float(r.demand.total_flop) * r.kernel.count for r in rows)
    lost = [r for r in rows if r.least.no_peak is not None]
    found: list[Unknown] = []
    if sum(float(r.demand.total_flop) * r.kernel.count for r in lost) > _LITTLE * flop:
        found += [r.least.no_peak for r in lost if r.least.no_peak is not None]
    found += [u for r in rows if r.kernel.kind == "communication" for u in r.least.needed]
    return tuple(dict.fromkeys(found))


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsOnce:
    """Method 2: every weight once.

    Args:
        bytes: Weights that one token uses, as active parameters are counted: tables included [B].
        matmul_bytes: Those of them that multiply, which a decode step reads [B].
        time_s: Reading them at the memory bandwidth of the devices together [s].
        all_bytes: All weights, which large batches and prefill approach [B].
        all_time_s: Reading all of them [s].
    """

    bytes: float
    matmul_bytes: float
    time_s: float | Unknown
    all_bytes: float
    all_time_s: float | Unknown


def weights_once(
    *, active_bytes: float, matmul_bytes: float, all_bytes: float, machine: Machine, devices: int = 1
) -> WeightsOnce:
    """Return the time to read every weight once.

    Args:
        active_bytes: Bytes of the weights that one token uses [B].
        matmul_bytes: Bytes of those that multiply [B].
        all_bytes: Bytes of all weights [B].
        machine: The machine.
        devices: Devices that share the weights.

    3.3e9 parameters of 2 B at 4.0 TB/s: 6.6 GB, 1.65 ms.
    """
    bandwidth = machine.ceilings.bandwidth(machine.memory_level, read_ratio=1.0, scope=machine.scope)

    def time_of(size: float) -> float | Unknown:
        return bandwidth if isinstance(bandwidth, Unknown) else float(least_time_s([size / devices / bandwidth.value]))

    return WeightsOnce(
        bytes=active_bytes,
        matmul_bytes=matmul_bytes,
        time_s=time_of(active_bytes),
        all_bytes=all_bytes,
        all_time_s=time_of(all_bytes),
    )


def tokens_per_s(phase: Phase, time_s: float | Unknown) -> Number | Unknown:
    """Return the tokens per second of all devices: emitted in decode, processed in prefill and training [token/s]."""
    if isinstance(time_s, Unknown):
        return time_s
    return counted_tokens(phase) / time_s


def counted_tokens(phase: Phase) -> Number:
    """Return the tokens that a rate of this phase counts: emitted in decode, processed in prefill and training [token]."""
    return phase.emitted if phase.name in ("decode", "verify") else phase.tokens
