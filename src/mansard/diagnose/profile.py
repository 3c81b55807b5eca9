"""The diagnosis of a recorded profile: each device by itself, the whole of it or one region."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from mansard.core import Area, Ceilings, Unknown
from mansard.core.ceilings import Ceiling, Kind, Resource
from mansard.core.dtypes import short_dtype
from mansard.core.errors import InputError, UndecidedError
from mansard.core.intervals import IntervalSet
from mansard.core.units import format_flop_per_s, format_s
from mansard.diagnose.account import windows_of
from mansard.diagnose.analyse import diagnose_run
from mansard.diagnose.facts import MeasuredPoint
from mansard.diagnose.facts_of import Peers, facts_of_profile, with_ranks
from mansard.diagnose.fixed_cost import FixedCost, fixed_costs_of_trace
from mansard.diagnose.given_facts import GivenFacts, with_given
from mansard.diagnose.kernel_table import KernelTable, kernel_table
from mansard.diagnose.links import BETWEEN_NODES, Links
from mansard.diagnose.metrics import NO_TOKENS, Metric, run_metrics
from mansard.diagnose.model_demand import ModelGroup, groups_of, with_model
from mansard.diagnose.occupied import Occupied, of_run
from mansard.diagnose.peaks import GIVEN, Chip, identify
from mansard.diagnose.profile_parts import parts_of_work
from mansard.diagnose.profile_run import run_of_profile, span_of, steady
from mansard.diagnose.records import Diagnosis, Note
from mansard.diagnose.scope_guard import (
    FORWARD,
    TRAIN,
    ScopeCheck,
    Seen,
    StatedWork,
    check_scope,
    utilisation_of,
)
from mansard.diagnose.utilisation import COVERED
from mansard.predict.bound import Machine, machine_of
from mansard.predict.estimate import Estimate
from mansard.predict.machines import load_machine
from mansard.trace.categories import shipped_rules
from mansard.trace.collectives_of import CollectiveKinds, collective_kinds
from mansard.trace.idle import host_calls, idle_of
from mansard.trace.kernel_demand import Counted, counted, recorded_demand, with_demand
from mansard.trace.kernels import graphs
from mansard.trace.matching import Match
from mansard.trace.operators_of import Operators, operators_of
from mansard.trace.profile_steps import ProfileSteps, find_steps
from mansard.trace.rank_clocks import identity_of
from mansard.trace.regions import Region, attribute, region
from mansard.trace.run import Part
from mansard.trace.timeline import DEVICE_WORK, Timeline
from mansard.trace.timeline import Kind as Event
from mansard.trace.torch_parts import PARTS


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
        ceilings: What the machine can do, where it was measured; preferred to the catalogue.
        network_bytes_per_s: One-way rate of the network between nodes, per device [B/s].
        node_devices: Devices of one node.
        stated: FLOP as somebody states them.
        peak_flop_per_s: Dense peak of one device, for MFU [FLOP/s].
        dtype: Element type of the matrix work.
        job_devices: Devices of the whole job, where the profile does not tell.
        estimate: A model in its phase; its work is spread over kernels of which nothing is recorded.
        points: Measured implementations, for advice.
        peers: What several ranks of the job say of this one.
        given: What was told beside the recording.
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
    stated: StatedWork | None = None
    peak_flop_per_s: float | None = None
    dtype: str | None = None
    job_devices: int | None = None
    estimate: Estimate | None = None
    points: tuple[MeasuredPoint, ...] = ()
    peers: Peers | None = None
    given: GivenFacts = field(default_factory=GivenFacts)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceDiagnosis:
    """The diagnosis of one device.

    Args:
        device: Index in the profile.
        label: How it is printed.
        chip: Which product it is.
        diagnosis: What was found.
        table: Measured over theory, kernel by kernel.
        scope: Whether stated FLOP are those of the time they are divided by; None where none are stated.
        metrics: Its numbers with their definitions.
        fixed_costs: What its kernels and the gaps between them tell of fixed cost.
        steps: The steps that it is about.
    """

    device: int
    label: str
    chip: Chip
    diagnosis: Diagnosis
    table: KernelTable
    scope: ScopeCheck | None = None
    metrics: tuple[Metric, ...] = ()
    fixed_costs: tuple[FixedCost, ...] = ()
    steps: ProfileSteps = field(default_factory=lambda: ProfileSteps(source="none"), compare=False)

    @property
    def refused(self) -> bool:
        """Whether a ratio was refused because numerator and denominator are not the same work."""
        return self.scope is not None and self.scope.refused


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
    whole, found = timeline, None
    if question.region is not None:
        timeline, found = _of_region(timeline, question)
    devices = timeline.used_devices if question.device is None else (question.device,)
    if not devices:
        raise UndecidedError(
            "no device did any work in this profile, so there is nothing to diagnose",
            hint="; ".join(sorted(set(timeline.absent.values()))[:2]) or "record kernels as well",
            code="no_device_work",
        )
    operators = operators_of(timeline)
    ranges = attribute(timeline, launches=operators.launches) if found is None else None
    marked = find_steps(whole, marker=question.marker, ranges=ranges)
    steps = _steps_of(found) if found is not None else marked
    scene = _Scene(
        question=question, marked=marked, found=found, steps=steps, operators=operators,
        collectives=collective_kinds(timeline, operators=operators), parts=parts_of_work(timeline, operators), calls=host_calls(timeline),
    )  # fmt: skip
    out = [_of_device(timeline, device, scene) for device in devices]
    busy = {d.device: sum(o.time_s for o in d.diagnosis.operators) for d in out}
    return tuple(sorted(out, key=lambda d: (-busy[d.device], d.device)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scene:
    """What the devices of a profile share."""

    question: Question
    marked: ProfileSteps
    found: Region | None
    steps: ProfileSteps
    operators: Operators
    collectives: CollectiveKinds
    parts: npt.NDArray[np.int8]
    calls: IntervalSet


def _of_device(timeline: Timeline, device: int, scene: _Scene) -> DeviceDiagnosis:
    """Return the diagnosis of one device."""
    question = scene.question
    chip = identify([timeline.devices[device]], hardware=question.hardware)
    ceilings, links = machine_of_device(chip, question)
    stated = stated_work(question)
    seen = _seen(timeline, device, scene) if stated is not None else None
    scope = check_scope(stated, seen) if stated is not None and seen is not None else None
    groups: tuple[ModelGroup, ...] = ()
    notes: list[Note] = []
    if question.estimate is not None:
        groups = groups_of(
            question.estimate, _machine(chip, ceilings), has_expert_kernels=_has_category(timeline, device, "moe")
        )
        if scope is not None and not scope.refused and scene.steps.count:
            per_step = _repeated(scene.steps, scope.stated, seen)
            timeline = with_model(timeline, groups, per_step, source=question.estimate.model.name)
        else:
            why = "what it is of is not what the profile shows" if scene.steps.count else "the profile marks no steps"
            notes.append(Note(code="model_not_used", text=f"the model's work was not spread over kernels: {why}"))
    span = span_of(steady(scene.steps))
    idle = idle_of(timeline, device, launches=scene.operators.launches, window_ns=span)
    run = run_of_profile(
        timeline, device, steps=scene.steps, links=links, operators=scene.operators, collectives=scene.collectives,
        parts=scene.parts, idle=idle, calls=scene.calls,
    )  # fmt: skip
    facts = facts_of_profile(
        timeline, device, run, idle, calls=scene.calls, kernels_missing=graphs(timeline, scene.operators.launches).kernels_missing,
        points=question.points, estimate=question.estimate, node_devices=links.node_devices,
        micro_batches=_micro_batches(timeline, device, scene) if question.estimate is not None else None,
    )  # fmt: skip
    if question.peers is not None:
        facts = with_ranks(facts, question.peers, steps=scene.steps.count)
    if question.given:
        known = identity_of(timeline).rank
        facts = with_given(facts, question.given, run, ceilings, rank=None if isinstance(known, Unknown) else known)
    windows = windows_of(run)
    diagnosis = diagnose_run(run, ceilings, program=timeline.source, facts=facts, windows=windows)
    diagnosis = _with_chip(diagnosis, chip, question)
    if scope is not None and seen is not None:
        diagnosis = _with_scope(diagnosis, scope, seen, ceilings, question)
    diagnosis = replace(diagnosis, findings=(*notes, *diagnosis.findings))
    return DeviceDiagnosis(
        device=device, label=timeline.devices[device].shown, chip=chip, diagnosis=diagnosis,
        table=kernel_table(diagnosis, groups), scope=scope, metrics=_metrics(diagnosis, of_run(run, windows), question, scope, seen),
        fixed_costs=fixed_costs_of_trace(run, windows), steps=scene.steps,
    )  # fmt: skip


def _metrics(
    diagnosis: Diagnosis, used: Occupied, question: Question, scope: ScopeCheck | None, seen: Seen | None
) -> tuple[Metric, ...]:
    """Return the metrics of a device; tokens are those of the model's step, scaled as its FLOP were."""
    tokens: float | Unknown = NO_TOKENS
    model = question.estimate
    if model is not None and question.stated is None and scope is not None and not scope.refused:
        whole = scope.flop_per_step * float(scope.stated.devices or 1)
        tokens = float(model.phase.tokens) * whole / float(model.phase.model_flop)
    devices = seen.devices if seen is not None else question.job_devices or 1
    return run_metrics(diagnosis, used, devices=devices, tokens_per_step=tokens)


