"""Sharding plans by hand: crossovers of the literature, memory, bubbles, reasons, and what better ceilings may not do."""

import copy
import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from click.testing import CliRunner

from mansard.cli.main import cli
from mansard.core.collective_times import Axis
from mansard.core.errors import UsageError
from mansard.hardware import load
from mansard.hardware.fabrics import fabric_of, parse_shape
from mansard.hardware.topology import Fabric, Level
from mansard.plan.shard import serving
from mansard.plan.shard.efficiency import COPY_CURVE, GEMM_CURVE, published, stated, stretched
from mansard.plan.shard.job import CEILINGS, Where, Work, scaled
from mansard.plan.shard.network import Network, parts_of
from mansard.plan.shard.search import Aim, choose, grid_of, search
from mansard.plan.shard.space import Refusals, Space, ranks_of, stages_of, tensor_reasons
from mansard.plan.shard.training_step import PARTS, memory_of, step_of
from mansard.predict.estimate import Request, estimate
from mansard.predict.machines import load_machine
from mansard.workload.counts import count_params
from mansard.workload.model.load import load_model
from mansard.workload.parallel import InfeasibleError

WIDE = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 8192, "num_hidden_layers": 8,
    "num_attention_heads": 64, "num_key_value_heads": 64, "intermediate_size": 28672, "vocab_size": 256, "hidden_act": "silu",
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "max_position_embeddings": 8192,
}  # fmt: skip


def one_axis(chips):
    """TPU v5p in a ring, 90 GB/s a link and direction, as in the scaling book."""
    return fabric_of(load("tpu-v5p"), parse_shape(f"{chips}x1x1"), link_bytes_per_s=90e9)


def nodes(slug="h100-sxm", shape="2:8"):
    return fabric_of(load(slug), parse_shape(shape), network_bytes_per_s=50e9, hop_s=2e-6, network_hop_s=10e-6)


def where(slug="h100-sxm", shape="2:8", **more):
    fabric = nodes(slug, shape)
    return Where(machine=load_machine(slug), fabrics={fabric.devices: fabric}, **more)


def small(**more):
    return Space(**({"devices": (16,), "micro": (1, 2), "virtual": (1, 2)} | more))


def test_fsdp_on_v5p_is_compute_bound_above_2550_tokens_a_chip():
    # A layer of P weights: 6 P T / C to compute, 3 x 2 P (n - 1)/n / W to gather twice and scatter once. They are equal at
    # T = C/W (n - 1)/n = 459e12 / 180e9 x 15/16 = 2550 x 15/16 = 2390.6 tokens a chip.
    model, seq = load_model(WIDE), 128
    machine = Where(machine=load_machine("tpu-v5p"), fabrics={16: one_axis(16)})
    ratio = []
    for sequences in (16, 20):
        work = Work(phase="train", seq=seq, batch=16 * sequences, overlap="none")
        space = Space(
            devices=(16,), tp=(1,), pp=(1,), cp=(1,), micro=(sequences,), virtual=(1,), zero=(3,), recompute=("none",)
        )
        grid = grid_of(model, work, machine, space)
        # The book has no memory traffic: element-wise work on activations would add 3 %.
        step = step_of(grid, grid.rows, scaled("memory", 1e6))
        ratio.append(float(step["data_s"][0] / step["compute_s"][0]))
    # 2048 tokens: 2390.6/2048 = 1.167; 2560: 0.934. Attention of 128 keys and the small head add 0.2 % of work.
    assert ratio[0] == pytest.approx(2390.6 / 2048, rel=0.005)
    assert ratio[1] == pytest.approx(2390.6 / 2560, rel=0.005)
    assert ratio[0] > 1.0 > ratio[1]


def test_tensor_parallel_crossover_of_the_scaling_book():
    # Two matrices D x F over Y ranks: 4 B D F / (Y C) to compute, an all-reduce of 2 B D bytes: 4 B D (Y - 1)/Y / W.
    # Equal at Y = 1 + F W / C: for F = 28672 and C/W = 2550 at 12.24 ranks.
    d, f, tokens, c_over_w = 8192, 28672, 4096, 459e12 / 180e9
    for y, bound in ((8, "compute"), (16, "messages")):
        network = Network(fabric=one_axis(y))
        sent = float(network.collective("all_reduce", parts_of(y, 1, 1, 1, 1), "tensor").time_s(2.0 * tokens * d))
        work = 4.0 * tokens * d * f / y / 459e12
        assert sent / work == pytest.approx((y - 1) / f * c_over_w)
        assert ("compute" if work > sent else "messages") == bound


