"""`plan size`: worked numbers, the fewest devices against brute force, and what must always hold."""

from __future__ import annotations

import json
import math

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from mansard.cli.plan.size import command
from mansard.core import Area, Ceiling, Ceilings, Kind, MemoryLevel, Resource, Unknown
from mansard.core.errors import UsageError
from mansard.diagnose.economics import given_price
from mansard.plan.choice import best, pareto
from mansard.plan.params import Params, parse_count, parse_params, weights_floor
from mansard.plan.site import Site, site_of, sites
from mansard.plan.size import Job, size_model, size_params
from mansard.predict.bound import machine_of
from mansard.predict.estimate import Request, estimate
from mansard.workload.model.load import load_model
from mansard.workload.parallel import InfeasibleError, Plan


def machine(*, bytes_per_s=4e12, capacity=96e9, peak=990e12, link=450e9):
    """A device of round numbers."""
    compute = [
        Ceiling(
            resource=Resource(area=Area.COMPUTE, dtype=d, accumulate="f32", engine="matrix"), value=p, unit="FLOP/s",
            kind=Kind.DECLARED, scope="device",
        )
        for d, p in (("bf16", peak), ("f8_e4m3", 2 * peak))
    ]  # fmt: skip
    vector = Ceiling(
        resource=Resource(area=Area.COMPUTE, dtype="f32", accumulate="f32", engine="vector"), value=60e12, unit="FLOP/s",
        kind=Kind.DECLARED, scope="device",
    )  # fmt: skip
    memory = Ceiling(
        resource=Resource(area=Area.MEMORY, level="hbm"), value=bytes_per_s, unit="B/s", kind=Kind.DECLARED, scope="device"
    )  # fmt: skip
    peer = Ceiling(
        resource=Resource(area=Area.NETWORK, link="nvlink"), value=link, unit="B/s", kind=Kind.DECLARED, scope="device"
    )  # fmt: skip
    ceilings = Ceilings(
        ceilings=(*compute, vector, memory, peer), levels=(MemoryLevel(level="hbm", capacity_bytes=capacity),)
    )
    return machine_of(ceilings, name="round", scope="device", on_chip_bytes=50e6)


def site(node=8, **kw):
    return Site(machine=machine(**kw), node_devices=node, price=given_price(2.0))


DENSE = Params(total=1e12, active=1e12, dtype="bf16")
MOE = Params(total=1e12, active=32e9, dtype="bf16")


def test_a_trillion_weights_on_one_device_and_on_twenty_one():
    # 1e12 x 2 B = 2 TB; over 4 TB/s 0.5 s. 2 TB / 96 GB = 20.83, so 21 devices: 0.5 s / 21 = 23.8 ms.
    f = weights_floor(DENSE, machine())
    assert f.one_device_s == pytest.approx(0.5)
    assert f.devices == 21
    assert f.time_s == pytest.approx(0.5 / 21)
    assert round(f.time_s * 1e3) == 24
    assert f.bound == "memory"


def test_fp8_halves_it():
    f = weights_floor(Params(total=1e12, active=1e12, dtype="fp8"), machine(), devices=21)
    assert f.one_device_s == pytest.approx(0.25)
    assert f.time_s == pytest.approx(0.25 / 21)


def test_32b_active_is_under_a_thirtieth():
    # 64 GB / 4 TB/s = 16 ms against 500 ms: 1/31.25. All weights are still 2 TB, so the devices are the same.
    dense, moe = weights_floor(DENSE, machine()), weights_floor(MOE, machine())
    assert moe.one_device_s == pytest.approx(0.016)
    assert moe.time_s / dense.time_s == pytest.approx(1 / 31.25)
    assert moe.time_s / dense.time_s < 1 / 30
    assert moe.devices == dense.devices == 21
    assert moe.all_s == pytest.approx(0.5 / 21)


def test_a_96_gib_card_needs_twenty():
    # The catalogue's 96 GiB are 103.08e9 B: 2e12 / 103.08e9 = 19.4.
    assert weights_floor(DENSE, site_of("gh200-96gb").machine).devices == 20


def test_many_sequences_turn_to_compute():
    # 21 devices: reading 23.8 ms; 2 x 1e12 x C / (21 x 990e12) passes that at C = 247.5.
    at = {c: weights_floor(DENSE, machine(), devices=21, concurrency=c) for c in (247, 248)}
    assert [at[c].bound for c in (247, 248)] == ["memory", "compute"]
    assert at[248].time_s == pytest.approx(2e12 * 248 / (21 * 990e12))
    assert at[248].tokens_per_s == pytest.approx(248 / at[248].time_s)


