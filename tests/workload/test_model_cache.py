"""Cache and state bytes: every kind of attention, under tensor parallelism, from records and from bare dimensions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mansard.core.errors import InputError, MansardError, UsageError
from mansard.core.unknown import Unknown
from mansard.workload.cache import CacheLayout, cache_layout, plain_cache
from mansard.workload.model.load import load_model

BODY: dict[str, Any] = {"hidden_act": "silu", "vocab_size": 1000, "intermediate_size": 64, "tie_word_embeddings": False}


def layout(source: Any, **options: Any) -> CacheLayout:
    made = cache_layout(load_model(source), **options)
    assert isinstance(made, CacheLayout)
    return made


def test_bare_dimensions_d19() -> None:
    """Case D19: 2*8*256*2 = 8192 with the declared head width (derived 224 would give 7168); 2*12*12*64*2 = 36,864."""
    first = {
        "hidden_size": 3584, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 256, "num_hidden_layers": 1,
        "torch_dtype": "bfloat16",
    }  # fmt: skip
    assert plain_cache(first).bytes_per_token == 8192
    assert (
        plain_cache({"n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50257}, dtype="fp16").bytes_per_token
        == 36864
    )


def test_nested_text_level_d19() -> None:
    """Case D19: the decoder two levels down, 2*32*8*128*2 = 131,072, not the 27 layers of 1152 beside it."""
    text = {
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
    }
    made = plain_cache(
        {"num_hidden_layers": 27, "hidden_size": 1152, "thinker_config": {"text_config": text}}, dtype="bf16"
    )
    assert made.bytes_per_token == 131_072
    assert made.level == "thinker_config.text_config"


def test_missing_depth_is_named_d19() -> None:
    config = {
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "intermediate_size": 14336,
    }
    with pytest.raises(InputError, match="missing num_hidden_layers"):
        plain_cache(config, dtype="bf16")


def test_null_key_heads_are_multi_head_d19() -> None:
    """Case D19: 2*32*32*128*2 = 524,288, and the assumption is written down."""
    config = {
        "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": None, "num_hidden_layers": 32, "vocab_size": 32000,
        "intermediate_size": 11008,
    }  # fmt: skip
    made = plain_cache(config, dtype="bf16")
    assert made.bytes_per_token == 524_288
    assert "num_key_value_heads" in {entry.key for entry in made.assumed}


def test_another_kind_of_cache_is_refused_by_bare_dimensions() -> None:
    with pytest.raises(MansardError, match="kv_lora_rank"):
        plain_cache(
            {"num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 1, "kv_lora_rank": 4}, dtype="bf16"
        )


def test_tensor_parallel_heads_d21() -> None:
    """Case D21: 4 heads of 128 in 48 layers are 98,304 B/token; on 4 and on 8 ranks each keeps one head, 24,576."""
    config = {
        "num_hidden_layers": 48, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "dtype": "bf16",
    }  # fmt: skip
    assert plain_cache(config).bytes_per_token == 98_304
    assert plain_cache(config, tp=4).bytes_per_token == 24_576
    assert plain_cache(config, tp=8).bytes_per_token == 24_576
    with pytest.raises(UsageError, match="neither") as caught:
        plain_cache(config | {"num_attention_heads": 28}, tp=7)
    assert caught.value.code == "infeasible"


def test_replicated_heads_are_noted(shared: Path) -> None:
    made = layout(shared / "data/configs/Qwen--Qwen3-30B-A3B_config.json", tp=8)
    assert made.growing_bytes == 24_576  # 48 layers * 2 * 1 head * 128 * 2 B
    assert any("replicated 2x" in note for note in made.notes)


def test_latent_is_whole_on_every_rank_d21() -> None:
    """Case D21: (512 + 64) * 61 * 2 = 70,272 B/token on each of 8 ranks; with DeepSeek's scheme of FP8 weights the cache stays BF16."""
    one = layout("deepseek-v3", dtype="bf16")
    eight = layout("deepseek-v3", dtype="bf16", tp=8)
    assert one.growing_bytes == eight.growing_bytes == 70_272
    assert any("whole" in note for note in eight.notes)


def test_index_keys_of_sparse_attention(shared: Path) -> None:
    """V3.2 adds one index key of 128 per token and layer: 61 * (576*2 + 128*1)."""
    path = shared / "data/configs/deepseek-ai--DeepSeek-V3.2_config.json"
    assert layout(path, dtype="bf16", index_dtype="f8_e4m3").growing_bytes == 61 * (576 * 2 + 128)


