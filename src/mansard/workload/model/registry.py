"""Which family builds a configuration: by `model_type`, or by the class it names. Nothing else decides."""

from __future__ import annotations

from collections.abc import Callable

from mansard.workload.model.decoder import Parts
from mansard.workload.model.families import (
    deepseek_v4,
    dense,
    diffusion,
    encoders,
    hybrid,
    layered,
    minimax_m3,
    mla,
    moe,
    multimodal,
    older,
    plain,
    seq2seq,
)
from mansard.workload.model.reader import Reader

Builder = Callable[[Reader, str, str, Reader | None], Parts]

UNDECLARED = ""
"""The family of a configuration that names neither a `model_type` nor a class."""

PLAIN: dict[str, Builder] = {
    **dict.fromkeys(dense.FAMILIES, dense.build),
    **dict.fromkeys(moe.FAMILIES, moe.build),
    **dict.fromkeys(mla.SOURCES, mla.build),
    UNDECLARED: plain.build,
    "opt": dense.opt,
    "falcon": dense.falcon,
    "chatglm": older.chatglm,
    "mpt": older.mpt,
    "gpt_bigcode": older.gpt_bigcode,
    "stablelm": older.stablelm,
    "dbrx": older.dbrx,
    "nemotron-nas": layered.nemotron_nas,
    "mimo_v2_flash": layered.mimo_v2,
    "granitemoehybrid": layered.granite_hybrid,
    "bamba": layered.bamba,
    "flux": diffusion.flux,
    "deepseek_v4": deepseek_v4.build,
    "minimax_m3": minimax_m3.text,
    "minimax_m3_vl_text": minimax_m3.text,
    "llama4_text": moe.llama4,
    "ernie4_5_moe": moe.ernie,
    "mamba": hybrid.mamba,
    "falcon_mamba": hybrid.mamba,
    "mamba2": hybrid.mamba2,
    "nemotron_h": hybrid.nemotron_h,
    "jamba": hybrid.jamba,
    "qwen3_next": hybrid.qwen_linear,
    "qwen3_5_text": hybrid.qwen_linear,
    "qwen3_5_moe_text": hybrid.qwen_linear,
    "gemma4_text": hybrid.gemma4_text,
    "bert": encoders.bert,
    "roberta": encoders.bert,
    "xlm-roberta": encoders.bert,
    "camembert": encoders.bert,
    "ernie": encoders.bert,
    "megatron-bert": encoders.bert,
    "distilbert": encoders.distilbert,
    "vit": encoders.vit,
    "clip": encoders.clip,
    "clip_vision_model": encoders.vision_alone,
    "siglip_vision_model": encoders.vision_alone,
    "vit_msn": encoders.vit,
    "t5": seq2seq.t5,
    "mt5": seq2seq.t5,
    "umt5": seq2seq.t5,
    "bart": seq2seq.bart,
    "mbart": seq2seq.bart,
    "whisper": seq2seq.whisper,
}

