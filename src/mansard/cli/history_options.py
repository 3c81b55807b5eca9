"""Options and files that `compare`, `check` and `baseline` share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from mansard.history.compare import Limits
    from mansard.history.records import Record

F = TypeVar("F", bound=Callable[..., Any])

FORMS = ("auto", "mansard", "nccl-tests", "nvbandwidth", "nvbench", "google-benchmark", "pyperf", "pytest-benchmark",
         "accelerator-microbenchmarks")  # fmt: skip

#: Endings of results in a folder. Not .csv: what `measure` and the published suite write as one stands in the JSON beside it too.
_RESULTS = (".json", ".json.gz", ".jsonl", ".txt", ".log")

form_option = click.option(
    "--form", type=click.Choice(FORMS), default="auto", metavar="FORM",
    help=f"What wrote it: {', '.join(FORMS[1:])}. [default: told by content]",
)  # fmt: skip
label_option = click.option(
    "--label", "labels", multiple=True, metavar="COMPONENT=VALUE", help="What FILE does not tell: zone=a, image=..."
)
tolerance_option = click.option(
    "--tolerance", default="2 %", show_default=True, help="The smallest relative change that matters."
)


def store_option(function: F) -> F:
    """Add `--store`."""
    text = "SQLite file or postgresql:// URL. [default: MANSARD_STORE, else the user's data folder]"
    return click.option("--store", "store_at", metavar="URL", help=text)(function)


def limit_options(function: F) -> F:
    """Add what counts as a change."""
    for option in reversed((
        tolerance_option,
        click.option("--resolution", default="10 %", show_default=True, help="Same is said only if this would have been seen."),
        click.option("--floor", default="1 us", show_default=True, help="The smallest difference of a time that matters."),
        click.option(
            "--run-spread", help="Known spread of this machine between runs. [default: 1 %; 10 % where one process a side and no history show none]"
        ),
        click.option("--interleaved", is_flag=True, help="Both sides were taken in turn, sample by sample."),
        click.option("--allow", multiple=True, metavar="COMPONENT", help="A condition that may differ."),
        click.option("--require", multiple=True, metavar="COMPONENT", help="Software that must be the same."),
    )):  # fmt: skip
        function = option(function)
    return function


def limits_of(options: dict[str, Any]) -> Limits:
    """Return the limits that were asked for.

    Raises:
        UsageError: one is no number, or they contradict each other.
    """
    from mansard.core.errors import UsageError
    from mansard.core.units import parse_quantity
    from mansard.history.compare import Limits
    from mansard.history.fingerprint import differences
    from mansard.history.records import Fingerprint
    from mansard.history.rules import ratio_of

    differences(Fingerprint(), Fingerprint(), allow=options["allow"], require=options["require"])
    stated = options["run_spread"]
    known: dict[str, Any] = (
        {} if stated is None else dict.fromkeys(("run_ratio", "unseen_ratio"), ratio_of(stated, "--run-spread"))
    )
    try:
        return Limits(
            tolerance_ratio=ratio_of(options["tolerance"], "--tolerance"),
            resolution_ratio=ratio_of(options["resolution"], "--resolution"),
            floor_s=parse_quantity(options["floor"], "s"),
            **known, interleaved=options["interleaved"], allow=options["allow"], require=options["require"],
        )  # fmt: skip
    except ValueError as error:
        raise UsageError(str(error)) from None


def records_at(path: Path, form: str = "auto", labels: Sequence[str] = ()) -> list[Record]:
    """Return the runs at a path: a file, or every file of a folder that may be a result by its ending.

    Raises:
        UsageError: a folder without results.
        InputError: a file cannot be read.
    """
    from mansard.core.errors import UsageError
    from mansard.history.documents import read
    from mansard.history.fingerprint import labels_of

    parts = labels_of(labels)
    if not path.is_dir():
        return [read(path, labels=parts, form=form)]
    files = sorted(p for p in path.iterdir() if p.name.endswith(_RESULTS) and p.is_file())
    if not files:
        raise UsageError(
            f"the folder {path} holds no file of results ({', '.join(_RESULTS)})",
            hint="name the files, or another folder",
        )
    return [read(p, labels=parts, form=form) for p in files]


def write_output(target: Path | None, text: str, *, force: bool) -> None:
    """Write text to a file, or to stdout where none is named.

    Raises:
        UsageError: the file exists.
        InputError: it cannot be written.
    """
    from mansard.core.outputs import may_write, write_whole

    if target is None:
        click.echo(text, nl=False)
        return
    may_write(target, force=force)
    write_whole(target, text, force=force)
    click.echo(f"wrote {target}", err=True)