def test_only_weights_are_known_of_a_size():
    s = size_params(MOE, site(), Job(phase="decode"))
    assert s.fits is True
    assert s.devices == 21
    assert isinstance(s.parts["kv_cache_bytes"], Unknown)
    assert isinstance(s.tpot.expected_s, Unknown)
    # 21 devices x 2 USD/h x (16 ms / 21) / 3600 s per token, a million of them.
    assert s.usd == pytest.approx(2.0 * 0.016 / 3600 * 1e6)
    short = size_params(DENSE, site(), Job(phase="decode", devices=10))
    assert short.fits is False
    assert isinstance(short.time_s, Unknown)
    assert "each of 10 devices needs 200 GB and may hold 96.0 GB: 104 GB short (21 devices" in short.why_not


@pytest.mark.parametrize(
    ("text", "value"), [("1T", 1e12), ("32B", 32e9), ("70.6B", 70.6e9), ("405e9", 405e9), ("7M", 7e6)]
)
def test_counts(text, value):
    assert parse_count(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "1X", "-1T", "0", "1T2", "nan"])
def test_bad_counts(text):
    with pytest.raises(UsageError):
        parse_count(text)


def test_params_need_a_type_and_a_sane_active_count():
    with pytest.raises(UsageError, match="no element type"):
        parse_params("1T", active=None, dtype=None)
    with pytest.raises(UsageError, match="active"):
        parse_params("1B/2B", active=None, dtype="bf16")
    assert parse_params("1T/32B", active=None, dtype="bf16") == MOE


@settings(max_examples=60, deadline=None)
@given(
    total=st.floats(1e9, 1e13), share=st.floats(0.01, 1.0), rate=st.floats(1e11, 1e13), more=st.floats(1.0, 10.0),
    devices=st.integers(1, 200),
)  # fmt: skip
def test_more_bandwidth_or_devices_is_never_slower(total, share, rate, more, devices):
    p = Params(total=total, active=total * share, dtype="bf16")
    slow = weights_floor(p, machine(bytes_per_s=rate), devices=devices)
    fast = weights_floor(p, machine(bytes_per_s=rate * more), devices=devices)
    wide = weights_floor(p, machine(bytes_per_s=rate), devices=devices + 1)
    assert fast.time_s <= slow.time_s
    assert wide.time_s <= slow.time_s
    assert wide.device_bytes < slow.device_bytes


def test_a_small_model_by_hand():
    # Llama 3.1 8B in bf16: 8,030,261,248 x 2 B of weights; cache 2 x 32 layers x 8 heads x 128 x 2 B = 131,072 B a token.
    s = size_model(load_model("llama-3.1-8b"), site(), Job(context=4096, concurrency=4))
    assert s.devices == 1
    assert s.fits is True
    assert s.parts["weight_bytes"] == pytest.approx(8030261248 * 2)
    assert s.parts["kv_cache_bytes"] == pytest.approx(4 * 4096 * 131072)
    assert s.memory_bytes == pytest.approx(sum(v for v in s.parts.values()))
    assert s.tpot.low_s == s.time_s
    assert s.tokens_per_s == pytest.approx(4 / s.time_s)
    assert s.usd == pytest.approx(2.0 / 3600 / s.tokens_per_s * 1e6)
    assert s.usd_expected == pytest.approx(s.usd * s.tpot.expected_s / s.tpot.low_s)
    # A prefill has no comparable runs: a bound alone.
    assert isinstance(s.ttft.expected_s, Unknown)
    # Every weight and the cache have to be read: 16.06 GB less the token table, and 2.1 GB of cache, over 4 TB/s.
    table = 128256 * 4096 * 2
    assert s.time_s >= (8030261248 * 2 - table + 4 * 4096 * 131072) / 4e12


