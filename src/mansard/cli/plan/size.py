"""`mansard plan size`: how many devices hold a model, how fast they can be, and what that costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from mansard.cli import options as shared

if TYPE_CHECKING:
    from mansard.plan.size import Job


@click.command("size", short_help="How many devices hold a model, how fast they are, what they cost.")
@click.argument("models", nargs=-1, metavar="[MODEL]...")
@click.option("--params", multiple=True, metavar="N[/ACTIVE]", help="A size instead of a model, such as 1T or 1T/32B.")
@click.option("--active", metavar="N", help="Parameters that one token uses, with --params.")
@click.option("--on", metavar="A,B,...", help="Devices.  [default: every product of the catalogue]")
@click.option("--phase", type=click.Choice(["serve", "decode", "prefill", "train"]), default="serve", show_default=True)
@click.option("--context", type=int, help="Serving: tokens of a sequence, and of the prompt.")
@click.option("--concurrency", type=int, default=1, show_default=True, help="Serving: sequences at once.")
@click.option("--seq", type=int, help="Training: tokens per sequence.")
@click.option("--batch", type=int, help="Training: sequences per optimizer step.")
@click.option("--run-tokens", metavar="N", help="Training: tokens of the whole run, such as 15T.")
@shared.recompute
@shared.optimizer
@shared.tower_tokens
@shared.model_dtype
@shared.weights
@shared.kv
@click.option("--devices", type=int, help="Devices to use.  [default: the fewest that hold it]")
@click.option("--most", type=int, default=4096, show_default=True, help="Devices at which the search gives up.")
@click.option("--tp-most", type=int, help="Largest tensor-parallel group.  [default: the node, 8 where unknown]")
@shared.memory_fraction
@click.option("--usd-per-hour", multiple=True, metavar="[DEVICE=]USD", help="Price of one device.")
@click.option("--by", type=click.Choice(["devices", "time", "cost"]), default="devices", show_default=True)
@shared.output
@shared.force
@shared.as_json
def command(models: tuple[str, ...], **options: Any) -> int:
    """Say how many devices hold MODEL, how fast they can serve or train it, and what that costs.

    MODEL is a config.json, a folder that holds one, or a shipped name; several are put side by side.

    Exit code 3 where none of the devices is known to hold it.

    \b
      mansard plan size llama-3.1-70b --on h100-sxm,h200,mi300x --context 8192 \\
        --concurrency 32
      mansard plan size llama-3.1-8b --phase train --seq 4096 --batch 512 \\
        --run-tokens 1T
      mansard plan size --params 1T --params 1T/32B --dtype bf16 --on gh200-96gb \\
        --devices 21
    """
    from mansard.cli.plan.deliver import deliver
    from mansard.core.document import to_jsonable
    from mansard.core.errors import UsageError
    from mansard.core.outputs import may_write
    from mansard.plan.params import parse_params
    from mansard.plan.site import sites
    from mansard.plan.size import size_model, size_params
    from mansard.plan.size_document import size_document
    from mansard.report.plan_text import size_text
    from mansard.workload.model.load import load_model

    may_write(options["output"], force=options["force"])
    if not models and not options["params"]:
        raise UsageError("no model was given", hint="name a MODEL, or a size with --params 70B --dtype bf16")
    if options["active"] is not None and len(options["params"]) != 1:
        raise UsageError("--active belongs to one --params", hint="write --params 1T/32B where there are several")
    if options["params"] and options["context"] is not None and not models:
        raise UsageError("a size has no cache, so --context has no meaning", hint="give the model's config.json")
    names = [n.strip() for n in (options["on"] or "").split(",") if n.strip()]
    if options["on"] is not None and not names:
        raise UsageError("--on names no device", hint="such as --on h100-sxm,h200")
    job = _job(options)
    found, left_out = sites(names, _prices(options["usd_per_hour"], names))
    sizes = [parse_params(t, active=options["active"], dtype=options["dtype"]) for t in options["params"]]
    sizings = [size_params(p, site, job) for p in sizes for site in found]
    sizings += [size_model(m, site, job) for m in map(load_model, models) for site in found]
    document = to_jsonable(size_document(sizings, job, by=options["by"], left_out=left_out))
    deliver(document, options, size_text)
    return 0 if any(s.fits is True for s in sizings) else 3


def _job(options: dict[str, Any]) -> Job:
    from mansard.cli.estimate_options import tower_tokens_of
    from mansard.core.errors import UsageError
    from mansard.plan.params import parse_count
    from mansard.plan.size import Job
    from mansard.workload.training import Recipe

    train = options["phase"] == "train"
    stray = ("context", "kv") if train else ("seq", "batch", "run_tokens")
    for name in stray:
        if options[name] is not None:
            hint = "--concurrency says how many sequences" if name == "batch" else ""
            raise UsageError(f"--{name.replace('_', '-')} has no meaning in the phase {options['phase']}", hint=hint)
    if not train and (options["recompute"] != "none" or options["optimizer"] != "adamw"):
        raise UsageError("--recompute and --optimizer belong to --phase train")
    if train and options["concurrency"] != 1:
        raise UsageError("--concurrency has no meaning in the phase train", hint="--batch says how many sequences")
    run = options["run_tokens"]
    return Job(
        recipe=Recipe(optimizer=options["optimizer"], recompute=options["recompute"]),
        run_tokens=None if run is None else parse_count(run, "--run-tokens"),
        tower_tokens=tower_tokens_of(options["tower_tokens"]),
        **{
            name: options[name]
            for name in (
                "phase", "context", "concurrency", "seq", "batch", "dtype", "weights", "kv", "memory_fraction", "devices",
                "most", "tp_most",
            )
        },
    )  # fmt: skip


def _prices(texts: tuple[str, ...], names: list[str]) -> dict[str, float]:
    """Prices by device; one without a name is for the only device."""
    from mansard.core.errors import UsageError

    out: dict[str, float] = {}
    for text in texts:
        name, equals, number = text.rpartition("=")
        if not equals and len(names) != 1:
            raise UsageError(f"--usd-per-hour {text} names no device", hint="DEVICE=USD, such as h200=3.5")
        try:
            value = float(number)
        except ValueError:
            raise UsageError(f"cannot read --usd-per-hour {text!r}", hint="DEVICE=USD, such as h200=3.5") from None
        out[name if equals else names[0]] = value
    return out
