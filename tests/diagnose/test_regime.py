from __future__ import annotations

import pytest

from mansard.core import Area, Ceiling, Ceilings, Kind, Resource
from mansard.diagnose.regime import seen_regime


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
