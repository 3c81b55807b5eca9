"""A terminal or pipe of eight bits gets the nearest signs, and never a traceback."""

from __future__ import annotations

import io
import subprocess
import sys

import pytest

from mansard.cli.streams import forgiving


def test_a_narrow_stream_writes_the_nearest_signs_and_a_wide_one_all() -> None:
    for encoding, wanted in (
        ("latin-1", b"# >=1 \xd7 \\u0416"),
        ("cp1252", b"# >=1 \xd7 \\u0416"),
        ("utf-8", "█ ≥1 \u00d7 Ж".encode()),
    ):
        raw = io.BytesIO()
        stream = io.TextIOWrapper(raw, encoding=encoding)
        forgiving(stream, None, io.StringIO())  # what has no encoding stays as it is
        stream.write("█ ≥1 \u00d7 Ж")
        stream.flush()
        assert raw.getvalue() == wanted


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_a_verb_that_draws_runs_in_a_locale_of_eight_bits(encoding: str, monkeypatch) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", encoding)
    command = [sys.executable, "-m", "mansard", "plan", "scale", "--parallel-share", "0.95"]
    done = subprocess.run(command, capture_output=True, check=False, timeout=250)
    assert done.returncode == 0, done.stderr
    assert done.stderr == b""
