"""Parameter counts: worked by hand, and every configuration of the shared folder against its published or known total."""

from __future__ import annotations

from pathlib import Path

import pytest

from mansard.core.errors import MansardError, UndecidedError
from mansard.workload.batch import decode_batch
from mansard.workload.cache import cache_layout
from mansard.workload.counts import count_params, count_stack
from mansard.workload.kernel import Types
from mansard.workload.model.load import load_model, shipped_models
from mansard.workload.phases import Setting
from mansard.workload.storage import Storage
from mansard.workload.weights import WeightStore

LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "mlp_bias": False,
    "hidden_act": "silu",
}


def test_tied_embeddings_and_declared_head_dim_d09() -> None:
    """Case D09: q 1024*2048, k and v 1024*1024 each, o 2048*1024, three matrices of 1024*3072."""
    config = {
        "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "hidden_size": 1024, "num_hidden_layers": 28,
        "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072, "vocab_size": 151936,
        "attention_bias": False, "hidden_act": "silu", "use_sliding_window": False,
    }  # fmt: skip
    layers = 28 * (1024 * 2048 + 2 * 1024 * 1024 + 2048 * 1024 + 3 * 1024 * 3072)
    head = 1024 * 151936
    norms = 28 * (2 * 1024 + 2 * 128) + 1024
    assert (layers, head, norms) == (440_401_920, 155_582_464, 65_536)
    tied = count_params(load_model(config | {"tie_word_embeddings": True}))
    untied = count_params(load_model(config | {"tie_word_embeddings": False}))
    assert tied.total == layers + head + norms == 596_049_920
    assert untied.total == layers + 2 * head + norms == 751_632_384
    # The head multiplies, tied or not: 6 * (440,401,920 + 155,582,464) = 3,575,906,304 FLOP per token in training.
    assert 6 * tied.matmul == 6 * untied.matmul == 3_575_906_304


def test_grouped_queries_and_gated_mlp_d12() -> None:
    """Case D12, Llama 3.1 8B: attention 2*4096^2 + 2*4096*1024 = 41,943,040; feed-forward 3*4096*14336 = 176,160,768."""
    config = LLAMA | {
        "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "intermediate_size": 14336, "vocab_size": 128256, "tie_word_embeddings": False,
    }  # fmt: skip
    count = count_params(load_model(config))
    matmul = 32 * (41_943_040 + 176_160_768) + 4096 * 128256
    assert count.matmul == count.matmul_active == matmul == 7_504_658_432
    assert count.total == count.active == matmul + 4096 * 128256 + 65 * 4096 == 8_030_261_248
    assert 6 * count.matmul == 45_027_950_592
    assert count.by_block == {
        "embedding": 525_336_576, "norm": 65 * 4096, "attention": 32 * 41_943_040, "mlp": 32 * 176_160_768, "head": 525_336_576,
    }  # fmt: skip
    assert sum(count.by_block.values()) == count.total


def test_total_and_active_experts_d13() -> None:
    """Case D13, Mixtral 8x7B: router 4096*8 = 32,768; 8 (2 active) experts of 176,160,768."""
    config = {
        "model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "hidden_size": 4096, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336, "num_local_experts": 8,
        "num_experts_per_tok": 2, "vocab_size": 32000, "hidden_act": "silu", "tie_word_embeddings": False,
    }  # fmt: skip
    count = count_params(load_model(config))
    assert count.matmul_active == 32 * (41_943_040 + 32_768 + 2 * 176_160_768) + 4096 * 32000 == 12_748_587_008
    assert count.total == 46_702_792_704
    assert count.active == count.matmul_active + 4096 * 32000 + 65 * 4096 == 12_879_925_248
    assert 6 * count.matmul_active == 76_491_522_048


@pytest.mark.parametrize(("step", "routed"), [(1, 4), (2, 2), (3, 1)])
def test_interleave_step_is_a_range(step: int, routed: int) -> None:
    """Experts sit at range(step - 1, L, step): step 1 is every layer, step 2 every second."""
    text = {
        "model_type": "llama4_text", "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 16, "intermediate_size": 32, "intermediate_size_mlp": 48, "vocab_size": 100, "num_local_experts": 4,
        "num_experts_per_tok": 1, "interleave_moe_layer_step": step, "use_qk_norm": False, "attention_bias": False,
        "hidden_act": "silu", "attention_chunk_size": 8, "tie_word_embeddings": False,
    }  # fmt: skip
    model = load_model(
        {"model_type": "llama4", "architectures": ["Llama4ForConditionalGeneration"], "text_config": text}
    )
    places = [i for g in model.text.groups for i in g.indices if any(type(b).__name__ == "Moe" for b in g.layer.blocks)]
    assert sorted(places) == list(range(step - 1, 4, step))
    assert len(places) == routed
    # 4 routed experts of 3*64*32 = 6,144, one shared of 6,144, a router of 4*64; dense layers 3*64*48 = 9,216.
    by_block = count_params(model).by_block
    assert by_block["experts"] == routed * 4 * 6_144
    assert by_block["shared_experts"] == routed * 6_144
    assert by_block["router"] == routed * 256
    assert by_block.get("mlp", 0) == (4 - routed) * 9_216


