"""What an Nsight Compute report says of the limits of its device, on both pages, and the questions asked of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mansard.cli.main import main
from mansard.trace.open import open_trace
from mansard.trace.readers.ncu_metrics import measured
from mansard.trace.speed_of_light import speeds_of_light


def ask(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    with pytest.raises(SystemExit) as ended:
        main(["trace", *words, "--json"])
    return int(ended.value.code or 0), json.loads(capsys.readouterr().out)


def test_a_details_page_has_the_rate_of_dram_and_so_its_bytes(shared: Path) -> None:
    folder = shared / "data/traces/ncu"
    details, raw = (
        speeds_of_light(open_trace(folder / f"rtx4090_smem_transpose.{page}.csv")) for page in ("details", "raw")
    )
    assert len(details) == len(raw) == 5
    for one, other in zip(details, raw, strict=True):
        assert one.dram_bytes == pytest.approx(other.dram_bytes, rel=1e-3)  # the page rounds its rates
        for word, share in other.shares.items():
            if isinstance(share, float):
                assert one.shares[word] == pytest.approx(share, abs=1e-4), word


def test_counts_go_before_rates() -> None:
    both = {
        "gpu__time_duration.sum": 2e-3,
        "dram__bytes.sum.per_second": 5e9,
        "dram__bytes_read.sum": 6e6,
        "dram__bytes_write.sum": 1e6,
    }
    assert measured(both, "8.9").dram_bytes == 7e6
    rates = {
        "gpu__time_duration.sum": 2e-3,
        "dram__bytes_read.sum.per_second": 3e9,
        "dram__bytes_write.sum.per_second": 1e9,
    }
    found = measured(rates, "8.9")
    assert (found.dram_bytes, found.dram_read_bytes) == (8e6, 6e6)  # (3 + 1) GB/s and 3 GB/s for 2 ms
    assert "rate x time" in " ".join(found.notes)
    assert "dram__bytes_read" in measured({"gpu__time_duration.sum": 1.0}, "8.9").dram_bytes.reason


def test_shares_of_each_kernel(shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, document = ask(capsys, "kernels", str(shared / "data/traces/ncu/gh200_rmsnorm_pytorch.raw.csv"))
    (row,) = document["speed_of_light"]
    assert code == 0
    # the report: sm__throughput 69.970664 %, gpu__dram_throughput 4.884614 %, sm__warps_active 50.924664 %, clocks in cycle/nsecond
    assert row["compute_throughput_ratio"] == pytest.approx(0.69970664)
    assert row["dram_throughput_ratio"] == pytest.approx(0.04884614)
    assert row["achieved_occupancy_ratio"] == pytest.approx(0.50924664)
    assert row["dram_clock_hz"] == pytest.approx(2.614184e9)
    assert "unknown" in row["dram_bytes"], "a share of a peak that the report does not state is no number of bytes"
    _, document = ask(
        capsys, "kernels", str(shared / "data/traces/ncu/rtx4090_smem_transpose.raw.csv"), "--name", "transposeSmemPad"
    )
    (row,) = document["speed_of_light"]
    assert row["dram_bytes_per_s"] == pytest.approx((67_112_064 + 27_807_232) / 144e-6, rel=1e-6)


def test_a_profile_without_counters_has_no_shares(shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, document = ask(capsys, "kernels", str(shared / "data/traces/kineto/a100_small.json"))
    assert "speed_of_light" not in document


def test_intensity_of_one_kernel(shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(shared / "data/traces/ncu/t4_mlp_full_set.raw.csv")
    _, document = ask(capsys, "intensity", file, "--kernel", "matrix*")
    assert document["flop_per_byte"] == pytest.approx(0.072455, rel=1e-4)
    assert "matrix*" in document["scope"]
    assert ask(capsys, "intensity", file, "--kernel", "gemm")[0] == 2
