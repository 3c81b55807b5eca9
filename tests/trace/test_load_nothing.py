"""A recording that holds nothing to judge says so, and says why."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from mansard.core.errors import UndecidedError
from mansard.trace.load import load_run
from mansard.trace.recorders.record import record


@pytest.mark.parametrize(
    ("program", "code", "words"),
    [
        ("import torch", "nothing_ran", "ran no operation"),
        ("import jax", "nothing_profiled", "ran nothing with it"),
        ("import os, sys\nos.execv(sys.executable, [sys.executable, '-c', ''])", "no_framework", "exec"),
        ("", "no_framework", "neither torch nor jax"),
    ],
)
def test_nothing_to_judge(tmp_path: Path, program: str, code: str, words: str) -> None:
    for name in ("torch", "jax"):
        if f"import {name}" in program and importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    (tmp_path / "program.py").write_text(program)
    done = record([str(tmp_path / "program.py")], directory=tmp_path / "recording")
    assert done.exit_code == 0
    with pytest.raises(UndecidedError) as caught:
        load_run(tmp_path / "recording")
    assert caught.value.code == code
    assert words in caught.value.message
    if code == "nothing_ran":  # a launcher computes nothing itself
        assert "torchrun --no-python mansard run" in (caught.value.hint or "")
