"""What is asked of the files: the options of `mansard diagnose`, which are the keywords of `mansard.diagnose(...)`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from mansard.core import Ceilings
from mansard.core.ceilings import read_ceilings
from mansard.core.errors import UsageError
from mansard.core.units import positive_amount
from mansard.diagnose.facts import points_of
from mansard.diagnose.given_facts import GivenFacts, read_facts
from mansard.diagnose.inputs import Inputs
from mansard.diagnose.profile import Question, stated_work
from mansard.diagnose.scope_guard import StatedWork
from mansard.measure.points.points_ceilings import envelope_of
from mansard.predict.by_name import estimate as estimate_by_name
from mansard.predict.estimate import Estimate
from mansard.workload.training import Recipe

Amount = str | float | None

#: Options with a fixed set of answers.
CHOICES: Mapping[str, tuple[str, ...]] = {
    "match": ("auto", "exact", "contains", "startswith", "glob", "regex"),
    "flops_of": ("step", "region"),
    "flops_scope": ("device", "job"),
    "flops_are": ("forward", "train"),
    "phase": ("train", "prefill", "decode"),
    "recompute": ("none", "selective", "full"),
}
_COUNTS = ("node_devices", "gpus", "batch", "seq", "context", "accumulation", "tp", "pp", "dp", "ep", "cp")
_OF_A_MODEL = ("phase", "batch", "seq", "context", "recompute", "tp", "pp", "dp", "ep", "cp", "weights", "kv")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The options; None is always `not given`. An amount is a plain number in the SI base unit, or text with a unit.

    Args:
        region: One range instead of the whole profile.
        occurrence: Which one, from 1.
        match: How its name is compared.
        all_threads: Count work that other threads launched during the region.
        marker: The range that marks a step.
        trim: Window: two times from the start of the capture [s].
        device: Number of the one device that is meant.
        memory_limit: Refuse files that need more memory [B].
        hardware: The product, where the file does not tell.
        ceilings: Measured ceilings, as a record or a file.
        network_rate: One-way rate of one device between nodes [B/s].
        node_devices: Devices of one node.
        gpus: Devices of the whole job, where the profile does not tell.
        peak: Dense peak of one device for MFU [FLOP/s].
        flops: FLOP of the work [FLOP].
        flops_of, flops_scope, flops_are: What they are of (`CHOICES`).
        ncu: Nsight Compute CSV of the same program.
        model: A model's config.json, folder or shipped name, or an estimate that was made already.
        phase: What one step of the model is.
        batch: Sequences of all devices.
        seq: Tokens per sequence.
        context: Keys that each new token of a decode step sees.
        accumulation: Micro-batches per optimizer step.
        recompute: What is computed again instead of being kept.
        tp, pp, dp, ep, cp: Ranks of each kind of parallelism.
        dtype: Element type of the matrix work.
        weights, kv: Types of stored matrices and of the cache.
        facts: What no recording tells, as a mapping or a JSON file (`diagnose.given_facts`).
    """

    region: str | None = None
    occurrence: int = 1
    match: str = "auto"
    all_threads: bool = False
    marker: str | None = None
    trim: tuple[str | float, str | float] | None = None
    device: int | None = None
    memory_limit: Amount = None
    hardware: str | None = None
    ceilings: Ceilings | str | Path | None = None
    network_rate: Amount = None
    node_devices: int | None = None
    gpus: int | None = None
    peak: Amount = None
    flops: Amount = None
    flops_of: str | None = None
    flops_scope: str | None = None
    flops_are: str | None = None
    ncu: str | Path | None = None
    model: Estimate | str | Path | None = None
    phase: str | None = None
    batch: int = 1
    seq: int | None = None
    context: int | None = None
    accumulation: int | None = None
    recompute: str = "none"
    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1
    cp: int = 1
    dtype: str | None = None
    weights: str | None = None
    kv: str | None = None
    facts: Mapping[str, Any] | str | Path | None = None

    def __post_init__(self) -> None:
        for name, allowed in CHOICES.items():
            value = getattr(self, name)
            if value is not None and value not in allowed:
                raise UsageError(f"{name} is {value!r}", hint="one of " + ", ".join(allowed))
        for name in _COUNTS:
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise UsageError(f"{name} is {value!r}, expected a whole number from 1 on")

    def given(self) -> tuple[str, ...]:
        """Return the names of the options that were given: those that are not as they are by default."""
        return tuple(f.name for f in fields(self) if getattr(self, f.name) != f.default)


def asked_of(options: Mapping[str, Any]) -> Asked:
    """Return the options as a record.

    Raises:
        UsageError: An option that there is none of, or a value that is none of its answers.
    """
    known = {f.name for f in fields(Asked)}
    if unknown := sorted(set(options) - known):
        raise UsageError(f"diagnose knows no {', '.join(unknown)}", hint="one of " + ", ".join(sorted(known)))
    return Asked(**options)