@pytest.mark.parametrize("name", ["llama-3.1-70b", "mixtral-8x7b"])
def test_the_fewest_devices_against_every_division(name):
    model, where = load_model(name), site(node=4, capacity=40e9)
    job = Job(phase="decode", context=2048, concurrency=4)
    s = size_model(model, where, job)
    fewest = within = math.inf
    depth = model.text.depth
    for tp in range(1, 5):
        for ep in {1, tp}:
            for pp in range(1, depth + 1):
                try:
                    m = estimate(model, Request(phase="decode", context=2048, batch=4, plan=Plan(tp=tp, ep=ep))).memory
                except InfeasibleError:
                    break
                # The fullest stage holds ceil(depth / pp) layers.
                need = (m.weight_bytes + m.kv_cache_bytes) * math.ceil(depth / pp) / depth + m.activation_bytes
                if need <= 40e9:
                    fewest = min(fewest, tp * pp)
                    within = min(within, tp) if pp == 1 else within
                    break
    assert s.devices == within < math.inf  # the node holds it without stages; where fewer do with them, that is said
    assert (within > fewest) == any(f"that hold it are {fewest} in pipeline stages" in n for n in s.notes)
    assert s.memory_bytes <= 40e9 < s.one_device_bytes
    assert s.short_bytes == pytest.approx(s.one_device_bytes - 40e9)


def test_serving_takes_tensor_parallelism_within_the_node_and_says_what_the_fewest_are():
    # 32 sequences of 8192 tokens: weights 141.1 GB and a cache of 32 x 8192 x 80 x 2 x 8 x 128 x 2 B = 85.9 GB. Three devices of
    # 85 GB hold a third of it each; 64 heads do not divide by three, so four ranks serve it: less than half the time.
    model, where = load_model("llama-3.1-70b"), site(capacity=85e9)
    s = size_model(model, where, Job(phase="decode", context=8192, concurrency=32))
    assert (s.plan.tp, s.plan.pp, s.devices) == (4, 1, 4)
    # A rank reads a quarter of weights (less the table of 2.1 GB) and cache: 224.9 GB / 4 / 4e12 B/s = 14.06 ms, and messages.
    assert s.time_s > (141.107e9 - 2.101e9 + 85.9e9) / 4 / 4e12
    assert any("3 in pipeline stages (pp3" in n for n in s.notes)
    # Without a node there are no fast links to prefer.
    alone = size_model(model, site(node=1, capacity=85e9), Job(phase="decode", context=8192, concurrency=32))
    assert (alone.plan.tp, alone.plan.pp) == (1, 3)


def test_what_one_node_does_not_hold_is_stages_of_full_nodes():
    s = size_model(load_model("llama-3.1-405b"), site(capacity=85e9), Job(phase="decode", context=8192))
    assert (s.plan.tp, s.plan.pp) == (8, 2)  # 812 GB of weights: eight devices have 680 GB, sixteen 1360 GB


def test_more_memory_never_needs_more_devices():
    model = load_model("llama-3.1-70b")
    counts = [
        size_model(model, site(capacity=c * 1e9), Job(context=4096, concurrency=8)).devices
        for c in (24, 40, 80, 141, 288)
    ]
    assert counts == sorted(counts, reverse=True)
    assert counts[-1] == 1


def test_more_devices_hold_less_each():
    model = load_model("llama-3.1-70b")
    each = [size_model(model, site(), Job(context=4096, concurrency=8, devices=n)).memory_bytes for n in (2, 4, 8)]
    assert each == sorted(each, reverse=True)


def test_training_counts_states_and_the_run():
    # Adam: 2 + 2 + 4 + 4 + 4 = 16 B per parameter over the ranks, which share everything.
    model = load_model("llama-3.1-8b")
    s = size_model(model, site(node=1), Job(phase="train", seq=2048, batch=8, run_tokens=1e9))
    states = s.parts["weight_bytes"] + s.parts["gradient_bytes"] + s.parts["optimizer_bytes"]
    assert states * s.devices == pytest.approx(16 * 8030261248, rel=1e-6)
    assert s.step.low_s == s.time_s
    assert s.step.expected_s > s.time_s
    steps = 1e9 / (8 * 2048)
    assert s.usd == pytest.approx(steps * s.time_s * s.devices * 2.0 / 3600)
    assert isinstance(size_model(model, site(node=1), Job(phase="train", seq=2048, batch=8)).usd, Unknown)


def test_what_does_not_fit_says_by_how_much():
    s = size_model(load_model("llama-3.1-405b"), site(capacity=80e9), Job(context=8192, devices=4))
    assert s.fits is False
    assert isinstance(s.time_s, Unknown)
    assert "each of 4 devices needs" in s.why_not
    assert "short" in s.why_not
    none = size_model(load_model("llama-3.1-405b"), site(capacity=80e9), Job(context=8192, most=4))
    assert none.fits is False
    assert none.why_not.startswith("not within 4 devices")


