"""`mansard trace calls`: calls of the runtime by name, and how long launches take and wait."""

from __future__ import annotations

from typing import Any

import click

from mansard.cli.trace.common import file_options


@click.command("calls", short_help="Calls of the runtime, launch latency, queue time.")
@file_options
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="Rows of the text.")
def command(**options: Any) -> int:
    """List the calls of the runtime in FILE by name, the waits of the host, and how long launches of kernels take and wait.

    Exit code 3 where no calls of the runtime were recorded, or the file is incomplete: what there is is printed.

    \b
      mansard trace calls profile.sqlite
      mansard trace calls trace.json.gz --trim 1.2 1.5 --json
    """
    from mansard.cli.trace.common import deliver, exit_code, read
    from mansard.report.trace_host import calls_document, calls_lines
    from mansard.trace.kernels import graphs
    from mansard.trace.launch_times import call_rows, launch_times, wait_rows
    from mansard.trace.launches import join_launches
    from mansard.trace.prepare import device_index
    from mansard.trace.timeline import Kind

    timeline = read(options)
    chosen = device_index(timeline, options["device"])
    launches = join_launches(timeline)
    devices = timeline.used_devices if chosen is None else (chosen,)
    document = calls_document(
        timeline, call_rows(timeline, launches), wait_rows(timeline), {d: launch_times(launches, device=d) for d in devices},
        graphs(timeline, launches).launches,
    )  # fmt: skip
    deliver(document, lambda d: calls_lines(d, options["limit"]), as_json=options["as_json"])
    return 3 if not len(timeline.of(Kind.RUNTIME)) else exit_code(document)
