"""What `mansard hardware` tells, as plain JSON types: a product with the receipt of each number, and its peaks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mansard.core.bound import share_of
from mansard.core.ceilings import Area, Ceilings
from mansard.core.dtypes import dtype_bytes, element_dtype
from mansard.core.errors import UsageError
from mansard.core.unknown import Unknown, is_known
from mansard.hardware.derive import PeakRow, of_share, partial_ceilings, peak_rows, shortfall, unit_rows, what_rows_say
from mansard.hardware.on_paper import ceilings, core_clock, instances, scope_share
from mansard.hardware.records import Memory, Receipt, Sku
from mansard.hardware.views import (
    Ridge,
    bytes_in_flight,
    hiding_gemm_size,
    in_flight_bytes_per_s,
    mixed_peak_flop_per_s,
    pebble_flop_per_byte,
    ridge_points,
    square_gemm_flop_per_byte,
)


def receipt(r: Receipt) -> dict[str, str]:
    """Return source, date and certainty as keys of a figure."""
    return {"source": r.source, "date": r.date, "certainty": r.certainty}


def show_document(sku: Sku) -> dict[str, Any]:
    """Return everything on record of a product; peaks, memory and links are those of one runtime device."""
    package = sku.package
    share = 1.0 / package.devices
    return {
        "name": sku.slug,
        "product": sku.name,
        "aliases": list(sku.identity.names),
        "vendor": sku.vendor,
        "kind": sku.kind,
        "chip": sku.chip or None,
        "architecture": sku.architecture or None,
        "origin": sku.origin,
        "identity": {"pci": list(sku.identity.pci), "cpuid": list(sku.identity.cpuid),
                     "multiprocessors": sku.identity.multiprocessors, **receipt(sku.identity.receipt)},
        "package": {"dies": package.dies, "devices": package.devices, "device": package.device,
                    "node_packages": package.node_packages, **receipt(package.receipt)},
        "scope": "device",
        "peaks": _peaks(sku, share),
        "memory": [_memory(sku, m, share) for m in sku.memory],
        "links": [
            {"name": link.name, "role": link.role, "count": link.count, "bytes_per_s": link.bytes_per_s * share,
             "direction": "one way", "topology": link.topology, "latency_s": link.latency_s, **receipt(link.receipt)}
            for link in sku.links
        ],
        "ridge_points": [r.to_json() for r in _ridges(sku, "device", None, None)],
        "units": [
            {"name": u.name, "engine": u.engine, "group": u.group, "groups": u.groups, "per_group": u.per_group,
             "width_bits": u.width_bits, "dtypes": list(u.dtypes), "fma_per_cycle": dict(u.fma_per_cycle),
             "tile": u.tile or None, "note": u.note or None, **receipt(u.receipt)}
            for u in sku.units
        ],
        "clocks": [{"name": c.name, "hz": c.hz, **receipt(c.receipt)} for c in sku.clocks],
        "power": {"tdp_w": sku.tdp_w, **receipt(sku.tdp_receipt)} if sku.tdp_w and sku.tdp_receipt else None,
        "prices": [{"usd_per_hour": p.usd_per_hour, "offer": p.offer, **receipt(p.receipt)} for p in sku.prices],
        "notes": list(sku.notes),
    }  # fmt: skip


def _peaks(sku: Sku, share: float) -> list[dict[str, Any]]:
    found = []
    for row in peak_rows(sku):
        p = row.peak
        key = {"dtype": p.dtype, "accumulate": p.accumulate, "engine": p.engine}
        common = {"dense": True, "scope": "device", "clock_hz": p.clock_hz, "clock_basis": p.clock_basis}
        if is_known(row.declared):
            found.append({**key, "flop_per_s": row.declared * share, "package_flop_per_s": row.declared,
                          "kind": "declared", **receipt(p.receipt), **common, "note": p.difference or None})  # fmt: skip
        if is_known(row.derived) and row.holds:
            found.append({**key, "flop_per_s": row.derived * share, "package_flop_per_s": row.derived,
                          "kind": "derived", **receipt(p.receipt), **common,
                          "formula": of_share(row.formula, share)})  # fmt: skip
    return found


def _memory(sku: Sku, m: Memory, share: float) -> dict[str, Any]:
    count = instances(sku, m)
    clock = core_clock(sku)
    rate = m.bytes_per_s
    if rate is None and m.bytes_per_cycle is not None and clock is not None and count is not None:
        rate = m.bytes_per_cycle * count * clock
    unknown = Unknown(f"the bandwidth of {m.level} is not published", ("mansard measure",))
    total = count * share if count is not None else 1.0
    granularity = {"bytes": m.granularity_bytes, **receipt(m.granularity_receipt or m.receipt)}
    return {
        "level": m.level,
        "capacity_bytes": m.capacity_bytes * (total if total < 1 else 1.0),
        "instances": max(1, round(total)),
        "per": m.per,
        "configurable": m.configurable,
        "usable_bytes": m.usable_bytes * (total if total < 1 else 1.0) if m.usable_bytes else None,
        "bytes_per_s": rate * share if rate is not None else unknown.to_json(),
        "bytes_per_cycle": m.bytes_per_cycle,
        "granularity": granularity if m.granularity_bytes else None,
        "note": m.note or None,
        **receipt(m.receipt),
    }


def _ridges(sku: Sku, scope: str, clock_hz: float | None, devices: int | None) -> tuple[Ridge, ...]:
    if sku.kind == "cpu-family" and (scope != "core" or clock_hz is None):
        return ()
    return ridge_points(ceilings(sku, scope=scope, clock_hz=clock_hz, devices=devices), scope=scope)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What `hardware peak` is asked about a product.

    Args:
        scope: `core`, `die`, `device`, `node`.
        devices: Devices of a node.
        clock_hz: Observed clock [Hz].
        cores: SMs or cores, instead of a scope.
        dtype, accumulate, engine: Which peaks; None for all.
        gemm_size: N of a square product to bound.
        fixed_s: T0 to hide [s].
        latency_s: Latency for Little's law [s].
        in_flight_bytes: Bytes under way, with the latency [B].
    """

    scope: str = "device"
    devices: int | None = None
    clock_hz: float | None = None
    cores: int | None = None
    dtype: str | None = None
    accumulate: str | None = None
    engine: str | None = None
    gemm_size: int | None = None
    fixed_s: float | None = None
    latency_s: float | None = None
    in_flight_bytes: float | None = None

    def wants(self, dtype: str, accumulate: str, engine: str) -> bool:
        """Return whether a peak key is asked for."""
        asked = (self.dtype, self.accumulate, self.engine)
        return all(a is None or a == k for a, k in zip(asked, (dtype, accumulate, engine), strict=True))


