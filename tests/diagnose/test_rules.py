"""Each rule fires where it should and stays silent where it should not."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import mansard.diagnose.rules as package
from mansard.diagnose.analyse import diagnose_run
from mansard.diagnose.records import Diagnosis
from mansard.trace.run import RunTrace, WaitCause


def _build() -> ModuleType:
    if "build" not in sys.modules:
        spec = importlib.util.spec_from_file_location("build", Path(__file__).with_name("build.py"))
        assert spec is not None
        assert spec.loader is not None
        sys.modules["build"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules["build"])
    return sys.modules["build"]


build = _build()
Ran, run_of = build.Ran, build.run_of


def diagnose(trace: RunTrace) -> Diagnosis:
    return diagnose_run(trace, build.two_core_machine(), program="train.py")


def rules(found: Diagnosis) -> list[str]:
    return [a.rule for a in found.advice]


def jax_chain(module_size: int) -> RunTrace:
    """Six additions of one compiled program that has `module_size` kinds of operation."""
    kinds = [replace(build.ADD, name=f"add.{i}", source=f"jit_step add.{i}") for i in range(module_size)]
    return run_of([Ran(kinds[i % module_size], 5.0) for i in range(6)], framework="jax")


def test_fusion_is_for_eager_jax_not_for_what_xla_compiled_together() -> None:
    assert "fusion" in rules(diagnose(jax_chain(1)))
    assert "fusion" not in rules(diagnose(jax_chain(6)))


def test_fusion_stays_silent_between_products() -> None:
    assert "fusion" not in rules(diagnose(run_of([Ran(build.GEMM, 12.0), Ran(build.ADD, 5.0), Ran(build.GEMM, 12.0)])))


def test_input_pipeline_needs_a_wait() -> None:
    assert "input_pipeline" in rules(diagnose(run_of([Ran(WaitCause.INPUT, 5.0), Ran(build.GEMM, 12.0)])))
    assert "input_pipeline" not in rules(diagnose(run_of([Ran(build.GEMM, 12.0)])))


def test_host_python_needs_pauses_longer_than_a_dispatch() -> None:
    assert "host_python" in rules(diagnose(run_of([Ran(build.GEMM, 12.0, pause_ms=5.0)])))
    assert "host_python" not in rules(diagnose(run_of([Ran(build.GEMM, 12.0, pause_ms=0.001)])))


def test_dispatch_names_the_right_remedy() -> None:
    tiny = [Ran(build.TINY, 0.0012, pause_ms=0.0008)] * 500
    (torch_advice,) = [a for a in diagnose(run_of(tiny)).advice if a.rule == "dispatch"]
    assert "torch.compile" in torch_advice.text
    kinds = [replace(build.TINY, name=f"add.{i}", source=f"jit_scan add.{i}") for i in range(5)]
    inside = run_of([Ran(kinds[i % 5], 0.0012, pause_ms=0.0002) for i in range(500)], framework="jax", floor_us=5.0)
    (jax_advice,) = [a for a in diagnose(inside).advice if a.rule == "dispatch"]
    assert "unroll" in jax_advice.text
    assert "dispatch" not in rules(diagnose(run_of([Ran(build.GEMM, 12.0)])))


def test_page_faults_need_faults() -> None:
    fresh = replace(build.ADD, fresh_bytes=64e6)
    assert "page_faults" in rules(diagnose(run_of([Ran(fresh, 20.0)], minor_faults=15625.0)))
    assert "page_faults" not in rules(diagnose(run_of([Ran(fresh, 5.0)], minor_faults=3.0)))


def test_lower_precision_needs_f32_products() -> None:
    assert "lower_precision" in rules(diagnose(run_of([Ran(build.GEMM, 12.0)])))
    assert "lower_precision" not in rules(diagnose(run_of([Ran(build.ADD, 5.0)])))


def test_below_ceiling_promises_no_more_than_the_headroom() -> None:
    found = diagnose(run_of([Ran(build.GEMM, 20.0)]))
    (advice,) = [a for a in found.advice if a.rule == "below_ceiling"]
    # 2.147 GFLOP at 200 GFLOP/s is 10.737 ms; 20 ms leaves 9.263 ms.
    assert abs(advice.gain_s - 9.263e-3) < 2e-6
    assert "below_ceiling" not in rules(diagnose(run_of([Ran(build.GEMM, 10.8)])))


def test_far_below_needs_several_unexplained_kinds_and_counts_their_time() -> None:
    slow = replace(build.ADD, name="aten::roll", shapes="f32[1]")
    other = replace(build.ADD, name="aten::flip", shapes="f32[2]")
    # 192 MB need 3.84 ms each; 40 ms is 0.096 of the ceiling: 80 - 7.68 = 72.32 ms are unexplained.
    found = diagnose(run_of([Ran(slow, 40.0), Ran(other, 40.0)]))
    (advice,) = [a for a in found.advice if a.rule == "far_below"]
    assert abs(advice.gain_s - 72.32e-3) < 1e-5
    assert "far_below" not in rules(diagnose(run_of([Ran(build.GEMM, 12.0), Ran(build.ADD, 5.0)])))


JAX_WORDS = ("jax", "lax.", "donate", "XLA", "preferred_element_type", "Grain", "tf.data", "float(loss)")
TORCH_WORDS = ("torch", "DataLoader", "autocast", "out=", ".item()", "foreach")


def test_advice_speaks_the_language_of_the_framework() -> None:
    said: dict[str, list[str]] = {"torch": [], "jax": []}
    for info in pkgutil.iter_modules(package.__path__):
        module = importlib.import_module(f"{package.__name__}.{info.name}")
        for table in (getattr(module, "_HOW", {}), getattr(module, "_WHY", {})):
            for key, text in table.items():
                said[key[1] if isinstance(key, tuple) else key].append(text)
    assert len(said["torch"]) == len(said["jax"]) >= 8
    assert not [t for t in said["torch"] if any(w in t for w in JAX_WORDS)]
    assert not [t for t in said["jax"] if any(w in t for w in TORCH_WORDS)]


def test_advice_of_a_run_is_that_of_its_framework() -> None:
    waiting = [Ran(WaitCause.INPUT, 5.0), Ran(build.GEMM, 12.0)]
    torch = next(a for a in diagnose(run_of(waiting)).advice if a.rule == "input_pipeline")
    jax = next(a for a in diagnose(run_of(waiting, framework="jax")).advice if a.rule == "input_pipeline")
    assert "DataLoader(num_workers" in torch.text
    assert "prefetch thread" in jax.text
