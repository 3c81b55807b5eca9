"""`mansard trace steps`: the steps of a profile, or that none were found."""

from __future__ import annotations

from typing import Any

import click

from mansard.cli import options as shared
from mansard.cli.trace.common import file_options


@click.command("steps", short_help="Steps, from markers or from the period of the kernels.")
@file_options
@click.option("--marker", metavar="NAME", help="The range that marks a step; without it one is looked for.")
@shared.match
def command(**options: Any) -> int:
    """Find the steps of FILE. That none were found is an answer, with exit code 0.

    Exit code 3 where no kernels were recorded, or the file is incomplete.

    \b
      mansard trace steps trace.json.gz
      mansard trace steps profile.sqlite --marker train_step
    """
    from mansard.cli.trace.common import deliver, exit_code, read
    from mansard.report.trace_document import steps_document
    from mansard.report.trace_text import steps_lines
    from mansard.trace.prepare import device_index
    from mansard.trace.profile_steps import find_steps
    from mansard.trace.window import only_device

    timeline = read(options)
    chosen = device_index(timeline, options["device"])
    if chosen is not None:
        timeline = only_device(timeline, chosen)
    document = steps_document(timeline, find_steps(timeline, marker=options["marker"], match=options["match"]))
    deliver(document, steps_lines, as_json=options["as_json"])
    return exit_code(document)
