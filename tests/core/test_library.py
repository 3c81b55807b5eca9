"""The library mirrors the command line: what is promised can be called, and importing it costs nothing."""

import importlib
import subprocess
import sys

import pytest

import mansard
from mansard.core.errors import UsageError


def test_estimate_by_name() -> None:
    result = mansard.estimate("llama-3.1-8b", on="h100-sxm", context=4096, batch=2)
    assert result.request.phase == "decode"
    assert result.params.total == 8_030_261_248  # published size of Llama 3.1 8B
    assert mansard.estimate("llama-3.1-8b", seq=128, plan={"tp": 2}).request.plan.tp == 2


def test_estimate_refuses_what_it_does_not_know() -> None:
    with pytest.raises(UsageError, match="contxt"):
        mansard.estimate("llama-3.1-8b", contxt=4096, seq=1)
    with pytest.raises(UsageError, match="phase"):
        mansard.estimate("llama-3.1-8b")


def test_rooms_that_share_the_name_of_a_verb_can_be_called() -> None:
    with pytest.raises(UsageError, match="unknown suite"):
        mansard.measure("no such suite")
    importlib.import_module("mansard.measure.store")

    with pytest.raises(UsageError, match="unknown suite"):
        mansard.measure("no such suite")


def test_other_public_names() -> None:
    assert mansard.hardware.match("NVIDIA H200").status == "exact"
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        mansard.nonsense  # noqa: B018
    assert {"measure", "estimate", "open_trace", "hardware"} <= set(dir(mansard))


def test_importing_it_imports_no_framework() -> None:
    code = "import mansard, sys; print([m for m in ('numpy', 'jax', 'torch', 'click', 'rich') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
