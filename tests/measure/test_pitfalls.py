"""The table of pitfalls names 42 of them, and every test it names exists."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "pitfalls.md"


def rows() -> list[list[str]]:
    table = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if re.match(r"\| \d+ \|", line)]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def test_every_pitfall_has_a_row():
    assert [int(row[0]) for row in rows()] == list(range(1, 43))


def test_every_pitfall_has_a_test_that_exists_or_a_reason():
    there = set()
    for file in (ROOT / "tests").rglob("test_*.py"):
        there.update(re.findall(r"^def (test_\w+)\(", file.read_text(encoding="utf-8"), re.MULTILINE))
    for number, _, _, proof in rows():
        named = re.findall(r"`(test_\w+)`", proof)
        assert named or proof.startswith("no test"), f"pitfall {number} has neither a test nor a reason"
        missing = [name for name in named if name not in there]
        assert not missing, f"pitfall {number} names tests that are not there: {missing}"


@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed")
def test_a_chain_keeps_its_operation_inside_its_loop():
    import jax

    from mansard.measure.points import with_jax

    x, y = (with_jax.array((64, 64), "f32", seed=i) for i in range(2))
    call = with_jax.compiled(lambda a, b: jax.lax.dot(a, b, precision="highest"), [x, y], expected=("dot",))
    text = call.chain_text()
    # the product must hang under the body of the loop: the computations that the while calls, and those that they call
    parts = re.split(r"\n(?=%|ENTRY)", text)
    bodies = {re.match(r"(?:ENTRY )?(%[\w.-]+)", p).group(1): p for p in parts if re.match(r"(?:ENTRY )?%[\w.-]+", p)}
    body = re.search(r" while\(.*body=(%[\w.-]+)", text).group(1)
    reached, queue = set(), [body]
    while queue:
        name = queue.pop()
        if name not in reached and name in bodies:
            reached.add(name)
            queue += re.findall(r"(?:calls|to_apply|body)=(%[\w.-]+)", bodies[name])
    assert any(re.search(r" dot\(", bodies[name]) for name in reached)
    outside = [name for name in bodies if name not in reached]
    assert not any(re.search(r" dot\(", bodies[name]) for name in outside)
    call.chain(3)  # and its result is that of one product
    exact = with_jax.values(x) @ with_jax.values(y)
    assert abs(with_jax.values(call.result) - exact).max() < 1e-4


@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed")
def test_compilation_and_first_call_stand_apart(measured):
    from mansard.core import Demand
    from mansard.measure.points import with_jax
    from mansard.measure.points.benchmark import Check, Prepared, Work

    def make(*_):
        x = with_jax.array((64, 64), "f32")
        call = with_jax.compiled(lambda a: a @ a, [x], expected=("dot",))
        return Prepared(
            run=call.run, verify=lambda: Check(error_ratio=0.0, against="nothing"), count_by_compiler=call.counts,
            compile_s=call.compile_s,
        )  # fmt: skip

    work = Work(demand=Demand(flop={("f32", "f32"): 2.0 * 64**3}, read_bytes=16384.0, write_bytes=16384.0))
    result = measured(work, make, backend="jax", samples=4)
    assert result.metrics["compile_s"] > 0.0
    assert result.metrics["cold_s"] > 0.0
    assert len(result.samples.seconds) == 4  # neither of them is among the samples
    assert result.samples.cold_s not in result.samples.seconds
