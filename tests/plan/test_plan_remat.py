"""`plan remat`: costs worked by hand, the solver against brute force, and what the verb says."""

from __future__ import annotations

import itertools
import json

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from mansard.cli.plan.remat import command
from mansard.core import Unknown
from mansard.core.errors import UsageError
from mansard.plan.remat import (
    CHOICES,
    Copies,
    Policy,
    evaluate,
    fastest_within,
    front,
    keep_everything,
    recomputed,
)
from mansard.plan.remat_document import names_of
from mansard.plan.remat_graph import LayerKind, Node, Step, step_of
from mansard.predict.estimate import Request, estimate
from mansard.predict.machines import load_machine
from mansard.workload.model.load import load_model
from mansard.workload.training import Recipe

NO_LINK = Copies(bytes_per_s=Unknown("no link", ("--link-rate",)))


def node(name, size, compute_s, parents=(), *, needed=True, message_s=0.0):
    return Node(
        name=name, kind="linear", size_bytes=size, compute_s=compute_s, message_s=message_s, parents=parents, needed=needed
    )  # fmt: skip


#: a -> b -> c, with d from a; ten layers. Sizes 4, 8, 2, 6 B; 1, 3, 2, 5 s.
KIND = LayerKind(
    count=10.0,
    nodes=(node("a", 4.0, 1.0), node("b", 8.0, 3.0, (0,)), node("c", 2.0, 2.0, (1,)), node("d", 6.0, 5.0, (0,))),
)


def step(kinds=(KIND,), **changes):
    given = {
        "input_bytes": 3.0, "fixed_bytes": 1000.0, "forward_s": 110.0, "backward_s": 220.0, "forward_messages_s": 0.0,
        "backward_messages_s": 0.0, "once_s": 7.0, "passes": 1, "tokens": 100.0, "devices": 1, "budget_bytes": 1e9,
    }  # fmt: skip
    return Step(kinds=kinds, **{**given, **changes})


def policy(*choices, layer_input="keep"):
    return Policy(kinds=(choices,), layer_input=layer_input)


def test_keeping_everything_costs_no_time():
    # 10 x (3 + 4 + 8 + 2 + 6) = 230 B beside 1000; 110 + 220 + 7 s.
    plan = keep_everything(step(), NO_LINK)
    assert (plan.memory_bytes, plan.kept_bytes, plan.working_bytes) == (1230.0, 230.0, 0.0)
    assert (plan.time_s, plan.recompute_s) == (337.0, 0.0)


def test_keeping_nothing_makes_one_layer_at_a_time_again():
    # Inputs of 10 layers, 30 B, and one layer of 20 B; 10 x (1 + 3 + 2 + 5) = 110 s more.
    plan = evaluate(step(), NO_LINK, policy("recompute", "recompute", "recompute", "recompute"))
    assert (plan.memory_bytes, plan.kept_bytes, plan.working_bytes) == (1050.0, 30.0, 20.0)
    assert (plan.time_s, plan.recompute_s) == (447.0, 110.0)


def test_what_was_kept_stops_the_chain():
    # b kept: c is made from it, and a only because a gradient needs it. 10 x (1 + 2 + 5) s; 30 + 80 kept, 4 + 2 + 6 working.
    plan = evaluate(step(), NO_LINK, policy("recompute", "keep", "recompute", "recompute"))
    assert (plan.recompute_s, plan.kept_bytes, plan.working_bytes) == (80.0, 110.0, 12.0)


def test_an_activation_no_gradient_needs_is_made_for_its_children_alone():
    kind = LayerKind(count=1.0, nodes=(node("a", 4.0, 1.0, needed=False), node("b", 8.0, 3.0, (0,))))
    assert recomputed(kind, ("recompute", "keep")) == (False, False)
    assert recomputed(kind, ("recompute", "recompute")) == (True, True)