def stated_work(question: Question) -> StatedWork | None:
    """Return the FLOP that are stated, by the caller or by the model; None where neither does."""
    found = question.estimate
    if question.stated is not None or found is None:
        return question.stated
    train = found.request.phase == "train"
    span = None if question.region is not None else "step"
    return StatedWork(
        flop=float(found.phase.model_flop), of=TRAIN if train else FORWARD, span=span, devices=found.request.plan.devices,
        accumulation=found.request.accumulation or 1 if train else None, source=f"counted from {found.model.name}",
    )  # fmt: skip


def _seen(timeline: Timeline, device: int, scene: _Scene) -> Seen:
    """Return what the profile shows of the scope that FLOP are stated for."""
    world = timeline.distributed.get("world_size")
    devices = scene.question.job_devices or (
        world if isinstance(world, int) and world > 0 else len(timeline.used_devices)
    )
    found, marked = scene.found, scene.marked
    why = "the profile marks no steps"
    if marked.source == "periodicity":
        why += ", and what its kernels repeat may be a layer rather than a step"
    inside: int | Unknown = Unknown(why, ("--marker NAME",))
    if marked.count and marked.source != "periodicity":
        inside = 1
        if found is not None:
            inside = int(((marked.start_ns >= found.start_ns) & (marked.start_ns < found.end_ns)).sum())
    told = bool((scene.parts != PARTS.index(Part.OTHER)).any())
    backward = bool((scene.parts == PARTS.index(Part.BACKWARD)).any()) if told else None
    table = timeline.of(Event.KERNEL)
    steps = scene.steps
    recorded: float | Unknown = Unknown("no steps", ())
    least = 0.0
    if steps.count:
        rows = (table.device == device) & (table.start_ns >= steps.start_ns[0]) & (table.start_ns < steps.end_ns[-1])
        count = counted(timeline, rows) if rows.any() else Unknown("no kernel in the steps")
        recorded = count if isinstance(count, Unknown) else Unknown("not all of it is recorded")
        if isinstance(count, Counted) and not isinstance(count.any_flop, Unknown):
            least = count.any_flop / steps.count
        if (
            isinstance(count, Counted)
            and count.flop_coverage_ratio >= COVERED
            and not isinstance(count.any_flop, Unknown)
        ):
            recorded = count.any_flop / steps.count
    return Seen(
        steps=inside, devices=devices, backward=backward, region=found is not None, recorded_flop=recorded, least_flop=least,
        micro_batches=_micro_batches(timeline, device, scene) if backward else None,
    )  # fmt: skip


