from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mansard.cli.main import main

STEADY = (0.100, 0.101, 0.099, 0.100, 0.100, 0.1005, 0.0995)


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*args: str | Path) -> tuple[int, str]:
        with pytest.raises(SystemExit) as stop:
            main([str(a) for a in args])
        return int(stop.value.code or 0), capsys.readouterr().out

    return run


@pytest.fixture
def result(tmp_path: Path) -> Any:
    def write(name: str, factor: float = 1.0, **environment: Any) -> Path:
        benchmarks = [
            {"name": "sort", "metric": "time_s", "runs": [[factor * s for s in STEADY]]},
            {"name": "sort", "metric": "share_of_ceiling", "runs": [[0.7 / factor, 0.71 / factor, 0.72 / factor] * 2]},
        ]
        path = tmp_path / name
        path.write_text(json.dumps({"schema": "samples/1", "environment": environment, "benchmarks": benchmarks}))
        return path

    return write


RULES = (
    "rules:\n  - {metric: 'sort/share_of_ceiling', at_least: 0.6}\n  - {metric: 'sort/time_s', max_regression: 5 %}\n"
)


@pytest.mark.parametrize(("factor", "code", "verdict"), [(1.003, 0, "same"), (1.3, 1, "slower"), (0.8, 0, "faster")])
def test_compare_says_it_in_json_and_in_its_exit_code(
    call: Any, result: Any, factor: float, code: int, verdict: str
) -> None:
    got, out = call("compare", result("a.json"), result("b.json", factor), "--json")
    document = json.loads(out)
    assert (got, document["schema"], document["verdict"]) == (code, "compare/1", verdict)
    first = document["results"][0]
    assert (first["name"], first["verdict"]) == ("sort/time_s", verdict)
    assert first["ratio"] == pytest.approx(factor)
    assert first["ci95"][0] < factor < first["ci95"][1]
    assert first["reason"]


def test_compare_of_what_cannot_be_compared_is_exit_3_and_says_what_differs(call: Any, result: Any) -> None:
    code, out = call("compare", result("a.json", gpus=8), result("b.json", 1.01, gpus=4, driver="590"))
    assert code == 3
    assert "not comparable: device_count (devices): 8 -> 4" in out
    code, out = call("compare", result("a.json", gpus=8), result("b.json", 1.001, gpus=4), "--allow", "device_count")
    assert code == 0
    code, out = call("compare", result("a.json", driver="580"), result("b.json", 1.001, driver="590"))
    assert code == 0
    assert "changed: driver: 580 -> 590" in out
    assert (
        call("compare", result("a.json", driver="580"), result("b.json", driver="590"), "--require", "driver")[0] == 3
    )


def test_compare_takes_folders_of_runs(call: Any, result: Any, tmp_path: Path) -> None:
    for side, factor in (("old", 1.0), ("new", 1.08)):
        (tmp_path / side).mkdir()
        for i in range(4):
            result(f"{side}/{i}.json", factor * (1 + 0.001 * i))
    code, out = call("compare", tmp_path / "old", tmp_path / "new", "--markdown")
    assert code == 1
    assert "| slower | sort/time_s |" in out
    (tmp_path / "empty").mkdir()
    assert call("compare", tmp_path / "empty", tmp_path / "new")[0] == 2


@pytest.mark.parametrize(
    "option", ["--tolerance=nan", "--tolerance=-1", "--floor=5", "--allow=colour", "--resolution=1 %"]
)
def test_compare_refuses_what_is_no_limit(call: Any, result: Any, option: str) -> None:
    assert call("compare", result("a.json"), result("b.json"), option)[0] == 2