def test_copies_hide_behind_the_pass_or_wait():
    # 10 x 8 B at 0.5 B/s: 160 s each way, against 110 s forward and 220 s backward.
    hidden = evaluate(step(), Copies(bytes_per_s=0.5), policy("keep", "offload", "keep", "keep"))
    assert (hidden.copy_s, hidden.waiting_s, hidden.time_s) == (160.0, 50.0, 160.0 + 220.0 + 7.0)
    waited = evaluate(step(), Copies(bytes_per_s=0.5, overlap="none"), policy("keep", "offload", "keep", "keep"))
    assert (waited.waiting_s, waited.time_s) == (320.0, 337.0 + 320.0)
    # The layer that is fetched is there, nothing else of it: 30 + 10 x (4 + 2 + 6) + 8.
    assert (hidden.memory_bytes, hidden.host_bytes) == (1158.0, 80.0)


def test_messages_are_repeated_and_hide():
    kind = LayerKind(count=10.0, nodes=(node("a", 4.0, 1.0, message_s=30.0),))
    plan = evaluate(step((kind,), backward_messages_s=100.0), NO_LINK, policy("recompute"))
    # max(220 + 10, 100 + 300) backward
    assert plan.time_s == 110.0 + 400.0 + 7.0


def test_micro_batches_repeat_all_but_the_optimizer():
    plan = evaluate(step(passes=4), NO_LINK, policy("recompute", "recompute", "recompute", "recompute"))
    assert plan.time_s == 4 * (110.0 + 330.0) + 7.0


def test_offloading_needs_a_link_and_inputs_stay():
    with pytest.raises(UsageError, match="no link"):
        evaluate(step(), NO_LINK, policy("offload", "keep", "keep", "keep"))
    with pytest.raises(UsageError, match="cannot be recomputed"):
        evaluate(step(), NO_LINK, policy("keep", "keep", "keep", "keep", layer_input="recompute"))


def brute(s, copies):
    """The front over every policy."""
    can = CHOICES if not isinstance(copies.bytes_per_s, Unknown) else CHOICES[:2]
    inputs = ("keep", "offload") if len(can) == 3 else ("keep",)
    each = [itertools.product(can, repeat=len(k.nodes)) for k in s.kinds]
    plans = [
        evaluate(s, copies, Policy(kinds=kinds, layer_input=i)) for kinds in itertools.product(*each) for i in inputs
    ]
    out = []
    for p in sorted(plans, key=lambda p: (p.memory_bytes, p.time_s)):
        if not out or p.time_s < out[-1][1]:
            out.append((p.memory_bytes, p.time_s))
    return out[::-1]


def found(s, copies):
    return [(p.memory_bytes, p.time_s) for p in front(s, copies, points=10**6)]


@pytest.mark.parametrize(
    "copies", [NO_LINK, Copies(bytes_per_s=0.5), Copies(bytes_per_s=2.0), Copies(bytes_per_s=0.7, overlap="none")]
)
def test_the_front_is_that_of_brute_force(copies):
    # 2 x 3^4 policies at most.
    assert found(step(), copies) == brute(step(), copies)


def test_the_front_of_two_kinds_of_layer_is_that_of_brute_force():
    other = LayerKind(count=3.0, nodes=(node("a", 5.0, 2.0), node("e", 9.0, 1.0, (0,)), node("f", 7.0, 4.0, (0, 1))))
    s = step((KIND, other))
    assert found(s, NO_LINK) == brute(s, NO_LINK)
    # Fewer nodes where there are three choices for each.
    small = step((LayerKind(count=10.0, nodes=KIND.nodes[:2]), LayerKind(count=3.0, nodes=other.nodes[:2])))
    assert found(small, Copies(bytes_per_s=0.9)) == brute(small, Copies(bytes_per_s=0.9))


