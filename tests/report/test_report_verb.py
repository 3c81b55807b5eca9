from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from mansard.cli.report import command
from mansard.core import InputError, UsageError
from mansard.core.document import dumps
from mansard.report.document import to_document
from mansard.report.html import render


@pytest.fixture
def stored(tmp_path, sample):
    path = tmp_path / "run.json"
    path.write_text(dumps(to_document(sample)), encoding="utf-8")
    return path


def invoke(*args: str, stdin: str | bytes | None = None):
    return CliRunner().invoke(command, list(args), input=stdin)


def test_writes_the_page_that_the_diagnosis_gives(stored, tmp_path, sample) -> None:
    out = tmp_path / "out.html"
    result = invoke(str(stored), "-o", str(out))
    assert result.exit_code == 0
    assert result.stdout == ""
    assert out.read_text(encoding="utf-8") == render(sample)


def test_dash_is_stdin_and_stdout(stored, sample) -> None:
    result = invoke("-", "-o", "-", stdin=stored.read_text())
    assert result.exit_code == 0
    assert result.stdout == render(sample)


def test_a_diagnose_document_is_taken_too(tmp_path, sample) -> None:
    path = tmp_path / "diagnose.json"
    path.write_text(dumps(to_document(sample, schema="diagnose/1")), encoding="utf-8")
    assert invoke(str(path), "-o", str(tmp_path / "d.html")).exit_code == 0


def test_nothing_is_overwritten_without_force(stored, tmp_path) -> None:
    out = tmp_path / "out.html"
    out.write_text("mine")
    result = invoke(str(stored), "-o", str(out))
    assert isinstance(result.exception, UsageError)
    assert result.exception.exit_code == 2
    assert "--force" in result.exception.hint
    assert out.read_text() == "mine"
    assert invoke(str(stored), "-o", str(out), "--force").exit_code == 0
    assert out.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_the_input_is_never_the_output(stored) -> None:
    before = stored.read_text()
    result = invoke(str(stored), "-o", str(stored), "--force")
    assert isinstance(result.exception, UsageError)
    assert stored.read_text() == before


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"schema": "ceilings/1"}', "lacks the key 'ceilings'"),
        ('{"schema": "other/1"}', "not a run document"),
        ('[{"schema": "detailed/1"}]', "not one of detailed/1 points"),
        ("[]", "not a run document"),
        ("{", "not valid JSON"),
        ('{"schema": "run/9"}', "run/9"),
        ('{"schema": "run/1"}', "lacks the key"),
    ],
)
def test_another_kind_of_file_is_named(tmp_path, content, message) -> None:
    path = tmp_path / "x.json"
    path.write_text(content)
    result = invoke(str(path), "-o", str(tmp_path / "x.html"))
    assert isinstance(result.exception, InputError)
    assert result.exception.exit_code == 4
    assert message in result.exception.message
    assert not (tmp_path / "x.html").exists()


def test_bad_stdin_and_missing_folder(stored, tmp_path) -> None:
    assert isinstance(invoke("-", "-o", "-", stdin="{").exception, InputError)
    assert isinstance(invoke("-", "-o", "-", stdin="[]").exception, InputError)
    assert isinstance(invoke(str(stored), "-o", str(tmp_path / "no" / "x.html")).exception, UsageError)
    assert isinstance(invoke(str(stored), "-o", str(tmp_path)).exception, UsageError)


def test_json_says_what_was_written(stored, tmp_path) -> None:
    result = invoke(str(stored), "-o", str(tmp_path / "j.html"), "--json")
    written = json.loads(result.stdout)
    assert written["size_bytes"] == (tmp_path / "j.html").stat().st_size
    assert isinstance(invoke(str(stored), "-o", "-", "--json").exception, UsageError)