def test_check_is_a_gate(call: Any, result: Any, tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text(RULES)
    assert call("baseline", "add", "main", result("a.json"))[0] == 0
    assert call("check", result("b.json", 1.002), "--rules", rules, "--baseline", "main")[0] == 0
    code, out = call("check", result("c.json", 1.3), "--rules", rules, "--baseline", "main", "--json")
    document = json.loads(out)
    assert (code, document["outcome"], document["verdict"]) == (1, "fail", "missed")  # 0.71 / 1.3 = 0.546 is below 0.6
    assert [(r["name"], r["verdict"]) for r in document["results"]] == [
        ("sort/share_of_ceiling", "missed"),
        ("sort/time_s", "slower"),
    ]
    assert call("check", result("b.json"), "--rules", rules)[0] == 3
    assert call("check", result("b.json"), "--rules", rules, "--baseline", "gone")[0] == 4


def test_check_without_rules_holds_it_against_the_baseline(
    call: Any, result: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "elsewhere" / "history.db"
    monkeypatch.setenv("MANSARD_STORE", str(store))
    assert call("check", result("b.json"), "--baseline", "main")[0] == 4
    assert not store.parent.exists()  # reading makes no store
    assert call("baseline", "add", "main", result("a.json", gpus=8))[0] == 0
    assert call("check", result("b.json", 1.002, gpus=8), "--baseline", "main")[0] == 0
    code, out = call("check", result("c.json", 1.3, gpus=8), "--baseline", "main", "--json")
    assert (code, {r["verdict"] for r in json.loads(out)["results"]}) == (1, {"slower"})
    assert call("check", result("d.json", 1.3, gpus=4), "--baseline", "main")[0] == 3  # not comparable
    single = tmp_path / "single.json"
    single.write_text(json.dumps({
        "schema": "samples/1", "environment": {"gpus": 8}, "benchmarks": [{"name": "sort", "metric": "time_s", "runs": [[0.1]]}],
    }))  # fmt: skip
    assert call("check", single, "--baseline", "main")[0] == 3  # one sample tells nothing
    other = tmp_path / "other.json"
    other.write_text(single.read_text().replace('"sort"', '"merge"'))
    assert call("check", other, "--baseline-file", result("a.json", gpus=8))[0] == 3  # what the baseline has is gone
    assert call("check", single)[0] == 2  # neither rules nor a baseline


def test_check_writes_files_for_ci_and_replaces_none(call: Any, result: Any, tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text(RULES)
    args = ["check", result("b.json", 1.001), "--rules", rules, "--baseline-file", result("a.json")]
    files = {f: tmp_path / f for f in ("junit", "markdown", "bencher", "benchmark-action-smaller")}
    code, _ = call(*args, *(f"--as={form}={path}" for form, path in files.items()))
    assert code == 0
    assert all(path.read_text() for path in files.values())
    assert call(*args, f"--as=junit={files['junit']}")[0] == 2
    assert call(*args, "--as=pdf")[0] == 2
    assert call(*args, "--as=junit", "--json")[0] == 2
    assert call(*args, "--as=annotations")[1].startswith("::notice")


def test_a_baseline_from_beginning_to_end(call: Any, result: Any, tmp_path: Path) -> None:
    assert "starts with" in call("baseline", "add", "main", result("a.json"), "--label", "zone=b")[1]
    code, out = call("baseline", "add", "main", result("b.json", 1.3), "--label", "zone=b")
    assert (code, "slower against baseline" in out) == (1, True)
    assert call("baseline", "add", "main", result("b.json", 1.001), "--label", "zone=c")[0] == 3
    assert "pending" in call("baseline", "add", "main", result("c.json", 0.8), "--label", "zone=b")[1]
    document = json.loads(call("baseline", "show", "main", "--json")[1])
    assert [e["state"] for e in document["entries"]] == ["accepted", "pending"]
    assert document["entries"][0]["record"]["figures"]["time_s"] == pytest.approx(0.1)
    archive = tmp_path / "archive.json"
    assert call("baseline", "export", "main", "-o", archive)[0] == 0
    assert call("baseline", "rm", "main")[0] == 0
    assert call("baseline", "show", "main")[0] == 4
    assert call("baseline", "import", archive)[0] == 0
    assert json.loads(call("baseline", "list", "--json")[1])["baselines"][0]["states"] == {
        "accepted": 1,
        "pending": 1,
        "retired": 0,
    }
    assert "time_s 100 ms" in call("baseline", "list", "--records")[1]


def test_other_programs_can_be_imported(call: Any, tmp_path: Path) -> None:
    path = tmp_path / "pyperf.json"
    run = {"values": [0.1, 0.11, 0.12]}
    path.write_text(
        json.dumps(
            {"version": "1.0", "metadata": {"name": "sort", "unit": "second"}, "benchmarks": [{"runs": [run, run]}]}
        )
    )
    assert call("baseline", "import", path)[1] == "pyperf.json: number 1, time_s 110 ms\n"
    assert "starts with" in call("baseline", "import", path, "--as", "main")[1]
    assert call("baseline", "import", tmp_path / "gone.json")[0] == 4


def test_a_store_by_option_is_another_one(call: Any, result: Any, tmp_path: Path) -> None:
    call("baseline", "add", "main", result("a.json"), "--store", tmp_path / "team.db")
    assert "no baselines" in call("baseline", "list")[1]
    assert "main" in call("baseline", "list", "--store", tmp_path / "team.db")[1]


def test_reading_makes_no_store_and_says_where_none_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "new" / "history.db"
    monkeypatch.setenv("MANSARD_STORE", str(store))

    def run(*args: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as stop:
            main(list(args))
        out, err = capsys.readouterr()
        return int(stop.value.code or 0), out, err

    for verb in (("show", "main"), ("trend",), ("trend", "main"), ("rm", "main"), ("export", "main")):
        code, out, err = run("baseline", *verb)
        assert (code, out) == (4, ""), verb
        assert f"there is no store at {store}" in err
    code, out, err = run("baseline", "list")
    assert (code, out[:12]) == (0, "no baselines")
    assert f"there is no store at {store}" in err
    document = json.loads(run("baseline", "list", "--records", "--json")[1])
    assert (document["baselines"], document["records"], document["store"]) == ([], [], f"sqlite:///{store}")
    assert not store.parent.exists()
    store.parent.mkdir()
    store.touch()  # an empty file is no store either
    assert run("baseline", "show", "main")[0] == 4
    assert [p.name for p in store.parent.iterdir()] == ["history.db"]
    assert store.stat().st_size == 0
