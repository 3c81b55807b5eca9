from __future__ import annotations

import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mansard.core.errors import InputError, UsageError
from mansard.history.check import Outcome, check
from mansard.history.documents import read_bytes
from mansard.history.records import Record
from mansard.history.rules import read_rules, rules_of
from mansard.history.store import open_store
from mansard.history.testing import Gate
from mansard.report.history_outputs import FORMS, bencher, benchmark_action, github_annotations, junit, written
from mansard.report.history_text import check_markdown

pytest_plugins = ["pytester"]


def record(*benchmarks: dict[str, Any], **environment: Any) -> Record:
    body = {"schema": "samples/1", "environment": environment, "benchmarks": list(benchmarks)}
    return read_bytes(json.dumps(body).encode(), source="result.json")


def share(name: str, *values: float) -> dict[str, Any]:
    return {"name": name, "metric": "share_of_ceiling", "runs": [list(values)]}


def times(name: str, *values: float) -> dict[str, Any]:
    return {"name": name, "metric": "time_s", "runs": [list(values)]}


def outcomes(found: Any) -> list[tuple[str, str]]:
    return [(r.outcome.value, r.verdict) for r in found.results]


# --- targets -------------------------------------------------------------------------------------------------------------


def test_a_share_is_held_against_its_target() -> None:
    rules = rules_of({"rules": [{"metric": "gemm*/share_of_ceiling", "at_least": 0.6}]})
    result = record(
        share("gemm[jax] m=1", 0.7, 0.71, 0.72),
        share("gemm[torch] m=1", 0.4, 0.41, 0.42),
        share("gemm[np] m=1", 0.55, 0.59, 0.62),
    )
    found = check(result, rules)
    # Medians 0.71, 0.41, 0.59: met, surely missed, and missed with an interval that reaches to 0.62.
    assert outcomes(found) == [("pass", "met"), ("fail", "missed"), ("undecided", "inconclusive")]
    assert (found.exit_code, found.outcome) == (1, Outcome.FAIL)


def test_limits_have_units_and_percent() -> None:
    rules = rules_of({"rules": [
        {"metric": "x/time_s", "at_most": "25 ms"}, {"metric": "x/time_s", "at_most": "15 ms"},
        {"metric": "y/share_of_ceiling", "between": ["60 %", 1.0]},
    ]})  # fmt: skip
    found = check(record(times("x", 0.02, 0.02, 0.02), share("y", 0.7, 0.7)), rules)
    assert outcomes(found) == [("pass", "met"), ("fail", "missed"), ("pass", "met")]


def test_a_rule_that_matches_nothing_is_not_passed() -> None:
    rules = rules_of({"rules": [{"metric": "gone/share_of_ceiling", "at_least": 0.6}]})
    found = check(record(share("here", 0.9)), rules)
    assert (found.outcome, found.exit_code) == (Outcome.UNDECIDED, 3)
    loose = rules_of({"rules": [{"metric": "gone/share_of_ceiling", "at_least": 0.6, "required": False}]})
    assert check(record(share("here", 0.9)), loose).exit_code == 3  # nothing at all was checked


def test_an_empty_capture_does_not_pass() -> None:
    summary = {
        "schema": "trace_summary/1",
        "environment": {},
        "devices": [{"device": 0, "kernel_count": 0, "name": "H100"}],
    }
    empty = read_bytes(json.dumps(summary).encode(), source="empty.json")
    found = check(empty, rules_of({"rules": [{"metric": "*/gpu_span_s", "at_most": "1 s"}]}))
    assert (found.outcome, found.exit_code) == (Outcome.UNDECIDED, 3)
    assert "no kernels" in found.results[0].reason


# --- relative rules ------------------------------------------------------------------------------------------------------

RELATIVE = {"rules": [{"metric": "*/time_s", "max_regression": "5 %"}]}
STEADY = (0.100, 0.101, 0.099, 0.100, 0.100, 0.1005, 0.0995)


