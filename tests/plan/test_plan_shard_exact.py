"""The vectorised search against a scalar evaluator: every plan of small spaces, one at a time, by other code."""

import itertools
import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from mansard.core.collective_times import Axis
from mansard.hardware.topology import Fabric, Level, best_ceiling
from mansard.plan.choice import pareto
from mansard.plan.shard.job import Where, Work
from mansard.plan.shard.search import Aim, grid_of, search
from mansard.plan.shard.space import Space
from mansard.plan.shard.training_step import memory_of, step_of
from mansard.predict.bound import kernel_bound
from mansard.predict.estimate import Request, setting_of
from mansard.predict.machines import load_machine
from mansard.workload.batch import training_batch
from mansard.workload.model.load import load_model
from mansard.workload.parallel import InfeasibleError, Plan
from mansard.workload.phases import train
from mansard.workload.training import Recipe

DENSE = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 256, "num_hidden_layers": 4,
    "num_attention_heads": 8, "num_key_value_heads": 4, "intermediate_size": 512, "vocab_size": 1024, "hidden_act": "silu",
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "max_position_embeddings": 4096,
}  # fmt: skip
SPARSE = {
    **DENSE, "model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "num_local_experts": 4, "num_experts_per_tok": 2,
}  # fmt: skip
MODELS = {"dense": DENSE, "sparse": SPARSE}
MACHINE = load_machine("h100-sxm")
SEQ, BATCH = 256, 8


def fabric(nodes):
    """Nodes of two devices: 100 GB/s and 2 us inside, 20 GB/s a node and 10 us between."""
    inner = Level(
        name="nvlink", kind="switch", axes=(Axis(length=2, wraps=False),), bytes_per_s=100e9, hop_s=2e-6, source=""
    )
    outer = Level(
        name="network", kind="switch", axes=(Axis(length=nodes, wraps=False),), bytes_per_s=20e9, hop_s=10e-6, source=""
    )
    return Fabric(name="small", levels=(inner, outer))


