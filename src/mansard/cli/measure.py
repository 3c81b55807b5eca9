"""`mansard measure`: what this machine can do, as ceilings."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from mansard.core.ceilings import Ceilings

GROUPS = ("vector", "memory", "matrix", "special", "latency")
FILE_NAME = "ceilings.json"


@click.command("measure", short_help="Measure what this machine can do, and keep it as ceilings.")
@click.option("--suite", type=click.Choice(["quick"]), default="quick", show_default=True, help="How thorough.")
@click.option("--threads", type=click.IntRange(min=1), help="Threads of the team; default: all this process may use.")
@click.option("--only", type=click.Choice(GROUPS), multiple=True, help="Measure this group alone; may be repeated.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, file_okay=False), help=f"Also write {FILE_NAME} into this folder."
)
@click.option("--force", is_flag=True, help=f"Replace {FILE_NAME} and what is kept.")
@click.option("--json", "as_json", is_flag=True, help="Print the ceilings document alone.")
@click.option("-q", "--quiet", is_flag=True, help="No progress and no closing lines.")
def command(
    suite: str,
    threads: int | None,
    only: tuple[str, ...],
    output: Path | None,
    force: bool,
    as_json: bool,
    quiet: bool,
) -> int:
    """Measure peaks, bandwidths and fixed costs of this machine, in about a minute.

    The result is kept per machine and state (processor, limits, versions), where `mansard run` finds it. Run it on an
    idle machine: what others use is missing from the figures, and is reported beside them.

    \b
      mansard measure
      mansard measure --only memory --threads 1
      mansard measure --json | jq '.ceilings[] | select(.scope == "node")'
    """
    from mansard.core.document import dumps
    from mansard.core.errors import UndecidedError, UsageError
    from mansard.measure import document, load_cached, measure, save
    from mansard.measure.store import worth_keeping, write_text
    from mansard.report.ceilings_table import show

    target = output / FILE_NAME if output is not None else None
    if target is not None and target.exists() and not force:
        raise UsageError(f"{target} exists", hint="--force replaces it", code="exists")
    ceilings = measure(suite, threads=threads, only=only or None, progress=_progress(quiet))
    if not ceilings.ceilings:
        _findings(ceilings)
        raise UndecidedError("nothing could be measured", hint="see the findings above; install mansard[cpu]")
    text = dumps(document(ceilings))
    if target is not None:
        write_text(target, text)
    # A partial or disturbed measurement must not hide a better one that `run` would find.
    old = None if only or force else load_cached(threads=threads)
    if only:
        kept = "not kept for `mansard run`: --only measures a part; leave it out for that"
    elif worth_keeping(ceilings, old):
        kept = f"kept as {save(ceilings)}"
    else:
        kept = "not kept: the figures kept before were taken with less foreign load; --force replaces them"
    if as_json:
        click.echo(text, nl=False)
    else:
        show(ceilings)
    if not quiet:
        _findings(ceilings)
        if target is not None:
            click.echo(f"wrote {target}", err=True)
        click.echo(kept, err=True)
    return 0


def _progress(quiet: bool) -> Callable[[str, float], None] | None:
    if quiet or not sys.stderr.isatty():
        return None

    def say(text: str, share: float) -> None:
        line = f"\r\033[K{share:4.0%}  {text}" if share < 1.0 else "\r\033[K"
        click.echo(line, err=True, nl=False)

    return say


def _findings(ceilings: Ceilings) -> None:
    for finding in ceilings.machine.get("findings", ()):
        click.echo(f"note: {finding['text']}", err=True)