@pytest.mark.parametrize(
    ("factor", "code", "verdict"),
    [(1.0, 0, "same"), (1.03, 0, "same"), (1.2, 1, "slower"), (0.8, 0, "faster"), (0.01, 3, "implausible")],
)
def test_a_regression_fails_and_an_improvement_passes(factor: float, code: int, verdict: str) -> None:
    found = check(
        record(times("x", *(factor * s + 1e-9 for s in STEADY))),
        rules_of(RELATIVE),
        baseline=[record(times("x", *STEADY))],
    )
    assert (found.exit_code, found.results[0].verdict) == (code, verdict)


def test_without_a_baseline_a_relative_rule_is_undecided() -> None:
    found = check(record(times("x", *STEADY)), rules_of(RELATIVE))
    assert (found.exit_code, found.results[0].reason) == (3, "there is no baseline to compare with")


def test_another_machine_is_undecided_and_named() -> None:
    found = check(
        record(times("x", *STEADY), gpus=4), rules_of(RELATIVE), baseline=[record(times("x", *STEADY), gpus=8)]
    )
    assert (found.exit_code, found.results[0].verdict) == (3, "not_comparable")
    assert "8 -> 4" in found.results[0].reason


def test_a_failed_rule_weighs_more_than_an_undecided_one() -> None:
    rules = rules_of({"rules": [*RELATIVE["rules"], {"metric": "gone/time_s", "at_most": "1 s"}]})
    found = check(record(times("x", *(1.2 * s for s in STEADY))), rules, baseline=[record(times("x", *STEADY))])
    assert (found.exit_code, found.verdict) == (1, "slower")


