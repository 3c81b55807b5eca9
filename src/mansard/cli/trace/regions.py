"""`mansard trace regions`: marked ranges and the device work they launched."""

from __future__ import annotations

from typing import Any

import click

from mansard.cli import options as shared
from mansard.cli.trace.common import file_options


@click.command("regions", short_help="Marked ranges and the device work they launched.")
@file_options
@click.option("--region", "--name", "region", metavar="NAME", help="Only ranges with this name.")
@shared.match
@click.option("--exact-names", is_flag=True, help="Keep the numbers that PyTorch adds to names.")
@click.option("--operators", is_flag=True, help="The framework's operations count as ranges too.")
@click.option("--each", is_flag=True, help="One row for each range instead of each name, by start; needs --region.")
@click.option("--thread", metavar="TID", help="Only ranges of this thread.")
@shared.rows
def command(**options: Any) -> int:
    """List the ranges of FILE: time on the CPU, and the device work that calls inside them launched.

    Exit code 3 where no kernels were recorded, or the file is incomplete: what there is is printed.

    \b
      mansard trace regions profile.sqlite
      mansard trace regions profile.sqlite --region 'aten::*' --match glob --json
      mansard trace regions profile.sqlite --region train_step --each
    """
    import numpy as np

    from mansard.cli.trace.common import deliver, exit_code, read
    from mansard.core.errors import UsageError
    from mansard.report.trace_document import regions_document
    from mansard.report.trace_regions import occurrences_document, selected_document
    from mansard.report.trace_text import regions_lines
    from mansard.trace.prepare import device_index
    from mansard.trace.regions import attribute, choose, innermost, range_table
    from mansard.trace.timeline import Kind
    from mansard.trace.window import only_device, only_thread, whole_ranges

    if options["each"] and not options["region"]:
        raise UsageError("--each needs --region", hint="mansard trace regions lists the names")
    timeline = read(options)
    device = device_index(timeline, options["device"])
    if device is not None:
        timeline = only_device(timeline, device)
    kinds = (Kind.ANNOTATION, Kind.CPU_OP) if options["operators"] else (Kind.ANNOTATION,)
    if options["thread"] is not None:
        timeline = only_thread(timeline, options["thread"], kinds=kinds)
    ranges = attribute(timeline, kinds=kinds)
    more: dict[str, Any] = {}
    if options["region"]:
        chosen = choose(ranges, options["region"], match=options["match"])
        rows = range_table(ranges, grouped=not options["exact_names"], chosen=chosen)
        more["selected"] = selected_document(ranges, chosen.tolist())
        if options["each"]:
            more["occurrences"] = occurrences_document(ranges, chosen.tolist())
    else:
        rows = range_table(ranges, grouped=not options["exact_names"])
    inner = innermost(ranges)
    work, first = ranges.launches.by_call
    inside = work[np.repeat(inner >= 0, np.diff(first))]
    linked = int((ranges.launches.kind[inside] == int(Kind.KERNEL)).sum())
    document = {
        **regions_document(timeline, rows, (linked, len(timeline.of(Kind.KERNEL))), whole_ranges(timeline, kinds)),
        **more,
    }
    deliver(document, lambda d: regions_lines(d, options["limit"]), as_json=options["as_json"])
    return exit_code(document)
