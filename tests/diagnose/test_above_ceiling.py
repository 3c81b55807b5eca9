"""What is said of operations above their ceiling: of arithmetic the clock, of memory a cache."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from mansard.core import Bound
from mansard.diagnose.analyse import diagnose_run

_spec = importlib.util.spec_from_file_location("above_build", Path(__file__).with_name("build.py"))
assert _spec is not None
assert _spec.loader is not None
build = importlib.util.module_from_spec(_spec)
sys.modules["above_build"] = build
_spec.loader.exec_module(build)


def _texts(length_ms: float) -> tuple[str, str]:
    found = diagnose_run(build.run_of([build.Ran(build.GEMM, length_ms)]), build.two_core_machine(), program="train.py")
    assert found.verdict.bound is Bound.UNDETERMINED
    note = next(n.text for n in found.findings if n.code == "implausible_operator")
    return found.verdict.sentence, note


def test_a_product_far_above_its_peak_is_no_matter_of_the_cache() -> None:
    # 10.737 ms at the ceiling, 5 ms taken: 2.15 of it
    sentence, note = _texts(5.0)
    assert "2.15" in sentence
    assert "cache" not in sentence
    assert "More FLOP are counted than ran" in sentence
    assert "cache" not in note
