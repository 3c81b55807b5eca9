"""`mansard report`: stored results and recorded profiles as one self-contained HTML page."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mansard.cli import options as shared

if TYPE_CHECKING:
    from mansard.diagnose.profile import Question


@click.command("report", short_help="Turn results into one self-contained HTML page.")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, allow_dash=True))
@click.option("-o", "--output", default="report.html", show_default=True, help="Where to write the page; - is stdout.")
@shared.product
@click.option(
    "--ceilings", "ceilings_file", type=click.Path(path_type=Path), help="Ceilings to judge profiles against."
)
@click.option(
    "--figures",
    "figures_dir",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Write each chart also as a figure for a paper: one column wide, SVG, PNG and PDF.",
)
@click.option("--as", "figure_forms", default="svg,png,pdf", show_default=True, help="Forms of the figures.")
@shared.force_all
@shared.written_as_json
def command(
    files: tuple[Path, ...],
    output: str,
    hardware: str | None,
    ceilings_file: Path | None,
    figures_dir: Path | None,
    figure_forms: str,
    force: bool,
    as_json: bool,
) -> None:
    """Write FILES as one HTML page that opens offline.

    FILES are recorded profiles and what Mansard wrote with --json, in any mix;
    each is told apart by its content. The first run or profile heads the page.

    \b
      run, diagnose                 verdict, advice, roofline, operators
      a profile                     the same, with timeline and kernels
      measure                       detailed.json, ceilings.json
      estimate, plan ...            least time, memory, scaling, layouts
      trace ...                     summary, kernels, steps, ranks, mfu, ...
      compare, check, baseline ...  what changed, history, trends
      any other document            its facts and tables

    \b
      mansard report run.json -o report.html
      mansard report out/*.json trace.sqlite --hardware h100-sxm -o report.html
      mansard report run.json -o - | gzip > report.html.gz
      mansard report run.json detailed.json --figures figures/
    """
    from mansard.core.errors import UsageError
    from mansard.core.outputs import may_write, write_whole
    from mansard.report.html import render_page
    from mansard.report.material import read

    if as_json and output == "-":
        raise UsageError("--json and -o - both want stdout", hint="write the page to a file with -o FILE")
    if sum(str(f) == "-" for f in files) > 1:
        raise UsageError("- is given more than once, and there is one stdin", hint="name the other files")
    # Before any work: a run that is lost to a wrong -o is the worst kind of error message.
    may_write(None if output == "-" else Path(output), force=force, sources=files)
    stdin = _stdin() if any(str(f) == "-" for f in files) else None
    made = read(files, stdin, _question(hardware, ceilings_file))
    page = render_page(made)
    figures: list[Path] = []
    if figures_dir is not None:
        from mansard.report.figures_charts import page_figures

        forms = [f.strip() for f in figure_forms.split(",") if f.strip()]
        figures = page_figures(made, figures_dir, forms, force=force)
        click.echo(f"wrote {len(figures)} figures to {figures_dir}", err=True)
    if output == "-":
        sys.stdout.buffer.write(page.encode("utf-8"))
        sys.stdout.buffer.flush()
        return
    target = Path(output)
    write_whole(target, page, force=force)
    if as_json:
        written = {"figures": [str(f) for f in figures]} if figures_dir is not None else {}
        click.echo(json.dumps({"output": str(target), "size_bytes": len(page.encode("utf-8")), **written}))
    else:
        click.echo(f"wrote {target}", err=True)


def _stdin() -> str:
    from mansard.core.errors import InputError

    if sys.stdin is None:
        raise InputError("stdin is closed, and - reads from it", hint="name the files")
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise InputError(f"stdin is not valid JSON: {error}") from None


def _question(hardware: str | None, ceilings_file: Path | None) -> Question:
    from mansard.core.ceilings import read_ceilings
    from mansard.diagnose.profile import Question

    path = ceilings_file
    return Question(hardware=hardware, ceilings=read_ceilings(path) if path is not None else None)
