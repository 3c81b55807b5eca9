"""`mansard trace kernels`: kernels by name and category, with what launched them."""

from __future__ import annotations

from typing import Any

import click

from mansard.cli import options as shared
from mansard.cli.trace.common import file_options, ncu_option


@click.command("kernels", short_help="Kernels by name and category.")
@file_options
@ncu_option
@click.option(
    "--name", metavar="NAME", help="Only kernels with this name, taken together too; `*` and `?` are wildcards."
)
@click.option("--match", type=click.Choice(["auto", "exact", "contains", "startswith", "glob", "regex"]), default="auto",
              show_default=True, help="How the name is compared; auto: a wildcard, else part of the name.")  # fmt: skip
@click.option("--limit", type=click.IntRange(min=1), default=30, show_default=True, help="Rows of the text.")
@shared.categories
@click.option("--launches", is_flag=True, help="Also how kernels were launched, and how full the device is.")
def command(**options: Any) -> int:
    """List the kernels of FILE by summed time. Names that no rule knows are unclassified, and shown.

    Of an Nsight Compute report also each kernel's shares of the limits of its device, as the tool measured them.
    With recorded shapes, or --ncu, also their FLOP and bytes, the operators that launched them, and collectives with their
    message sizes; what is known of which share of kernel time is said.

    Exit code 3 where no kernels were recorded, or the file is incomplete: what there is is printed.

    \b
      mansard trace kernels profile.sqlite --limit 20
      mansard trace kernels trace.json.gz --json
      mansard trace kernels profile.sqlite --ncu report.csv
      mansard trace kernels profile.sqlite --name '*flash*' --launches
    """
    import numpy as np

    from mansard.cli.trace.common import deliver, read, with_demands
    from mansard.report.trace_document import kernels_document
    from mansard.report.trace_host import selected_kernels
    from mansard.report.trace_launches import launches_document
    from mansard.report.trace_speeds import speeds_document
    from mansard.report.trace_text import kernels_lines
    from mansard.trace.categories import load_rules, shipped_rules
    from mansard.trace.collectives_of import collectives_of
    from mansard.trace.kernels import graphs, kernel_table
    from mansard.trace.launches import join_launches
    from mansard.trace.operators_of import operators_of, work_by_operator
    from mansard.trace.prepare import device_index
    from mansard.trace.timeline import Kind
    from mansard.trace.window import only_device, only_kernels

    rules = load_rules(options["rules"]) if options["rules"] else shipped_rules()
    timeline = read(options, prepare=with_demands(options), launch_shapes=options["launches"])
    chosen = device_index(timeline, options["device"])
    if chosen is not None:
        timeline = only_device(timeline, chosen)
    every = timeline
    if options["name"] is not None:
        timeline = only_kernels(timeline, options["name"], match=options["match"])
    launches = join_launches(timeline)
    rows = kernel_table(timeline, rules=rules, launches=launches)
    operators = operators_of(timeline, launches=launches)
    work = work_by_operator(operators) if every is timeline else work_by_operator(operators_of(every), chosen=operators)
    document = kernels_document(
        timeline, rows, graphs(timeline, launches), rules.source, work=work,
        collectives=collectives_of(timeline, operators=operators, rules=rules),
    )  # fmt: skip
    if options["name"] is not None:
        document["selected"] = selected_kernels(timeline)
    measured = speeds_document(timeline)
    if measured:
        document["speed_of_light"] = measured
    if options["launches"]:
        document["launches"] = launches_document(timeline)
    deliver(document, lambda d: kernels_lines(d, options["limit"]), as_json=options["as_json"])
    empty = not np.any([len(timeline.of(k)) for k in (Kind.KERNEL, Kind.GRAPH)])
    return 3 if empty or document["status"] != "complete" else 0
