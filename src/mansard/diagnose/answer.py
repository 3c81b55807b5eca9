"""Files and a question to one answer: what `mansard diagnose` prints and `mansard.diagnose(...)` returns."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from mansard.core import Bound, Implausible, Unknown
from mansard.core.document import damage_named
from mansard.core.errors import UndecidedError, UsageError
from mansard.diagnose.analyse import diagnose_run
from mansard.diagnose.asked import Asked, ceilings_of, facts_of, given_ceilings, question_of
from mansard.diagnose.candidates import Candidate, side_by_side
from mansard.diagnose.facts import Facts, cores_busy_of, points_of
from mansard.diagnose.given_facts import with_given
from mansard.diagnose.host_profile import diagnose_host
from mansard.diagnose.inputs import Inputs
from mansard.diagnose.job import JobDiagnosis, diagnose_files, diagnose_job
from mansard.diagnose.measured import MeasuredDiagnosis
from mansard.diagnose.measured_advice import diagnose_points
from mansard.diagnose.opened import Opened
from mansard.diagnose.profile import DeviceDiagnosis, Question, diagnose_profile, network_ceiling
from mansard.diagnose.records import Diagnosis, Note
from mansard.diagnose.target import Target, TargetResult, check_target
from mansard.hardware import ceilings as hardware_ceilings
from mansard.hardware import load as load_hardware
from mansard.trace.load import load_run
from mansard.trace.many import Progress
from mansard.trace.prepare import device_index
from mansard.trace.recorders.record import read_meta
from mansard.trace.timeline import Timeline

#: Options that mean something for each kind of input beside a profile.
_FOR_RECORDINGS = ("ceilings", "facts", "network_rate")
_FOR_HOSTS = ("ceilings", "memory_limit")
_FOR_POINTS = ("ceilings", "hardware")
_FOR_DOCUMENTS: tuple[str, ...] = ()


def _quiet(_what: str) -> Progress:
    return lambda _done, _all, _name: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer to one question about files. It is a sequence of the devices of a profile, the busiest first.

    Args:
        found: What was found; of a profile that of its busiest device, of several ranks that of the rank shown first, of
            measured points alone what they say.
        devices: Every device of the profile, or of the rank shown first; empty where the input has none.
        job: The ranks, where several profiles were given.
        candidates: Measured implementations of one operation side by side.
        targets: What was asked of the diagnosis.
        timeline: The profile, for pictures; None where it is not one.
    """

    found: Diagnosis | MeasuredDiagnosis
    devices: tuple[DeviceDiagnosis, ...] = ()
    job: JobDiagnosis | None = None
    candidates: tuple[tuple[Candidate, ...], ...] = ()
    targets: tuple[TargetResult, ...] = ()
    timeline: Timeline | None = field(default=None, compare=False, repr=False)

    def __len__(self) -> int:
        return len(self.devices)

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[DeviceDiagnosis]:
        return iter(self.devices)

    def __getitem__(self, place: int) -> DeviceDiagnosis:
        return self.devices[place]

    @property
    def diagnosis(self) -> Diagnosis:
        """The diagnosis of a run.

        Raises:
            UsageError: Measured points alone were given, which are no run.
        """
        if isinstance(self.found, MeasuredDiagnosis):
            raise UsageError("measured points are no run, so there is no diagnosis of one", hint="see `measured`")
        return self.found

    @property
    def measured(self) -> MeasuredDiagnosis | None:
        """What measured points say, where they alone were given."""
        return self.found if isinstance(self.found, MeasuredDiagnosis) else None

    @property
    def undetermined(self) -> bool:
        """Whether it cannot be said what bounds what was given."""
        if isinstance(self.found, MeasuredDiagnosis):
            return self.found.undetermined
        return self.found.verdict.bound is Bound.UNDETERMINED

    @property
    def missed(self) -> bool:
        """Whether a target was missed."""
        return any(r.met is False for r in self.targets)

    @property
    def unjudged(self) -> bool:
        """Whether something that was asked for cannot be judged: a ratio is refused, a rank was left out, a figure is unknown."""
        return (
            any(d.refused for d in self.devices)
            or (self.job is not None and bool(self.job.failed))
            or (isinstance(self.found, Diagnosis) and isinstance(self.found.mfu_ratio, Implausible))
            or any(isinstance(r.met, Unknown) for r in self.targets)
        )


