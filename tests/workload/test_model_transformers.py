"""Counts against the model classes of transformers, built on the meta device: equal to the last parameter.

Skipped where torch or transformers is missing. A difference is explained in `EXPLAINED` or it is a defect.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mansard.workload.counts import count_params
from mansard.workload.model.load import load_model

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

# Families at their class defaults, with the class that is built.
DEFAULTS = {
    "apertus": "ApertusForCausalLM", "arcee": "ArceeForCausalLM", "bert": "BertForMaskedLM", "bloom": "BloomForCausalLM",
    "codegen": "CodeGenForCausalLM", "cohere": "CohereForCausalLM", "cohere2": "Cohere2ForCausalLM", "deepseek_v3": "DeepseekV3ForCausalLM",
    "deepseek_v32": "DeepseekV32ForCausalLM",
    "deepseek_v4": "DeepseekV4ForCausalLM", "distilbert": "DistilBertForMaskedLM", "ernie4_5": "Ernie4_5ForCausalLM",
    "ernie4_5_moe": "Ernie4_5_MoeForCausalLM", "exaone4": "Exaone4ForCausalLM", "falcon": "FalconForCausalLM",
    "falcon_mamba": "FalconMambaForCausalLM", "gemma": "GemmaForCausalLM", "gemma2": "Gemma2ForCausalLM", "gemma3_text": "Gemma3ForCausalLM",
    "gemma4_text": "Gemma4ForCausalLM", "glm": "GlmForCausalLM", "glm4": "Glm4ForCausalLM", "glm_moe_dsa": "GlmMoeDsaForCausalLM",
    "gpt2": "GPT2LMHeadModel", "gpt_neo": "GPTNeoForCausalLM", "gpt_neox": "GPTNeoXForCausalLM", "gpt_oss": "GptOssForCausalLM",
    "gptj": "GPTJForCausalLM", "granitemoe": "GraniteMoeForCausalLM", "jamba": "JambaForCausalLM", "llama": "LlamaForCausalLM",
    "llama4_text": "Llama4ForCausalLM", "mamba": "MambaForCausalLM", "mamba2": "Mamba2ForCausalLM", "minimax_m2": "MiniMaxM2ForCausalLM",
    "mistral": "MistralForCausalLM", "mixtral": "MixtralForCausalLM", "nemotron_h": "NemotronHForCausalLM", "olmo": "OlmoForCausalLM",
    "olmo2": "Olmo2ForCausalLM", "olmoe": "OlmoeForCausalLM", "opt": "OPTForCausalLM", "phi": "PhiForCausalLM", "phi3": "Phi3ForCausalLM",
    "phimoe": "PhimoeForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen2_moe": "Qwen2MoeForCausalLM", "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM", "qwen3_next": "Qwen3NextForCausalLM", "roberta": "RobertaForMaskedLM", "smollm3": "SmolLM3ForCausalLM",
    "starcoder2": "Starcoder2ForCausalLM", "t5": "T5ForConditionalGeneration", "vit": "ViTForImageClassification",
}  # fmt: skip

# Shared files whose class differs from what the file says, with the exact difference (ours minus theirs).
EXPLAINED = {
    # No vision_config in the file: transformers builds its default tower (455,178,240), we count what is stated.
    "meta-llama--Llama-4-Maverick-17B-128E-Instruct": -455_178_240,
    # transformers 5 ties the head of T5 whatever tie_word_embeddings says; the published 1.1 checkpoints have their own.
    "torchtitan__t5-v1_1-xxl-tiny": 32_128 * 4_096,
}
NOT_BUILT = {
    "XiaomiMiMo--MiMo-7B-Base",
    "moonshotai--Kimi-K2-Instruct",
    "moonshotai--Kimi-K2.5",
    "deepseek-ai--DeepSeek-V4-Pro",
}


def built(config: Any, class_name: str) -> int:
    with torch.device("meta"):
        model = getattr(transformers, class_name)._from_config(config)
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    transformers.logging.set_verbosity_error()


@pytest.mark.parametrize("family", sorted(DEFAULTS))
def test_class_defaults(family: str) -> None:
    mapping = transformers.models.auto.configuration_auto.CONFIG_MAPPING
    if family not in mapping or not hasattr(transformers, DEFAULTS[family]):
        pytest.skip(f"this transformers has no {family}")
    config = mapping[family]()
    stated = json.loads(json.dumps(config.to_dict(), default=str)) | {
        "architectures": [DEFAULTS[family]],
        "model_type": family,
    }
    assert count_params(load_model(stated)).total == built(config, DEFAULTS[family])


QWEN_TEXT = {
    "hidden_size": 3584, "num_attention_heads": 28, "num_key_value_heads": 4, "intermediate_size": 18944, "num_hidden_layers": 3,
    "vocab_size": 1000,
}  # fmt: skip
VARIANTS: list[tuple[str, str, dict[str, Any]]] = [
    ("granitemoehybrid", "GraniteMoeHybridForCausalLM", {"layer_types": ["mamba", "mamba", "attention"] * 2, "num_hidden_layers": 6}),
    ("granitemoehybrid", "GraniteMoeHybridForCausalLM", {"layer_types": ["mamba"] * 4, "num_hidden_layers": 4, "num_local_experts": 0}),
    ("bamba", "BambaForCausalLM", {"attn_layer_indices": [1, 3], "num_hidden_layers": 5}),
    ("jamba", "JambaForCausalLM", {"num_hidden_layers": 9, "attn_layer_period": 4, "attn_layer_offset": 2}),
    ("nemotron_h", "NemotronHForCausalLM", {"hybrid_override_pattern": "ME*-M", "moe_latent_size": 512, "num_hidden_layers": 5}),
    ("gemma4_text", "Gemma4ForCausalLM", {"num_hidden_layers": 12, "num_kv_shared_layers": 6, "use_double_wide_mlp": True}),
    ("mimo_v2_flash", "MiMoV2FlashForCausalLM", {"num_hidden_layers": 7}),
    ("mistral3", "Mistral3ForConditionalGeneration", {}),
    ("llava", "LlavaForConditionalGeneration", {}),
    ("gemma3", "Gemma3ForConditionalGeneration", {}),
    ("stablelm", "StableLmForCausalLM", {"use_parallel_residual": True, "use_qkv_bias": True}),
    ("mpt", "MptForCausalLM", {"n_layers": 3}),
    ("gpt_bigcode", "GPTBigCodeForCausalLM", {"multi_query": False, "n_layer": 3}),
    ("falcon", "FalconForCausalLM", {"new_decoder_architecture": True, "num_kv_heads": 1, "num_hidden_layers": 3, "bias": True}),
    ("opt", "OPTForCausalLM", {"word_embed_proj_dim": 512, "hidden_size": 768, "num_hidden_layers": 3, "do_layer_norm_before": False}),
    ("qwen3_moe", "Qwen3MoeForCausalLM", {"decoder_sparse_step": 2, "mlp_only_layers": [1], "num_hidden_layers": 6}),
    ("deepseek_v3", "DeepseekV3ForCausalLM", {"q_lora_rank": None, "num_hidden_layers": 5, "attention_bias": True}),
    ("deepseek_v2", "DeepseekV2ForCausalLM", {"num_experts_per_tok": 6, "q_lora_rank": None, "num_hidden_layers": 4, "n_shared_experts": 2}),
    ("qwen2_vl", "Qwen2VLForConditionalGeneration", {"text_config": QWEN_TEXT}),
    ("qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration", {"text_config": QWEN_TEXT, "vision_config": {"hidden_size": 1280}}),
    ("qwen3_vl", "Qwen3VLForConditionalGeneration", {"text_config": QWEN_TEXT}),
    ("glm4_moe", "Glm4MoeForCausalLM", {"head_dim": 128, "num_hidden_layers": 3, "use_qk_norm": True, "attention_bias": True}),
    ("whisper", "WhisperForConditionalGeneration", {}),
    ("mbart", "MBartForConditionalGeneration", {}),
    ("clip", "CLIPModel", {}),
    ("bert", "BertForSequenceClassification", {}),
    ("bert", "BertForPreTraining", {}),
    ("roberta", "RobertaForSequenceClassification", {}),
    ("vit", "ViTModel", {}),
    ("t5", "T5EncoderModel", {}),
    ("llama", "LlamaForSequenceClassification", {"num_hidden_layers": 2}),
    ("phi", "PhiForCausalLM", {"qk_layernorm": True, "num_hidden_layers": 2}),
    ("hunyuan_v1_dense", "HunYuanDenseV1ForCausalLM", {"head_dim": 128, "num_hidden_layers": 2}),
    ("glm_moe_dsa", "GlmMoeDsaForCausalLM", {"num_hidden_layers": 6, "indexer_types": ["full"] * 2 + ["shared"] * 3 + ["full"]}),
    ("glm_moe_dsa", "GlmMoeDsaForCausalLM", {"num_hidden_layers": 9, "index_topk_freq": 4, "index_skip_topk_offset": 3}),
    ("glm4_moe_lite", "Glm4MoeLiteForCausalLM", {"num_hidden_layers": 3, "mlp_layer_types": ["sparse", "dense", "sparse"]}),
    ("gemma4_text", "Gemma4ForCausalLM", {
        "num_hidden_layers": 6, "enable_moe_block": True, "num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 96,
    }),
    ("cohere", "CohereForCausalLM", {"num_hidden_layers": 2, "use_qk_norm": True}),
    ("qwen2_moe", "Qwen2MoeForCausalLM", {"num_hidden_layers": 2, "qkv_bias": False}),
    ("mimo_v2_flash", "MiMoV2FlashForCausalLM", {"num_hidden_layers": 3, "attention_bias": True}),
    ("bert", "BertForMaskedLM", {"tie_word_embeddings": False}),
    ("vit", "ViTModel", {"pooler_output_size": 256}),
    ("minimax_m3_vl", "MiniMaxM3SparseForConditionalGeneration", {
        "text_config": {"num_hidden_layers": 3, "moe_layer_freq": [0, 1, 1], "sparse_attention_config": {"sparse_attention_freq": [0, 1, 1]}},
        "vision_config": {"num_hidden_layers": 2},
    }),
    ("minimax_m3_vl_text", "MiniMaxM3VLForCausalLM", {
        "num_hidden_layers": 3, "mlp_layer_types": ["dense", "sparse", "sparse"],
        "layer_types": ["full_attention", "minimax_m3_sparse", "full_attention"],
    }),
    ("cwm", "CwmForCausalLM", {"num_hidden_layers": 4}),
    ("vaultgemma", "VaultGemmaForCausalLM", {"num_hidden_layers": 2}),
    ("exaone_moe", "ExaoneMoeForCausalLM", {"num_hidden_layers": 3}),
    ("hy_v3", "HYV3ForCausalLM", {"num_hidden_layers": 3}),
    ("flex_olmo", "FlexOlmoForCausalLM", {"num_hidden_layers": 2}),
    ("jais2", "Jais2ForCausalLM", {"num_hidden_layers": 2}),
    ("hyperclovax", "HyperCLOVAXForCausalLM", {"num_hidden_layers": 2, "use_post_norm": False}),
    ("mellum", "MellumForCausalLM", {"num_hidden_layers": 3, "mlp_layer_types": ["sparse", "dense", "sparse"]}),
    ("ernie", "ErnieForMaskedLM", {}),
    ("clip_vision_model", "CLIPVisionModel", {}),
    ("siglip_vision_model", "SiglipVisionModel", {"num_hidden_layers": 2}),
    ("vit_msn", "ViTMSNForImageClassification", {"num_hidden_layers": 2}),
    ("vit_msn", "ViTMSNModel", {"num_hidden_layers": 2}),
    ("qwen3", "Qwen3ForQuestionAnswering", {"num_hidden_layers": 2}),
    ("dots1", "Dots1ForCausalLM", {"n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2, "num_hidden_layers": 3}),
]  # fmt: skip


@pytest.mark.parametrize(("family", "class_name", "options"), VARIANTS)
def test_variants(family: str, class_name: str, options: dict[str, Any]) -> None:
    mapping = transformers.models.auto.configuration_auto.CONFIG_MAPPING
    if family not in mapping or not hasattr(transformers, class_name):
        pytest.skip(f"this transformers has no {family}")
    config = mapping[family](**options)
    stated = json.loads(json.dumps(config.to_dict(), default=str)) | {
        "architectures": [class_name],
        "model_type": family,
    }
    assert count_params(load_model(stated)).total == built(config, class_name)


def test_shared_files(shared: Path) -> None:
    mapping = transformers.models.auto.configuration_auto.CONFIG_MAPPING
    compared = 0
    for path in sorted((shared / "data/configs").glob("*_config.json")):
        name = path.name.removesuffix("_config.json")
        stated = json.loads(path.read_text())
        if path.name.endswith("hf_quant_config.json") or name in NOT_BUILT:
            continue
        for level in (stated, stated.get("text_config", {})):
            level.pop("quantization_config", None)
        if stated["model_type"] not in mapping:
            continue
        theirs = built(mapping[stated["model_type"]].from_dict(dict(stated)), stated["architectures"][0])
        ours = count_params(load_model(path)).total
        assert ours - theirs == EXPLAINED.get(name, 0), name
        compared += 1
    assert compared >= 40
