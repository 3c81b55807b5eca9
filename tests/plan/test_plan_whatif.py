"""`plan whatif`: what moves with a ceiling and what does not."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from mansard.cli.plan.whatif import command
from mansard.core.errors import UsageError
from mansard.plan.whatif import Change, changed_machine, parse_change, whatif
from mansard.predict.estimate import Request, estimate
from mansard.predict.machines import load_machine
from mansard.workload.model.load import load_model
from mansard.workload.parallel import Plan

MODEL = load_model("llama-3.1-8b")
H100 = load_machine("h100-sxm")
DECODE = Request(phase="decode", context=4096, batch=8)
PREFILL = Request(phase="prefill", seq=8192, plan=Plan(tp=2))


def products_s(bound):
    """Time of the matrix products of the feed-forward blocks, which a prompt of 8192 tokens makes compute-bound."""
    return sum(k.time_s for k in bound.kernels if k.kernel.area == "mlp" and k.demand.flop)


def test_twice_the_bandwidth_halves_what_is_bound_by_it():
    w = whatif(MODEL, DECODE, H100, [Change(resource="hbm", value="2x")])
    assert w.before_s == pytest.approx(estimate(MODEL, DECODE, H100).bound.time_s)
    by = {a.area: a for a in w.areas}
    for area in ("attention", "mlp", "head"):
        assert by[area].moves
        assert by[area].after_s == pytest.approx(by[area].before_s / 2, rel=1e-3)
    assert not by["norm"].moves
    assert w.before_s - w.after_s == pytest.approx(w.moving_s / 2, rel=1e-3)
    assert w.moving_s + w.fixed_s == pytest.approx(w.before_s)


def test_no_network_leaves_the_kernels():
    w = whatif(MODEL, PREFILL, H100, [Change(resource="network", value="off")])
    assert w.before.messages_s > 0
    assert w.after_s == pytest.approx(w.before.compute_s)
    assert [a.area for a in w.areas if a.moves] == ["communication"]


def test_half_as_much_again_of_a_peak():
    w = whatif(MODEL, PREFILL, H100, [Change(resource="bf16", value="+50%")])
    assert products_s(w.after) == pytest.approx(products_s(w.before) / 1.5, rel=1e-6)
    assert not next(a for a in w.areas if a.area == "communication").moves


def test_the_peak_of_another_type():
    # H100 SXM: 989.4 dense in bf16, 1978.9 in fp8: the compute-bound mlp takes half.
    w = whatif(MODEL, PREFILL, H100, [Change(resource="bf16", value="fp8")])
    assert products_s(w.after) / products_s(w.before) == pytest.approx(989.4 / 1978.9, rel=1e-3)


def test_launches_are_a_part_of_their_own():
    request = Request(phase="decode", context=4096, batch=8, launch_s=3e-6)
    w = whatif(MODEL, request, H100, [Change(resource="launch", value="off")])
    assert w.before_s == pytest.approx(estimate(MODEL, request, H100).bound.time_s)
    assert [a.area for a in w.areas if a.moves] == ["launches"]
    assert w.after_s == pytest.approx(w.before_s - w.before.fixed_s)
    with pytest.raises(UsageError, match="no ceiling for launch"):
        whatif(MODEL, DECODE, H100, [Change(resource="launch", value="off")])


@settings(max_examples=25, deadline=None)
@given(name=st.sampled_from(["hbm", "bf16", "compute", "network"]), factor=st.floats(1.0, 50.0))
def test_more_is_never_slower(name, factor):
    w = whatif(MODEL, PREFILL, H100, [Change(resource=name, value=f"{factor:.4f}x")])
    assert w.after_s <= w.before_s * (1 + 1e-12)
    back = whatif(MODEL, PREFILL, w.machine, [Change(resource=name, value=f"{1 / float(f'{factor:.4f}'):.12f}x")])
    assert back.after_s == pytest.approx(w.before_s, rel=1e-6)


def test_an_absolute_value_and_untouched_ceilings():
    other, pairs = changed_machine(H100, [Change(resource="hbm", value="4.8 TB/s")])
    assert [b.value for _, b in pairs] == [4.8e12]
    same = {(c.resource, c.scope) for c in H100.ceilings.ceilings} == {
        (c.resource, c.scope) for c in other.ceilings.ceilings
    }
    assert same
    assert pairs[0][1].source == "hbm=4.8 TB/s"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hbm", "cannot read"),
        ("foo=2x", "has no resource"),
        ("hbm=-100%", "leaves nothing"),
        ("hbm=0x", "leaves nothing"),
        ("hbm=5 GHz", "frequency"),
        ("bf16=i4", "i4"),
    ],
)
def test_bad_changes(text, message):
    with pytest.raises(UsageError, match=message):
        changed_machine(H100, [parse_change(text)])


def run(*args):
    return CliRunner().invoke(command, ["llama-3.1-8b", "--on", "h100-sxm", *args], standalone_mode=False)


def test_document_and_text():
    doc = json.loads(run("--context", "4096", "--batch", "8", "--set", "hbm=2x", "--json").stdout)
    assert doc["schema"] == "plan-whatif/1"
    assert [c["name"] for c in doc["candidates"]] == ["before", "after"]
    assert doc["best"] == 1
    assert doc["speedup_ratio"] == pytest.approx(2.0, rel=1e-3)
    assert doc["ceilings"][0]["after"] == 2 * doc["ceilings"][0]["before"]
    text = run("--seq", "8192", "--tp", "2", "--set", "network=off", "--set", "bf16=fp8", "--set", "compute=2x").stdout
    assert max(map(len, text.splitlines())) <= 80
    assert "-> off" in text
    assert "times as fast" in text


def test_nothing_changed_is_an_error():
    result = run("--context", "4096")
    assert isinstance(result.exception, UsageError)
    assert "nothing was changed" in result.exception.message


def test_a_link_that_nothing_uses_moves_nothing():
    done = CliRunner().invoke(
        command,
        ["llama-3.1-8b", "--on", "h100-sxm", "--context", "1024", "--set", "network=off"],
        standalone_mode=False,
    )
    assert done.exception is None
    assert "nothing moves: no part of the step is bound by nvlink link" in done.output
