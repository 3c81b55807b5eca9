"""Reported cases about collectives: bytes, rates and latency of what users measured."""

from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from mansard.core.collectives import bus_bytes, fit_alpha_beta, rates
from mansard.plan.scale import ScaleModel


@pytest.fixture(scope="module")
def cases(shared: Path) -> dict[str, Any]:
    document = YAML(typ="safe").load((shared / "cases" / "user_reports.yaml").read_text(encoding="utf-8"))
    return {c["id"].split("_")[0]: c for c in document["cases"]}


def test_d25_all_reduces_of_a_decode_step_are_latency(cases):
    d25 = cases["D25"]
    given, expected = d25["input"], d25["expected"]
    times = {float(size): [ms * 1e-3] for size, ms in given["measured_ms"].items()}
    fit = fit_alpha_beta(times, resamples=20)
    # Slope (0.3989 - 0.3923) ms / 645,120 B, intercept 0.3922 ms.
    assert fit.alpha_s * 1e3 == pytest.approx(expected["alpha_ms"], rel=expected["rtol"])
    assert fit.beta_bytes_per_s / 1e9 == pytest.approx(expected["marginal_gbps"], rel=expected["rtol"])
    # 129 x 0.3923 ms = 50.61 ms of a step of 108 ms
    calls, small = given["all_reduces_per_token"], times[10240.0][0]
    comm_ms = calls * small * 1e3
    assert comm_ms == pytest.approx(expected["comm_ms_per_token"], rel=expected["rtol"])
    assert comm_ms / given["step_ms"] == pytest.approx(expected["share_of_step"], rel=expected["rtol"])
    assert 1e3 / (given["step_ms"] - comm_ms) == pytest.approx(expected["tok_s_if_removed"], rel=expected["rtol"])
    assert expected["verdict"] == "latency_bound"
    assert all(fit.latency_share_ratio(size) > 0.98 for size in times)
    # A term of bandwidth alone would make tensor parallelism free: 10 KB over 97.7 GB/s are 0.0001 ms.
    free = ScaleModel(serial_s=0, parallel_s=0.108, message_bytes=10240.0, link_bytes_per_s=fit.beta_bytes_per_s)
    assert free.comm_s(2) < 1e-6
    assert free.stops_paying().n is None
    # With half of the measured latency for each of the two steps between two devices it is what was measured.
    real = ScaleModel(
        serial_s=0, parallel_s=0.108, message_bytes=10240.0, link_bytes_per_s=fit.beta_bytes_per_s,
        alpha_s=fit.alpha_s / 2.0,
    )  # fmt: skip
    assert real.comm_s(2) == pytest.approx(small, rel=1e-3)


def test_d32_bytes_and_latency_of_an_all_reduce_over_32(cases):
    d32 = cases["D32"]
    first, second, gather = d32["input"]
    one, fitted, gathered = d32["expected"]

    def size_of(item):
        return float(item["elements"] * item["dtype_bytes"])

    # 2 x 31/32 x 2,097,152 B
    sent = bus_bytes("all_reduce", size_bytes=size_of(first), ranks=first["group"])
    assert sent == one["bus_bytes"]
    found = rates("all_reduce", size_bytes=size_of(first), ranks=first["group"], seconds=first["time_ms"] * 1e-3)
    assert found.busbw_bytes_per_s / 1e9 == pytest.approx(one["busbw_gbps"], rel=one["rtol"])
    samples = {
        bus_bytes("all_reduce", size_bytes=size_of(item), ranks=item["group"]): [item["time_ms"] * 1e-3]
        for item in (first, second)
    }
    fit, asked = fit_alpha_beta(samples, resamples=20), fitted["fit_with_first"]
    assert fit.alpha_s * 1e3 == pytest.approx(asked["alpha_ms"], rel=fitted["rtol"])
    assert fit.beta_bytes_per_s / 1e9 == pytest.approx(asked["marginal_busbw_gbps"], rel=fitted["rtol"])
    assert fit.latency_share_ratio(sent) == pytest.approx(asked["latency_share_at_first"], rel=fitted["rtol"])
    assert fitted["verdict"] == "latency_bound"
    assert fit.latency_share_ratio(sent) > 0.5
    found = rates(
        "all_gather", size_bytes=gather["total_bytes"], ranks=gather["group"], seconds=gather["time_ms"] * 1e-3
    )
    assert found.algbw_bytes_per_s / 1e9 == pytest.approx(gathered["algbw_gbps"], rel=gathered["rtol"])
    assert found.busbw_bytes_per_s / 1e9 == pytest.approx(gathered["busbw_gbps"], rel=gathered["rtol"])
