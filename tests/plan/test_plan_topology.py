"""Axes of a shape and kinds of parallelism: bytes per step and times by hand, and the order of the answers."""

import json

import pytest
from click.testing import CliRunner

from mansard.cli.main import cli
from mansard.core.errors import UsageError
from mansard.hardware import load
from mansard.hardware.fabrics import fabric_of, parse_shape
from mansard.plan.topology import allowed_kinds, assignments, mesh_axes, plan_shape
from mansard.predict.estimate import Request
from mansard.predict.machines import load_machine
from mansard.workload.model.load import load_model


def planned(shape, *, on="tpu-v5p", model="llama-3.1-8b", kinds=None, fixed=None, phase="train", zero=3, **request):
    loaded = load_model(model)
    sizes = {"batch": 64, "seq": 4096} | request
    fabric = fabric_of(load(on), parse_shape(shape), network_bytes_per_s=50e9)
    return plan_shape(
        loaded, Request(phase=phase, **sizes), load_machine(on), fabric,
        kinds=kinds or allowed_kinds(loaded, phase), fixed=fixed or {}, zero=zero,
    )  # fmt: skip


def traffic(found, kind):
    return next(t for t in found.best.traffic if t.kind == kind)


def test_fsdp_over_three_axes_without_wrap():
    found = planned("2x2x2", kinds=("data",))
    fsdp = traffic(found, "data")
    # Two gathers and one scatter of 8,030,261,248 bf16 weights: 3 x 7/8 x 16.06 GB = 42.16 GB a device;
    # 3 links of 100 GB/s take it in, 140.5 ms.
    assert fsdp.sent_bytes == pytest.approx(3 * 7 / 8 * 2 * 8030261248)
    assert fsdp.time_s == pytest.approx(42.16e9 / 300e9, rel=1e-3)
    assert fsdp.ranks == 8
    # One axis of eight wraps and has two links: 210.8 ms.
    assert traffic(planned("8x1x1", kinds=("data",)), "data").time_s == pytest.approx(42.16e9 / 200e9, rel=1e-3)


def test_tensor_parallel_all_reduces_by_hand():
    found = planned("4x1x1", kinds=("tensor",), fixed={"tensor": 4}, batch=4)
    tensor = traffic(found, "tensor")
    # 65 all-reduces of 4 x 4096 x 4096 x 2 B = 134.2 MB forward and as many backward, each 2 x 3/4: 26.17 GB;
    # two links of 100 GB/s: 130.9 ms. 65: two a layer and one for the divided table.
    assert tensor.calls == 130
    assert tensor.sent_bytes == pytest.approx(130 * 1.5 * 4 * 4096 * 4096 * 2)
    assert tensor.time_s == pytest.approx(tensor.sent_bytes / 200e9)


def test_tensor_goes_where_the_links_are_fast():
    # Two nodes of eight GPUs: tensor parallelism of eight belongs on NVLink, the network carries the weights.
    found = planned("2:8", on="h200", kinds=("data", "tensor"), fixed={"tensor": 8})
    used = dict(zip([a.name for a in found.axes], found.best.degrees, strict=True))
    assert used == {"nvlink": {"tensor": 8}, "network": {"data": 2}}
    assert any("nvlink" in reason and "tensor" in reason for reason in found.reasons)


def test_the_inner_axis_of_a_two_die_chip_takes_the_busiest_kind():
    found = planned("4x1x1", on="tpu-v7x", kinds=("data", "tensor"), fixed={"tensor": 2})
    used = dict(zip([a.name for a in found.axes], found.best.degrees, strict=True))
    assert used == {"die": {"tensor": 2}, "x": {"data": 4}}


def test_experts_meet_over_the_other_axes_alone():
    every = planned("8", on="h200", model="mixtral-8x7b", kinds=("expert",), fixed={"expert": 8})
    data = planned("8", on="h200", model="mixtral-8x7b", kinds=("data",), fixed={"data": 8})
    # Every expert is on one device alone: what is gathered is the rest, 46,702,792,704 - 45,097,156,608 weights.
    rest = 46702792704 - 32 * 8 * 3 * 4096 * 14336
    assert traffic(every, "data").sent_bytes == pytest.approx(3 * 7 / 8 * 2 * rest)
    assert traffic(data, "data").sent_bytes == pytest.approx(3 * 7 / 8 * 2 * 46702792704)
    assert traffic(every, "expert").ranks == 8


def test_decode_has_no_gradients_and_adds_messages_to_kernels():
    found = planned("8", on="h200", phase="decode", batch=8, seq=None, context=1024, kinds=("data", "tensor"),
                    fixed={"tensor": 8})  # fmt: skip
    assert [t.kind for t in found.best.traffic] == ["tensor"]
    assert found.best.step_s == pytest.approx(found.best.compute_s + found.best.messages_s)
    trained = planned("8", on="h200", kinds=("data",)).best
    assert trained.step_s == pytest.approx(max(trained.compute_s, trained.messages_s))