@settings(max_examples=10, deadline=None)
@given(st.data())
def test_any_small_layer_has_the_front_of_brute_force(data):
    many = data.draw(st.integers(1, 4))
    nodes = tuple(
        node(
            f"n{i}", float(data.draw(st.integers(1, 20))), float(data.draw(st.integers(1, 20))),
            tuple(sorted(data.draw(st.sets(st.integers(0, i - 1), max_size=2)))) if i else (),
            needed=data.draw(st.booleans()),
        )
        for i in range(many)
    )  # fmt: skip
    s = step((LayerKind(count=float(data.draw(st.integers(1, 6))), nodes=nodes),))
    copies = data.draw(st.sampled_from([NO_LINK, Copies(bytes_per_s=0.25), Copies(bytes_per_s=1.0, overlap="none")]))
    want = brute(s, copies)
    got = found(s, copies)
    assert [m for m, _ in got] == pytest.approx([m for m, _ in want])
    assert [t for _, t in got] == pytest.approx([t for _, t in want])
    for memory, time_s in want:
        plan = fastest_within(s, copies, memory * (1.0 + 1e-9))
        assert plan is not None
        assert plan.time_s == pytest.approx(time_s)


def test_nothing_fits_into_less_than_the_smallest_plan():
    assert fastest_within(step(), NO_LINK, 1049.0) is None
    assert fastest_within(step(), NO_LINK, 1050.0).time_s == 447.0


# --- layers of models ----------------------------------------------------------------------------------------------


def real(name, **changes):
    request = Request(**{"phase": "train", "seq": 4096, "batch": 1, "dtype": "bf16", **changes})
    return step_of(load_model(name), request, load_machine("h200"))


def test_what_a_dense_layer_makes():
    s = real("llama-3.1-8b")
    (kind,) = s.kinds
    sizes = {n.name: n.size_bytes for n in kind.nodes}
    # 4096 tokens of 2 B: hidden 4096, q + k + v 4096 + 2 x 1024, gate and up 2 x 14336.
    assert sizes == {
        "input_layernorm": 4096 * 4096 * 2, "qkv_proj": 4096 * 6144 * 2, "attention": 4096 * 4096 * 2,
        "o_proj": 4096 * 4096 * 2, "post_attention_layernorm": 4096 * 4096 * 2, "gate_up_proj": 4096 * 28672 * 2,
        "activation": 4096 * 14336 * 2, "down_proj": 4096 * 4096 * 2,
    }  # fmt: skip
    assert [n.name for n in kind.nodes if not n.needed] == ["down_proj"]
    parents = {n.name: [kind.nodes[p].name for p in n.parents] for n in kind.nodes}
    assert parents["input_layernorm"] == []
    assert parents["post_attention_layernorm"] == ["o_proj"]
    assert parents["gate_up_proj"] == ["post_attention_layernorm"]
    # gate and up: 2 x 4096 x 4096 x 28672 FLOP at 989.4 TFLOP/s = 0.972 ms
    (wide,) = [n for n in kind.nodes if n.name == "gate_up_proj"]
    assert wide.compute_s == pytest.approx(2 * 4096 * 4096 * 28672 / 989.4e12, rel=1e-3)


def test_full_recomputation_is_the_recipe_of_the_workload():
    # Everything made again is one more forward pass of the layers, the last product and its sum apart.
    s = real("llama-3.1-8b")
    nothing = evaluate(s, NO_LINK, Policy(kinds=(("recompute",) * 8,)))
    request = Request(phase="train", seq=4096, batch=1, dtype="bf16", recipe=Recipe(recompute="full"))
    full = estimate(load_model("llama-3.1-8b"), request, load_machine("h200"))
    again = sum(
        r.time_s for r in full.bound.kernels if r.kernel.in_pass == "recompute" and r.kernel.name != "down_proj"
    )
    assert nothing.recompute_s == pytest.approx(again)


