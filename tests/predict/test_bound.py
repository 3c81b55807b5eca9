"""Bounds of phases on machines made by hand: the worked numbers, both methods, launches, messages, memory."""

from __future__ import annotations

import pytest

from mansard.core import Area, Bound, Ceiling, Ceilings, Kind, MemoryLevel, Resource, Unknown
from mansard.core.errors import InputError, UsageError
from mansard.predict.bound import machine_of
from mansard.predict.document import estimate_document
from mansard.predict.estimate import Request, estimate
from mansard.workload.model.load import load_model
from mansard.workload.parallel import Plan
from mansard.workload.training import Recipe


def machine(
    *, bytes_per_s=4.0e12, peaks=(("bf16", 990e12),), capacity=96e9, link=None, latency=None, cache=None, scope="device"
):
    """A machine with one memory, and matrix peaks that accumulate in f32."""
    rows = [
        Ceiling(resource=Resource(area=Area.MEMORY, level="hbm"), value=bytes_per_s, unit="B/s", kind=Kind.DECLARED,
                scope=scope)
    ]  # fmt: skip
    for dtype, value in peaks:
        resource = Resource(area=Area.COMPUTE, dtype=dtype, accumulate="f32", engine="matrix")
        rows.append(Ceiling(resource=resource, value=value, unit="FLOP/s", kind=Kind.DECLARED, scope=scope))
    if link is not None:
        conditions = {} if latency is None else {"latency_s": latency}
        rows.append(
            Ceiling(resource=Resource(area=Area.NETWORK, link="nvlink"), value=link, unit="B/s", kind=Kind.DECLARED,
                    scope=scope, conditions=conditions)
        )  # fmt: skip
    levels = (MemoryLevel(level="hbm", capacity_bytes=capacity),)
    return machine_of(Ceilings(ceilings=tuple(rows), levels=levels), name="by hand", on_chip_bytes=cache)


QWEN = "qwen3-30b-a3b"


def test_qwen3_30b_a3b_at_four_terabytes_per_second():
    # 6.486 GB / 4.0 TB/s = 1.6215 ms = 616.7 token/s
    result = estimate(load_model(QWEN), Request(phase="decode", context=4096), machine())
    assert result.bound.bytes == pytest.approx(6.486e9, rel=1e-4)
    assert result.bound.time_s == pytest.approx(1.6215e-3, rel=2e-4)
    assert result.tokens_per_s == pytest.approx(616.7, rel=2e-4)
    assert result.bound.bound is Bound.MEMORY
    # 4.8 TB/s: 1.351 ms
    faster = estimate(load_model(QWEN), Request(phase="decode", context=4096), machine(bytes_per_s=4.8e12))
    assert faster.bound.time_s == pytest.approx(1.351e-3, rel=5e-4)
    # the LM head alone: 622 MB, 156 us
    head = next(k for k in result.bound.kernels if k.kernel.name == "lm_head")
    assert head.demand.bytes == 622_329_856
    assert head.time_s == pytest.approx(156e-6, rel=3e-3)


def test_every_weight_once_beside_it():
    result = estimate(load_model(QWEN), Request(phase="decode", context=4096), machine())
    once = result.once
    # Rounded 3.3e9 active parameters: 6.6 GB, 1.65 ms. The exact 3,353,032,704 with the table: 6.706 GB, 1.677 ms.
    assert once.bytes == 2 * 3_353_032_704
    assert once.bytes == pytest.approx(6.6e9, rel=0.02)
    assert once.time_s == pytest.approx(1.65e-3, rel=0.02)
    assert once.matmul_bytes == 2 * 3_041_656_832
    # all weights: 61 GB, 15 ms
    assert once.all_bytes == 2 * 30_532_122_624
    assert once.all_time_s == pytest.approx(15.3e-3, rel=5e-3)
    # which a prefill and large batches approach
    large = estimate(load_model(QWEN), Request(phase="decode", batch=512, context=1), machine())
    assert large.bound.time_s == pytest.approx(once.all_time_s, rel=0.04)