def test_windows_stop_growing(shared: Path) -> None:
    """gpt-oss: 18 full and 18 windowed (128) layers of 2*8*64*2 = 2,048 B/token."""
    made = layout(shared / "data/configs/openai--gpt-oss-120b_config.json", dtype="bf16")
    assert made.growing_bytes == 18 * 2048
    assert made.windows == ((128, 18 * 2048.0),)
    assert made.bytes_for(100) == 36 * 2048 * 100
    assert made.bytes_for(1000) == 18 * 2048 * 1000 + 18 * 2048 * 128
    assert made.first_token_bytes == 36 * 2048


def test_chunks_hold_at_most_a_chunk(shared: Path) -> None:
    """Llama 4: 36 of 48 layers in chunks of 8192, 12 full; 2*8*128*2 = 4,096 B/token each."""
    made = layout(shared / "data/configs/meta-llama--Llama-4-Maverick-17B-128E-Instruct_config.json")
    assert made.growing_bytes == 12 * 4096
    assert made.windows == ((8192, 36 * 4096.0),)


def test_hybrid_states_do_not_grow(shared: Path) -> None:
    """Qwen3.5-397B: 45 layers hold 64*128*128*4 + 3*(2*2048 + 8192)*2 B; 15 full layers of 2*2*256*2 B/token."""
    made = layout(shared / "data/configs/Qwen--Qwen3.5-397B-A17B_config.json")
    assert made.growing_bytes == 15 * 2048
    assert made.fixed_bytes == 45 * (64 * 128 * 128 * 4 + 3 * 12288 * 2)


def test_qwen3_next_state_from_the_reference() -> None:
    """36 layers of Qwen3-Next: 32*128*128*4 + 3*8192*2 each, 73.7 MiB together."""
    config = BODY | {
        "model_type": "qwen3_next", "architectures": ["Qwen3NextForCausalLM"], "hidden_size": 2048, "num_hidden_layers": 48,
        "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256, "attention_bias": False, "full_attention_interval": 4,
        "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8, "decoder_sparse_step": 1,
        "shared_expert_intermediate_size": 8, "dtype": "bfloat16",
    }  # fmt: skip
    made = layout(config)
    assert made.fixed_bytes == 36 * (32 * 128 * 128 * 4 + 3 * 8192 * 2)
    assert made.fixed_bytes / 2**20 == pytest.approx(73.7, abs=0.05)


def test_state_space_models(shared: Path) -> None:
    """Falcon Mamba: 64 * (8192*16*4 + 8192*3*2). Nemotron-H 56B: 54 Mamba-2 layers, 10 attention layers."""
    mamba = layout(shared / "data/configs/tiiuae--falcon-mamba-7b_config.json")
    assert (mamba.growing_bytes, mamba.fixed_bytes) == (0, 64 * (8192 * 16 * 4 + 8192 * 3 * 2))
    assert any("f32" in note for note in mamba.notes)
    nemotron = layout(shared / "data/configs/nvidia--Nemotron-H-56B-Base-8K_config.json")
    assert nemotron.growing_bytes == 10 * 2 * 8 * 128 * 2
    channels = 256 * 64 + 2 * 8 * 256
    assert nemotron.fixed_bytes == 54 * (256 * 64 * 256 * 4 + channels * 3 * 2)


def test_encoders_hold_nothing_and_cross_attention_the_source(shared: Path) -> None:
    """Whisper small: 12 decoder layers of 2*768*4 per token, and as much per encoder frame."""
    made = layout(shared / "data/configs/openai--whisper-small_config.json")
    assert (made.growing_bytes, made.source_bytes) == (12 * 2 * 768 * 4, 12 * 2 * 768 * 4)
    assert made.bytes_for(10, 1500) == 12 * 2 * 768 * 4 * 1510
    assert (
        layout(shared / "data/configs/google-bert--bert-base-multilingual-cased_config.json", dtype="f32").growing_bytes
        == 0
    )


def test_other_head_widths_on_full_layers(shared: Path) -> None:
    """Gemma 4 31B: 10 full layers of 4 heads * 512 * 2, 50 windowed (1024) of 16 heads * 256 * 2; FP8 cache by its scheme."""
    made = layout(shared / "data/configs/nvidia--Gemma-4-31B-IT-NVFP4_config.json")
    assert made.growing_bytes == 10 * 4 * 512 * 2
    assert made.windows == ((1024, 50 * 16 * 256 * 2.0),)
    assert (
        layout(shared / "data/configs/nvidia--Gemma-4-31B-IT-NVFP4_config.json", dtype="bf16").growing_bytes
        == 2 * 10 * 4096
    )


def test_no_dtype_is_unknown(shared: Path) -> None:
    made = cache_layout(load_model(shared / "data/configs/openai--gpt-oss-120b_config.json"))
    assert isinstance(made, Unknown)


def test_a_state_that_cannot_be_split(shared: Path) -> None:
    model = load_model(shared / "data/configs/tiiuae--falcon-mamba-7b_config.json")
    with pytest.raises(UsageError):
        cache_layout(model, tp=3)
