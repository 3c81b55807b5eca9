"""`mansard estimate` as people type it."""

from __future__ import annotations

import csv
import json

import pytest

from mansard.cli.main import main

KEYS = {"schema", "tool_version", "created", "environment", "model", "phase", "totals", "weights_once", "kernels", "memory",
        "convention", "assumed", "prediction"}  # fmt: skip


@pytest.fixture
def mansard(capsys):
    def run(*args):
        with pytest.raises(SystemExit) as stop:
            main(["estimate", *map(str, args)])
        out = capsys.readouterr()
        return stop.value.code, out.out, out.err

    return run


def test_document_has_the_agreed_keys(mansard):
    code, out, _ = mansard(
        "qwen3-30b-a3b", "--on", "gh200-96gb", "--phase", "decode", "--batch", 1, "--context", 4096, "--json"
    )
    document = json.loads(out)
    assert code == 0
    assert document.keys() >= KEYS
    assert document["schema"] == "estimate/1"
    model = document["model"]
    assert (model["params"], model["active_params"]) == (30_532_122_624, 3_353_032_704)
    assert (model["matmul_params"], model["matmul_params_active"]) == (30_220_746_752, 3_041_656_832)
    totals = document["totals"]
    assert totals["bytes"] == pytest.approx(6.486e9, rel=1e-3)
    assert totals["time_bound_s"] == pytest.approx(1.6215e-3, rel=1e-3)
    assert totals["tokens_per_s"] == pytest.approx(616.7, rel=1e-3)
    assert totals["bound"] == "memory"
    assert {"name", "count", "flop", "bytes", "time_bound_s", "bound"} <= document["kernels"][0].keys()
    memory = document["memory"]
    assert memory["kv_bytes_per_token"] == 98_304
    assert memory["kv_cache_bytes"] == 98_304 * 4096
    assert {"weight_bytes", "activation_bytes", "optimizer_bytes"} <= memory.keys()
    assert document["convention"] == "causal"
    assert {"low_s", "expected_s", "high_s"} <= document["prediction"].keys()


def test_text_says_what_was_taken_for_granted(mansard):
    code, out, err = mansard("llama-3.1-8b", "--on", "h100-sxm", "--context", 4096)
    assert code == 0
    assert err == ""
    assert "memory-bound" in out
    assert "weights once" in out
    assert "taken for granted" in out
    assert "--launch-cost" in out


def test_without_a_machine_there_are_counts_and_no_time(mansard):
    code, out, _ = mansard("llama-3.1-8b", "--phase", "train", "--seq", 8192, "--json")
    document = json.loads(out)
    assert code == 0
    assert document["totals"]["flop_per_token"] == pytest.approx(51.471e9, rel=1e-5)
    assert document["totals"]["time_bound_s"]["unknown"] == "no machine was given"
    assert document["memory"]["optimizer_bytes"] == 12 * 8_030_261_248
    assert document["views"]["six_nd"]["error_ratio"] < 0


def test_without_a_phase_the_model_is_described(mansard):
    code, out, _ = mansard("llama-3.1-8b")
    assert code == 0
    assert "8,030,261,248" in out
    assert "--context" in out


def test_a_sweep_is_a_table_and_a_failed_point_is_kept(mansard, tmp_path):
    code, out, _ = mansard(
        "llama-3.1-8b", "--on", "h200", "--context", 1024, "--sweep", "batch=1,8", "--sweep", "tp=1,3", "--json"
    )
    document = json.loads(out)
    assert code == 1
    assert [(r["batch"], r["tp"]) for r in document["rows"]] == [(1, 1), (1, 3), (8, 1), (8, 3)]
    assert document["failed"] == 2
    assert document["rows"][1]["error"]["code"] == "infeasible"
    assert document["rows"][0]["tokens_per_s"] < document["rows"][2]["tokens_per_s"]
    target = tmp_path / "grid.csv"
    code, _, err = mansard("llama-3.1-8b", "--on", "h200", "--sweep", "context=1,2", "-o", target)
    assert code == 0
    assert "wrote" in err
    rows = list(csv.DictReader(target.open()))
    assert [r["context"] for r in rows] == ["1", "2"]
    assert float(rows[0]["time_bound_s"]) > 0
    code, _, err = mansard("llama-3.1-8b", "--on", "h200", "--sweep", "context=1,2", "-o", target)
    assert code == 2
    assert "exists" in err


def test_machines_can_be_swept(mansard):
    code, out, _ = mansard("llama-3.1-8b", "--context", 1024, "--sweep", "on=h100-sxm,h200")
    assert code == 0
    assert "h100-sxm" in out
    assert "h200" in out