def test_mixed_fsdp_and_tensor_optimum_of_the_scaling_book():
    # X = sqrt(B N / F) = sqrt(65536 x 64 / 16384) = 16 of 64 chips for FSDP, the other 4 for tensor ranks.
    d, f, tokens, chips = 4096, 16384, 65536, 64
    level = Level(
        name="ici", kind="switch", axes=(Axis(length=chips, wraps=False),), bytes_per_s=180e9, hop_s=0.0, source=""
    )
    network = Network(fabric=Fabric(name="flat", levels=(level,)))
    total = {}
    for x in (1, 2, 4, 8, 16, 32, 64):
        y = chips // x
        parts = parts_of(y, 1, x, 1, 1)
        gather = network.collective("all_gather", parts, "data").time_s(2.0 * 2 * d * f / y)
        reduce = network.collective("all_reduce", parts, "tensor").time_s(2.0 * tokens * d / x)
        total[x] = float(gather + reduce)
    assert min(total, key=total.get) == 16
    # 4 D F (X - 1)/X / Y / W + 4 B D (Y - 1)/Y / X / W with X = 16, Y = 4
    assert total[16] == pytest.approx((4 * d * f * 15 / 16 / 4 + 4 * tokens * d * 3 / 4 / 16) / 180e9)


def simulated(forward, backward, micro):
    """Makespan of one forward, one backward on stages of different length, event by event."""
    pp = len(forward)
    done = {}
    free = [0.0] * pp
    orders = []
    for s in range(pp):
        warm = min(pp - s, micro)
        order = [("f", i) for i in range(warm)]
        for i in range(micro):
            order.append(("b", i))
            if warm + i < micro:
                order.append(("f", warm + i))
        orders.append(order)
    at = [0] * pp
    while any(at[s] < len(orders[s]) for s in range(pp)):
        for s in range(pp):
            if at[s] == len(orders[s]):
                continue
            kind, i = orders[s][at[s]]
            needs = ("f", i, s - 1) if kind == "f" else ("b", i, s + 1)
            if kind == "b" and s == pp - 1:
                needs = ("f", i, s)
            ready = 0.0 if (kind == "f" and s == 0) else done.get(needs)
            if ready is None:
                continue
            start = max(free[s], ready)
            free[s] = done[(kind, i, s)] = start + (forward[s] if kind == "f" else backward[s])
            at[s] += 1
    return max(free)


def test_the_bubble_is_that_of_a_simulated_pipeline():
    # Four equal stages, eight micro-batches of 3 s: (8 + 3) x 3 = 33 s, 9 s of it bubble.
    assert simulated([1.0] * 4, [2.0] * 4, 8) == pytest.approx(33.0)
    model = load_model({**WIDE, "num_hidden_layers": 8, "hidden_size": 1024, "num_attention_heads": 8,
                        "num_key_value_heads": 8, "intermediate_size": 4096})  # fmt: skip
    work = Work(phase="train", seq=1024, batch=16)
    for chunks in (1, 2):
        space = small(tp=(1,), pp=(4,), cp=(1,), micro=(1,), virtual=(chunks,), zero=(0,), recompute=("none",))
        free = fabric_of(load("h100-sxm"), parse_shape("2:8"), network_bytes_per_s=1e18, link_bytes_per_s=1e18)
        grid = grid_of(model, work, Where(machine=load_machine("h100-sxm"), fabrics={16: free}), space)
        step = {k: float(v[0]) for k, v in step_of(grid, grid.rows).items()}
        if chunks == 1:
            # 16 / 4 data ranks = 4 micro-batches: the bubble is 3/4 of the kernels of the slowest stage, less what is beside layers.
            assert step["bubble_s"] == pytest.approx(0.75 * step["compute_s"], rel=0.02)
            whole = step["bubble_s"]
        else:
            assert step["bubble_s"] == pytest.approx(whole / 2, rel=1e-6)


def test_unequal_stages_wait_for_the_slowest():
    # The slowest stage works without pause once filled: sum of all stages + (m - 1) times the slowest.
    forward, backward = [1.0, 1.0, 1.0, 1.5], [2.0, 2.0, 2.0, 3.0]
    assert simulated(forward, backward, 8) == pytest.approx(sum(forward) + sum(backward) + 7 * 4.5)


