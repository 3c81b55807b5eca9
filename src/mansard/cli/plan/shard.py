"""`mansard plan shard`: how to divide a model over many devices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from mansard.cli import options as shared
from mansard.cli.plan.fabric_options import fabric_from, fabric_options

if TYPE_CHECKING:
    from mansard.hardware.topology import Fabric
    from mansard.plan.shard.efficiency import Efficiency
    from mansard.plan.shard.job import Where, Work
    from mansard.plan.shard.search import Aim
    from mansard.plan.shard.space import Space


@click.command("shard", short_help="Which ranks, micro-batch, recomputation and precision for a model on N devices.")
@click.argument("model")
@click.option("--on", required=True, metavar="DEVICE", help="Product of the catalogue, or hardware file.")
@click.option("--devices", metavar="N,...", help="Numbers of devices.")
@click.option("--topology", multiple=True, metavar="SHAPE", help="Shape instead: 8, 4:8 nodes of eight, 4x4x8 chips.")
@click.option("--phase", type=click.Choice(["train", "serve"]), default="train", show_default=True)
@click.option("--seq", type=int, help="Training: tokens of a sequence.")
@click.option("--batch", type=int, help="Training: sequences of an optimizer step, of all devices.")
@click.option("--prompt", type=int, help="Serving: tokens of a prompt.  [default: --context]")
@click.option("--context", type=int, help="Serving: tokens of a sequence at decode.")
@click.option("--concurrency", metavar="N,...", help="Serving: sequences at once, of all devices.")
@click.option("--by", type=click.Choice(["time", "cost", "throughput"]), default="time", show_default=True)
@click.option("--ttft", metavar="TIME", help="Serving: limit of the time to first token, without queue.")
@click.option("--tpot", metavar="TIME", help="Serving: limit of the time per output token.")
@click.option("--precision", metavar="A,...", help="Types of products.  [default: bf16; serving: the checkpoint's]")
@click.option("--tp", metavar="N,...", help="Only these tensor ranks.  [default: all that are possible]")
@click.option("--pp", metavar="N,...", help="Only these pipeline stages.")
@click.option("--cp", metavar="N,...", help="Only these context ranks (training).")
@click.option("--ep", metavar="N,...", help="Only these expert ranks.")
@click.option("--micro-batch", metavar="N,...", help="Only these micro-batches.")
@click.option("--chunks", metavar="N,...", help="Only these interleaved chunks of a stage.")
@click.option("--zero", metavar="N,...", help="Only these stages: 0 nothing, 1 optimizer, 2 gradients, 3 weights.")
@click.option("--recompute", metavar="A,...", help="Only these policies: none, selective, full.")
@click.option("--uneven", is_flag=True, help="Layers need not divide over the stages.")
@shared.optimizer
@click.option("--kv", help="Serving: type of the cache.  [default: the checkpoint's, else the activations']")
@click.option("--imbalance", type=float, default=1.0, help="Busiest over mean expert rank.  [default: 1]")
@click.option("--overlap", type=click.Choice(["framework", "none", "full"]), default="framework", show_default=True)
@click.option(
    "--efficiency", default="published", help="published, bound, or a share such as 0.7.  [default: published]"
)
@click.option(
    "--memory-fraction", type=float, default=0.9, help="Share of the memory that may be used.  [default: 0.9]"
)
@click.option("--uncertain", type=float, default=0.2, help="Each ceiling may be so much off.  [default: 0.2]")
@click.option("--tie", type=float, default=0.02, help="Plans that differ by less are a tie.  [default: 0.02]")
@click.option("--top", type=click.IntRange(1, 50), default=5, show_default=True, help="Sets of ranks to show.")
@fabric_options
@shared.in_network
@click.option("--usd-per-hour", type=float, help="Price of one device.  [default: the catalogue's]")
@shared.output
@shared.force
@shared.as_json
def command(model: str, **options: Any) -> int:
    """Say how to divide MODEL over many devices: every plan is built, those that fit are timed, the best is shown.

    Exit code 3 where no plan fits and meets the limits.

    \b
      mansard plan shard llama-3.1-405b --on h100-sxm --devices 1024 \\
        --network "50 GB/s" --batch 2048 --seq 8192
      mansard plan shard llama-3.1-8b --on tpu-v5p --topology 4x4x8 --batch 1024 \\
        --seq 4096 --micro-batch 1,2,4
      mansard plan shard deepseek-v3 --phase serve --on h200 --devices 8,16 \\
        --network "50 GB/s" --context 9216 \\
        --concurrency 16,64,256 --by cost --tpot "30 ms"
    """
    from mansard.cli.plan.deliver import deliver
    from mansard.core.document import to_jsonable
    from mansard.core.outputs import may_write
    from mansard.core.unknown import Unknown
    from mansard.plan.shard.document import shard_document
    from mansard.plan.shard.search import search
    from mansard.report.plan_shard_text import shard_text
    from mansard.workload.model.load import load_model

    may_write(options["output"], force=options["force"])
    loaded = load_model(model)
    work, aim = _work(options), _aim(options)
    where, shapes = _where(options)
    found = search(loaded, work, where, _space(options, tuple(where.fabrics)), aim, top=options["top"])
    deliver(to_jsonable(shard_document(found, shapes=shapes)), options, shard_text)
    return 3 if isinstance(found.best, Unknown) else 0


def _numbers(options: Mapping[str, Any], name: str) -> tuple[int, ...] | None:
    """The numbers of an option such as `1,2,4`."""
    from mansard.core.errors import UsageError

    text = options[name]
    if text is None:
        return None
    try:
        values = tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        raise UsageError(f"cannot read --{name.replace('_', '-')} {text!r}", hint="numbers such as 1,2,4") from None
    return values


def _quantity(options: Mapping[str, Any], name: str, dimension: str) -> float | None:
    from mansard.core.units import parse_quantity

    return None if options[name] is None else parse_quantity(options[name], dimension)


def _work(options: Mapping[str, Any]) -> Work:
    from mansard.core.errors import UsageError
    from mansard.plan.shard.job import Work
    from mansard.workload.training import Recipe

    train = options["phase"] == "train"
    stray = ("prompt", "context", "concurrency", "ttft", "tpot", "kv") if train else (
        "seq", "batch", "cp", "micro_batch", "chunks", "zero", "recompute"
    )  # fmt: skip
    for name in stray:
        if options[name] is not None:
            other = {"batch": "--concurrency", "seq": "--context", "concurrency": "--batch", "context": "--seq"}.get(
                name
            )
            hint = "" if other is None else f"{other} says it here"
            raise UsageError(f"--{name.replace('_', '-')} has no meaning in the phase {options['phase']}", hint=hint)
    return Work(
        phase=options["phase"], seq=options["seq"], batch=options["batch"], context=options["context"],
        prompt=None if train else options["prompt"] or options["context"], recipe=Recipe(optimizer=options["optimizer"]),
        overlap=options["overlap"], imbalance=options["imbalance"], memory_fraction=options["memory_fraction"],
        kv=options["kv"],
    )  # fmt: skip


def _aim(options: Mapping[str, Any]) -> Aim:
    from mansard.plan.shard.search import Aim

    return Aim(
        objective=options["by"], ttft_s=_quantity(options, "ttft", "s"), tpot_s=_quantity(options, "tpot", "s"),
        tie_ratio=options["tie"], uncertain_ratio=options["uncertain"],
    )  # fmt: skip


def _space(options: Mapping[str, Any], devices: tuple[int, ...]) -> Space:
    from mansard.core.dtypes import short_dtype
    from mansard.plan.shard.serving import CHECKPOINT
    from mansard.plan.shard.space import MICRO, RECOMPUTE, VIRTUAL, Space

    train = options["phase"] == "train"
    names = options["precision"].split(",") if options["precision"] else ["bf16" if train else CHECKPOINT]
    for name in names:
        if name.strip() != CHECKPOINT:
            short_dtype(name.strip())
    recompute = options["recompute"]
    return Space(
        devices=devices, tp=_numbers(options, "tp"), pp=_numbers(options, "pp"), cp=_numbers(options, "cp"),
        ep=_numbers(options, "ep"), micro=_numbers(options, "micro_batch") or MICRO,
        virtual=_numbers(options, "chunks") or VIRTUAL, zero=_numbers(options, "zero") or (0, 1, 2, 3),
        recompute=tuple(p.strip() for p in recompute.split(",")) if recompute else RECOMPUTE,
        precision=tuple(p.strip() for p in names),
        concurrency=_numbers(options, "concurrency") or (), uneven=options["uneven"],
    )  # fmt: skip


def _where(options: Mapping[str, Any]) -> tuple[Where, dict[int, str]]:
    """The machine with the network of each number of devices."""
    from mansard.core.errors import UsageError
    from mansard.plan.shard.job import Where
    from mansard.plan.site import site_of

    if (options["devices"] is None) == (not options["topology"]):
        raise UsageError("the devices were given twice, or not at all", hint="add --devices N or --topology SHAPE")
    site = site_of(options["on"], usd_per_hour=options["usd_per_hour"])
    shapes = list(options["topology"]) or [_shape(n, site.node_devices) for n in _numbers(options, "devices") or ()]
    fabrics: dict[int, Fabric] = {}
    written: dict[int, str] = {}
    for text in shapes:
        fabric = fabric_from(text, options)
        fabrics[fabric.devices], written[fabric.devices] = fabric, text
    nvlink = any(v.name == "nvlink" and v.kind == "switch" for f in fabrics.values() for v in f.levels)
    where = Where(
        machine=site.machine, fabrics=fabrics, efficiency=_efficiency(options, nvlink), price=site.price,
        in_network=options["in_network"] or options["sharp"],
    )  # fmt: skip
    return where, written


def _shape(devices: int, node: Any) -> str:
    """Whole nodes of a product behind a network; one node where it is large enough."""
    from mansard.core.errors import UsageError
    from mansard.plan.site import DEVICES_MOST

    if devices < 1:
        raise UsageError(f"devices is {devices}, expected a positive number")
    if devices > DEVICES_MOST:
        raise UsageError(f"devices is {devices}, expected at most {DEVICES_MOST:,}")
    if not isinstance(node, int) or devices <= node:
        return str(devices)
    if devices % node:
        raise UsageError(f"{devices:,} devices are no whole nodes of {node}", hint="name a --topology such as 3:8")
    return f"{devices // node}:{node}"


def _efficiency(options: Mapping[str, Any], nvlink: bool) -> Efficiency:
    from mansard.core.errors import UsageError
    from mansard.hardware import load
    from mansard.plan.shard.efficiency import BOUND, published, stated

    name = options["efficiency"]
    if name == "bound":
        return BOUND
    if name == "published":
        types = tuple(p.strip() for p in (options["precision"] or "bf16").split(","))
        return published(load(options["on"]).slug, types, nvlink=nvlink)
    try:
        return stated(float(name))
    except ValueError:
        raise UsageError(
            f"cannot read --efficiency {name!r}", hint="published, bound, or a share such as 0.7"
        ) from None
