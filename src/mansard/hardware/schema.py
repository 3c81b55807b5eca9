"""From a TOML file to a `Sku`: every key is known, every number has a source, and errors name the place."""

from __future__ import annotations

import difflib
import math
import re
import tomllib
from collections.abc import Mapping
from typing import Any

from mansard.core.dtypes import short_dtype
from mansard.core.errors import InputError, UsageError
from mansard.hardware.records import (
    CERTAINTIES,
    ENGINES,
    KINDS,
    Clock,
    Exemption,
    Identity,
    Link,
    Memory,
    Package,
    Peak,
    Price,
    Receipt,
    Sku,
    Unit,
)

SCHEMA = "hardware/1"
SLUG = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_SOURCED = ("source", "date", "certainty")
_KEYS: dict[str, tuple[str, ...]] = {
    "": ("schema", "slug", "name", "vendor", "kind", "chip", "architecture", "notes", "identity", "package", "sources",
         "units", "clocks", "peaks", "memory", "links", "prices", "power", "exemptions"),
    "identity": ("names", "pci", "cpuid", "multiprocessors", *_SOURCED),
    "package": ("dies", "devices", "device", "node_packages", "slices", "slice_counts", *_SOURCED),
    "sources": ("source", "date", "certainty"),
    "units": ("name", "engine", "group", "groups", "per_group", "width_bits", "dtypes", "fma_per_cycle", "tile", "note", *_SOURCED),
    "clocks": ("name", "hz", *_SOURCED),
    "peaks": ("dtype", "accumulate", "engine", "flop_per_s", "unit", "fma_per_cycle", "clock_hz", "clock_basis",
              "difference", *_SOURCED),
    "memory": ("level", "capacity_bytes", "configurable", "usable_bytes", "bytes_per_s", "bytes_per_cycle",
               "granularity_bytes", "granularity_source", "per", "note", *_SOURCED),
    "links": ("name", "role", "count", "bytes_per_s", "topology", "latency_s", *_SOURCED),
    "prices": ("usd_per_hour", "offer", *_SOURCED),
    "power": ("tdp_w", *_SOURCED),
    "exemptions": ("rule", "dtype", "reason"),
}  # fmt: skip


class _Table:
    """One table of the file, read key by key with errors that name the place."""

    def __init__(self, data: Any, path: str, reader: _Reader, keys: str) -> None:
        self.path, self.reader = path, reader
        if not isinstance(data, dict):
            reader.fail(path, f"expected a table, got {type(data).__name__}")
        self.data: dict[str, Any] = data
        for key in data:
            if key not in _KEYS[keys]:
                near = difflib.get_close_matches(str(key), _KEYS[keys], n=1)
                known = ", ".join(_KEYS[keys])
                reader.fail(
                    f"{path}.{key}".lstrip("."),
                    "unknown key" + (f"; did you mean {near[0]!r}?" if near else f"; known here: {known}"),
                )

    def text(self, key: str, *, default: str | None = None, choices: tuple[str, ...] = ()) -> str:
        value = self.data.get(key, default)
        where = f"{self.path}.{key}".lstrip(".")
        if value is None:
            self.reader.fail(where, "missing")
        if not isinstance(value, str) or (not value.strip() and default is None):
            self.reader.fail(where, f"expected text, got {value!r}")
        if choices and value not in choices:
            self.reader.fail(where, f"got {value!r}, expected one of {', '.join(choices)}")
        return str(value)

    def number(self, key: str) -> float | None:
        value = self.data.get(key)
        where = f"{self.path}.{key}".lstrip(".")
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.reader.fail(where, f"expected a number in the SI unit of the key, got {value!r}")
        if not math.isfinite(value) or value <= 0:
            self.reader.fail(where, f"expected a positive finite number, got {value!r}")
        return float(value)

    def count(self, key: str) -> int | None:
        value = self.number(key)
        if value is None:
            return None
        if value != int(value):
            self.reader.fail(f"{self.path}.{key}".lstrip("."), f"expected a whole number, got {value!r}")
        return int(value)

    def needed(self, key: str) -> float:
        value = self.number(key)
        if value is None:
            self.reader.fail(f"{self.path}.{key}".lstrip("."), "missing")
        assert value is not None
        return value

    def flag(self, key: str, *, default: bool) -> bool:
        value = self.data.get(key, default)
        if not isinstance(value, bool):
            self.reader.fail(f"{self.path}.{key}".lstrip("."), f"expected true or false, got {value!r}")
        return bool(value)

    def texts(self, key: str) -> tuple[str, ...]:
        value = self.data.get(key, [])
        where = f"{self.path}.{key}".lstrip(".")
        if not isinstance(value, list) or not all(isinstance(v, str) and v.strip() for v in value):
            self.reader.fail(where, f"expected a list of texts, got {value!r}")
        return tuple(value)

    def dtype(self, key: str) -> str:
        name = self.text(key)
        return self.reader.dtype(name, f"{self.path}.{key}")

    def receipt(self, key: str = "source") -> Receipt:
        """Return the source of this table: a name of `[sources]`, or the text itself with date and certainty."""
        named = self.reader.sources.get(self.text(key))
        if key != "source":
            if named is None:
                self.reader.fail(f"{self.path}.{key}", f"no [sources.{self.text(key)}] in this file")
            assert named is not None
            return named
        if named is not None and "date" not in self.data and "certainty" not in self.data:
            return named
        source = named.source if named else self.text("source")
        date = self.text("date", default=named.date if named else None)
        certainty = self.text("certainty", default=named.certainty if named else None, choices=CERTAINTIES)
        return Receipt(source=source, date=date, certainty=certainty)


