"""The bottleneck bench: its truth against a second count from the written files, and a fast part of its score."""

from __future__ import annotations

import importlib
import json
import math
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks" / "bottleneck_bench"
FAST = (
    "compute/h100-mm-8192-80",
    "compute/a100-bmm-72",
    "memory/h200-mul-f32-75",
    "memory/a100-softmax-80",
    "memory/h100-decode-gemm-72",
    "network-intra/h100-allreduce-80",
    "network-intra/a100-reducescatter-70",
    "network-inter/h100-allreduce-4n-80",
    "host-input/a100-kineto-30ms",
    "host-input/h100-nsys-20ms",
    "host-sync/a100-kineto-500us",
    "host-python/h100-nsys-100us",
    "host-h2d/a100-kineto-48mib",
    "latency/h200-kineto-1024",
    "mixed/compute40-memory60",
    "mixed/memory30-network70",
    "mixed/compute30-input70",
    "decoy/nccl-in-the-union",
    "decoy/throttled-a100",
    "decoy/no-shapes-gemm-kineto",
    "decoy/no-shapes-gemm-nsys",
    "decoy/wrong-numerator-marked",
    "decoy/graph-opaque-nsys",
    "decoy/straggler-ranks",
    "decoy/two-devices-second",
    "decoy/warm-up",
    "held-out/uneven-steps",
    "held-out/backward-thread-memory",
    "held-out/pipeline-bubble",
)


@pytest.fixture(scope="module")
def bench() -> Iterator[dict[str, ModuleType]]:
    """The modules of the bench, which is a folder and no installed package."""
    sys.path.insert(0, str(FOLDER))
    try:
        yield {
            name: importlib.import_module(name)
            for name in ("corpus", "corpus.answers", "corpus.machines", "corpus.truth")
        }
    finally:
        sys.path.remove(str(FOLDER))
        for name in [n for n in sys.modules if n == "corpus" or n.startswith("corpus.")]:
            del sys.modules[name]


def case_of(bench: dict[str, ModuleType], name: str) -> Any:
    return next(c for c in bench["corpus"].all_cases() if c.name == name)


def test_the_corpus_holds_what_it_promises(bench: dict[str, ModuleType]) -> None:
    cases = bench["corpus"].all_cases()
    assert len(cases) >= 60
    assert len({c.name for c in cases}) == len(cases)
    assert {c.truth for c in cases} >= {"compute", "memory", "network", "host", "latency", "undetermined"}
    groups = {c.name.split("/")[0] for c in cases}
    assert groups >= {
        "compute",
        "memory",
        "network-intra",
        "network-inter",
        "host-input",
        "host-sync",
        "host-python",
        "host-h2d",
    }
    assert groups >= {"latency", "mixed", "decoy"}


def test_the_tables_agree_with_the_catalogue(bench: dict[str, ModuleType]) -> None:
    """The bench has its own figures from data sheets; a difference of either shows here."""
    from mansard.hardware import match

    for machine in (bench["corpus.machines"].H100, bench["corpus.machines"].H200, bench["corpus.machines"].A100):
        sku = match(machine.product).sku
        assert sku is not None
        peaks = {(p.dtype, p.engine): p.flop_per_s for p in sku.peaks}
        assert math.isclose(peaks["bf16", "matrix"], machine.bf16_flop_per_s, rel_tol=2e-3)
        assert math.isclose(peaks["tf32", "matrix"], machine.tf32_flop_per_s, rel_tol=2e-3)
        hbm = next(level for level in sku.memory if level.level == "hbm")
        assert math.isclose(hbm.bytes_per_s, machine.hbm_bytes_per_s, rel_tol=2e-3)


def _area(name: str) -> str:
    """Say whose time a kernel's is, from the names that the bench writes; 4,096-element kernels are treated apart."""
    if "nccl" in name:
        return "network"
    if name.startswith("Memcpy"):
        return "memory" if "DtoD" in name else "host"
    return "compute" if "gemm" in name or "flash" in name else "memory"


