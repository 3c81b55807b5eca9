"""Products spread over devices: counts by hand, what cannot be divided, and results on four local devices."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from mansard.measure.benchmarks.collective_matmul import BENCHMARKS
from mansard.measure.points.benchmark import Where

BY_NAME = {b.name: b for b in BENCHMARKS}
PARAMS = {"m": 64, "k": 32, "n": 48, "dtype": "f32", "devices": 4, "seed": 0}
TPU = Where(backend="jax", platform="tpu", devices=4, memory_bytes=16e9, device_name="TPU v5e")
CPU = Where(backend="jax", platform="cpu", devices=1, threads=2, cpus=(0, 1), memory_bytes=8e9)

PROGRAM = """
import json
from mansard.measure.benchmarks.collective_matmul import BENCHMARKS
from mansard.measure.points.benchmark import Where
where = Where(backend="jax", platform="cpu", devices=4, threads=2, cpus=(0, 1), memory_bytes=8e9)
out = {}
for b in BENCHMARKS:
    p = {"m": 64, "k": 32, "n": 48, "dtype": "f32", "devices": 4, "seed": 0}
    made = b.prepare(p, "jax", where)
    made.run(3)
    count = made.count_by_compiler()
    there = any(o in count.expected for o in count.operations)
    out[b.name] = [made.verify().error_ratio, count.flop, there]
print(json.dumps(out))
"""


def test_one_device_does_its_share() -> None:
    # 2 * 64 * 32 * 48 = 196608 FLOP over 4 devices; a gather of A: 3/4 of 64 * 32 * 4 bytes.
    for name in ("collective_matmul_one_direction", "collective_matmul_two_directions"):
        work = BY_NAME[name].work(PARAMS, TPU)
        assert work.demand.total_flop == work.compiler_flop == 49152
        assert list(work.demand.link_bytes.values()) == [6144]
    # A layer of 2 * 64 * 32 * 32 before it: (131072 + 196608) / 4.
    assert BY_NAME["multilayer_collective_matmul"].work(PARAMS, TPU).demand.total_flop == 81920
    # An all-reduce of the result: 2 * 3/4 of 64 * 48 * 4 bytes.
    assert list(BY_NAME["gemm_all_reduce"].work(PARAMS, TPU).demand.link_bytes.values()) == [18432]


def test_local_devices_share_the_processor_so_their_work_is_added() -> None:
    work = BY_NAME["collective_matmul_one_direction"].work(PARAMS, CPU)
    assert work.demand.total_flop == 196608
    assert work.compiler_flop == 49152
    assert "added up" in work.convention


@pytest.mark.parametrize(
    ("name", "changed", "where", "says"),
    [
        ("collective_matmul_one_direction", {"m": 66}, CPU, "m = 66 cannot be divided into 4"),
        ("collective_matmul_two_directions", {"m": 68}, CPU, "m = 68 cannot be divided into 8"),
        ("multilayer_collective_matmul", {"k": 33}, CPU, "k = 33 cannot be divided into 4"),
        ("gemm_all_reduce", {"k": 33}, CPU, "k = 33 cannot be divided into 4"),
        ("collective_matmul_one_direction", {"n": 50}, CPU, "n = 50 cannot be divided into 4"),
        ("collective_matmul_one_direction", {"devices": 8}, TPU, "8 devices are needed; there are 4"),
        ("collective_matmul_one_direction", {"devices": 1}, TPU, "at least 2 devices"),
        ("collective_matmul_one_direction", {"m": 65536, "k": 65536, "n": 65536}, CPU, "one device has 8.00 GB"),
    ],
)
def test_what_cannot_run_says_why(name: str, changed: dict[str, int], where: Where, says: str) -> None:
    waived = BY_NAME[name].waived({**PARAMS, **changed}, "jax", where)
    assert waived is not None
    assert says in waived.reason
    assert BY_NAME[name].waived(PARAMS, "jax", where) is None


def test_an_all_reduce_does_not_divide_the_columns() -> None:
    assert BY_NAME["gemm_all_reduce"].waived({**PARAMS, "n": 50}, "jax", CPU) is None


def test_results_are_right_and_the_exchange_is_in_the_program() -> None:
    flags = BENCHMARKS[0].flags(PARAMS, "jax")
    environment = {**os.environ, **flags, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=False, timeout=280
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.strip().splitlines()[-1])
    for name, (error, flop, there) in found.items():
        assert error < 1.0, name
        assert there, name
        # XLA counts the products of one device, and beside them the additions of a sum or a place in a ring.
        claimed = BY_NAME[name].work(PARAMS, CPU).compiler_flop
        assert claimed <= flop < claimed * 1.1, name