# --- the language --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ([], "not a mapping"), ({}, "no rules"), ({"rules": []}, "no rules"), ({"rulez": []}, "unknown key 'rulez'"),
        ({"version": 2, "rules": [1]}, "version 2"), ({"rules": ["x"]}, "not a mapping"),
        ({"rules": [{"metric": "*/time_s"}]}, "0 conditions"),
        ({"rules": [{"metric": "*/time_s", "at_least": "1 s", "at_most": "2 s"}]}, "2 conditions"),
        ({"rules": [{"metric": "*/time_s", "at_most": 25}]}, "has no unit"),
        ({"rules": [{"metric": "*/time_s", "at_most": "25 GB/s"}]}, "expected"),
        ({"rules": [{"metric": "*/speed", "at_most": 1}]}, "no metric is named like 'speed'"),
        ({"rules": [{"metric": "*/mfu_ratio", "at_least": float("nan")}]}, "expected a finite share"),
        ({"rules": [{"metric": "*/mfu_ratio", "at_least": float("inf")}]}, "expected a finite share"),
        ({"rules": [{"metric": "*/time_s", "max_regression": "nan"}]}, "expected a finite share"),
        ({"rules": [{"metric": "*/time_s", "max_regression": -0.1}]}, "expected a finite share"),
        ({"rules": [{"metric": "*/mfu_ratio", "between": [0.9, 0.6]}]}, "lower limit above"),
        ({"rules": [{"metric": "*/mfu_ratio", "at_least": "__import__('os').system('true')"}]}, "expected a finite share"),
        ({"rules": [{"metric": "*/mfu_ratio", "at_least": 0.5, "required": "no"}]}, "expected true or false"),
        ({"defaults": {"allow": ["colour"]}, "rules": [{"metric": "*/mfu_ratio", "at_least": 0.5}]}, "list of components"),
    ],
)  # fmt: skip
def test_what_is_no_rule_is_refused_with_its_place(content: Any, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        rules_of(content)
    assert said in caught.value.message


def test_a_file_can_only_hold_plain_yaml(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    for text in ("rules: [!!python/object/apply:os.system ['true']]", "rules: [", "a: b: c"):
        path.write_text(text)
        with pytest.raises(UsageError):
            read_rules(path)
    path.write_text("rules:\n  - metric: '*/step_time_s'\n    max_regression: 3 %\n    floor: 10 us\n")
    (rule,) = read_rules(path).rules
    assert (rule.regression_ratio, rule.floor_s) == (0.03, pytest.approx(1e-5))


def test_the_templates_of_the_repository_are_what_they_say() -> None:
    from ruamel.yaml import YAML

    folder = Path(__file__).parents[2] / "examples" / "ci"
    rules = read_rules(folder / "rules.yaml")
    assert [r.condition for r in rules.rules] == ["at_least", "max_regression", "at_most"]
    action = YAML(typ="safe").load((folder / "github-action" / "action.yml").read_text())
    assert action["runs"]["using"] == "composite"
    used = {i for step in action["runs"]["steps"] for i in re.findall(r"inputs\.(\w+)", json.dumps(step))}
    assert used == set(action["inputs"])
    for name in ("github-workflow.yml", "gitlab.yml"):
        assert YAML(typ="safe").load((folder / name).read_text())


# --- outputs -------------------------------------------------------------------------------------------------------------


def gate() -> tuple[Any, Record]:
    rules = rules_of({"rules": [{"metric": "*/share_of_ceiling", "at_least": 0.6, "name": "near <its> ceiling"},
                                {"metric": "gone/time_s", "at_most": "1 s"}]})  # fmt: skip
    result = record(share("a|b %", 0.7, 0.7, 0.7), share("c:d,e", 0.4, 0.4, 0.4), times("x", 0.1, 0.2, 0.3))
    return check(result, rules), result


def test_junit_shows_failures_and_errors() -> None:
    root = ET.fromstring(junit(gate()[0]).split("\n", 1)[1])
    assert (root.get("tests"), root.get("failures"), root.get("errors")) == ("3", "1", "1")
    cases = {c.get("name"): [e.tag for e in c] for c in root.iter("testcase")}
    assert cases == {
        "a|b %/share_of_ceiling": ["system-out"],
        "c:d,e/share_of_ceiling": ["failure"],
        "gone/time_s": ["error"],
    }


def test_annotations_are_escaped_and_few() -> None:
    lines = github_annotations(gate()[0]).splitlines()
    assert lines[0].startswith("::error title=c%3Ad%2Ce/share_of_ceiling::missed: 0.4 is not at least 0.6")
    assert [line.split(" ")[0] for line in lines] == ["::error", "::warning", "::notice"]
    rules = rules_of({"rules": [{"metric": "*/share_of_ceiling", "at_least": 0.6}]})
    many = github_annotations(check(record(*(share(f"b{i}", 0.1, 0.1) for i in range(30))), rules)).splitlines()
    assert len([line for line in many if line.startswith("::error")]) == 10
    assert "21 more fail" in many[9]


def test_markdown_lists_every_figure_and_keeps_its_table() -> None:
    text = check_markdown(gate()[0])
    assert "near &lt;its&gt; ceiling" in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) == 2 + 3
    assert {line.replace("\\|", "").count("|") for line in rows} == {7}


def test_dashboards_get_the_figures_in_their_direction() -> None:
    _, result = gate()
    smaller = json.loads(benchmark_action(result, bigger_is_better=False))
    assert [(r["name"], r["unit"], r["value"]) for r in smaller] == [("x/time_s", "s", 0.2)]
    bigger = json.loads(benchmark_action(result, bigger_is_better=True))
    assert [r["value"] for r in bigger] == [0.7, 0.4]
    measure = json.loads(bencher(result))["x"]["time_s"]
    assert measure["lower_value"] <= measure["value"] == 0.2 <= measure["upper_value"]
    for form in FORMS:
        assert written(form, *gate())


# --- the pytest plugin ---------------------------------------------------------------------------------------------------


def test_the_fixture_passes_fails_and_never_passes_on_nothing(
    pytester: pytest.Pytester, request: pytest.FixtureRequest
) -> None:
    pytester.makepyfile(
        """
        import pytest
        from mansard.core.errors import InputError, UsageError

        def doc(name, metric, *values, **environment):
            return {"schema": "samples/1", "environment": environment, "benchmarks": [{"name": name, "metric": metric, "runs": [list(values)]}]}

        GEMM = doc("gemm", "share_of_ceiling", 0.7, 0.71, 0.72)
        OLD = doc("sort", "time_s", 1.0, 1.01, 0.99, 1.0, 1.0, 1.0)

        def test_share(mansard):
            mansard.assert_share("gemm", at_least=0.6, of=GEMM)
            with pytest.raises(AssertionError, match="0.71 is not at least 0.8"):
                mansard.assert_share("gemm", at_least=0.8, of=GEMM)
            with pytest.raises(AssertionError, match="nothing to check"):
                mansard.assert_share("conv", at_least=0.1, of=GEMM)

        def test_ratio(mansard):
            mansard.assert_ratio(70.0, of=100.0, at_least=0.6)
            for bad in (float("nan"), 0.0, 50.0):
                with pytest.raises(AssertionError):
                    mansard.assert_ratio(bad, of=100.0, at_least=0.6)
            for none in (float("nan"), float("inf"), 0.0):
                with pytest.raises(UsageError, match="expected a share"):
                    mansard.assert_ratio(70.0, of=100.0, at_least=none)

        def test_regression(mansard):
            same = [1.0, 1.0, 1.01, 1.0, 0.99, 1.0, 1.0]
            mansard.assert_no_regression("sort", samples=same, baseline=OLD, run_spread=0.01)
            with pytest.raises(AssertionError, match="fail: sort/time_s"):
                mansard.assert_no_regression("sort", samples=[1.3] * 7, baseline=OLD, run_spread=0.01)
            # A test is one process: of how those differ it shows nothing, and 10 % are assumed.
            with pytest.raises(AssertionError, match="10% are assumed"):
                mansard.assert_no_regression("sort", samples=same, baseline=OLD)
            with pytest.raises(UsageError, match="expected the name"):
                mansard.assert_no_regression(samples=same, baseline=OLD)
            with pytest.raises(UsageError, match="another environment"):
                mansard.assert_no_regression("sort", samples=same, baseline=OLD, environment={"gpus": 8})
            with pytest.raises(AssertionError, match="undecided"):
                mansard.assert_no_regression("sort", samples=[1.0], baseline=OLD)
            with pytest.raises(AssertionError, match="the baseline has no such figure"):
                mansard.assert_no_regression("other", samples=[1.0] * 9, baseline=OLD)
        """
    )
    loaded = request.config.pluginmanager.hasplugin("mansard")
    found = pytester.runpytest(
        "-q", "-p", "no:cacheprovider", *([] if loaded else ["-p", "mansard.history.pytest_plugin"])
    )
    found.assert_outcomes(passed=3)


def test_samples_of_tests_become_a_baseline(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    gate = Gate()
    with pytest.raises(InputError, match="there is no store at"):
        gate.assert_no_regression("sort", samples=[1.0, 1.01, 0.99, 1.0, 1.0], baseline="main")
    content = gate.document()
    assert read_bytes(json.dumps(content).encode(), source="x").measurements[0].single
    with open_store() as store:
        for i in range(4):  # of four days: from then on the baseline shows how runs differ
            content["created"] = f"2026-01-0{i + 1}T00:00:00+00:00"
            content["benchmarks"][0]["runs"][0][0] += 0.001 * i
            store.put("main", json.dumps(content).encode(), source=f"{i}.json", state="accepted", reason="first")
    (tmp_path / "test_sort.py").write_text(
        "def test_sort(mansard):\n"
        "    mansard.assert_no_regression('sort', samples=[1.0, 1.01, 0.99, 1.0, 1.0], baseline='main')\n"
    )
    loaded = request.config.pluginmanager.hasplugin("mansard")
    args = [
        *([] if loaded else ["-p", "mansard.history.pytest_plugin"]),
        "--mansard-save=out.json",
        "-p",
        "no:cacheprovider",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *args], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    saved = json.loads((tmp_path / "out.json").read_text())
    assert saved["benchmarks"] == [
        {"name": "sort", "metric": "time_s", "one_process": True, "runs": [[1.0, 1.01, 0.99, 1.0, 1.0]]}
    ]


def test_a_place_for_samples_is_refused_before_the_tests() -> None:
    from mansard.history.pytest_plugin import pytest_configure

    with pytest.raises(pytest.UsageError, match="there is no directory"):
        pytest_configure(SimpleNamespace(getoption=lambda _: "no/out.json"))  # type: ignore[arg-type]


def test_loading_the_plugin_imports_nothing_heavy() -> None:
    program = "import sys, pytest, mansard.history.pytest_plugin as p; print([m for m in ('numpy', 'sqlalchemy', 'click', 'torch') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
