"""What several points say together, on times made by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mansard.core.errors import UndecidedError
from mansard.measure.points.conclusions import conclusions, in_words
from mansard.measure.points.regimes import two_regimes
from mansard.measure.points.sustained import drift
from mansard.measure.search import grid, search


def element(benchmark: str, params: dict[str, Any], seconds: list[float], **more: Any) -> dict[str, Any]:
    median = float(np.median(seconds))
    return {
        "state": "done",
        "verdict": "normal",
        "metadata": {"benchmark_name": benchmark, "impl": "numpy", "test_name": f"{benchmark} {params}", "params": params},
        "metrics": {
            "median_s": median, "ci95_low_s": median * 0.99, "ci95_high_s": median * 1.01, "flop": more.get("flop", 0.0),
            "bytes": more.get("bytes", 0.0), "working_set_bytes": more.get("working_set_bytes", 0.0), "level": None,
        },
        "raw_times_ms": [s * 1e3 for s in seconds],
        "samples": {"windows": more.get("windows", [[0, len(seconds)]]), "per_sample": 1},
        "conditions": {"foreign_ratio": more.get("foreign", 0.0), "steal_ratio": 0.0},
        "audit": {"benchmark": {"mix": "read"}},
    }  # fmt: skip


def test_a_size_law_is_found_again():
    # t = 2 us + FLOP / 100 GFLOP/s; half of the rate at 2 us x 100e9 = 2e5 FLOP, N = (2e5 / 2)^(1/3) = 46.4
    points = [
        element("gemm_sweep", {"size": n}, [2e-6 + 2.0 * n**3 / 100e9] * 5, flop=2.0 * n**3)
        for n in (32, 64, 128, 256, 512)
    ]
    (law,) = [c for c in conclusions(points) if c["kind"] == "size_law"]
    assert law["fixed_s"] == pytest.approx(2e-6, rel=1e-6)
    assert law["flop_per_s"] == pytest.approx(100e9, rel=1e-6)
    assert law["half_rate_n"] == pytest.approx(46.416, rel=1e-4)
    assert [p["n"] for p in law["points"]] == [32, 64, 128, 256, 512]
    assert "2.00 us" in in_words(law)


def test_times_that_follow_no_law_are_not_called_one():
    seconds = {32: 1e-6, 64: 1e-3, 128: 1e-6, 256: 1e-3}
    points = [element("gemm_sweep", {"size": n}, [s] * 5, flop=2.0 * n**3) for n, s in seconds.items()]
    (law,) = [c for c in conclusions(points) if c["kind"] == "size_law"]
    assert "do not follow" in in_words(law)


def test_a_sweep_that_is_mostly_noise_has_no_cliffs():
    sizes = [2**k * 1024.0 for k in range(4, 10)]
    points = [
        element("memory_sweep", {"working_set_bytes": size}, [t] * 5, bytes=size, working_set_bytes=size)
        for size, t in zip(sizes, (1e-7, 4e-7, 4e-6, 8e-6, 1.6e-5, 9e-5), strict=True)
    ]
    (seen,) = [c for c in conclusions(points) if c["kind"] == "working_set"]
    assert seen["cliffs"]
    for p in points[1:5]:
        p["verdict"] = "noisy"
    (seen,) = [c for c in conclusions(points) if c["kind"] == "working_set"]
    assert seen["cliffs"] == []
    assert len(seen["points"]) == 6
    assert "4 of 6 points are noisy: where the read bandwidth drops is not said" in in_words(seen)


@pytest.mark.parametrize(("padded_s", "verdict"), [(0.8, "pad"), (1.2, "do not pad"), (1.005, "no difference seen")])
def test_padding_is_advised_only_beyond_the_intervals(padded_s, verdict):
    points = [
        element("gemm_alignment", {"base": 4000, "size": size}, [s] * 5, flop=2.0 * size**3)
        for size, s in ((4000, 1.0), (4096, padded_s))
    ]
    (gain,) = [c for c in conclusions(points) if c["kind"] == "padding"]
    assert gain["verdict"] == verdict
    assert gain["gain_ratio"] == pytest.approx(1.0 / padded_s)
    # 1.024^3 - 1
    assert gain["extra_flop_ratio"] == pytest.approx(0.07374, rel=1e-3)


def test_failed_and_implausible_points_say_nothing():
    points = [element("gemm_sweep", {"size": n}, [1e-3] * 5, flop=2.0 * n**3) for n in (32, 64, 128)]
    points[0]["verdict"], points[1]["state"] = "implausible", "failed"
    assert [c["law"]["unknown"] for c in conclusions(points) if c["kind"] == "size_law"] == ["a law needs three sizes"]


def noisy(rng: np.random.Generator, middle: float, count: int = 30) -> list[float]:
    return list(middle * np.exp(rng.normal(0.0, 0.01, count)))


def test_two_regimes_are_told_from_one_noisy_one():
    rng = np.random.default_rng(1)
    windows = [noisy(rng, 1.0), noisy(rng, 1.0), noisy(rng, 1.6), noisy(rng, 1.6), noisy(rng, 1.0)]
    found = two_regimes(windows)
    assert found is not None
    assert found.fast_s == pytest.approx(1.0, rel=0.01)
    assert found.slow_s == pytest.approx(1.6, rel=0.01)
    assert found.fast_share_ratio == pytest.approx(0.6)  # 90 of 150
    assert (found.switches, found.windows) == (2, 5)
    assert two_regimes([noisy(rng, 1.0) for _ in range(5)]) is None


def test_a_few_outliers_are_no_regime():
    rng = np.random.default_rng(2)
    assert two_regimes([noisy(rng, 1.0, 50), [*noisy(rng, 1.0, 50), 3.0, 3.1, 2.9]]) is None


def test_regimes_of_a_busy_machine_are_not_reported():
    rng = np.random.default_rng(3)
    times = noisy(rng, 1.0) + noisy(rng, 2.0)
    calm = element("hbm_bandwidth", {}, times, windows=[[0, 30], [1, 30]])
    busy = element("hbm_bandwidth", {}, times, windows=[[0, 30], [1, 30]], foreign=0.5)
    assert "two_regimes" in {c["kind"] for c in conclusions([calm])}
    assert "two_regimes" not in {c["kind"] for c in conclusions([busy])}


def test_drift_by_hand():
    # 60 samples of 0.1 s, then 140 of 0.12 s: 22.8 s; the first sixth is all fast, the last third all slow
    found = drift([0.1] * 60 + [0.12] * 140)
    assert found is not None
    assert found.ratio == pytest.approx(1.2)
    assert found.throttles
    assert found.duration_s == pytest.approx(22.8)
    assert drift([0.1] * 200).throttles is False
    assert drift([0.001] * 100) is None  # a tenth of a second says nothing of heat


class FakeMeter:
    """Rates that are known, with noise that only makes samples look better or worse by chance."""

    def __init__(self, log: list[Any], true: dict[int, float], spread: float) -> None:
        self.log, self.true, self.spread = log, true, spread
        self.rng = np.random.default_rng(len(log))
        log.append([])

    def sample(self, candidate: Any, seconds: float) -> list[float]:
        if candidate["m"] == 13:
            raise UndecidedError("thirteen cannot run")
        self.log[-1].append((candidate["m"], seconds))
        return list(self.true[candidate["m"]] * np.exp(self.rng.normal(0.0, self.spread, 5)))

    def drop(self, candidate: Any) -> None:
        pass

    def close(self) -> None:
        pass


def searched(true: dict[int, float], spread: float, **more: Any) -> Any:
    log: list[Any] = []
    found = search(
        [{"m": m} for m in true], lambda c: 1.0, lambda: FakeMeter(log, true, spread), **{"first_s": 0.01, **more}
    )
    return found, log


def test_the_search_narrows_and_finds_the_fastest():
    true = {m: 1.0 + 0.1 * m for m in range(32)}
    found, log = searched(true, 0.001)
    assert found.rounds == (31, 15, 7, 4)  # 13 has failed; half is kept each time
    assert [f.params["m"] for f in found.finalists] == [0, 1, 2, 3]
    assert found.failed == (({"m": 13}, "thirteen cannot run"),)
    assert not any(f.tied for f in found.finalists[1:])
    # every round doubles the time of a candidate
    assert sorted({seconds for _, seconds in log[0]}) == [0.01, 0.02, 0.04, 0.08]
    # the finalists were measured again, in turns, through another meter
    assert len(log) == 2
    assert len(log[1]) == 5 * 4


def test_the_winners_curse_is_measured_and_ties_stay_ties():
    found, _ = searched(dict.fromkeys([*range(12), *range(14, 40)], 1.0), 0.1)
    # all are equal: what the search saw as best is too good, the new medians are about 1
    assert all(f.searched_s < 0.95 for f in found.finalists)
    assert all(f.again.median == pytest.approx(1.0, abs=0.1) for f in found.finalists)
    assert all(f.optimism_ratio > 0.03 for f in found.finalists)
    assert any(f.tied for f in found.finalists)


def test_a_search_without_survivors_says_why():
    with pytest.raises(UndecidedError, match="thirteen cannot run"):
        searched({13: 1.0}, 0.1)


def test_the_grid_is_the_product():
    assert grid([1, 2], [3], [4]) == [{"m": 1, "k": 3, "n": 4}, {"m": 2, "k": 3, "n": 4}]
