"""`mansard check`: hold a result against rules and a baseline, for people and for CI."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mansard.cli import options as shared
from mansard.cli.history_options import form_option, label_option, records_at, store_option, write_output

if TYPE_CHECKING:
    from mansard.history.check import Check
    from mansard.history.records import Record
    from mansard.history.rules import Rules

_OUTPUTS = ("markdown", "junit", "annotations", "benchmark-action-smaller", "benchmark-action-bigger", "bencher")


@click.command("check", short_help="Hold a result against rules and a baseline.")
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--rules", "rules_file", type=click.Path(path_type=Path),
              help="The rules, YAML. [default: nothing slower than the baseline, as compare says it]")  # fmt: skip
@click.option("--baseline", metavar="NAME", help="A baseline of the store, to compare with.")
@click.option("--baseline-file", type=click.Path(path_type=Path), help="A result or folder of runs instead of a name.")
@store_option
@label_option
@form_option
@click.option("--as", "outputs", multiple=True, metavar="FORM[=FILE]",
              help=f"Also write as one of {', '.join(_OUTPUTS)}; without FILE on stdout instead of the text.")  # fmt: skip
@shared.force_all
@shared.as_json
def command(file: Path, **options: Any) -> int:
    """Hold FILE against the rules: absolute targets such as a share of the ceiling, and limits relative to a baseline.

    Without --rules a baseline is needed, and the gate is that no figure is slower than it, with the tolerance of compare.

    \b
      mansard check out/detailed.json --baseline main
      mansard check out/detailed.json --rules rules.yaml --baseline main
      mansard check run.json --rules rules.yaml --as junit=check.xml \\
        --as markdown=summary.md

    Exit code 0 all rules passed, 1 a rule failed, 3 one could not be decided (inconclusive, not comparable, nothing measured).
    """
    from mansard.core.document import dumps
    from mansard.core.errors import UsageError
    from mansard.history.check import check
    from mansard.history.rules import built_in_rules, read_rules
    from mansard.report.history_text import check_document, check_text

    if options["baseline"] and options["baseline_file"]:
        raise UsageError("--baseline and --baseline-file are given, expected one of them")
    if options["rules_file"] is None and not (options["baseline"] or options["baseline_file"]):
        raise UsageError(
            "neither --rules nor a baseline is given, so there is nothing to hold it against",
            hint="--baseline NAME or --baseline-file FILE: nothing may be slower than it; or --rules rules.yaml",
        )
    outputs = [_output(o) for o in options["outputs"]]
    on_stdout = [form for form, target in outputs if target is None]
    if len(on_stdout) + bool(options["as_json"]) > 1:
        raise UsageError("more than one form wants stdout", hint="give the others a file: --as junit=check.xml")
    rules = built_in_rules() if options["rules_file"] is None else read_rules(options["rules_file"])
    runs = records_at(file, options["form"], options["labels"])
    name, baseline = _baseline(options)
    found = check(runs[0], rules, baseline=baseline, baseline_name=name, more=runs[1:])
    if options["rules_file"] is None:
        click.echo(
            f"no --rules: no figure may be slower than the baseline ({_tolerance(rules)}, as compare says it)", err=True
        )
    _write(found, runs[0], outputs, force=options["force"])
    if options["as_json"]:
        click.echo(dumps(check_document(found)), nl=False)
    elif not on_stdout:
        click.echo(check_text(found, shutil.get_terminal_size((80, 24)).columns), nl=False)
    return found.exit_code


def _tolerance(rules: Rules) -> str:
    from mansard.core.units import format_ratio

    return f"tolerance {format_ratio(rules.limits.tolerance_ratio)}"


def _output(text: str) -> tuple[str, Path | None]:
    from mansard.core.errors import UsageError

    form, equals, target = text.partition("=")
    if form not in _OUTPUTS or (equals and not target):
        raise UsageError(f"--as {text!r} is no form", hint=f"FORM or FORM=FILE with one of {', '.join(_OUTPUTS)}")
    return form, Path(target) if target else None


def _baseline(options: dict[str, Any]) -> tuple[str, list[Record]]:
    if options["baseline_file"]:
        return options["baseline_file"].name, records_at(options["baseline_file"])
    if not options["baseline"]:
        return "", []
    from mansard.history.store import open_store

    with open_store(options["store_at"], make=False) as store:
        return options["baseline"], store.baseline(options["baseline"]).records()


def _write(found: Check, record: Record, outputs: list[tuple[str, Path | None]], *, force: bool) -> None:
    from mansard.report.history_outputs import written

    for form, target in outputs:
        write_output(target, written(form, found, record), force=force)
