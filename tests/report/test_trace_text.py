"""Words of `mansard trace` that a reader would otherwise take for a contradiction."""

from __future__ import annotations

import pytest

from mansard.report.trace_document import no_kernel_findings
from mansard.report.trace_layout import fitted, table
from mansard.report.trace_text import _work_of_region
from mansard.trace.timeline import Timeline


@pytest.mark.parametrize(
    ("model", "executed", "text"),
    [
        (2e12, 2e12, "2.00 TFLOP"),
        ({"unknown": "what was recomputed is not known"}, 5.76e12, "5.76 TFLOP executed, model FLOP unknown"),
        ({"unknown": "no shapes"}, {"unknown": "no shapes"}, "unknown"),
    ],
)
def test_executed_work_is_shown_where_model_work_is_not_known(model: object, executed: object, text: str) -> None:
    assert _work_of_region({"flop": model, "executed_flop": executed}) == text


def test_a_jax_profile_is_not_told_to_record_with_torch() -> None:
    (found,) = no_kernel_findings(Timeline(source="a", format="xplane", version="", tables={}, names=()))
    assert "jax.profiler.trace" in found.text
    assert "mansard run" in found.text
    assert "torch" not in found.text


def test_no_file_or_kernel_name_reaches_the_terminal_as_it_is() -> None:
    lines = fitted(["a\nb\x1b[31m.sqlite: nsys", *table(["kernel", "time"], [["k\x1b]0;x\x07", "1 s"]])], 80)
    assert lines[0] == "a\\x0ab\\x1b[31m.sqlite: nsys"
    assert lines[2].split() == ["k\\x1b]0;x\\x07", "1", "s"]
    assert len({len(line) for line in lines[1:]}) == 1  # an escape is as wide as it is long