def test_deepseek_v3_against_its_published_tensors() -> None:
    """The published checkpoint (with the MTP layer and its own copies of table and head) holds, by type, 680,571,043,840 FP8,
    3,918,786,560 BF16 and 41,555,600 F32 elements (Hugging Face page of deepseek-ai/DeepSeek-V3): 684,489,830,400 weights.
    """
    count = count_params(load_model("deepseek-v3"))
    copies = 2 * 129280 * 7168
    assert count.total + count.mtp + copies == 680_571_043_840 + 3_918_786_560
    # 58 layers hold a routing bias of 256 that is stored, but is no parameter; the MTP layer holds one more.
    assert count.buffers == 58 * 256
    # Active: 37.55e9, published as 37B.
    assert count.active == 37_552_282_624


def test_kimi_k2_is_deepseek_v3_with_other_numbers(shared: Path) -> None:
    """One dense layer instead of three, 384 experts, 64 heads, another vocabulary; published as 1T total, 32B active."""
    count = count_params(load_model(shared / "data/configs/moonshotai--Kimi-K2-Instruct_config.json"))
    h, r = 7168, 1536
    attention = h * r + r * 64 * 192 + h * 576 + 512 * 64 * 256 + 64 * 128 * h
    norms = 61 * (2 * h + r + 512) + h
    dense = 3 * h * 18432
    expert = 3 * h * 2048
    routed = 60 * (384 * expert + expert + 384 * h)
    assert count.total == 61 * attention + norms + dense + routed + 2 * 163840 * h == 1_026_408_209_408
    assert (
        count.active == 61 * attention + norms + dense + 60 * (9 * expert + 384 * h) + 2 * 163840 * h == 32_861_477_888
    )


def test_kimi_k25_tower_by_hand(shared: Path) -> None:
    """Kimi K2.5 = the K2 decoder + MoonViT + merger; the tower is worked out from its keys."""
    model = load_model(shared / "data/configs/moonshotai--Kimi-K2.5_config.json")
    w, f, layers = 1152, 4304, 27
    layer = 4 * w * w + 4 * w + 2 * w * f + f + w + 4 * w
    patches = w * 3 * 14 * 14 + w + 64 * 64 * w
    merger = 2 * w + (4 * w) ** 2 + 4 * w + 4 * w * 7168 + 7168
    assert count_stack(model.towers[0]).total == layers * layer + patches + 2 * w + merger
    assert (
        count_params(model).total == 1_026_408_209_408 + layers * layer + patches + 2 * w + merger == 1_026_879_353_328
    )


def test_mimo_by_hand(shared: Path) -> None:
    """MiMo 7B: biases on q, k, v; 36 layers of 4096 with 11008; one MTP layer beside the 7.62e9 of the main model."""
    count = count_params(load_model(shared / "data/configs/XiaomiMiMo--MiMo-7B-Base_config.json"))
    layer = 2 * 4096**2 + 2 * 4096 * 1024 + (4096 + 2 * 1024) + 3 * 4096 * 11008 + 2 * 4096
    assert count.total == 36 * layer + 2 * 151680 * 4096 + 4096 == 7_622_619_136
    assert count.mtp == layer + 2 * 4096 * 4096 + 3 * 4096 == 210_790_400