def test_memory_of_llama_8b_by_hand():
    model, params = load_model("llama-3.1-8b"), 8030261248.0
    work = Work(phase="train", seq=4096, batch=16)
    space = small(tp=(1,), pp=(1,), cp=(1,), micro=(1,), recompute=("full",), zero=(0, 1, 2, 3))
    grid = grid_of(model, work, where(), space)
    held = memory_of(grid, grid.rows)
    by_zero = {int(z): {k: float(v[i]) for k, v in held.items()} for i, z in enumerate(grid.rows.zero)}
    # 2 B of weight and of gradient, 4 B master and twice 4 B of moments; 16 data ranks.
    assert by_zero[0]["weight_bytes"] == pytest.approx(2 * params)
    assert by_zero[0]["optimizer_bytes"] == pytest.approx(12 * params)
    assert by_zero[1]["optimizer_bytes"] == pytest.approx(12 * params / 16)
    assert by_zero[1]["gradient_bytes"] == pytest.approx(2 * params)
    assert by_zero[2]["gradient_bytes"] == pytest.approx(2 * params / 16)
    assert by_zero[3]["weight_bytes"] == pytest.approx(2 * params / 16)
    # Two gathered layers and the gradients of one, 3 x 2 B x 218.1e6 of (8.03e9 - two tables of 128256 x 4096) / 32 = 1.31 GB,
    # are less than the head of 128256 x 4096 with its gradient, 4 B x 525.3e6, beside the layer before it, 2 B x 218.1e6: 2.54 GB.
    layer, head = (params - 2 * 128256 * 4096) / 32, 128256 * 4096
    assert 6 * layer < 4 * head + 2 * layer
    assert by_zero[3]["gathered_bytes"] == pytest.approx(4 * head + 2 * layer)
    assert by_zero[2]["gathered_bytes"] == 0.0
    # Full recomputation keeps the input of 32 layers, 4096 x 4096 x 2 B each: 1.07 GB, beside one layer and the logits.
    assert by_zero[0]["activation_bytes"] > 32 * 4096 * 4096 * 2
    assert grid.divisions[0].held.inputs == pytest.approx(32 * 4096 * 4096 * 2)


def test_a_tied_table_is_held_and_updated_at_both_ends_of_a_pipeline():
    # 65536 x 8192 = 536.9e6 elements at 2 B of weight, 2 B of gradient, 12 B of master and moments: with 8 layers over two stages the last
    # has four of them and its copy of the table; a single stage has the table once.
    model = load_model({**WIDE, "vocab_size": 65536, "tie_word_embeddings": True})
    table = 65536.0 * 8192
    layer = (count_params(model).total - table - 8192) / 8
    work = Work(phase="train", seq=128, batch=16)
    space = small(tp=(1,), pp=(1, 2), cp=(1,), micro=(1,), virtual=(1,), recompute=("full",), zero=(0,))
    grid = grid_of(model, work, where(), space)
    held = memory_of(grid, grid.rows)
    for i, combo in enumerate(grid.rows.combo):
        params = 8 / grid.combos[combo].ranks.pp * layer + table
        for name, each in (("weight_bytes", 2), ("gradient_bytes", 2), ("optimizer_bytes", 12)):
            assert held[name][i] == pytest.approx(each * params, rel=1e-4)


def test_reasons_are_in_plain_words():
    model = load_model(
        {**WIDE, "num_key_value_heads": 4, "num_attention_heads": 28, "hidden_size": 3584, "head_dim": 128}
    )
    assert tensor_reasons(model, 7) == ["tp 7 does not divide 4 KV heads and is no multiple of them"]
    assert tensor_reasons(model, 3)[0] == "tp 3 does not divide 28 query heads"
    assert stages_of(126, 9, 1, uneven=False).first == 14
    assert stages_of(126, 16, 8, uneven=False).middle == 8
    assert stages_of(61, 8, 1, uneven=False) == "61 layers (or 63 with table and head) do not divide over pp 8"
    assert stages_of(61, 8, 1, uneven=True).middle == 8
    assert "fewer than pp 256" in stages_of(126, 256, 1, uneven=True)
    refusals = Refusals()
    mixtral = load_model("mixtral-8x7b")
    assert not list(ranks_of(mixtral, Space(devices=(16,), tp=(1,), ep=(3,)), refusals, seq=4096))
    assert "ep 3 does not divide 8 experts" in refusals.counts
    found = search(
        load_model("llama-3.1-8b"), Work(phase="train", seq=4096, batch=6), where(),
        small(tp=(1,), pp=(1,), cp=(1,)),
    )  # fmt: skip
    assert found.verdict == "none"
    assert "dp 16 does not divide 6 sequences of a step" in found.best.reason


