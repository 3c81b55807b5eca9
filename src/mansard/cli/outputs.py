"""A result goes to the files that were asked for and to the terminal; one that cannot be written takes nothing else away."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import click

from mansard.core.errors import InputError
from mansard.core.outputs import write_whole


def stdout_width() -> int | None:
    """Return the width of what reads stdout: COLUMNS, else that of a terminal; None for a file or a pipe, which takes any."""
    if not os.environ.get("COLUMNS", "") and not (sys.stdout is not None and sys.stdout.isatty()):
        return None
    return max(40, shutil.get_terminal_size((80, 24)).columns)


def _say(text: str) -> None:
    click.echo(text, err=True)


def deliver(
    show: Callable[[], None],
    files: Iterable[tuple[Path | None, Callable[[], str | bytes]]],
    *,
    force: bool,
    say: Callable[[str], None] = _say,
) -> None:
    """Write files, show the result, and only then fail for a file that could not be written.

    The files come first: who reads the terminal may have gone.

    Args:
        show: Prints the result.
        files: Files and what makes their content; None asks for none.
        force: Whether files that exist are replaced.
        say: Tells that a file was written.

    Raises:
        InputError: a file could not be written; the result was shown.
    """
    failed: InputError | None = None
    for path, content in files:
        if path is None:
            continue
        try:
            write_whole(path, content(), force=force)
        except InputError as error:
            if failed is not None:
                say(failed.message)
            failed = error
        else:
            say(f"wrote {path}")
    show()
    if failed is not None:
        failed.beside_output = True
        raise failed