class _Reader:
    """Reads one file."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.sources: dict[str, Receipt] = {}

    def fail(self, path: str, problem: str) -> None:
        place = f" at {path}" if path else ""
        raise InputError(
            f"{self.where}{place}: {problem}", hint="docs/hardware.md lists the keys of a hardware file", code="schema"
        )

    def dtype(self, name: str, path: str) -> str:
        try:
            return short_dtype(name)
        except UsageError as error:
            self.fail(path, f"{error.message}; {error.hint}")
            raise

    def tables(self, data: Mapping[str, Any], key: str) -> list[_Table]:
        items = data.get(key, [])
        if not isinstance(items, list):
            self.fail(key, f"expected [[{key}]] tables, got {type(items).__name__}")
        return [_Table(item, f"{key}[{n}]", self, key) for n, item in enumerate(items)]


def parse_toml(text: str, where: str) -> dict[str, Any]:
    """Return the tables of a TOML text.

    Raises:
        InputError: not TOML; the message has the line.
    """
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"{where} is not valid TOML: {error}", hint="see docs/hardware.md", code="toml") from None


def sku_from_toml(text: str, *, where: str) -> Sku:
    """Return the product that a TOML text describes.

    Args:
        text: The content of a hardware file.
        where: Its name, for messages and receipts.

    Raises:
        InputError: not TOML, an unknown or missing key, a wrong type or value, a number without a source.
    """
    reader = _Reader(where)
    top = _Table(parse_toml(text, where), "", reader, "")
    if top.text("schema") != SCHEMA:
        reader.fail("schema", f"got {top.text('schema')!r}, this version reads {SCHEMA!r}")
    _read_sources(top, reader)
    slug = top.text("slug")
    if not SLUG.fullmatch(slug) or len(slug) > 64:
        reader.fail("slug", f"expected lower-case words joined by -, got {slug!r}")
    units = tuple(_unit(t) for t in reader.tables(top.data, "units"))
    power = _Table(top.data["power"], "power", reader, "power") if "power" in top.data else None
    sku = Sku(
        slug=slug,
        name=top.text("name"),
        vendor=top.text("vendor"),
        kind=top.text("kind", choices=KINDS),
        chip=top.text("chip", default=""),
        architecture=top.text("architecture", default=""),
        identity=_identity(_Table(top.data.get("identity"), "identity", reader, "identity")),
        package=_package(_Table(top.data.get("package"), "package", reader, "package")),
        units=units,
        clocks=tuple(
            Clock(name=t.text("name"), hz=t.needed("hz"), receipt=t.receipt())
            for t in reader.tables(top.data, "clocks")
        ),
        peaks=tuple(_peak(t, units) for t in reader.tables(top.data, "peaks")),
        memory=tuple(_memory(t) for t in reader.tables(top.data, "memory")),
        links=tuple(_link(t) for t in reader.tables(top.data, "links")),
        prices=tuple(
            Price(usd_per_hour=t.needed("usd_per_hour"), offer=t.text("offer"), receipt=t.receipt())
            for t in reader.tables(top.data, "prices")
        ),
        tdp_w=power.needed("tdp_w") if power else None,
        tdp_receipt=power.receipt() if power else None,
        exemptions=tuple(
            Exemption(rule=t.text("rule", choices=("monotone",)), dtype=t.dtype("dtype"), reason=t.text("reason"))
            for t in reader.tables(top.data, "exemptions")
        ),
        notes=top.texts("notes"),
        origin=where,
    )
    _no_doubles(sku, reader)
    return sku


def _read_sources(top: _Table, reader: _Reader) -> None:
    sources = top.data.get("sources", {})
    if not isinstance(sources, dict):
        reader.fail("sources", "expected [sources.NAME] tables")
    for name, data in sources.items():
        table = _Table(data, f"sources.{name}", reader, "sources")
        reader.sources[name] = Receipt(
            source=table.text("source"),
            date=table.text("date"),
            certainty=table.text("certainty", choices=CERTAINTIES),
        )


def _identity(t: _Table) -> Identity:
    pci = t.texts("pci")
    for value in pci:
        if not re.fullmatch(r"[0-9a-f]{4}:[0-9a-f]{4}", value):
            t.reader.fail("identity.pci", f"expected vendor:device in hexadecimal like '10de:2330', got {value!r}")
    return Identity(
        names=t.texts("names"),
        pci=pci,
        cpuid=t.texts("cpuid"),
        multiprocessors=t.count("multiprocessors"),
        receipt=t.receipt(),
    )


def _package(t: _Table) -> Package:
    dies, devices = t.count("dies"), t.count("devices")
    if dies is None or devices is None:
        t.reader.fail("package", "dies and devices are missing: state how many, even where it is 1")
    assert dies is not None
    assert devices is not None
    return Package(
        dies=dies,
        devices=devices,
        device=t.text("device", default="the package"),
        node_packages=t.count("node_packages"),
        slices=t.texts("slices"),
        slice_counts=t.text("slice_counts", default="", choices=("", "cores", "chips")),
        receipt=t.receipt(),
    )


def _unit(t: _Table) -> Unit:
    per_group = t.count("per_group")
    if per_group is None:
        t.reader.fail(f"{t.path}.per_group", "missing")
    assert per_group is not None
    return Unit(
        name=t.text("name"),
        engine=t.text("engine", choices=ENGINES),
        group=t.text("group"),
        groups=t.count("groups"),
        per_group=per_group,
        width_bits=t.count("width_bits"),
        dtypes=tuple(t.reader.dtype(d, f"{t.path}.dtypes") for d in t.texts("dtypes")),
        fma_per_cycle=_fma(t),
        tile=t.text("tile", default=""),
        note=t.text("note", default=""),
        receipt=t.receipt(),
    )


def _fma(t: _Table) -> dict[str, float]:
    """Return multiply-adds per cycle by element type, from an inline table."""
    data, where = t.data.get("fma_per_cycle", {}), f"{t.path}.fma_per_cycle"
    if not isinstance(data, dict):
        t.reader.fail(where, f"expected {{ dtype = number }}, got {data!r}")
    found = {}
    for name, value in data.items():
        good = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
        if not good:
            t.reader.fail(f"{where}.{name}", f"expected a positive number, got {value!r}")
        found[t.reader.dtype(name, where)] = float(value)
    return found


def _peak(t: _Table, units: tuple[Unit, ...]) -> Peak:
    unit = t.text("unit", default="") or None
    if unit is not None and unit not in {u.name for u in units}:
        known = ", ".join(repr(u.name) for u in units) or "none"
        t.reader.fail(f"{t.path}.unit", f"no unit {unit!r} in this file; there are: {known}")
    declared, clock = t.number("flop_per_s"), t.number("clock_hz")
    if declared is None and (unit is None or clock is None):
        t.reader.fail(t.path, "neither flop_per_s nor unit and clock_hz: nothing to make a peak from")
    basis = t.text("clock_basis", default="", choices=("", "independent", "solved")) or None
    if clock is not None and basis is None:
        t.reader.fail(f"{t.path}.clock_basis", "missing: 'independent', or 'solved' if worked out from the peak")
    return Peak(
        dtype=t.dtype("dtype"),
        accumulate=t.dtype("accumulate"),
        engine=t.text("engine", choices=ENGINES),
        flop_per_s=declared,
        unit=unit,
        fma_per_cycle=t.number("fma_per_cycle"),
        clock_hz=clock,
        clock_basis=basis,
        difference=t.text("difference", default=""),
        receipt=t.receipt(),
    )


def _memory(t: _Table) -> Memory:
    return Memory(
        level=t.text("level"),
        capacity_bytes=t.needed("capacity_bytes"),
        configurable=t.flag("configurable", default=False),
        usable_bytes=t.number("usable_bytes"),
        bytes_per_s=t.number("bytes_per_s"),
        bytes_per_cycle=t.number("bytes_per_cycle"),
        granularity_bytes=t.number("granularity_bytes"),
        granularity_receipt=t.receipt("granularity_source") if "granularity_source" in t.data else None,
        per=t.text("per", choices=("group", "die", "package")),
        note=t.text("note", default=""),
        receipt=t.receipt(),
    )


def _link(t: _Table) -> Link:
    return Link(
        name=t.text("name"),
        role=t.text("role", choices=("peer", "host")),
        count=t.count("count"),
        bytes_per_s=t.needed("bytes_per_s"),
        topology=t.text("topology", default=""),
        latency_s=t.number("latency_s"),
        receipt=t.receipt(),
    )


def _no_doubles(sku: Sku, reader: _Reader) -> None:
    found: tuple[tuple[str, list[tuple[str, ...]]], ...] = (
        ("peaks", [(*p.key, p.unit or "") for p in sku.peaks]),
        ("memory", [(m.level,) for m in sku.memory]),
        ("units", [(u.name,) for u in sku.units]),
        ("links", [(link.name,) for link in sku.links]),
        ("clocks", [(c.name,) for c in sku.clocks]),
    )
    for what, keys in found:
        for key in keys:
            if keys.count(key) > 1:
                reader.fail(what, f"{' '.join(key).strip()!r} is there twice")