def test_what_cannot_be_divided_is_refused_with_its_reason():
    found = planned("16x1x1", kinds=("tensor",), model="llama-3.1-8b", batch=3, fixed={"data": 16})
    assert "axes of 16 give no data 16" in found.best.reason
    found = planned("16x1x1", kinds=("data",), batch=3)
    assert "does not divide" in found.best.reason


def test_a_switch_may_be_divided_and_a_torus_axis_not():
    switch = mesh_axes(fabric_of(load("h200"), parse_shape("8")))
    # 8 = 1 x 8 = 2 x 4 = 4 x 2 = 8 x 1
    assert len(list(assignments(switch, ("data", "tensor"), {}))) == 4
    torus = mesh_axes(fabric_of(load("tpu-v5p"), parse_shape("4x2x1")))
    assert [a.name for a in torus] == ["x", "y"]
    assert len(list(assignments(torus, ("data", "tensor"), {}))) == 4
    assert list(assignments(torus, ("data", "tensor"), {"tensor": 2})) == [({"data": 4}, {"tensor": 2})]


def test_kinds():
    dense = load_model("llama-3.1-8b")
    assert allowed_kinds(dense, "decode") == ("data", "tensor")
    assert "expert" in allowed_kinds(load_model("mixtral-8x7b"), "train")
    with pytest.raises(UsageError, match="no experts"):
        allowed_kinds(dense, "train", ["expert"])
    with pytest.raises(UsageError, match="no kind"):
        allowed_kinds(dense, "train", ["pipe"])


def run(*args):
    return CliRunner().invoke(cli, ["plan", "topology", *args])


COMMON = ("--model", "llama-3.1-8b", "--batch", "64", "--seq", "4096", "--recompute", "full")


def test_the_verb_orders_shapes_and_says_why():
    result = run("2x2x2", "4x2x1", "8x1x1", "--on", "tpu-v5p", *COMMON)
    assert result.exit_code == 0, result.output
    assert "FSDP" in result.output
    assert "axis by axis" in result.output
    result = run("2x2x2", "4x2x1", "--on", "tpu-v5e", *COMMON, "--json")
    document = json.loads(result.stdout)
    assert document["schema"] == "plan-topology/1"
    assert [row["shape"] for row in document["shapes"]] == ["4x2x1", "2x2x2"]
    assert "2D torus" in document["shapes"][1]["best"]["unknown"]


def test_the_verb_refuses_what_it_does_not_know():
    result = CliRunner().invoke(cli, ["plan", "topology", "2:8", "--on", "h200", *COMMON])
    assert isinstance(result.exception, UsageError)
    assert "--network" in result.exception.hint
    result = CliRunner().invoke(cli, ["plan", "topology", "8", "--on", "h200", *COMMON, "--ep", "2"])
    assert "expert parallelism is not among" in result.exception.message


def test_latency_left_out_is_said_and_latency_given_counts():
    decode = (
        "--on",
        "h200",
        "--model",
        "llama-3.1-8b",
        "--phase",
        "decode",
        "--batch",
        "8",
        "--context",
        "1024",
        "--tp",
        "8",
    )
    assert "Latency of nvlink is on no record" in run("8", *decode).output
    given = run("8", *decode, "--hop", "2 us")
    assert "on no record" not in given.output
    best = json.loads(run("8", *decode, "--hop", "2 us", "--json").stdout)["shapes"][0]["best"]
    # 65 all-reduces of 8 x 4096 x 2 B over eight: each sends its buffer to seven others at once, 2 us + 7 x 65,536 B / 450 GB/s.
    tensor = best["traffic"][0]
    assert tensor["calls"] == 65
    assert tensor["time_s"] == pytest.approx(65 * (2e-6 + 7 * 65536 / 450e9), rel=1e-6)


def test_of_equal_shapes_the_one_with_fewer_messages_is_first():
    result = run("8x1x1", "2x2x2", "--on", "tpu-v5p", *COMMON, "--json")
    document = json.loads(result.stdout)
    assert [row["shape"] for row in document["shapes"]] == ["2x2x2", "8x1x1"]
    assert "2x2x2 before 8x1x1" in run("8x1x1", "2x2x2", "--on", "tpu-v5p", *COMMON).output
    # Four of 4x2x1 wrap: 2 + 1 links against three, so that neither is before the other.
    assert "2x2x2 and 4x2x1 are as good here" in run("2x2x2", "4x2x1", "--on", "tpu-v5p", *COMMON).output
