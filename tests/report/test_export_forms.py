from __future__ import annotations

import dataclasses
import importlib.util
import json
import xml.etree.ElementTree as ET
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from ruamel.yaml import YAML

from mansard.cli.export import command
from mansard.core import Bound, Implausible, Unknown, UsageError
from mansard.core.document import dumps
from mansard.report.document import to_document
from mansard.report.exports.machine import schema

HOSTILE = 'x"}\n# EOF\n</testcase><script>\x00\u202e\uffff\\'


@pytest.fixture
def mixed():
    spec = importlib.util.spec_from_file_location("report_mixed_f", Path(__file__).with_name("mixed.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def invoke(*args: object):
    return CliRunner().invoke(command, [str(a) for a in args])


def stored(path: Path, document: object) -> Path:
    path.write_text(dumps(document) if isinstance(document, dict) else json.dumps(document), encoding="utf-8")
    return path


# --- OpenMetrics ---


def families(text: str):
    return {f.name: f for f in text_string_to_metric_families(text)}


def test_openmetrics_parse_with_their_units(tmp_path, sample) -> None:
    path = stored(tmp_path / "run.json", to_document(sample))
    found = families(invoke("openmetrics", path).stdout_bytes.decode())
    assert found["mansard_step_time_seconds"].samples[0].value == 0.782
    assert found["mansard_step_time_seconds"].unit == "seconds"
    shares = {s.labels["bound"]: s.value for s in found["mansard_step_time_share_ratio"].samples}
    assert shares == pytest.approx(sample.time_shares)
    assert len(found["mansard_operator_time_seconds"].samples) == len(sample.operators)
    assert found["mansard_verdict"].samples[0].labels["bound"] == "compute"


def test_openmetrics_leave_out_what_is_not_known_and_say_so(tmp_path, sample) -> None:
    odd = dataclasses.replace(
        sample, mfu_ratio=Unknown("no peak"), hfu_ratio=Implausible(1.5, ("the peak",)), program=HOSTILE
    )
    odd = dataclasses.replace(odd, operators=(dataclasses.replace(odd.operators[0], name=HOSTILE), *odd.operators[1:]))
    found = families(invoke("openmetrics", stored(tmp_path / "r.json", to_document(odd))).stdout_bytes.decode())
    assert "mansard_mfu_ratio" not in found
    assert "mansard_hfu_ratio" not in found
    why = {s.labels["metric"]: s.labels["reason"] for s in found["mansard_unknown"].samples}
    assert why["mansard_mfu_ratio"] == "not known: no peak"
    assert why["mansard_hfu_ratio"].startswith("implausible: 1.5")
    assert (
        found["mansard_run"].samples[0].labels["program"]
        == 'x"}\\x0a# EOF\\x0a</testcase><script>\\x00\\u202e\\uffff\\'
    )


def test_openmetrics_give_no_lower_limit_as_a_figure_and_one_step_has_no_interval(tmp_path, sample) -> None:
    part = dataclasses.replace(
        sample, attributed_ratio=0.08, bytes_per_step=30720.0, flop_per_step=8e9, step=dataclasses.replace(sample.step, count=1)
    )  # fmt: skip
    done = invoke("openmetrics", stored(tmp_path / "r.json", to_document(part)))
    text = done.stdout
    assert done.exit_code == 0, (done.stderr, done.exception)
    found = families(text)
    for name in ("mansard_step_traffic_bytes", "mansard_step_work_flop", "mansard_step_time_ci95_low_seconds"):
        assert name not in found
    assert "at least 30.7 kB: the cost of 92 % of operator time is not known" in text
    stated = dataclasses.replace(part, receipt={**part.receipt, "flop_source": "--flops"})
    told = families(invoke("openmetrics", stored(tmp_path / "s.json", to_document(stated))).stdout)
    assert told["mansard_step_work_flop"].samples[0].value == 8e9
    assert "mansard_step_traffic_bytes" not in told
    mean = dataclasses.replace(sample, step=dataclasses.replace(sample.step, statistic="mean"))
    assert "mansard_step_time_ci95_low_seconds" not in families(
        invoke("openmetrics", stored(tmp_path / "m.json", to_document(mean))).stdout
    )


def test_openmetrics_of_many_operators_are_bounded(tmp_path, sample) -> None:
    rows = tuple(dataclasses.replace(sample.operators[0], name=f"op{i}", time_s=1e-3) for i in range(150))
    found = families(
        invoke(
            "openmetrics", stored(tmp_path / "r.json", to_document(dataclasses.replace(sample, operators=rows)))
        ).stdout
    )
    assert len(found["mansard_operator_time_seconds"].samples) == 100
    assert found["mansard_operators_beyond_time_seconds"].samples[0].value == pytest.approx(0.05)  # 50 rows of 1 ms


def test_openmetrics_of_ceilings_and_points(tmp_path, mixed) -> None:
    machine, points = stored(tmp_path / "c.json", mixed.ceilings()), stored(tmp_path / "p.json", mixed.sweep_of_gemm())
    found = families(invoke("openmetrics", machine, points).stdout)
    peaks = {s.labels["kind"]: s.value for s in found["mansard_compute_ceiling_flop_per_second"].samples}
    assert peaks == {"measured": 2e11, "derived": 2.5e11, "declared": 3e11}
    assert found["mansard_point_time_seconds"].samples[0].value == pytest.approx(10e-6 + 2 * 64**3 / 1e11)


# --- JUnit ---


def test_junit_of_a_check(tmp_path) -> None:
    def result(name: str, outcome: str) -> dict[str, str]:
        return {"name": name, "rule": "r", "outcome": outcome, "verdict": outcome, "reason": HOSTILE}

    document = {"schema": "check/1", "outcome": "fail", "empty": "",
                "results": [result("a", "pass"), result("b", "fail"), result(HOSTILE, "undecided")]}  # fmt: skip
    root = ET.fromstring(invoke("junit", stored(tmp_path / "c.json", document)).stdout)
    assert (root.get("tests"), root.get("failures"), root.get("errors")) == ("3", "1", "1")
    cases = {c.get("name"): [e.tag for e in c] for c in root.iter("testcase")}
    assert cases["a"] == ["system-out"]
    assert cases["b"] == ["failure"]
    assert list(cases.values())[2] == ["error"]


def test_junit_of_targets_and_an_undetermined_verdict(tmp_path, sample) -> None:
    verdict = dataclasses.replace(sample.verdict, bound=Bound.UNDETERMINED, needs=("shapes",))
    document = to_document(dataclasses.replace(sample, verdict=verdict), schema="diagnose/1")
    unknown = {"unknown": "no peak", "needs": []}
    document["targets"] = [
        {"target": "mfu>=0.5", "value": 0.4, "met": False},
        {"target": "share>=0.1", "value": 0.7, "met": True},
        {"target": "hfu>=0.1", "value": unknown, "met": unknown},
    ]
    root = ET.fromstring(invoke("junit", stored(tmp_path / "d.json", document)).stdout)
    got = {c.get("name"): c[0].tag for c in root.iter("testcase")}
    assert got == {
        "the bound is known": "error",
        "mfu>=0.5": "failure",
        "share>=0.1": "system-out",
        "hfu>=0.1": "error",
    }
    assert (root.get("tests"), root.get("failures"), root.get("errors")) == ("4", "1", "2")


def test_junit_of_points(tmp_path, mixed) -> None:
    points = [mixed.point("b", {"n": i}, {}, seconds=1e-3, state=s, verdict=v)
              for i, (s, v) in enumerate((("done", "low"), ("done", "implausible"), ("failed", None), ("waived", None)))]  # fmt: skip
    root = ET.fromstring(invoke("junit", stored(tmp_path / "p.json", points)).stdout)
    assert [c[0].tag for c in root.iter("testcase")] == ["system-out", "error", "failure", "skipped"]
    assert root.get("skipped") == "1"


# --- machine ---


def test_machine_holds_to_its_schema_and_keeps_kinds_apart(tmp_path, mixed) -> None:
    made = mixed.ceilings()
    made["fits"] = [{"name": "all_reduce/x", "alpha_s": 2e-5, "beta_bytes_per_s": 5e10}]
    made["curves"] = [
        {"name": "gemm/x", "unit": "FLOP/s", "points": [{"flop": 2e9, "rate": 1e11, "share_of_ceiling": 0.5}]}
    ]
    path, out = stored(tmp_path / "c.json", made), tmp_path / "m.yaml"
    document = json.loads(invoke("machine", path).stdout)
    jsonschema.Draft202012Validator.check_schema(schema())
    jsonschema.validate(document, schema())
    node = document["scopes"]["node"]
    assert [(p["kind"], p["flop_per_s"]) for p in node["peaks"]] == [
        ("measured", 2e11),
        ("derived", 2.5e11),
        ("declared", 3e11),
    ]
    assert [(b["level"], b["bytes_per_s"]) for b in node["bandwidths"]] == [("dram", 5e10), ("l1", 1e12)]
    assert node["links"][0]["bytes_per_s"] == 6e10
    assert document["alpha_beta"][0]["beta_bytes_per_s"] == 5e10
    assert document["curves"][0]["points"][0]["efficiency_ratio"] == 0.5
    assert set(document["scopes"]) == {"node"}  # nothing is made up for other scopes
    assert invoke("machine", path, "-o", out).exit_code == 0
    read = YAML(typ="safe", pure=True).load(out.read_text())
    assert {k: v for k, v in read.items() if k != "created"} == {k: v for k, v in document.items() if k != "created"}


def test_special_functions_count_evaluations(tmp_path, mixed) -> None:
    made = mixed.ceilings()
    special = {"area": "compute", "dtype": "f32", "engine": "special"}
    made["ceilings"].append({**made["ceilings"][0], "resource": special, "value": 2e9, "unit": "1/s"})
    path = stored(tmp_path / "c.json", made)
    document = json.loads(invoke("machine", path).stdout)
    jsonschema.validate(document, schema())
    assert document["scopes"]["node"]["peaks"][-1]["evaluations_per_s"] == 2e9
    assert (
        families(invoke("openmetrics", path).stdout)["mansard_compute_ceiling_evaluations_per_second"].samples[0].value
        == 2e9
    )


def test_machine_of_a_run_and_of_two(tmp_path, sample) -> None:
    path = stored(tmp_path / "run.json", to_document(sample))
    document = json.loads(invoke("machine", path).stdout)
    jsonschema.validate(document, schema())
    assert document["scopes"]["node"]["fixed_costs"][0]["time_s"] == 1.3e-6
    assert isinstance(invoke("machine", path, path).exception, UsageError)


def test_machine_in_yaml_keeps_odd_text_as_text(tmp_path, mixed) -> None:
    made = mixed.ceilings()
    odd = ["no", "1e3", "2026-01-01", "!!python/object:x", "&a *a", "\ud800", "\x1b[31m", "a: b\n- c"]
    made["environment"] = {str(i): text for i, text in enumerate(odd)}
    out = tmp_path / "m.yaml"
    assert invoke("machine", stored(tmp_path / "c.json", json.loads(json.dumps(made))), "-o", out).exit_code == 0
    read = YAML(typ="safe", pure=True).load(out.read_text())["environment"]
    assert [read[str(i)] for i in range(len(odd))] == odd