def _micro_batches(timeline: Timeline, device: int, scene: _Scene) -> int | None:
    """Return the backward passes of a step, told by forward work between them; None where steps differ."""
    table = timeline.of(Event.KERNEL)
    part = scene.parts[scene.operators.launches.kind == int(Event.KERNEL)]
    order = np.argsort(table.start_ns, kind="stable")
    both = (PARTS.index(Part.FORWARD), PARTS.index(Part.BACKWARD))
    order = order[(table.device[order] == device) & np.isin(part[order], both)]
    begins = part[order] == both[1]
    begins[1:] &= part[order][:-1] == both[0]
    start = table.start_ns[order][begins]
    if not scene.steps.count or not start.size:
        return None
    step = np.searchsorted(scene.steps.start_ns, start, side="right") - 1
    counts = np.bincount(
        step[(step >= 0) & (start < scene.steps.end_ns[np.maximum(step, 0)])], minlength=scene.steps.count
    )
    typical = int(np.median(counts))
    return typical if typical > 0 and (counts == typical).mean() >= 0.8 else None


def _repeated(steps: ProfileSteps, stated: StatedWork, seen: Seen | None) -> ProfileSteps:
    """Return the steps as often as the stated work ran in them: a region of five steps is five times that of one."""
    many = seen.steps if seen is not None and isinstance(seen.steps, int) else 1
    if stated.span != "step" or many <= 1:
        return steps
    edges = np.linspace(int(steps.start_ns[0]), int(steps.end_ns[-1]), many + 1).astype(np.int64)
    return replace(steps, start_ns=edges[:-1], end_ns=edges[1:], host_ns=np.diff(edges))


