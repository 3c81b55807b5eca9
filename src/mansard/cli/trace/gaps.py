"""`mansard trace gaps`: the idle gaps of each device one by one, with their causes."""

from __future__ import annotations

from typing import Any

import click

from mansard.cli.trace.common import file_options


@click.command("gaps", short_help="Idle gaps one by one, with their causes.")
@file_options
@click.option("--over", metavar="TIME", help='Only gaps longer than this, such as "1 ms".')
@click.option("--with-copies", is_flag=True, help="Copies and fills end a gap, as kernels do.")
@click.option("--limit", type=click.IntRange(min=0), default=20, show_default=True, help="Gaps of a device to list.")
def command(**options: Any) -> int:
    """List the longest gaps between kernels of FILE: when, how long, why, what ran before and after, and what launched that.

    Exit code 3 where no kernels were recorded, or the file is incomplete: what there is is printed.

    \b
      mansard trace gaps profile.sqlite --over "1 ms"
      mansard trace gaps trace.json.gz --with-copies --json
    """
    from mansard.cli.trace.common import deliver, exit_code, read
    from mansard.core.errors import UsageError
    from mansard.core.units import parse_quantity
    from mansard.report.trace_host import gaps_document, gaps_lines
    from mansard.trace.gaps import gaps_of
    from mansard.trace.launches import join_launches
    from mansard.trace.prepare import device_index

    over = round(parse_quantity(options["over"], "s") * 1e9) if options["over"] else 0
    if over < 0:
        raise UsageError(f"--over is {options['over']}, expected a time from 0 on")
    timeline = read(options)
    chosen = device_index(timeline, options["device"])
    launches = join_launches(timeline)
    found = [
        gaps_of(timeline, d, over_ns=over, most=options["limit"], all_work=options["with_copies"], launches=launches)
        for d in (timeline.used_devices if chosen is None else (chosen,))
    ]
    document = gaps_document(timeline, found, over, all_work=options["with_copies"])
    if not found:
        document["status"] = "no_kernels" if document["status"] == "complete" else document["status"]
    deliver(document, gaps_lines, as_json=options["as_json"])
    return exit_code(document)