# File: total parameters, and where that total is confirmed. `hf`: the class of transformers 5.24 on the meta device.
EXPECTED: dict[str, tuple[int, str]] = {
    "MiniMaxAI--MiniMax-M2.5": (228_689_748_992, "hf"),
    "Qwen--Qwen2.5-VL-7B-Instruct": (8_292_166_656, "hf, published 8.29B"),
    "Qwen--Qwen3-0.6B": (596_049_920, "hf, case D09"),
    "Qwen--Qwen3-235B-A22B-FP8": (235_093_634_560, "hf, published 235B"),
    "Qwen--Qwen3-235B-A22B": (235_093_634_560, "hf"),
    "Qwen--Qwen3-30B-A3B": (30_532_122_624, "hf, published 30.5B"),
    "Qwen--Qwen3-32B-FP8-Static-PerTensor": (32_762_123_264, "hf"),
    "Qwen--Qwen3-32B-FP8": (32_762_123_264, "hf"),
    "Qwen--Qwen3-32B": (32_762_123_264, "hf, published 32.8B"),
    "Qwen--Qwen3-8B": (8_190_735_360, "hf, published 8.2B"),
    "Qwen--Qwen3-Coder-480B-A35B-Instruct": (480_154_875_392, "hf, published 480B"),
    "Qwen--Qwen3-VL-30B-A3B-Instruct": (31_070_754_032, "hf"),
    "Qwen--Qwen3.5-397B-A17B": (396_802_360_816, "hf, published 397B"),
    "XiaomiMiMo--MiMo-7B-Base": (7_622_619_136, "by hand above"),
    "arnir0--Tiny-LLM": (12_988_992, "hf"),
    "bart-base__SMILES": (140_139_264, "hf"),
    "bert-base-uncased__TPC-NAS": (124_696_665, "hf"),
    "deepseek-ai--DeepSeek-R1": (671_026_404_352, "hf, published tensors"),
    "deepseek-ai--DeepSeek-V4-Pro": (1_572_997_179_491, "hf, published 1.6T"),
    "deepseek-ai--DeepSeek-V3.2": (671_877_929_216, "hf"),
    "deepseek-ai--DeepSeek-V3": (671_026_404_352, "hf, published tensors"),
    "facebook--bart-base": (139_420_416, "hf, published 139M"),
    "google--gemma-3-4b-it-like": (4_300_079_472, "hf, published 4.3B"),
    "google-bert--bert-base-multilingual-cased": (177_974_523, "hf, published 178M"),
    "gpt2": (124_439_808, "hf, published 124M"),
    "infersim__deepseek_v3.2": (671_877_929_216, "hf"),
    "infersim__deepseek_v3": (671_026_404_352, "hf"),
    "infersim__qwen3-235B-A22B": (235_093_634_560, "hf"),
    "infersim__qwen3-30B-A3B": (30_532_122_624, "hf"),
    "infersim__qwen3-8B": (8_190_735_360, "hf"),
    "infersim__qwen3.5-122B-A10B": (122_562_817_776, "hf"),
    "infersim__qwen3.5-35B-A3B": (35_107_181_936, "hf"),
    "llava-hf--llava-1.5-7b-hf": (7_063_427_072, "hf, published 7.06B"),
    # The file has no vision_config, so the tower (which transformers would make up) is not counted: published 400B.
    "meta-llama--Llama-4-Maverick-17B-128E-Instruct": (400_711_848_960, "hf without its default tower of 455,178,240"),
    "meta-llama--Meta-Llama-3.1-405B": (405_853_388_800, "hf, published 405.9B"),
    "meta-llama--Meta-Llama-3.1-70B": (70_553_706_496, "hf, published 70.6B"),
    "meta-llama--Meta-Llama-3.1-8B": (8_030_261_248, "hf, case D12"),
    "microsoft--Phi-3-mini-4k-instruct": (3_821_079_552, "hf, published 3.82B"),
    "microsoft--Phi-3.5-mini-instruct": (3_821_079_552, "hf"),
    "microsoft--phi-2": (113_332_736, "hf; the file has 2 layers of 768"),
    "mistralai--Mixtral-8x7B-v0.1": (46_702_792_704, "hf, case D13"),
    "moonshotai--Kimi-K2-Instruct": (1_026_408_209_408, "by hand above"),
    "moonshotai--Kimi-K2.5": (1_026_879_353_328, "by hand above"),
    "nvidia--DeepSeek-V3.1-NVFP4": (671_026_404_352, "hf"),
    "nvidia--Gemma-4-31B-IT-NVFP4": (31_273_086_512, "hf"),
    "nvidia--Llama-3.1-70B-Instruct-FP8": (70_553_706_496, "hf"),
    "nvidia--NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4": (120_668_687_360, "hf, published 120B total, 12B active"),
    "nvidia--Nemotron-H-56B-Base-8K": (56_324_350_464, "hf"),
    "openai--gpt-oss-120b": (116_829_156_672, "hf, published 116.83B"),
    "openai--whisper-small": (241_734_912, "hf"),
    "qwen2_5_vl__NexusGenV2": (8_292_166_656, "hf"),
    "sentence-transformers--all-MiniLM-L6-v1": (22_713_216, "hf, published 22.7M"),
    "tiiuae--falcon-mamba-7b": (7_272_665_088, "hf, published 7.27B"),
    "tiny-random-GPTNeoX": (99_545, "hf"),
    "tiny-random-Granite": (3_166_368, "hf"),
    "tiny-xlm-roberta": (2_160_522, "hf"),
    "torchtitan__clip-tiny": (427_616_513, "hf, published 428M (CLIP ViT-L/14)"),
    # transformers 5 ties this head whatever the file says: it counts 11,003,736,064, one matrix of 32128*4096 less.
    "torchtitan__t5-v1_1-xxl-tiny": (11_135_332_352, "published 11.1B, untied as the file says"),
    "zai-org--GLM-4.5": (107_710_927_360, "hf, published 108B (GLM-4.5V)"),
}
UNKNOWN: set[str] = set()