def test_eight_launches_of_three_microseconds_per_layer():
    # 8 * 48 * 3 us = 1.152 ms more
    plain = estimate(load_model(QWEN), Request(phase="decode", context=4096), machine())
    asked = Request(phase="decode", context=4096, launch_s=3e-6, launches_per_layer=8)
    slow = estimate(load_model(QWEN), asked, machine())
    assert slow.bound.time_s - plain.bound.time_s == pytest.approx(1.152e-3)
    assert slow.bound.fixed_s == pytest.approx(1.152e-3)
    # By its own list: as many launches as kernels
    listed = estimate(load_model(QWEN), Request(phase="decode", context=4096, launch_s=3e-6), machine())
    count = sum(k.count for k in plain.phase.kernels)
    assert listed.bound.time_s - plain.bound.time_s == pytest.approx(count * 3e-6)
    with pytest.raises(UsageError):
        estimate(load_model(QWEN), Request(phase="decode", context=4096, launches_per_layer=8), machine())


def test_ridge_of_four_terabytes_and_990_teraflops():
    m = machine()
    peak = m.ceilings.peak("bf16", scope="device").value
    assert peak / m.ceilings.bandwidth("hbm", scope="device").value == pytest.approx(247, abs=1)


@pytest.mark.parametrize(
    ("batch", "context", "step_ms", "rate"),
    # D23: (7,504,658,432 matrices + norms) * 2 B, then + 32 * 8192 * 131,072 B of cache, at 4.8 TB/s
    [(1, 0, 3.1271, 319.8), (32, 8192, 10.2853, 3111.2)],
)
def test_decode_ceiling_of_reports(batch, context, step_ms, rate):
    request = Request(phase="decode", batch=batch, context=context)
    result = estimate(load_model("llama-3.1-8b"), request, machine(bytes_per_s=4.8e12))
    assert result.bound.time_s * 1e3 == pytest.approx(step_ms, rel=1e-3)
    assert result.tokens_per_s == pytest.approx(rate, rel=1e-3)


def test_bandwidth_over_size_of_reports():
    # D23: 40 GB/s over 32 GB; 25.77 token/s of 0.398 GB
    assert 40e9 / 32e9 == 1.25
    assert pytest.approx(10.256e9, rel=1e-3) == 25.77 * 0.398e9


def test_a_trillion_dense_parameters():
    # 2e12 B over 21 devices of 4.0 TB/s: 23.8 ms, 42 token/s
    hidden, layers = 16384, 310
    model = load_model({
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": hidden, "num_hidden_layers": layers,
        "num_attention_heads": 128, "num_key_value_heads": 128, "intermediate_size": 4 * hidden * 2 // 3, "vocab_size": 32000,
        "hidden_act": "silu", "tie_word_embeddings": False, "torch_dtype": "bfloat16", "max_position_embeddings": 4096,
    })  # fmt: skip
    result = estimate(model, Request(phase="decode", context=1), machine())
    assert result.params.total == pytest.approx(1e12, rel=0.01)
    assert not result.fit.fits
    assert result.fit.devices_at_least == 21
    assert result.bound.time_s / 21 == pytest.approx(24e-3, rel=0.02)


def test_a_missing_peak_makes_the_verdict_undetermined_not_the_bound():
    request = Request(phase="decode", context=128, weights="fp8", activations="fp8")
    result = estimate(load_model("llama-3.1-8b"), request, machine())
    row = next(k for k in result.bound.kernels if k.kernel.name == "qkv_proj")
    assert row.bound is Bound.UNDETERMINED
    assert not isinstance(result.bound.time_s, Unknown)
    assert any("f8_e4m3" in u.reason for u in result.bound.unknown)
    head = next(k for k in result.bound.kernels if k.kernel.name == "lm_head")
    assert head.bound is Bound.MEMORY


