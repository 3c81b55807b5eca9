"""`mansard plan collective`: the least time of a collective on a network, and a measured one beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from mansard.cli import options as shared
from mansard.cli.plan.fabric_options import fabric_from, fabric_options

if TYPE_CHECKING:
    from mansard.plan.collective import Measured

SIZES = "4 KiB,1 MiB,64 MiB,1 GiB,8 GiB"


@click.command(
    "collective", short_help="The least time of an all-reduce, ... on a network, and a measured one beside it."
)
@click.argument("operation")
@click.argument("shape")
@shared.on_network
@click.option("--size", default=SIZES, show_default=True, metavar="SIZE,...", help="S, as NCCL counts it.")
@click.option("--over", metavar="AXIS,...", help="Axes the group extends over: network, x,y, nvlink=4.  [default: all]")
@click.option("--time", "seconds", metavar="TIME", help="Measured time, for one size.")
@click.option("--busbw", metavar="RATE", help="Measured bus bandwidth instead, as NCCL's tests print it.")
@fabric_options
@shared.output
@shared.force
@shared.as_json
def command(operation: str, shape: str, **options: Any) -> int:
    """Say what a collective takes at least on a network, by algorithm, and hold a measured time against that.

    OPERATION is all_reduce, all_gather, reduce_scatter, all_to_all or ppermute (to the next neighbour). SHAPE is `4x4x8`
    chips of a torus, `8` GPUs of a node, `2:4x4` two slices, `4:8` four nodes of eight.

    Exit code 3 where the measurement is faster than anything can be.

    \b
      mansard plan collective all_reduce 8 --on h200 --size "8 GiB" \\
        --busbw "473 GB/s"
      mansard plan collective all_to_all 8:8 --on h100-sxm --network "50 GB/s"
      mansard plan collective all_gather 16x16 --on tpu-v5e --over x
    """
    from mansard.cli.plan.deliver import deliver
    from mansard.core.errors import UsageError
    from mansard.core.outputs import may_write
    from mansard.core.units import parse_quantity
    from mansard.plan.collective import collective_document
    from mansard.report.collective_text import collective_text

    may_write(options["output"], force=options["force"])
    sizes = [parse_quantity(part, "bytes") for part in options["size"].split(",") if part.strip()]
    if not sizes or min(sizes) <= 0.0:
        raise UsageError(f"cannot read --size {options['size']!r}", hint='a size above 0, or several: "1 MiB,1 GiB"')
    document = collective_document(
        fabric_from(shape, options), operation, sizes=sizes, over=options["over"], measured=_measured(options)
    )
    deliver(document, options, collective_text)
    return 3 if document["measured"] and document["measured"]["suspects"] else 0


def _measured(options: dict[str, Any]) -> Measured | None:
    from mansard.core.errors import UsageError
    from mansard.core.units import parse_quantity
    from mansard.plan.collective import Measured

    seconds, busbw = options["seconds"], options["busbw"]
    if seconds is None and busbw is None:
        return None
    if seconds is not None and busbw is not None:
        raise UsageError("--time and --busbw are the same measurement", hint="give one of them")
    if seconds is not None:
        return Measured(seconds=parse_quantity(seconds, "s"))
    return Measured(busbw_bytes_per_s=parse_quantity(busbw, "bytes_per_s"))