def answers(
    inputs: Inputs,
    asked: Asked,
    targets: Sequence[Target] = (),
    *,
    jobs: int | None = None,
    engine: str = "local",
    opened: Opened | None = None,
    progress: Callable[[str], Progress] = _quiet,
) -> tuple[Answer, ...]:
    """Return the answer: one, or one for each of several finished diagnoses.

    Args:
        inputs: The files by what they are.
        asked: The options.
        targets: Limits that its figures must keep.
        jobs: Profiles of ranks at a time; None takes one for each CPU.
        engine: Where many profiles are read: `local` or `ray`.
        opened: Opens profiles; what is asked decides how.
        progress: Returns what is told the progress over many files.

    Raises:
        UsageError: The files do not make one question, or an option means nothing for them.
        InputError: A file cannot be read.
        UndecidedError: There is nothing to diagnose.
    """
    kinds = [
        name for name, some in (
            ("a profile", inputs.profiles or inputs.opened), ("a recording", inputs.recordings), ("a finished diagnosis", inputs.documents)
        ) if some
    ]  # fmt: skip
    if len(kinds) > 1:
        raise UsageError(f"{' and '.join(kinds)} are two questions", hint="diagnose them one after the other")
    if not kinds and not inputs.points:
        raise _no_run(inputs)
    if not kinds:
        return (_of_points(inputs, asked, targets),)
    candidates = tuple(tuple(g) for g in side_by_side(points_of(inputs.points)))
    if inputs.documents:
        found = _of_documents(inputs, asked)
    elif inputs.recordings:
        found = (Answer(found=_of_recording(inputs, asked)),)
    else:
        opened = replace(
            opened or Opened(), ncu=_counters(inputs, asked), trim=asked.trim, memory_limit=asked.memory_limit
        )
        found = (_of_profiles(inputs, asked, opened, jobs, engine, progress),)
    return tuple(
        replace(a, candidates=candidates, targets=tuple(check_target(t, a.diagnosis) for t in targets)) for a in found
    )


def _no_run(inputs: Inputs) -> UsageError:
    """Return what to do with files none of which is a run."""
    given = ", ".join(f"{Path(p).name or p} ({kind})" for p, kind in inputs.sources)
    hint = "add a profile, the recording of a run, or a run or diagnose document"
    if inputs.model is not None and inputs.ceilings is not None:
        hint += "; what the model can reach there: `mansard estimate MODEL --on CEILINGS`"
    elif inputs.model is not None:
        hint += "; what the model needs: `mansard estimate MODEL`"
    return UsageError(f"there is no run among the files: {given}", hint=hint)


def _useless(asked: Asked, allowed: tuple[str, ...], what: str, hint: str) -> None:
    """Refuse options that mean nothing for the input: what is asked for is never dropped in silence."""
    loose = [f"--{n.replace('_', '-')}" for n in asked.given() if n not in allowed]
    if loose:
        raise UsageError(f"{', '.join(loose)}: {what}", hint=hint)


def _of_points(inputs: Inputs, asked: Asked, targets: Sequence[Target]) -> Answer:
    """Return what measured points say by themselves; a model beside them is no work that was measured."""
    hint = "what a model can reach on a machine: `mansard estimate MODEL --on CEILINGS`"
    _useless(asked, _FOR_POINTS, "this is about a run, and measured points alone are given", hint)
    ceilings = given_ceilings(asked, inputs)
    notes = []
    if asked.hardware is not None:
        declared = hardware_ceilings(load_hardware(asked.hardware), scope="device")
        ceilings = declared if ceilings is None else ceilings.merged(declared.ceilings)
    if inputs.model is not None:
        on = next((p for p, kind in inputs.sources if kind == "ceilings"), asked.hardware or "MACHINE")
        notes.append(
            Note(
                code="model_not_used",
                text=f"points say nothing of a model; what it can reach there: mansard estimate {inputs.model} --on {on}",
            )
        )
    source = ", ".join(p for p, kind in inputs.sources if kind == "detailed")
    with damage_named(f"{source} has a damaged point", hint="measure again"):
        found = diagnose_points(inputs.points, ceilings, source=source, notes=notes)
    if not found.points:
        raise UndecidedError(
            f"no point of {source} was measured", hint="mansard report FOLDER says why; measure again", code="no_points"
        )
    return Answer(found=found, targets=tuple(check_target(t, found) for t in targets))


