"""`mansard diagnose`: profiles, ceilings, measured points and a model, in any combination -> verdict, evidence, advice."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mansard.cli import options as shared
from mansard.cli.diagnose_options import question_options
from mansard.core.errors import UsageError

if TYPE_CHECKING:
    from mansard.diagnose.answer import Answer


@click.command("diagnose", short_help="Name the bottleneck of a profile, or of measured points.")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@question_options
@click.option(
    "--target", "targets", multiple=True, metavar="LIMIT", help='Such as "share >= 0.6": exit 1 where it is missed.'
)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Also write the JSON document.")
@shared.force
@shared.as_json
@click.option("--jobs", type=click.IntRange(min=1), help="Profiles of ranks at a time; default: one for each CPU.")
@click.option(
    "--engine", type=click.Choice(("local", "ray")), default="local", show_default=True, help="Where many are read."
)
@click.option("-v", "--verbose", is_flag=True, help="Every operator, the kernel table, all findings and receipt lines.")
def command(**options: Any) -> int:
    """Say what bounds a recorded run, how far it is below its ceiling, and what to change first.

    FILES are told apart by content: a profile (several are ranks of one job), an Nsight Compute CSV beside one, ceilings.json,
    detailed.json, a model's config.json, a recording of `mansard run --keep`, a run or diagnose document. A folder or a pattern stands for the files in it; of thousands
    of ranks some are read at a time, and one that fails is named and left out. Measured points alone get a verdict each, with their
    fixed cost, the size from which on they can be judged, and which implementation is faster. Exit code 1 where a --target is missed, 3 where the
    verdict is undetermined, a ratio is refused, or a file was left out.

    \b
      mansard diagnose profile.sqlite
      mansard diagnose trace.json.gz config.json --phase train --batch 8 \\
        --seq 4096
      mansard diagnose rank*.json.gz --node-devices 8 --network-rate "400 Gbit/s"
      mansard diagnose profiles/ --jobs 16
      mansard diagnose out/ --hardware h100-sxm
      mansard diagnose trace.json.gz out/ceilings.json --target "share >= 0.6"
    """  # fmt: skip
    from mansard.cli.diagnose_options import asked_with
    from mansard.cli.trace.common import files_progress, watched
    from mansard.core.outputs import may_write
    from mansard.diagnose.answer import answers
    from mansard.diagnose.inputs import sort_inputs
    from mansard.diagnose.opened import Opened
    from mansard.diagnose.target import parse_target

    targets = [parse_target(text) for text in options["targets"]]
    may_write(options["output"], force=options["force"], sources=options["files"])
    found = answers(
        sort_inputs(options["files"]), asked_with(options), targets, jobs=options["jobs"], engine=options["engine"],
        opened=Opened(watched=watched), progress=files_progress,
    )  # fmt: skip
    if len(found) > 1 and (options["as_json"] or options["output"] is not None):
        raise UsageError("--json and -o write one document, several are given", hint="diagnose them one by one")
    return max(_deliver(answer, options) for answer in found)


def _deliver(answer: Answer, options: dict[str, Any]) -> int:
    """Print an answer, or write it, and return the exit code."""
    from mansard.core.document import dumps
    from mansard.report.diagnose_document import answer_document
    from mansard.report.diagnose_text import answer_text

    if options["as_json"] or options["output"] is not None:
        _write(dumps(answer_document(answer)), options)
    if not options["as_json"]:
        color = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        encoding = sys.stdout.encoding or "utf-8"
        text = answer_text(answer, width=_width(), color=color, verbose=options["verbose"], encoding=encoding)
        click.echo(text, nl=False)
    return _exit_code(answer)


def _exit_code(answer: Answer) -> int:
    """Return 1 where a target is missed, 3 where something asked for cannot be judged, else 0."""
    if answer.missed:
        return 1
    if answer.unjudged:
        return 3
    return 3 if not answer.targets and answer.undetermined else 0


def _write(text: str, options: dict[str, Any]) -> None:
    from mansard.core.outputs import write_whole

    output = options["output"]
    if output is not None:
        write_whole(output, text, force=options["force"])
        click.echo(f"wrote {output}", err=True)
    if options["as_json"]:
        click.echo(text, nl=False)


def _width() -> int:
    return max(40, min(160, shutil.get_terminal_size((80, 24)).columns))
