"""Rematerialisation: executed FLOP, memory and the Pareto table; implementations side by side, ties as ties."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest

from mansard.core.errors import UsageError
from mansard.measure.benchmarks.comparison import compare_implementations
from mansard.measure.benchmarks.remat import BENCHMARKS, ParetoRow, dominates, pareto_table
from mansard.measure.points.benchmark import Prepared, Where
from mansard.measure.points.result import Conditions, Finding, Point, Result, Samples, State

REMAT = BENCHMARKS[0]
SMALL = {
    "seq_len": 64, "model_dim": 32, "num_q_heads": 4, "num_kv_heads": 2, "ffn_dim": 48, "layers": 2, "dtype": "f32",
}  # fmt: skip
# One block of SMALL: products 2 * 64 * (32*32 + 2 * 32*16 + 32*32 + 32*96 + 48*32), core 4 * 64 * 64 * 8 * 4 heads.
PRODUCTS = 2 * 64 * (1024 + 1024 + 1024 + 3072 + 1536)
CORE = 4 * 64 * 64 * 8 * 4
LAST = 2 * 64 * 48 * 32


def params(**given: Any) -> dict[str, Any]:
    return {p.name: p.default for p in REMAT.parameters} | SMALL | given


def where(backend: str = "jax") -> Where:
    return Where(backend=backend, platform="cpu", threads=1, memory_bytes=8e9)


@pytest.mark.parametrize(
    ("policy", "executed"),
    [
        ("none", 3 * (PRODUCTS + CORE)),
        ("everything", 3 * (PRODUCTS + CORE)),
        ("dots", 3 * (PRODUCTS + CORE)),
        ("dots_no_batch", 3 * (PRODUCTS + CORE) + CORE),
        ("nothing", 4 * (PRODUCTS + CORE) - LAST),  # no gradient needs the result of the last product
    ],
)
def test_executed_flop_of_each_policy(policy: str, executed: float) -> None:
    work = REMAT.work(params(policy=policy), where())
    masked = 4 * (64 * 65 // 2) * 8 * 4
    assert work.demand.total_flop == 2 * 3 * (PRODUCTS + masked)  # the model is the same whatever is made again
    assert work.executed_flop == 2 * executed


@pytest.fixture(scope="module")
def stacks() -> Iterator[dict[tuple[str, str], Prepared]]:
    import jax

    # Half of the time to compile is LLVM's; what XLA counts and reserves is settled before.
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    try:
        yield {
            (impl, policy): REMAT.prepare(params(policy=policy), impl, where(REMAT.implementations[impl]))
            for impl in ("xla", "torch")
            for policy in ("none", "dots_no_batch", "nothing")
        }
    finally:
        jax.config.update("jax_disable_most_optimizations", before)


def test_compilers_count_what_is_made_again(stacks: dict[tuple[str, str], Prepared]) -> None:
    for (impl, policy), prepared in stacks.items():
        executed = REMAT.work(params(policy=policy), where()).executed_flop
        counted = prepared.count_by_compiler().flop
        if impl == "torch":
            assert counted == executed  # its counter counts products alone
        else:
            assert executed <= counted < 1.15 * executed  # and elementwise work, which is a larger part of small blocks


def test_results_and_gradients_agree_with_f64(stacks: dict[tuple[str, str], Prepared]) -> None:
    for prepared in stacks.values():
        assert prepared.verify().error_ratio < 1.0


def test_less_is_kept_where_more_is_made_again(stacks: dict[tuple[str, str], Prepared]) -> None:
    for impl in ("xla", "torch"):
        peaks = [stacks[impl, policy].facts["peak_memory_bytes"] for policy in ("none", "dots_no_batch", "nothing")]
        assert peaks == sorted(peaks, reverse=True)
        assert peaks[0] > 1.3 * peaks[-1]


def test_offload_is_waived_where_device_memory_is_host_memory() -> None:
    waived = REMAT.waived(params(policy="offload"), "xla", where())
    assert waived is not None
    assert waived.missing == "device"
    torch = REMAT.waived(params(policy="everything"), "torch", where("torch"))
    assert torch is not None
    assert torch.missing == "implementation"


def result(
    impl: str, times: list[float], *, benchmark: str = "b", findings: tuple[Finding, ...] = (), **given: Any
) -> Result:
    point = Point(benchmark=benchmark, impl=impl, backend="jax", params={"n": 1, "impl": impl, **given}, name=impl)
    return Result(point=point, state=State.DONE, samples=Samples(seconds=tuple(times)), findings=findings)


def test_pareto_table() -> None:
    def row(policy: str, times: list[float], memory: float) -> Result:
        found = result("xla", times, policy=policy)
        return Result(
            point=found.point, state=State.DONE, samples=found.samples,
            audit={"benchmark": {"peak_memory_bytes": memory}}, metrics={"flop": 2.0, "executed_flop": 3.0},
        )  # fmt: skip

    rows = [
        row("none", [1.0, 1.01, 0.99], 100.0),
        row("everything", [1.0, 1.01, 0.99], 120.0),  # as fast, more memory
        row("nothing", [1.4, 1.41, 1.39], 20.0),
        row("bad", [1.6, 1.61, 1.59], 60.0),  # slower and more memory than `nothing`
    ]
    waived = Result(point=rows[0].point, state=State.WAIVED, reason="no device")
    table = {r.policy: r for r in pareto_table([*rows, waived])}
    assert [r.policy for r in pareto_table(rows)] in (
        ["none", "everything", "nothing", "bad"],
        ["everything", "none", "nothing", "bad"],
    )
    assert table["none"].dominated_by == ()
    assert table["everything"].dominated_by == ("none",)
    assert table["nothing"].dominated_by == ()
    assert table["bad"].dominated_by == ("nothing",)
    assert table["none"].executed_over_model == 1.5


def test_a_tie_in_time_and_memory_dominates_nobody() -> None:
    a = ParetoRow(policy="a", impl="xla", time_s=1.0, low_s=0.9, high_s=1.1, peak_memory_bytes=5.0)
    b = ParetoRow(policy="b", impl="xla", time_s=1.05, low_s=0.95, high_s=1.15, peak_memory_bytes=5.0)
    assert not dominates(a, b)
    assert not dominates(b, a)


def test_a_clear_winner_is_named() -> None:
    found = compare_implementations([result("a", [2.0, 2.01, 1.99]), result("b", [1.0, 1.01, 0.99])])
    assert len(found) == 1
    assert found[0].fastest == "b"
    assert [r.impl for r in found[0].rows] == ["b", "a"]
    assert found[0].rows[1].times_fastest == 2.0
    assert found[0].sentence() == "b is the fastest; a takes 2.00 times as long"


def test_nobody_wins_while_others_use_the_processors() -> None:
    def loaded(impl: str, times: list[float], foreign: float) -> Result:
        return dataclasses.replace(result(impl, times), conditions=Conditions(foreign_ratio=foreign))

    (found,) = compare_implementations([loaded("a", [1.0, 1.0], 0.01), loaded("b", [9.0, 9.0], 0.6)])
    assert found.fastest is None
    assert found.sentence() == (
        "which is the fastest is not said: other programs used the processors, 1.0 % during a, 60 % during b"
    )
    (calm,) = compare_implementations([loaded("a", [1.0, 1.0], 0.01), loaded("b", [9.0, 9.0], 0.08)])
    assert calm.fastest == "a"


def test_what_was_timed_and_must_not_be_used_is_named() -> None:
    wrong = result("jax", [1.0, 1.0], findings=(Finding(code="above_ceiling", text="too fast", fatal=True),))
    (found,) = compare_implementations([wrong, result("torch", [2.0, 2.0])])
    assert found.sentence() == "no other time than that of torch (jax: not to be used)"


def test_overlapping_intervals_are_a_tie() -> None:
    found = compare_implementations(
        [result("a", [1.0, 1.2, 0.9]), result("b", [1.1, 1.0, 1.3]), result("c", [3.0, 3.0])]
    )[0]
    assert found.fastest is None
    assert set(found.tied) == {"a", "b"}
    assert found.rows[0].tied_with == (found.rows[1].impl,)
    assert "tied" in found.sentence()


def test_what_was_not_timed_or_is_wrong_takes_no_part() -> None:
    wrong = result("fast", [0.1, 0.1], findings=(Finding(code="wrong_result", text="is wrong", fatal=True),))
    waived = Result(
        point=Point(benchmark="b", impl="tpu", backend="jax", params={"n": 1}, name="t"),
        state=State.WAIVED,
        reason="no TPU",
    )
    found = compare_implementations([result("slow", [1.0, 1.0]), wrong, waived])[0]
    assert found.fastest == "slow"
    remarks = {r.impl: r.remark for r in found.rows}
    assert remarks == {"slow": "", "fast": "not to be used: is wrong", "tpu": "waived: no TPU"}


def test_other_parameters_are_another_comparison() -> None:
    assert len(compare_implementations([result("a", [1.0], n=1), result("b", [1.0], n=2)])) == 2
    with pytest.raises(UsageError, match="two results"):
        compare_implementations([result("a", [1.0]), result("a", [2.0])])
