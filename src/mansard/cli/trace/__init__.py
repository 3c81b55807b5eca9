"""`mansard trace`: facts from a recorded profile; each question is a module that is imported when asked."""

from __future__ import annotations

import click

from mansard.cli.questions import Questions

#: Question -> module with a click command named `command`, and the line shown in the overview.
QUESTIONS: dict[str, tuple[str, str]] = {
    "summary": ("mansard.cli.trace.summary", "Busy and idle time of each device, by cause; longest kernels."),
    "regions": ("mansard.cli.trace.regions", "Marked ranges: time on the CPU, and the device work they launched."),
    "steps": ("mansard.cli.trace.steps", "Steps, from markers or from the period of the kernels."),
    "kernels": ("mansard.cli.trace.kernels", "Kernels by name and category, with what launched them."),
    "streams": ("mansard.cli.trace.streams", "Time of each stream, and how many kernels ran at once."),
    "gaps": ("mansard.cli.trace.gaps", "Idle gaps one by one, with their causes."),
    "calls": ("mansard.cli.trace.calls", "Calls of the runtime, launch latency and queue time."),
    "overlap": ("mansard.cli.trace.overlap", "Which kinds of work run at once; exposed communication."),
    "mfu": ("mansard.cli.trace.mfu", "MFU of one occurrence of a region."),
    "intensity": ("mansard.cli.trace.intensity", "FLOP per byte of a window against the ridge point."),
    "ranks": ("mansard.cli.trace.ranks", "Several files of one job: skew, stragglers, imbalance."),
}


@click.group("trace", cls=Questions, questions=QUESTIONS, context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Say what a recorded profile holds: Nsight Systems, PyTorch, XLA, rocprofv3.

    \b
      mansard trace summary profile.sqlite
      mansard trace mfu profile.sqlite --region train_step --flops "132 TFLOP" \\
        --peak "989 TFLOP/s"
    """
