"""Two commands run in turn: their wall times, round by round."""

from __future__ import annotations

import random
import shlex
import subprocess
import time
from collections.abc import Callable, Sequence

from mansard.core.errors import InputError, UsageError
from mansard.history.against import in_turn
from mansard.history.records import Fingerprint, Measurement


def command_of(text: str) -> list[str]:
    """Return the words of a command; it is started without a shell.

    Raises:
        UsageError: it is empty, or a quote is open.

    >>> command_of("python 'my bench.py' --n 3")
    ['python', 'my bench.py', '--n', '3']
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"{text!r} is no command: {error}") from None
    if not words:
        raise UsageError("a command is empty", hint='--run-a "python bench.py"')
    return words


def wall_time_s(words: Sequence[str]) -> float:
    """Run a command and return its wall time [s]; its output goes where no one reads it.

    Raises:
        InputError: it cannot be started, or fails.
    """
    began = time.perf_counter()
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False
        )
    except OSError as error:
        raise InputError(f"{words[0]} cannot be started: {error.strerror or error}") from None
    took = time.perf_counter() - began
    if done.returncode:
        last = (done.stderr.decode(errors="replace").strip().splitlines() or ["it said nothing"])[-1]
        raise InputError(
            f"{shlex.join(words)} ended with exit code {done.returncode}: {last}",
            hint="a program that fails has no time",
        )
    return took


def in_turn_programs(
    a: str, b: str, rounds: int, *, seed: int = 0, run: Callable[[Sequence[str]], float] = wall_time_s
) -> tuple[list[Measurement], list[Measurement]]:
    """Return the wall times of two commands that were run in turn, in random order, after one run of each that does not count.

    Args:
        a, b: Baseline and candidate.
        rounds: How often each is run.
        seed: Of the order.
        run: Runs a command and returns its time [s].
    """
    commands = command_of(a), command_of(b)
    for words in commands:
        run(words)
    left, right, _ = in_turn((lambda: run(commands[0]), lambda: run(commands[1])), rounds, random.Random(seed))
    sides = []
    for text, times in ((a, left), (b, right)):
        told = Fingerprint(parts={"revision": {"command": text}})
        sides.append([Measurement(benchmark="program", metric="wall_time_s", groups=(tuple(times),), fingerprint=told)])
    return sides[0], sides[1]
