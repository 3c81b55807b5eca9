"""`mansard compare`: is B faster or slower than A, and may one say so?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from mansard.cli.history_options import FORMS, limit_options, limits_of, records_at, write_output


@click.command("compare", short_help="Is B faster or slower than A?")
@click.argument("baseline", metavar="A", type=click.Path(path_type=Path))
@click.argument("candidate", metavar="B", type=click.Path(path_type=Path))
@limit_options
@click.option(
    "--form", type=click.Choice(FORMS), default="auto", help="What wrote the files. [default: told by content]"
)
@click.option("--markdown", is_flag=True, help="Print a markdown table.")
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Write to a file.")
@click.option("--force", is_flag=True, help="Replace the output if it exists.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(baseline: Path, candidate: Path, **options: Any) -> int:
    """Compare two results: A is the baseline, B the candidate. A folder is several runs of the same benchmarks.

    \b
      mansard compare before.json after.json
      mansard compare out-before/ out-after/ --tolerance "1 %" --markdown
      mansard compare old/detailed.json new/detailed.json --allow clock_policy --json

    Exit code 0 same or faster, 1 slower, 3 inconclusive, not comparable or implausible.
    """
    from mansard.core.document import dumps
    from mansard.core.errors import UsageError
    from mansard.history.compare import compare
    from mansard.report import history_text as text

    if options["as_json"] and options["markdown"]:
        raise UsageError("--json and --markdown both want the output", hint="choose one")
    limits = limits_of(options)
    sides = [records_at(p, options["form"]) for p in (baseline, candidate)]
    found = compare(sides[0], sides[1], limits)
    if options["as_json"]:
        shown = dumps(text.comparison_document(found, *([r.source for r in side] for side in sides)))
    else:
        shown = text.comparison_markdown(found) if options["markdown"] else text.comparison_text(found)
    write_output(options["output"], shown, force=options["force"])
    return found.exit_code
