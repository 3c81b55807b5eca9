"""What a trace export draws: each device of a recorded profile, or a recording of `mansard run --keep`, with its diagnosis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mansard.core import Ceilings
from mansard.core.errors import UsageError
from mansard.diagnose.profile import Question, diagnose_profile, machine_of_device, with_recorded_demand
from mansard.diagnose.profile_parts import parts_of_work
from mansard.diagnose.profile_run import run_of_profile
from mansard.diagnose.records import Diagnosis
from mansard.report.exports.tracks import Scene
from mansard.trace.collectives_of import collective_kinds
from mansard.trace.load import load_run
from mansard.trace.open import open_trace
from mansard.trace.operators_of import operators_of
from mansard.trace.profile_steps import find_steps


def scenes_of(
    paths: Sequence[Path], given: Sequence[tuple[str, Diagnosis]], question: Question | None = None
) -> list[Scene]:
    """Return the scenes of profiles and recordings.

    Args:
        paths: Profiles, and directories that `mansard run --keep` wrote.
        given: Finished diagnoses, which take the place of new ones; one profile with as many devices, or one recording.
        question: What is asked of profiles; its ceilings judge a recording.

    Raises:
        UsageError: nothing to draw, or the diagnoses cannot be told apart.
    """
    question = question or Question()
    if not paths:
        raise UsageError(
            "a trace needs what ran when, and only documents are given",
            hint="give the profile, or the directory of mansard run --keep DIR, beside its document",
        )
    if given and len(paths) > 1:
        raise UsageError(
            "a finished diagnosis belongs to one profile, several are given", hint="export them one by one"
        )
    out: list[Scene] = []
    for path in paths:
        if is_recording(path):
            out.append(_recording(path, given, question.ceilings))
        else:
            out += _profile(path, given, question)
    return out


def is_recording(path: Path) -> bool:
    """Return whether a path is a directory that `mansard run --keep` wrote."""
    return path.is_dir() and (path / "meta.json").is_file()


def _recording(path: Path, given: Sequence[tuple[str, Diagnosis]], ceilings: Ceilings | None) -> Scene:
    run = load_run(path)
    if len(given) > 1:
        raise UsageError(f"{len(given)} diagnoses are given for one recording", hint="give its own alone")
    if given:
        return Scene(name=given[0][1].program, run=run, diagnosis=given[0][1])
    if ceilings is None:
        raise UsageError(
            f"{path.name} is a recording without a diagnosis",
            hint="give the document of mansard run -o beside it, or --ceilings FILE",
        )
    from mansard.diagnose.analyse import diagnose_run

    return Scene(name=path.name, run=run, diagnosis=diagnose_run(run, ceilings, program=path.name))


def _profile(path: Path, given: Sequence[tuple[str, Diagnosis]], question: Question) -> list[Scene]:
    if question.region is not None:
        raise UsageError("a region is one stretch of the profile; a trace shows all of it", hint="leave --region out")
    timeline = open_trace(path, launch_shapes=True)
    found = diagnose_profile(timeline, question)
    if given and len(given) != len(found):
        raise UsageError(
            f"{len(given)} diagnoses are given, {path.name} has {len(found)} devices",
            hint="leave them out: they are made anew",
        )
    timeline = with_recorded_demand(timeline)
    steps, operators = find_steps(timeline, marker=question.marker), operators_of(timeline)
    collectives, parts = collective_kinds(timeline, operators=operators), parts_of_work(timeline, operators)
    scenes = []
    for i, one in enumerate(found):
        _, links = machine_of_device(one.chip, question)
        run = run_of_profile(
            timeline, one.device, steps=steps, links=links, operators=operators, collectives=collectives, parts=parts
        )
        scene = Scene(name=f"{path.name}: device {one.label}", run=run, diagnosis=one.diagnosis)
        scenes.append(replace(scene, diagnosis=given[i][1]) if given else scene)
    return scenes
