from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from mansard.core import Area, Bound, Ceiling, Ceilings, Kind, Resource
from mansard.diagnose.analyse import diagnose_run
from mansard.diagnose.regime import seen_regime

_spec = importlib.util.spec_from_file_location("regime_build", Path(__file__).with_name("build.py"))
assert _spec is not None
assert _spec.loader is not None
build = importlib.util.module_from_spec(_spec)
sys.modules["regime_build"] = build
_spec.loader.exec_module(build)
ADD, Ran, run_of, two_core_machine = build.ADD, build.Ran, build.run_of, build.two_core_machine


def machine() -> Ceilings:
    def one(level: str, value: float, scope: str = "node") -> Ceiling:
        resource = Resource(area=Area.MEMORY, level=level, mix="triad")
        return Ceiling(resource=resource, value=value, unit="B/s", kind=Kind.MEASURED, scope=scope)

    return Ceilings(ceilings=(one("dram", 50e9), one("l2", 400e9), one("dram", 30e9, "core")))


def values(ceilings: Ceilings) -> list[float]:
    return [c.value for c in ceilings.ceilings]


def test_the_slow_regime_lowers_the_level_it_concerns() -> None:
    # 34 of a typical 50 GB/s is 0.68: DRAM of the node goes to 34, the cache and the single core stay.
    slow = {"dram_bytes_per_s": 34e9, "foreign_load_ratio": 0.01}
    found, notes = seen_regime(machine(), slow, slow, {"dram_bytes_per_s": 50e9})
    assert values(found) == pytest.approx([34e9, 400e9, 30e9])
    assert notes["dram_bytes_per_s_ratio"] == pytest.approx(0.68)


def test_the_better_probe_counts_and_noise_changes_nothing() -> None:
    slow, good = {"dram_bytes_per_s": 34e9}, {"dram_bytes_per_s": 47e9}
    found, _ = seen_regime(machine(), slow, good, {"dram_bytes_per_s": 50e9})
    assert values(found) == [50e9, 400e9, 30e9]


def test_a_probe_under_load_lowers_nothing() -> None:
    loaded = {"dram_bytes_per_s": 10e9, "foreign_load_ratio": 0.4}
    found, _ = seen_regime(machine(), loaded, loaded, {"dram_bytes_per_s": 50e9})
    assert values(found) == [50e9, 400e9, 30e9]


def test_no_probe_changes_nothing() -> None:
    found, notes = seen_regime(machine(), {}, {}, {})
    assert found == machine()
    assert notes["before"] == {}


def test_the_fast_regime_raises_the_level_it_concerns() -> None:
    # Measured in the slow regime (typically 50 GB/s), run in the fast one: 100 GB/s doubles DRAM of the node alone.
    fast = {"dram_bytes_per_s": 100e9, "foreign_load_ratio": 0.01}
    found, notes = seen_regime(machine(), fast, fast, {"dram_bytes_per_s": 50e9})
    assert values(found) == pytest.approx([100e9, 400e9, 30e9])
    assert notes["dram_bytes_per_s_ratio"] == pytest.approx(2.0)


def test_the_rate_of_page_faults_is_of_no_regime() -> None:
    resource = Resource(area=Area.MEMORY, level="dram", mix="fresh", page="4k", store="regular")
    fresh = Ceiling(resource=resource, value=6e9, unit="B/s", kind=Kind.MEASURED, scope="node")
    fast = {"dram_bytes_per_s": 100e9, "foreign_load_ratio": 0.01}
    found, _ = seen_regime(Ceilings(ceilings=(*machine().ceilings, fresh)), fast, fast, {"dram_bytes_per_s": 50e9})
    assert values(found) == pytest.approx([100e9, 400e9, 30e9, 6e9])


def test_operations_far_beyond_the_caches_are_witnesses_of_a_faster_regime() -> None:
    # ADD moves 192 MB: 3.84 ms at the 50 GB/s of the hand-made machine. In 2.9 ms memory gave 66.2 GB/s, 1.324 times that.
    run = run_of([Ran(ADD, 2.9)])
    found = diagnose_run(run, two_core_machine(), program="add.py")
    assert found.verdict.bound is Bound.MEMORY
    assert found.time_shares["memory"] == pytest.approx(1.0)
    assert found.operators[0].share_of_ceiling == pytest.approx(1.0)
    assert found.operators[0].ceiling_value == pytest.approx(192e6 / 2.9e-3)
    assert any(n.code == "memory_regime" and "1.32" in n.text for n in found.findings)


def test_no_regime_explains_three_times_the_ceiling() -> None:
    found = diagnose_run(run_of([Ran(ADD, 1.2)]), two_core_machine(), program="add.py")  # 160 GB/s
    assert all(n.code != "memory_regime" for n in found.findings)
    assert not any(o.bound is Bound.MEMORY and o.level == "dram" for o in found.operators)