def test_activations_count_where_they_leave_the_chip():
    request = Request(phase="prefill", seq=8192)
    model = load_model("llama-3.1-8b")
    nothing, small, vast = (estimate(model, request, machine(cache=c)).bound.bytes for c in (None, 1.0, 1e15))
    assert nothing == vast
    result = estimate(model, request, machine(cache=1.0))
    assert small == pytest.approx(result.phase.device_bytes + result.phase.device_local_bytes)


def test_messages_wait_in_inference_and_hide_in_training():
    model = load_model("llama-3.1-8b")
    m = machine(link=450e9, latency=1e-6)
    request = Request(phase="decode", batch=4, context=1000, plan=Plan(tp=8))
    result = estimate(model, request, m)
    # 65 all-reduces: 2 * 7/8 * 4 * 4096 * 2 B over 450 GB/s, and 14 steps of 1 us
    one = 2 * 7 / 8 * 4 * 4096 * 2 / 450e9 + 14e-6
    assert result.bound.messages_s == pytest.approx(65 * one)
    assert result.bound.time_s == pytest.approx(result.bound.compute_s + 65 * one)
    train = Request(phase="train", seq=1024, batch=8, plan=Plan(dp=8))
    hidden = estimate(model, train, m)
    assert hidden.bound.time_s == pytest.approx(max(hidden.bound.compute_s, hidden.bound.messages_s))
    shown = estimate(model, Request(phase="train", seq=1024, batch=8, plan=Plan(dp=8), overlap="none"), m)
    assert shown.bound.time_s == pytest.approx(shown.bound.compute_s + shown.bound.messages_s)


def test_tensor_parallelism_is_never_free():
    model = load_model("llama-3.1-8b")
    no_link = machine()
    result = estimate(model, Request(phase="decode", context=1000, plan=Plan(tp=8)), no_link)
    row = next(k for k in result.bound.kernels if k.kernel.name == "all_reduce_tp")
    assert row.bound is Bound.UNDETERMINED
    assert any("link" in u.reason for u in result.bound.unknown)


def test_measured_times_become_mfu_and_a_share_of_the_bound():
    m = machine(peaks=(("bf16", 312e12),))
    result = estimate(load_model("llama-3.1-8b"), Request(phase="train", seq=8192, recipe=Recipe(recompute="full")), m)
    flop = 51.471187968e9 * 8192
    document = estimate_document(result, m, measured_s=2 * flop / 312e12)
    measured = document["views"]["measured"]
    assert measured["mfu_ratio"] == pytest.approx(0.5, rel=1e-9)
    # 4/3 of it and the extra product of the fused attention
    assert measured["hfu_ratio"] == pytest.approx(0.5 * float(result.phase.executed_flop) / flop)
    assert 0.5 < measured["share_of_bound"] < 1.0


def test_methods_are_explained_and_the_sum_is_the_total():
    m = machine()
    result = estimate(load_model(QWEN), Request(phase="decode", context=4096), m)
    document = estimate_document(result, m)
    times = [k["time_bound_s"] for k in document["kernels"]]
    # This machine states no vector rate: work on activations alone has no bound, and is not 0 either.
    assert any(isinstance(t, Unknown) for t in times)
    assert sum(t for t in times if not isinstance(t, Unknown)) == pytest.approx(document["totals"]["time_bound_s"])
    assert sum(k["flop"] for k in document["kernels"]) == pytest.approx(document["totals"]["flop"])
    assert sum(k["bytes"] for k in document["kernels"]) == pytest.approx(document["totals"]["bytes"])
    assert "token table" in document["weights_once"]["difference"]
    low, expected, high = (document["prediction"][k] for k in ("low_s", "expected_s", "high_s"))
    assert low < expected < high


def test_a_machine_needs_a_bandwidth():
    with pytest.raises(InputError, match="no memory bandwidth"):
        machine_of(Ceilings(ceilings=()), name="nothing")