def peak_document(sku: Sku, q: Question) -> dict[str, Any]:
    """Return derived beside declared peaks, what their ratio says, and the views that were asked for.

    Raises:
        UsageError: scope and cores together, or a family without cores and clock.
    """
    if q.cores is not None and q.scope != "device":
        raise UsageError("--cores and --scope both say how much of the package is meant", hint="give one of them")
    if q.devices is not None and q.scope != "node":
        raise UsageError("--devices says how large a node is", hint="--scope node --devices N")
    groups, share = _part(sku, q)
    family = sku.kind == "cpu-family"
    if family and (groups is None or q.clock_hz is None):
        raise UsageError(
            f"{sku.slug} is a family of processors", hint=f"mansard hardware peak {sku.slug} --cores N --clock '3 GHz'"
        )
    rows = [r for r in peak_rows(sku, clock_hz=q.clock_hz, groups=groups) if q.wants(*r.peak.key)]
    whole = groups is None
    clock = q.clock_hz or core_clock(sku)
    simd = [] if clock is None else [
        {"unit": u.unit.name, "engine": u.unit.engine, "dtype": u.dtype, "accumulate": u.accumulate,
         "flop_per_s": u.flop_per_s * share, "formula": of_share(u.formula, share), "note": u.unit.note or None, **receipt(u.unit.receipt)}
        for u in unit_rows(sku, clock_hz=clock, groups=groups)
        if (u.unit.width_bits or u.unit.fma_per_cycle) and q.wants(u.dtype, u.accumulate, u.unit.engine)
    ]  # fmt: skip
    found = {
        "name": sku.slug,
        "product": sku.name,
        "scope": "core" if q.cores is not None else q.scope,
        "cores": groups,
        "device": sku.package.device if q.scope == "device" else None,
        "clock_hz": q.clock_hz,
        "clock_from": "named by the user" if q.clock_hz is not None else "the clock of the vendor's peak, per row",
        "rows": [_peak_row(r, share, whole) for r in rows],
        "ratios_say": what_rows_say(rows) if whole and rows else [],
        "unit_peaks": simd,
        "partial_ceilings": [
            {"what": p.what, "ratio": p.ratio, "flop_per_s": p.flop_per_s * share, "dtype": p.dtype, "engine": p.engine}
            for p in partial_ceilings(sku, clock_hz=q.clock_hz, groups=groups)
            if (q.dtype or "f32") == p.dtype and q.engine in (None, p.engine)
        ],
        "notes": list(sku.notes),
    }
    found.update(_views(sku, q))
    return found


