"""The golden rows of docs/benchmarks.md are what the program counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from mansard.measure.points.benchmark import Where
from mansard.measure.points.registry import benchmark_named

TEXT = (Path(__file__).parents[2] / "docs/benchmarks.md").read_text(encoding="utf-8")


def rows():
    lines = TEXT.split("## Golden rows")[1].split("\n## ")[0].splitlines()
    cells = [[c.strip() for c in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return cells[2:]


@pytest.mark.parametrize("row", rows(), ids=lambda r: f"{r[0]} {r[1]}")
def test_a_golden_row(row):
    name, given, flop, size = row[:4]
    benchmark = benchmark_named(name)
    params = {p.name: p.default for p in benchmark.parameters}
    for word in given.split():
        key, value = word.split("=")
        assert key in params, f"{name} has no {key}"
        params[key] = int(value) if value.isdigit() else value
    impl = next(iter(benchmark.implementations))
    backend = benchmark.implementations[impl]
    work = benchmark.work({**params, "impl": impl}, Where(backend=backend, platform="cpu", cpus=(0,)))
    assert (float(work.demand.total_flop), float(work.demand.bytes)) == (float(flop), float(size))


def test_every_product_and_memory_benchmark_has_a_row():
    from mansard.measure.points.registry import all_benchmarks

    have = {r[0] for r in rows()}
    ours = {b.name for b in all_benchmarks().values() if b.area == "memory" or b.name.startswith("gemm")}
    assert ours <= have | {"gemm_all_reduce"}