def _has_category(timeline: Timeline, device: int, category: str) -> bool:
    table = timeline.of(Event.KERNEL)
    names = np.unique(table.name[table.device == device]).tolist()
    return any(shipped_rules().category(timeline.names[n]) == category for n in names)


def _machine(chip: Chip, ceilings: Ceilings) -> Machine | None:
    """Return the machine that a model's kernels are bounded on; None where no bandwidth of it is known."""
    cache: float | None = None
    if chip.match.sku is not None:
        known = load_machine(chip.match.sku.slug).on_chip_bytes
        cache = known if isinstance(known, float) else None
    try:
        return machine_of(ceilings, name=chip.how, scope="device", on_chip_bytes=cache)
    except InputError:
        return None


def _with_scope(
    diagnosis: Diagnosis, scope: ScopeCheck, seen: Seen, ceilings: Ceilings, question: Question
) -> Diagnosis:
    """Return the diagnosis with the stated FLOP as its numerator, or with why they cannot be."""
    peak = _stated_peak(diagnosis, ceilings, question)
    value = peak if isinstance(peak, Unknown) else peak.value
    per_step = scope.flop_per_step
    if isinstance(per_step, float) and isinstance(seen.steps, int) and seen.steps > 1 and question.region is not None:
        per_step *= seen.steps  # the region as a whole is what the diagnosis calls a step
    whole = replace(scope, flop_per_step=per_step)
    mfu = utilisation_of(whole, seen, step_s=diagnosis.step.median_s, peak_flop_per_s=value)
    notes = [Note(code=f"scope_{m.what}", text=f"scope: {m.text}") for m in scope.mismatches]
    receipt = {**diagnosis.receipt, "flop_source": scope.stated.source}
    if not isinstance(peak, Unknown):
        label = f"{peak.resource.label}, dense, {format_flop_per_s(peak.value)}, {peak.kind.value}, one {peak.scope}"
        receipt["mfu_peak"] = {"label": label, **peak.to_json()}
    return replace(
        diagnosis, flop_per_step=per_step, full_square_flop_per_step=per_step, mfu_ratio=mfu, receipt=receipt,
        findings=(*notes, *scope.notes, *diagnosis.findings),
    )  # fmt: skip


