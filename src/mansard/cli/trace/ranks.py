"""`mansard trace ranks`: several files of one job."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("ranks", short_help="Several files of one job: skew, stragglers, imbalance.")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--memory-limit", metavar="SIZE", help='Refuse what needs more memory, such as "8 GB".')
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(files: tuple[Path, ...], memory_limit: str | None, as_json: bool) -> int:
    """Compare FILES, one per rank: clocks, steps, arrival at each collective, who makes the others wait.

    The time of a communication kernel is waiting plus transfer: the shortest of its peers is nearest to the transfer.

    \b
      mansard trace ranks rank*.json.gz
    """
    from mansard.cli.trace.common import deliver, exit_code
    from mansard.core.errors import UsageError
    from mansard.core.units import parse_quantity
    from mansard.report.ranks_document import ranks_document, ranks_lines
    from mansard.trace.open import open_trace
    from mansard.trace.ranks import compare_ranks

    if len(files) < 2:
        raise UsageError(
            "ranks compares the files of several ranks, got one", hint="mansard trace summary reads one file"
        )
    limit = int(parse_quantity(memory_limit, "bytes")) if memory_limit else None
    timelines = [open_trace(path, memory_limit=limit) for path in files]
    document = ranks_document(timelines, compare_ranks(timelines))
    deliver(document, ranks_lines, as_json=as_json)
    return exit_code(document)
