"""From Kineto events to a run: who owns each nanosecond, which part it belongs to, what a device did."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from mansard.core import Unknown
from mansard.core.errors import UndecidedError
from mansard.trace.load import load_run
from mansard.trace.readers.kineto import read_kineto
from mansard.trace.run import Part, WaitCause
from mansard.trace.torch_run import Piece, run_of

SHARED = Path(os.environ.get("MANSARD_SHARED", Path(__file__).parents[3] / "shared"))
META = {
    "marks": [],
    "loops": [],
    "windows": [],
    "tracing": [],
    "rusage": [],
    "frameworks": {"torch": {}},
    "argv": ["p.py"],
}
MM = {"Input Dims": [[4, 5], [5, 6]], "Input type": ["float", "float"]}
ADD = {"Input Dims": [[4, 5], [4, 5], []], "Input type": ["float", "float", "Scalar"]}


def event(name, ts, dur, cat="cpu_op", tid=1, **args):
    return {"ph": "X", "cat": cat, "name": name, "pid": 7, "tid": tid, "ts": ts, "dur": dur, "args": args}


def run(tmp_path, events, meta=META):
    (tmp_path / "t.json").write_text(json.dumps({"traceEvents": events}))
    trace = read_kineto(tmp_path / "t.json")
    return run_of([Piece(trace=trace, window_ns=(0, 10**9))], meta)


def rows(result):
    return [
        (result.operators[o].name, int(s) // 1000, int(e) // 1000)
        for o, s, e in zip(result.op, result.start_ns, result.end_ns, strict=True)
    ]


def dispatch_us(result):
    return [
        (int(s) // 1000, int(e) // 1000) for s, e in zip(result.dispatch_start_ns, result.dispatch_end_ns, strict=True)
    ]


def test_the_topmost_operator_with_work_covers_what_it_calls(tmp_path):
    result = run(
        tmp_path,
        [
            event("aten::matmul", 0, 20, **MM),  # composite: calls mm
            event("aten::mm", 5, 10, **MM),
            event("aten::resolve_conj", 6, 1, **{"Input Dims": [[4, 5]], "Input type": ["float"]}),
            event("aten::add", 30, 4, **ADD),
        ],
    )
    assert rows(result) == [("aten::mm", 5, 15), ("aten::add", 30, 34)]
    assert dispatch_us(result) == [(0, 5), (15, 20)]  # what matmul does around mm
    mm = result.operators[result.op[0]]
    assert mm.demand.total_flop == 2 * 4 * 5 * 6
    assert mm.shapes == "f32[4,5] f32[5,6]"


def test_an_operator_nobody_knows_owns_its_time_unless_it_calls_known_work(tmp_path):
    result = run(
        tmp_path,
        [
            event("mylib::leaf", 0, 10),
            event("aten::empty", 2, 1, **{"Input Dims": [[]], "Input type": ["ScalarList"]}),
            event("mylib::composite", 20, 10),
            event("aten::mm", 22, 5, **MM),
        ],
    )
    assert rows(result) == [("mylib::leaf", 0, 10), ("aten::mm", 22, 27)]
    assert isinstance(result.operators[result.op[0]].demand, Unknown)
    assert dispatch_us(result) == [(20, 22), (27, 30)]


def test_parts_come_from_autograd_optimizer_loader_and_order(tmp_path):
    result = run(
        tmp_path,
        [
            event("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 20, "user_annotation"),
            event("aten::add", 5, 5, **ADD),
            event("aten::mm", 30, 10, **MM),
            event("Optimizer.zero_grad#SGD.zero_grad", 41, 4, "user_annotation"),
            event("aten::add", 42, 2, **ADD),
            event("autograd::engine::evaluate_function: MmBackward0", 50, 20),
            event("MmBackward0", 52, 16, **{"Fwd thread id": 1}),
            event("aten::mm", 55, 10, **MM),
            event("aten::add", 75, 5, **ADD),  # gradient clipping
            event("Optimizer.step#SGD.step", 85, 10, "user_annotation"),
            event("aten::add", 87, 5, **ADD),
            event("aten::mm", 100, 5, **MM),
        ],
    )
    parts = [(result.operators[o].part, int(s) // 1000) for o, s in zip(result.op, result.start_ns, strict=True)]
    assert parts == [
        (Part.INPUT, 5),
        (Part.FORWARD, 30),
        (Part.OPTIMIZER, 42),
        (Part.BACKWARD, 55),
        (Part.OTHER, 75),
        (Part.OPTIMIZER, 87),
        (Part.FORWARD, 100),
    ]
    waits = [
        (c, int(s) // 1000, int(e) // 1000)
        for c, s, e in zip(result.wait_cause, result.wait_start_ns, result.wait_end_ns, strict=True)
    ]
    assert waits == [(WaitCause.INPUT, 0, 5), (WaitCause.INPUT, 10, 20)]
    assert dispatch_us(result) == [(41, 42), (44, 45), (50, 52), (52, 55), (65, 68), (68, 70), (85, 87), (92, 95)]


def test_without_a_backward_pass_the_part_is_not_guessed(tmp_path):
    result = run(tmp_path, [event("aten::mm", 0, 5, **MM)])
    assert result.operators[0].part is Part.OTHER


def test_nothing_is_owned_twice_and_nothing_between_is_owned(tmp_path):
    """Random nested events: operations, dispatch and waits of a thread never overlap, and cover exactly the top ranges."""
    rng = np.random.default_rng(3)
    names = [
        "aten::mm",
        "aten::matmul",
        "mylib::x",
        "autograd::engine::evaluate_function: X",
        "enumerate(DataLoader)#i",
    ]
    events = []

    def fill(start, end, depth):
        cursor = start
        while cursor < end and depth < 5:
            a = cursor + int(rng.integers(0, 40))
            b = a + int(rng.integers(1, 200))
            if b > end:
                return
            name = names[rng.integers(len(names))]
            cat = "user_annotation" if "#" in name else "cpu_op"
            events.append(event(name, a, b - a, cat, **(MM if name.startswith("aten") else {})))
            fill(a, b, depth + 1)
            cursor = b

    fill(0, 4000, 0)
    assert len(events) > 50
    result = run(tmp_path, events)
    owned = np.concatenate(
        [
            np.stack([result.start_ns, result.end_ns], 1),
            np.stack([result.dispatch_start_ns, result.dispatch_end_ns], 1),
            np.stack([result.wait_start_ns, result.wait_end_ns], 1),
        ]
    )
    owned = owned[np.argsort(owned[:, 0], kind="stable")]
    assert (owned[1:, 0] >= owned[:-1, 1]).all()
    line = np.zeros(4000, bool)
    for e in events:
        line[e["ts"] : e["ts"] + e["dur"]] = True
    assert (owned[:, 1] - owned[:, 0]).sum() == line.sum() * 1000


def test_device_work_belongs_to_the_operation_that_launched_it(tmp_path):
    kernel = {"device": 0, "stream": 7}
    result = run(
        tmp_path,
        [
            event("aten::mm", 0, 10, **MM),
            event("cudaLaunchKernel", 2, 3, "cuda_runtime", correlation=11),
            event("cudaLaunchKernel", 6, 2, "cuda_runtime", correlation=12),
            event("aten::add", 12, 6, **ADD),
            event("cudaLaunchKernel", 13, 3, "cuda_runtime", correlation=13),
            event("cudaStreamSynchronize", 20, 60, "cuda_runtime"),
            event("gemm_kernel", 20, 15, "kernel", tid=7, correlation=11, **kernel),
            event("gemm_reduce", 36, 4, "kernel", tid=7, correlation=12, **kernel),
            event("add_kernel", 41, 9, "kernel", tid=7, correlation=13, **kernel),
            event("Memcpy DtoD (Device -> Device)", 60, 2, "gpu_memcpy", tid=7, correlation=99, bytes=64, **kernel),
        ],
    )
    assert rows(result) == [("aten::mm", 20, 40), ("aten::add", 41, 50), ("Memcpy DtoD (Device -> Device)", 60, 62)]
    assert {result.operators[o].scope for o in result.op} == {"device"}
    assert set(result.lane.tolist()) == {0}
    copy = result.operators[result.op[2]]
    assert (copy.category, copy.demand.read_bytes, copy.demand.write_bytes) == ("copy", 64.0, 64.0)
    assert dispatch_us(result) == [(0, 10), (12, 18)]  # the host only launches
    assert result.wait_cause == (WaitCause.SYNC,)
    assert [f.code for f in result.findings if f.code == "unattributed_kernels"] == ["unattributed_kernels"]
    assert result.scope == "device"


@pytest.fixture
def kineto_file():
    def find(name):
        path = SHARED / "data" / "traces" / "kineto" / name
        if not path.exists():
            pytest.skip(f"{name} needs the shared data: set MANSARD_SHARED")
        return path

    return find


@pytest.mark.parametrize(
    "name",
    [
        "h100_bert-small.json.gz",
        "a100_ddp_rank3of8.json.gz",
        "mi300x_resnet_ddp8_checkpointing.json.gz",
        "cpu_only_small.json",
    ],
)
def test_real_files_keep_lanes_free_of_overlap(kineto_file, name):
    trace = read_kineto(kineto_file(name))
    result = run_of([Piece(trace=trace, window_ns=(int(trace.start_ns.min()), int(trace.end_ns.max())))], META)
    for lane in np.unique(result.lane):
        mine = result.lane == lane
        assert (result.start_ns[mine][1:] >= result.end_ns[mine][:-1]).all()
    if trace.of_category("kernel").any():
        assert result.scope == "device"
        # Intervals of operations hold all kernels on their streams, so they are not shorter than the kernels' union.
        kernels = trace.of_category("kernel")
        spans = sorted(zip(trace.start_ns[kernels].tolist(), trace.end_ns[kernels].tolist(), strict=True))
        assert len(result.op) > 0
        assert int(result.end_ns.max()) >= spans[-1][0]


def test_steps_of_a_real_training_file(kineto_file):
    trace = read_kineto(kineto_file("a100_ddp_rank3of8.json.gz"))
    result = run_of([Piece(trace=trace, window_ns=(int(trace.start_ns.min()), int(trace.end_ns.max())))], META)
    assert (result.steps.source, result.steps.count) == ("marker", 6)  # 6 ProfilerStep by the manifest
    assert {Part.FORWARD, Part.BACKWARD, Part.OPTIMIZER} <= {o.part for o in result.operators}


TRAIN = """
import sys, torch
torch.manual_seed(0)
model = torch.nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(int(sys.argv[1])):
    loss = model(torch.ones(16, 8)).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if i == int(sys.argv[2]):
        raise ValueError("boom")
