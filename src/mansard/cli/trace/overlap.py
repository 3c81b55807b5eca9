"""`mansard trace overlap`: which kinds of work run at once, and what communication nothing hides."""

from __future__ import annotations

from typing import Any

import click

from mansard.cli.trace.common import file_options


@click.command("overlap", short_help="Which kinds of work run at once; exposed communication.")
@file_options
def command(**options: Any) -> int:
    """Say for each device of FILE how long compute, communication and copies run, and run at once.

    Exit code 3 where no kernels were recorded, or the file is incomplete: what there is is printed.

    \b
      mansard trace overlap profile.sqlite --json
    """
    from mansard.cli.trace.common import deliver, exit_code, read
    from mansard.report.trace_document import device_document, head, kinds_document, no_kernel_findings
    from mansard.report.trace_text import overlap_lines
    from mansard.trace.occupancy import device_times
    from mansard.trace.prepare import device_index

    timeline = read(options, spare_host=True)
    chosen = device_index(timeline, options["device"])
    devices = device_times(timeline, devices=None if chosen is None else [chosen])
    document = head("trace_overlap/1", timeline, no_kernel_findings(timeline))
    if not any(d.kernel_count or len(d.kinds["graph"]) for d in devices):
        document["status"] = "no_kernels"
    document |= {
        "devices": [device_document(d) for d in devices],
        "sums_over": f"{len(devices)} devices; devices are never merged",
        "kinds": kinds_document(devices),
        "exposed_communication_s": sum(d.exposed_ns for d in devices) / 1e9,
    }
    deliver(document, overlap_lines, as_json=options["as_json"])
    return exit_code(document)
