"""`mansard export`: results in the forms that other programs read."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mansard.cli import options as shared

if TYPE_CHECKING:
    from mansard.diagnose.profile import Question

FORMATS = ("csv", "parquet", "xlsx", "perfetto", "openmetrics", "junit", "machine", "figures")
_TABLES = ("operators", "parts", "advice", "ceilings", "points")


@click.command("export", short_help="Write results as CSV, Parquet, Perfetto, OpenMetrics, JUnit, ...")
@click.argument("form", metavar="FORMAT", type=click.Choice(FORMATS))
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path, allow_dash=True),
              help="File, or directory for figures. [default: stdout]")  # fmt: skip
@click.option(
    "--table", type=click.Choice(_TABLES), help="Which table csv and parquet write. [default: what the files are about]"
)
@shared.product
@click.option(
    "--ceilings",
    "ceilings_file",
    type=click.Path(path_type=Path),
    help="Ceilings to judge profiles and recordings against.",
)
@click.option("--as", "figure_forms", default="svg,png,pdf", show_default=True, help="Forms of figures.")
@click.option(
    "--max-calls",
    type=click.IntRange(1),
    default=200_000,
    show_default=True,
    help="Calls of a device that perfetto writes.",
)
@shared.force_all
@shared.written_as_json
def command(form: str, files: tuple[Path, ...], **options: Any) -> None:
    """Write FILES in another form.

    \b
      csv, parquet   one table: operators, parts, advice, ceilings or points
      xlsx           all tables, a sheet each
      perfetto       trace of a profile or of a run --keep directory, with
                     counter tracks of share of ceiling: -o x.pftrace or
                     x.perfetto-trace is Perfetto's own format, any other
                     name Chrome JSON; a further .gz compresses
      openmetrics    figures of runs, ceilings and points for a scrape
      junit          checks, targets and points as test cases
      machine        ceilings for simulators, JSON or YAML (-o machine.yaml)
      figures        roofline, time and operators for a paper

    \b
      mansard export csv run.json -o operators.csv
      mansard export perfetto trace.sqlite --hardware h100-sxm -o trace.json
      mansard export perfetto kept/ run.json -o trace.pftrace
      mansard export figures run.json -o figures/
    """
    from mansard.core.errors import UsageError
    from mansard.core.outputs import may_write

    output = None if options["output"] is None or str(options["output"]) == "-" else options["output"]
    if form == "figures":
        _figures(files, output, options)
        return
    if output is None and options["as_json"]:
        raise UsageError("--json and the export both want stdout", hint="write the export to a file with -o FILE")
    if output is None and form in ("parquet", "xlsx") and sys.stdout.isatty():
        raise UsageError(f"{form} is binary and stdout is a terminal", hint=f"-o out.{form}")
    may_write(output, force=options["force"], sources=files)
    content, notes = _content(form, files, output, options)
    _write(content, notes, output, options)


def _content(
    form: str, files: tuple[Path, ...], output: Path | None, options: dict[str, Any]
) -> tuple[bytes | Iterable[bytes], list[str]]:
    """Return what is written, at once or in pieces, and what it leaves out."""
    from mansard.report.exports.sources import one_table, read_sources, tables_of

    question = _question(options)
    if form == "perfetto":
        return _perfetto(files, question, output, options)
    sources = read_sources(files, question)
    if form in ("csv", "parquet"):
        from mansard.report.exports.tabular import to_csv, to_parquet

        table = one_table(sources, options["table"])
        return (to_csv(table).encode() if form == "csv" else to_parquet(table)), []
    if form == "xlsx":
        from mansard.report.exports.tabular import to_xlsx

        tables = tables_of(sources)
        return to_xlsx([*tables.values()] if tables else [one_table(sources, None)]), []
    if form == "openmetrics":
        from mansard.report.exports.openmetrics import to_openmetrics

        one_of = sources.diagnoses or sources.ceilings or sources.points
        return to_openmetrics(sources).encode() if one_of else _nothing(sources.kinds, "figures"), []
    if form == "junit":
        from mansard.report.exports.junit import to_junit

        return to_junit(sources).encode(), []
    from mansard.report.exports.machine import machine_of, to_json, to_yaml

    document = machine_of(sources)
    yaml = output is not None and output.suffix in (".yaml", ".yml")
    return (to_yaml(document) if yaml else to_json(document)).encode(), []


def _nothing(kinds: str, wanted: str) -> bytes:
    from mansard.core.errors import UsageError

    raise UsageError(
        f"the files hold {kinds}, which have no {wanted}", hint="give run or diagnose documents, ceilings or points"
    )


def _perfetto(
    files: tuple[Path, ...], question: Question, output: Path | None, options: dict[str, Any]
) -> tuple[Iterable[bytes], list[str]]:
    from mansard.report.exports.scenes import scenes_of
    from mansard.report.exports.sources import read_sources
    from mansard.report.exports.trace_files import writer_of
    from mansard.report.exports.tracks import draw

    write = writer_of("" if output is None else output.name)
    sources = read_sources(files, question, diagnose=False)
    scenes = scenes_of(sources.profiles, [(name, d) for name, d, _ in sources.diagnoses], question)
    drawing = draw(scenes, most_calls=options["max_calls"])
    return write(drawing), list(drawing.notes)


def _question(options: dict[str, Any]) -> Question:
    from mansard.core.ceilings import read_ceilings
    from mansard.diagnose.profile import Question

    path = options["ceilings_file"]
    return Question(hardware=options["hardware"], ceilings=read_ceilings(path) if path is not None else None)


def _figures(files: tuple[Path, ...], output: Path | None, options: dict[str, Any]) -> None:
    from mansard.core.errors import UsageError
    from mansard.report.exports.sources import read_sources
    from mansard.report.figures import figures

    if output is None:
        raise UsageError("figures are several files", hint="-o DIR")
    sources = read_sources(files, _question(options))
    if not sources.diagnoses or len(files) > 1:
        raise UsageError(
            f"figures are of one run, the files hold {len(sources.diagnoses)}",
            hint="mansard report FILES --figures DIR draws any mix of results",
        )
    name, shown, _ = sources.diagnoses[0]
    others = len(sources.diagnoses) - 1
    notes = (
        [
            f"the figures are of {name}, the busiest device; {others} {'other is' if others == 1 else 'others are'} not drawn"
        ]
        if others
        else []
    )
    forms = [f.strip() for f in options["figure_forms"].split(",") if f.strip()]
    for note in notes:
        click.echo(note, err=True)
    written = figures(shown, output, forms, force=options["force"])
    if options["as_json"]:
        _said({"output": str(output), "files": [str(p) for p in written], "notes": notes})
    else:
        click.echo(f"wrote {len(written)} figures to {output}", err=True)


def _write(content: bytes | Iterable[bytes], notes: list[str], output: Path | None, options: dict[str, Any]) -> None:
    from mansard.core.outputs import write_whole

    size_bytes = 0

    def pieces() -> Iterator[bytes]:
        nonlocal size_bytes
        for piece in [content] if isinstance(content, bytes) else content:
            size_bytes += len(piece)
            yield piece

    if output is None:
        sys.stdout.buffer.writelines(pieces())
        sys.stdout.buffer.flush()
    else:
        write_whole(output, pieces(), force=options["force"])
    for note in notes:
        click.echo(note, err=True)
    if options["as_json"]:
        _said({"output": str(output), "size_bytes": size_bytes, "notes": notes})
    elif output is not None:
        click.echo(f"wrote {output}", err=True)


def _said(body: dict[str, Any]) -> None:
    from mansard.core.document import header

    click.echo(json.dumps({**header("export/1", {}), **body}))
