"""`mansard plan remat`: keep, recompute or offload each activation; time against memory, and the policy in code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from mansard.cli import options as shared

if TYPE_CHECKING:
    from mansard.plan.remat import Copies, RematPlan


@click.command("remat", short_help="Keep, recompute or offload each activation: time against memory.")
@click.argument("model")
@shared.on_device
@click.option("--seq", type=int, required=True, help="Tokens per sequence.")
@click.option("--batch", type=int, default=1, show_default=True, help="Sequences of an optimizer step, all devices.")
@click.option("--accumulation", type=int, help="Micro-batches per optimizer step.  [default: 1]")
@click.option("--tp", type=int, default=1, help="Tensor-parallel ranks.  [default: 1]")
@click.option("--dp", type=int, default=1, help="Data-parallel ranks.  [default: 1]")
@click.option("--cp", type=int, default=1, help="Context-parallel ranks.  [default: 1]")
@click.option("--ep", type=int, default=1, help="Expert-parallel ranks, taken from tp, cp and dp.  [default: 1]")
@click.option("--zero", type=click.IntRange(0, 3), default=0, help="What dp ranks shard (0 nothing .. 3 weights).")
@shared.optimizer
@click.option("--dtype", help="Type of activations and weights.  [default: the model's]")
@click.option("--budget", metavar="SIZE", help='What a device may hold, such as "60 GB".  [default: its memory]')
@shared.memory_fraction
@shared.host_link
@click.option("--link-rate", metavar="RATE", help='What it copies each way, such as "31 GB/s".')
@click.option("--no-offload", is_flag=True, help="Nothing goes to the host.")
@click.option(
    "--overlap", type=click.Choice(["full", "none"]), default="full", show_default=True,
    help="Copies hide behind the pass they belong to, or each is waited for.",
)  # fmt: skip
@click.option("--points", type=int, default=40, show_default=True, help="How finely the front is searched.")
@click.option("--framework", type=click.Choice(["jax", "torch", "both"]), default="both", show_default=True)
@shared.output
@shared.force
@shared.as_json
def command(model: str, **options: Any) -> int:
    """Say which activations of MODEL to keep, to recompute and to offload, so that a step is fastest in its memory.

    Exit code 3 where no choice fits into the memory.

    \b
      mansard plan remat llama-3.1-8b --on h100-sxm --seq 8192 --batch 16 --dp 8 \\
        --zero 3
      mansard plan remat llama-3.1-8b --on gh200-96gb --seq 32768 --dp 8 \\
        --batch 8 --zero 3 --framework jax
      mansard plan remat config.json --on ceilings.json --link-rate "25 GB/s" \\
        --seq 4096 --budget "40 GB"
    """
    from mansard.cli.plan.deliver import deliver
    from mansard.core import is_known
    from mansard.core.document import to_jsonable
    from mansard.core.errors import UsageError
    from mansard.core.outputs import may_write
    from mansard.core.units import parse_quantity
    from mansard.plan.remat import fastest_within, front, keep_everything
    from mansard.plan.remat_document import remat_document
    from mansard.plan.remat_graph import step_of
    from mansard.predict.estimate import Request
    from mansard.predict.machines import load_machine
    from mansard.report.plan_remat_text import remat_text
    from mansard.workload.model.load import load_model
    from mansard.workload.parallel import Plan
    from mansard.workload.training import Recipe

    may_write(options["output"], force=options["force"])
    request = Request(
        phase="train", seq=options["seq"], batch=options["batch"], accumulation=options["accumulation"],
        plan=Plan(**{name: options[name] for name in ("tp", "dp", "cp", "ep", "zero")}), dtype=options["dtype"],
        recipe=Recipe(optimizer=options["optimizer"]), memory_fraction=options["memory_fraction"],
    )  # fmt: skip
    loaded = load_model(model)
    step = step_of(loaded, request, load_machine(options["on"]))
    budget = step.budget_bytes
    if options["budget"] is not None:
        budget = parse_quantity(options["budget"], "bytes")
        if budget <= 0:
            raise UsageError(f"--budget is {options['budget']}, expected a size above zero")
    copies, source = _copies(options)
    plans = list(front(step, copies, points=options["points"]))
    simple = keep_everything(step, copies)
    chosen: RematPlan | None = plans[0]
    if is_known(budget) and simple.memory_bytes <= budget and simple.time_s <= plans[0].time_s * (1.0 + 1e-9):
        # Nothing is faster than what needs no policy at all.
        plans, chosen = [simple, *(p for p in plans if p != simple)], simple
    elif is_known(budget):
        found = fastest_within(step, copies, budget)
        if found is not None and not any(
            p.time_s <= found.time_s and p.memory_bytes <= found.memory_bytes for p in plans
        ):
            plans = sorted([*plans, found], key=lambda p: p.time_s)
        fitting = [p for p in plans if p.memory_bytes <= budget]
        chosen = fitting[0] if fitting else None
    document = remat_document(
        {"model": loaded.name, "machine": options["on"]}, step, copies, plans, chosen=chosen, budget_bytes=budget,
        frameworks=("jax", "torch") if options["framework"] == "both" else (options["framework"],), link_source=source,
    )  # fmt: skip
    deliver(to_jsonable(document), options, remat_text)
    return 0 if chosen is not None else 3


def _copies(options: Mapping[str, Any]) -> tuple[Copies, str]:
    """How activations reach the host, and where the bandwidth comes from."""
    from mansard.cli.plan.offload_options import limit_of
    from mansard.core import Unknown
    from mansard.core.errors import UsageError
    from mansard.plan.remat import Copies

    if options["no_offload"]:
        if options["link_rate"] is not None or options["link_name"] is not None:
            raise UsageError("--no-offload and a link were both given", hint="leave one of them out")
        return Copies(bytes_per_s=Unknown("it was ruled out (--no-offload)", ())), "none"
    try:
        rate, source = limit_of(options)
    except UsageError as error:
        if options["link_name"] is not None:
            raise
        return Copies(bytes_per_s=Unknown(error.message, ("--link-rate",))), "none"
    return Copies(bytes_per_s=rate, overlap=options["overlap"]), source