def test_a_missing_peak_is_no_time():
    # V100 has no bf16; reading alone is no floor for a prompt that multiplies.
    s = size_model(load_model("llama-3.1-8b"), site_of("v100-sxm2-32gb"), Job(context=4096))
    assert s.fits is True
    assert isinstance(s.time_s, Unknown)
    assert "bf16" in s.why_not


def test_every_catalogued_device_is_answered_or_named():
    found, left = sites((), {})
    assert len(found) > 70
    assert {"h100-sxm", "mi300x", "tpu-v5p", "epyc-9654"} <= {s.machine.name for s in found}
    assert all(reason for _, reason in left)
    with pytest.raises(UsageError, match="price"):
        sites(("h200",), {"h100": 2.0})


def test_pareto_and_best_against_brute_force():
    rows = [{"a": a, "b": b, "fits": f} for a in range(3) for b in range(3) for f in (True, False)]
    assert [(rows[i]["a"], rows[i]["b"]) for i in pareto(rows, ("a", "b"))] == [(0, 0)]
    assert best([{"a": 1, "fits": False}, {"a": 2, "fits": True}, {"a": Unknown("x"), "fits": True}], ("a",)) == 1


def run(*args):
    return CliRunner().invoke(command, list(args), standalone_mode=False)


def test_document_and_text():
    args = ("--params", "1T", "--params", "1T/32B", "--dtype", "bf16", "--on", "gh200-96gb", "--devices", "21")
    result = run(*args, "--json")
    assert result.exit_code == 0
    doc = json.loads(result.stdout)
    assert doc["schema"] == "plan-size/1"
    dense, moe = doc["candidates"]
    assert {"fits", "time_s", "cost", "memory_bytes", "why_not"} <= set(dense)
    assert dense["one_device_weights_time_s"] == pytest.approx(0.5)
    assert dense["time_s"] == pytest.approx(0.5 / 21)
    assert moe["one_device_weights_time_s"] == pytest.approx(0.016)
    assert doc["side_by_side"][0]["one_device_weights_ratio"] == pytest.approx(0.032)
    assert dense["cost"]["unknown"].startswith("no price")
    assert doc["pareto"] == [0, 1]
    assert [b["candidate"] for b in doc["best"]] == [0, 1]
    text = run(*args).stdout
    assert "23.8 ms" in text
    assert "500 ms" in text
    assert "1/31.2" in text
    assert max(map(len, text.splitlines())) <= 80


def test_text_of_the_whole_catalogue_stays_in_80_columns():
    result = run("llama-3.1-70b", "--context", "4096", "--concurrency", "4")
    assert result.return_value == 0
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert "more devices (all with --json)" in result.stdout


def test_exit_code_where_nothing_fits():
    assert run("llama-3.1-405b", "--context", "4096", "--on", "l4", "--devices", "2").return_value == 3


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "no model"),
        (("--params", "1T"), "element type"),
        (("llama-3.1-8b", "--on", "h200"), "length of a sequence"),
        (("llama-3.1-8b", "--phase", "train", "--on", "h200"), "tokens of a sequence"),
        (("llama-3.1-8b", "--seq", "5", "--context", "5"), "no meaning"),
        (("llama-3.1-8b", "--context", "5", "--on", "nosuch"), "no hardware"),
        (("llama-3.1-8b", "--context", "5", "--on", "h200", "--usd-per-hour", "x"), "cannot read"),
        (("llama-3.1-8b", "--context", "0", "--on", "h200"), "expected a positive number"),
        (("llama-3.1-8b", "--context", "8", "--on", "h200", "--memory-fraction", "2"), "memory fraction"),
        (("--params", "1T", "--dtype", "bf16", "--phase", "train", "--seq", "1", "--batch", "1"), "layers"),
    ],
)
def test_errors_are_one_clear_message(args, message):
    result = run(*args)
    assert isinstance(result.exception, UsageError)
    assert message in result.exception.message


def test_more_devices_than_layers_are_divided_otherwise():
    # GPT-2 has 12 layers and 12 heads: 16 devices are replicas, never 16 stages.
    s = size_model(load_model("gpt2"), site(), Job(context=512, concurrency=16, devices=16, dtype="bf16"))
    assert s.fits is True
    assert s.plan.devices == 16
    assert s.plan.pp <= 12


def test_weights_of_a_token_are_those_it_multiplies_with():
    # Llama-3.1-8B: 8,030,261,248 weights, less the table (525,336,576) and 65 norms of 4096: 7,504,658,432 of 2 B.
    found = size_model(load_model("llama-3.1-8b"), site(), Job(context=1024))
    assert found.one_device_weights_s == pytest.approx(2 * 7_504_658_432 / 4e12)
    # No step takes less than that.
    assert found.time_s > found.one_device_weights_s


