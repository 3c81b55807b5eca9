"""A document of `mansard plan` to the terminal, as text or JSON, and to a file where one was asked for."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from mansard.core.errors import UsageError


def deliver(
    document: Mapping[str, Any], options: Mapping[str, Any], text_of: Callable[[Mapping[str, Any]], str]
) -> None:
    """Print a document in plain JSON types, and write it where asked.

    Args:
        document: The document.
        options: `output` and `as_json`, as typed.
        text_of: Writes it for reading.
    """
    text = json.dumps(document, indent=2, allow_nan=False) + "\n"
    if options["output"] is not None:
        target: Path = options["output"]
        try:
            target.write_text(text, encoding="utf-8")
        except OSError as error:
            raise UsageError(f"cannot write {target}: {error.strerror or error}", hint="choose another -o") from None
        click.echo(f"wrote {target}", err=True)
    click.echo(text if options["as_json"] else text_of(document) + "\n", nl=False)
