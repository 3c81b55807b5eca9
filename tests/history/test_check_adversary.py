"""Twenty ways to make a gate pass that must not, or fail on nothing: each with the answer that is right, as exit code and words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mansard.cli.check import command
from mansard.core.errors import InputError, MansardError, UsageError
from mansard.history.advance import add_to_baseline
from mansard.history.check import Check, check
from mansard.history.documents import read_bytes
from mansard.history.records import Record
from mansard.history.rules import read_rules, rules_of
from mansard.history.store import open_store

STEADY = (0.100, 0.101, 0.099, 0.100, 0.100, 0.1005, 0.0995)
RELATIVE = rules_of({"rules": [{"metric": "*/time_s", "max_regression": "5 %"}]})
TARGET = rules_of({"rules": [{"metric": "*/time_s", "at_most": "200 ms"}]})


def raw(
    values: Any = STEADY, *, name: str = "x", metric: str = "time_s", factor: float = 1.0, **environment: Any
) -> bytes:
    runs = [[factor * v for v in values]] if values else []
    benchmarks = [{"name": name, "metric": metric, "runs": runs}]
    return json.dumps({"schema": "samples/1", "environment": environment, "benchmarks": benchmarks}).encode()


def result(values: Any = STEADY, **more: Any) -> Record:
    return read_bytes(raw(values, **more), source="result.json")


def against(candidate: Record, *baseline: Record) -> Check:
    return check(candidate, RELATIVE, baseline=baseline or (result(),))


def said(found: Check) -> str:
    return " ".join(r.reason for r in found.results)


def test_1_an_empty_capture() -> None:
    devices = [{"device": 0, "kernel_count": 0, "name": "H100"}]
    document = {"schema": "trace_summary/1", "environment": {}, "devices": devices}
    found = check(
        read_bytes(json.dumps(document).encode(), source="x"),
        rules_of({"rules": [{"metric": "*/gpu_span_s", "at_most": "1 s"}]}),
    )
    assert (found.exit_code, "no kernels" in said(found)) == (3, True)


@pytest.mark.parametrize("rules", [RELATIVE, TARGET])
def test_2_no_benchmarks(rules: Any) -> None:
    nothing = read_bytes(b'{"schema": "samples/1", "benchmarks": []}', source="x")
    found = check(nothing, rules, baseline=[result()])
    assert (found.exit_code, found.results[0].verdict) == (3, "inconclusive")


def test_3_a_benchmark_that_was_renamed() -> None:
    found = against(result(name="y", factor=2.0))
    assert found.exit_code == 3
    assert {r.outcome.value for r in found.results} == {"undecided"}


def test_4_the_first_run_ever() -> None:
    found = check(result(), RELATIVE)
    assert (found.exit_code, said(found)) == (3, "there is no baseline to compare with")


def test_5_another_metric_under_the_same_name() -> None:
    # 0.1 s is not 0.1 B/s, and there is nothing left of what the rule asks for.
    found = against(result(metric="bytes_per_s"))
    assert found.exit_code == 3
    assert not any(r.outcome.value == "pass" for r in found.results)


@pytest.mark.parametrize("word", ["NaN", "Infinity"])
@pytest.mark.parametrize("rules", [RELATIVE, TARGET])
def test_6_a_sample_that_is_no_number(word: str, rules: Any) -> None:
    bad = read_bytes(raw().replace(b"0.101", word.encode()), source="x")
    found = check(bad, rules, baseline=[result()])
    assert (found.exit_code, found.results[0].verdict) == (3, "implausible")


def test_6b_a_baseline_that_is_no_number_hides_no_regression() -> None:
    found = against(result(factor=2.0), read_bytes(raw().replace(b"0.101", b"NaN"), source="x"))
    assert (found.exit_code, found.results[0].outcome.value) == (3, "undecided")


@pytest.mark.parametrize("values", [(-0.1,) * 7, (0.0,) * 7], ids=["negative", "zero"])
@pytest.mark.parametrize("rules", [RELATIVE, TARGET], ids=["relative", "target"])
def test_7_and_8_times_that_are_none(values: tuple[float, ...], rules: Any) -> None:
    found = check(result(values), rules, baseline=[result()])
    assert (found.exit_code, found.results[0].verdict) == (3, "implausible")


def test_8b_a_share_of_more_than_the_ceiling_meets_no_target() -> None:
    rules = rules_of({"rules": [{"metric": "*/share_of_ceiling", "at_least": 0.6}]})
    found = check(result((1.4,) * 7, metric="share_of_ceiling"), rules)
    assert (found.exit_code, found.results[0].verdict) == (3, "implausible")


def test_9_a_measurement_that_collapsed() -> None:
    found = against(result(factor=1e-3))
    assert (found.exit_code, found.results[0].verdict) == (3, "implausible")


def test_10_the_same_file_on_both_sides() -> None:
    same = result()
    found = check(same, RELATIVE, baseline=[same])
    assert (found.exit_code, found.results[0].verdict) == (0, "same")


@pytest.mark.parametrize("limit", ["25 GB/s", "25 furlongs", "25 mB", "1e999 s"])
def test_11_a_wrong_unit(limit: str) -> None:
    with pytest.raises(UsageError):
        rules_of({"rules": [{"metric": "*/time_s", "at_most": limit}]})


@pytest.mark.parametrize("limit", [25, "25", True, None, ""])
def test_12_a_bare_number(limit: Any) -> None:
    with pytest.raises(UsageError):
        rules_of({"rules": [{"metric": "*/time_s", "at_most": limit}]})


@pytest.mark.parametrize(
    "rule", [{"at_most": None}, {"at_least": None}, {"between": [None, "1 s"]}, {"max_regression": None}]
)
def test_12b_a_limit_that_somebody_forgot_to_write(rule: dict[str, Any]) -> None:
    for glob in ("*/time_s", "*/*time_s"):
        with pytest.raises(UsageError):
            rules_of({"rules": [{"metric": glob, **rule}]})


@pytest.fixture
def rules_file(tmp_path: Path) -> Path:
    path = tmp_path / "rules.yaml"
    path.write_text("rules:\n  - {metric: '*/time_s', max_regression: 5 %}\n")
    return path


def called(*words: str | Path) -> MansardError | int:
    found = CliRunner().invoke(command, [str(w) for w in words], standalone_mode=False)
    if isinstance(found.exception, MansardError):
        return found.exception
    assert found.exception is None, found.exception
    return int(found.return_value)


def test_13_a_file_that_is_not_there(tmp_path: Path, rules_file: Path) -> None:
    gone, here = tmp_path / "gone.json", tmp_path / "here.json"
    here.write_bytes(raw())
    for words in (
        (gone, "--rules", rules_file, "--baseline-file", here),
        (here, "--rules", rules_file, "--baseline-file", gone),
        (here, "--rules", gone, "--baseline-file", here),
        (here, "--rules", rules_file, "--baseline", "never-made"),
    ):
        error = called(*words)
        assert isinstance(error, MansardError)
        assert error.exit_code in (2, 4)


def test_14_one_sample() -> None:
    found = against(result((0.2,)))
    comparison = found.results[0].comparison
    assert comparison is not None
    assert (found.exit_code, comparison.code) == (3, "single_sample")


def test_15_a_baseline_that_holds_nothing(tmp_path: Path, rules_file: Path) -> None:
    # As records: nothing to compare with. As a file: the same. In a store it cannot even start.
    found = against(result(), read_bytes(raw(()), source="empty.json"))
    assert (found.exit_code, any(r.outcome.value == "pass" for r in found.results)) == (3, False)
    empty, here = tmp_path / "empty.json", tmp_path / "here.json"
    empty.write_bytes(raw(()))
    here.write_bytes(raw())
    assert called(here, "--rules", rules_file, "--baseline-file", empty) == 3
    with open_store(str(tmp_path / "h.db")) as store, pytest.raises(InputError, match="cannot be a baseline"):
        add_to_baseline(store, "main", raw(()), source="empty.json")


def test_16_an_improvement_that_was_luck_moves_no_baseline(tmp_path: Path) -> None:
    with open_store(str(tmp_path / "h.db")) as store:
        actions = [add_to_baseline(store, "main", raw(factor=f), source=f"{f}.json").action for f in (1.0, 0.7, 1.003)]
        assert actions == ["started", "pending", "joined"]
        # The lucky run is no baseline: what was normal before it still passes.
        assert check(result(factor=1.004), RELATIVE, baseline=store.baseline("main").records()).exit_code == 0
        assert check(result(factor=1.2), RELATIVE, baseline=store.baseline("main").records()).exit_code == 1


def test_17_a_commit_that_changed_documents_alone() -> None:
    # The same program under another commit, with the noise of another moment: no regression, and no reason to refuse.
    moved = tuple(v * f for v, f in zip(STEADY, (1.004, 0.998, 1.003, 0.999, 1.002, 1.001, 1.0), strict=True))
    found = check(result(moved, commit="b"), RELATIVE, baseline=[result(commit="a")])
    assert (found.exit_code, found.results[0].verdict) == (0, "same")


def test_18_another_machine_that_is_faster() -> None:
    found = check(result(factor=0.5, gpu="H200"), RELATIVE, baseline=[result(gpu="H100")])
    assert (found.exit_code, found.results[0].verdict) == (3, "not_comparable")


def test_19_one_of_two_benchmarks_vanished() -> None:
    two = {"schema": "samples/1", "environment": {}, "benchmarks": [
        {"name": n, "metric": "time_s", "runs": [list(STEADY)]} for n in ("x", "y")
    ]}  # fmt: skip
    found = against(result(), read_bytes(json.dumps(two).encode(), source="two.json"))
    assert {r.name: r.outcome.value for r in found.results} == {"x/time_s": "pass", "y/time_s": "undecided"}
    assert found.exit_code == 3


def test_20_a_regression_among_many_that_improved() -> None:
    def many(factors: list[float]) -> Record:
        rows = [{"name": f"b{i}", "metric": "time_s", "runs": [[f * s for s in STEADY]]} for i, f in enumerate(factors)]
        return read_bytes(json.dumps({"schema": "samples/1", "benchmarks": rows}).encode(), source="x")

    found = against(many([0.7] * 9 + [1.3]), many([1.0] * 10))
    assert (found.exit_code, [r.name for r in found.results if r.outcome.value == "fail"]) == (1, ["b9/time_s"])


def test_21_aliases_that_multiply_are_not_written_out(tmp_path: Path) -> None:
    bomb = "rules:\n  - metric: '*/time_s'\n    between:\n      - &x0 [a, a, a, a, a, a, a, a, a, a]\n"
    bomb += "".join(f"      - &x{i} [{', '.join([f'*x{i - 1}'] * 10)}]\n" for i in range(1, 12))  # 10^12 words
    for text, said in (
        (bomb, r"between is \[\.\.\., \.\.\., .*\], expected two limits"),
        ("rules:\n  - {metric: '*/time_s', between: &r [*r, 1, 2]}\n", r"between is \[\.\.\., 1, 2\]"),
        (
            "rules: [{metric: '*/time_s', at_most: 1 s}]\nrules: []\n",
            r"found duplicate key \"rules\".*\(line 2, column 1\)",
        ),
    ):
        path = tmp_path / "rules.yaml"
        path.write_text(text)
        with pytest.raises(UsageError, match=said):
            read_rules(path)
