"""Numerator and denominator must describe the same work: what a stated FLOP count is of, against what the profile shows.

A mismatch is named with the factor it explains before any percentage exists: steps in the region, devices, forward alone
against forward and backward, micro-batches of one optimizer step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mansard.core import Implausible, Unknown, is_known, share_of
from mansard.core.units import format_flop
from mansard.diagnose.records import Note
from mansard.diagnose.utilisation import OTHER_WORK, number_word

_NOT_RECORDED = Unknown("the profile does not record them", ("a profile with record_shapes=True",))
FORWARD, TRAIN = "forward", "train"
#: FLOP of forward and backward over those of the forward pass alone.
BACKWARD_FACTOR = 3.0
_CLOSE = 0.10


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedWork:
    """FLOP as somebody states them.

    Args:
        flop: How many [FLOP].
        of: What they are the work of: `forward`, `train` (forward and backward), or empty where that is not said.
        span: `step` or `region`: whether they are those of one step or of all of the region; None where not said.
        devices: Devices whose work they are; None where not said.
        all_devices: Whether they are those of all devices of the job, however many there are.
        accumulation: Micro-batches that they count; None where not said.
        source: Where they come from.
    """

    flop: float
    of: str = ""
    span: str | None = None
    devices: int | None = None
    all_devices: bool = False
    accumulation: int | None = None
    source: str = "given"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What the profile shows of the same scope.

    Args:
        steps: Steps in the region, or in what the diagnosis calls a step; Unknown where the profile marks none.
        devices: Devices of the job: its world size, else those in the profile.
        backward: Whether backward kernels were seen; None where parts cannot be told.
        micro_batches: Backward passes per step; None where they cannot be told.
        recorded_flop: FLOP that the profile records for one device and one step, where they cover it [FLOP].
        region: Whether the time is a range that was asked for, and so one occurrence of something.
        least_flop: FLOP of one device and one step that are recorded of a part of the operators alone [FLOP].
    """

    steps: int | Unknown
    devices: int
    backward: bool | None = None
    micro_batches: int | None = None
    recorded_flop: float | Unknown = _NOT_RECORDED
    region: bool = True
    least_flop: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """One way in which numerator and denominator differ.

    Args:
        what: steps, devices, passes or accumulation.
        factor: What the ratio would be wrong by; Unknown where the profile cannot tell.
        text: In one sentence.
        needs: Options that settle it.
    """

    what: str
    factor: float | Unknown
    text: str
    needs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeCheck:
    """The outcome.

    Args:
        flop_per_step: Of one device and one step [FLOP]; Unknown where the scopes do not fit.
        mismatches: Every way in which they do not.
        notes: What was converted, for the reader.
        stated: What was stated.
    """

    flop_per_step: float | Unknown
    mismatches: tuple[Mismatch, ...]
    notes: tuple[Note, ...]
    stated: StatedWork

    @property
    def refused(self) -> bool:
        """Whether no ratio may be made of it."""
        return bool(self.mismatches)


def check_scope(stated: StatedWork, seen: Seen) -> ScopeCheck:
    """Return the FLOP of one device and one step, or every mismatch that keeps them from being known.

    131.94 TFLOP of one forward over a region that holds five steps, on one device:

    >>> found = check_scope(StatedWork(flop=131.94e12, of="forward"), Seen(steps=5, devices=1))
    >>> found.mismatches[0].factor, found.mismatches[0].text.startswith("one forward, five steps")
    (5.0, True)
    """
    if stated.all_devices:
        stated = replace(stated, devices=seen.devices)
    notes: list[Note] = []
    bad = [m for m in (_passes(stated, seen), _steps(stated, seen), _devices(stated, seen), _micro(stated, seen)) if m]
    flop: float = stated.flop
    if isinstance(seen.steps, int) and seen.steps > 1 and stated.span == "region":
        flop /= seen.steps
        notes.append(
            Note(
                code="scaled_to_steps",
                text=f"the FLOP are those of {seen.steps} steps; one step has 1/{seen.steps} of them",
            )
        )
    if stated.devices is not None and stated.devices > 1:
        flop /= stated.devices
        text = f"the FLOP are those of {stated.devices} devices; one device has 1/{stated.devices} of them"
        notes.append(Note(code="scaled_to_device", text=text))
    if not bad:
        bad = _against_record(flop, seen)
    if bad:
        text = "; ".join(m.text for m in bad)
        needs = tuple(dict.fromkeys(n for m in bad for n in m.needs))
        return ScopeCheck(flop_per_step=Unknown(text, needs), mismatches=tuple(bad), notes=tuple(notes), stated=stated)
    return ScopeCheck(flop_per_step=flop, mismatches=(), notes=tuple(notes), stated=stated)