def question_of(asked: Asked, inputs: Inputs) -> Question:
    """Return what is asked of a profile, without the device that is meant: its index is known when the profile is open.

    Args:
        asked: The options.
        inputs: The files.

    Raises:
        UsageError: Something is given twice, or without what it belongs to.
    """
    estimate = estimate_of(asked, inputs)
    return Question(
        ceilings=ceilings_of(asked, inputs),
        network_bytes_per_s=positive_amount(asked.network_rate, "bytes_per_s", "--network-rate"),
        stated=_stated(asked, estimate),
        peak_flop_per_s=positive_amount(asked.peak, "flop_per_s", "--peak"),
        job_devices=asked.gpus,
        estimate=estimate,
        points=points_of(inputs.points),
        given=facts_of(asked),
        region=asked.region,
        occurrence=asked.occurrence,
        match=asked.match,  # type: ignore[arg-type]  # checked when it was made
        all_threads=asked.all_threads,
        marker=asked.marker,
        hardware=asked.hardware,
        node_devices=asked.node_devices,
        dtype=asked.dtype,
    )


def facts_of(asked: Asked) -> GivenFacts:
    """Return what was told beside the recordings."""
    return GivenFacts() if asked.facts is None else read_facts(asked.facts)


def given_ceilings(asked: Asked, inputs: Inputs) -> Ceilings | None:
    """Return the measured ceilings that were given; None where none were."""
    given = inputs.ceilings
    if asked.ceilings is not None:
        if given is not None:
            raise UsageError("ceilings are given twice", hint="give the file alone, or --ceilings alone")
        given = asked.ceilings if isinstance(asked.ceilings, Ceilings) else read_ceilings(Path(asked.ceilings))
    return given


def ceilings_of(asked: Asked, inputs: Inputs) -> Ceilings | None:
    """Return measured ceilings: those given, else the envelope of the measured points; None where neither is."""
    given = given_ceilings(asked, inputs)
    if given is None and inputs.points:
        made = envelope_of(inputs.points)
        given = made if made.ceilings else None
    return given


def estimate_of(asked: Asked, inputs: Inputs) -> Estimate | None:
    """Return the model in its phase; None where none is given."""
    if asked.model is not None and inputs.model is not None:
        raise UsageError("a model is given twice", hint="give its config.json alone, or --model alone")
    source = asked.model if asked.model is not None else inputs.model
    if source is None or isinstance(source, Estimate):
        loose = [f"--{n}" for n in asked.given() if n in _OF_A_MODEL]
        if loose and source is None:
            raise UsageError(
                f"{', '.join(loose)} describe a model's work", hint="add a model's config.json, or --model"
            )
        if loose:
            raise UsageError(f"{', '.join(loose)} are in the estimate already", hint="give the model's file instead")
        return source
    if asked.phase is None and asked.context is None and asked.seq is None:
        raise UsageError(
            f"what one step of {source} is was not said",
            hint="--phase train --batch B --seq S, or --context N for a decode step",
        )
    return estimate_by_name(
        source,
        phase=asked.phase,
        plan={n: getattr(asked, n) for n in ("tp", "pp", "dp", "ep", "cp")},
        recipe=Recipe(recompute=asked.recompute),  # type: ignore[arg-type]  # checked when it was made
        **{n: getattr(asked, n) for n in ("batch", "seq", "context", "accumulation", "dtype", "weights", "kv")},
    )


def _stated(asked: Asked, estimate: Estimate | None) -> StatedWork | None:
    """Return the FLOP that were stated; those of a model are stated by the model."""
    flop = positive_amount(asked.flops, "flop", "--flops")
    if flop is None:
        loose = [f"--{n.replace('_', '-')}" for n in ("flops_scope", "flops_are") if getattr(asked, n) is not None]
        if loose:
            raise UsageError(f"{', '.join(loose)} say what --flops count", hint="add --flops")
        if estimate is None:
            if asked.flops_of is not None:
                raise UsageError("--flops-of says what --flops or a model count", hint="add --flops or a model")
            return None
        told = stated_work(Question(estimate=estimate, region=asked.region))
        return told if told is None or asked.flops_of is None else replace(told, span=asked.flops_of)
    if estimate is not None:
        raise UsageError("--flops and a model both say how much work it is", hint="give one of them")
    return StatedWork(
        flop=flop, of=asked.flops_are or "", span=asked.flops_of, accumulation=asked.accumulation,
        devices=1 if asked.flops_scope == "device" else None, all_devices=asked.flops_scope == "job",
    )  # fmt: skip