def test_what_does_not_fit_says_what_it_needs():
    found = search(load_model("llama-3.1-405b"), Work(phase="train", seq=8192, batch=16), where(), small())
    assert found.verdict == "none"
    assert "fits" in found.best.reason
    assert "may hold 77.0 GB" in found.best.reason  # 0.9 of 85.5 GB


@pytest.fixture(scope="module")
def grid():
    work = Work(phase="train", seq=4096, batch=32)
    efficiency = published("h100-sxm", ("bf16",), nvlink=True)
    return grid_of(load_model("llama-3.1-8b"), work, where(efficiency=efficiency), small())


@pytest.mark.parametrize("name", CEILINGS[:4])
def test_a_better_ceiling_never_slows_any_plan(grid, name):
    before = step_of(grid, grid.rows)["step_s"]
    for ratio in (1.01, 1.2, 10.0):
        after = step_of(grid, grid.rows, scaled(name, ratio))["step_s"]
        assert np.all(after <= before * (1 + 1e-12)), name


def test_more_memory_never_takes_a_plan_away(grid):
    fitting, best = [], []
    for fraction in (0.3, 0.6, 0.9, 1.0):
        found = choose(replace_work(grid, memory_fraction=fraction), Aim(uncertain_ratio=0.0))
        fitting.append(found.fitting)
        best.append(np.inf if found.verdict == "none" else found.best.time_s)
    assert fitting == sorted(fitting)
    assert best == sorted(best, reverse=True)
    assert best[-1] < np.inf


def replace_work(grid, **changes):
    out = copy.copy(grid)
    out.work = replace(grid.work, **changes)
    out._messages = {}
    return out


def test_overlap_and_imbalance_move_the_right_way(grid):
    by = {p: step_of(replace_work(grid, overlap=p), grid.rows) for p in ("full", "framework", "none")}
    assert np.all(by["full"]["step_s"] <= by["framework"]["step_s"] * (1 + 1e-9))
    assert np.all(by["framework"]["step_s"] <= by["none"]["step_s"] * (1 + 1e-9))
    waited = sum(by["none"][p] for p in ("tensor_s", "context_s", "expert_s", "pipeline_s", "data_s"))
    assert np.allclose(waited, by["none"]["messages_s"], rtol=1e-9)
    for found in by.values():
        assert np.allclose(sum(found[p] for p in PARTS), found["step_s"], rtol=1e-12)
    # Expert ranks with 1.5 times the work: expert kernels and messages take so much longer, nothing else moves.
    sparse = grid_of(load_model("mixtral-8x7b"), grid.work, where(), small(tp=(1,), pp=(1,), cp=(1,), ep=(8,)))
    even, skewed = (step_of(replace_work(sparse, imbalance=x), sparse.rows) for x in (1.0, 1.5))
    assert np.allclose(skewed["expert_s"], 1.5 * even["expert_s"])
    assert np.all(skewed["compute_s"] > even["compute_s"])
    assert np.allclose(skewed["optimizer_s"], even["optimizer_s"])


def test_ties_and_margins(grid):
    found = choose(grid, Aim(tie_ratio=0.0, uncertain_ratio=0.0))
    assert found.margin_ratio == pytest.approx(found.runner_up.time_s / found.best.time_s - 1.0)
    assert [c.time_s for c in found.top] == sorted(c.time_s for c in found.top)
    assert choose(grid, Aim(tie_ratio=found.margin_ratio + 0.001, uncertain_ratio=0.0)).verdict == "tie"
    wide = choose(grid, Aim(tie_ratio=0.0, uncertain_ratio=0.5))
    assert {s.ceiling for s in wide.shifts} == set(CEILINGS)
    for s in wide.shifts:
        if s.regret_ratio is not None:
            assert s.regret_ratio >= -1e-12
            assert s.stays == (s.regret_ratio <= 0.0)


def test_curves_have_the_published_points_and_never_fall():
    # 4096^3 on a core that reaches 956.38 TFLOP/s at best: 143.7 us ideal, 153.9 us at 892.94.
    assert stretched(2 * 4096**3 / 956.38e12, GEMM_CURVE) == pytest.approx(2 * 4096**3 / 892.94e12)
    times = np.logspace(-12, 2, 400)
    for curve in (GEMM_CURVE, COPY_CURVE):
        real = stretched(times, curve)
        assert np.all(np.diff(real) >= 0.0)
        assert np.all(real >= times * (1 - 1e-12))
    assert stretched(0.0, GEMM_CURVE) == 0.0
    assert published("tpu-v4", ("bf16",)).name == "bound"
    assert "tpu-v4" in published("tpu-v4", ("bf16",)).missing[0]
    with pytest.raises(UsageError, match="share above 0"):
        stated(0.0)


