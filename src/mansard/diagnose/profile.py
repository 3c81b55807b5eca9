"""The diagnosis of a recorded profile: each device by itself, the whole of it or one region."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from mansard.core import Area, Ceilings, Unknown
from mansard.core.ceilings import Ceiling, Kind, Resource
from mansard.core.errors import UndecidedError
from mansard.diagnose.analyse import diagnose_run
from mansard.diagnose.links import Links
from mansard.diagnose.peaks import GIVEN, Chip, identify
from mansard.diagnose.profile_parts import parts_of_work
from mansard.diagnose.profile_run import run_of_profile
from mansard.diagnose.records import Diagnosis, Note
from mansard.trace.collectives_of import collectives_of
from mansard.trace.kernel_demand import recorded_demand, with_demand
from mansard.trace.operators_of import operators_of
from mansard.trace.profile_steps import ProfileSteps, find_steps
from mansard.trace.regions import Match, Region, attribute, region
from mansard.trace.timeline import DEVICE_WORK, Timeline
from mansard.trace.timeline import Kind as Event


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked of a profile; None is always `not given`.

    Args:
        device: Index of the one device that is meant.
        region: Name of a range; the diagnosis is then about one occurrence of it.
        occurrence: Which one, from 1.
        match: How the name is compared.
        all_threads: Count work that other threads launched during the region.
        marker: Name of the range that marks a step.
        hardware: The product, where the file does not tell.
        ceilings: What the machine can do, where it was measured; wins over the catalogue.
        network_bytes_per_s: One-way rate of the network between nodes, per device [B/s].
        node_devices: Devices of one node.
    """

    device: int | None = None
    region: str | None = None
    occurrence: int = 1
    match: Match = "auto"
    all_threads: bool = False
    marker: str | None = None
    hardware: str | None = None
    ceilings: Ceilings | None = None
    network_bytes_per_s: float | None = None
    node_devices: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceDiagnosis:
    """The diagnosis of one device.

    Args:
        device: Index in the profile.
        label: How it is printed.
        chip: Which product it is.
        diagnosis: What was found.
    """

    device: int
    label: str
    chip: Chip
    diagnosis: Diagnosis


def diagnose_profile(timeline: Timeline, question: Question | None = None) -> tuple[DeviceDiagnosis, ...]:
    """Return the diagnosis of each device that did work, the one with the longest busy time first.

    Args:
        timeline: The profile, or a window of it.
        question: What is asked.

    Raises:
        UndecidedError: No device did any work, or the region launched none.
        UsageError: No such region or marker.
    """
    question = question or Question()
    timeline = with_recorded_demand(timeline)
    found = None
    if question.region is not None:
        timeline, found = _of_region(timeline, question)
    devices = timeline.used_devices if question.device is None else (question.device,)
    if not devices:
        raise UndecidedError(
            "no device did any work in this profile, so there is nothing to diagnose",
            hint="; ".join(sorted(set(timeline.absent.values()))[:2]) or "record kernels as well",
            code="no_device_work",
        )
    steps = _steps_of(found) if found is not None else find_steps(timeline, marker=question.marker)
    operators = operators_of(timeline)
    collectives = collectives_of(timeline, operators=operators)
    parts = parts_of_work(timeline, operators)
    out = []
    for device in devices:
        chip = identify([timeline.devices[device]], hardware=question.hardware)
        ceilings, links = machine_of_device(chip, question)
        run = run_of_profile(
            timeline, device, steps=steps, links=links, operators=operators, collectives=collectives, parts=parts
        )  # fmt: skip
        diagnosis = diagnose_run(run, ceilings, program=timeline.source)
        out.append(
            DeviceDiagnosis(
                device=device, label=timeline.devices[device].shown, chip=chip, diagnosis=_with_chip(diagnosis, chip, question)
            )
        )  # fmt: skip
    busy = {d.device: sum(o.time_s for o in d.diagnosis.operators) for d in out}
    return tuple(sorted(out, key=lambda d: (-busy[d.device], d.device)))


def with_recorded_demand(timeline: Timeline) -> Timeline:
    """Return the profile with what it records of its kernels' demand, unless it has demand columns already."""
    if "demand" in timeline.extras:
        return timeline
    found = recorded_demand(timeline)
    return with_demand(timeline, found) if found else timeline


