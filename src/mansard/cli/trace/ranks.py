"""`mansard trace ranks`: several files of one job."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from mansard.cli import options as shared

MANY = 8  # fewer files are read faster without processes of their own


@click.command("ranks", short_help="Several files of one job: skew, stragglers, imbalance.")
@click.argument("files", nargs=-1, required=True, type=str)
@click.option("--memory-limit", metavar="SIZE", help='Refuse a file that needs more memory, such as "8 GB".')
@click.option("--jobs", type=click.IntRange(min=1), help="Files read at a time; default: one for each CPU.")
@click.option(
    "--engine", type=click.Choice(("local", "ray")), default="local", show_default=True, help="Where they are read."
)
@shared.as_json
def command(files: tuple[str, ...], memory_limit: str | None, jobs: int | None, engine: str, as_json: bool) -> int:
    """Compare FILES, one per rank: clocks, steps, arrival at each collective, who makes the others wait.

    FILES are files, folders of them, or patterns in quotes; there may be thousands. A file that cannot be read is named
    and left out. The time of a communication kernel is waiting plus transfer: the shortest of its peers is nearest to
    the transfer. Documents of mansard run are compared by the work of their own that ranks have in a step.

    Exit code 3 where who makes the others wait cannot be told, or a file was left out.

    \b
      mansard trace ranks rank*.json.gz
      mansard trace ranks run-0.json run-1.json
      mansard trace ranks profiles/ --engine ray
    """
    from mansard.cli.trace.common import deliver, exit_code, files_progress
    from mansard.core.errors import InputError, UsageError
    from mansard.core.units import parse_quantity
    from mansard.report.ranks_document import ranks_document, ranks_lines
    from mansard.trace.many import files_of, read_many
    from mansard.trace.ranks import compare_facts

    paths = files_of(files)
    if len(paths) < 2:
        raise UsageError(
            "ranks compares the files of several ranks, got one", hint="mansard trace summary reads one file"
        )
    if _are_runs(paths):
        return _compare_runs(paths, as_json=as_json)
    limit = int(parse_quantity(memory_limit, "bytes")) if memory_limit else None
    facts, failed = read_many(
        paths,
        jobs=jobs if len(paths) >= MANY or jobs else 1,
        memory_limit=limit,
        engine=engine,
        progress=files_progress("reading"),
    )
    if len(facts) < 2:
        why = f"; first {failed[0].source}: {failed[0].error}" if failed else ""
        raise InputError(
            f"{len(facts)} of {len(paths)} files could be read{why}",
            hint=(failed[0].hint if failed else "") or "give the profiles of several ranks",
        )
    document = ranks_document(facts, compare_facts(facts), failed)
    deliver(document, ranks_lines, as_json=as_json)
    return exit_code(document)


def _are_runs(paths: Sequence[Path]) -> bool:
    """Return whether all files are documents of `mansard run`; one that cannot be read is told about later."""
    from mansard.core.errors import InputError
    from mansard.trace.open import result_schema

    try:
        return all(result_schema(path).startswith("run/") for path in paths)
    except InputError:
        return False


def _compare_runs(paths: Sequence[Path], *, as_json: bool) -> int:
    """Compare the documents of the ranks of one job."""
    from mansard.cli.trace.common import deliver
    from mansard.core.document import read_document
    from mansard.core.unknown import Unknown
    from mansard.report.run_ranks import run_ranks_document, run_ranks_lines

    document = run_ranks_document([read_document(path, "run/1") for path in paths], paths)
    deliver(document, run_ranks_lines, as_json=as_json)
    return 3 if isinstance(document["straggler"], Unknown) else 0
