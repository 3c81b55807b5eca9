"""`mansard diagnose`: profiles, ceilings, measured points and a model, in any combination -> verdict, evidence, advice."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mansard.cli.diagnose_options import question_options

if TYPE_CHECKING:
    from mansard.diagnose.inputs import Inputs
    from mansard.diagnose.job import JobDiagnosis
    from mansard.diagnose.profile import DeviceDiagnosis
    from mansard.diagnose.records import Diagnosis
    from mansard.diagnose.target import Target, TargetResult
    from mansard.trace.timeline import Timeline


@click.command("diagnose", short_help="Name the bottleneck of a recorded profile.")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@question_options
@click.option(
    "--target", "targets", multiple=True, metavar="LIMIT", help='Such as "share >= 0.6": exit 1 where it is missed.'
)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Also write the JSON document.")
@click.option("--force", is_flag=True, help="Replace the output if it exists.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("--jobs", type=click.IntRange(min=1), help="Profiles of ranks at a time; default: one for each CPU.")
@click.option(
    "--engine", type=click.Choice(("local", "ray")), default="local", show_default=True, help="Where many are read."
)
@click.option("-v", "--verbose", is_flag=True, help="Every operator, the kernel table, all findings and receipt lines.")
def command(**options: Any) -> int:
    """Say what bounds a recorded run, how far it is below its ceiling, and what to change first.

    FILES are told apart by content: a profile (several are ranks of one job), an Nsight Compute CSV beside one, ceilings.json,
    detailed.json, a run or diagnose document, a model's config.json. A folder or a pattern stands for the files in it; of thousands
    of ranks some are read at a time, and one that fails is named and left out. Exit code 1 where a --target is missed, 3 where the
    verdict is undetermined, a ratio is refused, or a file was left out.

    \b
      mansard diagnose profile.sqlite
      mansard diagnose trace.json.gz config.json --phase train --batch 8 \\
        --seq 4096
      mansard diagnose rank*.json.gz --node-devices 8 --network-rate "400 Gbit/s"
      mansard diagnose profiles/ --jobs 16
      mansard diagnose trace.json.gz out/ceilings.json --target "share >= 0.6"
    """  # fmt: skip
    from mansard.core.outputs import may_write
    from mansard.diagnose.inputs import sort_inputs
    from mansard.diagnose.target import parse_target

    targets = [parse_target(text) for text in options["targets"]]
    may_write(options["output"], force=options["force"], sources=options["files"])
    inputs = sort_inputs(_expanded(options["files"]))
    if inputs.profiles:
        return _profiles(inputs, targets, options)
    return _documents(inputs, targets, options)


def _profiles(inputs: Inputs, targets: Sequence[Target], options: dict[str, Any]) -> int:
    """Diagnose profiles, with what was given beside them."""
    from mansard.cli.diagnose_options import question_of
    from mansard.cli.trace.common import files_progress
    from mansard.core.errors import UsageError
    from mansard.diagnose.candidates import side_by_side
    from mansard.diagnose.facts import points_of
    from mansard.diagnose.job import diagnose_files
    from mansard.diagnose.profile import diagnose_profile
    from mansard.trace.prepare import device_index

    if inputs.documents:
        raise UsageError(
            "a profile and a finished diagnosis are two questions", hint="diagnose them one after the other"
        )
    if len(inputs.profiles) > 1 and options["device"] is not None:
        raise UsageError(
            "--device chooses within one profile, several are given", hint="diagnose that rank's file alone"
        )
    candidates = side_by_side(points_of(inputs.points))
    opened = _Opened(ncu=_counters(inputs, options), trim=options["trim"], memory_limit=options["memory_limit"])
    if len(inputs.profiles) > 1:
        job = diagnose_files(
            inputs.profiles, question_of(options, inputs, None), opened, jobs=options["jobs"], engine=options["engine"],
            progress=files_progress,
        )  # fmt: skip
        return _deliver(job.devices, job, candidates, targets, options)
    timeline = opened(inputs.profiles[0])
    question = question_of(options, inputs, device_index(timeline, options["device"]))
    if not timeline.used_devices:
        from mansard.diagnose.host_profile import diagnose_host

        return _one(diagnose_host(timeline, inputs.profiles[0], question.ceilings), targets, options)
    found = diagnose_profile(timeline, question)
    return _deliver(found, None, candidates, targets, options, timeline=timeline)


def _expanded(words: Sequence[Path]) -> list[Path]:
    """Return the files that folders and patterns stand for; a folder that is something by itself stays one."""
    from mansard.diagnose.inputs import kind_of
    from mansard.trace.many import files_of

    return [p for word in words for p in ([word] if kind_of(word) != "profile" else files_of([word]))]


def _counters(inputs: Inputs, options: dict[str, Any]) -> Path | None:
    """Return the Nsight Compute report of a profile."""
    from mansard.core.errors import UsageError

    given = [*inputs.counters, *([options["ncu"]] if options["ncu"] is not None else [])]
    if len(given) > 1:
        raise UsageError("several Nsight Compute reports are given", hint="give one of them")
    return given[0] if given else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Opened:
    """Opens a profile with the demand of its kernels, cut to the window that was asked for, in whatever process.

    Args:
        ncu: Nsight Compute report.
        trim: Start and end of the window.
        memory_limit: Of one file.
    """

    ncu: Path | None
    trim: tuple[str, str] | None
    memory_limit: str | None

    def __call__(self, path: str | Path) -> Timeline:
        from mansard.cli.trace.common import read, with_demands

        asked = {"file": Path(path), "ncu": self.ncu, "trim": self.trim, "memory_limit": self.memory_limit}
        return read(asked, prepare=with_demands(asked), launch_shapes=True)


def _deliver(
    found: Sequence[DeviceDiagnosis],
    job: JobDiagnosis | None,
    candidates: Sequence[Any],
    targets: Sequence[Target],
    options: dict[str, Any],
    *,
    timeline: Timeline | None = None,
) -> int:
    from mansard.core.document import dumps
    from mansard.diagnose.target import check_target
    from mansard.report.diagnose_document import diagnose_document
    from mansard.report.diagnose_text import candidate_lines, device_lines, job_lines, table_lines
    from mansard.report.metrics_text import number_lines
    from mansard.report.sections.timeline import KEPT, of_profile

    results = [check_target(t, found[0].diagnosis) for t in targets]
    if options["as_json"] or options["output"] is not None:
        picture = None if timeline is None else of_profile(timeline, found[0].steps, most=KEPT)
        text = dumps(diagnose_document(found, job=job, targets=results, candidates=candidates, picture=picture))
        _write(text, options)
    if not options["as_json"]:
        width, verbose = _width(), options["verbose"]
        lines = job_lines(job, width=width) if job is not None else []
        _say(lines)
        for one in found if verbose else found[:1]:
            _print(one.diagnosis, verbose=verbose)
            _say(table_lines(one.table, width=width) if verbose else [])
            _say(number_lines(one.metrics, one.fixed_costs, width=width) if verbose else [])
        _say([] if verbose else device_lines(found[1:], width=width, limit=3))
        _say(candidate_lines(candidates, limit=20 if verbose else 3))
        _say([r.line for r in results])
    unjudged = any(d.refused for d in found) or (job is not None and bool(job.failed))
    return _exit_code(found[0].diagnosis, results, refused=unjudged)


def _documents(inputs: Inputs, targets: Sequence[Target], options: dict[str, Any]) -> int:
    """Show finished diagnoses again, and judge their targets."""
    from mansard.core.errors import UsageError
    from mansard.report.document import from_document

    if not inputs.documents:
        given = ", ".join(f"{Path(p).name or p} ({kind})" for p, kind in inputs.sources)
        raise UsageError(
            f"there is no run among the files: {given}", hint="add a profile, or a run or diagnose document"
        )
    if len(inputs.documents) > 1 and (options["as_json"] or options["output"] is not None):
        raise UsageError("--json and -o write one document, several are given", hint="diagnose them one by one")
    return max(_one(from_document(d), targets, options) for d in inputs.documents)


def _one(diagnosis: Diagnosis, targets: Sequence[Target], options: dict[str, Any]) -> int:
    """Deliver a diagnosis without devices."""
    from mansard.core.document import dumps, to_jsonable
    from mansard.diagnose.target import check_target
    from mansard.report.document import to_document

    results = [check_target(t, diagnosis) for t in targets]
    if options["as_json"] or options["output"] is not None:
        document = to_document(diagnosis, schema="diagnose/1")
        document["targets"] = to_jsonable([{"target": r.target.text, "value": r.value, "met": r.met} for r in results])
        _write(dumps(document), options)
    if not options["as_json"]:
        _print(diagnosis, verbose=options["verbose"])
        _say([r.line for r in results])
    return _exit_code(diagnosis, results, refused=False)


def _exit_code(diagnosis: Diagnosis, results: Sequence[TargetResult], *, refused: bool) -> int:
    """Return 1 where a target is missed, 3 where something asked for cannot be judged, else 0."""
    from mansard.core import Bound, Implausible, Unknown

    if any(r.met is False for r in results):
        return 1
    if refused or isinstance(diagnosis.mfu_ratio, Implausible) or any(isinstance(r.met, Unknown) for r in results):
        return 3
    return 3 if not results and diagnosis.verdict.bound is Bound.UNDETERMINED else 0


def _write(text: str, options: dict[str, Any]) -> None:
    from mansard.core.outputs import write_whole

    output = options["output"]
    if output is not None:
        write_whole(output, text, force=options["force"])
        click.echo(f"wrote {output}", err=True)
    if options["as_json"]:
        click.echo(text, nl=False)


def _say(lines: Sequence[str]) -> None:
    for line in lines:
        click.echo(line)


def _width() -> int:
    return max(60, min(160, shutil.get_terminal_size((80, 24)).columns))


def _print(diagnosis: Diagnosis, *, verbose: bool) -> None:
    from mansard.report.terminal import render

    color = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    encoding = sys.stdout.encoding or "utf-8"
    click.echo(render(diagnosis, width=_width(), color=color, verbose=verbose, encoding=encoding), nl=False)