def test_low_precision_reads_less_and_multiplies_faster():
    m = machine(peaks=(("bf16", 990e12), ("f8_e4m3", 1980e12)))
    model = load_model("llama-3.1-8b")
    wide = estimate(model, Request(phase="prefill", seq=4096), m)
    weights = estimate(model, Request(phase="prefill", seq=4096, weights="fp8"), m)
    both = estimate(model, Request(phase="prefill", seq=4096, weights="fp8", activations="fp8"), m)
    assert wide.phase.model_flop == weights.phase.model_flop == both.phase.model_flop
    # Weights alone save bytes, not FLOP: they are multiplied in bf16.
    assert weights.bound.time_s == pytest.approx(wide.bound.time_s)
    assert both.bound.time_s < 0.6 * wide.bound.time_s
    grouped = estimate(model, Request(phase="decode", context=1, weights="int4:128"), m)
    # D22: 6,979,321,856 * (4 + 16/128) / 8, embeddings and head 2 * 525,336,576 * 2, norms 532,480
    assert grouped.memory.weight_bytes == 5_700_591_616


@pytest.mark.parametrize(
    "request_",
    [
        Request(phase="decode"),
        Request(phase="train"),
        Request(phase="walk", context=1),
        Request(phase="decode", context=8, batch=0),
        Request(phase="decode", context=8, seq=8),
        Request(phase="train", seq=8, context=8),
        Request(phase="prefill", seq=8, context=8),
        Request(phase="prefill", seq=8, cached=8),
        Request(phase="decode", context=8, cached=2),
        Request(phase="verify", context=8, drafted=2),
        Request(phase="train", seq=8, batch=3, plan=Plan(dp=2)),
        Request(phase="train", seq=8, batch=3, micro_batch=2),
        Request(phase="decode", context=8, dtype="int8"),
        Request(phase="decode", context=8, weights="int4:0"),
        Request(phase="decode", context=8, weights="complex64"),
        Request(phase="decode", context=8, kv="float17"),
        Request(phase="decode", context=8, tower_tokens={"vision": 3}),
        Request(phase="decode", context=8, memory_fraction=0.0),
        Request(phase="decode", context=8, launch_s=-1.0),
        Request(phase="train", seq=8, mtp=True),
        Request(phase="decode", context=8, routing=[1.0, 1.0]),
        Request(phase="decode", context=8, launch_s=1e-6, launches_per_layer=-2),
        Request(phase="decode", context=8, batch=10**400),
        Request(phase="decode", context=8, contexts=((8, 1),)),
    ],
)
def test_requests_that_cannot_be(request_):
    with pytest.raises(UsageError):
        estimate(load_model("llama-3.1-8b"), request_, machine())


def test_speculation_gains_tokens_and_costs_a_wider_pass():
    m = machine()
    model = load_model("llama-3.1-8b")
    plain = estimate(model, Request(phase="decode", context=4096), m)
    wide = estimate(model, Request(phase="verify", context=4096, drafted=3, acceptance=0.7), m)
    assert wide.phase.emitted == pytest.approx(2.533)
    # Memory-bound: the same weights, so nearly the same time, and 2.5 times the tokens.
    assert wide.bound.time_s == pytest.approx(plain.bound.time_s, rel=0.01)
    assert wide.tokens_per_s == pytest.approx(2.533 * plain.tokens_per_s, rel=0.01)


@pytest.mark.parametrize(
    ("name", "tp", "per_token"),
    # D21: 2 * 4 heads * 128 * 2 B * 48 layers = 98,304 for the model; one head per rank is the floor. MLA: 576 * 61 * 2.
    [(QWEN, 1, 98_304), (QWEN, 4, 24_576), (QWEN, 8, 24_576), ("deepseek-v3", 8, 70_272)],
)
def test_cache_per_rank(name, tp, per_token):
    request = Request(phase="decode", context=1024, plan=Plan(tp=tp), dtype="bf16", kv="bf16")
    result = estimate(load_model(name), request)
    assert result.memory.kv_bytes_per_token == per_token
    assert result.memory.kv_cache_bytes == 1024 * per_token


