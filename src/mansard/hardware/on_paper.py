"""The ceilings of a product on paper, for one scope, declared and derived side by side."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from mansard.core.ceilings import SCOPES, Area, Ceiling, Ceilings, Kind, MemoryLevel, Resource
from mansard.core.errors import UsageError
from mansard.core.units import format_hz
from mansard.core.unknown import Unknown, is_known
from mansard.hardware.derive import PeakRow, of_share, peak_rows, unit_rows
from mansard.hardware.records import Memory, Peak, Receipt, Sku


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scope:
    """How much of a package a scope is.

    Args:
        name: `core`, `die`, `device`, `node`.
        share: Packages in it: 0.5 for one die of two, 8 for a node of eight.
        memory: Whether the package's memory can be shared out to it.
        words: In words, for conditions.
    """

    name: str
    share: float
    memory: bool
    words: str


def ceilings(sku: Sku, *, scope: str = "device", clock_hz: float | None = None, devices: int | None = None) -> Ceilings:
    """Return what a product can do on paper, as ceilings of one scope.

    Declared peaks are kept beside derived ones; a query prefers the derived one, which is taken at the clock of the vendor's
    peak, or at `clock_hz`. A derivation that contradicts its declared peak is left out and named. Figures are those of
    one device as the runtime shows it: half an MI250X or TPU7x.

    Args:
        sku: The product.
        scope: `core` (one SM, compute unit or core), `die`, `device`, or `node`.
        clock_hz: The clock that was observed [Hz]; declared peaks that cannot follow it are left out and named.
        devices: Devices of a node; None takes the usual node of the product, where there is one.

    Raises:
        UsageError: an unknown scope, a clock that is none, or a node of unknown size.

    >>> from mansard.hardware.catalogue import load
    >>> c = ceilings(load("h200"))
    >>> round(c.peak("bf16", scope="device").value / c.bandwidth("hbm", scope="device").value)
    206
    >>> round(ceilings(load("mi250x")).peak("bf16", scope="device").value / 1e12, 1)
    191.5
    """
    if clock_hz is not None and not (math.isfinite(clock_hz) and clock_hz > 0):
        raise UsageError(f"clock_hz must be positive and finite, got {clock_hz!r}")
    part = _scope(sku, scope, devices)
    findings: list[dict[str, str]] = []
    rows = [*_compute(sku, part, clock_hz, findings)]
    memories, levels = _memory(sku, part, clock_hz, findings)
    rows += memories
    if part.name in ("device", "node"):
        rows += _links(sku, part)
    machine: dict[str, Any] = {
        "hardware": sku.slug, "name": sku.name, "scope": part.name, "scope_is": part.words, "clock_hz": clock_hz,
        "package": {"dies": sku.package.dies, "devices": sku.package.devices, "device": sku.package.device},
        "findings": findings,
    }  # fmt: skip
    return Ceilings(ceilings=tuple(rows), levels=levels, machine=machine, source=sku.origin)


def _scope(sku: Sku, scope: str, devices: int | None) -> _Scope:
    package = sku.package
    if sku.kind == "cpu-family" and scope != "core":
        raise UsageError(
            f"{sku.slug} is a family of processors; its products differ in cores, clock and memory",
            hint=f"use scope core, or mansard hardware peak {sku.slug} --cores N --clock '3 GHz'",
        )
    if scope == "core":
        return _Scope(name=scope, share=math.nan, memory=False, words="one core, SM or compute unit")
    if scope == "die":
        words = "one die" if package.dies > 1 else "the only die"
        return _Scope(name=scope, share=1 / package.dies, memory=package.dies in (1, package.devices), words=words)
    if scope == "device":
        return _Scope(name=scope, share=1 / package.devices, memory=True, words=package.device)
    if scope == "node":
        if devices is None and package.node_packages is None:
            raise UsageError(
                f"a node of {sku.slug} has no usual number of devices", hint="say how many: devices=N, or --devices N"
            )
        count = devices if devices is not None else (package.node_packages or 0) * package.devices
        if count < 1:
            raise UsageError(f"a node has at least one device, got {count}")
        return _Scope(name=scope, share=count / package.devices, memory=True, words=f"{count} devices")
    raise UsageError(f"unknown scope {scope!r} for a product", hint=f"one of {', '.join(SCOPES[:4])}")


def scope_share(sku: Sku, scope: str, devices: int | None = None) -> float:
    """Return how many packages a scope is: 0.5 for a die of two, 8 for a node of eight.

    Raises:
        UsageError: an unknown scope, or a node of unknown size.
    """
    return _scope(sku, scope, devices).share


def _compute(sku: Sku, part: _Scope, clock_hz: float | None, findings: list[dict[str, str]]) -> list[Ceiling]:
    if sku.kind == "cpu-family":
        rows = _family_core(sku, clock_hz)
        return [*rows, *_products_on_vector_units(rows)]
    rows = []
    failed: dict[str, list[str]] = {}
    for row in peak_rows(sku, clock_hz=clock_hz):
        if not row.holds:
            failed.setdefault(row.peak.difference, []).append(_label(row.peak))
        elif is_known(row.derived):
            rows += _row(sku, part, row, row.derived, Kind.DERIVED)
        if is_known(row.declared) and part.name != "core":
            if clock_hz is not None and (not row.holds or not is_known(row.derived)):
                text = f"the {_label(row.peak)} peak cannot be taken to {format_hz(clock_hz)}: {_why(row)}"
                findings.append({"code": "not_at_clock", "text": text})
            else:
                rows += _row(sku, part, row, row.declared, Kind.DECLARED)
    for reason, labels in failed.items():
        text = f"{', '.join(labels)}: the derivation does not give the declared peak; {reason}"
        findings.append({"code": "derivation_fails", "text": text})
    return [*rows, *_products_on_vector_units(rows)]


def _family_core(sku: Sku, clock_hz: float | None) -> list[Ceiling]:
    """Return what one core of a processor family does at a clock."""
    if clock_hz is None:
        raise UsageError(
            f"{sku.slug} is a family of processors without one clock", hint="give clock_hz, or --clock '3 GHz'"
        )
    rows = []
    for row in unit_rows(sku, clock_hz=clock_hz, groups=1):
        resource = Resource(area=Area.COMPUTE, dtype=row.dtype, accumulate=row.accumulate, engine=row.unit.engine)
        conditions = {"dense": True, "clock_hz": clock_hz, "of": "one core", "formula": row.formula, "unit": row.unit.name,
                      "certainty": row.unit.receipt.certainty}  # fmt: skip
        rows.append(
            Ceiling(resource=resource, value=row.flop_per_s, unit="FLOP/s", kind=Kind.DERIVED, scope="core",
                    conditions=conditions, source=_source(row.unit.receipt))
        )  # fmt: skip
    return rows


def _row(sku: Sku, part: _Scope, row: PeakRow, value: float, kind: Kind) -> list[Ceiling]:
    share = part.share
    if part.name == "core":
        unit = sku.unit(row.peak.unit) if row.peak.unit else None
        if unit is None or unit.groups is None:
            return []
        share = 1.0 / unit.groups
    peak = row.peak
    clock = row.clock_hz if kind is Kind.DERIVED else peak.clock_hz
    conditions: dict[str, Any] = {
        "dense": True,
        "clock_hz": clock,
        "of": part.words,
        "certainty": peak.receipt.certainty,
    }
    if kind is Kind.DERIVED:
        conditions["formula"] = of_share(row.formula, share)
    if peak.unit:
        conditions["unit"] = peak.unit
    resource = Resource(area=Area.COMPUTE, dtype=peak.dtype, accumulate=peak.accumulate, engine=peak.engine)
    return [
        Ceiling(resource=resource, value=value * share, unit="FLOP/s", kind=kind, scope=part.name,
                conditions=conditions, source=_source(peak.receipt))
    ]  # fmt: skip


def _products_on_vector_units(rows: list[Ceiling]) -> list[Ceiling]:
    """Return matrix ceilings for element types that no matrix unit takes: their products run on the vector units."""
    taken = {c.resource.dtype for c in rows if c.resource.engine == "matrix"}
    found = []
    for c in rows:
        r = c.resource
        if r.engine == "vector" and r.dtype not in taken:
            resource = Resource(area=Area.COMPUTE, dtype=r.dtype, accumulate=r.accumulate, engine="matrix")
            conditions = {**c.conditions, "note": "no matrix unit takes this type: products run on the vector units"}
            found.append(
                Ceiling(resource=resource, value=c.value, unit=c.unit, kind=c.kind, scope=c.scope,
                        conditions=conditions, source=c.source)
            )  # fmt: skip
    return found


def instances(sku: Sku, memory: Memory) -> int | None:
    """Return how many instances of a memory level one package has; None for a family."""
    if memory.per == "package":
        return 1
    if memory.per == "die":
        return sku.package.dies
    return next((u.groups for u in sku.units), None)


def _memory(
    sku: Sku, part: _Scope, clock_hz: float | None, findings: list[dict[str, str]]
) -> tuple[list[Ceiling], tuple[MemoryLevel, ...]]:
    rows: list[Ceiling] = []
    levels: list[MemoryLevel] = []
    for memory in sku.memory:
        count = 1 if part.name == "core" and memory.per == "group" else instances(sku, memory)
        reachable = memory.per == "group" if part.name == "core" else part.memory or memory.per == "group"
        if count is None or not reachable:
            continue
        rate, clock = _rate(sku, memory, count, clock_hz)
        if isinstance(rate, Unknown):
            findings.append(
                {
                    "code": "level_without_bandwidth",
                    "text": f"{memory.level}: {rate.reason}; work that fits it is held against the next level out",
                }
            )
            continue
        share = 1.0 if part.name == "core" else part.share
        conditions: dict[str, Any] = {"of": part.words, "certainty": memory.receipt.certainty}
        if memory.note:
            conditions["note"] = memory.note
        if clock is not None:
            conditions["clock_hz"] = clock
        kind = Kind.DERIVED if clock is not None else Kind.DECLARED
        rows.append(
            Ceiling(resource=Resource(area=Area.MEMORY, level=memory.level), value=rate * share, unit="B/s", kind=kind,
                    scope=part.name, conditions=conditions, source=_source(memory.receipt))
        )  # fmt: skip
        total = count * share
        whole = max(1, round(total))
        capacity = (memory.usable_bytes or memory.capacity_bytes) * total / whole
        levels.append(MemoryLevel(level=memory.level, capacity_bytes=capacity, instances=whole))
        if memory.configurable:
            text = f"{memory.level}: the capacity is what was bought, at most {memory.capacity_bytes:.4g} B"
            findings.append({"code": "capacity_configurable", "text": text})
    return rows, tuple(levels)


def _rate(sku: Sku, memory: Memory, count: int, clock_hz: float | None) -> tuple[float | Unknown, float | None]:
    """Return the bandwidth of `count` instances and, if it follows the core clock, at which clock."""
    if memory.bytes_per_s is not None:
        return memory.bytes_per_s, None
    if memory.bytes_per_cycle is None:
        return Unknown(f"the bandwidth of this level of {sku.name} is not published", ("mansard measure",)), None
    clock = clock_hz if clock_hz is not None else core_clock(sku)
    if clock is None:
        return Unknown(f"{memory.level} runs at the core clock, which is not given", ("clock_hz",)), None
    return memory.bytes_per_cycle * count * clock, clock


def core_clock(sku: Sku) -> float | None:
    """Return the clock of the vector peak [Hz], at which levels with bytes per cycle are taken."""
    return next((p.clock_hz for p in sku.peaks if p.engine == "vector" and p.clock_hz is not None), None)


def _links(sku: Sku, part: _Scope) -> list[Ceiling]:
    rows = []
    for link in sku.links:
        area = Area.HOST if link.role == "host" else Area.NETWORK
        conditions = {"direction": "one way", "links": link.count, "topology": link.topology, "latency_s": link.latency_s,
                      "of": part.words, "certainty": link.receipt.certainty}  # fmt: skip
        rows.append(
            Ceiling(resource=Resource(area=area, link=link.name), value=link.bytes_per_s * part.share, unit="B/s",
                    kind=Kind.DECLARED, scope=part.name, conditions=conditions, source=_source(link.receipt))
        )  # fmt: skip
    return rows


def _source(receipt: Receipt) -> str:
    return f"{receipt.source} ({receipt.date}, {receipt.certainty})"


def _label(peak: Peak) -> str:
    return f"{peak.dtype} {peak.engine}"


def _why(row: PeakRow) -> str:
    if not row.holds:
        return f"{_label(row.peak)}: the derivation does not give the declared peak; {row.peak.difference}"
    return row.derived.reason if isinstance(row.derived, Unknown) else row.peak.difference
