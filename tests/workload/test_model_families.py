"""Families without a file in the shared folder: published totals, or a small model counted by hand."""

from __future__ import annotations

from typing import Any

import pytest

from mansard.core.errors import InputError, MansardError, UndecidedError
from mansard.workload.cache import CacheLayout, cache_layout
from mansard.workload.counts import count_params
from mansard.workload.model.load import load_model
from mansard.workload.records import GqaAttention


def total(config: dict[str, Any]) -> int:
    return count_params(load_model(config)).total


CHATGLM3: dict[str, Any] = {
    "model_type": "chatglm", "architectures": ["ChatGLMModel"], "num_layers": 28, "padded_vocab_size": 65024, "hidden_size": 4096,
    "ffn_hidden_size": 13696, "kv_channels": 128, "num_attention_heads": 32, "seq_length": 8192, "multi_query_attention": True,
    "multi_query_group_num": 2, "add_qkv_bias": True, "add_bias_linear": False, "rmsnorm": True, "post_layer_norm": True,
    "tie_word_embeddings": False,
}  # fmt: skip


def test_chatglm_names() -> None:
    """ChatGLM3-6B: per layer q 4096^2, k and v 2*256*4096, biases 4096 + 512, o 4096^2, 3*4096*13696, norms 8192."""
    layer = 2 * 4096**2 + 2 * 256 * 4096 + 4096 + 512 + 3 * 4096 * 13696 + 2 * 4096
    assert total(CHATGLM3) == 28 * layer + 2 * 65024 * 4096 + 4096 == 6_243_584_000
    assert load_model(CHATGLM3).max_positions == 8192


def test_mpt_names() -> None:
    """MPT-7B, published 6.65B: 12*d^2 per layer, two norms without bias, a tied head."""
    config = {
        "model_type": "mpt", "architectures": ["MPTForCausalLM"], "d_model": 4096, "n_heads": 32, "n_layers": 32, "vocab_size": 50432,
        "expansion_ratio": 4, "no_bias": True, "attn_config": {"alibi": True, "attn_type": "multihead_attention", "qk_ln": False},
    }  # fmt: skip
    assert total(config) == 32 * (12 * 4096**2 + 2 * 4096) + 50432 * 4096 + 4096 == 6_649_286_656
    with pytest.raises(MansardError, match="expansion_ratio"):
        load_model({k: v for k, v in config.items() if k != "expansion_ratio"})


def test_dbrx_levels() -> None:
    """DBRX, published 132B total, 36B active: 40 layers, 16 experts of 3*6144*10752, four of them per token."""
    config = {
        "model_type": "dbrx", "architectures": ["DbrxForCausalLM"], "d_model": 6144, "n_heads": 48, "n_layers": 40, "max_seq_len": 32768,
        "vocab_size": 100352, "attn_config": {"kv_n_heads": 8}, "tie_word_embeddings": False,
        "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4, "ffn_act_fn": {"name": "silu"}},
    }  # fmt: skip
    attention, expert = 2 * 6144**2 + 2 * 1024 * 6144, 3 * 6144 * 10752
    rest = 40 * (attention + 16 * 6144 + 2 * 6144) + 2 * 100352 * 6144 + 6144
    count = count_params(load_model(config))
    assert count.total == rest + 40 * 16 * expert == 131_596_523_520
    assert count.active == rest + 40 * 4 * expert


def test_flux_matches_its_published_total() -> None:
    """FLUX.1-dev 11,901,408,320; schnell has no guidance embedding: 256*3072 + 3072 + 3072^2 + 3072 = 10,229,760 fewer."""
    config = {
        "_class_name": "FluxTransformer2DModel", "attention_head_dim": 128, "num_attention_heads": 24, "num_layers": 19,
        "num_single_layers": 38, "in_channels": 64, "joint_attention_dim": 4096, "pooled_projection_dim": 768,
        "guidance_embeds": True, "patch_size": 1,
    }  # fmt: skip
    assert total(config) == 11_901_408_320
    assert total(config | {"guidance_embeds": False}) == 11_901_408_320 - 10_229_760
    model = load_model(config)
    assert (model.vocab, model.head, model.text.name) == (None, (), "transformer")


