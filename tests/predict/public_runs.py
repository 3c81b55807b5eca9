"""Public runs as rows of `mansard validate --runs`: which configuration, machine and plan each of them had."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

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


def rows_of(shared: Path) -> list[dict[str, str]]:
    with (shared / "data" / "measured_llm_runs.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def normal(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower().split("(")[0].replace("-maxtext", ""))


def number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def config_of(shared: Path, name: str, notes: str, seq: int) -> dict | Path | None:
    """Return the configuration of a row's model, or where it is; None where there is none."""
    if name.startswith("MPT"):
        # MPT of llm-foundry has the matrices, biases and norms of GPT-2; the parameter counts agree to the last one.
        d = dict(part.split("=") for part in notes.split(";")[:3])
        return {
            "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": int(d["d_model"]), "n_layer": int(d["n_layers"]),
            "n_head": int(d["n_heads"]), "vocab_size": 50368, "n_positions": seq, "n_inner": None, "activation_function": "gelu",
            "torch_dtype": "bfloat16",
        }  # fmt: skip
    if normal(name) == "llama270b":
        return {
            "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 8192, "num_hidden_layers": 80,
            "num_attention_heads": 64, "num_key_value_heads": 8, "intermediate_size": 28672, "vocab_size": 32000,
            "hidden_act": "silu", "tie_word_embeddings": False, "torch_dtype": "bfloat16", "max_position_embeddings": 4096,
        }  # fmt: skip
    config = CONFIGS.get(normal(name))
    return None if config is None else shared / "data" / "configs" / f"{config}_config.json"


def narrow(precision: str) -> str | None:
    p = precision.lower()
    if "nvfp4" in p or p == "fp4":
        return "fp4"
    return "fp8" if any(w in p for w in ("fp8", "float8", "mxfp8")) else None


def seq_of(row: dict[str, str]) -> int:
    # The Trillium table states no sequence length; its Llama-3.1 recipes train 8192 tokens, Llama-2 4096.
    return int(row["seq_len_or_prompt"] or (4096 if "Llama2" in row["model"] else 8192))


def write_runs(shared: Path, folder: Path) -> Path:
    """Write every run that can be bounded as `runs.csv` of `mansard validate --runs`, and return it."""
    from mansard.predict.recorded_runs import COLUMNS

    makers = {"train": training_row, "infer-decode": stream_row, "infer-prefill": stream_row, "serve": serving_row}
    path = folder / "runs.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for row in rows_of(shared):
            kind = "train" if row["kind"].startswith("finetune") else row["kind"]
            found = makers[kind](shared, row) if kind in makers else None
            if found is not None:
                writer.writerow({"name": row["id"], **found, "model": _kept(found["model"], folder)})
    return path


def _kept(config: dict | Path, folder: Path) -> str:
    if isinstance(config, Path):
        return str(config)
    name = "_".join(str(config[k]) for k in ("model_type", "n_embd", "n_layer", "n_positions") if k in config) + ".json"
    (folder / name).write_text(json.dumps(config), encoding="utf-8")
    return name


def training_row(shared: Path, row: dict[str, str]) -> dict | None:
    rate = number(row["tok_s_per_device"])
    config = config_of(shared, row["model"], row["arch_notes"], seq_of(row)) if rate is not None else None
    if rate is None or config is None or row["hardware"] not in MACHINES or not row["n_devices"].isdigit():
        return None
    count = int(row["n_devices"]) * DEVICES_PER_ROW.get(row["hardware"], 1)
    batch = int(row["global_batch"]) if row["global_batch"].isdigit() else 0
    few = narrow(row["precision"])
    return {
        "model": config, "on": MACHINES[row["hardware"]], "group": source_of(row), "phase": "train", "seq": seq_of(row),
        "micro_batch": max(1, batch // count), "dp": count, "zero": 3, "dtype": "bf16", "weights": few or "bf16",
        "activations": few or "", "lora_rank": 16 if "LoRA" in row["kind"] else "",
        "tokens_per_s": rate * int(row["n_devices"]),
    }  # fmt: skip


def stream_row(shared: Path, row: dict[str, str]) -> dict | None:
    """Decode and prefill of one stream in 16 bits, layers or matrices spread over the devices."""
    name, _, many = row["hardware"].partition(" * ")
    config = {"Llama-3-8B": "llama318b", "Llama-3-70B": "llama3170b", "Llama-3.1-70B": "llama3170b"}.get(row["model"])
    if config is None or name not in MACHINES or row["precision"] not in ("F16", "bf16"):
        return None
    count = max(int(many or 1), int(row["n_devices"] or 1))
    tensor = "gpt-fast" in row["source"]
    decode = row["kind"] == "infer-decode"
    return {
        "model": shared / "data" / "configs" / f"{CONFIGS[config]}_config.json", "on": MACHINES[name], "group": source_of(row),
        **({"phase": "decode", "context": 1} if decode else {"phase": "prefill", "seq": 1024}),
        **({"tp": count} if tensor else {"pp": count}), "dtype": "f16", "weights": "f16",
        # In a prefill, several batches fill the pipeline.
        "tokens_per_s": float(row["value"]) / (1 if decode or tensor else count),
    }  # fmt: skip


def serving_row(shared: Path, row: dict[str, str]) -> dict | None:
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
    return {
        "model": shared / "data" / "configs" / f"{config}_config.json", "on": MACHINES[row["hardware"]], "group": row["model"],
        "phase": "decode", "batch": batch, "context": int(row["seq_len_or_prompt"]), "tp": tp, "pp": pp, "dp": dp, "ep": ep,
        "weights": weights, "activations": weights, "dtype": "bf16", "kv": "fp8", "time_s": float(row["tpot_ms"]) / 1e3,
    }  # fmt: skip


def source_of(row: dict[str, str]) -> str:
    """Return the project whose log or table a row is from."""
    known = (
        "llm-foundry",
        "Megatron-Bridge",
        "tpu-recipes",
        "maxtext",
        "torchtitan",
        "gpt-fast",
        "llama.cpp",
        "GPU-Benchmarks",
    )
    return next((name for name in known if name.lower() in row["source"].lower()), row["source"][:40])
