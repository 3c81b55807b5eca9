"""`mansard trace mfu`: how one occurrence of a region used its devices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from mansard.cli import options as shared
from mansard.cli.trace.common import file_options, ncu_option

if TYPE_CHECKING:
    from mansard.core.errors import UsageError
    from mansard.diagnose.utilisation import Work
    from mansard.trace.profile_steps import ProfileSteps
    from mansard.trace.regions import Ranges


_CONVENTION = {
    "train": "training is 3 x the forward pass, causal attention, a multiply-add is 2 FLOP",
    "prefill": "one forward pass, causal attention, a multiply-add is 2 FLOP",
    "decode": "one new token per sequence, a multiply-add is 2 FLOP",
}


@click.command("mfu", short_help="MFU of one occurrence of a region.")
@file_options
@click.option(
    "--region", "--name", "region", metavar="NAME", help="The range; needed. Without it the file's are named."
)
@click.option(
    "--occurrence",
    "--occurrence-index",
    "occurrence",
    type=int,
    default=1,
    show_default=True,
    help="Which one, from 1.",
)
@click.option(
    "--match",
    "--match-mode",
    "match",
    type=click.Choice(shared.MATCHES),
    default="auto",
    show_default=True,
    help="How the name is compared.",
)
@click.option(
    "--source",
    type=click.Choice(["nvtx", "kernel"]),
    default="nvtx",
    show_default=True,
    help="A range, or kernels whose short name contains NAME.",
)
@click.option(
    "--all-threads", is_flag=True, help="Count work that other threads launched during it (autograd's backward)."
)
@click.option(
    "--flops",
    "--theoretical-flops",
    "flops",
    metavar="X",
    help='FLOP of one occurrence on all its devices: "132 TFLOP", or plain FLOP.',
)
@ncu_option
@click.option(
    "--flops-of",
    type=click.Choice(["step", "region"]),
    help="Where the region holds several steps: what the FLOP count.",
)
@click.option("--executed-flops", metavar="X", help="FLOP executed, recomputation counted: gives HFU.")
@click.option("--tokens", type=float, help="Tokens of one occurrence.")
@click.option("--model", metavar="MODEL", help="config.json, folder or shipped name: FLOP counted from it.")
@click.option(
    "--phase",
    type=click.Choice(["train", "prefill", "decode"]),
    help="With --model: what one occurrence is; train unless said.",
)
@click.option(
    "--batch", type=click.IntRange(min=1), help="With --model: sequences of one occurrence on all its devices."
)
@click.option("--seq", type=click.IntRange(min=1), help="With --model: tokens per sequence.")
@click.option("--context", type=click.IntRange(min=1), help="With --model --phase decode: keys each new token sees.")
@click.option("--accumulation", type=click.IntRange(min=1), help="Micro-batches per optimizer step.")
@click.option(
    "--recompute", type=click.Choice(["none", "selective", "full"]), help="Activations recomputed in backward."
)
@click.option("--gpus", "--num-gpus", "gpus", type=int, help="Devices that take part; must be what the profile shows.")
@shared.work_dtype
@click.option("--peak", metavar="RATE", help='Dense peak of one device, "989 TFLOP/s"; wins over the catalogue.')
@shared.peak_tflops
@shared.hardware
def command(**options: Any) -> int:
    """MFU of one occurrence of a region: FLOP over wall time x devices x dense peak, and its cross-checks.

    FLOP are given, or counted from a model's configuration: a training step is three times its forward pass, a multiply-add is
    2 FLOP, causal attention counts what it computes. Without either, executed FLOP come from recorded shapes where these cover
    the region's kernels. Exit code 3 where a ratio is above 1, or not known.

    \b
      mansard trace mfu profile.sqlite --region train_step --flops "132 TFLOP" \\
        --peak "989 TFLOP/s"
      mansard trace mfu profile.sqlite --region step --model config.json \\
        --phase train --batch 8 --seq 4096 --dtype bf16
    """  # fmt: skip
    from mansard.cli.trace.common import deliver, read, with_demands
    from mansard.core.unknown import is_known
    from mansard.diagnose.peaks import compute_peak, identify
    from mansard.diagnose.utilisation import region_use
    from mansard.report.trace_document import mfu_document
    from mansard.report.trace_text import mfu_lines
    from mansard.trace.prepare import device_index
    from mansard.trace.profile_steps import find_steps
    from mansard.trace.regions import attribute
    from mansard.trace.timeline import Kind

    work = work_of(options)
    peak = peak_of(options)
    timeline = read(options, prepare=with_demands(options))
    device = device_index(timeline, options["device"])
    kinds = tuple(k for k in (Kind.ANNOTATION, Kind.CPU_OP) if timeline.has(k))
    ranges = attribute(timeline, kinds=kinds or (Kind.ANNOTATION,))
    used = timeline.used_devices if device is None else (device,)
    chip = identify([timeline.devices[d] for d in used], hardware=options["hardware"])
    steps = find_steps(timeline)
    if options["region"] is None:
        raise _which_region(ranges, steps)
    use = region_use(
        ranges, options["region"], work, compute_peak(chip, given_flop_per_s=peak, dtype=options["dtype"]),
        occurrence=options["occurrence"], match=options["match"], device=device, gpus=options["gpus"],
        all_threads=options["all_threads"], of_kernels=options["source"] == "kernel", steps=steps,
        flop_of=options["flops_of"],
    )  # fmt: skip
    document = mfu_document(timeline, use, chip)
    deliver(document, mfu_lines, as_json=options["as_json"])
    return 0 if is_known(use.mfu) and document["status"] == "complete" else 3


def _which_region(ranges: Ranges, steps: ProfileSteps) -> UsageError:
    """Return what to say where no range is named: those of the file, the one that marks its steps first."""
    from mansard.core.errors import UsageError
    from mansard.trace.regions import shown_names

    names = shown_names(ranges)
    if not names:
        return UsageError(
            "--region is missing, and the profile has no ranges", hint="mark the region with nvtx.range or record_function",
            code="no_ranges",
        )  # fmt: skip
    marked = [n for n in names if steps.count and steps.name and n.startswith(steps.name)]
    first = [*marked[:1], *(n for n in names if n not in marked)][:5]
    count = f" (of {steps.count} steps)" if marked else ""
    return UsageError(
        "--region is missing: MFU is that of one occurrence of a range",
        hint=f"--region {first[0]!r}{count}{', or ' if first[1:] else ''}{', '.join(map(repr, first[1:]))}; "
        "mansard trace regions lists them",
        code="region_missing",
    )


def peak_of(options: Mapping[str, Any]) -> float | None:
    """Return the peak that was given [FLOP/s]."""
    from mansard.core.errors import UsageError
    from mansard.core.units import positive_amount as amount

    if options["peak"] is not None and options["peak_tflops"] is not None:
        raise UsageError("--peak and --peak-tflops are the same thing", hint="give one of them")
    if options["peak_tflops"] is not None:
        return amount(str(options["peak_tflops"]), "flop_per_s", "--peak-tflops", scale=1e12)
    return amount(options["peak"], "flop_per_s", "--peak")


def work_of(options: Mapping[str, Any]) -> Work:
    """Return FLOP and tokens of one occurrence, as given or counted from a model."""
    from mansard.core.errors import UsageError
    from mansard.core.units import positive_amount as amount
    from mansard.core.unknown import Unknown
    from mansard.diagnose.utilisation import Work

    stated = {name for name in ("accumulation",) if options[name] is not None}
    if options["recompute"] is not None:
        stated.add("checkpointing")
    if options["recompute"] == "none":
        stated.add("no_recompute")
    if options["dtype"] is not None:
        stated.add("dtype")
    flop = amount(options["flops"], "flop", "--flops")
    executed = amount(options["executed_flops"], "flop", "--executed-flops")
    if options["model"] is not None:
        if flop is not None:
            raise UsageError("--flops and --model both say how much work it is", hint="give one of them")
        return _from_model(options, stated)
    loose = [f"--{n}" for n in ("phase", "batch", "seq", "context") if options[n] is not None]
    if loose:
        raise UsageError(f"{', '.join(loose)} describe a model's work", hint="add --model")
    if options["tokens"] is not None:
        if options["tokens"] <= 0:
            raise UsageError(f"--tokens is {options['tokens']}, expected a positive number")
        stated.add("tokens")
    needs = ("--flops", "--model config.json --phase train --batch B --seq S")
    if executed is None and options["recompute"] == "none":
        executed = flop  # nothing is recomputed, so what was executed is the model's work
    return Work(
        flop=flop if flop is not None else Unknown("the FLOP of the region are not given", needs),
        executed_flop=executed if executed is not None else Unknown("the FLOP that were executed are not given", ("--executed-flops", "--model")),
        tokens=options["tokens"] if options["tokens"] is not None else Unknown("tokens are not given", ("--tokens",)),
        source="given; of one occurrence on all its devices" if flop is not None else "",
        stated=frozenset(stated),
    )  # fmt: skip


def _from_model(options: Mapping[str, Any], stated: set[str]) -> Work:
    from mansard.core.errors import UsageError
    from mansard.diagnose.utilisation import Work
    from mansard.predict.estimate import Request, estimate
    from mansard.workload.model.load import load_model
    from mansard.workload.training import Recipe

    phase, batch = options["phase"] or "train", options["batch"]
    if batch is None:
        raise UsageError("--model needs --batch", hint="--phase train --batch 8 --seq 4096")
    if phase != "decode" and options["seq"] is None:
        raise UsageError(f"--model --phase {phase} needs --seq", hint="tokens per sequence")
    if phase == "decode" and options["context"] is None:
        raise UsageError("--model --phase decode needs --context", hint="keys each new token sees, itself included")
    recipe = Recipe(recompute=options["recompute"]) if options["recompute"] else Recipe()
    request = Request(
        phase=phase, batch=batch, seq=options["seq"] if phase != "decode" else None, dtype=options["dtype"], recipe=recipe,
        context=options["context"] if phase == "decode" else None, accumulation=options["accumulation"],
    )  # fmt: skip
    found = estimate(load_model(options["model"]), request).phase
    words = f"{options['model']}, {phase}{'' if options['phase'] else ' (--phase was not given)'}, batch {batch}, " + (
        f"context {options['context']}" if phase == "decode" else f"{options['seq']} tokens each"
    )
    return Work(
        flop=float(found.model_flop),
        executed_flop=float(found.executed_flop),
        tokens=float(found.tokens),
        source=f"counted from {words}; {_CONVENTION[phase]}",
        of={"train": "one forward and backward", "prefill": "one forward", "decode": "one decode step"}[phase],
        stated=frozenset(stated | {"tokens", "layers"}),
    )
