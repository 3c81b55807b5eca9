"""The `mansard` command: verbs are found by name and loaded only when used, so that help is quick."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import Any

import click

from mansard import __version__
from mansard.cli.questions import Questions

#: Verb -> module with a click command named `command`, and the line shown in the overview.
VERBS: dict[str, tuple[str, str]] = {
    "doctor": ("mansard.cli.doctor", "What this machine is, and what can and cannot be measured on it."),
    "hardware": ("mansard.cli.hardware", "What a machine should do on paper, and which one it is."),
    "measure": ("mansard.cli.measure", "Measure what this machine can do, and keep it as ceilings."),
    "run": ("mansard.cli.run", "Run a Python program (PyTorch or JAX) and name its bottleneck."),
    "estimate": ("mansard.cli.estimate", "What a model must consume on a machine: FLOP, bytes, time bound, memory."),
    "flops": ("mansard.cli.flops", "FLOP of one operation or block from its dimensions."),
    "trace": ("mansard.cli.trace", "Facts from a recorded profile: busy, idle, regions, kernels, MFU."),
    "diagnose": ("mansard.cli.diagnose", "Name the bottleneck of a recorded profile, and what to change first."),
    "compare": ("mansard.cli.compare", "Is one result faster or slower than another, and may one say so?"),
    "check": ("mansard.cli.check", "Hold a result against rules and a baseline; the exit code is for CI."),
    "baseline": ("mansard.cli.baseline", "Keep results, and name what later ones are compared with."),
    "validate": ("mansard.cli.validate", "How far off estimates are, on this machine or against recorded runs."),
    "plan": ("mansard.cli.plan", "Which topology, how many devices: answers before a job is started."),
    "report": ("mansard.cli.report", "Turn results into one self-contained HTML page."),
    "export": ("mansard.cli.export", "Write results as CSV, Parquet, Perfetto, OpenMetrics, JUnit, figures."),
}


PIPE_CLOSED = 141  # as a shell shows a program that SIGPIPE ended: 128 + 13


@click.group(cls=Questions, questions=VERBS, noun="verb", context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="mansard")
def cli() -> None:
    """Find the bottleneck of ML and HPC programs by measurement instead of by guess.

    Start with `mansard measure`, then `mansard run train.py`.
    """


def main(argv: list[str] | None = None) -> None:
    """Run the command line and exit with the code of the design: 0, 1, 2, 3, 4, 130, or 141 where nobody reads the output."""
    args = sys.argv[1:] if argv is None else argv
    code, stdout = 0, sys.stdout
    try:
        result: Any = cli.main(args=args, prog_name="mansard", standalone_mode=False)
        code = result if isinstance(result, int) else 0
    except (click.exceptions.Abort, KeyboardInterrupt):
        code = 130
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if sys.stdout is not stdout:  # click puts another there, before it ends with 1, where nobody reads
            code = PIPE_CLOSED
    except Exception as error:
        code = _explained(error, args)
    sys.exit(code if _written_out() else PIPE_CLOSED)


def _written_out() -> bool:
    """Write out what is left, and return whether somebody took it; else what the interpreter writes at its end goes nowhere."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
        return False
    except (AttributeError, OSError, ValueError):  # none, closed or replaced by the program; a full disk is no pipe
        return True
    return True


def _explained(error: Exception, args: list[str]) -> int:
    """Print an expected error in one line with its hint and return its exit code; a defect keeps its traceback."""
    from mansard.core.errors import MansardError

    if not isinstance(error, MansardError):
        raise error
    if _wants_json(args):
        with contextlib.suppress(BrokenPipeError):
            click.echo(json.dumps(error.to_dict()))
    else:
        click.echo(f"mansard: {error.message}", err=True)
        if error.hint:
            click.echo(f"  hint: {error.hint}", err=True)
    return error.exit_code


def _wants_json(args: list[str]) -> bool:
    """Return whether `--json` was given to mansard and not to the program that `run` starts."""
    if args[:1] == ["run"]:
        from mansard.cli.run import command

        context = command.make_context("run", args[1:], resilient_parsing=True)
        return bool(context.params.get("as_json"))
    return "--json" in args[: args.index("--")] if "--" in args else "--json" in args
