"""Traffic of small fast memories and of strided reads."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mansard.operators.locality import matmul_largest_intensity, matmul_least_traffic_bytes, strided_read_bytes
from mansard.operators.matmul import matmul_bytes, matmul_flop


@pytest.mark.parametrize(("dtype", "divisor"), [("f64", 22.63), ("f32", 8.0), ("bf16", 2.828), ("fp8", 1.0)])
def test_largest_intensity_by_type(dtype, divisor):
    # sqrt(M / b) / b = sqrt(M) / b^1.5
    assert matmul_largest_intensity(dtype=dtype, fast_bytes=1e6) == pytest.approx(1e3 / divisor, rel=1e-3)


@given(st.integers(1, 4096), st.integers(1, 4096), st.integers(1, 4096), st.integers(64, 10**8))
def test_bound_is_never_below_compulsory_traffic_and_agrees_with_the_intensity(m, n, k, fast):
    moved = matmul_least_traffic_bytes(m=m, n=n, k=k, dtype="f32", fast_bytes=fast)
    assert moved >= matmul_bytes(m=m, n=n, k=k, dtype="f32")
    intensity = matmul_flop(m=m, n=n, k=k) / moved
    assert intensity <= matmul_largest_intensity(dtype="f32", fast_bytes=fast) * (1 + 1e-12)


def test_a_naive_column_read_moves_a_line_per_element():
    # Inner product of a row and a column of 1024: 2048 FLOP; row 4 B, column 64 B per element.
    moved = 1024 * 4 + strided_read_bytes(elements=1024, dtype="f32", stride=1024)
    assert moved == 1024 * 68
    assert 2 * 1024 / moved < 1
    assert math.isclose(2 * 1024 / moved, 2 / 68)
    assert strided_read_bytes(elements=1024, dtype="f32", stride=1) == 4096
    assert strided_read_bytes(elements=10, dtype="f32", stride=8) == 320
