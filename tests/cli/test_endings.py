"""A signal that ends mansard ends it as an exception does: with its exit code, and what it made for itself is taken away."""

import signal
import subprocess
import sys
import threading

import pytest

from mansard.cli.endings import EndedBySignal, signals_as_exceptions

#: A verb that makes a folder, is told to end in the middle, and would leave the folder behind.
PROGRAM = """
import os, signal, sys, tempfile
import click
from mansard.cli import main

@click.command()
def verb():
    with tempfile.TemporaryDirectory(dir=sys.argv[1]):
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("it went on")

main.cli = verb
main.main([])
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_it_is_an_exception_with_the_code_of_a_shell_and_only_inside(number):
    before = signal.getsignal(number)
    signal.signal(number, signal.SIG_DFL)
    try:
        with pytest.raises(EndedBySignal) as ended, signals_as_exceptions():
            signal.raise_signal(number)
        assert ended.value.code == 128 + number
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)


def test_what_is_ignored_or_handled_stays_so_and_other_threads_do_not_touch_it():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with signals_as_exceptions():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        seen = []

        def inside() -> None:
            with signals_as_exceptions():
                seen.append(signal.getsignal(signal.SIGTERM))

        thread = threading.Thread(target=inside)
        thread.start()
        thread.join()
        assert seen == [signal.getsignal(signal.SIGTERM)]
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_verb_told_to_end_leaves_no_folder(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (143, "")
    assert list(tmp_path.iterdir()) == []
