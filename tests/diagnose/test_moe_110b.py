"""The re-enacted case of the 110B mixture of experts: its verdicts, its unknowns, and a gain that is not split."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mansard.cli.main import main
from mansard.core import Bound, Grade, Implausible, Unknown, UsageError
from mansard.diagnose.joint_gain import JointGain

SCRIPT = Path(__file__).parents[2] / "examples" / "moe_110b" / "diagnose_case.py"
_spec = importlib.util.spec_from_file_location("moe_110b", SCRIPT)
assert _spec is not None
assert _spec.loader is not None
example: Any = importlib.util.module_from_spec(_spec)
sys.modules["moe_110b"] = example
_spec.loader.exec_module(example)


@pytest.fixture
def case() -> dict[str, Any]:
    return example.read()


def test_the_forward_pass_sits_on_the_matrix_plateau_as_assumed(case) -> None:
    # 1.85 / 2.307 = 80.2 % per chip in bf16; in fp8 40.1 %; one of the two devices of a chip in bf16: 160 %
    found = {(r.scope, r.dtype): r for r in example.readings(case)}
    assert found["chip", "bf16"].share == pytest.approx(1.85 / 2.307)
    assert "matrix plateau" in found["chip", "bf16"].verdict
    assert found["chip", "bf16"].chosen
    assert found["chip", "f8_e4m3"].share == pytest.approx(1.85 / 4.614)
    assert "not on the plateau" in found["chip", "f8_e4m3"].verdict
    impossible = found["device", "bf16"].share
    assert isinstance(impossible, Implausible)
    assert impossible.value == pytest.approx(1.85 / 1.1535)
    assert sum(r.chosen for r in found.values()) == 1


def test_verdicts_of_the_parts(case) -> None:
    rows = {row.name: row for row in example.diagnose(case).operators}
    assert {n: r.bound for n, r in rows.items()} == {
        "products": Bound.COMPUTE, "attention": Bound.MEMORY, "routing": Bound.MEMORY,
    }  # fmt: skip
    assert rows["products"].share_of_ceiling == pytest.approx(0.802, abs=1e-3)
    assert rows["attention"].share_of_ceiling == pytest.approx(0.60)
    assert rows["routing"].share_of_ceiling == pytest.approx(0.30)
    # nobody told their FLOP, so there is no MFU of the step
    assert isinstance(example.diagnose(case).mfu_ratio, Unknown)


@given(
    products=st.floats(0.05, 0.5),
    attention=st.floats(0.05, 0.25),
    routing=st.floats(0.05, 0.2),
    share=st.floats(0.31, 0.6),
)
@settings(max_examples=15, deadline=None)
def test_verdicts_do_not_depend_on_what_was_drawn(products, attention, routing, share) -> None:
    case = example.read()
    case["assumed"]["step"] |= {
        "products": products, "attention": attention, "routing": routing, "share_of_routing": share,
    }  # fmt: skip
    rows = {row.name: row for row in example.diagnose(case).operators}
    assert rows["products"].bound is Bound.COMPUTE
    assert rows["attention"].bound is rows["routing"].bound is Bound.MEMORY
    assert rows["routing"].share_of_ceiling == pytest.approx(share, rel=1e-3)


def test_what_was_not_reported_is_marked_assumed(case) -> None:
    found = example.diagnose(case)
    assumed = [n.text for n in found.findings if n.code == "assumed"]
    for word in ("hardware tpu-v7x", "dtype bf16", "scope chip"):
        assert any(word in text for text in assumed)
    assert any("drawn" in text for text in assumed)
    assert found.verdict.grade is Grade.ASSUMED
    assert {row.grade for row in found.operators} == {Grade.ASSUMED}
    assert found.receipt["assumed"]["dtype"] == "bf16"
    text = "\n".join(example.lines(case))
    assert "<- assumed" in text
    assert "(assumed: memory)" in text


def test_the_gain_is_one_and_no_multiplier(case) -> None:
    gain = example.gain_of(case)
    # 1 / (1 - 0.212) = 1.269
    assert gain.speedup_ratio == pytest.approx(1.269, abs=1e-3)
    for change in ("routing", "attention"):
        assert isinstance(gain.of_change(change), Unknown)
    assert isinstance(gain.elsewhere("another model"), Unknown)
    assert "no multiplier" in gain.text()
    assert "21.2 %" in gain.text()
    # 0.212 / 0.7 = 30.3 %, 0.212 / 0.4 = 53 % of the step at least
    assert gain.least_part_ratio(0.30) == pytest.approx(0.303, abs=1e-3)
    assert gain.least_part_ratio(0.60) == pytest.approx(0.53, abs=1e-3)
    # from 80 % of a ceiling 21.2 % cannot come by the ceiling alone: 0.212 / 0.2 = 1.06 steps
    assert isinstance(gain.least_part_ratio(0.80), Implausible)
    assert not any("21.2" in row.text for row in example.diagnose(case).advice)


def test_the_drawn_step_leaves_room_for_the_reported_gain(case) -> None:
    # attention 0.30 x 0.4 + routing 0.25 x 0.7 = 0.295 of a step at most, and 0.212 were gained
    rows = {row.name: row for row in example.diagnose(case).operators}
    room = rows["attention"].headroom_s + rows["routing"].headroom_s
    assert room == pytest.approx(0.295, abs=1e-3)
    assert room > example.gain_of(case).reduction_ratio


def test_one_change_has_its_gain() -> None:
    alone = JointGain(reduction_ratio=0.1, changes=("a",), of="m")
    assert alone.of_change("a") == 0.1
    assert JointGain(reduction_ratio=-0.1, changes=("a",), of="m").text().startswith("the step is 10 % longer")
    assert json.loads(json.dumps(alone.to_json()))["changes"] == [{"change": "a", "reduction_ratio": 0.1}]
    with pytest.raises(UsageError):
        alone.of_change("b")
    with pytest.raises(UsageError):
        JointGain(reduction_ratio=1.0, changes=("a",), of="m")
    with pytest.raises(UsageError):
        alone.least_part_ratio(1.0)


def test_diagnose_reads_its_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "case.json"
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "-o", str(path)])
    assert example.main() == 0
    printed = capsys.readouterr().out
    assert "the step is 21.2 % shorter, all 2 changes together" in printed
    with pytest.raises(SystemExit) as ended:
        main(["diagnose", str(path), "--json"])
    assert not ended.value.code
    document = json.loads(capsys.readouterr().out)
    assert document["verdict"]["grade"] == "assumed"
    assert document["receipt"]["joint_gain"]["reduction_ratio"] == 0.212