def test_pipeline_stages_hold_whole_layers():
    # 32 layers on 3 stages: 11, 11, 10. The first holds 11 layers and the table: 11 x 218,112,000 + 525,336,576 of 2 B.
    from mansard.plan.size import _memory

    m = _memory(load_model("llama-3.1-8b"), Job(context=1000, concurrency=4), Plan(), 3)
    assert m.weight_bytes == 2 * (11 * 218_112_000 + 525_336_576)
    assert m.kv_cache_bytes == 4 * 1000 * 131072 * 11 / 32


def test_an_encoder_has_its_length(tmp_path):
    config = {
        "architectures": ["WhisperForConditionalGeneration"], "model_type": "whisper", "d_model": 64, "encoder_layers": 2,
        "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 128,
        "decoder_ffn_dim": 128, "vocab_size": 1000, "num_mel_bins": 80, "max_source_positions": 1500,
        "max_target_positions": 448, "torch_dtype": "float16", "num_hidden_layers": 2,
    }  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    args = [str(path), "--on", "h200", "--context", "100"]
    bare = CliRunner().invoke(command, args, standalone_mode=False)
    assert "--tower-tokens encoder=N" in bare.exception.hint
    done = CliRunner().invoke(command, [*args, "--tower-tokens", "encoder=1500", "--json"], standalone_mode=False)
    assert done.exception is None
    assert json.loads(done.output)["candidates"][0]["fits"] is True


def test_key_heads_that_do_not_divide_rule_a_division_out(tmp_path):
    # 40 query heads divide over 5 ranks, 8 key heads do not: another division is found.
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 5120, "num_hidden_layers": 8,
        "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 20480,
        "vocab_size": 32000, "torch_dtype": "bfloat16", "tie_word_embeddings": False, "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5, "hidden_act": "silu",
    }  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    found = size_model(load_model(str(path)), site(capacity=2.4e9), Job(context=128))
    assert found.fits is True
    with pytest.raises(InfeasibleError, match="8 key heads cannot be split over 5 ranks"):
        estimate(load_model(str(path)), Request(phase="decode", context=128, plan=Plan(tp=5)))


def test_five_sequences_on_three_stages_are_two_two_and_one():
    # Stages work on 2, 2 and 1 sequences; all have a token when a part of two has gone through: matrices of 2 x 7,504,658,432
    # bytes and the cache of two sequences of 32,768 tokens, 131,072 bytes each, at 4e12 B/s = 5.90 ms. One sequence a part
    # would take 4.83 ms and yield three tokens, not five.
    s = size_model(
        load_model("llama-3.1-8b"), site(node=1), Job(phase="decode", context=32768, concurrency=5, devices=3)
    )
    assert (s.plan.tp, s.plan.pp, s.plan.dp) == (1, 3, 1)
    floor = (2 * 7_504_658_432 + 2 * 32768 * 131072) / 4e12
    assert floor == pytest.approx(5.90e-3, rel=1e-3)
    assert s.time_s == pytest.approx(floor, rel=2e-3)
    assert s.tokens_per_s == pytest.approx(5 / s.time_s)


def test_a_size_in_a_block_format_holds_its_scales():
    # 37e9 weights of 4.5 bits are 20.8 GB a token, of 671e9 x 4.5 / 8 = 377 GB in all; products are those of FP4.
    size = parse_params("671B/37B", active=None, dtype="nvfp4")
    assert (size.weight_bytes, size.active_bytes) == (671e9 * 4.5 / 8, 37e9 * 4.5 / 8)
    assert (size.element, size.name) == ("f4_e2m1", "671B, 37B active, nvfp4")
    assert size.storage_notes == ("4.5 bits a weight, scales included",)
    assert parse_params("70B", active=None, dtype="int4:128").weight_bytes == 70e9 * 4.125 / 8
    # Elements alone say so; what a GGUF block is multiplied in is not said.
    assert "not counted" in parse_params("70B", active=None, dtype="int4").storage_notes[0]
    assert parse_params("70B", active=None, dtype="bf16").storage_notes == ()
    assert isinstance(parse_params("7B", active=None, dtype="q4_k").element, Unknown)
    with pytest.raises(UsageError):
        parse_params("70B", active=None, dtype="q4_k_m")
