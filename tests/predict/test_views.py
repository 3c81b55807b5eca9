"""Utilisation, serving latencies, speculation and conventions, against cases of public reports."""

from __future__ import annotations

import pytest

from mansard.core import Implausible, Unknown
from mansard.core.errors import UndecidedError, UsageError
from mansard.predict.serving import request_latency
from mansard.predict.speculation import expected_tokens, speedup
from mansard.predict.utilisation import six_nd, utilisation
from mansard.workload.conventions import convention_table, detect
from mansard.workload.parallel import all_gather_bytes, ring_all_reduce_bytes
from mansard.workload.training import matmul_train_flop_per_token


def test_recomputation_never_raises_mfu():
    # D14: 6 * 7e9 * 3000 / 312e12, and 8 * ...
    u = utilisation(model_flop=6 * 7e9 * 3000, executed_flop=8 * 7e9 * 3000, wall_s=1.0, peak_flop_per_s=312e12)
    assert u.mfu_ratio == pytest.approx(0.40385, rel=1e-4)
    assert u.hfu_ratio == pytest.approx(0.53846, rel=1e-4)


def test_adapters():
    # D15: 4 * 70553706496 + 6 * 175636480; of 6 * both 0.66749
    flop = matmul_train_flop_per_token(frozen=70_553_706_496, trained=175_636_480)
    assert flop == 283_268_644_864
    assert flop / matmul_train_flop_per_token(trained=70_553_706_496 + 175_636_480) == pytest.approx(0.66749, rel=1e-4)


def test_above_the_peak_is_implausible_and_keeps_the_rate():
    # D08: 989e12 / 0.270862 = 3651 TFLOP/s, 3.69 times the peak
    u = utilisation(model_flop=989e12, wall_s=0.270862, peak_flop_per_s=989e12)
    assert isinstance(u.mfu_ratio, Implausible)
    assert u.mfu_ratio.value == pytest.approx(3.692, rel=1e-3)
    assert u.achieved_flop_per_s / 1e12 == pytest.approx(3651.3, rel=1e-4)
    for suspect in ("total vs rate", "wrong region", "wrong peak", "wrong device count"):
        assert any(suspect in s for s in u.mfu_ratio.suspects)


def test_an_unknown_peak_leaves_the_rate():
    u = utilisation(model_flop=275.6e12, wall_s=1.0, peak_flop_per_s=Unknown("not in the table", ("--peak",)))
    assert isinstance(u.mfu_ratio, Unknown)
    assert u.achieved_flop_per_s == 275.6e12
    # D02: 275.6 / 2250
    assert utilisation(model_flop=275.6e12, wall_s=1.0, peak_flop_per_s=2250e12).mfu_ratio == pytest.approx(
        0.12249, rel=1e-4
    )


@pytest.mark.parametrize("bad", [{"wall_s": 0.0}, {"devices": 0}, {"model_flop": -1.0}, {"peak_flop_per_s": 0.0}])
def test_utilisation_that_cannot_be(bad):
    with pytest.raises(UsageError):
        utilisation(**{"model_flop": 1.0, "wall_s": 1.0, "peak_flop_per_s": 1.0} | bad)


def test_six_nd_states_its_error():
    # 6 * 8e9 * 8192 = 393.2e12
    s = six_nd(params=8e9, tokens=8192, counted_flop=51.471e9 * 8192)
    assert s.flop == 393_216_000_000_000
    assert s.error_ratio == pytest.approx(393.216 / 421.65 - 1, abs=1e-4)
    assert "attention" in s.why


def test_serving_latencies_by_definition():
    # X01
    r = request_latency([(0.9, 0), (2.2, 1), (2.22, 1), (2.26, 3)])
    assert (r.ttft_s, r.tokens, r.empty_chunks) == (2.2, 5, 1)
    assert r.tpot_s == pytest.approx(0.015)
    assert r.itl_s == pytest.approx([0.02, 0.01333, 0.01333, 0.01333], abs=1e-5)
    # the other definition, 2.26 / 5
    assert r.latency_per_token_s == pytest.approx(0.452)
    assert isinstance(request_latency([(1.0, 1)]).tpot_s, Unknown)
    # Two tokens in the first chunk: one gap of zero length; n - 1 gaps in all.
    assert request_latency([(1.0, 2), (3.0, 1)]).itl_s == (0.0, 2.0)
    with pytest.raises(UndecidedError):
        request_latency([(0.5, 0)])
    with pytest.raises(UsageError):
        request_latency([(2.0, 1), (1.0, 1)])


def test_speculation():
    # 1 + 0.7 + 0.49 + 0.343
    assert expected_tokens(drafted=3, acceptance=0.7) == pytest.approx(2.533)
    assert speedup(plain_s=1.0, verify_s=1.2, draft_s=0.9, drafted=3, acceptance=0.2) < 1.0
    for bad in (1.5, -0.1):
        with pytest.raises(UsageError):
            expected_tokens(drafted=3, acceptance=bad)


def test_messages_of_collectives():
    # D32: 2 * 31/32 * 2,097,152 = 4,063,232; an all-gather of 1 GiB over 8 sends 7/8 of it
    assert ring_all_reduce_bytes(2_097_152, 32) == 4_063_232
    assert all_gather_bytes(2**30, 8) / 4e-3 == pytest.approx(234.88e9, rel=1e-4)


