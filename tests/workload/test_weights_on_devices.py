"""Whose weights, gradients and optimizer state a device holds and sends: experts, pipeline stages, tied tables."""

from __future__ import annotations

import pytest

from mansard.workload.batch import decode_batch, training_batch
from mansard.workload.counts import count_params
from mansard.workload.memory import kept_activations, memory_of
from mansard.workload.parallel import InfeasibleError, Plan
from mansard.workload.phases import decode, train, trained_elements
from mansard.workload.stages import layers_by_stage, stage_depths, stage_weights
from mansard.workload.training import Recipe

# Mixtral 8x7B: 32 layers x 8 experts x 3 matrices of 4096 x 14336; 46,702,792,704 in all.
EXPERTS = 32 * 8 * 3 * 4096 * 14336
REST = 46_702_792_704 - EXPERTS
BATCH = training_batch(sequences=1, seq=32)


def sent(setting, model, plan, recipe=None):
    """Bytes one device sends for gradients and weights, by message."""
    phase = train(setting(model, plan), BATCH, recipe or Recipe())
    names = ("gradients", "weights", "tied_table")
    out = {}
    for k in phase.kernels:
        if k.kind == "communication" and any(n in k.name for n in names):
            out[k.name] = out.get(k.name, 0.0) + k.demand.link_bytes["peer"] * k.count
    return out


def held(setting, model, plan, recipe=None, batch=BATCH):
    recipe = recipe or Recipe()
    s = setting(model, plan)
    return memory_of(s, train(s, batch, recipe), batch, recipe=recipe)


def test_experts_that_one_rank_holds_alone_send_no_gradient(build, setting):
    # 8 ranks of data, 8 of experts: an expert has one home. The rest is reduced over 8: 2 x 7/8 x 2 B.
    got = sent(setting, build("mixtral-8x7b"), Plan(dp=8, ep=8))
    assert got == {"all_reduce_gradients": pytest.approx(2 * 7 / 8 * 2 * REST)}


def test_experts_are_reduced_over_the_ranks_that_hold_the_same(build, setting):
    # dp 16, ep 8: two ranks hold the same eighth of the experts: 2 x 1/2 x 2 B x 45,097,156,608 / 8 = 11.27 GB.
    got = sent(setting, build("mixtral-8x7b"), Plan(dp=16, ep=8))
    assert got["all_reduce_gradients"] == pytest.approx(2 * 15 / 16 * 2 * REST)
    assert got["all_reduce_gradients_experts"] == pytest.approx(11_274_289_152)


def test_without_expert_parallelism_there_is_one_message(build, setting):
    got = sent(setting, build("mixtral-8x7b"), Plan(dp=8))
    assert got == {"all_reduce_gradients": pytest.approx(2 * 7 / 8 * 2 * 46_702_792_704)}


def test_expert_ranks_taken_from_tensor_ranks_leave_the_data_ranks(build, setting):
    # tp 4, ep 4: the experts are divided where the matrices are, so all 2 data ranks hold the same experts.
    got = sent(setting, build("mixtral-8x7b"), Plan(tp=4, dp=2, ep=4))
    assert got["all_reduce_gradients_experts"] == pytest.approx(2 * 1 / 2 * 2 * EXPERTS / 4)


def test_fsdp_gathers_experts_over_their_replicas(build, setting):
    # Weights gathered twice and gradients scattered once in each of 4 micro-batches.
    got = sent(setting, build("mixtral-8x7b"), Plan(dp=16, ep=8, zero=3), Recipe(accumulation=4))
    assert got["all_gather_weights"] == pytest.approx(4 * 2 * 15 / 16 * 2 * REST)
    assert got["all_gather_weights_experts"] == pytest.approx(4 * 2 * 1 / 2 * 2 * EXPERTS / 8)
    assert got["reduce_scatter_gradients_experts"] == pytest.approx(4 * 1 / 2 * 2 * EXPERTS / 8)