def test_measured_ceilings_are_a_machine(mansard, tmp_path):
    from mansard.core.document import dumps, header

    rows = [
        {"resource": {"area": "memory", "level": "dram", "mix": "read"}, "value": 40e9, "unit": "B/s", "kind": "measured",
         "scope": "node", "ci95": [39e9, 41e9]},
        {"resource": {"area": "compute", "dtype": "bf16", "accumulate": "f32", "engine": "matrix"}, "value": 1e12,
         "unit": "FLOP/s", "kind": "measured", "scope": "node"},
    ]  # fmt: skip
    levels = [{"level": "dram", "capacity_bytes": 64e9, "instances": 1}]
    path = tmp_path / "ceilings.json"
    path.write_text(dumps({**header("ceilings/1", {}), "ceilings": rows, "levels": levels}))
    code, out, _ = mansard("llama-3.1-8b", "--on", path, "--context", 1, "--json")
    document = json.loads(out)
    assert code == 0
    # 15.01 GB at 40 GB/s
    assert document["totals"]["time_bound_s"] == pytest.approx(15.01e9 / 40e9, rel=1e-3)
    assert document["receipt"]["scope"] == "node"
    assert document["receipt"]["ceilings"][0]["kind"] == "measured"


@pytest.mark.parametrize(
    ("args", "code", "word"),
    [
        (("no-such-model", "--context", 1), 2, "no model"),
        (("llama-3.1-8b", "--on", "h1000", "--context", 1), 2, "h1000"),
        (("llama-3.1-8b", "--on", "missing.json", "--context", 1), 4, "cannot read"),
        (("llama-3.1-8b", "--context", -5), 2, "context"),
        (("llama-3.1-8b", "--context", 8, "--batch", 0), 2, "batch"),
        (("llama-3.1-8b", "--context", 8, "--tp", 0), 2, "tp"),
        (("llama-3.1-8b", "--context", 8, "--tp", 5), 2, "5"),
        (("llama-3.1-8b", "--context", 8, "--kv", "fp9"), 2, "fp9"),
        (("llama-3.1-8b", "--context", 8, "--launch-cost", "3 parsec"), 2, "unit"),
        (("llama-3.1-8b", "--context", 8, "--sweep", "moon=1"), 2, "moon"),
        (("llama-3.1-8b", "--context", 8, "--sweep", "batch=1,x"), 2, "whole number"),
        (("llama-3.1-8b", "--phase", "train", "--context", 8), 2, "context"),
        (("llama-3.1-8b", "--contexts", "8", "--phase", "decode"), 2, "contexts"),
        (("llama-3.1-8b", "--contexts", "8:1", "--context", 8), 2, "context"),
        (("llama-3.1-8b", "--context", 8, "--measured-time", "0 s"), 2, "above zero"),
        (("llama-3.1-8b", "--context", 8, "--measured-tokens", 0), 2, "above zero"),
        (("llama-3.1-8b", "--context", 8, "--measured-tokens", 9, "--measured-time", "1 s"), 2, "the same"),
        (("llama-3.1-8b", "--measured-tokens", 9), 2, "phase"),
        (("llama-3.1-8b", "--context", 8, "--measured-tokens", 9, "--sweep", "batch=1,2"), 2, "--measured-tokens"),
        (("llama-3.1-8b", "--context", 8, "--measured-time", "1 s", "--sweep", "batch=1,2"), 2, "--measured-time"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(mansard, args, code, word):
    got, out, err = mansard(*args)
    assert got == code
    assert word in err
    assert "Traceback" not in err
    assert out == ""


def test_errors_are_json_with_json(mansard):
    code, out, _ = mansard("llama-3.1-8b", "--context", 8, "--tp", 5, "--json")
    assert code == 2
    assert json.loads(out)["error"]["code"] == "infeasible"


def test_every_configuration_estimates_or_says_why(shared, mansard):
    seen = 0
    for path in sorted((shared / "data" / "configs").glob("*_config.json")):
        if path.name.endswith("hf_quant_config.json"):
            continue
        code, out, err = mansard(path, "--on", "b200", "--phase", "prefill", "--seq", 512, "--dtype", "bf16", "--json",
                                 *(["--tower-tokens", "encoder=64"] if _has_encoder(path) else []))  # fmt: skip
        assert "Traceback" not in err
        document = json.loads(out)
        assert (code == 0) == ("totals" in document), (path.name, out[:300])
        seen += code == 0
    assert seen >= 52


def _has_encoder(path):
    return any(word in path.name for word in ("bart", "whisper", "t5"))


def test_the_convention_of_a_report(mansard):
    # tpu-recipes, Ironwood: 1207.05 TFLOP/s at 2686.98 token/s = 449.2 GFLOP per token
    step = ("llama-3.1-70b", "--phase", "train", "--seq", 8192)
    code, out, _ = mansard(*step, "--reported", "1207.05 TFLOP/s", "--reported-tokens", 2686.98, "--json")
    reported = json.loads(out)["views"]["reported"]
    assert code == 0
    assert reported["convention"] == "causal"
    assert reported["flop_per_token"] == pytest.approx(449.2e9, rel=1e-3)
    code, out, _ = mansard(*step, "--reported", "731 TFLOP/s", "--reported-tokens", 1664)
    assert "none of the known counts" in out
    assert mansard(*step, "--reported", "731 TFLOP/s")[0] == 2
    assert mansard("llama-3.1-70b", "--context", 1, "--reported", "731 TFLOP/s", "--reported-tokens", 1)[0] == 2


def test_sequences_that_fit(mansard):
    _, out, _ = mansard("llama-3.1-8b", "--on", "h100-sxm", "--context", 8192, "--batch", 8, "--json")
    memory = json.loads(out)["memory"]
    # (budget - 16.06 GB of weights) / (8192 * 131,072 B)
    free = memory["budget_bytes"] - memory["weight_bytes"] - memory["activation_bytes"]
    assert memory["sequences_that_fit"] == int(free / (8192 * 131_072))


def test_a_model_whose_blocks_are_not_fully_described_is_undecided(shared, mansard):
    config = shared / "data" / "configs" / "deepseek-ai--DeepSeek-V4-Pro_config.json"
    code, out, err = mansard(config, "--on", "b200", "--context", 1024, "--weights", "fp8")
    assert code == 3
    assert out == ""
    assert "Traceback" not in err
    assert "hint" in err


def test_utilisation_from_tokens_per_second_alone(mansard):
    # A fine-tuning of 70B on 16 A100: 2048 x 16 x 500 tokens in 13.5 h are 337.12 token/s of all 16 devices, and were called
    # 45.5 % MFU because one device stood below the work of 16 (Source: huggingface/blog, issue 1649).
    # Per token: 6 x 69,501,714,432 of the matrices + 12 x 80 layers x 8192 x 2049/2 keys = 417.010e9 + 8.057e9 = 425.067e9.
    # 425.067e9 x 337.12 = 143.30e12 FLOP/s; over 16 x 311.87e12 (108 SMs x 1024 x 2 x 1.41 GHz) that is 2.8718 %.
    args = (
        "llama-3.1-70b",
        "--on",
        "a100-sxm-40gb",
        "--phase",
        "train",
        "--seq",
        2048,
        "--batch",
        16,
        "--dp",
        16,
        "--zero",
        3,
    )
    rate = 2048 * 16 * 500 / (13.5 * 3600)
    measured = json.loads(mansard(*args, "--measured-tokens", rate, "--json")[1])["views"]["measured"]
    assert measured["mfu_ratio"] == pytest.approx(0.028718, rel=1e-4)
    assert measured["time_s"] == pytest.approx(97.2)  # 32,768 tokens of a step at that rate: 13.5 h / 500
    assert "337.1 token/s: MFU 2.9%" in " ".join(mansard(*args, "--measured-time", "97.2 s")[1].split())


def test_a_rate_of_decoding_counts_the_tokens_that_come_out(mansard):
    # 8 sequences emit 8 tokens a step: 700 token/s are steps of 8/700 s = 11.43 ms.
    args = ("llama-3.1-8b", "--on", "h100-sxm", "--context", 4096, "--batch", 8, "--measured-tokens", 700, "--json")
    assert json.loads(mansard(*args)[1])["views"]["measured"]["time_s"] == pytest.approx(8 / 700)


def test_a_cache_whose_windows_keep_every_token(mansard):
    # gpt-oss-120b: 18 full and 18 windowed (128) layers of 2 x 8 heads x 64 x 2 B = 2,048 B a token.
    # 32 sequences of 8192: windows kept 32 x 36,864 x (8192 + 128) = 9,814,671,360 B; every token kept
    # 32 x 36 x 2048 x 8192 = 19,327,352,832 B (Source: hf-mem, pull request 70: engines with one page size for all layers).
    args = ("gpt-oss-120b", "--on", "h100-sxm", "--batch", 32)
    memory = json.loads(mansard(*args, "--context", 8192, "--json")[1])["memory"]
    assert (memory["kv_cache_bytes"], memory["kv_cache_bytes_all_kept"]) == (9_814_671_360, 19_327_352_832)
    assert "holds a cache of 19.3 GB" in " ".join(mansard(*args, "--context", 8192)[1].split())
    assert "windowed layers" not in mansard(*args, "--context", 128)[1]


def test_what_has_no_expectation_says_why(mansard):
    # Turing has no bfloat16: what the products take is not known, so neither is what bounds the step.
    text = " ".join(mansard("llama-3.1-8b", "--on", "t4", "--context", 1024)[1].split())
    assert "undetermined at most" in text
    assert "expected unknown the bound is not whole: no bf16 matrix" in text