def test_ranks_sit_on_the_inner_level_first():
    network = Network(fabric=nodes())
    tensor, _, context, *_ = network.place(parts_of(tp=4, pp=2, dp=1, cp=2, ep=1))
    assert (tensor, context) == (((4,), (1,)), ((1,), (1,)))
    # cp 2 is in the outer part of the context ranks, which experts would divide first.
    assert network.place(parts_of(4, 2, 1, 2, 1))[3] == ((2,), (1,))
    assert network.place(parts_of(4, 2, 1, 2, 1))[6] == ((1,), (2,))
    with pytest.raises(InfeasibleError, match="do not divide the 8 places"):
        network.place(parts_of(3, 1, 1, 1, 1))
    torus = Network(fabric=fabric_of(load("tpu-v5p"), parse_shape("4x4x8")))
    assert torus.place(parts_of(8, 1, 16, 1, 1))[0] == ((1, 1, 8),)
    with pytest.raises(InfeasibleError, match="no whole axes"):
        torus.place(parts_of(2, 1, 64, 1, 1))


def test_decode_on_one_device_is_the_bound_of_estimate():
    model = load_model("llama-3.1-8b")
    work = Work(phase="serve", prompt=1024, context=2048)
    one = where(shape="8")
    one = replace(one, fabrics={1: fabric_of(load("h100-sxm"), parse_shape("1"))})
    grid = grid_of(model, work, one, Space(devices=(1,), concurrency=(4,), precision=(serving.CHECKPOINT,)))
    step = serving.step_of(grid, grid.rows)
    expected = estimate(model, Request(phase="decode", context=2048, batch=4), load_machine("h100-sxm"))
    assert float(step["step_s"][0]) == pytest.approx(expected.bound.time_s)
    prompt = estimate(model, Request(phase="prefill", seq=1024, batch=1), load_machine("h100-sxm"))
    assert float(step["ttft_s"][0]) == pytest.approx(prompt.bound.time_s)
    held = serving.memory_of(grid, grid.rows)
    # 2 x 8 heads x 128 x 2 B x 32 layers = 131,072 B a token; four sequences of 2048.
    assert float(held["kv_cache_bytes"][0]) == pytest.approx(131072 * 2048 * 4)
    assert float(held["weight_bytes"][0]) == pytest.approx(2 * 8030261248)


def test_limits_of_serving():
    model = load_model("llama-3.1-8b")
    work = Work(phase="serve", prompt=1024, context=2048)
    space = Space(devices=(8,), concurrency=(8, 64, 512), precision=(serving.CHECKPOINT,))
    machine = where(shape="8", efficiency=published("h100-sxm", ("bf16",), nvlink=True))
    quick = search(model, work, machine, space)
    cheap = search(model, work, machine, space, Aim(objective="cost"))
    assert quick.best.time_s <= cheap.best.time_s
    assert cheap.best.tokens_per_s >= quick.best.tokens_per_s
    limit = (quick.best.time_s + cheap.best.time_s) / 2
    between = search(model, work, machine, space, Aim(objective="cost", tpot_s=limit))
    assert between.best.time_s <= limit
    assert between.eligible < between.fitting
    never = search(model, work, machine, space, Aim(ttft_s=1e-6))
    assert "no plan reads a prompt in 1.00 us" in never.best.reason


def run(*args):
    return CliRunner().invoke(cli, ["plan", "shard", *args], standalone_mode=False)


def test_text_and_document(tmp_path):
    base = ["llama-3.1-8b", "--on", "h100-sxm", "--devices", "16", "--network", "50 GB/s", "--batch", "64", "--seq", "4096",
            "--micro-batch", "1,2", "--chunks", "1"]  # fmt: skip
    result = run(*base)
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 52
    assert any("best:" in line for line in lines)
    target = tmp_path / "plan.json"
    result = run(*base, "--json", "-o", str(target))
    document = json.loads(result.stdout)
    assert document == json.loads(target.read_text())
    assert document["schema"] == "plan-shard/1"
    best = document["candidates"][document["best"]["candidate"]]
    assert best["fits"] is True
    assert best["time_s"] == pytest.approx(sum(best["parts"].values()))
    assert best["memory_bytes"] == pytest.approx(sum(best["memory"].values()))
    assert best["tp"] * best["pp"] * best["dp"] * best["cp"] == 16
    assert best["dp"] * best["micro_batch"] * best["accumulation"] == 64
    front = [document["candidates"][i] for i in document["pareto"]]
    assert document["best"]["candidate"] in document["pareto"]
    assert all(a["memory_bytes"] > b["memory_bytes"] for a, b in pairwise(front))


