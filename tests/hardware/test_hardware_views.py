"""Ridge points, crossing sizes, cache ceilings, Little's law and fixed costs, each worked by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mansard.core.errors import UsageError
from mansard.hardware import (
    bytes_in_flight,
    ceilings,
    fixed_cost_s,
    gemm_ridge_size,
    hiding_gemm_size,
    hiding_work,
    in_flight_bytes_per_s,
    load,
    mixed_peak_flop_per_s,
    pebble_flop_per_byte,
    ridge_flop_per_byte,
    ridge_points,
    square_gemm_flop_per_byte,
    transfers_in_flight,
)
from mansard.hardware.views import Ridge

numbers = st.floats(min_value=1e-3, max_value=1e15)


def ridge(slug: str, dtype: str, engine: str = "matrix") -> Ridge:
    found = [
        r for r in ridge_points(ceilings(load(slug)))
        if r.compute.resource.dtype == dtype and r.compute.resource.engine == engine and r.memory.resource.level != "l1"
    ]  # fmt: skip
    return found[-1]


def test_ridge_of_h200_is_not_that_of_h100() -> None:
    # 989.4e12 / 4.8e12 = 206.1; an H100 has 989.4e12 / 3.35e12 = 295.3.
    assert ridge("h200", "bf16").flop_per_byte == pytest.approx(206.04, rel=1e-3)
    assert ridge("h100-sxm", "bf16").flop_per_byte == pytest.approx(295.3, rel=1e-3)


def test_gh200_and_grace_at_512() -> None:
    # f32 and TF32 kept in 4 bytes: 2 x 512 / 12 = 85.33 FLOP/B. From HBM at 4.0 TB/s: 341.3 TFLOP/s.
    intensity = square_gemm_flop_per_byte(512, element_bytes=4)
    assert intensity == pytest.approx(85.33, abs=0.01)
    hopper = ridge("gh200-96gb", "tf32")
    assert hopper.memory.value * intensity / 1e12 == pytest.approx(341.3, abs=0.1)
    assert min(hopper.compute.value, hopper.memory.value * intensity) / 1e12 == pytest.approx(341.3, abs=0.1)
    # f32 on the CUDA cores: 66.9 (67 on the sheet) is below 341, so compute decides; Grace: 7.14 below 85.3 x 512e9 = 43.7e12.
    vector = ridge("gh200-96gb", "f32", "vector")
    assert min(vector.compute.value, vector.memory.value * intensity) / 1e12 == pytest.approx(67, abs=0.2)
    grace = ridge("grace", "f32", "vector")
    assert grace.memory.value == 512e9
    assert min(grace.compute.value, grace.memory.value * intensity) / 1e12 == pytest.approx(7.14, abs=0.01)


def test_crossing_size() -> None:
    # 494e12 / 4e12 = 123.5; x 6 = 741. With 494.7 TFLOP/s the catalogue gives 742.
    assert gemm_ridge_size(494e12 / 4.0e12, element_bytes=4) == pytest.approx(741)
    assert ridge("gh200-96gb", "tf32").gemm_size == pytest.approx(741, rel=2e-3)
    # bf16: N* = 3 I*.
    assert gemm_ridge_size(100.0, element_bytes=2) == pytest.approx(300)


def test_intensity_of_square_products() -> None:
    assert square_gemm_flop_per_byte(4096, element_bytes=2) == pytest.approx(1365.33, abs=0.01)  # N / 3
    assert square_gemm_flop_per_byte(600, element_bytes=4) == pytest.approx(100)  # N / 6


@given(size=st.floats(min_value=1, max_value=1e6), element=st.sampled_from([0.5, 1, 2, 4, 8]))
def test_crossing_size_undoes_intensity(size: float, element: float) -> None:
    intensity = square_gemm_flop_per_byte(size, element_bytes=element)
    assert gemm_ridge_size(intensity, element_bytes=element) == pytest.approx(size)


def test_pebble_game() -> None:
    # f32: sqrt(M/4)/4. 50e6: sqrt(12.5e6)/4 = 883.9; 50 x 2^20: sqrt(13107200)/4 = 905.1; 117e6: sqrt(29.25e6)/4 = 1352.
    assert pebble_flop_per_byte(50e6, element_bytes=4) == pytest.approx(883.9, abs=0.1)
    assert pebble_flop_per_byte(50 * 2**20, element_bytes=4) == pytest.approx(905.1, abs=0.1)
    assert pebble_flop_per_byte(117e6, element_bytes=4) == pytest.approx(1352.1, abs=0.1)
    # f64 sqrt(M)/22.63, bf16 sqrt(M)/2.83, fp8 sqrt(M).
    for element, divisor in ((8, 22.627), (2, 2.8284), (1, 1.0)):
        assert pebble_flop_per_byte(1e6, element_bytes=element) == pytest.approx(1e3 / divisor, rel=1e-4)


def test_little() -> None:
    assert bytes_in_flight(bytes_per_s=64e9, latency_s=2e-6) == pytest.approx(128e3)
    # Half of that under way gives half the bandwidth; twice gives no more than all.
    assert in_flight_bytes_per_s(bytes_in_flight=64e3, latency_s=2e-6, limit_bytes_per_s=64e9) == pytest.approx(32e9)
    assert in_flight_bytes_per_s(bytes_in_flight=256e3, latency_s=2e-6, limit_bytes_per_s=64e9) == pytest.approx(64e9)


def test_expert_offload() -> None:
    # 9.4e6 B at 220e9 B/s: 42.7 us each. 418e9 x 42.7e-6 / 9.4e6 = 1.9, 450e9: 2.05.
    assert transfers_in_flight(transfer_bytes=9.4e6, bytes_per_s_of_one=220e9, limit_bytes_per_s=418e9) == 2
    assert transfers_in_flight(transfer_bytes=9.4e6, bytes_per_s_of_one=220e9, limit_bytes_per_s=450e9) == 3
    assert transfers_in_flight(transfer_bytes=9.4e6, bytes_per_s_of_one=220e9, limit_bytes_per_s=440e9) == 2
    c2c = ceilings(load("gh200-96gb")).link("c2c")
    assert c2c.value == 450e9  # type: ignore[union-attr]
    # 4 GB at 512 GB/s take 7.8 ms at least.
    assert 4e9 / ceilings(load("grace")).bandwidth("dram", scope="device").value == pytest.approx(7.8e-3, abs=2e-5)  # type: ignore[union-attr]


def test_fixed_costs_of_the_n_512_rows() -> None:
    work = 2 * 512**3  # 268.4e6 FLOP
    # f32: 268.4e6 / 67e12 = 4.006 us at 23 %: 17.42 us, T0 = 13.4 us.
    f32 = work / 67e12
    assert fixed_cost_s(f32 / 0.23, f32) == pytest.approx(13.41e-6, abs=0.02e-6)
    # TF32: 268.4e6 / 494e12 = 0.543 us at 4.2 %: 12.94 us. Its bound is memory, 268.4e6 / 341.3e12 = 0.787 us: T0 = 12.1 us.
    assert fixed_cost_s(work / 494e12 / 0.042, work / 341.3e12) == pytest.approx(12.15e-6, abs=0.02e-6)
    # NumPy: 268.4e6 / 7.1e12 = 37.8 us at 24 %: 157.5 us, T0 = 119.7 us.
    numpy = work / 7.1e12
    assert fixed_cost_s(numpy / 0.24, numpy) == pytest.approx(119.7e-6, abs=0.1e-6)


def test_sizes_that_hide_a_fixed_cost() -> None:
    # 80 %: W / P >= 4 T0, N = (2 T0 P)^(1/3).
    assert hiding_work(fixed_s=10e-6, rate_per_s=1e12) == 4 * 10e-6 * 1e12
    assert hiding_gemm_size(fixed_s=120e-6, flop_per_s=7.1e12) == pytest.approx(1194, abs=1)  # about 1200
    assert hiding_gemm_size(fixed_s=13.4e-6, flop_per_s=67e12) == pytest.approx(1215, abs=1)  # about 1200
    assert hiding_gemm_size(fixed_s=12.1e-6, flop_per_s=494e12) == pytest.approx(2287, abs=1)  # about 2300
    # Half of the ceiling: W / P = T0.
    assert hiding_work(fixed_s=10e-6, rate_per_s=1e12, share=0.5) == pytest.approx(1e7)


@given(fixed=st.floats(1e-7, 1e-2), rate=st.floats(1e9, 1e16), share=st.floats(0.05, 0.99))
def test_the_hidden_share_comes_out(fixed: float, rate: float, share: float) -> None:
    work = hiding_work(fixed_s=fixed, rate_per_s=rate, share=share)
    assert (work / rate) / (work / rate + fixed) == pytest.approx(share)


def test_mixed_precision_has_one_denominator() -> None:
    # 30 % of the FLOP in bf16 at 989.4 and 70 % in fp8 at 1978.9: 1 / (0.3 / 989.4 + 0.7 / 1978.9) = 1522.3.
    mixed = mixed_peak_flop_per_s({"bf16": 0.3, "f8": 0.7}, {"bf16": 989.4, "f8": 1978.9})
    assert mixed == pytest.approx(1 / (0.3 / 989.4 + 0.7 / 1978.9))
    assert mixed == pytest.approx(1522.2, abs=0.2)
    assert mixed_peak_flop_per_s({"bf16": 5.0, "f8": 0.0}, {"bf16": 989.4, "f8": 1978.9}) == pytest.approx(989.4)
    assert mixed_peak_flop_per_s([1.0, 1.0], [1.0, 3.0]) == pytest.approx(1.5)
    with pytest.raises(UsageError, match="no peak for f8"):
        mixed_peak_flop_per_s({"bf16": 1.0, "f8": 1.0}, {"bf16": 989.4})
    with pytest.raises(UsageError):
        mixed_peak_flop_per_s({"bf16": 0.0}, {"bf16": 989.4})


@given(a=numbers, b=numbers, p=numbers, q=numbers)
def test_a_mixed_peak_lies_between_its_parts(a: float, b: float, p: float, q: float) -> None:
    mixed = mixed_peak_flop_per_s([a, b], [p, q])
    assert min(p, q) * (1 - 1e-9) <= mixed <= max(p, q) * (1 + 1e-9)


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_views_refuse_numbers_that_are_none(value: float) -> None:
    for call in (
        lambda: ridge_flop_per_byte(value, 1.0),
        lambda: pebble_flop_per_byte(value, element_bytes=4),
        lambda: gemm_ridge_size(1.0, element_bytes=value),
        lambda: bytes_in_flight(bytes_per_s=1.0, latency_s=value),
        lambda: hiding_work(fixed_s=value, rate_per_s=1.0),
        lambda: transfers_in_flight(transfer_bytes=value, bytes_per_s_of_one=1.0, limit_bytes_per_s=1.0),
    ):
        with pytest.raises(UsageError):
            call()
    with pytest.raises(UsageError, match="below 1"):
        hiding_work(fixed_s=1.0, rate_per_s=1.0, share=1.0)
    with pytest.raises(UsageError, match="below the bound"):
        fixed_cost_s(1.0, 2.0)
