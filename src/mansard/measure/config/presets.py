"""Dimensions of models, by the published suite's preset names or from a `config.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_FIELDS = (
    "layers", "seq_len", "attn_type", "num_q_heads", "num_kv_heads", "head_dim", "ffn_type", "model_dim",
    "shared_ffn_dim", "routed_ffn_dim", "num_experts", "experts_activated",
)  # fmt: skip

# Source: the published suite's model_configs.py (6a306a8).
_ROWS: dict[str, tuple[Any, ...]] = {
    "LLM-36B": (60, 8192, "MHA", 56, 56, 128, "SwiGLU", 7168, 2048, 2048, 256, 8),
    "LLM-100B": (96, 16384, "GQA", 64, 8, 128, "SwiGLU", 8192, 2048, 2048, 512, 16),
    "LLM-200B": (80, 16384, "GQA", 128, 8, 128, "SwiGLU", 16384, 4096, 4096, 256, 8),
    "LLM-400B": (96, 16384, "GQA", 128, 8, 128, "SwiGLU", 16384, 4096, 4096, 512, 16),
}

PRESETS: dict[str, dict[str, Any]] = {name: dict(zip(_FIELDS, row, strict=True)) for name, row in _ROWS.items()}

# Keys of a config.json that mean a preset field, as Hugging Face writes them; the first that is there counts.
_CONFIG_KEYS: dict[str, tuple[str, ...]] = {
    "layers": ("num_hidden_layers", "n_layer", "num_layers"),
    "num_q_heads": ("num_attention_heads", "n_head", "num_heads"),
    "num_kv_heads": ("num_key_value_heads",),
    "head_dim": ("head_dim",),
    "model_dim": ("hidden_size", "n_embd", "d_model"),
    "ffn_dim": ("intermediate_size", "n_inner", "d_ff"),
    "routed_ffn_dim": ("moe_intermediate_size",),
    "num_experts": ("num_local_experts", "num_experts", "n_routed_experts"),
    "experts_activated": ("num_experts_per_tok", "num_experts_per_token"),
    "vocab_size": ("vocab_size",),
}

# Parameters of benchmarks that are a preset field under another name. `dim` is the width of an element-wise
# operator; the suite's own study of LLM-200B sets it to model_dim.
_ALSO_CALLED: dict[str, tuple[str, ...]] = {
    "model_dim": ("dim", "hidden_size", "d_model"),
    "num_q_heads": ("heads", "num_heads", "q_heads"),
    "num_kv_heads": ("kv_heads",),
    "experts_activated": ("top_k",),
    "head_dim": ("qk_head_dim", "v_head_dim"),
    "seq_len": ("q_seq_len", "kv_seq_len"),
}


class PresetError(ValueError):
    """A model that is not known, or a config.json that cannot be read."""


def preset(name: str, folder: Path | None = None) -> dict[str, Any]:
    """Return the dimensions of a model by preset name, or from the `config.json` at a path.

    Nothing is guessed: what a `config.json` does not say is not in the result.

    Args:
        name: `LLM-36B`, `LLM-100B`, `LLM-200B`, `LLM-400B`, or a path that ends in `.json`.
        folder: Where a relative path starts.

    Raises:
        PresetError: there is no such preset, or the file is not a model's configuration.

    >>> preset("LLM-100B")["num_kv_heads"], preset("LLM-100B")["model_dim"]
    (8, 8192)
    """
    if name in PRESETS:
        return dict(PRESETS[name])
    if not name.endswith(".json"):
        raise PresetError(f"unknown model {name!r}; known: {', '.join(PRESETS)}, or the path of a config.json")
    path = Path(name).expanduser()
    tried = [path] if path.is_absolute() or folder is None else [folder / path, path]
    found = next((p for p in tried if p.is_file()), None)
    if found is None:
        raise PresetError(f"no file {' or '.join(str(p) for p in tried)}")
    try:
        document = json.loads(found.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PresetError(f"cannot read {found}: {error}") from error
    if not isinstance(document, dict):
        raise PresetError(f"{found} is not a table of a model's dimensions")
    nested = document.get("text_config")
    fields = from_config_json({**document, **nested} if isinstance(nested, dict) else document)
    if not fields:
        raise PresetError(f"{found} has none of {', '.join(k for keys in _CONFIG_KEYS.values() for k in keys)}")
    return fields


def from_config_json(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the preset fields that a `config.json` states.

    >>> from_config_json({"hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8})
    {'num_q_heads': 32, 'num_kv_heads': 8, 'model_dim': 4096}
    """
    found: dict[str, Any] = {}
    for field, keys in _CONFIG_KEYS.items():
        value = next((document[key] for key in keys if isinstance(document.get(key), int)), None)
        if value is not None and not isinstance(value, bool):
            found[field] = value
    return found


def as_parameters(fields: Mapping[str, Any]) -> dict[str, tuple[Any, str]]:
    """Return `fields` under every parameter name they go by: name to (value, field).

    >>> as_parameters({"model_dim": 16384})["dim"]
    (16384, 'model_dim')
    """
    out = {name: (value, name) for name, value in fields.items()}
    for field, names in _ALSO_CALLED.items():
        if field in fields:
            for name in names:
                out.setdefault(name, (fields[field], field))
    return out