def test_the_optimizer_updates_what_the_device_keeps(build, setting):
    # dp 16, ep 8, ZeRO 1: the rest over 16 ranks, an eighth of the experts over 2: both are a 16th.
    phase = train(setting(build("mixtral-8x7b"), Plan(dp=16, ep=8, zero=1)), BATCH)
    (step,) = [k for k in phase.kernels if k.name == "optimizer_step"]
    # master 4 + gradient 2 + moments 8 read, master 4 + moments 8 + weights 2 written
    assert step.demand.bytes == pytest.approx(28 * 46_702_792_704 / 16)


@pytest.mark.parametrize(
    "plan",
    [Plan(dp=8, ep=8, zero=3), Plan(dp=16, ep=8, zero=3), Plan(dp=8, ep=4, zero=3), Plan(dp=8, zero=3), Plan(dp=4, cp=2, ep=8, zero=3)],
    ids=str,
)  # fmt: skip
def test_sharded_state_of_all_devices_is_the_state_of_the_model(build, setting, plan):
    # Nothing is lost and nothing is kept twice: 2 B of weights, 2 B of gradients, 12 B of Adam for each of the weights.
    m = held(setting, build("mixtral-8x7b"), plan)
    assert m.weight_bytes * plan.devices == pytest.approx(2 * 46_702_792_704)
    assert m.gradient_bytes * plan.devices == pytest.approx(2 * 46_702_792_704)
    assert m.optimizer_bytes * plan.devices == pytest.approx(12 * 46_702_792_704)


def test_gradients_of_experts_that_few_tokens_miss_need_room_too(build, setting):
    # 4 tokens meet 31.4 of 128 experts in a layer; gradients are allocated for all.
    model = build("qwen3-30b-a3b")
    m = held(setting, model, Plan(), batch=training_batch(sequences=1, seq=4))
    assert m.gradient_bytes == 2 * count_params(model).total


def test_a_tied_head_has_one_gradient_and_one_state(build, setting):
    model = build("qwen3-0.6b", tied=True)
    m = held(setting, model, Plan())
    assert m.gradient_bytes == 2 * count_params(model).total
    assert m.optimizer_bytes == 12 * count_params(model).total


# --- pipeline stages -----------------------------------------------------------------------------------------------


def test_what_does_not_divide_goes_before_the_last_stage():
    assert stage_depths(61, 4) == (15, 15, 16, 15)
    assert stage_depths(7, 3) == (2, 3, 2)
    assert sum(stage_depths(61, 16)) == 61
    with pytest.raises(InfeasibleError, match="5 layers cannot be divided over 6"):
        stage_depths(5, 6)


def test_layers_of_each_kind_by_stage(build):
    from dataclasses import replace

    from mansard.workload.records import LayerGroup

    # Layers 0-2 of one kind, 3-9 of another: stages of 5 hold 3 + 2 and 0 + 5.
    text = build("small").text
    layer = text.groups[0].layer
    mixed = replace(
        text, groups=(LayerGroup(layer=layer, indices=(0, 1, 2)), LayerGroup(layer=layer, indices=tuple(range(3, 10))))
    )
    assert layers_by_stage(mixed, 2).tolist() == [[3, 2], [0, 5]]


def test_the_fullest_stage_holds_the_head(build, setting):
    # A layer: 2 x 4096^2 + 2 x 4096 x 1024 + 3 x 4096 x 14336 + 2 norms = 218,112,000. Four stages of 8; the table and the
    # head have 525,336,576 each, the last stage a norm of 4096 more.
    model = build("llama-3.1-8b")
    layers = 8 * 218_112_000
    got = [w.dense for w in stage_weights(setting(model, Plan(pp=4)))]
    assert got == [layers + 525_336_576, layers, layers, layers + 525_336_576 + 4096]
    batch = decode_batch(sequences=1, context=1000)
    s = setting(model, Plan(pp=4))
    m = memory_of(s, decode(s, batch), batch)
    assert m.weight_bytes == 2 * (layers + 525_336_576 + 4096)
    # Keys and values of 8 of 32 layers.
    assert m.kv_cache_bytes == 1000 * 131072 / 4
    assert m.whole_weight_bytes == 2 * 8_030_261_248


