"""From the options of `mansard diagnose` to a question: stated FLOP, a model in its phase, a peak."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from mansard.diagnose.inputs import Inputs
    from mansard.diagnose.profile import Question
    from mansard.diagnose.scope_guard import StatedWork
    from mansard.predict.estimate import Estimate

F = TypeVar("F", bound=Callable[..., Any])
_MATCHES = ("auto", "exact", "contains", "startswith", "glob", "regex")
_COUNT = click.IntRange(min=1)

_PLACE = (
    click.option("--region", metavar="NAME", help="One range instead of the whole profile."),
    click.option("--occurrence", type=int, default=1, show_default=True, help="Which one, from 1."),
    click.option("--match", type=click.Choice(_MATCHES), default="auto", show_default=True, help="How NAME is compared."),
    click.option("--all-threads", is_flag=True, help="Count work that other threads launched during the region."),
    click.option("--marker", metavar="NAME", help="The range that marks a step."),
    click.option("--trim", nargs=2, metavar="A B", help='Window: seconds, or with a unit ("300 ms"); from the start of the capture.'),
    click.option("--device", "--device-id", "device", type=click.IntRange(min=0), help="This device alone."),
    click.option("--memory-limit", metavar="SIZE", help='Refuse what needs more memory, such as "8 GB".'),
)  # fmt: skip
_MACHINE = (
    click.option("--hardware", "--on", "hardware", metavar="NAME", help="The product, where the file does not tell."),
    click.option("--ceilings", "ceilings_file", type=click.Path(path_type=Path), help="Measured ceilings.json."),
    click.option("--network-rate", metavar="RATE", help='One-way rate of one device between nodes, "400 Gbit/s".'),
    click.option("--node-devices", type=_COUNT, help="Devices of one node."),
    click.option("--gpus", type=_COUNT, help="Devices of the whole job, where the profile does not tell."),
    click.option("--peak", metavar="RATE", help='Dense peak of one device for MFU, "989 TFLOP/s".'),
)  # fmt: skip
_WORK = (
    click.option("--flops", metavar="X", help='FLOP of the work, "132 TFLOP"; see --flops-of and --flops-scope.'),
    click.option("--flops-of", type=click.Choice(["step", "region"]), help="What they are of where the time holds several steps."),
    click.option("--flops-scope", type=click.Choice(["device", "job"]), help="Of one device, or of all devices of the job."),
    click.option("--flops-are", type=click.Choice(["forward", "train"]), help="Of a forward pass, or of forward and backward."),
    click.option("--ncu", type=click.Path(path_type=Path), metavar="REPORT.csv", help="Nsight Compute CSV of the same program."),
    click.option("--model", type=click.Path(path_type=Path), help="A model's config.json, folder or shipped name."),
    click.option("--phase", type=click.Choice(["train", "prefill", "decode"]), help="With a model: what one step is."),
    click.option("--batch", type=_COUNT, default=1, show_default=True, help="With a model: sequences of all devices."),
    click.option("--seq", type=_COUNT, help="With a model: tokens per sequence."),
    click.option("--context", type=_COUNT, help="With a model: keys each new token of a decode step sees."),
    click.option("--accumulation", type=_COUNT, help="Micro-batches per optimizer step."),
    click.option("--recompute", type=click.Choice(["none", "selective", "full"]), default="none", show_default=True),
    *(click.option(f"--{n}", type=_COUNT, default=1, help=f"With a model: {w}-parallel ranks.")
      for n, w in (("tp", "tensor"), ("pp", "pipeline"), ("dp", "data"), ("ep", "expert"), ("cp", "context"))),
    click.option("--dtype", help="Element type of the matrix work, such as bf16."),
    click.option("--weights", help="With a model: type the matrices are stored in."),
    click.option("--kv", help="With a model: type of the cache."),
)  # fmt: skip
#: Options of `estimate` that `diagnose` does not have, with what they are there when not given.
_DEFAULTS: dict[str, Any] = {
    "contexts": None, "lengths": None, "zero": 0, "optimizer": "adamw", "lora_rank": None, "routing": None, "tower_tokens": (),
    "launch_cost": None, "cached": 0, "chunk": None, "prompts": 1, "drafted": None, "acceptance": None, "activations": None,
    "micro_batch": None, "mtp": False, "launches_per_layer": None, "overlap": None, "memory_fraction": 1.0,
}  # fmt: skip


def question_options(function: F) -> F:
    """Add the options that say what is asked."""
    for decorate in reversed((*_PLACE, *_MACHINE, *_WORK)):
        function = decorate(function)
    return function


def question_of(options: Mapping[str, Any], inputs: Inputs, device: int | None) -> Question:
    """Return what was asked on the command line."""
    from mansard.core.errors import UsageError
    from mansard.core.units import positive_amount as amount
    from mansard.diagnose.facts import points_of
    from mansard.diagnose.inputs import load_ceilings
    from mansard.diagnose.profile import Question

    ceilings = inputs.ceilings
    if options["ceilings_file"] is not None:
        if ceilings is not None:
            raise UsageError("ceilings are given twice", hint="give the file alone, or --ceilings alone")
        ceilings = load_ceilings(options["ceilings_file"])
    if ceilings is None and inputs.points:
        from mansard.measure.points.points_ceilings import envelope_of

        made = envelope_of(inputs.points)
        ceilings = made if made.ceilings else None
    estimate = estimate_of(options, inputs.model)
    return Question(
        device=device,
        ceilings=ceilings,
        network_bytes_per_s=amount(options["network_rate"], "bytes_per_s", "--network-rate"),
        stated=_stated(options, estimate),
        peak_flop_per_s=amount(options["peak"], "flop_per_s", "--peak"),
        job_devices=options["gpus"],
        estimate=estimate,
        points=points_of(inputs.points),
        **{
            name: options[name]
            for name in ("region", "occurrence", "match", "all_threads", "marker", "hardware", "node_devices", "dtype")
        },
    )


def estimate_of(options: Mapping[str, Any], file: Path | None) -> Estimate | None:
    """Return the model in its phase; None where none is given."""
    from mansard.core.errors import UsageError

    named = options["model"]
    if named is not None and file is not None:
        raise UsageError("a model is given twice", hint="give its config.json alone, or --model alone")
    source = named if named is not None else file
    if source is None:
        loose = [f"--{n}" for n in ("phase", "seq", "context", "weights", "kv") if options[n] is not None]
        if loose:
            raise UsageError(
                f"{', '.join(loose)} describe a model's work", hint="add a model's config.json, or --model"
            )
        return None
    from mansard.cli.estimate_options import request_of
    from mansard.predict.estimate import estimate
    from mansard.workload.model.load import load_model

    request = request_of({**_DEFAULTS, **options})
    if request is None:
        raise UsageError(
            f"what one step of {source} is was not said",
            hint="--phase train --batch B --seq S, or --context N for a decode step",
        )
    return estimate(load_model(str(source)), request)


def _stated(options: Mapping[str, Any], estimate: Estimate | None) -> StatedWork | None:
    """Return the FLOP that were stated; those of a model are stated by the model."""
    from dataclasses import replace

    from mansard.core.errors import UsageError
    from mansard.core.units import positive_amount as amount
    from mansard.diagnose.profile import Question, stated_work
    from mansard.diagnose.scope_guard import StatedWork

    flop = amount(options["flops"], "flop", "--flops")
    if flop is None:
        loose = [f"--{n.replace('_', '-')}" for n in ("flops_scope", "flops_are") if options[n] is not None]
        if loose:
            raise UsageError(f"{', '.join(loose)} say what --flops count", hint="add --flops")
        if estimate is None:
            if options["flops_of"] is not None:
                raise UsageError("--flops-of says what --flops or a model count", hint="add --flops or a model")
            return None
        told = stated_work(Question(estimate=estimate, region=options["region"]))
        return told if told is None or options["flops_of"] is None else replace(told, span=options["flops_of"])
    if estimate is not None:
        raise UsageError("--flops and a model both say how much work it is", hint="give one of them")
    return StatedWork(
        flop=flop, of=options["flops_are"] or "", span=options["flops_of"], accumulation=options["accumulation"],
        devices=1 if options["flops_scope"] == "device" else None, all_devices=options["flops_scope"] == "job",
    )  # fmt: skip