print("loss is finite", bool(torch.isfinite(loss.detach())))
"""


def test_a_training_loop_from_the_program_to_the_run(tmp_path, capfd):
    pytest.importorskip("torch")
    from mansard.trace.recorders.record import record

    (tmp_path / "train.py").write_text(TRAIN)
    done = record([str(tmp_path / "train.py"), "40", "-1"], directory=tmp_path / "rec")
    out, err = capfd.readouterr()
    assert (done.exit_code, out, err) == (0, "loss is finite True\n", "")  # nothing of ours, nothing of the profiler's
    assert (done.frameworks, done.usable) == (("torch",), True)
    result = load_run(tmp_path / "rec")
    assert result.steps.source == "optimizer"
    assert 3 <= result.steps.count <= 39
    inside = (result.start_ns >= result.steps.start_ns[0]) & (result.start_ns < result.steps.end_ns[0])
    flop = sum(
        result.operators[o].demand.total_flop
        for o in result.op[inside]
        if not isinstance(result.operators[o].demand, Unknown)
    )
    # forward: 2*16*8*4 = 1024; backward: the gradient of the weight, 2*4*16*8 = 1024 (the input needs none)
    assert flop == 2048
    names = {(result.operators[o].name, result.operators[o].part) for o in result.op[inside]}
    assert ("aten::addmm", Part.FORWARD) in names
    assert ("aten::mm", Part.BACKWARD) in names
    assert result.op_floor_s > 0


def test_a_crash_keeps_what_was_recorded(tmp_path, capfd):
    pytest.importorskip("torch")
    from mansard.trace.recorders.record import record

    (tmp_path / "train.py").write_text(TRAIN)
    done = record([str(tmp_path / "train.py"), "40", "12"], directory=tmp_path / "rec")
    assert done.exit_code == 1
    assert capfd.readouterr().err.endswith("ValueError: boom\n")
    result = load_run(tmp_path / "rec")
    assert result.steps.count >= 3
    assert "program_crashed" in [f.code for f in result.findings]


def test_a_program_without_a_framework_cannot_be_loaded(tmp_path):
    from mansard.trace.recorders.record import record

    (tmp_path / "p.py").write_text("x = 1")
    record([str(tmp_path / "p.py")], directory=tmp_path / "rec")
    with pytest.raises(UndecidedError, match="neither torch nor jax"):
        load_run(tmp_path / "rec")


def test_the_engine_between_its_nodes_is_dispatch(tmp_path):
    node = "autograd::engine::evaluate_function: "
    result = run(
        tmp_path,
        [
            event("aten::ones_like", 0, 10, **{"Input Dims": [[4, 5]], "Input type": ["float"]}),
            event(node + "MmBackward0", 60, 20),  # 50 us: the graph is gone through
            event(node + "AddBackward0", 82, 8),  # 2 us: from node to node
            event(node + "MulBackward0", 590, 10),  # 500 us: not the engine alone
            event("aten::add", 610, 10, **ADD),
        ],
    )
    assert dispatch_us(result) == [(10, 60), (60, 80), (80, 82), (82, 90), (590, 600)]


def test_recorded_events_are_counted_inside_operations_and_around_them(tmp_path):
    result = run(
        tmp_path,
        [
            event("aten::matmul", 0, 20, **MM),  # a frame
            event("aten::mm", 5, 10, **MM),  # an operation of 3 events
            event("aten::resolve_conj", 6, 3, **{"Input Dims": [[4, 5]], "Input type": ["float"]}),
            event("aten::resolve_conj", 10, 1, **{"Input Dims": [[4, 5]], "Input type": ["float"]}),
            event("aten::add", 30, 4, **ADD),
        ],
    )
    assert result.op_events.tolist() == [3, 1]
    assert result.frame_ns.tolist() == [0]
