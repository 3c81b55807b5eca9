"""What `mansard run` refuses before the program runs, and whose `--json` is whose."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mansard.cli import run as verb
from mansard.cli.main import _wants_json, main
from mansard.cli.run_job import launch_of, of_rank
from mansard.core.errors import InputError, UndecidedError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a program that leaves a trace if it ever runs."""
    (tmp_path / "program.py").write_text("open('ran', 'w').close()\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["-o", "missing/run.json"], "no directory"),
        (["--report", "missing/run.html"], "no directory"),
        (["--report", "there", "--force"], "is a directory"),
        (["-o", "there", "--force"], "is a directory"),
        (["-o", "old.json"], "exists"),
        (["--keep", "there", "--force"], "not a recording"),
        (["--keep", "old.json", "--force"], "not a recording"),
    ],
)
def test_an_output_that_cannot_be_written_is_refused_before_the_program_runs(
    folder: Path, capsys: pytest.CaptureFixture[str], options: list[str], words: str
) -> None:
    (folder / "there").mkdir()
    (folder / "there" / "precious").write_text("mine")
    (folder / "old.json").write_text("old")
    with pytest.raises(SystemExit) as ended:
        main(["run", *options, "program.py"])
    assert ended.value.code == 2
    assert words in capsys.readouterr().err
    assert not (folder / "ran").exists()
    assert (folder / "there" / "precious").read_text() == "mine"
    assert (folder / "old.json").read_text() == "old"


def test_ceilings_that_cannot_be_measured_do_not_stop_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise UndecidedError("a team of 2 threads did not come together", hint="the machine is busy")

    said: list[str] = []
    monkeypatch.setattr("mansard.measure.measure", refuse)
    monkeypatch.setattr("mansard.measure.load_cached", lambda **_: None)
    found = verb._measured_or_none(None, said.append)
    assert found.ceilings == ()
    assert "did not come together (the machine is busy); the program runs all the same" in said[-1]
    # What drifts is looked at again where there is something to compare with, and where the machine allows it.
    assert verb._probe(found) is None
    monkeypatch.setattr("mansard.measure.probe", refuse)
    assert verb._probe(replace(found, ceilings=(object(),))) is None


def test_ceilings_that_cannot_be_kept_do_not_stop_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    measured, said = SimpleNamespace(), []

    def refuse(_: object) -> None:
        raise InputError("cannot write x", hint="set y")

    monkeypatch.setattr("mansard.measure.measure", lambda *_, **__: measured)
    monkeypatch.setattr("mansard.measure.save", refuse)
    assert verb._measure_now(None, said.append) is measured
    assert "cannot write x" in said[-1]


@pytest.mark.parametrize(
    ("words", "ours"),
    [
        (["run", "--json", "train.py"], True),
        (["run", "-o", "x", "--json", "-m", "package"], True),
        (["run", "-m", "package", "--json"], False),
        (["run", "folder", "--json"], False),
        (["run", "train.py", "--json"], False),
        (["run", "--report", "--json", "train.py"], False),
        (["report", "run.json", "--json"], True),
        (["measure", "--json"], True),
    ],
)
def test_json_after_the_program_belongs_to_the_program(words: list[str], ours: bool) -> None:
    assert _wants_json(words) is ours


@pytest.mark.parametrize("body", ['"ceilings": 5', '"environment": {}', '"ceilings": [{"value": "fast"}]'])
def test_damaged_ceilings_are_one_line_not_a_traceback(
    folder: Path, capsys: pytest.CaptureFixture[str], body: str
) -> None:
    (folder / "ceilings.json").write_text('{"schema": "ceilings/1", ' + body + "}")
    with pytest.raises(SystemExit) as ended:
        main(["run", "--ceilings", "ceilings.json", "program.py"])
    assert ended.value.code == 4
    assert "damaged" in capsys.readouterr().err
    assert not (folder / "ran").exists()


@dataclass(frozen=True)
class Finding:
    code: str
    text: str


@dataclass(frozen=True)
class Judged:
    findings: tuple[Any, ...] = (Finding("old", "one that is there"),)


HERE = {"cpu_model": "A", "architecture": "x86_64", "threads": 2}


