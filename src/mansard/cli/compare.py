"""`mansard compare`: is B faster or slower than A, and may one say so?"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mansard.cli import options as shared
from mansard.cli.history_options import form_option, limit_options, limits_of, records_at, write_output

if TYPE_CHECKING:
    from mansard.history.compare import Comparison, Limits


@click.command("compare", short_help="Is B faster or slower than A?")
@click.argument("baseline", metavar="[A]", required=False, type=click.Path(path_type=Path))
@click.argument("candidate", metavar="[B]", required=False, type=click.Path(path_type=Path))
@click.option("--run-a", metavar="COMMAND", help="Instead of A: a program, run in turn with that of --run-b.")
@click.option("--run-b", metavar="COMMAND", help="Instead of B: the candidate.")
@click.option(
    "--rounds", type=click.IntRange(min=5), default=20, show_default=True, help="How often each program is run."
)
@limit_options
@form_option
@click.option("--markdown", is_flag=True, help="Print a markdown table.")
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Write to a file.")
@shared.force
@shared.as_json
def command(baseline: Path | None, candidate: Path | None, **options: Any) -> int:
    """Compare two results: A is the baseline, B the candidate. A folder is several runs of the same benchmarks.

    With --run-a and --run-b two programs are run in turn, in random order, and their wall times compared in pairs.

    \b
      mansard compare before.json after.json
      mansard compare out-before/ out-after/ --tolerance "1 %" --markdown
      mansard compare old/detailed.json new/detailed.json --allow clock_policy \\
        --json
      mansard compare --run-a "python bench.py" \\
        --run-b "env PYTHONPATH=new python bench.py" --rounds 30

    Exit code 0 same or faster, 1 slower, 3 inconclusive, not comparable or implausible.
    """
    from mansard.core.document import dumps
    from mansard.core.errors import UsageError
    from mansard.history.compare import compare
    from mansard.report import history_text as text

    if options["as_json"] and options["markdown"]:
        raise UsageError("--json and --markdown both want the output", hint="choose one")
    programs = options["run_a"], options["run_b"]
    limits = limits_of(options)
    if any(programs):
        if not all(programs) or baseline is not None:
            raise UsageError(
                "give two results, or --run-a and --run-b", hint='mansard compare --run-a "..." --run-b "..."'
            )
        names, found = [[p] for p in programs], _in_turn(programs, options["rounds"], limits)
    elif baseline is None or candidate is None:
        raise UsageError("two results are needed", hint="mansard compare before.json after.json")
    else:
        sides = [records_at(p, options["form"]) for p in (baseline, candidate)]
        names, found = [[r.source for r in side] for side in sides], compare(sides[0], sides[1], limits)
    if options["as_json"]:
        shown = dumps(text.comparison_document(found, *names))
    else:
        shown = (
            text.comparison_markdown(found)
            if options["markdown"]
            else text.comparison_text(found, shutil.get_terminal_size((80, 24)).columns)
        )
    write_output(options["output"], shown, force=options["force"])
    return found.exit_code


def _in_turn(programs: tuple[str, str], rounds: int, limits: Limits) -> Comparison:
    """Run two programs in turn and compare their wall times in pairs."""
    from dataclasses import replace

    from mansard.history.compare import compare_figures
    from mansard.history.programs import in_turn_programs

    return compare_figures(*in_turn_programs(*programs, rounds), limits=replace(limits, interleaved=True))
