"""Which chip a profile ran on, by exact evidence, and the peak that its figures are divided by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mansard.core.ceilings import Area, Ceiling, Ceilings, Kind, Resource
from mansard.core.unknown import Unknown
from mansard.hardware import Match, ceilings, load, match
from mansard.trace.timeline import Device, Timeline

GIVEN = "given on the command line"
SAME_CLOCK = 1.02  # peaks of one report that differ by less are one


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """What devices of a profile are.

    Args:
        match: The answer of exact matching.
        ceilings: What it can do on paper; `Unknown` where it is not exactly known.
        how: What decided, in one sentence.
    """

    match: Match
    ceilings: Ceilings | Unknown
    how: str


def identify(devices: Sequence[Device], *, hardware: str | None = None, directories: Sequence[Path] = ()) -> Chip:
    """Return which product devices are: name, SM count, memory size and bandwidth must agree; a chip name never decides.

    Args:
        devices: Devices of the profile that did the work.
        hardware: The product the user says it is; wins, and is said so.
        directories: The user's hardware files.
    """
    if hardware is not None:
        sku = load(hardware, directories=directories)
        found = Match(status="exact", sku=sku, candidates=(sku.slug,), reason=GIVEN)
        return Chip(match=found, ceilings=ceilings(sku), how=f"{sku.name}, {GIVEN}")
    answers = [_match(d, directories) for d in devices]
    if not answers:
        none = Match(status="unknown", sku=None, candidates=(), reason="no device did any work", needs=("--peak",))
        return Chip(match=none, ceilings=Unknown(none.reason, none.needs), how=none.reason)
    first = answers[0]
    slugs = {a.sku.slug if a.sku else "" for a in answers}
    if len(slugs) > 1:
        text = f"the devices are not all one product: {', '.join(sorted(s or 'unknown' for s in slugs))}"
        first = Match(status="unknown", sku=None, candidates=tuple(sorted(s for s in slugs if s)), reason=text,
                      needs=("--device N", "--peak"))  # fmt: skip
    if first.sku is None:
        return Chip(
            match=first, ceilings=Unknown(first.reason, ("--peak", "--hardware", *first.needs)), how=first.reason
        )
    return Chip(match=first, ceilings=ceilings(first.sku), how=f"{first.sku.name}, by {first.reason}")


def _match(device: Device, directories: Sequence[Path]) -> Match:
    if isinstance(device.name, Unknown) or not device.name:
        reason = device.name.reason if isinstance(device.name, Unknown) else "the file states no product name"
        return Match(status="unknown", sku=None, candidates=(), reason=reason, needs=("--peak", "--hardware"))

    def known(value: Any) -> Any:
        return None if isinstance(value, Unknown) else value

    return match(
        device.name, memory_bytes=known(device.memory_bytes), multiprocessors=known(device.multiprocessors),
        memory_bytes_per_s=known(device.memory_bytes_per_s), directories=directories,
    )  # fmt: skip


def compute_peak(chip: Chip, *, given_flop_per_s: float | None, dtype: str | None) -> Ceiling | Unknown:
    """Return the dense peak of one device [FLOP/s]; one that is given wins.

    Args:
        chip: What the devices are.
        given_flop_per_s: The peak the user gives [FLOP/s].
        dtype: Element type of the matrix work; without it no peak of the catalogue is taken.
    """
    if given_flop_per_s is not None:
        resource = Resource(area=Area.COMPUTE, dtype=dtype or "unstated", engine="matrix")
        return Ceiling(resource=resource, value=given_flop_per_s, unit="FLOP/s", kind=Kind.DECLARED, scope="device",
                       source=GIVEN)  # fmt: skip
    if isinstance(chip.ceilings, Unknown):
        return chip.ceilings
    if dtype is None:
        return Unknown(
            "the element type of the work is not stated, and each has another peak", ("--dtype bf16", "--peak")
        )
    return chip.ceilings.peak(dtype, scope="device")


def memory_bandwidth(chip: Chip, *, given_bytes_per_s: float | None) -> Ceiling | Unknown:
    """Return the bandwidth of one device's main memory [B/s]; one that is given wins.

    Args:
        chip: What the devices are.
        given_bytes_per_s: The bandwidth the user gives [B/s].
    """
    if given_bytes_per_s is not None:
        return Ceiling(resource=Resource(area=Area.MEMORY, level="hbm"), value=given_bytes_per_s, unit="B/s",
                       kind=Kind.DECLARED, scope="device", source=GIVEN)  # fmt: skip
    if isinstance(chip.ceilings, Unknown):
        return chip.ceilings
    outer = chip.match.sku.outer_memory if chip.match.sku else None
    if outer is None:
        return Unknown("the product has no memory on record", ("--bandwidth",))
    return chip.ceilings.bandwidth(outer.level, scope="device")


def report_peaks(timeline: Timeline, dtype: str | None) -> tuple[Ceiling | Unknown, Ceiling | Unknown] | None:
    """Return the compute peak and the bandwidth at the clocks of an Nsight Compute report; None for other profiles.

    Args:
        timeline: A report opened as a profile.
        dtype: Element type of the scalar work; None takes f32, the one that the report always counts.
    """
    report = timeline.extras.get("report")
    if timeline.format != "ncu" or report is None or not report.kernels:
        return None
    kernels = [k.measured for k in report.kernels]
    source = "Nsight Compute: sustained peak per cycle x the clock of the measurement"

    def one(values: Sequence[float | Unknown], resource: Resource, unit: str) -> Ceiling | Unknown:
        lost = next((v for v in values if isinstance(v, Unknown)), None)
        if lost is not None:
            return lost
        known = [float(v) for v in values if not isinstance(v, Unknown)]
        if max(known) > SAME_CLOCK * min(known):
            return Unknown(
                "the clocks differ from kernel to kernel", ("--peak and --bandwidth", "a report with locked clocks")
            )
        return Ceiling(
            resource=resource,
            value=sum(known) / len(known),
            unit=unit,
            kind=Kind.DERIVED,
            scope="device",
            source=source,
        )

    kind = dtype or "f32"
    compute = Resource(area=Area.COMPUTE, dtype=kind, engine="vector")
    absent = Unknown(f"the report has no peak of {kind}", ("--peak",))
    return (
        one([k.peak_flop_per_s.get(kind, absent) for k in kernels], compute, "FLOP/s"),
        one([k.peak_dram_bytes_per_s for k in kernels], Resource(area=Area.MEMORY, level="hbm"), "B/s"),
    )


def receipt(ceiling: Ceiling | Unknown) -> dict[str, Any]:
    """Return where a ceiling comes from, for the document."""
    if isinstance(ceiling, Unknown):
        return ceiling.to_json()
    return {
        "value": ceiling.value, "unit": ceiling.unit, "kind": ceiling.kind.value, "scope": ceiling.scope, "dense": True,
        "dtype": ceiling.resource.dtype, "clock_hz": ceiling.conditions.get("clock_hz"), "source": ceiling.source,
    }  # fmt: skip
