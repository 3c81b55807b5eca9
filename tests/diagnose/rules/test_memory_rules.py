"""Rules about layout, traffic, caches and memory."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rule_cases import Ran, build, case_of, device_case, gemm, operator, run_of, said

from mansard.diagnose.facts import Facts, MemoryUse, WorkloadFacts
from mansard.trace.run import WaitCause

MS = 1e-3


def test_fusion_counts_what_passes_between_two_operations() -> None:
    # Three additions of 192 MB in 5 ms each; 64 MB pass twice in each of two places: of each pair 64/192 of 5 ms is written and
    # 64/192 of 5 ms is read again: 2 * 2 * 5 / 3 = 6.667 ms.
    found = said("fusion", case_of(run_of([Ran(build.ADD, 5.0)] * 3 + [Ran(build.GEMM, 12.0)])))
    assert found is not None
    assert found.gain_s == pytest.approx(20 / 3 * MS, rel=1e-6)
    assert said("fusion", case_of(run_of([Ran(build.GEMM, 12.0), Ran(build.ADD, 5.0)]))) is None


def test_layout_copies_are_those_that_keep_the_type() -> None:
    clone = replace(build.ADD, name="aten::clone", category="copy", formula="16000000 elements copied")
    cast = replace(build.ADD, name="aten::copy_", category="copy", formula="f32 to bf16")
    same = replace(build.ADD, name="aten::copy_", category="copy", formula="f32 to f32")
    found = said(
        "layout_copies", case_of(run_of([Ran(clone, 4.0), Ran(cast, 4.5), Ran(same, 5.0), Ran(build.GEMM, 12.0)]))
    )
    assert found is not None
    assert found.gain_s == pytest.approx(9.0 * MS, rel=1e-6)
    assert said("layout_copies", case_of(run_of([Ran(cast, 4.5), Ran(build.GEMM, 12.0)]))) is None


def test_copies_between_host_and_device_are_no_layout() -> None:
    copy = operator("copy host to device", "copy", link_bytes={"pcie": 1e6})
    assert said("layout_copies", device_case([Ran(copy, 1.0)])) is None


def test_strided_access_needs_counted_traffic() -> None:
    # 1 GB needed, 4 GB counted at 1 TB/s: 4 ms of 5 ms; three quarters of the 5 ms carry nothing.
    wide = operator("gather_rows", "elementwise", read_bytes=0.5e9, write_bytes=0.5e9, level_bytes={"hbm": 4e9})
    found = said("strided_access", device_case([Ran(wide, 5.0)]))
    assert found is not None
    assert found.gain_s == pytest.approx(3.75 * MS, rel=1e-6)
    # A low bandwidth alone is no cause.
    slow = operator("gather_rows", "elementwise", read_bytes=0.5e9, write_bytes=0.5e9)
    assert said("strided_access", device_case([Ran(slow, 2.5)])) is None
    near = operator("gather_rows", "elementwise", read_bytes=0.5e9, write_bytes=0.5e9, level_bytes={"hbm": 1.1e9})
    assert said("strided_access", device_case([Ran(near, 2.0)])) is None


def test_kv_cache_dtype_halves_the_cache_alone() -> None:
    # 1.25 GB of which 1 GB is cache, memory-bound for 1.5 ms: 0.8 * 1.5 / 2 = 0.6 ms.
    attention = operator("paged_attention", "attention", flop={("bf16", "f32"): 1e9}, read_bytes=1.25e9)
    facts = WorkloadFacts(phase="decode", cache_dtype="bf16", cache_bytes=1e9)
    found = said("kv_cache_dtype", device_case([Ran(attention, 1.5)], Facts(workload=facts)))
    assert found is not None
    assert found.gain_s == pytest.approx(0.6 * MS, rel=1e-6)
    narrow = replace(facts, cache_dtype="f8_e4m3")
    assert said("kv_cache_dtype", device_case([Ran(attention, 1.5)], Facts(workload=narrow))) is None
    assert (
        said("kv_cache_dtype", device_case([Ran(attention, 1.5)], Facts(workload=replace(facts, phase="prefill"))))
        is None
    )
    assert said("kv_cache_dtype", device_case([Ran(gemm(4096, 4096, 4096), 1.5)], Facts(workload=facts))) is None


def test_memory_thrash_needs_calls_in_steady_steps() -> None:
    use = MemoryUse(peak_bytes=79e9, capacity_bytes=80e9, allocations=12, allocation_s=3.0 * MS)
    step = [Ran(build.GEMM, 12.0), Ran(WaitCause.SYNC, 5.0)]
    found = said("memory_thrash", case_of(run_of(step), facts=Facts(memory=use)))
    assert found is not None
    assert found.gain_s == pytest.approx(3.0 * MS, rel=1e-6)
    assert "99 %" in found.evidence
    assert said("memory_thrash", case_of(run_of(step))) is None
    # Calls beside a busy device cost nothing.
    assert said("memory_thrash", case_of(run_of([Ran(build.GEMM, 12.0)]), facts=Facts(memory=use))) is None
    assert said("memory_thrash", case_of(run_of(step), facts=Facts(memory=replace(use, allocations=0)))) is None


def test_page_faults_promise_the_headroom_of_fresh_results() -> None:
    fresh = replace(build.ADD, fresh_bytes=64e6)
    # 192 MB need 3.84 ms; 20 ms leave 16.16 ms.
    found = said("page_faults", case_of(run_of([Ran(fresh, 20.0)], minor_faults=15625.0)))
    assert found is not None
    assert found.gain_s == pytest.approx(16.16 * MS, rel=1e-6)
    assert said("page_faults", case_of(run_of([Ran(fresh, 20.0)], minor_faults=3.0))) is None
