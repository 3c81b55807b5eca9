"""`mansard estimate`: what a model must consume on a machine, kernel by kernel."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from mansard.predict.estimate import Request

_PHASES = ("train", "prefill", "decode", "mixed", "verify")


@click.command("estimate", short_help="What a model must consume on a machine.")
@click.argument("model")
@click.option("--on", metavar="MACHINE", help="Product of the catalogue, hardware file, or measured ceilings.json.")
@click.option("--phase", type=click.Choice(_PHASES), help="Default: decode with --context, prefill with --seq alone.")
@click.option("--batch", type=int, default=1, show_default=True, help="Sequences of all devices.")
@click.option("--context", type=int, help="Keys each new token of a decode step sees, itself included.")
@click.option("--contexts", metavar="C:N,...", help="A distribution of contexts instead: length:sequences.")
@click.option("--seq", type=int, help="Tokens per sequence in training, per prompt in prefill.")
@click.option("--lengths", metavar="A,B,...", help="Training: packed sequences of one micro-batch.")
@click.option("--cached", type=int, default=0, help="Prompt tokens that the prefix cache holds.  [default: 0]")
@click.option("--chunk", type=int, help="Chunked prefill: new tokens of each prompt per pass.")
@click.option("--prompts", type=int, default=1, show_default=True, help="Mixed: prompts beside the decode step.")
@click.option("--drafted", type=int, help="Verify: tokens proposed per sequence.")
@click.option("--acceptance", type=float, help="Verify: probability that a proposal is accepted.")
@click.option("--tp", type=int, default=1, help="Tensor-parallel ranks.")
@click.option("--pp", type=int, default=1, help="Pipeline ranks.")
@click.option("--dp", type=int, default=1, help="Data-parallel ranks.")
@click.option("--ep", type=int, default=1, help="Expert-parallel ranks, taken from tp, cp and dp.")
@click.option("--cp", type=int, default=1, help="Context-parallel ranks.")
@click.option("--zero", type=int, default=0, help="Training: what dp ranks shard (0 nothing .. 3 weights).")
@click.option("--dtype", help="Type of activations and of what is not quantised.  [default: the model's]")
@click.option("--weights", help="Type the matrices of the layers are stored in.  [default: as the checkpoint]")
@click.option("--activations", help="Type activations are cast to for products with quantised weights.")
@click.option("--kv", help="Type of the cache.  [default: the checkpoint's, else --dtype]")
@click.option("--micro-batch", type=int, help="Training: sequences of one micro-batch of one rank.")
@click.option("--accumulation", type=int, help="Training: micro-batches per optimizer step.")
@click.option("--recompute", type=click.Choice(["none", "selective", "full"]), default="none", show_default=True)
@click.option("--optimizer", type=click.Choice(["adamw", "sgd", "sgd_momentum"]), default="adamw", show_default=True)
@click.option("--lora-rank", type=int, help="Training: adapters of this rank beside frozen weights.")
@click.option("--mtp", is_flag=True, help="Training: multi-token-prediction layers too.")
@click.option("--routing", type=click.Path(path_type=Path), help="JSON list: how often each expert was used.")
@click.option("--tower-tokens", multiple=True, metavar="NAME=N", help="Tokens per sequence of a tower or encoder.")
@click.option("--launch-cost", metavar="TIME", help='Fixed cost of one kernel, such as "3 us".')
@click.option("--launches-per-layer", type=int, help="Kernels per layer that cost it.  [default: those listed]")
@click.option("--overlap", type=click.Choice(["full", "none"]), help="Messages hide behind kernels or not.")
@click.option("--memory-fraction", type=float, default=1.0, help="Share of the memory that may be used.  [default: 1]")
@click.option("--scope", type=click.Choice(["core", "die", "device", "node"]), help="Scope that is one device.")
@click.option("--measured-time", metavar="TIME", help='A measured time of the phase, such as "12.5 ms": MFU and HFU.')
@click.option("--reported", metavar="RATE", help='Training: a reported rate such as "449 TFLOP/s": which convention?')
@click.option("--reported-tokens", type=float, help="Tokens per second beside it, of the same devices.")
@click.option(
    "--calibration",
    type=click.Path(path_type=Path),
    help="Expect what `mansard validate -o FILE` saw, not public runs.",
)
@click.option("--sweep", multiple=True, metavar="KEY=A,B,C", help="A row per value; several make a grid.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Also write the document (or a sweep as .csv).")
@click.option("--force", is_flag=True, help="Replace the output if it exists.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(model: str, **options: Any) -> int:
    """Count what MODEL must consume, and how fast a machine can let it.

    MODEL is a config.json, a folder that holds one, or a shipped name.

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
        parse_reported,
        parse_time,
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
            measured_s=parse_time(options["measured_time"], "--measured-time"),
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