def test_experts_and_latents_come_from_where_they_come_from():
    s = real("deepseek-v3", seq=1024)
    dense, mixed = s.kinds
    assert (dense.count, mixed.count) == (3, 58)
    parents = {n.name: [mixed.nodes[p].name for p in n.parents] for n in mixed.nodes}
    assert parents["kv_up"] == ["qkv_down"]
    assert parents["attention"] == ["q_up", "kv_up"]
    assert parents["experts_gate_up_proj"] == ["post_attention_layernorm", "router"]
    assert parents["shared_gate_up_proj"] == ["post_attention_layernorm"]
    # The gradient of the routing weights needs what each expert gave.
    assert {n.name for n in mixed.nodes if not n.needed} == {"combine", "shared_down_proj"}


def test_tensor_ranks_repeat_the_sum_of_what_they_make_again():
    from mansard.workload.parallel import Plan

    s = real("llama-3.1-8b", plan=Plan(tp=8))
    (o,) = [n for n in s.kinds[0].nodes if n.name == "o_proj"]
    # ring all-reduce of 4096 x 4096 x 2 B over 8 ranks: 2 x 7/8 x 33.55 MB at 450 GB/s = 130 us
    assert o.message_s == pytest.approx(2 * 7 / 8 * 33554432 / 450e9, rel=0.01)


def test_more_memory_never_takes_longer():
    plans = front(real("llama-3.1-8b"), Copies(bytes_per_s=55e9), points=12)
    times, sizes = [p.time_s for p in plans], [p.memory_bytes for p in plans]
    assert times == sorted(times)
    assert sizes == sorted(sizes, reverse=True)


# --- the verb ------------------------------------------------------------------------------------------------------


def run(*args, ok=0):
    done = CliRunner().invoke(command, list(args), standalone_mode=False)
    if done.exception is not None:
        raise done.exception
    assert done.return_value == ok
    return done.output


ARGS = (
    "llama-3.1-8b",
    "--on",
    "h100-sxm",
    "--seq",
    "4096",
    "--batch",
    "8",
    "--dp",
    "8",
    "--zero",
    "3",
    "--points",
    "6",
)


def test_the_verb_says_what_to_write():
    text = run(*ARGS, "--budget", "24 GB")
    assert max(map(len, text.splitlines())) <= 80
    assert "jax.checkpoint_policies" in text
    assert "create_selective_checkpoint_contexts" in text or "checkpoint(layer" in text


def test_what_fits_needs_no_policy():
    document = json.loads(run(*ARGS, "--no-offload", "--json"))
    chosen = document["candidates"][document["best"]]
    assert chosen["recompute_s"] == 0
    assert chosen["host_bytes"] == 0
    assert chosen["fits"] is True
    assert "no policy is needed" in run(*ARGS, "--no-offload")


def test_nothing_fits():
    text = run(*ARGS, "--budget", "1 GB", ok=3)
    assert "no policy fits" in text


def test_every_candidate_has_the_keys_of_a_plan():
    document = json.loads(run(*ARGS, "--json", "--framework", "jax"))
    for row in document["candidates"]:
        assert {"fits", "time_s", "cost", "memory_bytes", "why_not"} <= set(row)
        for kind in row["policies"]:
            assert not set(kind["keep"]) & set(kind["recompute"])
    assert set(document["policy"][0]["code"]) == {"jax"}
    assert document["pareto"]


def test_names_of_a_policy():
    s = step()
    (names,) = names_of(s, policy("recompute", "keep", "recompute", "keep"))
    assert (names.kept, names.offloaded, names.again) == (("b", "d"), (), ("a", "c"))
    assert not names.every
    (names,) = names_of(s, policy("keep", "keep", "keep", "keep"))
    assert names.every


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("--no-offload", "--link-rate", "3 GB/s"), "leave one"),
        (("--budget", "0 B"), "above zero"),
        (("--points", "1"), "points"),
    ],
)
def test_wrong_usage(more, says):
    with pytest.raises(UsageError) as caught:
        run("llama-3.1-8b", "--on", "h100-sxm", "--seq", "128", *more)
    assert says in f"{caught.value.message} {caught.value.hint}"
