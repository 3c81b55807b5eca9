"""`mansard plan whatif`: one ceiling changed, which part of a step moves and which does not."""

from __future__ import annotations

from typing import Any

import click

from mansard.cli import options as shared


@click.command("whatif", short_help="One ceiling changed: which part of the step moves.")
@click.argument("model")
@click.option("--on", required=True, metavar="MACHINE", help="Product, hardware file, or measured ceilings.json.")
@click.option(
    "--set", "changes", multiple=True, metavar="RESOURCE=VALUE", help="Such as hbm=2x, bf16=+50%, network=off."
)
@click.option("--phase", type=click.Choice(["train", "prefill", "decode"]), help="Default: as mansard estimate.")
@shared.batch
@shared.context
@shared.seq
@shared.ranks
@shared.accumulation
@shared.recompute
@shared.tower_tokens
@shared.model_dtype
@shared.weights
@shared.activations
@shared.kv
@shared.launch_cost
@shared.overlap
@shared.output
@shared.force
@shared.as_json
def command(model: str, **options: Any) -> int:
    """Change ceilings of a machine and say which part of a step moves and which does not.

    RESOURCE is a memory level (hbm), an element type (bf16), compute, memory, network, launch, or a link by name. VALUE is a
    factor (2x), a change (+50%), a figure (4.8 TB/s), off (it costs nothing), or another element type whose peak to take.

    \b
      mansard plan whatif llama-3.1-8b --on h100-sxm --context 8192 --batch 32 \\
        --set hbm=2x
      mansard plan whatif llama-3.1-70b --on h200 --tp 8 --phase prefill \\
        --seq 8192 --set network=off --set bf16=fp8
    """
    from mansard.cli.estimate_options import parse_time, tower_tokens_of
    from mansard.cli.plan.deliver import deliver
    from mansard.core.document import to_jsonable
    from mansard.core.errors import UsageError
    from mansard.core.outputs import may_write
    from mansard.plan.whatif import parse_change, whatif, whatif_document
    from mansard.predict.estimate import Request
    from mansard.predict.machines import load_machine
    from mansard.report.plan_whatif_text import whatif_text
    from mansard.workload.model.load import load_model
    from mansard.workload.parallel import Plan
    from mansard.workload.training import Recipe

    may_write(options["output"], force=options["force"])
    changes = [parse_change(text) for text in options["changes"]]
    phase = options["phase"] or ("decode" if options["context"] is not None else "prefill")
    if options["phase"] is None and options["context"] is None and options["seq"] is None:
        raise UsageError("a step needs a phase", hint="add --context N, --seq N, or --phase train --seq N")
    if phase != "train" and options["recompute"] != "none":
        raise UsageError("--recompute belongs to --phase train")
    request = Request(
        phase=phase,
        plan=Plan(**{name: options[name] for name in ("tp", "pp", "dp", "ep", "cp", "zero")}),
        recipe=Recipe(recompute=options["recompute"]),
        launch_s=parse_time(options["launch_cost"], "--launch-cost"),
        tower_tokens=tower_tokens_of(options["tower_tokens"]),
        **{
            name: options[name]
            for name in ("batch", "context", "seq", "dtype", "weights", "activations", "kv", "accumulation", "overlap")
        },
    )  # fmt: skip
    result = whatif(load_model(model), request, load_machine(options["on"]), changes)
    deliver(to_jsonable(whatif_document(result, changes, model)), options, whatif_text)
    return 0
