"""`mansard validate`: predict, run, compare: how far off estimates are, here or against recorded runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mansard.cli import options as shared

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mansard.predict.validation import Case


@click.command("validate", short_help="How far off estimates are.")
@click.option("--runs", type=click.Path(path_type=Path), help="Recorded runs: a CSV file, see docs/validation.md.")
@click.option("--models", metavar="A,B,...", help="Here: some of the small models alone.  [default: all four]")
@click.option(
    "--ceilings", "ceilings_file", type=click.Path(path_type=Path), help="Here: bound against this ceilings.json."
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Also write the document; `estimate --calibration` reads it.",
)
@shared.force
@click.option("-v", "--verbose", is_flag=True, help="Every run.")
@shared.as_json
def command(
    runs: Path | None,
    models: str | None,
    ceilings_file: Path | None,
    output: Path | None,
    force: bool,
    verbose: bool,
    as_json: bool,
) -> int:
    """Predict runs, compare with what they took, and say how far off the predictions are.

    Without --runs, four small models with random weights (dense, grouped-query, experts) do prompts, decode steps and training steps
    on this machine under PyTorch, in about a minute, against its measured ceilings. Each run is predicted from the other models.

    Exit code 3 where nothing was compared, or a run was faster than its bound.

    \b
      mansard validate -o mine.json
      mansard estimate config.json --on out/ceilings.json --context 512 \\
        --calibration mine.json
      mansard validate --runs our_cluster.csv
    """
    from mansard.cli.outputs import deliver
    from mansard.core.document import dumps, header, to_jsonable
    from mansard.core.errors import UsageError
    from mansard.core.outputs import may_write
    from mansard.predict.validation import validate, validation_keys
    from mansard.report.validate_text import validate_text

    if runs is not None and (models is not None or ceilings_file is not None):
        raise UsageError("--runs is about recorded runs; --models and --ceilings are about this machine")
    may_write(output, force=force)
    if runs is not None:
        from mansard.predict.recorded_runs import read_runs

        cases, refused = read_runs(runs)
        environment: dict[str, Any] = {"runs": str(runs)}
        basis = f"runs of {runs.name}"
    else:
        cases, refused, environment = _here(models, ceilings_file)
        basis = "runs of small models on this machine"
    found = validate(cases, basis=basis)
    document = to_jsonable({**header("validation/1", environment), **validation_keys(found, refused)})

    def show() -> None:
        click.echo(dumps(document) if as_json else validate_text(document, every=verbose), nl=not as_json)

    deliver(show, [(output, lambda: dumps(document))], force=force)
    return _exit_code(cases, found.implausible)


def _exit_code(cases: Sequence[Case], implausible: Sequence[str]) -> int:
    """3 where nothing was compared, or a run beat its bound; a kind with too few runs says so in its row."""
    return 3 if not cases or implausible else 0


def _here(models: str | None, ceilings_file: Path | None) -> tuple[list[Case], list[dict[str, str]], dict[str, Any]]:
    """Run the trials on this machine."""
    from mansard.core.errors import UsageError
    from mansard.measure.load import LoadWindow
    from mansard.predict.trial import MODELS, run_trials, trials

    chosen = tuple(m.strip() for m in models.split(",")) if models else tuple(MODELS)
    unknown = [m for m in chosen if m not in MODELS]
    if unknown:
        raise UsageError(f"no such model {unknown[0]!r}", hint=f"one of {', '.join(MODELS)}")
    ceilings = _ceilings(ceilings_file)
    threads = int(ceilings.machine.get("threads") or 1)
    click.echo(f"running {len(trials(chosen))} trials, about {2 * len(trials(chosen))} s", err=True)
    steps: Any = click.progressbar(length=100, label="trials", file=sys.stderr)
    with LoadWindow() as load, steps as bar:

        def progress(_line: str, share: float) -> None:
            bar.update(round(share * 100) - bar.pos)

        cases, failed = run_trials(trials(chosen), ceilings, threads=threads, progress=progress)
        bar.update(100 - bar.pos)
    environment = {
        "machine": dict(ceilings.machine), "threads": threads, "framework": _framework(), "dtype": "f32",
        "foreign_load_ratio": load.foreign_ratio,
    }  # fmt: skip
    return cases, failed, environment


def _ceilings(path: Path | None) -> Any:
    from mansard.core.errors import InputError
    from mansard.measure.store import load_cached

    if path is not None:
        from mansard.predict.machines import load_machine

        return load_machine(str(path)).ceilings
    kept = load_cached()
    if kept is None:
        raise InputError("no ceilings of this machine are kept", hint="mansard measure, about a minute, once")
    return kept


def _framework() -> str:
    from importlib.metadata import version

    return f"torch {version('torch')}, transformers {version('transformers')}"
