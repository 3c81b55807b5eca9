"""What the command line refuses: one document on stdout with --json, one line without, and the exit code of the design."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from mansard.cli.main import main


def called(capfd, *args):
    with pytest.raises(SystemExit) as stopped:
        main(list(args))
    out, err = capfd.readouterr()
    return stopped.value.code or 0, out, err


@pytest.mark.parametrize(
    "args",
    [
        ("estimate", "gpt2", "--context", "x"),  # no number
        ("estimate", "gpt2", "--bogus"),  # no such option
        ("estimate",),  # no model
        ("plan", "shard", "gpt2"),  # an option is missing
        ("plan", "nothing"),
        ("trace", "summary", "a", "b"),  # one too many
        ("hardware", "peak", "h100-sxm", "--scope", "moon"),
    ],
)
def test_a_wrong_line_is_one_document_with_json(capfd, args):
    code, out, err = called(capfd, *args)
    assert (code, out) == (2, "")
    assert err.startswith("mansard: ")
    assert "\n  hint: mansard " in err
    code, out, err = called(capfd, *args, "--json")
    error = json.loads(out)["error"]
    assert (code, err, error["code"]) == (2, "", "usage")
    assert error["message"]
    assert error["hint"].startswith("mansard")


def test_a_file_that_cannot_be_written_is_no_stack_trace(capfd, tmp_path):
    runs = tmp_path / "runs.csv"
    runs.write_text("nothing\n")
    for target in ("no-folder/x.json", "/proc/x.json"):
        code, _, err = called(capfd, "plan", "size", "gpt2", "--on", "h100-sxm", "--context", "64", "-o", target)
        assert code in (2, 4)
        assert "Traceback" not in err


@pytest.mark.parametrize("error", [PermissionError(13, "Permission denied", "x.json"), MemoryError()])
def test_the_machine_refuses(capfd, monkeypatch, error):
    def refuse(*_args, **_options):
        raise error

    monkeypatch.setattr("mansard.predict.estimate.estimate", refuse)
    code, _, err = called(capfd, "estimate", "gpt2", "--on", "h100-sxm", "--context", "64")
    assert code == 4
    assert err.startswith("mansard: ")
    assert "hint: " in err


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_a_full_disk_behind_stdout_is_an_error():
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "mansard", "hardware", "show", "h100-sxm", "--json"],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 4
    assert done.stderr.strip() == "mansard: cannot write to stdout: No space left on device"


def test_a_memory_fraction_that_leaves_nothing_is_refused(capfd):
    code, _, err = called(
        capfd, "estimate", "gpt2", "--on", "h100-sxm", "--context", "64", "--memory-fraction", "1e-320"
    )
    assert code == 2
    assert "leaves no memory" in err


def test_a_message_wraps_on_a_terminal_and_stays_one_line_elsewhere(monkeypatch):
    from mansard.cli.main import _fitted

    text = "mansard: " + "a word and " * 12 + "/a/path/that-is-long-and-stays-whole"
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False, raising=False)
    assert _fitted(text) == text
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    lines = _fitted(text).split("\n")
    assert len(lines) > 3
    assert all(len(line) <= 40 for line in lines)
    assert " ".join(line.strip() for line in lines) == text