def test_heads_that_cannot_be_divided(shared):
    # D21: 28 heads, 4 key-value heads, tp 7: neither 4 % 7 nor 7 % 4 is 0
    model = load_model(shared / "data" / "configs" / "Qwen--Qwen2.5-VL-7B-Instruct_config.json")
    with pytest.raises(UsageError, match="neither kv_heads % tp nor tp % kv_heads is 0"):
        estimate(model, Request(phase="decode", context=8, plan=Plan(tp=7)))


def test_counts_of_reports():
    # D12 and D13
    llama = estimate(load_model("llama-3.1-8b"), Request(phase="train", seq=1)).params
    assert (llama.total, llama.matmul) == (8_030_261_248, 7_504_658_432)
    assert 6 * llama.matmul == 45_027_950_592
    mixtral = estimate(load_model("mixtral-8x7b"), Request(phase="train", seq=1)).params
    assert (mixtral.total, mixtral.active, mixtral.matmul_active) == (46_702_792_704, 12_879_925_248, 12_748_587_008)


def test_wrong_numbers_of_other_tools_are_not_ours():
    # workloads reference, section 13
    peaks = (("bf16", 990e12), ("f8_e4m3", 1980e12))
    # ridgepoint: R1 fp8 on 8 H200, 2048 tokens, 0.87 s from total parameters; 37e9 active: 0.048 s
    r1 = load_model("deepseek-v3")
    m = machine(bytes_per_s=4.8e12, peaks=peaks, link=450e9)
    request = Request(phase="prefill", seq=2048, plan=Plan(tp=8), activations="fp8", weights="fp8", dtype="bf16")
    result = estimate(r1, request, m)
    fp8_only = result.phase.model_flop / (8 * 1980e12)
    assert fp8_only < 0.012
    # all 256 experts are read once: 0.67 TB over 8 * 4.8 TB/s = 17 ms
    assert 0.017 < result.bound.time_s < 0.06
    # LLM-Viewer: KV of query heads, 70B, batch 16, 8192 tokens: 343.6 GB; 8 heads: 42.9
    held = estimate(load_model("llama-3.1-70b"), Request(phase="decode", batch=16, context=8192)).memory
    assert held.kv_cache_bytes == pytest.approx(42.9e9, rel=2e-3)
    # GenZ: GB/s times 2^30; Llama-3-8B at 3.35 TB/s takes 4.48 ms for weights in decimal units, not 4.17
    step = estimate(load_model("llama-3.1-8b"), Request(phase="decode", context=1), machine(bytes_per_s=3.35e12))
    assert step.bound.time_s == pytest.approx(15.01e9 / 3.35e12, rel=1e-3)


LLAMA_2_7B = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "intermediate_size": 11008,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 32000, "hidden_act": "silu",
    "tie_word_embeddings": False, "torch_dtype": "float16", "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
}  # fmt: skip


def test_block_formats_by_name_hold_their_scales():
    model = load_model("llama-3.1-8b")
    sizes = {
        name: estimate(model, Request(phase="decode", context=1, weights=name)).memory.weight_bytes
        for name in ("mxfp4", "nvfp4", "mxfp8")
    }
    # 6,979,321,856 x 4.25, 4.5 and 8.25 bits; tables 2,101,346,304 and norms 532,480 in bf16; NVFP4 has one fp32 number
    # for each of 7 x 32 matrices.
    rest = 2_101_346_304 + 532_480
    assert sizes["mxfp4"] == 6_979_321_856 * 4.25 / 8 + rest
    assert sizes["nvfp4"] == 6_979_321_856 * 4.5 / 8 + 224 * 4 + rest
    assert sizes["mxfp8"] == 6_979_321_856 * 8.25 / 8 + rest
    # Weights alone: products stay in bf16 unless activations are cast too, to the elements of the format.
    assert estimate(model, Request(phase="decode", context=1, weights="nvfp4")).types.product is None
    both = estimate(model, Request(phase="decode", context=1, weights="nvfp4", activations="nvfp4"))
    assert both.types.product == "f4_e2m1"