def _part(sku: Sku, q: Question) -> tuple[float | None, float]:
    """Return how many SMs or cores (None for all of the package) and the share of that which is meant."""
    if q.cores is not None:
        for unit in sku.units[:1]:
            if unit.groups is not None and q.cores > unit.groups:
                raise UsageError(f"{sku.slug} has {unit.groups} {unit.group}s, not {q.cores}")
        return float(q.cores), 1.0
    if q.scope == "core":
        return 1.0, 1.0
    if sku.kind == "cpu-family":
        return None, 1.0
    return None, scope_share(sku, q.scope, q.devices)


def _peak_row(row: PeakRow, share: float, whole: bool) -> dict[str, Any]:
    p = row.peak
    none = Unknown("a vendor declares no peak of a part of a package")
    return {
        "dtype": p.dtype, "accumulate": p.accumulate, "engine": p.engine, "dense": True,
        "derived_flop_per_s": row.derived * share, "declared_flop_per_s": row.declared * share if whole else none,
        "ratio": row.ratio if whole else none, "derivation_holds": row.holds, "clock_hz": row.clock_hz,
        "declared_clock_hz": p.clock_hz, "clock_basis": p.clock_basis, "formula": of_share(row.formula, share) or None,
        "difference": p.difference or None, **receipt(p.receipt),
    }  # fmt: skip


def _views(sku: Sku, q: Question) -> dict[str, Any]:
    """Return ridge points, cache ceilings and, where asked for, the bound of a product, T0 and Little's law."""
    if q.cores is not None:
        return {}
    scope = q.scope
    ridges = [
        r for r in _ridges(sku, scope, q.clock_hz, q.devices)
        if q.wants(r.compute.resource.dtype or "", r.compute.resource.accumulate or "", r.compute.resource.engine or "")
    ]  # fmt: skip
    found: dict[str, Any] = {"ridge_points": [r.to_json() for r in ridges], "matmul_in_cache": _pebbles(sku, q)}
    if q.gemm_size is not None:
        found["gemm"] = [_gemm(r, q.gemm_size) for r in ridges]
    if q.fixed_s is not None:
        found["hidden"] = [
            {"dtype": r["dtype"], "accumulate": r["accumulate"], "engine": r["engine"], "fixed_s": q.fixed_s, "share": 0.8,
             "gemm_size": hiding_gemm_size(fixed_s=q.fixed_s, flop_per_s=r["flop_per_s"])}
            for r in {(x["dtype"], x["accumulate"], x["engine"]): x for x in found["ridge_points"]}.values()
        ]  # fmt: skip
    if q.latency_s is not None:
        found["in_flight"] = _little(ceilings(sku, scope=scope, clock_hz=q.clock_hz, devices=q.devices), q)
    return found


