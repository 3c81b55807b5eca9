"""`mansard baseline`: the results that later ones are compared with."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import click

from mansard.cli import options as shared
from mansard.cli.history_options import (
    form_option,
    label_option,
    limit_options,
    limits_of,
    store_option,
    tolerance_option,
    write_output,
)


@click.group("baseline", short_help="Keep results and name what later ones are compared with.")
def command() -> None:
    """Keep results, and name those that later ones are compared with.

    \b
      mansard baseline add main out/detailed.json --label zone=europe-west4-b
      mansard baseline list
      mansard check new/detailed.json --baseline main --rules rules.yaml
    """


def _offered(name: str, files: tuple[Path, ...], options: dict[str, Any]) -> int:
    """Offer files to a baseline, print what became of them, and return the exit code that weighs most."""
    from mansard.core.document import dumps, header
    from mansard.history.advance import add_to_baseline
    from mansard.history.fingerprint import labels_of
    from mansard.history.store import open_store, read_file
    from mansard.report.history_text import comparison_document, comparison_text

    limits, labels = limits_of(options), labels_of(options["labels"])
    added = []
    with open_store(options["store_at"]) as store:
        for path in files:
            found = add_to_baseline(
                store, name, read_file(path), source=path.name, accept=options["accept"] or "", limits=limits, form=options["form"],
                labels=labels,
            )  # fmt: skip
            added.append((path.name, found))
    if options["as_json"]:
        body = [
            {
                "source": source, "action": a.action, "text": a.text,
                "comparison": None if a.comparison is None else comparison_document(a.comparison, [name], [source]),
            }
            for source, a in added
        ]  # fmt: skip
        click.echo(dumps({**header("baseline_add/1", {}), "name": name, "added": body}), nl=False)
    else:
        for _, a in added:
            click.echo(a.text)
            if a.action == "refused" and a.comparison is not None:
                click.echo(comparison_text(a.comparison, shutil.get_terminal_size((80, 24)).columns), nl=False)
                click.echo("  hint: --accept REASON takes it nevertheless, and keeps the reason", err=True)
    codes = {a.exit_code for _, a in added}
    return 1 if 1 in codes else max(codes)


def _offer_options(function: Any) -> Any:
    for option in (
        shared.as_json,
        limit_options,
        label_option,
        click.option("--accept", metavar="REASON", help="Make FILE the baseline whatever the comparison says; kept with the reason."),
        store_option,
    ):  # fmt: skip
        function = option(function)
    return function


@command.command("add")
@click.argument("name")
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path))
@_offer_options
@form_option
def add(name: str, files: tuple[Path, ...], **options: Any) -> int:
    """Offer results to the baseline NAME.

    The first starts it. One that is the same joins it. A better one is kept as pending until a second run is as good. Anything else is
    refused: exit code 1 slower, 3 inconclusive or not comparable.
    """
    return _offered(name, files, options)


@command.command("import")
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--as", "name", metavar="NAME", help="Offer it to this baseline; without it the results are kept in the history."
)
@_offer_options
@form_option
def import_(files: tuple[Path, ...], name: str | None, **options: Any) -> int:
    """Take in results of other programs, or an archive of `baseline export`.

    Read are nccl-tests, nvbandwidth, nvbench, google/benchmark, pyperf and pytest-benchmark, beside every document of mansard.
    With --as the exit code is that of `baseline add`.
    """
    from mansard.core.document import dumps, header
    from mansard.core.errors import UsageError
    from mansard.history.archive import is_archive, read_archive
    from mansard.history.fingerprint import labels_of
    from mansard.history.store import open_store, read_file
    from mansard.report.history_text import figures_text, stored_json

    if name:
        for path in files:
            if is_archive(read_file(path)):
                raise UsageError(
                    f"{path} is an archive, and --as {name!r} names another baseline than it holds",
                    hint="leave --as out",
                )
        return _offered(name, files, options)
    labels = labels_of(options["labels"])
    kept: list[dict[str, Any]] = []
    with open_store(options["store_at"]) as store:
        for path in files:
            raw = read_file(path)
            if is_archive(raw):
                names = read_archive(store, raw, source=path.name)
                kept.append({"source": path.name, "baselines": names})
                text = f"{path.name}: baseline {', '.join(names)}"
            else:
                stored = store.add(raw, source=path.name, form=options["form"], labels=labels)
                kept.append(stored_json(stored))
                text = f"{path.name}: number {stored.number}, {figures_text(stored)}"
            if not options["as_json"]:
                click.echo(text)
    if options["as_json"]:
        click.echo(dumps({**header("baseline_import/1", {}), "imported": kept}), nl=False)
    return 0


@command.command("list")
@store_option
@click.option("--records", is_flag=True, help="Every result of the history instead of the baselines.")
@shared.as_json
def list_(store_at: str | None, records: bool, as_json: bool) -> int:
    """List the baselines of the store, or its results."""
    from mansard.core.document import dumps, header
    from mansard.core.errors import InputError
    from mansard.history.connection import NO_STORE, shown, store_url
    from mansard.history.store import Stored, Summary, open_store
    from mansard.report.history_text import baselines_text, figures_text, stored_json

    names: list[Summary] = []
    rows: list[Stored] = []
    try:
        with open_store(store_at, make=False) as store:
            names = store.baselines()
            rows = store.records() if records else []
    except InputError as error:
        if error.code != NO_STORE:
            raise
        click.echo(error.message, err=True)
    if as_json:
        body = [{"name": s.name, "states": dict(s.states), "last": s.last} for s in names]
        document = {
            **header("baselines/1", {}), "store": shown(store_url(store_at)), "baselines": body, "records": [stored_json(r) for r in rows],
        }  # fmt: skip
        click.echo(dumps(document), nl=False)
    elif records:
        for r in rows:
            click.echo(f"{r.number:>6}  {r.sha256[:12]}  {r.added[:19]}  {r.source}  {figures_text(r)}")
    else:
        click.echo(baselines_text(names), nl=False)
    return 0


@command.command("show")
@click.argument("name")
@store_option
@shared.as_json
def show(name: str, store_at: str | None, as_json: bool) -> int:
    """Show the results of a baseline with their states and reasons."""
    from mansard.core.document import dumps
    from mansard.history.store import open_store
    from mansard.report.history_text import baseline_document, baseline_text

    with open_store(store_at, make=False) as store:
        found = store.baseline(name)
    click.echo(dumps(baseline_document(found)) if as_json else baseline_text(found), nl=False)
    return 0


@command.command("trend")
@click.argument("name", required=False)
@click.option(
    "--metric", default="*", show_default=True, metavar="GLOB", help="Which figures: step_time_s, gemm*/time_s."
)
@tolerance_option
@store_option
@shared.as_json
def trend(name: str | None, metric: str, tolerance: str, store_at: str | None, as_json: bool) -> int:
    """Show how figures changed over the history, or over the results of the baseline NAME.

    Changes of level are named with their interval and with what of the environment changed there; a steady drift is said to be one.
    Exit code 3 where no figure has enough results.
    """
    from mansard.core.document import dumps
    from mansard.history.rules import ratio_of
    from mansard.history.store import open_store
    from mansard.history.trend import trends
    from mansard.report.history_trend import trend_document, trend_text

    with open_store(store_at, make=False) as store:
        records = store.baseline(name).timed() if name else store.timed_records()
    source = f"baseline {name}" if name else "the history"
    found = trends(records, metric=metric, tolerance_ratio=ratio_of(tolerance, "--tolerance"))
    click.echo(dumps(trend_document(found, source)) if as_json else _fitted(trend_text(found, source)), nl=False)
    return 0 if any(s.model != "too_short" for s in found) else 3


@command.command("rm")
@click.argument("name")
@store_option
@shared.as_json
def rm(name: str, store_at: str | None, as_json: bool) -> int:
    """Forget the baseline NAME; its results stay in the history."""
    from mansard.core.document import dumps, header
    from mansard.core.errors import InputError
    from mansard.history.store import open_store

    with open_store(store_at, make=False) as store:
        count = store.remove(name)
    if not count:
        raise InputError(f"no baseline {name!r} in the store", hint="mansard baseline list")
    if as_json:
        click.echo(dumps({**header("baseline_rm/1", {}), "name": name, "results": count}), nl=False)
    else:
        click.echo(f"forgot baseline {name!r} of {count} result{'' if count == 1 else 's'}")
    return 0


@command.command("export")
@click.argument("name")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Write to a file instead of stdout."
)
@shared.force
@store_option
@shared.as_json
def export(name: str, output: Path | None, force: bool, store_at: str | None, as_json: bool) -> int:
    """Write a baseline with its raw documents as one JSON file, for `baseline import` elsewhere."""
    from mansard.core.document import dumps, header
    from mansard.history.archive import archive_of
    from mansard.history.store import open_store

    with open_store(store_at, make=False) as store:
        document = archive_of(store, name)
    write_output(output, dumps(document), force=force)
    if as_json and output is not None:
        told = {"name": name, "output": str(output), "results": len(document["entries"])}
        click.echo(dumps({**header("baseline_export/1", {}), **told}), nl=False)
    return 0


def _fitted(text: str) -> str:
    from mansard.report.trace_layout import fitted

    return "\n".join(fitted(text.splitlines(), shutil.get_terminal_size((80, 24)).columns)) + "\n"
