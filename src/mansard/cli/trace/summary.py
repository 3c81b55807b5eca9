"""`mansard trace summary`: busy and idle time of each device, by one set of definitions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from mansard.cli import options as shared
from mansard.cli.trace.common import file_options

if TYPE_CHECKING:
    from mansard.trace.timeline import Timeline


@click.command("summary", short_help="Busy and idle time of each device.")
@file_options
@click.option("--top", type=click.IntRange(min=0), default=10, show_default=True, help="Longest kernels to list.")
@shared.marker
@shared.categories
def command(**options: Any) -> int:
    """Say how busy each device of FILE was, why it was idle, and what it ran.

    Exit code 3 where no kernels were recorded, or the file is incomplete: what there is is printed.

    \b
      mansard trace summary profile.sqlite
      mansard trace summary trace.json.gz --trim 1.2 1.5 --json
    """
    from mansard.cli.trace.common import deliver, exit_code, read
    from mansard.report.trace_text import summary_lines

    document = summarise(read(options, spare_host=True), options)
    deliver(document, summary_lines, as_json=options["as_json"])
    return exit_code(document)


def summarise(timeline: Timeline, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document of a profile or a window.

    Ranges and kernel names come first and leave nothing behind but their figures, then one device after the other: of a
    large profile, little more than its own columns is held.
    """
    from mansard.diagnose.peaks import identify
    from mansard.report.trace_document import summary_document
    from mansard.trace.categories import load_rules, shipped_rules
    from mansard.trace.kernels import graphs, kernel_table
    from mansard.trace.launches import join_launches, lean
    from mansard.trace.occupancy import each_device_time
    from mansard.trace.prepare import device_index
    from mansard.trace.profile_steps import find_steps
    from mansard.trace.regions import attribute
    from mansard.trace.timeline import Kind
    from mansard.trace.window import only_device

    rules = load_rules(options["rules"]) if options.get("rules") else shipped_rules()
    chosen = device_index(timeline, options["device"])
    if chosen is not None:
        timeline = only_device(timeline, chosen)
    launches = join_launches(timeline)
    timeline = lean(timeline, launches)
    launches = replace(launches, calls=timeline.of(Kind.RUNTIME))
    ranges = attribute(timeline, launches=launches)
    steps = find_steps(timeline, marker=options.get("marker"), ranges=ranges, busy=False)
    rows = kernel_table(timeline, rules=rules, launches=launches, ranges=ranges)
    found = graphs(timeline, launches)
    kernels = launches.launched & (launches.kind == int(Kind.KERNEL))
    launched = int(kernels.sum()), int(launches.work.duration_ns.sum(where=kernels))
    del ranges, kernels
    launches = replace(launches)  # without the orders that ranges needed
    chips = {i: identify([d]) for i, d in enumerate(timeline.devices)}
    devices = each_device_time(timeline, rules=rules, launches=launches, devices=None if chosen is None else [chosen])
    return summary_document(timeline, devices, rows, found, steps, chips, launched=launched, top=options.get("top", 10))