def _stated_peak(diagnosis: Diagnosis, ceilings: Ceilings, question: Question) -> Ceiling | Unknown:
    """Return the peak that stated FLOP are divided by."""
    dtype = question.dtype or (question.estimate.types.activation if question.estimate is not None else None)
    if question.peak_flop_per_s is not None:
        resource = Resource(area=Area.COMPUTE, dtype=dtype or "unstated", engine="matrix")
        return Ceiling(resource=resource, value=question.peak_flop_per_s, unit="FLOP/s", kind=Kind.DECLARED, scope="device",
                       source=GIVEN)  # fmt: skip
    if dtype is None:
        known = diagnosis.receipt.get("mfu_peak", {}).get("resource", {}).get("dtype")
        if known is None:
            return Unknown("the element type of the matrix work is not stated", ("--dtype bf16", "--peak"))
        dtype = str(known)
    return ceilings.peak(short_dtype(dtype), scope="device")


def with_recorded_demand(timeline: Timeline) -> Timeline:
    """Return the profile with what it records of its kernels' demand, unless it has demand columns already."""
    if "demand" in timeline.extras:
        return timeline
    found = recorded_demand(timeline)
    return with_demand(timeline, found) if found else timeline


def machine_of_device(chip: Chip, question: Question) -> tuple[Ceilings, Links]:
    """Return the ceilings of one device and the names of its links."""
    base = Ceilings(ceilings=(), source="none") if isinstance(chip.ceilings, Unknown) else chip.ceilings
    if question.ceilings is not None and not of_another_machine(chip, question.ceilings):
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
        network = BETWEEN_NODES
        base = base.merged((network_ceiling(question.network_bytes_per_s),))
    return base, Links(host=host, peer=peer, network=network, node_devices=node)


def network_ceiling(bytes_per_s: float) -> Ceiling:
    """Return the one-way rate of one device between nodes, as it was stated, as a ceiling."""
    return Ceiling(
        resource=Resource(area=Area.NETWORK, link=BETWEEN_NODES), value=bytes_per_s, unit="B/s", kind=Kind.DECLARED,
        scope="device", source=GIVEN,
    )  # fmt: skip


def of_another_machine(chip: Chip, given: Ceilings) -> bool:
    """Return whether measured ceilings are those of a host alone, while the profile is that of an accelerator.

    Measured on a laptop or on the accelerator's own host, they say nothing of the device: its work would run at thousands of
    times "its" peak.
    """
    sku = chip.match.sku
    return not (sku is not None and sku.kind.startswith("cpu")) and not any(c.scope == "device" for c in given.ceilings)


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
    """Return the region as the one step, of the time that `mansard trace mfu` divides by too."""
    start, end = found.wall_ns
    note = f"occurrence {found.occurrence} of {found.occurrences} of the range {found.name!r}"
    if end > found.end_ns:
        note += f"; {format_s((end - found.start_ns) / 1e9)} from its start on the host to the end of its device work"
    return ProfileSteps(
        source="given", name=found.name, start_ns=np.array([start]), end_ns=np.array([end]),
        host_ns=np.array([found.end_ns - found.start_ns]), confidence=1.0, note=note,
    )  # fmt: skip


def _with_chip(diagnosis: Diagnosis, chip: Chip, question: Question) -> Diagnosis:
    notes: list[Note] = []
    unused = question.ceilings is not None and of_another_machine(chip, question.ceilings)
    if unused:
        what = "the catalogue's are used" if not isinstance(chip.ceilings, Unknown) else "nothing stands in for them"
        text = (
            f"the measured ceilings given are those of a host and name no device: they do not bound {chip.how}; {what}"
        )
        notes.append(Note(code="ceilings_of_another_machine", text=text))
    if isinstance(chip.ceilings, Unknown) and (question.ceilings is None or unused):
        text = f"which product this is is not known ({chip.how}): nothing can be compared with a ceiling"
        notes.append(Note(code="unknown_hardware", text=f"{text}; give --hardware"))
    receipt = {**diagnosis.receipt, "hardware": chip.how}
    return replace(diagnosis, receipt=receipt, findings=(*diagnosis.findings, *notes))
