"""What `mansard run` writes beside the diagnosis: the metrics of the run and what it tells of fixed cost."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from mansard.cli.run import _deliver, _print_numbers
from mansard.diagnose.analyse import diagnose_run
from mansard.diagnose.facts import cores_busy_of
from mansard.diagnose.metrics import DEFINITIONS
from mansard.trace.load import _cores_used

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
    _deliver(
        diagnosis,
        run,
        lambda: None,
        as_json=False,
        output=tmp_path / "d.json",
        report=None,
        force=False,
        talk=lambda _: None,
    )
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


def test_processor_time_bounds_the_cores_that_computed() -> None:
    # Windows of 2 s with 1.5 s of processor time each: 0.75 cores on average. Operations run for 12 of 20 ms: while they ran,
    # at most 0.75 * 20 / 12 = 1.25 of 2 cores computed.
    window = {"kind": "profiled", "start_ns": 0, "end_ns": 2_000_000_000, "rusage_start": {"user_s": 1.0, "system_s": 0.5},
              "rusage_end": {"user_s": 2.25, "system_s": 0.75}}  # fmt: skip
    open_one = {**window, "end_ns": None}
    assert _cores_used({"windows": [window, open_one, {**window, "kind": "unprofiled", "rusage_end": {}}]}) == 0.75
    assert _cores_used({"windows": [open_one]}) is None
    run = build.run_of([build.Ran(build.GEMM, 12.0, pause_ms=8.0)], steps=4)
    assert cores_busy_of(run) is None
    assert cores_busy_of(replace(run, cores_used=0.75)) == pytest.approx(1.25)
    assert cores_busy_of(replace(run, cores_used=1.9)) == 2.0