def test_the_blocks_of_gguf_files_hold_tables_too():
    # llama-2-7b: 6,738,415,616 parameters, 266,240 of them norms. Blocks of 32 in 18 B are 4.5 bits. The file people
    # download has 3.83 GB: its head of 131,072,000 is in q6_k, 6.5625 bits, and its norms are in f32.
    model = load_model(LLAMA_2_7B)
    size = estimate(model, Request(phase="decode", context=1, weights="q4_0")).memory.weight_bytes
    assert size == 6_738_149_376 * 4.5 / 8 + 2 * 266_240
    head, norms = 131_072_000 * (6.5625 - 4.5) / 8, 2 * 266_240
    assert size + head + norms == pytest.approx(3.825e9, rel=1e-3)
    with pytest.raises(UsageError, match="mixes several formats"):
        estimate(model, Request(phase="decode", context=1, weights="Q4_K_M"))
    with pytest.raises(UsageError, match="says itself"):
        estimate(model, Request(phase="decode", context=1, weights="q4_0:32"))


def test_a_tied_head_reads_the_table_as_it_is_stored():
    # MLX 4 bits with a 16-bit scale and bias per 64: 151,936 x 1024 elements of 4.5 bits, not of 16.
    qwen = {
        "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "hidden_size": 1024, "num_hidden_layers": 2,
        "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072, "vocab_size": 151936,
        "tie_word_embeddings": True, "torch_dtype": "bfloat16", "hidden_act": "silu", "rms_norm_eps": 1e-6,
    }  # fmt: skip
    narrow = load_model(qwen | {"quantization": {"bits": 4, "group_size": 64}})
    found = estimate(narrow, Request(phase="decode", context=1))
    head = next(k for k in found.phase.kernels if k.name == "lm_head")
    assert head.demand.read_bytes == 151_936 * 1024 * 4.5 / 8
    wide = estimate(load_model(qwen), Request(phase="decode", context=1))
    assert next(k for k in wide.phase.kernels if k.name == "lm_head").demand.read_bytes == 151_936 * 1024 * 2


def test_a_narrow_cache_says_that_its_scales_are_not_in_it():
    model = load_model("llama-3.1-8b")
    narrow = estimate(model, Request(phase="decode", context=8, kv="int4"))
    assert narrow.memory.kv_bytes_per_token == 2 * 8 * 128 * 32 * 0.5
    assert any("scales" in a and "cache in i4" in a for a in narrow.assumed)
    assert not any("scales" in a for a in estimate(model, Request(phase="decode", context=8, kv="bf16")).assumed)


def cards(*, link=None, host=32e9):
    """A machine whose devices have a link to the host, and perhaps one of their own."""
    rows = [
        Ceiling(resource=Resource(area=Area.MEMORY, level="hbm"), value=864e9, unit="B/s", kind=Kind.DECLARED,
                scope="device"),
        Ceiling(resource=Resource(area=Area.COMPUTE, dtype="bf16", accumulate="f32", engine="matrix"), value=362e12,
                unit="FLOP/s", kind=Kind.DECLARED, scope="device"),
        Ceiling(resource=Resource(area=Area.HOST, link="pcie"), value=host, unit="B/s", kind=Kind.DECLARED, scope="device"),
    ]  # fmt: skip
    if link is not None:
        resource = Resource(area=Area.NETWORK, link="nvlink")
        rows.append(Ceiling(resource=resource, value=link, unit="B/s", kind=Kind.DECLARED, scope="device"))
    levels = (MemoryLevel(level="hbm", capacity_bytes=48e9),)
    return machine_of(Ceilings(ceilings=tuple(rows), levels=levels), name="cards")