@pytest.mark.parametrize(
    ("extra", "text"),
    [
        (["--tp", "3"], "tp 3 does not divide 32 query heads"),
        (["--pp", "16"], None),
        (["--memory-fraction", "0.01"], "none of"),
    ],
)  # fmt: skip
def test_exit_codes(extra, text):
    result = run("llama-3.1-8b", "--on", "h100-sxm", "--devices", "16", "--network", "50GB/s", "--batch", "16", "--seq", "4096",
                 "--micro-batch", "1", "--chunks", "1", *extra)  # fmt: skip
    assert result.return_value == (0 if text is None else 3), result.output
    if text is not None:
        assert text in " ".join(result.output.split())


def test_what_is_asked_wrongly_is_refused():
    base = ("llama-3.1-8b", "--on", "h100-sxm", "--devices", "8")
    for extra, text in (
        (["--batch", "8"], "needs seq"), (["--seq", "128", "--batch", "8", "--kv", "fp8"], "no meaning in the phase train"),
        (["--seq", "128", "--batch", "8", "--zero", "4"], "zero is 4"),
        (["--seq", "128", "--batch", "8", "--efficiency", "2"], "share above 0"),
        (["--seq", "128", "--batch", "8", "--topology", "8"], "given twice"),
        (["--phase", "serve", "--context", "128"], "sequences served at once"),
    ):  # fmt: skip
        result = run(*base, *extra)
        assert result.exit_code != 0
        assert text in str(result.exception), (extra, result.exception)


def test_table_and_head_are_sent_too():
    # Llama 3.1 8B, 8 data ranks, 450 GB/s: 2 bytes x 8,030,261,248 x 7/8 = 14.05 GB each time, 31.2 ms. ZeRO 3 gathers twice and
    # scatters once (93.7 ms), ZeRO 1 scatters and gathers once (62.5 ms). Without the table and the head, of 128,256 x 4,096
    # each, it would be 6,979,588,096 x 2 x 7/8 / 450e9 = 27.1 ms each.
    fabric = fabric_of(load("h200"), parse_shape("8"))
    on = Where(machine=load_machine("h200"), fabrics={8: fabric})
    work = Work(phase="train", seq=4096, batch=8)
    space = Space(devices=(8,), tp=(1,), pp=(1,), cp=(1,), micro=(1,), virtual=(1,), recompute=("full",), zero=(1, 3))
    grid = grid_of(load_model("llama-3.1-8b"), work, on, space)
    step = step_of(grid, grid.rows)
    by_zero = {int(z): float(m) for z, m in zip(grid.rows.zero, step["messages_s"], strict=True)}
    once = 2 * 8_030_261_248 * 7 / 8 / 450e9
    assert once == pytest.approx(31.2e-3, rel=1e-3)
    assert by_zero == {1: pytest.approx(2 * once, rel=1e-6), 3: pytest.approx(3 * once, rel=1e-6)}
    # The table hides behind nothing: 1.05 GB x 7/8 / 450e9 = 2.04 ms, gathered twice and scattered once, beside the first
    # layer gathered, and gathered and scattered.
    table, layer = 2 * 128256 * 4096 * 7 / 8 / 450e9, 2 * 218_112_000 * 7 / 8 / 450e9
    waited = {int(z): float(d) for z, d in zip(grid.rows.zero, step["data_s"], strict=True)}
    assert waited[3] == pytest.approx(3 * table + 3 * layer, rel=2e-3)


def test_a_ranking_by_cost_without_a_price_says_so():
    base = ["llama-3.1-8b", "--phase", "serve", "--on", "h200", "--devices", "1,2", "--context", "2048",
            "--concurrency", "8", "--by", "cost"]  # fmt: skip
    told = " ".join(run(*base).output.split())
    assert "? USD a million tokens: no price of" in told
    assert "ranked by device seconds (--usd-per-hour)" in told
    assert "ranked by device seconds" not in run(*base, "--usd-per-hour", "h200=3.5").output