def test_every_shared_configuration(shared: Path) -> None:
    """61 files, 59 models: each is counted exactly; one that is not would have to be refused with what is needed."""
    folder = shared / "data/configs"
    files = sorted(p for p in folder.glob("*_config.json") if not p.name.endswith("hf_quant_config.json"))
    assert len(files) == 59
    names = {p.name.removesuffix("_config.json") for p in files}
    assert names == set(EXPECTED) | UNKNOWN
    got: dict[str, int] = {}
    for path in files:
        name = path.name.removesuffix("_config.json")
        if name in UNKNOWN:
            with pytest.raises(UndecidedError) as caught:
                load_model(path)
            assert caught.value.hint
            continue
        got[name] = count_params(load_model(path)).total
    assert got == {name: total for name, (total, _) in EXPECTED.items()}
    assert len(got) >= 52


def test_deepseek_v4_is_counted_but_its_phases_are_open(shared: Path) -> None:
    """1.57e12 parameters, 49.8e9 active (published 1.6T and 49B); what its attention reads is not modelled, and says so."""
    model = load_model(shared / "data/configs/deepseek-ai--DeepSeek-V4-Pro_config.json")
    h, rank, heads = 7168, 1536, 128
    common = (
        h * rank + rank + rank * heads * 512 + h * 512 + 512 + (heads * 512 // 16) * 16 * 1024 + 16 * 1024 * h + heads
    )
    heavy = 2 * h * 512 + 128 * 512 + 512
    light = 2 * h * 1024 + 4 * 1024 + 512 + 2 * h * 256 + 4 * 256 + 128 + rank * 64 * 128 + h * 64
    streams = 2 * (24 * 4 * h + 24 + 3)
    routed = 385 * 3 * h * 3072 + 384 * h
    rest = 2 * 129280 * h + h + 4 * 4 * h + 4 + 1
    count = count_params(model)
    assert count.total == 61 * (common + streams + 2 * h + routed) + 31 * heavy + 30 * light + rest == 1_572_997_179_491
    assert count.active == count.total - 61 * 378 * 3 * h * 3072
    assert model.phase_gap is not None
    assert cache_layout(model, dtype="bf16") == model.phase_gap
    with pytest.raises(UndecidedError, match="compressed attention"):
        Setting(
            model=model,
            storage=Storage(store=WeightStore(model, "bf16", False), dtype="bf16"),
            types=Types(activation="bf16", cache="bf16"),
        ).context(decode_batch(context=100, sequences=1))


ACTIVE = {
    # Published: 22B, 3.3B, 35B, 17B, 37B, 32B, 17B (with embeddings), 12B, 10B.
    "Qwen--Qwen3-235B-A22B": 22_190_763_520, "Qwen--Qwen3-30B-A3B": 3_353_032_704,
    "Qwen--Qwen3-Coder-480B-A35B-Instruct": 35_474_765_312, "Qwen--Qwen3.5-397B-A17B": 17_805_051_376,
    "deepseek-ai--DeepSeek-V3": 37_552_282_624, "moonshotai--Kimi-K2-Instruct": 32_861_477_888,
    "meta-llama--Llama-4-Maverick-17B-128E-Instruct": 17_184_691_200,
    "nvidia--NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4": 12_770_216_960, "MiniMaxAI--MiniMax-M2.5": 11_030_537_216,
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(ACTIVE))
def test_active_parameters(shared: Path, name: str) -> None:
    assert count_params(load_model(shared / f"data/configs/{name}_config.json")).active == ACTIVE[name]


def test_gpt_oss_active_matches_the_card(shared: Path) -> None:
    """Published: 5.13B active, which leaves out the token table of 201088*2880 = 579,133,440."""
    count = count_params(load_model(shared / "data/configs/openai--gpt-oss-120b_config.json"))
    assert count.active - count.embedding == 5_711_982_912 - 579_133_440 == 5_132_849_472


def test_shipped_models_are_complete() -> None:
    """Every shipped configuration counts to the total in its file, with nothing assumed and nothing left unread."""
    import json
    from importlib import resources

    assert {"llama-3.1-8b", "llama-3.1-70b", "qwen3-30b-a3b", "mixtral-8x7b", "deepseek-v3", "gpt2"} <= set(
        shipped_models()
    )
    for name in shipped_models():
        record = json.loads((resources.files("mansard") / "data" / "models" / f"{name}.json").read_text())
        model = load_model(name)
        assert count_params(model).total == record["params"], name
        assert record["source"], name
        assert record["licence_of_weights"], name
        assert (model.assumed, model.unread) == ((), ()), name


def test_a_name_that_is_nothing() -> None:
    with pytest.raises(MansardError, match="not a shipped name"):
        load_model("no-such-model")
