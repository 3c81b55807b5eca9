"""`mansard estimate`: what a model must consume on a machine, kernel by kernel."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mansard.cli import options as shared

if TYPE_CHECKING:
    from mansard.predict.estimate import Request

_PHASES = ("train", "prefill", "decode", "mixed", "verify")


@click.command("estimate", short_help="What a model must consume on a machine.")
@click.argument("model")
@click.option("--on", metavar="MACHINE", help="Product of the catalogue, hardware file, or measured ceilings.json.")
@click.option("--phase", type=click.Choice(_PHASES), help="Default: decode with --context, prefill with --seq alone.")
@shared.batch
@shared.context
@click.option("--contexts", metavar="C:N,...", help="A distribution of contexts instead: length:sequences.")
@shared.seq
@click.option("--lengths", metavar="A,B,...", help="Training: packed sequences of one micro-batch.")
@click.option("--cached", type=int, default=0, help="Prompt tokens that the prefix cache holds.  [default: 0]")
@click.option("--chunk", type=int, help="Chunked prefill: new tokens of each prompt per pass.")
@click.option("--prompts", type=int, default=1, show_default=True, help="Mixed: prompts beside the decode step.")
@click.option("--drafted", type=int, help="Verify: tokens proposed per sequence.")
@click.option("--acceptance", type=float, help="Verify: probability that a proposal is accepted.")
@shared.ranks
@shared.model_dtype
@shared.weights
@shared.activations
@shared.kv
@click.option("--micro-batch", type=int, help="Training: sequences of one micro-batch of one rank.")
@shared.accumulation
@shared.recompute
@shared.optimizer
@click.option("--lora-rank", type=int, help="Training: adapters of this rank beside frozen weights.")
@click.option("--mtp", is_flag=True, help="Training: multi-token-prediction layers too.")
@click.option("--routing", type=click.Path(path_type=Path), help="JSON list: how often each expert was used.")
@shared.tower_tokens
@shared.launch_cost
@click.option("--launches-per-layer", type=int, help="Kernels per layer that cost it.  [default: those listed]")
@shared.overlap
@shared.memory_fraction
@click.option("--scope", type=click.Choice(["core", "die", "device", "node"]), help="Scope that is one device.")
@click.option("--measured-time", metavar="TIME", help='A measured time of the phase, such as "12.5 ms": MFU and HFU.')
@click.option(
    "--measured-tokens",
    metavar="RATE",
    type=float,
    help="The same from tokens per second of all devices, such as 62000.",
)
@click.option("--reported", metavar="RATE", help='Training: a reported rate such as "449 TFLOP/s": which convention?')
@click.option("--reported-tokens", type=float, help="Tokens per second beside it, of the same devices.")
@click.option(
    "--calibration",
    type=click.Path(path_type=Path),
    help="Expect what `mansard validate -o FILE` saw, not public runs.",
)
@click.option(
    "--sweep", multiple=True, metavar="KEY=A,B,C", help="A row per value, 1..64x2 a range; several make a grid."
)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Also write the document (or a sweep as .csv).")
@shared.force
@shared.as_json
def command(model: str, **options: Any) -> int:
    """Count what MODEL must consume, and how fast a machine can let it.

    MODEL is a config.json, a folder that holds one, or a shipped name.

    Exit code 1 where a row of a sweep could not be worked out.

    \b
      mansard estimate llama-3.1-8b --on h100-sxm --context 4096 --batch 8
      mansard estimate config.json --on h200 --phase prefill --seq 8192 --tp 4
      mansard estimate config.json --on b200 --phase train --seq 4096 \\
        --batch 512 --dp 64 --accumulation 8
      mansard estimate config.json --on h200 --context 8192 --sweep batch=1,8,64 \\
        --sweep tp=1,2,4
    """
    from mansard.cli.estimate_options import (
        deliver,
        describe_only,
        measured_s_of,
        parse_reported,
        request_of,
    )
    from mansard.core.document import to_jsonable
    from mansard.core.outputs import may_write
    from mansard.predict.calibration import read_shares
    from mansard.predict.document import estimate_document
    from mansard.predict.estimate import estimate
    from mansard.predict.machines import load_machine
    from mansard.workload.model.load import load_model

    may_write(options["output"], force=options["force"])
    loaded = load_model(model)
    request: Request | None = request_of(options)
    if options["sweep"]:
        return _sweep(loaded, request, options)
    machine = load_machine(options["on"], scope=options["scope"]) if options["on"] else None
    if request is None:
        deliver(describe_only(loaded, options), options)
        return 0
    result = estimate(loaded, request, machine)
    document = to_jsonable(
        estimate_document(
            result,
            machine,
            measured_s=measured_s_of(result.phase, options),
            reported=parse_reported(options["reported"], options["reported_tokens"]),
            shares=read_shares(options["calibration"]) if options["calibration"] else None,
        )
    )
    deliver(document, options)
    return 0


def _sweep(loaded: Any, request: Request | None, options: dict[str, Any]) -> int:
    """Print the table of a sweep; exit 1 where a point failed."""
    from mansard.cli.estimate_options import deliver, request_of
    from mansard.core.document import header, to_jsonable
    from mansard.core.errors import UsageError
    from mansard.predict.bound import Machine
    from mansard.predict.machines import load_machine
    from mansard.predict.sweep import parse_sweep, sweep

    stray = [n for n in ("measured_time", "measured_tokens", "reported", "reported_tokens") if options[n] is not None]
    if stray:
        name = stray[0].replace("_", "-")
        raise UsageError(f"--{name} belongs to one run, and a sweep has many", hint=f"leave --{name} or --sweep out")
    grid = parse_sweep(options["sweep"])
    if request is None:
        # A key that is swept decides the phase like one that is given.
        request = request_of(options | {k: v[0] for k, v in grid.items() if k in ("context", "seq", "phase")})
    if request is None:
        raise UsageError("a sweep needs a phase", hint="add --phase, --context or --seq")
    names = grid.get("on", [options["on"]])
    machines: dict[str, Machine | None] = {
        str(name): load_machine(name, scope=options["scope"]) if name else None for name in names
    }
    rows = sweep(loaded, request, grid, machines)
    failed = sum("error" in row for row in rows)
    document = {
        **header("estimate-sweep/1", {"model": loaded.source, "machine": options["on"]}),
        "phase": request.phase,
        "columns": list(grid),
        "rows": rows,
        "failed": failed,
    }
    deliver(to_jsonable(document), options)
    return 1 if failed else 0
