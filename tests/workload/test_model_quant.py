"""Weight bytes: scales, zero points, shapes and exclusions, against published checkpoint sizes and hand counts."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from mansard.core.errors import InputError
from mansard.core.unknown import Unknown
from mansard.workload.model.load import load_model
from mansard.workload.records import Model, Quantisation
from mansard.workload.weights import WeightBytes, WeightStore, weight_bytes

D12: dict[str, Any] = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "hidden_act": "silu",
    "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": False, "dtype": "bfloat16",
}  # fmt: skip
INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": True}


def known(model: Model, **options: Any) -> WeightBytes:
    size = weight_bytes(model, **options)
    assert isinstance(size, WeightBytes)
    return size


def quantised(**entry: Any) -> Model:
    return load_model(D12 | {"quantization_config": entry})


def test_w4a16_of_8b_d22() -> None:
    """Case D22: 6,979,321,856 * (4 + 16/128)/8 = 3,598,712,832; tables 2 * 525,336,576 * 2 = 2,101,346,304; norms 532,480.

    Together 5,700,591,616; the published checkpoint has 5,700,595,200: 224 matrices that store their shape in 16 bytes.
    """
    size = known(
        quantised(
            quant_method="compressed-tensors",
            format="pack-quantized",
            ignore=["lm_head"],
            config_groups={"group_0": {"targets": ["Linear"], "weights": INT4}},
        )
    )
    assert size.quantised + size.scales == 3_598_712_832
    assert size.unquantised == 2_101_346_304 + 532_480
    assert size.total - size.extras == 5_700_591_616
    assert size.extras == 224 * 16
    assert size.total == 5_700_595_200
    assert size.quantised_params == 6_979_321_856
    assert sum(size.by_block.values()) == size.total


def test_four_and_a_half_bits_of_mlx_d22() -> None:
    """Case D22: 4 bits, a 16-bit scale and a 16-bit bias per 64 elements are 4.5 bits; tables are quantised too."""
    size = known(load_model(D12 | {"quantization": {"bits": 4, "group_size": 64}}))
    matrices = 6_979_321_856 + 2 * 525_336_576
    assert size.total == matrices * 4.5 / 8 + 65 * 4096 * 2
    assert 3_659_737_600 * 4.5 / 8 == 2_058_602_400


def test_unquantised_is_two_bytes_each() -> None:
    assert known(load_model(D12)).total == 2 * 8_030_261_248
    assert known(load_model(D12), dtype="f32").total == 4 * 8_030_261_248
    # A quantised checkpoint, seen as if nothing were quantised.
    assert (
        known(quantised(quant_method="fp8", weight_block_size=[128, 128]), quantisation=False).total
        == 2 * 8_030_261_248
    )


def test_no_dtype_is_unknown() -> None:
    config = {key: value for key, value in D12.items() if key != "dtype"}
    size = weight_bytes(load_model(config))
    assert isinstance(size, Unknown)
    assert size.needs == ("dtype",)


def test_gptq_awq_and_bitsandbytes() -> None:
    """Per matrix of (o, i): GPTQ o*i/2 + o*i/128*(2 + 1/2) + 4*i; AWQ the same without indices; NF4 o*i/2 + 4 per 64."""
    body, kept = 6_979_321_856, 2 * (2 * 525_336_576 + 65 * 4096)
    inputs = 32 * (6 * 4096 + 14336)
    gptq = known(quantised(quant_method="gptq", bits=4, group_size=128, desc_act=False))
    assert gptq.total == body / 2 + body / 128 * 2.5 + 4 * inputs + kept
    awq = known(quantised(quant_method="awq", bits=4, group_size=128, zero_point=True))
    assert awq.total == body / 2 + body / 128 * 2.5 + kept
    nf4 = known(quantised(quant_method="bitsandbytes", load_in_4bit=True, bnb_4bit_quant_type="nf4"))
    assert nf4.total == body / 2 + body / 64 * 4 + kept
    double = known(quantised(quant_method="bitsandbytes", load_in_4bit=True, bnb_4bit_use_double_quant=True))
    assert double.total == body / 2 + body / 64 * (1 + 4 / 256) + kept


def test_a_group_of_minus_one_is_one_scale_per_row() -> None:
    """Rows: q 4096, k and v 1024, o 4096, gate and up 14336, down 4096; 2 + 1/2 bytes each."""
    rows = 32 * (4096 + 2 * 1024 + 4096 + 2 * 14336 + 4096)
    assert known(quantised(quant_method="awq", bits=4, group_size=-1)).scales == rows * 2.5


@pytest.mark.parametrize(
    "entry",
    [
        {"quant_method": "aqlm"}, {"quant_method": "modelopt", "quant_algo": "W4A8"}, {"quant_method": "gptq", "bits": 3, "group_size": 128},
        {"quant_method": "bitsandbytes"}, {"quant_method": "modelopt", "quant_algo": "NVFP4"},
    ],
)  # fmt: skip
def test_an_unknown_method_is_unknown_not_another(entry: dict[str, Any]) -> None:
    size = weight_bytes(quantised(**entry))
    assert isinstance(size, Unknown)
    assert size.needs


def test_a_broken_entry_is_named() -> None:
    with pytest.raises(InputError, match="quantization_config"):
        quantised(quant_method="fp8", weight_block_size="128")


def test_block_scales_round_up() -> None:
    """Blocks of 128 x 128: k and v of 8 heads * 100 are 800 x 4096, so 7 * 32 scales, not 6.25 * 32."""
    config = D12 | {"head_dim": 100, "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    # q (3200, 4096): 25*32; k, v (800, 4096): 7*32 each; o (4096, 3200): 32*25; three of 112*32.
    scales = 32 * (25 * 32 + 2 * 7 * 32 + 32 * 25 + 3 * 112 * 32)
    assert known(load_model(config)).scales == 4 * scales


def test_deepseek_v3_tensors_by_type(shared: Path) -> None:
    """Published elements: FP8 680,571,043,840; BF16 3,918,786,560; F32 41,555,600, of which 59*256 are routing biases.

    The checkpoint holds the MTP layer with its own copies of table and head (2 * 926,679,040 BF16 elements).
    """
    model = load_model(shared / "data/configs/deepseek-ai--DeepSeek-V3_config.json")
    store = WeightStore(model)
    fp8 = bf16 = scales = biases = 0.0
    for part in (False, True):
        for _stack, _path, weight, copies, stored in store.every(mtp=part):
            if weight.role == "buffer":
                biases += copies * weight.elements
            elif stored.quantised:
                fp8 += copies * stored.elements
                scales += copies * stored.scales / 4
            else:
                bf16 += copies * stored.elements / 2
    assert fp8 == 680_571_043_840
    assert bf16 + 2 * 926_679_040 == 3_918_786_560
    assert scales + biases == 41_555_600


def test_gpt_oss_experts_are_mxfp4(shared: Path) -> None:
    """Experts 36*128*3*2880^2 at 4 + 8/32 bits, the rest in BF16: 65,248,815,744 B, the published total_size."""
    path = shared / "data/configs/openai--gpt-oss-120b_config.json"
    assert isinstance(weight_bytes(load_model(path)), Unknown)  # The file states no dtype.
    size = known(load_model(path), dtype="bf16")
    experts = 36 * 128 * 3 * 2880**2
    assert size.quantised_params == experts
    assert size.total == experts * 4.25 / 8 + 2 * (116_829_156_672 - experts) == 65_248_815_744


def test_kimi_k25_excludes_by_expressions(shared: Path) -> None:
    """Only routed experts are int4: `re:` entries keep attention, shared experts and the dense layer."""
    model = load_model(shared / "data/configs/moonshotai--Kimi-K2.5_config.json")
    size = known(model)
    experts = 60 * 384 * 3 * 7168 * 2048
    assert size.quantised_params == experts
    assert size.quantised + size.scales == experts * 4.5 / 8
    assert size.extras == 60 * 384 * 3 * 16


def test_nvfp4_with_a_list_beside_it(shared: Path) -> None:
    """hf_quant_config.json of DeepSeek V3.1 keeps q and kv projections, the head and layer 61 (MTP); o_proj is quantised."""
    model = load_model(shared / "data/configs/nvidia--DeepSeek-V3.1-NVFP4_config.json")
    assert isinstance(model.quantisation, Quantisation)
    assert model.quantisation.kv_dtype == "f8_e4m3"
    size = known(model)
    o_proj, dense, expert = 128 * 128 * 7168, 3 * 7168 * 18432, 3 * 7168 * 2048
    params = 61 * o_proj + 3 * dense + 58 * 257 * expert
    assert size.quantised_params == params
    assert size.quantised + size.scales == params * (4 + 8 / 16) / 8
    assert size.extras == 8 * (61 + 3 * 3 + 58 * 257 * 3)
    assert size.mtp > 2 * 11_610_067_968  # All BF16, and fp32 routing biases.


def test_gemma_keeps_attention_and_towers(shared: Path) -> None:
    """Only the 60 feed-forward blocks of 3*5376*21504 are NVFP4."""
    size = known(load_model(shared / "data/configs/nvidia--Gemma-4-31B-IT-NVFP4_config.json"))
    assert size.quantised_params == 60 * 3 * 5376 * 21504


def test_per_tensor_fp8_has_two_numbers_per_matrix(shared: Path) -> None:
    size = known(load_model(shared / "data/configs/Qwen--Qwen3-32B-FP8-Static-PerTensor_config.json"))
    assert size.extras == 64 * 7 * 8
    assert size.scales == 0


def test_qwen_fp8_lists_routers_by_layer(shared: Path) -> None:
    """Everything but tables, head, norms and routers: 235,093,634,560 - 2*622,329,856 - routers 94*128*4096 - norms."""
    size = known(load_model(shared / "data/configs/Qwen--Qwen3-235B-A22B-FP8_config.json"))
    norms = 94 * (2 * 4096 + 256) + 4096
    assert size.quantised_params == 235_093_634_560 - 2 * 622_329_856 - 94 * 128 * 4096 - norms


def test_mean_over_layers_is_exact() -> None:
    """An exclusion of one layer of 32: the mean over layers, times 32, is the sum."""
    entry = {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head", "model.layers.3.mlp*"]}
    model = quantised(**entry)
    store = WeightStore(model)
    up = next(w for w in model.text.groups[0].layer.weights() if w.name == "mlp.up_proj")
    each = 4096 * 14336
    assert 32 * store.bytes_of(up, model.text.path) == pytest.approx(31 * (each + 8) + 2 * each)
    assert store.is_quantised(up, model.text.path)
    head = model.head[0].weights()[0]
    assert store.bytes_of(head, "") == 2 * 525_336_576


def test_the_caller_may_describe_another_storage() -> None:
    model = load_model(D12)
    other = quantised(quant_method="fp8").quantisation
    assert isinstance(other, Quantisation)
    size = known(model, quantisation=other)
    assert size.quantised == 6_979_321_856
    assert copy.copy(model) == model


NEMOTRON = {
    "model_type": "nemotron_h", "architectures": ["NemotronHForCausalLM"], "hidden_size": 64, "num_hidden_layers": 2,
    "hybrid_override_pattern": "*E", "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 128,
    "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1, "moe_intermediate_size": 32,
    "moe_shared_expert_intermediate_size": 32, "mlp_hidden_act": "relu2", "tie_word_embeddings": False, "dtype": "bfloat16",
}  # fmt: skip
# Matrices: q 64 x 64, k and v 64 x 32 each, o 64 x 64; router 4 x 64; 4 experts and one shared of 2 x 64 x 32; head 128 x 64.
NEMOTRON_EXPERT = 2 * 64 * 32


def beside(tmp_path: Path, config: dict[str, object], quantisation: dict[str, object]) -> WeightBytes | Unknown:
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"quantization": quantisation}))
    return weight_bytes(load_model(tmp_path))


def test_each_module_has_its_own_algorithm(tmp_path: Path) -> None:
    layers = {"backbone.layers.0.mixer.o_proj": {"quant_algo": "FP8"}, "lm_head": {"quant_algo": "MXFP8"}}
    for expert in range(4):
        for matrix in ("up_proj", "down_proj"):
            layers[f"backbone.layers.1.mixer.experts.{expert}.{matrix}"] = {
                "quant_algo": "W4A16_NVFP4",
                "group_size": 16,
            }
    found = beside(tmp_path, NEMOTRON, {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers})
    assert isinstance(found, WeightBytes)
    # Elements: o at 8 bits, the head at 8 bits, the experts at 4.
    assert found.quantised == 64 * 64 + 128 * 64 + 4 * NEMOTRON_EXPERT / 2
    # A byte per 32 of the head, a byte per 16 of the experts; 8 B for o, 4 B for each of 8 matrices of experts.
    assert found.scales == 128 * 64 / 32 + 4 * NEMOTRON_EXPERT / 16
    assert found.extras == 8 + 8 * 4


def test_nvfp4_has_groups_of_16_and_a_checkpoint_says_what_it_left_alone(tmp_path: Path) -> None:
    stated = beside(
        tmp_path, NEMOTRON, {"quant_algo": "NVFP4", "exclude_modules": ["lm_head", "backbone.layers.0.mixer.q_proj"]}
    )
    assert isinstance(stated, WeightBytes)
    quantised = 2 * 64 * 32 + 64 * 64 + 5 * NEMOTRON_EXPERT  # k, v, o and all five experts
    assert (stated.quantised, stated.scales) == (quantised / 2, quantised / 16)
    silent = beside(tmp_path, NEMOTRON, {"quant_algo": "NVFP4"})
    assert isinstance(silent, Unknown)
    assert "which modules" in silent.reason
