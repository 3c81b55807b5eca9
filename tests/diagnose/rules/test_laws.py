"""Laws of a diagnosis that hold for every run that can be made, of which hypothesis tries some."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rule_cases import Ran, build, device, gemm, host_copy, on_device, operator, run_of, talk

from mansard.core import Bound, Implausible, Unknown, is_known
from mansard.core.ceilings import Area, Ceilings
from mansard.diagnose.analyse import diagnose_run
from mansard.diagnose.records import Diagnosis
from mansard.trace.run import RunTrace, WaitCause

_KINDS = [
    gemm(4096, 4096, 4096), gemm(8, 4096, 4096), operator("aten::mul", "elementwise", read_bytes=1e9, write_bytes=1e9),
    operator("counted", "elementwise", flop={("bf16", "f32"): 1e9}), operator("free", "elementwise"),
    replace(gemm(2048, 4096, 4096), recompute=True), talk("all_reduce", 50e6, 8, "network"), talk("all_gather", 2e9, 8, "nvlink"),
    host_copy(50e6), replace(build.MYSTERY, scope="device"),
]  # fmt: skip
_STEPS = st.lists(
    st.tuples(st.one_of(st.sampled_from(_KINDS), st.sampled_from(list(WaitCause))), st.floats(0.001, 20.0), st.floats(0.0, 1.0)),
    min_size=1, max_size=10,
)  # fmt: skip


def made(step: list, shift: bool) -> RunTrace | None:
    run = on_device(run_of([Ran(what, length, pause_ms=pause) for what, length, pause in step], steps=3))
    if not run.op.size:
        return None
    if shift:  # every other operation begins on a lane of its own while the one before runs
        odd = np.arange(run.op.size) % 2 == 1
        back = np.where(odd, (run.end_ns - run.start_ns) // 2, 0)
        run = replace(run, start_ns=run.start_ns - back, end_ns=run.end_ns - back, lane=odd.astype(np.int32))
    return run


def twice(ceilings: Ceilings, area: Area) -> Ceilings:
    """The same machine with one resource twice as fast."""
    return replace(
        ceilings,
        ceilings=tuple(replace(c, value=2 * c.value) if c.resource.area is area else c for c in ceilings.ceilings),
    )


def of(run: RunTrace, ceilings: Ceilings) -> Diagnosis:
    return diagnose_run(run, ceilings, program="made")


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(step=_STEPS, shift=st.booleans())
def test_every_second_has_one_owner_and_nothing_is_promised_twice(step: list, shift: bool) -> None:
    run = made(step, shift)
    if run is None:
        return
    found = of(run, device())
    step_s = found.step.median_s
    # Busy time and idle time by cause fill the step, and the areas of the verdict are the same seconds.
    assert sum(found.time_shares.values()) == pytest.approx(1.0)
    assert sum(a.time_s for a in found.verdict.areas) == pytest.approx(step_s, rel=1e-6)
    alone = [a for a in found.advice if not a.overlaps]
    assert sum(a.gain_s for a in alone) <= step_s * (1 + 1e-6)
    for a in found.verdict.areas:
        if is_known(a.headroom_s):
            assert -1e-12 <= a.headroom_s <= a.time_s * (1 + 1e-6)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(step=_STEPS, shift=st.booleans())
def test_no_memory_verdict_without_bytes_and_no_share_above_one(step: list, shift: bool) -> None:
    run = made(step, shift)
    if run is None:
        return
    found = of(run, device())
    for row in found.operators:
        if row.bound is Bound.MEMORY:
            assert is_known(row.bytes)
            assert row.bytes > 0
        if is_known(row.share_of_ceiling):
            assert 0.0 <= row.share_of_ceiling <= 1.02  # within the error of the clock; above it cannot be true
    if found.verdict.bound is Bound.MEMORY:
        assert any(row.bound is Bound.MEMORY for row in found.operators)
    if any(isinstance(row.share_of_ceiling, Implausible) for row in found.operators):
        assert any("ceiling" in n.text or "cannot" in n.text for n in found.findings)
    if isinstance(found.bytes_per_step, float) and found.bytes_per_step == 0:
        assert all(not isinstance(row.bytes, Unknown) for row in found.operators)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(step=_STEPS, shift=st.booleans(), area=st.sampled_from([Area.COMPUTE, Area.MEMORY, Area.NETWORK, Area.HOST]))
def test_a_faster_machine_leaves_no_less_to_gain(step: list, shift: bool, area: Area) -> None:
    run = made(step, shift)
    if run is None:
        return
    slow, fast = of(run, device()), of(run, twice(device(), area))
    before = {(r.name, r.part, r.shapes): r for r in slow.operators}
    for row in fast.operators:
        old = before[(row.name, row.part, row.shapes)]
        assert row.time_s == pytest.approx(old.time_s, rel=1e-9)
        if is_known(row.headroom_s) and is_known(old.headroom_s):
            assert row.headroom_s >= old.headroom_s - 1e-12
        if is_known(row.share_of_ceiling) and is_known(old.share_of_ceiling):
            assert row.share_of_ceiling <= old.share_of_ceiling * (1 + 1e-9)
