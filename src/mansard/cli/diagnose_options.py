"""The options of `mansard diagnose` that say what is asked; `mansard.diagnose(...)` has a keyword for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from mansard.cli import options as shared

if TYPE_CHECKING:
    from mansard.diagnose.asked import Asked

F = TypeVar("F", bound=Callable[..., Any])
_COUNT = click.IntRange(min=1)

_PLACE = (
    click.option("--region", metavar="NAME", help="One range instead of the whole profile."),
    click.option("--occurrence", type=int, default=1, show_default=True, help="Which one, from 1."),
    shared.match,
    click.option("--all-threads", is_flag=True, help="Count work that other threads launched during the region."),
    shared.marker,
    shared.trim,
    shared.device,
    click.option("--memory-limit", metavar="SIZE", help='Refuse what needs more memory, such as "8 GB".'),
)  # fmt: skip
_MACHINE = (
    click.option("--hardware", "--on", "hardware", metavar="NAME", help="The product, where the file does not tell."),
    click.option("--ceilings", type=click.Path(path_type=Path), help="Measured ceilings.json."),
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
    shared.recompute,
    *(click.option(f"--{n}", type=_COUNT, default=1, help=f"With a model: {w}-parallel ranks.")
      for n, w in (("tp", "tensor"), ("pp", "pipeline"), ("dp", "data"), ("ep", "expert"), ("cp", "context"))),
    shared.work_dtype,
    click.option("--weights", help="With a model: type the matrices are stored in."),
    click.option("--kv", help="With a model: type of the cache."),
    click.option("--facts", type=click.Path(path_type=Path), metavar="FACTS.json", help="What no recording tells: padding, tokens of experts, offloading."),
)  # fmt: skip


def question_options(function: F) -> F:
    """Add the options that say what is asked."""
    for decorate in reversed((*_PLACE, *_MACHINE, *_WORK)):
        function = decorate(function)
    return function


def asked_with(options: Mapping[str, Any]) -> Asked:
    """Return what was asked on the command line: each option is the keyword of its name."""
    from dataclasses import fields

    from mansard.diagnose.asked import Asked

    names = {f.name for f in fields(Asked)}
    return Asked(**{name: value for name, value in options.items() if name in names})
