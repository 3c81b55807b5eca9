"""`mansard plan topology`: shapes of a machine for a model, and what each axis should carry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from mansard.cli import options as shared
from mansard.cli.plan.fabric_options import fabric_from, fabric_options

if TYPE_CHECKING:
    from mansard.hardware.topology import Fabric
    from mansard.predict.estimate import Request


@click.command("topology", short_help="Which slice shape, and which of its axes for which kind of parallelism.")
@click.argument("shapes", nargs=-1, required=True)
@shared.on_network
@click.option("--model", required=True, metavar="MODEL", help="config.json, its folder, or a shipped name.")
@click.option("--phase", type=click.Choice(["train", "prefill", "decode"]), default="train", show_default=True)
@shared.batch
@shared.seq
@click.option("--context", type=int, help="Decode: keys each new token sees.")
@shared.accumulation
@shared.recompute
@click.option(
    "--zero", type=click.IntRange(0, 3), default=3, show_default=True, help="Training: what data ranks shard."
)
@shared.model_dtype
@click.option("--dp", type=int, help="Data-parallel (FSDP) ranks, expert axes apart.  [default: any]")
@click.option("--tp", type=int, help="Tensor-parallel ranks.  [default: any]")
@click.option("--ep", type=int, help="Ranks on expert axes.  [default: any]")
@click.option("--cp", type=int, help="Context-parallel ranks.  [default: any]")
@click.option("--kinds", metavar="A,B", help="Only these of data, tensor, expert, context.")
@fabric_options
@shared.in_network
@shared.as_json
def command(shapes: tuple[str, ...], **options: Any) -> int:
    """Compare SHAPES for a model, and say which axis should carry which kind of parallelism, and why.

    A shape is `4x4x8` chips of a torus, `8` GPUs of a node, `2:4x4` two slices, `4:8` four nodes of eight.

    Exit code 3 where no shape could be judged.

    \b
      mansard plan topology 2x2x2 4x2x1 --on tpu-v5p --model llama-3.1-8b \\
        --batch 64 --seq 4096
      mansard plan topology 8 2:8 --on h200 --network "50 GB/s" \\
        --model config.json --batch 64 --seq 4096
    """
    from mansard.core.document import dumps, header, to_jsonable
    from mansard.core.unknown import Unknown
    from mansard.plan.topology import allowed_kinds, plan_shape, shape_json
    from mansard.predict.machines import load_machine
    from mansard.workload.model.load import load_model

    model = load_model(options["model"])
    request = _request(options)
    asked = None if options["kinds"] is None else [k.strip() for k in options["kinds"].split(",")]
    kinds = allowed_kinds(model, options["phase"], asked)
    fixed = _fixed(options, kinds)
    machine = load_machine(options["on"])
    rows: list[dict[str, Any]] = []
    for text in dict.fromkeys(shapes):
        fabric = _fabric(text, options)
        if isinstance(fabric, Unknown):
            rows.append({"shape": text, "best": fabric})
            continue
        found = plan_shape(
            model, request, machine, fabric, kinds=kinds, fixed=fixed, zero=options["zero"],
            in_network=options["in_network"] or options["sharp"],
        )  # fmt: skip
        rows.append({**shape_json(found), "shape": text})
    rows.sort(key=_rank)
    document = {
        **header("plan-topology/1", {"machine": options["on"], "model": model.source}),
        "model": model.name, "phase": options["phase"], "batch": options["batch"], "seq": options["seq"],
        "context": options["context"], "zero": options["zero"], "kinds": kinds, "shapes": rows,
        "assumed": [
            "kernels and messages at their ceilings: a floor for each step, good for comparing shapes",
            "in training messages hide behind kernels as a whole, in inference they do not",
            "a torus axis serves one kind as a whole; a switch may be divided",
        ],
    }  # fmt: skip
    if options["as_json"]:
        click.echo(dumps(document), nl=False)
    else:
        from mansard.report.topology_text import topology_text

        click.echo(topology_text(to_jsonable(document)))
    return 0 if any(not isinstance(row["best"], Unknown) for row in rows) else 3


def _rank(row: Mapping[str, Any]) -> tuple[bool, bool, float, float]:
    """Shapes that work first, then those that fit, then tokens per second and device; of equals, the fewer messages."""
    from mansard.core.unknown import Unknown

    best = row["best"]
    if isinstance(best, Unknown):
        return (True, True, 0.0, 0.0)
    rate = float(f"{best['tokens_per_s_and_device']:.4g}")
    return (False, best["fits"] is False, -rate, best["messages_s"] / best["step_s"])


def _request(options: Mapping[str, Any]) -> Request:
    from mansard.predict.estimate import Request
    from mansard.workload.training import Recipe

    return Request(
        phase=options["phase"], batch=options["batch"], seq=options["seq"], context=options["context"],
        accumulation=options["accumulation"], dtype=options["dtype"], recipe=Recipe(recompute=options["recompute"]),
    )  # fmt: skip


def _fixed(options: Mapping[str, Any], kinds: tuple[str, ...]) -> dict[str, int]:
    """The ranks that were asked for; one that is above 1 needs its kind."""
    from mansard.core.errors import UsageError

    out = {}
    for option, kind in (("dp", "data"), ("tp", "tensor"), ("ep", "expert"), ("cp", "context")):
        value = options[option]
        if value is None:
            continue
        if value < 1 or (value > 1 and kind not in kinds):
            raise UsageError(f"--{option} {value}: {kind} parallelism is not among {', '.join(kinds)} here")
        out[kind] = value
    return out


def _fabric(text: str, options: Mapping[str, Any]) -> Fabric | Any:
    """The network of a shape, or why the product cannot be built like that."""
    from mansard.core.unknown import Unknown
    from mansard.hardware.fabrics import ShapeError

    try:
        return fabric_from(text, options)
    except ShapeError as error:
        return Unknown(error.message, (error.hint,) if error.hint else ())