def test_tensor_parallel_decode_is_bound_by_latency():
    # D25: from 0.3923 ms at 10240 B and 0.3989 ms at 655360 B
    slope = (655_360 - 10_240) / ((0.3989 - 0.3923) * 1e-3)
    alpha = 0.3923e-3 - 10_240 / slope
    assert slope == pytest.approx(97.7e9, rel=1e-3)
    assert alpha == pytest.approx(0.39220e-3, rel=1e-3)
    total = 129 * 0.3923e-3
    assert total == pytest.approx(50.61e-3, rel=1e-3)
    assert total / 108e-3 == pytest.approx(0.4686, rel=1e-3)
    assert 1 / (108e-3 - total) == pytest.approx(17.42, rel=1e-3)


# --- conventions ---------------------------------------------------------------------------------------------------

GFLOP = 1e9


@pytest.fixture(scope="module")
def tables(shared):
    from mansard.workload.model.load import load_model

    def of(name, seq):
        return convention_table(load_model(shared / "data" / "configs" / f"{name}_config.json"), seq=seq)

    return of


@pytest.mark.parametrize(
    ("name", "seq", "convention", "gflop"),
    [
        # workloads reference, section 11: calculated and found in public logs
        ("meta-llama--Meta-Llama-3.1-8B", 8192, "causal", 51.47),
        ("meta-llama--Meta-Llama-3.1-70B", 8192, "causal", 449.22),
        ("meta-llama--Meta-Llama-3.1-405B", 8192, "causal", 2523.96),
        ("meta-llama--Meta-Llama-3.1-8B", 8192, "full", 57.91),
        ("meta-llama--Meta-Llama-3.1-70B", 8192, "full", 481.43),
        ("meta-llama--Meta-Llama-3.1-405B", 8192, "full", 2625.4),
        ("meta-llama--Meta-Llama-3.1-70B", 131072, "causal", 932.4),
        ("meta-llama--Meta-Llama-3.1-70B", 131072, "full", 1448.0),
        ("deepseek-ai--DeepSeek-V3", 4096, "causal", 250.45),
        ("deepseek-ai--DeepSeek-V3", 4096, "causal_mtp", 260.64),
        ("deepseek-ai--DeepSeek-V3", 4096, "full", 281.15),
        ("Qwen--Qwen3-235B-A22B", 4096, "causal", 148.33),
        ("Qwen--Qwen3-30B-A3B", 4096, "causal", 23.08),
        ("openai--gpt-oss-120b", 8192, "causal", 34.52),
        ("openai--gpt-oss-120b", 4096, "causal", 32.71),
        ("openai--gpt-oss-120b", 4096, "two_matrix_mlp", 27.164),
        ("openai--gpt-oss-120b", 8192, "two_matrix_mlp", 30.788),
        ("meta-llama--Meta-Llama-3.1-8B", 8192, "6N_total", 48.18),
    ],
)
def test_gflop_per_token_of_public_logs(tables, name, seq, convention, gflop):
    assert tables(name, seq).flop_per_token[convention] / GFLOP == pytest.approx(gflop, rel=3e-4)


@pytest.mark.parametrize(
    ("name", "seq", "gflop", "convention"),
    [
        ("meta-llama--Meta-Llama-3.1-70B", 8192, 481.4, "full"),  # tpu-recipes, Trillium
        ("meta-llama--Meta-Llama-3.1-70B", 8192, 449.2, "causal"),  # the same repository, Ironwood
        ("deepseek-ai--DeepSeek-V3", 4096, 281.15, "full"),  # v5p
        ("meta-llama--Meta-Llama-3.1-405B", 8192, 2524.0, "causal"),  # v5p
        ("openai--gpt-oss-120b", 4096, 27.16, "two_matrix_mlp"),  # containers 25.11 to 26.04.01
        ("openai--gpt-oss-120b", 4096, 32.61, "causal"),  # 26.06
        ("deepseek-ai--DeepSeek-V3", 4096, 260.02, "causal_mtp"),  # Megatron-Bridge, without router
        ("meta-llama--Meta-Llama-3.1-8B", 8192, 57.9, "full"),  # torchtitan
    ],
)
def test_the_detector_names_the_convention(tables, name, seq, gflop, convention):
    tokens_per_s = 1234.5
    found = detect(tables(name, seq), flop_per_s=gflop * GFLOP * tokens_per_s, tokens_per_s=tokens_per_s)
    assert found.convention == convention
    assert found.flop_per_token == pytest.approx(gflop * GFLOP)


def test_the_detector_abstains_and_converts(tables):
    table = tables("meta-llama--Meta-Llama-3.1-70B", 8192)
    found = detect(table, flop_per_s=439.3e9, tokens_per_s=1.0)
    assert isinstance(found.convention, Unknown)
    assert "none of the known counts" in found.convention.reason
    # 449.22 / 481.43 of an MFU of 50 %
    assert table.convert(0.5, source="full", target="causal") == pytest.approx(0.5 * 449.22 / 481.43, rel=1e-4)
    with pytest.raises(UsageError):
        table.convert(0.5, source="full", target="causal_mtp")
    with pytest.raises(UsageError):
        detect(table, flop_per_s=0.0, tokens_per_s=1.0)