def _gemm(ridge: Ridge, size: int) -> dict[str, Any]:
    r = ridge.compute.resource
    intensity = square_gemm_flop_per_byte(size, element_bytes=dtype_bytes(r.dtype or ""))
    by_memory = intensity * ridge.memory.value
    return {
        "size": size, "dtype": r.dtype, "accumulate": r.accumulate, "engine": r.engine,
        "level": ridge.memory.resource.level, "flop_per_byte": intensity,
        "attainable_flop_per_s": min(by_memory, ridge.compute.value),
        "bound": "memory" if by_memory < ridge.compute.value else "compute", "ridge_size": ridge.gemm_size,
    }  # fmt: skip


def _pebbles(sku: Sku, q: Question) -> list[dict[str, Any]]:
    types = [q.dtype] if q.dtype else ["f32"]
    return [
        {"level": m.level, "dtype": t, "capacity_bytes": m.capacity_bytes, "of": "one instance",
         "flop_per_byte": pebble_flop_per_byte(m.capacity_bytes, element_bytes=dtype_bytes(t))}
        for m in sku.memory[:-1] for t in types
    ]  # fmt: skip


def _little(paper: Ceilings, q: Question) -> list[dict[str, Any]]:
    found = []
    assert q.latency_s is not None
    for c in paper.ceilings:
        if c.resource.area not in (Area.MEMORY, Area.NETWORK, Area.HOST):
            continue
        row = {"what": c.resource.level or c.resource.link, "bytes_per_s": c.value, "latency_s": q.latency_s,
               "bytes_to_fill": bytes_in_flight(bytes_per_s=c.value, latency_s=q.latency_s)}  # fmt: skip
        if q.in_flight_bytes is not None:
            row["in_flight_bytes"] = q.in_flight_bytes
            row["reached_bytes_per_s"] = in_flight_bytes_per_s(
                bytes_in_flight=q.in_flight_bytes, latency_s=q.latency_s, limit_bytes_per_s=c.value
            )
        found.append(row)
    return found


def utilisation(
    achieved_flop_per_s: float,
    *,
    rows: list[dict[str, Any]] | None,
    peak_flop_per_s: float | None,
    dtype: str | None,
    missing: str = "",
) -> dict[str, Any]:
    """Return the share of a peak that a rate is; the rate stays valid without any peak.

    Args:
        achieved_flop_per_s: The rate [FLOP/s].
        rows: Rows of `peak_document` for the keys that were asked for; None where the product is not known.
        peak_flop_per_s: A peak that the user named [FLOP/s]; wins.
        dtype: The element type that was asked for.
        missing: Why the product is not known.

    Raises:
        UsageError: neither a peak nor an element type, or peaks of several accumulate types.
    """
    found: dict[str, Any] = {"achieved_flop_per_s": achieved_flop_per_s}
    if peak_flop_per_s is not None:
        return {**found, **_shared(achieved_flop_per_s, peak_flop_per_s), "peak_from": "named by the user"}
    needs = ('--peak "2250 TFLOP/s"', "a hardware file (docs/hardware.md)")
    if rows is None:
        return {**found, "status": "unknown_peak", "share": Unknown(missing, needs)}
    if dtype is None:
        raise UsageError("a share needs to know which peak", hint="--dtype bf16, or --peak '989 TFLOP/s'")
    chosen = one_peak(rows, dtype)
    if isinstance(chosen, Unknown):
        return {**found, "status": "no_published_peak", "share": Unknown(chosen.reason, needs)}
    row, value = chosen
    key = {k: row[k] for k in ("dtype", "accumulate", "engine", "dense", "source", "date", "certainty")}
    key |= {"kind": "derived" if is_known(row["derived_flop_per_s"]) and row["derivation_holds"] else "declared",
            "clock_hz": row["clock_hz"] or row["declared_clock_hz"]}  # fmt: skip
    return {
        **found,
        **_shared(achieved_flop_per_s, value),
        "peak_from": key,
        **_against_declared(achieved_flop_per_s, row),
    }


