"""T0 by hand: from laws that are known by construction, from recorded kernels, from gaps; and what a small size can say."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mansard.core import Demand, Unknown, UsageError, is_known
from mansard.core.ceilings import Area, Ceiling, Ceilings, Kind, Resource
from mansard.core.document import dumps
from mansard.diagnose.fixed_cost import (
    FixedCost,
    fit_fixed_cost,
    fixed_cost_of_rows,
    fixed_costs_of_sweep,
    fixed_costs_of_trace,
    judge_gemm,
    judge_work,
    known_fixed_cost,
    launch_gap_cost,
)
from mansard.trace.run import Operator, Part, RunTrace, Steps, WaitCause

SIZES = (64, 128, 256, 512, 1024, 2048)


def law(fixed_s: float, rate: float) -> dict[float, list[float]]:
    return {2.0 * n**3: [fixed_s + 2.0 * n**3 / rate] for n in SIZES}


@given(fixed=st.floats(1e-7, 1e-3), rate=st.floats(1e11, 1e15))
@settings(max_examples=30, deadline=None)
def test_a_law_without_noise_comes_back(fixed, rate) -> None:
    found = fit_fixed_cost(law(fixed, rate), backend="b", what="w")
    # T0 is told where the smallest product is not all work, the rate where the largest is not all fixed cost
    if fixed > 0.01 * 2.0 * 64**3 / rate and fixed < 100 * 2.0 * 2048**3 / rate:
        assert isinstance(found, FixedCost)
        assert found.fixed_s == pytest.approx(fixed, rel=1e-3)
        assert found.rate_per_s == pytest.approx(rate, rel=1e-3)
        # 80 %: W / P = 4 T0
        assert found.hiding_work() == pytest.approx(4 * fixed * rate, rel=1e-3)
        assert found.share_ratio(found.hiding_work(0.37)) == pytest.approx(0.37)


def test_noise_is_in_the_interval() -> None:
    rng = np.random.default_rng(7)
    noisy = {w: list(t[0] * (1 + 0.03 * rng.standard_normal(15))) for w, t in law(12e-6, 60e12).items()}
    found = fit_fixed_cost(noisy, backend="b", what="w")
    assert isinstance(found, FixedCost)
    low, high = found.ci95_s
    assert low < 12e-6 < high
    assert high - low < 2e-6
    sizes = found.hiding_gemm_interval()
    assert sizes[0] < found.hiding_gemm_size() < sizes[1]


def test_what_gives_no_law_is_unknown() -> None:
    assert isinstance(fit_fixed_cost({1e6: [1e-6], 1e7: [1e-5]}, backend="b", what="w"), Unknown)
    flat = {w: [1e-5] for w in law(1, 1)}
    assert "larger work did not take longer" in fit_fixed_cost(flat, backend="b", what="w").reason
    # a machine that another program took for a second at one size
    broken = {**law(1e-6, 1e12), 2.0 * 256**3: [0.5]}
    assert "no straight line" in fit_fixed_cost(broken, backend="b", what="w").reason


def test_a_sweep_without_fixed_cost_says_so_and_keeps_its_upper_end() -> None:
    # small products faster than the line: cache. T0 comes out negative and is not reported as a number
    fast = {w: [w / 1e12 * (0.9 if w < 1e6 else 1.0)] for w in law(1, 1)}
    found = fit_fixed_cost(fast, backend="b", what="w")
    assert isinstance(found, FixedCost)
    assert isinstance(found.fixed_s, Unknown)
    assert not isinstance(found.ci95_s, Unknown)
    assert judge_gemm(found, 4096).too_small is False
    assert isinstance(found.hiding_gemm_size(), Unknown)


def element(impl, backend, dtype, size, seconds, **more):
    return {
        "metadata": {"benchmark_name": "gemm_sweep", "impl": impl, "backend": backend, "params": {"size": size, "dtype": dtype}},
        "metrics": {"flop": 2.0 * size**3, "median_s": seconds}, "raw_times_ms": [seconds * 1e3] * 5, "state": "done",
        "verdict": "normal", **more,
    }  # fmt: skip


def test_points_of_a_sweep_by_backend_and_type() -> None:
    points = [element("numpy", "numpy", "f32", n, 120e-6 + 2 * n**3 / 7.1e12) for n in SIZES]
    points += [element("jax", "jax", "f32", n, 13e-6 + 2 * n**3 / 67e12) for n in SIZES]
    points += [element("jax", "jax", "bf16", n, 12e-6 + 2 * n**3 / 900e12) for n in SIZES]
    points += [
        element("jax", "jax", "bf16", 96, 1.0, verdict="implausible"),
        element("jax", "jax", "bf16", 97, 1.0, state="failed"),
    ]
    points += [{"metadata": {"benchmark_name": "gemm"}, "state": "done"}]
    found = {(c.backend, c.what): c for c in fixed_costs_of_sweep(points) if isinstance(c, FixedCost)}
    assert {k: round(c.fixed_s * 1e6, 3) for k, c in found.items()} == {
        ("numpy (numpy)", "f32 square product"): 120.0, ("jax (jax)", "f32 square product"): 13.0,
        ("jax (jax)", "bf16 square product"): 12.0,
    }  # fmt: skip
    assert found["numpy (numpy)", "f32 square product"].sizes == len(SIZES)
    assert "hiding_gemm_size" in dumps({"fixed_costs": list(found.values())})


def gemm(n: int, dtype: str = "bf16") -> Operator:
    return Operator(
        name=f"gemm {n}", category="gemm", part=Part.FORWARD, shapes="",
        demand=Demand(flop={(dtype, "f32"): 2.0 * n**3}, read_bytes=4.0 * n * n, write_bytes=2.0 * n * n),
    )  # fmt: skip


def recorded(operators, lengths_ns, gaps_ns, waits=()) -> RunTrace:
    """Operators one after the other on one lane, repeated in ten steps, each followed by its gap."""
    starts, ends, kinds, edges, now = [], [], [], [0], 0
    for _ in range(10):
        for index, (length, gap) in enumerate(zip(lengths_ns, gaps_ns, strict=True)):
            starts.append(now)
            ends.append(now + length)
            kinds.append(index)
            now += length + gap
        edges.append(now)
    column = lambda x: np.array(x, dtype=np.int64)  # noqa: E731
    return RunTrace(
        framework="profile", operators=tuple(operators), op=np.array(kinds, dtype=np.int32), start_ns=column(starts),
        end_ns=column(ends), lane=np.zeros(len(kinds), dtype=np.int32), wait_start_ns=column([s for s, _ in waits]),
        wait_end_ns=column([e for _, e in waits]), wait_cause=(WaitCause.SYNC,) * len(waits),
        steps=Steps(start_ns=column(edges[:-1]), end_ns=column(edges[1:]), source="marker"), window_ns=(0, now),
    )  # fmt: skip


def test_kernels_of_a_trace() -> None:
    # T0 5 us and 500 TFLOP/s: 2 x 1024^3 / 500e12 = 4.29 us, 2048: 34.4 us, 4096: 274.9 us
    sizes = (512, 1024, 2048, 4096)
    operators = [gemm(n) for n in sizes] + [gemm(n, "f8_e4m3") for n in sizes[:2]]
    lengths = [5000 + round(2 * n**3 / 500e12 * 1e9) for n in sizes] + [4000, 4000]
    found = fixed_costs_of_trace(recorded(operators, lengths, [2000] * 6))
    kernels, gaps = found
    assert (kernels.what, kernels.unit, kernels.sizes, kernels.source) == ("gemm bf16 operations", "FLOP/s", 4, "trace")
    assert kernels.fixed_s == pytest.approx(5e-6, rel=1e-3)
    assert kernels.rate_per_s == pytest.approx(500e12, rel=1e-3)
    assert gaps.fixed_s == pytest.approx(2e-6)  # two sizes of fp8 make no law, and are in none


def test_gaps_that_touch_a_wait_are_not_the_price_of_a_launch() -> None:
    trace = recorded([gemm(512)] * 3, [1000] * 3, [2000, 50_000, 3000])
    # 1000 + 2000 + 1000 | the gap of 50 us starts at 4000; a step is 58 us. The last gap ends in the next step.
    waits = [(58_000 * i + 4000, 58_000 * i + 54_000) for i in range(10)]
    with_wait = recorded([gemm(512)] * 3, [1000] * 3, [2000, 50_000, 3000], waits)
    assert launch_gap_cost(with_wait).fixed_s == pytest.approx(2e-6)
    assert launch_gap_cost(with_wait).sizes == 10
    assert launch_gap_cost(trace).fixed_s == pytest.approx(26e-6)  # without the wait, 2 and 50
    tight = recorded([gemm(512)] * 3, [1000] * 3, [1, 1, 1])
    assert isinstance(launch_gap_cost(tight), Unknown)  # a nanosecond is rounding, not the price of a launch
    alone = recorded([gemm(512)], [1000], [3000])
    assert isinstance(launch_gap_cost(alone), Unknown)


def test_rows_and_their_refusals() -> None:
    cost = fixed_cost_of_rows([(20e-6, 10e-6), (31e-6, 20e-6)], backend="b", what="w", rate=1e12)
    assert cost.fixed_s == pytest.approx(10.5e-6)
    assert cost.ci95_s == pytest.approx((10e-6, 11e-6))
    with pytest.raises(UsageError):
        fixed_cost_of_rows([], backend="b", what="w", rate=1e12)
    with pytest.raises(UsageError):  # faster than its bound
        fixed_cost_of_rows([(1e-6, 2e-6)], backend="b", what="w", rate=1e12)


def test_a_size_between_the_ends_of_the_interval_is_not_decided() -> None:
    # at 1e12 FLOP/s, 4e7 FLOP take 40 us: 80 % needs T0 of 10 us, and T0 is 8 to 12
    cost = fixed_cost_of_rows([(18e-6, 10e-6), (22e-6, 10e-6)], backend="b", what="w", rate=1e12)
    assert isinstance(judge_work(cost, 4e7, label="W").too_small, Unknown)
    assert judge_work(cost, 2e7, label="W").too_small is True
    assert judge_work(cost, 8e7, label="W").too_small is False
    assert "too small to judge" in judge_work(cost, 2e7, label="W").text
    with pytest.raises(UsageError):
        judge_work(cost, 0.0, label="W")


def test_a_measured_dispatch_cost_has_no_rate_and_judges_no_size() -> None:
    torch = Ceiling(
        resource=Resource(area=Area.LATENCY, backend="torch"), value=2e-6, unit="s", kind=Kind.MEASURED, ci95=(1.9e-6, 2.1e-6)
    )  # fmt: skip
    machine = Ceilings(ceilings=(torch,))
    cost = known_fixed_cost(machine, "torch")
    assert isinstance(cost, FixedCost)
    assert (cost.fixed_s, cost.ci95_s) == (2e-6, (1.9e-6, 2.1e-6))
    assert isinstance(cost.share_ratio(1.0), Unknown)
    assert isinstance(judge_work(cost, 1.0, label="W").too_small, Unknown)
    assert isinstance(known_fixed_cost(machine, "jax"), Unknown)
    assert not is_known(cost.hiding_gemm_size())
