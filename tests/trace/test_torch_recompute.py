"""Activation checkpointing: what is executed again is hardware FLOP and no model FLOP. All counts are worked out by hand."""

import json
from collections import Counter
from contextlib import contextmanager

import pytest

from mansard.core import Unknown
from mansard.trace.readers.kineto import read_kineto
from mansard.trace.recorders.torch_recompute import RECOMPUTE, STOPPED, mark_recompute, unmark_recompute
from mansard.trace.run import Part
from mansard.trace.torch_run import Piece, run_of

META = {
    "marks": [],
    "loops": [],
    "windows": [],
    "tracing": [],
    "rusage": [],
    "frameworks": {"torch": {}},
    "argv": ["p.py"],
}
MM = {"Input Dims": [[4, 5], [5, 6]], "Input type": ["float", "float"]}  # 2*4*5*6 = 240 FLOP
ENGINE = "autograd::engine::evaluate_function: "


def event(name, ts, dur, **args):
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 7, "tid": 1, "ts": ts, "dur": dur, "args": args}


def run(tmp_path, events):
    (tmp_path / "t.json").write_text(json.dumps({"traceEvents": events}))
    return run_of([Piece(trace=read_kineto(tmp_path / "t.json"), window_ns=(0, 10**9))], META)


def flags(result):
    return [(int(s) // 1000, result.operators[o].recompute) for o, s in zip(result.op, result.start_ns, strict=True)]


def test_a_reentrant_checkpoint_repeats_outside_its_inner_engine(tmp_path):
    node = "CheckpointFunctionBackward"
    result = run(
        tmp_path,
        [
            event("CheckpointFunction", 0, 20),
            event("aten::mm", 5, 10, **MM),
            event(ENGINE + node, 30, 60),
            event(node, 31, 50),
            event("aten::mm", 35, 10, **MM),  # the forward again
            event(ENGINE + "MmBackward0", 50, 25),
            event("MmBackward0", 51, 20, **{"Fwd thread id": 1}),
            event("aten::mm", 55, 10, **MM),  # its gradient
            event("aten::add", 84, 4, **{"Input Dims": [[4, 5], [4, 5], []], "Input type": ["float", "float", "Scalar"]}),
        ],
    )  # fmt: skip
    assert flags(result) == [(5, False), (35, True), (55, False), (84, False)]
    again = result.operators[result.op[1]]
    assert (again.part, again.demand.total_flop) == (Part.BACKWARD, 240.0)


def test_a_marked_range_is_executed_again_to_its_end_and_its_last_product_gave_up(tmp_path):
    result = run(
        tmp_path,
        [
            event(ENGINE + "MmBackward0", 0, 90),
            event("MmBackward0", 1, 88, **{"Fwd thread id": 1}),
            event(RECOMPUTE, 2, 50),
            event("aten::mm", 5, 10, **MM),
            event("aten::matmul", 20, 20, **MM),  # stopped before it computed
            event("aten::mm", 22, 15, **MM),
            event(STOPPED, 30, 1),
            event("aten::mm", 60, 10, **MM),  # the gradient
        ],
    )
    assert flags(result) == [(5, True), (60, False)]
    # The product that gave up is time around operations: 2-5, 15-60 are in no operation.
    spent = sum(int(e - s) for s, e in zip(result.dispatch_start_ns, result.dispatch_end_ns, strict=True))
    assert spent == (90 - 20) * 1000


def test_an_operator_that_saves_its_result_has_computed_it_when_the_repetition_stops(tmp_path):
    softmax = {
        "Input Dims": [[4, 5], [], []],
        "Input type": ["float", "Scalar", "Scalar"],
        "Concrete Inputs": ["", "1", "False"],
    }
    result = run(
        tmp_path,
        [event(RECOMPUTE, 0, 50), event("aten::_softmax", 5, 20, **softmax), event(STOPPED, 24, 1)],
    )
    assert [(result.operators[o].name, result.operators[o].recompute) for o in result.op] == [("aten::_softmax", True)]


# ------------------------------------------------------------------------------------------------ real recordings


@contextmanager
def recorded(tmp_path, found):
    """Profile a block as a session does, and leave FLOP by (recompute) and by category in `found`."""
    from torch.autograd import profiler

    taken = mark_recompute()
    assert taken is not None
    try:
        with profiler.profile(use_cpu=True, record_shapes=True, use_kineto=True) as profile:
            yield
    finally:
        unmark_recompute(taken)
    profile.export_chrome_trace(str(tmp_path / "live.json"))
    trace = read_kineto(tmp_path / "live.json")
    window = (int(trace.start_ns.min()), int(trace.end_ns.max()))
    result = run_of([Piece(trace=trace, window_ns=window)], META)
    found.clear()
    for index in result.op:
        one = result.operators[index]
        if not isinstance(one.demand, Unknown):
            found["again" if one.recompute else "model"] += one.demand.total_flop
            found[one.category, one.recompute] += one.demand.total_flop


D, H, TOKENS, BLOCKS = 16, 32, 8, 2
WEIGHTS = 2 * D * H  # of one block


def blocks(torch):
    torch.manual_seed(0)
    return torch.nn.ModuleList(
        torch.nn.Sequential(torch.nn.Linear(D, H), torch.nn.GELU(), torch.nn.Linear(H, D)) for _ in range(BLOCKS)
    )


MODES = {
    # mode: arguments of checkpoint, products of a block that are executed again
    "none": (None, 0),
    "reentrant": ({"use_reentrant": True}, 2),
    "whole": ({"use_reentrant": False, "early_stop": False}, 2),
    # The second product has saved its operands, which ends the repetition before it computes.
    "early stop": ({"use_reentrant": False}, 1),
}


@pytest.mark.parametrize("mode", MODES)
def test_model_flop_are_six_n_per_token_however_it_is_checkpointed(tmp_path, mode):
    torch = pytest.importorskip("torch")
    from torch.utils.checkpoint import checkpoint

    options, again = MODES[mode]
    model, found = blocks(torch), Counter()
    x = torch.randn(TOKENS, D, requires_grad=True)
    with recorded(tmp_path, found):
        h = x
        for block in model:
            h = block(h) if options is None else checkpoint(block, h, **options)
        h.sum().backward()
    # Forward 2 N, gradients of inputs and of weights 2 N each: 6 * 2 * 1024 * 8 tokens
    assert found["model"] == 6 * BLOCKS * WEIGHTS * TOKENS == 98304
    # One product of a block has 2 * 16 * 32 * 8 = 8192 FLOP; with both, hardware FLOP are 8 N per token.
    assert found["again"] == again * BLOCKS * 2 * D * H * TOKENS
    if again == 2:
        assert found["model"] + found["again"] == 8 * BLOCKS * WEIGHTS * TOKENS


@pytest.mark.parametrize("again", [False, True])
def test_a_second_derivative_is_no_recomputation(tmp_path, again):
    torch = pytest.importorskip("torch")
    from torch.utils.checkpoint import checkpoint

    model, found = blocks(torch), Counter()
    x = torch.randn(TOKENS, D, requires_grad=True)
    with recorded(tmp_path, found):
        h = x
        for block in model:
            h = checkpoint(block, h, use_reentrant=False, early_stop=False) if again else block(h)
        loss = h.sum() + h.pow(2).sum()
        (slope,) = torch.autograd.grad(loss, x, create_graph=True)
        (loss + slope.pow(2).sum()).backward()
    # Products: forward 2 N; first gradient, of the input alone, 2 N; backward through that 4 N, through the forward 4 N.
    assert found["model"] == 12 * BLOCKS * WEIGHTS * TOKENS
    # A checkpointed region is executed again once in each of the two backward passes.
    assert found["again"] == (2 * 2 * BLOCKS * WEIGHTS * TOKENS if again else 0)


def test_nested_checkpoints(tmp_path):
    torch = pytest.importorskip("torch")
    from torch.utils.checkpoint import checkpoint

    model, found = blocks(torch), Counter()
    x = torch.randn(TOKENS, D, requires_grad=True)

    def both(h):
        for block in model:
            h = checkpoint(block, h, use_reentrant=True)
        return h

    with recorded(tmp_path, found):
        checkpoint(both, x, use_reentrant=True).sum().backward()
    assert found["model"] == 6 * BLOCKS * WEIGHTS * TOKENS
    # Each block once in the repetition of the outer region, once more in that of its own.
    assert found["again"] == 2 * 2 * BLOCKS * WEIGHTS * TOKENS


@pytest.mark.parametrize("reentrant", [False, True])
def test_gpt2_with_gradient_checkpointing(tmp_path, reentrant):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=64, n_positions=16, resid_pdrop=0.0, embd_pdrop=0.0,
                        attn_pdrop=0.0, bos_token_id=0, eos_token_id=0)  # fmt: skip
    model = GPT2LMHeadModel(config).train()
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    model.config.use_cache = False
    ids = torch.randint(0, 64, (2, 16))
    found = Counter()
    with recorded(tmp_path, found):
        model(ids, labels=ids).loss.backward()
    # Weights of a layer: 32*96 + 32*32 + 32*128 + 128*32 = 12288; the head has 64*32 = 2048. 6 N per token, 32 tokens.
    assert found["gemm", False] == 6 * (2 * 12288 + 2048) * 32
    # Again: the layers alone. Without re-entrance the last product of a layer, 128 to 32, stops before it computes.
    assert found["gemm", True] == 2 * 2 * (12288 - (0 if reentrant else 128 * 32)) * 32
    # Causal pairs of a head: 16*17/2 = 136, of dimension 16, 2 products: 2*2*136*16 = 8704; 2 heads, 2 sequences, 2 layers.
    forward = 8704 * 2 * 2 * 2
    assert found["attention", True] == forward
    assert found["attention", False] == 3 * forward
    assert transformers.__version__


def test_the_marks_go_when_they_are_taken_away():
    torch = pytest.importorskip("torch")
    import torch.utils.checkpoint as module

    before = (module._recomputation_hook, module._StopRecomputationError)
    taken = mark_recompute()
    assert module._recomputation_hook is not before[0]
    assert module._recomputation_hook.__name__ == before[0].__name__
    unmark_recompute(taken)
    assert (module._recomputation_hook, module._StopRecomputationError) == before
    assert torch is not None
