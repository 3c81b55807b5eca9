"""`mansard trace streams`: what each stream did, and how much ran at once."""

from __future__ import annotations

from typing import Any

import click

from mansard.cli import options as shared
from mansard.cli.trace.common import file_options


@click.command("streams", short_help="Time of each stream, and kernels at once.")
@file_options
@shared.rows
def command(**options: Any) -> int:
    """Say what each stream of FILE did: kernels, their sum and union, copies, span; and how many kernels ran at once.

    Exit code 3 where no kernels were recorded, or the file is incomplete: what there is is printed.

    \b
      mansard trace streams profile.sqlite
      mansard trace streams trace.json.gz --device 0 --json
    """
    from mansard.cli.trace.common import deliver, exit_code, read
    from mansard.report.trace_host import streams_document, streams_lines
    from mansard.trace.prepare import device_index
    from mansard.trace.streams import at_once, several_streams_ns, stream_times

    timeline = read(options)  # all of it: a window counts from the first event of any kind
    chosen = device_index(timeline, options["device"])
    devices = timeline.used_devices if chosen is None else (chosen,)
    document = streams_document(
        timeline, stream_times(timeline, devices), {d: at_once(timeline, d) for d in devices},
        {d: several_streams_ns(timeline, d) for d in devices},
    )  # fmt: skip
    if not document["streams"]:
        document["status"] = "no_kernels" if document["status"] == "complete" else document["status"]
    deliver(document, lambda d: streams_lines(d, options["limit"]), as_json=options["as_json"])
    return exit_code(document)
