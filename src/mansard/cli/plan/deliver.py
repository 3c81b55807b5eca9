"""A document of `mansard plan` to the terminal, as text or JSON, and to a file where one was asked for."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import click

from mansard.cli import outputs


def deliver(
    document: Mapping[str, Any], options: Mapping[str, Any], text_of: Callable[[Mapping[str, Any]], str]
) -> None:
    """Print a document in plain JSON types, and write it where asked.

    Args:
        document: The document.
        options: `output`, `force` and `as_json`, as typed.
        text_of: Writes it for reading.
    """
    text = json.dumps(document, indent=2, allow_nan=False) + "\n"

    def show() -> None:
        click.echo(text if options["as_json"] else text_of(document) + "\n", nl=False)

    outputs.deliver(show, [(options["output"], lambda: text)], force=options["force"])