def _events(path: Path) -> list[tuple[str, int, int]]:
    """Read kernels and copies back from a file, without the bench's or the tool's code: name, start and end [ns]."""
    if path.suffix == "sqlite" or path.name.endswith(".sqlite"):
        with sqlite3.connect(path) as database:
            kernels = database.execute(
                'SELECT s.value, k.start, k."end" FROM CUPTI_ACTIVITY_KIND_KERNEL k '
                "JOIN StringIds s ON s.id = k.demangledName"
            ).fetchall()
        return [(str(n), int(a), int(b)) for n, a, b in kernels]
    events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    return [
        (e["name"], round(e["ts"] * 1000), round(e["ts"] * 1000) + round(e["dur"] * 1000))
        for e in events
        if e.get("cat") in ("kernel", "gpu_memcpy")
    ]


@pytest.mark.parametrize(
    "name",
    [
        "mixed/compute50-memory30-network20",
        "mixed/memory35-sync65",
        "mixed/compute60-input40",
        "decoy/overlapped-nccl-h100",
        "host-h2d/a100-kineto-48mib",
        "host-input/h100-nsys-20ms",
        "memory/h200-dtod-92",
    ],
)
def test_the_truth_is_what_the_file_holds(bench: dict[str, ModuleType], tmp_path: Path, name: str) -> None:
    """Shares again, by painting every event onto a line of 200 ns cells in order of precedence and counting cells."""
    case = case_of(bench, name)
    files, truth = bench["corpus.answers"].write_case(case, tmp_path)
    low, high = truth["window_ns"]
    cell = 200
    line = np.zeros((high - low) // cell + 1, dtype=np.int8)
    codes = {"host": 1, "network": 2, "memory": 3, "compute": 4}
    events = _events(files[0])
    order = {"host": 0, "network": 1, "memory": 2, "compute": 2}
    for kernel, start, end in sorted(events, key=lambda e: order[_area(e[0])]):
        line[max(0, start - low) // cell : max(0, end - low) // cell] = codes[_area(kernel)]
    shares = truth["shares"]
    for area in ("compute", "memory", "network"):
        assert np.mean(line == codes[area]) == pytest.approx(shares[area], abs=0.006)
    idle_and_host = np.mean((line == 0) | (line == 1))
    assert idle_and_host == pytest.approx(shares["host"] + shares["latency"], abs=0.006)
    assert sum(shares.values()) == pytest.approx(1.0)


def test_headrooms_by_hand(bench: dict[str, ModuleType], tmp_path: Path) -> None:
    """8192^3 at 80 % of 989.4 TFLOP/s: 1.0995e12 FLOP need 1.1113 ms and get 1.3891 ms, 14 times a step.

    So a step gives away 14 x 0.2778 = 3.889 ms. The all-reduce of 512 MiB over 8 at 80 % of 450 GB/s:
    2 x 7/8 x 536870912 B need 2.0878 ms, get 2.6098 ms, 6 times a step: 3.132 ms.
    """
    for name, expected in (("compute/h100-mm-8192-80", 3.889e-3), ("network-intra/h100-allreduce-80", 3.132e-3)):
        _, truth = bench["corpus.answers"].write_case(case_of(bench, name), tmp_path / name.replace("/", "-"))
        assert truth["headroom_s"] == pytest.approx(expected, rel=0.02)  # the jitter of the lengths is 1 %


def test_the_corpus_is_the_same_every_time(bench: dict[str, ModuleType], tmp_path: Path) -> None:
    case = case_of(bench, "mixed/compute60-network40")
    first, _ = bench["corpus.answers"].write_case(case, tmp_path / "a")
    second, _ = bench["corpus.answers"].write_case(case, tmp_path / "b")
    assert first[0].read_bytes() == second[0].read_bytes()


@pytest.mark.parametrize("name", FAST)
def test_the_class_is_right(bench: dict[str, ModuleType], tmp_path: Path, name: str) -> None:
    case = case_of(bench, name)
    files, truth = bench["corpus.answers"].write_case(case, tmp_path)
    score, _ = bench["corpus.answers"].judge(case, files, truth)
    assert score.error == ""
    assert score.right, f"{score.answer} instead of {score.truth}"
    assert not score.forbidden
    assert score.false_memory == 0