def _of_documents(inputs: Inputs, asked: Asked) -> tuple[Answer, ...]:
    """Return finished diagnoses as they are: they keep what they were judged by."""
    hint = "give the profile, or the recording that `mansard run --keep FOLDER` leaves, to judge it anew"
    _useless(asked, _FOR_DOCUMENTS, "a finished diagnosis was judged already", hint)
    beside = [
        n
        for n, some in (("ceilings", inputs.ceilings), ("a model", inputs.model), ("counters", inputs.counters))
        if some
    ]
    if beside:
        raise UsageError(
            f"a finished diagnosis was judged already, and {' and '.join(beside)} cannot change it", hint=hint
        )
    return tuple(Answer(found=d) for d in inputs.documents)


def _of_recording(inputs: Inputs, asked: Asked) -> Diagnosis:
    """Return the diagnosis of what `mansard run --keep` recorded, by the ceilings that are given."""
    if len(inputs.recordings) > 1:
        raise UsageError("several recordings are given", hint="diagnose them one by one")
    _useless(asked, _FOR_RECORDINGS, "this is about a profile, and a recording is given", "leave it out")
    if inputs.model is not None:
        raise UsageError("a recording counts its own work, and a model cannot change it", hint="leave the model out")
    folder = inputs.recordings[0]
    question = question_of(asked, inputs)
    ceilings = ceilings_of(asked, inputs)
    if ceilings is None:
        raise UndecidedError(
            f"what the machine of {folder} can do is not in its recording",
            hint="add its ceilings: `mansard measure -o FOLDER` there, then `mansard diagnose RECORDING FOLDER`",
            code="no_ceilings",
        )
    if question.network_bytes_per_s is not None:
        ceilings = ceilings.merged((network_ceiling(question.network_bytes_per_s),))
    trace = load_run(folder)
    facts = Facts(points=question.points, cores_busy=cores_busy_of(trace))
    given = facts_of(asked)
    if given:
        facts = with_given(facts, given, trace, ceilings, rank=None)
    program = shlex.join(str(w) for w in read_meta(folder).get("argv", [])) or str(folder)
    return diagnose_run(trace, ceilings, program=program, facts=facts)


def _counters(inputs: Inputs, asked: Asked) -> Path | None:
    """Return the Nsight Compute report of a profile."""
    given = [*inputs.counters, *([Path(asked.ncu)] if asked.ncu is not None else [])]
    if len(given) > 1:
        raise UsageError("several Nsight Compute reports are given", hint="give one of them")
    return given[0] if given else None


def _of_profiles(
    inputs: Inputs, asked: Asked, opened: Opened, jobs: int | None, engine: str, progress: Callable[[str], Progress]
) -> Answer:
    question = question_of(asked, inputs)
    if len(inputs.profiles) + len(inputs.opened) > 1:
        if asked.device is not None:
            raise UsageError(
                "--device chooses within one profile, several are given", hint="diagnose that rank's file alone"
            )
        job = _job(inputs, question, opened, jobs, engine, progress)
        return Answer(found=job.devices[0].diagnosis, devices=job.devices, job=job)
    timeline = opened.prepared(inputs.opened[0]) if inputs.opened else opened(inputs.profiles[0])
    question = replace(question, device=device_index(timeline, asked.device))
    if not timeline.used_devices:
        _useless(
            asked,
            _FOR_HOSTS,
            "this is about devices, and the profile holds operators of the host alone",
            "leave it out",
        )
        if inputs.model is not None:
            raise UsageError(
                "operators of a host count their own work, and a model cannot change it", hint="leave the model out"
            )
        source = inputs.profiles[0] if inputs.profiles else Path(timeline.source)
        return Answer(found=diagnose_host(timeline, source, question.ceilings))
    devices = diagnose_profile(timeline, question)
    return Answer(found=devices[0].diagnosis, devices=devices, timeline=timeline)


def _job(
    inputs: Inputs, question: Question, opened: Opened, jobs: int | None, engine: str, progress: Callable[[str], Progress]
) -> JobDiagnosis:  # fmt: skip
    """Return the ranks of a job; profiles that are open already are held, and so is what is beside them."""
    if not inputs.opened:
        return diagnose_files(inputs.profiles, question, opened, jobs=jobs, engine=engine, progress=progress)
    held = [opened.prepared(t) for t in inputs.opened] + [opened(p) for p in inputs.profiles]
    return diagnose_job(held, question)