def _said(stated: StatedWork) -> str:
    if stated.of == TRAIN:
        return "one forward and backward"
    return "one forward" if stated.of == FORWARD else "FLOP of a scope that is not stated, such as one forward"


def _steps(stated: StatedWork, seen: Seen) -> Mismatch | None:
    if isinstance(seen.steps, Unknown):
        if stated.span == "region" or (seen.region and stated.span is None):
            return None
        text = f"{_said(stated)}, and how many steps the time holds is not known: {seen.steps.reason}"
        needs = ("--marker NAME", "--region NAME", "--flops-of region")
        return Mismatch(what="steps", factor=seen.steps, text=text, needs=needs)
    if seen.steps <= 1 or stated.span is not None:
        return None
    n = seen.steps
    text = (
        f"{_said(stated)}, {number_word(n)} steps: the time holds {n} steps, and it is not said whether the FLOP are those of one "
        f"step or of all; that is a factor of {n}"
    )
    return Mismatch(what="steps", factor=float(n), text=text, needs=("--flops-of step", "--flops-of region"))


def _devices(stated: StatedWork, seen: Seen) -> Mismatch | None:
    if stated.devices is None and seen.devices > 1:
        text = (
            f"FLOP of {number_word(seen.devices)} devices or of one over the peak of one device: the job has {seen.devices}, and it is "
            f"not said whose work the FLOP are; that is a factor of {seen.devices}"
        )
        return Mismatch(
            what="devices", factor=float(seen.devices), text=text, needs=("--flops-scope job", "--flops-scope device")
        )
    if stated.devices is not None and stated.devices not in (1, seen.devices):
        factor = seen.devices / stated.devices
        text = f"the FLOP are divided over {stated.devices} devices, the job of this profile has {seen.devices}: a factor of {factor:g}"
        return Mismatch(what="devices", factor=factor, text=text, needs=("--tp, --pp, --dp as the job ran", "--gpus"))
    return None


def _passes(stated: StatedWork, seen: Seen) -> Mismatch | None:
    if seen.backward is None or not stated.of:
        return None
    if stated.of == FORWARD and seen.backward:
        text = "one forward, but the time holds forward and backward: about a factor of 3"
        return Mismatch(
            what="passes", factor=BACKWARD_FACTOR, text=text, needs=("--phase train", "--region of the forward pass")
        )
    if stated.of == TRAIN and not seen.backward:
        text = "one forward and backward, but no backward pass is in the time: about a factor of 3"
        return Mismatch(
            what="passes", factor=1 / BACKWARD_FACTOR, text=text, needs=("--phase prefill", "--all-threads")
        )
    return None


def _micro(stated: StatedWork, seen: Seen) -> Mismatch | None:
    many = seen.micro_batches
    if many is None or many <= 1 or (stated.accumulation or 1) == many or stated.accumulation == many:
        return None
    if stated.accumulation is None and not stated.of:
        return None
    factor = many / (stated.accumulation or 1)
    text = f"FLOP of {stated.accumulation or 1} micro-batch, but a step runs {many} of them (accumulation): a factor of {factor:g}"
    return Mismatch(what="accumulation", factor=factor, text=text, needs=(f"--accumulation {many}",))