def machine_of_device(chip: Chip, question: Question) -> tuple[Ceilings, Links]:
    """Return the ceilings of one device and the names of its links."""
    base = Ceilings(ceilings=(), source="none") if isinstance(chip.ceilings, Unknown) else chip.ceilings
    if question.ceilings is not None:
        # The catalogue's figures stand beside the measured ones, which are preferred.
        given = at_device_scope(question.ceilings)
        base = (
            given
            if isinstance(chip.ceilings, Unknown)
            else replace(given.merged(base.ceilings), levels=given.levels or base.levels)
        )
    base = at_device_scope(base)
    names = {(c.resource.area, c.resource.link): c for c in base.ceilings if c.resource.link}
    host = next((n for area, n in names if area is Area.HOST), None)
    peer = next((n for area, n in names if area is Area.NETWORK), None)
    sku = chip.match.sku
    packages = sku.package.node_packages if sku is not None else None
    node = question.node_devices
    if node is None and sku is not None and packages is not None:
        node = packages * sku.package.devices
    network = None
    if question.network_bytes_per_s is not None:
        network = "network"
        rate = Ceiling(
            resource=Resource(area=Area.NETWORK, link=network), value=question.network_bytes_per_s, unit="B/s",
            kind=Kind.DECLARED, scope="device", source=GIVEN,
        )  # fmt: skip
        base = base.merged((rate,))
    return base, Links(host=host, peer=peer, network=network, node_devices=node)


def at_device_scope(ceilings: Ceilings) -> Ceilings:
    """Return ceilings whose node figures are also those of a device, where no device figure is on record.

    A machine without accelerators is one device: what `mansard measure` calls a node.
    """
    if any(c.scope == "device" for c in ceilings.ceilings):
        return ceilings
    return ceilings.merged(replace(c, scope="device") for c in ceilings.ceilings if c.scope == "node")


def _of_region(timeline: Timeline, question: Question) -> tuple[Timeline, Region]:
    """Return the profile with the device work of one occurrence of a region alone."""
    assert question.region is not None
    kinds = tuple(k for k in (Event.ANNOTATION, Event.CPU_OP) if timeline.has(k))
    ranges = attribute(timeline, kinds=kinds or (Event.ANNOTATION,))
    found = region(
        ranges, question.region, occurrence=question.occurrence, match=question.match, device=question.device,
        all_threads=question.all_threads,
    )  # fmt: skip
    if not found.work.size:
        raise UndecidedError(
            f"the range {found.name!r} (occurrence {found.occurrence} of {found.occurrences}) launched no device work",
            hint="--all-threads counts work that other threads launched during it, such as autograd's backward",
            code="no_device_work",
        )
    chosen = np.zeros(len(ranges.launches.work), dtype=np.bool_)
    chosen[found.work] = True
    tables, place = dict(timeline.tables), 0
    for kind in DEVICE_WORK:
        if kind in tables and len(tables[kind]):
            rows = len(tables[kind])
            tables[kind] = tables[kind].take(chosen[place : place + rows])
            place += rows
    return replace(timeline, tables=tables), found


def _steps_of(found: Region) -> ProfileSteps:
    """Return the region as the one step: from its start, or that of its work, to the end of whichever is later."""
    start, end = found.start_ns, max(found.end_ns, found.device_end_ns)
    one = np.array([end - start], dtype=np.int64)
    return ProfileSteps(
        source="given", name=found.name, start_ns=np.array([start]), end_ns=np.array([end]), host_ns=one, confidence=1.0,
        note=f"occurrence {found.occurrence} of {found.occurrences} of the range {found.name!r}",
    )  # fmt: skip


def _with_chip(diagnosis: Diagnosis, chip: Chip, question: Question) -> Diagnosis:
    notes: Sequence[Note] = ()
    if isinstance(chip.ceilings, Unknown) and question.ceilings is None:
        text = f"which product this is is not known ({chip.how}): nothing can be compared with a ceiling"
        notes = (Note(code="unknown_hardware", text=f"{text}; give --hardware"),)
    receipt = {**diagnosis.receipt, "hardware": chip.how}
    return replace(diagnosis, receipt=receipt, findings=(*diagnosis.findings, *notes))