def test_layers_described_one_by_one() -> None:
    """Nemotron-NAS: a full layer, one without attention, one whose attention is a matrix, one without feed-forward."""
    keep = {"n_heads_in_group": 2, "no_op": False, "replace_with_linear": False}
    ffn = {"ffn_mult": 6.0, "no_op": False, "replace_with_linear": False}
    config = {
        "model_type": "nemotron-nas", "architectures": ["DeciLMForCausalLM"], "hidden_size": 64, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": None, "vocab_size": 100, "hidden_act": "silu", "attention_bias": False,
        "mlp_bias": False, "tie_word_embeddings": False, "intermediate_size": None,
        "block_configs": [
            {"attention": keep, "ffn": ffn}, {"attention": {"no_op": True}, "ffn": ffn},
            {"attention": {"replace_with_linear": True}, "ffn": {"replace_with_linear": True}}, {"attention": keep, "ffn": {"no_op": True}},
        ],
    }  # fmt: skip
    # int(2 * 6 * 64 / 3) = 256 is a multiple of 256; attention of 4 heads and 2 key heads of 16.
    attention, feed, norm = 2 * 64 * 64 + 2 * 32 * 64, 3 * 64 * 256, 64
    layers = (attention + feed + 2 * norm) + (feed + norm) + (2 * 64 * 64 + 2 * norm) + (attention + norm)
    assert total(config) == layers + 2 * 6400 + 64
    made = cache_layout(load_model(config), dtype="bf16")
    assert isinstance(made, CacheLayout)
    assert made.growing_bytes == 2 * 2 * 2 * 16 * 2  # Two layers with attention.
    broken = config | {"block_configs": [{"attention": {"n_heads_in_group": None}, "ffn": ffn}] * 4}
    with pytest.raises(MansardError, match="n_heads_in_group"):
        load_model(broken)
    with pytest.raises(MansardError, match="block_configs"):
        load_model(config | {"num_hidden_layers": 5})


def test_windowed_layers_with_other_heads() -> None:
    """MiMo-V2-Flash, published 309B total, 15B active: keys of 192, values of 128, 8 key heads on windowed layers, 4 on full ones."""
    pattern = [0 if i == 0 or (i + 1) % 6 == 0 else 1 for i in range(48)]
    config = {
        "model_type": "mimo_v2_flash", "architectures": ["MiMoV2FlashForCausalLM"], "hidden_size": 4096, "num_hidden_layers": 48,
        "num_attention_heads": 64, "num_key_value_heads": 4, "head_dim": 192, "v_head_dim": 128, "swa_num_attention_heads": 64,
        "swa_num_key_value_heads": 8, "swa_head_dim": 192, "swa_v_head_dim": 128, "hybrid_layer_pattern": pattern,
        "moe_layer_freq": [0] + [1] * 47, "sliding_window_size": 128, "add_swa_attention_sink_bias": True,
        "add_full_attention_sink_bias": False, "n_routed_experts": 256, "n_shared_experts": None, "num_experts_per_tok": 8,
        "moe_intermediate_size": 2048, "intermediate_size": 16384, "vocab_size": 152576, "hidden_act": "silu",
        "tie_word_embeddings": False,
    }  # fmt: skip
    full, swa = pattern.count(0), pattern.count(1)
    assert (full, swa) == (9, 39)
    q, o = 4096 * 64 * 192, 4096 * 64 * 128
    attention = full * (q + o + 4096 * 4 * 320) + swa * (q + o + 4096 * 8 * 320 + 64)
    experts = 47 * (256 * 3 * 4096 * 2048 + 256 * 4096)
    rest = 3 * 4096 * 16384 + 97 * 4096 + 2 * 152576 * 4096
    assert total(config) == attention + experts + rest == 308_778_768_832
    model = load_model(config)
    window = {b.window for g in model.text.groups for b in g.layer.blocks if isinstance(b, GqaAttention)}
    assert window == {None, 129}
    made = cache_layout(model, dtype="bf16")
    assert isinstance(made, CacheLayout)
    assert made.growing_bytes == 9 * 4 * 320 * 2
    assert made.windows == ((129, 39 * 8 * 320 * 2.0),)


def test_a_falcon_with_one_key_head() -> None:
    """Falcon-7B: 32 layers of 4544, one key head of 64, a tied head (a checkpoint that stores it twice holds 7.22e9)."""
    config = {
        "model_type": "falcon", "architectures": ["FalconForCausalLM"], "hidden_size": 4544, "num_hidden_layers": 32,
        "num_attention_heads": 71, "vocab_size": 65024, "multi_query": True, "parallel_attn": True, "bias": False,
        "new_decoder_architecture": False, "alibi": False,
    }  # fmt: skip
    layer = 4544 * 4544 * 2 + 2 * 64 * 4544 + 8 * 4544 * 4544 + 2 * 4544
    assert total(config) == 32 * layer + 65024 * 4544 + 2 * 4544 == 6_921_720_704


