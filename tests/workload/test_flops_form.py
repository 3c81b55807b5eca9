"""FLOP from dimensions: the worked numbers, the formulas and what is refused."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from mansard.cli.flops import command
from mansard.core.errors import UsageError
from mansard.workload.dimensions import operation_flop

DENSE = {"hidden_dim": 4096, "seq_len": 8192, "num_layers": 32, "ffn_dim": 16384}


def test_dense_decoder_by_parts():
    # 4 * 8192^2 * 4096, 6 * 8192 * 4096^2, 2 * 8192 * 4096^2, 4 * 8192 * 4096 * 16384, of one layer, forward
    result = operation_flop("full_model", **DENSE, multiplier=3)
    assert dict(result.parts) == {
        "attention": 1_099_511_627_776,
        "qkv_proj": 824_633_720_832,
        "output_proj": 274_877_906_944,
        "mlp": 2_199_023_255_552,
    }
    # (1.0995e12 + 8.2463e11 + 2.7488e11 + 2.1990e12) * 32 layers * 3
    assert result.flop == 422_212_465_065_984
    assert operation_flop("full_model", **DENSE).flop == 140_737_488_355_328


def test_same_results_as_nsys_ai_where_those_are_right():
    assert operation_flop("attention", hidden_dim=4096, seq_len=8192).flop == 1_099_511_627_776
    assert operation_flop("linear", M=8944, N=2816, K=1024).flop == 51_581_550_592
    full = operation_flop("full_model", hidden_dim=4096, seq_len=8192, num_layers=32, ffn_dim=14336)
    assert full.flop == 131_941_395_333_120
    assert full.flop == operation_flop("full_layer", hidden_dim=4096, seq_len=8192, num_layers=32, ffn_dim=14336).flop


def test_what_a_real_model_has_beyond_the_form():
    # Llama-3-8B, 8192 tokens: attention 4 s^2 h (or 2 s (s+1) h), q and o 2 s h^2 each, k and v 2 s h 1024 each,
    # three MLP matrices 6 s h f, head 2 s h V once.
    s, h, f, V, L = 8192, 4096, 14336, 128256, 32
    linear = L * (4 * s * h * h + 4 * s * h * 1024 + 6 * s * h * f) + 2 * s * h * V
    full = linear + L * 4 * s * s * h
    causal = linear + L * 2 * s * (s + 1) * h
    asked = {"hidden_dim": h, "seq_len": s, "num_layers": L, "ffn_dim": f, "gated": True, "heads": 32, "kv_heads": 8}
    got = operation_flop("full_model", **asked, vocab=V)
    assert got.flop == full
    assert got.flop == pytest.approx(1.5815e14, rel=1e-4)
    assert got.other_convention_flop == causal == pytest.approx(1.4056e14, rel=1e-4)
    assert operation_flop("full_model", **asked, vocab=V, causal=True).flop == causal


def test_multiplier_four_is_named_an_hfu_numerator():
    result = operation_flop("mlp", hidden_dim=8, seq_len=2, multiplier=4)
    assert result.flop == 4 * (4 * 2 * 8 * 32)
    assert "HFU" in result.numerator
    assert "partial" in result.numerator
    assert "MFU" in operation_flop("mlp", hidden_dim=8, seq_len=2, multiplier=3).numerator


def test_a_missing_ffn_dim_is_said():
    assert operation_flop("mlp", hidden_dim=8, seq_len=2).assumed == ("ffn_dim = 4 hidden_dim = 32",)
    assert operation_flop("mlp", hidden_dim=8, seq_len=2, ffn_dim=32).assumed == ()


@pytest.mark.parametrize(
    ("operation", "given"),
    [
        ("conv", {"hidden_dim": 8, "seq_len": 2}),
        ("mlp", {"hidden_dim": 8, "seq_len": 2, "ffn_dim": -5}),
        ("mlp", {"hidden_dim": 8, "seq_len": 2, "batch_size": -4}),
        ("mlp", {"hidden_dim": 8, "seq_len": 0}),
        ("mlp", {"hidden_dim": 8, "seq_len": 2, "multiplier": 7}),
        ("mlp", {"hidden_dim": 8, "seq_len": 2, "multiplier": 2}),
        ("mlp", {"hidden_dim": 8}),
        ("attention", {"hidden_dim": 8, "seq_len": 2, "M": 4}),
        ("attention", {"hidden_dim": 8, "seq_len": 2, "ffn_dim": 4}),
        ("mlp", {"hidden_dim": 8, "seq_len": 2, "causal": True}),
        ("linear", {"M": 1, "N": 2}),
        ("linear", {"M": 1, "N": 2, "K": 3, "hidden_dim": 4}),
        ("linear", {"M": 1, "N": 2, "K": 3, "num_layers": 2}),
        ("qkv_proj", {"hidden_dim": 8, "seq_len": 2, "heads": 3, "kv_heads": 2}),
        ("qkv_proj", {"hidden_dim": 8, "seq_len": 2, "heads": 4}),
    ],
)
def test_what_cannot_be_is_refused(operation, given):
    with pytest.raises(UsageError):
        operation_flop(operation, **given)


@given(st.integers(1, 500), st.integers(1, 500), st.integers(1, 40), st.integers(1, 9), st.sampled_from([1, 3, 4]))
def test_parts_add_up(h, s, layers, batch, multiplier):
    result = operation_flop(
        "full_model", hidden_dim=h, seq_len=s, num_layers=layers, batch_size=batch, multiplier=multiplier
    )
    assert result.flop == sum(result.parts.values()) * layers * batch * multiplier
    # (s + 1) / (2 s) of the full square is causal
    gap = 4 * s * s * h - 2 * s * (s + 1) * h
    assert result.flop - result.other_convention_flop == gap * layers * batch * multiplier


def _run(*args):
    return CliRunner().invoke(command, list(args), standalone_mode=False)


def test_verb_prints_one_document_with_the_agreed_keys():
    result = _run("full_model", "--hidden-dim", "4096", "--seq-len", "8192", "--num-layers", "32", "--ffn-dim", "16384",
                  "--multiplier", "3", "--json")  # fmt: skip
    document = json.loads(result.output)
    assert document["schema"] == "flops/1"
    assert document["flop"] == 422_212_465_065_984
    assert document["parts"]["mlp"] == 2_199_023_255_552
    assert "4 s^2 h" in document["formula"]
    assert document["convention"] == "full"


def test_verb_takes_names_with_underscores_and_says_the_other_convention():
    result = _run("attention", "--hidden_dim", "4", "--seq_len", "3")
    # 4 * 9 * 4 = 144; causal 2 * 3 * 4 * 4 = 96
    assert "144 FLOP" in result.output
    assert "96 FLOP" in result.output


def test_verb_refuses_with_a_usage_error():
    result = _run("mlp", "--hidden-dim", "-5", "--seq-len", "2")
    assert isinstance(result.exception, UsageError)
    assert result.exception.exit_code == 2
