"""`mansard plan disaggregate`: prefill and decode on workers of their own, against engines that do both."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mansard.cli import options as shared

if TYPE_CHECKING:
    from mansard.core.unknown import Unknown
    from mansard.plan.disaggregate import Comparison
    from mansard.plan.site import Site


@click.command("disaggregate", short_help="Prefill and decode on workers of their own: does it pay?")
@click.argument("model")
@shared.on_device
@click.option("--prompt", type=int, required=True, help="Tokens of a prompt.")
@click.option("--output", "answer", type=int, required=True, help="Tokens of an answer.")
@click.option("--ttft", metavar="TIME", help='Limit of the mean time to first token, such as "300 ms".')
@click.option("--tpot", metavar="TIME", help='Limit of the mean time per output token, such as "20 ms".')
@click.option("--rate", type=float, help="Requests per second to serve: how many devices?")
@click.option("--devices", type=int, help="Devices there are: how many requests?  [default: the best ratio]")
@click.option("--worker-most", type=int, help="Devices of one worker at most.  [default: the node, 8 where unknown]")
@click.option("--kv-rate", metavar="RATE", help="Link between workers, one device, one way.  [default: within a node]")
@click.option("--prefill-share", type=float, default=1.0, help="Share of its bound a prefill reaches.  [default: 1]")
@click.option("--decode-share", type=float, default=1.0, help="Share of its bound a decode step reaches.  [default: 1]")
@shared.model_dtype
@shared.weights
@shared.kv
@shared.memory_fraction
@shared.usd_per_hour
@click.option("-o", "output", type=click.Path(path_type=Path), help="Also write the document.")
@shared.force
@shared.as_json
def command(model: str, **options: Any) -> int:
    """Compare xPyD splits of MODEL with engines that read and decode: goodput per device, and what the limits force.

    Exit code 3 where no split meets the limits.

    \b
      mansard plan disaggregate llama-3.1-70b --on h100-sxm --prompt 4096 \\
        --output 512 --ttft "500 ms" --tpot "20 ms"
      mansard plan disaggregate qwen3-30b-a3b --on h200 --prompt 8192 \\
        --output 256 --tpot "10 ms" --rate 40 \\
        --kv-rate "50 GB/s"
    """
    from mansard.cli.estimate_options import parse_time
    from mansard.cli.plan.deliver import deliver
    from mansard.core.document import to_jsonable
    from mansard.core.errors import UsageError
    from mansard.core.outputs import may_write
    from mansard.plan.disaggregate import compare
    from mansard.plan.disaggregate_document import disaggregate_document
    from mansard.plan.site import DEVICES_MOST, site_of
    from mansard.plan.size import TP_MOST
    from mansard.plan.workers import Job
    from mansard.report.plan_disaggregate_text import disaggregate_text
    from mansard.workload.model.load import load_model

    may_write(options["output"], force=options["force"])
    for name in ("rate", "devices", "worker_most"):
        if options[name] is not None and not options[name] > 0:
            raise UsageError(f"--{name.replace('_', '-')} is {options[name]}, expected a positive number")
        if options[name] is not None and options[name] > DEVICES_MOST:
            raise UsageError(f"--{name.replace('_', '-')} is {options[name]:g}, expected at most {DEVICES_MOST:,}")
    site = site_of(options["on"], usd_per_hour=options["usd_per_hour"])
    rate, source = _kv_rate(options, site)
    job = Job(
        prompt=options["prompt"], output=options["answer"], ttft_s=parse_time(options["ttft"], "--ttft"),
        tpot_s=parse_time(options["tpot"], "--tpot"), kv_bytes_per_s=rate,
        **{
            name: options[name]
            for name in ("prefill_share", "decode_share", "dtype", "weights", "kv", "memory_fraction")
        },
    )  # fmt: skip
    most = options["worker_most"] or (site.node_devices if isinstance(site.node_devices, int) else TP_MOST)
    loaded = load_model(model)
    found = compare(loaded, site.machine, job, most=most, rate_per_s=options["rate"], devices=options["devices"])
    document = disaggregate_document(
        {"model": loaded.name, "machine": options["on"]}, found, job, rate_per_s=options["rate"],
        devices=options["devices"], worker_most=most, price=site.price, kv_source=source,
        notes=(*site.notes, *_outgrows(found, site, given=options["kv_rate"] is not None)),
    )  # fmt: skip
    deliver(to_jsonable(document), options, disaggregate_text)
    return 0 if document["candidates"] else 3


def _outgrows(found: Comparison, site: Site, *, given: bool) -> tuple[str, ...]:
    """A note where the workers of the best split do not share a node."""
    node = site.node_devices
    if given or not found.splits or not isinstance(node, int) or found.splits[0].devices <= node:
        return ()
    return (
        f"{found.splits[0].devices} devices are more than a node of {node}: give the network between them (--kv-rate)",
    )


def _kv_rate(options: Mapping[str, Any], site: Site) -> tuple[float | Unknown, str]:
    """The link between workers: what was given, else the link between devices of a node."""
    from mansard.core import Unknown
    from mansard.core.errors import UsageError
    from mansard.core.units import parse_quantity

    if options["kv_rate"] is not None:
        value = parse_quantity(options["kv_rate"], "bytes_per_s")
        if value <= 0:
            raise UsageError(f"--kv-rate is {options['kv_rate']}, expected one above zero")
        return value, "given"
    link = site.machine.peer_link
    if isinstance(link, Unknown):
        return link, "none"
    found = site.machine.ceilings.link(link)
    return (found, "none") if isinstance(found, Unknown) else (found.value, f"{link}, within a node")
