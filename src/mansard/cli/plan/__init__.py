"""`mansard plan`: answers before a job is started; each question is a module that is imported when asked."""

from __future__ import annotations

import click

from mansard.cli.questions import Questions

#: Question -> module with a click command named `command`, and the line shown in the overview.
QUESTIONS: dict[str, tuple[str, str]] = {
    "scale": ("mansard.cli.plan.scale", "How far a job scales, and the N where it stops paying."),
    "topology": (
        "mansard.cli.plan.topology",
        "Which slice shape, and which of its axes for which kind of parallelism.",
    ),
    "collective": (
        "mansard.cli.plan.collective",
        "The least time of an all-reduce, ... on a network, and yours beside it.",
    ),
    "shard": ("mansard.cli.plan.shard", "Which ranks, micro-batch, recomputation and precision on N devices."),
    "size": ("mansard.cli.plan.size", "How many devices hold a model, how fast they are, what they cost."),
    "offload": ("mansard.cli.plan.offload", "Experts or layers on the host: hit rates, misses, the link."),
    "remat": ("mansard.cli.plan.remat", "Keep, recompute or offload each activation: time and memory."),
    "disaggregate": ("mansard.cli.plan.disaggregate", "Prefill and decode on workers of their own: does it pay?"),
    "whatif": ("mansard.cli.plan.whatif", "One ceiling changed: which part of a step moves."),
}


@click.group("plan", cls=Questions, questions=QUESTIONS, context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Answer before a job is started: topology, scaling, and what fits.

    \b
      mansard plan size llama-3.1-70b --on h100-sxm,h200 --context 8192 \\
        --concurrency 32
      mansard plan topology 2x2x2 4x2x1 --on tpu-v5p --model config.json \\
        --batch 64 --seq 4096
      mansard plan scale --point 1:100 --point 2:53 --point 4:29 --point 8:17
    """
