"""Public runs: MFU recomputed from tokens per second, and no run faster than its ceiling. See docs/measured_runs.md."""

from __future__ import annotations

import csv
import re
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

from mansard.core import is_known
from mansard.predict.calibration import SHARES
from mansard.predict.estimate import Request, estimate
from mansard.predict.machines import load_machine
from mansard.workload.conventions import convention_table
from mansard.workload.model.load import load_model
from mansard.workload.parallel import Plan

#: Configuration of each model of the rows, by the start of its normalised name.
CONFIGS = {
    "deepseekv3": "deepseek-ai--DeepSeek-V3", "gptoss120b": "openai--gpt-oss-120b", "qwen330ba3b": "Qwen--Qwen3-30B-A3B",
    "qwen3235ba22b": "Qwen--Qwen3-235B-A22B", "llama31405b": "meta-llama--Meta-Llama-3.1-405B",
    "llama370b": "meta-llama--Meta-Llama-3.1-70B", "llama3170b": "meta-llama--Meta-Llama-3.1-70B",
    "llama38b": "meta-llama--Meta-Llama-3.1-8B", "llama318b": "meta-llama--Meta-Llama-3.1-8B",
    "mixtral8x7b": "mistralai--Mixtral-8x7B-v0.1",
}  # fmt: skip
MACHINES = {
    "DGX-GB200": "gb200", "DGX-GB300": "gb300", "DGX-H100": "h100-sxm", "h100_80gb": "h100-sxm", "h100_sxm": "h100-sxm",
    "DGX-B200": "b200", "b200_sxm": "b200", "DGX-B300": "b300", "b300_sxm": "b300", "gb200": "gb200", "h200_sxm": "h200",
    "a100_80gb": "a100-sxm-80gb", "a100_40gb": "a100-sxm-40gb", "H200 SXM": "h200", "TPU7x Ironwood": "tpu-v7x",
    "TPU v6e (Trillium)": "tpu-v6e", "TPU v6e": "tpu-v6e", "TPU v5p": "tpu-v5p", "3090 24GB": "rtx-3090",
    "4090 24GB": "rtx-4090", "4080 16GB": "rtx-4080", "RTX A6000 48GB": "rtx-a6000", "RTX 6000 Ada 48GB": "rtx-6000-ada",
    "A40 48GB": "a40", "L40S 48GB": "l40s", "A100 PCIe 80GB": "a100-pcie-80gb", "A100 SXM 80GB": "a100-sxm-80gb",
    "H100 PCIe 80GB": "h100-pcie", "M1 Max 32-Core GPU 64GB": "apple-m1-max-32c",
    "M2 Ultra 76-Core GPU 192GB": "apple-m2-ultra-76c", "M3 Max 40-Core GPU 64GB": "apple-m3-max-40c",
    "A100-80GB SXM 330W (hybrid cube mesh)": "a100-sxm-80gb",
}  # fmt: skip
#: Rows whose figures are of another unit than one device of the runtime: a TPU7x chip is two devices.
DEVICES_PER_ROW = {"TPU7x Ironwood": 2}
#: Rows that docs/measured_runs.md explains: their own TFLOP/s and tokens/s do not belong together.
EXPLAINED = {"296", "300", "301", "287", "288"}