@pytest.mark.parametrize(
    ("machine", "words"),
    [
        ({**HERE, "cpu_model": "B"}, "processor B there, A here"),
        ({**HERE, "threads": 64}, "threads 64 there, 2 here"),
        ({**HERE, "architecture": "aarch64"}, "architecture aarch64 there"),
        (HERE, None),
        ({}, None),  # a hardware file says nothing of a host
    ],
)
def test_ceilings_of_another_machine_are_named(
    monkeypatch: pytest.MonkeyPatch, machine: dict[str, Any], words: str | None
) -> None:
    monkeypatch.setattr("mansard.measure.machine.describe", lambda *_: HERE)
    found = verb._with_origin(Judged(), machine, "there.json")  # type: ignore[arg-type]
    if words is None:
        assert [f.code for f in found.findings] == ["old"]
    else:
        assert [f.code for f in found.findings] == ["other_machine", "old"]
        assert words in found.findings[0].text
        assert "there.json" in found.findings[0].text


@pytest.mark.parametrize(("columns", "width"), [("132", 132), ("0", 80), ("wide", 80), ("", 80)])
def test_the_page_is_as_wide_as_columns_says_else_eighty_in_a_pipe(
    monkeypatch: pytest.MonkeyPatch, columns: str, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    with open(os.devnull, "w") as pipe:
        monkeypatch.setattr(verb.sys, "stderr", pipe)
        assert verb._columns() == width


@pytest.mark.parametrize(("text", "code"), [("import sys; sys.exit(7)\n", 7), ("x = 1 / 0\n", 1), ("", 3)])
def test_json_of_a_program_of_which_nothing_was_profiled_is_one_document(
    folder: Path, capfd: pytest.CaptureFixture[str], text: str, code: int
) -> None:
    (folder / "fails.py").write_text(text)
    (folder / "ceilings.json").write_text(
        json.dumps(
            {"schema": "ceilings/1", "tool_version": "0", "created": "2026-11-30T00:00:00+00:00", "environment": {},
             "ceilings": [{"resource": {"area": "compute", "dtype": "f32", "engine": "matrix"}, "value": 2e11,
                           "unit": "FLOP/s", "kind": "measured", "scope": "node", "source": "made by hand"}]}
        )
    )  # fmt: skip
    with pytest.raises(SystemExit) as ended:
        main(["run", "--json", "--ceilings", "ceilings.json", "fails.py"])
    assert ended.value.code == code
    assert "error" in json.loads(capfd.readouterr().out)


SECOND = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("environment", "given", "expected"),
    [
        (SECOND, "out/r.json", "out/r-rank1.json"),
        (SECOND, "out/r-{rank}.json", "out/r-1.json"),
        (SECOND, "kept", "kept-rank1"),
        (SECOND, os.devnull, os.devnull),
        ({"RANK": "1", "WORLD_SIZE": "2"}, "r.json", "r-rank1.json"),  # where rank 0 is does not matter here
        ({**SECOND, "RANK": "0", "WORLD_SIZE": "1"}, "r.json", "r.json"),
        ({}, "r.json", "r.json"),
        ({"RANK": "one", "WORLD_SIZE": "2"}, "r.json", "r.json"),
    ],
)
def test_a_rank_has_files_of_its_own(environment: dict[str, str], given: str, expected: str) -> None:
    assert of_rank(Path(given), launch_of(environment)) == Path(expected)


def test_a_rank_of_which_nothing_was_recorded_does_not_end_its_job(
    folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "idle.py").write_text("")
    (folder / "ceilings.json").write_text(
        json.dumps(
            {"schema": "ceilings/1", "tool_version": "0", "created": "2026-11-30T00:00:00+00:00", "environment": {},
             "ceilings": [{"resource": {"area": "compute", "dtype": "f32", "engine": "matrix"}, "value": 2e11,
                           "unit": "FLOP/s", "kind": "measured", "scope": "node", "source": "made by hand"}]}
        )
    )  # fmt: skip
    for name, value in SECOND.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as ended:
        main(["run", "-o", "r.json", "--ceilings", "ceilings.json", "idle.py"])
    assert ended.value.code == 0
    assert "rank 1 of 2 writes r-rank1.json" in capfd.readouterr().err