def no_peak(dtype: str) -> Unknown:
    """Return why a product has no peak of an element type."""
    return Unknown(f"no {dtype} peak is published for this product, and none is made from another element type")


def one_peak(rows: list[dict[str, Any]], dtype: str) -> tuple[dict[str, Any], float] | Unknown:
    """Return the one peak of an element type among rows of `peak_document`, of the matrix units where there are any.

    Raises:
        UsageError: the type has a peak for each of several accumulate types.
    """
    usable = [(r, value) for r in rows if r["dtype"] == dtype and (value := _best(r)) is not None]
    if not usable:
        return no_peak(dtype)
    engines = {r["engine"] for r, _ in usable}
    usable = [(r, v) for r, v in usable if r["engine"] == ("matrix" if "matrix" in engines else r["engine"])]
    values = [v for _, v in usable]
    if max(values) > 1.01 * min(values):
        listed = ", ".join(f"{r['accumulate']}: {v / 1e12:.4g} TFLOP/s" for r, v in usable)
        raise UsageError(f"{dtype} has a peak for each accumulate type ({listed})", hint="--accumulate f32")
    return usable[0]


def mixed(rows: list[dict[str, Any]], flop: Mapping[str, float]) -> dict[str, Any]:
    """Return the peak of work in several element types, with its parts.

    Parts on one engine take their times one after the other; the engines of a device can work at once, so the slower one
    decides.

    Args:
        rows: Rows of `peak_document` for all element types.
        flop: FLOP, or shares of it, by element type.

    Raises:
        UsageError: a type without a published peak.
    """
    peaks: dict[str, float] = {}
    engines: dict[str, dict[str, float]] = {}
    for dtype, work in flop.items():
        chosen = one_peak(rows, dtype)
        if isinstance(chosen, Unknown):
            raise UsageError(chosen.reason, hint="a mix needs the peak of every part")
        row, peaks[dtype] = chosen
        engines.setdefault(row["engine"], {})[dtype] = work
    total = sum(flop.values())
    parts = [{"dtype": d, "engine": e, "share_of_flop": f / total, "flop_per_s": peaks[d]}
             for e, works in engines.items() for d, f in works.items()]  # fmt: skip
    busy = [w for w in engines.values() if sum(w.values()) > 0.0]
    return {"parts": parts, "flop_per_s": min(total / sum(w.values()) * mixed_peak_flop_per_s(w, peaks) for w in busy)}


def _against_declared(achieved: float, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the share of the declared peak too, and what the clock has to do with the difference."""
    declared, rated, clock = row["declared_flop_per_s"], row["declared_clock_hz"], row["clock_hz"]
    if not is_known(declared):
        return {}
    against: dict[str, Any] = {"declared": {"flop_per_s": declared, "share": share_of(achieved, declared)}}
    if clock is not None and rated is not None and clock != rated and row["derivation_holds"]:
        split = shortfall(achieved_flop_per_s=achieved, declared_flop_per_s=declared, rated_hz=rated, clock_hz=clock)
        against["shortfall"] = {"share": split.share, "clock_ratio": split.clock_ratio, "program_ratio": split.program_ratio,
                                "clock_part": split.clock_part, "text": split.sentence}  # fmt: skip
    return against


def _best(row: Mapping[str, Any]) -> float | None:
    """Return the derived figure where the derivation holds, else the declared one."""
    if is_known(row["derived_flop_per_s"]) and row["derivation_holds"]:
        return float(row["derived_flop_per_s"])
    return float(row["declared_flop_per_s"]) if is_known(row["declared_flop_per_s"]) else None


def _shared(achieved: float, peak: float) -> dict[str, Any]:
    share = share_of(achieved, peak)
    return {"peak_flop_per_s": peak, "share": share, "status": "ok" if is_known(share) else "implausible"}


def checked_dtype(name: str | None) -> str | None:
    """Return the short name of an element type; None stays None."""
    return None if name is None else element_dtype(name)