CLASSES: dict[str, str] = {
    "LlamaForCausalLM": "llama", "MistralForCausalLM": "mistral", "MixtralForCausalLM": "mixtral", "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3", "Qwen3MoeForCausalLM": "qwen3_moe", "Qwen2MoeForCausalLM": "qwen2_moe",
    "DeepseekV2ForCausalLM": "deepseek_v2", "DeepseekV3ForCausalLM": "deepseek_v3", "DeepseekV32ForCausalLM": "deepseek_v32",
    "GPT2LMHeadModel": "gpt2", "Phi3ForCausalLM": "phi3", "PhiForCausalLM": "phi", "GptOssForCausalLM": "gpt_oss",
    "MiniMaxM2ForCausalLM": "minimax_m2", "NemotronHForCausalLM": "nemotron_h", "FalconMambaForCausalLM": "falcon_mamba",
    "MambaForCausalLM": "mamba", "Mamba2ForCausalLM": "mamba2", "GraniteForCausalLM": "granite", "GPTNeoXForCausalLM": "gpt_neox",
    "BertModel": "bert", "BertForMaskedLM": "bert", "XLMRobertaForCausalLM": "xlm-roberta", "BartModel": "bart",
    "T5ForConditionalGeneration": "t5", "WhisperForConditionalGeneration": "whisper", "CLIPModel": "clip",
    "GemmaForCausalLM": "gemma", "Gemma2ForCausalLM": "gemma2", "Gemma3ForCausalLM": "gemma3_text",
    "Gemma3ForConditionalGeneration": "gemma3", "Gemma4ForConditionalGeneration": "gemma4", "LlavaForConditionalGeneration": "llava",
    "Llama4ForConditionalGeneration": "llama4", "Qwen2_5_VLForConditionalGeneration": "qwen2_5_vl",
    "Qwen2VLForConditionalGeneration": "qwen2_vl", "Qwen3VLForConditionalGeneration": "qwen3_vl",
    "Qwen3VLMoeForConditionalGeneration": "qwen3_vl_moe", "Qwen3_5MoeForConditionalGeneration": "qwen3_5_moe",
    "Glm4vMoeForConditionalGeneration": "glm4v_moe", "KimiK25ForConditionalGeneration": "kimi_k25", "MiMoForCausalLM": "mimo",
    "FluxTransformer2DModel": "flux",
    "ChatGLMModel": "chatglm",
    "ChatGLMForConditionalGeneration": "chatglm",
    "MPTForCausalLM": "mpt",
    "MptForCausalLM": "mpt",
    "Mistral3ForConditionalGeneration": "mistral3", "GraniteMoeHybridForCausalLM": "granitemoehybrid", "BambaForCausalLM": "bamba", "DeepseekV4ForCausalLM": "deepseek_v4", "GPTBigCodeForCausalLM": "gpt_bigcode",
    "StableLmForCausalLM": "stablelm",
    "DbrxForCausalLM": "dbrx",
    "DeciLMForCausalLM": "nemotron-nas",
    "MiMoV2FlashForCausalLM": "mimo_v2_flash",
    "JambaForCausalLM": "jamba", "FalconForCausalLM": "falcon", "OPTForCausalLM": "opt", "Qwen3NextForCausalLM": "qwen3_next",
    "Glm4MoeForCausalLM": "glm4_moe",
    "CwmForCausalLM": "cwm", "VaultGemmaForCausalLM": "vaultgemma", "ExaoneMoeForCausalLM": "exaone_moe", "HYV3ForCausalLM": "hy_v3",
    "GlmMoeDsaForCausalLM": "glm_moe_dsa", "Olmo2ForCausalLM": "olmo2", "Olmo3ForCausalLM": "olmo3", "SmolLM3ForCausalLM": "smollm3",
}  # fmt: skip

SAME: dict[str, str] = {"qwen3_vl_text": "qwen3", "qwen2_5_vl_text": "qwen2", "qwen2_vl_text": "qwen2"}
"""Text levels that are another family under a second name."""


def build_text(reader: Reader, architecture: str, family: str, outer: Reader | None) -> Parts:
    """Build one text decoder of a nested configuration."""
    known = SAME.get(family, family)
    builder = PLAIN.get(known)
    if builder is None:
        raise reader.unsupported(f"no rule for a text decoder of type {family!r}", f"known: {', '.join(sorted(PLAIN))}")
    return builder(reader, architecture, known, outer)


def build(reader: Reader, architecture: str, family: str) -> Parts:
    """Build a model of a known family."""
    joined = multimodal.FAMILIES.get(family)
    if joined is not None:
        return joined(reader, architecture, family, build_text)
    return build_text(reader, architecture, family, None)


def known(family: str) -> bool:
    """Return whether a `model_type` has a rule."""
    return family != UNDECLARED and (family in multimodal.FAMILIES or SAME.get(family, family) in PLAIN)