def spread(ranks, inside):
    """How many of a kind's ranks sit in a node, when `inside` places of it are taken by ranks further in."""
    here = min(ranks, max(1, 2 // inside))
    return here, ranks // here


def message_s(operation, size, ranks, inside, nodes):
    here, there = spread(ranks, inside)
    found = best_ceiling(fabric(nodes), operation, size_bytes=size, group=((here,), (there,)))
    return 0.0 if found is None else found.time_s


@cache
def kernels_of(name, tp, cp, ep, micro, policy):
    """Times of the kernels of one micro-batch by pass, and its messages: name -> [(size, count, pass)]."""
    groups = max(1, ep // tp) if ep > 1 else 1
    setting, _ = setting_of(load_model(MODELS[name]), Request(phase="train", dtype="bf16", weights="bf16"))
    setting = replace(setting, plan=Plan(tp=tp, cp=cp, ep=ep, dp=groups // math.gcd(groups, cp)))
    # Two accumulated micro-batches: every kernel counts twice, and gradients are added up.
    phase = train(setting, training_batch(sequences=micro, seq=SEQ), Recipe(recompute=policy, accumulation=2))
    kernel = {"forward": 0.0, "backward": 0.0, "recompute": 0.0, "first": 0.0, "last": 0.0}
    core = {"forward": 0.0, "backward": 0.0, "recompute": 0.0}
    messages = []
    for k in phase.kernels:
        if k.kind == "communication":
            messages.append((k.name, sum(k.demand.link_bytes.values()), k.count / 2.0, k.in_pass))
            continue
        if k.in_pass == "optimizer":
            continue
        time_s = kernel_bound(k, MACHINE).time_s / 2.0
        if k.area == "embedding":
            kernel["first"] += time_s
        elif k.area == "head" or k.name == "norm":
            kernel["last"] += time_s
        else:
            kernel[k.in_pass] += time_s
            core[k.in_pass] += time_s if k.kind == "attention" else 0.0
    return kernel, core, messages


def scalar(name, plan, nodes):
    """The step of one plan [s], with plain numbers: kernels by `kernel_bound`, messages by `best_ceiling`."""
    tp, pp, dp, cp, ep, micro, chunks, zero, policy = plan
    seq, steps = SEQ, BATCH // (dp * micro)
    groups = max(1, ep // tp) if ep > 1 else 1
    kernel, core, messages = kernels_of(name, tp, cp, ep, micro, policy)
    sent = {"tensor": 0.0, "table": 0.0, "expert": 0.0}
    ring = 0.0
    for label, size, count, in_pass in messages:
        if label == "all_reduce_tp":
            full = micro * seq / cp * 256 * 2
            assert size == pytest.approx(2 * (tp - 1) / tp * full)
            time_s = message_s("all_reduce", full, tp, 1, nodes)
            # One beside the layers sums the token table, in both passes.
            own_table = 1 if in_pass != "recompute" else 0
            sent["table"] += own_table * time_s
            sent["tensor"] += (count - own_table) * time_s
        elif label == "ring_cp" and in_pass == "forward":
            ring = message_s("ppermute", size / (cp - 1), cp, tp, nodes) * (cp - 1) * count
        elif label.startswith("all_to_all"):
            sent["expert"] += message_s("all_to_all", size * ep / (ep - 1), ep, 1, nodes) * count
    depth = 4
    again_ring = 1 if policy == "full" else 0
    ring_f = ring - min(ring, core["forward"])
    context = ring_f + ring - min(ring, core["backward"]) + again_ring * ring_f
    layer = (
        kernel["forward"] + kernel["backward"] + kernel["recompute"] + sent["tensor"] + sent["expert"] + context
    ) / depth
    passes = 3 if policy == "full" else 2
    dense, expert = parameters(name, tp, ep)
    n = depth // pp

    def over_data(operation):
        total = message_s(operation, 2 * dense / depth, dp * cp, tp, nodes)
        if expert:
            total += message_s(operation, 2 * expert / depth, dp * cp // groups, tp * groups, nodes)
        return total

    gather, scatter, reduce = (over_data(o) for o in ("all_gather", "reduce_scatter", "all_reduce"))
    fore = (kernel["forward"] + (sent["tensor"] + sent["expert"]) / passes + ring_f) / depth
    back = layer - fore

    # Table and head of 1024 x 256, bf16: the table waits for nothing, the head hides behind a layer.
    outer = {
        o: message_s(o, 2 * 1024 * 256 / tp, dp * cp, tp, nodes) for o in ("all_gather", "reduce_scatter", "all_reduce")
    }
    g, s, r = outer["all_gather"], outer["reduce_scatter"], outer["all_reduce"]

    def waits(message, behind):
        return message + (n - 1) * max(0.0, message - behind)

    def ends(message, behind):
        table, head = message, max(0.0, message - behind)
        return [table + head] if pp == 1 else [table, *[0.0] * (pp - 2), head]

    each = once = 0.0
    beside = [0.0] * pp
    if zero == 0:
        once = waits(reduce, back) + max(ends(r, back))
    elif zero == 1:
        once = waits(scatter, back) + waits(gather, fore) + max(ends(s, back)) + max(ends(g, fore))
    elif zero == 2:
        each, once = waits(scatter, back), waits(gather, fore) + max(ends(g, fore))
        beside = ends(s, back)
    else:
        each = waits(gather, fore) + waits(gather + scatter, back)
        beside = [a + b for a, b in zip(ends(g, fore), ends(g + s, back), strict=True)]
    boundary = micro * seq / cp * 256 * 2 / tp
    hop = message_s("ppermute", boundary, pp, tp * cp * dp, nodes) if pp > 1 else 0.0
    stages = [n * layer + each + b for b in beside]
    stages[0] += kernel["first"] + sent["table"]
    stages[-1] += kernel["last"]
    hand, fill = 2.0 * hop * chunks, 0.0
    if chunks > 1:
        hand, fill = max(0.0, hand - max(stages)), 2.0 * (pp - 1) * hop
    slowest = max(stages) + hand
    bubble = (sum(stages) + (1 if chunks > 1 else pp) * hand - slowest) / chunks
    return (
        steps * slowest + fill + bubble + once + optimizer_s((dense, expert), tp, pp, dp * cp, dp * cp // groups, zero)
    )


def parameters(name, tp, ep):
    """Parameters of four layers of one device, from the configuration alone: norms and routers are whole on each."""
    # Beyond four ranks each holds a whole KV head of 32, the same one as its neighbour.
    h, f, q, kv = 256, 512, 256, max(128 / tp, 32)
    attention = 2 * h * q / tp + 2 * h * kv
    if name == "dense":
        return 4 * (attention + 3 * h * f / tp + 2 * h) + h, 0.0
    return 4 * (attention + 2 * h + 4 * h) + h, 4 * 3 * h * f * 4 / ep / max(1, tp // ep)


def optimizer_s(params, tp, pp, ranks, expert_ranks, zero):
    """AdamW: gradient 2, master 4 read and 4 written, two moments 8 read and 8 written, weight 2 written: 28 B."""
    dense, expert = params
    table = 1024 * 256 / tp
    outer = 2 * table if pp == 1 else table
    if zero == 0:
        ranks = expert_ranks = 1
    mine = (dense / pp + outer) / ranks + expert / pp / expert_ranks
    return mine * 28.0 / 3.35e12


def plans(devices, *, experts, depth=4):
    """Every plan by trial of all numbers."""
    powers = [n for n in range(1, devices + 1) if devices % n == 0]
    for tp, pp, dp, cp in itertools.product(powers, repeat=4):
        if tp * pp * dp * cp != devices or (8 % tp or (4 % tp and tp % 4)) or pp > 4 or BATCH % dp:
            continue
        for ep in (1, 2, 4) if experts else (1,):
            try:
                Plan(tp=tp, dp=dp, cp=cp, ep=ep)
            except InfeasibleError:
                continue
            if ep > tp * dp * cp:
                continue
            for micro, zero, policy in itertools.product((1, 2), (0, 1, 2, 3), ("none", "selective", "full")):
                if (BATCH // dp) % micro or (zero and dp * cp == 1):
                    continue
                for chunks in (1, 2) if pp > 1 else (1,):
                    even = depth % (pp * chunks) == 0
                    if not even or (chunks > 1 and (BATCH // dp // micro) % pp):
                        continue
                    yield tp, pp, dp, cp, ep, micro, chunks, zero, policy


def space(devices):
    return Space(devices=(devices,), micro=(1, 2), virtual=(1, 2))


def found(model, devices):
    where = Where(machine=MACHINE, fabrics={devices: fabric(devices // 2)})
    return grid_of(model, Work(phase="train", seq=SEQ, batch=BATCH), where, space(devices)), where


@pytest.mark.parametrize(("name", "devices"), [("dense", 8), ("sparse", 4)])
def test_every_plan_of_a_small_space_is_exact(name, devices):
    model = load_model(MODELS[name])
    grid, where = found(model, devices)
    times = step_of(grid, grid.rows)["step_s"]
    ours = {}
    for i in range(len(grid.rows)):
        combo = grid.combos[grid.rows.combo[i]]
        r = combo.ranks
        key = (
            r.tp, r.pp, r.dp, r.cp, r.ep, int(grid.sizes[grid.rows.micro[i]]), int(grid.rows.chunks[i]),
            int(grid.rows.zero[i]), ("none", "selective", "full")[grid.rows.policy[i]],
        )  # fmt: skip
        # With table and head as layers, three stages of 4 + 2 layers and others are possible; the trial leaves them out.
        if 4 % (r.pp * key[6]) == 0:
            ours[key] = times[i]
    tried = set(plans(devices, experts=name == "sparse"))
    assert set(ours) == tried
    assert len(tried) > 50
    theirs = {key: scalar(name, key, devices // 2) for key in sorted(tried)}
    for key, time_s in theirs.items():
        assert ours[key] == pytest.approx(time_s, rel=1e-9), key
    answer = search(model, grid.work, where, replace(space(devices), virtual=(1, 2)))
    assert answer.best.time_s <= min(theirs.values()) * (1 + 1e-9)
    assert answer.plans == len(grid.rows)


def test_the_front_is_that_of_all_pairs():
    model = load_model(DENSE)
    grid, where = found(model, 8)
    total = sum(memory_of(grid, grid.rows).values())
    times = step_of(grid, grid.rows)["step_s"]
    rows = [{"t": float(t), "m": float(m)} for t, m in zip(times, total, strict=True)]
    expected = np.array(sorted({(rows[i]["t"], rows[i]["m"]) for i in pareto(rows, ("t", "m"))}))
    answer = search(model, grid.work, where, space(8))
    ours = np.array(sorted((c.time_s, c.memory_bytes) for c in answer.front))
    assert ours.shape == expected.shape
    assert np.allclose(ours, expected, rtol=1e-12)


def test_parts_add_up_and_the_answer_is_the_same_twice():
    model = load_model(SPARSE)
    grid, where = found(model, 8)
    step = step_of(grid, grid.rows)
    parts = [k for k in step if k not in ("step_s", "messages_s")]
    assert np.allclose(sum(step[p] for p in parts), step["step_s"], rtol=1e-12)
    first, second = (search(model, grid.work, where, space(8), Aim()) for _ in range(2))
    assert (first.best, first.runner_up, first.front, first.tied) == (
        second.best,
        second.runner_up,
        second.front,
        second.tied,
    )
