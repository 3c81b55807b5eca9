"""The `hardware` block of a configuration: declared ceilings, each with the line it stands on."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mansard.core.ceilings import Area, Ceiling, Kind, Resource
from mansard.core.dtypes import short_dtype
from mansard.core.errors import UsageError
from mansard.core.units import parse_quantity
from mansard.core.unknown import Unknown
from mansard.measure.config.common import SUITE_DTYPES
from mansard.measure.config.yamlfile import Value, config_error, shown, table_of, unknown_name

KEYS = ("tflops", "peak_tflops", "hbm_bw", "ici")
ICI_KEYS = ("peak_bw_gbps", "bidirectional")
LINK = "ici"


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A declared bandwidth over the bytes of one transfer.

    Args:
        points: `(size [B], rate [B/s])`, the smallest size first.
        source: Where it was written.
    """

    points: tuple[tuple[float, float], ...]
    source: str

    def at(self, size_bytes: float) -> float:
        """Return the rate at a size [B/s]: linear in bytes between two points, the nearest point outside.

        Source: the published suite's roofline.py interpolates in the same way.

        >>> curve = Curve(points=((1e6, 1.0e12), (3e6, 2.0e12)), source="")
        >>> curve.at(2e6), curve.at(10), curve.at(1e9)
        (1500000000000.0, 1000000000000.0, 2000000000000.0)
        """
        first, last = self.points[0], self.points[-1]
        if size_bytes <= first[0]:
            return first[1]
        for (x0, y0), (x1, y1) in itertools.pairwise(self.points):
            if size_bytes <= x1:
                return y0 + (y1 - y0) * (size_bytes - x0) / (x1 - x0)
        return last[1]

    def to_json(self) -> dict[str, Any]:
        """Return the element of `curves` in `ceilings.json`."""
        return {
            "resource": {"area": "memory"}, "kind": "declared", "x": "transfer_bytes", "unit": "B/s",
            "points": [list(p) for p in self.points], "source": self.source,
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """What the block says.

    Args:
        ceilings: Declared ceilings of one device.
        curve: Bandwidth over size, where several were given.
        notes: What a reader must know of how it was read.
    """

    ceilings: tuple[Ceiling, ...] = ()
    curve: Curve | None = None
    notes: tuple[str, ...] = ()


def read_hardware(block: Value, *, dtype: str | None, platform: str | None) -> Declared:
    """Return the declared ceilings of a `hardware` block.

    Args:
        block: The block.
        dtype: The global element type, which `peak_tflops` and a plain `tflops` belong to; None where none is given.
        platform: `cpu`, `gpu` or `tpu`; decides the name of the memory level and the scope.

    Raises:
        UsageError: an unknown key, a value that is no rate, or a plain peak without a global element type.
    """
    entries = table_of(block, "hardware")
    for key, value in entries.items():
        if key not in KEYS:
            raise unknown_name(value.at, "key", key, KEYS, within="hardware")
    scope = "node" if platform == "cpu" else "device"
    found: list[Ceiling] = []
    notes: list[str] = []
    if "tflops" in entries and "peak_tflops" in entries:
        raise config_error(entries["peak_tflops"].at, "both tflops and peak_tflops are given; keep one")
    for key in ("tflops", "peak_tflops"):
        if key in entries:
            found += _peaks(entries[key], key, dtype, scope)
    if "peak_tflops" in entries:
        notes.append(
            f"{entries['peak_tflops'].at}: hardware.peak_tflops is read as the declared dense peak of {dtype}; "
            "the published suite ignores this key"
        )
    curve = None
    if "hbm_bw" in entries:
        level = "dram" if platform == "cpu" else "hbm"
        ceiling, curve = _bandwidth(entries["hbm_bw"], level, scope)
        found.append(ceiling)
    if "ici" in entries:
        ceiling, note = _ici(entries["ici"])
        found.append(ceiling)
        notes.append(note)
    return Declared(ceilings=tuple(found), curve=curve, notes=tuple(notes))


def rate_of(value: Value, what: str, unit: float, dimension: str) -> float:
    """Return a positive rate in SI units: a bare number times `unit`, or text with a unit.

    Raises:
        UsageError: it is neither.
    """
    data = value.data
    if isinstance(data, str):
        try:
            rate = parse_quantity(data, dimension)
        except UsageError as error:
            raise config_error(value.at, f"{what}: {error.message}", hint=error.hint) from error
    elif isinstance(data, int | float) and not isinstance(data, bool):
        rate = float(data) * unit
    else:
        raise config_error(value.at, f"{what} must be a number, got {shown(value)}")
    if not 0 < rate < math.inf:
        raise config_error(value.at, f"{what} must be positive and finite, got {data!r}")
    return rate


def _peaks(value: Value, key: str, dtype: str | None, scope: str) -> list[Ceiling]:
    if value.is_table:
        return [_peak(item, name, scope) for name, item in table_of(value, f"hardware.{key}").items()]
    if dtype is None:
        raise config_error(
            value.at,
            f"hardware.{key} is one number, and no global dtype says which element type it belongs to",
            hint=f"write {key}: {{bfloat16: 459.0}}, or global: {{dtype: bfloat16}}",
        )
    return [_peak(value, dtype, scope)]


def _peak(value: Value, dtype: str, scope: str) -> Ceiling:
    try:
        short = SUITE_DTYPES.get(dtype.lower()) or short_dtype(dtype)
    except UsageError as error:
        raise config_error(value.at, f"hardware.tflops: {error.message}", hint=error.hint) from error
    accumulate = {"f": "f32", "b": "f32", "t": "f32", "i": "i32", "u": "i32"}.get(short[0], short)
    resource = Resource(
        area=Area.COMPUTE, dtype=short, accumulate="f64" if short == "f64" else accumulate, engine="matrix"
    )
    return Ceiling(
        resource=resource, value=rate_of(value, f"hardware.tflops of {dtype}", 1e12, "flop_per_s"), unit="FLOP/s",
        kind=Kind.DECLARED, scope=scope, source=str(value.at),
    )  # fmt: skip


def _bandwidth(value: Value, level: str, scope: str) -> tuple[Ceiling, Curve | None]:
    """Return the bandwidth ceiling, and the curve where one was given; the ceiling is its highest point."""
    curve = None
    if value.is_table or value.is_list:
        curve = Curve(points=_points(value), source=str(value.at))
        rate = max(y for _, y in curve.points)
    else:
        rate = rate_of(value, "hardware.hbm_bw", 1e9, "bytes_per_s")
    ceiling = Ceiling(
        resource=Resource(area=Area.MEMORY, level=level), value=rate, unit="B/s", kind=Kind.DECLARED, scope=scope,
        conditions={"curve": [list(p) for p in curve.points]} if curve else {}, source=str(value.at),
    )  # fmt: skip
    return ceiling, curve


def _points(value: Value) -> tuple[tuple[float, float], ...]:
    pairs: list[tuple[float, float]] = []
    if value.is_table:
        for size, rate in value.data.items():
            try:
                pairs.append((float(size), rate_of(rate, f"hardware.hbm_bw at {size} bytes", 1e9, "bytes_per_s")))
            except ValueError as error:
                raise config_error(rate.at, f"hardware.hbm_bw: {size!r} is not a number of bytes") from error
    else:
        for item in value.data:
            if not item.is_list or len(item.data) != 2 or not isinstance(item.data[0].data, int | float):
                raise config_error(item.at, f"hardware.hbm_bw: expected [bytes, GB/s], got {shown(item)}")
            pairs.append((float(item.data[0].data), rate_of(item.data[1], "hardware.hbm_bw", 1e9, "bytes_per_s")))
    if not pairs:
        raise config_error(value.at, "hardware.hbm_bw has no points")
    pairs.sort()
    for (x0, _), (x1, _) in itertools.pairwise(pairs):
        if x0 == x1:
            raise config_error(value.at, f"hardware.hbm_bw has two rates at {x0:g} bytes")
    if pairs[0][0] < 0:
        raise config_error(value.at, "hardware.hbm_bw has a negative size")
    return tuple(pairs)


def _ici(value: Value) -> tuple[Ceiling, str]:
    entries: Mapping[str, Value] = table_of(value, "hardware.ici")
    for key, item in entries.items():
        if key not in ICI_KEYS:
            raise unknown_name(item.at, "key", key, ICI_KEYS, within="hardware.ici")
    if "peak_bw_gbps" not in entries:
        raise config_error(value.at, "hardware.ici has no peak_bw_gbps")
    both = entries.get("bidirectional")
    if both is not None and not isinstance(both.data, bool):
        raise config_error(both.at, f"hardware.ici.bidirectional must be true or false, got {shown(both)}")
    rate = rate_of(entries["peak_bw_gbps"], "hardware.ici.peak_bw_gbps", 1e9, "bytes_per_s")
    halved = both is not None and both.data is True
    ceiling = Ceiling(
        resource=Resource(area=Area.NETWORK, link=LINK), value=rate / 2 if halved else rate, unit="B/s",
        kind=Kind.DECLARED, scope="device", source=str(value.at),
        conditions={"direction": "one way", "written_as": "both directions together" if halved else "one way"},
    )  # fmt: skip
    words = "both directions together, so half of it is one way" if halved else "one way"
    return ceiling, f"{value.at}: hardware.ici.peak_bw_gbps is read in GB/s, {words}"


def bandwidth_at(declared: Declared, size_bytes: float) -> float | Unknown:
    """Return the declared memory bandwidth for a transfer of `size_bytes` [B/s].

    >>> isinstance(bandwidth_at(Declared(), 1e6), Unknown)
    True
    """
    if declared.curve is not None:
        return declared.curve.at(size_bytes)
    rates: Sequence[float] = [c.value for c in declared.ceilings if c.resource.area is Area.MEMORY]
    if rates:
        return rates[0]
    return Unknown("the configuration declares no hbm_bw", ("hardware.hbm_bw",))