def test_a_tied_table_lies_on_the_first_and_the_last_stage(build, setting):
    # 151,936 x 1024 = 155,582,464 on both; on one stage it is there once.
    model = build("qwen3-0.6b", tied=True)
    first, last = stage_weights(setting(model, Plan(pp=2)))
    assert last.dense - first.dense == 1024
    (one,) = stage_weights(setting(model))
    assert first.dense + last.dense - one.dense == 155_582_464
    assert first.dense_bytes == 2 * first.dense


def test_both_gradients_of_a_tied_table_are_summed(build, setting):
    # An all-reduce between two ranks: 2 x 1/2 x 2 B x 155,582,464, on two of two stages; on two of four half as much.
    model = build("qwen3-0.6b", tied=True)
    assert sent(setting, model, Plan(pp=2)) == {"all_reduce_tied_table": pytest.approx(311_164_928)}
    assert sent(setting, model, Plan(pp=4)) == {"all_reduce_tied_table": pytest.approx(311_164_928 / 2)}
    assert sent(setting, model, Plan()) == {}
    assert sent(setting, build("qwen3-0.6b"), Plan(pp=2)) == {}


def test_logits_are_those_of_the_last_stage_alone(build, setting):
    # Stages of one layer, two micro-batches: the first stage keeps two of its layer, the last one of it and the logits.
    model = build("small", vocab=100_000)
    batch = training_batch(sequences=1, seq=16)
    recipe = Recipe(accumulation=2)
    whole = kept_activations(train(setting(model), batch, recipe), recipe)
    staged = kept_activations(train(setting(model, Plan(pp=2)), batch, recipe), recipe)
    one_layer = staged - (16 * 100_000 * 2 + 16 * 2 + 16 * 64 * 2)
    # Without stages: two layers, the rows of the table (16 x 64 x 2 B), logits, loss and the final norm.
    assert whole == pytest.approx(2 * one_layer + 16 * 64 * 2 * 1.0 + 16 * 100_000 * 2 + 16 * 2, rel=0.01)


def test_adapters_alone_are_trained(build, setting):
    dense, routed = trained_elements(setting(build("mixtral-8x7b"), Plan(dp=8, ep=8)), Recipe(lora_rank=16))
    # q and o: 2 x (4096 + 4096), k and v: 2 x (4096 + 1024); experts get none.
    assert dense == 32 * 16 * (2 * 8192 + 2 * 5120)
    assert routed == 0


def test_outputs_that_tensor_ranks_sum_are_kept_by_their_share_of_tokens(build, setting):
    # A layer of 4096 tokens on 8 ranks, elements for each token, hidden 4096: norms, o_proj and down_proj 4 x 4096 / 8, q 4096
    # and k, v 2 x 1024 over 8, attention 4096 / 8, gate and up 2 x 14336 / 8, activation 14336 / 8: all of it an eighth of
    # 4 x 4096 + 6144 + 4096 + 43008 = 69,632.
    model = build("llama-3.1-8b")
    batch = training_batch(sequences=1, seq=4096)

    def layers(tp):
        kept = kept_activations(train(setting(model, Plan(tp=tp)), batch), Recipe())
        # Beside the layers: rows of the table, the final norm, logits of 128,256 / tp, the loss.
        return kept - 4096 * 2 * (4096 + 4096 / tp + 128256 / tp + 1)

    assert layers(1) == pytest.approx(32 * 4096 * 69_632 * 2)
    assert layers(8) == pytest.approx(32 * 4096 * 69_632 * 2 / 8)