def _rows(shared: Path) -> list[dict[str, str]]:
    with (shared / "data" / "measured_llm_runs.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _normal(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower().split("(")[0].replace("-maxtext", ""))


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


@lru_cache(maxsize=64)
def _model(shared: Path, name: str, notes: str, seq: int):
    if name.startswith("MPT"):
        # MPT of llm-foundry has the matrices, biases and norms of GPT-2; the parameter counts agree to the last one.
        d = dict(part.split("=") for part in notes.split(";")[:3])
        return load_model({
            "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": int(d["d_model"]), "n_layer": int(d["n_layers"]),
            "n_head": int(d["n_heads"]), "vocab_size": 50368, "n_positions": seq, "n_inner": None, "activation_function": "gelu",
            "torch_dtype": "bfloat16",
        })  # fmt: skip
    if _normal(name) == "llama270b":
        return load_model({
            "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 8192, "num_hidden_layers": 80,
            "num_attention_heads": 64, "num_key_value_heads": 8, "intermediate_size": 28672, "vocab_size": 32000,
            "hidden_act": "silu", "tie_word_embeddings": False, "torch_dtype": "bfloat16", "max_position_embeddings": 4096,
        })  # fmt: skip
    config = CONFIGS.get(_normal(name))
    return None if config is None else load_model(shared / "data" / "configs" / f"{config}_config.json")


@lru_cache(maxsize=64)
def _table(shared: Path, name: str, notes: str, seq: int):
    return convention_table(_model(shared, name, notes, seq), seq=seq)


@lru_cache(maxsize=64)
def _machine(name: str):
    return load_machine(name)


def _narrow(precision: str) -> str | None:
    p = precision.lower()
    if "nvfp4" in p or p == "fp4":
        return "fp4"
    return "fp8" if any(w in p for w in ("fp8", "float8", "mxfp8")) else None


def _stated(row: dict[str, str]) -> str | None:
    """The convention that a row states, by our names; None where it states none."""
    text = row["attn_convention"]
    if text.startswith("full (12"):
        return "6N_total+full"
    if text.startswith("HALF, but 2-matrix"):
        return "two_matrix_mlp"
    if text.startswith(("HALF", "causal halved")):
        with_mtp = _normal(row["model"]) == "deepseekv3" and "DGX" in row["hardware"] and "w/o" not in row["model"]
        return "causal_mtp" if with_mtp else "causal"
    if text.startswith(("FULL", "mixed")):
        return "full"
    return None


def _seq(row: dict[str, str]) -> int:
    # The Trillium table states no sequence length; its Llama-3.1 recipes train 8192 tokens, Llama-2 4096.
    return int(row["seq_len_or_prompt"] or (4096 if "Llama2" in row["model"] else 8192))


def test_mfu_of_every_row_with_a_stated_convention(shared):
    checked = 0
    worst = 0.0
    for row in _rows(shared):
        rate, stated = _number(row["tok_s_per_device"]), _stated(row)
        if rate is None or stated is None or row["id"] in EXPLAINED or row["model"].startswith("wan"):
            continue
        seq = _seq(row)
        if _model(shared, row["model"], row["arch_notes"], seq) is None:
            raise AssertionError(f"row {row['id']}: no configuration for {row['model']}")
        flop = _table(shared, row["model"], row["arch_notes"], seq).flop_per_token[stated]
        machine = _machine(MACHINES[row["hardware"]])
        # llm-foundry divides its fp8 rows by the fp8 peak, Megatron-Bridge and tpu-recipes state no MFU.
        dtype = {"fp8": "f8_e4m3", "fp4": "f4_e2m1", None: "bf16"}[_narrow(row["precision"])]
        ceiling = machine.ceilings.peak(dtype, scope=machine.scope)
        assert is_known(ceiling), (row["hardware"], dtype)
        peak = ceiling.value * DEVICES_PER_ROW.get(row["hardware"], 1)
        ours = flop * rate / peak
        reported = _number(row["mfu_reported_pct"])
        theirs = (
            reported / 100 if reported is not None else (_number(row["tflops_per_device_reported"]) or 0) * 1e12 / peak
        )
        if not theirs:
            continue
        worst = max(worst, abs(ours - theirs))
        assert ours == pytest.approx(theirs, abs=0.005), (row["id"], row["model"], ours, theirs)
        checked += 1
    # 121 of llm-foundry, 3 of MaxText, and the rows of Megatron-Bridge and tpu-recipes that name a convention
    assert checked >= 260
    assert worst < 0.005


def test_parameter_counts_of_llm_foundry(shared):
    for row in _rows(shared):
        if row["model"].startswith("MPT"):
            seq = int(row["seq_len_or_prompt"])
            total = _table(shared, row["model"], row["arch_notes"], seq).flop_per_token["6N_total"] / 6
            assert total == float(row["n_params_total"]), row["id"]


def _training_share(shared: Path, row: dict[str, str]) -> float | None:
    rate = _number(row["tok_s_per_device"])
    model = _model(shared, row["model"], row["arch_notes"], _seq(row)) if rate is not None else None
    if rate is None or model is None or row["hardware"] not in MACHINES or not row["n_devices"].isdigit():
        return None
    per_row = DEVICES_PER_ROW.get(row["hardware"], 1)
    count = int(row["n_devices"]) * per_row
    batch = int(row["global_batch"]) if row["global_batch"].isdigit() else 0
    narrow = _narrow(row["precision"])
    lora = 16 if "LoRA" in row["kind"] else None
    from mansard.workload.training import Recipe

    request = Request(
        phase="train", seq=_seq(row), micro_batch=max(1, batch // count), plan=Plan(dp=count, zero=3), dtype="bf16",
        weights=narrow or "bf16", activations=narrow, recipe=Recipe(lora_rank=lora),
    )  # fmt: skip
    result = estimate(model, request, _machine(MACHINES[row["hardware"]]))
    assert is_known(result.tokens_per_s)
    return rate * int(row["n_devices"]) / result.tokens_per_s


def _stream_share(shared: Path, row: dict[str, str]) -> float | None:
    """Decode and prefill of one stream in 16 bits, layers or matrices spread over the devices."""
    name, _, many = row["hardware"].partition(" * ")
    config = {"Llama-3-8B": "llama318b", "Llama-3-70B": "llama3170b", "Llama-3.1-70B": "llama3170b"}.get(row["model"])
    if config is None or name not in MACHINES or row["precision"] not in ("F16", "bf16"):
        return None
    model = load_model(shared / "data" / "configs" / f"{CONFIGS[config]}_config.json")
    count = max(int(many or 1), int(row["n_devices"] or 1))
    tensor = "gpt-fast" in row["source"]
    plan = Plan(tp=count) if tensor else Plan(pp=count)
    where = {"phase": "decode", "context": 1} if row["kind"] == "infer-decode" else {"phase": "prefill", "seq": 1024}
    request = Request(**where, plan=plan, dtype="f16", weights="f16")
    result = estimate(model, request, _machine(MACHINES[name]))
    assert is_known(result.tokens_per_s)
    # In a prefill, several batches fill the pipeline.
    at_once = 1 if row["kind"] == "infer-decode" or tensor else count
    return float(row["value"]) / (result.tokens_per_s * at_once)


def _serving_share(shared: Path, row: dict[str, str]) -> float | None:
    """Time per token of a serving engine, at the offered concurrency and the shortest context."""
    config = {
        "Qwen/Qwen3-235B-A22B-FP8": "Qwen--Qwen3-235B-A22B-FP8", "Qwen/Qwen3-32B": "Qwen--Qwen3-32B",
        "MiniMaxAI/MiniMax-M2.5": "MiniMaxAI--MiniMax-M2.5",
    }[row["model"]]  # fmt: skip
    found = re.match(r"TP(\d+) PP(\d+) ADP(\d*) moeTP(\d+) moeEP(\d+)", row["parallelism"])
    assert found is not None
    tp, pp, dp, _, ep = (max(1, int(text or 1)) for text in found.groups())
    batch = int(row["global_batch"])
    if batch % dp:
        return None
    weights = {"fp8": "fp8", "fp4": "fp4", "": "fp8"}[row["precision"]]
    request = Request(
        phase="decode", batch=batch, context=int(row["seq_len_or_prompt"]), plan=Plan(tp=tp, pp=pp, dp=dp, ep=ep),
        weights=weights, activations=weights, dtype="bf16", kv="fp8",
    )  # fmt: skip
    model = load_model(shared / "data" / "configs" / f"{config}_config.json")
    result = estimate(model, request, _machine(MACHINES[row["hardware"]]))
    time_s = result.bound.time_s
    assert is_known(time_s)
    return time_s * 1e3 / float(row["tpot_ms"])


@pytest.fixture(scope="module")
def shares(shared):
    """Least time over measured time of every row that can be bounded, by kind."""
    out: dict[str, list[tuple[float, str]]] = {
        "train": [],
        "stream_decode": [],
        "stream_prefill": [],
        "serving_decode": [],
    }
    for row in _rows(shared):
        kind = row["kind"]
        if kind == "train" or kind.startswith("finetune"):
            key, share = "train", _training_share(shared, row)
        elif kind in ("infer-decode", "infer-prefill"):
            key, share = "stream_" + kind.removeprefix("infer-"), _stream_share(shared, row)
        elif kind == "serve":
            key, share = "serving_decode", _serving_share(shared, row)
        else:
            continue
        if share is not None:
            out[key].append((share, row["id"]))
    return out


def test_no_run_is_faster_than_its_ceiling(shares):
    counts = {key: len(rows) for key, rows in shares.items()}
    assert counts["train"] >= 270
    assert counts["serving_decode"] >= 140
    assert counts["stream_decode"] >= 28
    for key, rows in shares.items():
        # 3 % is the uncertainty that every share is allowed.
        above = [(round(share, 3), row) for share, row in rows if share > 1.03]
        assert not above, (key, above)


def test_the_expectations_are_those_of_these_runs(shares):
    for key in ("train", "serving_decode", "stream_decode"):
        values = np.array([share for share, _ in shares[key]])
        assert SHARES[key].count == pytest.approx(len(values), abs=2)
        assert SHARES[key].median == pytest.approx(np.median(values), abs=0.01)
        assert SHARES[key].low == pytest.approx(np.quantile(values, 0.1), abs=0.01)
