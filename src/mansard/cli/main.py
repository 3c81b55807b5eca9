"""The `mansard` command: verbs are found by name and loaded only when used, so that help is quick."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
from typing import Any

import click

from mansard import __version__
from mansard.cli.endings import signals_as_exceptions
from mansard.cli.questions import Questions
from mansard.cli.streams import forgiving

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


NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
PIPE_CLOSED = 141  # as a shell shows a program that SIGPIPE ended: 128 + 13


@click.group(cls=Questions, questions=VERBS, noun="verb", context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="mansard")
def cli() -> None:
    """Find the bottleneck of ML and HPC programs by measurement instead of by guess.

    \b
    Start here:
      mansard measure              what this machine can do, once, a minute
      mansard run train.py         your program, and what bounds it
      mansard diagnose PROFILE     a profile that was recorded already
      mansard estimate llama-3.1-8b --on h100-sxm --context 4096
                                   a model on a machine you do not have

    Every verb has --help, --json and examples; docs/ has the rest.

    Exit code 0 done, 1 a check failed, 2 a wrong command line, 3 no judgement is possible, 4 a file or the machine cannot be used;
    a verb that ends with 1 or 3 says in its help when.
    """


def main(argv: list[str] | None = None) -> None:
    """Run the command line and exit with the code of the design: 0 to 4, 130, 141 where nobody reads, 143 on SIGTERM."""
    args = sys.argv[1:] if argv is None else argv
    code, stdout = 0, sys.stdout
    forgiving(sys.stdout, sys.stderr)
    try:
        with signals_as_exceptions():
            result: Any = cli.main(args=args, prog_name="mansard", standalone_mode=False)
        code = result if isinstance(result, int) else 0
    except (click.exceptions.Abort, KeyboardInterrupt):
        with contextlib.suppress(OSError):
            click.echo("mansard: interrupted", err=True)
        code = 130
    except click.ClickException as error:
        code = _refused(error, args)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if sys.stdout is not stdout:  # click puts another there, before it ends with 1, where nobody reads
            code = PIPE_CLOSED
    except Exception as error:
        code = _explained(error, args)
    if not _written_out():
        code = PIPE_CLOSED
    elif not _kept():
        code = code or 4
    sys.exit(code)


def _written_out() -> bool:
    """Write out what is left, and return whether somebody took it; else what the interpreter writes at its end goes nowhere."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _to_nowhere()
        return False
    except (AttributeError, OSError, ValueError):  # none, closed or replaced by the program; a full disk is no pipe
        return True
    return True


def _kept() -> bool:
    """Return whether what is left of stdout found room; else say so, and what the interpreter writes at its end goes nowhere."""
    try:
        sys.stdout.flush()
    except OSError as error:
        if error.errno not in NO_ROOM:
            return True  # closed by the program that `run` started
        _no_room(error)
        return False
    except (AttributeError, ValueError):
        return True
    return True


def _no_room(error: OSError) -> None:
    click.echo(f"mansard: cannot write to stdout: {error.strerror}", err=True)
    _to_nowhere()


def _to_nowhere() -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _refused(error: click.ClickException, args: list[str]) -> int:
    """Print what is wrong with the command line, as JSON where that was asked for, and return the exit code."""
    if isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):
        with contextlib.suppress(OSError):  # nobody can be told
            error.show()
        return error.exit_code
    from mansard.cli.usage_errors import in_our_form

    return _explained(in_our_form(error), args)


def _environment_error(error: OSError | MemoryError) -> Exception:
    """Return the error to print for a file or a machine that cannot be used."""
    from mansard.core.errors import InputError

    if isinstance(error, MemoryError):
        return InputError("there is not enough memory for this", hint="ask for less at once, or use a larger machine")
    where = f" {error.filename}" if error.filename is not None else ""
    return InputError(
        f"cannot use{where or ' a file'}: {error.strerror or error}", hint="check the path and its rights"
    )


def _explained(error: Exception, args: list[str]) -> int:
    """Print an expected error in one line with its hint and return its exit code; a defect keeps its traceback."""
    from mansard.core.errors import MansardError

    if isinstance(error, OSError) and error.filename is None and error.errno in NO_ROOM:
        _no_room(error)
        return 4
    if isinstance(error, OSError | MemoryError):
        error = _environment_error(error)
    if not isinstance(error, MansardError):
        raise error
    if error.exit_code == 2 and not error.hint:
        error.hint = f"{_verb_of(args)} --help"
    if _wants_json(args) and not error.beside_output:
        with contextlib.suppress(BrokenPipeError):
            click.echo(json.dumps(error.to_dict()))
    else:
        with contextlib.suppress(OSError):  # nobody can be told
            click.echo(_fitted(f"mansard: {error.message}"), err=True)
            if error.hint:
                click.echo(_fitted(f"  hint: {error.hint}"), err=True)
    return error.exit_code


def _verb_of(args: list[str]) -> str:
    """Return the words of a command line that name what was asked.

    >>> _verb_of(["plan", "shard", "llama-3.1-8b"]), _verb_of(["--json"])
    ('mansard plan shard', 'mansard')
    """
    words: list[str] = ["mansard"]
    place: click.Command = cli
    context = click.Context(cli, info_name="mansard")
    for word in args:
        found = place.get_command(context, word) if isinstance(place, click.Group) else None
        if found is None:
            break
        words.append(word)
        place = found
    return " ".join(words)


def _fitted(text: str) -> str:
    """Return a message in lines of the terminal's width; one line where stderr is no terminal, so that scripts can search it.

    The name of a file in it sends nothing to the terminal.
    """
    import shutil
    import textwrap

    from mansard.report.text import clean

    text = "\n".join(map(clean, text.split("\n")))
    if not sys.stderr.isatty():
        return text
    width = max(shutil.get_terminal_size((80, 24)).columns, 20)
    # Paths and commands stay whole, so that they can be copied.
    lines = (
        textwrap.wrap(line, width, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False) or [""]
        for line in text.split("\n")
    )
    return "\n".join(part for found in lines for part in found)


def _wants_json(args: list[str]) -> bool:
    """Return whether `--json` was given to mansard and not to the program that `run` starts."""
    if args[:1] == ["run"]:
        from mansard.cli.run import command

        try:
            context = command.make_context("run", args[1:], resilient_parsing=True)
        except click.ClickException:  # of a line that cannot be read
            return False
        return bool(context.params.get("as_json"))
    return "--json" in args[: args.index("--")] if "--" in args else "--json" in args
