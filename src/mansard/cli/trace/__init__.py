"""`mansard trace`: facts from a recorded profile; each question is a module that is imported when asked."""

from __future__ import annotations

import importlib

import click

#: Question -> module with a click command named `command`, and the line shown in the overview.
QUESTIONS: dict[str, tuple[str, str]] = {
    "summary": ("mansard.cli.trace.summary", "Busy and idle time of each device, by cause; longest kernels."),
    "regions": ("mansard.cli.trace.regions", "Marked ranges: time on the CPU, and the device work they launched."),
    "steps": ("mansard.cli.trace.steps", "Steps, from markers or from the period of the kernels."),
    "kernels": ("mansard.cli.trace.kernels", "Kernels by name and category, with what launched them."),
    "overlap": ("mansard.cli.trace.overlap", "Which kinds of work run at once; exposed communication."),
    "mfu": ("mansard.cli.trace.mfu", "MFU of one occurrence of a region."),
    "intensity": ("mansard.cli.trace.intensity", "FLOP per byte of a window against the ridge point."),
    "ranks": ("mansard.cli.trace.ranks", "Several files of one job: skew, stragglers, imbalance."),
}


class Questions(click.Group):
    """A group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the questions in the order of the table."""
        return list(QUESTIONS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of a question."""
        if cmd_name not in QUESTIONS:
            return None
        command: click.Command = importlib.import_module(QUESTIONS[cmd_name][0]).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the overview without importing the questions."""
        with formatter.section("Questions"):
            formatter.write_dl([(name, text) for name, (_, text) in QUESTIONS.items()])


@click.group("trace", cls=Questions, context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Say what a recorded profile holds: Nsight Systems, PyTorch, XLA, rocprofv3.

    \b
      mansard trace summary profile.sqlite
      mansard trace mfu profile.sqlite --region train_step --flops "132 TFLOP" --peak "989 TFLOP/s"
    """
