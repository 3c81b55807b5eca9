"""The records of the catalogue: a product, its units, clocks, peaks, memories, links and identities.

Figures are those of one package (a board, a socket, a chip as it is sold). `Package.devices` says how many devices the
runtime sees in it; `ceilings()` divides. Peaks are dense; there is no field for a sparse one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mansard.core.dtypes import dtype_bytes
from mansard.core.unknown import Unknown

CERTAINTIES = ("checked", "reported", "from memory")
ENGINES = ("matrix", "vector", "scalar")
KINDS = ("gpu", "tpu", "accelerator", "cpu", "cpu-family")
#: How far a derived peak may be from the declared one before the file has to say why.
DERIVED_TOLERANCE_RATIO = 0.01
#: Beyond this the derivation describes another chip than the peak, and no ceiling is made from it.
DERIVED_LIMIT_RATIO = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """Where a figure comes from.

    Args:
        source: Document or page.
        date: When it was taken from there, or the date of the document (year, or year-month).
        certainty: `checked` against the vendor, `reported` by others, or `from memory`.
    """

    source: str
    date: str
    certainty: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A kind of arithmetic unit.

    Args:
        name: Such as `tensor core`, `CUDA core`, `MXU`, `avx512`.
        engine: `matrix` or `vector`.
        group: What holds the units: `SM`, `CU`, `core`, `TensorCore`.
        groups: How many groups one package has; None for a family, whose products differ.
        per_group: Units per group.
        width_bits: Width of one unit, for SIMD: lanes are width over element size.
        dtypes: Element types that a SIMD unit multiplies and adds.
        fma_per_cycle: Multiply-adds of one unit per cycle by element type, where the width does not give them.
        tile: Size of the matrix that one unit works on, in words.
        note: What the numbers alone do not say.
        receipt: Source.
    """

    name: str
    engine: str
    group: str
    groups: int | None
    per_group: int
    width_bits: int | None
    dtypes: tuple[str, ...]
    fma_per_cycle: Mapping[str, float]
    tile: str
    note: str
    receipt: Receipt

    def fma(self, dtype: str) -> float | Unknown:
        """Return how many elements of `dtype` one unit multiplies and adds per cycle."""
        if dtype in self.fma_per_cycle:
            return self.fma_per_cycle[dtype]
        if self.width_bits is None or dtype not in self.dtypes:
            return Unknown(f"the unit {self.name!r} has no stated width for {dtype}", ("fma_per_cycle in the file",))
        return self.width_bits / 8.0 / dtype_bytes(dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """A clock of a product: `base`, `boost`, `all-core boost`, `matrix`, ... [Hz]."""

    name: str
    hz: float
    receipt: Receipt


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """One dense peak of one package.

    Args:
        dtype, accumulate, engine: The key.
        flop_per_s: Declared by the vendor [FLOP/s]; None where the vendor declares none.
        unit: Name of the unit that reaches it.
        fma_per_cycle: Multiply-adds of one such unit per cycle; None means its SIMD lanes.
        clock_hz: The clock the vendor's peak uses [Hz].
        clock_basis: `independent`, or `solved` if the clock was worked out from the peak itself.
        difference: Why derived and declared differ by more than 1 %.
        receipt: Source.
    """

    dtype: str
    accumulate: str
    engine: str
    flop_per_s: float | None
    unit: str | None
    fma_per_cycle: float | None
    clock_hz: float | None
    clock_basis: str | None
    difference: str
    receipt: Receipt

    @property
    def key(self) -> tuple[str, str, str]:
        """`(dtype, accumulate, engine)`."""
        return (self.dtype, self.accumulate, self.engine)


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """One memory level of one package.

    Args:
        level: `l1`, `l2`, `l3`, `hbm`, `dram`, ... from the nearest to the farthest.
        capacity_bytes: Capacity of one instance [B]; for memory that is bought by the module, the most there can be.
        configurable: Whether the capacity depends on what was bought.
        usable_bytes: What the driver leaves [B], where known.
        bytes_per_s: Bandwidth of all instances together [B/s], where known.
        bytes_per_cycle: Of one instance and core cycle [B], where the level runs at the core's clock.
        granularity_bytes: Least transfer [B], where known.
        granularity_receipt: Its source, where it is another.
        per: What has one instance: `group` (core, SM), `die` or `package`.
        note: Conditions.
        receipt: Source.
    """

    level: str
    capacity_bytes: float
    configurable: bool
    usable_bytes: float | None
    bytes_per_s: float | None
    bytes_per_cycle: float | None
    granularity_bytes: float | None
    granularity_receipt: Receipt | None
    per: str
    note: str
    receipt: Receipt


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A link of one package.

    Args:
        name: How it is called in demands and reports.
        role: `peer` (to its like) or `host` (to the host processor).
        count: Number of links, where known.
        bytes_per_s: One way, all links of the package together [B/s].
        topology: Such as `switched`, `mesh`, `2D torus`.
        latency_s: One-way latency [s], where known.
        receipt: Source.
    """

    name: str
    role: str
    count: int | None
    bytes_per_s: float
    topology: str
    latency_s: float | None
    receipt: Receipt


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """A public on-demand price of one package [USD per hour], with where and when."""

    usd_per_hour: float
    offer: str
    receipt: Receipt


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """What is sold, and what a runtime sees of it.

    Args:
        dies: Compute dies.
        devices: Devices the runtime shows; each has its own share of everything.
        device: What one device is, in words.
        node_packages: Packages in the usual node, where the product comes in one.
        slices: What slices of it are called before the number, such as `v5litepod`.
        slice_counts: What the number of a slice counts: `cores` or `chips`.
        receipt: Source.
    """

    dies: int
    devices: int
    device: str
    node_packages: int | None
    slices: tuple[str, ...]
    slice_counts: str
    receipt: Receipt


@dataclass(frozen=True, slots=True, kw_only=True)
class Exemption:
    """A rule of the catalogue that a product breaks, and why."""

    rule: str
    dtype: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What identifies a product exactly.

    Args:
        names: Product names as drivers and vendors write them.
        pci: `vendor:device` in hexadecimal.
        cpuid: `vendor/family/model` of x86 or `implementer/part` of Arm, as in /proc/cpuinfo, for CPU families.
        multiprocessors: What one device reports (SMs, compute units), to check a match with.
        receipt: Source.
    """

    names: tuple[str, ...]
    pci: tuple[str, ...]
    cpuid: tuple[str, ...]
    multiprocessors: int | None
    receipt: Receipt


@dataclass(frozen=True, slots=True, kw_only=True)
class Sku:
    """One product of the catalogue, or one file of a user."""

    slug: str
    name: str
    vendor: str
    kind: str
    chip: str
    architecture: str
    identity: Identity
    package: Package
    units: tuple[Unit, ...] = ()
    clocks: tuple[Clock, ...] = ()
    peaks: tuple[Peak, ...] = ()
    memory: tuple[Memory, ...] = ()
    links: tuple[Link, ...] = ()
    prices: tuple[Price, ...] = ()
    tdp_w: float | None = None
    tdp_receipt: Receipt | None = None
    exemptions: tuple[Exemption, ...] = ()
    notes: tuple[str, ...] = ()
    origin: str = ""

    def unit(self, name: str) -> Unit:
        """Return the unit of that name; the schema guarantees that peaks name units that exist."""
        return next(u for u in self.units if u.name == name)

    def clock(self, name: str) -> float | Unknown:
        """Return a clock by name [Hz]."""
        for clock in self.clocks:
            if clock.name == name:
                return clock.hz
        return Unknown(f"{self.slug} has no clock {name!r} on record", ("--clock",))

    @property
    def outer_memory(self) -> Memory | None:
        """The farthest memory level: HBM, GDDR or DRAM."""
        return self.memory[-1] if self.memory else None

    def to_json(self) -> dict[str, Any]:
        """Return short name, product, maker and kind; `describe.show_document` has the rest with receipts."""
        return {
            "name": self.slug, "product": self.name, "vendor": self.vendor, "kind": self.kind, "origin": self.origin,
        }  # fmt: skip
