"""What `mansard run` writes beside the diagnosis: the metrics of the run and what it tells of fixed cost."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from mansard.cli.run import _deliver, _print_numbers
from mansard.diagnose.analyse import diagnose_run
from mansard.diagnose.metrics import DEFINITIONS

_spec = importlib.util.spec_from_file_location("build", Path(__file__).with_name("build.py"))
assert _spec is not None
assert _spec.loader is not None
build = importlib.util.module_from_spec(_spec)
sys.modules["build"] = build
_spec.loader.exec_module(build)


def test_the_document_and_the_long_text_hold_the_metrics(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Per step of 20 ms: a product of 12 ms, then nothing for 8 ms.
    run = build.run_of([build.Ran(build.GEMM, 12.0, pause_ms=8.0)], steps=4)
    diagnosis = diagnose_run(run, build.two_core_machine(), program="p.py")
    _deliver(diagnosis, run, False, tmp_path / "d.json", None, lambda _text: None)
    document = json.loads((tmp_path / "d.json").read_text())
    value = {m["name"]: m["value"] for m in document["metrics"]}
    assert list(value) == [name for name in DEFINITIONS if name in value]
    assert value["busy_ratio"] == pytest.approx(12 / 20)
    assert value["idle_s"] + value["union_s"] == pytest.approx(value["step_s"])
    # 2 * 1024^3 FLOP in 20 ms at 200 GFLOP/s.
    assert value["mfu_ratio"] == pytest.approx(2.0 * 1024**3 / 20e-3 / 200e9, rel=1e-6)
    assert value["kernel_union_ratio"] * value["busy_ratio"] == pytest.approx(value["mfu_ratio"])
    assert "fixed_costs" in document
    _print_numbers(diagnosis, run)
    text = capsys.readouterr().err
    assert "kernel_union_ratio" in text
    assert "a diagnostic and no MFU" in " ".join(text.split())