def test_messages_of_cards_without_a_link_of_their_own_pass_the_host_link():
    # Two ranks: an all-reduce of 4096 tokens x 4096 x 2 B sends 2 x 1/2 of 33.6 MB, twice in each of 32 layers and once
    # for the table: 65 x 33.6 MB at 32 GB/s is 68 ms. Tensor parallelism is not free where no peer link is on record.
    model = load_model("llama-3.1-8b")
    ask = Request(phase="prefill", seq=4096, plan=Plan(tp=2))
    found = estimate(model, ask, cards())
    messages = [k for k in found.bound.kernels if k.kernel.kind == "communication"]
    size = 4096 * 4096 * 2
    reduced = sum(k.time_s for k in messages if k.kernel.name.startswith("all_reduce"))
    assert reduced == pytest.approx(65 * size / 32e9, rel=1e-6)
    assert not found.bound.open
    notes = estimate_document(found, cards())["assumed"]
    assert any("pass pcie" in n for n in notes)
    own = estimate(model, ask, cards(link=320e9))
    assert own.bound.messages_s == pytest.approx(found.bound.messages_s / 10)


def test_matrix_work_without_a_peak_leaves_the_phase_open():
    # A T4 has no bf16 peak on record: how long a step takes is open, and no public run is scaled from what is left.
    half = machine(peaks=(("f16", 65e12),))
    step = estimate(load_model("llama-3.1-8b"), Request(phase="train", seq=4096, batch=1), half)
    assert step.bound.bound is Bound.UNDETERMINED
    assert "bf16" in step.bound.open[0].reason
    prediction = estimate_document(step, half)["prediction"]
    assert "not whole" in prediction["expected_s"].reason
    # A message without any link is open as well.
    apart = estimate(load_model("llama-3.1-8b"), Request(phase="decode", context=8, plan=Plan(tp=2)), machine())
    assert apart.bound.bound is Bound.UNDETERMINED
    assert apart.bound.open


def test_what_fits_counts_the_activations_of_each_sequence():
    # One prompt of 200,000 needs 26.2 GB of cache and 17 GB of activations beside 16.1 GB of weights: one of 85.5 GB holds
    # one, also where four are asked for.
    big = machine(capacity=85.5e9)
    four = estimate(load_model("llama-3.1-8b"), Request(phase="prefill", seq=200_000, batch=4), big)
    one = estimate(load_model("llama-3.1-8b"), Request(phase="prefill", seq=200_000), big)
    assert (four.fit.fits, one.fit.fits) == (False, True)
    assert estimate_document(four, big)["memory"]["sequences_that_fit"] == 1
    assert estimate_document(one, big)["memory"]["sequences_that_fit"] == 1


def test_weights_in_the_master_type_have_no_second_copy():
    # GPT-2, 124,439,808 parameters. AdamW in bf16: 2 + 2 + 12 B each; in f32: 4 + 4 + 8, as the moments alone are beside.
    model, n = load_model("gpt2"), 124_439_808
    for dtype, parts in (("bf16", (2, 2, 12)), ("f32", (4, 4, 8))):
        memory = estimate(model, Request(phase="train", seq=1024, batch=1, dtype=dtype)).memory
        assert (memory.weight_bytes, memory.gradient_bytes, memory.optimizer_bytes) == tuple(p * n for p in parts)
    plain = Request(phase="train", seq=1024, batch=1, dtype="f32", recipe=Recipe(optimizer="sgd"))
    assert estimate(model, plain).memory.optimizer_bytes == 0.0
    momentum = Request(phase="train", seq=1024, batch=1, dtype="f32", recipe=Recipe(optimizer="sgd_momentum"))
    assert estimate(model, momentum).memory.optimizer_bytes == 4.0 * n