def test_llama4_with_its_tower() -> None:
    """A vision tower that is stated is counted: 17 patches of 14 (56 // 14 = 4 a side, and a class token)."""
    text = {
        "model_type": "llama4_text", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 16, "intermediate_size": 32, "intermediate_size_mlp": 48, "vocab_size": 100, "num_local_experts": 4,
        "num_experts_per_tok": 1, "interleave_moe_layer_step": 1, "use_qk_norm": False, "attention_bias": False, "hidden_act": "silu",
        "attention_chunk_size": 8,
    }  # fmt: skip
    vision = {
        "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128, "image_size": 56, "patch_size": 14,
        "num_channels": 3, "pixel_shuffle_ratio": 0.5, "projector_input_dim": 16, "projector_output_dim": 16, "vision_output_dim": 16,
        "hidden_act": "gelu",
    }  # fmt: skip
    base = {"model_type": "llama4", "architectures": ["Llama4ForConditionalGeneration"], "tie_word_embeddings": False}
    layer = 4 * (32 * 32 + 32) + 2 * 32 * 128 + 128 + 32 + 4 * 32
    around = 32 + 32 * 588 + 17 * 32 + 4 * 32
    projector = 16 * 128 + 16 * 16 + 64 * 16
    without = total(base | {"text_config": text})
    assert total(base | {"text_config": text, "vision_config": vision}) - without == 2 * layer + around + projector


def test_what_is_not_described_is_refused() -> None:
    """An audio tower, a second class, experts beside a dense block: named, with what would be needed."""
    gemma = {"model_type": "gemma4", "architectures": ["Gemma4ForConditionalGeneration"], "audio_config": {"a": 1}}
    text = {
        "model_type": "gemma4_text", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 16, "intermediate_size": 32, "vocab_size": 100, "layer_types": ["full_attention"], "sliding_window": 8,
        "hidden_size_per_layer_input": 0, "enable_moe_block": False, "hidden_activation": "gelu_pytorch_tanh",
    }  # fmt: skip
    with pytest.raises(UndecidedError, match="audio tower"):
        load_model(gemma | {"text_config": text})
    ernie = {"model_type": "ernie4_5_moe", "architectures": ["Ernie4_5_MoeForCausalLM"], "use_bias": True}
    with pytest.raises(UndecidedError, match="biases in its experts"):
        load_model(ernie)


def test_params_json_of_the_reference_implementations() -> None:
    """Llama 3.1 8B, Mistral 7B v0.3 and Mixtral 8x7B as their own code describes them."""
    llama = {
        "dim": 4096, "n_layers": 32, "n_heads": 32, "n_kv_heads": 8, "vocab_size": 128256, "multiple_of": 1024,
        "ffn_dim_multiplier": 1.3, "norm_eps": 1e-5, "rope_theta": 500000.0, "use_scaled_rope": True,
    }  # fmt: skip
    # int(2/3 * 16384) = 10922; int(1.3 * 10922) = 14198; up to a multiple of 1024: 14336, as in config.json.
    assert total(llama) == 8_030_261_248
    mistral = {
        "dim": 4096, "n_layers": 32, "head_dim": 128, "hidden_dim": 14336, "n_heads": 32, "n_kv_heads": 8, "norm_eps": 1e-5,
        "vocab_size": 32768,
    }  # fmt: skip
    assert total(mistral) == 7_248_023_552
    mixtral = mistral | {"vocab_size": 32000, "moe": {"num_experts": 8, "num_experts_per_tok": 2}}
    assert total(mixtral) == 46_702_792_704
    with pytest.raises(InputError, match="multiple_of"):
        load_model({key: value for key, value in llama.items() if key != "multiple_of"})
    with pytest.raises(UndecidedError, match="q_lora_rank"):
        load_model(mistral | {"q_lora_rank": 1536})


def test_a_window_without_a_pattern_names_the_missing_key() -> None:
    config = {
        "model_type": "dots1", "architectures": ["Dots1ForCausalLM"], "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 64, "vocab_size": 100, "moe_intermediate_size": 32, "n_routed_experts": 4,
        "num_experts_per_tok": 2, "n_shared_experts": 1, "first_k_dense_replace": 1, "sliding_window": 16,
    }  # fmt: skip
    with pytest.raises(InputError, match="missing layer_types"):
        load_model(config)


def test_a_tower_alone_has_no_default_sizes() -> None:
    tower = {"model_type": "siglip_vision_model", "architectures": ["SiglipVisionModel"], "num_hidden_layers": 2}
    with pytest.raises(InputError, match="missing hidden_size"):
        load_model(tower)