def _candidates(seen: Seen) -> list[tuple[str, float]]:
    found: list[tuple[str, float]] = [("forward against forward and backward", BACKWARD_FACTOR)]
    if isinstance(seen.steps, int) and seen.steps > 1:
        found.append((f"one step against {seen.steps}", float(seen.steps)))
    if seen.devices > 1:
        found.append((f"one device against {seen.devices}", float(seen.devices)))
    if seen.micro_batches and seen.micro_batches > 1:
        found.append((f"one micro-batch against {seen.micro_batches}", float(seen.micro_batches)))
    both = [(f"{a} and {b}", x * y) for i, (a, x) in enumerate(found) for b, y in found[i + 1 :]]
    return [*found, *both]


def explained_by(ratio: float, seen: Seen) -> str:
    """Return which mismatch explains a ratio of FLOP, empty where none does.

    >>> explained_by(7.9, Seen(steps=1, devices=8))
    'one device against 8'
    """
    for words, factor in _candidates(seen):
        if any(abs(ratio / f - 1.0) <= _CLOSE for f in (factor, 1.0 / factor)):
            return words
    return ""


def _against_record(flop: float, seen: Seen) -> list[Mismatch]:
    """Return the mismatch with what the operators in the profile recorded: a known factor, or other work altogether."""
    inside = seen.steps if isinstance(seen.steps, int) and seen.region else 1  # what is recorded is of the whole range
    least = seen.least_flop / max(1, inside)
    recorded = seen.recorded_flop / max(1, inside)
    if least > OTHER_WORK * flop and not (is_known(recorded) and explained_by(recorded / flop, seen)):
        ratio = least / flop
        text = (
            f"operators whose FLOP are recorded did {format_flop(least)} in a step, {ratio:.1f} times what was given "
            f"({format_flop(flop)}): it is not the work of this step (batch, sequence length, model, or phase)"
        )
        return [Mismatch(what="record", factor=ratio, text=text, needs=("--batch", "--seq", "--phase", "--flops-of"))]
    if not is_known(recorded) or recorded <= 0:
        return []
    ratio = recorded / flop
    words = explained_by(ratio, seen)
    if not words and ratio * OTHER_WORK < 1.0:
        text = (
            f"all operators of a step together recorded {format_flop(recorded)}, and {1.0 / ratio:.1f} times as much was "
            f"given ({format_flop(flop)}): it is not the work of this step (batch, sequence length, model, or phase), or it counts "
            "attention in full where a part was computed"
        )
        return [Mismatch(what="record", factor=ratio, text=text, needs=("--batch", "--seq", "--phase", "--flops-of"))]
    if abs(ratio - 1.0) <= _CLOSE or not words:
        return []
    text = (
        f"the operators of a step recorded {format_flop(recorded)}, {ratio:.2f} times what was given "
        f"({format_flop(flop)}): {words}"
    )
    return [Mismatch(what="record", factor=ratio, text=text, needs=("--flops-of", "--flops-scope", "--phase"))]


def utilisation_of(
    check: ScopeCheck, seen: Seen, *, step_s: float, peak_flop_per_s: float | Unknown
) -> float | Unknown | Implausible:
    """Return the MFU of one device, refused where scopes differ; above 1 the known factors are the first suspects.

    Args:
        check: The scope check.
        seen: What the profile shows.
        step_s: Wall time of one step [s].
        peak_flop_per_s: Dense peak of one device [FLOP/s].
    """
    if isinstance(check.flop_per_step, Unknown):
        return check.flop_per_step
    if isinstance(peak_flop_per_s, Unknown):
        return peak_flop_per_s
    found = share_of(check.flop_per_step / peak_flop_per_s, step_s)
    if isinstance(found, Implausible):
        suspects: Sequence[str] = [f"wrong scope of the FLOP: {w} is a factor of {f:g}" for w, f in _candidates(seen)]
        return Implausible(found.value, ("a total taken for a rate, or another region", *suspects[:3], *found.suspects))
    return found
