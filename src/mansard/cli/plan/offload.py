"""`mansard plan offload`: experts or layers on the host, what misses cost, and what the link needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from mansard.cli import options as shared

if TYPE_CHECKING:
    from mansard.plan.offload import Bank, Rest, Routing
    from mansard.plan.site import Site


@click.command("offload", short_help="Experts or layers on the host: hit rates, misses, the link, tokens/s.")
@click.argument("model", required=False)
@click.option("--on", metavar="DEVICE", help="Product of the catalogue, hardware file, or measured ceilings.json.")
@click.option("--unit", type=click.Choice(["expert", "layer"]), default="expert", show_default=True)
@click.option("--context", type=int, help="Tokens of a sequence.")
@click.option("--batch", type=int, default=1, show_default=True, help="Tokens of one decode step.")
@click.option("--routing", metavar="KIND", help="uniform, zipf:EXPONENT, or trace:FILE with the experts of each token.")
@click.option("--cache", metavar="A,B,...", help="Units of each layer to keep.  [default: eighths, and what fits]")
@click.option("--simulate", type=int, default=0, help="Also replay so many drawn steps.  [default: 0]")
@click.option("--seed", type=int, default=0, help="Of the drawn steps.  [default: 0]")
@click.option("--unit-bytes", metavar="SIZE", help='Without MODEL: bytes of one expert, such as "9.4 MB".')
@click.option("--experts", type=int, help="Without MODEL: experts of a layer.")
@click.option("--per-token", type=int, help="Without MODEL: experts of a layer that a token uses.")
@click.option("--layers", type=int, help="Without MODEL: layers with experts.")
@shared.host_link
@click.option("--link-rate", metavar="RATE", help='What the link copies when full, such as "418 GB/s".')
@click.option("--observed-rate", metavar="RATE", help="Bandwidth that was seen during misses.")
@click.option("--observed-misses", type=float, help="Misses that were counted, with --observed-time.")
@click.option("--observed-time", metavar="TIME", help="Time in which they were fetched.")
@click.option("--in-flight", metavar="SIZE", help='Bytes under way meanwhile, such as "128 KiB".')
@click.option("--threads", type=int, help="Threads that fetch, with --bytes-per-thread, instead of --in-flight.")
@click.option("--bytes-per-thread", type=float, help="Bytes each of them has under way.")
@click.option("--blocks", type=int, help="Blocks those threads are in: how many would fill the link.")
@click.option("--host", metavar="CPU", help="The host processor by catalogue name: is it quicker than the link?")
@click.option("--cpu-bandwidth", metavar="RATE", help="Memory bandwidth of the host instead.")
@click.option("--cpu-peak", metavar="RATE", help='Peak of the host instead, such as "3 TFLOP/s".')
@shared.tower_tokens
@shared.model_dtype
@shared.weights
@shared.kv
@shared.memory_fraction
@shared.usd_per_hour
@shared.output
@shared.force
@shared.as_json
def command(model: str | None, **options: Any) -> int:
    """Say what is left of a decode step when experts (or layers) of MODEL stay on the host.

    Exit code 3 where it fits in no way.

    \b
      mansard plan offload qwen3-30b-a3b --on rtx-4090 --context 4096 \\
        --routing zipf:1
      mansard plan offload deepseek-v3 --on gh200-96gb --context 4096 \\
        --routing trace:experts.json --host grace
      mansard plan offload --link-rate "418 GB/s" --observed-rate "220 GB/s" \\
        --threads 8192 --bytes-per-thread 16 \\
        --blocks 8
    """
    from mansard.cli.plan.deliver import deliver
    from mansard.core.document import to_jsonable
    from mansard.core.errors import UsageError
    from mansard.core.outputs import may_write
    from mansard.plan.site import site_of
    from mansard.report.plan_offload_text import offload_text

    may_write(options["output"], force=options["force"])
    for name in ("batch", "experts", "per_token", "layers", "blocks", "threads", "context"):
        if options[name] is not None and options[name] < 1:
            raise UsageError(f"--{name.replace('_', '-')} is {options[name]}, expected a positive number")
    if options["simulate"] < 0:
        raise UsageError(f"--simulate is {options['simulate']}, expected a number of steps")
    site = site_of(options["on"], usd_per_hour=options["usd_per_hour"]) if options["on"] else None
    bank, rest = _bank(model, options, site)
    document = to_jsonable(_document(model, options, site, bank, rest))
    deliver(document, options, offload_text)
    fits = [c["fits"] for c in document["candidates"]]
    return 3 if fits and all(f is False for f in fits) else 0


def _document(
    model: str | None, options: dict[str, Any], site: Site | None, bank: Bank | None, rest: Rest | None
) -> Any:
    """Gather link, host, routing and rows."""
    from mansard.cli.plan.offload_options import cpu_of, link_of, routing_of, sizes_of
    from mansard.core import Unknown
    from mansard.core.errors import UsageError
    from mansard.plan.offload import POLICIES, Hosts, choice, offload, requests_per_step, simulate, tokens_of_unit
    from mansard.plan.offload_document import link_document, offload_document

    link = link_of(options, bank)
    if bank is None and link.use is None:
        raise UsageError(
            "nothing to plan: neither a model nor a link was described",
            hint="name a MODEL with --on, or give --link-rate, --observed-rate and --in-flight",
        )
    rows: list[Any] = []
    notes: list[str] = list(link.notes)
    cpu = host = replayed = None
    routing: Routing | None = None
    if bank is not None and rest is not None:
        routing = routing_of(options, bank)
        cpu_bytes, cpu_flop = cpu_of(options)
        rate = link.rate
        if link.source != "observed" and not isinstance(cpu_bytes, Unknown) and cpu_bytes < rate:
            # What is fetched is read from the host's memory first.
            rate = cpu_bytes
            notes.append("the host's memory is slower than the link, so it sets the bandwidth of fetching")
        host = Hosts(link_bytes_per_s=rate, cpu_bytes_per_s=cpu_bytes, cpu_flop_per_s=cpu_flop)
        drawn = None
        if options["simulate"]:
            if routing.token is None:
                raise UsageError("--simulate draws from a distribution; a trace is replayed exactly already")
            drawn = simulate(
                bank, routing.token, steps=options["simulate"], seed=options["seed"], batch=options["batch"]
            )
        rows = [
            offload(bank, routing, host, rest, policy=p, capacity=c, batch=options["batch"], simulated=drawn)
            for p in (POLICIES if bank.unit == "expert" else ("static", "lru"))
            for c in sizes_of(options, bank, rest)
        ]
        asked = requests_per_step(bank, routing, options["batch"])
        cpu = choice(bank, host, tokens_of_unit(bank, asked, options["batch"]))
        notes += _notes(bank, routing, rest)
        if (
            any(0 < r.capacity < asked / bank.layers for r in rows)
            and bank.unit == "expert"
            and routing.token is not None
        ):
            notes.append("the LRU figure is rough where fewer are kept than a step asks for")
        if routing.replays:
            replayed = {
                "requests": sum(r.requests for r in routing.replays), "steps": sum(r.steps for r in routing.replays),
                "first_requests": sum(r.first for r in routing.replays), "layers": len(routing.replays),
            }  # fmt: skip
    return offload_document(
        {"model": model, "machine": options["on"], "host": options["host"]}, bank=bank,
        routing=routing.name if routing else "none", rows=rows, rest=rest, host=host, cpu=cpu,
        link=None if link.use is None else link_document(link.use, options["blocks"]), link_source=link.source,
        batch=options["batch"], price=site.price if site else Unknown("no device was given", ("--on",)),
        replay=replayed, notes=notes,
    )  # fmt: skip


def _notes(bank: Bank, routing: Routing, rest: Rest) -> list[str]:
    from mansard.core import Unknown

    notes = [f"one device; {bank.unit}s that are not kept lie in the host's memory, whose size is not checked"]
    if bank.unit == "layer":
        notes.append("a step walks through the layers in order, so LRU throws each out just before its turn")
    elif routing.replays:
        notes.append("LRU replayed exactly; the static cache is the best for this trace, which it knows beforehand")
    else:
        notes.append("LRU by Che's approximation; tokens and layers independent of each other")
    if isinstance(rest.step_s, Unknown):
        notes.append(f"times are those of the link alone: {rest.step_s.reason}")
    return [*notes, *rest.assumed]


def _bank(model: str | None, options: dict[str, Any], site: Site | None) -> tuple[Bank | None, Rest | None]:
    """The units, from a model or from their sizes."""
    from mansard.cli.estimate_options import tower_tokens_of
    from mansard.core.errors import UsageError
    from mansard.core.units import parse_quantity
    from mansard.plan.offload import ALONE, Bank, bank_of, rest_of
    from mansard.predict.estimate import Request
    from mansard.workload.model.load import load_model

    bare = {n: options[n] for n in ("unit_bytes", "experts", "per_token", "layers")}
    given = [n for n, v in bare.items() if v is not None]
    if model is None:
        if not given:
            return None, None
        # Bytes alone are enough to turn counted misses into a bandwidth.
        if given == ["unit_bytes"]:
            return None, None
        if len(given) < 4:
            missing = ", ".join(f"--{n.replace('_', '-')}" for n in bare if n not in given)
            raise UsageError(f"units without a model need {missing} too", hint="or name a MODEL")
        from mansard.core import Unknown

        params = Unknown("the weights of a unit are not known", ("MODEL",))
        return Bank(
            unit="expert", unit_bytes=parse_quantity(bare["unit_bytes"], "bytes"), unit_params=params,
            items=bare["experts"], per_token=bare["per_token"], layers=bare["layers"],
        ), ALONE  # fmt: skip
    if given:
        raise UsageError(
            f"--{given[0].replace('_', '-')} is told by the model", hint="leave it out, or leave MODEL out"
        )
    if options["context"] is None:
        raise UsageError("a decode step needs the length of a sequence", hint="add --context N")
    if site is None:
        raise UsageError("a model is offloaded from a device", hint="add --on DEVICE")
    loaded = load_model(model)
    request = Request(
        phase="decode", context=options["context"], batch=options["batch"], dtype=options["dtype"],
        weights=options["weights"], kv=options["kv"], memory_fraction=options["memory_fraction"],
        tower_tokens=tower_tokens_of(options["tower_tokens"]),
    )  # fmt: skip
    bank = bank_of(loaded, request, options["unit"])
    return bank, rest_of(loaded, request, site.machine, bank)
