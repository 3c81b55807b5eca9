"""`mansard trace summary`: busy and idle time of each device, by one set of definitions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from mansard.cli.trace.common import file_options


@click.command("summary", short_help="Busy and idle time of each device.")
@file_options
@click.option("--top", type=click.IntRange(min=0), default=10, show_default=True, help="Longest kernels to list.")
@click.option("--marker", metavar="NAME", help="The range that marks a step.")
@click.option(
    "--rules", type=click.Path(path_type=Path), help="Own rules of kernel categories, before the shipped ones."
)
def command(**options: Any) -> int:
    """Say how busy each device of FILE was, why it was idle, and what it ran.

    Exit code 3 where no kernels were recorded, or the file is incomplete: what there is is printed.

    \b
      mansard trace summary profile.sqlite
      mansard trace summary trace.json.gz --trim 1.2 1.5 --json
    """
    from mansard.cli.trace.common import deliver, exit_code, read
    from mansard.report.trace_text import summary_lines

    timeline = read(options)
    document = summarise(timeline, options)
    deliver(document, summary_lines, as_json=options["as_json"])
    return exit_code(document)


def summarise(timeline: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Return the document of a profile or a window."""
    from mansard.cli.trace.common import device_index
    from mansard.diagnose.peaks import identify
    from mansard.report.trace_document import summary_document
    from mansard.trace.categories import load_rules, shipped_rules
    from mansard.trace.kernels import graphs, kernel_table
    from mansard.trace.launches import join_launches
    from mansard.trace.occupancy import device_times
    from mansard.trace.profile_steps import find_steps
    from mansard.trace.regions import attribute
    from mansard.trace.timeline import Kind

    rules = load_rules(options["rules"]) if options.get("rules") else shipped_rules()
    chosen = device_index(timeline, options["device"])
    launches = join_launches(timeline)
    devices = device_times(timeline, rules=rules, launches=launches, devices=None if chosen is None else [chosen])
    ranges = attribute(timeline, launches=launches)
    rows = kernel_table(timeline, rules=rules, launches=launches, ranges=ranges)
    kernels = launches.launched & (launches.kind == int(Kind.KERNEL))
    launched = int(kernels.sum()), int(launches.work.duration_ns[kernels].sum())
    chips = {i: identify([d]) for i, d in enumerate(timeline.devices)}
    steps = find_steps(timeline, marker=options.get("marker"), ranges=ranges)
    return summary_document(
        timeline, devices, rows, graphs(timeline, launches), steps, chips, launched=launched, top=options.get("top", 10)
    )
