"""Every trap of configuration files, each with a small file of its own: key names, nesting, nulls, patterns, contradictions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mansard.core.errors import InputError, MansardError, UndecidedError, UsageError
from mansard.core.unknown import Unknown
from mansard.workload.counts import count_params
from mansard.workload.model.load import load_model
from mansard.workload.records import GqaAttention, Mamba1, MlaAttention, Model, Moe

TINY: dict[str, Any] = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 48, "vocab_size": 100, "hidden_act": "silu", "attention_bias": False,
    "mlp_bias": False, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "max_position_embeddings": 64,
}  # fmt: skip
# q, o 32*32; k, v 16*32; three of 32*48; two norms: 2*1024 + 2*512 + 4608 + 64 = 7,744. Tables 2*3,200, last norm 32.
TINY_TOTAL = 3 * 7_744 + 2 * 3_200 + 32


def total(config: Any) -> int:
    return count_params(load_model(config)).total


def attention(model: Model, layer: int = 0) -> GqaAttention:
    return next(b for b in model.text.in_order()[layer].blocks if isinstance(b, GqaAttention))


def moe(model: Model) -> Moe:
    return next(b for g in model.text.groups for b in g.layer.blocks if isinstance(b, Moe))


def without(config: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in keys}


def test_the_tiny_decoder_by_hand() -> None:
    assert total(TINY) == TINY_TOTAL == 29_664


@pytest.mark.parametrize(
    "key", ["hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size", "hidden_act"]
)
def test_a_missing_key_is_named(key: str) -> None:
    if key == "hidden_act":
        assert [a.key for a in load_model(without(TINY, key)).assumed] == ["hidden_act"]
        return
    with pytest.raises(InputError, match=f"missing {key}") as caught:
        load_model(without(TINY, key))
    assert key in caught.value.hint


def test_the_file_is_named_too(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(without(TINY, "num_hidden_layers")))
    with pytest.raises(InputError, match=r"config\.json: missing num_hidden_layers"):
        load_model(path)
    with pytest.raises(InputError, match="missing num_hidden_layers"):
        load_model(tmp_path)


def test_a_missing_key_of_a_nested_level_has_its_path() -> None:
    config = {
        "model_type": "qwen3_vl",
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "text_config": {"hidden_size": 8},
    }
    with pytest.raises(InputError, match=r"missing text_config\.num_hidden_layers"):
        load_model(config)


def test_null_key_heads_are_multi_head() -> None:
    model = load_model(TINY | {"num_key_value_heads": None})
    assert attention(model).kv_heads == 4
    assert [(d.key, d.value, d.from_keys) for d in model.derived if d.key == "num_key_value_heads"] == [
        ("num_key_value_heads", 4, ("num_attention_heads",))
    ]


def test_declared_head_width_wins_and_absence_is_derived() -> None:
    assert attention(load_model(TINY | {"head_dim": 16})).head_dim == 16
    derived = load_model(TINY)
    assert attention(derived).head_dim == 8
    assert ("head_dim", ("hidden_size", "num_attention_heads")) in {(d.key, d.from_keys) for d in derived.derived}
    # 30 / 4 is no head width, and nothing is rounded.
    with pytest.raises(InputError, match="hidden_size is 30"):
        load_model(TINY | {"hidden_size": 30})


def test_head_width_of_a_family_is_written_down() -> None:
    """Qwen3 without head_dim: the class default 128, not hidden / heads, and it is listed as assumed."""
    config = TINY | {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "use_sliding_window": False}
    model = load_model(config)
    assert attention(model).head_dim == 128
    assert [(a.key, a.value) for a in model.assumed] == [("head_dim", 128)]


@pytest.mark.parametrize(("old", "new"), [("torch_dtype", "dtype"), ("dtype", "torch_dtype")])
def test_old_and_new_name_of_the_type(old: str, new: str) -> None:
    config = without(TINY, "torch_dtype")
    assert load_model(config | {old: "bfloat16"}).dtype == load_model(config | {new: "bfloat16"}).dtype == "bf16"
    assert isinstance(load_model(config).dtype, Unknown)


def test_names_that_disagree_are_an_error() -> None:
    with pytest.raises(InputError, match=r"hidden_size is 32 but n_embd is 64"):
        load_model(TINY | {"n_embd": 64})
    assert total(TINY | {"n_embd": 32}) == TINY_TOTAL


def test_gpt2_names_and_a_null_width() -> None:
    """n_inner null is 4 x n_embd: per layer 12*d^2 + 13*d, tables (V + P)*d, last norm 2*d; the head is tied."""
    config = {
        "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 16, "n_layer": 2, "n_head": 4, "n_inner": None,
        "vocab_size": 100, "n_positions": 32, "activation_function": "gelu_new",
    }  # fmt: skip
    model = load_model(config)
    assert count_params(model).total == 2 * (12 * 256 + 13 * 16) + 132 * 16 + 2 * 16
    assert model.tied
    assert {a.key for a in model.assumed} == {"tie_word_embeddings"}
    assert ("n_inner", 64) in {(d.key, d.value) for d in model.derived}


def test_renamed_expert_keys_of_edited_copies() -> None:
    base = json.loads(json.dumps(load_source("deepseek-v3")))
    renamed = without(base, "n_routed_experts", "n_shared_experts") | {
        "num_routed_experts": 256,
        "num_shared_experts": 1,
    }
    assert total(renamed) == total(base) == 671_026_404_352


def load_source(name: str) -> dict[str, Any]:
    from importlib import resources

    text = (resources.files("mansard") / "data" / "models" / f"{name}.json").read_text()
    config: dict[str, Any] = json.loads(text)["config"]
    return config


def test_a_null_query_rank_projects_directly_and_a_missing_one_is_an_error() -> None:
    base = load_source("deepseek-v3")
    direct = load_model(base | {"q_lora_rank": None})
    block = next(b for b in direct.text.in_order()[0].blocks if isinstance(b, MlaAttention))
    assert block.q_rank is None
    # 61 layers: h*128*192 instead of h*1536 + 1536 + 1536*128*192.
    change = 61 * (7168 * 128 * 192 - 7168 * 1536 - 1536 - 1536 * 128 * 192)
    assert count_params(direct).total == 671_026_404_352 + change
    with pytest.raises(InputError, match="missing q_lora_rank"):
        load_model(without(base, "q_lora_rank"))


def test_class_defaults_of_a_nested_level_are_listed(shared: Path) -> None:
    """LLaVA leaves out the sizes of its decoder, Gemma 3 its heads: documented class defaults, each recorded."""
    llava = load_model(shared / "data/configs/llava-hf--llava-1.5-7b-hf_config.json")
    assumed = {a.key: (a.value, a.source) for a in llava.assumed}
    assert assumed["text_config.hidden_size"] == (4096, "transformers 5.24 LlamaConfig")
    assert assumed["text_config.num_hidden_layers"][0] == 32
    gemma = load_model(shared / "data/configs/google--gemma-3-4b-it-like_config.json")
    heads = {a.key: a.value for a in gemma.assumed}
    assert [heads[f"text_config.{k}"] for k in ("num_attention_heads", "num_key_value_heads", "head_dim")] == [
        8,
        4,
        256,
    ]
    assert attention(gemma).heads == 8


def test_a_tower_without_depth(shared: Path) -> None:
    model = load_model(shared / "data/configs/qwen2_5_vl__NexusGenV2_config.json")
    assert model.towers[0].depth == 32
    assert ("vision_config.depth", 32) in {(a.key, a.value) for a in model.assumed}


def test_windows_of_a_tower_are_blocks_of_patches(shared: Path) -> None:
    """Qwen2.5-VL: (112 // 14)^2 = 64 patches see each other on 28 of 32 layers; four layers see all."""
    tower = load_model(shared / "data/configs/Qwen--Qwen2.5-VL-7B-Instruct_config.json").towers[0]
    blocks = [b for layer in tower.in_order() for b in layer.blocks if isinstance(b, GqaAttention)]
    assert [i for i, b in enumerate(blocks) if b.chunk is None] == [7, 15, 23, 31]
    assert {b.chunk for b in blocks} == {None, 64}
    assert not any(b.causal for b in blocks)


def test_windows_by_layer() -> None:
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    config = TINY | {
        "model_type": "gpt_oss", "architectures": ["GptOssForCausalLM"], "num_local_experts": 4, "num_experts_per_tok": 2,
        "sliding_window": 8, "layer_types": kinds, "head_dim": 8, "attention_bias": True,
    }  # fmt: skip
    model = load_model(config)
    assert [attention(model, i).window for i in range(3)] == [8, None, 8]
    by_rule = load_model(without(config, "layer_types"))
    assert [attention(by_rule, i).window for i in range(3)] == [8, None, 8]
    assert "layer_types" in {d.key for d in by_rule.derived}
    with pytest.raises(InputError, match="layer_types is '2 entries'"):
        load_model(config | {"layer_types": kinds[:2]})
    with pytest.raises(UndecidedError, match="spiral_attention"):
        load_model(config | {"layer_types": ["spiral_attention", *kinds[1:]]})


def test_a_switched_off_window_is_off() -> None:
    config = TINY | {
        "model_type": "qwen2",
        "architectures": ["Qwen2ForCausalLM"],
        "sliding_window": 8,
        "max_window_layers": 1,
    }
    assert attention(load_model(config | {"use_sliding_window": False}), 2).window is None
    on = load_model(config | {"use_sliding_window": True})
    assert [attention(on, i).window for i in range(3)] == [None, 8, 8]


def test_experts_every_second_layer() -> None:
    config = TINY | {
        "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "num_hidden_layers": 4, "num_experts": 4,
        "num_experts_per_tok": 2, "moe_intermediate_size": 8, "decoder_sparse_step": 2, "mlp_only_layers": [3], "head_dim": 8,
        "use_sliding_window": False,
    }  # fmt: skip
    routed = [
        i for i, layer in enumerate(load_model(config).text.in_order()) if any(isinstance(b, Moe) for b in layer.blocks)
    ]
    assert routed == [1]
    with pytest.raises(InputError, match="num_experts_per_tok is 5"):
        load_model(config | {"num_experts_per_tok": 5})
    # The width of an expert is moe_intermediate_size, never the dense width beside it.
    assert moe(load_model(config)).width == 8
    with pytest.raises(InputError, match="missing moe_intermediate_size"):
        load_model(without(config, "moe_intermediate_size"))


def test_hybrid_patterns() -> None:
    config = {
        "model_type": "nemotron_h", "architectures": ["NemotronHForCausalLM"], "hidden_size": 32, "num_hidden_layers": 4,
        "hybrid_override_pattern": "M-*M", "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 48,
        "mamba_num_heads": 4, "mamba_head_dim": 16, "ssm_state_size": 8, "n_groups": 2, "conv_kernel": 4, "vocab_size": 100,
        "use_bias": False, "use_conv_bias": True, "mlp_bias": False, "mlp_hidden_act": "relu2", "tie_word_embeddings": False,
    }  # fmt: skip
    # Mamba-2: inner 64, channels 64 + 2*2*8 = 96; in (64+96+4)*32, conv 96*4 + 96, 3*4, norm 64, out 64*32.
    mamba = 164 * 32 + 480 + 12 + 64 + 2048
    assert total(config) == 2 * mamba + 2 * 32 * 48 + (2 * 32 * 32 + 2 * 16 * 32) + 5 * 32 + 2 * 3200
    assert {g.indices for g in load_model(config).text.groups} == {(0, 3), (1,), (2,)}
    with pytest.raises(InputError, match="length of the layer pattern"):
        load_model(config | {"num_hidden_layers": 5})
    with pytest.raises(UndecidedError, match="hybrid_override_pattern"):
        load_model(config | {"hybrid_override_pattern": "M-XM"})


def test_expand_that_contradicts_the_width(shared: Path) -> None:
    model = load_model(shared / "data/configs/tiiuae--falcon-mamba-7b_config.json")
    assert any("contradicts" in note for note in model.notes)
    block = next(b for b in model.text.in_order()[0].blocks if isinstance(b, Mamba1))
    assert block.inner == 8192


def test_encoder_decoder_depths(shared: Path) -> None:
    """num_hidden_layers of such files is the encoder alone; both depths are read from their own keys."""
    model = load_model(shared / "data/configs/openai--whisper-small_config.json")
    assert (model.text.depth, model.towers[0].depth) == (12, 12)
    config = json.loads((shared / "data/configs/facebook--bart-base_config.json").read_text())
    assert load_model(config | {"decoder_layers": 2}).text.depth == 2


def test_the_class_decides_the_head() -> None:
    assert total(TINY | {"architectures": ["LlamaModel"]}) == TINY_TOTAL - 3200
    assert total(
        TINY | {"architectures": ["LlamaForSequenceClassification"], "id2label": {"0": "a", "1": "b", "2": "c"}}
    ) == (TINY_TOTAL - 3200 + 3 * 32)
    with pytest.raises(UndecidedError, match="LlamaForRegression"):
        load_model(TINY | {"architectures": ["LlamaForRegression"]})
    assert "architectures" in {a.key for a in load_model(without(TINY, "architectures")).assumed}


def test_a_tied_head_multiplies_but_is_stored_once() -> None:
    tied = count_params(load_model(TINY | {"tie_word_embeddings": True}))
    untied = count_params(load_model(TINY))
    assert tied.total == untied.total - 3200
    assert tied.matmul == untied.matmul


@pytest.mark.parametrize("model_type", ["llama5", "some_new_thing", "deepseek_v9"])
def test_an_unknown_architecture_is_refused(model_type: str) -> None:
    with pytest.raises(UndecidedError, match=model_type) as caught:
        load_model(TINY | {"model_type": model_type, "architectures": ["NewForCausalLM"]})
    assert caught.value.hint
    assert caught.value.exit_code == 3


def test_an_undeclared_architecture_is_assumed_in_writing_or_refused() -> None:
    """Dimensions without any architecture: a plain decoder with every assumption listed; a hint at other blocks refuses."""
    model = load_model(without(TINY, "model_type", "architectures"))
    assert count_params(model).total == TINY_TOTAL
    assert model.architecture == "undeclared"
    assert {"architectures", "gated_mlp", "qk_norm"} <= {a.key for a in model.assumed}
    with pytest.raises(UndecidedError, match="kv_lora_rank"):
        load_model(without(TINY, "model_type", "architectures") | {"kv_lora_rank": 4})
    with pytest.raises(InputError, match="missing num_hidden_layers"):
        load_model(without(TINY, "model_type", "architectures", "num_hidden_layers"))


def test_the_worked_cases_without_an_architecture() -> None:
    """D12 and D13 as users give them, without model_type."""
    d12 = {
        "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "intermediate_size": 14336, "vocab_size": 128256, "hidden_act": "silu", "tie_word_embeddings": False,
    }  # fmt: skip
    assert total(d12) == 8_030_261_248
    d13 = without(d12, "hidden_act", "tie_word_embeddings") | {
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "vocab_size": 32000,
    }
    count = count_params(load_model(d13))
    assert (count.total, count.active) == (46_702_792_704, 12_879_925_248)


@pytest.mark.parametrize(
    ("key", "value"),
    [("hidden_size", "4096"), ("hidden_size", 0), ("hidden_size", -8), ("num_hidden_layers", 2.5), ("vocab_size", True),
     ("num_key_value_heads", 3), ("attention_bias", "yes"), ("num_hidden_layers", 10**7), ("text_config", 5), ("vocab_size", 1e300)],
)  # fmt: skip
def test_values_that_cannot_be(key: str, value: object) -> None:
    if key == "text_config":
        with pytest.raises(InputError, match="text_config"):
            load_model(
                {"model_type": "llava", "architectures": ["LlavaForConditionalGeneration"], "text_config": value}
            )
        return
    with pytest.raises(InputError, match=key):
        load_model(TINY | {key: value})


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for name, text in (("a.json", "{"), ("b.json", "[1]"), ("c.json", '{"model_type": "llama", ')):
        (tmp_path / name).write_text(text)
        with pytest.raises(InputError, match=name):
            load_model(tmp_path / name)
    (tmp_path / "d.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match=r"d\.json"):
        load_model(tmp_path / "d.json")
    with pytest.raises(InputError, match=r"no config\.json"):
        load_model(tmp_path)
    with pytest.raises(UsageError):
        load_model(tmp_path / "missing.json")


def test_a_folder_with_a_quantisation_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    (tmp_path / "hf_quant_config.json").write_text(
        json.dumps(
            {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
        )
    )
    quantisation = load_model(tmp_path).quantisation
    assert quantisation is not None
    assert not isinstance(quantisation, Unknown)
    assert (quantisation.kv_dtype, quantisation.source) == ("f8_e4m3", "hf_quant_config.json")


def test_keys_that_nobody_reads_are_listed() -> None:
    assert load_model(TINY | {"num_extra_heads": 3, "attention_dropout": 0.1}).unread == ("num_extra_heads",)


def test_every_error_is_one_of_ours() -> None:
    for source in ({}, {"model_type": 5}, {"architectures": []}, {"architectures": [3]}, {"model_type": "bert"}):
        with pytest.raises(MansardError):
            load_model(source)


def test_a_quantisation_file_is_not_a_configuration(tmp_path: Path) -> None:
    file = tmp_path / "hf_quant_config.json"
    file.write_text(json.dumps({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}}))
    with pytest.raises(MansardError, match="how a checkpoint is quantised") as caught:
        load_model(file)
    assert "config.json of the same checkpoint" in (caught.value.hint or "")
