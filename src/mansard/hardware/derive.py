"""Peaks from units x width x multiply-adds x 2 x clock, beside what the vendor declares, and what the ratio says.

One formula serves SIMD pipes of any ISA, CUDA and stream cores, tensor and matrix cores, and systolic arrays. A multiply-add
is 2 FLOP.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mansard.core.dtypes import dtype_bytes
from mansard.core.errors import UsageError
from mansard.core.units import format_hz, format_ratio
from mansard.core.unknown import Unknown, is_known
from mansard.hardware.records import DERIVED_LIMIT_RATIO, DERIVED_TOLERANCE_RATIO, Peak, Sku, Unit


def derive_peak(*, units: float, width: float, clock_hz: float, fma_per_cycle: float = 1.0) -> float:
    """Return the peak of a set of like units [FLOP/s].

    Args:
        units: How many units: pipes x cores, or tensor cores x SMs.
        width: Multiply-adds that one unit does at once: SIMD lanes, or the products of a matrix unit.
        clock_hz: Clock [Hz].
        fma_per_cycle: Starts per cycle: 1 if fully pipelined, 0.5 if an instruction takes two passes.

    Returns:
        units x width x fma_per_cycle x 2 x clock [FLOP/s].

    Assumes: every unit starts a multiply-add in every cycle.
    Source: Hager and Wellein, Introduction to High Performance Computing for Scientists and Engineers, 2010, section 1.2.

    Grace: 72 cores x 4 pipes, 128 bits hold 4 floats. H100: 132 SMs x 4 tensor cores, 512 products in bf16.

    >>> derive_peak(units=72 * 4, width=4, clock_hz=3.1e9) / 1e12
    7.1424
    >>> round(derive_peak(units=132 * 4, width=512, clock_hz=1.98e9) / 1e12, 1)
    1070.5
    """
    for name, value in (("units", units), ("width", width), ("clock_hz", clock_hz), ("fma_per_cycle", fma_per_cycle)):
        if not (math.isfinite(value) and value > 0):
            raise UsageError(f"{name} must be positive and finite, got {value!r}")
    return units * width * fma_per_cycle * 2.0 * clock_hz


def simd_lanes(width_bits: float, dtype: str) -> float:
    """Return how many elements of `dtype` a register of `width_bits` holds.

    >>> simd_lanes(128, "f32"), simd_lanes(512, "f64")
    (4.0, 8.0)
    """
    return width_bits / 8.0 / dtype_bytes(dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakRow:
    """One peak of a package: what the vendor declares beside what its units give.

    Args:
        peak: The row of the file.
        declared: [FLOP/s] or `Unknown`.
        derived: At `clock_hz` [FLOP/s] or `Unknown`.
        clock_hz: The clock of the derived figure [Hz], where there is one.
        formula: The derivation with its numbers.
        holds: Whether the derivation describes the declared chip: both agree at the vendor's clock, or only one is known.
    """

    peak: Peak
    declared: float | Unknown
    derived: float | Unknown
    clock_hz: float | None
    formula: str
    holds: bool

    @property
    def ratio(self) -> float | Unknown:
        """Derived over declared."""
        return self.derived / self.declared


def fma_of(peak: Peak, unit: Unit) -> float | Unknown:
    """Return the multiply-adds of one unit per cycle for a peak."""
    return peak.fma_per_cycle if peak.fma_per_cycle is not None else unit.fma(peak.dtype)


def peak_row(sku: Sku, peak: Peak, *, clock_hz: float | None = None, groups: float | None = None) -> PeakRow:
    """Return declared and derived figures of one peak of the package.

    Args:
        sku: The product.
        peak: One of its peaks.
        clock_hz: Clock for the derived figure; None takes the one the vendor's peak uses.
        groups: How many SMs or cores; None takes the package's.
    """
    declared: float | Unknown = (
        peak.flop_per_s
        if peak.flop_per_s is not None
        else Unknown(f"the vendor declares no {peak.dtype} {peak.engine} peak for {sku.name}", ("--peak",))
    )
    clock = clock_hz if clock_hz is not None else peak.clock_hz
    derived, formula = _derived(sku, peak, clock, groups)
    holds = True
    if peak.flop_per_s is not None:
        at_rated, _ = _derived(sku, peak, peak.clock_hz, None)
        holds = not is_known(at_rated) or abs(at_rated / peak.flop_per_s - 1.0) <= DERIVED_LIMIT_RATIO
        if clock_hz is not None and not is_known(derived) and peak.clock_hz is not None:
            # Without units the peak still follows the clock it was given for.
            derived = peak.flop_per_s * clock_hz / peak.clock_hz
            formula = f"{peak.flop_per_s:.4g} x {clock_hz:.4g} Hz / {peak.clock_hz:.4g} Hz"
    return PeakRow(
        peak=peak,
        declared=declared,
        derived=derived,
        clock_hz=clock if is_known(derived) else None,
        formula=formula,
        holds=holds,
    )


def _derived(sku: Sku, peak: Peak, clock: float | None, groups: float | None) -> tuple[float | Unknown, str]:
    if peak.unit is None:
        return Unknown(f"the units behind {sku.name}'s {peak.dtype} {peak.engine} peak are not on record", ()), ""
    unit = sku.unit(peak.unit)
    count = groups if groups is not None else unit.groups
    fma = fma_of(peak, unit)
    if not is_known(fma):
        return fma, ""
    if count is None:
        return Unknown(f"{sku.name} is a family: its products differ in the number of {unit.group}s", ("--cores",)), ""
    if clock is None:
        return Unknown(
            f"the clock behind {sku.name}'s {peak.dtype} {peak.engine} peak is not on record", ("--clock",)
        ), ""
    text = f"{count:g} {unit.group} x {unit.per_group} {unit.name} x {fma:g} x 2 x {format_hz(clock)}"
    return derive_peak(units=count * unit.per_group, width=fma, clock_hz=clock), text


def peak_rows(sku: Sku, *, clock_hz: float | None = None, groups: float | None = None) -> tuple[PeakRow, ...]:
    """Return all peaks of a package, in the order of the file."""
    return tuple(peak_row(sku, p, clock_hz=clock_hz, groups=groups) for p in sku.peaks)


def of_share(formula: str, share: float) -> str:
    """Return a formula with the part of the package it stands for: `/ 2` for one die of two, `x 8` for a node of eight."""
    if not formula or share == 1.0:
        return formula
    return f"{formula} x {share:g}" if share > 1.0 else f"{formula} / {1.0 / share:g}"


#: What products of an element type are summed in on SIMD and matrix units of processors.
ACCUMULATE = {"f64": "f64", "f32": "f32", "f16": "f16", "bf16": "f32", "i8": "i32"}


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitRow:
    """The peak of one unit kind for one element type: any ISA, any type, one core or all.

    Args:
        unit: The unit, such as `avx2`.
        dtype, accumulate: The key.
        flop_per_s: [FLOP/s] of `groups` cores.
        formula: The derivation with its numbers.
    """

    unit: Unit
    dtype: str
    accumulate: str
    flop_per_s: float
    formula: str


def unit_rows(sku: Sku, *, clock_hz: float, groups: float | None = None) -> tuple[UnitRow, ...]:
    """Return the peak of every unit kind for every element type it takes, scalar code last.

    Args:
        sku: A product or a family of processors.
        clock_hz: Clock [Hz].
        groups: Cores; None takes those of the package.

    Raises:
        UsageError: a family, and the number of cores is not given.
    """
    found: list[UnitRow] = []
    for unit in sku.units:
        count = groups if groups is not None else unit.groups
        if count is None:
            raise UsageError(f"{sku.name} is a family: say how many {unit.group}s", hint="--cores N")
        for dtype in (*unit.dtypes, *(d for d in unit.fma_per_cycle if d not in unit.dtypes)):
            fma = unit.fma(dtype)
            if is_known(fma):
                text = f"{count:g} {unit.group} x {unit.per_group} {unit.name} x {fma:g} x 2 x {format_hz(clock_hz)}"
                rate = derive_peak(units=count * unit.per_group, width=fma, clock_hz=clock_hz)
                found.append(
                    UnitRow(
                        unit=unit, dtype=dtype, accumulate=ACCUMULATE.get(dtype, dtype), flop_per_s=rate, formula=text
                    )
                )
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Partial:
    """A ceiling below the peak that a program can be stuck at.

    Args:
        what: In words.
        ratio: Of the full vector or matrix peak.
        flop_per_s: [FLOP/s].
        dtype, engine: Of the full peak.
    """

    what: str
    ratio: float
    flop_per_s: float
    dtype: str
    engine: str


def partial_ceilings(sku: Sku, *, clock_hz: float | None = None, groups: float | None = None) -> tuple[Partial, ...]:
    """Return the lower roofs: scalar code, no multiply-add, one core or SM.

    Scalar code uses one lane of every pipe; code without multiply-adds does one operation where two were counted.

    Source: Williams, Waterman, Patterson, Roofline, CACM 52(4), 2009 (ceilings within the roof).
    """
    found: list[Partial] = []
    for row in peak_rows(sku, clock_hz=clock_hz, groups=groups):
        if not is_known(row.derived) or row.peak.unit is None or not row.holds:
            continue
        unit, full, key = sku.unit(row.peak.unit), row.derived, row.peak

        def add(what: str, ratio: float, key: Peak = key, full: float = full) -> None:
            found.append(Partial(what=what, ratio=ratio, flop_per_s=full * ratio, dtype=key.dtype, engine=key.engine))

        if unit.width_bits is not None and key.dtype in ("f32", "f64"):
            add("scalar code", 1.0 / simd_lanes(unit.width_bits, key.dtype))
        if unit.engine == "vector":
            add("no multiply-add", 0.5)
        count = groups if groups is not None else unit.groups
        if count is not None and count > 1:
            add(f"one {unit.group}", 1.0 / count)
    return tuple(found)


def what_ratios_say(ratios: Mapping[str, float], *, clock_ratio: float | None = None) -> str:
    """Return what the ratios of two sets of peaks imply.

    A clock scales every element type alike; a wrong width, count or accumulate type does not.

    Args:
        ratios: By element type: derived over declared, or achieved over peak.
        clock_ratio: The ratio of the two clocks, where both are known.

    >>> what_ratios_say({"tf32": 0.92, "bf16": 0.92, "f8": 0.921})
    'the ratio is 0.92 for every element type: that is a clock, not a unit or a width'
    >>> what_ratios_say({"tf32": 0.5, "bf16": 1.0})
    'the ratios differ (0.5 to 1): units, widths or accumulate types, not a clock alone'
    >>> what_ratios_say({"tf32": 0.874}, clock_ratio=1.60 / 1.83)
    'the ratio is 0.874: that of the clocks'
    """
    values = sorted(ratios.values())
    if not values:
        return "nothing to compare: no peak is both declared and derived"
    low, high = values[0], values[-1]
    middle = values[len(values) // 2]
    if high - low > DERIVED_TOLERANCE_RATIO * high:
        return f"the ratios differ ({low:.3g} to {high:.3g}): units, widths or accumulate types, not a clock alone"
    if abs(middle - 1.0) <= DERIVED_TOLERANCE_RATIO:
        return "derived and declared agree within 1 %"
    if clock_ratio is not None and abs(middle / clock_ratio - 1.0) <= DERIVED_TOLERANCE_RATIO:
        return f"the ratio is {middle:.3g}: that of the clocks"
    if len(values) == 1:
        return f"the ratio is {middle:.3g}; one element type alone cannot tell a clock from a width"
    return f"the ratio is {middle:.2g} for every element type: that is a clock, not a unit or a width"


def what_rows_say(rows: Sequence[PeakRow]) -> list[str]:
    """Return what the ratios of derived to declared peaks imply, for each clock that the vendor used.

    Rows whose difference the file explains, and those whose derivation does not hold, are left out.
    """
    groups: dict[tuple[float, bool], dict[str, float]] = {}
    at: float | None = None
    for row in rows:
        ratio, rated = row.ratio, row.peak.clock_hz
        if is_known(ratio) and rated is not None and row.holds and not row.peak.difference:
            at = row.clock_hz
            key = (rated, row.peak.clock_basis == "solved")
            groups.setdefault(key, {})[" ".join(row.peak.key)] = ratio
    said = []
    for (rated, solved), ratios in groups.items():
        text = what_ratios_say(ratios, clock_ratio=at / rated if at is not None and at != rated else None)
        where = f"{len(ratios)} peak(s) given at {format_hz(rated)}: {text}"
        if solved:
            where += "; that clock was worked out from the peak, so agreement is no check"
        said.append(where)
    return said or [what_ratios_say({})]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall:
    """A rate below its declared peak, split into what the clock took and what the program left.

    Args:
        share: Achieved over declared; the product of the other two.
        clock_ratio: Observed over rated clock.
        program_ratio: Achieved over the peak at the observed clock.
        clock_part: Part of the shortfall that is the clock's, 0 to 1, on a logarithmic scale.
    """

    share: float
    clock_ratio: float
    program_ratio: float
    clock_part: float

    @property
    def sentence(self) -> str:
        """The split in words."""
        if self.clock_part >= 0.5:
            cause = "mostly the clock: the device ran slower, not the code"
        elif self.clock_part > 0.1:
            cause = "the program first, the clock second"
        else:
            cause = "the program, not the clock"
        return (
            f"{format_ratio(self.share)} of the declared peak = {format_ratio(self.clock_ratio)} by the clock x "
            f"{format_ratio(self.program_ratio)} by the program: {cause}"
        )


def shortfall(*, achieved_flop_per_s: float, declared_flop_per_s: float, rated_hz: float, clock_hz: float) -> Shortfall:
    """Return how much of a shortfall is a fallen clock and how much is the program.

    Args:
        achieved_flop_per_s: The rate that was reached [FLOP/s].
        declared_flop_per_s: The vendor's dense peak [FLOP/s].
        rated_hz: The clock of that peak [Hz].
        clock_hz: The clock during the run [Hz].

    Assumes: the rate of a compute-bound program follows the clock.
    Source: achieved / declared = (clock / rated) x (achieved / peak at clock).

    H100, TF32: 399 is 81 % of 494.7, of which 1.60 GHz / 1.83 GHz explain 87 %; the program reaches 92 %.

    >>> s = shortfall(achieved_flop_per_s=399e12, declared_flop_per_s=494.7e12, rated_hz=1.83e9, clock_hz=1.6e9)
    >>> round(s.share, 2), round(s.clock_ratio, 2), round(s.program_ratio, 2), round(s.clock_part, 2)
    (0.81, 0.87, 0.92, 0.62)
    """
    for name, value in (("achieved", achieved_flop_per_s), ("declared", declared_flop_per_s), ("rated", rated_hz),
                        ("clock", clock_hz)):  # fmt: skip
        if not (math.isfinite(value) and value > 0):
            raise UsageError(f"{name} must be positive and finite, got {value!r}")
    share = achieved_flop_per_s / declared_flop_per_s
    clock_ratio = clock_hz / rated_hz
    program = share / clock_ratio
    part = math.log(clock_ratio) / math.log(share) if share < 1.0 else 0.0
    return Shortfall(share=share, clock_ratio=clock_ratio, program_ratio=program, clock_part=min(1.0, max(0.0, part)))
