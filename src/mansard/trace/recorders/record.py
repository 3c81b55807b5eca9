"""The parent's side: start a program as a guest under its framework's profiler and wait for it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mansard.core.errors import InputError, UsageError
from mansard.trace.run import Finding

META_FILE = "meta.json"
_LAUNCHER = Path(__file__).with_name("launch.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """What came of running a program as a guest.

    Args:
        directory: The recording; `mansard.trace.load.load_run` reads it.
        program: The command line of the program.
        exit_code: The program's exit code; 128 + n if signal n ended it.
        frameworks: Frameworks that were recorded: `torch`, `jax`; empty if the program used neither.
        profiled_windows: How many profiled windows the recording holds.
        findings: What a reader should know.
    """

    directory: Path
    program: tuple[str, ...]
    exit_code: int
    frameworks: tuple[str, ...]
    profiled_windows: int
    findings: tuple[Finding, ...] = ()

    @property
    def usable(self) -> bool:
        """Whether there is anything to load."""
        return self.profiled_windows > 0


def record(
    program: Sequence[str],
    *,
    module: bool = False,
    directory: Path,
    python: str = sys.executable,
    interpreter_options: Sequence[str] = (),
    stdout: Any = None,
) -> Recording:
    """Run a Python program unmodified and record what its framework does.

    Args:
        program: Script path, or module name with `module`, then its arguments.
        module: Run as `python -m`.
        directory: Where the recording goes; made if missing, must be empty.
        python: Interpreter.
        interpreter_options: Options for the interpreter, such as `-u`.
        stdout: Where the program's standard output goes, as for `subprocess.Popen`; None leaves it untouched.

    Raises:
        UsageError: No program was given, or the directory is not empty.
        InputError: The interpreter cannot be started.
    """
    if not program:
        raise UsageError("No program to run.", hint="Give a script, or -m and a module name.")
    directory = Path(directory).absolute()
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise UsageError(
            f"The recording directory {directory} is not empty.", hint="Give a new directory.", code="output_exists"
        )
    options = {"program": list(program), "module": module, "interpreter_options": list(interpreter_options)}
    command = [python, *interpreter_options, str(_LAUNCHER), str(directory), json.dumps(options)]
    try:
        with _signals_to_child() as holder:
            child = subprocess.Popen(command, stdout=stdout)
            holder.append(child)
            status = _wait(child)
    except OSError as error:
        raise InputError(
            f"Cannot start the interpreter {python}: {error.strerror}.", hint="Check the path.", code="no_interpreter"
        ) from error
    return _summary(directory, tuple(program), 128 - status if status < 0 else status)


def _wait(child: subprocess.Popen[bytes]) -> int:
    while True:
        try:
            return child.wait()
        except KeyboardInterrupt:  # the terminal has sent it to the program as well; its answer counts
            continue


@contextlib.contextmanager
def _signals_to_child() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Leave Ctrl-C to the program, which gets it from the terminal, and hand SIGTERM and SIGHUP on to it."""
    holder: list[subprocess.Popen[bytes]] = []

    def hand_on(number: int, _frame: object) -> None:
        for child in holder:
            with contextlib.suppress(ProcessLookupError):
                child.send_signal(number)

    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        before[signal.SIGINT] = signal.signal(signal.SIGINT, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGHUP):
            before[number] = signal.signal(number, hand_on)
    try:
        yield holder
    finally:
        for key, handler in before.items():
            signal.signal(key, handler)


_FACTS = {"state", "frameworks", "windows", "exit", "findings"}


def read_meta(directory: Path) -> dict[str, Any]:
    """Return the facts of a recording.

    Raises:
        InputError: There is none, or it cannot be read.
    """
    path = Path(directory) / META_FILE
    try:
        meta: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise InputError(
            f"{directory} holds no recording: there is no {META_FILE}.",
            hint="Give the directory that a run was recorded into.",
            code="no_recording",
        ) from error
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}.", code="damaged_recording") from error
    schema = str(meta.get("schema")) if isinstance(meta, dict) else type(meta).__name__
    if schema != "recording/1":
        raise InputError(f"{path} has schema {schema!r}, expected 'recording/1'.", code="damaged_recording")
    missing = sorted(_FACTS - meta.keys())
    if missing:
        raise InputError(
            f"{path} lacks {', '.join(missing)}: it was written by another version of Mansard, or is damaged.",
            hint="Record the program again: mansard run --keep DIR PROGRAM.",
            code="damaged_recording",
        )
    return meta


def _summary(directory: Path, program: tuple[str, ...], exit_code: int) -> Recording:
    if not os.path.exists(directory / META_FILE):
        text = f"The program was gone (exit code {exit_code}) before anything could be recorded."
        return Recording(
            directory=directory,
            program=program,
            exit_code=exit_code,
            frameworks=(),
            profiled_windows=0,
            findings=(Finding(code="no_recording", text=text),),
        )
    meta = read_meta(directory)
    findings = [Finding(**f) for f in meta["findings"]] + ending(meta, exit_code)
    frameworks = tuple(meta["frameworks"])
    windows = [w for w in meta["windows"] if w["kind"] == "profiled" and any(w["files"].values())]
    if not frameworks and meta["state"] == "finished":
        text = "The program imported neither torch nor jax, so there was no profiler to record it with."
        findings.append(Finding(code="no_framework", text=text))
    elif frameworks and not windows and meta["state"] == "finished":
        text = f"The program imported {' and '.join(frameworks)}, but nothing was profiled."
        findings.append(Finding(code="nothing_profiled", text=text))
    return Recording(
        directory=directory,
        program=program,
        exit_code=exit_code,
        frameworks=frameworks,
        profiled_windows=len(windows),
        findings=tuple(findings),
    )


def ending(meta: dict[str, Any], exit_code: int | None = None) -> list[Finding]:
    """Return findings on how the program ended, where it did not end well."""
    status = meta["exit"]
    if meta["state"] != "finished" or status is None:
        code = "" if exit_code is None else f" (exit code {exit_code})"
        text = (
            f"The program was killed, crashed, or became another one by exec{code}; what its last complete window held "
            "is kept."
        )
        return [Finding(code="program_killed", text=text)]
    if status["kind"] == "exception":
        return [Finding(code="program_crashed", text=f"The program ended with {status['error']}.")]
    if status["kind"] == "interrupted":
        return [Finding(code="program_interrupted", text="The program was interrupted.")]
    if status["kind"] == "signal":
        return [Finding(code="program_killed", text=f"The program was ended by signal {status['code'] - 128}.")]
    if status["code"]:
        return [Finding(code="program_failed", text=f"The program ended with exit code {status['code']}.")]
    return []
