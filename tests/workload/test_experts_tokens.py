"""Distinct experts and the bookkeeping of tokens, against numbers of public reports."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mansard.core.errors import UsageError
from mansard.workload.experts import expected_distinct, expected_distinct_measured, worst_case_distinct
from mansard.workload.tokens import step_tokens


def test_expected_distinct_of_reports():
    # 128 (1 - (1 - 8/128)^16) = 82.4; 8 (1 - (3/4)^3) = 4.625
    assert expected_distinct(experts=128, per_token=8, tokens=16) == pytest.approx(82.42, abs=0.01)
    assert expected_distinct(experts=8, per_token=2, tokens=3) == 4.625
    assert expected_distinct(experts=8, per_token=2, tokens=1) == 2.0


@given(st.integers(1, 256), st.integers(1, 16), st.integers(1, 4096))
def test_expected_lies_between_one_token_and_the_worst_case(experts, k, tokens):
    k = min(k, experts)
    found = expected_distinct(experts=experts, per_token=k, tokens=tokens)
    assert k - 1e-9 <= found <= worst_case_distinct(experts=experts, per_token=k, tokens=tokens) + 1e-9


def test_expected_distinct_by_drawing():
    # 4096 draws of 5 tokens, 3 of 10 experts each
    rng = np.random.default_rng(7)
    seen = [len({e for _ in range(5) for e in rng.permutation(10)[:3]}) for _ in range(4096)]
    assert np.mean(seen) == pytest.approx(expected_distinct(experts=10, per_token=3, tokens=5), abs=0.06)


def test_skew_touches_fewer():
    even = expected_distinct_measured([1] * 8, per_token=2, tokens=4)
    assert even == pytest.approx(expected_distinct(experts=8, per_token=2, tokens=4))
    skewed = expected_distinct_measured([30, 30, 5, 5, 5, 5, 5, 5], per_token=2, tokens=4)
    assert skewed < even
    many = expected_distinct_measured([1] * 8, per_token=2, tokens=np.array([1.0, 4.0]))
    assert many == pytest.approx([2.0, even])


@pytest.mark.parametrize("bad", [[1.0], [0, 0, 0], [1, -1, 2], [9, 1, 1, 1], [float("nan"), 1, 1]])
def test_frequencies_that_cannot_be(bad):
    with pytest.raises(UsageError):
        expected_distinct_measured(bad, per_token=2, tokens=4)


def test_tokens_of_reports():
    # D17: 4 * 2048 * 8 * 4 = 262,144; over 4 devices and 2 s 32,768; 6 * 1.3e9 * 32768 / 989.4e12 = 25.8 %
    t = step_tokens(seq=2048, micro_batch=4, accumulation=8, dp=4)
    assert t.tokens == 262_144
    assert t.per_s_per_device(2.0) == 32_768
    assert 6 * 1.3e9 * t.per_s_per_device(2.0) / 989.4e12 == pytest.approx(0.25833, rel=1e-4)
    # 4 * 4096 * 8 / 1.93
    t = step_tokens(seq=4096, micro_batch=4, dp=8)
    assert t.per_s(1.93) == pytest.approx(67_913, abs=1)
    assert t.per_s_per_device(1.93) == pytest.approx(8_489, abs=1)
    # 6 * 70e9 * 16384000 / (48600 * 16 * 312e12): 2.8 %, not the published 45.4 (16 times too high)
    assert pytest.approx(0.02836, rel=1e-3) == 6 * 70e9 * 16_384_000 / (48_600 * 16 * 312e12)


def test_context_ranks_shard_and_tensor_ranks_replicate():
    # D18: 32 * 16384 / 10.28, whatever cp; two tensor ranks see the same 5 tokens
    t = step_tokens(seq=16384, global_batch=32, cp=2)
    assert t.per_s(10.28) == pytest.approx(51_001, abs=1)
    assert t.devices == 2
    one = step_tokens(seq=16384, global_batch=32)
    assert one.per_s(8.57) == pytest.approx(61_177, abs=1)
    assert pytest.approx(0.7653, abs=1e-4) == 0.918 * 8.57 / 10.28
    assert step_tokens(seq=5, micro_batch=1, tp=2).tokens == 5


def test_padding_gives_two_rates():
    t = step_tokens(seq=100, global_batch=4, padding_ratio=0.25)
    assert t.per_s(2.0) == 200
    assert t.useful_per_s(2.0) == 150


@pytest.mark.parametrize(
    "bad",
    [
        {"seq": 8},
        {"seq": 8, "micro_batch": 1, "global_batch": 1},
        {"seq": 0, "micro_batch": 1},
        {"seq": 8, "micro_batch": -1},
        {"seq": 8, "global_batch": 3, "dp": 2},
        {"seq": 8, "micro_batch": 1, "tp": 0},
        {"seq": 8, "micro_batch": 1, "padding_ratio": 1.0},
    ],
)
def test_bookkeeping_that_cannot_be(bad):
    with pytest.raises(UsageError):
        step_tokens(**bad)


def test_a_rate_needs_a_time():
    with pytest.raises(UsageError):
        step_tokens(seq=8, micro_batch=1).per_s(0.0)
