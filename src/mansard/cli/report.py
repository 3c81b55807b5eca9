"""`mansard report`: a stored result as one self-contained HTML page."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click


@click.command("report", short_help="Turn a result into one self-contained HTML page.")
@click.argument("file", type=click.Path(path_type=Path, allow_dash=True))
@click.option("-o", "--output", default="report.html", show_default=True, help="Where to write the page; - is stdout.")
@click.option("--force", is_flag=True, help="Replace the output if it exists.")
@click.option("--json", "as_json", is_flag=True, help="Print what was written as JSON.")
def command(file: Path, output: str, force: bool, as_json: bool) -> None:
    """Write FILE, a `run` or `diagnose` document, as an HTML page that opens offline.

    \b
      mansard run --json train.py > run.json
      mansard report run.json -o report.html
      mansard report run.json -o - | gzip > report.html.gz
    """
    from mansard.core.errors import UsageError
    from mansard.report.document import from_document
    from mansard.report.html import render

    if as_json and output == "-":
        raise UsageError("--json and -o - both want stdout", hint="write the page to a file with -o FILE")
    # Before any work: a run that is lost to a wrong -o is the worst kind of error message.
    _may_write(output, file, force=force)
    page = render(from_document(_read(file)))
    if output == "-":
        sys.stdout.buffer.write(page.encode("utf-8"))
        sys.stdout.buffer.flush()
        return
    target = Path(output)
    try:
        target.write_text(page, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {target}: {error.strerror or error}", hint="choose another -o") from None
    if as_json:
        click.echo(json.dumps({"output": str(target), "size_bytes": len(page.encode("utf-8"))}))
    else:
        click.echo(f"wrote {target}", err=True)


def _read(file: Path) -> dict[str, object]:
    """Return the document in `file`, or on stdin for `-`."""
    from mansard.core.document import read_document
    from mansard.core.errors import InputError

    if str(file) == "-":
        try:
            document = json.load(sys.stdin)
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise InputError(f"stdin is not valid JSON: {error}") from None
        if not isinstance(document, dict):
            raise InputError("stdin is not a run document: expected a JSON object")
        return document
    try:
        return read_document(file, "run/1")
    except InputError as error:
        if "'diagnose/" not in error.message:
            raise
        return read_document(file, "diagnose/1")


def _may_write(output: str, source: Path, *, force: bool) -> None:
    """Refuse an output that exists without --force, and the input file always."""
    from mansard.core.errors import UsageError

    if output == "-":
        return
    target = Path(output)
    if str(source) != "-" and source.exists() and target.exists() and target.samefile(source):
        raise UsageError(f"the output {target} is the input itself", hint="choose another -o")
    if target.is_dir():
        raise UsageError(f"the output {target} is a directory, expected a file", hint="-o report.html")
    if target.exists() and not force:
        raise UsageError(f"{target} exists", hint="add --force to replace it, or choose another -o")
